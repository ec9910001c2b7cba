"""What is weighted sums' alone: weights of any shape, layout and dtype beside any input, and dot."""

import contextlib
import itertools
import math
import re

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import model
import pinned
import torch_reduce
from support import COMPLEX, DTYPES, assert_same_bits, data, dtype_of, numpy_of, random_view, tensor_of, walked
from table import WEIGHTED, rotated
from test_autocast import without_a_gpu
from test_autograd import Calls, leaf
from test_layouts import LAYOUTS
from test_meta import opcheck, same_description

OP = torch.ops.gpureduce.weighted_sum
SUM = torch.ops.gpureduce.sum
REAL = [name for name in DTYPES if name not in COMPLEX]


def check(x, w, dim=None, keepdim=False, dtype=None):
    """The operator gives the model's bits. Returns its result."""
    return WEIGHTED.check((x, w), dim, keepdim, dtype)


def expected(x, w, dim=None, keepdim=False, dtype=None):
    return WEIGHTED.expected((x, w), dim, keepdim, dtype)


def promotes(a, b):
    """Whether torch has a common dtype of both."""
    with contextlib.suppress(RuntimeError):
        return torch.promote_types(dtype_of(a), dtype_of(b)) is not None
    return False


PAIRS = [(a, b) for a in REAL for b in REAL if promotes(a, b)]
# Those that kernels are compiled for, in either order, and some others.
COMMON = [(a, a) for a in ("float32", "float64", "float16", "bfloat16", "int32", "float8_e5m2")]
COMMON += [(a, "bool") for a in ("float32", "bfloat16", "float64", "float16", "int64")]
COMMON += [("bool", "float32"), ("bfloat16", "float32"), ("float32", "float16"), ("float32", "int16"), ("bool", "bool")]
common_pairs = pytest.mark.parametrize("names", COMMON, ids="-".join)


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", sorted({a for a, _ in PAIRS}))
def test_dtypes(first, device):
    """Every pair of real dtypes, and results of every kind."""
    for k, names in enumerate(pair for pair in PAIRS if pair[0] == first):
        x, w = (data((5, 1301), name, seed, device) for seed, name in enumerate(names, 1))
        for dtype in (None, torch.float64, torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.float8_e5m2):
            check(*rotated([(x, w, 1), (x, w[:1], 0)], k, 2)[0], dtype=dtype)
            k += 1
        check(x, w)
        check(x.t(), w[0, 0], [1], True)


def weights_of(x, make):
    """Weights for a view: full ones in several layouts, a row, a column, a scalar, an expanded one, more dims."""
    shape = tuple(x.shape)
    yield make(*shape)
    yield make(*shape[::-1]).permute(list(range(len(shape)))[::-1])
    yield make()
    if shape:
        yield make(shape[-1])
        yield make(*shape[:-1], 1)
        yield make(shape[0], *[1] * (len(shape) - 1))
        yield make(*[1] * (len(shape) - 1), shape[-1]).expand(shape)
        yield make(*shape[:-1], 2 * shape[-1])[..., ::2]
        yield make(*shape[:-1], shape[-1] + 1)[..., 1:]
        yield make(7, 1, *[1] * len(shape))[:3]


OF_LAYOUTS = [("float32",) * 2, ("bfloat16",) * 2, ("int32",) * 2, ("bool", "float32"), ("int16", "float64")]


@pytest.mark.parametrize("names", OF_LAYOUTS, ids="-".join)
def test_layouts(names, device):
    """Each layout of the input beside each of the weight, where they change places, too; dtypes take turns."""
    for k, layout in enumerate(LAYOUTS):
        x, dims = LAYOUTS[layout](lambda *shape: data(shape, names[0], seed=1, device=device))
        dims = [d - x.dim() for d in dims] or None
        weights = list(weights_of(x, lambda *shape: data(shape, names[1], seed=2, device=device)))
        for w in rotated(weights, OF_LAYOUTS.index(names) + k, 1 if names[0] == "float32" else 2):
            check(x, w, dims)
            check(w, x, dims, True)


LENGTHS = [*range(1, 10), 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1023, 1025]
LENGTHS += [2047, 2049, 4095, 4096, 4097, 8191, 8193, 33_001]


@common_pairs
def test_every_length(names, device):
    """Rows and columns, at aligned and at odd addresses, of lengths around every vector's, lane's and chunk's end.

    Each pair of dtypes has a third of the lengths.
    """
    for length in rotated(LENGTHS, COMMON.index(names)):
        room = (length + 23) // 16 * 16
        x, w = (data((3, room), name, seed, device) for seed, name in enumerate(names, 3))
        for begin in (0, 1):
            a, b = x[:, begin : begin + length], w[:, begin : begin + length]
            check(a, b, 1)
            check(a, b[0], 1)
            check(a, b[:, :1], 1)
            check(a[:1], b, 1)
        a, b = (data((length, 3), name, seed, device) for seed, name in enumerate(names, 5))
        check(a, b, 0)


