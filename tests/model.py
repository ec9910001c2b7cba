"""An independent model of the order of additions (docs/order.md), in NumPy alone.

It shares no code and no arithmetic with the library or with torch: elements are decoded from their stored bytes, added
in the contract's order, and rounded once to the stored bytes of the result. Complex numbers have a last axis of two.
The roots of norms are found in exact integers.
"""

import math

import numpy as np

LANES, DEPTH = 512, 8
CHUNK = LANES * DEPTH

# dtype name -> (how one part of an element is stored, parts of an element)
STORAGE = {
    "bool": (np.uint8, 1),
    "int8": (np.int8, 1),
    "int16": (np.int16, 1),
    "int32": (np.int32, 1),
    "int64": (np.int64, 1),
    "uint8": (np.uint8, 1),
    "uint16": (np.uint16, 1),
    "uint32": (np.uint32, 1),
    "uint64": (np.uint64, 1),
    "float8_e4m3fn": (np.uint8, 1),
    "float8_e5m2": (np.uint8, 1),
    "float16": (np.uint16, 1),
    "bfloat16": (np.uint16, 1),
    "float32": (np.float32, 1),
    "float64": (np.float64, 1),
    "complex32": (np.uint16, 2),
    "complex64": (np.float32, 2),
    "complex128": (np.float64, 2),
}
DTYPES = list(STORAGE)
COMPLEX = [name for name in DTYPES if name.startswith("complex")]
FLOATING = [name for name in DTYPES if "float" in name]
INTEGER = [name for name in DTYPES if name not in COMPLEX + FLOATING]  # bool among them
PART = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

# small floats: exponent bits, mantissa bits, whether the highest exponent holds infinity and NaN
FORMATS = {
    "float16": (5, 10, True),
    "bfloat16": (8, 7, True),
    "float8_e5m2": (5, 2, True),
    "float8_e4m3fn": (4, 3, False),
}


def itemsize(name):
    """Bytes of one element."""
    storage, parts = STORAGE[name]
    return np.dtype(storage).itemsize * parts


def natural_result(name):
    """The result dtype when none is asked for: torch.sum's, and float32 for the 8-bit floats."""
    if name in INTEGER:
        return "int64"
    return "float32" if name.startswith("float8") else name


def natural_norm(name):
    """The dtype of a norm of such elements: its real type, and float32 for the 8-bit floats."""
    return natural_result(PART.get(name, name))


# --- the small floats -------------------------------------------------------------------------------------------------


def _ladder(name):
    """The magnitudes of all codes of a small float without its sign, as if none of them were infinity or NaN."""
    exponent_bits, mantissa_bits, _ = FORMATS[name]
    codes = np.arange(1 << (exponent_bits + mantissa_bits))
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    normal = np.ldexp((1 << mantissa_bits) + mantissa.astype(np.float64), exponent - bias - mantissa_bits)
    return np.where(exponent == 0, np.ldexp(mantissa.astype(np.float64), 1 - bias - mantissa_bits), normal)


def _values(name):
    """The value of every code of a small float."""
    exponent_bits, mantissa_bits, ieee = FORMATS[name]
    values = _ladder(name)
    if ieee:
        infinity = ((1 << exponent_bits) - 1) << mantissa_bits
        values[infinity] = np.inf
        values[infinity + 1 :] = np.nan
    else:
        values[-1] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_DECODED = {name: _values(name) for name in FORMATS}


