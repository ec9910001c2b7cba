"""Reductions by index: index_sum and its kin, index_add, scatter_reduce and their kin, embeddings and bincount."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    INTEGER,
    MEAN,
    SUM,
    assert_same_bits,
    data,
    dtype_of,
    kin,
    name_of,
    numpy_of,
    walked,
)
from table import WEIGHTED, rotated
from test_autocast import without_a_gpu
from test_autograd import leaf
from test_meta import opcheck
from torch_reduce import gather_plan, index_plan, moe_plan

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

OPS = torch.ops.gpureduce
AMAX, AMIN, PROD = kin("amax", "amin", "prod")
FUNCTIONS = {
    "sum": (torch_reduce.index_sum, SUM),
    "mean": (torch_reduce.index_mean, MEAN),
    "amax": (torch_reduce.index_amax, AMAX),
    "amin": (torch_reduce.index_amin, AMIN),
}
REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]
every_function = pytest.mark.parametrize("kind", list(FUNCTIONS))
FLOATS = ["float32", "float16", "bfloat16", "float64"]


def index_of(n, size, device="cpu", seed=0, hot=False):
    """An index in which output 1 has no entry, if there are several; or one output has most of them."""
    rng = np.random.default_rng([n, size, seed])
    found = rng.integers(0, size, n)
    found[(found == 1) & (size > 1)] = 0
    if hot:
        found[rng.random(n) < 0.9] = size - 1
    return torch.from_numpy(found).to(device)


def extreme_of_none(name, largest):
    """The extremum of no elements: what any element replaces."""
    if name in INTEGER and name != "bool":
        info = torch.iinfo(dtype_of(name))
        return info.min if largest else info.max
    most = 448 if name == "float8_e4m3fn" else math.inf  # it has no infinity
    return (not largest) if name == "bool" else (-most if largest else most)


def rows_of(source, index, k, dim):
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(source.element_size(), source.dtype)
    chosen = (index == k).nonzero()[:, 0]
    return source.resolve_neg().view(bits).index_select(dim, chosen).view(source.dtype)  # torch takes not all dtypes


def expected(kind, source, index, size, dim, weight=None, dtype=None):
    """The model's results of each output, as stored elements."""
    each = []
    for k in range(size):
        rows = rows_of(source, index, k, dim)
        if weight is not None:
            beside = [-1 if d == dim % source.dim() else 1 for d in range(source.dim())]
            pair = rows, weight[index == k].view(beside).expand(rows.shape)
            each.append(WEIGHTED.expected(pair, dim, dtype=dtype))
        elif kind in ("amax", "amin") and rows.shape[dim] == 0:
            none = torch.tensor(extreme_of_none(name_of(source.dtype), kind == "amax"), dtype=torch.float64)
            if source.dtype in (torch.int64, torch.uint64):
                none = torch.tensor(int(extreme_of_none(name_of(source.dtype), kind == "amax")), dtype=source.dtype)
            shape = [n for d, n in enumerate(source.shape) if d != dim % source.dim()]
            each.append(numpy_of(none.to(source.dtype).expand(shape).contiguous()))
        else:
            operation = PROD if kind == "prod" else FUNCTIONS[kind][1]
            each.append(operation.expected(rows, dim, dtype=dtype))
    return np.stack(each, axis=dim % source.dim())


def check(kind, source, index, size, dim=0, *, weight=None, dtype=None):
    """The function has the model's bits, with an index and with a plan. Returns its result."""
    last = {} if dtype is None else {"dtype": dtype}
    last |= {} if weight is None else {"weight": weight}
    function = FUNCTIONS[kind][0]
    wanted = expected(kind, source, index.to(torch.int64), size, dim, weight, dtype)
    found = function(source, index, size, dim, **last)
    assert found.device == source.device
    assert_same_bits(found, wanted, f"{kind} of {source.dtype}, {tuple(source.shape)}, dim={dim}, {last}")
    assert_same_bits(function(source, index_plan(index, size), dim=dim, **last), wanted, "with a plan")
    return found


# --- bits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DTYPES)
@walked("kind", FUNCTIONS)
def test_dtypes(name, kind, device):
    """Every dtype, along the first, a middle and the last dim, as a vector and as a view; int32 and int64 indices."""
    if not FUNCTIONS[kind][1].targets(name, None):
        return  # not of this dtype
    for shape, dim in (((90,), 0), ((90, 5), 0), ((3, 90, 4), 1), ((3, 90), -1)):
        index = index_of(90, 7, device)
        source = data(shape, name, seed=3, device=device)
        check(kind, source, index, 7, dim)
        check(kind, data(shape, name, seed=5, device=device), index.to(torch.int32), 7, dim)
    check(kind, data((90, 10), name, device=device)[:, ::2], index, 7)


@walked("target", ["float64", "float16", "int64", "bool"])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int16"])
def test_results_of_other_dtypes(name, target, device):
    """dtype= chooses the result's dtype; elements are never rounded to it."""
    for shape in ((800,), (800, 3)):
        check("sum", data(shape, name, device=device), index_of(800, 5, device), 5, dtype=dtype_of(target))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_single_numbers(name, device):
    """One number per entry: sorted with the index, put in the plan's order, with weights and without."""
    for n, size, hot in ((1, 1, False), (5000, 3, False), (20_000, 700, True), (9000, 1, False), (300, 4000, False)):
        source, index = data((n,), name, seed=2, device=device), index_of(n, size, device, hot=hot)
        some = size if size < 20 else 20
        found = check("sum", source, index, size) if size < 20 else torch_reduce.index_sum(source, index, size)
        weight = data((n,), "float32", seed=5, device=device)
        weighted = torch_reduce.index_sum(source, index, size, weight=weight)
        for k in [*range(some - 1), size - 1]:
            rows = rows_of(source, index, k, 0)
            assert_same_bits(found[k], SUM.expected(rows, 0))
            assert_same_bits(weighted[k], WEIGHTED.expected((rows, weight[index == k]), 0))
        planned = torch_reduce.index_sum(source[:, None], index_plan(index, size), weight=weight)
        assert_same_bits(planned[:, 0], weighted)
        assert_same_bits(
            torch_reduce.index_mean(source, index, size)[-1], MEAN.expected(rows_of(source, index, size - 1, 0), 0)
        )


