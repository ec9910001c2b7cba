"""Times every combination of plan knobs on one or more cases, all in turns in one process.

    python bench/tune.py "full float32 2^28" "rows float32 (16384, 4096)" warps=4,8,16 tile_leaves=256,512

Arguments with "=" are knobs with the values to try; the others are cells: those of grid.py --cells, or any
"rows bf16 (8, 2^23)". Prints one table a cell, fastest first. "plan" is what the planner chooses by itself. Times are
of calls between kernels that do not start early (bench/timing.py), as the grid's are.
Combinations that it refuses are counted; those whose bits differ are shown as WRONG.
"""

import argparse
import itertools

import torch

import cases as grid
import contenders as who
import timing
from timing import Candidate


def combinations(knobs):
    """[("warps", ["4", "8"]), ...] -> every tuning string."""
    names = [name for name, _ in knobs]
    return [
        ",".join(map("=".join, zip(names, values, strict=True))) for values in itertools.product(*(v for _, v in knobs))
    ]


def tuned(case, tuning):
    dim = who.dims(case)
    return Candidate(
        tuning, lambda view, _: torch.ops.gpureduce._sum_tuned(view, dim, False, dtype=case.sum_dtype, tuning=tuning)
    )


def accepted(case, tunings, view, right):
    """The combinations as candidates: those that run, those with other bits, and the messages of refusals."""
    candidates, wrong, refused = [], [], []
    for tuning in tunings:
        candidate = tuned(case, tuning)
        try:
            result = candidate.fn(view, None)
            torch.cuda.synchronize()
        except torch.AcceleratorError:  # the device is lost: nothing after this would be true
            print(f"    the GPU failed at {tuning}", flush=True)
            raise
        except (RuntimeError, ValueError) as error:
            refused.append(f"{tuning}: {str(error).splitlines()[0][:120]}")
            continue
        (candidates if who.same_bits(result, right) else wrong).append(candidate)
    return candidates, wrong, refused


def tune(case, tunings, options, library, flush):
    flat = case.flat("cuda")
    buffers = timing.Buffers(flat, case.view, options.hot)
    del flat
    right = who.our_sum(case, buffers.views[0])
    candidates, wrong, refused = accepted(case, tunings, buffers.views[0], right)
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
    print(f"{'µs':>10} {'±%':>6} {'GB/s':>7} {'plan/this':>10}   tuning")
    order = sorted(times.items(), key=lambda item: item[1].us)
    shown = hidden = 0
    for name, t in order:
        if "=" in name and shown == options.top:
            hidden += 1
            continue
        shown += "=" in name
        rate = case.bytes() / t.us / 1e3
        print(f"{t.us:>10.3f} {100 * t.spread():>6.2f} {rate:>7.0f} {base / t.us:>10.3f}   {name}")
    if hidden:
        print(f"    and {hidden} slower ones; --top {shown + hidden} shows them")
    print(f"    plan: {' | '.join(torch.ops.gpureduce._explain(buffers.views[0], who.dims(case)).splitlines())}")
    for candidate in wrong:
        print(f"    WRONG bits: {candidate.name}")
    if refused:
        print(f"    {len(refused)} refused, as {refused[0]}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", help="cases, and knobs as name=value,value,...")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--target-us", type=float, default=400.0, help="work in one graph")
    parser.add_argument("--top", type=int, default=20, help="combinations shown a case")
    parser.add_argument("--hot", action="store_true", help="one buffer instead of rotating ones")
    parser.add_argument("--no-cub", action="store_true", help="neither CUB nor the reading kernels")
    options = parser.parse_args(arguments)
    knobs = [(name, values.split(",")) for name, _, values in (w.partition("=") for w in options.what if "=" in w)]
    try:
        chosen = [grid.parse(w) for w in options.what if "=" not in w]
    except ValueError as error:
        parser.error(str(error))
    if not chosen or not knobs:
        parser.error('give at least one case and one knob, as "full float32 2^28" warps=4,8')
    if not torch.cuda.is_available():
        parser.error("tuning needs a GPU")
    who.load_torch_reduce()
    library = None if options.no_cub else who.load_cub()
    tunings = combinations(knobs)
    print(f"{torch.cuda.get_device_name()}: {len(tunings)} combinations on {len(chosen)} cases")
    flush = timing.Flush()
    for case in chosen:
        tune(case, tunings, options, library, flush)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
