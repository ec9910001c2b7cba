"""One sum of the parts of all ranks, in one tree over these parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .._operations import node_dtype
from ._messages import exchange, gather, place
from ._rank_plan import Joins, cover, even, joins_of
from ._sharded import join

_ops = torch.ops.gpureduce
_, _LANES, _ = _ops._order()
_NEIGHBOURS = 16  # that are joined at once


@dataclass(frozen=True, eq=False)
class _Plan:
    """What each rank adds of its own leaves before anything is sent, and how the sums are joined.

    Up to as many leaves as the order has lanes, nearest neighbours are joined: then leaves 2k and 2k + 1 are a node of
    level 1, and so on. A rank sends the fewest nodes that its leaves make up; or the leaves, if they have fewer bytes.
    """

    nodes: list[list[tuple[int, int]]] | None  # (level, index) of each rank; None: the leaves themselves are sent
    joins: Joins

    @property
    def sends_leaves(self) -> bool:
        return self.nodes is None


@lru_cache(maxsize=256)
def _plan_of(leaves: int, world: int, item: int, accumulator: int) -> _Plan:
    """Of leaves whose elements have `item` bytes, and nodes whose have `accumulator`."""
    each = leaves // world
    if leaves > _LANES:
        return _Plan(None, [])
    nodes = [cover(rank * each, (rank + 1) * each, leaves) for rank in range(world)]
    if max(map(len, nodes)) * accumulator >= each * item:
        return _Plan(None, [])
    return _Plan(nodes, joins_of([node for own in nodes for node in own], leaves, _NEIGHBOURS))


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of a sum, read and checked."""

    leaves: int
    dim: int | None  # of the result, which is cut along it; None: every rank gets all
    dtype: torch.dtype  # of the result
    group: Any

    def sum(self, parts: Tensor) -> Tensor:
        """The result, of this rank's leaves side by side."""
        world, rank = place("leaf_sum", self.group)
        if world == 1 or parts.numel() == 0:
            found = _ops.sum(parts, [0], dtype=self.dtype)
            return found if self.dim is None else found.chunk(world, self.dim)[rank].contiguous()
        accumulator = node_dtype("sum", parts.dtype, self.dtype)
        plan = _plan_of(self.leaves, world, parts.dtype.itemsize, accumulator.itemsize)
        if plan.sends_leaves:
            mine, counts = list(parts), [len(parts)] * world
        else:
            first = rank * len(parts)
            spans = [(index << level, min((index + 1) << level, self.leaves)) for level, index in plan.nodes[rank]]
            mine = [_ops.sum(parts[a - first : b - first], [0], dtype=accumulator) for a, b in spans]
            counts = [len(nodes) for nodes in plan.nodes]
        sizes = self._sizes(parts.shape[1:], world)
        flat = torch.cat([piece for pieces in zip(*map(self._pieces, mine), strict=True) for piece in pieces])
        own = sizes[rank]
        sent, received = [len(mine) * size for size in sizes], [count * own for count in counts]
        _, table = exchange(flat, sent, received, self.group, later=False)
        table = table.view(sum(counts), own)
        if plan.sends_leaves:
            found = _ops.sum(table, [0], dtype=self.dtype)
        else:
            found = _ops._finish(join(table, plan.joins), "sum", self.leaves, self.dtype)
        if self.dim is None:
            return gather(found, sizes, self.group).view(parts.shape[1:])
        return found.view([n // world if d == self.dim else n for d, n in enumerate(parts.shape[1:])])

    def whole(self, piece: Tensor) -> Tensor:
        """What all ranks have of a tensor that is cut as the result is, on every rank."""
        if self.dim is None:
            return piece
        world, _ = place("leaf_sum", self.group)
        parts = gather(piece.contiguous().view(-1), [piece.numel()] * world, self.group).split(piece.numel())
        return torch.cat([part.view(piece.shape) for part in parts], self.dim)

    def _sizes(self, shape: Sequence[int], world: int) -> list[int]:
        """How many elements of the result each rank adds."""
        cuts = even(shape.numel(), world)
        return [b - a for a, b in pairwise(cuts)]

    def _pieces(self, node: Tensor) -> list[Tensor]:
        """The elements that each rank adds, flat."""
        world, _ = place("leaf_sum", self.group)
        if self.dim is not None:
            return [piece.reshape(-1) for piece in node.chunk(world, self.dim)]
        return list(node.reshape(-1).split(self._sizes(node.shape, world)))


class LeafSum(torch.autograd.Function):
    """The sum; its gradient is also the gradient of each part. Each is the other's derivative."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, call: Call) -> Tensor:
        ctx.call, ctx.count, ctx.dtype = call, len(parts), parts.dtype
        return call.sum(parts.detach().resolve_conj().resolve_neg())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(grad, ctx.call, ctx.count, ctx.dtype), None


class _Spread(torch.autograd.Function):
    """A tensor that is cut as the result is: all of it, for each of a rank's parts."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, call: Call, count: int, dtype: torch.dtype) -> Tensor:
        ctx.call, ctx.dtype = call, grad.dtype
        whole = call.whole(grad.detach().resolve_conj().resolve_neg())
        return whole.to(dtype).expand(count, *whole.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        call = Call(ctx.call.leaves, ctx.call.dim, ctx.dtype, ctx.call.group)
        return LeafSum.apply(grad, call), None, None, None
