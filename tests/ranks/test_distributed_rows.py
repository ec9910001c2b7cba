"""Softmaxes, losses and norms over ranks: Shards and DTensors have the model's bits, forward and backward."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch.autograd import gradgradcheck

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.tensor import Partial, Replicate
from torch.distributed.tensor import Shard as ShardOf
from torch.distributed.tensor.placement_types import _StridedShard

import model
import torch_reduce
from support import assert_same_bits, dtype_of
from test_distributed import expect, random_cuts, shard
from test_dtensor import cut, inside, mesh_of, only_where_torch_moves
from test_pages import definitions
from test_rows import NORMS, SOFTMAXES, numbers, result
from test_rows import random as randoms
from torch_reduce.distributed import Shard
from worlds import here, traffic

WORLDS = ["cpu", "mixed", "nccl"]
FLOATS = ["float32", "bfloat16", "float16", "float64"]
R, S0, S1 = Replicate(), ShardOf(0), ShardOf(1)
OPS = torch.ops.gpureduce


def data(shape, name, seed):
    return randoms(shape, name, seed, "cpu")


def classes_of(rows, classes, seed=40, ignored=-100):
    """Targets, every third of which is ignored."""
    target = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed))
    target[1::3] = ignored
    return target


def wide(*tensors):
    return any(x is not None and torch.float64 in (x.dtype if isinstance(x, torch.Tensor) else x,) for x in tensors)


def signless(x):
    """Zeros of either sign are one: an ignored row's gradient is 0 times what it would be."""
    return x + 0.0


def per_rank(whole, local, dim, cuts, rank, what):
    """A rank has its part of a tensor's bits."""
    assert_same_bits(local.detach().cpu(), shard(whole, dim, cuts, rank).contiguous(), what)


def told(cuts, tells):
    return [b - a for a, b in itertools.pairwise(cuts)] if tells else None


# --- what the model says ----------------------------------------------------------------------------------------------


def softmax_of_model(function, x, grad, dtype=None):
    """The value and the gradient of the last dim."""
    logarithmic, target = SOFTMAXES[function], dtype or x.dtype
    y = model.softmaxes(numbers(x, wide(x, target, grad)), logarithmic)
    small = logarithmic and target.itemsize == 2
    kept = numbers(result(y, x, torch.float32 if small else target), wide(x, target, grad))
    dx = model.softmaxes_backward(numbers(grad, wide(x, target, grad)), kept, logarithmic)
    return result(y, x, target), result(dx, x)


def log_prob_of_model(x, target, grad):
    """The logarithms at the targets, and the gradient of x."""
    is_wide = x.dtype == torch.float64
    y = model.softmaxes(numbers(x, is_wide), True)
    counts = (target >= 0).numpy()
    at = target.clamp_min(0).numpy()[:, None]
    found = np.where(counts, np.take_along_axis(y, at, 1)[:, 0], y.dtype.type(0))
    g = np.where(counts, numbers(grad[None], is_wide)[0], y.dtype.type(0))
    spread = np.zeros_like(y)
    np.put_along_axis(spread, at, g[:, None], 1)
    dx = model.softmaxes_backward(spread, y, True)
    return torch.from_numpy(found), result(dx, x)


def norm_of_model(function, x, weight, bias, grad, eps):
    """The value, and the gradients of x, weight and bias."""
    is_wide = wide(x, weight, bias)
    w, b = (numbers(t, is_wide) if t is not None else None for t in (weight, bias))
    w = np.ones((), np.float64 if is_wide else np.float32) if w is None else w
    b = np.zeros_like(w) if b is None else b
    y, mean, r = model.row_norms(numbers(x, is_wide), w, b, eps, NORMS[function])
    dx, dw, db = model.row_norms_backward(numbers(grad, is_wide), numbers(x, is_wide), mean, r, w, NORMS[function])
    found = [result(y, x), result(dx, x)]
    found += [result(d, t) for d, t in ((dw, weight), (db, bias)) if t is not None]
    return found


# --- Shards: the reduced dim is cut -----------------------------------------------------------------------------------


def softmax_cases(group, cases):
    rank = dist.get_rank(group)
    for function, shape, name, dtype, cuts, tells, y, dx in cases:
        x, grad = data(shape, name, 1), data(shape, name if dtype is None else dtype, 2)
        dtype = dtype and dtype_of(dtype)
        local = shard(x, 1, cuts, rank).clone().to(here()).requires_grad_()
        got = getattr(torch_reduce, function)(Shard(local, 1, group, told(cuts, tells)), 1, dtype=dtype)
        (gradient,) = torch.autograd.grad(got, local, shard(grad, 1, cuts, rank).to(here()))
        what = f"{function} of {shape} {name} to {dtype}, cut at {cuts}"
        per_rank(y, got, 1, cuts, rank, what)
        per_rank(dx, gradient, 1, cuts, rank, f"the gradient of {what}")


