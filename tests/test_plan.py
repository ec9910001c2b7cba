"""Plans for CUDA, walked without a GPU: every leaf of every output exactly once, within limits, for any SM count."""

import functools
import itertools
import json
import math
import random

import numpy as np
import pytest
import torch

import model
from support import dtype_of, warps_beyond_a_chunk

PROCESSORS = [1, 7, 66, 132, 264]
MOST_TILES = 200_000  # plans of more tiles are checked by their description only
MAX_GRID, MAX_WARPS = 2**31 - 1, 32
SOURCES = ["float32", "bfloat16", "int8", "complex64", "float64"]
MAX_GRID_DEPTH = 65535  # blocks along y and z
DENSE_DEPTH = 65535  # rows that split rows' grids are deep

# What drivers say of GPUs: multiprocessors, L2 in MiB, KiB of shared memory that a block may have and a multiprocessor
# has, and whether kernels start early and clusters have room.
DEVICES = {
    "A100, 8.0": (108, 40, 163, 164, 0, 0),
    "RTX 3090, 8.6": (82, 6, 99, 100, 0, 0),
    "RTX 4090, 8.9": (128, 72, 99, 100, 0, 0),
    "H200, 9.0": (132, 60, 227, 228, 1, 1),
    "H200 that runs PTX of 8.0": (132, 60, 227, 228, 0, 0),
    "a seventh of an H200": (16, 7, 227, 228, 1, 1),
    "an H200's multiprocessors apart": (6, 60, 227, 228, 1, 0),
    "B200, 10.0": (148, 126, 227, 228, 1, 1),
    "RTX 5090, 12.0": (170, 96, 99, 100, 1, 1),
}
RESERVED = 1024  # bytes of shared memory that a block has besides
RING_BLOCKS = 2  # blocks of the ring kernel that a multiprocessor has room for
MOST_RESULT = 1 << 36  # bytes of a result that a GPU may hold
MOST_UNASKED_MEMORY = 48 * 1024  # bytes of shared memory that a block has without asking for more
SMALL_INTEGERS = {"bool", "int8", "uint8", "int16", "uint16"}  # added up in 32 bits
KERNELS = {"rows", "thin", "columns", "narrow", "ring_rows", "expanded", "tiny", "dense", "flat", "panels"}

# Sizes and reduced dims of the measured grid.
ROWS = [(1 << 25, 2), (1 << 24, 3), (1 << 23, 8), (1 << 21, 32), (1 << 20, 100), (1 << 18, 1000), (65536, 1024)]
ROWS += [(16384, 4096), (16384, 4097), (4096, 50257), (64, 128256), (8, 1 << 23), (3, (1 << 24) + 1)]
COLUMNS = [(2, 1 << 25), (8, 1 << 23), (64, 1 << 20), (1024, 65536), (16384, 4096), (16384, 4097), (1 << 18, 256)]
COLUMNS += [(1 << 20, 100), (1 << 20, 64), (1 << 24, 4), (1 << 23, 7), (50257, 1024)]
INSIDE = [((64, 4096, 1024), (1,)), ((4096, 128, 128), (1,)), ((128, 512, 1024), (0, 2)), ((64, 256, 56, 56), (2, 3))]
INSIDE += [((32, 64, 56, 56), (0, 2, 3)), ((256, 64, 7, 7), (0, 2, 3))]
HUGE = [(((1 << 31) + 4096,), (0,)), (((1 << 31) + 4096, 2), (1,)), ((2, (1 << 31) + 4096), (0,)), ((1 << 33, 3), (1,))]
HUGE += [((1 << 20, 1 << 20), (1,)), ((1 << 20, 1 << 20), (0,))]
GRID = [((1 << p,), (0,)) for p in range(10, 31, 2)] + [(shape, (1,)) for shape in ROWS]
GRID += [(shape, (0,)) for shape in COLUMNS] + INSIDE + HUGE

# Inputs and results of every accumulator and element size.
PAIRS = [("float32", "float32"), ("bfloat16", "bfloat16"), ("int8", "int64"), ("float64", "float64"), ("bool", "bool")]
PAIRS += [("float8_e5m2", "float32"), ("bfloat16", "float64"), ("complex64", "complex64"), ("complex128", "complex128")]

TUNINGS = [
    "vector=1",
    *(f"warps={n}" for n in (1, 2, 16, 32)),
    *(f"grid={n}" for n in (1, 3)),
    *(f"tile_leaves={n}" for n in (32, 128, 1024, 8192, 65536)),
    *(f"batches={n}" for n in (1, 2, 8)),
    *(f"width={n}" for n in (1, 8, 32)),
    *(f"stages={n}" for n in (1, 4)),
    *(f"stage_bytes={n}" for n in (1, 1000, 16384)),
    *(f"cluster={n}" for n in (1, 8)),
    "multiprocessors=7,vector=1,warps=4,tile_leaves=1024",
]


def contiguous(sizes):
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for n in reversed(sizes):
        strides.insert(0, step)
        step *= n
    return strides


def device_text(name):
    """A row of DEVICES as the private ops take it."""
    processors, l2, block, shared, early, clusters = DEVICES[name]
    return (
        f"multiprocessors={processors},l2_bytes={l2 << 20},shared_bytes={block << 10},"
        f"processor_shared_bytes={shared << 10},reserved_shared_bytes={RESERVED},early={early},clusters={clusters}"
    )


def view_arguments(sizes, strides, dims, source, target, *more):
    """The arguments of _plan, _walk and _places."""
    return list(sizes), list(strides), list(dims), dtype_of(source), dtype_of(target), *more


def leaf_count(length):
    """Lanes that have an element: 512 a full chunk, and what begins in the last."""
    return length // 4096 * 512 + min(512, length % 4096)


def accumulator_bytes(source, target):
    """Bytes of a partial sum, from the contract's accumulators."""
    one = np.zeros((1, model.STORAGE[source][1]), model.STORAGE[source][0])
    return sum(part.itemsize for part in model.addends(one, source, target))


def lane_bytes(source, target):
    """Bytes of a lane's sum in shared memory."""
    return 4 if source in SMALL_INTEGERS else accumulator_bytes(source, target)


