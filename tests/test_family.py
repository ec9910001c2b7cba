"""What is the family's alone: logarithms and the pairs that they are joined of, products beyond a dtype, truths."""

import math

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    INTEGER,
    assert_same_bits,
    data,
    kin,
)
from test_autograd import leaf

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

PROD, AMAX, AMIN, ANY, ALL = kin("prod", "amax", "amin", "any", "all")
COUNT, LOGSUMEXP, NANSUM = kin("count_nonzero", "logsumexp", "nansum")
EXTREMA = [AMAX, AMIN]
REAL = [name for name in DTYPES if name not in COMPLEX]


# --- bits -------------------------------------------------------------------------------------------------------------


def test_logarithms_are_accurate(device):
    """Near the numbers of double precision, also where exponents are large, and of one element itself."""
    for shift in (0.0, 80.0, -1000.0, 1e30):
        x = (data((7, 3001), "int16", seed=79, device=device).double() / 4000 + shift).float()
        wanted = torch.logsumexp(x.double(), 1)
        torch.testing.assert_close(LOGSUMEXP(x, 1).double(), wanted, rtol=2e-7, atol=2e-7)
        assert_same_bits(LOGSUMEXP(x[:, :1], 1), x[:, 0])
    exact = torch.logsumexp(x.double(), 1)
    torch.testing.assert_close(LOGSUMEXP(x.double(), 1), exact, rtol=1e-15, atol=1e-15)


