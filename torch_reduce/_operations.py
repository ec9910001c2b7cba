"""The operations as csrc/core/operation.h has them. The library tells them: Python does not repeat that table."""

import json
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

_ops = torch.ops.gpureduce
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Operation(NamedTuple):
    """A row of the table, and what ranks do with its nodes. `node` and `join` are operators of torch.ops.gpureduce."""

    name: str  # of the operator
    function: str  # of torch_reduce
    order: str | None  # of a norm or a sum of powers
    typing: str
    map: str
    combine: str
    finish: str
    node: str  # the operator that makes nodes of elements
    join: str  # the one that makes one node of several
    part: bool  # it serves other operations alone

    @property
    def title(self) -> str:
        """For errors."""
        return self.function if self.order is None else f"{self.function} of order {self.order}"

    @property
    def is_norm(self) -> bool:
        """Whether the nodes are real numbers that a map has made of the elements."""
        return self.typing == "norm"

    @property
    def is_free(self) -> bool:
        """Whether no order of elements shows, of any dtype."""
        return self.combine == "largest" or self.map == "nonzero"


def _told(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """As functools.cache; and a constant to the compiler, which must not look into the library while it traces."""
    cached = cache(function)

    @wraps(function)
    def told(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        return cached(*args, **kwargs)

    told._dynamo_marked_constant, told.cache_info = True, cached.cache_info  # type: ignore[attr-defined]
    return told


@_told
def _table() -> dict[str, Any]:
    """It is read when it is first asked for, which may be while a graph is traced."""
    with _disable_current_modes():
        return json.loads(_ops._operations())


@_told
def known() -> dict[str, Operation]:
    """The operations by the name of their operator."""
    return {row["name"]: Operation(**row) for row in _table()["operations"]}


@_told
def of_orders(kind: str) -> dict[float, str]:
    """Operators by the order of a norm: its "norm", its "powsum", or the "root" that makes a norm of sums of powers."""
    return {float(order): row[kind] for order, row in _table()["powers"].items() if row[kind]}


@_told
def of_order(kind: str, order: float) -> str | None:
    """The one of an order, if there is one."""
    return of_orders(kind).get(order)


@_told
def node_dtype(operator: str, source: torch.dtype, result: torch.dtype) -> torch.dtype:
    """The dtype of nodes of elements of dtype `source`: the accumulators of docs/order.md."""
    if known()[operator].typing == "same":
        return source
    with _disable_current_modes():
        return getattr(torch, _ops._node_dtype(operator, source, result))


@_told
def product_dtype(x: torch.dtype, weight: torch.dtype, result: torch.dtype) -> torch.dtype:
    """The dtype of the products that a weighted sum adds: the type P of docs/order.md."""
    with _disable_current_modes():
        return getattr(torch, _ops._product_dtype(x, weight, result))


def exact_name(operator: str) -> str:
    """The operator that adds exactly, beside one that adds in order."""
    return f"_exact{operator}" if operator.startswith("_") else f"exact_{operator}"


@_told
def exact_operators() -> dict[str, str]:
    """The operators that add exactly, and the operations of the table that they are."""
    return {exact_name(name): name for name in known() if hasattr(_ops, exact_name(name))}


@_told
def state_size(source: torch.dtype, weight: torch.dtype | None = None) -> int:
    """How many numbers the state of an exact sum is, of elements of dtype `source` or of one component of them; or of
    their products with numbers of dtype `weight`."""
    with _disable_current_modes():
        one, other = (
            dtype and torch.empty(0, dtype=dtype.to_real() if dtype.is_complex else dtype, device="meta")
            for dtype in (source, weight)
        )
        return _ops._exact_partial(one, weight=other).numel()


def is_inexact(dtype: torch.dtype) -> bool:
    """Whether its additions round, and so show their order; and whether gradients flow."""
    return dtype.is_floating_point or dtype.is_complex