LENGTHS = [1, 3, 700, 4097, 12_288, 30_001]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_softmaxes(size, name, world):
    """Few and many chunks, cut anywhere: the model's bits, which are those of one process."""
    rng, cases = random.Random(f"{size} {name}"), []
    for length, function in itertools.product(LENGTHS, SOFTMAXES):
        for dtype in (None, "float32", "float64") if length == 4097 else (None,):
            x, grad = data([3, length], name, 1), data([3, length], dtype or name, 2)
            y, dx = softmax_of_model(function, x, grad, dtype and dtype_of(dtype))
            one = getattr(OPS, function)(x, 1, dtype=dtype and dtype_of(dtype))
            assert_same_bits(one, y)
            cuts = random_cuts(rng, length, size)
            cases.append((function, [3, length], name, dtype, cuts, rng.random() < 0.5, y, dx))
    cuts = [4096 * rank for rank in range(size + 1)]
    y, dx = softmax_of_model("softmax", data([3, cuts[-1]], name, 1), data([3, cuts[-1]], name, 2))
    cases.append(("softmax", [3, cuts[-1]], name, None, cuts, True, y, dx))
    world.run(size, softmax_cases, cases)


def odd_softmaxes(group):
    """Other dims and dtypes, and rows with NaN, infinities or nothing; more rows than ranks, which are dealt out."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    integers = torch.arange(60).view(5, 12) % 7
    special = data([6, 40], "float32", 3)
    special[0, 1], special[1, 2], special[2, 0], special[3] = torch.nan, torch.inf, -torch.inf, -torch.inf
    special[4, 0] = 200
    for function, (x, dim, dtype) in itertools.product(
        (torch_reduce.softmax, torch_reduce.log_softmax),
        (
            (integers, 1, torch.float32),
            (integers, -2, torch.float64),
            (special, 1, None),
            (special, 0, None),
            (data([4, 3, 5], "float32", 4).transpose(0, 2), 1, None),
            (data([50, 7], "bfloat16", 5).to(torch.float8_e5m2), 1, None),
            (data([64, 40], "bfloat16", 6), 1, torch.float32),
            (torch.empty(0, 5), 1, None),
            (torch.empty(5, 0), 1, None),
        ),
    ):
        cuts = [x.shape[dim] * r // world for r in range(world + 1)]
        wanted = function(x, dim, dtype=dtype)
        got = function(Shard(shard(x, dim, cuts, rank).to(here()), dim, group), dim, dtype=dtype)
        per_rank(wanted, got, dim, cuts, rank, f"{function.__name__} of {tuple(x.shape)} {x.dtype} over {dim}")


def test_odd_softmaxes(world):
    world.run(3, odd_softmaxes)


def log_prob_cases(group, cases):
    rank = dist.get_rank(group)
    for rows, classes, name, cuts, tells, found, dx in cases:
        x, target = data([rows, classes], name, 1), classes_of(rows, classes)
        grad = data([rows], str(found.dtype).removeprefix("torch."), 3)
        local = shard(x, 1, cuts, rank).clone().to(here()).requires_grad_()
        logits = Shard(local, -1, group, told(cuts, tells))
        what = f"log_prob of {rows} rows of {classes} {name}, cut at {cuts}"
        for index in (target, target.int()):
            got = torch_reduce.log_prob(logits, index.to(here()))
            assert_same_bits(signless(got.detach().cpu()), signless(found), what)
            (gradient,) = torch.autograd.grad(got, local, grad.to(here()))
            per_rank(signless(dx), signless(gradient), 1, cuts, rank, f"the gradient of {what}")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("size", [2, 4])
def test_log_prob(size, name, world):
    """A vocabulary that is cut: every rank gets the results, and its part of the gradient."""
    rng, cases = random.Random(f"{size} {name}"), []
    for classes in LENGTHS:
        x, target = data([6, classes], name, 1), classes_of(6, classes)
        grad = data([6], "float64" if name == "float64" else "float32", 3)
        found, dx = log_prob_of_model(x, target, grad)
        assert_same_bits(signless(OPS.log_prob(x, target)), signless(found))
        cases.append((6, classes, name, random_cuts(rng, classes, size), rng.random() < 0.5, found, dx))
    world.run(size, log_prob_cases, cases)


def several_of_model(x, target, grad):
    """The logarithms at several targets of each row, and the gradient of x."""
    logits, index = numbers(x, wide(x)), target.numpy()
    _, m, log_sum = model.log_probs(logits, np.zeros(len(logits), np.int64))
    found = (np.take_along_axis(logits, np.maximum(index, 0), 1) - m[:, None]) - log_sum[:, None]
    found = np.where(index < 0, m.dtype.type(0), found)
    dx = model.log_probs_of_several_backward(grad.numpy(), logits, index, m, log_sum)
    return torch.from_numpy(found), result(dx, x)


def several_cases(group, cases, on_cpus):
    rank = dist.get_rank(group)
    for dim, x, target, cuts, tells, grad, found, dx in cases:
        local = shard(x, dim, cuts, rank).clone().to(here()).requires_grad_()
        part = lambda t, cut=dim == 0, cuts=cuts: (shard(t, 0, cuts, rank) if cut else t).to(here())  # noqa: E731
        logits = Shard(local, dim, group, told(cuts, tells))
        what = f"{target.shape[1]} targets of {tuple(x.shape)} {x.dtype}, {dim} cut at {cuts}"
        for index in (target, target.int()):
            got = torch_reduce.log_prob(logits, part(index), -1)
            assert_same_bits(signless(got.detach().cpu()), signless(part(found).cpu()), what)
            (gradient,) = torch.autograd.grad(got, local, part(grad))
            per_rank(signless(dx), signless(gradient), dim, cuts, rank, f"the gradient of {what}")
    odd = (target[:, :1] if rank == 0 else target).to(here())
    logits = Shard(shard(x, 1, [0, *[x.shape[1]] * dist.get_world_size(group)], rank).to(here()), 1, group)
    expect(group, RuntimeError, "disagree about the targets of a row", lambda: torch_reduce.log_prob(logits, odd))
    if on_cpus:
        wrong = target.to(here()).clone().fill_(x.shape[1])
        expect(group, IndexError, "is out of bounds", lambda: torch_reduce.log_prob(logits, wrong))


def test_several_targets(world):
    """Where a vocabulary is cut, every rank gets the K results of each row; where rows are cut, of its own rows."""
    rng, cases = random.Random(7), []
    for name, classes, count in (("float32", 5, 9), ("bfloat16", 5000, 20), ("float64", 700, 1), ("float32", 9000, 0)):
        x, target = data([6, classes], name, 1), classes_of(6 * count, classes).view(6, count)
        target[5] = -100
        grad = data([6, count], "float64" if name == "float64" else "float32", 3)
        for dim in (0, 1):
            cuts = random_cuts(rng, x.shape[dim], 3)
            cases.append((dim, x, target, cuts, rng.random() < 0.5, grad, *several_of_model(x, target, grad)))
    cases.append(cases.pop(0))  # the last one has several targets
    world.run(3, several_cases, cases, world.kind == "cpu")


def of_megatron(group, function, x, target, smoothing, losses, dx):
    """x is (length, batch, classes) of all ranks."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    cuts = [x.shape[2] * r // world for r in range(world + 1)]
    local = shard(x, 2, cuts, rank).clone().to(here()).requires_grad_()
    found = definitions("docs/rl.md")[function](local, target.to(here()), smoothing, group)
    torch.testing.assert_close(found.double().cpu(), losses, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.cos().sum(), local)
    close = dict(rtol=1e-2, atol=1e-2) if x.dtype == torch.bfloat16 else dict(rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double().cpu(), shard(dx, 2, cuts, rank), **close)