@walked("of", ["float32", "float64", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("name", ["float32", "float16", "float64", "int64"])
def test_weights(name, of, device):
    """A weight for each row; each product is rounded once."""
    weight = data((400,), of, seed=7, device=device)
    for shape, dim in (((400,), 0), ((400, 6), 0), ((2, 400, 3), 1)):
        check("sum", data(shape, name, device=device), index_of(400, 6, device), 6, dim, weight=weight)


@pytest.fixture(params=[1, 200, 1000])
def gathered_bytes(request):
    """On the CPU, rows are gathered a few at a time, as those of large tables are."""
    before = OPS._set_gathered_bytes(request.param)
    yield
    OPS._set_gathered_bytes(before)


def test_rows_gathered_in_parts(gathered_bytes):
    """Every part of the outputs has its own rows."""
    for name in ("float32", "bfloat16", "float64", "int32"):
        source, index = data((300, 6), name, seed=8), index_of(300, 40)
        for kind in FUNCTIONS:
            if FUNCTIONS[kind][1].targets(name, None):
                check(kind, source, index, 40)
                check(kind, data((3, 300, 2), name, seed=9), index_of(300, 40, hot=True), 40, 1)
        check("sum", source, index, 40, weight=data((300,), "float32", seed=7))
    test_embeddings("float32", "cpu")
    rows, table, ends = index_of(300, 9), data((9, 5), "float32"), torch.tensor([0, 5, 5, 40, 41, 230, 290])
    bags, means = (torch_reduce.embedding_bag(rows, table, ends, mode=mode) for mode in ("sum", "mean"))
    for i, (begin, end) in enumerate(itertools.pairwise(ends.tolist())):
        assert_same_bits(bags[i], SUM.expected(table[rows[begin:end]], 0))
        if begin < end:
            assert_same_bits(means[i], MEAN.expected(table[rows[begin:end]], 0))


def test_bags_of_no_rows():
    """A table of no rows has empty bags, and no others."""
    table, rows = torch.empty(0, 3), torch.tensor([5, 6])
    assert_same_bits(torch_reduce.embedding_bag(rows, table, torch.tensor([1, 1, 1])), torch.zeros(2, 3))
    assert_same_bits(torch_reduce.embedding_bag(rows, table[:, :0], torch.tensor([0, 0])), torch.zeros(1, 0))
    with pytest.raises(IndexError, match="there are 0 rows"):
        torch_reduce.embedding_bag(rows, table, torch.tensor([0, 1]))
    with pytest.raises(IndexError, match="there are 0 rows"):
        torch_reduce.embedding(rows, table)


def test_hot_and_empty(device):
    """One output with nearly all entries; outputs, rows and columns of none."""
    check("sum", data((30_000, 3), "float32", device=device), index_of(30_000, 4, device, hot=True), 4)
    none = torch.empty(0, dtype=torch.int64, device=device)
    for kind in FUNCTIONS:
        check(kind, torch.empty(0, 3, device=device), none, 5)
        check(kind, torch.empty(0, device=device), none, 2)
        if kind != "mean":
            check(kind, torch.empty(0, device=device, dtype=torch.float8_e4m3fn), none, 2)
            check(kind, torch.empty(0, device=device, dtype=torch.int16), none, 2)
        assert FUNCTIONS[kind][0](torch.empty(0, 3, device=device), none, 0).shape == (0, 3)
        assert FUNCTIONS[kind][0](torch.empty(9, 0, device=device), index_of(9, 4, device), 4).shape == (4, 0)


@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_problems(device, chosen):
    """Any dtype, dim, strides, index and weight."""

    def choose(a, b):
        return chosen.draw(st.integers(a, b))

    kind, name = chosen.draw(st.sampled_from(list(FUNCTIONS))), chosen.draw(st.sampled_from(DTYPES))
    if not FUNCTIONS[kind][1].targets(name, None):
        return
    rank, n, size = choose(1, 3), choose(0, [5, 70, 900][choose(0, 2)]), choose(1, 6)
    dim = choose(0, rank - 1)
    shape = [choose(0, 4) for _ in range(rank)]
    shape[dim] = n
    order = chosen.draw(st.permutations(range(rank)))
    source = data([shape[d] for d in order], name, seed=choose(0, 3), device=device).permute(np.argsort(order).tolist())
    index = index_of(n, size, device, choose(0, 5), hot=bool(choose(0, 1)))
    index = index.to(torch.int32) if choose(0, 1) else index
    weight = None
    if kind == "sum" and name not in COMPLEX and "uint" not in name and "float8" not in name and choose(0, 1):
        weight = data((n,), chosen.draw(st.sampled_from(["float32", "float64", "int32"])), device=device)
    check(kind, source, index, size, dim - rank * choose(0, 1), weight=weight)


def test_same_bits_each_run(cuda):
    """Five runs on a GPU and one on the CPU."""
    source, index = data((300_000, 5), "float32", device=cuda), index_of(300_000, 100, cuda, hot=True)
    for one, at in ((source, index), (source[:, 0].contiguous(), index)):
        wanted = torch_reduce.index_sum(one.cpu(), at.cpu(), 100)
        for _ in range(5):
            assert_same_bits(torch_reduce.index_sum(one, at, 100), wanted)
            assert_same_bits(torch_reduce.index_sum(one, index_plan(at, 100)), wanted)


# --- index_add and scatter_add ----------------------------------------------------------------------------------------


def expected_added(input, dim, index, source, alpha=1):
    """input + alpha * S, where S is the model's sum before it is rounded; real and complex floats, and integers."""
    name = name_of(input.dtype)
    if name in INTEGER:
        wide = (index[:, None] == torch.arange(input.shape[dim], device=index.device)).to("cpu", torch.int64)
        sums = torch.tensordot(source.cpu().to(torch.int64).movedim(dim, -1), wide, 1).movedim(-1, dim)
        if name == "bool":
            return numpy_of(input.cpu() | (sums != 0))
        return numpy_of((input.cpu().to(torch.int64) + alpha * sums).to(input.dtype))
    acc = {"float64": "float64", "complex128": "complex128"}.get(name, "complex64" if name in COMPLEX else "float32")
    part = {"complex64": "float32", "complex128": "float64"}.get(acc, acc)
    stored = expected("sum", source, index, input.shape[dim], dim, dtype=dtype_of(acc))
    sums = model.decode(stored, part)
    own = model.decode(numpy_of(input), {"complex64": "float32", "complex128": "float64"}.get(name, name))
    number = sums.dtype.type
    with np.errstate(over="ignore", invalid="ignore"):
        found = own.astype(number) + number(alpha) * sums
    shape = [-1 if d == dim % input.dim() else 1 for d in range(input.dim())] + [1]
    touched = (
        (index[:, None] == torch.arange(input.shape[dim], device=index.device)).any(0).cpu().numpy().reshape(shape)
    )
    found = np.where(touched, found, own.astype(number))
    return model.encode(found, {"complex64": "float32", "complex128": "float64"}.get(name, name))


@walked("alpha", [1, 3, -2])
@pytest.mark.parametrize("name", [*FLOATS, "int32", "int64", "uint8", "bool", "complex64"])
def test_index_add(name, alpha, device):
    """The model's bits, of all dims; scatter_add has them too, by rows and by elements."""
    for shape, dim in (((70,), 0), ((70, 5), 0), ((2, 70, 3), 1), ((3, 70), -1)):
        source, index = data(shape, name, seed=1, device=device), index_of(70, 6, device)
        size = list(shape)
        size[dim] = 6
        input = data(size, name, seed=2, device=device)
        wanted = expected_added(input, dim, index, source, alpha)
        assert_same_bits(torch_reduce.index_add(input, dim, index, source, alpha=alpha), wanted, f"{shape}, {dim}")
        assert_same_bits(torch_reduce.index_add(input, dim, index.to(torch.int32), source, alpha=alpha), wanted)
        own = input.clone()
        assert torch_reduce.index_add_(own, dim, index, source, alpha=alpha) is own
        assert_same_bits(own, wanted)
        if alpha == 1:
            wide = index.view([-1 if d == dim % source.dim() else 1 for d in range(source.dim())]).expand(shape)
            assert_same_bits(torch_reduce.scatter_add(input, dim, wide, source), wanted)
            assert_same_bits(torch_reduce.scatter_add(input, dim, wide.contiguous(), source), wanted)
            assert_same_bits(torch_reduce.scatter_add(input, dim, wide.contiguous().to(torch.int32), source), wanted)


FACTORS = [True, 0, -1, 300, 1 << 31, (1 << 63) - 1, 1.5, 1e5, 1e39, math.inf, math.nan, 2j, 1e39j]


@pytest.mark.parametrize("name", ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "complex64"])
def test_factors(name, device):
    """What torch refuses for vectors on the CPU is refused on every device; and fractions of integers."""
    x, index = data((2,), name, device=device), torch.tensor([0, 0], device=device)

    def error_of(work, alpha, *on):
        try:
            with np.errstate(all="ignore"):
                work(*on, alpha=alpha)
        except RuntimeError as error:
            return error

    for alpha in FACTORS:
        theirs = error_of(torch.index_add, alpha, x.cpu(), 0, index.cpu(), x.cpu())
        refused = theirs is not None or (name in INTEGER and isinstance(alpha, (float, complex)))
        for function in ("index_add", "index_add_"):
            for work in (getattr(torch_reduce, function), getattr(OPS, function)):
                ours = error_of(work, alpha, x.clone(), 0, index, x)
                assert (ours is not None) == refused, (alpha, ours, theirs)
                assert ours is None or str(ours).startswith(f"{function}(): "), ours
                if refused and isinstance(alpha, int):
                    assert "alpha: value cannot be converted to type" in str(ours)


def test_factors_of_other_types(device):
    """Numbers of NumPy, and tensors of one number, as torch takes them; others are refused."""
    x, index = torch.ones(2, device=device), torch.tensor([0], device=device)
    for alpha in (np.int64(2), np.float32(2), np.bool_(True), torch.tensor(2), torch.tensor(2.0, device=device)):
        wanted = x.index_add(0, index, x[:1], alpha=alpha)
        assert_same_bits(torch_reduce.index_add(x, 0, index, x[:1], alpha=alpha), wanted)
        assert_same_bits(torch_reduce.index_add_(x.clone(), 0, index, x[:1], alpha=alpha), wanted)
    for alpha in ("2", None, torch.ones(1), torch.tensor(2.0, requires_grad=True), [2]):
        with pytest.raises(TypeError, match="'alpha' must be Number"):
            torch_reduce.index_add(x, 0, index, x[:1], alpha=alpha)


def test_factors_of_a_graph(device):
    """A traced factor that changes from call to call."""
    x, index = torch.ones(2, device=device), torch.tensor([0], device=device)
    added = torch.compile(lambda alpha: torch_reduce.index_add(x, 0, index, x[:1], alpha=alpha), backend="aot_eager")
    for alpha in (2, 3, 4, 1.5, 2.5):
        assert_same_bits(added(alpha), torch_reduce.index_add(x, 0, index, x[:1], alpha=alpha))


def test_rounded_once(device):
    """Small floats are added in float32: 2048 ones are 2048, and 0.5 more than 2048 is not lost before the next 0.5."""
    index = torch.zeros(5000, dtype=torch.int64, device=device)
    ones = torch.ones(5000, dtype=torch.bfloat16, device=device)
    result = torch_reduce.index_add(torch.full((1,), 8.0, dtype=torch.bfloat16, device=device), 0, index, ones)
    assert result.item() == torch.tensor(5008.0).bfloat16().item()
    half = torch.tensor([257.0], device=device).bfloat16(), torch.tensor([-256.0, 0.5], device=device).bfloat16()
    assert torch_reduce.index_add(half[0], 0, index[:2], half[1]).item() == half[0].item() - 255.5


def test_rows_without_entries(device):
    """They stay as they are: -0.0, and with any alpha."""
    input = torch.full((3, 4), -0.0, device=device)
    index = torch.tensor([1], device=device)
    found = torch_reduce.index_add(input, 0, index, torch.ones(1, 4, device=device), alpha=math.inf)
    wanted = input.clone()
    wanted[1] = math.inf
    assert_same_bits(found, wanted)
    wanted[1] = -0.0
    wanted[0, :2] = 1
    one, row = torch.ones(1, 2, device=device), torch.zeros(1, 1, dtype=torch.int64, device=device)
    assert_same_bits(torch_reduce.scatter_add(input, 0, row.expand(1, 2), one), wanted)
    assert_same_bits(torch_reduce.scatter_add(input, 0, row.repeat(1, 2), one), wanted)
    assert_same_bits(torch_reduce.scatter_add(input, 0, row[:0], one), input)


def small(name, shape, seed, device):
    return (data(shape, "int8", seed=seed, device=device).double() / 16).to(dtype_of(name))


def test_as_torch(device):
    """In float64 the results are torch's, to rounding: all functions, general scatters, smaller indices, no dims."""
    close = torch.testing.assert_close
    input, source = small("float64", (6, 5, 4), 1, device), small("float64", (6, 9, 4), 2, device)
    index = index_of(9, 5, device)
    close(torch_reduce.index_add(input, 1, index, source, alpha=2.5), input.index_add(1, index, source, alpha=2.5))
    wide = index_of(5 * 7 * 3, 5, device).view(5, 7, 3)
    close(torch_reduce.scatter_add(input, 1, wide, source), input.scatter_add(1, wide, source))
    thin = index.view(1, 9, 1).expand(5, 9, 2)
    close(torch_reduce.scatter_add(input, 1, thin, source), input.scatter_add(1, thin, source))
    scalar, zero = torch.tensor(1.5, device=device), torch.tensor(0, device=device)
    close(torch_reduce.index_add(scalar, 0, zero, scalar), scalar + scalar)
    close(torch_reduce.scatter_add(scalar, 0, zero, scalar), scalar + scalar)
    complexes = data((9, 2), "complex128", device=device) / 100, data((5, 2), "complex128", device=device) / 100
    ours = torch_reduce.index_add(complexes[1], 0, index, complexes[0], alpha=2 - 1j)
    close(ours, complexes[1].index_add(0, index, complexes[0], alpha=2 - 1j))

    table, rows = small("float64", (7, 3), 3, device), index_of(12, 7, device).view(3, 4)
    functional = torch.nn.functional
    for padding in (None, 2, -1):
        ours, theirs = (table.clone().requires_grad_() for _ in range(2))
        first, second = torch_reduce.embedding(rows, ours, padding), functional.embedding(rows, theirs, padding)
        assert_same_bits(first.detach(), second.detach())
        close(*(torch.autograd.grad((y * y).sum(), x)[0] for x, y in ((ours, first), (theirs, second))))
    ends, flat = torch.tensor([0, 3, 3, 12], device=device), rows.reshape(-1)
    weight = small("float64", (12,), 4, device)
    for mode, own in (("sum", None), ("mean", None), ("sum", weight)):
        ours = torch_reduce.embedding_bag(flat, table, ends, mode=mode, per_sample_weights=own)
        more = dict(mode=mode, per_sample_weights=own, include_last_offset=True)
        close(ours, functional.embedding_bag(flat, table, ends, **more))
    for given_weights in (None, weight, weight.float(), weight.half(), flat):
        for least in (0, 20):
            ours = torch_reduce.bincount(flat, given_weights, least)
            close(ours, torch.bincount(flat, given_weights, least))
    close(torch_reduce.bincount(flat[:0], weight[:0], 3), torch.bincount(flat[:0], weight[:0], 3))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_embeddings(name, device):
    """A row's gradient has the bits of the sum of its entries' gradients, and a bag has those of its rows' sum."""
    rows, table = index_of(600, 9, device), data((9, 5), name, device=device).requires_grad_()
    counts = data((9, 5), "int32", device=device)
    assert_same_bits(torch_reduce.embedding(rows, counts), counts[rows])
    given_grad = data((20, 30, 5), name, seed=4, device=device)
    result = torch_reduce.embedding(rows.view(20, 30), table, 4)
    assert_same_bits(result.detach(), table.detach()[rows].view(20, 30, 5))
    (grad,) = torch.autograd.grad(result, table, given_grad)
    wanted = torch_reduce.index_sum(given_grad.view(600, 5), rows, 9)
    assert_same_bits(wanted, expected("sum", given_grad.view(600, 5), rows, 9, 0))
    wanted[4] = 0
    assert_same_bits(grad, wanted)
    offsets = torch.tensor([0, 7, 7, 600], device=device)
    weights = data((600,), name, seed=6, device=device)
    for mode, operation in (("sum", SUM), ("mean", MEAN)):
        bags = torch_reduce.embedding_bag(rows, table.detach(), offsets, mode=mode)
        assert_same_bits(bags[2], operation.expected(table.detach()[rows[7:]], 0))
        assert_same_bits(bags[1], torch.zeros(5, dtype=table.dtype, device=device))
    bags = torch_reduce.embedding_bag(rows, table.detach(), offsets, per_sample_weights=weights)
    pair = table.detach()[rows[7:]], weights[7:, None].expand(593, 5)
    assert_same_bits(bags[2], WEIGHTED.expected(pair, 0))


BAGS = {  # the offsets, and whether the last one is an end
    "ends": ([0, 7, 7, 40, 600], True),
    "begins": ([0, 7, 7, 40, 300], False),
    "inside": ([5, 7, 7, 41], True),
    "rows": (None, True),
}


@walked("padding", [None, 4, -8])
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
@walked("case", BAGS)
def test_bags(case, mode, padding, device):
    """A bag leaves its padding out. Its other rows give the model's bits, and torch's values and gradients."""
    offsets, ends = BAGS[case]
    rows = index_of(600, 9, device)
    rows[7:40:3] = 4
    rows[40:44] = torch.tensor([4, 1, 4, 1], device=device)
    given_rows = rows.view(30, 20) if offsets is None else rows
    bounds = list(range(0, 601, 20)) if offsets is None else offsets + ([] if ends else [600])
    kept = torch.ones(600, dtype=torch.bool, device=device) if padding is None else rows != padding % 9
    last = dict(mode="sum" if mode == "weighted" else mode, include_last_offset=ends, padding_idx=padding)
    for name, kind in itertools.product(("float32", "bfloat16", "float64"), (torch.int64, torch.int32)):
        table = data((9, 5), name, device=device)
        weights = data((600,), name, seed=6, device=device) if mode == "weighted" else None
        given_weights = weights if weights is None else weights.view(given_rows.shape)
        begins = offsets if offsets is None else torch.tensor(offsets, device=device, dtype=kind)
        bag = given_rows.to(kind), table, begins
        found = torch_reduce.embedding_bag(*bag, **last, per_sample_weights=given_weights)
        assert found.shape == (len(bounds) - 1, 5)
        for b, (begin, end) in enumerate(itertools.pairwise(bounds)):
            mine = torch.arange(begin, end, device=device)[kept[begin:end]]
            if len(mine) == 0:
                assert_same_bits(found[b], torch.zeros_like(found[b]))
            elif mode == "weighted":
                pair = table[rows[mine]], weights[mine, None].expand(len(mine), 5)
                assert_same_bits(found[b], WEIGHTED.expected(pair, 0))
            else:
                operation = {"sum": SUM, "mean": MEAN, "max": AMAX}[mode]
                assert_same_bits(found[b], operation.expected(table[rows[mine]], 0))
    if case == "inside":  # torch's bags begin at 0
        return
    table = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    weights = small("float64", (600,), 4, device).view(given_rows.shape) if mode == "weighted" else None
    begins = offsets if offsets is None else torch.tensor(offsets, device=device)
    last["include_last_offset"] = ends and offsets is not None
    results = []
    for function in (torch_reduce.embedding_bag, torch.nn.functional.embedding_bag):
        leaves = [x.clone().requires_grad_() for x in (table, weights) if x is not None]
        own = leaves[1] if weights is not None else None
        result = function(given_rows, leaves[0], begins, **last, per_sample_weights=own)
        given_grad = small("float64", tuple(result.shape), 5, device)
        results.append([result.detach(), *torch.autograd.grad(result, leaves, given_grad)])
    torch.testing.assert_close(*results)


@pytest.mark.filterwarnings("ignore:.*do not begin with 0")
def test_bags_of_nothing(device):
    """No bags, no entries, only padding; and entries outside of all bags, which may have any number."""
    table, none = torch.ones(3, 2, device=device), torch.empty(0, dtype=torch.int64, device=device)
    zero, outside = torch.tensor([0], device=device), torch.tensor([77, 1, 2, 99], device=device)
    for mode in ("sum", "mean", "max"):
        for padding in (None, 1):
            last = dict(mode=mode, padding_idx=padding)
            call = torch_reduce.embedding_bag
            assert call(none, table, zero, **last).shape == (0, 2)
            assert call(none, table, none, include_last_offset=False, **last).shape == (0, 2)
            assert_same_bits(call(none, table, zero, include_last_offset=False, **last), torch.zeros_like(table[:1]))
            assert_same_bits(call(none.view(3, 0), table, **last), torch.zeros_like(table))
            assert call(none.view(0, 3), table, **last).shape == (0, 2)
            inside = call(outside, table, torch.tensor([1, 3], device=device), **last)
            assert_same_bits(inside, table[:1] * (2 if mode == "sum" and padding is None else 1))
        found = torch_reduce.embedding_bag(zero.expand(4)[None], table, mode=mode, padding_idx=0)
        assert_same_bits(found, torch.zeros_like(table[:1]))


def test_weights_of_bags_of_nothing(device):
    """The weights of entries outside of all bags have a gradient of 0, where there are no bags and no rows, too."""
    index = torch.tensor([77, 1, 2, 99], device=device)
    for ends, rows, wanted in (([1, 3], 3, [0.0, 2.0, 2.0, 0.0]), ([0], 3, [0.0] * 4), ([4], 0, [0.0] * 4)):
        table = torch.ones(rows, 2, device=device, requires_grad=True)
        weights = torch.ones(4, device=device, requires_grad=True)
        offsets = torch.tensor(ends, device=device)
        found = torch_reduce.embedding_bag(index, table, offsets, per_sample_weights=weights)
        assert found.shape == (len(ends) - 1, 2)
        of_table, of_weights = torch.autograd.grad(found.sum(), (table, weights))
        assert_same_bits(of_weights, torch.tensor(wanted, device=device))
        counts = torch.zeros(rows, 2, device=device)
        counts[1:] = float(len(ends) > 1)
        assert_same_bits(of_table, counts)


def test_largest_of_bags_share(device):
    """Entries that are the largest of a bag share its gradient equally; NaN wins."""
    table = torch.tensor([[1.0], [1.0], [0.0], [math.nan]], device=device).requires_grad_()
    rows = torch.tensor([[0, 1, 2, 0], [2, 2, 2, 2]], device=device)
    found = torch_reduce.embedding_bag(rows, table, mode="max")
    (grad,) = torch.autograd.grad(found, table, torch.ones_like(found))
    assert_same_bits(grad[:, 0], torch.tensor([2 / 3, 1 / 3, 1.0, 0.0], device=device))
    assert torch_reduce.embedding_bag(rows[:1] + 1, table, mode="max").isnan().all()


def test_bincount(device):
    """Counts are int64, and sums of weights have the model's bits, in torch's dtypes."""
    rows = index_of(5000, 7, device)
    assert_same_bits(torch_reduce.bincount(rows, minlength=9), torch.bincount(rows.cpu(), minlength=9).to(device))
    for name, result in (("float32", "float32"), ("float16", "float64"), ("int32", "float64"), ("float64", "float64")):
        weights = data((5000,), name, device=device)
        wanted = expected("sum", weights.to(dtype_of(result)), rows, 7, 0)
        assert_same_bits(torch_reduce.bincount(rows.to(torch.uint8), weights), wanted)


# --- index_reduce and scatter_reduce ----------------------------------------------------------------------------------


def expected_reduced(kind, input, dim, index, source, include_self):
    """input reduced with the rows of source by index: the model's sums and products before they are rounded."""
    name, size = name_of(input.dtype), input.shape[dim]
    counts = torch.bincount(index.cpu().long(), minlength=size).numpy()
    shape = [-1 if d == dim % input.dim() else 1 for d in range(input.dim())]
    touched = (counts > 0).reshape([*shape, 1])
    if kind in ("amax", "amin"):
        every, rows = index, source
        if include_self:
            every, rows = torch.cat([torch.arange(size, device=index.device), index]), torch.cat([input, source], dim)
        return np.where(touched, expected(kind, rows, every.long(), size, dim), numpy_of(input))
    if name in INTEGER:
        found = numpy_of(input).astype(np.int64)
        for k in range(size):
            rows = [source.select(dim, i).cpu().numpy().astype(np.int64) for i in (index.cpu() == k).nonzero()[:, 0]]
            if include_self and rows:
                rows.insert(0, input.select(dim, k).cpu().numpy().astype(np.int64))
            if rows:
                with np.errstate(over="ignore"):
                    one = np.prod(rows, 0) if kind == "prod" else np.sum(rows, 0)
                one = one // len(rows) if kind == "mean" else one
                found[(slice(None),) * (dim % input.dim()) + (k,)] = one[..., None]
        return (found != 0 if name == "bool" else found).astype(numpy_of(input).dtype)
    acc = {"float64": "float64", "complex128": "complex128"}.get(name, "complex64" if name in COMPLEX else "float32")
    part = {"complex64": "float32", "complex128": "float64"}
    stored = expected("prod" if kind == "prod" else "sum", source, index.long(), size, dim, dtype=dtype_of(acc))
    result, own = model.decode(stored, part.get(acc, acc)), model.decode(numpy_of(input), part.get(name, name))
    wide = result.dtype.type
    own, counts = own.astype(wide), counts.astype(wide).reshape([*shape, 1])
    with np.errstate(all="ignore"):
        if include_self:
            result = own * result if kind == "prod" else own + result
        if kind == "mean":
            result = result / (counts + include_self)
    return model.encode(np.where(touched, result, own), part.get(name, name))


def has(kind, name):
    return not (name in COMPLEX and kind not in ("sum", "mean")) and not (name in ("bool", "uint64") and kind == "mean")


@walked("include_self", [True, False])
@walked("kind", REDUCTIONS)
@pytest.mark.parametrize("name", [*FLOATS, "float8_e5m2", "int32", "int64", "uint8", "uint16", "bool", "complex64"])
def test_index_reduce(name, kind, include_self, device):
    """The model's bits, of all dims; scatter_reduce has them too, by rows and by elements, also of a part."""
    if not has(kind, name):
        return  # there is none
    last = dict(include_self=include_self)
    for shape, dim in (((30,), 0), ((30, 5), 0), ((2, 30, 3), 1), ((3, 30), -1), ((900, 2), 0)):
        n = shape[dim]
        source, index = data(shape, name, seed=1, device=device), index_of(n, 6, device)
        size = list(shape)
        size[dim] = 6
        input = data(size, name, seed=2, device=device)
        wanted = expected_reduced(kind, input, dim, index, source, include_self)
        where = f"{shape}, {dim}"
        assert_same_bits(torch_reduce.index_reduce(input, dim, index, source, kind, **last), wanted, where)
        turned = source.transpose(0, -1).contiguous().transpose(0, -1)
        found = torch_reduce.index_reduce(input, dim, index.to(torch.int32), turned, kind, **last)
        assert_same_bits(found, wanted, where)
        assert found.is_contiguous()
        own = input.clone()
        assert torch_reduce.index_reduce_(own, dim, index, source, kind, **last) is own
        assert_same_bits(own, wanted)
        wide = index.view([-1 if d == dim % source.dim() else 1 for d in range(source.dim())]).expand(shape)
        for places in (wide, wide.contiguous(), wide.to(torch.int32)):
            assert_same_bits(torch_reduce.scatter_reduce(input, dim, places, source, kind, **last), wanted, where)
        if source.dim() == 2 and dim == 0:  # all columns but the last have entries
            found = torch_reduce.scatter_reduce(input, 0, wide[:, :-1], source, kind, **last)
            assert_same_bits(found[:, :-1], wanted[:, :-1], where)
            assert_same_bits(found[:, -1], input[:, -1], where)


@walked("include_self", [True, False])
@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reduced_as_torch(kind, include_self, device):
    """In float64 and of integers the results are torch's: general scatters, smaller indices, no dims, no entries."""
    last = dict(include_self=include_self)
    close = torch.testing.assert_close
    index, wide = index_of(9, 5, device), index_of(5 * 7 * 3, 5, device).view(5, 7, 3)
    for name in ("float64", "int64", "int8", "uint8", "complex128"):
        if not has(kind, name):
            continue
        input, source = small("float64", (6, 5, 4), 1, device), small("float64", (6, 9, 4), 2, device)
        if name == "uint8":
            input, source = input.abs(), source.abs()  # torch's sums and counts wrap around before it divides them
        input, source = input.to(dtype_of(name)), source.to(dtype_of(name))
        there = "cpu" if name == "complex128" else device  # torch has no complex numbers on a GPU
        if kind != "sum" and (include_self or name != "complex128"):  # torch has these
            wanted = input.to(there).index_reduce(1, index.to(there), source.to(there), kind, **last).to(device)
            close(torch_reduce.index_reduce(input, 1, index, source, kind, **last), wanted)
        for places in (wide, index.view(1, 9, 1).expand(5, 9, 2), index.view(1, 9, 1).expand(6, 9, 4)):
            wanted = input.to(there).scatter_reduce(1, places.to(there), source.to(there), kind, **last).to(device)
            found = torch_reduce.scatter_reduce(input, 1, places, source, kind, **last)
            close(found, wanted)
            assert found.stride() == wanted.stride()
        nothing = torch_reduce.scatter_reduce(input, 1, wide[:, :0], source, kind, **last)
        assert_same_bits(nothing, input)
        assert_same_bits(torch_reduce.index_reduce(input, 1, index[:0], source[:, :0], kind, **last), input)
        empty = input[:0], 1, index, source[:0], kind
        assert torch_reduce.index_reduce(*empty, **last).shape == (0, 5, 4)
    scalar, zero = torch.tensor(1.5, device=device), torch.tensor(0, device=device)
    wanted = torch.scatter_reduce(scalar, 0, zero, scalar * 2, kind, **last)
    close(torch_reduce.scatter_reduce(scalar, 0, zero, scalar * 2, kind, **last), wanted)
    close(torch_reduce.index_reduce(scalar, 0, zero, scalar * 2, kind, **last), wanted)


@pytest.mark.parametrize("name", ["float32", "int32", "complex64"])
def test_strides_of_dims_of_one(name, device):
    """They are torch's, too, though a tensor is contiguous with any of them."""
    for shape in ((3, 1, 9), (9, 3, 1), (1, 9, 5), (4, 1, 0)):
        for order in itertools.permutations(range(3)):
            x = torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(3)])
            x = torch.empty_strided(shape, x.stride(), dtype=dtype_of(name), device=device).fill_(2)
            for dim, size in enumerate(shape):
                index = torch.zeros(size, dtype=torch.int64, device=device)
                wide = torch.zeros(shape, dtype=torch.int64, device=device)
                for ours, theirs, last in (
                    (torch_reduce.index_add, torch.index_add, (index, x)),
                    (torch_reduce.scatter_add, torch.scatter_add, (wide, x)),
                    (torch_reduce.index_reduce, torch.index_reduce, (index, x, "mean")),
                    (torch_reduce.scatter_reduce, torch.scatter_reduce, (wide, x, "mean")),
                ):
                    if x.is_cuda and x.is_complex() and "reduce" in theirs.__name__:
                        continue  # torch has none
                    assert ours(x, dim, *last).stride() == theirs(x, dim, *last).stride(), (ours, shape, order, dim)


