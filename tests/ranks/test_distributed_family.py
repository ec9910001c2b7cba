"""Variances and weighted sums over ranks and of DTensors: the bits of one process, at any number of ranks."""

import itertools
import math
import random

import numpy as np
import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._python_dispatch import TorchDispatchMode

import torch_reduce
import torch_reduce.distributed as distributed
from support import FLOATING, SUM, assert_same_bits, data, dtype_of, name_of, tensor_of, whole
from table import SEGMENTS, WEIGHTED, moment
from test_distributed import random_cuts, shard
from test_dtensor import (
    R,
    assert_result,
    cut,
    inside,
    mesh_of,
    only_where_torch_moves,
    placed,
    random_placement,
)
from torch_reduce.distributed import Shard as Cut
from worlds import here, traffic

WORLDS = ["cpu", "mixed", "nccl"]
S0, S1 = Shard(0), Shard(1)
SIZES = [1, 2, 3, 5, 7, 8]
pytestmark = pytest.mark.filterwarnings("ignore:std\\(\\)", "ignore:var\\(\\)")


def still_cut(wanted, dims, keepdim, shard_dim, cuts, rank):
    """A rank's part of a result, where the dim that is cut is kept."""
    if shard_dim in dims:
        return wanted
    at = shard_dim if keepdim else shard_dim - len([d for d in dims if d < shard_dim])
    return np.moveaxis(np.moveaxis(wanted, at, 0)[cuts[rank] : cuts[rank + 1]], 0, at)


