"""Reductions of a tensor whose shards lie on the ranks: the operations, their calls, and how shards are joined.

docs/distributed.md says how it works. The calls come from torch_reduce.distributed, and from _dtensor.py for DTensors.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from .. import _arguments
from .._graphs import between_graphs
from .._operations import (
    Operation,
    exact_name,
    exact_operators,
    is_inexact,
    known,
    node_dtype,
    of_orders,
    product_dtype,
    state_size,
)
from ._messages import agree, check_device, exchange, exchange_parts, gather, kind_of, numbers, place, traced
from ._rank_plan import CHUNK, Joins, Plan, Together, even, plan_of, product, together
from ._shard import Shard

_ops = torch.ops.gpureduce


# What changes no bit of what it is joined to.
PADDING = {"sum": complex(-0.0, -0.0), "prod": complex(1)}
_ARRAYS = 1024  # that one launch takes: results of more are put side by side one by one


@dataclass(frozen=True)
class Factors:
    """Two tensors of one shape, which stand for their products, of this dtype: these are written to memory only where
    they are sent, or where a chunk is made up of several ranks' parts."""

    x: Tensor
    weight: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.x.shape

    def dim(self) -> int:
        return self.x.dim()

    def made(self) -> Tensor:
        return self.x.to(self.dtype) * self.weight.to(self.dtype)

    def permute(self, axes: Sequence[int]) -> "Factors":
        return replace(self, x=self.x.permute(axes), weight=self.weight.permute(axes))

    def flatten(self, first: int) -> "Factors":
        return replace(self, x=self.x.flatten(first), weight=self.weight.flatten(first))

    def split_with_sizes(self, sizes: list[int], dim: int) -> "list[Factors]":
        pairs = zip(*(each.split_with_sizes(sizes, dim) for each in (self.x, self.weight)), strict=True)
        return [replace(self, x=x, weight=weight) for x, weight in pairs]

    def new_empty(self, shape: Any, dtype: torch.dtype | None = None) -> Tensor:
        return self.x.new_empty(shape, dtype=dtype or self.dtype)


def made(part: "Tensor | Factors") -> Tensor:
    """The elements that are reduced."""
    return part.made() if isinstance(part, Factors) else part


@dataclass(frozen=True)
class Call:
    """A call's arguments, read: dims are counted from 0 and sorted."""

    operation: Operation
    dims: list[int]
    keepdim: bool
    given: torch.dtype | None
    dtype: torch.dtype  # of the result
    shard_dim: int

    @classmethod
    def read(cls, operation: Operation, x: Shard, dim: Any, keepdim: Any, dtype: Any, **more: Any):
        """This rank's tensor and the call, checked as far as one rank can."""
        given = dict(input=x.x, dim=dim, keepdim=keepdim, dtype=dtype, out=None)
        title = operation.title
        local, dim, keepdim, dtype, _ = _arguments.read(title, given, {}).values()
        one = torch.empty([1] * local.dim(), dtype=local.dtype, device="meta")
        probe = cls(operation, dim, keepdim, dtype, local.dtype, 0, **more).probe(one)
        shard_dim = dim_of(title, x)
        dims = [dim] if isinstance(dim, int) else list(dim or range(local.dim()))
        call = cls(operation, sorted(d % local.dim() for d in dims), keepdim, dtype, probe.dtype, shard_dim, **more)
        call.refuse_gradients("x", local)
        return local, call

    def probe(self, one: Tensor) -> Tensor:
        """A result, for its dtype, of a tensor without data; torch's errors."""
        return getattr(_ops, self.operation.name)(one, self.dims, self.keepdim, dtype=self.given)

    def refuse_gradients(self, argument: str, x: Tensor) -> None:
        """Raises an error if a gradient would have to flow through ranks."""
        if self.shard_dim in self.dims and x.requires_grad and torch.is_grad_enabled() and is_inexact(self.dtype):
            raise RuntimeError(
                f"{self.title}(): '{argument}' requires a gradient, but none flows through ranks: "
                f"give {argument}.detach()"
            )

    def __call__(self, x: Tensor) -> Any:
        """The reduction of one tensor."""
        return getattr(_ops, self.operation.name)(x, self.dims if x.dim() else None, self.keepdim, dtype=self.given)

    @property
    def title(self) -> str:
        """For errors."""
        return self.operation.title

    def width(self, source: torch.dtype) -> int:
        """How many numbers the node of an output is, whose elements are of dtype `source`."""
        return 1

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        """What all ranks must agree on, as JSON can hold it; and the order, on which small shards have no say."""
        return {
            "function": self.title,
            "shape": ["*" if d == self.shard_dim else n for d, n in enumerate(x.shape)],
            "dtype": str(x.dtype),
            "device": kind_of(x.device, group),
            "dim": self.dims,
            "keepdim": self.keepdim,
            "dtype of the result": str(self.dtype),
            "dim of the Shard": self.shard_dim,
            "order": order,
        }

    def accumulator(self, source: torch.dtype) -> torch.dtype:
        """The dtype of the nodes of elements of dtype `source`."""
        return node_dtype(self.operation.name, source, self.dtype)

    def is_free(self, source: torch.dtype) -> bool:
        """Whether no order of elements of dtype `source` shows: integers are exact, and extrema are an element."""
        return self.operation.is_free or not is_inexact(self.accumulator(source))

    def plain(self, x: Tensor) -> "tuple[Tensor, Call]":
        """A tensor and a call that give the same where ranks have to do with each other."""
        return x.detach(), self

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> Any:
        """The result of a global tensor that is not empty."""
        return join_shards(x, self, sizes, order, group)

    def node(self, part: Tensor, dims: list[int], accumulator: torch.dtype) -> Tensor:
        """The nodes of a part of the elements, flat: for each output its numbers, which are `accumulator`."""
        if isinstance(part, Factors):
            return _ops.weighted_sum(part.x, part.weight, dims, dtype=accumulator).reshape(-1)
        return getattr(_ops, self.operation.node)(part, dims, dtype=self._asked(part, accumulator)).reshape(-1)

    def of_outputs(self, first: int, last: int) -> "Call":
        """The call for some of the outputs alone."""
        return self

    def nodes_of(self, parts: Sequence[Tensor], kept: int, accumulator: torch.dtype) -> list[Tensor]:
        """The nodes of each of several parts over all dims but the first ones."""
        return [self.node(part, [*range(kept, part.dim())], accumulator) for part in parts]

    def nodes_of_many(self, parts: Sequence[Tensor], kept: int, outputs: int, like: Tensor) -> Tensor:
        """The same of any number of parts of the dtype of `like`, side by side: of powers many in one launch."""
        accumulator = self.accumulator(like.dtype)
        if not parts:
            return like.new_empty(0, dtype=accumulator)
        node = known()[self.operation.node]
        if outputs == 1 and self.operation.is_norm and not node.is_free:
            order = float(node.order)
            dtype, starts = self._asked(like, accumulator), range(0, len(parts), _ARRAYS)
            totals = [_ops._powsums(parts[k : k + _ARRAYS], order, dtype=dtype) for k in starts]
            return totals[0] if len(totals) == 1 else torch.cat(totals)
        return torch.cat(self.nodes_of(parts, kept, accumulator))

    def _asked(self, part: Tensor, accumulator: torch.dtype) -> torch.dtype | None:
        """The dtype= by which a node is `accumulator`: complex, of a norm of complex numbers, as torch has it."""
        return accumulator.to_complex() if self.operation.is_norm and part.is_complex() else accumulator

    def join(self, nodes: Tensor) -> Tensor:
        """(n, numbers) -> (numbers,): joins nodes whose order does not matter."""
        return getattr(_ops, self.operation.join)(nodes, [0], dtype=nodes.dtype)

    def finish(self, total: Tensor, count: int) -> Tensor:
        """The results, of last nodes of so many elements each."""
        return _ops._finish(total, self.operation.name, count, self.dtype)

    def result(self, total: Tensor, count: int, shape: Sequence[int]) -> Tensor:
        """The same in the form that the result of a tensor of that shape has."""
        return self.finish(total, count).view(self.kept(shape))

    def kept(self, shape: Sequence[int]) -> list[int]:
        """The shape of the result of a tensor of that shape."""
        return [1 if d in self.dims else n for d, n in enumerate(shape) if self.keepdim or d not in self.dims]


