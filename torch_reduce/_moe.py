"""Mixtures of experts: rows of tokens to their experts, expert by expert, and back to their tokens."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor
from torch.utils._pytree import register_dataclass

from . import _arguments, _library
from ._arguments import Input, integer, mesh_of, over_ranks, plain_tensors, tensors
from ._index import flat_index, sorted_index
from ._indexed import _expect_rows, _named

__all__ = ["MoePlan", "moe_combine", "moe_dispatch", "moe_plan"]

_gather_sum = torch.ops.gpureduce._gather_sum.default


@dataclass(frozen=True, eq=False, repr=False)
class _Kept:
    """What a plan has beside the rest where choices may be dropped: their rows come last, and nothing reads them.

    Attributes:
        source: of shape (n,): the rows of all choices that are kept, token by token; then the others.
        filled: of shape (n + 1,): row ``r`` is a choice that is kept if ``filled[r] < filled[r + 1]``.
        row: of shape (n,): the row of each choice, also of those that are dropped.
    """

    source: Tensor
    filled: Tensor
    row: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class MoePlan:
    """What :func:`moe_plan` found: the rows of all tokens' choices, one expert after the other.

    It is a node of ``torch.utils._pytree``, as :class:`IndexPlan` is.

    Attributes:
        index: int32, of shape (*tokens, k): the row of each choice; -1 where it is dropped.
        offsets: int32, of shape (size + 1,): expert ``e`` has the rows ``offsets[e]:offsets[e + 1]``. Grouped products
            take ``offsets[1:]``.
        token: int32, of shape (n,), for n choices of all tokens: the token that each row belongs to.
        choice: int32, of shape (n,): which choice each row is, by its place in ``experts.flatten()``.
        ends: of shape (tokens + 1,): the kept choices of token ``t``, numbered token by token, are those from
            ``ends[t]`` to before ``ends[t + 1]``.
        kept: more of such lists where choices may be dropped, or None.
        size: the number of experts.
        counts: of shape (size,): the number of rows of each expert.

    ``index``, ``offsets``, ``token`` and ``choice`` are int64 if n is 2^31 or more.
    """

    index: Tensor
    offsets: Tensor
    token: Tensor
    choice: Tensor
    ends: Tensor
    kept: _Kept | None

    @property
    def size(self) -> int:
        """The number of experts."""
        return self.offsets.size(0) - 1

    @property
    def counts(self) -> Tensor:
        """The number of rows of each expert."""
        return self.offsets.diff()

    def __repr__(self) -> str:
        tokens, choices = self.ends.size(0) - 1, self.index.size(-1)
        size, drops, device = self.size, self.kept is not None, str(self.offsets.device)
        return f"MoePlan({tokens=}, {choices=}, {size=}, {drops=}, {device=})"


register_dataclass(_Kept, serialized_type_name="torch_reduce.MoePlan.kept")
register_dataclass(MoePlan, serialized_type_name="torch_reduce.MoePlan")


def moe_plan(experts: Tensor, size: int | SymInt, *, drops: bool = False) -> MoePlan:
    """Sorts the choices of a router by expert, for :func:`moe_dispatch` and :func:`moe_combine`.

    Args:
        experts: int64 or int32, of shape (*tokens, k), of any strides, on the CPU, a CUDA device or meta: the k experts
            of each token, in [0, size), as ``scores.topk(k)`` gives them. Of a DTensor every rank gets all, and the
            plan has plain tensors.
        size: the number of experts.
        drops: whether choices may be dropped: then a negative number in ``experts`` is one that no expert sees.

    Returns:
        A :class:`MoePlan` with new tensors on the device of ``experts``. Rows of one expert stay in the order of the
        tokens. There are as many rows as choices: dropped choices have theirs after all experts' rows. It is not
        differentiable. The same experts give the same plan on every device.

    It is one sort of the experts' numbers, by counting, as :func:`index_plan` says; what else it needs are a few passes
    over as many integers. Entries on a GPU are read by the GPU alone, and nothing waits for it. ``torch.vmap``,
    ``torch.compile`` and ``torch.export`` work.

    Raises:
        TypeError: an argument is of another type.
        IndexError: on the CPU, an entry is not in [0, size), or with ``drops`` not below ``size`` (on a GPU see
            :func:`index_plan`).
        RuntimeError: ``experts`` is neither int64 nor int32, or has no dim; ``size`` is negative.

    >>> plan = torch_reduce.moe_plan(torch.tensor([[2, 0], [0, 1], [2, 1]]), 3)
    >>> plan
    MoePlan(tokens=3, choices=2, size=3, drops=False, device='cpu')
    >>> plan.counts, plan.token
    (tensor([2, 2, 2], dtype=torch.int32), tensor([0, 1, 1, 2, 0, 2], dtype=torch.int32))
    >>> rows = torch_reduce.moe_dispatch(torch.tensor([[1.0], [2.0], [4.0]]), plan)
    >>> rows.flatten()
    tensor([1., 2., 2., 4., 1., 4.])
    >>> torch_reduce.moe_combine(rows, plan, torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])).flatten()
    tensor([1., 2., 4.])
    """
    name = "moe_plan"
    _arguments.boolean(name, "drops", drops)
    integer(name, "size", size)
    flat = _here(flat_index(name, "experts", experts))
    if experts.dim() == 0:
        raise RuntimeError(f"{name}(): experts: expected at least one dim, the last one for a token's choices")
    shape = experts.shape
    if not drops:
        plan = sorted_index(name, "experts", flat, "size", size)
        order, offsets = plan.order, plan.offsets
        row = _inverse(order)
        return MoePlan(row.view(shape), offsets, _token(order, shape[-1]), order, _all_ends(row, shape), None)
    if flat.dtype not in (torch.int32, torch.int64) or size < 0:
        sorted_index(name, "experts", flat, "size", size)  # raises the error
    is_kept = flat >= 0
    beyond = torch.where(flat < size, flat, flat + 1)  # what is no expert stays none, beside one for the dropped
    try:
        plan = sorted_index(name, "experts", torch.where(is_kept, beyond, size), "size", size + 1)
    except IndexError as error:
        raise _out_of_range(error, name, "experts", flat, size) from None
    order, offsets = plan.order, plan.offsets.narrow(0, 0, size + 1)
    row, rows = _inverse(order), flat.size(0)
    place, ends = _partition(is_kept, shape)
    source = torch.zeros_like(row).scatter(0, place, row)
    filled = torch.minimum(torch.arange(rows + 1, dtype=offsets.dtype, device=offsets.device), offsets[-1:])
    index = torch.where(is_kept, row, -1).view(shape)
    return MoePlan(index, offsets, _token(order, shape[-1]), order, ends, _Kept(source, filled, row))


def moe_dispatch(x: Input, plan: MoePlan) -> Tensor:
    """The rows of tokens that a plan sends to experts, one expert after the other.

    Args:
        x: of shape (*tokens, ...), for ``experts`` of shape (*tokens, k), of any strides and of any dtype that
            :func:`torch_reduce.sum` takes, on the device of the plan; or a DTensor, or a Shard that is cut along
            another dim than the tokens' (docs/distributed.md).
        plan: by :func:`moe_plan`.

    Returns:
        A new tensor of shape (n, ...) and of the dtype of ``x``, for n choices of all tokens. Row ``r`` is the row of
        token ``plan.token[r]``, and expert ``e`` has the rows ``plan.offsets[e]:plan.offsets[e + 1]``. Rows of dropped
        choices, after ``plan.offsets[-1]``, are 0.

    **Gradients** of any order and in forward mode: :func:`moe_combine` without weights. So a token has the sum of the
    gradients of its rows, in the order of its choices, in float32 or wider, and rounded once: the same bits in every
    batch. Nothing is sorted. ``torch.vmap``, ``torch.compile``, ``torch.export`` and CUDA graphs work;
    ``torch.autocast`` changes nothing.

    Raises:
        TypeError: an argument is of another type, or ``x`` a Shard that is cut along the tokens.
        RuntimeError: ``x`` has other tokens than the plan, or is on another device.
        NotImplementedError: a dtype that cannot be summed.

    >>> plan = torch_reduce.moe_plan(torch.tensor([[1], [-1], [0]]), 2, drops=True)
    >>> torch_reduce.moe_dispatch(torch.tensor([1.0, 2.0, 4.0]), plan)
    tensor([4., 1., 0.])
    """
    name = "moe_dispatch"
    tensors(name, x=x)
    if not isinstance(plan, MoePlan):
        hint = ": moe_plan makes one of it" if isinstance(plan, Tensor) else ""
        raise TypeError(f"{name}(): argument 'plan' must be MoePlan, not {type(plan).__name__}{hint}")
    _expect_strided(name, x=x)
    tokens = plan.index.shape[:-1]
    if isinstance(x, Tensor) and x.shape[: len(tokens)] != tokens:
        sizes = ", ".join(map(str, [*tokens, "..."]))
        raise RuntimeError(f"{name}(): x: expected the size [{sizes}], as the plan has it, but got {_sizes(x)}")
    if len(tokens) != 1 and not isinstance(x, Tensor):
        raise TypeError(f"{name}(): x: a Shard needs a plan of experts of two dims, not of {len(tokens) + 1}")
    if mesh_of(x) is not None:
        return _named(name, over_ranks("moe_dispatch"), x, plan)
    if len(tokens) != 1:
        x = x.reshape(-1, *x.shape[len(tokens) :])
    kept = plan.kept
    back = kept.source if kept else plan.index.reshape(-1), plan.ends, None
    given = x, plan.token, kept and kept.filled, None, None, *back, 0
    return _library.call(name, _gather_sum, *given, dtype=_held(x).dtype, others={"data": "x", "rows": "plan"})


def moe_combine(
    rows: Input, index: Tensor | MoePlan, weights: Tensor | None = None, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The sums, for each token, of the rows that experts made for it, times the router's weights.

    A token's sum has the bits of :func:`torch_reduce.sum` of its k rows in the order of its choices, or with weights of
    :func:`weighted_sum`: each product is rounded once, sums are float32 or wider, and the result is rounded once. So it
    depends neither on the other tokens, nor on the order of the experts, nor on how these are spread over ranks.

    Args:
        rows: of shape (n, ...), of any strides and any floating dtype, on the CPU, a CUDA device or meta; or a DTensor,
            or a Shard that is cut along another dim than the first one (docs/distributed.md).
        index: a :class:`MoePlan`, for the rows that :func:`moe_dispatch` made of it. Or int64 or int32, of shape
            (*tokens, k), on the same device: the row of each choice, in [0, n). A choice whose number is negative has
            been dropped, and counts as if it were not there.
        weights: floating, of the shape (*tokens, k): a number that each row is multiplied by. Weights of choices that
            are dropped are not read. Beside a DTensor it is one.
        dtype: the dtype of the result. By default the dtype of ``rows``, whatever ``weights`` have.

    Returns:
        A tensor of shape (*tokens, ...). The sum of no rows is 0.

    **Gradients** of any order and in forward mode. With a plan, the gradient of a row is its token's, times its weight,
    and nothing is sorted. With an index a row may have several tokens; its gradient is their sum in the order of the
    choices, for which the backward pass sorts the index. A weight's gradient is the dot product of its row and its
    token's gradient, in the order of :func:`weighted_sum`; it needs the memory of ``rows`` once more, and without a
    plan twice. All are computed in float32 or wider. ``torch.vmap``, ``torch.compile``, ``torch.export`` and CUDA
    graphs work; ``torch.autocast`` changes nothing.

    Raises:
        TypeError: an argument is of another type, or ``rows`` is a Shard that is cut along the first dim.
        IndexError: on the CPU, an entry of ``index`` is not below n (on a GPU see :func:`index_plan`).
        RuntimeError: shapes, dtypes or devices that do not fit.
        NotImplementedError: ``rows`` or ``weights`` are not floating.

    >>> rows, index = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([[2, 0], [1, -1]])
    >>> torch_reduce.moe_combine(rows, index)
    tensor([5., 2.])
    >>> torch_reduce.moe_combine(rows, index, torch.tensor([[0.25, 0.5], [2.0, 0.0]]))
    tensor([1.5000, 4.0000])
    """
    name = "moe_combine"
    tensors(name, rows=rows)
    _arguments.dtype(name, dtype)
    if not isinstance(index, (Tensor, MoePlan)):
        raise TypeError(f"{name}(): argument 'index' must be Tensor or MoePlan, not {type(index).__name__}")
    numbers, data = index.index if isinstance(index, MoePlan) else index, _held(rows)
    _expect_strided(name, rows=data, index=numbers)
    if numbers.dim() == 0:
        raise RuntimeError(f"{name}(): index: expected at least one dim, the last one for a token's choices")
    if numbers.dtype not in (torch.int32, torch.int64):
        raise RuntimeError(f"{name}(): index: expected a tensor of int64 or int32, but got {numbers.dtype}")
    _expect_floating(name, "rows", data)
    if isinstance(data, Tensor) and data.dim() == 0:
        raise RuntimeError(f"{name}(): rows: expected at least one dim")
    if weights is not None:
        plain_tensors(name, weights=weights)
        _expect_strided(name, weights=weights)
        _expect_floating(name, "weights", weights)
        if weights.shape != numbers.shape:
            found = f"but got {_sizes(weights)}"
            raise RuntimeError(f"{name}(): weights: expected the size {_sizes(numbers)}, as the index has, {found}")
    if any(mesh_of(one) is not None for one in (rows, numbers, weights)):
        return _named(name, over_ranks("moe_combine"), rows, index, weights, dtype)
    flat = None if weights is None else weights.reshape(-1)
    result = (_by_plan if isinstance(index, MoePlan) else _by_index)(rows, index, flat, dtype or data.dtype)
    tokens = numbers.shape[:-1]
    return result if len(tokens) == 1 else result.reshape((*tokens, *result.shape[1:]))


