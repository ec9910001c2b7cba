"""softmax, log_softmax, rms_norm and layer_norm: the model's bits, gradients, derivatives, torch's arguments."""

import itertools
import math
import pathlib
import re

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import model
import pinned_rows
import torch_reduce
from support import assert_same_bits, data, dtype_of, in_threads, walked
from table import rotated

ROOT = pathlib.Path(__file__).resolve().parents[2]
OPS = torch.ops.gpureduce
FLOATS = ["float32", "bfloat16", "float16", "float64"]
SOFTMAXES = {"softmax": False, "log_softmax": True}
NORMS = {"rms_norm": False, "layer_norm": True}
# Of a thread, a warp, several vectors, chunks; whole vectors and not; a block's and a cluster's.
LENGTHS = [1, 2, 3, 7, 8, 33, 100, 128, 512, 513, 1000, 1024, 2048, 2049, 4096, 4100, 5000, 8192, 20_000, 50_257]

every_float = pytest.mark.parametrize("name", FLOATS)
every_softmax = pytest.mark.parametrize("function", SOFTMAXES)
every_norm = pytest.mark.parametrize("function", NORMS)


def numbers(x, wide):
    """What a call computes with, as (rows, length) of NumPy: the last dim is a row."""
    return x.detach().cpu().to(torch.float64 if wide else torch.float32).reshape(-1, x.shape[-1]).numpy()


def result(y, like, dtype=None):
    return torch.from_numpy(np.ascontiguousarray(y)).to(dtype or like.dtype).reshape(like.shape)


def same(ours, y, like, dtype=None, what=""):
    assert_same_bits(ours.detach().cpu(), result(y, like, dtype), what)


def check_softmax(function, x, grad, dtype=None):
    """The value and the gradient of softmaxes over the last dim."""
    logarithmic, wide = SOFTMAXES[function], torch.float64 in (x.dtype, dtype, grad.dtype)
    x = x.detach().requires_grad_()
    y = getattr(OPS, function)(x, -1, dtype=dtype)
    target = dtype or x.dtype
    expected = model.softmaxes(numbers(x, wide), logarithmic)
    what = f"{function} of {tuple(x.shape)} {x.stride()} {x.dtype}"
    same(y, expected, x, target, what)
    (gradient,) = torch.autograd.grad(y, x, grad)
    small = logarithmic and target.itemsize == 2  # such a logarithm is kept in float32
    kept = numbers(result(expected, x, torch.float32 if small else target), wide)
    same(gradient, model.softmaxes_backward(numbers(grad, wide), kept, logarithmic), x, None, f"the gradient of {what}")


def check_norm(function, x, weight, bias, grad, eps=1e-5):
    """The value and the gradients of norms over the last dim."""
    centered = NORMS[function]
    given = [t for t in (x, weight, bias) if t is not None]
    wide, grad = any(t.dtype == torch.float64 for t in given), grad.to(x.dtype)
    x, weight, bias = (t if t is None else t.detach().requires_grad_() for t in (x, weight, bias))
    arguments = (x, x.shape[-1:], weight, bias, eps) if centered else (x, x.shape[-1:], weight, eps)
    y = getattr(OPS, function)(*arguments)
    w = np.ones((), np.float64 if wide else np.float32) if weight is None else numbers(weight, wide)
    b = np.zeros_like(w) if bias is None else numbers(bias, wide)
    what = f"{function} of {tuple(x.shape)} {x.stride()} {x.dtype}, weight {weight is not None}"
    expected, mean, r = model.row_norms(numbers(x, wide), w, b, eps, centered)
    same(y, expected, x, None, what)
    inputs = [t for t in (x, weight, bias) if t is not None]
    found = torch.autograd.grad(y, inputs, grad)
    dx, dw, db = model.row_norms_backward(numbers(grad, wide), numbers(x, wide), mean, r, w, centered)
    same(found[0], dx, x, None, f"the gradient of {what}")
    if weight is not None:
        same(found[1], dw, weight, None, f"the weight's gradient of {what}")
    if bias is not None:
        same(found[-1], db, bias, None, f"the bias's gradient of {what}")


