"""How far is the plan that is chosen from the best of those that are proposed, on random problems?

    python bench/regret.py                           two minutes: 2000 problems, all plans of each
    python bench/regret.py --count 500 --seed 9
    python bench/regret.py --kind views              random views, as bench/views.py draws them
    python bench/regret.py --no-candidates           only ours and torch.sum: 20 seconds
    python bench/regret.py --multiprocessors 66      on a part of the GPU (a green context), with plans for such a part

A problem is a random contiguous tensor of 2 KiB to 800 MiB and a sum of it: all of it, rows, columns, a middle dim,
or the dims of a batch norm. Each of the plans that the kernels propose is timed between kernels that do not start
early, in a CUDA graph over rotating buffers (torch_reduce/tuning/race.py; bench/timing.py explains the method), once
in each of a few rounds; the median counts. The **regret** of a problem is the time of the plan that torch_reduce takes
over the best plan's. It is never quite 1, for the best of many noisy times is lower than its plan's. All plans must
have the same bits. `python -m torch_reduce tune` fits the choice to such times; its seeds are others than these.
"""

import argparse
import pathlib
import random
import statistics
import sys

import torch

import contenders as who
import provenance
from torch_reduce.tuning import tune
from torch_reduce.tuning.problems import KINDS, random_problem

SHOWN = 20


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


def summary(rows):
    """Lines about what `tune.measure` returns."""
    against = [row["us"]["torch"] / row["us"]["ours"] for row in rows if "torch" in row["us"]]
    if against:
        slower = sum(r < 1 for r in against)
        yield (
            f"{len(against)} problems: {statistics.geometric_mean(against):.2f} times as fast as torch.sum, geometric "
            f"mean, median {statistics.median(against):.2f}; in {slower} torch.sum is faster, at worst "
            f"{min(against):.2f}"
        )
    regrets = []
    for row in rows:
        best = min((us for name, us in row["us"].items() if name not in ("ours", "torch")), default=None)
        if best:
            regrets.append((row["us"]["ours"] / best, row))
    if regrets:
        values = [r for r, _ in regrets]
        yield (
            f"regret: geometric mean {statistics.geometric_mean(values):.4f}, 95 of 100 below "
            f"{quantile(values, 0.95):.3f}, worst {max(values):.2f}"
        )
        for regret, row in sorted(regrets, key=lambda pair: -pair[0])[:SHOWN]:
            yield f"{regret:6.2f} {row['us']['ours']:9.2f} us  {row['problem']}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="problems")
    parser.add_argument("--kind", choices=KINDS, default="contiguous")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=600, help="stop after so many")
    parser.add_argument("--no-candidates", dest="candidates", action="store_false", help="only ours and torch.sum")
    parser.add_argument("--multiprocessors", type=int, default=0, help="of the GPU's; 0: all")
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path, help="keep what was measured, as JSON")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/regret.py needs a GPU")
    rng = random.Random(options.seed)
    problems = [random_problem(rng, options.kind) for _ in range(options.count)]
    if options.multiprocessors:
        torch.cuda.init()
        part = torch.cuda.green_contexts.GreenContext.create(options.multiprocessors)
        part.set_context()
    bench = tune.Bench(options.repeats, options.multiprocessors)
    rows = tune.measure(problems, options.seconds, bench, forced=options.candidates, torchs=True)
    if options.save:
        how = {"kind": options.kind, "seed": options.seed, "features": torch.ops.gpureduce._features()}
        provenance.save({**who.environment(), **how, "problems": rows}, "regret.json", options.save)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
