"""The norm of many tensors as if they were one vector, and clipping by it: as in torch.nn.utils, with fixed bits."""

import warnings
from collections.abc import Iterable, Sequence
from types import GeneratorType
from typing import Any

import torch
from torch import Tensor

from ._arguments import mesh_of, over_ranks
from ._graphs import between_graphs
from ._operations import node_dtype, of_order

_ops = torch.ops.gpureduce
_INFINITY = float("inf")


def _accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype= with which a norm of any order is an accumulator of sums of powers."""
    node = node_dtype("_powsum_2", dtype, dtype)
    return node.to_complex() if dtype.is_complex else node


def _side_by_side(blocks: list[tuple[list[int], Tensor]], device: torch.device) -> Tensor:
    """Accumulators in the order of their places: in float64 if one is, or else in float32."""
    if len(blocks) == 1:
        return blocks[0][1].to(device)
    wide = any(block.dtype == torch.float64 for _, block in blocks)
    joined = torch.cat([block.to(device, torch.float64 if wide else torch.float32) for _, block in blocks])
    places = [place for some, _ in blocks for place in some]
    if places == sorted(places):
        return joined
    return torch.stack([one for _, one in sorted(zip(places, joined.unbind(), strict=True), key=lambda pair: pair[0])])


def _accumulators(tensors: list[Tensor], operator: str, ord: float) -> Tensor:
    """An operator's accumulators, one of all elements of each tensor: a sum of powers, or the largest or smallest."""
    cut: list[int] = []
    adds = of_order("root", ord) is not None
    plain: dict[torch.dtype, list[int]] = {}
    blocks: list[tuple[list[int], Tensor]] = []
    for i, t in enumerate(tensors):
        if not adds and not t.numel():
            blocks.append(([i], _largest_of_nothing(t, operator, ord)))
        elif not mesh_of(t):
            plain.setdefault(_accumulator(t.dtype), []).append(i)
        elif _outside(t):
            raise ValueError(
                f"get_total_norm: this rank is outside of the mesh of tensor {i}, and has nothing of it: give 'group' "
                "and 'places', so that the ranks of the mesh tell this one"
            )
        else:
            cut.append(i)
    for dtype, some in plain.items():
        if adds:
            blocks.append((some, _ops._powsums([tensors[i] for i in some], ord, dtype=dtype)))
        else:
            blocks += [([i], getattr(_ops, operator)(tensors[i], dtype=dtype)[None]) for i in some]
    if cut:
        given = [tensors[i] for i in cut]
        found = over_ranks("reduce_all")(operator, given, [_accumulator(t.dtype) for t in given])
        blocks += [([cut[i] for i in some], block) for some, block in found]
    return _side_by_side(blocks, tensors[0].device)


def _largest_of_nothing(tensor: Tensor, operator: str, ord: float) -> Tensor:
    """The accumulator of a tensor without elements, to which every other one is preferred."""
    own = _local(tensor)
    return getattr(_ops, operator)(own.new_zeros(1), dtype=_accumulator(own.dtype)).fill_(max(0.0, -ord))[None]


def _local(tensor: Tensor) -> Tensor:
    """What this rank has of a DTensor, or the tensor itself."""
    return tensor.to_local() if mesh_of(tensor) else tensor


def _outside(tensor: Tensor) -> bool:
    """Whether it is a DTensor that has no part on this rank."""
    return bool(mesh := mesh_of(tensor)) and mesh.get_coordinate() is None


def _read_places(tensors: list[Tensor | None], places: Sequence[int]) -> list[int]:
    """The places, checked."""
    places = list(places)
    if any(isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < 1 << 62 for place in places):
        raise ValueError(f"get_total_norm: 'places' must be integers from 0 on, not {places}")
    if len(places) != len(tensors) or len(set(places)) != len(places):
        raise ValueError(f"get_total_norm: 'places' must be {len(tensors)}, one a tensor, all different, not {places}")
    return places


@between_graphs
def _accumulators_of_all(tensors: list[Tensor | None], places: Any, ord: float, group: Any) -> Tensor:
    """The accumulators of all ranks' tensors, in the order of their places."""
    from .distributed import _messages

    known = [t for t in tensors if t is not None]
    device = known[0].device if known else _messages.carrier(torch.get_default_device(), group)
    held: dict[int, Tensor] = {}
    error = None
    try:
        operator = _operator(ord)
        pairs = zip(_read_places(tensors, places), tensors, strict=True)
        held = dict(sorted((k, t) for k, t in pairs if t is not None and not _outside(t)))  # as other ranks of a mesh
        for t in held.values():  # torch's errors, before a rank of a mesh waits for this one
            getattr(_ops, operator)(torch.ones(1, dtype=t.dtype, device="meta"), dtype=_accumulator(t.dtype))
    except Exception as raised:
        error = raised
    wide = any(t.dtype in (torch.float64, torch.complex128) for t in held.values())
    facts = {"function": "get_total_norm", "norm_type": ord}
    agreed = _messages.Places.agreed("get_total_norm", facts, list(held), wide, error, group, device)
    own = _accumulators(list(held.values()), operator, ord) if held else torch.empty(0, device=device)
    return agreed.in_order(own.to(device))


