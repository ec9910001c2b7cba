"""Which element is the largest or smallest one: the first of equal ones, as torch finds it."""

import torch

from . import _arguments, _library, _reduction

__all__ = ["aminmax", "argmax", "argmin", "max", "min"]
_reduction.expect(("argmax", "argmin"), with_dtype=())

_ops = torch.ops.gpureduce


@_arguments.called_as(_arguments.reduction)
def argmax(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The index of the largest element of ``input`` over ``dim``, with the semantics of :func:`torch.argmax`.

    Args:
        input: as for :func:`sum`, but real. bool, float8 types and all unsigned integers are taken, too.
        dim: as for :func:`sum`: torch takes one dimension alone, this any of them.
        keepdim: as for :func:`sum`.
        out: as for :func:`sum`, of int64.

    Returns:
        An int64 tensor of ``input``'s shape without the reduced dimensions. Of several largest elements it is the first
        one's index, on every device: torch promises none. NaN is larger than all numbers, and 0.0 equals -0.0. The
        index over several dimensions, or all of them, counts the elements in logical order, whatever the strides are:
        over all, ``input.reshape(-1)[index]`` is the element. There is no gradient.

    Raises:
        TypeError, ValueError, RuntimeError: as :func:`sum`.
        IndexError: as :func:`sum`; or a reduced dimension has size 0.
        NotImplementedError: complex numbers, or a dtype that :func:`sum` does not take.

    >>> torch_reduce.argmax(torch.tensor([[1.0, 4.0, 4.0], [3.0, 2.0, 1.0]]), dim=1)
    tensor([1, 0])
    """
    return _reduction.reduce("argmax", input, dim, keepdim, out, others)


@_arguments.called_as(_arguments.reduction)
def argmin(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The index of the smallest element of ``input`` over ``dim``, with the semantics of :func:`torch.argmin`.

    Args and errors: as for :func:`argmax`.

    Returns:
        As :func:`argmax`, of the first smallest element. NaN is smaller than all numbers here.

    >>> torch_reduce.argmin(torch.tensor([[1.0, 4.0, 1.0], [3.0, 2.0, 5.0]]), dim=1)
    tensor([0, 1])
    """
    return _reduction.reduce("argmin", input, dim, keepdim, out, others)


def _both(name, operator, input, dim, keepdim, out, others, names):
    """Calls an operator of two results, whose out tensors have these `names`."""
    given = dict(input=input, dim=dim, keepdim=keepdim, dtype=None, out=None)
    input, dim, keepdim, *_ = _arguments.read(name, given, others).values()
    if dim is not None or name != "aminmax":
        _arguments.integer(name, "dim", dim)
    input = _arguments.joined(input)
    if name != "aminmax" and _arguments.mesh_of(input) is not None:
        input = _arguments.over_ranks("uncut")(input, dim)  # torch's gather takes no DTensor that is cut along this dim
    given = dict(dim=dim, keepdim=keepdim)
    overload = operator.default
    if out is not None:
        if not isinstance(out, (tuple, list)) or len(out) != 2 or not all(isinstance(one, torch.Tensor) for one in out):
            raise TypeError(f"{name}(): argument 'out' must be a tuple of two Tensors, but is {out!r:.40}")
        overload, given = operator.out, given | dict(zip(names, out, strict=True))
    return getattr(torch.return_types, name)(_library.call(name, overload, input, **given))


@_arguments.called_as(_arguments.extreme)
def max(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The largest element of ``input`` over one dimension and its index, as :func:`torch.max` with ``dim`` has them.

    Args:
        input: as for :func:`argmax`.
        dim: the dimension to reduce.
        keepdim: as for :func:`sum`.
        out: two tensors that the results are written to, of ``input``'s dtype and of int64. They share no element.

    Returns:
        A ``torch.return_types.max`` of ``values`` and ``indices``, tensors of ``input``'s shape without ``dim``. The
        index is :func:`argmax`'s, and the value is the element there: NaN if an element is; where 0.0 and -0.0
        are the largest, the first of them. :func:`amax` gives the largest element alone, over any dimensions.

    **Gradient.** All of it is the element's at the index, as in torch.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`argmax`; ``dim`` is missing, or no int.

    >>> torch_reduce.max(torch.tensor([[1.0, 4.0, 4.0], [3.0, 2.0, 1.0]]), dim=1)
    torch.return_types.max(
    values=tensor([4., 3.]),
    indices=tensor([1, 0]))
    """
    return _both("max", _ops.max, input, dim, keepdim, out, others, ("values", "indices"))


@_arguments.called_as(_arguments.extreme)
def min(input=None, dim=None, keepdim=False, *, out=None, **others):
    """The smallest element of ``input`` over one dimension and its index, as :func:`torch.min` with ``dim`` has them.

    Args, gradient and errors: as for :func:`max`.

    Returns:
        A ``torch.return_types.min``, as :func:`max` returns its results. The index is :func:`argmin`'s.

    >>> torch_reduce.min(torch.tensor([[1.0, 4.0, 1.0], [3.0, 2.0, 5.0]]), dim=1)
    torch.return_types.min(
    values=tensor([1., 2.]),
    indices=tensor([0, 1]))
    """
    return _both("min", _ops.min, input, dim, keepdim, out, others, ("values", "indices"))


@_arguments.called_as(_arguments.smallest_and_largest)
def aminmax(input=None, *, dim=None, keepdim=False, out=None, **others):
    """The smallest and the largest element of ``input``, as :func:`torch.aminmax`: :func:`amin` and :func:`amax`.

    Args:
        input: as for :func:`amax`.
        dim: the dimension to reduce, or None for all.
        keepdim: as for :func:`sum`.
        out: two tensors that the results are written to, of ``input``'s dtype. They share no element.

    Returns:
        A ``torch.return_types.aminmax`` of ``min`` and ``max``, tensors of ``input``'s shape without ``dim``. Both are
        NaN if an element is.

    **Gradient.** As for :func:`amin` and :func:`amax`: shared by all elements that are the smallest or the largest.
    torch's function has none.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`amax`.

    >>> torch_reduce.aminmax(torch.tensor([[1.0, 4.0], [3.0, 2.0]]), dim=1)
    torch.return_types.aminmax(
    min=tensor([1., 2.]),
    max=tensor([4., 3.]))
    """
    return _both("aminmax", _ops.aminmax, input, dim, keepdim, out, others, ("min", "max"))
