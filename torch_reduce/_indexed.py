"""Reductions by index, and torch's functions that are such: index_add, scatter_reduce, embeddings, bincount, ..."""

from typing import Any

import torch
from torch import SymInt, Tensor

from . import _arguments, _library
from ._arguments import integer, joined, mesh_of, over_ranks, plain_tensors, tensors
from ._index import IndexPlan

_ops = torch.ops.gpureduce


def _named(name: str, made: Any, *args: Any, **named: Any) -> Tensor:
    """Calls a function whose errors then name this one."""
    try:
        return made(*args, **named)
    except Exception as error:
        raise _arguments.named(error, name) from None


def _lists(name: str, given: dict[str, Any], **lists: Any) -> Any:
    """The lists of integers that say what is added where; beside DTensors, as tensors that are whole on every rank."""
    if all(mesh_of(one) is None for one in (*given.values(), *lists.values())):
        return lists.values()
    return over_ranks("lists_beside")(name, given, lists)


def _expect_rows(name: str, argument: str, x: Any, dim: int, entries: int | SymInt) -> None:
    if isinstance(x, Tensor) and x.dim() > 0 and x.size(dim) != entries:
        raise RuntimeError(
            f"{name}(): {argument}: expected {entries} rows along dim {dim}, as many as the plan has entries, but got "
            f"{x.size(dim)}"
        )


def _expect_weights(name: str, weight: Any, dim: int, entries: int | SymInt) -> None:
    _expect_rows(name, "weight", weight, dim if isinstance(weight, Tensor) and weight.dim() > 1 else 0, entries)


def _reduce(
    kind: str,
    source: Tensor,
    index: Tensor | IndexPlan,
    size: int | SymInt | None,
    dim: int,
    out: Tensor | None,
    weight: Tensor | None = None,
    **last: Any,
) -> Tensor:
    name = f"index_{kind}"
    given = {key: value for key, value in (("weight", weight), ("out", out)) if value is not None}
    tensors(name, source=source, **given)
    integer(name, "dim", dim)
    _arguments.dtype(name, last.get("dtype"))
    overload = "default" if out is None else "out"
    source = joined(source)
    if out is not None:
        last["out"] = out
    if isinstance(index, IndexPlan):
        if size is not None and size != index.size:
            raise ValueError(f"{name}(): size: the plan has {index.size} outputs, but size is {size}")
        entries = index.index.shape[0]
        _expect_rows(name, "source", source, dim, entries)
        _expect_weights(name, weight, dim, entries)
        named = {"order": index.order, "offsets": index.offsets, "index": index.index}
        order, offsets, numbers = _lists(name, {"source": source, **given}, **named)
        lists = (order, offsets, weight, order, numbers, None, None)
        operator = getattr(getattr(_ops, f"_gather_{kind}"), overload)
        return _library.call(name, operator, source, *lists, dim, others={"data": "source"}, **last)
    if not isinstance(index, Tensor):
        raise TypeError(f"{name}(): argument 'index' must be Tensor or IndexPlan, not {type(index).__name__}")
    if size is None:
        raise TypeError(
            f"{name}(): argument 'size', the number of outputs, may be left out with an IndexPlan only: the largest "
            "index on a GPU is not known without waiting for it"
        )
    integer(name, "size", size)
    (index,) = _lists(name, {"source": source, **given}, index=index)
    if weight is not None:
        last["weight"] = weight
    return _library.call(name, getattr(getattr(_ops, name), overload), source, index, size, dim, **last)


