"""Random problems: what plans are measured on, so that no choice among them is made for a shape that somebody chose."""

import dataclasses
import itertools
import math
import random

import torch
from torch import Tensor

KINDS = ("contiguous", "views", "odd", "mixed")
DTYPES = ("float32", "float32", "float32", "bfloat16", "bfloat16", "bfloat16", "float16", "float64", "int8", "int32")
DTYPES += ("int64", "float8_e5m2", "complex64", "bool")
VIEW_DTYPES = 4 * [torch.float32] + 3 * [torch.bfloat16] + [torch.float16, torch.float64, torch.complex64]
VIEW_DTYPES += [torch.int8, torch.int32, torch.int64]
MOST_BYTES = 1 << 30  # of a view's memory


@dataclasses.dataclass(frozen=True)
class Problem:
    """A view of elements from ``offset`` on, and the dims that are summed."""

    kind: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dims: tuple[int, ...]

    def elements(self) -> int:
        """That lie between the first and the last, and ``offset`` before."""
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    def of(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self.sizes, self.strides, self.offset)

    def bytes(self) -> int:
        return self.elements() * getattr(torch, self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class View:
    """``torch.empty(stored).view(...)``, from ``offset`` elements on, cut in each dim by a slice, and permuted."""

    dtype: torch.dtype
    stored: tuple[int, ...]
    slices: tuple[tuple[int, int, int], ...]  # (start, stop, step) of each stored dim
    order: tuple[int, ...]  # the stored dim that each dim is
    offset: int
    dims: tuple[int, ...]  # that are summed

    def elements(self) -> int:
        return math.prod(self.stored) + self.offset

    def of(self, flat: Tensor) -> Tensor:
        cut = tuple(slice(*s) for s in self.slices)
        return flat[self.offset : self.elements()].view(self.stored)[cut].permute(self.order)

    def __str__(self) -> str:
        names = (
            ":" if s == (0, n, 1) else ":".join(str(v) for v in (s if s[2] > 1 else s[:2]))
            for s, n in zip(self.slices, self.stored, strict=True)
        )
        text = f"{str(self.dtype).removeprefix('torch.')} {self.stored}"
        if any(s != (0, n, 1) for s, n in zip(self.slices, self.stored, strict=True)):
            text += f"[{', '.join(names)}]"
        if self.order != tuple(range(len(self.order))):
            text += f".permute{self.order}"
        return f"{text} dims {self.dims}" + (f", offset {self.offset}" if self.offset else "")


def random_view(rng: random.Random, low: float, high: float) -> View:
    """One with about 2^low to 2^high elements."""
    while True:
        dtype, rank, log2 = rng.choice(VIEW_DTYPES), rng.choice((1, 2, 2, 3, 3, 4, 4, 5)), rng.uniform(low, high)
        cuts = [0, *sorted(rng.random() for _ in range(rank - 1)), 1]
        sizes = [max(1, round(2 ** (log2 * (b - a)))) for a, b in itertools.pairwise(cuts)]
        if rng.random() < 0.5:
            sizes = [n // 8 * 8 if n > 16 else n for n in sizes]
        stored, slices = [], []
        for n in sizes:
            kind = rng.choice(("all", "all", "crop", "all", "step"))
            before, after = (rng.choice((0, 1, 4)), rng.choice((1, 2, 4, 8))) if kind == "crop" else (0, 0)
            step = rng.choice((2, 3)) if kind == "step" else 1
            stored.append((before + n + after) * step)
            slices.append((before, (before + n) * step, step))
        order = list(range(rank))
        if rng.random() < 0.4:
            rng.shuffle(order)
        dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank))))
        view = View(dtype, tuple(stored), tuple(slices), tuple(order), rng.choice((0, 0, 0, 0, 0, 1, 4)), dims)
        if view.elements() * dtype.itemsize <= MOST_BYTES:
            return view


def random_problem(rng: random.Random, kind: str) -> Problem:
    """One of KINDS; of "mixed", one of the others."""
    if kind == "mixed":
        kind = rng.choice(("contiguous", "contiguous", "contiguous", "views", "views", "odd"))
    draw = {"contiguous": _contiguous, "views": _view, "odd": _odd_rows}
    return draw[kind](rng)


def _split(rng, elements, parts):
    """Sizes whose product is about `elements`."""
    log = math.log2(max(1, elements))
    cuts = [0, *sorted(rng.random() for _ in range(parts - 1)), 1]
    return [max(1, round(2 ** (log * (b - a)))) for a, b in itertools.pairwise(cuts)]


def _rounded(rng, n):
    """A size as models have them, or any."""
    kind = rng.random()
    if kind < 0.35 or n < 9:
        return n
    if kind < 0.55:
        return 1 << (n.bit_length() - 1)
    return n // 8 * 8 if n < 512 or kind < 0.8 else n // 64 * 64


def _contiguous(rng, low=11, high=29.6):
    """A tensor of 2^low to 2^high bytes: all of it, rows, columns, a middle dim, or the dims of a batch norm."""
    dtype = rng.choice(DTYPES)
    size = getattr(torch, dtype).itemsize
    elements = max(4, 2 ** rng.uniform(low, high) / size)
    kind = rng.choice(("full", "rows", "rows", "columns", "columns", "middle", "norm"))
    parts = {"full": 1, "rows": 2, "columns": 2, "middle": 3, "norm": 3}[kind]
    sizes = [_rounded(rng, n) for n in _split(rng, elements, parts)]
    dims = {"full": (0,), "rows": (1,), "columns": (0,), "middle": (1,), "norm": (0, 2)}[kind]
    if kind == "norm" and rng.random() < 0.3:  # channels last
        dims = (0, 1)
    strides = torch.empty(sizes, device="meta").stride()
    return Problem(kind, dtype, tuple(sizes), strides, 0, dims)


def _odd_rows(rng, low=12, high=29):
    """Rows of 2 to 16384 elements, of any size: contiguous, so mostly at odd addresses."""
    dtype = rng.choice(DTYPES)
    length = max(2, _rounded(rng, round(2 ** rng.uniform(1, 14))))
    rows = max(1, round(2 ** rng.uniform(low, high) / getattr(torch, dtype).itemsize / length))
    return Problem("odd", dtype, (rows, length), (length, 1), 0, (1,))


def _view(rng, low=12, high=27):
    view = random_view(rng, low, high)
    x = view.of(torch.empty(view.elements(), dtype=torch.int8, device="meta"))
    dtype = str(view.dtype).removeprefix("torch.")
    return Problem("view", dtype, tuple(x.shape), x.stride(), x.storage_offset(), view.dims)
