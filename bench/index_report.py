"""Makes the measured part of docs/sums-by-index.md from bench/results/*/index.json, which bench/index.py writes.

    python bench/index_report.py            writes it
    python bench/index_report.py --check    changes nothing; exit status 1 and a diff if the results give another

The page is written by hand but for what stands between "<!-- index:times -->" and "<!-- /index:times -->". Standard
library only.
"""

import family_report
import report

PAGE, TIMES = "docs/sums-by-index.md", "index.json"


def entries(row):
    kind = ", half of them to one" if row["kind"] == "one hot" else ""
    return [f"{row['entries']:,} x {row['columns']} {row['dtype']}", f"{row['outputs']:,}{kind}"]


def ratio(us, name, other):
    return report.times(us[other] / us[name])


def sums(rows):
    header = ["rows", "outputs", "with a plan", "of a copy's speed", "with the sort", "atomics", "deterministic"]
    lines = []
    for row in rows:
        us = row["us"]
        others = [f"{report.number(us[k])} ({ratio(us, 'sort', k)})" for k in ("atomics", "deterministic")]
        lines.append(
            [*entries(row), report.number(us["plan"]), f"{row['share']:.2f}", report.number(us["sort"]), *others]
        )
    return report.table(header, lines)


def embeddings(rows):
    lines = [[*entries(row), *(report.number(row["us"][k]) for k in ("sort", "torch"))] for row in rows]
    return report.table(["gradients of rows", "rows of the table", "torch_reduce", "torch"], lines)


def graphs(rows):
    lines = []
    for row in rows:
        for name, us in row["us"].items():
            same = "yes" if row["same_gradients"][name] else "no"
            lines.append([name, f"{us / 1000:.1f}", same])
    return report.table(["a training step of a graph network", "ms", "the same gradients twice"], lines)


def segments(rows):
    names = ("sum", "amax", "amin", "prod", "logsumexp", "softmax")
    lines = [[*entries(row), *(report.number(row["us"][name]) for name in names)] for row in rows]
    return report.table(["elements", "segments", *names], lines)


def times(results, root):
    """Where it was measured, and the sums by index."""
    return [*family_report.source_lines(results, root), *sums(results["sums"]), ""]


def more(results):
    """What else was measured."""
    lines = []
    for part, made in (("embeddings", embeddings), ("graphs", graphs), ("segments", segments)):
        lines += [*made(results[part]), ""] if part in results else []
    return lines


def main(arguments=None):
    report.run_page(__doc__, "index_report", PAGE, TIMES, {"index:times": times}, arguments)


if __name__ == "__main__":
    main()
