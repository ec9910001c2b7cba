"""Makes the measured parts of docs/times.md from bench/results/*/: each shape of all functions but sums, on each GPU.

    python bench/times_report.py            writes them
    python bench/times_report.py --check    changes nothing; exit status 1 and a diff if the results give others

The page is written by hand but for what stands between "<!-- times:NAME -->" and "<!-- /times:NAME -->". The pages of
the functions have a summary, and docs/performance.md has the sums. Standard library only.
"""

import exact_report
import family_report
import index_report
import ranks_report
import report
import rows_report

PAGE = "docs/times.md"
NOTE = "<!-- made by bench/times_report.py; do not edit -->"


def operations(part):
    return lambda results: family_report.operations(results[part])


PARTS = {  # {marker: (results file, part of it, function of the results that gives lines)}
    "norms": ("family.json", "norms", operations("norms")),
    "lists": ("family.json", "lists", family_report.all_lists),
    "kin": ("family.json", "kin", operations("kin")),
    "converted": ("family.json", "converted", operations("converted")),
    "views": ("family.json", "views", family_report.views),
    "weighted": ("weighted.json", "weighted", family_report.all_weighted),
    "segments": ("segments.json", "rows", family_report.each_segments),
    "rows": ("rows.json", "softmax", rows_report.all_times),
    "sums": ("index.json", "sums", lambda results: [*index_report.sums(results["sums"]), ""]),
    "index": ("index.json", "sums", index_report.more),
    "exact": ("exact.json", "sums", lambda results: [*exact_report.sums(results["sums"]), ""]),
    "calls": ("ranks.json", "calls", ranks_report.calls),
    "ranks": ("ranks.json", "all_reduce", ranks_report.times),
}


def documents(root):
    """{path under root: text} of all that is made."""
    page = (root / PAGE).read_text(encoding="utf-8")
    for name, (file, key, part) in PARTS.items():
        lines = []
        for _, results in report.load_results(root, file):
            if key in results:
                lines += [
                    *family_report.source_lines(results, root),
                    *report.folded(results["gpu"], part(results)[:-1]),
                ]
        page = report.fill(page, f"times:{name}", lines or ["not measured yet", ""], NOTE)
    return {PAGE: page}


def main(arguments=None):
    report.run(__doc__, "python bench/times_report.py", documents, arguments)


if __name__ == "__main__":
    main()
