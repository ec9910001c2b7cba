"""Rounding to float8 with a scale per block: against a model of the rule, and behind norms and products with silu."""

import functools
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from support import assert_same_bits, dtype_of, python
from torch_reduce import Fp8, quantize, rms_norm, silu_mul

OPS = torch.ops.gpureduce
NAMES = ["bfloat16", "float16", "float32"]
LENGTHS = [1, 7, 8, 64, 127, 128, 129, 512, 520, 1000, 1024, 4095, 4096, 7168, 16_384, 20_000, 28_672]
FORMS = [Fp8(), Fp8("row"), Fp8(32, "ue8m0"), Fp8(64, "float32", torch.float8_e5m2), Fp8("row", "ue8m0")]
MOST = {torch.float8_e4m3fn: 448, torch.float8_e5m2: 57_344}
OPERATOR_DTYPES = {"float32": torch.float32, "ue8m0": torch.float8_e8m0fnu}

every_name = pytest.mark.parametrize("name", NAMES)
every_form = pytest.mark.parametrize("to", FORMS, ids=str)


def given(to):
    """What the operators are told of a form."""
    return 0 if to.block == "row" else to.block, OPERATOR_DTYPES[to.scale], to.dtype


def random(shape, name, seed, device="cpu", spread=2.0):
    """Numbers of many magnitudes."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x * torch.exp(spread * torch.randn(shape, generator=generator, dtype=torch.float64))).to(
        device, dtype_of(name)
    )


# --- a model of the rule ----------------------------------------------------------------------------------------------


def numbers_of(dtype):
    """All finite magnitudes of a float8 dtype, in ascending order: the index is the bits."""
    every = torch.arange(128, dtype=torch.uint8).view(dtype).double()
    return every[every.isfinite()].numpy()


def nearest(quotients, dtype):
    """The bits of the nearest float8, by looking at all of them; of two as near the one with even bits."""
    table = numbers_of(dtype)
    magnitude = np.minimum(np.abs(quotients.astype(np.float64)), table[-1])
    high = np.searchsorted(table, magnitude).clip(1, len(table) - 1)
    below, above = magnitude - table[high - 1], table[high] - magnitude
    bits = np.where((below < above) | ((below == above) & (high % 2 == 1)), high - 1, high)
    return np.where(np.isnan(quotients), 0x7F, bits | np.signbit(quotients) * 0x80).astype(np.uint8)


@functools.cache
def power_above(quotient):
    """The least power of two that is not below a fraction."""
    k = -126
    while Fraction(2) ** k < quotient:
        k += 1
    return k


def model(x, to):
    """The bits of values and of scales, float32 or float8_e8m0fnu, of a tensor of at least one dim."""
    numbers = x.detach().cpu().float().numpy().reshape(-1, x.shape[-1])
    (rows, length), most = numbers.shape, MOST[to.dtype]
    size = length if to.block == "row" else to.block
    begins = np.arange(0, length, size)
    with np.errstate(all="ignore"):
        largest = np.maximum.reduceat(np.abs(numbers), begins, axis=1) if length else np.zeros((rows, 0), np.float32)
        if to.scale == "ue8m0":
            powers = np.zeros(largest.shape, np.int64)
            for at in zip(*np.nonzero(np.isfinite(largest)), strict=True):
                powers[at] = power_above(Fraction(float(largest[at])) / most)
            scale = np.where(np.isfinite(largest), np.ldexp(np.float32(1), powers), np.float32(np.nan))
            scales = np.where(np.isfinite(largest), powers + 127, 0xFF).astype(np.uint8)
        else:
            scale = np.maximum(largest / np.float32(most), np.float32(2.0**-126))
            scale[~np.isfinite(largest)] = np.nan
            scales = scale.view(np.uint32)
        assert scale.dtype == np.float32
        values = nearest(numbers / np.repeat(scale, size, axis=1)[:, :length], to.dtype)
    return values.reshape(x.shape), scales.reshape(*x.shape[:-1], scales.shape[1])


def check(found, x, to, what=""):
    """Values and scales have the model's bits, dtypes and shapes, and are contiguous."""
    values, scales = found
    assert values.dtype == to.dtype and values.shape == x.shape and values.is_contiguous(), what
    assert scales.dtype == OPERATOR_DTYPES[to.scale] and scales.is_contiguous(), what
    wanted_values, wanted_scales = model(x, to)
    assert list(scales.shape) == [*x.shape[:-1], wanted_scales.shape[-1]], what
    assert_same_bits(values.cpu(), torch.from_numpy(wanted_values).view(to.dtype), what)
    wanted = torch.from_numpy(wanted_scales.view(np.uint8 if to.scale == "ue8m0" else np.float32))
    if to.scale == "ue8m0":
        assert torch.equal(scales.cpu().view(torch.uint8), wanted), what
    else:
        assert_same_bits(scales.cpu(), wanted, what)


