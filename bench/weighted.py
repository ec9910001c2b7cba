"""Measures weighted sums on a GPU, against torch's (x * w).sum() eager and compiled, and against our sum of x alone.

    python bench/weighted.py                every case in each pair of dtypes, and random views
    python bench/weighted.py --save         into bench/results/<gpu>/weighted.json
    python bench/weighted.py --save FILE    into FILE
    python bench/weighted.py --eager        without torch.compile, whose kernels take most of the time to make

Times are of the GPU, between kernels that do not start early, in a CUDA graph, with a cold cache
(torch_reduce/tuning/race.py). The rate counts the bytes of both inputs, each element once. Results are first compared
with the CPU's bits, where the inputs are small, or else with our sum of the product where that has the same bits.
"""

import dataclasses
import random
import sys

import torch

import contenders
import family
import family_report
import parts
from torch_reduce.tuning.problems import random_view
from torch_reduce.tuning.race import Race, same_bits

OPS = torch.ops.gpureduce
SLAB_BYTES = 4 << 30
CHECKED = 1 << 22  # elements of inputs whose bits are compared with the CPU's

# name: shapes of the input and the weight, and the reduced dims
CASES = {
    "all of 2^26": ((1 << 26,), (1 << 26,), (0,)),
    "rows of 4096": ((16384, 4096), (16384, 4096), (1,)),
    "rows of 100": ((1 << 20, 100), (1 << 20, 100), (1,)),
    "rows of 300": ((1 << 18, 300), (1 << 18, 300), (1,)),
    "columns of 4096": ((16384, 4096), (16384, 4096), (0,)),
    "columns of 100": ((1 << 20, 100), (1 << 20, 100), (0,)),
    "batch norm": ((64, 256, 56, 56), (64, 256, 56, 56), (0, 2, 3)),
    "rows, a weight a column": ((16384, 4096), (4096,), (1,)),
    "rows, a weight a row": ((16384, 4096), (16384, 1), (1,)),
    "columns, a weight a row": ((16384, 4096), (16384, 1), (0,)),
    "columns, a weight a column": ((16384, 4096), (4096,), (0,)),
    "all, one weight": ((1 << 26,), (), (0,)),
    "1024 rows of 1024": ((1024, 1024), (1024, 1024), (1,)),
    "rows of 2 experts": ((32768, 2, 1024), (32768, 2, 1), (1,)),
    "rows of 8 experts": ((8192, 8, 1024), (8192, 8, 1), (1,)),
}
VIEWS, VIEWS_LOG2 = 120, (11, 25)  # random views, and of how many elements
PAIRS = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float32, bool": (torch.float32, torch.bool),
    "bfloat16, bool": (torch.bfloat16, torch.bool),
    "int32": (torch.int32, torch.int32),
}


def made(shape, dtype, seed):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(shape, device="cuda", generator=generator)
    if dtype == torch.bool:
        return x > 0
    return x.to(dtype) if dtype.is_floating_point else x.mul_(1000).to(dtype)


