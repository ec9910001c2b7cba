"""A tensor that is cut over the ranks, as the functions of torch_reduce take it."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from .._arguments import over_ranks


class Shard:
    """This rank's shard of a tensor that is cut along one dim over the ranks of a group.

    The functions of torch_reduce that reduce a tensor take a Shard in its place. They then reduce the *global tensor*,
    ``torch.cat(shards, dim)``, the shards in the order of their ranks in ``group``. If they reduce ``dim``, every rank
    gets the same result: the one that the function has for the global tensor, bit for bit, at any number of ranks and
    wherever the cuts are. If they do not, the result is the shard's own, and still cut along that dim; then
    nothing is exchanged, and gradients flow as without ranks.

    Such a call is collective: every rank of the group calls the function, with the same arguments but for the data.
    Nothing is checked or sent when a Shard is made.

    Args:
        x: this rank's shard, of any dtype, strides and device that the function takes and whose device ``group`` has a
            backend for. Shards differ in size along ``dim`` alone, and may be empty. If one backend serves all devices,
            as gloo does, some may be on GPUs and others on CPUs. For functions that do not keep the shape it must not
            require a gradient where gradients are recorded and ``dim`` is reduced: none would flow.
        dim: the dim of ``x`` along which the global tensor is cut, in ``[-x.dim(), x.dim())``.
        group: the ranks; by default all.
        sizes: the sizes of all shards along ``dim``, in elements, one per rank. By default the ranks tell each other,
            and check that they agree on everything else; that takes one all_gather of 256 bytes per rank, for which the
            host waits. With ``sizes`` nothing is checked.

    **Functions.** ``sum``, ``mean``, ``nansum``, ``prod``, ``amax``, ``amin``, ``aminmax``, ``any``, ``all``,
    ``count_nonzero``, ``logsumexp``, ``vector_norm``, ``powsum``, ``var``, ``std``, ``var_mean``, ``weighted_sum``,
    ``dot``, ``segment_sum``, ``segment_mean``, ``segment_prod``, ``segment_amax`` and ``segment_amin``, and the
    operators of ``torch.ops.gpureduce`` of these names, without ``out``. Their ``dim`` counts the dims of ``x``.
    ``sum``, ``mean``, ``nansum``, ``dot``, ``weighted_sum`` and ``segment_sum`` take ``exact=True``, and so do
    ``powsum`` and ``vector_norm`` of order 2.

    **Functions that keep their input's shape**: ``softmax``, ``log_softmax``, ``rms_norm``, ``layer_norm``, with
    ``log_prob`` and ``cross_entropy``. They give this rank's part of the global tensor's result, and gradients flow, of
    first order (docs/rows.md).

    **Order of several reduced dims.** By the contract (docs/order.md) the elements come in the order of the global
    tensor's strides, and that is the order of the shards' strides: dims of stride 0 first, then by decreasing stride,
    equal ones in logical order. So contiguous shards stand for a contiguous global tensor, channels-last shards for a
    channels-last one, and permuted ones for one that is permuted alike. Shards of one index or none along ``dim`` do
    not show where in memory that dim stands: where ``sizes`` is None they follow the other ranks, and otherwise their
    own strides.

    **Two tensors.** For ``weighted_sum`` and ``dot`` either or both may be Shards. A plain tensor beside a Shard is
    what this rank has of it: its own shard of a tensor that is cut alike, or one that is broadcast along the cut dim,
    and the same on every rank. Two Shards have one group and the same sizes.

    **Segments.** The offsets belong to the global tensor, and are the same on every rank. If the segments lie along
    ``dim``, the host waits for some offsets, also where ``sizes`` are given.

    **Along another dim alone.** ``argmax``, ``argmin``, ``max``, ``min``, ``segment_logsumexp``,
    ``segment_softmax``, ``index_sum``, ``index_mean``, ``index_amax``, ``index_amin``, ``index_add``,
    ``index_add_``, ``scatter_add``, ``index_reduce``, ``index_reduce_``, ``scatter_reduce``, ``embedding`` and
    ``embedding_bag`` take Shards that are cut along another dim than the one that they work along. For embeddings
    that is the columns of the table. The weights of ``index_sum`` and ``gather_sum`` may be a Shard that is cut as the
    rows are, with a number for each place along that dim; their gradient then flows, too.

    Raises:
        TypeError, IndexError, ValueError, RuntimeError: by the functions, as of a tensor. Without ``sizes``, the other
            ranks raise a RuntimeError that names this rank and its error.
        TypeError: ``dim`` is no int, ``group`` no group, or ``out`` is given; or the function works along another dim
            alone.
        IndexError: ``dim`` is out of range, or no rank has an element to find the largest of.
        ValueError: ``sizes`` are not one per rank, or not ``x``'s on this one; this rank is not in ``group``; or two
            Shards are not cut alike.
        RuntimeError: the ranks disagree about an argument, a dtype or a shape (all ranks name who has what); ``group``
            has no backend for ``x``'s device; or ``x`` requires a gradient. A rank that ends, or never calls, is the
            backend's error, at the latest after the group's timeout.
    """

    __slots__ = ("dim", "group", "sizes", "x")

    def __init__(
        self, x: Tensor, dim: int = 0, group: dist.ProcessGroup | None = None, sizes: Sequence[int] | None = None
    ) -> None:
        self.x, self.dim, self.group, self.sizes = x, dim, group, sizes

    @classmethod
    def __torch_function__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return over_ranks("call_operator")(operator, args, kwargs or {})
