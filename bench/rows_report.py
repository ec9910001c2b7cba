"""Makes the measured part of docs/rows.md from bench/results/*/rows.json, which bench/rows.py writes.

    python bench/rows_report.py            writes it
    python bench/rows_report.py --check    changes nothing; exit status 1 and a diff if the results give another

The page is written by hand but for what stands between "<!-- rows:times -->" and "<!-- /rows:times -->". Standard
library only.
"""

import family_report
import report

PAGE, TIMES = "docs/rows.md", "rows.json"
NOTE = "<!-- made by bench/rows_report.py; do not edit -->"


def cell(row):
    """Our time, its share of a copy's speed, and how many times as long torch takes."""
    text = f"{report.number(row['us'])}, {row['copy_us'] / row['us']:.2f}, {report.times(row['torch_us'] / row['us'])}"
    return text + (f", {report.times(row['compiled_us'] / row['us'])}" if "compiled_us" in row else "")


def times(results, root):
    """Where it was measured, and a row per function and shape, with a column per dtype."""
    rows = results.get("rows", [])
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    found = {}
    for row in rows:
        found.setdefault((row["function"], row["shape"]), {})[row["dtype"]] = cell(row)
    header = ["function", "input", *dtypes]
    lines = [[*key, *(cells.get(dtype, "") for dtype in dtypes)] for key, cells in found.items()]
    return [*family_report.source_lines(results, root), *report.table(header, lines), ""]


def documents(root, found):
    """{path under root: text} of all that is made."""
    page = (root / PAGE).read_text(encoding="utf-8")
    lines = [line for _, results in found for line in times(results, root)]
    return {PAGE: report.fill(page, "rows:times", lines or ["not measured yet", ""], NOTE)}


def main(arguments=None):
    def make(root):
        return documents(root, report.load_results(root, TIMES))

    report.run(__doc__, "python bench/rows_report.py", make, arguments)


if __name__ == "__main__":
    main()