@walked("name", ["float32", "bfloat16", "float64"])
@walked("kind", ["amax", "amin"])
def test_reduced_special_numbers(kind, name, device):
    """NaN wins; infinities, zeros of both signs, and outputs without entries keep their bits."""
    special = [-0.0, 0.0, math.inf, -math.inf, math.nan, 1.0]
    input = torch.tensor(special, device=device).to(dtype_of(name)).repeat(7)
    source = torch.tensor(special, device=device).to(dtype_of(name)).repeat_interleave(6)
    index = torch.arange(36, device=device)
    for include_self in (True, False):
        wanted = expected_reduced(kind, input, 0, index, source, include_self)
        found = torch_reduce.index_reduce(input, 0, index, source, kind, include_self=include_self)
        assert_same_bits(found, wanted)
        with torch_reduce.replace(["index_reduce", "scatter_reduce"], device):
            assert_same_bits(input.index_reduce(0, index, source, kind, include_self=include_self), wanted)
            assert_same_bits(input.scatter_reduce(0, index, source, kind, include_self=include_self), wanted)


@walked("include_self", [True, False])
@walked("kind", REDUCTIONS)
def test_reduced_gradients_as_torch(kind, include_self, device):
    """With ties, zeros in products, and outputs without entries: torch's gradients."""
    index = index_of(36, 5, device).view(12, 3) % torch.tensor([2, 5, 4], device=device)
    given_grad = small("float64", (5, 3), 3, device)
    input = torch.arange(15, device=device).view(5, 3).remainder(4).sub(1).double()
    source = torch.arange(36, device=device).view(12, 3).mul(7).remainder(5).sub(1).double()
    if not include_self:
        input = input + 0.5  # torch lets it share where it equals the extremum
    grads = []
    for function in (torch_reduce.scatter_reduce, torch.scatter_reduce):
        leaves = [x.clone().requires_grad_() for x in (input, source)]
        result = function(leaves[0], 0, index, leaves[1], kind, include_self=include_self)
        grads.append(torch.autograd.grad(result, leaves, given_grad))
    torch.testing.assert_close(*grads)
    if kind in ("amax", "amin"):  # who is left out has no share
        same, entries = torch.ones(2, device=device), torch.ones(4, device=device).requires_grad_()
        last = torch.tensor([0, 0, 0, 1], device=device)
        found = torch_reduce.index_reduce(same, 0, last, entries, kind, include_self=include_self)
        (grad,) = torch.autograd.grad(found.sum(), entries)
        assert_same_bits(grad, 1 / torch.tensor([3.0, 3, 3, 1], device=device).add(int(include_self)))


