"""Exact sums of products and squares, and exact norms: the nearest number, by Python's fractions, of all dtypes.

test_exact.py has the model, and what all exact sums share.
"""

import fractions
import functools
import itertools
import math

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.autograd import gradcheck, gradgradcheck

import torch_reduce
from support import COMPLEX, FLOATING, INTEGER, assert_same_bits, data, dtype_of, name_of, reduced_dims
from table import rotated
from test_autocast import without_a_gpu
from test_exact import (
    FORMATS,
    OF_LAYOUTS,
    REALS,
    finite_max,
    kinds_of,
    layouts_of,
    lists,
    nearest,
    parts_of,
    patterns,
    rows_of,
    shuffled,
    total_of,
)
from test_layouts import LAYOUTS
from test_meta import opcheck

OPS = torch.ops.gpureduce
NORMS = ("powsum", "vector_norm")
norms = pytest.mark.parametrize("function", NORMS)
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support")
DEEP = 1200  # binary digits behind the point: more than any dtype has


# --- the model --------------------------------------------------------------------------------------------------------


def is_special(x):
    return isinstance(x, float) and not math.isfinite(x)


def is_minus(x):
    return x < 0 or (isinstance(x, float) and math.copysign(1, x) < 0)


def root_of(value):
    """A fraction between the same numbers of each dtype as the square root of one, by a root of whole numbers."""
    scaled = value * 4**DEEP
    whole = math.isqrt(math.floor(scaled))
    return fractions.Fraction(2 * whole + (whole**2 != scaled), 2 << DEEP)


@functools.lru_cache(maxsize=5000)
def sum_of_products(pairs):
    """The sum of products of finite numbers as a fraction; the same ones are summed for several dtypes."""
    parts = ((parts_of(a), parts_of(b)) for a, b in pairs)
    return total_of((a[0] * b[0], a[1] + b[1]) for a, b in parts)


def modelled(pairs, name, root=False):
    """The sum of products of pairs of Python's numbers, or its root, as a float."""
    if not pairs:
        return 0.0
    special = [float(a) * float(b) for a, b in pairs if is_special(a) or is_special(b)]
    if special:
        found = special[0] if len(set(special)) == 1 else math.nan
        return math.nan if name == "float8_e4m3fn" else found
    if not any(a and b for a, b in pairs) and all(is_minus(a) != is_minus(b) for a, b in pairs):
        return -0.0
    total = sum_of_products(tuple(pairs))
    rounded = nearest(root_of(total) if root else total, name)
    return -0.0 if rounded == 0 and total < 0 else rounded


def expected(x, w, dim=None, keepdim=False, dtype=None, root=False):
    """The model's result of two tensors, a tensor."""
    metas = (torch.empty(1, dtype=one.dtype, device="meta") for one in (x, w))
    name = name_of(dtype or OPS.weighted_sum(*metas).dtype)
    x, w = torch.broadcast_tensors(x, w)
    (shape, rows), (_, others) = lists(x, dim), lists(w, dim)
    found = [modelled(list(zip(*pair, strict=True)), name, root) for pair in zip(rows, others, strict=True)]
    return result_of(found, shape, name, reduced_dims(x.dim(), dim) if keepdim else [])


def result_of(found, shape, name, dims):
    result = torch.tensor(found, dtype=torch.float64).to(dtype_of(name)).reshape(shape)
    for d in dims:
        result = result.unsqueeze(d)
    return result


def expected_norm(x, dim=None, keepdim=False, dtype=None, root=True):
    """The model's norm or sum of squares of a tensor."""
    real = (dtype or (torch.float32 if x.dtype.itemsize == 1 else x.dtype)).to_real()
    x = x.conj() if x.is_conj() else x
    x = torch._neg_view(x) if x.is_neg() else x  # torch negates no complex32, and squares have no sign
    parts = [x.real, x.imag] if x.is_complex() else [x]
    made = [lists(part, dim) for part in parts]
    rows = [list(itertools.chain(*row)) for row in zip(*(rows for _, rows in made), strict=True)]
    found = [modelled([(e, e) for e in row], name_of(real), root) for row in rows]
    return result_of(found, made[0][0], name_of(real), reduced_dims(x.dim(), dim) if keepdim else [])


def told(x, *more):
    return f"for shape {tuple(x.shape)}, strides {x.stride()}, {x.dtype}, {more}"


def check(x, w, dim=None, keepdim=False, dtype=None):
    """The weighted sum has the model's bits, and so have its states. Returns the result."""
    result = torch_reduce.weighted_sum(x, w, dim, keepdim, dtype=dtype, exact=True)
    assert result.device == x.device
    assert_same_bits(result.cpu(), expected(x, w, dim, keepdim, dtype), told(x, w.dtype, w.stride(), dim, dtype))
    assert_same_bits(torch_reduce.weighted_sum(w, x, dim, keepdim, dtype=dtype, exact=True), result, "turned")
    state = torch_reduce.exact.partial(x, dim, keepdim, weight=w)
    assert_same_bits(torch_reduce.exact.round(state, result.dtype), result, "by states")
    return result


