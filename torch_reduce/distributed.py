"""Reductions of a sharded dimension and sums over the ranks of torch.distributed, with bits that no cut changes.

``sum``, ``mean``, the norms and the other functions of torch_reduce's names reduce a tensor that is cut along one
dimension, a shard a rank: every rank gets the bits that torch_reduce's function gives for the whole tensor, at any
number of ranks and wherever the cuts are. ``all_reduce`` and ``reduce_scatter``
add the ranks' tensors pairwise in rank order, whatever the backend and the network; ``ddp_hook`` and
``FSDPReduceScatter`` bring that to DistributedDataParallel and to ``fully_shard``.

All functions are collective: every rank of the group calls them, with the same arguments but for the data.
docs/distributed.md says what is exchanged, and what it costs.
"""

import builtins
import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import torch_reduce

from . import _arguments

__all__ = [
    "FSDPReduceScatter",
    "all",
    "all_reduce",
    "amax",
    "amin",
    "any",
    "count_nonzero",
    "ddp_hook",
    "dot",
    "logsumexp",
    "mean",
    "nansum",
    "powsum",
    "prod",
    "reduce_scatter",
    "segment_mean",
    "segment_sum",
    "std",
    "sum",
    "var",
    "var_mean",
    "vector_norm",
    "weighted_sum",
]

_ops = torch.ops.gpureduce
_functional = torch.ops._c10d_functional
_, _LANES, _CHUNK = _ops._order()
_COMPLEX_PART = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


# --- reductions of a sharded dim -------------------------------------------------------------------------------------


