"""Times every plan that is proposed for one or more cells, all in turns in one process.

    python bench/tune.py "full float32 2^28" "rows float32 (16384, 4096)"

Cells are those of grid.py --cells, or any "rows bf16 (8, 2^23)". Prints one table a cell, fastest first, with each plan
in words. "plan" is the one that torch_reduce takes by itself. Times are of calls between kernels that do not start
early (bench/timing.py), as the grid's are. Plans whose bits differ are shown as WRONG.
"""

import argparse
import itertools

import torch

import cases as grid
import contenders as who
import timing
from timing import Candidate


def tuned(case, tuning):
    dim = who.dims(case)
    return Candidate(
        tuning, lambda view, _: torch.ops.gpureduce._sum_tuned(view, dim, False, dtype=case.sum_dtype, tuning=tuning)
    )


def proposed(case, view, right):
    """All plans as candidates: those that are right, and those with other bits."""
    candidates, wrong = [], []
    for k in itertools.count():
        candidate = tuned(case, f"candidate={k}")
        try:
            result = candidate.fn(view, None)
        except ValueError:  # there are no more
            return candidates, wrong
        torch.cuda.synchronize()
        (candidates if who.same_bits(result, right) else wrong).append(candidate)


def words(case, view, tuning):
    """A plan as one line."""
    text = torch.ops.gpureduce._explain(view, who.dims(case), tuning=tuning)
    return " | ".join(text.splitlines()[2:5])


def tune(case, options, library, flush):
    flat = case.flat("cuda")
    buffers = timing.Buffers(flat, case.view, options.hot)
    del flat
    right = who.our_sum(case, buffers.views[0])
    candidates, wrong = proposed(case, buffers.views[0], right)
    plan = Candidate("plan", lambda view, _: who.our_sum(case, view))
    others = [c for c in (who.cub_sum(case, buffers.views[0], library),) if c]
    reads = timing.read_candidates(library, buffers) if library else []
    times = timing.gpu_times(
        [plan, *candidates, *others, *reads],
        buffers,
        lambda: case.make_out("cuda"),
        repeats=options.repeats,
        target_us=options.target_us,
        warm_ms=20,
        flush=flush,
    )
    best = timing.fastest(times, "read")
    for name in [name for name in times if name.startswith("read ")]:
        if name != best[0]:
            del times[name]
    base = times["plan"].us
    print(f"\n{case.name}   {case.bytes() / 1e6:.1f} MB")
    print(f"{'µs':>10} {'±%':>6} {'GB/s':>7} {'plan/this':>10}   plan")
    order = sorted(times.items(), key=lambda item: item[1].us)
    shown = hidden = 0
    for name, t in order:
        if "=" in name and shown == options.top:
            hidden += 1
            continue
        shown += "=" in name
        rate = case.bytes() / t.us / 1e3
        what = f"{name}: {words(case, buffers.views[0], name)}" if "=" in name else name
        print(f"{t.us:>10.3f} {100 * t.spread():>6.2f} {rate:>7.0f} {base / t.us:>10.3f}   {what}")
    if hidden:
        print(f"    and {hidden} slower ones; --top {shown + hidden} shows them")
    print(f"    plan: {' | '.join(torch.ops.gpureduce._explain(buffers.views[0], who.dims(case)).splitlines())}")
    for candidate in wrong:
        print(f"    WRONG bits: {candidate.name}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--target-us", type=float, default=400.0, help="work in one graph")
    parser.add_argument("--top", type=int, default=20, help="plans shown a cell")
    parser.add_argument("--hot", action="store_true", help="one buffer instead of rotating ones")
    parser.add_argument("--no-cub", action="store_true", help="neither CUB nor the reading kernels")
    options = parser.parse_args(arguments)
    try:
        chosen = [grid.parse(cell) for cell in options.cells]
    except ValueError as error:
        parser.error(str(error))
    if not torch.cuda.is_available():
        parser.error("tuning needs a GPU")
    library = None if options.no_cub else who.load_cub()
    print(f"{torch.cuda.get_device_name()}: {len(chosen)} cells")
    flush = timing.Flush()
    for case in chosen:
        tune(case, options, library, flush)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
