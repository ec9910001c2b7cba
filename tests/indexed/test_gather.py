"""Message passing: gather_sum and its kin have the bits of the composition, by the model, without its messages."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_reduce
from support import DTYPES, assert_same_bits, data, dtype_of, walked
from table import WEIGHTED
from test_indexed import FUNCTIONS, expected, index_of
from torch_reduce import GatherPlan, gather_plan

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

GATHERS = {kind: getattr(torch_reduce, f"gather_{kind}") for kind in FUNCTIONS}
EDGES, ROWS, SIZE = 90, 12, 7


def edges_of(count, rows, size, device="cpu", hot=False):
    """(source, target): rows and outputs that no edge has are among them."""
    return index_of(count, rows, device, seed=1, hot=hot), index_of(count, size, device, seed=2, hot=hot)


def rows_by(x, numbers, dim):
    """x[numbers] along a dim, of dtypes that torch does not index, too."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(x.element_size(), x.dtype)
    return x.resolve_neg().view(bits).index_select(dim, numbers.long()).view(x.dtype)


def wanted_sums(x, source, target, size, dim, weight, dtype=None):
    """The model's weighted sums: each product is rounded once."""
    rows = rows_by(x, source, dim)
    beside = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    weights = (weight.view(beside) if weight.dim() == 1 else weight).expand(rows.shape)
    each = []
    for k in range(size):
        chosen = (target == k).nonzero()[:, 0]
        pair = rows_by(rows, chosen, dim), weights.index_select(dim, chosen)
        each.append(WEIGHTED.expected(pair, dim, dtype=dtype))
    return np.stack(each, axis=dim % x.dim())


def check(kind, x, source, target, size, dim=0, *, weight=None, dtype=None):
    """The function has the model's bits: with edges, and with plans of both kinds."""
    last = {} if dtype is None else {"dtype": dtype}
    if weight is None:
        rows = rows_by(x, source, dim)
        wanted = expected(kind, rows, target.long(), size, dim, dtype=dtype)
    else:
        wanted = wanted_sums(x, source, target, size, dim, weight, dtype)
        last["weight"] = weight
    function, text = GATHERS[kind], f"{kind} of {x.dtype}, {tuple(x.shape)}, dim={dim}"
    assert_same_bits(function(x, source, target, size, dim, **last), wanted, text)
    for plan in (gather_plan(source, target, size), gather_plan(source, target, size, x.size(dim))):
        assert_same_bits(function(x, plan, dim=dim, **last), wanted, f"{text}, with a plan")


# --- bits -------------------------------------------------------------------------------------------------------------


@walked("kind", list(GATHERS))
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name, kind, device):
    """Every dtype, along the first, a middle and the last dim, as a vector and as a view; int32 and int64 edges."""
    if not FUNCTIONS[kind][1].targets(name, None):
        return  # not of this dtype
    source, target = edges_of(EDGES, ROWS, SIZE, device)
    for shape, dim in (((ROWS,), 0), ((ROWS, 5), 0), ((3, ROWS, 4), 1), ((3, ROWS), -1)):
        x = data(shape, name, seed=3, device=device)
        check(kind, x, source, target, SIZE, dim)
        check(kind, x, source.int(), target, SIZE, dim)
    check(kind, data((ROWS, 10), name, device=device)[:, ::2], source, target.int(), SIZE)


def weights_of(shape, dim, count, of, device):
    """Weights per edge, with 1 in all other dims, per head, and per element."""
    yield data((count,), of, seed=7, device=device)
    dims = [d for d in range(len(shape)) if d != dim]
    for kept in ([], dims[:1], dims[1:], dims):
        sizes = [count if d == dim else shape[d] if d in kept else 1 for d in range(len(shape))]
        yield data(sizes, of, seed=8, device=device)


