"""Makes the measured parts of docs/distributed.md from bench/results/*/ranks.json, which bench/ranks.py writes.

    python bench/ranks_report.py            writes it
    python bench/ranks_report.py --check    changes nothing; exit status 1 and a diff if the results give another

The page is written by hand but for what stands between "<!-- ranks:calls -->" and "<!-- /ranks:calls -->", and between
"<!-- ranks:times -->" and "<!-- /ranks:times -->". Standard library only.
"""

import family_report
import report

PAGE, TIMES = "docs/distributed.md", "ranks.json"


def rows_of(results):
    """A row of text a measurement."""
    rows = []

    symmetric = any("symmetric_us" in one for one in results.get("all_reduce", []))

    def row(what, dtype, us, torchs, rate="", own=None):
        cells = [what, dtype, report.number(us), report.number(torchs), report.times(torchs / us), rate]
        rows.append([*cells, report.number(own) if own else ""] if symmetric else cells)

    for one in results.get("all_reduce", []):
        rate, what = f"{one['bytes'] / one['us'] / 1e3:,.0f}", f"`all_reduce` of {one['bytes'] >> 20:,} MiB"
        row(what, one["dtype"], one["us"], one["torch_us"], rate, one.get("symmetric_us"))
    for one in results.get("sum", []):
        what = f"`sum` of 2^{one['elements'].bit_length() - 1}; a shard alone {report.number(one['shard_us'])}"
        row(what, one["dtype"], one["us"], one["torch_us"])
    for one in results.get("clip", []):
        for name, function in (("norm", "get_total_norm"), ("clip", "clip_grad_norm_")):
            row(f"`{function}`, {one['list']}", one["dtype"], one[name], one[f"torch {name}"])
    return rows


def source(results, root):
    """Where it was measured."""
    line, end = family_report.source_lines(results, root)
    return [f"{results['gpus']} GPUs, NCCL. {line}", end]


def calls(results):
    """A table a clock: from the call until the GPU is done, and of the GPU alone, in a CUDA graph."""
    found = results.get("calls", [])
    if not found:
        return []

    def table(clock, columns):
        rows = []
        for one in found:
            shown = [one[clock][key] for key in columns]
            added = one[clock]["checked"] - one[clock]["unchecked"]
            name = f"`{one['call']}` of {one['bytes'] >> 20:,} MiB"
            rows.append([name, *map(report.number, shown), report.number(added)])
        return report.table(["µs", *columns.values(), "the check adds"], rows)

    on_gpu = {"checked": "default", "unchecked": "`check=False`", "torch": "torch's"}
    at_all = on_gpu | {"first": "first of its kind", "beside gloo": "beside gloo"}
    graphs = ["The GPU's time, of calls in a CUDA graph:", "", *table("gpu_us", on_gpu), ""]
    single = ["From the call until the GPU is done, of single calls to an idle GPU:", "", *table("us", at_all), ""]
    return [*graphs, *single]


def times(results):
    """A table of the other measurements."""
    header, rows = ["call", "dtype", "ours, µs", "torch's, µs", "torch's over ours", "ours, GB/s"], rows_of(results)
    if rows and len(rows[0]) > len(header):
        header.append("NCCL's symmetric kernels, µs")
    return [*report.table(header, rows), ""]


def sourced(part):
    return lambda results, root: [*source(results, root), *lines] if (lines := part(results)) else []


def main(arguments=None):
    report.run_page(
        __doc__, "ranks_report", PAGE, TIMES, {"ranks:calls": sourced(calls), "ranks:times": sourced(times)}, arguments
    )


if __name__ == "__main__":
    main()
