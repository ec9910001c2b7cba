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
from torch.distributed.tensor import Shard as DShard

import torch_reduce
import torch_reduce.distributed as distributed
from support import DTYPES, FLOATING, assert_same_bits, data, dtype_of
from test_distributed import compared_late, expect, random_cuts, shard
from test_distributed_family import common_part, random_problem, random_weights
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
NORMS = ("powsum", "vector_norm")
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
    if function in NORMS:
        return [None, torch.complex128 if name.startswith("complex") else torch.float64]
    taken = [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e4m3fn]
    if function == "nansum":  # which makes no complex number of others
        taken = taken[:3]
    usual = function != "mean" or name in FLOATING or name.startswith("complex")
    return [*taken, *([None, None] if usual else []), *([torch.int32] if function == "sum" else [])]


def random_call(rng, k):
    """A function, what elements() takes, and the function's arguments."""
    function = [*FUNCTIONS, *NORMS][k % 5]
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
    if function in NORMS and name not in FLOATING and not name.startswith("complex"):
        name = "float64"
    dims = rng.choice([None, [d for d in range(ndim) if rng.random() < 0.6] or [0]])
    what = shape, name, k, rng.choice(KINDS), rng.sample(range(ndim), ndim)
    return function, what, (dims, rng.random() < 0.5), rng.choice(targets(function, name))


def exactly(function, x, dims, keepdim, dtype):
    return getattr(torch_reduce, function)(x, dim=dims, keepdim=keepdim, dtype=dtype, exact=True)


def by_operator(function, x, dims, keepdim, dtype):
    operator = getattr(OPS, f"exact_linalg_{function}" if function in NORMS else f"exact_{function}")
    return operator(x, dim=dims, keepdim=keepdim, dtype=dtype)


# --- DTensors ---------------------------------------------------------------------------------------------------------


def reduce_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for (function, what, (dims, keepdim), dtype), placements in cases:
        x = elements(*what)
        wanted = exactly(function, x, dims, keepdim, dtype)
        places = placed(placements, range(x.dim()) if dims is None else dims, keepdim)
        told = f"{function} {what} {dims} {keepdim} {dtype} {placements}"
        for call in (exactly, by_operator):
            assert_result(call(function, cut(x, mesh, placements), dims, keepdim, dtype), wanted, mesh, places, told)


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (2, 2), (3, 2)], ids=str)
def test_dtensors(shape, world):
    """Of all placements, dims, layouts and dtypes; cuts are uneven, and some ranks have nothing."""
    rng = random.Random(f"exact {shape}")
    calls = [random_call(rng, k) for k in range(75)]
    cases = [(call, [random_placement(rng, len(call[1][0])) for _ in shape]) for call in calls]
    world.run(world.size, reduce_dtensors, shape, cases)


def test_order_would_tell():
    """The data can tell: the ordinary functions give other bits."""
    for name in ("float32", "bfloat16", "float64"):
        for kind in ("usual", "cancels", "wide"):
            x = elements([701, 5], name, 1, kind)
            for function in (*FUNCTIONS, *(["powsum"] if kind == "usual" else [])):
                ordered, exact = (getattr(torch_reduce, function)(x, dim=0, exact=exact) for exact in (False, True))
                assert not ordered.equal(exact) or name == "bfloat16", (name, kind, function)
            ordered, exact = (torch_reduce.weighted_sum(x, x.flip(0), 0, exact=exact) for exact in (False, True))
            assert not ordered.equal(exact) or name == "bfloat16" or kind == "wide", (name, kind)


def partial_dtensors(group):
    mesh, rank = mesh_of((3,)), dist.get_rank()
    parts = [data([50, 7], "bfloat16", k, here()) for k in range(3)]
    whole = torch_reduce.sum(torch.stack(parts), 0)  # pairwise in rank order, and rounded: that is the global tensor
    if inside(mesh):
        x = DTensor.from_local(parts[rank], mesh, [Partial()])
        for function in (*FUNCTIONS, *NORMS):
            for dim in (0, 1, None):
                places = placed([Partial()], [0], False)
                found, wanted = (exactly(function, one, dim, False, None) for one in (x, whole))
                assert_result(found, wanted, mesh, places, function)
        for dim in (0, 1, None):
            got = torch_reduce.weighted_sum(x, cut(data([7], "float32", 9), mesh, [S0]), dim, exact=True)
            wanted = torch_reduce.weighted_sum(whole, data([7], "float32", 9, whole.device), dim, exact=True)
            assert_result(got, wanted, mesh, got.placements, f"weighted {dim}")


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


def random_product(rng, k, budget=4000):
    """What elements() takes for two tensors that are broadcast, their common shape, the dim to cut, and the arguments
    of weighted_sum."""
    shape, shard_dim, dims, permutation = random_problem(rng, budget)
    names = PAIRS[k % len(PAIRS)]
    pair = [
        (*one[:2], k + at, rng.choice(KINDS), one[3])
        for at, one in enumerate(random_weights(rng, shape, names, permutation))
    ]
    taken = [None, None, torch.float32, torch.bfloat16, torch.float64, torch.int32]
    return pair, shape, shard_dim, (dims, rng.random() < 0.5), rng.choice(taken)


