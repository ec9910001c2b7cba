"""torch_reduce.decompositions(): exported programs of torch's operators alone, with our bits."""

import pytest
import torch

import torch_reduce as R
from support import assert_same_bits, data, python

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*torch.jit.script")


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def exported(function, *inputs, **options):
    """A program of torch's operators, and how many of ours it still has."""
    program = torch.export.export(Module(function), inputs, **options).run_decompositions(R.decompositions())
    return program, [node for node in program.graph.nodes if "gpureduce" in str(node.target)]


def compare(function, *inputs, stays=0, **options):
    program, ours = exported(function, *inputs, **options)
    assert len(ours) == stays, ours
    got, right = program.module()(*inputs), function(*inputs)
    assert_same_bits(got, right)
    for a, b in zip(*((y if isinstance(y, tuple) else (y,)) for y in (got, right)), strict=True):
        assert a.stride() == b.stride()
    return program


def reductions(x, w):
    missing = torch.where(x > 2, float("nan"), x)
    norms = [R.vector_norm(x, ord, 1) for ord in (0, 1, 2, float("inf"), -float("inf"))]
    return (
        *(R.sum(x, 1), R.mean(x, 1, keepdim=True), R.nansum(missing, 1), R.prod(1 + x / 4096, 1), *norms),
        *(R.powsum(x, 2, 1), R.powsum(x, 3, 1), R.amax(x, 1), R.amin(x, 1), R.amax(missing, 1)),
        *(*R.var_mean(x, 1), R.std(x, 1), R.var(x, 1, correction=0), R.weighted_sum(x, w, 1), R.dot(w, w)),
        *(R.sum(x, -1, dtype=torch.float64), R.any(x > 9, 1), R.all(x, 1), R.count_nonzero(x, 1)),
    )


def rows(x, w):
    n = x.shape[-1]
    return (
        *(R.softmax(x, 1), R.log_prob(x, x.argmax(1))),
        *(R.rms_norm(x, (n,), w, 1e-6), R.layer_norm(x, (n,), w, w), R.layer_norm(x, (n,))),
    )


@pytest.mark.parametrize(
    ("function", "n", "dtype"),
    [(reductions, 768, "bfloat16"), (reductions, 9001, "float32"), (rows, 13, "float16"), (rows, 4500, "float64")],
)
def test_rows(function, n, dtype, device):
    compare(function, data((6, n), dtype, 1, device), data((n,), dtype, 2, device))


def special(device):
    """Rows of NaN, infinities, zeros of both signs, subnormal numbers, and numbers far apart."""
    x = data((9, 700), "float32", 1, device)
    x[0, 3], x[1, 5], x[2, 600] = float("nan"), float("inf"), -float("inf")
    x[3], x[4], x[5] = -0.0, float("-inf"), 1e-42
    x[6] *= 1e38
    x[7] *= 30
    x[8] = torch.where(x[8] > 0, 0.0, -0.0)
    return x


@pytest.mark.parametrize("function", [reductions, rows])
def test_special_numbers(function, device):
    compare(function, special(device), data((700,), "float32", 2, device))


def test_exponentials(device):
    """The exponential and the logarithm have our bits at all places of a softmax: two elements, every difference."""
    for dtype in ("float32", "float64"):
        x = -(data((20_000, 2), dtype, 3, device).abs() * 17)
        x[:, 0] = 0
        compare(lambda x: (R.log_softmax(x, 1), R.logsumexp(x, 1)), x)


def several(x):
    sums = R.sum(x, 0), R.sum(x, (1, 2, 3)), R.sum(x, (0, 3), keepdim=True)
    return *sums, R.mean(x), R.var(x, (0, 2)), R.softmax(x, 1), R.layer_norm(x, x.shape[2:]), R.logsumexp(x, (0, 1))


def test_dims(device):
    """Other dims, several ones in memory's order, integers and wider results."""
    x = data((6, 5, 40, 30), "float32", 1, device)
    for view in x[:, :, ::2].permute(2, 0, 3, 1), x[:, :, :1].expand(6, 5, 40, 30):
        compare(several, view)
    i = data((6, 700), "int32", 2, device)
    compare(lambda i: (R.sum(i, 1), R.prod(i, 1), R.amax(i, 1), R.any(i, 1), R.sum(i > 2, 0, dtype=torch.int32)), i)
    compare(lambda x: (R.sum(x[0, 0, 0, 0]), R.softmax(x[0, 0, 0, 0], 0), R.amax(x[0, 0, 0, 0])), x)


def test_dynamic_sizes(device):
    """Batches of any size, and rows of any length up to a bound."""
    batch, length = torch.export.Dim("batch", min=2, max=1000), torch.export.Dim("length", min=2, max=100_000)

    def f(x):
        return R.sum(x, 1), R.softmax(x, 1), R.rms_norm(x, x.shape[1:]), R.prod(1 + x / 4096, 1), R.amax(x, 1)

    program = compare(f, data((4, 700), "float32", 1, device), dynamic_shapes=({0: batch, 1: length},))
    for sizes in (2, 3), (5, 512), (3, 4096), (2, 4097), (7, 50_257):
        x = data(sizes, "float32", 2, device)
        assert_same_bits(program.module()(x), f(x), sizes)


def test_what_stays(device):
    """Calls without a form of torch's operators stay calls of ours, and have their bits."""
    x = data((6, 700), "float32", 1, device)
    offsets = torch.tensor([0, 2, 6], device=device)
    compare(lambda x, i: (R.sum(x.to(torch.complex64), 1), R.segment_sum(x, i)), x, offsets, stays=2)
    compare(lambda x: (R.sum(x, 1, dtype=torch.int64), R.sum(x[:, :0], 1), R.sum(x, 1, exact=True)), x, stays=3)
    compare(lambda x: R.vector_norm(x, 3, 1), x, stays=1)
    compare(lambda x: R.sum(x, 1), x, stays=1, dynamic_shapes=({1: torch.export.Dim.AUTO},))


RUN = """
import sys
import torch
program = torch.export.load(sys.argv[1]).module()
torch.save(program(*torch.load(sys.argv[2])), sys.argv[3])
assert "torch_reduce" not in sys.modules and not hasattr(torch.ops.gpureduce, "sum")
"""


def test_runs_without_the_library(device, tmp_path):
    def rows(x):
        return R.log_softmax(x, 1), R.layer_norm(x, x.shape[1:])

    inputs = (data((64, 768), "float32", 1, device),)
    program, given, results = (tmp_path / name for name in ("program.pt2", "inputs.pt", "results.pt"))
    torch.export.save(exported(rows, *inputs)[0], program)
    torch.save(inputs, given)
    python("-c", RUN, program, given, results)
    assert_same_bits(torch.load(results), rows(*inputs))