def same(found, wanted, what=""):
    """Bits are equal; all NaNs count as one."""
    for ours, theirs in zip(found, wanted, strict=True):
        if ours.dtype == torch.float8_e8m0fnu:
            assert theirs.dtype == ours.dtype
            ours, theirs = ours.view(torch.uint8), theirs.view(torch.uint8)
        assert_same_bits(ours.detach().cpu(), theirs.detach().cpu(), what)


# --- quantize ---------------------------------------------------------------------------------------------------------


@every_form
@every_name
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length(length, name, to, device):
    x = random((3 if length < 5000 else 2, length), name, length, device)
    check(quantize(x, to), x, to)


@every_form
@every_name
def test_every_layout(name, to, device):
    """A row has the same bits alone, in a batch, between other dims, expanded, reversed in memory and at odd places."""
    x = random((4, 3, 520), name, 1, device)
    whole = quantize(x, to)
    check(whole, x, to)
    same([each[2] for each in whole], quantize(x[2].clone(), to))
    same([each[1, 2] for each in whole], quantize(x[1, 2].clone(), to))
    same(whole, quantize(x.transpose(0, 2).contiguous().transpose(0, 2), to))
    wide = torch.zeros((4, 3, 1100), dtype=x.dtype, device=device)
    for begin, step in ((0, 1), (1, 1), (3, 2)):
        view = wide[..., begin : begin + step * 520 : step]
        view.copy_(x)
        same(whole, quantize(view, to), f"from {begin} in steps of {step}")
    same([each[:, :1].expand_as(each) for each in whole], quantize(x[:, :1].expand(x.shape), to))


@every_form
def test_many_rows(to, device):
    x = random((5000, 256), "bfloat16", 2, device)
    check(quantize(x, to), x, to)


@pytest.mark.parametrize("to", FORMS, ids=str)
def test_special_numbers(to, device):
    """Zeros keep their signs and have the least scale; NaN and infinities spoil their own block alone."""
    tiny, least = 2.0**-149, 2.0**-126
    rows = {
        "zeros": [0.0, -0.0],
        "subnormals": [tiny, -3 * tiny, 100 * tiny, 0.0],
        "scales below the least": [least, -least * 100, least * 447],
        "the least scale": [least * 448, 2 * least, -tiny],
        "NaN": [1.0, float("nan"), -2.0],
        "infinity": [1.0, float("inf"), -0.0],
        "both": [float("-inf"), float("nan")],
        "the largest": [3.4028234663852886e38, 1.0, -3e38],
        "one": [1.0],
        "negative": [-5.0, -4.0],
    }
    for what, row in rows.items():
        x = torch.ones(2, 256, device=device)
        x[0, 130] = 7.0
        x[1, : len(row)] = torch.tensor(row, device=device)
        x[1, len(row) : 128] = 0.0
        check(quantize(x, to), x, to, what)
    values, scales = quantize(torch.zeros(4, 128, device=device), to)
    assert (values.float() == 0).all() and (scales.float() == least).all()
    values, scales = quantize(torch.full((128,), float("inf"), device=device), to)
    assert values.float().isnan().all() and scales.float().isnan().all()


@pytest.mark.parametrize("dtype", MOST)
def test_ties_and_every_float8(dtype, device):
    """With a scale of one, each float8 is itself, and what lies between two goes to the nearer one, or to the even."""
    table = torch.from_numpy(numbers_of(dtype))
    middle = (table[1:] + table[:-1]) / 2
    near = torch.cat([middle, table, *((middle * (1 + sign * 2.0**-23)) for sign in (-1, 1))]).float()
    for sign in (1, -1):
        for rest in near.split(127):
            x = torch.cat([rest * sign, torch.tensor([float(MOST[dtype])])]).to(device)
            for scale in ("float32", "ue8m0"):
                to = Fp8(128, scale, dtype)
                check(quantize(x, to), x, to)
                assert quantize(x, to)[1].float().tolist() == [1.0]


