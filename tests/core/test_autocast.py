"""torch.autocast: torch's own policy on each device, without a cast of the input."""

import contextlib
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

import model
import torch_reduce
from support import DTYPES, MEAN, NORM, POWSUMS, SUM, Kin, assert_same_bits, data, dtype_of, kin
from table import CASES, SEGMENTS, VARIANCES, WEIGHTED, every_case, gradients, leaves, tensors
from test_autograd import Calls

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values", "ignore:ComplexHalf support", "ignore:.*degrees of freedom"
)

TARGETS = [None, "float16", "bfloat16", "float64", "int64"]
COMPILED = [SUM, MEAN, NORM, POWSUMS[0], *kin("prod", "amax", "logsumexp")]


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


@every_case
def test_policy_of_cuda(op):
    """Every result has the dtype that torch's op gives it, and nothing is cast."""
    for name in filter(op.takes, DTYPES):
        with without_a_gpu():
            x = torch.empty(3, 40, dtype=dtype_of(name), device="cuda")
            inputs = (x, torch.empty(4, dtype=torch.int64, device="cuda")) if op in SEGMENTS else x
            inputs = (x, x) if op is WEIGHTED else inputs
            for target, reduce in itertools.product(op.targets(name, *TARGETS) if op.has_dtype else [None], op.forms):
                named = dict(dtype=target) if target else {}
                with Calls() as calls:
                    ours = tensors(reduce(inputs, 1, **named))
                assert len([call for call in calls.names if not call.startswith("device")]) == 1, (name, calls.names)
                if name.startswith("float8") and op is not SUM:
                    continue  # torch has no such function
                with contextlib.suppress(NotImplementedError):
                    assert {y.dtype for y in ours} == {policy(op, inputs, dim=1, **named)}, name


@pytest.mark.parametrize("lower", ["float16", "bfloat16"])
@every_case
def test_bits(op, lower, device):
    """Each device's policy on real data: the result has torch's dtype, and the bits that dtype= gives."""
    for name in filter(op.takes, DTYPES):
        x = op.inputs((3, 900), name, 75, device, 1)
        plain = op(x, 1)
        with torch.autocast(device, dtype_of(lower)):
            ours = op.function(x, 1)
            if "float8" not in name and not (op is WEIGHTED and name in ("uint16", "uint32", "uint64")):
                with contextlib.suppress(NotImplementedError, RuntimeError):  # torch has no unsigned integers
                    assert {y.dtype for y in tensors(ours)} == {policy(op, x, dim=1)}, name
            if op.has_dtype and op.takes(name, torch.bfloat16):
                assert op(x, 1, dtype=torch.bfloat16).dtype == torch.bfloat16
            with torch.autocast(device, enabled=False):
                assert_same_bits(op.function(x, 1), plain, name)
            assert_same_bits(op.function(x, 1), ours, name)
        if op.has_dtype and op.takes(name, ours.dtype):
            assert_same_bits(ours, op(x, 1, dtype=ours.dtype), name)
        elif not op.name.endswith("logsumexp"):
            assert_same_bits(ours, plain, name)
        else:
            assert_same_bits(ours.to(plain.dtype), plain, name)
        if device == "cpu" and not op.name.endswith("prod"):  # whose policy on the CPU is float32
            assert_same_bits(ours, plain, name)
        assert_same_bits(op.function(x, 1), plain, name)


@pytest.mark.parametrize("op", [*COMPILED, *VARIANCES[:1], WEIGHTED, *SEGMENTS[::5]], ids=str)
def test_compile(op, device):
    """Compiled under autocast, forward and backward, the dtypes and bits of eager: of operations of each policy."""
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


def test_policies_of_cuda():
    """A sum of floats below float64 is float32 where no dtype is given; a mean stays what it is."""
    for name in ("float16", "bfloat16", "float32", "float64", "float8_e5m2"):
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


# --- functions that keep their input's shape, losses, and sums by index -----------------------------------------------

F = torch.nn.functional
_INDEX = [0, 2, 2, 1]


def _target(x):
    return torch.tensor(_INDEX, device=x.device)


def _places(x):
    return _target(x)[:, None].expand(4, 8)


