"""CUDA alone: the CPU's bits under every plan, memory, streams, threads, devices and graphs."""

import contextlib
import ctypes
import functools
import gc
import itertools
import json
import random
import re
import threading

import pytest
import torch

import model
import torch_reduce
from support import (
    DTYPES,
    EVERY,
    OPERATIONS,
    SUM,
    assert_same_bits,
    data,
    dtype_of,
    every_operation,
    in_threads,
    python,
    random_view,
    taken,
    walked,
)
from torch_reduce.__main__ import has_code_for
from torch_reduce._library import build_facts

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

SLEEP = 400_000_000  # GPU cycles: about a fifth of a second


def unrounded(name):
    """The dtype of sums in which another order of additions shows: results of half precision would hide it."""
    return torch.float32 if name in ("float16", "bfloat16") else None


# --- bits -------------------------------------------------------------------------------------------------------------


@walked("block", range(20))
def test_cpu_and_cuda_agree_on_random_views(block, cuda):
    """CPU and GPU agree on four hundred random views, larger than those that the model takes, to random dtypes."""
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(seed)
        name, target = rng.choice(DTYPES), rng.choice([None, None, *DTYPES])
        budget = rng.choice([2000, 100_000, 3_000_000])
        views = [random_view(random.Random(seed).randint, name, device, budget) for device in ("cuda", "cpu")]
        (on_gpu, dim, keepdim), (on_cpu, _, _) = views
        dtype = target and dtype_of(target)
        what = f"seed {seed}: {on_cpu.shape}, {on_cpu.stride()}, {on_cpu.dtype}, {dim}, {dtype}"
        for op in EVERY:
            if op.takes(name, dtype):
                ours, wanted = (op(x, dim, keepdim, dtype=dtype) for x in (on_gpu, on_cpu))
                assert_same_bits(ours, wanted, f"{op}, {what}")


@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "float64", "int8", "float8_e4m3fn", "bool", "complex64", "int64"]
)
@walked("length", [1 << 22, (1 << 22) + 1, (1 << 24) + 4097, 10_000_019])
def test_large_vectors(name, length, cuda):
    """Vectors of many blocks and several joins, also from odd offsets."""
    x = data((1 << 20,), name, seed=12).repeat(length // (1 << 20) + 1)[: length + 3]
    y = x.to(cuda)
    for offset in (0, 1, 3):
        of = slice(offset, offset + length)
        assert_same_bits(SUM(y[of], dtype=unrounded(name)), SUM(x[of], dtype=unrounded(name)))


MATRICES = [
    (shape, 1) for shape in [(2048, 4096), (2048, 4097), (1 << 20, 3), (3, 1 << 20), (1 << 19, 8), (1 << 17, 32)]
]
MATRICES += [
    (shape, 0) for shape in [(2048, 4096), (2048, 4097), (1 << 20, 3), (3, 1 << 20), (100, 40_000), (1 << 21, 2)]
]
MATRICES += [((40_000, 100), 1), ((64, 50257), 1), ((50257, 64), 0), ((64, 512, 128), 1), ((64, 128, 256), (0, 2))]
MATRICES += [((16, 32, 56, 56), (0, 2, 3)), ((16, 32, 56, 56), (2, 3)), ((16, 64, 7, 7), (0, 2, 3))]


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "complex64"])
@pytest.mark.parametrize("shape,dim", MATRICES)
def test_large_matrices(name, shape, dim, cuda):
    """Rows, columns and inside dims of the measured sizes."""
    x = data(shape, name, seed=13)
    views = [x, x.to(memory_format=torch.channels_last)] if len(shape) == 4 else [x]
    for view, op in itertools.product(views, EVERY):
        if op.takes(name):
            assert_same_bits(op(view.to(cuda), dim), op(view, dim))


KERNELS = ["dense", "flat", "ring_rows", "thin", "columns", "panels", "expanded"]
# Besides each plan that is proposed: other numbers of multiprocessors, and grids whose blocks take many tiles.
TUNINGS = [
    *(f"multiprocessors={n}" for n in (1, 7, 66, 264)),
    *(f"grid={n}" for n in (1, 2, 5, 100)),
    *(f"kernel={kernel},grid=3" for kernel in KERNELS),
    *(f"multiprocessors=1,kernel={kernel}" for kernel in KERNELS),
]