@walked("of", ["float32", "float64", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("name", ["float32", "float16", "float64", "int64"])
def test_weights(name, of, device):
    """A weight for each edge, each of its heads or each of its elements; also of rows by index."""
    source, target = edges_of(EDGES, ROWS, SIZE, device)
    for shape, dim in (((ROWS,), 0), ((ROWS, 6), 0), ((ROWS, 3, 4), 0), ((2, ROWS, 3), 1)):
        x = data(shape, name, device=device)
        for weight in weights_of(shape, dim, EDGES, of, device):
            check("sum", x, source, target, SIZE, dim, weight=weight)
            rows = rows_by(x, source, dim)
            wanted = wanted_sums(x, source, target, SIZE, dim, weight)
            assert_same_bits(torch_reduce.index_sum(rows, target, SIZE, dim, weight=weight), wanted)
            plan = torch_reduce.index_plan(target, SIZE)
            assert_same_bits(torch_reduce.index_sum(rows, plan, dim=dim, weight=weight), wanted)


@walked("target", ["float64", "float16", "int64"])
def test_results_of_other_dtypes(target, device):
    """dtype= chooses the result's dtype; elements are never rounded to it."""
    edges = edges_of(800, ROWS, 5, device)
    for name in ("float32", "int16"):
        check("sum", data((ROWS, 3), name, device=device), *edges, 5, dtype=dtype_of(target))


def test_many_edges(device):
    """More edges than a chunk has, most of them of one row and to one output; no edges, rows, outputs or columns."""
    for count in (5000, 30_000):
        check("sum", data((40, 3), "float32", device=device), *edges_of(count, 40, 4, device, hot=True), 4)
    none = torch.empty(0, dtype=torch.int64, device=device)
    for kind in GATHERS:
        for rows in (0, 9):
            check(kind, torch.ones(rows, 3, device=device), none, none, 5)
            check(kind, torch.ones(rows, device=device), none, none, 2)
            assert GATHERS[kind](torch.ones(rows, 3, device=device), none, none, 0).shape == (0, 3)
        assert GATHERS[kind](torch.empty(9, 0, device=device), *edges_of(4, 9, 6, device), 6).shape == (6, 0)
    for weight in (torch.ones(0, device=device), torch.ones(0, 1, device=device), torch.ones(0, 3, device=device)):
        check("sum", torch.ones(9, 3, device=device), none, none, 5, weight=weight)


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_problems(device, chosen):
    """Any dtype, dim, strides, edges and weights."""

    def choose(a, b):
        return chosen.draw(st.integers(a, b))

    kind, name = chosen.draw(st.sampled_from(list(GATHERS))), chosen.draw(st.sampled_from(DTYPES))
    if not FUNCTIONS[kind][1].targets(name, None):
        return
    rank, rows, size, count = choose(1, 3), choose(1, 50), choose(1, 6), choose(0, [5, 70, 900][choose(0, 2)])
    dim = choose(0, rank - 1)
    shape = [choose(0, 4) for _ in range(rank)]
    shape[dim] = rows
    order = chosen.draw(st.permutations(range(rank)))
    x = data([shape[d] for d in order], name, seed=choose(0, 3), device=device).permute(np.argsort(order).tolist())
    source, target = edges_of(count, rows, size, device, hot=bool(choose(0, 1)))
    weight = None
    if kind == "sum" and "complex" not in name and "uint" not in name and "float8" not in name and choose(0, 1):
        of = chosen.draw(st.sampled_from(["float32", "float64", "int32"]))
        weight = list(weights_of(shape, dim, count, of, device))[choose(0, 4)]
    check(kind, x, source, target, size, dim - rank * choose(0, 1), weight=weight)


def test_same_bits_each_run(cuda):
    """Five runs on a GPU and one on the CPU, with their gradients."""
    source, target = edges_of(300_000, 5000, 700, cuda, hot=True)
    x, weight = data((5000, 8), "float32", device=cuda), data((300_000,), "float32", seed=2, device=cuda)

    def run(x, source, target, weight):
        leaves = [x.detach().requires_grad_(), weight.detach().requires_grad_()]
        y = torch_reduce.gather_sum(leaves[0], source, target, 700, weight=leaves[1])
        return y.detach(), *torch.autograd.grad(y.square().sum(), leaves)

    wanted = run(x.cpu(), source.cpu(), target.cpu(), weight.cpu())
    for _ in range(5):
        for one, other in zip(run(x, source, target, weight), wanted, strict=True):
            assert_same_bits(one, other)


# --- gradients --------------------------------------------------------------------------------------------------------


def gradients(function, inputs, grad):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    return torch.autograd.grad(function(*leaves), leaves, grad)


@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_gradient_of_rows(name, rows, device):
    """A row's gradient is the model's sum of its targets' gradients, in the order of the edges, times the weights."""
    source, target = edges_of(400, ROWS, SIZE, device)
    x, grad = data((ROWS, 6), name, device=device), data((SIZE, 6), name, seed=4, device=device)
    plan = gather_plan(source, target, SIZE, rows)
    sent = rows_by(grad, target, 0)
    wanted = expected("sum", sent, source, ROWS, 0)
    for function in (lambda x: torch_reduce.gather_sum(x, plan), lambda x: GATHERS["sum"](x, source, target, SIZE)):
        assert_same_bits(gradients(function, [x], grad)[0], wanted)
    of = name if name == "float64" else "float32"
    for weight in weights_of((ROWS, 6), 0, 400, of, device):
        (found,) = gradients(lambda x, w=weight: torch_reduce.gather_sum(x, plan, weight=w, dtype=x.dtype), [x], grad)
        beside = weight[:, None] if weight.dim() == 1 else weight
        for s in range(ROWS):
            mine = source == s
            pair = sent[mine], beside[mine].expand(sent[mine].shape)
            assert_same_bits(found[s], WEIGHTED.expected(pair, 0, dtype=x.dtype))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_gradient_of_weights(name, device):
    """A weight's gradient is the model's dot product of what it multiplies and its target's gradient."""
    source, target = edges_of(60, ROWS, SIZE, device)
    x, grad = data((ROWS, 3, 20), name, device=device), data((SIZE, 3, 20), name, seed=4, device=device)
    for weight in weights_of((ROWS, 3, 20), 0, 60, name, device):
        for edges in ((source, target, SIZE), (gather_plan(source, target, SIZE, ROWS),)):
            (found,) = gradients(lambda w, e=edges: torch_reduce.gather_sum(x, *e, weight=w), [weight], grad)
            assert found.shape == weight.shape and found.dtype == weight.dtype
            for e in range(60):
                pair = x[source[e]], grad[target[e]]
                dims = [d for d in range(2) if weight.dim() == 1 or weight.size(d + 1) == 1]
                own = found[e] if weight.dim() == 1 else found[e].squeeze(dims)
                if dims:
                    assert_same_bits(own, WEIGHTED.expected(pair, dims))
                else:
                    assert_same_bits(own, WEIGHTED.expected([t[..., None] for t in pair], -1))


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_gradient_of_extrema(kind, device):
    """Edges whose element is the extremum share the gradient equally: in float64, with many equal elements."""
    source, target = edges_of(300, ROWS, SIZE, device)
    x = torch.randint(0, 3, (ROWS, 4), generator=torch.Generator().manual_seed(0)).double().to(device)
    grad = data((SIZE, 4), "float64", seed=4, device=device)
    shared = torch.zeros_like(x)
    for k in range(SIZE):
        mine = source[target == k]
        if len(mine) == 0:
            continue
        rows = x[mine]
        equal = rows == (rows.amax(0) if kind == "amax" else rows.amin(0))
        shared.index_add_(0, mine, equal * (grad[k] / equal.sum(0)))
    for edges in ((source, target, SIZE), (gather_plan(source, target, SIZE, ROWS),)):
        (found,) = gradients(lambda x, e=edges: GATHERS[kind](x, *e), [x], grad)
        torch.testing.assert_close(found, shared, rtol=1e-13, atol=1e-13)


def test_extrema_as_the_composition(device):
    """Without equal elements, the gradient has the composition's bits: the sum of shares in the order of the edges."""
    source, target = edges_of(2000, 300, 900, device)
    x, grad = data((300, 3), "float32", device=device), data((900, 3), "float32", seed=4, device=device)
    (shares,) = gradients(lambda m: torch_reduce.index_amax(m, target, 900), [x[source]], grad)
    (found,) = gradients(lambda x: torch_reduce.gather_amax(x, source, target, 900), [x], grad)
    assert_same_bits(found, expected("sum", shares, source, 300, 0))


def test_lists_of_segments(device):
    """The operators below take lists without numbers of edges, and entries outside of all outputs, with derivatives."""
    rows, ends = torch.tensor([3, 0, 2, 3, 1, 0, 2], device=device), torch.tensor([1, 3, 6], device=device)
    x = torch.tensor([[1.0, 8.0], [4.0, 3.0], [2.0, 5.0], [7.0, 6.0]], dtype=torch.float64, device=device)
    weight = torch.linspace(1, 2, 7, dtype=torch.float64, device=device).requires_grad_()
    for name in ("sum", "mean", "amax", "amin"):
        operator = getattr(torch.ops.gpureduce, f"_gather_{name}")
        assert gradcheck(lambda x, f=operator: f(x, rows, ends), [x.requires_grad_()], check_forward_ad=True)
        assert gradgradcheck(lambda x, f=operator: f(x, rows, ends), [x])
    for shape in ((7,), (7, 1), (7, 2)):
        weights = (weight.detach()[:, None] * torch.ones(2, device=device)).flatten()[: math.prod(shape)].view(shape)
        given = [x, weights.requires_grad_()]
        assert gradcheck(lambda x, w: torch.ops.gpureduce._gather_sum(x, rows, ends, w), given, check_forward_ad=True)
        assert gradgradcheck(lambda x, w: torch.ops.gpureduce._gather_sum(x, rows, ends, w), given)


def test_no_messages(device):
    """Sums and their gradients make no tensor as large as the messages."""

    class Largest(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            results = function(*args, **(kwargs or {}))
            sizes = [one.numel() for one in tree_leaves(results) if isinstance(one, torch.Tensor)]
            self.seen = max([self.seen, *sizes])
            return results

    source, target = edges_of(5000, 100, 80, device)
    x = data((100, 32), "float32", device=device).requires_grad_()
    for kind in ("sum", "mean"):
        with Largest() as largest:
            GATHERS[kind](x, source, target, 80).sum().backward()
        assert 5000 <= largest.seen < 5000 * 32
    with Largest() as largest, torch.no_grad():
        torch_reduce.gather_amax(x, source, target, 80)
        torch_reduce.gather_sum(x, source, target, 80, weight=torch.rand(5000, device=device))
    assert largest.seen < 5000 * 32


# --- plans ------------------------------------------------------------------------------------------------------------


def test_plans(device):
    """A plan has both sorts, in any shape of the lists; it is a pytree, and can be copied."""
    source, target = edges_of(EDGES, ROWS, SIZE, device)
    plan = gather_plan(source.view(9, 10), target.view(9, 10), SIZE, ROWS)
    assert isinstance(plan, GatherPlan) and plan.size == SIZE and "edges=90, size=7, rows=12" in repr(plan)
    assert "rows=None" in repr(gather_plan(source, target, SIZE))
    assert plan.source.equal(source[target.argsort(stable=True)])
    assert plan.target.equal(target[source.argsort(stable=True)])
    x = data((ROWS, 3), "float32", device=device)
    wanted = torch_reduce.gather_sum(x, source, target, SIZE)
    for one in (tree_map(torch.clone, plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert_same_bits(torch_reduce.gather_sum(x, one), wanted)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *e: gather_plan(*e, SIZE, ROWS), fullgraph=True, backend="aot_eager")
    assert_same_bits(torch_reduce.gather_sum(x, compiled(source, target)), wanted)
    of_edges = data((EDGES, 2), "float32", device=device)
    assert_same_bits(torch_reduce.index_sum(of_edges, plan.by_target), torch_reduce.index_sum(of_edges, target, SIZE))


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(GATHERS))
def test_out(kind, device):
    """out= is written where it lies, or resized; not where a gradient is needed."""
    source, target = edges_of(EDGES, ROWS, SIZE, device)
    x, function = data((ROWS, 3), "float32", device=device), GATHERS[kind]
    wanted = function(x, source, target, SIZE)
    for edges in ((source, target, SIZE), (gather_plan(source, target, SIZE, ROWS),)):
        for out in (torch.empty(3, SIZE, device=device).t(), torch.empty(0, device=device)):
            assert function(x, *edges, out=out) is out
            assert_same_bits(out, wanted)
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            function(x.clone().requires_grad_(), *edges, out=torch.empty(SIZE, 3, device=device))
    weight = data((EDGES, 3), "float32", seed=2, device=device)
    out = torch.empty(3, SIZE, device=device).t()
    if kind == "sum":
        torch_reduce.gather_sum(x, source, target, SIZE, weight=weight, out=out)
        assert_same_bits(out, torch_reduce.gather_sum(x, source, target, SIZE, weight=weight))


def test_wrong_arguments(device):
    """Errors name the argument."""
    x, source = torch.ones(4, 2, device=device), torch.tensor([0, 3, 0], device=device)
    target = torch.tensor([0, 1, 0], device=device)
    plan, call = gather_plan(source, target, 2, 4), torch_reduce.gather_sum
    for error, words, work in (
        (TypeError, "'source' must be Tensor or GatherPlan", lambda: call(x, [0, 1, 0], target, 2)),
        (TypeError, "'target' must be Tensor", lambda: call(x, source)),
        (TypeError, "'target' must be left out", lambda: call(x, plan, target)),
        (TypeError, "argument 'size'", lambda: call(x, source, target)),
        (TypeError, "'x' must be Tensor", lambda: call([1.0], source, target, 2)),
        (ValueError, "size: the plan has 2", lambda: call(x, plan, size=3)),
        (RuntimeError, "x: expected 4 rows along dim 1", lambda: call(x, plan, dim=1)),
        (RuntimeError, "weight: expected 3 rows", lambda: call(x, plan, weight=x[:2, 0])),
        (RuntimeError, "target: expected 3 entries", lambda: call(x, source, target[:2], 2)),
        (RuntimeError, "target: expected 3 entries", lambda: gather_plan(source, target[:2], 2)),
        (RuntimeError, "weight: expected 3 elements", lambda: call(x, source, target, 2, weight=x[0])),
        (RuntimeError, "weight: expected 3 elements", lambda: call(x, source, target, 2, weight=x)),
        (RuntimeError, "weight: expected a tensor of one dim", lambda: call(x, source, target, 2, weight=x[None])),
        (RuntimeError, "weight: expected 1 or 2 elements", lambda: call(x, source, target, 2, weight=x[:3, :0])),
        (RuntimeError, "source: expected a tensor of int64", lambda: call(x, source.half(), target, 2)),
        (RuntimeError, "target: expected a tensor of int64", lambda: call(x, source, target.half(), 2)),
        (RuntimeError, "source: expected a tensor of int64", lambda: gather_plan(source.half(), target, 2)),
        (RuntimeError, "target: expected a tensor of int64", lambda: gather_plan(source, target.half(), 2)),
        (RuntimeError, "target: expected a tensor of one dim", lambda: call(x, source, target[:, None], 2)),
        (RuntimeError, "size: expected a number", lambda: call(x, source, target, -1)),
        (RuntimeError, "rows: expected a number", lambda: gather_plan(source, target, 2, -1)),
        (RuntimeError, "at least one dim", lambda: call(x[0, 0], source, target, 2)),
        (IndexError, "Dimension out of range", lambda: call(x, source, target, 2, 2)),
        (NotImplementedError, "complex", lambda: call(x + 1j, source, target, 2, weight=x[:3, 0])),
        (RuntimeError, "floating", lambda: torch_reduce.gather_mean(x.int(), source, target, 2)),
    ):
        with pytest.raises(error, match=words) as caught:
            work()
        assert str(caught.value).startswith(("gather_", "Dimension")), str(caught.value)


def test_entries_out_of_range():
    """On the CPU an error says which entry; also with a plan, and in x of no rows."""
    x, target = torch.ones(4, 2), torch.tensor([1, 0, 1])
    for wrong in (4, -1, 2**40):
        source = torch.tensor([0, 1, wrong])
        message = rf"gather_sum\(\): source: expected each in \[0, 4\), but entry 2 is {wrong}"
        with pytest.raises(IndexError, match=message):
            torch_reduce.gather_sum(x, source, target, 2)
        with pytest.raises(IndexError, match=message):
            torch_reduce.gather_sum(x, gather_plan(source, target, 2))
        with pytest.raises(IndexError, match=message.replace("gather_sum", "gather_plan")):
            gather_plan(source, target, 2, 4)
        with pytest.raises(IndexError, match=rf"gather_amax\(\): target: expected each .* entry 2 is {wrong}"):
            torch_reduce.gather_amax(x, target, source, 3)
        with pytest.raises(IndexError, match=r"gather_plan\(\): target: expected each in \[0, 3\)"):
            gather_plan(target, source, 3)
    with pytest.raises(IndexError, match=r"source: expected each in \[0, 0\), but entry 1 is 0"):
        torch_reduce.gather_sum(x[:0], target, target, 2)
