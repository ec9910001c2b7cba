"""Variances and standard deviations, in one pass over the input."""

import torch
from torch.compiler import is_dynamo_compiling

from . import _arguments, _library

__all__ = ["std", "var", "var_mean"]

_ops = torch.ops.gpureduce
_direct = {name: _library.entry(name) for name in ("var", "std")}


def _call(operator, name, input, dim, unbiased, keepdim, correction, out, others):
    if isinstance(dim, bool) and unbiased is None:  # var(input, unbiased)
        dim, unbiased = None, dim
    if unbiased is not None:
        if not isinstance(unbiased, bool):
            raise TypeError(f"{name}(): 'unbiased' must be bool, not {type(unbiased).__name__}")
        if correction is not None:
            raise TypeError(f"{name}(): 'unbiased' and 'correction' are two names of one thing: give one of them")
        correction = int(unbiased)
    if correction is not None:
        correction = _arguments.scalar(name, "correction", correction)
    try:
        if (
            out is None
            and not others
            and not is_dynamo_compiling()
            and (direct := _direct.get(name))
            and (result := direct(input, dim, correction, keepdim)) is not NotImplemented
        ):
            return result
    except Exception as error:
        raise _arguments.named(error, name) from None
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=None, out=out)
    input, dim, keepdim, _, out = _arguments.read(name, given, others).values()
    if out is not None:
        return _library.call(name, operator.out, input, dim, correction=correction, keepdim=keepdim, out=out)
    return _library.call(name, operator.default, input, dim, correction=correction, keepdim=keepdim)


@_arguments.called_as(_arguments.variance_and_mean)
def var_mean(input=None, dim=None, unbiased=None, keepdim=False, *, correction=None, **others):
    """The variance and the mean of ``input`` over ``dim``, as :func:`torch.var_mean`, with fixed bits.

    Args:
        input: as for :func:`sum`, but floating.
        dim: as for :func:`sum`.
        unbiased: the older form of ``correction``: False is 0, True is 1. It may stand in the place of ``dim``, too.
        keepdim: as for :func:`sum`.
        correction: what is taken off the number of elements before it divides: 1, or None, for the variance of a
            sample, 0 for the variance of all there is.

    Returns:
        The variance and the mean, tensors of ``input``'s shape without the reduced dimensions and of its dtype: float32
        for the float8 types. Both are NaN over 0 elements; a variance is NaN or infinity where ``correction`` leaves
        nothing to divide by, as in torch.

    **Order and rounding.** The input is read once. Of each element the difference from the output's first one is taken,
    in float64, and these and their squares are added in the order of :func:`sum`, in float64. So nothing is lost where
    the mean is far from 0. docs/order.md says every rounding; results are rounded once.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: as :func:`sum`; ``input`` is not floating; or both
            ``unbiased`` and ``correction`` are given.
        NotImplementedError: complex numbers, or a dtype that :func:`sum` does not take.

    Warns:
        UserWarning: ``correction`` leaves nothing to divide by.

    >>> torch_reduce.var_mean(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), dim=1)
    (tensor([2., 8.]), tensor([2., 4.]))
    """
    return _call(_ops.var_mean, "var_mean", input, dim, unbiased, keepdim, correction, None, others)


@_arguments.called_as(_arguments.variance)
def var(input=None, dim=None, unbiased=None, keepdim=False, *, correction=None, out=None, **others):
    """The variance of ``input`` over ``dim``, as :func:`torch.var`: the first result of :func:`var_mean`.

    Args, errors and warnings: as for :func:`var_mean`; ``out`` as for :func:`sum`, of float16, bfloat16, float32 or
    float64: the result is rounded once to that dtype.

    >>> torch_reduce.var(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), dim=1)
    tensor([2., 8.])
    """
    return _call(_ops.var, "var", input, dim, unbiased, keepdim, correction, out, others)


@_arguments.called_as(_arguments.variance)
def std(input=None, dim=None, unbiased=None, keepdim=False, *, correction=None, out=None, **others):
    """The standard deviation of ``input`` over ``dim``, as :func:`torch.std`: the root of :func:`var`, rounded once.

    Args, errors and warnings: as for :func:`var`.

    >>> torch_reduce.std(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), dim=1, correction=0)
    tensor([1., 2.])
    """
    return _call(_ops.std, "std", input, dim, unbiased, keepdim, correction, out, others)
