"""Makes the measured parts of docs/ladder.md and README.md, and the picture, from bench/results/*/ladder.json.

    python bench/ladder_report.py            writes them
    python bench/ladder_report.py --check    changes nothing; exit status 1 and a diff if the results give others

docs/ladder.md is written by hand but for what stands between "<!-- ladder:NAME -->" and "<!-- /ladder:NAME -->".
"""

import argparse
import pathlib
import re
import sys
import textwrap

import pictures
import provenance
import report

ROOT = provenance.ROOT
sys.path.insert(0, str(ROOT))
from torch_reduce import ladder  # noqa: E402
from torch_reduce.ladder import _climb  # noqa: E402

PAGE = "docs/ladder.md"
NOTE = "<!-- made by bench/ladder_report.py; do not edit -->"
BAR = 0.85  # of the ceiling, for multi_element at its best N and 2^28 floats


def best_large(results):
    """(step, share of the ceiling) of multi_element's best N at 2^28 floats."""
    step = min(results["large"]["rungs"], key=lambda step: step["us"])
    return step, step["gbps"] / results["large"]["ceiling"]["gbps"]


def times(before, now):
    return f"{before / now:.2f}×"


def rows(climb, names):
    """(rung, cells) of each of the named rungs; of one that these results do not have, that it was not measured."""
    steps = climb["rungs"]
    found = {step["name"]: step for step in steps}
    for rung in ladder.rungs():
        if rung.name not in names:
            continue
        if rung.name not in found:
            yield rung, ["not measured", *["–"] * (len(HEADER) - 1)]
            continue
        step = found[rung.name]
        share = _climb.share(step, climb["ceiling"]["gbps"])
        before, first = _climb.compared(step, steps), _climb.base(step, steps)
        yield (
            rung,
            [
                report.number(step["kernel"]["us"]) if "kernel" in step else "–",
                report.number(step["us"]),
                f"{step['gbps']:,.0f}" if step["gbps"] >= 10 else f"{step['gbps']:.1f}",
                "–" if share is None else f"{share:.1%}",
                times(_climb.kernel_us(before), _climb.kernel_us(step)) if before else "–",
                times(first["us"], step["us"]) if first else "–",
            ],
        )


HEADER = ["kernel, µs", "sum, µs", "GB/s", "of the ceiling", "step", "total"]


def wrapped(text, indent=""):
    """The lines of a paragraph or a list item; all but the first are indented."""
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def source_lines(slug, results):
    """What was measured, where and how; the last line is empty."""
    climb = results["climb"]
    if any("kernel" in step for step in climb["rungs"]):
        compared = "GB/s, the share of the ceiling and the step are of the kernel, the total is of the sum."
    else:
        compared = "The kernels were not measured by themselves: every figure is of the sum."
    text = (
        f"{results['gpu']}, {results['date']}: driver {results['driver']}, torch {results['torch']}, "
        f"CUDA {results['cuda']}; ladder at `{results['csrc'][:12]}`. 2^24 float32 (2^25 in chapter 5), blocks "
        f"of 512 where they can be chosen, cold caches, medians of {climb['rungs'][1]['repeats']}. "
        f"The ceiling, a kernel that only reads the 64 MiB: {climb['ceiling']['gbps']:,.0f} GB/s. "
        f"Step: over the rung that the file compares itself with; total: over neighbored. {compared}"
    )
    return [*wrapped(text), "", *stale_lines(results)]


def stale_lines(results):
    """A paragraph if csrc/ has changed since; the rung "engine" runs the engine's sources."""
    note = provenance.stale_note({"ladder": results["csrc"], "cuda": results.get("sources", {}).get("cuda")})
    return [note, ""] if note else []


def counter_names():
    rows = [
        [name, f"`{old}`", "<br>".join(f"`{metric}`" for metric in metrics)]
        for name, (metrics, _, old) in _climb.COUNTERS.items()
    ]
    return [*report.table(["here", "nvprof, in the lessons", "ncu, today"], rows), ""]


def counter_table(climb, names):
    """Nothing where there are no counters."""
    steps = [step for step in climb["rungs"] if step["name"] in names and "counters" in step]
    if not steps:
        return []
    shown = [name for name in _climb.COUNTERS if any(name in step["counters"] for step in steps)]
    cells = [[step["name"], *(_climb.cell_text(name, step["counters"]) for name in shown)] for step in steps]
    return [*report.table(["counters", *shown], cells), ""]


def chapter(slug, results, number):
    """The table of a chapter, and its counters."""
    rungs = {rung.name: rung for rung in ladder.rungs() if rung.chapter == number}
    climb = results["climb"]
    table = [[f"[{r.number} {r.name}](../csrc/ladder/{r.file})", *cells] for r, cells in rows(climb, rungs)]
    lines = [*report.table(["rung", *HEADER], table), "", *counter_table(climb, rungs)]
    beside_times = {name for printed in _climb.LESSONS.values() for name in printed}
    return [*lines, *profiled([s for s in climb["rungs"] if s["name"] in set(rungs) - beside_times])]


