"""Products, extrema, counts and logarithms of sums, in the order of the sum, with the same arguments."""

from . import _arguments, _reduction

__all__ = ["all", "amax", "amin", "any", "count_nonzero", "logsumexp", "nansum", "prod"]
_WITH_DTYPE = ("nansum", "prod")
_reduction.expect(__all__, with_dtype=_WITH_DTYPE)


@_arguments.called_as(_arguments.reduction_to)
def prod(input=None, dim=None, keepdim=False, *, dtype=None, out=None, **others):
    """The product of ``input`` over ``dim``, with the semantics of :func:`torch.prod` and fixed bits.

    Args:
        input: as for :func:`sum`, but real.
        dim: as for :func:`sum`: torch takes one dimension alone, this any of them.
        keepdim: as for :func:`sum`.
        dtype: as for :func:`sum`, but real.
        out: as for :func:`sum`.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions. A product over 0 elements is 1.

    **Order and rounding.** The factors are multiplied in the order in which :func:`sum` adds: float16, bfloat16,
    float32 and float8 in float32, and in float64 where ``input`` or ``dtype`` is float64; integers in int64, modulo
    2**64, and to a floating ``dtype`` in float64. Every multiplication is rounded to that precision, and the result
    once more where its dtype is narrower: a float16 product is finite where one half of its factors overflow float16.

    **Gradient.** An element's gradient is the product of all others, also where some are 0. It is made of torch's
    cumulative products, and nothing waits for the GPU.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
        NotImplementedError: complex numbers, or a dtype that :func:`sum` does not take.

    >>> torch_reduce.prod(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), dim=1)
    tensor([ 2., 12.])
    """
    return _reduction.reduce("prod", input, dim, keepdim, out, others, dtype)


@_arguments.called_as(_arguments.summation)
def nansum(input=None, dim=None, keepdim=False, *, dtype=None, out=None, exact=False, **others):
    """The sum over ``dim`` of all elements that are not NaN, with the semantics of :func:`torch.nansum`.

    Args:
        input: as for :func:`sum`, but real.
        dim: as for :func:`sum`.
        keepdim: as for :func:`sum`.
        dtype: as for :func:`sum`, but real, and floating where ``input`` is.
        out: as for :func:`sum`.
        exact: as for :func:`sum`.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions, as :func:`sum` returns it for an ``input`` in
        which 0.0 stands wherever NaN does. It may be NaN: where infinities of both signs are added.

    **Gradient.** As for :func:`sum`, and 0 for elements that are NaN.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
        NotImplementedError: complex numbers, a ``dtype`` that is not floating though ``input`` is, or a dtype that
            :func:`sum` does not take.

    >>> torch_reduce.nansum(torch.tensor([[1.0, float("nan")], [3.0, 4.0]]), dim=1)
    tensor([1., 7.])
    """
    return _reduction.reduce("nansum", input, dim, keepdim, out, others, dtype, exact)


