"""Sums, means and norms; how a sum will run, and the plans that it takes."""

from functools import cache
from importlib import import_module

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from . import _arguments, _library, _reduction
from ._operations import exact_name, exact_operators, of_orders
from .tuning.tuned import Tuned

__all__ = ["mean", "powsum", "sum", "tune", "vector_norm"]

_ops = torch.ops.gpureduce
_direct_sum, _direct_mean = _library.entry("sum"), _library.entry("mean")


@cache
def _directs(kind, exact):
    """The entries of norms or sums of powers by order. Each is an operator of its own, which needs no look at `ord`."""
    if not exact:
        return {order: _library.entry(operator) for order, operator in of_orders(kind).items()}
    orders = {order: exact_name(operator) for order, operator in of_orders(kind).items()}
    return {order: _library.entry(operator) for order, operator in orders.items() if operator in exact_operators()}


def _through_ops(operator, name, others, like=None, **given):
    """Calls that csrc/core/torch/python/entry.cpp does not take: with subclasses, modes or unusual arguments."""
    first = _arguments.read(name, given, others, like)
    if name == "vector_norm":
        first["input"] = _arguments.joined(first["input"])
    last = {"dtype": first.pop("dtype")}
    out = first.pop("out")
    overload = operator.default
    if out is not None:
        overload, last["out"] = operator.out, out
    return _library.call(name, overload, *first.values(), **last)


@_arguments.called_as(_arguments.summation)
def sum(input=None, dim=None, keepdim=False, *, dtype=None, out=None, exact=False, **others):
    """The sum of ``input`` over ``dim``, with the semantics of :func:`torch.sum` and fixed bits.

    Args:
        input: a tensor of any shape, strides and storage offset, on the CPU, a CUDA device or meta, or a DTensor, or a
            :class:`torch_reduce.distributed.Shard`, which goes without ``out`` (docs/distributed.md says what then
            comes out, and what is sent). Its dtype is
            float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, int8 to int64, uint8 to uint64, bool,
            complex32, complex64 or complex128. It is never copied or cast as a whole.
        dim: the dimensions to reduce, each in ``[-input.dim(), input.dim())`` and named once: an int, or a tuple or
            list of them, which may be empty. ``None`` and ``()`` reduce all. NumPy's integers are ints, and so are
            integer tensors of one element; bools are not.
        keepdim: whether the reduced dimensions stay, with size 1: a bool.
        dtype: the dtype of the result. By default it is ``out``'s; without ``out`` it is int64 for integers and bool,
            float32 for the float8 types, and ``input.dtype`` for all others. ``bool``, ``int``, ``float`` and
            ``complex`` are bool, int64, float64 and complex128.
        out: a tensor to write the result to; it is resized if its shape differs, with a warning if it had elements.
        exact: whether the result is correctly rounded: the number of its dtype that is nearest to the exact sum, ties
            to even. docs/exact.md says what that costs.

    ``keepdim`` and ``out`` may be given without ``dim``. A call that gives an argument its default value is the same
    call as one that leaves the argument out. NumPy's names work, too, as with :func:`torch.sum`: ``axis`` for ``dim``,
    ``keepdims`` for ``keepdim``, and ``a``, ``x`` and ``x1`` for ``input``.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions. A sum over 0 elements is 0.

    **Order.** The additions follow the contract of docs/order.md: chunks of 4096 elements, 512 lanes per chunk, then
    nearest neighbours pairwise. The elements of one reduced dimension come by their index, in any layout; elements of
    several come in memory order, so equal tensors that lie differently in memory may have other bits.
    ``input.contiguous()`` gives one order, and with ``exact=True`` any order gives the same bits. The bits of a result
    depend on these elements and their order alone, never on the batch, the device, the stream or the tuning.

    **Rounding.** Sums of float16, bfloat16, float32 and float8 are accumulated in float32; sums of float64, or with
    ``dtype=torch.float64``, in float64; integers in int64, exactly, modulo 2**64; complex numbers by component. The
    result is rounded once, at the end: ``sum(x, dtype=torch.bfloat16)`` of a float32 ``x`` does not round the elements
    to bfloat16 first, as ``torch.sum`` does. Integers of up to 32 bits reduced to a floating ``dtype`` are summed
    exactly and converted once. A floating ``input`` with an integer ``dtype`` converts every element first.

    **Exact sums.** With ``exact=True`` and a floating or complex result nothing is rounded before the end, and no order
    shows. A partial sum beyond the largest number is no infinity. NaN and infinities count as in IEEE arithmetic, and a
    sum of exactly zero is -0.0 only where all elements are. Integers are added without a modulus, and complex numbers
    by component. Integer and bool results are the same as without ``exact``. Of DTensors and Shards the result is that
    of the whole tensor.

    Raises:
        TypeError: an argument of another type, given twice, or unknown.
        IndexError: a dimension out of range.
        ValueError: a dimension beyond 64 bits.
        RuntimeError: a dimension named twice; an ``out`` of another dtype than ``dtype``, on another device, or with
            several elements in one place; a dtype that cannot be reduced; a CUDA tensor where the library was built
            without CUDA. A refused call writes nothing.

    Warns:
        UserWarning: ``out`` was resized; or, once in a process, imaginary parts were discarded.

    >>> torch_reduce.sum(torch.ones(3, 4), dim=1)
    tensor([4., 4., 4.])
    """
    if exact is not False:
        return _reduction.reduce("sum", input, dim, keepdim, out, others, dtype, exact)
    # It serves plain calls and leaves the others. Dynamo cannot look into it.
    try:
        if (
            not others
            and not is_dynamo_compiling()
            and _direct_sum
            and (result := _direct_sum(input, dim, keepdim, dtype, out)) is not NotImplemented
        ):
            return result
    except Exception as error:
        raise _arguments.named(error, "sum") from None
    return _through_ops(_ops.sum, "sum", others, input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=out)


