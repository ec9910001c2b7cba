"""Reductions of a sharded dimension and sums over the ranks of torch.distributed, with bits that no cut changes.

``sum``, ``mean``, the norms and the other functions of torch_reduce's names reduce a tensor that is cut along one
dimension, a shard per rank: every rank gets the bits that torch_reduce's function gives for the whole tensor, at any
number of ranks and wherever the cuts are. ``all_reduce`` and ``reduce_scatter`` add the ranks' tensors pairwise in rank
order, whatever the backend and the network; ``ddp_hook`` and ``FSDPReduceScatter`` bring that to
DistributedDataParallel and to ``fully_shard``.

All functions are collective: every rank of the group calls them, with the same arguments but for the data.
docs/distributed.md says what is exchanged, and what it costs.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import torch_reduce

from . import _arguments, _messages, _operations, _rank_plan, _sharded
from ._graphs import between_graphs

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

_, _LANES, _ = torch.ops.gpureduce._order()


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
        sizes: the sizes of all shards along ``shard_dim``, in elements, one per rank. By default the ranks tell each
            other, and check that they agree on everything else; that takes one all_gather of 256 bytes per rank, for
            which the host waits. With ``sizes`` nothing is checked.

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
        ValueError: ``sizes`` are not one per rank, or not ``x``'s on this one; this rank is not in ``group``.
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
    return _reduce(_operator("vector_norm", "norm", ord), x, dim, keepdim, dtype, group, shard_dim, sizes)


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
    return _reduce(_operator("powsum", "powsum", ord), x, dim, keepdim, dtype, group, shard_dim, sizes)


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

    What is sent are pairs, the largest exponent and a sum: as many as a sum sends numbers.

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
    return _reduce_as("var_mean", x, dim, keepdim, None, group, shard_dim, sizes, correction=correction)


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
    return _reduce_as("var", x, dim, keepdim, None, group, shard_dim, sizes, correction=correction)[0]


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
    return _reduce_as("std", x, dim, keepdim, None, group, shard_dim, sizes, correction=correction)[0]


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
    return _reduce_as("weighted_sum", x, dim, keepdim, dtype, group, shard_dim, sizes, weight=weight)


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
    return _reduce_as("dot", x, None, False, dtype, group, 0, sizes, weight=other)


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
    return _reduce_as("segment_sum", x, dim, True, dtype, group, dim, sizes, offsets=offsets)


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
    return _reduce_as("segment_mean", x, dim, True, dtype, group, dim, sizes, offsets=offsets)


def _operator(name: str, kind: str, ord: Any) -> str:
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        raise TypeError(f"{name}(): 'ord' must be a number, not {type(ord).__name__}")
    known = _operations.of_orders(kind)
    if float(ord) not in known:
        orders = ", ".join(f"{order:g}" for order in known)
        raise NotImplementedError(f"{name}(): 'ord' must be one of {orders}, but it is {ord}")
    return known[float(ord)]


@between_graphs
def _reduce(name: str, x: Tensor, dim: Any, *arguments: Any) -> Tensor:
    if name in ("_any", "_all") and isinstance(dim, (tuple, list)) and not dim:  # no dim is reduced
        return getattr(torch.ops.gpureduce, name[1:])(x, dim)
    return _sharded.reduce_shards(_sharded.Call, _operations.known()[name], x, dim, *arguments)


@between_graphs
def _reduce_as(title: str, *arguments: Any, **more: Any) -> Any:
    """Of an operation that has a kind of call of its own."""
    kind, operation = _sharded.kind_of_call(title)
    return _sharded.reduce_shards(kind, operation, *arguments, **more)


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
        check: whether the ranks check first that they agree about function, shape, dtype and device; that takes one
            all_gather of 256 bytes per rank. The host waits for it, but on a group with NCCL alone only at the first
            call of its kind: then the GPUs compare. Without it, what happens if the ranks disagree is the backend's
            affair, which may be a crash or a hang.

    Returns:
        None, or a :class:`Work` with ``async_op``.

    Raises:
        TypeError: ``tensor`` is no tensor, or ``group`` no group.
        ValueError: this rank is not in ``group``.
        NotImplementedError: ``tensor`` is sparse, or of a dtype that :func:`torch_reduce.sum` does not take.
        RuntimeError: the ranks disagree; all name who has what. Or ``group`` has no backend for ``tensor``'s device.
            Or a rank has ended: the backend's error. Where GPUs compare, a disagreement is a device-side assertion that
            fails, as late as all of CUDA's errors, and ends this process's work on the GPU. Its text on stderr names
            who has what, and so does the RuntimeError of the next call of a function of this module on ``group``.
    """
    _arguments.tensors("all_reduce", tensor=tensor)
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
        TypeError, NotImplementedError, RuntimeError: as :func:`all_reduce`.
    """
    _arguments.tensors("reduce_scatter", output=output, input=input)
    (world, _), error = _messages.place("reduce_scatter", group), None
    if input.numel() != world * output.numel() or input.dtype != output.dtype:
        error = ValueError(
            f"reduce_scatter(): 'input' must have {world} times as many elements as 'output', of one dtype, but they "
            f"are {_messages.shown(input)} and {_messages.shown(output)}"
        )
    facts = {"function": "reduce_scatter", "elements of 'output'": output.numel(), "dtype": str(input.dtype)}
    _check("reduce_scatter", facts, {"input": input, "output": output}, error, group, check)
    return _reduce_scatter(output, input, group, False, async_op)


@between_graphs
def _check(
    name: str, facts: dict[str, Any], tensors: dict[str, Tensor], error: Exception | None, group: Any, tells: bool
) -> None:
    """Raises an error that is known, or one of the tensors' devices; if it tells the other ranks, theirs too.

    On a GPU it begins to, if the ranks have agreed on this call before.
    """
    world, _ = _messages.place(name, group)
    tells = tells and world > 1
    call = name, *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors.values())
    if tells and not error and _messages.agreements_of(group).renew(call, group):
        return
    first, device = next((argument, tensor.device) for argument, tensor in tensors.items())
    try:
        for argument, tensor in tensors.items():
            if refusal := _refusal(tensor.dtype, tensor.layout):
                raise NotImplementedError(f"{name}(): '{argument}' {refusal}")
            _messages.check_device(name, argument, tensor.device, group)
            if tensor.device != device:
                raise ValueError(f"{name}(): '{argument}' is on {tensor.device}, but '{first}' on {device}")
    except Exception as raised:
        error = error or raised
    if tells:
        facts = facts | {"device": _messages.kind_of(device, group)}
        _messages.agree(name, facts, error, 0, group, device)
        _messages.agreements_of(group).remember(call, facts, group, device)
    elif error:
        raise error


@cache
def _refusal(dtype: torch.dtype, layout: torch.layout) -> str | None:
    """Why the tensors of ranks cannot be added, before anything is sent; or None."""
    if layout is not torch.strided:
        return f"must be dense, but its layout is {layout}"
    try:
        torch.ops.gpureduce.sum(torch.empty(1, dtype=dtype, device="meta"))
    except NotImplementedError:
        return f"has a dtype that sum() does not take: {dtype}"
    return None


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
            if received.is_cuda and not _messages.traced(received):  # its memory may belong to another stream
                received.record_stream(torch.cuda.current_stream(received.device))
            rest(received)
        return True

    def is_completed(self) -> bool:
        """Whether :meth:`wait` has finished the call."""
        return self._rest is None


@between_graphs
def _all_reduce(tensor: Tensor, group: Any, averages: bool, async_op: bool) -> Work | None:
    """Every rank adds one piece of all tensors, and gives it to the others."""
    world, rank = _messages.place("all_reduce", group)
    cuts = _rank_plan.even(tensor.numel(), world)
    counts = [b - a for a, b in pairwise(cuts)]

    def rest(received: Tensor) -> None:
        sums, whole = _over_ranks(received.view(world, -1), averages), tensor.detach()
        if min(counts) == max(counts) and _is_plain(whole):
            _messages.gather(sums, counts, group, whole.view(-1))
        else:
            whole.copy_(_messages.gather(sums, counts, group).view(whole.shape))

    return _begin(tensor, counts, [counts[rank]] * world, group, rest, async_op)


@between_graphs
def _reduce_scatter(output: Tensor, input: Tensor, group: Any, averages: bool, async_op: bool) -> Work | None:
    """Every rank adds its piece of all inputs."""
    world, _ = _messages.place("reduce_scatter", group)
    counts = [output.numel()] * world

    def rest(received: Tensor) -> None:
        output.detach().copy_(_over_ranks(received.view(world, -1), averages).view(output.shape))

    return _begin(input, counts, counts, group, rest, async_op)


def _begin(
    tensor: Tensor, sent: list[int], counts: list[int], group: Any, rest: Callable[[Tensor], None], async_op: bool
) -> Work | None:
    """Exchanges the elements of a tensor, and does the `rest` with what comes: now, or when the work is waited for."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    begun, received = _messages.exchange(flat, sent, counts, group, later=async_op)
    if async_op:
        return Work(begun, received, rest)
    rest(received)
    return None


def _is_plain(tensor: Tensor) -> bool:
    """Whether a message can be received as the tensor's elements, in their order."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or _messages.traced(tensor))


def _over_ranks(rows: Tensor, averages: bool) -> Tensor:
    """(ranks, n) -> (n,): the sum or the mean, joined pairwise in rank order."""
    world, dtype = len(rows), rows.dtype
    if world <= _LANES:  # each is a lane, and lanes are joined pairwise
        return (torch_reduce.mean if averages else torch_reduce.sum)(rows, 0, dtype=dtype)
    accumulator = _operations.node_dtype("sum", dtype, dtype)
    while len(rows) > 1:
        rows = torch.stack([torch_reduce.sum(run, 0, dtype=accumulator) for run in rows.split(_LANES)])
    return torch.ops.gpureduce._finish(rows[0], "mean" if averages else "sum", world, dtype)


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
