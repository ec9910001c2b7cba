"""Sums by index over ranks: of DTensors, and of Shards that are cut along another dim than the index."""

import itertools
import math

import pytest
import torch

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Shard
from torch.distributed.tensor.debug import CommDebugMode

import torch_reduce
from support import SUM, assert_same_bits, data, tensor_of
from test_distributed_family import meshes  # noqa: F401
from test_dtensor import R, assert_result, cut, inside, mesh_of, only_where_torch_moves
from test_indexed import FLOATS, expected, index_of
from torch_reduce.distributed import Shard as Cut
from worlds import here, traffic

WORLDS = ["cpu", "mixed", "nccl"]
OPS = torch.ops.gpureduce
S0, S1 = Shard(0), Shard(1)
MESHES = [(2,), (4,), (2, 2)]
N, SIZE, COLUMNS = 5000, 7, 6  # more entries of an output than a chunk of the order has, with the hot index


class Case:
    """A function of torch_reduce of some tensors and lists of integers; `dim` of the first tensor has the rows."""

    def __init__(self, call, tensors, lists=("index",), dim=0, makes=None):
        self.call, self.tensors, self.lists, self.dim = call, tensors, lists, dim
        self.makes = makes or (lambda cut: cut)  # the dim of the result that is cut where this one of a tensor is

    def given(self, name="float32"):
        """The tensors and the lists, of one process."""
        return [TENSORS[key](name) for key in self.tensors], [LISTS[key]() for key in self.lists]


