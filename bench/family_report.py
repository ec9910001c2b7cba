"""Makes the measured parts of docs/norms.md, family.md and weighted.md from bench/results/*/{family,weighted}.json.

    python bench/family_report.py            writes them
    python bench/family_report.py --check    changes nothing; exit status 1 and a diff if the results give others

The pages are written by hand but for what stands between "<!-- family:NAME -->" and "<!-- /family:NAME -->". Standard
library only.
"""

import argparse
import pathlib
import sys

import provenance
import report

ROOT = provenance.ROOT
TIMES, WEIGHTED = "family.json", "weighted.json"
NOTE = "<!-- made by bench/family_report.py; do not edit -->"


def source_lines(results, root):
    """What it was measured on, and a second paragraph if csrc/ has changed since."""
    hashes = provenance.sources(results, "cuda")
    where = f"{results['gpu']}, driver {results['driver']}, CUDA {results['cuda']}"
    note = provenance.stale_note(hashes, root)
    lines = [f"{where}; {results['date']}, torch {results['torch']}; {provenance.at(hashes)}.", ""]
    return [*lines, *([note, ""] if note else [])]


def norms(results):
    """A row a shape and dtype: of each norm our time, and torch's over ours; and the share of our sum's speed."""
    cells = {(r["shape"], r["dtype"], r["operation"]): r for r in results["norms"]}
    names = list(dict.fromkeys(r["operation"] for r in results["norms"]))
    rows = []
    for shape, dtype in dict.fromkeys((r["shape"], r["dtype"]) for r in results["norms"]):
        each = [cells[shape, dtype, name] for name in names]
        texts = [f"{report.number(r['us'])} ({report.times(r['torch_us'] / r['us'])})" for r in each]
        rows.append([f"{shape}, {dtype}", report.number(each[0]["sum_us"]), *texts])
    return [*report.table(["input", "our sum", *names], rows), ""]


def kin(results):
    """A row a shape and dtype: of each operation our time, and torch's over ours."""
    cells = {(r["shape"], r["dtype"], r["operation"]): r for r in results["kin"]}
    names = list(dict.fromkeys(r["operation"] for r in results["kin"]))
    rows = []
    for shape, dtype in dict.fromkeys((r["shape"], r["dtype"]) for r in results["kin"]):
        each = [cells.get((shape, dtype, name)) for name in names]
        texts = [f"{report.number(r['us'])} ({report.times(r['torch_us'] / r['us'])})" if r else "" for r in each]
        total = next(r["sum_us"] for r in each if r)
        rows.append([f"{shape}, {dtype}", report.number(total), *texts])
    return [*report.table(["input", "our sum", *names], rows), ""]


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
    return [*report.table(["inputs", "µs", "× eager", "× torch.compile", "of our sum's bandwidth"], rows), ""]


PARTS = {
    "norms": ("docs/norms.md", norms),
    "lists": ("docs/norms.md", lists),
    "kin": ("docs/family.md", kin),
    "weighted": ("docs/weighted.md", weighted),
}


def documents(root, times):
    """{path under root: text} of all that is made."""
    pages = {page: (root / page).read_text(encoding="utf-8") for page, _ in PARTS.values()}
    for name, (page, part) in PARTS.items():
        known = [results for _, results in times if name in results]
        lines = [line for results in known for line in [*source_lines(results, root), *part(results)]]
        pages[page] = report.fill(pages[page], f"family:{name}", lines or ["not measured yet", ""], NOTE)
    return pages


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    try:
        made = documents(
            options.root, [times for name in (TIMES, WEIGHTED) for times in report.load_results(options.root, name)]
        )
    except (OSError, ValueError) as error:
        sys.exit(f"nothing can be made: {error}")
    if options.check:
        report.compare(options.root, made, [], "python bench/family_report.py")
    else:
        report.write(options.root, made, [])


if __name__ == "__main__":
    main()
