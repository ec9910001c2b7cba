"""Mixtures of experts: moe_dispatch and moe_combine by the model, and their plans by NumPy."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from support import DTYPES, assert_same_bits, data, dtype_of, name_of
from table import WEIGHTED
from test_gather import gradients, rows_by, wanted_sums
from test_indexed import expected
from torch_reduce import MoePlan, moe_combine, moe_dispatch, moe_plan

TOKENS, EXPERTS = 23, 5
FLOATING = [name for name in DTYPES if dtype_of(name).is_floating_point]
with_drops = pytest.mark.parametrize("drops", [False, True], ids=["all", "drops"])


def experts_of(shape, size, device="cpu", drops=False, seed=0):
    """The experts of each token: one expert has none, if there are several, and with drops a token has none."""
    rng = np.random.default_rng([*shape, size, seed])
    found = rng.integers(0, size, shape)
    found[(found == 1) & (size > 1)] = 0
    if drops:
        found[rng.random(shape) < 0.3] = -1
        found[rng.random(shape) < 0.1] = -7
        found[:1] = -1
    return torch.from_numpy(found).to(device)


def sums_of(rows, index, weights=None, dtype=None):
    """The model's sums of each token's rows, in the order of its choices; each product is rounded once."""
    flat, k = index.reshape(-1).long(), index.shape[-1]
    tokens = flat.numel() // k if k else index.shape[:-1].numel()
    target = torch.arange(flat.numel(), device=flat.device) // max(k, 1)
    kept = flat >= 0
    source, target = flat[kept], target[kept]
    dtype = dtype or rows.dtype
    if tokens == 0:
        return torch.zeros(*index.shape[:-1], *rows.shape[1:], dtype=dtype, device=rows.device)
    if weights is None:
        found = expected("sum", rows_by(rows, source, 0), target, tokens, 0, dtype=dtype)
    else:
        found = wanted_sums(rows, source, target, tokens, 0, weights.reshape(-1)[kept], dtype)
    return found.reshape(*index.shape[:-1], *rows.shape[1:], found.shape[-1])


# --- plans ------------------------------------------------------------------------------------------------------------


@with_drops
@pytest.mark.parametrize("shape", [(TOKENS, 3), (4, 6, 2), (7, 1), (300, 8), (9,)])
def test_plans(shape, drops, device):
    """NumPy's stable sort: experts one after the other, tokens in their order, and what is dropped behind them."""
    experts = experts_of(shape, EXPERTS, device, drops)
    flat = experts.cpu().numpy().reshape(-1)
    order = np.argsort(np.where(flat < 0, EXPERTS, flat), kind="stable")
    row = np.argsort(order)
    for given in (experts, experts.int(), experts.flip(0).flip(0)):
        plan = moe_plan(given, EXPERTS, drops=drops)
        assert plan.index.tolist() == np.where(flat < 0, -1, row).reshape(shape).tolist()
        assert plan.choice.tolist() == order.tolist()
        assert plan.token.tolist() == (order // shape[-1]).tolist()
        counts = [int((flat == e).sum()) for e in range(EXPERTS)]
        assert plan.counts.tolist() == counts and plan.offsets.tolist() == [0, *np.cumsum(counts)]
        assert plan.ends.tolist() == [0, *np.cumsum((flat >= 0).reshape(-1, shape[-1]).sum(1))]
        assert plan.size == EXPERTS and plan.index.dtype == plan.offsets.dtype == torch.int32
        assert f"choices={shape[-1]}, size={EXPERTS}, drops={drops}" in repr(plan)


@with_drops
def test_plans_are_copied(drops, device):
    """A plan is a pytree, and can be copied, stored and compiled."""
    experts = experts_of((TOKENS, 3), EXPERTS, device, drops)
    plan, rows = moe_plan(experts, EXPERTS, drops=drops), data((3 * TOKENS, 4), "float32", device=device)
    wanted = moe_combine(rows, plan)
    torch._dynamo.reset()
    compiled = torch.compile(lambda e: moe_plan(e, EXPERTS, drops=drops), fullgraph=True, backend="aot_eager")
    for one in (tree_map(torch.clone, plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), compiled(experts)):
        assert isinstance(one, MoePlan)
        assert_same_bits(moe_combine(rows, one), wanted)


# --- bits -------------------------------------------------------------------------------------------------------------


@with_drops
@pytest.mark.parametrize("name", FLOATING)
def test_combine(name, drops, device):
    """The model's sums, for every floating dtype: by plan and by index, of rows of any shape and strides."""
    for shape, k in (((TOKENS,), 3), ((4, 6), 2), ((), 5), ((TOKENS,), 1), ((TOKENS,), 8)):
        experts = experts_of((*shape, k), EXPERTS, device, drops)
        plan, n = moe_plan(experts, EXPERTS, drops=drops), experts.numel()
        for rows in (
            data((n, 6), name, device=device),
            data((n,), name, seed=1, device=device),
            data((n, 2, 3), name, seed=2, device=device),
            data((6, n), name, seed=3, device=device).t(),
            data((n, 12), name, seed=4, device=device)[:, ::2],
        ):
            wanted = sums_of(rows, plan.index)
            for index in (plan, plan.index, plan.index.long()):
                found = moe_combine(rows, index)
                assert found.dtype == rows.dtype and found.shape == (*shape, *rows.shape[1:])
                assert_same_bits(found, wanted)


@with_drops
@pytest.mark.parametrize("of", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_combine_with_weights(name, of, drops, device):
    """The result has the dtype of the rows, or the one that is asked for: it is rounded once from the products' sum."""
    for shape, k in (((TOKENS,), 3), ((4, 6), 2), ((TOKENS,), 8)):
        experts = experts_of((*shape, k), EXPERTS, device, drops)
        plan, weights = moe_plan(experts, EXPERTS, drops=drops), data((*shape, k), of, seed=7, device=device)
        rows = data((experts.numel(), 6), name, device=device)
        for dtype in (None, torch.float32, torch.float64):
            wanted = sums_of(rows, plan.index, weights, dtype)
            for index in (plan, plan.index):
                found = moe_combine(rows, index, weights, dtype=dtype)
                assert found.dtype == (dtype or rows.dtype)
                assert_same_bits(found, wanted)
        strided = data((k, *shape), of, seed=7, device=device).movedim(0, -1)
        assert_same_bits(moe_combine(rows, plan, strided), sums_of(rows, plan.index, strided))


def test_combine_many_choices(device):
    """More rows for a token than there are lanes, and than a chunk has; and one row for many tokens."""
    for k in (600, 5000):
        rows, index = data((50, 3), "float32", device=device), experts_of((2, k), 50, device, drops=True)
        weights = data((2, k), "float32", seed=1, device=device)
        assert_same_bits(moe_combine(rows, index), sums_of(rows, index))
        assert_same_bits(moe_combine(rows, index, weights), sums_of(rows, index, weights))


def test_what_is_dropped_is_not_read(device):
    """NaN in rows and weights of dropped choices reach nothing; infinities, NaN and -0.0 of others do."""
    nan, inf = float("nan"), float("inf")
    rows = torch.tensor([[-0.0, 1.0], [nan, 2.0], [inf, -0.0], [nan, nan]], device=device)
    index = torch.tensor([[0, -1], [0, 1], [2, 2], [-1, -5], [-1, 0]], device=device)
    weights = torch.tensor([[2.0, nan], [1, 1], [1, -1], [nan, nan], [inf, -1]], device=device)
    assert_same_bits(moe_combine(rows, index), sums_of(rows, index))
    assert_same_bits(moe_combine(rows, index, weights), sums_of(rows, index, weights))
    assert torch.signbit(moe_combine(rows, index)[0, 0]) and moe_combine(rows, index)[3].tolist() == [0, 0]
    found = gradients(lambda r, w: moe_combine(r, index, w), [rows, weights], torch.ones(5, 2, device=device))
    assert found[0][3].tolist() == [0, 0] and found[1][index < 0].tolist() == [0] * 4


@with_drops
@pytest.mark.parametrize("name", DTYPES)
def test_dispatch(name, drops, device):
    """Every dtype: rows of tokens, whole, one expert after the other; rows of dropped choices are 0."""
    for shape, k in (((TOKENS,), 3), ((4, 6), 2), ((), 5)):
        experts = experts_of((*shape, k), EXPERTS, device, drops)
        plan = moe_plan(experts, EXPERTS, drops=drops)
        for more in ((6,), (), (2, 3)):
            x = data((*shape, *more), name, device=device)
            flat = x.reshape(-1, *more)
            wanted = rows_by(flat, plan.token, 0)
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(x.element_size(), x.dtype)
            wanted.view(bits)[int(plan.offsets[-1]) :] = 0
            found = moe_dispatch(x, plan)
            assert found.dtype == x.dtype and found.is_contiguous()
            assert_same_bits(found, wanted)


def test_nothing(device):
    """No tokens, choices, experts, columns or rows; and experts without tokens."""
    for shape, size in (((0, 2), 3), ((4, 0), 3), ((0, 0), 0), ((4, 2), 3)):
        for drops in (False, True):
            plan = moe_plan(experts_of(shape, size, device, drops=drops), size, drops=drops)
            x = torch.ones(shape[0], 3, device=device).requires_grad_()
            rows = moe_dispatch(x, plan)
            assert rows.shape == (shape[0] * shape[1], 3) and plan.counts.shape == (size,)
            weights = torch.ones(shape, device=device).requires_grad_()
            for index in (plan, plan.index):
                found = moe_combine(rows, index, weights)
                assert_same_bits(found.detach(), sums_of(rows.detach(), plan.index, weights.detach()))
                assert all(grad.isfinite().all() for grad in torch.autograd.grad(found.sum(), (x, weights)))
                rows = moe_dispatch(x, plan)
            assert moe_combine(rows[:, :0], plan).shape == (shape[0], 0)
    dropped = torch.full((4, 2), -1, device=device)
    plan = moe_plan(dropped, 0, drops=True)
    assert plan.counts.tolist() == [] and moe_dispatch(x, plan).tolist() == [[0.0] * 3] * 8
    none, weights = torch.ones(0, 3, device=device).requires_grad_(), torch.ones(4, 2, device=device).requires_grad_()
    for given in ((), (weights,)):
        found = moe_combine(none, dropped, *given)
        assert found.tolist() == [[0.0] * 3] * 4
        grads = torch.autograd.grad(found.sum(), (none, *given))
        assert [grad.shape for grad in grads] == [one.shape for one in (none, *given)]


# --- batches and gradients --------------------------------------------------------------------------------------------


@with_drops
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_gradients(name, drops, device):
    """A row has its token's gradient times its weight, a weight a dot product, a token the sum of its rows'."""
    experts = experts_of((TOKENS, 3), EXPERTS, device, drops)
    plan, n = moe_plan(experts, EXPERTS, drops=drops), experts.numel()
    rows, of = data((n, 20), name, device=device), name if name == "float64" else "float32"
    weights, grad = data((TOKENS, 3), of, seed=2, device=device), data((TOKENS, 20), name, seed=3, device=device)
    sent = rows_by(grad, plan.token, 0)
    kept = torch.arange(n, device=device) < plan.offsets[-1]
    by_row = torch.zeros(n, dtype=weights.dtype, device=device)
    by_row[plan.index[plan.index >= 0].long()] = weights[plan.index >= 0]
    for index in (plan, plan.index):
        of_rows, of_weights = gradients(lambda r, w, i=index: moe_combine(r, i, w), [rows, weights], grad)
        (alone,) = gradients(lambda r, i=index: moe_combine(r, i), [rows], grad)
        assert_same_bits(alone, torch.where(kept[:, None], sent, 0))
        for r in range(n):
            pair = sent[r : r + 1], by_row[r : r + 1, None].expand(1, 20)
            wanted = WEIGHTED.expected(pair, 0, dtype=rows.dtype) if kept[r] else torch.zeros_like(rows[r])
            assert_same_bits(of_rows[r], wanted)
        assert of_weights.dtype == weights.dtype
        for t in range(TOKENS):
            for j in range(3):
                pair = rows[plan.index[t, j]], grad[t]
                dropped = plan.index[t, j] < 0
                wanted = weights.new_zeros(()) if dropped else WEIGHTED.expected(pair, 0, dtype=weights.dtype)
                assert_same_bits(of_weights[t, j], wanted)
    given = data((n, 20), name, seed=4, device=device)
    (found,) = gradients(lambda x: moe_dispatch(x, plan), [grad], given)
    assert_same_bits(found, sums_of(given, plan.index))


def test_gradient_of_shared_rows(device):
    """Rows that several tokens chose have the model's sum of their gradients, in the order of the choices."""
    index, rows = experts_of((400, 3), 9, device, drops=True), data((9, 5), "float32", device=device)
    weights, grad = data((400, 3), "float32", seed=1, device=device), data((400, 5), "float32", seed=2, device=device)
    flat = index.flatten()
    token = torch.arange(1200, device=device) // 3
    for given in (None, weights):
        (found,) = gradients(lambda r, w=given: moe_combine(r, index, w), [rows], grad)
        for r in range(9):
            mine = flat == r
            each = torch.ones_like(weights).flatten()[mine] if given is None else weights.flatten()[mine]
            pair = grad[token[mine]], each[:, None].expand(-1, 5)
            assert_same_bits(found[r], WEIGHTED.expected(pair, 0))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_batches(name, device):
    """A token has the same bits alone, in a batch, and whatever experts the others choose; so have its gradients."""
    x, scores = data((40, 16), name, device=device), data((40, EXPERTS), "float32", seed=1, device=device)
    grad = data((40, 16), name, seed=2, device=device)

    def layer(x, weights, experts):
        plan = moe_plan(experts, EXPERTS, drops=True)
        rows = moe_dispatch(x, plan)
        which = torch.arange(EXPERTS, device=device).repeat_interleave(plan.counts.long(), output_size=None)
        factor = torch.zeros(len(rows), device=device, dtype=rows.dtype)
        factor[: len(which)] = (which + 1).to(rows.dtype) / 7
        return moe_combine(rows * factor[:, None], plan, weights)

    def both(chosen):
        weights, experts = scores[chosen].topk(3, 1)
        experts = experts.where(weights > -1, -1)
        leaves = [x[chosen].requires_grad_(), weights.detach().requires_grad_()]
        found = layer(*leaves, experts)
        return found.detach(), *torch.autograd.grad(found, leaves, grad[chosen])

    whole = both(slice(None))
    for chosen in (slice(0, 1), slice(7, 8), slice(3, 30), slice(39, 40)):
        for one, every in zip(both(chosen), whole, strict=True):
            assert_same_bits(one, every[chosen])


def test_same_bits_on_the_cpu(cuda):
    """A GPU has the CPU's bits, in five runs."""
    experts = experts_of((3000, 6), 60, drops=True)
    given = data((18_000, 64), "bfloat16"), data((3000, 6), "float32", seed=1), data((3000, 64), "bfloat16", seed=2)

    def run(device):
        plan = moe_plan(experts.to(device), 60, drops=True)
        rows, weights, grad = (x.to(device) for x in given)
        leaves = [grad.clone().requires_grad_(), rows.clone().requires_grad_(), weights.clone().requires_grad_()]
        found = moe_dispatch(leaves[0], plan), moe_combine(leaves[1], plan, leaves[2])
        return *found, *torch.autograd.grad(found, leaves, (rows, grad))

    wanted = run("cpu")
    for _ in range(5):
        for one, other in zip(run(cuda), wanted, strict=True):
            assert_same_bits(one.detach(), other.detach())


class Called(TorchDispatchMode):
    """The names of the operators that run, and how many elements the largest result has."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@with_drops
def test_sorts(drops, device):
    """A plan is one sort. With it, neither pass sorts, and nothing is added by atomics."""
    experts = experts_of((TOKENS, 3), EXPERTS, device, drops)
    with Called() as called:
        plan = moe_plan(experts, EXPERTS, drops=drops)
    assert sum("plan" in name for name in called.names) == 1
    assert not any(name.startswith("aten.sort") for name in called.names)
    x, weights = torch.ones(TOKENS, 4, device=device), torch.ones(TOKENS, 3, device=device)
    leaves = [x.requires_grad_(), weights.requires_grad_()]
    with Called() as called:
        torch.autograd.grad(moe_combine(moe_dispatch(leaves[0], plan), plan, leaves[1]).sum(), leaves)
    assert not any("plan" in name or "aten.sort" in name or "add" in name for name in called.names), called.names


def test_compiled_by_inductor(device):
    """Inductor, which fuses what stands around, gives eager's bits."""
    torch._dynamo.reset()

    def layer(x, weights, experts):
        plan = moe_plan(experts, EXPERTS, drops=True)
        return moe_combine(moe_dispatch(x, plan) * 2, plan, weights)

    x, weights = data((TOKENS, 8), "float32", device=device), data((TOKENS, 2), "float32", seed=1, device=device)
    experts = experts_of((TOKENS, 2), EXPERTS, device, drops=True)
    assert_same_bits(torch.compile(layer, fullgraph=True)(x, weights, experts), layer(x, weights, experts))


def test_exported(device):
    """torch.export keeps all of it, for any number of tokens."""

    class Layer(torch.nn.Module):
        def forward(self, x, weights, experts):
            plan = moe_plan(experts, EXPERTS, drops=True)
            return moe_combine(moe_dispatch(x, plan) * 2, plan, weights), plan.counts

    def given(tokens):
        x, weights = data((tokens, 4), "bfloat16", device=device), data((tokens, 2), "float32", seed=1, device=device)
        return x, weights, experts_of((tokens, 2), EXPERTS, device, drops=True)

    many = {0: torch.export.Dim("tokens", min=2, max=1000)}
    exported = torch.export.export(Layer(), given(TOKENS), dynamic_shapes=(many, many, many)).module()
    for tokens in (TOKENS, 90):
        assert_same_bits(exported(*given(tokens)), Layer()(*given(tokens)))


# --- arguments --------------------------------------------------------------------------------------------------------


def test_wrong_arguments(device):
    """Errors name the function and the argument."""
    index = torch.tensor([[0, 2], [1, 1]], device=device)
    plan, x, rows = moe_plan(index, 3), torch.ones(2, 5, device=device), torch.ones(4, 5, device=device)
    w = torch.ones(2, 2, device=device)
    for error, words, work in (
        (TypeError, r"moe_plan\(\): argument 'experts' must be Tensor", lambda: moe_plan([[0]], 2)),
        (TypeError, r"moe_plan\(\): argument 'size' must be int", lambda: moe_plan(index, 2.0)),
        (TypeError, r"moe_plan\(\): argument 'drops' must be bool", lambda: moe_plan(index, 3, drops=1)),
        (RuntimeError, r"moe_plan\(\): experts: expected a tensor of int64 or int32", lambda: moe_plan(w, 3)),
        (RuntimeError, r"moe_plan\(\): experts: expected a tensor of int64", lambda: moe_plan(w, 3, drops=True)),
        (RuntimeError, r"moe_plan\(\): experts: expected at least one dim", lambda: moe_plan(index[0, 0], 3)),
        (RuntimeError, r"moe_plan\(\): size: expected a number", lambda: moe_plan(index, -1)),
        (RuntimeError, r"moe_plan\(\): size: expected a number", lambda: moe_plan(index, -1, drops=True)),
        (TypeError, r"moe_dispatch\(\): argument 'x' must be Tensor", lambda: moe_dispatch([1.0], plan)),
        (TypeError, r"moe_dispatch\(\): .*'plan' must be MoePlan, not Tensor", lambda: moe_dispatch(x, index)),
        (RuntimeError, r"moe_dispatch\(\): x: expected the size \[2, \.\.\.\]", lambda: moe_dispatch(rows, plan)),
        (TypeError, r"moe_combine\(\): argument 'rows' must be Tensor", lambda: moe_combine([1.0], plan)),
        (TypeError, r"moe_combine\(\): argument 'index' must be Tensor or MoePlan", lambda: moe_combine(rows, [[0]])),
        (TypeError, r"moe_combine\(\): argument 'weights' must be Tensor", lambda: moe_combine(rows, plan, 1.0)),
        (TypeError, r"moe_combine\(\): argument 'dtype'", lambda: moe_combine(rows, plan, dtype=6)),
        (NotImplementedError, r"moe_combine\(\): rows: .*floating.*int64", lambda: moe_combine(rows.long(), plan)),
        (NotImplementedError, r"moe_combine\(\): rows: .*floating.*bool", lambda: moe_combine(rows.bool(), plan)),
        (NotImplementedError, r"moe_combine\(\): rows: .*floating.*complex", lambda: moe_combine(rows + 1j, plan)),
        (NotImplementedError, r"moe_combine\(\): weights: .*floating.*int64", lambda: moe_combine(rows, plan, index)),
        (RuntimeError, r"moe_combine\(\): weights: expected the size \[2, 2\]", lambda: moe_combine(rows, plan, w[:1])),
        (RuntimeError, r"moe_combine\(\): index: expected .*int64 or int32", lambda: moe_combine(rows, w)),
        (RuntimeError, r"moe_combine\(\): index: expected at least one dim", lambda: moe_combine(rows, index[0, 0])),
        (RuntimeError, r"moe_combine\(\): rows: expected at least one dim", lambda: moe_combine(rows[0, 0], index)),
        (RuntimeError, r"moe_combine\(\): rows: expected 4 rows along dim 0", lambda: moe_combine(rows[:3], plan)),
    ):
        with pytest.raises(error, match=words):
            work()


def test_entries_out_of_range():
    """On the CPU an error says which entry."""
    rows, w = torch.ones(4, 2), torch.ones(2, 2)
    for wrong in (4, 2**40):
        index = torch.tensor([[0, -1], [3, wrong]])
        words = rf"expected each below 4, but entry 3 is {wrong}"
        for given in ((), (w,)):
            with pytest.raises(IndexError, match=rf"moe_combine\(\): index: {words}"):
                moe_combine(rows, index, *given)
        with pytest.raises(IndexError, match=rf"moe_plan\(\): experts: {words}"):
            moe_plan(index, 4, drops=True)
    for wrong in (4, -1):
        words = rf"moe_plan\(\): experts: expected each in \[0, 4\), but entry 1 is {wrong}"
        with pytest.raises(IndexError, match=words):
            moe_plan(torch.tensor([[0, wrong]]), 4)


def test_other_devices():
    """Lists on another device than the rows are refused."""
    index = torch.tensor([[0, 1]], device="meta")
    for work in (
        lambda: moe_combine(torch.ones(2, 3), index),
        lambda: moe_combine(torch.ones(2, 3), moe_plan(index, 2)),
        lambda: moe_dispatch(torch.ones(1, 3), moe_plan(index, 2)),
        lambda: moe_combine(torch.ones(2, 3, device="meta"), index, torch.ones(1, 2)),
    ):
        with pytest.raises(RuntimeError, match=r"^moe_(combine|dispatch)\(\): (index|plan|weights): .* (device|be on)"):
            work()
    assert moe_combine(torch.ones(2, 3, device="meta"), moe_plan(index, 2)).shape == (1, 3)
    assert name_of(moe_combine(torch.ones(2, 3, device="meta"), index, dtype=torch.float64).dtype) == "float64"
