"""mean: the sum of the contract's order, one division in the accumulator, one rounding; and torch.mean's semantics."""

import random

import pytest
import torch

import torch_reduce
from support import COMPLEX, DTYPES, FLOATING, assert_same_bits, check, data, dtype_of, opinfo, random_view

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

MEAN = torch.ops.gpureduce.mean
INEXACT = [name for name in DTYPES if name in FLOATING or name in COMPLEX]
SHAPES = [((7,), None), ((3, 1000), 1), ((1000, 3), 0), ((5, 4097), 1), ((9000, 33), 0), ((300, 3), 1)]
SHAPES += [((2, 70_001), 1), ((4, 3, 11, 5), (0, 2, 3)), ((513, 64), 0), ((1, 5), 0), ((40, 5), (0, 1))]


@pytest.mark.parametrize("name", INEXACT)
def test_bits(name, device):
    """The model's bits for every floating and complex dtype, over rows, columns, all and mixed dims."""
    for shape, dim in SHAPES:
        check(data(shape, name, seed=31, device=device), dim, operation="mean")


@pytest.mark.parametrize("target", INEXACT)
@pytest.mark.parametrize("name", DTYPES)
def test_dtype_matrix(name, target, device):
    """Every input dtype to every floating or complex result: divided in the accumulator, rounded once."""
    x = data((5, 700), name, seed=32, device=device)
    check(x, 1, dtype=dtype_of(target), operation="mean")
    check(x, 0, dtype=dtype_of(target), operation="mean")


@pytest.mark.parametrize("seed", range(60))
def test_random_views(seed, device):
    """Any strides, offsets and dims."""
    rng = random.Random(seed)
    name = INEXACT[seed % len(INEXACT)]
    x, dim, keepdim = random_view(rng.randint, name, device)
    check(x, dim, keepdim, operation="mean")


def test_one_rounding(device):
    """The quotient is rounded once: in bfloat16 the sum of 257 ones would be 256, and so less than one on average."""
    ones = torch.ones(257, dtype=torch.bfloat16, device=device)
    assert float(MEAN(ones)) == 1.0
    thirds = torch.tensor([1.0, 0.0, 0.0], device=device)
    assert float(MEAN(thirds, dtype=torch.float64)) == 1 / 3
    assert float(MEAN(thirds)) == float(torch.tensor(1.0) / 3)
    large = torch.tensor([1 << 24, 1, 1], dtype=torch.int32, device=device)  # whose sum float32 would round
    assert float(MEAN(large, dtype=torch.float64)) == ((1 << 24) + 2) / 3


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
def test_opinfo_samples(name, device):
    """dtype, shape, strides and values of torch.mean on OpInfo's samples."""
    samples = list(opinfo("mean").sample_inputs(device, dtype_of(name), requires_grad=False))
    assert len(samples) >= 10
    for sample in samples:
        theirs = torch.mean(sample.input, *sample.args, **sample.kwargs)
        for ours in (MEAN, torch_reduce.mean):
            got = ours(sample.input, *sample.args, **sample.kwargs)
            assert (got.dtype, got.shape, got.stride()) == (theirs.dtype, theirs.shape, theirs.stride()), sample
            torch.testing.assert_close(got, theirs, equal_nan=True)


def test_no_elements(device):
    """NaN, as torch.mean's; and nothing at all of no outputs."""
    assert MEAN(torch.empty(0, device=device)).isnan()
    assert MEAN(torch.empty(3, 0, device=device), 1).isnan().all()
    assert MEAN(torch.empty(3, 0, dtype=torch.complex64, device=device), 1).isnan().all()
    assert MEAN(torch.empty(0, 3, device=device), 1).shape == (0,)


