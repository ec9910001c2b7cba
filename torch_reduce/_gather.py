"""Message passing: reductions by target of rows by source, without the tensor of messages."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.utils._pytree import register_dataclass

from . import _arguments, _library
from ._arguments import integer, joined, plain_tensors, tensors
from ._index import IndexPlan, flat_index, sorted_index
from ._indexed import _expect_weights, _lists

__all__ = ["GatherPlan", "gather_amax", "gather_amin", "gather_mean", "gather_plan", "gather_sum"]

_ops = torch.ops.gpureduce


@dataclass(frozen=True, eq=False, repr=False)
class GatherPlan:
    """What :func:`gather_plan` found: edges sorted by their targets, and for gradients by their sources.

    It is a node of ``torch.utils._pytree``, as :class:`IndexPlan` is.

    Attributes:
        by_target: the plan of all targets. It also serves :func:`index_sum` and its kin, for what edges have.
        source: of shape (edges,): the edges' sources in the order of ``by_target``.
        by_source: the plan of all sources, or None.
        target: of shape (edges,): the edges' targets in the order of ``by_source``, or None.
        size: the number of outputs.
    """

    by_target: IndexPlan
    source: Tensor
    by_source: IndexPlan | None
    target: Tensor | None

    @property
    def size(self) -> int:
        """The number of outputs."""
        return self.by_target.size

    def __repr__(self) -> str:
        edges, size, device = self.source.size(0), self.size, str(self.source.device)
        rows = None if self.by_source is None else self.by_source.size
        return f"GatherPlan({edges=}, {size=}, {rows=}, {device=})"


register_dataclass(GatherPlan, serialized_type_name="torch_reduce.GatherPlan")


def gather_plan(source: Tensor, target: Tensor, size: int | SymInt, rows: int | SymInt | None = None) -> GatherPlan:
    """Sorts edges by target, for several calls of :func:`gather_sum` and its kin with the same edges.

    Args:
        source: int64 or int32, of any shape and strides, on the CPU, a CUDA device or meta: the row that each edge
            reads. With several dims it is flattened in row-major order. Of a DTensor every rank gets all.
        target: int64 or int32, of as many elements, on the same device: the output of each edge, in [0, size).
        size: the number of outputs.
        rows: the number of rows of ``x``. With it the edges are also sorted by source, as gradients of ``x`` need
            them. Without it each backward pass sorts them.

    Returns:
        A :class:`GatherPlan` with new tensors on the device of ``target``. It is not differentiable. The same edges
        give the same plan on every device.

    Entries on a GPU are read by the GPU alone, as :func:`index_plan` says. ``torch.compile`` and ``torch.export`` work.

    Raises:
        TypeError: an argument is no tensor, or a number is no integer.
        IndexError: on the CPU, an entry of ``target`` is not in [0, size), or one of ``source`` not in [0, rows).
        RuntimeError: other dtypes, numbers of elements or devices; a number is negative.

    >>> plan = torch_reduce.gather_plan(torch.tensor([0, 0, 1]), torch.tensor([2, 0, 2]), 3, rows=2)
    >>> plan
    GatherPlan(edges=3, size=3, rows=2, device='cpu')
    >>> torch_reduce.gather_sum(torch.tensor([1.0, 4.0]), plan)
    tensor([1., 0., 5.])
    """
    name = "gather_plan"
    integer(name, "size", size)
    if rows is not None:
        integer(name, "rows", rows)
    sources, targets = flat_index(name, "source", source), flat_index(name, "target", target)
    _expect_entries(name, sources, targets)
    by_target = sorted_index(name, "target", targets, "size", size)
    by_source = None if rows is None else sorted_index(name, "source", sources, "rows", rows)
    read = sources.index_select(0, by_target.order)
    return GatherPlan(by_target, read, by_source, by_source and targets.index_select(0, by_source.order))


def _expect_entries(name: str, source: Tensor, target: Tensor) -> None:
    if source.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name}(): source: expected a tensor of int64 or int32, but got {source.dtype}")
    if source.device != target.device:
        raise RuntimeError(f"{name}(): source: expected to be on {target.device} as target, but is on {source.device}")
    if source.size(0) != target.size(0):
        raise RuntimeError(
            f"{name}(): target: expected {source.size(0)} entries, as many as source has, but got {target.size(0)}"
        )


def _gather(
    kind: str,
    x: Tensor,
    source: Tensor | GatherPlan,
    target: Tensor | None,
    size: int | SymInt | None,
    dim: int,
    out: Tensor | None,
    weight: Tensor | None = None,
    **last: Any,
) -> Tensor:
    name = f"gather_{kind}"
    given = {key: value for key, value in (("weight", weight), ("out", out)) if value is not None}
    tensors(name, x=x, **given)
    integer(name, "dim", dim)
    _arguments.dtype(name, last.get("dtype"))
    overload = "default" if out is None else "out"
    x = joined(x)
    given = {"x": x, **given}
    if out is not None:
        last["out"] = out
    names = {"data": "x", "rows": "source", "index": "target"}
    if not isinstance(source, GatherPlan):
        if not isinstance(source, Tensor):
            raise TypeError(f"{name}(): argument 'source' must be Tensor or GatherPlan, not {type(source).__name__}")
        plain_tensors(name, target=target)
        if size is None:
            raise TypeError(f"{name}(): argument 'size', the number of outputs, may be left out with a GatherPlan only")
        integer(name, "size", size)
        source, target = _lists(name, given, source=source, target=target)
        if weight is not None:
            last["weight"] = weight
        operator = getattr(getattr(_ops, name), overload)
        return _library.call(name, operator, x, source, target, size, dim, others=names, **last)
    if target is not None:
        raise TypeError(f"{name}(): argument 'target' must be left out beside a GatherPlan, which has it")
    if size is not None and size != source.size:
        raise ValueError(f"{name}(): size: the plan has {source.size} outputs, but size is {size}")
    _expect_weights(name, weight, dim, source.source.shape[0])
    there, back = source.by_target, source.by_source
    if back is not None and isinstance(x, Tensor) and x.dim() > 0 and x.size(dim) != back.size:
        raise RuntimeError(
            f"{name}(): x: expected {back.size} rows along dim {dim}, as many as the plan has, but got {x.size(dim)}"
        )
    lists = {"source": source.source, "offsets": there.offsets, "order": there.order}
    if back is not None:
        lists |= {"target": source.target, "back_offsets": back.offsets, "back_order": back.order}
    rows, offsets, edges, *others = _lists(name, given, **lists)
    operator = getattr(getattr(_ops, f"_gather_{kind}"), overload)
    returning = others or (None, None, None)
    return _library.call(name, operator, x, rows, offsets, weight, edges, *returning, dim, others=names, **last)


def gather_sum(
    x: Tensor,
    source: Tensor | GatherPlan,
    target: Tensor | None = None,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    weight: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The sums, for each target, of the rows of ``x`` that edges bring to it: without the tensor of messages.

    The result and all gradients have the bits of ``index_sum(x[source], target, size, weight=weight)``, but rows are
    read where they lie in ``x``. So the sum of a target has the bits of :func:`torch_reduce.sum` of its rows, in the
    order of the edges.

    Args:
        x: a tensor of one dim or more, of any strides and of any dtype that :func:`torch_reduce.sum` takes, on the
            CPU, a CUDA device or meta; or a DTensor, or a :class:`torch_reduce.distributed.Shard` that is cut along
            another dim than ``dim`` (docs/distributed.md).
        source: int64 or int32, of shape (edges,), on the same device: the row of ``x`` along ``dim`` that each edge
            reads, in [0, x.size(dim)). Or a :class:`GatherPlan` of source and target, by :func:`gather_plan`: calls
            with the same edges then share the sorts.
        target: int64 or int32, of shape (edges,): the output of each edge, in [0, size). With a plan it is left out.
        size: the number of outputs. With a plan it may be left out.
        dim: the dim of the rows. It may be any, and counted from the end.
        weight: a real tensor of shape (edges,) that each edge's row is multiplied by; or one of as many dims as ``x``,
            with ``edges`` along ``dim``, which is broadcast to the messages in all other dims: (edges, heads, 1)
            beside ``x`` of (rows, heads, width) has a number for each head. ``x`` must be real, too. Beside a DTensor
            it is one, of any placements. Beside a Shard it may be one, cut along the same dim.
        dtype: the dtype of the result, as of :func:`index_sum`.
        out: as for :func:`index_sum`.

    Returns:
        A tensor of the shape of ``x``, but with ``size`` in place of the size of ``dim``. The sum of no rows is 0.

    **Gradients** of any order and in forward mode. A row of ``x`` has the sum of its targets' gradients, times the
    weights, in the order of the edges: in float32 or wider, rounded once. A weight has the dot product of what it
    multiplies and the target's gradient, in the order of :func:`weighted_sum`. ``torch.vmap``, ``torch.compile``,
    ``torch.export`` and CUDA graphs work.

    **Memory** beyond the result: the sort and a copy of ``source``. The gradient of ``weight``, and a weight for each
    element of each message, need as much as the messages have.

    **Entries on a GPU** are read by the GPU alone, and nothing waits for it. One that is out of range stops the kernel
    with an assertion, as in :func:`index_plan`.

    Raises:
        TypeError: an argument is no tensor; ``target`` or ``size`` is not given, and ``source`` is no plan; or ``x`` is
            a Shard that is cut along ``dim``.
        IndexError: on the CPU, an entry of ``source`` is not in [0, x.size(dim)), or one of ``target`` not in
            [0, size); ``dim`` is out of range.
        ValueError: ``size`` is not the plan's.
        RuntimeError: shapes, dtypes or devices that do not fit; a wrong ``out``, or ``out`` where a gradient is needed.
        NotImplementedError: a dtype that cannot be summed, or complex numbers with weights.

    >>> x, source, target = torch.tensor([1.0, 4.0]), torch.tensor([0, 0, 1]), torch.tensor([2, 0, 2])
    >>> torch_reduce.gather_sum(x, source, target, 4)
    tensor([1., 0., 5., 0.])
    >>> torch_reduce.gather_sum(x, source, target, 4, weight=torch.tensor([0.5, 1.0, 2.0]))
    tensor([1.0000, 0.0000, 8.5000, 0.0000])
    """
    return _gather("sum", x, source, target, size, dim, out, weight, dtype=dtype)