def profiled(steps):
    """The numbers that the lessons' profiler printed beside ours; nothing for steps without any."""
    rows = _climb.profiled_then(steps)
    head = ["rung", "counter", "then", "here", "printed in the book's chapter 3"]
    return [*report.table(head, rows), ""] if rows else []


def lesson(slug, results, title):
    """A lesson's printed figures beside ours, in int32 as there."""
    climb, printed = results["lesson"], _climb.LESSONS[title]
    steps = [step for step in climb["rungs"] if step["name"] in printed]
    if len(steps) < len(printed):
        return ["not measured yet", ""]
    lines = ["```", title, *_climb.lesson_table(steps, printed), "```", "", "Where they disagree:", ""]
    for item in _climb.disagreements(steps, printed, climb["ceiling"]["gbps"]):
        lines += wrapped(item, "  ")
    return [*lines, "", *profiled(steps), *counter_table(climb, printed)]


def blocks(slug, results):
    """µs of each rung's kernel at each block."""
    sizes = list(results["blocks"])
    table = [
        [step["name"], *(report.number(_climb.kernel_us(results["blocks"][size][i])) for size in sizes)]
        for i, step in enumerate(results["blocks"][sizes[0]])
    ]
    return [*report.table(["rung", *(f"block {size}, µs" for size in sizes)], table), ""]


def elements(slug, results):
    """multi_element at 2^28 floats, for each N, and the bar."""
    large = results["large"]
    table = [
        [
            str(step["elements_per_thread"]),
            report.number(step["us"]),
            f"{step['gbps']:,.0f}",
            f"{step['gbps'] / large['ceiling']['gbps']:.1%}",
        ]
        for step in large["rungs"]
    ]
    step, share = best_large(results)
    met = "met" if share >= BAR else "**NOT MET**"
    return [
        *report.table(["N", "µs", "GB/s", "of the ceiling"], table),
        "",
        f"2^28 float32; the ceiling there is {large['ceiling']['gbps']:,.0f} GB/s. "
        f"The bar, {BAR:.0%} of it at the best N: {met}, {share:.1%} with N = {step['elements_per_thread']}.",
        "",
    ]


def picture(slug, results, folder=""):
    text = f"Time of each rung on {results['gpu']}, one dot per rung, log scale"
    return [f"![{text}]({folder}images/ladder-{slug}.svg)", ""]


PARTS = {
    "measured": lambda slug, results: [*source_lines(slug, results), *picture(slug, results)],
    **{f"chapter {n}": lambda slug, results, n=n: chapter(slug, results, n) for n in range(1, 7)},
    **{f"{t.split(':')[0]} then": lambda slug, results, title=t: lesson(slug, results, title) for t in _climb.LESSONS},
    "blocks": blocks,
    "elements": elements,
}


def readme(slug, results):
    _, share = best_large(results)
    text = (
        f"Rung 25, `multi_element`, reads 2^28 floats at {share:.1%} of the rate of the fastest kernel that only "
        f"reads. The picture has the time of each rung for 2^24 floats on {results['gpu']}, measured on "
        f"{results['date']} with torch {results['torch']}."
    )
    return [*wrapped(text), "", *stale_lines(results), *picture(slug, results, "docs/")]


def documents(root, all_results):
    """{path under root: text} of all that is made."""
    page, start = (pathlib.Path(root, path).read_text(encoding="utf-8") for path in (PAGE, "README.md"))
    unknown = set(re.findall(r"<!-- ladder:([^>]+) -->", page)) - {"counters", *PARTS}
    if unknown:
        raise ValueError(f"{PAGE} has markers for {', '.join(unknown)}, which nothing is made for")
    page = report.fill(page, "ladder:counters", counter_names(), NOTE)
    for name, make in PARTS.items():
        lines = [line for slug, results in all_results for line in make(slug, results)]
        page = report.fill(page, f"ladder:{name}", lines or ["not measured yet", ""], NOTE)
    lines = [line for slug, results in all_results for line in readme(slug, results)]
    made = {PAGE: page, "README.md": report.fill(start, "ladder:summary", lines or ["not measured yet", ""], NOTE)}
    for slug, results in all_results:
        made[f"docs/images/ladder-{slug}.svg"] = pictures.ladder(results, ladder.rungs())
    return made


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    made = documents(options.root, report.load_results(options.root, "ladder.json"))
    if options.check:
        report.compare(options.root, made, [], "python bench/ladder_report.py")
    else:
        report.write(options.root, made, [])


if __name__ == "__main__":
    main()
