"""What is the norms' alone: powers, roots, the largest magnitude, and the arguments and errors of torch's norm."""

import itertools
import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

import model
import pinned
import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    FLOATING,
    INTEGER,
    NORMS,
    POWSUMS,
    assert_same_bits,
    class_of_ours,
    data,
    dtype_of,
    norm,
    numpy_of,
    powsum,
    tensor_of,
    walked,
)
from test_autocast import without_a_gpu
from test_autograd import Calls, leaf
from test_meta import opcheck
from torch_reduce import _library, _sum

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

ALL = [*NORMS, *POWSUMS]
NORM_0, NORM_1, NORM_2, NORM_3, NORM_INF, NORM_NEG_INF = map(norm, ("0", "1", "2", "3", "inf", "neg_inf"))
POWSUM_2, POWSUM_3 = map(powsum, ("2", "3"))
INEXACT = [name for name in DTYPES if name not in INTEGER]
INF, NAN = float("inf"), float("nan")

every_norm = pytest.mark.parametrize("op", ALL, ids=str)


def vectors(name, device):
    """Rows, columns, all, and mixed dims, with few results: the model takes roots one by one."""
    shapes = [((7,), None), ((3, 1000), 1), ((1000, 3), 0), ((5, 4097), 1), ((9000, 33), 0), ((300, 3), 1)]
    shapes += [((2, 20_001), 1), ((4, 3, 11, 5), (0, 2, 3)), ((513, 64), 0), ((1, 5), 0), ((40, 5), (0, 1))]
    for shape, dim in shapes:
        yield data(shape, name, seed=51, device=device), dim
    even = tensor_of(pinned.elements(name, 4 * 9001), name, device)  # of one magnitude: every rounding shows
    yield from ((even.view(4, 9001), 1), (even.view(9001, 4), 0))


# --- bits -------------------------------------------------------------------------------------------------------------


def test_all_cube_roots(device):
    """Of every float32 from 1 to 8, correctly rounded. NumPy's are: none is near the middle of two (test_model.py)."""
    for start in range(0x3F800000, 0x41000000, 1 << 22):
        x = np.arange(start, start + (1 << 22), dtype=np.uint32).view(np.float32)
        roots = torch.ops.gpureduce._root_3(torch.from_numpy(x)[:, None].to(device), 1)
        assert np.array_equal(roots.cpu().numpy(), np.cbrt(x.astype(np.float64)).astype(np.float32))


def root(x):
    """The square root by NumPy, which is correctly rounded; torch's on the CPU is not."""
    return torch.from_numpy(np.sqrt(x.cpu().numpy())).to(x.device)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_bits_of_sums(name, device):
    """A norm is a sum of what each element becomes: these compositions of rounded operations have its bits."""
    x = data((5, 9001), name, seed=55, device=device)
    total = torch_reduce.sum
    assert_same_bits(NORM_0(x, 1), total(x != 0, 1).to(x.dtype))
    assert_same_bits(NORM_1(x, 1), total(x.abs(), 1))
    assert_same_bits(POWSUM_2(x, 1), total(x * x, 1))
    assert_same_bits(POWSUM_3(x, 1), total((x * x) * x.abs(), 1))
    assert_same_bits(NORM_2(x, 1), root(total(x * x, 1)))
    assert_same_bits(NORM_INF(x, 1), x.abs().amax(1))
    assert_same_bits(NORM_NEG_INF(x, 1), x.abs().amin(1))
    z = torch.complex(x, x.flip(1))
    squares = z.real * z.real + z.imag * z.imag
    assert_same_bits(POWSUM_2(z, 1), total(squares, 1))
    assert_same_bits(NORM_2(z, 1), root(total(squares, 1)))
    if name == "float32":
        magnitudes = root(z.real.double() ** 2 + z.imag.double() ** 2).float()
        assert_same_bits(NORM_1(z, 1), total(magnitudes, 1))
        assert_same_bits(POWSUM_3(z, 1), total((magnitudes * magnitudes) * magnitudes, 1))
        assert_same_bits(NORM_INF(z, 1), magnitudes.amax(1))
        for small in ("bfloat16", "float16", "float8_e5m2"):
            y = x.to(dtype_of(small))
            assert_same_bits(POWSUM_2(y, 1, dtype=torch.float32), total(y.float() * y.float(), 1))
            assert_same_bits(NORM_2(y, 1, dtype=torch.float32), NORM_2(y.float(), 1))


