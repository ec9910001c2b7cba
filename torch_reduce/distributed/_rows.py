"""Functions that keep their input's shape, of tensors that are cut over ranks: what each rank does between the sums.

The numbers of a row, its largest element and its sums, come from the reductions of _sharded.py and _dtensor.py. What is
added up for an element, and what it becomes, is made by private operators (csrc/rows/torch_steps.cpp) with the formulas
of csrc/core/numeric/rows.h. Nothing of a row's size is sent but the parts of chunks that docs/distributed.md tells of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Protocol

import torch
from torch import Tensor

from .._arguments import enter
from .._operations import known
from .._rows import applied, entropy, entropy_terms, log_prob_of_several, softened, widest, with_targets
from ._messages import agree, check_device, kind_of, place, traced
from ._rank_plan import product
from ._shard import Shard
from ._sharded import Call, ExponentCall, check_sizes, dim_of, join_cut, slowest_first

_ops = torch.ops.gpureduce
_Runs = Sequence[tuple[int, int]]


class Cut(Protocol):
    """How a tensor is cut over ranks."""

    shape: tuple[int, ...]  # of the global tensor

    def crosses(self, dims: Sequence[int]) -> bool:
        """Whether one of these dims is cut."""

    def reduced(self, x: Tensor, call: Call, *, logical: bool = False, nodes: Tensor | None = None) -> Any:
        """The result of a call on a global tensor that is cut so; `x` is this rank's part.

        Elements come in the order of memory, or in logical order; `nodes` are this rank's results, where they are
        known.
        """

    def stacked(self, count: int) -> "Cut":
        """How so many such tensors are cut that are stacked along a new first dim."""

    def held(self, dim: int) -> _Runs:
        """The indices along a dim that this rank has, ascending: from the first to before the second."""


@dataclass(frozen=True)
class ShardCut:
    """How a Shard is cut."""

    shape: tuple[int, ...]
    dim: int
    sizes: tuple[int, ...]
    order: tuple[int, ...]  # of the dims that are reduced in the order of memory
    rank: int
    group: Any

    def crosses(self, dims: Sequence[int]) -> bool:
        return self.dim in dims

    def reduced(self, x: Tensor, call: Call, *, logical: bool = False, nodes: Tensor | None = None) -> Any:
        order = [d for d in (sorted(call.dims) if logical else self.order) if d in call.dims]
        return join_cut(x.detach(), replace(call, shard_dim=self.dim), self.sizes, order, self.group, nodes)

    def stacked(self, count: int) -> "ShardCut":
        order = tuple(d + 1 for d in self.order)
        return replace(self, shape=(count, *self.shape), dim=self.dim + 1, order=order)

    def held(self, dim: int) -> _Runs:
        if dim != self.dim:
            return ((0, self.shape[dim]),)
        first = sum(self.sizes[: self.rank])
        return ((first, first + self.sizes[self.rank]),)


# --- what a rank does -------------------------------------------------------------------------------------------------


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded once: torch rounds float64 to small floats by way of float32."""
    if x.dtype == torch.float64 and dtype.itemsize <= 2:
        return _ops.sum(x.unsqueeze(-1), [-1], dtype=dtype)
    return x.to(dtype)


def is_autocast(x: Any, *devices: str) -> bool:
    """Whether torch.autocast widens elements of `x` to float32 there, for functions that its lists name."""
    if not isinstance(x, Tensor) or x.device.type not in devices or not torch.is_autocast_enabled(x.device.type):
        return False
    return x.is_floating_point() and x.dtype != torch.float64


def _sum(dims: Sequence[int], dtype: torch.dtype, name: str = "sum") -> Call:
    return Call(known()[name], sorted(dims), True, dtype, dtype, -1)


def _largest(dim: int, dtype: torch.dtype) -> Call:
    return Call(known()["_amax"], [dim], True, None, dtype, -1)


