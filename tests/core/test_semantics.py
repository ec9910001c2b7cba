"""torch's semantics: OpInfo's samples, dims, dtypes, out=, and errors of the classes that torch raises."""

import re
import warnings

import numpy as np
import pytest
import torch

import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    FLOATING,
    MEAN,
    assert_same_bits,
    check,
    class_of_ours,
    data,
    dtype_of,
    every_operation,
    expected,
    operators_warn_in_python,
    opinfo,
    taken,
    walked,
)

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


@pytest.fixture(params=["operator", "function"])
def reduce(request, op):
    """torch.ops.gpureduce's and torch_reduce's: the same in all but documentation and odd forms of arguments."""
    return getattr(op, request.param)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, name", taken(*DTYPES), ids=str)
def test_opinfo_samples(op, name, device):
    """dtype, shape, strides and values of torch's results on all of OpInfo's sample and reference inputs."""
    info = opinfo(op.name)
    if dtype_of(name) not in info.supported_dtypes(device):
        pytest.skip(f"torch.{op} has no {name} on {device}")
    samples = [
        *info.sample_inputs(device, dtype_of(name), requires_grad=False),
        *info.reference_inputs(device, dtype_of(name), requires_grad=False),
    ]
    assert len(samples) >= 20
    for sample in samples:
        theirs = op.torch(sample.input, *sample.args, **sample.kwargs)
        for reduce in op.forms:
            ours = reduce(sample.input, *sample.args, **sample.kwargs)
            assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride()), sample
            parts = [torch.view_as_real(y) if name == "complex32" else y for y in (ours, theirs)]
            torch.testing.assert_close(*parts, equal_nan=True)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_dtype_does_not_round_the_input(name, device):
    """A narrower dtype= rounds the sum, not the elements: 4096 times 1 + 2^-12 is 4097, where torch gives 4096."""
    x = torch.full((4096,), 1 + 2**-12, dtype=torch.float64, device=device)
    exact = torch.tensor(4097.0, dtype=torch.float64).to(dtype_of(name))
    assert_same_bits(torch_reduce.sum(x, dtype=dtype_of(name)), exact)


def test_float_to_integer(device):
    """A floating input with an integer dtype converts each element towards zero, then wraps, as torch does."""
    x = torch.tensor([0.5, 0.7, 1.9, -1.9, 200.0, -3.0, 1e5], device=device)
    for target in ("uint8", "int8", "int16", "int32", "int64"):
        ours = check(x, dtype=dtype_of(target))
        whole = int(np.trunc(np.float32([0.5, 0.7, 1.9, -1.9, 200.0, -3.0, 1e5])).sum())
        assert int(ours) == int(np.array(whole).astype(target))
    assert int(torch_reduce.sum(x, dtype=torch.int64)) == int(torch.sum(x, dtype=torch.int64))


@walked("special", [float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 2.0**63, -(2.0**63), 1.5 * 2**63])
def test_float_outside_the_integers(special, device):
    """Elements that no integer holds give the same result everywhere."""
    x = torch.full((3, 40), 2.5, device=device)
    x[1, 17] = special
    check(x, 1, dtype=torch.int64)
    check(x, 0, dtype=torch.int32)