def random_problem(rng, budget=60_000):
    """A shape, the dim that is cut, the dims that are reduced, and the order in memory."""
    rank = rng.randint(1, 4)
    shape, shard_dim = [rng.choice([1, 2, 3, 5, 17, 64, 300]) for _ in range(rank)], rng.randrange(rank)
    shape[shard_dim] = rng.choice([1, 7, 100, 4096, 5000, 20_000])
    while math.prod(shape) > budget:
        at = rng.randrange(rank)
        shape[at] = -(-shape[at] // 2)
    dims = {shard_dim} | {d for d in range(rank) if rng.random() < 0.5}
    if rank > 1 and rng.random() < 0.1:
        dims = {(shard_dim + 1) % rank}
    return shape, shard_dim, sorted(dims), rng.sample(range(rank), rank)


# --- variances --------------------------------------------------------------------------------------------------------


def variances(group, cases):
    """Each case: the whole tensor as whole() makes it, its negative if so, a call, and the wanted bits of all three."""
    rank = dist.get_rank(group)
    for arguments, negative, dims, keepdim, correction, shard_dim, cuts, tells, wanted in cases:
        x = whole(*arguments).to(here())
        local = shard(torch._neg_view(x) if negative else x, shard_dim, cuts, rank)
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        more, local = dict(correction=correction, keepdim=keepdim), Cut(local, shard_dim, group, sizes)
        variance, mean = torch_reduce.var_mean(local, dims, **more)
        results = variance, torch_reduce.std(local, dims, **more), mean
        what = f"{arguments} {dims} {correction} {shard_dim} {cuts}"
        for got, bits in zip(results, wanted, strict=True):
            assert_same_bits(got, still_cut(bits, dims, keepdim, shard_dim, cuts, rank), what)
        assert_same_bits(torch_reduce.var(local, dims, **more), variance)


def variance_case(shape, name, cuts, dims, shard_dim=0, *, permutation=None, keepdim=False, correction=1, **more):
    arguments = shape, name, len(cuts) + shape[shard_dim], permutation or list(range(len(shape)))
    x, negative = whole(*arguments), more.get("negative", False)
    x = torch._neg_view(x) if negative else x
    wanted = [moment(x, what, dims, correction, keepdim) for what in ("var", "std", "mean")]
    return arguments, negative, dims, keepdim, correction, shard_dim, cuts, more.get("tells", False), wanted


@pytest.mark.parametrize("size", SIZES)
def test_variances_of_one_dim(size, world):
    """Any cuts of one long row, of every dtype; also where the first rank has nothing, and where all do but one."""
    rng, cases = random.Random(f"variances {size}"), []
    for name in FLOATING:
        for n in (1, 3, 4097, rng.choice([300, 9001, 12_000, 30_001])):
            cases.append(variance_case([n], name, random_cuts(rng, n, size), [0], tells=rng.random() < 0.5))
    for last in (0, 9001):
        cases.append(variance_case([9001], "float32", [0] + [last] * (size - 1) + [9001], [0]))
    cases.append(variance_case([4096 * size], "float32", [4096 * rank for rank in range(size + 1)], [0]))
    world.run(size, variances, cases)


@pytest.mark.parametrize("size", SIZES)
def test_variances(size, world):
    """Random shapes, dims, orders in memory, dtypes, corrections and cuts."""
    rng, cases = random.Random(f"variances of many dims {size}"), []
    for _ in range(30):
        shape, shard_dim, dims, permutation = random_problem(rng)
        cuts = random_cuts(rng, shape[shard_dim], size)
        more = dict(permutation=permutation, keepdim=rng.random() < 0.5, correction=rng.choice([1, 0, 2.5, 10_000]))
        name, tells = rng.choice(FLOATING), min(b - a for a, b in itertools.pairwise(cuts)) > 1
        more |= dict(negative="float8" not in name and rng.random() < 0.2, tells=tells)
        cases.append(variance_case(shape, name, cuts, dims, shard_dim, **more))
    world.run(size, variances, cases)


def special_variances(group, wanted):
    rank, cuts = dist.get_rank(group), [0, 700, 701, 5701]
    results = distributed.var_mean(shard(special_rows(here()), 1, cuts, rank), 1, group=group, shard_dim=1)
    for got, bits in zip(results, wanted, strict=True):
        assert_same_bits(got, bits)
    x = torch.ones(0, 3, device=here())
    for result in distributed.var_mean(x, 0, group=group, shard_dim=0):
        assert result.shape == (3,) and result.isnan().all()
    for correction in (None, 1):  # None is 1, as for torch
        got = distributed.var(torch.arange(4.0, device=here()), correction=correction, group=group, shard_dim=0)
        assert_same_bits(got, moment(torch.arange(4.0).repeat(3), "var", None))


def special_rows(device="cpu"):
    """Rows in which NaN, an infinity or an outlier stands on this rank or that; and one without any difference."""
    x = data([8, 5701], "float32", 3, device)
    for row, (at, number) in enumerate(
        [(0, math.nan), (700, math.inf), (5700, -math.inf), (0, 1e30), (701, -1e30), (0, -0.0)]
    ):
        x[row, at] = number
    x[6] = 0.1
    return x


def test_special_variances(world):
    world.run(3, special_variances, [moment(special_rows(), what, 1) for what in ("var", "mean")])


def refused_variances(group):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    with pytest.raises(RuntimeError, match=r"std\(\): 'x' requires a gradient"):
        distributed.std(x.clone().requires_grad_(), group=group, shard_dim=0)
    with pytest.raises(RuntimeError, match="only support floating point"):
        distributed.var(x.int(), group=group, shard_dim=0)
    with pytest.raises(NotImplementedError, match="complex numbers"):
        distributed.var_mean(x.to(torch.complex64), group=group, shard_dim=0)
    with pytest.raises(IndexError, match="Dimension out of range"):
        distributed.var(x, 2, group=group, shard_dim=0)
    with pytest.raises(RuntimeError, match="disagree about the correction: 0.0 on rank 0; 1.0 on ranks? 1"):
        distributed.var(x, correction=min(rank, 1), group=group, shard_dim=0)
    with pytest.raises(RuntimeError, match="disagree about the function: var on rank 0; std on ranks? 1"):
        (distributed.std if rank else distributed.var)(x, group=group, shard_dim=0)


def test_refused_variances(world):
    world.run(3, refused_variances)


def variance_of_a_matrix(group, sizes, outputs):
    x = torch.ones(sizes[dist.get_rank(group)], outputs, device=here())
    distributed.var(x, 0, group=group, shard_dim=0, sizes=sizes)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_traffic_of_variances(size, world):
    """The first elements, and both sums in one message; no element where the cuts are at chunks."""
    for outputs in (1, 5):
        for sent in world.run(size, traffic, variance_of_a_matrix, [8192] * size, outputs):
            assert sent == {"all_to_all": [0, 0], "all_gather": [(8 + 2 * 8) * outputs * (size - 1), 2]}


# --- weighted sums ----------------------------------------------------------------------------------------------------


def common_part(tensor, shape, shard_dim, cuts, rank):
    """A rank's part of a tensor that is broadcast to a shape, of which `shard_dim` is cut."""
    at = shard_dim - (len(shape) - tensor.dim())
    return shard(tensor, at, cuts, rank) if at >= 0 and tensor.shape[at] == shape[shard_dim] else tensor


def weighted_sums(group, cases):
    """Each case: two tensors as whole() makes them, a call, and the wanted bits."""
    rank = dist.get_rank(group)
    for first, second, shape, dims, keepdim, dtype, shard_dim, cuts, tells, wanted in cases:
        x, w = (common_part(whole(*each).to(here()), shape, shard_dim, cuts, rank) for each in (first, second))
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        what = f"{first} {second} {dims} {dtype} {shard_dim} {cuts}"
        # A Shard's dim counts its own dims; whichever has the cut one may be the Shard, or both.
        at, bits = shard_dim - len(shape), still_cut(wanted, dims, keepdim, shard_dim, cuts, rank)
        cut = [Cut(one, at, group, sizes) if -at <= one.dim() else one for one in (x, w)]
        for factors in ((cut[0], w), (x, cut[1]), cut):
            if any(isinstance(one, Cut) for one in factors):
                assert_same_bits(torch_reduce.weighted_sum(*factors, dims, keepdim, dtype=dtype), bits, what)
        more = dict(dtype=dtype, group=group, shard_dim=shard_dim, sizes=sizes)
        assert_same_bits(distributed.weighted_sum(x, w, dims, keepdim, **more), bits, what)


def weighted_case(first, second, cuts, dims, shard_dim, *, keepdim=False, dtype=None, tells=False):
    x, w = whole(*first), whole(*second)
    shape = np.broadcast_shapes(x.shape, w.shape)
    wanted = WEIGHTED.expected((x, w), dims, keepdim, dtype)
    return first, second, shape, dims, keepdim, dtype, shard_dim, cuts, tells, wanted


def random_broadcast(rng, shape, keep=()):
    """A shape that can be broadcast to this one: of fewer dims, or with some of size 1."""
    found = [1 if d not in keep and rng.random() < 0.25 else n for d, n in enumerate(shape)]
    while len(found) > 1 and found[0] == 1 and rng.random() < 0.5:
        found.pop(0)
    return found


def random_weights(rng, shape, names, permutation):
    """The arguments of whole() for two tensors whose common shape this is."""
    first = random_broadcast(rng, shape)
    missing = len(shape) - len(first)
    second = random_broadcast(rng, shape, [d for d in range(len(shape)) if d < missing or first[d - missing] == 1])
    if list(np.broadcast_shapes(first, second)) != shape:
        second = shape
    orders = [rng.sample(range(len(each)), len(each)) for each in (first, second)]
    if len(first) == len(shape):
        orders[0] = permutation
    return [(first, names[0], 0, orders[0]), (second, names[1], 1, orders[1])]


PAIRS = [("float32", "float32"), ("bfloat16", "bool"), ("bfloat16", "float32"), ("float64", "float32")]
PAIRS += [("int32", "int64"), ("uint8", "bool"), ("float8_e5m2", "float8_e5m2"), ("int16", "float16")]
PAIRS += [("float16", "float64"), ("bfloat16", "float64")]
TARGETS = [None, None, torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool]


@pytest.mark.parametrize("size", SIZES)
def test_weighted_sums(size, world):
    """Random shapes, either one broadcast, orders in memory, dtypes and cuts."""
    rng, cases = random.Random(f"weighted {size}"), []
    for k in range(3 * len(PAIRS)):
        shape, shard_dim, dims, permutation = random_problem(rng)
        first, second = random_weights(rng, shape, PAIRS[k % len(PAIRS)], permutation)
        cuts = random_cuts(rng, shape[shard_dim], size)
        more = dict(keepdim=rng.random() < 0.5, dtype=rng.choice(TARGETS))
        more["tells"] = min(b - a for a, b in itertools.pairwise(cuts)) > 1
        cases.append(weighted_case(first, second, cuts, dims, shard_dim, **more))
    world.run(size, weighted_sums, cases)


def weights_beside_a_tie(group, name):
    """One and a half unit of float32, which is a tie, and a little more: each number is on a rank of its own."""
    rank = dist.get_rank(group)
    x = torch.ones(1, dtype=dtype_of(name), device=here())
    w = torch.tensor([[1.0, 2.0**-24, 2.0**-50][rank]], dtype=torch.float64, device=here())
    for factors in ((Cut(x, 0, group), w), (x, Cut(w, 0, group)), (Cut(x, 0, group), Cut(w, 0, group))):
        got = torch_reduce.weighted_sum(*factors, 0, dtype=torch.float32)
        assert_same_bits(got.cpu(), torch.tensor(1 + 2.0**-23, dtype=torch.float32), name)
        assert torch_reduce.weighted_sum(*factors, 0).item() == 1 + 2.0**-24 + 2.0**-50


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_with_weights_of_float64(name, world):
    """Their products are float64 until the end, also between ranks: float32 would lose what decides a tie."""
    world.run(3, weights_beside_a_tie, name)


def test_orders_of_weighted_sums_tell():
    """The data can tell in which order products are added, and whether they are rounded first."""
    x, w = data([40, 5000], "float32", 1), data([40, 5000], "float32", 2)
    exact = x.double() * w.double()
    for other in (torch_reduce.weighted_sum(x.flip(1), w.flip(1), 1), torch_reduce.sum(exact, 1).float()):
        assert not torch_reduce.weighted_sum(x, w, 1).equal(other)


class Products(TorchDispatchMode):
    """Counts the elements of all tensors that torch multiplies."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket is torch.ops.aten.mul:
            self.count += result.numel()
        return result


def products_that_are_written(group, sizes):
    rank = dist.get_rank(group)
    x, w = (data([sum(sizes), 2], "bfloat16", k, here()) for k in (5, 6))
    with Products() as products:
        mine = (each.split(sizes)[rank] for each in (x, w))
        got = distributed.weighted_sum(*mine, 0, group=group, shard_dim=0, sizes=sizes)
    assert_same_bits(got, torch_reduce.weighted_sum(x, w, 0))
    return products.count


@pytest.mark.parametrize("size", [1, 2, 3])
def test_products_that_are_written(size, world):
    """Of chunks that are cut those that are sent, and those that they meet; and no others."""
    assert world.run(size, products_that_are_written, [8192] * size) == [0] * size
    for count in world.run(size, products_that_are_written, [8192 + 100] * size):
        assert count <= 2 * 2 * 4095 and (count > 0) == (size > 1)


def dots(group, name, n, cuts, wanted):
    rank = dist.get_rank(group)
    x, y = (shard(data([n], name, seed, here()), 0, cuts, rank) for seed in (1, 2))
    sizes = [b - a for a, b in itertools.pairwise(cuts)]
    assert_same_bits(torch_reduce.dot(Cut(x, 0, group), y), wanted)
    assert_same_bits(torch_reduce.dot(x, Cut(y, 0, group, sizes)), wanted)
    assert_same_bits(distributed.dot(x, y, group=group, sizes=sizes), wanted)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_dots(size, world):
    rng = random.Random(f"dots {size}")
    for name, n in itertools.product(("float32", "bfloat16", "int16", "float64"), (0, 5, 30_001)):
        wanted = WEIGHTED.expected((data([n], name, 1), data([n], name, 2)))
        world.run(size, dots, name, n, random_cuts(rng, n, size), wanted)


def refused_weights(group):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    more = dict(group=group, shard_dim=0)
    with pytest.raises(RuntimeError, match="'weight' requires a gradient"):
        distributed.weighted_sum(x, x.clone().requires_grad_(), **more)
    with pytest.raises(TypeError, match="'weight' must be a Tensor, not float"):
        distributed.weighted_sum(x, 2.0, **more)
    with pytest.raises(RuntimeError, match="must match the size of tensor"):
        distributed.weighted_sum(x, x[:, :5], **more)
    with pytest.raises(RuntimeError, match="'weight' must be on .* as 'x', but is on meta"):
        distributed.weighted_sum(x, x.to("meta"), **more)
    with pytest.raises(NotImplementedError, match="complex numbers"):
        distributed.weighted_sum(x, x.to(torch.complex64), **more)
    with pytest.raises(RuntimeError, match="dtype of the weight: torch.bool on rank 0; torch.float32 on ranks? 1"):
        distributed.weighted_sum(x, x if rank else x.bool(), **more)
    with pytest.raises(RuntimeError, match="1D tensors expected"):
        distributed.dot(x, x, group=group)
    with pytest.raises(TypeError, match="'other' must be (a )?Tensor"):
        distributed.dot(x[0], None, group=group)
    with pytest.raises(RuntimeError, match="same dtype"):
        distributed.dot(x[0], x[0].double(), group=group)


def test_refused_weights(world):
    world.run(3, refused_weights)


# --- segments ---------------------------------------------------------------------------------------------------------


def segments(group, cases):
    """Each case: a function, the whole tensor as whole() makes it, the offsets, a call, and the wanted bits."""
    rank = dist.get_rank(group)
    for name, arguments, offsets, dim, dtype, cuts, tells, wanted in cases:
        local = shard(whole(*arguments).to(here()), dim, cuts, rank)
        sizes = [b - a for a, b in itertools.pairwise(cuts)] if tells else None
        more = {} if dtype is None else {"dtype": dtype}
        got = getattr(torch_reduce, name)(Cut(local, dim, group, sizes), offsets.to(here()), dim, **more)
        assert got.is_contiguous()
        assert_same_bits(got, wanted, f"{name} {arguments} {offsets.tolist()} dim {dim} {dtype} {cuts}")


OVER_RANKS = {op.name: op for op in SEGMENTS if op.name != "segment_logsumexp"}


def segment_case(name, arguments, offsets, dim, cuts, dtype=None, tells=False):
    wanted = OVER_RANKS[name].expected((whole(*arguments), offsets), dim, dtype=dtype)
    return name, arguments, offsets, dim, dtype, cuts, tells, wanted


def random_offsets(rng, size):
    """Of short and long segments, of empty ones at either end and between, and of elements that belong to none."""
    lengths = [rng.choice([0, 0, 1, 2, 7, 30, 500, 4096, 5000, 9000]) for _ in range(rng.choice([0, 1, 3, 12, 40]))]
    offsets = [min(end, size) for end in itertools.accumulate(lengths, initial=rng.choice([0, 0, 5]))]
    return torch.tensor(offsets, dtype=rng.choice([torch.int32, torch.int64])).clamp(max=size)


@pytest.mark.parametrize("size", SIZES)
def test_segments(size, world):
    """Cuts between segments, through one and through many of them, in one segment, and around empty ones."""
    rng, cases = random.Random(f"segments {size}"), []
    for name in rng.sample(list(OVER_RANKS), 5) * 12:
        length, others = rng.choice([(1, 1), (40, 3), (9001, 1), (9001, 3), (30_001, 1)]), rng.randint(1, 3)
        shape = [rng.choice([1, 2, 5]) for _ in range(others)]
        shape[0], dim = length[0], 0
        if others > 1 and rng.random() < 0.5:
            shape, dim = shape[::-1], -1
        dtypes = ["float32", "bfloat16", "float64", "complex64", "float8_e5m2", "int32", "bool"]
        dtypes = [one for one in dtypes if OVER_RANKS[name].takes(one)]
        permutation = rng.sample(range(len(shape)), len(shape))
        arguments = shape, rng.choice(dtypes), rng.randrange(9), permutation
        offsets = random_offsets(rng, length[0])
        cuts = random_cuts(rng, length[0], size)
        if rng.random() < 0.3 and len(offsets) > 1:  # at ends of segments
            cuts = [0, *sorted(rng.choice(offsets.tolist()) for _ in range(size - 1)), length[0]]
        dtype = rng.choice([None, None, torch.float64])
        if "complex" in arguments[1] or not OVER_RANKS[name].has_dtype:
            dtype = None
        tells = rng.random() < 0.5
        cases.append(segment_case(name, arguments, offsets, dim, cuts, dtype, tells))
    world.run(size, segments, cases)


def refused_segments(group):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    offsets = torch.tensor([0, 5, 12], device=here())

    def product(x, offsets, dim=0, *, group):
        return torch_reduce.segment_prod(Cut(x, dim, group), offsets, dim)

    for kind, message, call in (
        (RuntimeError, "'x' requires a gradient", lambda f: f(x.clone().requires_grad_(), offsets, group=group)),
        (TypeError, "'offsets' must be a Tensor, not list", lambda f: f(x, [0, 5], group=group)),
        (RuntimeError, "'offsets' must be on .* is on meta", lambda f: f(x, offsets.to("meta"), group=group)),
        (RuntimeError, "offsets: expected .*one dim", lambda f: f(x, offsets[None], group=group)),
        (RuntimeError, "the first or the last of 3 dims", lambda f: f(x[None], offsets, 1, group=group)),
        (IndexError, "Dimension out of range", lambda f: f(x, offsets, 2, group=group)),
        (RuntimeError, "'offsets' must ascend, from 0 to at most 12", lambda f: f(x, offsets.flip(0), group=group)),
        (RuntimeError, "'offsets' must ascend, from 0 to at most 12", lambda f: f(x, offsets + 1, group=group)),
        (RuntimeError, "'offsets' must ascend, from 0 to at most 12", lambda f: f(x, offsets - 1, group=group)),
        (RuntimeError, "disagree about the offsets: 3 of", lambda f: f(x, offsets // (1 + rank), group=group)),
    ):
        for function in (distributed.segment_sum, distributed.segment_mean, product):
            with pytest.raises(kind, match=message):
                call(function)
    with pytest.raises(RuntimeError, match="Input dtype must be"):
        distributed.segment_mean(x.int(), offsets, group=group)


def test_refused_segments(world):
    """By name, on every rank; offsets that do not ascend also on GPUs, whose own kernel would stop."""
    world.run(3, refused_segments)


def segments_of_a_row(group, sizes, offsets):
    x = torch.ones(sizes[dist.get_rank(group)], 2, device=here())
    got = distributed.segment_sum(x, torch.tensor(offsets, device=here()), group=group, sizes=sizes)
    assert got[:, 0].tolist() == [b - a for a, b in itertools.pairwise(offsets)]


def test_traffic_of_segments(world):
    """The results of a rank's own segments; of those that are cut at most a chunk and their nodes, in one exchange."""
    sizes = [10_000, 10_000, 10_000]
    for sent in world.run(3, traffic, segments_of_a_row, sizes, [0, 10_000, 20_000, 30_000]):
        assert sent == {"all_to_all": [0, 0], "all_gather": [4 * 2 * 2, 1]}
    told = world.run(3, traffic, segments_of_a_row, sizes, [0, 9000, 11_000, 19_000, 21_000, 30_000])
    # A short segment goes to the rank in which it begins; each rank has one more of its own, and two ranks have a node.
    assert [sent["all_to_all"] for sent in told] == [[0, 0], [4 * 2 * 1000, 1], [4 * 2 * 1000, 1]]
    assert [sent["all_gather"] for sent in told] == [[2 * (4 * 2 * 2), 2]] * 3


# --- DTensors ---------------------------------------------------------------------------------------------------------


def variances_of_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for arguments, placements, dims, keepdim, correction, wanted in cases:
        x = whole(*arguments)
        local, name = cut(x, mesh, placements), "float32" if "float8" in name_of(x.dtype) else name_of(x.dtype)
        after = placed(placements, dims, keepdim)
        more = dict(correction=correction, keepdim=keepdim)
        variance, mean = torch_reduce.var_mean(local, dims, **more)
        results = variance, torch_reduce.std(local, dims, **more), mean
        for got, bits in zip(results, wanted, strict=True):
            assert_result(got, tensor_of(bits, name), mesh, after, f"{arguments} {placements} {dims} {correction}")


@pytest.fixture(scope="module")
def meshes(world):
    """Worlds in which meshes can be made: of one type of device."""
    if world.kind == "mixed":
        pytest.skip("a mesh has devices of one type")
    return world


MESHES = [(1,), (2,), (3,), (5,), (2, 2), (2, 3), (2, 2, 2)]


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_variances_of_dtensors(shape, meshes):
    """Random shapes, orders in memory, dims, dtypes and placements; cuts are uneven, and some ranks have nothing."""
    rng, cases = random.Random(f"variances {shape}"), []
    for _ in range(12):
        size, _, dims, permutation = random_problem(rng, 30_000)
        arguments = size, rng.choice(FLOATING), math.prod(size), permutation
        keepdim, correction = rng.random() < 0.5, rng.choice([0, 1, 2.5])
        x = whole(*arguments)
        wanted = [moment(x, what, dims, correction, keepdim) for what in ("var", "std", "mean")]
        placements = [random_placement(rng, len(size)) for _ in shape]
        cases.append((arguments, placements, dims, keepdim, correction, wanted))
    meshes.run(meshes.size, variances_of_dtensors, shape, cases)


def weighted_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for first, second, placements, dims, keepdim, dtype, wanted, name in cases:
        x, w = (cut(whole(*each), mesh, own) for each, own in zip((first, second), placements, strict=True))
        got = torch_reduce.weighted_sum(x, w, dims, keepdim, dtype=dtype)
        assert_result(got, tensor_of(wanted, name), mesh, got.placements, f"{first} {second} {placements} {dims}")


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_weighted_dtensors(shape, meshes):
    """Both are DTensors of any placements of their own."""
    only_where_torch_moves(meshes)
    rng, cases = random.Random(f"weighted {shape}"), []
    for k in range(16):
        size, _, dims, permutation = random_problem(rng, 30_000)
        first, second = random_weights(rng, size, PAIRS[k % len(PAIRS)], permutation)
        placements = [
            [rng.choice([R, *map(Shard, range(len(arguments[0])))]) for _ in shape] for arguments in (first, second)
        ]
        keepdim, dtype = rng.random() < 0.5, rng.choice(TARGETS)
        x, w = whole(*first), whole(*second)
        wanted = WEIGHTED.expected((x, w), dims, keepdim, dtype)
        name = WEIGHTED.result_name(x.dtype, w.dtype, dtype)
        cases.append((first, second, placements, dims, keepdim, dtype, wanted, name))
    meshes.run(meshes.size, weighted_dtensors, shape, cases)


def segments_of_dtensors(group, shape, cases):
    mesh = mesh_of(shape)
    for name, arguments, offsets, dim, placements, wanted, result in cases:
        x, dim = cut(whole(*arguments), mesh, placements), dim % len(arguments[0])
        after = [R if getattr(placement, "dim", None) == dim else placement for placement in placements]
        for at in (offsets.to(here()), cut(offsets, mesh, [R] * len(shape))):
            for function in (getattr(torch_reduce, name), getattr(torch.ops.gpureduce, name)):
                got = function(x, at, dim)
                assert_result(got, tensor_of(wanted, result), mesh, after, f"{name} {arguments} {dim} {placements}")


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_segments_of_dtensors(shape, meshes):
    only_where_torch_moves(meshes)
    rng, cases = random.Random(f"segments {shape}"), []
    for op in itertools.chain(SEGMENTS, SEGMENTS, SEGMENTS, SEGMENTS):
        size, dim = [rng.choice([1, 40, 9001]), rng.choice([1, 2, 5]), rng.choice([1, 3])], 0
        if rng.random() < 0.5:
            size, dim = size[::-1], -1
        arguments = size, rng.choice(["float32", "bfloat16", "float64"]), rng.randrange(9), rng.sample(range(3), 3)
        offsets = random_offsets(rng, size[dim])
        placements = [random_placement(rng, 3) for _ in shape]
        if op.name == "segment_logsumexp":  # torch gathers no _StridedShard whose other Shard is missing
            placements = [Shard(one.dim) if isinstance(one, _StridedShard) else one for one in placements]
        wanted = op.expected((whole(*arguments), offsets), dim)
        cases.append((op.name, arguments, offsets, dim, placements, wanted, arguments[1]))
    meshes.run(meshes.size, segments_of_dtensors, shape, cases)


def segment_softmaxes_of_dtensors(group, shape):
    mesh, offsets = mesh_of(shape), torch.tensor([1, 3, 3, 30], device=here())
    x, given = (data([32, 32], "float32", seed).clamp(-9, 9).to(here()) for seed in (3, 4))
    for placements, dim in itertools.product(([S0] * len(shape), [S1] * len(shape)), (0, 1)):
        leaf = x.clone().requires_grad_()
        wanted = torch_reduce.segment_softmax(leaf, offsets, dim)
        wanted.backward(given)
        after = [R] * len(shape) if placements[0].dim == dim else placements
        own = cut(x, mesh, placements).requires_grad_()
        got = torch_reduce.segment_softmax(own, offsets, dim)
        assert_result(got.detach(), wanted.detach(), mesh, after, f"{placements} {dim}")
        got.backward(cut(given, mesh, after))
        assert_result(own.grad.redistribute(placements=after), leaf.grad, mesh, after, f"{placements} {dim}")
        out = cut(torch.zeros(3, 32, device=here()), mesh, [R] * len(shape)) if dim == 0 else None
        if out is not None:
            torch_reduce.segment_amax(own.detach(), offsets, out=out)
            assert_result(out, torch_reduce.segment_amax(x, offsets), mesh, [R] * len(shape), "out")


@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
def test_segment_softmaxes_of_dtensors(shape, meshes):
    """The bits of the whole tensor's, and of its gradient; every rank gets all of a dim that is cut. And out=."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, segment_softmaxes_of_dtensors, shape)


S2, STRIDED = Shard(2), _StridedShard(2, split_factor=2)


def kept_in_place(group, shape, cases):
    mesh = mesh_of(shape)
    for of_x, of_w, sizes, dims, keepdim, reduced in cases:
        x, w = whole([6, 10, 8], "bfloat16", 1, [2, 0, 1]), data(sizes, "float32", 2)
        wanted = tensor_of(WEIGHTED.expected((x, w), dims, keepdim), "float32")
        got = torch_reduce.weighted_sum(cut(x, mesh, of_x), cut(w, mesh, of_w), dims, keepdim)
        assert_result(got, wanted, mesh, placed(reduced, dims, keepdim), f"{of_x} {of_w} {sizes} {dims}")


@pytest.mark.parametrize("size", [2, 3])
def test_weights_in_place(size, meshes):
    """Where no reduced dim is cut, and both hold what belongs together, nothing is sent, and kept dims stay cut."""
    cases = []
    for of_x, of_w, sizes, reduced in (
        ([S0], [S0], [6, 10, 8], [S0]),
        ([S0], [R], [8], [S0]),
        ([S0], [R], [1, 10, 1], [S0]),
        ([S0], [S0], [6, 1, 8], [S0]),
        ([STRIDED], [STRIDED], [6, 10, 8], [STRIDED]),
        ([S2], [S0], [8], [S2]),
        ([R], [R], [10, 1], [R]),
    ):
        for dims, keepdim in itertools.product(([1], [0, 1], [1, 2], [2], [0]), (False, True)):
            if not any(getattr(placement, "dim", None) in dims for placement in reduced):
                cases.append((of_x, of_w, sizes, dims, keepdim, reduced))
    for sent in meshes.run(meshes.size, traffic, kept_in_place, (size,), cases):
        assert sent == {"all_to_all": [0, 0], "all_gather": [0, 0]}


def others(group):
    """Partial inputs, out=, inference mode, no elements, dot, one rank's scalars, and ranks outside of the mesh."""
    mesh, rank = mesh_of((4,)), dist.get_rank()
    x, w = data([37, 50], "float32", 2), data([37, 50], "float32", 4)
    local, weight = cut(x, mesh, [S0]), cut(w, mesh, [S1])
    functions = [
        (lambda x, w, **more: torch_reduce.weighted_sum(x, w, 0, **more), "weighted_sum"),
        (lambda x, w, **more: torch_reduce.var(x, 0, **more), "var"),
        (lambda x, w, **more: torch_reduce.std(x, 0, correction=0, **more), "std"),
    ]
    for function, name in functions:
        with torch.inference_mode():
            assert_result(function(local, weight), function(x, w), mesh, [R], name)
        for placements in ([R], [S0]):
            out = cut(torch.zeros(50), mesh, placements)
            assert function(local, weight, out=out) is out
            assert_result(out, function(x, w), mesh, placements, f"{name} out {placements}")
        empty = torch.ones(0, 3)
        assert_result(function(cut(empty, mesh, [S0]), cut(empty, mesh, [S0])), function(empty, empty), mesh, [R], name)
    assert_result(torch_reduce.dot(local[:, 0], weight[:, 0]), torch_reduce.dot(x[:, 0], w[:, 0]), mesh, [R], "dot")
    scalar = torch.tensor(3.0)
    assert_result(torch_reduce.var(cut(scalar, mesh, [R]), correction=0), torch.tensor(0.0), mesh, [R], "scalar")
    mine = data([37, 10], "float32", rank, here())
    whole = tensor_of(SUM.expected(torch.stack([data([37, 10], "float32", r) for r in range(4)]), 0), "float32")
    partial = DTensor.from_local(mine, mesh, [Partial()])
    for got, wanted in zip(torch_reduce.var_mean(partial, 1), torch_reduce.var_mean(whole, 1), strict=True):
        assert_result(got, wanted, mesh, [R], "Partial")
    got = torch_reduce.weighted_sum(partial, cut(torch.ones(10), mesh, [R]), 1)
    assert_result(got, torch_reduce.sum(whole, 1), mesh, [R], "Partial")
    offsets, given = torch.tensor([1, 20, 20, 36], device=here()), data([3, 10], "float32", 9)
    for name in (op.name for op in SEGMENTS):  # whose gradients see the sum that was reduced
        leaf, own = whole.clone().requires_grad_(), mine.clone().requires_grad_()
        wanted = getattr(torch_reduce, name)(leaf, offsets.cpu())
        got = getattr(torch_reduce, name)(DTensor.from_local(own, mesh, [Partial()]), offsets)
        assert_result(got.detach(), wanted.detach(), mesh, [R], f"{name} of a Partial")
        if inside(mesh):
            (gradient,) = torch.autograd.grad(got, own, cut(given, mesh, [R]))
            assert_same_bits(gradient, torch.autograd.grad(wanted, leaf, given)[0], name)


def test_others(meshes):
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, others)


