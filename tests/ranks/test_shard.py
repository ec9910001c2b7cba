"""torch_reduce.distributed.Shard: the functions take it in place of a tensor; and the older names for that."""

import inspect
import itertools

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist

import torch_reduce
import torch_reduce.distributed as distributed
from support import FAMILY, OPERATIONS, assert_same_bits, data
from test_distributed import expect
from torch_reduce.distributed import Shard
from worlds import here

WORLDS = ["cpu", "mixed", "nccl"]
SEGMENTS = [f"segment_{name}" for name in ("sum", "mean", "prod", "amax", "amin", "logsumexp", "softmax")]
PLAIN = [*map(str, OPERATIONS), *map(str, FAMILY)]


def local_part(group, whole):
    return whole.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def forms(group):
    """All ways to name an argument, and the operators themselves, which are composed of others."""
    x = data([999, 4], "float32", 1, here()).abs() + 0.5
    shard = Shard(local_part(group, x), group=group)
    for name in PLAIN:
        function = getattr(torch_reduce, name)
        for given in ({}, {"dim": 0}, {"dim": (0, 1), "keepdim": True}, {"axis": [-2], "keepdims": True}):
            assert_same_bits(function(shard, **given), function(x, **given), f"{name} {given}")
        assert_same_bits(function(input=shard), function(x), name)
        assert_same_bits(getattr(torch.ops.gpureduce, name)(shard), function(x), name)
        assert_same_bits(getattr(torch.ops.gpureduce, name).default(shard, [0]), function(x, 0), name)
        local = function(shard, 1)
        assert_same_bits(local, local_part(group, function(x, 1)), name)
    assert_same_bits(torch_reduce.mean(shard, dtype=float), torch_reduce.mean(x, dtype=float))
    assert_same_bits(torch_reduce.vector_norm(shard, torch.tensor(3)), torch_reduce.vector_norm(x, 3))
    assert_same_bits(torch_reduce.std(shard, unbiased=False), torch_reduce.std(x, unbiased=False))
    for name in ("any", "all"):  # of no dims, element by element
        assert getattr(torch_reduce, name)(shard, dim=()).shape == shard.x.shape


def test_forms(world):
    world.run(3, forms)


def along_another_dim(group):
    """Segments along a dim that is not cut: of the shard alone, with gradients."""
    x, offsets = data([30, 400], "float32", 1, here()) / 512, torch.tensor([0, 7, 7, 30], device=here())
    mine = x.chunk(dist.get_world_size(group), 1)[dist.get_rank(group)].requires_grad_()
    for name in SEGMENTS:
        function = getattr(torch_reduce, name)
        got, wanted = function(Shard(mine, 1, group), offsets), function(mine, offsets)
        assert_same_bits(got.detach(), wanted.detach(), name)
        grad = data(wanted.shape, "float32", 2, here())
        for one, other in zip(*(torch.autograd.grad(each, mine, grad) for each in (got, wanted)), strict=True):
            assert one.ne(0).any(), name
            assert_same_bits(one, other, name)
    for name in ("segment_logsumexp", "segment_softmax"):
        with pytest.raises(TypeError, match=rf"^{name}\(\): 'data' is a Shard that is cut along dim 1, the one"):
            getattr(torch_reduce, name)(Shard(mine, 1, group), offsets, -1)
    with pytest.raises(RuntimeError, match="segment_sum.*'x' requires a gradient"):
        torch_reduce.segment_sum(Shard(mine, 1, group), offsets, 1)


def test_segments_along_another_dim(world):
    world.run(2, along_another_dim)


