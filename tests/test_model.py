"""The NumPy model is itself right: it gives the pinned bits, and decodes and rounds as torch does."""

import hashlib
import itertools
import json
import math
import pathlib
from fractions import Fraction

import numpy as np
import pytest
import torch

import model
from support import numpy_of, tensor_of

GOLDEN = pathlib.Path(__file__).parent / "data" / "golden.json"
CASES = json.loads(GOLDEN.read_text())


def test_golden_file_is_unchanged():
    """The pinned results never change: order version 1 is a permanent contract."""
    digest = hashlib.sha256(GOLDEN.read_bytes()).hexdigest()
    assert digest == "433b40a0ed41b47f6c2120e122163f7aa22df8b5d03b5c51e0623933e02af1fc"
    assert len(CASES) == 144


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_model_gives_the_pinned_results(dtype):
    """The model recomputes every pinned result of a dtype from value(i) and the order alone."""
    wrong = []
    for case in (c for c in CASES if c["dtype"] == dtype):
        target = "float64" if dtype == "float64" else "float32"
        data = model.value(
            np.arange(sum(n * s for n, s in zip(case["shape"], case["strides"], strict=True)) + 1), dtype
        )
        got = model.reduce(data, dtype, case["shape"], case["strides"], 0, case["dims"], target)
        bits = [format(int(v), "x") for v in got.view(np.uint64 if dtype == "float64" else np.uint32).reshape(-1)]
        if bits != case["bits"]:
            wrong.append(case)
    assert not wrong


def test_order_against_its_plain_reading():
    """The vectorised order equals a word-by-word scalar reading of the contract."""
    rng = np.random.default_rng(0)

    def plain(x):
        row = []
        for start in range(0, len(x), 4096):
            chunk = x[start : start + 4096]
            for lane in range(min(512, len(chunk))):
                total = chunk[lane]
                for i in range(lane + 512, len(chunk), 512):
                    total = np.float32(total + chunk[i])
                row.append(total)
        while len(row) > 1:
            row = [row[i] + row[i + 1] if i + 1 < len(row) else row[i] for i in range(0, len(row), 2)]
        return row[0]

    for length in [1, 2, 3, 7, 511, 512, 513, 1023, 1025, 4095, 4096, 4097, 5000, 8191, 12289 + 700]:
        x = rng.standard_normal(length).astype(np.float32)
        assert model.ordered_sum(x[None])[0] == plain(x)


@pytest.mark.parametrize("period,length", [(7, 50000), (2051, 100003), (4096, 40960), (1, 12345)])
def test_periodic_sum(period, length):
    """The shortcut for endless inputs equals the sum over the written-out input."""
    pattern = np.random.default_rng(1).standard_normal(period).astype(np.float32)
    assert model.periodic_sum(pattern, length) == model.ordered_sum(np.resize(pattern, length)[None])[0]


@pytest.mark.parametrize("name", list(model.FORMATS))
def test_small_floats_decode_as_torch(name):
    """Every code of a small float has the value that torch gives it."""
    codes = np.arange(1 << (8 * model.itemsize(name))).astype(model.STORAGE[name][0])
    theirs = tensor_of(codes[:, None], name).to(torch.float64).numpy()
    ours = model.decode(codes, name).astype(np.float64)
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours[~np.isnan(ours)]), np.signbit(theirs[~np.isnan(ours)]))


@pytest.mark.parametrize("name", list(model.FORMATS))
def test_small_floats_round_as_torch(name):
    """Rounding from float32 is torch's: nearest, ties to even, overflow and subnormals included."""
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    numbers = model._ladder(name)
    halfway = (numbers[1:] + numbers[:-1]) / 2
    with np.errstate(over="ignore"):
        near = np.concatenate([halfway, np.nextafter(halfway, 0), np.nextafter(halfway, np.inf)]).astype(np.float32)
    x = np.concatenate([bits.view(np.float32), near, -near, np.float32([0, -0.0, np.inf, -np.inf, np.nan])])
    if name == "float8_e4m3fn":  # beyond, torch's answer depends on its version; the contract's is NaN
        assert np.isnan(model.decode(model.encode(np.float32([464.01, -1e9, np.inf]), name), name)).all()
        x = x[~(np.abs(x) > 464)]
    theirs = numpy_of(torch.from_numpy(x).to(getattr(torch, name)))[..., 0]
    ours = model.encode(x, name)
    theirs, ours = model.decode(theirs, name), model.decode(ours, name)
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours[~np.isnan(ours)]), np.signbit(theirs[~np.isnan(ours)]))


def test_rounding_happens_once():
    """Values just beside a tie of the small format go to their side, even where float32 would make them a tie."""
    above, below = np.nextafter(1 + 2.0**-11, 2), np.nextafter(1 + 2.0**-11, 1)
    assert list(model.encode(np.array([1 + 2.0**-11, above, below]), "float16")) == [0x3C00, 0x3C01, 0x3C00]
    big = np.array([2**62 + 2**54, 2**62 + 2**54 + 1, 2**62 + 2**54 - 1, -(2**63), 2**63 - 1], np.int64)
    assert [hex(c) for c in model.encode(big, "bfloat16")] == ["0x5e80", "0x5e81", "0x5e80", "0xdf00", "0x5f00"]


