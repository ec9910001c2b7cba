"""replace() of what adds by index: the bits of an independent model, torch's values, and all that stays torch's."""

import contextlib
import itertools
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

import model
import torch_reduce
from support import assert_same_bits, data, dtype_of, name_of, numpy_of, opinfo, walked
from test_replace import BY_INDEX, decomposing, ours_in, restored  # noqa: F401  (fixtures)

NAMES = sorted(BY_INDEX)
FLOATS = ["float32", "float64", "bfloat16", "float16"]
OTHERS = ["int64", "int32", "int8", "uint8", "bool", "complex64", "complex128"]
aten = torch.ops.aten


def replaced(device):
    return torch_reduce.replace(NAMES, device)


# --- an independent model ---------------------------------------------------------------------------------------------


def added(target, entries, values, alpha=1.0):
    """target[entries] += alpha * values by the contract, of floats in NumPy's stored form.

    Args:
        target, values: tensors of one dim, of a floating dtype.
        entries: the output of each value, as a NumPy array.
    """
    name = name_of(target.dtype)
    wide = np.float64 if name == "float64" else np.float32
    before, values = (model.decode(numpy_of(x)[..., 0], name).astype(wide) for x in (target, values))
    result = before.copy()
    for output in np.unique(entries):
        one = model.ordered_sum(values[None, entries == output])[0]
        result[output] = before[output] + (wide(alpha) * one if alpha != 1 else one)
    return model.encode(result, name)[..., None]


def numbers_of(shape, dim, index, at):
    """The number in `shape` of the output of each element at the places `at`, whose place along dim is index[at]."""
    places = list(at)
    places[dim] = index
    return np.ravel_multi_index(places, shape)


def problem(shape, size, seed, device, dtype=torch.int64, low=0):
    """An index of a shape, in [low, size): half of its entries have one output."""
    rng = np.random.default_rng(seed)
    index = rng.integers(low, size, shape)
    index[rng.random(shape) < 0.5] = size // 2
    return torch.from_numpy(index).to(dtype).to(device)


def variants(device):
    """Names and functions (target, dim, index, source, alpha) -> result of index_add in each of its forms."""

    def in_place(x, dim, index, source, alpha):
        x = x.clone()
        assert x.index_add_(dim, index, source, alpha=alpha) is x
        return x

    def out(x, dim, index, source, alpha):
        out = torch.empty_like(x)
        assert torch.index_add(x, dim, index, source, alpha=alpha, out=out) is out
        return out

    def resized(x, dim, index, source, alpha):
        return torch.index_add(x, dim, index, source, alpha=alpha, out=x.new_empty(0))

    return [lambda x, dim, i, s, a: torch.index_add(x, dim, i, s, alpha=a), in_place, out, resized]


@pytest.mark.parametrize("name", FLOATS)
def test_index_add(name, device):
    """Each output is its element plus alpha times the sum of its entries, rounded once; in all forms and layouts."""
    for (shape, dim, count), alpha, index_type in itertools.product(
        [
            ((7,), 0, 5000),
            ((5, 3), 0, 1200),
            ((3, 6, 2), 1, 700),
            ((2, 9), -1, 900),
            ((9000, 2), 0, 1000),
            ((2, 30), 1, 1),
        ],
        (1, -0.3),
        (torch.int64, torch.int32),
    ):
        source_shape = list(shape)
        source_shape[dim] = count
        x, source = data(shape, name, seed=1, device=device), data(source_shape, name, seed=2, device=device)
        index = problem((count,), shape[dim] - 1, 3, device, index_type)  # the last output has no entries
        at = np.indices(source_shape)
        by = index.cpu().numpy()[at[dim]]
        entries = numbers_of(shape, dim % len(shape), by, at).ravel()
        wanted = added(x.flatten(), entries, source.flatten(), alpha).reshape(*shape, 1)
        strided = source.transpose(0, -1).contiguous().transpose(0, -1)
        with replaced(device):
            for call, given in itertools.product(variants(device), (source, strided)):
                assert_same_bits(call(x, dim, index, given, alpha), wanted)


@pytest.mark.parametrize("rows", [1, 100])
def test_factors_that_overflow(rows, device):
    """torch's own error: by its kernel, and with few entries too."""
    for dtype, alpha in ((torch.int32, 1 << 31), (torch.uint8, 300), (torch.float16, 1e5), (torch.complex64, 1e39)):
        x = torch.ones(rows, dtype=dtype, device=device)
        index = torch.zeros(1, dtype=torch.int64, device=device)
        with replaced(device):
            for work in (
                lambda x=x, index=index, alpha=alpha: torch.index_add(x, 0, index, x[:1], alpha=alpha),
                lambda x=x, index=index, alpha=alpha: x.clone().index_add_(0, index, x[:1], alpha=alpha),
            ):
                with pytest.raises(RuntimeError, match="cannot be converted to type .* without overflow"):
                    work()


@pytest.mark.parametrize("name", FLOATS)
def test_scatter_add(name, device):
    """As index_add, where each element has an index of its own; an index that is smaller than src reads its corner."""
    for shape, dim, index_shape, src_shape in [
        ((7,), 0, (5000,), (5001,)),
        ((5, 4), 0, (900, 4), (900, 4)),
        ((5, 40), 1, (4, 800), (5, 801)),
        ((2, 6, 3), 1, (2, 500, 2), (2, 500, 3)),
        ((9, 4000), 1, (8, 300), (8, 300)),
        ((400, 5, 30), 0, (700, 4, 1), (701, 5, 2)),
    ]:
        x, src = data(shape, name, seed=1, device=device), data(src_shape, name, seed=2, device=device)
        index = problem(index_shape, shape[dim], 3, device)
        expanded = problem((index_shape[dim],), shape[dim], 4, device)
        expanded = expanded.view([-1 if d == dim else 1 for d in range(len(shape))]).expand(index_shape)
        corner = tuple(slice(n) for n in index_shape)
        for given in (index, expanded):
            entries = numbers_of(shape, dim, given.cpu().numpy(), np.indices(index_shape)).ravel()
            wanted = added(x.flatten(), entries, src[corner].flatten()).reshape(*shape, 1)
            with replaced(device):
                assert_same_bits(torch.scatter_add(x, dim, given, src), wanted)
                assert_same_bits(x.clone().scatter_add_(dim, given, src), wanted)
                assert_same_bits(torch.scatter_add(x, dim, given, src, out=torch.empty_like(x)), wanted)


