"""Times of functions that keep their input's shape, and of logarithms of rows, beside a copy, torch and torch.compile.

    python bench/rows.py                 the table
    python bench/rows.py --save          and keeps it in bench/results/<gpu>/rows.json
    python bench/rows.py --eager         without torch.compile
    python bench/rows.py --only NAME     one function, and its backward pass
    python bench/rows.py --seed N        other lengths beside the usual ones

softmax, log_softmax, rms_norm and layer_norm, forward and backward; cross_entropy, and the same with its gradient;
softmax over dim 0; logsumexp and log_prob, which write one number per row; and rounding to float8 behind the sum and
norm of two tensors, and behind silu(x) * y. It measures lengths that models have, and more
that the seed draws. GPU time in CUDA graphs, cold, as bench/grid.py takes it. The copy moves the same bytes; for
a backward pass it is the add of two tensors by torch, which reads two and writes one, and beside functions that only
read it is our sum of the rows. Each result is first compared with the CPU's bits (small inputs) or with torch's in
double precision. At the end: how many times as fast as each rival, as a geometric mean and at worst.
"""

import concurrent.futures
import functools
import math
import multiprocessing
import os
import random
import sys

import torch

import contenders
import parts
import slower
import torch_reduce
from family import clones
from torch_reduce.tuning.race import Race, same_bits

OPS = torch.ops.gpureduce
F = torch.nn.functional
EPS = 1e-5

ELEMENTS = 1 << 26
FEW = "64 rows of 4096"
LENGTHS = (64, 128, 768, 1001, 4095, 4096, 50_257, 50_304, 128_256)
DRAWN = 3  # lengths that the seed draws, evenly on a logarithmic scale