def _nearest(name, x):
    """The nearest code of a small float, ties to even, of float64 or int64 values."""
    exponent_bits, mantissa_bits, ieee = FORMATS[name]
    # One code above the largest number: infinity, or NaN in the format without infinities. It is what the number that
    # would stand there is rounded to.
    over = ((1 << exponent_bits) - 1) << mantissa_bits if ieee else (1 << (exponent_bits + mantissa_bits)) - 1
    bias, sign = (1 << (exponent_bits - 1)) - 1, 1 << (exponent_bits + mantissa_bits)
    if x.dtype == np.int64:  # float64 does not hold all of them: a bit stands for the last ones, far behind a mantissa
        magnitude, negative = np.abs(x).view(np.uint64), x < 0
        rest = (magnitude & np.uint64(0x7FF) != 0).astype(np.uint64)
        short = (magnitude >> np.uint64(11) | rest) << np.uint64(11)
        magnitude = np.where(magnitude >> np.uint64(53) != 0, short, magnitude).astype(np.float64)
    else:
        magnitude, negative = np.abs(x), np.signbit(x)
    bounded = np.minimum(magnitude, 2.0 ** (bias + 2))
    exponent = np.frexp(np.maximum(bounded, 2.0 ** (1 - bias)))[1] - 1
    mantissa = np.rint(np.ldexp(bounded, mantissa_bits - exponent))  # to even
    codes = np.minimum(((exponent + bias - 1) << mantissa_bits) + mantissa.astype(np.int64), over)
    codes = np.where(np.isnan(magnitude), sign - 1, codes)
    return (codes | np.where(negative, sign, 0)).astype(STORAGE[name][0])


def decode(stored, name):
    """Stored parts -> their exact values (float32, float64 or an integer type)."""
    name = PART.get(name, name)
    if name == "bool":
        return (stored != 0).astype(np.int64)
    return _DECODED[name][stored] if name in FORMATS else stored


