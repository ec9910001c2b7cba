"""Exact sums over ranks: of DTensors and Shards they have the bits that the whole tensor has in one process.

test_exact.py compares those with Python's fractions.
"""

import itertools
import math
import random
import re

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial

import torch_reduce
import torch_reduce.distributed as distributed
from support import DTYPES, FLOATING, assert_same_bits, data, dtype_of
from test_distributed import compared_late, expect, random_cuts, shard
from test_dtensor import (
    S0,
    S1,
    R,
    assert_result,
    cut,
    inside,
    mesh_of,
    only_where_torch_moves,
    placed,
    random_placement,
)
from test_exact import FUNCTIONS, patterns
from torch_reduce.distributed import Shard, _messages
from worlds import here, traffic

WORLDS = ["cpu", "gpus", "nccl"]
OPS = torch.ops.gpureduce
functions = pytest.mark.parametrize("function", FUNCTIONS)
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


# --- data and cases ---------------------------------------------------------------------------------------------------


def elements(shape, name, seed, kind, permutation=None):
    """A tensor whose dims lie in memory in an order, slowest first. Its kind is one of KINDS."""
    permutation = permutation or list(range(len(shape)))
    stored = [shape[d] for d in permutation]
    if name not in FLOATING or kind == "usual" or 0 in shape:
        x = data(stored, name, seed)
    elif kind == "cancels":  # in pairs that are far from each other, but for a few small numbers
        flat = data([math.prod(stored)], name, seed).double()
        half = len(flat) // 2
        flat[half : 2 * half] = -flat[:half].flip(0)
        flat[3::97] *= 2.0**-6
        x = flat.to(dtype_of(name)).view(stored)
    else:
        x = patterns(stored, name, seed, finite=kind == "wide")
    return x.permute([permutation.index(d) for d in range(len(shape))])


KINDS = ("usual", "cancels", "wide", "not finite")


def targets(function, name):
    """The dtypes that may be asked for."""
    taken = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn]
    if function == "nansum":  # which makes no complex number of others
        taken = taken[:3]
    usual = function != "mean" or name in FLOATING or name.startswith("complex")
    return [*taken, *([None, None] if usual else []), *([torch.int32] if function == "sum" else [])]


def random_call(rng, k):
    """A function, what elements() takes, and the function's arguments."""
    function = FUNCTIONS[k % len(FUNCTIONS)]
    ndim = rng.randint(1, 4)
    shape = [rng.choice([1, 2, 3, 5, 17, 64]) for _ in range(ndim)]
    shape[rng.randrange(ndim)] = rng.choice([0, 1, 7, 100, 2000])
    while math.prod(shape) > 8000:
        at = rng.randrange(ndim)
        shape[at] = -(-shape[at] // 2)
    often = ["float32", "bfloat16", "float64", "complex64"]
    name = rng.choice([*often, rng.choice(DTYPES)])
    if function == "nansum" and not dtype_of(name).is_floating_point:
        name = "float32"
    dims = rng.choice([None, [d for d in range(ndim) if rng.random() < 0.6] or [0]])
    what = shape, name, k, rng.choice(KINDS), rng.sample(range(ndim), ndim)
    return function, what, (dims, rng.random() < 0.5), rng.choice(targets(function, name))


# --- DTensors ---------------------------------------------------------------------------------------------------------


def reduce_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for (function, what, (dims, keepdim), dtype), placements in cases:
        x = elements(*what)
        wanted = getattr(torch_reduce, function)(x, dims, keepdim, dtype=dtype, exact=True)
        places = placed(placements, range(x.dim()) if dims is None else dims, keepdim)
        told = f"{function} {what} {dims} {keepdim} {dtype} {placements}"
        for call in (
            lambda *a, f=function, **k: getattr(torch_reduce, f)(*a, exact=True, **k),
            exact_operator(function),
        ):
            assert_result(call(cut(x, mesh, placements), dims, keepdim, dtype=dtype), wanted, mesh, places, told)


def exact_operator(function):
    return getattr(OPS, f"exact_{function}")


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (2, 2), (3, 2)], ids=str)
def test_dtensors(shape, world):
    """Of all placements, dims, layouts and dtypes; cuts are uneven, and some ranks have nothing."""
    rng = random.Random(f"exact {shape}")
    calls = [random_call(rng, k) for k in range(45)]
    cases = [(call, [random_placement(rng, len(call[1][0])) for _ in shape]) for call in calls]
    world.run(world.size, reduce_dtensors, shape, cases)