@pytest.mark.parametrize("kind", REDUCTIONS)
def test_reduced_many_rows(kind, device):
    """Rows and elements of one output have the order of a long sum, and halves are rounded once."""
    index = index_of(9000, 3, device, hot=True)
    for name in ("float32", "bfloat16"):
        source = data((9000, 2), "float32", seed=3, device=device)
        source = (1 + source / source.abs().max() / 64).to(dtype_of(name))
        input = data((3, 2), name, seed=4, device=device)
        wanted = expected_reduced(kind, input, 0, index, source, True)
        assert_same_bits(torch_reduce.index_reduce(input, 0, index, source, kind), wanted)
        places = index[:, None].repeat(1, 2)
        assert_same_bits(torch_reduce.scatter_reduce(input, 0, places, source, kind), wanted)


# --- derivatives, vmap, tracing ---------------------------------------------------------------------------------------

INDEX = [3, 0, 0, 3, 2, 0]


def differentiable(device):
    """Functions of float64 leaves, with those leaves: no output of extrema is empty, and none has ties."""
    index, plain = torch.tensor(INDEX, device=device), torch.tensor([1, 0, 0, 1, 2, 0], device=device)
    wide = index_of(15, 4, device).view(5, 3)
    plan, ends = index_plan(index, 4), torch.tensor([0, 2, 2, 6], device=device)
    rows, weight, vector = leaf((6, 3), device=device), leaf((6,), device=device, seed=1), leaf((6,), device=device)
    base, single = leaf((4, 3), device=device, seed=2), leaf((4,), "complex128", device)
    line = leaf((6,), "complex128", device)
    reduce = torch_reduce
    source, table = torch.tensor([0, 3, 3, 1, 0, 3], device=device), leaf((4, 2, 3), device=device)
    edges, one_way = gather_plan(source, index, 4, 4), gather_plan(source, plain, 3)
    edges_of_three = gather_plan(source, plain, 3, 4)
    routes = index.view(2, 3)
    experts, dropped = moe_plan(index.view(3, 2), 4), moe_plan(index.view(3, 2) - 1, 3, drops=True)
    heads, elements = leaf((6, 2, 1), device=device, seed=4), leaf((6, 2, 3), device=device, seed=5)
    return {
        "sum": (lambda x, w: reduce.index_sum(x, index, 4, weight=w), (rows, weight)),
        "sum, plan": (lambda x, w: reduce.index_sum(x, plan, weight=w), (rows, weight)),
        "sum of a vector": (lambda x, w: reduce.index_sum(x, index, 4, weight=w), (vector, weight)),
        "sum, heads": (lambda x, w: reduce.index_sum(x, index, 4, weight=w), (leaf((6, 2, 3), device=device), heads)),
        "gather": (lambda x: reduce.gather_sum(x, source, index, 4), (table,)),
        "gather, weights": (lambda x, w: reduce.gather_sum(x, edges, weight=w), (table, weight)),
        "gather, heads": (lambda x, w: reduce.gather_sum(x, source, index, 4, weight=w), (table, heads)),
        "gather, heads in front": (
            lambda x, w: reduce.gather_sum(x.movedim(0, 2), edges, dim=-1, weight=w.movedim(0, 2)),
            (table, heads),
        ),
        "gather, elements": (lambda x, w: reduce.gather_sum(x, edges, weight=w), (table, elements)),
        "gather, mean": (lambda x: reduce.gather_mean(x, one_way), (table,)),
        "gather, amax": (lambda x: reduce.gather_amax(x, source, plain, 3), (table,)),
        "gather, amin": (lambda x: reduce.gather_amin(x.movedim(0, 1), edges_of_three, dim=1), (table,)),
        "dispatch": (lambda x: reduce.moe_dispatch(x, experts), (leaf((3, 2, 3), device=device),)),
        "dispatch, with drops": (lambda x: reduce.moe_dispatch(x, dropped), (leaf((3, 2), device=device),)),
        "combine": (lambda x: reduce.moe_combine(x, experts), (rows,)),
        "combine, weights": (lambda x, w: reduce.moe_combine(x, experts, w.view(3, 2)), (rows, weight)),
        "combine, drops": (lambda x, w: reduce.moe_combine(x, dropped, w.view(3, 2)), (rows, weight)),
        "combine by index": (
            lambda x, w: reduce.moe_combine(x, routes - 1, w.view(2, 3)),
            (leaf((3, 2, 2), device=device), weight),
        ),
        "experts": (
            lambda x, w: reduce.moe_combine(reduce.moe_dispatch(x, dropped) ** 2, dropped, w.view(3, 2)),
            (leaf((3, 2), device=device), weight),
        ),
        "mean": (lambda x: reduce.index_mean(x, plain, 3), (rows,)),
        "amax": (lambda x: reduce.index_amax(x, plain, 3), (rows,)),
        "amin": (lambda x: reduce.index_amin(x.t(), index_plan(plain, 3), dim=1), (rows,)),
        "index_add": (lambda x, y: reduce.index_add(x, 0, index, y, alpha=2.5), (base, rows)),
        "index_add_": (lambda x, y: reduce.index_add_(x * 1, 0, index, y), (base, rows)),
        "index_add, complex": (lambda x, y: reduce.index_add(x, 0, index, y, alpha=2 + 1j), (single, line)),
        "scatter_add": (lambda x, y: reduce.scatter_add(x, 0, wide, y), (base, rows)),
        "scatter_add, rows": (lambda x, y: reduce.scatter_add(x, 0, index[:, None].expand(6, 2), y), (base, rows)),
        **{
            f"index_reduce, {kind}": (lambda x, y, k=kind: reduce.index_reduce(x, 0, index, y, k), (base, rows))
            for kind in REDUCTIONS
        },
        **{
            f"scatter_reduce, {kind}": (
                lambda x, y, k=kind: reduce.scatter_reduce(x, 0, wide, y, k, include_self=k == "amin"),
                (base, rows),
            )
            for kind in REDUCTIONS
        },
        "index_reduce_": (
            lambda x, y: reduce.index_reduce_(x * 1, 0, index, y, "mean", include_self=False),
            (base, rows),
        ),
        "scatter_reduce, rows": (
            lambda x, y: reduce.scatter_reduce(x, 0, index[:, None].expand(6, 3), y, "prod", include_self=False),
            (base, rows),
        ),
        "embedding": (lambda x: reduce.embedding(index.view(2, 3), x), (base,)),
        "bag": (lambda x, w: reduce.embedding_bag(index, x, ends, per_sample_weights=w), (base, weight)),
        "bag, max": (lambda x: reduce.embedding_bag(index, x, ends, mode="max"), (base,)),
        "bag, padded": (
            lambda x, w: reduce.embedding_bag(index.view(2, 3), x, padding_idx=3, per_sample_weights=w.view(2, 3)),
            (base, weight),
        ),
        "bag, largest but the padding": (
            lambda x: reduce.embedding_bag(index, x, ends[:3], mode="max", padding_idx=-4, include_last_offset=False),
            (base,),
        ),
        "bag, mean": (lambda x: reduce.embedding_bag(index, x, ends, mode="mean"), (base,)),
        "bincount": (lambda w: reduce.bincount(index, w), (weight,)),
    }


