"""Random views of random tensors, summed by torch_reduce and by torch.sum: where is ours the slower one?

    python bench/views.py                            a minute: 600 views of 2^12 to 2^25 elements
    python bench/views.py --count 400 --log2 22 27 --seed 2
    python bench/views.py --save                     into bench/results/<gpu>/views.json, which report.py reads
    python bench/views.py --save FILE                into FILE

The grid (bench/grid.py) has the shapes of models; this has any: one to five dims, cropped, every second or third
element, permuted, at an offset, and some of the dims summed. The same seed makes the same views. Our sums are compared
with the CPU's, bit by bit, where they have at most 2^22 elements, and otherwise with torch's. Times are of the GPU,
between kernels that do not start early, in a CUDA graph, with a cold cache (bench/timing.py). Prints the geometric mean
and the median, how many are slower, and these first. A run that is cut off by --seconds is not kept.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time

import torch

import cases
import contenders as who
import provenance
import report
import timing
from torch_reduce.tuning.problems import random_view

CHECKED = 1 << 22  # elements of views whose bits are compared with the CPU's
SHOWN = 40


def is_right(case, x, ours):
    if x.numel() <= CHECKED:
        return who.same_bits(ours, who.our_sum(case, x.cpu()))
    return who.close(torch.sum(x, who.dims(case)), ours, who.length(case))


def measure(view, flush):
    """The medians of ours and torch's, in us."""
    case = cases.cell("views", str(view), view.dtype, view.elements(), view.of, view.dims)
    flat = case.flat("cuda")
    buffers = timing.Buffers(flat, case.view, False)
    del flat
    if not is_right(case, buffers.views[0], who.our_sum(case, buffers.views[0])):
        raise RuntimeError(f"the sum is wrong: {view}")
    dims = who.dims(case)
    candidates = [  # without `out`, so that each lays its result out as it does by itself
        timing.Candidate("ours", lambda x, _: torch.ops.gpureduce.sum(x, dims)),
        timing.Candidate("torch.sum", lambda x, _: torch.sum(x, dims)),
    ]
    times = timing.gpu_times(
        candidates, buffers, lambda: case.make_out("cuda"), repeats=5, target_us=80, warm_ms=5, flush=flush
    )
    return times["ours"].us, times["torch.sum"].us


def summary(rows):
    """Lines about [(view, ours, theirs), ...]."""
    rows = sorted(rows, key=lambda row: row[2] / row[1])
    ratios = [theirs / ours for _, ours, theirs in rows]
    mean, slower = statistics.geometric_mean(ratios), sum(r < 1 for r in ratios)
    middle = statistics.median(ratios)
    yield (
        f"{len(rows)} views: {mean:.2f} times as fast as torch.sum, geometric mean, median {middle:.2f}; "
        f"in {slower} torch.sum is faster"
    )
    yield f"{'ratio':>6} {'ours us':>9} {'torch.sum':>9}"
    for (view, ours, theirs), ratio in list(zip(rows, ratios, strict=True))[:SHOWN]:
        yield f"{ratio:6.2f} {ours:9.2f} {theirs:9.2f}  {view}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=600, help="views")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log2", type=float, nargs=2, default=(12, 25), help="of the least and the most elements")
    parser.add_argument("--seconds", type=float, default=600, help="stop after so many")
    parser.add_argument("--save", metavar="FILE", type=pathlib.Path, nargs="?", const="", help="keep the results")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/views.py needs a GPU")
    facts = who.environment(report.VIEWS)
    rng, flush, rows, begin = random.Random(options.seed), timing.Flush(), [], time.monotonic()
    for i in range(options.count):
        passed = time.monotonic() - begin
        if passed > options.seconds:
            break
        if i % 20 == 0:
            torch.cuda.empty_cache()
            print(f"\r{i} of {options.count} views, {passed:.0f} s", end="", file=sys.stderr, flush=True)
        view = random_view(rng, *options.log2)
        rows.append((view, *measure(view, flush)))
    print(file=sys.stderr)
    if not rows:
        sys.exit("no view was measured: give more --seconds")
    print("\n".join(summary(rows)))
    if options.save is not None and len(rows) < options.count:
        sys.exit(f"only {len(rows)} of {options.count} views were measured, and nothing is kept: give more --seconds")
    if options.save is not None:
        kept = [{"view": str(view), "us": round(us, 4), "torch_us": round(theirs, 4)} for view, us, theirs in rows]
        how = {"count": options.count, "seed": options.seed, "log2": list(options.log2)}
        provenance.save({**facts, **how, "views": kept}, report.VIEWS, options.save)


if __name__ == "__main__":
    main()