def reduced(target, entries, values, kind, include_self):
    """As added(), for every reduction: of floats in NumPy's stored form."""
    name = name_of(target.dtype)
    wide = np.float64 if name == "float64" else np.float32
    before, values = (model.decode(numpy_of(x)[..., 0], name).astype(wide) for x in (target, values))
    result = before.copy()
    for output in np.unique(entries):
        mine, own = values[None, entries == output], before[output]
        with np.errstate(all="ignore"):
            if kind in ("sum", "mean"):
                one = model.ordered_sum(mine)[0]
                one = own + one if include_self else one
                one = one / wide(mine.size + include_self) if kind == "mean" else one
            elif kind == "prod":
                one = numpy_of(torch_reduce.prod(torch.from_numpy(mine[0])))[0]
                one = own * one if include_self else one
            else:
                largest = np.maximum if kind == "amax" else np.minimum
                one = largest.reduce(np.append(mine[0], own) if include_self else mine[0])
        result[output] = one
    return model.encode(result, name)[..., None]


REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]


@walked("kind", REDUCTIONS)
@pytest.mark.parametrize("name", FLOATS)
def test_reductions(name, kind, device):
    """index_reduce and scatter_reduce in all forms, with few and many entries: the model's bits."""
    for shape, dim, index_shape, include_self in [
        ((7,), 0, (5000,), True),
        ((5, 4), 0, (900, 4), False),
        ((5, 40), 1, (4, 300), True),
        ((9, 4000), 1, (8, 300), False),  # few entries
        ((9000, 2), 0, (300, 2), True),
    ]:
        x = data(shape, name, seed=1, device=device)
        src = data(index_shape, "float32", seed=2, device=device)
        src = (1 + src / src.abs().max() / 16).to(dtype_of(name)) if kind == "prod" else src.to(dtype_of(name))
        index = problem(index_shape, shape[dim] - 1, 3, device)  # the last output has no entries
        entries = numbers_of(shape, dim, index.cpu().numpy(), np.indices(index_shape)).ravel()
        wanted = reduced(x.flatten(), entries, src.flatten(), kind, include_self).reshape(*shape, 1)
        last = dict(include_self=include_self)
        with replaced(device):
            assert_same_bits(torch.scatter_reduce(x, dim, index, src, kind, **last), wanted)
            assert_same_bits(x.clone().scatter_reduce_(dim, index, src, kind, **last), wanted)
            out = torch.empty_like(x)
            assert_same_bits(aten.scatter_reduce.two_out(x, dim, index, src, kind, **last, out=out), wanted)
        if kind == "sum" or index_shape[1:] != shape[1:]:
            continue
        rows = index.reshape(len(index), -1)[:, 0]
        places = rows.cpu().numpy().reshape([-1] + [1] * (len(shape) - 1)) + np.zeros(index_shape, int)
        entries = numbers_of(shape, 0, places, np.indices(index_shape)).ravel()
        wanted = reduced(x.flatten(), entries, src.flatten(), kind, include_self).reshape(*shape, 1)
        with replaced(device):
            for given in (rows, rows.int()):
                assert_same_bits(torch.index_reduce(x, 0, given, src, kind, **last), wanted)
                assert_same_bits(x.clone().index_reduce_(0, given, src, kind, **last), wanted)
                assert_same_bits(torch.index_reduce(x, 0, given, src, kind, **last, out=x.new_empty(0)), wanted)


def mask(shape, seed, device):
    return torch.from_numpy(np.random.default_rng(seed).random(shape) < 0.6).to(device)


# name -> (shape of the target, its indices): several tensors, slices between them, negative ones, masks
INDICES = {
    "one": ((9, 3), lambda i, m: [i((700,), 9)]),
    "negative": ((9, 3), lambda i, m: [i((700,), 9, -9)]),
    "a matrix": ((9, 2), lambda i, m: [i((30, 20), 9)]),
    "the last dim": ((3, 9), lambda i, m: [None, i((700,), 9)]),
    "int32": ((9, 3), lambda i, m: [i((700,), 9).int()]),
    "two": ((5, 4, 3), lambda i, m: [i((600,), 5), i((600,), 4, -4)]),
    "broadcast": ((5, 4, 3), lambda i, m: [i((30, 1), 5), i((20,), 4)]),
    "two in the middle": ((2, 5, 4, 3), lambda i, m: [None, i((600,), 5), i((600,), 4)]),
    "apart": ((5, 2, 4), lambda i, m: [i((600,), 5), None, i((600,), 4)]),
    "apart, at the end": ((2, 5, 3, 4), lambda i, m: [None, i((600,), 5), None, i((600,), 4)]),
    "all": ((5, 4), lambda i, m: [i((900,), 5), i((900,), 4)]),
    "few": ((9000, 2), lambda i, m: [i((600,), 90)]),
    "few of two": ((300, 2, 200), lambda i, m: [i((600,), 3, -3), None, i((600,), 4)]),
    "few in the middle": ((2, 100, 90, 2), lambda i, m: [None, i((40, 1), 4), i((20,), 5)]),
    "a mask": ((60, 3), lambda i, m: [m((60,))]),
    "a mask of two dims": ((6, 50, 3), lambda i, m: [m((6, 50))]),
    "a mask and a tensor": ((40, 7), lambda i, m: [m((40,)), i((1,), 7)]),
    "a mask of one, and a tensor": (
        (3, 7),
        lambda i, m: [m((3,)).logical_and(~m((3,))).index_fill(0, i((1,), 1), True), i((500,), 7)],
    ),
}