def refused(group):
    rank, x = dist.get_rank(group), torch.ones(4, 6, device=here())
    shard = Shard(x, 0, group)
    for kind, message, call in (
        (TypeError, r"sum\(\): 'out' cannot be given beside a Shard", lambda: torch_reduce.sum(shard, out=x[0])),
        (TypeError, "no implementation found|Multiple dispatch failed", lambda: torch.sum(shard)),
        (TypeError, r"^explain\(\): argument 'input' must be Tensor, not Shard", lambda: torch_reduce.explain(shard)),
        (TypeError, r"^sum\(\): there is no argument 'rows'", lambda: torch_reduce.sum(shard, rows=1)),
        (TypeError, r"segment_sum\(\): it is the tensor to", lambda: torch_reduce.segment_sum(x, Shard(x[0]))),
        (TypeError, r"amax\(\) got an unexpected keyword", lambda: torch_reduce.amax(shard, 1, dtype=torch.int8)),
        (ValueError, r"weighted_sum\(\): two Shards", lambda: torch_reduce.weighted_sum(shard, Shard(x, 1, group))),
        (ValueError, r"weighted_sum\(\): two Shards", lambda: torch_reduce.weighted_sum(shard, Shard(x, 0))),
        (TypeError, "'group' must be a ProcessGroup or None, not int", lambda: torch_reduce.sum(Shard(x, 0, 3))),
    ):
        with pytest.raises(kind, match=message):
            call()
    odd = Shard(x, 2 if rank == 1 else 0, group)  # one rank's error is told to the others
    wrong = (IndexError, r"^mean\(\): the Shard's 'dim' must be in \[-2, 2\)")
    told = (RuntimeError, r"rank 1 failed: IndexError: mean\(\): the Shard's 'dim'")
    expect(group, *(wrong if rank == 1 else told), lambda: torch_reduce.mean(odd))
    kind, message = (TypeError, "must be Tensor, not list") if rank == 1 else (RuntimeError, "rank 1 failed: TypeError")
    expect(group, kind, message, lambda: torch_reduce.mean(Shard([1.0] if rank == 1 else x, 0, group)))
    cut = "disagree about the dim of the Shard: 1 on rank 1; 0 on rank 0|disagree about the shape"
    square = torch.ones(4, 4, device=here())
    expect(group, RuntimeError, cut, lambda: torch_reduce.sum(Shard(square, min(rank, 1), group)))


def test_refused(world):
    """In words that name the function and the Shard; and no rank waits for one that has failed."""
    world.run(2, refused)


def compiled(group):
    x = data([700, 3], "bfloat16", dist.get_rank(group), here())

    def function(x):
        return torch_reduce.sum(Shard(x * 2, 0, group), 0) + 1

    torch._dynamo.reset()
    assert_same_bits(torch.compile(function, backend="eager")(x), function(x))


def test_compiled(world):
    """A call between two graphs."""
    world.run(2, compiled)


# --- older names ------------------------------------------------------------------------------------------------------


OLDER = ["all", "amax", "amin", "any", "count_nonzero", "dot", "logsumexp", "mean", "nansum", "powsum", "prod", "std"]
OLDER += ["segment_mean", "segment_sum", "sum", "var", "var_mean", "vector_norm", "weighted_sum"]


def older_names(group):
    x, y = data([999, 4], "float32", 1, here()).abs(), data([999], "float32", 2, here())
    offsets = torch.tensor([0, 5, 5, 999], device=here())
    more = {"weighted_sum": (local_part(group, y)[:, None],), "dot": (local_part(group, y),)}
    more |= dict.fromkeys(("segment_sum", "segment_mean"), (offsets,))
    sizes = [len(part) for part in x.chunk(dist.get_world_size(group))]
    for name, told in itertools.product(OLDER, (None, sizes)):
        mine = local_part(group, y if name == "dot" else x)
        place = {} if name in ("dot", "segment_sum", "segment_mean") else {"shard_dim": 0}
        got = getattr(distributed, name)(mine, *more.get(name, ()), group=group, sizes=told, **place)
        wanted = getattr(torch_reduce, name)(Shard(mine, 0, group, told), *more.get(name, ()))
        for one, bits in zip(*((each if name == "var_mean" else [each]) for each in (got, wanted)), strict=True):
            assert_same_bits(one, bits, name)
    with pytest.raises(TypeError, match="shard_dim"):
        distributed.sum(x, group=group)
    with pytest.raises(TypeError, match="rows"):
        distributed.sum(x, rows=0, shard_dim=0)


def test_older_names(world):
    """Each calls the function of torch_reduce of its name, and says so."""
    world.run(3, older_names)
    assert set(distributed.__all__) == {
        *OLDER,
        "FSDPReduceScatter",
        "Shard",
        "all_reduce",
        "all_reduce_rms_norm",
        "ddp_hook",
        "leaf_sum",
        "reduce_scatter",
    }
    for name in OLDER:
        function, ours = getattr(distributed, name), inspect.signature(getattr(torch_reduce, name)).parameters
        assert function.__name__ == name and function.__module__ == "torch_reduce.distributed"
        others = {"x", "group", "sizes", "shard_dim"}
        assert set(inspect.signature(function).parameters) - others <= set(ours), name
        assert "an older name" in function.__doc__


@pytest.mark.parametrize("name", ["explain", "tune"])
def test_questions_about_one_device(name):
    """explain and tune are about one GPU's call: they take a tensor, and say so of a Shard."""
    with pytest.raises(TypeError, match=rf"^{name}\(\): argument 'input' must be Tensor, not Shard"):
        getattr(torch_reduce, name)(Shard(torch.ones(3)))
