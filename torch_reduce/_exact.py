"""Calls of sum, mean and nansum with exact=True."""

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import _arguments, _library

_ops = torch.ops.gpureduce
_direct = {name: _library.entry(f"exact_{name}") for name in ("sum", "mean", "nansum")}


def reduce(
    name: str, exact: Any, input: Any, dim: Any, keepdim: Any, dtype: Any, out: Any, others: dict[str, Any]
) -> Tensor:
    """As of `sum` in _sum.py: plain calls directly, all others through the operator."""
    _arguments.boolean(name, "exact", exact)
    if (
        not others
        and not is_dynamo_compiling()
        and (direct := _direct[name])
        and (result := direct(input, dim, keepdim, dtype, out)) is not NotImplemented
    ):
        return result
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=out)
    input, dim, keepdim, dtype, out = _arguments.read(name, given, others).values()
    operator = getattr(_ops, f"exact_{name}")
    if out is not None:
        return _library.warning(operator.out)(input, dim, keepdim, dtype=dtype, out=out)
    return _library.warning(operator.default)(input, dim, keepdim, dtype=dtype)