FORCED = {
    "vector": lambda make: (make(300_007), [0]),
    "vector at offset 1": lambda make: (make(300_008)[1:], [0]),
    "every third": lambda make: (make(300_007)[::3], [0]),
    "short vector": lambda make: (make(77), [0]),
    "rows": lambda make: (make(60, 5000), [1]),
    "many rows": lambda make: (make(3000, 130), [1]),
    "short rows": lambda make: (make(9000, 7), [1]),
    "two short rows": lambda make: (make(2, 20), [1]),
    "aligned rows": lambda make: (make(40, 12_304)[:, 3:12_299], [1]),
    "aligned rows, unaligned ends": lambda make: (make(300, 1040)[:, :1037], [1]),
    "rows of a unit": lambda make: (make(900, 1000), [1]),
    "rows of four lanes": lambda make: (make(200, 2048), [1]),
    "long rows": lambda make: (make(3, 1 << 18), [1]),
    "rows of one vector": lambda make: (make(3001, 16), [1]),
    "rows of few vectors": lambda make: (make(777, 64), [1]),
    "rows of 32 vectors": lambda make: (make(335, 128), [1]),
    "rows of 32 vectors of halves": lambda make: (make(133, 256), [1]),
    "rows of nested dims": lambda make: (make(6, 10, 3001)[:, ::2, :3000], [2]),
    "rows of nested dims, aligned": lambda make: (make(6, 10, 3008)[:, ::2, :3001], [2]),
    "crops": lambda make: (make(300, 14, 14)[:, 1:-1, 1:-1], [1, 2]),
    "crops, 45 elements": lambda make: (make(900, 5, 18)[:, :, :9], [1, 2]),
    "crops, aligned": lambda make: (make(200, 12, 40)[:, :, :32], [1, 2]),
    "crops, four a lane": lambda make: (make(70, 40, 40)[:, 1:-1, 1:-1], [1, 2]),
    "crops of images": lambda make: (make(20, 31, 9, 9)[:, 1:, 1:-1, 1:-1], [2, 3]),
    "crops in three dims": lambda make: (make(70, 5, 9, 14)[:, 1:, ::2, 1:], [1, 2, 3]),
    "crops in three dims, two a lane": lambda make: (make(50, 8, 13, 14)[:, 1:, ::2, 1:], [1, 2, 3]),
    "crops in three dims, long": lambda make: (make(6, 20, 30, 40)[:, 1:, ::2, 1:], [1, 2, 3]),
    "crops in three dims, aligned": lambda make: (make(6, 20, 30, 48)[:, 1:, ::2, :32], [1, 2, 3]),
    "crops in three dims, expanded": lambda make: (make(1, 5, 9, 14)[:, 1:, ::2, 1:].expand(4, 4, 5, 13), [0, 1, 2, 3]),
    "rows kept in dims": lambda make: (make(41, 3, 9, 8)[:, 1:, 1:, :6], [3]),
    "rows kept in dims, expanded": lambda make: (
        make(1, 5, 9, 40)[:, 1:, ::2, :33].expand(4, 4, 5, 33),
        [3],
    ),
    "crops in four dims": lambda make: (make(5, 6, 7, 8, 20)[:, 1:, ::2, 1:, :15], [1, 2, 3, 4]),
    "crops in five dims": lambda make: (make(3, 4, 5, 6, 7, 12)[:, 1:, ::2, 1:, ::2, :9], [1, 2, 3, 4, 5]),
    "short rows, every other element": lambda make: (make(300, 200)[:, ::2], [1]),
    "odd rows": lambda make: (make(33, 4099)[:, 1:], [1]),
    "columns": lambda make: (make(5000, 60), [0]),
    "many columns": lambda make: (make(130, 3000), [0]),
    "odd columns": lambda make: (make(4099, 35)[:, 2:], [0]),
    "odd columns, long": lambda make: (make(9001, 67)[:, 1:], [0]),
    "dense odd columns": lambda make: (make(9001, 67), [0]),
    "tiny rows": lambda make: (make(70_001, 2), [1]),
    "rows of four": lambda make: (make(9001, 4), [1]),
    "rows of five": lambda make: (make(8003, 5), [1]),
    "rows of eight, apart": lambda make: (make(9, 1003, 8)[1::2], [2]),
    "rows of three": lambda make: (make(40_001, 3), [1]),
    "rows with gaps": lambda make: (make(3000, 70)[:, 1:64], [1]),
    "rows of a warp": lambda make: (make(3000, 32), [1]),
    "a chunk and one": lambda make: (make(70, 4097), [1]),
    "a lane and one": lambda make: (make(700, 513), [1]),
    "few columns": lambda make: (make(9000, 3), [0]),
    "few columns, many times": lambda make: (make(700, 30, 5)[:, :, :3], [1]),
    "few columns of a lane, many times": lambda make: (make(100, 512, 5)[:, :, :3], [1]),
    "few columns in nested dims": lambda make: (make(60, 7, 9, 5, 6)[:, :, :, 1:, :5], [1, 3]),
    "few columns in three nested dims": lambda make: (make(40, 7, 9, 5, 4, 3, 7)[:, :, :, 1:, :, 1:, :5], [1, 3, 5]),
    "few expanded columns": lambda make: (
        make(1, 9, 5, 4, 7)[:, 1:, 1:, ::2, :3].expand(40, 8, 4, 2, 3),
        [0, 2],
    ),
    "short columns": lambda make: (make(20, 4000), [0]),
    "short columns, every other one": lambda make: (make(20, 4001)[:, ::2], [0]),
    "short columns in nested dims": lambda make: (make(3, 40, 9, 96), [0, 2]),
    "columns of a lane, every other one": lambda make: (make(500, 301)[:, ::2], [0]),
    "columns of two lanes, every other one": lambda make: (make(900, 301)[:, ::2], [0]),
    "columns of four lanes, every other one": lambda make: (make(1900, 301)[:, ::2], [0]),
    "columns of chunks, every other one": lambda make: (make(9000, 101)[:, ::2], [0]),
    "columns of two lanes in nested dims": lambda make: (make(30, 3, 30, 88), [0, 2]),
    "odd columns of two lanes in nested dims": lambda make: (make(30, 3, 30, 85), [0, 2]),
    "columns of four lanes in nested dims": lambda make: (make(30, 3, 60, 48), [0, 2]),
    "odd columns of four lanes in nested dims": lambda make: (make(30, 3, 60, 45), [0, 2]),
    "two columns": lambda make: (make(70_001, 2), [0]),
    "nine columns": lambda make: (make(4095, 9), [0]),
    "64 columns": lambda make: (make(16 * 512 + 1, 64), [0]),
    "255 columns": lambda make: (make(513, 255), [0]),
    "several narrow": lambda make: (make(5, 1203, 4), [1]),
    "columns of a lane": lambda make: (make(490, 96), [0]),
    "columns of two lanes": lambda make: (make(1021, 208), [0]),
    "columns of four lanes": lambda make: (make(2047, 64), [0]),
    "columns of chunks": lambda make: (make(33_001, 32), [0]),
    "few columns of chunks": lambda make: (make(70_000, 16), [0]),
    "columns apart": lambda make: (make(2600, 144)[1:, 16:128], [0]),
    "columns in nested dims": lambda make: (make(6, 10, 700, 48)[:, ::2], [2]),
    "thin columns": lambda make: (make(6, 9000), [0]),
    "two elements": lambda make: (make(2, 20_000), [0]),
    "three elements": lambda make: (make(40, 3, 208), [1]),
    "inside": lambda make: (make(5, 700, 48), [1]),
    "inside, short": lambda make: (make(400, 130, 128), [1]),
    "outside": lambda make: (make(30, 16, 200), [0, 2]),
    "outside, far": lambda make: (make(3, 5, 3000)[:, :, :2999], [0, 2]),
    "outside, a lane": lambda make: (make(9, 3, 512)[:, ::2], [0, 2]),
    "outside, whole vectors": lambda make: (make(70, 9, 208)[:, :, :192], [0, 2]),
    "outside, a chunk each": lambda make: (make(9, 3, 5120)[:, 1:, :4096], [0, 2]),
    "outside, nested rows": lambda make: (make(4, 40, 6, 64)[::2].permute(1, 0, 2, 3)[:, :, ::2], [1, 3]),
    "outside, 49 each": lambda make: (make(200, 3, 7, 7), [0, 2, 3]),
    "outside, a chunk and four": lambda make: (make(41, 3, 100), [0, 2]),
    "outside, in three dims": lambda make: (make(5, 3, 10, 3, 83), [0, 2, 4]),
    "outside, backwards and thrice": lambda make: (make(11, 3, 20, 24).permute(2, 1, 0, 3)[:, :, 1:, :16], [0, 2, 3]),
    "image": lambda make: (make(4, 12, 28, 28).to(memory_format=torch.channels_last), [0, 2, 3]),
    "windows": lambda make: (make(4000).unfold(0, 1000, 3), [1]),
    "expanded": lambda make: (make(1, 64).expand(3000, 64), [0, 1]),
}


def forced_sums(x, dims, tunings, dtype=None):
    """(tuning, sum) under each tuning; a forced kernel may refuse this input, and is left out."""
    for tuning in tunings:
        try:
            got = torch.ops.gpureduce._sum_tuned(x, dims, dtype=dtype, tuning=tuning)
        except (RuntimeError, ValueError) as error:
            assert "kernel=" in tuning and "does not take this input" in str(error), f"{tuning}: {error}"
            continue
        yield tuning, got