def check_norms(x, dim=None, keepdim=False, dtype=None):
    """Norms and sums of squares have the model's bits. Returns the norms."""
    for function in NORMS:
        root = function == "vector_norm"
        result = getattr(torch_reduce, function)(x, 2, dim, keepdim, dtype=dtype, exact=True)
        wanted = expected_norm(x, dim, keepdim, dtype, root)
        assert_same_bits(result.cpu(), wanted, told(x, function, dim, dtype))
        if not x.is_complex():
            state = torch_reduce.exact.partial(x, dim, keepdim, weight=x)
            assert_same_bits(torch_reduce.exact.round(state, result.dtype, root=root), result, "by states")
    return result


# --- data -------------------------------------------------------------------------------------------------------------


def turned(x, seed=1):
    """The same elements in another order, half of them negated: in float64, as torch negates no float8."""
    order = shuffled(x.double(), seed)
    return torch.cat([order[: len(x) // 2], -order[len(x) // 2 :]]).to(x.dtype)


def pairs_of(name, n=301, seed=0):
    """Pairs of rows of each kind of data, by name."""
    dtype = dtype_of(name)
    rows = rows_of(name, n, seed)
    found = {kind: (row, turned(row)) for kind, row in rows.items()}
    normal, wide = rows["normal"].double(), rows["any bits"].double()
    small, large = 2.0 ** FORMATS[name][1], finite_max(name)
    one = torch.ones(1, dtype=torch.float64)

    def made(x, w):
        return x.to(dtype), w.to(dtype)

    return found | {
        "products cancel": made(torch.cat([wide, wide, normal]), torch.cat([wide.flip(0), -wide.flip(0), normal])),
        "all products cancel": made(torch.cat([wide, wide.flip(0)]), torch.cat([wide.flip(0), -wide])),
        "the smallest": made(one * small, one * small),
        "small products": made(rows["subnormal"].double(), rows["subnormal"].double().flip(0)),
        "the largest": made(one.repeat(3) * large, one.repeat(3) * large),
        "large cancel": made(one.repeat(3) * large, torch.tensor([large, -large, 1.0])),
        "small and large": made(torch.tensor([large, small, -large]), torch.tensor([large, small, large])),
        "0 and infinity": made(torch.tensor([0.0, 1.0]), torch.tensor([math.inf, 1.0])),
        "infinities": made(torch.tensor([math.inf, -math.inf]), torch.tensor([-1.0, math.inf])),
        "-0 by signs": made(torch.tensor([-0.0, 0.0, 1.0]), torch.tensor([1.0, -2.0, -0.0])),
        "-0 and +0": made(torch.tensor([-0.0, 0.0]), torch.tensor([1.0, 2.0])),
    }


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATING)
def test_kinds_of_products(name, device):
    """As one row, as short rows and as columns, with results of every floating dtype in turns."""
    for k, (x, w) in enumerate(pairs_of(name).values()):
        x, w = x.to(device), w.to(device)
        for dtype in rotated(FORMATS, k + FLOATING.index(name), 2):
            check(x, w, dtype=dtype_of(dtype))
        n = len(x) // 7 * 7
        for a, b in ((x[:n].view(-1, 7), w[:n].view(-1, 7)), (x[:, None], w[:, None].expand(-1, 3))):
            for dim in (0, 1):
                check(*((a, b) if (k + dim) % 2 else (a.t(), b.t())), dim)


@pytest.mark.parametrize("name", FLOATING)
def test_kinds_of_norms(name, device):
    for k, (_, x) in kinds_of(name, 301):
        x = x.to(device)
        check_norms(x)
        check_norms(x, dtype=torch.float64)
        n = len(x) // 7 * 7
        for each in (x[:n].view(-1, 7), x[:, None].expand(-1, 3)):
            for dim in (0, 1):
                check_norms(each if (k + dim) % 2 else each.t(), dim)


@pytest.mark.parametrize("first", REALS)
def test_dtypes(first, device):
    """Every dtype beside every other one: no factor is rounded, integers are not either."""
    x = patterns((5, 40), first) if first in FLOATING else data((5, 40), first)
    for k, second in enumerate(REALS, REALS.index(first)):
        w = patterns((5, 40), second, 1) if second in FLOATING else data((5, 40), second, 1)
        for dtype in rotated((torch.float64, torch.float32, torch.bfloat16), k):
            check(x.to(device), w.to(device), 1, dtype=dtype)
            check(x.to(device), w.to(device), 0, dtype=dtype)


@pytest.mark.parametrize("name", INTEGER)
def test_extreme_integers(name, device):
    """Products of the lowest and the largest integers, thousands of them, lazily negated ones too."""
    dtype = dtype_of(name)
    ends = [0, 1] if dtype == torch.bool else [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
    for a, b in itertools.product(ends, ends):
        x, w = (torch.full((3, 1100), end, dtype=dtype, device=device) for end in (a, b))
        check(x, w, 1, dtype=torch.float64)
        if dtype.is_signed:
            check(torch._neg_view(x), w, 1, dtype=torch.float64)
            check(x, torch._neg_view(w), 0, dtype=torch.float32)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_lengths(name, device):
    """Around the ends of vectors and blocks."""
    for n, make in itertools.product([1, 2, 7, 31, 33, 129, 1000, 1025, 2049, 5000], (data, patterns)):
        x, w = make((n,), name, n).to(device), make((n,), name, n + 1).to(device)
        check(x, w)
        check(torch.stack([x, -x, w]), w, 1)
        check(torch.stack([x, w], 1), x[:, None], 0)
        check_norms(x)
        check_norms(torch.stack([x, w], 1), 0)


# Overlapping windows have so many elements that the model takes seconds.
SMALL = [layout for layout in LAYOUTS if not layout.startswith("windows")]


@pytest.mark.parametrize("name", OF_LAYOUTS)
def test_layouts(name, device):
    """No layout is special, and a weight has one of its own."""
    for _, view, dims in layouts_of(name, device, SMALL):
        dtype = torch.float32 if name == "int64" else None
        other = data(view.shape, name, 6, device)
        check(view, torch._neg_view(other), dims, keepdim=True, dtype=dtype)
        if name == "float32":  # all combinations
            check(view, other, dims)
            check(view, view, dims)
            check(view, torch._neg_view(view), dims, keepdim=True)
            check_norms(view, dims)
        if view.dim() > 1:
            check(view, other.transpose(0, -1).contiguous().transpose(0, -1), dims, dtype=dtype)
        if name != "int64":
            check_norms(torch._neg_view(view), dims, keepdim=True)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_broadcast(name, device):
    """A weight an element, a row, a column, or one for all; either may be the smaller one."""
    x = data((6, 5, 70), name, device=device)
    for shape in ((70,), (5, 1), (6, 1, 1), (1, 5, 70), (), (1,), (6, 5, 70)):
        w = data(shape, name, 3, device)
        for dim in (None, 0, 1, 2, (0, 2), (1, 2)):
            check(x, w, dim)
        check(x[..., ::3], w[..., ::3] if w.dim() and w.shape[-1] > 1 else w, (0, 2), keepdim=True)
    check(data((7, 1), name, 1, device), data((1, 9), name, 2, device), 0)
    check(data((7, 1), "float32", 1, device), data((9,), name, 2, device), (0, 1))
    mask = data((5, 1), "bool", 4, device)
    check(x, mask, (1, 2))
    check(mask, x, 1)


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_norms(name, device):
    """Of both parts; of conjugated and negated views, and with dtype=."""
    x = data((30, 70), name, device=device)
    for view in (x, x.conj(), x.t(), torch._neg_view(x), torch._neg_view(x.conj()), x[::2, 1:].conj()):
        for dim, keepdim in itertools.product((None, 0, 1), (False, True)):
            check_norms(view, dim, keepdim)
    check_norms(x, 0, dtype=torch.complex128)
    out = torch.empty(60, dtype=check_norms(x, 1).dtype, device=device)[::2]
    for function in NORMS:
        getattr(torch_reduce, function)(x, 2, 1, out=out, exact=True)
        assert_same_bits(out.cpu().contiguous(), expected_norm(x, 1, root=function == "vector_norm"))


@pytest.mark.parametrize("to", FORMATS)
def test_roots_beside_ties(to, device):
    """Roots in the middle between two numbers go to the even one; the smallest product beside it decides."""
    digits, _ = FORMATS[to]
    found = set()
    for k in range(40):
        even = 2 * (2 ** (digits - 1) + (k * 7919) % 2 ** (digits - 1))  # even + 1 is the middle, and has a digit more
        row = [(even, even), (2 * even, 1.0), (1.0, 1.0)]
        for beside in (-1.0, 0.0, 1.0):
            pairs = [*row, (beside * 2.0**-1000, 2.0**-1000)]
            x, w = torch.tensor(pairs, dtype=torch.float64, device=device).unbind(1)
            state = torch_reduce.exact.partial(x, weight=w)
            result = torch_reduce.exact.round(state, dtype_of(to), root=True).double().item()
            assert result == modelled(pairs, to, root=True)
            found.add((beside, result - even))
    assert found == {(-1, 0), (0, 0), (0, 2), (1, 2)}


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_norms_beside_ties(name, device):
    """A square far below a tie decides: in short rows, in long ones that are cut, and in columns."""
    digits, _ = FORMATS[name]
    k = 2**digits // 5 // 4 * 4 + 5  # 3, 4, 5: the root 5k is in the middle of two numbers, and the lower one is even
    tie = 5 * k
    assert 2**digits < tie < 2 ** (digits + 1) and tie % 4 == 1
    tiny = [0.0, *(2.0**-e for e in range(0, 74 if name == "float32" else 500, 1 if name == "float32" else 11))]
    x = torch.tensor([[3.0 * k, 4.0 * k, t] for t in tiny], dtype=torch.float64).to(dtype_of(name)).to(device)
    wanted = torch.tensor([float(tie - 1 if t == 0 else tie + 1) for t in tiny], dtype=torch.float64).to(x.dtype)
    zeros = x.new_zeros(len(tiny), 7000)
    long = torch.cat([x[:, :2], zeros, x[:, 2:]], 1)
    few = torch.cat([x[-2:], x.new_zeros(2, 200_000)], 1)
    for rows in (x, long, few):
        for view in (rows, rows.t().contiguous().t()):
            found = torch_reduce.vector_norm(view, 2, 1, exact=True)
            assert_same_bits(found.cpu(), wanted[-2:] if rows is few else wanted)


def test_beyond_float64(device):
    """Squares that float64 cannot hold: the roots are finite, and none vanishes."""
    for scale in (2.0**1000, 2.0**-1000, 2.0**-1070):
        x = torch.tensor([3.0, 4.0], dtype=torch.float64, device=device) * scale
        assert torch_reduce.vector_norm(x, exact=True).item() == 5 * scale
        assert torch_reduce.vector_norm(x).item() in (0.0, math.inf)
        check_norms(x)
        for part in (x / scale, x):
            check(x, part)
    x = torch.tensor([2.0**1000, 2.0**-1000, -(2.0**1000)], dtype=torch.float64, device=device)
    w = torch.tensor([2.0**1000, 2.0**990, 2.0**1000], dtype=torch.float64, device=device)
    assert torch_reduce.dot(x, w, exact=True).item() == 2.0**-10
    tiny = torch.full((1024,), 2.0**-1074, dtype=torch.float64, device=device)
    assert torch_reduce.vector_norm(tiny, exact=True).item() == 2.0**-1069


def test_cancelling(device):
    """A dot product of which rounding leaves nothing."""
    x = torch.tensor([1 + 2.0**-23, 1.0], device=device)
    assert torch_reduce.dot(x, torch.tensor([1 - 2.0**-23, -1.0], device=device), exact=True).item() == -(2.0**-46)
    assert torch_reduce.dot(x, torch.tensor([1 - 2.0**-23, -1.0], device=device)).item() != -(2.0**-46)
    e = 2.0**-52
    x = torch.tensor([1 + e, 1.0], dtype=torch.float64, device=device)
    assert (
        torch_reduce.dot(x, torch.tensor([1 - e, -1.0], dtype=torch.float64, device=device), exact=True).item()
        == -e * e
    )


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16"])
def test_large(name, device):
    """A hundred thousand products, in any order and layout; and threads change nothing."""
    n = 100_000
    x, w = data((n,), name, 1, device), data((n,), name, 2, device)
    wanted = nearest(sum_of_products(tuple(zip(x.tolist(), w.tolist(), strict=True))), "float64")
    root = nearest(root_of(sum_of_products(tuple((a, a) for a in x.tolist()))), "float64")
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            order = torch.randperm(n, generator=torch.Generator().manual_seed(threads)).to(device)
            for a, b in ((x, w), (x[order], w[order]), (x.view(400, 250).t(), w.view(400, 250).t())):
                found = torch_reduce.weighted_sum(a, b, dtype=torch.float64, exact=True)
                assert found.item() == wanted
                assert torch_reduce.vector_norm(a, dtype=torch.float64, exact=True).item() == root
    finally:
        torch.set_num_threads(before)


# --- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, size", [("float32", 70), ("bfloat16", 70), ("int64", 70), ("float64", 138)])
def test_states(name, size, device):
    """Parts of any sizes, added in any order, round to the whole; three sizes of states."""
    x = patterns((4, 1001), name).to(device) if name in FLOATING else data((4, 1001), name, device=device)
    w = shuffled(x, 3)
    states = [torch_reduce.exact.partial(a, 1, weight=b) for a, b in zip(x.split(170, 1), w.split(170, 1), strict=True)]
    assert all(state.shape == (4, size) and state.dtype == torch.int64 for state in states)
    total = torch.stack(states[::-1]).sum(0)
    for dtype in map(dtype_of, FORMATS):
        assert_same_bits(torch_reduce.exact.round(total, dtype).cpu(), expected(x, w, 1, dtype=dtype))
    assert torch_reduce.exact.round(total).dtype == torch.float64
    squares = sum(torch_reduce.exact.partial(part, 1, weight=part) for part in x.split(170, 1))
    for dtype in map(dtype_of, FORMATS):
        wanted = expected(x, x, 1, dtype=dtype, root=True)
        assert_same_bits(torch_reduce.exact.round(squares, dtype, root=True).cpu(), wanted)
    one, other = (torch_reduce.exact.partial(x, 1, weight=y) for y in (x, x.clone()))
    assert torch.equal(one, other)
    one, other = (
        torch_reduce.exact.partial(x.flip(1), 1, weight=w.flip(1)),
        torch_reduce.exact.partial(w, 1, weight=x),
    )
    assert torch.equal(one, other)


def test_states_of_one_size(device):
    """States of float64 elements and of products without float64 are of one size, and can be added."""
    x, w = data((300,), "float32", 1, device), data((300,), "float32", 2, device)
    more = data((300,), "float64", 3, device)
    state = torch_reduce.exact.partial(x, weight=w) + torch_reduce.exact.partial(more)
    wanted = torch.cat([x.double() * w.double(), more])  # float64 holds these products
    assert torch_reduce.exact.round(state).item() == torch_reduce.sum(wanted, exact=True).item()


def test_roots_of_any_state(device):
    """The root of a sum of elements, or of products; of one below 0 it is NaN, and of -0 it is -0."""
    for name, weight in (("float32", None), ("float64", None), ("float32", "float32"), ("float64", "float64")):
        for values, wanted in (
            ([1.0, 3.0], 2.0),
            ([2.0, -2.0], 0.0),
            ([-1.0], math.nan),
            ([2.0**-126, -(2.0**100)], math.nan),
            ([-0.0], -0.0),
            ([math.inf], math.inf),
            ([math.inf, -1.0], math.inf),  # whatever the digits say
            ([-math.inf], math.nan),
            ([-math.inf, 1.0], math.nan),
            ([math.inf, -math.inf], math.nan),
        ):
            x = torch.tensor(values, dtype=dtype_of(name), device=device)
            one = None if weight is None else torch.ones((), dtype=dtype_of(weight), device=device)
            state = torch_reduce.exact.partial(x[:, None], 1, weight=one).sum(0)  # of a state per element
            for to in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
                for found in (torch_reduce.exact.round(state, to, root=True), OPS._exact_round(state, to, 1, True)):
                    assert_same_bits(found.cpu(), torch.tensor(wanted, dtype=to), f"{name} {weight} {values} {to}")


def test_state_shapes(device):
    x, w = data((3, 4, 5), "float32", 1, device), data((4, 1), "float64", 2, device)
    assert torch_reduce.exact.partial(x, (0, 2), weight=w).shape == (4, 138)
    assert torch_reduce.exact.partial(w, 1, True, weight=x).shape == (3, 1, 5, 138)
    assert torch_reduce.exact.partial(x.to("meta"), 0, weight=w.to("meta")).shape == (4, 5, 138)
    empty = torch_reduce.exact.partial(x[:0], 0, weight=w)
    assert empty.shape == (4, 5, 138) and not empty.any()
    state = torch_reduce.exact.partial(x, 0, weight=w)
    batched = torch.vmap(lambda t: torch_reduce.exact.partial(t, 0, weight=w[:, 0].double()), in_dims=2)(x)
    assert batched.shape == (5, 4, 138) and torch.equal(batched.transpose(0, 1), state)
    alone = torch.vmap(lambda t: torch_reduce.exact.partial(x[0, :, 0], weight=t), in_dims=1)(w.expand(4, 6))
    assert alone.shape == (6, 138) and torch.equal(alone[0], torch_reduce.exact.partial(x[0, :, 0], weight=w[:, 0]))
    squares = torch.vmap(lambda t: torch_reduce.exact.partial(t, 0, weight=t), in_dims=2)(x)
    assert torch.equal(squares.transpose(0, 1), torch_reduce.exact.partial(x, 0, weight=x))


# --- torch's side -----------------------------------------------------------------------------------------------------


def calls_of():
    """Each function as a call of two tensors, of which norms take the first."""
    return {
        "weighted_sum": lambda x, w, **more: torch_reduce.weighted_sum(x, w, 1, **more),
        "broadcast": lambda x, w, **more: torch_reduce.weighted_sum(x, w[0], 0, **more),
        "dot": lambda x, w, **more: torch_reduce.dot(x.flatten(), w.flatten(), **more),
        "powsum": lambda x, w, **more: torch_reduce.powsum(x, 2, 1, **more),
        "vector_norm": lambda x, w, **more: torch_reduce.vector_norm(x, 2, 0, **more),
    }


CALLS = calls_of()
calls = pytest.mark.parametrize("call", CALLS)


@calls
def test_whole_results(call, device):
    """Integer and bool results, and those of no elements, are those of the ordinary function."""
    call, norm = CALLS[call], call in NORMS
    for name in ("int64", "uint8", "bool", "float32"):
        x, w = data((5, 70), name, 1, device), data((5, 70), name, 2, device)
        for dtype in (None, torch.int32, torch.bool) if not norm and name != "float32" else ():
            assert_same_bits(call(x, w, dtype=dtype, exact=True), call(x, w, dtype=dtype))
    for name in ("float32", "float64", "bfloat16"):
        for shape in ((0, 3), (3, 0)):
            x = torch.ones(shape, dtype=dtype_of(name), device=device)
            if len(x):
                assert_same_bits(call(x, x, exact=True), call(x, x))


@calls
def test_out(call, device):
    """`out` may be strided, an input, or must be resized; for products it decides the dtype."""
    function, x, w = CALLS[call], data((30, 40), "float32", 1, device), data((30, 40), "float32", 2, device)
    wanted = function(x, w, exact=True)
    out = torch.zeros((*wanted.shape, 2), device=device)[..., 0]
    assert function(x, w, out=out, exact=True) is out
    assert_same_bits(out.contiguous(), wanted)
    with pytest.warns(UserWarning, match="resized"):
        assert_same_bits(function(x, w, out=torch.ones(3, device=device), exact=True), wanted)
    if call in ("weighted_sum", "broadcast"):
        out = torch.zeros(wanted.shape, dtype=torch.bfloat16, device=device)
        assert_same_bits(function(x, w, out=out, exact=True), function(x, w, dtype=torch.bfloat16, exact=True))
    with pytest.raises(RuntimeError, match="dtype"):
        function(x, w, dtype=torch.float32, out=torch.zeros(30, dtype=torch.float64, device=device), exact=True)
    y = x.clone()
    if call == "weighted_sum":
        assert_same_bits(function(y, w, out=y[:, 3], exact=True).clone(), wanted)
    with pytest.raises(RuntimeError, match=r"^(?!exact|_)\w+\(\): functions with out="):
        function(x.clone().requires_grad_(), w, out=torch.zeros_like(wanted), exact=True)


@calls
def test_gradients(call, device):
    """As of the ordinary function, of every order and mode."""
    function = CALLS[call]
    x = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    w = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    one = lambda x, w: function(x, w, exact=True)  # noqa: E731
    assert gradcheck(one, (x, w), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(lambda x, w: one(x, w).square(), (x, w), check_fwd_over_rev=True)
    for name in ("float32", "bfloat16", "float16"):
        x, w = (data((4, 700), name, seed, device).requires_grad_() for seed in (1, 2))
        found = []
        for exact in (False, True):
            result = function(x, w, exact=exact)
            g = data(result.shape, name, 5, device)
            found.append(torch.autograd.grad(result, (x, w), g, allow_unused=True))
        assert "exact" in result.grad_fn.name()
        for ours, wanted in zip(*found[::-1], strict=True):
            if wanted is None:
                assert ours is None
            elif call == "vector_norm":  # its result is part of the gradient
                torch.testing.assert_close(ours, wanted, rtol=2 * torch.finfo(x.dtype).eps, atol=0)
            else:
                assert_same_bits(ours, wanted)
        assert_same_bits(result.detach(), function(x.detach(), w.detach(), exact=True))


@pytest.mark.parametrize("name", ["bfloat16", "float16", "complex32"])
def test_tracked_norms_are_rounded_once(name, device):
    """A norm whose gradient is wanted has the same bits, though its pass keeps a wider one."""
    # 265 and 2065 are hypotenuses in the middle between two numbers, to which float32 rounds these norms.
    legs = (159.0, 212.0) if name == "bfloat16" else (1239.0, 1652.0)
    rows = torch.tensor([[*legs, 2.0**-10, 0.0], [*legs, 0.0, 0.0], [3.0, 4.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.7]])
    x = torch.view_as_complex(rows.half().view(4, 2, 2)) if name == "complex32" else rows.to(dtype_of(name))
    x = x.to(device)
    wanted = torch_reduce.vector_norm(x, 2, 1, exact=True)
    assert wanted[0] == (266 if name == "bfloat16" else 2066) and wanted[1] == wanted[0] - 2
    leaf, wide = x.clone().requires_grad_(), x.to(torch.complex64 if x.is_complex() else torch.float32).requires_grad_()
    result = torch_reduce.vector_norm(leaf, 2, 1, exact=True)
    assert_same_bits(result.detach(), wanted)
    result.backward(torch.ones_like(result))
    torch_reduce.vector_norm(wide, 2, 1, exact=True).backward(torch.ones(4, device=device))
    assert_same_bits(leaf.grad, wide.grad.to(x.dtype))
    with forward_ad.dual_level():
        dual = torch_reduce.vector_norm(forward_ad.make_dual(x, x), 2, 1, exact=True)
        primal, tangent = forward_ad.unpack_dual(dual)
        assert_same_bits(primal, wanted)
        assert tangent.dtype == wanted.dtype
        torch.testing.assert_close(tangent, wanted)


@calls
def test_vmap(call, device):
    function = CALLS[call]
    x, w = data((3, 6, 7), "float32", 1, device), data((3, 6, 7), "float32", 2, device)
    for at, of_w in itertools.product(range(3), (0, None)):
        other = w if of_w is None else w.movedim(at, 0)
        pairs = [(a, other[0] if of_w is None else b) for a, b in zip(x.unbind(at), w.unbind(at), strict=True)]
        if of_w is None:
            if at != 0:
                continue
            other = w[0]
        found = torch.vmap(lambda a, b: function(a, b, exact=True), in_dims=(at, of_w))(x, other)
        assert_same_bits(found, torch.stack([function(a, b if of_w == 0 else w[0], exact=True) for a, b in pairs]))


@calls
def test_autocast(call):
    """As of the ordinary function."""
    function = CALLS[call]
    with without_a_gpu():
        x = torch.ones(3, 4, device="cuda", dtype=torch.float16)
        assert function(x, x, exact=True).dtype == function(x, x).dtype
    with torch.autocast("cpu", torch.bfloat16):
        x = torch.ones(3, 4, dtype=torch.float16)
        assert function(x, x, exact=True).dtype == function(x, x).dtype


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e5m2", "int8"])
def test_opcheck_of_products(name, device):
    x, w = data((3, 4, 5), name, 1, device), data((4, 1), name, 2, device)
    if name in ("float32", "bfloat16"):
        x.requires_grad_()
        w.requires_grad_()
    for args in ((x, w), (x, w, [0, 2], True), (w, x, [1])):
        opcheck(OPS.exact_weighted_sum.default, args)
    x, w = x.detach(), w.detach()
    opcheck(OPS.exact_weighted_sum.out, (x, w, [1]), {"out": OPS.exact_weighted_sum(x, w, [1])})
    opcheck(OPS.exact_dot.default, (x[0, 0], x[1, 1]))


@pytest.mark.parametrize(
    ("operator", "name"),
    [("_exact_powsum_2", "float32"), ("_exact_powsum_2", "complex64")]
    + [("_exact_norm_2", name) for name in ("float32", "bfloat16", "float8_e5m2")],
)
def test_opcheck_of_norms(name, operator, device):
    x = data((3, 4, 5), name, device=device)
    if name != "float8_e5m2":
        x.requires_grad_()
    operator = getattr(OPS, operator)
    for args in ((x,), (x, [0, 2], True), (x, [1])):
        opcheck(operator.default, args)
    x = x.detach()
    opcheck(operator.out, (x, [1]), {"out": operator(x, [1])})


def test_opcheck_of_states(device):
    x, w = data((3, 4, 5), "float32", 1, device), data((4, 1), "float64", 2, device)
    opcheck(OPS._exact_partial.default, (x, [1], True, False, w))
    opcheck(OPS._exact_partial.default, (x, [1], True, False, x))
    opcheck(OPS._exact_round.default, (OPS._exact_partial(x, [1], weight=x), torch.float64, 1, True))


def test_compile(device):
    """One graph, with the same bits, gradients and `out`."""

    def call(x, w, out):
        total = torch_reduce.weighted_sum(x, w, 1, exact=True) + torch_reduce.dot(x[0], w[0], exact=True)
        torch_reduce.powsum(x, 2, 0, out=out, exact=True)
        norm = torch_reduce.vector_norm(x, dim=1, exact=True)
        state = torch_reduce.exact.partial(x, 1, weight=w)
        return total, norm, torch_reduce.exact.round(state, torch.float64), state

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    x, w = data((30, 50), "float32", 1, device), data((30, 50), "float32", 2, device)
    outs = torch.zeros(2, 50, device=device)
    for one, other in zip(compiled(x, w, outs[0]), call(x, w, outs[1]), strict=True):
        assert_same_bits(one, other)
    assert_same_bits(outs[0], outs[1])
    for k, (name, function) in enumerate(CALLS.items()):
        found = []
        for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
            leaves = [data((4, 50), ("float32", "bfloat16")[k % 2], seed, device).requires_grad_() for seed in (1, 2)]
            run(*leaves, exact=True).square().sum().backward()
            found.append([leaf.grad for leaf in leaves])
        for ours, wanted in zip(*found[::-1], strict=True):
            assert (ours is None) == (wanted is None), name
            if ours is not None:
                assert_same_bits(ours, wanted, name)


def test_forms(device):
    """NumPy's names, the operators, and no `exact` is the ordinary function."""
    x, w = data((30, 700), "float32", 1, device), data((30, 700), "float32", 2, device)
    for function in NORMS:
        call = getattr(torch_reduce, function)
        wanted = call(x, 2, 1, True, exact=True)
        for found in (
            call(a=x, axis=1, keepdims=True, exact=True),
            call(x, np.float32(2), (1,), keepdim=True, exact=True),
            call(x, torch.tensor(2), np.int64(1), True, exact=True),
            call(x, 2.0, 1, True, exact=True),
            getattr(OPS, f"exact_linalg_{function}")(x, 2, 1, True),
        ):
            assert_same_bits(found, wanted)
        assert_same_bits(call(x, 2, 1, exact=False), call(x, 2, 1))
        assert not torch.equal(call(x, 2, 1, exact=True), call(x, 2, 1))  # the data show the difference
    assert_same_bits(torch_reduce.weighted_sum(x, w, 1, exact=False), torch_reduce.weighted_sum(x, w, 1))
    assert not torch.equal(torch_reduce.weighted_sum(x, w, 1, exact=True), torch_reduce.weighted_sum(x, w, 1))
    wanted = torch_reduce.weighted_sum(x, w, (1,), True, exact=True)
    assert_same_bits(OPS.exact_weighted_sum(x, w, 1, True), wanted)
    assert_same_bits(torch_reduce.weighted_sum(x, weight=w, dim=np.int64(1), keepdim=True, exact=True), wanted)
    assert_same_bits(OPS.exact_dot(x[0], w[0]), torch_reduce.dot(x[0], w[0], exact=True))


@calls
def test_errors(call, device):
    function, x = CALLS[call], torch.ones(3, 4, device=device)
    name = "weighted_sum" if call == "broadcast" else call
    for wrong in (1, None, "yes", torch.tensor(True)):
        with pytest.raises(TypeError, match=rf"^{name}\(\): argument 'exact' must be bool"):
            function(x, x, exact=wrong)
    for bad in (x.to(torch.float8_e5m2fnuz),):
        with pytest.raises(NotImplementedError, match="Float8_e5m2fnuz"):
            function(bad, bad, exact=True)
    if name in NORMS:
        for ord in (0, 1, 3, 2.5, math.inf):
            with pytest.raises(NotImplementedError, match=rf"^{name}\(\): ord must be 2 with exact=True, but is {ord}"):
                getattr(torch_reduce, name)(x, ord, exact=True)
        with pytest.raises(RuntimeError, match="floating point or complex"):
            function(x.int(), x, exact=True)
        with pytest.raises(RuntimeError, match="without narrowing"):
            function(x, x, dtype=torch.float16, exact=True)
    else:
        with pytest.raises(NotImplementedError, match=rf"^{name}: complex numbers"):
            function(x.to(torch.complex64), x.to(torch.complex64), exact=True)
    if call != "dot":
        with pytest.raises(NotImplementedError, match=rf"^{name}\(\): sparse tensors are not supported"):
            getattr(torch_reduce, name)(x.to_sparse(), *([] if name in NORMS else [x]), exact=True)


def test_errors_of_states(device):
    x = torch.ones(3, 4, device=device)
    partial, rounded = torch_reduce.exact.partial, torch_reduce.exact.round
    for wrong in ([1.0], 2.0):
        with pytest.raises(TypeError, match=r"^exact.partial\(\): argument 'weight' must be Tensor"):
            partial(x, weight=wrong)
    with pytest.raises(ValueError, match=r"^exact.partial\(\): nan_is_zero"):
        partial(x, weight=x, nan_is_zero=True)
    with pytest.raises(NotImplementedError, match=r"^exact.partial\(\): complex.*view_as_real"):
        partial(x, weight=x.to(torch.complex64))
    with pytest.raises(NotImplementedError, match=r"^exact.partial\(\): weight is a DTensor or a Shard"):
        partial(x, weight=torch_reduce.distributed.Shard(x))
    with pytest.raises(NotImplementedError, match=r"^exact.partial\(\): a weight of dtype Float8_e5m2fnuz"):
        partial(x, weight=x.to(torch.float8_e5m2fnuz))
    with pytest.raises(RuntimeError, match="must match the size"):
        partial(x, weight=x[:, :3])
    with pytest.raises(RuntimeError, match=r"^exact.partial\(\): .* but input is on .* and weight is on meta"):
        partial(x, weight=x.to("meta"))
    state = partial(x, 0, weight=x)
    for wrong in (1, None, "yes"):
        with pytest.raises(TypeError, match=r"^exact.round\(\): argument 'root' must be bool"):
            rounded(state, root=wrong)
    with pytest.raises(ValueError, match=r"^exact.round\(\): count cannot be given beside root"):
        rounded(state, count=3, root=True)