TENSORS = {
    "rows": lambda name: data([N, COLUMNS], name, 1),
    "columns": lambda name: data([COLUMNS, N], name, 1),
    "entries": lambda name: data([N], name, 2),
    "head": lambda name: data([N, 1], "float32" if name == "bfloat16" else name, 6),
    "weight": lambda name: data([N], "float32" if name == "bfloat16" else name, 3),
    "table": lambda name: data([SIZE, COLUMNS], name, 4),
    "scores": lambda name: data([50, 100], "float32" if name == "bfloat16" else name, 7),
    "vector": lambda name: data([SIZE], name, 5),
}
LISTS = {
    "index": lambda: index_of(N, SIZE, hot=True),
    "target": lambda: index_of(N, SIZE, seed=5),
    "routes": lambda: index_of(N, SIZE, hot=True).view(N, 1),
    "square": lambda: index_of(N, SIZE).view(50, 100),
    "offsets": lambda: torch.tensor([3, 3, 4600, 4601, N - 5], dtype=torch.int32),
    "elements": lambda: index_of(N * COLUMNS, SIZE, hot=True).view(N, COLUMNS),
    "expanded": lambda: index_of(N, SIZE)[:, None].expand(N, COLUMNS),
}
T = torch_reduce
CASES = {
    "index_sum": Case(lambda x, i: T.index_sum(x, i, SIZE), ["rows"]),
    "index_sum of dim 1": Case(lambda x, i: T.index_sum(x, i, SIZE, -1), ["columns"], dim=1),
    "index_sum of numbers": Case(lambda x, i: T.index_sum(x, i, SIZE), ["entries"]),
    "index_sum with weights": Case(lambda x, w, i: T.index_sum(x, i, SIZE, weight=w), ["rows", "weight"]),
    "index_sum by plan": Case(lambda x, w, i: T.index_sum(x, T.index_plan(i, SIZE), weight=w), ["rows", "weight"]),
    "index_sum with heads": Case(lambda x, w, i: T.index_sum(x, i, SIZE, weight=w), ["rows", "head"]),
    "index_sum with a weight for each element": Case(
        lambda x, w, i: T.index_sum(x, i, SIZE, weight=w), ["rows", "rows"]
    ),
    "gather_sum": Case(lambda x, i, k: T.gather_sum(x, i, k, SIZE), ["table"], ["index", "target"]),
    "gather_sum with weights": Case(
        lambda x, w, i, k: T.gather_sum(x, i, k, SIZE, weight=w), ["table", "weight"], ["index", "target"]
    ),
    "gather_sum by plan": Case(
        lambda x, w, i, k: T.gather_sum(x, T.gather_plan(i, k, SIZE, SIZE), weight=w),
        ["table", "rows"],
        ["index", "target"],
    ),
    "gather_amax": Case(lambda x, i, k: T.gather_amax(x, i, k, SIZE), ["table"], ["index", "target"]),
    "moe_dispatch": Case(lambda x, i: T.moe_dispatch(x, T.moe_plan(i - 1, SIZE, drops=True)), ["rows"], ["routes"]),
    "moe_combine": Case(lambda x, i: T.moe_combine(x, i - 1), ["table"], ["routes"]),
    "moe_combine with weights": Case(lambda x, w, i: T.moe_combine(x, i - 1, w), ["table", "scores"], ["square"]),
    "moe_combine by plan": Case(lambda x, w, i: T.moe_combine(x, T.moe_plan(i, SIZE), w), ["rows", "head"], ["routes"]),
    "index_mean": Case(lambda x, i: T.index_mean(x, i, SIZE), ["rows"]),
    "index_amax": Case(lambda x, i: T.index_amax(x, i, SIZE), ["rows"]),
    "index_amin by plan": Case(lambda x, i: T.index_amin(x, T.index_plan(i, SIZE), dim=1), ["columns"], dim=1),
    "index_add": Case(lambda x, y, i: T.index_add(x, 0, i, y, alpha=2), ["table", "rows"]),
    "index_add of numbers": Case(lambda x, y, i: T.index_add(x, -1, i, y), ["vector", "entries"]),
    "index_add_": Case(lambda x, y, i: T.index_add_(x.clone(), 0, i, y), ["table", "rows"]),
    "scatter_add": Case(lambda x, y, i: T.scatter_add(x, 0, i, y), ["table", "rows"], ["elements"]),
    "scatter_add of rows": Case(lambda x, y, i: T.scatter_add(x, -2, i, y), ["table", "rows"], ["expanded"]),
    "index_reduce, means": Case(lambda x, y, i: T.index_reduce(x, 0, i, y, "mean"), ["table", "rows"]),
    "index_reduce, maxima": Case(lambda x, y, i: T.index_reduce(x, 0, i, y, "amax"), ["table", "rows"]),
    "index_reduce, sums": Case(
        lambda x, y, i: T.index_reduce(x, 0, i, y, "sum", include_self=False), ["table", "rows"]
    ),
    "scatter_reduce": Case(lambda x, y, i: T.scatter_reduce(x, 0, i, y, "mean"), ["table", "rows"], ["elements"]),
    "scatter_reduce of rows": Case(
        lambda x, y, i: T.scatter_reduce(x, -2, i, y, "amin"), ["table", "rows"], ["expanded"]
    ),
    "embedding": Case(lambda w, i: T.embedding(i, w), ["table"], ["square"], makes=lambda cut: cut + 1),
    "embedding, padded": Case(lambda w, i: T.embedding(i, w, -1), ["table"], ["square"], makes=lambda cut: cut + 1),
    "embedding_bag": Case(lambda w, i, o: T.embedding_bag(i, w, o), ["table"], ["index", "offsets"]),
    "embedding_bag, means": Case(
        lambda w, i, o: T.embedding_bag(i, w, o, mode="mean"), ["table"], ["index", "offsets"]
    ),
    "embedding_bag, largest": Case(
        lambda w, i, o: T.embedding_bag(i, w, o[:1] * 0, mode="max", padding_idx=2, include_last_offset=False),
        ["table"],
        ["index", "offsets"],
    ),
    "embedding_bag of rows": Case(
        lambda w, i: T.embedding_bag(i, w, mode="mean", padding_idx=-1), ["table"], ["square"]
    ),
    "embedding_bag, weighted": Case(
        lambda w, s, i, o: T.embedding_bag(i, w, o, per_sample_weights=s), ["table", "entries"], ["index", "offsets"]
    ),
}
# What is the same where an operator is called that is made of others.
OPERATORS = {
    "index_sum": lambda x, i: OPS.index_sum(x, i, SIZE),
    "index_sum with weights": lambda x, w, i: OPS.index_sum(x, i, SIZE, weight=w),
    "index_mean": lambda x, i: OPS.index_mean(x, i, SIZE),
    "index_amax": lambda x, i: OPS.index_amax(x, i, SIZE),
    "index_add": lambda x, y, i: OPS.index_add(x, 0, i, y, alpha=2),
    "embedding": lambda w, i: OPS.embedding(i, w),
}
every_case = pytest.mark.parametrize("name", CASES)


def whole_result(call, tensors, lists, given):
    """One process's result and gradients."""
    leaves = [x.clone().requires_grad_() for x in tensors]
    result = call(*leaves, *lists)
    return result.detach(), torch.autograd.grad(result, leaves, given[: result.numel()].view(result.shape))


def placed(x, placements):
    """Those of these placements that cut a dim that the tensor has."""
    return [one if getattr(one, "dim", 0) < x.dim() else R for one in placements]


def as_given(one, how, mesh):
    """A list of integers, as a call on DTensors may be given it."""
    if how == "plain":
        return one.to(here())
    return cut(one, mesh, [{"everywhere": R, "cut": S0, "cut along 1": S1}[how]] * mesh.ndim)


