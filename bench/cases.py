"""What is measured: one `Case` a cell. Adding a line to `gpu_cases` or `cpu_cases` is all that a new cell takes."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable

import torch

EVERYWHERE = (torch.float32, torch.bfloat16)  # on the whole grid
ELSEWHERE = (  # (dtype, dtype of the sum): on a few shapes
    (torch.float16, None),
    (torch.float64, None),
    (torch.float8_e4m3fn, None),
    (torch.int8, None),
    (torch.uint8, None),
    (torch.bool, None),
    (torch.int32, None),
    (torch.int64, None),
    (torch.complex64, None),
    (torch.float32, torch.float64),
    (torch.bfloat16, torch.float32),
)
SECTOR = 32  # bytes: the least that DRAM and L2 hand out


@dataclasses.dataclass(frozen=True)
class Case:
    """A sum over `dim` (None: all) of `view(flat)`, where `flat` holds `elements` elements of `dtype`."""

    name: str
    family: str  # full, rows, columns, inside, awkward, odd
    label: str  # the name without family and dtype
    dtype: torch.dtype
    elements: int
    view: Callable
    dim: int | tuple | None
    sum_dtype: torch.dtype | None = None  # torch.sum's `dtype=`
    hot: bool = False  # one buffer, read again and again, in place of a cold cache
    cub: str | None = None  # which of CUB's sums applies: "full" or "rows"

    @functools.cached_property
    def meta(self):
        return self.view(torch.empty(self.elements, dtype=self.dtype, device="meta"))

    @property
    def shape(self):
        return tuple(self.meta.shape)

    def result_dtype(self):
        if self.sum_dtype:
            return self.sum_dtype
        if self.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            return torch.float32
        whole = not self.dtype.is_floating_point and not self.dtype.is_complex
        return torch.int64 if whole else self.dtype

    def result_shape(self):
        if self.dim is None:
            return ()
        dims = {d % len(self.shape) for d in (self.dim if isinstance(self.dim, tuple) else (self.dim,))}
        return tuple(size for d, size in enumerate(self.shape) if d not in dims)

    def flat(self, device, seed=0):
        """Random elements, the same for the same seed and device."""
        return random_elements(self.dtype, self.elements, device, seed)

    def make_out(self, device):
        return torch.empty(self.result_shape(), dtype=self.result_dtype(), device=device)

    def bytes(self):
        """Bytes that must move: the input's sectors once, and the output once."""
        return self.input_bytes() + math.prod(self.result_shape()) * self.result_dtype().itemsize

    def input_bytes(self):
        """The 32-byte sectors that hold an element, each once; a buffer's begin and end do not count as whole ones."""
        return min(touched_bytes(self.meta), self.elements * self.dtype.itemsize)


def touched_bytes(view):
    """Bytes of all sectors in which `view` has an element, if its storage begins with a sector."""
    size = view.element_size()
    dims = sorted((stride, n) for n, stride in zip(view.shape, view.stride(), strict=True) if stride and n > 1)
    run = size  # bytes from the first element of the innermost, gapless dims to the end of the last
    while dims and dims[0][0] * size <= max(run, SECTOR):
        stride, n = dims.pop(0)
        run += stride * (n - 1) * size
    starts = torch.tensor([view.storage_offset() * size])
    for stride, n in dims:
        starts = (starts + torch.arange(n)[:, None] * stride * size).flatten()
    first, last = starts // SECTOR, (starts + run - 1) // SECTOR
    first[1:] = torch.maximum(first[1:], last[:-1] + 1)  # a sector that two runs share
    return int((last - first + 1).sum()) * SECTOR


def random_elements(dtype, count, device, seed=0):
    generator = torch.Generator(device).manual_seed(seed)

    def normal(kind, n=count):
        return torch.randn(n, dtype=kind, device=device, generator=generator)

    if dtype.is_complex:
        return torch.view_as_complex(normal(dtype.to_real(), 2 * count).view(count, 2))
    if dtype.is_floating_point:
        return normal(dtype) if dtype.itemsize >= 2 else normal(torch.float16).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), dtype=torch.uint8, device=device, generator=generator).view(torch.bool)
    bounds = torch.iinfo(dtype)
    return torch.randint(bounds.min, bounds.max, (count,), dtype=dtype, device=device, generator=generator)