def encode(values, name):
    """Values (float32, float64, int64) -> stored parts, rounded once."""
    name = PART.get(name, name)
    if name == "bool":
        return (values != 0).astype(np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        if name in FORMATS:
            return _nearest(name, values if values.dtype == np.int64 else values.astype(np.float64))
        if name in INTEGER and values.dtype != np.int64:
            values = to_integer(values)
        return values.astype(STORAGE[name][0])


def to_integer(x):
    """Floats -> int64 modulo 2^64, towards zero; what lies outside [-2^63, 2^64), and NaN, becomes -2^63."""
    x = np.trunc(x.astype(np.float64))
    low = np.where((x >= -(2.0**63)) & (x < 2.0**63), x, -(2.0**63)).astype(np.int64)
    high = (x >= 2.0**63) & (x < 2.0**64)
    return np.where(high, np.where(high, x, 0).astype(np.uint64).view(np.int64), low)


# --- the order --------------------------------------------------------------------------------------------------------


def lane_sums(x, add=np.add):
    """(outputs, length) -> (outputs, lane sums in a row): a lane adds its elements left to right, from its first."""
    outputs, length, *pair = x.shape
    whole = length // CHUNK
    rows = []
    if whole:
        body = x[:, : whole * CHUNK].reshape(outputs, whole, DEPTH, LANES, *pair)
        lanes = body[:, :, 0].copy()
        for step in range(1, DEPTH):
            lanes = add(lanes, body[:, :, step])
        rows.append(lanes.reshape(outputs, whole * LANES, *pair))
    tail = x[:, whole * CHUNK :]
    if tail.shape[1]:
        lanes = tail[:, :LANES].copy()
        for start in range(LANES, tail.shape[1], LANES):
            more = tail[:, start : start + LANES]
            lanes[:, : more.shape[1]] = add(lanes[:, : more.shape[1]], more)
        rows.append(lanes)
    return np.concatenate(rows, axis=1)


def join(row, add=np.add):
    """(outputs, n) -> (outputs,): nearest neighbours first; a missing right neighbour leaves its partner as it is."""
    while row.shape[1] > 1:
        pairs = row.shape[1] // 2 * 2
        row = np.concatenate([add(row[:, 0:pairs:2], row[:, 1:pairs:2]), row[:, pairs:]], axis=1)
    return row[:, 0]


def ordered_sum(x):
    """(outputs, length) -> (outputs,), in the precision of x."""
    if x.shape[1] == 0:
        return np.zeros(x.shape[0], x.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        return join(lane_sums(x))


def element_order(shape, strides, dims):
    """The reduced dims, slowest first: size 1 dropped; stride 0 in logical order; then by decreasing stride."""
    dims = [d for d in sorted(dims) if shape[d] != 1]
    still = [d for d in dims if strides[d] == 0]
    return still + sorted((d for d in dims if strides[d] != 0), key=lambda d: (-strides[d], d))


# --- norms ------------------------------------------------------------------------------------------------------------

DIGITS = {np.dtype(np.float32): 24, np.dtype(np.float64): 53}


def magnitudes(parts):
    """The magnitudes of real or complex numbers, in the precision of their parts, one array of them each."""
    if len(parts) == 1:
        return np.abs(parts[0])
    real, imaginary = parts
    infinite = np.isinf(real) | np.isinf(imaginary)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if real.dtype == np.float32:  # its squares are exact in float64
            real, imaginary = real.astype(np.float64), imaginary.astype(np.float64)
            found = np.sqrt(real * real + imaginary * imaginary).astype(np.float32)
        else:
            larger = np.maximum(np.abs(real), np.abs(imaginary))
            scale = np.where(larger > 2.0**500, 2.0**-600, np.where(larger < 2.0**-400, 2.0**600, 1.0))
            real, imaginary = real * scale, imaginary * scale
            found = np.sqrt(real * real + imaginary * imaginary) / scale
    return np.where(infinite, found.dtype.type(np.inf), found)


def powers(stored, source, target, power, negate=False, conjugate=False):
    """Stored elements (..., parts) -> what a norm of that power adds: int64 for 0, and else in its accumulator."""
    parts = [decode(stored[..., p], source) for p in range(stored.shape[-1])]
    if power == 0:
        return np.any([p != 0 for p in parts], axis=0).astype(np.int64)
    parts = [-p if negate else p for p in parts]
    if conjugate and len(parts) == 2:
        parts[1] = -parts[1]
    wide = "float64" in (PART.get(source, source), target)
    parts = [p.astype(np.float64 if wide else np.float32) for p in parts]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if power == 2:
            squares = [p * p for p in parts]
            return squares[0] if len(parts) == 1 else squares[0] + squares[1]
        x = magnitudes(parts)
        return (x * x) * x if power == 3 else x


def integer_root(n, degree):
    """The largest integer whose power does not exceed n."""
    if degree == 2:
        return math.isqrt(n)
    root = 1 << -(-n.bit_length() // degree)  # above it; Newton's steps from above end at it
    while True:
        better = ((degree - 1) * root + n // root ** (degree - 1)) // degree
        if better >= root:
            return root
        root = better


def rounded_root(x, degree, digits):
    """The root of a float that is no less than 0, to so many binary digits: exact, then rounded, ties to even."""
    if x == 0 or not math.isfinite(x):
        return x
    mantissa, exponent = math.frexp(x)
    n, exponent = int(math.ldexp(mantissa, 53)), exponent - 53
    shift = degree * (digits + 2)
    shift += (exponent - shift) % degree
    root = integer_root(n << shift, degree)
    doubled = 2 * root + (root**degree != n << shift)  # its last bit stands for all that is cut off
    drop = doubled.bit_length() - digits
    kept, rest, half = doubled >> drop, doubled & ((1 << drop) - 1), 1 << (drop - 1)
    kept += rest > half or (rest == half and kept & 1)
    return math.ldexp(kept, drop - 1 + (exponent - shift) // degree)


def roots(sums, degree):
    """The correctly rounded roots of accumulators, in their own precision."""
    digits = DIGITS[sums.dtype]
    found = [rounded_root(float(x), degree, digits) for x in sums.reshape(-1)]
    return np.array(found, sums.dtype).reshape(sums.shape)


def norms(added, power, rooted=True):
    """(outputs, length) of what `powers` gives -> the accumulators (outputs,) after the root, or the magnitude."""
    if power == 0:
        return added.sum(1)
    if math.isinf(power):
        return added.max(1) if power > 0 else added.min(1)  # NaN if one is
    sums = ordered_sum(added)
    return roots(sums, power) if rooted and power > 1 else sums


# --- products, extrema and counts -------------------------------------------------------------------------------------


def natural_family(name, kind):
    """The dtype of what `kind` makes of such elements."""
    if kind in ("amax", "amin"):
        return name
    if kind in ("any", "all"):
        return "uint8" if name == "uint8" else "bool"
    if kind == "logsumexp":
        return "float32" if name in INTEGER else natural_result(name)
    return "int64" if kind == "count_nonzero" else natural_result(name)


def products(stored, source, target, negate):
    """(outputs, length, parts) of stored real elements -> the accumulators (outputs,) of their products."""
    x = decode(stored[..., 0], source)
    x = -x if negate else x
    if target == "bool":
        x = (x != 0).astype(np.int64)
    elif target in INTEGER:
        x = x.astype(np.int64) if source in INTEGER else to_integer(x)
    else:
        wide = source in INTEGER or "float64" in (source, target)
        x = x.astype(np.float64 if wide else np.float32)
    if x.shape[1] == 0:
        return np.ones(x.shape[0], x.dtype)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return join(lane_sums(x, np.multiply), np.multiply)


def bounds(name):
    """The lowest and the highest number of a real dtype, as accumulators: infinities, where it has them."""
    if name == "bool":
        return np.array([0, 1])
    if name in INTEGER:
        info = np.iinfo(STORAGE[name][0])
        return np.array([info.min, info.max], STORAGE[name][0]).astype(np.int64)
    return np.array([-448.0, 448.0] if name == "float8_e4m3fn" else [-np.inf, np.inf])


def extrema(stored, source, largest, negate):
    """(outputs, length, parts) of stored real elements -> the largest or smallest; NaN if one is; 0.0 is above -0.0."""
    x = decode(stored[..., 0], source)
    x = -x if negate else x
    if x.shape[1] == 0:  # an empty segment
        return np.full(x.shape[0], bounds(source)[0 if largest else 1])
    with np.errstate(invalid="ignore"):
        found = x.max(1) if largest else x.min(1)
    if source in INTEGER:
        return found.astype(np.int64)
    # Of zeros alone the sign is open yet.
    zeros = (x == 0) & (np.signbit(x) != largest)  # those that win
    return np.where(found == 0, np.where(zeros.any(1) == largest, 0.0, -0.0).astype(x.dtype), found)


def counts(stored, source, kind):
    """(outputs, length, parts) of stored elements -> how many are not zero, or whether any or all are."""
    parts = [decode(stored[..., p], source) for p in range(stored.shape[-1])]
    count = np.any([p != 0 for p in parts], axis=0).sum(1)
    if kind == "count_nonzero":
        return count.astype(np.int64)
    return (count > 0 if kind == "any" else count == stored.shape[1]).astype(np.int64)


def fused(a, b, c):
    """a * b + c of float32, rounded once: exact in float64 but for a last digit that says so, and then rounded."""
    product, c = a.astype(np.float64) * b.astype(np.float64), np.asarray(c).astype(np.float64)
    total = product + c
    back = total - product
    rest = (product - (total - back)) + (c - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(rest) & (rest != 0) & (bits % 2 == 0)
    further = np.signbit(rest) == np.signbit(total)
    return (bits + np.where(inexact, np.where(further, 1, -1), 0)).view(np.float64).astype(np.float32)


def exponential(x):
    """e^x for x <= 0 as csrc/core/numeric/exponential.h says it, operation by operation."""
    if x.dtype == np.float32:
        f = np.float32
        shifted = fused(x, np.full_like(x, f(float.fromhex("0x1.715476p+0"))), f(1.5 * 2.0**23))
        n = shifted - f(1.5 * 2.0**23)
        r = fused(n, np.full_like(x, f(-float.fromhex("0x1.62e430p-1"))), x)
        r = fused(n, np.full_like(x, f(float.fromhex("0x1.05c610p-29"))), r)
        p = np.full_like(x, f(1.9875691500e-4))
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = fused(p, r, f(coefficient))
        y = fused(p, r * r, r) + f(1)
        return np.where(x < f(-87), f(0), np.ldexp(y, np.nan_to_num(n, nan=0, neginf=0).astype(np.int32)))
    n = (x * float.fromhex("0x1.71547652b82fep+0") + 1.5 * 2.0**52) - 1.5 * 2.0**52
    high, low = x - n * float.fromhex("0x1.62e42feep-1"), n * float.fromhex("0x1.a39ef35793c76p-33")
    r = high - low
    t, p = r * r, np.full_like(x, 4.13813679705723846039e-08)
    p = -1.65339022054652515390e-06 + t * p
    for coefficient in (6.61375632143793436117e-05, -2.77777777770155933842e-03, 1.66666666666666019037e-01):
        p = coefficient + t * p
    c = r - t * p
    y = 1 - ((low - (r * c) / (2 - c)) - high)
    return np.where(x < -708, 0.0, np.ldexp(y, np.nan_to_num(n, nan=0, neginf=0).astype(np.int32)))


def logarithm(x):
    """The logarithm of float64 numbers from 1 on, as csrc/core/numeric/exponential.h says it."""
    mantissa, exponent = np.frexp(np.where(np.isfinite(x), x, 1))
    bits = mantissa.view(np.int64) & ((1 << 52) - 1)
    up = (bits + 0x95F6400000000) >> 52 & 1  # as the sources cut at the square root of two
    k = exponent - 1 + up
    f = np.where(up == 1, mantissa, 2 * mantissa) - 1
    s = f / (2 + f)
    half, z = 0.5 * f * f, s * s
    w = z * z
    odd = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01))
    even = 2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)
    even = z * (6.666666666666735130e-01 + w * even)
    tail = s * (half + (even + odd)) + k * 1.90821492927058770002e-10
    return np.where(np.isfinite(x), k * 6.93147180369123816490e-01 - ((half - tail) - f), x)


def log_sums(stored, source, negate):
    """(outputs, length, parts) of stored real elements -> the float64 logarithms of their sums of exponentials."""
    x = decode(stored[..., 0], source)
    x = (-x if negate else x).astype(np.float64 if source == "float64" or source in INTEGER else np.float32)
    if x.shape[1] == 0:
        return np.full(x.shape[0], -np.inf)
    with np.errstate(all="ignore"):
        largest = x.max(1)
        total = ordered_sum(exponential(x - largest[:, None]))
        found = largest.astype(np.float64) + logarithm(total.astype(np.float64))
    return np.where(np.isfinite(largest), found, largest.astype(np.float64))


def deviations(stored, source, what, correction, negate):
    """(outputs, length, parts) of stored floats -> their "var", "std" or "mean", in float64."""
    x = decode(stored[..., 0], source)
    x = (-x if negate else x).astype(np.float64)
    n = x.shape[1]
    if n == 0:
        return np.full(x.shape[0], np.nan)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        first = x[:, :1]
        d = x - first
        total, squares = ordered_sum(d), ordered_sum(d * d)
        mean = total / np.float64(n)
        if what == "mean":
            return first[:, 0] + mean
        rest = squares - total * mean
        variance = np.where(rest < 0, 0.0, rest) / max(n - np.float64(correction), np.float64(0))
        return np.sqrt(variance) if what == "std" else variance


# --- functions that keep their input's shape --------------------------------------------------------------------------


def whole_exponential(x):
    """e^x where x may be far below 0: from -80 on (-700 in float64) the square of e^(x / 2)."""
    low = x.dtype.type(-80 if x.dtype == np.float32 else -700)
    root = exponential(np.where(x < low, x, low) * x.dtype.type(0.5))
    far = np.where(x < 4 * low, x.dtype.type(0), root * root)
    return np.where(np.isnan(x), x, np.where(x >= low, exponential(np.where(x >= low, x, low)), far))


def softmaxes(x, logarithmic):
    """(rows, length) of float32 or float64 -> softmax, or its logarithm, of each row."""
    with np.errstate(all="ignore"):
        largest = x.max(1, keepdims=True)
        e = exponential(x - largest)
        total = ordered_sum(e)[:, None]
        if logarithmic:
            y = (x - largest) - logarithm(total.astype(np.float64)).astype(x.dtype)
        else:
            y = e * (x.dtype.type(1) / total)
        return np.where(np.isfinite(largest), y, np.nan).astype(x.dtype)


def softmaxes_backward(grad, y, logarithmic):
    with np.errstate(all="ignore"):
        if logarithmic:
            return grad - whole_exponential(y) * ordered_sum(grad)[:, None]
        return (grad - ordered_sum(grad * y)[:, None]) * y


def log_probs(x, target):
    """(rows, length) -> the logarithm of each target's probability, 0 for negative ones; each row's m and log(S)."""
    with np.errstate(all="ignore"):
        m = x.max(1)
        log_sum = logarithm(ordered_sum(exponential(x - m[:, None])).astype(np.float64)).astype(x.dtype)
        at_target = x[np.arange(len(x)), np.maximum(target, 0)]
        return np.where(target < 0, x.dtype.type(0), (at_target - m) - log_sum), m, log_sum


def log_probs_backward(grad, x, target, m, log_sum):
    """The gradient of the logits: grad has a number per row."""
    grad = np.where(target < 0, x.dtype.type(0), grad)[:, None]
    at_target = np.where(np.arange(x.shape[1]) == target[:, None], grad, x.dtype.type(0))
    return at_target - whole_exponential((x - m[:, None]) - log_sum[:, None]) * grad


def log_probs_of_several_backward(grad, x, target, m, log_sum):
    """The same where grad and target have several numbers per row."""
    grad, own = np.where(target < 0, x.dtype.type(0), grad), np.zeros_like(x)
    for row, classes in enumerate(target):
        for each in set(classes[classes >= 0]):
            own[row, each] = ordered_sum(grad[row, classes == each][None])[0]
    return own - whole_exponential((x - m[:, None]) - log_sum[:, None]) * ordered_sum(grad)[:, None]


def row_norms(x, weight, bias, eps, centered):
    """(rows, length) -> layer_norm or rms_norm of each row, its mean and its factor r."""
    kind = x.dtype.type
    with np.errstate(all="ignore"):
        if centered:
            n = kind(x.shape[1])
            center = ordered_sum(x) / n
            difference = x - center[:, None]
            total, squares = ordered_sum(difference), ordered_sum(difference * difference)
            left = squares - total * (total / n)
            r = kind(1) / np.sqrt(np.where(left < 0, kind(0), left) / n + kind(eps))
            mean = center + total / n
        else:
            mean = np.zeros(len(x), kind)
            r = kind(1) / np.sqrt(ordered_sum(x * x) / kind(x.shape[1]) + kind(eps))
        y = ((x - mean[:, None]) * r[:, None]) * weight
        return y + bias if centered else y, mean, r


def row_norms_backward(grad, x, mean, r, weight, centered):
    """The gradients of x, weight and bias."""
    n = x.dtype.type(x.shape[1])
    with np.errstate(all="ignore"):
        h, d = (x - mean[:, None]) * r[:, None], grad * weight
        share = (ordered_sum(d * h) / n)[:, None]
        y = d - (ordered_sum(d) / n)[:, None] if centered else d
        return (y - h * share) * r[:, None], ordered_sum((grad * h).T.copy()), ordered_sum(grad.T.copy())


def family(stored, source, target, kind, negate=False):
    """(outputs, length, parts) of stored elements -> the accumulators (outputs,) of an operation of that name."""
    if isinstance(kind, tuple):
        return deviations(stored, source, *kind, negate)
    if kind == "prod":
        return products(stored, source, target, negate)
    if kind == "nansum":
        (x,) = addends(stored, source, target, negate)
        return ordered_sum(np.where(np.isnan(x), x.dtype.type(0), x) if x.dtype.kind == "f" else x)
    if kind == "logsumexp":
        return log_sums(stored, source, negate)
    if kind in ("amax", "amin"):
        return extrema(stored, source, kind == "amax", negate)
    return counts(stored, source, kind)


# --- a whole reduction ------------------------------------------------------------------------------------------------


def addends(stored, source, target, negate=False, conjugate=False):
    """Stored elements (..., parts) -> a list of accumulator arrays (...): one, or the real and the imaginary parts."""
    parts = [decode(stored[..., p], source) for p in range(stored.shape[-1])]
    if negate:
        parts = [-p for p in parts]
    if conjugate and len(parts) == 2:
        parts[1] = -parts[1]
    if target == "bool":
        return [np.any([p != 0 for p in parts], axis=0).astype(np.int64)]
    if target in INTEGER:
        return [parts[0].astype(np.int64) if source in INTEGER else to_integer(parts[0])]
    if source in INTEGER:
        return [parts[0].astype(np.float64 if itemsize(source) == 8 else np.int64)]
    if target not in COMPLEX:
        parts = parts[:1]
    wide = {"float64", "complex128"} & {source, target}
    return [p.astype(np.float64 if wide else np.float32) for p in parts]


def quotients(sums, length, target):
    """The accumulators of means: divided once, in their own precision, and integers in double.

    A complex mean of nothing is NaN in both parts, as torch's.
    """
    if length == 0 and target in COMPLEX:
        sums = [sums[0]] * 2
    sums = [s.astype(np.float64) if s.dtype == np.int64 else s for s in sums]
    with np.errstate(divide="ignore", invalid="ignore"):
        return [s / s.dtype.type(length) for s in sums]


def results(sums, target):
    """Accumulators -> the stored elements (..., parts) of the result."""
    parts = STORAGE[target][1]
    if parts == 2 and len(sums) == 1:
        sums = [sums[0], np.zeros_like(sums[0])]
    return np.stack([encode(s, target) for s in sums[:parts]], axis=-1)


def strided(data, name, shape, strides, offset):
    """A view (..., parts) of a flat array of bytes; strides and offset count elements. Refuses to leave the array."""
    storage, parts = STORAGE[name]
    size = itemsize(name)
    if 0 in shape:
        return np.empty((*shape, parts), storage)
    part = np.dtype(storage).itemsize
    byte_strides = tuple(s * size for s in strides) + (part,)
    return np.ndarray((*shape, parts), storage, buffer=data, offset=offset * size, strides=byte_strides)


def reduce(
    data,
    source,
    shape,
    strides,
    offset,
    dims,
    target=None,
    keepdim=False,
    negate=False,
    conjugate=False,
    mean=False,
    power=None,
    rooted=True,
    kind=None,
):
    """The result of the contract as stored elements, shape (kept dims in logical order, parts).

    With a power it is the norm of that power, or without the root the sum of powers, and `target` is its real dtype.
    With a kind it is the operation of that name in torch; or of ("var", correction), and likewise "std" and "mean".
    """
    if target is None:
        natural = natural_result if power is None else natural_norm
        target = natural_family(source, kind) if kind else natural(source)
    live = [d for d, n in enumerate(shape) if n != 1]
    view = strided(data, source, [shape[d] for d in live], [strides[d] for d in live], offset)
    kept = [d for d in live if d not in dims]
    order = element_order(shape, strides, dims)
    outputs = math.prod(shape[d] for d in kept)
    length = math.prod(shape[d] for d in order)
    axes = [live.index(d) for d in (*kept, *order)]
    view = view.transpose(*axes, len(live)).reshape(outputs, length, view.shape[-1])
    if kind:
        sums = [family(view, source, target, kind, negate)]
    elif power is None:
        sums = [ordered_sum(a) for a in addends(view, source, target, negate, conjugate)]
    else:
        sums = [norms(powers(view, source, target, power, negate, conjugate), power, rooted)]
    stored = results(quotients(sums, length, target) if mean else sums, target)
    kept_shape = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
    return stored.reshape(*kept_shape, stored.shape[-1])


def periodic_sum(pattern, length):
    """The sum of pattern[i % period] for i < length, in pattern's precision: for more elements than fit into memory."""
    period, (whole, tail) = len(pattern), divmod(length, CHUNK)
    starts = np.arange(period, dtype=np.int64)
    chunks = np.empty(period, pattern.dtype)
    for block in range(0, period, 1024):  # the sum of the chunk that begins at each phase of the pattern
        rows = (starts[block : block + 1024, None] + np.arange(CHUNK)) % period
        chunks[block : block + 1024] = ordered_sum(pattern[rows])
    row = chunks[np.arange(whole, dtype=np.int64) * CHUNK % period]
    if tail:
        rest = pattern[(whole * CHUNK + np.arange(tail, dtype=np.int64)) % period]
        row = np.concatenate([row, ordered_sum(rest[None])])
    return join(row[None])[0]  # a chunk is an aligned run of 512 leaves, so its sum is a node of the tree


def value(i, name):
    """Element i of the buffers behind the pinned results: a 32-bit hash in [-0.5, 0.5), rounded to `name`."""
    h = np.asarray(i).astype(np.uint32) * np.uint32(2654435761) + np.uint32(12345)
    h ^= h >> np.uint32(15)
    x = h.astype(np.float64) * 2.0**-32 - 0.5
    if name == "bfloat16":  # by way of float32, as the file was made
        x = x.astype(np.float32)
    return encode(x, name)