def _by_plan(rows: Any, plan: MoePlan, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    _expect_rows("moe_combine", "rows", rows, 0, plan.choice.shape[0])
    kept, index = plan.kept, plan.index.reshape(-1)
    source = kept.source if kept else index
    # A weight's number is its row's: then the gradient of weights reads rows where they lie.
    weights = _moved(weights, plan.choice, kept.row if kept else index)
    edges = None if weights is None else source
    return _combined(rows, source, plan.ends, weights, edges, plan.token, kept and kept.filled, None, 0, dtype=dtype)


def _by_index(rows: Any, index: Tensor, weights: Tensor | None, dtype: torch.dtype) -> Tensor:
    flat, count = index.reshape(-1), _held(rows).shape[0]
    is_kept = flat >= 0
    place, ends = _partition(is_kept, index.shape)
    source = torch.zeros_like(flat).scatter(0, place, torch.where(is_kept, flat, 0))
    weights = _moved(weights, _inverse(place), place)
    empty = weights is not None and count == 0  # there is no row that a weight's gradient could read
    try:
        result = _combined(rows, source, ends, None if empty else weights, None, None, None, None, 0, dtype=dtype)
    except IndexError as error:
        raise _out_of_range(error, "moe_combine", "index", flat, count) from None
    return result + torch.ops.gpureduce.sum(weights[:0]).to(dtype) if empty else result


def _combined(*given: Any, **named: Any) -> Tensor:
    names = {"data": "rows", "rows": "index", "weight": "weights"}
    return _library.call("moe_combine", _gather_sum, *given, others=names, **named)


def _moved(weights: Tensor | None, choice: Tensor, place: Tensor) -> Tensor | None:
    """The weights of choices, in another order: ``place`` is its inverse."""
    if weights is None:
        return None
    given = weights, choice, None, None, None, place, None, None, 0
    return _library.call(
        "moe_combine", _gather_sum, *given, dtype=weights.dtype, others={"data": "weights", "rows": "index"}
    )


def _held(x: Any) -> Any:
    """The tensor whose dtype and shape are asked: a Shard's own one."""
    return x if isinstance(x, Tensor) else getattr(x, "x", x)


def _sizes(x: Tensor) -> list[int]:
    return list(x.shape)


def _here(numbers: Tensor) -> Tensor:
    """What this rank has of a list that is whole on every rank."""
    if mesh_of(numbers) is None:
        return numbers
    return over_ranks("list_of")(numbers)


def _expect_strided(name: str, **given: Any) -> None:
    for argument, x in given.items():
        if layout := _arguments.layout_of(x):
            raise NotImplementedError(f"{name}(): {argument}: {layout} tensors are not supported")


def _expect_floating(name: str, argument: str, x: Any) -> None:
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise NotImplementedError(f"{name}(): {argument}: expected a floating tensor, but got {x.dtype}")


def _inverse(order: Tensor) -> Tensor:
    """The inverse of a permutation."""
    numbers = torch.arange(order.size(0), dtype=order.dtype, device=order.device)
    return torch.zeros_like(order).scatter(0, order.long(), numbers)


def _token(choice: Tensor, k: int | SymInt) -> Tensor:
    return choice // k if choice.size(0) else choice


def _all_ends(row: Tensor, shape: torch.Size) -> Tensor:
    """Where the choices of each token begin, if all are kept; and where the last one's end."""
    return torch.arange(math.prod(shape[:-1]) + 1, dtype=row.dtype, device=row.device) * shape[-1]


def _partition(is_kept: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The place of each choice if those that are kept come first; and where the kept choices of each token begin."""
    before = torch.nn.functional.pad(is_kept.long().cumsum(0), (1, 0))
    kept, numbers = before[1:], torch.arange(is_kept.size(0), device=is_kept.device)
    place = torch.where(is_kept, kept - 1, before[-1] + numbers - kept)
    return place, before.index_select(0, _all_ends(before, shape))


def _out_of_range(error: IndexError, name: str, argument: str, numbers: Tensor, bound: int | SymInt) -> IndexError:
    """The error of the first number that is not below the bound."""
    if torch._C._functorch.is_functorch_wrapped_tensor(numbers):
        return error
    wrong = (numbers >= bound).nonzero()
    if len(wrong) == 0:
        return error
    entry = int(wrong[0])
    return IndexError(f"{name}(): {argument}: expected each below {bound}, but entry {entry} is {int(numbers[entry])}")
