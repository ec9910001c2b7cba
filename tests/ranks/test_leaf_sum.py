"""distributed.leaf_sum: the parts of all ranks are added in one tree, whatever the number of ranks."""

import itertools

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.tensor import Shard

import torch_reduce
from support import DTYPES, SUM, assert_same_bits, data, dtype_of, tensor_of
from test_dtensor import cut, inside, mesh_of, only_where_torch_moves
from torch_reduce.distributed import leaf_sum
from worlds import here, traffic

WORLDS = ["cpu", "gpus", "mixed", "nccl"]
RANKS = [1, 2, 3, 4, 6]
LEAVES = 12  # which all of them divide
each_number_of_ranks = pytest.mark.parametrize("size", RANKS)


def own(whole, group):
    """This rank's leaves of all."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    return whole.tensor_split(size)[rank].to(here())


def added(group, cases):
    """Every rank has the wanted sum of tensors and of lists, or its piece of it, with a check and without."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    for whole, dtype, stored, name in cases:
        wanted, parts = tensor_of(stored, name, here()), own(whole, group)
        for given, check in itertools.product((parts, list(parts), parts.unbind(0)), (True, False)):
            found = leaf_sum(given, len(whole), group, dtype=dtype, check=check)
            assert_same_bits(found, wanted, f"{tuple(whole.shape)} of {whole.dtype} on {size} ranks")
            assert found.is_contiguous()
        for dim in range(-wanted.dim(), wanted.dim()):
            if wanted.size(dim) % size == 0:
                found = leaf_sum(parts, len(whole), group, scatter_dim=dim, dtype=dtype)
                assert_same_bits(found, wanted.chunk(size, dim)[rank], f"scatter_dim={dim}")


def case_of(whole, dtype=None):
    """A case of `added`, with the model's bits."""
    stored = SUM.expected(whole, 0, dtype=dtype)
    return (
        whole,
        dtype,
        stored,
        str(torch_reduce.sum(whole[:, :0] if whole.dim() > 1 else whole, 0, dtype=dtype).dtype)[6:],
    )


@each_number_of_ranks
def test_dtypes(size, world):
    """The model's sum over dim 0 of all leaves, of every dtype."""
    cases = [case_of(data((LEAVES, 6, 5), name, seed=1)) for name in DTYPES]
    world.run(size, added, cases)


@each_number_of_ranks
def test_forms(size, world):
    """Leaves of any strides and shape, of no elements, and of fewer than there are ranks; results of other dtypes."""
    cases = [case_of(data((LEAVES, 4), "bfloat16"), dtype_of(name)) for name in ("float32", "float64", "float16")]
    cases += [case_of(data((LEAVES, 3), "float32"), torch.bfloat16), case_of(data((LEAVES, 5), "int32"), torch.float32)]
    cases += [
        case_of(data((LEAVES,), "float32")),
        case_of(data((LEAVES, 1), "float32")),
        case_of(data((LEAVES, 2, 3), "int8")),
    ]
    cases += [case_of(data((5, 6, LEAVES), "float32").permute(2, 1, 0)), case_of(data((LEAVES, 12), "float32")[:, ::2])]
    whole = torch.zeros(LEAVES, 12)
    whole[::3, 1], whole[5, 2], whole[4, 3] = -0.0, float("nan"), float("inf")
    whole[:, 4], whole[7, 5:7] = -0.0, torch.tensor([float("inf"), -float("inf")])
    whole[8, 6] = float("inf")
    world.run(size, added, [*cases, case_of(whole)])
    world.run(size, nothing)


def nothing(group):
    found = leaf_sum(own(torch.ones(LEAVES, 0, 3), group), LEAVES, group)
    assert found.shape == (0, 3)
    assert leaf_sum(own(torch.ones(LEAVES, 6, 0), group), LEAVES, group, scatter_dim=1).shape == (6, 0)


@pytest.mark.parametrize("leaves, sizes", [(6, (1, 2, 3, 6)), (30, (2, 3, 5, 6)), (7, (1, 7)), (8, (2, 4, 8))])
def test_numbers_of_leaves(leaves, sizes, world):
    """Also where a rank's leaves are not one node of the tree, and some are no node's first."""
    cases = [case_of(data((leaves, 40), name, seed=leaves)) for name in ("float32", "bfloat16")]
    for size in sizes:
        world.run(size, added, cases)


def test_more_leaves_than_lanes(world):
    """Then a lane adds several: the order of a sum of so many elements."""
    case = case_of(data((1200, 9), "float32"))
    for size in (2, 3, 5):
        world.run(size, added, [case])


def partial_sums(group, whole):
    """What ranks get that add their own leaves first."""
    total = torch_reduce.sum(own(whole, group), 0)
    torch_reduce.distributed.all_reduce(total, group)
    return total.cpu()