@pytest.mark.parametrize("name", DTYPES)
def test_any(name, device):
    """dtype=bool: whether any element differs from zero; NaN and imaginary parts do, negative zero does not."""

    def any_of_rows(*places):
        x = torch.zeros(3, 4100, dtype=torch.float64).to(dtype_of(name))
        for row, column, value in places:
            x[row, column] = value
        return torch_reduce.sum(x.to(device), 1, dtype=torch.bool).tolist()

    assert any_of_rows() == [False, False, False]
    for column in (0, 511, 4096, 4099):
        assert any_of_rows((1, column, 1)) == [False, True, False]
    if name in FLOATING:
        assert any_of_rows((0, 3, -0.0), (1, 5, float("nan"))) == [False, True, False]
    if name in COMPLEX:
        assert any_of_rows((2, 7, 1j)) == [False, False, True]


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_to_real(name, device):
    """A complex input with a real dtype= gives the sum of the real parts."""
    x = data((3, 900), name, seed=1, device=device)
    real = torch.view_as_real(x)[..., 0]
    for target in ("float32", "float64", "float16", "int64", "uint8"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours = torch_reduce.sum(x, 1, dtype=dtype_of(target))
        assert_same_bits(ours, expected(real, 1, dtype=dtype_of(target)))


# --- dims -------------------------------------------------------------------------------------------------------------


@every_operation
def test_more_dims_than_torch_names(op, device):
    """A full reduction takes any number of dims."""
    x = data((30,), "float32", device=device).view([1] * 40 + [5] + [1] * 30 + [6])
    assert_same_bits(op.function(x), op.expected(x.view(30)))


# --- out= -------------------------------------------------------------------------------------------------------------


@walked("name", lambda op, **_: filter(op.takes, DTYPES))
def test_out_gives_the_dtype(op, name, device, reduce):
    """Without dtype=, the result has out's dtype, for every dtype; with it, they must agree. out itself is returned."""
    x = data((4, 300), "float32", device=device)
    for dtype in (None, dtype_of(name)):
        out = data((4,), name, seed=1, device=device)
        assert reduce(x, 1, dtype=dtype, out=out) is out
        assert_same_bits(out, op.expected(x, 1, dtype=dtype_of(name)))


def test_writes_of_out_are_counted(op, device, reduce):
    """Every call that writes out counts as one change of it, as torch's does."""
    x, whole = torch.ones(3, 4, device=device), torch.ones(3, 4, device=device)
    calls = [
        lambda f: f(x, 0, out=torch.zeros(4, device=device)),
        lambda f: f(x, 0, out=torch.zeros(0, device=device)),
        lambda f: f(x[:0], 0, out=torch.zeros(4, device=device)),
        lambda f: f(x[:, :0], 0, out=torch.zeros(0, device=device)),
        lambda f: f(whole, 0, True, out=whole[:1].detach().clone().as_strided((1, 4), (4, 1))),
        lambda f: f(x.cfloat(), 0, out=torch.zeros(4, dtype=torch.cfloat, device=device).conj()),
        lambda f: f(x.to("meta"), 0, out=torch.zeros(4, device="meta")),
        torch.no_grad()(lambda f: f(x, 0, out=torch.zeros(4, device=device))),
        lambda f: torch.inference_mode()(f)(x, 0, out=torch.zeros(4, device=device)),
    ]
    for i, call in enumerate(calls):
        assert call(reduce)._version == call(op.torch)._version == 1, i
    counts = []
    for f in (op.torch, reduce):
        shared = torch.ones(3, 4, device=device)
        out = shared[0]
        counts.append(f(shared, 0, out=out)._version)
    assert counts == [1, 1]


# Calls that are refused for what `out` or another argument is.
REFUSED = {
    "a dim twice": lambda f, x, out: f(x, (0, 0), out=out),
    "a dim out of range": lambda f, x, out: f(x, 9, out=out),
    "another dtype": lambda f, x, out: f(x, 0, dtype=torch.float64, out=out),
    "another device": lambda f, x, out: f(x.to("meta"), 0, out=out),
    "an input that requires gradients": lambda f, x, out: f(x.clone().requires_grad_(), 0, out=out),
    "an input that cannot be reduced": lambda f, x, out: f(x.byte().view(torch.bits8), 0, out=out),
    "a sparse input": lambda f, x, out: f(x.to_sparse(), 0, out=out),
    "an out that overlaps": lambda f, x, out: f(x, 0, out=out[:1].expand(4)),
    "an out that overlaps and is the input": lambda f, x, out: f(out[None], 0, out=out[:1].expand(4)),
    "dims that cannot be joined": lambda f, x, out: f(x.new_ones(34).as_strided([2] * 33, [1] * 33), (), out=out),
    "keepdim of text": lambda f, x, out: f(x, 0, "2", out=out),
}


@walked("shape", [(4,), (7,)])
@walked("call", REFUSED)
@every_operation
def test_refused_calls_leave_out_alone(call, shape, op, device, reduce, capfd):
    """A refused call does not write, resize or warn, and a backward pass that needs `out` runs."""
    if "overlaps" in call and shape != (4,):
        return  # its out has the result's shape
    x, out = torch.ones(3, 4, device=device), torch.full(shape, 7.0, device=device)
    leaf = torch.ones(shape, device=device, requires_grad=True)
    y = (leaf * out).sum()
    with warnings.catch_warnings(record=True) as caught, pytest.raises((RuntimeError, IndexError, TypeError)):
        REFUSED[call](reduce, x, out)
    assert out._version == 0 and out.shape == shape and out.tolist() == [7.0] * len(out)
    assert not caught and "Warning" not in capfd.readouterr().err
    y.backward()


@every_operation
def test_out_is_resized(capfd, op, device):
    """An out of another shape is resized as torch does: silently when empty, with a warning otherwise."""
    x = data((3, 400), "float32", device=device)
    operators = operators_warn_in_python()
    capfd.readouterr()  # what the probe has printed
    for form, to_python in ((op.function, True), (op.operator, operators), (op.torch, True), (op.aten, operators)):
        for shape, warns in (((7,), True), ((3, 1), True), ((2, 5), True), ((), True), ((0,), False), ((3,), False)):
            out = torch.zeros(shape, device=device)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert form(x, [1], out=out) is out
            written = capfd.readouterr().err  # where the warnings of torch.ops go
            assert [str(w.message) for w in caught if "was resized" not in str(w.message)] == []
            assert (len(caught), "was resized" in written) == (warns and to_python, warns and not to_python), shape
            assert out.shape == (3,) and out.stride() == (1,)
            if form in op.forms:
                assert_same_bits(out, op.expected(x, 1))


OUTS = {
    "transposed": lambda make: make(5, 3).t(),
    "every third": lambda make: make(3, 15)[:, ::3],
    "a slice of rows": lambda make: make(9, 5)[1:8:3],
    "offset 1": lambda make: make(16)[1:].view(3, 5),
    "permuted": lambda make: make(5, 2, 3)[:, 1].t(),
    "pitched": lambda make: make(3, 9)[:, 2:7],
}


@walked("layout", list(OUTS))
@walked("dim,shape", [(0, (600, 3, 5)), (2, (3, 5, 600)), (1, (3, 600, 5)), ((0, 2), (9, 3, 71, 5))])
def test_out_of_any_layout(layout, dim, shape, op, device):
    """out may have any strides; what lies between its elements stays."""
    for name in filter(op.takes, ("float32", "int8", "complex64")):
        whole = []

        def make(*shape, name=name, whole=whole):
            whole.append(data(shape, name, seed=3, device=device))
            return whole[0]

        out = OUTS[layout](make)
        x = data(shape, name, seed=4, device=device)
        wanted = op.expected(x, dim, dtype=dtype_of(name))
        around = whole[0].clone()
        strides = out.stride()
        assert op(x, dim, out=out) is out
        assert out.stride() == strides
        assert_same_bits(out, wanted)
        clean = OUTS[layout](lambda *shape, around=around: around)  # the same places of a copy made before
        clean.copy_(out)
        assert_same_bits(whole[0], around)


@every_operation
def test_out_that_cannot_grow(op, reduce):
    """An out in another library's memory is refused before its shape is changed: the next call would overrun it."""
    array = np.zeros(2, np.float32)
    out = torch.from_numpy(array)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not resizable.*8 bytes.*needs 12"):
            reduce(torch.ones(3, 4), 1, out=out)
    assert out.shape == (2,) and out._version == 0 and not array.any()
    assert reduce(torch.ones(1, 4), 1, out=out).shape == (1,)
    assert reduce(torch.ones(0, 4), 1, out=out).shape == (0,)


def test_out_lazily_conjugated_or_negated(op, device, reduce):
    """An out that is a lazy view reads back as the result."""
    x = data((3, 40), "complex64", device=device)
    for view in (torch.conj, torch._neg_view, lambda t: torch._neg_view(t.conj())):
        out = view(torch.zeros(40, dtype=torch.complex64, device=device))
        reduce(x, 0, out=out)
        assert_same_bits(out, op.expected(x, 0))
        out = view(torch.zeros(40, dtype=torch.complex64, device=device))
        reduce(x.conj(), 0, out=out)
        assert_same_bits(out, op.expected(x.conj(), 0))


# --- misuse -----------------------------------------------------------------------------------------------------------

# name -> (the call, what the message must name)
MISUSE = {
    "dim too large": (lambda f, x: f(x, 2), r"[Dd]im.*\[-2, 1\].*got 2"),
    "dim too small": (lambda f, x: f(x, -3), r"[Dd]im.*\[-2, 1\].*got -3"),
    "one of the dims": (lambda f, x: f(x, (0, 5)), r"[Dd]im.*got 5"),
    "dim of 0-d": (lambda f, x: f(x[0, 0], 1), r"[Dd]im.*\[-1, 0\].*got 1"),
    "dim twice": (lambda f, x: f(x, (0, 0)), r"dim 0 appears multiple times"),
    "dim twice, once negative": (lambda f, x: f(x, (1, -1)), r"dim 1 appears multiple times"),
    "dim of 0-d twice": (lambda f, x: f(x[0, 0], (0, -1)), r"dim 0 appears multiple times"),
    "dtype and out": (
        lambda f, x: f(x, 0, dtype=torch.float64, out=torch.empty(3, device=x.device)),
        r"out.*dtype|dtype.*out",
    ),
    "no tensor": (lambda f, x: f([1, 2]), r"Tensor"),
    "None": (lambda f, x: f(None), r"(?i)tensor"),
    "an array": (lambda f, x: f(np.zeros(3)), r"Tensor"),
    "dim of floats": (lambda f, x: f(x, [0.5]), r"dim"),
    "dim is a float": (lambda f, x: f(x, 1.0), r"dim"),
    "dim is text": (lambda f, x: f(x, "a"), r"dim|Name"),
    "keepdim is text": (lambda f, x: f(x, 0, "yes"), r"keepdim"),
    "keepdim is a tensor": (lambda f, x: f(x, 0, x), r"keepdim"),
    "dtype is text": (lambda f, x: f(x, 0, dtype="float"), r"dtype"),
    "dtype by position": (lambda f, x: f(x, 0, False, torch.float64), r"argument"),
    "out is a list": (lambda f, x: f(x, 0, out=[1.0]), r"out"),
    "unknown argument": (lambda f, x: f(x, 0, axes=1), r"axes"),
    "quantized": (
        lambda f, x: f(torch.quantize_per_tensor(x.cpu(), 1.0, 0, torch.quint8)),
        r"^\w+\(\): quantized tensors are",
    ),
    "float8_e4m3fnuz": (
        lambda f, x: f(torch.empty(3, dtype=torch.float8_e4m3fnuz, device=x.device)),
        r"(?i)float8_e4m3fnuz",
    ),
    "float8_e8m0fnu": (
        lambda f, x: f(torch.empty(3, dtype=torch.float8_e8m0fnu, device=x.device)),
        r"(?i)float8_e8m0fnu",
    ),
    "bits8": (lambda f, x: f(torch.empty(3, dtype=torch.bits8, device=x.device)), r"(?i)bits8"),
    "to float8_e5m2fnuz": (lambda f, x: f(x, dtype=torch.float8_e5m2fnuz), r"(?i)float8_e5m2fnuz"),
}


@walked("call", lambda op, **_: [call for call in MISUSE if (op, call) != (MEAN, "quantized")])  # torch has such a mean
def test_misuse(op, call, device, reduce):
    """Wrong calls raise the class that torch raises for the same call, and the message names what was wrong."""
    make, message = MISUSE[call]
    x = torch.ones(2, 3, device=device)
    theirs = []
    for f in (op.torch, op.aten):
        try:
            make(f, x)
        except Exception as error:
            theirs.append(class_of_ours(type(error), str(error)))
    assert theirs, "torch allows this call"
    with pytest.raises(tuple(theirs)) as caught:
        make(reduce, x)
    text = str(caught.value)
    assert re.search(message, text, re.DOTALL), text


@walked("layout", ["sparse", "csr", "mkldnn", "nested"])
@every_operation
def test_other_layouts_raise(layout, op, device, reduce):
    """Tensors that are not strided are refused, not misread."""
    if layout == "mkldnn" and device != "cpu":
        return  # mkldnn tensors are on the CPU
    x = torch.ones(2, 3, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make = {
            "sparse": x.to_sparse,
            "csr": x.to_sparse_csr,
            "mkldnn": x.to_mkldnn,
            "nested": lambda: torch.nested.nested_tensor([x, x]),
        }
        other = make[layout]()
    for dim in (None, 0):
        with pytest.raises(NotImplementedError, match=r"^\w+\(\): (sparse|MKLDNN|nested) tensors are not supported"):
            reduce(other, dim)
