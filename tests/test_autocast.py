"""torch.autocast: torch's own policy on each device, without a cast of the input."""

import contextlib
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import model
from support import DTYPES, MEAN, SUM, assert_same_bits, data, dtype_of, every_operation, taken
from test_autograd import Calls

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

TARGETS = [None, "float16", "bfloat16", "float64", "int64"]


@contextlib.contextmanager
def without_a_gpu():
    """CUDA's autocast over fake CUDA tensors: the policy needs no GPU (and torch.autocast refuses to run without)."""
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            yield
    finally:
        torch.set_autocast_enabled("cuda", before)


@pytest.mark.parametrize("name", DTYPES)
def test_policy_of_cuda(name, op):
    """Every result has the dtype that torch's op gives it, and nothing is cast."""
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=dtype_of(name), device="cuda")
        for target, reduce in itertools.product(op.targets(name, *TARGETS), op.forms):
            with Calls() as calls:
                ours = reduce(x, [1], dtype=target)
            assert [call for call in calls.names if not call.startswith("device")] == [f"{op}.default"]
            if target or not name.startswith("float8") or op is SUM:
                assert ours.dtype == op.torch(x, [1], dtype=target).dtype


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
def test_policies_of_cuda(name):
    """A sum of floats below float64 is float32 where no dtype is given; a mean stays what it is."""
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=dtype_of(name), device="cuda")
        assert SUM(x).dtype == (torch.float64 if name == "float64" else torch.float32)
        assert MEAN(x).dtype == dtype_of(model.natural_result(name))


def test_where_it_does_not_apply():
    """CUDA's autocast leaves CPU tensors and out= alone, and ends where it is switched off."""
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=torch.float16, device="cuda")
        out = torch.empty(3, dtype=torch.float16, device="cuda")
        assert SUM(x, [1]).dtype == torch.float32
        assert SUM(x, [1], out=out) is out and out.dtype == torch.float16
        assert SUM(torch.empty(3, 4, dtype=torch.float16), [1]).dtype == torch.float16
        torch.set_autocast_enabled("cuda", False)
        assert SUM(x, [1]).dtype == torch.float16
        torch.set_autocast_enabled("cuda", True)
        assert SUM(x, [1]).dtype == torch.float32


@pytest.mark.parametrize("lower", ["float16", "bfloat16"])
@pytest.mark.parametrize("op, name", taken(*DTYPES), ids=str)
def test_bits(op, name, lower, device):
    """Each device's policy on real data: the result's dtype is torch's, and its bits are those of that dtype=."""
    x = data((3, 900), name, device=device)
    plain = op(x, [1])
    with torch.autocast(device, dtype_of(lower)):
        ours = op.function(x, 1)
        with contextlib.suppress(NotImplementedError):  # torch has no float8
            assert ours.dtype == op.torch(x, 1).dtype
        assert op(x, [1], dtype=torch.bfloat16).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert_same_bits(op.function(x, 1), plain)
        assert_same_bits(op.function(x, 1), ours)
    assert_same_bits(ours, op(x, [1], dtype=ours.dtype))
    if device == "cpu":
        assert_same_bits(ours, plain)
    assert_same_bits(op.function(x, 1), plain)


@every_operation
def test_vmap(op):
    """vmap under autocast is still one call, without a cast."""
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=torch.float16, device="cuda")
        with Calls() as calls:
            ours = torch.vmap(op.function)(x)
        assert ours.dtype == torch.vmap(op.torch)(x).dtype
        assert [call for call in calls.names if not call.startswith("device")] == [f"{op}.default"]


def test_gradient(op, cuda):
    """The gradient, of a float32 result too, is the input's float16, and is still a view; torch.func too."""
    x = data((300, 40), "float16", device=cuda).requires_grad_()
    with torch.autocast(cuda):
        y = op.function(x, 0)
        assert y.dtype == op.torch(x, 0).dtype
        assert torch.func.grad(op.function)(x).dtype == torch.float16
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert grad.dtype == torch.float16 and grad.stride() == (0, 1) and grad.untyped_storage().nbytes() == 40 * 2


def test_compile(op, device):
    """Compiled under autocast, forward and backward, the dtypes and bits of eager."""
    torch._dynamo.reset()
    reduce = op.function

    def function(x):
        with torch.autocast(device, torch.bfloat16):
            return reduce(x * 2, -1), reduce(x, 0, dtype=torch.bfloat16)

    x = data((5, 700), "float16", device=device).requires_grad_()
    ours, theirs = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    for a, b in zip(ours, theirs, strict=True):
        assert_same_bits(a, b)
    gradients = [torch.autograd.grad([y.sum() for y in results], x)[0] for results in (ours, theirs)]
    assert_same_bits(*gradients)
