"""Batch invariance: the bits of a row's result depend on the row alone, not on its surroundings or its layout."""

import itertools

import pytest
import torch
from torch.utils._pytree import tree_map

import torch_reduce
from support import EVERY, SUM, assert_same_bits, data, every_operation, name_of
from table import CASES, SEGMENTS, WEIGHTED, taken, tensors

NAMES = ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "complex64", "complex32"]
OF_ROWS = [(op, name) for op in EVERY for name in (NAMES if op is SUM else ["bfloat16", "float64"])]
LENGTHS = [1, 3, 8, 31, 64, 100, 513, 1000, 4096, 4097, 9001, 50257]


@pytest.fixture(scope="module", params=OF_ROWS, ids=lambda case: "-".join(map(str, case)))
def rows(request, device):
    """An operation, and rows whose bits must never change: each with its result alone, which has the model's bits."""
    op, name = request.param
    each = [data((length,), name, seed=length, device=device) for length in LENGTHS]
    return op, [(x, op.check(x, 0)) for x in each]


def batch_around(x, size, at):
    """A batch of other data with the row at index `at`."""
    batch = data((size, len(x)), name_of(x.dtype), seed=size, device=x.device)
    batch[at] = x
    return batch


def test_in_any_batch(rows):
    """Inside a batch of any size, first, middle and last."""
    op, each = rows
    for x, alone in each:
        for size in {min(size, max(2, 400_000 // len(x))) for size in (1, 2, 3, 7, 32, 129, 1000)}:
            for at in {0, size // 2, size - 1}:
                assert_same_bits(op(batch_around(x, size, at), 1)[at], alone, f"{at} of {size} rows of {len(x)}")


def test_as_a_column(rows):
    """As a column among others, at either end and in between."""
    op, each = rows
    for x, alone in each:
        for size in {min(size, max(1, 400_000 // len(x))) for size in (1, 2, 3, 8, 33, 256)}:
            batch = batch_around(x, size, size // 2)
            found = op(batch.t().contiguous(), 0)[size // 2]
            assert_same_bits(found, alone, f"among {size} columns of {len(x)}")


def test_strided(rows):
    """With gaps between its elements."""
    op, each = rows
    for (x, alone), step in itertools.product(each, (2, 3, 5)):
        buffer = data((len(x) * step,), name_of(x.dtype), seed=1, device=x.device)
        buffer[::step] = x
        for got in (op(buffer[::step], 0), op(buffer.view(len(x), step), 0)[0]):
            assert_same_bits(got, alone, f"every {step}th of {len(x)}")


def test_at_any_offset(rows):
    """A row has the same bits at any address, and in a matrix whose rows begin at odd addresses."""
    op, each = rows
    for (x, alone), offset in itertools.product(each, (1, 2, 3, 7, 15)):
        buffer = data((len(x) + 16,), name_of(x.dtype), seed=2, device=x.device)
        buffer[offset : offset + len(x)] = x
        pitched = data((3, len(x) + offset), name_of(x.dtype), seed=3, device=x.device)
        pitched[1, : len(x)] = x
        for got in (op(buffer[offset : offset + len(x)], 0), op(pitched[:, : len(x)], 1)[1]):
            assert_same_bits(got, alone, f"{len(x)} at {offset}")


def test_expanded(rows):
    """Repeated by stride 0, as rows and as columns."""
    op, each = rows
    for x, alone in each:
        for y in (op(x.expand(5, -1), 1), op(x[:, None].expand(-1, 5), 0)):
            for one in y:
                assert_same_bits(one, alone, f"of {len(x)}")


def test_inside(rows):
    """As the middle dim of three, contiguous and permuted."""
    op, each = rows
    for x, alone in each:
        batch = data((2, len(x), 3), name_of(x.dtype), seed=4, device=x.device)
        batch[0, :, 1] = x
        turned = batch.permute(2, 1, 0)
        for got in (op(batch, 1)[0, 1], op(turned.contiguous(), 1)[1, 0], op(turned, 1)[1, 0]):
            assert_same_bits(got, alone, f"of {len(x)}")


@every_operation
def test_over_the_inner_dims_of_an_image(op, device):
    """A sample's sum over (C, H, W) is its row's, contiguous or channels_last, alone or in a batch."""
    for name in NAMES:
        x = data((5, 6, 37, 41), name, seed=4, device=device)
        last = x.to(memory_format=torch.channels_last)
        for image in (x, last):
            whole = op(image, (1, 2, 3))
            for i in range(len(x)):
                assert_same_bits(op(image[i : i + 1], (1, 2, 3)), whole[i : i + 1], name)
        rows = last.permute(0, 2, 3, 1).reshape(5, -1)  # in the order of memory
        assert_same_bits(op(last, (1, 2, 3)), op(rows, 1), name)


@every_operation
def test_several_dims_are_one_row(op, device):
    """Summing several contiguous dims has the bits of summing them flattened."""
    for name in NAMES:
        x = data((3, 17, 29, 31), name, seed=5, device=device)
        flat = op(x.view(3, -1), 1)
        for view, dims in (
            (x, (1, 2, 3)),
            (x, (3, 1, 2)),
            (x.permute(0, 3, 1, 2), (1, 2, 3)),
            (x[:, None], (1, 2, 3, 4)),
        ):
            assert_same_bits(op(view, dims), flat, name)


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
    set_threads(1)
    wanted = [op.expected(x, dim) if op is SUM else op(x, dim) for x, dim in inputs]
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
