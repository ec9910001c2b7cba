"""Sums over ranks whose GPUs write into each other's memory: the bits of an independent model, and what else holds."""

import gc
import itertools
import weakref

import numpy as np
import pytest
import torch
import torch.distributed as dist

import torch_reduce
import torch_reduce.distributed as distributed
from support import assert_same_bits, data, dtype_of, python
from torch_reduce.distributed import _messages, _symmetric
from worlds import here

OPS = torch.ops.gpureduce
WORLDS = ["nccl"]
FLOATS = ["float32", "float16", "bfloat16", "float64"]
SECONDS = 10**9


def pairwise(parts, name, averages):
    """The ranks' flat tensors, joined pairwise in rank order, divided once, and rounded once."""
    wide = {"float64": np.float64, "int32": np.int64, "int64": np.int64}.get(name, np.float32)
    floats = name in FLOATS
    rows = [
        (x.double() if name == "float64" else x.float() if floats else x.long()).numpy().astype(wide) for x in parts
    ]
    count = len(rows)
    with np.errstate(over="ignore", invalid="ignore"):
        while len(rows) > 1:
            pairs = itertools.zip_longest(rows[::2], rows[1::2])
            rows = [a if b is None else a + b for a, b in pairs]
        total = rows[0] / wide(count) if averages else rows[0]
    return torch.from_numpy(total).to(dtype_of(name))


def ranks_on_a_gpu(count):
    """The memory of so many ranks, all on this GPU, and a stream for each: few blocks, so that all run at once."""
    size, _ = OPS._symmetric_needs(count)
    memory = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    streams = [torch.cuda.Stream() for _ in range(count)]
    return memory, streams, 16


