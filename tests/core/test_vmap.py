"""torch.vmap: one reduction for the whole batch, with the bits of the calls one by one, for every operation."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from support import DTYPES, assert_same_bits, name_of
from table import CASES, SEGMENTS, VARIANCES, WEIGHTED, every_case, rotated, tensors, walks
from test_autograd import Calls

pytestmark = pytest.mark.filterwarnings(
    "error:There is a performance drop",
    "ignore:Casting complex values",
    "ignore:ComplexHalf support",
    "ignore:.*degrees of freedom",
)

LOGICAL_DIMS = [None, (), (0,), (1,), (2,), (-1,), (-3,), (0, 1), (2, 0), (-1, -2), (0, 1, 2), 0, -1]
OF_DIMS = [op for op in CASES if op not in SEGMENTS]  # whose dims are a sum's


def batched(op, view, in_dim, dim):
    """The inputs of a batch of calls over `dim`, and where the batch is in each: all have it but offsets."""
    inputs = op.around(view, dim)
    if op in SEGMENTS:
        return op.around(view.select(in_dim, 0), dim), (in_dim, None), lambda i, x: (view.select(in_dim, i), x[1])
    places = (in_dim,) * len(inputs) if isinstance(inputs, tuple) else in_dim
    return inputs, places, lambda i, x: tree_map(lambda t: t.select(in_dim, i), x)


def stacked(results):
    """Results one by one, which may be tuples, as vmap gives them."""
    if isinstance(results[0], tuple):
        return tuple(map(torch.stack, zip(*results, strict=True)))
    return torch.stack(results)


def check(op, view, in_dim, dim, keepdim=False, dtype=None, function=None):
    """The bits of the calls one by one, if there is such a call."""
    if not op.has(view.select(in_dim, 0), dim, keepdim):
        return
    function = function or (lambda x: op(x, dim, keepdim, dtype=dtype))
    inputs, places, one = batched(op, view, in_dim, dim)
    whole = (view, inputs[1]) if op in SEGMENTS else inputs
    each = [function(one(i, inputs)) for i in range(view.shape[in_dim])]
    assert_same_bits(torch.vmap(function, (places,))(whole), stacked(each), f"{in_dim=}, {dim=}, {keepdim=}, {dtype=}")


@every_case
def test_dims(op, device):
    """The batch at any place, any dims, keepdim: shape and bits of the calls one by one."""
    x = op.elements((3, 5, 4, 9), "float32", 70, device)
    for view, (k, in_dim) in itertools.product((x, x.permute(3, 1, 0, 2)[::2]), enumerate([0, 1, 2, 3, -1, -3])):
        for dim, keepdim in rotated(itertools.product(LOGICAL_DIMS, (False, True)), k + (view is x), 2 + (k > 3)):
            check(op, view, in_dim, dim, keepdim)


@walks(*DTYPES)
def test_dtypes(op, name, device):
    """Every dtype, and conversions; several chunks, so that another order of additions would show."""
    x = op.elements((3, 2, 9000), name, 71, device)
    targets = op.targets(name, None, "float64", "int32", "bool", "complex128", "float32") if op.has_dtype else [None]
    for k, dtype in enumerate(targets):
        check(op, x, k % 2, -1, dtype=dtype)
        named = {"dtype": dtype} if dtype else {}
        check(op, x, (k + 1) % 2, -1, function=lambda x, named=named: op.function(x, -1, **named))


@walks("int8", "float8_e5m2", "float32", "complex64", cases=OF_DIMS)
def test_scalars(op, name, device):
    """A batch of 0-d tensors: each is its own result, whatever names its dims, with the result's dtype."""
    x = op.elements((5,), name, 72, device)
    targets = op.targets(name, None, "float64", "bool") if op.has_dtype else [None]
    for dim, keepdim, dtype in itertools.product((None, (), 0, -1, (0,)), (False, True), targets):
        check(op, x, 0, dim, keepdim, dtype)


@every_case
def test_nested(op, device):
    """vmap of vmap of vmap, each batch at its own place."""
    x = op.elements((2, 3, 4, 5, 6), "float32", 73, device)
    for first, second, third in itertools.product((0, 2, -1), (0, 1), (0, -1)):
        for dim in (None, 0, -1, (0, 1)):
            keepdim = op not in SEGMENTS
            inner = x.select(first, 0).select(second, 0).select(third, 0)
            if not op.has(inner, dim, keepdim):
                continue
            call = lambda x, d=dim, k=keepdim: op.function(x, d, k)  # noqa: E731
            places = [(d, None) if op in SEGMENTS else (d, d) if op is WEIGHTED else d for d in (first, second, third)]
            inputs = (x, op.around(inner, dim)[1]) if op in SEGMENTS else op.around(x, dim)

            def part(x, at, i):
                return (x[0].select(at, i), x[1]) if op in SEGMENTS else tree_map(lambda t: t.select(at, i), x)

            function, one_by_one = call, call
            for at, d in ((third, places[2]), (second, places[1]), (first, places[0])):
                function = torch.vmap(function, (d,))
                one_by_one = lambda x, f=one_by_one, at=at: stacked(  # noqa: E731
                    [f(part(x, at, i)) for i in range(tensors(x)[0].shape[at])]
                )
            assert_same_bits(function(inputs), one_by_one(inputs))