def sum(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The sum over ``dim`` of a tensor of which every rank of ``group`` holds a shard.

    The *global tensor* is ``torch.cat(shards, shard_dim)``, the shards in the order of their ranks in ``group``. If
    ``dim`` includes ``shard_dim``, every rank gets the same result: the one that ``torch_reduce.sum(global tensor, dim,
    keepdim, dtype=dtype)`` has, bit for bit. If it does not, the result is that of the shard alone, and so still cut
    along ``shard_dim``; then nothing is exchanged.

    Args:
        x: this rank's shard, of any dtype, strides and device that :func:`torch_reduce.sum` takes and whose device
            ``group`` has a backend for. Shards differ in size along ``shard_dim`` alone, and may be empty. If one
            backend serves all devices, as gloo does, some may be on GPUs and others on CPUs. It must not require a
            gradient where gradients are recorded: none would flow.
        dim: as for :func:`torch_reduce.sum`; it counts the dims of ``x``.
        keepdim: as for :func:`torch_reduce.sum`.
        dtype: as for :func:`torch_reduce.sum`.
        group: the ranks; by default all.
        shard_dim: the dim along which the global tensor is cut, in ``[-x.dim(), x.dim())``.
        sizes: the sizes of all shards along ``shard_dim``, in elements, one a rank. By default the ranks tell each
            other, and check that they agree on everything else; that takes one all_gather of 48 bytes a rank, for which
            the host waits. With ``sizes`` nothing is checked.

    Returns:
        A tensor as :func:`torch_reduce.sum` of the global tensor returns it.

    **Order of several reduced dims.** By the contract (docs/order.md) the elements come in the order of the global
    tensor's strides, and that is the order of the shards' strides: dims of stride 0 first, then by decreasing stride,
    equal ones in logical order. So contiguous shards stand for a contiguous global tensor, channels-last shards for a
    channels-last one, and permuted ones for one that is permuted alike. Shards of one index or none along
    ``shard_dim`` do not show where in memory that dim stands: where ``sizes`` is None they follow the other ranks,
    and otherwise their own strides.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`torch_reduce.sum`. Without ``sizes``, the other ranks
            raise a RuntimeError that names this rank and its error.
        ValueError: ``sizes`` are not one a rank, or not ``x``'s on this one; this rank is not in ``group``.
        RuntimeError: the ranks disagree about an argument, a dtype or a shape (all ranks name who has what); ``group``
            has no backend for ``x``'s device; or ``x`` requires a gradient. A rank that ends, or never calls, is the
            backend's error, at the latest after the group's timeout.
    """
    return _reduce("sum", x, dim, keepdim, dtype, group, shard_dim, sizes)


def mean(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The mean over ``dim`` of a tensor of which every rank holds a shard: as :func:`sum`, with the bits of
    ``torch_reduce.mean(global tensor, dim, keepdim, dtype=dtype)``.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`.
        dtype: as for :func:`torch_reduce.mean`: integers and bool need one, floating or complex.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum` and :func:`torch_reduce.mean`.
    """
    return _reduce("mean", x, dim, keepdim, dtype, group, shard_dim, sizes)


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The norm of a tensor of which every rank holds a shard: as :func:`sum`, with the bits of
    ``torch.ops.gpureduce.linalg_vector_norm(global tensor, ord, dim, keepdim, dtype=dtype)``.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; ``x`` is floating or complex.
        ord: 0, 1, 2, 3, ``inf`` or ``-inf``.
        dtype: as for :func:`torch.linalg.vector_norm`.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`; or ``x`` or ``dtype`` is neither floating nor
            complex, or the largest or smallest of no elements is asked for.
        NotImplementedError: another ``ord``.
    """
    return _reduce(_operator("vector_norm", _NORMS, ord), x, dim, keepdim, dtype, group, shard_dim, sizes)


def powsum(
    x: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The sum of powers of a tensor of which every rank holds a shard: :func:`vector_norm` without the root, with the
    bits of ``torch.ops.gpureduce.linalg_powsum(global tensor, ord, dim, keepdim, dtype=dtype)``.

    Args:
        x, dim, keepdim, dtype, group, shard_dim, sizes: as for :func:`vector_norm`.
        ord: 0, 1, 2 or 3.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`vector_norm`.
    """
    return _reduce(_operator("powsum", _POWSUMS, ord), x, dim, keepdim, dtype, group, shard_dim, sizes)


def prod(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The product of a tensor of which every rank holds a shard: as :func:`sum`, with the bits of
    ``torch_reduce.prod(global tensor, dim, keepdim, dtype=dtype)``.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; ``x`` is real.
        dtype: as for :func:`torch_reduce.prod`.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
        NotImplementedError: complex numbers.
    """
    return _reduce("prod", x, dim, keepdim, dtype, group, shard_dim, sizes)


def nansum(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The sum of all elements that are not NaN, of a tensor of which every rank holds a shard: as :func:`sum`, with
    the bits of ``torch_reduce.nansum(global tensor, dim, keepdim, dtype=dtype)``.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; ``x`` is real.
        dtype: as for :func:`torch_reduce.nansum`.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
        NotImplementedError: complex numbers, or a ``dtype`` that is not floating though ``x`` is.
    """
    return _reduce("nansum", x, dim, keepdim, dtype, group, shard_dim, sizes)


def amax(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The largest element of a tensor of which every rank holds a shard: that of the global tensor.

    Each rank finds its own, and these are sent: no element is. Where in memory the dims of a shard lie does not matter.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; ``x`` is real, and may be empty on some ranks.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`sum`.
        IndexError: as :func:`sum`; or no rank has an element to find the largest of.
        NotImplementedError: complex numbers.
    """
    return _reduce("_amax", x, dim, keepdim, None, group, shard_dim, sizes)


def amin(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The smallest element of a tensor of which every rank holds a shard: as :func:`amax`, in all else, too."""
    return _reduce("_amin", x, dim, keepdim, None, group, shard_dim, sizes)


def any(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Whether any element of a tensor of which every rank holds a shard is not zero, in bool, or uint8 where ``x`` is.

    Each rank counts its own, and the counts are sent. Where in memory the dims of a shard lie does not matter.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; but ``x`` may require a gradient: the
            result has none.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
    """
    return _reduce("_any", x, dim, keepdim, None, group, shard_dim, sizes)


def all(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """Whether all elements of a tensor of which every rank holds a shard are not zero: otherwise as :func:`any`."""
    return _reduce("_all", x, dim, keepdim, None, group, shard_dim, sizes)


def count_nonzero(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """How many elements of a tensor of which every rank holds a shard are not zero, in int64; else as :func:`any`."""
    return _reduce("_count_nonzero", x, dim, keepdim, None, group, shard_dim, sizes)


def logsumexp(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The logarithm of the sum of exponentials of a tensor of which every rank holds a shard: as :func:`sum`, with the
    bits of ``torch_reduce.logsumexp(global tensor, dim, keepdim)``.

    All elements of an output are sent to one rank. So where all dims are reduced, the last rank needs memory for the
    global tensor.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; ``x`` is real.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
        NotImplementedError: complex numbers.
    """
    return _reduce("_logsumexp", x, dim, keepdim, None, group, shard_dim, sizes)


def var_mean(
    x: Tensor,
    dim: Any = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The variance and the mean of a tensor of which every rank holds a shard: as :func:`sum`, with the bits of
    ``torch_reduce.var_mean(global tensor, dim, correction=correction, keepdim=keepdim)``.

    Each rank writes its differences from the outputs' first elements to memory, in float32 or float64, and sums them
    and their squares. Both sums are sent together.

    Args:
        x, dim, keepdim, group, shard_dim, sizes: as for :func:`sum`; ``x`` is floating.
        correction: as for :func:`torch_reduce.var_mean`.

    Returns:
        The variance and the mean, as :func:`torch_reduce.var_mean` returns them.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum` and :func:`torch_reduce.var_mean`.
        NotImplementedError: complex numbers.
    """
    return _reduce_variance(_VAR_MEAN, x, dim, correction, keepdim, group, shard_dim, sizes)


def var(
    x: Tensor,
    dim: Any = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The variance of a tensor of which every rank holds a shard: the first result of :func:`var_mean`.

    Args and errors: as for :func:`var_mean`.
    """
    return _reduce_variance(_VAR, x, dim, correction, keepdim, group, shard_dim, sizes)[0]


def std(
    x: Tensor,
    dim: Any = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The standard deviation of a tensor of which every rank holds a shard: the root of :func:`var`, rounded once.

    Args and errors: as for :func:`var_mean`.
    """
    return _reduce_variance(_STD, x, dim, correction, keepdim, group, shard_dim, sizes)[0]


def weighted_sum(
    x: Tensor,
    weight: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    shard_dim: int,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The sum of products of two tensors of which every rank holds shards: as :func:`sum`, with the bits of
    ``torch_reduce.weighted_sum(global tensor, global weight, dim, keepdim, dtype=dtype)``.

    Where ``dim`` includes ``shard_dim``, each rank writes its products to memory.

    Args:
        x: as for :func:`sum`, but real.
        weight: this rank's shard of another tensor, on the same device, that can be broadcast with ``x``.
        dim, keepdim, shard_dim, sizes: as for :func:`sum`, but of the common shape, in which both tensors are cut
            alike. One that is broadcast along ``shard_dim`` has size 1 there, and the same elements on every rank.
        dtype: as for :func:`torch_reduce.weighted_sum`.
        group: as for :func:`sum`.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`; or shapes that cannot be broadcast, or tensors
            on two devices.
        NotImplementedError: complex numbers.
    """
    return _reduce_as(_WeightedCall, _WEIGHTED_SUM, x, dim, keepdim, dtype, group, shard_dim, sizes, weight=weight)


def dot(
    x: Tensor,
    other: Tensor,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The dot product of two vectors of which every rank holds shards of one size: as :func:`weighted_sum`, with the
    bits of ``torch_reduce.dot(global x, global other, dtype=dtype)``.

    Args:
        x: this rank's shard of one, of a real dtype.
        other: that of the other one, of the same dtype and size, on the same device.
        dtype: as for :func:`torch_reduce.dot`.
        group, sizes: as for :func:`sum`.

    Raises:
        TypeError, ValueError, RuntimeError, NotImplementedError: as :func:`weighted_sum` and :func:`torch_reduce.dot`.
    """
    return _reduce_as(_WeightedCall, _DOT, x, None, False, dtype, group, 0, sizes, weight=other)


def segment_sum(
    x: Tensor,
    offsets: Tensor,
    dim: int = 0,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The sums of segments of a tensor of which every rank holds a shard, cut along ``dim``: every rank gets the bits
    of ``torch_reduce.segment_sum(global tensor, offsets, dim, dtype=dtype)``.

    A rank reduces the segments that it holds. Those that a cut crosses, at most one a cut, are reduced as :func:`sum`
    reduces a tensor, all of them in one exchange.

    Args:
        x: this rank's shard, of any dtype that :func:`torch_reduce.segment_sum` takes; otherwise as for :func:`sum`.
        offsets: those of the global tensor, the same on every rank, on the device of ``x``. The host waits for them,
            also where ``sizes`` are given.
        dim: as for :func:`torch_reduce.segment_sum`, and along which the global tensor is cut.
        dtype: as for :func:`torch_reduce.segment_sum`.
        group, sizes: as for :func:`sum`.

    Returns:
        A tensor as of :func:`torch_reduce.segment_sum`, of all segments.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`sum` and
            :func:`torch_reduce.segment_sum`, also for offsets on a GPU that do not ascend.
    """
    return _reduce_as(_SegmentCall, _SEGMENT_SUM, x, dim, True, dtype, group, dim, sizes, offsets=offsets)


def segment_mean(
    x: Tensor,
    offsets: Tensor,
    dim: int = 0,
    *,
    dtype: Any = None,
    group: dist.ProcessGroup | None = None,
    sizes: Sequence[int] | None = None,
) -> Tensor:
    """The means of segments of a tensor that is cut along ``dim``: as :func:`segment_sum`, with the bits of
    ``torch_reduce.segment_mean(global tensor, offsets, dim, dtype=dtype)``.

    Args and errors: as for :func:`segment_sum`; integers and bool need a floating or complex ``dtype``.
    """
    return _reduce_as(_SegmentCall, _SEGMENT_MEAN, x, dim, True, dtype, group, dim, sizes, offsets=offsets)


@dataclass(frozen=True)
class _Operation:
    """How an operator's nodes are computed, joined and finished, by operators of torch.ops.gpureduce."""

    name: str  # of the operator
    title: str  # for errors
    typing: str = "sum"  # as in csrc/operation.h: from which dtypes follows the nodes' dtype
    nodes: tuple[str, ...] = ("sum",)  # of some chunks: an operator for each number that a node is
    join: str = "sum"  # of two nodes
    last: Callable[[Tensor, int], Tensor] | None = None  # what becomes of the last nodes, which are of so many elements
    free: bool = False  # no order shows, of any dtype
    whole: bool = False  # nodes cannot be joined: one rank gets all elements of an output

    @property
    def is_norm(self) -> bool:
        """Whether the nodes are real numbers that a map has made of the elements."""
        return self.typing == "norm"


def _root(operator: str) -> Callable[[Tensor, int], Tensor]:
    """The roots of last nodes, correctly rounded, which torch's are not on every CPU."""
    return lambda total, count: getattr(_ops, operator)(total[None], [0])


def _norm(name: str, order: str, node: str | None = None, **others: Any) -> _Operation:
    return _Operation(name, f"vector_norm of order {order}", "norm", (node or name,), **others)


_COUNT = ("_count_nonzero",)
_OPERATIONS = {
    operation.name: operation
    for operation in (
        _Operation("sum", "sum"),
        _Operation("nansum", "nansum", "real", ("nansum",)),
        _Operation("mean", "mean", last=lambda total, count: _quotient(total, count)),
        _Operation("prod", "prod", "product", ("prod",), "prod"),
        _Operation("_amax", "amax", "same", ("_amax",), "_amax", free=True),
        _Operation("_amin", "amin", "same", ("_amin",), "_amin", free=True),
        _Operation("_any", "any", "count", _COUNT, last=lambda total, count: total > 0),
        _Operation("_all", "all", "count", _COUNT, last=lambda total, count: total == count),
        _Operation("_count_nonzero", "count_nonzero", "count", _COUNT),
        _Operation("_logsumexp", "logsumexp", "log", ("_logsumexp",), whole=True),
        _norm("_norm_0", "0", free=True),
        _norm("_norm_1", "1"),
        _norm("_norm_2", "2", "_powsum_2", last=_root("_root_2")),
        _norm("_norm_3", "3", "_powsum_3", last=_root("_root_3")),
        _norm("_norm_inf", "inf", join="_norm_inf", free=True),
        _norm("_norm_neg_inf", "-inf", join="_norm_neg_inf", free=True),
        _Operation("_powsum_2", "powsum of order 2", "norm", ("_powsum_2",)),
        _Operation("_powsum_3", "powsum of order 3", "norm", ("_powsum_3",)),
    )
}
_VAR_MEAN, _VAR, _STD = (_Operation("_var_mean", title) for title in ("var_mean", "var", "std"))
_WEIGHTED_SUM, _DOT = (_Operation("sum", title) for title in ("weighted_sum", "dot"))  # sums of products
_SEGMENT_SUM, _SEGMENT_MEAN = (replace(_OPERATIONS[name], title=f"segment_{name}") for name in ("sum", "mean"))
_MOMENTS = _Operation("", "var_mean", "moments", ("sum", "_powsum_2"))  # of the differences from the first elements
_POWSUMS = {0.0: "_norm_0", 1.0: "_norm_1", 2.0: "_powsum_2", 3.0: "_powsum_3"}
_NORMS = _POWSUMS | {2.0: "_norm_2", 3.0: "_norm_3", math.inf: "_norm_inf", -math.inf: "_norm_neg_inf"}


def _operator(name: str, known: dict[float, str], ord: Any) -> str:
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise TypeError(f"{name}(): 'ord' must be a number, not {type(ord).__name__}")
    if float(ord) not in known:
        orders = ", ".join(f"{order:g}" for order in known)
        raise NotImplementedError(f"{name}(): 'ord' must be one of {orders}, but it is {ord}")
    return known[float(ord)]


@dataclass(frozen=True)
class _Call:
    """A call's arguments, read: dims are counted from 0 and sorted."""

    operation: _Operation
    dims: list[int]
    keepdim: bool
    given: torch.dtype | None
    dtype: torch.dtype  # of the result
    shard_dim: int

    @classmethod
    def read(cls, operation: _Operation, x: Any, dim: Any, keepdim: Any, dtype: Any, shard_dim: Any, **more: Any):
        """The tensor and the arguments of a call, checked as far as one rank can."""
        given = dict(input=x, dim=dim, keepdim=keepdim, dtype=dtype, out=None)
        title = operation.title
        x, dim, keepdim, dtype, _ = _arguments.read(title, given, {}).values()
        one = torch.empty([1] * x.dim(), dtype=x.dtype, device="meta")
        probe = cls(operation, dim, keepdim, dtype, x.dtype, 0, **more).probe(one)
        if isinstance(shard_dim, bool) or not isinstance(shard_dim, int):
            raise TypeError(f"{title}(): 'shard_dim' must be an int, not {type(shard_dim).__name__}")
        if not -x.dim() <= shard_dim < x.dim():
            raise IndexError(f"{title}(): 'shard_dim' must be in [{-x.dim()}, {x.dim()}), but it is {shard_dim}")
        dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
        dims, shard_dim = sorted(d % x.dim() for d in dims), shard_dim % x.dim()
        call = cls(operation, dims, keepdim, dtype, probe.dtype, shard_dim, **more)
        call.refuse_gradients("x", x)
        return x, call

    def probe(self, one: Tensor) -> Tensor:
        """A result, for its dtype, of a tensor without data; torch's errors."""
        return getattr(_ops, self.operation.name)(one, self.dims, self.keepdim, dtype=self.given)

    def refuse_gradients(self, argument: str, x: Tensor) -> None:
        """Raises an error if a gradient would have to flow through ranks."""
        if self.shard_dim in self.dims and x.requires_grad and torch.is_grad_enabled() and _is_inexact(self.dtype):
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

    @property
    def width(self) -> int:
        """How many numbers a node is."""
        return len(self.operation.nodes)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        """What all ranks must agree on, as JSON can hold it; and the order, on which small shards have no say."""
        return {
            "function": self.title,
            "shape": ["*" if d == self.shard_dim else n for d, n in enumerate(x.shape)],
            "dtype": str(x.dtype),
            "device": _kind_of(x.device, group),
            "dim": self.dims,
            "keepdim": self.keepdim,
            "dtype of the result": str(self.dtype),
            "shard_dim": self.shard_dim,
            "order": order,
        }

    def accumulator(self, source: torch.dtype) -> torch.dtype:
        """The dtype of the nodes of elements of dtype `source`: real numbers of norms; and counts are exact."""
        operation = self.operation
        if operation.typing == "same":
            return source
        if operation.typing == "count":
            return torch.int64
        if operation.whole:
            return self.dtype
        if operation.typing == "moments" or operation.nodes == ("_norm_0",):
            return torch.float64
        if operation.typing == "product" and _is_inexact(self.dtype) and not _is_inexact(source):
            return torch.float64
        return _accumulator(_COMPLEX_PART.get(source, source) if operation.is_norm else source, self.dtype)

    def is_free(self, source: torch.dtype) -> bool:
        """Whether no order of elements of dtype `source` shows: integers are exact, and extrema are an element."""
        return self.operation.free or not _is_inexact(self.accumulator(source))

    def plain(self, x: Tensor) -> "tuple[Tensor, _Call]":
        """A tensor and a call that give the same where ranks have to do with each other."""
        return x.detach(), self

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> Any:
        """The result of a global tensor that is not empty."""
        return _join_shards(x, self, sizes, order, group)

    def node(self, part: Tensor, dims: list[int], accumulator: torch.dtype) -> Tensor:
        """The nodes of a part of the elements, flat: for each output its numbers, which are `accumulator`."""
        asked = self._asked(part, accumulator)
        numbers = [getattr(_ops, name)(part, dims, dtype=asked).reshape(-1) for name in self.operation.nodes]
        return numbers[0] if len(numbers) == 1 else torch.stack(numbers, 1).view(-1)

    def nodes_of_all(
        self, parts: list[tuple[Tensor, list[int]]], outputs: int, accumulator: torch.dtype, device: torch.device
    ) -> Tensor:
        """The nodes of several parts over some dims of each, side by side: of all squares of a part in one launch."""
        if not parts:
            return torch.empty(0, dtype=accumulator, device=device)
        if outputs > 1 or self.operation.nodes != ("_powsum_2",):
            return torch.cat([self.node(part, dims, accumulator) for part, dims in parts])
        return _ops._powsums([part for part, _ in parts], 2, dtype=self._asked(parts[0][0], accumulator))

    def _asked(self, part: Tensor, accumulator: torch.dtype) -> torch.dtype | None:
        """The dtype= by which a node is `accumulator`: complex, of a norm of complex numbers, as torch has it."""
        if self.operation.whole:
            return self.given
        return accumulator.to_complex() if self.operation.is_norm and part.is_complex() else accumulator

    def join(self, nodes: Tensor) -> Tensor:
        """(n, outputs) -> (outputs,): nodes of which no order shows, as one."""
        return getattr(_ops, self.operation.join)(nodes, [0], dtype=nodes.dtype)

    def finish(self, total: Tensor, count: int) -> Tensor:
        """The results, of last nodes of so many elements each."""
        if self.operation.last:
            total = self.operation.last(total, count)
        return _finish(total, None, self.dtype)

    def result(self, total: Tensor, count: int, shape: Sequence[int]) -> Tensor:
        """The same in the form that the result of a tensor of that shape has; of nodes of several numbers, these."""
        kept = [1 if d in self.dims else n for d, n in enumerate(shape) if self.keepdim or d not in self.dims]
        return total.view(*kept, self.width) if self.width > 1 else self.finish(total, count).view(kept)


@dataclass(frozen=True)
class _VarianceCall(_Call):
    """A call of which the variance, or its root, and the mean are the result."""

    correction: float | None = 1
    root: bool = False

    def probe(self, one: Tensor) -> Tensor:
        return _ops.var_mean(one, self.dims, correction=self.correction, keepdim=self.keepdim)[0]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return _ops._var_mean(x, self.dims if x.dim() else None, self._correction, self.root, self.keepdim)

    @property
    def _correction(self) -> float:
        return 1.0 if self.correction is None else float(self.correction)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"correction": self._correction}

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> tuple[Tensor, Tensor]:
        """As docs/order.md has it: of the differences from the first elements, the sums, and those of their squares."""
        x = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        shape = [1 if d in self.dims else n for d, n in enumerate(x.shape)]
        first = x[tuple(slice(size) for size in shape)].reshape(-1).resolve_neg()
        _, rank = _place(self.title, group)
        holder = next(of for of, size in enumerate(sizes) if size)
        counts = [_product(shape) if of == holder else 0 for of in range(len(sizes))]
        first = _gather(first[: counts[rank]], counts, group).view(shape)

        differences = _laid_out(x - first, self.dims, order)
        moments = _Call(_MOMENTS, self.dims, self.keepdim, None, torch.float64, self.shard_dim)
        total, squares = _join_shards(differences, moments, sizes, order, group).unbind(-1)
        count = _product(builtins.sum(sizes) if d == self.shard_dim else x.shape[d] for d in self.dims)
        return self._finished(total, squares, count, first.to(torch.float64).view(total.shape))

    def _finished(self, total: Tensor, squares: Tensor, count: int, first: Tensor) -> tuple[Tensor, Tensor]:
        """What becomes of the sums. Multiplied and added by operators, of which no compiler makes one step."""
        share = _quotient(total, count)
        product = _ops.prod(torch.stack([total, share]), [0])
        spread = _ops.sum(torch.stack([squares, -product]), [0]).clamp(min=0)
        variance = spread / torch.full_like(spread, max(count - self._correction, 0.0))
        results = _root("_root_2")(variance, count) if self.root else variance, first + share
        return tuple(_finish(each, None, self.dtype) for each in results)


@dataclass(frozen=True)
class _WeightedCall(_Call):
    """A call on a tensor that is expanded to the common shape, as the weight is."""

    weight: Tensor | None = None

    @classmethod
    def read(cls, operation: _Operation, x: Any, dim: Any, keepdim: Any, dtype: Any, shard_dim: Any, weight: Any):
        title = operation.title
        _expect_tensors(title, **{"x": x, "other" if title == "dot" else "weight": weight})
        if title == "dot" and ((x.shape, x.dtype) != (weight.shape, weight.dtype) or x.dim() != 1):
            _ops.dot(x, weight, dtype=dtype)  # raises torch's error
        x, weight = torch.broadcast_tensors(x, weight)
        x, call = super().read(operation, x, dim, keepdim, dtype, shard_dim, weight=weight)
        call.refuse_gradients("weight", weight)
        return x, call

    def probe(self, one: Tensor) -> Tensor:
        other = torch.empty_like(one, dtype=self.weight.dtype)
        return _ops.weighted_sum(one, other, self.dims, self.keepdim, dtype=self.given)

    def __call__(self, x: Tensor) -> Tensor:
        return _ops.weighted_sum(x, self.weight, self.dims if x.dim() else None, self.keepdim, dtype=self.given)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        return super().facts(x, order, group) | {"dtype of the weight": str(self.weight.dtype)}

    def is_free(self, source: torch.dtype) -> bool:
        return self._summing.is_free(_type_of_products(source, self.weight.dtype, self.dtype))

    def plain(self, x: Tensor) -> tuple[Tensor, _Call]:
        """The sum of the products."""
        return _products(x.detach(), self.weight.detach(), self.dtype), self._summing

    @property
    def _summing(self) -> _Call:
        return _Call(self.operation, self.dims, self.keepdim, self.dtype, self.dtype, self.shard_dim)


@dataclass(frozen=True)
class _SegmentCall(_Call):
    """A call that reduces segments of the dim that is cut; `offsets` are of the global tensor."""

    offsets: Tensor | None = None

    @classmethod
    def read(cls, operation: _Operation, x: Any, dim: Any, keepdim: Any, dtype: Any, shard_dim: Any, offsets: Any):
        title = operation.title
        _expect_tensors(title, x=x, offsets=offsets)
        metas = (torch.empty_like(one, device="meta") for one in (x, offsets))
        probe = getattr(_ops, title)(*metas, dim, dtype=dtype)
        call = cls(operation, [dim % x.dim()], keepdim, dtype, probe.dtype, dim % x.dim(), offsets)
        call.refuse_gradients("x", x)
        return x, call

    def __call__(self, x: Tensor) -> Tensor:
        return self._of(x, self.offsets)

    def _of(self, x: Tensor, offsets: Tensor) -> Tensor:
        return getattr(_ops, self.title)(x, offsets, self.shard_dim, dtype=self.given)

    def facts(self, x: Tensor, order: list[int], group: Any) -> dict[str, Any]:
        told = hashlib.sha256(self.offsets.to("cpu", torch.int64).numpy().tobytes()).hexdigest()[:16]
        return super().facts(x, order, group) | {"offsets": f"{self.offsets.numel()} of the digest {told}"}

    def is_free(self, source: torch.dtype) -> bool:
        return False

    def join_shards(self, x: Tensor, sizes: tuple[int, ...], order: list[int], group: Any) -> Tensor:
        """Each rank reduces the segments that it holds; those that a cut crosses are reduced as sharded tensors are."""
        dim, (_, rank) = self.shard_dim, _place(self.title, group)
        starts = list(accumulate(sizes, initial=0))
        owned, crossing = self._found(starts)
        segments = self.offsets.numel() - 1
        local = self._of(x, self.offsets.to(torch.int64).clamp(starts[rank], starts[rank + 1]) - starts[rank])
        if segments == 0:
            return local
        counts = [last - first for first, last in owned]
        size = local.numel() // segments
        mine = local.movedim(dim, 0)[slice(*owned[rank])].reshape(-1)
        gathered = _gather(mine, [count * size for count in counts], group) if max(counts) else mine

        kept = [n for d, n in enumerate(x.shape) if d != dim]
        pieces = list(gathered.view(-1, *kept).split(counts))
        call = _Call(self.operation, [dim], False, self.given, self.dtype, dim)
        shards = []
        for first, last in crossing.values():
            cuts = [min(max(start, first), last) for start in starts]
            length = cuts[rank + 1] - cuts[rank]
            part = x.narrow(dim, cuts[rank] - starts[rank] if length else 0, length)
            shards.append(_Shards(part, call, tuple(b - a for a, b in pairwise(cuts)), [dim], group, by_outputs=False))
        joined = _join_many(shards) if shards else []
        for at, one, total in zip(crossing, shards, joined, strict=True):
            pieces[at] = torch.cat([pieces[at], one.result(total)[None]])
        return torch.cat(pieces).movedim(0, dim).contiguous()

    def _found(self, starts: list[int]) -> tuple[list[tuple[int, int]], dict[int, tuple[int, int]]]:
        """The segments that each rank holds, from the first to before the last. And the elements of each segment that a
        cut crosses, alike, by the rank after whose own segments it comes. The host waits for these numbers."""
        if _traced(self.offsets):
            raise NotImplementedError(
                f"{self.title}(): where a dim is cut, the host reads the offsets, which a compiled graph cannot do: "
                "call it outside of torch.compile, as by torch.compiler.disable"
            )
        offsets = self.offsets.to(torch.int64)
        segments = offsets.numel() - 1
        cuts = _numbers(starts[1:-1], offsets)
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


def _expect_tensors(title: str, **given: Any) -> None:
    """Raises an error unless all are tensors on one device."""
    for argument, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{title}(): '{argument}' must be a Tensor, not {type(tensor).__name__}")
    (_, first), (argument, second) = given.items()
    if first.device != second.device:
        raise RuntimeError(f"{title}(): '{argument}' must be on {first.device} as 'x', but is on {second.device}")


def _type_of_products(x: torch.dtype, weight: torch.dtype, result: torch.dtype) -> torch.dtype:
    """The type P of docs/order.md."""
    if not (_is_inexact(x) or _is_inexact(weight)):
        return torch.float64 if _is_inexact(result) else torch.int64
    return torch.float64 if torch.float64 in (x, weight, result) else torch.float32


def _products(x: Tensor, weight: Tensor, result: torch.dtype) -> Tensor:
    """The products, of which the sum is a weighted sum with a result of that dtype."""
    type = _type_of_products(x.dtype, weight.dtype, result)
    return x.to(type) * weight.to(type)


def _reduce(name: str, x: Any, dim: Any, keepdim: Any, dtype: Any, group: Any, shard_dim: Any, sizes: Any) -> Tensor:
    return _reduce_as(_Call, _OPERATIONS[name], x, dim, keepdim, dtype, group, shard_dim, sizes)


def _reduce_variance(
    operation: _Operation, x: Any, dim: Any, correction: Any, keepdim: Any, group: Any, shard_dim: Any, sizes: Any
) -> tuple[Tensor, Tensor]:
    more = dict(correction=correction, root=operation is _STD)
    return _reduce_as(_VarianceCall, operation, x, dim, keepdim, None, group, shard_dim, sizes, **more)


def _reduce_as(
    kind: type[_Call],
    operation: _Operation,
    x: Any,
    dim: Any,
    keepdim: Any,
    dtype: Any,
    group: Any,
    shard_dim: Any,
    sizes: Any,
    **more: Any,
) -> Any:
    title = operation.title
    world, rank = _place(title, group)
    call = error = None
    try:
        x, call = kind.read(operation, x, dim, keepdim, dtype, shard_dim, **more)
        if sizes is not None:
            _check_sizes(title, sizes, world, rank, x.shape[call.shard_dim])
        if call.shard_dim in call.dims and world > 1:
            _check_device(title, "x", x.device, group)
    except Exception as raised:
        if sizes is not None or world == 1:
            raise
        error = raised
    if error is None and (world == 1 or call.shard_dim not in call.dims):
        return call(x)
    free = error is None and call.is_free(x.dtype)
    order = None if error else [] if free else _order(x, call)
    if sizes is None:
        facts = None if error else call.facts(x, order, group)
        size = 0 if error else x.shape[call.shard_dim]
        device = x.device if isinstance(x, Tensor) else torch.get_default_device()
        sizes, order = _agree(title, facts, error, size, group, device)
    shape = list(x.shape)
    shape[call.shard_dim] = builtins.sum(sizes)
    x, call = call.plain(x)
    if 0 in shape:
        return call(x.new_empty(shape))
    if free:
        outputs = _product(n for d, n in enumerate(shape) if d not in call.dims)
        total = _join_freely(_own_nodes(x, call), outputs, [size > 0 for size in sizes], call, group)
        return call.result(total, _product(shape) // outputs, shape)
    return call.join_shards(_laid_out(x, call.dims, order), tuple(map(int, sizes)), order, group)


def _check_sizes(name: str, sizes: Sequence[int], world: int, rank: int, size: int) -> None:
    if len(sizes) != world or min(sizes) < 0:
        raise ValueError(f"{name}(): 'sizes' must be {world} sizes, one a rank, none negative, not {list(sizes)}")
    if sizes[rank] != size:
        raise ValueError(f"{name}(): 'sizes' says that rank {rank} has {sizes[rank]} along 'shard_dim', not {size}")


def _slowest_first(strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Dims in the contract's order."""
    return sorted(dims, key=lambda d: (strides[d] != 0, -strides[d], d))


def _order(x: Tensor, call: _Call) -> list[int]:
    """The reduced dims in the contract's order; of size 1 only the one that is cut is among them."""
    return _slowest_first(x.stride(), [d for d in call.dims if x.shape[d] != 1 or d == call.shard_dim])


def _laid_out(local: Tensor, reduced: Sequence[int], order: Sequence[int]) -> Tensor:
    """`local` with the reduced dims in this order in memory: the global tensor's, which shards need not have."""
    wanted = [d for d in order if local.shape[d] != 1]
    if _slowest_first(local.stride(), sorted(wanted)) == wanted:
        return local
    return _permuted(local.permute(_axes(local, reduced, order)).contiguous(), reduced, order)


def _axes(x: Tensor, reduced: Sequence[int], order: Sequence[int]) -> list[int]:
    """All dims: the kept ones, then the reduced ones in order."""
    return [d for d in range(x.dim()) if d not in reduced] + [*order] + [d for d in reduced if d not in order]


def _permuted(x: Tensor, reduced: Sequence[int], order: Sequence[int]) -> Tensor:
    """A tensor whose dims stand as _axes says, as a view in which they stand as they were."""
    axes = _axes(x, reduced, order)
    return x.permute([axes.index(d) for d in range(x.dim())])


class _Shards:
    """A call whose global tensor is not empty, as one rank sees it."""

    def __init__(
        self,
        x: Tensor,
        call: _Call,
        sizes: tuple[int, ...],
        order: list[int],
        group: Any,
        by_outputs: bool | None = None,
    ):
        _, self.rank = _place(call.title, group)
        self.call, self.group, self.shape = call, group, x.shape
        self.kept = [d for d in range(x.dim()) if d not in call.dims]
        at = order.index(call.shard_dim)
        outer, inner, self.outputs = (
            _product(int(x.shape[d]) for d in dims) for dims in (order[:at], order[at + 1 :], self.kept)
        )
        self.accumulator = call.accumulator(x.dtype)
        item, node = x.itemsize, call.width * self.accumulator.itemsize
        self.plan = _plan(sizes, outer, inner, self.outputs, item, node, call.operation.whole or by_outputs)
        self.length = builtins.sum(sizes) * outer * inner
        # (kept dims, the elements of an output in the contract's order)
        self.local = x.permute(self.kept + order + [d for d in call.dims if d not in order])
        self._matrix = None

    def result(self, total: Tensor) -> Tensor:
        """The result of the call, of last nodes."""
        return self.call.result(total, self.length, self.shape)

    # Where each rank keeps the chunks that begin in it: only the elements of a chunk that another rank begins are sent,
    # to that rank.

    @cached_property
    def exchanges(self) -> bool:
        return self.plan.starts != self.plan.bounds

    def sent(self) -> list[Tensor]:
        """What each rank is to get."""
        held, wanted, end = self._spans()
        common = [_common(held[self.rank], w) if r != self.rank else (end, end) for r, w in enumerate(wanted)]
        return [self._elements(first, last).reshape(self.outputs, -1) for first, last in common]

    def received(self) -> list[int]:
        """How many elements each rank sends here."""
        held, wanted, _ = self._spans()
        common = [_common(h, wanted[self.rank]) if r != self.rank else (0, 0) for r, h in enumerate(held)]
        return [(last - first) * self.outputs for first, last in common]

    def nodes(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """This rank's nodes, with what it has received: a flat tensor a node."""
        return [self.call.node(part, dims, self.accumulator) for part, dims in self.parts(blocks)]

    def parts(self, blocks: Sequence[Tensor]) -> list[tuple[Tensor, list[int]]]:
        """The elements of each of these nodes, and the dims over which they are reduced."""
        plan = self.plan
        start, end = plan.starts[self.rank], plan.starts[self.rank + 1]
        joined = None
        if blocks and plan.bounds[self.rank + 1] > max(end, plan.bounds[self.rank]):
            own = self._elements(plan.runs[self.rank][-1][0] * _CHUNK, end).reshape(self.outputs, -1)
            joined = torch.cat([own] + [block.reshape(self.outputs, -1) for block in blocks], 1)
        parts = []
        for first, last in plan.runs[self.rank]:
            for level, index in _cover(first, last, plan.chunks):
                a = (index << level) * _CHUNK
                b = min(a + (_CHUNK << level), plan.length)
                if b > end:
                    parts.append((joined, [1]))
                elif (a, b) == (start, end):
                    parts.append((self.local, list(range(len(self.kept), self.local.dim()))))
                else:
                    parts.append((self._elements(a, b), [len(self.kept)]))
        return parts

    def _spans(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]], int]:
        """The elements that each rank holds, those that it adds, and where this rank's end."""
        held, wanted = list(pairwise(self.plan.starts)), list(pairwise(self.plan.bounds))
        return held, wanted, self.plan.starts[self.rank + 1]

    def _elements(self, first: int, last: int) -> Tensor:
        if self._matrix is None:  # a copy, where the reduced dims are not neighbours in memory
            self._matrix = self.local.flatten(len(self.kept))
        start = self.plan.starts[self.rank]
        return self._matrix[..., first - start : last - start]


def _join_shards(x: Tensor, call: _Call, sizes: tuple[int, ...], order: list[int], group: Any) -> Tensor:
    """The result of a call whose global tensor is not empty."""
    shards = _Shards(x, call, sizes, order, group)
    plan, outputs = shards.plan, shards.outputs
    if plan.realigns:
        blocks = _exchange_parts(shards.sent(), shards.received(), group) if shards.exchanges else ()
        values = shards.nodes(blocks)
    else:
        matrix = shards.local.flatten(len(shards.kept)).reshape(outputs, -1)
        values = _values_elsewhere(matrix, plan, shards.rank, call, shards.accumulator, group)
    mine = torch.cat(values) if values else x.new_empty(0, dtype=shards.accumulator)
    gathered = _gather(mine, [count * call.width for count in plan.counts], group)
    if not plan.by_outputs:
        gathered = _join(gathered.view(-1, outputs * call.width), plan.joins, call.operation.join)
    return shards.result(gathered)


def _own_nodes(x: Tensor, call: _Call) -> Tensor:
    """One node an output, of all elements that this rank has: nothing, if it has none. No order of them shows."""
    accumulator = call.accumulator(x.dtype)
    if 0 in x.shape:
        return x.new_empty(0, dtype=accumulator)
    return call.node(x, call.dims, accumulator)


def _join_freely(mine: Tensor, outputs: int, held: Sequence[bool], call: _Call, group: Any) -> Tensor:
    """The nodes of all ranks that hold elements, as one an output, on every rank: no order of them shows.

    They are sent to all, or each rank joins a part of the outputs: whatever sends less.
    """
    world = len(held)
    if outputs < world or world == 2:
        return call.join(_gather(mine, [outputs if has else 0 for has in held], group).view(-1, outputs))
    _, rank = _place(call.title, group)
    counts = [b - a for a, b in pairwise(_even(outputs, world))]
    parts = mine.split(counts) if held[rank] else [mine] * world
    received = _exchange_parts(parts, [counts[rank] if has else 0 for has in held], group)
    return _gather(call.join(torch.cat(received).view(-1, counts[rank])), counts, group)


def _join_many(all_shards: list[_Shards]) -> Tensor:
    """(calls, outputs): the last nodes of several calls, which differ in sizes and data alone, in two messages.

    Their shards are realigned.
    """
    one = all_shards[0]
    group, world, outputs = one.group, one.plan.world, one.outputs
    blocks: list[Sequence[Tensor]] = [()] * len(all_shards)
    exchanging = [i for i, shards in enumerate(all_shards) if shards.exchanges]
    if exchanging:
        sent = [all_shards[i].sent() for i in exchanging]
        counts = [all_shards[i].received() for i in exchanging]
        parts = [torch.cat([of_one[r].reshape(-1) for of_one in sent]) for r in range(world)]
        received = _exchange_parts(parts, [builtins.sum(of_one[r] for of_one in counts) for r in range(world)], group)
        split = [block.split([of_one[r] for of_one in counts]) for r, block in enumerate(received)]
        for k, i in enumerate(exchanging):
            blocks[i] = [of_rank[k] for of_rank in split]
    parts = [part for shards, some in zip(all_shards, blocks, strict=True) for part in shards.parts(some)]
    mine = one.call.nodes_of_all(parts, outputs, one.accumulator, one.local.device)
    counts = [builtins.sum(shards.plan.counts[r] for shards in all_shards) for r in range(world)]
    table = _gather(mine, counts, group).view(-1, outputs)
    joins, last = _merged(tuple(shards.plan for shards in all_shards))
    whole = _joined(table, joins, one.call.operation.join)
    return whole.index_select(0, _numbers(last, whole))


@lru_cache(maxsize=16)
def _merged(plans: "tuple[_Plan, ...]") -> tuple[list[tuple[list[int], list[int]]], list[int]]:
    """The joins of several tables whose nodes stand rank by rank, and in each rank plan by plan; and the last rows."""
    world, rows, count = plans[0].world, [[] for _ in plans], 0
    for r in range(world):
        for plan, own in zip(plans, rows, strict=True):
            own += range(count, count + len(plan.nodes[r]))
            count += len(plan.nodes[r])
    joins = []
    for step in range(max(len(plan.joins) for plan in plans)):
        left, right = [], []
        for plan, own in zip(plans, rows, strict=True):
            if step < len(plan.joins):
                left += [own[row] for row in plan.joins[step][0]]
                right += [own[row] for row in plan.joins[step][1]]
        for plan, own in zip(plans, rows, strict=True):  # the rows that this step appends
            if step < len(plan.joins):
                own += range(count, count + len(plan.joins[step][0]))
                count += len(plan.joins[step][0])
        joins.append((left, right))
    return joins, [own[-1] for own in rows]


def _values_elsewhere(matrix, plan, rank, call, accumulator, group) -> list[Tensor]:
    """The nodes of this rank, where every element is sent to the rank that adds it. `matrix` is (outputs, elements)."""
    parts = []
    for (top, bottom), (first, last) in plan.shares:
        a, b = plan.before(rank, first), plan.before(rank, last)
        parts.append(matrix[top:bottom, a:b])
    (top, bottom), (first, last) = plan.shares[rank]
    rows = bottom - top
    begins = [plan.before(r, first) for r in range(plan.world)]
    widths = [plan.before(r, last) - begin for r, begin in enumerate(begins)]
    received = _exchange_parts(parts, [rows * width for width in widths], group)
    if rows == 0 or first == last:
        return []
    mine = torch.cat([block.view(rows, width) for block, width in zip(received, widths, strict=True)], 1)
    if plan.outer > 1:  # the ranks' elements alternate: where is each in `mine`?
        places = torch.arange(first, last, device=mine.device)
        block, place = places // plan.row, places % plan.row
        starts = _numbers(plan.starts[:-1], mine)
        owner = torch.searchsorted(starts, place, right=True) - 1
        held = _numbers([size * plan.inner for size in plan.sizes], mine)
        shift = [at - begin for at, begin in zip(accumulate([0] + widths[:-1]), begins, strict=True)]
        shift = _numbers(shift, mine)
        mine = mine.index_select(1, block * held[owner] + place - starts[owner] + shift[owner])
    values = []
    for level, index in plan.nodes[rank]:
        a = (index << level) * _CHUNK - first
        values.append(call.node(mine[:, a : a + (_CHUNK << level)], [1], accumulator))
    return values


def _common(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """What two intervals have in common; an empty interval inside the first where that is nothing."""
    first, last = max(a[0], b[0]), min(a[1], b[1])
    return (first, last) if first < last else (a[1], a[1])


# --- who adds what ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Plan:
    """Who sends and adds what: a pure function of what all ranks know, so that all have the same.

    An output's elements are counted from 0 in the contract's order. They come in `outer` rows; in each, rank r holds
    those from starts[r] to starts[r + 1], of which there are sizes[r] * inner.
    """

    sizes: tuple[int, ...]
    outer: int
    inner: int
    outputs: int
    starts: list[int]
    bounds: list[int]  # rank r adds elements bounds[r] to bounds[r + 1], unless the outputs are dealt out
    runs: list[list[tuple[int, int]]]  # of chunks that rank r adds, each without a gap and in one tensor
    nodes: list[list[tuple[int, int]]]  # (level, index) of the sums that rank r computes, in order
    by_outputs: bool  # each rank adds whole outputs
    realigns: bool  # each rank keeps the chunks that begin in it
    joins: list[tuple[list[int], list[int]]]

    @property
    def world(self) -> int:
        return len(self.sizes)

    @cached_property
    def row(self) -> int:
        return self.starts[-1]

    @cached_property
    def length(self) -> int:
        return self.outer * self.row

    @cached_property
    def chunks(self) -> int:
        return -(-self.length // _CHUNK)

    @cached_property
    def shares(self) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        """The outputs and the elements that each rank adds."""
        if self.by_outputs:
            cuts = _even(self.outputs, self.world)
            return [((a, b), (0, self.length)) for a, b in pairwise(cuts)]
        return [((0, self.outputs), (a, b)) for a, b in zip(self.bounds, self.bounds[1:], strict=False)]

    @cached_property
    def counts(self) -> list[int]:
        """How many accumulators each rank gives to the others."""
        return [len(nodes) * (b - a) for nodes, ((a, b), _) in zip(self.nodes, self.shares, strict=True)]

    def before(self, rank: int, position: int) -> int:
        """How many elements of an output rank `rank` holds that come before `position`."""
        row, place = divmod(position, self.row)
        held = self.starts[rank + 1] - self.starts[rank]
        return row * held + min(max(place - self.starts[rank], 0), held)


@lru_cache(maxsize=256)
def _plan(
    sizes: tuple[int, ...],
    outer: int,
    inner: int,
    outputs: int,
    item: int,
    accumulator: int,
    by_outputs: bool | None = None,
) -> _Plan:
    """The plan that sends the fewest bytes; `item` and `accumulator` are bytes of an element and of a node.

    It says itself whether outputs are dealt out, unless `by_outputs` does.
    """
    world = len(sizes)
    starts = list(accumulate((size * inner for size in sizes), initial=0))
    length = outer * starts[-1]
    chunks = -(-length // _CHUNK)
    held = [outer * (b - a) for a, b in pairwise(starts)]
    if outer == 1:
        bounds = [min(-(-start // _CHUNK) * _CHUNK, length) for start in starts]
        kept = [max(0, end - bound) for end, bound in zip(starts[1:], bounds, strict=False)]
    else:
        bounds = [min(cut * _CHUNK, length) for cut in _even(chunks, world)]
        kept = [0] * world
    added = [b - a for a, b in pairwise(bounds)]
    runs = []
    for rank, (a, b) in enumerate(pairwise(bounds)):
        cuts = [-(-a // _CHUNK), -(-b // _CHUNK)]
        if outer == 1 and b > max(a, starts[rank + 1]):  # the last chunk ends in another rank, and so in another tensor
            cuts.insert(1, cuts[1] - 1)
        runs.append([(c, d) for c, d in pairwise(cuts) if c < d])
    nodes = [[node for run in of_rank for node in _cover(*run, chunks)] for of_rank in runs]

    moved = max(max(h, a) - k for h, a, k in zip(held, added, kept, strict=True))
    here = moved * item + world * max(map(len, nodes)) * accumulator
    there = max(*held, -(-length // world)) * item + accumulator
    if by_outputs is None:
        by_outputs = outputs >= world and there < here
    if by_outputs:
        runs, nodes = [[(0, chunks)]] * world, [_cover(0, chunks, chunks)] * world
    joins = [] if by_outputs else _joins([node for of_rank in nodes for node in of_rank], chunks)
    realigns = outer == 1 and not by_outputs
    return _Plan(sizes, outer, inner, outputs, starts, bounds, runs, nodes, by_outputs, realigns, joins)


def _even(count: int, world: int) -> list[int]:
    """Where `count` things are cut so that all ranks have as many, or one less."""
    return [count * rank // world for rank in range(world + 1)]


def _cover(first: int, last: int, chunks: int) -> list[tuple[int, int]]:
    """The fewest nodes that make up the chunks from `first` to `last` of `chunks`, from left to right.

    Node (level, index) is the sum of the chunks from index * 2**level on, 2**level of them or as many as there are.
    """
    nodes = []
    while first < last:
        room = last - first
        level = (room - 1).bit_length() if last == chunks else room.bit_length() - 1
        if first:
            level = min(level, (first & -first).bit_length() - 1)
        nodes.append((level, first >> level))
        first += 1 << level
    return nodes


def _joins(nodes: list[tuple[int, int]], chunks: int) -> list[tuple[list[int], list[int]]]:
    """The joins of all nodes, level by level: the rows of left and of right neighbours in a growing table.

    The nodes are the table's first rows; each join appends one. The last row is then the sum.
    """
    top, rows, steps = (chunks - 1).bit_length(), len(nodes), []
    levels: list[list[tuple[int, int]]] = [[] for _ in range(top + 1)]
    for row, (level, index) in enumerate(nodes):
        levels[level].append((index, row))
    for level in range(top):
        here, left, right = dict(sorted(levels[level])), [], []
        for index, row in here.items():
            if index % 2:
                continue
            if index + 1 in here:
                left.append(row)
                right.append(here[index + 1])
                row = rows
                rows += 1
            levels[level + 1].append((index // 2, row))  # without a right neighbour it goes up as it is
        if left:
            steps.append((left, right))
    return steps


def _join(table: Tensor, joins: list[tuple[list[int], list[int]]], operator: str = "sum") -> Tensor:
    """(nodes, outputs) -> (outputs,): all nodes joined by an operator in the order of `joins`."""
    return _joined(table, joins, operator)[-1] if joins else table[0]


def _joined(table: Tensor, joins: list[tuple[list[int], list[int]]], operator: str) -> Tensor:
    """The table and what the joins append to it, a row each."""
    rows = [row for step in joins for side in step for row in side]
    if not rows:
        return table
    places = _numbers(rows, table)
    whole = torch.cat([table, table.new_empty(len(rows) // 2, table.shape[1])])
    used, made = 0, len(table)
    for left, _ in joins:
        count = len(left)
        pairs = whole.index_select(0, places[used : used + 2 * count]).view(2, count, -1)
        getattr(_ops, operator)(pairs, [0], dtype=table.dtype, out=whole[made : made + count])
        used, made = used + 2 * count, made + count
    return whole


def _numbers(values: Sequence[int], like: Tensor) -> Tensor:
    """Integers on the device of a tensor. The host waits for nothing."""
    return torch.tensor(values, device=like.device) if _traced(like) else _ops._numbers(values, like)


def _product(numbers) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


# --- accumulators and results ----------------------------------------------------------------------------------------


def _accumulator(source: torch.dtype, result: torch.dtype) -> torch.dtype:
    """The dtype in which elements are added: the table of docs/order.md."""
    if result == torch.bool:
        return torch.bool
    if not _is_inexact(result):
        return torch.int64
    if not _is_inexact(source):
        return torch.float64 if source.itemsize == 8 else torch.int64
    wide = torch.float64 in (_COMPLEX_PART.get(source, source), _COMPLEX_PART.get(result, result))
    if source.is_complex and result.is_complex:
        return torch.complex128 if wide else torch.complex64
    return torch.float64 if wide else torch.float32


def _is_inexact(dtype: torch.dtype) -> bool:
    """Whether its additions round, and so show their order; and whether gradients flow."""
    return dtype.is_floating_point or dtype.is_complex


def _finish(total: Tensor, count: int | None, dtype: torch.dtype) -> Tensor:
    """Last nodes in the accumulator's dtype -> results: divided once by `count` if there is one, and rounded once."""
    if count is not None:
        total = _quotient(total, count)
    if total.dtype == torch.int64 and _is_inexact(dtype):
        total = _double(total, dtype)
    return torch_reduce.sum(total[None], 0, dtype=dtype)  # of one element: the operator's own rounding


def _quotient(total: Tensor, count: int) -> Tensor:
    """`total` over `count`, in its own precision: integers in float64, complex numbers by component.

    A float32 is divided in float64: rounded from there to float32, a quotient is what a division in float32 gives. And
    the count is a tensor, since torch multiplies by the reciprocal of a number.
    """
    if total.is_complex():
        return torch.view_as_complex(_quotient(torch.view_as_real(total), count))
    if total.dtype == torch.float32:
        (count,) = struct.unpack("f", struct.pack("f", count))
        wide = torch_reduce.sum(total[None], 0, dtype=torch.float64)
        return torch_reduce.sum((wide / torch.full_like(wide, count))[None], 0, dtype=torch.float32)
    total = total.to(torch.float64)
    return total / torch.full_like(total, count)


def _double(whole: Tensor, dtype: torch.dtype) -> Tensor:
    """int64 -> float64, of which the nearest in `dtype` is the integer's: what is cut off leaves an odd bit."""
    nearest = whole.to(torch.float64)
    if dtype in (torch.float64, torch.complex128):
        return nearest
    odd = (whole >> 11 | (whole & 2047 != 0)).to(torch.float64) * 2048
    return torch.where(nearest.abs() < 2.0**53, nearest, odd)


# --- sums over ranks -------------------------------------------------------------------------------------------------


def all_reduce(
    tensor: Tensor, group: dist.ProcessGroup | None = None, async_op: bool = False, *, check: bool = True
) -> "Work | None":
    """Puts the sum of the ranks' tensors into ``tensor``, as ``torch.distributed.all_reduce`` does, with fixed bits.

    Element by element, the ranks' values are joined pairwise in rank order, nearest neighbours first, level by level,
    as docs/order.md joins lane sums; in the accumulator's precision (float32 for 8 and 16-bit floats), and rounded
    once. The result depends on the values and their ranks alone: not on the backend, the network, or where an element
    lies.

    Args:
        tensor: of the same shape and dtype on every rank, any dtype that :func:`torch_reduce.sum` takes; written in
            place. Its strides may differ from rank to rank. Integers wrap, and bools are "any".
        group: the ranks; by default all.
        async_op: whether to return at once. The exchange is then begun, and ``wait()`` of what is returned does the
            rest, so all ranks must wait for their works in the same order.
        check: whether the ranks check first that they agree about shape, dtype and device; that takes one all_gather of
            48 bytes a rank, for which the host waits. Without it, what happens if they disagree is the backend's
            affair, which may be a crash or a hang.

    Returns:
        None, or a :class:`Work` with ``async_op``.

    Raises:
        ValueError: this rank is not in ``group``.
        RuntimeError: the ranks disagree; all name who has what. Or ``group`` has no backend for ``tensor``'s device.
            Or a rank has ended: the backend's error.
    """
    _place("all_reduce", group)
    facts = {"function": "all_reduce", "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    _check("all_reduce", facts, {"tensor": tensor}, None, group, check)
    return _all_reduce(tensor, group, False, async_op)


def reduce_scatter(
    output: Tensor,
    input: Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool = True,
) -> "Work | None":
    """Puts a piece of the sum of the ranks' ``input`` into each ``output``, as ``reduce_scatter_tensor`` does.

    The bits are those of :func:`all_reduce`.

    Args:
        output: this rank's piece of the sum, written in place: of ``input``'s dtype, of any strides.
        input: as many elements as all outputs together, whose pieces follow each other in logical order.
        group: as for :func:`all_reduce`.
        async_op: as for :func:`all_reduce`.
        check: as for :func:`all_reduce`.

    Returns:
        None, or a :class:`Work` with ``async_op``.

    Raises:
        ValueError: the sizes, dtypes or devices of ``output`` and ``input`` do not fit; this rank is not in ``group``.
            With ``check`` the other ranks then raise a RuntimeError that names this rank.
        RuntimeError: as :func:`all_reduce`.
    """
    world, _ = _place("reduce_scatter", group)
    error = None
    if input.numel() != world * output.numel() or input.dtype != output.dtype:
        error = ValueError(
            f"reduce_scatter(): 'input' must have {world} times as many elements as 'output', of one dtype, but they "
            f"are {_shown(input)} and {_shown(output)}"
        )
    facts = {"function": "reduce_scatter", "elements of 'output'": output.numel(), "dtype": str(input.dtype)}
    _check("reduce_scatter", facts, {"input": input, "output": output}, error, group, check)
    return _reduce_scatter(output, input, group, False, async_op)


def _check(
    name: str, facts: dict[str, Any], tensors: dict[str, Tensor], error: Exception | None, group: Any, tells: bool
) -> None:
    """Raises an error that is known, or one of the tensors' devices; if it tells the other ranks, theirs too."""
    first, device = next((argument, tensor.device) for argument, tensor in tensors.items())
    try:
        for argument, tensor in tensors.items():
            _check_device(name, argument, tensor.device, group)
            if tensor.device != device:
                raise ValueError(f"{name}(): '{argument}' is on {tensor.device}, but '{first}' on {device}")
    except Exception as raised:
        error = error or raised
    if tells:
        _agree(name, facts | {"device": _kind_of(device, group)}, error, 0, group, device)
    elif error:
        raise error


class Work:
    """What an asynchronous call returns: the exchange is under way, and :meth:`wait` adds and finishes.

    On a GPU the host does not wait: :meth:`wait` puts what is left on the current stream, after the exchange.
    """

    def __init__(self, begun: dist.Work, received: Tensor, rest: Callable[[Tensor], None]):
        self._begun, self._received, self._rest = begun, received, rest

    def wait(self) -> bool:
        """Finishes the call; all ranks must do so in the same order. A second time it does nothing.

        Returns:
            True.

        Raises:
            RuntimeError: a rank has ended, or the group's timeout is over: the backend's error.
        """
        if self._rest is not None:
            self._begun.wait()
            rest, received, self._rest, self._received = self._rest, self._received, None, None
            if received.is_cuda and not _traced(received):  # its memory may belong to another stream than this one
                received.record_stream(torch.cuda.current_stream(received.device))
            rest(received)
        return True

    def is_completed(self) -> bool:
        """Whether :meth:`wait` has finished the call."""
        return self._rest is None


def _all_reduce(tensor: Tensor, group: Any, averages: bool, async_op: bool) -> Work | None:
    """Every rank adds one piece of all tensors, and gives it to the others."""
    world, rank = _place("all_reduce", group)
    cuts = _even(tensor.numel(), world)
    counts = [b - a for a, b in pairwise(cuts)]

    def rest(received: Tensor) -> None:
        sums, whole = _over_ranks(received.view(world, -1), averages), tensor.detach()
        if min(counts) == max(counts) and _is_plain(whole):
            _gather(sums, counts, group, whole.view(-1))
        else:
            whole.copy_(_gather(sums, counts, group).view(whole.shape))

    return _begin(tensor, counts, [counts[rank]] * world, group, rest, async_op)


def _reduce_scatter(output: Tensor, input: Tensor, group: Any, averages: bool, async_op: bool) -> Work | None:
    """Every rank adds its piece of all inputs."""
    world, _ = _place("reduce_scatter", group)
    counts = [output.numel()] * world

    def rest(received: Tensor) -> None:
        output.detach().copy_(_over_ranks(received.view(world, -1), averages).view(output.shape))

    return _begin(input, counts, counts, group, rest, async_op)


def _begin(
    tensor: Tensor, sent: list[int], counts: list[int], group: Any, rest: Callable[[Tensor], None], async_op: bool
) -> Work | None:
    """Exchanges the elements of a tensor, and does the `rest` with what comes: now, or when the work is waited for."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    begun, received = _exchange(flat, sent, counts, group)
    work = Work(begun, received, rest)
    if async_op:
        return work
    work.wait()
    return None


def _is_plain(tensor: Tensor) -> bool:
    """Whether a message can be received as the tensor's elements, in their order."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or _traced(tensor))


def _over_ranks(rows: Tensor, averages: bool) -> Tensor:
    """(ranks, n) -> (n,): the sum or the mean, joined pairwise in rank order."""
    world, dtype = len(rows), rows.dtype
    if world <= _LANES:  # each is a lane, and lanes are joined pairwise
        return (torch_reduce.mean if averages else torch_reduce.sum)(rows, 0, dtype=dtype)
    accumulator = _accumulator(dtype, dtype)
    while len(rows) > 1:
        rows = torch.stack([torch_reduce.sum(run, 0, dtype=accumulator) for run in rows.split(_LANES)])
    return _finish(rows[0], world if averages else None, dtype)


# --- in training -----------------------------------------------------------------------------------------------------


def ddp_hook(state: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """A communication hook that averages the gradients of ``DistributedDataParallel`` in the order of the ranks.

    It is registered by ``model.register_comm_hook(group, torch_reduce.distributed.ddp_hook)``. A gradient becomes the
    ranks' gradients joined pairwise in rank order, divided once by their number, and rounded once; DDP itself divides
    first, and adds as the backend likes.

    Args:
        state: the ranks; None for all.
        bucket: the gradients that DDP gives it, flat: of float16, bfloat16, float32 or float64.

    Returns:
        A future that is completed, with the bucket's tensor, which holds the averages: on a GPU for whoever asks the
        future for it. There the work is on a stream of its own, beside the backward pass.

    Raises:
        RuntimeError: a rank has ended: the backend's error.
    """
    buffer = bucket.buffer()
    if not buffer.is_cuda:
        _all_reduce(buffer, state, True, False)
        future = torch.futures.Future()
        future.set_result(buffer)
        return future
    stream = torch.cuda.Stream(buffer.device)  # so that the backward pass goes on meanwhile
    stream.wait_stream(torch.cuda.current_stream(buffer.device))
    with torch.cuda.stream(stream):
        _all_reduce(buffer, state, True, False)
        buffer.record_stream(stream)
        future = torch.futures.Future(devices=[buffer.device])
        future.set_result(buffer)  # whoever asks for it waits for this stream
    return future


class FSDPReduceScatter:
    """What ``module.set_custom_reduce_scatter`` takes, for modules under ``torch.distributed.fsdp.fully_shard``.

    Gradients are then added pairwise in rank order, as :func:`reduce_scatter` adds them, and averaged by one division
    before the one rounding. It holds for the module that it is given to, so every module under ``fully_shard`` needs
    one. With float16 gradients torch divides itself, in part before and in part after. A second sum, over the
    replicas of a two-dimensional mesh, is torch's own. It has torch's protocol ``ReduceScatter``: ``allocate``, and a
    call.
    """

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for a message of ``size`` elements."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Work | None:
        """Adds or averages: ``op`` is SUM or AVG.

        Raises:
            ValueError: another ``op``, such as the one that ``set_gradient_divide_factor`` asks for.
        """
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"FSDPReduceScatter: 'op' must be SUM or AVG, not {op}")
        return _reduce_scatter(output_tensor, input_tensor, group, op == dist.ReduceOp.AVG, async_op)


# --- messages --------------------------------------------------------------------------------------------------------


def _place(name: str, group: Any) -> tuple[int, int]:
    """The number of ranks of a group, and this one's number in it."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{name}(): this process is not in the group")
    return world, rank


def _backends(group: Any) -> dict[str, str]:
    """The backend of each type of device."""
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


def _check_device(name: str, argument: str, device: torch.device, group: Any) -> None:
    backends = _backends(group)
    if device.type not in backends:
        known = ", ".join(f"{type}:{backend}" for type, backend in backends.items())
        raise RuntimeError(f"{name}(): '{argument}' is on {device}, for which the group has no backend; it has {known}")


def _kind_of(device: torch.device, group: Any) -> str:
    """What ranks must have in common of their devices, so that their messages meet."""
    return "any" if len(set(_backends(group).values())) == 1 else device.type


def _carrier(device: torch.device, group: Any) -> torch.device:
    """Where numbers of the host are sent from: the CPU if it has a backend; it need not be where a rank's data are."""
    backends = _backends(group)
    if "cpu" in backends:
        return torch.device("cpu")
    return device if device.type in backends else torch.device(next(iter(backends)))


def _bytes(flat: Tensor) -> Tensor:
    """A contiguous tensor's bytes: backends do not know all dtypes. Of one element, its stride may be anything."""
    return (flat if flat.stride(0) == 1 else flat.as_strided(flat.shape, (1,))).view(torch.uint8)


def _traced(tensor: Tensor) -> bool:
    """Whether a graph is being made, in which only functional collectives can stand: of DTensors, by torch.compile."""
    return type(tensor) is not Tensor


class _Done:
    """The work of a functional collective: the graph itself says what waits for it."""

    def wait(self) -> bool:
        return True


def _exchange(flat: Tensor, sent: list[int], counts: list[int], group: Any) -> "tuple[dist.Work | _Done, Tensor]":
    """Begins to send the elements of `flat`, sent[r] of them to rank r, and to receive counts[r] from rank r."""
    item = flat.itemsize
    sizes = [count * item for count in counts], [count * item for count in sent]
    if _traced(flat):
        received = _functional.all_to_all_single(_bytes(flat), *sizes, group.group_name)
        return _Done(), _functional.wait_tensor(received).view(flat.dtype)
    received = flat.new_empty(builtins.sum(counts))
    return dist.all_to_all_single(_bytes(received), _bytes(flat), *sizes, group=group, async_op=True), received


def _exchange_parts(parts: list[Tensor], counts: list[int], group: Any) -> tuple[Tensor, ...]:
    """Sends parts[r], of any shape, to rank r; returns what each rank has sent here, counts[r] elements from rank r."""
    flat = torch.cat([part.reshape(-1) for part in parts])
    work, received = _exchange(flat, [int(part.numel()) for part in parts], counts, group)
    work.wait()
    return received.split(counts)


def _gather(mine: Tensor, counts: list[int], group: Any, into: Tensor | None = None) -> Tensor:
    """The ranks' elements one after the other, counts[r] from rank r; on the way all are as long as the longest.

    They are written `into` a tensor, if there is one: then all counts are the same.
    """
    longest = max(counts)
    padded = torch.cat([mine, mine.new_empty(longest - len(mine))]) if len(mine) < longest else mine.contiguous()
    if _traced(mine):
        rows = _functional.all_gather_into_tensor(_bytes(padded), len(counts), group.group_name)
        rows = _functional.wait_tensor(rows).view(mine.dtype).view(len(counts), longest)
    else:
        rows = mine.new_empty(len(counts), longest) if into is None else into.view(len(counts), longest)
        dist.all_gather_into_tensor(_bytes(rows.view(-1)), _bytes(padded), group=group)
    if min(counts) == longest:
        return rows.view(-1)
    return torch.cat([row[:count] for row, count in zip(rows, counts, strict=True)])


def _agree(
    name: str, facts: dict[str, Any] | None, error: Exception | None, size: int, group: Any, device: torch.device
) -> tuple[list[int], list[int] | None]:
    """The sizes of all ranks, and the order of the reduced dims, once all ranks are known to have the same `facts`.

    One all_gather of a size and a digest says whether all is well. Only where it is not, a second one shows the facts,
    or what a rank has raised: all ranks see the same, so that all raise.
    """
    world, _ = _place(name, group)
    text = json.dumps({"error": f"{type(error).__name__}: {error}"} if error else facts).encode()
    device = _carrier(device, group)
    digest = struct.unpack("<4q", hashlib.sha256(text).digest())
    mine = torch.tensor([size, len(text), *digest], dtype=torch.int64, device=device)
    table = _gather(mine, [len(mine)] * world, group).view(world, -1).tolist()
    sizes = [row[0] for row in table]
    if error is None and builtins.all(row[2:] == table[0][2:] for row in table):
        return sizes, facts.get("order")
    counts = [row[1] for row in table]
    texts = _gather(torch.tensor(list(text), dtype=torch.uint8, device=device), counts, group).cpu().split(counts)
    told = [json.loads(bytes(text.tolist())) for text in texts]
    if error is not None:
        raise error
    if failed := [rank for rank, facts in enumerate(told) if "error" in facts]:
        raise RuntimeError(f"{name}(): {_ranks(failed)} failed: {told[failed[0]]['error']}")
    for what in facts:
        if what != "order":
            _compare(name, what, {rank: facts.get(what) for rank, facts in enumerate(told)})
    orders = {rank: facts["order"] for rank, facts in enumerate(told) if sizes[rank] >= min(2, max(sizes))}
    _compare(name, "order of the reduced dims in memory", orders)
    return sizes, next(iter(orders.values()))


@dataclass(frozen=True)
class _Places:
    """Which of some numbers each rank of a group has, of which all have the same."""

    group: Any
    counts: list[int]  # of each rank
    places: list[int]  # rank by rank
    wide: bool  # the numbers are float64, and float32 otherwise

    @classmethod
    def agreed(
        cls, name: str, facts: dict[str, Any], places: list[int], wide: bool, error: Any, group: Any, device: Any
    ) -> "_Places":
        """The ranks tell each other, or the error that one of them has."""
        counts, _ = _agree(name, facts, error, len(places), group, device)
        mine = [2 * place + wide for place in places]
        told = _gather(torch.tensor(mine, dtype=torch.int64, device=_carrier(device, group)), counts, group).tolist()
        return cls(group, counts, [one // 2 for one in told], builtins.any(one % 2 for one in told))

    def in_order(self, mine: Tensor) -> Tensor:
        """All ranks' numbers in the order of their places, on the device of this rank's; a place counts once."""
        known = mine.device.type in _backends(self.group)
        carried = mine.to(
            mine.device if known else _carrier(mine.device, self.group), torch.float64 if self.wide else torch.float32
        )
        gathered = _gather(carried, self.counts, self.group)
        rows: dict[int, int] = {}
        for row, place in enumerate(self.places):
            rows.setdefault(place, row)
        chosen = [row for _, row in sorted(rows.items())]
        return gathered.index_select(0, _numbers(chosen, gathered)).to(mine.device)


def _compare(name: str, what: str, values: dict[int, Any]) -> None:
    """Raises an error that names the ranks if the values of the ranks are not all the same."""
    ranks: dict[str, list[int]] = {}
    for rank, value in values.items():
        ranks.setdefault(str(value).replace("'", ""), []).append(rank)
    if len(ranks) > 1:
        who = "; ".join(f"{value} on {_ranks(of)}" for value, of in ranks.items())
        raise RuntimeError(f"{name}(): the ranks disagree about the {what}: {who}")


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f", and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {shown}"


def _shown(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