def indexed(case, device):
    """The target's shape, the indices, and the number of the output of each element of the result, by NumPy."""
    shape, make = INDICES[case]
    seeds = itertools.count(5)
    indices = make(
        lambda shape, size, low=0: problem(shape, size, next(seeds), device, low=low),
        lambda shape: mask(shape, 4, device),
    )
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return shape, indices, numbers[tuple(slice(None) if i is None else i.cpu().numpy() for i in indices)]


def puts(x, indices, values):
    """index_put with accumulate=True in its forms."""
    yield aten.index_put(x, indices, values, True)
    y = x.clone()
    assert aten.index_put_(y, indices, values, True) is y
    yield y
    yield aten._unsafe_index_put(x, indices, values, True)
    traced = torch.ops.gpureduce._traced_index_put(x, indices, values, True)  # what compiled code decomposes
    assert (traced is None) == any(index is not None and index.dtype == torch.bool for index in indices)
    if traced is not None:
        yield traced
    if None not in indices:
        yield x.clone().index_put_(tuple(indices), values, accumulate=True)


@pytest.mark.parametrize("name", FLOATS)
@walked("case", INDICES)
def test_index_put(case, name, device):
    """One or several tensors, also with dims between them, and masks: entries in the order of the common shape."""
    shape, indices, numbers = indexed(case, device)
    x, values = data(shape, name, seed=1, device=device), data(numbers.shape, name, seed=2, device=device)
    row = data(numbers.shape[-1:], name, seed=3, device=device)  # is broadcast
    turned = x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
    for given in (values, row, row[0]):
        whole = given.expand(numbers.shape).flatten()
        wanted = added(x.flatten(), numbers.ravel(), whole).reshape(*shape, 1)
        with replaced(device):
            for target in (x, turned):
                for found in puts(target, indices, given):
                    assert_same_bits(found, wanted)
                    assert found.stride() == target.stride()


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "float16"])
@walked("padding_idx", [None, 0, 4, -1])
def test_embedding(name, padding_idx, device):
    """The gradient of a row is the sum of its entries, and 0 for the padding."""
    for kind in (torch.int64, torch.int32):
        index, table = problem((40, 30), 8, 1, device, kind), data((9, 3), name, device=device).requires_grad_()
        grad = data((40, 30, 3), name, seed=2, device=device)
        with replaced(device):
            (found,) = torch.autograd.grad(F.embedding(index, table, padding_idx), table, grad)
        rows = np.broadcast_to(index.cpu().numpy()[..., None], grad.shape)
        entries = (rows * 3 + np.arange(3)).ravel()
        keep = rows.ravel() != (padding_idx if padding_idx is None or padding_idx >= 0 else 9 + padding_idx)
        flat = grad.flatten()[torch.from_numpy(keep).to(device)]
        wanted = added(torch.zeros(27, dtype=grad.dtype), entries[keep], flat).reshape(9, 3, 1)
        assert_same_bits(found + 0.0, wanted)


