"""Measures every rung of the ladder on this GPU, with its counters, and writes what docs/ladder/ is made from.

    python bench/ladder.py                 measures, and prints
    python bench/ladder.py --save          into bench/results/<gpu>/ladder.json, and from there into the documents
    python bench/ladder.py --save FILE     into FILE alone
    python bench/ladder_report.py          the documentation anew; --check compares

A rung's time is that of its kernels alone, from events around them, with cold caches; copies for rungs that work in
place, and the output's first value, are made before. Its result is checked first. Rungs that run in passes are timed
twice: all passes, and the first one, which is the lesson's kernel. The ceiling is the rate of the fastest of several
kernels that read the same bytes, timed in the same way in the same run.
"""

import argparse
import json
import pathlib
import sys

import torch

import contenders
import ladder_report
import provenance

ROOT = provenance.ROOT
sys.path.insert(0, str(ROOT))
from torch_reduce import ladder  # noqa: E402
from torch_reduce.ladder import _climb, _try  # noqa: E402

LARGE = 1 << 28  # elements of the bar for multi_element


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", nargs="?", const=True, metavar="FILE", help="keep the results")
    parser.add_argument("--repeats", type=int, default=21, help="of which the median counts")
    parser.add_argument("--no-counters", action="store_true", help="do not start ncu")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("bench/ladder.py needs an NVIDIA GPU")
    results = measure(options.repeats, not options.no_counters)
    if options.save:
        standard = provenance.place("ladder.json", results["gpu"])
        path = standard if options.save is True else pathlib.Path(options.save)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written: {path}")
        if path == standard:
            ladder_report.main([])


def climb(title, rungs, repeats, dtype="float32", size=None, with_counters=False, **choice):
    """One climb, as it is kept: dtype, ceiling, steps."""
    print(f"\n{title}", flush=True)
    reader = next((rung for rung in rungs if rung.finish != "written"), rungs[0])
    ceiling = _climb.ceiling(_climb.make_input(reader, "cuda", size, getattr(torch, dtype)), repeats)
    print(f"only reading: {ceiling['gbps']:,.0f} GB/s")
    table = _climb.Table(rungs, ceiling["gbps"])
    steps = _climb.climb(rungs, size, getattr(torch, dtype), repeats, on_step=table.add, **choice)
    if with_counters:
        _climb.add_counters(steps, size, dtype, choice.get("block"), choice.get("elements"))
        _climb.print_counters(rungs, steps)
    return {"dtype": dtype, "ceiling": ceiling, "rungs": steps}


def common_blocks(rungs):
    """The blocks that every one of the rungs can be run with, in order."""
    return sorted(set.intersection(*(set(rung.blocks) for rung in rungs)))


def measure(repeats, with_counters):
    rungs = ladder.rungs()
    lesson = [rung for rung in rungs if any(rung.name in printed for printed in _climb.LESSONS.values())]
    chosen = [rung for rung in rungs if rung.blocks]
    results = contenders.environment("ladder.json")
    results["climb"] = climb("all rungs, float32", rungs, repeats, with_counters=with_counters)
    results["lesson"] = climb("the lessons' rungs, int32", lesson, repeats, "int32", with_counters=with_counters)
    print("\n".join(_climb.against_lesson(results["lesson"]["rungs"], results["lesson"]["ceiling"]["gbps"])))
    results["blocks"] = {
        str(block): climb(f"blocks of {block}", chosen, repeats, block=block)["rungs"]
        for block in common_blocks(chosen)
    }
    last = [rung for rung in rungs if rung.name == "multi_element"]
    large = [
        climb(f"2^28 floats, {n} a thread", last, repeats, size=LARGE, elements=n)
        for n in sorted(last[0].elements_per_thread)
    ]
    best = max((run["ceiling"] for run in large), key=lambda ceiling: ceiling["gbps"])
    results["large"] = {"dtype": "float32", "ceiling": best, "rungs": [run["rungs"][0] for run in large]}
    if steps := contract_steps():
        results["contract"] = {"file": ladder_report.contract_hash(), "rungs": steps}
    return results


def contract_steps():
    """The kernel at the end of chapter 7 and multi_element, as `try --order` times them; [] where nvcc does not."""
    elements = 16  # per thread, of both
    kernel = _try.Kernel.of(ladder_report.CONTRACT)
    timed = {kernel.file.stem: _try.times(kernel, elements)}
    timed["multi_element"] = _try.times_of("multi_element", elements)
    steps = []
    for name, found in timed.items():
        print(f"{name}, as `try --order` times it: {found}", flush=True)
        if isinstance(found, str):
            return []
        steps.append({"name": name, "us": float(found[0]), "gbps": float(found[1])})
    return steps


if __name__ == "__main__":
    main()