def refused_dtensors(group):
    mesh, other = mesh_of((4,)), mesh_of((2,))
    x, plain, offsets = cut(torch.ones(8, 6), mesh, [S0]), torch.ones(8), cut(torch.tensor([0, 8]), mesh, [R])
    for kind, message, call in (
        (TypeError, "'weight' must be one too, not a Tensor", lambda: torch_reduce.weighted_sum(x, torch.ones(6))),
        (TypeError, "'input' must be one too, not a Tensor", lambda: torch_reduce.weighted_sum(torch.ones(6), x)),
        (ValueError, "another mesh", lambda: torch_reduce.weighted_sum(x, cut(torch.ones(6), other, [R]))),
        (RuntimeError, "must match the size", lambda: torch_reduce.weighted_sum(x, cut(torch.ones(5), mesh, [R]))),
        (IndexError, "Dimension out of range", lambda: torch_reduce.var(x, 5)),
        (TypeError, "'offsets' is a DTensor, so 'data' must be", lambda: torch_reduce.segment_sum(plain, offsets)),
        (TypeError, "'offsets' is a DTensor, so 'data' must be", lambda: torch_reduce.segment_softmax(plain, offsets)),
        (TypeError, "argument 'offsets' must be Tensor, not list", lambda: torch_reduce.segment_amax(x, [0, 8])),
        (RuntimeError, "only support floating point", lambda: torch_reduce.std(cut(torch.ones(8).int(), mesh, [S0]))),
    ):
        with pytest.raises(kind, match=message):
            call()


