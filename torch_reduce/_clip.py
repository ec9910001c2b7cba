"""The norm of many tensors as if they were one vector, and clipping by it: as in torch.nn.utils, with fixed bits."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_ops = torch.ops.gpureduce
_INFINITY = float("inf")
_OPERATORS = {0.0: "_norm_0", 1.0: "_norm_1", 2.0: "_powsum_2", 3.0: "_powsum_3"}
_OPERATORS |= {_INFINITY: "_norm_inf", -_INFINITY: "_norm_neg_inf"}
_JOINS = {0.0: "sum", 1.0: "sum", 2.0: "_root_2", 3.0: "_root_3"}  # what makes a norm of sums of powers


def _accumulator(tensor: Tensor) -> torch.dtype | None:
    """The dtype= with which a tensor's sum of powers is an accumulator; None: its own."""
    if tensor.dtype in (torch.float64, torch.complex64, torch.complex128):
        return None
    return torch.complex64 if tensor.is_complex() else torch.float32


def _mesh(tensor: Tensor) -> Any:
    """Of a DTensor."""
    return getattr(tensor, "device_mesh", None)


def _side_by_side(results: list[Tensor]) -> Tensor:
    """Accumulators on the first one's device: in float64 if one is, or else in float32."""
    wide = any(t.dtype == torch.float64 for t in results)
    return torch.stack([t.to(results[0].device, torch.float64 if wide else torch.float32) for t in results])


def _accumulators(tensors: list[Tensor], operator: str, ord: float) -> Tensor:
    """An operator's accumulators, one of all elements of each tensor: a sum of powers, or the largest or smallest."""
    dtypes = [_accumulator(t) for t in tensors]
    meshes = [_mesh(t) for t in tensors]
    if ord in _JOINS and len(set(dtypes)) == 1 and not any(meshes):
        return _ops._powsums(tensors, ord, dtype=dtypes[0])
    results = [
        None if mesh else getattr(_ops, operator)(t, dtype=dtype)
        for t, dtype, mesh in zip(tensors, dtypes, meshes, strict=True)
    ]
    if any(meshes):
        from ._dtensor import reduce_all  # which takes long to import

        places = [i for i, mesh in enumerate(meshes) if mesh]
        cut = reduce_all(operator, [tensors[i] for i in places], [dtypes[i] for i in places])
        for i, result in zip(places, cut, strict=True):
            results[i] = result
    return _side_by_side(results)


@torch.no_grad()
def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all elements of some tensors, as :func:`torch.nn.utils.get_total_norm`, with fixed bits.

    Each tensor's sum of powers is that of ``torch.ops.gpureduce.linalg_powsum``, in the accumulator's type. The sums
    are added in the order of the list, as :func:`sum` adds the elements of a vector, and the root is taken of what they
    come to. So the bits depend on the tensors' elements and their places in the list alone: not on the device, the
    stream, the layout or the GPU; nor, of DTensors, on the placements and the number of ranks. On a GPU the sums of
    squares of hundreds of tensors take one launch, and nothing waits for the GPU unless ``error_if_nonfinite``.

    Args:
        tensors: floating or complex tensors of any shapes, strides and dtypes, or one such tensor. They may be on
            several devices, and DTensors of any placements may be among them: then every rank of their meshes calls.
            Those that one dim of a mesh cuts along their slowest dim are exchanged in two messages together.
        norm_type: 0, 1, 2, 3, ``inf`` or ``-inf``.
        error_if_nonfinite: whether to raise an error where the norm is infinite or NaN, for which it waits for the GPU.
        foreach: as in torch, where it chooses between implementations. Here there is one.

    Returns:
        A tensor without dims, on the first tensor's device: float64 if a tensor is of double precision, and float32
        otherwise, where torch's has the dtype of the tensors. The norm of no tensors is 0.

    Raises:
        RuntimeError: the norm is not finite, and ``error_if_nonfinite``; or a tensor is neither floating nor complex.
        NotImplementedError: another ``norm_type``.
    """
    tensors, ord = [tensors] if isinstance(tensors, Tensor) else list(tensors), float(norm_type)
    if not tensors:
        return torch.tensor(0.0)
    if ord not in _OPERATORS:
        raise NotImplementedError(f"get_total_norm: norm_type must be 0, 1, 2, 3, inf or -inf, but is {norm_type}")
    operator = _OPERATORS[ord]
    total = getattr(_ops, _JOINS.get(ord, operator))(_accumulators(tensors, operator, ord))
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
) -> Tensor:
    """Scales gradients so that their norm is at most ``max_norm``, as :func:`torch.nn.utils.clip_grad_norm_` does.

    The norm is that of :func:`get_total_norm`; :func:`torch.nn.utils.clip_grads_with_norm_` scales the gradients.

    Args:
        parameters: tensors, or one tensor, whose gradients are scaled in place. Those without a gradient count for
            nothing.
        max_norm: the largest norm of the gradients after the call.
        norm_type: as for :func:`get_total_norm`.
        error_if_nonfinite: as for :func:`get_total_norm`. Then no gradient is scaled.
        foreach: as in torch: whether to scale many gradients in one launch.

    Returns:
        The norm of the gradients before they were scaled, as :func:`get_total_norm` returns it.

    Raises:
        RuntimeError, NotImplementedError: as :func:`get_total_norm`.
    """
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    alike: dict[Any, list[Tensor]] = {}  # DTensors of a mesh are scaled together, and other tensors
    for parameter in parameters:
        alike.setdefault(_mesh(parameter), []).append(parameter)
    for some in alike.values():
        torch.nn.utils.clip_grads_with_norm_(some, max_norm, total, foreach)
    return total
