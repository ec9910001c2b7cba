"""The sort by index that sums by index are made of: which entries are added to which output."""

from dataclasses import dataclass

import torch
from torch import SymInt, Tensor
from torch.utils._pytree import register_dataclass

from . import _arguments, _library

__all__ = ["IndexPlan", "index_plan"]


@dataclass(frozen=True, eq=False, repr=False)
class IndexPlan:
    """What :func:`index_plan` found: the entries of each output, one output after the other.

    It is a node of ``torch.utils._pytree`` whose leaves are its three tensors, so it can be passed to and from what
    ``torch.compile`` and ``torch.export`` make.

    Attributes:
        index: the index that was sorted, flat, of shape (n,) and of int64 or int32.
        order: int32, of shape (n,): the positions of ``index``'s entries, sorted by their outputs. Entries of one
            output stay in the order that they have in ``index``. It is int64 if n is 2^31 or more.
        offsets: of ``order``'s dtype and of shape (size + 1,): the entries of output ``k`` are
            ``order[offsets[k]:offsets[k + 1]]``. There may be none.
        size: the number of outputs.
    """

    index: Tensor
    order: Tensor
    offsets: Tensor

    @property
    def size(self) -> int:
        """The number of outputs."""
        return self.offsets.size(0) - 1

    def __repr__(self) -> str:
        entries, size, device = self.index.size(0), self.size, str(self.index.device)
        return f"IndexPlan({entries=}, {size=}, {device=})"


register_dataclass(IndexPlan, serialized_type_name="torch_reduce.IndexPlan")


def index_plan(index: Tensor, size: int | SymInt) -> IndexPlan:
    """Sorts the entries of ``index`` by output: an entry is the number of the output that something is added to.

    A sum by index needs this sort before it can add without atomics. If several sums have the same index, they can
    share one plan. ``segment_sum(x[plan.order], plan.offsets)`` is the sum of the rows of ``x`` by index.

    Args:
        index: int64 or int32, of any shape and strides, on the CPU, a CUDA device or meta. With several dims it is
            flattened in row-major order. An output is not counted from the end: no entry may be negative. Of a DTensor
            every rank gets all, and the plan's tensors are DTensors with the placement Replicate.
        size: the number of outputs. Each entry of ``index`` must be in [0, size).

    Returns:
        An :class:`IndexPlan` with new, contiguous ``order`` and ``offsets`` on the device of ``index``. It is not
        differentiable. The same index gives the same plan on every device.

    **An index on a GPU** is read by the GPU alone, nothing waits for it, and a CUDA graph can capture the call. If an
    entry is out of range, nothing outside of the tensors is accessed, and the kernel stops with an assertion, as
    torch's own do: the next call that waits for the GPU raises ``RuntimeError: CUDA error: device-side assert
    triggered``, and the process cannot use the GPU any more.

    **How**: on the CPU by counting, in O(n + size) of time and memory. On a GPU by CUB's radix sort, over as many bits
    as ``size`` has; the sort needs 12 bytes per entry besides the result. (Adinets and Merrill, *Onesweep: A Faster
    Least Significant Digit Radix Sort for GPUs*, 2022.) 2^31 entries or more, and more than 2^32 outputs, take longer
    there.

    ``torch.vmap`` works, with a sort for each of a batch; so do ``torch.compile`` and ``torch.export``.

    Raises:
        TypeError: ``index`` is not a tensor, or ``size`` is not an integer.
        IndexError: on the CPU, an entry is not in [0, size); on any device, there are entries, but ``size`` is 0.
        RuntimeError: ``index`` is neither int64 nor int32; ``size`` is negative.

    >>> plan = torch_reduce.index_plan(torch.tensor([2, 0, 2]), 3)
    >>> plan
    IndexPlan(entries=3, size=3, device='cpu')
    >>> plan.order, plan.offsets
    (tensor([1, 0, 2], dtype=torch.int32), tensor([0, 1, 1, 3], dtype=torch.int32))
    >>> torch_reduce.segment_sum(torch.tensor([1.0, 2.0, 4.0])[plan.order], plan.offsets)
    tensor([2., 0., 5.])
    """
    return sorted_index("index_plan", "index", flat_index("index_plan", "index", index), "size", size)


def flat_index(function: str, argument: str, index: Tensor) -> Tensor:
    """A list of integers as one dim; of a DTensor all of it."""
    _arguments.plain_tensors(function, **{argument: index})
    if _arguments.mesh_of(index) is not None:  # of some cuts torch makes no vector
        index = _arguments.over_ranks("everywhere")(index)
    if layout := _arguments.layout_of(index):
        raise NotImplementedError(f"{function}(): {layout} tensors are not supported")
    return index.reshape(-1)


def sorted_index(function: str, argument: str, flat: Tensor, bound: str, size: int | SymInt) -> IndexPlan:
    """The plan of an index of one dim, which the function has by this name. ``bound``: the name of its size."""
    _arguments.integer(function, bound, size)
    names = {"index": argument, "size": bound}
    order, offsets = _library.call(function, torch.ops.gpureduce._index_plan.default, flat, size, others=names)
    return IndexPlan(flat, order, offsets)