every_differentiable = pytest.mark.parametrize("form", list(differentiable("cpu")))


@every_differentiable
def test_derivatives(form, device):
    """First and second derivatives, backward and forward."""
    function, inputs = differentiable(device)[form]
    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs, fast_mode=True)


def test_padding_has_no_derivative(device):
    """Entries of padding_idx give the table nothing, and in the derivative of the gradient neither."""
    rows, table = torch.tensor([[1, 2], [0, 2]], device=device), leaf((4, 3), device=device)
    (grad,) = torch.autograd.grad(torch_reduce.embedding(rows, table, 2).sum(), table)
    assert grad[:, 0].tolist() == [1, 1, 0, 0]

    def gradient(given_grad):
        return torch.autograd.grad(torch_reduce.embedding(rows, table, 2), table, given_grad, create_graph=True)[0]

    assert gradcheck(gradient, (leaf((2, 2, 3), device=device),))
    batched = torch.vmap(torch.func.grad(lambda x: (torch_reduce.embedding(rows, x, -2) ** 2).sum()))(
        table.detach().expand(2, 4, 3)
    )
    assert_same_bits(batched[1, 2], torch.zeros(3, dtype=torch.float64, device=device))


def test_gradients_of_vectors(device):
    """A vector that needs a gradient has the same sums, and float32 gradients of small floats are rounded once."""
    source, index = data((3000,), "bfloat16", device=device), index_of(3000, 5, device)
    tracked = source.clone().requires_grad_()
    result = torch_reduce.index_sum(tracked, index, 5)
    assert_same_bits(result.detach(), torch_reduce.index_sum(source, index, 5))
    given_grad = data((5,), "bfloat16", device=device)
    (grad,) = torch.autograd.grad(result, tracked, given_grad)
    assert_same_bits(grad, given_grad[index])
    base = data((5,), "bfloat16", seed=3, device=device).requires_grad_()
    first, second = torch.autograd.grad(torch_reduce.index_add(base, 0, index, tracked), (base, tracked), given_grad)
    assert_same_bits(first, given_grad)
    assert_same_bits(second, given_grad[index])


