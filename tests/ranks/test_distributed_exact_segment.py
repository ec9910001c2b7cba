"""Exact sums of segments over ranks: of DTensors and Shards they have the bits of the whole tensor in one process.

test_exact_segment.py compares those with Python's fractions.
"""

import itertools
import random
import re

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist

import torch_reduce
from support import assert_same_bits, data
from test_distributed import expect, random_cuts, shard
from test_distributed_exact import KINDS, elements
from test_distributed_family import random_offsets
from test_dtensor import S0, S1, R, assert_result, cut, inside, mesh_of, only_where_torch_moves, random_placement
from torch_reduce.distributed import Shard
from worlds import here, traffic

WORLDS = ["cpu", "gpus", "nccl"]
OPS = torch.ops.gpureduce
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")
NAMES = ["float32", "bfloat16", "float64", "complex64", "int32"]


def exact(x, offsets, dim=0, **named):
    return torch_reduce.segment_sum(x, offsets, dim, exact=True, **named)


def random_call(rng, k):
    """What elements() takes, offsets, the dim, and dtype=."""
    size, dim = [rng.choice([1, 40, 3000, 9001]), rng.choice([1, 2, 5])], 0
    if rng.random() < 0.5:
        size, dim = size[::-1], -1
    name = rng.choice(NAMES)
    what = size, name, k, rng.choice(KINDS), rng.sample(range(2), 2)
    targets = [None, torch.float64, torch.bfloat16] if name != "complex64" else [None, torch.complex128, torch.float32]
    return what, random_offsets(rng, size[dim]), dim, rng.choice(targets)


def reduce_shards(group, cases):
    rank = dist.get_rank(group)
    for (what, offsets, dim, dtype), cuts, tells in cases:
        x, offsets = elements(*what).to(here()), offsets.to(here())
        wanted = exact(x, offsets, dim, dtype=dtype)
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        local = Shard(shard(x, dim, cuts, rank), dim, group, sizes)
        told = f"{what} {offsets.tolist()} {dim} {dtype} {cuts}"
        assert_same_bits(exact(local, offsets, dim, dtype=dtype), wanted, told)
        assert_same_bits(OPS.exact_segment_sum(local, offsets, dim, dtype=dtype), wanted, told)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_shards(size, world):
    """Cuts between segments, through one and through many of them, in one segment, and around empty ones."""
    rng, cases = random.Random(f"exact segments {size}"), []
    for k in range(40):
        call = random_call(rng, k)
        (shape, *_), offsets, dim, _ = call
        cuts = random_cuts(rng, shape[dim], size)
        if rng.random() < 0.3 and len(offsets) > 1:  # at ends of segments
            cuts = [0, *sorted(rng.choice(offsets.tolist()) for _ in range(size - 1)), shape[dim]]
        cases.append((call, cuts, rng.random() < 0.5))
    world.run(size, reduce_shards, cases)


def reduce_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for (what, offsets, dim, dtype), placements in cases:
        x, offsets, dim = elements(*what).to(here()), offsets.to(here()), dim % 2
        wanted = exact(x, offsets, dim, dtype=dtype)
        after = [R if getattr(placement, "dim", None) == dim else placement for placement in placements]
        for function in (exact, OPS.exact_segment_sum):
            got = function(cut(x, mesh, placements), offsets, dim, dtype=dtype)
            assert_result(got, wanted, mesh, after, f"{what} {offsets.tolist()} {dim} {dtype} {placements}")


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (2, 2)], ids=str)
def test_dtensors(shape, world):
    """Of all placements, dims, layouts and dtypes."""
    only_where_torch_moves(world)
    rng = random.Random(f"exact segments {shape}")
    cases = [(random_call(rng, k), [random_placement(rng, 2) for _ in shape]) for k in range(25)]
    world.run(world.size, reduce_dtensors, shape, cases)


def gradients_and_out(group):
    mesh, offsets = mesh_of((3,)), torch.tensor([1, 20, 20, 36], device=here())
    x, given = elements([37, 8], "float32", 3, "cancels").to(here()), data([3, 8], "float32", 9, here())
    leaf = x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(exact(leaf, offsets), leaf, given)
    for placements in ([S0], [S1], [R]):
        own = cut(x, mesh, placements).requires_grad_()
        got = exact(own, offsets)
        if inside(mesh):
            got.backward(cut(given, mesh, got.placements))
            assert_same_bits(own.grad.full_tensor(), wanted, f"{placements}")
        for flag, dtype in itertools.product((True, False), (torch.float32, torch.float64)):
            out = cut(torch.zeros(3, 8, dtype=dtype, device=here()), mesh, [R])
            assert torch_reduce.segment_sum(cut(x, mesh, placements), offsets, out=out, exact=flag) is out
            wanted_out = torch_reduce.segment_sum(x, offsets, dtype=dtype, exact=flag)
            assert_result(out, wanted_out, mesh, [R], f"{placements} {dtype} {flag}")


def test_gradients_and_out(world):
    """The whole tensor's, wherever it is cut; `out` decides the dtype."""
    only_where_torch_moves(world)
    world.run(world.size, gradients_and_out)


def sum_exactly(group, dim, places):
    x, offsets, cuts = torch.ones(100, 6, device=here()), torch.tensor(places, device=here()), [0, 25, 50, 75, 100]
    exact(Shard(shard(x, 0, cuts, dist.get_rank(group)), 0, group, [25] * 4), offsets, dim)


def test_traffic(world):
    """Of segments that a cut crosses the states are sent, of the others the results; along another dim nothing is."""
    for sent in world.run(4, traffic, sum_exactly, 1, [0, 2, 6]):
        assert sent["all_to_all"][0] == sent["all_gather"][0] == 0
    result, states = 6 * 4, 3 * 6 * 12 * 8  # of rows 0 to 9; of rows 10 to 29, 30 to 69 and 70 to 99
    for sent in world.run(4, traffic, sum_exactly, 0, [0, 10, 30, 70, 100]):
        assert sent["all_to_all"][0] == states // 4 * 3
        assert sent["all_gather"][0] == states // 4 * 3 + result * 3


def refused(group):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    offsets = torch.tensor([0, 5, 12], device=here())
    expect(
        group,
        RuntimeError,
        re.escape("the function: segment_sum with exact=True on ranks 0, 2; segment_sum on rank 1"),
        lambda: torch_reduce.segment_sum(Shard(x, 0, group), offsets, exact=rank != 1),
    )
    expect(
        group,
        RuntimeError,
        r"^segment_sum\(\): 'x' requires a gradient",
        lambda: exact(Shard(x.clone().requires_grad_(), 0, group, [4] * 3), offsets),
    )
    expect(
        group,
        RuntimeError,
        r"^segment_sum\(\): 'offsets' must ascend, from 0 to at most 12",
        lambda: exact(Shard(x, 0, group), offsets + 1),
    )
    expect(
        group,
        TypeError,
        r"'exact' must be bool, not int",
        lambda: torch_reduce.segment_sum(Shard(x, 0, group), offsets, exact=1),
    )


def test_errors(world):
    world.run(3, refused)
