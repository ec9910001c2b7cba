"""Makes the measured part of docs/rows.md from bench/results/*/rows.json, which bench/rows.py writes.

    python bench/rows_report.py            writes it
    python bench/rows_report.py --check    changes nothing; exit status 1 and a diff if the results give another

The page is written by hand but for what stands between "<!-- rows:times -->" and "<!-- /rows:times -->". Standard
library only.
"""

import family_report
import report
import slower

PAGE, TIMES = "docs/rows.md", "rows.json"


def cell(row):
    """Our time, its share of a copy's speed, and how many times as long torch takes."""
    text = f"{report.number(row['us'])}, {row['copy_us'] / row['us']:.2f}, {report.times(row['torch_us'] / row['us'])}"
    return text + (f", {report.times(row['compiled_us'] / row['us'])}" if "compiled_us" in row else "")


def times(results, root):
    """Where it was measured, and a row of a table for each function: of all shapes and dtypes."""
    rows = []
    for name, found in family_report.grouped(slower.rows_of(results), lambda row: row["function"]).items():
        shares = family_report.ratios(found, "copy_us")
        beside = (family_report.ratios(found, other) for other in ("torch_us", "compiled_us"))
        share = f"{min(shares):.2f} to {max(shares):.2f}"
        rows.append([name, share, *(report.spread(some) if some else "" for some in beside)])
    header = ["function", "of a copy's speed", "× torch", "× torch.compile"]
    return [*family_report.source_lines(results, root), *report.table(header, rows), ""]


def all_times(results):
    """A row per function and shape, with a column per dtype."""
    rows = slower.rows_of(results)
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    found = {}
    for row in rows:
        found.setdefault((row["function"], row["shape"]), {})[row["dtype"]] = cell(row)
    header = ["function", "input", *dtypes]
    lines = [[*key, *(cells.get(dtype, "") for dtype in dtypes)] for key, cells in found.items()]
    return [*report.table(header, lines), ""]


def main(arguments=None):
    report.run_page(__doc__, "rows_report", PAGE, TIMES, {"rows:times": times}, arguments)


if __name__ == "__main__":
    main()
