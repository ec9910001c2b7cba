"""What the tests share: dtypes, data that shows a changed order, the model applied to a tensor, and bit comparison."""

import collections
import dataclasses
import functools
import importlib.util
import inspect
import math
import os
import subprocess
import sys
import threading
import types
import unittest
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import model
import torch_reduce

DTYPES = model.DTYPES
FLOATING, INTEGER, COMPLEX = model.FLOATING, model.INTEGER, model.COMPLEX


def dtype_of(name):
    """The torch dtype of a name."""
    return getattr(torch, name)


def name_of(dtype):
    """The name of a torch dtype."""
    return str(dtype).removeprefix("torch.")


# --- the operations ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Operation:
    """A row of csrc/core/operation.h, as the tests see it. Called, it is the operator."""

    name: str
    overloads: tuple[str, str]  # aten's of the same arguments, without and with out=
    divides: bool = False

    def __call__(self, *args, **kwargs):
        return self.operator(*args, **kwargs)

    def __str__(self):
        return self.name

    @property
    def operator(self):
        return getattr(torch.ops.gpureduce, self.name)

    @property
    def function(self):
        return getattr(torch_reduce, self.name)

    @property
    def forms(self):
        """The ways to call it: the same in all but documentation."""
        return self.operator, self.function

    @property
    def torch(self):
        """torch's own: the reference of everything but the bits."""
        return getattr(torch, self.name)

    def aten(self, input, *args, **kwargs):
        """torch's own, called as an operator."""
        if not args:
            kwargs.setdefault("dim", None)
        return getattr(getattr(torch.ops.aten, self.name), self.overloads["out" in kwargs])(input, *args, **kwargs)

    def expected(self, *args, **kwargs):
        return expected(*args, **kwargs, operation=self)

    def check(self, *args, **kwargs):
        return check(*args, **kwargs, operation=self)

    @property
    def model(self):
        """What model.reduce needs to know of it."""
        return dict(mean=self.divides)

    def result(self, name, dtype=None):
        """The name of the dtype of a result."""
        return name_of(dtype) if dtype else model.natural_result(name)

    def takes(self, name, dtype=None):
        """Whether an input of that dtype, with dtype=, is no error: quotients of integers need one, and are none."""
        return not self.divides or (name_of(dtype) if dtype else name) not in INTEGER

    def targets(self, name, *targets):
        """The targets that it takes as dtype= for an input of this dtype, as dtypes; None stands for no dtype=."""
        return [dtype for dtype in (t and dtype_of(t) for t in targets) if self.takes(name, dtype)]

    # What tests/table.py's table asks of a row, besides.

    has_out, has_dtype, has_gradient = True, True, True

    @property
    def schema(self):
        """The operator with the arguments of the dispatcher's own; that of the documented name may have fewer."""
        return self.operator

    @property
    def empty(self):
        """The result of no elements; None where that is an error."""
        return math.nan if self.divides else 0

    def wide(self, name):
        """The dtype= by which the accumulator of such elements is seen as it is; None where it is seen anyway."""
        if name in INTEGER or model.PART.get(name, name) in ("float32", "float64"):
            return None
        return self.targets(name, "complex64" if name in COMPLEX else "float32", None)[0]

    def around(self, x, dim=None):
        """The inputs of a call over `dim` of which this tensor is the first."""
        return x

    def elements(self, shape, name, seed=0, device="cpu"):
        """A tensor whose results show something."""
        return data(shape, name, seed=seed, device=device)

    def inputs(self, shape, name, seed=0, device="cpu", dim=None):
        """What a call over `dim` of a tensor of that shape takes."""
        return self.around(self.elements(shape, name, seed, device), dim)

    def arguments(self, x, dim=None, keepdim=False):
        """Those of the operator, by position and by name."""
        return (x, dim, keepdim), {}

    def has(self, x, dim=None, keepdim=False):
        """Whether there is such a call: what has no result for no elements refuses them."""
        return self.empty is not None or all(x.shape[d] for d in reduced_dims(x.dim(), dim))

    def check_view(self, x, dim=None, keepdim=False, dtype=None, what=""):
        """The model's bits of a call on inputs of which this view is the first, if there is such a call."""
        if self.has(x, dim, keepdim):
            return self.check(self.around(x, dim), dim, keepdim, dtype=dtype, what=what)
        return None


