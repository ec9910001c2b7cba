"""The table of operations: the tests of a property run for every row, so that a new operation has them all by one.

A row is called as its operator is, but for its inputs: they are one argument, a tensor, or a tuple of tensors.
`expected` is the model's result, `torch` is what torch has for it, and `inputs` makes what a call takes. Rows of one
tensor stand in support.py.

Tests of a property: test_bits.py, test_batch_invariance.py, test_layouts.py, test_calls.py, test_autograd.py,
test_meta.py, test_vmap.py, test_autocast.py. What one family has alone stands in a file of its own.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

import model
import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    FAMILY,
    FLOATING,
    INTEGER,
    MEAN,
    NORMS,
    OPERATIONS,
    POWSUMS,
    SUM,
    Operation,
    assert_same_bits,
    bytes_of,
    data,
    dtype_of,
    kin,
    name_of,
    numpy_of,
    reduced_dims,
    walked,
)


def moment(x, what, dim, correction=1, keepdim=False):
    """The model's "var", "std" or "mean" as stored elements. "mean" is the mean that var_mean returns."""
    view = bytes_of(x), name_of(x.dtype), tuple(x.shape), x.stride(), x.storage_offset(), reduced_dims(x.dim(), dim)
    return model.reduce(*view, keepdim=keepdim, negate=x.is_neg(), kind=(what, correction))


@dataclasses.dataclass(frozen=True)
class Variance(Operation):
    """var, std, or var_mean, whose results are two; of one correction."""

    correction: float = 1
    has_dtype = False

    def __call__(self, x, dim=None, keepdim=False, dtype=None, **named):
        return self.operator(x, dim, **{"correction": self.correction, "keepdim": keepdim, **named})

    def arguments(self, x, dim=None, keepdim=False):
        return (x, dim), dict(correction=self.correction, keepdim=keepdim)

    @property
    def has_out(self):
        return self.name != "var_mean"

    @property
    def schema(self):
        return self.operator

    @property
    def empty(self):
        return math.nan

    def of_correction(self, function):
        def reduce(x, dim=None, keepdim=False, dtype=None, **named):
            return function(x, dim, **{"correction": self.correction, "keepdim": keepdim, **named})

        return reduce

    @property
    def function(self):
        return self.of_correction(getattr(torch_reduce, self.name))

    @property
    def forms(self):
        return self, self.function

    @property
    def torch(self):
        return self.of_correction(getattr(torch, self.name))

    def takes(self, name, dtype=None):
        return name in FLOATING and dtype is None

    def expected(self, x, dim=None, keepdim=False, dtype=None, correction=None):
        """Of var_mean a tuple."""
        correction = self.correction if correction is None else correction
        found = tuple(moment(x, what, dim, correction, keepdim) for what in self.name.split("_"))
        return found if len(found) > 1 else found[0]

    def check(self, x, dim=None, keepdim=False, dtype=None, what="", **named):
        result = self(x, dim, keepdim, **named)
        what = what or f"for {tuple(x.shape)} {x.stride()} {x.dtype}, {dim=}, {named}"
        assert_same_bits(result, self.expected(x, dim, keepdim, **named), what)
        return result