@pytest.mark.parametrize("dtype", MOST)
def test_powers_of_two(dtype, device):
    """A scale is the next power of two that is not below the quotient, also where that rounds to another number."""
    numbers = [MOST[dtype] * 2.0**k for k in (-130, -20, -1, 0, 1, 60)]
    x = torch.tensor([n * (1 + d * 2.0**-23) for n in numbers for d in (-3, -2, -1, 0, 1, 2, 3)], device=device)
    to = Fp8(32, "ue8m0", dtype)
    check(quantize(x.unsqueeze(1), to), x.unsqueeze(1), to)
    wanted = [2.0 ** power_above(Fraction(n) / MOST[dtype]) for n in x.double().tolist()]
    assert quantize(x.unsqueeze(1), to)[1].float().flatten().tolist() == wanted


def test_every_exponent(device):
    """Quotients are correctly rounded, for scales of all magnitudes."""
    generator = torch.Generator().manual_seed(3)
    exponent = torch.arange(-140, 127).unsqueeze(1)
    x = (1 + torch.rand((267, 128), generator=generator, dtype=torch.float64)) * 2.0**exponent
    x = (x * torch.tensor([-1.0, 1.0, 0.125, 2.0**-9]).repeat(32)).float().to(device)
    for to in (Fp8(), Fp8("row", "float32", torch.float8_e5m2), Fp8(128, "ue8m0")):
        check(quantize(x, to), x, to)


@pytest.mark.parametrize("dtype", MOST)
def test_quotients_next_to_ties(dtype, device):
    """A value is a correctly rounded quotient: a product with the scale's reciprocal falls on other sides of ties."""
    generator = torch.Generator().manual_seed(5)
    table = torch.from_numpy(numbers_of(dtype))
    middle = ((table[1:] + table[:-1]) / 2)[-31:]
    exponent = torch.arange(-100, 101).unsqueeze(1)
    largest = (1 + torch.rand(exponent.shape, generator=generator)) * 2.0**exponent
    scale = largest / MOST[dtype]
    x = (middle.float() * scale).repeat_interleave(4, 1)
    for step in range(1, 4):  # and its neighbours
        x[:, step::4] = torch.nextafter(x[:, step - 1 :: 4], torch.tensor(-1.0 if step == 1 else 1e38))
    x = torch.cat([largest, x], 1).to(device)
    to = Fp8(128, "float32", dtype)
    check(quantize(x, to), x, to)


@every_form
def test_how_near(to, device):
    """values * scales differ from the numbers by half a place, or by half of the smallest float8 times the scale."""
    x = random((16, 1024), "float32", 4, device).double()
    values, scales = quantize(x.float(), to)
    size = 1024 if to.block == "row" else to.block
    wide = scales.double().repeat_interleave(size, -1)
    relative, least = (2.0**-4, 2.0**-10) if to.dtype == torch.float8_e4m3fn else (2.0**-3, 2.0**-17)
    assert ((values.double() * wide - x.float().double()).abs() <= (x.abs() * relative + least * wide) * 1.0001).all()