def index_sum(
    source: Tensor,
    index: Tensor | IndexPlan,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    weight: Tensor | None = None,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The sums of the rows of ``source`` that have the same index: without atomics, so with the same bits in each run.

    Output ``k`` has the bits of ``torch_reduce.sum(rows, dim)``, where ``rows`` are the rows of ``source`` along
    ``dim`` whose index is ``k``, in the order that they have in ``source``. With weights it has the bits of
    :func:`weighted_sum`: each product is rounded once.

    Args:
        source: a tensor of one dim or more, of any strides and of any dtype that :func:`torch_reduce.sum` takes, on the
            CPU, a CUDA device or meta; or a DTensor, or a :class:`torch_reduce.distributed.Shard` that is cut along
            another dim than ``dim`` (docs/distributed.md).
        index: int64 or int32, of shape (source.size(dim),), on the same device: the output of each row, in [0, size).
            Or an :class:`IndexPlan` of such an index, by :func:`index_plan`: calls with the same index then share one
            sort.
        size: the number of outputs. With a plan it may be left out.
        dim: the dim of the rows. It may be any, and counted from the end.
        weight: a real tensor of shape (source.size(dim),) that each row is multiplied by; or one of as many dims as
            ``source``, which is broadcast to it in all dims but ``dim``: (n, heads, 1) beside (n, heads, width) has a
            number for each head. ``source`` must be real, too. Beside a DTensor it is one, of any placements. Beside a
            Shard it may be one, cut along the same dim.
        dtype: the dtype of the result, as of :func:`torch_reduce.sum`; with weights, as of :func:`weighted_sum`.
        out: a tensor to write the result to; it is resized if its shape differs, with a warning if it had elements.

    Returns:
        A tensor of the shape of ``source``, but with ``size`` in place of the size of ``dim``. The sum of no rows is 0.

    **Gradients** of any order and in forward mode: each row has its output's gradient, times its weight; a weight has
    the dot product of its row and its output's gradient, in the order of :func:`weighted_sum`. ``torch.vmap``,
    ``torch.compile``, ``torch.export`` and CUDA graphs work.

    **An index on a GPU** is read by the GPU alone, and nothing waits for it. An entry that is out of range stops the
    kernel with an assertion, as in :func:`index_plan`.

    Raises:
        TypeError: an argument is no tensor; ``size`` is not given, and ``index`` is no plan; or ``source`` is a Shard
            that is cut along ``dim``.
        IndexError: on the CPU, an entry of ``index`` is not in [0, size); ``dim`` is out of range.
        ValueError: ``size`` is not the plan's.
        RuntimeError: shapes, dtypes or devices that do not fit; a wrong ``out``, or ``out`` where a gradient is needed.
        NotImplementedError: a dtype that cannot be summed, or complex numbers with weights.

    >>> torch_reduce.index_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 4)
    tensor([2., 0., 5., 0.])
    """
    return _reduce("sum", source, index, size, dim, out, weight, dtype=dtype)


def index_mean(
    source: Tensor,
    index: Tensor | IndexPlan,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """The means of the rows of ``source`` that have the same index: :func:`index_sum`, divided once.

    Args:
        source: as for :func:`index_sum`. Integers and bool need a floating or complex ``dtype``.
        index: as for :func:`index_sum`.
        size: as for :func:`index_sum`.
        dim: as for :func:`index_sum`.
        dtype: the dtype of the result, as of :func:`torch_reduce.mean`.
        out: as for :func:`index_sum`.

    Returns:
        A tensor as of :func:`index_sum`. Output ``k`` has the bits of :func:`torch_reduce.mean` of its rows; the mean
        of no rows is NaN.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`index_sum`; or the result's
            dtype would be neither floating nor complex.

    >>> torch_reduce.index_mean(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 3)
    tensor([2.0000,    nan, 2.5000])
    """
    return _reduce("mean", source, index, size, dim, out, dtype=dtype)


def index_amax(
    source: Tensor,
    index: Tensor | IndexPlan,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The largest elements among the rows of ``source`` that have the same index; NaN if any is NaN.

    Args:
        source: as for :func:`index_sum`, but real.
        index: as for :func:`index_sum`.
        size: as for :func:`index_sum`.
        dim: as for :func:`index_sum`.
        out: as for :func:`index_sum`, of the dtype of ``source``.

    Returns:
        A tensor as of :func:`index_sum`, of the dtype of ``source``. Of no rows it is the lowest value of the dtype:
        -inf for floating ones.

    The gradient of an output is shared equally by the elements that equal it, as in :func:`torch.amax`.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`index_sum`.

    >>> torch_reduce.index_amax(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 3)
    tensor([2., -inf, 4.])
    """
    return _reduce("amax", source, index, size, dim, out)