def same_as_one_process(group, shape, name, dtype, layouts, hows, pairs):
    """Values and gradients, for all placements of tensors and lists, or only for those pairs of both."""
    mesh, case = mesh_of(shape), CASES[name]
    (tensors, lists), given = case.given(dtype), data([N * COLUMNS], dtype, 9)
    calls = [case.call, *([OPERATORS[name]] if name in OPERATORS else [])]
    wanted, gradients = whole_result(case.call, tensors, lists, given)
    for (k, placements), (j, how), call in itertools.product(enumerate(layouts), enumerate(hows), calls):
        if pairs and (k - j) % len(hows) not in pairs:
            continue
        if how == "cut along 1" and lists[0].dim() < 2:
            continue
        if "cut" in how and call is not case.call and lists[0].dim() > 1:  # torch makes no vector of that
            continue
        what = f"{name} of {dtype}, {placements} on {shape}, lists {how}"
        leaves = [cut(x.clone(), mesh, placed(x, placements)).requires_grad_() for x in tensors]
        result = call(*leaves, *(as_given(one, how, mesh) for one in lists))
        assert_result(result.detach(), wanted, mesh, result.placements, what)
        beside = [one for one in placed(tensors[0], placements) if getattr(one, "dim", case.dim) != case.dim]
        if "add" not in name and len(tensors) == 1:  # a dim that stays is cut as it was, the others are everywhere
            after = [Shard(case.makes(one.dim)) if one in beside else R for one in placements]
            assert list(result.placements) == after, what
        grad = cut(given[: wanted.numel()].view(wanted.shape), mesh, result.placements)
        for leaf, got, bits in zip(leaves, torch.autograd.grad(result, leaves, grad), gradients, strict=True):
            assert got.shape == leaf.shape, what
            if inside(mesh):
                assert_same_bits(got.full_tensor(), bits, what)