@every_case
def test_nested_with_one_level_batched(op, device):
    """An input batched at an outer level alone passes the inner one by; one batched at none passes both."""
    x, plain = op.elements((3, 4, 5), "float32", 1, device), op.inputs((6, 700), "float32", 1, device, 0)
    around = op.around(x[0], 0)

    def first(results):
        return tensors(results)[0]

    def inner(y, x):
        x = (x, *around[1:]) if isinstance(around, tuple) else x
        return first(op(x, 0)), y + first(op(plain, 0)).float()

    zero = torch.zeros(2, *first(op(plain, 0)).shape, device=device)
    ours, others = torch.vmap(lambda x: torch.vmap(inner, (0, None))(zero, x))(x)
    each = [first(op((one, *around[1:]) if isinstance(around, tuple) else one, 0)) for one in x]
    assert_same_bits(ours, torch.stack(each).unsqueeze(1).repeat_interleave(2, 1))
    assert_same_bits(others, first(op(plain, 0)).float().expand(3, 2, *zero.shape[1:]))


@every_case
def test_is_one_reduction(op, device):
    """The whole batch reaches the backend in one call and without a copy, nested too."""
    x = op.elements((3, 4, 5, 6), "float32", 1, device)
    inner = op.around(x[:, 0, :, 0], 0)
    nested = (x, inner[1]) if op in SEGMENTS else op.around(x, 0)
    single = (x[0], op.around(x[0, :, :, 0], 0)[1]) if op in SEGMENTS else op.around(x[0], 0)
    deep, flat = (((-1, None), (1, None)), (2, None)) if op in SEGMENTS else ((-1, 1), 2)
    if op is WEIGHTED:
        deep, flat = (((-1, -1), (1, 1)), (2, 2))
    with Calls() as calls:
        torch.vmap(torch.vmap(lambda x: op.function(x, 0), (deep[0],)), (deep[1],))(nested)
        torch.vmap(lambda x: op.function(x, 0), (flat,))(single)
    ours = [name for name in calls.names if name.split(".")[0].lstrip("_") in (op.name.lstrip("_"), "var_mean")]
    assert len(ours) == 2, calls.names
    assert set(calls.names) - set(ours) <= {"permute.default", "view.default", "select.int", "unsqueeze.default"}


@pytest.mark.parametrize("op", OF_DIMS, ids=str)
def test_out_dims_and_chunks(op, device):
    """vmap's own options."""
    inputs = op.inputs((4, 6, 50), "float32", 1, device)
    wanted = op(inputs, [2])
    assert_same_bits(torch.vmap(lambda x: op(x, [1]), out_dims=1)(inputs), tree_map(lambda t: t.t(), wanted))
    assert_same_bits(torch.vmap(lambda x: op(x, [1]), chunk_size=3)(inputs), wanted)


@walks("complex64", "float32")
def test_layouts(op, name, device):
    """Views as they come: expanded batches, nothing to add, lazily conjugated and negated input."""
    x = op.elements((3, 4, 50), name, 1, device)
    views = [torch._neg_view(x), x[:1].expand(5, 4, 50), x[:, :1].expand(3, 4, 50), x[:, :, :0], x[:, :0]]
    if x.is_complex():
        views += [x.conj()] + [x.conj().imag] * op.takes(name_of(x.real.dtype))
    for view, dim in itertools.product(views, (1, None)):
        check(op, view, 0, dim)


@every_case
def test_traces(op, device):
    """Fake tensors, and torch.compile with dynamic sizes and one graph."""
    torch._dynamo.reset()
    places = (1, None) if op in SEGMENTS else (1, 1) if op is WEIGHTED else 1
    reduce = op.function
    function = torch.vmap(lambda x: reduce(x, -1), (places,))
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, shape in enumerate(((3, 4, 50), (9, 5, 4097))):
        view = op.elements(shape, "float32", 1, device)
        x = (view, op.around(view[:, 0], -1)[1]) if op in SEGMENTS else op.around(view)
        with FakeTensorMode(allow_non_fake_inputs=False) as mode:
            fake = function(tree_map(mode.from_tensor, x))
        wanted = function(x)
        assert [t.shape for t in tensors(fake)] == [t.shape for t in tensors(wanted)]
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            assert_same_bits(compiled(x), wanted)


@pytest.mark.parametrize("op", OF_DIMS, ids=str)
def test_errors(op, device):
    """Dims count from the logical rank; out= and tensors that left their vmap are refused as torch refuses them."""
    x = op.inputs((3, 4, 5), "float32", 1, device)
    for function in (op.function, op.torch) if op.name in ("sum", "mean", "_norm_2") else (op.function,):
        with pytest.raises(IndexError, match=r"\[-2, 1\]"):
            torch.vmap(lambda x, f=function: f(x, 2))(x)
        with pytest.raises(RuntimeError, match="multiple times"):
            torch.vmap(lambda x, f=function: f(x, (0, -2)))(x)
        if op.has_out and op not in VARIANCES:  # whose batch is written as one
            with pytest.raises(RuntimeError, match="Batching rule not implemented.*out="):
                out = op(x, 1)
                torch.vmap(lambda x, out, f=function: f(x, 0, out=out))(x, out)
        escaped = []
        torch.vmap(lambda x, e=escaped: e.append(x) or tensors(x)[0])(x)
        with pytest.raises(RuntimeError, match="escaped from inside a function being vmapped"):
            function(escaped[0])