# --- how cells are called and made --------------------------------------------------------------------------


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def size_name(n):
    return f"2^{n.bit_length() - 1}" if n >= 1024 and n & (n - 1) == 0 else str(n)


def _shape_name(shape):
    return "(" + ", ".join(size_name(n) if n >= 2**20 else str(n) for n in shape) + ")"


def cell(family, label, dtype, elements, view, dim, sum_dtype=None, hot=False, cub=None):
    name = f"{family} {dtype_name(dtype)}{f' to {dtype_name(sum_dtype)}' if sum_dtype else ''} {label}{' hot' * hot}"
    return Case(name, family, label + " hot" * hot, dtype, elements, view, dim, sum_dtype, hot, cub)


def full(n, dtype=torch.float32, **more):
    return cell("full", size_name(n), dtype, n, lambda flat: flat, None, cub="full", **more)


def _matrix(family, shape, dim, dtype, **more):
    return cell(family, _shape_name(shape), dtype, math.prod(shape), lambda flat: flat.view(shape), dim, **more)


def rows(a, b, dtype=torch.float32, family="rows", **more):
    return _matrix(family, (a, b), 1, dtype, cub="rows", **more)


def columns(a, b, dtype=torch.float32, **more):
    return _matrix("columns", (a, b), 0, dtype, **more)


def inside(shape, dim, dtype=torch.float32, channels_last=False, **more):
    dims = ", ".join(map(str, dim)) if isinstance(dim, tuple) else str(dim)
    word = "dims" if isinstance(dim, tuple) else "dim"
    label = f"{_shape_name(shape)} {word} {dims}" + " channels_last" * channels_last

    def view(flat):
        if not channels_last:
            return flat.view(shape)
        n, c, h, w = shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2)

    return cell("inside", label, dtype, math.prod(shape), view, dim, **more)


def awkward(label, elements, view, dim, dtype=torch.float32, **more):
    return cell("awkward", label, dtype, elements, view, dim, **more)


def offset_full(n, dtype=torch.float32):
    return awkward(f"{size_name(n)} at offset 1", n + 1, lambda flat: flat[1:], None, dtype, cub="full")


def offset_rows(a, b, dtype=torch.float32):
    return awkward(f"rows ({a}, {b}) at offset 1", a * b + 1, lambda flat: flat[1:].view(a, b), 1, dtype, cub="rows")


def step_two(n, dtype=torch.float32):
    return awkward(f"x[::2] of {size_name(n)}", n, lambda flat: flat[::2], None, dtype)


def step_two_rows(a, b, dtype=torch.float32):
    return awkward(f"rows of ({a}, {b})[:, ::2]", a * b, lambda flat: flat.view(a, b)[:, ::2], 1, dtype)


def transposed(a, b, dim, dtype=torch.float32):
    what, cub = ("all", "full") if dim is None else (f"dim {dim}", None)
    return awkward(f"({a}, {b}).t() {what}", a * b, lambda flat: flat.view(a, b).t(), dim, dtype, cub=cub)


def expanded(a, b, dtype=torch.float32):
    return awkward(f"({b},) expanded to ({a}, {b}) dim 0", b, lambda flat: flat.expand(a, b), 0, dtype)


def slice_rows(a, b, width, dtype=torch.float32):
    label = f"rows of ({a}, {width})[:, :{b}]"
    return awkward(label, a * width, lambda flat: flat.view(a, width)[:, :b], 1, dtype)


# --- the grids ----------------------------------------------------------------------------------------------