@every_case
@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_same_as_one_process(shape, name, meshes):  # noqa: F811
    only_where_torch_moves(meshes)
    layouts = [[R], [S0], [S1]] if len(shape) == 1 else [[S0, S1], [S1, S0], [S1, S1], [R, S1], [S0, S0]]
    hows = ["plain", "everywhere", "cut", "cut along 1"]
    pairs = {(2,): (0, 2), (4,): (1, 3), (2, 2): (1,)}[shape]  # each placement has each kind on one of the meshes
    meshes.run(meshes.size, same_as_one_process, shape, name, "float32", layouts, hows, pairs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_dtypes(dtype, meshes):  # noqa: F811
    only_where_torch_moves(meshes)
    for k, name in enumerate(CASES, int(dtype == "float64")):
        meshes.run(meshes.size, same_as_one_process, (4,), name, dtype, [[(S0, S1)[k % 2]]], ["plain"], ())


def the_model(group, shape, cases):
    mesh = mesh_of(shape)
    for name, dtype, wanted in cases:
        source, index = TENSORS["rows"](dtype), LISTS["index"]()
        function = getattr(torch_reduce, f"index_{name}")
        for placements in ([S0], [S1]):
            got = function(cut(source, mesh, placements), index.to(here()), SIZE)
            after = [R] if placements == [S0] else [S1]
            assert_result(got, tensor_of(wanted, dtype), mesh, after, f"{name} {dtype} {placements}")


@pytest.mark.parametrize("shape", [(2,), (4,)], ids=str)
def test_the_model(shape, meshes):  # noqa: F811
    """The bits of the NumPy model."""
    only_where_torch_moves(meshes)
    cases = []
    for name, dtype in itertools.product(("sum", "mean", "amax", "amin"), FLOATS):
        cases.append((name, dtype, expected(name, TENSORS["rows"](dtype), LISTS["index"](), SIZE, 0)))
    meshes.run(meshes.size, the_model, shape, cases)


def nothing_sent(group, names):
    mesh = mesh_of((4,))
    for name, placement, how in itertools.product(names, ("everywhere", "another dim"), ("plain", "everywhere")):
        case = CASES[name]
        tensors, lists = case.given()
        whole = [placement == "everywhere" or x.dim() < 2 or x.size(1 - case.dim) == 1 for x in tensors]
        placements = [[R if one else Shard(1 - case.dim)] for one in whole]
        pairs = zip(tensors, placements, strict=True)
        # The gradient of a weight is a sum along the dim that is cut.
        leaves = [cut(x, mesh, p).requires_grad_(placement == "everywhere" or p != [R]) for x, p in pairs]
        lists = [as_given(one, how, mesh) for one in lists]
        if not inside(mesh):
            continue
        with CommDebugMode() as counted:
            result = case.call(*leaves, *lists)
            required = [leaf for leaf in leaves if leaf.requires_grad]
            if required:
                torch.autograd.grad(result, required, result.detach())
        assert counted.get_total_counts() == 0, f"{name} {placement} {how}: {counted.get_comm_counts()}"


def test_nothing_is_sent(meshes):  # noqa: F811
    """Where every rank has the lists, and another dim than theirs is cut, or none: forward and backward."""
    only_where_torch_moves(meshes)
    names = [name for name in CASES if name != "moe_combine with weights"]  # whose weights are sent if they are cut
    for sent in meshes.run(meshes.size, traffic, nothing_sent, names):
        assert sent == {"all_to_all": [0, 0], "all_gather": [0, 0]}


# Weights of the rows, or of the edges to the rows, of a table of (SIZE, heads, columns).
WEIGHTS = {"edges": (N,), "edges of three dims": (N, 1, 1), "heads": (N, 4, 1), "columns": (N, 1, 6)}
WEIGHTS["elements"] = (N, 4, 6)
GATHERS = {
    "lists": lambda x, w, i, k: T.gather_sum(x, i, k, SIZE, weight=w),
    "plan": lambda x, w, i, k: T.gather_sum(x, T.gather_plan(i, k, SIZE, SIZE), weight=w),
}


def weights_of_any_placement(group, shape, wanted, gradients):
    mesh, of_table, lists = mesh_of(shape), data([SIZE, 4, 6], "float32", 4), [LISTS["index"](), LISTS["target"]()]
    given = data([SIZE, 4, 6], "float32", 9)
    number = 0
    for kind, size in WEIGHTS.items():
        of_weight, ways = data(size, "float32", 3), itertools.cycle(("plain", "cut", "plan"))
        each = itertools.product([R, S0, S1, Shard(2)], repeat=mesh.ndim)
        pairs = itertools.product(each, itertools.product([R, *map(Shard, range(len(size)))], repeat=mesh.ndim))
        for (of_x, of_w), how in zip(pairs, ways, strict=False):
            number += 1
            if mesh.ndim > 1 and number % 17:  # a sample of 55
                continue
            what = f"{kind}, x {of_x}, weight {of_w}, lists {how}"
            x, w = (cut(one.clone(), mesh, p).requires_grad_() for one, p in ((of_table, of_x), (of_weight, of_w)))
            call = GATHERS["plan" if how == "plan" else "lists"]
            got = call(x, w, *(as_given(one, "cut" if how == "cut" else "plain", mesh) for one in lists))
            after = [R if one == S0 else one for one in of_x]  # as it is cut, whatever the weight's placements
            assert_result(got.detach(), tensor_of(wanted[kind], "float32"), mesh, after, what)
            found = torch.autograd.grad(got, [x, w], cut(given, mesh, after))
            if inside(mesh):
                for one, bits in zip(found, gradients[kind], strict=True):
                    assert_same_bits(one.full_tensor(), bits, what)


@pytest.mark.parametrize("shape", [(2,), (2, 2)], ids=str)
def test_weights_of_any_placement(shape, meshes):  # noqa: F811
    """Weights of gather_sum need not be cut as the rows: values by the model, and gradients of one process."""
    only_where_torch_moves(meshes)
    table, given = data([SIZE, 4, 6], "float32", 4), data([SIZE, 4, 6], "float32", 9)
    lists, wanted, gradients = [LISTS["index"](), LISTS["target"]()], {}, {}
    for kind, size in WEIGHTS.items():
        weight = data(size, "float32", 3)
        beside = weight if weight.dim() > 1 else weight[:, None, None]
        wanted[kind] = expected("sum", table[lists[0]] * beside, lists[1], SIZE, 0)
        result, gradients[kind] = whole_result(GATHERS["lists"], [table, weight], lists, given.flatten())
        assert_same_bits(result, tensor_of(wanted[kind], "float32"))
    meshes.run(meshes.size, weights_of_any_placement, shape, wanted, gradients)


def sequences(group):
    """Experts of tokens in sequences, of DTensors that are cut along columns, tokens and sequences."""
    mesh = mesh_of((4,))
    experts = index_of(5 * 12 * 2, 4).view(5, 12, 2) - 1
    plan = torch_reduce.moe_plan(experts, 3, drops=True)
    x, weights = data([5, 12, 8], "bfloat16", 1), data([5, 12, 2], "float32", 2)
    rows = torch_reduce.moe_dispatch(x, plan)
    one = torch_reduce.moe_combine(rows, plan, weights)
    plans = [torch_reduce.moe_plan(as_given(experts, how, mesh), 3, drops=True) for how in ("plain", "cut along 1")]
    for (placement, after), here_plan in itertools.product(((S1, R), (S0, R), (Shard(2), S1)), plans):
        if not inside(mesh):
            continue
        found = torch_reduce.moe_dispatch(cut(x, mesh, [placement]), here_plan)
        assert_result(found, rows, mesh, [after], f"{placement}")
        for index in (here_plan, cut(plan.index, mesh, [S1])):
            back = torch_reduce.moe_combine(found, index, cut(weights, mesh, [S1]))
            assert_result(back, one, mesh, [R if after == R else Shard(2)], f"{placement}")


def test_experts_of_sequences(meshes):  # noqa: F811
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, sequences)


