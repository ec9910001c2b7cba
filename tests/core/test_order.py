"""The order of additions: the op gives the contract's bits for every dtype, length and view, on every device."""

import json
import pathlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import model
from support import (
    COMPLEX,
    DTYPES,
    FLOATING,
    INTEGER,
    assert_same_bits,
    check,
    data,
    dtype_of,
    numpy_of,
    random_view,
    tensor_of,
    walked,
)

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

SUM = torch.ops.gpureduce.sum
CASES = json.loads((pathlib.Path(__file__).parents[1] / "data" / "golden.json").read_text())

# Around every boundary of lanes, chunks, warps, vectors, blocks and joins.
LENGTHS = sorted(
    {*range(21), 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023, 1024, 1025}
    | {1535, 1536, 1537, 2047, 2048, 2049, 3583, 3584, 3585, 4607, 4608, 4609, 50257, 100003}
    | {k * 4096 + d for k in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33) for d in (-1, 0, 1)}
    | {(1 << p) + d for p in (16, 17, 18) for d in (-1, 0, 1)}
)


@walked("case", CASES)
def test_pinned_results(case, device):
    """The 144 pinned results of order version 1, bit for bit."""
    name, shape, strides = case["dtype"], case["shape"], case["strides"]
    size = 1 + sum(n * s for n, s in zip(shape, strides, strict=True))
    buffer = tensor_of(model.value(np.arange(size), name)[:, None], name, device)
    wide = torch.float64 if name == "float64" else torch.float32
    result = torch.ops.gpureduce.sum(buffer.as_strided(shape, strides), case["dims"], dtype=wide)
    bits = numpy_of(result.cpu()).view(np.uint64 if name == "float64" else np.uint32).reshape(-1)
    assert [format(int(b), "x") for b in bits] == case["bits"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_length_as_a_vector(name, device):
    """A contiguous vector, for lengths on both sides of every boundary."""
    buffer = data((LENGTHS[-1],), name, seed=1, device=device)
    for length in LENGTHS:
        check(buffer[:length])


@pytest.mark.parametrize("name", DTYPES)
def test_every_length_as_rows_and_columns(name, device):
    """Three rows and three columns, for lengths on both sides of every boundary."""
    lengths = [n for n in LENGTHS if n <= 16385]
    buffer = data((3 * lengths[-1],), name, seed=2, device=device)
    for length in lengths:
        check(buffer[: 3 * length].view(3, length), 1)
        check(buffer[: 3 * length].view(length, 3), 0)


@pytest.mark.parametrize("name", DTYPES)
def test_a_million_elements(name, device):
    """2^20 + 4097 elements: many chunks, a tail of one lane, several levels of joining."""
    check(data(((1 << 20) + 4097,), name, seed=3, device=device))


@walked("target", ["float32", "float64", "float16", "bfloat16"])
@walked("name", ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"])
def test_order_does_not_mention_the_dtype(name, target, device):
    """sum(x, dtype=t) has the bits of summing x converted to the accumulator first: inputs are never rounded."""
    x = data((5, 9001), name, seed=5, device=device)
    wide = torch.float64 if "float64" in (name, target) else torch.float32
    first = torch.ops.gpureduce.sum(x.to(wide), 1, dtype=dtype_of(target))
    assert_same_bits(torch.ops.gpureduce.sum(x, 1, dtype=dtype_of(target)), first)


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(draw=st.data())
def test_random_views(device, draw):
    """Any shape, permutation, step, expansion, overlap, offset, set of reduced dims and dtype has the model's bits."""
    name = draw.draw(st.sampled_from(DTYPES))
    tensor, dim, keepdim = random_view(lambda a, b: draw.draw(st.integers(a, b)), name, device)
    target = draw.draw(st.sampled_from([None, *DTYPES]))
    check(tensor, dim, keepdim, target and dtype_of(target))


@pytest.mark.parametrize("name", FLOATING + COMPLEX)
def test_negative_zero_is_kept(name, device):
    """A sum of negative zeros is a negative zero, for any length, as a row and as columns; an empty one is +0."""
    zero = torch.full((3 * 4608,), -0.0, dtype=torch.float64).to(dtype_of(model.PART.get(name, name)))
    parts = model.STORAGE[name][1]
    buffer = tensor_of(np.repeat(numpy_of(zero), parts, axis=1), name, device)
    for length in (1, 2, 3, 31, 33, 511, 513, 600, 4095, 4097, 4608):
        for view, dim in (
            (buffer[:length], 0),
            (buffer[: 3 * length].view(length, 3), 0),
            (buffer[: 3 * length].view(3, -1), 1),
        ):
            result = check(view, dim)
            stored = numpy_of(result)
            assert np.signbit(model.decode(stored, name_of_result(name))).all()
    assert not np.signbit(model.decode(numpy_of(check(buffer[:0])), name_of_result(name))).any()


def name_of_result(name):
    """The natural result dtype, by its part."""
    name = model.natural_result(name)
    return model.PART.get(name, name)


@pytest.mark.parametrize("name,target", [("float16", "float16"), ("bfloat16", "bfloat16"), ("float32", "float32"),
                                         ("float8_e5m2", "float8_e5m2"), ("float8_e4m3fn", "float8_e4m3fn"),
                                         ("float64", "float32"), ("float64", "float16"), ("int64", "float16"),
                                         ("int32", "float8_e5m2"), ("complex64", "complex32")])  # fmt: skip
def test_overflow_of_the_result(name, target, device):
    """A result too large for its dtype is infinity (NaN in float8_e4m3fn), decided by the one rounding."""
    largest = {"float8_e5m2": 57344.0, "float8_e4m3fn": 448.0, "float16": 65504.0, "complex32": 65504.0}.get(
        target, 3.38e38
    )
    if name in ("int64", "int32"):
        values = torch.tensor([[65504, 8], [65504, 16], [-65504, -16], [65504, -65504], [61440, 0], [57344, 4095]])
    else:
        step = largest / 2048
        values = torch.tensor(
            [[largest, i * step] for i in range(70)] + [[-largest, -i * step] for i in range(70)]
        ).double()
    check(values.to(dtype_of(name)).to(device), 1, dtype=dtype_of(target))


@pytest.mark.parametrize("name", ["float32", "float64", "complex64"])
def test_subnormals(name, device):
    """Subnormal elements and results are kept, in every path."""
    part = model.PART.get(name, name)
    storage, parts = model.STORAGE[name]
    tiny = np.finfo(storage).smallest_subnormal
    rng = np.random.default_rng(7)
    stored = (rng.integers(-1000, 1000, (3 * 9000, parts)) * tiny).astype(storage)
    assert np.count_nonzero(stored) > 1000 and np.abs(stored).max() < np.finfo(part).tiny
    x = tensor_of(stored, name, device)
    for view, dim in ((x, 0), (x.view(3, -1), 1), (x.view(-1, 3), 0), (x[::2], 0), (x[:40].view(20, 2), 1)):
        result = check(view, dim)
        assert (result != 0).any()


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "float8_e5m2"])
def test_flush_denormal_changes_nothing(name):
    """torch.set_flush_denormal(True), which flushes in the calling thread, does not change the bits on the CPU."""
    if name in ("float32", "float64"):
        tiny = float(np.finfo(name).smallest_subnormal)
        x = (torch.arange(-4096, 4096 + 9000).double() * tiny).to(dtype_of(name))
    else:
        x = tensor_of((np.arange(17288) % 5).astype(model.STORAGE[name][0])[:, None], name)  # the lowest codes
    views = [(x, 0), (x[:17288].view(8, -1), 1), (x[:17288].view(-1, 8), 0), (x[::3], 0), (x[:700].view(100, 7), 1)]
    wanted = [numpy_of(torch.ops.gpureduce.sum(view, dim)) for view, dim in views]
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        got = [torch.ops.gpureduce.sum(view, dim) for view, dim in views]
        assert float(torch.tensor([1e-45]) + 0) == 0  # the mode is still on: the op left it as it was
    finally:
        torch.set_flush_denormal(False)
    for a, b in zip(got, wanted, strict=True):
        assert_same_bits(a, b)
        assert np.count_nonzero(b)
    for (view, dim), b in zip(views, wanted, strict=True):
        assert_same_bits(check(view, dim), b)