@every_form
@pytest.mark.parametrize("shape", [(0,), (0, 128), (5, 0), (2, 0, 3)])
def test_empty(shape, to, device):
    values, scales = quantize(torch.ones(shape, device=device), to)
    blocks = 1 if to.block == "row" else -(-shape[-1] // to.block)
    assert values.shape == shape and scales.shape == (*shape[:-1], blocks)
    assert (scales.float() == 2.0**-126).all()


@every_form
@every_name
@pytest.mark.parametrize("length", [1, 7, 128, 1000, 4096])
def test_composition_of_operators(length, name, to, device):
    """What GPUs do with rows that no kernel takes has the same bits."""
    x = random((3, length), name, length + 1, device)
    x[1, : length // 2] = 0
    x[2, 0] = float("inf")
    same(OPS._quantize_composed(x, *given(to)), quantize(x, to))


# --- rms_norm ---------------------------------------------------------------------------------------------------------


def composed(x, shape, weight, eps, residual, offset, to):
    """The same by plain functions: the sum, its norm with the weight that is added to, and its rounding."""
    total = None if residual is None else (x + residual).to(residual.dtype)
    if weight is not None and offset:
        wide = torch.float64 in (x.dtype, weight.dtype, x.dtype if total is None else total.dtype)
        weight = weight.to(torch.float64 if wide else torch.float32) + offset
    wide = x if total is None else total.to(torch.promote_types(x.dtype, total.dtype))
    y = rms_norm(wide, shape, weight, eps).to(x.dtype)
    return (*quantize(y, to), *([] if total is None else [total]))


@every_name
@pytest.mark.parametrize("length", LENGTHS)
def test_norms_of_every_length(length, name, device):
    x, residual = random((3, length), name, 5, device, 1.0), random((3, length), name, 6, device, 1.0)
    weight = random((length,), name, 7, device, 0.1)
    for to, eps, given_residual, given_weight, offset in (
        (Fp8(), 1e-6, residual, weight, 0.0),
        (Fp8("row"), None, residual, weight, 1.0),
        (Fp8(128, "ue8m0"), 1e-5, None, weight.float(), 1.0),
        (Fp8(32, "float32", torch.float8_e5m2), 1e-5, residual.float(), None, 0.0),
    ):
        found = rms_norm(x, length, given_weight, eps, residual=given_residual, weight_offset=offset, quantize=to)
        wanted = composed(
            x.cpu(),
            [length],
            *(t if t is None else t.cpu() for t in (given_weight,)),
            eps,
            given_residual if given_residual is None else given_residual.cpu(),
            offset,
            to,
        )
        same(found, wanted, f"{to} of {length} {name}")


@pytest.mark.parametrize("weight_name", ["bfloat16", "float32", "float64", "float16", "int32"])
@pytest.mark.parametrize("residual_name", ["bfloat16", "float32", "float64", "float16", None])
@every_name
def test_norms_of_dtypes(name, residual_name, weight_name, device):
    x, weight = random((5, 256), name, 8, device, 1.0), (4 * random((256,), "float64", 9, device, 0.1))
    weight = weight.to(dtype_of(weight_name))
    residual = residual_name and random((5, 256), residual_name, 10, device, 1.0)
    for offset in (0.0, 1.0, -0.3):
        found = rms_norm(x, 256, weight, residual=residual, weight_offset=offset, quantize=Fp8())
        same(found, composed(x, [256], weight, None, residual, offset, Fp8()))
        assert len(found) == (2 if residual is None else 3)
        if residual is not None:
            assert found[2].dtype == residual.dtype and found[2].is_contiguous()


@every_form
def test_norms_of_layouts(to, device):
    x, residual = random((4, 6, 512), "bfloat16", 11, device), random((4, 6, 512), "bfloat16", 12, device)
    weight = random((512,), "bfloat16", 13, device, 0.1)
    whole = rms_norm(x, 512, weight, residual=residual, quantize=to)
    same(whole, composed(x, [512], weight, None, residual, 0, to))
    same([each[3] for each in whole], rms_norm(x[3], 512, weight, residual=residual[3], quantize=to))
    wide = torch.zeros((4, 6, 1040), dtype=x.dtype, device=device)
    for begin in (0, 8, 1):
        view = wide[..., begin : begin + 512]
        view.copy_(x)
        same(whole, rms_norm(view, 512, weight, residual=residual, quantize=to))
        same(whole, rms_norm(residual, 512, weight, residual=view, quantize=to))
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    same(whole, rms_norm(turned, 512, weight, residual=residual, quantize=to))
    several = rms_norm(x, (6, 512), residual=residual, quantize=to)
    same(several, composed(x, [6, 512], None, None, residual, 0, to))


def test_norms_of_special_numbers(device):
    """The signs of zeros, NaN and infinities are those of the composition."""
    x = random((6, 256), "bfloat16", 14, device)
    residual = random((6, 256), "bfloat16", 15, device)
    weight = random((256,), "bfloat16", 16, device)
    weight[::5] = -0.0
    x[0], residual[0] = 0.0, -0.0
    x[1] = -0.0
    residual[1] = -0.0
    x[2, 3], x[3, 7] = float("nan"), float("inf")
    x[4], residual[4] = 1e30, 1e30
    x[5] = 1e-38
    residual[5] = 0.0
    for to, other, offset in itertools.product(FORMS, (residual, None), (0.0, 1.0)):
        found = rms_norm(x, 256, weight, residual=other, weight_offset=offset, quantize=to)
        same(found, composed(x.cpu(), [256], weight.cpu(), None, other if other is None else other.cpu(), offset, to))


@pytest.mark.parametrize("residual_name", [None, "float32"])
def test_weight_offset(residual_name, device):
    """Without quantize=: the bits and gradients of a weight to which it was added before."""
    x, weight = random((5, 100), "bfloat16", 17, device), random((100,), "bfloat16", 18, device)
    residual = residual_name and random((5, 100), residual_name, 19, device)
    results = []
    for added in (True, False):
        tensors = [t.detach().requires_grad_() for t in (x, weight, *([] if residual is None else [residual]))]
        other = None if residual is None else tensors[2]
        if added:
            y = rms_norm(tensors[0], 100, tensors[1], 1e-6, residual=other, weight_offset=1.0)
        else:
            y = rms_norm(tensors[0], 100, tensors[1].float() + 1.0, 1e-6, residual=other)
        y = y if residual is None else y[0]
        results.append((y, *torch.autograd.grad(y.double().square().sum(), tensors)))
    for ours, theirs in zip(*results, strict=True):
        assert_same_bits(ours.detach(), theirs.detach())
    wanted = torch.nn.functional.rms_norm(
        x.double() if residual is None else (x + residual).double(), (100,), weight.double() + 1, 1e-6
    )
    torch.testing.assert_close(results[0][0].double(), wanted, rtol=2.0**-8, atol=1e-6)


def test_what_requires_a_gradient(device):
    """Values and scales have none; the sum beside them has the usual one."""
    x, residual, weight = (random(shape, "float32", 20, device).requires_grad_() for shape in [(3, 128), (3, 128), 128])
    values, scales, total = rms_norm(x, 128, weight, residual=residual, quantize=Fp8())
    assert not values.requires_grad and not scales.requires_grad and total.requires_grad
    for gradient in torch.autograd.grad(total.square().sum(), [x, residual]):
        torch.testing.assert_close(gradient, 2 * total.detach())
    with torch.no_grad():
        same((values, scales, total), rms_norm(x, 128, weight, residual=residual, quantize=Fp8()))
    for found in (
        rms_norm(x, 128, weight, quantize=Fp8()),
        quantize(x, Fp8()),
        silu_mul(x, residual, quantize=Fp8()),
    ):
        assert not any(each.requires_grad for each in found)


# --- silu -------------------------------------------------------------------------------------------------------------


@every_form
@every_name
@pytest.mark.parametrize("length", LENGTHS)
def test_silu_of_every_length(length, name, to, device):
    x, y = random((2, length), name, 21, device), random((2, length), name, 22, device)
    product = silu_mul(x, y)
    assert_same_bits(product.cpu(), silu_mul(x.cpu(), y.cpu()))
    same(silu_mul(x, y, quantize=to), quantize(product, to))
    both = torch.cat([x, y], -1)
    assert_same_bits(silu_mul(both), product)
    same(silu_mul(both, quantize=to), quantize(product, to))


@pytest.mark.parametrize("name", [*NAMES, "float64"])
def test_how_near_silu_is(name, device):
    """Within two roundings of float32, or of float64, and the one of the result."""
    x = torch.cat(
        [random((4000,), name, 23, device), torch.linspace(-200, 100, 3001, device=device).to(dtype_of(name))]
    )
    y = random(x.shape, name, 24, device)
    wide = torch.nn.functional.silu(x.double()) * y.double()
    found, eps = silu_mul(x, y), torch.finfo(dtype_of(name)).eps
    assert found.dtype == x.dtype and found.is_contiguous()
    exact = x.double().cpu() * y.double().cpu() / (1 + torch.exp(-x.double().cpu()))
    smallest = torch.finfo(dtype_of(name)).smallest_normal * max(eps, 2.0**-23)
    bound = (
        exact.abs() * (eps / 2 + 8 * 2.0 ** (-52 if name == "float64" else -24))
        + 4 * smallest
        + 1e-37 * (name != "float64")
    )
    assert ((found.double().cpu() - exact).abs() <= bound).all()
    assert wide.shape == exact.shape


def test_silu_of_special_numbers(device):
    numbers = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -1e-40, -87.5, -100.0, -104.0, 88.0, 1e38]
    x = torch.tensor(numbers, device=device)
    found = silu_mul(x, torch.ones_like(x))
    assert_same_bits(found.cpu(), silu_mul(x.cpu(), torch.ones(len(numbers))))
    torch.testing.assert_close(
        found, torch.nn.functional.silu(x.double()).float(), equal_nan=True, rtol=1e-6, atol=105 * 2**-150
    )
    assert torch.signbit(found[:2]).tolist() == [False, True]


@every_name
def test_gradients_of_silu(name, device):
    """Of first order on one rounding, with the same bits in a batch; of the second as torch's."""
    x, y, grad = (random((7, 130), name, seed, device, 1.0) for seed in (25, 26, 27))
    inputs = x.clone().requires_grad_(), y.clone().requires_grad_()
    found = torch.autograd.grad(silu_mul(*inputs), inputs, grad)
    wide = x.double().requires_grad_(), y.double().requires_grad_()
    wanted = torch.autograd.grad(torch.nn.functional.silu(wide[0]) * wide[1], wide, grad.double())
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=torch.finfo(x.dtype).eps, atol=1e-5)
    one = x[3].clone().requires_grad_(), y[3].clone().requires_grad_()
    alone = torch.autograd.grad(silu_mul(*one), one, grad[3])
    for whole, part in zip(found, alone, strict=True):
        assert_same_bits(whole[3], part)
    cpu = x.cpu().requires_grad_(), y.cpu().requires_grad_()
    for ours, theirs in zip(found, torch.autograd.grad(silu_mul(*cpu), cpu, grad.cpu()), strict=True):
        assert_same_bits(ours.cpu(), theirs)


