"""Our operators by torch's. Imported at the first :func:`torch_reduce.decompositions`, for it takes a while.

Each is the contract's order as slices and additions, and the formulas of csrc/core/numeric, operation by operation.
"""

import functools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["table"]

_ops = torch.ops.gpureduce
_, _LANES, _CHUNK = _ops._order()
_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32, torch.float64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)

_TABLE: dict[Any, Callable] = {}


def table() -> dict[Any, Callable]:
    """Our operators by torch's; see :func:`torch_reduce.decompositions`."""
    return {**_composites(), **_TABLE}


@functools.cache
def _composites() -> dict[Any, Callable]:
    """The operators that others make up: by these."""
    found: dict[Any, Callable] = {}
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("gpureduce::"):
            continue
        packet, _, overload = name.removeprefix("gpureduce::").partition(".")
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key.name):
            operator = getattr(getattr(_ops, packet), overload or "default")
            found[operator] = functools.partial(operator._op_dk, key)
    return found


class _Stays(Exception):
    """A call has no form here."""


def _is(operator: Any) -> Callable:
    def register(function: Callable) -> Callable:
        @functools.wraps(function)
        def decompose(*args: Any, **others: Any) -> Any:
            try:
                return function(*args, **others)
            except _Stays:
                return NotImplemented

        _TABLE[operator] = decompose
        return function

    return register


def _needs(condition: Any) -> None:
    if not condition:
        raise _Stays


def _known(condition: Any) -> bool:
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


# --- rows -------------------------------------------------------------------------------------------------------------


class _Rows:
    """A tensor as rows of the elements that one result takes, in the contract's order."""

    def __init__(self, x: Tensor, dim: Sequence[int] | int | None):
        _needs(all(_known(size >= 1) for size in x.shape))
        dims = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
        self.reduced = sorted({d % max(x.dim(), 1) for d in dims} if x.dim() else ())
        self.kept = [d for d in range(x.dim()) if d not in self.reduced]
        ones = [d for d in self.reduced if _known(x.shape[d] == 1)]
        others = [d for d in self.reduced if d not in ones]
        if len(others) > 1:
            others.sort(key=functools.cmp_to_key(functools.partial(_compare, x.stride())))
        self.order, self.shape = [*self.kept, *ones, *others], x.shape
        self.n = math.prod(x.shape[d] for d in others)

    def of(self, x: Tensor) -> Tensor:
        """(..., n): the rows of a tensor of that size."""
        return x.permute(self.order).reshape([*(self.shape[d] for d in self.kept), self.n])

    def result(self, x: Tensor, keepdim: bool) -> Tensor:
        """A number per row, with the reduced dims or without them."""
        sizes = [1 if d in self.reduced else self.shape[d] for d in range(len(self.shape))]
        return (x.reshape(sizes) if keepdim else x).contiguous()


def _compare(strides: Sequence[Any], a: int, b: int) -> int:
    """The order of dims: slowest first, but before them the ones of stride 0; equal strides in logical order."""
    p, q = strides[a], strides[b]
    if isinstance(p, int) and isinstance(q, int) and 0 in (p, q):
        return a - b if p == q else -1 if p == 0 else 1
    if _known(p == q):
        return a - b
    _needs(_known(p > q) or _known(p < q))
    return -1 if _known(p > q) else 1


def _padded(x: Tensor, count: Any, missing: float) -> Tensor:
    return x if _known(count == 0) else torch.nn.functional.pad(x, [0, count], value=missing)


