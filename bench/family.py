"""Measures the operations beside sum on a GPU, against torch's own and against our sum of the same input.

    python bench/family.py                five minutes: every operation on 8 shapes in 2 to 4 dtypes, and lists
    python bench/family.py --save         into bench/results/<gpu>/family.json
    python bench/family.py --save FILE    into FILE
    python bench/family.py --only lists   one part: norms, kin (all other operations), lists, converted (rare dtypes,
                                          of which most are converted at run time; against torch's eager time), or
                                          views (random views of all of these; against torch's eager time)
    python bench/family.py --eager        without torch.compile, whose kernels take most of the time to make

Times are of the GPU, between kernels that do not start early, in a CUDA graph, with a cold cache
(torch_reduce/tuning/race.py). torch.compile has its default options. A list is what clipping gradients sums: hundreds
of tensors in one call, timed in a graph of its own, with the host's time of the call beside it. Results are first
compared with the CPU's bits, where the input is small, or else with torch's.
"""

import concurrent.futures
import dataclasses
import functools
import multiprocessing
import random
import statistics
import sys
import time

import torch

import contenders
import parts
import torch_reduce
from torch_reduce.tuning.problems import random_view
from torch_reduce.tuning.race import HEAD_START, Flush, Race, same_bits

OPS = torch.ops.gpureduce
DTYPES = (torch.float32, torch.bfloat16)
CHECKED = 1 << 22  # elements of inputs whose bits are compared with the CPU's
SLAB_BYTES = 2 << 30
VIEWS, VIEWS_LOG2 = 400, (12, 25)  # random views, and of how many elements
INFINITY = float("inf")


def norm(ord):
    """Ours and torch's."""
    return tuple(lambda x, dim, f=f: f(x, ord, dim) for f in (OPS.linalg_vector_norm, torch.linalg.vector_norm))


# name: (ours, torch's, dtypes)
NORMS = {f"norm {ord}": (*norm(ord), DTYPES) for ord in (2, 1, INFINITY, 0, 3)}


def of_one_dim(function):
    """A function of torch that takes one dim: of several, as one."""

    def reduce(x, dims):
        if len(dims) == 1:
            return function(x, dims[0])
        kept = [d for d in range(x.dim()) if d not in dims]
        return function(x.permute(*kept, *dims).flatten(len(kept)), -1)

    return reduce


KIN = {
    "nansum": (OPS.nansum, torch.nansum, DTYPES),
    "prod": (OPS.prod, of_one_dim(torch.prod), (*DTYPES, torch.int32)),
    "amax": (OPS.amax, torch.amax, (*DTYPES, torch.int32, torch.uint8)),
    "amin": (OPS.amin, torch.amin, DTYPES),
    "argmax": (OPS.argmax, of_one_dim(torch.argmax), (*DTYPES, torch.int32)),
    "argmin": (OPS.argmin, of_one_dim(torch.argmin), DTYPES),
    "any": (OPS.any, torch.any, (*DTYPES, torch.int32, torch.bool)),
    "all": (OPS.all, torch.all, (*DTYPES, torch.bool)),
    "var": (lambda x, d: OPS.var(x, d), lambda x, d: torch.var(x, d), DTYPES),
    "var_mean": (lambda x, d: OPS.var_mean(x, d)[1], lambda x, d: torch.var_mean(x, d)[1], DTYPES),
    "logsumexp": (OPS.logsumexp, torch.logsumexp, DTYPES),
    "count_nonzero": (OPS.count_nonzero, torch.count_nonzero, (*DTYPES, torch.int32, torch.bool)),
}
# Of rare dtypes, of which most are converted at run time, as no kernels are compiled for them.
HALF, DOUBLE = torch.float16, torch.float64
CONVERTED = {
    "amax": (*KIN["amax"][:2], (DOUBLE, torch.int16)),
    "prod": (*KIN["prod"][:2], (HALF, DOUBLE)),
    "nansum": (*KIN["nansum"][:2], (HALF, DOUBLE)),
    "logsumexp": (*KIN["logsumexp"][:2], (HALF, DOUBLE)),
    "var": (*KIN["var"][:2], (DOUBLE,)),
    "norm 1": (*norm(1), (torch.complex64,)),
    "norm inf": (*norm(INFINITY), (DOUBLE, torch.complex64)),
    "norm -inf": (*norm(-INFINITY), (torch.complex64,)),
    "norm 3": (*norm(3), (HALF, torch.complex64)),
    "any": (*KIN["any"][:2], (torch.complex128,)),
    "sum to float32": (
        lambda x, d: OPS.sum(x, d, dtype=torch.float32),
        lambda x, d: torch.sum(x, d, dtype=torch.float32),
        (torch.int64,),
    ),
}
SHAPES = {
    "all of 2^26": ((1 << 26,), (0,)),
    "rows of 100": ((1 << 20, 100), (1,)),
    "rows of 4096": ((16384, 4096), (1,)),
    "rows of 50257": ((512, 50257), (1,)),
    "columns": ((8192, 8192), (0,)),
    "batch norm": ((64, 256, 56, 56), (0, 2, 3)),
    "1024 rows of 1024": ((1024, 1024), (1,)),
    "all of 4096": ((4096,), (0,)),
}


