"""Calls of sum, mean and nansum with exact=True."""

from typing import Any, NoReturn

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
    if exact is not True:
        raise TypeError(f"{name}(): argument 'exact' must be bool, not {type(exact).__name__}")
    if (
        not others
        and not is_dynamo_compiling()
        and (direct := _direct[name])
        and (result := direct(input, dim, keepdim, dtype, out)) is not NotImplemented
    ):
        return result
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=out)
    input, dim, keepdim, dtype, out = _arguments.read(name, given, others).values()
    if is_cut(input):
        refuse_cut(name)
    operator = getattr(_ops, f"exact_{name}")
    if out is not None:
        return _library.warning(operator.out)(input, dim, keepdim, dtype=dtype, out=out)
    return _library.warning(operator.default)(input, dim, keepdim, dtype=dtype)


def is_cut(input: Any) -> bool:
    """Whether it is a DTensor or a Shard."""
    if isinstance(input, Tensor):
        return _arguments.mesh_of(input) is not None
    return type(input).__module__ == "torch_reduce.distributed._shard"


def refuse_cut(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}(): exact=True takes no DTensor and no Shard: add the states of torch_reduce.exact.partial by an "
        "all_reduce, and take torch_reduce.exact.round of their sum"
    )
