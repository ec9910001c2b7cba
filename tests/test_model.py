"""The NumPy model is itself right: it gives the pinned bits, and decodes and rounds as torch does."""

import hashlib
import json
import pathlib

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
    halfway = (model._LADDERS[name][1:] + model._LADDERS[name][:-1]) / 2
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