def test_inputs_may_change_before_the_backward_pass(device):
    """index_add keeps neither of its inputs."""
    base, rows = leaf((4, 3), device=device), leaf((6, 3), device=device)
    index = torch.tensor(INDEX, device=device)
    own, more = base * 1, rows * 1
    result = torch_reduce.index_add(own, 0, index, more)
    own.zero_()
    more.zero_()
    grads = torch.autograd.grad(result.sum(), (base, rows))
    assert all(grad.eq(1).all() for grad in grads)


@every_differentiable
def test_vmap(form, device):
    """A batch has the results of its calls, of each input batched and of all; with gradients."""
    if form in ("bincount", "index_add_", "index_reduce_"):
        pytest.skip("waits for the host, or writes an input that is not batched")
    function, inputs = differentiable(device)[form]
    plain = [x.detach() for x in inputs]
    for batched in {(True,) * len(plain), *(tuple(i == k for i in range(len(plain))) for k in range(len(plain)))}:
        given_inputs = [torch.stack([x, x * 2, x - 1], 1) if b else x for x, b in zip(plain, batched, strict=True)]
        dims = tuple(1 if b else None for b in batched)
        found = torch.vmap(function, dims)(*given_inputs)
        for i in range(3):
            one = [x.select(1, i) if b else x for x, b in zip(given_inputs, batched, strict=True)]
            assert_same_bits(found[i], function(*one))
        gradient = torch.func.grad(lambda *x: (function(*x).abs() ** 2).sum())
        if not plain[0].is_complex():
            assert_same_bits(
                torch.vmap(gradient, dims)(*given_inputs)[1],
                gradient(*(x.select(1, 1) if b else x for x, b in zip(given_inputs, batched, strict=True))),
            )


def test_vmap_over_indices(device):
    """An index for each of a batch: each has its own sort."""
    index = torch.stack([index_of(50, 6, device, seed) for seed in range(3)])
    table, source = data((6, 4), "float32", device=device), data((50, 4), "float32", device=device)
    base = data((6, 4), "float32", seed=4, device=device)
    for function in (
        lambda i: torch_reduce.gather_sum(table, i, i.flip(0), 6),
        lambda i: torch_reduce.gather_amax(table, i, i.flip(0), 6),
        lambda i: torch_reduce.moe_dispatch(source[:25], moe_plan(i.view(25, 2), 6)),
        lambda i: torch_reduce.moe_combine(source, moe_plan(i.view(25, 2) - 1, 6, drops=True), source[:25, :2]),
        lambda i: torch_reduce.moe_combine(table, i.view(25, 2) - 1, source[:25, :2]),
        lambda i: torch_reduce.index_sum(source, i, 6),
        lambda i: torch_reduce.index_sum(source[:, 0], i, 6),
        lambda i: torch_reduce.index_add(base, 0, i, source),
        lambda i: torch_reduce.scatter_add(base, 0, i[:, None].expand(50, 4), source),
        *(lambda i, k=k: torch_reduce.index_reduce(base, 0, i, source, k) for k in REDUCTIONS),
        lambda i: torch_reduce.scatter_reduce(base, 0, i[:, None].expand(50, 4), source, "mean", include_self=False),
        lambda i: torch_reduce.embedding(i.view(5, 10), table, 2),
        lambda i: torch_reduce.embedding_bag(i.view(5, 10), table, padding_idx=2),
        lambda i: torch_reduce.embedding_bag(i, table, torch.tensor([0, 9, 30], device=device), mode="max"),
    ):
        assert_same_bits(torch.vmap(function)(index), torch.stack([function(i) for i in index]))
    tables = torch.stack([table, table * 2, -table])
    found = torch.vmap(lambda i, t: torch_reduce.embedding(i, t, 2))(index, tables)
    assert_same_bits(found[1], tables[1][index[1]])


@pytest.mark.parametrize("part", range(6))
def test_compile(part, device):
    """One graph of several functions, with eager's bits, also of gradients."""
    forms = differentiable(device)
    del forms["bincount"]  # which waits for the host, as torch.bincount
    names = rotated(forms, part, 6)
    functions, inputs = [forms[name][0] for name in names], [x for name in names for x in forms[name][1]]
    ends = list(itertools.accumulate([len(forms[name][1]) for name in names], initial=0))
    places = list(itertools.pairwise(ends))

    def function(*given):
        return [functions[k](*given[begin:end]) for k, (begin, end) in enumerate(places)]

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for each in (inputs, [x.detach() for x in inputs], inputs):
        results = [f(*each) for f in (compiled, function)]
        for name, ours, wanted in zip(names, *results, strict=True):
            assert_same_bits(ours.detach(), wanted.detach(), name)
    grads = [torch.autograd.grad([y.abs().pow(2).sum() for y in of], inputs) for of in results]
    for ours, wanted in zip(*grads, strict=True):
        assert_same_bits(ours, wanted, f"a gradient of {names}")


