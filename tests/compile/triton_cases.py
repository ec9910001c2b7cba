"""Kernels in Triton that use torch_reduce.triton, each beside the library on the CPU. test_triton.py runs them.

TRITON_INTERPRET=1 python tests/compile/triton_cases.py    all of them in the interpreter; prints the errors as JSON
"""

import contextlib
import functools
import itertools
import json
import linecache
import math
import pathlib
import sys
import traceback
import types

import numpy as np
import torch
import triton
import triton.language as tl

import model
import torch_reduce
import torch_reduce.triton as ordered
from interpreter import patch_language_once
from support import assert_same_bits, data

ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTHS = [1, 2, 7, 8, 9, 100, 511, 512, 513, 1000, 2048, 3333, 4095, 4096, 4097, 8193, 12_289, 50_257]
DTYPES = ["float16", "bfloat16", "float32", "float64", "bool", "int8", "uint8", "int32", "int64"]
EXACT = {"enable_fp_fusion": False}


@functools.cache
def page():
    """The Python of docs/triton.md, run as a module: its names."""
    blocks = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8").split("```python\n")[1:]
    code = "\n".join(block.partition("```")[0] for block in blocks)
    name = "docs/triton.md as a module"  # where Triton reads the source of its functions
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    names = types.ModuleType("page")
    sys.modules["page"] = names
    exec(compile(code, name, "exec"), vars(names))
    return names


# --- kernels ----------------------------------------------------------------------------------------------------------