@walked("name", ["int8", "uint8", "int32", "uint32", "int64", "uint64", "bool"])
def test_integers_are_exact(name, device):
    """Integer sums are exact and wrap modulo 2^64."""
    x = data((70001,), name, seed=8, device=device)
    exact = sum(int(v) for v in numpy_of(x)[:, 0]) % 2**64
    assert int(check(x)) % 2**64 == exact


@pytest.mark.parametrize("name", [name for name in INTEGER if name != "bool"])
def test_integers_at_their_limits(name, device):
    """Sums of nothing but the largest or the smallest number do not overflow on the way, in any layout."""
    info = np.iinfo(name)
    for value in {info.max, info.min} - {0}:
        one = tensor_of(np.array([[value]], name), name, device)
        for length in (100, 129, 257, 1000, 40_000):
            row = one.expand(length).clone()
            calls = [(row, 0), (row.expand(5, -1), 1), (row[:, None].expand(-1, 5), 0), (one.expand(length, 3), 0)]
            calls += [(row.expand(3, -1).contiguous(), 1), (row[:, None].expand(-1, 7).contiguous(), 0)]
            calls += [(row[:, None].expand(-1, 2).contiguous()[:, 0], 0)]
            for x, dim in calls:
                assert {int(v) % 2**64 for v in SUM(x, dim).reshape(-1).tolist()} == {length * int(value) % 2**64}


@walked("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_small_integers_round_once(name, device):
    """Integers of up to 32 bits are summed exactly and converted once."""
    x = data((50001,), name, seed=9, device=device)
    exact = sum(int(v) for v in numpy_of(x)[:, 0])
    for target in ("float32", "float64", "float16", "bfloat16"):
        result = check(x, dtype=dtype_of(target))
        assert_same_bits(result, model.encode(np.array([exact], np.int64), target))
