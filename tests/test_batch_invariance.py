"""Batch invariance: the bits of a row's result depend on the row alone, not on its surroundings or its layout."""

import pytest
import torch
from torch.utils._pytree import tree_map

import torch_reduce
from support import EVERY, SUM, assert_same_bits, data, every_operation, name_of
from table import CASES, SEGMENTS, WEIGHTED, taken, tensors

NAMES = ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "complex64", "complex32"]
OF_ROWS = [(op, name) for op in EVERY for name in (NAMES if op is SUM else ["bfloat16", "float64"])]
LENGTHS = [1, 3, 8, 31, 64, 100, 513, 1000, 4096, 4097, 9001, 50257]


@pytest.fixture(scope="module", params=LENGTHS)
def length(request):
    """Elements of the row."""
    return request.param


@pytest.fixture(scope="module", params=OF_ROWS, ids=lambda case: "-".join(map(str, case)))
def row(request, length, device):
    """An operation, the row whose bits must never change, and its result alone (which has the model's bits)."""
    op, name = request.param
    x = data((length,), name, seed=length, device=device)
    return op, x, op.check(x, 0)


def batch_around(x, rows, at):
    """A batch of other data with the row at index `at`."""
    name = name_of(x.dtype)
    batch = data((rows, len(x)), name, seed=rows, device=x.device)
    batch[at] = x
    return batch


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 32, 129, 1000])
def test_in_any_batch(row, rows):
    """Inside a batch of any size, first, middle and last."""
    op, x, alone = row
    if rows * len(x) > 400_000:
        rows = max(2, 400_000 // len(x))
    for at in {0, rows // 2, rows - 1}:
        assert_same_bits(op(batch_around(x, rows, at), 1)[at], alone)


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 33, 256])
def test_as_a_column(row, columns):
    """As a column among others, at either end and in between."""
    op, x, alone = row
    columns = min(columns, max(1, 400_000 // len(x)))
    batch = batch_around(x, columns, columns // 2)
    assert_same_bits(op(batch.t().contiguous(), 0)[columns // 2], alone)


@pytest.mark.parametrize("step", [2, 3, 5])
def test_strided(row, step):
    """With gaps between its elements."""
    op, x, alone = row
    buffer = data((len(x) * step,), name_of(x.dtype), seed=1, device=x.device)
    buffer[::step] = x
    assert_same_bits(op(buffer[::step], 0), alone)
    table = buffer.view(len(x), step)
    assert_same_bits(op(table, 0)[0], alone)


@pytest.mark.parametrize("offset", [1, 2, 3, 7, 15])
def test_at_any_offset(row, offset):
    """A row has the same bits at any address, and in a matrix whose rows begin at odd addresses."""
    op, x, alone = row
    name = name_of(x.dtype)
    buffer = data((len(x) + 16,), name, seed=2, device=x.device)
    buffer[offset : offset + len(x)] = x
    assert_same_bits(op(buffer[offset : offset + len(x)], 0), alone)
    pitched = data((3, len(x) + offset), name, seed=3, device=x.device)
    pitched[1, : len(x)] = x
    assert_same_bits(op(pitched[:, : len(x)], 1)[1], alone)


def test_expanded(row):
    """Repeated by stride 0, as rows and as columns."""
    op, x, alone = row
    for y in (op(x.expand(5, -1), 1), op(x[:, None].expand(-1, 5), 0)):
        for one in y:
            assert_same_bits(one, alone)


def test_inside(row):
    """As the middle dim of three, contiguous and permuted."""
    op, x, alone = row
    batch = data((2, len(x), 3), name_of(x.dtype), seed=4, device=x.device)
    batch[0, :, 1] = x
    assert_same_bits(op(batch, 1)[0, 1], alone)
    assert_same_bits(op(batch.permute(2, 1, 0).contiguous(), 1)[1, 0], alone)
    assert_same_bits(op(batch.permute(2, 1, 0), 1)[1, 0], alone)


@pytest.mark.parametrize("name", NAMES)
@every_operation
def test_over_the_inner_dims_of_an_image(name, op, device):
    """A sample's sum over (C, H, W) is its row's, contiguous or channels_last, alone or in a batch."""
    x = data((5, 6, 37, 41), name, seed=4, device=device)
    last = x.to(memory_format=torch.channels_last)
    for image in (x, last):
        whole = op(image, (1, 2, 3))
        for i in range(len(x)):
            flat = image[i : i + 1]
            assert_same_bits(op(flat, (1, 2, 3)), whole[i : i + 1])
    assert_same_bits(op(last, (1, 2, 3)), op(last.permute(0, 2, 3, 1).reshape(5, -1), 1))  # memory order


@pytest.mark.parametrize("name", NAMES)
@every_operation
def test_several_dims_are_one_row(name, op, device):
    """Summing several contiguous dims has the bits of summing them flattened."""
    x = data((3, 17, 29, 31), name, seed=5, device=device)
    flat = op(x.view(3, -1), 1)
    assert_same_bits(op(x, (1, 2, 3)), flat)
    assert_same_bits(op(x, (3, 1, 2)), flat)
    assert_same_bits(op(x.permute(0, 3, 1, 2), (1, 2, 3)), flat)
    assert_same_bits(op(x[:, None], (1, 2, 3, 4)), flat)


@taken(
    "float32", "bfloat16", "int16", "float64", "complex64", "complex128", cases=[op for op in CASES if op not in EVERY]
)
def test_of_other_operations(op, name, device):
    """A row alone, in any batch, as a column, strided, at an odd offset and expanded."""
    dtype = {"dtype": op.wide(name)} if op.has_dtype else {}
    for length in (1, 9, 513, 4097, 9001):
        if op in SEGMENTS and length == 1:
            continue
        x = op.inputs((5, length), name, 56, device, 1)
        second = tensors(x)[1:]
        segments = op in SEGMENTS

        def called(view, dim=None, of=lambda t: t):
            around = second if segments else map(of, second)  # noqa: B023
            return op((view, *around) if second else view, 0 if dim is None else dim, **dtype)  # noqa: B023

        x = tensors(x)[0]
        alone = called(x[3], of=lambda t: t[3])

        def apart(t, step=2, length=length):
            room = t.new_zeros(step * length + 1)
            room[1::step][:length] = t[3]
            return room[1::step][:length]

        one = lambda results, i, d=0: tree_map(lambda t: t.select(d, i), results)  # noqa: E731
        for got in (
            one(called(x, 1), 3),
            one(called(x.t().contiguous(), 0, lambda t: t.t().contiguous()), 3, -1),
            called(apart(x), of=apart),
            called(apart(x), of=lambda t: t[3]),
            called(apart(x, 1), of=lambda t: apart(t, 1)),
            one(called(x[3].expand(4, -1), 1, lambda t: t[3].expand(4, -1)), 2),
            one(called(x[3][:, None].expand(-1, 6), 0, lambda t: t[3][:, None].expand(-1, 6)), 5, -1),
        ):
            assert_same_bits(got, alone)


OF_THREADS = [(op, name) for op in EVERY for name in ("float32", "bfloat16", "float64", "complex64")]
OF_THREADS += [(op, "float32") for op in CASES if op not in EVERY] + [(WEIGHTED, "bfloat16"), (WEIGHTED, "int64")]


@pytest.mark.parametrize(("op", "name"), OF_THREADS, ids=str)
def test_any_number_of_threads(op, name, set_threads):
    """On the CPU: any thread count, for few long rows, many rows, and columns."""
    shapes = [
        ((300_001,), 0),
        ((3, 100_001), 1),
        ((2000, 129), 1),
        ((129, 2000), 0),
        ((40, 70, 31), 1),
        ((100_001, 3), 0),
        ((8, 65_537), 0),  # one or two columns are left for the last task
        ((600, 961), 0),
        ((600, 962), 0),
        ((4300, 130), 0),  # threads share the leaves of a chunk
        ((3, 1027, 70), 1),
    ]
    shapes = [(shape, dim) for shape, dim in shapes if op.has(torch.empty(shape, device="meta"), dim)]
    inputs = [(op.inputs(shape, name, 6, "cpu", dim), dim) for shape, dim in shapes]
    wanted = [op.expected(x, dim) for x, dim in inputs]
    for threads in (1, 2, 3, 5, 8, 16):
        set_threads(threads)
        for (x, dim), bits in zip(inputs, wanted, strict=True):
            assert_same_bits(op(x, dim), bits, f"with {threads} threads for {tuple(tensors(x)[0].shape)}")


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_few_columns_of_a_chunk_are_work_for_several_threads(threads, set_threads):
    set_threads(threads)
    assert f"on {threads} threads" in torch_reduce.explain(torch.ones(4096, 256), 0)
    assert f"on {threads} threads" in torch_reduce.explain(torch.ones(4096, 1024, dtype=torch.bfloat16), 0)


@every_operation
def test_repeated_calls(op, device):
    """The same call gives the same bits, again and again."""
    x = data((1 << 20,), "float32", seed=7, device=device)
    first = op(x, 0)
    for _ in range(20):
        assert_same_bits(op(x, 0), first)