def _joined(rows: Tensor, combine: Callable = torch.add, missing: float = -0.0) -> Tensor:
    """(..., n) -> (...): the lanes of each chunk from left to right, then nearest neighbours, level by level."""
    n = most = rows.shape[-1]
    if not isinstance(n, int):
        most = n.node.shape_env.bound_sympy(n.node.expr).upper
        _needs(most.is_Integer)
        most = int(most)
    width, depth = min(most, _LANES), min(-(-most // _LANES), _CHUNK // _LANES)
    chunks = -(-most // (width * depth))
    rows = _padded(rows, chunks * width * depth - n, missing).unflatten(-1, (chunks, depth, width))
    lanes = rows[..., 0, :]
    for step in range(1, depth):
        lanes = combine(lanes, rows[..., step, :])
    joined = lanes.flatten(-2)
    while joined.shape[-1] > 1:
        size = joined.shape[-1]
        pairs = _padded(joined, size % 2, missing).unflatten(-1, ((size + 1) // 2, 2))
        joined = combine(pairs[..., 0], pairs[..., 1])
    return joined[..., 0]


def _number(value: Any, like: Tensor) -> Tensor:
    """A number as a tensor on the device: torch multiplies by a number's reciprocal instead of dividing by it."""
    return torch.full((), value, dtype=like.dtype, device=like.device)


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Converted, and rounded once. From float64 to a half torch rounds to float32 on the way."""
    if x.dtype == torch.float64 and dtype in _HALVES:
        near = x.float()
        x = _odd(near, x - near.double(), torch.int32)
    return x.to(dtype)


def _odd(near: Tensor, error: Tensor, bits_type: torch.dtype) -> Tensor:
    """Rounded to odd: of the two numbers around near + error the one whose last digit is 1. A shorter type then has the
    same number as if near + error were rounded to it."""
    bits = near.view(bits_type)
    towards = torch.where((error > 0) == (near > 0), 1, -1).to(bits_type)
    return torch.where((error != 0) & ((bits & 1) == 0), bits + towards, bits).view(near.dtype)


def _root(x: Tensor) -> Tensor:
    """The square root, rounded once. torch's own on a CPU may be the number beside it."""
    if x.dtype == torch.float32:
        return x.double().sqrt().float()  # no root is near the middle between two float32
    small, large = x < 2.0**-500, x > 2.0**500
    scaled = torch.where(small, x * 2.0**600, torch.where(large, x * 2.0**-600, x))
    root = scaled.sqrt()
    shifted = root * 134217729.0  # cuts it into two halves of its digits, whose products are exact
    high = shifted - (shifted - root)
    low, square = root - high, root * root
    error = (scaled - square) - (((high * high - square) + 2.0 * high * low) + low * low)
    bits = root.view(torch.int64)
    above, below = (bits + 1).view(torch.float64), (bits - 1).view(torch.float64)
    is_above = error > root * (above - root)
    root = torch.where(is_above, above, torch.where((root > 0) & (error <= root * (below - root)), below, root))
    return torch.where(small, root * 2.0**-300, torch.where(large, root * 2.0**300, root))


def _computed(*dtypes: torch.dtype) -> torch.dtype:
    _needs(all(dtype in _FLOATS for dtype in dtypes))
    return torch.float64 if torch.float64 in dtypes else torch.float32


# --- reductions -------------------------------------------------------------------------------------------------------


def _reduction(
    element: Callable, finish: Callable | None = None, combine: Callable = torch.add, missing: float = -0.0
) -> Callable:
    def reduce(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        result = dtype or x.dtype
        wide, rows = _computed(x.dtype, result), _Rows(x, dim)
        total = _joined(rows.of(element(x.to(wide))), combine, missing)
        return rows.result(_rounded(finish(total, rows.n) if finish else total, result), keepdim)

    return reduce


def _or_of_integers(reduce: Callable, aten: Callable) -> Callable:
    def either(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        result = dtype or (torch.int64 if x.dtype in _INTEGERS else x.dtype)
        if x.dtype in _INTEGERS and result in _INTEGERS[1:]:
            return aten(x, _Rows(x, dim).reduced, keepdim).to(result)  # wraps, so that no order shows
        return reduce(x, dim, keepdim, dtype=dtype)

    return either


def _product(x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    x = x.long()
    for d in dims:
        x = x.prod(d, keepdim=True)
    return x if keepdim else x.squeeze(tuple(dims))


def _mean(total: Tensor, n: Any) -> Tensor:
    return total / _number(n, total)


def _square(x: Tensor) -> Tensor:
    return x * x


_is(_ops.sum.default)(
    _or_of_integers(_reduction(lambda x: x), lambda x, dims, keepdim: x.long().sum(dims, keepdim) if dims else x.long())
)
_is(_ops.prod.default)(_or_of_integers(_reduction(lambda x: x, None, torch.mul, 1.0), _product))
_is(_ops.mean.default)(_reduction(lambda x: x, _mean))
_is(_ops.nansum.default)(_reduction(lambda x: torch.where(x == x, x, 0.0)))
_is(_ops._norm_1.default)(_reduction(torch.abs))
_is(_ops._norm_2.default)(_reduction(_square, lambda total, _: _root(total)))
_is(_ops._powsum_2.default)(_reduction(_square))
_is(_ops._powsum_3.default)(_reduction(lambda x: _square(x) * x.abs()))


def _extreme(x: Tensor, dim: Any, keepdim: bool, largest: bool) -> Tensor:
    """NaN if any is NaN, and -0.0 is below 0.0; torch takes either zero."""
    rows = _Rows(x, dim)
    if not rows.reduced:
        return x.clone()
    found = (torch.amax if largest else torch.amin)(x, rows.reduced, keepdim)
    if x.dtype in _INTEGERS:
        return found
    _needs(x.dtype in _FLOATS)
    wanted = (x == 0) & (torch.signbit(x) != largest)
    zero = torch.zeros_like(found) if largest else -torch.zeros_like(found)
    return torch.where(found == 0, torch.where(wanted.any(rows.reduced, keepdim), zero, -zero), found)


def _extremes(element: Callable, largest: bool) -> Callable:
    def reduce(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        return _extreme(element(x), dim, keepdim, largest).to(dtype or x.dtype).contiguous()

    return reduce


def _magnitude(x: Tensor) -> Tensor:
    _needs(x.dtype in _FLOATS)
    return x.abs()


_is(_ops._amax.default)(_extremes(lambda x: x, True))
_is(_ops._amin.default)(_extremes(lambda x: x, False))
_is(_ops._norm_inf.default)(_extremes(_magnitude, True))
_is(_ops._norm_neg_inf.default)(_extremes(_magnitude, False))


def _count(x: Tensor, dim: Any, keepdim: bool) -> tuple[Tensor, Any]:
    """How many elements are not 0, and how many there are."""
    _needs(x.dtype in (*_FLOATS, *_INTEGERS))
    rows = _Rows(x, dim)
    found = (x != 0).long()
    return (found.sum(rows.reduced, keepdim) if rows.reduced else found).contiguous(), rows.n


@_is(_ops._count_nonzero.default)
def _count_nonzero(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _count(x, dim, keepdim)[0]


@_is(_ops._norm_0.default)
def _norm_0(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    _computed(x.dtype, dtype or x.dtype)
    return _rounded(_count(x, dim, keepdim)[0].double(), dtype or x.dtype)


@_is(_ops._any.default)
def _any(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return (_count(x, dim, keepdim)[0] > 0).to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


@_is(_ops._all.default)
def _all(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    found, n = _count(x, dim, keepdim)
    return (found == n).to(torch.uint8 if x.dtype == torch.uint8 else torch.bool)


@_is(_ops.weighted_sum.default)
def _weighted_sum(
    x: Tensor, weight: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    result = dtype or torch.promote_types(x.dtype, weight.dtype)
    wide, rows = _computed(x.dtype, weight.dtype, result), _Rows(x, dim)
    _needs(sum(not _known(x.shape[d] == 1) for d in rows.reduced) <= 1)  # of several dims both inputs' strides count
    _needs(torch.broadcast_shapes(x.shape, weight.shape) == x.shape)
    total = _joined(rows.of(x.to(wide) * weight.to(wide)))
    return rows.result(_rounded(total, result), keepdim)


def _variance(x: Tensor, dim: Any, correction: float) -> tuple[Tensor, Tensor, _Rows]:
    """The variance and the mean of each row, in float64."""
    _needs(x.dtype in _FLOATS)
    rows = _Rows(x, dim)
    wide = rows.of(x.double())
    first = wide[..., :1]
    differences = wide - first
    total, squares = _joined(differences), _joined(differences * differences)
    n = _number(rows.n, total)
    share = total / n
    left, divisor = squares - total * share, n - correction
    left = torch.where(left < 0, 0.0, left)
    return left / torch.where(divisor > 0, divisor, 0.0), first[..., 0] + share, rows


@_is(_ops._var_mean.default)
def _var_mean(
    x: Tensor, dim: Any, correction: float, root: bool, keepdim: bool, *, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    variance, mean, rows = _variance(x, dim, correction)
    result = dtype or x.dtype
    _computed(result)
    variance = _root(variance) if root else variance
    return rows.result(_rounded(variance, result), keepdim), rows.result(_rounded(mean, result), keepdim)


# --- exponentials -----------------------------------------------------------------------------------------------------


def _float(value: float | str) -> float:
    """The float32 of a number."""
    number = float.fromhex(value) if isinstance(value, str) else value
    return struct.unpack("f", struct.pack("f", number))[0]


_PER_LOG_2, _LOG_2, _LOW = (_float(each) for each in ("0x1.715476p+0", "-0x1.62e430p-1", "0x1.05c610p-29"))
_POWERS = [
    _float(each)
    for each in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
]


def _fused(a: Any, b: Any, c: Any) -> Tensor:
    """a * b + c of float32, rounded once."""
    a, b, c = (each.double() if isinstance(each, Tensor) else each for each in (a, b, c))
    product = a * b
    total = product + c
    part = total - product
    return _odd(total, (product - (total - part)) + (c - part), torch.int64).float()


def _exponential(x: Tensor) -> Tensor:
    """e^x for x <= 0, and 0 where it would be subnormal: csrc/core/numeric/exponential.h."""
    if x.dtype == torch.float64:
        shifted = x * 1.4426950408889634 + 6755399441055744.0
        n = shifted - 6755399441055744.0
        high, low = x - n * 0.6931471803691238, n * 1.9082149292705877e-10
        r = high - low
        t = r * r
        p = 6.61375632143793436117e-05 + t * (-1.65339022054652515390e-06 + t * 4.13813679705723846039e-08)
        c = r - t * (1.66666666666666019037e-01 + t * (-2.77777777770155933842e-03 + t * p))
        y = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
        found = (y.view(torch.int64) + (shifted.view(torch.int64) << 52)).view(torch.float64)
        return torch.where(x < -708, 0.0, found)
    shifted = _fused(x, _PER_LOG_2, 12582912.0)
    n = shifted - 12582912.0
    r = _fused(n, _LOW, _fused(n, _LOG_2, x))
    power: Any = _POWERS[0]
    for each in _POWERS[1:]:
        power = _fused(power, r, each)
    y = _fused(power, r * r, r) + 1.0
    found = (y.view(torch.int32) + (shifted.view(torch.int32) << 23)).view(torch.float32)
    return torch.where(x < -87, 0.0, found)


def _logarithm(x: Tensor) -> Tensor:
    """The logarithm of x >= 1, in float64: csrc/core/numeric/exponential.h."""
    x = x.double()
    bits = x.view(torch.int64)
    mantissa = bits & 0xFFFFFFFFFFFFF
    up = (mantissa + 0x95F6400000000) & 0x10000000000000
    k = ((bits >> 52) - 1023 + (up >> 52)).double()
    f = (mantissa | (up ^ 0x3FF0000000000000)).view(torch.float64) - 1.0
    s, half = f / (2.0 + f), 0.5 * f * f
    z = s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    even = z * (6.666666666666735130e-01 + w * even)
    found = k * 6.93147180369123816490e-01 - ((half - (s * (half + (even + odd)) + k * 1.90821492927058770002e-10)) - f)
    return torch.where(x < math.inf, found, x)


def _exponentials(x: Tensor, dim: Any) -> tuple[Tensor, Tensor, Tensor, _Rows]:
    """Of rows: their largest elements m, e^(x - m), the sums of these, and the rows."""
    rows = _Rows(x, dim)
    m = _extreme(x, dim, True, True)
    powers = _exponential(x - m)
    return m, powers, rows.result(_joined(rows.of(powers)), True), rows


def _or_nan(m: Tensor, x: Tensor) -> Tensor:
    return torch.where(m.abs() < math.inf, x, math.nan)


@_is(_ops._logsumexp.default)
def _logsumexp(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    _computed(result)
    m, _, total, rows = _exponentials(x.to(_computed(x.dtype)), dim)
    found = torch.where(m.abs() < math.inf, m.double() + _logarithm(total), m.double())
    return rows.result(_rounded(found if keepdim else found.squeeze(rows.reduced), result), keepdim)


@_is(_ops.softmax.default)
def _softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    m, powers, total, _ = _exponentials(x.to(_computed(x.dtype, result)), dim)
    return _rounded(powers * _or_nan(m, torch.ones_like(total) / total), result).contiguous()


@_is(_ops.log_softmax.default)
def _log_softmax(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    wide = x.to(_computed(x.dtype, result))
    m, _, total, _ = _exponentials(wide, dim)
    return _rounded((wide - m) - _or_nan(m, _logarithm(total).to(m.dtype)), result).contiguous()


@_is(_ops._log_prob.default)
def _log_prob(x: Tensor, target: Tensor, dim: int, ignore_index: Any = -100) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.to(_computed(x.dtype))
    m, _, total, _ = _exponentials(wide, dim)
    number = _or_nan(m, _logarithm(total).to(m.dtype))
    ignored = target == ignore_index
    at = torch.where(ignored, 0, target.long()).unsqueeze(dim)
    found = ((wide.gather(dim, at) - m) - number).squeeze(dim)
    return torch.where(ignored, 0.0, found).contiguous(), m.contiguous(), number.contiguous()


# --- norms ------------------------------------------------------------------------------------------------------------


def _last(x: Tensor, dims: int) -> list[int]:
    return list(range(x.dim() - dims, x.dim()))


def _types(x: Tensor, *weights: Tensor | None) -> torch.dtype:
    return _computed(x.dtype, *(each.dtype for each in weights if each is not None))


def _inverse_root(x: Tensor) -> Tensor:
    root = _root(x)
    return torch.ones_like(root) / root


@_is(_ops._rms_norm.default)
def _rms_norm(x: Tensor, dims: int, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    wide, rows = x.to(_types(x, weight)), _Rows(x, _last(x, dims))
    total = rows.result(_joined(rows.of(wide * wide)), True)
    r = _inverse_root(total / _number(rows.n, total) + eps)
    y = wide * r
    y = y if weight is None else y * weight.to(wide.dtype)
    return _rounded(y, x.dtype).contiguous(), r


@_is(_ops._layer_norm.default)
def _layer_norm(
    x: Tensor, dims: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = x.to(_types(x, weight, bias))
    rows = _Rows(x, _last(x, dims))
    total = _joined(rows.of(wide))
    n = _number(rows.n, total)
    center = rows.result(total / n, True)
    differences = wide - center
    total, squares = (rows.result(_joined(rows.of(each)), True) for each in (differences, differences * differences))
    more = total / n
    left = squares - total * more
    r = _inverse_root(torch.where(left < 0, 0.0, left) / n + eps)
    mean = center + more
    y = (wide - mean) * r
    y = y if weight is None else y * weight.to(wide.dtype)
    y = y + (0.0 if bias is None else bias.to(wide.dtype))  # makes 0.0 of -0.0
    return _rounded(y, x.dtype).contiguous(), mean, r