def random(shape, name, seed, device):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype_of(name)).to(device)


# --- bits -------------------------------------------------------------------------------------------------------------


@every_float
@walked("length", LENGTHS)
def test_softmaxes_of_every_length(length, name, device):
    rows = max(1, min(37, 40_000 // length))
    x, grad = random((rows, length), name, 1, device), random((rows, length), name, 2, device)
    for function in SOFTMAXES:
        check_softmax(function, x, grad)


@every_float
@walked("length", LENGTHS)
def test_norms_of_every_length(length, name, device):
    rows = max(1, min(37, 40_000 // length))
    x, grad = random((rows, length), name, 3, device), random((rows, length), name, 4, device)
    weight, bias = random((length,), name, 5, device), random((length,), name, 6, device)
    check_norm("rms_norm", x, weight, None, grad)
    check_norm("layer_norm", x, weight, bias, grad)
    if length in (100, 1024):
        check_norm("rms_norm", x, None, None, grad, 1e-3)
        check_norm("layer_norm", x, None, None, grad, 1e-3)
        check_norm("layer_norm", x, weight, None, grad)
        check_norm("layer_norm", x.to(torch.float32), weight, bias.to(torch.float64), grad)
        check_norm("layer_norm", x, weight.float(), bias.float(), grad)


@pytest.mark.parametrize("length", [5, 128, 768, 4096, 50_257, 1_000_000])
def test_statistics_keep_their_digits(length, device):
    """Where all elements lie far from zero, and beside an outlier; and zeros of both signs."""
    data = np.random.default_rng(length).standard_normal((2, length))
    outlier = np.full((1, length), 0.1)
    outlier[0, 0] = 1e6
    for x in (data, 1e4 + data, 1e6 + data, outlier, outlier[:, ::-1]):
        x = torch.from_numpy(x.copy()).float()
        _, mean, r = (each.cpu().double() for each in OPS._layer_norm(x.to(device), 1, None, None, 0.0))
        x = x.double()
        right, deviation = x.mean(1, keepdim=True), x.std(1, correction=0, keepdim=True)
        assert ((mean - right).abs() <= 2**-23 * torch.maximum(right.abs(), deviation)).all()
        assert (r * deviation - 1).abs().max() < 2**-22
    x = torch.zeros(6, length)
    x[0], x[1, ::2], x[2, 1::2], x[3, 0], x[4], x[4, -1] = -0.0, -0.0, -0.0, -1e-45, -0.0, -1e-45
    check_norm("layer_norm", x.to(device), None, None, torch.ones_like(x).to(device))


@walked("rows", [1, 2, 5, 33, 511, 512, 513, 700, 1500, 4096, 4097, 9000, 20_000])
def test_gradients_of_weights_of_many_rows(rows, device):
    """A weight's gradient is the contract's sum over all rows."""
    for name, length in (("float32", 8), ("bfloat16", 24), ("bfloat16", 5)):
        x, grad = random((rows, length), name, 7, device), random((rows, length), name, 8, device)
        weight, bias = random((length,), name, 9, device), random((length,), name, 10, device)
        check_norm("rms_norm", x, weight, None, grad)
        check_norm("layer_norm", x, weight, bias, grad)


# Rows whose backward pass is one kernel on a GPU: one of each way that threads share a row, rows that are shorter than
# that, and lanes of no, some and all of their rows.
ONE_KERNEL = [
    (1, 4096),
    (600, 4096),
    (4100, 128),
    (9000, 64),
    (700, 256),
    (5000, 264),
    (1300, 512),
    (700, 1024),
    (600, 2048),
]
ONE_KERNEL += [(520, 3072), (300, 5120), (300, 8192), (70, 16_384), (20, 16_392)]


@walked("rows, length", ONE_KERNEL)
def test_gradients_of_norms_at_once(rows, length, device):
    """The input's gradient, and the sums over all rows, of rows in whole vectors."""
    for name in ("bfloat16", "float16", "float32"):
        x, grad = random((rows, length), name, 32, device), random((rows, length), name, 33, device)
        weight, bias = random((length,), name, 34, device), random((length,), name, 35, device)
        check_norm("rms_norm", x, weight, None, grad)
        check_norm("layer_norm", x, weight, bias, grad)
    if rows == 600:
        check_norm("rms_norm", x.bfloat16(), weight.float(), None, grad)
        check_norm("layer_norm", x.bfloat16(), weight.float(), bias.float(), grad)
        check_norm("layer_norm", x, weight, None, grad)
        check_norm("layer_norm", x, None, bias, grad)
        wide = random((rows, length + 8), "float32", 36, device)[
            :, :length
        ]  # rows are farther apart than they are long
        check_norm("rms_norm", wide, weight, None, grad)
        x[3, 5], grad[7, 11] = math.nan, math.inf
        check_norm("rms_norm", x, weight, None, grad)


ODD_LENGTHS = [1, 3, 101, 9, 511, 250, 521, 1301, 4099, 2051, 50_257, 8191]


@every_float
@walked("length", lambda name, **_: rotated(ODD_LENGTHS, FLOATS.index(name), 2))
def test_rows_that_begin_anywhere(length, name, device):
    """Rows at all addresses have the bits of the model, and nothing beside the result is written.

    Each dtype has half of the lengths.
    """
    for offset, rows in ((0, 9), (1, 9), (6, 1)) if length < 9000 else ((1, 3),):
        flat, other = (random((rows * length + 16,), name, seed, device) for seed in (37, 38))
        x = flat[offset : offset + rows * length].view(rows, length)
        grad = other[3 : 3 + rows * length].view(rows, length)
        for function in SOFTMAXES:
            check_softmax(function, x, grad)
        weight, bias = random((length + 1,), name, 39, device)[1:], random((length,), name, 40, device)
        check_norm("rms_norm", x, weight, None, grad)
        check_norm("layer_norm", x, weight, bias, grad)
        buffer = torch.full((rows * length + 64,), 7, dtype=x.dtype, device=device)
        begin = 32 + offset
        out = buffer[begin : begin + rows * length].view(rows, length)
        torch_reduce.softmax(x, 1, out=out)
        same(out, model.softmaxes(numbers(x, name == "float64"), False), x)
        assert (buffer[:begin] == 7).all() and (buffer[begin + rows * length :] == 7).all()


@walked("length", [151_936, 262_144, 262_145, 300_001])
def test_rows_of_vocabularies(length, device):
    """Rows that a cluster holds, and longer ones."""
    for name in ("bfloat16", "float32"):
        x, grad = random((2, length), name, 11, device), random((2, length), name, 12, device)
        for function in SOFTMAXES:
            check_softmax(function, x, grad)
        check_norm("layer_norm", x, None, None, grad)


@every_softmax
def test_results_of_another_dtype(function, device):
    for name, dtype in itertools.product(
        ["float32", "bfloat16", "float16", "float64"], ["float32", "bfloat16", "float64"]
    ):
        x, grad = random((5, 300), name, 13, device), random((5, 300), dtype, 14, device)
        check_softmax(function, x, grad, dtype_of(dtype))
    integers = data((4, 70), "int32", seed=15, device=device)
    y = getattr(OPS, function)(integers, 1, dtype=torch.float32)
    same(y, model.softmaxes(integers.cpu().numpy().astype(np.float32), SOFTMAXES[function]), integers, torch.float32)


@every_float
@pytest.mark.parametrize("function", [*SOFTMAXES, *NORMS])
def test_layouts(function, name, device):
    """Transposed, strided, expanded and misaligned tensors have the bits of contiguous ones, also their gradients."""

    def call(x):
        x = x.detach().requires_grad_()
        y = getattr(OPS, function)(x, 1 if function in SOFTMAXES else x.shape[1:])
        return y, torch.autograd.grad(y, x, grad)[0]

    base = random((40, 1300), name, 16, device)
    grad = random((40, 600), name, 17, device)
    views = {
        "transposed": random((600, 40), name, 18, device).t(),
        "every second": base[:, :1200:2],
        "misaligned": base[:, 1:601],
        "expanded": base[:1, :600].expand(40, 600),
        "overlapping": base.reshape(-1).as_strided((40, 600), (3, 1)),
    }
    for what, x in views.items():
        for ours, plain in zip(call(x), call(x.contiguous()), strict=True):
            assert_same_bits(ours.detach().cpu().contiguous(), plain.detach().cpu().contiguous(), f"{function}, {what}")


@every_softmax
def test_every_dim(function, device):
    x = random((4, 5, 6, 7), "float32", 19, device)
    for dim in range(-4, 4):
        y = getattr(OPS, function)(x, dim)
        moved = x.movedim(dim, -1).contiguous()
        assert_same_bits(y.movedim(dim, -1).cpu().contiguous(), getattr(OPS, function)(moved, -1).cpu(), f"{dim=}")
    scalar = torch.tensor(3.0, device=device)
    assert getattr(OPS, function)(scalar, 0).item() == (0.0 if SOFTMAXES[function] else 1.0)


@every_float
@every_softmax
def test_other_dims_of_many_elements(function, name, device):
    """Where rows do not lie side by side, many elements are computed by parts: the model's bits, of gradients too."""
    whole = random((70, 3, 700), name, 29, device)
    whole[:, 0, 5], whole[3, 1, 7], whole[4, 2, 9] = -math.inf, math.inf, math.nan
    whole[:40, 0, 6] = -math.inf
    grad = random((70, 3, 700), name, 30, device)
    for x, dim in (
        (whole, 0),
        (whole, 1),
        (whole.transpose(0, 2), 2),
        (whole[:, :, 1:], 0),
        (whole[:1].expand(70, 3, 700), 0),
    ):
        leaf, g = x.detach().requires_grad_(), grad.reshape(-1)[: x.numel()].reshape(x.shape)
        y = getattr(OPS, function)(leaf, dim)
        rows = x.movedim(dim, -1).contiguous().requires_grad_()
        wide, logarithmic = name == "float64", SOFTMAXES[function]
        expected = model.softmaxes(numbers(rows, wide), logarithmic)
        what = f"{function} over {dim} of {tuple(x.shape)} {x.stride()}"
        same(y.movedim(dim, -1).contiguous(), expected, rows, None, what)
        (ours,) = torch.autograd.grad(y, leaf, g)
        (plain,) = torch.autograd.grad(getattr(OPS, function)(rows, -1), rows, g.movedim(dim, -1).contiguous())
        assert_same_bits(ours.movedim(dim, -1).cpu().contiguous(), plain.cpu(), f"the gradient of {what}")
    integers = data((40, 1000), "int16", seed=31, device=device)
    for x, dtype in ((integers, torch.float32), (integers, torch.float64), (whole[:, 1], torch.float64)):
        y = getattr(OPS, function)(x, 0, dtype=dtype)
        rows = x.t().contiguous()
        assert_same_bits(y.t().cpu().contiguous(), getattr(OPS, function)(rows, -1, dtype=dtype).cpu(), f"{dtype}")


@every_norm
def test_several_dims(function, device):
    """Of contiguous tensors their rows are those of the flattened one."""
    x = random((6, 5, 4, 30), "float32", 20, device)
    for shape in ((30,), (4, 30), (5, 4, 30), (6, 5, 4, 30)):
        y = getattr(OPS, function)(x, shape)
        flat = x.reshape(-1, math.prod(shape))
        assert_same_bits(y.cpu(), getattr(OPS, function)(flat, flat.shape[1:]).reshape(x.shape).cpu(), f"{shape}")


@pytest.mark.parametrize("length", [777, 20_000])
@pytest.mark.parametrize("function", [*SOFTMAXES, *NORMS])
def test_batches(function, length, device):
    """A row has the same bits alone and in any batch."""
    x = random((300, length), "bfloat16", 21, device)
    call = (
        (lambda x: getattr(OPS, function)(x, -1))
        if function in SOFTMAXES
        else lambda x: getattr(OPS, function)(x, (length,))
    )
    all_rows = call(x)
    for rows in (1, 2, 17, 256):
        assert_same_bits(call(x[:rows]).cpu(), all_rows[:rows].cpu(), f"{rows} rows")


@every_softmax
def test_special_numbers(function, device):
    """As torch: NaN and +inf make all of a row NaN, -inf has the probability 0, and a row of -inf alone is NaN."""
    ours, torchs = getattr(OPS, function), getattr(torch, function)
    for length in (3, 600, 5000):
        x = random((5, length), "float32", 22, device)
        x[0, 1] = math.nan
        x[1, 2] = math.inf
        x[2, 0] = -math.inf
        x[3] = -math.inf
        x[4, 0] = 200
        y, expected = ours(x, 1), torchs(x, 1)
        assert torch.equal(y.isnan(), expected.isnan())
        torch.testing.assert_close(y, expected, equal_nan=True)
    assert (
        OPS.softmax(torch.tensor([[0.0, -math.inf, -200.0]], device=device), 1)
        == torch.tensor([1.0, 0, 0], device=device)
    ).all()


@every_norm
def test_special_rows(function, device):
    for name in ("float32", "bfloat16"):
        x = random((4, 600), name, 23, device)
        x[0, 1], x[1, 2], x[2] = math.nan, math.inf, 0
        y = getattr(OPS, function)(x, (600,))
        assert y[0].isnan().all() and y[1].isnan().any() and (y[2] == 0).all() and y[3].isfinite().all()


def test_empty(device):
    for shape in ((0, 5), (5, 0), (0, 0)):
        x = torch.empty(shape, device=device, requires_grad=True)
        for function in SOFTMAXES:
            y = getattr(OPS, function)(x, 1)
            assert y.shape == shape and torch.autograd.grad(y.sum(), x)[0].shape == shape
        weight = torch.ones(shape[1], device=device, requires_grad=True)
        for function in NORMS:
            y = getattr(OPS, function)(x, shape[1:], weight)
            dx, dw = torch.autograd.grad(y.sum(), (x, weight))
            assert y.shape == dx.shape == shape and (dw == 0).all()


def test_any_number_of_threads():
    x, grad = random((50, 3000), "float32", 24, "cpu"), random((50, 3000), "float32", 25, "cpu")
    weight = random((3000,), "float32", 26, "cpu").requires_grad_()
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            own = x.clone().requires_grad_()
            y = OPS.layer_norm(own, (3000,), weight)
            found.append((y.detach(), *torch.autograd.grad(y, (own, weight), grad), OPS.softmax(x, 1)))
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                assert_same_bits(a, b)
    finally:
        torch.set_num_threads(threads)
    in_threads(lambda x: OPS.softmax(x, 1), [x] * 4)


# --- pinned results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", pinned_rows.DTYPES)
def test_pinned_rows(function, device):
    """Every result of a function and of its gradient has the pinned bits, for every dtype."""
    pins = pinned_rows.read()
    for case in pinned_rows.cases():
        if case[0] == function:
            assert pinned_rows.digests(pinned_rows.computed(*case, device)) == pins[pinned_rows.key_of(*case)], case


def test_pinned_rows_are_the_models():
    """The model makes the pinned bits, of all functions of csrc/core/numeric/rows.h and of all cases."""
    pins = pinned_rows.read()
    assert list(pins) == [pinned_rows.key_of(*case) for case in pinned_rows.cases()]
    for case in pinned_rows.cases():
        assert pinned_rows.digests(pinned_rows.modelled(*case)) == pins[pinned_rows.key_of(*case)], case
    source = (ROOT / "csrc" / "core" / "numeric" / "rows.h").read_text()
    functions = re.search(r"GPUREDUCE_ROW_FUNCTIONS\(X\)((?:.*\\\n)*.*)", source)[1]
    found = {name.removesuffix("_backward") for name in re.findall(r"X\((\w+)\)", functions)}
    apart = {"log_sum": "pinned by log_prob", "quotient": "two sums, whose order is sum's"}
    assert found - {*apart} == set(pinned_rows.DTYPES), apart


# --- derivatives ------------------------------------------------------------------------------------------------------


def cases():
    x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, bias = torch.rand(5, dtype=torch.float64) + 1, torch.rand(5, dtype=torch.float64)
    yield "softmax", lambda x: OPS.softmax(x, 1), (x,)
    yield "log_softmax", lambda x: OPS.log_softmax(x, 0), (x,)
    yield "rms_norm", lambda x, w: OPS.rms_norm(x, (5,), w), (x, weight)
    yield "rms_norm of all", lambda x: OPS.rms_norm(x, (3, 5)), (x,)
    yield "layer_norm", lambda x, w, b: OPS.layer_norm(x, (5,), w, b), (x, weight, bias)
    yield "layer_norm of all", lambda x: OPS.layer_norm(x, (3, 5)), (x,)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
def test_derivatives(case, device):
    _, function, inputs = case
    inputs = tuple(x.to(device).requires_grad_() for x in inputs)
    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_gradients_of_a_graph(case, name, device):
    """With create_graph, a gradient has the bits that it has without."""
    _, function, inputs = case
    inputs = tuple(x.to(dtype_of(name)).to(device).requires_grad_() for x in inputs)
    y = function(*inputs)
    grad = random(y.shape, name, 27, device)
    plain = torch.autograd.grad(y, inputs, grad, retain_graph=True)
    for ours, wanted in zip(torch.autograd.grad(y, inputs, grad, create_graph=True), plain, strict=True):
        assert_same_bits(ours.detach().cpu(), wanted.cpu())


@every_softmax
def test_gradients_of_a_graph_to_another_dtype(function, device):
    """The input's dtype counts among those that the gradient is computed in."""
    x = random((3, 50), "float64", 32, device).requires_grad_()
    y, grad = getattr(OPS, function)(x, 1, dtype=torch.float32), random((3, 50), "float32", 33, device)
    (plain,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    assert_same_bits(torch.autograd.grad(y, x, grad, create_graph=True)[0].detach().cpu(), plain.cpu())


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
def test_vmap(case, device):
    """A batch of inputs, also of weights, has the bits of single calls."""
    _, function, inputs = case
    inputs = [x.float().to(device) for x in inputs]
    batch = [torch.stack([x, 2 * x, x - 1]) for x in inputs]
    for batched in itertools.product((True, False), repeat=len(inputs)):
        if not any(batched):
            continue
        given = [b if on else x for b, x, on in zip(batch, inputs, batched, strict=True)]
        dims = tuple(0 if on else None for on in batched)
        found = torch.vmap(function, in_dims=dims)(*given)
        for i in range(3):
            single = function(*[b[i] if on else x for b, x, on in zip(batch, inputs, batched, strict=True)])
            assert_same_bits(found[i].cpu(), single.cpu(), f"{batched}")


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
def test_opcheck(case, device):
    name, _, inputs = case
    x = inputs[0].float().to(device).requires_grad_()
    weight, bias = (torch.rand(5, device=device, requires_grad=True) for _ in range(2))
    checks = {
        "softmax": (OPS.softmax.default, (x, 1)),
        "log_softmax": (OPS.log_softmax.default, (x, -1)),
        "rms_norm": (OPS._rms_norm.default, (x, 1, weight, 1e-5)),
        "layer_norm": (OPS._layer_norm.default, (x, 1, weight, bias, 1e-5)),
    }
    if name in checks:
        torch.library.opcheck(*checks[name])


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case[0])
def test_compile(case, device):
    _, function, inputs = case
    inputs = tuple(x.float().to(device).requires_grad_() for x in inputs)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    y, expected = compiled(*inputs), function(*inputs)
    assert_same_bits(y.detach().cpu(), expected.detach().cpu())
    grad = torch.ones_like(y)
    for a, b in zip(torch.autograd.grad(y, inputs, grad), torch.autograd.grad(expected, inputs, grad), strict=True):
        assert_same_bits(a.cpu(), b.cpu())


# --- torch's arguments ------------------------------------------------------------------------------------------------


def test_functions(device):
    """The functions of torch_reduce: names and defaults of torch's, and a residual."""
    x = random((3, 40), "float32", 28, device)
    weight, bias = random((40,), "float32", 29, device), random((40,), "float32", 30, device)
    assert_same_bits(torch_reduce.softmax(x, dim=-1).cpu(), OPS.softmax(x, -1).cpu())
    assert_same_bits(
        torch_reduce.log_softmax(input=x, dim=1, dtype=torch.float64).cpu(),
        OPS.log_softmax(x, 1, dtype=torch.float64).cpu(),
    )
    out = torch.empty(0, device=device)
    assert torch_reduce.softmax(x, 1, out=out) is out and torch.equal(out, OPS.softmax(x, 1))
    torch.testing.assert_close(torch_reduce.rms_norm(x, 40, weight), torch.nn.functional.rms_norm(x, (40,), weight))
    torch.testing.assert_close(
        torch_reduce.layer_norm(x, [40], weight, bias), torch.nn.functional.layer_norm(x, (40,), weight, bias)
    )
    small = (x * 1e-3).bfloat16()
    torch.testing.assert_close(torch_reduce.rms_norm(small, 40), torch.nn.functional.rms_norm(small, (40,)))
    residual = random((3, 40), "float32", 31, device)
    for function in (torch_reduce.rms_norm, torch_reduce.layer_norm):
        y, stored = function(x, 40, weight, residual=residual)
        assert_same_bits(stored.cpu(), (x + residual).cpu())
        assert_same_bits(y.cpu(), function(stored, 40, weight).cpu())


DTYPES_OF_RESIDUALS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_residuals(norm, device):
    """The sum has the residual's dtype, the norm the input's: it is that of the sum, rounded once. Gradients follow."""
    function = getattr(torch_reduce, norm)
    for own, other in itertools.product(DTYPES_OF_RESIDUALS, repeat=2):
        wide = torch.promote_types(own, other)
        x, residual = random((3, 40), "float32", 1, device).to(own), random((3, 40), "float32", 2, device).to(other)
        weight, grad = random((40,), "float32", 3, device), random((3, 40), "float32", 4, device)
        x, residual, weight = (each.requires_grad_() for each in (x, residual, weight))

        def call(x=x, residual=residual, weight=weight):
            return function(x, 40, weight, residual=residual)

        y, stored = call()
        assert (y.dtype, stored.dtype) == (own, other)
        assert_same_bits(stored.detach().cpu(), (x + residual).to(other).detach().cpu())
        leaf = stored.detach().to(wide).requires_grad_()
        wanted = function(leaf, 40, weight)
        assert_same_bits(y.detach().cpu(), wanted.to(own).detach().cpu())
        found = torch.autograd.grad((y, stored), (x, residual, weight), (grad.to(own), grad.to(other)))
        (inner, of_weight) = torch.autograd.grad(wanted, (leaf, weight), grad.to(own).to(wide))
        total = inner.to(other) + grad.to(other)
        for ours, theirs in zip(found, (total.to(wide).to(own), total, of_weight), strict=True):
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs)

        meta = function(x.to("meta"), 40, weight.to("meta"), residual=residual.to("meta"))
        compiled = torch.compile(call, backend="aot_eager")()
        batched = torch.vmap(lambda a, b: function(a, 40, weight, residual=b))(x, residual)  # noqa: B023
        for results in (meta, compiled, batched):
            assert [r.dtype for r in results] == [own, other] and all(r.shape == x.shape for r in results)
        for results in (compiled, batched):
            for ours, theirs in zip(results, (y, stored), strict=True):
                assert_same_bits(ours.detach().cpu(), theirs.detach().cpu())


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_wrong_residuals(norm, device):
    """Nothing is broadcast, and integers are no residuals."""
    function, x = getattr(torch_reduce, norm), torch.ones(2, 3, device=device)
    for shape in ((4, 2, 3), (3,), (1, 3), (2, 1), ()):
        with pytest.raises(RuntimeError, match=rf"^{norm}\(\): residual: expected the size \[2, 3\]"):
            function(x, 3, residual=torch.ones(shape, device=device))
    for dtype in (torch.int64, torch.bool, torch.complex64, torch.float8_e5m2):
        with pytest.raises(NotImplementedError, match="residual: expected float16"):
            function(x, 3, residual=torch.ones(2, 3, device=device).to(dtype))
        with pytest.raises(NotImplementedError, match="input: expected float16"):
            function(x.to(dtype), 3, residual=x)


def test_errors(device):
    x = torch.zeros(3, 4, device=device)
    for function, dtype in itertools.product(
        (torch_reduce.softmax, torch_reduce.log_softmax, OPS.softmax, OPS.log_softmax), (torch.float64, torch.float16)
    ):
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
            function(x, 0, out=torch.empty(0, dtype=dtype, device=device))
        with pytest.raises(NotImplementedError, match="dtype= must name a floating one"):
            function(x.long(), 0, out=torch.empty(0, dtype=dtype, device=device))
    with pytest.raises(RuntimeError, match=r"shape \[\*, 2, 4\], but got"):
        torch_reduce.layer_norm(x, (2, 4))
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch_reduce.softmax(x, 2)
    with pytest.raises(NotImplementedError, match="dtype= must name a floating one"):
        torch_reduce.softmax(x.long(), 1)
    with pytest.raises(NotImplementedError, match="complex"):
        torch_reduce.log_softmax(x.to(torch.complex64), 1)
    with pytest.raises(RuntimeError, match="dtype: expected float16"):
        torch_reduce.softmax(x, 1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="expected input with shape"):
        torch_reduce.rms_norm(x, (5,))
    with pytest.raises(RuntimeError, match="at least 1-dimensional"):
        torch_reduce.layer_norm(x, ())
    with pytest.raises(RuntimeError, match="weight: expected the size"):
        torch_reduce.rms_norm(x, (4,), torch.ones(3, device=device))
    with pytest.raises(TypeError, match="argument 'input' must be Tensor"):
        torch_reduce.softmax([1.0, 2.0], 0)
    with pytest.raises(TypeError, match="argument 'dim' must be int, not NoneType"):
        torch_reduce.log_softmax(x, None)
    with pytest.raises(TypeError, match="argument 'normalized_shape' must be tuple of ints, not str"):
        torch_reduce.layer_norm(x, "4")
    with pytest.raises(TypeError, match="argument 'normalized_shape' must be int, not float"):
        torch_reduce.rms_norm(x, [4.0])
    with pytest.raises(TypeError, match="'residual' must be Tensor, not Shard"):
        torch_reduce.rms_norm(x, 4, residual=torch_reduce.distributed.Shard(x, 0))
    with pytest.raises(RuntimeError, match="grad"):
        torch_reduce.softmax(x.requires_grad_(), 1, out=torch.empty(0, device=device))