@_arguments.called_as(_arguments.reduction)
def amax(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The largest element of ``input`` over ``dim``, with the semantics of :func:`torch.amax`.

    Args:
        input: as for :func:`sum`, but real. float8 types are taken, too.
        dim: as for :func:`sum`.
        keepdim: as for :func:`sum`.
        out: as for :func:`sum`, of ``input``'s dtype.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions, and of its dtype. NaN if an element is; 0.0 is
        larger than -0.0.

    **Gradient.** Shared by all elements that are the largest, as torch shares it.

    Raises:
        TypeError, ValueError: as :func:`sum`.
        IndexError: as :func:`sum`; or a reduced dimension that ``dim`` names has size 0.
        RuntimeError: as :func:`sum`; or ``input`` has no elements, and ``dim`` names no dimension.
        NotImplementedError: complex numbers, or a dtype that :func:`sum` does not take.

    >>> torch_reduce.amax(torch.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=1)
    tensor([4., 3.])
    """
    return _reduction.reduce("amax", input, dim, keepdim, out, others)


@_arguments.called_as(_arguments.reduction)
def amin(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The smallest element of ``input`` over ``dim``, with the semantics of :func:`torch.amin`.

    Args, gradient and errors: as for :func:`amax`.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions, and of its dtype. NaN if an element is; -0.0 is
        smaller than 0.0.

    >>> torch_reduce.amin(torch.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=1)
    tensor([1., 2.])
    """
    return _reduction.reduce("amin", input, dim, keepdim, out, others)


@_arguments.called_as(_arguments.reduction)
def any(input=None, dim=None, keepdim=False, *, out=None, **others):
    """Whether any element of ``input`` over ``dim`` is not zero, with the semantics of :func:`torch.any`.

    Args:
        input: as for :func:`sum`: of any dtype, complex, float8 and unsigned integers among them. NaN is not zero.
        dim: as for :func:`sum`; but ``()`` reduces no dimension, as in torch: there is a result for each element.
        keepdim: as for :func:`sum`.
        out: as for :func:`sum`, of bool or uint8.

    Returns:
        A bool tensor of ``input``'s shape without the reduced dimensions; of uint8 where ``input`` is, as in torch.
        A result over 0 elements is False. There is no gradient.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.

    >>> torch_reduce.any(torch.tensor([[0.0, 2.0], [0.0, 0.0]]), dim=1)
    tensor([ True, False])
    """
    return _reduction.reduce("any", input, dim, keepdim, out, others)


@_arguments.called_as(_arguments.reduction)
def all(input=None, dim=None, keepdim=False, *, out=None, **others):
    """Whether all elements of ``input`` over ``dim`` are not zero, with the semantics of :func:`torch.all`.

    Args and errors: as for :func:`any`.

    Returns:
        As :func:`any`, but a result over 0 elements is True.

    >>> torch_reduce.all(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), dim=1)
    tensor([ True, False])
    """
    return _reduction.reduce("all", input, dim, keepdim, out, others)


@_arguments.called_as(_arguments.reduction)
def count_nonzero(input=None, dim=None, keepdim=False, *, out=None, **others):
    """How many elements of ``input`` over ``dim`` are not zero, with the semantics of :func:`torch.count_nonzero`.

    Args and errors: as for :func:`any`. torch's function has no ``keepdim`` and no
    ``out``, which is of int64 here; and ``()`` reduces all dimensions.

    Returns:
        An int64 tensor of ``input``'s shape without the reduced dimensions. There is no gradient.

    >>> torch_reduce.count_nonzero(torch.tensor([[0.0, 2.0], [1.0, 3.0]]), dim=1)
    tensor([1, 2])
    """
    return _reduction.reduce("count_nonzero", input, dim, keepdim, out, others)


@_arguments.called_as(_arguments.reduction)
def logsumexp(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The logarithm of the sum of ``exp(input)`` over ``dim``, as :func:`torch.logsumexp` has it, with fixed bits.

    Args:
        input: as for :func:`sum`, but real.
        dim: as for :func:`sum`; ``None`` reduces all, as torch does not.
        keepdim: as for :func:`sum`.
        out: as for :func:`sum`, of any floating dtype.

    Returns:
        A tensor of ``input``'s shape without the reduced dimensions, and of its dtype: float32 for the float8 types,
        and torch's default dtype for integers and bool. It is -inf
        over 0 elements, and if all elements are -inf; it is inf if an element is inf.

    **Order and rounding.** With m the largest element of an output and S the sum of exp(input - m) in the order of
    :func:`sum`, in float32, and in float64 for float64 and integers, the result is m + log(S), rounded once. The
    exponential and the logarithm are of our own, with the same bits everywhere (docs/order.md). On a GPU, contiguous
    rows of up to 262,144 elements are read once, and all other inputs twice.

    **Gradient.** ``exp(input - result)``, as in torch.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`.
        NotImplementedError: complex numbers, or a dtype that :func:`sum` does not take.

    >>> torch_reduce.logsumexp(torch.tensor([[0.0, 0.0], [1.0, 3.0]]), dim=1)
    tensor([0.6931, 3.1269])
    """
    return _reduction.reduce("logsumexp", input, dim, keepdim, out, others)
