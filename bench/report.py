"""Makes the measured part of the documentation from bench/results/*/grid.json, which bench/grid.py writes.

    python bench/report.py            writes README.md between the markers, docs/performance.md and docs/images/*.svg
    python bench/report.py --check    changes nothing; exit status 1 and a diff where they are not what the results give

What is lost stands before what is won. Standard library only: the pictures are text as well, made by pictures.py.
"""

import argparse
import difflib
import json
import pathlib
import sys

import bars
import pictures
import provenance

ROOT = provenance.ROOT
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
MADE = "<!-- made by bench/report.py from bench/results/; do not edit -->"
PAGE = "docs/performance.md"
LOSSES = {"README.md": 10, PAGE: 25}  # that are shown at once
SHOWN = """
full float32 2^20
full float32 2^28
full bfloat16 2^28
full int8 2^28
rows float32 (16384, 4096)
rows bfloat16 (16384, 4096)
rows float32 (2^20, 100)
columns float32 (16384, 4096)
columns float32 (2^20, 64)
inside float32 (256, 64, 56, 56) dims 0, 2, 3
awkward float32 2^26 at offset 1
odd bfloat16 (65536, 1023)
odd float32 (262144, 301)
odd int8 (2^20, 33)
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


# --- pieces of Markdown -------------------------------------------------------------------------------------


def table(header, rows):
    """The first column to the left, the others to the right."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join([" :-- "] + [" --: "] * (len(header) - 1)) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def folded(title, lines):
    return [f"<details><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def times(value):
    """A ratio, bold where it is a loss."""
    if value is None:
        return "–"
    return f"**{pictures.times_text(value)}×**" if value < 1 else f"{value:.2f}×"


def number(value):
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def case_table(cases, rivals=bars.RIVALS, reads=True):
    def row(case):
        begin = [case["name"], pictures.bytes_text(case["bytes"])]
        if "us" not in case:
            return begin + ["skipped" if "skipped" in case else "FAILED"] + [""] * (1 + reads + len(rivals))
        share = bars.percent(case)
        begin += [number(case["us"]["ours"]), number(bars.gbps(case))]
        begin += ["–" if share is None else f"{share:.1f}%"] * reads
        return begin + [times(bars.ratio(case, rival)) for rival in rivals]

    header = ["cell", "bytes", "µs", "GB/s"] + ["of read"] * reads + [f"× {bars.RIVALS[rival]}" for rival in rivals]
    return table(header, map(row, cases))


# --- what both pages say ------------------------------------------------------------------------------------


def places(results):
    """[(what to add to a name, cells)]: of the GPU, and of the CPU."""
    return [("", results["cases"]), (" on the CPU", results.get("cpu", {}).get("cases", []))]


def provenance_line(results):
    ceiling = results.get("ceiling")
    read = f" Reading 1 GiB: {ceiling['gbps']:,.0f} GB/s." if ceiling else ""
    cells, measured = results.get("cells", 0), len(results["cases"])
    missing = f" Of {cells} cells {measured} were measured." if measured < cells else ""
    cpu = f", the CPU's part of it at `{results['cpu']['csrc'][:12]}`" if "csrc" in results.get("cpu", {}) else ""
    return (
        f"Measured on {results['date']}: driver {results['driver']}, torch {results['torch']}, CUDA {results['cuda']}, "
        f"CUB {results.get('cub', 'none')}, Python {results['python']}; CPU: {results['cpu_name']}, "
        f"{results['cpu_threads']} threads; `csrc/` at `{results['csrc'][:12]}`{cpu}.{read}{missing}"
    )


def lost(results):
    """[row of a table] for each cell and faster rival: the GPU's before the CPU's, and worst first."""
    return [
        [
            case["name"] + where,
            bars.RIVALS[rival],
            f"{value:.3f}×",
            "" if bars.settled(case, rival) else "within the noise",
        ]
        for where, cases in places(results)
        for case, rival, value in bars.losses(cases)
    ]


def losses(results, most, rest):
    """The first `most` of what is lost, and what `rest` makes of the others."""
    rows, header = lost(results), ["cell", "who", "their time / ours", ""]
    if not rows:
        return ["Nobody is faster in any cell.", ""]
    lines = [f"**Where another one is faster** ({len(rows)}), worst first, the CPU's last:", ""]
    lines += [*table(header, rows[:most]), ""]
    return lines + (rest(len(rows) - most, table(header, rows[most:])) if len(rows) > most else [])


def summary(results):
    """Nothing if no rival was measured."""
    rows = []
    for where, cases in places(results):
        for rival, (count, mean, worst) in bars.means(cases).items():
            case = bars.ratios(cases, (rival,))[0][0]
            lost = len(bars.losses(cases, (rival,)))
            rows.append([bars.RIVALS[rival] + where, str(count), f"{mean:.2f}×", str(lost), times(worst), case["name"]])
    header = ["against", "cells", "geometric mean", "slower in", "worst", "worst cell"]
    return [*table(header, rows), ""] if rows else []


# --- README.md ----------------------------------------------------------------------------------------------


def readme_section(slug, results):
    found = [bar for bar in bars.bars(results) if bar.met is not None]
    known = {case["name"]: case for case in bars.measured(results["cases"])}
    lines = [f"### {results['gpu']}", "", provenance_line(results), "", *summary(results)]
    lines += losses(results, LOSSES["README.md"], lambda n, _: [f"and {n} more: [{PAGE}]({PAGE})", ""])
    shown = [known[name] for name in SHOWN if name in known]
    lines += [*case_table(shown), ""] if shown else []
    lines += [
        f"[Bars]({PAGE}#bars-{slug}) set for the whole grid: {sum(b.met for b in found)} of {len(found)} met. "
        f"All {len(known)} cells, small calls and the CPU: [{PAGE}]({PAGE}).",
        "",
        f"![GB/s against bytes on {results['gpu']}](docs/images/bandwidth-{slug}.svg)",
        "",
    ]
    return lines


def readme_text(text, all_results):
    """README's `text` with what the results give between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md must hold the markers {BEGIN} and {END}, once each and in this order")
    lines = [BEGIN, MADE, ""]
    for slug, results in all_results:
        lines += readme_section(slug, results)
    lines += [] if all_results else ["not measured yet", ""]
    head, rest = text.split(BEGIN)
    return head + "\n".join(lines) + END + rest.split(END)[1]


# --- docs/performance.md ------------------------------------------------------------------------------------

INTRODUCTION = f"""{MADE}
# Performance

Every cell of `bench/cases.py`, measured by `make grid`. GPU time of a call in a CUDA graph, medians of interleaved
rounds; cold: over buffers that together are larger than the L2, which is flushed before each graph; "hot" cells read
one buffer again and again. Ratios are another one's time over ours, in the same run: above 1× torch_reduce is faster. A
ratio near 1× is measured on until it is settled, or called within the noise after seven times the rounds. "Of read"
compares with the fastest of several kernels that only read the same bytes. Before a cell is timed, its bits are checked
against the CPU backend's. On the CPU, functions are compared as they are called, `torch_reduce.sum(x, out=)` and
`torch.sum(x, out=)`, in three passes over the cells. What stands between us and the bars that are not met:
[limits.md](limits.md).
"""


def page_section(slug, results):
    gpu, cpu = (cases for _, cases in places(results))
    lines = [f"## {results['gpu']}", "", provenance_line(results), "", *wrong(results)]
    lines += losses(results, LOSSES[PAGE], lambda n, rows: folded(f"The other {n}", rows))
    lines += [f"### Bars: {slug}", "", *bar_lines(results), f"### Summary: {slug}", "", *summary(results)]
    for kind, what in (("heat", "Ratios of all cells"), ("bandwidth", "GB/s against bytes")):
        lines += [f"![{what} on {results['gpu']}](images/{kind}-{slug}.svg)", ""]
    lines += [f"### Cells: {slug}", ""]
    for family in dict.fromkeys(case["family"] for case in gpu):
        cases = [case for case in gpu if case["family"] == family]
        lines += folded(f"{FAMILIES.get(family, family)} ({len(cases)})", case_table(cases))
    if cpu:
        title = f"The CPU backend ({len(cpu)}): one buffer, so small inputs come from the caches"
        lines += folded(title, case_table(cpu, ("torch",), reads=False))
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
    word, lines, lists = {True: "met", False: "**NOT MET**", None: "–"}, [], []
    for bar in bars.bars(results):
        lines.append([bar.what, word[bar.met], bar.found])
        if bar.below:
            lists += folded(f"Below: {bar.what} ({len(bar.below)})", [f"- {name}" for name in bar.below])
    return [*table(["bar", "", "found"], lines), "", *lists]


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


def page(all_results):
    lines = [INTRODUCTION]
    for slug, results in all_results:
        lines += page_section(slug, results)
    return "\n".join(lines if all_results else [INTRODUCTION, "not measured yet", ""])


# --- the program --------------------------------------------------------------------------------------------


def documents(root, all_results):
    """{path under root: text} of all that is made."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    made = {"README.md": readme_text(readme, all_results), PAGE: page(all_results)}
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
    message = f"{path} is not what bench/results gives; run: {command}"
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


def fill(text, name, lines, note):
    """`text` with `note` and `lines` between "<!-- NAME -->" and "<!-- /NAME -->", which must be there once."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the markers {begin} and {end} must be there once each, in this order")
    head, rest = text.split(begin)
    return head + "\n".join([begin, note, "", *lines]) + end + rest.split(end)[1]


def note_other_sources(root, all_results):
    """Says which results were measured on other sources than those that are here."""
    current = provenance.csrc_hash(root)
    for slug, results in all_results:
        if results["csrc"] != current:
            print(f"note: {slug} was measured on csrc {results['csrc'][:12]}; now it is {current[:12]}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    root, all_results = options.root, load_results(options.root)
    try:
        made = documents(root, all_results)
    except (OSError, ValueError) as error:
        sys.exit(f"nothing can be made: {error}")
    stale = leftovers(root, made)
    if options.check:
        compare(root, made, stale, "python bench/report.py")
        note_other_sources(root, all_results)
    else:
        write(root, made, stale)


if __name__ == "__main__":
    main()