def test_out(device):
    """mean.out writes, resizes and returns `out`; its dtype must be the result's."""
    x = data((6, 50), "float32", seed=33, device=device)
    out = torch.empty(0, device=device)
    assert MEAN(x, 1, out=out) is out and torch_reduce.mean(x, 1, out=out) is out
    assert_same_bits(out, MEAN(x, 1))
    strided = torch.empty(12, device=device)[::2]
    MEAN(x, 1, out=strided)
    assert_same_bits(strided, MEAN(x, 1))
    with pytest.raises(RuntimeError, match="dtype"):
        MEAN(x, 1, dtype=torch.float64, out=out)
    with pytest.raises(RuntimeError, match="mean"):
        MEAN(x, 1, out=torch.empty(6, dtype=torch.int64, device=device))
    for mean in (torch.mean, MEAN, torch.func.functionalize(MEAN)):  # out is no dtype=
        with pytest.raises(RuntimeError, match=r"Input dtype must be either.*Long"):
            mean(x.long(), 1, out=torch.empty(6, device=device))


@pytest.mark.parametrize("mean", [MEAN, torch_reduce.mean], ids=["operator", "function"])
def test_errors(mean, device):
    """torch.mean's error classes; integers need a floating dtype."""
    x = torch.ones(3, 4, device=device)
    with pytest.raises(RuntimeError, match=r"Input dtype must be either.*Long"):
        mean(torch.arange(3, device=device))
    with pytest.raises(RuntimeError, match=r"Input dtype must be either.*Bool"):
        mean(torch.ones(3, dtype=torch.bool, device=device))
    with pytest.raises(RuntimeError, match=r"Optional dtype must be either.*Int"):
        mean(x, dtype=torch.int32)
    with pytest.raises(IndexError):
        mean(x, 2)
    with pytest.raises(RuntimeError, match="multiple times"):
        mean(x, (0, -2))
    with pytest.raises(TypeError, match="input"):
        torch_reduce.mean([1.0])


def test_meta(device):
    """Meta tensors are described as real ones; the same errors."""
    x = data((3, 4, 5), "bfloat16", device=device)
    for dim, dtype in [(None, None), (1, torch.float64), ((0, 2), None)]:
        real, meta = MEAN(x, dim, dtype=dtype), MEAN(x.to("meta"), dim, dtype=dtype)
        assert (real.shape, real.stride(), real.dtype) == (meta.shape, meta.stride(), meta.dtype)
    with pytest.raises(RuntimeError, match="Input dtype"):
        MEAN(torch.empty(3, dtype=torch.int32, device="meta"))


def test_opcheck(device):
    """torch.library.opcheck of both overloads."""
    x = data((3, 40), "float32", device=device)
    tests = ["test_schema", "test_faketensor"]
    torch.library.opcheck(MEAN.default, (x, [1]), test_utils=tests)
    torch.library.opcheck(MEAN.out, (x, [1]), {"out": torch.empty(3, device=device)}, test_utils=tests)


def test_compile(device):
    """Compiled, also with out=, it has eager's bits."""
    x = data((6, 500), "float32", seed=34, device=device)

    def centred(x):
        out = torch.empty(6, device=x.device)
        torch.ops.gpureduce.mean(x, [1], out=out)
        return x - torch_reduce.mean(x, 1, keepdim=True), out

    ours, out = torch.compile(centred, fullgraph=True, backend="aot_eager")(x)
    assert_same_bits(ours, x - MEAN(x, [1], True))
    assert_same_bits(out, MEAN(x, [1]))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "complex64", "int8"])
def test_forced_plans(name, cuda):
    """Every kernel divides: the bits of the CPU under forced plans, with and without joins."""
    views = [((300_007,), [0]), ((60, 5000), [1]), ((9000, 7), [1]), ((9001, 3), [1]), ((5000, 60), [0])]
    views += [((9000, 3), [0]), ((6, 9000), [0]), ((5, 700, 48), [1]), ((3000, 130), [1])]
    dtype = torch.float32 if name == "int8" else None
    for shape, dims in views:
        x = data(shape, name, seed=35)
        wanted = MEAN(x, dims, dtype=dtype)
        for tuning in ("", "vector=1", "warps=1", "tile_leaves=32", "grid=2"):
            got = torch.ops.gpureduce._mean_tuned(x.to(cuda), dims, dtype=dtype, tuning=tuning)
            assert_same_bits(got, wanted, f"{shape} under {tuning!r}")
    expanded = data((300,), name, seed=36)
    wanted = MEAN(expanded.expand(5000, 300).contiguous(), [0], dtype=dtype)
    assert_same_bits(MEAN(expanded.to(cuda).expand(5000, 300), [0], dtype=dtype), wanted)
