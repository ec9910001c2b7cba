"""explain of each function: what it says, that nothing runs and nothing is written, and the plans of described GPUs."""

import functools
import re
import types

import pytest
import torch

import torch_reduce
from support import walked
from torch_reduce._explain import _explained

H200 = "multiprocessors=132"
# Public functions that explain has no call of, and why.
explain = torch_reduce.explain
APART = {
    "check_batch_invariance": "it calls a model, and compares what runs",
    "contract": "it takes a device, and computes the pinned results",
    "decompositions": "it takes no tensor",
    "drift": "it calls two functions, and compares what runs",
    "explain": "it explains",
    "tune": "it runs plans",
}


def of(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


INDEX = torch.tensor([3, 0, 3, 1] * 16)
OFFSETS = torch.tensor([0, 5, 5, 64])
MATRIX = of(64, 1024)
EXPERTS = torch.tensor([[0, 1], [1, 2]] * 8)
PLAN = torch_reduce.moe_plan(EXPERTS, 4)
ADDED = (of(4, 1024), 0, INDEX, MATRIX)
# {function: its arguments, and words that its text has on the CPU and of a GPU}
ROWS = {
    "softmax": ((MATRIX, 1), "softmax of 64 rows of 1024 Float"),
    "log_softmax": ((MATRIX, 1), "log_softmax of 64 rows of 1024 Float"),
    "rms_norm": ((MATRIX, 1024, of(1024)), "rms_norm of 64 rows of 1024 Float"),
    "layer_norm": ((MATRIX, 1024, of(1024), of(1024)), "layer_norm of 64 rows of 1024 Float"),
    "log_prob": ((MATRIX, INDEX), "log_sum of 64 rows of 1024 Float"),
    "log_prob_of": ((MATRIX, of(16, 1024), INDEX), "log_sum of"),
    "cross_entropy": ((MATRIX, INDEX), "quotient of 1 row of 64 Float"),
}
TABLE = ("sum", "mean", "nansum", "prod", "amax", "amin", "any", "all", "count_nonzero", "var", "std", "var_mean")
CALLS = dict.fromkeys(TABLE, ((MATRIX, 1), "outputs 64, elements each 1024")) | ROWS
CALLS |= {
    "logsumexp": ((MATRIX, 1), "1024"),
    "argmax": ((MATRIX, 1), "Float -> Long, the first place of the largest\n  outputs 64, elements each 1024"),
    "argmin": ((MATRIX, 1), "Float -> Long, the first place of the smallest\n  outputs 64, elements each 1024"),
    "max": ((MATRIX, 1), "argmax\n  Float -> Long"),
    "min": ((MATRIX, 1), "argmin\n  Float -> Long"),
    "aminmax": ((MATRIX,), "outputs 1, elements each 65536"),
    "vector_norm": ((MATRIX, 2, 1), "outputs 64, elements each 1024"),
    "powsum": ((MATRIX, 2, 1), "outputs 64, elements each 1024"),
    "weighted_sum": ((MATRIX, of(1024), 1), "Float * Float -> Float"),
    "dot": ((of(1024), of(1024)), "Float * Float -> Float"),
    "quantize": ((MATRIX, torch_reduce.Fp8()), "quantize: 64 rows of 1024 Float -> "),
    "silu_mul": ((MATRIX, MATRIX), "formula silu of 65536 elements"),
    "segment_softmax": ((MATRIX, OFFSETS), "3 segments of 64 rows of 1024"),
    "index_plan": ((INDEX, 4), "64"),
    "index_add": (ADDED, "4 segments of 64 gathered rows of 1024"),
    "index_add_": (ADDED, "4 segments of 64 gathered rows of 1024"),
    "index_reduce": ((*ADDED, "mean"), "4 segments of 64"),
    "index_reduce_": ((*ADDED, "mean"), "4 segments of 64"),
    "scatter_add": ((of(4), 0, INDEX, of(64)), "64"),
    "scatter_reduce": ((of(4), 0, INDEX, of(64), "sum"), "64"),
    "embedding": ((INDEX, of(4, 8).requires_grad_()), "4 segments of 64"),
    "embedding_bag": ((INDEX, of(4, 8), torch.tensor([0, 9, 64])), "2 segments of 64 gathered rows of 8"),
    "bincount": ((INDEX, of(64)), "64"),
    "gather_plan": ((INDEX, INDEX, 4), "64"),
    "moe_plan": ((EXPERTS, 4), "32"),
    "moe_dispatch": ((of(16, 8), PLAN), "rows of"),
    "moe_combine": ((of(32, 8), PLAN), "rows of 8"),
    "get_total_norm": (([of(9), of(5)],), "elements"),
    "clip_grad_norm_": (([of(9).requires_grad_(), of(5).requires_grad_()], 1.0), "elements"),
}
for each in ("sum", "mean", "prod", "amax", "amin", "logsumexp"):
    CALLS[f"segment_{each}"] = ((MATRIX, OFFSETS), "3 segments of 64 rows of 1024")
for each in ("sum", "mean", "amax", "amin"):
    CALLS[f"index_{each}"] = ((MATRIX, INDEX, 4), "4 segments of 64 gathered rows of 1024")
    CALLS[f"gather_{each}"] = ((MATRIX, INDEX, INDEX, 4), "4 segments of 64 gathered rows of 1024")
EXACT = {
    "sum": (MATRIX, 1),
    "mean": (MATRIX, 1),
    "nansum": (MATRIX, 1),
    "dot": (of(1024), of(1024)),
    "weighted_sum": (MATRIX, of(1024), 1),
    "vector_norm": (MATRIX, 2, 1),
    "segment_sum": (MATRIX, OFFSETS),
}


def called(name):
    """A function and its arguments, with gradients of parameters that clip_grad_norm_ scales."""
    args = CALLS[name][0]
    if name == "clip_grad_norm_":
        for x in args[0]:
            x.grad = torch.full_like(x, 3.0)
    return getattr(torch_reduce, name), args


def test_every_function_is_explained():
    """Each public function that takes tensors has a call here, or a reason not to have one."""
    public = {name for name in torch_reduce.__all__ if isinstance(getattr(torch_reduce, name), types.FunctionType)}
    assert public == {*CALLS, *APART}
    assert len(public) == len(CALLS) + len(APART)


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
def test_places_of_extrema(name):
    """They are not computed: whoever takes the result takes zeros. Errors are the function's own, and out= stays."""
    found, out = [], torch.full((64,), 7)
    _explained(lambda x: found.append(getattr(torch_reduce, name)(x, 1)), (torch.eye(64).flip(1),), {})
    index = found[0] if name.startswith("arg") else found[0].indices
    assert index.dtype == torch.int64 and not index.any()
    with pytest.raises(NotImplementedError):
        _explained(getattr(torch_reduce, name), (torch.ones(3, 4, dtype=torch.complex64), 1), {})
    into = out if name.startswith("arg") else (torch.empty(64), out)
    assert name in _explained(getattr(torch_reduce, name), (torch.eye(64), 1), dict(out=into))
    assert out.eq(7).all()


@pytest.mark.parametrize("gpu", ["", H200], ids=["cpu", "a described H200"])
def test_last_nodes_of_ranks(gpu):
    """The private operators that finish what ranks have joined do not run either."""
    ops, nodes, moments = torch.ops.gpureduce, torch.full((9,), 3.0), torch.full((9, 2), 3.0, dtype=torch.float64)
    said = "kernel finish_nodes: the results of 9 nodes" if gpu else "9 nodes on 1 thread"
    for function, args in (
        (ops._finish, (nodes, "mean", 2, torch.float32)),
        (ops._finish_moments, (moments, moments[:, 0].clone(), 4, 1.0, True, torch.float64)),
    ):
        text = _explained(function, args, {}, gpu)
        assert said in text and "nothing to launch" not in text, text


def test_tables_whose_rows_are_chosen_by_number():
    """On a GPU kernels of their own copy them and apply formulas to them: words and grids are as launched."""
    said = lambda function, *args: _explained(getattr(torch_reduce, function), args, {}, H200)  # noqa: E731
    text = said("moe_dispatch", of(16, 8), PLAN)
    assert (
        "kernel copy_rows: words of 16 bytes, 4 per thread, of 32 rows of 32 bytes\n  block: 256 threads; grid 1"
        in text
    )
    text = said("segment_softmax", MATRIX, OFFSETS)
    assert "kernel number_entries: 4 entries per thread\n  block: 256 threads; grid 1" in text
    assert "kernel numbered: 4 times 4 elements per thread\n  block: 256 threads; grid 16" in text
    text = said("segment_softmax", of(64).half(), OFFSETS)
    assert "kernel numbered: 2 times 8 elements per thread, whose segments it finds in the offsets" in text
    assert "number_entries" not in text
    x = of(64, 3).requires_grad_()
    assert said("segment_softmax", x, OFFSETS).count("4 times 1 element per thread") == 2


@walked("gpu", ["", H200])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_said(name, gpu):
    """The problem in words, and launches: threads on the CPU, blocks and a grid on a GPU."""
    function, args = called(name)
    text = _explained(function, args, {}, gpu)
    assert CALLS[name][1] in text, text
    if gpu:
        assert re.search(r"grid \d|kernel", text), text
    else:
        assert re.search(r"on \d+ thread|cpu", text), text


@walked("gpu", ["", H200])
@pytest.mark.parametrize("name", EXACT)
def test_exact(name, gpu):
    """Exact sums say so."""
    text = _explained(getattr(torch_reduce, name), EXACT[name], dict(exact=True), gpu)
    assert "exact" in text.split("\n", 1)[1], text
    assert not gpu or re.search(r"kernel exact_\w+: .*\n.*block: \d+ threads; grid \d+", text), text


def tensors_of(args):
    return [x for x in torch.utils._pytree.tree_flatten(args)[0] if isinstance(x, torch.Tensor)]


@walked("gpu", ["", H200])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_written(name, gpu):
    """Arguments keep their values, gradients, versions and graphs; out= keeps its size, too."""
    function, args = called(name)
    tensors = tensors_of(args)
    kept = [(x.clone(), x._version, x.grad if x.grad is None else x.grad.clone(), x.grad_fn) for x in tensors]
    versions = [x.grad._version for x in tensors if x.grad is not None]
    _explained(function, args, {}, gpu)
    for x, (value, version, grad, grad_fn) in zip(tensors, kept, strict=True):
        assert torch.equal(x, value) and x._version == version and x.grad_fn is grad_fn
        assert (x.grad is None and grad is None) or torch.equal(x.grad, grad)
    assert versions == [x.grad._version for x in tensors if x.grad is not None]


def test_out_is_not_written():
    """Neither its values nor its size."""
    out, empty = torch.full((3,), 7.0), torch.empty(0)
    text = torch_reduce.explain(torch_reduce.sum, of(2, 3, 5, 4), 3, out=empty)
    assert "outputs 30, elements each 4" in text
    assert empty.shape == (0,) and empty._version == 0
    torch_reduce.explain(torch_reduce.softmax, of(3), 0, out=out)
    assert out.tolist() == [7.0, 7.0, 7.0] and out._version == 0


def test_calls_run_afterwards():
    """Also after an error, which is the function's own."""
    with pytest.raises(IndexError, match=r"^softmax\(\)|Dimension out of range"):
        torch_reduce.explain(torch_reduce.softmax, of(3), 2)
    assert torch_reduce.softmax(of(4), 0).tolist() == [0.25] * 4
    torch_reduce.explain(torch_reduce.sum, of(3))
    assert torch_reduce.sum(of(3)).item() == 3


def test_backward_passes():
    """An argument that requires a gradient shows the backward pass; weights' gradients are launches of their own."""
    x, w = of(600, 96).requires_grad_(), of(96).requires_grad_()
    call = functools.partial(_explained, torch_reduce.rms_norm, (x, 96, w), {})
    assert "gradient of weight" in call() and "backward:" in call()
    one, apart = call(H200), call("multiprocessors=132,early=0")
    assert "kernel norm_backward, which gives the input's gradient, too" in one and "kernel weights" not in one
    assert "kernel weights" in apart and "kernel join_weights" in apart and "rms_norm_backward of 600 rows" in apart
    assert "backward" not in torch_reduce.explain(torch_reduce.rms_norm, x.detach(), 96)
    with torch.no_grad():
        assert "backward" not in torch_reduce.explain(torch_reduce.rms_norm, x, 96, w)


def test_compositions():
    """A function of one's own is explained by its parts."""
    text = torch_reduce.explain(lambda x: torch_reduce.sum(x * 2, 1), of(3, 4))
    assert text.index("torch.mul of (3, 4)") < text.index("sum\n") < text.index("outputs 3, elements each 4")
    assert torch_reduce.explain(torch_reduce.sum, of(0, 4), 1) == "sum: nothing to launch"


def test_short_form():
    """A tensor comes with sum's arguments, by place and by name."""
    x = of(3, 4)
    assert torch_reduce.explain(x, 1) == torch_reduce.explain(input=x, dim=1)
    assert torch_reduce.explain(x, 1) in "\n".join(
        line.strip() for line in torch_reduce.explain(torch_reduce.sum, x, 1).splitlines()
    )
    with pytest.raises(TypeError, match=r"^explain\(\): argument 'input' \(position 1\) must be Tensor, not float"):
        torch_reduce.explain(1.0)


# --- plans of rows ----------------------------------------------------------------------------------------------------


def rows(shape, dtype=torch.float32, gpu=H200, function=torch_reduce.softmax, *args):
    x = torch.empty(shape, dtype=dtype)
    text = _explained(function, (x, *(args or (-1,))), {}, gpu)
    kernel, size, threads, count, grid = re.search(
        r"kernel rows, (\w+): (.*)\n  block: (\d+) threads?, (\d+) rows?; grid (\d+)", text
    ).groups()
    cluster = re.search(r"(\d+) blocks per row as a cluster", text)
    return kernel, size, int(threads), int(count), int(grid), int(cluster[1]) if cluster else 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_lengths_choose_kernels_of_rows(dtype):
    """A warp has a row of up to 32 loads; then lanes of chunks are shared, up to all registers, and then rounds."""
    vector = 16 // dtype.itemsize
    for length, kernel in ((32 * vector, "warp"), (1024, "pairs"), (2048, "quads"), (4096, "chunks")):
        assert rows((4000, length), dtype)[0] == kernel
    assert rows((4, 1 << 20), dtype)[0] == "rounds"


@pytest.mark.parametrize("multiprocessors", [1, 7, 132])
@pytest.mark.parametrize("shape", [(1, 5), (1000, 96), (3, 4096), (3, 4097), (400, 20000), (2, 50257), (9, 1 << 19)])
def test_grids_of_rows_cover_all(shape, multiprocessors):
    """Blocks have room for all rows, and a cluster's threads hold a row unless it is read in rounds."""
    gpu = f"multiprocessors={multiprocessors}"
    kernel, _, threads, count, grid, cluster = rows(shape, torch.bfloat16, gpu)
    assert grid % cluster == 0 and cluster <= 8 and threads <= 512
    assert (grid // cluster - 1) * count < shape[0] <= grid // cluster * count
    if kernel not in ("rounds", "warp"):
        assert cluster * threads * 64 >= shape[1]  # 8 loads of 8 elements
    assert rows(shape, torch.bfloat16, gpu + ",clusters=0")[5] == 1


def test_rows_without_kernels():
    """Other dtypes, another layout, and machine code for another GPU: a kernel that takes anything."""
    assert rows((4, 100), torch.float8_e5m2)[0] == "any"
    assert rows((4, 100), gpu=H200 + ",native=0")[0] == "any"
    assert rows((4, 100), torch.bfloat16)[0] == "warp"
    assert "odd addresses" in rows((4, 101), torch.bfloat16)[1] and "odd" not in rows((4, 104), torch.bfloat16)[1]
    assert "streamed" in rows((1 << 14, 4096))[1] and "streamed" not in rows((1 << 10, 4096))[1]


@pytest.mark.parametrize("length", [64, 96, 1024, 4096, 16384, 100, 16388, 20000])
def test_one_kernel_for_gradients_of_norms(length):
    """It takes whole granules of 64 to 16,384 elements, has room in shared memory, and a grid that is resident."""
    x, w = torch.empty(3000, length, dtype=torch.bfloat16).requires_grad_(), torch.empty(length).requires_grad_()
    text = _explained(torch_reduce.rms_norm, (x, length, w), {}, H200)
    found = re.search(r"block: (\d+) threads, (\d+) rows? at a time, (\d) of each in (\d+) bytes.*; grid (\d+)", text)
    assert bool(found) == (length % 8 == 0 and 64 <= length <= 16384), text
    if found:
        threads, groups, stages, shared, grid = map(int, found.groups())
        assert threads <= 512 and threads % groups == 0 and stages >= 2 and grid <= 2 * 132
        assert groups * stages * 4 * length < shared <= 227 << 10


# --- plans of other functions -----------------------------------------------------------------------------------------


def planned(pattern, function, *args, gpu=H200, **kwargs):
    """The numbers of a pattern in a call's text."""
    text = _explained(getattr(torch_reduce, function), args, kwargs, gpu)
    found = re.search(pattern, text)
    assert found, text
    return [int(number) for number in found.groups()]


@pytest.mark.parametrize(
    ("shape", "dim", "dtype", "kernel"),
    [
        ((1000, 64), 1, torch.float32, "short_rows"),
        ((10, 1 << 16), 1, torch.bfloat16, "rows"),
        ((10, 1 << 16), 1, torch.float64, "rows"),
        ((4096, 100), 0, torch.float32, "columns"),
        ((10, 4096), 1, torch.int32, "any"),
        ((10, 4096), 1, torch.float8_e5m2, "any"),
    ],
)
def test_kernels_of_exact_sums(shape, dim, dtype, kernel):
    """By layout and dtype; without machine code for the GPU there is one kernel."""
    x = torch.empty(shape, dtype=dtype)
    call = functools.partial(_explained, torch_reduce.sum, (x, dim), dict(exact=True, dtype=torch.float64))
    assert f"kernel exact_{kernel}:" in call(H200)
    assert "kernel exact_any:" in call(H200 + ",native=0")


@pytest.mark.parametrize("multiprocessors", [1, 7, 132])
@pytest.mark.parametrize(("shape", "dim"), [((10, 1 << 18), 1), ((1 << 18, 10), 0), ((300, 4096), 1)])
def test_parts_of_exact_sums(shape, dim, multiprocessors):
    """Few outputs are cut into parts, whose numbers of 11 words wait in the workspace; a second kernel joins them."""
    pattern = r"grid (\d+) x (\d+) x (\d+); (\d+) parts? of each output(?:\n.*)*\n.*workspace: (\d+) bytes"
    gpu = f"multiprocessors={multiprocessors}"
    x, other = torch.empty(shape), 1 - dim
    *grid, parts, workspace = planned(pattern, "sum", x, dim, gpu=gpu, exact=True)
    assert workspace == (shape[other] * parts * 11 * 8 if parts > 1 else 0)
    assert grid[1] == parts if dim else grid[0] % parts == 0
    joins = "kernel exact_join" in _explained(torch_reduce.sum, (x, dim), dict(exact=True), gpu)
    assert joins == (parts > 1)
    assert parts == 1 if multiprocessors == 1 and shape[other] == 300 else parts >= 1


def test_kernels_of_segments():
    """Elements side by side, rows that belong to different columns, and what is converted."""
    said = lambda *args, gpu=H200: _explained(torch_reduce.segment_sum, args, {}, gpu)  # noqa: E731
    rows, columns = torch.empty(8, 1 << 20), torch.empty(1 << 16, 256)
    assert "kernel segment rows: a warp per tile" in said(rows, torch.tensor([0, 1 << 20]), 1)
    assert "kernel segment columns: 2 columns per thread" in said(columns, torch.tensor([0, 1 << 16]))
    assert "kernel segment columns: 4 columns per thread" in said(columns.bfloat16(), torch.tensor([0, 1 << 16]))
    assert "kernel segment rows, converted" in said(columns.to(torch.float8_e5m2), torch.tensor([0, 1 << 16]))
    assert "kernel segment rows, converted" in said(columns, torch.tensor([0, 1 << 16]), gpu=H200 + ",native=0")
    assert "kernel join_segment_columns" in said(columns, torch.tensor([0, 1 << 16]))
    assert "kernel join_segment" not in said(columns[:100], torch.tensor([0, 50, 100]))


@pytest.mark.parametrize("multiprocessors", [1, 7, 132])
@pytest.mark.parametrize("length", [1, 4096, 1 << 17])
def test_tiles_of_exact_segments(length, multiprocessors):
    """Tiles have room for all rows and all segments; a segment that may be cut has slots, which two kernels take."""
    text = _explained(
        torch_reduce.segment_sum,
        (torch.empty(length, 3), torch.tensor([0, length])),
        dict(exact=True),
        f"multiprocessors={multiprocessors}",
    )
    tile, width, threads, grid = map(
        int,
        re.search(
            r"kernel exact_segments: a warp per tile of (\d+) positions, (\d+) columns?.*\n"
            r" +block: (\d+) .*; grid (\d+)",
            text,
        ).groups(),
    )
    assert tile * grid * threads // 32 >= (length + 8) * -(-3 // width) and 64 <= tile <= 4096
    assert text.count("kernel exact_segment_slots") == (2 if length >= tile else 0), text


@pytest.mark.parametrize(("size", "bits"), [(1, 0), (2, 1), (3, 2), (1024, 10), (1025, 11)])
def test_sorts_by_index(size, bits):
    """A sort looks at the bits that tell outputs apart; blocks take 1024 entries, and 1024 outputs' offsets."""
    index = torch.zeros(5000, dtype=torch.long)
    pattern = r"prepare: .*\n.*grid (\d+)\n.* of (\d+) pairs of 32 bits by (\d+) bits?\n.*\n.*grid (\d+)"
    assert planned(pattern, "index_plan", index, size) == [5, 5000, bits, -(-(size + 1) // 1024)]


@pytest.mark.parametrize("multiprocessors", [1, 132])
@pytest.mark.parametrize("lengths", [[5000, 100], [1 << 22, 7, 0], [9] * 1500])
def test_lists_share_a_launch(lengths, multiprocessors):
    """A block takes a tile of an array, of chunks that grow with the number of tiles; up to 1024 arrays a launch."""
    gpu = f"multiprocessors={multiprocessors}"
    tensors = [torch.empty(length) for length in lengths]
    text = _explained(torch_reduce.get_total_norm, (tensors,), {}, gpu)
    launches = re.findall(r"kernel many_arrays: (\d+) chunks? .*\n.*grid (\d+)", text)
    assert len(launches) == -(-len(lengths) // 1024), text
    chunks = int(launches[0][0])
    assert sum(int(grid) for _, grid in launches) == sum(max(1, -(-n // (4096 * chunks))) for n in lengths)
    assert ("kernel join_arrays" in text) == (max(lengths) > 4096 * chunks)
    assert chunks == 1 or int(launches[0][1]) > 16 * multiprocessors


def test_what_the_function_holds_stays():
    """Numbers, buffers, gradients and the random state are the caller's, also where they are no arguments."""
    numbers, mask = torch.arange(4), torch.zeros(3, dtype=torch.bool)
    norm, w = torch.nn.BatchNorm1d(3), torch.ones(3, requires_grad=True)
    state = torch.get_rng_state()
    torch_reduce.explain(lambda: (numbers.add_(1), mask.fill_(True), torch.randn(3)))
    torch_reduce.explain(norm, torch.ones(5, 3))
    torch_reduce.explain(lambda x: torch_reduce.sum(x * 2).backward(), w)
    assert numbers.tolist() == [0, 1, 2, 3] and not mask.any() and norm.num_batches_tracked == 0
    assert w.grad is None and torch.get_rng_state().equal(state)
    text = torch_reduce.explain(lambda: torch.arange(3).add_(1).sum().item())  # its own are computed
    assert "torch.add_" in text


def test_what_is_not_explained():
    """One sentence each, and the next call is explained."""
    x = torch.ones(3)
    for kind, words, call in (
        (NotImplementedError, "sparse tensors are not explained", lambda: explain(torch_reduce.sum, x.to_sparse())),
        (
            RuntimeError,
            "the function that is explained calls it",
            lambda: explain(lambda: explain(torch_reduce.sum, x)),
        ),
    ):
        with pytest.raises(kind, match=rf"^explain\(\): {words}"):
            call()
    assert explain(torch_reduce.sum, x)