def all_sums(x, dims, dtype=None, tuning=""):
    """(tuning, sum) of the plan that is taken and of each that is proposed, or none where a forced kernel refuses."""
    taken = next(forced_sums(x, dims, [tuning], dtype), None)
    if taken is None:
        return
    yield taken
    for k in itertools.count():
        candidate = f"{tuning},candidate={k}".strip(",")
        try:
            got = torch.ops.gpureduce._sum_tuned(x, dims, dtype=dtype, tuning=candidate)
        except (RuntimeError, ValueError) as error:
            assert k and f"there are only {k} candidates" in str(error), f"{candidate}: {error}"
            return
        yield candidate, got


@walked("name", ["float32", "bfloat16", "int8", "float64", "complex64", "float8_e5m2", "complex128"])
@pytest.mark.parametrize("view", list(FORCED))
def test_forced_plans(view, name, cuda):
    """No plan changes a bit: each that is proposed, other grids, kernels, and numbers of multiprocessors."""
    x, dims = FORCED[view](lambda *shape: data(shape, name, seed=14))
    wanted = SUM(x, dims, dtype=unrounded(name))
    y, _ = FORCED[view](lambda *shape: data(shape, name, seed=14, device=cuda))
    count = 0
    for tuning, got in itertools.chain(
        all_sums(y, dims, unrounded(name)),
        all_sums(y, dims, unrounded(name), "multiprocessors=1"),
        forced_sums(y, dims, TUNINGS, unrounded(name)),
    ):
        assert_same_bits(got, wanted, f"under {tuning!r}")
        count += 1
    assert count > 10


@functools.cache
def gpu():
    """What the driver says about the first GPU and about the code that runs on it."""
    return json.loads(torch.ops.gpureduce._device(0))


@pytest.fixture
def early(cuda):
    """Kernels start early, and have bulk copies."""
    if not gpu()["early"]:
        pytest.skip("needs a GPU of capability 9.0 that runs code for it")


@pytest.fixture
def clusters(cuda):
    """Blocks may join as a cluster."""
    if not gpu()["clusters"]:
        pytest.skip("needs a GPU of capability 9.0 that runs code for it, with room for clusters")


def plan_of(x, dims, tuning="", dtype=None):
    """The plan of a view."""
    result = SUM(torch.zeros(1, dtype=x.dtype), dtype=dtype).dtype
    device = ",".join(f"{name}={int(value)}" for name, value in gpu().items() if not isinstance(value, str))
    address = x.data_ptr() % 16 if x.is_cuda else x.storage_offset() * x.element_size() % 16
    return json.loads(torch.ops.gpureduce._plan(x.shape, x.stride(), dims, x.dtype, result, tuning, device, address))


def plans_of(x, dims, tuning="", dtype=None):
    """{tuning: plan} of each that is proposed."""
    found = {}
    for k in itertools.count():
        candidate = f"{tuning},candidate={k}".strip(",")
        try:
            found[candidate] = plan_of(x, dims, candidate, dtype)
        except (RuntimeError, ValueError) as error:
            assert "candidates" in str(error) or "does not take" in str(error), error
            return found


# The view and the dims that are summed.
REACHED = {
    "dense": (lambda make: make(64, 8192), [1]),
    "flat": (lambda make: make(3000, 20), [1]),
    "thin": (lambda make: make(4, 8192), [0]),
    "columns": (lambda make: make(64, 3, 40, 256), [0, 2]),
    "panels": (lambda make: make(8192, 1024), [0]),
    "ring_rows": (lambda make: make(200_000, 21), [1]),
    "expanded": (lambda make: make(1, 300).expand(5000, 300), [0]),
}


@pytest.mark.parametrize("kernel", list(REACHED))
@walked("name", ["bfloat16", "float32", "int8"])
def test_every_kernel(kernel, name, cuda):
    """Each kernel takes what it is for, in each of its configurations, and gives the contract's bits."""
    if kernel == "ring_rows" and not gpu()["early"]:
        pytest.skip("needs a GPU of capability 9.0 that runs code for it")
    view, dims = REACHED[kernel]
    x = view(lambda *shape: data(shape, name, seed=15))
    y = view(lambda *shape: data(shape, name, seed=15, device=cuda))
    plans = plans_of(y, dims, f"kernel={kernel}")
    assert plans and {plan["kernel"] for plan in plans.values()} == {kernel}
    wanted = SUM(x, dims)
    for tuning, got in all_sums(y, dims, tuning=f"kernel={kernel}"):
        assert_same_bits(got, wanted, f"under {tuning!r}")


ODD = ["bfloat16", "float8_e5m2", "int8", "bool", "int16"]
SPREAD = ["float32", "int32", "float64", "complex32", "complex64"]
REDUCED = ["complex32", "complex64", "float8_e5m2"]  # which have the variants that all operations have, and no ring


@pytest.mark.parametrize("name", ODD)
@walked("length", [513, 530, 1023, 1025, 1100, 2047, 2049, 4096, 4097, 4100, 4128, 4129, 8191, 8200, 20_481, 50_257])
def test_rows_at_every_odd_address(length, name, cuda):
    """Rows that begin anywhere between two aligned addresses and end anywhere, in an input that ends with the last."""
    vector = 16 // dtype_of(name).itemsize
    x = data((5 * (length + 16) + 32,), name, seed=19)
    for offset, gap in itertools.product(range(vector), (0, 1, 8)):
        pitch = length + gap
        view = x.as_strided((3, length), (pitch, 1), offset)
        y = x[: offset + 2 * pitch + length].to(cuda).as_strided((3, length), (pitch, 1), offset)
        wanted = SUM(view, 1, dtype=unrounded(name))
        for tuning, got in all_sums(y, [1], unrounded(name)):
            assert_same_bits(got, wanted, f"offset {offset}, pitch {pitch}, {tuning!r}")
    odd = torch.empty(3, length + 1 + length % 2, dtype=dtype_of(name))[:, :length]
    assert any(plan["kernel"] == "dense" and plan["walk"] == "shifted" for plan in plans_of(odd, [1]).values())


SINGLE = [*SPREAD, "complex128"]


@pytest.mark.parametrize(
    "step, name", [*((1, name) for name in SINGLE), *((2, name) for name in (*SINGLE, *ODD, "float16"))]
)
def test_rows_of_single_elements(step, name, cuda):
    """The last chunk has any number of elements a leaf, few leaves or all; tiles of a chunk, less and more."""
    chunks = (0, 1, 32, 512, 513, 905, 1023, 1024, 1025, 1537, 4095)
    short = (*range(514, 4096, 511), 1024, 2048)
    for length in (*short, *(4096 + n for n in chunks), *(8192 + n for n in chunks), 20_999):
        pitch = step * length | 1
        size = 8 * pitch + step * (length - 1) + 1  # the input ends with the last row
        x = data((size,), name, seed=28)
        view, y = (t.as_strided((9, length), (pitch, step)) for t in (x, x.to(cuda)))
        wanted = SUM(view, 1, dtype=unrounded(name))
        for tuning, got in itertools.chain(
            all_sums(y, [1], unrounded(name)), all_sums(y, [1], unrounded(name), "multiprocessors=1")
        ):
            assert_same_bits(got, wanted, f"rows of {length}, {step} apart, {tuning!r}")


