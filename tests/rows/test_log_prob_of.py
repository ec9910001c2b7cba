"""log_prob_of: log_prob of logits that are never all there, its promise about rows, its gradients and its memory."""

import functools
import itertools

import pytest
import torch

import torch_reduce
from support import Largest, assert_same_bits, dtype_of
from test_losses import targets
from test_pages import definitions
from test_rows import random

F = torch.nn.functional
OPS = torch.ops.gpureduce
WIDTH, CLASSES, CHUNK = 24, 300, 8
OPTIONS = [{}, dict(temperature=0.7), dict(return_entropy=True), dict(temperature=1.3, return_entropy=True)]


def given(rows, name, device, several=None, seed=70):
    """Hidden states, a matrix, a bias, and targets; every third target is ignored."""
    shapes = (rows, WIDTH), (CLASSES, WIDTH), (CLASSES,)
    hidden, weight, bias = (random(shape, name, seed + i, device).requires_grad_() for i, shape in enumerate(shapes))
    sizes = (rows,) if several is None else (rows, several)
    return hidden, weight, bias, targets(sizes, CLASSES, device, ignored=-100)


def listed(found):
    return found if isinstance(found, tuple) else (found,)


def grads_of(hidden, target, return_entropy=False, **others):
    """An incoming gradient of each result."""
    name = "float64" if hidden.dtype == torch.float64 else "float32"
    shapes = [target.shape, target.shape[:1]][: 1 + return_entropy]
    return [random(shape, name, 80 + i, hidden.device) for i, shape in enumerate(shapes)]


def by_hand(hidden, weight, bias, target, temperature=None, **options):
    """The results and the gradients, chunk by chunk, by log_prob, autograd, and torch's products of whole chunks."""
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    by = None if temperature is None else torch.tensor(temperature, dtype=wide, device=hidden.device)
    results, of_hidden, of_weight, of_bias = [], [], [], []
    for first in range(0, len(hidden), CHUNK):
        own = slice(first, first + CHUNK)
        count = len(hidden[own])
        states = torch.zeros(CHUNK, WIDTH, dtype=hidden.dtype, device=hidden.device)
        states[:count] = hidden[own].detach()
        logits = F.linear(states, weight, bias)[:count].detach()
        cool = logits.to(wide) if options or by is not None else logits
        cool = (cool if by is None else cool / by).requires_grad_()
        found = listed(torch_reduce.log_prob(cool, target[own], **options))
        results.append([y.detach() for y in found])
        (d,) = torch.autograd.grad(found, cool, [grad[own] for grad in grads_of(hidden, target, **options)])
        d = (d if by is None else d / by).to(hidden.dtype)
        of_bias.append(OPS.sum(d, [0], dtype=wide))
        d = F.pad(d, (0, 0, 0, CHUNK - count))
        of_hidden.append((d @ weight)[:count].detach())
        of_weight.append((d.t() @ states).to(wide))
    sums = (functools.reduce(torch.add, parts).to(hidden.dtype) for parts in (of_weight, of_bias))
    return [torch.cat(parts) for parts in zip(*results, strict=True)], (torch.cat(of_hidden), *sums)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("several", [None, 3])
def test_bits(several, name, device):
    """The results are log_prob's of the chunks' logits, and gradients are added as documented."""
    for rows, options in itertools.product((8, 19), OPTIONS[:: 3 if several else 1]):
        hidden, weight, bias, target = given(rows, name, device, several)
        found = listed(torch_reduce.log_prob_of(hidden, weight, target, bias=bias, chunk=CHUNK, **options))
        gradients = torch.autograd.grad(found, (hidden, weight, bias), grads_of(hidden, target, **options))
        results, expected = by_hand(hidden, weight, bias, target, **options)
        what = f"{rows} rows, {options}"
        for ours, wanted in zip((*found, *gradients), (*results, *expected), strict=True):
            assert_same_bits(ours.detach().cpu(), wanted.cpu(), what)