BESIDE = {  # ours, and torch's
    "softmax": (lambda x, w: torch_reduce.softmax(x, 1), lambda x, w: torch.softmax(x, 1)),
    "softmax of a dtype": (
        lambda x, w: torch_reduce.softmax(x, 1, dtype=torch.bfloat16),
        lambda x, w: torch.softmax(x, 1, dtype=torch.bfloat16),
    ),
    "log_softmax": (lambda x, w: torch_reduce.log_softmax(x, 0), lambda x, w: torch.log_softmax(x, 0)),
    "layer_norm": (lambda x, w: torch_reduce.layer_norm(x, 8, w, w), lambda x, w: F.layer_norm(x, (8,), w, w)),
    "layer_norm without weights": (lambda x, w: torch_reduce.layer_norm(x, 8), lambda x, w: F.layer_norm(x, (8,))),
    "rms_norm": (lambda x, w: torch_reduce.rms_norm(x, 8, w), lambda x, w: F.rms_norm(x, (8,), w)),
    "rms_norm without a weight": (lambda x, w: torch_reduce.rms_norm(x, 8), lambda x, w: F.rms_norm(x, (8,))),
    **{
        f"cross_entropy: {reduction}": (
            lambda x, w, r=reduction: torch_reduce.cross_entropy(x, _target(x), w, reduction=r),
            lambda x, w, r=reduction: F.cross_entropy(x, _target(x), w, reduction=r),
        )
        for reduction in ("mean", "sum", "none")
    },
    "cross_entropy, smoothed": (
        lambda x, w: torch_reduce.cross_entropy(x, _target(x), label_smoothing=0.1),
        lambda x, w: F.cross_entropy(x, _target(x), label_smoothing=0.1),
    ),
    "cross_entropy of probabilities": (
        lambda x, w: torch_reduce.cross_entropy(x, x),
        lambda x, w: F.cross_entropy(x, x),
    ),
    "index_add": (
        lambda x, w: torch_reduce.index_add(x, 0, _target(x), x),
        lambda x, w: torch.index_add(x, 0, _target(x), x),
    ),
    "scatter_add": (
        lambda x, w: torch_reduce.scatter_add(x, 0, _places(x), x),
        lambda x, w: torch.scatter_add(x, 0, _places(x), x),
    ),
    "index_reduce": (
        lambda x, w: torch_reduce.index_reduce(x, 0, _target(x), x, "mean"),
        lambda x, w: torch.index_reduce(x, 0, _target(x), x, "mean"),
    ),
    "scatter_reduce": (
        lambda x, w: torch_reduce.scatter_reduce(x, 0, _places(x), x, "amax"),
        lambda x, w: torch.scatter_reduce(x, 0, _places(x), x, "amax"),
    ),
    "embedding": (lambda x, w: torch_reduce.embedding(_target(x), x), lambda x, w: F.embedding(_target(x), x)),
    "embedding_bag": (
        lambda x, w: torch_reduce.embedding_bag(_target(x), x, _target(x)[:2], mode="mean"),
        lambda x, w: F.embedding_bag(_target(x), x, _target(x)[:2], mode="mean"),
    ),
}
WIDENED_ON_CUDA = {
    "segment_softmax": lambda x, w: torch_reduce.segment_softmax(x, _target(x)[:2]),
    "log_prob": lambda x, w: torch_reduce.log_prob(x, _target(x)),
}
KEPT = {
    "index_sum": lambda x, w: torch_reduce.index_sum(x, _target(x), 5),
    "gather_sum": lambda x, w: torch_reduce.gather_sum(x, _target(x), _target(x), 5),
    "moe_dispatch": lambda x, w: torch_reduce.moe_dispatch(x, torch_reduce.moe_plan(_target(x)[:, None], 5)),
    "moe_combine": lambda x, w: torch_reduce.moe_combine(x, _target(x)[:, None], x[:, :1].float()),
    "index_mean": lambda x, w: torch_reduce.index_mean(x, _target(x), 5),
    "index_amax": lambda x, w: torch_reduce.index_amax(x, _target(x), 5),
}


FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("function", BESIDE)
def test_policy_of_rows_and_indices(function, device):
    """The result has the dtype of torch's function, alone and in vmap, and outside again that of the input."""
    ours, theirs = BESIDE[function]
    for name in FLOATS:
        x, w = data((4, 8), name, 77, device), data((8,), name, 78, device)
        plain = ours(x, w)
        with torch.autocast(device, torch.float16 if name == "float16" else torch.bfloat16):
            found = ours(x, w)
            assert found.dtype == theirs(x, w).dtype
            assert torch.vmap(ours, (0, None))(torch.stack([x, x]), w).dtype == found.dtype
            with torch.autocast(device, enabled=False):
                assert_same_bits(ours(x, w), plain)
        assert_same_bits(found.to(plain.dtype), plain)  # the wide result, unrounded
        with without_a_gpu():
            x, w = torch.empty(4, 8, dtype=x.dtype, device="cuda"), torch.empty(8, dtype=x.dtype, device="cuda")
            if function != "scatter_add" or name != "bfloat16":  # torch's fails, as the lower dtype is float16 here
                assert ours(x, w).dtype == theirs(x, w).dtype


@pytest.mark.parametrize("function", [*WIDENED_ON_CUDA, *KEPT])
def test_policy_of_what_torch_has_not(function):
    """segment_softmax follows softmax, log_prob is float32 anyway; sums by index stay, as index_add does."""
    for name in FLOATS:
        wide = dtype_of(name) if name == "float64" else torch.float32
        with without_a_gpu():
            x = torch.empty(4, 8, dtype=dtype_of(name), device="cuda")
            found = (WIDENED_ON_CUDA | KEPT)[function](x, None).dtype
        assert found == (wide if function in WIDENED_ON_CUDA else dtype_of(name))


@pytest.mark.parametrize(
    "function", [name for name in BESIDE if not name.startswith(("scatter", "embedding", "index"))]
)
def test_gradients_of_rows(function, device):
    """Of a float32 result, too, the gradient has the input's dtype, and compiled code eager's bits."""
    ours, _ = BESIDE[function]
    x, w = data((4, 8), "bfloat16", 79, device).requires_grad_(), data((8,), "bfloat16", 80, device).abs()

    def loss(x):
        with torch.autocast(device, torch.bfloat16):
            return ours(x, w)

    y = loss(x)
    (wanted,) = torch.autograd.grad(y.sum(), x)
    assert wanted.dtype == torch.bfloat16
    torch._dynamo.reset()
    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(x)
    assert_same_bits(found.detach(), y.detach())
    assert_same_bits(torch.autograd.grad(found.sum(), x)[0], wanted)


def test_loss_of_halves_does_not_overflow(device):
    x = torch.tensor([[0.0, 60000.0]] * 2, dtype=torch.float16, device=device)
    target = torch.zeros(2, dtype=torch.int64, device=device)
    with torch.autocast(device, torch.bfloat16):
        assert torch_reduce.cross_entropy(x, target, reduction="sum").item() == 120000