WITHOUT_LISTS = {
    "amax": Case(lambda x: T.amax(x, 0), ["rows"], []),
    "amin": Case(lambda x: T.amin(x, 1, keepdim=True), ["rows"], []),
    "largest norm": Case(lambda x: T.vector_norm(x, math.inf, 0), ["rows"], []),
    "norm": Case(lambda x: T.vector_norm(x, 2, 1), ["rows"], []),
}


def partials(group, shape, names):
    mesh, rank, world = mesh_of(shape), dist.get_rank(), len(mesh_of(shape).mesh.flatten())
    for name in names:
        case = (CASES | WITHOUT_LISTS)[name]
        tensors, lists = case.given()
        each = [[data(x.shape, "float32", 10 * k + r) for r in range(world)] for k, x in enumerate(tensors)]
        sums = [tensor_of(SUM.expected(torch.stack(addends), 0), "float32") for addends in each]
        given = data([N * COLUMNS], "float32", 9)
        wanted, gradients = whole_result(case.call, sums, lists, given)
        if not inside(mesh):
            continue
        mine = [addends[rank].to(here()).requires_grad_() for addends in each]
        parts = [DTensor.from_local(x, mesh, [Partial()] * len(shape)) for x in mine]
        result = case.call(*parts, *(one.to(here()) for one in lists))
        assert_result(result.detach(), wanted, mesh, [R] * len(shape), name)
        grad = cut(given[: wanted.numel()].view(wanted.shape), mesh, [R] * len(shape))
        for got, bits in zip(torch.autograd.grad(result, mine, grad), gradients, strict=True):
            assert_same_bits(got, bits, name)


@pytest.mark.parametrize("shape", [(2,), (4,)], ids=str)
def test_partials(shape, meshes):  # noqa: F811
    """Addends of the ranks are joined first, pairwise in rank order; each has the gradient of the sum."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, partials, shape, [name for name in CASES if name != "index_add_"])  # it stays Partial


@pytest.mark.parametrize("shape", [(2,), (4,)], ids=str)
def test_partials_without_an_index(shape, meshes):  # noqa: F811
    """The same of functions of all rows, whose gradients ask which elements are the largest."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, partials, shape, list(WITHOUT_LISTS))


def others(group):
    """Integers, out=, inference mode, plans of DTensors, bincount, operators of vectors, and no entries."""
    mesh = mesh_of((4,))
    rows, index, weight = TENSORS["rows"]("float32"), LISTS["index"](), TENSORS["weight"]("float32")
    x, i = cut(rows, mesh, [S1]), cut(index, mesh, [S0])
    for kind in ("sum", "mean", "amax", "amin"):
        function = getattr(torch_reduce, f"index_{kind}")
        wanted = function(rows, index, SIZE)
        with torch.inference_mode():
            for lists in (i, index.to(here())):
                assert_result(function(x, lists, SIZE), wanted, mesh, [S1], f"{kind} in inference mode")
        for placements, lists in itertools.product(([R], [S0]), ((i, SIZE), (torch_reduce.index_plan(i, SIZE),))):
            out = cut(torch.zeros(SIZE, COLUMNS), mesh, placements)
            assert function(x, *lists, out=out) is out
            assert_result(out, wanted, mesh, placements, f"{kind} out {placements}")
    found, wanted = torch_reduce.index_plan(i, SIZE), torch_reduce.index_plan(index, SIZE)
    for ours, bits in ((found.order, wanted.order), (found.offsets, wanted.offsets), (found.index, wanted.index)):
        assert_result(ours, bits, mesh, [R], "a plan")
    square = torch_reduce.index_plan(cut(index.view(50, 100), mesh, [S1]), SIZE)
    assert_result(square.order, wanted.order, mesh, [R], "a plan of two dims")
    values = TENSORS["entries"]("float32")
    calls = (
        lambda v, i, w: OPS._index_sort_values(v, i, SIZE, w),
        lambda v, i, w: OPS._index_sum_values(v, i, SIZE, w, torch.float32),
        lambda v, i, w: OPS._gather_values(v, OPS._index_plan(i, SIZE)[0], w),
    )
    for call in calls:
        each = zip(
            *(
                found if isinstance(found, tuple) else (found,)
                for found in (call(cut(values, mesh, [S0]), i, cut(weight, mesh, [R])), call(values, index, weight))
            ),
            strict=True,
        )
        for ours, bits in each:
            assert_result(ours, bits, mesh, [R], "of vectors")
    count, ones = torch_reduce.index_add(torch.zeros(SIZE).int(), 0, index, torch.ones(N).int()), torch.ones(N).int()
    zeros = torch.zeros(SIZE).int()
    got = torch_reduce.index_add(cut(zeros, mesh, [S0]), 0, i, cut(ones, mesh, [S0]))
    assert_result(got, count, mesh, [S0], "integers")
    none = torch.empty(0, dtype=torch.int64)
    got = torch_reduce.index_sum(cut(rows[:0], mesh, [S0]), cut(none, mesh, [R]), SIZE)
    assert_result(got, torch.zeros(SIZE, COLUMNS), mesh, [R], "no entries")
    if inside(mesh):
        got = torch_reduce.bincount(cut(index, mesh, [R]), cut(weight, mesh, [S0]))
        assert_result(got, torch_reduce.bincount(index, weight), mesh, [R], "bincount")


