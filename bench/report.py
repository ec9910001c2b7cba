"""Makes README's measured part, and the plots, from bench/results/*/sum.json.

    python bench/report.py            writes README.md between the markers, and docs/images/sum-<gpu>.svg
    python bench/report.py --check    changes nothing; exit status 1 and a diff if they are not what the results give

--check needs the standard library only: README is compared as text, a plot by the hash of its data that
it carries. Drawing needs matplotlib.
"""

import argparse
import difflib
import hashlib
import json
import pathlib
import statistics
import sys

import provenance

ROOT = provenance.ROOT
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
RIVALS = {"torch": "torch.sum", "cub": "CUB", "compile": "torch.compile"}


# --- what the numbers say -----------------------------------------------------------------------------------


def gbps(case):
    """Bytes that must move over our time."""
    return case["bytes"] / case["us"]["ours"] / 1e3


def percent(case):
    """Our rate over the rate of a kernel that only reads the input; None without one."""
    if "read" not in case["us"]:
        return None
    return 100 * gbps(case) / (case["input_bytes"] / case["us"]["read"] / 1e3)


def ratio(case, rival):
    """Their time over ours; None where they did not run."""
    return case["us"][rival] / case["us"]["ours"] if rival in case["us"] else None


def losses(cases):
    """(case, rival, ratio, settled) of each faster rival, worst first; not settled: within the noise of both."""
    found = []
    for case in cases:
        for rival in RIVALS:
            r = ratio(case, rival) if "us" in case else None
            if r is not None and r < 1:
                found.append((case, rival, r, 1 - r > case["spread"]["ours"] + case["spread"][rival]))
    return sorted(found, key=lambda item: item[2])


def summary(cases):
    """{rival: (cases, geometric mean, worst)} of the ratios."""
    result = {}
    for rival in RIVALS:
        ratios = [r for r in (ratio(c, rival) for c in cases if "us" in c) if r is not None]
        if ratios:
            result[rival] = (len(ratios), statistics.geometric_mean(ratios), min(ratios))
    return result


# --- README -------------------------------------------------------------------------------------------------