def _exponents(cut: Cut, function: str, x: Tensor, m: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """m of each row, and 1 / S or log S, in the dtype of m."""
    computed = m.dtype
    own = torch.float32 if x.is_floating_point() and x.dtype != torch.float64 else torch.float64
    x = x if own == computed else x.to(computed)  # what the sum computes with follows from its elements
    total = cut.reduced(x, ExponentCall(known()["sum"], [dim], True, computed, computed, -1, m))
    return _ops._finish_rows(total, m, function, cut.shape[dim], 0.0, computed)


def softmax(cut: Cut, function: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """softmax or log_softmax."""
    if not cut.crosses([dim]):
        return getattr(_ops, function)(x, dim, dtype=dtype)
    dtype = dtype or (torch.float32 if x.dtype.itemsize == 1 else x.dtype)
    computed = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    if cut.shape[dim] == 0:
        return torch.empty_like(x, dtype=dtype)
    largest = cut.reduced(x, _largest(dim, x.dtype)).to(computed)
    m, r = _exponents(cut, function, x, largest, dim)
    return _ops._row_step(x, "applied", function, [dim], mean=m, r=r, computed=computed, dtype=dtype)


def softmax_backward(cut: Cut, function: str, grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """The gradient of the input, of that dtype, from the result."""
    name = f"{function}_backward"
    if not cut.crosses([dim]):
        return getattr(_ops, f"_{name}")(grad, y, dim, dtype)
    computed, added = torch.float64 if dtype == torch.float64 else widest(grad, y), grad
    if function == "softmax":
        added = _ops._row_step(y, "addends", name, [dim], grad, computed=computed, dtype=computed)
    share = cut.reduced(added, _sum([dim], computed))
    return _ops._row_step(y, "applied", name, [dim], grad, share=share, computed=computed, dtype=dtype)


def _here(cut: Cut, target: Tensor, dim: int) -> Tensor:
    """The places of classes among those that this rank has, or -1."""
    places, done = torch.full_like(target, -1), 0
    for first, last in cut.held(dim):
        inside = (target >= first) & (target < last)
        places, done = torch.where(inside, target - first + done, places), done + last - first
    return places


def log_prob(cut: Cut, x: Tensor, target: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Per row: the logarithm of its target's probability, m and log S. Targets are not cut with the classes."""
    if not cut.crosses([dim]):
        return _ops._log_prob(x, target, dim, ignore_index)
    found, m, log_sum = log_probs(cut, x, target.unsqueeze(dim), dim, ignore_index)
    return found.squeeze(dim), m, log_sum


def log_probs(cut: Cut, x: Tensor, target: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same of several targets of each row, which lie along `dim`; the classes are cut."""
    computed, classes = widest(x), cut.shape[dim]
    kept = [1 if d == dim else n for d, n in enumerate(x.shape)]
    if product(kept) == 0:
        empty = torch.empty(kept, dtype=computed, device=x.device)
        return empty.new_empty(target.shape), empty, empty.clone()
    if classes == 0:
        raise RuntimeError("log_prob(): logits: there are no classes")
    given, target = target, _marked(target, ignore_index)
    _expect_classes(given, target, classes)
    place = _here(cut, target, dim)
    # This rank's largest logit, and its logits of the targets that it has.
    mine = torch.full((1 + target.shape[dim], *kept), -torch.inf, dtype=computed, device=x.device)
    if x.shape[dim]:
        logits = x.float() if x.dtype.itemsize == 1 else x
        mine[0] = _ops.amax(logits, [dim], True).to(computed)
        at_place = logits.gather(dim, place.clamp_min(0)).to(computed).masked_fill(place < 0, -torch.inf)
        mine[1:] = at_place.movedim(dim, 0).unsqueeze(dim + 1)
    like = mine.new_empty(()).expand(len(mine), *x.shape)
    nodes = cut.stacked(len(mine)).reduced(like, _largest(dim + 1, computed), nodes=mine)
    m, log_sum = _exponents(cut, "log_sum", x, nodes[0], dim)
    at_target = nodes[1:].squeeze(dim + 1).movedim(0, dim).contiguous()
    found = _ops._row_step(
        at_target, "applied", "log_softmax", [dim], mean=m, r=log_sum, computed=computed, dtype=computed
    )
    return found.masked_fill(target < 0, 0), m, log_sum


def _marked(target: Tensor, ignore_index: int) -> Tensor:
    """A target to ignore becomes -1, and any other negative one -2. As int64, since ignore_index may be no uint8."""
    target = target.to(torch.int64)
    ignored = target == ignore_index
    return torch.where(ignored, target.new_full((), -1), torch.where(target < 0, target.new_full((), -2), target))


def _expect_classes(target: Tensor, marked: Tensor, classes: int) -> None:
    """Raises torch's error if a target is out of bounds: on a GPU an assertion that stops a kernel."""
    if traced(marked):
        return
    wrong = (marked < -1) | (marked >= classes)
    if not marked.is_cpu:
        torch._assert_async(wrong.logical_not().all())
    elif wrong.any():
        raise IndexError(f"log_prob(): Target {int(target[wrong][0])} is out of bounds.")


def log_prob_backward(
    cut: Cut, grad: Tensor, x: Tensor, target: Tensor, dim: int, ignore_index: int, m: Tensor, log_sum: Tensor
) -> Tensor:
    """The gradient of the logits."""
    if not cut.crosses([dim]):
        return _ops._log_prob_backward(grad, x, target, dim, ignore_index, m, log_sum)
    computed, target = widest(x), _marked(target, ignore_index)
    share, place = grad.to(computed).masked_fill(target < 0, 0), _here(cut, target, dim)
    given = dict(target=place, mean=m, r=log_sum, share=share)
    return _ops._row_step(x, "applied", "log_prob_backward", [dim], **given, computed=computed, dtype=x.dtype)


def log_probs_backward(
    cut: Cut, grad: Tensor, x: Tensor, target: Tensor, dim: int, ignore_index: int, m: Tensor, log_sum: Tensor
) -> Tensor:
    """The same of several targets of each row; the classes are cut."""
    computed, target = widest(x), _marked(target, ignore_index)
    grad, place = grad.to(computed).masked_fill(target < 0, 0), _here(cut, target, dim)
    total = _ops.sum(grad, [dim], True)
    given = dict(target=place.new_full(total.shape, -1), mean=m, r=log_sum, share=total)
    found = _ops._row_step(x, "applied", "log_prob_backward", [dim], **given, computed=computed, dtype=x.dtype)
    if found.numel() == 0 or place.numel() == 0:
        return found
    return with_targets(found, grad, x, place, total, m, log_sum, dim)


def norm(
    cut: Cut, function: str, x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor | None, Tensor]:
    """rms_norm or layer_norm over the last dims: the result, each row's mean, which is None for rms_norm, and r."""
    across = [*range(x.dim() - dims, x.dim())]
    centered = function == "layer_norm"
    if not cut.crosses(across):
        if centered:
            return _ops._layer_norm(x, dims, weight, bias, eps)
        y, r = _ops._rms_norm(x, dims, weight, eps)
        return y, None, r
    computed, length = widest(x, weight, bias), product(cut.shape[d] for d in across)
    if centered:
        center = cut.reduced(x, _sum(across, computed, "mean"))

        def total(step: str) -> Tensor:
            addends = _ops._row_step(x, step, function, across, mean=center, computed=computed, dtype=computed)
            return cut.reduced(addends, _sum(across, computed))

        differences, squares = total("addends"), total("second_addends")
        more, r = _ops._finish_rows(squares, differences, function, length, eps, computed)
        mean = center + more
    else:
        squares = cut.reduced(x, _sum(across, computed, "_powsum_2"))
        mean, (_, r) = None, _ops._finish_rows(squares, None, function, length, eps, computed)
    given = dict(weight=weight, bias=bias, mean=mean, r=r, computed=computed)
    return _ops._row_step(x, "applied", function, across, **given, dtype=x.dtype), mean, r


def norm_backward(
    cut: Cut,
    function: str,
    grad: Tensor,
    x: Tensor,
    dims: int,
    mean: Tensor | None,
    r: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, weight and bias that are wanted: of the last two the sums over all rows of all ranks."""
    along, across = [*range(x.dim() - dims)], [*range(x.dim() - dims, x.dim())]
    crosses_rows, crosses_weights = cut.crosses(across), cut.crosses(along)
    here = [mask[0] and not crosses_rows, mask[1] and not crosses_weights, mask[2] and not crosses_weights]
    found: list[Tensor | None] = [None, None, None]
    if any(here) and function == "layer_norm":
        found = list(_ops._layer_norm_backward(grad, x, dims, mean, r, weight, bias, eps, here))
    elif any(here):
        found = [*_ops._rms_norm_backward(grad, x, dims, r, weight, eps, here[:2]), None]
    computed = widest(x, grad, weight, bias, r)
    name, numbers = f"{function}_backward", dict(mean=mean, r=r, computed=computed)
    if mask[0] and crosses_rows:

        def total(step: str) -> Tensor:
            addends = _ops._row_step(x, step, name, across, grad, weight, **numbers, dtype=computed)
            return cut.reduced(addends, _sum(across, computed))

        length = product(cut.shape[d] for d in across)
        sums = (total("second_addends"), total("addends")) if mean is not None else (total("addends"), None)
        first_share, share = _ops._finish_rows(*sums, name, length, 0.0, computed)
        numbers |= dict(first_share=first_share, share=share)
        found[0] = _ops._row_step(x, "applied", name, across, grad, weight, **numbers, dtype=x.dtype)
    if crosses_weights:

        def over_rows(addends: Tensor, like: Tensor | None) -> Tensor:
            total = cut.reduced(addends, _sum(along, computed), logical=True)
            return rounded(total.reshape(x.shape[x.dim() - dims :]), x.dtype if like is None else like.dtype)

        numbers = dict(mean=mean, r=r, computed=computed)
        if mask[1]:
            addends = _ops._row_step(x, "weight_addends", name, across, grad, **numbers, dtype=computed)
            found[1] = over_rows(addends, weight)
        if mask[2]:
            found[2] = over_rows(grad, bias)
    return tuple(found)


# --- gradients of Shards ----------------------------------------------------------------------------------------------


def of_first_order(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass whose gradients raise an error when they are differentiated.

    torch's own once_differentiable lets those pass whose incoming gradient is a constant: a part would be missing.
    """

    @wraps(backward)
    def once(ctx: Any, grad: Tensor) -> Any:
        with torch.no_grad():
            found = backward(ctx, grad)
        if not torch.is_grad_enabled():
            return found
        found = [x if x is None else x.detach().requires_grad_() for x in found]
        return torch._C._functions.DelayedError(_ONCE, len(found))(*found)

    return once


_ONCE = (
    b"gradients of a Shard through ranks are of first order; gradients of DTensors have any order, but of products "
    b"and of several targets"
)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, function, dim, dtype):
        y = softmax(cut, function, x, dim, dtype)
        ctx.save_for_backward(y)
        ctx.facts = cut, function, dim, x.dtype
        return y

    @staticmethod
    @of_first_order
    def backward(ctx, grad):
        cut, function, dim, dtype = ctx.facts
        return softmax_backward(cut, function, grad, *ctx.saved_tensors, dim, dtype), None, None, None, None


class _LogProb(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, target, dim, ignore_index):
        forward = log_probs if target.dim() == x.dim() else log_prob
        found, m, log_sum = forward(cut, x, target, dim, ignore_index)
        ctx.save_for_backward(x, target, m, log_sum)
        ctx.facts = cut, dim, ignore_index
        return found

    @staticmethod
    @of_first_order
    def backward(ctx, grad):
        (cut, dim, ignore_index), (x, target, m, log_sum) = ctx.facts, ctx.saved_tensors
        backward = log_probs_backward if target.dim() == x.dim() else log_prob_backward
        return backward(cut, grad, x, target, dim, ignore_index, m, log_sum), None, None, None, None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, cut, function, dims, eps):
        y, mean, r = norm(cut, function, x, dims, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, r)
        ctx.facts = cut, function, dims, eps
        return y

    @staticmethod
    @of_first_order
    def backward(ctx, grad):
        (cut, function, dims, eps), (x, weight, bias, mean, r) = ctx.facts, ctx.saved_tensors
        mask = ctx.needs_input_grad[:3]
        found = norm_backward(cut, function, grad, x, dims, mean, r, weight, bias, eps, mask)
        return *found, None, None, None, None


class _Sum(torch.autograd.Function):
    """The sum over dims that are cut, which every rank gets; a gradient that every rank has goes to its own part."""

    @staticmethod
    def forward(ctx, x, cut, dims):
        ctx.shape = x.shape
        return cut.reduced(x, _sum(dims, x.dtype))

    @staticmethod
    @of_first_order
    def backward(ctx, grad):
        return grad.expand(ctx.shape), None, None


# --- calls on Shards --------------------------------------------------------------------------------------------------


def _opened(
    title: str, shard: Shard, read: Callable[[Tensor, int], tuple[list[int], bool, dict[str, Any]]]
) -> tuple[Tensor, ShardCut | None]:
    """This rank's tensor, and how it is cut: None where ranks have nothing to do with each other.

    `read` checks the arguments as far as one rank can, given the tensor and the dim that is cut. It returns the dims of
    a row, whether ranks have to do with each other, and what else they must agree on.
    """
    group, sizes = shard.group, shard.sizes
    world, rank = place(title, group)
    error = facts = None
    x, size, meets = shard.x, 0, True
    try:
        if not isinstance(x, Tensor):
            raise TypeError(f"{title}(): the Shard's tensor must be Tensor, not {type(x).__name__}")
        dim = dim_of(title, shard)
        dims, meets, more = read(x, dim)
        size = int(x.shape[dim])
        if sizes is not None:
            check_sizes(title, sizes, world, rank, size)
        if meets and world > 1:
            check_device(title, "x", x.device, group)
        order = slowest_first(x.stride(), [d for d in dims if x.shape[d] != 1 or d == dim])
        facts = {
            "function": title,
            "shape": ["*" if d == dim else n for d, n in enumerate(x.shape)],
            "dtype": str(x.dtype),
            "device": kind_of(x.device, group),
            "dim of the Shard": dim,
            "order": order,
        } | more
    except Exception as raised:
        if sizes is not None or world == 1:
            raise
        error = raised
    if error is None and (world == 1 or not meets):
        return x, None
    if sizes is None:
        device = x.device if isinstance(x, Tensor) else torch.get_default_device()
        sizes, order = agree(title, facts, error, size, group, device)
    shape = (*x.shape[:dim], int(sum(sizes)), *x.shape[dim + 1 :])
    return x, ShardCut(shape, dim, tuple(map(int, sizes)), tuple(order), rank, group)


def _probe(x: Tensor | None) -> Tensor | None:
    return None if x is None else torch.empty_like(x, device="meta")


def _one(x: Tensor) -> Tensor:
    return torch.empty([1] * x.dim(), dtype=x.dtype, device="meta")


def _beside(title: str, x: Tensor, **given: Tensor | None) -> None:
    """Raises an error unless these are tensors on the device of `x`, or None."""
    for argument, tensor in given.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{title}(): argument '{argument}' must be Tensor, not {type(tensor).__name__}")
        if tensor.device != x.device:
            devices = f"{tensor.device} and {x.device}"
            raise RuntimeError(
                f"{title}(): Expected all tensors to be on the same device, but found {devices} ('{argument}')"
            )


def _softmax_of(function: str, shard: Shard, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    if dtype is None and is_autocast(shard.x, "cuda"):
        dtype = torch.float32

    def read(x: Tensor, cut_dim: int) -> tuple[list[int], bool, dict[str, Any]]:
        result = getattr(_ops, function)(_one(x), dim, dtype=dtype)
        at = dim % x.dim()
        return [at], at == cut_dim, {"dim": at, "dtype of the result": str(result.dtype)}

    x, cut = _opened(function, shard, read)
    if cut is None:
        return getattr(_ops, function)(x, dim, dtype=dtype)
    return _differentiable_softmax(cut, function, x, dim % x.dim(), dtype)


def _differentiable_softmax(cut: Cut, function: str, x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    result = dtype or (torch.float32 if x.dtype.itemsize == 1 else x.dtype)
    # A logarithm of two bytes has too few digits for its exponential.
    if function == "log_softmax" and result.itemsize == 2 and x.requires_grad and torch.is_grad_enabled():
        return rounded(_Softmax.apply(x, cut, function, dim, torch.float32), result)
    return _Softmax.apply(x, cut, function, dim, dtype)


def _log_prob_of(
    shard: Shard, target: Tensor, dim: int = -1, *, temperature: float = 1.0, ignore_index: int = -100
) -> Tensor:
    title, options = "log_prob", dict(temperature=temperature, ignore_index=ignore_index)

    def of_rows(x: Tensor, target: Tensor) -> Tensor:
        of_tensors = log_prob_of_several if target.dim() == x.dim() > 0 else _ops.log_prob
        return of_tensors(x, target, dim, **options)

    def read(x: Tensor, cut_dim: int) -> tuple[list[int], bool, dict[str, Any]]:
        _beside(title, x, target=target)
        of_rows(_probe(x), _probe(target))
        at = dim % x.dim()
        several = target.shape[at] if target.dim() == x.dim() else None
        facts = {"dim": at, "dtype of 'target'": str(target.dtype), "targets of a row": several}
        return [at], at == cut_dim, facts | options

    x, cut = _opened(title, shard, read)
    if cut is None:
        return of_rows(x, target)
    if temperature != 1:
        x = softened(x, temperature)
    return _LogProb.apply(x, cut, target, dim % x.dim(), ignore_index)


@enter
def entropies(shard: Shard, dim: int, temperature: float) -> Tensor:
    """The entropy of each row's probabilities, with `log_prob`'s arguments."""
    x = softened(shard.x, temperature)
    x, cut = _opened("log_prob", replace_tensor(shard, x), lambda x, d: ([dim % x.dim()], d == dim % x.dim(), {}))
    if cut is None:
        return entropy(x, dim)
    terms = entropy_terms(_differentiable_softmax(cut, "log_softmax", x, dim % x.dim(), None))
    return -_Sum.apply(terms, cut, [dim % x.dim()]).squeeze(dim)


def replace_tensor(shard: Shard, x: Tensor) -> Shard:
    """A Shard that is cut alike."""
    return Shard(x, shard.dim, shard.group, shard.sizes)


_REDUCTIONS = ("none", "mean", "sum")


def _cross_entropy_of(
    shard: Shard,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    *,
    divisor: Tensor | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    title, options = "cross_entropy", dict(divisor=divisor, z_loss=z_loss)

    def read(x: Tensor, cut_dim: int) -> tuple[list[int], bool, dict[str, Any]]:
        _beside(title, x, target=target, weight=weight)
        like = None if divisor is None else torch.empty(divisor.shape, dtype=divisor.dtype, device="meta")
        _ops.cross_entropy(
            _probe(x), _probe(target), None, reduction, ignore_index, label_smoothing, divisor=like, z_loss=z_loss
        )
        at, wide = int(x.dim() > 1), str(widest(x, weight))
        facts = {"reduction": reduction, "ignore_index": ignore_index, "label_smoothing": label_smoothing}
        facts |= {"divisor": divisor is not None, "z_loss": z_loss}
        return (
            [at],
            reduction > 0 or at == cut_dim,
            facts | {"computed in": wide, "dtype of 'target'": str(target.dtype)},
        )

    x, cut = _opened(title, shard, read)
    if cut is None:
        return _ops.cross_entropy(x, target, weight, reduction, ignore_index, label_smoothing, **options)
    dim = int(x.dim() > 1)
    computed, classes = widest(x, weight), cut.shape[dim]
    if weight is not None and (weight.dim() != 1 or weight.shape[0] != classes):
        raise RuntimeError(
            f"cross_entropy(): weight: expected a number for each of {classes} classes, but got the size "
            f"{list(weight.shape)}"
        )
    across = cut.crosses([dim])  # otherwise the rows are cut
    if z_loss and across:
        raise NotImplementedError("cross_entropy(): z_loss: is not supported where the classes are cut")

    def logarithms() -> Tensor:
        if across:
            return _Softmax.apply(x, cut, "log_softmax", dim, computed)
        return _ops.log_softmax(x, dim, dtype=computed)

    def total(each: Tensor) -> Tensor:
        return (_Sum.apply(each, cut, [dim]) if across else _ops.sum(each, [dim], True)).squeeze(dim)

    def over_rows(each: Tensor) -> Tensor:
        if across:
            return _ops.sum(each)
        at = cut.dim - (cut.dim > dim)
        dims = [*range(each.dim())]
        order = dims if each.is_contiguous() else slowest_first(each.stride(), dims)
        rows = replace(cut, shape=(*cut.shape[:dim], *cut.shape[dim + 1 :]), dim=at, order=tuple(order))
        return _Sum.apply(each, rows, dims).reshape(())

    def number(value: float) -> Tensor:
        return torch.scalar_tensor(value, dtype=computed, device=x.device)

    def of_each() -> Tensor:
        return applied("quotient", number(label_smoothing), number=classes)

    def reduced(losses: Tensor, count: Callable[[], Tensor]) -> Tensor:
        dtype = torch.float32 if is_autocast(x, "cpu", "cuda") else x.dtype
        if reduction == 0:
            return rounded(losses, dtype)
        total = over_rows(losses)
        by = (lambda: divisor.detach().to(total)) if divisor is not None else count
        return rounded(applied("divided", total, result=by()) if reduction == 1 else total, dtype)

    def multiplied(each: Tensor, factor: Tensor) -> Tensor:
        return applied("product", each, factor)

    def shift() -> Tensor:
        each = _ops._logsumexp(x, [dim], dtype=computed)
        return multiplied(each * each, number(z_loss))

    of_class = None
    if weight is not None:
        (first, last), *_ = cut.held(dim)
        of_class = weight[first:last].to(computed).view([-1 if d == dim else 1 for d in range(x.dim())])
    if target.is_floating_point():  # probabilities of classes
        share = target.to(computed)
        if label_smoothing > 0:
            share = multiplied(share, number(1 - label_smoothing)) + of_each()
        if of_class is not None:
            share = share * of_class
        rows = product(n for d, n in enumerate(cut.shape) if d != dim)
        losses = -total(logarithms() * share)
        return reduced(losses + shift() if z_loss else losses, lambda: number(rows))

    index = _marked(target, ignore_index)
    ignored = index == -1
    logits = x.double() if computed == torch.float64 else x
    given = target, dim, ignore_index
    losses = -(_LogProb.apply(logits, cut, *given) if across else _ops._log_prob(logits, *given)[0])
    counted = ignored.logical_not().to(computed)
    if weight is not None:
        counted = weight.to(computed)[index.clamp_min(0)].masked_fill(ignored, 0)  # 0 times an infinite weight is NaN
        losses = losses * counted
    if z_loss and label_smoothing == 0:
        losses = _ops._cross_entropy(logits, target, weight, 0, ignore_index, z_loss, None, computed)[0]
    if label_smoothing > 0:
        weighted = logarithms() if of_class is None else logarithms() * of_class
        smooth = -total(weighted).masked_fill(ignored, 0)
        losses = multiplied(losses, number(1 - label_smoothing)) + multiplied(smooth, of_each())
        losses = losses + shift().masked_fill(ignored, 0) if z_loss else losses
    return reduced(losses, lambda: over_rows(counted))


def _norm_of(
    function: str,
    shard: Shard,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    shape = [int(n) for n in normalized_shape]
    if function == "layer_norm" and is_autocast(shard.x, "cuda"):
        shard = replace_tensor(shard, shard.x.float())

    def read(x: Tensor, cut_dim: int) -> tuple[list[int], bool, dict[str, Any]]:
        _beside(function, x, weight=weight, bias=bias)
        dims = len(shape)
        own = list(shape)
        across = [*range(max(x.dim() - dims, 0), x.dim())]
        if cut_dim in across:  # of the global tensor
            own[cut_dim - x.dim()] = x.shape[cut_dim]
        arguments = (_probe(weight),) if function == "rms_norm" else (_probe(weight), _probe(bias))
        getattr(_ops, function)(_probe(x), own, *arguments)
        trained = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (weight, bias))
        facts = {
            "normalized_shape": shape,
            "eps": eps,
            "weights": [None if t is None else str(t.dtype) for t in (weight, bias)],
        }
        return across, cut_dim in across or trained, facts | {"weights with gradients": trained}

    x, cut = _opened(function, shard, read)
    arguments = (weight,) if function == "rms_norm" else (weight, bias)
    if cut is None:
        given = () if eps is None else (eps,)
        return getattr(_ops, function)(x, shape, *arguments, *given)
    dims = len(shape)
    if list(cut.shape[x.dim() - dims :]) != shape:
        raise RuntimeError(
            f"{function}(): Given normalized_shape={shape}, expected input with shape "
            f"[*, {', '.join(map(str, shape))}], but got input of size {list(cut.shape)}"
        )
    if eps is None:  # torch's defaults
        eps = 1e-5 if function == "layer_norm" else torch.finfo(widest(x)).eps
    return _Norm.apply(x, weight, bias, cut, function, dims, eps)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {  # with the operators' names of arguments but the first
    "softmax": partial(_softmax_of, "softmax"),
    "log_softmax": partial(_softmax_of, "log_softmax"),
    "log_prob": _log_prob_of,
    "cross_entropy": _cross_entropy_of,
    "rms_norm": partial(_norm_of, "rms_norm"),
    "layer_norm": partial(_norm_of, "layer_norm"),
}


@enter
def keep_shape(function: str, x: Shard, **given: Any) -> Tensor:
    """A function that keeps its input's shape."""
    return _FUNCTIONS[function](x, **given)