@pytest.mark.parametrize("several", [None, 4])
def test_values(several, device):
    """As by torch's own functions, in float64."""
    hidden, weight, bias, target = given(21, "float64", device, several)
    options = dict(bias=bias, chunk=CHUNK, temperature=0.6, return_entropy=True)
    found = torch_reduce.log_prob_of(hidden, weight, target, **options)
    logarithms = (F.linear(hidden, weight, bias) / 0.6).log_softmax(1)
    index = target.clamp_min(0).view(21, -1)
    theirs = logarithms.gather(1, index).view(target.shape) * (target >= 0), -(logarithms.exp() * logarithms).sum(1)
    torch.testing.assert_close(found, theirs)
    grads = grads_of(hidden, target, True)
    ours, theirs = (torch.autograd.grad(each, (hidden, weight, bias), grads) for each in (found, theirs))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_rows_in_other_batches(name, device):
    """A row has the same bits alone and among any others, at the same place of a chunk; and so has its gradient."""
    hidden, weight, bias, target = given(21, name, device)

    def of(hidden, target):
        leaf = hidden.detach().clone().requires_grad_()
        y = torch_reduce.log_prob_of(leaf, weight, target, bias=bias, chunk=CHUNK)
        return y.detach(), torch.autograd.grad(y, leaf, y.detach().cos())[0]

    whole = of(hidden, target)
    for first, last in ((0, 1), (0, 5), (8, 9), (0, 17), (8, 21), (16, 21)):
        some = of(hidden[first:last], target[first:last])
        for ours, all_of_them in zip(some, whole, strict=True):
            assert_same_bits(ours.cpu(), all_of_them[first:last].cpu(), f"rows {first} to {last}")
    other = hidden.detach().clone()
    other[::2] = random((11, WIDTH), name, 90, device) * 100
    for ours, all_of_them in zip(of(other, target), whole, strict=True):
        assert_same_bits(ours[1::2].cpu(), all_of_them[1::2].cpu(), "among other rows")


def test_largest_tensor(device):
    """No tensor is larger than the logits of a chunk, the matrix, or the hidden states."""
    rows, classes, chunk = 20, 2000, 4
    hidden = random((rows, 8), "bfloat16", 71, device).requires_grad_()
    weight, target = random((classes, 8), "bfloat16", 72, device).requires_grad_(), targets((rows,), classes, device)
    for options in (OPTIONS[0], OPTIONS[3]):
        with Largest() as made:
            found = listed(torch_reduce.log_prob_of(hidden, weight, target, chunk=chunk, **options))
            assert made.sizes[0] == chunk * classes
            torch.autograd.grad(sum(y.sum() for y in found), (hidden, weight))
        assert made.sizes[0] == 2 * chunk * classes == weight.numel()
        # One for each chunk's product for the matrix, their sum, and its rounding.
        assert len([size for size in made.sizes if size > chunk * classes]) <= 2 + rows // chunk


def test_some_gradients(device):
    """What requires none gets none, and the others keep their bits."""
    hidden, weight, bias, target = given(19, "float32", device)
    y = torch_reduce.log_prob_of(hidden, weight, target, bias=bias, chunk=CHUNK)
    grads = torch.autograd.grad(y.sum(), (hidden, weight, bias))
    for wanted in itertools.product((False, True), repeat=3):
        given_needs = zip((hidden, weight, bias), wanted, strict=True)
        leaves = [x.detach().clone().requires_grad_(needs) for x, needs in given_needs]
        y = torch_reduce.log_prob_of(leaves[0], leaves[1], target, bias=leaves[2], chunk=CHUNK)
        assert y.requires_grad == any(wanted)
        if any(wanted):
            y.sum().backward()
        for leaf, grad, needs in zip(leaves, grads, wanted, strict=True):
            assert (leaf.grad is not None) == needs
            if needs:
                assert_same_bits(leaf.grad.cpu(), grad.cpu())
    with torch.no_grad():
        assert not torch_reduce.log_prob_of(hidden, weight, target).requires_grad


