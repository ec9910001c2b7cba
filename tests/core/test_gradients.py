"""The bits of gradients: the model's in every batch and layout, on every device; and what public bug reports found.

docs/order.md says what each gradient is; gradients of any order, and their forms, are in the tests of their functions.
"""

import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import assert_same_bits, bytes_of, data, dtype_of, numpy_of, tensor_of
from test_meta import opcheck

INF = math.inf


def gradient(function, x, given=1.0, **options):
    """The gradient of function(x) for this incoming one."""
    x = x.detach().requires_grad_()
    y = function(x)
    given = given if torch.is_tensor(given) else torch.full_like(y, given)
    (found,) = torch.autograd.grad(y, x, given.to(y.dtype), **options)
    return found


# --- what each gradient is, row by row --------------------------------------------------------------------------------


def whole_exponential(x):
    """e^x, below the numbers that model.exponential() is for, too."""
    low = -80 if x.dtype == np.float32 else -700
    root = model.exponential(np.where(x < low, x * x.dtype.type(0.5), x))
    return np.where(x < low, np.where(x < 4 * low, x.dtype.type(0), root * root), root)


def modelled(kind, stored, name, given):
    """(outputs, length, 1) of stored elements and (outputs,) numbers -> gradients, before they are rounded."""
    exact = model.decode(stored[..., 0], name)
    real = np.float64 if name == "float64" else np.float32
    x, g, n = exact.astype(real), given.astype(real)[:, None], exact.shape[1]
    small = dtype_of(name).itemsize < 4

    def result(found):
        """Results as a backward pass has them: with all digits where elements have few."""
        found = found if small else model.decode(model.encode(found, name), name)
        return found.astype(real)[:, None]

    def ordered(numbers, add):
        return model.join(model.lane_sums(numbers, add), add)

    with np.errstate(all="ignore"):
        if kind == "sum":
            return g + 0 * x
        if kind == "mean":
            return g / real(n) + 0 * x
        if kind == "nansum":
            return np.where(np.isnan(x), 0, g)
        if kind in ("amax", "amin"):
            largest = x.max(1) if kind == "amax" else x.min(1)
            ties = x == largest[:, None]
            return np.where(ties, g, 0) / ties.sum(1, keepdims=True).astype(real)
        if kind == "logsumexp":
            r = result(model.log_sums(stored, name, False))
            return np.where(r == -np.inf, 0, g * whole_exponential(x - r))
        if kind == "prod":
            wide = exact.astype(np.float64)
            product = ordered(np.where(wide == 0, 1, wide), np.multiply)[:, None]
            zeros = (wide == 0).sum(1, keepdims=True)
            one = np.where((zeros == 1) & (wide == 0), product, product * 0)
            return np.where(zeros == 0, product / wide, one) * given.astype(np.float64)[:, None]
        if kind in ("var", "std"):
            found, mean = (model.deviations(stored, name, what, 1, False)[:, None] for what in (kind, "mean"))
            wide = given.astype(np.float64)[:, None]
            factor = 2 * wide if kind == "var" else np.where(found == 0, 0, wide / found)
            return (exact.astype(np.float64) - mean) * (factor / np.float64(n - 1))
        power = {"norm 1": 1, "norm 2": 2, "norm 3": 3, "norm inf": INF, "powsum 2": 2, "powsum 3": 3}[kind]
        if power == 1:
            return np.sign(x) * g
        if kind == "powsum 2":
            return x * (2 * g)
        if kind == "powsum 3":
            return x * np.abs(x) * (3 * g)
        r = result(model.norms(model.powers(stored, name, name, power), power))
        if power == INF:
            ties = np.abs(x) == r
            return np.where(ties, np.sign(x) * (g / ties.sum(1, keepdims=True).astype(real)), 0)
        part = np.where(r == 0, 0, x / r)
        return part * g if power == 2 else part * np.abs(part) * g


FUNCTIONS = {
    "sum": torch_reduce.sum,
    "mean": torch_reduce.mean,
    "nansum": torch_reduce.nansum,
    "amax": torch_reduce.amax,
    "amin": torch_reduce.amin,
    "logsumexp": torch_reduce.logsumexp,
    "prod": torch_reduce.prod,
    "var": torch_reduce.var,
    "std": torch_reduce.std,
    "norm 1": lambda x, d: torch_reduce.vector_norm(x, 1, d),
    "norm 2": lambda x, d: torch_reduce.vector_norm(x, 2, d),
    "norm 3": lambda x, d: torch_reduce.vector_norm(x, 3, d),
    "norm inf": lambda x, d: torch_reduce.vector_norm(x, INF, d),
    "powsum 2": lambda x, d: torch_reduce.powsum(x, 2, d),
    "powsum 3": lambda x, d: torch_reduce.powsum(x, 3, d),
}