def test_it_is_needed(world):
    """Sums of ranks' own sums have other bits on another number of ranks."""
    whole = data((LEAVES, 200), "float32", seed=3)
    totals = [world.run(size, partial_sums, whole)[0] for size in (1, 2, 3, 4, 6)]
    assert len({tuple(total.tolist()) for total in totals}) > 2


def layer(group, x, weight):
    """A row-parallel linear layer: the columns of x and of the weight are cut into leaves. Its result and gradients."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    leaves = [
        (a.contiguous().to(here()), b.contiguous().to(here())) for a, b in zip(x.chunk(LEAVES, 1), weight, strict=True)
    ]
    mine = leaves[rank * LEAVES // size : (rank + 1) * LEAVES // size]
    for a, b in mine:
        a.requires_grad_(), b.requires_grad_()
    y = leaf_sum([a @ b for a, b in mine], LEAVES, group)
    grads = torch.autograd.grad(y.square().sum(), [one for pair in mine for one in pair])
    return y.detach().cpu(), [grad.cpu() for grad in grads]


def test_row_parallel(world):
    """A layer has the same bits on 1, 2, 3, 4 and 6 ranks, forward and backward."""
    if world.kind == "mixed":
        pytest.skip("torch's products differ on CPUs and GPUs")
    x, weight = data((7, 5 * LEAVES), "float32"), data((LEAVES, 5, 8), "float32", seed=1)
    (wanted,) = world.run(1, layer, x, weight)
    for size in (2, 3, 4, 6):
        found = world.run(size, layer, x, weight)
        assert all(torch.equal(y, wanted[0]) for y, _ in found)
        grads = [grad for _, of_rank in found for grad in of_rank]
        assert len(grads) == len(wanted[1]) and all(map(torch.equal, grads, wanted[1]))


def differentiated(group, whole, dim, dtype):
    """A rank's first and second derivatives of a function of the sum."""
    size = dist.get_world_size(group)
    x = own(whole, group).requires_grad_()
    y = leaf_sum(x * x, len(whole), group, scatter_dim=dim, dtype=dtype)
    factor = torch.linspace(1, 2, whole[0].numel(), dtype=torch.float64).view(whole[0].shape).to(y)
    factor = factor if dim is None else factor.chunk(size, dim)[dist.get_rank(group)]
    (first,) = torch.autograd.grad((y * y * factor).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    return first.detach().cpu(), second.cpu()


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("name, dtype", [("float64", None), ("float32", None), ("bfloat16", torch.float32)])
def test_derivatives(name, dtype, dim, world):
    """A first derivative has the bits of one process, whether ranks have all of the result or a piece of it. So has a
    second one, in which gradients are added in the same tree; autograd of one process adds them in another order."""
    whole = data((LEAVES, 12, 3), name, seed=2) * 2.0**-8
    x = whole.clone().requires_grad_()
    y = torch_reduce.sum(x * x, 0, dtype=dtype)
    factor = torch.linspace(1, 2, 36, dtype=torch.float64).view(12, 3).to(y)
    (first,) = torch.autograd.grad((y * y * factor).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    ((on_one, again),) = world.run(1, differentiated, whole, dim, dtype)
    assert_same_bits(on_one, first.detach())
    bound = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 0.1}[name]
    torch.testing.assert_close(again, second, rtol=bound, atol=bound * second.abs().max().item())
    for size in (2, 3, 4, 6):
        found = world.run(size, differentiated, whole, dim, dtype)
        for one, wanted in zip(zip(*found, strict=True), (first, again), strict=True):
            assert_same_bits(torch.cat(one), wanted.detach())


def add(group, shape, name):
    leaf_sum(own(torch.ones(shape, dtype=dtype_of(name)), group), shape[0], group, scatter_dim=0, check=False)


def test_what_is_sent(world):
    """A rank's own leaves are added first, where that is fewer bytes; and one exchange is all, where a dim is cut."""
    for leaves, size, name, bytes_each in (
        (8, 2, "float32", 4),  # four leaves are one node
        (8, 4, "bfloat16", 4),  # two leaves, or one node
        (8, 8, "bfloat16", 2),  # a leaf
        (12, 2, "float32", 8),  # six leaves are nodes of four and two, of two and four
        (6, 2, "float32", 8),  # three leaves are nodes of two and one
        (6, 2, "bfloat16", 6),
    ):
        n = 8 * size
        for sent in world.run(size, traffic, add, (leaves, n), name):
            assert sent["all_to_all"] == [(n - n // size) * bytes_each, size - 1], (leaves, size, name)
            assert sent["all_gather"] == [0, 0]


def compiled(group):
    parts = own(data((LEAVES, 6), "float32"), group)
    torch._dynamo.reset()
    function = torch.compile(lambda x: leaf_sum(x * 2, LEAVES, group) + 1, backend="eager")
    assert_same_bits(function(parts), leaf_sum(parts * 2, LEAVES, group) + 1)


def test_compiled(world):
    """torch.compile ends a graph before the call."""
    world.run(2, compiled)


def refused(group):
    x, rank = torch.ones(6, 4, device=here()), dist.get_rank(group)
    for error, message, call in (
        (TypeError, r"argument 'parts' must be Tensor, not float", lambda: leaf_sum(1.0, 12, group)),
        (TypeError, r"argument 'parts' must be Tensor, not int", lambda: leaf_sum([x, 1], 12, group)),
        (TypeError, r"argument 'parts' must be a Tensor or a sequence", lambda: leaf_sum([], 12, group)),
        (
            TypeError,
            r"argument 'parts' must be Tensor, not Shard",
            lambda: leaf_sum(torch_reduce.distributed.Shard(x), 12),
        ),
        (TypeError, r"argument 'leaves' must be int", lambda: leaf_sum(x, 12.0, group)),
        (TypeError, r"argument 'scatter_dim' must be int", lambda: leaf_sum(x, 12, group, scatter_dim="a")),
        (TypeError, r"argument 'dtype'", lambda: leaf_sum(x, 12, group, dtype=6)),
        (TypeError, r"argument 'check' must be bool", lambda: leaf_sum(x, 12, group, check=None)),
        (TypeError, r"'group' must be a ProcessGroup", lambda: leaf_sum(x, 12, "all")),
        (ValueError, r"leaves: expected a multiple of 2, .* but got 13", lambda: leaf_sum(x, 13, group)),
        (ValueError, r"leaves: expected a multiple of 2, .* but got 0", lambda: leaf_sum(x, 0, group)),
        (ValueError, r"parts: expected 4 of 8 leaves on each of 2 ranks, but got 6", lambda: leaf_sum(x, 8, group)),
        (ValueError, r"parts: expected at least one dim", lambda: leaf_sum(x[0, 0], 2, group)),
        (ValueError, r"parts: expected leaves of one shape", lambda: leaf_sum([x, x[0]], 4, group)),
        (ValueError, r"parts: expected leaves of one .*dtype", lambda: leaf_sum([x, x.half()], 4, group)),
        (IndexError, r"scatter_dim: expected a dim of a leaf", lambda: leaf_sum(x, 12, group, scatter_dim=1)),
        (
            ValueError,
            r"scatter_dim: expected as many .* but it has 3",
            lambda: leaf_sum(x[:, :3], 12, group, scatter_dim=0),
        ),
        (NotImplementedError, r"'parts' must be dense", lambda: leaf_sum(x.to_sparse(), 12, group)),
    ):
        with pytest.raises(error, match=rf"^leaf_sum\(\): {message}"):
            call()
    odd = rank == 1
    for message, call in (
        ("the ranks disagree about the shape of a leaf", lambda: leaf_sum(x[:, : 3 + rank], 12, group)),
        (
            "the ranks disagree about the function: leaf_sum of 12",
            lambda: leaf_sum(x[: 6 - rank], 12 - 2 * rank, group),
        ),
        ("the ranks disagree about the dtype", lambda: leaf_sum(x.half() if odd else x, 12, group)),
        ("the ranks disagree about the function", lambda: leaf_sum(x, 12, group, scatter_dim=0 if odd else None)),
    ):
        with pytest.raises(RuntimeError, match=rf"^leaf_sum\(\): {message}"):
            call()
    with pytest.raises(
        (RuntimeError, ValueError), match=r"leaf_sum\(\): (rank 1 failed: ValueError|parts: expected 6)"
    ):
        leaf_sum(x[: 6 - rank], 12, group)
    assert leaf_sum(x, 12, group).tolist() == [12.0] * 4


def of_a_dtensor(group):
    mesh, whole = mesh_of((4,)), data((LEAVES, 5), "float32")
    x = cut(whole, mesh, [Shard(0)])
    if not inside(mesh):
        return
    with pytest.raises(
        NotImplementedError, match=r"^leaf_sum\(\): parts: DTensors are not supported: torch_reduce.sum"
    ):
        leaf_sum(x, LEAVES)
    assert_same_bits(torch_reduce.sum(x, 0).to_local(), torch_reduce.sum(whole, 0).to(here()))


def test_a_dtensor(world):
    """It is refused, and what the error says gives the same bits."""
    only_where_torch_moves(world)
    world.run(world.size, of_a_dtensor)


def test_refused(world):
    """Errors name the function and the argument, on all ranks, and the ranks can go on."""
    world.run(2, refused)
