"""Measures torch_reduce's sum against torch.sum, torch.compile and CUB; `make bench` runs it.

    python bench/sum.py                       the short grid: on the GPU if there is one, else on the CPU
    python bench/sum.py --save                and writes bench/results/<gpu>/sum.json, which report.py reads
    python bench/sum.py --quick               a few cases
    python bench/sum.py --only "rows.*4096"   cases whose name matches; --dtype bf16: of one dtype
    ncu --profile-from-start off python bench/sum.py --profile "full float32 2^24"

Every case is first checked: on the GPU, our bits must be the CPU backend's. If not, it is not timed, and the run fails.
"""

import argparse
import json
import pathlib
import sys
import time

import torch

import cases as grid
import contenders as who
import provenance
import timing
from report import RIVALS, gbps, losses, percent, ratio, summary
from timing import Candidate

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cases only")
    parser.add_argument("--only", metavar="REGEX", help="cases whose name is this, or matches it")
    parser.add_argument("--dtype", help="cases of this dtype (bf16, float32, ...)")
    parser.add_argument(
        "--compile", choices=("none", "some", "all"), default="some", help="cases with torch.compile (slow)"
    )
    parser.add_argument("--hot", action="store_true", help="one buffer, read again and again, instead of a cold cache")
    parser.add_argument("--cpu", action="store_true", help="the CPU backend, even where there is a GPU")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the results to this file")
    parser.add_argument("--save", action="store_true", help="write the results to bench/results/<gpu>/sum.json")
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and end")
    parser.add_argument("--profile", metavar="CASE", help="only call this case, without a graph, for ncu")
    parser.add_argument("--calls", type=int, default=3, help="calls of --profile")
    options = parser.parse_args(arguments)

    on_gpu = torch.cuda.is_available() and not options.cpu
    chosen = grid.gpu_cases() if on_gpu else grid.cpu_cases()
    chosen = grid.select(chosen, options.only, options.dtype, options.quick)
    if options.list:
        print("\n".join(case.name for case in chosen))
        return
    partial = options.only or options.dtype or options.quick or options.hot or options.compile == "none"
    if options.save and (not on_gpu or partial):
        parser.error("--save keeps complete runs on a GPU; for anything else there is --json FILE")
    torch_reduce, _ = who.load_torch_reduce()
    if options.profile:
        profile(grid.parse(options.profile), options.calls, "cuda" if on_gpu else "cpu", torch_reduce)
        return
    if not chosen:
        parser.error("no case matches; --list prints their names")

    begin = time.perf_counter()
    facts = who.environment() | {"mode": "hot" if options.hot else "cold"}
    if not on_gpu:
        facts |= {"gpu": None, "cpu_threads": torch.get_num_threads()}
    results = run_gpu(chosen, facts, options, torch_reduce) if on_gpu else run_cpu(chosen, facts, torch_reduce)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")
    wrong = [c["name"] for c in results["cases"] if c.get("error")]
    target = options.json
    if options.save and not wrong:
        target = RESULTS / provenance.gpu_slug(facts["gpu"]) / "sum.json"
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written: {target}")
    if wrong:
        sys.exit(f"WRONG OR FAILED, and therefore not timed: {'; '.join(wrong)}")


# --- GPU ----------------------------------------------------------------------------------------------------


def run_gpu(chosen, facts, options, torch_reduce):
    print(
        f"{facts['gpu']}, driver {facts['driver']}, torch {facts['torch']}, CUDA {facts['cuda']}, "
        f"csrc {facts['csrc'][:12]}"
    )
    library = who.load_cub()
    if library:
        facts["cub"] = library.version
        facts["ceiling"] = timing.read_ceiling(library, 2**30)
        segments = "fixed-size" if library.fixed_size else "iterator"
        print(
            f"CUB {library.version} ({segments} segments, its workspace allocated beforehand); reading 1 GiB: "
            f"{facts['ceiling']['gbps']:.0f} GB/s ({facts['ceiling']['kernel']})"
        )
    cache = "one buffer, hot cache" if options.hot else "rotating buffers, cold cache"
    print(f"GPU time: CUDA graphs over {cache}, medians of interleaved repeats. Ratios are their time / ours.\n")
    flush = timing.Flush()
    print_header()
    done = []
    for i, case in enumerate(chosen):
        result = guarded(measure_gpu, case, library, options, flush)
        done.append(result)
        print_row(result, i, len(chosen))
        torch.cuda.empty_cache()
    results = facts | {"cases": done, **small_calls(torch_reduce, "cuda")}
    print_summary(results)
    return results


