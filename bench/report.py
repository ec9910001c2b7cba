"""Makes the measured part of the documentation from bench/results/*/grid.json and views.json, which bench/grid.py and
bench/views.py write, and the list of what is slower from all results (bench/slower.py).

    python bench/report.py            writes README.md between the markers, docs/performance.md and docs/images/*.svg
    python bench/report.py --check    changes nothing; exit status 1 and a diff where they are not what the results give

What is lost stands before what is won, and a mean beside its median and its classes. Standard library only: the
pictures are text as well, made by pictures.py.
"""

import argparse
import difflib
import json
import pathlib
import re
import statistics
import sys
import textwrap

import bars
import pictures
import provenance
import slower

ROOT = provenance.ROOT
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
MADE = "<!-- made by bench/report.py from bench/results/; do not edit -->"
SLOWER = "bench:slower"  # the marker of README's list of what is slower
VIEWS = "views.json"
PAGE = "docs/performance.md"
WIDTH = 120  # characters of a line of prose
LOSSES = 10  # that docs/performance.md shows at once
SHOWN = """
full float32 2^10
full float32 2^20
full float32 2^28
full int8 2^28
rows bfloat16 (16384, 4096)
rows float32 (2^20, 100)
odd float32 (262144, 301)
columns float32 (16384, 4096)
columns float32 (2^20, 64)
inside float32 (256, 64, 56, 56) dims 0, 2, 3
""".strip().splitlines()  # the cells in README
FAMILIES = {
    "full": "Sums of all elements",
    "rows": "Rows: the last dim",
    "columns": "Columns: the first dim",
    "inside": "Dims inside, and several",
    "awkward": "Awkward layouts",
    "odd": "Rows of odd lengths",
}