def check_narrow(plan, source, target, what):
    """A block's runs of leaves are aligned pieces of memory of one chunk, and their sums fit its shared memory."""
    run, left = divmod(plan["tile_leaves"], plan["batches"])
    assert left == 0 and 16 <= run <= 512 and run & (run - 1) == 0 and 1 <= plan["batches"] <= 8, what
    assert plan["vector"] == max(1, 16 // model.itemsize(source)), what
    sums = plan["tile_leaves"] // plan["batches"] + plan["batches"]
    assert sums * plan["tile_outputs"] * lane_bytes(source, target) <= MOST_UNASKED_MEMORY - 128, what


def blocks(plan):
    """The most blocks that a plan may have: one a tile; of more split rows than a grid is deep, some that have none."""
    deep = plan["kernel"] == "dense" and plan["splits"] > 1 and plan["outputs"] > DENSE_DEPTH
    return plan["splits"] * -(-plan["outputs"] // DENSE_DEPTH) * DENSE_DEPTH if deep else plan["tiles"]


def check_panels(plan, source, target, what):
    """A block has whole units for its warps, whose sums fit its shared memory, and a thread joins few of them."""
    leaves = 32 // plan["warp_columns"] * (8 // plan["thread_elements"]) * plan["batches"]  # of a unit
    units, warps, parts, side = plan["units"], plan["warps"], plan["parts"], plan["warp_columns"] * plan["vector"]
    assert plan["tile_leaves"] == units * leaves and units >= warps and units & (units - 1) == 0, what
    assert warps & (warps - 1) == 0, what
    assert plan["tile_leaves"] <= 4096, what  # so that 16 bits, of 8 rows a leaf, are added up in 32
    if plan["walk"] == "spread":
        assert plan["batches"] == 1 and plan["tile_outputs"] <= side, what
    else:
        # Wherever shifted columns begin in a vector, a tile's lie within those that its threads read.
        assert plan["tile_outputs"] == side - (plan["vector"] - 1 if plan["walk"] == "shifted" else 0), what
    # A row of sums for each unit; for each warp where it adds or joins its own, and for each level of their tree.
    order_free = source in SMALL_INTEGERS or source.startswith(("int", "uint"))
    levels = (units // warps).bit_length() - 1 if plan["runs"] else 1
    assert not plan["runs"] or (not order_free and plan["walk"] == "linear" and units > warps), what
    assert plan["rows"] == (warps if order_free or plan["runs"] else units), what
    assert plan["kept_rows"] == plan["rows"] * levels, what
    assert plan["kept_rows"] * side * lane_bytes(source, target) <= 32 * 1024, what
    assert parts & (parts - 1) == 0 and parts <= min(32, plan["rows"]) and plan["rows"] // parts <= 32, what
    assert plan["grid"] == plan["tiles"] and plan["splits"] <= 65535, what


def check_grid(plan, what):
    """A grid is no larger than CUDA's may be, and has no blocks for nothing."""
    x, y, z = plan["grid_sides"]
    assert 1 <= x <= MAX_GRID and 1 <= y <= MAX_GRID_DEPTH and 1 <= z <= MAX_GRID_DEPTH, what
    assert plan["grid"] == x * y * z <= blocks(plan), what
    # Kernels whose blocks take tile after tile count blocks in 32 bits.
    assert plan["grid"] <= MAX_GRID or plan["kernel"] in ("dense", "flat", "panels"), what
    for _, y, z in plan["join_grids"]:
        assert 1 <= y <= MAX_GRID_DEPTH and 1 <= z <= MAX_GRID_DEPTH, what


def check_device(plan, device, what):
    """A plan asks for nothing that the device does not have."""
    _, _, block, shared, early, clusters = DEVICES[device]
    ring = plan["ring_bytes"]
    assert ring <= block << 10 and RING_BLOCKS * (ring + RESERVED) <= shared << 10, what
    assert plan["early"] == bool(early) and (early or plan["kernel"] != "ring_rows"), what
    assert clusters or plan["cluster"] == 1, what


def check_plan(sizes, strides, dims, source="float32", target=None, tuning="", device="H200, 9.0"):
    """All that must hold of any plan; returns its description, and whether its tiles were walked."""
    target = target or model.natural_result(source)
    arguments = view_arguments(sizes, strides, dims, source, target, tuning, device_text(device))
    plan = json.loads(torch.ops.gpureduce._plan(*arguments))
    outputs = int(np.prod([n for d, n in enumerate(sizes) if d not in dims], dtype=object))
    length = int(np.prod([sizes[d] for d in dims], dtype=object))
    leaves = leaf_count(length)
    what = f"{arguments}: {plan}"

    assert plan["kernel"] in KERNELS, what
    assert plan["outputs"] == outputs and plan["leaves"] == leaves, what
    assert 1 <= plan["warps"] <= MAX_WARPS, what
    check_grid(plan, what)
    assert plan["vector"] >= 1 and plan["vector"] & (plan["vector"] - 1) == 0, what
    assert plan["vector"] == 1 or plan["vector"] * model.itemsize(source) <= 16, what
    assert (plan["stages"] > 0) == plan["kernel"].startswith("ring"), what
    if "stage" not in tuning:
        check_device(plan, device, what)
    if plan["kernel"] == "narrow":
        check_narrow(plan, source, target, what)
    if plan["kernel"] == "panels":
        check_panels(plan, source, target, what)
    if plan["block_rows"] > 1:
        assert plan["kernel"] == "dense" and plan["splits"] == 1 and plan["warps"] % plan["block_rows"] == 0, what
        assert plan["tile_outputs"] == plan["block_rows"], what

    # An output's splits that are a cluster leave nothing to join.
    assert plan["cluster"] == 1 or (plan["cluster"] == plan["splits"] <= 8 and not plan["joins"]), what
    assert plan["cluster"] == 1 or plan["kernel"] in ("dense", "panels"), what

    # Partial sums: every pass joins `fan` neighbours, until one is left. Where there is nothing to join, one pass may
    # round the sums to a dtype that kernels do not write.
    counts = [plan["splits"] // plan["cluster"]]
    for fan in plan["joins"]:
        assert fan >= 2 and fan & (fan - 1) == 0, what
        counts.append(-(-counts[-1] // fan))
    read = counts[:-1]
    assert counts[-1] == 1, f"the joins do not end in one partial sum: {what}"
    assert 1 not in read or read == [1], f"a join of nothing: {what}"
    assert plan["workspace_bytes"] == sum(read) * outputs * accumulator_bytes(source, target), what
    fewest = 1 if "warps" in tuning else 2  # leaves a tile, unless it is forced to less
    assert plan["splits"] * fewest <= max(2, leaves) + 2, what

    if plan["tiles"] > MOST_TILES:
        return plan, False
    walk = torch.ops.gpureduce._walk(*arguments)
    assert walk.dtype == torch.int64 and walk.shape == (plan["tiles"], 5), what
    first, count, leaf, run, partial = walk.numpy().T
    assert (count >= 1).all() and (first >= 0).all() and (first + count <= outputs).all(), what
    size = int(run.max())
    size = 1 << (size - 1).bit_length()  # tiles are aligned runs of this many leaves, clipped at the end of the row
    assert (leaf % size == 0).all() and (run == np.minimum(size, leaves - leaf)).all() and (run >= 1).all(), what

    # Exactly once: the tiles' areas sum to the whole, and no two cover one place.
    assert int((count * run).sum()) == outputs * leaves, what
    order = np.lexsort((first, leaf))
    next_first, next_leaf = first[order][1:], leaf[order][1:]
    same = next_leaf == leaf[order][:-1]
    assert (next_first[same] >= (first + count)[order][:-1][same]).all(), f"an output twice: {what}"
    assert len(np.unique(leaf)) == plan["splits"] == -(-leaves // size), what

    # A partial sum stands at output * splits + split (a row's side by side) or split * outputs + output (neighbouring
    # columns' side by side): one place for each, and in an output's order of leaves.
    if plan["splits"] > 1:
        split = leaf // size
        by_rows, by_columns = first * plan["splits"] + split, split * outputs + first
        assert (partial == by_rows).all() or (partial == by_columns).all(), f"partial sums out of order: {what}"
    return plan, True


@pytest.mark.parametrize("processors", PROCESSORS)
@pytest.mark.parametrize("source,target", PAIRS)
def test_grid(source, target, processors):
    """The shapes of the measured grid."""
    for sizes, dims in GRID:
        check_plan(sizes, contiguous(sizes), dims, source, target, f"multiprocessors={processors}")


def test_channels_last():
    """Images whose channels are the fastest dim, over every set of dims."""
    for n, c, h, w in [(32, 64, 56, 56), (256, 64, 7, 7), (2, 3, 28, 28), (1, 512, 1, 1), (8, 5, 3, 1000)]:
        strides = (h * w * c, 1, w * c, c)
        for dims in [(0, 2, 3), (1,), (2, 3), (0,), (0, 1, 2, 3), (1, 2, 3), (3,)]:
            for source in ("float32", "bfloat16", "int8"):
                check_plan((n, c, h, w), strides, dims, source)


def random_case(rng):
    """A view of any rank, with gaps, expansions and permutations, and a set of reduced dims."""
    rank = rng.randint(1, 6)
    sizes, room = [], rng.choice([50, 5000, 1 << 18, 1 << 24, 1 << 34])
    for _ in range(rank):
        top = max(1, min(room, rng.choice([2, 9, 70, 1030, 9000, 1 << 20, 1 << 32])))
        sizes.append(
            rng.choice([rng.randint(1, top), min(top, rng.choice([1, 2, 3, 32, 512, 4096, 4097, 1 << 14, 1 << 20]))])
        )
        room //= sizes[-1]
    order = list(range(rank))
    if rng.random() < 0.6:
        rng.shuffle(order)
    strides, step = [0] * rank, rng.choice([1, 1, 1, 2, 3])
    for d in order:
        if rng.random() < 0.08:
            continue
        strides[d] = step
        step *= sizes[d]
        if rng.random() < 0.25:
            step += rng.choice([1, 3, 8, 16, 64])
    dims = [d for d in range(rank) if rng.random() < 0.5] or [rng.randrange(rank)]
    return sizes, strides, dims


@pytest.mark.parametrize("processors", PROCESSORS)
def test_random_shapes(processors):
    """Thousands of random views and dtypes for each number of multiprocessors; the same views for all."""
    rng = random.Random(1)
    kernels, walked, split = set(), 0, 0
    for _ in range(2500):
        sizes, strides, dims = random_case(rng)
        source, target = rng.choice(model.DTYPES), rng.choice([None, None, *model.DTYPES])
        if source in model.COMPLEX and target not in (None, "bool", *model.COMPLEX):
            target = None  # such a call is planned as one of the real parts
        plan, all_of_it = check_plan(sizes, strides, dims, source, target, f"multiprocessors={processors}")
        kernels.add(plan["kernel"])
        walked += all_of_it
        split += plan["splits"] > 1
    assert kernels == KERNELS and walked > 1500 and split > 100


@pytest.mark.parametrize("device", DEVICES)
def test_devices(device):
    """Plans for real GPUs are as complete, and ask for nothing that these do not have."""
    rng = random.Random(3)
    kernels, clusters = set(), 0
    for _ in range(800):
        sizes, strides, dims = random_case(rng)
        kernels.add(check_plan(sizes, strides, dims, rng.choice(SOURCES), device=device)[0]["kernel"])
    for rows in (1, 9, 2000, 1 << 20):
        for length in range(1, 513, 3):
            for source, gap in itertools.product(("int8", "bfloat16", "float32"), (0, 1, length // 5)):
                view = view_arguments((rows, length), (length + gap, 1), (1,), source, model.natural_result(source))
                plan = json.loads(torch.ops.gpureduce._plan(*view, "", device_text(device)))
                check_device(plan, device, f"{view}: {plan}")
                kernels.add(plan["kernel"])
    for sizes, dims in [((n, 1 << k), (d,)) for n in (1, 20, 300, 5000) for k in range(9, 21) for d in (0, 1)]:
        for source in SOURCES:
            clusters += check_plan(sizes, contiguous(sizes), dims, source, device=device)[0]["cluster"] > 1
    _, _, _, _, early, has_clusters = DEVICES[device]
    assert kernels == (KERNELS if early else KERNELS - {"ring_rows"}) and (clusters > 0) == bool(has_clusters)


def test_rings_that_do_not_fit():
    """Stages that are forced to be larger than a block's shared memory are refused."""
    view = view_arguments((1 << 24, 99), (99, 1), (1,), "int8", "int64")
    assert json.loads(torch.ops.gpureduce._plan(*view, "stage_bytes=200000"))["kernel"] == "ring_rows"
    with pytest.raises(ValueError, match=r"3 stages of \d+ bytes are more than the 232448 bytes of shared memory"):
        torch.ops.gpureduce._plan(*view, "stages=3,stage_bytes=99999")


def huge_case(rng):
    """A view of up to 2^44 places, whose elements overlap, and a set of reduced dims."""
    rank, room = rng.randint(1, 6), rng.choice([1 << 33, 1 << 40, 1 << 44])
    sizes = []
    for _ in range(rank):
        top = max(1, min(room, rng.choice([3, 1000, 1 << 16, (1 << 31) + 9, 1 << 36])))
        sizes.append(rng.choice([rng.randint(1, top), top]))
        room //= sizes[-1]
    rng.shuffle(sizes)
    strides = [rng.choice([0, 1, 1, 2, 7, 4096, 65537, (1 << 31) + 1]) for _ in sizes]
    if sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True)) >= 1 << 62:
        return huge_case(rng)  # no address is that far
    return sizes, strides, [d for d in range(rank) if rng.random() < 0.5] or [rng.randrange(rank)]


def in_order(sizes, strides, dims):
    """Those of the dims that have more than one element, in the contract's order."""
    long = [d for d in dims if sizes[d] > 1]
    return sorted(long, key=lambda d: -strides[d] if strides[d] else -math.inf)


def unravel(index, dims, sizes):
    """{dim: index in it} of an index of these dims, slowest first."""
    found = {}
    for d in reversed(dims):
        index, found[d] = divmod(index, sizes[d])
    return found


def check_places(view, rng, outputs, length):
    """Outputs and elements lie where Python's integers say."""
    sizes, strides, dims, *_ = view
    kept = in_order(sizes, strides, [d for d in range(len(sizes)) if d not in dims])
    pitch = contiguous([1 if d in dims else n for d, n in enumerate(sizes)])
    elements = in_order(sizes, strides, dims)
    for what, count, order in [("kept", outputs, kept), ("joined", outputs, kept), ("reduced", length, elements)]:
        find = functools.partial(torch.ops.gpureduce._places, *view, what)
        for index, (begin, result) in sampled(rng, count, find):
            at = unravel(index, order, sizes)
            assert begin == sum(i * strides[d] for d, i in at.items()), (what, index, view)
            assert what == "reduced" or result == sum(i * pitch[d] for d, i in at.items()), (what, index, view)


def sampled(rng, count, ask):
    """(index, its row of ask(indices)) of some below `count`: the last, those around 2^31 and 2^32, and others."""
    edges = [min(count - 1, n + d) for n in (1 << 31, 1 << 32) for d in (-1, 0, 1)]
    some = sorted({0, count - 1, *edges, *(rng.randrange(count) for _ in range(20))})
    return zip(some, ask(some).tolist(), strict=True)


def check_tiles(plan, arguments, rng):
    """Tiles are where Python's integers say."""
    splits, side, run, columns = plan["splits"], plan["tile_outputs"], plan["tile_leaves"], plan["columns"]
    outputs, leaves, across = plan["outputs"], plan["leaves"], -(-columns // side)
    assert plan["tiles"] == across * splits * -(-outputs // columns), plan
    for index, row in sampled(rng, plan["tiles"], functools.partial(torch.ops.gpureduce._walk, *arguments)):
        rest, column = divmod(index, across)
        batch, split = divmod(rest, splits)
        output, leaf = batch * columns + column * side, split * run
        count = min(side, columns - column * side, outputs - output)
        assert row[:4] == [output, count, leaf, min(run, leaves - leaf)], (index, arguments, plan)
        assert row[4] in (output * splits + split, output + split * outputs), (index, arguments, plan)


@pytest.mark.parametrize("device", ["A100, 8.0", "H200, 9.0"])
def test_huge_problems(device):
    """Tiles, offsets and grids of problems beyond 2^31 outputs, elements and tiles, with no memory at all."""
    rng = random.Random(4)
    beyond = {"outputs": 0, "nested outputs": 0, "length": 0, "tiles": 0}
    for _ in range(4000):
        sizes, strides, dims = huge_case(rng)
        source = rng.choice(SOURCES)
        target = rng.choice(["int8", "int64"]) if source == "int8" else model.natural_result(source)
        if math.prod(n for d, n in enumerate(sizes) if d not in dims) * model.itemsize(target) > MOST_RESULT:
            continue
        view = view_arguments(sizes, strides, dims, source, target)
        plan, _ = check_plan(sizes, strides, dims, source, target, device=device)
        outputs, length = plan["outputs"], math.prod(sizes[d] for d in dims)
        check_places(view, rng, outputs, length)
        check_tiles(plan, (*view, "", device_text(device)), rng)
        nested = sum(n > 1 for d, n in enumerate(sizes) if d not in dims) > 1
        beyond["outputs"] += outputs > 1 << 31
        beyond["nested outputs"] += nested and outputs > 1 << 31
        beyond["length"] += length > 1 << 31
        beyond["tiles"] += plan["tiles"] > 1 << 32
    assert min(beyond.values()) > 30, beyond


def test_more_than_2_32_tiles():
    """Tiles are numbered in 64 bits."""
    rows = 2_147_483_646
    plan, _ = check_plan((rows, 200_000), (0, 1), (1,))
    assert plan["tiles"] > 1 << 32 and plan["kernel"] == "dense" and plan["outputs"] == rows


def test_too_many_partial_sums():
    """An output's partial sums are numbered in 32 bits; no memory holds as many."""
    view = view_arguments((1 << 12, 1 << 30), (0, 2), (0, 1), "float32", "float32")
    with pytest.raises(ValueError, match="too many elements an output: these would be joined from 4294967296 partial"):
        torch.ops.gpureduce._plan(*view, "tile_leaves=32,warps=1")


def test_grids_of_joins():
    """Every result of a pass is a block's, however many there are."""
    view = view_arguments((1 << 18, 1 << 20), (0, 1), (0, 1), "int8", "int64")
    plan = json.loads(torch.ops.gpureduce._plan(*view, "tile_leaves=32"))
    counts = [plan["splits"]]
    for fan, (x, y, z) in zip(plan["joins"], plan["join_grids"], strict=True):
        counts.append(-(-counts[-1] // fan))
        assert x == 1 and y <= 65535 and z <= 65535 and counts[-1] <= y * z < counts[-1] + z, plan
    assert plan["join_grids"][0][2] > 1, "the first pass has few results"


@pytest.mark.parametrize("tuning", TUNINGS)
def test_forced_plans(tuning):
    """Plans with forced values are as complete, and take the values."""
    rng = random.Random(2)
    for _ in range(400):
        sizes, strides, dims = random_case(rng)
        plan, _ = check_plan(
            sizes, strides, dims, rng.choice(SOURCES), None, tuning
        )
        if "vector=1" in tuning:
            assert plan["vector"] == 1 or plan["kernel"] == "ring_rows"
        if tuning.startswith("grid"):
            if plan["kernel"] in ("dense", "flat", "panels"):  # which always have a block a tile
                assert plan["grid"] == blocks(plan)
            else:
                assert plan["grid"] <= int(tuning.removeprefix("grid="))


def test_lengths_around_boundaries():
    """Rows and columns of every length around lanes, chunks and tiles."""
    for length in [
        *range(1, 70),
        *(b + d for b in (128, 256, 512, 1024, 2048, 4096, 8192, 65536, 1 << 20) for d in (-1, 0, 1)),
    ]:
        for others in (1, 2, 3, 31, 33, 1000):
            for source in ("float32", "int8"):
                check_plan((others, length), (length, 1), (1,), source)
                check_plan((length, others), (others, 1), (0,), source)


def test_alignment_bounds_the_vectors():
    """What is apart is loaded one by one; what is dense but not aligned, in shifted vectors, or short."""
    apart = [((9, 4096), (8192, 2), (1,)), ((64, 30, 64), (64 * 31 + 1, 64, 1), (0, 1)), ((600, 7), (14, 2), (0,))]
    for sizes, strides, dims in apart:
        assert check_plan(sizes, strides, dims)[0]["vector"] == 1
    for sizes, dims in [((8, 4097), (1,)), ((1 << 17, 1001), (0,)), ((4097, 2049), (0,))]:
        for source, vector in [("bfloat16", 8), ("int8", 16)]:
            plan = check_plan(sizes, contiguous(sizes), dims, source)[0]
            assert plan["vector"] == vector and plan["walk"] == "shifted"
            assert plan["kernel"] == ("panels" if dims == (0,) else "dense")
            plan = check_plan(sizes, contiguous(sizes), dims, source, tuning="vector=1")[0]
            assert plan["vector"] == 1 and plan["walk"] in ("dense", "linear")
    spread = [((1 << 17, 1001), "float64", 2), ((4097, 2049), "complex64", 2), ((300, 201), "int64", 2)]
    spread += [((4097, 2049), "float32", 4), ((9, 100_001), "int32", 4), ((2000, 77), "complex32", 4)]
    for sizes, source, vector in spread:
        plan = check_plan(sizes, contiguous(sizes), (0,), source)[0]
        assert plan["kernel"] == "panels" and plan["vector"] == vector and plan["walk"] == "spread", (sizes, source)
        for tuning in ("vector=1", "kernel=columns"):
            plan = check_plan(sizes, contiguous(sizes), (0,), source, tuning=tuning)[0]
            whole = tuning == "vector=1" and sizes == (9, 100_001)
            assert plan["kernel"] == ("thin" if whole else "columns")
            assert plan["vector"] == 1 and plan["walk"] == "linear"
    assert check_plan((16384, 4097), (4097, 1), (0,))[0]["tile_outputs"] == 125  # 33 even tiles, of up to 128
    for sizes, source in [
        ((300, 201), "float32"),
        ((1 << 17, 1001), "complex128"),
        ((1024, 5001), "int8"),
        ((300, 201), "bfloat16"),
        ((90_000, 3), "bfloat16"),
    ]:
        assert check_plan(sizes, contiguous(sizes), (0,), source)[0]["vector"] == 1
    assert check_plan((20_000, 97), (97, 1), (1,), "int8")[0]["kernel"] == "ring_rows"
    assert check_plan((8, 4097), (4097, 1), (1,))[0]["vector"] == 1  # single words are as fast
    plan = check_plan((8, 4096), (4096, 1), (1,))[0]
    assert plan["kernel"] == "dense" and plan["vector"] == 4 and plan["walk"] == "dense"
    assert check_plan((4096, 64), (64, 1), (0,), "bfloat16")[0]["vector"] == 8


def test_short_rows():
    """A thread takes whole rows that are no even number of words apart, where pieces would leave many threads idle and
    rows are many; few are read one by one."""
    whole = [(1 << 20, 100, "int8"), (1 << 20, 66, "bfloat16"), (1 << 20, 33, "float32"), (1 << 20, 45, "int32")]
    whole += [(1 << 20, 89, "bfloat16"), (10_600, 99, "int8"), (200_000, 21, "bfloat16"), (1 << 21, 17, "float8_e5m2")]
    whole += [(17_000, 257, "bfloat16"), (1 << 17, 511, "bfloat16"), (1 << 18, 129, "float32")]
    pieces = [(1 << 17, 100, "int8"), (1 << 20, 60, "int8"), (1 << 21, 29, "float32"), (1 << 20, 34, "float32")]
    pieces += [(1 << 18, length, "float32") for length in (257, 301, 302, 511, 512)]
    pieces += [(1 << 17, length, "float64") for length in (129, 300, 301, 511, 512)]
    pieces += [(10_500, 99, "int8"), (31, 99, "int8"), (199_000, 21, "bfloat16"), (16_000, 256, "float16", 257)]
    shared = [(90_000, 13, "int8"), (20_000, 99, "int8", 104), (400_000, 11, "float16", 12)]
    for kernel, width, cases in (("ring_rows", 0, whole), ("flat", None, pieces), ("ring_rows", 1, shared)):
        for rows, length, source, *pitch in cases:
            plan = check_plan((rows, length), (pitch[0] if pitch else length, 1), (1,), source)[0]
            assert plan["kernel"] == kernel, (rows, length, source)
            assert width is None or min(plan["row_width"], 1) == width


def odd_rows_plan(rows, length, source, target=None, tuning=""):
    """The plan of rows an odd number of elements apart."""
    return check_plan((rows, length), (length + length % 2 + 1, 1), (1,), source, target, tuning)[0]


@pytest.mark.parametrize("source", ["bfloat16", "int8", "float8_e5m2"])
def test_rows_at_odd_addresses(source):
    """Rows of any length around chunks, a few and many of them: whole chunks, rests of few elements, and others."""
    short = (513, 1000, 1023, 1025, 2047)
    for length in (*short, 2049, 4095, 4097, 4128, 4129, 8193, 8224, 8225, 50_257, (1 << 20) + 1, (1 << 24) + 1):
        for rows in (1, 2, 3, 133, 1000, 16_384):
            for tuning in ("", "tile_leaves=512", "tile_leaves=1024", "warps=1", "warps=16"):
                plan = odd_rows_plan(rows, length, source, tuning=tuning)
                if rows > 1:
                    assert plan["kernel"] == "dense" and plan["walk"] == "shifted" and plan["warps"] <= 8
                    few = length <= 4096 + 32 * (tuning != "tile_leaves=512")
                    assert plan["tile_outputs"] == (plan["warps"] if few else 1)
                    assert plan["thread_elements"] == (2 if length <= 1024 else 4 if length <= 2048 else 8)


def test_blocks_of_short_rows_at_odd_addresses():
    """Many short rows are no more blocks than start in the time that reading them takes."""
    for rows, length, source, warps in [
        (1 << 17, 513, "bfloat16", 8),
        (1 << 16, 1023, "bfloat16", 4),
        (1 << 16, 1023, "int8", 8),
        (1 << 16, 1500, "bfloat16", 2),
        (1 << 16, 1500, "float8_e5m2", 4),
        (1 << 14, 4097, "bfloat16", 1),
        (2000, 1001, "bfloat16", 8),
        (600, 1001, "bfloat16", 4),
    ]:
        plan = odd_rows_plan(rows, length, source)
        assert plan["warps"] == warps and plan["grid"] == -(-rows // warps), (rows, length, source)


def test_blocks_of_long_rows_at_odd_addresses():
    """A short second chunk has no warp of its own; float8 two chunks a warp, long rows in tiles of that; bytes one."""
    for rows, length, source, warps, chunks in [
        (1 << 14, 5001, "bfloat16", 1, 2),
        (1 << 14, 7001, "bfloat16", 2, 2),
        (2000, 5001, "bfloat16", 2, 2),
        (1 << 14, 5001, "int8", 2, 2),
        (1 << 14, 14_001, "int8", 4, 4),
        (4096, 50_257, "int8", 4, 4),  # clusters
        (4096, 30_001, "int8", 8, 8),
        (1 << 14, 5001, "float8_e5m2", 1, 2),
        (1 << 14, 14_001, "float8_e5m2", 2, 4),
        (4096, 50_257, "float8_e5m2", 1, 2),
        (300, 50_257, "float8_e5m2", 4, 16),
    ]:
        plan = odd_rows_plan(rows, length, source)
        assert (plan["warps"], plan["tile_leaves"]) == (warps, 512 * chunks), (rows, length, source, plan)


def tiles_of(plan):
    """What a block takes, by how many warps; and the splits of a row, which are a cluster."""
    return *(plan[key] for key in ("kernel", "warps", "tile_outputs", "tile_leaves")), plan["cluster"]


def test_rows_of_single_elements():
    """Rows of one unit, several a block; a row a block; then clusters of small blocks, or of many long rows larger."""
    for rows, length, *wanted in [
        (1 << 16, 1023, 4, 4, 512, 1),
        (2000, 701, 8, 8, 512, 1),
        (1000, 1025, 2, 1, 512, 1),
        (1 << 16, 2049, 4, 1, 512, 1),
        (1 << 14, 4097, 4, 1, 1024, 1),
        (1 << 14, 6001, 8, 1, 1024, 1),
        (1 << 13, 8193, 8, 1, 2048, 1),
        (1 << 13, 9001, 9, 1, 2048, 1),
        (200, 12_301, 12, 1, 2048, 1),
        (1000, 20_001, 4, 1, 512, 5),
        (4096, 50_257, 8, 1, 1024, 7),
        (90, 100_001, 16, 1, 2048, 7),
        (700, 100_001, 16, 1, 4096, 4),
    ]:
        plan = odd_rows_plan(rows, length, "float32")
        assert plan["walk"] == "dense" and tiles_of(plan) == ("dense", *wanted), (rows, length, plan)
        for source in ("float32", "int32"):
            plan = check_plan((rows, length), (2 * length, 2), (1,), source)[0]
            assert plan["walk"] == "linear" and tiles_of(plan) == ("dense", *wanted), (rows, length, source, plan)
    for rows, length, *wanted in [
        (1 << 15, 1023, 2, 1, 512, 1),
        (1 << 14, 4097, 8, 1, 1024, 1),
        (1 << 13, 8190, 16, 1, 1024, 1),
        (1 << 13, 9001, 4, 1, 256, 6),
    ]:
        for source, target, step in (("float64", None, 1), ("complex64", None, 2), ("int64", "float64", 1)):
            plan = check_plan((rows, length), (step * length | 1, step), (1,), source, target)[0]
            assert tiles_of(plan) == ("dense", *wanted), (rows, length, source, plan)


def test_several_rows_a_block():
    """Many short rows of several units share blocks, until these bring enough bytes; few of them do not."""
    for rows, length, source, step, warps, block_rows in [
        (1 << 16, 1025, "float32", 1, 4, 2),
        (1 << 16, 1025, "bfloat16", 2, 4, 2),
        (1 << 16, 1025, "int8", 2, 4, 4),
        (1 << 16, 1025, "int8", 1 << 10, 1, 1),  # whole sectors
        (1 << 17, 513, "float64", 1, 4, 2),
        (1 << 18, 129, "complex128", 1, 8, 4),
        (1 << 16, 1351, "float32", 1, 2, 1),
        (3000, 1025, "float32", 1, 2, 1),
    ]:
        plan = check_plan((rows, length), (step * length | 1, step), (1,), source)[0]
        assert tiles_of(plan)[:3] == ("dense", warps, block_rows), (rows, length, source, plan)
    for rows, length, source, warps, block_rows in [  # in vectors
        (1 << 16, 1040, "float32", 4, 2),
        (1 << 16, 1352, "float32", 2, 1),
        (3000, 1040, "float32", 2, 1),
        (1 << 16, 600, "float64", 4, 2),
        (1 << 15, 2600, "bfloat16", 2, 1),  # has a kernel of long rows
    ]:
        plan = check_plan((rows, length), (length, 1), (1,), source)[0]
        assert tiles_of(plan)[:3] == ("dense", warps, block_rows), (rows, length, source, plan)


@pytest.mark.parametrize("tile_leaves", [0, 2048, 16384, 32768, 65536])
def test_shared_memory_of_several_rows(tile_leaves):
    """All units of a block's rows have a place for their sums, also of longer tiles than rows are."""
    for length, source, step, unit in [
        (1025, "float32", 1, 256),
        (1025, "int8", 2, 256),
        (300, "float64", 2, 256),
        (513, "float64", 1, 256),
        (200, "complex128", 1, 128),
    ]:
        strides = (step * length | 1, step)
        plan = check_plan((1 << 16, length), strides, (1,), source, tuning=f"tile_leaves={tile_leaves}")[0]
        assert plan["kernel"] == "dense" and plan["splits"] == 1, plan
        assert plan["block_rows"] > 1 or tile_leaves, plan
        assert plan["block_rows"] * plan["tile_leaves"] <= 128 * unit, plan


def test_short_last_chunks():
    """Units of a short last chunk are as large as others, but not of sums of 16 bytes."""
    for source, target, unit, short_unit in [
        ("float32", "float32", 128, 512),
        ("int32", "int64", 128, 512),
        ("float32", "float64", 128, 512),
        ("complex32", "complex64", 128, 512),
        ("complex32", "complex128", 128, 128),
        ("float64", "float64", 64, 256),
        ("float32", "int64", 64, 256),
        ("int32", "bool", 64, 256),
    ]:
        for length in (4128, 4129, 4500, 5001, 5120, 5121):
            warps = warps_beyond_a_chunk(length, unit, short_unit)
            plan = odd_rows_plan(1 << 14, length, source, target)
            assert tiles_of(plan) == ("dense", warps, 1, 1024, 1), (source, target, length, plan)


def test_whole_columns():
    """A thread takes whole columns, in vectors if it can, where these are short and blocks of others would be small."""
    for sizes, strides, dims, source, kernel, vector in [
        ((10, 40_000), (80_000, 2), (0,), "bfloat16", "thin", 1),
        ((15, 30_000), (60_000, 2), (0,), "float32", "thin", 1),
        ((16, 30_000), (60_000, 2), (0,), "float32", "columns", 1),
        ((256, 40_000), (80_000, 2), (0,), "float32", "thin", 1),
        ((257, 40_000), (80_000, 2), (0,), "float32", "columns", 1),
        ((10, 1 << 20), (1 << 20, 1), (0,), "float32", "panels", 4),
        ((17, 1 << 20), ((1 << 20) + 1, 1), (0,), "bfloat16", "panels", 8),
        ((16, 1 << 20), ((1 << 20) + 1, 1), (0,), "bfloat16", "thin", 1),
        ((50_000, 30, 16), (480, 16, 1), (1,), "float32", "thin", 4),
        ((50_000, 30, 16), (480, 16, 1), (1,), "bfloat16", "thin", 8),
        ((50_000, 30, 16), (480, 16, 1), (1,), "int8", "thin", 1),
        ((50_000, 100, 16), (1600, 16, 1), (1,), "float32", "panels", 4),
        ((5000, 16, 64), (1024, 64, 1), (1,), "int8", "thin", 1),
        ((5000, 40, 64), (2560, 64, 1), (1,), "int8", "panels", 16),
        ((9, 1 << 20), (1 << 20, 1), (0,), "float64", "panels", 2),
        ((9, 12 << 20), (12 << 20, 1), (0,), "float64", "thin", 2),
        ((2880, 11, 5), (55, 5, 1), (1,), "float32", "thin", 1),
        ((659, 11, 5), (55, 5, 1), (1,), "float32", "columns", 1),
        ((660, 11, 5), (55, 5, 1), (1,), "float32", "thin", 1),
        ((30_000, 500, 3), (1500, 3, 1), (1,), "float32", "thin", 1),
        ((3000, 100, 3), (300, 3, 1), (1,), "float32", "panels", 4),
        ((30_000, 500, 4), (2000, 4, 1), (1,), "float32", "panels", 4),
        ((3, 400, 4, 1000), contiguous((3, 400, 4, 1000)), (0, 2), "bfloat16", "thin", 8),
        ((3, 100, 20, 1000), contiguous((3, 100, 20, 1000)), (0, 2), "bfloat16", "columns", 8),
        ((100_000, 12, 16), (192, 16, 1), (1,), "float32", "thin", 4),
        ((700, 17, 38, 2, 46), contiguous((700, 19, 40, 2, 46)), (1, 3), "float32", "thin", 1),
    ]:
        plan = check_plan(sizes, strides, dims, source)[0]
        assert (plan["kernel"], plan["vector"]) == (kernel, vector), (sizes, source, plan)
        assert kernel != "thin" or plan["thread_elements"] > 8, (sizes, source, plan)


def test_rows_in_nested_dims():
    """Rows in nested dims are as others, single elements too."""
    images, strides = (64, 32, 14, 14), contiguous((64, 32, 14, 14))
    for source, vector in (("float32", 4), ("bfloat16", 1), ("float64", 2)):
        plan = check_plan(images, strides, (0, 2, 3), source)[0]
        assert (plan["kernel"], plan["walk"], plan["vector"]) == ("dense", "nested", vector)
    plan = check_plan(images, (*strides[:2], 30, 1), (0, 2, 3))[0]
    assert (plan["kernel"], plan["walk"], plan["vector"]) == ("dense", "nested", 1)
    plan = check_plan((70_000, 40_000), (40_001, 1), (0, 1), "int8")[0]  # indices do not fit 32 bits
    assert (plan["kernel"], plan["walk"], plan["vector"]) == ("rows", "nested", 1)
    # Fewer elements a leaf, as in dense rows.
    for rows, size, source, kernel, elements in [
        (3000, 22, "float32", "flat", 0),
        (3000, 23, "float32", "dense", 2),
        (3000, 32, "bfloat16", "dense", 2),
        (3000, 33, "float64", "dense", 4),
        (3000, 46, "float32", "dense", 8),
        (3000, 12, "complex128", "dense", 2),
    ]:
        strides = (size * (size + 1), size + 1, 1)
        plan = check_plan((rows, size, size), strides, (1, 2), source)[0]
        assert (plan["kernel"], plan["thread_elements"]) == (kernel, elements), (rows, size, source, plan)


def test_short_rows_in_pieces():
    """Each element is a leaf: in any nested dims, and one step apart if they are many, a warp takes several."""
    for sizes, strides, source, vector, groups in [
        ((100, 5, 9), (90, 18, 1), "float32", 1, 2),
        ((100, 5, 9), (90, 18, 1), "bfloat16", 1, 2),
        ((100, 16, 32), (1024, 64, 1), "float64", 2, 8),
        ((100, 16, 32), (1024, 64, 1), "float32", 4, 4),
        ((100, 16, 32), (1024, 64, 1), "bfloat16", 8, 2),
        ((100, 15, 33), (1024, 64, 1), "int8", 1, 16),
        ((100, 4, 5, 6), (1024, 128, 16, 1), "complex64", 2, 2),
        ((100, 4, 4, 8), (1024, 128, 16, 1), "complex128", 1, 4),
    ]:
        plan = check_plan(sizes, strides, tuple(range(1, len(sizes))), source)[0]
        assert (plan["kernel"], plan["walk"]) == ("flat", "nested"), (sizes, source, plan)
        assert (plan["vector"], plan["row_width"]) == (vector, 32), (sizes, source, plan)
        loads = max(groups, 4 if plan["vector"] * model.itemsize(source) == 16 else 16)
        assert plan["tile_outputs"] == plan["warps"] * (loads // groups), (sizes, source, plan)
    for rows, length, source, kernel in [
        (4000, 128, "float32", "flat"),
        (4000, 129, "float32", "dense"),
        (4000, 128, "int8", "flat"),
        (4000, 64, "float64", "flat"),
        (4000, 65, "float64", "dense"),
        (40, 32, "float32", "flat"),
        (1056, 128, "float32", "flat"),
        (1055, 128, "float32", "dense"),
        (3167, 64, "float64", "dense"),
    ]:
        plan = check_plan((rows, length), (2 * length, 2), (1,), source)[0]
        assert (plan["kernel"], plan["walk"]) == (kernel, "linear"), (rows, length, source, plan)


def test_very_many_rows():
    """More rows than 32 bits count: short ones are a thread's each, and others the general kernel's."""
    for rows, length, source, kernel in [
        ((1 << 31) - 2, 3, "int8", "ring_rows"),
        (1 << 31, 8, "bfloat16", "thin"),
        (1 << 34, 3, "int8", "thin"),
        (1 << 34, 512, "bool", "thin"),
        (1 << 31, 513, "float32", "rows"),
    ]:
        plan = check_plan((rows, length), (0 if length > 500 else length, 1), (1,), source)[0]
        assert plan["kernel"] == kernel and (kernel == "ring_rows" or plan["vector"] == 1), (rows, length, plan)


def test_rows_of_very_many_elements():
    """So many that their units are no 32-bit numbers, one element again and again: the general kernel."""
    for length, kernel in ((1 << 32, "expanded"), (1 << 38, "dense"), ((1 << 39) - 1000, "rows"), (1 << 42, "rows")):
        assert check_plan((length,), (0,), (0,))[0]["kernel"] == kernel


def check_plans(cases, dim, *keys, target=None, **same):
    """Plans of contiguous inputs: a case (sizes, dtype, *values) has its own values of the keys, and all the same."""
    for sizes, source, *values in cases:
        plan = check_plan(sizes, contiguous(sizes), (dim,), source, target)[0]
        wanted = same | dict(zip(keys, values, strict=True))
        assert {key: plan[key] for key in wanted} == wanted, (sizes, source, plan)


def test_clusters():
    """Rows of more than a block takes are cut into clusters of small blocks; columns' splits are some if few."""
    rows = [
        ((1, 1 << 17), "float32", 2048, 8),
        ((1, 1 << 14), "float32", 512, 4),
        ((1, 1 << 18), "float32", 512, 1),
        ((4, 1 << 15), "bfloat16", 1024, 4),
        ((16, 1 << 15), "bfloat16", 4096, 1),
        ((1, 1 << 19), "int8", 8192, 8),
        ((12, 100_000), "float32", 2048, 7),
        ((64, 128_256), "bfloat16", 2048, 8),
        ((64, 128_256), "float32", 4096, 4),  # two blocks a multiprocessor
        ((4096, 50_256), "bfloat16", 1024, 7),
        ((256, 32_768), "float32", 512, 8),
        ((700, 20_000), "float32", 512, 5),
        ((60, 45_000), "float32", 1024, 6),
        ((100, 100_000), "float32", 2048, 7),
        ((64, 32_768), "float32", 512, 8),
        ((80, 32_768), "float32", 4096, 1),  # clusters would not all begin before the kernel before ends
        ((128, 32_000), "float32", 4096, 1),
        ((100, 20_000), "float32", 512, 5),
        ((16, 200_000), "float32", 4096, 7),
        ((4, 200_000), "float32", 1024, 1),  # few large blocks
        ((20, 250_000), "float32", 2048, 1),  # some multiprocessors would have two
        ((16, 300_000), "float32", 2048, 1),  # more than eight blocks
    ]
    columns = [
        ((1 << 14, 4096), "float32", 512, 4),
        ((1 << 14, 4096), "float64", 1024, 2),
        ((1 << 14, 4096), "bfloat16", 512, 4),  # of one line each; of two they would be eight, too many
        ((1 << 14, 4000), "bfloat16", 256, 1),  # where lines are not whole
        ((1 << 16, 1024), "bfloat16", 256, 1),
        ((1 << 14, 6144), "float32", 256, 1),
        ((16_000, 4096), "int32", 128, 1),  # 1024 tiles, too many
        ((1000, 512), "float32", 128, 4),
        ((2048, 4096), "float32", 128, 4),
    ]
    odd_rows = [
        ((64, 50_257), "bfloat16", 1024, 7),
        ((64, 50_257), "int8", 1024, 7),
        ((100, 50_257), "bfloat16", 2048, 4),
        ((4096, 50_257), "bfloat16", 2048, 4),
        ((400, 100_001), "int8", 2048, 7),
        ((64, 150_001), "bfloat16", 4096, 5),
        ((64, 20_001), "bfloat16", 4096, 1),
        ((250, 50_257), "float8_e5m2", 2048, 4),
        ((300, 50_257), "float8_e5m2", 8192, 1),  # more than are early
    ]
    for walk, dim, cases in (("dense", 1, rows), ("shifted", 1, odd_rows), ("linear", 0, columns)):
        check_plans(cases, dim, "tile_leaves", "cluster", walk=walk)
    assert check_plan((1, 1 << 17), (1 << 17, 1), (1,), tuning="cluster=1")[0]["joins"]
    assert not check_plan((700, 20_000), (20_000, 1), (1,), tuning="cluster=1")[0]["joins"]  # whole rows


def test_splits_of_large_sums():
    """As many as one block joins at most; half as many of eight bytes where elements have fewer."""
    for target, cases in {
        None: [
            ((1, 1 << 28), "float32", 8192),
            ((1, 1 << 28), "int64", 8192),
            ((1, 1 << 28), "int32", 4096),
            ((1, 1 << 30), "bfloat16", 8192),
        ],
        "float64": [((1, 1 << 28), "float32", 4096), ((1, 1 << 28), "float64", 8192)],
        "complex128": [((1, 1 << 28), "complex64", 4096)],
    }.items():
        check_plans(cases, 1, "splits", target=target, kernel="dense")


def test_tiles_of_columns():
    """Wide sums, and float8, in as large tiles as leave two a multiprocessor; leaves of few elements in one batch."""
    cases = [
        ((4096, 4096), "int32", 256, 256, 1),
        ((2048, 8192), "int32", 256, 512, 1),
        ((4096, 8192), "float8_e5m2", 256, 128, 2),
        ((512, 1 << 15), "float8_e5m2", 256, 512, 1),
        ((3000, 8192), "float8_e5m2", 512, 64, 1),  # lanes of unequal lengths
        ((1 << 14, 8192), "float8_e5m2", 512, 256, 2),  # large
        ((512, 1 << 15), "bfloat16", 256, 512, 2),
        ((1024, 1 << 15), "bfloat16", 256, 512, 1),
        ((2048, 1 << 15), "bfloat16", 512, 256, 1),
        ((4096, 1 << 15), "bfloat16", 256, 512, 4),
        ((2048, 1 << 14), "float32", 256, 512, 4),
    ]
    check_plans(cases, 0, "tiles", "tile_leaves", "batches", kernel="panels")


def test_columns_in_runs():
    """Whole columns of two bytes an element, about as many tiles as run at a time: in runs, and small blocks."""
    cases = [
        ((1024, 1 << 16), "float16", 4, 512, True),
        ((2048, 1 << 16), "bfloat16", 4, 512, True),
        ((4096, 57_344), "bfloat16", 4, 512, True),
        ((1000, 1 << 16), "bfloat16", 4, 512, True),
        ((600, 1 << 16), "bfloat16", 8, 512, False),  # most leaves have an element less than others
        ((512, 1 << 16), "bfloat16", 8, 512, False),
        ((1024, 1 << 15), "bfloat16", 8, 512, False),  # half as many
        ((8192, 1 << 16), "bfloat16", 8, 64, False),
        ((1024, 1 << 16), "float32", 8, 512, False),
        ((1024, 1 << 16), "int16", 8, 512, False),
    ]
    inside = [((64, 4096, 1024), "bfloat16", 4, 512, True)]
    for dim, some in ((0, cases), (1, inside)):
        check_plans(some, dim, "warps", "tile_leaves", "runs", kernel="panels")
    # Sums of eight bytes have no such kernels.
    check_plans([((64, 4096, 1024), "bfloat16", False)], 1, "runs", target="float64", kernel="panels")


def test_late_joins():
    """Of large inputs, joins of integers, and of four bytes in twice the width, begin when blocks have read theirs."""
    cases = [
        ((1 << 20, 64), "int8", True),
        ((1 << 20, 64), "bool", True),
        ((1 << 20, 64), "int32", True),
        ((1 << 20, 64), "int64", True),
        ((1 << 20, 64), "float32", False),
        ((1 << 20, 64), "float8_e5m2", False),
        ((1 << 17, 64), "int8", False),  # small
        ((3320, 7122), "int8", False),  # a cluster
        ((4096, 16_384), "int8", False),  # whole
    ]
    check_plans(cases, 0, "late", kernel="panels")
    wide = [
        ((1 << 20, 64), "float32", True),
        ((1 << 14, 4096), "float32", True),
        ((1 << 20, 64), "bfloat16", False),
    ]
    check_plans(wide, 0, "late", target="float64", kernel="panels")


def test_columns_in_short_tiles():
    """Of large columns, and where whole ones would leave some multiprocessors with less than others."""
    cases = [
        ((8192, 1 << 15), "float32", 64),
        ((4096, 1 << 15), "float32", 64),
        ((4096, 1 << 17), "int8", 512),
        ((1024, 1 << 18), "float32", 512),  # leaves of two elements
        ((1 << 19, 512), "float32", 1024),  # rows close to each other
        ((50_257, 1024), "float32", 64),
        ((4096, 27_000), "float32", 64),
        ((113_961, 1024), "float16", 64),  # the last chunk ragged
        ((1_206_396, 64), "float32", 64),  # few columns
        ((4096, 20_000), "int32", 64),
        ((4096, 16_384), "int32", 128),  # sums wider than elements
        ((1 << 14, 20_480), "float8_e5m2", 128),
        ((4096, 10_000), "bfloat16", 128),  # few bytes
        ((1536, 38_400), "bfloat16", 64),  # half as many bytes, but only two tiles a column
        ((4096, 9600), "bfloat16", 128),
        ((4096, 16_384), "float32", 512),  # even
    ]
    check_plans(cases, 0, "tile_leaves", kernel="panels", warps=8)


def test_columns_in_small_blocks():
    """Where tiles are more than run at a time in large blocks, but not in small ones; also longer tiles for that."""
    cases = [
        ((20_000, 2048), "float32", 128, 4),
        ((8579, 6144), "float32", 256, 4),
        ((200_000, 1024), "float32", 512, 4),
        ((4096, 24_576), "float32", 256, 4),
        ((9103, 3072), "complex64", 256, 4),
        ((10_046, 8192), "bfloat16", 128, 4),
        ((19_019, 2048), "bfloat16", 64, 4),
        ((50_257, 1024), "float32", 64, 8),  # three quarters of the places, and a few more
        ((10_000, 4096), "float8_e5m2", 64, 4),  # float8 some more
        ((460, 86_080), "int8", 512, 8),  # leaves of an element
    ]
    check_plans(cases, 0, "tile_leaves", "warps", kernel="panels")


def test_ragged_columns():
    """Where leaves have an element less than others, one batch a thread; float8 has more tiles, or small blocks."""
    for source in ("bfloat16", "float16", "float8_e5m2"):
        for rows, ragged in ((700, True), (1000, True), (4000, True), (4096, False), (8192, False)):
            plan = check_plan((rows, 1 << 16), (1 << 16, 1), (0,), source)[0]
            assert plan["kernel"] == "panels" and (plan["batches"] == 1) == ragged, (rows, source, plan)
    tiles = [check_plan((1 << 14, 1 << 13), (1 << 13, 1), (0,), s)[0]["tiles"] for s in ("int8", "float8_e5m2")]
    assert tiles == [256, 512]
    assert check_plan((1 << 20, 64), (64, 1), (0,), "float8_e5m2")[0]["tiles"] == 256
    for rows, ragged in ((20_000, True), (20_480, False), (17_000, False), (33_000, False)):  # the last of some chunks
        for source in ("bfloat16", "float8_e5m2"):
            plan = check_plan((rows, 4096), (4096, 1), (0,), source)[0]
            assert (plan["batches"] == 1 and plan["units"] == 32) == ragged, (rows, source)
    for sizes, warps in (((10_000, 4096), 4), ((16_384, 8192), 8), ((64, 4096, 1024), 8)):
        plan = check_plan(sizes, contiguous(sizes), (len(sizes) - 2,), "float8_e5m2")[0]
        assert plan["warps"] == warps and (plan["tiles"] > 4 * 132) == (warps == 4), sizes


def test_few_rows():
    """Single elements where results are as large as what is read and a vector's are no whole granule; else vectors."""
    single = [(2, "int8"), (8, "int8"), (4, "int16"), (2, "int32"), (3, "bool", "int64"), (4, "float8_e5m2", "float32")]
    single += [(2, "int8", "int8")]  # rounded by the join
    vectors = [(9, "int8"), (8, "int16"), (4, "int32"), (2, "float32"), (4, "bfloat16")]
    for cases, is_single in ((single, True), (vectors, False)):
        for rows, *dtypes in cases:
            plan = check_plan((rows, 1 << 20), (1 << 20, 1), (0,), *dtypes)[0]
            assert plan["kernel"] == ("thin" if rows <= 8 else "panels"), (rows, dtypes)
            assert (plan["vector"] == 1) == is_single, (rows, dtypes)


def test_streamed_inputs():
    """The L2 lets an input of over a quarter of its size go first, but for results that are as large."""
    quarter = (60 << 20) // 4
    for sizes, dims, source, streams in [
        ((quarter // 4,), (0,), "float32", False),
        ((quarter // 4 + 1,), (0,), "float32", True),
        ((1 << 20, 100), (1,), "float32", True),
        ((1 << 21, 32), (1,), "bfloat16", True),
        ((1 << 22, 8), (1,), "float32", False),
        ((8, 1 << 23), (0,), "float32", False),
        ((64, 1 << 20), (0,), "bfloat16", True),
    ]:
        assert check_plan(sizes, contiguous(sizes), dims, source)[0]["streams"] == streams, (sizes, source)
    expanded = check_plan((1 << 14, 4096), (0, 1), (0,))[0]  # 16 KiB are read
    assert not expanded["streams"]
    for keep, streams in ((1, False), (2, True)):
        for n in (1000, 1 << 24):
            assert check_plan((n,), (1,), (0,), tuning=f"keep={keep}")[0]["streams"] == streams


def test_columns_of_whole_lines():
    """A warp reads neighbouring rows that are a line each; of wider rows a thread takes several batches."""
    for source, columns in (("bfloat16", 64), ("float32", 32), ("int64", 16)):
        for rows in (1 << 18, 1 << 20, 1 << 22):
            plan = check_plan((rows, columns), (columns, 1), (0,), source)[0]
            assert plan["kernel"] == "panels" and plan["batches"] == 1 and plan["tile_leaves"] <= 256
        for pitch, width in ((2 * columns, columns), (4 * columns, 4 * columns)):  # with gaps; wider
            plan = check_plan((1 << 20, width), (pitch, 1), (0,), source)[0]
            assert plan["kernel"] == "panels" and (plan["batches"] > 1 or source == "int64")


def test_narrow_columns():
    """Dense columns of any small width are read as aligned pieces; others, and single elements, are not."""
    for width in (2, 3, 7, 8, 9, 64, 100, 255, 256):
        for length in (513, 4095, 4096, 4097, 16 * 512 - 1, 16 * 512, 16 * 512 + 1, 1 << 20):
            for source in ("float32", "bfloat16", "int8", "float64", "bool"):
                if source == "float64" and width > 192:
                    continue
                for tuning in ("", "batches=8", "tile_leaves=1", "tile_leaves=64,batches=4", "warps=1"):
                    check_plan((length, width), (width, 1), (0,), source, tuning=f"kernel=narrow,{tuning}".strip(","))
        large = (1 << 28) // width
        lines = width in (64, 256)  # rows are whole lines of float32
        assert check_plan((large, width), (width, 1), (0,))[0]["kernel"] == ("panels" if lines else "narrow")
        columns = width in (2, 3, 7, 9)  # neither aligned nor large
        assert check_plan((1000, width), (width, 1), (0,))[0]["kernel"] == ("columns" if columns else "panels")
        for length in (1, 2, 9, 17, 511, 512):
            check_plan((length, width), (width, 1), (0,), tuning="kernel=narrow" if length > 1 else "")
    for sizes, strides, dims in [((5, 700, 48), (33600, 48, 1), (1,)), ((5, 701, 4), (2804, 4, 1), (1,))]:
        assert check_plan(sizes, strides, dims, tuning="kernel=narrow")[0]["kernel"] == "narrow"
    others = [((600, 7), (8, 1), (0,)), ((600, 7), (14, 2), (0,)), ((5, 701, 3), (2103, 3, 1), (1,))]
    for sizes, strides, dims in others:
        assert check_plan(sizes, strides, dims)[0]["kernel"] == "columns"
    # Warps that take a run in fewer rounds than four, but not so many that the tiles are no longer run at a time.
    for length, width, source, warps in [
        (1 << 20, 100, "float32", 5),
        (1 << 23, 7, "float32", 6),
        (671_088, 100, "bfloat16", 4),
        (932_067, 72, "bfloat16", 6),
    ]:
        plan = check_plan((length, width), (width, 1), (0,), source)[0]
        assert plan["warps"] == warps and plan["tiles"] <= 132 * (24 // warps), (length, width, source)
    assert check_plan((4097, 64), (64, 1), (0,), tuning="vector=1")[0]["kernel"] == "columns"
    assert check_plan((4097, 64), (64, 1), (0,), tuning="kernel=columns")[0]["kernel"] == "columns"


def test_columns_are_not_split_for_nothing():
    """Where there are columns enough for all multiprocessors, a block takes all leaves if it can."""
    for sizes, dims in [((4096, 128, 128), (1,)), ((512, 65536), (0,)), ((300, 500, 256), (1,))]:
        plan = check_plan(sizes, contiguous(sizes), dims)[0]
        assert plan["kernel"] == "panels" and plan["splits"] == 1 and not plan["joins"]


@pytest.mark.parametrize(
    "source,target", [*PAIRS, ("float8_e5m2", "float64"), ("float32", "float64"), ("int32", "int64")]
)
def test_columns_of_very_many_rows(source, target):
    """However many rows there are: no more splits than a grid is deep, and no more sums than a block has memory for."""
    kernels = set()
    for columns in (16, 64, 65, 257, 4097):
        for least in (*(1 << power for power in range(22, 34)), 65535 * 32768):  # the last: all that a grid is deep
            for more in (0, 1):
                rows = least + more
                if rows * columns * model.itemsize(source) > 1 << 40:
                    continue
                for tuning in ("", "warps=1", "tile_leaves=1", "batches=1", "width=32"):
                    kernels.add(check_plan((rows, columns), (columns, 1), (0,), source, target, tuning)[0]["kernel"])
    assert ("panels" in kernels) == (model.itemsize(source) < 16 and target != "bool")


def test_aligned_columns_of_very_many_batches():
    """More batches than a grid is deep are no panels, and a thread takes one batch of leaves: no kernel takes more."""
    for length in (300, 1100, 4096, 70_000):
        for tuning in ("", "batches=4", "kernel=columns,batches=4"):
            plan = check_plan((70_000, length, 32), (64 * length, 64, 1), (1,), tuning=tuning)[0]
            assert plan["kernel"] == "columns" and plan["vector"] == 4 and plan["batches"] == 1
            units = plan["tile_leaves"] // (32 // plan["warp_columns"] * (8 // plan["thread_elements"]))
            assert units * plan["warp_columns"] <= 512  # vectors of sums that a block keeps


def test_more_processors_never_change_the_leaves():
    """The number of multiprocessors moves tiles about, and nothing else: the same leaves, outputs and bytes."""
    for sizes, dims in GRID:
        plans = [check_plan(sizes, contiguous(sizes), dims, tuning=f"multiprocessors={n}")[0] for n in PROCESSORS]
        for key in ("outputs", "leaves", "bytes"):
            assert len({plan[key] for plan in plans}) == 1


@pytest.mark.parametrize(
    "tuning", ["speed=9", "warps=3", "warps=64", "vector=x", "kernel=best", "tile_leaves=-1", "warps", "kernel="]
)
def test_wrong_tuning(tuning):
    """A tuning that means nothing is refused by name."""
    with pytest.raises(Exception, match=f"tuning.*{tuning.split('=')[0]}"):
        torch.ops.gpureduce._plan(*view_arguments((10, 10), (10, 1), (1,), "float32", "float32", tuning))
