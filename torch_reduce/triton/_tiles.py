"""What Inductor's kernels call: rows that lie in a tile, or are read in tiles of 512 elements or of a chunk's 4096.

For example rows of 9000 elements, three chunks, read in 18 tiles. :func:`lanes_with` adds tiles 1 to 7 to tile 0, lane
by lane. Tile 8 begins a chunk: it replaces the lanes, whose tree :func:`chunks_with` has put aside before. Of the three
chunks' sums the first two are one number by then, and :func:`joined` adds the third to it. In three tiles of 4096 each
tile is a chunk, whose 512 lanes and tree :func:`chunks_with` adds.
"""

import triton
import triton.language as tl

from . import (
    _CHUNK,
    _LANES,
    _extreme,
    add,
    exponential,
    identity,
    larger,
    logarithm,
    multiply,
    reduce,
    smaller,
    square_root,
)

__all__ = [
    "add",
    "chunks_with",
    "exponential",
    "identity",
    "joined",
    "lanes_with",
    "larger",
    "logarithm",
    "multiply",
    "no_chunks",
    "smaller",
    "square_root",
    "whole",
    "whole_exponential",
]

CHUNK, TILE = _CHUNK.value, _LANES.value


@triton.jit
def _as_rows(x):
    n: tl.constexpr = x.shape[len(x.shape) - 1]
    return tl.reshape(x, (x.numel // n, n))


@triton.jit
def _as_column(total, x):
    # (rows,) -> the shape of x, whose last dim is 1. Behind tl.reshape a thread would hold whole rows.
    if len(x.shape) == 1:
        return tl.reshape(total, (1,))
    elif len(x.shape) == 2:
        return total[:, None]
    else:
        return tl.reshape(total, (x.shape[0], x.shape[1], 1))


@triton.jit
def whole(x, combine: tl.constexpr):
    """Rows that lie in one tile (..., N), with the identity behind their end: (..., 1)."""
    if combine == larger or combine == smaller:  # noqa: SIM109 - Triton has no "in"
        return _as_column(_extreme(_as_rows(x), combine), x)
    else:
        return _as_column(reduce(_as_rows(x), combine), x)


@triton.jit
def lanes_with(lanes, x, offset, combine: tl.constexpr):
    """What there is of a chunk, with one tile more, which begins at this offset: its lanes (..., 512), or all of it."""
    width: tl.constexpr = x.shape[len(x.shape) - 1]
    if width == _CHUNK:
        return x
    else:
        tl.static_assert(width == _LANES, "rows are read in tiles of 512 elements, or of a chunk's 4096")
        at = tl.full((), 0, tl.int32) + offset  # of the type that a kernel has: the interpreter's is a Python int
        return tl.where(at % _CHUNK == 0, x, combine(lanes, x))


@triton.jit
def no_chunks(lanes, LEVELS: tl.constexpr, combine: tl.constexpr):
    """Room for the sums of 2^0, 2^1, ... chunks."""
    rows: tl.constexpr = lanes.numel // lanes.shape[len(lanes.shape) - 1]
    none = tl.broadcast_to(identity(combine, lanes.dtype), (rows,))
    return (none,) * LEVELS


@triton.jit
def chunks_with(chunks, lanes, offset, n, combine: tl.constexpr):
    """After a tile: the sums of chunks with the one that it ends, if it ends one."""
    width: tl.constexpr = lanes.shape[len(lanes.shape) - 1]
    at = tl.full((), 0, tl.int32) + offset
    if width == _CHUNK:  # noqa: SIM114 - known when it is compiled
        chunks = _with_chunk(chunks, lanes, at // _CHUNK, combine)
    elif ((at + width) % _CHUNK == 0) | (at + width >= n):
        chunks = _with_chunk(chunks, lanes, at // _CHUNK, combine)
    return chunks


@triton.jit
def _with_chunk(chunks, lanes, number, combine: tl.constexpr):
    # As in a binary counter, what holds as many chunks as the new sum is joined with it and carried on.
    carried = reduce(_as_rows(lanes), combine)
    new = ()
    for level in tl.static_range(len(chunks)):
        held = chunks[level]
        reached = (number & ((1 << level) - 1)) == (1 << level) - 1
        taken = ((number >> level) & 1) == 1
        new = new + (tl.where(reached & (taken == 0), carried, held),)
        carried = tl.where(reached & taken, combine(held, carried), carried)
    return new


@triton.jit
def joined(chunks, lanes, n, combine: tl.constexpr):
    """The rows' results (..., 1) from all their chunks. `lanes` says the shape."""
    count = (n + _CHUNK - 1) // _CHUNK
    total = tl.broadcast_to(identity(combine, lanes.dtype), chunks[0].shape)
    for level in tl.static_range(len(chunks)):
        total = tl.where(((count >> level) & 1) == 1, combine(chunks[level], total), total)
    return _as_column(total, lanes)


@triton.jit
def whole_exponential(x):
    """e^x, also where it is subnormal, for x not far above 0: csrc/core/numeric/exponential.h."""
    low: tl.constexpr = -700 if x.dtype == tl.float64 else -80
    root = exponential(x * 0.5)
    small = tl.where(x < 4 * low, tl.zeros_like(x), root * root)
    return tl.where(x < low, small, exponential(x))
