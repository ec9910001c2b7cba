"""Results that are pinned to the bit, to check a library on the devices it runs on."""

import torch
from torch import Tensor

import torch_reduce

# dtype, shape and strides of a view of `elements`, the reduced dims, and the bits of the results, not yet rounded.
# Together they notice another order, a dropped tail, a shifted lane and a misread layout.
PINNED = [
    ("float32", (50257,), (1,), (0,), "be2798b6"),
    ("float32", (1052673,), (1,), (0,), "bf8cf79f"),
    ("float32", (7, 4097), (4097, 1), (1,), "3dbab2d8 3eab8c22 bfb5e38c be3573b2 3f8888ef bf307ff8 3f0de368"),
    ("float32", (4097, 7), (7, 1), (0,), "3f114412 4029becb be8683f2 be35943e bdbc066a c0406f92 3da0a5dc"),
    ("float32", (2, 3, 28, 28), (2352, 1, 84, 3), (0, 2, 3), "3f96bf93 bf3ebaec bf2af48b"),
    ("float32", (6, 2, 700), (0, 700, 1), (0, 1, 2), "bff022e0"),
    ("float64", (5000, 3), (3, 1), (0,), "40021bad83380000 bff9105b02200000 bff65877c3200000"),
    ("float16", (2, 3, 28, 28), (2352, 784, 28, 1), (0, 2, 3), "3f2864aa bf3ed59e be190450"),
    ("bfloat16", (1052673,), (1,), (0,), "bf8cf5c9"),
]


def elements(n: int, dtype: torch.dtype) -> Tensor:
    """A 32-bit hash of the index, as a number in [-0.5, 0.5) rounded to ``dtype``.

    torch rounds a float64 to float16 by way of float32, which is not always the same: first at element 12850.
    """
    h = (torch.arange(n) * 2654435761 + 12345) % 2**32
    x = (h ^ (h >> 15)).double() / 2**32 - 0.5
    return x.to(torch.float32).to(dtype) if dtype == torch.bfloat16 else x.to(dtype)


def check(device: torch.device) -> list[str]:
    """Sums every pinned case on ``device``, and describes those whose bits are wrong."""
    wrong = []
    for dtype_name, shape, strides, dims, pinned in PINNED:
        dtype = getattr(torch, dtype_name)
        n = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        view = elements(n, dtype).to(device).as_strided(shape, strides)
        accumulator, bits = (torch.float64, torch.int64) if dtype == torch.float64 else (torch.float32, torch.int32)
        got = torch_reduce.sum(view, dims, dtype=accumulator).reshape(-1).cpu().view(bits)
        mask, digits = 2 ** (8 * bits.itemsize) - 1, 2 * bits.itemsize
        found = " ".join(f"{value & mask:0{digits}x}" for value in got.tolist())
        if found != pinned:
            wrong.append(f"sum of {dtype_name} {shape}, strides {strides}, over {dims}: {found}, not {pinned}")
    return wrong