@_arguments.called_as(_arguments.summation)
def mean(input=None, dim=None, keepdim=False, *, dtype=None, out=None, exact=False, **others):
    """The mean of ``input`` over ``dim``, with the semantics of :func:`torch.mean` and fixed bits.

    The sum in the order of :func:`sum`, divided once by the number of elements in the accumulator's precision, and then
    rounded once. Integers, which need a ``dtype``, are summed exactly and divided in float64.

    Args:
        input: as for :func:`sum`. Integers and bool need a floating or complex ``dtype``.
        dim: as for :func:`sum`.
        keepdim: as for :func:`sum`.
        dtype: the dtype of the result, floating or complex. By default ``out``'s; without ``out`` it is
            ``input.dtype``, and float32 for the float8 types.
        out: as for :func:`sum`.
        exact: as for :func:`sum`: the number nearest to the exact sum divided by the number of elements.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions. A mean over 0 elements is NaN.

    Raises:
        TypeError, IndexError, ValueError: as :func:`sum`.
        RuntimeError: as :func:`sum`; or the result's dtype would be neither floating nor complex.

    Warns:
        UserWarning: as :func:`sum`.

    >>> torch_reduce.mean(torch.arange(4.0).view(2, 2), dim=1)
    tensor([0.5000, 2.5000])
    """
    if exact is not False:
        return _reduction.reduce("mean", input, dim, keepdim, out, others, dtype, exact)
    try:
        if (
            not others
            and not is_dynamo_compiling()
            and _direct_mean
            and (result := _direct_mean(input, dim, keepdim, dtype, out)) is not NotImplemented
        ):
            return result
    except Exception as error:
        raise _arguments.named(error, "mean") from None
    return _through_ops(_ops.mean, "mean", others, input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=out)


def _direct(kind, ord, others, exact):
    """The entry of a norm or a sum of powers, of a plain call, if there is one. It warns at its caller's caller."""
    plain = not others and not is_dynamo_compiling() and (type(ord) is int or type(ord) is float)
    return _directs(kind, exact).get(ord) if plain else None