def index_amin(
    source: Tensor,
    index: Tensor | IndexPlan,
    size: int | SymInt | None = None,
    dim: int = 0,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The smallest elements among the rows of ``source`` that have the same index; NaN if any is NaN.

    Args:
        source: as for :func:`index_amax`.
        index: as for :func:`index_sum`.
        size: as for :func:`index_sum`.
        dim: as for :func:`index_sum`.
        out: as for :func:`index_amax`.

    Returns:
        A tensor as of :func:`index_amax`. Of no rows it is the largest value of the dtype: inf for floating ones.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError, NotImplementedError: as :func:`index_sum`.

    >>> torch_reduce.index_amin(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([2, 0, 2]), 3)
    tensor([2., inf, 1.])
    """
    return _reduce("amin", source, index, size, dim, out)


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: complex = 1) -> Tensor:
    """``input`` plus ``alpha`` times the sums of the rows of ``source`` by index, as :func:`torch.index_add`.

    Args:
        input: a tensor of any shape, strides and dtype that :func:`torch_reduce.sum` takes; or a DTensor or a Shard, as
            for :func:`index_sum`.
        dim: the dim of the rows, which may be counted from the end.
        index: int64 or int32, of one dim (or none), on the device of ``input``: the row of ``input`` that each row of
            ``source`` is added to, in [0, input.size(dim)).
        source: of the dtype of ``input`` and of its shape, but with ``index.numel()`` rows along ``dim``.
        alpha: a number that the sums are multiplied by: Python's, NumPy's, or a tensor of one number that needs no
            gradient. It must be a number of ``input``'s dtype.

    Returns:
        A new tensor of the shape and dtype of ``input``. Rows that no entry names keep the values of ``input``.

    **Bits.** The sum of a row's entries is S, as of :func:`index_sum`, but not rounded to the dtype: it is float32 for
    float16 and bfloat16, and int64 for integers. Then ``input + alpha * S`` has a rounding of the product and one of
    the sum in this type, and one to the dtype. torch adds the entries one by one, and on a GPU in another order in
    each run.

    **Gradients** of any order and in forward mode: ``input`` has the gradient as it is, and each row of ``source``
    ``alpha`` times its output's gradient. Neither is kept for that.

    Raises:
        TypeError: an argument is no tensor.
        IndexError: on the CPU, an entry is out of range (on a GPU see :func:`index_plan`); ``dim`` is; ``index`` has
            several dims.
        RuntimeError: dtypes or shapes that do not fit; ``alpha`` is beyond ``input``'s dtype, or complex where
            ``input`` is real, or floating where it is of integers.

    >>> torch_reduce.index_add(torch.ones(3), 0, torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 4.0]))
    tensor([3., 1., 6.])
    """
    plain_tensors("index_add", index=index)
    tensors("index_add", input=input, source=source)
    integer("index_add", "dim", dim)
    alpha = _arguments.scalar("index_add", "alpha", alpha)
    (index,) = _lists("index_add", {"input": input, "source": source}, index=index)
    return _library.call("index_add", _ops.index_add.default, input, dim, index, source, alpha=alpha)


def index_add_(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: complex = 1) -> Tensor:
    """:func:`index_add` in place, as :meth:`torch.Tensor.index_add_`.

    Args:
        input: the tensor that is changed. No two of its elements may share memory.
        dim: as for :func:`index_add`.
        index: as for :func:`index_add`.
        source: as for :func:`index_add`.
        alpha: as for :func:`index_add`.

    Returns:
        ``input``. Where an error is raised on the CPU, it has not changed.

    Raises:
        TypeError, IndexError, RuntimeError: as :func:`index_add`; or ``input`` is a leaf that requires a gradient, or
            has several elements in one place.

    >>> x = torch.ones(3)
    >>> torch_reduce.index_add_(x, 0, torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 4.0]))
    tensor([3., 1., 6.])
    """
    plain_tensors("index_add_", index=index)
    tensors("index_add_", input=input, source=source)
    integer("index_add_", "dim", dim)
    alpha = _arguments.scalar("index_add_", "alpha", alpha)
    (index,) = _lists("index_add_", {"input": input, "source": source}, index=index)
    return _library.call("index_add_", _ops.index_add_.default, input, dim, index, source, alpha=alpha)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """``input`` plus the sums of the elements of ``src`` that have the same place, as :func:`torch.scatter_add`.

    With two dims and ``dim=0``, ``src[i, j]`` is added to ``input[index[i, j], j]``.

    Args:
        input: a tensor of any shape, strides and dtype that :func:`torch_reduce.sum` takes; or a DTensor or a Shard, as
            for :func:`index_sum`.
        dim: the dim that ``index`` is in, which may be counted from the end.
        index: int64 or int32, of as many dims as ``input``, with entries in [0, input.size(dim)). It may be smaller
            than ``src``, and smaller than ``input`` in the other dims.
        src: of the dtype of ``input`` and of as many dims, and in no dim smaller than ``index``.

    Returns:
        A new tensor of the shape and dtype of ``input``. Elements that no entry names keep the values of ``input``.

    **Bits** as of :func:`index_add`, where the elements of one output come in the order that they have along ``dim``.
    Of an ``index`` that is expanded along all other dims, as :meth:`torch.Tensor.expand_as` makes it, one
    vector is sorted, and whole rows are added; the bits are the same.

    **Gradients** as of :func:`index_add`. ``torch.autocast`` on CUDA promotes ``input`` and ``src`` to the wider dtype,
    as it does for torch's function.

    Raises:
        TypeError: an argument is no tensor.
        IndexError: ``dim`` is out of range.
        RuntimeError: dtypes or shapes that do not fit; on the CPU, an entry out of range (on a GPU see
            :func:`index_plan`).

    >>> torch_reduce.scatter_add(torch.zeros(2, 2), 0, torch.tensor([[1, 0], [1, 1]]), torch.ones(2, 2))
    tensor([[0., 1.],
            [2., 1.]])
    """
    plain_tensors("scatter_add", index=index)
    tensors("scatter_add", input=input, src=src)
    integer("scatter_add", "dim", dim)
    if any(mesh_of(one) is not None for one in (input, index, src)):
        return _named("scatter_add", over_ranks("scatter_add"), input, dim, index, src)
    return _library.call("scatter_add", _ops.scatter_add.default, input, dim, index, src)


def _reduction_arguments(name: str, dim: Any, reduce: Any, include_self: Any) -> None:
    integer(name, "dim", dim)
    if not isinstance(reduce, str):
        raise TypeError(f"{name}(): argument 'reduce' must be str, not {type(reduce).__name__}")
    _arguments.boolean(name, "include_self", include_self)


def _index_reduce(
    name: str, operator: Any, input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    plain_tensors(name, index=index)
    tensors(name, input=input, source=source)
    _reduction_arguments(name, dim, reduce, include_self)
    if any(mesh_of(one) is not None for one in (input, index, source)):
        found = _named(name, over_ranks("index_reduce"), name, input, dim, index, source, reduce, include_self)
        return input.copy_(found) if name == "index_reduce_" else found
    return _library.call(name, operator, input, dim, index, source, reduce, include_self=include_self)


def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``input`` reduced with the rows of ``source`` by index, as :func:`torch.index_reduce`; and also by sums.

    Args:
        input: as for :func:`index_add`. Complex numbers have sums and means only; bool and uint64 have no mean.
        dim: as for :func:`index_add`.
        index: as for :func:`index_add`.
        source: as for :func:`index_add`.
        reduce: "prod", "mean", "amax" or "amin"; or "sum", which torch's function does not have.
        include_self: whether a row of ``input`` is reduced with its entries. Otherwise they replace it.

    Returns:
        A new tensor of the shape and dtype of ``input``. Rows that no entry names keep the values of ``input``. The
        mean of integers is rounded down.

    **Bits.** R is the sum, the product or the extremum of a row's entries, in the order of :func:`index_sum`, before it
    is rounded to the dtype: float32 for float16 and bfloat16, and int64 for integers. With ``include_self`` the result
    is ``input + R``, ``input * R``, or the larger or smaller of both. The mean is this sum over the number of entries,
    one more with ``include_self``. Each operation is rounded in this type, and the result once to the dtype. torch
    rounds after each entry, and on a GPU it takes them in another order in each run.

    **Gradients** of any order and in forward mode. All elements that are an output's extremum share its gradient
    equally. A row that is left out has no gradient and no share. (torch's function gives it no gradient either, but
    counts it among those that share if it equals the extremum.)

    Raises:
        TypeError: an argument is no tensor, or of another type.
        IndexError: as :func:`index_add`.
        RuntimeError: dtypes or shapes that do not fit; another ``reduce``.
        NotImplementedError: a dtype that the reduction does not have.

    >>> x, index, y = torch.ones(3), torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 4.0])
    >>> torch_reduce.index_reduce(x, 0, index, y, "mean")
    tensor([1.5000, 1.0000, 2.0000])
    >>> torch_reduce.index_reduce(x, 0, index, y, "prod", include_self=False)
    tensor([2., 1., 4.])
    """
    return _index_reduce("index_reduce", _ops.index_reduce.default, input, dim, index, source, reduce, include_self)


