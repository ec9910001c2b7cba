"""The sort by index: plans, values that are sorted themselves, and values in the order of a plan."""

import dataclasses
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

import model
import torch_reduce
from support import assert_same_bits, data, numpy_of
from test_large import HUGE, needs
from test_meta import opcheck
from torch_reduce import IndexPlan, index_plan

OPS = torch.ops.gpureduce
INT32, INT64 = torch.int32, torch.int64
FLOATS = ["float32", "float16", "bfloat16"]


# --- problems and what NumPy makes of them ----------------------------------------------------------------------------


def index_of(kind, n, size, seed=0):
    """An index of n entries below `size`, as a NumPy array."""
    rng = np.random.default_rng([n, size, seed])
    found = rng.integers(0, size, n)
    if kind == "hot":  # most entries have one output
        found[rng.random(n) < 0.9] = size // 3
    elif kind == "few":  # few outputs have entries, the last one among them
        found = rng.choice([size // 5, size // 2, size - 1], n)
    elif kind == "skewed":
        found = np.minimum((size * rng.random(n) ** 8).astype(np.int64), size - 1)
    elif kind == "descending":
        found = np.sort(found)[::-1].copy()
    return found


KINDS = ["random", "hot", "few", "skewed", "descending"]
# On both sides of what a thread, a warp, a block, one block's sort and one thread of the CPU take; bits of keys around
# 8, 16 and 24; sizes with more counters than entries.
PROBLEMS = [(1, 1), (1, 5), (2, 2), (31, 3), (33, 1), (257, 256), (300, 257), (1000, 1), (1025, 1023), (3000, 1024)]
PROBLEMS += [(5000, 1025), (4097, 65_536), (9000, 65_537), (100_000, 10), (70_000, 69_000), (200_003, 1000)]
PROBLEMS += [(3, 2_000_000), (50_000, (1 << 24) + 1), (1_000_003, 77_777), (2_000_000, 2)]


def tensors_of(index, device, dtype=INT64):
    return torch.from_numpy(index).to(dtype).to(device)


def sorted_by(index, size):
    """The plan of a NumPy index, as NumPy makes it."""
    order = np.argsort(index, kind="stable")
    return order, np.searchsorted(index[order], np.arange(size + 1))


def check_numbers(found, wanted, dtype=INT32):
    """A contiguous tensor of this dtype and these integers."""
    assert found.dtype == dtype and found.is_contiguous() and found.shape == wanted.shape
    assert np.array_equal(found.cpu().numpy(), wanted)


def check_plan(found, index, size):
    for ours, wanted in zip(found, sorted_by(index, size), strict=True):
        check_numbers(ours, wanted)


def numbers(x):
    """A tensor's exact values, as a NumPy array of float32."""
    return model.decode(numpy_of(x)[..., 0], str(x.dtype).removeprefix("torch.")).astype(np.float32)


def products(values, weight):
    """What is sorted: values, or their products with weights, each rounded once to float32."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return numbers(values) if weight is None else numbers(values) * numbers(weight)


def stored(x):
    """A NumPy array of float32 as the model stores elements."""
    return model.encode(x, "float32")[..., None]


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, size", PROBLEMS)
def test_plan(n, size, device):
    """NumPy's stable sort, of int64 and int32 in turns."""
    for k, kind in enumerate(KINDS, PROBLEMS.index((n, size))):
        index = index_of(kind, n, size)
        check_plan(OPS._index_plan(tensors_of(index, device, (INT64, INT32)[k % 2]), size), index, size)


def test_strides(device):
    """Any stride and offset, and one entry that is repeated."""
    index = index_of("skewed", 9000, 300)
    for dtype in (INT64, INT32):
        x = tensors_of(index, device, dtype)
        for view, own in ((x[::3], index[::3]), (x[5:], index[5:]), (x.view(90, 100)[:, 7], index[7::100])):
            check_plan(OPS._index_plan(view, 300), own, 300)
        check_plan(OPS._index_plan(x[:1].expand(4000), 300), index[:1].repeat(4000), 300)
    negative = torch._neg_view(-tensors_of(index, device))
    check_plan(OPS._index_plan(negative, 300), index, 300)


@pytest.mark.parametrize("dtype", [INT64, INT32])
def test_nothing_to_sort(dtype, device):
    """No entries, no outputs, or neither."""
    none = torch.empty(0, dtype=dtype, device=device)
    for size in (0, 1, 3000):
        order, offsets = OPS._index_plan(none, size)
        check_numbers(order, np.empty(0))
        check_numbers(offsets, np.zeros(size + 1))
        values, offsets = OPS._index_sort_values(torch.ones(0, device=device), none, size)
        assert values.dtype == torch.float32 and values.shape == (0,)
        check_numbers(offsets, np.zeros(size + 1))
    assert OPS._gather_values(torch.ones(0, device=device), none).shape == (0,)
    for call in (
        lambda: OPS._index_plan(torch.zeros(2, dtype=dtype, device=device), 0),
        lambda: OPS._index_sort_values(torch.ones(2, device=device), torch.zeros(2, dtype=dtype, device=device), 0),
        lambda: OPS._gather_values(torch.ones(0, device=device), torch.zeros(2, dtype=dtype, device=device)),
    ):
        with pytest.raises(IndexError, match="expected no entries"):
            call()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads(threads, set_threads):
    """On the CPU the plan is the same; so it is if the last thread has fewer entries than others, or none."""
    set_threads(threads)
    for n, size in ((200_001, 50), (1_000_003, 300_000), (70_000, 69_999), (300_000, 10_000_000)):
        index = index_of("hot", n, size, seed=threads)
        check_plan(OPS._index_plan(tensors_of(index, "cpu"), size), index, size)


def test_many_entries(device):
    """With 2^31 entries or more, results are int64."""
    needs(device, 22 if device == "cpu" else 50)  # on the CPU: values and keys, 4 bytes each
    n = HUGE + 3
    index, values = (torch.full((1,), x, device=device).expand(n) for x in (1, 2.5))
    found, offsets = OPS._index_sort_values(values, index, 3)
    check_numbers(offsets, np.array([0, 0, n, n]), INT64)
    assert found.shape == (n,) and all(part.eq(2.5).all() for part in found.split(1 << 26))


def test_plan_of_many_entries_on_a_gpu(cuda):
    """There the plan is put together from those of parts."""
    needs(cuda, 60)
    n = HUGE + 7
    index = torch.arange(n, device=cuda).remainder_(3).to(INT32)  # int32 cannot count to n
    order, offsets = OPS._index_plan(index, 4)
    first = [0, (n + 2) // 3, (n + 2) // 3 + (n + 1) // 3, n, n]
    check_numbers(offsets, np.array(first), INT64)
    assert order.dtype == INT64 and order.shape == (n,)
    for k in range(3):
        for j, part in enumerate(order[first[k] : first[k + 1]].split(1 << 26)):
            begin = k + 3 * (j << 26)
            assert part.equal(torch.arange(begin, begin + 3 * len(part), 3, device=cuda))


def test_many_outputs(device):
    """Keys of more than 32 bits; int32 offsets still count the entries."""
    needs(device, 36 if device == "cpu" else 60)
    size = (1 << 32) + 2
    index = torch.tensor([size - 1, 5, 1 << 32, 5, size - 1], device=device)
    order, offsets = OPS._index_plan(index, size)
    check_numbers(order, np.array([1, 3, 2, 0, 4]))
    assert offsets.dtype == INT32 and offsets.shape == (size + 1,)
    assert offsets[:7].tolist() == [0] * 6 + [2] and offsets[-4:].tolist() == [2, 2, 3, 5][-4:]


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [None, *FLOATS])
@pytest.mark.parametrize("name", FLOATS)
def test_values(name, weight, device):
    """Sorted values are those of the plan's order, weighted or not; and so are gathered ones."""
    for (n, size), kind in zip([(1, 1), (300, 7), (5000, 70_000), (150_000, 33)], KINDS, strict=False):
        index = index_of(kind, n, size)
        values, w = data((n,), name, seed=1, device=device), weight and data((n,), weight, seed=2, device=device)
        order, offsets = sorted_by(index, size)
        wanted = stored(products(values, w)[order])
        found, places = OPS._index_sort_values(values, tensors_of(index, device), size, w)
        assert_same_bits(found, wanted, f"{n} {size}")
        check_numbers(places, offsets)
        for dtype in (INT32, INT64):
            assert_same_bits(OPS._gather_values(values, tensors_of(order, device, dtype), w), wanted, f"{n} {size}")


@pytest.mark.parametrize("name", FLOATS)
def test_values_of_any_stride(name, device):
    """Strided values, weights, index and order; one value for all."""
    index = index_of("skewed", 3000, 50)
    many, weights = data((9000,), name, seed=3, device=device), data((6001,), "float32", seed=4, device=device)
    order, _ = sorted_by(index, 50)
    x, i = tensors_of(index.repeat(2), device)[::2], tensors_of(order.repeat(3), device, INT32)[::3]
    for values, weight in ((many[::3], weights[1::2]), (many[:1].expand(3000), weights[:3000]), (many[6000:], None)):
        own = products(values.contiguous(), weight if weight is None else weight.contiguous())
        half = index.repeat(2)[::2]
        assert_same_bits(OPS._index_sort_values(values, x, 50, weight)[0], stored(own[sorted_by(half, 50)[0]]))
        assert_same_bits(OPS._gather_values(values, i, weight), stored(own[order.repeat(3)[::3]]))
    few = tensors_of(np.array([2, 2, 0]), device)  # an order need not have each position
    assert_same_bits(OPS._gather_values(many, few), stored(numbers(many)[[2, 2, 0]]))


def test_special_values(device):
    """Zeros keep their sign, subnormals stay, and infinities and NaN travel."""
    inf, nan = float("inf"), float("nan")
    values = torch.tensor([-0.0, 0.0, 1e-45, inf, -inf, nan, 3e38, 1e-30], device=device)
    weight = torch.tensor([1.0, -1.0, 0.6, 0.0, 2.0, 1.0, 10.0, 1e-12], device=device)
    index = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0], device=device)
    order = [1, 3, 5, 7, 0, 2, 4, 6]
    for w in (None, weight):
        wanted = stored(products(values, w)[order])
        assert_same_bits(OPS._index_sort_values(values, index, 2, w)[0], wanted)
        assert_same_bits(OPS._gather_values(values, torch.tensor(order, device=device), w), wanted)