def guarded(measure, case, *arguments):
    """A case's result, or its description with an `error`; running out of memory is a `skipped`, not an error."""
    try:
        return measure(case, *arguments)
    except torch.OutOfMemoryError:
        return describe(case) | {"skipped": "out of memory"}
    except Exception as error:
        return describe(case) | {"error": f"{type(error).__name__}: {error}"}


def describe(case):
    return {
        "name": case.name,
        "family": case.family,
        "dtype": grid.dtype_name(case.dtype),
        "shape": list(case.shape),
        "dim": who.dims(case),
        "bytes": case.bytes(),
        "input_bytes": case.input_bytes(),
    }


def measure_gpu(case, library, options, flush):
    flat = case.flat("cuda")
    expected = who.our_sum(case, case.view(flat.cpu()))
    right = who.our_sum(case, case.view(flat))
    if not who.same_bits(right.cpu(), expected):
        return describe(case) | {"error": "the GPU's bits are not the CPU backend's"}
    buffers = timing.Buffers(flat, case.view, options.hot)
    del flat
    view = buffers.views[0]
    with_compile = options.compile == "all" or (options.compile == "some" and case.compile)
    candidates = [
        who.ours(case),
        who.torch_sum(case, view),
        who.cub_sum(case, view, library),
        who.compiled_sum(case, view) if with_compile else None,
    ]
    candidates = [c for c in candidates if c]
    reads = timing.read_candidates(library, buffers) if library else []
    times = timing.gpu_times([*candidates, *reads], buffers, lambda: case.make_out("cuda"), flush=flush)
    if not all(who.same_bits(out, right) for out in times["ours"].outputs):
        return describe(case) | {"error": "the bits changed while it was timed"}
    for name in RIVALS:
        if name in times and not who.close(times[name].outputs[-1], right, who.length(case)):
            return describe(case) | {"error": f"{name} has another result"}
    result = describe(case) | numbers({name: t for name, t in times.items() if not name.startswith("read ")})
    best = timing.best_read(times)
    if best:
        result["read_kernel"] = best[0]
        result["us"]["read"] = round(best[1].us, 4)
    return result


def numbers(times):
    return {
        "us": {name: round(t.us, 4) for name, t in times.items()},
        "spread": {name: round(t.spread(), 4) for name, t in times.items()},
        "calls": times["ours"].calls,
        "repeats": times["ours"].repeats,
    }


# --- CPU ----------------------------------------------------------------------------------------------------


def run_cpu(chosen, facts, torch_reduce):
    print(
        f"NO GPU IS USED HERE: this measures the CPU backend against torch.sum on the CPU, both with "
        f"{facts['cpu_threads']} threads (torch {facts['torch']}, csrc {facts['csrc'][:12]})."
    )
    print(
        "One buffer: small inputs come from the caches. Medians of interleaved repeats; ratios are their time / ours.\n"
    )
    print_header()
    done = []
    for i, case in enumerate(chosen):
        result = guarded(measure_cpu, case)
        done.append(result)
        print_row(result, i, len(chosen))
    results = facts | {"cases": done, **small_calls(torch_reduce, "cpu")}
    print_summary(results)
    return results


def measure_cpu(case):
    view = case.view(case.flat("cpu"))
    result = who.our_sum(case, view)
    wide = view.float() if case.dtype.itemsize == 1 and case.dtype.is_floating_point else view
    if not who.close(result, torch.sum(wide, dim=who.dims(case)), who.length(case)):
        return describe(case) | {"error": "the result is not torch.sum's, not even nearly"}
    candidates = [c for c in (who.ours(case), who.torch_sum(case, view)) if c]
    times = timing.cpu_times(candidates, view, lambda: case.make_out("cpu"))
    if not who.same_bits(times["ours"].outputs[0], result):
        return describe(case) | {"error": "the bits changed while it was timed"}
    return describe(case) | numbers(times)


