"""Where another library is faster, by class of calls. It reads all results files except the ladder's and the
tests'. Standard library only.

A class is a function on one kind of inputs, against one rival. It has the cells of all GPUs. README has the worst
classes, docs/performance.md has all of them: report.py writes both.
"""

import dataclasses
import json
import statistics

import bars

SEGMENTS = {"segment_reduce": "torch.segment_reduce", "nested": "nested tensors", "index_add": "torch's index_add"}
OF_INDEX = {"atomics": "torch's atomics", "deterministic": "torch, deterministic"}


@dataclasses.dataclass
class Found:
    """The cells of a class, as (their time over ours, name, GPU), the worst first."""

    what: str
    rival: str
    cells: list

    @property
    def ratios(self):
        return [ratio for ratio, *_ in self.cells]

    @property
    def slower(self):
        return sum(ratio < 1 for ratio in self.ratios)

    @property
    def mean(self):
        return statistics.geometric_mean(self.ratios)


# What each kind of file has: (class, rival, cell, their time over ours).


def of_grid(results):
    for where, cases in (("", results["cases"]), (" on the CPU", results.get("cpu", {}).get("cases", []))):
        for case, rival, ratio in bars.ratios(cases):
            cell = case["name"].removeprefix(case["family"] + " ")
            yield f"`sum`{where}: {case['family']}", bars.RIVALS[rival], cell, ratio


def of_views(results):
    for row in results["views"]:
        yield "`sum`: random views", "torch", row["view"], row["torch_us"] / row["us"]


def beside(what, cell, row):
    """Of a row whose times stand beside ours as `torch_us` and `compiled_us`."""
    for key, rival in (("torch_us", "torch"), ("compiled_us", "torch.compile")):
        if key in row:
            yield what, rival, cell, row[key] / row["us"]


def of_family(results):
    for part, more in (("norms", ""), ("kin", ""), ("converted", ": other dtypes"), ("views", ": random views")):
        for row in results.get(part, []):
            name, *wide = ("vector_norm" if row["operation"].startswith("norm") else row["operation"]).split(" ", 1)
            cell = row["view"] if part == "views" else f"{row['shape']}, {row['dtype']}"
            cell = f"{row['operation']} of {cell}" if name == "vector_norm" else cell
            yield from beside(f"`{name}`{''.join(f' {word}' for word in wide)}{more}", cell, row)
    for row in results.get("lists", []):
        for ours, theirs in (("powsum", "torch powsum"), ("total norm", "torch total norm")):
            for clock, more in (("us", ""), ("host_us", ", the host")):
                what = f"`{'get_total_norm' if 'total' in ours else '_foreach_powsum'}`{more}"
                if ours in row and theirs in row:
                    yield what, "torch", f"{row['list']}, {row['dtype']}", row[theirs][clock] / row[ours][clock]


def of_weighted(results):
    for part, more in (("weighted", ""), ("weighted_views", ": random views")):
        for row in results.get(part, []):
            us = row["us"]
            cell = f"{row['view']}, {row['weight']}" if part == "weighted_views" else f"{row['case']}, {row['pair']}"
            for key, rival in (("eager", "torch"), ("compiled", "torch.compile")):
                if key in us:
                    yield f"`weighted_sum`{more}", rival, cell, us[key] / us["weighted_sum"]


def of_segments(results):
    for part in ("rows", "columns", "drawn"):
        for row in results.get(part, []):
            shape = " × ".join(f"{n:,}" for n in row["shape"])
            cell = f"{row['lengths']} in {shape} {row['dtype']}"
            for way, rival in SEGMENTS.items():
                if way in row["us"]:
                    yield "`segment_sum`", rival, cell, row["us"][way] / row["us"]["segment_sum"]


def rows_of(results):
    """All rows that bench/rows.py measured; its parts are functions."""
    return [row for part in results.values() if isinstance(part, list) for row in part]


def of_rows(results):
    for row in rows_of(results):
        name, *more = row["function"].split(" ", 1)
        comma = "," * name.endswith(",")
        what = f"`{name.removesuffix(',')}`{comma}{' ' if more else ''}{''.join(more)}"
        yield from beside(what, f"{row['shape']}, {row['dtype']}", row)


def of_index(results):
    for row in (*results.get("sums", []), *results.get("drawn", [])):
        cell = f"{row['entries']:,} x {row['columns']} {row['dtype']} into {row['outputs']:,}, {row['kind']}"
        for ours, more in (("plan", " with a plan"), ("sort", "")):
            for key, rival in OF_INDEX.items():
                if ours in row["us"] and key in row["us"]:
                    yield f"`index_sum`{more}", rival, cell, row["us"][key] / row["us"][ours]
    for row in results.get("embeddings", []):
        cell = f"{row['entries']:,} x {row['columns']} {row['dtype']} into {row['outputs']:,}, {row['kind']}"
        yield "`embedding`'s gradient", "torch", cell, row["us"]["torch"] / row["us"]["sort"]
    for row in results.get("graphs", []):
        for key, rival in OF_INDEX.items():
            yield "a step of a graph network", rival, f"{row['edges']:,} edges", row["us"][key] / row["us"]["ours"]


