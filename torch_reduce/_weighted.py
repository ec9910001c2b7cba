"""Sums of products of two tensors in one pass, in the contract's order."""

import torch
from torch import Tensor

from . import _arguments, _library

_ops = torch.ops.gpureduce


def _reduce(name, exact, *args, dtype, out, others):
    operator, last = getattr(_ops, f"exact_{name}" if exact else name), dict(dtype=dtype, others=others)
    if out is None:
        return _library.call(name, operator.default, *args, **last)
    return _library.call(name, operator.out, *args, out=out, **last)


def weighted_sum(
    input: _arguments.Input,
    weight: _arguments.Input,
    dim: int | tuple[int, ...] | list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """The sum of ``input * weight`` over ``dim``, with fixed bits, where both are read once and nothing is stored.

    Args:
        input: a tensor of any shape, strides and real dtype, on the CPU, a CUDA device or meta.
        weight: another one, on the same device, that can be broadcast with ``input``: a weight an element, a row, a
            column, or one for all; a mask of bool.
        dim: the dimensions to reduce, of the common shape: an int, or a tuple or list of them. ``None`` and ``()``
            reduce all.
        keepdim: whether the reduced dimensions stay, with size 1.
        dtype: the dtype of the result. By default it is ``out``'s; without ``out`` it is
            ``torch.promote_types(input.dtype, weight.dtype)``, but int64 for integers and bool, and float32 for the
            float8 types.
        out: a tensor to write the result to; it is resized if its shape differs.
        exact: whether a floating result is correctly rounded: the number of its dtype that is nearest to the exact sum
            of the exact products, ties to even. docs/exact.md says what that costs.

    Returns:
        A tensor of the common shape without the reduced dimensions. The sum of no products is 0.

    **Order.** The products are added in the order of docs/order.md, in which :func:`sum` would add the elements of
    ``input``, expanded to the common shape. The layout of ``weight`` changes no bit.

    **Rounding.** Both factors are converted to the accumulator: float32; float64 if one is float64 or the result is;
    int64 for integers and bool. Their product is rounded once, with no fused multiply-add (integers: modulo 2**64), and
    the sum once more at the end. ``dtype`` never rounds the factors. A zero weight does not hide NaN or infinity.
    With ``exact=True`` no factor and no product is rounded, and none overflows or vanishes.

    Raises:
        RuntimeError: shapes that cannot be broadcast, dtypes that cannot be promoted, tensors on two devices, a
            dimension named twice, or an ``out`` of another dtype than ``dtype``, on another device, or with several
            elements in one place.
        IndexError: a dimension out of range.
        TypeError: ``dim`` is neither an int nor several; ``exact`` is not a bool.
        NotImplementedError: complex numbers.

    >>> torch_reduce.weighted_sum(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1.0, 10.0]), dim=1)
    tensor([21., 43.])
    """
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=out)
    input, dim, keepdim, dtype, out = _arguments.read("weighted_sum", given, {}, "sum").values()
    _arguments.boolean("weighted_sum", "exact", exact)
    last = dict(dtype=dtype, out=out, others={"self": "input"})
    return _reduce("weighted_sum", exact, input, weight, dim, keepdim, **last)


def dot(
    input: _arguments.Input,
    other: _arguments.Input,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """The dot product of two vectors, as :func:`torch.dot`, with the bits of :func:`weighted_sum`.

    Args:
        input: a tensor of one dimension.
        other: another one of as many elements and of the same dtype.
        dtype: the dtype of the result: by default the vectors', but int64 for integers and bool, and float32 for the
            float8 types.
        out: as for :func:`weighted_sum`, but of the result's dtype.
        exact: as for :func:`weighted_sum`.

    Returns:
        A tensor without dimensions.

    Raises:
        RuntimeError: tensors of other dimensions, sizes or dtypes, or a wrong ``out``.
        NotImplementedError: complex numbers.

    >>> torch_reduce.dot(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor(11.)
    """
    _arguments.boolean("dot", "exact", exact)
    if input is None or other is None:  # which torch.ops would take for tensors
        _arguments.tensors("dot", input=input, other=other)
    _arguments.dtype("dot", dtype)
    return _reduce("dot", exact, input, other, dtype=dtype, out=out, others={"self": "input", "weight": "other"})
