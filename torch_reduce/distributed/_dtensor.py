"""Reductions of DTensors, with the bits that the global tensor has on one device.

This is what the operators of torch.ops.gpureduce do with a DTensor; importing it tells torch so. It runs below
autograd, whose nodes see the DTensor alone. docs/distributed.md says which placements come out, and what is sent.

Sharding rules of torch's own kind do not serve here: their result would have to be Partial, which holds one number an
output, where the tree of additions needs several.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from .. import _moe, distributed
from .. import _rows as _of_tensors
from .._arguments import enter
from .._graphs import between_graphs
from .._operations import exact_operators, is_inexact, known, node_dtype, state_size
from . import _rows
from ._messages import exchange_parts, gather, place
from ._rank_plan import even, product
from ._sharded import (
    Call,
    ExactProducts,
    Factors,
    Shards,
    axes_of,
    join_freely,
    join_many,
    join_shards,
    kind_of_call,
    kind_of_operation,
    laid_out,
    lies_in_order,
    own_nodes,
    permuted,
    products,
    slowest_first,
)

_Cut = tuple[int, int, int]  # the dim that a mesh dim cuts, into how many parts, and into how many runs before
_Runs = tuple[tuple[int, int], ...]  # of indices along a dim, ascending: from the first to before the second
_Held = tuple[_Runs, ...]  # the indices along each dim


def _kept(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As functools.lru_cache, for functions whose first argument is a mesh.

    A mesh of groups that are gone is equal to one of new groups, in which this rank may have another place.
    """

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        @lru_cache(maxsize=count)
        def cached(which: int, *arguments: Any) -> Any:
            return function(*arguments)

        return lambda mesh, *others: cached(id(mesh), mesh, *others)

    return keep


def _rule(reduce: Any) -> Any:
    """What torch.library.register_torch_dispatch takes."""
    dims_of = _NEEDED.get(reduce)
    if dims_of is None:
        return lambda cls, op, types, args, kwargs: reduce(op, *args, **(kwargs or {}))

    def rule(cls: type, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        layout, local = _layout(args, kwargs)
        if layout is None:
            return reduce(op, *args, **kwargs)
        learnt = _learnt(op, *layout)
        if not learnt:
            results = reduce(op, *args, **kwargs)
            learnt.append(_specs(results) if _is_alone(args, dims_of) else None)
            return results
        if (specs := learnt[0]) is None:
            return reduce(op, *args, **kwargs)
        found = op(*local, **kwargs)
        if type(specs) is DTensorSpec:
            return _with_spec(found, specs)
        return tuple(None if spec is None else _with_spec(one, spec) for one, spec in zip(found, specs, strict=True))

    return rule


# --- calls that a rank makes alone ------------------------------------------------------------------------------------
# Where a rank needs nothing of others, it calls the operator with its own tensors. Whether that is so, and how the
# results are placed, follows from the layouts of the arguments. Rules are slow to find it out, so it is remembered.


@lru_cache(maxsize=1024)
def _learnt(op: Any, *layout: Any) -> list[Any]:
    """A list that is empty until a rule has run once with this layout. Then it has one item: the results' specs, if the
    rank makes the call alone; otherwise None."""
    return []


def _layout(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any] | None, list[Any]]:
    """All of a call's arguments but the elements, and the arguments with this rank's tensors.

    The layout is None where nothing can be remembered: tensors are traced, or do not belong to a DTensor.
    """
    layout, local = [*kwargs.items()], []
    for one in args:
        if isinstance(one, DTensor):
            spec, one = one._spec, one._local_tensor
            if type(one) is not Tensor:
                return None, local
            layout += spec, id(spec.mesh), one.shape, one.stride(), one.dtype  # the id: _kept says why
        elif isinstance(one, Tensor):
            return None, local
        else:
            layout.append(tuple(one) if isinstance(one, list) else one)
        local.append(one)
    return (None if "out" in kwargs else layout), local


def _specs(results: Any) -> Any:
    """The spec of a DTensor, or the specs of several. None has None."""
    if isinstance(results, tuple):
        return tuple(map(_specs, results))
    return None if results is None else results._spec


def _with_spec(local: Tensor, spec: DTensorSpec) -> DTensor:
    # Rules run below autograd. What from_local() and DTensor.__init__() do for it takes longer than all of ours.
    return DTensor.__new__(DTensor, local, spec, requires_grad=False)


def _is_alone(args: Sequence[Any], dims_of: Any) -> bool:
    """Whether this rank's tensors are enough for its part of the results. `dims_of`: a function of _NEEDED."""
    tensors = [one for one in args if isinstance(one, DTensor)]
    x, layouts = tensors[0], set()
    if not _inside(x):
        return False
    for one in tensors:
        if one.device_mesh is not x.device_mesh or any(placement.is_partial() for placement in one.placements):
            return False
        shape, strides, local = tuple(one.shape), tuple(one.stride()), one._local_tensor
        whole = _order(shape, strides, range(len(shape)))
        if tuple(local.shape) != _find(one.device_mesh, one.placements, shape, strides, ()).local:
            return False
        if not lies_in_order(local.shape, local.stride(), whole):  # the sums would have another order
            return False
        layouts.add((_cuts(one.placements, one.device_mesh), shape))
    cut = {cut[0] for cuts, _ in layouts for cut in cuts if cut}
    return not cut or (len(layouts) == 1 and cut.isdisjoint(dims_of(*args)))