def test_derivatives_of_silu(device):
    x, y = (random((2, 6), "float64", seed, device, 0.3).requires_grad_() for seed in (28, 29))
    assert gradcheck(silu_mul, (x, y), check_forward_ad=True)
    assert gradgradcheck(silu_mul, (x, y))
    assert gradcheck(silu_mul, (x,))


# --- torch's machinery ------------------------------------------------------------------------------------------------


def calls(x, residual, weight):
    return {
        "quantize": lambda: quantize(x, Fp8("row")),
        "silu_mul": lambda: silu_mul(x, residual, quantize=Fp8(64, "ue8m0")),
        "rms_norm": lambda: rms_norm(
            x, x.shape[-1:], weight, 1e-6, residual=residual, weight_offset=1.0, quantize=Fp8()
        ),
        "rms_norm without a residual": lambda: rms_norm(x, x.shape[-1:], weight, quantize=Fp8(32)),
    }


CALLS = list(calls(*(torch.ones(1),) * 3))


def tensors(device, shape=(4, 6, 260)):
    return [random(s, "bfloat16", seed, device) for seed, s in enumerate([shape, shape, shape[-1:]])]


@pytest.mark.parametrize("call", CALLS)
def test_meta(call, device):
    """Shapes, dtypes and strides are known without computing."""
    given_tensors = tensors(device)
    found = calls(*given_tensors)[call]()
    meta = calls(*(t.to("meta") for t in given_tensors))[call]()
    for ours, theirs in zip(found, meta, strict=True):
        assert (ours.shape, ours.dtype, ours.stride()) == (theirs.shape, theirs.dtype, theirs.stride())


