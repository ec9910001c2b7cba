"""Gradients where an operand has no elements: every function keeps its graph, and gives torch's gradients."""

import math

import pytest
import torch

import torch_reduce
from support import assert_same_bits, data
from table import SEGMENTS, every_case, floats, tensors

pytestmark = pytest.mark.filterwarnings(
    "ignore:Casting complex values", "ignore:ComplexHalf support", "ignore:.*degrees of freedom"
)

F = torch.nn.functional


def expect_gradients(ours, theirs, *given, needed=None):
    """The results require a gradient where torch's do, whichever operands do, and each gets torch's."""
    places = [i for i, t in enumerate(given) if floats(t)]
    for some in [places, *([i] for i in places)]:
        found = []
        for function in (ours, theirs):
            inputs = [t.detach().clone().requires_grad_(i in some) for i, t in enumerate(given)]
            results = tensors(function(*inputs))
            leaves, known = [inputs[i] for i in some], all(y.requires_grad for y in results)
            assert known or function is theirs, f"the graph is lost where operands {some} require a gradient"
            if known:
                gradients = torch.autograd.grad(results, leaves, [torch.ones_like(y) for y in results])
            else:  # the table's model of an empty segment, which is a constant
                gradients = [torch.zeros_like(x) for x in leaves]
            found.append((results, leaves, gradients))
        (results, leaves, mine), (others, _, wanted) = found
        assert [y.shape for y in results] == [y.shape for y in others]
        for x, one, other in zip(leaves, mine, wanted, strict=True):
            assert one.shape == x.shape and one.dtype == x.dtype
            torch.testing.assert_close(one, other, equal_nan=True)


@every_case
def test_operations(op, device):
    """Every operation, over each dim, of tensors without elements."""
    if not op.has_gradient:
        pytest.skip("it has none")
    for shape in [(0, 3), (3, 0), (0, 0), (0,)]:
        for dim in range(len(shape)):
            x = data(shape, "float32", device=device)
            inputs = op.around(x, dim)
            if op in SEGMENTS:
                places = [0, 0, shape[dim]]
                inputs = x, torch.tensor(places, device=device)
            try:
                op.torch(inputs, [dim])
            except (RuntimeError, IndexError):
                continue  # the maximum of nothing
            expect_gradients(
                lambda *x, d=dim: op(x if len(x) > 1 else x[0], [d]),
                lambda *x, d=dim: op.torch(x if len(x) > 1 else x[0], [d]),
                *tensors(inputs),
            )
    if op in SEGMENTS:  # no segments
        x = data((3, 2), "float32", device=device).requires_grad_()
        y = op((x, torch.tensor([1], device=device)), [0])
        assert y.shape == (0, 2) and torch.autograd.grad(y, x, torch.ones_like(y))[0].count_nonzero() == 0


ROWS = {
    "softmax": (lambda x: torch_reduce.softmax(x, -1), lambda x: torch.softmax(x, -1)),
    "log_softmax": (lambda x: torch_reduce.log_softmax(x, 0), lambda x: torch.log_softmax(x, 0)),
    "rms_norm": (
        lambda x, w: torch_reduce.rms_norm(x, x.shape[-1], w),
        lambda x, w: F.rms_norm(x, x.shape[-1:], w),
    ),
    "layer_norm": (
        lambda x, w, b: torch_reduce.layer_norm(x, x.shape[-1], w, b),
        lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b),
    ),
}


@pytest.mark.parametrize("function", ROWS)
def test_rows(function, device):
    ours, theirs = ROWS[function]
    for shape in [(0, 3), (3, 0), (0, 0), (0,), (2, 0, 3)]:
        x, weights = data(shape, "float32", device=device), [data(shape[-1:], "float32", 1, device) for _ in range(2)]
        expect_gradients(ours, theirs, x, *weights[: {"rms_norm": 1, "layer_norm": 2}.get(function, 0)])


def test_losses(device):
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    x = data((0, 5), "float32", device=device)
    for options in (dict(reduction="sum"), dict(reduction="none"), dict(), dict(label_smoothing=0.1)):
        expect_gradients(
            lambda x, o=options: torch_reduce.cross_entropy(x, nothing, **o),
            lambda x, o=options: F.cross_entropy(x, nothing, **o),
            x,
        )
    expect_gradients(
        lambda x, p: torch_reduce.cross_entropy(x, p, reduction="sum"),
        lambda x, p: F.cross_entropy(x, p, reduction="sum"),
        x,
        data((0, 5), "float32", 1, device),
    )
    for entropy in (False, True):
        expect_gradients(
            lambda x, e=entropy: torch_reduce.log_prob(x, nothing, temperature=0.5 if e else 1, return_entropy=e),
            lambda x, e=entropy: (x.sum(1), x.sum(1)) if e else x.sum(1),
            x,
        )


SIZES = [((4, 3), 0), ((0, 3), 0), ((4, 0), 0), ((4, 0), 2), ((0, 0), 0), ((4,), 0), ((0,), 0)]