class ExactCall(Call):
    """A call with exact=True, whose result is floating or complex. A node is the state of an exact sum, flat: of
    integers, so that no order shows. A complex result has two, one per component."""

    @classmethod
    def read(cls, *arguments: Any, **more: Any):
        x, call = super().read(*arguments, **more)
        return x, call if is_inexact(call.dtype) else Call(**vars(call))  # integers are exact in any case

    def __call__(self, x: Tensor) -> Tensor:
        operator = getattr(_ops, exact_name(self.operation.name))
        return operator(x, self.dims if x.dim() else None, self.keepdim, dtype=self.given)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"function": f"{self.title} with exact=True"}

    def accumulator(self, source: torch.dtype) -> torch.dtype:
        return torch.int64

    @property
    def _squares(self) -> bool:
        return self.operation.map == "square"

    def width(self, source: torch.dtype) -> int:
        return (2 if self.dtype.is_complex else 1) * state_size(source, source if self._squares else None)

    def node(self, part: "Tensor | Factors", dims: list[int], accumulator: torch.dtype) -> Tensor:
        if isinstance(part, Factors):
            return _ops._exact_partial(part.x, dims, weight=part.weight).reshape(-1)
        nan_is_zero, both = self.operation.map == "number", self.dtype.is_complex
        if part.is_complex():
            parts = torch.view_as_real(part.resolve_conj().resolve_neg())
            if self._squares:  # of both parts
                return self.node(parts, [*dims, part.dim()], accumulator)
            states = _ops._exact_partial(parts if both else parts[..., 0], dims, nan_is_zero=nan_is_zero)
        elif self._squares:
            states = _ops._exact_partial(part, dims, weight=part)
        else:
            states = _ops._exact_partial(part, dims, nan_is_zero=nan_is_zero)
            states = torch.stack([states, torch.zeros_like(states)], -2) if both else states  # a state of 0
        return states.reshape(-1)

    def result(self, total: Tensor, count: int, shape: Sequence[int]) -> Tensor:
        divisor, root = count if self.operation.finish == "quotient" else 1, self.operation.finish == "square_root"
        parts = [2] if self.dtype.is_complex else []
        found = _ops._exact_round(total.view(*self.kept(shape), *parts, -1), self.dtype.to_real(), divisor, root)
        return torch.view_as_complex(found) if parts else found


@dataclass(frozen=True)
class ExactProducts(ExactCall):
    """The exact sum of products. Its tensors are Factors: no product is written to memory."""

    size: int = 0  # of a state

    def width(self, source: torch.dtype) -> int:
        return self.size


@dataclass(frozen=True)
class ExponentCall(Call):
    """The sum of e^(x - m), where every rank knows m of each output."""

    largest: Tensor | None = None  # of size 1 in the reduced dims

    def accumulator(self, source: torch.dtype) -> torch.dtype:
        return self.dtype

    def __call__(self, x: Tensor) -> Tensor:
        return _ops._exponent_sum(x, self.largest, self.dims, self.keepdim)

    def node(self, part: Tensor, dims: list[int], accumulator: torch.dtype) -> Tensor:
        largest = self.largest.reshape([1 if d in dims else n for d, n in enumerate(part.shape)])
        return _ops._exponent_sum(part, largest, dims).reshape(-1)

    def of_outputs(self, first: int, last: int) -> Call:
        return replace(self, largest=self.largest.reshape(-1)[first:last])


class LogsumexpCall(Call):
    """A call whose result is the logarithm of the sum of exponentials."""

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> Tensor:
        accumulator = self.accumulator(x.dtype)
        amax = Call(known()["_amax"], self.dims, True, None, x.dtype, self.shard_dim)
        largest = join_cut(x, amax, sizes, order, group).to(accumulator)
        sums = ExponentCall(known()["sum"], self.dims, True, accumulator, accumulator, self.shard_dim, largest)
        found = _ops._finish_logsumexp(join_shards(x, sums, sizes, order, group), largest, self.dtype)
        return found if self.keepdim else found.squeeze(self.dims)


