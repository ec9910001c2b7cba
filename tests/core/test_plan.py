"""Plans for CUDA, walked without a GPU: every leaf of every output exactly once, within limits, for any SM count."""

import functools
import itertools
import json
import math
import pathlib
import random
import re

import numpy as np
import pytest
import torch

import model
from support import dtype_of, invalid_argument

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROCESSORS = [1, 7, 66, 132, 264]
MOST_TILES = 50_000  # plans of more tiles are checked by their description only
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
KERNELS = {"thin", "columns", "ring_rows", "expanded", "dense", "flat", "panels"}
MOST_CANDIDATES = 96  # of a problem; most have about ten

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


def blocks(plan):
    """The most blocks that a plan may have: one a tile; of more split rows than a grid is deep, some that have none."""
    deep = plan["kernel"] == "dense" and plan["splits"] > 1 and plan["outputs"] > DENSE_DEPTH
    return plan["splits"] * -(-plan["outputs"] // DENSE_DEPTH) * DENSE_DEPTH if deep else plan["tiles"]


def check_panels(plan, source, target, what):
    """A block has whole units for its warps, whose sums fit its shared memory, and a thread joins few of them."""
    leaves = 32 // plan["warp_columns"] * (8 // plan["thread_elements"])  # of a unit
    units, warps, parts, side = plan["units"], plan["warps"], plan["parts"], plan["warp_columns"] * plan["vector"]
    assert plan["tile_leaves"] == units * leaves and units >= warps and units & (units - 1) == 0, what
    assert warps & (warps - 1) == 0 and warps <= 8, what
    assert plan["tile_leaves"] <= 4096, what  # so that 16 bits, of 8 rows a leaf, are added up in 32
    if plan["walk"] == "spread":
        assert plan["tile_outputs"] <= side, what
    else:
        # Wherever shifted columns begin in a vector, a tile's lie within those that its threads read.
        assert plan["tile_outputs"] == side - (plan["vector"] - 1 if plan["walk"] == "shifted" else 0), what
    # A row of sums for each unit; for each warp where it adds its own.
    order_free = source in SMALL_INTEGERS or source.startswith(("int", "uint")) or target == "bool"
    assert plan["rows"] == (warps if order_free else units), what
    assert plan["rows"] * side * lane_bytes(source, target) <= 32 * 1024, what
    assert parts & (parts - 1) == 0 and parts <= min(32, plan["rows"]) and plan["rows"] // parts <= 32, what
    assert plan["grid"] == plan["tiles"] and plan["splits"] <= 65535, what


def check_dense(plan, what):
    """A block takes a part of one row, or whole rows, whose units all have a place among its sums."""
    assert plan["warps"] <= (8 if plan["walk"] == "shifted" else 16), what
    assert plan["tile_outputs"] == 1 or plan["splits"] == 1, what


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
    ring = plan.get("ring_bytes", 0)
    assert ring <= block << 10 and RING_BLOCKS * (ring + RESERVED) <= shared << 10, what
    assert plan["early"] == bool(early) and (early or plan["kernel"] != "ring_rows"), what
    assert clusters or plan["cluster"] == 1, what


def plan_of(sizes, strides, dims, source="float32", target=None, tuning="", device="H200, 9.0"):
    """The description of a plan."""
    view = view_arguments(sizes, strides, dims, source, target or model.natural_result(source))
    return json.loads(torch.ops.gpureduce._plan(*view, tuning, device_text(device)))


def count_candidates(sizes, strides, dims, source="float32", target=None, tuning="", device="H200, 9.0"):
    """How many plans are proposed."""
    view = view_arguments(sizes, strides, dims, source, target or model.natural_result(source))
    return len(torch.ops.gpureduce._candidates(*view, tuning, device_text(device)))


def candidates(*view, tuning="", **more):
    """The descriptions of all plans that are proposed."""
    for k in range(count_candidates(*view, tuning=tuning, **more)):
        yield plan_of(*view, tuning=f"{tuning},candidate={k}".strip(","), **more)


def check_all(sizes, strides, dims, source="float32", target=None, tuning="", device="H200, 9.0"):
    """Checks the plan that is taken and each that is proposed; returns the names of their kernels, and that plan."""
    view, kernels = (sizes, strides, dims, source, target), set()
    count = count_candidates(*view, tuning, device)
    assert 1 <= count <= MOST_CANDIDATES, (view, count)
    for k in range(count):
        forced = f"{tuning},candidate={k}".strip(",")
        kernels.add(check_plan(*view, forced, device)[0]["kernel"])
    passes = {min(2, len(plan_of(*view, f"{tuning},candidate={k}".strip(","), device)["joins"])) for k in range(count)}
    assert 2 not in passes or passes == {2}, "two passes join, where one could"
    plan, walked = check_plan(*view, tuning, device)
    assert plan["kernel"] in kernels, view
    return kernels, plan, walked


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
    check_device(plan, device, what)
    if plan["kernel"] == "panels":
        check_panels(plan, source, target, what)
    if plan["kernel"] == "dense":
        check_dense(plan, what)
    if plan["kernel"] == "thin":
        assert plan["tile_outputs"] == 32 * plan["warps"] * plan["runs"] * plan["vector"], what
        assert plan["thread_elements"] * plan["runs"] * plan["vector"] <= 512 or plan["runs"] == 1, what

    # An output's splits that are a cluster leave nothing to join.
    assert plan["cluster"] == 1 or (plan["cluster"] == plan["splits"] <= 8 and not plan["joins"]), what
    assert plan["cluster"] == 1 or plan["kernel"] == "dense", what

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
    assert plan["splits"] <= max(1, leaves), what

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
    assert 1 + np.count_nonzero(~same) == plan["splits"] == -(-leaves // size), what

    # A partial sum stands at output * splits + split (a row's side by side) or split * outputs + output (neighbouring
    # columns' side by side): one place for each, and in an output's order of leaves.
    if plan["splits"] > 1:
        split = leaf // size
        by_rows, by_columns = first * plan["splits"] + split, split * outputs + first
        assert (partial == by_rows).all() or (partial == by_columns).all(), f"partial sums out of order: {what}"
    return plan, True


@pytest.mark.parametrize("processors", [1, 132])
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
                check_all((n, c, h, w), strides, dims, source)


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


def random_dtypes(rng):
    """A source, and a result of it or None for its own."""
    source, target = rng.choice(model.DTYPES), rng.choice([None, None, *model.DTYPES])
    if source in model.COMPLEX and target not in (None, "bool", *model.COMPLEX):
        target = None  # such a call is planned as one of the real parts
    return source, target


@pytest.mark.parametrize("processors", PROCESSORS)
def test_random_shapes(processors):
    """Random views and dtypes for each number of multiprocessors: all that is proposed is right, and each kernel is."""
    rng = random.Random(processors)
    proposed, taken, walked, split = set(), set(), 0, 0
    for _ in range(600):
        sizes, strides, dims = random_case(rng)
        source, target = random_dtypes(rng)
        kernels, plan, all_of_it = check_all(sizes, strides, dims, source, target, f"multiprocessors={processors}")
        proposed |= kernels
        taken.add(plan["kernel"])
        walked += all_of_it
        split += plan["splits"] > 1
    assert proposed == KERNELS and len(taken) >= 6 and walked > 350 and split > 20


@pytest.mark.parametrize("device", DEVICES)
def test_devices(device):
    """Plans for real GPUs are as complete, and ask for nothing that these do not have."""
    rng = random.Random(3)
    kernels, clusters = set(), 0
    for _ in range(150):
        sizes, strides, dims = random_case(rng)
        kernels |= check_all(sizes, strides, dims, rng.choice(SOURCES), device=device)[0]
    for rows, length in itertools.product((1, 9, 2000, 1 << 20), (1, 2, 31, 33, 64, 100, 129, 255, 300, 511, 512)):
        for source, gap in itertools.product(("int8", "bfloat16", "float32"), (0, 1, length // 5)):
            for plan in candidates((rows, length), (length + gap, 1), (1,), source, device=device):
                check_device(plan, device, f"{rows} x {length}, {gap}, {source}: {plan}")
                kernels.add(plan["kernel"])
    for sizes, dims in [((n, 1 << k), (d,)) for n in (1, 20, 300, 5000) for k in (9, 13, 17, 20) for d in (0, 1)]:
        for plan in candidates(sizes, contiguous(sizes), dims, device=device):
            clusters += plan["cluster"] > 1
    _, _, _, _, early, has_clusters = DEVICES[device]
    assert kernels == (KERNELS if early else KERNELS - {"ring_rows"}) and (clusters > 0) == bool(has_clusters)


# Views for which those variants are proposed that random ones rarely meet: (sizes, strides, dims).
UNUSUAL = [((4096, 2), (2, 1), (0,)), ((2, 4096), (4096, 1), (0,)), ((300, 4096), (4096, 1), (0,))]
UNUSUAL += [((8, 4096), (4096, 1), (0,)), ((2, 3, 4096), (16 * 4096, 4096, 1), (0, 1)), ((64, 64), (128, 2), (1,))]
UNUSUAL += [((20, 20, 4096), (64 * 4096, 4096, 1), (0, 1)), ((64, 6, 64), (16 * 1024, 1024, 16), (1, 2))]
UNUSUAL += [((64, 9, 5000), (80_000, 8000, 1), (1, 2)), ((64, 3, 3, 500), (32_000, 8000, 1600, 2), (1, 2, 3))]
UNUSUAL += [((64, 2, 3, 160), (32_000, 4800, 640, 1), (1, 2, 3)), ((64, 2, 160), (2048, 512, 1), (1, 2))]
UNUSUAL += [((1500, 4096), (4096, 1), (0,)), ((600, 4096), (4096, 1), (0,)), ((3, 4099), (4099, 1), (0,))]
UNUSUAL += [((4, 5, 6, 64), (32_000, 4800, 640, 1), (0, 1, 2)), ((64, 5, 6, 160), (32_000, 4800, 640, 1), (1, 2, 3))]


@pytest.mark.parametrize("source", ["float32", "bfloat16", "int8", "float64", "complex64", "complex128", "float8_e5m2"])
def test_every_variant_is_proposed(source):
    """The table of what is compiled has no kernel that no problem asks for, and nothing else is proposed."""
    target = model.natural_result(source)
    compiled, converted = (  # float8 in float64 is converted at run time, as very large views are
        [tuple(v) for v in json.loads(torch.ops.gpureduce._variants(*map(dtype_of, pair)))]
        for pair in ((source, target), ("float8_e5m2", "float64"))
    )
    table, rng, missing = {*compiled, *converted}, random.Random(7), set(compiled)
    assert len(missing) == len(compiled)
    for i in range(3000):
        view = UNUSUAL[i] if i < len(UNUSUAL) else random_case(rng)
        proposed = {tuple(plan["variant"]) for plan in candidates(*view, source, target)}
        assert proposed <= table, (view, proposed - table)
        missing -= proposed
        if not missing:
            return
    assert not missing


def test_few_candidates():
    """A choice is quick: a problem has about ten plans, and one kernel has a few."""
    rng, counts, of_kernel = random.Random(6), [], 0
    for _ in range(400):
        sizes, strides, dims = random_case(rng)
        rows = torch.ops.gpureduce._candidates(*view_arguments(sizes, strides, dims, "float32", "float32"))
        counts.append(len(rows))
        of_kernel = max(of_kernel, int(rows[:, 0].int().bincount().max()))
    assert sum(counts) / len(counts) < 14 and of_kernel <= 64


def measured_choice():
    """A function that says which of some plans is taken, from csrc/core/plan/data by code of its own."""
    text = (ROOT / "csrc" / "core" / "plan" / "data" / "h200.inc").read_text()
    nodes = [(float(v), int(f), int(r)) for v, f, r in re.findall(r"([-+.\de]+) (\d+) (\d+)(?=[,\n])", text)]
    ends = list(itertools.accumulate(int(count) for count in re.findall(r"^tree (\d+)$", text, re.MULTILINE)))
    assert ends[-1] == len(nodes) and len(ends) > 10

    def guess(known):
        total = np.float32(0)
        for begin in [0, *ends[:-1]]:
            at = begin
            while nodes[at][1] != 255:
                at += 1 if known[nodes[at][1]] <= np.float32(nodes[at][0]) else nodes[at][2]
            total += np.float32(nodes[at][0])
        return total

    return lambda rows: int(np.argmin([guess(known) for known in rows.numpy()]))


def test_the_plan_is_the_one_that_was_measured_fastest():
    """What is taken is what the data say, read here by other code."""
    choose, rng, others = measured_choice(), random.Random(7), 0
    for _ in range(300):
        sizes, strides, dims = random_case(rng)
        source = rng.choice(SOURCES)
        view = view_arguments(sizes, strides, dims, source, model.natural_result(source))
        best = choose(torch.ops.gpureduce._candidates(*view))
        others += best > 0
        assert plan_of(sizes, strides, dims, source) == plan_of(
            sizes, strides, dims, source, tuning=f"candidate={best}"
        )
    assert others > 100


def test_remembered_plans():
    """A plan of another address, dtype, device or divisor is not taken for this one's."""
    sizes, strides, dims = (3000, 64), (64, 1), (1,)
    for _ in range(2):
        for source, device in itertools.product(("float32", "bfloat16", "int8"), DEVICES):
            check_plan(sizes, strides, dims, source, device=device)
        view = view_arguments(sizes, strides, dims, "bfloat16", "bfloat16")
        aligned, odd = (json.loads(torch.ops.gpureduce._plan(*view, "", "", address)) for address in (0, 2))
        assert aligned["vector"] > odd["vector"]


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
    """The dims with more than one element, in the contract's order."""
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
    for _ in range(4_000):
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
    assert min(beyond.values()) > 20, beyond


def test_more_than_2_32_tiles():
    """Tiles are numbered in 64 bits."""
    rows = 2_147_483_646
    plan, _ = check_plan((rows, 200_000), (0, 1), (1,))
    assert plan["tiles"] > 1 << 32 and plan["kernel"] == "dense" and plan["outputs"] == rows


def test_too_many_partial_sums():
    """An output's partial sums are numbered in 32 bits; no memory holds as many."""
    view = view_arguments((1 << 29, 1 << 20), (0, 2), (0, 1), "float32", "float32")
    with pytest.raises(invalid_argument(), match="too many elements"):
        torch.ops.gpureduce._plan(*view)


def test_grids_of_joins():
    """Every result of a pass is a block's, however many there are."""
    plan, _ = check_plan((1 << 26, 1 << 20), (0, 1), (0, 1), "int8")
    counts = [plan["splits"]]
    for fan, (x, y, z) in zip(plan["joins"], plan["join_grids"], strict=True):
        counts.append(-(-counts[-1] // fan))
        assert x == 1 and y <= 65535 and z <= 65535 and counts[-1] <= y * z < counts[-1] + z, plan
    assert plan["join_grids"][0][2] > 1, "the first pass has few results"


@pytest.mark.parametrize("most", [1, 3])
def test_forced_grids(most):
    """Kernels whose blocks take tile after tile have as few blocks as they are told."""
    rng = random.Random(2)
    for _ in range(300):
        sizes, strides, dims = random_case(rng)
        plan, _ = check_plan(sizes, strides, dims, rng.choice(SOURCES), None, f"grid={most}")
        if plan["kernel"] in ("dense", "flat", "panels"):  # which always have a block a tile
            assert plan["grid"] == blocks(plan)
        else:
            assert plan["grid"] <= most


def test_lengths_around_boundaries():
    """Rows and columns of every length around lanes, chunks and tiles."""
    for length in [
        *range(1, 70),
        *(b + d for b in (128, 256, 512, 1024, 2048, 4096, 8192, 65536, 1 << 20) for d in (-1, 0, 1)),
    ]:
        for others in (1, 2, 3, 31, 33, 1000):
            for source in ("float32", "int8"):
                check_all((others, length), (length, 1), (1,), source)
                check_all((length, others), (others, 1), (0,), source)


def readings(sizes, strides, dims, source="float32"):
    """How the plans that are proposed read: {(walk, whether in vectors)}."""
    plans = candidates(sizes, strides, dims, source)
    return {(plan["walk"], plan["vector"] > 1) for plan in plans}


def test_both_ways():
    """Where 128 bytes hold neighbours of an output and of other outputs, kernels of rows and of columns propose."""

    def ways(sizes, dims, source="float32", strides=None):
        plans = candidates(sizes, strides or contiguous(sizes), dims, source)
        return {plan["by_columns"] for plan in plans}

    for sizes, dims in [((5000, 2), (1,)), ((300, 9, 2), (0, 2)), ((1000, 32), (1,)), ((1000, 32), (0,))]:
        assert ways(sizes, dims) == {True, False}, (sizes, dims)
    assert ways((5000, 128), (0,), "int8") == ways((5000, 64), (1,), "bfloat16") == {True, False}
    assert ways((5000, 33), (1,)) == ways((5000, 65), (1,), "bfloat16") == ways((64, 128256), (1,)) == {False}
    assert ways((5000, 33), (0,)) == ways((5000, 129), (0,), "int8") == ways((64, 128256), (0,)) == {True}
    assert ways((5000, 9), (1,), strides=(9, 0)) == {True}  # one element many times has no neighbours


def test_alignment_bounds_the_vectors():
    """Elements with gaps are loaded one by one. Dense, unaligned ones may also be read in shifted or spread vectors."""
    apart = [((9, 4096), (8192, 2), (1,)), ((64, 30, 64), (64 * 31 + 1, 64, 1), (0, 1)), ((600, 7), (14, 2), (0,))]
    for sizes, strides, dims in apart:
        assert {vectors for _, vectors in readings(sizes, strides, dims)} == {False}
    for sizes, dims in [((8, 4097), (1,)), ((1 << 17, 1001), (0,)), ((4097, 2049), (0,))]:
        for source in ("bfloat16", "int8"):
            walk = "dense" if dims == (1,) else "linear"
            assert readings(sizes, contiguous(sizes), dims, source) == {("shifted", True), (walk, False)}
    for source in ("float64", "int64", "float32", "int32", "complex64", "complex32", "uint32"):
        assert readings((4097, 2049), (2049, 1), (0,), source) == {("spread", True), ("linear", False)}
    for sizes, source in [((1 << 17, 1001), "complex128"), ((1024, 5001), "int8"), ((90_000, 3), "bfloat16")]:
        assert readings(sizes, contiguous(sizes), (0,), source) == {("linear", False)}
    assert readings((8, 4097), (4097, 1), (1,)) == {("dense", False)}  # single words are as fast
    assert readings((8, 4096), (4096, 1), (1,)) == {("dense", True)}
    assert ("linear", True) in readings((4096, 64), (64, 1), (0,), "bfloat16")


@pytest.mark.parametrize("source", ["bfloat16", "int8", "float8_e5m2"])
def test_rows_at_odd_addresses(source):
    """Rows of any length around chunks, a few and many of them: whole chunks, rests of few elements, and others."""
    short = (513, 1000, 1023, 1025, 2047)
    for length in (*short, 2049, 4095, 4097, 4128, 4129, 8193, 8224, 8225, 50_257, (1 << 20) + 1, (1 << 24) + 1):
        for rows in (2, 3, 133, 1000, 16_384):
            sizes, strides = (rows, length), (length + length % 2 + 1, 1)
            check_all(sizes, strides, (1,), source)
            shifted = [plan for plan in candidates(sizes, strides, (1,), source) if plan["walk"] == "shifted"]
            assert shifted
            for plan in shifted:
                assert plan["thread_elements"] == 8, plan  # short chunks are read otherwise at run time


def test_very_many_rows():
    """More rows than 32 bits count: short ones are a thread's each, and others are converted at run time."""
    for rows, length, source, kernels in [
        ((1 << 31) - 2, 3, "int8", {"ring_rows", "flat", "thin", "dense"}),
        (1 << 31, 8, "bfloat16", {"thin"}),
        (1 << 34, 3, "int8", {"thin"}),
        (1 << 34, 512, "bool", {"thin"}),
        (1 << 31, 513, "float32", {"dense"}),
    ]:
        found, plan, _ = check_all((rows, length), (0 if length > 500 else length, 1), (1,), source)
        assert found == kernels and (len(kernels) > 1 or plan["vector"] == 1), (rows, length, plan)


def test_rows_of_very_many_elements():
    """So many that their units are no 32-bit numbers, one element again and again."""
    for length, kernel in ((1 << 32, "expanded"), (1 << 38, "dense"), ((1 << 39) + 1000, "dense"), (1 << 42, "dense")):
        assert check_plan((length,), (0,), (0,))[0]["kernel"] == kernel


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


@pytest.mark.parametrize(
    "source,target", [*PAIRS, ("float8_e5m2", "float64"), ("float32", "float64"), ("int32", "int64")]
)
def test_columns_of_very_many_rows(source, target):
    """However many rows there are: no more splits than a grid is deep, and no more sums than a block has memory for."""
    kernels = set()
    for columns in (16, 65, 4097):
        for least in (*(1 << power for power in range(22, 34)), 65535 * 32768):  # the last: all that a grid is deep
            for more in (0, 1):
                rows = least + more
                if rows * columns * model.itemsize(source) > 1 << 40:
                    continue
                kernels |= check_all((rows, columns), (columns, 1), (0,), source, target)[0]
    converted = target == "float64" and model.itemsize(source) <= 2  # at run time
    assert ("panels" in kernels) == (model.itemsize(source) < 16 and not converted)


def test_aligned_columns_of_very_many_batches():
    """More batches than a grid is deep are no panels."""
    for length in (600, 1100, 4096, 70_000):
        kernels, plan, _ = check_all((70_000, length, 32), (64 * length, 64, 1), (1,))
        assert kernels == {"columns"} and plan["vector"] == 1
        units = plan["tile_leaves"] // (32 // plan["warp_columns"] * (8 // plan["thread_elements"]) * plan["batches"])
        assert units * plan["warp_columns"] <= 512  # vectors of sums that a block keeps


def test_more_processors_never_change_the_leaves():
    """The number of multiprocessors moves tiles about, and nothing else: the same leaves, outputs and bytes."""
    for sizes, dims in GRID:
        plans = [check_plan(sizes, contiguous(sizes), dims, tuning=f"multiprocessors={n}")[0] for n in PROCESSORS]
        for key in ("outputs", "leaves", "bytes"):
            assert len({plan[key] for plan in plans}) == 1


@pytest.mark.parametrize("source,target", [*PAIRS, ("float16", "float16"), ("bfloat16", "float32")])
def test_without_machine_code(source, target):
    """Where a GPU runs PTX alone, plans of sums of floats are the same, and all others have no vectors of elements."""

    def plans(native):
        for dim, sizes in ((0, (4096, 1024)), (1, (4096, 1024)), (1, (4096, 1023)), (0, (4096,)), (1, (1 << 20, 3))):
            view = view_arguments(sizes, contiguous(sizes), (dim,), source, target)
            yield json.loads(torch.ops.gpureduce._plan(*view, "", f"native={native}"))

    floats = source in ("float16", "bfloat16", "float32", "float64")
    assert (list(plans(0)) == list(plans(1))) == floats
    assert floats or all(plan["vector"] == 1 for plan in plans(0))


@pytest.mark.parametrize(
    "tuning",
    ["speed=9", "grid=x", "kernel=best", "kernel=tiny", "candidate=-1", "grid", "kernel=", "grid=4294967297"]
    + ["candidate=99999999999", "cluster=9999999999999999999999"],
)
def test_wrong_tuning(tuning):
    """A tuning that means nothing is refused by name."""
    with pytest.raises(invalid_argument(), match=f"tuning.*{tuning.split('=')[0]}"):
        torch.ops.gpureduce._plan(*view_arguments((10, 10), (10, 1), (1,), "float32", "float32", tuning))


@pytest.mark.parametrize(
    "device",
    ["multiprocessors=0", "multiprocessors=4294967297", "shared_bytes=99999999999", "l2_bytes=-1", "speed=1", "early"],
)
def test_wrong_device(device):
    """A GPU that cannot be is refused by name."""
    with pytest.raises(invalid_argument(), match=f"device: .*'{device.split('=')[0]}'"):
        torch.ops.gpureduce._plan(*view_arguments((10, 10), (10, 1), (1,), "float32", "float32", ""), device)
