"""torch.autocast: torch's own policy on each device, without a cast of the input."""

import contextlib
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import model
from support import DTYPES, MEAN, POWSUMS, SUM, Kin, assert_same_bits, data, dtype_of
from table import CASES, SEGMENTS, VARIANCES, WEIGHTED, every_case, gradients, leaves, taken, tensors
from test_autograd import Calls

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values", "ignore:ComplexHalf support", "ignore:.*degrees of freedom"
)

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


def policy(op, x, **call):
    """The dtype that torch's function gives under autocast; where torch has none, there is no policy."""
    if op in POWSUMS or (isinstance(op, Kin) and not hasattr(torch, op.name)):
        return op(x, **call).dtype
    if op in SEGMENTS or op is WEIGHTED:
        return policy(SUM if op is WEIGHTED else op.whole, x[0], **call)
    return tensors(op.torch(x, **call))[0].dtype


@taken(*DTYPES)
def test_policy_of_cuda(op, name):
    """Every result has the dtype that torch's op gives it, and nothing is cast."""
    if op in VARIANCES and name not in ("float32", "float64", "float16", "bfloat16"):
        pytest.skip("torch has no such variance")
    with without_a_gpu():
        x = torch.empty(3, 40, dtype=dtype_of(name), device="cuda")
        inputs = (x, torch.empty(4, dtype=torch.int64, device="cuda")) if op in SEGMENTS else x
        inputs = (x, x) if op is WEIGHTED else inputs
        for target, reduce in itertools.product(op.targets(name, *TARGETS) if op.has_dtype else [None], op.forms):
            named = dict(dtype=target) if target else {}
            with Calls() as calls:
                ours = tensors(reduce(inputs, 1, **named))
            assert len([call for call in calls.names if not call.startswith("device")]) == 1, calls.names
            if name.startswith("float8") and op is not SUM:
                continue  # of which torch has none
            with contextlib.suppress(NotImplementedError):
                assert {y.dtype for y in ours} == {policy(op, inputs, dim=1, **named)}


@pytest.mark.parametrize("lower", ["float16", "bfloat16"])
@taken(*DTYPES)
def test_bits(op, name, lower, device):
    """Each device's policy on real data: the result's dtype is torch's, and its bits are those of that dtype=."""
    x = op.inputs((3, 900), name, 75, device, 1)
    plain = op(x, 1)
    with torch.autocast(device, dtype_of(lower)):
        ours = op.function(x, 1)
        if "float8" not in name and not (op is WEIGHTED and name in ("uint16", "uint32", "uint64")):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # torch has no unsigned integers
                assert {y.dtype for y in tensors(ours)} == {policy(op, x, dim=1)}
        if op.has_dtype and op.takes(name, torch.bfloat16):
            assert op(x, 1, dtype=torch.bfloat16).dtype == torch.bfloat16
        with torch.autocast(device, enabled=False):
            assert_same_bits(op.function(x, 1), plain)
        assert_same_bits(op.function(x, 1), ours)
    if op.has_dtype and op.takes(name, ours.dtype):
        assert_same_bits(ours, op(x, 1, dtype=ours.dtype))
    elif not op.name.endswith("logsumexp"):
        assert_same_bits(ours, plain)
    else:
        assert_same_bits(ours.to(plain.dtype), plain)
    if device == "cpu" and not op.name.endswith("prod"):  # whose policy on the CPU is float32
        assert_same_bits(ours, plain)
    assert_same_bits(op.function(x, 1), plain)


@every_case
def test_compile(op, device):
    """Compiled under autocast, forward and backward, the dtypes and bits of eager."""
    torch._dynamo.reset()
    reduce = op.function

    def function(x):
        with torch.autocast(device, torch.bfloat16):
            return reduce(tree_map(lambda t: t * 2 if t.is_floating_point() else t, x), -1)

    x = op.inputs((5, 700), "float16", 76, device, -1)
    x = leaves(op, tree_map(lambda t: t.clamp(-9, 9), x) if op not in SEGMENTS else x)
    ours, theirs = torch.compile(function, fullgraph=True, backend="aot_eager")(x), function(x)
    assert_same_bits(ours, theirs)
    assert_same_bits(gradients(ours, x), gradients(theirs, x))


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


@pytest.mark.parametrize("op", [op for op in CASES if op not in SEGMENTS], ids=str)
def test_vmap(op):
    """vmap under autocast is still one call, without a cast."""
    with without_a_gpu():
        x = torch.empty(3, 40, dtype=torch.float16, device="cuda")
        inputs = (x, x) if op is WEIGHTED else x
        with Calls() as calls:
            ours = tensors(torch.vmap(op.function)(inputs))
        assert {y.dtype for y in ours} == {policy(op, inputs)}
        assert len([call for call in calls.names if not call.startswith(("device", "permute"))]) == 1, calls.names


def test_gradient(op, cuda):
    """The gradient, of a float32 result too, is the input's float16, and is still a view; torch.func too."""
    x = data((300, 40), "float16", device=cuda).requires_grad_()
    with torch.autocast(cuda):
        y = op.function(x, 0)
        assert y.dtype == op.torch(x, 0).dtype
        assert torch.func.grad(op.function)(x).dtype == torch.float16
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert grad.dtype == torch.float16 and grad.stride() == (0, 1) and grad.untyped_storage().nbytes() == 40 * 2
