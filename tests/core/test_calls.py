"""Every operation, called as torch's are: dims, no elements, out=, errors, threads and CUDA graphs.

tests/core/test_semantics.py has more of sum and mean; tests/core/test_odd_calls.py has calls that are seldom right.
"""

import itertools

import numpy as np
import pytest
import torch

from support import FAMILY, assert_same_bits, in_threads, name_of
from table import CASES, INDICES, SEGMENTS, VARIANCES, WEIGHTED, every_case, rotated, tensors, walks

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values", "ignore:ComplexHalf support", "ignore:.*degrees of freedom"
)

OF_DIMS = [op for op in CASES if op not in SEGMENTS]  # whose dims are a sum's
WITH_OUT = [op for op in CASES if op.has_out]
DIMS = [None, (), [], 0, 1, 2, -1, -3, (0,), [1], (0, 1), (2, 0), (-1, 0), [0, 1, 2], (-1, -2, -3), torch.Size([1])]
every_out = pytest.mark.parametrize("op", WITH_OUT, ids=str)


def of_torchs(op, ours, theirs):
    """A result has the dtype, the shape, the strides and nearly the values of torch's."""
    for one, other in zip(tensors(ours), tensors(theirs), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert op in SEGMENTS or one.stride() == torch.empty(other.shape).stride()
        few = 2e-2 if other.dtype in (torch.bfloat16, torch.float16) else 1e-5
        torch.testing.assert_close(one, other, rtol=few, atol=few, equal_nan=True)


OF_TORCH = ["float32", "bfloat16", "float16", "int32", "uint8", "bool", "float64", "int64", "complex64"]


@walks(*OF_TORCH)
def test_agrees_with_torch(op, name, device):
    """The model's bits, and torch's description, with every way to name dims, kept or not, into an out, too.

    Each operation has every call with a third of the dtypes.
    """
    calls = itertools.product([(3, 4, 5), (2, 1, 3), (1, 1, 1)], DIMS, (False, True))
    for shape, dim, keepdim in rotated(calls, OF_TORCH.index(name) + CASES.index(op)):
        x = op.elements(shape, name, 69, device)
        if not op.has(x, dim, keepdim):
            continue
        x = op.around(x, dim)
        wanted = op.torch(x, dim, keepdim)
        bits = op.expected(x, dim if isinstance(dim, int) or dim is None else tuple(dim), keepdim)
        of_torchs(op, first := op.forms[0](x, dim, keepdim), wanted)
        for form in op.forms:
            assert_same_bits(ours := form(x, dim, keepdim), bits)
            assert [t.stride() for t in tensors(ours)] == [t.stride() for t in tensors(first)]
            assert_same_bits(form(x, dim=dim, **dict(keepdim=keepdim) if op not in SEGMENTS else {}), ours)
            if op.has_out:
                assert_same_bits(form(x, dim, keepdim, out=torch.full_like(ours, 7)), bits)


SIZES = [(0,), (3, 0), (0, 3), (2, 0, 4), (0, 0), (4, 1, 0), (3, 0, 2)]


@walks("float32", "int32", "bool", "complex64", "float16", cases=OF_DIMS)
def test_no_elements(op, name, device):
    """0, 1, NaN, False or True as torch has it, in an out with steps too; or torch's error where there is no answer."""
    for shape, keepdim in itertools.product(SIZES, (False, True)):
        x = op.elements(shape, name, 1, device)
        inputs = op.around(x)
        for dim in [None, (), *range(x.dim()), tuple(range(x.dim()))]:
            if op.has(x, dim):
                ours, theirs = op(inputs, dim, keepdim), op.torch(inputs, dim, keepdim)
                of_torchs(op, ours, theirs)
                if not (name == "complex64" and op.divides):  # of which torch's on CUDA are NaN + 0i
                    assert_same_bits(ours, theirs)
                if op.has_out:
                    room = ours.new_ones((*ours.shape, 2))
                    assert_same_bits(op(inputs, dim, keepdim, out=room[..., 0]), ours)
                    assert (room[..., 1] == 1).all()
                continue
            for form, place in itertools.product(op.forms, (device, "meta")):
                error = IndexError if op in INDICES or (dim not in (None, ()) and op in FAMILY) else RuntimeError
                with pytest.raises(error, match="Expected reduction dim|does not have an identity") as raised:
                    form(x.to(place), dim, keepdim)
                assert raised.type is error


@walks("float32", "bool", "complex64", "float8_e5m2", cases=OF_DIMS)
def test_scalars(op, name, device):
    """Tensors without dims, whose only element makes the result."""
    x = op.elements((), name, 70, device)
    for dim, keepdim in itertools.product((None, 0, -1, (), (0,), (-1,)), (False, True)):
        op.check_view(x, dim, keepdim)
    with pytest.raises(IndexError):
        op(op.around(x), 1)


@pytest.mark.parametrize("op", OF_DIMS, ids=str)
def test_wrong_dims(op, device):
    """torch's errors for dims, by function and by operator, on meta tensors too; and NumPy's names for arguments."""
    x = op.inputs((2, 3), "float32", 1, device)
    meta = tuple(t.to("meta") for t in x) if isinstance(x, tuple) else x.to("meta")
    for form, here in itertools.product(op.forms, (x, meta)):
        for wrong in (2, -3, (0, 5)):
            with pytest.raises(IndexError, match=r"\[-2, 1\]"):
                form(here, wrong)
        with pytest.raises(RuntimeError, match="multiple times"):
            form(here, (0, -2))
    if op is not WEIGHTED:
        assert_same_bits(op.function(x, axis=1, keepdims=True), op(x, 1, True))
    assert_same_bits(op.function(x, np.int64(1)), op(x, 1))
    assert_same_bits(op.function(x, torch.tensor(1)), op(x, 1))
    for wrong in (dict(nothing=1), dict(dim=1.5)):
        with pytest.raises(TypeError):
            op.function(x, **wrong)
    if op not in VARIANCES:
        with pytest.raises(TypeError):
            op.function(x, 0, 0)
    if op in FAMILY and not op.has_dtype:
        with pytest.raises(TypeError):
            op.function(x, dtype=torch.float32)


@every_case
def test_the_input_is_unchanged(op, device):
    """Inputs are only read."""
    x = op.inputs((40, 50), "float32", 71, device, 0)
    before = tuple(t.clone() for t in tensors(x))
    op(x, 0), op.function(x, 0)
    assert_same_bits(tuple(tensors(x)), before)


# --- out= -------------------------------------------------------------------------------------------------------------


@walks("float32", "bfloat16", "complex64", "float8_e5m2", "int32", cases=WITH_OUT)
def test_out(op, name, device):
    """out= is written where it lies and returned; it may have steps or be lazy, and is resized when it is empty."""
    x = op.inputs((6, 700), name, 70, device, 1)
    wanted = op(x, 1)
    make = lambda *shape: torch.zeros(shape, dtype=wanted.dtype, device=device)  # noqa: E731
    shape = wanted.shape
    for form in op.forms:
        for out in (make(*shape), make(*shape[::-1]).permute(*range(wanted.dim())[::-1]), make(0)):
            strides = out.stride() if out.shape == shape else wanted.stride()
            assert form(x, 1, out=out) is out
            assert out.stride() == strides
            assert_same_bits(out, wanted)
        room = make(2 * shape[0], *shape[1:])
        assert form(x, 1, out=room[::2]).data_ptr() == room.data_ptr()
        assert_same_bits(room[::2], wanted)
        assert not room[1::2].float().any()
        if wanted.dtype.is_floating_point and "float8" not in name_of(wanted.dtype):
            assert_same_bits(form(x, 1, out=torch._neg_view(make(*shape))), wanted)
    with pytest.raises(RuntimeError, match="(?i)overlap|single memory location|more than one element"):
        op(x, 1, out=make(1).expand(shape) if len(shape) == 1 else make(1, 1).expand(shape))
    for other in ["meta"] + ["cpu"] * (device == "cuda"):
        with pytest.raises(RuntimeError, match="device"):
            op(x, 1, out=torch.empty(shape, dtype=wanted.dtype, device=other))


# A view of some memory, an out in it, and the dims of a call.
SIZE = 600
ALIASES = [
    (lambda x: x, lambda x: x[0], 0, False),
    (lambda x: x, lambda x: x[-1], 0, False),
    (lambda x: x, lambda x: x[:, 7], 1, False),
    (lambda x: x, lambda x: x[:1], 0, True),
    (lambda x: x, lambda x: x[3, 5], None, False),
    (lambda x: x, lambda x: x.view(-1)[17 : 17 + SIZE], 0, False),
    (lambda x: x[:, :1], lambda x: x[:, :1], 1, True),
    (lambda x: x[:, None], lambda x: x, 1, False),
    (lambda x: x.view(-1, 2), lambda x: x.view(-1)[: 20 * SIZE // 2], 1, False),
    (lambda x: x.view(-1, 2), lambda x: x.view(-1)[20 * SIZE // 2 :], 1, False),
    (lambda x: x.view(-1)[1:][None], lambda x: x.view(-1)[:-1], 0, False),
    (lambda x: x.view(-1)[:-1][None], lambda x: x.view(-1)[1:], 0, False),
]


@walks("float32", "int64", "complex64", cases=[op for op in WITH_OUT if op not in SEGMENTS])
def test_out_that_is_the_input(op, name, device):
    """An out that shares memory with the input still gives the right result."""
    for form, (view, place, dim, keepdim) in itertools.product(op.forms, ALIASES):
        x = op.elements((20, SIZE), name, 5, device)
        inputs = op.around(view(x), dim)
        wanted = op(inputs, dim, keepdim)
        if wanted.dtype == x.dtype:
            assert_same_bits(form(inputs, dim, keepdim, out=place(x)), wanted)
        elif x.is_complex() and wanted.is_floating_point():
            wanted = op(x, 1)
            assert_same_bits(form(x, 1, out=x.real[:, 3]), wanted)
            break


@every_out
def test_wrong_out(op, device):
    """An out of a dtype that no result has is refused, by torch's class, before anything is written."""
    x = op.inputs((2, 30), "float32", 1, device, 1)
    for form in op.forms:
        wanted = op(x, 1)
        wrong = torch.zeros(wanted.shape, dtype=torch.complex64, device=device)
        if op in (CASES[0], CASES[1]) or (op in SEGMENTS and op.has_dtype):
            with pytest.raises(RuntimeError, match="dtype"):
                form(x, 1, dtype=torch.float64, out=wanted)
            continue
        with pytest.raises((RuntimeError, NotImplementedError)):
            form(x, 1, out=wrong)
        assert wrong._version == 0 and not wrong.any()


@every_out
def test_out_counts_its_write(op, device):
    """A backward pass that needs the old values of out raises an error; a call with a gradient refuses out."""
    inputs = op.inputs((5, 30), "float32", 2, device, 1)
    out = op(inputs, 1)
    if out.is_floating_point():
        leaf = torch.ones(out.shape, device=device, requires_grad=True)
        y = (leaf * out).sum()
        op(inputs, 1, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
    if op.has_gradient:
        tensors(inputs)[0].requires_grad_()
        for form in op.forms:
            with pytest.raises(RuntimeError, match="out=.*don't support automatic differentiation"):
                form(inputs, 1, out=out)


# --- many calls at once -----------------------------------------------------------------------------------------------


@every_case
def test_threads(op, device):
    """Calls of several threads at once, on a GPU each on a stream of its own."""
    inputs = [op.inputs((50, 700), "float32", 78, device, dim) for dim in (0, 1)]
    wanted = [op(x, dim) for dim, x in enumerate(inputs)]
    if device == "cuda":
        torch.cuda.synchronize()

    def work(dim):
        def calls():
            for _ in range(20):
                assert_same_bits(op(inputs[dim], dim), wanted[dim])

        if device == "cpu":
            return calls()
        with torch.cuda.stream(torch.cuda.Stream()):
            return calls()

    in_threads(work, [0, 1] * 3)


@every_case
def test_graph(op, cuda):
    """A captured call, and that of a gradient, read their input anew at every replay."""
    inputs = op.inputs((300, 5000), "float32", 76, "cuda", 1)
    x = tensors(inputs)[0]
    tall = op.around(x, 0)
    leaf = x.clone().requires_grad_(op.has_gradient)
    around = (leaf, *tensors(inputs)[1:]) if isinstance(inputs, tuple) else leaf

    def calls():
        results = [*tensors(op(inputs, 1)), *tensors(op(tall, 0))]
        if not op.has_gradient:
            return results
        return [*results, *torch.autograd.grad([y.sum() for y in tensors(op(around, 1))], leaf)]

    calls()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = calls()
    with torch.no_grad():
        x.copy_(op.elements((300, 5000), "float32", 77, "cuda"))
        leaf.copy_(x)
    graph.replay()
    for ours, wanted in zip(results, calls(), strict=True):
        assert_same_bits(ours, wanted)