@dataclasses.dataclass(frozen=True)
class Index(Operation):
    """argmax or argmin: the index of the first largest or smallest element, in logical order."""

    has_dtype, has_gradient, empty = False, False, None

    def __call__(self, x, dim=None, keepdim=False, dtype=None, **named):
        return self.operator(x, dim, keepdim, **named)

    def aten(self, input, *args, **kwargs):
        raise NotImplementedError("aten's takes one dim")

    @property
    def torch(self):
        """torch's of several dims, and of dtypes that it does not take: in wider ones of the same order."""
        theirs = getattr(torch, self.name)

        def reduce(x, dim=None, keepdim=False):
            dims = reduced_dims(x.dim(), dim)
            if x.dtype == torch.uint64:
                x = x.view(torch.int64) ^ torch.iinfo(torch.int64).min
            elif x.dtype in (torch.bool, torch.uint16, torch.uint32):
                x = x.long()
            elif "float8" in str(x.dtype):
                x = x.float()
            kept = [d for d in range(x.dim()) if d not in dims]
            rows = x.permute(*kept, *dims).reshape(*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims))
            found = theirs(rows, -1)
            for d in dims if keepdim else ():
                found = found.unsqueeze(d)
            return found

        return reduce

    def result(self, name, dtype=None):
        return "int64"

    def takes(self, name, dtype=None):
        return name not in COMPLEX and dtype is None

    def elements(self, shape, name, seed=0, device="cpu"):
        """Few different ones, so that many are equal."""
        few = data(shape, "int8", seed=seed, device=device).int() // 8
        return (few % 2 if name == "bool" else few.abs() if name.startswith("u") else few).to(dtype_of(name))

    def expected(self, x, dim=None, keepdim=False, dtype=None):
        values = model.decode(numpy_of(x)[..., 0], name_of(x.dtype))
        values = -values if x.is_neg() else values
        dims = reduced_dims(x.dim(), dim)
        kept = [d for d in range(x.dim()) if d not in dims]
        rows = values.transpose(*kept, *dims).reshape(*(x.shape[d] for d in kept), math.prod(x.shape[d] for d in dims))
        found = getattr(np, self.name)(rows, -1)  # NaN comes first, then the first of equal ones
        return np.asarray(found, np.int64).reshape(
            *(1 if d in dims else n for d, n in enumerate(x.shape) if keepdim or d not in dims), 1
        )

    def check(self, x, dim=None, keepdim=False, dtype=None, what=""):
        result = self(x, dim, keepdim)
        what = what or f"for {self} of {tuple(x.shape)} {x.stride()} {x.dtype}, {dim=}"
        assert_same_bits(result, self.expected(x, dim, keepdim), what)
        return result