@triton.jit
def block_rows(x, y, n, OF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Whole rows in a block, several in a program."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    tl.store(y + row, OF(tl.load(x + row[:, None] * n + column, column < n), column < n))


@triton.jit
def block_row(x, y, n, OF: tl.constexpr, BLOCK: tl.constexpr):
    """A row in a block of one dim."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    tl.store(y + row, OF(tl.load(x + row * n + column, column < n), column < n))


@triton.jit
def element(column, mask, arguments):
    x, row, n = arguments
    return ordered.accumulator(tl.load(x + row * n + column, mask))


@triton.jit
def tiled_rows(x, y, n, OF: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    """Rows that are loaded a tile at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    found = ordered.reduce_rows(element, (x, row[:, None], n), n, ROWS, BLOCK, OF, dtype=DTYPE)
    tl.store(y + row, found)


@triton.jit
def pieces(x, y, n, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    """A row in aligned pieces, whose sums a tree joins."""
    number = tl.arange(0, PIECES)
    sums = tl.broadcast_to(ordered.identity(ordered.add, tl.float32), (PIECES,))
    for piece in range(PIECES):
        column = piece * BLOCK + tl.arange(0, BLOCK)
        sums = tl.where(number == piece, ordered.sum(tl.load(x + column, column < n), column < n), sums)
    tl.store(y, ordered.tree(sums))


@triton.jit
def squares(x, y, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    e = ordered.accumulator(tl.load(x + row[:, None] * n + column, column < n))
    tl.store(y + row, ordered.sum(e * e, column < n))


@triton.jit
def grown(a, b):
    """A function of one's own: (1 + a)(1 + b) - 1, rounded so that its order shows. It commutes; its identity is 0."""
    return (a + b) + a * b


@triton.jit
def growths(x, y, n, BLOCK: tl.constexpr):
    row, column = tl.arange(0, 1), tl.arange(0, BLOCK)
    tl.store(y, ordered.reduce(tl.load(x + column, column < n, other=0.0), grown))
    tl.store(y + 1 + row, ordered.reduce_rows(element, (x, row[:, None], n), n, 1, BLOCK, grown, 0.0))


@triton.jit
def softmaxes(x, y, z, s, n, BLOCK: tl.constexpr):
    """softmax, log_softmax and logsumexp of a row."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = column < n
    e = ordered.accumulator(tl.load(x + row * n + column, there))
    m = ordered.amax(e, there)
    power = ordered.exponential(e - m)
    total = ordered.sum(power, there)
    logarithm = ordered.logarithm(total)
    tl.store(y + row * n + column, (power * ordered.divide(1.0, total)).to(y.dtype.element_ty), there)
    tl.store(z + row * n + column, ((e - m) - logarithm.to(e.dtype)).to(z.dtype.element_ty), there)
    tl.store(s + row, (m.to(tl.float64) + logarithm).to(s.dtype.element_ty))


@triton.jit
def layer_norm(x, w, b, y, n, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    there = column < n
    e = tl.load(x + row * n + column, there).to(tl.float32)
    center = ordered.divide(ordered.sum(e, there), n)
    d = e - center
    s, q = ordered.sum(d, there), ordered.sum(d * d, there)
    share = ordered.divide(s, n)
    spread = q - s * share
    variance = ordered.divide(tl.where(spread < 0, 0.0, spread), n)
    r = ordered.divide(1.0, ordered.square_root(variance + EPS))
    mean = center + share
    y_ = ((e - mean) * r) * tl.load(w + column, there) + tl.load(b + column, there)
    tl.store(y + row * n + column, y_, there)


@triton.jit
def numbers(a, b, quotient, root, power, logarithm, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u, v = tl.load(a + i, i < n), tl.load(b + i, i < n)
    size = tl.abs(u)
    tl.store(quotient + i, ordered.divide(u, v), i < n)
    tl.store(root + i, ordered.square_root(size), i < n)
    tl.store(power + i, ordered.exponential(u - size), i < n)
    tl.store(logarithm + i, ordered.logarithm(tl.where(size < 1, 1.0, size)), i < n)


@triton.jit
def fused(a, b, y):
    i = tl.arange(0, 2)
    tl.store(y + i, ordered._fused(tl.load(a + i), tl.load(a + i), tl.load(b + i)))


# --- cases ------------------------------------------------------------------------------------------------------------

OPERATIONS = {
    "sum": (ordered.sum, ordered.add),
    "prod": (ordered.prod, ordered.multiply),
    "amax": (ordered.amax, ordered.larger),
    "amin": (ordered.amin, ordered.smaller),
}
TYPES = {torch.float64: tl.float64, torch.float32: tl.float32, torch.int64: tl.int64}


def kept(device, *dtypes):
    """These dtypes, but for bfloat16 in the interpreter, which truncates where it should round."""
    return [dtype for dtype in dtypes if device == "cuda" or "bfloat16" not in str(dtype)]


def accumulator(dtype):
    """The contract's type for elements of a dtype."""
    return dtype if dtype == torch.float64 else torch.float32 if dtype.is_floating_point else torch.int64


def wanted(name, x):
    """What the library makes of the rows of `x`, in the accumulator's type."""
    function = getattr(torch_reduce, name)
    kind = accumulator(x.dtype)
    if name in ("sum", "prod"):
        return function(x, 1, dtype=kind)
    return function(x.to(kind), 1)


def elements(rows, n, dtype, name="sum"):
    """Rows of many magnitudes; for products near 1, so that nothing overflows."""
    x = data((rows, n), dtype, seed=n)
    if name == "prod" and x.is_floating_point():
        x = (1 + torch.arange(rows * n).reshape(rows, n).sin() / 8).to(x.dtype)
    return x


def special(dtype):
    """Rows of NaN, infinities, -0.0, subnormals and opposite numbers, of 700 elements each; and ordinary ones."""
    tiny = torch.finfo(dtype).smallest_normal
    x = data((8, 700), str(dtype).removeprefix("torch."), seed=3)
    x[0], x[1] = -0.0, 0.0
    x[1, 600] = -0.0
    x[2, 3] = math.nan
    x[3, 2] = math.inf
    x[4, 5], x[4, 600] = math.inf, -math.inf
    x[5] = torch.linspace(-0.9, 1.1, 700).to(dtype) * tiny
    x[6, ::2], x[6, 1::2] = -0.0, 1.0
    x[6, 1::4] = -1.0
    return x


def check(kernel, name, x, device, rows=1, block=None, tiles=False):
    """One kernel's reduction of the rows of `x` against the library's on the CPU."""
    n, block = x.shape[1], block or triton.next_power_of_2(x.shape[1])
    kind = accumulator(x.dtype)
    y = torch.empty(x.shape[0], dtype=kind, device=device)
    more = {"num_warps": max(1, min(16, rows * min(block, 512 if tiles else block) // 2048))}
    if kernel is not block_row:
        more["ROWS"] = rows
    if tiles:
        more["DTYPE"] = TYPES[kind]
    kernel[(x.shape[0] // rows,)](x.to(device), y, n, OF=OPERATIONS[name][tiles], BLOCK=block, **more, **EXACT)
    assert_same_bits(y.cpu(), wanted(name, x), f"({name} of {x.shape[1]} {x.dtype})")


def case_lengths(device):
    """Sums of all lengths, in blocks of one and two dims and in tiles; a block may be larger than it must be."""
    for n in LENGTHS:
        x = elements(2, n, "float32")
        if n <= 16_384:  # a block has to fit the registers
            check(block_rows, "sum", x, device, rows=2)
            check(block_row, "sum", x, device)
        check(tiled_rows, "sum", x, device, rows=2, tiles=True)
    x = elements(4, 100, "float32")
    check(block_rows, "sum", x, device, rows=4, block=1024)
    check(tiled_rows, "sum", x, device, rows=1, block=16_384, tiles=True)


def case_dtypes(device):
    """Sums, products and extrema of all dtypes, in short and long rows."""
    for dtype in DTYPES:
        for name in OPERATIONS:
            for n in (5, 777, 4500) if name == "sum" else (777,):
                x = elements(2, n, dtype, name)
                check(block_rows, name, x, device, rows=2)
        check(tiled_rows, "sum", elements(2, 4500, dtype), device, rows=2, tiles=True)
        check(tiled_rows, "amin", elements(2, 600, dtype), device, rows=1, tiles=True)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        if device == "cuda" and torch.cuda.get_device_capability() >= (8, 9):
            check(block_rows, "sum", elements(2, 777, dtype), device, rows=2)


def case_specials(device):
    """NaN, infinities, -0.0 and subnormals, in every function."""
    for dtype in kept(device, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for name in OPERATIONS:
            x = special(dtype)
            check(block_rows, name, x, device, rows=4)
            check(tiled_rows, name, x, device, rows=8, tiles=True)
    y = torch.empty(2, device=device)
    tiled_rows[(1,)](y, y, 0, OF=ordered.add, ROWS=2, BLOCK=8192, DTYPE=tl.float32, **EXACT)
    assert_same_bits(y.cpu(), torch.zeros(2))


def case_parts(device):
    """A row in pieces, squares whose products are rounded, and a function of one's own."""
    x, y = elements(1, 50_257, "float32"), torch.empty(1, device=device)
    pieces[(1,)](x.to(device), y, x.shape[1], PIECES=8, BLOCK=8192, **EXACT)
    assert_same_bits(y.cpu(), wanted("sum", x))
    for dtype in ("bfloat16", "float32", "float64"):
        x = elements(2, 3333, dtype)
        y = torch.empty(2, dtype=accumulator(x.dtype), device=device)
        squares[(1,)](x.to(device), y, x.shape[1], ROWS=2, BLOCK=4096, **EXACT)
        assert_same_bits(y.cpu(), torch_reduce.powsum(x, 2, 1, dtype=y.dtype))
    x, y = torch.arange(9001).sin().reshape(1, -1) / 64, torch.empty(2, device=device)
    growths[(1,)](x.to(device), y, 9001, BLOCK=16_384, num_warps=8, **EXACT)
    lanes = model.lane_sums(x.numpy(), lambda a, b: (a + b) + a * b)
    right = model.join(lanes, lambda a, b: (a + b) + a * b)
    assert_same_bits(y.cpu(), torch.from_numpy(np.repeat(right, 2)))


def case_softmaxes(device):
    """softmax, log_softmax and logsumexp, also of rows with infinities and NaN."""
    for dtype in kept(device, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = special(dtype)
        x[5] = torch.linspace(-900, 3, 700).to(dtype)
        y, z, s = (torch.empty_like(x, device=device) for _ in range(3))
        softmaxes[(8,)](x.to(device), y, z, s, 700, BLOCK=1024, **EXACT)
        assert_same_bits(y.cpu(), torch_reduce.softmax(x, 1), f"(softmax, {dtype})")
        finite = x.isfinite().all(1)
        assert_same_bits(z.cpu()[finite], torch_reduce.log_softmax(x, 1)[finite], f"(log_softmax, {dtype})")
        got = s.cpu().view(-1)[:8]
        assert_same_bits(got[finite], torch_reduce.logsumexp(x, 1)[finite], f"(logsumexp, {dtype})")


def case_norms(device):
    """The page's rms_norm in several shapes, and a layer_norm."""
    add_rms_norm = page().add_rms_norm
    for dtype, n in itertools.product(kept(device, "float16", "bfloat16", "float32"), (1, 100, 1001, 4096)):
        rows = 5 if n == 100 else 2
        x, residual = (data((rows, n), dtype, seed=s) for s in (1, 2))
        weight = data((n,), dtype, seed=4)
        got = add_rms_norm(x.to(device), residual.to(device), weight.to(device), 1e-5)
        right = torch_reduce.rms_norm(x, n, weight, 1e-5, residual=residual)
        assert_same_bits(tuple(t.cpu() for t in got), right, f"(rms_norm of {n} {dtype})")
    x, w, b = (data((3, 900), "float32", seed=s) for s in (5, 6, 7))
    y = torch.empty_like(x, device=device)
    layer_norm[(3,)](x.to(device), w[0].to(device), b[0].to(device), y, 900, EPS=1e-5, BLOCK=1024, **EXACT)
    assert_same_bits(y.cpu(), torch_reduce.layer_norm(x, 900, w[0], b[0], 1e-5))


def case_numbers(device):
    """Division, roots, exponentials and logarithms, operation by operation those of the model; subnormals, too."""
    for dtype in (torch.float32, torch.float64):
        generator = torch.Generator().manual_seed(1)
        low = -87 if dtype == torch.float32 else -708
        a = torch.empty(4096, dtype=dtype).uniform_(low * 0.52, 0, generator=generator)
        b = torch.randn(4096, dtype=dtype, generator=generator)
        tiny = torch.finfo(dtype).smallest_normal
        a[:64], b[:64] = a[:64] * tiny / 8, 3.0
        a[64:72] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, low / 2, low / 2 * 1.001, -5e3], dtype=dtype)
        q, r, p = (torch.empty(4096, dtype=dtype, device=device) for _ in range(3))
        g = torch.empty(4096, dtype=torch.float64, device=device)
        numbers[(4,)](a.to(device), b.to(device), q, r, p, g, 4096, BLOCK=1024, **EXACT)
        a, b = a.numpy(), b.numpy()
        with np.errstate(all="ignore"):
            size = np.abs(a)
            power = np.where(np.isnan(a - size), np.nan, model.exponential(a - size)).astype(a.dtype)
            big = np.where(size < 1, 1, size).astype(np.float64)
            big = np.where(np.isfinite(size), model.logarithm(np.where(np.isfinite(big), big, 1)), size)
            for got, right in ((q, a / b), (r, np.sqrt(size)), (p, power), (g, big)):
                assert_same_bits(got.cpu(), torch.from_numpy(right), f"({dtype})")


def case_fused(device):
    """A product and a sum that lies a hair beside the middle of two float32 is rounded once."""
    a, b = torch.full((2,), 1 + 2.0**-12, device=device), torch.tensor([2.0**-60, -(2.0**-60)], device=device)
    y = torch.empty(2, device=device)
    fused[(1,)](a, b, y, **EXACT)
    assert y.tolist() == [1 + 2.0**-11 + 2.0**-23, 1 + 2.0**-11]


def case_page(device):
    """The code of docs/triton.md, whose assertions hold."""
    assert page().x.device.type == device


def case_operator(device):
    """The page's custom operator inside torch.compile."""
    operator = page().operator
    x, residual, weight = data((4, 768), "float16", 1), data((4, 768), "float16", 2), data((768,), "float16", 4)
    backend = "inductor" if device == "cuda" else "aot_eager"
    got = torch.compile(lambda *t: operator(*t), backend=backend, fullgraph=True)(
        x.to(device), residual.to(device), weight.to(device)
    )
    right = torch_reduce.rms_norm(x, 768, weight, 1e-6, residual=residual)
    assert_same_bits(tuple(t.cpu() for t in got), right)


CASES = {name.removeprefix("case_"): case for name, case in list(globals().items()) if name.startswith("case_")}


def main():
    patch_language_once()
    errors = {}
    for name, case in CASES.items():
        try:
            with contextlib.redirect_stdout(sys.stderr), np.errstate(all="ignore"):
                case("cpu")
        except Exception:
            errors[name] = traceback.format_exc()
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