def _operator(ord: float) -> str:
    """What gives the accumulators: the sum of powers, or the norm where there is none."""
    operator = of_order("powsum", ord) or of_order("norm", ord)
    if operator is None:
        raise NotImplementedError(f"get_total_norm: norm_type must be 0, 1, 2, 3, inf or -inf, but is {ord:g}")
    return operator


@torch.no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    group: Any = None,
    places: Sequence[int] | None = None,
) -> Tensor:
    """The norm of all elements of some tensors, as :func:`torch.nn.utils.get_total_norm`, with fixed bits.

    Each tensor's sum of powers is what ``torch.ops.gpureduce.linalg_powsum`` gives, in the accumulator's type. The sums
    are added in the order of the list, as :func:`sum` adds the elements of a vector, and the root is taken of what they
    come to. So the bits depend on the tensors' elements, in memory order, and their places in the list alone: not on
    the device, the stream or the GPU; nor, of DTensors, on the placements and the number of ranks. On a GPU the sums of
    squares of hundreds of tensors take one launch, and nothing waits for the GPU unless ``error_if_nonfinite``.

    Args:
        tensors: floating or complex tensors of any shapes, strides and dtypes, or one such tensor. They may be on
            several devices, and DTensors of any placements may be among them: then every rank of their meshes calls.
            Those that one dim of a mesh cuts along their slowest dim are exchanged in two messages together.
        norm_type: 0, 1, 2, 3, ``inf`` or ``-inf``.
        error_if_nonfinite: whether to raise an error where the norm is infinite or NaN, for which it waits for the GPU.
        foreach: as in torch, where it chooses between implementations. Here there is one.
        group: ranks of ``torch.distributed`` that hold the tensors together, such as the ranks of all pipeline stages
            (``torch.distributed.group.WORLD`` for all ranks): each calls with its own tensors, or none, and all get the
            norm of all. By default the list has all tensors.
        places: with ``group``, the place of each tensor in the list of the whole model, which gives the order. The
            places of a rank are all different, in any order, and may leave numbers out. A tensor that several ranks
            have, as a replica or a DTensor, has one place, and counts once. Ranks outside of a DTensor's mesh may leave
            it out or not.

    Returns:
        A tensor without dims, on the first tensor's device: float64 if a tensor is of double precision, and float32
        otherwise, where torch's has the dtype of the tensors. The norm of no tensors is 0. A tensor without elements
        counts for nothing, also for ``inf`` and ``-inf``, for which torch raises an error; alone it has norm 0, and
        for ``-inf`` norm ``inf``. With ``group``, a rank that has no tensors gets the result on the CPU, if the group
        has a backend for that, and otherwise on the current GPU.

    Raises:
        RuntimeError: the norm is not finite, and ``error_if_nonfinite``; a tensor is neither floating nor complex; or,
            with ``group``, another rank has raised an error, which names it.
        NotImplementedError: another ``norm_type``.
        ValueError: ``places`` are not one a tensor, or given without ``group``, or the other way round; this rank is
            not in ``group``; or it is outside of the mesh of a DTensor, and there is no ``group``.
    """
    tensors = _list("get_total_norm", "tensors", tensors, holes=True)
    ord = _float("get_total_norm", "norm_type", norm_type)
    return _total_norm(tensors, ord, error_if_nonfinite, group, places)


def _list(function: str, argument: str, given: Any, holes: bool = False) -> list[Any]:
    """The tensors of a list or a single one. holes: there may be None among them."""
    if isinstance(given, Tensor):
        return [given]
    found = list(given) if isinstance(given, Iterable) else [given]
    wrong = [one for one in found if not isinstance(one, Tensor) and not (one is None and holes and given is not None)]
    if wrong:
        raise TypeError(f"{function}(): argument '{argument}' must be tensors, not {type(wrong[0]).__name__}")
    return found


def _float(function: str, argument: str, given: Any) -> float:
    try:
        return float(given)
    except (TypeError, ValueError, RuntimeError):
        kind = type(given).__name__
        raise TypeError(f"{function}(): argument '{argument}' must be float, not {kind}") from None