FULL = tuple(2**e for e in range(10, 31, 2))
ROWS = ((2**25, 2), (2**24, 3), (2**23, 8), (2**21, 32), (2**20, 100), (2**18, 1000), (65536, 1024), (16384, 4096))
ROWS += ((16384, 4097), (4096, 50257), (64, 128256), (8, 2**23), (3, 2**24 + 1))
ODD_ROWS = ((2**20, 33), (2**18, 301), (65536, 1023), (16384, 5001))
ODD_DTYPES = (*EVERYWHERE, torch.float8_e4m3fn, torch.int8)
COLUMNS = ((2, 2**25), (8, 2**23), (64, 2**20), (1024, 65536), (16384, 4096), (16384, 4097), (2**18, 256), (2**20, 100))
COLUMNS += ((2**20, 64), (2**24, 4), (2**23, 7), (50257, 1024))
IMAGES = ((32, 64, 56, 56), (256, 64, 7, 7), (256, 64, 56, 56))


def gpu_cases():
    """The whole grid, in the order of the tables."""
    cases = [full(n, dtype, hot=hot) for dtype in EVERYWHERE for hot in (False, True) for n in FULL]
    cases += [rows(a, b, dtype) for dtype in EVERYWHERE for a, b in ROWS]
    cases += [columns(a, b, dtype) for dtype in EVERYWHERE for a, b in COLUMNS]
    for dtype in EVERYWHERE:
        cases += [inside((64, 4096, 1024), 1, dtype), inside((4096, 128, 128), 1, dtype)]
        cases += [inside(s, (0, 2, 3), dtype, channels_last=last) for s in IMAGES for last in (False, True)]
        cases += [inside((64, 256, 56, 56), (2, 3), dtype), inside((128, 512, 1024), (0, 2), dtype)]
    for dtype in EVERYWHERE:
        cases += [offset_full(2**26, dtype), offset_rows(16384, 4096, dtype)]
        cases += [step_two(2**26, dtype), step_two_rows(16384, 4096, dtype)]
        cases += [transposed(16384, 4096, dim, dtype) for dim in (0, 1, None)]
        cases += [expanded(16384, 4096, dtype), slice_rows(16384, 4096, 5000, dtype)]
    cases.append(awkward("2^31 + 4096", 2**31 + 4096, lambda flat: flat, None, torch.int8, cub="full"))
    for dtype, to in ELSEWHERE:
        cases += [make(dtype=dtype, sum_dtype=to) for make in A_FEW_SHAPES]
    cases += [rows(a, b, dtype, family="odd") for dtype in ODD_DTYPES for a, b in ODD_ROWS]
    return cases


A_FEW_SHAPES = (
    functools.partial(full, 2**24),
    functools.partial(full, 2**28),
    functools.partial(rows, 16384, 4096),
    functools.partial(rows, 2**20, 100),
    functools.partial(columns, 16384, 4096),
    functools.partial(columns, 2**20, 64),
    functools.partial(inside, (64, 4096, 1024), 1),
    functools.partial(inside, (256, 64, 56, 56), (0, 2, 3)),
)


def cpu_cases():
    """The same layouts at the CPU's sizes."""
    cases = [full(2**e, dtype) for dtype in EVERYWHERE for e in range(10, 27, 2)]
    for dtype in EVERYWHERE:
        cases += [rows(a, b, dtype) for a, b in ((2**18, 8), (2**16, 100), (4096, 4096), (4096, 4097), (32, 50257))]
        cases += [columns(a, b, dtype) for a, b in ((8, 2**20), (4096, 4096), (4096, 4097), (2**16, 64), (2**20, 4))]
        cases += [inside((64, 1024, 64), 1, dtype)]
        cases += [inside((64, 256, 14, 14), (0, 2, 3), dtype, channels_last=last) for last in (False, True)]
        cases += [offset_full(2**22, dtype), step_two(2**22, dtype), transposed(4096, 1024, 0, dtype)]
    for dtype, to in ELSEWHERE:
        cases += [full(2**20, dtype, sum_dtype=to), full(2**24, dtype, sum_dtype=to)]
        cases += [rows(4096, 1024, dtype, sum_dtype=to), columns(4096, 1024, dtype, sum_dtype=to)]
    return cases


