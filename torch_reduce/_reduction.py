"""Calls of reductions over dims: of all functions in _family.py, and of sum, mean and nansum with exact=True."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import _arguments, _library
from ._operations import exact_name

_EXACT = {name: exact_name(name) for name in ("sum", "mean", "nansum")}

_ops = torch.ops.gpureduce
_direct: dict[str, Any] = {}  # the C entries by operator
_with_dtype: set[str] = set()  # operators that have dtype=


def expect(operators: Collection[str], with_dtype: Collection[str]) -> None:
    """Looks up the C entries of operators that reduce() will call. `with_dtype`: the ones that have dtype=."""
    _with_dtype.update(with_dtype)
    for operator in operators:
        # Operators without dtype= begin with _: they are rows of csrc/core/operation.h.
        _direct[operator] = _library.entry(operator if operator in with_dtype else f"_{operator}")


expect(_EXACT.values(), with_dtype=_EXACT.values())


def reduce(
    name: str,
    input: Any,
    dim: Any,
    keepdim: Any,
    out: Any,
    others: dict[str, Any],
    dtype: Any = None,
    exact: Any = False,
) -> Tensor:
    """Calls the C entry, or for unusual arguments and while torch compiles the operator, as `sum` in _sum.py does."""
    operator = name
    if exact is not False:
        _arguments.boolean(name, "exact", exact)
        operator = _EXACT[name]
    try:
        if (
            not others
            and not is_dynamo_compiling()
            and (direct := _direct[operator])
            and (result := direct(input, dim, keepdim, dtype, out)) is not NotImplemented
        ):
            return result
    except Exception as error:
        raise _arguments.named(error, name) from None
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=out)
    input, dim, keepdim, dtype, out = _arguments.read(name, given, others).values()
    if name in ("amax", "amin"):
        input = _arguments.joined(input)
    last = {"dtype": dtype} if operator in _with_dtype else {}
    overloads = getattr(_ops, operator)
    overload = overloads.default
    if out is not None:
        overload, last = overloads.out, dict(last, out=out)
    return _library.call(name, overload, input, dim, keepdim, **last)