def _reduce(
    op: Any,
    self: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> DTensor:
    name = _name(op)
    plain = exact_operators().get(name, name)
    operation = known()[plain]
    _expect_dtensors(operation.title, input=self, out=out)
    meta = _meta_result(op, operation.title, [self], dim, keepdim, dtype=dtype, out=out)
    complex_norm = self.is_complex() and operation.is_norm
    given = meta.dtype.to_complex() if complex_norm else meta.dtype
    kind = kind_of_operation(operation, plain != name and is_inexact(meta.dtype))
    call = kind(operation, _reduced(dim, self.dim()), keepdim, given, meta.dtype, -1)
    (result,) = _results(_without_partials(self), call, [meta])
    return result if out is None else out.copy_(result)


def _var_mean(
    op: Any,
    self: DTensor,
    dim: Sequence[int] | None,
    correction: float,
    root: bool,
    keepdim: bool,
    *,
    dtype: torch.dtype | None = None,
) -> tuple[DTensor, ...]:
    metas = op(_without_data(self), dim, correction, root, keepdim, dtype=dtype)
    kind, operation = kind_of_call("std" if root else "var_mean")
    dims = _reduced(dim, self.dim())
    call = kind(operation, dims, keepdim, None, metas[0].dtype, -1, correction)
    return _results(_without_partials(self), call, metas)


def _index(
    op: Any, self: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, out: Tensor | None = None
) -> DTensor:
    """argmax or argmin: a rank has all of the reduced dims, or gets it."""
    name = _name(op)
    _expect_dtensors(name, input=self, out=out)
    meta, dims = op(_without_data(self), dim, keepdim), _reduced(dim, self.dim())
    x = _without_partials(self)
    x = x.redistribute(placements=[Replicate() if _is_shard(one) and one.dim in dims else one for one in x.placements])
    placements = [_after(name, one, dims, keepdim) for one in x.placements]
    found = op(x._local_tensor, dim, keepdim)
    result = DTensor.from_local(found, x.device_mesh, placements, shape=meta.shape, stride=meta.stride())
    return result if out is None else out.copy_(result)


def _weighted_sum(
    op: Any,
    self: Tensor,
    weight: Tensor,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> DTensor:
    _, operation = kind_of_call("weighted_sum")
    _expect_dtensors(operation.title, input=self, weight=weight, out=out)
    if self.device_mesh != weight.device_mesh:
        meshes = f"{weight.device_mesh}, {self.device_mesh}"
        raise ValueError(f"{operation.title}(): 'weight' is on another mesh than 'input': {meshes}")
    meta = _meta_result(op, operation.title, [self, weight], dim, keepdim, dtype=dtype, out=out)
    shape = torch.broadcast_shapes(self.shape, weight.shape)
    dims = _reduced(dim, len(shape))
    call = Call(operation, dims, keepdim, meta.dtype, meta.dtype, -1)
    exact = _name(op) != "weighted_sum" and is_inexact(meta.dtype)
    x, w = _without_partials(self), _without_partials(weight)
    together = _cut_together(x, w, shape)
    if exact and not together:
        x, w = _recut(x, w, shape)
        together = _cut_together(x, w, shape)
    if together and not any(cut and cut[0] in dims for cut in _cuts(together, self.device_mesh)):
        operator = torch.ops.gpureduce.exact_weighted_sum if exact else torch.ops.gpureduce.weighted_sum
        result = _weighted_sum_here(operator, x, w, len(shape), together, call, meta)
    elif exact:
        result = _exact_products(x, w, shape, together, call, meta)
    else:  # the strides say in which order to add
        made, strides = products(x, w, meta.dtype), _without_data(x).expand(shape).stride()
        made = _from_local(made._local_tensor, made, made.placements, shape, strides)
        (result,) = _results(made, call, [meta])
    return result if out is None else out.copy_(result)


def _weighted_sum_here(
    operator: Any, x: DTensor, w: DTensor, rank: int, placements: list[Placement], call: Any, meta: Tensor
) -> DTensor:
    """Of what each rank holds, where no reduced dim is cut: no product is written to memory."""
    found = None
    if _inside(x):
        _check_locals(call.title, x, w)
        missing = rank - x.dim()
        own = [d - missing for d in call.dims if d >= missing]
        local = laid_out(x._local_tensor, own, _order(x.shape, x.stride(), own))
        found = operator(local, w._local_tensor, call.dims, call.keepdim, dtype=call.given)
    (result,) = _placed(found, x, placements, call, [meta])
    return result


def _exact_products(
    x: DTensor, w: DTensor, shape: torch.Size, placements: list[Placement], call: Call, meta: Tensor
) -> DTensor:
    """The exact sum where a reduced dim is cut: each rank adds the products of what it holds, and sends states."""
    call, found = ExactProducts(**vars(call), size=state_size(x.dtype, w.dtype)), None
    if _inside(x):
        _check_locals(call.title, x, w)
        here = torch.broadcast_tensors(x._local_tensor, w._local_tensor)
        strides = _without_data(x).expand(shape).stride()
        whole = _from_local(here[0], x, placements, shape, strides)
        states = None if 0 in here[0].shape else call.node(Factors(*here, x.dtype), call.dims, torch.int64)
        found = _local_result(whole, call, states)
    (result,) = _placed(found, x, placements, call, [meta])
    return result


def _check_locals(title: str, *tensors: DTensor) -> None:
    for one in tensors:
        shape, strides = tuple(map(int, one.shape)), tuple(map(int, one.stride()))
        _check_local(title, one, shape, _find(one.device_mesh, one.placements, shape, strides, ()).local)


def _recut(x: DTensor, w: DTensor, shape: Sequence[int]) -> list[DTensor]:
    """The two tensors, cut alike along the common shape: as `x` is, or where it is not cut, as `w`."""
    cuts = [
        next((cut for cut in pair if cut), None) for pair in zip(_cuts_of(x, shape), _cuts_of(w, shape), strict=True)
    ]
    found = []
    for one in (x, w):
        missing = len(shape) - one.dim()
        has = [cut is not None and cut.dim >= missing and one.shape[cut.dim - missing] > 1 for cut in cuts]
        one = one.to(_SENT.get(one.dtype, one.dtype))
        pairs = zip(cuts, has, strict=True)
        found.append(_as_cut(one, [_moved(cut, cut.dim - missing) if here else Replicate() for cut, here in pairs]))
    return found


# Dtypes that not all backends send, and wider ones that have their numbers.
_SENT = {torch.bool: torch.uint8, torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_SENT |= dict.fromkeys((torch.float8_e4m3fn, torch.float8_e5m2), torch.float32)


def _cuts_of(x: DTensor, shape: Sequence[int]) -> list[Placement | None]:
    """The placements that cut a dim of the common shape, counting its dims; None for the others."""
    missing = len(shape) - x.dim()
    return [
        _moved(one, one.dim + missing) if _is_shard(one) and x.shape[one.dim] == shape[one.dim + missing] else None
        for one in x.placements
    ]


def _cut_together(x: DTensor, w: DTensor, shape: Sequence[int]) -> list[Placement] | None:
    """How the common shape is cut, if on every rank the two tensors hold what belongs together."""

    def in_common(placement: Placement, tensor: DTensor) -> Placement:
        """The placement, counting the dims of the common shape."""
        return _moved(placement, placement.dim + len(shape) - tensor.dim()) if _is_shard(placement) else placement

    def size(tensor: DTensor, dim: int) -> int:
        missing = len(shape) - tensor.dim()
        return tensor.shape[dim - missing] if dim >= missing else 1

    found = []
    for of_x, of_w in zip(x.placements, w.placements, strict=True):
        a, b = in_common(of_x, x), in_common(of_w, w)
        if a != b and _is_shard(a) and _is_shard(b):
            return None
        cut = a if _is_shard(a) else b
        for placement, tensor in ((a, x), (b, w)):
            if _is_shard(cut) and size(tensor, cut.dim) != (shape[cut.dim] if _is_shard(placement) else 1):
                return None
        found.append(cut)
    return found


def _segments(
    op: Any,
    data: Tensor,
    offsets: Tensor,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> DTensor:
    """Of segments along a dim that is cut, every rank gets all results."""
    name = _name(op).removeprefix("_")
    function = name.removeprefix("exact_")
    kind, operation = kind_of_call(function, function != name)
    _expect_beside(operation.title, {"data": data, "out": out}, {"offsets": offsets})
    meta = _meta_result(op, operation.title, [data], _without_data(offsets), dim, dtype=dtype, out=out)
    here, at = _on_every_rank(offsets), dim % data.dim()
    given = meta.dtype if out is not None else dtype
    call = kind(operation, [at], True, given, meta.dtype, at, here)
    (result,) = _results(_without_partials(data), call, [meta])
    return result if out is None else out.copy_(result)


def _whole_segments(op: Any, inputs: Sequence[DTensor], offsets: Tensor, dim: int, *more: Any, **named: Any) -> DTensor:
    """An operator of several tensors that are cut alike: where the segments' dim is cut, every rank gets all of it."""
    meta = op(*map(_without_data, inputs), _without_data(offsets), *more, **named)
    offsets, x = _on_every_rank(offsets), _without_partials(inputs[0])
    placements = _uncut(x, dim)
    parts = [_as_cut(one, placements) for one in (x, *inputs[1:])]
    local = op(*map(_local, parts), offsets, *more, **named) if _inside(x) else _none_of(meta, x)
    return _from_local(local, x, placements, meta.shape, meta.stride())


def _segment_spread(op: Any, input: DTensor, offsets: Tensor, size: int, dim: int = 0) -> DTensor:
    """To every element of a segment the segment's number."""
    return _whole_segments(op, [input], offsets, dim, size, dim)


def _segments_of_whole(
    op: Any,
    data: DTensor,
    offsets: Tensor,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: DTensor | None = None,
) -> DTensor:
    title = _name(op).removeprefix("_")
    _expect_beside(title, {"data": data, "out": out}, {"offsets": offsets})
    meta = _meta_result(op, title, [data], _without_data(offsets), dim, dtype=dtype, out=out)
    operator = getattr(torch.ops.gpureduce, _name(op)).default
    result = _whole_segments(operator, [data], offsets, dim, dim, dtype=meta.dtype if out is not None else dtype)
    return result if out is None else out.copy_(result)


def _segments_backward(
    op: Any, grad: DTensor, other: DTensor, offsets: Tensor, dim: int, dtype: torch.dtype
) -> DTensor:
    _expect_dtensors(_name(op), grad=grad, other=other)
    return _whole_segments(op, [grad, other], offsets, dim, dim, dtype)


def _apply(
    op: Any, self: DTensor, grad: Tensor | None, result: Tensor | None, more: Tensor | None, *arguments: Any
) -> DTensor:
    """Of what each rank holds, where the outputs' numbers are cut as the elements are."""
    x = _without_partials(self)

    def beside(other: Tensor | None) -> Tensor | None:
        if other is None:
            return None
        placements = [
            placement if _is_shard(placement) and other.shape[placement.dim] > 1 else Replicate()
            for placement in x.placements
        ]
        if not isinstance(other, DTensor):  # every rank has it, as the lengths of segments
            if not any(map(_is_shard, placements)):
                return other
            other = replicated(other, x)
        return _as_cut(other, placements)

    others = [beside(other) for other in (grad, result, more)]
    meta = op(_without_data(x), *(other if other is None else _without_data(other) for other in others), *arguments)
    here = [other._local_tensor if isinstance(other, DTensor) else other for other in others]
    local = op(x._local_tensor, *here, *arguments) if _inside(x) else _none_of(meta, x)
    return _from_local(local, x, x.placements, meta.shape, meta.stride())


# --- sums by index ---------------------------------------------------------------------------------------------------


def _expect_beside(title: str, given: dict[str, Any], lists: dict[str, Any]) -> None:
    """Lists of integers may be plain tensors, the same on every rank; what is reduced by DTensors must be one."""
    _expect_dtensors(title, **given, **{name: one for name, one in lists.items() if isinstance(one, DTensor)})


@enter
def everywhere(x: DTensor) -> DTensor:
    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)


@enter
def lists_beside(title: str, given: dict[str, Any], lists: dict[str, Any]) -> list[Any]:
    """The lists, which are whole on this rank; the others must be DTensors of one mesh.

    Autograd keeps lists, and torch's own operators take no plain tensor beside a DTensor: so none is a DTensor.
    """
    _expect_beside(title, given, lists)
    meshes = {name: one.device_mesh for name, one in given.items() if one is not None}
    first, *others = meshes
    for other in others:
        if meshes[other] != meshes[first]:
            both = f"{meshes[other]}, {meshes[first]}"
            raise ValueError(f"{title}(): '{other}' is on another mesh than '{first}': {both}")
    found = [everywhere(one) if isinstance(one, DTensor) else one for one in lists.values()]
    return [list_of(one) if isinstance(one, DTensor) else one for one in found]


@enter
def list_of(x: DTensor) -> Any:
    """What this rank has of a list; outside of the mesh, where it has none, one that tells its shape."""
    return _local(x) if _inside(x) else torch.zeros(tuple(x.shape), dtype=x.dtype, device=x.device)


def _beside(weight: DTensor, placements: Sequence[Placement]) -> list[Placement]:
    """Placements of a weight beside data that are cut so: a dim in which it is broadcast is whole."""

    def whole(one: Any) -> bool:
        return one.is_replicate() or weight.dim() == 1 or weight.size(one.dim) == 1

    return [Replicate() if whole(one) else one for one in placements]


def _with_rows(
    title: str, data: DTensor, lists: Sequence[Any], weight: Any, dim: int, meta: Tensor, call: Any
) -> DTensor:
    """What `call` makes of this rank's data, lists and weight. Every rank gets all of the rows, where they are cut."""
    x = _without_partials(data)
    placements = _uncut(x, dim)
    x, lists = _as_cut(x, placements), [one if one is None else _on_every_rank(one) for one in lists]
    weight = weight if weight is None else _as_cut(weight, _beside(weight, placements))
    if _inside(x):
        shape, strides = tuple(map(int, x.shape)), tuple(map(int, x.stride()))
        _check_local(title, x, shape, _find(x.device_mesh, x.placements, shape, strides, ()).local)
        local = call(_local(x), lists, _local(weight))
    else:
        local = _none_of(meta, x)
    return _from_local(local, x, placements, meta.shape, meta.stride())


def _gather(
    op: Any,
    data: DTensor,
    rows: Tensor,
    offsets: Tensor | None = None,
    weight: Tensor | None = None,
    edges: Tensor | None = None,
    back_rows: Tensor | None = None,
    back_offsets: Tensor | None = None,
    back_edges: Tensor | None = None,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: DTensor | None = None,
) -> DTensor:
    title, lists = _name(op), (rows, offsets, edges, back_rows, back_offsets, back_edges)
    _expect_beside(title, {"data": data, "weight": weight, "out": out}, {"rows": rows, "offsets": offsets})
    metas = [_meta_of(one) for one in (rows, offsets, weight, *lists[2:])]
    meta = _meta_result(op, title, [data], *metas, dim, dtype=dtype, out=out)
    operator = getattr(torch.ops.gpureduce, title).default
    given = dtype if out is None else meta.dtype

    def call(x: Tensor, lists: Sequence[Any], weight: Any) -> Tensor:
        return operator(x, *lists[:2], weight, *lists[2:], dim, dtype=given)

    result = _with_rows(title, data, lists, weight, dim, meta, call)
    return result if out is None else out.copy_(result)


def _embedding(op: Any, table: DTensor, rows: Tensor, padding: int, dim: int = 0) -> DTensor:
    _expect_beside("embedding", {"weight": table}, {"input": rows})
    meta = op(_without_data(table), _without_data(rows), padding, dim)
    return _with_rows("embedding", table, [rows], None, dim, meta, lambda x, rows, _: op(x, *rows, padding, dim))


def _on_all(op: Any, *arguments: Any, **named: Any) -> Any:
    """An operator of vectors that every rank gets whole."""
    metas = op(*(_meta_of(one) if isinstance(one, Tensor) else one for one in arguments), **named)
    like = next(one for one in arguments if isinstance(one, DTensor))
    here = [_on_every_rank(_without_partials(one)) if isinstance(one, DTensor) else one for one in arguments]
    found = op(*here, **named) if _inside(like) else None
    several = not isinstance(metas, Tensor)
    metas = metas if several else [metas]
    if found is None:
        found = [meta.new_empty(0, device=like.device) for meta in metas]
    elif not several:
        found = [found]
    everywhere = [Replicate()] * like.device_mesh.ndim
    pairs = zip(found, metas, strict=True)
    results = tuple(_from_local(one, like, everywhere, meta.shape, meta.stride()) for one, meta in pairs)
    return results if several else results[0]


class _Joined(torch.autograd.Function):
    """_without_partials, with a gradient: each addend has the gradient of the sum."""

    @staticmethod
    def forward(ctx: Any, x: DTensor) -> DTensor:
        return _without_partials(x)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> DTensor:
        return grad


@enter
def joined(x: DTensor) -> DTensor:
    """`x`, not Partial. Gradients of extrema ask torch which elements equal one: it must see the sums that we reduced,
    and its own sum of a Partial has other bits."""
    return _Joined.apply(x) if any(one.is_partial() for one in x.placements) else x


class _Outside(torch.autograd.Function):
    """What a rank outside of the mesh has of a result, and of the gradients of DTensors: nothing."""

    @staticmethod
    def forward(ctx: Any, placements: Sequence[Placement], meta: Tensor, *tensors: DTensor | None) -> DTensor:
        ctx.tensors = tensors
        like = next(x for x in tensors if x is not None)
        return _Outside.nothing(like, placements, meta)

    @staticmethod
    def backward(ctx: Any, grad: DTensor) -> tuple[DTensor | None, ...]:
        return None, None, *(None if x is None else _Outside.nothing(x, x.placements, x) for x in ctx.tensors)

    @staticmethod
    def nothing(like: DTensor, placements: Sequence[Placement], of: Tensor) -> DTensor:
        local = torch.empty([0] * min(of.dim(), 1), dtype=of.dtype, device=like.device)
        return _from_local(local, like, placements, of.shape, of.stride())


def _of_parts(
    tensors: Sequence[Any], cuts: Sequence[Sequence[Placement]], call: Any, after: Sequence[Placement], meta: Tensor
) -> DTensor:
    """The result, of the placements `after`, of `call` of what this rank has of tensors that are cut so. Gradients flow
    through each rank's call."""
    like = tensors[0]
    if not _inside(like):
        return _Outside.apply(after, meta, *tensors)
    pairs = zip(tensors, cuts, strict=True)
    parts = [x if x is None else joined(x).redistribute(placements=where).to_local() for x, where in pairs]
    return _from_local(call(*parts), like, after, meta.shape, meta.stride())


@enter
def scatter_add(input: Any, dim: int, index: Tensor, src: Any) -> DTensor:
    operator = torch.ops.gpureduce.scatter_add.default
    return _scattered("scatter_add", operator, input, dim, index, src)


@enter
def scatter_reduce(input: Any, dim: int, index: Tensor, src: Any, reduce: str, include_self: bool) -> DTensor:
    def operator(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
        return torch.ops.gpureduce.scatter_reduce(input, dim, index, src, reduce, include_self=include_self)

    return _scattered("scatter_reduce", operator, input, dim, index, src)


@enter
def index_reduce(
    function: str, input: Any, dim: int, index: Tensor, source: Any, reduce: str, include_self: bool
) -> DTensor:
    """As a scatter by an index that is expanded along all other dims. Ranks take its vector."""
    (index,) = lists_beside(function, {"input": input, "source": source}, {"index": index})
    sizes, at = list(source.shape), dim % max(source.dim(), 1)
    if sizes:
        sizes[at] = index.numel()
    expanded = index.reshape([-1 if d == at else 1 for d in range(len(sizes))]).expand(sizes)

    def operator(input: Tensor, dim: int, _: Tensor, source: Tensor) -> Tensor:
        vector = _without_data(index) if input.is_meta else index
        return torch.ops.gpureduce.index_reduce(input, dim, vector, source, reduce, include_self=include_self)

    return _scattered(function, operator, input, dim, expanded, source, "source")


def _scattered(
    function: str, operator: Any, input: Any, dim: int, index: Tensor, src: Any, argument: str = "src"
) -> DTensor:
    """Of the parts that the ranks have, where another dim than `dim` is cut, of one size in all three tensors.

    Composed of operators of DTensors it would make one vector of the entries, which no Shard survives.
    """
    (index,) = lists_beside(function, {"input": input, argument: src}, {"index": index})
    mesh = input.device_mesh
    meta = operator(_without_data(input), dim, _without_data(index), _without_data(src))
    at = dim % max(meta.dim(), 1)

    def independent(placement: Placement) -> bool:
        d = getattr(placement, "dim", at)
        return d != at and not hasattr(placement, "split_factor") and input.size(d) == index.size(d) == src.size(d)

    pairs = zip(input.placements, src.placements, strict=True)
    placements = [next(filter(independent, pair), Replicate()) for pair in pairs]

    def call(here: Tensor, entries: Tensor) -> Tensor:
        own = index
        held = _held(tuple(index.shape), _cuts(placements, mesh), tuple(mesh.get_coordinate()))
        for d, runs in enumerate(held):  # a view, so that an index that is expanded stays so
            own = own.narrow(d, runs[0][0] if runs else 0, _length(runs))
        if own.numel() == 0 < index.numel():  # of nothing; but the gradients of both are exchanged on every rank
            return here + entries.sum().to(here.dtype)
        return operator(here, dim, own, entries)

    return _of_parts([input, src], [placements, placements], call, placements, meta)


def _columns(weight: DTensor, whole: bool = False) -> list[Placement]:
    """How a table is cut for its rows to be read: along columns, if at all."""
    return [
        one if getattr(one, "dim", 0) == 1 and not whole and not hasattr(one, "split_factor") else Replicate()
        for one in weight.placements
    ]


@enter
def embedding(input: Tensor, weight: Any, padding_idx: Any) -> DTensor:
    """Of the columns that a rank has. A gradient may be cut as it likes: torch makes no matrix of all of them."""
    (input,) = lists_beside("embedding", {"weight": weight}, {"input": input})
    operator = torch.ops.gpureduce.embedding.default
    meta, cut = operator(_without_data(input), _without_data(weight), padding_idx), _columns(weight)
    after = [_moved(one, meta.dim() - 1) if _is_shard(one) else one for one in cut]
    return _of_parts([weight], [cut], lambda table: operator(input, table, padding_idx), after, meta)


@enter
def embedding_bag(
    input: Tensor, weight: Any, offsets: Tensor | None, *, per_sample_weights: Any, **others: Any
) -> DTensor:
    """Of the columns that a rank has. The gradient of weights is a sum over columns, so it needs all of them."""
    given = {"weight": weight, "per_sample_weights": per_sample_weights}
    lists = {"input": input} if offsets is None else {"input": input, "offsets": offsets}
    input, *rest = lists_beside("embedding_bag", given, lists)
    offsets = rest[0] if rest else None
    operator = torch.ops.gpureduce.embedding_bag.default
    metas = [_meta_of(one) for one in (input, weight, offsets)]
    meta = operator(*metas, per_sample_weights=_meta_of(per_sample_weights), **others)
    summed = per_sample_weights is not None and per_sample_weights.requires_grad and torch.is_grad_enabled()

    def call(table: Tensor, weights: Tensor | None) -> Tensor:
        return operator(input, table, offsets, per_sample_weights=weights, **others)

    cut, all_ranks = _columns(weight, summed), [Replicate()] * weight.device_mesh.ndim
    return _of_parts([weight, per_sample_weights], [cut, all_ranks], call, cut, meta)


def _along_others(x: DTensor, dims: int, whole: bool = False) -> list[Placement]:
    """How a tensor is cut for its rows of so many first dims to be read: along other dims, if at all."""
    return [Replicate() if whole or not one.is_shard() or one.dim < dims else one for one in x.placements]


def _with_first_dims(placements: Sequence[Placement], more: int) -> list[Placement]:
    return [_moved(one, one.dim + more) if one.is_shard() and more else one for one in placements]


@enter
def moe_dispatch(x: DTensor, plan: Any) -> DTensor:
    """Of the columns that a rank has."""
    dims = plan.index.dim() - 1
    meta, cut = _moe.moe_dispatch(_without_data(x), tree_map(_without_data, plan)), _along_others(x, dims)
    return _of_parts([x], [cut], lambda x: _moe.moe_dispatch(x, plan), _with_first_dims(cut, 1 - dims), meta)


@enter
def moe_combine(rows: Any, index: Any, weights: Any, dtype: torch.dtype | None) -> DTensor:
    """Of the columns that a rank has. The gradient of weights is a sum over columns, so it needs all of them."""
    given, planned = {"rows": rows, "weights": weights}, isinstance(index, _moe.MoePlan)
    (numbers,) = lists_beside("moe_combine", given, {"index": index.index if planned else index})
    index = index if planned else numbers
    meta = _moe.moe_combine(_without_data(rows), tree_map(_without_data, index), _meta_of(weights), dtype=dtype)
    summed = weights is not None and weights.requires_grad and torch.is_grad_enabled()
    cut, all_ranks = _along_others(rows, 1, summed), [Replicate()] * rows.device_mesh.ndim

    def call(rows: Tensor, weights: Tensor | None) -> Tensor:
        return _moe.moe_combine(rows, index, weights, dtype=dtype)

    return _of_parts([rows, weights], [cut, all_ranks], call, _with_first_dims(cut, numbers.dim() - 2), meta)


# --- functions that keep their input's shape -------------------------------------------------------------------------


@dataclass(frozen=True)
class _DTensorCut:
    """How a DTensor is cut, none of whose placements is Partial."""

    of: DTensor  # on the same mesh
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def like(cls, x: DTensor) -> "_DTensorCut":
        return cls(x, tuple(x.placements), tuple(map(int, x.shape)), tuple(map(int, x.stride())))

    def crosses(self, dims: Sequence[int]) -> bool:
        return any(cut is not None and cut[0] in dims for cut in self._cuts)

    def reduced(self, x: Tensor, call: Any, *, logical: bool = False, nodes: Tensor | None = None) -> Any:
        strides = torch.empty(self.shape, device="meta").stride() if logical else self.strides
        return _local_result(_from_local(x, self.of, self.placements, self.shape, strides), call, nodes)

    def stacked(self, count: int) -> "_DTensorCut":
        placements = (_moved(one, one.dim + 1) if _is_shard(one) else one for one in self.placements)
        strides = (product(self.shape), *self.strides)
        return replace(self, placements=tuple(placements), shape=(count, *self.shape), strides=strides)

    def held(self, dim: int) -> _Runs:
        return _held(self.shape, self._cuts, tuple(self.of.device_mesh.get_coordinate()))[dim]

    @property
    def _cuts(self) -> tuple[_Cut | None, ...]:
        return _cuts(self.placements, self.of.device_mesh)


def _rowwise(title: str, x: DTensor, work: Any, metas: Sequence[Tensor | None], placements: Sequence[Any]) -> Any:
    """The results that `work` makes of how `x` is cut, as DTensors of these shapes and placements; None as None."""
    found: Sequence[Tensor | None]
    if _inside(x):
        cut = _DTensorCut.like(x)
        _check_local(title, x, cut.shape, _find(x.device_mesh, cut.placements, cut.shape, cut.strides, ()).local)
        found = work(cut)
    else:
        found = [meta if meta is None else _none_of(meta, x) for meta in metas]
    return tuple(
        None if local is None or meta is None else _from_local(local, x, where, meta.shape, meta.stride())
        for local, meta, where in zip(found, metas, placements, strict=True)
    )


def _as_cut(other: Tensor | None, placements: Sequence[Placement]) -> Any:
    """A DTensor with these placements; None stays None."""
    if other is None:
        return None
    other = _without_partials(other)
    if tuple(other.placements) == tuple(placements):
        return other
    # A tensor that requires a gradient cannot be redistributed below autograd.
    alone = _from_local(other._local_tensor.detach(), other, other.placements, other.shape, other.stride())
    return alone.redistribute(placements=placements)


def _local(x: Tensor | None) -> Any:
    return x if x is None else x._local_tensor


def _meta_of(x: Tensor | None) -> Any:
    return x if x is None else _without_data(x)


def _per_row(title: str, x: DTensor, dims: list[int], keepdim: bool) -> list[Placement]:
    """The placements of numbers of rows whose dims are these."""
    return [_after(title, placement, dims, keepdim) for placement in x.placements]


def _softmax(op: Any, self: DTensor, dim: int, *, dtype: torch.dtype | None = None) -> DTensor:
    function, x, at = _name(op), _without_partials(self), dim % max(self.dim(), 1)
    meta = op(_without_data(x), dim, dtype=dtype)

    def work(cut: _DTensorCut) -> list[Tensor]:
        return [_rows.softmax(cut, function, x._local_tensor, at, dtype)]

    return _rowwise(function, x, work, [meta], [x.placements])[0]


def _softmax_backward(op: Any, grad: DTensor, result: DTensor, dim: int, dtype: torch.dtype) -> DTensor:
    function, y, at = _name(op).removeprefix("_").removesuffix("_backward"), _without_partials(result), dim
    grad, at = _as_cut(grad, y.placements), dim % max(y.dim(), 1)
    meta = op(_without_data(grad), _without_data(y), dim, dtype)

    def work(cut: _DTensorCut) -> list[Tensor]:
        return [_rows.softmax_backward(cut, function, grad._local_tensor, y._local_tensor, at, dtype)]

    return _rowwise(function, y, work, [meta], [y.placements])[0]


def _log_prob(op: Any, logits: Tensor, target: Tensor, dim: int, ignore_index: int = -100) -> tuple[DTensor, ...]:
    _expect_dtensors("log_prob", logits=logits, target=target)
    metas = op(_without_data(logits), _without_data(target), dim, ignore_index)
    x, at = _without_partials(logits), dim % logits.dim()
    alone, kept = (_per_row("log_prob", x, [at], keepdim) for keepdim in (False, True))
    target = _as_cut(target, alone)

    def work(cut: _DTensorCut) -> tuple[Tensor, ...]:
        return _rows.log_prob(cut, x._local_tensor, target._local_tensor, at, ignore_index)

    return _rowwise("log_prob", x, work, metas, [alone, kept, kept])


def _log_prob_backward(
    op: Any,
    grad: DTensor,
    logits: DTensor,
    target: DTensor,
    dim: int,
    ignore_index: int,
    m: DTensor,
    log_sum: DTensor,
) -> DTensor:
    meta = op(*map(_without_data, (grad, logits, target)), dim, ignore_index, *map(_without_data, (m, log_sum)))
    x, at = _without_partials(logits), dim % logits.dim()
    alone, kept = (_per_row("log_prob", x, [at], keepdim) for keepdim in (False, True))
    grad, target, m, log_sum = _as_cut(grad, alone), _as_cut(target, alone), _as_cut(m, kept), _as_cut(log_sum, kept)

    def work(cut: _DTensorCut) -> list[Tensor]:
        given = (grad._local_tensor, x._local_tensor, target._local_tensor)
        return [_rows.log_prob_backward(cut, *given, at, ignore_index, m._local_tensor, log_sum._local_tensor)]

    return _rowwise("log_prob", x, work, [meta], [x.placements])[0]


@enter
def log_prob_of_several(logits: DTensor, target: DTensor, dim: int, ignore_index: int) -> DTensor:
    """The logarithms at several targets of each row, which lie along `dim`."""
    _expect_dtensors("log_prob", logits=logits, target=target)
    return _LogProbs.apply(logits, target, dim, ignore_index)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: DTensor, target: DTensor, dim: int, ignore_index: int) -> DTensor:
        given = (_without_data(logits), _without_data(target).long(), dim, ignore_index)
        x, metas = _without_partials(logits.detach()), _of_tensors.log_probs(*given)
        kept = _per_row("log_prob", x, [dim], True)
        places = _as_cut(target, kept)

        def work(cut: _DTensorCut) -> tuple[Tensor, ...]:
            index = places._local_tensor.long()
            if cut.crosses([dim]):
                return _rows.log_probs(cut, x._local_tensor, index, dim, ignore_index)
            return _of_tensors.log_probs(x._local_tensor, index, dim, ignore_index)

        found, m, log_sum = _rowwise("log_prob", x, work, metas, [kept] * 3)
        ctx.save_for_backward(x, places, m, log_sum)
        ctx.facts = kept, dim, ignore_index
        return found

    @staticmethod
    @_rows.of_first_order
    def backward(ctx: Any, grad: DTensor) -> tuple[Any, ...]:
        (x, places, m, log_sum), (kept, dim, ignore_index) = ctx.saved_tensors, ctx.facts
        share = _as_cut(grad, kept)

        def work(cut: _DTensorCut) -> list[Tensor]:
            given = (share._local_tensor, x._local_tensor, places._local_tensor.long())
            given += (m._local_tensor, log_sum._local_tensor, dim, ignore_index)
            if cut.crosses([dim]):
                return [_rows.log_probs_backward(cut, *given[:3], *given[5:], *given[3:5])]
            return [_of_tensors.log_probs_backward(*given)]

        return _rowwise("log_prob", x, work, [_without_data(x)], [x.placements])[0], None, None, None


def _weight_placements(x: DTensor, dims: int) -> list[Placement]:
    """Of a weight of the last dims of `x`: cut as they are, and the same on all ranks that differ in rows alone."""
    first = x.dim() - dims
    return [
        _moved(placement, placement.dim - first) if _is_shard(placement) and placement.dim >= first else Replicate()
        for placement in x.placements
    ]


def _norm(function: str, x: DTensor, dims: int, weight: Any, bias: Any, eps: float, metas: Any) -> tuple[Any, ...]:
    _expect_dtensors(function, input=x, weight=weight, bias=bias)
    x = _without_partials(x)
    placements = _weight_placements(x, dims)
    weight, bias = _as_cut(weight, placements), _as_cut(bias, placements)
    kept = _per_row(function, x, [*range(x.dim() - dims, x.dim())], True)

    def work(cut: _DTensorCut) -> tuple[Any, ...]:
        return _rows.norm(cut, function, x._local_tensor, dims, _local(weight), _local(bias), eps)

    return _rowwise(function, x, work, metas, [x.placements, kept, kept])


def _rms_norm(op: Any, input: DTensor, dims: int, weight: Any, eps: float) -> tuple[Any, ...]:
    y, r = op(_without_data(input), dims, _meta_of(weight), eps)
    y, _, r = _norm("rms_norm", input, dims, weight, None, eps, (y, None, r))
    return y, r


def _layer_norm(op: Any, input: DTensor, dims: int, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
    metas = op(_without_data(input), dims, _meta_of(weight), _meta_of(bias), eps)
    return _norm("layer_norm", input, dims, weight, bias, eps, metas)


def _norm_backward(
    function: str, grad: Any, x: Any, dims: int, mean: Any, r: Any, weight: Any, bias: Any, eps: float, mask: Any
) -> tuple[Any, ...]:
    x = _without_partials(x)
    placements = _weight_placements(x, dims)
    kept = _per_row(function, x, [*range(x.dim() - dims, x.dim())], True)
    grad, mean, r = _as_cut(grad, x.placements), _as_cut(mean, kept), _as_cut(r, kept)
    weight, bias = _as_cut(weight, placements), _as_cut(bias, placements)
    shape = x.shape[x.dim() - dims :]
    metas = [
        torch.empty_like(_without_data(x)) if mask[0] else None,
        *(torch.empty(shape, device="meta") if wanted else None for wanted in mask[1:]),
    ]

    def work(cut: _DTensorCut) -> tuple[Any, ...]:
        here = (grad._local_tensor, x._local_tensor, dims, _local(mean), r._local_tensor, _local(weight), _local(bias))
        return _rows.norm_backward(cut, function, *here, eps, mask)

    return _rowwise(function, x, work, metas, [x.placements, placements, placements])


def _rms_norm_backward(
    op: Any, grad: Any, input: Any, dims: int, r: Any, weight: Any, eps: float, mask: Any
) -> tuple[Any, ...]:
    return _norm_backward("rms_norm", grad, input, dims, None, r, weight, None, eps, [*mask, False])[:2]


def _layer_norm_backward(
    op: Any, grad: Any, input: Any, dims: int, mean: Any, r: Any, weight: Any, bias: Any, eps: float, mask: Any
) -> tuple[Any, ...]:
    return _norm_backward("layer_norm", grad, input, dims, mean, r, weight, bias, eps, mask)


@enter
def replicated(x: Tensor, like: DTensor) -> DTensor:
    """A tensor that every rank has, as a DTensor on the mesh of another one."""
    return DTensor.from_local(x, like.device_mesh, [Replicate()] * like.device_mesh.ndim, run_check=False)


def _on_every_rank(x: Tensor) -> Tensor:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _name(op: Any) -> str:
    return op._schema.name.rpartition(":")[2]


def _reduced(dim: Sequence[int] | None, rank: int) -> list[int]:
    return sorted(d % rank for d in dim) if dim and rank else list(range(rank))


def _expect_dtensors(title: str, **given: Tensor | None) -> None:
    for argument, tensor in given.items():
        if tensor is not None and not isinstance(tensor, DTensor):
            other = next(name for name, one in given.items() if isinstance(one, DTensor))
            type_name = type(tensor).__name__
            raise TypeError(f"{title}(): '{other}' is a DTensor, so '{argument}' must be one too, not a {type_name}")


def _without_data(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _meta_result(
    op: Any, title: str, inputs: list[DTensor], *arguments: Any, dtype: torch.dtype | None, out: Any
) -> Tensor:
    """The result's shape and dtype, on the meta device. Every rank refuses bad arguments here, in the op's words."""
    metas = [_without_data(x) for x in inputs]
    if out is None:
        return op(*metas, *arguments, dtype=dtype)
    mesh = inputs[0].device_mesh
    if out.device_mesh != mesh:
        raise ValueError(f"{title}(): 'out' is on another mesh than 'input': {out.device_mesh}, {mesh}")
    if any(placement.is_partial() for placement in out.placements):
        raise ValueError(f"{title}(): 'out' must not be Partial, but its placements are {out.placements}")
    meta = op(*metas, *arguments, dtype=dtype, out=torch.empty(0, dtype=out.dtype, device="meta"))
    if out.shape != meta.shape:
        shapes = f"{tuple(meta.shape)}, not {tuple(out.shape)}"
        raise ValueError(f"{title}(): 'out' is a DTensor, which cannot be resized, so its shape must be {shapes}")
    return meta


@_kept(256)
def _spec(
    mesh: DeviceMesh, placements: tuple[Placement, ...], shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype
) -> DTensorSpec:
    return DTensorSpec(mesh, placements, tensor_meta=TensorMeta(shape, strides, dtype))


def _from_local(local: Tensor, of: DTensor, placements: Any, shape: Any, strides: Any) -> DTensor:
    if type(local) is Tensor and not local.requires_grad and _inside(of):
        size = torch.Size(map(int, shape))
        spec = _spec(of.device_mesh, tuple(placements), size, tuple(map(int, strides)), local.dtype)
        return _with_spec(local.view_as(local), spec)
    return DTensor.from_local(local, of.device_mesh, placements, run_check=False, shape=shape, stride=strides)


def _inside(x: DTensor) -> bool:
    """Whether this rank is in the mesh."""
    return x.device_mesh.get_coordinate() is not None


def _none_of(meta: Tensor, x: DTensor) -> Tensor:
    """What a rank outside of the mesh of `x` has of a result."""
    return meta.new_empty([0] * meta.dim(), device=x.device)


def _results(x: DTensor, call: Any, metas: Sequence[Tensor]) -> tuple[DTensor, ...]:
    """The results of a call, of these shapes, strides and dtypes; no placement of `x` is Partial."""
    found = _local_result(x, call) if _inside(x) else None
    return _placed(found, x, x.placements, call, metas)


def _placed(
    found: Any, x: DTensor, before: Sequence[Placement], call: Any, metas: Sequence[Tensor]
) -> tuple[DTensor, ...]:
    """Local results, or None outside of the mesh, as DTensors; `before` are the placements of what was reduced."""
    if found is None:  # from_local makes it empty, but reads the shape of a scalar from it
        found = [torch.empty([0] * min(meta.dim(), 1), dtype=meta.dtype, device=x.device) for meta in metas]
    placements = [_after(call.title, placement, call.dims, call.keepdim) for placement in before]
    pairs = zip([found] if isinstance(found, Tensor) else found, metas, strict=True)
    return tuple(_from_local(local, x, placements, meta.shape, meta.stride()) for local, meta in pairs)


# --- placements ------------------------------------------------------------------------------------------------------


def _is_shard(placement: Placement) -> bool:
    """Whether it is a Shard or a _StridedShard."""
    return hasattr(placement, "dim")


def _uncut(x: DTensor, dim: int) -> list[Placement]:
    """The placements of `x` once every rank has all of a dim."""
    at = dim % x.dim()
    return [Replicate() if _is_shard(one) and one.dim == at else one for one in x.placements]


@enter
def uncut(x: DTensor, dim: int) -> DTensor:
    """`x`, whole along a dim on every rank."""
    in_range = x.dim() > 0 and -x.dim() <= dim < x.dim()  # the call refuses others
    return x.redistribute(placements=_uncut(x, dim)) if in_range else x


def _after(name: str, placement: Placement, reduced: list[int], keepdim: bool) -> Placement:
    """The placement of the result: kept dims stay cut as they are."""
    if placement.is_replicate() or placement.is_partial():
        return Replicate()
    if not _is_shard(placement):
        raise NotImplementedError(f"{name}(): there is no rule for the placement {placement}: use redistribute() first")
    if placement.dim in reduced:
        return Replicate()
    return _moved(placement, placement.dim if keepdim else placement.dim - sum(d < placement.dim for d in reduced))


def _moved(placement: Placement, dim: int) -> Placement:
    """A Shard or _StridedShard, but of another dim."""
    strided = hasattr(placement, "split_factor")
    return type(placement)(dim, split_factor=placement.split_factor) if strided else type(placement)(dim)


def _without_partials(x: DTensor) -> DTensor:
    """`x` with its Partial placements replicated: sums are joined pairwise in rank order, others as torch does it."""
    mesh, axes = x.device_mesh, [axis for axis, placement in enumerate(x.placements) if placement.is_partial()]
    if not axes:
        return x
    placements = [Replicate() if axis in axes else placement for axis, placement in enumerate(x.placements)]
    if not _inside(x) or any(
        type(x.placements[axis]) is not Partial or x.placements[axis].reduce_op != "sum" for axis in axes
    ):
        return x.redistribute(placements=placements)
    groups = [mesh.get_group(axis) for axis in reversed(axes) if mesh.size(axis) > 1]
    return _from_local(_joined(x._local_tensor, groups), x, placements, x.shape, x.stride())


def _joined(local: Tensor, groups: list[Any]) -> Tensor:
    """The sum of the ranks' tensors over each group in turn, rounded once at the end."""
    dtype = local.dtype
    wide = node_dtype("sum", dtype, dtype) if len(groups) > 1 else dtype
    total = local.clone() if wide == dtype else torch.ops.gpureduce.sum(local[None], [0], dtype=wide)
    for group in groups:
        distributed._all_reduce(total, group, False, False)
    return total if wide == dtype else torch.ops.gpureduce._finish(total, "sum", 1, dtype)


# --- this rank's part of the result ----------------------------------------------------------------------------------


def _local_result(x: DTensor, call: Any, nodes: Tensor | None = None) -> Any:
    """What this rank holds of the result; no placement of `x` is Partial. `nodes`: its own, where they are known."""
    if call.is_free(x.dtype):
        return _free_result(x, call, nodes)
    alone, shards = _shards(x, call)
    if shards is None:
        return alone
    local, call, sizes, order, group = shards
    return call.join_shards(local, sizes, order, group)


def _begun(x: DTensor, call: Any) -> "tuple[_Found, Tensor, Any]":
    """Who holds what, this rank's tensor, and its part of the result if nothing is to be exchanged for it."""
    shape, local = tuple(map(int, x.shape)), x._local_tensor
    found = _find(x.device_mesh, x.placements, shape, tuple(map(int, x.stride())), tuple(call.dims))
    _check_local(call.title, x, shape, found.local)
    filled = [shape[d] if d in call.dims else n for d, n in enumerate(local.shape)]
    if found.axes and 0 not in filled:
        return found, local, None
    local = local.new_empty(filled) if found.axes else local
    return found, local, call(laid_out(local, call.dims, list(found.order)))


def _free_result(x: DTensor, call: Any, nodes: Tensor | None) -> Tensor:
    """The result of a call in which no order shows: wherever a rank's elements lie, it reduces them on its own."""
    found, local, alone = _begun(x, call)
    if alone is not None:
        return alone
    mesh, kept = x.device_mesh, [d for d in range(x.dim()) if d not in call.dims]
    held = {rank: all(_length(runs[d]) for d in call.dims) for rank, runs in found.held.items()}
    if nodes is None or 0 in local.shape:
        nodes = own_nodes(local.resolve_conj().resolve_neg(), call)
    nodes, group = nodes.reshape(-1), _group(mesh, found.axes)
    steps = [(found.axes, group)] if group else [((axis,), mesh.get_group(axis)) for axis in found.axes]
    for axes, group in steps:  # without a group of all, one dim of the mesh after the other
        ranks = _ranks(mesh, axes)
        if any(held[rank] for rank in ranks):
            size = product(found.local[d] for d in kept) * call.width(x.dtype)
            nodes = join_freely(nodes, size, [held[rank] for rank in ranks], call, group)
        held = _held_along(mesh, axes, held)
    count = product(int(x.shape[d]) for d in call.dims)
    return call.result(nodes, count, found.local)


def _held_along(mesh: DeviceMesh, axes: tuple[int, ...], held: dict[int, bool]) -> dict[int, bool]:
    """Which ranks hold something once they have what any of those has that differ from them along these dims alone."""
    places, rows = _coordinates(mesh), {}
    others = {rank: tuple(at for axis, at in enumerate(places[rank]) if axis not in axes) for rank in held}
    for rank, has in held.items():
        rows[others[rank]] = has or rows.get(others[rank], False)
    return {rank: rows[others[rank]] for rank in held}


def _shards(x: DTensor, call: Any) -> tuple[Any, tuple | None]:
    """The result where nothing is to be exchanged; otherwise what join_shards takes."""
    mesh, reduced, shape = x.device_mesh, call.dims, tuple(map(int, x.shape))
    found, local, alone = _begun(x, call)
    if alone is not None:
        return alone, None
    axes, held, of_all, dim, sizes = found.axes, found.held, found.of_all, found.dim, found.sizes
    order = list(found.order)
    # Down here torch's own operators are told nothing of lazy conjugation and negation, and not all of them look.
    local = local.resolve_conj().resolve_neg()
    group = _group(mesh, axes)
    if group is None:  # all dims of the mesh but one gather
        keep = max(axes, key=mesh.size)
        for axis in axes:
            if axis != keep:
                local, held = _gathered(local, held, mesh, axis, reduced, order)
        axes, group = (keep,), mesh.get_group(keep)
        of_all = tuple(held[rank] for rank in _ranks(mesh, axes))
        dim, sizes = _slabs(of_all, shape, found.order, tuple(reduced))
    if sizes is None:
        local, sizes = _to_slabs(local, of_all, shape, dim, call, order, group)
    order = _with_dim(order, dim)
    local = laid_out(local, reduced, order)
    return None, (local, replace(call, shard_dim=dim), tuple(sizes), order, group)


@enter
@between_graphs
def reduce_all(
    name: str, tensors: Sequence[DTensor], dtypes: Sequence[torch.dtype | None]
) -> list[tuple[list[int], Tensor]]:
    """The results of an operator that divides by nothing, over all dims of each tensor, on every rank of its mesh.

    Those that are cut alike, and of one dtype, are joined in two messages together. Such results stand side by side:
    each block has the places of its tensors.
    """
    blocks: list[tuple[list[int], Tensor]] = []
    bundles: dict[Any, _Bundle] = {}
    groups: dict[Any, Any] = {}
    known: dict[_Whole, _Bundle] = {}  # hundreds of tensors have few layouts
    here = [x._local_tensor for x in tensors]
    given = zip(tensors, here, dtypes, strict=True)
    layouts = ((id(x.device_mesh), x._spec, dtype, t.shape, t.stride(), t.device) for x, t, dtype in given)
    wholes = _wholes(name, tuple(layouts))
    for i, (x, local, whole) in enumerate(zip(tensors, here, wholes, strict=True)):
        bundle, shards = known.get(whole), whole.shards
        if not whole.ready:
            alone, arguments = _shards(_without_partials(x), whole.call)
            if arguments is None:
                blocks.append(([i], alone[None]))
                continue
            local, call, *_, group = arguments
            shards = Shards.of(*arguments)
            if not shards.plan.realigns:
                blocks.append(([i], join_shards(*arguments)[None]))
                continue
            bundle = _bundle(bundles, call, local, group)
        elif bundle is None:
            key = x.device_mesh, whole.axes
            if key not in groups:
                groups[key] = _group(*key) if whole.axes else None
            bundle = known[whole] = _bundle(bundles, whole.call, local, groups[key])
        bundle.places.append(i)
        bundle.shards.append(shards)
        bundle.tensors.append(local)
    for one in bundles.values():
        if one.group is None:
            nodes = one.call.nodes_of_many(one.tensors, 0, 1, one.tensors[0])
        else:
            nodes = join_many(one.shards, one.tensors, one.call, one.group)[:, 0]
        blocks.append((one.places, one.call.finish(nodes, 1)))  # none divides by a count
    return blocks


@dataclass
class _Bundle:
    """Tensors that are reduced together. Their calls differ in dims alone."""

    call: Call
    group: Any  # None: every rank has all elements
    places: list[int] = field(default_factory=list)
    shards: list[Shards | None] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)


def _bundle(bundles: dict[Any, _Bundle], call: Call, local: Tensor, group: Any) -> _Bundle:
    """The one to which such a tensor belongs."""
    return bundles.setdefault((group, local.dtype, call.dtype, local.device), _Bundle(call, group))


@dataclass(frozen=True, eq=False)
class _Whole:
    """What the layout of a DTensor says about the reduction of all of its dims."""

    call: Call
    ready: bool = False  # this rank's tensor can be reduced together with others: nothing has to be moved before
    axes: tuple[int, ...] = ()  # the dim of the mesh that cuts it, if one does
    shards: Shards | None = None


@lru_cache(maxsize=64)
def _wholes(name: str, layouts: tuple[Any, ...]) -> list[_Whole]:
    """Of a whole list: it is found at once in the next step, whose layouts are the same objects."""
    return [_whole(name, *layout) for layout in layouts]


@lru_cache(maxsize=1024)
def _whole(
    name: str,
    which: int,
    spec: Any,
    dtype: torch.dtype | None,
    local: tuple[int, ...],
    strides: tuple[int, ...],
    device: torch.device,
) -> _Whole:
    """It is kept: a model's gradients have few layouts, the same in every step. `local` is the shape that is here, and
    `which` the id of the mesh: _kept says why."""
    mesh, placements, meta = spec.mesh, spec.placements, spec.tensor_meta
    shape, result = tuple(meta.shape), _dtype_of_result(name, meta.dtype, dtype, min(product(meta.shape), 1))
    call = Call(known()[name], [*range(len(shape))], False, dtype, result, -1)
    found = _find(mesh, placements, shape, tuple(meta.stride), tuple(call.dims))
    order = _with_dim(found.order, found.dim) if found.axes else found.order
    if (
        any(placement.is_partial() for placement in placements)
        or tuple(local) != found.local
        or not lies_in_order(local, strides, order)
    ):
        return _Whole(call)
    if not found.axes:
        return _Whole(call, ready=True)
    if len(found.axes) > 1 or found.sizes is None:
        return _Whole(call)
    call = replace(call, shard_dim=found.dim)
    _, rank = place(call.title, mesh.get_group(found.axes[0]))
    shards = Shards.of_shape(tuple(local), meta.dtype, call, found.sizes, order, rank)
    return _Whole(call, shards.plan.realigns, found.axes, shards)


@lru_cache(maxsize=256)
def _dtype_of_result(name: str, source: torch.dtype, dtype: torch.dtype | None, elements: int) -> torch.dtype:
    """What an operator makes of so many elements; torch's errors."""
    return getattr(torch.ops.gpureduce, name)(torch.empty(elements, dtype=source, device="meta"), dtype=dtype).dtype


def _order(shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """The dims in the contract's order, slowest first, without dims of size 1."""
    return slowest_first(strides, [d for d in dims if shape[d] != 1])


def _with_dim(order: Sequence[int], dim: int) -> list[int]:
    """An order with the dim that is cut, which may be of size 1."""
    return [*order] if dim in order else [dim, *order]


def _check_local(name: str, x: DTensor, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    local = tuple(x._local_tensor.shape)
    if local != wanted:
        raise ValueError(
            f"{name}(): this rank's local tensor has the shape {local}, but by its placements {x.placements} a DTensor "
            f"of the shape {shape} has {wanted} here: DTensor.from_local needs shape= and stride= where shards are "
            "uneven, and shards as torch.chunk makes them"
        )


# --- who holds what --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """What the layout of a DTensor says to a rank about a reduction of some of its dims."""

    local: tuple[int, ...]  # the shape of this rank's tensor
    order: tuple[int, ...]  # of the reduced dims
    axes: tuple[int, ...]  # the dims of the mesh that cut reduced dims; the rest is about these, of what is not empty
    held: dict[int, _Held]  # by rank
    of_all: tuple[_Held, ...]  # the same in the order of the ranks
    dim: int
    sizes: list[int] | None


@_kept(256)
def _find(
    mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    reduced: tuple[int, ...],
) -> _Found:
    """It is kept: a model's tensors have few layouts, and a norm of hundreds of them should not take long."""
    cuts = _cuts(placements, mesh)
    order = tuple(_order(shape, strides, reduced))
    local = tuple(map(_length, _held(shape, cuts, tuple(mesh.get_coordinate()))))
    axes = tuple(axis for axis, cut in enumerate(cuts) if cut and cut[0] in reduced)
    if not axes or any(shape[d] == 0 for d in reduced):
        return _Found(local, order, axes, {}, (), -1, None)
    held = {rank: _held(shape, cuts, _coordinates(mesh)[rank]) for rank in _ranks(mesh, axes)}
    of_all = tuple(held.values())
    return _Found(local, order, axes, held, of_all, *_slabs(of_all, shape, order, reduced))


def _cuts(placements: Sequence[Placement], mesh: DeviceMesh) -> tuple[_Cut | None, ...]:
    """What each dim of the mesh cuts."""
    pairs = zip(placements, mesh.shape, strict=True)
    return tuple(_cut(placement, parts) if parts > 1 and _is_shard(placement) else None for placement, parts in pairs)


def _cut(placement: Placement, parts: int) -> _Cut:
    return placement.dim, parts, getattr(placement, "split_factor", 1)


@lru_cache(maxsize=4096)
def _held(shape: tuple[int, ...], cuts: tuple[_Cut | None, ...], coordinate: tuple[int, ...]) -> _Held:
    """The indices along each dim that the rank at this coordinate of the mesh holds."""
    held = [((0, size),) for size in shape]
    for cut, at in zip(cuts, coordinate, strict=True):
        if cut:
            dim, parts, factor = cut
            runs = [_chunk(_chunk((0, _length(held[dim])), factor, run), parts, at) for run in range(factor)]
            held[dim] = _united(piece for run in runs for piece in _within(held[dim], run))
    return tuple(held)


def _chunk(run: tuple[int, int], parts: int, index: int) -> tuple[int, int]:
    """A part of a run as torch.chunk makes it."""
    first, last = run
    size = -(-(last - first) // parts)
    return min(first + index * size, last), min(first + (index + 1) * size, last)


def _within(runs: _Runs, of: tuple[int, int]) -> _Runs:
    """The part of runs that lies from one place to another, where places are counted through all of them."""
    found, place = [], 0
    for first, last in runs:
        a, b = max(of[0] - place, 0), min(of[1] - place, last - first)
        if a < b:
            found.append((first + a, first + b))
        place += last - first
    return tuple(found)


def _united(runs: Any) -> _Runs:
    """The runs, with neighbours in one."""
    united: list[tuple[int, int]] = []
    for first, last in runs:
        if united and united[-1][1] == first:
            first = united.pop()[0]
        united.append((first, last))
    return tuple(united)


def _union(several: Sequence[_Runs]) -> _Runs:
    """What some ranks hold together, of whom each two hold the same or nothing in common."""
    return _united(sorted(set().union(*several)))


def _common(runs: _Runs, first: int, last: int) -> _Runs:
    """The runs between two indices."""
    return tuple((max(a, first), min(b, last)) for a, b in runs if max(a, first) < min(b, last))


def _length(runs: _Runs) -> int:
    return sum(last - first for first, last in runs)


@lru_cache(maxsize=256)
def _slabs(
    held: tuple[_Held, ...], shape: tuple[int, ...], order: tuple[int, ...], reduced: tuple[int, ...]
) -> tuple[int, list[int] | None]:
    """The dim to cut into slabs, one per rank; and their sizes, if the ranks hold such slabs, in their order."""
    cut = [d for d in reduced if any(_length(of_rank[d]) != shape[d] for of_rank in held)]
    # The slowest dim that gives each rank something keeps a rank's elements together; otherwise the largest.
    dim = max(cut, key=lambda d: (min(shape[d], len(held)), -order.index(d) if d in order else 1))
    runs = [run for of_rank in held for run in of_rank[dim]]
    straight = all(len(of_rank[dim]) <= 1 for of_rank in held) and all(a[1] == b[0] for a, b in pairwise(runs))
    return dim, [_length(of_rank[dim]) for of_rank in held] if len(cut) == 1 and straight else None


@lru_cache(maxsize=256)
def _coordinates(mesh: DeviceMesh) -> dict[int, tuple[int, ...]]:
    """Where in the mesh each rank is."""
    with _disable_current_modes():  # the mesh is no fake tensor, even where a graph is traced
        ranks = mesh.mesh.flatten().tolist()
    return dict(zip(ranks, itertools.product(*map(range, mesh.shape)), strict=True))


def _ranks(mesh: DeviceMesh, axes: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks that differ from this one along these dims of the mesh alone, as groups count them."""
    own, places = mesh.get_coordinate(), _coordinates(mesh)
    others = [axis for axis in range(mesh.ndim) if axis not in axes]
    return tuple(sorted(rank for rank, at in places.items() if all(at[axis] == own[axis] for axis in others)))


def _group(mesh: DeviceMesh, axes: tuple[int, ...]) -> Any:
    """The group of these ranks, or None: to make one, torch needs ranks that are not here, or names that may differ."""
    if len(axes) == 1:
        return mesh.get_group(axes[0])
    ranks = _ranks(mesh, axes)
    if ranks == tuple(range(dist.get_world_size())):
        return dist.group.WORLD
    root = getattr(mesh, "_get_root_mesh", lambda: mesh)()
    flattened = getattr(root, "_flatten_mapping", {}).values()
    return next((flat.get_group() for flat in flattened if tuple(sorted(_coordinates(flat))) == ranks), None)


# --- moving shards ---------------------------------------------------------------------------------------------------


def _gathered(
    local: Tensor, held: dict[int, _Held], mesh: DeviceMesh, axis: int, reduced: list[int], order: list[int]
) -> tuple[Tensor, dict[int, _Held]]:
    """What the ranks along a dim of the mesh hold together; and what every rank then holds."""
    rows: dict[tuple[int, ...], list[_Held]] = {}
    others = {rank: at[:axis] + at[axis + 1 :] for rank, at in _coordinates(mesh).items()}
    for rank, runs in held.items():
        rows.setdefault(others[rank], []).append(runs)
    unions = {at: tuple(map(_union, zip(*row, strict=True))) for at, row in rows.items()}
    after = {rank: unions[others[rank]] for rank in held}

    ranks = _ranks(mesh, (axis,))
    counts = [product(_shape(held[rank])) for rank in ranks]
    blocks = gather(local.reshape(-1), counts, mesh.get_group(axis)).split(counts)
    own = after[dist.get_rank()]
    return _assembled(local, own, blocks, [held[rank] for rank in ranks], reduced, order), after


def _to_slabs(
    local: Tensor,
    held: tuple[_Held, ...],
    shape: tuple[int, ...],
    dim: int,
    call: Any,
    order: list[int],
    group: Any,
) -> tuple[Tensor, list[int]]:
    """What this rank holds for its slab: all of the reduced dims but a run of `dim`; and the sizes of all slabs."""
    world, rank = place(call.title, group)
    slabs = list(pairwise(even(shape[dim], world)))
    parts = []
    for first, last in slabs:
        before, count = _length(_common(held[rank][dim], 0, first)), _length(_common(held[rank][dim], first, last))
        parts.append(local.narrow(dim, before, count))
    sent = [of_rank[:dim] + (_common(of_rank[dim], *slabs[rank]),) + of_rank[dim + 1 :] for of_rank in held]
    counts = [product(_shape(runs)) for runs in sent]
    blocks = exchange_parts(parts, counts, group)
    whole = [((0, shape[d]),) if d in call.dims else runs for d, runs in enumerate(held[rank])]
    whole[dim] = (slabs[rank],)
    return _assembled(local, tuple(whole), blocks, sent, call.dims, order), [last - first for first, last in slabs]


def _shape(held: _Held) -> list[int]:
    return [_length(runs) for runs in held]


def _assembled(
    like: Tensor, whole: _Held, blocks: Sequence[Tensor], held: list[_Held], reduced: list[int], order: list[int]
) -> Tensor:
    """The tensor of the indices in `whole`, of blocks that hold some of them each; with its dims in order in memory."""
    shape = _shape(whole)
    axes = axes_of(like, reduced, order)
    tensor = permuted(like.new_empty([shape[d] for d in axes]), reduced, order)
    for block, runs in zip(blocks, held, strict=True):
        places = [_places(of_whole, of_block) for of_whole, of_block in zip(whole, runs, strict=True)]
        _put(tensor, block.view(_shape(runs)), list(enumerate(places)))
    return tensor


def _places(whole: _Runs, runs: _Runs) -> _Runs:
    """The places of runs inside of the runs that contain them."""
    begins = [_length(_common(whole, 0, first)) for first, _ in runs]
    return tuple((begin, begin + last - first) for begin, (first, last) in zip(begins, runs, strict=True))


def _put(slab: Tensor, block: Tensor, places: list[tuple[int, _Runs]]) -> None:
    """Writes the elements of a block to their places along each dim."""
    if not places:
        slab.copy_(block)
        return
    (dim, runs), *others = places
    done = 0
    for first, last in runs:
        _put(slab.narrow(dim, first, last - first), block.narrow(dim, done, last - first), others)
        done += last - first


def _composed(op: Any, *arguments: Any, **named: Any) -> Any:
    """What an operator is composed of. Autograd comes here without being asked, but not in inference mode."""
    return op.decompose(*arguments, **named)


def _refused(op: Any, self: DTensor, function: str) -> Any:
    raise NotImplementedError(f"{function}(): gradients of a DTensor are of first order: they cannot be differentiated")


def _every_dim(x: Tensor, *others: Any) -> Sequence[int]:
    return range(x.dim())


# Rules whose results have layouts that follow from the arguments' layouts. For each, the dims that a rank must have all
# of, to make its part of the results alone.
_NEEDED = {
    _reduce: lambda self, dim=None, *others: _reduced(dim, self.dim()),
    _var_mean: lambda self, dim, *others: _reduced(dim, self.dim()),
    _weighted_sum: lambda self, weight, dim=None, *others: _reduced(dim, self.dim()),
    _apply: _every_dim,
    _softmax: lambda self, dim: _reduced([dim], self.dim()),
    _softmax_backward: lambda grad, result, dim, dtype: _reduced([dim], grad.dim()),
    _log_prob: _every_dim,
    _log_prob_backward: _every_dim,
    _rms_norm: lambda input, dims, *others: range(input.dim() - dims, input.dim()),
    _rms_norm_backward: _every_dim,
    _layer_norm: lambda input, dims, *others: range(input.dim() - dims, input.dim()),
    _layer_norm_backward: _every_dim,
}

_RULES = {name: _reduce for name, operation in known().items() if not operation.part} | {
    **dict.fromkeys(exact_operators(), _reduce),
    "exact_weighted_sum": _weighted_sum,
    "_var_mean": _var_mean,
    "_apply": _apply,
    "_joined": lambda op, self: _without_partials(self),
    "_first_order": _refused,
    "weighted_sum": _weighted_sum,
    **dict.fromkeys(("argmax", "argmin"), _index),
    **dict.fromkeys(("segment_sum", "segment_mean", "segment_prod", "_segment_amax", "_segment_amin"), _segments),
    "exact_segment_sum": _segments,
    **dict.fromkeys(("_segment_logsumexp", "segment_softmax"), _segments_of_whole),
    "_segment_prod_backward": _segments_backward,
    "_segment_softmax_backward": _segments_backward,
    "_segment_spread": _segment_spread,
    **dict.fromkeys(("_gather_sum", "_gather_mean", "_gather_amax", "_gather_amin"), _gather),
    "_embedding": _embedding,
    **dict.fromkeys(("_index_plan", "_index_sort_values", "_gather_values", "_index_sum_values"), _on_all),
    **dict.fromkeys((f"index_{name}" for name in ("sum", "mean", "amax", "amin", "add", "add_")), _composed),
    **dict.fromkeys((f"gather_{name}" for name in ("sum", "mean", "amax", "amin")), _composed),
    **dict.fromkeys(("index_reduce", "index_reduce_", "scatter_reduce"), _composed),
    **dict.fromkeys(("scatter_add", "embedding", "embedding_bag", "bincount"), _composed),
    **dict.fromkeys((f"segment_{name}" for name in ("amax", "amin", "logsumexp")), _composed),
    "softmax": _softmax,
    "log_softmax": _softmax,
    "_softmax_backward": _softmax_backward,
    "_log_softmax_backward": _softmax_backward,
    "_log_prob": _log_prob,
    "_log_prob_backward": _log_prob_backward,
    "_rms_norm": _rms_norm,
    "_rms_norm_backward": _rms_norm_backward,
    "_layer_norm": _layer_norm,
    "_layer_norm_backward": _layer_norm_backward,
}
for _operator, _reduction in _RULES.items():
    for _overload in getattr(torch.ops.gpureduce, _operator).overloads():
        if _reduction is _softmax and _overload != "default":
            continue  # it is composed of the default
        _whole_name = f"gpureduce::{_operator}" + ("" if _overload == "default" else f".{_overload}")
        torch.library.register_torch_dispatch(_whole_name, DTensor, _rule(_reduction))