def test_order_would_tell():
    """The data can tell: the ordinary functions give other bits."""
    for name in ("float32", "bfloat16", "float64"):
        for kind in ("usual", "cancels", "wide"):
            x = elements([701, 5], name, 1, kind)
            for function in FUNCTIONS:
                ordered, exact = (getattr(torch_reduce, function)(x, 0, exact=exact) for exact in (False, True))
                assert not ordered.equal(exact) or name == "bfloat16", (name, kind, function)


def partial_dtensors(group):
    mesh, rank = mesh_of((3,)), dist.get_rank()
    parts = [data([50, 7], "bfloat16", k, here()) for k in range(3)]
    whole = torch_reduce.sum(torch.stack(parts), 0)  # pairwise in rank order, and rounded: that is the global tensor
    if inside(mesh):
        x = DTensor.from_local(parts[rank], mesh, [Partial()])
        for function in FUNCTIONS:
            for dim in (0, 1, None):
                call = getattr(torch_reduce, function)
                places = placed([Partial()], [0], False)
                assert_result(call(x, dim, exact=True), call(whole, dim, exact=True), mesh, places, function)


def test_partials(world):
    world.run(world.size, partial_dtensors)


def gradients_of_dtensors(group, function):
    call = getattr(torch_reduce, function)
    for shape, placements in (((2,), [S0]), ((3,), [S1]), ((2, 2), [S0, S1]), ((2, 2), [R, S0])):
        mesh = mesh_of(shape)
        for name, dim in itertools.product(("float32", "bfloat16", "complex64"), (0, 1, None)):
            if name == "complex64" and (function == "nansum" or dim is None):
                continue  # torch has no view_as_real of a scalar DTensor, which the gradient of a mean needs
            found = []
            for exact in (False, True):
                leaf = cut(data([37, 5], name, 3), mesh, placements).requires_grad_()
                result = call(leaf, dim, exact=exact)
                if inside(mesh):
                    weight = cut(data(result.shape, name, 4), mesh, result.placements)
                    result.backward(weight)
                    found.append(leaf.grad)
            if found:
                ordered, exact = found
                assert ordered.placements == exact.placements
                assert exact.to_local().ne(0).any() or exact.to_local().numel() == 0
                assert_same_bits(exact.to_local(), ordered.to_local(), f"{function} {name} {dim} {placements}")


@functions
def test_gradients(function, world):
    """Those of the ordinary functions, in their placements."""
    only_where_torch_moves(world)
    world.run(world.size, gradients_of_dtensors, function)


def write(group):
    mesh, x = mesh_of((3,)), elements([37, 50], "float32", 3, "cancels")
    for function in FUNCTIONS:
        call = getattr(torch_reduce, function)
        for placements, dtype in itertools.product(([R], [S0]), (torch.float32, torch.float64)):
            out = cut(torch.zeros(50, dtype=dtype), mesh, placements)
            assert call(cut(x, mesh, [S0]), 0, out=out, exact=True) is out
            assert_result(out, call(x, 0, dtype=dtype, exact=True), mesh, placements, f"{function} {dtype}")


def test_out(world):
    """out= is written in its own placements."""
    only_where_torch_moves(world)
    world.run(world.size, write)


def compiled(group):
    for shape, placements, dim in (((2,), [S0], 0), ((2, 2), [S0, S1], None)):
        mesh, x = mesh_of(shape), elements([37, 50], "float32", 3, "cancels")
        if inside(mesh):
            leaf = cut(x, mesh, placements).requires_grad_()
            result = torch.compile(
                lambda x, dim=dim: torch_reduce.mean(x * 2, dim, exact=True), backend="aot_eager", fullgraph=True
            )(leaf)
            wanted = torch_reduce.mean(x * 2, dim, exact=True)
            assert_result(result.detach(), wanted, mesh, [R] * len(shape), f"{placements} {dim}")
            result.sum().backward()
            assert_same_bits(leaf.grad.full_tensor(), torch.full_like(x, 2 / (x.numel() / result.numel())))