def copies(shapes, dtypes):
    """As many pairs of inputs as make a cold graph, and one more."""
    x, w = (made(shape, dtype, seed) for seed, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)))
    number = max(3, min(25, SLAB_BYTES // (x.nbytes + w.nbytes)))
    return [(x, w)] + [(x.clone(), w.clone()) for _ in range(number - 1)]


def is_right(x, w, dims):
    """Whether the bits are the CPU's; or of large inputs, our sum's of the product, which is rounded as ours."""
    result = OPS.weighted_sum(x, w, dims)
    if x.numel() <= CHECKED:
        return same_bits(result, OPS.weighted_sum(x.cpu(), w.cpu(), dims))
    wide = torch.float32 if x.is_floating_point() else torch.int64
    return same_bits(result, OPS.sum(x.to(wide) * w.to(wide), dims, dtype=result.dtype))


def measure(compiles, only):
    """A row a case and pair of dtypes."""
    race, rows = Race(5), []
    for case, (*shapes, dims) in CASES.items():
        for pair, dtypes in PAIRS.items():
            if only and only not in f"{case}, {pair}":
                continue
            inputs = copies(shapes, dtypes)
            x, w = inputs[0]
            if not is_right(x, w, dims):
                sys.exit(f"WRONG: {case}, {pair}")

            def product(x, w, dims=dims):
                return (x * w).sum(dims)

            functions = {
                "weighted_sum": lambda both, d=dims: OPS.weighted_sum(*both, d),
                "sum": lambda both, d=dims: OPS.sum(both[0], d),
                "eager": lambda both, f=product: f(*both),
            }
            if compiles:
                torch._dynamo.reset()
                compiled = torch.compile(product, dynamic=False)
                functions["compiled"] = lambda both, f=compiled: f(*both)
            us, _ = race.times(inputs, functions, unlike=tuple(functions))
            row = {"case": case, "pair": pair, "bytes": x.nbytes + w.nbytes, "sum_bytes": x.nbytes, "us": us}
            rows.append(row)
            print(told(row), flush=True)
            del inputs, x, w
            torch.cuda.empty_cache()
    return rows


def views():
    """A row a random view and weight: of each element, of each along the other dims, or laid out otherwise."""
    rng, race, rows = random.Random(1), Race(3), []
    for _ in family.counted(VIEWS):
        view = random_view(rng, *VIEWS_LOG2)
        view = dataclasses.replace(view, dtype=rng.choice((torch.float32, torch.bfloat16, torch.int32)))
        inputs = [view.of(x) for x in family.copies((view.elements(),), view.dtype)]
        kind = rng.choice(("its own", "broadcast", "contiguous"))
        w = view.of(made((view.elements(),), view.dtype, 2))
        w = {"its own": w, "broadcast": w[..., :1], "contiguous": w.contiguous()}[kind]
        x, dims = inputs[0], list(view.dims)
        if x.numel() <= CHECKED and not is_right(x, w, dims):
            sys.exit(f"WRONG: {view}, {kind}")
        functions = {
            "weighted_sum": lambda x, w=w, d=dims: OPS.weighted_sum(x, w, d),
            "sum": lambda x, d=dims: OPS.sum(x, d),
            "eager": lambda x, w=w, d=dims: (x * w).sum(d),
        }
        us, _ = race.times(inputs, functions, unlike=tuple(functions))
        rows.append({"view": str(view), "weight": kind, "us": us})
        del inputs, x, w, functions
    print(f"{len(rows)} random views: {family_report.all_views(rows)}")
    return rows


def told(row):
    """A row as text. The share is that of our sum's rate."""
    us = row["us"]
    ours = us["weighted_sum"]
    share = row["bytes"] / ours / (row["sum_bytes"] / us["sum"])
    others = ", ".join(
        f"{name} {us[name]:.1f} ({us[name] / ours:.2f}x)" for name in us if name not in ("weighted_sum", "sum")
    )
    return (
        f"{row['case'] + ', ' + row['pair']:42} {ours:8.2f} µs {row['bytes'] / ours / 1e6:5.2f} TB/s, "
        f"{share:.3f} of our sum's {us['sum']:.1f}; {others}"
    )


PARTS = ("weighted", "weighted_views")


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS, compiles=True)
    parser.add_argument("--cases", metavar="TEXT", help="measure the cases whose names contain this")
    options = parser.parse_args(arguments)
    if options.cases and options.save is not None:
        parser.error("--cases measures a part of a part, which is not kept")
    if not torch.cuda.is_available():
        sys.exit("bench/weighted.py needs an NVIDIA GPU")
    measured = {"weighted": lambda: measure(not options.eager, options.cases), "weighted_views": views}
    parts.run("weighted.json", measured, options, contenders.environment("weighted.json"))


if __name__ == "__main__":
    main()