@dataclasses.dataclass(frozen=True)
class Weighted(Operation):
    """weighted_sum, of a pair."""

    def __call__(self, pair, dim=None, keepdim=False, dtype=None, **named):
        dim = [dim] if isinstance(dim, int) else dim
        return self.operator(*pair, dim, keepdim, dtype=dtype, **named)

    def arguments(self, pair, dim=None, keepdim=False):
        return (*pair, dim, keepdim), {}

    @property
    def function(self):
        return lambda pair, *args, **named: torch_reduce.weighted_sum(*pair, *args, **named)

    @property
    def forms(self):
        return self, self.function

    @property
    def torch(self):
        def reduce(pair, dim=None, keepdim=False, dtype=None):
            dtype = dtype or getattr(torch, self.result(name_of(torch.promote_types(pair[0].dtype, pair[1].dtype))))
            x, w = (t.to(torch.float64) if t.is_floating_point() else t.long() for t in pair)
            return torch.sum(x * w, dim, keepdim).to(dtype)

        return reduce

    def takes(self, name, dtype=None):
        return name not in COMPLEX and (dtype is None or name_of(dtype) not in COMPLEX)

    def around(self, x, dim=None):
        """Weights of every element, as they come."""
        return x, data(x.shape, name_of(x.dtype), seed=97, device=x.device)

    @staticmethod
    def result_name(first, second, dtype=None):
        """The result's dtype: asked for, or a sum's of elements of the promoted one."""
        return name_of(dtype) if dtype else model.natural_result(name_of(torch.promote_types(first, second)))

    def expected(self, pair, dim=None, keepdim=False, dtype=None):
        """The contract's result as stored elements (..., 1)."""
        x, w = pair
        names = name_of(x.dtype), name_of(w.dtype)
        target = self.result_name(x.dtype, w.dtype, dtype)
        common = np.broadcast_shapes(tuple(x.shape), tuple(w.shape))
        kind = np.float64 if "float64" in (*names, target) else np.float32
        if names[0] in INTEGER and names[1] in INTEGER:
            kind = np.int64 if target in INTEGER else np.float64
        factors = []
        for tensor, name in zip((x, w), names, strict=True):
            values = model.decode(numpy_of(tensor)[..., 0], name)
            factors.append(np.broadcast_to((-values if tensor.is_neg() else values).astype(kind), common))
        with np.errstate(all="ignore"):
            products = factors[0] * factors[1]
        # In the order that the strides of the first factor give, expanded to the common shape.
        strides = [0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
        strides = [0] * (len(common) - x.dim()) + strides
        dims = reduced_dims(len(common), dim)
        order = model.element_order(common, strides, dims)
        kept = [d for d, n in enumerate(common) if d not in dims and n != 1]
        units = [d for d, n in enumerate(common) if n == 1]
        rows = products.transpose(kept + order + units)
        rows = rows.reshape(math.prod(common[d] for d in kept), math.prod(common[d] for d in order))
        if target == "bool":
            rows = (rows != 0).astype(np.int64)
        elif target in INTEGER and rows.dtype != np.int64:
            rows = model.to_integer(rows)
        stored = model.results([model.ordered_sum(rows)], target)
        shape = [1 if d in dims else n for d, n in enumerate(common) if keepdim or d not in dims]
        return stored.reshape(*shape, 1)

    def check(self, pair, dim=None, keepdim=False, dtype=None, what=""):
        result = self(pair, dim, keepdim, dtype=dtype)
        assert result.device == pair[0].device and result.is_contiguous()
        described = [f"{tuple(t.shape)} {t.stride()} {t.dtype}" for t in pair]
        assert_same_bits(result, self.expected(pair, dim, keepdim, dtype), what or f"for {described}, {dim=}, {dtype=}")
        return result


def ends(lengths, first=0, dtype=torch.int64, device="cpu"):
    """The offsets of segments of these lengths."""
    return torch.tensor([first, *(first + np.cumsum(lengths))], dtype=dtype, device=device)


@dataclasses.dataclass(frozen=True)
class Segments(Operation):
    """An operation over segments, of data and offsets, over the first or the last dim; a result has one a segment."""

    whole: Operation = SUM  # what each segment's elements go through

    @property
    def has_dtype(self):
        return self.whole.has_dtype

    @property
    def schema(self):
        return self.operator if self.has_dtype else getattr(torch.ops.gpureduce, f"_{self.name}")

    @property
    def model(self):
        return self.whole.model

    @property
    def empty(self):
        return {"amax": -math.inf, "amin": math.inf}.get(self.whole.name, self.whole.empty)

    def result(self, name, dtype=None):
        return self.whole.result(name, dtype)

    def takes(self, name, dtype=None):
        return self.whole.takes(name, dtype)

    def elements(self, shape, name, seed=0, device="cpu"):
        return self.whole.elements(shape, name, seed, device)

    @property
    def function(self):
        function = getattr(torch_reduce, self.name)
        return lambda packed, dim=0, keepdim=False, **named: function(*packed, _one(dim), **named)

    def __call__(self, packed, dim=0, keepdim=False, **named):
        if not self.has_dtype and named.get("dtype", ...) is None:
            del named["dtype"]
        return self.operator(*packed, _one(dim), **named)

    @property
    def forms(self):
        return self, self.function

    @property
    def torch(self):
        def whole(x, dim, **named):
            if x.shape[dim] == 0 and math.isinf(self.empty):  # torch's are an error, or have NaN as derivatives
                kept = [n for d, n in enumerate(x.shape) if d != dim % x.dim()]
                result = self.result(name_of(x.dtype))
                return x.new_full(kept, model.bounds(result)[0 if self.empty < 0 else 1].item(), dtype=dtype_of(result))
            return self.whole.torch(x, dim, **named)

        def reduce(packed, dim=0, keepdim=False, **named):
            (x, offsets), dim = packed, _one(dim)
            pairs = itertools.pairwise(offsets.tolist())
            return torch.stack([whole(x.narrow(dim, b, e - b), dim, **named) for b, e in pairs], dim)

        return reduce

    def arguments(self, packed, dim=0, keepdim=False):
        return (*packed, _one(dim)), {}

    def around(self, x, dim=None):
        """Segments of some lengths, one of them empty, and gaps at the ends."""
        size = x.shape[0 if dim is None else _one(dim)]
        places = [size // 9, size // 4, size // 4, size // 3, size - size // 8]
        return x, torch.tensor(places, device=x.device)

    def has(self, x, dim=None, keepdim=False):
        one = isinstance(dim, int) or (isinstance(dim, (list, tuple)) and len(dim) == 1)
        return one and not keepdim and x.dim() > 0 and _one(dim) % x.dim() in (0, x.dim() - 1)

    def expected(self, packed, dim=0, keepdim=False, dtype=None):
        """The model's result of each segment on its own, as stored elements."""
        x, offsets = packed
        name, dim = name_of(x.dtype), _one(dim) % x.dim()
        target = dtype and name_of(dtype)
        kept = [n for d, n in enumerate(x.shape) if d != dim]
        stored, parts = model.STORAGE[target or self.result(name)]
        result = np.empty((len(offsets) - 1, *kept, parts), stored)
        begins, lengths = offsets[:-1].numpy(force=True), offsets.diff().numpy(force=True)
        elements = np.moveaxis(numpy_of(x), dim, 0)
        for length in np.unique(lengths):  # segments of one length are outputs of one reduction
            mine = np.flatnonzero(lengths == length)
            rows = np.ascontiguousarray(elements[begins[mine, None] + np.arange(length)])
            shape = rows.shape[:-1]
            strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
            view = rows.view(np.uint8).reshape(-1), name, shape, strides, 0, [1]
            result[mine] = model.reduce(*view, target, False, x.is_neg(), x.is_conj(), **self.model)
        return np.moveaxis(result, 0, dim)

    def check(self, packed, dim=0, keepdim=False, dtype=None, what=""):
        result, (x, _) = self(packed, dim, dtype=dtype), packed
        assert result.device == x.device and result.is_contiguous()
        what = (
            what or f"for {self} of shape {tuple(x.shape)}, strides {x.stride()}, {x.dtype}, dim={dim}, dtype={dtype}"
        )
        assert_same_bits(result, self.expected(packed, dim, dtype=dtype), what)
        return result


def _one(dim):
    """The dim of a list of one."""
    return dim if isinstance(dim, int) else dim[0]


VARIANCES = [Variance("var", ("", "")), Variance("std", ("", ""), correction=0), Variance("var_mean", ("", ""))]
WEIGHTED = Weighted("weighted_sum", ("", ""))
INDICES = [Index("argmax", ("", "")), Index("argmin", ("", ""))]
SEGMENTS = [Segments("segment_sum", ("", "")), Segments("segment_mean", ("", ""), divides=True, whole=MEAN)]
SEGMENTS += [Segments(f"segment_{op}", ("", ""), whole=op) for op in kin("prod", "amax", "amin", "logsumexp")]

CASES = [*OPERATIONS, *NORMS, *POWSUMS, *FAMILY, *VARIANCES, *INDICES, WEIGHTED, *SEGMENTS]
every_case = pytest.mark.parametrize("op", CASES, ids=str)


def taken(*names, cases=CASES):
    """The argument `op` with each dtype `name` of these that it takes; all of a dtype one after another."""
    pairs = [(op, name) for name in names for op in cases if op.takes(name)]
    return pytest.mark.parametrize(("op", "name"), pairs, ids=str)


def walks(*names, cases=CASES):
    """`taken`, but one test of an operation walks the dtypes."""
    each = pytest.mark.parametrize("op", [op for op in cases if any(map(op.takes, names))], ids=str)
    return lambda test: each(walked("name", lambda op, **_: filter(op.takes, names))(test))


def rotated(items, k, of=3):
    """Every third of the items, or every `of`-th: other ones for each k.

    With place(op, name) as k each operation meets all items, and so does each dtype, but a pair of them meets a third.
    """
    return list(items)[k % of :: of]


def place(op, name):
    """The sum of the places of an operation and a dtype among all."""
    return CASES.index(op) + DTYPES.index(name)


def tensors(x):
    """Inputs or results as a list."""
    return list(x) if isinstance(x, tuple) else [x]


def floats(x):
    """Those of inputs or results that may have a gradient."""
    return [t for t in tensors(x) if t.is_floating_point() or t.is_complex()]


def leaves(op, x):
    """Copies of inputs, of which those that may have a gradient require one, if the operation has any."""
    return tree_map(lambda t: t.detach().clone().requires_grad_(op.has_gradient and bool(floats(t))), x)


def gradients(results, inputs, factor=2.0):
    """Those of the inputs that require one, for incoming gradients that are all this number; none where none is."""
    ours = [y for y in tensors(results) if y.requires_grad]
    if not ours:
        return ()
    given = [torch.full_like(y, factor) for y in ours]
    return torch.autograd.grad(ours, [t for t in tensors(inputs) if t.requires_grad], given)


def taken_by_all(*names, others=(), cases=CASES):
    """`taken` of these dtypes by every operation, and of others by sum and mean, whose kernels the others share."""
    pairs = [(op, name) for name in names for op in cases if op.takes(name)]
    pairs += [(op, name) for name in others if name not in names for op in OPERATIONS if op.takes(name)]
    return pytest.mark.parametrize(("op", "name"), pairs, ids=str)