@walked("padding", [None, 0, -2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
@pytest.mark.parametrize("name", FLOATS)
def test_embedding_bag(name, mode, padding, device):
    """Bags and gradients have the bits of our function's; of "max", whose ties torch gives to one row, of its sum."""
    index, table = problem((3000,), 8, 1, device), data((9, 5), name, device=device)
    weights = data((3000,), name, seed=3, device=device) if mode == "weighted" else None
    last = dict(mode="sum" if mode == "weighted" else mode, padding_idx=padding)
    for offsets, ends in ([0, 7, 7, 2000], False), ([0, 7, 7, 2000, 3000], True), (None, False):
        rows = index.view(3, 1000) if offsets is None else index
        own_weights = weights if weights is None else weights.view(rows.shape)
        begins = offsets if offsets is None else torch.tensor(offsets, device=device)
        results = []
        for function in (torch_reduce.embedding_bag, F.embedding_bag):
            leaves = [x.clone().requires_grad_() for x in (table, own_weights) if x is not None]
            more = dict(per_sample_weights=leaves[1] if weights is not None else None, include_last_offset=ends)
            with replaced(device):
                result = function(rows, leaves[0], begins, **last, **more)
                grad = data(tuple(result.shape), name, seed=4, device=device)
                results.append([result.detach(), *torch.autograd.grad(result, leaves, grad)])
                with torch.no_grad():  # a function of its own in torch
                    assert_same_bits(function(rows, leaves[0], begins, **last, **more), result.detach())
        for ours, found in zip(*results, strict=True):
            if mode != "max" or found is results[1][0]:
                assert_same_bits(found + 0.0, ours + 0.0)
        if mode == "max":
            kept = torch.ones_like(index, dtype=torch.bool) if padding is None else index != padding % 9
            bounds = [0, 1000, 2000, 3000] if offsets is None else [*offsets, 3000]
            for column in range(5):  # the first of the largest has it
                places, grads = [], []
                for b in range(len(grad)):
                    mine = torch.arange(bounds[b], bounds[b + 1], device=device)[kept[bounds[b] : bounds[b + 1]]]
                    if len(mine):
                        largest = (table[index[mine], column] == results[1][0][b, column]).nonzero()[0, 0]
                        places.append(index[mine[largest]].item())
                        grads.append(grad[b, column])
                wanted = added(torch.zeros(9, dtype=grad.dtype), np.array(places), torch.stack(grads).cpu())
                assert_same_bits(results[1][1][:, column] + 0.0, wanted)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_sizes_of_bags(mode, device):
    """torch's kernels for GPUs give one size more than there are bags if the offsets have the last one, too."""
    index, grad = problem((900,), 8, 1, device), data((600, 3), "float32", seed=2, device=device)
    lengths = torch.arange(601, device=device) % 2 + 1
    bag = torch.arange(600, device=device).repeat_interleave(lengths[:600])
    largest = torch.stack([index[lengths.cumsum(0)[:600] - lengths[:600]]] * 3, 1)
    found = []
    for sizes in (lengths[:600], lengths):
        with replaced(device):
            more = largest if mode == 2 else largest[:0]
            call = torch.ops.aten._embedding_bag_dense_backward
            found.append(call(grad, index, bag, sizes, more, 9, False, mode, None, -1))
    assert_same_bits(found[0], found[1])
    for column in range(3) if mode == 2 else ():
        wanted = added(torch.zeros(9), largest[:, column].cpu().numpy(), grad[:, column].cpu())
        assert_same_bits(found[1][:, column] + 0.0, wanted)


@pytest.mark.parametrize("name", ["float32", "float64", "bfloat16", "int64"])
def test_bincount(name, device):
    """Sums of weights by their bin: float32 of float32, and else float64, as torch's."""
    for kind, minlength in itertools.product((torch.int64, torch.int32, torch.uint8), (0, 50)):
        index, weights = problem((5000,), 30, 1, device, kind), data((5000,), name, device=device)
        with replaced(device):
            found = torch.bincount(index, weights, minlength)
        wide = weights.to(torch.float32 if name == "float32" else torch.float64)
        zeros = torch.zeros(max(minlength, int(index.max()) + 1), dtype=wide.dtype)
        assert_same_bits(found, added(zeros, index.cpu().numpy(), wide))


def allocated(call):
    """The bytes that a call allocates on the CPU, of all its tensors together."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    return sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages())


def test_few_entries_need_little_memory():
    """What is added in place to few outputs of many takes memory of the entries' size alone."""
    x = torch.zeros(1000, 4000)
    i, j = problem((100,), 1000, 1, "cpu"), problem((100,), 4000, 2, "cpu")
    with replaced("cpu"):
        for call in (
            lambda: x.index_put_((i, j), torch.ones(100), accumulate=True),
            lambda: x.index_add_(0, i[:9], torch.ones(9, 4000)),
            lambda: x.scatter_add_(1, j[:, None], torch.ones(100, 1)),
            lambda: x.index_reduce_(0, i[:9], torch.ones(9, 4000), "mean"),
            lambda: x.scatter_reduce_(1, j[:, None], torch.ones(100, 1), "amax"),
        ):
            call()  # the first one loads code
            assert 0 < allocated(call) < x.nbytes / 8


# --- torch's values ---------------------------------------------------------------------------------------------------

CALLS = {
    "index_add": lambda x, y, i, j: x.index_add(1, i, y, alpha=2),
    "index_add_": lambda x, y, i, j: x.clone().index_add_(1, i, y),
    "scatter_add": lambda x, y, i, j: x.scatter_add(1, j, y),
    "scatter_add_": lambda x, y, i, j: x.clone().scatter_add_(1, j, y),
    **{
        f"{function}, {kind}": lambda x, y, i, j, f=function, k=kind: getattr(x.clone(), f)(
            1, i if f[:5] == "index" else j, y[:, :500], k, include_self=k != "mean"
        )
        for function in ("index_reduce", "index_reduce_", "scatter_reduce", "scatter_reduce_")
        for kind in ("mean", "amax", "amin")
    },
    "scatter_reduce, sum": lambda x, y, i, j: x.scatter_reduce(1, j, y, "sum"),
    "scatter_reduce, prod": lambda x, y, i, j: x.scatter_reduce(1, j[:, :9], y, "prod"),
    "index_put": lambda x, y, i, j: x.index_put((j % 4, j), y, accumulate=True),
    "index_put_": lambda x, y, i, j: x.clone().index_put_(
        (torch.tensor([1], device=x.device), j[0]), y[0], accumulate=True
    ),
}


def numbers(shape, dtype, seed, device):
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator).to(device)
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype).to(device)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape, generator=generator).to(dtype).to(device)


@walked("name", FLOATS + OTHERS)
@pytest.mark.parametrize("call", CALLS)
def test_values(call, name, device):
    """Of every dtype: torch's own results, in float64 for floats; the same dtype, shape and strides."""
    dtype = dtype_of(name)
    complex_too = "reduce" not in call or call.endswith(("sum", "prod"))
    if (dtype.is_complex and not complex_too) or (call.endswith("mean") and dtype == torch.bool):
        return  # torch has none
    x, y = numbers((4, 6), dtype, 1, device), numbers((4, 500), dtype, 2, device)
    i, j = problem((500,), 6, 3, device), problem((4, 500), 6, 4, device)
    # torch's kernels for GPUs do not reduce bools and complex numbers, and ours only add them.
    odd = dtype.is_complex or dtype == torch.bool
    if device == "cuda" and odd and re.search(r"reduce_?, (amax|amin|prod)", call):
        for context in (contextlib.nullcontext(), replaced(device)):
            with context, pytest.raises(NotImplementedError, match="not implemented for"):
                CALLS[call](x, y, i, j)
        return
    with replaced(device):
        found = CALLS[call](x, y, i, j)
    there = "cpu" if "reduce" in call and odd else device
    x, y, i, j = (each.to(there) for each in (x, y, i, j))
    original, found = CALLS[call](x, y, i, j), found.to(there)
    assert (found.dtype, found.stride()) == (original.dtype, original.stride())
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        exact = CALLS[call](x.to(wide), y.to(wide), i, j).to(dtype)
        rtol = {torch.float16: 1e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-4)
        torch.testing.assert_close(found, exact, rtol=rtol, atol=1e-4)
    else:
        assert torch.equal(found, original)


SAMPLED = [
    "index_add",
    "scatter_add",
    "index_put",
    "index_select",
    "gather",
    "take_along_dim",
    "__getitem__",
    "bincount",
]
SAMPLED += ["nn.functional.embedding", "masked_select", "unfold_copy"]  # the last one is torch's
SAMPLED += ["nn.functional.embedding_bag"]
SAMPLED += [f"index_reduce {kind}" for kind in REDUCTIONS if kind != "sum"]
SAMPLED += [f"scatter_reduce {kind}" for kind in REDUCTIONS]


