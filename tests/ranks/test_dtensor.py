"""DTensors have the bits of the global tensor, on any mesh, with any placements, on CPUs and on GPUs.

All ranks run every test, as torch asks of a mesh; those outside of a mesh have nothing.
"""

import functools
import inspect
import itertools
import math
import random
import sys

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import _StridedShard

import torch_reduce
from support import (
    DTYPES,
    FAMILY,
    OPERATIONS,
    SUM,
    assert_same_bits,
    data,
    dtype_of,
    kin,
    python,
    tensor_of,
    whole,
    whole_of,
)
from table import rotated
from torch_reduce import _operations
from torch_reduce.distributed import _dtensor
from worlds import TooFewRanks, here, traffic

WORLDS = ["cpu", "gpus", "nccl"]
NAMES = ["float32", "bfloat16", "float16", "float64", "int8", "int32", "int64", "bool", "complex64", "float8_e4m3fn"]
R, S0, S1, S2 = Replicate(), Shard(0), Shard(1), Shard(2)
pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


@functools.cache
def mesh_of(shape):
    """The mesh of that shape, of the first ranks."""
    return mesh_with(torch.arange(math.prod(shape)).view(shape))


def mesh_with(ranks, **names):
    if ranks.numel() > dist.get_world_size():
        raise TooFewRanks(f"a mesh of {ranks.numel()}")
    return DeviceMesh(here().type, ranks, **names)


def cut(x, mesh, placements):
    """The DTensor of a tensor that every rank has: nothing is sent."""
    return distribute_tensor(x, mesh, placements, src_data_rank=None)


def only_where_torch_moves(world):
    """For tests in which torch itself moves shards."""
    if world.kind == "gpus":
        pytest.skip("torch's own redistribute ends in a segmentation fault on GPUs over gloo")
    if world.kind == "mixed":
        pytest.skip("a mesh of torch's has one type of device")


def inside(mesh):
    return mesh.get_coordinate() is not None


def placed(placements, reduced, keepdim):
    """What the page promises: kept dims stay cut as they are, and the others are on every rank."""
    kept = []
    for placement in placements:
        if not hasattr(placement, "dim") or placement.dim in reduced:
            kept.append(R)
            continue
        dim = placement.dim if keepdim else len([d for d in range(placement.dim) if d not in reduced])
        strided = isinstance(placement, _StridedShard)
        kept.append(_StridedShard(dim, split_factor=placement.split_factor) if strided else Shard(dim))
    return tuple(kept)


def assert_result(got, wanted, mesh, placements, what):
    """`got` has these placements, and on each rank its part of the bits of `wanted`."""
    assert isinstance(got, DTensor), what
    assert got.placements == tuple(placements), what
    assert got.shape == wanted.shape and got.dtype == wanted.dtype, what
    assert got.stride() == wanted.contiguous().stride(), what
    if inside(mesh):
        assert_same_bits(got.to_local(), cut(wanted, mesh, placements).to_local(), what)
    else:
        assert got.to_local().numel() == 0, what


# --- random layouts --------------------------------------------------------------------------------------------------


def reduce_all(group, shape, cases):
    """Each case: an operation, the global tensor as whole() makes it, its placements, a call, and the wanted bits."""
    mesh = mesh_of(shape)
    for operation, arguments, placements, dim, keepdim, dtype, stored, name in cases:
        x, wanted = whole(*arguments), tensor_of(stored, name)
        reduced = {d % x.dim() for d in ([dim] if isinstance(dim, int) else dim or range(x.dim()))}
        what = f"{operation} {arguments} {placements} on {shape}, dim {dim}, keepdim {keepdim}, dtype {dtype}"
        local = cut(x, mesh, placements)
        assert local.stride() == x.stride()
        for function in (getattr(torch.ops.gpureduce, operation), getattr(torch_reduce, operation)):
            got = function(local, dim, keepdim, dtype=dtype)
            assert_result(got, wanted, mesh, placed(placements, reduced, keepdim), what)


def case(op, shape, name, placements, dim, *, permutation=None, keepdim=False, dtype=None, seed=0):
    """A case of reduce_all. The operator on the whole tensor and the model agree about it."""
    arguments = shape, name, seed, permutation or list(range(len(shape)))
    x = whole(*arguments)
    wanted, result = op.expected(x, dim, keepdim, dtype), op(x, dim, keepdim, dtype=dtype)
    assert_same_bits(result, wanted)
    return op.name, arguments, placements, dim, keepdim, dtype, wanted, str(result.dtype).removeprefix("torch.")


def random_placement(rng, ndim):
    style = rng.randrange(8)
    if style == 0:
        return R
    if style == 1:
        return _StridedShard(rng.randrange(ndim), split_factor=rng.choice([2, 3]))
    return Shard(rng.randrange(ndim))


def random_dim(rng, ndim):
    """Any form of the argument."""
    dims = [d - rng.choice([0, ndim]) for d in range(ndim) if rng.random() < 0.6]
    return rng.choice([None, (), dims, tuple(dims), rng.randrange(-ndim, ndim)])


def random_case(rng, axes):
    ndim = rng.randint(1, 4)
    shape = [rng.choice([1, 2, 3, 5, 17, 64, 300]) for _ in range(ndim)]
    shape[rng.randrange(ndim)] = rng.choice([0, 1, 7, 100, 4096, 20_000])
    while math.prod(shape) > 50_000:
        at = rng.randrange(ndim)
        shape[at] = -(-shape[at] // 2)
    name, op = rng.choice(NAMES), rng.choice(OPERATIONS)
    dtype = rng.choice([None, None, torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.bool])
    return case(
        op if op.takes(name, dtype) else SUM,
        shape,
        name,
        [random_placement(rng, ndim) for _ in range(axes)],
        random_dim(rng, ndim),
        permutation=rng.sample(range(ndim), ndim),
        keepdim=rng.random() < 0.5,
        dtype=dtype,
    )


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (2, 2), (2, 3), (4, 2), (2, 2, 2)], ids=str)
def test_random(shape, world):
    """Random shapes, orders in memory, dims, dtypes and placements; cuts are uneven, and some ranks have nothing."""
    rng = random.Random(str(shape))
    world.run(world.size, reduce_all, shape, [random_case(rng, len(shape)) for _ in range(20)])