PAIRS = [("float32", "float32"), ("bfloat16", "bool"), ("bfloat16", "float32"), ("float64", "float32")]
PAIRS += [("float64", "float64"), ("int32", "int64"), ("float8_e5m2", "float8_e5m2"), ("int16", "float16")]


def weighted_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for (pair, _, _, (dims, keepdim), dtype), placements in cases:
        x, w = (elements(*one) for one in pair)
        wanted = torch_reduce.weighted_sum(x, w, dims, keepdim, dtype=dtype, exact=True)
        mine = [cut(one, mesh, own) for one, own in zip((x, w), placements, strict=True)]
        for call in (lambda *a, **k: torch_reduce.weighted_sum(*a, exact=True, **k), OPS.exact_weighted_sum):
            got = call(*mine, dims, keepdim, dtype=dtype)
            assert_result(got, wanted, mesh, got.placements, f"{pair} {placements} {dims} {dtype}")


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (2, 2), (3, 2)], ids=str)
def test_weighted_dtensors(shape, world):
    """Both are DTensors of any placements of their own."""
    only_where_torch_moves(world)
    rng, cases = random.Random(f"exact products {shape}"), []
    for k in range(3 * len(PAIRS)):
        call = random_product(rng, k)
        placements = [[rng.choice([R, *map(DShard, range(len(one[0])))]) for _ in shape] for one in call[0]]
        cases.append((call, placements))
    world.run(world.size, weighted_dtensors, shape, cases)


def other_products(group):
    """dot, out=, gradients of each function, and a compiled graph."""
    mesh, x, w = mesh_of((2, 2)), elements([40, 6], "float32", 3, "cancels"), elements([40, 6], "float32", 4, "usual")
    for placements in ([S0, S0], [S0, S1], [R, S0], [S0, R]):
        a, b = cut(x, mesh, placements), cut(w, mesh, placements)
        for one, other in ((a[:, 0], b[:, 0]), (a[:, 1], cut(w[:, 1], mesh, [R, R]))):
            if inside(mesh):
                wanted = torch_reduce.dot(one.full_tensor(), other.full_tensor(), exact=True)
                assert_same_bits(torch_reduce.dot(one, other, exact=True).to_local(), wanted, f"dot {placements}")
        for function in (
            lambda x, w, **more: torch_reduce.weighted_sum(x, w, 0, exact=True, **more),
            lambda x, w, **more: torch_reduce.powsum(x, 2, 0, exact=True, **more),
            lambda x, w, **more: torch_reduce.vector_norm(x, 2, 0, exact=True, **more),
        ):
            out = cut(torch.zeros(6), mesh, [R, S0])
            assert function(a, b, out=out) is out
            wanted = function(x, w)
            assert_result(out, wanted, mesh, [R, S0], f"{placements}")
            leaves = [one.clone().requires_grad_() for one in (x, w)]
            wanted = torch.autograd.grad(function(*leaves), leaves, torch.ones(6), allow_unused=True)
            if inside(mesh):
                ours = [one.detach().requires_grad_() for one in (a, b)]
                compiled = [torch.compile(function, backend="aot_eager", fullgraph=True)] * (placements == [S0, S1])
                for run in (function, *compiled):
                    result = run(*ours)
                    found = torch.autograd.grad(result, ours, torch.ones_like(result), allow_unused=True)
                    for got, whole in zip(found, wanted, strict=True):
                        assert (got is None) == (whole is None)
                        if got is not None:
                            assert_same_bits(got.full_tensor(), whole.to(got.device), f"gradient {placements}")


def test_other_products(world):
    only_where_torch_moves(world)
    world.run(world.size, other_products)


def add_products_exactly(group, placements, of_w, dim):
    x, w = (cut(torch.ones(100, 6, device=here()), mesh_of((2,)), one) for one in (placements, of_w))
    torch_reduce.weighted_sum(x, w, dim, exact=True)


@pytest.mark.parametrize(
    "placements, of_w, dim, states", [([S0], [S0], 1, 0), ([S0], [R], 0, 6), ([R], [S0], 0, 6), ([R], [R], 0, 0)]
)
def test_traffic_of_products(placements, of_w, dim, states, world):
    """A state of 70 numbers an output, and no factor that every rank has."""
    for sent in world.run(world.size, traffic, add_products_exactly, placements, of_w, dim)[:2]:
        assert [sent["all_to_all"][0], sent["all_gather"][0]] == [0, states * 70 * 8]


# --- Shards -----------------------------------------------------------------------------------------------------------


