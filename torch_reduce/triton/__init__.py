"""Device functions for kernels in Triton: they add in the contract's order, and so give this library's bits.

They are called inside ``@triton.jit``::

    import torch_reduce.triton as ordered

    @triton.jit
    def kernel(x, y, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        e = tl.load(x + i, mask=i < n).to(tl.float32)
        tl.store(y, ordered.sum(e * e, i < n))

    kernel[(1,)](x, y, n, BLOCK=triton.next_power_of_2(n), enable_fp_fusion=False)

**Launch** every such kernel with ``enable_fp_fusion=False``. Without it Triton rounds a product and the sum behind it
once, in a fused multiply-add, and the bits are others.

**Rows** lie along the last dim of a block (N,) or (M, N), where N is a power of two at or above their length. Masks say
which elements there are. :func:`sum` and its kin take whole rows that the kernel has loaded; :func:`reduce_rows` loads
a part of them at a time. docs/triton.md has a kernel to begin with.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("torch_reduce.triton needs Triton, and there is none here: `pip install triton`") from error

__all__ = [
    "accumulator",
    "add",
    "amax",
    "amin",
    "divide",
    "exponential",
    "identity",
    "larger",
    "logarithm",
    "multiply",
    "prod",
    "reduce",
    "reduce_rows",
    "smaller",
    "square_root",
    "sum",
    "tree",
]

_, _lanes, _chunk_length = torch.ops.gpureduce._order()
_LANES, _DEPTH, _CHUNK = tl.constexpr(_lanes), tl.constexpr(_chunk_length // _lanes), tl.constexpr(_chunk_length)
_INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
_INFINITY, _LARGEST = tl.constexpr(float("inf")), tl.constexpr(2**63 - 1)


# --- what joins two numbers -------------------------------------------------------------------------------------------


@triton.jit
def add(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``a + b``.

    Args:
        a: a block or a scalar.
        b: another one, of the same dtype.
    """
    return a + b