def test_compiled(world):
    """In one graph, forward and backward."""
    only_where_torch_moves(world)
    world.run(world.size, compiled)


def sum_exactly(group, mesh, placements, shape, dim):
    torch_reduce.sum(cut(torch.ones(shape, device=here()), mesh_of(mesh), placements), dim, exact=True)


@pytest.mark.parametrize(
    "mesh, placements, shape, dim, exchanged, gathered",
    [
        ((4,), [S0], [100, 6], 1, 0, 0),  # a kept dim
        ((4,), [R], [100, 6], 0, 0, 0),
        ((2,), [S0], [5000, 2], 0, 0, 2 * 12 * 8),  # a state an output
        ((4,), [S0], [5000, 2], 0, 2 * 12 * 8 // 4 * 3, 2 * 12 * 8 // 4 * 3),  # a ring's volume
        ((2, 2), [S0, S1], [50, 70], None, 0, 2 * 12 * 8),  # one dim of the mesh after the other
    ],
)
def test_traffic(mesh, placements, shape, dim, exchanged, gathered, world):
    """The bytes that each rank sends to others, as docs/exact.md says."""
    for sent in world.run(world.size, traffic, sum_exactly, mesh, placements, shape, dim)[: math.prod(mesh)]:
        assert [sent["all_to_all"][0], sent["all_gather"][0]] == [exchanged, gathered]


# --- Shards -----------------------------------------------------------------------------------------------------------


def reduce_shards(group, cases):
    rank = dist.get_rank(group)
    for (function, what, (dims, keepdim), dtype), shard_dim, cuts, tells in cases:
        x = elements(*what).to(here())
        wanted = getattr(torch_reduce, function)(x, dims, keepdim, dtype=dtype, exact=True)
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        local = Shard(shard(x, shard_dim, cuts, rank), shard_dim, group, sizes if tells else None)
        if dims is not None and shard_dim not in dims:  # the result is still cut
            wanted = shard(wanted, shard_dim - (0 if keepdim else sum(d < shard_dim for d in dims)), cuts, rank)
        told = f"{function} {what} {dims} {keepdim} {dtype} {shard_dim} {cuts}"
        got = getattr(torch_reduce, function)(local, dims, keepdim, dtype=dtype, exact=True)
        assert_same_bits(got, wanted, told)
        assert_same_bits(exact_operator(function)(local, dims, keepdim, dtype=dtype), wanted, told)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shards(size, world):
    """Of any cuts, layouts and dtypes, with sizes and without."""
    rng, cases = random.Random(f"exact {size}"), []
    for k in range(45):
        call = random_call(rng, k)
        shard_dim = rng.randrange(len(call[1][0]))
        cuts = random_cuts(rng, call[1][0][shard_dim], size)
        cases.append((call, shard_dim, cuts, rng.random() < 0.5))
    world.run(size, reduce_shards, cases)


def special_shards(group):
    rank = dist.get_rank(group)

    def total(*values, function="sum"):
        x = torch.tensor(values[rank], device=here())
        return getattr(torch_reduce, function)(Shard(x, 0, group), exact=True).item()

    assert math.copysign(1, total([-0.0, -0.0], [], [-0.0])) == -1
    assert math.copysign(1, total([-0.0, 0.0], [], [-0.0])) == 1
    assert total([], [], []) == 0 and math.isnan(total([], [], [], function="mean"))
    assert total([3e38], [3e38, 1.0], [-3e38, -3e38]) == 1
    assert total([3e38], [3e38, 1.0], []) == math.inf and total([3e38], [3e38], [], function="mean") == total(
        [3e38], [], []
    )
    assert total([math.inf], [-1.0], [math.inf]) == math.inf and math.isnan(total([math.inf], [], [-math.inf]))
    assert math.isnan(total([1.0], [math.nan], [])) and total([1.0], [math.nan], [2.0], function="nansum") == 3


def test_special_values(world):
    world.run(3, special_shards)


def gradients_of_shards(group):
    rank, x = dist.get_rank(group), data([30, 8], "float32", 1, here())
    for function in FUNCTIONS:
        call, found = getattr(torch_reduce, function), []
        for exact in (False, True):
            mine = shard(x, 0, [0, 11, 30], rank).clone().requires_grad_()
            call(Shard(mine, 0, group), 1, exact=exact).mul(3).sum().backward()
            found.append(mine.grad)
            with pytest.raises(RuntimeError, match=rf"^{function}\(\): 'x' requires a gradient"):
                call(Shard(mine, 0, group, [11, 19]), 0, exact=exact)
        assert found[1].ne(0).all()
        assert_same_bits(*found, function)


def test_gradients_of_shards(world):
    """Along the other dims they flow; along the one that is cut none does."""
    world.run(2, gradients_of_shards)


def refused(group):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    others = "ranks 0, 2"
    expect(
        group,
        RuntimeError,
        re.escape(f"the ranks disagree about the function: sum with exact=True on {others}; sum on rank 1"),
        lambda: torch_reduce.sum(Shard(x, 0, group), exact=rank != 1),
    )
    expect(
        group,
        TypeError,
        "'out' cannot be given beside a Shard",
        lambda: torch_reduce.sum(Shard(x, 0, group), out=x, exact=True),
    )
    expect(group, TypeError, "'exact' must be bool, not int", lambda: torch_reduce.sum(Shard(x, 0, group), exact=1))
    expect(
        group,
        IndexError,
        r"sum\(\): the Shard's 'dim' must be in",
        lambda: torch_reduce.sum(Shard(x, 2, group, [4] * 3), exact=True),
    )


def test_errors(world):
    world.run(3, refused)


# --- sums over ranks --------------------------------------------------------------------------------------------------


def reduce_ranks(group, name):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for shape in ((0, 3), (1, 1), (7, 5), (size * 3, 11)):
        parts = torch.stack([elements(shape, name, k, "usual") for k in range(size)]).to(here())
        if size > 1 and name in FLOATING:
            parts[-1] = -parts[0]
        wanted = torch_reduce.sum(parts, 0, dtype=dtype_of(name), exact=True)
        total = parts[rank].clone()
        assert distributed.all_reduce(total, group, exact=True) is None
        assert_same_bits(total, wanted, f"{name} {shape}")
        total = parts[rank].clone()
        distributed.all_reduce(total, group, True, exact=True).wait()
        assert_same_bits(total, wanted, f"{name} {shape}, async")
        if shape[0] == size * 3:
            output = total.new_zeros(3, shape[1])
            distributed.reduce_scatter(output, parts[rank], group, exact=True)
            assert_same_bits(output, wanted[3 * rank : 3 * rank + 3], f"{name} {shape}, scattered")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "complex64", "int8", "bool"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_over_ranks(name, size, world):
    """The exact sum of each element, wherever the rank is that has an addend."""
    world.run(size, reduce_ranks, name)


def order_of_ranks(group):
    rank, found = dist.get_rank(group), []
    for order in itertools.permutations(range(3)):
        total = torch.tensor([[1e30, 1.0, -1e30][order[rank]]], device=here())
        distributed.all_reduce(total, group, exact=True)
        found.append(total.item())
    assert found == [1.0] * 6


def test_no_order_of_ranks(world):
    world.run(3, order_of_ranks)


def disagreeing(group):
    rank = dist.get_rank(group)
    for call in (
        lambda exact: distributed.all_reduce(torch.ones(6, device=here()), group, exact=exact),
        lambda exact: distributed.reduce_scatter(*torch.ones(8, device=here()).split([2, 6]), group, exact=exact),
    ):
        with compared_late(group):
            call(True)
            call(False)
            assert len(_messages.agreements_of(group)._notices) == 2  # so that no GPU takes one for the other
        told = r"the function: (all_reduce|reduce_scatter) on ranks 0, 2; \1 with exact=True on rank 1"
        if "cpu" in _messages.backends_of(group):  # where GPUs compare, it is no error that Python can catch
            expect(group, RuntimeError, told, lambda call=call: call(rank == 1))
        expect(group, TypeError, "argument 'exact' must be bool, not str", lambda call=call: call("yes"))


def test_disagreeing(world):
    """Ranks of which one adds exactly, after calls of both kinds."""
    world.run(3, disagreeing)