def test_others(meshes):  # noqa: F811
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, others)


def refused(group):
    mesh, other = mesh_of((4,)), mesh_of((2,))
    rows, index, weight = torch.ones(8, 4, device=here()), torch.arange(8, device=here()), torch.ones(8, device=here())
    x, i, w, table = cut(rows, mesh, [S0]), cut(index, mesh, [R]), cut(weight, mesh, [R]), torch.ones(9, 4)
    elsewhere, offsets = cut(rows, other, [R]), torch.tensor([0, 8], device=here())
    one_too = "is a DTensor, so '{}' must be one too, not a Tensor"
    for kind, message, call in (
        (
            TypeError,
            r"index_sum\(\): 'source' " + one_too.format("weight"),
            lambda: T.index_sum(x, i, 8, weight=weight),
        ),
        (TypeError, r"index_sum\(\): 'index' " + one_too.format("source"), lambda: T.index_sum(rows, i, 8)),
        (TypeError, r"index_amax\(\): 'index' " + one_too.format("source"), lambda: T.index_amax(rows, i, 8)),
        (TypeError, r"index_add\(\): 'source' " + one_too.format("input"), lambda: T.index_add(table, 0, i, x)),
        (TypeError, r"scatter_add\(\): 'input' " + one_too.format("src"), lambda: T.scatter_add(x, 0, index, rows)),
        (TypeError, r"embedding\(\): 'input' " + one_too.format("weight"), lambda: T.embedding(i, table)),
        (
            TypeError,
            r"embedding_bag\(\): 'weight' " + one_too.format("per_sample_weights"),
            lambda: T.embedding_bag(i, x, offsets, per_sample_weights=weight),
        ),
        (TypeError, "'data' " + one_too.format("weight"), lambda: OPS.index_sum(x, index, 8, weight=weight)),
        (TypeError, "'out' must be one too", lambda: T.index_sum(x, i, 8, out=torch.empty(8, 4, device=here()))),
        (ValueError, "'src' is on another mesh than 'input'", lambda: T.scatter_add(x, 0, index[:, None], elsewhere)),
        (ValueError, "'source' is on another mesh", lambda: T.index_add(x, 0, index, elsewhere)),
        (RuntimeError, r"index_sum\(\): index: expected 8 entries", lambda: T.index_sum(x, index[:7], 8)),
        (RuntimeError, "Expected self.dtype to be equal", lambda: T.scatter_add(x, 0, i[:, None], x.double())),
        (RuntimeError, "'weight' must be 2-D", lambda: T.embedding(i, w)),
        (ValueError, "mode has to be one of", lambda: T.embedding_bag(i, x, offsets, mode="most")),
    ):
        with pytest.raises(kind, match=message):
            call()
    if here().type == "cpu" and inside(mesh):
        for call in (
            lambda: T.index_sum(x, index + 1, 8),
            lambda: T.embedding(index + 1, x),
            lambda: T.embedding_bag(index + 1, x, offsets),
        ):
            with pytest.raises(IndexError, match=r"^(index_sum|embedding|embedding_bag)\(\): ind"):
                call()


def test_refused(meshes):  # noqa: F811
    """On every rank, in words that name the function and the argument."""
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, refused)


def compiled(group):
    mesh, (tensors, lists) = mesh_of((2,)), CASES["index_add"].given()
    if not inside(mesh):
        return

    def made(plan):
        def function(x, y, w, i, j, scores):
            rows = torch_reduce.embedding(j, x)
            added = torch_reduce.index_add(x, 0, i, y)
            combined = torch_reduce.moe_combine(y, plan, scores)
            return torch_reduce.index_sum(y * 2, i, SIZE, weight=w) + added, rows, combined

        return function

    routes = LISTS["routes"]()
    function = made(torch_reduce.moe_plan(routes.to(here()), SIZE))
    weight, square, scores = TENSORS["weight"]("float32"), LISTS["square"](), TENSORS["head"]("float32")
    wanted = made(torch_reduce.moe_plan(routes, SIZE))(*tensors, weight, *lists, square, scores)
    given = [*(cut(x, mesh, [S1]) for x in tensors), cut(weight, mesh, [R])]
    given += [cut(one, mesh, [R]) for one in (*lists, square, scores)]
    torch._dynamo.reset()
    for got, bits in zip(torch.compile(function, backend="aot_eager")(*given), wanted, strict=True):
        assert_result(got, bits, mesh, got.placements, "compiled")


def test_compiled(meshes):  # noqa: F811
    only_where_torch_moves(meshes)
    meshes.run(meshes.size, compiled)