def added(ranks, parts, adding, averages=False, off=0):
    """What each rank gets. `off` elements lie before each tensor: its address is any."""
    memory, streams, blocks = ranks
    world = len(memory)
    given = [torch.cat([x.new_zeros(off), x]).cuda()[off:] for x in parts]
    if adding == "scattered":
        outs = [torch.empty(x.numel() // world + off, dtype=x.dtype, device="cuda")[off:] for x in parts]
    else:
        outs = given
    torch.cuda.synchronize()
    for rank, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            OPS._add_ranks(given[rank], outs[rank], memory, rank, adding, averages, blocks, 20 * SECONDS)
    torch.cuda.synchronize()
    return [out.cpu() for out in outs]


@pytest.mark.parametrize("size", range(2, 9))
def test_model(cuda, size):
    """All dtypes, sizes below and above what all blocks take at once, and addresses: the model's bits on every rank."""
    ranks = ranks_on_a_gpu(size)
    for name in [*FLOATS, "int32", "int64"]:
        for count, off in ((1, 0), (7, 1), (1001, 3), (70_001, 0), (300_007 // size, 1)):
            parts = [data([count * size], name, rank) for rank in range(size)]
            for averages in (False, True) if name in FLOATS else (False,):
                wanted = pairwise(parts, name, averages)
                for adding in ("all", "shared"):
                    for got in added(ranks, parts, adding, averages, off):
                        assert_same_bits(got, wanted, f"{name} {count} {off} {adding} {averages}")
                for rank, got in enumerate(added(ranks, parts, "scattered", averages, off)):
                    assert_same_bits(got, wanted[rank * count :][:count], f"{name} {count} {off} {averages}")


def test_a_rank_that_is_late(cuda):
    """Calls of one rank may be far ahead on the host, and their slots are not written before they have been read."""
    ranks = memory, streams, blocks = ranks_on_a_gpu(3)
    parts = [data([200_000], "float32", rank).cuda() for rank in range(3)]
    wanted, rng = pairwise([x.cpu() for x in parts], "float32", False), np.random.default_rng(1)
    outs = [[torch.empty_like(parts[0]) for _ in range(20)] for _ in range(3)]
    torch.cuda.synchronize()
    for rank, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            for call in range(20):
                torch.cuda._sleep(int(rng.integers(1, 2_000_000)))
                adding = ("all", "shared")[call % 3 % 2]
                OPS._add_ranks(parts[rank], outs[rank][call], memory, rank, adding, False, blocks, 20 * SECONDS)
    torch.cuda.synchronize()
    for out in itertools.chain(*outs):
        assert_same_bits(out.cpu(), wanted)
    assert added(ranks, [x.cpu() for x in parts], "all")[0].equal(wanted)  # and calls go on


@pytest.mark.parametrize(("tiles", "sums"), [(0x8000_0010, 0), (0xFFFF_FFF4, 0xFFFF_FFF4)])
def test_numbers_of_tiles_wrap(cuda, tiles, sums):
    """No sum is taken before it is given, after 2^31 tiles without a sum as well; and the numbers wrap."""
    ranks = memory, streams, blocks = ranks_on_a_gpu(3)
    for part in memory:  # the first words of Memory: done and sent; and after a gap given and taken
        words = part.view(torch.int32)
        words[: 288 + 257 * 8] = torch.tensor(tiles).to(torch.int32)
        words[2368 : 2368 + 256 * 8 + 256] = torch.tensor(sums).to(torch.int32)
    few, many = ([data([count], "float32", rank) for rank in range(3)] for count in (90_000, 2_000_000))
    wanted, given = pairwise(few, "float32", False), [x.cuda() for x in few]
    torch.cuda.synchronize()
    for rank, stream in enumerate(streams):  # a late rank finds all tiles of the others, but not yet their sums
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1 + 20_000_000 * (rank == 1))
            OPS._add_ranks(given[rank], given[rank], memory, rank, "shared", False, blocks, 20 * SECONDS)
    torch.cuda.synchronize()
    for out in given:
        assert_same_bits(out.cpu(), wanted)
    for adding in ("all", "shared", "all", "shared"):
        for got in added(ranks, many, adding):
            assert_same_bits(got, pairwise(many, "float32", False), adding)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_messages(cuda, size):
    memory, streams, _ = ranks_on_a_gpu(size)
    for count in (1, 16, 255, 4096):
        mine = [data([count], "uint8", rank).cuda() for rank in range(size)]
        torch.cuda.synchronize()
        got = []
        for _ in range(6):  # more than there are slots
            for rank, stream in enumerate(streams):
                with torch.cuda.stream(stream):
                    got.append(OPS._gather_ranks(mine[rank], memory, rank, 20 * SECONDS))
        torch.cuda.synchronize()
        assert all(one.equal(torch.cat(mine)) for one in got)
    assert OPS._gather_ranks(mine[0][:0], memory, 0, SECONDS).numel() == 0


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_norms(cuda, size):
    """The bits of the sum, which is rounded, and of a norm of it with a residual, on the CPU."""
    memory, streams, blocks = ranks_on_a_gpu(size)
    most = 8192 if size == 2 else 4096
    for name, (rows, length) in itertools.product(
        ("float32", "bfloat16", "float16"), ((1, 1), (3, 7), (40, 500), (2, 4096), (9, 4097), (5, 8192))
    ):
        if name == "float32" and length > most:
            continue
        parts = [data([rows, length], name, rank) for rank in range(size)]
        total = pairwise(parts, name, False)
        for of_residual, of_weight in ((None, None), (name, name), ("float32", None), (name, "float32")):
            residual = None if of_residual is None else data([rows, length], of_residual, 70)
            weight = None if of_weight is None else data([length], of_weight, 71)
            wanted = torch_reduce.rms_norm(
                total, length, weight, 1e-3, **{} if residual is None else {"residual": residual}
            )
            wanted = wanted if isinstance(wanted, tuple) else (wanted, None)
            given = [x.cuda() for x in parts]
            others = [None if x is None else x.cuda() for x in (residual, weight)]
            torch.cuda.synchronize()
            found = []
            for _ in range(3):
                for rank, stream in enumerate(streams):
                    with torch.cuda.stream(stream):
                        found.append(
                            OPS._add_ranks_norm(given[rank], *others, 1e-3, memory, rank, blocks, 20 * SECONDS)
                        )
            torch.cuda.synchronize()
            for out, stored in found:
                what = f"{name} {rows} {length} {of_residual} {of_weight}"
                assert_same_bits(out.cpu(), wanted[0], what)
                if residual is not None:
                    assert_same_bits(stored.cpu(), wanted[1], what)
    x = torch.ones(4, 8193, device=cuda)
    for words, arguments in (
        ("no kernel for rows of 8193", (x, None, None)),
        ("no kernel for rows of 4 of Double", (x[:, :4].double(), None, None)),
        ("input: expected a contiguous", (x[:, :4], None, None)),
        ("residual: it does not fit", (x[0, :4], x[0, :5], None)),
        ("weight: it does not fit", (x[0, :4], None, x[0, :4].double())),
    ):
        with pytest.raises(RuntimeError, match=words):
            OPS._add_ranks_norm(*arguments, 1e-3, memory, 0, blocks, SECONDS)


ALONE = """
import os
os.dup2(1, 2)  # where the device writes
import torch
ops = torch.ops.gpureduce
import torch_reduce
size, blocks = ops._symmetric_needs(3)
memory = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(3)]
x = torch.ones(8, device="cuda")
ops._add_ranks(x, x, memory, 1, "all", False, blocks, 10**9)
try:
    torch.cuda.synchronize()
except RuntimeError as error:
    print("RAISED", error, flush=True)
os._exit(0)
"""


def test_a_rank_that_never_comes(cuda):
    """It is waited for as long as the group says, and then named."""
    told = python("-c", ALONE)
    assert "torch_reduce.distributed: rank 1 has waited 1 seconds for rank 0` failed" in told
    assert "RAISED CUDA error: device-side assert triggered" in told


def test_arguments(cuda):
    """What does not fit is refused before a kernel runs."""
    size, blocks = OPS._symmetric_needs(2)
    assert 1 <= blocks <= 256
    memory = [torch.zeros(size, dtype=torch.uint8, device=cuda) for _ in range(2)]
    x, one = torch.ones(8, device=cuda), [0, "all", False, 16, SECONDS]
    for words, arguments in (
        ("expected 2 to 8 ranks, but got 1", (x, x, memory[:1], *one)),
        ("memory: expected", (x, x, [memory[0], memory[1][:-1]], *one)),
        ("memory: expected", (x, x, [memory[0], memory[1].cpu()], *one)),
        ("rank: expected 0 to 1", (x, x, memory, 2, *one[1:])),
        ("adding: expected", (x, x, memory, 0, "some", *one[2:])),
        ("there is no kernel for Bool", (x.bool(), x.bool(), memory, *one)),
        ("averages: expected", (x.int(), x.int(), memory, 0, "all", True, 16, SECONDS)),
        ("does not fit", (x, x[:7], memory, *one)),
        ("does not fit", (x, x, memory, 0, "scattered", *one[2:])),
        ("does not fit", (x, x.double(), memory, *one)),
        ("input: expected a contiguous", (x[::2], x[:4], memory, *one)),
        ("output: expected a contiguous", (x[:4], x[::2], memory, *one)),
        ("blocks: expected 1 to 256, but got 0", (x, x, memory, 0, "all", False, 0, SECONDS)),
        ("patience: expected", (x, x, memory, 0, "all", False, 16, -1)),
    ):
        with pytest.raises(RuntimeError, match=words):
            OPS._add_ranks(*arguments)
    with pytest.raises(RuntimeError, match="mine: expected at most 4096 bytes"):
        OPS._gather_ranks(torch.zeros(4097, dtype=torch.uint8, device=cuda), memory, 0, SECONDS)
    for ranks in (1, 9):
        with pytest.raises(RuntimeError, match="expected 2 to 8"):
            OPS._symmetric_needs(ranks)


def test_rows_of_norms(cuda):
    """What the kernels hold, per row."""
    fits = lambda name, length, world: _symmetric.adds_norms((2, length), dtype_of(name), [], world)  # noqa: E731
    assert fits("bfloat16", 8192, 2) and fits("bfloat16", 8192, 3) and not fits("bfloat16", 8193, 2)
    assert fits("float32", 8192, 2) and fits("float32", 4096, 3) and not fits("float32", 4097, 3)
    assert not fits("float64", 64, 2) and not fits("bfloat16", 0, 2) and not fits("complex64", 64, 2)


def test_dtypes():
    """Those that the kernels add, some as others with the same bits."""
    for name in ("float32", "complex64", "complex32", "uint32", "uint64", "int64"):
        assert _symmetric.adds(dtype_of(name), False)
    for name in ("bool", "int8", "uint16", "float8_e4m3fn"):
        assert not _symmetric.adds(dtype_of(name), False)
    assert _symmetric.adds(torch.bfloat16, True) and not _symmetric.adds(torch.int32, True)


# --- ranks with a GPU each --------------------------------------------------------------------------------------------


def lends(group):
    """Sums through memory that is lent have the bits that NCCL's way has, whatever their strides and streams."""
    rank, size, device = dist.get_rank(group), dist.get_world_size(group), here()
    for name in ("float32", "bfloat16", "complex64", "int32"):
        for shape in ((1,), (3, 5 * size), (1 << 20,), (5_000_000 // size * size,)):
            parts = [data(shape, name, r) for r in range(size)]
            kept = _symmetric.lent
            found = []
            for through in (True, False):
                _symmetric.lent = kept if through else lambda group, device: None
                try:
                    plain, apart = (
                        parts[rank].to(device),
                        parts[rank].to(device)[..., None].repeat_interleave(2, -1)[..., 1],
                    )
                    distributed.all_reduce(plain, group)
                    distributed.all_reduce(apart, group)
                    found += [plain, apart.clone()]
                    if plain.numel() % size == 0:
                        piece = plain.new_empty(plain.numel() // size)
                        distributed.reduce_scatter(piece, parts[rank].to(device), group)
                        found.append(torch.cat([plain.new_empty(0), piece]))
                finally:
                    _symmetric.lent = kept
            half = len(found) // 2
            for ours, of_nccl in zip(found[:half], found[half:], strict=True):
                assert_same_bits(ours.cpu(), of_nccl.cpu(), f"{name} {shape}")
    assert _symmetric.known(group, device) is not None
    streams = [torch.cuda.Stream() for _ in range(3)]
    x = [torch.full((1 << 18,), 1.0 + rank, device=device) for _ in range(9)]
    torch.cuda.synchronize()
    for k, one in enumerate(x):
        with torch.cuda.stream(streams[k % 3]):
            torch.cuda._sleep(1000 * (k + 1) * (rank + 1))
            distributed.all_reduce(one, group, check=k % 2 == 0)
    torch.cuda.synchronize()
    assert all(one.eq(size * (size + 1) / 2).all() for one in x)


@pytest.fixture
def ranks(world):
    """Ranks that can lend each other memory."""
    if world.size < 2:
        pytest.skip("needs two NVIDIA GPUs")
    return world


def test_memory_is_lent(ranks):
    ranks.run(ranks.size, lends)


def norms(group):
    """all_reduce_rms_norm takes one kernel for few rows, and has the bits of the two calls."""
    rank, size, device = dist.get_rank(group), dist.get_world_size(group), here()
    took, kernel = [], _symmetric.Memory.add_norm
    _symmetric.Memory.add_norm = lambda memory, *args: took.append(args) or kernel(memory, *args)
    try:
        for name in ("bfloat16", "float32", "float64"):
            for shape in ((2, 3, 4096), (5, 16_384), (3000, 4096)):
                x, residual = data(shape, name, rank, device), data(shape, name, 9, device)
                weight, total = data(shape[-1:], name, 10, device), x.clone()
                distributed.all_reduce(total, group)
                one = distributed.all_reduce_rms_norm(x, shape[-1], weight, group=group)
                assert_same_bits(one, torch_reduce.rms_norm(total, shape[-1], weight))
                pair = distributed.all_reduce_rms_norm(x, shape[-1], weight, 1e-5, residual=residual, group=group)
                wanted = torch_reduce.rms_norm(total, shape[-1], weight, 1e-5, residual=residual)
                for got, bits in zip(pair, wanted, strict=True):
                    assert_same_bits(got, bits)
    finally:
        _symmetric.Memory.add_norm = kernel
    graph, x = torch.cuda.CUDAGraph(), torch.full((4, 64), 1.0 + rank, device=device)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        got = distributed.all_reduce_rms_norm(x, 64, group=group, check=False)
    graph.replay()
    assert_same_bits(got, torch_reduce.rms_norm(torch.full_like(x, size * (size + 1) / 2), 64))
    graph, streams = torch.cuda.CUDAGraph(), [torch.cuda.Stream() for _ in range(3)]
    parts = [torch.full((1 << 16,), 1.0 + rank + k, device=device) for k in range(6)]
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # branches of one graph, as ddp_hook makes them
        for k, one in enumerate(parts):
            streams[k % 3].wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(streams[k % 3]):
                distributed.all_reduce(one, group, check=False)
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    assert all(one.eq(size * (size + 1) / 2 + size * k).all() for k, one in enumerate(parts))
    return len(took)


def test_norms_of_ranks(ranks):
    """Of bfloat16 and float32 in rows of 4096, and few of them."""
    assert ranks.run(ranks.size, norms) == [4] * ranks.size


def groups_at_once(group):
    """Two groups of the same ranks, on two streams: each has its own memory."""
    rank, size, device = dist.get_rank(group), dist.get_world_size(group), here()
    others = [dist.new_group(list(range(size))) for _ in range(2)]
    x = [torch.full((1 << 20,), 1.0 + rank + k, device=device) for k in range(2)]
    for one, each in zip(x, others, strict=True):
        distributed.all_reduce(one.clone(), each)  # which lends
    streams = [torch.cuda.Stream() for _ in others]
    torch.cuda.synchronize()
    for _ in range(10):
        for one, each, stream in zip(x, others, streams, strict=True):
            with torch.cuda.stream(stream):
                distributed.all_reduce(one, each, check=False)
                one /= size
    torch.cuda.synchronize()
    assert all(one.eq((size + 1) / 2 + k).all() for k, one in enumerate(x))
    for each in others:
        dist.destroy_process_group(each)


def test_two_groups_at_once(ranks):
    ranks.run(ranks.size, groups_at_once)


def alone_in_a_group(group):
    return _symmetric.lent(group, here()) is None


def test_one_rank_has_nobody_to_lend_to(world):
    assert all(world.run(1, alone_in_a_group))


def ends(group):
    """Another group's memory, which goes with the group; and what the ranks agree on goes through it."""
    new = dist.new_group(list(range(dist.get_world_size(group))))
    x = torch.ones(4, device=here())
    distributed.all_reduce(x, new)
    memory = weakref.ref(_symmetric.known(new, here()))
    gathers, gather = [], dist.all_gather_into_tensor
    dist.all_gather_into_tensor = lambda *args, **kwargs: gathers.append(args) or gather(*args, **kwargs)
    try:
        distributed.all_reduce(x, new)
        distributed.all_reduce(torch.ones(5, device=here()), new)  # for which the host waits
    finally:
        dist.all_gather_into_tensor = gather
    assert not gathers and x.eq(dist.get_world_size(group) ** 2).all()
    torch.cuda.synchronize()
    dist.destroy_process_group(new)
    _messages._agreements.pop(new, None)
    del new
    gc.collect()
    return memory() is None


def test_memory_is_given_back(ranks):
    assert all(ranks.run(ranks.size, ends))


def unwilling(group):
    """The environment of one rank says no: all go through NCCL."""
    import os

    new, x = dist.new_group(list(range(dist.get_world_size(group)))), torch.ones(4, device=here())
    if dist.get_rank(group) == 1:
        os.environ["GPUREDUCE_SYMMETRIC"] = "0"
    try:
        distributed.all_reduce(x, new)
    finally:
        os.environ.pop("GPUREDUCE_SYMMETRIC", None)
    dist.destroy_process_group(new)
    return x.tolist(), _symmetric.known(new, here()) is None


def test_one_rank_says_no(ranks):
    assert ranks.run(ranks.size, unwilling) == [([float(ranks.size)] * 4, True)] * ranks.size