@common_pairs
def test_columns(names, device):
    """Columns of every number: one, a vector's, several tiles; with weights a row, a column and one for all.

    Each pair of dtypes has a third of the sizes.
    """
    sizes = [(3, 8), (7, 16), (100, 40), (513, 64), (515, 33), (9000, 8), (4100, 104), (40, 1600), (1, 700)]
    for length, columns in rotated(sizes, COMMON.index(names)):
        x, w = (data((2, length, columns), name, seed, device) for seed, name in enumerate(names, 7))
        check(x, w, 1)
        check(x, w, [0, 1])
        check(x, w[0, 0], 1)
        check(x, w[:, :, :1], 1)
        check(x, w[0, 0, 0], 1)
        check(x[:, :, 1:], w[:, :, 1:], 1)
        check(x[:, :1], w, 1)


@common_pairs
def test_few_elements(names, device):
    """Outputs of so few elements that a thread has all of them; with weights of each element, and of each row."""
    for length in rotated(range(1, 10), COMMON.index(names)):
        for columns in (1, 8, 12, 33, 2100):
            x, w = (data((3, length, columns), name, seed, device) for seed, name in enumerate(names, 9))
            check(x, w, 1)
            check(x, w[:, :, :1], 1)
            check(x[:, :, 1:], w[:, :, 1:], 1)
        x, w = (data((4100, length), name, seed, device) for seed, name in enumerate(names, 9))
        check(x, w, 1)


def test_many_splits(device):
    """One long row, few long ones, few columns: cut into many parts, which are joined."""
    for name in ("float32", "bfloat16"):
        x, w = data((2_500_001,), name, 9, device), data((2_500_001,), name, 10, device)
        check(x, w)
        check(x[1:].view(4, -1), w[1:].view(4, -1), 1)
        check(x[1:].view(-1, 4), w[1:].view(-1, 4), 0)
        check(x[:-1].view(-1, 100), w[:-1].view(-1, 100), 0)
        check(x[:-1].view(-1, 100), w[:100], 0)
        check(x[:-1].view(-1, 100), w[:100])
        check(data((9, 70_000, 8), name, 11, device), w[:8], 1)


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_random_views(device, draw):
    """Any strides, offsets and dims of both, broadcast dims, any dtype=."""

    def choose(a, b):
        return draw.draw(st.integers(a, b))

    a, b = PAIRS[choose(0, len(PAIRS) - 1)] if choose(0, 2) else COMMON[choose(0, len(COMMON) - 1)]
    x, dim, keepdim = random_view(choose, a, device, budget=6000)
    shape = [1 if choose(0, 3) == 0 else n for n in x.shape][choose(0, x.dim()) if choose(0, 3) == 0 else 0 :]
    order = sorted(range(len(shape)), key=lambda d: (choose(0, 9), d))
    strides, span = [0] * len(shape), choose(1, 2)
    for d in order:
        if choose(0, 5) == 0:
            continue
        strides[d] = span
        span = span * max(1, shape[d]) + choose(0, 2) * choose(0, 1)
    offset = choose(0, 5)
    size = offset + 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    w = data((size,), b, choose(4, 6), device).as_strided(shape, strides, offset)
    if dim is not None:
        dim = [d if d < 0 else d - x.dim() for d in dim]
    dtype = [None, torch.float64, torch.float16, torch.int64, torch.bool][choose(0, 4)]
    check(x, w, dim, keepdim, dtype)
    check(w, x, dim, keepdim, dtype)


def test_many_dims(device):
    """Twenty dims of two that cannot merge are summed; more than the limit are refused."""
    order = [7, 2, 11, 5, 0, 13, 9, 3, 12, 6, 1, 10, 4, 8]
    x = data((1 << 14,), "float32", 2, device).view([2] * 14)
    w = data((1 << 14,), "bfloat16", 3, device).view([2] * 14).permute(order)
    check(x, w, list(range(0, 14, 2)))
    check(x, w)
    check(w, x, [1, 3, 4])
    strides = [d % 2 for d in range(62)]
    x = data((64,), "float32", 1, device).as_strided([2] * 62, strides)
    w = data((64,), "float32", 2, device).as_strided([2] * 62, strides[::-1])
    assert check(x[(0,) * 40], w[(0,) * 40]).shape == ()
    for operator in (OP, torch.ops.gpureduce.exact_weighted_sum):
        with pytest.raises(RuntimeError, match="weighted_sum: input and weight have more than 32 reduced dims"):
            operator(x, w)


