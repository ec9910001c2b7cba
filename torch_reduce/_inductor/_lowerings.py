"""What our operators become in Inductor: reductions in the contract's order, with elementwise code around them.

Each formula is the one of csrc/core/numeric, operation by operation. What has no form here stays a call of the
operator.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch._inductor import ir, lowering
from torch._inductor.utils import get_current_backend
from torch._inductor.virtualized import V, ops
from torch._library.utils import get_layout_constraint_tag
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.operator_schemas import normalize_function

__all__ = ["OPERATORS", "install"]

_gpureduce = torch.ops.gpureduce
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# One program adds a whole row. Where rows are long and few, the operator's own kernels take many programs for each.
_LONG, _FEW = 16384, 64

fuses = True  # bench/compiled.py turns it off, and has calls

OPERATORS: dict[Any, Callable] = {}  # what is called with the operator's arguments: a result, or None


def install() -> None:
    """Puts them into Inductor's table."""
    for operator, lower in OPERATORS.items():
        lowering.register_lowering(operator, type_promotion_kind=None)(_or_call(operator, lower))


def _or_call(operator: Any, lower: Callable) -> Callable:
    def lowered(*args: Any, **others: Any) -> Any:
        found = lower(*args, **others)
        return _called(operator, args, others) if found is None else found

    return lowered


def _called(operator: Any, args: Sequence[Any], others: dict[str, Any]) -> Any:
    """A call of the operator, whose arguments lie as in eager code: several dims are added in memory's order."""
    node = V.graph.current_node
    constraint = lowering.tag_to_layout_constraint(get_layout_constraint_tag(operator))
    if constraint is lowering.constrain_to_fake_tensors:
        if "eager_input_vals" in node.meta:
            given = normalize_function(operator, *node.meta["eager_input_vals"])
            args, others = constraint(*normalize_function(operator, args, others), *given)
    elif constraint is not None:
        args, others = constraint(node, *args, **others)
    return lowering.fallback_handler(operator, add_to_fallback_set=False)(*args, **others)


def _lowers(*operators: Any) -> Callable:
    def register(lower: Callable) -> Callable:
        for operator in operators:
            OPERATORS[operator] = lower
        return lower

    return register


# --- rows -------------------------------------------------------------------------------------------------------------


class Rows:
    """Tensors of one size as rows along one dim. Numbers of rows have this dim with the size 1."""

    def __init__(self, x: Any, dim: int, type: torch.dtype):
        self.dim, self.type = dim, type
        self.sizes, self.device = list(x.get_size()), x.get_device()
        self.n = self.sizes[dim]
        self.ones = [*self.sizes[:dim], sympy.S.One, *self.sizes[dim + 1 :]]

    def reads(self, x: Any) -> Callable:
        return _reader(x, len(self.sizes), self.type)

    def are_numbers(self, *tensors: Any) -> bool:
        """True if they have a number per row, in the rows' dims."""
        return all(
            len(x.get_size()) == len(self.ones)
            and all(map(V.graph.sizevars.statically_known_equals, x.get_size(), self.ones))
            for x in tensors
        )

    def length(self, dtype: torch.dtype) -> Any:
        """The rows' length as a number, rounded once."""
        return _count(self.n, dtype)

    def reduced(self, combine: str, element: Callable, dtype: torch.dtype | None = None) -> Any:
        """A number per row: its elements, a function of the index, joined in the contract's order."""

        def inner(index: Sequence[sympy.Expr], across: Sequence[sympy.Expr]) -> Any:
            return element([*index[: self.dim], across[0], *index[self.dim + 1 :]])

        dtype = dtype or self.type
        reduction = ir.Reduction(
            device=self.device,
            dtype=dtype,
            inner_fn=inner,
            ranges=self.ones,
            reduction_ranges=[self.n],
            reduction_type=f"gpureduce_{combine}",  # type: ignore[arg-type]
            src_dtype=dtype,
            reduction_hint=ir.ReductionHint.INNER,
        )
        result = ir.TensorBox.create(reduction)
        result.realize()
        return result

    def sum(self, element: Callable, dtype: torch.dtype | None = None) -> Any:
        return self.reduced("add", element, dtype)

    def numbers(self, f: Callable, *of: Any, dtype: torch.dtype | None = None) -> Any:
        """A number per row, of other numbers of it."""
        loads = [each.make_loader() for each in of]
        return _made(self.device, lambda i: f(*(load(i) for load in loads)), self.ones, dtype or self.type)

    def result(self, element: Callable, dtype: torch.dtype) -> Any:
        """A tensor of the rows' size: a function of the index, rounded to a dtype."""
        return _made(self.device, element, self.sizes, dtype)


