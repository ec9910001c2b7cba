"""Rounding to float8 with a scale per block: alone, and behind a norm or a product with silu."""

import dataclasses
from typing import Any, Literal, overload

import torch
from torch import Tensor

from . import _arguments, _library

__all__ = ["Fp8", "quantize", "silu_mul"]

_ops = torch.ops.gpureduce

_BLOCKS = (32, 64, 128, "row")
_SCALES = {"float32": torch.float32, "ue8m0": torch.float8_e8m0fnu}
_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclasses.dataclass(frozen=True)
class Fp8:
    """How numbers become float8: which of them share a scale, and what scales and values are.

    Args:
        block: so many neighbours along the last dim share a scale: 32, 64 or 128. Or ``"row"``, for all of them.
        scale: ``"float32"``, or ``"ue8m0"`` for powers of two, as ``torch.float8_e8m0fnu``.
        dtype: of the values: ``torch.float8_e4m3fn`` or ``torch.float8_e5m2``.

    ``Fp8()`` is what DeepGEMM and vLLM take for activations, with ``scale="ue8m0"`` on Blackwell; ``Fp8("row")`` is a
    scale per token; and ``Fp8(32, "ue8m0")`` is MXFP8.

    Raises:
        TypeError, ValueError: an argument is of another type, or none of these.

    >>> torch_reduce.Fp8("row")
    Fp8(block='row', scale='float32', dtype=torch.float8_e4m3fn)
    """

    block: int | Literal["row"] = 128
    scale: Literal["float32", "ue8m0"] = "float32"
    dtype: torch.dtype = torch.float8_e4m3fn

    def __post_init__(self) -> None:
        if isinstance(self.block, bool) or self.block not in _BLOCKS:
            raise ValueError(f"Fp8(): block: expected 32, 64, 128 or 'row', but got {self.block!r}")
        if self.scale not in ("float32", "ue8m0"):
            raise ValueError(f"Fp8(): scale: expected 'float32' or 'ue8m0', but got {self.scale!r}")
        _arguments.dtype("Fp8", self.dtype)
        if self.dtype not in _DTYPES:
            raise ValueError(f"Fp8(): dtype: expected float8_e4m3fn or float8_e5m2, but got {self.dtype}")


def arguments(name: str, argument: str, to: Any, input: Any, **others: Any) -> tuple[int, torch.dtype, torch.dtype]:
    """What operators are told: elements of a block, 0 for a row, and the dtypes of scales and values.

    Raises an error unless ``to`` is an Fp8, and the tensors are as :func:`plain` wants them.
    """
    if not isinstance(to, Fp8):
        raise TypeError(f"{name}(): argument '{argument}' must be Fp8, not {type(to).__name__}")
    plain(name, input, **others)
    return 0 if to.block == "row" else to.block, _SCALES[to.scale], to.dtype


def plain(name: str, input: Any, **others: Any) -> None:
    """Raises an error unless these are strided tensors of one process; the others may be None."""
    given = {key: tensor for key, tensor in others.items() if tensor is not None}
    for key, tensor in {"input": input, **given}.items():
        _arguments.plain_tensors(name, **{key: tensor})
        if layout := _arguments.layout_of(tensor):
            raise NotImplementedError(f"{name}(): {key}: expected a strided tensor, but got a {layout} one")
        if _arguments.mesh_of(tensor) is not None:
            raise NotImplementedError(f"{name}(): {key}: a DTensor is not supported")