@pytest.mark.parametrize("call", CALLS)
def test_vmap(call, device):
    x, residual, weight = tensors(device)
    each = lambda a, b, w: calls(a, b, w)[call]()  # noqa: E731
    whole = calls(x, residual, weight)[call]()
    same(torch.vmap(each, (0, 0, None))(x, residual, weight), whole)
    same(torch.vmap(each, (1, 1, None), out_dims=1)(x, residual, weight), whole)
    weights = torch.stack([weight, 2 * weight, weight, -weight])
    wanted = [calls(x[i], residual[i], weights[i])[call]() for i in range(4)]
    found = torch.vmap(each)(x, residual, weights)
    for i in range(4):
        same([t[i] for t in found], wanted[i])


@pytest.mark.parametrize("call", CALLS)
def test_compile(call, device):
    """One operator of a graph, with the same bits; also where sizes may change."""
    given_tensors = tensors(device)
    function = torch.compile(lambda *args: calls(*args)[call](), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        same(function(*given_tensors), calls(*given_tensors)[call]())
        dynamic = torch.compile(lambda *args: calls(*args)[call](), backend="aot_eager", fullgraph=True, dynamic=True)
        for rows, length in ((3, 256), (5, 300)):
            other = tensors(device, (rows, 2, length))
            same(dynamic(*other), calls(*other)[call]())


def test_compile_with_gradients(device):
    x, residual, weight = (t.float().requires_grad_() for t in tensors(device))

    def loss(*args):
        values, scales, total = rms_norm(args[0], 260, args[2], residual=args[1], quantize=Fp8())
        return (total.square().sum() + silu_mul(*args[:2]).sum()), values, scales

    wanted = loss(x, residual, weight)
    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(x, residual, weight)
    same(found[1:], wanted[1:])
    ours, theirs = (torch.autograd.grad(each[0], [x, residual]) for each in (found, wanted))
    for one, other in zip(ours, theirs, strict=True):
        assert_same_bits(one, other)


@pytest.mark.parametrize("call", CALLS)
def test_export(call):
    class Module(torch.nn.Module):
        def forward(self, *args):
            return calls(*args)[call]()

    given_tensors = tensors("cpu")
    with torch.no_grad():
        program = torch.export.export(Module(), tuple(given_tensors))
        same(program.module()(*given_tensors), calls(*given_tensors)[call]())


def test_opcheck(device):
    x, residual, weight = tensors(device)
    last = given(Fp8())
    torch.library.opcheck(OPS.quantize.default, (x, *last))
    torch.library.opcheck(OPS._silu_mul_quantize.default, (x, residual, *last))
    torch.library.opcheck(OPS.silu_mul.default, (x.float().requires_grad_(), residual.float()))
    torch.library.opcheck(OPS._rms_norm_quantize.default, (x, [260], weight, 1e-6, residual, 1.0, *last))
    torch.library.opcheck(OPS._rms_norm_quantize.default, (x, [6, 260], None, None, None, 0.0, *last))


def test_explain():
    """On an H200 one kernel takes all of it, unless rows are no whole vectors, or too long to be added."""
    from torch_reduce._explain import _explained

    def kernels(function, *args, **named):
        return [
            line.split("kernel ")[1].split(":")[0]
            for line in _explained(function, args, named, "multiprocessors=132").splitlines()
            if "kernel " in line
        ]

    x = torch.ones((64, 4096), dtype=torch.bfloat16)
    weight = torch.ones(4096)
    one = ["quantize"]
    assert kernels(rms_norm, x, 4096, weight, residual=x, quantize=Fp8()) == one
    assert kernels(rms_norm, x, 4096, weight, residual=x.float(), weight_offset=1.0, quantize=Fp8("row")) == one
    assert kernels(rms_norm, x, 4096, quantize=Fp8(32)) == one
    assert kernels(silu_mul, x, quantize=Fp8()) == one
    assert kernels(silu_mul, x.repeat(1, 14), quantize=Fp8()) == one  # rows of 28,672, whose blocks are taken apart
    assert kernels(quantize, x, Fp8("row")) == one
    assert kernels(quantize, x.repeat(1, 5), Fp8()) == one
    assert "rows, chunks" in kernels(rms_norm, x[:, 1:], 4095, residual=x[:, 1:], quantize=Fp8())
    assert one[0] not in kernels(quantize, x[:, 1:], Fp8())
    assert one[0] not in kernels(quantize, x.repeat(1, 5), Fp8("row"))
    text = _explained(rms_norm, (x, 4096, weight), dict(residual=x, quantize=Fp8()), "multiprocessors=132")
    assert "64 threads, 1 row; grid 64" in text and f"{64 * 4096 * 7 + 64 * 32 * 4} bytes" in text


# --- errors -----------------------------------------------------------------------------------------------------------


def test_arguments_of_fp8():
    assert Fp8() == Fp8(128, "float32", torch.float8_e4m3fn) and hash(Fp8()) == hash(Fp8())
    for wrong in (16, 256, 0, True, "column", None, 128.5):
        with pytest.raises(ValueError, match=r"Fp8\(\): block: expected 32, 64, 128 or 'row'"):
            Fp8(wrong)
    with pytest.raises(ValueError, match=r"Fp8\(\): scale: expected 'float32' or 'ue8m0', but got 'bfloat16'"):
        Fp8(scale="bfloat16")
    with pytest.raises(ValueError, match=r"Fp8\(\): dtype: expected float8_e4m3fn or float8_e5m2"):
        Fp8(dtype=torch.float16)
    with pytest.raises(TypeError, match=r"Fp8\(\): argument 'dtype' must be torch.dtype"):
        Fp8(dtype="e4m3")
    with pytest.raises(AttributeError):
        Fp8().block = 32


def test_errors(device):
    x = torch.ones(2, 128, device=device)
    for error, text, function in (
        (
            NotImplementedError,
            "quantize(): input: expected float16, bfloat16 or float32, but got Double",
            lambda: quantize(x.double(), Fp8()),
        ),
        (
            NotImplementedError,
            "quantize(): input: expected float16, bfloat16 or float32, but got Int",
            lambda: quantize(x.int(), Fp8()),
        ),
        (RuntimeError, "quantize(): input: expected at least one dim", lambda: quantize(x[0, 0], Fp8())),
        (TypeError, "quantize(): argument 'to' must be Fp8, not int", lambda: quantize(x, 128)),
        (RuntimeError, "silu_mul(): other: expected the size [2, 128] of input", lambda: silu_mul(x, x[:1])),
        (RuntimeError, "silu_mul(): other: expected the dtype", lambda: silu_mul(x, x.half(), quantize=Fp8())),
        (RuntimeError, "silu_mul(): input: expected an even last dim", lambda: silu_mul(x[:, 1:])),
        (NotImplementedError, "silu_mul(): input: expected float16", lambda: silu_mul(x.int(), x.int())),
        (
            NotImplementedError,
            "silu_mul(): input: expected float16, bfloat16 or float32",
            lambda: silu_mul(x.double(), quantize=Fp8()),
        ),
        (
            NotImplementedError,
            "rms_norm(): input: expected float16, bfloat16 or float32, but got Double",
            lambda: rms_norm(x.double(), 128, quantize=Fp8()),
        ),
        (
            RuntimeError,
            "rms_norm(): residual: expected the size [2, 128] of input",
            lambda: rms_norm(x, 128, residual=x[:1], quantize=Fp8()),
        ),
        (
            RuntimeError,
            "rms_norm(): weight: expected the size [128]",
            lambda: rms_norm(x, 128, x[0, 1:], quantize=Fp8()),
        ),
        (RuntimeError, "rms_norm(): Given normalized_shape=[64]", lambda: rms_norm(x, 64, quantize=Fp8())),
        (TypeError, "rms_norm(): argument 'quantize' must be Fp8, not str", lambda: rms_norm(x, 128, quantize="row")),
        (ValueError, "rms_norm(): weight_offset: there is no weight", lambda: rms_norm(x, 128, weight_offset=1.0)),
        (
            TypeError,
            "rms_norm(): argument 'weight_offset' must be float",
            lambda: rms_norm(x, 128, x[0], weight_offset="a"),
        ),
        (RuntimeError, "quantize(): block: expected 32, 64, 128, or 0", lambda: OPS.quantize(x, 48, *given(Fp8())[1:])),
        (
            RuntimeError,
            "quantize(): scale: expected float32",
            lambda: OPS.quantize(x, 32, torch.half, torch.float8_e5m2),
        ),
        (RuntimeError, "quantize(): dtype: expected float8", lambda: OPS.quantize(x, 32, torch.float32, torch.half)),
    ):
        with pytest.raises(error) as raised:
            function()
        assert str(raised.value).startswith(text), str(raised.value)


OVER_RANKS = """
import torch, torch.distributed as dist, torch_reduce
from torch.distributed.tensor import Shard, distribute_tensor
from torch_reduce import Fp8, quantize, rms_norm, silu_mul

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.init_device_mesh("cpu", (1,))
whole, weight = torch.arange(256.0).view(2, 128), torch.full((128,), 0.5)
x, shard = distribute_tensor(whole, mesh, [Shard(1)]), torch_reduce.distributed.Shard(whole, 1)
for function in (
    lambda x: quantize(x, Fp8()),
    silu_mul,
    lambda x: silu_mul(x, quantize=Fp8()),
    lambda x: rms_norm(x, 128, quantize=Fp8()),
):
    for given, error, text in (
        (x, NotImplementedError, "(): input: a DTensor is not supported"),
        (shard, TypeError, "(): argument 'input' must be Tensor, not Shard"),
    ):
        try:
            function(given)
        except error as raised:
            assert text in str(raised), raised
        else:
            raise AssertionError(text)
wanted = rms_norm(whole, 128, weight, weight_offset=1.0)
assert wanted.equal(rms_norm(whole, 128, weight + 1))
assert wanted.equal(rms_norm(shard, 128, weight, weight_offset=1.0))
assert wanted.equal(rms_norm(x, 128, distribute_tensor(weight, mesh, [Shard(0)]), weight_offset=1.0).full_tensor())
dist.destroy_process_group()
"""


def test_over_ranks():
    """Nothing is rounded over ranks, and the error says so; a weight is added to there, too."""
    python("-c", OVER_RANKS)