@pytest.mark.parametrize(("name", "smoothing"), [("float32", 0.0), ("bfloat16", 0.0), ("float32", 0.1)])
def test_in_place_of_megatron(name, smoothing, world):
    """docs/rl.md's function gives Megatron's loss, which spreads what it smooths over the other classes."""
    x, target = data([5 * 2, 60], name, 1).view(5, 2, 60), classes_of(10, 60, ignored=7).view(5, 2)
    wide = x.double().requires_grad_()
    logarithms = wide.log_softmax(-1)
    share = torch.full_like(logarithms, smoothing / 59).scatter(-1, target[..., None], 1 - smoothing)
    losses = -(share * logarithms).sum(-1)
    (dx,) = torch.autograd.grad(losses.cos().sum(), wide)
    world.run(3, of_megatron, "vocab_parallel_cross_entropy", x, target, smoothing, losses.detach(), dx)


def cooled(group):
    """With a temperature, and the entropies."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for x, temperature in itertools.product((data([5, 5000], "bfloat16", 1), data([5, 70], "float64", 2)), (1.0, 0.7)):
        cuts = [x.shape[1] * r // world for r in range(world + 1)]
        target = classes_of(5, x.shape[1])
        whole, local = x.clone().requires_grad_(), shard(x, 1, cuts, rank).clone().to(here()).requires_grad_()
        options = dict(temperature=temperature, return_entropy=True)
        wanted = torch_reduce.log_prob(whole, target, **options)
        got = torch_reduce.log_prob(Shard(local, 1, group), target.to(here()), **options)
        for ours, one in zip(got, wanted, strict=True):
            assert_same_bits(ours.detach().cpu(), one.detach())
        (dx,), (gradient,) = (
            torch.autograd.grad(sum(each.sum() for each in pair), leaf)
            for pair, leaf in ((wanted, whole), (got, local))
        )
        per_rank(signless(dx), signless(gradient), 1, cuts, rank, f"temperature {temperature}")


def test_temperature_and_entropy(world):
    world.run(3, cooled)


def widened(group):
    """torch.autocast: the dtype and the bits of one process, whatever is cut."""
    rank, world, device = dist.get_rank(group), dist.get_world_size(group), here()
    x, weight = data([6, 50], "bfloat16", 1).to(device), data([50], "bfloat16", 2).to(device)
    target = classes_of(6, 50).to(device)
    for dim in (0, 1):
        cuts = [x.shape[dim] * r // world for r in range(world + 1)]
        local = Shard(shard(x, dim, cuts, rank), dim, group)
        beside = shard(weight, 0, cuts, rank) if dim == 1 else weight
        own = shard(target, 0, cuts, rank) if dim == 0 else target
        calls = {
            "softmax": lambda x, w, t: torch_reduce.softmax(x, 1),
            "log_softmax": lambda x, w, t: torch_reduce.log_softmax(x, 1),
            "layer_norm": lambda x, w, t: torch_reduce.layer_norm(x, 50, w),
            "rms_norm": lambda x, w, t: torch_reduce.rms_norm(x, 50, w),
            "cross_entropy": lambda x, w, t: torch_reduce.cross_entropy(x, t, label_smoothing=0.1),
        }
        with torch.autocast(device.type, torch.bfloat16):
            for name, call in calls.items():
                wanted, got = call(x, weight, target).cpu(), call(local, beside, own)
                wanted = wanted if wanted.dim() == 0 else shard(wanted, dim, cuts, rank)
                assert_same_bits(got.cpu(), wanted, f"{name}, dim {dim} cut")


def test_autocast(world):
    if world.kind == "mixed":
        pytest.skip("torch widens a softmax on GPUs alone")
    world.run(3, widened)


def norm_cases(group, cases):
    """Each case: the dim that is cut, and the wanted value and gradients."""
    rank = dist.get_rank(group)
    for function, shape, name, others, dim, cuts, tells, wanted in cases:
        x, grad = data(shape, name, 1), data(shape, name, 2)
        weight, bias = data(shape[1:], others, 3), data(shape[1:], others, 4)
        arguments = (weight,) if function == "rms_norm" else (weight, bias)
        if dim == 1:
            arguments = [shard(one, 0, cuts, rank) for one in arguments]
        leaves = [one.clone().to(here()).requires_grad_() for one in (shard(x, dim, cuts, rank), *arguments)]
        local = Shard(leaves[0], dim, group, told(cuts, tells))
        got = getattr(torch_reduce, function)(local, shape[1:], *leaves[1:], eps=1e-5)
        gradients = torch.autograd.grad(got, leaves, shard(grad, dim, cuts, rank).to(here()))
        what = f"{function} of {shape} {name}, weights of {others}, dim {dim} cut at {cuts}"
        per_rank(wanted[0], got, dim, cuts, rank, what)
        per_rank(wanted[1], gradients[0], dim, cuts, rank, f"the gradient of {what}")
        for ours, of_model in zip(gradients[1:], wanted[2:], strict=True):
            mine = shard(of_model, 0, cuts, rank) if dim == 1 else of_model
            assert_same_bits(ours.cpu(), mine, f"a weight's gradient of {what}")


def norm_case(rng, function, shape, name, others, dim, size):
    x, grad = data(shape, name, 1), data(shape, name, 2)
    weight, bias = data(shape[1:], others, 3), data(shape[1:], others, 4)
    arguments = (weight, None) if function == "rms_norm" else (weight, bias)
    wanted = norm_of_model(function, x, *arguments, grad, 1e-5)
    given = arguments[: 1 + NORMS[function]]
    assert_same_bits(getattr(torch_reduce, function)(x, shape[1:], *given, eps=1e-5), wanted[0])
    return function, shape, name, others, dim, random_cuts(rng, shape[dim], size), rng.random() < 0.5, wanted


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_norms_of_a_cut_hidden_dim(size, name, world):
    rng = random.Random(f"{size} {name}")
    cases = [norm_case(rng, f, [3, length], name, name, 1, size) for f in NORMS for length in LENGTHS]
    cases += [norm_case(rng, f, [3, 5000], name, "float32" if name != "float32" else "float64", 1, size) for f in NORMS]
    world.run(size, norm_cases, cases)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_norms_of_cut_rows(size, name, world):
    """The gradients of weights are the sums over all rows of all ranks, as of one process."""
    rng = random.Random(f"{size} {name}")
    cases = [norm_case(rng, f, [rows, 6], name, name, 0, size) for f in NORMS for rows in (1, 5, 700, 4097, 9000)]
    cases += [norm_case(rng, f, [600, 6], name, "float32" if name != "float32" else "float64", 0, size) for f in NORMS]
    world.run(size, norm_cases, cases)


def several_dims(group):
    """Of several dims, in the order of memory; whichever of them is cut, and without weights."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x = data([3, 6, 40, 50], "float32", 1)
    for view in (x, x.transpose(2, 3), x.permute(0, 3, 1, 2), x[:, :, 1:, 1:], x[:1].expand(3, -1, -1, -1)):
        for function, dim in itertools.product((torch_reduce.rms_norm, torch_reduce.layer_norm), range(4)):
            cuts = [view.shape[dim] * r // world for r in range(world + 1)]
            wanted = function(view, view.shape[1:])
            local = shard(view, dim, cuts, rank)
            memory = local.new_empty(0).set_(local.untyped_storage()).to(here())
            local = memory.as_strided(local.shape, local.stride(), local.storage_offset())
            got = function(Shard(local, dim, group), view.shape[1:])
            per_rank(wanted, got, dim, cuts, rank, f"{function.__name__} of {tuple(view.shape)} {view.stride()}, {dim}")


def test_several_dims(world):
    world.run(3, several_dims)


def residuals(group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x, more = data([4, 300], "bfloat16", 1), data([4, 300], "bfloat16", 2)
    cuts = [300 * r // world for r in range(world + 1)]
    for function in (torch_reduce.rms_norm, torch_reduce.layer_norm):
        wanted = function(x, 300, residual=more)
        mine, of_more = (shard(one, 1, cuts, rank).to(here()) for one in (x, more))
        for ours, whole in zip(function(Shard(mine, 1, group), 300, residual=of_more), wanted, strict=True):
            per_rank(whole, ours, 1, cuts, rank, function.__name__)


def test_residuals(world):
    world.run(2, residuals)


# --- Shards: losses ---------------------------------------------------------------------------------------------------


def losses(group, name):
    """All forms of cross_entropy, with classes cut and with rows cut: the bits of one process."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    weights = data([130], "float32", 4).abs()
    for shape in ([700, 130], [9, 130, 4], [130]):
        dim = int(len(shape) > 1)
        rows = [n for d, n in enumerate(shape) if d != dim]
        x = data(shape, name, 1)
        index = classes_of(int(np.prod(rows)), 130).view(rows) if rows else torch.tensor(7)
        shares = data(shape, "float32", 5).softmax(dim)
        calls = itertools.product(
            range(len(shape)), (None, weights), (0.0, 0.3), ("mean", "sum", "none"), (index, shares)
        )
        for k, (cut_dim, weight, smoothing, reduction, target) in enumerate(calls):
            if name != "float32" and (k + FLOATS.index(name)) % 3:  # the others have a third of the calls each
                continue
            cuts = [shape[cut_dim] * r // world for r in range(world + 1)]
            cuts[1] = cuts[2]  # a rank has nothing
            options = dict(reduction=reduction, label_smoothing=smoothing)
            if weight is not None:  # and with the other terms
                options |= dict(divisor=77) if reduction == "mean" else {}
                options |= dict(z_loss=0.01) if cut_dim != dim else {}
            whole, local = x.clone().requires_grad_(), shard(x, cut_dim, cuts, rank).clone().to(here()).requires_grad_()
            one = torch_reduce.cross_entropy(whole, target, weight, **options)
            mine = target
            if target is shares:
                mine = shard(shares, cut_dim, cuts, rank)
            elif cut_dim != dim:
                mine = shard(index, cut_dim - (cut_dim > dim), cuts, rank)
            given = (mine.to(here()), weight if weight is None else weight.to(here()))
            got = torch_reduce.cross_entropy(Shard(local, cut_dim, group), *given, **options)
            what = f"{shape} {name}, {cut_dim} cut, {options}, {weight is None}, indices {target is index}"
            if reduction == "none" and cut_dim != dim:
                per_rank(signless(one.detach()), signless(got), cut_dim - (cut_dim > dim), cuts, rank, what)
            else:
                assert_same_bits(signless(got.detach().cpu()), signless(one.detach()), what)
            (dx,), (gradient,) = (torch.autograd.grad(y.sum(), leaf) for y, leaf in ((one, whole), (got, local)))
            per_rank(signless(dx), signless(gradient), cut_dim, cuts, rank, f"the gradient of {what}")


@pytest.mark.parametrize("name", FLOATS)
def test_cross_entropy(name, world):
    world.run(3, losses, name)


def infinite_weights(group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x, target = data([7, 4], "float32", 1), torch.tensor([1, -100, 3, 2, -100, 1, 2])
    weight = torch.tensor([math.inf, 2.0, 0.5, 1.0])
    for dim, cuts in ((0, [7 * r // world for r in range(world + 1)]), (1, [4 * r // world for r in range(world + 1)])):
        mine = shard(target, 0, cuts, rank) if dim == 0 else target
        given = Shard(shard(x, dim, cuts, rank).to(here()), dim, group), mine.to(here()), weight.to(here())
        wanted = torch_reduce.cross_entropy(x, target, weight)
        assert wanted.isfinite()
        assert_same_bits(torch_reduce.cross_entropy(*given).cpu(), wanted, f"{dim} cut")


def test_infinite_weights(world):
    """A target that is ignored counts nothing, whatever the weight of a class is."""
    world.run(3, infinite_weights)


def mean_of_many(group, name, wanted):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x, target = data([9000, 7], name, 1), classes_of(9000, 7)
    for dim, cuts in ((0, [0, 4096, 4100, 9000]), (0, [0, 1, 1, 9000]), (1, [0, 2, 5, 7])):
        mine = shard(target, 0, cuts, rank) if dim == 0 else target
        got = torch_reduce.cross_entropy(Shard(shard(x, dim, cuts, rank).to(here()), dim, group), mine.to(here()))
        assert_same_bits(got.cpu(), wanted, f"{dim} cut at {cuts}, {world} ranks")


@pytest.mark.parametrize("name", FLOATS)
def test_mean_is_one_quotient(name, world):
    """The model's: of two sums over all rows of all ranks, rounded once."""
    x, target = data([9000, 7], name, 1), classes_of(9000, 7)
    found, _ = log_prob_of_model(x, target, torch.zeros(9000))
    sums = model.ordered_sum(-found.numpy()[None])
    mean = sums / sums.dtype.type((target >= 0).sum().item())
    world.run(3, mean_of_many, name, torch.from_numpy(mean).to(x.dtype).view(()))


# --- Shards: what is sent, and what cannot be -------------------------------------------------------------------------


def alone(group):
    """Rows that no cut crosses need no rank: nothing is sent, and gradients have any order."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    x, target = data([6, 30], "float64", 1), classes_of(6, 30)
    cuts = [6 * r // world for r in range(world + 1)]
    local = shard(x, 0, cuts, rank).clone().to(here()).requires_grad_()
    weight, index = torch.ones(30, dtype=torch.float64, device=here()), shard(target, 0, cuts, rank).to(here())

    def calls(group, x):
        mine = Shard(x, 0, group)
        return (
            torch_reduce.softmax(mine, 1),
            torch_reduce.log_softmax(mine, 1),
            torch_reduce.log_prob(mine, index),
            torch_reduce.rms_norm(mine, 30, weight),
            torch_reduce.layer_norm(mine, 30, weight, weight),
            torch_reduce.cross_entropy(mine, index, reduction="none"),
        )

    assert traffic(group, calls, local) == {"all_to_all": [0, 0], "all_gather": [0, 0]}
    assert gradgradcheck(lambda x: calls(group, x), local)


def test_rows_of_one_rank(world):
    world.run(2, alone)


def sent(group):
    """No logits: of a vocabulary that is cut at chunks, a few numbers per row."""
    rank = dist.get_rank(group)
    x, target = data([3, 8192], "bfloat16", 1), classes_of(3, 8192).to(here())
    local = shard(x, 1, [0, 4096, 8192], rank).clone().to(here()).requires_grad_()

    def call(group):
        y = torch_reduce.log_prob(Shard(local, 1, group, [4096, 4096]), target)
        y.backward(torch.ones_like(y))

    found = traffic(group, call)
    assert found["all_to_all"] == [0, 0]
    # Of each row m, the target's logit and a sum, as float32; and nothing for the gradient.
    assert found["all_gather"] == [3 * (4 + 4 + 4), 2]


def test_what_is_sent(world):
    world.run(2, sent)


def refused(group, on_cpus):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    mine, target = Shard(x, 1, group), torch.zeros(4, dtype=torch.int64, device=here())
    for kind, message, call in (
        (IndexError, "Dimension out of range", lambda: torch_reduce.softmax(mine, 2)),
        (NotImplementedError, "dtype= must name", lambda: torch_reduce.softmax(Shard(x.long(), 1, group), 1)),
        (TypeError, "'out' cannot be given beside a Shard", lambda: torch_reduce.softmax(mine, 1, out=x)),
        (TypeError, "'target' must be Tensor, not Shard", lambda: torch_reduce.log_prob(mine, Shard(target, 0, group))),
        (RuntimeError, "target: expected the size", lambda: torch_reduce.log_prob(mine, target[:2])),
        (RuntimeError, "temperature", lambda: torch_reduce.log_prob(mine, target, temperature=0.0)),
        (RuntimeError, r"normalized_shape=\[6\]", lambda: torch_reduce.rms_norm(mine, 6)),
        (
            RuntimeError,
            "weight: expected the size",
            lambda: torch_reduce.rms_norm(mine, 12, torch.ones(12, device=here())),
        ),
        (RuntimeError, "of 12 classes", lambda: torch_reduce.cross_entropy(mine, target, x[0])),
        (ValueError, "reduction", lambda: torch_reduce.cross_entropy(mine, target, reduction="max")),
        (TypeError, "'residual' must be Tensor", lambda: torch_reduce.rms_norm(mine, 12, residual=mine)),
    ):
        expect(group, kind, message, call)
    if on_cpus:
        expect(group, IndexError, "Target 12 is out of bounds", lambda: torch_reduce.log_prob(mine, target + 12))
        expect(
            group,
            IndexError,
            "Target -3 is out of bounds",
            lambda: torch_reduce.log_prob(mine, target.clone().fill_(-3)),
        )
    odd = torch_reduce.softmax if rank == 1 else torch_reduce.log_softmax
    expect(group, RuntimeError, "disagree about the function", lambda: odd(mine, 1))
    bad = x.to(torch.complex64) if rank == 1 else x
    kind, message = (NotImplementedError, "complex") if rank == 1 else (RuntimeError, "rank 1 failed: NotImpl")
    expect(group, kind, message, lambda: torch_reduce.softmax(Shard(bad, 1, group), 1))
    # of every function gradients have the first order
    leaf, weight = x.clone().requires_grad_(), torch.ones(6, device=here(), requires_grad=True)
    mine = Shard(leaf, 1, group)
    for y in (
        torch_reduce.softmax(mine, 1),
        torch_reduce.log_prob(mine, target),
        torch_reduce.layer_norm(mine, 12, weight, weight),
        torch_reduce.cross_entropy(mine, torch.ones_like(x) / 12),
    ):
        (gradient,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="of a Shard through ranks are of first order"):
            gradient.sum().backward()


def test_refused(world):
    world.run(2, refused, world.kind == "cpu")


# --- DTensors ---------------------------------------------------------------------------------------------------------


def same_parts(got, wanted, mesh, placements, what):
    """A DTensor with these placements, and this rank's part of the bits; None stands for any placements."""
    if placements is not None:
        assert got.placements == tuple(placements), f"{what}: {got.placements}"
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, what
    if inside(mesh):
        mine = cut(wanted, mesh, got.placements).to_local()
        assert_same_bits(signless(got.detach().to_local().cpu()), signless(mine.cpu()), what)


def without(placements, dim):
    """The placements of what has one number for that dim."""
    return [
        R if one == R or one.dim == dim else ShardOf(one.dim - (one.dim > dim)) if isinstance(one, ShardOf) else one
        for one in placements
    ]


LAYOUTS = {
    "classes": ((3,), [S1]),
    "rows": ((4,), [S0]),
    "replicas": ((2,), [R]),
    "both": ((2, 2), [S0, S1]),
    "classes twice": ((2, 2), [S1, S1]),
    "replicas of classes": ((2, 2), [R, S1]),
    "more ranks than rows": ((8,), [S0]),
    "strided": ((2,), [_StridedShard(1, split_factor=2)]),
}


def softmaxes_of_dtensors(group, shape, placements, name):
    mesh = mesh_of(shape)
    x, grad, target = data([5, 9001], name, 1).to(here()), data([5, 9001], name, 2).to(here()), classes_of(5, 9001)
    strided = isinstance(placements[0], _StridedShard)
    for function in (torch_reduce.softmax, torch_reduce.log_softmax):
        whole, leaf = x.clone().requires_grad_(), cut(x, mesh, placements).requires_grad_()
        one, got = function(whole, 1), function(leaf, 1)
        same_parts(got, one.detach(), mesh, placements, function.__name__)
        (dx,) = torch.autograd.grad(one, whole, grad)
        (gradient,) = torch.autograd.grad(got, leaf, cut(grad, mesh, placements))
        same_parts(gradient, dx, mesh, placements, f"the gradient of {function.__name__}")
    target, per_row, found_grad = target.to(here()), without(placements, 1), data([5], "float32", 3).to(here())
    whole, leaf = x.clone().requires_grad_(), cut(x, mesh, placements).requires_grad_()
    one, got = torch_reduce.log_prob(whole, target), torch_reduce.log_prob(leaf, cut(target, mesh, per_row))
    same_parts(got, one.detach(), mesh, per_row, "log_prob")
    (dx,) = torch.autograd.grad(one, whole, found_grad.to(one.dtype))
    (gradient,) = torch.autograd.grad(got, leaf, cut(found_grad.to(one.dtype), mesh, per_row))
    same_parts(gradient, dx, mesh, placements, "the gradient of log_prob")
    if strided:
        return  # torch cannot redistribute these
    weight = data([9001], "float32", 4).abs().to(here())
    for given, smoothing, reduction in itertools.product((None, weight), (0.0, 0.1), ("mean", "none")):
        options = dict(reduction=reduction, label_smoothing=smoothing)
        whole, leaf = x.clone().requires_grad_(), cut(x, mesh, placements).requires_grad_()
        one = torch_reduce.cross_entropy(whole, target, given, **options)
        given = given if given is None else cut(given, mesh, [R] * len(placements))
        got = torch_reduce.cross_entropy(leaf, cut(target, mesh, per_row), given, **options)
        same_parts(got, one.detach(), mesh, per_row if reduction == "none" else [R] * len(shape), f"loss {options}")
        (dx,), (gradient,) = (torch.autograd.grad(y.sum(), each) for y, each in ((one, whole), (got, leaf)))
        same_parts(gradient, dx, mesh, None, f"the gradient of the loss {options}")


def several_targets(group, shape, placements, name):
    mesh = mesh_of(shape)
    x = data([5, 9001], name, 1).to(here())
    target = torch.stack([classes_of(5, 9001), classes_of(5, 9001).flip(0), torch.full((5,), 7)], 1).to(here())
    target[2, 0], target[3] = -100, -100
    kept = [one if getattr(one, "dim", 1) == 0 else R for one in placements]
    weight = data([5, 3], "float32", 3).to(here())
    for given, options in itertools.product(([R] * len(shape), kept), ({}, dict(temperature=0.7, return_entropy=True))):
        whole, leaf = x.clone().requires_grad_(), cut(x, mesh, placements).requires_grad_()
        one, got = (
            torch_reduce.log_prob(whole, target, **options),
            torch_reduce.log_prob(leaf, cut(target, mesh, given), **options),
        )
        if options:
            (one, entropy), (got, entropies) = one, got
            same_parts(entropies, entropy.detach(), mesh, kept, "entropies")
        same_parts(got, one.detach(), mesh, kept, f"log_prob of several targets, {options}")
        (dx,) = torch.autograd.grad(one, whole, weight)
        (gradient,) = torch.autograd.grad(got, leaf, cut(weight, mesh, kept))
        same_parts(gradient, dx, mesh, placements, "its gradient")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "strided"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_several_targets_of_dtensors(name, layout, world):
    """Of rows whose classes are cut, whose rows are, or both: the bits of one process, with entropies and gradients."""
    only_where_torch_moves(world)
    world.run(world.size, several_targets, *LAYOUTS[layout], name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_softmaxes_of_dtensors(name, layout, world):
    """Placements as torch's own operators give them, and the bits of one process, which the model's tests pin."""
    only_where_torch_moves(world)
    world.run(world.size, softmaxes_of_dtensors, *LAYOUTS[layout], name)


def norms_of_dtensors(group, shape, placements, name, sizes):
    mesh = mesh_of(shape)
    x, grad = data(sizes, name, 1).to(here()), data(sizes, name, 2).to(here())
    weight, bias = data(sizes[1:], name, 3).to(here()), data(sizes[1:], "float32", 4).to(here())
    like = [ShardOf(0) if one == S1 else R for one in placements]
    for function, of_weights in itertools.product(("rms_norm", "layer_norm"), ([R] * len(shape), like)):
        arguments = (weight,) if function == "rms_norm" else (weight, bias)
        whole = [one.clone().requires_grad_() for one in (x, *arguments)]
        leaves = [cut(x, mesh, placements), *(cut(one, mesh, of_weights) for one in arguments)]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        one = getattr(torch_reduce, function)(whole[0], sizes[1:], *whole[1:])
        got = getattr(torch_reduce, function)(leaves[0], sizes[1:], *leaves[1:])
        same_parts(got, one.detach(), mesh, placements, function)
        wanted = torch.autograd.grad(one, whole, grad)
        gradients = torch.autograd.grad(got, leaves, cut(grad, mesh, placements))
        same_parts(gradients[0], wanted[0], mesh, placements, f"the gradient of {function}")
        for ours, each in zip(gradients[1:], wanted[1:], strict=True):
            same_parts(ours, each, mesh, like, f"a weight's gradient of {function}")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "strided"])
@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_norms_of_dtensors(name, layout, world):
    """Of many rows, and of long ones; weights on every rank, and cut as the normalized dim."""
    only_where_torch_moves(world)
    for sizes in ([4200, 6], [5, 9001]):
        world.run(world.size, norms_of_dtensors, *LAYOUTS[layout], name, sizes)


def higher_orders(group, shape, placements):
    """Second derivatives, and gradients of a graph, which have the bits of those without."""
    mesh = mesh_of(shape)
    x, weight = data([4, 10], "float64", 1).to(here()), data([10], "float64", 2).to(here())
    target = classes_of(4, 10).to(here())

    def second(leaf, weight, target, grad):
        functions = (
            lambda: torch_reduce.softmax(leaf, 1),
            lambda: torch_reduce.log_softmax(leaf, 1),
            lambda: torch_reduce.rms_norm(leaf, 10, weight),
            lambda: torch_reduce.layer_norm(leaf, 10, weight, weight),
            lambda: torch_reduce.log_prob(leaf, target),
        )
        for function in functions:
            y = function()
            (first,) = torch.autograd.grad(y, leaf, grad if y.dim() == 2 else torch.ones_like(y), create_graph=True)
            (plain,) = torch.autograd.grad(function(), leaf, grad if y.dim() == 2 else torch.ones_like(y))
            (again,) = torch.autograd.grad((first * first).sum(), leaf)
            yield first.detach(), plain, again

    whole, grad = x.clone().requires_grad_(), data([4, 10], "float64", 3).to(here())
    wanted = second(whole, weight, target, grad)
    leaf = cut(x, mesh, placements).requires_grad_()
    given = cut(weight, mesh, [R] * len(shape)), cut(target, mesh, without(placements, 1)), cut(grad, mesh, placements)
    for (first, plain, again), (one, _, second_of_one) in zip(second(leaf, *given), wanted, strict=True):
        same_parts(plain, one, mesh, placements, "a gradient")
        same_parts(first, one, mesh, None, "a gradient of a graph")
        if inside(mesh):
            torch.testing.assert_close(again.full_tensor(), second_of_one)


@pytest.mark.parametrize("layout", ["classes", "rows", "both"])
def test_higher_orders_of_dtensors(layout, world):
    only_where_torch_moves(world)
    world.run(world.size, higher_orders, *LAYOUTS[layout])


def odd_dtensors(group):
    """Partial inputs are joined first; plain tensors beside DTensors are refused."""
    mesh = mesh_of((2,))
    parts = [data([3, 50], "float32", seed).to(here()) for seed in (1, 2)]
    whole = torch_reduce.sum(torch.stack(parts), 0)
    if inside(mesh):
        from torch.distributed.tensor import DTensor

        x = DTensor.from_local(parts[dist.get_rank()], mesh, [Partial()])
        same_parts(torch_reduce.softmax(x, 1), torch_reduce.softmax(whole, 1), mesh, [R], "of a Partial")
        same_parts(torch_reduce.rms_norm(x, 50), torch_reduce.rms_norm(whole, 50), mesh, [R], "of a Partial")
    x = cut(whole, mesh, [S1])
    with pytest.raises(TypeError, match="'target' must be one too"):
        torch.ops.gpureduce._log_prob(x, torch.zeros(3, dtype=torch.int64, device=here()), 1)
    with pytest.raises(TypeError, match="'weight' must be one too"):
        torch_reduce.rms_norm(x, 50, torch.ones(50, device=here()))
    several = torch.zeros(3, 2, dtype=torch.int64, device=here())
    with pytest.raises(TypeError, match=r"^log_prob\(\): 'logits' is a DTensor, so 'target' must be one too"):
        torch_reduce.log_prob(x, several)
    leaf = x.detach().requires_grad_()
    found = torch_reduce.log_prob(leaf, cut(several, mesh, [R]))
    if inside(mesh):
        (grad,) = torch.autograd.grad(found.sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match="first order.*several targets"):
            grad.sum().backward()
    with pytest.raises(NotImplementedError, match=r"^log_prob_of\(\): weight: DTensors are not supported"):
        torch_reduce.log_prob_of(whole, x, several)


def test_odd_dtensors(world):
    only_where_torch_moves(world)
    world.run(world.size, odd_dtensors)


def compiled(group, placements):
    mesh, x, target = mesh_of((2,)), data([6, 9001], "bfloat16", 1).to(here()), classes_of(6, 9001).to(here())

    def function(x, target, weight):
        loss = torch_reduce.log_prob(x, target).sum() + torch_reduce.log_softmax(x, 1).sum()
        loss = loss + torch_reduce.cross_entropy(x, target, label_smoothing=0.1)
        return loss + torch_reduce.rms_norm(x, 9001, weight).float().sum()

    if not inside(mesh):
        return
    torch._dynamo.reset()
    weight = cut(torch.ones(9001, device=here()), mesh, [R])
    index = cut(target, mesh, without(placements, 1))
    leaves = [cut(x, mesh, placements).requires_grad_() for _ in range(2)]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for call, leaf in zip((compiled, function), leaves, strict=True):
        call(leaf, index, weight).backward()
    assert_same_bits(*(leaf.grad.full_tensor() for leaf in leaves))


@pytest.mark.parametrize("placements", [[S1], [S0]], ids=["classes", "rows"])
def test_compiled(placements, world):
    """One graph, with functional collectives, forward and backward."""
    only_where_torch_moves(world)
    world.run(world.size, compiled, placements)
