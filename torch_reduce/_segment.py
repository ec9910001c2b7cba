"""Reductions of segments, and their softmax: runs of unequal lengths, packed one after the other along one dim."""

import torch
from torch import Tensor

from . import _arguments, _library
from ._arguments import Input, boolean, joined, mesh_of, over_ranks

_ops = torch.ops.gpureduce


def _reduce(operator, data, offsets, dim, out=None, **last):
    name = operator.__name__.removeprefix("exact_")
    if isinstance(data, Tensor) and data.is_nested and data.layout is torch.jagged:
        return _of_nested(operator, name, data, offsets, dim, out, last)
    if type(data) is not Tensor and mesh_of(data) is not None:
        data = joined(data)
        if isinstance(offsets, Tensor) and mesh_of(offsets) is None:
            # A gradient is divided by lengths, and torch divides DTensors by DTensors alone.
            offsets = over_ranks("replicated")(offsets, data)
    if data is None or offsets is None:  # which torch.ops would take for tensors
        _arguments.tensors(name, data=data, offsets=offsets)
    if type(dim) is not int:
        _arguments.integer(name, "dim", dim)
    if last.get("dtype") is not None:
        _arguments.dtype(name, last["dtype"])
    overload = operator.default
    if out is not None:
        overload, last = operator.out, dict(last, out=out)
    return _library.call(name, overload, data, offsets, dim, **last)


def _of_nested(operator, name, data, offsets, dim, out, last):
    """What a function makes of the rows of a nested tensor: its segments, along the ragged dim of its values."""
    if offsets is not None:
        raise TypeError(f"{name}(): argument 'offsets' must be left out beside a nested tensor, which has its own")
    if out is not None:
        raise TypeError(f"{name}(): argument 'out' must be left out beside a nested tensor")
    ragged = data._ragged_idx
    _arguments.integer(name, "dim", dim)
    if dim not in (0, ragged, ragged - data.dim()):
        raise RuntimeError(f"{name}(): dim: expected {ragged}, the ragged one of the nested tensor, but got {dim}")
    if data.lengths() is not None:
        raise NotImplementedError(f"{name}(): nested tensors with gaps between their rows are not supported")
    along = ragged - 1  # of the values
    result = _reduce(operator, data.values(), data.offsets(), along, **last)
    if name != "segment_softmax":
        return result.movedim(along, 0)
    return torch.nested.nested_tensor_from_jagged(result, data.offsets(), jagged_dim=ragged)