@dataclasses.dataclass(frozen=True)
class Norm(Operation):
    """A norm of one power, which the functions of torch and ours take as an argument; or its sum of powers."""

    power: float = 2
    rooted: bool = True

    @property
    def function(self):
        return self.of_power(torch_reduce.vector_norm if self.rooted else torch_reduce.powsum)

    @property
    def torch(self):
        norm, power = self.of_power(torch.linalg.vector_norm), self.power
        return norm if self.rooted else lambda *args, **named: norm(*args, **named) ** power

    def aten(self, input, *args, **kwargs):
        if not args:
            kwargs.setdefault("dim", None)
        return getattr(torch.ops.aten.linalg_vector_norm, self.overloads["out" in kwargs])(
            input, self.power, *args, **kwargs
        )

    def of_power(self, function):
        """That function of any power, for this one."""
        power = self.power

        def reduce(*args, **kwargs):
            return function(args[0], power, *args[1:], **kwargs) if args else function(ord=power, **kwargs)

        return reduce

    @property
    def model(self):
        return dict(power=self.power, rooted=self.rooted)

    @property
    def has_gradient(self):
        return self.power != 0

    @property
    def empty(self):
        return None if math.isinf(self.power) else 0

    def result(self, name, dtype=None):
        asked = name_of(dtype) if dtype else name
        return model.PART.get(asked, asked) if dtype else model.natural_norm(name)

    def takes(self, name, dtype=None):
        """Floating and complex inputs, with a dtype of the same kind that holds all of their numbers."""
        if name in INTEGER or dtype is None:
            return name not in INTEGER
        own = dtype_of(name)
        if own.is_complex != dtype.is_complex or name_of(dtype) in INTEGER:
            return False
        if "float8" in name + name_of(dtype):
            return own == dtype or "float8" not in name_of(dtype)
        return torch.promote_types(own, dtype) == dtype


@dataclasses.dataclass(frozen=True)
class Kin(Operation):
    """One of the family: a product, an extremum, a count, a logarithm, a sum without NaN.

    typing: as in csrc/core/operation.h.
    empty: the result of no elements; None where that is an error.
    reference: torch's function of (input, dims, keepdim), where torch has none of this name. It is pickled for ranks.
    """

    typing: str = "real"
    empty: float | None = 0
    has_gradient: bool = True
    reference: Callable | None = None

    @property
    def has_dtype(self):
        return self.typing in ("sum", "real")

    @property
    def torch(self):
        """With the dims of None and (), which some of torch's functions lack."""
        theirs, of_nothing = self.reference or getattr(torch, self.name), self.name in ("any", "all")

        def reduce(x, dim=None, keepdim=False, **named):
            nothing = of_nothing and isinstance(dim, (tuple, list)) and not dim
            return theirs(x, () if nothing else reduced_dims(x.dim(), dim), keepdim, **named)

        return reduce

    @property
    def schema(self):
        return self.operator if self.has_dtype else getattr(torch.ops.gpureduce, f"_{self.name}")

    def elements(self, shape, name, seed=0, device="cpu"):
        """Factors near 1, exponents near another, as many zeros as make a count."""
        x = data(shape, name, seed=seed, device=device)
        if self.name == "logsumexp" and name in FLOATING and "float8" not in name:
            return (data(shape, "int16", seed=seed, device=device).double() / 2500).to(x.dtype)
        if self.name == "prod" and name not in INTEGER:
            bits = data(shape, "int8", seed=seed, device=device)
            return (1 + bits.double() / 4096).to(x.dtype)  # those of thousands overflow nothing
        if self.name == "nansum" and name not in INTEGER:
            dice = data(shape, "int8", seed=seed + 1, device=device)
            return x.double().masked_fill(dice > 100, math.nan).to(x.dtype)
        if self.typing in ("truth", "count") and name not in UNMULTIPLIED:
            dice = data(shape, "int8", seed=seed + 1, device=device)
            return x * (dice > 0).to(x.dtype)
        return x

    def __call__(self, *args, **kwargs):
        if not self.has_dtype and kwargs.get("dtype", ...) is None:
            del kwargs["dtype"]
        return self.operator(*args, **kwargs)

    def aten(self, input, *args, **kwargs):
        raise NotImplementedError("aten's have other arguments")

    @property
    def model(self):
        return dict(kind=self.name)

    def result(self, name, dtype=None):
        return name_of(dtype) if dtype else model.natural_family(name, self.name)

    def takes(self, name, dtype=None):
        """All but counts are of real numbers; results that are real are floating where their elements are."""
        if dtype is not None and (not self.has_dtype or name_of(dtype) in COMPLEX):
            return False
        if dtype is not None and self.typing == "real" and name not in INTEGER and name_of(dtype) in INTEGER:
            return False
        return name not in COMPLEX or self.typing in ("truth", "count")