def test_flush_denormal_changes_nothing():
    """torch.set_flush_denormal(True) does not reach the CPU's products."""
    values, weight = torch.full((5,), 1e-30), torch.full((5,), 1e-12)
    index = torch.tensor([0, 1, 0, 1, 0])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = OPS._index_sort_values(values, index, 2, weight)[0], OPS._gather_values(values, index, weight)
    finally:
        torch.set_flush_denormal(False)
    for one in found:
        assert_same_bits(one, stored(products(values, weight)))


# --- IndexPlan --------------------------------------------------------------------------------------------------------


def test_index_plan(device):
    """An index of any shape, flattened; what the plan has; the sums that it serves."""
    index = index_of("random", 600, 11)
    x = tensors_of(index, device)
    for view in (x, x.view(20, 30), x.view(2, 10, 30), x.view(20, 30).t().contiguous().t(), x[:1].view(())):
        plan = index_plan(view, 11)
        own = index if view.dim() else index[:1]
        check_plan((plan.order, plan.offsets), own, 11)
        check_numbers(plan.index, own, INT64)
        assert plan.size == 11
    plan = index_plan(x.view(20, 30), size=11)
    assert repr(plan) == f"IndexPlan(entries=600, size=11, device='{x.device}')"
    values = data((600, 3), "float32", device=device)
    found = torch_reduce.segment_sum(values[plan.order], plan.offsets)
    for k in range(11):
        assert_same_bits(found[k], torch_reduce.sum(values[tensors_of(np.flatnonzero(index == k), device)], 0))