@triton.jit
def multiply(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``a * b``.

    Args:
        a: a block or a scalar.
        b: another one, of the same dtype.
    """
    return a * b


@triton.jit
def larger(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The larger of ``a`` and ``b``: NaN if either is NaN, and 0.0 of 0.0 and -0.0.

    Args:
        a: a block or a scalar of float32, float64 or integers.
        b: another one, of the same dtype.
    """
    if a.dtype == tl.float32 and not _INTERPRETED:  # one instruction, by the same rules
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where((a > b) | (a != a) | ((a == b) & _is_negative(b)), a, b)
    else:
        return tl.where(a > b, a, b)


@triton.jit
def smaller(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """The smaller of ``a`` and ``b``: NaN if either is NaN, and -0.0 of 0.0 and -0.0.

    Args:
        a: a block or a scalar of float32, float64 or integers.
        b: another one, of the same dtype.
    """
    if a.dtype == tl.float32 and not _INTERPRETED:  # one instruction, by the same rules
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif a.dtype.is_floating():
        return tl.where((a < b) | (a != a) | ((a == b) & _is_negative(a)), a, b)
    else:
        return tl.where(a < b, a, b)


@triton.jit
def _is_negative(x):
    if x.dtype == tl.float64:
        return x.to(tl.int64, bitcast=True) < 0
    else:
        return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def identity(combine: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """What stands where a row has no element, so that joining it changes nothing.

    Do not write ``-0.0`` in a kernel: Triton makes 0.0 of it, and 0.0 + -0.0 is 0.0.

    Args:
        combine: :func:`add`, :func:`multiply`, :func:`larger` or :func:`smaller`.
        dtype: float32, float64 or int64.

    Returns:
        A scalar of this dtype: -0.0 (or 0), 1, and the lowest or the highest number.
    """
    if combine == multiply:
        return tl.full((), 1, dtype)
    elif combine == larger:
        return tl.full((), -_INFINITY if dtype.is_floating() else -_LARGEST - 1, dtype)
    elif combine == smaller:
        return tl.full((), _INFINITY if dtype.is_floating() else _LARGEST, dtype)
    else:
        tl.static_assert(combine == add, "identity() knows add, multiply, larger and smaller, and no function of yours")
        if dtype == tl.float32:
            return tl.full((), -(2**31), tl.int32).to(dtype, bitcast=True)
        elif dtype == tl.float64:
            return tl.full((), -(2**63), tl.int64).to(dtype, bitcast=True)
        else:
            return tl.full((), 0, dtype)


# --- the order --------------------------------------------------------------------------------------------------------


@triton.jit
def accumulator(x: tl.tensor) -> tl.tensor:
    """Elements in the type in which the contract adds them.

    Args:
        x: a block of any dtype.

    Returns:
        The same in float64 if it is that, in float32 if it is another floating dtype, and in int64 if it is integers.
    """
    if x.dtype == tl.float64:
        return x
    elif x.dtype.is_floating():
        return x.to(tl.float32)
    else:
        return x.to(tl.int64)


@triton.jit
def tree(x: tl.tensor, combine: tl.constexpr = add) -> tl.tensor:
    """Joins nearest neighbours along the last dim, level by level, until one is left.

    With it a kernel ends what it did in parts. Parts are the 512 lanes of a chunk, or aligned pieces of a row, all of
    the same number of chunks of 4096 elements, which is a power of two.

    Args:
        x: a block (N,) or (M, N), where N is a power of two. Parts that a row does not have are the :func:`identity`.
        combine: a commutative function of two numbers.

    Returns:
        A scalar, or a block (M,), of the dtype of ``x``.
    """
    n: tl.constexpr = x.shape[len(x.shape) - 1]
    if len(x.shape) == 1:
        if n <= 2:
            return _joined(x, combine)
        else:
            return tree(_joined(tl.reshape(x, (n // 2, 2)), combine), combine)
    elif n == 1:
        return tl.reshape(x, (x.shape[0],))
    else:
        return tree(_joined(tl.reshape(x, (x.shape[0], n // 2, 2)), combine), combine)


@tl.core.builtin
def _reduced(x, combine, _semantic=None, _generator=None):
    return tl.reduce(x, len(x.shape) - 1, combine.value, _semantic=_semantic, _generator=_generator)


@triton.jit
def _joined(x, combine: tl.constexpr):
    # Each pair of the last dim. A reduction of two elements has one order, and leaves them where they are; for tl.split
    # the compiler would put a whole row into one thread. The interpreter's reductions are slow.
    if _INTERPRETED:
        if x.shape[len(x.shape) - 1] == 1:
            return tl.max(x, axis=0)
        else:
            a, b = tl.split(x)
            return combine(a, b)
    else:
        return _reduced(x, combine)


@triton.jit
def _halves(x):
    # (M, N) -> the even and the odd columns, both (M, N / 2)
    return tl.split(tl.reshape(x, (x.shape[0], x.shape[1] // 2, 2)))


@triton.jit
def _left_to_right(x, combine: tl.constexpr):
    # (M, 2, 4 or 8) -> (M, 1)
    even, odd = _halves(x)
    if x.shape[1] == 2:
        return combine(even, odd)
    else:
        a, c = _halves(even)
        b, d = _halves(odd)
        if x.shape[1] == 4:
            return combine(combine(combine(a, b), c), d)
        else:  # a: the elements 0 and 4, b: 1 and 5, c: 2 and 6, d: 3 and 7
            a, e = _halves(a)
            b, f = _halves(b)
            c, g = _halves(c)
            d, h = _halves(d)
            lower = combine(combine(combine(a, b), c), d)
            return combine(combine(combine(combine(lower, e), f), g), h)


@triton.jit
def reduce(x: tl.tensor, combine: tl.constexpr = add) -> tl.tensor:
    """Reduces whole rows in the contract's order by a function of two numbers; nothing is converted.

    Args:
        x: a block (N,) or (M, N), where N is a power of two. Behind the end of a row stands the function's identity.
        combine: a commutative function of two numbers: one of this module, or your own.

    Returns:
        A scalar, or a block (M,), of the dtype of ``x``.
    """
    n: tl.constexpr = x.shape[len(x.shape) - 1]
    if n <= _LANES:
        return tree(x, combine)
    else:
        depth: tl.constexpr = _DEPTH if n >= _CHUNK else n // _LANES
        chunks: tl.constexpr = x.numel // (_LANES * depth)
        lanes = tl.permute(tl.reshape(x, (chunks, depth, _LANES)), (0, 2, 1))
        lanes = _left_to_right(tl.reshape(lanes, (chunks * _LANES, depth)), combine)
        if len(x.shape) == 1:
            return tree(tl.reshape(lanes, (n // depth,)), combine)
        else:
            return tree(tl.reshape(lanes, (x.shape[0], n // depth)), combine)


@triton.jit
def _present(x, mask, combine: tl.constexpr):
    e = accumulator(x)
    if mask is None:
        return e
    else:
        return tl.where(mask, e, identity(combine, e.dtype))


@triton.jit
def _extreme(x, combine: tl.constexpr):
    # No order shows, so the compiler's own is as good.
    if _INTERPRETED:
        return tree(x, combine)
    else:
        return _reduced(x, combine)


@triton.jit
def sum(x: tl.tensor, mask: tl.tensor | None = None) -> tl.tensor:
    """The sums of whole rows, with the bits of ``torch_reduce.sum`` before its result is rounded.

    Args:
        x: a block (N,) or (M, N), where N is a power of two.
        mask: which elements there are, broadcast to ``x``; all, if it is None. A row without any gives -0.0, where the
            contract has 0.0.

    Returns:
        A scalar, or a block (M,), of the type of :func:`accumulator`.
    """
    return reduce(_present(x, mask, add), add)


@triton.jit
def prod(x: tl.tensor, mask: tl.tensor | None = None) -> tl.tensor:
    """The products of whole rows, with the bits of ``torch_reduce.prod`` before its result is rounded.

    Args:
        x: a block (N,) or (M, N), where N is a power of two.
        mask: which elements there are, broadcast to ``x``; all, if it is None. A row without any gives 1.

    Returns:
        A scalar, or a block (M,), of the type of :func:`accumulator`.
    """
    return reduce(_present(x, mask, multiply), multiply)


@triton.jit
def amax(x: tl.tensor, mask: tl.tensor | None = None) -> tl.tensor:
    """The largest elements of whole rows: NaN if any is NaN, and 0.0 is above -0.0.

    Args:
        x: a block (N,) or (M, N), where N is a power of two, of any dtype but uint64.
        mask: which elements there are, broadcast to ``x``; all, if it is None. A row without any gives -inf, or the
            lowest integer.

    Returns:
        A scalar, or a block (M,), of the type of :func:`accumulator`.
    """
    tl.static_assert(x.dtype != tl.uint64, "amax() does not take uint64")
    return _extreme(_present(x, mask, larger), larger)


@triton.jit
def amin(x: tl.tensor, mask: tl.tensor | None = None) -> tl.tensor:
    """The smallest elements of whole rows: NaN if any is NaN, and -0.0 is below 0.0.

    Args:
        x: a block (N,) or (M, N), where N is a power of two, of any dtype but uint64.
        mask: which elements there are, broadcast to ``x``; all, if it is None. A row without any gives inf, or the
            highest integer.

    Returns:
        A scalar, or a block (M,), of the type of :func:`accumulator`.
    """
    tl.static_assert(x.dtype != tl.uint64, "amin() does not take uint64")
    return _extreme(_present(x, mask, smaller), smaller)


@triton.jit
def _chunk(load: tl.constexpr, arguments, begin, n, BLOCK: tl.constexpr, combine: tl.constexpr, empty):
    width: tl.constexpr = BLOCK if BLOCK < _LANES else _LANES
    depth: tl.constexpr = 1 if BLOCK <= _LANES else (_DEPTH if BLOCK >= _CHUNK else BLOCK // _LANES)
    column = begin + tl.arange(0, width)[None, :]
    lanes = tl.where(column < n, load(column, column < n, arguments), empty)
    for step in tl.static_range(1, depth):
        column = begin + step * _LANES + tl.arange(0, width)[None, :]
        lanes = combine(lanes, tl.where(column < n, load(column, column < n, arguments), empty))
    return tree(lanes, combine)


@triton.jit
def reduce_rows(
    load: tl.constexpr,
    arguments: tl.tuple,
    n: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    combine: tl.constexpr = add,
    empty: tl.tensor | None = None,
    dtype: tl.constexpr = tl.float32,
) -> tl.tensor:
    """Reduces rows of any length in the contract's order, and loads 512 of each row's elements at a time.

    Args:
        load: ``load(column, mask, arguments)``, a ``@triton.jit`` function of a block (1, W) of column numbers and a
            mask of those that the rows have. It returns a block (ROWS, W) of numbers to add, of type ``dtype``.
        arguments: a tuple of pointers, blocks and scalars, for ``load``.
        n: how many elements a row has. A sum of none is 0.
        ROWS: how many rows the program takes, a power of two.
        BLOCK: a power of two at or above ``n``: ``triton.next_power_of_2(n)``. It may be larger.
        combine: a commutative function of two numbers: one of this module, or your own.
        empty: the identity of ``combine``, a scalar; None for a function of this module.
        dtype: what ``load`` returns: float32, float64 or int64.

    Returns:
        A block (ROWS,).
    """
    missing = identity(combine, dtype) if empty is None else tl.cast(empty, dtype)
    if BLOCK <= _CHUNK:
        total = _chunk(load, arguments, 0, n, BLOCK, combine, missing)
    else:
        count: tl.constexpr = BLOCK // _CHUNK
        number = tl.arange(0, count)[None, :]
        chunks = tl.broadcast_to(missing, (ROWS, count))
        for c in range(count):
            if c * _CHUNK < n:
                chunk = _chunk(load, arguments, c * _CHUNK, n, BLOCK, combine, missing)
                chunks = tl.where(number == c, chunk[:, None], chunks)
        total = tree(chunks, combine)
    if combine == add:
        total = tl.where(n > 0, total, tl.zeros_like(total))
    return total


# --- numbers ----------------------------------------------------------------------------------------------------------


@triton.jit
def divide(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    """``a / b``, rounded once. Triton's own ``/`` of float32 is not correctly rounded.

    Args:
        a: a block or a scalar of float32 or float64, or a number.
        b: the same. One of both is a tensor, and says in which precision they are divided; integers are rounded to it.
    """
    dtype: tl.constexpr = (a + b).dtype
    if dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(tl.cast(a, tl.float32), tl.cast(b, tl.float32))


@triton.jit
def square_root(x: tl.tensor) -> tl.tensor:
    """The square root, rounded once. ``divide(1.0, square_root(x))`` is the factor of the contract's norms.

    Args:
        x: a block or a scalar of float32 or float64.
    """
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def _fused(a, b, c):
    # a * b + c in float32, rounded once. The interpreter's own rounds twice: there float64 rounds the sum to odd, and
    # then float32 to nearest.
    if _INTERPRETED:
        a = tl.cast(tl.cast(a, tl.float32), tl.float64)
        b = tl.cast(tl.cast(b, tl.float32), tl.float64)
        c = tl.cast(tl.cast(c, tl.float32), tl.float64)
        product = a * b
        total = product + c
        part = total - product
        error = (product - (total - part)) + (c - part)
        bits = total.to(tl.int64, bitcast=True)
        towards = tl.where((error > 0) == (total > 0), 1, -1)
        bits = tl.where((error != 0) & ((bits & 1) == 0), bits + towards, bits)
        return bits.to(tl.float64, bitcast=True).to(tl.float32)
    else:
        return tl.fma(a, b, c)


@triton.jit
def exponential(x: tl.tensor) -> tl.tensor:
    """e^x for x <= 0, with the bits of ``softmax`` and ``logsumexp``: 0 where it would be subnormal.

    Args:
        x: a block or a scalar of float32 or float64: differences from the largest element of a row. Below -87 (-708 in
            float64) the result is 0, and NaN gives NaN.

    Returns:
        The same shape and dtype.
    """
    # csrc/core/numeric/exponential.h, operation by operation.
    if x.dtype == tl.float64:
        shifted = x * 1.4426950408889634 + 6755399441055744.0
        n = shifted - 6755399441055744.0
        high = x - n * 0.6931471803691238
        low = n * 1.9082149292705877e-10
        r = high - low
        t = r * r
        p = 6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08)
        p = 1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * p)
        c = r - t * p
        y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
        bits = y.to(tl.int64, bitcast=True) + (shifted.to(tl.int64, bitcast=True) << 52)
        y = tl.where(x < -708, tl.zeros_like(x), bits.to(tl.float64, bitcast=True))
    else:
        shifted = _fused(x, 1.4426950216293335, 12582912.0)
        n = shifted - 12582912.0
        r = _fused(n, 1.9046542121259336e-09, _fused(n, -0.6931471824645996, x))
        p = _fused(tl.full(r.shape, 1.9875691500e-4, tl.float32), r, 1.3981999507e-3)
        p = _fused(p, r, 8.3334519073e-3)
        p = _fused(p, r, 4.1665795894e-2)
        p = _fused(p, r, 1.6666665459e-1)
        p = _fused(p, r, 5.0000001201e-1)
        y = _fused(p, r * r, r) + 1.0
        bits = y.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)
        y = tl.where(x < -87, tl.zeros_like(x), bits.to(tl.float32, bitcast=True))
    return tl.where(x != x, x, y)


@triton.jit
def logarithm(x: tl.tensor) -> tl.tensor:
    """The natural logarithm of x >= 1, with the bits of ``logsumexp`` and ``log_softmax``.

    Args:
        x: a block or a scalar of float32 or float64: sums of exponentials.

    Returns:
        float64, the same shape. Of NaN and infinity it is that.
    """
    # csrc/core/numeric/exponential.h, operation by operation.
    x = x.to(tl.float64)
    bits = x.to(tl.int64, bitcast=True)
    mantissa = bits & 0xFFFFFFFFFFFFF
    up = (mantissa + 0x95F6400000000) & 0x10000000000000
    k = ((bits >> 52) - 1023 + (up >> 52)).to(tl.float64)
    f = (mantissa | (up ^ 0x3FF0000000000000)).to(tl.float64, bitcast=True) - 1.0
    s = f / (2.0 + f)
    half = 0.5 * f * f
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = 1.818357216161805012e-01 + w * 1.479819860511658591e-01
    even = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * even))
    found = k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f)
    return tl.where(x < _INFINITY, found, x)
