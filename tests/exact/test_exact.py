"""Exact sums: the nearest number of the result's dtype, by Python's fractions, in any order, layout and dtype."""

import fractions
import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    FLOATING,
    INSTRUCTIONS,
    INTEGER,
    assert_same_bits,
    data,
    dtype_of,
    instruction_sets,
    name_of,
    numpy_of,
    python,
    reduced_dims,
    tensor_of,
)
from table import rotated
from test_autocast import without_a_gpu
from test_layouts import LAYOUTS
from test_meta import opcheck

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

OPS = torch.ops.gpureduce
FUNCTIONS = ("sum", "mean", "nansum")
functions = pytest.mark.parametrize("function", FUNCTIONS)
# Digits of the mantissa, and the exponent of the smallest number.
FORMATS = {"float64": (53, -1074), "float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}
FORMATS |= {"float8_e5m2": (3, -16), "float8_e4m3fn": (4, -9)}
REALS = [name for name in DTYPES if name not in COMPLEX]
LARGEST = {name: torch.finfo(getattr(torch, name)).max for name in FORMATS}


# --- the model: Python's integers and fractions, and nothing of ours --------------------------------------------------


def nearest(value, name):
    """The number of a dtype that is nearest to a fraction, ties to even, as a Python float."""
    digits, lowest = FORMATS[name]
    if value == 0:
        return 0.0
    above, below = abs(value.numerator), value.denominator
    exponent = above.bit_length() - below.bit_length()
    exponent -= above << max(-exponent, 0) < below << max(exponent, 0)
    unit = max(exponent - digits + 1, lowest)  # the result is a multiple of 2**unit
    below <<= max(unit, 0)
    above <<= max(-unit, 0)
    whole, rest = divmod(above, below)
    whole += 2 * rest > below or (2 * rest == below and whole % 2)
    if whole.bit_length() + unit > 1024 or math.ldexp(whole, unit) > LARGEST[name]:
        return math.nan if name == "float8_e4m3fn" else math.inf if value > 0 else -math.inf
    return math.ldexp(whole if value > 0 else -whole, unit)


def parts_of(x):
    """A finite float as (m, e), with the value m * 2**e; an integer likewise."""
    if isinstance(x, int):
        return x, 0
    mantissa, exponent = math.frexp(x)
    return int(mantissa * 2**53), exponent - 53


def total_of(parts):
    """The sum of m * 2**e over (m, e), as a fraction: numbers of one e are added first."""
    sums = {}
    for mantissa, exponent in parts:
        sums[exponent] = sums.get(exponent, 0) + mantissa
    lowest = min(sums)
    total = sum(mantissa << (exponent - lowest) for exponent, mantissa in sums.items())
    return fractions.Fraction(total << lowest if lowest > 0 else total, 1 << max(-lowest, 0))


@functools.lru_cache(maxsize=5000)
def sum_of(elements):
    """The sum of finite numbers as a fraction; the same ones are summed for several dtypes."""
    return total_of(map(parts_of, elements))


def modelled(elements, name, mean=False, nan_is_zero=False):
    """The result for a list of Python's floats and integers, as a float."""
    if nan_is_zero:
        elements = [0.0 if x != x else x for x in elements]
    if not elements:
        return math.nan if mean else 0.0
    finite = math.isfinite(sum(elements))  # false if an element is infinite or NaN
    special = set() if finite else {x for x in elements if isinstance(x, float) and not math.isfinite(x)}
    if special:
        found = special.pop() if len(special) == 1 else math.nan
        return math.nan if name == "float8_e4m3fn" else found
    if not any(elements) and all(isinstance(x, float) and math.copysign(1, x) < 0 for x in elements):
        return -0.0
    total = sum_of(tuple(elements))
    total = total / len(elements) if mean else total
    rounded = nearest(total, name)
    return -0.0 if rounded == 0 and total < 0 else rounded


def lists(x, dim):
    """The shape of the kept dims, and the elements of each output, as Python's numbers."""
    dims = reduced_dims(x.dim(), dim)
    kept = [d for d in range(x.dim()) if d not in dims]
    negative = x.is_neg()
    x = (torch._neg_view(x) if negative else x).detach().cpu().permute([*kept, *dims])
    shape = x.shape[: len(kept)]
    count = math.prod(x.shape[len(kept) :])
    name = name_of(x.dtype)
    if name in INTEGER:
        x = x.neg() if negative else x  # it wraps
        rows = numpy_of(x.contiguous())[..., 0].reshape(math.prod(shape), count).tolist()
        return shape, [list(map(int, row)) for row in rows]
    rows = x.double().reshape(math.prod(shape), count).tolist()
    return shape, [[-e for e in row] for row in rows] if negative else rows


def expected(x, dim=None, keepdim=False, dtype=None, function="sum"):
    """The model's result, a tensor."""
    name = name_of(dtype or (torch.float32 if x.dtype.itemsize == 1 else x.dtype))
    if name in COMPLEX or x.is_complex():
        part = dtype_of(model.PART.get(name, name))
        halves = [expected(p, dim, keepdim, part, function) for p in (x.real, x.imag if x.is_complex() else x.real * 0)]
        halves = [half.double() for half in halves]
        return torch.complex(*halves).to(dtype_of(name)) if name in COMPLEX else halves[0].to(part)
    shape, rows = lists(x, dim)
    found = [modelled(row, name, function == "mean", function == "nansum") for row in rows]
    result = torch.tensor(found, dtype=torch.float64).to(dtype_of(name)).reshape(shape)
    for d in reduced_dims(x.dim(), dim) if keepdim else []:
        result = result.unsqueeze(d)
    return result


def check(x, dim=None, keepdim=False, dtype=None, function="sum", what=""):
    """The function gives the model's bits. Returns its result."""
    result = getattr(torch_reduce, function)(x, dim, keepdim, dtype=dtype, exact=True)
    assert result.device == x.device
    what = what or f"for shape {tuple(x.shape)}, strides {x.stride()}, {x.dtype}, dim={dim}, dtype={dtype}, {function}"
    assert_same_bits(result.cpu(), expected(x, dim, keepdim, dtype, function), what)
    return result


# --- data -------------------------------------------------------------------------------------------------------------


def patterns(shape, name, seed=0, finite=True):
    """Random bits: numbers of all exponents, subnormals, and if not `finite`, infinities and NaN."""
    storage, _ = model.STORAGE[name]
    rng = np.random.default_rng([seed, *shape])
    bits = rng.integers(0, 256, (*shape, np.dtype(storage).itemsize), dtype=np.uint8)
    x = tensor_of(bits[..., None].reshape(*shape, -1), name)
    return torch.where(x.double().isfinite(), x.double(), 1.0).to(x.dtype) if finite else x


def shuffled(x, seed=0):
    return x[..., torch.from_numpy(np.random.default_rng(seed).permutation(x.shape[-1]))]


def finite_max(name):
    return torch.finfo(dtype_of(name)).max


def rows_of(name, n=1501, seed=0):
    """Rows of each kind of data, by name. They are made as float64, as torch has little of float8."""
    rng = np.random.default_rng([seed, n])
    dtype = dtype_of(name)
    digits, lowest = FORMATS[name]

    def made(values):
        return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(dtype).double()

    normal = made(rng.standard_normal(n))
    wide = patterns((n,), name, seed).double()
    tiny = made(rng.integers(-(2**digits) // 2, 2**digits // 2, n) * 2.0 ** max(lowest, -1074))
    huge = made(rng.uniform(0.5, 1.0, n) * finite_max(name) * rng.choice([-1, 1], n))
    ups = torch.full((n // 2,), finite_max(name), dtype=torch.float64)
    zeros = torch.zeros(n, dtype=torch.float64)
    rows = {
        "normal": normal,
        "uniform": made(rng.random(n)),
        "gradients": made(rng.standard_normal(n) * np.exp(rng.standard_normal(n) * 3) * 2.0**-6),
        "any bits": wide,
        "subnormal": tiny,
        "subnormal and large": torch.cat([tiny, huge]),
        "cancelling": shuffled(torch.cat([wide, -wide, normal[:1]])),
        "all cancel": shuffled(torch.cat([normal, -normal])),
        "beyond the largest": torch.cat([ups, -ups, normal[:7]]),
        "one large": torch.cat([normal, made([finite_max(name)])]),
        "one small": torch.cat([normal, made([2.0**lowest])]),
        "+0": zeros,
        "-0": -zeros,
        "zeros": torch.cat([-zeros, zeros[:1]]),
        "-0 and an element": torch.cat([-zeros, normal[:1]]),
        "infinity": torch.cat([normal, made([math.inf])]),
        "-infinity": torch.cat([normal, made([-math.inf, -math.inf])]),
        "both infinities": torch.cat([made([math.inf]), normal, made([-math.inf])]),
        "NaN": torch.cat([made([math.nan]), normal]),
        "some NaN": torch.where(torch.from_numpy(rng.random(n) < 0.1), made(math.nan), normal),
        "NaN alone": made([math.nan] * 5),
        "one element": normal[:1],
    }
    return {kind: row.to(dtype) for kind, row in rows.items()}


KINDS = list(rows_of("float32", 4))


# --- numbers ----------------------------------------------------------------------------------------------------------


def kinds_of(name, n):
    """Rows of each kind of data that the dtype has, with their places."""
    rows = rows_of(name, n).items()  # float8_e4m3fn has no infinities
    return enumerate((kind, x) for kind, x in rows if name != "float8_e4m3fn" or "infinities" not in kind)


@pytest.mark.parametrize("name", FLOATING)
def test_kinds_of_data(name, device):
    """Each kind of data, as one row, as short rows and as columns, with results of every floating dtype in turns."""
    for k, (kind, x) in kinds_of(name, 1501):
        x = x.to(device)
        for function, dtype in rotated(itertools.product(FUNCTIONS, FORMATS), k + FLOATING.index(name), 5):
            check(x, dtype=dtype_of(dtype), function=function, what=f"of {kind}")
        short, several = x[: len(x) // 50 * 50].view(-1, 50), x[: len(x) // 20 * 20].view(20, -1)
        for each in (x[:, None].expand(-1, 3), short, several, several[:, :3], x.repeat(70, 1).t()[:40]):
            for dim in (0, 1):
                check(each, dim, what=f"of {kind}")
        check(several, 1, function="mean", what=f"of {kind}")


LENGTHS = [1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000, 1023, 1024, 1025, 2049, 5000]


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_lengths(name, device):
    """Around the ends of vectors and blocks."""
    for n, make in itertools.product(LENGTHS, (data, patterns)):
        x = make((n,), name, n).to(device)
        check(x)
        check(x, function="mean")
        check(torch.stack([x, -x, x.flip(0)]), 1)
        check(torch.stack([x, x.flip(0)]).t(), 0)
        check(x.repeat(9, 1).t(), 0)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_ties(name, to, device):
    """Sums that lie on the middle between two numbers, and the smallest unit beside it."""
    digits, lowest = FORMATS[to]
    unit = 2.0 ** FORMATS[name][1]
    choose, rows = random.Random(1), []
    for _ in range(150):
        low, high = max(lowest + 1, FORMATS[name][1] + 1), 5 if "float8" in to else 14 if to == "float16" else 100
        exponent = choose.randrange(low, high - digits)
        whole = choose.choice([choose.randrange(2 ** (digits - 1), 2**digits), choose.randrange(8), 2**digits - 1])
        half = 2.0 ** (exponent - 1)
        noise = [choose.uniform(-1, 1) * 2.0**60 for _ in range(4)]
        noise = torch.tensor(noise, dtype=torch.float32).double().tolist()
        parts = [math.ldexp(whole >> s & 0xFFFFF, exponent + s) for s in (0, 20, 40)]
        for beside in (-unit, 0.0, unit):
            row = [*parts, half, beside, *noise, *(-x for x in noise)]
            choose.shuffle(row)
            rows += [row, [-x for x in row]]
    x = torch.tensor(rows, dtype=torch.float64)
    assert torch.equal(x.to(dtype_of(name)).double(), x)
    results = check(x.to(dtype_of(name)).to(device), 1, dtype=dtype_of(to))
    assert len(results.double().unique()) > 20
    check(x.to(dtype_of(name)).to(device), 1, dtype=dtype_of(to), function="mean")


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_smallest_part_decides(name, device):
    """A sum and a mean that would be a tie but for one number that is far smaller, wherever its bit is in the sum."""
    digits, lowest = FORMATS[name]
    half = 2.0**-digits
    for exponent in {*range(-digits - 1, -digits - 200, -1), *range(lowest, lowest + 40)}:
        if exponent < lowest:
            continue
        little = 2.0**exponent
        for count in (1, 3, 7, 1000, 4097):
            row = [count * 1.0, count * half, little] + [0.0] * max(0, count - 3)
            for sign, rounded in ((1, 1 + 2 * half), (-1, 1.0)):
                x = torch.tensor([*row[:2], sign * little, *row[3:]], dtype=dtype_of(name), device=device)
                if count == 1:
                    assert torch_reduce.sum(x, exact=True).item() == rounded, (exponent, sign)
                elif len(x) == count and x[1].item() == count * half:
                    assert torch_reduce.mean(x, exact=True).item() == rounded, (exponent, count, sign)
    mean = torch_reduce.mean(torch.tensor([3, 3 * 2**-24, 2**-100], device=device), exact=True)
    assert mean.item() == 1 + 2**-23


@pytest.mark.parametrize("n", [4096, 6000, 8192])
def test_all_digits_of_a_double(n, device):
    """Sums of large numbers with a few small ones need each digit of a double, and sometimes one more."""
    generator = torch.Generator().manual_seed(n)
    for exponent in range(-26, -8):
        large, small = 1.75 + torch.rand(4, n, generator=generator) / 4, 1 + torch.rand(4, n, generator=generator)
        x = torch.where(torch.arange(n) % 97 == 0, small * 2.0**exponent, large)
        right = torch.tensor([math.fsum(row) for row in x.tolist()], dtype=torch.float64)
        for of, dim in ((x, 1), (x.t().contiguous(), 0)):
            sums = torch_reduce.sum(of.to(device), dim, dtype=torch.float64, exact=True)
            assert_same_bits(sums.cpu(), right, f"{exponent=} {dim=}")
        each = [torch_reduce.sum(row, dtype=torch.float64, exact=True).item() for row in x.to(device)]
        assert each == right.tolist(), exponent


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_beside_the_largest(name, device):
    """The sum may be half a unit above the largest number, and no more."""
    top, digits = finite_max(name), FORMATS[name][0]
    ulp = 2.0 ** (math.frexp(top)[1] - digits)
    small = 2.0 ** FORMATS[name][1]
    rows = [[top, ulp / 2, -small], [top, ulp / 2, 0.0], [top, ulp / 4, ulp / 4, small], [top, top, -top, ulp / 4]]
    for row in rows:
        for signed in (row, [-x for x in row]):
            check(torch.tensor(signed, dtype=dtype_of(name), device=device))
    assert torch_reduce.sum(torch.tensor(rows[0], dtype=dtype_of(name), device=device), exact=True).item() == top
    assert torch_reduce.sum(torch.tensor(rows[1], dtype=dtype_of(name), device=device), exact=True).item() == math.inf


def test_subnormal_means(device):
    """A mean of short rows is rounded once, where it is subnormal and its sum has more digits than a float64."""
    rng = np.random.default_rng(1)
    for n in (2, 4, 64):
        whole = rng.integers(-(2**53), 2**53, (500, n)) * 2.0 ** rng.integers(-1074, -1071, (500, n))
        check(torch.from_numpy(whole).to(device), 1, function="mean")
        check(torch.from_numpy(whole).to(device), 1)


@pytest.mark.parametrize("name", REALS)
def test_dtypes(name, device):
    """Every real dtype, of all floating results; integers are added without a modulus."""
    x = patterns((12, 1030), name) if name in FLOATING else data((12, 1030), name)
    x = x.to(device)
    for dtype in map(dtype_of, FORMATS):
        for dim in (None, 0, 1):
            check(x, dim, dtype=dtype)
            check(x, dim, dtype=dtype, function="mean")
    if name in ("int64", "uint64"):
        info = torch.iinfo(x.dtype)
        for edge in (info.min, info.max):
            check(torch.full((3, 2000), edge, dtype=x.dtype, device=device), 1, dtype=torch.float64)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name, device):
    """Parts are added separately; conjugated and negated views, and real results."""
    x = data((30, 700), name, device=device)
    for view in (x, x.conj(), x.t(), torch._neg_view(x), torch._neg_view(x.conj()), x[::2, 1:].conj()):
        for dim, function in itertools.product((None, 0, 1), ("sum", "mean")):
            check(view, dim, function=function)
    check(x, 0, dtype=torch.float64)
    check(x.real, 1, dtype=torch.complex64)
    check(x.imag, 1, dtype=torch.complex128, function="mean")
    check(x.conj().imag, 1)


def test_whole_results(device):
    """Integer and bool results are those of the ordinary function."""
    for function, name in [("sum", name) for name in DTYPES] + [("nansum", name) for name in INTEGER]:
        call, x = getattr(torch_reduce, function), data((5, 700), name, device=device)
        for dtype in (torch.int64, torch.int8, torch.bool):
            wanted = call(x, 1, dtype=dtype)
            assert_same_bits(call(x, 1, dtype=dtype, exact=True), wanted)
            out = torch.empty_like(wanted)
            assert call(x, 1, dtype=dtype, out=out, exact=True) is out
            assert_same_bits(out, wanted)
        if name in INTEGER:
            assert call(x, exact=True).dtype == torch.int64


# --- layouts and orders -----------------------------------------------------------------------------------------------


OF_LAYOUTS = ["float32", "float64", "bfloat16", "int64", "float8_e5m2"]


def layouts_of(name, device, layouts):
    """These layouts, each with a view and the dims: of float32 all, of each other dtype a quarter."""
    for layout in rotated(layouts, OF_LAYOUTS.index(name), 1 if name == "float32" else 4):
        yield layout, *LAYOUTS[layout](lambda *shape: data(shape, name, 5, device))


@pytest.mark.parametrize("name", OF_LAYOUTS)
def test_layouts(name, device):
    """No layout is special."""
    for layout, view, dims in layouts_of(name, device, LAYOUTS):
        dtype = torch.float32 if name == "int64" else None
        check(view, dims, dtype=dtype, what=layout)
        check(view, dims, keepdim=True, dtype=dtype, function="mean", what=layout)
        check(torch._neg_view(view), dims, dtype=dtype, what=layout)


def test_negated_numbers(device):
    """A lazily negated view has the signs of a negated copy, of zeros and infinities too."""
    for x in (torch.zeros(70), -torch.zeros(70), torch.tensor([math.inf, 1.0]), torch.ones(3, 50)[:, ::2]):
        check(torch._neg_view(x.to(device)), -1)


@pytest.mark.parametrize("name", ["float32", "float64", "float16"])
def test_permutations(name, device):
    """All orders have one result."""
    x = shuffled(torch.cat([rows_of(name)["cancelling"], rows_of(name)["gradients"]])).to(device)
    wanted = check(x)
    for seed in range(20):
        assert_same_bits(torch_reduce.sum(shuffled(x, seed), exact=True), wanted)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_large(name, device):
    """Millions of elements, by math.fsum, which is correctly rounded."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(3_000_001, generator=generator, dtype=torch.float64)
    x = (x * torch.rand(len(x), generator=generator, dtype=torch.float64).mul(40).exp2()).to(dtype_of(name))
    wanted = math.fsum(x.double().tolist())
    x = x.to(device)
    assert torch_reduce.sum(x, dtype=torch.float64, exact=True).item() == wanted
    views = x[1:].view(3000, 1000), x[:-1].view(1000, 3000).t()
    for view, dim in itertools.product(views, (0, 1)):
        found = torch_reduce.sum(view, dim, dtype=torch.float64, exact=True)
        other = view.cpu().double().movedim(dim, -1)
        assert found.tolist() == [math.fsum(row) for row in other.tolist()]


def test_digits_of_many_blocks(device):
    """Sums of blocks that fill all digits of a double are not added as doubles."""
    big, rng = float(2**24 - 1), np.random.default_rng(2)
    smalls = [float(2**23 + 2 * k + 1) * 2.0**-19 for k in rng.integers(0, 2**22, 31)]
    rows = [[big] * 1023 + [small] for small in smalls]
    x = torch.tensor([*(e for row in rows for e in row), *[-big] * 1023 * 31], device=device)
    check(x, dtype=torch.float64)
    check(torch.stack([x, -x], 1), 0, dtype=torch.float64)


@pytest.mark.parametrize("most", [1, 2, 50])
def test_carrying_often(most):
    """On the CPU, numbers carry after as many additions as no test has: what they stand for stays the same."""
    generator = torch.Generator().manual_seed(4)
    scales = torch.randint(-60, 60, (3000, 4), generator=generator).double().exp2()
    x = torch.randn(3000, 4, generator=generator, dtype=torch.float64) * scales
    before = OPS._set_exact_additions(most)
    try:
        for name in ("float32", "float64"):
            y = x.to(dtype_of(name))
            for one in (y, y.t().contiguous().t()):
                check(one, 0)
                check(one)
            products = torch_reduce.weighted_sum(y, y.flip(0), 0, dtype=torch.float64, exact=True)
            pairs = zip(y.double().t().tolist(), y.double().flip(0).t().tolist(), strict=True)
            for found, (left, right) in zip(products.tolist(), pairs, strict=True):
                each = zip(map(fractions.Fraction, left), map(fractions.Fraction, right), strict=True)
                assert found == float(sum(p * q for p, q in each))
        whole = torch.randint(-(2**62), 2**62, (3000, 2), generator=generator)
        wanted = [float(sum(column)) for column in whole.t().tolist()]
        assert torch_reduce.sum(whole, 0, dtype=torch.float64, exact=True).tolist() == wanted
    finally:
        OPS._set_exact_additions(before)


def test_threads(device):
    """The number of threads changes nothing."""
    x = rows_of("float32", 300_000)["gradients"].to(device)
    before = torch.get_num_threads()
    try:
        found = set()
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            found.add(torch_reduce.sum(x, exact=True).item())
            found.add(torch_reduce.sum(x.view(1000, 300).t(), 1, exact=True)[0].item())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 2


IN_A_PROCESS = """
import torch, torch_reduce
from test_exact import rows_of, check
torch.set_flush_denormal(True)
for name in ("float32", "float64", "bfloat16"):
    for kind in ("normal", "any bits", "subnormal", "cancelling"):
        x = rows_of(name, 1100)[kind]
        check(x)
        check(x.repeat(20, 1).t(), 0)
"""


@instruction_sets(*INSTRUCTIONS)
def test_instruction_sets(instructions):
    """Each set of instructions gives the model's bits, also where a thread flushes subnormals."""
    python("-c", IN_A_PROCESS, ATEN_CPU_CAPABILITY=instructions)


# --- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "float8_e4m3fn", "int64", "uint8", "bool"])
def test_states(name, device):
    """Parts of any sizes, added in any order, round to the whole sum; so do means."""
    rows = data((6, 4001), name, device=device)
    if name in FLOATING:
        kinds = rows_of(name, 4001)
        rows = torch.stack([kinds[k] for k in ("any bits", "gradients", "subnormal", "+0", "-0", "some NaN")]).to(
            device
        )
    wide = name == "float64"
    for seed in range(5):
        cuts = sorted(random.Random(seed).sample(range(4002), 6))
        parts = [rows[:, a:b] for a, b in itertools.pairwise([0, *cuts, 4001])]
        states = [torch_reduce.exact.partial(part, 1) for part in parts]
        assert all(s.shape == (6, 70 if wide else 12) and s.dtype == torch.int64 for s in states)
        random.Random(seed).shuffle(states)
        total = torch.stack(states).sum(0)
        for dtype in map(dtype_of, FORMATS):
            assert_same_bits(torch_reduce.exact.round(total, dtype).cpu(), expected(rows, 1, dtype=dtype))
        mean = torch_reduce.exact.round(total, torch.float32, count=4001)
        assert_same_bits(mean.cpu(), expected(rows, 1, dtype=torch.float32, function="mean"))
    assert torch_reduce.exact.round(total).dtype == (torch.float64 if wide else torch.float32)
    numbers = torch_reduce.exact.partial(rows, 1, nan_is_zero=True)
    assert_same_bits(
        torch_reduce.exact.round(numbers, torch.float32).cpu(),
        expected(rows, 1, dtype=torch.float32, function="nansum"),
    )


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_counts_of_any_length(name, device):
    """Sums are divided by powers of two, by counts of 32 bits and by longer ones, with one rounding."""
    counts = [1, 2, 3, 1 << 20, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, 3**39, 1 << 62, (1 << 63) - 1]
    rows = [[1.0], [-5.0, 2.0**-100], [2.0**127, 1.0], [2.0**-149], [1.0, 2.0**-30, 2.0**-60, -(2.0**-140)]]
    rows += [data((50,), name, seed).tolist() for seed in range(5)]
    for row in rows:
        state = torch_reduce.exact.partial(torch.tensor(row, dtype=dtype_of(name), device=device))
        total = sum(map(fractions.Fraction, row))
        for count, to in itertools.product(counts, ("float64", "float32", "bfloat16")):
            found = torch_reduce.exact.round(state, dtype_of(to), count=count).item()
            assert found == nearest(total / count, to), (row, count, to)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_means_of_long_counts(name, device):
    """A count of more than 32 bits that is no power of two, in rows, in columns and in parts of one output."""
    if device == "cpu":
        pytest.skip("the CPU adds 2**32 numbers for minutes; test_counts_of_any_length has the same division")
    third = (1 << 32) // 3 + 1
    x = torch.tensor([1.0, 2.0**-20, 3.0 + 2.0**-20], dtype=dtype_of(name), device=device)
    mean = nearest(sum(map(fractions.Fraction, x.tolist())) / 3, name)
    assert torch_reduce.mean(x.expand(third, 3), exact=True).item() == mean
    columns = torch_reduce.mean(x.expand(3 * third, 3), 0, exact=True)
    assert torch.equal(columns, x)


def test_states_of_many_parts(device):
    """A state holds two thousand million carried states: 2**31 times the largest number, and back."""
    for dtype in (torch.float32, torch.float64):
        state = torch_reduce.exact.partial(torch.full((1000,), torch.finfo(dtype).max, dtype=dtype, device=device))
        one = torch_reduce.exact.partial(torch.ones(1, dtype=dtype, device=device))
        back = torch_reduce.exact.partial(torch.full((1000,), -torch.finfo(dtype).max, dtype=dtype, device=device))
        assert torch_reduce.exact.round(state * (1 << 30)).item() == math.inf
        assert torch_reduce.exact.round(state * (1 << 30) + back * (1 << 30) + one).item() == 1


def test_states_show_no_order(device):
    """The state of a tensor is the same in any order and layout."""
    for name in ("float32", "float64", "bfloat16"):
        for kind in KINDS:
            x = rows_of(name, 300)[kind].to(device)
            wanted = torch_reduce.exact.partial(x)
            for other in (x.flip(0), shuffled(x), x.repeat_interleave(3)[::3], torch._neg_view(-x)):
                assert torch.equal(torch_reduce.exact.partial(other), wanted), (name, kind)
            columns = torch_reduce.exact.partial(x.repeat(9, 1).t(), 0)
            assert all(torch.equal(column, wanted) for column in columns)
            long = torch.cat([torch.zeros(1024, dtype=torch.float64, device=device), -x.double()]).neg().to(x.dtype)
            wanted, other = (torch_reduce.exact.partial(each) for each in (long, shuffled(long)))
            assert torch.equal(wanted, other), (name, kind)


def test_state_shapes(device):
    """Dims as of a sum, and one more; states of no elements are zeros."""
    x = data((3, 4, 5), "float32", device=device)
    assert torch_reduce.exact.partial(x).shape == (12,)
    assert torch_reduce.exact.partial(x, (0, 2)).shape == (4, 12)
    assert torch_reduce.exact.partial(x, 1, keepdim=True).shape == (3, 1, 5, 12)
    assert torch_reduce.exact.partial(x.to("meta"), 1, True).shape == (3, 1, 5, 12)
    empty = torch_reduce.exact.partial(x[:0], 0)
    assert not empty.any() and not torch_reduce.exact.round(empty).any()
    assert torch_reduce.exact.partial(x[:, :0], 0).shape == (0, 5, 12)
    state = torch_reduce.exact.partial(x, 0)
    assert_same_bits(torch_reduce.exact.round(state.transpose(0, 1)).t(), torch_reduce.sum(x, 0, exact=True))
    assert torch_reduce.exact.round(state.to("meta"), torch.float16).shape == (4, 5)
    batched = torch.vmap(lambda t: torch_reduce.exact.partial(t, 0), in_dims=1)(x)
    assert torch.equal(batched, state)
    assert_same_bits(torch.vmap(torch_reduce.exact.round, in_dims=1)(state).t(), torch_reduce.exact.round(state))


# --- torch's side -----------------------------------------------------------------------------------------------------


@functions
def test_no_elements(function, device):
    """0, and NaN for a mean."""
    for dtype in (torch.float32, torch.float64, torch.complex64):
        if function == "nansum" and dtype.is_complex:
            continue
        x = torch.empty(0, 3, dtype=dtype, device=device)
        check(x, 0, function=function)
        assert getattr(torch_reduce, function)(x, 1, exact=True).shape == (0,)


@functions
def test_out(function, device):
    """`out` decides the dtype; it may be strided, an input, or must be resized."""
    x = data((30, 40), "float32", device=device)
    call = getattr(torch_reduce, function)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        out = torch.zeros(60, dtype=dtype, device=device)[::2]
        assert call(x, 1, out=out, exact=True) is out
        assert_same_bits(out.cpu().contiguous(), expected(x, 1, dtype=dtype, function=function))
    with pytest.warns(UserWarning, match="resized"):
        assert call(x, 1, out=torch.ones(3, device=device), exact=True).shape == (30,)
    y, wanted = x.clone(), call(x, 1, exact=True)
    call(y, 1, out=y[:, 3], exact=True)
    assert_same_bits(y[:, 3].clone(), wanted)
    with pytest.raises(RuntimeError, match="dtype"):
        call(x, 1, dtype=torch.float32, out=torch.zeros(30, dtype=torch.float64, device=device), exact=True)


@functions
def test_gradients(function, device):
    """As of the ordinary function, bit for bit, and of every order and mode."""
    call = getattr(torch_reduce, function)
    x = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    if function == "nansum":
        x.data[1, 2] = math.nan
    for dim, keepdim in ((None, False), (1, True), ((0, 1), False)):
        found = [
            torch.autograd.grad(call(x, dim, keepdim, **named).square().sum(), x)[0] for named in ({"exact": True}, {})
        ]
        torch.testing.assert_close(*found)
        if function != "nansum":
            one = lambda t, dim=dim, keepdim=keepdim: call(t, dim, keepdim, exact=True)  # noqa: E731
            assert gradcheck(one, x, check_forward_ad=True, check_batched_grad=True)
            assert gradgradcheck(lambda t, one=one: one(t).square(), x, check_fwd_over_rev=True)
    for name in ("float32", "bfloat16", "float16"):
        y = data((3, 700), name, device=device).requires_grad_()
        g = data((3,), name, 5, device)
        wanted = torch.autograd.grad(call(y, 1), y, g)[0]
        assert_same_bits(torch.autograd.grad(call(y, 1, exact=True), y, g)[0], wanted)
    assert "exact" in call(x, exact=True).grad_fn.name()
    with forward_ad.dual_level():
        tangent = rows_of("float32")["cancelling"].to(device)
        dual = forward_ad.make_dual(torch.ones_like(tangent), tangent)
        found = forward_ad.unpack_dual(call(dual, exact=True)).tangent
        assert_same_bits(found, call(tangent, exact=True))


@functions
def test_vmap(function, device):
    call = getattr(torch_reduce, function)
    x = data((6, 5, 70), "float32", device=device)
    for batch in range(3):
        found = torch.vmap(lambda t: call(t, 1, exact=True), in_dims=batch)(x)
        assert_same_bits(found, torch.stack([call(t, 1, exact=True) for t in x.unbind(batch)]))
    scalars = torch.vmap(lambda t: call(t, exact=True))(x[0, 0])
    assert_same_bits(scalars, x[0, 0])


@functions
def test_autocast(function):
    """As of the ordinary function."""
    call = getattr(torch_reduce, function)
    with without_a_gpu():
        x = torch.ones(3, 4, device="cuda", dtype=torch.float16)
        assert call(x, exact=True).dtype == call(x).dtype
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.ones(3, 4, dtype=torch.float16)
        assert call(x, exact=True).dtype == call(x).dtype


@pytest.mark.parametrize(
    ("function", "name"),
    [("sum", name) for name in ("float32", "bfloat16", "complex64", "int8", "float8_e5m2")]
    + [("mean", "float32"), ("nansum", "bfloat16")],
)
def test_opcheck(name, function, device):
    x = data((3, 4, 5), name, device=device)
    if name in ("float32", "bfloat16", "complex64"):
        x.requires_grad_()
    operator = getattr(OPS, f"exact_{function}")
    for args in ((x,), (x, [0, 2], True), (x, [1])):
        opcheck(operator.default, args)
    x = x.detach()
    opcheck(operator.out, (x, [1]), {"out": operator(x, [1])})


def test_opcheck_of_states(device):
    x = data((3, 4, 5), "float32", device=device)
    opcheck(OPS._exact_partial.default, (x, [1], True))
    opcheck(OPS._exact_round.default, (OPS._exact_partial(x, [1]), torch.float64, 5))


def test_compile(device):
    """One graph, with the same bits, gradients and `out`."""

    def call(x, state, out):
        total = torch_reduce.sum(x, 1, exact=True) + torch_reduce.mean(x, 0, exact=True).sum()
        torch_reduce.nansum(x, (0, 1), out=out, exact=True)
        part = torch_reduce.exact.partial(x, 1)
        return total, torch_reduce.exact.round(part + state, torch.float64, count=7), part

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    x = data((30, 50), "float32", device=device)
    outs, state = torch.zeros(2, device=device), torch_reduce.exact.partial(x, 1)
    for one, other in zip(compiled(x, state, outs[0]), call(x, state, outs[1]), strict=True):
        assert_same_bits(one, other)
    assert_same_bits(outs[0], outs[1])
    leaf = x.clone().requires_grad_()
    torch.compile(lambda t: torch_reduce.sum(t, 1, exact=True), backend="aot_eager")(leaf).square().sum().backward()
    wanted = 2 * torch_reduce.sum(x, 1, exact=True)[:, None].expand_as(x)
    assert_same_bits(leaf.grad, wanted)


@functions
def test_forms(function, device):
    """NumPy's names, the operators, and no `exact` is the ordinary function."""
    call, x = getattr(torch_reduce, function), data((30, 700), "float32", device=device)
    wanted = call(x, 1, True, exact=True)
    for found in (
        call(a=x, axis=1, keepdims=True, exact=True),
        call(x, (1,), keepdim=True, exact=True),
        call(x, np.int64(1), True, exact=True),
        getattr(OPS, f"exact_{function}")(x, 1, True),
    ):
        assert_same_bits(found, wanted)
    assert_same_bits(call(x, 1, exact=False), call(x, 1))
    assert not torch.equal(call(x * x, 1, exact=True), call(x * x, 1))  # the data show the difference


@functions
def test_errors(function, device):
    call, x = getattr(torch_reduce, function), torch.ones(3, 4, device=device)
    for wrong in (1, None, "yes", torch.tensor(True)):
        with pytest.raises(TypeError, match=rf"^{function}\(\): argument 'exact' must be bool"):
            call(x, exact=wrong)
    with pytest.raises(TypeError, match=rf"^{function}\(\)"):
        call([1.0], exact=True)
    with pytest.raises(IndexError):
        call(x, 2, exact=True)
    with pytest.raises(RuntimeError, match="multiple times"):
        call(x, (0, -2), exact=True)
    with pytest.raises(NotImplementedError, match=rf"\b{function}\(\)"):
        call(x.to(torch.float8_e5m2fnuz), exact=True)
    with pytest.raises(NotImplementedError, match=rf"^{function}\(\): sparse tensors are not supported"):
        call(x.to_sparse(), exact=True)
    with pytest.raises(RuntimeError, match=rf"^{function}\(\): functions with out="):
        call(x.clone().requires_grad_(), out=x[0, 0], exact=True)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=rf"forward AD with {function}_out"):
        call(forward_ad.make_dual(x, x), out=x[0, 0], exact=True)
    if function == "mean":
        with pytest.raises(RuntimeError, match="could not infer"):
            call(x.int(), exact=True)
    if function == "nansum":
        with pytest.raises(NotImplementedError, match="complex.*input has dtype ComplexFloat"):
            call(x.to(torch.complex64), exact=True)
        for exact in (False, True):
            with pytest.raises(NotImplementedError, match="complex.*the result has dtype ComplexFloat"):
                call(x, dtype=torch.complex64, exact=exact)


def test_errors_of_states(device):
    x = torch.ones(3, 4, device=device)
    partial, rounded = torch_reduce.exact.partial, torch_reduce.exact.round
    for call, told in (
        (lambda: partial([1.0]), "argument 'input' must be Tensor, not list"),
        (lambda: partial(x, "rows"), "'dim' must be an int, or a tuple or list of them, not str"),
        (lambda: partial(x, 1.0), "'dim' must be an int, or a tuple or list of them, not float"),
        (lambda: partial(x, 0, 1), "argument 'keepdim' must be bool, not int"),
    ):
        with pytest.raises(TypeError, match=rf"^exact.partial\(\): {told}$"):
            call()
    with pytest.raises(ValueError, match=r"^exact.partial\(\): 'dim' must be of 64 bits"):
        partial(x, 1 << 64)
    assert torch.equal(partial(x, np.int64(1)), partial(x, (1,)))
    for call, name in ((lambda one: partial(one), "partial"), (lambda one: rounded(one.long()), "round")):
        with pytest.raises(NotImplementedError, match=rf"^exact.{name}\(\): sparse tensors are not supported"):
            call(x.to_sparse())
    with pytest.raises(TypeError, match=r"^exact.partial\(\): argument 'nan_is_zero'"):
        partial(x, nan_is_zero=1)
    with pytest.raises(NotImplementedError, match="view_as_real"):
        partial(x.to(torch.complex64))
    with pytest.raises(NotImplementedError, match=r"^exact.partial\(\): .*; supported are .*, integers and bool$"):
        partial(torch.empty(3, dtype=torch.float8_e8m0fnu, device=device))
    with pytest.raises(IndexError):
        partial(x, 5)
    state = partial(x, 0)
    with pytest.raises(RuntimeError, match="size 12, 70 or 138"):
        rounded(state[:, :11])
    with pytest.raises(RuntimeError, match="size 12, 70 or 138"):
        rounded(state[0, 0])
    with pytest.raises(RuntimeError, match="int64"):
        rounded(state.int())
    with pytest.raises(RuntimeError, match="floating"):
        rounded(state, torch.int32)
    with pytest.raises(NotImplementedError, match=r"exact.round\(\)"):
        rounded(state, torch.float8_e5m2fnuz)
    with pytest.raises(TypeError, match=r"^exact.round\(\)"):
        rounded([1])
    with pytest.raises(TypeError, match="dtype"):
        rounded(state, "float32")
    for count in (1.5, True, torch.tensor([3, 4])):
        with pytest.raises(TypeError, match="'count' must be int"):
            rounded(state, count=count)
    for count in (0, -3, 1 << 63):
        with pytest.raises(ValueError, match="count"):
            rounded(state, count=count)


def test_states_have_no_gradient(device):
    """A state of a tensor that requires a gradient requires none."""
    x = torch.ones(3, device=device, requires_grad=True)
    state = torch_reduce.exact.partial(x)
    assert not state.requires_grad and not torch_reduce.exact.round(state).requires_grad


def test_states_of_shards(device):
    """A state is of one rank's elements."""
    shard = torch_reduce.distributed.Shard(torch.ones(3, device=device))
    with pytest.raises(NotImplementedError, match=r"^exact.partial\(\)"):
        torch_reduce.exact.partial(shard)