def _reader(x: Any, rank: int, dtype: torch.dtype) -> Callable:
    """A function of an index of that many dims that loads from x, broadcast to them, as a number of a dtype."""
    load, sizes = x.make_loader(), x.get_size()
    kept = [V.graph.sizevars.statically_known_equals(size, 1) for size in sizes]

    def read(index: Sequence[sympy.Expr]) -> Any:
        own = [sympy.S.Zero if one else i for i, one in zip(index[rank - len(sizes) :], kept, strict=True)]
        return ops.to_dtype(load(own), dtype)

    return read


def _made(device: torch.device, element: Callable, sizes: Sequence[sympy.Expr], dtype: torch.dtype) -> Any:
    """A tensor of these sizes, a function of its index, rounded to a dtype."""

    def rounded(index: Sequence[sympy.Expr]) -> Any:
        # In registers Inductor keeps halves in float32: without the first conversion nothing would be rounded.
        return ops.to_dtype(ops.to_dtype(element(index), dtype, use_compute_types=False), dtype)

    return ir.Pointwise.create(device=device, dtype=dtype, inner_fn=rounded, ranges=list(sizes))


def _count(n: Any, dtype: torch.dtype) -> Any:
    """A size as a number, rounded once."""
    if isinstance(n, (int, sympy.Integer)):
        return ops.constant(float(n), dtype)
    return ops.to_dtype(ops.index_expr(n, torch.int64), dtype)


def _values(argument: int) -> Any:
    """What torch knows of an argument of the operator: its fake tensor."""
    return V.graph.current_node.args[argument].meta["val"]


def _results() -> Any:
    """The same of the operator's results."""
    return V.graph.current_node.meta["val"]


def _in_triton(*tensors: Any) -> bool:
    """True if they are on one device, for which Inductor writes Triton."""
    device = tensors[0].get_device()
    same = all(each.get_device() == device for each in tensors)
    return fuses and same and get_current_backend(device.type) == "triton"


def _rows(x: Any, dims: Sequence[int] | int | None, *others: Any, argument: int = 0) -> Rows | None:
    """x, an argument of the operator, as rows along one dim whose elements are neighbours in memory; None where its
    order is no row's. The others are read beside it."""
    tensors = [x, *(other for other in others if other is not None)]
    wide = torch.float64 in (each.get_dtype() for each in tensors)
    if not _in_triton(*tensors) or any(each.get_dtype() not in _FLOATS for each in tensors):
        return None
    sizes, known = x.get_size(), V.graph.sizevars
    if not sizes or not all(known.statically_known_geq(size, 1) for size in sizes):
        return None
    dims = range(len(sizes)) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
    across = [d % len(sizes) for d in dims]
    across = [d for d in across if not known.statically_known_equals(sizes[d], 1)]
    if len(across) != 1 or not known.statically_known_equals(_values(argument).stride(across[0]), 1):
        return None
    rows = Rows(x, across[0], torch.float64 if wide else torch.float32)
    count = known.optimization_hint(sympy.prod(rows.ones), fallback=_FEW)
    return None if known.optimization_hint(rows.n, fallback=0) > _LONG and count < _FEW else rows