def test_shapes(device):
    """Any dims, none too, and no rows."""
    hidden, weight, bias, target = given(12, "float32", device, 3)
    flat = torch_reduce.log_prob_of(hidden, weight, target, chunk=CHUNK, return_entropy=True)
    deep = torch_reduce.log_prob_of(
        hidden.view(2, 6, WIDTH), weight, target.view(2, 6, 3).int(), chunk=CHUNK, return_entropy=True
    )
    for ours, wanted, shape in zip(deep, flat, ((2, 6, 3), (2, 6)), strict=True):
        assert_same_bits(ours.detach().cpu(), wanted.detach().reshape(shape).cpu())
    one = torch_reduce.log_prob_of(hidden[0], weight, target[0, 0], chunk=CHUNK)
    assert one.shape == ()
    assert_same_bits(one.detach().cpu(), flat[0][0, 0].detach().cpu())
    for shape in ((0, WIDTH), (3, 0, WIDTH)):
        empty = torch.zeros(shape, device=device, requires_grad=True)
        for sizes in (shape[:-1], (*shape[:-1], 4)):
            y = torch_reduce.log_prob_of(empty, weight, torch.zeros(sizes, dtype=torch.int64, device=device), bias=bias)
            assert y.shape == sizes and y.dtype == torch.float32
            grads = torch.autograd.grad(y.sum(), (empty, weight, bias))
            assert [grad.shape for grad in grads] == [shape, weight.shape, bias.shape]
            assert not any(grad.any() for grad in grads)
    meta = torch.zeros(5, WIDTH, device="meta", requires_grad=True)
    y = torch_reduce.log_prob_of(meta, weight.to("meta"), torch.zeros(5, dtype=torch.int64, device="meta"))
    assert y.shape == (5,) and torch.autograd.grad(y.sum(), meta)[0].shape == meta.shape


def test_dtypes(device):
    """Products have the widest dtype; under autocast autocast's. Gradients have the dtypes of what they belong to."""
    hidden, weight, bias, target = given(11, "bfloat16", device)
    wide = weight.detach().float().requires_grad_()

    def of(hidden, weight, bias, device_type=None):
        with torch.autocast(hidden.device.type, torch.bfloat16, enabled=device_type is not None):
            y = torch_reduce.log_prob_of(hidden, weight, target, bias=bias, chunk=CHUNK)
        return y, *torch.autograd.grad(y.sum(), (hidden, weight, bias))

    mixed = of(hidden, wide, bias)
    promoted = of(hidden.float(), wide, bias.float())
    assert [x.dtype for x in mixed] == [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]
    for ours, theirs in zip(mixed, promoted, strict=True):
        assert_same_bits(ours.detach().cpu(), theirs.detach().to(ours.dtype).cpu())
    narrow = of(hidden.float().detach().requires_grad_(), wide, bias.float().detach().requires_grad_(), device)
    assert [x.dtype for x in narrow] == [torch.float32] * 4
    for ours, theirs in zip(narrow, of(hidden, weight, bias), strict=True):
        assert_same_bits(ours.detach().cpu(), theirs.detach().float().cpu())
    y = torch_reduce.log_prob_of(hidden.double(), weight, target)
    assert y.dtype == torch.float64
    leaf = hidden.detach().float().requires_grad_()
    plain = torch.autograd.grad(torch_reduce.log_prob_of(leaf, wide, target, chunk=CHUNK).sum(), leaf)[0]
    y = torch_reduce.log_prob_of(leaf, wide, target, chunk=CHUNK)
    with torch.autocast(hidden.device.type, torch.bfloat16):  # which the backward pass does not heed
        assert_same_bits(torch.autograd.grad(y.sum(), leaf)[0].cpu(), plain.cpu())


def test_compile(device):
    """One graph, with gradients and dynamic sizes."""
    options = dict(chunk=CHUNK, temperature=0.7, return_entropy=True)
    hidden, weight, _, target = given(9, "float32", device)
    torch._dynamo.reset()
    compiled = torch.compile(torch_reduce.log_prob_of, fullgraph=True, backend="aot_eager", dynamic=True)
    results = []
    for function in (torch_reduce.log_prob_of, compiled):
        found = function(hidden, weight, target, **options)
        results.append((*found, *torch.autograd.grad(found, (hidden, weight), grads_of(hidden, target, True))))
    for ours, wanted in zip(*results, strict=True):
        assert_same_bits(ours.detach().cpu(), wanted.detach().cpu())


