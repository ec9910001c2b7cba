"""What is mean's alone: one division in the accumulator, one rounding. The tests of all operations have the rest."""

import random

import pytest
import torch

from support import DTYPES, MEAN, assert_same_bits, data, dtype_of, random_view

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

INEXACT = [name for name in DTYPES if MEAN.takes(name)]
SHAPES = [((7,), None), ((3, 1000), 1), ((1000, 3), 0), ((5, 4097), 1), ((9000, 33), 0), ((300, 3), 1)]
SHAPES += [((2, 70_001), 1), ((4, 3, 11, 5), (0, 2, 3)), ((513, 64), 0), ((1, 5), 0), ((40, 5), (0, 1))]


@pytest.mark.parametrize("name", INEXACT)
def test_bits(name, device):
    """The model's bits for every floating and complex dtype, over rows, columns, all and mixed dims."""
    for shape, dim in SHAPES:
        MEAN.check(data(shape, name, seed=31, device=device), dim)


@pytest.mark.parametrize("target", INEXACT)
@pytest.mark.parametrize("name", DTYPES)
def test_dtype_matrix(name, target, device):
    """Every input dtype to every floating or complex result: divided in the accumulator, rounded once."""
    x = data((5, 700), name, seed=32, device=device)
    MEAN.check(x, 1, dtype=dtype_of(target))
    MEAN.check(x, 0, dtype=dtype_of(target))


@pytest.mark.parametrize("seed", range(60))
def test_random_views(seed, device):
    """Any strides, offsets and dims."""
    rng = random.Random(seed)
    name = INEXACT[seed % len(INEXACT)]
    x, dim, keepdim = random_view(rng.randint, name, device)
    MEAN.check(x, dim, keepdim)


def test_one_rounding(device):
    """The quotient is rounded once: in bfloat16 the sum of 257 ones would be 256, and so less than one on average."""
    ones = torch.ones(257, dtype=torch.bfloat16, device=device)
    assert float(MEAN(ones)) == 1.0
    thirds = torch.tensor([1.0, 0.0, 0.0], device=device)
    assert float(MEAN(thirds, dtype=torch.float64)) == 1 / 3
    assert float(MEAN(thirds)) == float(torch.tensor(1.0) / 3)
    large = torch.tensor([1 << 24, 1, 1], dtype=torch.int32, device=device)  # whose sum float32 would round
    assert float(MEAN(large, dtype=torch.float64)) == ((1 << 24) + 2) / 3


def test_no_elements(device):
    """NaN in every dtype, as torch.mean's, also where `out` has steps."""
    for dtype in map(dtype_of, INEXACT):
        assert MEAN(torch.empty(3, 0, device=device), 1, dtype=dtype).to(torch.complex128).isnan().all()
        room = torch.zeros(6, dtype=dtype, device=device)
        MEAN(torch.empty(3, 0, device=device), 1, out=room[::2])
        assert room.to(torch.complex128).isnan().tolist() == [True, False] * 3


FORMS = {"torch": torch.mean, "operator": MEAN, "function": MEAN.function, "functional": torch.func.functionalize(MEAN)}


@pytest.mark.parametrize("name", ["int64", "bool", "uint8"])
@pytest.mark.parametrize("form", FORMS)
def test_quotients_are_no_integers(form, name, device):
    """Integers need a dtype= that is none, whatever `out` is: torch.mean's messages, on meta tensors too."""
    mean = FORMS[form]
    for place in (device, "meta"):
        x, out = torch.ones(3, 4, dtype=dtype_of(name), device=place), torch.empty(3, device=place)
        for kwargs in ({}, dict(out=out)):
            with pytest.raises(RuntimeError, match="Input dtype must be either a floating"):
                mean(x, 1, **kwargs)
        for one in (x, x.float()):
            with pytest.raises(RuntimeError, match="Optional dtype must be either a floating"):
                mean(one, 1, dtype=torch.int32)
        if form != "torch":  # which takes such an out on CUDA
            with pytest.raises(RuntimeError, match="Long|Int|int64"):
                mean(x.float(), 1, out=out.long())
        assert mean(x, 1, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "float8_e4m3fn", "complex64", "int8"])
def test_forced_plans(name, cuda):
    """Every kernel divides: the bits of the CPU under forced plans, with and without joins."""
    views = [((300_007,), [0]), ((60, 5000), [1]), ((9000, 7), [1]), ((9001, 3), [1]), ((5000, 60), [0])]
    views += [((9000, 3), [0]), ((6, 9000), [0]), ((5, 700, 48), [1]), ((3000, 130), [1])]
    dtype = torch.float32 if name == "int8" else None
    for shape, dims in views:
        x = data(shape, name, seed=35)
        wanted = MEAN(x, dims, dtype=dtype)
        for tuning in ("", "grid=2", *(f"candidate={k}" for k in range(99))):
            try:
                got = torch.ops.gpureduce._mean_tuned(x.to(cuda), dims, dtype=dtype, tuning=tuning)
            except ValueError as error:
                assert "there are only" in str(error)
                break
            assert_same_bits(got, wanted, f"{shape} under {tuning!r}")
    expanded = data((300,), name, seed=36)
    wanted = MEAN(expanded.expand(5000, 300).contiguous(), [0], dtype=dtype)
    assert_same_bits(MEAN(expanded.to(cuda).expand(5000, 300), [0], dtype=dtype), wanted)
