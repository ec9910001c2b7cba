"""Makes the table of speed-ups by function in README.md and the measured parts of docs/norms.md, family.md,
weighted.md and segments.md from bench/results/*/{grid,family,weighted,segments}.json. times_report.py has each shape.

    python bench/family_report.py            writes them
    python bench/family_report.py --check    changes nothing; exit status 1 and a diff if the results give others

The pages are written by hand but for what stands between "<!-- family:NAME -->" and "<!-- /family:NAME -->". Standard
library only.
"""

import statistics

import provenance
import report

ROOT = provenance.ROOT
FILES = ("grid.json", "family.json", "weighted.json", "segments.json")
NOTE = "<!-- made by bench/family_report.py; do not edit -->"
WAYS = ("segment_reduce", "nested", "index_add")  # torch's, to sum segments


def source_lines(results, root):
    """Where and when it was measured, on what, and what of csrc/ has changed since; the last line is empty."""
    hashes = provenance.sources(results)
    where = f"{results['gpu']}, driver {results['driver']}, CUDA {results['cuda']}"
    note = provenance.since(provenance.changed(hashes, root))
    return [f"{where}; {results['date']}, torch {results['torch']}; {provenance.at(hashes)}{note}.", ""]


def cell(row):
    """Our time, and over it torch's, eager and compiled."""
    ratios = [report.times(row[rival] / row["us"]) for rival in ("torch_us", "compiled_us") if rival in row]
    return f"{report.number(row['us'])} ({', '.join(ratios)})"


def grouped(rows, name):
    """{name of a row: the rows that have it}, in the order of the first."""
    found = {}
    for row in rows:
        found.setdefault(name(row), []).append(row)
    return found


def ratios(rows, theirs, ours="us"):
    """Torch's times over ours, of the rows that have both."""
    return [row[theirs] / row[ours] for row in rows if theirs in row]


def by_operation(rows, views):
    """A row of a table for each operation: of all shapes and dtypes, torch's times over ours; also of random views."""
    drawn = grouped(views, lambda row: row["operation"])
    lines = []
    for name, found in grouped(rows, lambda row: row["operation"]).items():
        pairs = (ratios(found, "torch_us"), ratios(found, "compiled_us"), ratios(drawn.get(name, []), "torch_us"))
        lines.append([name, *(report.spread(some) if some else "" for some in pairs)])
    heads = ["operation", "× eager torch", "× torch.compile", "random views: × eager torch"]
    return [*report.table(heads, lines), ""]


def norms(results):
    return by_operation(results["norms"], results.get("views", []))


def kin(results):
    return by_operation(results["kin"], results.get("views", []))


COLUMNS = 3  # of operations in one table: more are wider than a page


def operations(measured):
    """Tables for each dtype, a row a shape: the time of our sum, of each operation our time, and torch's over ours."""
    cells = {(r["shape"], r["dtype"], r["operation"]): r for r in measured}
    lines = []
    for dtype in dict.fromkeys(r["dtype"] for r in measured):
        of_dtype = [r for r in measured if r["dtype"] == dtype]
        sums = {r["shape"]: report.number(r["sum_us"]) for r in reversed(of_dtype)}
        names = list(dict.fromkeys(r["operation"] for r in of_dtype))
        for some in (names[i : i + COLUMNS] for i in range(0, len(names), COLUMNS)):
            known = {shape: [cells.get((shape, dtype, name)) for name in some] for shape in reversed(sums)}
            rows = [[s, sums[s], *(cell(r) if r else "" for r in each)] for s, each in known.items() if any(each)]
            lines += [*report.table([dtype, "our sum", *some], rows), ""]
    return lines


def views(results):
    """A row an operation: its random views, torch's time over ours, and in how many torch is faster."""
    drawn = {
        name: ratios(rows, "torch_us") for name, rows in grouped(results["views"], lambda r: r["operation"]).items()
    }
    drawn["all of them"] = [ratio for of_one in drawn.values() for ratio in of_one]
    rows = []
    for name, found in drawn.items():
        mean = statistics.geometric_mean(found)
        behind = sum(ratio < 1 for ratio in found)
        rows.append([name, str(len(found)), report.times(mean), report.times(min(found)), str(behind)])
    heads = ["operation", "views", "× eager, geometric mean", "the least", "torch is faster in"]
    return [*report.table(heads, rows), ""]


def lists(results):
    """A row of a table for each list and dtype: our times, and torch's over ours."""
    rows = []
    for row in results["lists"]:
        cells = [f"{row['list']}, {row['dtype']}"]
        for clock in ("us", "host_us"):
            for name in ("powsum", "total norm"):
                ours, theirs = row[name][clock], row[f"torch {name}"][clock]
                cells.append(f"{report.number(ours)} ({report.times(theirs / ours)})")
        rows.append(cells)
    heads = ["list", "sum of powers", "total norm", "sum of powers, host", "total norm, host"]
    return [*report.table(heads, rows), ""]