@walked("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64])
@pytest.mark.parametrize("name", SAMPLED)
def test_opinfo_samples(name, dtype, device):
    """On torch's own samples: its dtype, shape and strides, its values, its gradients, and its errors."""
    op = opinfo(*name.split())
    if dtype not in op.supported_dtypes(device):
        return  # torch has none
    if name == "index_reduce mean" and dtype == torch.bfloat16:
        return  # torch rounds after each entry; test_values has float64
    differentiable = op.supports_autograd and dtype == torch.float64

    def run(sample):
        result = op(sample.input, *sample.args, **sample.kwargs)
        leaves = [
            x for x in tree_leaves((sample.input, sample.args)) if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if not leaves:
            return [result.detach()]
        return [result.detach(), *torch.autograd.grad(result.sum(), leaves, allow_unused=True)]

    samples = list(op.sample_inputs(device, dtype, requires_grad=differentiable))
    assert samples
    for sample in samples:
        original = run(sample)
        with replaced(device):
            found = run(sample)
        for ours, own in zip(found, original, strict=True):
            assert ours.stride() == own.stride()
            torch.testing.assert_close(ours, own, equal_nan=True)
    for each in op.error_inputs(device) if op.error_inputs_func else []:
        with replaced(device), pytest.raises(each.error_type, match=each.error_regex):
            op(each.sample_input.input, *each.sample_input.args, **each.sample_input.kwargs)


# --- gradients --------------------------------------------------------------------------------------------------------

# name -> (a function of x of torch's, its gradient by the public operators)
ops = torch.ops.gpureduce
GRADIENTS = {
    "F.embedding": (
        lambda x, i, j: F.embedding(i, x),
        lambda x, i, j, g: torch.autograd.grad(ops.embedding(i, x), x, g)[0],
    ),
    "F.embedding with padding": (
        lambda x, i, j: F.embedding(i, x, padding_idx=3),
        lambda x, i, j, g: torch.autograd.grad(ops.embedding(i, x, 3), x, g)[0],
    ),
    "x[index]": (lambda x, i, j: x[i], lambda x, i, j, g: ops.index_add(torch.zeros_like(x), 0, i, g)),
    "x[:, index]": (
        lambda x, i, j: x[:, i % 5],
        lambda x, i, j, g: ops.index_add(torch.zeros_like(x), 1, i % 5, g),
    ),
    "x[index, index]": (
        lambda x, i, j: x[i, i % 5],
        lambda x, i, j, g: ops.index_add(torch.zeros_like(x).flatten(), 0, i * 5 + i % 5, g).view_as(x),
    ),
    "index_select": (
        lambda x, i, j: x.index_select(0, i),
        lambda x, i, j, g: ops.index_add(torch.zeros_like(x), 0, i, g),
    ),
    "gather": (lambda x, i, j: x.gather(0, j), lambda x, i, j, g: ops.scatter_add(torch.zeros_like(x), 0, j, g)),
    "index_add": (
        lambda x, i, j: x.index_add(0, i, x[i] * 2),
        lambda x, i, j, g: g + ops.index_add(torch.zeros_like(x), 0, i, g[i] * 2),
    ),
    "index_put": (
        lambda x, i, j: x.index_put((i,), x[i] * 2, accumulate=True),
        lambda x, i, j, g: g + ops.index_add(torch.zeros_like(x), 0, i, g[i] * 2),
    ),
}


@walked("name", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("call", GRADIENTS)
def test_gradients(call, name, device):
    """Gradients that autograd makes of what is replaced have the bits of our functions."""
    theirs, ours = GRADIENTS[call]
    x = data((9, 5), name, device=device).requires_grad_()
    i, j = problem((900,), 9, 1, device), problem((900, 5), 9, 2, device)
    result = theirs(x, i, j)
    grad = data(result.shape, name, seed=3, device=device)
    with replaced(device):
        (found,) = torch.autograd.grad(theirs(x, i, j), x, grad)
    assert_same_bits(found, ours(x, i, j, grad).detach())


def test_it_shows(device):
    """Inside, gradients have other bits than torch's own, before and after. (Those may be others in each run.)"""
    x = data((9, 5), "float32", device=device).requires_grad_()
    index, grad = problem((9000,), 9, 1, device), data((9000, 5), "float32", seed=2, device=device)

    def all_of_them():
        calls = [x[index], x.index_select(0, index), F.embedding(index, x), x.gather(0, index[:, None].expand(-1, 5))]
        return [torch.autograd.grad(call, x, grad)[0] for call in calls] + [torch.bincount(index, grad[:, 0])]

    before = all_of_them()
    with replaced(device):
        inside = all_of_them()
    for ours, *others in zip(inside, before, all_of_them(), strict=True):
        assert not any(torch.equal(ours, other) for other in others)


def test_checked_gradients(device):
    """gradcheck and gradgradcheck, with forward mode and batched gradients, pass under the replacement."""
    x = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(6, 3, dtype=torch.float64, device=device, requires_grad=True)
    i, j = problem((6,), 4, 1, device), problem((6, 3), 4, 2, device)
    functions = [
        lambda x, y: x.index_add(0, i, y, alpha=2),
        lambda x, y: x.scatter_add(0, j, y),
        lambda x, y: x.index_put((i,), y, accumulate=True),
        lambda x, y: x[i] * y,
        lambda x, y: x.gather(0, j) * y,
        lambda x, y: x.index_select(0, i) * y,
    ]
    with replaced(device):
        for function in functions:
            assert torch.autograd.gradcheck(function, (x, y), check_forward_ad=True, check_batched_grad=True)
            assert torch.autograd.gradgradcheck(function, (x, y))
        assert torch.autograd.gradcheck(lambda x: F.embedding(i, x), (x,))
        for kind in REDUCTIONS:  # torch has no forward mode of these
            assert torch.autograd.gradcheck(lambda x, y, k=kind: x.scatter_reduce(0, j, y, k), (x, y))
            if kind != "sum":
                assert torch.autograd.gradcheck(lambda x, y, k=kind: x.index_reduce(0, i, y, k), (x, y))


def test_batch_invariance(device):
    """A row's gradient has the same bits alone and among others, and from each memory layout."""
    grad = data((3000, 40), "bfloat16", device=device)
    index = problem((3000,), 6, 1, device)

    def gradient(columns, layout=lambda g: g):
        x = torch.zeros(6, len(columns), dtype=torch.bfloat16, device=device, requires_grad=True)
        return torch.autograd.grad(x[index], x, layout(grad[:, columns]))[0]

    with replaced(device):
        whole = gradient(range(40))
        assert_same_bits(gradient(range(40), lambda g: g.t().contiguous().t()), whole)
        for columns in ([0], [5, 7], list(range(8, 40))):
            assert_same_bits(gradient(columns), whole[:, columns])


def test_vmap(device):
    """Of a batch: what the single calls give."""
    x, y = data((5, 6, 3), "float64", device=device), data((5, 90, 3), "float64", seed=1, device=device)
    i, j = problem((90,), 6, 1, device), problem((5, 90), 6, 2, device)
    with replaced(device):
        for function, rest in [
            (lambda x, y: x.index_add(0, i, y), (y,)),
            (lambda x, y, j: x.index_put((j,), y, accumulate=True), (y, j)),
            (lambda x, y, j: x.scatter_add(0, j[:, None].expand(-1, 3), y), (y, j)),
            (lambda x, y: torch.func.grad(lambda x: (F.embedding(i, x) * y).sum())(x), (y,)),
        ]:
            found = torch.vmap(function)(x, *rest)
            for b in range(5):
                torch.testing.assert_close(found[b], function(x[b], *(each[b] for each in rest)))


# --- what stays torch's -----------------------------------------------------------------------------------------------


def left(d):
    """name -> a call that torch's kernel is to take, or refuses."""
    x, one, i = torch.arange(12.0, device=d).view(3, 4), torch.ones(2, 4, device=d), torch.tensor([1, 1], device=d)
    base = torch.zeros(12, device=d)
    return {
        "assigned": lambda: x.clone().index_put_((i,), one[:1]),
        "assigned by a mask": lambda: x.clone().index_put_((x > 3,), one[0, 0]),
        "no dims": lambda: torch.zeros((), device=d).index_add(0, i[0] - 1, torch.ones((), device=d)),
        "no entries": lambda: x.index_add(0, i[:0], one[:0]),
        "no elements": lambda: x[:, :0].index_add(0, i, one[:, :0]),
        "another dtype": lambda: x.index_add(0, i, one.double()),
        "an index of floats": lambda: x.index_add(0, i.float(), one),
        "a shape that does not fit": lambda: x.index_add(0, i, one[:, :3]),
        "too few entries": lambda: x.index_add(0, i, one[:1]),
        "a matrix as index": lambda: x.index_add(0, i[:, None], one),
        "no such dim": lambda: x.index_add(2, i, one),
        "a float alpha of integers": lambda: x.int().index_add(0, i, one.int(), alpha=0.5),
        "an alpha beyond int32": lambda: x.int().index_add(0, i, one.int(), alpha=2**31),
        "an alpha beyond uint8": lambda: x.byte().index_add_(0, i, one.byte(), alpha=300),
        "an alpha beyond half": lambda: torch.index_add(x.half(), 0, i, one.half(), alpha=1e5, out=x.half()),
        "an alpha beyond float": lambda: x.index_add(0, i, one, alpha=1e39),
        "a complex alpha": lambda: x.index_add(0, i, one, alpha=1j),
        "of float8": lambda: x.to(torch.float8_e5m2).index_add(0, i, one.to(torch.float8_e5m2)),
        "of uint16": lambda: x.to(torch.uint16).index_add(0, i, one.to(torch.uint16)),
        "onto itself": lambda: x.clone().as_strided((2, 4), (0, 1)).index_add_(0, i, one),
        "from itself": lambda: (y := x.clone()).index_add_(0, i, y[:2]),
        "out of another dtype": lambda: torch.index_add(x, 0, i, one, out=x.double()),
        "out that overlaps": lambda: torch.index_add(x, 0, i, one, out=base[:4].expand(3, 4)),
        "scatter of another dtype": lambda: x.scatter_add(0, i[:, None].expand(2, 4), one.double()),
        "scatter beyond src": lambda: x.scatter_add(0, i[:, None].expand(2, 4), one[:, :3]),
        "scatter beyond self": lambda: x[:, :3].scatter_add(0, i[:, None].expand(2, 4), one),
        "scatter of nothing": lambda: x.scatter_add(0, i[:0], one),
        "scatter from itself": lambda: (y := x.clone()).scatter_add_(0, i[:, None].expand(2, 4), y),
        "integers": lambda: x.int().index_reduce(0, i, one.int(), "mean"),
        "complex products": lambda: (x + 1j).scatter_reduce(0, i[:, None].expand(2, 4), one + 1j, "prod"),
        "reduced by what nobody knows": lambda: x.index_reduce(0, i, one, "max"),
        "reduced by a sum": lambda: x.index_reduce(0, i, one, "sum"),
        "another dtype, reduced": lambda: x.scatter_reduce(0, i[:, None].expand(2, 4), one.double(), "mean"),
        "reduced from itself": lambda: (y := x.clone()).index_reduce_(0, i, y[:2], "amax"),
        "put of nothing": lambda: aten.index_put(x, [i[:0]], one[:0], True),
        "put of another dtype": lambda: aten.index_put(x, [i], one.double(), True),
        "put of what does not fit": lambda: aten.index_put(x, [i], one[:, :3], True),
        "put with shapes that do not fit": lambda: aten.index_put(x, [i, torch.tensor([0, 1, 2], device=d)], one, True),
        "put with too many": lambda: aten.index_put(x, [i, i, i], one, True),
        "put by floats": lambda: aten.index_put(x, [i.float()], one, True),
        "put by bytes": lambda: x.clone().index_put_((i.new_tensor([1, 0, 1]).byte(),), one, accumulate=True),
        "put by a mask that does not fit": lambda: aten.index_put(x, [one > 0], one[0, 0], True),
        "put by one bool": lambda: x.clone().index_put_((torch.tensor(True, device=d),), one[0, 0], accumulate=True),
        "put from itself": lambda: (y := x.clone()).index_put_((i,), y[:2], accumulate=True),
        "put onto itself": lambda: base.clone()[:4].expand(2, 4).index_put_((i - 1,), one, accumulate=True).shape,
        "scaled by frequency": lambda: aten.embedding_dense_backward(one, i, 3, -1, True),
        "embedding of complex": lambda: aten.embedding_dense_backward(one + 0j, i, 3, -1, False),
        "embedding of none": lambda: aten.embedding_dense_backward(one[:0], i[:0], 3, -1, False),
        "largest of bags": lambda: F.embedding_bag(i[None], x, mode="max"),
        "bags that begin late": lambda: F.embedding_bag(i, x, i[:1]),
        "bags of nothing": lambda: F.embedding_bag(i[:0], x, i[:0]),
        "bags of float8": lambda: F.embedding_bag(i[None], x.to(torch.float8_e5m2)),
        "counts": lambda: torch.bincount(i),
        "counts of nothing": lambda: torch.bincount(i[:0], one[0, :0]),
        "negative bins": lambda: torch.bincount(-i, one[:, 0]),
        "too few weights": lambda: torch.bincount(i, one[:1, 0]),
        "bins of bool": lambda: torch.bincount(i > 0, one[:, 0]),
        "bins of floats": lambda: torch.bincount(i.float(), one[:, 0]),
        "a negative minlength": lambda: torch.bincount(i, one[:, 0], -1),
    }


def beyond(d):
    """Calls with an index out of range."""
    x, one = torch.zeros(3, 4, device=d), torch.ones(2, 4, device=d)
    two, row = torch.tensor([2, 1], device=d), one[:, 0]
    for bad in (3, -1, -4, 2**40):
        i = torch.tensor([1, bad], device=d)
        matrix = i[:, None].expand(2, 4)
        yield lambda i=i: x.clone().index_add_(0, i, one)
        yield lambda i=i: x.index_add(0, i, one)
        yield lambda i=i: x.clone().index_reduce_(0, i, one, "mean")
        yield lambda matrix=matrix: x.scatter_reduce(0, matrix, one, "amax")
        yield lambda matrix=matrix: x.scatter_add(0, matrix, one)
        yield lambda matrix=matrix: x.scatter_add(0, matrix.contiguous(), one)
        yield lambda i=i: aten.embedding_dense_backward(one, i, 3, -1, False)
        yield lambda i=i: F.embedding_bag(i[None], x)
    for bad in (3, -4, 2**40):  # of 3 rows
        i = torch.tensor([1, bad], device=d)
        yield lambda i=i: aten.index_put(x, [i], one, True)
        yield lambda i=i: aten.index_put(x, [i, two], row, True)
        yield lambda i=i: aten._index_put_impl_(x.clone(), [i, two], row, True, True)
    for bad in (4, -5, 2**40):  # of 4 columns
        i = torch.tensor([1, bad], device=d)
        yield lambda i=i: aten.index_put(x, [None, i], one[0, 0], True)
        yield lambda i=i: aten.index_put(x, [two, i], row, True)


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error), str(error).split("This could be because")[0]  # what follows lists all kernels, ours too


def check_left(call, device):
    with warnings.catch_warnings(record=True) as before:
        warnings.simplefilter("always")
        original = outcome(call)
    with replaced(device), warnings.catch_warnings(record=True) as inside:
        warnings.simplefilter("always")
        found = outcome(call)
    if isinstance(original, torch.Tensor):
        assert_same_bits(found, original)
        assert found.stride() == original.stride()
    else:
        assert found == original
    assert [str(each.message) for each in inside] == [str(each.message) for each in before]


@pytest.fixture
def all_warnings():
    """torch gives each of its warnings every time, and not only to the first test that meets it."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.parametrize("call", left("cpu"))
def test_left(call, device, all_warnings):
    """What ours do not take is torch's: results, errors and warnings."""
    check_left(left(device)[call], device)


def test_out_of_range(all_warnings):
    """On the CPU: torch's errors. (On a GPU it is an assertion, which ends the process.)"""
    for call in beyond("cpu"):
        check_left(call, "cpu")


def test_out_of_range_on_a_gpu(cuda):
    """An assertion of the device, as torch's own functions have."""
    for call in ("x.index_add_(0, i, x[:2].clone())", "x.index_put_((i, i.flip(0)), x[:2, 0].clone(), True)"):
        code = "import torch, torch_reduce\nx = torch.zeros(3, 4, device='cuda')\n"
        code += "i = torch.tensor([1, 4], device='cuda')\n"
        code += f"with torch_reduce.replace():\n    {call}\n    torch.cuda.synchronize()"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert result.returncode != 0 and "assert" in result.stderr


def test_values_of_the_host(cuda):
    """Indices, masks and a value on the CPU, as torch's kernel takes them."""
    x = data((40, 3), "float32", device=cuda)
    index, values = problem((500,), 40, 1, "cpu"), data((500, 3), "float32", seed=1, device=cuda)
    with replaced(cuda):
        wanted = x.index_put((index.cuda(),), values, accumulate=True)
        assert_same_bits(x.index_put((index,), values, accumulate=True), wanted)
        one = x.index_put((index.cuda(),), torch.tensor(2.0, device=cuda), accumulate=True)
        assert_same_bits(x.index_put((index,), torch.tensor(2.0), accumulate=True), one)
        some = mask((40,), 1, "cpu")
        assert_same_bits(
            x.index_put((some,), x[0], accumulate=True), x.index_put((some.cuda(),), x[0], accumulate=True)
        )


# --- modes ------------------------------------------------------------------------------------------------------------


def test_deterministic_algorithms(cuda):
    """Where torch refuses a sum by index, ours does not; and where it does not, ours have the same bits as without."""
    index, weights = problem((5000,), 30, 1, cuda), data((5000,), "float32", device=cuda)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            torch.bincount(index, weights)
        with replaced(cuda):
            inside = torch.bincount(index, weights), weights.new_zeros(30).scatter_add(0, index, weights)
    finally:
        torch.use_deterministic_algorithms(False)
    with replaced(cuda):
        again = torch.bincount(index, weights), weights.new_zeros(30).scatter_add(0, index, weights)
    assert_same_bits(inside, again)


def test_deterministic_algorithms_change_no_bit(device):
    """torch's switch to other kernels is not reached."""
    x, source = data((6, 5), "float32", device=device), data((900, 5), "float32", seed=1, device=device)
    index = problem((900,), 6, 1, device)

    def run():
        return (
            x.index_add(0, index, source),
            x.scatter_add(0, index[:, None].expand(-1, 5), source),
            x.index_put((index,), source, accumulate=True),
            x.index_reduce(0, index, source, "mean"),
            x.scatter_reduce(0, index[:, None].expand(-1, 5), source, "sum"),
        )

    with replaced(device):
        wanted = run()
        torch.use_deterministic_algorithms(True)
        try:
            assert_same_bits(run(), wanted)
        finally:
            torch.use_deterministic_algorithms(False)


def test_writes_are_counted(device):
    """An in-place call counts as one change."""
    x, i = torch.zeros(3, 4, device=device), torch.tensor([1, 1], device=device)
    with replaced(device):
        for n, call in enumerate(
            [
                lambda: x.index_add_(0, i, torch.ones(2, 4, device=device)),
                lambda: x.scatter_add_(0, i[:, None], torch.ones(2, 1, device=device)),
                lambda: x.index_put_((i,), torch.ones(4, device=device), accumulate=True),
            ],
            1,
        ):
            assert call() is x and x._version == n
    assert x[1].tolist() == [6.0, 4.0, 4.0, 4.0]


COMPILED = {
    "index_add": lambda x, i, g: x.index_add(0, i, g),
    "index_select": lambda x, i, g: x.index_select(0, i) * g,
    "scatter_add": lambda x, i, g: x.scatter_add(0, i[:, None].expand(-1, 5), g),
    "gather": lambda x, i, g: x.gather(0, i[:, None] % (i[:, None] + torch.arange(1, 6, device=x.device))) * g,
    "index_reduce": lambda x, i, g: x.index_reduce(0, i, g, "mean", include_self=False),
    "index_reduce of few": lambda x, i, g: x.repeat(500, 1).index_reduce(0, i[:9] * 400, g[:9], "prod"),
    "scatter_reduce": lambda x, i, g: x.scatter_reduce(0, i[:, None].expand(-1, 5), g, "amax"),
    "embedding_bag": lambda x, i, g: F.embedding_bag(i.view(3, 300), x, mode="mean", padding_idx=2),
    "embedding_bag, weighted": lambda x, i, g: F.embedding_bag(
        i.view(3, 300), x, mode="sum", per_sample_weights=g[:, 0].reshape(3, 300)
    ),
    "index_put": lambda x, i, g: x.index_put((i,), g, accumulate=True),
    "index_put of columns": lambda x, i, g: x.t().contiguous().t().index_put((i,), g, accumulate=True),
    "index_put apart": lambda x, i, g: aten.index_put(x[:, None], [i, None, i % 5], g[:, :1], True),
    "index_put of few": lambda x, i, g: x.repeat(500, 1).index_put((i[:9] * 400,), g[:9], accumulate=True),
    "x[index]": lambda x, i, g: x[i] * g,
    "x[index, index]": lambda x, i, g: x[i, i % 5][:, None] * g,
    "embedding": lambda x, i, g: F.embedding(i, x, padding_idx=2) * g,
}


@pytest.mark.parametrize("call", COMPILED)
def test_compiled(call, decomposing, device):  # noqa: F811
    """Compiled, forwards and backwards: the bits of eager mode inside, and torch's operators and strides before.

    From torch.compile, gradients may have other strides than in eager mode: in torch 2.15, gradients of columns do.
    """
    x = data((9, 5), "float32", device=device).requires_grad_()
    index, g = problem((900,), 9, 1, device), data((900, 5), "float32", seed=2, device=device)

    def run(function):
        result = function(x, index, g)
        return result.detach(), torch.autograd.grad(result, x, data(result.shape, "float32", seed=3, device=device))[0]

    compiled = torch.compile(COMPILED[call], fullgraph=True, backend=decomposing)
    plain = run(compiled)
    before = list(itertools.chain(*decomposing.seen))
    with replaced(device):
        for found, wanted, own in zip(run(compiled), run(COMPILED[call]), plain, strict=True):
            assert_same_bits(found, wanted)
            assert found.stride() == own.stride()
    inside = list(itertools.chain(*decomposing.seen))[len(before) :]
    assert not ours_in(before) and ours_in(inside), inside


def test_compiled_bincount(decomposing, device):  # noqa: F811
    """Its size depends on data, so that compiled code calls torch's operator: ours inside, and torch's own outside."""
    index, weights = problem((9000,), 30, 1, device), data((9000,), "float32", device=device)
    compiled = torch.compile(torch.bincount, fullgraph=True, backend=decomposing)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        before = compiled(index, weights)
        with replaced(device):
            assert_same_bits(compiled(index, weights), torch.bincount(index, weights))
            assert not torch.equal(compiled(index, weights), before)


def test_inductor(device):
    """Inductor's code has eager mode's bits."""
    x = data((9, 5), "float32", device=device).requires_grad_()
    index, g = problem((900,), 9, 1, device), data((900, 5), "float32", seed=2, device=device)

    def run(function):
        return torch.autograd.grad(function(x, index), x, g)[0]

    functions = [lambda x, i: x[i], lambda x, i: F.embedding(i, x)]
    for function in functions:
        compiled = torch.compile(function, fullgraph=True)
        with replaced(device):
            assert_same_bits(run(compiled), run(function))


def test_graph(cuda):
    """A CUDA graph captures them: nothing waits for the host."""
    x, index = data((9, 5), "float32", device=cuda), problem((900,), 9, 1, cuda)
    source = data((900, 5), "float32", seed=1, device=cuda)

    def run():
        return (
            x.index_add(0, index, source),
            x.scatter_add(0, index[:, None].expand(-1, 5), source),
            x.index_put((index,), source, accumulate=True),
            aten.embedding_dense_backward(source, index, 9, 2, False),
            F.embedding_bag(index.view(9, 100), x, padding_idx=2),
        )

    with replaced(cuda):
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run()
        source.copy_(data((900, 5), "float32", seed=9))
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(found, run())
