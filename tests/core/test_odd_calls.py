"""Odd calls of every function beside torch's: results, dtypes, error classes and warnings; what differs, and why."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch

import torch_reduce
from support import dtype_of, walked


def of_power(function, ord):
    """A norm of one power, whose other arguments come after the input."""
    return lambda *args, **named: function(*args[:1], ord, *args[1:], **named) if args else function(ord=ord, **named)


def weighted_sum(*args, **named):
    """Of weights of 1, which are a sum."""
    x = args[0] if args else named.pop("input", None)
    plain = isinstance(x, torch.Tensor) and not x.is_quantized
    weight = torch.ones((), dtype=x.dtype, device=x.device) if plain else torch.ones(())
    return torch_reduce.weighted_sum(x, weight, *args[1:], **named)


NAMES = ["sum", "mean", "nansum", "prod", "amax", "amin", "any", "all", "count_nonzero", "logsumexp"]
NAMES += ["argmax", "argmin"]
VARIANCES = ["var", "std", "var_mean"]
FUNCTIONS = {name: (getattr(torch_reduce, name), getattr(torch, name)) for name in NAMES + VARIANCES}
FUNCTIONS["vector_norm"] = (of_power(torch_reduce.vector_norm, 2), of_power(torch.linalg.vector_norm, 2))
FUNCTIONS["powsum"] = (of_power(torch_reduce.powsum, 1), of_power(torch.linalg.vector_norm, 1))
FUNCTIONS["weighted_sum"] = (weighted_sum, torch.sum)
REAL = ["nansum", "prod", "amax", "amin", "argmax", "argmin", "logsumexp", "weighted_sum", *VARIANCES]


# --- the calls --------------------------------------------------------------------------------------------------------


def x(device, *shape, dtype=torch.float32):
    """1, 2, 3 and so on."""
    return torch.arange(1.0, 1 + math.prod(shape or (2, 3)), device=device).view(shape or (2, 3)).to(dtype)


CALLS = {}


def calls(label, *args, **named):
    """A call of (2, 3) elements, or of what a function of the device makes."""
    CALLS[label] = lambda device: (
        [a(device) if callable(a) and not isinstance(a, type) else a for a in (args or (x,))],
        {k: v(device) if callable(v) and not isinstance(v, type) else v for k, v in named.items()},
    )


def empty(*shape):
    return lambda device: torch.empty(shape, device=device)


def zeros(*shape, dtype=torch.float32):
    return lambda device: torch.zeros(shape, dtype=dtype, device=device)


def of(dtype):
    return lambda device: x(device, dtype=dtype)


def with_gradient(device):
    return x(device).requires_grad_()


# Dims, and where nothing is reduced or nothing is there.
for shape, dims in {(0,): (None, 0), (0, 3): (0, 1, []), (3, 0): (1, (0, 1)), (0, 0): (1,)}.items():
    for dim in dims:
        calls(f"no elements {shape} {dim}", empty(*shape), dim)
for dim in ([], (), None, 1, -1, (0, 1), [1], torch.tensor(1), np.int64(1), True, 1.0, "a", 2, -3, (0, 5), 2**70):
    calls(f"dim={dim!r}", x, dim)
    calls(f"dim={dim!r} kept", x, dim=dim, keepdim=True)
for dim in ((0, 0), (1, -1), [-1, 1]):
    calls(f"twice {dim}", x, dim)
for dim in (None, 0, -1, 1, (0,), (0, 0), (0, -1), []):
    calls(f"scalar {dim}", lambda device: torch.tensor(3.0, device=device), dim)
calls("all")
calls("keepdim by position", x, 1, True)
calls("keepdim=1", x, 1, keepdim=1)
calls("keepdim='yes'", x, 1, keepdim="yes")
calls("64 dims", lambda device: torch.ones([1] * 64, device=device), 0)
for rank, dim in ((65, None), (65, 0), (65, -1), (70, [0, 68]), (70, list(range(66)))):
    calls(f"{rank} dims {dim}", lambda device, rank=rank: torch.ones([1] * rank, device=device), dim)
# Names, and values of other types.
calls("axis", x, axis=1)
calls("axis, keepdims", x, axis=1, keepdims=True)
calls("axis and dim", x, 1, axis=1)
calls("unknown", x, foo=1)
calls("dims", x, dims=1)
CALLS["nothing"] = lambda device: ([], {})
CALLS["input by name"] = lambda device: ([], {"input": x(device), "dim": 1})
for value in (None, [1.0, 2.0], 3.0, np.ones(3), "a"):
    calls(f"input {value!r}", value)
calls("too many", x, 1, True, None, None, 3, 4)
# Dtypes.
for value in (bool, float, int, complex, "float32", 1, None):
    calls(f"dtype={value!r}", x, dtype=value)
for target in (torch.int32, torch.float16, torch.float64, torch.complex64, torch.bool):
    calls(f"dtype={target}", x, 1, dtype=target)
    calls(f"int32 with dtype={target}", of(torch.int32), 1, dtype=target)
    calls(f"complex64 with dtype={target}", of(torch.complex64), 1, dtype=target)
for own in ("int32", "bool", "uint8", "uint16", "uint64", "float16", "bfloat16", "float64", "float8_e5m2", "complex64"):
    calls(f"{own}", of(dtype_of(own)), 1)
    calls(f"{own} all", of(dtype_of(own)))
for more in ([], [2 + 3j]):
    calls(
        f"complex infinity {more}", lambda device, more=more: torch.tensor([complex(math.inf, 1), 1, *more]).to(device)
    )
# Layouts, meta tensors, gradients.
calls("sparse", lambda device: x(device).to_sparse(), 1)
calls("sparse all", lambda device: x(device).to_sparse())
calls("sparse CSR", lambda device: x(device).to_sparse_csr())
calls("nested", lambda device: torch.nested.nested_tensor([x(device, 2), x(device, 3)]), 1)
calls("quantized", lambda device: torch.quantize_per_tensor(x("cpu", 3), 0.1, 0, torch.quint8).to(device), 0)
calls("MKLDNN", lambda device: x("cpu").to_mkldnn(), 1)
calls("meta", lambda device: x("meta"), 1)
calls("meta dim=4", lambda device: x("meta"), 4)
calls("meta of no elements", lambda device: torch.empty(0, device="meta"))
calls("gradient", with_gradient, 1)
calls("gradient, integers", with_gradient, 1, dtype=torch.int64)
# out=
INPUTS = ["float32", "float16", "int32", "bool", "uint8", "complex64"]
OUTS = ["float32", "float64", "float16", "bfloat16", "int32", "int64", "bool", "uint8", "complex64"]
for result in OUTS:
    for own in INPUTS:
        calls(f"out {result} of {own}", of(dtype_of(own)), 1, out=zeros(2, dtype=dtype_of(result)))
    calls(f"out {result}, dtype", x, 1, dtype=torch.float32, out=zeros(2, dtype=dtype_of(result)))
    calls(f"out {result} without dim", x, out=zeros(dtype=dtype_of(result)))
for shape in ((3,), (0,), (5, 5), ()):
    for result in ("float32", "bool", "int64"):
        calls(f"out {result} of sizes {shape}", x, 1, out=zeros(*shape, dtype=dtype_of(result)))
calls("out with elements in one place", x, 1, out=lambda device: torch.zeros(1, device=device).expand(2))
calls("out on meta", x, 1, out=lambda device: torch.zeros(2, device="meta"))
calls("out of a meta input", lambda device: x("meta"), 1, out=zeros(2))
calls("out sparse", x, 1, out=lambda device: torch.zeros(2, device=device).to_sparse())
calls("out with gradient", x, 1, out=lambda device: torch.zeros(2, device=device, requires_grad=True))
for result in ("float32", "bool", "int64", "uint8"):
    calls(f"out {result} of a gradient", with_gradient, 1, out=zeros(2, dtype=dtype_of(result)))
calls("out None", x, 1, out=None)
calls("out in a list", x, 1, out=lambda device: [torch.zeros(2, device=device)])
calls("out of no elements", empty(0, 3), 0, out=zeros(0))
calls("out, dim=7", x, 7, out=zeros(0))
EVERY = dict(CALLS)

CALLS.clear()
for value in (0, 1, 3, 6, 9, -1, 1.5, True, None, math.nan, "a", 1j, torch.tensor(1), np.float64(1)):
    calls(f"correction={value!r}", x, 1, correction=value)
    calls(f"correction={value!r} all", x, correction=value)
for value in (True, False):
    calls(f"unbiased={value}", x, 1, unbiased=value)
    calls(f"{value} by position", x, value)
    calls(f"1, {value} by position", x, 1, value)
    calls(f"1, {value}, True by position", x, 1, value, True)
calls("unbiased and correction", x, unbiased=True, correction=1)
calls("1, None by position", x, 1, None)
calls("1, None, True by position", x, 1, None, True)
calls("one element", zeros(1))
calls("one element each", zeros(3, 1), 1)
calls("one element each on meta", lambda device: torch.zeros(3, 1, device="meta"), 1)
calls("one element each with gradient", lambda device: torch.zeros(3, 1, device=device, requires_grad=True), 1)
OF_VARIANCES = dict(CALLS)


# --- what differs -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    results: list | None  # of a call, or None
    error: Exception | None
    warnings: list

    def __str__(self):
        if self.error:
            return f"{type(self.error).__name__}: {str(self.error).splitlines()[0][:150]}"
        described = [
            f"{r.dtype} {tuple(r.shape)}{' ' + str(r.tolist()) if described_by_values(r) else ''}" for r in self.results
        ]
        return f"{described} {self.warnings}"


def described_by_values(result):
    plain = result.layout == torch.strided and not result.is_nested and not result.is_quantized
    return plain and result.device.type != "meta" and result.numel() < 9


def outcome(function, call, device):
    """What a call gives, or raises, and what it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args, named = call(device)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result, error = function(*args, **named), None
        except Exception as raised:
            result, error = None, raised
    results = result if isinstance(result, tuple) else (result,)
    if isinstance(named.get("out"), torch.Tensor) and error is None:
        assert result is named["out"]
    texts = [(w.category, str(w.message).partition(" (Triggered")[0]) for w in warned]
    return Outcome(None if error else results, error, [t for t in texts if "ComplexHalf" not in t[1]])