def test_errors(device):
    hidden, weight, bias, target = given(5, "float32", device)

    def of(hidden=hidden, weight=weight, target=target, **options):
        return lambda: torch_reduce.log_prob_of(hidden, weight, target, **options)

    one_by_one = torch.vmap(lambda h: torch_reduce.log_prob_of(h, weight, target[0]))

    for kind, message, call in (
        (TypeError, "argument 'weight' must be Tensor", of(weight=[1.0])),
        (TypeError, "argument 'bias' must be Tensor", of(bias=1.0)),
        (TypeError, "argument 'chunk' must be int", of(chunk=1.5)),
        (ValueError, "chunk: expected an int of 64 bits, at least 1, but got 0", of(chunk=0)),
        (RuntimeError, "temperature: expected a number above 0", of(temperature=-1.0)),
        (RuntimeError, r"weight: expected the size \[classes, 24\], but got \[24, 300\]", of(weight=weight.t())),
        (RuntimeError, r"bias: expected the size \[300\], but got \[299\]", of(bias=bias[1:])),
        (RuntimeError, "hidden: expected at least one dim", of(hidden=hidden[0, 0])),
        (RuntimeError, r"target: expected the size \[5\], or \[5, K\]", of(target=target[1:])),
        (RuntimeError, "target: expected int64, int32 or uint8", of(target=target.float())),
        (RuntimeError, "target: expected to be on", of(target=target.to("meta"))),
        (NotImplementedError, "hidden: expected float16, bfloat16", of(hidden=hidden.to(torch.complex64))),
        (NotImplementedError, "weight: expected a strided tensor, but got a sparse one", of(weight=weight.to_sparse())),
        (NotImplementedError, "torch.vmap is not supported", lambda: one_by_one(hidden)),
    ):
        with pytest.raises(kind, match=rf"^log_prob_of\(\): {message}"):
            call()
    if device == "cpu":
        with pytest.raises(IndexError, match=r"^log_prob_of\(\): Target 300 is out of bounds"):
            of(target=target.clone().fill_(300))()
    for leaf in (hidden, weight):
        (grad,) = torch.autograd.grad(of()().sum(), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match=r"log_prob_of\(\): its gradients are of first order"):
            torch.autograd.grad(grad.sum(), leaf)


def test_in_place_of_trl(device):
    """docs/rl.md's function gives what TRL's documentation says of its own: log_softmax, and a gather."""
    function = definitions("docs/rl.md")["selective_log_softmax"]
    for name, several in itertools.product(("float32", "bfloat16", "float64"), (None, 1, 6)):
        logits = random((3, 7, 500), name, 75, device).requires_grad_()
        index = targets((3, 7) if several is None else (3, 7, several), 500, device)
        wide = logits.detach().double().requires_grad_()
        expected = wide.log_softmax(-1).gather(-1, index.view(3, 7, -1)).view(index.shape)
        found = function(logits, index)
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
        ours, theirs = (torch.autograd.grad(y.cos().sum(), x)[0] for y, x in ((found, logits), (expected, wide)))
        close = dict(rtol=1e-2, atol=1e-2) if name == "bfloat16" else dict(rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.double(), theirs, **close)


def test_strides(device):
    """A product's bits may depend on how its operands lie: here, on some CPUs, of columns that are neighbours."""
    hidden, weight = (random(shape, "bfloat16", 76, device) for shape in ((8, 1024), (CLASSES, 1024)))
    target = targets((8,), CLASSES, device)
    wanted = torch_reduce.log_prob_of(hidden, weight, target, chunk=CHUNK)
    columns = torch_reduce.log_prob_of(hidden.t().contiguous().t(), weight, target, chunk=CHUNK)
    assert_same_bits(columns.cpu(), wanted.cpu())


def test_dtype_of_the_sum(device):
    """The matrix's gradient is rounded to its dtype once: a bfloat16 sum would lose all but the first of these."""
    hidden = torch.full((65, 1), 2.0**-8, dtype=dtype_of("bfloat16"), device=device)
    hidden[0] = 1.0
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, device=device, requires_grad=True)
    target = torch.zeros(65, dtype=torch.int64, device=device)
    torch_reduce.log_prob_of(hidden, weight, target, chunk=1).sum().backward()
    assert weight.grad[0].item() == 0.5 + 64 * 2.0**-9