def all_lists(results):
    """A row a list and dtype: of each call the GPU's time, its bandwidth and the host's time."""
    rows = []
    for row in results["lists"]:
        for name, took in row.items():
            if isinstance(took, dict):
                rate = row["bytes"] / took["us"] / 1e3
                what = [f"{row['list']}, {row['dtype']}", name, report.number(took["us"])]
                rows.append([*what, f"{rate:,.0f}", report.number(took["host_us"])])
    return [*report.table(["list", "call", "GPU, µs", "GB/s", "host, µs"], rows), ""]


def weighted(results):
    """A row of a table for each case: of all dtypes, torch's times over ours, and the share of our sum's bandwidth."""
    rows = []
    for case, found in grouped(results["weighted"], lambda row: row["case"]).items():
        times = [row["us"] for row in found]
        shares = [share_of_sum(row) for row in found]
        others = (report.spread(ratios(times, other, "weighted_sum")) for other in ("eager", "compiled"))
        rows.append([case, *others, f"{min(shares):.0f}% to {max(shares):.0f}%"])
    lines = [*report.table(["inputs", "× eager", "× torch.compile", "of our sum's bandwidth"], rows), ""]
    if drawn := results.get("weighted_views"):
        lines += [f"And {len(drawn)} random views: {all_views(drawn)}.", ""]
    return lines


def share_of_sum(row):
    """In percent, of the bytes that our sum takes in in the same time."""
    return 100 * row["bytes"] / row["sum_bytes"] * row["us"]["sum"] / row["us"]["weighted_sum"]


def all_weighted(results):
    """A row a case and pair of dtypes: our time, torch's over ours, and the share of our sum's bandwidth."""
    rows = []
    for row in results["weighted"]:
        us = row["us"]
        beside = [
            report.times(us[other] / us["weighted_sum"]) if other in us else "" for other in ("eager", "compiled")
        ]
        what = [f"{row['case']}, {row['pair']}", report.number(us["weighted_sum"])]
        rows.append([*what, *beside, f"{share_of_sum(row):.0f}%"])
    return [*report.table(["inputs", "µs", "× eager", "× torch.compile", "of our sum's bandwidth"], rows), ""]


def compared(who, found):
    """torch's times over ours, in words."""
    mean, behind = statistics.geometric_mean(found), sum(ratio < 1 for ratio in found)
    return f"{who} takes {report.times(mean)} our time (geometric mean), and is faster in {behind}"


def all_views(rows):
    """What many views have in common, in words."""
    return compared("torch's eager code", [row["us"]["eager"] / row["us"]["weighted_sum"] for row in rows])


def segments(results):
    """A row of a table for each kind of lengths: torch's times over ours, and the share of our sum's speed."""
    rows = []
    for lengths, found in grouped([*results["rows"], *results["columns"]], lambda row: row["lengths"]).items():
        times = [row["us"] for row in found]
        others = (ratios(times, way, "segment_sum") for way in ("segment_reduce", "index_add"))
        shares = ratios(times, "sum", "segment_sum")
        share = f"{100 * min(shares):.0f}% to {100 * max(shares):.0f}%" if shares[1:] else f"{100 * shares[0]:.0f}%"
        rows.append([lengths, str(len(found)), *(report.spread(some) for some in others), share])
    heads = ["lengths", "inputs", "× torch.segment_reduce", "× index_add", "of our sum's speed"]
    lines = [*report.table(heads, rows), ""]
    if drawn := results.get("drawn"):
        lines += [f"And {len(drawn)} cases drawn at random: {all_segments(drawn)}.", ""]
    return lines


def each_segments(results):
    """A row a case: our time, other ways' over ours, and the share of our sum's speed on the same elements."""
    rows = []
    for row in [*results["rows"], *results["columns"]]:
        us, shape = row["us"], " × ".join(f"{n:,}" for n in row["shape"])
        beside = [report.times(us[way] / us["segment_sum"]) if way in us else "" for way in WAYS]
        what = f"{row['lengths']}; {shape} {row['dtype']}, {row['segments']:,} segments"
        rows.append([what, report.number(us["segment_sum"]), *beside, f"{100 * us['sum'] / us['segment_sum']:.0f}%"])
    heads = ["lengths and data", "µs", "× segment_reduce", "× nested", "× index_add", "of our sum"]
    return [*report.table(heads, rows), ""]


def all_segments(rows):
    """What many cases have in common, in words."""
    beside = [ratio for ratio, _ in segment_ratios({"rows": rows})]
    share = statistics.geometric_mean(row["us"]["sum"] / row["us"]["segment_sum"] for row in rows)
    return compared("torch's fastest way", beside) + f"; segments have {100 * share:.0f}% of our sum's speed"


PARTS = {
    "norms": ("docs/norms.md", norms, "norms"),
    "lists": ("docs/norms.md", lists, "lists"),
    "kin": ("docs/family.md", kin, "kin"),
    "weighted": ("docs/weighted.md", weighted, "weighted"),
    "segments": ("docs/segments.md", segments, "rows"),
}