def test_compile_with_sizes(device):
    """One graph for all sizes."""
    torch._dynamo.reset()

    def sums(x, index, base):
        added = torch_reduce.index_add(base, 0, index, x)
        more = torch_reduce.scatter_add(base, 0, index[:, None].expand_as(x), x)
        single = torch_reduce.index_sum(x[:, 0].contiguous(), index, base.shape[0])
        added = added + torch_reduce.gather_sum(base, index, index.flip(0), base.shape[0], weight=x)
        added = added + torch_reduce.gather_sum(base, gather_plan(index, index, base.shape[0]), weight=x[:, :1])
        more = more + torch_reduce.index_reduce(base, 0, index, x, "mean")
        plans = moe_plan(index.view(-1, 2), base.shape[0]), moe_plan(index.view(-1, 2) - 1, base.shape[0], drops=True)
        for plan in plans:
            rows = torch_reduce.moe_dispatch(x[::2], plan)
            sent = torch_reduce.moe_combine(rows, plan, x.view(-1)[: x.shape[0]].view(-1, 2))
            sent = sent + torch_reduce.moe_combine(rows, plan.index, x.view(-1)[: x.shape[0]].view(-1, 2))
            single = torch.cat([single, sent.flatten()])
        more = more * torch_reduce.scatter_reduce(base, 0, index[:, None].expand_as(x), x, "amax")
        return added, more, single, torch_reduce.embedding(index, base, 0)

    compiled = torch.compile(sums, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n, size, columns in ((50, 6, 3), (90, 8, 5)):
            x, base = data((n, columns), "float32", device=device), data((size, columns), "float32", device=device)
            index = index_of(n, size, device)
            assert_same_bits(compiled(x, index, base), sums(x, index, base))


def test_opcheck(device):
    """torch.library.opcheck of every operator."""
    index, x = torch.tensor(INDEX, device=device), leaf((6, 3), "float32", device)
    base, weight = leaf((4, 3), "float32", device), leaf((6,), "float32", device)
    opcheck(OPS.index_sum.default, (x, index, 4), dict(weight=weight))
    opcheck(OPS.index_mean.default, (x, torch.tensor([0, 1, 0, 1, 2, 2], device=device), 3))
    opcheck(OPS.index_amax.default, (x, torch.tensor([0, 1, 0, 1, 2, 2], device=device), 3))
    edges = torch.tensor([3, 0, 2, 2, 1, 0], device=device), index
    for heads in (None, weight, x, x[:, :1]):
        opcheck(OPS.gather_sum.default, (base, *edges, 4), dict(weight=heads))
    opcheck(OPS.gather_mean.default, (base, edges[0], torch.tensor([0, 1, 0, 1, 2, 2], device=device), 3))
    opcheck(OPS.gather_amax.default, (base, edges[0], torch.tensor([0, 1, 0, 1, 2, 2], device=device), 3))
    opcheck(OPS.index_add.default, (base, 0, index, x), dict(alpha=2))
    opcheck(OPS.scatter_add.default, (base, 0, index[:, None].expand(6, 3), x))
    opcheck(OPS.scatter_add.default, (base, 0, index[:, None].repeat(1, 3), x))
    for kind in REDUCTIONS:
        opcheck(OPS.index_reduce.default, (base, 0, index, x, kind))
        opcheck(OPS.scatter_reduce.default, (base, 0, index[:, None].repeat(1, 3), x, kind), dict(include_self=False))
    opcheck(OPS.embedding.default, (index, base, 3))
    opcheck(OPS._embedding.default, (base, index, 3))
    opcheck(OPS.embedding_bag.default, (index, base, torch.tensor([0, 2, 6], device=device)))
    for mode in ("sum", "mean", "max"):
        opcheck(OPS.embedding_bag.default, (index.view(2, 3), base), dict(mode=mode, padding_idx=3))
    opcheck(OPS._index_sum_values.default, (weight, index, 4, None, torch.float32))


def test_graphs(cuda):
    """A captured call serves other data and other indices, and nothing waits for the GPU."""
    x, index = data((4000, 3), "float32", device=cuda), index_of(4000, 50, cuda)
    base = data((50, 3), "float32", seed=1, device=cuda)

    def work():
        sums = torch_reduce.index_sum(x, index, 50), torch_reduce.index_sum(x[:, 0].contiguous(), index, 50)
        added = torch_reduce.index_add(base, 0, index, x, alpha=2)
        sent = torch_reduce.gather_sum(base, index, index.flip(0), 50, weight=x)
        plan = moe_plan(index.view(2000, 2) - 1, 50, drops=True)
        rows = torch_reduce.moe_dispatch(x[:2000], plan)
        sums += torch_reduce.moe_combine(rows, plan, x[:2000, :2]), torch_reduce.moe_combine(rows, plan.index)
        return *sums, sent, added, torch_reduce.scatter_add(base, 0, index[:, None].repeat(1, 3), x)

    torch.cuda.set_sync_debug_mode("error")
    try:
        work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    for seed in range(3):
        x.copy_(data((4000, 3), "float32", seed=seed))
        index.copy_(index_of(4000, 50, seed=seed))
        graph.replay()
        assert_same_bits(tuple(y.clone() for y in results), work())


def test_autocast():
    """scatter_add promotes on CUDA, as torch's; sums stay what they are."""
    with without_a_gpu():
        low, wide = (torch.empty(3, 4, dtype=d, device="cuda") for d in (torch.float16, torch.float32))
        index = torch.empty(3, 4, dtype=torch.int64, device="cuda")
        assert torch_reduce.scatter_add(low, 0, index, wide).dtype == torch.float32
        assert torch_reduce.scatter_add(wide, 0, index, low).dtype == torch.float32
        assert torch_reduce.scatter_add(low, 0, index, low).dtype == torch.float16
        assert torch_reduce.index_sum(low, index[:, 0], 3).dtype == torch.float16
        assert torch_reduce.gather_sum(low, index[:, 0], index[:, 0], 3).dtype == torch.float16
        with pytest.raises(RuntimeError, match="same scalar type"):
            torch_reduce.index_add(low, 0, index[:, 0], wide)


# --- arguments --------------------------------------------------------------------------------------------------------


@every_function
def test_out(kind, device):
    """out= is written where it lies, or resized; not where a gradient is needed."""
    function = FUNCTIONS[kind][0]
    x, index = data((90, 3), "float32", device=device), index_of(90, 4, device)
    wanted = function(x, index, 4)
    for at in (index, index_plan(index, 4)):
        for out in (torch.empty(3, 4, device=device).t(), torch.empty(0, device=device)):
            assert function(x, at, 4, out=out) is out
            assert_same_bits(out, wanted)
        if kind == "sum":  # of any dtype, which dtype= would name
            counts = torch.empty(4, 3, dtype=torch.int64, device=device)
            assert_same_bits(function(x, at, 4, out=counts), function(x, at, 4, dtype=torch.int64))
        else:
            with pytest.raises(RuntimeError, match="dtype"):
                function(x, at, 4, out=torch.empty(4, 3, dtype=torch.int16, device=device))
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            function(x.requires_grad_(), at, 4, out=torch.empty(4, 3, device=device))
        x = x.detach()


def test_wrong_arguments(device):
    """Errors name the argument."""
    x, index = torch.ones(3, 2, device=device), torch.tensor([0, 1, 0], device=device)
    plan, call = index_plan(index, 2), torch_reduce.index_sum
    for error, words, work in (
        (TypeError, "size", lambda: call(x, index)),
        (TypeError, "size.*must be int", lambda: call(x, index, "2")),
        (TypeError, "'index' must be Tensor or IndexPlan", lambda: call(x, [0, 1, 0], 2)),
        (TypeError, "'source' must be Tensor", lambda: call([1.0], index, 2)),
        (TypeError, "'weight' must be Tensor", lambda: call(x, index, 2, weight=[1.0])),
        (ValueError, "size: the plan has 2", lambda: call(x, plan, 3)),
        (RuntimeError, "source: expected 3 rows", lambda: call(x, plan, dim=1)),
        (RuntimeError, "weight: expected 3 rows", lambda: call(x, plan, weight=x[:2, 0])),
        (RuntimeError, "index: expected 3 entries", lambda: call(x, index[:2], 2)),
        (RuntimeError, "weight: expected 3 elements", lambda: call(x, index, 2, weight=x[0])),
        (RuntimeError, "weight: expected a tensor of one dim", lambda: call(x, index, 2, weight=x[None])),
        (RuntimeError, "weight: expected 1 or 2 elements", lambda: call(x, index, 2, weight=x[:, :0])),
        (RuntimeError, "index: expected a tensor of one dim", lambda: call(x, index[:, None], 2)),
        (RuntimeError, "index: expected a tensor of int64", lambda: call(x, index.half(), 2)),
        (RuntimeError, "size: expected a number", lambda: call(x, index, -1)),
        (RuntimeError, "at least one dim", lambda: call(x[0, 0], index, 2)),
        (IndexError, "Dimension out of range", lambda: call(x, index, 2, 2)),
        (NotImplementedError, "complex", lambda: call(x + 1j, index, 2, weight=x[:, 0])),
        (RuntimeError, "floating", lambda: torch_reduce.index_mean(x.int(), index, 2)),
        (ValueError, "[Pp]adding_idx", lambda: torch_reduce.embedding(index, x, 3)),
        (ValueError, "[Pp]adding_idx", lambda: torch_reduce.embedding(index, x, -4)),
        (ValueError, "mode", lambda: torch_reduce.embedding_bag(index, x, index, mode="most")),
        (ValueError, "offsets: expected None", lambda: torch_reduce.embedding_bag(index[None], x, index)),
        (ValueError, "offsets has to be a 1D Tensor, but got None", lambda: torch_reduce.embedding_bag(index, x)),
        (ValueError, "offsets has to be a 1D", lambda: torch_reduce.embedding_bag(index, x, index[None])),
        (ValueError, "input has to be 1D or 2D", lambda: torch_reduce.embedding_bag(index[None, None], x)),
        (RuntimeError, "at least 1", lambda: torch_reduce.embedding_bag(index, x, index[:0])),
        (RuntimeError, "padding_idx must be", lambda: torch_reduce.embedding_bag(index, x, index[:1], padding_idx=3)),
        (RuntimeError, "padding_idx must be", lambda: torch_reduce.embedding_bag(index, x, index[:1], padding_idx=-4)),
    ):
        with pytest.raises(error, match=words):
            work()


@pytest.mark.parametrize("name", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])
def test_bincount_of_integers(name, device):
    """Of every dtype, with and without weights; a number of uint64 that int64 does not have is too large."""
    x = torch.tensor([2, 0, 2, 7], device=device)
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0], device=device)
    for more in ((), (weights,)):
        assert_same_bits(torch_reduce.bincount(x.to(dtype_of(name)), *more), torch_reduce.bincount(x, *more))
        if name == "uint64":
            with pytest.raises(RuntimeError, match="non-negative"):
                torch_reduce.bincount(torch.tensor([1 << 63, 1, 1, 1], dtype=torch.uint64, device=device), *more)