@pytest.mark.parametrize(
    ("name", "target", "view"),
    [
        ("float32", "float64", None),
        ("float32", "int64", None),
        ("int32", "bool", None),
        ("complex32", "complex64", None),
        ("complex32", "complex128", None),
        ("float32", "float32", torch._neg_view),
        ("float16", "float32", torch._neg_view),
        ("complex64", "complex64", torch.conj),
    ],
)
@walked("step", [1, 2])
def test_rows_of_a_chunk_and_more(name, target, view, step, cuda):
    """Whole units, a short last chunk's and a rest of a few elements, under every accumulator and conversion."""
    for length in (4097, 4128, 4129, 4609, 5001, 5120, 5121):
        pitch = step * length + 1 | 1  # odd, or the longest would be in vectors
        elements = data((9, pitch), name, seed=33)
        x, y = (t[:, : step * length : step] for t in (elements, elements.to(cuda)))
        x, y = (view(t) if view else t for t in (x, y))
        wanted = SUM(x, 1, dtype=dtype_of(target))
        for tuning, got in all_sums(y, [1], dtype_of(target), "multiprocessors=1"):
            assert_same_bits(got, wanted, f"rows of {length}, {tuning!r}")


@pytest.mark.parametrize(
    ("name", "length", "step", "odd"),
    [
        *(("float32", n, 1, True) for n in (1025, 1300)),
        *(("float32", n, 1, False) for n in (1028, 1300)),
        *(("float64", n, 1, True) for n in (513, 600)),
        *(("float64", n, 1, False) for n in (514, 600)),
        ("float64", 300, 2, True),
        *(("complex128", n, 1, True) for n in (129, 200, 300)),
        *(("int8", n, 2, True) for n in (1025, 2048, 2500)),
        *(("bfloat16", n, 2, True) for n in (1025, 1300)),
    ],
)
def test_rows_of_few_units(name, length, step, odd, cuda):
    """Rows of a few units, which are too long for one warp alone: the bits are the same under every plan."""
    pitch = length * step | odd
    x = data((27 * pitch,), name, seed=36)
    view, y = (t.as_strided((27, length), (pitch, step)) for t in (x, x.to(cuda)))
    wanted = SUM(view, 1, dtype=unrounded(name))
    for tuning, got in all_sums(y, [1], unrounded(name)):
        assert_same_bits(got, wanted, f"under {tuning!r}")


@pytest.mark.parametrize("name", ["float32", "int32"])
def test_short_last_chunk(name, cuda):
    """Where the last chunk has few units, no sum of the block before is left in shared memory."""
    blocks = [data((2200, length), name, seed=32) for length in (6001, 5001)]
    on_gpu, wanted = [x.to(cuda) for x in blocks], [SUM(x, 1) for x in blocks]
    tunings = list(plans_of(blocks[1], [1]))
    for tuning in tunings:
        for y, w in zip(on_gpu, wanted, strict=True):
            assert_same_bits(torch.ops.gpureduce._sum_tuned(y, [1], tuning=tuning), w, f"under {tuning!r}")