def test_refused_dtensors(meshes):
    """On every rank, before anything is sent."""
    meshes.run(meshes.size, refused_dtensors)


def gradients(group):
    for shape, placements in (((4,), [S0]), ((2, 2), [S0, S1])):
        mesh = mesh_of(shape)
        for function in (
            lambda x, w: torch_reduce.var(x, 0),
            lambda x, w: torch_reduce.std(x, 1),
            lambda x, w: torch_reduce.var_mean(x)[1],
            lambda x, w: torch_reduce.weighted_sum(x, w, 0),
            lambda x, w: torch_reduce.weighted_sum(x, w[:1], 1),
            lambda x, w: torch_reduce.weighted_sum(w[:, :1], x),
            lambda x, w: torch_reduce.segment_sum(x, torch.tensor([1, 20, 20, 36], device=x.device)),
            lambda x, w: torch_reduce.segment_mean(x, torch.tensor([0, 7, 40], device=x.device), 1),
            lambda x, w: torch_reduce.segment_prod(x / 4096, torch.tensor([1, 3, 3, 6], device=x.device)),
            lambda x, w: torch_reduce.segment_amax(x, torch.tensor([1, 3, 33], device=x.device), 1),
            lambda x, w: torch_reduce.segment_logsumexp(x / 512, torch.tensor([1, 3, 33], device=x.device)),
        ):
            x, w = data([36, 48], "float64", 3).requires_grad_(), data([36, 48], "float64", 4)
            function(x, w).square().sum().backward()
            leaf = cut(x.detach(), mesh, placements).requires_grad_()
            result = function(leaf, cut(w, mesh, [R] * len(shape)))
            result.backward(2 * result.detach())
            wanted = cut(x.grad, mesh, placements).to_local()
            if inside(mesh):
                got = leaf.grad.redistribute(placements=placements).to_local()
                torch.testing.assert_close(got, wanted.to(got.device))