def both(work, *args, **kwargs):
    """The function of torch_reduce and torch's of this name, called so."""
    functional = torch.nn.functional
    theirs = getattr(torch, work) if work not in ("embedding", "embedding_bag") else getattr(functional, work)
    more = dict(include_last_offset=True) if work == "embedding_bag" else {}
    return lambda: getattr(torch_reduce, work)(*args, **kwargs), lambda: theirs(*args, **kwargs, **more)


def test_torch_errors(device):
    """What torch refuses is refused with an error of its class."""
    x, index = torch.ones(3, 2, device=device), torch.tensor([0, 1], device=device)
    y = torch.ones(2, 2, device=device)
    wrong = [
        both("index_add", x, 0, index, y[:, :1]),
        both("index_add", x, 0, index, x),
        both("index_add", x, 0, index, y.double()),
        both("index_add", x, 0, index.short(), y),
        both("index_add", x, 0, index[None], y),
        both("index_add", x, 2, index, y),
        both("index_add", x, 0, index, y, alpha=1j),
        both("index_add", x[0, 0], 0, index, y[0]),
        both("scatter_add", x, 0, index[None].short(), y),
        both("scatter_add", x, 0, index[None], y.double()),
        both("scatter_add", x, 0, torch.zeros(1, 3, dtype=torch.int64, device=device), torch.ones(1, 3, device=device)),
        both("scatter_add", x, 0, torch.zeros(3, 2, dtype=torch.int64, device=device), y),
        both("scatter_add", x, 2, index[None], y),
        both("index_reduce", x, 0, index, y[:, :1], "prod"),
        both("index_reduce", x, 0, index, x, "mean"),
        both("index_reduce", x, 0, index, y.double(), "amax"),
        both("index_reduce", x, 0, index.short(), y, "amin"),
        both("index_reduce", x, 0, index[None], y, "prod"),
        both("index_reduce", x, 2, index, y, "prod"),
        both("index_reduce", x, 0, index, y, "max"),
        both("index_reduce", x, 0, index, y, None),
        both("index_reduce", x, 0, index, y, "prod", include_self=None),
        both("index_reduce", x + 0j, 0, index, y + 0j, "amax"),
        both("index_reduce", x > 0, 0, index, y > 0, "mean"),
        both("scatter_reduce", x, 0, index[None].short(), y, "sum"),
        both("scatter_reduce", x, 0, index[None], y.double(), "sum"),
        both("scatter_reduce", x, 0, torch.zeros(3, 2, dtype=torch.int64, device=device), y, "mean"),
        both("scatter_reduce", x, 2, index[None], y, "prod"),
        both("scatter_reduce", x + 0j, 0, index[None], y + 0j, "amin"),
        both("scatter_reduce", x > 0, 0, index[None], y > 0, "mean"),
        both("embedding", index.float(), x),
        both("embedding", index, x[0]),
        both("embedding_bag", index, x, index, mode="none"),
        both("embedding_bag", index, x, torch.tensor([0, 2], device=device), mode="mean", per_sample_weights=x[0]),
        both("embedding_bag", index, x, torch.tensor([0, 2], device=device), mode="sum", per_sample_weights=x[:, 0]),
        both(
            "embedding_bag", index, x, torch.tensor([0, 2], device=device), mode="sum", per_sample_weights=x[0].double()
        ),
        both("embedding_bag", index[None], x, index),
        both("embedding_bag", index, x),
        both("embedding_bag", index, x, index[:1], padding_idx=3),
        both("embedding_bag", index[None, None], x),
        both("embedding_bag", index, x, torch.tensor([0, 2], device=device), mode="max", per_sample_weights=x[0]),
        both("bincount", index[None]),
        both("bincount", index, x[:, 0]),
        both("bincount", index, x[0], minlength=-1),
        both("bincount", index.float(), x[0]),
        both("bincount", index - 1, x[0]),
        both("bincount", [1]),
    ]
    if device == "cpu":  # on a GPU an assertion stops the kernel
        wrong += [
            both("scatter_add", x, 0, index[None] + 2, y),
            both("scatter_add", x, 0, -index[None], y),
            both("scatter_add", x, 1, torch.stack([index * 2, index]), y),  # in memory it is an element of the next row
            both("scatter_add", x, 0, index[:, None].expand(2, 2) + 2, y),
            both("index_reduce", x, 0, index + 2, y, "mean"),
            both("index_reduce", x, 0, -index, y, "amax"),
            both("scatter_reduce", x, 0, index[None] + 2, y, "prod"),
            both("scatter_reduce", x, 0, index[:, None].expand(2, 2) + 2, y, "amax"),
            both("embedding", index + 2, x),
            both("embedding", -index, x),
        ]
        for kind in REDUCTIONS:
            with pytest.raises(IndexError, match=r"^index_reduce\(\).*entry"):
                torch_reduce.index_reduce(x, 0, index + 2, y, kind)
            with pytest.raises(RuntimeError, match=r"^scatter_reduce\(\).*out of bounds"):
                torch_reduce.scatter_reduce(x, 0, index[:, None].repeat(1, 2) + 2, y, kind, include_self=False)
        for bad in (index + 2, -index):
            with pytest.raises(IndexError, match=r"index_add\(\).*entry 1"):
                torch_reduce.index_add(x, 0, bad, y)
            with pytest.raises(IndexError, match=r"index_sum\(\).*entry 1"):
                torch_reduce.index_sum(y, bad, 3)
            with pytest.raises(IndexError, match=r"embedding\(\).*entry"):
                torch_reduce.embedding(bad * 2, x)
    for ours, theirs in wrong:
        with pytest.raises(Exception) as error:
            theirs()
        with pytest.raises(error.type):
            ours()
    with pytest.raises(RuntimeError, match="more than one element"):
        torch_reduce.index_add_(torch.ones(1, device=device).expand(3), 0, index, x[:2, 0])
    own = torch.ones(3, 2, requires_grad=True, device=device)
    with pytest.raises(RuntimeError, match="leaf"):
        torch_reduce.index_add_(own, 0, index, y)


def test_operators_are_the_functions(device):
    """torch.ops.gpureduce has each, with the function's documentation."""
    x, index = data((50, 2), "float32", device=device), index_of(50, 4, device)
    assert_same_bits(OPS.index_sum(x, index, 4, -2), torch_reduce.index_sum(x, index, 4))
    assert_same_bits(OPS.index_sum(x, index, 4, 0, out=x.new_empty(4, 2)), torch_reduce.index_sum(x, index, 4))
    both = torch_reduce.index_reduce(x[:4], 0, index, x, "prod", include_self=False)
    assert_same_bits(OPS.index_reduce(x[:4], 0, index, x, "prod", include_self=False), both)
    names = ["index_sum", "index_add", "index_add_", "scatter_add", "embedding", "embedding_bag", "bincount"]
    for name in [*names, "gather_sum", "gather_amax", "index_reduce", "index_reduce_", "scatter_reduce"]:
        assert getattr(OPS, name).__doc__ == getattr(torch_reduce, name).__doc__