class MomentsCall(Call):
    """The sums of the differences from the first elements, and of their squares: a node is both."""

    def width(self, source: torch.dtype) -> int:
        return 2

    def accumulator(self, source: torch.dtype) -> torch.dtype:
        return torch.float64

    def node(self, part: Tensor, dims: list[int], accumulator: torch.dtype) -> Tensor:
        sums = (operator(part, dims).reshape(-1) for operator in (_ops.sum, _ops._powsum_2))
        return torch.stack(tuple(sums), 1).view(-1)

    def result(self, total: Tensor, count: int, shape: Sequence[int]) -> Tensor:
        """The two sums, in a last dim."""
        return total.view(*self.kept(shape), 2)


@dataclass(frozen=True)
class VarianceCall(Call):
    """A call whose results are the variance, or its root, and the mean."""

    correction: float | None = None

    def probe(self, one: Tensor) -> Tensor:
        return _ops.var_mean(one, self.dims, correction=self.correction, keepdim=self.keepdim)[0]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dims = self.dims if x.dim() else None
        return _ops._var_mean(x, dims, self._correction, self.is_root, self.keepdim, dtype=self.given)

    @property
    def is_root(self) -> bool:
        """Whether a deviation is wanted."""
        return self.title == "std"

    @property
    def _correction(self) -> float:
        return 1.0 if self.correction is None else float(self.correction)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"correction": self._correction}

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> tuple[Tensor, Tensor]:
        """As docs/order.md has it: sums of the differences from the first elements, and sums of their squares."""
        x = x.to(torch.float64)
        shape = [1 if d in self.dims else n for d, n in enumerate(x.shape)]
        first = x[tuple(slice(size) for size in shape)].reshape(-1).resolve_neg()
        _, rank = place(self.title, group)
        holder = next(of for of, size in enumerate(sizes) if size)
        counts = [product(shape) if of == holder else 0 for of in range(len(sizes))]
        first = gather(first[: counts[rank]], counts, group).view(shape)

        differences = laid_out(x - first, self.dims, order)
        moments = MomentsCall(self.operation, self.dims, self.keepdim, None, torch.float64, self.shard_dim)
        sums = join_shards(differences, moments, sizes, order, group)
        count = product(sum(sizes) if d == self.shard_dim else x.shape[d] for d in self.dims)
        first = first.view(sums.shape[:-1])
        return _ops._finish_moments(sums, first, count, self._correction, self.is_root, self.dtype)


@dataclass(frozen=True)
class WeightedCall(Call):
    """A call on a tensor that is expanded to the common shape, as the weight is."""

    weight: Tensor | None = None

    @classmethod
    def read(cls, operation: Operation, x: Any, dim: Any, keepdim: Any, dtype: Any, weight: Any):
        title, shards = operation.title, [one for one in (x, weight) if isinstance(one, Shard)]
        x, weight = (one.x if isinstance(one, Shard) else one for one in (x, weight))
        expect_tensors(title, **{"x": x, "other" if title == "dot" else "weight": weight})
        if title == "dot" and ((x.shape, x.dtype) != (weight.shape, weight.dtype) or x.dim() != 1):
            _ops.dot(x, weight, dtype=dtype)  # raises torch's error
        cuts = [dim_of(title, one) - one.x.dim() for one in shards]  # counted from the end, as dims are broadcast
        first, last = shards[0], shards[-1]
        if cuts[0] != cuts[-1] or first.group is not last.group or first.sizes != last.sizes:
            raise ValueError(f"{title}(): two Shards must be of one group, and cut alike, of the same sizes")
        x, weight = torch.broadcast_tensors(x, weight)
        local, call = super().read(operation, Shard(x, cuts[0]), dim, keepdim, dtype, weight=weight)
        call.refuse_gradients("weight", weight)
        return local, call

    def probe(self, one: Tensor) -> Tensor:
        other = torch.empty_like(one, dtype=self.weight.dtype)
        return _ops.weighted_sum(one, other, self.dims, self.keepdim, dtype=self.given)

    def __call__(self, x: Tensor) -> Tensor:
        return _ops.weighted_sum(x, self.weight, self.dims if x.dim() else None, self.keepdim, dtype=self.given)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"dtype of the weight": str(self.weight.dtype)}

    def is_free(self, source: torch.dtype) -> bool:
        return self._summing.is_free(product_dtype(source, self.weight.dtype, self.dtype))

    def plain(self, x: Tensor) -> tuple[Factors, Call]:
        """The sum of the products."""
        dtype = product_dtype(x.dtype, self.weight.dtype, self.dtype)
        return Factors(x.detach(), self.weight.detach(), dtype), self._summing

    @property
    def _summing(self) -> Call:
        return Call(self.operation, self.dims, self.keepdim, self.dtype, self.dtype, self.shard_dim)


class ExactWeightedCall(WeightedCall):
    """The same with exact=True, and with a floating result."""

    @classmethod
    def read(cls, *arguments: Any, **more: Any):
        x, call = super().read(*arguments, **more)
        return x, call if is_inexact(call.dtype) else WeightedCall(**vars(call))

    def __call__(self, x: Tensor) -> Tensor:
        return _ops.exact_weighted_sum(x, self.weight, self.dims if x.dim() else None, self.keepdim, dtype=self.given)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"function": f"{self.title} with exact=True"}

    def plain(self, x: Tensor) -> tuple[Factors, Call]:
        factors, call = super().plain(x)
        return factors, replace(call, size=state_size(x.dtype, self.weight.dtype))

    @property
    def _summing(self) -> Call:
        return ExactProducts(**vars(super()._summing))