def clones(x):
    """As many inputs as make a cold graph, and one more."""
    return [x.clone() for _ in range(max(2, min(25, SLAB_BYTES // x.nbytes)))]


def copies(shape, dtype):
    """The same of random elements."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    if dtype.is_complex:
        x = torch.randn(shape, device="cuda", generator=generator, dtype=dtype)
    elif dtype.is_floating_point:
        x = (1 + torch.randn(shape, device="cuda", generator=generator) / 256).to(dtype)  # whose products stay numbers
    else:
        x = torch.randint(0, 2, shape, device="cuda", generator=generator, dtype=dtype)
    return clones(x)


def is_right(ours, torchs, x, dims):
    """Whether a result has the CPU's bits where the input is small, or else is near torch's in double precision."""
    result = ours(x, dims)
    if x.numel() <= CHECKED:
        return same_bits(result, ours(x.cpu(), dims))
    wide = x.double() if x.is_floating_point() else x
    return torch.allclose(result.double(), torchs(wide, dims).to(result.dtype).double(), rtol=1e-2)


def compiled(torchs, dims):
    torch._dynamo.config.recompile_limit = 64  # to dynamo they are all one function, compiled again and again
    return torch.compile(lambda x: torchs(x, dims), dynamic=False)


def _compile_some(names, first, jobs):
    """Runs every `jobs`-th cell once, compiled: the kernel is then in inductor's cache on disk."""
    torch._inductor.config.compile_threads = 1
    operations = {**NORMS, **KIN}
    cells = [(shape, dims, *operations[name][1:]) for shape, dims in SHAPES.values() for name in names]
    cells = [(shape, dims, torchs, dtype) for shape, dims, torchs, dtypes in cells for dtype in dtypes]
    for shape, dims, torchs, dtype in cells[first::jobs]:
        torch._dynamo.reset()
        compiled(torchs, dims)(torch.ones(shape, device="cuda", dtype=dtype))


def compile_ahead(names, jobs=8):
    """In processes side by side, as one after the other would take minutes."""
    print(f"compiling torch's {', '.join(names)} ...", flush=True)
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_some, [list(names)] * jobs, range(jobs), [jobs] * jobs))


def cells(operations, compiles):
    """A row a cell: microseconds of ours, of torch's, eager and compiled, and of our sum."""
    race, rows = Race(5), []
    if compiles:
        compile_ahead(operations)
    for shape_name, (shape, dims) in SHAPES.items():
        for dtype in dict.fromkeys(dtype for *_, dtypes in operations.values() for dtype in dtypes):
            inputs = copies(shape, dtype)
            functions = {"sum": lambda x, d=dims: OPS.sum(x, d)}
            torch._dynamo.reset()
            taken = {name: calls for name, (*calls, dtypes) in operations.items() if dtype in dtypes}
            for name, (ours, torchs) in taken.items():
                if not is_right(ours, torchs, inputs[0], dims):
                    sys.exit(f"WRONG: {name} of {shape_name} {dtype}")
                functions[name] = lambda x, f=ours, d=dims: f(x, d)
                functions["torch " + name] = lambda x, f=torchs, d=dims: f(x, d)
                if compiles:
                    functions["compiled " + name] = compiled(torchs, dims)
                    functions["compiled " + name](inputs[0])
            us, _ = race.times(inputs, functions, unlike=tuple(functions))
            for name in taken:
                row = {"operation": name, "shape": shape_name, "dtype": str(dtype).removeprefix("torch.")}
                row |= {"us": us[name], "torch_us": us["torch " + name], "sum_us": us["sum"]}
                rows.append(row | ({"compiled_us": us["compiled " + name]} if compiles else {}))
                print(told({"kin": rows[-1:]})[0], flush=True)
            del inputs
            torch.cuda.empty_cache()
    return rows


def norms(compiles):
    return cells(NORMS, compiles)


def kin(compiles):
    return cells(KIN, compiles)


def converted(_):
    return cells(CONVERTED, False)


def counted(number):
    """The numbers below it, with progress on stderr, and the GPU's memory given back now and then."""
    for i in range(number):
        if i % 20 == 0:
            print(f"\r{i} of {number} views", end="", file=sys.stderr, flush=True)
            torch.cuda.empty_cache()
        yield i
    print(file=sys.stderr)


def views(_):
    """A row a random view and operation: microseconds of ours, of torch's and of our sum."""
    rng, race, rows = random.Random(1), Race(3), []
    operations = [
        (name, ours, torchs, dtype)
        for part in (NORMS, KIN, CONVERTED)
        for name, (ours, torchs, dtypes) in part.items()
        for dtype in dtypes
    ]
    for _ in counted(VIEWS):
        name, ours, torchs, dtype = rng.choice(operations)
        view = dataclasses.replace(random_view(rng, *VIEWS_LOG2), dtype=dtype)
        inputs, dims = [view.of(x) for x in copies((view.elements(),), dtype)], list(view.dims)
        if not is_right(ours, torchs, inputs[0], dims):
            sys.exit(f"WRONG: {name} of {view}")
        functions = {"ours": ours, "torch": torchs, "sum": OPS.sum}
        calls = {who: lambda x, f=f, d=dims: f(x, d) for who, f in functions.items()}
        us, _ = race.times(inputs, calls, unlike=("torch", "sum"))
        row = {"operation": name, "view": str(view), "us": us["ours"], "torch_us": us["torch"], "sum_us": us["sum"]}
        rows.append(row)
    print("\n".join(told({"views": rows})), flush=True)
    return rows


# --- lists ------------------------------------------------------------------------------------------------------------


def lengths(kind):
    """Elements of each tensor of a list."""
    rng = random.Random(1)
    if kind == "300 of 1":
        return [1] * 300
    if kind == "300 of 10,000":
        return [10_000] * 300
    if kind == "300 of 1 to 10^6":
        return [round(10 ** rng.uniform(0, 6)) for _ in range(300)]
    layer = [4096 * 4096] * 2 + [1024 * 4096] * 2 + [14336 * 4096] * 3 + [4096] * 2  # of a model of 8e9 parameters
    return layer * 7 + [4096]


LISTS = ("300 of 1", "300 of 10,000", "300 of 1 to 10^6", "7 layers of 8B")


def host_us(call, calls=40):
    """The median of the host's time of a call while the GPU has other work."""
    call()
    torch.cuda.synchronize()
    took = []
    for _ in range(calls):
        torch.cuda._sleep(HEAD_START)
        begin = time.perf_counter()
        call()
        took.append(1e6 * (time.perf_counter() - begin))
        torch.cuda.synchronize()
    return statistics.median(took)


def graph_us(call, flush, repeats=15):
    """The median of a graph of one call, with a cold cache."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    marks = []
    for _ in range(repeats):
        flush()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    return 1e3 * statistics.median(start.elapsed_time(end) for start, end in marks[2:])


def list_calls(tensors):
    return {
        "powsum": lambda: OPS._foreach_powsum(tensors, 2, dtype=torch.float32),
        "torch powsum": lambda: torch._foreach_powsum(tensors, 2, dtype=torch.float32),
        "torch norm": lambda: torch._foreach_norm(tensors, 2),
        "total norm": lambda: torch_reduce.get_total_norm(tensors),
        "torch total norm": lambda: torch.nn.utils.get_total_norm(tensors),
    }


def lists(_):
    """A row a list and dtype: microseconds of the GPU and the host, ours and torch's."""
    flush, rows = Flush(), []
    for kind in LISTS:
        for dtype in DTYPES:
            slab = torch.randn(1 << 24, device="cuda").to(dtype)
            tensors = []
            for n in lengths(kind):
                tensors.append(torch.empty(n, dtype=dtype, device="cuda"))
                for begin in range(0, n, slab.numel()):
                    part = tensors[-1][begin : begin + slab.numel()]
                    part.copy_(slab[: part.numel()])
            alone = torch.stack([OPS.linalg_powsum(t, 2, dtype=torch.float32) for t in tensors])
            if not same_bits(OPS._powsums(tensors, 2, dtype=torch.float32), alone):
                sys.exit(f"WRONG: {kind} {dtype}")
            row = {"list": kind, "dtype": str(dtype).removeprefix("torch.")}
            row["bytes"] = sum(t.numel() for t in tensors) * dtype.itemsize
            for name, call in list_calls(tensors).items():
                row[name] = {"us": graph_us(call, flush), "host_us": host_us(call)}
            rows.append(row)
            del tensors, slab
            torch.cuda.empty_cache()
    print("\n".join(told({"lists": rows})), flush=True)
    return rows


PARTS = {"norms": norms, "kin": kin, "converted": converted, "views": views, "lists": lists}


def told(results):
    """What was measured, as text."""
    lines = []
    for row in [row for part in ("norms", "kin", "converted") for row in results.get(part, [])]:
        name = f"{row['operation']}, {row['shape']}, {row['dtype']}"
        line = f"{name:44} {row['us']:8.2f} µs"
        for rival in ("torch", "compiled", "sum"):
            if (took := row.get(f"{rival}_us")) is not None:
                line += f", {rival} {took:8.2f} ({took / row['us']:.2f}x)"
        lines.append(line)
    if rows := results.get("views"):
        ratios = sorted(((row["torch_us"] / row["us"], row) for row in rows), key=lambda pair: pair[0])
        mean = statistics.geometric_mean(ratio for ratio, _ in ratios)
        behind = sum(ratio < 1 for ratio, _ in ratios)
        lines.append(f"{len(rows)} random views: torch's time over ours {mean:.2f}; torch is faster in {behind}")
        for ratio, row in ratios[:behind]:
            times = f"{row['us']:8.2f} µs, sum {row['sum_us']:8.2f}"
            lines.append(f"    {ratio:5.2f} {times}  {row['operation']:14} {row['view']}")
    for row in results.get("lists", []):
        lines.append(f"{row['list']}, {row['dtype']}, {row['bytes'] / 2**20:.1f} MiB")
        for name, took in row.items():
            if isinstance(took, dict):
                rate = row["bytes"] / took["us"] / 1e6
                lines.append(f"    {name:18} {took['us']:8.1f} µs ({rate:.2f} TB/s), host {took['host_us']:7.1f} µs")
    return lines


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS, compiles=True)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/family.py needs an NVIDIA GPU")
    measured = {name: functools.partial(measure, not options.eager) for name, measure in PARTS.items()}
    parts.run("family.json", measured, options, contenders.environment("family.json"))


if __name__ == "__main__":
    main()
