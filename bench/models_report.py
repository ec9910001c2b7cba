"""Makes the measured parts of docs/models.md and README.md, and the picture, from bench/results/*/models.json and
bench/results/*/batch_invariance.json, which bench/models.py and examples/batch_invariance.py write.

    python bench/models_report.py            writes them
    python bench/models_report.py --check    changes nothing; exit status 1 and a diff if the results give others

The pages are written by hand but for what stands between "<!-- models:NAME -->" and "<!-- /models:NAME -->". Standard
library only.
"""

import argparse
import pathlib
import statistics
import sys

import pictures
import provenance
import report

ROOT = provenance.ROOT
PAGE = "docs/models.md"
TIMES, INVARIANCE = "models.json", "batch_invariance.json"
NOTE = "<!-- made by bench/models_report.py; do not edit -->"
NOTHING = ["not measured yet", ""]


def since(results, root):
    """What to add to the date: what of csrc/ has changed."""
    return provenance.since(provenance.changed(provenance.sources(results), root))


def source_line(results, root=ROOT):
    """Where and when it was measured, on what, and what of csrc/ has changed since."""
    gpu = results["gpu"]
    where = f"{gpu}, driver {results['driver']}, CUDA {results['cuda']}" if gpu else "the CPU alone"
    at = provenance.at(provenance.sources(results)) + since(results, root)
    return (
        f"{where}; {results['date']}, torch {results['torch']}, Python {results['python']}, {results['cpu_name']}, "
        f"{results['cpu_threads']} threads;\n{at}."
    )


def ratio(pair):
    """torch's time over ours."""
    return report.times(pair["torch"] / pair["ours"])


# --- the parts ----------------------------------------------------------------------------------------------


def gradients(results):
    rows = [
        [
            f"{case['operation']} {case['dtype']} ({', '.join(map(str, case['shape']))})",
            *(
                text
                for pair in (case["us"]["forward"], case["us"]["both"], case["eager_us"])
                for text in (report.number(pair["ours"]), ratio(pair))
            ),
        ]
        for case in results["gradients"]
    ]
    header = [
        "rows",
        "forward, µs",
        "× torch",
        "forward and backward, µs",
        "× torch",
        "eager, to `.grad`, µs",
        "× torch",
    ]
    return [*report.table(header, rows), ""]


def host(results):
    rows = [
        [f"`{name}`", *(cell for kind in ("plain", "grad") for cell in (f"{us[kind]:.2f}", of(us, torchs, kind)))]
        for calls in results["host"].values()
        for torchs in [next(iter(calls.values()))]
        for name, us in calls.items()
    ]
    header = ["float32 (32, 64), dim -1", "host µs a call", "of torch's", "with requires_grad", "of torch's"]
    return [*report.table(header, rows), ""]


def of(us, torchs, kind):
    return f"{us[kind] / torchs[kind]:.2f}×"


def train(results):
    def spread(models):
        return f"{min(models):.2f} to {max(models):.2f}"

    rows = [
        [kind, *(f"{us:.2f}" for us in medians(pair).values()), ratio(medians(pair)), *map(spread, pair.values())]
        for kind, pair in results["train"].items()
    ]
    header = ["a step of `examples/train.py`", "ours, ms", "with torch.sum, ms", "× torch"]
    return [*report.table([*header, "models with ours", "with torch.sum"], rows), ""]


def medians(pair):
    """{"ours" and "torch": the median of its models}."""
    return {name: statistics.median(pair[name]) for name in ("ours", "torch")}


def replace(results):
    pair = results["replace"]
    columns = [pair["torch"], pair["ours"]]
    rows = [
        [f"values that differ in a batch of {size}", *(str(column["batches"][size]) for column in columns)]
        for size in pair["ours"]["batches"]
    ]
    rows.append(["values that differ in a second run", *(str(column["again"]) for column in columns)])
    rows.append(["ms, forward and backward", *(f"{column['ms']:.2f}" for column in columns)])
    return [*report.table(["an image's gradient", "torch's sum", "`replace_torch_sum()`"], rows), ""]


