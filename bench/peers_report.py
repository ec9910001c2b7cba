"""Makes the measured parts of docs/peers.md from bench/results/*/*.json, except the ladder's and the tests'.

    python bench/peers_report.py            writes them
    python bench/peers_report.py --check    changes nothing; exit status 1 and a diff if the results give others

The page is written by hand but for what stands between "<!-- peers:NAME -->" and "<!-- /peers:NAME -->". Standard
library only.
"""

import statistics

import bars
import provenance
import report
import slower

PAGE = "docs/peers.md"
NOTE = "<!-- made by bench/peers_report.py; do not edit -->"
FEW = 64  # columns, at most
# Sections of the page: the kinds of results files that each reads, and the libraries that have something of it.
SECTIONS = {
    "sums": (("grid", "views", "family", "weighted"), ("torch", "torch.compile", "CUB", "batch_invariant_ops")),
    "columns": (("grid",), ("torch", "torch.compile", "batch_invariant_ops")),
    "rows": (("rows",), ("torch", "torch.compile", "Liger", "quack", "batch_invariant_ops")),
    "index": (("index",), ("torch", "torch_scatter")),
    "segments": (("segments",), ("torch", "CUB", "torch_scatter")),
    "exact": (("exact",), ("torch", "CUB")),
    "ranks": (("ranks",), ("torch", "Liger")),
    "models": (("models", "compiled"), ("torch", "torch.compile", "Liger", "batch_invariant_ops")),
}
WHOLE = ("views", "family", "weighted", "segments")  # kinds whose functions share a row


def peer_of(rival):
    """The library that a rival belongs to: torch has several ways, NCCL among them."""
    name = rival.split(",")[0]
    return name if name in ("torch.compile", "CUB") else "torch"


def of_grid(results, section):
    """(calls, rival, their time over ours): sums of few columns are a section of their own."""
    for case, rival, ratio in bars.ratios(results["cases"]):
        few = case["family"] == "columns" and case["shape"][-1] <= FEW
        if few == (section == "columns"):
            yield f"sums of at most {FEW} columns" if few else "sums of chosen shapes", bars.RIVALS[rival], ratio
    if section == "sums":
        for _, rival, ratio in bars.ratios(results.get("cpu", {}).get("cases", [])):
            yield "sums of chosen shapes, on the CPU", bars.RIVALS[rival], ratio


def of_models(results):
    """Training steps stand here also where the difference is noise, which their names say."""
    steps = "a step of `examples/train.py`"
    short = "a step of `train.py`"
    for what, rival, _, ratio in slower.of_models(results):
        if what != steps:
            yield what, rival, ratio
    for kind, pair in results.get("train", {}).items():
        noise = ", noise" if slower.is_noise(pair) else ""
        rival = "torch.compile" if kind == "compiled" else "torch"
        yield f"{short}, {kind}{noise}", rival, statistics.median(pair["torch"]) / statistics.median(pair["ours"])


def cells(kind, results, section):
    """(calls, rival, their time over ours) of a results file."""
    if kind == "grid":
        yield from of_grid(results, section)
    elif kind == "models":
        yield from of_models(results)
    else:
        for what, rival, _, ratio in slower.FILES[kind](results):
            host = ", the host's time" if what.endswith(", the host") else ""
            if not rival.startswith("ours"):
                yield (slower.KINDS[kind] + host if kind in WHOLE else what), rival, ratio


def rows(loaded, section):
    """{(calls, rival, GPU): ratios}: calls as they are found, and the rivals of each by name."""
    found = {}
    for kind, results in loaded:
        for what, rival, ratio in cells(kind, results, section):
            on = "a CPU" if what.endswith("on the CPU") else provenance.short(results["gpu"])
            found.setdefault(what, {}).setdefault((rival, on), []).append(ratio)
    return {(what, *key): of_what[key] for what, of_what in found.items() for key in sorted(of_what)}


def speed(section, loaded, root):
    """The measured part of a section: a row per kind of calls, rival and GPU, and who was not measured."""
    kinds, peers = SECTIONS[section]
    mine = [(kind, results) for kind, results in loaded if kind in kinds]
    found = rows(mine, section)
    lines = [
        [
            what,
            rival,
            on,
            report.times(statistics.geometric_mean(ratios)),
            report.times(statistics.median(ratios)),
            report.times(min(ratios)),
            f"{sum(ratio < 1 for ratio in ratios)} of {len(ratios)}",
        ]
        for (what, rival, on), ratios in found.items()
    ]
    header = ["calls", "beside", "on", "their time / ours", "median", "least", "they are faster in"]
    absent = [peer for peer in peers if peer not in {peer_of(rival) for _, rival, _ in found}]
    text = [*report.table(header, lines), ""] if lines else []
    versions = {results["cub"] for _, results in mine if results.get("cub")}
    if versions and any(rival == "CUB" for _, rival, _ in found):
        text += [f"CUB is version {' and '.join(sorted(versions))}.", ""]
    text += [f"Not measured: {', '.join(absent)}.", ""] if absent else []
    files = [results for _, results in mine]
    when = report.measured_when(files, root, on_cpu=True) if files else []
    return [*text, *when]


def make(root):
    page, loaded = (root / PAGE).read_text(encoding="utf-8"), slower.load(root)
    for section in SECTIONS:
        page = report.fill(page, f"peers:{section}", speed(section, loaded, root), NOTE)
    return {PAGE: page}


def main(arguments=None):
    report.run(__doc__, "python bench/peers_report.py", make, arguments)


if __name__ == "__main__":
    main()