# --- Shards -----------------------------------------------------------------------------------------------------------


def along_another_dim(group, names):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    for name in names:
        case = CASES[name]
        tensors, lists = case.given()
        lists = [one.to(here()) for one in lists]
        alone = name.startswith("moe")  # where weights have no columns
        can = [x.dim() > 1 and x.size(1 - case.dim) > 1 and not (alone and i) for i, x in enumerate(tensors)]
        pairs = zip(tensors, can, strict=True)
        cuts = [x.tensor_split(world, 1 - case.dim)[rank] if one else x for x, one in pairs]
        if name.startswith("scatter"):  # what this rank has of the index, too
            lists = [one.tensor_split(world, 1)[rank] for one in lists]
        weighted = name.startswith(("index_sum", "gather", "moe"))  # their second tensor is plain, without gradient
        may = [x.dim() > 1 and not (weighted and i) for i, x in enumerate(cuts)]
        mine = [x.clone().to(here()).requires_grad_(one) for x, one in zip(cuts, may, strict=True)]
        shards = [Cut(x, 1 - case.dim, group) if one else x for x, one in zip(mine, may, strict=True)]
        call = (lambda x, y, i: T.index_add(x, 0, i, y)) if name == "index_add_" else case.call  # a Shard has no clone
        got, wanted = call(*shards, *lists), call(*mine, *lists)
        assert_same_bits(got.detach(), wanted.detach(), name)
        given = data(wanted.shape, "float32", 9, here())
        leaves = [x for x in mine if x.requires_grad]
        for ours, bits in zip(*(torch.autograd.grad(each, leaves, given) for each in (got, wanted)), strict=True):
            assert_same_bits(ours, bits, name)
        whole = call(*tensors, *case.given()[1])
        at = 1 if "add" in name or "reduce" in name else case.makes(1 - case.dim)
        at = 2 if "square" in case.lists and "bag" not in name and not alone else at
        assert_same_bits(got.detach(), whole.tensor_split(world, at)[rank], name)


@pytest.mark.parametrize("size", [2, 4])
def test_shards_along_another_dim(size, world):
    """A rank's result is its part of the whole one: nothing is sent, and gradients flow."""
    names = [name for name in CASES if "numbers" not in name]
    for sent in world.run(size, traffic, along_another_dim, names):
        assert sent == {"all_to_all": [0, 0], "all_gather": [0, 0]}


def shards_of_weights(group):
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    table, lists = data([SIZE, 4, 6], "float32", 4), [LISTS["index"](), LISTS["target"]()]
    rows, given = data([N, 4, 6], "float32", 1), data([SIZE, 4, 6], "float32", 9)
    calls = {name: (call, table) for name, call in GATHERS.items()} | {
        "index_sum": (lambda x, w, i, k: T.index_sum(x, i, SIZE, weight=w), rows),
        "index_sum by plan": (lambda x, w, i, k: T.index_sum(x, T.index_plan(i, SIZE), weight=w), rows),
        "the operator": (lambda x, w, i, k: OPS.gather_sum(x, i, k, SIZE, weight=w), table),
    }
    for (name, (call, x)), (kind, dim) in itertools.product(
        calls.items(), (("heads", 1), ("heads", -2), ("columns", 2), ("elements", 1), ("elements", -1))
    ):
        what, weight = f"{name}, {kind}, dim {dim}", data(WEIGHTS[kind], "float32", 3)
        wanted, gradients = whole_result(call, [x, weight], lists, given.flatten())
        mine = [one.tensor_split(world, dim)[rank].to(here()).requires_grad_() for one in (x, weight)]
        got = call(*(Cut(one, dim, group) for one in mine), *(one.to(here()) for one in lists))
        found = [got, *torch.autograd.grad(got, mine, given.tensor_split(world, dim)[rank].to(here()))]
        for one, bits in zip(found, (wanted, *gradients), strict=True):
            assert_same_bits(one.detach(), bits.tensor_split(world, dim)[rank], what)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_weights_as_shards(size, world):
    """Weights that are cut as the rows are, such as one for each head: gradients flow, and nothing is sent."""
    for sent in world.run(size, traffic, shards_of_weights):
        assert sent == {"all_to_all": [0, 0], "all_gather": [0, 0]}


