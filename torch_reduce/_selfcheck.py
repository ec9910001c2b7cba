"""Results that are pinned to the bit, to check a library on the devices it runs on.

The pinned bits come from the NumPy model of the tests, never from the library: ``tests/core/test_selfcheck.py`` makes
``_selfcheck.json`` anew and compares.
"""

import ctypes
import dataclasses
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _family, _indexed, _rows, _segment, _sum, _variance, _weighted

# Every tail of vectors of 2 to 16 lanes; then the ends of registers full of them, of rows of lanes, and of chunks.
SHORT = [*range(1, 132)]
LONG = [191, 255, 256, 257, 383, 500, 511, 512, 513, 527, 530, 640, 767, 769, 1000, 1023, 1024, 1025, 1300, 1537, 2047]
LONG += [2049, 3000, 3583, 3585, 4095, 4096, 4097, 4100, 4609, 5000, 8191, 8193, 12_289, 20_001, 27_000, 40_000]
FEW = [2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 33, 63, 64, 65, 100, 130, 257, 450, 511, 513, 700, 1025, 2500, 4097, 5000]
WIDTHS = [2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 33, 64, 65, 100, 130, 300]
# Shapes and strides of views, and the dims that are reduced.
LAYOUTS = {
    "rows": [((3, n), (n, 1), (1,)) for n in SHORT + LONG],
    "many rows": [((40, n), (n, 1), (1,)) for n in range(1, 70)],
    "few rows": [((3, n), (n, 1), (1,)) for n in FEW],
    "rows apart": [((40, n), (n + 3, 1), (1,)) for n in FEW if n < 600],
    "rows in steps": [((2, n), (2 * n, 2), (1,)) for n in FEW],
    "columns": [((n, w), (w, 1), (0,)) for n, w in itertools.product(FEW, WIDTHS) if n * w <= 150_000],
    "few columns": [((n, w), (w, 1), (0,)) for n, w in itertools.product([3, 9, 65, 513, 2500], [2, 3, 17, 40])],
    "columns apart": [((n, w), (w + 3, 1), (0,)) for n, w in itertools.product([3, 9, 65, 513, 1700], WIDTHS)],
    "many pairs": [((40, n, 2), (2 * n, 2, 1), (1,)) for n in range(1, 40)],
    "pairs": [((2, n, 2), (2 * n, 2, 1), (1,)) for n in SHORT + LONG],
    "pieces": [
        ((k, 5, n), (5 * n, n, 1), (0, 2))
        for k, n in itertools.product([2, 3, 30, 200], [3, 5, 16, 17, 49, 100, 256, 300, 600])
        if k * n <= 20_000
    ],
    "pairs of pieces": [
        ((k, 3, n, 2), (6 * n, 2 * n, 2, 1), (0, 2))
        for k, n in itertools.product([2, 30], [3, 5, 16, 17, 49, 100, 300])
    ],
    "all": [
        ((1_052_673,), (1,), (0,)),
        ((6, 2, 700), (0, 700, 1), (0, 1, 2)),
        ((2, 3, 28, 28), (2352, 1, 84, 3), (0, 2, 3)),
    ],
}
SUMS = ["rows", "many rows", "rows apart", "rows in steps", "columns", "columns apart", "pairs", "many pairs"]
SUMS += ["pieces", "pairs of pieces", "all"]
ROWS = ["softmax", "log_softmax", "log_prob", "rms_norm", "layer_norm"]
GROUPS = [
    *(("sum", name, layout) for name in ("float32", "float64") for layout in SUMS),
    *(("sum", name, layout) for name in ("bfloat16", "float16") for layout in ("rows", "columns", "pairs", "pieces")),
    *(("sum", name, layout) for name in ("int32", "int8") for layout in ("rows", "few columns", "pieces")),
    *(("sum", name, layout) for name in ("float8_e4m3fn", "int64", "bool") for layout in ("few rows", "few columns")),
    *(("sum", "complex64", layout) for layout in ("rows", "few columns")),
    *(("prod", "float32", layout) for layout in ("rows", "many rows", "columns", "pairs")),
    *(("prod", "float64", layout) for layout in ("rows", "columns")),
    *(("logsumexp", "float32", layout) for layout in ("rows", "columns")),
    *(("logsumexp", "float64", layout) for layout in ("few rows", "few columns")),
    *(("amax", name, layout) for name in ("float32", "int32") for layout in ("rows", "few columns")),
    *(("vector_norm", name, layout) for name in ("float32", "float64") for layout in ("rows", "few columns")),
    *(("count_nonzero", "int8", layout) for layout in ("few rows", "few columns")),
    *(("var", name, layout) for name in ("float32", "float64") for layout in ("rows", "columns")),
    *(("weighted_sum", name, layout) for name in ("float32", "float64") for layout in ("rows", "columns")),
    *(("segment_sum", name, "segments") for name in ("float32", "bfloat16")),
    *(("index_sum", name, "segments") for name in ("float32", "bfloat16")),
    *((function, name, "few rows") for function in ROWS for name in ("float32", "bfloat16")),
    ("exact_sum", "float32", "few rows"),
]
_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    function.__name__: function
    for function in [
        *(_family.amax, _family.count_nonzero, _family.logsumexp, _family.prod, _sum.sum, _sum.vector_norm),
        *(_rows.softmax, _rows.log_softmax, _rows.log_prob, _rows.rms_norm, _rows.layer_norm),
        *(_indexed.index_sum, _segment.segment_sum, _variance.var, _weighted.weighted_sum),
    ]
}
SHIFT = 5  # elements from an input to its weights
SEGMENTS = [*range(1, 70), 127, 129, 300, 511, 513, 1025, 4097, 9000]
SCALE = 64.0  # of what softmaxes take: the elements alone would have exponentials near 1
EPS = 1e-5