def test_infinite_exponents(device):
    """-inf alone gives -inf, inf gives inf, and beside numbers -inf counts for nothing."""
    inf = math.inf
    for row, wanted in (([-inf] * 3, -inf), ([inf, 1.0, -inf], inf), ([inf, inf, 0.0], inf), ([2.0, -inf, -inf], 2.0)):
        for length in (3, 600, 5000):
            x = torch.tensor(row, device=device).repeat(length // 3 + 1)[:length]
            found = LOGSUMEXP(x)
            count = 1 if math.isinf(wanted) else (length + 2) // 3  # of twos
            assert found.item() == pytest.approx(wanted + math.log(count))


@pytest.mark.parametrize("name", [name for name in REAL if LOGSUMEXP.takes(name)])
def test_pairs(name, device):
    """What ranks exchange: the pair of some chunks, joined with a neighbour's, is that of both; and it has the bits."""
    ops = torch.ops.gpureduce
    x = LOGSUMEXP.elements((5, 8192 + 700), name, 83, device)
    x[3, 5:9] = -math.inf if name not in INTEGER and not name.endswith("fn") else 0
    wide = name == "float64" or name in INTEGER
    parts = [ops._logsum(part, 1) for part in x.split(4096, 1)]
    assert all(part.dtype == (torch.complex128 if wide else torch.complex64) for part in parts)
    pair = ops._join_logsums(ops._join_logsums(parts[0], parts[1]), parts[2])
    assert_same_bits(torch.view_as_real(pair), torch.view_as_real(ops._logsum(x, [1])))
    assert_same_bits(pair.real, ops._amax(x, 1).to(pair.real.dtype))
    found = ops._finish(pair, "_logsumexp", 1, torch.float64)
    assert found.dtype == torch.float64
    wanted = LOGSUMEXP.expected(x.cpu(), 1)
    assert_same_bits(torch_reduce.sum(found[None], 0, dtype=LOGSUMEXP(x, 1).dtype), wanted)
    assert ops._logsum(x[:, :0], 1).tolist() == [complex(-math.inf, 0)] * 5


def test_pairs_are_refused(device):
    """Of complex numbers, of unlike pairs; and they have no gradient."""
    ops, pair = torch.ops.gpureduce, torch.zeros(3, dtype=torch.complex64, device=device)
    with pytest.raises(NotImplementedError, match="complex numbers are not supported"):
        ops._logsum(pair, 0)
    for other in (pair.to(torch.complex128), pair[:2]):
        with pytest.raises(RuntimeError, match="must be alike"):
            ops._join_logsums(pair, other)
    with pytest.raises(RuntimeError, match="pairs are complex64 or complex128, not Float"):
        ops._join_logsums(pair.real, pair.real)
    x = torch.ones(3, device=device, requires_grad=True)
    with pytest.raises(NotImplementedError, match="pairs have no derivative"):
        ops._logsum(x, 0).real.backward()
    meta = torch.empty(4, 3, device="meta", dtype=torch.bfloat16)
    found = ops._join_logsums(ops._logsum(meta, 1), ops._logsum(meta, 1))
    assert found.is_meta and found.dtype == torch.complex64 and found.shape == (4,)


# --- semantics --------------------------------------------------------------------------------------------------------


def test_out_of_other_dtypes(device):
    """A logarithm is rounded once to its out, whose dtype does not change how it is added; a truth is a bool or uint8,
    in a graph, too."""
    for name, wide in (("bfloat16", torch.float32), ("float32", torch.float64), ("float8_e5m2", torch.float64)):
        x = data((5, 700), name, device=device)
        for form in LOGSUMEXP.forms:
            found = form(x, 1, out=torch.empty(5, dtype=wide, device=device))
            small = torch.float32 if name == "float8_e5m2" else x.dtype
            assert_same_bits(torch_reduce.sum(found[:, None], 1, dtype=small), form(x, 1))
            torch.testing.assert_close(found, form(x.double(), 1).to(wide), rtol=1e-6, atol=0)
    x = torch.tensor([[0.0, 2.0], [0.0, 0.0]], device=device)
    for op, wanted in ((ANY, [1, 0]), (ALL, [0, 0])):
        for dtype in (torch.bool, torch.uint8):
            for call in (op.operator, torch.compile(op.operator, backend="aot_eager", fullgraph=True)):
                out = torch.empty(2, dtype=dtype, device=device)
                assert call(x, [1], out=out).tolist() == wanted and out.dtype == dtype
        out = torch.empty(2, 2, dtype=torch.uint8, device=device)
        assert op.function(x, (), out=out).tolist() == [[0, 1], [0, 0]]
        assert torch.vmap(lambda row: op.function(row, ()))(x).tolist() == [[0, 1], [0, 0]]  # noqa: B023
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
            op.function(x, 1, out=torch.empty(2, device=device))


def test_refused(device):
    """Complex numbers have no order, and no product here: NotImplementedError, in words."""
    z = torch.ones(3, dtype=torch.complex64, device=device)
    for op in (*EXTREMA, PROD, LOGSUMEXP, NANSUM):
        with pytest.raises(NotImplementedError, match=f"{op}.*complex"):
            op(z)
    with pytest.raises(NotImplementedError, match="complex"):
        torch_reduce.prod(z.real, dtype=torch.complex64)
    for dtype, what in ((torch.complex64, "complex"), (torch.int64, "floating"), (torch.bool, "floating")):
        with pytest.raises(NotImplementedError, match=f"nansum.*{what}"):
            NANSUM(z.real, dtype=dtype)


# --- torch's features -------------------------------------------------------------------------------------------------


def test_gradients_of_infinite_logarithms(device):
    """0 where all elements are -inf, where torch's is NaN; and NaN for infinities if one is +inf, as torch's is."""
    inf = math.inf
    rows = [[-inf, -inf, -inf], [-inf, 1.0, 2.0], [inf, 1.0, -inf], [inf, inf, 0.0]]
    ours, theirs = (torch.tensor(rows, device=device, requires_grad=True) for _ in range(2))
    torch_reduce.logsumexp(ours, 1).sum().backward()
    torch.logsumexp(theirs, 1).sum().backward()
    assert theirs.grad[0].isnan().all() and (ours.grad[0] == 0).all()
    torch.testing.assert_close(ours.grad[1:], theirs.grad[1:], equal_nan=True)


def test_gradients_of_half_products(device):
    """The products of the other elements are taken in float64: half of them may be beyond float16."""
    x = torch.tensor([300.0, 400.0, 2.0**-10, 3.0], dtype=torch.float16, device=device).requires_grad_()
    wide = x.detach().float().requires_grad_()
    (grad,), (wanted,) = (torch.autograd.grad(torch_reduce.prod(each), each) for each in (x, wide))
    torch.testing.assert_close(grad[2:], wanted[2:].half())
    assert grad.isfinite().tolist() == wanted.half().isfinite().tolist()


def test_gradients_of_products_with_zeros(device):
    """Second derivatives where factors are zero: those of the product of all others."""
    x = leaf((2, 4), device=device).detach().abs() + 0.5
    x[0, 1] = x[1, 0] = x[1, 2] = 0
    x.requires_grad_()
    assert gradcheck(lambda x: PROD(x, 1), (x,))
    assert gradgradcheck(lambda x: PROD(x, 1), (x,))