def refused_shards(group):
    x, index, table = (one.to(here()) for one in (torch.ones(8, 4), torch.arange(8), torch.ones(9, 4)))
    offsets, weight = torch.tensor([0, 8], device=here()), torch.ones(8, device=here()).requires_grad_()
    rows, columns = Cut(x, 0, group), Cut(x, -1, group)
    plan, edges = T.moe_plan(index[:, None], 8), T.gather_plan(index, index, 8, 8)
    what = (
        r"{}\(\): '{}' is a Shard that is cut along dim {}, the one .*: give the whole tensor, a DTensor, or a Shard of"
    )
    for name, argument, dim, call in (
        ("index_sum", "source", 0, lambda: T.index_sum(rows, index, 8)),
        ("index_sum", "source", 1, lambda: T.index_sum(columns, index[:4], 8, 1)),
        ("index_mean", "source", 0, lambda: T.index_mean(rows, index, 8)),
        ("gather_sum", "x", 0, lambda: T.gather_sum(rows, index, index, 8)),
        ("gather_mean", "x", 0, lambda: T.gather_mean(rows, T.gather_plan(index, index, 8, 8))),
        ("index_amax", "source", 0, lambda: T.index_amax(rows, index, 8)),
        ("index_amin", "source", 0, lambda: T.index_amin(rows, T.index_plan(index, 8))),
        ("moe_dispatch", "x", 0, lambda: T.moe_dispatch(rows, plan)),
        ("moe_combine", "rows", 0, lambda: T.moe_combine(rows, plan)),
        ("moe_combine", "rows", 0, lambda: T.moe_combine(rows, index[:, None])),
        ("index_sum", "source", 0, lambda: OPS.index_sum(rows, index, 8)),
        ("index_add", "source", 0, lambda: T.index_add(table, 0, index, rows)),
        ("index_add", "input", 0, lambda: T.index_add(rows, 0, index, x)),
        ("index_add_", "input", 0, lambda: T.index_add_(rows, 0, index, x)),
        ("scatter_add", "src", 0, lambda: T.scatter_add(table, -2, index[:, None], rows)),
        ("embedding", "weight", 0, lambda: T.embedding(index, rows)),
        ("embedding_bag", "weight", 0, lambda: T.embedding_bag(index, rows, offsets)),
    ):
        with pytest.raises(TypeError, match="^" + what.format(name, argument, dim)):
            call()
    for kind, message, call in (
        (TypeError, r"index_sum\(\): argument 'index' must be", lambda: T.index_sum(x, Cut(index), 8)),
        (TypeError, r"index_add\(\): argument 'index' must be", lambda: T.index_add(table, 0, Cut(index), x)),
        (
            TypeError,
            r"index_sum\(\): 'weight' is a Shard that is cut along dim 0, the one that the function works along",
            lambda: T.index_sum(columns, index, 8, weight=Cut(weight)),
        ),
        (
            TypeError,
            r"^gather_sum\(\): 'x' must be a Shard, as 'weight' is one",
            lambda: T.gather_sum(x, edges, weight=Cut(x, 1, group)),
        ),
        (
            RuntimeError,
            r"^gather_sum\(\): 'x' has 4 along the dim that is cut, but the Shard 'weight' has 1",
            lambda: T.gather_sum(columns, edges, weight=Cut(x[:, :1], 1, group)),
        ),
        (
            ValueError,
            r"^index_sum\(\): two Shards must be of one group, and cut alike",
            lambda: T.index_sum(Cut(x[:, None], 1, group), index, 8, weight=Cut(x[:, None], 2, group)),
        ),
        (
            RuntimeError,
            r"gather_sum\(\): 'weight' req.*: give weight\.detach\(\), or a Shard if a dim of 'weight' is cut",
            lambda: T.gather_sum(columns, index, index, 8, weight=weight),
        ),
        (TypeError, r"bincount\(\): argument 'weights' must be", lambda: T.bincount(index, Cut(weight))),
        (TypeError, "'out' cannot be given", lambda: T.index_sum(columns, index, 8, out=x)),
        (RuntimeError, r"index_sum\(\): 'weight' req", lambda: T.index_sum(columns, index, 8, weight=weight)),
        (
            RuntimeError,
            r"moe_combine\(\): 'weights' req.*give weights\.detach",
            lambda: T.moe_combine(columns, plan, weight[:, None]),
        ),
        (TypeError, r"moe_combine\(\): argument 'weights' must be", lambda: T.moe_combine(columns, plan, Cut(weight))),
        (
            TypeError,
            r"moe_dispatch\(\): x: a Shard needs a plan",
            lambda: T.moe_dispatch(columns, T.moe_plan(index, 8)),
        ),
        (
            RuntimeError,
            r"embedding_bag\(\): 'per_sample_weights' requires a gradient",
            lambda: T.embedding_bag(index % 8, columns, offsets, per_sample_weights=weight),
        ),
        (ValueError, "two Shards must be", lambda: T.index_add(columns, 0, index, Cut(x, 1))),
        (IndexError, "the Shard's 'dim' must be in", lambda: T.index_sum(Cut(x, 2, group), index, 8)),
        (TypeError, "argument 'source' must be Tensor, not list", lambda: T.index_sum(Cut([1.0], 1, group), index, 8)),
    ):
        with pytest.raises(kind, match=message):
            call()


def test_refused_shards(world):
    """In words that say what to give."""
    world.run(2, refused_shards)