def quantize(input: Tensor, to: Fp8) -> tuple[Tensor, Tensor]:
    """Rounds numbers to float8, with a scale for each block of a row: about ``values * scales``.

    Args:
        input: float16, bfloat16 or float32, with at least one dim, of any strides and device.
        to: the blocks and dtypes, as :class:`Fp8` has them. Blocks lie along the last dim; its last one may be shorter.

    Returns:
        ``(values, scales)``. Values have ``input``'s shape and ``to.dtype``. Scales have its shape but for the last
        dim, which counts the blocks, and are float32 or float8_e8m0fnu. Both are contiguous. They do not require a
        gradient, as results of torch's ``quantize_per_tensor`` do not.

    **Rounding.** With a the largest magnitude of a block, and M the largest number of the dtype (448, or 57344 for
    float8_e5m2), the scale is a / M in float32, and at least 2^-126; with ``"ue8m0"`` the next power of two that is not
    below it. A value is x / scale in float32, then rounded to the nearest float8, ties to even. Both divisions are
    correctly rounded: nothing is multiplied by a reciprocal. Every quotient lies so near M, or below, that none
    overflows. A block with a NaN or an infinity has the scale NaN, and its values are NaN; a block of zeros has the
    least scale, and zeros of the same signs. A block has the same bits in any batch and layout, on a GPU and a CPU.

    Raises:
        TypeError: an argument is of another type.
        NotImplementedError: another dtype, a DTensor, or a tensor that is not strided.

    >>> torch_reduce.quantize(torch.tensor([1.0, -2.0, 3.5, 0.3]), torch_reduce.Fp8(32))
    (tensor([ 128., -256.,  448.,   40.], dtype=torch.float8_e4m3fn), tensor([0.0078]))
    """
    given = arguments("quantize", "to", to, input)
    return _library.call("quantize", _ops.quantize.default, input, *given)


@overload
def silu_mul(input: Tensor, other: Tensor | None = None) -> Tensor: ...
@overload
def silu_mul(input: Tensor, other: Tensor | None = None, *, quantize: Fp8) -> tuple[Tensor, Tensor]: ...
def silu_mul(
    input: Tensor, other: Tensor | None = None, *, quantize: Fp8 | None = None
) -> Tensor | tuple[Tensor, Tensor]:
    """``silu(input) * other``, the gate of a feed-forward layer, also rounded to float8.

    Args:
        input: float16, bfloat16, float32 or float64 (not with ``quantize``), of any strides and device.
        other: of ``input``'s shape and dtype. None: the two are the halves of ``input`` along its last dim, as in
            vLLM's ``silu_and_mul``.
        quantize: rounds the result to float8; see :func:`quantize`.

    Returns:
        The product, of the operands' dtype; or with ``quantize`` the values and scales of that product. On a GPU these
        are one kernel, and the product is not written.

    **Order and rounding.** With t = e^-|x|, silu(x) is x / (1 + t), or (x * t) / (1 + t) below 0. It is multiplied by
    ``other`` in float32 (float64 for float64), and rounded once to the dtype. The exponential is the library's own, so
    results and first gradients have the same bits on a GPU and a CPU. Higher gradients are composed of torch's
    operators. Values and scales have no gradient.

    Raises:
        TypeError: an argument is of another type.
        RuntimeError: shapes, dtypes or devices that do not fit, or an odd last dim without ``other``.
        NotImplementedError: another dtype, a DTensor, or a tensor that is not strided.

    >>> torch_reduce.silu_mul(torch.tensor([0.0, 1.0, 2.0, 2.0]))
    tensor([0.0000, 1.4621])
    """
    name = "silu_mul"
    if quantize is None:
        plain(name, input, other=other)
        given = ()
    else:
        given = arguments(name, "quantize", quantize, input, other=other)
    if other is None:
        if not input.is_floating_point() or input.dtype.itemsize == 1:
            dtypes = "float16, bfloat16, float32 or float64"
            raise NotImplementedError(f"{name}(): input: expected {dtypes}, but got {input.dtype}")
        if input.dim() == 0 or input.shape[-1] % 2:
            raise RuntimeError(f"{name}(): input: expected an even last dim without other, but got {list(input.shape)}")
        input, other = input.chunk(2, -1)
    operator = _ops._silu_mul_quantize if given else _ops.silu_mul
    return _library.call(name, operator.default, input, other, *given)
