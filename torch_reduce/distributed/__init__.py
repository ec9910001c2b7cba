"""Reductions of tensors that are cut over the ranks of torch.distributed, and sums over ranks: no cut changes a bit.

A ``Shard`` is this rank's part of a tensor that is cut along one dim. ``torch_reduce.sum``, ``mean``, the norms and the
other functions of torch_reduce take it as they take a tensor, and every rank gets the bits that the function gives for
the whole tensor, at any number of ranks and wherever the cuts are. ``all_reduce`` and ``reduce_scatter`` add the ranks'
tensors pairwise in rank order, whatever the backend and the network; ``leaf_sum`` adds several parts of each rank, with
the same bits on another number of ranks that have the same parts; ``ddp_hook`` and ``FSDPReduceScatter`` bring that
to DistributedDataParallel and to ``fully_shard``.

All calls are collective: every rank of the group makes them, with the same arguments but for the data.
docs/distributed.md says what is exchanged, and what it costs.

``sum(x, ..., shard_dim=0)`` and the others of torch_reduce's names are older names for calls on a Shard.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _arguments, _family, _operations, _segment, _sum
from .. import _rows as _functions_of_rows
from .. import _variance as _variances
from .. import _weighted as _products
from .._graphs import between_graphs
from . import _leaves, _messages, _rank_plan, _symmetric
from . import _rows as _rows  # what functions do with a Shard: it enters by itself
from ._shard import Shard

__all__ = [
    "FSDPReduceScatter",
    "Shard",
    "all",
    "all_reduce",
    "all_reduce_rms_norm",
    "amax",
    "amin",
    "any",
    "count_nonzero",
    "ddp_hook",
    "dot",
    "leaf_sum",
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


# --- older names -----------------------------------------------------------------------------------------------------
# Of reductions of Shards, for one version more. The forms say how they are called; no form is ever called itself.

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Group: TypeAlias = dist.ProcessGroup | None
_Sizes: TypeAlias = Sequence[int] | None


def _older(made: Callable[..., Any], form: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """A function of torch_reduce for a Shard whose parts are arguments beside the others."""
    name, signature = made.__name__, inspect.signature(form)

    @between_graphs
    def function(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        x, group, sizes = given.pop("x"), given.pop("group", None), given.pop("sizes", None)
        dim = given.pop("shard_dim") if "shard_dim" in signature.parameters else given.get("dim", 0)
        if "weight" in given:  # the dim counts dims of the common shape
            with suppress(TypeError, RuntimeError):  # the function that is called has its own
                x, _ = torch.broadcast_tensors(x, given["weight"])
        return made(Shard(x, dim, group, sizes), **given)

    function.__name__ = function.__qualname__ = name
    function.__signature__, function.__annotations__ = signature, form.__annotations__  # type: ignore[attr-defined]
    cut = next((dim for dim in ("shard_dim", "dim") if dim in signature.parameters), "0")
    function.__doc__ = (
        f"``torch_reduce.{name}`` of ``Shard(x, {cut}, group, sizes)``: an older name, for one version more."
        f"\n\nArgs and errors: as for :func:`torch_reduce.{name}` and :class:`Shard`."
    )
    return function


def _to(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    group: _Group = None,
    shard_dim: int,
    sizes: _Sizes = None,
) -> Tensor:
    raise NotImplementedError


def _summation(
    x: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    exact: bool = False,
    group: _Group = None,
    shard_dim: int,
    sizes: _Sizes = None,
) -> Tensor:
    raise NotImplementedError


def _plain(
    x: Tensor, dim: Any = None, keepdim: bool = False, *, group: _Group = None, shard_dim: int, sizes: _Sizes = None
) -> Tensor:
    raise NotImplementedError


def _norm(
    x: Tensor,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    exact: bool = False,
    group: _Group = None,
    shard_dim: int,
    sizes: _Sizes = None,
) -> Tensor:
    raise NotImplementedError


def _variance(
    x: Tensor,
    dim: Any = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
    group: _Group = None,
    shard_dim: int,
    sizes: _Sizes = None,
) -> Tensor:
    raise NotImplementedError


def _variance_and_mean(
    x: Tensor,
    dim: Any = None,
    *,
    correction: float | None = 1,
    keepdim: bool = False,
    group: _Group = None,
    shard_dim: int,
    sizes: _Sizes = None,
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError


def _weighted(
    x: Tensor,
    weight: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    exact: bool = False,
    group: _Group = None,
    shard_dim: int,
    sizes: _Sizes = None,
) -> Tensor:
    raise NotImplementedError


def _dot(
    x: Tensor, other: Tensor, *, dtype: Any = None, exact: bool = False, group: _Group = None, sizes: _Sizes = None
) -> Tensor:
    raise NotImplementedError


def _segments(
    x: Tensor, offsets: Tensor, dim: int = 0, *, dtype: Any = None, group: _Group = None, sizes: _Sizes = None
) -> Tensor:
    raise NotImplementedError


def _segment_sums(
    x: Tensor,
    offsets: Tensor,
    dim: int = 0,
    *,
    dtype: Any = None,
    exact: bool = False,
    group: _Group = None,
    sizes: _Sizes = None,
) -> Tensor:
    raise NotImplementedError


all = _older(_family.all, _plain)
amax = _older(_family.amax, _plain)
amin = _older(_family.amin, _plain)
any = _older(_family.any, _plain)
count_nonzero = _older(_family.count_nonzero, _plain)
dot = _older(_products.dot, _dot)
logsumexp = _older(_family.logsumexp, _plain)
mean = _older(_sum.mean, _summation)
nansum = _older(_family.nansum, _summation)
powsum = _older(_sum.powsum, _norm)
prod = _older(_family.prod, _to)
segment_mean = _older(_segment.segment_mean, _segments)
segment_sum = _older(_segment.segment_sum, _segment_sums)
std = _older(_variances.std, _variance)
sum = _older(_sum.sum, _summation)
var = _older(_variances.var, _variance)
var_mean = _older(_variances.var_mean, _variance_and_mean)
vector_norm = _older(_sum.vector_norm, _norm)
weighted_sum = _older(_products.weighted_sum, _weighted)


# --- sums over ranks -------------------------------------------------------------------------------------------------


def all_reduce(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool = True,
    exact: bool = False,
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
        exact: whether each element is the number nearest to the exact sum of the ranks' values, as with ``exact=True``
            of :func:`torch_reduce.sum`: then the order of the ranks does not show either.

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
    _arguments.boolean("all_reduce", "exact", exact)
    facts = {"function": _told("all_reduce", exact), "shape": list(tensor.shape), "dtype": str(tensor.dtype)}
    _check("all_reduce", facts, {"tensor": tensor}, None, group, check)
    return _all_reduce(tensor, group, False, async_op, exact)


def reduce_scatter(
    output: Tensor,
    input: Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    check: bool = True,
    exact: bool = False,
) -> "Work | None":
    """Puts a piece of the sum of the ranks' ``input`` into each ``output``, as ``reduce_scatter_tensor`` does.

    The bits are as :func:`all_reduce` gives them.

    Args:
        output: this rank's piece of the sum, written in place: of ``input``'s dtype, of any strides.
        input: as many elements as all outputs together, whose pieces follow each other in logical order.
        group: as for :func:`all_reduce`.
        async_op: as for :func:`all_reduce`.
        check: as for :func:`all_reduce`.
        exact: as for :func:`all_reduce`.

    Returns:
        None, or a :class:`Work` with ``async_op``.

    Raises:
        ValueError: the sizes, dtypes or devices of ``output`` and ``input`` do not fit; this rank is not in ``group``.
            With ``check`` the other ranks then raise a RuntimeError that names this rank.
        TypeError, NotImplementedError, RuntimeError: as :func:`all_reduce`.
    """
    _arguments.tensors("reduce_scatter", output=output, input=input)
    _arguments.boolean("reduce_scatter", "exact", exact)
    (world, _), error = _messages.place("reduce_scatter", group), None
    if input.numel() != world * output.numel() or input.dtype != output.dtype:
        error = ValueError(
            f"reduce_scatter(): 'input' must have {world} times as many elements as 'output', of one dtype, but they "
            f"are {_messages.shown(input)} and {_messages.shown(output)}"
        )
    facts = {
        "function": _told("reduce_scatter", exact),
        "elements of 'output'": output.numel(),
        "dtype": str(input.dtype),
    }
    _check("reduce_scatter", facts, {"input": input, "output": output}, error, group, check)
    return _reduce_scatter(output, input, group, False, async_op, exact)


@overload
def all_reduce_rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    group: dist.ProcessGroup | None = None,
    check: bool = True,
) -> Tensor: ...
@overload
def all_reduce_rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor,
    group: dist.ProcessGroup | None = None,
    check: bool = True,
) -> tuple[Tensor, Tensor]: ...
def all_reduce_rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """The norm behind a row-parallel layer: :func:`all_reduce` of ``input``, then :func:`torch_reduce.rms_norm` of it.

    It has the bits of the two calls. For the few rows of a model that decodes, on GPUs that lend each other memory
    (docs/distributed.md), both are one kernel: up to 8 MiB over the number of ranks, of float32, float16 or bfloat16,
    in rows of at most 8192 elements (16 KiB, if there are more than two ranks).

    Args:
        input: this rank's addend, of the same shape and dtype on every rank: float16, bfloat16, float32 or float64. It
            is not changed.
        normalized_shape: the last dimensions of ``input``, as of :func:`torch_reduce.rms_norm`.
        weight: as of :func:`torch_reduce.rms_norm`, the same on every rank.
        eps: as of :func:`torch_reduce.rms_norm`, the same on every rank.
        residual: a tensor of ``input``'s shape, the same on every rank, which is added to the sum before it is
            normalized, as :func:`torch_reduce.rms_norm` adds it.
        group: the ranks; by default all.
        check: as for :func:`all_reduce`.

    Returns:
        A tensor of ``input``'s shape and dtype; with ``residual`` a pair of it and the new residual.

    Raises:
        TypeError, NotImplementedError, RuntimeError: as :func:`torch_reduce.rms_norm` and :func:`all_reduce`. Or an
            argument requires a gradient and gradients are enabled: there is none.
    """
    name, given = "all_reduce_rms_norm", {"input": input, "weight": weight, "residual": residual}
    given = {argument: tensor for argument, tensor in given.items() if tensor is not None}
    _arguments.plain_tensors(name, **given)
    shape, error = _functions_of_rows._shape(name, normalized_shape), None
    try:
        if torch.is_grad_enabled() and [tensor for tensor in given.values() if tensor.requires_grad]:
            raise RuntimeError(f"{name}(): it has no gradient, but an argument requires one")
        like = {argument: torch.empty_like(tensor, device="meta") for argument, tensor in given.items()}
        _functions_of_rows.rms_norm(like.pop("input"), shape, eps=eps, **like)  # its errors
    except Exception as raised:
        _arguments.rename(raised, "rms_norm", to=name)
        error = raised
    facts = {"function": name, "shape": list(input.shape), "dtype": str(input.dtype), "normalized_shape": list(shape)}
    facts |= {argument: str(getattr(given.get(argument), "dtype", None)) for argument in ("weight", "residual")}
    facts["eps"] = str(eps)
    _check(name, facts, given, error, group, check)
    return _all_reduce_rms_norm(input, shape, weight, eps, residual, group)


def leaf_sum(
    parts: Tensor | Sequence[Tensor],
    leaves: int,
    group: dist.ProcessGroup | None = None,
    *,
    scatter_dim: int | None = None,
    dtype: torch.dtype | None = None,
    check: bool = True,
) -> Tensor:
    """The sum of the parts of all ranks, in one tree over these parts: the same bits on any number of ranks.

    A product over a dim that is cut, as of a row-parallel linear layer, is a sum of one product for each piece. If each
    rank makes one product of all that it has, and an all_reduce adds these, another number of ranks has other bits.
    Here the model fixes into how many pieces the dim is cut, the *leaves*: a number that every number of ranks divides
    on which the model shall run, say 24 for 1, 2, 3, 4, 6, 8, 12 or 24. Each rank makes a product for each of its
    leaves, and the result has the bits of ``torch_reduce.sum(all_leaves, 0)``: the leaves one after the other in the
    order of the ranks, joined pairwise, nearest neighbours first, in float32 or wider, and rounded once.

    Args:
        parts: this rank's leaves, of shape (leaves / ranks, ...), or a sequence of as many tensors of one shape, which
            are copied. Of any dtype that :func:`torch_reduce.sum` takes; float32 if products are to be rounded once.
            They must have the same bits on every number of ranks: give torch's product the same sizes and strides for
            each leaf, in a call of its own.
        leaves: the number of leaves of all ranks together: a multiple of the number of ranks.
        group: the ranks; by default all.
        scatter_dim: a dim of the result. Each rank then gets its piece of it alone, as of a reduce_scatter, for
            sequence parallelism: the size of that dim is a multiple of the number of ranks. By default each gets all.
        dtype: the dtype of the result, as of :func:`torch_reduce.sum`.
        check: as for :func:`all_reduce`.

    Returns:
        A tensor of the shape of a leaf; with ``scatter_dim`` of a part of it.

    **What is sent.** A rank adds its own leaves as far as they are neighbours in the tree. One exchange brings these
    sums, or the leaves themselves where these have fewer bytes, to the ranks that add them: each adds one piece of the
    result. Without ``scatter_dim`` an all_gather then brings all ranks the pieces.

    **Gradients** of any order: each part has the gradient of the result. Without ``scatter_dim`` every rank's loss must
    be made of the whole result in the same way, and nothing is sent; with it the ranks gather their pieces' gradients.
    There is no forward mode, and no vmap. ``torch.compile`` ends a graph before the call. A DTensor that is cut along
    dim 0 needs no such function: :func:`torch_reduce.sum` over dim 0 has these bits.

    Raises:
        TypeError: an argument is of another type.
        ValueError: ``leaves`` is not above 0, or no multiple of the number of ranks; this rank has another number of
            parts; the parts differ in shape, dtype or device; the size of ``scatter_dim`` is no multiple of the number
            of ranks; or this rank is not in ``group``. With ``check`` the other ranks then raise a RuntimeError that
            names this rank.
        IndexError: ``scatter_dim`` is out of range.
        NotImplementedError, RuntimeError: as :func:`all_reduce`.
    """
    name = "leaf_sum"
    _arguments.integer(name, "leaves", leaves)
    if scatter_dim is not None:
        _arguments.integer(name, "scatter_dim", scatter_dim)
    _arguments.dtype(name, dtype)
    _arguments.boolean(name, "check", check)
    several = list(parts) if isinstance(parts, (list, tuple)) else [parts]
    if not several:
        raise TypeError(f"{name}(): argument 'parts' must be a Tensor or a sequence of some, not an empty sequence")
    for one in several:
        _arguments.plain_tensors(name, parts=one)
        if _arguments.mesh_of(one) is not None:
            said = "DTensors are not supported: torch_reduce.sum(x, 0) of one that is cut along dim 0 has these bits"
            raise NotImplementedError(f"{name}(): parts: {said}")
    return _leaf_sum(several if isinstance(parts, (list, tuple)) else parts, leaves, group, scatter_dim, dtype, check)


@between_graphs
def _leaf_sum(
    parts: Tensor | list[Tensor], leaves: int, group: Any, dim: int | None, dtype: torch.dtype | None, check: bool
) -> Tensor:
    """Checks the arguments, and adds."""
    name, first, error, shape = "leaf_sum", parts[0] if isinstance(parts, list) else parts, None, []
    world, _ = _messages.place(name, group)
    try:
        shape = _shape_of_leaf(parts, leaves, world)
        if dim is not None and not -len(shape) <= dim < len(shape):
            raise IndexError(f"{name}(): scatter_dim: expected a dim of a leaf of the size {shape}, but got {dim}")
        if dim is not None and shape[dim] % world:
            found = f"but it has {shape[dim]} in a leaf of the size {shape}"
            raise ValueError(f"{name}(): scatter_dim: expected as many elements as {world} ranks divide, {found}")
    except Exception as raised:
        error = raised
    asked = [f"leaf_sum of {leaves} leaves", dim is not None and f"scatter_dim={dim}", dtype and f"dtype={dtype}"]
    facts = {"function": ", ".join(filter(None, asked)), "shape of a leaf": shape, "dtype": str(first.dtype)}
    _check(name, facts, {"parts": first}, error, group, check)
    stacked = torch.stack(parts) if isinstance(parts, list) else parts
    result = torch.ops.gpureduce.sum(torch.empty(1, dtype=first.dtype, device="meta"), dtype=dtype).dtype
    at = dim if dim is None else dim % len(shape)
    return _leaves.LeafSum.apply(stacked, _leaves.Call(leaves, at, result, group))


def _shape_of_leaf(parts: Tensor | list[Tensor], leaves: int, world: int) -> list[int]:
    """Raises an error unless the parts are this rank's share of the leaves."""
    if leaves < 1 or leaves % world:
        raise ValueError(f"leaf_sum(): leaves: expected a multiple of {world}, the number of ranks, but got {leaves}")
    listed = isinstance(parts, list)
    if not listed and parts.dim() == 0:
        raise ValueError("leaf_sum(): parts: expected at least one dim, the first one for the leaves")
    count, each = len(parts), leaves // world
    if count != each:
        raise ValueError(
            f"leaf_sum(): parts: expected {each} of {leaves} leaves on each of {world} ranks, but got {count}"
        )
    for one in parts[1:] if listed else ():
        if (one.shape, one.dtype, one.device) != (parts[0].shape, parts[0].dtype, parts[0].device):
            both = f"{_messages.shown(parts[0])} on {parts[0].device} and {_messages.shown(one)} on {one.device}"
            raise ValueError(f"leaf_sum(): parts: expected leaves of one shape, dtype and device, but got {both}")
    return list(parts[0].shape if listed else parts.shape[1:])