def segment_sum(
    data: Input,
    offsets: Tensor | None = None,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """The sums of segments of ``data`` along ``dim``, each with the bits of its own :func:`torch_reduce.sum`.

    Segment ``s`` is ``data[offsets[s]:offsets[s + 1]]`` along ``dim``. So rows of unequal lengths need no padding:
    packed sequences, bags of embeddings, the nodes of a batch of graphs. What is packed around a segment changes none
    of its bits. Elements before the first offset and after the last one belong to no segment.

    Args:
        data: a tensor of one dim or more, of any strides and of any dtype that :func:`torch_reduce.sum` takes, on the
            CPU, a CUDA device or meta; or a nested tensor of the layout ``torch.jagged`` without gaps. It is never
            copied or cast as a whole. On a GPU there are kernels for float32, bfloat16 and float16 that lie side by
            side along ``dim``, or whose rows do; other dtypes, other strides, and results of other dtypes are converted
            one by one, which takes longer.
        offsets: a tensor of one dim, of int64 or int32, on the same device: one more than there are segments,
            ascending, from 0 to ``data.size(dim)``. Equal neighbours are an empty segment. As in
            :func:`torch.segment_reduce`, in :func:`torch.nested.nested_tensor_from_jagged`, and in the ``cu_seqlens``
            of attention kernels. A nested tensor has its own: they are left out.
        dim: the first or the last dim, which may be counted from the end. Of a nested tensor it is the ragged one, and
            may be left out.
        dtype: the dtype of the result, as of :func:`torch_reduce.sum`.
        out: a tensor to write the result to; it is resized if its shape differs, with a warning if it had elements.
        exact: whether each result is correctly rounded, as by :func:`torch_reduce.sum` with ``exact=True``. Then no
            order of the elements of a segment shows. docs/exact.md says what that costs.

    Returns:
        A tensor of ``data``'s shape, but with the number of segments in place of the size of ``dim``. The sum of an
        empty segment is 0. Of a nested tensor it has the rows in dim 0 and no ragged dim, as ``data.sum(ragged_dim)``.

    **Offsets on a GPU** are read by the GPU alone, and nothing waits for it. Where they do not ascend, or lie outside
    of the dim, nothing outside of ``data`` is read, and the kernel stops with an assertion, as torch's own do for an
    index out of bounds: the next call that waits for the GPU raises ``RuntimeError: CUDA error: device-side assert
    triggered``, and the process cannot use the GPU any more. On the CPU they are checked before anything is written.

    **Lengths** are not offsets: ``torch.nn.functional.pad(lengths.cumsum(0), (1, 0))`` makes these of those.

    Gradients of any order, forward mode, ``torch.vmap``, ``torch.autocast``, ``torch.compile``, ``torch.export`` and
    CUDA graphs work as for :func:`torch_reduce.sum`. Under vmap all of a batch is one call, unless ``offsets`` are
    batched too: then each is a call.

    Raises:
        TypeError: ``data`` or ``offsets`` are no tensors, but a list; ``offsets`` or ``out`` beside a nested tensor;
            ``exact`` is no bool.
        IndexError: ``dim`` is out of range.
        RuntimeError: ``dim`` is neither the first nor the last; ``data`` has no dims; ``offsets`` of another dtype,
            device or number of dims, or empty; on the CPU, offsets that do not ascend or lie outside of the dim; an
            ``out`` of another dtype than ``dtype``, on another device, or with several elements in one place.
        NotImplementedError: a dtype that cannot be reduced.

    Warns:
        UserWarning: on the CPU, ``offsets`` do not begin with 0, and their sum is ``data.size(dim)``: lengths look like
            that.

    >>> torch_reduce.segment_sum(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([0, 1, 1, 4]))
    tensor([ 1.,  0., 14.])
    """
    operator = _ops.segment_sum
    if exact is not False:
        boolean("segment_sum", "exact", exact)
        operator = _ops.exact_segment_sum
    return _reduce(operator, data, offsets, dim, out, dtype=dtype)


def segment_mean(
    data: Input,
    offsets: Tensor | None = None,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The means of segments of ``data`` along ``dim``, each with the bits of its own :func:`torch_reduce.mean`.

    Args:
        data: as for :func:`segment_sum`. Integers and bool need a floating or complex ``dtype``.
        offsets: as for :func:`segment_sum`.
        dim: as for :func:`segment_sum`.
        dtype: the dtype of the result, as of :func:`torch_reduce.mean`.
        out: as for :func:`segment_sum`.

    Returns:
        A tensor as of :func:`segment_sum`. The mean of an empty segment is NaN.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`segment_sum`; or the result's dtype would be
            neither floating nor complex.

    >>> torch_reduce.segment_mean(torch.tensor([1.0, 2.0, 4.0, 6.0]), torch.tensor([0, 1, 1, 4]))
    tensor([1., nan, 4.])
    """
    return _reduce(_ops.segment_mean, data, offsets, dim, out, dtype=dtype)


def segment_prod(
    data: Input,
    offsets: Tensor | None = None,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The products of segments of ``data`` along ``dim``, each with the bits of its own :func:`torch_reduce.prod`.

    Args:
        data: as for :func:`segment_sum`, but real. On a GPU elements are converted one by one.
        offsets: as for :func:`segment_sum`.
        dim: as for :func:`segment_sum`.
        dtype: the dtype of the result, as of :func:`torch_reduce.prod`.
        out: as for :func:`segment_sum`.

    Returns:
        A tensor as of :func:`segment_sum`. The product of an empty segment is 1.

    **Gradient.** Each element's is the product of all others of its segment, also where some are 0; it has the bits of
    the gradient of :func:`torch_reduce.prod`. Second derivatives multiply neighbours of 1, 2, 4 and so on places, and
    write about as many tensors of ``data``'s size as that size has binary digits.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`segment_sum`; or complex numbers.

    >>> torch_reduce.segment_prod(torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([0, 1, 1, 4]))
    tensor([ 1.,  1., 64.])
    """
    return _reduce(_ops.segment_prod, data, offsets, dim, out, dtype=dtype)


def segment_amax(data: Input, offsets: Tensor | None = None, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """The largest element of each segment of ``data`` along ``dim``, as :func:`torch_reduce.amax` finds it.

    Args:
        data: as for :func:`segment_sum`, but real. On a GPU there are kernels for float32, bfloat16 and float16 that
            lie side by side along ``dim``, or whose rows do; other dtypes and strides are converted one by one.
        offsets: as for :func:`segment_sum`.
        dim: as for :func:`segment_sum`.
        out: as for :func:`segment_sum`, of ``data``'s dtype.

    Returns:
        A tensor as of :func:`segment_sum`, of ``data``'s dtype. NaN if an element of the segment is. The maximum of an
        empty segment is -inf, and the lowest number of a dtype without infinities: False of bool.

    **Gradient.** Shared by all elements of a segment that are the largest, as for :func:`torch_reduce.amax`, with
    the same bits.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`segment_sum`; or complex numbers.

    >>> torch_reduce.segment_amax(torch.tensor([1.0, 2.0, 8.0, 4.0]), torch.tensor([0, 1, 1, 4]))
    tensor([1., -inf, 8.])
    """
    return _reduce(_ops.segment_amax, data, offsets, dim, out)


def segment_amin(data: Input, offsets: Tensor | None = None, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """The smallest element of each segment of ``data`` along ``dim``, as :func:`torch_reduce.amin` finds it.

    Args, gradient and errors: as for :func:`segment_amax`.

    Returns:
        A tensor as of :func:`segment_amax`. The minimum of an empty segment is inf, and the highest number of a dtype
        without infinities: True of bool.

    >>> torch_reduce.segment_amin(torch.tensor([1.0, 2.0, 8.0, 4.0]), torch.tensor([0, 1, 1, 4]))
    tensor([1., inf, 2.])
    """
    return _reduce(_ops.segment_amin, data, offsets, dim, out)


def segment_logsumexp(data: Input, offsets: Tensor | None = None, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """The logarithm of the sum of ``exp(data)`` of each segment, with the bits of :func:`torch_reduce.logsumexp`.

    Args:
        data: as for :func:`segment_sum`, but real.
        offsets: as for :func:`segment_sum`.
        dim: as for :func:`segment_sum`.
        out: as for :func:`segment_sum`, of any floating dtype.

    Returns:
        A tensor as of :func:`segment_sum`, and of ``data``'s dtype: float32 for the float8 types, and torch's default
        dtype for integers and bool. -inf of an empty segment, and where all elements are -inf; inf where one is.

    It writes two tensors of ``data``'s size, of float32, or of float64 for float64 and integers: the largest element of
    each element's segment, and the exponentials.

    **Gradient**. As of :func:`torch_reduce.logsumexp`, with the same bits.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`segment_sum`; or complex numbers.

    >>> torch_reduce.segment_logsumexp(torch.tensor([0.0, 0.0, 1.0, 3.0]), torch.tensor([0, 2, 2, 4]))
    tensor([0.6931,   -inf, 3.1269])
    """
    return _reduce(_ops.segment_logsumexp, data, offsets, dim, out)


def segment_softmax(
    data: Input, offsets: Tensor | None = None, dim: int = 0, *, dtype: torch.dtype | None = None
) -> Tensor:
    """The softmax of each segment of ``data`` along ``dim``, with the bits of its own :func:`torch_reduce.softmax`.

    Such as the attention of a node over its neighbours, where the edges of each node are a segment.

    Args:
        data: as for :func:`segment_sum`, but real. Integers and bool need a ``dtype``.
        offsets: as for :func:`segment_sum`.
        dim: as for :func:`segment_sum`.
        dtype: the dtype of the result, as of :func:`torch_reduce.softmax`: float16, bfloat16, float32 or float64.

    Returns:
        A tensor of ``data``'s shape; of a nested tensor a nested one. Elements before the first offset and after the
        last one belong to no segment: their results and their gradients are 0. A segment that has NaN or inf, or
        nothing but -inf, becomes NaN. Under ``torch.autocast`` the result has the dtype that
        :func:`torch_reduce.softmax` gives.

    It writes three more tensors of ``data``'s size, of float32, or of float64 where ``data`` or ``dtype`` is. Gradients
    of any order, ``torch.vmap`` and the rest work as for :func:`segment_sum`. The gradient of a segment has the same
    bits as the gradient of :func:`torch_reduce.softmax` of the segment alone.

    Raises:
        TypeError, IndexError, RuntimeError: as :func:`segment_sum`; or ``dtype`` is none of these.
        NotImplementedError: complex numbers; integers or bool without a ``dtype``.

    >>> torch_reduce.segment_softmax(torch.tensor([0.0, 0.0, 5.0]), torch.tensor([0, 2, 3]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    return _reduce(_ops.segment_softmax, data, offsets, dim, dtype=dtype)