def test_gradients(meshes):
    """As those of the global tensor."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, gradients)


def compiled(group, ndim, placements):
    mesh, x, w = mesh_of((2,) * ndim), data([37, 50], "float32", 3), data([37, 50], "float32", 4)

    def function(x, w):
        return *torch_reduce.var_mean(x, 0), torch_reduce.std(x, 1), torch_reduce.weighted_sum(x, w, 0)

    if inside(mesh):
        dtensors = cut(x, mesh, placements), cut(w, mesh, placements)
        for result, wanted in zip(
            torch.compile(function, backend="aot_eager", fullgraph=True)(*dtensors), function(x, w), strict=True
        ):
            assert_result(result, wanted, mesh, result.placements, f"compiled {placements}")


@pytest.mark.parametrize("placements", [[S0], [S0, S1]], ids=str)
def test_compiled(placements, meshes):
    """One graph, with functional collectives."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, compiled, len(placements), placements)


def compiled_segments(group):
    mesh, x, offsets = mesh_of((2,)), data([37, 50], "float32", 3), torch.tensor([0, 5, 37])
    if not inside(mesh):
        return

    def function(x, offsets):
        return torch_reduce.segment_mean(x * 2, offsets) + 1

    for backend in ("eager", "aot_eager"):
        ours = torch.compile(function, backend=backend, fullgraph=True)
        got = ours(cut(x, mesh, [S1]), cut(offsets, mesh, [R]))
        assert_result(got, function(x, offsets), mesh, [S1], "compiled segments")
    with pytest.raises(Exception, match="the host reads the offsets, which a compiled graph cannot do"):
        ours(cut(x, mesh, [S0]), cut(offsets, mesh, [R]))


def test_compiled_segments(meshes):
    """Along a dim that is not cut; otherwise the error says what to do."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, compiled_segments)
