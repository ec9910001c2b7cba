"""log_prob and cross_entropy: the bits of log_softmax's, forward and backward, and torch's arguments."""

import contextlib
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import Largest, assert_same_bits, dtype_of, walked
from test_rows import numbers, random, result

OPS = torch.ops.gpureduce
F = torch.nn.functional
FLOATS = ["float32", "bfloat16", "float16", "float64"]


def targets(shape, classes, device, ignored=None, seed=40):
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, classes, shape, generator=generator)
    if ignored is not None and found.numel() > 2:
        found.view(-1)[1::3] = ignored
    return found.to(device)


def wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATS)
@walked("length", [1, 2, 7, 8, 100, 513, 1024, 4100, 50_257, 151_936, 300_001])
def test_log_prob(length, name, device):
    """The bits of log_softmax at the targets, and its gradient's."""
    rows = max(2, min(37, 40_000 // length))
    x, target = random((rows, length), name, 41, device).requires_grad_(), targets((rows,), length, device)
    y, grad = OPS.log_prob(x, target), random((rows,), str(wide(x.dtype)).removeprefix("torch."), 42, device)
    (gradient,) = torch.autograd.grad(y, x, grad)
    full = OPS.log_softmax(x, 1, dtype=wide(x.dtype))
    expected = full.gather(1, target[:, None]).squeeze(1)
    assert_same_bits(y.detach().cpu(), expected.detach().cpu(), f"{length} {name}")
    assert_same_bits(
        gradient.cpu(), torch.autograd.grad(expected, x, grad)[0].cpu(), f"the gradient of {length} {name}"
    )


def test_log_prob_of_views(device):
    """Every dim and stride, targets of int32, and those that are ignored."""
    x = random((6, 50, 7), "float32", 43, device)
    for dim, view in itertools.product((0, 1, -1), (x, x.transpose(0, 2), x[:, ::2], x[:, 1:])):
        view = view.detach().requires_grad_()
        sizes = [n for d, n in enumerate(view.shape) if d != dim % 3]
        target = targets(sizes, view.shape[dim], device, ignored=-7)
        y = OPS.log_prob(view, target.int(), dim, ignore_index=-7)
        keep = target != -7
        expected = OPS.log_softmax(view, dim).gather(dim, target.clamp_min(0).unsqueeze(dim)).squeeze(dim) * keep
        assert_same_bits((y + 0.0).detach().cpu(), (expected + 0.0).detach().cpu(), f"{dim=}")
        grad = random(y.shape, "float32", 44, device)
        ours, theirs = (torch.autograd.grad(each, view, grad)[0] for each in (y, expected))
        assert_same_bits((ours + 0.0).cpu(), (theirs + 0.0).cpu(), f"the gradient of {dim=}")


def test_temperature_and_entropy(device):
    x, target = random((5, 300), "bfloat16", 45, device), targets((5,), 300, device)
    cool = x.float() / torch.tensor(0.7, device=device)
    y, entropy = torch_reduce.log_prob(x, target, temperature=0.7, return_entropy=True)
    assert_same_bits(y.cpu(), OPS.log_prob(cool, target).cpu())
    torch.testing.assert_close(entropy, torch.distributions.Categorical(logits=cool).entropy())
    masked = torch.tensor([[0.0, 0.0, -float("inf")]], device=device, requires_grad=True)
    _, entropy = torch_reduce.log_prob(masked, targets((1,), 2, device), return_entropy=True)
    torch.testing.assert_close(entropy.cpu(), torch.tensor([2.0]).log())
    assert torch.autograd.grad(entropy.sum(), masked)[0].isfinite().all()


# --- several targets of a row -----------------------------------------------------------------------------------------


def several(rows, count, classes, device):
    """Targets of rows, many of them alike; a third is ignored, and all of the last row."""
    found = targets((rows, count), classes, device, ignored=-100)
    found[-1] = -100
    return found


@pytest.mark.parametrize("name", FLOATS)
@walked("length, count", [(1, 3), (5, 40), (7, 0), (300, 1), (300, 600), (4100, 20)])
def test_several_targets(length, count, name, device):
    """Each result has the bits of a call with one target, and the gradient has the model's."""
    x, target = random((4, length), name, 60, device).requires_grad_(), several(4, count, length, device)
    y = torch_reduce.log_prob(x, target)
    for k in range(count):
        assert_same_bits(y[:, k].detach().cpu(), OPS.log_prob(x, target[:, k]).detach().cpu(), f"target {k}")
    grad = random(y.shape, str(wide(x.dtype)).removeprefix("torch."), 61, device)
    (gradient,) = torch.autograd.grad(y, x, grad)
    logits = numbers(x, wide(x.dtype) == torch.float64)
    _, m, log_sum = model.log_probs(logits, np.zeros(4, np.int64))
    dx = model.log_probs_of_several_backward(grad.cpu().numpy(), logits, target.cpu().numpy(), m, log_sum)
    assert_same_bits(gradient.cpu() + 0.0, result(dx, x) + 0.0, "the gradient")
    again = torch.autograd.grad(torch_reduce.log_prob(x, target), x, grad, create_graph=True)[0].detach()
    assert_same_bits(again.cpu() + 0.0, result(dx, x) + 0.0, "the gradient with create_graph")


def test_several_targets_of_views(device):
    """Along every dim, with any strides and dtypes of targets, a temperature and entropies."""
    x, target = random((6, 50, 7), "float32", 62, device), several(42, 9, 50, device).view(6, 7, 9)
    for dim, dtype in ((0, torch.int32), (1, torch.int64), (-1, torch.int64)):
        view, index = x.movedim(1, dim), target.movedim(-1, dim).to(dtype)
        options = dict(temperature=0.7, return_entropy=True)
        ours = torch_reduce.log_prob(view.requires_grad_(), index, dim, **options)
        plain = torch_reduce.log_prob(x.movedim(1, -1).contiguous(), target, **options)
        assert_same_bits(ours[0].detach().movedim(dim, -1).cpu(), plain[0].detach().cpu(), f"{dim=}")
        assert_same_bits(ours[1].detach().cpu(), plain[1].detach().cpu(), f"the entropies of {dim=}")
    small, index = x.detach()[:, :, 0], target[:, 0].clamp_min(0).to(torch.uint8)
    assert_same_bits(torch_reduce.log_prob(small, index).cpu(), torch_reduce.log_prob(small, index.long()).cpu())
    tiny = small.to(torch.float8_e4m3fn)
    assert_same_bits(torch_reduce.log_prob(tiny, index).cpu(), torch_reduce.log_prob(tiny.float(), index).cpu())


def test_several_targets_of_special_rows(device):
    """NaN and infinities come out as with one target; there may be no classes, no rows, and no values."""
    inf = float("inf")
    x = torch.tensor([[0.0, inf, 1.0], [float("nan"), 0.0, 0.0], [-inf] * 3, [-inf, 0.0, 1.0]], device=device)
    target = torch.tensor([0, 1, 2, -100], device=device).expand(4, 4)
    one = torch.stack([torch_reduce.log_prob(x, target[:, k]) for k in range(4)], 1)
    assert_same_bits(torch_reduce.log_prob(x, target).cpu(), one.cpu())
    for shape, index in (((0, 5), (0, 3)), ((2, 0), (2, 3)), ((2, 0), (2, 0)), ((3,), (2,)), ((0,), (2,))):
        logits = torch.zeros(shape, device=device, requires_grad=True)
        y = torch_reduce.log_prob(logits, torch.full(index, -100, device=device))
        assert_same_bits(y.detach(), torch.zeros(index, device=device))
        assert_same_bits(torch.autograd.grad(y.sum(), logits)[0], torch.zeros(shape, device=device))
    meta = torch.zeros(3, 4, device="meta", requires_grad=True)
    y = torch_reduce.log_prob(meta, torch.zeros(3, 2, dtype=torch.int64, device="meta"))
    assert y.shape == (3, 2) and torch.autograd.grad(y.sum(), meta)[0].shape == (3, 4)


def test_derivatives_of_several_targets(device):
    x, target = random((3, 5), "float64", 63, device).requires_grad_(), several(3, 8, 5, device)
    for options in ({}, dict(temperature=2.5)):
        assert gradcheck(lambda x, o=options: torch_reduce.log_prob(x, target, **o), x)
        assert gradgradcheck(lambda x, o=options: torch_reduce.log_prob(x, target, **o), x)


def test_around_several_targets(device):
    """compile, vmap and torch.func: the bits of plain calls."""
    x, target = random((4, 3, 50), "float32", 64, device).requires_grad_(), several(12, 6, 50, device).view(4, 3, 6)

    def gradient_of(function, x=x):
        return torch.autograd.grad(function(x, target).cos().sum(), x)[0]

    y, wanted = torch_reduce.log_prob(x, target), gradient_of(torch_reduce.log_prob)
    compiled = torch.compile(torch_reduce.log_prob, fullgraph=True, backend="aot_eager")
    for function in (compiled, torch.vmap(torch_reduce.log_prob), torch.vmap(torch_reduce.log_prob, (1, 1), 1)):
        assert_same_bits(function(x, target).detach().cpu(), y.detach().cpu())
        assert_same_bits(gradient_of(function).cpu(), wanted.cpu())
    each = torch.vmap(torch.func.grad(lambda x, t: torch_reduce.log_prob(x, t).cos().sum()))
    assert_same_bits(each(x, target).detach().cpu(), wanted.cpu())
    for in_dims, given in (((0, None), (x, target[1])), ((None, 0), (x[1], target))):
        found = torch.vmap(torch_reduce.log_prob, in_dims)(*given)
        assert_same_bits(found[1].detach().cpu(), y[1].detach().cpu(), f"{in_dims=}")


def test_memory_of_several_targets(device):
    """No tensor of the logits' size is made for the results, and one for the gradient."""
    x, target = random((8, 5000), "bfloat16", 65, device).requires_grad_(), several(8, 20, 5000, device)
    with Largest() as forward:
        y = torch_reduce.log_prob(x, target)
    with Largest() as backward:
        torch.autograd.grad(y.sum(), x)
    few = 2 * target.numel()
    assert forward.sizes[0] < few and backward.sizes[0] == x.numel() and backward.sizes[1] < few


def test_errors_of_several_targets(device):
    x, target = torch.zeros(3, 4, device=device), torch.zeros(3, 2, dtype=torch.int64, device=device)
    for kind, message, call in (
        (RuntimeError, r"target: expected the size \[3\], or \[3, K\]", lambda: torch_reduce.log_prob(x, target[:2])),
        (RuntimeError, r"\[4\], or \[K, 4\] for K targets", lambda: torch_reduce.log_prob(x, target, 0)),
        (RuntimeError, "target: expected int64, int32 or uint8", lambda: torch_reduce.log_prob(x, target.float())),
        (NotImplementedError, "floating", lambda: torch_reduce.log_prob(x.long(), target)),
        (RuntimeError, "temperature: expected", lambda: torch_reduce.log_prob(x, target, temperature=0.0)),
        (TypeError, "'temperature' must be float", lambda: torch_reduce.log_prob(x, target, temperature="1")),
        (IndexError, "Dimension out of range", lambda: torch_reduce.log_prob(x, target, 2)),
    ):
        with pytest.raises(kind, match=rf"^log_prob\(\): .*{message}"):
            call()


# --- cross_entropy ----------------------------------------------------------------------------------------------------


@walked("shape", [(9,), (5, 9), (5, 9, 4), (5, 9, 2, 3)])
@walked("reduction", ["none", "mean", "sum"])
def test_cross_entropy(reduction, shape, device):
    """torch's loss in all its forms, and its gradient."""
    classes = shape[0] if len(shape) == 1 else shape[1]
    sizes = shape[:0] if len(shape) == 1 else shape[:1] + shape[2:]
    weight = random((classes,), "float64", 46, device).abs()
    for given, smoothing, ignored in itertools.product((None, weight), (0.0, 0.3), (None, -100, 3)):
        x = random(shape, "float64", 47, device).requires_grad_()
        indices = targets(sizes, classes, device, ignored)
        options = dict(
            ignore_index=-100 if ignored is None else ignored, reduction=reduction, label_smoothing=smoothing
        )
        shares = random(shape, "float64", 48, device).softmax(0 if len(shape) == 1 else 1)
        for target in (indices, shares) if ignored != 3 else (indices,):
            ours = torch_reduce.cross_entropy(x, target, given, **options)
            theirs = F.cross_entropy(x, target, given, **options)
            torch.testing.assert_close(ours, theirs)
            grads = [torch.autograd.grad(each.sum(), x)[0] for each in (ours, theirs)]
            torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", FLOATS)
def test_mean_is_one_quotient(name, device):
    """Of two sums in the contract's order, rounded once; the loss of halves is computed in float32."""
    x, target = random((700, 130), name, 49, device), targets((700,), 130, device, ignored=-100)
    losses = (-OPS.log_prob(x, target)).masked_fill(target == -100, 0)
    expected = OPS.sum(losses) / (target != -100).sum().to(losses.dtype)
    assert_same_bits(torch_reduce.cross_entropy(x, target).cpu(), expected.to(dtype_of(name)).cpu())
    assert_same_bits(torch_reduce.cross_entropy(x, target, reduction="none").cpu(), losses.to(dtype_of(name)).cpu())


PAIRS_OF_DTYPES = [("float32", "float64"), ("float64", "float32"), ("float32", "bfloat16"), ("bfloat16", "float64")]


def test_gradients_of_class_weights(device):
    """Ordered sums over rows: of a class's own losses, and of all where targets are smoothed or probabilities."""
    x, target = random((9001, 3), "float32", 52, device), targets((9001,), 3, device, ignored=-100)
    shares = random((9001, 3), "float32", 53, device).abs()
    weight = torch.ones(3, device=device, requires_grad=True)
    logits, index = x.cpu().numpy(), target.cpu().numpy()
    losses = -model.log_probs(logits, np.maximum(index, 0))[0]
    each = [model.ordered_sum(losses[index == k][None])[0] for k in range(3)]
    logarithms = model.softmaxes(logits, True)
    smooth = np.where(index[:, None] < 0, np.float32(0), -(logarithms * np.float32(1 / 3)))
    cases = [
        (target, 0.0, each),
        (target, 1.0, model.ordered_sum(smooth.T)),
        (shares, 0.0, model.ordered_sum(-(logarithms * shares.cpu().numpy()).T)),
    ]
    for given, smoothing, wanted in cases:
        for function in (torch_reduce.cross_entropy, torch.compile(torch_reduce.cross_entropy, backend="aot_eager")):
            torch._dynamo.reset()
            loss = function(x, given, weight, reduction="sum", label_smoothing=smoothing)
            found = torch.autograd.grad(loss, weight)[0]
            assert_same_bits(found.cpu() + 0.0, torch.tensor(np.array(wanted)) + 0.0, f"{smoothing} {given.dtype}")


@pytest.mark.parametrize(("name", "of_weight"), PAIRS_OF_DTYPES)
def test_weights_of_another_dtype(name, of_weight, device):
    """Weights of classes keep their digits: a loss is computed in float64 if either is, and rounded once."""
    x, target = random((900, 7), name, 50, device), targets((900,), 7, device, ignored=-100)
    weight = (random((7,), "float64", 51, device).abs() + 0.1).to(dtype_of(of_weight))
    logarithms = x.double().log_softmax(1).gather(1, target.clamp_min(0)[:, None]).squeeze(1)
    counts = weight.double()[target.clamp_min(0)] * (target != -100)
    right = {"none": -logarithms * counts, "sum": (-logarithms * counts).sum()}
    right["mean"] = right["sum"] / counts.sum()
    for reduction, expected in right.items():
        loss = torch_reduce.cross_entropy(x, target, weight, reduction=reduction)
        assert loss.dtype == x.dtype
        if "float64" in (name, of_weight) and name != "float64":  # the nearest number
            assert_same_bits((loss + 0.0).cpu(), (expected.to(x.dtype) + 0.0).cpu(), reduction)
        else:
            close = dict(rtol=1e-12, atol=1e-12) if name == "float64" else dict(rtol=2e-6, atol=1e-6)
            torch.testing.assert_close(loss, expected.to(x.dtype), **close)
    leaf = x.requires_grad_()
    (grad,) = torch.autograd.grad(torch_reduce.cross_entropy(leaf, target, weight, reduction="sum"), leaf)
    shares = x.detach().double().softmax(1)
    expected = (shares - F.one_hot(target.clamp_min(0), 7)) * counts[:, None]
    unit = torch.finfo(torch.float64 if "float64" in (name, of_weight) else torch.float32).eps
    torch.testing.assert_close(grad.double(), expected, rtol=8 * unit + torch.finfo(x.dtype).eps / 2, atol=8 * unit)


def numbers_of_rows(name, device, classes=130, rows=700):
    x = random((rows, classes), name, 70, device)
    return x, targets((rows,), classes, device, ignored=-100), random((classes,), "float32", 71, device).abs()


@pytest.mark.parametrize("name", FLOATS)
def test_divisor(name, device):
    """It replaces the count that a mean divides by: the losses of a batch's parts add up to the loss of the batch."""
    x, target, weight = numbers_of_rows(name, device)
    for given in (None, weight):
        each = torch_reduce.cross_entropy(x.to(wide(x.dtype)), target, given, reduction="none")
        for divisor in (37, 0.3, torch.tensor(41.5, device=device), torch.tensor(7)):
            leaf = x.clone().requires_grad_()
            loss = torch_reduce.cross_entropy(leaf, target, given, divisor=divisor)
            number = torch.as_tensor(divisor, dtype=torch.float64).to(each)
            assert_same_bits(loss.detach().cpu(), (OPS.sum(each) / number).to(x.dtype).cpu(), f"{divisor=}")
            (gradient,) = torch.autograd.grad(loss, leaf)
            share = (torch.ones((), dtype=x.dtype, device=device).to(each) / number).expand_as(each)
            single = x.clone().requires_grad_()
            losses = torch_reduce.cross_entropy(single.to(wide(x.dtype)), target, given, reduction="none")
            assert_same_bits(gradient.cpu(), torch.autograd.grad(losses, single, share)[0].cpu(), f"{divisor=}")
            smooth = [torch_reduce.cross_entropy(x, target, divisor=d, label_smoothing=0.2) for d in (divisor, 1)]
            torch.testing.assert_close(smooth[0].double(), smooth[1].double() / float(divisor), rtol=2e-2, atol=1e-3)
    x, count = x.double(), (target != -100).sum()
    parts = [torch_reduce.cross_entropy(x[i::3], target[i::3], divisor=count) for i in range(3)]
    torch.testing.assert_close(sum(parts), F.cross_entropy(x, target))
    shares = x.softmax(1)
    halves = [torch_reduce.cross_entropy(x[i::2], shares[i::2], divisor=len(x)) for i in range(2)]
    torch.testing.assert_close(sum(halves), F.cross_entropy(x, shares))
    nothing = torch_reduce.cross_entropy(x[:0], target[:0], divisor=5)
    assert nothing == 0 and torch_reduce.cross_entropy(x[:, :0], torch.full_like(target, -100), divisor=5) == 0


def test_divisor_is_refused(device):
    x, target = torch.zeros(3, 4, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="divisor: only a mean has one"):
        torch_reduce.cross_entropy(x, target, reduction="sum", divisor=3)
    with pytest.raises(RuntimeError, match="divisor: only a mean has one"):
        OPS.cross_entropy(x, target, None, 0, divisor=torch.tensor(3))
    with pytest.raises(RuntimeError, match=r"divisor: expected a real number, but got .* of the size \[2\]"):
        torch_reduce.cross_entropy(x, target, divisor=torch.ones(2, device=device))
    with pytest.raises(TypeError, match="argument 'divisor' must be Number"):
        torch_reduce.cross_entropy(x, target, divisor="3")


@pytest.mark.parametrize("name", FLOATS)
def test_z_loss(name, device):
    """z * (L * L) of each target that counts, where L is the row's logsumexp: each operation rounded once."""
    x, target, weight = numbers_of_rows(name, device)
    dtype, z = wide(x.dtype), 0.013
    shift = OPS.logsumexp(x.to(dtype), [1])
    part = (torch.tensor(z, dtype=dtype, device=device) * (shift * shift)) * (target != -100)
    for given in (None, weight):
        options = dict(weight=given, reduction="none")
        expected = torch_reduce.cross_entropy(x.to(dtype), target, **options) + part
        found = torch_reduce.cross_entropy(x, target, z_loss=z, **options)
        assert_same_bits(found.cpu(), expected.to(x.dtype).cpu())
        found = torch_reduce.cross_entropy(x, target, given, z_loss=z, reduction="sum")
        assert_same_bits(found.cpu(), OPS.sum(expected).to(x.dtype).cpu())
        found = torch_reduce.cross_entropy(x, target, given, z_loss=z, divisor=9)
        assert_same_bits(found.cpu(), (OPS.sum(expected) / 9).to(x.dtype).cpu())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_z_loss_and_its_gradient(reduction, device):
    """The sum of both losses by its formula, also where calls are composed, and batched."""
    z = 0.13
    for shape, smoothing, ignored in itertools.product([(9,), (5, 9), (5, 9, 4)], (0.0, 0.3), (None, -100)):
        d = int(len(shape) > 1)
        x = random(shape, "float64", 72, device).requires_grad_()
        target = targets(shape[:d] + shape[d + 1 :], shape[d], device, ignored)
        keep = (target != -100).double()
        shift = x.logsumexp(d)
        each = F.cross_entropy(x, target, reduction="none", label_smoothing=smoothing) + z * shift**2 * keep
        right = {"none": each, "sum": each.sum(), "mean": each.sum() / keep.sum()}[reduction]
        options = dict(reduction=reduction, label_smoothing=smoothing, z_loss=z)
        ours = torch_reduce.cross_entropy(x, target, **options)
        torch.testing.assert_close(ours, right)
        gradients = [torch.autograd.grad(loss.cos().sum(), x)[0] for loss in (ours, right)]
        torch.testing.assert_close(*gradients)

        def function(x, target=target, options=options):
            return torch_reduce.cross_entropy(x, target, **options)

        if len(shape) == 2:
            assert gradcheck(function, x, check_forward_ad=True) and gradgradcheck(function, x)
            batch = torch.vmap(lambda x, f=function: f(x))(torch.stack([x.detach(), x.detach() * 2]))
            torch.testing.assert_close(batch[1], function(x.detach() * 2))
    shares, x = x.detach().softmax(1), x.detach()
    right = F.cross_entropy(x, shares, reduction=reduction)
    shift = x.logsumexp(1) ** 2 * z
    right = right + {"none": shift, "sum": shift.sum(), "mean": shift.mean()}[reduction]
    torch.testing.assert_close(torch_reduce.cross_entropy(x, shares, reduction=reduction, z_loss=z), right)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_losses_are_the_same_everywhere(name, device):
    """The bits of gradients with create_graph, of traced calls, and of other layouts and dtypes of targets."""
    x, target, weight = numbers_of_rows(name, device, classes=60)
    by_columns = torch.empty(60, 700, dtype=x.dtype, device=device).t().copy_(x)
    torch._dynamo.reset()
    traced = torch.compile(torch_reduce.cross_entropy, backend="aot_eager", fullgraph=True)
    for given, z, divisor, reduction in (
        (None, 0.0, None, "mean"),
        (weight, 0.0, None, "mean"),
        (weight, 0.01, None, "none"),
        (weight, 0.01, None, "mean"),
        (None, 0.01, 300, "mean"),
        (None, 0.0, 300, "mean"),
        (weight, 0.01, None, "sum"),
    ):
        options = dict(reduction=reduction, z_loss=z, divisor=divisor)
        found = []
        for function, logits, classes, graph in (
            (torch_reduce.cross_entropy, x, target, False),
            (torch_reduce.cross_entropy, x, target, True),
            (torch_reduce.cross_entropy, by_columns, target.int(), False),
            (torch_reduce.cross_entropy, x, torch.stack([target, target], 1)[:, 0], False),
            (traced, x, target, False),
        ):
            leaf = logits.detach().requires_grad_()
            loss = function(leaf, classes, given, **options)
            upstream = torch.full((), 0.7, dtype=x.dtype, device=device).expand(loss.shape)
            (gradient,) = torch.autograd.grad(loss, leaf, upstream, create_graph=graph)
            found.append((loss.detach().cpu(), gradient.detach().cpu()))
        for k, both_of_them in enumerate(found[1:]):
            for ours, first, what in zip(both_of_them, found[0], ("the loss", "the gradient"), strict=True):
                assert_same_bits(ours, first, f"{what} of form {k + 1}, {options}")


@pytest.mark.parametrize("classes", [10, 1000, 50_257, 300_000])
def test_launches(classes, cuda):
    """A loss is two kernels and no copy, one loss per row is one kernel, and so is each gradient."""
    device = "cuda"
    x = random((64, classes), "bfloat16", 73, device).requires_grad_()
    target, weight = targets((64,), classes, device, ignored=-100), random((classes,), "float32", 74, device).abs()

    def launches(call):
        call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            found = call()
            torch.cuda.synchronize()
        events = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        return found, events

    for most, function in (
        (2, lambda: torch_reduce.cross_entropy(x, target)),
        (2, lambda: torch_reduce.cross_entropy(x, target, weight, z_loss=0.1, divisor=50)),
        (2, lambda: torch_reduce.cross_entropy(x, target, reduction="sum")),
        (1, lambda: torch_reduce.cross_entropy(x, target, weight, reduction="none")),
        (1, lambda: torch_reduce.log_prob(x, target)),
    ):
        loss, events = launches(function)
        assert 0 < len(events) <= most, events
        upstream = torch.ones((), dtype=loss.dtype, device=device).expand(loss.shape)
        _, events = launches(lambda y=loss, g=upstream: torch.autograd.grad(y, x, g, retain_graph=True))
        assert len(events) == 1, events


# --- derivatives ------------------------------------------------------------------------------------------------------


def test_derivatives(device):
    x = random((4, 5), "float64", 50, device).requires_grad_()
    target = targets((4,), 5, device, ignored=-100)
    for function in (
        lambda x: OPS.log_prob(x, target),
        lambda x: OPS.log_prob(x, target, temperature=2.5),
        lambda x: torch_reduce.cross_entropy(x, target, label_smoothing=0.1),
    ):
        assert gradcheck(function, x, check_forward_ad=True)
        assert gradgradcheck(function, x)


def test_around(device):
    """opcheck, compile and vmap."""
    x, target = random((4, 50), "float32", 51, device).requires_grad_(), targets((4,), 50, device)
    torch.library.opcheck(OPS._log_prob.default, (x, target, 1))

    def loss(x, target):
        return OPS.cross_entropy(x, target, None, 1, -100, 0.1), OPS.log_prob(x, target)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ours, eager in zip(compiled(x, target), loss(x, target), strict=True):
        assert_same_bits(ours.detach().cpu(), eager.detach().cpu())
    batch = torch.stack([x.detach(), 2 * x.detach()])
    for in_dims, given in (((0, None), target), ((0, 0), torch.stack([target, target.flip(0)]))):
        found = torch.vmap(torch_reduce.log_prob, in_dims=in_dims)(batch, given)
        for i in range(2):
            single = OPS.log_prob(batch[i], given if in_dims[1] is None else given[i])
            assert_same_bits(found[i].cpu(), single.cpu())


def test_errors(device):
    x, target = torch.zeros(3, 4, device=device), torch.zeros(3, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="target: expected the size"):
        torch_reduce.log_prob(x, target[:2])
    with pytest.raises(RuntimeError, match="target: expected int64, int32 or uint8"):
        torch_reduce.log_prob(x, target.float())
    with pytest.raises(NotImplementedError, match="floating"):
        torch_reduce.log_prob(x.long(), target)
    with pytest.raises(RuntimeError, match="temperature"):
        torch_reduce.log_prob(x, target, temperature=0.0)
    with pytest.raises(ValueError, match="reduction"):
        torch_reduce.cross_entropy(x, target, reduction="max")
    with pytest.raises(RuntimeError, match="label_smoothing"):
        torch_reduce.cross_entropy(x, target, label_smoothing=2.0)
    with pytest.raises(RuntimeError, match="weight: expected a number for each of 4 classes"):
        torch_reduce.cross_entropy(x, target, torch.ones(3, device=device))
    with pytest.raises(RuntimeError, match="ignore_index is not supported for floating point target"):
        torch_reduce.cross_entropy(x, x.softmax(1), ignore_index=2)
    with pytest.raises(TypeError, match="argument 'target' must be Tensor"):
        torch_reduce.cross_entropy(x, [0, 1, 2])


BAD_TARGETS = [-1, -2, 4, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("bad", BAD_TARGETS)
def test_targets_out_of_bounds(bad):
    """Every class that there is not and that is not ignored is refused on the CPU, by operators as by functions."""
    x, target = torch.zeros(3, 4, requires_grad=True), torch.tensor([0, bad, 1])
    with pytest.raises(IndexError, match=rf"Target {bad} is out of bounds"):
        F.cross_entropy(x, target)
    images, many = torch.zeros(3, 4, 2, 2), torch.full((3, 2, 2), bad)
    calls = [
        lambda: OPS.log_prob(x, target),
        lambda: OPS.log_prob(x, target, temperature=2.0),
        lambda: OPS.log_prob(x.t(), target, 0, ignore_index=7),
        lambda: torch_reduce.log_prob(x, target, return_entropy=True),
        lambda: torch_reduce.log_prob(x[0], target[1]),
        lambda: torch.vmap(torch_reduce.log_prob)(torch.zeros(2, 3, 4), target.expand(2, 3)),
        lambda: torch.vmap(torch_reduce.log_prob, in_dims=(None, 0))(x, target.expand(2, 3)),
        lambda: torch.compile(torch_reduce.log_prob, backend="aot_eager", fullgraph=True)(x, target),
        lambda: torch_reduce.log_prob(x, torch.stack([torch.zeros_like(target), target, target], 1)),
        lambda: torch.vmap(torch_reduce.log_prob)(torch.zeros(2, 3, 4), target.expand(2, 3, 3)),
        lambda: OPS._log_prob_backward(*(y.detach() for y in (x.sum(1), x)), target, 1, -100, x[:, :1], x[:, :1]),
        lambda: torch_reduce.cross_entropy(x[0], target[1]),
        lambda: torch_reduce.cross_entropy(images, many),
        lambda: torch_reduce.cross_entropy(images.flatten(2), many.flatten(1), reduction="none"),
        *[
            lambda w=weight, s=smoothing, r=reduction: OPS.cross_entropy(x, target, w, r, -100, s)
            for weight, smoothing, reduction in itertools.product((None, torch.ones(4)), (0.0, 0.1), (0, 1, 2))
        ],
    ]
    if abs(bad) < 2**31:
        calls.append(lambda: torch_reduce.log_prob(x, target.int(), ignore_index=2**32 + bad))
    for call in calls:
        with pytest.raises(IndexError, match=rf"Target {bad} is out of bounds"):
            call()


def test_targets_that_are_ignored(device):
    """Whatever their number is; in its own dtype it may be another one, which counts."""
    x = random((3, 200), "float32", 52, device)
    for ignored, other, dtype in (
        (-100, 156, torch.uint8),
        (255, 3, torch.uint8),
        (2**32 + 3, 3, torch.int32),
        (-(2**63), 0, torch.int64),
        (-1, 5, torch.int64),
        (300, 1, torch.int64),
    ):
        target = torch.tensor([1, other, 7], dtype=dtype, device=device)
        assert_same_bits(
            torch_reduce.cross_entropy(x, target, ignore_index=ignored).cpu(),
            torch_reduce.cross_entropy(x, target.long(), ignore_index=-5).cpu(),
            f"{ignored}, {dtype}",
        )
        if torch.iinfo(dtype).min <= ignored <= torch.iinfo(dtype).max:
            target[1] = ignored
            logits = x.clone().requires_grad_()
            y = torch_reduce.log_prob(logits, target, ignore_index=ignored)
            (gradient,) = torch.autograd.grad(y.sum(), logits)
            assert y[1] == 0 and (gradient[1] == 0).all() and (gradient[0] != 0).any()
            torch.testing.assert_close(
                torch_reduce.cross_entropy(x, target, ignore_index=ignored),
                F.cross_entropy(x, target.long(), ignore_index=ignored),
            )


@pytest.mark.parametrize("bad", [-1, 4])
def test_targets_out_of_bounds_on_a_gpu(bad, cuda):
    """torch's assertion stops the kernel, as in torch's own loss. It ends the process's CUDA."""
    code = f"import torch, torch_reduce; x = torch.zeros(3, 4, device='cuda'); t = torch.tensor([0, {bad}, 1]).cuda()\n"
    call = "torch_reduce.cross_entropy(x, t); torch.cuda.synchronize()"
    ran = subprocess.run([sys.executable, "-c", code + call], capture_output=True, text=True, timeout=300)
    assert ran.returncode != 0 and "device-side assert" in ran.stderr, ran.stderr[-2000:]


REDUCTIONS = ("none", "mean", "sum")


def both(input, target, **others):
    """The loss and its gradient by our function, by its operator's caller under replace(), and by torch's."""
    found = []
    for function in (torch_reduce.cross_entropy, F.cross_entropy, F.cross_entropy):
        x = input.clone().requires_grad_()
        with torch_reduce.replace(None, x.device.type) if len(found) == 1 else contextlib.nullcontext():
            loss = function(x, target, **others)
            (gradient,) = torch.autograd.grad(loss.sum(), x)
        found.append((loss.detach(), gradient))
    return found


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_zeros_of_ignored_targets(reduction, device):
    """They are 0.0, not -0.0, as torch's: with weights, with smoothing, where all are ignored; gradients, too."""
    target = torch.tensor([-100, 1, -100], device=device)
    for weight in (None, torch.tensor([-1.0, 2.0], device=device), torch.zeros(2, device=device)):
        for smoothing, given in itertools.product((0.0, 0.5, 1.0), (target, torch.full_like(target, -100))):
            x = torch.zeros(3, 2, device=device)
            ours, replaced, theirs = both(x, given, weight=weight, reduction=reduction, label_smoothing=smoothing)
            rows = given == -100
            for loss, gradient in (ours, replaced):
                if reduction == "none":
                    assert_same_bits(loss[rows], theirs[0][rows])
                elif rows.all() and reduction == "sum":
                    assert_same_bits(loss, theirs[0])
                assert_same_bits(gradient[rows], theirs[1][rows])
    assert_same_bits(
        torch_reduce.log_prob(torch.zeros(3, 2, device=device), target)[::2], torch.zeros(2, device=device)
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_classes(reduction, device):
    """As torch: NaN for a mean, 0 for a sum and for each if all targets are ignored; and an empty gradient."""
    for shape, weighted in itertools.product(((2, 0), (0,), (0, 0)), (False, True)):
        input, target = torch.zeros(shape, device=device), torch.full(shape[:-1], -100, device=device)
        weight = torch.zeros(0, device=device) if weighted else None
        # Ours as torch's on the CPU: on a GPU its mean over nothing is 0 for some shapes, also where it is replaced.
        on_cpu = None if weight is None else weight.cpu()
        wanted, of_torch = both(input.cpu(), target.cpu(), weight=on_cpu, reduction=reduction)[2]
        (loss, gradient), (replaced, _), (theirs, _) = both(input, target, weight=weight, reduction=reduction)
        assert_same_bits(loss.cpu(), wanted)
        assert_same_bits(gradient.cpu(), of_torch)
        assert_same_bits(replaced.cpu(), wanted if replaced.isnan().any() else theirs.cpu())
    ours = torch_reduce.log_prob(torch.zeros(2, 0, device=device), torch.full((2,), -100, device=device))
    assert_same_bits(ours, torch.zeros(2, device=device))
    if device == "cpu":
        for function in (torch_reduce.cross_entropy, torch_reduce.log_prob):
            with pytest.raises(IndexError, match=rf"^{function.__name__}\(\): Target 0 is out of bounds"):
                function(torch.zeros(2, 0), torch.tensor([-100, 0]))


def test_targets_without_values():
    """Fake tensors and those of the meta device have no values that could be refused."""
    with torch._subclasses.FakeTensorMode():
        x, target = torch.zeros(3, 4, requires_grad=True), torch.zeros(3, dtype=torch.int64)
        loss = torch_reduce.cross_entropy(x, target, torch.ones(4), label_smoothing=0.1)
        assert torch.autograd.grad(loss, x)[0].shape == x.shape
    x, target = torch.zeros(3, 4, device="meta"), torch.zeros(3, dtype=torch.int64, device="meta")
    assert torch_reduce.log_prob(x, target).shape == (3,)