@dataclass(frozen=True)
class SegmentCall(Call):
    """A call that reduces segments of a dim; where it is cut, `offsets` are of the global tensor."""

    offsets: Tensor | None = None

    @classmethod
    def read(cls, operation: Operation, x: Shard, dim: Any, keepdim: Any, dtype: Any, offsets: Any):
        title, local, dim = operation.title, x.x, 0 if dim is None else dim
        expect_tensors(title, x=local, offsets=offsets)
        metas = (torch.empty_like(one, device="meta") for one in (local, offsets))
        probe = cls.operator(title)(*metas, dim, dtype=dtype)
        call = cls(operation, [dim % local.dim()], True, dtype, probe.dtype, dim_of(title, x), offsets)
        call.refuse_gradients("x", local)
        return local, call

    @classmethod
    def operator(cls, title: str) -> Any:
        """The operator of a function over segments that has dtype=."""
        return getattr(_ops, f"_{title}" if _SEGMENTS[title].startswith("_") else title)

    def __call__(self, x: Tensor) -> Tensor:
        return self._of(x, self.offsets)

    def _of(self, x: Tensor, offsets: Tensor) -> Tensor:
        return self.operator(self.title)(x, offsets, self.dims[0], dtype=self.given)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        told = hashlib.sha256(self.offsets.to("cpu", torch.int64).numpy().tobytes()).hexdigest()[:16]
        return super().facts(x, order, group) | {"offsets": f"{self.offsets.numel()} of the digest {told}"}

    def is_free(self, source: torch.dtype) -> bool:
        return False

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> Tensor:
        """Each rank reduces the segments that it holds; those that a cut crosses are reduced as sharded tensors are."""
        dim, (_, rank) = self.shard_dim, place(self.title, group)
        starts = list(accumulate(sizes, initial=0))
        owned, crossing = self._found(starts)
        segments = self.offsets.numel() - 1
        local = self._of(x, self.offsets.to(torch.int64).clamp(starts[rank], starts[rank + 1]) - starts[rank])
        if segments == 0:
            return local
        counts = [last - first for first, last in owned]
        size = local.numel() // segments
        mine = local.movedim(dim, 0)[slice(*owned[rank])].reshape(-1)
        gathered = gather(mine, [count * size for count in counts], group) if max(counts) else mine

        kept = [n for d, n in enumerate(x.shape) if d != dim]
        pieces = list(gathered.view(-1, *kept).split(counts))
        parts, sizes_of = [], []
        for first, last in crossing.values():
            cuts = [min(max(start, first), last) for start in starts]
            length = cuts[rank + 1] - cuts[rank]
            parts.append(x.narrow(dim, cuts[rank] - starts[rank] if length else 0, length))
            sizes_of.append([b - a for a, b in pairwise(cuts)])
        joined = self._joined(parts, sizes_of, group) if parts else []
        for at, one in zip(crossing, joined, strict=True):
            pieces[at] = torch.cat([pieces[at], one[None]])
        return torch.cat(pieces).movedim(0, dim).contiguous()

    def _joined(self, parts: Sequence[Tensor], sizes: Sequence[Sequence[int]], group: Any) -> list[Tensor]:
        """The result of each segment that a cut crosses. The ranks have parts of these sizes."""
        dim = self.shard_dim
        call = Call(self.operation, [dim], False, self.given, self.dtype, dim)
        pairs = zip(parts, sizes, strict=True)
        shards = [Shards.of(part, call, each, [dim], group, by_outputs=False) for part, each in pairs]
        joined = join_many(shards, parts, call, group)
        return [one.result(call, total) for one, total in zip(shards, joined, strict=True)]

    def _found(self, starts: list[int]) -> tuple[list[tuple[int, int]], dict[int, tuple[int, int]]]:
        """The segments that each rank holds, from the first to before the last. And the elements of each segment that a
        cut crosses, alike, by the rank after whose own segments it comes. The host waits for these numbers."""
        if traced(self.offsets):
            raise NotImplementedError(
                f"{self.title}(): where a dim is cut, the host reads the offsets, which a compiled graph cannot do: "
                "call it outside of torch.compile, as by torch.compiler.disable"
            )
        offsets = self.offsets.to(torch.int64)
        segments = offsets.numel() - 1
        cuts = numbers(starts[1:-1], offsets)
        before = torch.searchsorted(offsets[1:], cuts, right=True)  # segments that end before the cut, or at it
        begun = torch.searchsorted(offsets[:-1], cuts)
        first, last = (offsets[(before + end).clamp(max=segments)] for end in (0, 1))
        right = (offsets.diff() >= 0).all() & (offsets[0] >= 0) & (offsets[-1] <= starts[-1])
        *told, right = torch.cat([before, begun, first, last, right.view(1)]).tolist()
        if not right:
            raise RuntimeError(f"{self.title}(): 'offsets' must ascend, from 0 to at most {starts[-1]}")
        before, begun, first, last = (told[len(cuts) * k : len(cuts) * (k + 1)] for k in range(4))
        begins = [0, *map(max, before, begun)]
        owned = [(begin, max(begin, end)) for begin, end in zip(begins, [*before, segments], strict=True)]
        crossing, seen = {}, -1
        for at, segment in enumerate(before):
            if begun[at] > segment > seen:
                crossing[at], seen = (first[at], last[at]), segment
        return owned, crossing


class ExactSegmentCall(SegmentCall):
    """The same with exact=True."""

    @classmethod
    def operator(cls, title: str) -> Any:
        return getattr(_ops, exact_name(title))

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"function": f"{self.title} with exact=True"}

    def _joined(self, parts: Sequence[Tensor], sizes: Sequence[Sequence[int]], group: Any) -> list[Tensor]:
        """The ranks' states are added, all segments' together. A rank that has nothing of a segment has zeros."""
        if not is_inexact(self.dtype):  # integers are exact in any case
            return super()._joined(parts, sizes, group)
        call = ExactCall(self.operation, [self.shard_dim], False, self.given, self.dtype, self.shard_dim)
        states = torch.stack([call.node(part, call.dims, torch.int64) for part in parts])
        world, _ = place(self.title, group)
        total = join_freely(states.view(-1), states.numel(), [True] * world, call, group)
        lengths, shape = map(sum, sizes), parts[0].shape
        return [call.result(own, n, shape) for own, n in zip(total.view_as(states), lengths, strict=True)]