@common_pairs
def test_negated_views(names, device):
    """Lazily negated views are read as such; of both, too."""
    x, w = (data((9, 1301), name, seed, device) for seed, name in enumerate(names, 12))
    views = [torch._neg_view(t) if t.dtype != torch.bool else t for t in (x, w)]
    for a, b in itertools.product((x, views[0]), (w, views[1])):
        for dim in (0, 1):
            check(a, b, dim)


def test_bytes_of_bool(device):
    """Any byte but zero is true."""
    mask = torch.arange(256, dtype=torch.int16, device=device).to(torch.uint8).view(torch.bool)
    for ones in (torch.ones(256, device=device), torch.ones(256, device=device).bfloat16(), mask):
        assert int(OP(ones, mask)) == int(OP(mask, ones)) == 255


def test_masked_nan(device):
    """A zero weight multiplies: NaN and infinity stay NaN, and the sign of zero is the product's."""
    x = torch.tensor([1.0, math.inf, 2.0, math.nan], device=device)
    assert OP(x, torch.tensor([True, False, True, True], device=device)).isnan()
    zeros = OP(torch.tensor([[-1.0], [1.0]], device=device), torch.tensor(False, device=device), 1)
    assert torch.signbit(zeros).tolist() == [True, False]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_batch_invariance(name, device):
    """A row has the same bits alone, in any batch, as a column, strided; and whatever the layout of its weights."""
    wide = torch.float32 if name == "bfloat16" else None
    for length in (1, 9, 100, 513, 4097, 9001):
        x, w = data((5, length), name, 21, device), data((5, length), name, 22, device)
        alone = OP(x[3], w[3], dtype=wide)

        def apart(t):
            room = t.new_zeros(2 * t.shape[1] + 1)
            room[1::2] = t[3]
            return room[1::2]

        for got in (
            OP(x, w, 1, dtype=wide)[3],
            OP(x.t().contiguous(), w.t().contiguous(), 0, dtype=wide)[3],
            OP(x, w.t().contiguous().t(), 1, dtype=wide)[3],
            OP(x, w[3], 1, dtype=wide)[3],
            OP(x[3], w, 1, dtype=wide)[3],
            OP(x[3].expand(4, -1), w[3].expand(4, -1), 1, dtype=wide)[2],
            OP(apart(x), w[3], dtype=wide),
            OP(x[3], apart(w), dtype=wide),
            OP(w[3], x[3], dtype=wide),
            torch_reduce.dot(apart(x), apart(w), dtype=wide),
        ):
            assert_same_bits(got, alone)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_bits_of_a_sum(name, device):
    """The bits of our sum of the product, for dtypes that hold it; the order is that of self, expanded."""
    x, w = data((6, 5, 700), name, 23, device), data((6, 5, 700), name, 24, device)
    for dim in (None, 0, (0, 2), (1, 2)):
        assert_same_bits(OP(x, w, dim), SUM(x * w, dim))
        assert_same_bits(OP(x, w.permute(2, 0, 1).contiguous().permute(1, 2, 0), dim), SUM(x * w, dim))
    small, view = x[:1], x.permute(1, 2, 0)
    full = small.expand(6, 5, 700) * w
    wanted = SUM(torch.empty_strided((6, 5, 700), (3500, 700, 1), dtype=x.dtype, device=device).copy_(full), None)
    assert_same_bits(OP(small, w), wanted)  # a dim of stride 0 is the slowest
    assert_same_bits(OP(view, w.permute(1, 2, 0).contiguous()), SUM(x * w))  # memory order is that of self


def test_subnormals(device):
    """Subnormal products are kept, whatever the thread was set to."""
    x, w = torch.full((700,), 2.0**-75, device=device), torch.full((700,), 1.25 * 2.0**-70, device=device)
    before = torch.get_num_threads()
    try:
        torch.set_flush_denormal(True)
        result = OP(x, w)
    finally:
        torch.set_flush_denormal(False)
    assert torch.get_num_threads() == before
    assert_same_bits(result, expected(x, w))
    assert float(result) == 700 * 1.25 * 2.0**-145


# --- what the tests see -----------------------------------------------------------------------------------------------


def fused(x, w):
    """Sums in the contract's order of products that are not rounded before they are added."""
    wide = x.astype(np.float64) * w.astype(np.float64)
    lanes = model.lane_sums(np.zeros_like(x))
    for start in range(0, x.shape[1], model.CHUNK):
        first = start // model.CHUNK * model.LANES
        for i in range(start, min(start + model.CHUNK, x.shape[1]), model.LANES):
            part = wide[:, i : min(i + model.LANES, x.shape[1], start + model.CHUNK)]
            to = slice(first, first + part.shape[1])
            lanes[:, to] = (lanes[:, to] + part).astype(x.dtype)
    return model.join(lanes)