# The dtypes that torch does not multiply everywhere.
UNMULTIPLIED = ("float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64", "complex32", "bool")

SUM = Operation("sum", ("dim_IntList", "IntList_out"))
MEAN = Operation("mean", ("dim", "out"), divides=True)
OPERATIONS = [SUM, MEAN]

POWERS = {"0": 0, "1": 1, "2": 2, "3": 3, "inf": float("inf"), "neg_inf": -float("inf")}


@functools.cache
def norm(name):
    """The norm of a power, by its name in POWERS."""
    return Norm(f"_norm_{name}", ("default", "out"), power=POWERS[name])


@functools.cache
def powsum(name):
    """The sum of powers."""
    return Norm(f"_powsum_{name}", ("default", "out"), power=POWERS[name], rooted=False)


NORM = norm("2")
NORMS = [norm(name) for name in POWERS]
POWSUMS = [powsum("2"), powsum("3")]


def products(x, dims, keepdim, **named):
    """torch's of several dims."""
    for d in sorted((d % x.dim() for d in dims), reverse=True):
        x = torch.prod(x, d, keepdim, **named)
    return x


def counts(x, dims, keepdim):
    """torch's, which takes no keepdim."""
    found = torch.count_nonzero(x, dims)
    for d in sorted(d % x.dim() for d in dims) if keepdim else ():
        found = found.unsqueeze(d)
    return found


FAMILY = [
    Kin("prod", ("", ""), typing="sum", empty=1, reference=products),
    Kin("amax", ("", ""), typing="same", empty=None),
    Kin("amin", ("", ""), typing="same", empty=None),
    Kin("any", ("", ""), typing="truth", has_gradient=False),
    Kin("all", ("", ""), typing="truth", empty=1, has_gradient=False),
    Kin("count_nonzero", ("", ""), typing="count", has_gradient=False, reference=counts),
    Kin("logsumexp", ("", ""), typing="log", empty=-math.inf),
    Kin("nansum", ("", "")),
]


def kin(*names):
    """Operations of the family, by name."""
    return [next(op for op in FAMILY if op.name == name) for name in names]


# The norms share the sum's way through everything, so that in tests of all operations one of them stands for them.
EVERY = [*OPERATIONS, NORM]
every_operation = pytest.mark.parametrize("op", EVERY, ids=str)


def taken(*names, operations=OPERATIONS):
    """The operations with those of the dtypes that each takes as they are, for pytest.mark.parametrize."""
    return [(op, name) for op in operations for name in names if op.takes(name)]


# --- tensors <-> stored bytes, without torch's arithmetic -------------------------------------------------------------