LAYOUTS = {
    "two ranks": ((2,), [S0]),
    "two ranks, the fast dim": ((2,), [S2]),
    "one dim cut twice": ((2, 2), [S0, S0]),
    "two dims cut": ((2, 2), [S0, S1]),
    "two dims cut, the other way round": ((2, 3), [S1, S0]),
    "FSDP over tensor parallelism": ((2, 2), [_StridedShard(0, split_factor=2), S0]),
    "FSDP over columns": ((2, 4), [S0, S1]),
    "half of the mesh": ((2, 2), [R, S1]),
    "the fast dim": ((4,), [S2]),
    "a strided shard alone": ((3,), [_StridedShard(0, split_factor=4)]),
    "three ways": ((2, 2, 2), [S0, S1, S0]),
    "more ranks than elements": ((8,), [S1]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, world):
    """The usual ways to cut a weight, for every set of dims, contiguous and permuted."""
    mesh, placements = LAYOUTS[layout]
    cases = []
    for permutation in ([0, 1, 2], [2, 0, 1]):
        for dim in (0, 1, 2, [0, 1], [0, 2], [1, 2], None):
            op = OPERATIONS[len(cases) % 2]
            cases.append(case(op, [37, 5, 90], "float32", placements, dim, permutation=permutation))
    world.run(world.size, reduce_all, mesh, cases)


@pytest.mark.parametrize("mesh", [(2,), (2, 2)], ids=str)
def test_dtypes(mesh, world):
    """Each with some results' dtypes, over one dim and over all in turns."""
    cases = []
    for name, op in itertools.product(NAMES, OPERATIONS):
        for k, dtype in enumerate(op.targets(name, None, "float32", "bfloat16", "int64", "complex64")):
            dim = (0, None)[(k + len(mesh)) % 2]
            cases.append(case(op, [9001, 2], name, [S0] * len(mesh), dim, dtype=dtype))
    world.run(world.size, reduce_all, mesh, cases)


def test_order_tells(world):
    """The data can tell: shards added on their own, and then the ranks, have other bits."""
    x = data([9001, 50], "float32", 0)
    parts = torch.stack([torch_reduce.sum(part, 0) for part in x.chunk(4)])
    assert not torch_reduce.sum(parts, 0).equal(torch_reduce.sum(x, 0))
    permuted = whole([37, 5, 90], "float32", 0, [2, 0, 1])
    assert not torch_reduce.sum(permuted, [0, 2]).equal(torch_reduce.sum(permuted.contiguous(), [0, 2]))


# --- other inputs ----------------------------------------------------------------------------------------------------


def one_dim_after_the_other(group):
    """torch's cache of sharding rules does not know dims in a list apart."""
    mesh, x = mesh_of((2,)), data([4, 6], "float32")
    for function in (torch.ops.gpureduce.sum, torch_reduce.sum, torch_reduce.mean):
        for dim in ([0], [1], [0, 1], [1], [0]):
            got = function(cut(x, mesh, [S0]), dim)
            assert_result(got, function(x, dim), mesh, placed([S0], dim, False), f"dim {dim}")


def test_one_dim_after_the_other(world):
    world.run(world.size, one_dim_after_the_other)


def views(group):
    """Conjugated, expanded and scalar DTensors."""
    mesh = mesh_of((4,))
    x = data([37, 4], "complex64", 1)
    assert_result(torch_reduce.sum(cut(x, mesh, [S0]).conj(), 0), torch_reduce.sum(x.conj(), 0), mesh, [R], "conj")
    column = data([7, 1, 40], "float32")
    wide = column.expand(7, 600, 40)  # the dim of stride 0 counts as the slowest
    wanted = torch_reduce.sum(wide, [0, 1])
    assert not wanted.equal(torch_reduce.sum(wide.contiguous(), [0, 1]))
    got = torch_reduce.sum(cut(column, mesh, [S0]).expand(7, 600, 40), [0, 1])
    assert_result(got, wanted, mesh, [R], "expanded")
    for dim in (None, 0, -1, []):
        got = torch_reduce.mean(cut(torch.tensor(3.0), mesh, [R]), dim)
        assert_result(got, torch.tensor(3.0), mesh, [R], "scalar")
    y = data([37, 50], "float32", 2)
    with torch.inference_mode():
        assert_result(torch_reduce.sum(cut(y, mesh, [S0])), torch_reduce.sum(y), mesh, [R], "inference mode")
    got = torch_reduce.sum(cut(y, mesh, [S0]), axis=-2, keepdims=True)
    assert_result(got, torch_reduce.sum(y, 0, True), mesh, [R], "NumPy's names")
    odd = mesh_with(torch.tensor([2, 0, 3, 1]))  # its groups count ranks in another order
    assert_result(torch_reduce.sum(cut(y, odd, [S0]), 0), torch_reduce.sum(y, 0), odd, [R], "ranks in another order")


def test_views(world):
    world.run(world.size, views)


def moving(group):
    mesh, y = mesh_of((2,)), data([37, 50], "float32", 2)
    moved = cut(y, mesh, [S0]).redistribute(placements=[R], async_op=True)
    assert_result(torch_reduce.sum(moved, 0), torch_reduce.sum(y, 0), mesh, [R], "asynchronous")


def test_moving(world):
    """A DTensor that is still on its way."""
    only_where_torch_moves(world)
    world.run(world.size, moving)


def partials(group, name, wanted):
    """Every rank's own values, whose sum over some of the mesh's dims is the global tensor."""
    line, square, rank = mesh_of((3,)), mesh_of((2, 2)), dist.get_rank()
    mine = data([37, 10, 1], name, 50 + rank, here())
    for placements, dim, stored in wanted:
        mesh = line if len(placements) == 1 else square
        local = mine if S0 not in placements else mine[: 19 - rank % 2]  # the second dim of the mesh cuts dim 0
        x = DTensor.from_local(local, mesh, placements, shape=torch.Size([37, 10, 1]), stride=(10, 1, 1))
        before = local.clone()
        reduced = [0, 1, 2] if dim is None else [dim]
        got = torch_reduce.sum(x, dim)
        assert_result(got, tensor_of(stored, name), mesh, placed(placements, reduced, False), f"{placements} {dim}")
        assert_same_bits(local, before, "the input")


def join(parts, dtype):
    stacked = torch.stack(parts)
    name = str(dtype).removeprefix("torch.")
    return tensor_of(SUM.expected(stacked, 0, dtype=dtype), name)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64"])
def test_partials(name, world):
    """Sums are joined pairwise by rank, and over two dims of a mesh the last one first, rounded once."""
    dtype = dtype_of(name)
    wide = _operations.node_dtype("sum", dtype, dtype)
    own = [data([37, 10, 1], name, 50 + rank) for rank in range(4)]
    line = join(own[:3], dtype)
    square = join([join(own[:2], wide), join(own[2:], wide)], dtype)
    halves = [join([own[column][: 19 - column], own[column + 2][: 19 - column]], dtype) for column in range(2)]
    wanted = []
    for dim in (0, 2, None):  # 2: the joined values themselves
        for placements, x in (
            ([Partial()], line),
            ([Partial(), Partial()], square),
            ([Partial(), S0], torch.cat(halves)),
        ):
            wanted.append((placements, dim, SUM.expected(x, dim, dtype=dtype)))
    world.run(world.size, partials, name, wanted)


def other_partials(group):
    mesh, rank = mesh_of((4,)), dist.get_rank()
    mine = data([37, 10], "float32", rank, here())
    for kind in ("avg", "max", "min"):
        x = DTensor.from_local(mine, mesh, [Partial(kind)])
        wanted = torch_reduce.sum(x.redistribute(placements=[R]).to_local(), 0) if inside(mesh) else torch.empty(10)
        assert_result(torch_reduce.sum(x, 0), wanted, mesh, [R], kind)


def test_other_partials(world):
    """torch joins them."""
    only_where_torch_moves(world)
    world.run(world.size, other_partials)


# --- autograd, out= and torch.compile --------------------------------------------------------------------------------


def gradients(group):
    for shape, placements in (((4,), [S0]), ((2, 2), [S0, S1]), ((2, 2), [S1, R])):
        mesh = mesh_of(shape)
        for op in OPERATIONS:
            for dim in (0, 1, None):
                x = data([37, 50], "float32", 3).requires_grad_()
                op.function(x, dim).square().sum().backward()
                leaf = cut(x.detach(), mesh, placements).requires_grad_()
                result = op.function(leaf, dim)
                wanted = cut(x.grad, mesh, placements).to_local()
                if inside(mesh):  # outside, torch 2.15 cannot copy an expanded gradient
                    result.backward(2 * result.detach())
                    assert leaf.grad.redistribute(placements=placements).to_local().equal(wanted)
                    # what comes from a local tensor gives it a gradient of its own shape
                    local = cut(x.detach(), mesh, placements).to_local().clone().requires_grad_()
                    y = DTensor.from_local(local, mesh, placements, shape=x.shape, stride=x.stride())
                    result = op.function(y, dim)
                    result.backward(2 * result.detach())
                    assert local.grad.equal(wanted)


def test_gradients(world):
    """Those of the global tensor: they convert to the input's placements without a message."""
    only_where_torch_moves(world)
    world.run(world.size, gradients)


def gradient_of_a_partial(group):
    mesh = mesh_of((4,))
    if inside(mesh):
        local = torch.ones(6, 5, device=here(), requires_grad=True)
        torch_reduce.mean(DTensor.from_local(local, mesh, [Partial()])).backward()
        assert local.grad.eq(torch.tensor(1 / 30)).all()


def test_gradient_of_a_partial(world):
    only_where_torch_moves(world)
    world.run(world.size, gradient_of_a_partial)


def gradient_of_partial_extrema(group):
    mesh = mesh_of((4,))
    parts = [data([37, 10], "float32", rank, here()) for rank in range(4)]
    offsets = torch.tensor([0, 20, 37], device=here())
    ops = torch.ops.gpureduce
    calls = {
        "amax": lambda x: ops._amax(x, [0]),
        "amin": lambda x: ops._amin(x, [1]),
        "inf": lambda x: ops._norm_inf(x, [0]),
        "-inf": lambda x: ops._norm_neg_inf(x, [1]),
        "segments": lambda x: ops.segment_amin(x, offsets),
        "index_amax": lambda x: ops.index_amax(x, torch.arange(37, device=x.device) % 5, 5),
        "index_amin": lambda x: ops.index_amin(x, torch.arange(10, device=x.device) % 3, 3, 1),
    }
    for name, call in calls.items():
        whole = join(parts, "float32").to(here()).requires_grad_()
        call(whole).sum().backward()
        if inside(mesh):
            mine = parts[dist.get_rank()].clone().requires_grad_()
            call(DTensor.from_local(mine, mesh, [Partial()])).to_local().sum().backward()
            assert mine.grad.count_nonzero() and mine.grad.equal(whole.grad), name


def test_gradient_of_partial_extrema(world):
    """The operators join the ranks' values in our order also where their gradients ask which elements are extreme. In
    torch's order the values have other bits, and none is extreme: shares of nothing are NaN."""
    only_where_torch_moves(world)
    world.run(world.size, gradient_of_partial_extrema)


def second_derivatives_of_partials(group):
    mesh, ops, T = mesh_of((4,)), torch.ops.gpureduce, torch_reduce
    parts = [data([37, 10], "float64", rank, here()).clamp(-3, 3) for rank in range(4)]
    offsets, index = torch.tensor([0, 20, 37], device=here()), torch.arange(37, device=here()) % 5
    calls = {
        "sum": lambda x: T.sum(x, 0),
        "nansum": lambda x: T.nansum(x, 0),
        "amax": lambda x: T.amax(x, 0),
        "logsumexp": lambda x: T.logsumexp(x, 0),
        "var": lambda x: T.var(x, 0),
        **{f"norm {p}": lambda x, p=p: T.vector_norm(x, p, 0) for p in (1, 2, 3, float("inf"))},
        "segment_sum": lambda x: T.segment_sum(x, offsets),
        "segment_amax": lambda x: T.segment_amax(x, offsets),
        "segment_logsumexp": lambda x: T.segment_logsumexp(x, offsets),
        "segment_softmax": lambda x: T.segment_softmax(x, offsets),
        "index_sum": lambda x: T.index_sum(x, index, 5),
        "index_mean": lambda x: T.index_mean(x, index, 5),
        "index_amax": lambda x: T.index_amax(x, index, 5),
        "softmax": lambda x: T.softmax(x, 0),
        "log_softmax": lambda x: T.log_softmax(x, 1),
        "rms_norm": lambda x: T.rms_norm(x, 10),
    }
    products = {"prod": lambda x: T.prod(x, 0), "segment_prod": lambda x: ops.segment_prod(x, offsets)}

    def derivatives(result, x):
        """The first and the second, as zeros where there is none."""
        (first,) = torch.autograd.grad(result, x, create_graph=True)
        second = torch.autograd.grad(first.square().sum(), x, allow_unused=True)[0] if first.requires_grad else None
        return first.detach(), torch.zeros_like(x) if second is None else second

    for (name, call), power in itertools.product((calls | products).items(), (1, 3)):
        whole = join(parts, "float64").to(here()).requires_grad_()
        if inside(mesh):
            mine = parts[dist.get_rank()].clone().requires_grad_()
            # torch's to_local() would cut the graph of the second derivative
            result = call(DTensor.from_local(mine, mesh, [Partial()])).pow(power).sum().full_tensor()
            if name in products:
                with pytest.raises(
                    NotImplementedError, match=rf"^{name}\(\): gradients of a DTensor are of first order"
                ):
                    derivatives(result, mine)
                continue
            for ours, wanted in zip(
                derivatives(result, mine), derivatives(call(whole).pow(power).sum(), whole), strict=True
            ):
                torch.testing.assert_close(ours, wanted, msg=lambda words, n=name, p=power: f"{n} {p}: {words}")


def test_second_derivatives_of_partials(world):
    """Those of one tensor, also where they are 0; of products an error that says so."""
    only_where_torch_moves(world)
    world.run(world.size, second_derivatives_of_partials)


def forward_mode(group):
    import torch.autograd.forward_ad as forward

    x = cut(torch.ones(4, 6), mesh_of((2,)), [S0])
    with forward.dual_level(), pytest.raises(NotImplementedError, match="_has_same_storage_numel"):
        forward.make_dual(x, x)


def test_forward_mode(world):
    """torch itself makes no dual numbers of DTensors; when it does, this test will say so."""
    world.run(world.size, forward_mode)


def write(group):
    mesh, x = mesh_of((4,)), data([37, 50], "float32", 3)
    for op in OPERATIONS:
        for placements in ([R], [S0]):
            for dtype in (torch.float32, torch.float64):
                out = cut(torch.zeros(50, dtype=dtype), mesh, placements)
                version = out._version
                assert op.function(cut(x, mesh, [S0]), 0, out=out) is out and out._version == version + 1
                assert_result(out, op.function(x, 0, dtype=dtype), mesh, placements, f"out {placements} {dtype}")


def test_out(world):
    """out= is written in its own placements."""
    world.run(world.size, write)


def compiled(group, placements, name, shape, dim, ndim):
    mesh, x = mesh_of((2,) * ndim), data(shape, name, 3)

    def function(x):
        return torch_reduce.mean(x * 2, dim)

    leaf = cut(x, mesh, placements).requires_grad_()
    if inside(mesh):
        result = torch.compile(function, backend="aot_eager", fullgraph=True)(leaf)
        assert_result(result.detach(), function(x), mesh, [R] * ndim, f"compiled {placements} {dim}")
        result.sum().backward()
        again = cut(x, mesh, placements).requires_grad_()
        function(again).sum().backward()
        assert_same_bits(leaf.grad.full_tensor(), again.grad.full_tensor())


@pytest.mark.parametrize(
    "placements, name, shape, dim",
    [([S0], "bfloat16", [20_000, 2], 0), ([S1], "float32", [37, 50], None), ([S0, S1], "float32", [37, 50], None)],
    ids=["realigned", "alternating", "two dims"],
)
def test_compiled(placements, name, shape, dim, world):
    """One graph, with functional collectives, forward and backward."""
    only_where_torch_moves(world)
    world.run(world.size, compiled, placements, name, shape, dim, len(placements))


def compiled_partial(group):
    mesh, rank = mesh_of((2,)), dist.get_rank()
    if inside(mesh):
        x = DTensor.from_local(data([7, 5], "bfloat16", rank, here()), mesh, [Partial()])
        result = torch.compile(lambda x: torch_reduce.sum(x, 0), backend="aot_eager", fullgraph=True)(x)
        assert_same_bits(result.to_local(), torch_reduce.sum(x, 0).to_local())


def test_compiled_partial(world):
    only_where_torch_moves(world)
    world.run(world.size, compiled_partial)


def compiled_for_any_size(group):
    mesh = mesh_of((2,))
    if inside(mesh):
        function = torch.compile(lambda x: torch_reduce.sum(x, 0), backend="aot_eager", dynamic=True)
        for n in (37, 41):
            x = data([n, 50], "float32", 3)
            assert_same_bits(function(cut(x, mesh, [S0])).to_local(), torch_reduce.sum(x, 0))


def test_compiled_for_any_size(world):
    """Who sends what depends on the sizes, so that each has a graph of its own."""
    only_where_torch_moves(world)
    world.run(world.size, compiled_for_any_size)


def compiled_norm(group):
    mesh = mesh_of((2,))
    if inside(mesh):
        x = data([9000, 3], "float32", 3, here())
        one = cut(x, mesh, [S0])

        def function(x):
            return torch_reduce.get_total_norm([x, x]) + 1

        torch._dynamo.reset()
        assert_same_bits(torch.compile(function, backend="eager")(one), function(x))
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="between compiled graphs, not in them"):
            torch.compile(function, backend="eager", fullgraph=True)(one)