def load_results(root=ROOT):
    """[(slug, results)], sorted by folder."""
    paths = sorted((root / "bench" / "results").glob("*/sum.json"), key=lambda p: p.parent.name)
    return [(path.parent.name, json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def plot_path(slug):
    return f"docs/images/sum-{slug}.svg"


def plot_data(results):
    """What the plot shows, and nothing else: curves of GB/s against bytes, and bars of ratios."""
    curves, bars = {}, []
    for case in results["cases"]:
        if "us" not in case:
            continue
        if case["family"] == "full" and case["dtype"] in ("float32", "bfloat16"):
            lines = curves.setdefault(case["dtype"], {})
            for name, us in case["us"].items():
                moved = case["input_bytes"] if name == "read" else case["bytes"]
                lines.setdefault(name, []).append([case["input_bytes"], round(moved / us / 1e3, 1)])
        else:
            ratios = {rival: round(ratio(case, rival), 3) for rival in RIVALS if rival in case["us"]}
            bars.append([case["name"], ratios])
    for lines in curves.values():
        for points in lines.values():
            points.sort()
    return {"gpu": results["gpu"], "curves": curves, "bars": bars}


def plot_hash(data):
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def _table(header, rows):
    """A Markdown table; the first column to the left, the others to the right."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join([" :-- "] + [" --: "] * (len(header) - 1)) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _times(value):
    return "–" if value is None else f"{value:.2f}×"


def _number(value):
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _size(nbytes):
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if nbytes >= 10 or nbytes == int(nbytes) else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} GiB"


def _case_rows(cases):
    for case in cases:
        label = case["name"]
        if "us" not in case:
            yield [label, _size(case["bytes"]), case.get("skipped", "failed"), "", "", "", "", ""]
            continue
        share = percent(case)
        yield [
            label,
            _size(case["bytes"]),
            _number(case["us"]["ours"]),
            f"{gbps(case):,.0f}",
            "–" if share is None else f"{share:.0f}%",
            *[_times(ratio(case, rival)) for rival in RIVALS],
        ]


def device_section(slug, results):
    """README's lines for one GPU."""
    cases = results["cases"]
    ceiling = results.get("ceiling")
    at_most = f" ({ceiling['gbps']:,.0f} GB/s for 1 GiB)" if ceiling else ""
    lines = [
        f"### {results['gpu']}",
        "",
        f"Measured on {results['date']}: driver {results['driver']}, torch {results['torch']}, CUDA {results['cuda']}, "
        f"CUB {results.get('cub', 'none')}, Python {results['python']}, `csrc/` at `{results['csrc'][:12]}`. "
        'GPU time of a call in a CUDA graph, cold cache, medians of interleaved repeats. "Of read" compares it with '
        f"the best kernel that only reads the same input, in the same run{at_most}. All results were checked first to "
        "have the CPU backend's bits. Ratios are their time over ours: above 1, torch_reduce is faster.",
        "",
    ]
    for rival, (count, mean, worst) in summary(cases).items():
        lines.append(f"- Against {RIVALS[rival]}: {count} cases, geometric mean {mean:.2f}×, worst {worst:.2f}×.")
    lost = losses(cases)
    lines.append("")
    if lost:
        lines += [f"**Where another one is faster** ({len(lost)}):", ""]
        rows = [
            [case["name"], RIVALS[rival], f"{r:.3f}×", "" if settled else "within noise"]
            for case, rival, r, settled in lost
        ]
        lines += _table(["case", "against", "ratio", ""], rows)
    else:
        lines.append("Nobody is faster in any of these cases.")
    header = ["case", "bytes", "µs", "GB/s", "of read"] + [f"× {name}" for name in RIVALS.values()]
    lines += ["", "<details><summary>All cases</summary>", ""]
    lines += _table(header, _case_rows(cases))
    lines += ["", "</details>", ""]
    rows = [
        [f"{what}: `{name}`", f"{cells['host_us']:.2f}", f"{cells['end_to_end_us']:.2f}"]
        for what, table in results["small_calls"].items()
        for name, cells in table.items()
    ]
    lines += _table(["small calls (float32)", "host µs a call", "µs until the result is there"], rows)
    digest = plot_hash(plot_data(results))
    lines += ["", f"![Bandwidth against size, and ratios, on {results['gpu']}]({plot_path(slug)})"]
    lines += [f"<!-- {plot_path(slug)} is drawn from data {digest} -->", ""]
    return lines


def section(all_results):
    """All that stands between the markers, as text that ends in a newline."""
    lines = ["<!-- made by bench/report.py from bench/results/; do not edit -->", ""]
    if not all_results:
        lines += ["not measured yet", ""]
    for slug, results in all_results:
        lines += device_section(slug, results)
    return "\n".join(lines)


def replaced(text, body):
    """README's text with `body` between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"README.md must hold the markers {BEGIN} and {END}, once each and in this order")
    head, rest = text.split(BEGIN)
    return head + BEGIN + "\n" + body + END + rest.split(END)[1]


# --- the plot -----------------------------------------------------------------------------------------------


def draw(data, path):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "torch_reduce", "svg.fonttype": "none", "font.size": 9})
    import matplotlib.pyplot as plt
    import matplotlib.ticker

    colours = {"ours": "#c0392b", "torch": "#2e86c1", "cub": "#27ae60", "compile": "#8e44ad", "read": "#7f8c8d"}
    names = {"ours": "torch_reduce", "read": "only reading"} | RIVALS
    heights = [3.4, 1 + 0.26 * len(data["bars"])]
    figure = plt.figure(figsize=(10, sum(heights)), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=heights)
    for i, (dtype, lines) in enumerate(sorted(data["curves"].items(), reverse=True)):
        axes = top.add_subplot(1, len(data["curves"]), i + 1)
        for name in ("read", "ours", "cub", "torch", "compile"):
            if name in lines:
                style = {"linestyle": "--"} if name == "read" else {"marker": "o", "markersize": 3}
                axes.plot(*zip(*lines[name], strict=True), color=colours[name], label=names[name], **style)
        axes.set_xscale("log", base=2)
        axes.set(title=f"sum of all, {dtype}, cold cache", xlabel="bytes", ylabel="GB/s" if i == 0 else None)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    axes = bottom.add_subplot()
    rivals = [r for r in RIVALS if any(r in ratios for _, ratios in data["bars"])]
    width = 0.8 / max(1, len(rivals))
    for k, rival in enumerate(rivals):
        points = [
            (i + (k - (len(rivals) - 1) / 2) * width, r[rival]) for i, (_, r) in enumerate(data["bars"]) if rival in r
        ]
        # from 1, so that a cell we lose points to the left
        axes.barh(
            [y for y, _ in points], [v - 1 for _, v in points], width, left=1, color=colours[rival], label=RIVALS[rival]
        )
    axes.set_yticks(range(len(data["bars"])), [name for name, _ in data["bars"]])
    axes.invert_yaxis()
    axes.set_xscale("log")
    ticks = [t for t in (0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]]
    axes.set_xticks(ticks, [f"{t:g}×" for t in ticks])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xlabel="their time / ours (right of 1: torch_reduce is faster)", title=data["gpu"])
    axes.grid(axis="x", alpha=0.3)
    if rivals:
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None, "Description": f"data {plot_hash(data)}"}
    figure.savefig(path, format="svg", metadata=metadata, bbox_inches="tight")
    plt.close(figure)


# --- the program --------------------------------------------------------------------------------------------


def check(root, all_results):
    """What is not as the results give it: a list of messages, empty if all is well."""
    readme = root / "README.md"
    if not readme.exists():
        return ["README.md is missing"]
    text = readme.read_text(encoding="utf-8")
    try:
        wanted = replaced(text, section(all_results))
    except ValueError as error:
        return [str(error)]
    messages = []
    if wanted != text:
        diff = difflib.unified_diff(
            text.splitlines(), wanted.splitlines(), "README.md", "what the results give", lineterm=""
        )
        messages.append("README.md differs from bench/results; run: python bench/report.py\n" + "\n".join(diff))
    for slug, results in all_results:
        path, digest = root / plot_path(slug), plot_hash(plot_data(results))
        if not path.exists():
            messages.append(f"{plot_path(slug)} is missing; run: python bench/report.py")
        elif f"data {digest}" not in path.read_text(encoding="utf-8"):
            messages.append(f"{plot_path(slug)} was drawn from other data; run: python bench/report.py")
    return messages


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository")
    options = parser.parse_args(arguments)
    all_results = load_results(options.root)
    if options.check:
        messages = check(options.root, all_results)
        if messages:
            sys.exit("\n".join(messages))
        current = provenance.csrc_hash(options.root)
        for slug, results in all_results:
            if results["csrc"] != current:
                print(f"note: {slug} was measured on csrc {results['csrc'][:12]}; now it is {current[:12]}")
        print(f"README.md and the plots are what the {len(all_results)} result file(s) give")
        return
    readme = options.root / "README.md"
    try:
        readme.write_text(replaced(readme.read_text(encoding="utf-8"), section(all_results)), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.exit(f"README.md was not written: {error}")
    for slug, results in all_results:
        draw(plot_data(results), options.root / plot_path(slug))
    print(f"written: README.md{''.join(', ' + plot_path(slug) for slug, _ in all_results)}")


if __name__ == "__main__":
    main()
