"""Makes the measured part of docs/models.md from bench/results/*/compiled.json, which bench/compiled.py writes.

    python bench/compiled_report.py            writes it
    python bench/compiled_report.py --check    changes nothing; exit status 1 and a diff if the results give another

It stands between "<!-- compiled:times -->" and "<!-- /compiled:times -->". Standard library only.
"""

import family_report
import report

PAGE, TIMES = "docs/models.md", "compiled.json"


def over(times, kind):
    """How many times as long as ours Inductor's own takes."""
    return times["torch"] / times[kind]


def functions(results):
    """A row per function of rows: fused, and called."""
    lines = []
    for name, rows in results.items():
        if isinstance(rows, list) and rows and "us" in rows[0]:
            found = [report.spread([over(row["us"], kind) for row in rows]) for kind in ("fused", "called")]
            lines.append(
                [
                    f"`{name}`" if name.isidentifier() else name,
                    str(len(rows)),
                    *found,
                    "yes" if all_same(rows) else "not in all",
                ]
            )
    head = ["between two products", "shapes", "× torch.compile, fused", "called", "bits of eager code"]
    return report.table(head, lines) if lines else []


def all_same(rows):
    return all(row["same_bits"] for row in rows)


def steps(rows):
    """A row per model."""
    head = ["a training step of", "ms, torch.compile", "ms, fused", "× torch.compile, fused", "called"]
    each = [[*(f"{row['ms'][kind]:.1f}" for kind in ("torch", "fused"))] for row in rows]
    ratios = [[report.times(over(row["ms"], kind)) for kind in ("fused", "called")] for row in rows]
    return report.table(head, [[row["model"], *a, *b] for row, a, b in zip(rows, each, ratios, strict=True)])


def times(results, root):
    """The time of torch.compile alone over ours: a geometric mean, the least and the largest."""
    text = "The time of torch.compile alone over ours; above 1, ours is faster. Where ours is called, nothing is fused."
    found = [*family_report.source_lines(results, root), text, "", *functions(results), ""]
    return found + ([*steps(results["steps"]), ""] if results.get("steps") else [])


def main(arguments=None):
    report.run_page(__doc__, "compiled_report", PAGE, TIMES, {"compiled:times": times}, arguments, nothing=())


if __name__ == "__main__":
    main()