def test_plans_are_values(device):
    """A plan cannot be changed, and is a tree of its tensors; it can be pickled."""
    plan = index_plan(torch.tensor([2, 0, 2], device=device), 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.order = plan.index
    leaves, spec = tree_flatten(plan)
    assert [leaf.tolist() for leaf in leaves] == [[2, 0, 2], [1, 0, 2], [0, 1, 1, 3, 3]]
    assert tree_unflatten(leaves, spec).size == 4
    moved = tree_map(torch.Tensor.cpu, plan)
    assert isinstance(moved, IndexPlan) and moved.order.device.type == "cpu"
    assert pickle.loads(pickle.dumps(plan)).order.tolist() == [1, 0, 2]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_errors(device):
    """Wrong arguments are refused at once, with torch's classes, and name the argument."""
    index, values = torch.tensor([0, 1], device=device), torch.ones(2, device=device)
    for wrong, message in (
        ((index.float(), 3), r"^index_plan\(\): index: .*int64 or int32, but got Float"),
        ((index.byte(), 3), r"^index_plan\(\): index: .*but got Byte"),
        ((index, -1), r"^index_plan\(\): size: .*, but got -1"),
    ):
        for call in (index_plan, OPS._index_plan):
            with pytest.raises(RuntimeError, match=message):
                call(*wrong)
        with pytest.raises(RuntimeError, match=message.replace("index_plan", "index_sort_values")):
            OPS._index_sort_values(values, *wrong)
    with pytest.raises(RuntimeError, match=r"index: .* one dim, but got 2"):
        OPS._index_plan(index[None], 3)
    with pytest.raises(TypeError, match=r"^index_plan\(\): argument 'index' must be Tensor, not list"):
        index_plan([0, 1], 3)
    with pytest.raises(TypeError, match=r"^index_plan\(\): argument 'size' must be int, not float"):
        index_plan(index, 3.0)
    with pytest.raises(NotImplementedError, match=r"^index_plan\(\): sparse"):
        OPS._index_plan(index.to_sparse(), 3)
    for argument, wrong, kind, message in (
        ("values", values.double(), NotImplementedError, "but got Double"),
        ("values", values[None], RuntimeError, "one dim, but got 2"),
        ("values", values[:1], RuntimeError, "expected 2 elements as index has, but got 1"),
        ("weight", values.int(), NotImplementedError, "but got Int"),
        ("weight", values[None], RuntimeError, "one dim, but got 2"),
        ("weight", values.to("meta"), RuntimeError, "same device, but .* is on .* and weight is on meta"),
        ("weight", values[:1], RuntimeError, "expected 2 elements as values has, but got 1"),
    ):
        given = dict(values=values, index=index, size=3, weight=values) | {argument: wrong}
        with pytest.raises(kind, match=rf"^index_sort_values\(\): {argument}: .*{message}"):
            OPS._index_sort_values(**given)
        if "as index" in message:
            continue  # an order has as many entries as it likes
        given = dict(values=values, order=index, weight=values) | {argument: wrong}
        with pytest.raises(kind, match=rf"^gather_values\(\): {argument}: .*{message}"):
            OPS._gather_values(**given)
    with pytest.raises(RuntimeError, match=r"same device, but values is on meta and index is on"):
        OPS._index_sort_values(values.to("meta"), index, 3)
    with pytest.raises(RuntimeError, match=r"order: .*int64 or int32"):
        OPS._gather_values(values, values)


@pytest.mark.parametrize("n", [7, 400_000])
@pytest.mark.parametrize("bad", [-1, 5, 1 << 31, -(1 << 40)])
def test_out_of_range_on_the_cpu(bad, n):
    """The error names the first entry that is out of range, on any number of threads."""
    index = torch.arange(n) % 5
    index[n // 2] = bad
    index[n - 1] = 99
    message = rf"expected each in \[0, 5\), but entry {n // 2} is {bad}$"
    for dtype in (INT64, INT32) if abs(bad) < 1 << 30 else (INT64,):
        own = index.to(dtype)
        with pytest.raises(IndexError, match=rf"^index_plan\(\): index: {message}"):
            index_plan(own, 5)
        with pytest.raises(IndexError, match=rf"^index_sort_values\(\): index: {message}"):
            OPS._index_sort_values(torch.ones(n), own, 5)
        with pytest.raises(IndexError, match=rf"^gather_values\(\): order: {message}"):
            OPS._gather_values(torch.ones(5), own)


CALL = """
import torch, torch_reduce
O = torch.ops.gpureduce
index, values = {index}, torch.ones({n}, device="cuda")
try:
    {call}
    torch.cuda.synchronize()
except RuntimeError as error:
    assert "device-side assert" in str(error), error
    raise SystemExit(7)
"""


@pytest.mark.parametrize(
    "index, n, fails",
    [
        ("torch.tensor([0, 4, 2], device='cuda')", 3, False),
        ("torch.tensor([0, 5, 2], device='cuda')", 3, True),
        ("torch.tensor([0, -1, 2], device='cuda', dtype=torch.int32)", 3, True),
        ("torch.tensor([0, 1 << 40, 2], device='cuda')", 3, True),
        ("torch.tensor([0, -(1 << 62), 2], device='cuda')", 3, True),
        ("torch.arange(1_000_000, device='cuda') % 5", 1_000_000, False),
        ("torch.arange(1_000_000, device='cuda') // 199_999", 1_000_000, True),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        "O._index_plan(index, 5)",
        "O._index_sort_values(values, index, 5)",
        "O._gather_values(values[:1].expand(5), index)",
    ],
)
def test_out_of_range_on_a_gpu(call, index, n, fails, cuda):
    """On a GPU the kernel stops with an assertion that says what is wrong; and never without one."""
    path = ":".join(filter(None, sys.path))
    command = [sys.executable, "-c", CALL.format(index=index, n=n, call=call)]
    result = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)
    assert result.returncode == (7 if fails else 0), result.stderr.decode()[-2000:]
    assert ("index: each must be in [0, size)" in (result.stdout + result.stderr).decode()) == fails


def test_no_derivatives(device):
    """Values that need a gradient get an error in the backward pass, not a wrong gradient."""
    values, index = torch.ones(3, device=device, requires_grad=True), torch.tensor([1, 0, 1], device=device)
    for found in (OPS._index_sort_values(values, index, 2)[0], OPS._gather_values(values, index)):
        with pytest.raises(RuntimeError, match="derivative for gpureduce::.* is not implemented"):
            found.sum().backward()


# --- without data -----------------------------------------------------------------------------------------------------


def test_meta():
    """Shapes, dtypes and errors of meta tensors."""
    index, values = torch.empty(7, dtype=INT32, device="meta"), torch.empty(7, device="meta", dtype=torch.float16)
    order, offsets = OPS._index_plan(index, 20)
    assert (order.shape, offsets.shape, order.dtype, offsets.dtype) == ((7,), (21,), INT32, INT32)
    found, offsets = OPS._index_sort_values(values, index, 20, values)
    assert (found.shape, found.dtype, offsets.shape) == ((7,), torch.float32, (21,))
    assert OPS._gather_values(values, index[:3]).shape == (3,)
    many = torch.empty(1, dtype=INT64, device="meta").expand(HUGE)
    assert [x.dtype for x in OPS._index_plan(many, 5)] == [INT64, INT64]
    assert [x.dtype for x in OPS._index_plan(many[1:], 5)] == [INT32, INT32]
    plan = index_plan(torch.empty(2, 3, dtype=INT64, device="meta"), 4)
    assert (plan.order.shape, plan.size, plan.order.device.type) == ((6,), 4, "meta")
    with pytest.raises(RuntimeError, match="int64 or int32"):
        OPS._index_plan(values, 3)
    with pytest.raises(RuntimeError, match="from 0 to"):
        OPS._index_plan(index, -3)


@pytest.mark.parametrize("weight", [None, "float16"])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_opcheck(n, weight, device):
    """torch.library.opcheck: schema, fake kernel, and tracing through AOTAutograd."""
    index = torch.tensor([3, 0, 3, 1, 0], device=device)[:n]
    values, w = data((n,), "float32", device=device), weight and data((n,), weight, device=device)
    for dtype in (INT64, INT32):
        opcheck(OPS._index_plan.default, (index.to(dtype), 4))
        opcheck(OPS._index_sort_values.default, (values, index.to(dtype), 4, w))
    opcheck(OPS._gather_values.default, (values, torch.arange(n, device=device).flip(0), w))


def test_compile(device):
    """One graph for all numbers of entries and outputs; plans go in and out."""
    torch._dynamo.reset()

    def make(index, size, values):
        plan = index_plan(index + 1, size)
        return plan, OPS._index_sort_values(values, plan.index, size), OPS._gather_values(values, plan.order, values)

    def use(plan, values):
        return torch_reduce.segment_sum(values[plan.order], plan.offsets), plan.size + 1

    make_compiled, use_compiled = (
        torch.compile(f, fullgraph=True, dynamic=True, backend="aot_eager") for f in (make, use)
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n, size in ((50, 4), (9000, 300)):
            index = index_of("skewed", n, size - 1)
            x, values = tensors_of(index, device), data((n,), "float32", device=device)
            found, wanted = (f(x, size, values) for f in (make_compiled, make))
            assert isinstance(found[0], IndexPlan) and found[0].size == size
            check_plan((found[0].order, found[0].offsets), index + 1, size)
            assert_same_bits(found[2], wanted[2])
            assert_same_bits(found[1][0], wanted[1][0])
            sums, count = use_compiled(found[0], values)
            assert_same_bits(sums, use(wanted[0], values)[0])
            assert count == size + 1


def test_export(device):
    """torch.export of a module that takes a plan and makes one, with dynamic sizes."""

    class Module(torch.nn.Module):
        def forward(self, plan, values):
            again = index_plan(plan.index.view(-1), plan.size)
            return again, torch_reduce.segment_sum(values[plan.order], again.offsets)

    def inputs(n, size):
        index = index_of("hot", n, size)
        return index_plan(tensors_of(index, device), size), data((n,), "float32", device=device)

    n, size = torch.export.Dim("n", min=2, max=100_000), torch.export.Dim("size", min=3, max=1000)
    shapes = ([{0: n}, {0: n}, {0: size}], {0: n})
    program = torch.export.export(Module(), inputs(20, 7), dynamic_shapes=shapes)
    given = inputs(900, 40)
    again, sums = program.module()(*given)
    assert again.size == 40
    assert_same_bits(again.order, given[0].order)
    assert_same_bits(sums, Module()(*given)[1])


def test_functionalize(device):
    """torch.func.functionalize changes nothing, also if the index was written in place."""

    def call(index, values):
        index = index.clone()
        index[0] = 2
        values = values * 2
        values.add_(1)
        order, _ = OPS._index_plan(index, 3)
        return order, OPS._index_sort_values(values, index, 3, values)[0], OPS._gather_values(values, order, values)

    index, values = torch.tensor([0, 1, 2, 0], device=device), data((4,), "float32", device=device)
    for ours, theirs in zip(torch.func.functionalize(call)(index, values), call(index, values), strict=True):
        assert_same_bits(ours, theirs)


# --- vmap -------------------------------------------------------------------------------------------------------------


def test_vmap(device):
    """Each of a batch has the results of a call of its own, whichever arguments are batched, and along which dim."""
    index = torch.stack([tensors_of(index_of(kind, 70, 9), device) for kind in KINDS])
    values = torch.stack([data((70,), "float32", seed, device) for seed in range(len(KINDS))])
    weight = data((70,), "bfloat16", device=device)

    def each(function, *batches):
        found = [function(*inputs) for inputs in zip(*batches, strict=True)]
        return tuple(map(torch.stack, zip(*found, strict=True))) if isinstance(found[0], tuple) else torch.stack(found)

    def plan(i):
        return OPS._index_plan(i, 9)

    def sort(v, i):
        return OPS._index_sort_values(v, i, 9, weight)

    assert_same_bits(torch.vmap(plan)(index), each(plan, index))
    assert_same_bits(torch.vmap(plan, in_dims=1)(index.t()), each(plan, index))
    assert_same_bits(torch.vmap(plan, in_dims=1)(index.t().contiguous()), each(plan, index))
    assert_same_bits(torch.vmap(sort)(values, index), each(sort, values, index))
    assert_same_bits(torch.vmap(sort, (None, 0))(values[1], index), each(lambda i: sort(values[1], i), index))
    assert_same_bits(torch.vmap(sort, (0, None))(values, index[1]), each(lambda v: sort(v, index[1]), values))
    weighted = torch.vmap(lambda w: OPS._gather_values(values[0], index[0], w))(values)
    assert_same_bits(weighted, each(lambda w: OPS._gather_values(values[0], index[0], w), values))
    nested = torch.vmap(torch.vmap(sort, (0, None)), (None, 0))(values, index)
    assert_same_bits(nested[0][2], torch.vmap(sort, (0, None))(values, index[2])[0])
    assert_same_bits(torch.vmap(lambda i: index_plan(i, 9).order)(index), each(plan, index)[0])
    with pytest.raises(RuntimeError, match="a batch of none has no result"):
        torch.vmap(plan)(index[:0])


# --- CUDA alone -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, size", [(300, 7), (9000, 70_000), (400_000, 1000), (50_000, 1)])
def test_graphs(n, size, cuda):
    """A captured call serves other entries and values."""
    index, values = tensors_of(index_of("random", n, size), cuda), data((n,), "float32", device=cuda)

    def call():
        order, offsets = OPS._index_plan(index, size)
        return order, offsets, *OPS._index_sort_values(values, index, size), OPS._gather_values(values, order, values)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()
    for seed, kind in enumerate(KINDS):
        own = index_of(kind, n, size, seed)
        index.copy_(tensors_of(own, "cpu"))
        values.copy_(data((n,), "float32", seed=seed))
        graph.replay()
        order, offsets = sorted_by(own, size)
        check_plan(results[:2], own, size)
        assert_same_bits(results[2], stored(numbers(values)[order]))
        check_numbers(results[3], offsets)
        assert_same_bits(results[4], stored(products(values, values)[order]))


def test_nothing_waits(cuda):
    """No call waits for the GPU, and a call on another stream waits for no other."""
    index, values = tensors_of(index_of("hot", 90_000, 500), cuda), data((90_000,), "float32", device=cuda)
    OPS._index_plan(index, 500)
    torch.cuda.set_sync_debug_mode("error")
    try:
        order, _ = OPS._index_plan(index, 500)
        OPS._index_sort_values(values, index, 500, values)
        found = OPS._gather_values(values, order)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same_bits(found, OPS._index_sort_values(values, index, 500)[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        again, _ = OPS._index_plan(index, 500)
    stream.synchronize()
    assert_same_bits(again, order)


def test_devices_agree(cuda):
    """The CPU's plan and products are the GPU's."""
    index, values = index_of("skewed", 100_000, 5000), data((100_000,), "bfloat16")
    there = [x.to(cuda) for x in (values, tensors_of(index, "cpu"))]
    for ours, theirs in zip(
        OPS._index_sort_values(there[0], there[1], 5000, there[0]),
        OPS._index_sort_values(values, tensors_of(index, "cpu"), 5000, values),
        strict=True,
    ):
        assert_same_bits(ours.cpu(), theirs)
