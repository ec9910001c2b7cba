"""How results are divided and rounded: the tables of docs/order.md."""

import struct

import torch
from torch import Tensor

import torch_reduce

from ._operations import is_inexact


def finish(total: Tensor, count: int | None, dtype: torch.dtype) -> Tensor:
    """Last nodes in the accumulator's dtype -> results: divided once by `count` if there is one, and rounded once."""
    if count is not None:
        total = quotient(total, count)
    if total.dtype == torch.int64 and is_inexact(dtype):
        total = double(total, dtype)
    return torch_reduce.sum(total[None], 0, dtype=dtype)  # of one element: the operator's own rounding


def quotient(total: Tensor, count: int) -> Tensor:
    """`total` over `count`, in its own precision: integers in float64, complex numbers by component.

    A float32 is divided in float64: rounded from there to float32, a quotient is what a division in float32 gives. And
    the count is a tensor, since torch multiplies by the reciprocal of a number.
    """
    if total.is_complex():
        return torch.view_as_complex(quotient(torch.view_as_real(total), count))
    if total.dtype == torch.float32:
        (count,) = struct.unpack("f", struct.pack("f", count))
        wide = torch_reduce.sum(total[None], 0, dtype=torch.float64)
        return torch_reduce.sum((wide / torch.full_like(wide, count))[None], 0, dtype=torch.float32)
    total = total.to(torch.float64)
    return total / torch.full_like(total, count)


def double(whole: Tensor, dtype: torch.dtype) -> Tensor:
    """int64 -> a float64 that rounds to `dtype` as the integer does: if bits are cut off, the last one becomes odd."""
    nearest = whole.to(torch.float64)
    if dtype in (torch.float64, torch.complex128):
        return nearest
    odd = (whole >> 11 | (whole & 2047 != 0)).to(torch.float64) * 2048
    return torch.where(nearest.abs() < 2.0**53, nearest, odd)