@pytest.mark.parametrize(("shape", "count"), SIZES)
def test_indices(shape, count, device):
    """Sums by index, and rows of tables."""
    index = torch.zeros(count, dtype=torch.int64, device=device)
    x, y = (data((n, *shape[1:]), "float32", i, device) for i, n in enumerate((shape[0], count)))
    expect_gradients(
        lambda x, y: torch_reduce.index_add(x, 0, index, y, alpha=3),
        lambda x, y: torch.index_add(x, 0, index, y, alpha=3),
        x,
        y,
    )
    for kind in ("prod", "mean", "amax", "amin"):
        expect_gradients(
            lambda x, y, k=kind: torch_reduce.index_reduce(x, 0, index, y, k),
            lambda x, y, k=kind: torch.index_reduce(x, 0, index, y, k),
            x,
            y,
        )
    expect_gradients(
        lambda y: torch_reduce.index_sum(y, index, shape[0]), lambda y: torch.zeros_like(x).index_add(0, index, y), y
    )
    weight = data((count,), "float32", 2, device)
    beside = weight.reshape(-1, *[1] * (len(shape) - 1))
    expect_gradients(
        lambda y, w: torch_reduce.index_sum(y, index, shape[0], weight=w.reshape(-1)),
        lambda y, w: torch.zeros_like(x).index_add(0, index, y * w),
        y,
        beside,
    )
    for function in (torch_reduce.index_mean, torch_reduce.index_amax, torch_reduce.index_amin):
        z = y.clone().requires_grad_()
        found = function(z, index, shape[0])
        (gradient,) = torch.autograd.grad(found, z, torch.ones_like(found))
        assert gradient.shape == z.shape
    for function in (torch_reduce.gather_sum, torch_reduce.gather_mean, torch_reduce.gather_amax):
        z = x.clone().requires_grad_()
        found = function(z, index, index, shape[0])
        assert found.shape == x.shape
        assert torch.autograd.grad(found, z, torch.ones_like(found))[0].shape == z.shape
    for width in {1, math.prod(shape[1:])}:
        z, w = x.reshape(len(x), math.prod(shape[1:])).requires_grad_(), y.new_ones(count, width).requires_grad_()
        found = torch_reduce.gather_sum(z, index, index, 7, weight=w)
        assert found.shape == (7, z.shape[1])
        assert [g.shape for g in torch.autograd.grad(found.sum(), (z, w))] == [z.shape, w.shape]
    plan = torch_reduce.index_plan(index, shape[0])
    expect_gradients(lambda y: torch_reduce.index_sum(y, plan), lambda y: torch.zeros_like(x).index_add(0, index, y), y)


def test_entries_of_nothing(device):
    """scatter_add whose index is empty: the source has a gradient, of zeros, whatever its size."""
    for shape in [(4, 3), (0, 3), (4, 0)]:
        for entries, size in [((0, 3), (0, 3)), ((0, 3), (2, 3)), ((2, 0), (2, 3)), ((0,), (2, 3)), ((0, 0), (0, 0))]:
            index = torch.zeros(entries, dtype=torch.int64, device=device)
            for name in ("float32", "complex64", "float16"):
                x, src = data(shape, name, 1, device).requires_grad_(), data(size, name, 2, device).requires_grad_()
                y = torch_reduce.scatter_add(x, 0, index, src)
                assert_same_bits(y.detach(), x.detach())
                dx, dsrc = torch.autograd.grad(y, (x, src), torch.ones_like(y))
                assert dx.equal(torch.ones_like(x)) and dsrc.equal(torch.zeros_like(src))
                constant = torch_reduce.scatter_add(x.detach(), 0, index, src)
                assert constant.requires_grad and (x.numel() == 0 or constant.data_ptr() != x.data_ptr())
                assert torch.autograd.grad(constant, src, torch.ones_like(y))[0].equal(torch.zeros_like(src))
    negative = torch.tensor([-0.0], device=device)
    src = torch.ones(2, device=device, requires_grad=True)
    index = torch.zeros(0, dtype=torch.int64, device=device)
    assert_same_bits(torch_reduce.scatter_add(negative, 0, index, src).detach(), negative)
    with torch.no_grad():
        assert not torch_reduce.scatter_add(negative, 0, index, src).requires_grad


def test_rows_of_nothing(device):
    """Tables of no rows, and of no columns; no entries; bags of nothing."""
    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    for shape in [(5, 3), (5, 0), (0, 3)]:
        table = data(shape, "float32", 3, device)
        for entries in [(0,), (0, 2), (2, 0)]:
            index = torch.zeros(entries, dtype=torch.int64, device=device)
            expect_gradients(
                lambda t, i=index: torch_reduce.embedding(i, t), lambda t, i=index: F.embedding(i, t), table
            )
        for mode in ("sum", "mean"):
            for ends in ([0], [0, 0], [0, 0, 0]):
                offsets = torch.tensor(ends, device=device)
                given = table.clone().requires_grad_()
                bags = torch_reduce.embedding_bag(nothing, given, offsets, mode=mode)
                assert_same_bits(bags.detach(), torch.zeros(len(ends) - 1, shape[1], device=device))
                assert torch.autograd.grad(bags, given, torch.ones_like(bags))[0].equal(torch.zeros_like(table))
        for ends in ([0, 0], [0, 0, 0, 0]):  # 1 bag, and 3 bags
            given, weights = table.clone().requires_grad_(), torch.zeros(0, device=device, requires_grad=True)
            bags = torch_reduce.embedding_bag(
                nothing, given, torch.tensor(ends, device=device), per_sample_weights=weights
            )
            found = torch.autograd.grad(bags, (given, weights), torch.ones_like(bags))
            assert found[0].equal(torch.zeros_like(table)) and found[1].shape == (0,)


def test_segments_of_nothing(device):
    for shape, dim in [((0, 3), 0), ((3, 0), 1), ((4, 0), 0)]:
        x = data(shape, "float32", device=device).requires_grad_()
        y = torch_reduce.segment_softmax(x, torch.tensor([0, shape[dim]], device=device), dim)
        assert torch.autograd.grad(y, x, torch.ones_like(y))[0].shape == shape
