"""Makes the measured part of docs/exact.md from bench/results/*/exact.json, which bench/exact.py writes.

    python bench/exact_report.py            writes it
    python bench/exact_report.py --check    changes nothing; exit status 1 and a diff if the results give another

The page is written by hand but for what stands between "<!-- exact:times -->" and "<!-- /exact:times -->". Standard
library only.
"""

import family_report
import report

PAGE, TIMES = "docs/exact.md", "exact.json"
PRODUCTS = {
    "dot": "dot of two of {columns:,}",
    "vector_norm": "norms of {of}",
    "weighted_sum": "weighted {of} (torch.mv)",
}


def what(row):
    function = row.get("function", "sum")  # older results are all of sums
    if function != "sum":
        return PRODUCTS[function].format(of=what(row | {"function": "sum"}), columns=row["columns"])
    if row["dim"] is None:
        return f"all of {row['rows'] * row['columns']:,}"
    shape = f"({row['rows']:,}, {row['columns']:,})"
    if row.get("segment"):
        rows = "1 row" if row["segment"] == 1 else f"{row['segment']:,} rows"
        return f"segments of {rows} of {shape}"
    return f"rows of {shape}" if row["dim"] == 1 else f"columns of {shape}"


def sums(rows):
    header = ["sums", "dtype", "data", "exact", "ordered", "exact : ordered", "torch"]
    lines = []
    for row in rows:
        us = row["us"]
        numbers = [report.number(us[k]) for k in ("exact", "ordered")]
        ratio = f"{us['exact'] / us['ordered']:.2f}"
        torchs = report.number(us["torch"]) if "torch" in us else ""
        lines.append([what(row), row["dtype"], row["data"], *numbers, ratio, torchs])
    return report.table(header, lines)


def kind(row):
    """What a row of the page's table is about."""
    function = row.get("function", "sum")
    if function != "sum":
        return f"`{function}`"
    if row["dim"] is None:
        return "all elements"
    if segment := row.get("segment"):
        return "segments of 1 row" if segment == 1 else "segments of 32 rows and more"
    if row["dim"] == 0:
        return "columns"
    return "rows of fewer than 1,000" if row["columns"] < 1000 else "rows of 1,000 and more"


def times(results, root):
    """Where it was measured, and of each kind of sums and data: our time over the ordinary function's, and torch's."""
    rows = []
    for (name, data), found in family_report.grouped(results["sums"], lambda row: (kind(row), row["data"])).items():
        us = [row["us"] for row in found]
        beside = [family_report.ratios(us, "exact", "ordered")]
        beside.append([row["exact"] / row["torch"] for row in us if "torch" in row])
        rows.append([name, data, *(report.spread(some) if some else "not measured" for some in beside)])
    header = ["sums", "data", "exact : ordered", "exact : torch"]
    return [*family_report.source_lines(results, root), *report.table(header, rows), ""]


def main(arguments=None):
    report.run_page(__doc__, "exact_report", PAGE, TIMES, {"exact:times": times}, arguments)


if __name__ == "__main__":
    main()
