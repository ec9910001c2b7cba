"""Softmaxes, the losses that are made of them, and norms of rows."""

from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from . import _arguments, _library
from . import _quantize as _float8

__all__ = ["cross_entropy", "layer_norm", "log_prob", "log_softmax", "rms_norm", "softmax"]

_Shape: TypeAlias = int | list[int] | tuple[int, ...] | torch.Size

_ops = torch.ops.gpureduce


def _softmax(operator, name, input, dim, dtype, out):
    _arguments.tensors(name, input=input)
    _arguments.integer(name, "dim", dim)
    _arguments.dtype(name, dtype)
    if out is not None:
        return _library.call(name, operator.out, input, dim, dtype=dtype, out=out)
    return _library.call(name, operator.default, input, dim, dtype=dtype)


def softmax(
    input: _arguments.Input, dim: int, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """The probabilities ``exp(input) / sum(exp(input))`` along ``dim``, as :func:`torch.softmax`, with fixed bits.

    Args:
        input: real, of any shape, strides and device, or a DTensor, or a :class:`torch_reduce.distributed.Shard`.
            Integers and bools need ``dtype``.
        dim: the dimension that is reduced.
        dtype: of the result: float16, bfloat16, float32 or float64. The input is not rounded to it first. By default
            the input's; float32 for the float8 types.
        out: a tensor of that dtype, which the result is written to. It does not choose the dtype.

    Returns:
        A tensor of ``input``'s shape; of a Shard this rank's part of it. A row with a NaN or +inf, or of nothing but
        -inf, is NaN, as in torch. Under ``torch.autocast`` on CUDA it is float32 if no ``dtype`` is given (float64 for
        float64), as torch's; on the CPU autocast changes nothing.

    **Order and rounding.** m is the exact maximum of a row, S the contract's sum of e^(x - m), and the result is
    e^(x - m) * (1 / S), in float32 (float64 if ``input`` or the result is), rounded once at the end. An e^(x - m) below
    1.6e-38 counts as 0. A row has the same bits in every batch and layout, on any GPU and on the CPU, and so has its
    gradient, (g - sum(g * y)) * y.

    Raises:
        TypeError, IndexError, RuntimeError: as torch's function.
        NotImplementedError: complex numbers, or integers without ``dtype``.

    >>> torch_reduce.softmax(torch.tensor([[0.0, 0.0], [0.0, -float("inf")]]), dim=1)
    tensor([[0.5000, 0.5000],
            [1.0000, 0.0000]])
    """
    return _softmax(_ops.softmax, "softmax", input, dim, dtype, out)


def log_softmax(
    input: _arguments.Input, dim: int, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """The logarithms of :func:`softmax`, as :func:`torch.log_softmax`, with fixed bits.

    Args, errors: as for :func:`softmax`.

    **Order and rounding.** With m and S as there, the result is (x - m) - log(S), rounded once at the end. Its gradient
    is g - e^y * sum(g). If the result has 16 bits, the gradient is computed from the float32 logarithm y.

    >>> torch_reduce.log_softmax(torch.tensor([0.0, 0.0]), dim=0)
    tensor([-0.6931, -0.6931])
    """
    return _softmax(_ops.log_softmax, "log_softmax", input, dim, dtype, out)


@overload
def log_prob(
    logits: _arguments.Input, target: Tensor, dim: int = -1, *, temperature: float = 1.0, ignore_index: int = -100
) -> Tensor: ...
@overload
def log_prob(
    logits: _arguments.Input,
    target: Tensor,
    dim: int = -1,
    *,
    temperature: float = 1.0,
    ignore_index: int = -100,
    return_entropy: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def log_prob(
    logits: _arguments.Input,
    target: Tensor,
    dim: int = -1,
    *,
    temperature: float = 1.0,
    ignore_index: int = -100,
    return_entropy: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The logarithm of the probability that ``softmax(logits / temperature)`` gives to each ``target``.

    Args:
        logits: of float16, bfloat16, float32, float64 or a float8 type, of any strides and device, or a DTensor, or a
            :class:`torch_reduce.distributed.Shard`.
        target: int64, int32 or uint8, of ``logits``'s shape without ``dim``: indices along ``dim``. Or of as many dims
            as ``logits``, with K targets of each row along ``dim`` and ``logits``'s sizes in all other dims, as the
            index of :func:`torch.gather`. Its number of dims alone says which of the two it is. Beside a Shard whose
            rows are cut, the targets of this rank's rows; an index counts the classes of the global tensor.
        dim: the dimension of the classes.
        temperature: above 0. If it is not 1, the quotients are written to memory, in float32 or float64.
        ignore_index: targets of this value have the result 0, and no gradient.
        return_entropy: also give the entropy of each row's probabilities, -sum(p * log(p)), of the same dtype.

    Returns:
        float32 (float64 for float64 logits), whatever the logits are; of ``target``'s shape. With ``return_entropy`` a
        pair of it and the entropies. ``torch.autocast`` changes nothing.

    **Order and rounding.** The results have the bits of ``log_softmax(logits, dim, dtype=torch.float32)`` at the
    targets, and the gradient has the bits of its gradient, rounded once to the dtype of ``logits``. Nothing of
    ``logits``'s size is written, neither here nor for the gradient, but the gradient itself. (An entropy writes the
    logarithms y of the probabilities, and e^y * y, which is 0 where y is -inf; the contract's sum of these is its
    negative. It has the same bits on the CPU and on GPUs, alone and compiled.)

    **Several targets.** Each of the K results has the bits of a call with this target alone, and the row is reduced
    once. The gradient is not the sum of K gradients: of class j it is d - e^y * S, rounded once. S is the sum of the
    row's K incoming gradients in the order of :func:`sum`; targets to ignore count 0 in it. d is the sum of incoming
    gradients of the targets that are j, in the order of :func:`scatter_add`, and y the logarithm of j's probability.
    These gradients have any order, in reverse mode alone; of a DTensor they are of first order. float8 logits are
    converted to float32 first.

    Raises:
        TypeError, RuntimeError: wrong dtypes, sizes or devices; ``temperature`` is not above 0.
        IndexError: a target on the CPU is no class and is not ignored. On a GPU, torch's assertion stops the kernel.
        NotImplementedError: complex or integer ``logits``.

    >>> torch_reduce.log_prob(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    tensor([-0.6931, -0.3133])
    >>> torch_reduce.log_prob(torch.tensor([[1.0, 2.0]]), torch.tensor([[1, 0, 1]]))
    tensor([[-0.3133, -1.3133, -0.3133]])
    """
    _arguments.tensors("log_prob", logits=logits)
    _arguments.plain_tensors("log_prob", target=target)
    _arguments.integer("log_prob", "dim", dim)
    _arguments.integer("log_prob", "ignore_index", ignore_index)
    _arguments.boolean("log_prob", "return_entropy", return_entropy)
    last = dict(temperature=temperature, ignore_index=ignore_index)
    if isinstance(logits, Tensor) and target.dim() == logits.dim() > 0:
        found = log_prob_of_several(logits, target, dim, **last)
    else:
        found = _library.call("log_prob", _ops.log_prob.default, logits, target, dim, **last)
    if not return_entropy:
        return found
    if not isinstance(logits, Tensor):
        return found, _arguments.over_ranks("entropies")(logits, dim, temperature)
    return found, entropy(softened(logits, temperature), dim)


def applied(
    formula: str, x: Tensor, grad: Tensor | None = None, result: Tensor | None = None, *, number: float = 1
) -> Tensor:
    """A formula of csrc/core/numeric/apply.h. torch's operators may round otherwise, and compiled code does."""
    grad, result = (t if t is None else t.reshape([1] * (x.dim() - t.dim()) + list(t.shape)) for t in (grad, result))
    return _ops._apply(x, grad, result, None, formula, 0, -number, x.dtype)


def softened(logits: Tensor, temperature: float) -> Tensor:
    """logits / temperature, in float32 or float64."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return wide if temperature == 1 else applied("quotient", wide, number=temperature)


def entropy_terms(logarithms: Tensor) -> Tensor:
    """p * log(p) of each probability p, given log(p): 0 where p is 0."""
    return applied("entropy", logarithms)


def entropy(logits: Tensor, dim: int) -> Tensor:
    """The entropy of each row's probabilities."""
    return -_ops.sum(entropy_terms(_ops.log_softmax.default(logits, dim)), [dim])


# --- several targets of a row -----------------------------------------------------------------------------------------


def log_prob_of_several(logits: Tensor, target: Tensor, dim: int, *, temperature: float, ignore_index: int) -> Tensor:
    title, rank = "log_prob", logits.dim()
    if kind := _arguments.layout_of(logits) or _arguments.layout_of(target):
        raise NotImplementedError(f"{title}(): {kind} tensors are not supported")
    if not -rank <= dim < rank:
        expected = f"(expected to be in range of [{-rank}, {rank - 1}], but got {dim})"
        raise IndexError(f"{title}(): Dimension out of range {expected}")
    dim %= rank
    check_targets(title, target, [n for d, n in enumerate(logits.shape) if d != dim], dim)
    check_temperature(title, temperature)
    if temperature != 1 or logits.dtype.itemsize == 1:
        logits = softened(logits, temperature)
    if any(_arguments.mesh_of(each) is not None for each in (logits, target)):
        function = _arguments.over_ranks("log_prob_of_several")
        return _library.call(title, function, logits, target, dim, ignore_index)
    return _library.call(title, _LogProbs.apply, logits, target.long(), dim, ignore_index)[0]


def check_targets(title: str, target: Tensor, rows: list[int], dim: int) -> None:
    """Raises an error unless these may be targets of rows of these sizes: one of each, or several along a dim."""
    if target.dtype not in (torch.int64, torch.int32, torch.uint8):
        raise RuntimeError(f"{title}(): target: expected int64, int32 or uint8, but got {target.dtype}")
    sizes, several = list(target.shape), target.dim() > len(rows)
    if [n for d, n in enumerate(sizes) if d != dim or not several] != rows:
        many = [*map(str, rows[:dim]), "K", *map(str, rows[dim:])]
        expected = f"{rows}, or [{', '.join(many)}] for K targets of each row"
        raise RuntimeError(f"{title}(): target: expected the size {expected}, but got {sizes}")


def check_temperature(title: str, temperature: float) -> None:
    if not isinstance(temperature, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{title}(): argument 'temperature' must be float, not {type(temperature).__name__}")
    if not temperature > 0:
        raise RuntimeError(f"{title}(): temperature: expected a number above 0, but got {temperature}")


def log_probs(logits: Tensor, target: Tensor, dim: int, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The logarithms at several targets of each row, of int64, which lie along `dim`; and each row's m and log S."""
    ignored = target == ignore_index
    # The operator takes one target of a row, and refuses what is no class: it gets the worst of them.
    if target.shape[dim] == 0:
        worst = target.new_full(target.sum(dim).shape, ignore_index)
    else:
        ends = torch.iinfo(torch.int64)
        least, most = target.masked_fill(ignored, ends.max).amin(dim), target.masked_fill(ignored, ends.min).amax(dim)
        worst = torch.where(least < 0, least, most).masked_fill(ignored.all(dim), ignore_index)
    _, m, log_sum = _ops._log_prob(logits, worst, dim, ignore_index)
    return _logarithms(logits, target.masked_fill(ignored, 0), m, log_sum, dim).masked_fill(ignored, 0), m, log_sum


def _logarithms(logits: Tensor, place: Tensor, m: Tensor, log_sum: Tensor, dim: int) -> Tensor:
    """The logarithms of the probabilities of the classes at these places."""
    if logits.shape[dim] == 0:
        return m.expand(place.shape)
    return (logits.gather(dim, place).to(m.dtype) - m) - log_sum


def log_probs_backward(
    grad: Tensor, logits: Tensor, target: Tensor, m: Tensor, log_sum: Tensor, dim: int, ignore_index: int
) -> Tensor:
    """The gradient of the logits."""
    ignored = target == ignore_index
    grad = grad.to(m.dtype).masked_fill(ignored, 0)
    total = _ops.sum(grad, [dim], True)
    if torch.is_grad_enabled() and (grad.requires_grad or logits.requires_grad):
        return _log_probs_backward_composed(grad, logits, target, total, ignored, dim)
    if 0 in (target.shape[dim], logits.shape[dim]):
        return torch.zeros_like(logits, memory_format=torch.contiguous_format)
    marked = target.masked_fill(ignored, -1)
    last = marked.amax(dim)
    found = _ops._log_prob_backward(total.squeeze(dim), logits, last, dim, -1, m, log_sum)
    return with_targets(found, grad, logits, marked, total, m, log_sum, dim)


def with_targets(
    found: Tensor, grad: Tensor, logits: Tensor, target: Tensor, total: Tensor, m: Tensor, log_sum: Tensor, dim: int
) -> Tensor:
    """Writes a gradient's elements at targets, which have another formula; negative targets are not among them."""
    missing = target < 0
    last, at_last = target.max(dim, keepdim=True)
    first = _first_alike(target, dim)
    own = _ops.scatter_add(torch.zeros_like(grad), dim, first, grad.masked_fill(missing, 0))
    # In place of a missing one, its row's last one is written once more; or class 0, if all are missing.
    own = own.gather(dim, torch.where(missing, at_last, first))
    place = torch.where(missing, last.clamp_min(0), target)
    y = _logarithms(logits, place, m, log_sum, dim)
    return found.scatter_(dim, place, applied("log_softmax_backward", y, own, total).to(found.dtype))


def _first_alike(target: Tensor, dim: int) -> Tensor:
    """For each target the place of the first one of its row that is the same."""
    row = target.movedim(dim, -1).contiguous()
    values, places = row.sort(dim=-1, stable=True)
    return places.gather(-1, torch.searchsorted(values, row)).movedim(-1, dim)


def _log_probs_backward_composed(
    grad: Tensor, logits: Tensor, target: Tensor, total: Tensor, ignored: Tensor, dim: int
) -> Tensor:
    """The same by operators that torch can differentiate again, with the same bits."""
    classes, sizes = logits.shape[dim], list(logits.shape)
    sizes[dim] += 1  # the last one is for targets to ignore
    own = _ops.scatter_add(grad.new_zeros(sizes), dim, target.masked_fill(ignored, classes), grad)
    y = _ops.log_softmax(logits, dim, dtype=grad.dtype)
    powers = applied("exponent", y, result=torch.zeros((), dtype=y.dtype, device=y.device))
    return (own.narrow(dim, 0, classes) - applied("product", powers, total)).to(logits.dtype).contiguous()


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(logits, target, dim, ignore_index):
        return log_probs(logits, target, dim, ignore_index)

    @staticmethod
    def setup_context(ctx, inputs, output):
        logits, target, dim, ignore_index = inputs
        _, m, log_sum = output
        ctx.mark_non_differentiable(m, log_sum)
        ctx.save_for_backward(logits, target, m, log_sum)
        ctx.facts = dim, ignore_index

    @staticmethod
    def backward(ctx, grad, *_):
        return log_probs_backward(grad, *ctx.saved_tensors, *ctx.facts), None, None, None

    @staticmethod
    def vmap(info, in_dims, logits, target, dim, ignore_index):
        """One call, with one dim more."""
        in_front = (
            x.unsqueeze(0).expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
            for x, d in zip((logits, target), in_dims, strict=False)
        )
        return _LogProbs.apply(*in_front, dim + 1, ignore_index), (0, 0, 0)


_REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    input: _arguments.Input,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    divisor: float | Tensor | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """The cross entropy between logits and targets, as :func:`torch.nn.functional.cross_entropy`, with fixed bits.

    Args:
        input: logits of shape (C,), (N, C) or (N, C, ...), as for :func:`log_prob`.
        target: indices of classes, of ``input``'s shape without C, of int64, int32 or uint8; or probabilities of
            classes, of ``input``'s shape. Beside a Shard those that belong to this rank's part.
        weight: a number per class, of all classes.
        ignore_index: indices of this value count nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: from 0 to 1, the share of the targets that is spread over all classes.
        divisor: a number, or a tensor of one without dims, that a mean divides by. So the losses of parts of a batch
            add up to the loss of all of it, if each is divided by the number of all targets. It gets no gradient.
        z_loss: every target that counts also adds ``z_loss * logsumexp(logits)**2``, whatever its weight.

    Returns:
        The loss, of ``input``'s dtype. Under ``torch.autocast`` the loss of float16 or bfloat16 is float32, as in
        torch. With ``reduction="none"`` one per target. Of a Shard the global tensor's loss, on every rank, and its
        gradient is the same on every rank.

    **Order and rounding.** A loss is the negative :func:`log_prob` times its weight, in float32 or float64. The mean is
    one quotient of two sums in the order of :func:`sum`: of the losses, and of the weights of the targets that count.
    It is rounded once. So the loss of a batch does not depend on how the GPU cuts it into blocks. A ``z_loss`` z adds
    z * (L * L) to each loss, where L is the row's :func:`logsumexp` in float32 or float64; under vmap, in forward mode
    and with smoothing its gradient may have other last bits than without.

    Raises:
        ValueError: another ``reduction``; a ``divisor`` without a mean.
        NotImplementedError: a ``z_loss`` beside a DTensor, or a Shard whose classes are cut.
        TypeError, RuntimeError, IndexError, NotImplementedError: as :func:`log_prob`.

    >>> torch_reduce.cross_entropy(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([0, 1]))
    tensor(0.5032)
    """
    _arguments.tensors("cross_entropy", input=input)
    _arguments.plain_tensors("cross_entropy", target=target)
    if not isinstance(reduction, str) or reduction not in _REDUCTIONS:
        raise ValueError(f"cross_entropy(): reduction: expected one of {_REDUCTIONS}, but got {reduction!r}")
    _arguments.integer("cross_entropy", "ignore_index", ignore_index)
    given = (input, target, weight, _REDUCTIONS.index(reduction), ignore_index, label_smoothing)
    last: dict[str, Any] = dict(z_loss=z_loss)
    if divisor is not None:
        if reduction != "mean":
            raise ValueError(f"cross_entropy(): divisor: only a mean has one, but reduction is {reduction!r}")
        if not isinstance(divisor, Tensor):
            divisor = torch.scalar_tensor(_arguments.scalar("cross_entropy", "divisor", divisor), dtype=torch.float64)
        last["divisor"] = divisor
    of_number = isinstance(z_loss, (int, float)) and z_loss != 0
    if of_number and any(_arguments.mesh_of(each) is not None for each in (input, target)):
        raise NotImplementedError("cross_entropy(): z_loss: is not supported for DTensors")
    names = {"self": "input", "logits": "input"}
    return _library.call("cross_entropy", _ops.cross_entropy.default, *given, **last, others=names)


def _shape(name, normalized_shape):
    if isinstance(normalized_shape, (int, torch.SymInt)) or hasattr(normalized_shape, "__index__"):
        return [normalized_shape]
    if not isinstance(normalized_shape, (list, tuple)):
        kind = type(normalized_shape).__name__
        raise TypeError(f"{name}(): argument 'normalized_shape' must be tuple of ints, not {kind}")
    for size in normalized_shape:
        _arguments.integer(name, "normalized_shape", size)
    return list(normalized_shape)


def widest(*tensors: object) -> torch.dtype:
    """The dtype that a call on these computes with; what is no tensor does not count."""
    wide = any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in tensors)
    return torch.float64 if wide else torch.float32


_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _check_residual(name, x, residual):
    _arguments.plain_tensors(name, residual=residual)
    if residual.is_nested or residual.layout is not torch.strided:
        kind = "nested" if residual.is_nested else str(residual.layout).removeprefix("torch.")
        raise NotImplementedError(f"{name}(): residual: expected a strided tensor, but got a {kind} one")
    for argument, tensor in (("input", x), ("residual", residual)):
        if tensor.dtype not in _FLOATING:
            expected = "float16, bfloat16, float32 or float64"
            raise NotImplementedError(f"{name}(): {argument}: expected {expected}, but got {tensor.dtype}")
    if residual.device != x.device:
        raise RuntimeError(f"{name}(): residual: expected to be on {x.device} as input, but is on {residual.device}")
    if residual.shape != x.shape:
        raise RuntimeError(
            f"{name}(): residual: expected the size {list(x.shape)} of input, but got {list(residual.shape)}"
        )


def _normalized(name, norm, input, residual):
    """The norm of a tensor; or, if there is a residual, the norm of the two tensors' sum, and the sum.

    The sum has the residual's dtype, and its norm the input's. Where these differ, the norm is computed of the sum in
    the wider one, so that it is rounded once.
    """
    _arguments.tensors(name, input=input)
    if residual is None:
        return norm(input)
    x = input if isinstance(input, Tensor) else input.x
    _check_residual(name, x, residual)
    stored = (x + residual).to(residual.dtype)
    wide = stored.to(torch.promote_types(x.dtype, residual.dtype))
    result = norm(wide if x is input else type(input)(wide, input.dim, input.group, input.sizes))
    return (result if wide.dtype == x.dtype else result.to(x.dtype)), stored


@overload
def rms_norm(
    input: _arguments.Input,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
) -> Tensor: ...
@overload
def rms_norm(
    input: _arguments.Input,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor,
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]: ...
@overload
def rms_norm(
    input: Tensor,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    weight_offset: float = 0.0,
    quantize: _float8.Fp8,
) -> tuple[Tensor, Tensor]: ...
@overload
def rms_norm(
    input: Tensor,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor,
    weight_offset: float = 0.0,
    quantize: _float8.Fp8,
) -> tuple[Tensor, Tensor, Tensor]: ...
def rms_norm(
    input: _arguments.Input,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    quantize: _float8.Fp8 | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """``input`` over the root of its mean square, times ``weight``, as :func:`torch.nn.functional.rms_norm`.

    Args:
        input: float16, bfloat16, float32 or float64, of any strides and device, or a DTensor, or a
            :class:`torch_reduce.distributed.Shard`.
        normalized_shape: the last dimensions of ``input``, over which the mean is taken: sizes of the global tensor.
        weight: of that shape, of any real dtype; None counts as 1. Beside a Shard of these dimensions this rank's part.
        eps: what is added to the mean square; by default 2^-23 (2^-52 for float64), as in torch.
        residual: a tensor of ``input``'s shape (of a Shard: of this rank's part), of any of these dtypes. ``input`` is
            added to it first, in the wider dtype of the two, and the sum, rounded to ``residual``'s dtype, is what is
            normalized. So a float32 residual stream stays one beside a model of bfloat16.
        weight_offset: is added to each weight first, in float32 (float64 if any tensor is); Gemma's norms have 1.
        quantize: rounds the result to float8 with a scale per block; see :func:`quantize`. Then ``input`` is float16,
            bfloat16 or float32, and a plain tensor.

    Returns:
        A tensor of ``input``'s shape and dtype; with ``residual`` a pair of it and the sum, which has ``residual``'s
        dtype. Of a Shard this rank's part. ``torch.autocast`` changes nothing, as for torch's function.
        With ``quantize`` values and scales stand in the result's place: a tuple of two, or with ``residual`` of three.
        They have the bits of :func:`quantize` of the result, which is rounded to ``input``'s dtype first. On a GPU one
        kernel reads and writes everything, for rows of up to 16,384 elements in whole vectors of 16 bytes.

    **Order and rounding.** S is the contract's sum of squares of a row, as :func:`powsum` has it, n its length, and
    r = 1 / sqrt(S / n + eps). The result is (x * r) * w, in float32 (float64 if any input is), rounded once at the end.
    A row of one dimension has the same bits in any layout; a row of several is added in memory order.
    The weight's gradient is the contract's sum over all rows in logical order, so it depends neither on the GPU nor on
    how rows are cut into blocks, or over ranks: every rank gets the sum over the rows of all ranks. Values and scales
    of ``quantize`` require no gradient; the sum beside them has the usual one.

    Raises:
        TypeError, RuntimeError: as torch's function.
        ValueError: a ``weight_offset`` without a weight.
        NotImplementedError: ``input`` is of another dtype; ``quantize`` of a DTensor.

    >>> torch_reduce.rms_norm(torch.tensor([3.0, 4.0]), 2, eps=0.0)
    tensor([0.8485, 1.1314])
    """
    name = "rms_norm"
    shape = _shape(name, normalized_shape)
    if not isinstance(weight_offset, (int, float)) or isinstance(weight_offset, bool):
        raise TypeError(f"{name}(): argument 'weight_offset' must be float, not {type(weight_offset).__name__}")
    if weight_offset and weight is None:
        raise ValueError(f"{name}(): weight_offset: there is no weight that it could be added to")
    if quantize is not None:
        to = _float8.arguments(name, "quantize", quantize, input, weight=weight, residual=residual)
        if residual is not None:
            _check_residual(name, input, residual)
        given = input, shape, weight, eps, residual, weight_offset, *to
        found = _library.call(name, _ops._rms_norm_quantize.default, *given)
        return found[:2] if residual is None else found
    if weight_offset:
        _arguments.plain_tensors(name, weight=weight)
        x = input if isinstance(input, Tensor) else getattr(input, "x", None)
        weight = weight.to(widest(x, residual, weight)) + weight_offset
    norm = lambda x: _library.call(name, _ops.rms_norm.default, x, shape, weight, eps)  # noqa: E731
    return _normalized(name, norm, input, residual)


@overload
def layer_norm(
    input: _arguments.Input,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor: ...
@overload
def layer_norm(
    input: _arguments.Input,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor,
) -> tuple[Tensor, Tensor]: ...
def layer_norm(
    input: _arguments.Input,
    normalized_shape: _Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``input`` less its mean, over its deviation, as :func:`torch.nn.functional.layer_norm`.

    Args, results and errors: as for :func:`rms_norm`; ``bias`` of ``normalized_shape`` is added last, None counts as 0.
    Under ``torch.autocast`` on CUDA halves are converted to float32 first, and the result is float32, as torch's.

    **Order and rounding.** In float32 (float64 if any input is), with the contract's sums over a row: c is the sum of
    x over n, S and T are the sums of x - c and of its squares, and t = S / n. Then mean = c + t,
    r = 1 / sqrt((T - S * t) / n + eps), and the result is ((x - mean) * r) * w + b, rounded once at the end. The
    differences from c keep their digits where all elements lie far from zero. Elements of more than about 1e19 have
    squares that float32 does not hold: r is 0 there. Gradients of weight and bias are as for :func:`rms_norm`.

    >>> torch_reduce.layer_norm(torch.tensor([1.0, 3.0]), 2, eps=0.0)
    tensor([-1.,  1.])
    """
    shape = _shape("layer_norm", normalized_shape)
    norm = lambda x: _library.call("layer_norm", _ops.layer_norm.default, x, shape, weight, bias, eps)  # noqa: E731
    return _normalized("layer_norm", norm, input, residual)
