"""Log-probabilities of tokens from hidden states, chunk by chunk, so that no tensor has all logits."""

import contextlib
import functools
import math
import operator
from collections.abc import Iterator
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor
from torch.nn import functional as F

from . import _arguments, _library
from ._rows import (
    applied,
    check_targets,
    check_temperature,
    entropy,
    entropy_terms,
    log_probs,
    log_probs_backward,
    softened,
)

__all__ = ["log_prob_of"]

_ops = torch.ops.gpureduce
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@overload
def log_prob_of(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    chunk: int = 1024,
    temperature: float = 1.0,
    ignore_index: int = -100,
) -> Tensor: ...
@overload
def log_prob_of(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    chunk: int = 1024,
    temperature: float = 1.0,
    ignore_index: int = -100,
    return_entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def log_prob_of(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    chunk: int = 1024,
    temperature: float = 1.0,
    ignore_index: int = -100,
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`log_prob` of the logits ``torch.nn.functional.linear(hidden, weight, bias)``, which are never all there.

    They are made ``chunk`` rows at a time, and once more for the gradients. So a call needs memory for a few tensors of
    ``chunk`` times V numbers, and a backward pass also for the gradient of ``weight``, in float32, and one product.

    Args:
        hidden: of shape (..., H), of float16, bfloat16, float32 or float64: a hidden state per row.
        weight: of shape (V, H): the output matrix of a language model of V tokens, of any of these dtypes. Matrix
            products have the wider dtype of it, ``hidden`` and ``bias``. Under ``torch.autocast`` that is autocast's
            dtype, as for :func:`torch.nn.functional.linear`.
        target: int64, int32 or uint8, of shape (...): a token per row; or of shape (..., K) for K tokens per row.
        bias: of shape (V,).
        chunk: the number of rows of a matrix product, at least 1.
        temperature: as for :func:`log_prob`.
        ignore_index: as for :func:`log_prob`.
        return_entropy: also give the entropy of each row's probabilities.

    Returns:
        The logarithms, float32 (float64 if the products are), of ``target``'s shape. With ``return_entropy`` a pair of
        it and the entropies, of shape (...).

    **Bits.** Matrix products are torch's, and the logits are rounded to their dtype. Of these logits a row's results
    have the bits of :func:`log_prob`. How torch's product adds may depend on its sizes and on a row's place. So all
    products have ``chunk`` rows: zeros fill up the last chunk. A row's results then have the same bits alone and among
    any other rows, of any number, at the same place in its chunk. This needs the same ``weight``, ``bias``, ``chunk``,
    device, threads, torch and settings. For another ``chunk`` or place it holds if torch's own products are
    batch-invariant, and otherwise it may not. ``torch.compile`` may choose other products.

    **Gradients** are of first order. The logits' gradient is :func:`log_prob`'s, rounded to the dtype of the products;
    with an entropy, two gradients are added in float32 or float64 before. ``hidden``'s gradient is a product of
    ``chunk`` rows, too, and its rows have the same promise. ``weight``'s gradient is a sum of one product per chunk:
    each is rounded to the dtype of the products, and they are added from the first chunk to the last, one after the
    other, in float32 (float64 if they are float64). The sum is rounded once. ``bias``'s gradient is such a sum, too, of
    the contract's sums over the rows of each chunk. Both depend on ``chunk`` and on all rows.

    Raises:
        TypeError: an argument is of another type.
        ValueError: ``chunk`` is below 1.
        RuntimeError: sizes, devices or dtypes of ``target`` do not fit; ``temperature`` is not above 0; or a gradient
            is differentiated again.
        IndexError: as :func:`log_prob`.
        NotImplementedError: other dtypes; DTensors, or ``torch.vmap``: make the logits and call :func:`log_prob`.

    After the chunked losses of Liger Kernel (Hsu et al. 2024, arXiv:2410.10989), which keep the gradients of a mean.

    >>> hidden, weight = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    >>> torch_reduce.log_prob_of(hidden, weight, torch.tensor([1, 0]), chunk=1)
    tensor([-0.3133, -0.6931])
    """
    title, tensors = "log_prob_of", {"hidden": hidden, "weight": weight, "target": target}
    tensors |= {} if bias is None else {"bias": bias}
    _arguments.plain_tensors(title, **tensors)
    for name, number in (("chunk", chunk), ("ignore_index", ignore_index)):
        _arguments.integer(title, name, number)
    _arguments.boolean(title, "return_entropy", return_entropy)
    chunk = operator.index(chunk)
    if not 1 <= chunk < 1 << 63:
        raise ValueError(f"{title}(): chunk: expected an int of 64 bits, at least 1, but got {chunk}")
    check_temperature(title, temperature)
    _check(title, tensors)
    rows = list(hidden.shape[:-1])
    check_targets(title, target, rows, len(rows))
    count = math.prod(rows)
    flat = target.long().reshape([count, *target.shape[len(rows) :]])
    states, *head = _of_one_dtype(hidden.reshape(count, hidden.shape[-1]), weight, bias)
    call = _Call(chunk, temperature, ignore_index, return_entropy)
    found, entropies, _, _ = _library.call(title, _LogProbOf.apply, states, *head, flat, call)
    found = found.reshape(target.shape)
    return (found, entropies.reshape(rows)) if return_entropy else found


def _check(title: str, tensors: dict[str, Tensor]) -> None:
    hidden, weight = tensors["hidden"], tensors["weight"]
    for name, tensor in tensors.items():
        if _arguments.mesh_of(tensor) is not None:
            raise NotImplementedError(f"{title}(): {name}: DTensors are not supported: call log_prob with the logits")
        if kind := _arguments.layout_of(tensor):
            raise NotImplementedError(f"{title}(): {name}: expected a strided tensor, but got a {kind} one")
        if name != "target" and tensor.dtype not in _FLOATING:
            expected = "float16, bfloat16, float32 or float64"
            raise NotImplementedError(f"{title}(): {name}: expected {expected}, but got {tensor.dtype}")
        if tensor.device != hidden.device:
            where = f"expected to be on {hidden.device} as hidden, but is on {tensor.device}"
            raise RuntimeError(f"{title}(): {name}: {where}")
    if hidden.dim() == 0:
        raise RuntimeError(f"{title}(): hidden: expected at least one dim")
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        sizes = list(weight.shape)
        raise RuntimeError(f"{title}(): weight: expected the size [classes, {hidden.shape[-1]}], but got {sizes}")
    if "bias" in tensors and tensors["bias"].shape != weight.shape[:1]:
        sizes = list(tensors["bias"].shape)
        raise RuntimeError(f"{title}(): bias: expected the size [{weight.shape[0]}], but got {sizes}")


def _of_one_dtype(*tensors: Tensor | None) -> list[Tensor | None]:
    """The operands of a product as torch.autocast makes them; without it, of the widest dtype among them."""
    device = tensors[0].device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        narrow = torch.get_autocast_dtype(device)
        tensors = [x if x is None or x.dtype == torch.float64 else x.to(narrow) for x in tensors]
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in tensors if x is not None))
    return [x if x is None else x.to(dtype) for x in tensors]


# --- chunks -----------------------------------------------------------------------------------------------------------


class _Call(NamedTuple):
    chunk: int
    temperature: float
    ignore_index: int
    with_entropy: bool

    def chunks(self, count: int) -> Iterator[slice]:
        """The rows of each chunk; one chunk without rows, if there are none."""
        for first in range(0, max(count, 1), self.chunk):
            yield slice(first, min(first + self.chunk, count))

    def filled(self, rows: Tensor) -> Tensor:
        """The rows of a chunk, and zeros for those that it lacks: products of other sizes may have other bits."""
        return rows if len(rows) in (0, self.chunk) else F.pad(rows, (0, 0, 0, self.chunk - len(rows)))

    def copied(self, rows: Tensor) -> Tensor:
        """The same in memory of their own: the bits of a product may depend on strides and addresses, too."""
        return self.filled(rows.clone(memory_format=torch.contiguous_format))

    def product(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        """A chunk's hidden states as all products take them, and the logits of its rows."""
        states = self.copied(hidden)
        return states, F.linear(states, weight, bias)[: len(hidden)]

    def softened(self, logits: Tensor) -> Tensor:
        """The logits whose probabilities are asked for."""
        return softened(logits, self.temperature) if self.temperature != 1 or self.with_entropy else logits

    def found(self, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The logarithms, the entropies (none where they are not wanted), m and log S."""
        x = self.softened(logits)
        function = log_probs if target.dim() == 2 else _ops._log_prob
        found, m, log_sum = function(x, target, 1, self.ignore_index)
        if not self.with_entropy:
            return found, m.new_empty(0), m, log_sum
        return found, entropy(x, 1), m, log_sum

    def gradient(
        self, grad: Tensor, grad_entropy: Tensor, logits: Tensor, target: Tensor, m: Tensor, log_sum: Tensor
    ) -> Tensor:
        """The gradient of the logits, rounded once."""
        x = self.softened(logits)
        if target.dim() == 2:
            found = log_probs_backward(grad, x, target, m, log_sum, 1, self.ignore_index)
        else:
            found = _ops._log_prob_backward(grad, x, target, 1, self.ignore_index, m, log_sum)
        if self.with_entropy:
            y, zero = _ops.log_softmax(x, 1), torch.zeros((), dtype=x.dtype, device=x.device)
            terms = -grad_entropy.unsqueeze(1) * (entropy_terms(y) + applied("exponent", y, result=zero))
            found = found + _ops._log_softmax_backward(terms, y, 1, x.dtype)
        if self.temperature != 1:
            found = applied("quotient", found, number=self.temperature)
        return found.to(logits.dtype)


def _as_they_are(x: Tensor) -> contextlib.AbstractContextManager[None]:
    """Products of the dtypes of their operands, whatever torch.autocast says where a backward pass runs."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if device in ("cpu", "cuda") else contextlib.nullcontext()


class _LogProbOf(torch.autograd.Function):
    @staticmethod
    def forward(hidden, weight, bias, target, call):
        with _as_they_are(hidden):
            found = [
                call.found(call.product(hidden[rows], weight, bias)[1], target[rows])
                for rows in call.chunks(len(hidden))
            ]
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    @staticmethod
    def setup_context(ctx, inputs, output):
        *given, ctx.call = inputs
        _, entropies, m, log_sum = output
        ctx.mark_non_differentiable(m, log_sum, *([] if ctx.call.with_entropy else [entropies]))
        ctx.save_for_backward(*given, m, log_sum)

    @staticmethod
    def backward(ctx, grad, grad_entropy, *_):
        given = grad, grad_entropy, *ctx.saved_tensors, ctx.call, ctx.needs_input_grad[:3]
        return *_Gradients.apply(*given), None, None

    @staticmethod
    def vmap(info, in_dims, *given):
        raise NotImplementedError(
            "log_prob_of(): torch.vmap is not supported: give hidden more dims, or call log_prob with the logits"
        )


class _Gradients(torch.autograd.Function):
    """The gradients of hidden, weight and bias that are wanted. It is a function so that it refuses a second order."""

    @staticmethod
    def forward(grad, grad_entropy, hidden, weight, bias, target, m, log_sum, call, wanted):
        of_rows, of_weight, of_bias = [], None, None

        def of_logits(rows):
            own = grad_entropy[rows] if call.with_entropy else grad_entropy
            states, logits = call.product(hidden[rows], weight, bias)
            return states, call.gradient(grad[rows], own, logits, target[rows], m[rows], log_sum[rows])

        with _as_they_are(hidden):
            for rows in call.chunks(len(hidden)):
                states, found = of_logits(rows)
                if wanted[2]:
                    total = _ops.sum(found, [0], dtype=m.dtype)
                    of_bias = total if of_bias is None else of_bias + total
                count, found = len(found), call.filled(found)
                if wanted[0]:
                    of_rows.append((found @ weight)[:count])
                if wanted[1]:
                    product = found.t() @ states
                    of_weight = product.to(m.dtype) if of_weight is None else of_weight.add_(product)
                    del product
                del states, found  # before the next chunk's logits are made
        return (
            torch.cat(of_rows) if wanted[0] else None,
            of_weight.to(weight.dtype) if wanted[1] else None,
            of_bias.to(weight.dtype) if wanted[2] else None,
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError("log_prob_of(): its gradients are of first order: they cannot be differentiated")
