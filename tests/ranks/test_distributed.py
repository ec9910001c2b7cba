"""torch_reduce.distributed: the same bits on any number of ranks, wherever the cuts are, on CPUs, GPUs and both."""

import contextlib
import functools
import inspect
import itertools
import math
import os
import pathlib
import random
import re
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

import model
import torch_reduce
import torch_reduce.distributed as distributed
from support import (
    COMPLEX,
    DTYPES,
    FAMILY,
    MEAN,
    OPERATIONS,
    SUM,
    assert_same_bits,
    data,
    dtype_of,
    kin,
    numpy_of,
    python,
    tensor_of,
    walked,
    whole,
    whole_of,
)
from table import rotated
from torch_reduce import _operations
from torch_reduce.distributed import Shard, _messages, _rank_plan, _sharded, _symmetric
from worlds import World, here, traffic

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORLDS = ["cpu", "mixed", "nccl"]
SIZES = [1, 2, 3, 4, 5, 8]
NAMES = ["float32", "bfloat16", "float16", "float64", "int8", "int32", "int64", "bool", "complex64", "float8_e4m3fn"]
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


def shard(x, dim, cuts, rank):
    """The part of a tensor that a rank holds."""
    return x.narrow(dim, cuts[rank], cuts[rank + 1] - cuts[rank])