def shapes_of(seed):
    """Inputs of ELEMENTS elements, and two of few rows, by name."""
    drawn = random.Random(seed)
    lengths = [*LENGTHS, *(round(math.exp(drawn.uniform(math.log(16), math.log(1 << 17)))) for _ in range(DRAWN))]
    shapes = {f"rows of {length}": (ELEMENTS // length, length) for length in lengths}
    return shapes | {"64 rows of 151936": (64, 151_936), "1 row of 151936": (1, 151_936), FEW: (64, 4096)}


DTYPES = ("bfloat16", "float32")
CHECKED = 1 << 22  # elements of inputs that are compared with the CPU's bits
VOCABULARY = 100_000  # elements of rows that norms do not have


def _norm_of(ours, centered):
    def forward(x, w):
        if ours:
            return OPS._layer_norm(x, 1, w, w, EPS)[0] if centered else OPS._rms_norm(x, 1, w, EPS)[0]
        return F.layer_norm(x, x.shape[-1:], w, w, EPS) if centered else F.rms_norm(x, x.shape[-1:], w, EPS)

    def backward(x, w):
        grad, own = x
        n = own.shape[-1:]
        if ours and centered:
            mean, r = _numbers(own, True)
            return OPS._layer_norm_backward(grad, own, 1, mean, r, w, w, EPS, [True] * 3)
        if ours:
            return OPS._rms_norm_backward(grad, own, 1, _numbers(own, False)[1], w, EPS, [True] * 2)
        mean, r = _numbers(own, centered)
        if centered:
            return torch.ops.aten.native_layer_norm_backward(grad, own, n, mean, r, w, w, [True] * 3)
        return torch.ops.aten._fused_rms_norm_backward(grad, own, n, r, w, [True] * 2)

    return forward, backward


_kept = {}


def _numbers(x, centered):
    """Means and factors of rows, computed once per input's shape: what they are does not change the time."""
    key = (*x.shape, x.dtype, centered)
    if key not in _kept:
        r = torch.ones(x.shape[0], 1, device=x.device)
        _kept[key] = (torch.zeros_like(r), r)
    return _kept[key]


def _softmax_of(ours, logarithmic):
    name = "log_softmax" if logarithmic else "softmax"

    def forward(x, w):
        return getattr(OPS, name)(x, -1) if ours else getattr(torch, name)(x, -1)

    def backward(x, w):
        grad, result = x
        if ours:
            return getattr(OPS, f"_{name}_backward")(grad, result, -1, result.dtype)
        return getattr(torch.ops.aten, f"_{name}_backward_data")(grad, result, -1, result.dtype)

    return forward, backward


def _columns_of(ours, logarithmic):
    def forward(x, w):
        return OPS.softmax(x, 0) if ours else torch.softmax(x, 0)

    return forward, None


def _reading_of(ours, name):
    def forward(x, w):
        if name == "logsumexp":
            return torch_reduce.logsumexp(x, -1) if ours else torch.logsumexp(x, -1)
        return torch_reduce.log_prob(x, w) if ours else -F.cross_entropy(x, w, reduction="none")

    return forward, None


def _loss_of(ours, _):
    def forward(x, w):
        return torch_reduce.cross_entropy(x, w) if ours else F.cross_entropy(x, w)

    def backward(x, w):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(forward(x, w), x)[0]

    return forward, backward


def _rounded(y):
    """As models write it with torch's functions: a scale per 128 elements."""
    blocks = y.float().unflatten(-1, (-1, 128))
    scale = blocks.abs().amax(-1, keepdim=True) / 448
    return (blocks / scale).to(torch.float8_e4m3fn).flatten(-2), scale.squeeze(-1)


def _rounding_of(ours, norm):
    def forward(x, w):
        x, other = x
        n, to = x.shape[-1], torch_reduce.Fp8()
        if ours and norm:
            return torch_reduce.rms_norm(x, n, w, EPS, residual=other, quantize=to)
        if ours:
            return torch_reduce.silu_mul(x, other, quantize=to)
        if not norm:
            return _rounded(F.silu(x) * other)
        total = x + other
        return *_rounded(F.rms_norm(total, (n,), w, EPS)), total

    return forward, None


def same_bytes(name, x):
    """What a clone moves as many bytes of: half of what the function reads and writes."""
    if name not in ROUNDED:
        return x
    size = x.element_size()
    moved = 3 * size + 1 if name == ROUNDED[0] else 2 * size + 1
    return x.flatten().view(torch.uint8)[: x[0].numel() * moved // 2]


ROUNDED = ("rms_norm of a sum, in float8", "silu_mul, in float8")
MAKERS = {
    "softmax": (_softmax_of, False),
    "log_softmax": (_softmax_of, True),
    "rms_norm": (_norm_of, False),
    "layer_norm": (_norm_of, True),
    "cross_entropy": (_loss_of, None),
    "softmax over dim 0": (_columns_of, False),
    "logsumexp": (_reading_of, "logsumexp"),
    "log_prob": (_reading_of, "log_prob"),
    ROUNDED[0]: (_rounding_of, True),
    ROUNDED[1]: (_rounding_of, False),
}
PARTS = tuple(MAKERS)
READS = ("logsumexp", "log_prob", "cross_entropy")
CLASSES = ("log_prob", "cross_entropy")  # these take one per row


def functions_of(name, backward):
    make, kind = MAKERS[name]
    return make(True, kind)[backward], make(False, kind)[backward]


def cells(names, shapes, dtypes):
    for backward in (False, True):
        for name in names:
            for shape_name, shape in shapes.items():
                if name.endswith("norm") and shape[1] > VOCABULARY:
                    continue
                if (shape_name == FEW or name in ROUNDED) and (name not in ROUNDED or shape[1] % 128):
                    continue
                if functions_of(name, backward)[0] is None or (name == "softmax over dim 0" and shape[0] < 512):
                    continue
                for dtype in dtypes:
                    yield name, backward, shape_name, shape, getattr(torch, dtype)


def inputs_of(name, backward, shape, dtype, device="cuda"):
    generator = torch.Generator(device=device).manual_seed(1)
    pair = (backward and name not in READS) or name in ROUNDED
    x = torch.randn((2, *shape) if pair else shape, device=device, generator=generator)
    if backward and name.endswith("softmax"):
        x[1] = getattr(torch, name)(x[1], -1)
    weight = torch.rand(shape[-1], device=device, generator=generator).to(dtype) if "norm" in name else None
    if name in CLASSES:
        weight = torch.randint(shape[-1], shape[:1], device=device, generator=generator)
    return x.to(dtype), weight


def _compile_some(some_cells):
    torch._inductor.config.compile_threads = 1
    for name, backward, _, shape, dtype in some_cells:
        torch._dynamo.reset()
        x, weight = inputs_of(name, backward, shape, dtype)
        torch.compile(functions_of(name, backward)[1], dynamic=False)(x, weight)


def compile_ahead(all_cells):
    jobs = max(1, min(len(all_cells), (os.cpu_count() or 1) - 2))
    print("compiling torch's functions ...", flush=True)
    with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile_some, [all_cells[first::jobs] for first in range(jobs)]))


def first_of(result):
    return result[0] if isinstance(result, tuple) else result


def is_right(name, ours, theirs, x, weight):
    if name in ROUNDED:
        few = x[:, : min(x.shape[1], 16)].cpu()
        found, wanted = ours(x, weight), ours(few, None if weight is None else weight.cpu())
        return all(same_bits(one[: few.shape[1]].cpu(), other) for one, other in zip(found, wanted, strict=True))
    result = first_of(ours(x, weight))
    if x.numel() <= CHECKED:
        there = x.cpu(), None if weight is None else weight.cpu()
        return same_bits(result.cpu(), first_of(ours(*there)))
    wide = first_of(
        theirs(x.double(), weight.double() if weight is not None and weight.is_floating_point() else weight)
    )
    return torch.allclose(result.double(), wide, rtol=2e-2, atol=2e-2)


def measure(all_cells, compiles):
    race, rows = Race(5), []
    for name, backward, shape_name, shape, dtype in all_cells:
        ours, theirs = functions_of(name, backward)
        x, weight = inputs_of(name, backward, shape, dtype)
        if x.numel() <= 1 << 27 and not backward and not is_right(name, ours, theirs, x, weight):
            sys.exit(f"WRONG: {name} of {shape_name} {dtype}")
        functions = {"ours": lambda x, w=weight, f=ours: f(x, w), "torch": lambda x, w=weight, f=theirs: f(x, w)}
        pair = backward and name not in READS
        functions["copy"] = (
            (lambda x: torch.add(x[0], x[1])) if pair else lambda x, name=name: same_bytes(name, x).clone()
        )
        if name in READS and not backward:
            functions["copy"] = lambda x: torch_reduce.sum(x, -1)
        if compiles:
            torch._dynamo.reset()
            compiled = torch.compile(theirs, dynamic=False)
            functions["compiled"] = lambda x, w=weight, f=compiled: f(x, w)
            functions["compiled"](x)
        us, _ = race.times(
            clones(x), {k: (lambda x, f=f: first_of(f(x))) for k, f in functions.items()}, unlike=tuple(functions)
        )
        row = {"function": name + (" backward" if backward else ""), "shape": shape_name}
        row |= {
            "dtype": str(dtype).removeprefix("torch."),
            "us": us["ours"],
            "torch_us": us["torch"],
            "copy_us": us["copy"],
        }
        rows.append(row | ({"compiled_us": us["compiled"]} if compiles else {}))
        print(told(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    return rows


def told(row):
    line = f"{row['function'] + ', ' + row['shape'] + ', ' + row['dtype']:52} {row['us']:8.2f} µs"
    line += f", {row['copy_us'] / row['us']:.2f} of {'our sum' if row['function'] in READS else 'a copy'}'s speed"
    for rival in ("torch", "compiled"):
        if (took := row.get(f"{rival}_us")) is not None:
            line += f", {rival} {took:8.2f} ({took / row['us']:.2f}x)"
    return line


def summary(rows):
    """How many times as fast as each rival ours is: the geometric mean, the cells behind by 3%, and the worst."""
    for rival in ("torch", "compiled"):
        ratios = sorted(row[f"{rival}_us"] / row["us"] for row in rows if f"{rival}_us" in row)
        if ratios:
            mean, behind = math.exp(sum(map(math.log, ratios)) / len(ratios)), sum(ratio < 0.97 for ratio in ratios)
            print(f"{rival}: {mean:.2f} times its speed, behind in {behind} of {len(ratios)}, worst {ratios[0]:.2f}")


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS, compiles=True)
    parser.add_argument("--seed", type=int, default=0, help="what draws some of the lengths")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/rows.py needs an NVIDIA GPU")
    shapes = shapes_of(options.seed)
    all_cells = {name: list(cells([name], shapes, DTYPES)) for name in PARTS}
    facts = contenders.environment("rows.json") | {"seed": options.seed}

    @functools.cache  # once for all parts, as the processes take as long to start as many a part
    def compiled():
        if not options.eager:
            left = parts.missing("rows.json", PARTS, options, facts)
            compile_ahead([cell for name in left for cell in all_cells[name]])

    def part(name):
        compiled()
        return measure(all_cells[name], not options.eager)

    measured = {name: functools.partial(part, name) for name in PARTS}
    results = parts.run("rows.json", measured, options, facts)
    summary(slower.rows_of(results))


if __name__ == "__main__":
    main()