@_arguments.called_as(_arguments.norm)
def vector_norm(input=None, ord=2, dim=None, keepdim=False, *, dtype=None, out=None, exact=False, **others):
    """The norm of the vectors along ``dim``, with the semantics of :func:`torch.linalg.vector_norm` and fixed bits.

    ====================  ==============================================
    ``ord``               what it is
    ====================  ==============================================
    ``2``                 the square root of the sum of ``abs(x) ** 2``
    ``1``                 the sum of ``abs(x)``
    ``3``                 the cube root of the sum of ``abs(x) ** 3``
    ``0``                 how many elements are not zero, as NaN is not
    ``inf``, ``-inf``     the largest, the smallest ``abs(x)``
    ====================  ==============================================

    Args:
        input: a tensor of any shape, strides and storage offset, on the CPU, a CUDA device or meta, and of any floating
            or complex dtype that :func:`sum` takes, the float8 types too. It is never copied or cast as a whole.
        ord: the order of the norm, one of the six above: a number, or a tensor of one that needs no gradient.
        dim: as for :func:`sum`. The elements along all of these dimensions are one vector.
        keepdim: as for :func:`sum`.
        dtype: the dtype that the elements are converted to before anything is computed: floating for a floating
            ``input``, complex for a complex one, and not narrower than it. ``float`` is float64 and ``complex``
            complex128.
        out: a tensor to write the result to, of the result's dtype; it is resized if its shape differs, with a warning
            if it had elements.
        exact: whether the result is correctly rounded, for ``ord`` 2 alone: the number of its dtype that is nearest to
            the root of the exact sum of squares, ties to even. docs/exact.md says what that costs.

    ``keepdim`` and ``out`` may be given without ``dim``. A call that gives an argument its default value is the same
    call as one that leaves the argument out.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions. It is real: its dtype is ``dtype``, or the real
        type of ``input.dtype`` (float32 for complex64), and float32 for the float8 types. A norm over 0
        elements is 0; for ``inf`` and ``-inf`` it is an error.

    **Rounding.** The powers are added in the order of :func:`sum`, in float32, and in float64 where ``input`` or
    ``dtype`` is float64 or complex128. Every multiplication that makes a power is rounded to that precision, and so is
    the root, which is correctly rounded. The result is rounded once more where its dtype is narrower: a float16 norm is
    finite where its sum of squares is beyond float16. docs/order.md says all of it. A square that float32 cannot hold
    overflows or vanishes: ``dtype=torch.float64`` has more room, and with ``exact=True`` no square is rounded.

    Raises:
        TypeError, IndexError, ValueError: as :func:`sum`; an ``ord`` that is not a number.
        NotImplementedError: another ``ord``, also than 2 with ``exact=True``; a dtype that :func:`sum` does not take.
        RuntimeError: as :func:`sum`; ``input`` is of integers or bool; ``dtype`` is narrower than ``input``, or real
            for a complex one, or complex for a real one; ``ord`` is complex; ``inf`` or ``-inf`` over 0 elements.

    Warns:
        UserWarning: ``out`` was resized.

    >>> torch_reduce.vector_norm(torch.tensor([[3.0, 4.0], [5.0, 12.0]]), dim=1)
    tensor([ 5., 13.])
    """
    if exact is not False:
        _arguments.boolean("vector_norm", "exact", exact)
    direct = _direct("norm", ord, others, exact)
    try:
        if direct and (result := direct(input, dim, keepdim, dtype, out)) is not NotImplemented:
            return result
        given = dict(input=input, ord=ord, dim=dim, keepdim=keepdim, dtype=dtype, out=out)
        operator = _ops.exact_linalg_vector_norm if exact else _ops.linalg_vector_norm
        return _through_ops(operator, "vector_norm", others, **given)
    except Exception as error:
        raise _arguments.named(error, "vector_norm") from None


@_arguments.called_as(_arguments.norm)
def powsum(input=None, ord=2, dim=None, keepdim=False, *, dtype=None, out=None, exact=False, **others):
    """The sum of ``abs(input) ** ord`` over ``dim``: :func:`vector_norm` without its root, with fixed bits.

    ``powsum(x)`` is the sum of squares. Where a norm is taken over several parts, their sums of powers can be added
    before the root.

    Args:
        input: as for :func:`vector_norm`.
        ord: 0, 1, 2 or 3, as for :func:`vector_norm`. Those of 0 and 1 are the norms of 0 and 1.
        dim: as for :func:`sum`.
        keepdim: as for :func:`sum`.
        dtype: as for :func:`vector_norm`.
        out: as for :func:`vector_norm`.
        exact: whether the result is correctly rounded, for ``ord`` 2 alone: the number of its dtype that is nearest to
            the exact sum of squares, ties to even.

    Returns:
        A tensor as of :func:`vector_norm`: its bits before the root, rounded once to the result's dtype. A float16
        result is infinity beyond 65504: ``dtype=torch.float32`` has room. The sum of no powers is 0.

    Raises:
        TypeError, IndexError, ValueError, NotImplementedError, RuntimeError: as :func:`vector_norm`.

    Warns:
        UserWarning: as :func:`vector_norm`.

    >>> torch_reduce.powsum(torch.tensor([[3.0, 4.0], [5.0, 12.0]]), dim=1)
    tensor([ 25., 169.])
    """
    if exact is not False:
        _arguments.boolean("powsum", "exact", exact)
    direct = _direct("powsum", ord, others, exact)
    given = dict(input=input, ord=ord, dim=dim, keepdim=keepdim, dtype=dtype, out=out)
    try:
        if direct and (result := direct(input, dim, keepdim, dtype, out)) is not NotImplemented:
            return result
        operator = _ops.exact_linalg_powsum if exact else _ops.linalg_powsum
        return _through_ops(operator, "powsum", others, "vector_norm", **given)
    except Exception as error:
        raise _arguments.named(error, "powsum") from None