def bytes_of(tensor):
    """All bytes of a tensor's storage, as a NumPy array."""
    storage = tensor.untyped_storage()
    storage = storage if tensor.device.type == "cpu" else storage.cpu()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def numpy_of(tensor):
    """A tensor's elements as stored, shape (..., parts); lazy conjugation and negation are not applied."""
    return model.strided(
        bytes_of(tensor), name_of(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    )


def tensor_of(stored, name, device="cpu"):
    """Stored elements (..., parts) -> a contiguous tensor."""
    flat = torch.from_numpy(np.ascontiguousarray(stored).view(np.uint8).reshape(-1).copy())
    shape = stored.shape[:-1]
    if 0 in shape:
        return torch.empty(shape, dtype=dtype_of(name), device=device)
    return flat.view(dtype_of(name)).reshape(shape).to(device)


# --- data -------------------------------------------------------------------------------------------------------------

# Rows, columns, all, and mixed dims, each with the dims that are reduced: around the ends of vectors, lanes and chunks.
SHAPES = [
    ((7,), None),
    ((3, 1000), 1),
    ((1000, 3), 0),
    ((5, 4097), 1),
    ((9000, 33), 0),
    ((300, 3), 1),
    ((2000, 100), 1),
]
SHAPES += [((2, 20_001), 1), ((4, 3, 11, 5), (0, 2, 3)), ((513, 64), 0), ((1, 5), 0), ((40, 5), (0, 1)), ((600, 24), 1)]
SHAPES += [((3, 40_000), 1), ((70_000, 8), 0), ((700, 6), 1), ((4, 64, 49), (0, 2)), ((2, 5, 1100, 32), 2)]


def stored_data(size, name, seed=0):
    """Stored elements (size, parts) that make another order of additions visible: many magnitudes, mostly one sign."""
    rng = np.random.default_rng([seed, size, model.DTYPES.index(name)])
    storage, parts = model.STORAGE[name]
    if name == "bool":
        return rng.integers(0, 2, (size, parts), dtype=np.uint8)
    if name in INTEGER:
        info = np.iinfo(storage)
        return rng.integers(info.min, info.max, (size, parts), dtype=storage, endpoint=True)
    part = model.PART.get(name, name)
    low, high = {"float8_e4m3fn": (-6, 6), "float8_e5m2": (-10, 10), "float16": (-10, 8)}.get(part, (-12, 12))
    x = np.exp2(rng.uniform(low, high, (size, parts))) * np.where(rng.random((size, parts)) < 0.3, -1.0, 1.0)
    return model.encode(x, name)


_kept, _kept_bytes = collections.OrderedDict(), 128 << 20


def kept_data(*key):
    """stored_data, and keeps the last 128 MiB: the next operation is tested on the same dtypes and shapes."""
    global _kept_bytes
    if key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    found = _kept[key] = stored_data(*key)
    _kept_bytes -= found.nbytes
    while _kept_bytes < 0:
        _kept_bytes += _kept.popitem(last=False)[1].nbytes
    return found


def data(shape, name, seed=0, device="cpu"):
    """A contiguous tensor of stored_data."""
    size = int(np.prod(shape, dtype=np.int64))
    stored = kept_data(size, name, seed)
    return tensor_of(stored.reshape(*shape, stored.shape[-1]), name, device)


def whole(shape, name, seed, permutation):
    """A tensor of that shape, whose dims lie in memory in the order of `permutation`, slowest first."""
    x = data([shape[d] for d in permutation], name, seed)
    return x.permute([permutation.index(d) for d in range(len(shape))])


def with_nans(stored, name, places):
    """Stored elements (..., 1), of which those at these places are NaN, if there is one."""
    if name in INTEGER:
        return stored
    x = model.decode(stored[..., 0], name).astype(np.float64)
    return model.encode(np.where(places, np.nan, x), name)[..., None]


def whole_of(op, shape, name, seed, permutation, dims):
    """whole(), whose elements show something of the operation over `dims`.

    Factors are near 1. Half of what is counted is zero; for `any` hardly one element is not, and for `all` hardly one
    is, so that some outputs have one.
    """
    shape_in_memory = [shape[d] for d in permutation]
    size, length = int(np.prod(shape)), max(1, int(np.prod([shape[d] for d in dims])))
    rng, stored = np.random.default_rng([seed, size]), stored_data(size, name, seed)
    dice = rng.random(size)
    if op.name == "prod":
        if name in INTEGER:  # few factors are not 1, so that a product of thousands fits into a float64
            factors = np.where(dice < 8 / (length + 99), 3, 1) * np.where(dice > 1 - 8 / (length + 99), 5, 1)
        else:
            factors = (1 + (dice - 0.5) / 16).astype(np.float32)
        stored = model.encode(factors, name)[:, None]
    elif op.name == "nansum":
        stored = with_nans(stored, name, dice < 0.2)
    elif op.name in ("any", "all", "count_nonzero"):
        zero = dice < {"any": 1 - 0.7 / length, "all": 0.7 / length}.get(op.name, 0.5)
        stored[(stored == 0).all(1)] = 1
        stored[zero] = 0
    x = tensor_of(stored.reshape(*shape_in_memory, stored.shape[-1]), name)
    return x.permute([permutation.index(d) for d in range(len(shape))])


# --- the model on tensors ---------------------------------------------------------------------------------------------


def reduced_dims(ndim, dim):
    """The dims that `dim` names, as a sorted list: None and () name all."""
    if dim is None or (isinstance(dim, (tuple, list)) and len(dim) == 0):
        return list(range(ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return sorted(d % ndim for d in dims) if ndim else []


def expected(tensor, dim=None, keepdim=False, dtype=None, operation=SUM):
    """The model's result for a tensor, as stored elements (..., parts)."""
    dtype = dtype and operation.result(name_of(tensor.dtype), dtype)
    nothing = operation.name in ("any", "all") and isinstance(dim, (tuple, list)) and not dim  # as in torch
    return model.reduce(
        bytes_of(tensor),
        name_of(tensor.dtype),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        [] if nothing else reduced_dims(tensor.ndim, dim),
        dtype,
        keepdim,
        tensor.is_neg(),
        tensor.is_conj(),
        **operation.model,
    )


def canonical(stored, name):
    """Stored elements as unsigned integers in which all NaNs are equal."""
    bits = np.ascontiguousarray(stored).view(f"u{stored.dtype.itemsize}").copy()
    if name in FLOATING or name in COMPLEX:
        bits[np.isnan(model.decode(stored, name))] = np.iinfo(bits.dtype).max
    return bits


def assert_same_bits(actual, wanted, what=""):
    """`actual` (a tensor) has exactly the bits of `wanted` (a tensor or stored elements); all NaNs count as equal.

    Both may be tuples of such.
    """
    if isinstance(actual, tuple):
        for one, other in zip(actual, wanted, strict=True):
            assert_same_bits(one, other, what)
        return
    name = name_of(actual.dtype)
    if isinstance(wanted, torch.Tensor):
        assert wanted.dtype == actual.dtype, f"{actual.dtype} is not {wanted.dtype} {what}"
        wanted = numpy_of(wanted.resolve_conj().resolve_neg())
    got = numpy_of(actual.resolve_conj().resolve_neg())
    assert got.shape == wanted.shape, f"shape {got.shape} is not {wanted.shape} {what}"
    if got.dtype == wanted.dtype and got.tobytes() == wanted.tobytes():  # NaNs, too
        return
    different = np.argwhere(canonical(got, name) != canonical(wanted, name))
    if len(different):
        at = tuple(int(i) for i in different[0])
        raise AssertionError(
            f"{len(different)} of {got.size} parts differ {what}; the first at {at}: "
            f"{model.decode(got, name)[at]!r} is not {model.decode(wanted, name)[at]!r}"
        )


def check(tensor, dim=None, keepdim=False, dtype=None, what="", operation=SUM):
    """The op on a tensor gives the model's bits. Returns the op's result."""
    result = operation(tensor, dim, keepdim, dtype=dtype)
    assert result.device == tensor.device
    assert name_of(result.dtype) == operation.result(name_of(tensor.dtype), dtype)
    shape, strides = tuple(tensor.shape), tensor.stride()
    what = what or f"for shape {shape}, strides {strides}, {tensor.dtype}, dim={dim}, keepdim={keepdim}, dtype={dtype}"
    assert_same_bits(result, expected(tensor, dim, keepdim, dtype, operation), what)
    return result


# --- what CPUs differ in ----------------------------------------------------------------------------------------------


INSTRUCTIONS = ("default", "avx2", "avx512")  # an x86 CPU has the first few; on others the names mean nothing


def instruction_sets(*names):
    """The argument `instructions`: sets that the CPU has, as in others torch's own kernels are illegal instructions."""
    own = torch.backends.cpu.get_cpu_capability().lower()
    had = INSTRUCTIONS[: INSTRUCTIONS.index(own) + 1] if own in INSTRUCTIONS else INSTRUCTIONS

    def parameter(name):
        return pytest.param(name, marks=pytest.mark.skipif(name not in had, reason=f"this CPU has no {name}"))

    return pytest.mark.parametrize("instructions", [parameter(name) for name in names])


# --- what torch's versions differ in ----------------------------------------------------------------------------------


@functools.cache
def operators_warn_in_python():
    """Whether torch.ops takes warnings to Python's filters: from torch 2.15 on it does; before, it prints them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.ops.aten.sum.IntList_out(torch.ones(3, 4), [1], out=torch.zeros(7))
    return bool(caught)


def invalid_argument():
    """The class that a std::invalid_argument has in Python: RuntimeError from torch 2.15 on, ValueError before.

    What takes the warnings of operators to Python translates their errors, in place of pybind11 (pytorch#193451).
    """
    return RuntimeError if operators_warn_in_python() else ValueError


def class_of_ours(kind, words):
    """The class of our error where torch's has this class and these words: the same, but for one kind.

    For dtypes that torch's mean and vector_norm do not take, it raises NotImplementedError from torch 2.15 on; before,
    it raised RuntimeError, as we do.
    """
    of_dtypes = "could not infer output dtype" in words or "Expected a floating point or complex tensor" in words
    return RuntimeError if kind is NotImplementedError and of_dtypes else kind


# --- threads ----------------------------------------------------------------------------------------------------------


def in_threads(work, arguments):
    """Calls work(argument) for every argument at the same time, a thread each, and raises the first of their errors."""
    errors = []

    def call(argument):
        try:
            work(argument)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# --- random views -----------------------------------------------------------------------------------------------------


def random_view(choose, name, device="cpu", budget=20000):
    """A random strided view and the arguments of a call on it. `choose(a, b)` gives an integer of [a, b]."""
    rank = choose(0, 5)
    shape, room = [], budget
    for _ in range(rank):
        top = max(1, min(room, [3, 40, 600, 9000][choose(0, 3)]))
        shape.append(choose(0 if choose(0, 15) == 0 else 1, top))
        room //= max(1, shape[-1])
    style = choose(0, 3)
    strides = [0] * rank
    if style < 3:  # dims in memory in any order, with steps and gaps; some of them expanded
        order = list(range(rank))
        for i in range(rank - 1, 0, -1):
            j = choose(0, i)
            order[i], order[j] = order[j], order[i]
        span = choose(1, 3) if style == 1 else 1
        for d in order:
            if choose(0, 7) == 0 and style != 0:
                continue
            strides[d] = span
            span *= max(1, shape[d])
            if style == 2 and span <= budget:
                span = span * choose(1, 2) + choose(0, 3)
    else:  # overlapping windows
        strides = [choose(0, 5) for _ in range(rank)]
    offset = choose(0, 9)
    size = offset + 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    tensor = data((size,), name, seed=choose(0, 3), device=device).as_strided(shape, strides, offset)
    dims = [d for d in range(rank) if choose(0, 1)]
    dims = [d - rank if choose(0, 3) == 0 else d for d in dims]
    dim = None if choose(0, 5) == 0 else dims
    return tensor, dim, bool(choose(0, 1))


# --- torch's own description of its sum -------------------------------------------------------------------------------


def opinfo(name="sum", variant=None):
    """torch's OpInfo of an op, and of one of its variants. Its module imports expecttest but uses none of it here, so
    that an empty module will do."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase, stand_in.ACCEPT = unittest.TestCase, False
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.common_methods_invocations import op_db

    return next(op for op in op_db if op.name == name and variant in (None, op.variant_test_name))


# --- many cases in one test -------------------------------------------------------------------------------------------


def walked(names, values):
    """pytest.mark.parametrize, but one test walks all values, as pytest's own work takes longer than many a case.

    `values` may be a function of the test's other arguments. A note on an error names the values.
    """
    names = [name.strip() for name in names.split(",")]

    def decorate(test):
        signature = inspect.signature(test)

        @functools.wraps(test)
        def walk(**given):
            for value in values(**given) if callable(values) else values:
                case = dict(zip(names, value if len(names) > 1 else [value], strict=True))
                try:
                    test(**given, **case)
                except Exception as error:
                    error.add_note(f"where {', '.join(f'{name} is {one}' for name, one in case.items())}")
                    raise

        rest = [one for one in signature.parameters.values() if one.name not in names]
        walk.__signature__ = signature.replace(parameters=rest)
        return walk

    return decorate


# --- memory -----------------------------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Notes the size of each tensor that an operator makes inside, if it has memory of its own, in elements."""

    def __init__(self):
        super().__init__()
        self._sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        given, made = (
            [x for x in tree_leaves(each) if isinstance(x, torch.Tensor)] for each in ((args, kwargs), found)
        )
        known = {x.untyped_storage().data_ptr() for x in given}
        new = (x for x in made if x.untyped_storage().data_ptr() not in known)
        self._sizes += [x.untyped_storage().nbytes() // x.itemsize for x in new]
        return found

    @property
    def sizes(self):
        """Largest first."""
        return sorted(self._sizes, reverse=True)


# --- other processes --------------------------------------------------------------------------------------------------


def python(*command, **environment):
    """The output of Python in a process of its own, which finds the same modules and must end without an error."""
    path = os.pathsep.join(filter(None, sys.path))
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, f"{result.returncode}: {result.stdout[-3000:]} {result.stderr[-3000:]}"
    return result.stdout
