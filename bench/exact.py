"""Measures exact sums and sums of exact products on a GPU, beside ordinary ones and torch's, on data of several kinds.

    python bench/exact.py                a minute: every case
    python bench/exact.py --save         into bench/results/<gpu>/exact.json
    python bench/exact.py --save FILE    into FILE

Times are of the GPU, between kernels that do not start early, in a CUDA graph, with a cold cache
(torch_reduce/tuning/race.py). Some results of each case are first compared with Python's fractions.
"""

import dataclasses
import fractions
import functools
import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor

import contenders
import family
import parts
import torch_reduce
from torch_reduce.tuning.race import Race

CHECKED = 5  # results, of up to MOST elements
MOST = 100_000
LARGE, HALF = 1 << 28, torch.bfloat16


@dataclasses.dataclass(frozen=True)
class Case:
    rows: int
    columns: int
    dim: int | None  # None: all elements
    dtype: torch.dtype = torch.float32
    data: str = "normal"
    segment: int = 0  # the rows of each segment; 0: there are no segments
    function: str = "sum"  # or dot, of two rows; vector_norm; weighted_sum, of rows with one weight per column

    def functions(self) -> dict[str, Callable[[Tensor], Tensor]]:
        if self.segment:
            offsets = torch.arange(0, self.rows + 1, self.segment, device="cuda")
            return {
                "exact": lambda x: torch_reduce.segment_sum(x, offsets, exact=True),
                "ordered": lambda x: torch_reduce.segment_sum(x, offsets),
            }
        calls = {  # as (ours, torch's)
            "sum": (lambda x, **exact: torch_reduce.sum(x, self.dim, **exact), lambda x: torch.sum(x, self.dim)),
            "dot": (lambda x, **exact: torch_reduce.dot(*x, **exact), lambda x: torch.dot(*x)),
            "vector_norm": (
                lambda x, **exact: torch_reduce.vector_norm(x, dim=self.dim, **exact),
                lambda x: torch.linalg.vector_norm(x, dim=self.dim),
            ),
            "weighted_sum": (
                lambda x, **exact: torch_reduce.weighted_sum(x, weight_of(self), self.dim, **exact),
                lambda x: torch.mv(x, weight_of(self)),
            ),
        }
        ours, torchs = calls[self.function]
        return {"exact": lambda x: ours(x, exact=True), "ordered": ours, "torch": torchs}

    def addends(self, x: Tensor) -> Tensor:
        """(results, elements of each): products are exact in float64."""
        if self.function == "dot":
            return x[:1].double() * x[1:].double()
        if self.function != "sum":
            return x.double() * (x if self.function == "vector_norm" else weight_of(self)).double()
        if self.segment:
            return x.view(-1, self.segment, self.columns).transpose(1, 2).flatten(0, 1)
        return x.reshape(1, -1) if self.dim is None else x if self.dim == 1 else x.t()

    def make(self) -> Tensor:
        x = torch.randn(self.rows, self.columns, device="cuda")
        if self.data == "gradients":
            x *= 1e-4 * torch.exp(2 * torch.randn_like(x))
        elif self.data == "cancelling":  # each element but the last has its negative
            x[self.rows // 2 :] = -x[: self.rows // 2].flip(0)
        elif self.data == "any magnitude":  # over most of float32's exponents
            x = torch.randn_like(x) * torch.exp2(torch.randint(-120, 120, x.shape, device="cuda"))
        return x.to(self.dtype)


SHAPES = [
    (1, LARGE, None),
    (LARGE // 4096, 4096, 1),
    (LARGE // 1000, 1000, 1),
    (LARGE // 128, 128, 1),
    (LARGE // 32, 32, 1),
    (LARGE // 8, 8, 1),
    (LARGE // 4096, 4096, 0),
    (LARGE // 64, 64, 0),
    (1 << 20, 16, None),
]
CASES = [Case(*shape) for shape in SHAPES]
CASES += [Case(rows, columns, dim, HALF) for rows, columns, dim in SHAPES]
CASES += [Case(*shape, torch.float16) for shape in SHAPES[:2]]
CASES += [
    Case(max(rows // 2, 1), columns // (2 if rows == 1 else 1), dim, torch.float64) for rows, columns, dim in SHAPES
]
CASES += [Case(*SHAPES[i], data=data) for data in ("gradients", "cancelling", "any magnitude") for i in (1, 3, 4, 6)]
CASES += [
    Case(LARGE // 4 // columns, columns, 0, dtype, segment=segment)
    for dtype in (torch.float32, torch.float64)
    for columns in (1, 64)
    for segment in (1, 32, 4096, LARGE // 4 // columns)
]
for dtype in (torch.float32, HALF):
    elements = (1 << 26) // dtype.itemsize
    CASES += [Case(2, elements, None, dtype, function="dot")]
    CASES += [Case(elements // 4096, 4096, 1, dtype, function=name) for name in ("vector_norm", "weighted_sum")]


@functools.cache
def weight_of(case: Case) -> Tensor:
    return torch.randn(case.columns, device="cuda").to(case.dtype)


def check(rows, result, power=1):
    """Checks of some results that neither neighbouring number is nearer to the exact sum of a row, or to its root."""
    results = result.reshape(-1).cpu()
    if rows.shape[1] > MOST:
        return
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[result.dtype.itemsize]
    rng = random.Random(1)
    for k in {0, len(results) - 1, *(rng.randrange(len(results)) for _ in range(CHECKED))}:
        total = sum(map(fractions.Fraction, rows[k].double().tolist()), fractions.Fraction())
        bits = results[k : k + 1].view(integer)
        steps = (0, -1, 1) if bits.any() else (0, 0, 0)
        number, *near = [fractions.Fraction((bits + step).view(result.dtype).item()) for step in steps]
        least, most = sorted((number + other) / 2 for other in near)  # what is rounded to the number
        if not least**power <= total <= most**power:
            told = f"{tuple(rows.shape)} {result.dtype}: {results[k]}, not {float(total) ** (1 / power)}"
            sys.exit(f"WRONG: result {k} of {len(results)}, {told}")


def measure(race):
    rows = []
    for case in CASES:
        x = case.make()
        functions = case.functions()
        check(case.addends(x), functions["exact"](x), 2 if case.function == "vector_norm" else 1)
        torch.cuda.synchronize()  # the race has a stream of its own
        us, _ = race.times(family.clones(x), functions, unlike=tuple(functions))
        rows.append(dataclasses.asdict(case) | {"dtype": str(case.dtype)[6:], "us": us})
        times = ", ".join(f"{name} {value:.1f}" for name, value in us.items())
        over = f"segments of {case.segment}" if case.segment else f"over {case.dim}"
        what = f"{case.function} of {case.rows} x {case.columns} {over}"
        print(f"{what} {rows[-1]['dtype']} {case.data}: {times} µs", flush=True)
        del x
        torch.cuda.empty_cache()
    return rows


PARTS = ("sums",)


def main(arguments=None):
    parser = parts.parser(__doc__, PARTS)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.exit("bench/exact.py needs an NVIDIA GPU")
    parts.run("exact.json", {"sums": lambda: measure(Race(5))}, options, contenders.environment("exact.json"))


if __name__ == "__main__":
    main()
