"""Formulas that autograd composes have the kernels' bits: what they are made of is rounded as the contract says."""

import pathlib
import re

import pytest
import torch

import torch_reduce
from support import assert_same_bits, dtype_of
from table import CASES, SEGMENTS, floats, taken, tensors

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values", "ignore:ComplexHalf support", "ignore:.*degrees of freedom"
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = ["float32", "bfloat16", "float64"]
SHAPES = [(1, 3), (3, 5), (7, 1), (5, 33), (2, 700)]


def random(shape, name, seed, device="cpu"):
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.to(dtype_of(name)).to(device)


def assert_bits_of_a_graph(function, *given):
    """The gradients of those arguments that have one: with create_graph and by torch.func the bits that they have."""
    given = [t.detach().requires_grad_(bool(floats(t))) for t in given]
    inputs = [t for t in given if t.requires_grad]
    results = [y for y in tensors(function(*given)) if y.requires_grad]
    incoming = [random(y.shape, "float64", 71 + i).to(y.dtype).to(y.device) for i, y in enumerate(results)]
    plain = torch.autograd.grad(results, inputs, incoming, retain_graph=True)
    graph = torch.autograd.grad(results, inputs, incoming, create_graph=True)

    def call(*some):
        rest = iter(some)
        found = function(*(next(rest) if t.requires_grad else t for t in given))
        return tuple(y for y in tensors(found) if y.is_floating_point())

    functional = torch.func.vjp(call, *(t.detach() for t in inputs))[1](tuple(incoming))
    for x, wanted, first, second in zip(inputs, plain, graph, functional, strict=True):
        assert_same_bits(first.detach(), wanted, f"of {tuple(x.shape)} {x.stride()}, with create_graph")
        assert_same_bits(second, wanted, f"of {tuple(x.shape)} {x.stride()}, by torch.func")


@taken(*NAMES, cases=[op for op in CASES if op.has_gradient])
def test_operations(op, name, device):
    """Of every operation."""
    for seed, shape in enumerate([*SHAPES, (4, 3, 5)]):
        for dim in (0, -1):
            x = op.inputs(
                shape if op not in SEGMENTS else (shape[0] + 9, *shape[1:-1], shape[-1] + 9), name, seed, device, dim
            )
            assert_bits_of_a_graph(lambda *x, d=dim: op(x if len(x) > 1 else x[0], [d]), *tensors(x))


def layouts(x):
    """Tensors of the same elements."""
    yield x
    if x.dim() > 1:
        yield x.mT.contiguous().mT
        yield x.transpose(0, -1).contiguous().transpose(0, -1)
    yield torch.stack([x] * 2, -1)[..., 0]


ROWS = {
    "softmax": lambda x, *_: torch_reduce.softmax(x, -1),
    "softmax to float32": lambda x, *_: torch_reduce.softmax(x, 0, dtype=torch.float32),
    "log_softmax": lambda x, *_: torch_reduce.log_softmax(x, -1),
    "rms_norm": lambda x, w, _: torch_reduce.rms_norm(x, x.shape[-1:], w),
    "rms_norm without a weight": lambda x, *_: torch_reduce.rms_norm(x, x.shape[-1:], eps=1e-6),
    "layer_norm": lambda x, w, b: torch_reduce.layer_norm(x, x.shape[-1:], w, b),
    "layer_norm of all": lambda x, *_: torch_reduce.layer_norm(x, x.shape),
    "rms_norm of all": lambda x, *_: torch_reduce.rms_norm(x, x.shape),
}


@pytest.mark.parametrize("function", ROWS)
@pytest.mark.parametrize("name", NAMES)
def test_rows(function, name, device):
    """Of softmaxes and norms, in several layouts."""
    for seed in range(3):
        for shape in [*SHAPES, (3, 4, 5)]:
            w, b = random(shape[-1:], name, seed + 100, device), random(shape[-1:], name, seed + 200, device)
            for x in layouts(random(shape, name, seed, device)) if seed == 0 else [random(shape, name, seed, device)]:
                count = 3 if function == "layer_norm" else 2 if function == "rms_norm" else 1
                call = ROWS[function]
                assert_bits_of_a_graph(
                    lambda *given, f=call: f(*given, *(None,) * (3 - len(given))), *(x, w, b)[:count]
                )