def test_compiled_norm(world):
    """Norms of a list of DTensors are exchanged between graphs."""
    world.run(world.size, compiled_norm)


# --- what is sent ----------------------------------------------------------------------------------------------------


def sum_a_dtensor(group, mesh, placements, shape, dim):
    x = DTensor.from_local if any(placement.is_partial() for placement in placements) else cut
    x = x(torch.ones(shape, device=here()), mesh_of(mesh), placements)
    torch_reduce.sum(x, dim)


@pytest.mark.parametrize(
    "mesh, placements, shape, dim, exchanged, gathered",
    [
        ((4,), [S0], [100, 6], 1, 0, 0),  # a kept dim
        ((4,), [R], [100, 6], 0, 0, 0),
        ((4,), [S0], [4 * 4096, 2], 0, 0, 2 * 4 * 3),  # one node a rank and output
        ((2, 4), [R, S0], [4 * 4096, 2], 0, 0, 2 * 4 * 3),  # by the ranks of one dim of the mesh
        ((2, 4), [S0, S0], [8 * 4096, 2], 0, 0, 2 * 4 * 7),  # as on a mesh of one dim
        ((2, 2), [S0, S0], [4 * 4096, 2], 0, 0, 2 * 4 * 4096 + 2 * 4 * 1),  # without a group: a neighbour's shard
        ((2, 2), [S1, S0], [4 * 4096, 2], 0, 0, 1 * 4 * 1),
        ((2, 4), [S0, S1], [64, 1024], None, 64 * 1024 // 8 * 4 * 3 // 4, 4 * 7),  # three of four rows go elsewhere
        ((4,), [Partial()], [8, 5], 1, 40 // 4 * 3 * 4, 40 // 4 * 3 * 4),  # a ring's volume
    ],
)
def test_traffic(mesh, placements, shape, dim, exchanged, gathered, world):
    """The bytes that each rank sends to others, as docs/distributed.md says."""
    ranks = math.prod(mesh)
    for sent in world.run(world.size, traffic, sum_a_dtensor, mesh, placements, shape, dim)[:ranks]:
        assert [sent["all_to_all"][0], sent["all_gather"][0]] == [exchanged, gathered]


def without_a_group(group):
    """Two dims of a mesh cut what is reduced, and torch has no group of their ranks, or has one."""
    mesh = mesh_with(torch.arange(8).view(2, 2, 2), mesh_dim_names=("a", "b", "c"))
    x = data([37, 90], "float32", 5)
    for op in OPERATIONS:
        for placements in ([R, S0, S1], [R, S0, S0], [S1, R, S0], [R, _StridedShard(0, split_factor=2), S0]):
            for dim in (0, None):
                wanted = placed(placements, [0, 1] if dim is None else [dim], False)
                got = op.function(cut(x, mesh, placements), dim)
                assert_result(got, op.function(x, dim), mesh, wanted, f"{placements} {dim}")
    assert _dtensor._group(mesh, (1, 2)) is None
    flat = mesh["b", "c"]._flatten()
    assert _dtensor._group(mesh, (1, 2)) is flat.get_group()
    assert_result(torch_reduce.sum(cut(x, mesh, [R, S0, S1])), torch_reduce.sum(x), mesh, [R] * 3, "flattened")
    assert _dtensor._group(mesh, (0, 1, 2)) is dist.group.WORLD


def test_groups(world):
    world.run(world.size, without_a_group)


# --- errors ----------------------------------------------------------------------------------------------------------


def refused(group):
    """Every rank raises, and sends nothing."""
    mesh, other = mesh_of((4,)), mesh_of((2,))
    x, whole_numbers = cut(torch.ones(8, 6), mesh, [S0]), cut(torch.ones(8).long(), mesh, [S0])
    out, short, elsewhere = cut(torch.ones(6), mesh, [R]), cut(torch.ones(5), mesh, [R]), cut(torch.ones(6), other, [R])
    partial = DTensor.from_local(torch.ones(6, device=here()), mesh, [Partial()])
    for kind, message, call in [
        (IndexError, "Dimension out of range", lambda: torch_reduce.sum(x, 5)),
        (RuntimeError, "dim 0 appears multiple times", lambda: torch_reduce.sum(x, [0, -2])),
        (RuntimeError, "Input dtype must be", lambda: torch_reduce.mean(whole_numbers)),
        (TypeError, "'out' must be one too, not a Tensor", lambda: torch_reduce.sum(x, 0, out=torch.ones(6))),
        (
            TypeError,
            "'input' must be one too, not a Tensor",
            lambda: torch_reduce.sum(torch.ones(8, 6), 0, out=out),
        ),
        (ValueError, "cannot be resized", lambda: torch_reduce.sum(x, 0, out=short)),
        (ValueError, "another mesh", lambda: torch_reduce.sum(x, 0, out=elsewhere)),
        (
            ValueError,
            "must not be Partial",
            lambda: torch_reduce.sum(x, 0, out=partial),
        ),
        (
            RuntimeError,
            "dtype Double, but got Float",
            lambda: torch_reduce.sum(x, 0, dtype=torch.float64, out=out),
        ),
    ]:
        with CommDebugMode() as counted, pytest.raises(kind, match=message):
            call()
        assert counted.get_total_counts() == 0, message


def test_errors(world):
    world.run(world.size, refused)


def not_what_placements_say(group):
    """Shards that torch.chunk would not make: each rank can tell, where it has another number than it should."""
    mesh, rank = mesh_of((2,)), dist.get_rank()
    if inside(mesh):
        sizes = [3, 7]
        x = DTensor.from_local(
            torch.ones(sizes[rank], 2, device=here()), mesh, [S0], shape=torch.Size([10, 2]), stride=(2, 1)
        )
        for dim in (0, 1):
            with pytest.raises(ValueError, match=rf"has the shape \({sizes[rank]}, 2\), but by its placements"):
                torch_reduce.sum(x, dim)


def test_shards_that_chunk_would_not_make(world):
    world.run(world.size, not_what_placements_say)


def test_unknown_placement():
    """A placement of another kind is named."""

    class Strange:
        def is_replicate(self):
            return False

        is_partial = is_replicate

    with pytest.raises(NotImplementedError, match="no rule for the placement .*Strange"):
        _dtensor._after("sum", Strange(), [0], False)


# --- the import ------------------------------------------------------------------------------------------------------

BEFORE = (
    "import sys, torch_reduce; watches = len(sys.meta_path)\n"
    "assert not {'torch.distributed.tensor', 'torch._dynamo'} & {*sys.modules}"
)
AFTER = (
    "import sys, torch, torch.distributed as dist; from torch.distributed.tensor import DTensor, Shard\n"
    "import torch.distributed.tensor as tensor\n"
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "mesh = dist.init_device_mesh('cpu', (1,))\n"
    "x = tensor.distribute_tensor(torch.ones(3, 4), mesh, [Shard(0)])\n"
    "assert torch.ops.gpureduce.sum(x, [0]).to_local().tolist() == [3.0] * 4\n"
    "dist.destroy_process_group()\n"
)


ORDERS = [
    (BEFORE, "assert len(sys.meta_path) == watches - 1"),
    (BEFORE + "\nimport importlib.util; assert importlib.util.find_spec('torch.distributed.tensor')", ""),
    (BEFORE + "\nimport importlib; importlib.reload(torch_reduce)", ""),
    ("import torch.distributed.tensor, torch_reduce", ""),
    ("import torch.distributed.tensor._api\nimport torch_reduce.distributed", ""),
]
IN_CHILDREN = (  # each begins where torch alone is imported
    "import os, sys, torch\n"
    "for code in sys.argv[1:]:\n"
    "    if not (child := os.fork()):\n"
    "        exec(code, {})\n"
    "        os._exit(0)\n"
    "    assert os.waitpid(child, 0)[1] == 0, code\n"
)


def test_import():
    """DTensors work in whichever order modules are imported, and torch_reduce alone does not import them."""
    python("-c", IN_CHILDREN, *(f"{before}\n{AFTER}\n{after}" for before, after in ORDERS))


AGAIN = (
    "import torch, torch.distributed as dist, torch_reduce\n"
    "from torch.distributed.tensor import Shard, distribute_tensor\n"
    "for _ in range(2):\n"
    "    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "    mesh = dist.init_device_mesh('cpu', (1,))\n"
    "    total = torch_reduce.sum(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]), 1)\n"
    "    print(total.device_mesh is mesh, total.to_local().tolist())\n"
    "    dist.destroy_process_group()\n"
)


def test_groups_anew():
    """A result has the mesh of its input, also where an equal mesh of groups that are gone was reduced before."""
    assert python("-c", AGAIN).splitlines() == ["True [3.0, 3.0, 3.0, 3.0]"] * 2


OTHER_RANK = (
    "import torch, torch.distributed as dist, torch_reduce\n"
    "from torch.distributed.tensor import DTensor, Shard\n"
    "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
    "from torch_reduce.distributed import _dtensor\n"
    "join = _dtensor.join_many\n"
    "_dtensor.join_many = lambda shards, *more: print(shards[0].rank) or join(shards, *more)\n"
    "for rank in range(2):\n"
    "    dist.init_process_group('fake', store=FakeStore(), rank=rank, world_size=2)\n"
    "    mesh = dist.init_device_mesh('cpu', (2,))\n"
    "    def shard(here, rows):\n"
    "        shape, stride = torch.Size([rows, 4]), (4, 1)\n"
    "        return DTensor.from_local(torch.ones(here, 4), mesh, [Shard(0)], shape=shape, stride=stride)\n"
    "    x, even = shard(2 - rank, 3), shard(2, 4)\n"
    "    totals = [torch_reduce.sum(x, 1).to_local().tolist() for _ in range(2)]\n"
    "    print(totals, end=' ')\n"
    "    torch_reduce.get_total_norm([even])\n"
    "    dist.destroy_process_group()\n"
)


def test_another_rank_anew():
    """The groups that come after those that are gone may number the ranks in another way."""
    ranks = [4.0, 4.0], [4.0]
    assert python("-c", OTHER_RANK).splitlines() == [f"{[totals] * 2} {rank}" for rank, totals in enumerate(ranks)]


# --- what is remembered of a layout -----------------------------------------------------------------------------------


def called(function):
    """The functions of _dtensor.py that a call runs."""
    names = set()

    def profile(frame, event, _):
        if event == "call" and frame.f_code.co_filename == _dtensor.__file__:
            names.add(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


def alone(group):
    """Each rank has all of what it reduces: whole rows, or tensors that are not cut."""
    mesh = mesh_of((2,))
    x = data([37, 60], "float32", 3)
    weight = data([60], "float32", 4)
    calls = [
        ([S0], lambda x: torch_reduce.sum(x, 1, dtype=torch.float64)),
        ([R], torch_reduce.mean),
        ([S1], lambda x: torch_reduce.amax(x, 0, True)),
        ([S0], lambda x: torch_reduce.var(x, -1)),
        ([S0], lambda x: torch_reduce.softmax(x, 1)),
        ([S0], lambda x: torch_reduce.weighted_sum(x, x, 1)),
        ([R], lambda x: torch_reduce.weighted_sum(x, cut(weight, mesh, [R]) if isinstance(x, DTensor) else weight, 1)),
        ([S0], lambda x: torch_reduce.rms_norm(x, 60)),
        ([R], lambda x: torch_reduce.layer_norm(x, 60)),
    ]
    if not inside(mesh):
        return
    for k, (placements, call) in enumerate(calls):
        wanted = call(x)
        leaf = cut(x, mesh, placements).requires_grad_()
        first, grads = call(leaf), []
        for _ in range(2):
            names = called(lambda leaf=leaf, call=call: call(leaf))
            assert names <= {"rule", "_layout", "_with_spec", "<genexpr>", "joined", "<lambda>"}, (k, names)
            result = call(leaf)
            assert result._spec == first._spec and result.requires_grad, k
            assert_result(result, wanted, mesh, result.placements, k)
            result.sum().backward()
            grads.append(leaf.grad)
            leaf.grad = None
        assert grads[0]._spec == grads[1]._spec
        assert_same_bits(grads[0].to_local(), grads[1].to_local(), k)


def test_remembered(world):
    """A rule runs once with a layout. After that a call without messages is one of the operator."""
    world.run(world.size, alone)


def places_of_extrema(group):
    mesh = mesh_of((2,))
    whole = data([37, 6, 5], "int8", 3, here()).float() // 8
    if not inside(mesh):
        return
    for placements in ([S0], [S1], [R]):
        x = cut(whole, mesh, placements)
        for dim, keepdim in itertools.product((None, 0, -1, (0, 2)), (False, True)):
            found = torch_reduce.argmax(x, dim, keepdim)
            assert torch.equal(found.full_tensor(), torch_reduce.argmax(whole, dim, keepdim)), (
                placements,
                dim,
                keepdim,
            )
        for dim in (0, 1):
            leaf, plain = x.detach().requires_grad_(), whole.clone().requires_grad_()
            for one, other in zip(torch_reduce.min(leaf, dim), torch_reduce.min(plain, dim), strict=True):
                assert torch.equal(one.full_tensor(), other), (placements, dim)
            torch_reduce.max(leaf, dim).values.sum().backward()
            torch_reduce.max(plain, dim).values.sum().backward()
            assert torch.equal(leaf.grad.full_tensor(), plain.grad), (placements, dim)


def test_places_of_extrema(world):
    """argmax, max and min of a DTensor, and their gradients, have the values of the whole tensor."""
    only_where_torch_moves(world)
    world.run(world.size, places_of_extrema)


def other_order(group):
    """A local tensor may lie in another order than the global one, whose order counts."""
    mesh = mesh_of((1,))
    if inside(mesh):
        x = data([8, 3, 20_000], "float32", 3, here())
        turned = x.transpose(1, 2).contiguous().transpose(1, 2)
        wanted, other = (torch_reduce.sum(one, (1, 2)) for one in (x, turned))
        assert not torch.equal(wanted, other)
        local = DTensor.from_local(turned, mesh, [R], shape=x.shape, stride=x.stride())
        for one in (local, cut(x, mesh, [R]), local):
            for _ in range(2):
                assert_same_bits(torch_reduce.sum(one, (1, 2)).to_local(), wanted)


def test_order_of_a_local_tensor(world):
    world.run(world.size, other_order)


def test_no_end_of_layouts():
    """What is remembered has a bound, and none of it is a tensor."""
    assert _dtensor._learnt.cache_info().maxsize is not None
    python("-c", BOUND)


BOUND = (
    "import gc, weakref, torch, torch.distributed as dist, torch_reduce\n"
    "from torch.distributed.tensor import DTensor, Replicate\n"
    "from torch_reduce.distributed import _dtensor\n"
    "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
    "mesh = dist.init_device_mesh('cpu', (1,))\n"
    "locals = []\n"
    "for n in range(_dtensor._learnt.cache_info().maxsize + 10):\n"
    "    local = torch.ones(n, 2)\n"
    "    x = DTensor.from_local(local, mesh, [Replicate()]).requires_grad_()\n"
    "    for _ in range(2): assert torch_reduce.sum(x, 1).to_local().tolist() == [2.0] * n\n"
    "    locals += weakref.ref(local), weakref.ref(x)\n"
    "del local, x\n"
    "gc.collect()\n"
    "assert not any(one() is not None for one in locals)\n"
    "info = _dtensor._learnt.cache_info()\n"
    "assert info.currsize == info.maxsize and info.hits, info\n"
    "dist.destroy_process_group()\n"
)


def test_rules_have_the_operators_arguments():
    """The rule takes what the schema names."""
    for op in OPERATIONS:
        arguments = [argument.name for argument in op.operator.out._schema.arguments]
        assert list(inspect.signature(_dtensor._reduce).parameters) == ["op", *arguments]


# --- norms and clipping -----------------------------------------------------------------------------------------------

ORDS = [0.0, 1.0, 2.0, 3.0, math.inf, -math.inf]


def norms(group, shape, placements):
    mesh = mesh_of(shape)
    for name in ("bfloat16", "complex64"):
        x = data((37, 300), name, seed=3)
        local = cut(x, mesh, placements)
        for ord in ORDS:
            for dim in (None, [0]):
                got = torch.ops.gpureduce.linalg_vector_norm(local, ord, dim)
                wanted = torch.ops.gpureduce.linalg_vector_norm(x, ord, dim)
                reduced = {0, 1} if dim is None else set(dim)
                assert_result(got, wanted, mesh, placed(placements, reduced, False), f"{name} {ord} {dim} {placements}")
            if ord in ORDS[:4]:
                got, wanted = (torch.ops.gpureduce.linalg_powsum(t, ord) for t in (local, x))
                assert_result(got, wanted, mesh, [R] * len(placements), f"powsum {ord}")


@pytest.mark.parametrize("placements", [[S0, R], [S1, S0], [S0, S0], [R, S1], [S0], [S1]], ids=str)
def test_norms(placements, world):
    """The global tensor's bits, of every order."""
    world.run(world.size, norms, (2,) * len(placements), placements)


def local_of(whole, like):
    """What this rank has of a tensor that is cut as `like` is."""
    return cut(whole, like.device_mesh, like.placements).to_local()


def clip(group, sizes, wanted):
    """Clips plain tensors and DTensors of several placements in one list."""
    mesh = mesh_of(sizes)
    if not inside(mesh):
        return
    values = [data(shape, name, seed=k, device=here()) for k, (shape, name) in enumerate(PARAMETERS)]
    placements = [[S0], [S1], [R], None, [S0], [S0]]
    parameters = []
    for x, placement in zip(values, placements, strict=True):
        parameter = torch.nn.Parameter(x.clone() if placement is None else cut(x, mesh, placement))
        parameter.grad = x.clone() if placement is None else cut(x.clone(), mesh, placement)
        parameters.append(parameter)
    for ord, (total, after) in wanted.items():
        assert_same_bits(torch_reduce.get_total_norm([p.grad for p in parameters], ord), total, f"{ord}")
        if ord == 2.0:
            assert_same_bits(torch_reduce.clip_grad_norm_(parameters, 3.0), total)
            for p, x in zip(parameters, after, strict=True):
                local = isinstance(p.grad, DTensor)
                assert_same_bits(p.grad.to_local() if local else p.grad, local_of(x, p.grad) if local else x)


def norm_with_nothing(group, sizes):
    """The largest and the smallest magnitude of a list in which a DTensor has no elements."""
    mesh = mesh_of(sizes)
    some = data((9, 4), "float32", device=here())
    nothing = cut(some[:0], mesh, [S0])
    for ord in (math.inf, -math.inf):
        wanted = torch_reduce.get_total_norm([some], ord)
        for tensors in ([nothing, some], [cut(some, mesh, [S0]), nothing]):
            assert_same_bits(torch_reduce.get_total_norm(tensors, ord), wanted)


def test_norm_with_nothing(world):
    """It counts for nothing."""
    world.run(2, norm_with_nothing, (2,))


PARAMETERS = [((40, 300), "float32"), ((33, 7), "bfloat16"), ((5,), "float32"), ((9, 9), "float32")]
PARAMETERS += [((20_001,), "bfloat16"), ((3, 4100), "float32")]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_clipping(ranks, world):
    """The total norm has the same bits at any number of ranks, as on one device; and so have the scaled gradients."""
    device = world.devices[0]
    parameters = [torch.nn.Parameter(data(shape, name, k, device)) for k, (shape, name) in enumerate(PARAMETERS)]
    for p in parameters:
        p.grad = p.detach().clone()
    wanted = {}
    for ord in (1.0, 3.0, math.inf, 2.0):
        wanted[ord] = (torch_reduce.get_total_norm([p.grad.cpu() for p in parameters], ord), None)
    torch_reduce.clip_grad_norm_(parameters, 3.0)
    wanted[2.0] = (wanted[2.0][0], [p.grad.cpu() for p in parameters])
    world.run(world.size, clip, (ranks,), wanted)


def gradients_of_norms(group):
    mesh = mesh_of((4,))
    if not inside(mesh):
        return
    for ord in (1.0, 2.0, 3.0, math.inf):
        x = data((12, 50), "float64", seed=1)
        plain, placed_one = x.clone().requires_grad_(), cut(x, mesh, [S0]).requires_grad_()
        torch.ops.gpureduce.linalg_vector_norm(plain, ord).backward()
        torch.ops.gpureduce.linalg_vector_norm(placed_one, ord).backward()
        got = placed_one.grad.redistribute(placements=[S0]).to_local()
        torch.testing.assert_close(got, local_of(plain.grad, placed_one))


def test_gradients_of_norms(world):
    """As those of the global tensor."""
    only_where_torch_moves(world)
    world.run(world.size, gradients_of_norms)


def total_norm_of_many(group, count):
    mesh = mesh_of((4,))
    if inside(mesh):
        tensors = [data((16_384 + 100 * k, 3), "float32", seed=k) for k in range(count)]
        torch_reduce.get_total_norm([cut(x, mesh, [S0]) for x in tensors])


@pytest.mark.parametrize("count", [1, 40])
def test_messages_of_clipping(count, world):
    """Two collectives for all tensors that are cut alike, of which the first has one message a neighbour."""
    for sent in world.run(world.size, traffic, total_norm_of_many, count)[:4]:
        assert sent["all_to_all"][1] <= 3
        assert sent["all_gather"][1] == 1


def of_every_layout(mesh, seed, wide, empty):
    """Pairs of a tensor and its DTensor, one a layout, of several dtypes; and plain tensors between them."""

    def otherwise(x):
        """Of which the local tensors do not lie in the order of the global strides."""
        one = cut(x, mesh, placements)
        local = one.to_local().t().contiguous().t()
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=x.shape, stride=x.stride())

    others = mesh.ndim - 1
    for name in ("float32", "bfloat16", "complex64", "float64")[: 4 if wide else 3]:
        for k, shape in enumerate([(70, 300), (9000,), (2, 5000), (3,), (1, 1), ()] + [(0, 4)] * empty):
            x = data(shape, name, seed=10 * seed + k, device=here())
            yield x, x.clone()
            yield x, cut(x, mesh, [R] * mesh.ndim)
            for dim in range(x.dim()):
                placements = [Shard(dim)] + [R] * others
                yield x, cut(x, mesh, placements)
                yield x, cut(x, mesh, [R] * others + [Shard(dim)])
                if x.dim() == 2:
                    yield x.t(), cut(x.t(), mesh, placements)
                    yield x, otherwise(x)
            if x.dim() and others:
                yield x, cut(x, mesh, [S0, S0])
                yield x, cut(x, mesh, [S0, Shard(x.dim() - 1)])
            if x.dim() and x.is_complex():
                yield x.conj(), cut(x, mesh, [S0] + [R] * others).conj()
                yield x.conj().imag, cut(x.conj().imag, mesh, [S0] + [R] * others)
            part = x if mesh.get_local_rank(0) == 0 else torch.full_like(x, -0.0)
            yield x, DTensor.from_local(part, mesh, [Partial()] + [R] * others, run_check=False)


def total_norms_of_layouts(group, shape):
    mesh = mesh_of(shape)
    if not inside(mesh):
        return
    for ord in ORDS:
        again = ((1, True), (2, False)) if ord == 2 else ()  # the same layouts have other elements
        for seed, wide in ((0, False), *again):
            pairs = list(of_every_layout(mesh, seed, wide, empty=math.isfinite(ord)))
            wanted = torch_reduce.get_total_norm([x for x, _ in pairs], ord)
            assert_same_bits(torch_reduce.get_total_norm([one for _, one in pairs], ord), wanted, f"{ord} {seed}")
            for x, one in pairs[:: 1 if ord == 2 and not wide else 29]:
                wanted = torch_reduce.get_total_norm([x], ord)
                what = f"{ord} {tuple(x.shape)} {x.stride()} {x.dtype} {getattr(one, 'placements', None)}"
                assert_same_bits(torch_reduce.get_total_norm([one], ord), wanted, what)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)], ids=str)