FAULTS = {
    "another order": lambda x, w: np.add.accumulate(x * w, axis=1)[:, -1],
    "a fused multiply and add": fused,
    "products in float64": lambda x, w: model.ordered_sum(x.astype(np.float64) * w).astype(np.float32),
    "products rounded to bfloat16": lambda x, w: model.ordered_sum(
        model.decode(model.encode(x * w, "bfloat16"), "bfloat16")
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bits_see_faults(fault, device):
    """Data of one magnitude tell each of these faults from what is right; and the operator is right."""
    stored = [pinned.factor(first, 40 * 9001, "float32").reshape(40, 9001, 1) for first in (0, 7777)]
    wrong = model.encode(FAULTS[fault](*(values[..., 0] for values in stored)), "float32")[:, None]
    x, w = (tensor_of(values, "float32", device) for values in stored)
    assert (wrong != numpy_of(check(x, w, 1))).any()


# --- results and errors -----------------------------------------------------------------------------------------------


def test_empty(device):
    """The sum of no products is 0; no results are none."""
    for name in ("float32", "int8"):
        x = data((3, 0), name, device=device)
        assert check(x, x, 1).tolist() == [0] * 3
        assert check(x, x[:1], 0).shape == (0,)
        assert check(x, data((1,), name, device=device)).tolist() == 0
        assert check(x, data((2, 1, 1), name, device=device), 2).shape == (2, 3)


def test_shapes(device):
    """Broadcasting, keepdim, negative dims and scalars, as torch's."""
    for a, b in (
        ((3, 4), (4,)),
        ((4,), (3, 4)),
        ((2, 1, 5), (3, 1)),
        ((), (3,)),
        ((), ()),
        ((1,), (1, 1)),
        ((2, 3), (2, 3)),
    ):
        x, w = data(a, "float32", 1, device), data(b, "float32", 2, device)
        rank = max(len(a), len(b))
        for dim in (None, [], *([d] for d in range(-rank, rank)), list(range(rank))):
            for keepdim in (False, True):
                wanted = (x * w).sum(dim, keepdim)
                assert check(x, w, dim, keepdim).shape == wanted.shape
                assert torch_reduce.weighted_sum(x, w, dim, keepdim).equal(OP(x, w, dim, keepdim))
    assert torch_reduce.weighted_sum(x, w, -1).shape == (2,)


@pytest.mark.parametrize("form", [OP, torch_reduce.weighted_sum], ids=["operator", "function"])
def test_errors(form, device):
    """Errors of the classes that torch raises, which name the argument."""
    x, w = torch.ones(3, 4, device=device), torch.ones(4, device=device)
    with pytest.raises(RuntimeError, match=re.escape("The size of tensor a (4) must match the size of tensor b (3)")):
        form(x, torch.ones(3, device=device))
    with pytest.raises(IndexError, match=r"\[-2, 1\]"):
        form(x, w, [2])
    with pytest.raises(RuntimeError, match="appears multiple times"):
        form(x, w, [0, -2])
    with pytest.raises(NotImplementedError, match="an input of dtype ComplexFloat"):
        form(x.cfloat(), w)
    with pytest.raises(NotImplementedError, match="a weight of dtype ComplexDouble"):
        form(x, w.cdouble())
    with pytest.raises(NotImplementedError, match="result of dtype ComplexFloat"):
        form(x, w, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="(?i)promotion"):
        form(x, w.to(torch.float8_e5m2))
    with pytest.raises(RuntimeError, match="same device, but (input|self) is on .* and weight is on meta"):
        form(x, w.to("meta"))
    with pytest.raises((TypeError, RuntimeError), match="(?i)tensor"):
        form(x, 2.0)


def test_out(device):
    """out= is written, resized, and checked before; also where it is an input's memory, strided or negated."""
    x, w = data((5, 70), "float32", 1, device), data((5, 70), "float32", 2, device)
    for out in (torch.empty(0, device=device), torch.empty(5, device=device), torch.empty(15, device=device)[::3]):
        assert OP(x, w, [1], out=out) is out
        assert_same_bits(out, expected(x, w, 1))
        assert torch_reduce.weighted_sum(x, w, 1, out=out) is out
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        out = torch.empty(5, device=device, dtype=dtype)
        assert_same_bits(OP(x, w, [1], out=out), expected(x, w, 1, dtype=dtype))
    for inside in (x, w):
        a, b = x.clone(), w.clone()
        wanted = expected(a, b, 1)
        out = (a if inside is x else b)[:, 3]
        assert_same_bits(OP(a, b, [1], out=out), wanted)
    negated = torch._neg_view(torch.empty(5, device=device))
    assert_same_bits(OP(x, w, [1], out=negated), expected(x, w, 1))
    with pytest.raises(RuntimeError, match="dtype Double, but got Float"):
        OP(x, w, [1], dtype=torch.float64, out=torch.empty(5, device=device))
    with pytest.raises(RuntimeError, match="device"):
        OP(x, w, [1], out=torch.empty(5, device="meta"))
    with pytest.raises(RuntimeError, match="(?i)overlap|single memory location"):
        OP(x, w, [1], out=torch.empty(1, device=device).expand(5))
    with pytest.raises(RuntimeError, match="requires"):
        OP(x.requires_grad_(), w, [1], out=torch.empty(5, device=device))


def test_dot(device):
    """torch.dot's arguments and errors; the bits of weighted_sum."""
    for name in ("float32", "bfloat16", "float64", "int32", "bool"):
        x, w = data((9001,), name, 1, device), data((9001,), name, 2, device)
        assert_same_bits(torch_reduce.dot(x, w), expected(x, w))
        assert_same_bits(torch.ops.gpureduce.dot(x, w, dtype=torch.float64), expected(x, w, dtype=torch.float64))
        out = torch.empty(3, dtype=torch_reduce.dot(x, w).dtype, device=device)[1]
        assert torch_reduce.dot(x, w, out=out) is out
        assert_same_bits(out, expected(x, w))
    x, w = data((5, 1), "float32", 1, device), data((5, 1), "float32", 2, device)
    assert_same_bits(torch.vmap(torch_reduce.dot)(x, w), (x * w)[:, 0])
    x = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="same dtype"):
        torch_reduce.dot(x.to("meta"), x.to("meta").double())
    for wrong in ((x.view(1, 3), x), (x, x[0]), (x, x[:1]), (x, x.double())):
        for out in (None, torch.empty((), device=device)):
            with pytest.raises(RuntimeError) as ours:
                torch_reduce.dot(*wrong, out=out)
            with pytest.raises(RuntimeError) as theirs:
                torch.dot(*wrong)
            words = str(ours.value).removeprefix("dot(): ").splitlines()[0].strip()
            assert words == str(theirs.value).removeprefix("dot(): ").splitlines()[0].strip()
    for exact in (False, True):
        with pytest.raises(RuntimeError, match=r"^dot\(\): .* but input is on .* and other is on meta"):
            torch_reduce.dot(x, x.to("meta"), exact=exact)
    for form in (torch_reduce.dot, torch.ops.gpureduce.dot, torch.ops.gpureduce.exact_dot):
        with pytest.raises(NotImplementedError, match="^dot: .* dtype ComplexFloat"):
            form(x.cfloat(), x.cfloat())
        with pytest.raises(NotImplementedError, match="^dot: .* a result of dtype ComplexFloat"):
            form(x, x, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        torch_reduce.dot(x, x, dtype=x.dtype, out=torch.empty((), dtype=torch.float64, device=device))
    assert gradcheck(torch_reduce.dot, (leaf((4,), device=device), leaf((4,), device=device, seed=1)))


# --- derivatives ------------------------------------------------------------------------------------------------------

SHAPES = [
    ((2, 3, 2), (2, 3, 2)),
    ((2, 3, 2), (3, 1)),
    ((2, 3, 2), ()),
    ((3, 1), (2, 3, 2)),
    ((1, 3, 2), (2, 1, 2)),
    ((3,), (3,)),
]
GRADIENT_DIMS = [None, [0], [-1], [0, -1]]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradcheck(shapes, device):
    """Derivatives of both inputs in both modes, alone and batched, agree with finite differences."""
    x, w = leaf(shapes[0], device=device), leaf(shapes[1], device=device, seed=1)
    for k, dim in enumerate(GRADIENT_DIMS if max(map(len, shapes)) > 1 else GRADIENT_DIMS[:3]):
        assert gradcheck(
            lambda x, w, dim=dim, keepdim=bool(k % 2): OP(x, w, dim, keepdim),
            (x, w),
            check_forward_ad=True,
            check_batched_grad=True,
            check_batched_forward_grad=True,
        )
    assert gradcheck(lambda x: OP(x, w.detach(), [0]), x, check_forward_ad=True)
    assert gradcheck(lambda w: OP(x.detach(), w, [-1]), w, check_forward_ad=True)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_gradgradcheck(shapes, device):
    """Second derivatives: reverse over reverse, forward over reverse, batched."""
    x, w = leaf(shapes[0], device=device), leaf(shapes[1], device=device, seed=1)
    assert gradgradcheck(
        lambda x, w: OP(x, w, [0]) ** 2,
        (x, w),
        check_fwd_over_rev=True,
        check_rev_over_rev=True,
        check_batched_grad=True,
    )


def test_gradient_of_a_float8_result(device):
    """torch multiplies no float8; the gradient has the digits of the result's."""
    x, w = data((7, 3), "float32", 1, device).requires_grad_(), data((7, 3), "float32", 2, device)
    y = OP(x, w, 0, dtype=torch.float8_e5m2)
    given = torch.tensor([1.0, -0.5, 4.0], device=device)
    (grad,) = torch.autograd.grad(y, x, given.to(torch.float8_e5m2))
    assert_same_bits(grad, given * w)


def test_one_gradient_is_asked_for(device):
    """Only what a pass wants is computed."""
    x, w = (data((7, 3), "float32", seed, device).requires_grad_() for seed in (1, 2))
    for asked, products in (((x,), 1), ((w,), 1), ((x, w), 2)):
        y = OP(x, w, 0).sum()
        with Calls() as calls:
            torch.autograd.grad(y, asked)
        assert calls.names.count("_apply.default") == products


def test_gradients_have_fixed_bits(device):
    """The gradient of a broadcast input is a weighted sum of the other one, with the contract's bits."""
    x, w = data((900, 70), "float32", 1, device), data((70,), "float32", 2, device).requires_grad_()
    given = data((900,), "float32", 3, device)
    (grad,) = torch.autograd.grad(OP(x, w, 1), w, given)
    assert_same_bits(grad, expected(x, given[:, None], 0))
    (again,) = torch.autograd.grad(OP(torch.cat([x, x]), w, 1), w, torch.cat([given, torch.zeros_like(given)]))
    assert again.shape == w.shape
    scalar = torch.tensor(0.5, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(OP(x, scalar, 1), scalar, given)
    assert_same_bits(grad, expected(x, given[:, None]))


@pytest.mark.parametrize(
    "names", [("float16", "float32"), ("bfloat16", "bool"), ("int32", "float32"), ("float64", "float32")]
)
def test_gradient_dtypes(names, device):
    """Each gradient has its input's dtype; integers have none."""
    x, w = (data((30, 4), name, seed, device) for seed, name in enumerate(names, 1))
    inputs = [t.requires_grad_() for t in (x, w) if t.is_floating_point()]
    for dtype in (None, torch.float64, torch.float16):
        y = OP(x, w, 0, dtype=dtype)
        for t, grad in zip(inputs, torch.autograd.grad(y, inputs, torch.ones_like(y)), strict=True):
            assert grad.dtype == t.dtype
            other = w if t is x else x
            assert_same_bits(grad, other.detach().to(torch.float64).to(t.dtype))
    assert not OP(x, w, 0, dtype=torch.int64).requires_grad


def test_saves_what_it_needs(device):
    """A backward pass for one input saves the other one alone."""
    x, w = leaf((3, 4), device=device), leaf((4,), device=device)
    y = OP(x, w.detach(), 1)
    changed = x.detach()
    changed += 1  # not needed by the gradient of x
    y.sum().backward()
    assert x.grad.shape == x.shape


def test_forward_mode(device):
    """Tangents of either input, or both."""
    x, w, dx, dw = (data((5, 70), "float32", seed, device) for seed in range(4))
    with forward_ad.dual_level():
        for a, b, wanted in (
            (forward_ad.make_dual(x, dx), w, OP(dx, w, 1)),
            (x, forward_ad.make_dual(w, dw), OP(x, dw, 1)),
            (forward_ad.make_dual(x, dx), forward_ad.make_dual(w, dw), OP(dx, w, 1) + OP(x, dw, 1)),
        ):
            assert_same_bits(forward_ad.unpack_dual(OP(a, b, 1)).tangent, wanted)
        with pytest.raises(NotImplementedError, match="forward AD"):
            OP(a, b, 1, out=torch.empty(5, device=device))


# --- vmap, autocast, meta, compile ------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, 0), (1, 0), (-1, None), (None, 2), (2, 1)], ids=str)
def test_vmap(in_dims, device):
    """One call, with the bits of the calls one by one; also where one input has more dims."""
    for dim, ranks in itertools.product([None, (0,), (-1,), (0, 1)], ((3, 3), (3, 2), (2, 3))):
        inputs = []
        for seed, (rank, at) in enumerate(zip(ranks, in_dims, strict=True)):
            if at is None:
                shape = (4, 70)[2 - (rank - 1) :]
            else:
                shape = list((4, 70)[2 - (rank - 1) :])
                shape.insert(at % rank, 3)
            inputs.append(data(tuple(shape), "float32", seed + 1, device))
        in_place = [None if at is None else at % t.dim() for at, t in zip(in_dims, inputs, strict=True)]
        if dim and len(dim) > 1 and max(t.dim() - (at is not None) for t, at in zip(inputs, in_place, strict=True)) < 2:
            continue

        def function(x, w, dim=dim):
            return OP(x, w, dim)

        with Calls() as calls:
            ours = torch.vmap(function, tuple(in_place))(*inputs)
        assert calls.names.count("weighted_sum.default") == 1
        parts = [[t] * 3 if at is None else t.unbind(at) for t, at in zip(inputs, in_place, strict=True)]
        assert_same_bits(ours, torch.stack([function(x, w) for x, w in zip(*parts, strict=True)]))


def test_meta(device):
    """Meta and fake tensors describe the results; and out= is resized."""
    for a, b, dim in (((3, 4), (4,), [0]), ((2, 1, 5), (3, 1), [1, 2]), ((), (3,), [])):
        for names in (("float32", "bfloat16"), ("bool", "int8"), ("bool", "float16")):
            x, w = data(a, names[0], 1, device), data(b, names[1], 2, device)
            real, meta = OP(x, w, dim, True), OP(x.to("meta"), w.to("meta"), dim, True)
            assert (meta.dtype, meta.shape, meta.stride()) == (real.dtype, real.shape, real.stride())
            with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
                fake = OP(mode.from_tensor(x), mode.from_tensor(w), dim, True)
            assert same_description(fake, real)
    out = torch.empty(0, device="meta")
    assert OP(torch.empty(3, 4, device="meta"), torch.empty(4, device="meta"), [1], out=out) is out
    assert out.shape == (3,)


def test_symbolic_sizes(device):
    """A trace with symbolic sizes holds for others."""

    def function(x, w):
        return OP(x, w, [1], True) * 2

    traced = make_fx(function, tracing_mode="symbolic")(
        data((3, 4, 5), "float32", 1, device), data((4, 5), "float32", 2, device)
    )
    assert "gpureduce.weighted_sum" in str(traced.graph)
    for shape in ((7, 2, 9), (40, 30, 20)):
        x, w = data(shape, "float32", 1, device), data(shape[1:], "float32", 2, device)
        assert_same_bits(traced(x, w), function(x, w))


@pytest.mark.parametrize("names", [("float32", "float32"), ("bfloat16", "bool"), ("int32", "int32")], ids="-".join)
def test_opcheck(names, device):
    """torch's own checks of an operator."""
    x, w = data((3, 4, 5), names[0], 1, device), data((4, 1), names[1], 2, device)
    for t in (x, w):
        t.requires_grad_(t.is_floating_point())
    for dims, keepdim, dtype in ((None, False, None), ([0, 2], True, None), ([1], False, torch.float64)):
        opcheck(OP.default, (x, w, dims, keepdim), dict(dtype=dtype))


def test_autocast_policy():
    """On CUDA, floats below float64 have float32 results where no dtype is given; nothing is cast."""
    with without_a_gpu():
        for a, b, wanted in (
            ("float16", "float16", torch.float32),
            ("bfloat16", "bool", torch.float32),
            ("bool", "bfloat16", torch.float32),
            ("float64", "float16", torch.float64),
            ("int32", "bool", torch.int64),
        ):
            x, w = (torch.empty(3, 4, dtype=dtype_of(name), device="cuda") for name in (a, b))
            with Calls() as calls:
                assert OP(x, w, [1]).dtype == wanted
                assert OP(x, w, [1], dtype=torch.bfloat16).dtype == torch.bfloat16
            assert {c for c in calls.names if not c.startswith("device")} == {"weighted_sum.default"}
        x = torch.empty(4, dtype=torch.float16, device="cuda")
        assert torch_reduce.dot(x, x.float()).dtype == torch.float32


def test_compile(device):
    """torch.compile with AOTAutograd, dynamic sizes: no graph break, eager's bits, forward and backward."""
    torch._dynamo.reset()

    def function(x, w):
        return (
            torch_reduce.weighted_sum(x * 2, w, -1),
            torch_reduce.dot(x[0], w),
            OP(x, w.relu(), [0], out=torch.empty_like(w)),
        )

    def differentiable(x, w):
        return torch_reduce.weighted_sum(x * 2, w, -1).sum() + torch_reduce.dot(x[0], w)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    backward = torch.compile(differentiable, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((3, 50), (4, 60), (9, 4097)):
        x, w = data(shape, "float32", 1, device), data(shape[1:], "float32", 2, device)
        for ours, theirs in zip(compiled(x, w), function(x, w), strict=True):
            assert_same_bits(ours, theirs)
        leaves = [t.clone().requires_grad_() for t in (x, w)]
        grads = [torch.autograd.grad(f(*leaves), leaves) for f in (backward, differentiable)]
        for ours, theirs in zip(*grads, strict=True):
            assert_same_bits(ours, theirs)


FORMULAS = {
    "masked mean": lambda x, m: torch_reduce.weighted_sum(x, m, 1) / torch_reduce.sum(m, 1),
    "mean of squares": lambda x, m: torch_reduce.weighted_sum(x, x, 1) / x.shape[1],
}


@pytest.mark.parametrize("formula", FORMULAS)
def test_uses(formula, device):
    """What docs/weighted.md shows: near torch's in float64."""
    x = torch.randn(30, 400, device=device)
    mask = x > -1
    wanted = (x.double() * mask).sum(1) / mask.sum(1) if formula == "masked mean" else x.double().square().mean(1)
    assert torch.allclose(FORMULAS[formula](x, mask).double(), wanted, atol=1e-5)


# --- plans on a GPU ---------------------------------------------------------------------------------------------------

# How an input and its weight lie, and the dims that are summed.
FORCED = {
    "all": lambda x, w: (x(300_007), w(300_007), [0]),
    "rows": lambda x, w: (x(60, 5000), w(60, 5000), [1]),
    "rows, a weight per column": lambda x, w: (x(60, 5000), w(5000), [1]),
    "rows, a weight per row": lambda x, w: (x(60, 5000), w(60, 1), [1]),
    "rows at odd addresses": lambda x, w: (x(60, 5001)[:, 1:], w(60, 5000), [1]),
    "rows of 1500": lambda x, w: (x(61, 1500), w(61, 1500), [1]),
    "rows of 300": lambda x, w: (x(700, 300), w(700, 300), [1]),
    "rows of 100, one weight": lambda x, w: (x(700, 100), w(1), [1]),
    "rows of 7": lambda x, w: (x(9000, 7), w(9000, 7), [1]),
    "rows of 2": lambda x, w: (x(9000, 2), w(9000, 2), [1]),
    "few columns": lambda x, w: (x(5000, 6), w(5000, 6), [0]),
    "columns": lambda x, w: (x(3000, 128), w(3000, 128), [0]),
    "columns, a weight per row": lambda x, w: (x(3000, 128), w(3000, 1), [0]),
    "columns, a weight per column": lambda x, w: (x(700, 128), w(128), [0]),
    "columns of 5": lambda x, w: (x(5, 9000), w(5, 9000), [0]),
    "experts": lambda x, w: (x(300, 8, 96), w(300, 8, 1), [1]),
    "columns beside rows": lambda x, w: (x(300, 200), w(200, 300).t(), [0]),
    "inside": lambda x, w: (x(5, 700, 48), w(700, 1), [1]),
    "nested": lambda x, w: (x(4, 40, 6, 64)[:, :, ::2], w(4, 1, 3, 64), [1, 3]),
    "image": lambda x, w: (x(4, 12, 14, 14), w(4, 12, 14, 14), [0, 2, 3]),
    "one element": lambda x, w: (x(1, 64).expand(3000, 64), w(1, 64).expand(3000, 64), [0]),
    "the weight is larger": lambda x, w: (x(8, 1), w(8, 5000), [1]),
}
FORCED_PAIRS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float32", "float16")]
FORCED_PAIRS += [("float16", "bool"), ("float64", "float64"), ("int32", "int32"), ("int16", "float32")]


@walked("names", FORCED_PAIRS)
@pytest.mark.parametrize("view", list(FORCED))
def test_forced_plans(view, names, cuda):
    """No plan changes a bit: each that is proposed, other grids, and other numbers of multiprocessors."""
    x, w, dims = FORCED[view](*(lambda *shape, n=name, s=s: data(shape, n, s) for s, name in enumerate(names, 3)))
    y, v, _ = FORCED[view](*(lambda *shape, n=name, s=s: data(shape, n, s, cuda) for s, name in enumerate(names, 3)))
    wanted, count = OP(x, w, dims), 0
    for tuning in ("", "grid=2", "multiprocessors=1", *(f"candidate={k}" for k in range(99))):
        try:
            got = torch.ops.gpureduce._weighted_sum_tuned(y, v, dims, tuning=tuning)
        except ValueError as error:
            assert "there are only" in str(error)
            break
        assert_same_bits(got, wanted, f"under {tuning!r}")
        count += 1
    assert count > 3