def gather_mean(
    x: Tensor,
    source: Tensor | GatherPlan,
    target: Tensor | None = None,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The means, for each target, of the rows of ``x`` that edges bring to it: :func:`gather_sum`, divided once.

    Args:
        x: as for :func:`gather_sum`. Integers and bool need a floating or complex ``dtype``.
        source: as for :func:`gather_sum`.
        target: as for :func:`gather_sum`.
        size: as for :func:`gather_sum`.
        dim: as for :func:`gather_sum`.
        dtype: the dtype of the result, as of :func:`torch_reduce.mean`.
        out: as for :func:`gather_sum`.

    Returns:
        A tensor as of :func:`gather_sum`, with the bits of ``index_mean(x[source], target, size)``; the mean of no rows
        is NaN.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`gather_sum`; or the result's
            dtype would be neither floating nor complex.

    >>> torch_reduce.gather_mean(torch.tensor([1.0, 4.0]), torch.tensor([0, 0, 1]), torch.tensor([2, 0, 2]), 3)
    tensor([1.0000,    nan, 2.5000])
    """
    return _gather("mean", x, source, target, size, dim, out, dtype=dtype)


def gather_amax(
    x: Tensor,
    source: Tensor | GatherPlan,
    target: Tensor | None = None,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The largest elements, for each target, among the rows of ``x`` that edges bring to it; NaN if any is NaN.

    Args:
        x: as for :func:`gather_sum`, but real.
        source: as for :func:`gather_sum`.
        target: as for :func:`gather_sum`.
        size: as for :func:`gather_sum`.
        dim: as for :func:`gather_sum`.
        out: as for :func:`gather_sum`, of the dtype of ``x``.

    Returns:
        A tensor as of :func:`gather_sum`, of the dtype of ``x``, with the bits of
        ``index_amax(x[source], target, size)``. Of no rows it is the lowest value of the dtype: -inf for floating ones.

    The gradient of an output is shared equally by the edges whose element equals it; a row of ``x`` has the sum of its
    edges' shares. This needs as much memory as the messages have.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`gather_sum`.

    >>> torch_reduce.gather_amax(torch.tensor([1.0, 4.0]), torch.tensor([0, 0, 1]), torch.tensor([2, 0, 2]), 3)
    tensor([1., -inf, 4.])
    """
    return _gather("amax", x, source, target, size, dim, out)


def gather_amin(
    x: Tensor,
    source: Tensor | GatherPlan,
    target: Tensor | None = None,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The smallest elements, for each target, among the rows of ``x`` that edges bring to it; NaN if any is NaN.

    Args:
        x: as for :func:`gather_amax`.
        source: as for :func:`gather_sum`.
        target: as for :func:`gather_sum`.
        size: as for :func:`gather_sum`.
        dim: as for :func:`gather_sum`.
        out: as for :func:`gather_amax`.

    Returns:
        A tensor as of :func:`gather_amax`. Of no rows it is the largest value of the dtype: inf for floating ones.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`gather_sum`.

    >>> torch_reduce.gather_amin(torch.tensor([1.0, 4.0]), torch.tensor([0, 0, 1]), torch.tensor([2, 0, 2]), 3)
    tensor([1., inf, 1.])
    """
    return _gather("amin", x, source, target, size, dim, out)