# Functions, and the operations under which they were measured.
FUNCTIONS = (
    ("`sum`, `mean`", "sum"),
    ("`nansum`", "nansum"),
    ("`prod`", "prod"),
    ("`amax`, `amin`", "amax amin"),
    ("`argmax`, `argmin`, `max`, `min`", "argmax argmin max min"),
    ("`any`, `all`", "any all"),
    ("`count_nonzero`", "count_nonzero"),
    ("`var`, `std`, `var_mean`", "var var_mean"),
    ("`logsumexp`", "logsumexp"),
    ("`vector_norm`", "norm"),
    ("`powsum` of lists of gradients", "powsum"),
    ("`weighted_sum`, `dot`", "weighted"),
    ("`segment_sum`, `segment_mean`, beside the fastest of torch's ways", "segments"),
)


def weighted_ratios(results):
    times = [row["us"] for row in results.get("weighted", []) if "compiled" in row["us"]]
    return [(us["eager"] / us["weighted_sum"], us["compiled"] / us["weighted_sum"]) for us in times]


def segment_ratios(results):
    """Of torch's fastest way."""
    times = [row["us"] for part in ("rows", "columns", "drawn") for row in results.get(part, [])]
    return [(min(us[way] for way in WAYS if way in us) / us["segment_sum"], None) for us in times]


def list_ratios(results):
    return [(row["torch powsum"]["us"] / row["powsum"]["us"], None) for row in results.get("lists", [])]


def sum_ratios(results):
    cases = [case["us"] for case in results.get("cases", []) if {"torch", "compile"} <= case.get("us", {}).keys()]
    return [(us["torch"] / us["ours"], us["compile"] / us["ours"]) for us in cases]


# All others are read as norms are.
RATIOS = {"sum": sum_ratios, "weighted": weighted_ratios, "segments": segment_ratios, "powsum": list_ratios}


def ratios_of(results, name):
    """Torch's time over ours in each cell of an operation: eager and compiled, or None if that was not measured."""
    if name in RATIOS:
        return RATIOS[name](results)
    rows = [row for row in [*results.get("norms", []), *results.get("kin", [])] if row["operation"].split()[0] == name]
    return [(row["torch_us"] / row["us"], row["compiled_us"] / row["us"]) for row in rows if "compiled_us" in row]


def summary(all_results, root):
    """The speed-ups by function: of torch's times over ours in an operation's cells the mean, least and largest.

    It takes the GPUs on which the most functions were measured, and of these the ones whose results are of today's
    sources, if there are any.
    """
    merged = {}
    for results in all_results:
        merged.setdefault(results["gpu"], {}).update(results)
    found = {
        gpu: [[pair for name in names.split() for pair in ratios_of(results, name)] for *_, names in FUNCTIONS]
        for gpu, results in merged.items()
    }
    most = max((sum(map(bool, of_gpu)) for of_gpu in found.values()), default=0)
    found = {gpu: of_gpu for gpu, of_gpu in found.items() if sum(map(bool, of_gpu)) == most}
    old = {r["gpu"] for r in all_results if provenance.changed(provenance.sources(r), root)}
    found = {gpu: of_gpu for gpu, of_gpu in found.items() if gpu not in old} or found
    columns = [f"× {rival}, {gpu}" for gpu in found for rival in ("eager torch", "torch.compile")]
    rows, parts = [], []
    for i, (names, _) in enumerate(FUNCTIONS):
        texts = []
        for of_gpu in found.values():
            for some in zip(*of_gpu[i], strict=True) if of_gpu[i] else [()] * 2:
                some = [ratio for ratio in some if ratio]
                texts.append(report.spread(some) if some else "")
        if all(texts):
            rows.append([names, *texts])
        elif any(texts):  # no table has an empty cell
            known = (f"{text} {column}" for column, text in zip(columns, texts, strict=True) if text)
            parts.append(f"- {names}: {'; '.join(known)}.")
    shown = [results for results in all_results if results["gpu"] in found]
    sources = report.measured_when(shown, root)
    lines = [*report.table(["functions", *columns], rows), ""] if rows else []
    return [*lines, *([*parts, ""] if parts else []), *sources]


def documents(root, times):
    """{path under root: text} of all that is made."""
    pages = {
        page: (root / page).read_text(encoding="utf-8") for page in ("README.md", *(p for p, *_ in PARTS.values()))
    }
    lines = summary([results for _, results in times], root)
    pages["README.md"] = report.fill(pages["README.md"], "family:functions", lines, NOTE)
    for name, (page, part, key) in PARTS.items():
        known = report.newest([results for _, results in times if key in results])
        lines = [line for results in known for line in [*source_lines(results, root), *part(results)]]
        pages[page] = report.fill(pages[page], f"family:{name}", lines or ["not measured yet", ""], NOTE)
    return pages


def main(arguments=None):
    def make(root):
        return documents(root, [times for name in FILES for times in report.load_results(root, name)])

    report.run(__doc__, "python bench/family_report.py", make, arguments)


if __name__ == "__main__":
    main()