# the short grid; those with a + are measured against torch.compile too
SHORT = """
full float32 2^10
full float32 2^16
full float32 2^20
full float32 2^22
full float32 2^24
full float32 2^26
+ full float32 2^28
full float32 2^30
full float32 2^20 hot
full float32 2^24 hot
full bfloat16 2^10
full bfloat16 2^20
full bfloat16 2^24
full bfloat16 2^28
full int8 2^28
full float8_e4m3fn 2^28
full bool 2^24
full float64 2^28
full int32 2^28
full complex64 2^24
full float32 to float64 2^28
rows float32 (2^25, 2)
rows float32 (2^23, 8)
rows float32 (2^20, 100)
rows float32 (65536, 1024)
+ rows float32 (16384, 4096)
rows bfloat16 (16384, 4096)
rows float32 (4096, 50257)
rows float32 (64, 128256)
rows float32 (3, 16777217)
rows int8 (16384, 4096)
columns float32 (8, 2^23)
columns float32 (1024, 65536)
+ columns float32 (16384, 4096)
columns bfloat16 (16384, 4096)
columns float32 (2^20, 64)
columns float32 (2^24, 4)
columns int8 (2^20, 64)
inside float32 (64, 4096, 1024) dim 1
inside float32 (256, 64, 56, 56) dims 0, 2, 3
+ inside float32 (256, 64, 56, 56) dims 0, 2, 3 channels_last
inside bfloat16 (64, 256, 56, 56) dims 2, 3
awkward float32 2^26 at offset 1
awkward float32 rows (16384, 4096) at offset 1
awkward float32 rows of (16384, 4096)[:, ::2]
awkward float32 (16384, 4096).t() dim 0
awkward float32 (4096,) expanded to (16384, 4096) dim 0
""".strip().splitlines()


# the short grid of a machine without a GPU
SHORT_CPU = """
full float32 2^10
full float32 2^14
full float32 2^20
full float32 2^24
full float32 2^26
full bfloat16 2^20
full float8_e4m3fn 2^20
full int8 2^24
full int64 2^24
rows float32 (262144, 8)
rows float32 (65536, 100)
rows float32 (4096, 4096)
rows bfloat16 (4096, 4097)
rows uint8 (4096, 1024)
columns float32 (4096, 4096)
columns bfloat16 (65536, 64)
columns float32 (2^20, 4)
inside float32 (64, 1024, 64) dim 1
inside float32 (64, 256, 14, 14) dims 0, 2, 3
awkward float32 x[::2] of 2^22
awkward float32 (4096, 1024).t() dim 0
""".strip().splitlines()


def short_cases(cases, short=SHORT):
    """The cases of a short grid, and the names of those that torch.compile is measured on."""
    names = {line.removeprefix("+ ") for line in short}
    return [c for c in cases if c.name in names], {line[2:] for line in short if line.startswith("+ ")}


# --- choosing -----------------------------------------------------------------------------------------------

ALIASES = {
    "f32": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
}
ALIASES |= {"f64": "float64", "double": "float64", "float": "float32", "fp8": "float8_e4m3fn", "c64": "complex64"}


def select(cases, only):
    """The cases whose name is `only`, or matches it as a regular expression."""
    exact = [c for c in cases if c.name == only]
    return exact or [c for c in cases if re.search(only, c.name) or only in c.name]


def parse(name):
    """The case called `name`: a cell of the grids, or any other full, rows or columns, as "rows bf16 (8, 2^23)"."""
    for case in gpu_cases() + cpu_cases():
        if case.name == name:
            return case
    found = re.fullmatch(r"(full|rows|columns) (\w+) \(?([\d^, ]+)\)?", name)
    if not found:
        raise ValueError(
            f"no case is called {name!r}; known: {', '.join(c.name for c in gpu_cases())}; or '<full|rows|columns>"
            " <dtype> <size or (a, b)>', sizes as 2^24 or 50257"
        )
    family, dtype, sizes = found.groups()
    dtype = getattr(torch, ALIASES.get(dtype, dtype))
    sizes = [2 ** int(s[2:]) if s.startswith("2^") else int(s) for s in re.split(r",\s*", sizes)]
    if len(sizes) != (1 if family == "full" else 2):
        raise ValueError(
            f"{name!r}: {family} takes {'one size' if family == 'full' else 'two sizes'}, not {len(sizes)}"
        )
    return {"full": full, "rows": rows, "columns": columns}[family](*sizes, dtype)