def weighted_shards(group, cases):
    rank = dist.get_rank(group)
    for (pair, shape, shard_dim, (dims, keepdim), dtype), cuts, tells in cases:
        x, w = (elements(*one).to(here()) for one in pair)
        wanted = torch_reduce.weighted_sum(x, w, dims, keepdim, dtype=dtype, exact=True)
        if shard_dim not in dims:
            wanted = shard(wanted, shard_dim - (0 if keepdim else sum(d < shard_dim for d in dims)), cuts, rank)
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        mine, at = [common_part(one, shape, shard_dim, cuts, rank) for one in (x, w)], shard_dim - len(shape)
        local = [Shard(one, at, group, sizes) if -at <= one.dim() else one for one in mine]
        for factors in ((local[0], mine[1]), (mine[0], local[1]), local):
            if any(isinstance(one, Shard) for one in factors):
                got = torch_reduce.weighted_sum(*factors, dims, keepdim, dtype=dtype, exact=True)
                assert_same_bits(got, wanted, f"{pair} {dims} {keepdim} {dtype} {shard_dim} {cuts}")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_weighted_shards(size, world):
    """Either may be the Shard, or both; of any cuts, dtypes and shapes, and of ranks that have nothing."""
    rng, cases = random.Random(f"exact products {size}"), []
    for k in range(48):
        call = random_product(rng, k)
        cuts = random_cuts(rng, call[1][call[2]], size)
        # A dim of size 1 on one rank alone would be broadcast there.
        tells = min(b - a for a, b in itertools.pairwise(cuts)) > 1
        cases.append((call, cuts, tells))
    world.run(size, weighted_shards, cases)


def reduce_shards(group, cases):
    rank = dist.get_rank(group)
    for (function, what, (dims, keepdim), dtype), shard_dim, cuts, tells in cases:
        x = elements(*what).to(here())
        wanted = exactly(function, x, dims, keepdim, dtype)
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        local = Shard(shard(x, shard_dim, cuts, rank), shard_dim, group, sizes if tells else None)
        if dims is not None and shard_dim not in dims:  # the result is still cut
            wanted = shard(wanted, shard_dim - (0 if keepdim else sum(d < shard_dim for d in dims)), cuts, rank)
        told = f"{function} {what} {dims} {keepdim} {dtype} {shard_dim} {cuts}"
        assert_same_bits(exactly(function, local, dims, keepdim, dtype), wanted, told)
        assert_same_bits(by_operator(function, local, dims, keepdim, dtype), wanted, told)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shards(size, world):
    """Of any cuts, layouts and dtypes, with sizes and without."""
    rng, cases = random.Random(f"exact {size}"), []
    for k in range(75):
        call = random_call(rng, k)
        shard_dim = rng.randrange(len(call[1][0]))
        cuts = random_cuts(rng, call[1][0][shard_dim], size)
        cases.append((call, shard_dim, cuts, rng.random() < 0.5))
    world.run(size, reduce_shards, cases)


def older_names(group):
    x, weight = (patterns((30,), "float32", seed).to(here()) for seed in (5, 6))
    offsets, sizes = torch.tensor([0, 5, 20, 30], device=here()), [11, 19]
    mine, factors = (one.split(sizes)[dist.get_rank(group)] for one in (x, weight))
    named = dict(group=group, sizes=sizes, exact=True)
    for name in ("sum", "mean", "nansum", "powsum", "vector_norm"):
        wanted = getattr(torch_reduce, name)(x, exact=True)
        assert_same_bits(getattr(distributed, name)(mine, shard_dim=0, **named), wanted, name)
    wanted = torch_reduce.dot(x, weight, exact=True)
    assert_same_bits(distributed.weighted_sum(mine, factors, shard_dim=0, **named), wanted)
    assert_same_bits(distributed.dot(mine, factors, **named), wanted)
    found = distributed.segment_sum(mine, offsets, **named)
    assert_same_bits(found, torch_reduce.segment_sum(x, offsets, exact=True))


def test_older_names(world):
    """The functions of torch_reduce.distributed of these names take exact=True, too."""
    world.run(2, older_names)


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
    expect(
        group,
        RuntimeError,
        re.escape(
            f"the ranks disagree about the function: weighted_sum with exact=True on {others}; weighted_sum on rank 1"
        ),
        lambda: torch_reduce.weighted_sum(Shard(x, 0, group), x, exact=rank != 1),
    )
    for call in (
        lambda shard: torch_reduce.vector_norm(shard, 3, exact=True),
        lambda shard: torch_reduce.powsum(shard, 1, exact=True),
    ):
        expect(
            group, NotImplementedError, r"'ord' must be 2 with exact=True", lambda call=call: call(Shard(x, 0, group))
        )
    for function in ("sum", "vector_norm", "dot"):  # by their operators, too
        operator = getattr(OPS, "exact_linalg_vector_norm" if function == "vector_norm" else f"exact_{function}")
        more = [x[0]] if function == "dot" else []
        expect(
            group,
            TypeError,
            rf"^{function}\(\): 'out' cannot be given",
            lambda operator=operator, more=more: operator.out(Shard(x[0], 0, group), *more, out=x[0, 0]),
        )
    expect(
        group,
        RuntimeError,
        r"weighted_sum\(\): 'weight' requires a gradient",
        lambda: torch_reduce.weighted_sum(Shard(x, 0, group), x.clone().requires_grad_(), exact=True),
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