@dataclasses.dataclass(frozen=True)
class Case:
    """A call whose result is pinned."""

    function: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dims: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.function} of {self.dtype}, shape {self.shape}, strides {self.strides}, over {self.dims}"

    def view(self, memory: Tensor, offset: int = 0) -> Tensor:
        """The input, or its weights, in the elements of its dtype."""
        return memory.as_strided(self.shape, self.strides, offset)

    def offsets(self, device: torch.device) -> Tensor:
        """The offsets of segments."""
        return torch.tensor([0, *itertools.accumulate(SEGMENTS)], device=device)

    def index(self, device: torch.device) -> Tensor:
        """The index of each row, of as many outputs as there are segments."""
        return (torch.arange(self.shape[0], device=device) * 7919) % len(SEGMENTS)

    def target(self, device: torch.device) -> Tensor:
        """A target in each of three rows."""
        return torch.tensor([0, self.shape[1] // 2, self.shape[1] - 1], device=device)

    def call(self, memory: Tensor) -> Tensor:
        """The result. Sums of halves and float8 are not rounded."""
        x = self.view(memory)
        function = _FUNCTIONS[self.function.removeprefix("exact_")]
        if self.function == "segment_sum":
            return function(x, self.offsets(x.device), dtype=torch.float32)
        if self.function == "index_sum":
            return function(x, self.index(x.device), len(SEGMENTS), dtype=torch.float32)
        if self.function == "sum":
            return function(x, self.dims, dtype=torch.float32 if x.is_floating_point() and x.itemsize < 4 else None)
        if self.function == "exact_sum":
            return function(x, self.dims, exact=True)
        if self.function == "weighted_sum":
            return function(x, self.view(memory, SHIFT), self.dims)
        if self.function == "vector_norm":
            return function(x, 2, self.dims)
        if self.function == "log_prob":
            return function(SCALE * x, self.target(x.device))
        if self.function in ROWS[:2]:
            return function(SCALE * x, 1)
        if self.function in ROWS:
            weights = self.view(memory, SHIFT)[: 1 + (self.function == "layer_norm")]
            return function(x, x.shape[1:], *weights, eps=EPS)
        return function(x, self.dims, **({"correction": 0} if self.function == "var" else {}))


def cases(layout: str, function: str, dtype: str) -> list[Case]:
    """The calls of a function on inputs of a dtype in one of LAYOUTS, or in segments."""
    if layout == "segments":
        total = sum(SEGMENTS)
        return [
            Case(function, dtype, shape, strides, (0,)) for shape, strides in (((total,), (1,)), ((total, 3), (3, 1)))
        ]
    return [Case(function, dtype, *view) for view in LAYOUTS[layout]]


@functools.cache
def _stored() -> dict[str, dict[str, str]]:
    return json.loads(Path(__file__).with_name("_selfcheck.json").read_text(encoding="utf-8"))


def pinned() -> dict[str, str]:
    """For each group, named by its function, dtype and layout, the digests of its cases, one after the other."""
    return _stored()["groups"]


def promised() -> dict[str, str]:
    """For each function the SHA-256 of all its pinned results."""
    return _stored()["functions"]


def hashed(groups: Iterable[tuple[tuple[str, str, str], bytes]]) -> dict[str, str]:
    """For each function the SHA-256 of its results: of the name of each group, and the bytes of all results in it."""
    hashes: dict[str, Any] = {}
    for group, stored in groups:
        hashes.setdefault(group[0], hashlib.sha256()).update(f"{' '.join(group)}\n".encode() + stored)
    return {function: found.hexdigest() for function, found in hashes.items()}


def digest(stored: bytes) -> str:
    """Four hexadecimal digits that another result has once in 65,536 times."""
    return hashlib.blake2b(stored, digest_size=2).hexdigest()


def elements(n: int, dtype: torch.dtype, factors: bool = False) -> Tensor:
    """A 32-bit hash of the index: as an integer, or as a number in [-0.5, 0.5), or 1 and a little of that for factors.

    It is rounded to float32 and then to ``dtype``, but for float64; integers wrap.
    """
    if dtype.is_complex:
        return torch.view_as_complex(elements(2 * n, torch.float32).view(n, 2))
    h = (torch.arange(n, device="cpu") * 2654435761 + 12345) % 2**32
    h ^= h >> 15
    if not dtype.is_floating_point:
        return (h % 2 if dtype == torch.bool else h).to(dtype)
    x = h.double() / 2**32 - 0.5
    x = 1 + x / 64 if factors else x
    return x if dtype == torch.float64 else x.float().to(dtype)


def size_of_memory(case: Case) -> int:
    """The elements that a case reads, and its weights."""
    return 1 + sum((size - 1) * stride for size, stride in zip(case.shape, case.strides, strict=True)) + SHIFT


def bytes_of(x: Tensor) -> bytes:
    """The elements of a tensor, as they lie in memory."""
    x = x.cpu().contiguous()
    return ctypes.string_at(x.data_ptr(), x.nbytes)


@torch.no_grad()
def check(device: torch.device) -> tuple[int, list[str], dict[str, str]]:
    """Computes every pinned result on ``device``.

    Returns:
        How many there are, which calls have wrong bits, and for each function the SHA-256 of its results.
    """
    wrong: list[str] = []
    found: list[tuple[tuple[str, str, str], bytes]] = []
    memory: dict[tuple[str, bool], Tensor] = {}
    count = 0
    for function, dtype, layout in GROUPS:
        some = cases(layout, function, dtype)
        size, kind = max(map(size_of_memory, some)), (dtype, function == "prod")
        if kind not in memory or len(memory[kind]) < size:
            memory[kind] = elements(size, getattr(torch, dtype), function == "prod").to(device)
        with torch.autocast(device.type, enabled=False):
            results = [case.call(memory[kind]).reshape(-1).view(torch.uint8) for case in some]
        stored, end = bytes_of(torch.cat(results)), 0
        digests = pinned()[f"{function} {dtype} {layout}"]
        for i, (case, result) in enumerate(zip(some, results, strict=True)):
            begin, end = end, end + len(result)
            if digest(stored[begin:end]) != digests[4 * i : 4 * i + 4]:
                wrong.append(f"{case}: wrong bits")
        found.append(((function, dtype, layout), stored))
        count += len(some)
    return count, wrong, hashed(found)