def invariance(results):
    cases = results["cases"]
    rows = [
        [f"{case['layout']}, {case['dtype']}", *(str(len(set(numbers))) for numbers in case["patterns"].values())]
        for case in cases
    ]
    return [*report.table(["different results of a row's sum", *cases[0]["patterns"]], rows), ""]


def in_words(results, root):
    """What the picture shows and leaves out: how many results each layout has, by dtype, and torch's version.

    It names the date if sources have changed since.
    """
    torchs, ours = {}, set()
    for case in results["cases"]:
        numbers = {name: len(set(found)) for name, found in case["patterns"].items()}
        torchs.setdefault(case["dtype"], {})[case["layout"].split(": ")[-1]] = numbers["torch.sum"]
        ours.add(numbers["torch_reduce.sum"])
    older = since(results, root)
    at = f"{results['gpu']}, measured on {results['date']}{older}" if older else results["gpu"]
    said = (
        f"How many different sums one row of n = {results['n']:,} elements has in batches of 1 to "
        f"{results['sizes'][-1]} rows, on {at}:"
    )
    lines = [f"- `torch.sum` of torch {results['torch']}, {dtype}: {each(found)};" for dtype, found in torchs.items()]
    lines.append(f"- `torch_reduce.sum`, in all of these: {max(ours)}.")
    return [said, "", *lines, ""]


def each(found):
    """{layout: number} in words."""
    (first, *_) = found.values()
    if set(found.values()) == {first}:
        return f"{first} in each layout"
    return ", ".join(f"{number} in `{layout}`" for layout, number in found.items())


PARTS = {"gradients": gradients, "host": host, "train": train, "replace": replace}  # of TIMES


# --- the documents ------------------------------------------------------------------------------------------


def picture(slug, results, folder):
    gpu, most = results["gpu"], results["sizes"][-1]
    text = f"Different results of a row's sum on {gpu}, in batches of 1 to {most}"
    return [f"![{text}]({folder}images/batch-invariance-{slug}.svg)", ""]


def documents(root, times, patterns):
    """{path under root: text} of all that is made."""
    page, readme = ((root / path).read_text(encoding="utf-8") for path in (PAGE, "README.md"))
    sources = [line for _, results in times for line in (source_line(results, root), "")]
    page = report.fill(page, "models:measured", sources or NOTHING, NOTE)
    for name, part in PARTS.items():
        lines = [line for _, results in times if name in results for line in part(results)]
        page = report.fill(page, f"models:{name}", lines or NOTHING, NOTE)
    lines, shown, made = [], [], {}
    for slug, results in patterns:
        lines += [source_line(results, root), "", *invariance(results), *picture(slug, results, "")]
        shown += [*picture(slug, results, "docs/"), *in_words(results, root)]
        made[f"docs/images/batch-invariance-{slug}.svg"] = pictures.batch_invariance(results)
    made[PAGE] = report.fill(page, "models:invariance", lines or NOTHING, NOTE)
    made["README.md"] = report.fill(readme, "models:summary", shown or NOTHING, NOTE)
    return made


def leftovers(root, made):
    """Pictures that no results give any more."""
    found = sorted((root / "docs" / "images").glob("batch-invariance-*.svg"))
    return [path for path in (p.relative_to(root).as_posix() for p in found) if path not in made]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    root = options.root
    times, patterns = (report.load_results(root, name) for name in (TIMES, INVARIANCE))
    try:
        made = documents(root, times, patterns)
    except (OSError, ValueError) as error:
        sys.exit(f"nothing can be made: {error}")
    stale = leftovers(root, made)
    if options.check:
        report.compare(root, made, stale, "python bench/models_report.py")
    else:
        report.write(root, made, stale)


if __name__ == "__main__":
    main()