def of_exact(results):
    for row in results.get("sums", []):
        shape = f"({row['rows']:,}, {row['columns']:,}) dim {row['dim']}"
        shape += f" in segments of {row['segment']:,}" if row.get("segment") else ""
        for key, rival in (("torch", "torch, not exact"), ("ordered", "ours, not exact")):
            if key in row["us"]:
                what = f"`{row.get('function', 'sum')}` with `exact=True`"
                yield what, rival, f"{shape} {row['dtype']}, {row['data']}", row["us"][key] / row["us"]["exact"]


def is_noise(pair):
    """Whether some model with ours takes no longer than some model with torch's, and some other one does."""
    return min(pair["ours"]) <= max(pair["torch"]) and min(pair["torch"]) <= max(pair["ours"])


def of_models(results):
    for case in results.get("gradients", []):
        cell = f"({', '.join(map(str, case['shape']))}) {case['dtype']}"
        for how, pair in (("in a graph", case["us"]["both"]), ("eager", case["eager_us"])):
            yield f"`{case['operation']}` and its gradient, {how}", "torch", cell, pair["torch"] / pair["ours"]
    for calls in results.get("host", {}).values():
        (_, theirs), *ours = calls.items()
        for name, us in ours:
            for kind in ("plain", "grad"):
                yield f"`{name.split('.')[-1]}`, the host", "torch", f"{name}, {kind}", theirs[kind] / us[kind]
    for kind, pair in results.get("train", {}).items():
        if not is_noise(pair):
            ratio = statistics.median(pair["torch"]) / statistics.median(pair["ours"])
            yield "a step of `examples/train.py`", "torch", kind, ratio
    if "replace" in results:
        theirs, ours = (results["replace"][name]["ms"] for name in ("torch", "ours"))
        yield "a step under `replace_torch_sum()`", "torch", "an image's gradient", theirs / ours


def of_compiled(results):
    for name, rows in results.items():
        for row in rows if isinstance(rows, list) else ():
            times = row.get("us") or row["ms"]
            what = "a compiled step" if name == "steps" else f"`{name}` between products, compiled"
            cell = row["model"] if name == "steps" else f"({row['shape'][0]:,}, {row['shape'][1]:,}) {row['dtype']}"
            yield what, "torch.compile", cell, times["torch"] / times["fused"]


def of_ranks(results):
    gpus = f"{results['gpus']} ranks"
    for row in results.get("calls", []):
        cell = f"{row['bytes'] >> 20:,} MiB, {gpus}"
        for clock, more in (("us", ", a single call"), ("gpu_us", "")):
            yield f"`{row['call']}` of ranks{more}", "NCCL", cell, row[clock]["torch"] / row[clock]["checked"]
    for row in results.get("all_reduce", []):
        cell = f"{row['bytes'] >> 20:,} MiB {row['dtype']}, {gpus}"
        yield "`all_reduce` of ranks", "NCCL", cell, row["torch_us"] / row["us"]
    for row in results.get("sum", []):
        cell = f"2^{row['elements'].bit_length() - 1} {row['dtype']}, {gpus}"
        yield "`sum` of a Shard", "torch", cell, row["torch_us"] / row["us"]
    for row in results.get("clip", []):
        for name, function in (("norm", "get_total_norm"), ("clip", "clip_grad_norm_")):
            cell = f"{row['list']} {row['dtype']}, {gpus}"
            yield f"`{function}` of DTensors", "torch", cell, row[f"torch {name}"] / row[name]


FILES = {"grid": of_grid, "views": of_views, "family": of_family, "weighted": of_weighted, "segments": of_segments}
FILES |= {"rows": of_rows, "index": of_index, "exact": of_exact, "models": of_models, "ranks": of_ranks}
FILES |= {"compiled": of_compiled}
KINDS = {
    "grid": "sums of chosen shapes",
    "views": "sums of random views",
    "family": "norms, products, extrema, counts, variances",
    "weighted": "weighted sums",
    "segments": "sums of segments",
    "rows": "softmaxes, norms and losses of rows, and their gradients",
    "index": "sums by index",
    "exact": "exact sums",
    "models": "steps of models, and calls in them",
    "compiled": "functions of rows that Inductor fuses, and compiled steps of models",
    "ranks": "sums and norms over ranks",
}


def load(root):
    """[(kind, results)] of all files, sorted by kind and by folder."""
    places = [(kind, path) for kind in FILES for path in sorted((root / "bench" / "results").glob(f"*/{kind}.json"))]
    return [(kind, json.loads(path.read_text(encoding="utf-8"))) for kind, path in places]


def classes(loaded, split=True):
    """All of them, the one with the worst cell first; without `split` one a kind of files and rival."""
    found = {}
    for kind, results in loaded:
        for what, rival, cell, ratio in FILES[kind](results):
            name = what if split else KINDS[kind] + " on the CPU" * ("on the CPU" in what)
            cell = cell if split else f"{what}: {cell}"
            found.setdefault((name, rival), []).append((ratio, cell, results["gpu"]))
    made = [Found(what, rival, sorted(cells)) for (what, rival), cells in found.items()]
    return sorted(made, key=lambda one: one.cells[0])
