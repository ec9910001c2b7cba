"""Our operators as several ones, where a compiler traces them: less is kept for the backward pass.

The gradient of log_softmax reads its result y, in float32 even if the input is a half. As (x - m) - log S the compiler
computes y again where it is read, and keeps x and two numbers per row. Where no lowering fuses it, it stays one call.
"""

from typing import Any

import torch
from torch._inductor import decomposition

from . import _lowerings

__all__ = ["install"]

_gpureduce = torch.ops.gpureduce


def install() -> None:
    """Puts them into Inductor's table."""
    decomposition.decompositions[_gpureduce.log_softmax.default] = _log_softmax
    decomposition.fast_random_decomps.cache_clear()  # it is made of the table


def _log_softmax(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    if not _lowerings.fuses_rows_of(x, dim):
        return NotImplemented
    result = dtype or x.dtype
    computed = torch.float64 if torch.float64 in (x.dtype, result) else torch.float32
    wide = x.to(computed)
    given = wide if computed == torch.float64 else x
    m = _gpureduce._amax(given, [dim], True).to(computed)
    total = _gpureduce._exponent_sum(given, m, [dim], True)
    _, number = _gpureduce._finish_rows(total, m, "log_softmax", 1, 0.0, computed)
    return ((wide - m) - number).to(result)