def test_the_root_of_a_norm(device):
    """Where a root that is not correctly rounded shows in a gradient: on some CPUs torch's is not."""
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(2)).to(device).requires_grad_()
    incoming = torch.tensor([[1.0, 0, 0]], device=device)
    y = torch_reduce.rms_norm(x, 3)
    (plain,) = torch.autograd.grad(y, x, incoming, retain_graph=True)
    (graph,) = torch.autograd.grad(y, x, incoming, create_graph=True)
    assert_same_bits(graph.detach(), plain)


TARGETS = {
    "log_prob": lambda x, t, w: torch_reduce.log_prob(x, t),
    "softened": lambda x, t, w: torch_reduce.log_prob(x, t, temperature=0.7),
    "entropy": lambda x, t, w: torch_reduce.log_prob(x, t, temperature=1.3, return_entropy=True),
    "cross_entropy": lambda x, t, w: torch_reduce.cross_entropy(x, t),
    "sum": lambda x, t, w: torch_reduce.cross_entropy(x, t, reduction="sum"),
    "none": lambda x, t, w: torch_reduce.cross_entropy(x, t, reduction="none"),
    "smoothed": lambda x, t, w: torch_reduce.cross_entropy(x, t, w, label_smoothing=0.1),
    "probabilities": lambda x, t, w: torch_reduce.cross_entropy(x, x.detach().abs(), w, label_smoothing=0.3),
}


