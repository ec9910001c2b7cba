"""Makes the measured part of docs/models.md from bench/results/*/compiled.json, which bench/compiled.py writes.

    python bench/compiled_report.py            writes it
    python bench/compiled_report.py --check    changes nothing; exit status 1 and a diff if the results give another

It stands between "<!-- compiled:times -->" and "<!-- /compiled:times -->". Standard library only.
"""

import statistics

import family_report
import report

PAGE, TIMES = "docs/models.md", "compiled.json"


def over(times, kind):
    """How many times as long ours takes as Inductor's own."""
    return times[kind] / times["torch"]


def spread(ratios):
    return f"{statistics.geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def functions(results):
    """A row per function of rows: fused, and called."""
    lines = []
    for name, rows in results.items():
        if isinstance(rows, list) and rows and "us" in rows[0]:
            found = [spread([over(row["us"], kind) for row in rows]) for kind in ("fused", "called")]
            lines.append(
                [
                    f"`{name}`" if name.isidentifier() else name,
                    str(len(rows)),
                    *found,
                    "yes" if all_same(rows) else "not in all",
                ]
            )
    head = ["between two products", "lengths", "fused", "called", "bits of eager code"]
    return report.table(head, lines) if lines else []


def all_same(rows):
    return all(row["same_bits"] for row in rows)


def steps(rows):
    """A row per model."""
    head = ["a training step of", "ms, torch's", "ms, fused", "fused", "called"]
    each = [[*(f"{row['ms'][kind]:.1f}" for kind in ("torch", "fused"))] for row in rows]
    ratios = [[f"{over(row['ms'], kind):.2f}" for kind in ("fused", "called")] for row in rows]
    return report.table(head, [[row["model"], *a, *b] for row, a, b in zip(rows, each, ratios, strict=True)])


def times(results, root):
    """How many times as long as Inductor's own functions ours take: a mean, the least and the most."""
    found = [*family_report.source_lines(results, root), *functions(results), ""]
    return found + ([*steps(results["steps"]), ""] if results.get("steps") else [])


def main(arguments=None):
    report.run_page(__doc__, "compiled_report", PAGE, TIMES, {"compiled:times": times}, arguments, nothing=())


if __name__ == "__main__":
    main()