def index_reduce_(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """:func:`index_reduce` in place, as :meth:`torch.Tensor.index_reduce_`.

    Args:
        input: the tensor that is changed. No two of its elements may share memory.
        dim: as for :func:`index_add`.
        index: as for :func:`index_add`.
        source: as for :func:`index_add`.
        reduce: as for :func:`index_reduce`.
        include_self: as for :func:`index_reduce`.

    Returns:
        ``input``. Where an error is raised on the CPU, it has not changed.

    Raises:
        TypeError, IndexError, RuntimeError, NotImplementedError: as :func:`index_reduce`; or ``input`` is a leaf that
            requires a gradient, or has several elements in one place.

    >>> x = torch.ones(3)
    >>> torch_reduce.index_reduce_(x, 0, torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 4.0]), "amax")
    tensor([2., 1., 4.])
    """
    return _index_reduce("index_reduce_", _ops.index_reduce_.default, input, dim, index, source, reduce, include_self)


def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """``input`` reduced with the elements of ``src`` that have the same place, as :func:`torch.scatter_reduce`.

    With two dims and ``dim=0``, ``src[i, j]`` is reduced into ``input[index[i, j], j]``.

    Args:
        input: as for :func:`index_reduce`.
        dim: as for :func:`scatter_add`.
        index: as for :func:`scatter_add`.
        src: as for :func:`scatter_add`.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: as for :func:`index_reduce`.

    Returns:
        A new tensor of the shape and dtype of ``input``. Elements that no entry names keep the values of ``input``.

    **Bits** and **gradients** as of :func:`index_reduce`, where the elements of one output come in the order that they
    have along ``dim``. With "sum" it is :func:`scatter_add`. Whole rows are reduced if ``index`` is expanded along all
    other dims and has the sizes of ``input`` there; the bits are the same. ``torch.autocast`` changes nothing.

    Raises:
        TypeError: an argument is no tensor, or of another type.
        IndexError: ``dim`` is out of range.
        RuntimeError: as :func:`scatter_add`; another ``reduce``.
        NotImplementedError: as :func:`index_reduce`.

    >>> index, src = torch.tensor([[1, 0], [1, 1]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]])
    >>> torch_reduce.scatter_reduce(torch.zeros(2, 2), 0, index, src, "mean", include_self=False)
    tensor([[0., 6.],
            [6., 8.]])
    """
    plain_tensors("scatter_reduce", index=index)
    tensors("scatter_reduce", input=input, src=src)
    _reduction_arguments("scatter_reduce", dim, reduce, include_self)
    if any(mesh_of(one) is not None for one in (input, index, src)):
        return _named("scatter_reduce", over_ranks("scatter_reduce"), input, dim, index, src, reduce, include_self)
    given = input, dim, index, src, reduce
    return _library.call("scatter_reduce", _ops.scatter_reduce.default, *given, include_self=include_self)


def embedding(input: Tensor, weight: Tensor, padding_idx: int | SymInt | None = None) -> Tensor:
    """Rows of a table, as :func:`torch.nn.functional.embedding`, whose gradient has the same bits in each run.

    Args:
        input: int64 or int32, of any shape: the numbers of the rows, in [0, weight.size(0)).
        weight: the table, of shape (rows, columns), of any dtype and strides, on the device of ``input``; or a DTensor,
            or a Shard of columns, as for :func:`index_sum`.
        padding_idx: a row, which may be counted from the end, whose gradient is 0. It is read as any other.

    Returns:
        A tensor of shape (*input.shape, columns) and of the dtype of ``weight``.

    **Gradients** of any order and in forward mode: the gradient of a row is the sum of the gradients of its entries, as
    of :func:`index_sum`: in float32 or wider, rounded once. There are neither ``max_norm`` nor ``scale_grad_by_freq``.
    ``torch.autocast`` changes nothing.

    Raises:
        TypeError: an argument is no tensor.
        IndexError: on the CPU, an entry is out of range (on a GPU see :func:`index_plan`).
        ValueError: ``padding_idx`` is not the number of a row.
        RuntimeError: ``weight`` has not two dims; ``input`` is neither int64 nor int32.

    >>> torch_reduce.embedding(torch.tensor([2, 0]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    tensor([[5., 6.],
            [1., 2.]])
    """
    plain_tensors("embedding", input=input)
    tensors("embedding", weight=weight)
    if mesh_of(input) is not None or mesh_of(weight) is not None:
        return _named("embedding", over_ranks("embedding"), input, weight, padding_idx)
    return _library.call("embedding", _ops.embedding.default, input, weight, padding_idx)


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    *,
    mode: str = "sum",
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = True,
    padding_idx: int | SymInt | None = None,
) -> Tensor:
    """Sums, means or largest elements of bags of rows of a table, as :func:`torch.nn.functional.embedding_bag`.

    Sums and means are added as the rows are read. Unlike in torch's function, the mode is "sum" unless another one is
    given, and the last offset is an end unless ``include_last_offset`` is False.

    Args:
        input: int64 or int32, the numbers of rows in [0, weight.size(0)): of one dim for all bags, or of shape (bags,
            entries), where each row is a bag.
        weight: the table, of shape (rows, columns), of any floating dtype and strides; or a DTensor, or a Shard of
            columns, as for :func:`index_sum`.
        offsets: int64 or int32, of one dim, ascending: bag ``b`` has the entries ``input[offsets[b]:offsets[b + 1]]``.
            Entries outside of all bags are not read. None beside an ``input`` of two dims, and there only.
        mode: "sum", "mean" or "max".
        per_sample_weights: of the shape of ``input`` and the dtype of ``weight``: each row is multiplied by its weight.
            For sums only.
        include_last_offset: whether the last offset is the end of the last bag. Otherwise a bag begins there, and ends
            with ``input``.
        padding_idx: a row, which may be counted from the end, whose entries count as if they were not there.

    Returns:
        A tensor of shape (bags, columns) and of the dtype of ``weight``. A bag has the bits of
        :func:`torch_reduce.sum`, :func:`torch_reduce.mean`, :func:`torch_reduce.amax` or :func:`weighted_sum` of its
        rows. An empty one is 0, in every mode, as in torch.

    **Gradients** of any order and in forward mode, as of :func:`embedding` and :func:`index_sum`. The entries that have
    the largest element share its gradient equally; torch gives it to the first of them. For "max" the rows of all
    entries are written to memory. There is no ``max_norm`` or ``scale_grad_by_freq``.

    Raises:
        TypeError: an argument is no tensor.
        IndexError: on the CPU, an entry is out of range (on a GPU see :func:`index_plan`).
        ValueError: ``mode`` is another one; ``input`` has not one or two dims; ``offsets`` are missing, or should be,
            or have not one dim; ``per_sample_weights`` has another shape.
        NotImplementedError: ``per_sample_weights`` with another mode than "sum".
        RuntimeError: other dtypes; ``padding_idx`` is not the number of a row; on the CPU, offsets that do not ascend
            or lie outside of ``input``.

    >>> table = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> torch_reduce.embedding_bag(torch.tensor([2, 0, 1]), table, torch.tensor([0, 2, 2, 3]))
    tensor([[6., 8.],
            [0., 0.],
            [3., 4.]])
    >>> torch_reduce.embedding_bag(torch.tensor([[2, 0], [1, 0]]), table, mode="max", padding_idx=0)
    tensor([[5., 6.],
            [3., 4.]])
    """
    options = {"per_sample_weights": per_sample_weights, "offsets": offsets}
    plain_tensors("embedding_bag", input=input, **{key: one for key, one in options.items() if one is not None})
    tensors("embedding_bag", weight=weight)
    _arguments.boolean("embedding_bag", "include_last_offset", include_last_offset)
    named = dict(
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )
    if any(mesh_of(one) is not None for one in (input, weight, offsets, per_sample_weights)):
        return _named("embedding_bag", over_ranks("embedding_bag"), input, weight, offsets, **named)
    return _library.call("embedding_bag", _ops.embedding_bag.default, input, weight, offsets, **named)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each number occurs, or the sum of its weights, as :func:`torch.bincount`.

    Args:
        input: integers of one dim, not negative.
        weights: a tensor of the shape of ``input``, on its device.
        minlength: the least number of outputs.

    Returns:
        A tensor of ``max(input.max() + 1, minlength)`` elements. Without weights it counts, in int64. With weights it
        has the bits of :func:`index_sum` of them: in float32 if they are float32, and in float64 otherwise. Without
        entries it is ``minlength`` zeros of int64, as in torch.

    The host waits for the largest number, as it does in torch. ``weights`` have a gradient, which torch's do not.

    Raises:
        TypeError: an argument is no tensor.
        RuntimeError: an entry or ``minlength`` is negative; ``input`` has not one dim; weights of another shape.
        NotImplementedError: ``input`` is floating or bool.

    >>> torch_reduce.bincount(torch.tensor([2, 0, 2]), torch.tensor([1.0, 2.0, 4.0]), minlength=4)
    tensor([2., 0., 5., 0.])
    """
    given = {} if weights is None else {"weights": weights}
    plain_tensors("bincount", input=input, **given)
    integer("bincount", "minlength", minlength)
    return _library.call("bincount", _ops.bincount.default, input, weights, minlength)
