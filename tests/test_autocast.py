"""torch.autocast: torch.sum's policy on each device, without a cast of the input."""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_reduce
from support import DTYPES, assert_same_bits, data, dtype_of
from test_autograd import Calls

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

SUM = torch.ops.gpureduce.sum
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


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", DTYPES)
def test_policy_of_cuda(name, target):
    """On CUDA floats below float64 give float32 where no dtype is given; all others are left alone, as in torch."""
    dtype = target and dtype_of(target)
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=dtype_of(name), device="cuda")
        for total in (SUM, torch_reduce.sum):
            with Calls() as calls:
                ours = total(x, [1], dtype=dtype)
            assert ours.dtype == torch.sum(x, [1], dtype=dtype).dtype
            assert [call for call in calls.names if not call.startswith("device")] == ["sum.default"]  # nothing cast
        if target is None and dtype_of(name).is_floating_point and name != "float64":
            assert ours.dtype == torch.float32


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
@pytest.mark.parametrize("name", DTYPES)
def test_bits(name, lower, device):
    """Each device's policy on real data: the result's dtype is torch.sum's, and its bits are those of that dtype=."""
    x = data((3, 900), name, device=device)
    plain = SUM(x, [1])
    with torch.autocast(device, dtype_of(lower)):
        ours = torch_reduce.sum(x, 1)
        with contextlib.suppress(NotImplementedError):  # torch.sum has no float8
            assert ours.dtype == torch.sum(x, 1).dtype
        assert SUM(x, [1], dtype=torch.bfloat16).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert_same_bits(torch_reduce.sum(x, 1), plain)
        assert_same_bits(torch_reduce.sum(x, 1), ours)
    assert_same_bits(ours, SUM(x, [1], dtype=ours.dtype))
    if device == "cpu":
        assert_same_bits(ours, plain)
    assert_same_bits(torch_reduce.sum(x, 1), plain)


def test_vmap():
    """vmap under autocast is still one call, without a cast."""
    with without_a_gpu():
        x = torch.empty(3, 4, dtype=torch.float16, device="cuda")
        with Calls() as calls:
            assert torch.vmap(torch_reduce.sum)(x).dtype == torch.float32
        assert [call for call in calls.names if not call.startswith("device")] == ["sum.default"]


def test_gradient(cuda):
    """The gradient of a float32 result is the input's float16, and is still a view; torch.func too."""
    x = data((300, 40), "float16", device=cuda).requires_grad_()
    with torch.autocast(cuda):
        y = torch_reduce.sum(x, 0)
        assert torch.func.grad(torch_reduce.sum)(x).dtype == torch.float16
    assert y.dtype == torch.float32
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert grad.dtype == torch.float16 and grad.stride() == (0, 1) and grad.untyped_storage().nbytes() == 40 * 2


def test_compile(device):
    """Compiled under autocast, forward and backward, the dtypes and bits of eager."""
    torch._dynamo.reset()

    def function(x):
        with torch.autocast(device, torch.bfloat16):
            return torch_reduce.sum(x * 2, -1), torch_reduce.sum(x, 0, dtype=torch.bfloat16)

    x = data((5, 700), "float16", device=device).requires_grad_()
    ours, theirs = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    for a, b in zip(ours, theirs, strict=True):
        assert_same_bits(a, b)
    gradients = [torch.autograd.grad([y.sum() for y in results], x)[0] for results in (ours, theirs)]
    assert_same_bits(*gradients)