def alike(ours, theirs):
    """Whether code that uses torch's function would see no difference."""
    if ours.error or theirs.error:
        return bool(ours.error and theirs.error) and isinstance(ours.error, type(theirs.error))
    if ours.warnings != theirs.warnings:
        return False
    for a, b in zip(ours.results, theirs.results, strict=True):
        facts = [(r.dtype, r.shape, r.device, r.layout, r.requires_grad) for r in (a, b)]
        if facts[0] != facts[1]:
            return False
        if described_by_values(a) and not torch.allclose(
            a.to(torch.complex128), b.to(torch.complex128), rtol=1e-3, equal_nan=True
        ):
            return False
    return True


def says(result, *words):
    """Whether an error has these words."""
    return result.error is not None and all(word in str(result.error) for word in words)


def taken(result):
    return result.error is None


LAYOUTS = ("sparse", "sparse all", "sparse CSR", "nested", "quantized", "MKLDNN", "out sparse")
# Each difference that is meant, with its reason: function, call, our outcome, torch's.
MEANT = {
    "float8 and unsigned integers are taken, where torch has no kernels for them": lambda f, call, ours, theirs: (
        taken(ours) and isinstance(theirs.error, RuntimeError) and call.startswith(("float8", "uint"))
    ),
    "complex numbers are not supported": lambda f, call, ours, theirs: f in REAL and says(ours, "omplex"),
    "tensors may have more than 64 dims": lambda f, call, ours, theirs: call[:3] in ("65 ", "70 ") and taken(ours),
    "an argument's default means that it is not given": lambda f, call, ours, theirs: (
        taken(ours) and isinstance(theirs.error, TypeError) and (call.startswith("1, None") or "without dim" in call)
    ),
    "products and logarithms reduce several dims, or all": lambda f, call, ours, theirs: (
        f in ("prod", "logsumexp")
        and isinstance(theirs.error, (TypeError, RuntimeError))
        and (
            taken(ours)
            or says(ours, "multiple times")
            or isinstance(ours.error, IndexError)
            or (f == "logsumexp" and isinstance(theirs.error, TypeError))
        )
    ),
    "an index may be one over several dims": lambda f, call, ours, theirs: (
        f in ("argmax", "argmin") and says(theirs, "must be int, not ") and isinstance(theirs.error, TypeError)
    ),
    "bool has an order, and with it an index": lambda f, call, ours, theirs: (
        f in ("argmax", "argmin") and says(theirs, "does not support bool") and taken(ours)
    ),
    "meta tensors raise what others do, where torch's of an index raise other classes": lambda f, call, ours, theirs: (
        f in ("argmax", "argmin") and call.startswith("meta") and isinstance(ours.error, IndexError)
    ),
    "count_nonzero has keepdim and out": lambda f, call, ours, theirs: (
        f == "count_nonzero"
        and isinstance(theirs.error, TypeError)
        and ("keep" in call or "kept" in call or "out" in call)
    ),
    "an out with several elements in one place is refused": lambda f, call, ours, theirs: (
        call == "out with elements in one place" and says(ours, "more than one element")
    ),
    "other layouts are refused": lambda f, call, ours, theirs: (
        call in LAYOUTS and (says(ours, "tensors are not supported") or says(ours, "strided layout"))
    ),
    "integers have no gradient, where torch raises an error": lambda f, call, ours, theirs: (
        call == "gradient, integers" and says(theirs, "Autograd not support dtype")
    ),
    "a complex mean divides each part, so that an infinite one leaves the other": lambda f, call, ours, theirs: (
        f == "mean" and call.startswith("complex infinity") and ours.results[0].imag.isfinite()
    ),
    "the bool of var(input, unbiased) may be called dim": lambda f, call, ours, theirs: (
        f in VARIANCES and call == "dim=True kept" and taken(ours)
    ),
    "var and var_mean are one operator, whose warning names var": lambda f, call, ours, theirs: (
        f == "var_mean"
        and [w[1].replace("var()", "var_mean()") for w in ours.warnings] == [w[1] for w in theirs.warnings]
    ),
    "a mean has no integer out, which torch leaves 0, or has no kernel for, on CUDA": lambda f, call, ours, theirs: (
        f == "mean" and call.startswith(("out int", "out uint", "out bool")) and says(ours, "output dtype")
    ),
    "truths of complex numbers lose no part": lambda f, call, ours, theirs: (
        f in ("any", "all") and call == "out uint8 of complex64" and not ours.warnings
    ),
    "torch has no weighted_sum: its own arguments have no other names, and any dtype": lambda f, call, ours, theirs: (
        f == "weighted_sum" and ("axis" in call or call.startswith(("dtype=<class", "dim=1 kept")))
    ),
}