# The operation that each segment goes through.
_SEGMENTS = {"sum": "sum", "mean": "mean", "prod": "prod", "amax": "_amax", "amin": "_amin"}
_SEGMENTS = {f"segment_{name}": operation for name, operation in _SEGMENTS.items()}

_KINDS: dict[str, type[Call]] = {
    **dict.fromkeys(("var_mean", "var", "std"), VarianceCall),
    **dict.fromkeys(("weighted_sum", "dot"), WeightedCall),
    **dict.fromkeys(_SEGMENTS, SegmentCall),
}
_EXACT_KINDS: dict[str, type[Call]] = {
    **dict.fromkeys(("weighted_sum", "dot"), ExactWeightedCall),
    "segment_sum": ExactSegmentCall,
}


_EXTREMA = ("argmax", "argmin", "max", "min")  # over any dims, or one
# Functions whose result is of a Shard alone, where they do not work along the dim that is cut: which arguments may be
# Shards, and the one whose gradient would be a sum over ranks if it is no Shard.
_ALONE: dict[str, tuple[tuple[str, ...], str | None]] = {
    "index_sum": (("source", "weight"), "weight"),
    **dict.fromkeys(("index_mean", "index_amax", "index_amin"), (("source",), None)),
    "gather_sum": (("x", "weight"), "weight"),
    **dict.fromkeys(("gather_mean", "gather_amax", "gather_amin"), (("x",), None)),
    "_gather_sum": (("data", "weight"), "weight"),
    **dict.fromkeys(("_gather_mean", "_gather_amax", "_gather_amin"), (("data",), None)),
    **dict.fromkeys(("index_add", "index_add_", "index_reduce", "index_reduce_"), (("input", "source"), None)),
    **dict.fromkeys(("scatter_add", "scatter_reduce"), (("input", "src"), None)),
    "embedding": (("weight",), None),
    "embedding_bag": (("weight",), "per_sample_weights"),
    **dict.fromkeys(("segment_logsumexp", "segment_softmax"), (("data",), None)),
    **dict.fromkeys(_EXTREMA, (("self",), None)),
}


_KEEP_SHAPE = {"softmax", "log_softmax", "log_prob", "cross_entropy", "rms_norm", "layer_norm"}


@cache
def kind_of_call(function: str, exact: bool = False) -> tuple[type[Call], Operation]:
    """The kind of call of a function that is no operator of the table, and the operation that its nodes are of."""
    like = known()[_SEGMENTS.get(function, "sum")]
    return (_EXACT_KINDS if exact else _KINDS)[function], like._replace(function=function)


def kind_of_operation(operation: Operation, exact: bool = False) -> type[Call]:
    """The kind of call of an operation of the table, or with exact=True."""
    return ExactCall if exact else LogsumexpCall if operation.function == "logsumexp" else Call


@cache
def _operators() -> dict[str, Operation]:
    """The operations by function. Those of norms are by order, too, and so they are not here."""
    return {one.function: one for one in known().values() if not one.part and one.order is None}


def _of_order(function: str, ord: Any, exact: bool) -> Operation:
    """A norm or a sum of powers."""
    try:
        order = float(_arguments.number("ord", ord))
    except TypeError:
        raise TypeError(f"{function}(): 'ord' must be a number, not {type(ord).__name__}") from None
    orders = of_orders("powsum" if function == "powsum" else "norm")
    if order not in orders:
        names = ", ".join(f"{one:g}" for one in orders)
        raise NotImplementedError(f"{function}(): 'ord' must be one of {names}, but it is {ord}")
    if exact and exact_name(orders[order]) not in exact_operators():
        raise NotImplementedError(f"{function}(): 'ord' must be 2 with exact=True, but it is {ord}")
    return known()[orders[order]]


@cache
def _schema_of(operator: Any) -> tuple[str | None, bool, list[str]]:
    """The function of torch_reduce that an operator is, if it takes Shards, or None; whether it adds exactly; and its
    arguments' names."""
    schema = getattr(getattr(operator, "default", operator), "_schema", None)
    space, _, name = schema.name.partition("::") if schema else ("", "", "")
    exact = name.startswith("exact_")
    function = name.removeprefix("exact_").removeprefix("linalg_")
    taken = {"vector_norm", "powsum", *_operators(), *_KINDS, *_KEEP_SHAPE, *_ALONE, "aminmax"}
    if space != "gpureduce" or function not in taken:
        return None, exact, []
    return function, exact, [argument.name for argument in schema.arguments]


