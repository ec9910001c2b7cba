"""Makes the measured part of docs/distributed.md from bench/results/*/ranks.json, which bench/ranks.py writes.

    python bench/ranks_report.py            writes it
    python bench/ranks_report.py --check    changes nothing; exit status 1 and a diff if the results give another

The page is written by hand but for what stands between "<!-- ranks:times -->" and "<!-- /ranks:times -->". Standard
library only.
"""

import argparse
import pathlib
import sys

import family_report
import provenance
import report

PAGE, TIMES = "docs/distributed.md", "ranks.json"
CALLS = (
    "Single calls, float32, from the call until the GPU is done, with the host's time; and the GPU's time alone, of "
    'calls in a CUDA graph. "Beside gloo": on a group that has gloo for the CPU, too.'
)
NOTE = "<!-- made by bench/ranks_report.py; do not edit -->"


def rows_of(results):
    """A row of text a measurement."""
    rows = []

    def row(what, dtype, us, torchs, rate=""):
        rows.append([what, dtype, report.number(us), report.number(torchs), report.times(torchs / us), rate])

    for one in results.get("all_reduce", []):
        rate = f"{one['bytes'] / one['us'] / 1e3:,.0f}"
        row(f"`all_reduce` of {one['bytes'] >> 20:,} MiB", one["dtype"], one["us"], one["torch_us"], rate)
    for one in results.get("sum", []):
        what = f"`sum` of 2^{one['elements'].bit_length() - 1}; a shard alone {report.number(one['shard_us'])}"
        row(what, one["dtype"], one["us"], one["torch_us"])
    for one in results.get("clip", []):
        for name, function in (("norm", "get_total_norm"), ("clip", "clip_grad_norm_")):
            row(f"`{function}`, {one['list']}", one["dtype"], one[name], one[f"torch {name}"])
    return rows


def calls_of(results):
    """A row of text a default call."""
    rows = []
    for one in results.get("calls", []):
        us, gpu = one["us"], one["gpu_us"]
        shown = [us[key] for key in ("checked", "unchecked", "torch", "first", "beside gloo")]
        shown += [gpu[key] for key in ("checked", "unchecked", "torch")]
        rows.append([f"`{one['call']}` of {one['bytes'] >> 20:,} MiB", *map(report.number, shown)])
    return rows


def times(results, root):
    """Where it was measured, and two tables."""
    header = ["call", "dtype", "ours, µs", "torch's, µs", "torch's over ours", "ours, GB/s"]
    lines = family_report.source_lines(results, root)
    lines = [f"{results['gpus']} GPUs, NCCL. {lines[0]}", *lines[1:]]
    if calls := calls_of(results):
        columns = ["call, µs", "default", "`check=False`", "torch's", "first of its kind", "beside gloo"]
        on_gpu = ["default, on the GPU", "`check=False`, on the GPU", "torch's, on the GPU"]
        lines += [CALLS, "", *report.table([*columns, *on_gpu], calls), ""]
    return [*lines, *report.table(header, rows_of(results)), ""]


def documents(root, found):
    """{path under root: text} of all that is made."""
    page = (root / PAGE).read_text(encoding="utf-8")
    lines = [line for _, results in found for line in times(results, root)]
    return {PAGE: report.fill(page, "ranks:times", lines or ["not measured yet", ""], NOTE)}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    parser.add_argument("--root", type=pathlib.Path, default=provenance.ROOT, help="the repository")
    options = parser.parse_args(arguments)
    try:
        made = documents(options.root, report.load_results(options.root, TIMES))
    except (OSError, ValueError) as error:
        sys.exit(f"nothing can be made: {error}")
    if options.check:
        report.compare(options.root, made, [], "python bench/ranks_report.py")
    else:
        report.write(options.root, made, [])


if __name__ == "__main__":
    main()