def test_integers_from_floats():
    """Conversion to integers goes towards zero and wraps modulo 2^64."""
    x = np.array([1.9, -1.9, 2.0**63, -(2.0**63), 2.0**64, np.nan, -np.inf, 300.7])
    assert list(model.to_integer(x)) == [1, -1, -(2**63), -(2**63), -(2**63), -(2**63), -(2**63), 300]
    assert list(model.encode(model.to_integer(x), "uint8"))[-1] == 300 - 256


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_roots_are_the_nearest(name, degree):
    """A root lies between the middles to its neighbours, exactly: random ones, powers, subnormals."""
    rng = np.random.default_rng(3)
    bits = {"float32": np.uint32, "float64": np.uint64}[name]
    tiny, large = np.finfo(name).smallest_subnormal, np.finfo(name).max
    x = rng.integers(1, np.array(large).view(bits), 1500, dtype=bits).view(name)
    powers = np.arange(1, 100, dtype=name) ** degree
    x = np.concatenate([x, powers, np.nextafter(powers, np.inf, dtype=name), tiny * np.arange(1, 50, dtype=name)])
    for value, root in zip(x, model.roots(x, degree), strict=True):
        above, below = (Fraction(float(np.nextafter(root, root.dtype.type(to)))) for to in (np.inf, 0))
        exact, middle = Fraction(float(value)), Fraction(float(root))
        assert ((middle + below) / 2) ** degree <= exact <= ((middle + above) / 2) ** degree
    assert np.array_equal(model.roots(powers, degree), np.arange(1, 100, dtype=name))
    special = np.array([0, np.inf, np.nan], name)
    assert np.array_equal(model.roots(special, degree), special, equal_nan=True)


def test_integer_roots():
    """The largest integer whose power does not exceed n."""
    for degree in (2, 3):
        for n in [*range(1, 1000), 10**40, 7**60, 7**60 - 1, (1 << 200) + 1]:
            root = model.integer_root(n, degree)
            assert root**degree <= n < (root + 1) ** degree


def test_a_float32_cube_root_by_way_of_float64():
    """Rounded to float64 first, no float32's cube root becomes another float32: docs/order.md allows that way.

    Cube roots near the middle of two float32 are those that could; all numbers from 1 to 8 are looked at. None is
    within 8 units in the last place of a float64, so that cbrt() may be wrong by some (csrc/core/numeric/finish.h).
    """
    near, nearest = [], 1 << 28
    for start in range(0x3F800000, 0x41000000, 1 << 20):
        x = np.arange(start, start + (1 << 20), dtype=np.uint32).view(np.float32).astype(np.float64)
        below = np.cbrt(x).view(np.int64) & ((1 << 29) - 1)  # what float32 has no digits for
        distance = np.abs(below - (1 << 28))
        nearest = min(nearest, distance.min())
        near += x[distance <= 64].tolist()
    assert near
    assert nearest > 8
    for x in near:
        assert np.float32(model.rounded_root(x, 3, 53)) == np.float32(model.rounded_root(x, 3, 24))


@pytest.mark.parametrize("source", ["float32", "float64", "bfloat16", "complex64", "complex128"])
def test_norms_against_their_plain_reading(source):
    """The vectorised norms equal a scalar reading of docs/order.md, in Python's float64 and exact fractions."""
    rng = np.random.default_rng(4)
    parts = model.STORAGE[source][1]
    part = model.PART.get(source, source)
    real = np.float64 if part == "float64" else np.float32
    stored = model.encode(np.exp2(rng.uniform(-6, 6, (40, parts))) * rng.choice([-1, 1, 1], (40, parts)), source)
    elements = model.decode(stored, source).astype(real)

    def rounded(exact):
        return real(exact.numerator / exact.denominator) if real is np.float64 else np.float32(np.float64(exact))

    def square(x):
        return rounded(Fraction(float(x)) ** 2)

    def magnitude(z):
        if parts == 1:
            return abs(z[0])
        if real is np.float32:
            return np.float32(math.sqrt(float(z[0]) ** 2 + float(z[1]) ** 2))
        return math.sqrt(square(z[0]) + square(z[1]))

    def of_power(z, power):
        if power == 2:
            return square(z[0]) if parts == 1 else real(square(z[0]) + square(z[1]))
        x = magnitude(z)
        return rounded(Fraction(float(square(x))) * Fraction(float(x))) if power == 3 else x

    target = "float64" if real is np.float64 else "float32"
    for power in (0, 1, 2, 3, math.inf, -math.inf):
        added = model.powers(stored, source, target, power)
        if power == 0:
            assert added.tolist() == [1] * 40
            continue
        wanted = [of_power(z, power) for z in elements]
        assert added.dtype == real and added.tolist() == [float(x) for x in wanted]
        (got,) = model.norms(added[None], power)
        if math.isinf(power):
            assert got == (max(wanted) if power > 0 else min(wanted))
        else:
            (total,) = model.ordered_sum(np.array(wanted, real)[None])
            assert got == (total if power == 1 else model.roots(np.array([total]), int(power))[0])


def test_fused():
    """a * b + c is rounded once, also where it lies so near the middle of two numbers that float64 does not tell."""
    steps = np.arange(1, 60)
    signs = [np.array(each)[:, None] for each in zip(*itertools.product((1, -1), repeat=3), strict=True)]
    a = (signs[0] * 2.0**-12 * (1 + signs[1] * steps * 2.0**-23)).astype(np.float32)
    b = (2.0**-12 * (1 - signs[2] * steps * 2.0**-23)).astype(np.float32)
    c = np.broadcast_to((signs[0] * (1 + 2.0**-23)).astype(np.float32), a.shape)
    found = model.fused(a, b, c)
    for x, y, z, ours in zip(*(each.ravel().tolist() for each in (a, b, c, found)), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = [np.float32(z), *(np.nextafter(np.float32(z), np.float32(way)) for way in (-np.inf, np.inf))]
        distances = sorted(abs(Fraction(float(each)) - exact) for each in near)
        assert distances[0] < distances[1] and abs(Fraction(ours) - exact) == distances[0]
    assert (found != (a.astype(np.float64) * b + c).astype(np.float32)).any()
