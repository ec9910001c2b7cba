"""Exact sums in parts: states that are added as integers, in any order, and rounded once.

``sum``, ``mean``, ``nansum``, ``dot``, ``weighted_sum``, ``powsum`` and ``vector_norm`` of torch_reduce take
``exact=True`` and need nothing of this. A state is for sums whose elements are in several places or come one after the
other: in micro-batches, in files, or on the ranks of a group.

    state = torch_reduce.exact.partial(gradient, dim=0)
    torch.distributed.all_reduce(state)
    total = torch_reduce.exact.round(state)

DTensors and Shards need no states: of them, ``exact=True`` adds over the ranks by itself. A state has all digits of its
sum, so no cut and no order changes the result. docs/exact.md says how that is done.
"""

from typing import Any

import torch
from torch import Tensor

from . import _arguments, _library

__all__ = ["partial", "round"]

_ops = torch.ops.gpureduce


def partial(
    input: Tensor,
    dim: _arguments.Dims = None,
    keepdim: bool = False,
    *,
    weight: Tensor | None = None,
    nan_is_zero: bool = False,
) -> Tensor:
    """The exact sums of ``input`` over ``dim``, or of products, as states that can be added.

    Args:
        input: as for :func:`torch_reduce.sum`, but real, and no DTensor or Shard. On each rank it may be the local part
            of one.
        dim: as for :func:`torch_reduce.sum`; with ``weight``, of the common shape.
        keepdim: as for :func:`torch_reduce.sum`.
        weight: adds ``input * weight``, as :func:`torch_reduce.weighted_sum`, with exact products. ``weight=input``
            adds squares.
        nan_is_zero: whether NaN counts as 0, as for :func:`torch_reduce.nansum`. It goes without ``weight``.

    Returns:
        An int64 tensor of the sizes that the sum has, and a last dimension more: of 12 numbers; of 70 for elements of
        float64, and for products without float64; of 138 for products with float64. There is no gradient.

    **Addition.** States of one size are added with ``+``, :func:`torch.sum` or any all_reduce that adds, up to 2**31 of
    them. The sum is a state of all their elements. The numbers are the digits of a fixed-point number, 32 bits apart,
    from the smallest subnormal, or product of two, to beyond the largest finite one. Two more say how many of the
    states that were added had infinities or NaN, and how many had -0 alone or other addends. This is the idea of Neal
    (2015), *Fast exact summation using small and large superaccumulators*, arXiv:1505.05571, and of Collange, Defour,
    Graillat and Iakymchuk (2015), *Numerical reproducibility for the parallel reduction on multi- and many-core
    architectures*.

    Raises:
        TypeError: an argument of another type.
        IndexError: a dimension out of range.
        ValueError: a dimension beyond 64 bits; ``nan_is_zero`` beside a ``weight``.
        RuntimeError: a dimension named twice; a ``weight`` that cannot be broadcast, or is on another device.
        NotImplementedError: a tensor is complex, sparse, a DTensor or a Shard, or of a dtype that
            :func:`torch_reduce.sum` does not take.

    >>> one = torch_reduce.exact.partial(torch.tensor([1e30, 1.0]))
    >>> other = torch_reduce.exact.partial(torch.tensor([-1e30]))
    >>> torch_reduce.exact.round(one + other)
    tensor(1.)
    """
    tensors = {"input": input} if weight is None else {"input": input, "weight": weight}
    for argument, tensor in tensors.items():
        if _is_cut(tensor):
            raise NotImplementedError(
                f"exact.partial(): {argument} is a DTensor or a Shard: give this rank's part of it"
            )
    _arguments.plain_tensors("exact.partial", **tensors)
    dim = _dims(dim)
    _arguments.boolean("exact.partial", "keepdim", keepdim)
    _arguments.boolean("exact.partial", "nan_is_zero", nan_is_zero)
    return _call("partial", input, dim, keepdim, nan_is_zero, weight)


def _call(function: str, *arguments: Any) -> Tensor:
    return _library.call(f"exact.{function}", getattr(_ops, f"_exact_{function}").default, *arguments)


def _dims(dim: Any) -> Any:
    try:
        return _arguments.dims(dim)
    except (TypeError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"exact.partial(): {error}") from None


def _is_cut(input: Any) -> bool:
    """Whether it is a DTensor or a Shard."""
    if isinstance(input, Tensor):
        return _arguments.mesh_of(input) is not None
    return type(input).__module__ == "torch_reduce.distributed._shard"


def round(state: Tensor, dtype: torch.dtype | None = None, count: int | None = None, *, root: bool = False) -> Tensor:
    """The numbers nearest to the sums that states hold, ties to even.

    Args:
        state: of :func:`partial`, or a sum of such states.
        dtype: the dtype of the result, floating. By default float32 for states of 12 numbers, and float64 for others.
        count: divides the sums, before they are rounded: the number of elements, for their mean. From 1 to 2**63 - 1;
            None is 1.
        root: whether the numbers nearest to the square roots of the sums are the result, as of
            :func:`torch_reduce.vector_norm`. It goes without ``count``.

    Returns:
        A tensor of ``state``'s shape without the last dimension. What is too large for ``dtype`` is infinity, or NaN in
        float8_e4m3fn, which has none. The root of a sum below 0 is NaN. There is no gradient.

    Raises:
        TypeError: an argument of another type.
        ValueError: ``count`` is below 1, or too large, or beside ``root``.
        RuntimeError: ``state`` has another dtype or last size than states have, or ``dtype`` is not floating. Nothing
            else of a state can be checked.
        NotImplementedError: ``state`` is a DTensor, or a ``dtype`` that :func:`torch_reduce.sum` does not take.

    >>> state = torch_reduce.exact.partial(torch.tensor([1.0, 2.0, 4.0]))
    >>> torch_reduce.exact.round(state, count=3)
    tensor(2.3333)
    >>> x = torch.tensor([3.0, 4.0])
    >>> torch_reduce.exact.round(torch_reduce.exact.partial(x, weight=x), torch.float32, root=True)
    tensor(5.)
    """
    _arguments.plain_tensors("exact.round", state=state)
    if _is_cut(state):
        raise NotImplementedError(
            "exact.round(): state is a DTensor: give the states of this rank, added over the ranks"
        )
    if layout := _arguments.layout_of(state):
        raise NotImplementedError(f"exact.round(): {layout} tensors are not supported")
    if dtype is None:
        dtype = torch.float32 if state.dim() and state.shape[-1] == _NARROW else torch.float64
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"exact.round(): argument 'dtype' must be torch.dtype, not {type(dtype).__name__}")
    if count is None:
        count = 1
    if isinstance(count, bool) or not isinstance(count, (int, torch.SymInt)):
        raise TypeError(f"exact.round(): argument 'count' must be int, not {type(count).__name__}")
    if isinstance(count, int) and count >= 1 << 63:
        raise ValueError(f"exact.round(): count must be below 2**63, but is {count}")
    _arguments.boolean("exact.round", "root", root)
    return _call("round", state, dtype, count, root)


_NARROW = 12  # numbers of a state of elements that are not of float64
