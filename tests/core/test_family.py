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


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
@pytest.mark.parametrize("name", [name for name in REAL if LOGSUMEXP.takes(name)])
def test_sums_of_exponentials(name, dim, device):
    """What ranks exchange: chunks' sums of e^(x - m) with the largest element of all make the sum, and the bits."""
    ops = torch.ops.gpureduce
    x = LOGSUMEXP.elements((8192 + 700, 5), name, 83, device)
    if dim == 1:
        x = x[:5].t().repeat_interleave(800, 1)[:, :3300]
    wide = torch.float64 if name == "float64" or name in INTEGER else torch.float32
    for view in (x, x.t().contiguous().t()):
        largest = ops._amax(view, dim, keepdim=True).to(wide)
        total = ops._exponent_sum(view, largest, dim, True)
        assert total.dtype == wide and total.shape == largest.shape
        if dim == 0:
            parts = torch.stack([ops._exponent_sum(part, largest, 0) for part in view.split(4096)])
            assert_same_bits(((parts[0] + parts[1]) + parts[2])[None], total)
        found = ops._finish_logsumexp(total, largest, LOGSUMEXP(x, 1).dtype)
        assert_same_bits(found, LOGSUMEXP.expected(view.cpu(), dim, True))
        assert_same_bits(LOGSUMEXP(view, dim, True), LOGSUMEXP.expected(view.cpu(), dim, True))
    assert ops._exponent_sum(x[:0], largest if dim == 0 else x[:1].to(wide), 0).eq(0).all()


def test_sums_of_exponentials_are_refused(device):
    """Of complex numbers, and with largest elements of another dtype or shape; both have meta tensors."""
    ops, x = torch.ops.gpureduce, torch.zeros(4, 3, device=device)
    with pytest.raises(NotImplementedError, match="complex numbers are not supported"):
        ops._exponent_sum(x.to(torch.complex64), x, 1)
    for largest, words in ((x[:, :1].double(), "largest is Float, not Double"), (x, "largest has self's sizes")):
        with pytest.raises(RuntimeError, match=words):
            ops._exponent_sum(x, largest, 1)
    with pytest.raises(RuntimeError, match="sum and largest are alike"):
        ops._finish_logsumexp(x, x.double(), torch.float32)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(ops._exponent_sum.default, (x, x[:, :1], [1]), test_utils=checks)
    torch.library.opcheck(ops._finish_logsumexp.default, (x.t(), x.t(), torch.float16), test_utils=checks)


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
