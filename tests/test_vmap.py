"""torch.vmap: one reduction for the whole batch, with the bits of the calls one by one."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import model
from support import COMPLEX, DTYPES, assert_same_bits, data, dtype_of, every_operation
from test_autograd import Calls

pytestmark = pytest.mark.filterwarnings(
    "error:There is a performance drop", "ignore:Casting complex values", "ignore:ComplexHalf support"
)

LOGICAL_DIMS = [None, (), (0,), (1,), (2,), (-1,), (-3,), (0, 1), (2, 0), (-1, -2), (0, 1, 2)]


def one_by_one(function, x, in_dim, out_dim=0):
    """What vmap stands for."""
    return torch.stack([function(part) for part in x.unbind(in_dim)], out_dim)


@pytest.mark.parametrize("dim", LOGICAL_DIMS, ids=str)
@pytest.mark.parametrize("in_dim", [0, 1, 2, 3, -1, -3])
@every_operation
def test_dims(in_dim, dim, op, device):
    """The batch at any place, any dims, keepdim: shape and bits of the calls one by one."""
    x = data((3, 5, 4, 70), "float32", device=device)
    for view, keepdim in itertools.product((x, x.permute(3, 1, 0, 2)[::2]), (False, True)):

        def function(x, keepdim=keepdim):
            return op(x, dim, keepdim)

        assert_same_bits(torch.vmap(function, in_dim)(view), one_by_one(function, view, in_dim))


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name, op, device):
    """Every dtype, and conversions; several chunks, so that another order of additions would show."""
    x = data((3, 2, 9000), name, device=device)
    targets = (None, "float64", "int32", "bool") if name not in COMPLEX else (None, "complex128", "float32")
    for target, in_dim in itertools.product(op.targets(name, *targets), (0, 1)):
        view = x if in_dim == 0 else x.transpose(0, 1)

        def function(x, target=target):
            return op.function(x, -1, dtype=target)

        assert_same_bits(torch.vmap(function, in_dim)(view), one_by_one(function, view, in_dim))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [None, (), 0, -1, (0,)], ids=str)
def test_scalars(dim, keepdim, op, device):
    """A batch of 0-d tensors: each is its own result, whatever names its dims, with the result's dtype."""
    for name in ("int8", "float8_e5m2"):
        x = data((5,), name, device=device)
        for target in op.targets(name, None, "float64", "bool"):
            ours = torch.vmap(lambda x, target=target: op.function(x, dim, keepdim, dtype=target))(x)
            assert_same_bits(ours, x.double().to(target or dtype_of(model.natural_result(name))))


@pytest.mark.parametrize("in_dims", list(itertools.product((0, 2, -1), (0, 1), (0, -1))), ids=str)
@every_operation
def test_nested(in_dims, op, device):
    """vmap of vmap of vmap, each batch at its own place."""
    x = data((2, 3, 4, 5, 6), "float32", device=device)
    first, second, third = in_dims
    for dim in (None, 0, -1, (0, 1)):

        def function(x, dim=dim):
            return op.function(x, dim, keepdim=True)

        ours = torch.vmap(torch.vmap(torch.vmap(function, third), second), first)(x)
        inner = [[one_by_one(function, b, third) for b in a.unbind(second)] for a in x.unbind(first)]
        assert_same_bits(ours, torch.stack([torch.stack(row) for row in inner]))


@every_operation
def test_nested_with_one_level_batched(op, device):
    """An input batched at an outer level alone passes the inner one by; one batched at none passes both."""
    x, plain = data((3, 4, 5), "float32", device=device), data((6, 700), "float32", device=device)

    def inner(y, x):
        return op(x, [0]), y + op(plain, [1])

    ours, others = torch.vmap(lambda x: torch.vmap(inner, (0, None))(torch.zeros(2, 6, device=device), x))(x)
    assert_same_bits(ours, op(x, [1]).unsqueeze(1).expand(3, 2, 5))
    assert_same_bits(others, op(plain, [1]).expand(3, 2, 6))


@every_operation
def test_is_one_reduction(op, device):
    """The whole batch reaches the backend in one call and without a copy, nested too."""
    x = data((3, 4, 5, 6), "float32", device=device)
    with Calls() as calls:
        torch.vmap(torch.vmap(lambda x: op.function(x, 0), -1), 1)(x)
        torch.vmap(op.function, 2)(x)
    assert calls.names.count(f"{op}.default") == 2
    assert set(calls.names) == {f"{op}.default", "permute.default"}  # where vmap moves the result's batch to the front


@every_operation
def test_out_dims_and_chunks(op, device):
    """vmap's own options."""
    x = data((4, 6, 50), "float32", device=device)
    wanted = op(x, [2])
    assert_same_bits(torch.vmap(lambda x: op(x, [1]), out_dims=1)(x), wanted.t())
    assert_same_bits(torch.vmap(lambda x: op(x, [1]), chunk_size=3)(x), wanted)


@every_operation
def test_layouts(op, device):
    """Views as they come: expanded batches, nothing to add, lazily conjugated and negated input."""
    x = data((3, 4, 50), "complex64", device=device)
    views = [x.conj(), x.conj().imag, x[:1].expand(5, 4, 50), x[:, :1].expand(3, 4, 50), x[:, :, :0], x[:, :0]]
    for view, dim in itertools.product(views, ([1], None)):
        assert_same_bits(
            torch.vmap(lambda x, dim=dim: op(x, dim))(view), one_by_one(lambda x, dim=dim: op(x, dim), view, 0)
        )


@every_operation
def test_traces(op, device):
    """Fake tensors, and torch.compile with dynamic sizes and one graph."""
    torch._dynamo.reset()
    with FakeTensorMode():
        assert torch.vmap(lambda x: op(x, [0]), 1)(torch.empty(3, 4, 5, device=device)).shape == (4, 5)
    reduce = op.function
    function = torch.vmap(lambda x: reduce(x, -1), 1)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, shape in enumerate(((3, 4, 50), (9, 5, 4097))):
        x = data(shape, "float32", device=device)
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            assert_same_bits(compiled(x), function(x))


@every_operation
def test_errors(op, device):
    """Dims count from the logical rank; out= and tensors that left their vmap are refused as torch refuses them."""
    x = torch.ones(3, 4, 5, device=device)
    for function in (op.torch, op.function):
        with pytest.raises(IndexError, match=r"\[-2, 1\]"):
            torch.vmap(lambda x, f=function: f(x, 2))(x)
        with pytest.raises(RuntimeError, match="appears multiple times"):
            torch.vmap(lambda x, f=function: f(x, (0, -2)))(x)
        with pytest.raises(RuntimeError, match="Batching rule not implemented.*out="):
            torch.vmap(lambda x, out, f=function: f(x, 0, out=out))(x, torch.empty(3, 5, device=device))
        escaped = []
        torch.vmap(lambda x, e=escaped: e.append(x) or x)(x)
        with pytest.raises(RuntimeError, match="escaped from inside a function being vmapped"):
            function(escaped[0])