def load_results(root=ROOT, name="grid.json"):
    """[(slug, results)] of the files of that name, sorted by folder."""
    paths = sorted((root / "bench" / "results").glob(f"*/{name}"), key=lambda p: p.parent.name)
    return [(path.parent.name, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def newest(all_results):
    """The results that a page shows, of several GPUs: the last that were made."""
    return sorted(all_results, key=lambda results: results["date"])[-1:]


# --- pieces of Markdown -------------------------------------------------------------------------------------


def table(header, rows):
    """The first column to the left, the others to the right.

    No cell is empty: rows that lack other cells than the first row stand in tables below, without these columns.
    """
    kinds = {}
    for row in rows:
        kinds.setdefault(tuple(map(bool, row)), []).append(row)
    lines = []
    for filled, of_kind in (kinds or {(True,) * len(header): []}).items():
        names, *cells = ([text for text, there in zip(row, filled, strict=True) if there] for row in (header, *of_kind))
        lines += [""] * bool(lines) + ["| " + " | ".join(names) + " |"]
        lines += ["|" + "|".join([" :-- "] + [" --: "] * (len(names) - 1)) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in cells]
    return lines


def folded(title, lines):
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def spread(ratios):
    """The geometric mean of some ratios, and in brackets the least and the largest."""
    mean = f"{statistics.geometric_mean(ratios):.2f}"
    return f"{mean} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios[1:] else mean


def times(value):
    """A ratio, bold where it is a loss."""
    if value is None:
        return ""
    return f"**{pictures.times_text(value)}×**" if value < 1 else f"{value:.2f}×"


def number(value):
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def of_read(case, results):
    """Our share of the reading kernel's rate, and above 100% the reason."""
    share = bars.percent(case)
    if share is None:
        return ""
    reason = bars.above_read(case, results)
    return f"{share:.1f}%" + ("" if reason is None else f" ({reason or '**no reason**'})")


def of_family(case):
    """A cell's name in a table of its family."""
    return case["name"].removeprefix(f"{case['family']} ")


def case_table(cases, results, rivals=bars.RIVALS, reads=True, name=of_family):
    """A row of a table for each cell."""
    header = ["cell", "bytes", "µs", "GB/s"] + ["of read"] * reads + [f"× {bars.RIVALS[rival]}" for rival in rivals]

    def row(case):
        begin = [name(case), pictures.bytes_text(case["bytes"])]
        if "us" not in case:
            begin.append("skipped" if "skipped" in case else "FAILED")
            return begin + [""] * (len(header) - len(begin))
        begin += [number(case["us"]["ours"]), number(bars.gbps(case))] + [of_read(case, results)] * reads
        return begin + [times(bars.ratio(case, rival)) for rival in rivals]

    return table(header, map(row, cases))


def tight_table(cases):
    """The same cells back to back."""
    rows = [
        [of_family(case), number(case["us"]["ours"]), *(times(bars.ratio(case, rival)) for rival in bars.RIVALS)]
        for case in bars.all_back_to_back(cases)
    ]
    return table(["back to back", "µs", *(f"× {rival}" for rival in bars.RIVALS.values())], rows)


# --- what both pages say ------------------------------------------------------------------------------------


def places(results):
    """[(what to add to a name, cells)]: of the GPU, and of the CPU."""
    return [("", results["cases"]), (" on the CPU", results.get("cpu", {}).get("cases", []))]


def provenance_line(results, root):
    ceiling, hashes = results.get("ceiling"), provenance.sources(results, on_cpu=True)
    read = f"Reading 1 GiB: {ceiling['gbps']:,.0f} GB/s." if ceiling else ""
    cells, measured = results.get("cells", 0), len(results["cases"])
    missing = f" Of {cells} cells {measured} were measured." if measured < cells else ""
    return (
        f"Measured on {results['date']}: driver {results['driver']}, torch {results['torch']}, CUDA {results['cuda']}, "
        f"CUB {results.get('cub', 'none')}, Python {results['python']};\nCPU: {results['cpu_name']}, "
        f"{results['cpu_threads']} threads; {provenance.at(hashes)}{since(results, root)}."
        f"\n{read}{missing}".rstrip()
    )


def since(results, root):
    """What to add to the date: what of csrc/ has changed."""
    return provenance.since(provenance.changed(provenance.sources(results, on_cpu=True), root))


def warnings(results):
    """A paragraph about what the figures are not."""
    lines = []
    cells = bars.measured(results["cases"])
    older = sum(not bars.between(case) for case in cells)
    if older:
        text = f"**Back to back** are the times of {older} of {len(cells)} cells"
        lines += [f"{text}: between other kernels these are not measured yet.", ""]
    return lines


def lost(results):
    """[row of a table] for each cell and faster rival: the GPU's before the CPU's, and worst first."""
    return [
        [
            case["name"] + where,
            bars.RIVALS[rival],
            f"{value:.3f}×" + ("" if bars.settled(case, rival) else ", within the noise"),
        ]
        for where, cases in places(results)
        for case, rival, value in bars.losses(cases)
    ]


def losses(results):
    """What is lost: the first LOSSES at once, the others folded."""
    rows, header = lost(results), ["cell", "who", "their time / ours"]
    if not rows:
        return ["Nobody is faster in any cell.", ""]
    lines = [f"**Where another one is faster** ({len(rows)}), worst first, the CPU's last:", ""]
    lines += [*table(header, rows[:LOSSES]), ""]
    others = rows[LOSSES:]
    return lines + (folded(f"The other {len(others)}", table(header, others)) if others else [])


def mean_row(what, found):
    mean = f"{found.mean:.2f}× / {found.median:.2f}×"
    return [what, str(found.cells), mean, str(found.slower), times(found.worst), found.where]


def summary(results):
    """A table for each rival, and a paragraph about CUB, whose two kinds of sums are never one mean."""
    gpu, cpu = (cases for _, cases in places(results))
    tight, lines = bars.all_back_to_back(gpu), []
    header = ["how many", "mean / median", "slower in", "worst", "worst cell"]
    whole = bars.means(gpu, ("torch", "compile"))
    for rival, name in bars.RIVALS.items():
        rows = [mean_row("all", whole[rival])] if rival in whole else []
        rows += [mean_row(some.name, found) for who, some, found in bars.means_of_classes(gpu) if who == rival]
        lines += [*table([f"beside {name}", *header], rows), ""] if rows else []
    rows = [mean_row("all", found) for found in bars.means(cpu).values()]
    lines += [*table(["beside torch.sum on the CPU", *header], rows), ""] if rows else []
    if tight:
        lines += ["And back to back, the mean / the median:", "", *tight_means(tight), ""]
    if any("cub" in case["us"] for case in bars.measured(gpu)):
        way = bars.segments(results)
        text = {
            bars.A_BLOCK_EACH: "gives each segment a block, which a short row leaves mostly idle",
            bars.FIXED_SIZE: "has segments of one fixed size, and those were measured",
        }[way]
        lines += [f"CUB's sums of rows are apart from its full sums: CUB {results.get('cub', '')} {text}.", ""]
    return lines


def tight_means(tight):
    """A row of a table for each class, and a column for each rival."""
    found = {("all", rival): mean for rival, mean in bars.means(tight, ("torch", "compile")).items()}
    found |= {(some.name, rival): mean for rival, some, mean in bars.means_of_classes(tight)}

    def cell(what, rival):
        mean = found.get((what, rival))
        return f"{mean.mean:.2f}× / {mean.median:.2f}×" if mean else ""

    rows = [[what, *(cell(what, rival) for rival in bars.RIVALS)] for what in dict.fromkeys(what for what, _ in found)]
    return table(["cells", *(f"× {rival}" for rival in bars.RIVALS.values())], rows)


# --- README.md ----------------------------------------------------------------------------------------------


def readme_section(results, root):
    """A few cells as a user would call them, and what the whole grid says."""
    known = {case["name"]: case for case in bars.measured(results["cases"])}
    rows = [
        [
            f"({', '.join(map(str, case['shape']))}{',' * (len(case['shape']) == 1)})",
            "all" if case["dim"] is None else ", ".join(map(str, case["dim"])),
            case["dtype"],
            number(case["us"]["ours"]),
            *(times(bars.ratio(case, rival)) for rival in ("torch", "compile")),
        ]
        for case in (known[name] for name in SHOWN if name in known)
    ]
    header = ["input", "dims summed", "dtype", "µs", "× torch.sum", "× torch.compile"]
    lines = [f"**{results['gpu']}**", "", *warnings(results)]
    lines += [*table(header, rows), ""] if rows else []
    said = [
        f"{found.median:.2f}× {bars.RIVALS[rival]} in the median ({found.mean:.2f}× in the geometric mean)"
        for rival, found in bars.means(results["cases"], ("torch", "compile")).items()
    ]
    lines += [f"All {len(known)} measured shapes: " + ",\n".join(said) + "."] if said else []
    lines += [
        f"[{PAGE}]({PAGE}) has each shape, the classes, and the method.",
        f"Measured on {results['date']} with torch {results['torch']}, CUDA {results['cuda']} and driver "
        f"{results['driver']}{since(results, root)}.",
        "",
    ]
    return lines


CLASS = ["calls", "against", "slower in", "their time / ours", "worst"]


def class_table(loaded, split):
    """Of the classes in which another one is faster, the one with the worst cell first; with `split` also that cell."""
    lost = [one for one in slower.classes(loaded, split) if one.slower]
    if not lost:
        return ["Nobody is faster in any cell.", ""]
    rows = [
        [one.what, one.rival, f"{one.slower} of {len(one.cells)}", times(one.mean), times(one.cells[0][0])]
        for one in lost
    ]
    head, _, *body = table(CLASS, rows)
    lines = [head, "| :-- | :-- | --: | --: | --: |", *body, ""]
    worst = [
        f"- {one.what}, {one.rival}: {times(ratio)}, {cell}; {provenance.short(gpu)}"
        for one in lost
        for ratio, cell, gpu in one.cells[:1]
    ]
    return lines + (folded("The worst cell of each", worst) if split else [])


def measured_when(all_results, root, on_cpu=False):
    """One line: where and when all of these were measured, and which sources have changed since; also the CPU's, where
    cells `on_cpu` are shown. The last line is empty."""
    dates = sorted(results["date"] for results in all_results)
    gpus, torchs = (provenance.listed(sorted({results[key] for results in all_results})) for key in ("gpu", "torch"))
    changed = [provenance.changed(provenance.sources(results, on_cpu), root) for results in all_results]
    since = provenance.since(list({part: None for parts in changed for part in parts}))
    if since and not all(changed):
        since = f"; some of it before a change of the sources: {sum(map(bool, changed))} of {len(changed)} files"
    days = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return [f"Measured on {gpus}, {days}, torch {torchs}{since}.", ""]


def when_slower(loaded, root):
    return measured_when([results for _, results in loaded], root, on_cpu=True)


def readme_slower(loaded, root):
    """README's list of what is slower: of all results files, by kinds of calls."""
    if not loaded:
        return ["not measured yet", ""]
    more = f'"Their time / ours" is a geometric mean. [{PAGE}]({PAGE}#where-it-is-slower) names the worst cells.'
    return [*when_slower(loaded, root)[:1], more, "", *class_table(loaded, split=False)]


def page_slower(loaded, root):
    """The same for docs/performance.md, by function and kind of input."""
    what = (
        'By function and kind of input, the class with the worst cell first. "Their time / ours" is a geometric mean.'
    )
    lines = ["## Where it is slower", "", what, ""]
    if not loaded:
        return [*lines, "not measured yet", ""]
    return [*lines, *when_slower(loaded, root), *class_table(loaded, split=True)]


def views_text(results):
    """What the random views have in common, in words."""
    ratios = sorted(view["torch_us"] / view["us"] for view in results["views"])
    faster = sum(ratio < 1 for ratio in ratios)
    low, high = results["log2"]
    return (
        f"{results['gpu']}: of {len(ratios)} random views of 2^{low:g} to 2^{high:g} elements, torch.sum is faster in "
        f"{faster} ({faster / len(ratios):.1%}),\nat worst {times(ratios[0])}. "
        f"The median is {statistics.median(ratios):.2f}×, the geometric mean {statistics.geometric_mean(ratios):.2f}×."
    )


def readme_text(text, all_results, loaded, root):
    """README's `text` with what the results give between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md must hold the markers {BEGIN} and {END}, once each and in this order")
    lines = [BEGIN, MADE, ""]
    for _, results in all_results:
        lines += readme_section(results, root)
    lines += [] if all_results else ["not measured yet", ""]
    head, rest = text.split(BEGIN)
    text = head + "\n".join(narrow(lines)) + END + rest.split(END)[1]
    return fill(text, SLOWER, readme_slower(loaded, root), MADE)


# --- docs/performance.md ------------------------------------------------------------------------------------

REASONS = "\n".join(f"- {word}: {what}." for word, (what, _) in bars.REASONS.items())
INTRODUCTION = f"""{MADE}
# Performance

This page compares torch_reduce with torch.sum, torch.compile and CUB, shape by shape. A ratio such as "× torch.sum"
is the time of torch.sum over ours: above 1×, torch_reduce is faster. [times.md](times.md) has the other functions.

## Words

| word | what it means |
| :-- | :-- |
| full | all elements of a contiguous tensor are summed; 2^20 is their number |
| rows | a matrix is summed along its last dim, so that each result is a run of memory |
| columns | a matrix is summed along its first dim |
| inside | a dim between others, or several dims at once, as batch normalization needs them |
| awkward | an offset that no vector fits, a step, a transposed or expanded tensor |
| odd | rows whose length is no multiple of a vector's |
| cold | the input comes from memory: calls alternate over buffers that together are larger than the L2 cache |
| hot | one buffer is read again and again, so that a small one comes from the L2 cache |
| of read | our bytes a second as a share of what the fastest of several kernels reaches that only read the same bytes |
| between kernels | the time of a call that has other kernels before and after it, as in a model |
| back to back | the time of a call that only has calls like itself before and after it |

## Method

1. Each cell is a shape, a layout and a dtype of `bench/cases.py`; nothing is left out of the tables.
2. Before a cell is timed, its bits are compared with the bits of the CPU backend, and a difference is an error.
3. A CUDA graph holds many calls over alternating buffers, and the L2 is flushed before each graph.
4. After each call stands an addition to one element, so that calls cannot overlap; the time of these additions
   alone is measured in the same round, and taken off.
5. Ours, its rivals and the reading kernels alternate in every round, and the median of the rounds counts.
6. A ratio near 1× is measured until the quartiles no longer overlap, or called "within the noise" after seven times
   the rounds.
7. torch.compile runs with `mode="max-autotune-no-cudagraphs"`, with and without TORCHINDUCTOR_ENABLE_PDL=1, and the
   faster one counts.
8. CUB runs its full sums, and for rows its segmented sums.
9. Back to back is measured too: the same graph without the additions.
10. On the CPU, `torch_reduce.sum(x, out=)` and `torch.sum(x, out=)` alternate over one buffer, in three passes
    over all cells.

A cell above 100% of read names its reason:

{REASONS}

## How to repeat it
On a machine with an NVIDIA GPU; the last two commands write their results into `bench/results/` and this page.
```
make bench                             # about 45 cells, in a few minutes; nothing is saved. No GPU: 21 of the CPU
make figures ARGS='--only grid'        # all cells
make figures ARGS='--only views'       # random views
```
"""
WHY = """\
Two reasons explain most of it:

- **Small sums.** A sum of a few thousand elements is little more than the start and the end of a kernel. A kernel of
  torch.compile is compiled for its shape; ours takes any shape as an argument. If the input comes from a cache (hot),
  the start is an even larger part of the time.
- **Large contiguous sums, within a few percent.** All kernels wait for the same memory there. torch.compile times
  several kernels for one shape and keeps the best, in any order of additions; ours is chosen by a plan, and its order
  is fixed.
"""


def page_section(slug, results, root):
    gpu, cpu = (cases for _, cases in places(results))
    lines = [f"## {results['gpu']}", "", provenance_line(results, root), "", *warnings(results), *wrong(results)]
    lines += [f"### By class: {slug}", "", *summary(results)]
    for kind, what in (("heat", "Ratios of all cells"), ("bandwidth", "GB/s against bytes")):
        lines += [f"![{what} on {results['gpu']}](images/{kind}-{slug}.svg)", ""]
    lines += [f"### Where it is slower, and why: {slug}", "", WHY, *losses(results)]
    lines += [f"### Bars: {slug}", "", "What this project asks of itself.", "", *bar_lines(results)]
    lines += [f"### Cells: {slug}", ""]
    for family in dict.fromkeys(case["family"] for case in gpu):
        cases = [case for case in gpu if case["family"] == family]
        tight = ["", *tight_table(cases)] if any(map(bars.between, cases)) else []
        lines += folded(f"{FAMILIES.get(family, family)} ({len(cases)})", [*case_table(cases, results), *tight])
    if cpu:
        title = f"The CPU backend ({len(cpu)}): one buffer, so small inputs come from the caches"
        lines += folded(title, case_table(cpu, results, ("torch",), False, lambda case: case["name"]))
    failed = [
        [case["name"] + where, bars.RIVALS.get(rival, rival), f"`{error}`".replace("|", "\\|")]
        for where, cases in places(results)
        for case in cases
        for rival, error in case.get("failed", {}).items()
    ]
    if failed:
        lines += folded(f"What another one does not do ({len(failed)})", table(["cell", "who", "error"], failed))
    return lines + small_calls(slug, results)


def wrong(results):
    """Cells that are in no other list, because they were not timed."""
    found = [
        f"- {case['name']}{where}: {case.get('error') or 'skipped: ' + case['skipped']}"
        for where, cases in places(results)
        for case in cases
        if "us" not in case
    ]
    return [f"**Not timed** ({len(found)}):", "", *found, ""] if found else []


def bar_lines(results):
    word, lines, lists = {True: "met", False: "**NOT MET**", None: "not measured"}, [], []
    for bar in bars.bars(results):
        lines.append([bar.what, word[bar.met], bar.found])
        if bar.below and bar.what not in (bars.LOST, bars.LOST_ON_CPU):  # which "Where it is slower" lists
            lists += folded(f"Below: {bar.what} ({len(bar.below)})", [f"- {name}" for name in bar.below])
    return [*table(["bar", "is it met?", "found"], lines), "", *lists]


def small_calls(slug, results):
    rows = [
        [
            f"{what}: `{name}`",
            f"{cells['host_us']:.2f}",
            f"{cells['host_us'] / calls['torch.sum']['host_us']:.2f}×",
            f"{cells['end_to_end_us']:.2f}",
        ]
        for what, calls in results.get("small_calls", {}).items()
        for name, cells in calls.items()
    ]
    if not rows:
        return []
    header = ["float32", "host µs a call", "of torch.sum's", "µs until the result is there"]
    return [f"### Small calls: {slug}", "", *table(header, rows), "", *host_stages(results)]


def host_stages(results):
    """Where the time of torch_reduce.sum goes, beside what launching takes by itself."""
    stages = results.get("stages", {})
    if not stages:
        return []
    calls = {what: results["small_calls"][what]["torch_reduce.sum"]["host_us"] for what in stages}
    rest = [calls[what] - sum(times.values()) for what, times in stages.items()]
    rows = [
        ["Python and PyTorch's dispatcher: the rest", *rest],
        *([name, *(times[name] for times in stages.values())] for name in bars.STAGES),
        ["all", *calls.values()],
        ["description, plan and launch", *map(bars.planned_and_launched, stages.values())],
    ]
    header = ["host µs of `torch_reduce.sum`", *stages]
    lines = table(header, [[name, *(f"{us:.2f}" for us in times)] for name, *times in rows])
    if empty := results.get("empty_launches"):
        each = ", ".join(f"{name} {us:.2f} µs" for name, us in empty.items())
        lines += ["", f"For comparison, the launch of a kernel that does nothing: {each}."]
    return [*lines, ""]


def views_section(all_views, root):
    """Random views: those that torch.sum sums faster."""
    lines = [
        "## Random views",
        "",
        "Shapes, crops, steps, permutations and summed dims are random. They are measured between kernels and cold.",
        "Most of the views that torch.sum sums faster are small.",
        "",
    ]
    for _, results in all_views:
        rows = sorted((view["torch_us"] / view["us"], view) for view in results["views"])
        lost = [f"- {v['view']}: {number(v['us'])}, {number(v['torch_us'])}, {times(r)}" for r, v in rows if r < 1]
        hashes = provenance.sources(results)
        lines += [
            views_text(results),
            f"Measured on {results['date']}: driver {results['driver']}, torch {results['torch']}, "
            f"CUDA {results['cuda']}, seed {results['seed']}; {provenance.at(hashes)}"
            f"{provenance.since(provenance.changed(hashes, root))}.",
            "",
        ]
        if lost:
            note = "Each view with our time in µs, the time of torch.sum, and their ratio."
            lines += folded(f"Where torch.sum is faster ({len(lost)})", [note, "", *lost])
    return lines if all_views else [*lines, "not measured yet", ""]


def page(all_results, all_views, loaded, root):
    lines = [INTRODUCTION, *page_slower(loaded, root)]
    for slug, results in all_results:
        lines += page_section(slug, results, root)
    lines += [] if all_results else ["not measured yet", ""]
    return "\n".join([*lines, *views_section(all_views, root)])


# --- the program --------------------------------------------------------------------------------------------


def documents(root, all_results, all_views=()):
    """{path under root: text} of all that is made."""
    readme, loaded = (root / "README.md").read_text(encoding="utf-8"), slower.load(root)
    made = {
        "README.md": readme_text(readme, all_results, loaded, root),
        PAGE: "\n".join(narrow([page(all_results, all_views, loaded, root)])),
    }
    for slug, results in all_results:
        made[f"docs/images/heat-{slug}.svg"] = pictures.heat_map(results)
        made[f"docs/images/bandwidth-{slug}.svg"] = pictures.bandwidth(results)
    return made


def leftovers(root, made):
    """Pictures that no results give any more."""
    found = (p.relative_to(root).as_posix() for p in sorted((root / "docs" / "images").glob("*.svg")))
    return [path for path in found if path not in made and path.split("/")[-1].startswith(("heat-", "bandwidth-"))]


def difference(root, path, wanted, command):
    """A message if the file is not `wanted`, otherwise None."""
    text = (root / path).read_text(encoding="utf-8") if (root / path).exists() else ""
    if text == wanted:
        return None
    message = f"{path} is not what bench/results and csrc/ give; run: {command}"
    if path.endswith(".svg"):
        return message  # a diff of a picture says nothing
    diff = difflib.unified_diff(text.splitlines(), wanted.splitlines(), path, "what the results give", lineterm="")
    return "\n".join([message, *diff])


def compare(root, made, stale, command):
    """Ends the program if a file is not what is made, or should not be there."""
    messages = [message for path, text in made.items() if (message := difference(root, path, text, command))]
    messages += [f"{path} is of results that are gone; run: {command}" for path in stale]
    if messages:
        sys.exit("\n".join(messages))
    print(f"{', '.join(made)}: what the results give")


def write(root, made, stale):
    for path in stale:
        (root / path).unlink()
    for path, text in made.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8", newline="\n")
    print(f"written: {', '.join(made)}")


def wrapped(text, indent=""):
    """The lines of a paragraph or a list item, all but the first indented; none ends inside code."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def narrow(lines):
    """The same with long sentences wrapped; tables, headings, pictures and code stay as they are."""
    code = False
    for line in "\n".join(lines).split("\n"):
        code ^= line.startswith("```")
        if code or len(line) <= WIDTH or line.startswith(("|", "#", "!", "<", "```")):
            yield line
        else:
            yield from wrapped(line, "  " if line.startswith("- ") else "")


def fill(text, name, lines, note):
    """`text` with `note` and `lines` between "<!-- NAME -->" and "<!-- /NAME -->", which must be there once."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the markers {begin} and {end} must be there once each, in this order")
    head, rest = text.split(begin)
    return head + "\n".join([begin, note, "", *narrow(lines)]) + end + rest.split(end)[1]


def run(description, command, make, arguments=None):
    """The program of a report: writes what ``make`` gives of the repository's root, or with --check compares it.

    Args:
        description: what --help says.
        command: what to run if the documents are not what the results give.
        make: takes the root and returns {path under root: text}.
        arguments: of the command line; None means this process's own.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    try:
        made = make(options.root)
    except (OSError, ValueError) as error:
        sys.exit(f"nothing can be made: {error}")
    if options.check:
        compare(options.root, made, [], command)
    else:
        write(options.root, made, [])


def run_page(description, script, path, results_name, parts, arguments=None, nothing=("not measured yet", "")):
    """The program of a report that fills the measured parts of one page from one kind of results.

    Args:
        description, arguments: as for :func:`run`.
        script: the program's name, without .py.
        path: the page, under the root.
        results_name: of the files with results, under bench/results/<gpu>/.
        parts: {marker: function of (results, root) that gives lines}.
        nothing: the lines where there are no results.
    """
    note = f"<!-- made by bench/{script}.py; do not edit -->"

    def make(root):
        page, found = (root / path).read_text(encoding="utf-8"), load_results(root, results_name)
        for marker, part in parts.items():
            lines = [line for results in newest([results for _, results in found]) for line in part(results, root)]
            page = fill(page, marker, lines or list(nothing), note)
        return {path: page}

    run(description, f"python bench/{script}.py", make, arguments)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    root, all_results = options.root, load_results(options.root)
    try:
        made = documents(root, all_results, load_results(root, VIEWS))
    except (OSError, ValueError) as error:
        sys.exit(f"nothing can be made: {error}")
    stale = leftovers(root, made)
    if options.check:
        compare(root, made, stale, "python bench/report.py")
    else:
        write(root, made, stale)


if __name__ == "__main__":
    main()