# --- what the tests see -----------------------------------------------------------------------------------------------


def left_to_right(x):
    """The sums of rows, in another order."""
    return np.add.accumulate(x, axis=1)[:, -1]


def fused(x):
    """Sums of squares in the contract's order, none of them rounded before it is added."""
    lanes = model.lane_sums(np.zeros_like(x))
    wide = x.astype(np.float64)
    for start in range(0, x.shape[1], model.CHUNK):
        first = start // model.CHUNK * model.LANES
        for i in range(start, min(start + model.CHUNK, x.shape[1]), model.LANES):
            part = wide[:, i : min(i + model.LANES, x.shape[1])]
            to = slice(first, first + part.shape[1])
            lanes[:, to] = (lanes[:, to] + part * part).astype(x.dtype)
    return model.join(lanes)


# name -> (operation, dtype of the elements, what a fault makes of rows of decoded parts)
FAULTS = {
    "another order": (POWSUM_2, "float32", lambda x: left_to_right(x * x)),
    "another order of magnitudes": (NORM_1, "float32", lambda x: left_to_right(abs(x))),
    "a fused multiply and add": (POWSUM_2, "float32", fused),
    "a cube of one rounding": (
        POWSUM_3,
        "float32",
        lambda x: model.ordered_sum((abs(x).astype(np.float64) ** 3).astype(np.float32)),
    ),
    "squares added in float64": (
        NORM_2,
        "float32",
        lambda x: np.sqrt(model.ordered_sum(x.astype(np.float64) ** 2)).astype(np.float32),
    ),
    "squares rounded to the elements' dtype": (
        NORM_2,
        "bfloat16",
        lambda x: model.roots(model.ordered_sum(model.decode(model.encode(x * x, "bfloat16"), "bfloat16")), 2),
    ),
    "a root of the rounded sum": (
        NORM_2,
        "bfloat16",
        lambda x: np.sqrt(model.decode(model.encode(model.ordered_sum(x * x), "bfloat16"), "bfloat16")),
    ),
    "no root": (NORM_2, "float32", lambda x: model.ordered_sum(x * x)),
    "a root by logarithms": (
        NORM_3,
        "float32",
        lambda x: np.exp(np.log(model.ordered_sum((x * x) * abs(x))) / np.float32(3)),
    ),
    "a cube root by pow": (NORM_3, "float64", lambda x: model.ordered_sum((x * x) * abs(x)) ** (1 / 3)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bits_see_faults(fault, device):
    """The data of the tests above tell each of these faults from what is right, in the result's own dtype."""
    op, name, faulty = FAULTS[fault]
    seen = 0
    for x, dim in vectors(name, device):
        if dim != 1:
            continue
        stored = numpy_of(x)[..., 0]
        wrong = model.encode(faulty(model.decode(stored, name)), name)[:, None]
        right = op.expected(x, dim)
        assert_same_bits(op(x, dim), right)
        seen += int((wrong != right).sum())
    assert seen


@walked("length", [1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 64, 100, 511, 513, 1025, 4097, 8200])
@pytest.mark.parametrize("op", [NORM_INF, NORM_NEG_INF], ids=str)
def test_largest_keeps_nan(op, length, device):
    """One NaN anywhere makes its row NaN, in rows and in columns, beside infinity too; the other rows are numbers."""
    for name in ("float32", "bfloat16", "float64", "complex64", "complex128", "float8_e4m3fn"):
        places = sorted({0, length // 3, length // 2, length - 1})
        rows = data((len(places) + 1, length), name, seed=58).to(torch.complex128 if name in COMPLEX else torch.float64)
        for row, place in enumerate(places):
            rows[row, (place + 1) % length] = 448.0 if name == "float8_e4m3fn" else INF
            rows[row, place] = (-NAN, NAN)[row % 2] if name not in COMPLEX else complex(1, NAN)
        rows = rows.to(dtype_of(name)).to(device)
        for got in (op(rows, 1), op(rows.t().contiguous(), 0), op(rows.t(), 0), op(rows.t().contiguous().t(), 1)):
            assert got.isnan().tolist() == [True] * len(places) + [False]
        for row, whole in zip(rows, got, strict=True):
            assert_same_bits(op(row), whole)
            assert_same_bits(op(row.expand(3, -1)), whole)


# --- numbers at the edges ---------------------------------------------------------------------------------------------


def test_a_half_norm_beyond_its_sum(device):
    """A float16 norm is finite where its sum of squares is not: the root comes before the one rounding."""
    x = torch.full((3, 1000), 300.0, dtype=torch.float16, device=device)
    assert POWSUM_2(x, 1).isinf().all()
    assert_same_bits(NORM_2(x, 1), torch.full((3,), 300 * 1000**0.5).half())
    assert_same_bits(NORM_3(x, 1), torch.full((3,), 3000.0).half())
    assert POWSUM_2(x, 1, dtype=torch.float32).tolist() == [9e7] * 3
    assert NORM_1(x, 1).isinf().all() and NORM_0(x, 1).tolist() == [1000] * 3
    small = torch.full((3, 1000), 2.0**-24, dtype=torch.float16, device=device)
    assert_same_bits(NORM_2(small, 1), torch.full((3,), 2.0**-24 * 1000**0.5).half())


def test_a_count_beyond_its_dtype(device):
    """Elements are counted exactly, and the count is rounded once: 2049 in float16, 257 and 2^24 + 1."""
    for name, count in (("float16", 2049), ("float16", 70_000), ("bfloat16", 257), ("float8_e5m2", 2**24 + 1)):
        x = torch.ones(count, dtype=dtype_of(name), device=device)
        wanted = torch.tensor(float(count), dtype=torch.float64).to(dtype_of(NORM_0.result(name)))
        assert_same_bits(NORM_0(x), wanted)
    ones = torch.ones(1, device=device).expand(2**24 + 3)
    assert float(NORM_0(ones)) == 2**24 + 4 and float(NORM_0(ones, dtype=torch.float64)) == 2**24 + 3


def test_squares_beyond_float32(device):
    """A square that its accumulator cannot hold is infinity or 0, as said; float64 has room."""
    for value, square in ((1e30, INF), (1e-30, 0.0), (1e-21, None), (2.0**64, INF), (2.0**63, None)):
        x = torch.full((2, 700), value, device=device)
        for op in (POWSUM_2, NORM_2):
            got = op.check(x, 1)
            if square is not None:
                assert got.tolist() == [square] * 2
        assert bool((NORM_2(x, 1, dtype=torch.float64).isfinite() & (NORM_2(x, 1, dtype=torch.float64) > 0)).all())
    for value in (1e200, 1e-200, 1e-160):
        x = torch.full((2, 700), value, dtype=torch.float64, device=device)
        POWSUM_2.check(x, 1), NORM_2.check(x, 1), NORM_3.check(x, 1)


@walked("name", ["float32", "float64", "bfloat16", "float16"])
@every_norm
def test_subnormals(op, name, device):
    """Subnormal elements, powers and results are kept."""
    storage = model.STORAGE[name][0]
    if name in ("float32", "float64"):
        tiny = np.finfo(name).smallest_subnormal
        stored = (np.random.default_rng(3).integers(-1000, 1000, 9000) * tiny).astype(storage)
        exponent = {"float32": -70, "float64": -535}[name]  # their squares and cubes are subnormal
        powers = np.exp2(np.random.default_rng(4).uniform(exponent - 4, exponent + 2, 9000)).astype(storage)
        cubes = np.cbrt(powers * np.exp2(exponent / 1.0, dtype=storage)).astype(storage)
    else:
        stored = np.random.default_rng(3).integers(0, 100, 9000).astype(storage)
        powers = cubes = stored
    for values in (stored, powers, cubes):
        x = tensor_of(values[:, None], name, device)
        op.check(x), op.check(x.view(9, 1000), 1), op.check(x.view(1000, 9), 0)
    if op.power in (0, 1) or math.isinf(op.power):
        assert float(op(tensor_of(stored[stored != 0][:, None], name, device))) > 0


EXTREMES = [
    0.0,
    5e-324,
    1e-310,
    2.3e-308,
    1e-200,
    1e-121,
    3.8e-121,
    1e-3,
    1.0,
    3.0,
    1e150,
    3.3e150,
    1e154,
    1e200,
    1.7e308,
]


def test_magnitudes_of_complex128(device):
    """Neither overflow nor underflow on the way: within two units in the last place of the exact magnitude."""
    pairs = list(itertools.product(EXTREMES, EXTREMES))
    z = torch.tensor([complex(a, -b) for a, b in pairs], dtype=torch.complex128, device=device)
    for op in (NORM_1, NORM_INF, NORM_NEG_INF):
        got = op.check(z[:, None], 1)
    assert_same_bits(NORM_1(z[:, None], 1), got)
    for (a, b), magnitude in zip(pairs, got.tolist(), strict=True):
        exact = Fraction(a) ** 2 + Fraction(b) ** 2
        if exact > Fraction(1.7976931348623157e308) ** 2:
            assert magnitude in (INF, 1.7976931348623157e308)
            continue
        low, high = magnitude, magnitude
        for _ in range(2):
            low, high = math.nextafter(low, 0), math.nextafter(high, INF)
        assert low == 0 or Fraction(low) ** 2 <= exact
        assert high == INF or exact <= Fraction(high) ** 2
    NORM_3.check(z[:, None], 1)
    POWSUM_3.check(z[:, None], 1)


def test_magnitudes_of_complex64(device):
    """Correctly rounded from float64 over all of float32's range: no square overflows or vanishes."""
    rng = np.random.default_rng(5)
    parts = np.exp2(rng.uniform(-149, 127.9, (3000, 2))).astype(np.float32)
    z = torch.view_as_complex(torch.from_numpy(parts)).to(device)
    got = NORM_1.check(z[:, None], 1)
    assert bool(got.isfinite().all() & (got > 0).all())
    assert_same_bits(NORM_INF(z[:, None], 1), got)
    # Magnitudes that lie beside the middle of two float32 numbers, nearer than any guess at a root is.
    a, scales = rng.uniform(1, 2, 5000).astype(np.float32), np.exp2(rng.integers(-100, 100, 5000))
    wide = a.astype(np.float64)
    b = np.sqrt((wide + 2.0**-24) ** 2 - wide**2).astype(np.float32)
    for _ in range(3):
        parts = (np.stack([a, b], 1) * scales[:, None]).astype(np.float32)
        z = torch.view_as_complex(torch.from_numpy(parts)).to(device)
        got = NORM_1.check(z[:, None], 1)
        assert_same_bits(NORM_INF(z[:, None], 1), got)
        assert_same_bits(NORM_NEG_INF(z[:, None], 1), got)
        b = np.nextafter(b, np.float32(INF))
    large = torch.tensor([complex(3e38, 3e38)], device=device)
    assert NORM_1(large).item() == INF and math.isfinite(NORM_1(large, dtype=torch.complex128).item())


SPECIAL = [0.0, -0.0, 1.0, -2.0, INF, -INF, NAN]


@walked("name", ["float32", "float16", "bfloat16", "float64", "float8_e5m2", "complex64", "complex128"])
@every_norm
def test_special_numbers(op, name, device):
    """NaN, infinities and zeros of both signs: the model's results, and torch's; no result is -0."""
    pairs = list(itertools.product(SPECIAL, SPECIAL))
    values = [complex(*pair) for pair in pairs] if name in COMPLEX else SPECIAL
    x = torch.tensor(list(itertools.product(values, values))).to(dtype_of(name)).to(device)
    got = op.check(x, 1)
    assert_same_bits(op(x.t().contiguous(), 0), got)
    assert not bool(got.signbit()[~got.isnan()].any())
    if name in FLOATING and "float8" not in name and op.rooted:
        torch.testing.assert_close(got, op.torch(x, 1), equal_nan=True)
        zeros = torch.zeros(4, 3, dtype=x.dtype, device=device)
        assert_same_bits(op(-zeros, 1), zeros[:, 0])


def test_nan_counts(device):
    """NaN is not zero; zeros of both signs are; a complex number is not zero if one part is not."""
    assert float(NORM_0(torch.tensor([0.0, -0.0, NAN, INF, 1e-45], device=device))) == 3
    z = torch.tensor([0j, complex(0, -0.0), complex(0, 1), complex(NAN, 0), 2 + 0j], device=device)
    assert float(NORM_0(z)) == 3


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("op", [NORM_2, NORM_3], ids=str)
def test_roots_are_correctly_rounded(op, name, device):
    """Of sums of every size, subnormal ones too, of exact powers and of their neighbours, and of every small count."""
    rng = np.random.default_rng(6)
    low, high = {"float32": (-149, 128), "float64": (-1074, 1024)}[name]
    exponents = rng.uniform(low, high - 2, (3000, 1)) / op.power
    pairs = np.exp2(exponents + rng.uniform(-3, 0, (3000, 2))).astype(name)
    whole = np.arange(1, 200, dtype=name)
    near = np.stack([np.nextafter(whole, np.inf, dtype=name), np.zeros_like(whole)], 1)
    pairs = np.concatenate([pairs, near, np.stack([whole, np.full_like(whole, 2.0**-8)], 1)])
    got = op.check(torch.from_numpy(pairs).to(device), 1)
    assert bool(got.isfinite().all()) and int((got > 0).sum()) > 3000
    assert_same_bits(op(torch.from_numpy(whole)[:, None].to(device), 1), torch.from_numpy(whole))
    ones = torch.ones(1, dtype=dtype_of(name), device=device)
    for count in (2, 3, 5, 7, 8, 9, 26, 27, 28, 1000, 4097, 123_456):
        (root,) = model.roots(np.array([count], name), op.power)
        assert float(op(ones.expand(count))) == root


# --- errors -----------------------------------------------------------------------------------------------------------

# What torch.linalg.vector_norm refuses, from f(x, power): class and words must be its own.
REFUSED = {
    "integers": lambda f, x, p: f(x.int(), p),
    "bool": lambda f, x, p: f(x.bool(), p),
    "bits": lambda f, x, p: f(torch.empty(3, dtype=torch.bits8), p),
    "a dtype of integers": lambda f, x, p: f(x, p, dtype=torch.int32),
    "a dtype of bits": lambda f, x, p: f(x, p, dtype=torch.bits8),
    "a narrower dtype": lambda f, x, p: f(x.double(), p, dtype=torch.float32),
    "another small dtype": lambda f, x, p: f(x.bfloat16(), p, dtype=torch.float16),
    "a narrower complex dtype": lambda f, x, p: f(x.cdouble(), p, dtype=torch.complex64),
    "complex for real": lambda f, x, p: f(x, p, dtype=torch.complex64),
    "real for complex": lambda f, x, p: f(x.cfloat(), p, dtype=torch.float32),
    "a dim twice": lambda f, x, p: f(x, p, (0, 0)),
    "a dim out of range": lambda f, x, p: f(x, p, 2),
    "one of the dims out of range": lambda f, x, p: f(x, p, (0, -3)),
    "dim of text": lambda f, x, p: f(x, p, "a"),
    "dim of a float": lambda f, x, p: f(x, p, 1.0),
    "dim of bool": lambda f, x, p: f(x, p, True),
    "keepdim of an int": lambda f, x, p: f(x, p, 0, 1),
    "an input of a list": lambda f, x, p: f([1.0], p),
    "an input of text": lambda f, x, p: f("x", p),
    "dtype of text": lambda f, x, p: f(x, p, dtype="float"),
    "ord of text": lambda f, x, p: f(x, "2"),
    "ord of None": lambda f, x, p: f(x, None),
    "ord of a list": lambda f, x, p: f(x, [2]),
    "ord of a tensor that needs a gradient": lambda f, x, p: f(x, torch.tensor(2.0, requires_grad=True)),
    "ord of several": lambda f, x, p: f(x, torch.tensor([2.0, 3.0])),
    "a complex ord": lambda f, x, p: f(x, 2j),
    "an unknown argument": lambda f, x, p: f(x, p, axes=1),
    "p": lambda f, x, p: f(x, p=p),
    "no input": lambda f, x, p: f(ord=p),
    "an input that requires gradients, with out": lambda f, x, p: f(
        x.clone().requires_grad_(), p, out=torch.empty((), device=x.device)
    ),
    "an out that is a list": lambda f, x, p: f(x, p, out=[1.0]),
}


def words(error):
    """The first line of a message, without the name of the function and the place of an argument."""
    line = str(error.value).split("\n")[0].split(" - got")[0]
    return re.sub(r"^[\w.]+(?:\(\):|:|\(\)) ?| \(position \d\)", "", line)


@walked("power", [2, 0, INF])
@walked("call", REFUSED)
def test_refused_as_by_torch(call, power, device):
    """A call that torch refuses is refused by the same class with the same words, and so on meta tensors."""
    x = torch.ones(2, 3, device=device)
    with pytest.raises(Exception) as theirs:
        REFUSED[call](torch.linalg.vector_norm, x, power)
    functions = [torch_reduce.vector_norm] + [torch_reduce.powsum] * math.isfinite(power)
    for ours, place in itertools.product(functions, (device, "meta")):
        wanted = class_of_ours(theirs.type, str(theirs.value))
        with pytest.raises(wanted) as caught:
            REFUSED[call](ours, x.to(place), power)
        assert caught.type is wanted and words(caught) == words(theirs)


@pytest.mark.parametrize("op", [NORM_INF, NORM_NEG_INF], ids=str)
def test_largest_of_nothing(op, device):
    """The words of torch's error, but for a space that it lacks; it names the dim, or says that the tensor is empty."""
    calls = [((3, 0), 1), ((3, 0), (0, 1)), ((0, 3), 0), ((0,), 0), ((2, 0, 0), (2,)), ((3, 0), None), ((0,), ())]
    for (shape, dim), place in itertools.product(calls, (device, "meta")):
        said = []
        for f, where in ((op.torch, device), (op.function, place), (op.operator, place)):
            with pytest.raises(RuntimeError, match="does not have an identity") as caught:
                f(torch.empty(shape, device=where), dim)
            said.append(words(caught).replace("because", " because").replace("  ", " "))
        assert said[1] == said[2] == said[0]


def test_out_of_another_dtype(device):
    """out has the result's dtype, or the call is refused in torch's words for it; nothing is written."""
    x = torch.ones(2, 3, device=device)
    calls = [(x, {}, torch.float64), (x, dict(dtype=torch.float64), torch.float32), (x.cfloat(), {}, torch.complex64)]
    calls += [(x.bfloat16(), {}, torch.float32), (x, {}, torch.int64)]
    for one, kwargs, dtype in calls:
        for f, place in itertools.product((torch_reduce.vector_norm, torch_reduce.powsum), (device, "meta")):
            out = torch.full((2,), 7, dtype=dtype, device=place)
            with pytest.raises(RuntimeError, match="Expected out tensor to have dtype .*, but got .* instead"):
                f(one.to(place), 2, 1, out=out, **kwargs)
            assert out._version == 0
        with pytest.raises(RuntimeError, match="(?i)expected out tensor.* dtype"):
            torch.linalg.vector_norm(one, 2, 1, out=torch.zeros(2, dtype=dtype, device=device), **kwargs)


@walked("ord", [4, -1, 0.5, 2.5, -2, 1e300, NAN, 1 << 40])
def test_other_ords(ord, device):
    """An ord that is none of ours is refused by name: NotImplementedError says what there is."""
    x, out = torch.ones(3, device=device), torch.zeros((), device=device)
    for kwargs in ({}, dict(out=out), dict(dtype=torch.float64)):
        for f, name in (
            (torch_reduce.vector_norm, "vector_norm"),
            (torch.ops.gpureduce.linalg_vector_norm, "linalg_vector_norm"),
        ):
            said = rf"^{name}(\(\))?: ord must be 0, 1, 2, 3, inf or -inf, but is"
            with pytest.raises(NotImplementedError, match=said):
                f(x, ord, **kwargs)
        for f, name in ((torch_reduce.powsum, "powsum"), (torch.ops.gpureduce.linalg_powsum, "(linalg_)?powsum")):
            with pytest.raises(NotImplementedError, match=rf"^{name}(\(\))?: ord must be 0, 1, 2 or 3, but is"):
                f(x, ord, **kwargs)
    assert out._version == 0


def test_powsum_of_infinity(device):
    """inf and -inf are norms alone."""
    for ord in (INF, -INF):
        with pytest.raises(NotImplementedError, match=r"^powsum\(\): ord must be 0, 1, 2 or 3, but is -?inf"):
            torch_reduce.powsum(torch.ones(3, device=device), ord)


# --- ways to call it --------------------------------------------------------------------------------------------------


@every_norm
def test_forms(op, device):
    """The function, the operator of all powers and that of this one are the same; ord is a number of any kind."""
    x = data((7, 300), "float32", seed=62, device=device)
    function = torch_reduce.vector_norm if op.rooted else torch_reduce.powsum
    operator = torch.ops.gpureduce.linalg_vector_norm if op.rooted else torch.ops.gpureduce.linalg_powsum
    power = op.power
    wanted = op(x, [1])
    ords = [power, float(power), np.float64(power), np.float32(power), torch.tensor(float(power))]
    if not math.isinf(power):
        ords += [np.int64(power), torch.tensor(power)]
    for ord in ords:
        assert_same_bits(function(x, ord, 1), wanted)
    assert_same_bits(function(x, power, dim=1), wanted)
    assert_same_bits(function(a=x, ord=power, axis=1), wanted)
    assert_same_bits(function(x=x, ord=power, axis=np.int64(1), keepdims=True), wanted[:, None])
    assert_same_bits(function(input=x, ord=power, dim=torch.tensor(1)), wanted)
    assert_same_bits(operator(x, power, 1), wanted)
    assert_same_bits(operator(x, power, [1], True, dtype=torch.float64), op(x, [1], True, dtype=torch.float64))
    assert_same_bits(function(x, power, 1, dtype=float), op(x, [1], dtype=torch.float64))
    assert_same_bits(function(x.cfloat(), power, 1, dtype=complex), op(x.cfloat(), [1], dtype=torch.complex128))
    out = torch.zeros(7, device=device)
    assert operator(x, power, 1, out=out) is out
    assert_same_bits(out, wanted)
    if power == 2:
        assert_same_bits(function(x), op(x))
        assert_same_bits(operator(x), op(x))
    if power == 1:
        assert_same_bits(function(x, True, 1), wanted)


def test_powsums_of_zero_and_one(device):
    """The sums of powers 0 and 1 are the norms of 0 and 1."""
    x = data((3, 700), "bfloat16", seed=63, device=device)
    for ord in (0, 1):
        assert_same_bits(torch_reduce.powsum(x, ord, 1), torch_reduce.vector_norm(x, ord, 1))


@pytest.mark.parametrize("function", [torch_reduce.vector_norm, torch_reduce.powsum])
def test_without_the_short_way(function, device, monkeypatch):
    """Calls that the short way does not take have the same results and errors."""
    x = data((3, 700), "float32", seed=64, device=device)
    calls = [(x,), (x, 3, 1), (x, 2, (0, 1), True), (x, 1.0, -1)]
    direct = [function(*call) for call in calls]
    assert all(callable(_sum._directs(kind, False)[2]) for kind in ("norm", "powsum"))
    monkeypatch.setattr(_sum, "_directs", lambda kind, exact: {})
    for call, wanted in zip(calls, direct, strict=True):
        assert_same_bits(function(*call), wanted)
        monkeypatch.setattr(_library, "entry", lambda name: None)
        assert_same_bits(function(*call), wanted)


def test_subclasses(device):
    """A subclass sees the operator of all powers, with the arguments of its schema."""
    seen = []

    class Subclass(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append((func, args[1:], kwargs))
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(3, 4, device=device).as_subclass(Subclass)
    ours = torch_reduce.vector_norm(x, 3, axis=np.int64(1), keepdims=True, dtype=float)
    assert type(ours) is Subclass and ours.shape == (3, 1) and ours.dtype == torch.float64
    assert seen[0] == (torch.ops.gpureduce.linalg_vector_norm.default, (3, 1, True), dict(dtype=torch.float64))


def test_no_integer_results(device):
    """A norm is never an integer, and its input never changes."""
    x = data((3, 40), "float32", seed=65, device=device)
    before = x.clone()
    for op in ALL:
        for target in ("int64", "uint8", "bool"):
            with pytest.raises(RuntimeError, match="dtype should be floating point or complex"):
                op(x, dtype=dtype_of(target))
        op(x), op(x, 0), op(x, 1)
    assert_same_bits(x, before)


# --- gradients --------------------------------------------------------------------------------------------------------

SMOOTH = [op for op in ALL if op.power != 0]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_gradient_of_a_small_norm(name, device):
    """The gradient of a norm of 2 is a direction: it is no longer than the incoming one, however small the norm."""
    tiny = torch.finfo(dtype_of(name)).tiny
    for value in (tiny, tiny * 64):
        x = torch.full((1, 1), value, dtype=dtype_of(name), device=device)
        if not float(NORM_2(x)) > 0:
            x = torch.full_like(x, 2.0**-60)
        x.requires_grad_()
        for op in (NORM_2, NORM_2.torch):
            for factor in (1.0, 2.0**15):  # as a scaled loss has it
                (grad,) = torch.autograd.grad(op(x), x, torch.tensor(factor, dtype=x.dtype, device=device))
                torch.testing.assert_close(grad, torch.full_like(x, factor))


@pytest.mark.parametrize("name", ["complex64", "complex128"])
@pytest.mark.parametrize("op", [NORM_INF, NORM_NEG_INF], ids=str)
def test_gradient_of_the_largest(op, name, device):
    """Some element of every row has the magnitude that the norm found, and so the gradient, whatever its last bit."""
    for factor in (1.0, 1e-15, 1e15):
        z = data((2000, 3), name, seed=81, device=device).mul_(factor).requires_grad_()
        for dtype in (None, torch.complex128):
            (grad,) = torch.autograd.grad(op(z, [1], dtype=dtype).sum(), z)
            torch.testing.assert_close(grad.abs().sum(1), torch.ones(2000, dtype=z.real.dtype, device=device))


def test_a_count_has_no_gradient(device):
    """As torch's, it has a node; its gradient is none."""
    x = leaf((3, 4), "float32", device)
    for function in (NORM_0, NORM_0.function, NORM_0.torch):
        assert torch.autograd.grad(function(x).sum(), x, allow_unused=True) == (None,)


def test_graph_of_a_norm(device):
    """Nodes are named; an input that changed before the backward pass is noticed; a freed graph says so."""
    x = leaf((3, 4), "float32", device)
    for op in SMOOTH:
        assert op(x).grad_fn.name() == f"gpureduce_{op}_backward"
    inner = x + 1
    y = NORM_2(inner, [1])
    inner.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x)
    y = NORM_2(x + 1)
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()
    with torch.no_grad():
        assert not NORM_2(x).requires_grad
    y = NORM_2(x, [1])
    y.mul_(2)  # the result is saved, and was changed
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("rooted", [True, False])
def test_opcheck_of_all_powers(rooted, device):
    """The operators that take ord pass torch.library.opcheck."""
    operator = torch.ops.gpureduce.linalg_vector_norm if rooted else torch.ops.gpureduce.linalg_powsum
    x = data((3, 4, 5), "float32", seed=74, device=device)
    for ord in (0, 1, 2, 3, INF, -INF) if rooted else (0, 1, 2, 3):
        opcheck(operator.default, (x, ord, [1], True))
    opcheck(operator.out, (x, 2, [1]), dict(out=torch.empty(3, 5, device=device)))


@every_norm
def test_vmap_of_all_powers(op, device):
    """The operator of all powers takes a whole batch at once, too, and nested."""
    x = data((3, 4, 50), "float32", seed=83, device=device)
    operator = torch.ops.gpureduce.linalg_vector_norm if op.rooted else torch.ops.gpureduce.linalg_powsum
    with Calls() as calls:
        torch.vmap(lambda x: operator(x, op.power, [0]))(x)
        torch.vmap(torch.vmap(lambda x: operator(x, op.power, [0])))(x)
    assert calls.names == [f"{op}.default"] * 2


# --- vmap, autocast, tracing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", POWSUMS, ids=str)
def test_autocast_leaves_powsums(op):
    """A sum of powers stays what it is, as torch's own does."""
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=torch.float16, device="cuda")
        assert op.function(x, 1).dtype == torch.float16
        assert torch.ops.aten.linalg__powsum(x, op.power, [1]).dtype == torch.float16


# --- accuracy ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_no_worse_than_torch(name, device):
    """Over many random vectors the root mean square error is no worse than torch's, to within an eighth."""
    for length in (100, 1000, 4096, 50_257):
        rng = np.random.default_rng(7)
        x = torch.from_numpy(rng.standard_normal((240, length)).astype(np.float32)).to(dtype_of(name))
        views = (x.to(device), 1), (x.t().contiguous().to(device), 0)
        for op in (NORM_1, NORM_2, NORM_3):
            exact = (x.double().abs() ** op.power).sum(1) ** (1 / op.power)
            for view, dim in views:
                found = ((f(view, dim).double().cpu() - exact).square().mean().sqrt() for f in (op, op.torch))
                ours, theirs = map(float, found)
                assert ours <= 1.125 * theirs + 1e-9 * float(exact.mean()), f"{op} of {length}: {ours}, not {theirs}"


@pytest.mark.parametrize("op", [NORM_1, NORM_2, NORM_3, POWSUM_2, POWSUM_3], ids=str)
def test_error_bound(op, device):
    """The relative error stays below the roundings that an element goes through: powers, additions, a root."""
    for length in (10, 1000, 5000, 65_536, 1 << 18):
        x = torch.from_numpy(np.random.default_rng(8).standard_normal(length).astype(np.float32))
        exact = float((x.double().abs() ** op.power).sum()) ** (1 / op.power if op.rooted else 1)
        lanes = length // 4096 * 512 + min(512, length % 4096)
        additions = min(7, math.ceil(length / 512) - 1) + math.ceil(math.log2(lanes))
        bound = (additions + op.power) * 2.0**-24 * 1.001
        assert abs(float(op(x.to(device))) - exact) <= bound * exact


# --- CUDA -------------------------------------------------------------------------------------------------------------
