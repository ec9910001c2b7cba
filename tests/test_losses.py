"""log_prob and cross_entropy: the bits of log_softmax's, forward and backward, and torch's arguments."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import torch_reduce
from support import assert_same_bits, dtype_of
from test_rows import random

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
@pytest.mark.parametrize("length", [1, 2, 7, 8, 100, 513, 1024, 4100, 50_257, 151_936, 300_001])
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


@pytest.mark.parametrize("shape", [(9,), (5, 9), (5, 9, 4), (5, 9, 2, 3)], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
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
    losses = -OPS.log_prob(x, target)
    expected = OPS.sum(losses) / (target != -100).sum().to(losses.dtype)
    assert_same_bits(torch_reduce.cross_entropy(x, target).cpu(), expected.to(dtype_of(name)).cpu())
    assert_same_bits(torch_reduce.cross_entropy(x, target, reduction="none").cpu(), losses.to(dtype_of(name)).cpu())


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
    with pytest.raises(RuntimeError, match="target: expected int64 or int32"):
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


def test_targets_out_of_bounds():
    with pytest.raises(IndexError, match="Target 9 is out of bounds"):
        torch_reduce.cross_entropy(torch.zeros(3, 4), torch.tensor([0, 9, 1]))
    with pytest.raises(IndexError, match=r"log_prob\(\): Target -2 is out of bounds"):
        torch_reduce.log_prob(torch.zeros(3, 4), torch.tensor([0, -2, -1]), ignore_index=-1)