def _told(name: str, exact: bool) -> str:
    """What ranks tell each other that they call."""
    return f"{name} with exact=True" if exact else name


@between_graphs
def _check(
    name: str, facts: dict[str, Any], tensors: dict[str, Tensor], error: Exception | None, group: Any, tells: bool
) -> None:
    """Raises an error that is known, or one of the tensors' devices; if it tells the other ranks, theirs too.

    On a GPU it begins to, if the ranks have agreed on this call before.
    """
    _arguments.boolean(name, "check", tells)
    world, _ = _messages.place(name, group)
    tells = tells and world > 1
    call = facts["function"], *((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors.values())
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
def _all_reduce(tensor: Tensor, group: Any, averages: bool, async_op: bool, exact: bool = False) -> Work | None:
    """Every rank adds one piece of all tensors, and gives it to the others."""
    world, rank = _messages.place("all_reduce", group)
    if memory := _lent(tensor, group, averages, async_op, exact):
        flat = _flat(tensor)
        memory.add(flat, flat, averages, False)
        if not _is_plain(tensor):
            tensor.detach().copy_(flat.view(tensor.shape))
        return None
    cuts = _rank_plan.even(tensor.numel(), world)
    counts = [b - a for a, b in pairwise(cuts)]

    def rest(received: Tensor) -> None:
        sums, whole = _over_ranks(received.view(world, -1), averages, exact), tensor.detach()
        if min(counts) == max(counts) and _is_plain(whole):
            _messages.gather(sums, counts, group, whole.view(-1))
        else:
            whole.copy_(_messages.gather(sums, counts, group).view(whole.shape))

    return _begin(tensor, counts, [counts[rank]] * world, group, rest, async_op)


@between_graphs
def _all_reduce_rms_norm(
    input: Tensor, shape: list[int], weight: Tensor | None, eps: float | None, residual: Tensor | None, group: Any
) -> Tensor | tuple[Tensor, Tensor]:
    """One kernel where there is one, and otherwise the two functions."""
    world, _ = _messages.place("all_reduce_rms_norm", group)
    others = [getattr(x, "dtype", None) for x in (weight, residual)]
    memory = _lent(input, group, False, False, False)
    if memory and len(shape) == 1 and _symmetric.adds_norms(input.shape, input.dtype, others, world):
        plain = [x if x is None else x.contiguous() for x in (input, residual, weight)]
        out, stored = memory.add_norm(*plain, torch.finfo(torch.float32).eps if eps is None else eps)
        return out if residual is None else (out, stored)
    total = input.clone()
    _all_reduce(total, group, False, False)
    return _functions_of_rows.rms_norm(total, shape, weight, eps, residual=residual)


@between_graphs
def _reduce_scatter(
    output: Tensor, input: Tensor, group: Any, averages: bool, async_op: bool, exact: bool = False
) -> Work | None:
    """Every rank adds its piece of all inputs."""
    world, _ = _messages.place("reduce_scatter", group)
    if memory := _lent(input, group, averages, async_op, exact):
        plain = _is_plain(output) and not torch._C._overlaps(output, input)
        piece = output.detach().view(-1) if plain else output.new_empty(output.numel())
        memory.add(_flat(input), piece, averages, True)
        if not plain:
            output.detach().copy_(piece.view(output.shape))
        return None
    counts = [output.numel()] * world

    def rest(received: Tensor) -> None:
        output.detach().copy_(_over_ranks(received.view(world, -1), averages, exact).view(output.shape))

    return _begin(input, counts, counts, group, rest, async_op)


def _begin(
    tensor: Tensor, sent: list[int], counts: list[int], group: Any, rest: Callable[[Tensor], None], async_op: bool
) -> Work | None:
    """Exchanges the elements of a tensor, and does the `rest` with what comes: now, or when the work is waited for."""
    begun, received = _messages.exchange(_flat(tensor), sent, counts, group, later=async_op)
    if async_op:
        return Work(begun, received, rest)
    rest(received)
    return None


def _lent(tensor: Tensor, group: Any, averages: bool, async_op: bool, exact: bool) -> _symmetric.Memory | None:
    """The memory through which the ranks' GPUs add a tensor themselves; None if it goes through the group's backend.

    An asynchronous call does: its exchange begins beside the current stream.
    """
    if not tensor.is_cuda or async_op or exact or _messages.traced(tensor):
        return None
    return _symmetric.lent(group, tensor.device) if _symmetric.adds(tensor.dtype, averages) else None


def _flat(tensor: Tensor) -> Tensor:
    """The elements in their order: in the tensor's own memory if it is plain."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _is_plain(tensor: Tensor) -> bool:
    """Whether a message can be received as the tensor's elements, in their order."""
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg() or _messages.traced(tensor))


def _over_ranks(rows: Tensor, averages: bool, exact: bool = False) -> Tensor:
    """(ranks, n) -> (n,): the sum or the mean, joined pairwise in rank order; or exact."""
    world, dtype = len(rows), rows.dtype
    if exact or world <= _LANES:  # each is a lane, and lanes are joined pairwise
        return (_sum.mean if averages else _sum.sum)(rows, 0, dtype=dtype, exact=exact)
    accumulator = _operations.node_dtype("sum", dtype, dtype)
    while len(rows) > 1:
        rows = torch.stack([_sum.sum(run, 0, dtype=accumulator) for run in rows.split(_LANES)])
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