@pytest.fixture(autouse=True)
def every_warning():
    """torch's warnings of once in a process come each time."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


def differences(name, device):
    """The calls that differ: the label, both outcomes, and why, or None."""
    ours, theirs = FUNCTIONS[name]
    table = EVERY | (OF_VARIANCES if name in VARIANCES else {})
    for label, call in table.items():
        a, b = outcome(ours, call, device), outcome(theirs, call, device)
        if not alike(a, b):
            yield label, a, b, next((why for why, is_meant in MEANT.items() if is_meant(name, label, a, b)), None)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls(name, device):
    """Every call has torch's outcome, but for what is meant."""
    wrong = [
        f"{name}, {label}\n  ours   {a}\n  torch  {b}" for label, a, b, why in differences(name, device) if why is None
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_meant():
    """Each reason is one for some call."""
    on_gpus = {why for why in MEANT if why.endswith("on CUDA")}
    assert {why for name in FUNCTIONS for *_, why in differences(name, "cpu")} - {None} == set(MEANT) - on_gpus


# --- dot --------------------------------------------------------------------------------------------------------------

VECTORS = {
    "float32": ["float32", "float32"],
    "float64": ["float64", "float64"],
    "of two dtypes": ["float32", "float64"],
    "float16": ["float16", "float16"],
}


@walked("result", [None, *OUTS])
@walked("label", VECTORS)
def test_dot(label, result, device):
    """Vectors of floats, and every dtype of out: torch's outcome."""

    def call(device):
        out = {"out": torch.zeros((), dtype=dtype_of(result), device=device)} if result else {}
        return [x(device, 3, dtype=dtype_of(name)) for name in VECTORS[label]], out

    ours, theirs = outcome(torch_reduce.dot, call, device), outcome(torch.dot, call, device)
    assert alike(ours, theirs), f"{ours}\n{theirs}"


# --- warnings ---------------------------------------------------------------------------------------------------------


def packed(device):
    return [x(device, 4), torch.tensor([0, 2, 4], device=device)]


def resized(device):
    return torch.zeros(7, device=device)


WARNING = {
    "sum of complex": lambda d: torch_reduce.sum(x(d, dtype=torch.complex64), dtype=torch.float32),
    "sum": lambda d: torch_reduce.sum(x(d), 1, out=resized(d)),
    "sum, the long way": lambda d: torch_reduce.sum(x(d), axis=1, out=resized(d)),
    "mean": lambda d: torch_reduce.mean(x(d), 1, out=resized(d)),
    "vector_norm": lambda d: torch_reduce.vector_norm(x(d), 2, 1, out=resized(d)),
    "powsum": lambda d: torch_reduce.powsum(x(d), 2, 1, out=resized(d)),
    "amax": lambda d: torch_reduce.amax(x(d), 1, out=resized(d)),
    "amax, the long way": lambda d: torch_reduce.amax(x(d), axis=1, out=resized(d)),
    "prod": lambda d: torch_reduce.prod(x(d), 1, out=resized(d)),
    "weighted_sum": lambda d: torch_reduce.weighted_sum(x(d), x(d), 1, out=resized(d)),
    "dot": lambda d: torch_reduce.dot(x(d, 3), x(d, 3), out=resized(d)),
    "segment_sum": lambda d: torch_reduce.segment_sum(*packed(d), out=resized(d)),
    "segment_mean": lambda d: torch_reduce.segment_mean(*packed(d), out=resized(d)),
    "segment_amax": lambda d: torch_reduce.segment_amax(*packed(d), out=resized(d)),
    "var": lambda d: torch_reduce.var(x(d, 1)),
    "std": lambda d: torch_reduce.std(x(d), 1, correction=3),
    "var_mean": lambda d: torch_reduce.var_mean(x(d, 1)),
    "var, resized": lambda d: torch_reduce.var(x(d), 1, out=resized(d)),
}


@pytest.mark.parametrize("label", WARNING)
def test_filters(label, device, capfd):
    """Python's filters catch every warning, once and at the caller's line; nothing of it goes to stderr."""
    with pytest.warns(UserWarning) as warned:
        WARNING[label](device)
    assert [w.filename for w in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning):
            WARNING[label](device)
        warnings.simplefilter("ignore")
        WARNING[label](device)
    assert capfd.readouterr().err == ""


# --- segments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_segments(name, device):
    """torch.segment_reduce's results, dtypes and shapes, with an empty segment; sparse data are refused."""
    data, offsets = x(device, 6, 2, dtype=dtype_of(name)), torch.tensor([0, 2, 2, 6], device=device)
    theirs = dict(segment_sum="sum", segment_mean="mean", segment_prod="prod", segment_amax="max", segment_amin="min")
    for function, reduce in ((getattr(torch_reduce, ours), reduce) for ours, reduce in theirs.items()):
        wanted = torch.segment_reduce(data, reduce, offsets=offsets, axis=0)
        torch.testing.assert_close(function(data, offsets), wanted, equal_nan=True)
        with pytest.raises(NotImplementedError, match=r"^segment_\w+\(\): sparse tensors are not supported"):
            function(data.to_sparse(), offsets)


def test_layouts_in_one_sentence(device):
    """An error says what is refused, and no more, by its function and by its operator."""
    sparse, nested = x(device).to_sparse(), torch.nested.nested_tensor([x(device, 2), x(device, 3)])
    for name in (*NAMES, *VARIANCES, "linalg_vector_norm", "linalg_powsum"):
        for tensor, kind in ((sparse, "sparse"), (nested, "nested")):
            for function in (getattr(torch_reduce, name.removeprefix("linalg_")), getattr(torch.ops.gpureduce, name)):
                with pytest.raises(NotImplementedError) as raised:
                    function(tensor)
                called = name if function is getattr(torch.ops.gpureduce, name) else name.removeprefix("linalg_")
                assert str(raised.value).splitlines()[0] == f"{called}(): {kind} tensors are not supported"