def test_total_norms_of_layouts(shape, world):
    """Of every layout beside every other, and alone; and again, when what the layouts say is known."""
    world.run(world.size, total_norms_of_layouts, shape)


def total_norm_over_two_meshes(group):
    """Some tensors are on a mesh of two dims, and others on one of its dims, whose ranks are the same group."""
    mesh = mesh_with(torch.arange(4).view(2, 2), mesh_dim_names=("a", "b"))
    if inside(mesh):
        tensors = [data((100 + k, 90), "float32", seed=k, device=here()) for k in range(6)]
        meshes = [(mesh, [R, S0]), (mesh["b"], [S0])] * 3
        cuts = [cut(x, *where) for x, where in zip(tensors, meshes, strict=True)]
        assert_same_bits(torch_reduce.get_total_norm(cuts), torch_reduce.get_total_norm(tensors))


def test_messages_over_two_meshes(world):
    """They are exchanged together."""
    for sent in world.run(world.size, traffic, total_norm_over_two_meshes)[:4]:
        assert sent["all_to_all"][1] <= 1 and sent["all_gather"][1] == 1


# --- norms of tensors that no rank has all of ------------------------------------------------------------------------


def stages(group, names, held, wanted):
    """Each case of `wanted`: an order, the norm of all, and None or the clipped tensors.

    held[rank] has the places of the tensors that the rank gives: plain ones, but those of an odd place are DTensors on
    one of two meshes, all of whose ranks give them, and maybe others.
    """
    rank, wholes = dist.get_rank(), [data((300 + k, 40), name, seed=k, device=here()) for k, name in enumerate(names)]
    pairs = [[0, 1], [2, 3] if dist.get_world_size() >= 4 else [0, 1]]
    meshes = [mesh_with(torch.tensor(pair)) for pair in pairs]

    def mine(k):
        return cut(wholes[k], meshes[k // 2 % 2], [S0]) if k % 2 else wholes[k].clone()

    places = held[rank]
    for ord, total, clipped in wanted:
        got = torch_reduce.get_total_norm([mine(k) for k in places], ord, group=group, places=places)
        assert got.device == (here() if places or here().type == "cpu" or "nccl" in dist.get_backend() else CPU)
        assert_same_bits(got, total, f"{ord} {places}")
        if clipped is None:
            continue
        # Outside of its mesh, a DTensor that torch makes is empty and on the CPU, and takes no gradient of a GPU.
        given = [k for k in places if here().type == "cpu" or k % 2 == 0 or inside(meshes[k // 2 % 2])]
        parameters = [torch.nn.Parameter(mine(k)) for k in [*given, *given[:1]]]  # the last one has no gradient
        for k, p in zip(given, parameters, strict=False):
            p.grad = mine(k)
        told = [*given, *[len(names)] * len(given[:1])]
        assert_same_bits(torch_reduce.clip_grad_norm_(parameters, 3.0, ord, group=group, places=told), total)
        for k, p in zip(given, parameters, strict=False):
            local = isinstance(p.grad, DTensor)
            wanted_one = local_of(clipped[k], p.grad) if local else clipped[k]
            assert_same_bits(p.grad.to_local() if local else p.grad, wanted_one, f"{ord} {k}")


CPU = torch.device("cpu")
HELD = {
    "stages": [[0, 1], [1], [2, 3], [3, 6], [], [4], [8], []],
    "all of the DTensors everywhere": [[0, 1, 3, 5, 7], [7, 5, 3, 1], [3, 7], [1, 3, 5, 7, 4, 2], [6], [8], [8, 2], []],
    "any order": [[4, 2, 0, 1], [1], [6, 3], [8, 3], [], [], [0, 2], [8]],
}


@pytest.mark.parametrize(
    "names", [["float32", "bfloat16"] * 4 + ["bfloat16"], ["float32"] * 8 + ["float64"]], ids=["32", "64"]
)
@pytest.mark.parametrize("form", HELD)
def test_stages(form, names, world):
    """The norm of tensors on many ranks is that of the list of all of them, on every rank; and so is what it clips."""
    held = HELD[form][: world.size]
    device, places = world.devices[0], sorted(set().union(*held))
    wholes = {k: data((300 + k, 40), names[k], k, device) for k in places}
    wanted = []
    for ord in ORDS:
        total = torch_reduce.get_total_norm([wholes[k].cpu() for k in places], ord)
        wanted.append((ord, total, None))
    for k in places:
        wholes[k] = torch.nn.Parameter(wholes[k])
        wholes[k].grad = wholes[k].detach().clone()
    torch_reduce.clip_grad_norm_(list(wholes.values()), 3.0)
    clipped = {k: p.grad.cpu() for k, p in wholes.items()}
    wanted[ORDS.index(2.0)] = (2.0, wanted[ORDS.index(2.0)][1], clipped)
    world.run(world.size, stages, names, held, wanted)


SEED = 200  # of data that show the order of the list


def two_stages(group, wanted):
    """Any number of ranks, also where some have none; the tensors are dealt out."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    own = list(range(rank, 61, size))[::-1]
    tensors = [data((30 + k,), "float32", seed=k + SEED, device=here()) for k in own]
    assert_same_bits(torch_reduce.get_total_norm(tensors, 1, group=group, places=[7 * k for k in own]), wanted)
    nothing = torch_reduce.get_total_norm([], group=group, places=[])
    assert nothing.shape == () and nothing.dtype == torch.float32 and float(nothing) == 0


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_stages_of_any_number(size, world):
    """The data can tell: in the order of the ranks the norm has other bits."""
    tensors = [data((30 + k,), "float32", seed=k + SEED) for k in range(61)]
    wanted = torch_reduce.get_total_norm(tensors, 1)
    for n in (2, 3, 5):
        assert not wanted.equal(torch_reduce.get_total_norm([t for k in range(n) for t in tensors[k::n]], 1))
    world.run(size, two_stages, wanted)


def total_norm_of_stages(group, counts):
    own = range(counts[dist.get_rank(group)])
    torch_reduce.get_total_norm([torch.ones(9, device=here()) for _ in own], group=group, places=list(own))


@pytest.mark.parametrize("counts", [[5, 2], [3, 0, 7]])
def test_messages_of_stages(counts, world):
    """The check, the places and the accumulators; all ranks send as much as the one with the most tensors."""
    others = len(counts) - 1
    for sent in world.run(len(counts), traffic, total_norm_of_stages, counts):
        assert sent["all_to_all"] == [0, 0]
        assert sent["all_gather"] == [(256 + 8 * max(counts) + 4 * max(counts)) * others, 3]


def outside_of_the_mesh(group):
    """A rank that has nothing of a DTensor says so, unless the ranks of the mesh tell it."""
    mesh, rank = mesh_of((1,)), dist.get_rank()
    x = data((300, 7), "float32", 4)
    local, wanted = cut(x, mesh, [S0]), torch_reduce.get_total_norm([x])
    if inside(mesh):
        assert_same_bits(torch_reduce.get_total_norm([local]), wanted)
    else:
        with pytest.raises(ValueError, match="outside of the mesh of tensor 1, and has nothing of it: give 'group'"):
            torch_reduce.get_total_norm([x, local])
    assert_same_bits(torch_reduce.get_total_norm([local], group=dist.group.WORLD, places=[3]), wanted, f"rank {rank}")


def test_outside_of_the_mesh(world):
    world.run(world.size, outside_of_the_mesh)


def wrong_places(group):
    """One rank is wrong: it raises its own error, and the others one that names it; and all can go on."""
    odd, x = dist.get_rank(group) == 1, torch.ones(3, device=here())
    for kind, message, tensors, places, ord in [
        (ValueError, "'places' must be 2, one a tensor, all different", [x, x], [1], 2),
        (ValueError, "'places' must be 2, one a tensor, all different", [x, x], [1, 1], 2),
        (ValueError, "'places' must be integers from 0 on", [x], [-1], 2),
        (ValueError, "'places' must be integers from 0 on", [x], [1.0], 2),
        (RuntimeError, "floating point or complex", [x.int()], [1], 2),
        (NotImplementedError, "norm_type must be 0, 1, 2, 3, inf or -inf, but is 4", [x], [1], 4),
    ]:
        arguments = (tensors, places, ord) if odd else ([x], [0], 2)
        kind, message = (kind, message) if odd else (RuntimeError, f"rank 1 failed: {kind.__name__}: .*{message}")
        with pytest.raises(kind, match=message):
            torch_reduce.get_total_norm(arguments[0], arguments[2], group=group, places=arguments[1])
    for ranks, wanted in ((["inf", "2"], "disagree about the norm_type: 2.0 on rank 0; inf on rank 1"),):
        with pytest.raises(RuntimeError, match=wanted):
            torch_reduce.get_total_norm([x], float(ranks[not odd]), group=group, places=[0])
    with pytest.raises(ValueError, match="'group' and 'places' go together"):
        torch_reduce.get_total_norm([x], group=group)
    with pytest.raises(ValueError, match="'group' and 'places' go together"):
        torch_reduce.get_total_norm([x], places=[0])
    parameter = torch.nn.Parameter(x)
    with pytest.raises(ValueError, match="'places' must be 1, one a tensor"):
        torch_reduce.clip_grad_norm_([parameter], 1.0, group=group, places=[])
    x[1] = math.nan
    with pytest.raises(RuntimeError, match="non-finite, so it cannot be clipped"):
        torch_reduce.get_total_norm([x] * (not odd), error_if_nonfinite=True, group=group, places=[0] * (not odd))


def test_wrong_places(world):
    world.run(2, wrong_places)


# --- products, extrema and counts -------------------------------------------------------------------------------------

PROD, AMAX, AMIN, ANY, ALL = kin("prod", "amax", "amin", "any", "all")
COUNT, LOGSUMEXP, NANSUM = kin("count_nonzero", "logsumexp", "nansum")


def kin_of_all(group, shape, cases):
    """Each case: an operation, the global tensor as whole_of() makes it, placements, a call, and the wanted bits."""
    mesh = mesh_of(shape)
    for op, arguments, placements, keepdim, dtype, wanted in cases:
        local, dims = cut(whole_of(op, *arguments), mesh, placements), arguments[-1]
        asked = {} if dtype is None else {"dtype": dtype}
        what = f"{op} {arguments} {placements} on {shape}, keepdim {keepdim}, dtype {dtype}"
        for function in op.forms:
            got = function(local, dims, keepdim, **asked)
            bits = tensor_of(wanted, op.result(arguments[1], dtype))
            assert_result(got, bits, mesh, placed(placements, dims, keepdim), what)


def kin_case(op, shape, name, placements, dims, *, permutation=None, keepdim=False, dtype=None):
    arguments = shape, name, math.prod(shape), permutation or list(range(len(shape))), dims
    wanted = op.expected(whole_of(op, *arguments), dims, keepdim, dtype)
    return op, arguments, placements, keepdim, dtype, wanted


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (2, 2), (2, 3), (2, 2, 2)], ids=str)
def test_kin(shape, world):
    """Random shapes, orders in memory, dims, dtypes and placements; cuts are uneven, and some ranks have nothing."""
    rng, cases = random.Random(f"kin {shape}"), []
    for k in range(24):
        ndim, op = rng.randint(1, 4), FAMILY[k % len(FAMILY)]
        size = [rng.choice([1, 2, 3, 5, 17, 64, 300]) for _ in range(ndim)]
        size[rng.randrange(ndim)] = rng.choice([1, 7, 100, 4096, 20_000])
        while math.prod(size) > 50_000:
            at = rng.randrange(ndim)
            size[at] = -(-size[at] // 2)
        name = rng.choice([name for name in DTYPES if op.takes(name)])
        targets = op.targets(name, None, None, "float32", "bfloat16", "float64", "int32", "bool")
        cases.append(
            kin_case(
                op,
                size,
                name,
                [random_placement(rng, ndim) for _ in shape],
                [d for d in range(ndim) if rng.random() < 0.6] or [0],
                permutation=rng.sample(range(ndim), ndim),
                keepdim=rng.random() < 0.5,
                dtype=rng.choice(targets),
            )
        )
    world.run(world.size, kin_of_all, shape, cases)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_kin(layout, world):
    """The usual ways to cut a weight, among them those whose ranks have no group of their own."""
    mesh, placements = LAYOUTS[layout]
    cases = []
    for k, dims in enumerate(([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]), list(LAYOUTS).index(layout)):
        op = (PROD, AMIN, ALL)[k % 3]
        cases.append(kin_case(op, [37, 5, 90], "float32", placements, dims, permutation=[2, 0, 1]))
    world.run(world.size, kin_of_all, mesh, cases)


def other_kin(group):
    """Views, no elements, inference mode, Partial inputs, out=, and what has no gradient."""
    mesh, rank = mesh_of((4,)), dist.get_rank()
    x = data([37, 50], "float32", 2)
    local = cut(x, mesh, [S0])
    with torch.inference_mode():
        for op in FAMILY:
            assert_result(op.function(local, 0), op(x, 0), mesh, [R], f"{op} in inference mode")
    for op in FAMILY:
        assert_result(op.function(local, axis=-2, keepdims=True), op(x, 0, True), mesh, [R], "NumPy's names")
        for placements in ([R], [S0]):
            out = cut(torch.zeros(50, dtype=op(x, 0).dtype), mesh, placements)
            assert op.function(local, 0, out=out) is out
            assert_result(out, op(x, 0), mesh, placements, f"{op} out {placements}")
        scalar = torch.tensor(3.0)
        assert_result(op.function(cut(scalar, mesh, [R])), op(scalar), mesh, [R], "scalar")
    empty = torch.ones(0, 3)
    for op in (PROD, ANY, ALL, COUNT, LOGSUMEXP, NANSUM):
        assert_result(op.function(cut(empty, mesh, [S0]), 0), op(empty, 0), mesh, [R], f"{op} of no elements")
    for op in (AMAX, AMIN):
        with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
            op.function(cut(empty, mesh, [S0]), 0)
        assert_result(op.function(cut(empty, mesh, [S0]), 1), op(empty, 1), mesh, [S0], f"{op} of nothing")
    z = torch.complex(x, -x)
    z[:, 1:] = 0
    for op in (ANY, COUNT):
        assert_result(op.function(cut(z, mesh, [S0]).conj(), 0), op(z, 0), mesh, [R], f"{op} of a view")
    mine = data([37, 10], "float32", rank, here())
    parts = torch.stack([data([37, 10], "float32", r) for r in range(4)])
    wanted = AMAX(tensor_of(SUM.expected(parts, 0), "float32"), 0)
    assert_result(torch_reduce.amax(DTensor.from_local(mine, mesh, [Partial()]), 0), wanted, mesh, [R], "Partial")


def test_other_kin(world):
    world.run(world.size, other_kin)


def no_groups_of_kin(group):
    """Two dims of a mesh cut what is reduced, and torch has no group of their ranks: one joins after the other."""
    mesh = mesh_with(torch.arange(8).view(2, 2, 2), mesh_dim_names=("x", "y", "z"))
    for shape in ([37, 90], [3, 90], [1, 700]):  # also where half of the ranks, or all but two, have nothing
        x = data(shape, "float32", 5)
        for k, op in enumerate(FAMILY, len(x)):
            layouts = ([R, S0, S1], [R, S0, S0], [S1, R, S0], [R, _StridedShard(0, split_factor=2), S0])
            for placements, dim in rotated(itertools.product(layouts, (0, None)), k):
                wanted = placed(placements, [0, 1] if dim is None else [dim], False)
                got = op.function(cut(x, mesh, placements), dim)
                assert_result(got, op(x, dim), mesh, wanted, f"{op} {shape} {placements} {dim}")


def test_no_groups_of_kin(world):
    world.run(world.size, no_groups_of_kin)


def gradients_of_kin(group):
    for shape, placements in (((4,), [S0]), ((2, 2), [S0, S1])):
        mesh = mesh_of(shape)
        for op in (AMAX, AMIN, LOGSUMEXP, NANSUM):
            for dim in (0, 1, None):
                x = data([37, 50], "float64", 3).requires_grad_()
                op.function(x, dim).square().sum().backward()
                leaf = cut(x.detach(), mesh, placements).requires_grad_()
                result = op.function(leaf, dim)
                result.backward(2 * result.detach())
                wanted = cut(x.grad, mesh, placements).to_local()
                if inside(mesh):
                    got = leaf.grad.redistribute(placements=placements).to_local()
                    torch.testing.assert_close(got, wanted.to(got.device), msg=f"{op} {placements} {dim}")
        leaf = cut(torch.ones(37, 50), mesh, placements).requires_grad_()
        assert not any(op.function(leaf, 0).requires_grad for op in (ANY, ALL, COUNT))


def test_gradients_of_kin(world):
    """As those of the global tensor."""
    only_where_torch_moves(world)
    world.run(world.size, gradients_of_kin)


def gradient_of_a_product(group):
    mesh, x = mesh_of((2,)), (1 + data([37, 50], "float64", 3) / 4096).requires_grad_()
    if inside(mesh):
        torch_reduce.prod(x, 0).sum().backward()
        for placement in (S0, S1, Replicate()):
            leaf = cut(x.detach(), mesh, [placement]).requires_grad_()
            torch_reduce.prod(leaf, 0).sum().backward()
            got = leaf.grad.redistribute(placements=[placement]).to_local()
            assert_same_bits(got.cpu(), cut(x.grad, mesh, [placement]).to_local().cpu())


def test_gradient_of_a_product(world):
    """The bits of one device, whichever dim is cut."""
    only_where_torch_moves(world)
    world.run(world.size, gradient_of_a_product)


def compiled_kin(group, ndim, placements):
    mesh, x = mesh_of((2,) * ndim), data([37, 50], "float32", 3)

    def function(x):
        products = torch_reduce.prod(x / 64, 0)
        return torch_reduce.amax(x, 0), torch_reduce.all(x > -4096), products, torch_reduce.logsumexp(x, 0)

    if inside(mesh):
        got = torch.compile(function, backend="aot_eager", fullgraph=True)(cut(x, mesh, placements))
        kept = [R if placement == S0 else S0 for placement in placements]
        for result, wanted, after in zip(got, function(x), (kept, [R] * ndim, kept, kept), strict=True):
            assert_result(result, wanted, mesh, after, f"compiled {placements}")


@pytest.mark.parametrize("placements", [[S0], [S0, S1]], ids=str)
def test_compiled_kin(placements, world):
    """One graph, with functional collectives."""
    only_where_torch_moves(world)
    world.run(world.size, compiled_kin, len(placements), placements)


def reduce_a_dtensor(group, op, mesh, placements, shape, dims):
    op.function(cut(torch.ones(shape), mesh_of(mesh), placements), dims)


@pytest.mark.parametrize(
    "mesh, placements, shape, dims, exchanged, gathered",
    [
        ((4,), [S0], [100, 2], [0], 0, 2 * 3),  # fewer outputs than ranks: a node an output, to all
        ((4,), [S0], [100, 80], [0], 60, 20 * 3),  # each rank joins a quarter of the outputs
        ((2, 4), [S0, S1], [64, 1024], [0, 1], 0, 7),  # by the world
        ((2, 2), [S0, S1], [64, 1024], [0, 1], 0, 1 + 1),  # without a group, one dim of the mesh after the other
        ((2, 2), [S1, S0], [64, 1024], [0], 0, 512),  # the columns that this rank has
    ],
)
def test_traffic_of_kin(mesh, placements, shape, dims, exchanged, gathered, world):
    """In nodes, of 4 bytes of an extremum and of 8 of a count: no element is sent."""
    for op, item in ((AMAX, 4), (AMIN, 4), (ANY, 8), (ALL, 8), (COUNT, 8)):
        told = world.run(world.size, traffic, reduce_a_dtensor, op, mesh, placements, shape, dims)
        for sent in told[: math.prod(mesh)]:
            assert [sent["all_to_all"][0], sent["all_gather"][0]] == [item * exchanged, item * gathered], op