@pytest.mark.parametrize("function", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_losses(function, name, device):
    for seed in range(2):
        for shape in SHAPES:
            x, weight = random(shape, name, seed, device), random(shape[-1:], name, 9, device).abs()
            target = torch.arange(shape[0], device=device) % shape[1]
            target[seed % len(target)] = -100 if len(target) > 1 else 0
            assert_bits_of_a_graph(lambda x, t=target, w=weight: TARGETS[function](x, t, w), x)


@pytest.mark.parametrize("name", NAMES)
def test_indices(name, device):
    """Of functions that have an index or offsets."""
    index = torch.tensor([2, 0, 0, 3, 2, 5], device=device)
    offsets = torch.tensor([0, 2, 2, 5], device=device)
    T = torch_reduce
    for seed in range(2):
        x, table, weight = (random(s, name, seed, device) for s in [(6, 5), (6, 5), (6,)])
        assert_bits_of_a_graph(lambda x, w: T.index_sum(x, index, 6, weight=w), x, weight)
        for function in (T.index_mean, T.index_amax, T.index_amin):
            assert_bits_of_a_graph(lambda x, f=function: f(x, index, 6), x)
        assert_bits_of_a_graph(lambda y, x: T.index_add(y, 0, index, x, alpha=0.3), table, x)
        assert_bits_of_a_graph(lambda y, x: T.scatter_add(y, 0, index[:, None].expand(6, 5), x), table, x)
        for kind in ("sum", "prod", "mean", "amax", "amin"):
            for own in (True, False):
                function = lambda y, x, k=kind, s=own: T.index_reduce(y, 0, index, x, k, include_self=s)  # noqa: E731
                assert_bits_of_a_graph(function, table, x)
        assert_bits_of_a_graph(lambda y: T.embedding(index, y, 2), table)
        assert_bits_of_a_graph(lambda y: T.embedding_bag(index, y, offsets, mode="mean"), table)
        assert_bits_of_a_graph(lambda y, w: T.embedding_bag(index, y, offsets, per_sample_weights=w), table, weight)
        for mode in ("sum", "mean", "max"):
            function = lambda y, m=mode: T.embedding_bag(index.view(2, 3), y, mode=m, padding_idx=3)  # noqa: E731
            assert_bits_of_a_graph(function, table)
        assert_bits_of_a_graph(lambda x: T.segment_softmax(x, offsets), x)


# --- the entropy ------------------------------------------------------------------------------------------------------


def entropy_of(x, temperature=1.0):
    target = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
    return torch_reduce.log_prob(x, target, temperature=temperature, return_entropy=True)[1]


@pytest.mark.parametrize("name", [*NAMES, "float16"])
def test_entropy(name, device):
    """The contract's: the sum of e^y * y of the logarithms y of a softmax, by our exponential; on any device."""
    for temperature in (1.0, 0.7):
        x = random((7, 300), name, 5) * 4
        x[1, :7], x[2, :299] = -torch.inf, -torch.inf
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide if temperature == 1 else torch.tensor(wide.numpy() / wide.numpy().dtype.type(temperature))
        logarithms = torch_reduce.log_softmax(wide, -1)
        # Our exponential is the gradient of a logsumexp that is 0.
        rows = logarithms.reshape(-1, 1).clone().requires_grad_()
        powers = torch.ops.gpureduce._apply(rows, None, torch.zeros_like(rows), None, "exponent", 1, 0.0, wide.dtype)
        terms = torch.where(logarithms == -torch.inf, 0, powers.detach().view_as(logarithms) * logarithms)
        wanted = -torch_reduce.sum(terms, -1)
        assert_same_bits(entropy_of(x.to(device), temperature).cpu(), wanted)
        known = torch.distributions.Categorical(logits=x.double() / temperature).entropy()
        torch.testing.assert_close(wanted.double(), known, rtol=1e-5, atol=1e-6)


def test_derivatives_of_an_entropy(device):
    x = random((3, 5), "float64", 6, device).requires_grad_()
    function = lambda x: entropy_of(x, 0.7)  # noqa: E731
    assert torch.autograd.gradcheck(function, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, x)
    hopeless = torch.tensor([[0.0, -torch.inf, 1.0]], device=device, requires_grad=True)
    (gradient,) = torch.autograd.grad(entropy_of(hopeless).sum(), hopeless)
    assert gradient[0, 1] == 0 and gradient.isfinite().all()


def test_inductor(device):
    """What a compiler fuses has eager's bits: forwards, and in the backward passes that torch.func traces."""

    def losses(x, w, target):
        y = torch_reduce.layer_norm(torch_reduce.rms_norm(x, 37, w), 37, w, w)
        found, entropy = torch_reduce.log_prob(
            torch_reduce.log_softmax(y, -1), target, temperature=0.7, return_entropy=True
        )
        loss = torch_reduce.cross_entropy(torch_reduce.softmax(y, -1), target, w.abs(), label_smoothing=0.1)
        return found, entropy, loss

    def gradients(x, w, target):
        return torch.func.grad(lambda x, w: sum(y.sum() for y in losses(x, w, target)), (0, 1))(x, w)

    x, w = random((70, 37), "float32", 7, device), random((37,), "float32", 8, device)
    target = torch.arange(70, device=device) % 37
    target[3] = -100
    for function in (losses, gradients):
        torch._dynamo.reset()
        for ours, wanted in zip(torch.compile(function)(x, w, target), function(x, w, target), strict=True):
            assert_same_bits(ours, wanted)


# --- the sources ------------------------------------------------------------------------------------------------------

# Functions of torch's whose results differ between CPUs, GPUs and compilers, and quotients, which Inductor rounds
# otherwise and which torch makes products if the divisor is a number of the host.
NAMED = "sqrt rsqrt exp exp2 expm1 log log1p log2 pow reciprocal sigmoid tanh erf softmax log_softmax logsumexp div "
NAMED += "addcmul addcdiv lerp norm std var mean cumsum cumprod cumprod_backward matmul mm bmm dot"
INEXACT = rf"(?:at::|\.)(?:{NAMED.replace(' ', '|')})_?\("
QUOTIENT = r"[\w)\]] /=? [\w(]"
ALLOWED = [  # what stands in such a line, and why it may
    "cumprod",  # second derivatives of products, of which no bits are promised
    "cumsum(0)",  # of integers, and in a message
    "itemsize()",  # integers of the host, here and below
    "known.size()",
    "nbytes()",
    "number / 2",
    "numel() / length",
    "(count + threads - 1) / threads",
    "std::min(most, (count + grain - 1)",
    "*some <= *all / 8",
    "watch.spent",  # a time
    "sigmoid(x[0])",  # the second derivative of silu, of which no bits are promised
    "(block - 1)) / block",
    "std::gcd(n / block",
]


def lines_of(path):
    """The lines of code, without comments."""
    for line in path.read_text().splitlines():
        yield re.sub(r"\s*//.*", "", line).strip()


def test_sources():
    """No new use, in the code that calls torch's operators, of one whose rounding is nobody's promise."""
    files = sorted([*(ROOT / "csrc" / "core" / "torch").rglob("*.*"), *(ROOT / "csrc").glob("*/torch*.*")])
    found = [(path.name, line) for path in files for line in lines_of(path)]
    found = [
        (name, line) for name, line in found if re.search(f"{INEXACT}|{QUOTIENT}", line) and "#include" not in line
    ]
    assert not [each for each in found if not any(words in each[1] for words in ALLOWED)], "use a formula of apply.h"
    for words in ALLOWED:
        assert any(words in line for _, line in found), f"no line has {words} any more"