@pytest.mark.parametrize("name", [*ODD, "float16", "float32", "int32", "complex32", "float64"])
def test_short_rows_of_every_length(name, cuda):
    """Any length and address, a few more and less rows than a warp has threads, gaps between them."""
    size = dtype_of(name).itemsize
    whole = 0
    for length in (*range(1, 100), *range(101, 513, 17), 510, 511, 512):
        for rows, offset, gap in ((31, 1, 0), (33, 0, 0), (70, 3, length // 8), (100, 2, 1)):
            pitch = length + gap
            x = data((offset + (rows - 1) * pitch + length,), name, seed=22)
            view, y = (t.as_strided((rows, length), (pitch, 1), offset) for t in (x, x.to(cuda)))
            wanted = SUM(view, 1, dtype=unrounded(name))
            for tuning, got in all_sums(y, [1], unrounded(name)):
                assert_same_bits(got, wanted, f"{rows} rows of {length}, offset {offset}, pitch {pitch}, {tuning!r}")
            whole += bool(plans_of(y, [1], "kernel=ring_rows", unrounded(name)))
    assert whole > 100 if size <= 4 and gpu()["early"] and name not in REDUCED else whole == 0


@pytest.mark.parametrize("name", [*ODD, *SPREAD])
@walked("width", [2, 9, 57, 113, 120, 122, 249, 250, 700])
def test_columns_at_every_odd_address(width, name, cuda):
    """Columns that begin anywhere between two aligned addresses: few, and one more and one less than a tile has."""
    vector = 16 // dtype_of(name).itemsize
    for length in (9, 300, 513, 1000, 1025, 3000, 4097, 9000):
        x = data(((length + 1) * (width + 8) + 16,), name, seed=20)
        for offset, gap in [(0, 1), (1, 0), (vector - 1, 1), (vector // 2, 3), (1, 8)]:
            pitch = width + gap
            size = (length - 1) * pitch + width
            view = x.as_strided((length, width), (pitch, 1), offset)
            y = x[: offset + size].to(cuda).as_strided((length, width), (pitch, 1), offset)
            wanted = SUM(view, 0, dtype=unrounded(name))
            for tuning, got in all_sums(y, [0], unrounded(name)):
                assert_same_bits(got, wanted, f"{length} rows, offset {offset}, pitch {pitch}, {tuning!r}")


@pytest.mark.parametrize("name", [*ODD, *SPREAD])
@walked("length", [40, 509, 700, 1021, 1500, 4093])
def test_batches_of_columns_at_odd_addresses(length, name, cuda):
    """No row of the next batch of columns gets into a sum, and each batch begins elsewhere in a vector."""
    whole = data((30, length, 77), name, seed=21)
    x, y = whole[:, :, :75], whole.to(cuda)[:, :, :75]
    shifted = name in ODD and (x.element_size() > 1 or length > 1024)
    walks = {plan["walk"] for plan in plans_of(x, [1], dtype=unrounded(name)).values()}
    assert walks == {"linear", *(["spread"] if name in SPREAD else ["shifted"] if shifted else [])}
    wanted = SUM(x, 1, dtype=unrounded(name))
    for tuning, got in all_sums(y, [1], unrounded(name)):
        assert_same_bits(got, wanted, f"under {tuning!r}")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int8", "complex64", "float8_e5m2", "complex128"])
def test_short_columns_of_every_length(name, cuda):
    """Whole columns per thread, in vectors, at odd addresses and two apart, also nested: lengths around its batches."""
    for length in (*range(1, 35), *(n + i for n in (64, 128, 256, 512) for i in (-1, 0, 1))):
        x = data((length, 3, 2, 48), name, seed=25)
        y = x.to(cuda)
        for cut, dims in itertools.product((slice(None), slice(1, None), slice(0, None, 2)), ([0], [0, 2])):
            wanted = SUM(x[..., cut], dims, dtype=unrounded(name))
            for tuning, got in all_sums(y[..., cut], dims, unrounded(name)):
                assert_same_bits(got, wanted, f"{length} rows, {cut}, dims {dims}, {tuning!r}")


@walked("rows", [4096, 32_768, 70_001])
def test_columns_of_extreme_integers(rows, cuda):
    """Sums of 8 and 16 bits, added in 32 as long as a warp's tile lasts, never overflow."""
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint16):
        bounds = torch.iinfo(dtype)
        for value in (bounds.min, bounds.max):
            x = torch.full((rows, 64), value, dtype=dtype, device=cuda)
            sums = (all_sums(x, [0], torch.int64, f"multiprocessors={n}") for n in (1, 132))
            for tuning, got in itertools.chain(*sums):
                assert (got == rows * value).all(), f"{dtype}, {tuning!r}"


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "float64", "complex64", "float8_e5m2", "bool"])
@walked("blocks", range(2, 9))
def test_clusters(blocks, name, cuda, clusters):
    """Blocks that join through each other's memory: any number of them, the last one's part whole or a little."""
    many = 0
    for (chunks, outputs), last in itertools.product([(1, 1), (1, 3), (1, 77), (4, 2), (1, 300)], (1, 700, 4096)):
        length = 4096 * (blocks * chunks - 1) + last
        x = data((length, outputs + 1), name, seed=23)
        rows = x[:, :outputs].t().contiguous()
        for view, y in [(rows, rows.to(cuda)), (x[:, 1:].t(), x.to(cuda)[:, 1:].t())]:
            wanted = SUM(view, 1, dtype=unrounded(name))
            for tuning, plan in plans_of(y, [1], dtype=unrounded(name)).items():
                joins_itself = plan["kernel"] == "dense" and 1 < plan["splits"] <= 8
                assert (plan["cluster"] > 1) == joins_itself, plan
                if joins_itself:
                    many += plan["cluster"] == blocks
                    got = torch.ops.gpureduce._sum_tuned(y, [1], dtype=unrounded(name), tuning=tuning)
                    assert_same_bits(got, wanted, f"{length} of {outputs}, {plan}")
    assert many > 10


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_clusters_wait_for_their_blocks(name, cuda, clusters):
    """The first block of each cluster, whose part the L2 holds, waits for the others', which come from memory."""
    size = dtype_of(name).itemsize
    length, outputs = 8 * 32_768 * 4 // size, 30
    inputs = [data((outputs, length), name, seed=24 + i) for i in range(2)]
    plans = plans_of(inputs[0], [1], "multiprocessors=1", unrounded(name))  # which has larger tiles
    tuning, plan = max(plans.items(), key=lambda item: item[1]["cluster"])
    assert plan["cluster"] >= 4
    wanted = [SUM(x, 1, dtype=unrounded(name)) for x in inputs]
    inputs = [x.to(cuda) for x in inputs]
    others = torch.empty(1 << 27, dtype=torch.int8, device=cuda)
    for turn in range(20):  # what another input's sums left in shared memory are wrong ones
        x = inputs[turn % 2]
        others.fill_(turn)
        x[:, : length // 8].clone()
        got = torch.ops.gpureduce._sum_tuned(x, [1], dtype=unrounded(name), tuning=tuning)
        assert_same_bits(got, wanted[turn % 2], f"turn {turn}, {plan}")


def test_clusters_that_cannot_be_launched(cuda, clusters):
    """Larger clusters than a GPU has room for, as on a part of one: the same bits, by another plan."""
    x = data((3, 4096 * 12), "float32", seed=26)
    for op in OPERATIONS:
        plans = plans_of(x, [1], "cluster=16")
        tunings = [tuning for tuning, plan in plans.items() if plan["cluster"] > 8]
        assert tunings
        for tuning in tunings:
            ours = getattr(torch.ops.gpureduce, f"_{op}_tuned")(x.to(cuda), [1], tuning=tuning)
            assert_same_bits(ours, op(x, 1), f"under {tuning!r}")


EXPANDED = [9, 77, 511, 512, 513, 1024, 1500, 4095, 4096, 4097, 4608, 4609, 8191, 12_288, 12_289, 100_000]
EXPANDED += [1 << 20, (1 << 20) + 700]


@pytest.mark.parametrize("name", DTYPES)
def test_expanded(name, cuda):
    """Sums of one element many times, which are not added one by one, have the bits of those that are."""
    x = data((300,), name, seed=18)
    for length in EXPANDED:
        few = x[: max(1, min(300, 3_000_000 // length))]
        wanted = SUM(few.expand(length, -1).contiguous(), 0)
        assert_same_bits(SUM(few.to(cuda).expand(length, -1), 0), wanted, f"{length} times")
        assert_same_bits(SUM(few.to(cuda)[0].expand(length)), wanted[0], f"one element {length} times")


@pytest.mark.parametrize("name", DTYPES)
@walked("width", [2, 7, 30, 86])
def test_batches_of_few_columns(width, name, cuda):
    """Dense columns that begin anywhere between two aligned addresses, each batch elsewhere."""
    vector = max(1, 16 // dtype_of(name).itemsize)
    for length, batches in [(9, 40), (300, 3), (1001, 3), (4097, 1)]:
        for offset in {0, 1, vector - 1}:
            x = data((offset + batches * length * width,), name, seed=37)
            shape, strides = (batches, length, width), (length * width, width, 1)
            view, y = (t.as_strided(shape, strides, offset) for t in (x, x.to(cuda)))
            wanted = SUM(view, 1, dtype=unrounded(name))
            for tuning, got in all_sums(y, [1], unrounded(name)):
                assert_same_bits(got, wanted, f"{length} rows, offset {offset}, {tuning!r}")


@pytest.mark.parametrize("name", DTYPES)
@walked("width", [2, 3, 7, 8, 9, 64, 100, 255, 256])
def test_few_columns(width, name, cuda):
    """Dense columns of any width and length, in small and in large tiles."""
    for length in (17, 513, 4095, 4096, 4097, 16 * 512 - 1, 16 * 512 + 1, 40_000):
        x = data((length, width), name, seed=15)
        y, wanted = x.to(cuda), SUM(x, 0)
        for tuning, got in itertools.chain(all_sums(y, [0]), all_sums(y, [0], tuning="multiprocessors=1")):
            assert_same_bits(got, wanted, f"{length} x {width} under {tuning!r}")


@pytest.mark.parametrize(
    "op, name", taken("float32", "bfloat16", "int8", "float64", "complex64", operations=EVERY), ids=str
)
@walked("length", [2, 3, 8, 600])
def test_results_at_any_address(length, op, name, cuda):
    """Neighbouring results are stored together only where they lie aligned and side by side."""
    x = data((length, 4096), name, seed=15)
    y, wanted = x.to(cuda), op(x, 0)
    room = torch.zeros(2 * 4096 + 8, dtype=wanted.dtype, device=cuda)
    for offset in (0, 1, 2, 3):
        for out in (room[offset : offset + 4096], room[offset : offset + 2 * 4096 : 2]):
            assert_same_bits(op(y, 0, out=out), wanted, f"at {offset}, {out.stride()}")


@pytest.mark.parametrize("name", DTYPES)
@walked("target", ["float64", "float16", "int32", "bool", "complex64", "float8_e4m3fn"])
def test_converted_inputs_in_every_kernel(name, target, cuda):
    """Inputs that are converted element by element take every kernel too."""
    for shape, dim in [
        ((70_001,), 0),
        ((500, 9), 1),
        ((9, 500), 0),
        ((40, 1000), 1),
        ((1000, 40), 0),
        ((7, 300, 11), 1),
    ]:
        x = data(shape, name, seed=16)
        assert_same_bits(SUM(x.to(cuda), dim, dtype=dtype_of(target)), SUM(x, dim, dtype=dtype_of(target)))


# --- memory -----------------------------------------------------------------------------------------------------------


def peak_memory(call):
    """Bytes that a call asks the caching allocator for, at most at a time, its result included."""
    call()
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    del result
    return peak


@pytest.mark.parametrize(
    "op, name", taken("float32", "bfloat16", "bool", "int8", "float8_e4m3fn", "complex64", "float64"), ids=str
)
@pytest.mark.parametrize(
    "shape,dim", [((1 << 24,), 0), ((64, 1 << 18), 1), ((1 << 18, 64), 0), ((16384, 1024), 1), ((1024, 16384), 0)]
)
def test_memory_is_the_output_and_the_partial_sums(op, name, shape, dim, cuda):
    """A call takes its output and the partial sums of its plan, and not a byte more."""
    x = torch.zeros(shape, dtype=dtype_of(name), device=cuda)
    result = dtype_of(model.natural_result(name))
    plan = plan_of(x, [dim])
    output, partials = x.numel() // shape[dim] * result.itemsize, plan["workspace_bytes"]
    assert output <= peak_memory(lambda: op(x, dim)) <= output + partials
    assert partials <= x.numel() * x.itemsize // 4


@pytest.mark.parametrize(
    "view",
    ["offset", "steps", "transposed", "negated", "conjugated", "converted", "channels_last", "expanded", "real part"],
)
@every_operation
def test_memory_never_holds_a_copy_of_the_input(view, op, cuda):
    """No layout, lazy view or dtype= makes a copy of the input."""
    if view == "real part" and op.name not in ("sum", "mean"):
        pytest.skip("a norm of complex numbers takes no real dtype=")
    n = 1 << 23
    real = torch.zeros(n, device=cuda)
    complex_input = torch.zeros(n // 2, dtype=torch.complex64, device=cuda)
    calls = {
        "offset": lambda: op(real[1:]),
        "steps": lambda: op(real.view(1024, -1)[:, ::2], 1),
        "transposed": lambda: op(real.view(1024, -1).t(), 1),
        "negated": lambda: op(torch._neg_view(real)),
        "conjugated": lambda: op(complex_input.conj()),
        "converted": lambda: op(real, dtype=torch.float64),
        "channels_last": lambda: op(real.view(8, 128, 128, 64).permute(0, 3, 1, 2), (0, 2, 3)),
        "expanded": lambda: op(real.view(1024, -1).expand(16, -1, -1), (0, 1)),
        "real part": lambda: op(complex_input, dtype=torch.float32),
    }
    assert peak_memory(calls[view]) <= n * 4 // 8


@every_operation
def test_memory_with_out(op, cuda):
    """With out=, only the partial sums are allocated."""
    x, out = torch.zeros(16384, 1024, device=cuda), torch.zeros(16384, device=cuda)
    assert peak_memory(lambda: op(x, 1, out=out)) <= 1 << 16


# --- streams, threads, devices, graphs --------------------------------------------------------------------------------

WORK = [
    ((1 << 22,), 0),
    ((300, 5000), 1),
    ((5000, 300), 0),
    ((20_000, 8), 1),
    ((8, 20_000), 0),
    ((8, 600, 30), (0, 2)),
    ((2, 1 << 21), 1),
]


def returns_while_busy(attempt):
    """Whether a call returns while the GPU still sleeps for attempt's cycles; a host that is held up gets ever more."""
    return any(attempt(SLEEP << shift) for shift in (0, 2, 4, 6))


@pytest.mark.parametrize("shape,dim", WORK)
@every_operation
def test_current_stream(shape, dim, op, cuda):
    """Work goes to the current stream: it sees what was written there before, and the call does not wait for it."""
    x = data(shape, "float32", seed=17)
    wanted = op(x, dim)
    source, y = x.to(cuda), torch.zeros(shape, device=cuda)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        op(y, dim)  # loads the kernels and fills the allocator's cache

    def attempt(cycles):
        y.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(cycles)
            y.copy_(source)
            result = op(y, dim)
            is_busy = not side.query()
            after = result * 2
        side.synchronize()
        assert_same_bits(result, wanted)
        assert_same_bits(after, wanted * 2)
        return is_busy

    assert returns_while_busy(attempt), "the call waited for the GPU"


@pytest.mark.parametrize("shape,dim", WORK)
@every_operation
def test_other_streams_are_not_waited_for(shape, dim, op, cuda):
    """A busy stream does not hold up a call on another."""
    x = data(shape, "float32", seed=18)
    y = x.to(cuda)
    busy, side = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        op(y, dim)

    def attempt(cycles):
        torch.cuda.synchronize()
        with torch.cuda.stream(busy):
            torch.cuda._sleep(cycles)
        with torch.cuda.stream(side):
            result = op(y, dim)
        side.synchronize()
        is_busy = not busy.query()
        assert_same_bits(result, op(x, dim))
        return is_busy

    assert returns_while_busy(attempt), "the call waited for another stream"
    torch.cuda.synchronize()


@every_operation
def test_no_synchronization(op, cuda):
    """Nothing in a call synchronizes, in any kernel and with out=."""
    inputs = [(data(shape, "bfloat16", device=cuda), dim) for shape, dim in WORK]
    outs = [op(x, dim) for x, dim in inputs]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for (x, dim), out in zip(inputs, outs, strict=True):
            op(x, dim)
            op(x, dim, dtype=torch.float64)
            op(x, dim, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def unequal(make):
    """(view, dims) of unequal shapes for every kernel; several of those that kernels share which ask for memory."""
    for length in (33, 65, 99, 127):
        yield make(1 << 17, length, dtype=torch.int8), [1]
    for view, dims in REACHED.values():
        for dtype in (torch.float32, torch.int8):
            yield view(lambda *shape, dtype=dtype: make(*shape, dtype=dtype)), dims
    for shape, dim in [((3, 70_000), 1), ((9, 30_000), 1), ((7000, 128), 0), ((4000, 511), 0), ((40, 5027), 1)]:
        yield make(*shape, dtype=torch.bfloat16), [dim]


@pytest.mark.parametrize("replaced", [False, True], ids=["ours", "replaced"])
def test_threads_of_unequal_shapes(replaced, cuda):
    """Threads that call the same kernels with other shapes do not change one another's launches."""

    def make(*shape, dtype):
        return data(shape, str(dtype).removeprefix("torch."), seed=29)

    views = list(unequal(make))
    wanted = [SUM(x, dims, dtype=unrounded(str(x.dtype).removeprefix("torch."))) for x, dims in views]
    views = [(y, dims) for y, dims in unequal(lambda *shape, dtype: make(*shape, dtype=dtype).to(cuda))]
    torch.cuda.synchronize()
    add = torch.sum if replaced else torch.ops.gpureduce.sum

    def work(seed):
        rng = random.Random(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(12):
                order = rng.choices(range(4), k=60) + list(range(len(views)))  # most share a kernel
                rng.shuffle(order)
                sums = [add(*views[i], dtype=wanted[i].dtype) for i in order]  # launched as fast as can be
                for i, got in zip(order, sums, strict=True):
                    assert_same_bits(got, wanted[i], f"{tuple(views[i][0].shape)} {wanted[i].dtype}")

    with torch_reduce.replace_torch_sum() if replaced else contextlib.nullcontext():
        in_threads(work, range(8))


@every_operation
def test_first_call_in_a_thread(op, cuda):
    """A fresh thread needs no set-up."""
    x = data((3, 5000), "float32", seed=20)
    results = []
    thread = threading.Thread(target=lambda: results.append(op(x.to(cuda), 1)))
    thread.start()
    thread.join()
    assert_same_bits(results[0], op(x, 1))


@every_operation
def test_another_device(op, cuda):
    """A tensor on another GPU than the current one is summed there; an out elsewhere is refused."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second GPU")
    for shape, dim in WORK:
        x = data(shape, "float32", seed=21)
        for current, home in ((0, 1), (1, 0)):
            with torch.cuda.device(current):
                result = op(x.to(f"cuda:{home}"), dim)
                assert torch.cuda.current_device() == current
            assert result.device == torch.device("cuda", home)
            assert_same_bits(result, op(x, dim))
    with pytest.raises(RuntimeError, match=r"out.*device|device.*out"):
        op(torch.ones(3, 4, device="cuda:0"), 0, out=torch.empty(4, device="cuda:1"))


@pytest.mark.parametrize("op, name", taken("float32", "bfloat16", "int8"), ids=str)
@pytest.mark.parametrize("shape,dim", WORK)
def test_graph(shape, dim, op, name, cuda):
    """A call is captured in a CUDA graph; each replay sums what its input then holds."""
    x = data(shape, name, seed=22, device=cuda)
    out = torch.empty_like(op(x, dim))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        op(x, dim)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = op(x, dim)
        op(x, dim, out=out)
    for seed in (23, 24, 25):
        new = data(shape, name, seed=seed)
        x.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(y, op(new, dim))
        assert_same_bits(out, op(new, dim))


@every_operation
def test_graph_of_many_calls(op, cuda):
    """Many calls in one graph, one after the other on the same memory, stay in order."""
    x = data((1 << 20,), "float32", seed=26, device=cuda)
    op(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        results = []
        for i in range(20):
            x[i : i + 1].fill_(float(i))
            results.append(op(x))
    start = data((1 << 20,), "float32", seed=27)
    x.copy_(start)
    graph.replay()
    torch.cuda.synchronize()
    for i, result in enumerate(results):
        start[i] = float(i)
        assert_same_bits(result, op(start))


def programmatic_edges(graph):
    """How many kernels of a captured graph may start while the one before drains."""
    major = torch.version.cuda.split(".")[0]
    edges_of = getattr(ctypes.CDLL(f"libcudart.so.{major}"), "cudaGraphGetEdges" + "_v2" * (int(major) < 13))
    raw, count = ctypes.c_void_p(graph.raw_cuda_graph()), ctypes.c_size_t()
    assert edges_of(raw, None, None, None, ctypes.byref(count)) == 0
    nodes, data = (ctypes.c_void_p * count.value), (ctypes.c_uint8 * 8 * count.value)()
    assert edges_of(raw, nodes(), nodes(), data, ctypes.byref(count)) == 0
    return sum(edge[2] == 1 for edge in data)


def test_kernels_that_start_early_in_graphs(early):
    """In a graph the first kernel of a call waits for the end of the one before; those after it start early."""
    x, y = data((4096,), "float32", device="cuda"), data((1 << 22,), "float32", device="cuda")
    offsets = torch.tensor([0, 4_000_000, 4_100_000], device="cuda")
    segments, beside = torch.ops.gpureduce.segment_sum, y.view(-1, 4)
    calls = {  # and how many kernels each has after its first one
        "short sum": (lambda: SUM(x), 0),
        "long sum": (lambda: SUM(y), 1),
        "short weighted sum": (lambda: torch_reduce.weighted_sum(x, x), 0),
        "long weighted sum": (lambda: torch_reduce.weighted_sum(y, y), 1),
        "segments": (lambda: segments(y, offsets), 1),
        "segments of columns": (lambda: segments(beside, offsets // 4), 1),
        "norms": (lambda: torch.ops.gpureduce._foreach_powsum([x, y]), 1),
    }
    for name, (call, others) in calls.items():
        call()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            x.add_(1)
            y.add_(1)
            call()
            y.add_(1)
        assert programmatic_edges(graph) == others, name


@every_operation
def test_back_to_back_calls(op, cuda):
    """Calls that follow one another without a pause, on inputs that the one before has just written, are ordered."""
    x = data((64, 1 << 16), "float32", seed=28)
    y = x.to(cuda)
    for _ in range(10):
        first = op(y, 1)
        second = op(first.expand(300, -1).contiguous(), 0)
        third = op(second)
        assert_same_bits(third, op(op(op(x, 1).expand(300, -1).contiguous(), 0)))


def test_what_the_driver_says(cuda):
    """The planner knows the GPU as torch does, and learns from the loaded code what it may do."""
    properties, found = torch.cuda.get_device_properties(0), gpu()
    assert found["multiprocessors"] == properties.multi_processor_count
    assert found["l2_bytes"] == properties.L2_cache_size
    assert found["shared_bytes"] == properties.shared_memory_per_block_optin
    assert found["processor_shared_bytes"] == properties.shared_memory_per_multiprocessor
    assert found["clusters"] <= found["early"] <= (properties.major >= 9)
    for index in (-1, torch.cuda.device_count()):
        with pytest.raises(RuntimeError, match="_device: there is no GPU"):
            torch.ops.gpureduce._device(index)


def test_older_code(cuda):
    """Where the driver runs the library's PTX for GPUs before 9.0, plans are for what that does."""
    capability = torch.cuda.get_device_capability()
    usable = [name for name in build_facts()["architectures"] if "PTX" in name and has_code_for(capability, [name])]
    if not usable:
        pytest.skip("needs a library with PTX for this GPU: TORCH_CUDA_ARCH_LIST='8.0+PTX 9.0'")
    facts = json.loads(python("-c", ASK, CUDA_FORCE_PTX_JIT="1"))
    newest = max(tuple(map(int, re.match(r"(\d+)\.(\d+)", name).groups())) for name in usable)
    assert facts["early"] == (newest >= (9, 0)), (usable, facts)


ASK = "import torch, torch_reduce; print(torch.ops.gpureduce._device(0))"


def views(name, seed=31):
    """Pairs of a tensor of the GPU and the same one of the CPU, each a row of views, and the dims that are reduced."""
    x = data((70, 3001), name, seed=seed)
    for view, dim in [
        (lambda x: x, 1),
        (lambda x: x, 0),
        (lambda x: x, None),
        (lambda x: x[1:, 1:], 1),
        (lambda x: x[1:, 1:], 0),
        (lambda x: x[::2, ::3], 1),
        (lambda x: x.T[::3, ::2], 1),
        (lambda x: x[:, :5], 1),
    ]:
        yield view(x.cuda()), view(x), dim


def of_one_input(function, *names):
    """Calls of a function on views of each dtype."""
    for name in names:
        for ours, wanted, dim in views(name):
            yield lambda x, dim=dim: function(x, dim), (ours,), (wanted,)


def weighted_sums():
    for name in ("float32", "bfloat16", "int32"):
        for (ours, wanted, dim), (weight, same, _) in zip(views(name), views(name, 32), strict=True):
            yield lambda x, w, dim=dim: torch_reduce.weighted_sum(x, w, dim), (ours, weight), (wanted, same)


def segments():
    offsets = torch.tensor([0, 3, 3, 40, 70])
    for name in ("float32", "bfloat16", "int32", "complex64"):
        for ours, wanted, dim in views(name):
            ends = offsets.clamp(max=ours.shape[dim or 0])
            call = functools.partial(torch_reduce.segment_sum, dim=dim or 0)
            yield call, (ours, ends.cuda()), (wanted, ends)


def lists():
    for name in ("float32", "bfloat16", "float64"):
        xs = [data((n,), name, seed=n) for n in (1, 300, 70_001)]
        yield lambda *xs: tuple(torch.ops.gpureduce._foreach_powsum(xs)), [x.cuda() for x in xs], xs


def norms():
    for ord in (1, 2, 3, float("inf")):
        yield from of_one_input(lambda x, dim, ord=ord: torch_reduce.vector_norm(x, ord, dim), "float32", "complex64")


def exact_sum(x, dim):
    return torch_reduce.sum(x, dim, exact=True)


# Functions of each kind of kernel. Each yields a call, its inputs on the GPU, and the same ones on the CPU. No call
# needs a kernel of torch, which has no PTX for most GPUs.
WITHOUT_MACHINE_CODE = {
    "sums": lambda: of_one_input(
        torch_reduce.sum, *("float32", "bfloat16", "float64", "int32", "bool", "float8_e5m2", "complex64")
    ),
    "largest": lambda: of_one_input(torch_reduce.amax, "float32", "int32", "uint8"),
    "indices": lambda: of_one_input(torch_reduce.argmax, "float32", "bfloat16", "int32"),
    "products": lambda: of_one_input(torch_reduce.prod, "float32", "int64"),
    "norms": norms,
    "counts": lambda: of_one_input(torch_reduce.count_nonzero, "float32", "int32"),
    "exact sums": lambda: of_one_input(exact_sum, "float32", "bfloat16", "float64"),
    "exponents": lambda: of_one_input(torch_reduce.logsumexp, "float32", "bfloat16"),
    "weighted sums": weighted_sums,
    "variances": lambda: of_one_input(torch_reduce.var_mean, "float32", "bfloat16"),
    "segments": segments,
    "lists": lists,
}


def check_without_machine_code(kind):
    """What the test below runs where the driver takes no machine code."""
    assert not gpu()["native"], "the driver runs machine code: it ignores CUDA_FORCE_PTX_JIT=1"
    x = torch.empty(4, 1000, dtype=torch.int32, device="cuda")
    assert "converted" in torch_reduce.explain(x, 1)
    assert "converted" not in torch_reduce.explain(x.view(torch.float32), 1)
    for call, ours, wanted in WITHOUT_MACHINE_CODE[kind]():
        got = call(*ours)
        got = tuple(one.cpu() for one in got) if isinstance(got, tuple) else got.cpu()
        what = ", ".join(f"{x.dtype} {tuple(x.shape)} {x.stride()}" for x in wanted)
        assert_same_bits(got, call(*wanted), f"{kind}: {what}")


@pytest.mark.parametrize("kind", WITHOUT_MACHINE_CODE)
def test_gpu_without_machine_code(kind, cuda):
    """On a GPU that the library's machine code does not fit, kernels with PTX take every call, with the same bits."""
    built, capability = build_facts()["architectures"], torch.cuda.get_device_capability()
    if not has_code_for(capability, [name.removesuffix("+PTX") for name in built]):
        pytest.skip("needs a library with machine code for this GPU")
    if not has_code_for(capability, [name for name in built if name.endswith("+PTX")]):
        pytest.skip("needs a library with PTX: TORCH_CUDA_ARCH_LIST='8.0+PTX 9.0'")
    assert gpu()["native"]
    python("-c", f"import test_cuda; test_cuda.check_without_machine_code({kind!r})", CUDA_FORCE_PTX_JIT="1")


def test_explain_names_the_plan(cuda):
    """explain says the kernel, tile, grid, splits, workspace and bytes."""
    text = torch_reduce.explain(torch.zeros(64, 1 << 16, device=cuda), 1)
    for word in ("kernel dense", "tile", "grid", "splits", "workspace", "bytes"):
        assert word in text, text


def test_stages(cuda):
    """The host's time has four stages, each above 0; an input without elements is refused."""
    stages = torch.ops.gpureduce._stages
    times = stages(torch.ones(64, 128, device=cuda), [1], 5)
    assert len(times) == 4 and min(times) > 0
    with pytest.raises(RuntimeError, match="nothing to launch"):
        stages(torch.ones(0, 128, device=cuda), [1], 5)
    with pytest.raises(RuntimeError, match="calls: expected a positive number"):
        stages(torch.ones(64, 128, device=cuda), [1], 0)
    with pytest.raises(NotImplementedError):
        stages(torch.ones(64, 128), [1], 5)