def _total_norm(tensors: list[Tensor | None], ord: float, error_if_nonfinite: bool, group: Any, places: Any) -> Tensor:
    """The norm of those that are not None."""
    if (group is None) != (places is None):
        raise ValueError("get_total_norm: 'group' and 'places' go together: ranks tell each other what is where")
    if group is not None:
        accumulators = _accumulators_of_all(tensors, places, ord, group)
    elif known := [t for t in tensors if t is not None]:
        accumulators = _accumulators(known, _operator(ord), ord)
    else:
        accumulators = torch.empty(0)
    if not len(accumulators):
        return accumulators.new_zeros(())
    total = getattr(_ops, of_order("root", ord) or _operator(ord))(accumulators)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"The total norm of order {ord} for gradients from `parameters` is non-finite, so it cannot be clipped. To "
            "disable this error and scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    group: Any = None,
    places: Sequence[int] | None = None,
) -> Tensor:
    """Scales gradients so that their norm is at most ``max_norm``, as :func:`torch.nn.utils.clip_grad_norm_` does.

    The norm is :func:`get_total_norm`'s. Each gradient is multiplied by ``min(1, max_norm / (norm + 1e-6))``. The
    factor is computed in float64, and rounded to float32 for gradients of less than double precision. A product is
    computed in that precision and rounded once to the gradient's dtype, where torch rounds the factor to it first. So
    the gradients, too, have the same bits on the CPU and on GPUs.

    A ``max_norm`` of ``inf`` scales nothing, whatever the norm is: it asks for the norm alone. A norm that is infinite
    makes the factor 0 for any other ``max_norm``, and infinite elements NaN; a NaN norm makes all NaN, as in torch.

    Args:
        parameters: tensors, or one tensor, whose gradients are scaled in place. Those without a gradient count for
            nothing.
        max_norm: the largest norm of the gradients after the call.
        norm_type: as for :func:`get_total_norm`.
        error_if_nonfinite: as for :func:`get_total_norm`. Then no gradient is scaled.
        foreach: as in torch, where it chooses between implementations. Here there is one, but ``True`` is an error for
            gradients that are neither on the CPU nor on a CUDA device, as in torch.
        group: as for :func:`get_total_norm`.
        places: as for :func:`get_total_norm`, of the parameters. Those without a gradient leave theirs empty.

    Returns:
        The norm of the gradients before they were scaled, as :func:`get_total_norm` returns it.

    Raises:
        RuntimeError, NotImplementedError, ValueError: as :func:`get_total_norm`.

    Warns:
        UserWarning: ``parameters`` is a generator that gives none, as one that has been used before.
    """
    given = parameters
    parameters = _list("clip_grad_norm_", "parameters", parameters)
    max_norm, ord = (_float("clip_grad_norm_", k, v) for k, v in (("max_norm", max_norm), ("norm_type", norm_type)))
    if isinstance(given, GeneratorType) and not parameters:
        warnings.warn("`parameters` is an empty generator, no gradient clipping will occur.", stacklevel=3)
    total = _total_norm([p.grad for p in parameters], ord, error_if_nonfinite, group, places)
    _scale([p.grad for p in parameters if p.grad is not None], max_norm, total, foreach)
    return total


def _scale(gradients: list[Tensor], max_norm: float, total: Tensor, foreach: bool | None) -> None:
    """Multiplies each by one factor; of a DTensor what is here. Those as wide as the factor share a launch."""
    alike: dict[tuple[torch.device, torch.dtype, bool], list[Tensor]] = {}
    for gradient in gradients:
        own = _local(gradient)
        alike.setdefault((own.device, own.dtype, type(own) is Tensor), []).append(own)
    for device, _, _ in alike:
        if foreach and device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"foreach=True was passed, but can't use the foreach API on {device.type} tensors")
    if max_norm == _INFINITY:
        return
    norm = total.double() + 1e-6
    # A number over a tensor would be a rounded reciprocal times the number.
    factor = torch.clamp(torch.full_like(norm, max_norm) / norm, max=1.0)
    for (device, dtype, plain), some in alike.items():
        wide = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
        here = factor.to(device, wide)
        if not plain or device.type not in ("cpu", "cuda"):
            for gradient in some:
                gradient.copy_(gradient.to(torch.promote_types(dtype, wide)) * here)
            continue
        if dtype.is_complex:
            some = [torch.view_as_real(gradient.conj() if gradient.is_conj() else gradient) for gradient in some]
        if some[0].dtype == wide:
            torch._foreach_mul_(some, here)
        else:  # torch would round the factor to the dtype of the tensors
            _ops._scale_(some, here)