@_arguments.enter
@between_graphs
def call_operator(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator of torch.ops.gpureduce gives if one of its arguments is a Shard: NotImplemented of others."""
    function, exact, names = _schema_of(operator)
    if function is None:
        return NotImplemented
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.pop("out", None) is not None:
        raise TypeError(f"{function}(): 'out' cannot be given beside a Shard")
    if function in _KEEP_SHAPE:
        x = given.pop(names[0])
        if not isinstance(x, Shard):
            raise TypeError(f"{function}(): it is the {names[0]} that may be a Shard, and no other")
        return _arguments.over_ranks("keep_shape")(function, x, **given)
    if function in _ALONE:
        return _alone(operator, function, given)
    if function == "aminmax":
        x, *others = given.pop("self"), given.get("dim"), given.get("keepdim", False)
        return tuple(getattr(torch.ops.gpureduce, one)(x, *others) for one in ("amin", "amax"))
    x, ord, dim = given.pop(names[0]), given.pop("ord", 2), given.pop("dim", None)
    if function in _KINDS:
        kind, operation = kind_of_call(function, exact)
    else:
        operation = _operators().get(function) or _of_order(function, ord, exact)
        kind = kind_of_operation(operation, exact)
    if not issubclass(kind, WeightedCall) and not isinstance(x, Shard):
        raise TypeError(f"{function}(): it is the tensor to reduce that may be a Shard, and no other")
    if operation.typing == "truth" and isinstance(dim, (tuple, list)) and not dim:  # no dim is reduced
        return operator(x.x, dim)
    if "other" in given:
        given["weight"] = given.pop("other")
    found = reduce_shards(kind, operation, x, dim, given.pop("keepdim", False), given.pop("dtype", None), **given)
    return found[0] if function in ("var", "std") else found


def _alone(operator: Any, title: str, given: dict[str, Any]) -> Any:
    """What an operator gives of Shards whose cut dim it does not work along: nothing is sent, and gradients flow."""
    may, summed = _ALONE[title]
    named = " or ".join(f"'{name}'" for name in may)
    shards = {name: one for name, one in given.items() if isinstance(one, Shard)}
    cuts = set()
    for name, one in shards.items():
        if name not in may:
            raise TypeError(f"{title}(): it is {named} that may be a Shard, and no other")
        if not isinstance(one.x, Tensor):
            raise TypeError(f"{title}(): argument '{name}' must be Tensor, not {type(one.x).__name__}")
        cut = dim_of(title, one)
        cuts.add((cut - one.x.dim(), one.group))
        if cut in _worked_along(title, given, one.x.dim()):
            raise TypeError(
                f"{title}(): '{name}' is a Shard that is cut along dim {cut}, the one that the function works along, "
                "where it does not reach over ranks: give the whole tensor, a DTensor, or a Shard of another dim"
            )
        given[name] = one.x
    if len(cuts) > 1:
        raise ValueError(f"{title}(): two Shards must be of one group, and cut alike")
    if summed in shards:
        _expect_cut_as(title, may[0], shards.get(may[0]), summed, shards[summed])
    elif summed and torch.is_grad_enabled() and getattr(given.get(summed), "requires_grad", False):
        cut = f", or a Shard if a dim of '{summed}' is cut" if summed in may else ""
        raise RuntimeError(
            f"{title}(): '{summed}' requires a gradient, but none flows through ranks: give {summed}.detach(){cut}"
        )
    return operator(**given)


def _expect_cut_as(title: str, first: str, shard: Shard | None, second: str, other: Shard) -> None:
    """Raises an error unless the second has a number for each place of the first along the dim that is cut. Its
    gradient is then a sum of this rank's numbers alone."""
    if shard is None:
        raise TypeError(f"{title}(): '{first}' must be a Shard, as '{second}' is one")
    sizes = [one.x.size(one.dim) for one in (shard, other)]
    if sizes[0] != sizes[1]:
        raise RuntimeError(
            f"{title}(): '{first}' has {sizes[0]} along the dim that is cut, but the Shard '{second}' has {sizes[1]}"
        )


def _worked_along(title: str, given: dict[str, Any], rank: int) -> list[int]:
    """The dims that a function of _ALONE works along."""
    if title not in _EXTREMA:
        return [given.get("dim", 0) % rank]
    dim = given.get("dim")
    if isinstance(dim, int):
        dim = [dim]
    return [one % rank for one in dim or range(rank)]


def dim_of(title: str, shard: Shard) -> int:
    """The dim that is cut, counted from 0."""
    dim, rank = shard.dim, shard.x.dim()
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise TypeError(f"{title}(): the Shard's 'dim' must be an int, not {type(dim).__name__}")
    if not -rank <= dim < rank:
        raise IndexError(f"{title}(): the Shard's 'dim' must be in [{-rank}, {rank}), but it is {dim}")
    return dim % rank


def expect_tensors(title: str, **given: Any) -> None:
    """Raises an error unless all are tensors on one device."""
    for argument, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{title}(): '{argument}' must be a Tensor, not {type(tensor).__name__}")
    (_, first), (argument, second) = given.items()
    if first.device != second.device:
        raise RuntimeError(f"{title}(): '{argument}' must be on {first.device} as 'x', but is on {second.device}")


def products(x: Tensor, weight: Tensor, result: torch.dtype) -> Tensor:
    """The products: their sum is the weighted sum with a result of that dtype."""
    return Factors(x, weight, product_dtype(x.dtype, weight.dtype, result)).made()


def reduce_shards(
    kind: type[Call], operation: Operation, x: Any, dim: Any, keepdim: Any, dtype: Any, **more: Any
) -> Any:
    """The result of a call on a Shard. One of the arguments in `more` may be one instead of `x`, or too."""
    title, cut = operation.title, next(one for one in (x, *more.values()) if isinstance(one, Shard))
    group, sizes = cut.group, cut.sizes
    world, rank = place(title, group)
    call = error = None
    try:
        x, call = kind.read(operation, x, dim, keepdim, dtype, **more)
        if sizes is not None:
            check_sizes(title, sizes, world, rank, x.shape[call.shard_dim])
        if call.shard_dim in call.dims and world > 1:
            check_device(title, "x", x.device, group)
    except Exception as raised:
        if sizes is not None or world == 1:
            raise
        error = raised
    if error is None and (world == 1 or call.shard_dim not in call.dims):
        return call(x)
    free = error is None and call.is_free(x.dtype)
    order = None if error else [] if free else order_of(x, call)
    if sizes is None:
        facts = None if error else call.facts(x, order, group)
        size = 0 if error else x.shape[call.shard_dim]
        device = cut.x.device if isinstance(cut.x, Tensor) else torch.get_default_device()
        sizes, order = agree(title, facts, error, size, group, device)
    return join_cut(x, call, tuple(map(int, sizes)), order, group)


def join_cut(
    x: Tensor, call: Call, sizes: tuple[int, ...], order: Sequence[int], group: Any, nodes: Tensor | None = None
) -> Any:
    """The result of a call on a global tensor; `x` is this rank's part, and a dim that it reduces is cut.

    The order is of the reduced dims, where one shows; `nodes` are this rank's, where they are known.
    """
    free = call.is_free(x.dtype)
    shape = list(x.shape)
    shape[call.shard_dim] = sum(sizes)
    x, call = call.plain(x if free else laid_out(x, call.dims, order))
    if 0 in shape:
        return call(x.new_empty(shape))
    if free:
        outputs = product(n for d, n in enumerate(shape) if d not in call.dims)
        mine = own_nodes(x, call) if nodes is None or 0 in x.shape else nodes.reshape(-1)
        total = join_freely(mine, outputs * call.width(x.dtype), [size > 0 for size in sizes], call, group)
        return call.result(total, product(shape) // outputs, shape)
    return call.join_shards(x, sizes, list(order), group)


def check_sizes(name: str, sizes: Sequence[int], world: int, rank: int, size: int) -> None:
    try:
        torch.Size(sizes)
    except TypeError:
        raise TypeError(f"{name}(): 'sizes' must be a sequence of ints, not {sizes!r}") from None
    if len(sizes) != world or min(sizes) < 0:
        raise ValueError(f"{name}(): 'sizes' must be {world} sizes, one per rank, none negative, not {list(sizes)}")
    if sizes[rank] != size:
        raise ValueError(
            f"{name}(): 'sizes' says that rank {rank} has {sizes[rank]} along the Shard's 'dim', not {size}"
        )


def slowest_first(strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Dims in the contract's order."""
    return sorted(dims, key=lambda d: (strides[d] != 0, -strides[d], d))


def order_of(x: Tensor, call: Call) -> list[int]:
    """The reduced dims in the contract's order; of size 1 only the one that is cut is among them."""
    return slowest_first(x.stride(), [d for d in call.dims if x.shape[d] != 1 or d == call.shard_dim])


def laid_out(local: Tensor, reduced: Sequence[int], order: Sequence[int]) -> Tensor:
    """`local` with the reduced dims in this order in memory: the global tensor's, which shards need not have."""
    if lies_in_order(local.shape, local.stride(), order):
        return local
    return permuted(local.permute(axes_of(local, reduced, order)).contiguous(), reduced, order)


def lies_in_order(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether dims have that order in memory."""
    wanted = [d for d in order if shape[d] != 1]
    return slowest_first(strides, sorted(wanted)) == wanted


def axes_of(x: Tensor, reduced: Sequence[int], order: Sequence[int]) -> list[int]:
    """All dims: the kept ones, then the reduced ones in order."""
    return [d for d in range(x.dim()) if d not in reduced] + [*order] + [d for d in reduced if d not in order]


def permuted(x: Tensor, reduced: Sequence[int], order: Sequence[int]) -> Tensor:
    """A tensor whose dims stand as axes_of says, as a view in which they stand as they were."""
    axes = axes_of(x, reduced, order)
    return x.permute([axes.index(d) for d in range(x.dim())])


@dataclass(frozen=True, eq=False)
class Shards:
    """A call whose global tensor is not empty, as one rank sees it: what follows from all but the elements."""

    rank: int
    shape: tuple[int, ...]  # of this rank's tensor
    kept: tuple[int, ...]  # the sizes of the kept dims
    axes: list[int] | None  # all dims: the kept ones, then the reduced ones in the contract's order; None: as they are
    outputs: int
    length: int  # of an output
    plan: Plan

    @classmethod
    def of(cls, x: Tensor, call: Call, sizes: Sequence[int], order: Sequence[int], group: Any, **more: Any) -> "Shards":
        _, rank = place(call.title, group)
        return cls.of_shape(tuple(map(int, x.shape)), x.dtype, call, sizes, order, rank, **more)

    @classmethod
    def of_shape(
        cls,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        call: Call,
        sizes: Sequence[int],
        order: Sequence[int],
        rank: int,
        by_outputs: bool | None = None,
    ) -> "Shards":
        """Of a tensor of that shape and dtype on a rank of that number."""
        kept = [d for d in range(len(shape)) if d not in call.dims]
        axes = [*kept, *order, *(d for d in call.dims if d not in order)]
        at = order.index(call.shard_dim)
        outer, inner, outputs = (product(shape[d] for d in dims) for dims in (order[:at], order[at + 1 :], kept))
        node = call.width(dtype) * call.accumulator(dtype).itemsize
        plan = plan_of(tuple(sizes), outer, inner, outputs, dtype.itemsize, node, by_outputs)
        moved = None if axes == [*range(len(shape))] else axes
        return cls(rank, shape, tuple(shape[d] for d in kept), moved, outputs, sum(sizes) * outer * inner, plan)

    def rows(self, x: Tensor) -> Tensor:
        """(kept dims, the elements of an output in the contract's order): where these are no neighbours, a copy."""
        return self._permuted(x).flatten(len(self.kept))

    def pieces(self, x: Tensor, cut: list[int]) -> Sequence[Tensor]:
        """A tensor in pieces of these lengths. One that is whole is not copied."""
        if len(cut) == 1:
            return (self._permuted(x),)
        return self.rows(x).split_with_sizes(cut, len(self.kept)) if cut else ()

    def _permuted(self, x: Tensor) -> Tensor:
        return x if self.axes is None else x.permute(self.axes)

    def result(self, call: Call, total: Tensor) -> Tensor:
        """The result of the call, of last nodes."""
        return call.result(total, self.length, self.shape)


def join_shards(x: Tensor, call: Call, sizes: tuple[int, ...], order: list[int], group: Any) -> Tensor:
    """The result of a call whose global tensor is not empty."""
    shards = Shards.of(x, call, sizes, order, group)
    plan, accumulator, width = shards.plan, call.accumulator(x.dtype), call.width(x.dtype)
    if plan.realigns:
        own = together((plan,), shards.rank)
        pieces, shared = realigned([shards], [x], own, group)
        whole = [pieces[i] for i in own.nodes if i < len(pieces)]  # they come before what others have a part of
        values = call.nodes_of(whole, len(shards.kept), accumulator)
        values += call.nodes_of(shared(), len(shards.kept), accumulator)
    else:
        matrix = made(shards.rows(x)).reshape(shards.outputs, -1)
        values = values_elsewhere(matrix, plan, shards.rank, call, accumulator, group)
    mine = torch.cat(values) if values else x.new_empty(0, dtype=accumulator)
    gathered = gather(mine, [count * width for count in plan.counts], group)
    if not plan.by_outputs:
        gathered = join(gathered.view(-1, shards.outputs * width), plan.joins, call.operation.join)
    return shards.result(call, gathered)


def own_nodes(x: Tensor, call: Call) -> Tensor:
    """One node an output, of all elements that this rank has: nothing, if it has none. No order of them shows."""
    accumulator = call.accumulator(x.dtype)
    if 0 in x.shape:
        return x.new_empty(0, dtype=accumulator)
    return call.node(x, call.dims, accumulator)


def join_freely(mine: Tensor, size: int, held: Sequence[bool], call: Call, group: Any) -> Tensor:
    """Joins the nodes of all ranks that hold elements, to one per output, on every rank: their order does not matter.

    They are sent to all, or each rank joins a part of the numbers: whatever sends less. `size` counts all nodes of
    a rank.
    """
    world = len(held)
    if size < world or world == 2:
        return call.join(gather(mine, [size if has else 0 for has in held], group).view(-1, size))
    _, rank = place(call.title, group)
    counts = [b - a for a, b in pairwise(even(size, world))]
    parts = mine.split(counts) if held[rank] else [mine] * world
    received = exchange_parts(parts, [counts[rank] if has else 0 for has in held], group)
    return gather(call.join(torch.cat(received).view(-1, counts[rank])), counts, group)


def realigned(
    shards: Sequence[Shards], tensors: Sequence[Tensor], plan: Together, group: Any
) -> tuple[list[Tensor], Callable[[], Sequence[Tensor]]]:
    """(kept dims, elements): this rank's pieces; and what waits for others' parts of chunks, and gives these chunks.

    So what needs no other rank can be reduced while the messages are under way.
    """
    kept, outputs = shards[0].kept, shards[0].outputs
    parts: list[Tensor] = []
    for one, x, cut in zip(shards, tensors, plan.cuts, strict=True):
        parts += one.pieces(x, cut)
    if not plan.exchanges:
        return parts, lambda: ()
    heads = [made(parts[i]).reshape(-1) for i in plan.heads]
    flat = torch.cat(heads) if heads else tensors[0].new_empty(0)
    sent, received = ([count * outputs for count in counts] for counts in (plan.sent, plan.received))
    work, all_blocks = exchange(flat, sent, received, group, later=True)

    def shared() -> Sequence[Tensor]:
        work.wait()
        if not plan.chunks:
            return ()
        blocks = all_blocks.split_with_sizes([length * outputs for length in plan.blocks])
        there = [*parts, *([block.view(*kept, -1) for block in blocks] if kept else blocks)]
        chunks = torch.cat([made(there[i]).flatten(len(kept)) for i in plan.shared], len(kept))
        return chunks.split_with_sizes(plan.chunks, len(kept))

    return parts, shared


def join_many(shards: Sequence[Shards], tensors: Sequence[Tensor], call: Call, group: Any) -> Tensor:
    """(calls, outputs): the last nodes of several calls, which differ in sizes and data alone, in two messages.

    Their shards are realigned.
    """
    plan = together(tuple(one.plan for one in shards), shards[0].rank)
    pieces, shared = realigned(shards, tensors, plan, group)
    parts, outputs = [*pieces, *shared()], shards[0].outputs
    mine = call.nodes_of_many([parts[i] for i in plan.nodes], len(shards[0].kept), outputs, tensors[0])
    table = gather(mine, plan.counts, group).view(-1, outputs)
    whole = join_table(table, plan.joins, call.operation.join)
    return whole.index_select(0, numbers(plan.last, whole))


def values_elsewhere(matrix, plan, rank, call, accumulator, group) -> list[Tensor]:
    """The nodes of this rank, where every element is sent to the rank that adds it. `matrix` is (outputs, elements)."""
    parts = []
    for (top, bottom), (first, last) in plan.shares:
        a, b = plan.before(rank, first), plan.before(rank, last)
        parts.append(matrix[top:bottom, a:b])
    (top, bottom), (first, last) = plan.shares[rank]
    rows = bottom - top
    begins = [plan.before(r, first) for r in range(plan.world)]
    widths = [plan.before(r, last) - begin for r, begin in enumerate(begins)]
    received = exchange_parts(parts, [rows * width for width in widths], group)
    if rows == 0 or first == last:
        return []
    call = call.of_outputs(top, bottom)
    mine = torch.cat([block.view(rows, width) for block, width in zip(received, widths, strict=True)], 1)
    if plan.outer > 1:  # the ranks' elements alternate: where is each in `mine`?
        places = torch.arange(first, last, device=mine.device)
        block, place = places // plan.row, places % plan.row
        starts = numbers(plan.starts[:-1], mine)
        owner = torch.searchsorted(starts, place, right=True) - 1
        held = numbers([size * plan.inner for size in plan.sizes], mine)
        shift = [at - begin for at, begin in zip(accumulate([0] + widths[:-1]), begins, strict=True)]
        shift = numbers(shift, mine)
        mine = mine.index_select(1, block * held[owner] + place - starts[owner] + shift[owner])
    values = []
    for level, index in plan.nodes[rank]:
        a = (index << level) * CHUNK - first
        values.append(call.node(mine[:, a : a + (CHUNK << level)], [1], accumulator))
    return values


def join(table: Tensor, joins: Joins, operator: str = "sum") -> Tensor:
    """(nodes, outputs) -> (outputs,): all nodes joined by an operator in the order of `joins`."""
    return join_table(table, joins, operator)[-1] if joins else table[0]


def join_table(table: Tensor, joins: Joins, operator: str) -> Tensor:
    """The table and what the joins append to it, a row each."""
    groups = [group for step in joins for group in step]
    if not groups:
        return table
    made, last, neighbours = len(table), len(table) + len(groups), len(groups[0])
    padded = operator in PADDING  # or a row may be joined to itself
    rows = [(last if padded else max(group)) if row < 0 else row for group in groups for row in group]
    places = numbers(rows, table).view(-1, neighbours)
    nothing = PADDING[operator] if padded else complex(0)
    filler = table.new_full((1, table.shape[1]), nothing if table.is_complex() else nothing.real)
    whole = torch.cat([table, table.new_empty(len(groups), table.shape[1]), filler])
    for step, taken in zip(joins, places.split([len(step) for step in joins]), strict=True):
        sides = whole.index_select(0, taken.view(-1)).view(len(step), neighbours, -1)
        getattr(_ops, operator)(sides, [1], dtype=sides.dtype, out=whole[made : made + len(step)])
        made += len(step)
    return whole[:last]