def elements(kind, rows, length, name):
    """Contiguous elements on the CPU, with ties and zeros, of which no gradient overflows everywhere."""
    x = data((rows, length), name, seed=length)
    if kind == "prod":
        x = (1 + torch.rand(rows, length, generator=torch.Generator().manual_seed(length)) / 8).to(x.dtype)
        x[1, length // 2] = 0
        x[2, :: max(1, length // 2)] = 0
    elif kind == "logsumexp":
        x = (x.float() % 64 * 4 - 200).to(x.dtype)
        x[1] = -INF
    elif kind == "nansum":
        x[:, ::3] = math.nan
    x[-1] = x[-1, 0].clone()
    return x


LAYOUTS = {
    "alone": lambda f, x, g: torch.stack([gradient(lambda r: f(r, 0), *row) for row in zip(x, g, strict=True)]),
    "rows": lambda f, x, g: gradient(lambda x: f(x, 1), x, g),
    "columns": lambda f, x, g: gradient(lambda x: f(x, 0), x.t().contiguous(), g).t(),
    "strided": lambda f, x, g: gradient(lambda x: f(x, 1), torch.stack([x, x], 2)[:, :, 1], g),
    "odd offset": lambda f, x, g: gradient(lambda x: f(x, 1), torch.cat([x[:, :1], x], 1)[:, 1:], g),
    "keepdim": lambda f, x, g: gradient(lambda x: f(x.unflatten(0, (1, -1)), 2), x, g[None]),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", list(FUNCTIONS))
def test_bits(kind, name, device):
    """The model's, alone, in a batch, in any layout, on any device."""
    for rows, length in ((4, 1), (5, 7), (4, 96), (4, 1000), (4, 5000)):
        x = elements(kind, rows, length, name)
        given = torch.linspace(-1.5, 2.0, rows).to(x.dtype)
        stored = numpy_of(x)
        found = modelled(kind, stored, name, model.decode(numpy_of(given)[..., 0], name))
        wanted = tensor_of(model.encode(found, name)[..., None], name)
        for layout, call in LAYOUTS.items():
            got = call(FUNCTIONS[kind], x.to(device), given.to(device))
            assert_same_bits(got.cpu(), wanted, f"{kind} of {rows} rows of {length}, {layout}")


@pytest.mark.parametrize("kind", ["logsumexp", "std", "norm 2", "mean", "prod"])
def test_bits_in_graphs_of_gradients(kind, device):
    """The same with create_graph, by torch.func, and compiled."""
    x = elements(kind, 4, 700, "float32").to(device)
    call = lambda x: FUNCTIONS[kind](x, 1).sum()  # noqa: E731
    wanted = gradient(call, x)
    assert_same_bits(gradient(call, x, create_graph=True), wanted)
    assert_same_bits(torch.func.grad(call)(x), wanted)
    assert_same_bits(torch.vmap(torch.func.grad(lambda row: FUNCTIONS[kind](row, 0)))(x), wanted)
    torch._dynamo.reset()
    assert_same_bits(gradient(torch.compile(call, backend="aot_eager", fullgraph=True), x), wanted)


@pytest.mark.parametrize("kind", ["logsumexp", "std", "norm 2", "mean"])
def test_bits_by_inductor(kind, device):
    """Inductor contracts and approximates nothing of a gradient."""
    torch._dynamo.reset()
    x = elements(kind, 5, 333, "float32").to(device)
    call = lambda x: FUNCTIONS[kind](x, 1).sum()  # noqa: E731
    assert_same_bits(gradient(torch.compile(call, fullgraph=True), x), gradient(call, x))


@pytest.mark.parametrize("length", [1_000_003, 4_194_304])
def test_bits_of_long_rows(length, cuda):
    """Of many blocks, and of vectors and single elements: the CPU's."""
    for kind in ("logsumexp", "std", "norm 3", "prod"):
        for name in ("float32", "bfloat16"):
            x = elements(kind, 3, length, name)
            assert_same_bits(
                gradient(lambda x, kind=kind: FUNCTIONS[kind](x, 1), x.to(cuda)).cpu(),
                gradient(lambda x, kind=kind: FUNCTIONS[kind](x, 1), x),
            )


def test_complex_norms_have_the_cpus_bits(cuda):
    for power in (1, 2, 3, INF, -INF):
        for name in ("complex64", "complex32"):
            x = data((5, 700), name, seed=7)
            norm = lambda x, p=power: torch_reduce.vector_norm(x, p, 1)  # noqa: E731
            assert_same_bits(gradient(norm, x.to(cuda)).cpu(), gradient(norm, x))


# --- what bug reports found -------------------------------------------------------------------------------------------


def test_gradients_of_halves_do_not_overflow(device):
    """Each is computed in float32 or wider, and rounded once."""
    x = torch.tensor([20000.0, -20000.0] * 2, dtype=torch.float16, device=device)
    torch.testing.assert_close(gradient(torch_reduce.std, x), x.sign() * 0.2887, rtol=1e-3, atol=0)
    x = torch.full((100_352,), 1.0, dtype=torch.float16, device=device)
    x[::2] = -1
    torch.testing.assert_close(gradient(torch_reduce.std, x, 1024.0), x * 1024 / 100_352, rtol=2e-3, atol=0)
    x = torch.full((4,), 60000.0, dtype=torch.float16, device=device)  # whose norm is no float16
    torch.testing.assert_close(gradient(torch_reduce.vector_norm, x), torch.full_like(x, 0.5))
    torch.testing.assert_close(
        gradient(lambda x: torch_reduce.powsum(x, 2), torch.full_like(x, 2.0**-8), 40000.0),
        torch.full_like(x, 312.5),
    )
    x = torch.tensor([10.0, 9.0, 8.0], dtype=torch.bfloat16, device=device)  # 10.4 has one digit behind the point
    torch.testing.assert_close(gradient(torch_reduce.logsumexp, x), x.double().softmax(0).bfloat16(), rtol=0, atol=0)


def test_results_are_rounded_once(device):
    """A result that is kept with more digits for its gradient has the bits that it has without one."""
    for name in ("float16", "bfloat16", "float32", "float8_e5m2"):
        x = data((40, 333), name, seed=11, device=device)
        for kind in ("logsumexp", "std", "var", "norm 2", "norm 3"):
            assert_same_bits(FUNCTIONS[kind](x.clone().requires_grad_(), 1).detach(), FUNCTIONS[kind](x, 1))


def test_gradients_of_products(device):
    """Of zeros and large numbers, and of factors whose running product leaves every float."""
    x = torch.tensor([1, 1e20, 1e20, 0, 0], device=device)
    assert (gradient(torch_reduce.prod, x) == 0).all()
    x[3] = 2.0
    assert gradient(torch_reduce.prod, x).tolist() == [0, 0, 0, 0, INF]
    x = torch.cat([torch.full((512,), 2.0), torch.full((512,), 0.5)]).to(device)
    assert_same_bits(gradient(torch_reduce.prod, x), 1 / x)


def test_gradient_of_a_variance_far_from_zero(device):
    x = torch.tensor([1e7, 1e7 + 1, 1e7 + 2, 1e7 + 3], device=device)
    torch.testing.assert_close(gradient(torch_reduce.var, x), torch.tensor([-1, -1 / 3, 1 / 3, 1], device=device))


def second_derivative(function, x):
    """By the incoming gradient."""
    x = x.detach().requires_grad_()
    y = function(x)
    given = torch.ones_like(y, requires_grad=True)
    (first,) = torch.autograd.grad(y, x, given, create_graph=True)
    return torch.autograd.grad(first.sum(), given)[0]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_second_derivatives_of_no_elements(device):
    offsets = torch.tensor([0, 0, 2], device=device)
    found = second_derivative(lambda x: torch_reduce.segment_mean(x, offsets), torch.ones(2, device=device))
    assert found.tolist() == [0, 1]
    for function in (torch_reduce.mean, lambda x, dim: torch_reduce.var_mean(x, dim)[1]):
        found = second_derivative(lambda x, f=function: f(x, 0), torch.ones(0, 3, device=device))
        assert found.tolist() == [0, 0, 0]


# --- the operator -----------------------------------------------------------------------------------------------------

FORMULAS = [
    "kept",
    "product",
    "exponent",
    "equal",
    "share",
    "sign",
    "extreme",
    "ratio",
    "square",
    "ratio_square",
    "deviation",
]


@pytest.mark.parametrize("formula", ["quotient", *FORMULAS])
def test_derivatives_of_formulas(formula, device):
    """First and second, in both modes, batched, by every operand."""
    x = torch.tensor([[1.0, -2.0, 0.5], [0.25, 3.0, -1.0]], dtype=torch.float64, device=device).requires_grad_()
    g = torch.tensor([[1.5], [-0.5]], dtype=torch.float64, device=device).requires_grad_()
    r = torch.tensor([[2.0], [3.0]], dtype=torch.float64, device=device).requires_grad_()
    m = torch.tensor([[0.5], [4.0]], dtype=torch.float64, device=device).requires_grad_()
    constant = formula in ("equal", "share", "extreme")  # in what decides, and in the number of ties
    operands = (x, None if formula == "quotient" else g, *((r, m) if formula in ("deviation",) else (r, None)))
    if constant:
        operands = (x, g, r.detach(), m.detach())
    apply = torch.ops.gpureduce._apply

    def call(*some):
        given = iter(some)
        each = [next(given) if torch.is_tensor(o) and o.requires_grad else o for o in operands]
        return apply(*each, formula, 5, 1.5, torch.float64)

    inputs = tuple(o for o in operands if torch.is_tensor(o) and o.requires_grad)
    assert gradcheck(call, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    if not constant:
        assert gradgradcheck(call, inputs, check_fwd_over_rev=True, check_batched_grad=True)


@pytest.mark.parametrize("formula", ["divided", "inverse_root", "entropy"])
def test_derivatives_of_formulas_of_norms_and_losses(formula, device):
    """Of positive numbers; an operand that a formula has not is missing."""
    x = (torch.rand(2, 3, dtype=torch.float64, device=device) + 0.5).requires_grad_()
    other = torch.tensor([[2.0], [3.0]], dtype=torch.float64, device=device).requires_grad_()
    given = (x,) if formula == "entropy" else (x, other)

    def call(x, other=None):
        g, r = (None, other) if formula == "divided" else (other, None)
        return torch.ops.gpureduce._apply(x, g, r, None, formula, 1, 0.0, torch.float64)

    assert gradcheck(call, given, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(call, given, check_fwd_over_rev=True, check_batched_grad=True)


def test_second_derivatives_of_products(device):
    x = torch.tensor([[1.0, 2, 3], [0, 2, 3], [0, 0, 3]], dtype=torch.float64, device=device).requires_grad_()
    for dim in (None, 0, 1):
        assert gradgradcheck(lambda x, dim=dim: torch_reduce.prod(x, dim), x, check_fwd_over_rev=True)


def test_opcheck(device):
    x = data((3, 4), "float32", device=device).requires_grad_()
    g = torch.ones(3, 1, device=device, requires_grad=True)
    opcheck(torch.ops.gpureduce._apply.default, (x, g, g.detach() + 1, None, "ratio", 1, 0.0, torch.float32))
    with pytest.raises(ValueError, match="no formula 'cube'"):
        torch.ops.gpureduce._apply(x, g, None, None, "cube", 1, 0.0, torch.float32)
    with pytest.raises(RuntimeError, match="expected 2 dims"):
        torch.ops.gpureduce._apply(x, g[:, 0], None, None, "product", 1, 0.0, torch.float32)


def test_result_lies_as_the_elements_do(device):
    x = data((3, 4, 5), "float32", device=device).permute(2, 0, 1)
    assert gradient(lambda x: torch_reduce.vector_norm(x, 2, 1), x).stride() == x.stride()
    assert bytes_of(gradient(lambda x: torch_reduce.vector_norm(x, 2, 1), x)).size == bytes_of(x).size


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_any_dims(name, device):
    """Elements two places apart, reduced over any dims: the contiguous gradient's bits."""
    for dims in ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)):
        for kind in ("logsumexp", "std", "norm 3"):
            x = data((3, 9, 8), name, 5, device)
            wide = torch.stack([x] * 2, -1)[..., 0]
            assert_same_bits(
                gradient(lambda x, k=kind, d=dims: FUNCTIONS[k](x, d), wide),
                gradient(lambda x, k=kind, d=dims: FUNCTIONS[k](x, d), x),
            )