def fuses_rows_of(x: torch.Tensor, dim: int) -> bool:
    """Whether :func:`_rows` takes the rows of a fake tensor along a dim; where a compiler traces."""
    if not fuses or get_current_backend(x.device.type) != "triton" or x.dtype not in _FLOATS or x.dim() == 0:
        return False
    n = x.shape[dim]
    if not statically_known_true(x.stride(dim) == 1) or statically_known_true(n == 1):
        return False
    known = all(statically_known_true(size >= 1) for size in x.shape)
    return known and not (_hint(n, 0) > _LONG and _hint(x.numel() // n, _FEW) < _FEW)


def _hint(size: Any, fallback: int) -> int:
    if isinstance(size, torch.SymInt):
        return size.node.hint if size.node.has_hint() else fallback
    return size


def _kept(result: Any, keepdim: bool) -> Any:
    """Numbers of rows with the reduced dims or without them."""
    if keepdim:
        return result
    return lowering.lowerings[torch.ops.aten.view.default](result, list(_result_size()))


def _result_size() -> Sequence[Any]:
    value = _results()
    sizes = (value[0] if isinstance(value, (tuple, list)) else value).size()
    return [each.node.expr if isinstance(each, torch.SymInt) else each for each in sizes]


# --- reductions -------------------------------------------------------------------------------------------------------


def _divided(a: Any, b: Any) -> Any:
    return ops.truediv(a, b)  # correctly rounded: eager_numerics.division_rounding is on (__init__.py)


def _value(x: Any) -> Any:
    return x


def _number(x: Any) -> Any:
    return ops.where(ops.eq(x, x), x, ops.constant(0.0, torch.float32))


def _square(x: Any) -> Any:
    return ops.mul(x, x)


def _cube(x: Any) -> Any:
    return ops.mul(ops.mul(x, x), ops.abs(x))


def _mean(rows: Rows) -> Callable:
    return lambda total: _divided(total, rows.length(rows.type))


def _root(_: Rows) -> Callable:
    return ops.gpureduce_square_root


def _reduction(combine: str, element: Callable, finish: Callable | None = None) -> Callable:
    def lower(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        rows = _rows(x, dim)
        result = _results().dtype
        if rows is None or result not in _FLOATS:
            return None
        if result == torch.float64:
            rows.type = torch.float64
        read = rows.reads(x)
        total = rows.reduced(combine, lambda i: element(read(i)))
        return _kept(rows.numbers(finish(rows) if finish else _value, total, dtype=result), keepdim)

    return lower


_lowers(_gpureduce.sum.default)(_reduction("add", _value))
_lowers(_gpureduce.mean.default)(_reduction("add", _value, _mean))
_lowers(_gpureduce.nansum.default)(_reduction("add", _number))
_lowers(_gpureduce.prod.default)(_reduction("multiply", _value))
_lowers(_gpureduce._norm_1.default)(_reduction("add", ops.abs))
_lowers(_gpureduce._norm_2.default)(_reduction("add", _square, _root))
_lowers(_gpureduce._norm_inf.default)(_reduction("larger", ops.abs))
_lowers(_gpureduce._norm_neg_inf.default)(_reduction("smaller", ops.abs))
_lowers(_gpureduce._powsum_2.default)(_reduction("add", _square))
_lowers(_gpureduce._powsum_3.default)(_reduction("add", _cube))
_lowers(_gpureduce._amax.default)(_reduction("larger", _value))
_lowers(_gpureduce._amin.default)(_reduction("smaller", _value))


@_lowers(_gpureduce.weighted_sum.default)
def _lower_weighted_sum(
    x: Any, weight: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    rows = _rows(x, dim, weight)
    if rows is None or _results().dtype not in _FLOATS or not _is_broadcast(weight, x):
        return None
    if _results().dtype == torch.float64:
        rows.type = torch.float64
    read, w = rows.reads(x), rows.reads(weight)
    total = rows.sum(lambda i: ops.mul(read(i), w(i)))
    return _kept(rows.numbers(_value, total, dtype=_results().dtype), keepdim)


def _is_broadcast(x: Any, like: Any) -> bool:
    """True if x has the size of `like` once it is broadcast, and `like` as it is."""
    sizes, wanted, known = x.get_size(), like.get_size(), V.graph.sizevars
    return len(sizes) <= len(wanted) and all(
        known.statically_known_equals(a, 1) or known.statically_known_equals(a, b)
        for a, b in zip(reversed(sizes), reversed(wanted), strict=False)
    )


def _truth(of_all: bool) -> Callable:
    def lower(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
        if not _in_triton(x) or x.get_dtype().is_complex or not x.get_size():
            return None
        if _results().dtype != torch.bool:  # as of uint8
            return None
        x = lowering.to_dtype(x, torch.bool)
        dims = list(range(len(x.get_size()))) if dim is None or dim == [] else dim
        not_ = lowering.lowerings[torch.ops.aten.logical_not.default]
        found = lowering.reduce_any(not_(x) if of_all else x, dims, keepdim)  # no order shows
        return not_(found) if of_all else found

    return lower


_lowers(_gpureduce._any.default)(_truth(False))
_lowers(_gpureduce._all.default)(_truth(True))


def _moments(rows: Rows, x: Any) -> tuple[Any, Any, Callable]:
    """The sums of a row's differences from its first element and of their squares, and how that element is read."""
    read = _reader(x, len(rows.sizes), torch.float64)

    def first(index: Sequence[sympy.Expr]) -> Any:
        return read([*index[: rows.dim], sympy.S.Zero, *index[rows.dim + 1 :]])

    def difference(index: Sequence[sympy.Expr]) -> Any:
        return ops.sub(read(index), first(index))

    total = rows.sum(difference, torch.float64)
    squares = rows.sum(lambda i: _square(difference(i)), torch.float64)
    return total, squares, first


def _variance(rows: Rows, x: Any, correction: float, root: bool) -> tuple[Any, Any]:
    """The variance and the mean of each row, in float64."""
    total, squares, first = _moments(rows, x)
    loads = total.make_loader(), squares.make_loader()
    wide = torch.float64

    def mean(index: Sequence[sympy.Expr]) -> Any:
        return ops.add(first(index), _divided(loads[0](index), rows.length(wide)))

    def variance(index: Sequence[sympy.Expr]) -> Any:
        s, q = (load(index) for load in loads)
        zero = ops.constant(0.0, wide)
        left = ops.sub(q, ops.mul(s, _divided(s, rows.length(wide))))
        left = ops.where(ops.lt(left, zero), zero, left)
        divisor = ops.sub(rows.length(wide), ops.constant(correction, wide))
        found = _divided(left, ops.where(ops.gt(divisor, zero), divisor, zero))
        return ops.gpureduce_square_root(found) if root else found

    return _made(rows.device, variance, rows.ones, wide), _made(rows.device, mean, rows.ones, wide)


@_lowers(_gpureduce._var_mean.default)
def _lower_var_mean(
    x: Any, dim: Any, correction: float, root: bool, keepdim: bool, *, dtype: torch.dtype | None = None
) -> Any:
    rows = _rows(x, dim)
    if rows is None:
        return None
    result = _results()[0].dtype
    found = _variance(rows, x, correction, root)
    return tuple(_kept(rows.numbers(_value, each, dtype=result), keepdim) for each in found)


def _exponentials(rows: Rows, x: Any) -> tuple[Any, Any, Callable]:
    """A row's largest element m, the sum of e^(x - m), and how e^(x - m) is computed."""
    m = rows.reduced("larger", rows.reads(x))
    exponential = _exponential(rows, x, m)
    return m, rows.sum(exponential), exponential


def _exponential(rows: Rows, x: Any, m: Any) -> Callable:
    read, largest = rows.reads(x), rows.reads(m)
    return lambda i: ops.gpureduce_exponential(ops.sub(read(i), largest(i)))


@_lowers(_gpureduce._exponent_sum.default)
def _lower_exponent_sum(x: Any, largest: Any, dim: Any = None, keepdim: bool = False) -> Any:
    rows = _rows(x, dim, largest)
    if rows is None or not rows.are_numbers(largest):
        return None
    return _kept(rows.sum(_exponential(rows, x, largest)), keepdim)


def _finite(m: Any) -> Any:
    return ops.lt(ops.abs(m), ops.constant(float("inf"), torch.float32))


def _log(total: Any) -> Any:
    return ops.gpureduce_logarithm(ops.to_dtype(total, torch.float64))


@_lowers(_gpureduce._logsumexp.default)
def _lower_logsumexp(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    rows = _rows(x, dim)
    if rows is None or _results().dtype not in _FLOATS:
        return None
    m, total, _ = _exponentials(rows, x)

    def finish(m: Any, total: Any) -> Any:
        wide = ops.to_dtype(m, torch.float64)
        return ops.where(_finite(m), ops.add(wide, _log(total)), wide)

    return _kept(rows.numbers(finish, m, total, dtype=_results().dtype), keepdim)


# --- softmaxes --------------------------------------------------------------------------------------------------------


def _softmax_rows(x: Any, dim: int, *others: Any, argument: int = 0) -> Rows | None:
    rows = _rows(x, dim, *others, argument=argument)
    if rows is not None and _results().dtype == torch.float64:
        rows.type = torch.float64
    return rows


# What is known of a row besides m: 1 / S or log S.
_NUMBERS: dict[str, Callable] = {
    "softmax": lambda s, dtype: _divided(ops.constant(1.0, dtype), s),
    "log_softmax": lambda s, dtype: ops.to_dtype(_log(s), dtype),
}


def _number_of(function: str, dtype: torch.dtype) -> Callable:
    def number(m: Any, total: Any) -> Any:
        return ops.where(_finite(m), _NUMBERS[function](total, dtype), ops.constant(float("nan"), dtype))

    return number


@_lowers(_gpureduce._finish_rows.default)
def _lower_finish_rows(total: Any, other: Any, function: str, length: Any, eps: float, dtype: torch.dtype) -> Any:
    if function not in _NUMBERS or not _in_triton(total, other) or total.get_size() != other.get_size():
        return None
    if {total.get_dtype(), other.get_dtype()} != {dtype}:
        return None
    number, loads, made = _number_of(function, dtype), (other.make_loader(), total.make_loader()), []
    for element in (loads[0], lambda i: number(*(load(i) for load in loads))):
        made.append(_made(total.get_device(), element, total.get_size(), dtype))
    return tuple(made)


@_lowers(_gpureduce.softmax.default)
def _lower_softmax(x: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    rows = _softmax_rows(x, dim)
    if rows is None:
        return None
    m, total, exponential = _exponentials(rows, x)
    number = rows.reads(rows.numbers(_number_of("softmax", rows.type), m, total))
    return rows.result(lambda i: ops.mul(exponential(i), number(i)), _results().dtype)


@_lowers(_gpureduce.log_softmax.default)
def _lower_log_softmax(x: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    rows = _softmax_rows(x, dim)
    if rows is None:
        return None
    m, total, _ = _exponentials(rows, x)
    log = rows.numbers(_number_of("log_softmax", rows.type), m, total)
    read, largest, number = rows.reads(x), rows.reads(m), rows.reads(log)
    return rows.result(lambda i: ops.sub(ops.sub(read(i), largest(i)), number(i)), _results().dtype)


@_lowers(_gpureduce._softmax_backward.default)
def _lower_softmax_backward(grad: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    rows = _softmax_rows(y, dim, grad, argument=1)
    if rows is None:
        return None
    g, read = rows.reads(grad), rows.reads(y)
    total = rows.reads(rows.sum(lambda i: ops.mul(g(i), read(i))))
    return rows.result(lambda i: ops.mul(ops.sub(g(i), total(i)), read(i)), dtype)


@_lowers(_gpureduce._log_softmax_backward.default)
def _lower_log_softmax_backward(grad: Any, y: Any, dim: int, dtype: torch.dtype) -> Any:
    rows = _softmax_rows(y, dim, grad, argument=1)
    if rows is None:
        return None
    g, read = rows.reads(grad), rows.reads(y)
    total = rows.reads(rows.sum(g))
    return rows.result(lambda i: ops.sub(g(i), ops.mul(ops.gpureduce_whole_exponential(read(i)), total(i))), dtype)


# --- norms ------------------------------------------------------------------------------------------------------------


def _inverse_root(rows: Rows, x: Any, eps: float) -> Any:
    """1 / sqrt(x + eps)."""
    root = ops.gpureduce_square_root(ops.add(x, ops.constant(eps, rows.type)))
    return _divided(ops.constant(1.0, rows.type), root)


@_lowers(_gpureduce._rms_norm.default)
def _lower_rms_norm(x: Any, dims: int, weight: Any, eps: float) -> Any:
    rows = _rows(x, -1, weight) if dims == 1 else None
    if rows is None:
        return None
    dtype, read, mean_of = _results()[0].dtype, rows.reads(x), _mean(rows)
    total = rows.sum(lambda i: _square(read(i)))
    r = rows.numbers(lambda s: _inverse_root(rows, mean_of(s), eps), total)
    number, w = rows.reads(r), weight and rows.reads(weight)

    def element(index: Sequence[sympy.Expr]) -> Any:
        y = ops.mul(read(index), number(index))
        return ops.mul(y, w(index)) if w else y

    return rows.result(element, dtype), r


@_lowers(_gpureduce._layer_norm.default)
def _lower_layer_norm(x: Any, dims: int, weight: Any, bias: Any, eps: float) -> Any:
    rows = _rows(x, -1, weight, bias) if dims == 1 else None
    if rows is None:
        return None
    read, mean_of = rows.reads(x), _mean(rows)
    center = rows.numbers(mean_of, rows.sum(read))
    c = rows.reads(center)
    total = rows.sum(lambda i: ops.sub(read(i), c(i)))
    squares = rows.sum(lambda i: _square(ops.sub(read(i), c(i))))

    def factor(total: Any, squares: Any) -> Any:
        left, zero = ops.sub(squares, ops.mul(total, mean_of(total))), ops.constant(0.0, rows.type)
        return _inverse_root(rows, mean_of(ops.where(ops.lt(left, zero), zero, left)), eps)

    mean = rows.numbers(lambda c, s: ops.add(c, mean_of(s)), center, total)
    r = rows.numbers(factor, total, squares)
    m, number = rows.reads(mean), rows.reads(r)
    w, b = weight and rows.reads(weight), bias and rows.reads(bias)

    def element(index: Sequence[sympy.Expr]) -> Any:
        y = ops.mul(ops.sub(read(index), m(index)), number(index))
        y = ops.mul(y, w(index)) if w else y
        return ops.add(y, b(index) if b else ops.constant(0.0, rows.type))  # makes 0.0 of -0.0

    return rows.result(element, _results()[0].dtype), mean, r


def _norm_backward(
    operator: Any, grad: Any, x: Any, r: Any, mean: Any, weight: Any, bias: Any, args: list, mask: list
) -> Any:
    """The gradients of a norm: the input's here, and the weights' by the operator, which adds over all rows."""
    rows = _rows(x, -1, grad, r, mean, weight, bias, argument=1)
    if rows is None or not mask[0] or not rows.are_numbers(r, *([mean] if mean is not None else [])):
        return None
    dtype = _results()[0].dtype
    g, read, number = rows.reads(grad), rows.reads(x), rows.reads(r)
    w, m = weight and rows.reads(weight), mean and rows.reads(mean)

    def weighted(index: Sequence[sympy.Expr]) -> Any:
        return ops.mul(g(index), w(index)) if w else g(index)

    def normed(index: Sequence[sympy.Expr]) -> Any:
        return ops.mul(ops.sub(read(index), m(index)) if m else read(index), number(index))

    def share(total: Any) -> Callable:
        return rows.reads(rows.numbers(lambda s: _divided(s, rows.length(rows.type)), total))

    shift = share(rows.sum(weighted)) if m else None
    part = share(rows.sum(lambda i: ops.mul(weighted(i), normed(i))))

    def element(index: Sequence[sympy.Expr]) -> Any:
        d = ops.sub(weighted(index), shift(index)) if shift else weighted(index)
        return ops.mul(ops.sub(d, ops.mul(normed(index), part(index))), number(index))

    result = rows.result(element, dtype)
    if any(mask[1:]):
        others = _called(operator, [*args, [False, *mask[1:]]], {})
        return result, *others[1:]
    return result, *(None for _ in mask[1:])


@_lowers(_gpureduce._rms_norm_backward.default)
def _lower_rms_norm_backward(grad: Any, x: Any, dims: int, r: Any, weight: Any, eps: float, mask: list) -> Any:
    if dims != 1:
        return None
    args = [grad, x, dims, r, weight, eps]
    return _norm_backward(_gpureduce._rms_norm_backward.default, grad, x, r, None, weight, None, args, mask)


@_lowers(_gpureduce._layer_norm_backward.default)
def _lower_layer_norm_backward(
    grad: Any, x: Any, dims: int, mean: Any, r: Any, weight: Any, bias: Any, eps: float, mask: list
) -> Any:
    if dims != 1:
        return None
    args = [grad, x, dims, mean, r, weight, bias, eps]
    return _norm_backward(_gpureduce._layer_norm_backward.default, grad, x, r, mean, weight, bias, args, mask)


# --- losses -----------------------------------------------------------------------------------------------------------


class Targets:
    """Indices of classes, and which of them are to be ignored."""

    def __init__(self, target: Any, ignore_index: Any):
        self._load, self._ignore_index = target.make_loader(), ignore_index
        self.sizes = list(target.get_size())

    def of(self, index: Sequence[sympy.Expr]) -> tuple[Any, Any]:
        """The class of a row, 0 for one to ignore, and whether it is that."""
        target = ops.to_dtype(self._load(index), torch.int64)
        ignored = ops.eq(target, _integer(self._ignore_index))
        return ops.where(ignored, ops.constant(0, torch.int64), target), ignored

    def reads(self, x: Any, dim: int, classes: Any, dtype: torch.dtype) -> Callable:
        """What x has of each row's class along a dim."""
        load = x.make_loader()

        def read(index: Sequence[sympy.Expr]) -> Any:
            at = ops.indirect_indexing(self.of(index)[0], classes, wrap_neg=False)
            return ops.to_dtype(load([*index[:dim], at, *index[dim:]] if dim >= 0 else [at]), dtype)

        return read

    def counts(self, weight: Any, dtype: torch.dtype) -> Callable:
        """How much each target counts: the weight of its class, or nothing where it is to be ignored."""
        read = weight and self.reads(weight, -1, weight.get_size()[0], dtype)

        def count(index: Sequence[sympy.Expr]) -> Any:
            return _masked(read(index) if read else ops.constant(1.0, dtype), self.of(index)[1], dtype)

        return count


def _integer(value: Any) -> Any:
    if isinstance(value, (int, sympy.Integer)):
        return ops.constant(int(value), torch.int64)
    return ops.index_expr(value, torch.int64)


def _negative(value: Any, dtype: torch.dtype) -> Any:
    return ops.mul(value, ops.constant(-1.0, dtype))  # Triton's minus makes 0.0 of 0.0


def _masked(value: Any, ignored: Any, dtype: torch.dtype) -> Any:
    return ops.where(ignored, ops.constant(0.0, dtype), value)


@_lowers(_gpureduce._log_prob.default)
def _lower_log_prob(x: Any, target: Any, dim: int, ignore_index: Any = -100) -> Any:
    rows = _rows(x, dim)
    if rows is None or not _in_triton(x, target):
        return None
    m, total, _ = _exponentials(rows, x)
    log = rows.numbers(_number_of("log_softmax", rows.type), m, total)
    targets = Targets(target, ignore_index)
    read = targets.reads(x, rows.dim, rows.n, rows.type)
    largest, number = rows.reads(m), rows.reads(log)

    def found(index: Sequence[sympy.Expr]) -> Any:
        own = [*index[: rows.dim], sympy.S.Zero, *index[rows.dim :]]
        return _masked(ops.sub(ops.sub(read(index), largest(own)), number(own)), targets.of(index)[1], rows.type)

    return _made(rows.device, found, targets.sizes, rows.type), m, log


@_lowers(_gpureduce._log_prob_backward.default)
def _lower_log_prob_backward(
    grad: Any, x: Any, target: Any, dim: int, ignore_index: Any, m: Any, log_sum: Any, *of_loss: Any
) -> Any:
    rows = _rows(x, dim, m, log_sum, argument=1)
    if of_loss or rows is None or not _in_triton(x, target, grad) or not rows.are_numbers(m, log_sum):
        return None
    targets, rank = Targets(target, ignore_index), len(rows.sizes)
    given, read = _reader(grad, rank - 1, rows.type), rows.reads(x)
    largest, number = rows.reads(m), rows.reads(log_sum)

    def element(index: Sequence[sympy.Expr]) -> Any:
        row = [*index[: rows.dim], *index[rows.dim + 1 :]]
        at, ignored = targets.of(row)
        g = _masked(given(row), ignored, rows.type)
        own = ops.where(ops.eq(ops.index_expr(index[rows.dim], torch.int64), at), g, ops.constant(0.0, rows.type))
        power = ops.gpureduce_whole_exponential(ops.sub(ops.sub(read(index), largest(index)), number(index)))
        return ops.sub(own, ops.mul(power, g))

    return rows.result(element, x.get_dtype())


def _loss(x: Any, target: Any, weight: Any, *others: Any) -> torch.dtype | None:
    """What a loss of rows along the last dim is computed in; None where it stays a call."""
    tensors = [x, *(each for each in (weight, *others) if each is not None)]
    sizes = x.get_size()
    if not _in_triton(target, *tensors) or len(sizes) != 2 or V.graph.sizevars.statically_known_equals(sizes[1], 0):
        return None
    if any(each.get_dtype() not in _FLOATS for each in tensors):
        return None
    return torch.float64 if torch.float64 in (each.get_dtype() for each in tensors) else torch.float32


@_lowers(_gpureduce._nll_loss.default)
def _lower_nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> Any:
    dtype = _loss(x, target, weight)
    if dtype is None:
        return None
    targets, device, own = Targets(target, ignore_index), x.get_device(), x.get_dtype()
    read, count = targets.reads(x, 1, x.get_size()[1], dtype), targets.counts(weight, dtype)

    def loss(index: Sequence[sympy.Expr]) -> Any:
        found = _negative(read(index), dtype)
        found = ops.mul(found, count(index)) if weight is not None else found
        return _masked(found, targets.of(index)[1], dtype)

    if reduction == 0:
        divisor = _made(device, lambda _: ops.constant(0.0, dtype), [], own)
        return _made(device, loss, targets.sizes, own), divisor
    total, divisor = (_total(_made(device, each, targets.sizes, dtype)) for each in (loss, count))
    loads = total.make_loader(), divisor.make_loader()
    result = loads[0]
    if reduction == 1:
        result = lambda i: _divided(loads[0](i), loads[1](i))  # noqa: E731
    return _made(device, result, [], own), _made(device, loads[1], [], own)


def _total(x: Any) -> Any:
    """The sum of a vector, by the operator: one number of many elements takes more than one program."""
    x.realize()
    return lowering.fallback_handler(_gpureduce.sum.default, add_to_fallback_set=False)(x)


@_lowers(_gpureduce._nll_loss_backward.default)
def _lower_nll_loss_backward(
    grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any, total_weight: Any
) -> Any:
    dtype = _loss(x, target, weight, grad, *([total_weight] if reduction == 1 else []))
    if dtype is None:
        return None
    targets, own = Targets(target, ignore_index), x.get_dtype()
    given, count = _reader(grad, 1, dtype), targets.counts(weight, dtype)
    divisor = _reader(total_weight, 1, dtype) if reduction == 1 else None

    def element(index: Sequence[sympy.Expr]) -> Any:
        row = index[:1]
        at, ignored = targets.of(row)
        share = _divided(given(row), divisor(row)) if divisor else given(row)
        share = ops.mul(share, count(row)) if weight is not None else share
        share = _masked(_negative(share, dtype), ignored, dtype)
        return ops.where(ops.eq(ops.index_expr(index[1], torch.int64), at), share, ops.constant(0.0, dtype))

    return _made(x.get_device(), element, x.get_size(), own)


# --- formulas of gradients --------------------------------------------------------------------------------------------


class Formulas:
    """csrc/core/numeric/apply.h: an element x, the numbers g, r and m of its output, and a number of the call."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def _is(self, value: float) -> Any:
        return ops.constant(value, self.dtype)

    def _where(self, condition: Any, value: Any) -> Any:
        """0 where a condition holds."""
        return ops.where(condition, self._is(0.0), value)

    def _sign(self, x: Any) -> Any:
        zero = self._is(0.0)
        return ops.where(ops.gt(x, zero), self._is(1.0), ops.where(ops.lt(x, zero), self._is(-1.0), zero))

    def _magnitude(self, x: Any) -> Any:
        return ops.where(ops.lt(x, self._is(0.0)), ops.neg(x), x)

    def quotient(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return _divided(x, number)

    def kept(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return self._where(ops.ne(x, x), g)

    def product(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.mul(x, g)

    def exponent(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        none = ops.logical_or(ops.eq(r, self._is(float("-inf"))), ops.eq(m, self._is(0.0)))
        return self._where(none, ops.mul(g, ops.gpureduce_whole_exponential(ops.sub(x, r))))

    def equal(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return _divided(self._where(ops.logical_not(ops.eq(x, r)), g), m)

    def share(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.where(ops.eq(x, r), g, ops.where(ops.ne(r, r), r, self._is(0.0)))

    def sign(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.mul(self._sign(x), g)

    def extreme(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        found = ops.logical_or(ops.eq(self._magnitude(x), r), ops.ne(x, x))
        return self._where(ops.logical_not(found), ops.mul(self._sign(x), _divided(g, m)))

    def ratio(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return self._where(ops.eq(r, self._is(0.0)), ops.mul(_divided(x, r), g))

    def square(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.mul(ops.mul(x, self._magnitude(x)), g)

    def ratio_square(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        ratio = _divided(x, r)
        return self._where(ops.eq(r, self._is(0.0)), ops.mul(ops.mul(ratio, self._magnitude(ratio)), g))

    def deviation(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.add(ops.mul(ops.sub(x, r), g), m)

    def added(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.where(ops.eq(r, self._is(0.0)), x, ops.add(x, ops.mul(g, m)))

    def divided(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return _divided(x, r)

    def inverse_root(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return _divided(self._is(1.0), ops.gpureduce_square_root(ops.add(x, g)))

    def entropy(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return self._where(ops.eq(x, self._is(float("-inf"))), ops.mul(ops.gpureduce_whole_exponential(x), x))

    def softmax(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return self._where(ops.eq(m, self._is(0.0)), ops.mul(ops.gpureduce_exponential(ops.sub(x, g)), r))

    def log_softmax(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.sub(ops.sub(x, g), r)

    def softmax_backward(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return self._where(ops.eq(m, self._is(0.0)), ops.mul(ops.sub(g, r), x))

    def log_softmax_backward(self, x: Any, g: Any, r: Any, m: Any, number: Any) -> Any:
        return ops.sub(g, ops.mul(ops.gpureduce_whole_exponential(x), r))


@_lowers(_gpureduce._apply.default)
def _lower_apply(
    x: Any, g: Any, r: Any, m: Any, formula: str, count: Any = 1, correction: float = 0.0, dtype: Any = None
) -> Any:
    given = [each for each in (x, g, r, m) if each is not None]
    types = [each.get_dtype() for each in given]
    if not _in_triton(*given) or any(each.is_complex or each.itemsize == 1 for each in types):
        return None
    if not hasattr(Formulas, formula) or not all(_is_broadcast(each, x) for each in given):
        return None
    wide = formula == "deviation" or x.get_dtype() == torch.float64
    wide = wide or (formula != "exponent" and g is not None and g.get_dtype() == torch.float64)
    computed = torch.float64 if wide else torch.float32
    rank = len(x.get_size())
    read = [each and _reader(each, rank, computed) for each in (x, g, r, m)]
    f = getattr(Formulas(computed), formula)

    def element(index: Sequence[sympy.Expr]) -> Any:
        missing = 0.0 if formula == "deviation" else 1.0
        numbers = [
            each(index) if each else ops.constant(missing if place == 3 else 1.0, computed)
            for place, each in enumerate(read)
        ]
        number = ops.sub(_count(count, torch.float64), ops.constant(correction, torch.float64))
        number = ops.maximum(number, ops.constant(0.0, torch.float64))
        return f(*numbers, ops.to_dtype(number, computed))

    return _made(x.get_device(), element, x.get_size(), dtype)
