"""What is measured: one `Case` a cell. Adding a line to `gpu_cases` or `cpu_cases` is all that a new cell takes."""

import dataclasses
import math
import re
from collections.abc import Callable

import torch

FULL_SIZES = tuple(2**e for e in (10, 14, 16, 20, 22, 24, 26, 28))
OTHER_DTYPES = (
    torch.float64,
    torch.int8,
    torch.bool,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int32,
    torch.complex64,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A sum over `dim` (None: all) of `view(flat)`, where `flat` holds `elements` elements of `dtype`."""

    name: str
    family: str  # full, rows, columns, inside, awkward
    dtype: torch.dtype
    elements: int
    view: Callable
    dim: int | tuple | None
    shape: tuple
    compile: bool = False  # among the few that are measured against torch.compile by default
    quick: bool = False
    cub: str | None = None  # which of CUB's sums applies: "full" or "rows"

    def flat(self, device, seed=0):
        """Random elements, the same for the same seed and device."""
        return random_elements(self.dtype, self.elements, device, seed)

    def result_dtype(self):
        if self.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            return torch.float32
        whole = not self.dtype.is_floating_point and not self.dtype.is_complex
        return torch.int64 if whole else self.dtype

    def result_shape(self):
        if self.dim is None:
            return ()
        dims = {d % len(self.shape) for d in (self.dim if isinstance(self.dim, tuple) else (self.dim,))}
        return tuple(size for d, size in enumerate(self.shape) if d not in dims)

    def make_out(self, device):
        return torch.empty(self.result_shape(), dtype=self.result_dtype(), device=device)

    def bytes(self):
        """Bytes that must move: the input once, by what a 32-byte sector touches, and the output once."""
        return self.input_bytes() + math.prod(self.result_shape()) * self.result_dtype().itemsize

    def input_bytes(self):
        """No layout here skips whole sectors, so it is all of the flat buffer."""
        return self.elements * self.dtype.itemsize


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


def size_name(n):
    return f"2^{n.bit_length() - 1}" if n >= 1024 and n & (n - 1) == 0 else str(n)


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def _shape_name(shape):
    return "(" + ", ".join(map(size_name_in_shape, shape)) + ")"


def size_name_in_shape(n):
    return size_name(n) if n >= 2**20 else str(n)


def full(n, dtype=torch.float32, **more):
    return Case(f"full {dtype_name(dtype)} {size_name(n)}", "full", dtype, n, _same, None, (n,), cub="full", **more)


def _same(flat):
    return flat


def _matrix(family, shape, dim, dtype, **more):
    name = f"{family} {dtype_name(dtype)} {_shape_name(shape)}"
    return Case(name, family, dtype, math.prod(shape), lambda flat: flat.view(shape), dim, shape, **more)


def rows(a, b, dtype=torch.float32, **more):
    return _matrix("rows", (a, b), 1, dtype, cub="rows", **more)


def columns(a, b, dtype=torch.float32, **more):
    return _matrix("columns", (a, b), 0, dtype, **more)


def inside(shape, dim, dtype=torch.float32, channels_last=False, **more):
    dims = ", ".join(map(str, dim)) if isinstance(dim, tuple) else str(dim)
    word = "dims" if isinstance(dim, tuple) else "dim"
    name = f"inside {dtype_name(dtype)} {_shape_name(shape)} {word} {dims}" + " channels_last" * channels_last

    def view(flat):
        if not channels_last:
            return flat.view(shape)
        n, c, h, w = shape
        return flat.view(n, h, w, c).permute(0, 3, 1, 2)

    return Case(name, "inside", dtype, math.prod(shape), view, dim, shape, **more)


def awkward(what, shape, dim, elements, view, dtype=torch.float32, **more):
    return Case(f"awkward {dtype_name(dtype)} {what}", "awkward", dtype, elements, view, dim, shape, **more)


def step_two(n):
    return awkward(f"x[::2] of {size_name(n)}", (n // 2,), None, n, lambda flat: flat[::2])


def transposed(a, b, dim):
    what = "all" if dim is None else f"dim {dim}"
    return awkward(f"({a}, {b}).t() {what}", (b, a), dim, a * b, lambda flat: flat.view(a, b).t())


def offset_full(n):
    return awkward(f"full {size_name(n)} at offset 1", (n,), None, n + 1, lambda flat: flat[1:])


def offset_rows(a, b):
    return awkward(f"rows ({a}, {b}) at offset 1", (a, b), 1, a * b + 1, lambda flat: flat[1:].view(a, b))


def gpu_cases():
    """The short grid, in the order of the table."""
    half = torch.bfloat16
    cases = []
    for dtype in (torch.float32, half):
        for n in FULL_SIZES:
            marks = {"compile": n == 2**28, "quick": n in (2**14, 2**20, 2**24, 2**28)}
            cases.append(full(n, dtype, **marks))
    for dtype in OTHER_DTYPES:
        cases += [full(2**24, dtype), full(2**28, dtype, quick=dtype in (torch.int8, torch.bool))]
    cases.append(rows(16384, 4096, compile=True, quick=True))
    cases.append(rows(16384, 4096, half))
    for a, b in ((65536, 1024), (4096, 50257), (64, 128256), (2**20, 100), (2**23, 8)):
        cases.append(rows(a, b))
    cases.append(columns(16384, 4096, compile=True, quick=True))
    cases.append(columns(16384, 4096, half))
    for a, b in ((65536, 1024), (1024, 65536), (2**20, 64), (2**24, 4)):
        cases.append(columns(a, b))
    cases.append(inside((64, 4096, 1024), 1))
    cases.append(inside((256, 64, 56, 56), (0, 2, 3)))
    cases.append(inside((256, 64, 56, 56), (0, 2, 3), channels_last=True, compile=True))
    cases += [step_two(2**26), transposed(16384, 4096, 0), transposed(16384, 4096, None)]
    cases += [offset_full(2**26), offset_rows(16384, 4096)]
    return cases


def cpu_cases():
    """The same layouts at the CPU's sizes."""
    cases = [full(2**e, quick=e in (16, 24)) for e in (10, 12, 14, 16, 18, 20, 22, 24)]
    for dtype in (torch.bfloat16, torch.float64, torch.int8):
        cases += [full(2**e, dtype, quick=e == 24) for e in (16, 20, 24)]
    cases += [full(2**24, torch.bool), full(2**24, torch.float16), full(2**24, torch.complex64)]
    cases.append(full(2**24, torch.float8_e4m3fn))
    cases += [
        rows(4096, 4096, quick=True),
        rows(4096, 4096, torch.bfloat16),
        rows(2**16, 100),
        rows(2**18, 8),
        rows(32, 50257),
    ]
    cases += [
        columns(4096, 4096, quick=True),
        columns(4096, 4096, torch.bfloat16),
        columns(2**16, 64),
        columns(2**20, 4),
    ]
    cases += [inside((64, 1024, 64), 1), inside((64, 256, 14, 14), (0, 2, 3))]
    cases.append(inside((64, 256, 14, 14), (0, 2, 3), channels_last=True))
    cases += [step_two(2**22), transposed(4096, 1024, 0), offset_full(2**22)]
    return cases


ALIASES = {
    "f32": "float32",
    "fp32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "fp16": "float16",
    "half": "float16",
}
ALIASES |= {"f64": "float64", "double": "float64", "float": "float32", "fp8": "float8_e4m3fn", "c64": "complex64"}


def select(cases, only=None, dtype=None, quick=False):
    """Those whose name is, or matches the regular expression, `only`, of one dtype (or an alias), marked quick."""
    if dtype:
        wanted = ALIASES.get(dtype, dtype)
        cases = [c for c in cases if dtype_name(c.dtype) == wanted]
    if quick:
        cases = [c for c in cases if c.quick]
    if only:
        exact = [c for c in cases if c.name == only]
        cases = exact or [c for c in cases if re.search(only, c.name) or only in c.name]
    return cases


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