def random_cuts(rng, size, world):
    """Where a dim is cut: anywhere, evenly, at chunks, or so that all but a few ranks have nothing."""
    style = rng.randrange(4)
    if style == 0:
        cuts = [size * rank // world for rank in range(1, world)]
    elif style == 1:
        cuts = [rng.randint(0, size) // 4096 * 4096 for _ in range(world - 1)]
    elif style == 2:
        few = [rng.randint(0, size) for _ in range(2)]
        cuts = [rng.choice(few) for _ in range(world - 1)]
    else:
        cuts = [rng.randint(0, size) for _ in range(world - 1)]
    return [0, *sorted(cuts), size]


# --- what the ranks run: functions of the group, that raise where something is wrong ---------------------------------


def reduce_shards(group, cases):
    """Each case: an operation, the whole tensor as data() makes it and its dims' order, a call, and the wanted bits."""
    rank = dist.get_rank(group)
    for operation, shape, name, seed, permutation, dims, keepdim, dtype, shard_dim, cuts, tells, wanted in cases:
        x = whole(shape, name, seed, permutation).to(here())
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        local = Shard(shard(x, shard_dim, cuts, rank), shard_dim, group, sizes)
        got = getattr(torch_reduce, operation)(local, dims, keepdim, dtype=dtype)
        what = f"{operation} {shape} {name} order {permutation} dims {dims} dtype {dtype} shard {shard_dim} {cuts}"
        assert_same_bits(got, wanted, what)


def case(op, shape, name, cuts, dims=0, shard_dim=0, *, permutation=None, keepdim=False, dtype=None, tells=False):
    permutation = permutation or list(range(len(shape)))
    seed = len(cuts)
    wanted = op.expected(whole(shape, name, seed, permutation), dims, keepdim, dtype)
    return op.name, shape, name, seed, permutation, dims, keepdim, dtype, shard_dim, cuts, tells, wanted


# --- sum and mean ----------------------------------------------------------------------------------------------------


def test_constants():
    """The chunks and lanes are those of the contract."""
    text = (ROOT / "csrc" / "core" / "order.h").read_text()
    lanes, depth = (int(re.search(rf"{name} = (\d+);", text)[1]) for name in ("kLanes", "kDepth"))
    assert (distributed._LANES, _rank_plan.CHUNK) == (lanes, lanes * depth) == (model.LANES, model.CHUNK)
    version = int(re.search(r"kOrderVersion = (\d+);", text)[1])
    assert torch.ops.gpureduce._order() == (version, lanes, lanes * depth)


@pytest.mark.parametrize("size", SIZES)
def test_one_dim(size, world):
    """Any cuts of one long row: even, random, at chunks, with empty shards and with shards of less than a chunk.

    Every dtype on three ranks and on all, and some on every number.
    """
    rng, cases = random.Random(str(size)), []
    for name in NAMES if size in (3, 8) else ("float32", "bfloat16", "int64"):
        for n in (0, 1, 3, 4095, 4096, 4097, 12_000, 40_000, 70_001):
            cuts = random_cuts(rng, n, size)
            for op in OPERATIONS:
                if op.takes(name):
                    cases.append(case(op, [n], name, cuts, tells=rng.random() < 0.5))
        cases.append(case(SUM, [500 * size], name, [500 * rank for rank in range(size + 1)]))
        cases.append(case(SUM, [4096 * size], name, [4096 * rank for rank in range(size + 1)]))
    world.run(size, reduce_shards, cases)


@pytest.mark.parametrize("size", SIZES)
def test_random(size, world):
    """Random shapes, dims, orders in memory, dtypes and cuts: of one to four dims, any of which is cut."""
    rng = random.Random(size)
    cases, plans = [], set()
    for _ in range(60):
        rank = rng.randint(1, 4)
        shape = [rng.choice([1, 2, 3, 5, 17, 64, 300]) for _ in range(rank)]
        shard_dim = rng.randrange(rank)
        shape[shard_dim] = rng.choice([1, 7, 100, 4096, 5000, 20_000])
        while np.prod(shape) > 100_000:
            at = rng.randrange(rank)
            shape[at] = -(-shape[at] // 2)
        dims = sorted({shard_dim} | {d for d in range(rank) if rng.random() < 0.5})
        permutation = rng.sample(range(rank), rank)
        name, op = rng.choice(NAMES), rng.choice(OPERATIONS)
        dtype = rng.choice([None, None, torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool])
        if not op.takes(name, dtype):
            op = SUM
        cuts = random_cuts(rng, shape[shard_dim], size)
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        tells = min(sizes) > 1 and rng.random() < 0.5
        cases.append(
            case(
                op,
                shape,
                name,
                cuts,
                dims,
                shard_dim,
                permutation=permutation,
                keepdim=rng.random() < 0.5,
                dtype=dtype,
                tells=tells,
            )
        )
    plans = world.run(size, plans_of, cases)[0]
    assert size == 1 or {(True, False), (False, True), (False, False)} <= set(plans)


def plans_of(group, cases):
    """Runs the cases, and returns which ways were taken: whether shards are realigned, and outputs dealt out."""
    ways, make = [], _rank_plan.plan_of.__wrapped__

    def plan(*args):
        made = make(*args)
        ways.append((made.realigns, made.by_outputs))
        return made

    _sharded.plan_of, kept = plan, _sharded.plan_of
    try:
        reduce_shards(group, cases)
    finally:
        _sharded.plan_of = kept
    return ways


LAYOUTS = {
    "batch of images": ([12, 5, 33, 41], [0, 1, 2, 3], [0, 2, 3]),
    "channels last": ([12, 5, 33, 41], [0, 2, 3, 1], [0, 2, 3]),
    "all of it": ([12, 5, 33, 41], [0, 1, 2, 3], [0, 1, 2, 3]),
    "all of it, channels last": ([12, 5, 33, 41], [0, 2, 3, 1], [0, 1, 2, 3]),
    "transposed": ([700, 90], [1, 0], [0, 1]),
    "long rows, and a few outputs": ([3, 50_000], [0, 1], [1]),
    "many short columns": ([300, 100], [0, 1], [0]),
}


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_layouts(size, world):
    """Each dim of a layout is cut in turn, also those that no stride makes neighbours of the others."""
    rng, cases = random.Random(str(size)), []
    for layout in LAYOUTS if size == 3 else rotated(LAYOUTS, size // 2, 2):
        shape, permutation, dims = LAYOUTS[layout]
        for shard_dim, name in itertools.product(dims, ("float32", "bfloat16")):
            cuts = random_cuts(rng, shape[shard_dim], size)
            for op in OPERATIONS:
                cases.append(case(op, shape, name, cuts, dims, shard_dim, permutation=permutation, keepdim=op is MEAN))
    world.run(size, reduce_shards, cases)


def cut_without_a_stride(group, wanted):
    """Shards of one channel, or none, of a channels-last image: their strides do not say where channels lie."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = data([3, 40, 9, 10], "float32", 1, here()).permute(0, 3, 1, 2)  # (3, 10, 40, 9)
    cuts = [0, *[min(rank, 2) for rank in range(1, size)], 10]  # 1, 1, 0, 0, ... channels, and the last has the others
    local = shard(x, 1, cuts, rank)
    if rank < size - 1:
        local = local.contiguous()
        assert local.stride()[1] != 1 or local.numel() == 0
    assert_same_bits(distributed.sum(local, group=group, shard_dim=1), wanted)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_small_shards_follow_the_others(size, world):
    x = data([3, 40, 9, 10], "float32", 1).permute(0, 3, 1, 2)
    world.run(size, cut_without_a_stride, SUM.expected(x))


def lazy_and_expanded(group, wanted):
    """Conjugated and negated views, shards with gaps, and dims of stride 0."""
    rank = dist.get_rank(group)
    cuts = [0, 1, 5000, 9001]
    for (view, dims), bits in zip(views(here()), wanted, strict=True):
        part = shard(view, 0, cuts, rank)
        assert (part.is_conj(), part.is_neg(), part.stride()) == (view.is_conj(), view.is_neg(), view.stride())
        assert_same_bits(distributed.sum(part, dims, group=group, shard_dim=0), bits)


def views(device="cpu"):
    """Views, and the dims of which they are summed."""
    x = data([9001, 4], "complex64", 4, device)
    expanded = x[:, :1].expand(-1, 6)
    assert not torch_reduce.sum(expanded).equal(torch_reduce.sum(expanded.contiguous()))  # the data tell orders apart
    return [(x.conj(), 0), (x.conj().imag, 0), (x.conj(), None), (x[:, ::2], 0), (expanded, 0), (expanded, None)]


def test_views(world):
    world.run(3, lazy_and_expanded, [SUM.expected(*view) for view in views()])


TARGETS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex32", "complex64"]


def test_dtypes_of_results(world):
    """Every result's dtype: means are divided and rounded as the operator does it, once each."""
    cases, names = [], ["float32", "float64", "bfloat16", "int8", "int32", "int64", "uint64", "complex128"]
    for name, target in itertools.product(names, [*TARGETS, "complex128", "int8", "int64", "bool"]):
        for op in OPERATIONS:
            if op.takes(name, dtype_of(target)):
                cases.append(case(op, [300, 50], name, [0, 100, 101, 300], dtype=dtype_of(target)))
                cases.append(case(op, [9001, 2], name, [0, 100, 5000, 9001], dtype=dtype_of(target)))
    world.run(3, reduce_shards, cases)


def test_accumulators():
    """Every pair of dtypes is added in what the model adds it in."""
    for source, target in itertools.product(model.DTYPES, repeat=2):
        parts = model.addends(np.zeros((1, model.STORAGE[source][1]), model.STORAGE[source][0]), source, target)
        found = _operations.node_dtype("sum", dtype_of(source), dtype_of(target))
        wanted = "bool" if target == "bool" else str(parts[0].dtype)
        if len(parts) == 2:
            wanted = {"float32": "complex64", "float64": "complex128"}[wanted]
        assert found == dtype_of(wanted), (source, target)


@walked("target", [*TARGETS, "complex128"])
def test_integers_are_rounded_once(target):
    """Sums of integers near the middle of two results, which a detour through float64 would round twice."""
    rng = random.Random(target)
    whole = [rng.randrange(-(1 << 63), 1 << 63) >> rng.randrange(64) for _ in range(2000)]
    for exponent, bits, near in itertools.product(range(30, 63), (3, 4, 8, 11, 24), (-1, 0, 1)):
        middle = (1 << exponent) + (1 << exponent - bits) + near
        whole += [middle, -middle]
    exact = np.array(whole, np.int64)
    got = torch.ops.gpureduce._finish(torch.from_numpy(exact), "sum", 1, dtype_of(target))
    assert_same_bits(got, model.results([exact], target))


@walked("name", ["float32", "float64", "complex64"])
@walked("target", ["bfloat16", "float16", "float32", "float64"])
def test_quotients(name, target):
    """Divided in the accumulator's precision, by a count that is rounded to it, also among the smallest numbers."""
    total = data([20_000], name, 9)
    if target == "float32":
        total = total * 2.0**-130
    parts = list(np.moveaxis(numpy_of(total), -1, 0))
    target = name if name == "complex64" else target
    for count in (1, 3, 7, 1000, (1 << 24) + 1, 70_000_000_001):
        got = torch.ops.gpureduce._finish(total, "mean", count, dtype_of(target))
        assert_same_bits(got, model.results(model.quotients(parts, count, target), target), f"count {count}")


def any_ranks(group, ranks, wanted):
    """Ranks of a group are counted in the group's order."""
    assert dist.get_world_size(group) == len(ranks)
    x, cuts = data([30_000], "float32", 4, here()), [0, 100, 17_001, 30_000]
    assert_same_bits(distributed.sum(shard(x, 0, cuts, dist.get_rank(group)), group=group, shard_dim=0), wanted)


def test_groups(world):
    wanted = SUM.expected(data([30_000], "float32", 4))
    for ranks in ([2, 5, 7], [0, 3, 4]):
        world.run(ranks, any_ranks, ranks, wanted)


def no_messages(group):
    """A dim that is not cut is summed without the other ranks; so is everything where sizes are told, and one rank."""
    names = ["all_gather_into_tensor", "all_to_all_single"]
    kept = {name: getattr(dist, name) for name in names}
    rank = dist.get_rank(group)
    x = data([rank, 500, 3], "float32", rank, here())
    try:
        for name in names:
            setattr(dist, name, None)
        for op in OPERATIONS:
            got = getattr(torch_reduce, op.name)(Shard(x, 0, group), [1, 2], True)
            assert_same_bits(got, op(x, [1, 2], True))
        wants_gradient = x.clone().requires_grad_()
        distributed.sum(wants_gradient, -1, group=group, shard_dim=0).sum().backward()
        assert wants_gradient.grad.eq(1).all()
    finally:
        for name in names:
            setattr(dist, name, kept[name])


def test_kept_shards(world):
    world.run(3, no_messages)


# --- what is sent ----------------------------------------------------------------------------------------------------


def sum_a_row(group, n, outputs, cuts, sizes):
    rank = dist.get_rank(group)
    x = torch.ones(n, outputs, device=here())
    result = distributed.sum(shard(x, 0, cuts, rank), 0, group=group, shard_dim=0, sizes=sizes)
    assert result.eq(n).all()


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_traffic_of_a_sum(size, world):
    """At most 4095 elements a boundary and output are sent, and then 2 log2(chunks) accumulators an output."""
    rng = random.Random(size)
    for outputs in (1, 3):
        n = 100_000
        cuts = [0, *sorted(rng.randint(0, n) for _ in range(size - 1)), n]
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        told = world.run(size, traffic, sum_a_row, n, outputs, cuts, sizes)
        plan = _rank_plan.plan_of(tuple(sizes), 1, 1, outputs, 4, 4)
        assert plan.realigns
        nodes = max(map(len, plan.nodes))
        assert nodes <= 2 * (-(-n // 4096)).bit_length()
        for rank, sent in enumerate(told):
            head = min(-cuts[rank] % 4096, sizes[rank]) if rank else 0
            assert sent["all_to_all"] == [4 * outputs * head, int(head > 0)] and head < 4096
            assert sent["all_gather"] == [4 * outputs * nodes * (size - 1), 1]
        checked = world.run(size, traffic, sum_a_row, n, outputs, cuts, None)
        for before, after in zip(told, checked, strict=True):
            assert after["all_gather"] == [before["all_gather"][0] + 256 * (size - 1), 2]
    aligned = [4096 * rank for rank in range(size + 1)]
    told = world.run(size, traffic, sum_a_row, 4096 * size, 1, aligned, [4096] * size)
    assert all(sent == {"all_to_all": [0, 0], "all_gather": [4 * (size - 1), 1]} for sent in told)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_traffic_of_short_columns(size, world):
    """Shards of less than a chunk are not realigned: each rank gets whole outputs, and each element moves once."""
    n, outputs = 100 * size, 80 * size
    told = world.run(size, traffic, sum_a_row, n, outputs, [100 * r for r in range(size + 1)], [100] * size)
    for sent in told:
        assert sent["all_to_all"] == [4 * 100 * outputs * (size - 1) // size, size - 1]
        assert sent["all_gather"] == [4 * 80 * (size - 1), 1]


def all_reduce_ones(group, n):
    tensor, lent = torch.ones(n, device=here()), _symmetric.lent
    _symmetric.lent = lambda group, device: None  # as where GPUs cannot lend each other memory
    try:
        distributed.all_reduce(tensor, group, check=False)
    finally:
        _symmetric.lent = lent
    assert tensor.eq(dist.get_world_size(group)).all()


@pytest.mark.parametrize("size", [2, 3, 8])
def test_traffic_of_all_reduce(size, world):
    """A ring's volume: each rank sends twice what the others hold."""
    n = 1000 * size
    for sent in world.run(size, traffic, all_reduce_ones, n):
        assert sum(bytes for bytes, _ in sent.values()) == 2 * 4 * n * (size - 1) // size


def test_table_of_the_page():
    """The table of docs/distributed.md is what the plan says."""
    text = (ROOT / "docs" / "distributed.md").read_text()
    table = text.split("<!-- distributed:table -->")[1].split("<!-- /distributed:table -->")[0]
    rows = [[int(cell.replace(",", "")) for cell in line.strip("|").split("|")] for line in table.split("\n")[3:-1]]
    n = 70_000_000_000
    for row, size in zip(rows, (8, 512, 16_384), strict=True):
        cuts = [n * rank // size for rank in range(size + 1)]
        sizes = tuple(b - a for a, b in itertools.pairwise(cuts))
        plan, most = _rank_plan.plan_of(sizes, 1, 1, 1, 2, 4), 2 * (-(-max(sizes) // 4096)).bit_length()
        nodes = max(map(len, plan.nodes))
        realigned = max(-cut % 4096 for cut in cuts[:-1])
        assert row == [size, max(sizes), realigned, nodes, most, 4 * nodes * size] and nodes <= most <= 48


def test_nodes_are_few():
    """For 70e9 elements, no rank of 8, 512 or 16,384 gives more than 48 accumulators, wherever the cuts are."""
    n, rng = 70_000_000_000, random.Random(0)
    for size in (8, 512, 16_384):
        even = [n * rank // size for rank in range(size + 1)]
        anywhere = [0, *sorted(rng.randrange(n) for _ in range(size - 1)), n]
        for cuts in (even, anywhere):
            sizes = tuple(b - a for a, b in itertools.pairwise(cuts))
            plan = _rank_plan.plan_of(sizes, 1, 1, 1, 2, 4)
            assert max(map(len, plan.nodes)) <= 48
            joined = sum(sum(row >= 0 for row in group) - 1 for step in plan.joins for group in step)
            assert joined == sum(map(len, plan.nodes)) - 1


# --- errors ----------------------------------------------------------------------------------------------------------


def expect(group, kind, message, call):
    """The call raises on every rank, and none waits for another until its time is over; and the ranks can go on."""
    with pytest.raises(kind, match=message):
        call()
    result = distributed.sum(torch.ones(5, device=here()), group=group, shard_dim=0)
    assert float(result) == 5 * dist.get_world_size(group)


def disagree(group):
    rank = dist.get_rank(group)
    odd, others = rank == 1, "ranks 0, 2" if dist.get_world_size(group) == 3 else "rank 0"
    f, x = distributed.sum, torch.ones(4, 6, device=here())

    def call(x=x, dim=None, keepdim=False, shard_dim=0, function=f, **kwargs):
        return lambda: function(x, dim, keepdim, group=group, shard_dim=shard_dim, **kwargs)

    def says(what, odd, even):
        return re.escape(f"(): the ranks disagree about the {what}: {even} on {others}; {odd} on rank 1")

    expect(group, RuntimeError, says("shape", "[*, 7]", "[*, 6]"), call(x.new_ones(4, 7) if odd else x))
    expect(group, RuntimeError, says("shape", "[*, 6, 1]", "[*, 6]"), call(x[..., None] if odd else x))
    expect(group, RuntimeError, says("dtype", "torch.float64", "torch.float32"), call(x.double() if odd else x))
    expect(group, RuntimeError, says("dim", "[0, 1]", "[0]"), call(dim=[0, 1] if odd else 0))
    expect(group, RuntimeError, says("keepdim", "True", "False"), call(keepdim=odd))
    expect(group, RuntimeError, says("shape", "[6, *]", "[*, 6]"), call(x.t() if odd else x, shard_dim=1 if odd else 0))
    expect(group, RuntimeError, says("function", "mean", "sum"), call(function=distributed.mean if odd else f))
    expect(
        group,
        RuntimeError,
        says("dtype of the result", "torch.float64", "torch.float32"),
        call(dtype=torch.float64 if odd else None),
    )
    order = says("order of the reduced dims in memory", "[1, 0]", "[0, 1]")
    expect(group, RuntimeError, order, call(x.t().contiguous().t() if odd else x))
    with torch.no_grad():
        call(x.clone().requires_grad_())()

    reduced = distributed.all_reduce
    expect(group, RuntimeError, says("shape", "[5]", "[4]"), lambda: reduced(x.new_ones(4 + odd), group))
    bools = x.new_ones(4, dtype=torch.int8 if odd else torch.bool)
    expect(group, RuntimeError, says("dtype", "torch.int8", "torch.bool"), lambda: reduced(bools, group))


def fail(group):
    """One rank's arguments are wrong: it raises its own error, and the others one that names it."""
    odd = dist.get_rank(group) == 1
    size, x = dist.get_world_size(group), torch.ones(4, 6, device=here())
    wants_gradient = x.clone().requires_grad_()
    for kind, message, wrong in [
        (IndexError, "Dimension out of range", lambda: distributed.sum(x, 5, group=group, shard_dim=0)),
        (IndexError, "the Shard's 'dim' must be in", lambda: distributed.sum(x, group=group, shard_dim=2)),
        (TypeError, "the Shard's 'dim' must be an int", lambda: distributed.sum(x, group=group, shard_dim=None)),
        (TypeError, "sum", lambda: distributed.sum([1.0], group=group, shard_dim=0)),
        (RuntimeError, "give x.detach", lambda: distributed.sum(wants_gradient, group=group, shard_dim=0)),
        (RuntimeError, "Input dtype", lambda: distributed.mean(x.long(), group=group, shard_dim=0)),
    ]:
        if odd:
            expect(group, kind, message, wrong)
        else:
            named = rf"rank 1 failed: {kind.__name__}: .*{message}"
            expect(group, RuntimeError, named, lambda: distributed.sum(x, group=group, shard_dim=0))
        expect(group, kind, message, wrong)  # and where all are wrong, each raises its own
    wrong = ValueError if odd else RuntimeError
    scatter = distributed.reduce_scatter
    expect(group, wrong, f"{size} times as many", lambda: scatter(x.new_ones(2), x.new_ones(2 * size + odd), group))


@pytest.mark.parametrize("size", [2, 3])
def test_disagreement(size, world):
    """All ranks name who has what, and nobody waits for long."""
    world.run(size, disagree)


@pytest.mark.parametrize("size", [2, 3])
def test_failure(size, world):
    world.run(size, fail)


def compiled(group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x, sizes = data([700, 3], "bfloat16", rank, here()), [700] * size
    total = torch.ones(5, device=here())

    def scattered(x):
        output = torch.empty(3, device=x.device)
        distributed.reduce_scatter(output, torch.ones(3 * size, device=x.device), group)
        return output

    for function in (
        lambda x: distributed.sum(x * 2, 0, group=group, shard_dim=0, sizes=sizes) + 1,
        lambda x: distributed.logsumexp(x * 2, 0, group=group, shard_dim=0) + 1,
        lambda x: distributed.var_mean(x * 2, 0, group=group, shard_dim=0)[1] + 1,
        lambda x: distributed.all_reduce(total.fill_(1), group) or total + 1,
        lambda x: torch_reduce.get_total_norm([x * 2], group=group, places=[rank]) + 1,
        scattered,
    ):
        torch._dynamo.reset()
        result = torch.compile(function, backend="eager")(x)
        assert_same_bits(result, function(x))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="between compiled graphs, not in them"):
            torch.compile(function, backend="eager", fullgraph=True)(x)


def test_compiled(world):
    """A graph ends before each call; where there may be but one, that is said."""
    world.run(2, compiled)


def wrong_sizes(group):
    x, rank = torch.ones(4, 6, device=here()), dist.get_rank(group)
    wrong = {(4,): "3 sizes, one per rank", (4, -1, 4): "none negative", (5, 5, 5): f"rank {rank} has 5"}
    for sizes, message in wrong.items():
        with pytest.raises(ValueError, match=message):
            distributed.sum(x, group=group, shard_dim=0, sizes=sizes)
    for sizes in (4, "444", [4, 4.0, 4], [[4], [4], [4]]):
        with pytest.raises(TypeError, match=r"^sum\(\): 'sizes' must be a sequence of ints, not "):
            distributed.sum(x, group=group, shard_dim=0, sizes=sizes)
    with pytest.raises(IndexError):
        distributed.sum(x, 7, group=group, shard_dim=0, sizes=[4, 4, 4])


def test_sizes(world):
    """Sizes that cannot be are refused before anything is sent."""
    world.run(3, wrong_sizes)


def wrong_arguments(group):
    x, odd = torch.ones(4, device=here()), torch.ones(4, device=here()).to(torch.float8_e4m3fnuz)
    reduce, scatter = distributed.all_reduce, distributed.reduce_scatter
    for error, message, call in (
        (TypeError, "all_reduce(): argument 'tensor' must be Tensor, not list", lambda: reduce([1.0], group)),
        (TypeError, "all_reduce(): 'group' must be a ProcessGroup or None, not int", lambda: reduce(x, 3)),
        (TypeError, "sum(): 'group' must be a ProcessGroup", lambda: distributed.sum(x, group="all", shard_dim=0)),
        (TypeError, "reduce_scatter(): argument 'output' must be Tensor, not list", lambda: scatter([1.0], x, group)),
        (TypeError, "reduce_scatter(): argument 'input' must be Tensor, not int", lambda: scatter(x, 5, group)),
        (TypeError, "reduce_scatter(): 'group' must be a ProcessGroup", lambda: scatter(x[:2], x, 3)),
    ):
        with pytest.raises(error, match="^" + re.escape(message)):
            call()
    for checks in (True, False):
        for message, call in (
            ("all_reduce(): 'tensor' has a dtype that sum()", lambda c=checks: reduce(odd, group, check=c)),
            ("all_reduce(): 'tensor' must be dense", lambda c=checks: reduce(x.to_sparse(), group, check=c)),
            ("reduce_scatter(): 'input' has a dtype", lambda c=checks: scatter(odd[:2], odd, group, check=c)),
        ):
            with pytest.raises(NotImplementedError, match="^" + re.escape(message)):
                call()
    reduce(x, group)
    assert x.eq(2).all()


def test_wrong_arguments(world):
    """An error names the function that was called and the argument, before anything is sent."""
    world.run(2, wrong_arguments)


def die(group):
    """One rank ends; what do the others get?"""
    dist.barrier(group)  # until then the others may still be connecting
    if dist.get_rank(group) == 1:
        time.sleep(0.5)
        os._exit(1)
    errors = []
    for call in (
        lambda: distributed.sum(torch.ones(5), group=group, shard_dim=0),
        lambda: distributed.all_reduce(torch.ones(5), group),
    ):
        try:
            call()
        except RuntimeError as error:
            errors.append(str(error))
    return errors


def test_a_rank_that_ends():
    """The others get the backend's error, and do not hang."""
    ranks = World(size=3)
    try:
        first, ended, last = ranks.run(3, die, ends=[1])
        assert ended is None
        assert len(first) == len(last) == 2
        assert not [error for error in (*first, *last) if re.search("time(d )?out", error, re.IGNORECASE)]
    finally:
        ranks.close()


def test_not_in_the_group(world):
    world.run([0], outside)


def outside(group):
    other = dist.GroupMember.NON_GROUP_MEMBER
    for call in (
        lambda: distributed.sum(torch.ones(5), group=other, shard_dim=0),
        lambda: distributed.all_reduce(torch.ones(5), other),
    ):
        with pytest.raises(ValueError, match="this process is not in 'group'"):
            call()


# --- checks for which no host waits ----------------------------------------------------------------------------------


@contextlib.contextmanager
def compared_late(group):
    """Inside, agreements are remembered as over NCCL; but an assertion on the CPU fails at once, and on a GPU late."""
    kept, _messages.compares = _messages.compares, lambda device: True
    _messages._agreements.pop(group, None)
    try:
        yield
    finally:
        _messages.compares = kept
        _messages._agreements.pop(group, None)


def checked_calls(group):
    """Calls of this rank, by name; "long" ones say more than a notice holds."""
    size = dist.get_world_size(group)

    def reduced(*shape, dtype=torch.float32):
        tensor = torch.ones(shape, dtype=dtype, device=here())
        distributed.all_reduce(tensor, group)
        assert tensor.view(-1).eq(size).all()

    def scattered(count, more=0):
        output = torch.zeros(count, device=here())
        distributed.reduce_scatter(output, torch.ones(count * size + more, device=here()), group)
        assert output.eq(size).all()

    return {
        "four": lambda: reduced(4),
        "five": lambda: reduced(5),
        "ints": lambda: reduced(4, dtype=torch.int32),
        "scatter": lambda: scattered(4),
        "wrong": lambda: scattered(4, 1),
        "sum": lambda: distributed.sum(torch.ones(4, device=here()), group=group, shard_dim=0),
        "long": lambda: reduced(*[1] * 100, 6),
        "long, too": lambda: reduced(*[1] * 100, 12),
    }


def waits(group, names):
    """How often this rank waits for an agreement in calls of these names."""
    calls, agree, count = checked_calls(group), _messages.agree, []
    _messages.agree = lambda *args: count.append(args) or agree(*args)
    try:
        for name in names:
            calls[name]()
    finally:
        _messages.agree = agree
    return len(count)


def remember(group):
    """Each call waits when it is new; then it does not, in whatever order, and as many bytes are sent."""
    names = ["four", "five", "ints", "scatter", "long", "long, too"]
    with compared_late(group):
        for wanted in (len(names), 0, 0):
            assert waits(group, names) == wanted
            names.reverse()
        agreed = traffic(group, lambda group: checked_calls(group)["four"]())
    with compared_late(group):
        assert traffic(group, lambda group: checked_calls(group)["four"]()) == agreed  # new as it is
    with compared_late(group):
        kept, _messages._MOST = _messages._MOST, 1
        try:
            assert waits(group, ["four", "five", "four", "five"]) == 3
        finally:
            _messages._MOST = kept


def slow_and_quick(group):
    """A rank that waits, since a call is new to it alone, meets ranks that do not."""
    with compared_late(group):
        waits(group, ["four"])
        if dist.get_rank(group) == 1:
            _messages._agreements.pop(group)
        assert waits(group, ["four"]) == (dist.get_rank(group) == 1)
        assert waits(group, ["four"]) == 0


def deviate(group):
    """After all ranks have agreed on some calls, rank 1 makes another one than the others."""
    odd = dist.get_rank(group) == 1
    others = "ranks 0, 2" if dist.get_world_size(group) == 3 else "rank 0"
    for known, usual, call, message in (
        (["four"], "four", "five", f"disagree about the shape: [4] on {others}; [5] on rank 1"),
        (["four", "five"], "four", "five", f"disagree about the shape: [4] on {others}; [5] on rank 1"),
        (["four"], "four", "ints", f"the dtype: torch.float32 on {others}; torch.int32 on rank 1"),
        (["four"], "four", "sum", f"the function: all_reduce on {others}; sum on rank 1"),
        # a call that rank 1 forgets shows as the next one
        (["four", "scatter"], "four", "scatter", f"the function: all_reduce on {others}; reduce_scatter on rank 1"),
        (["four", "scatter"], "scatter", "four", f"the function: reduce_scatter on {others}; all_reduce on rank 1"),
        (["scatter"], "scatter", "wrong", "rank 1 failed: ValueError: reduce_scatter(): 'input' must have"),
        (["four"], "four", "long", 'about the call: {"function":"all_reduce","shape":[4],'),
        (["long"], "long", "four", 'about the call: {"function":"all_reduce","shape":[1,1,'),
        (["long", "long, too"], "long", "long, too", 'about a call that begins with {"function":"all_reduce","sha'),
    ):
        calls = checked_calls(group)
        with compared_late(group):
            waits(group, known)
            late = not odd or call in known
            kind, text = RuntimeError, 'torch_reduce.distributed: the ranks disagree: {"function":"'
            if not late:
                kind, text = (ValueError, "'input' must have") if call == "wrong" else (RuntimeError, message)
            with pytest.raises(kind, match=re.escape(text)) as raised:
                calls[call if odd else usual]()
            text = str(raised.value)
            assert not late or (" on rank 0; {" in text and text.endswith(" on rank 1")), text
            for name in [*known, "sum"] if late else []:  # whatever is called next, and nobody answers
                with pytest.raises(RuntimeError, match=re.escape(message)) as raised:
                    calls[name]()
                function = {"scatter": "reduce_scatter", "sum": "sum"}.get(call if odd else usual, "all_reduce")
                assert str(raised.value).startswith(f"{function}(): "), raised.value
        dist.barrier(group)
        calls["sum"]()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("function", [remember, slow_and_quick, deviate], ids=lambda function: function.__name__)
def test_agreements_are_remembered(function, size, world):
    """What all ranks have agreed on is checked without waiting, and whoever deviates is found by all."""
    if world.kind == "nccl" and function is deviate:
        pytest.skip("after an assertion nothing runs on a GPU: test_assertion")
    world.run(size, function)


def test_who_waits(monkeypatch):
    """No host waits where GPUs can compare, unless CUDA waits for each launch."""
    gpu = torch.device("cuda", 0)
    assert _messages.compares(gpu) and not _messages.compares(torch.device("cpu"))
    monkeypatch.setattr(_messages, "_LAUNCHES_WAIT", True)
    assert not _messages.compares(gpu)


def notices(count, device, odd=None):
    """Of so many ranks, of which one may say something else."""
    like = torch.empty(0, device=device)
    texts = [f'{{"function":"{"b" if rank == odd else "a"}"}}' for rank in range(count)]
    return torch.cat([_messages.notice(text, rank, rank % 2 == 0, like) for rank, text in enumerate(texts)])


@pytest.mark.parametrize("ranks", [1, 2, 31, 32, 33, 257, 700])
def test_notices_that_agree(ranks, device):
    """Numbers, and who waits, make no difference; and the host waits for nothing."""
    table, report = notices(ranks, device), torch.zeros(1 + 32 * ranks, dtype=torch.int64, pin_memory=device == "cuda")
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        torch.ops.gpureduce._expect_agreement(table, table[:256], report)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
    assert not report.any()


@pytest.mark.parametrize("odd", [0, 1, 31, 32, 256, 699])
def test_notices_that_disagree(odd):
    """The first ranks that have told this or that are named, on every rank; and all notices are reported."""
    table, report = notices(700, "cpu", odd), torch.zeros(1 + 32 * 700, dtype=torch.int64)
    first, last = (0, odd) if odd else (0, 1)
    says = [f'{{"function":"{"b" if rank == odd else "a"}"}} on rank {rank}' for rank in (first, last)]
    for own in {0, odd, 699}:
        report.zero_()
        with pytest.raises(RuntimeError, match=re.escape(f": the ranks disagree: {says[0]}; {says[1]}") + "$"):
            torch.ops.gpureduce._expect_agreement(table, table[256 * own :][:256], report)
        assert report[0] == 1 and report[1:].view(torch.uint8).equal(table)
    for wrong in ((table[1:], table[:256], report), (table, table[:255], report), (table, table[:256], report.float())):
        with pytest.raises(RuntimeError, match="no notices"):
            torch.ops.gpureduce._expect_agreement(*wrong)


ASSERTION = """
import os
os.dup2(1, 2)  # where the device writes
import torch
from test_distributed import _messages, notices
table, report = notices(3, "cuda", 1), torch.zeros(1 + 32 * 3, dtype=torch.int64, pin_memory=True)
torch.ops.gpureduce._expect_agreement(table, table[:256], report)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("RAISED", error)
print("REPORT", report[0].item(), _messages.texts_of(report[1:].view(torch.uint8).view(3, -1)), flush=True)
os._exit(0)
"""


def test_assertion(cuda):
    """On a GPU the text is on stderr, the next call of CUDA raises, and the host can read the notices."""
    told = python("-c", ASSERTION)
    assert """the ranks disagree: {"function":"a"} on rank 0; {"function":"b"} on rank 1` failed""" in told
    assert "RAISED CUDA error: device-side assert triggered" in told
    assert """REPORT 1 ['{"function":"a"}', '{"function":"b"}', '{"function":"a"}']""" in told


def deviate_on_gpus(rank, folder):
    """A rank of two, the second of which gives another shape once all have agreed on one; it prints what it is told."""
    os.dup2(1, 2)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    x = torch.ones(4, device="cuda")
    for _ in range(3):
        distributed.all_reduce(x)
    wrong = torch.ones(4 + rank, device="cuda")
    for name, call in (
        ("FIRST", lambda: distributed.all_reduce(wrong)),
        ("SYNCHRONIZED", torch.cuda.synchronize),
        ("NEXT", lambda: distributed.all_reduce(x)),
    ):
        try:
            call()
        except RuntimeError as error:
            print(f"{name} {rank}: {str(error).splitlines()[0]}", flush=True)
            if rank == 1:
                break
    os._exit(0)


def test_deviation_on_gpus(tmp_path):
    """The rank that deviates, and for which the call is new, is told at once; the other one late, and not by a hang.

    torch's watchdog would end the process at some time between.
    """
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    spawn = f"torch.multiprocessing.spawn(test_distributed.deviate_on_gpus, ({str(tmp_path)!r},), 2)"
    told = python("-c", "import torch, test_distributed\n" + spawn, TORCH_NCCL_RETHROW_CUDA_ERRORS="0")
    message = "all_reduce(): the ranks disagree about the shape: [4] on rank 0; [5] on rank 1"
    assert f"FIRST 1: {message}" in told and f"NEXT 0: {message}" in told
    assert "SYNCHRONIZED 0: CUDA error: device-side assert triggered" in told
    assert '"shape":[4],"dtype":"torch.float32","device":"any"} on rank 0; {"function":"all_reduce","shape":[5]' in told


# --- sums over ranks -------------------------------------------------------------------------------------------------


def exchanges_beside(group):
    """Whether the exchange of each call goes on beside the current stream."""
    exchange, asked = dist.all_to_all_single, []
    dist.all_to_all_single = lambda *args, **kwargs: asked.append(kwargs["async_op"]) or exchange(*args, **kwargs)
    try:
        x, output = torch.ones(8, device=here()), torch.empty(4, device=here())
        distributed.all_reduce(x, group)
        distributed.reduce_scatter(output, x, group)
        distributed.all_reduce(x, group, async_op=True).wait()
        distributed.reduce_scatter(output, x, group, async_op=True).wait()
    finally:
        dist.all_to_all_single = exchange
    assert x.eq(4).all() and output.eq(8).all()
    return asked


def test_exchanges_beside(world):
    """Only with async_op: another stream costs each call its events. Through lent memory there is no exchange."""
    waited = [] if world.kind == "nccl" else [False, False]
    assert world.run(2, exchanges_beside) == [[*waited, True, True]] * 2


def reduce_ranks(group, name, seed, wanted):
    """all_reduce and reduce_scatter of every rank's tensor, of many forms; `wanted` has the sums of all shapes."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for shape, bits in wanted.items():
        mine = data(shape, name, seed + rank, here())
        transposed = mine.t().clone(memory_format=torch.contiguous_format).t()
        tensors = [mine.clone(), transposed, mine[..., None].repeat_interleave(3, -1)[..., 1]]
        for tensor in tensors:
            strides = tensor.stride()
            assert distributed.all_reduce(tensor, group) is None
            assert tensor.stride() == strides
            assert_same_bits(tensor, bits, f"all_reduce {shape} {strides}")
        works = [(tensor := mine.clone(), distributed.all_reduce(tensor, group, async_op=True)) for _ in range(3)]
        for tensor, work in works:
            assert not work.is_completed() and work.wait() and work.wait() and work.is_completed()
            assert_same_bits(tensor, bits, "async")
        if shape[0] % size == 0:
            rows = shape[0] // size
            piece = bits[rank * rows : (rank + 1) * rows]
            output = mine.new_zeros(rows, shape[1])
            distributed.reduce_scatter(output, mine, group)
            assert_same_bits(output, piece, f"reduce_scatter {shape}")
            output = mine.new_zeros(shape[1], rows).t()
            work = distributed.reduce_scatter(output, mine.view(size, rows, shape[1]), group, True)
            work.wait()
            assert_same_bits(output, piece, f"reduce_scatter {shape}, async")


@pytest.mark.parametrize("size", SIZES)
def test_over_ranks(size, world):
    """The model's sum over the ranks, of sizes that divide evenly or not; of float32 few elements and none, too."""
    for name in [*NAMES, "int16", "uint16", "complex32"] if size in (3, 8) else ["float32", "bfloat16", "int64"]:
        wanted = {}
        for shape in [(7, 5), (size * 3, 11)] + [(0, 3), (1, 1), (1, 2)] * (name == "float32"):
            parts = torch.stack([data(shape, name, 70 + rank) for rank in range(size)])
            wanted[shape] = SUM.expected(parts, 0, dtype=dtype_of(name))
        world.run(size, reduce_ranks, name, 70, wanted)


def test_ranks_are_not_added_left_to_right():
    """The data can tell: at 3 and more ranks from 4 on, another order gives other bits."""
    for size in (4, 5, 7, 8):
        parts = torch.stack([data((1000,), "float32", 70 + rank) for rank in range(size)])
        running = parts[0].clone()
        for part in parts[1:]:
            running += part
        assert not running.equal(torch_reduce.sum(parts, 0))


def accumulate_and_reduce(group, count, wanted):
    """Every rank adds an aligned run of microbatches by the contract; all_reduce adds the rest of the tree."""
    rank = dist.get_rank(group)
    own = range(count)[rank * (run := run_of(count, dist.get_world_size(group))) : (rank + 1) * run]
    total = torch_reduce.sum(torch.stack([data((100,), "float32", 90 + i, here()) for i in own]), 0)
    distributed.all_reduce(total, group)
    assert_same_bits(total, wanted)


def run_of(count, size):
    """The power of two that gives all ranks microbatches."""
    return 1 << (-(-count // size) - 1).bit_length()


@pytest.mark.parametrize("count", [8, 7, 5])
def test_microbatches_on_any_number_of_ranks(count, world):
    """The same gradient, bit for bit, from as many ranks as aligned power-of-two runs cut the microbatches into."""
    wanted = SUM.expected(torch.stack([data((100,), "float32", 90 + i) for i in range(count)]), 0)
    for size in {-(-count // run) for run in (1, 2, 4, 8)}:
        world.run(size, accumulate_and_reduce, count, wanted)


@walked("name", ["float32", "bfloat16", "int8"])
@walked("ranks", [1, 2, 3, 511, 512, 513, 1025, 1300])
def test_more_ranks_than_lanes(name, ranks):
    """Pairwise in rank order, whatever the number of ranks: 513 of them are no two elements of one lane."""
    rows = data((ranks, 9), name, 5)
    (wide,) = model.addends(numpy_of(rows), name, name)
    with np.errstate(over="ignore"):
        total = model.join(np.ascontiguousarray(wide.T))
    assert_same_bits(distributed._over_ranks(rows, False), model.results([total], name))
    if name != "int8":
        means = model.results(model.quotients([total], ranks, name), name)
        assert_same_bits(distributed._over_ranks(rows, True), means)


def norm_of_sum(group, name):
    """all_reduce and rms_norm in one call: their bits, whatever the layout; and their errors, on all ranks."""
    rank, size, function = dist.get_rank(group), dist.get_world_size(group), distributed.all_reduce_rms_norm
    for shape, last in (((3, 300), 1), ((2, 5, 4), 2), ((0, 4), 1)):
        parts = [data(shape, name, r) for r in range(size)]
        total = SUM.expected(torch.stack(parts), 0)
        total = tensor_of(total, name).view(shape) if not isinstance(total, torch.Tensor) else total.view(shape)
        residual, weight = data(shape, name, 20), data(shape[-last:], name, 21)
        apart = parts[rank].to(here()).t() if len(shape) == 2 else parts[rank].to(here())
        x = apart.contiguous().t() if len(shape) == 2 else apart
        got = function(x, shape[-last:], weight.to(here()), group=group)
        assert_same_bits(got.cpu(), torch_reduce.rms_norm(total, shape[-last:], weight))
        pair = function(x, shape[-last:], None, 1e-3, residual=residual.to(here()), group=group)
        wanted = torch_reduce.rms_norm(total, shape[-last:], None, 1e-3, residual=residual)
        for one, bits in zip(pair, wanted, strict=True):
            assert_same_bits(one.cpu(), bits)
        assert x.cpu().equal(parts[rank])
    x = torch.ones(2, 4, device=here())
    odd = rank == size - 1
    for kind, words, call in (
        (RuntimeError, r"Given normalized_shape=\[3\]", lambda: function(x, 3, group=group)),
        (RuntimeError, "weight: expected the size", lambda: function(x, 4, x[0, :3], group=group)),
        (RuntimeError, "it has no gradient", lambda: function(x.clone().requires_grad_(), 4, group=group)),
        (NotImplementedError, "input: expected float16", lambda: function(x.int(), 4, group=group)),
    ):
        with pytest.raises(kind, match=rf"^all_reduce_rms_norm\(\): .*{words}"):
            call()
    if size > 1:
        with pytest.raises(RuntimeError, match=r"the ranks disagree about the (weight|shape)"):
            function(x, 4, x[0] if odd else x[0].double(), group=group)
        for odd_one in ({"residual": x}, {"weight": x[0]}, {"eps": 1e-3}):  # of one rank alone
            for who in (odd, not odd):
                with pytest.raises(RuntimeError, match=rf"the ranks disagree about the {next(iter(odd_one))}"):
                    function(x, 4, **(odd_one if who else {}), group=group)
        for call in (lambda: function(x, 4, group=group), lambda: distributed.all_reduce(x, group)):
            with pytest.raises(NotImplementedError, match=r"^explain\(\): all_reduce\w*\(\) sends messages"):
                torch_reduce.explain(call)
        with pytest.raises(TypeError, match=r"^all_reduce_rms_norm\(\): argument 'check' must be bool, not str"):
            function(x, 4, group=group, check="no")
        with pytest.raises(
            RuntimeError, match=r"failed: RuntimeError: .*no gradient|^all_reduce_rms_norm.*no gradient"
        ):
            function(x.clone().requires_grad_(odd), 4, group=group)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_norm_of_sum(name, size, world):
    world.run(size, norm_of_sum, name)


# --- in training -----------------------------------------------------------------------------------------------------


def network(dtype, device):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).to(device, dtype)


def step(model, name, rank):
    """A rank's backward pass."""
    device = next(model.parameters()).device
    model(data((4, 7), name, rank, device)).square().sum().backward()


def averages(name, size, world):
    """The gradients that a training on that many ranks has: each rank's, computed alone, and their means."""
    if world.kind == "mixed":
        pytest.skip("DDP and FSDP want one type of device")
    gradients = []
    for rank, device in zip(range(size), world.devices, strict=False):
        step(alone := network(dtype_of(name), device), name, rank)
        gradients.append([parameter.grad.cpu() for parameter in alone.parameters()])
    return [MEAN.expected(torch.stack(ranks), 0) for ranks in zip(*gradients, strict=True)]


def train_with_ddp(group, name, wanted):
    """A bucket a parameter, and a second step, for which DDP makes the buckets anew."""
    model = network(dtype_of(name), here())
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=1e-5)
    model.register_comm_hook(group, distributed.ddp_hook)
    for _ in range(2):
        model.zero_grad()
        step(model, name, dist.get_rank(group))
        for parameter, bits in zip(model.parameters(), wanted, strict=True):
            assert_same_bits(parameter.grad, bits)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_ddp_hook(name, size, world):
    """DDP's gradients are the means of the ranks' gradients, in rank order."""
    world.run(size, train_with_ddp, name, averages(name, min(size, world.size), world))


def train_with_fsdp(group, name, wanted):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model, calls = network(dtype_of(name), here()), []

    class Counted(distributed.FSDPReduceScatter):
        def __call__(self, *args, **kwargs):
            calls.append(args)
            return super().__call__(*args, **kwargs)

    mesh = DeviceMesh.from_group(group, here().type)
    for module in (model[2], model):
        fully_shard(module, mesh=mesh).set_custom_reduce_scatter(Counted())
    step(model, name, dist.get_rank(group))
    for parameter, bits in zip(model.parameters(), wanted, strict=True):
        assert_same_bits(parameter.grad.full_tensor(), bits)
    assert len(calls) == (0 if dist.get_world_size(group) == 1 else 2)  # FSDP does not ask where a rank is alone
    total = torch_reduce.clip_grad_norm_(model.parameters(), 1e9)
    assert_same_bits(total, torch_reduce.get_total_norm([tensor_of(bits, name) for bits in wanted]))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_fsdp(name, size, world):
    """fully_shard's gradients are the same means, and their norm is that of the whole gradients."""
    world.run(size, train_with_fsdp, name, averages(name, min(size, world.size), world))


def test_fsdp_refuses(world):
    world.run(2, other_operations)


def other_operations(group):
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        with pytest.raises(ValueError, match="'op' must be SUM or AVG"):
            distributed.FSDPReduceScatter()(torch.ones(1), torch.ones(2), group, op)
    device = here()
    output = distributed.FSDPReduceScatter().allocate((3,), dtype=torch.float16, device=device)
    assert output.shape == (3,) and output.dtype == torch.float16 and output.device == device
    output = torch.empty(1, device=device)
    input, op = torch.ones(2, device=device), dist.ReduceOp.SUM
    distributed.FSDPReduceScatter()(output, input, group, op, async_op=True).wait()
    assert output.tolist() == [2.0]


# --- on GPUs ---------------------------------------------------------------------------------------------------------


def only_on_gpus(world):
    if world.kind == "cpu":
        pytest.skip("there is nothing to wait for on the CPU")


def numbers(count):
    return [(-1) ** k * (k << 40) + k for k in range(count)]


@walked("count", [0, 1, 31, 32, 499, 500, 501, 1000, 1203])
def test_numbers(count, device):
    """Integers of any size and number arrive, as many as one launch takes and more."""
    got = torch.ops.gpureduce._numbers(numbers(count), torch.empty(0, device=device))
    assert got.device.type == device and got.dtype == torch.int64
    assert got.tolist() == numbers(count)


def test_numbers_elsewhere():
    with pytest.raises(RuntimeError, match="must be on the CPU or on an NVIDIA GPU, but is on meta"):
        torch.ops.gpureduce._numbers([1], torch.empty(0, device="meta"))


def test_numbers_do_not_wait(cuda):
    """Nor do they in a CUDA graph, which keeps them."""
    like = torch.empty(0, device=cuda)
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.ops.gpureduce._numbers(numbers(1203), like)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = torch.ops.gpureduce._numbers(numbers(1203), like)
    got.zero_()
    graph.replay()
    assert got.tolist() == numbers(1203)


def calls_that_do_not_wait(group):
    """Functions of this rank alone, each with what it wants: all ways of a sum, and the sums over ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    calls = []
    for shape, dims, shard_dim in (([40_000], 0, 0), ([30, 4096], [0, 1], 1), ([200, 300], 0, 0)):
        x = data(shape, "float32", 3)
        cuts = [shape[shard_dim] * r // size for r in range(size + 1)]
        local, sizes = shard(x.to(here()), shard_dim, cuts, rank), [b - a for a, b in itertools.pairwise(cuts)]
        arguments = dict(group=group, shard_dim=shard_dim, sizes=sizes)
        calls.append((functools.partial(distributed.mean, local, dims, **arguments), MEAN.expected(x, dims)))
    own = data([1000 * size], "bfloat16", rank, here())
    wanted = SUM.expected(torch.stack([data([1000 * size], "bfloat16", r) for r in range(size)]), 0)

    def reduced(check):
        tensor = own.clone()
        distributed.all_reduce(tensor, group, check=check)
        return tensor

    def scattered(check):
        output = own.new_empty(1000)
        distributed.reduce_scatter(output, own, group, check=check)
        return output

    for check in (False, True):
        calls.append((functools.partial(reduced, check), wanted))
        calls.append((functools.partial(scattered, check), wanted[1000 * rank : 1000 * (rank + 1)]))
    return calls


def no_wait(group):
    for call, wanted in calls_that_do_not_wait(group):
        assert_same_bits(call(), wanted)
        torch.cuda.set_sync_debug_mode("error")
        try:
            result = call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert_same_bits(result, wanted)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = call()
        for _ in range(2):
            result.zero_()
            graph.replay()
            assert_same_bits(result, wanted)


def test_no_wait(world):
    """Where nothing is checked, or ranks have agreed before, no host waits, and a CUDA graph holds the whole call."""
    if world.kind != "nccl":
        pytest.skip("only NCCL's messages need no host")
    world.run(world.size, no_wait)


def streams(group):
    """Begun on one stream, behind a kernel that takes long, and finished on another, as late."""
    rank, size, n = dist.get_rank(group), dist.get_world_size(group), 100_000 * dist.get_world_size(group)
    parts = [data([n], "float32", r) for r in range(size)]
    wanted = SUM.expected(torch.stack(parts), 0)
    mine, gpu = parts[rank].to(here()), here().type == "cuda"
    first, second = (torch.cuda.Stream(), torch.cuda.Stream()) if gpu else (None, None)
    late = (lambda: torch.cuda._sleep(50_000_000)) if gpu else (lambda: None)
    for _ in range(2):
        if gpu:
            first.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(first):
            tensor, output = torch.zeros_like(mine), torch.empty_like(mine[: n // size])
            late()
            tensor.copy_(mine)
            works = [distributed.reduce_scatter(output, tensor, group, True, check=False)]
            works += [distributed.all_reduce(tensor, group, True, check=False)]
        with torch.cuda.stream(second):
            late()
            for work in works:
                work.wait()
        del works, work
        with torch.cuda.stream(first):  # what was received must not be this memory yet
            for _ in range(4):
                mine.new_full((n,), math.nan)
        if gpu:
            torch.cuda.current_stream().wait_stream(second)
        assert_same_bits(tensor, wanted, "all_reduce")
        assert_same_bits(output, wanted[rank * n // size : (rank + 1) * n // size], "reduce_scatter")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_streams(size, world):
    """The exchange waits for the stream on which it begins, and what follows is on the stream that waits."""
    only_on_gpus(world)
    world.run(size, streams)


def elsewhere(group, cases, name, wanted):
    """The current device is another than that of the tensors."""
    with torch.cuda.device((here().index or 0) ^ 1):
        reduce_shards(group, cases)
        reduce_ranks(group, name, 70, wanted)
        norm = torch_reduce.get_total_norm([data([5000], name, 3, here())], group=group, places=[0])
        assert norm.device == here()


def test_another_current_device(world):
    only_on_gpus(world)
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    parts = torch.stack([data((7, 5), "float32", 70 + rank) for rank in range(2)])
    cases = [case(SUM, [n], "float32", [0, 5000, n]) for n in (5000, 40_000)]
    cases.append(case(MEAN, [30, 4096], "float32", [0, 100, 4096], [0, 1], 1))
    world.run(2, elsewhere, cases, "float32", {(7, 5): SUM.expected(parts, 0)})


def no_backend(group):
    """A rank's tensor is where the group has no backend: an error, and the others know whose."""
    _messages._agreements.pop(group, None)  # of calls that all ranks know no host waits to be told
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    good, odd = torch.ones(4, device=here()), rank == size - 1
    bad = torch.ones(4)
    for all_are in (True, False):
        x = bad if all_are or odd else good
        message = "is on cpu, for which the group has no backend; it has cuda:nccl"
        message = message if x is bad else f"rank {size - 1} failed: RuntimeError: .*{message}"
        if size > 1:
            expect(group, RuntimeError, message, lambda x=x: distributed.sum(x, group=group, shard_dim=0))
        expect(group, RuntimeError, message, lambda x=x: distributed.all_reduce(x, group))
        inputs = torch.ones(4 * size, device=x.device)
        expect(group, RuntimeError, message, lambda x=x, i=inputs: distributed.reduce_scatter(x, i, group))
    with pytest.raises(RuntimeError, match="is on cpu, for which"):
        distributed.all_reduce(bad, group, check=False)
    with pytest.raises(RuntimeError, match="'output' is on cpu, for which"):
        distributed.reduce_scatter(bad, torch.ones(4 * size, device=here()), group, check=False)


def devices_disagree(group):
    """Where each device has a backend of its own, messages of two would not meet."""
    group, rank, size = dist.new_group(backend="cpu:gloo,cuda:nccl"), dist.get_rank(), dist.get_world_size()
    x = torch.ones(4, device=here() if rank else "cpu")
    others = _messages.named_ranks(list(range(1, size)))
    message = re.escape(f"the ranks disagree about the device: cpu on rank 0; cuda on {others}")
    if size > 1:
        expect(group, RuntimeError, message, lambda: distributed.sum(x, group=group, shard_dim=0))
        expect(group, RuntimeError, message, lambda: distributed.all_reduce(x, group))
    for device in ("cpu", here()):
        assert float(distributed.sum(torch.ones(5, device=device), group=group, shard_dim=0)) == 5 * size


def test_devices(world):
    if world.kind != "nccl":
        pytest.skip("gloo has messages of every device")
    world.run(world.size, no_backend)
    world.run(world.size, devices_disagree)


def pieces_elsewhere(group):
    """The piece and the input on two devices."""
    output, input = torch.ones(3), torch.ones(3 * dist.get_world_size(group), device=here())
    if here().type == "cuda":
        with pytest.raises(ValueError, match="'output' is on cpu, but 'input' on cuda:0"):
            distributed.reduce_scatter(output, input, group)
    else:
        with pytest.raises(RuntimeError, match="rank 0 failed: ValueError: .*'output' is on cpu"):
            distributed.reduce_scatter(output, input, group)


def test_pieces_elsewhere(world):
    if world.kind != "mixed":
        pytest.skip("needs devices that a group has messages for")
    world.run(2, pieces_elsewhere)


# --- the rest --------------------------------------------------------------------------------------------------------


def test_documented_and_typed():
    """Everything public has a docstring and type hints."""
    for name in distributed.__all__:
        member = getattr(distributed, name)
        assert inspect.getdoc(member), name
        methods = [one for name, one in vars(member).items() if inspect.isfunction(one) and not name.startswith("_to")]
        for function in methods if inspect.isclass(member) else [member]:
            hints = inspect.get_annotations(function)
            assert inspect.getdoc(function)
            assert set(hints) == {*inspect.signature(function).parameters, "return"} - {"self"}, name
    assert torch_reduce.distributed is distributed


# --- norms ------------------------------------------------------------------------------------------------------------

NORMS = [("vector_norm", ord) for ord in (0, 1, 2, 3, math.inf, -math.inf)] + [("powsum", ord) for ord in (0, 1, 2, 3)]


def norms_of_shards(group, cases):
    """Each case: a function and its order, the whole tensor as data() makes it, a call, and the wanted bits."""
    rank = dist.get_rank(group)
    for function, ord, shape, name, seed, permutation, dims, dtype, shard_dim, cuts, wanted in cases:
        local = Shard(shard(whole(shape, name, seed, permutation).to(here()), shard_dim, cuts, rank), shard_dim, group)
        got = getattr(torch_reduce, function)(local, ord, dims, dtype=dtype)
        what = f"{function} {ord} {shape} {name} {permutation} {dims} {dtype} {shard_dim} {cuts}"
        assert_same_bits(got, wanted, what)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_norms(size, world):
    """Every norm and sum of powers has the whole tensor's bits, of random shapes, orders in memory, dtypes and cuts."""
    rng, cases = random.Random(f"norms {size}"), []
    for function, ord in NORMS * 3:
        name = rng.choice(["float32", "bfloat16", "float16", "float64", "complex64", "complex128", "float8_e5m2"])
        shape = rng.choice([[9000], [20_000], [5, 4099], [4096, 7], [300, 5, 20], [3, 5000, 2]])
        shard_dim, permutation = rng.randrange(len(shape)), rng.sample(range(len(shape)), len(shape))
        dims = sorted({shard_dim} | {d for d in range(len(shape)) if rng.random() < 0.5})
        wide = torch.complex128 if name.startswith("complex") else torch.float64
        dtype = rng.choice([None, None, wide])
        x = whole(shape, name, size, permutation)
        op = torch.ops.gpureduce.linalg_vector_norm if function == "vector_norm" else torch.ops.gpureduce.linalg_powsum
        cuts, wanted = random_cuts(rng, shape[shard_dim], size), op(x, ord, dims, dtype=dtype)
        arguments = function, ord, shape, name, size, permutation, dims, dtype, shard_dim, cuts
        cases.append((*arguments, numpy_of(wanted)))
    world.run(size, norms_of_shards, cases)


def refuse_norms(group):
    x = torch.ones(3, device=here())
    for call, kind, text in (
        (lambda: distributed.vector_norm(x, 4, group=group, shard_dim=0), NotImplementedError, "0, 1, 2, 3, inf, -inf"),
        (lambda: distributed.powsum(x, math.inf, group=group, shard_dim=0), NotImplementedError, "one of 0, 1, 2, 3,"),
        (lambda: distributed.vector_norm(x, "2", group=group, shard_dim=0), TypeError, "must be a number, not str"),
        (lambda: distributed.vector_norm(x.int(), group=group, shard_dim=0), RuntimeError, "floating point or complex"),
        (lambda: distributed.vector_norm(x[:0], math.inf, group=group, shard_dim=0), RuntimeError, "an identity"),
    ):
        with pytest.raises(kind, match=text):
            call()


def test_norms_that_are_refused(world):
    """In the words of one process; and the largest of no elements on every rank."""
    world.run(3, refuse_norms)


# --- products, extrema and counts -------------------------------------------------------------------------------------

PROD, AMAX, AMIN = kin("prod", "amax", "amin")
REAL = [name for name in DTYPES if name not in COMPLEX]


def kin_of_shards(group, cases):
    """Each case: an operation, the whole tensor as whole_of() makes it, a call, and the wanted bits."""
    rank = dist.get_rank(group)
    for op, shape, name, seed, permutation, dims, keepdim, dtype, shard_dim, cuts, tells, wanted in cases:
        local = shard(whole_of(op, shape, name, seed, permutation, dims).to(here()), shard_dim, cuts, rank)
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        asked = {"dtype": dtype} if op.has_dtype else {}
        got = getattr(torch_reduce, op.name)(Shard(local, shard_dim, group, sizes), dims, keepdim, **asked)
        what = f"{op} {shape} {name} order {permutation} dims {dims} dtype {dtype} shard {shard_dim} {cuts}"
        assert str(got.dtype).removeprefix("torch.") == op.result(name, dtype), what
        if shard_dim not in dims:  # the result is still cut
            at = shard_dim if keepdim else shard_dim - len([d for d in dims if d < shard_dim])
            wanted = np.moveaxis(np.moveaxis(wanted, at, 0)[cuts[rank] : cuts[rank + 1]], 0, at)
        assert_same_bits(got, wanted, what)


def kin_case(op, shape, name, cuts, dims, shard_dim=0, *, permutation=None, keepdim=False, dtype=None, tells=False):
    permutation = permutation or list(range(len(shape)))
    seed = len(cuts) + shape[shard_dim]
    wanted = op.expected(whole_of(op, shape, name, seed, permutation, dims), dims, keepdim, dtype)
    return op, shape, name, seed, permutation, dims, keepdim, dtype, shard_dim, cuts, tells, wanted


@pytest.mark.parametrize("size", SIZES)
def test_kin_of_one_dim(size, world):
    """Any cuts of one long row, of every dtype: with empty shards and with shards of less than a chunk."""
    rng, cases = random.Random(f"kin {size}"), []
    for name, op in itertools.product(DTYPES, FAMILY):
        if op.takes(name):
            n = rng.choice([1, 3, 300, 4096, 4097, 9001, 12_000, 30_001])
            cases.append(kin_case(op, [n], name, random_cuts(rng, n, size), [0], tells=rng.random() < 0.5))
    cases.append(kin_case(PROD, [500 * size], "float32", [500 * rank for rank in range(size + 1)], [0]))
    cases.append(kin_case(PROD, [4096 * size], "float32", [4096 * rank for rank in range(size + 1)], [0]))
    world.run(size, kin_of_shards, cases)


@pytest.mark.parametrize("size", SIZES)
def test_kin(size, world):
    """Random shapes, dims, orders in memory, dtypes and cuts, of any dim: one that is reduced or one that is kept."""
    rng, cases = random.Random(f"kin of many dims {size}"), []
    for k in range(36):
        rank, op = rng.randint(2, 4), FAMILY[k % len(FAMILY)]
        shape = [rng.choice([1, 2, 3, 5, 17, 64, 300]) for _ in range(rank)]
        shard_dim = rng.randrange(rank)
        shape[shard_dim] = rng.choice([1, 7, 100, 4096, 5000, 20_000])
        while np.prod(shape) > 60_000:
            at = rng.randrange(rank)
            shape[at] = -(-shape[at] // 2)
        dims = {shard_dim} | {d for d in range(rank) if rng.random() < 0.5}
        if rng.random() < 0.1:
            dims = {(shard_dim + 1) % rank}
        name = rng.choice([name for name in DTYPES if op.takes(name)])
        cuts = random_cuts(rng, shape[shard_dim], size)
        made = dict(permutation=rng.sample(range(rank), rank), keepdim=rng.random() < 0.5)
        if op.has_dtype:
            made["dtype"] = rng.choice(op.targets(name, None, "float32", "bfloat16", "float64", "int32", "bool"))
        tells = min(b - a for a, b in itertools.pairwise(cuts)) > 1 and rng.random() < 0.5
        cases.append(kin_case(op, shape, name, cuts, sorted(dims), shard_dim, tells=tells, **made))
    world.run(size, kin_of_shards, cases)


def logarithms(group, cuts, wanted):
    """Of rows that are far below 0, of which no exponential is a number, and of one that has none at all."""
    rank = dist.get_rank(group)
    for name, results in wanted.items():
        x = exponents(name)[:, cuts[rank] : cuts[rank + 1]].to(here())
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        assert_same_bits(distributed.logsumexp(x, 1, group=group, shard_dim=1, sizes=sizes).cpu(), results, name)


def exponents(name):
    return torch.stack([data((30_001,), name, seed) + shift for seed, shift in ((1, -50_000), (2, 0), (3, -math.inf))])


@pytest.mark.parametrize("size", [2, 3, 5])
def test_logarithms_far_below_zero(size, world):
    """The global tensor's bits, however many nodes are missing in a group that is joined."""
    cuts = random_cuts(random.Random(size), 30_001, size)
    wanted = {name: torch_reduce.logsumexp(exponents(name), 1) for name in ("float32", "float64")}
    assert wanted["float32"][0] < -40_000
    world.run(size, logarithms, cuts, wanted)


def test_dtypes_of_products(world):
    """Every result's dtype: factors are converted to the accumulator one by one, and the product is rounded once."""
    cases, names = [], ["float32", "float64", "float16", "uint8", "int64", "bool"]
    for name, dtype in [(one, dtype) for one in names for dtype in PROD.targets(one, *REAL)]:
        cases.append(kin_case(PROD, [300, 50], name, [0, 100, 101, 300], [0], dtype=dtype))
        cases.append(kin_case(PROD, [9001, 2], name, [0, 100, 5000, 9001], [0], dtype=dtype))
    world.run(3, kin_of_shards, cases)


def test_orders_of_products_tell():
    """The data can tell: products of shards, multiplied one after the other, have other bits."""
    for name in ("float32", "float64"):
        x = whole_of(PROD, [9001, 20], name, 1, [0, 1], [0])
        parts = [PROD(part, [0]) for part in x.split([100, 4900, 4001])]
        assert not (parts[0] * parts[1] * parts[2]).equal(PROD(x, [0]))


def test_accumulators_of_products():
    """Every pair of dtypes is multiplied in what the model multiplies it in."""
    for source, target in itertools.product(REAL, repeat=2):
        wanted = model.products(np.zeros((1, 1, 1), model.STORAGE[source][0]), source, target, False).dtype
        found = _operations.node_dtype("prod", dtype_of(source), dtype_of(target))
        assert found == dtype_of("bool" if target == "bool" else str(wanted))


def special_numbers(device="cpu"):
    """Rows of NaN, infinities and zeros of both signs, for three ranks, of which the second has one column."""
    rows = [[1.0, math.nan, 2.0], [math.nan, 1.0, 3.0], [1.0, 2.0, math.nan], [-0.0, 0.0, -0.0], [0.0, -0.0, -0.0]]
    rows += [[-0.0, -0.0, -0.0], [-math.inf, -1.0, -0.0], [0.0, 1.0, math.inf], [math.nan, math.inf, -math.inf]]
    rows = torch.tensor(rows, dtype=torch.float64, device=device)
    return torch.cat([rows[:, :1].expand(-1, 700), rows[:, 1:2], rows[:, 2:].expand(-1, 5000)], 1)


def special_shards(group, cases):
    rank, cuts = dist.get_rank(group), [0, 700, 701, 5701]
    for op, name, wanted in cases:
        local = shard(special_numbers(here()).to(dtype_of(name)), 1, cuts, rank)
        assert_same_bits(getattr(torch_reduce, op.name)(Shard(local, 1, group), 1), wanted, f"{op} {name}")


def test_special_numbers(world):
    """NaN wins on whichever rank it stands, and counts; 0.0 is above -0.0."""
    names = ["float32", "bfloat16", "float64", "float8_e5m2", "float8_e4m3fn"]
    cases = [(op, name, op.expected(special_numbers().to(dtype_of(name)), 1)) for op in FAMILY for name in names]
    world.run(3, special_shards, cases)


def no_elements(group):
    """Of no elements at all, and where only this rank or that one has none."""
    x, rank = torch.ones(0, 3, device=here()), dist.get_rank(group)
    for name, wanted in (
        ("prod", 1),
        ("any", False),
        ("all", True),
        ("count_nonzero", 0),
        ("nansum", 0),
        ("logsumexp", -math.inf),
    ):
        result = getattr(torch_reduce, name)(Shard(x, 0, group), 0)
        assert result.tolist() == [wanted] * 3, name
    for function in (distributed.amax, distributed.amin):
        for dim in (0, None):
            with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
                function(x, dim, group=group, shard_dim=0)
        assert function(x, 1, group=group, shard_dim=0).shape == (0,)  # of a kept dim there is nothing to find
        for owner in range(dist.get_world_size(group)):
            mine = -torch.ones(int(rank == owner), 3, device=here())
            assert function(mine, 0, group=group, shard_dim=0).tolist() == [-1.0] * 3


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_elements(size, world):
    world.run(size, no_elements)


def kin_of_a_matrix(group, name, n, outputs, sizes, dtype):
    x = torch.ones(sizes[dist.get_rank(group)], outputs, dtype=dtype_of(dtype), device=here())
    result = getattr(torch_reduce, name)(Shard(x, 0, group, sizes), 0)
    assert result.eq(n if name in ("sum", "count_nonzero") else 1).all()


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_traffic_of_kin(size, world):
    """Where no order shows, no element is sent: a node an output to all, or as a ring sends it where that is less."""
    sizes = [1000 * (rank + 1) for rank in range(size)]
    n = sum(sizes)
    for name, dtype, item in (
        ("amax", "bfloat16", 2),
        ("amin", "float64", 8),
        ("any", "float32", 8),
        ("all", "uint8", 8),
        ("count_nonzero", "float32", 8),
        ("sum", "int8", 8),
        ("prod", "int32", 8),
    ):
        for outputs in (1, 80):
            for sent in world.run(size, traffic, kin_of_a_matrix, name, n, outputs, sizes, dtype):
                if size == 2 or outputs == 1:
                    assert sent == {"all_to_all": [0, 0], "all_gather": [item * outputs * (size - 1), 1]}, name
                    continue
                own = [outputs * (rank + 1) // size - outputs * rank // size for rank in range(size)]
                assert sent["all_gather"] == [item * max(own) * (size - 1), 1], name
                assert sent["all_to_all"][0] in [item * (outputs - part) for part in own], name
                assert sent["all_to_all"][1] == size - 1, name
    for sent in world.run(size, traffic, kin_of_a_matrix, "prod", n, 1, sizes, "float32"):
        assert sent["all_gather"][0] > 0 and sent["all_to_all"][0] < 4096 * 4  # as of sums


def logsumexp_of_vocabulary(group, rows, sizes, dtype):
    rank = dist.get_rank(group)
    whole = data([rows, sum(sizes)], dtype, 3, here())
    mine = whole.split(sizes, 1)[rank].contiguous()
    result = distributed.logsumexp(mine, 1, group=group, shard_dim=1, sizes=sizes)
    assert_same_bits(result, torch_reduce.logsumexp(whole, 1))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype, node", [("bfloat16", 4), ("float32", 4), ("float64", 8), ("int16", 8)])
def test_traffic_of_logarithms(size, dtype, node, world):
    """Over a dim that is cut the largest elements are exchanged, and sums, a node each; and parts of chunks."""
    rows, item = 6, dtype_of(dtype).itemsize
    for extra in (0, 100):
        sizes = [4096 * (rank + 1) + extra for rank in range(size)]
        nodes = max(map(len, _rank_plan.plan_of(tuple(sizes), 1, 1, rows, item, node).nodes))
        for rank, sent in enumerate(world.run(size, traffic, logsumexp_of_vocabulary, rows, sizes, dtype)):
            own = [rows * (r + 1) // size - rows * r // size for r in range(size)]  # whose largest a rank finds
            largest = rows if size == 2 else max(own)
            assert sent["all_gather"] == [(item * largest + node * rows * nodes) * (size - 1), 2]
            for_largest = 0 if size == 2 else item * (rows - own[rank])
            assert 0 <= sent["all_to_all"][0] - for_largest <= rows * 4095 * item * bool(extra)


def gradients_and_orders(group):
    """Only what has a gradient is refused with one; and shards may lie in memory as they like where no order shows."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    x = torch.ones(4, 6, device=here(), requires_grad=True)
    for name in ("prod", "amax", "amin", "logsumexp"):
        with pytest.raises(RuntimeError, match=f"{name}.*'x' requires a gradient"):
            getattr(torch_reduce, name)(Shard(x, 0, group))
    assert int(distributed.count_nonzero(x, group=group, shard_dim=0)) == 24 * size
    for function in (distributed.any, distributed.all):
        assert bool(function(x, group=group, shard_dim=0))
    y = data([3, 5], "float32", rank, here())
    y = y.t().contiguous().t() if rank == 1 else y
    wanted = torch.cat([data([3, 5], "float32", r) for r in range(size)])
    assert_same_bits(distributed.amax(y, group=group, shard_dim=0), AMAX.expected(wanted))
    if size > 1:
        with pytest.raises(RuntimeError, match="disagree about the order"):
            distributed.prod(y, group=group, shard_dim=0)
        with pytest.raises(RuntimeError, match="disagree about the function: amin on ranks? 0.*; amax on rank 1"):
            (distributed.amax if rank == 1 else distributed.amin)(y, group=group, shard_dim=0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_gradients_and_orders(size, world):
    world.run(size, gradients_and_orders)


def refuse_kin(group):
    x = torch.ones(3, 4, dtype=torch.complex64, device=here())
    for name in ("prod", "amax", "amin", "logsumexp"):
        with pytest.raises(NotImplementedError, match=f"{name}.*complex numbers"):
            getattr(torch_reduce, name)(Shard(x, 0, group))
    with pytest.raises(NotImplementedError, match="products of complex"):
        distributed.prod(x.real, dtype=torch.complex64, group=group, shard_dim=0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        distributed.amax(x.real, 2, group=group, shard_dim=0)
    with pytest.raises(TypeError, match="the Shard's 'dim' must be an int"):
        distributed.any(x, group=group, shard_dim=None)


def test_kin_that_is_refused(world):
    """In the words of one process."""
    world.run(3, refuse_kin)