# --- small calls: host time and end to end ------------------------------------------------------------------


def small_calls(torch_reduce, device):
    """Host microseconds a call, and microseconds until the result is there, on small float32 tensors."""
    table = {}
    for what, x, dim in (
        ("1024 elements", torch.randn(1024, device=device), None),
        ("rows (64, 128)", torch.randn(64, 128, device=device), 1),
    ):
        functions = {
            "torch.sum": lambda x=x, dim=dim: torch.sum(x, dim=dim),
            "torch.ops.gpureduce.sum": lambda x=x, dim=dim: torch.ops.gpureduce.sum(x, dim),
            "torch_reduce.sum": lambda x=x, dim=dim: torch_reduce.sum(x, dim),
        }
        host = timing.host_times(functions)
        end = timing.end_to_end_times(functions)
        table[what] = {
            name: {"host_us": round(host[name].us, 3), "end_to_end_us": round(end[name].us, 3)} for name in functions
        }
    return {"small_calls": table}


# --- tables -------------------------------------------------------------------------------------------------


def _cell(value, pattern, width):
    return ("–" if value is None else pattern.format(value)).rjust(width)


def print_header():
    print(
        f"{'case':<60}{'MB':>9}{'ours µs':>11}{'GB/s':>8}{'% read':>8}{'×torch':>9}{'×CUB':>8}{'×compile':>10}",
        flush=True,
    )


def row_text(case):
    if "us" not in case:
        return (
            f"{case['name']:<60}  {'skipped: ' + case['skipped'] if 'skipped' in case else 'ERROR: ' + case['error']}"
        )
    cells = [
        _cell(case["bytes"] / 1e6, "{:.3f}" if case["bytes"] < 1e6 else "{:.1f}", 9),
        _cell(case["us"]["ours"], "{:.2f}", 11),
        _cell(gbps(case), "{:.0f}", 8),
        _cell(percent(case), "{:.1f}", 8),
        _cell(ratio(case, "torch"), "{:.2f}", 9),
        _cell(ratio(case, "cub"), "{:.2f}", 8),
        _cell(ratio(case, "compile"), "{:.2f}", 10),
    ]
    return f"{case['name']:<60}" + "".join(cells)


def print_row(case, i, count):
    print(f"{row_text(case)}   [{i + 1}/{count}]", flush=True)


def print_summary(results):
    cases = results["cases"]
    lost = losses(cases)
    print(f"\nWhere another one is faster ({len(lost)}):" if lost else "\nNobody is faster in any case.")
    for case, rival, r, settled in lost:
        note = "" if settled else "   (within the noise of this run)"
        print(f"  {case['name']:<60} {rival:<8} {r:.3f}×{note}")
    for rival, (count, mean, worst) in summary(cases).items():
        print(f"against {RIVALS[rival]:<14} {count:3d} cases, geometric mean {mean:.2f}×, worst {worst:.2f}×")
    print(f"\n{'small calls, µs':<28}{'host':>10}{'end to end':>14}")
    for what, rows in results["small_calls"].items():
        print(what)
        for name, cells in rows.items():
            print(f"  {name:<26}{cells['host_us']:>10.2f}{cells['end_to_end_us']:>14.2f}")


# --- profiling ----------------------------------------------------------------------------------------------


def profile(case, calls, device, torch_reduce):
    """Plain calls of one case between cudaProfilerStart and cudaProfilerStop."""
    candidate: Candidate = who.ours(case)
    view, out = case.view(case.flat(device)), case.make_out(device)
    candidate.fn(view, out)
    if hasattr(torch_reduce, "explain"):
        print(torch_reduce.explain(view, who.dims(case)))
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
    for _ in range(calls):
        candidate.fn(view, out)
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    print(f"{calls} calls of {case.name}")


if __name__ == "__main__":
    main()
