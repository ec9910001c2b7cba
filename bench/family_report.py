"""Makes the table of speed-ups by function in README.md and the measured parts of docs/norms.md, family.md,
weighted.md and segments.md from bench/results/*/{grid,family,weighted,segments}.json.

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


def norms(results):
    return operations(results["norms"])


COLUMNS = 4  # of operations in one table: more are wider than a page


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


def kin(results):
    return operations(results["kin"])


def converted(results):
    return operations(results["converted"])


def views(results):
    """A row an operation: its random views, torch's time over ours, and in how many torch is faster."""
    ratios = {}
    for row in results["views"]:
        ratios.setdefault(row["operation"], []).append(row["torch_us"] / row["us"])
    ratios["all of them"] = [ratio for of_one in ratios.values() for ratio in of_one]
    rows = []
    for name, found in ratios.items():
        mean = statistics.geometric_mean(found)
        behind = sum(ratio < 1 for ratio in found)
        rows.append([name, str(len(found)), report.times(mean), report.times(min(found)), str(behind)])
    heads = ["operation", "views", "× eager, geometric mean", "the least", "torch is faster in"]
    return [*report.table(heads, rows), ""]


def lists(results):
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
    """A row a case and pair of dtypes: our time, torch's over ours, and the share of our sum's bandwidth."""
    rows = []
    for row in results["weighted"]:
        us, rate = row["us"], row["bytes"] / row["sum_bytes"]
        ratios = [
            report.times(us[other] / us["weighted_sum"]) if other in us else "" for other in ("eager", "compiled")
        ]
        share = f"{100 * rate * us['sum'] / us['weighted_sum']:.0f}%"
        rows.append([f"{row['case']}, {row['pair']}", report.number(us["weighted_sum"]), *ratios, share])
    lines = [*report.table(["inputs", "µs", "× eager", "× torch.compile", "of our sum's bandwidth"], rows), ""]
    if drawn := results.get("weighted_views"):
        lines += [f"And {len(drawn)} random views: {all_views(drawn)}.", ""]
    return lines


def compared(who, ratios):
    """torch's times over ours, in words."""
    mean, behind = statistics.geometric_mean(ratios), sum(ratio < 1 for ratio in ratios)
    return f"{who} takes {report.times(mean)} our time (geometric mean), and is faster in {behind}"


def all_views(rows):
    """What many views have in common, in words."""
    return compared("torch's eager code", [row["us"]["eager"] / row["us"]["weighted_sum"] for row in rows])


def segments(results):
    """A row a case: our time, other ways' over ours, and the share of our sum's speed on the same elements."""
    rows = []
    for row in [*results["rows"], *results["columns"]]:
        us, shape = row["us"], " × ".join(f"{n:,}" for n in row["shape"])
        ratios = [report.times(us[way] / us["segment_sum"]) if way in us else "" for way in WAYS]
        what = f"{row['lengths']}; {shape} {row['dtype']}, {row['segments']:,} segments"
        rows.append([what, report.number(us["segment_sum"]), *ratios, f"{100 * us['sum'] / us['segment_sum']:.0f}%"])
    heads = ["lengths and data", "µs", "× torch.segment_reduce", "× nested", "× index_add", "of our sum's speed"]
    lines = [*report.table(heads, rows), ""]
    if drawn := results.get("drawn"):
        lines += [f"And {len(drawn)} cases drawn at random: {all_segments(drawn)}.", ""]
    return lines


def all_segments(rows):
    """What many cases have in common, in words."""
    ratios = [ratio for ratio, _ in segment_ratios({"rows": rows})]
    share = statistics.geometric_mean(row["us"]["sum"] / row["us"]["segment_sum"] for row in rows)
    return compared("torch's fastest way", ratios) + f"; segments have {100 * share:.0f}% of our sum's speed"


PARTS = {
    "norms": ("docs/norms.md", norms, "norms"),
    "lists": ("docs/norms.md", lists, "lists"),
    "kin": ("docs/family.md", kin, "kin"),
    "converted": ("docs/family.md", converted, "converted"),
    "views": ("docs/family.md", views, "views"),
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

    It takes the GPUs with results on today's sources, or all GPUs if there is none; and of these the ones on which
    the most functions were measured.
    """
    today = {r["gpu"] for r in all_results if not provenance.changed(provenance.sources(r), root)}
    measured = [results for results in all_results if results["gpu"] in today] or all_results
    merged = {}
    for results in measured:
        merged.setdefault(results["gpu"], {}).update(results)
    found = {
        gpu: [[pair for name in names.split() for pair in ratios_of(results, name)] for *_, names in FUNCTIONS]
        for gpu, results in merged.items()
    }
    most = max((sum(map(bool, of_gpu)) for of_gpu in found.values()), default=0)
    found = {gpu: of_gpu for gpu, of_gpu in found.items() if sum(map(bool, of_gpu)) == most}
    columns = [f"× {rival}, {gpu}" for gpu in found for rival in ("eager torch", "torch.compile")]
    rows, parts = [], []
    for i, (names, _) in enumerate(FUNCTIONS):
        texts = []
        for of_gpu in found.values():
            for ratios in zip(*of_gpu[i], strict=True) if of_gpu[i] else [()] * 2:
                ratios = [ratio for ratio in ratios if ratio]
                mean = statistics.geometric_mean(ratios) if ratios else 0
                texts.append(f"{mean:.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "")
        if all(texts):
            rows.append([names, *texts])
        elif any(texts):  # no table has an empty cell
            known = (f"{text} {column}" for column, text in zip(columns, texts, strict=True) if text)
            parts.append(f"- {names}: {'; '.join(known)}.")
    shown = [results for results in measured if results["gpu"] in found]
    sources = report.measured_when(shown, [provenance.sources(results) for results in shown], root)
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
        known = [results for _, results in times if key in results]
        lines = [line for results in known for line in [*source_lines(results, root), *part(results)]]
        pages[page] = report.fill(pages[page], f"family:{name}", lines or ["not measured yet", ""], NOTE)
    return pages


def main(arguments=None):
    def make(root):
        return documents(root, [times for name in FILES for times in report.load_results(root, name)])

    report.run(__doc__, "python bench/family_report.py", make, arguments)


if __name__ == "__main__":
    main()