def _plain(name: str, input: object) -> None:
    """Refuses what :func:`sum` takes in a tensor's place, and a question about one GPU does not: a Shard."""
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}: ask for its x")


# Whose plans explain and tune know: the functions that share them, by the begin of their operators' names.
_PLANNED = {"sum": "", "mean": "", "var": "_var_mean", "std": "_var_mean", "var_mean": "_var_mean"}


def _planned(name: str, function: str, weight: object) -> tuple[str, tuple[Tensor, ...]]:
    """The begin of the names of a function's operators, and its tensors after ``input``."""
    if weight is None:
        if function not in _PLANNED:
            known = ", ".join(_PLANNED)
            raise ValueError(f"{name}: function must be one of {known}, or a weight be given, but is {function!r}")
        return _PLANNED[function], ()
    if not isinstance(weight, Tensor):
        raise TypeError(f"{name}(): argument 'weight' must be Tensor, not {type(weight).__name__}")
    if function not in ("sum", "weighted_sum"):
        raise ValueError(f"{name}: a weight belongs to weighted_sum, and function is {function!r}")
    return "_weighted_sum", (weight,)


def explain(
    input: Tensor,
    dim: _arguments.Dims = None,
    keepdim: bool = False,
    *,
    dtype: _arguments.Dtype = None,
    weight: Tensor | None = None,
    function: str = "sum",
) -> str:
    """The short form of :func:`torch_reduce.explain`, whose errors name it."""
    begin, more = _planned("explain", function, weight)
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=None)
    input, dim, keepdim, dtype, _ = _arguments.read("explain", given, {}, "sum").values()
    _plain("explain", input)
    if input.device.type not in ("cpu", "cuda"):
        raise NotImplementedError(
            f"explain(): input: expected a tensor on the CPU or a CUDA device, but it is on {input.device}"
        )
    for weight in more:
        if weight.device != input.device:
            raise RuntimeError(
                f"explain(): weight: expected to be on {input.device} as input, but is on {weight.device}"
            )
    operator = getattr(_ops, f"{begin}_explain").default
    return _library.call("explain", operator, input, *more, dim, keepdim, dtype=dtype)


def tune(
    input: Tensor,
    dim: _arguments.Dims = None,
    keepdim: bool = False,
    *,
    dtype: _arguments.Dtype = None,
    weight: Tensor | None = None,
    function: str = "sum",
) -> Tuned:
    """Times every plan for this call on its GPU, and takes the fastest from now on.

    A plan says how a sum is cut among blocks (:func:`explain` prints it). It decides speed and never a bit, so it is
    safe to tune anywhere. The plan is remembered for :func:`sum` and :func:`mean` of all inputs with these sizes,
    strides, dtypes and address modulo 16, in every thread, until the process ends. It takes some tens of milliseconds,
    and up to 1 GiB or half of the free memory meanwhile: copies of ``input``, so that it is not found in a cache.
    ``python -m torch_reduce tune`` is for all calls: it measures the GPU with random problems.

    Args:
        input: as for :func:`sum`, on a CUDA device. It is read, and never written.
        dim: as for :func:`sum`.
        keepdim: as for :func:`sum`.
        dtype: as for :func:`sum`.
        weight: tunes ``weighted_sum(input, weight, dim)`` instead.
        function: tunes ``"var"`` instead, and with it ``"std"`` and ``"var_mean"``.

    Returns:
        A named tuple: ``before_us`` and ``us``, the microseconds of a call between other kernels by the plan that was
        taken before and by the one that is taken now; ``plan``, the latter as :func:`explain` prints it; and ``plans``,
        how many there are.

    Raises:
        ValueError: ``input`` is not on a CUDA device, or has no elements; ``function`` is none of those.
        TypeError, IndexError, RuntimeError: as :func:`sum`; ``input`` is a Shard; or a CUDA graph is being captured.
    """
    begin, more = _planned("tune", function, weight)
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=dtype, out=None)
    input, dim, keepdim, dtype, _ = _arguments.read("tune", given, {}, "sum").values()
    _plain("tune", input)
    if not input.is_cuda:
        raise ValueError(f"tune: input must be on a CUDA device, but is on {input.device}")
    if input.numel() == 0:
        raise ValueError("tune: input has no elements, so there is nothing to time")
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError("tune: a CUDA graph is being captured, and nothing can be timed meanwhile")
    return import_module("torch_reduce.tuning.tune").tune_call(begin, (input, *more), dim, keepdim, dtype)
