"""More than 2^31 elements, outputs and bytes between neighbours: nothing is counted in 32 bits."""

import fcntl
import json
import mmap
import os
import pathlib
import tempfile

import numpy as np
import pytest
import torch

import model
import torch_reduce
from support import MEAN, SUM, assert_same_bits, check, data, dtype_of, numpy_of

HUGE = 1 << 31


@pytest.fixture(autouse=True)
def alone(device):
    """One process at a time on a GPU: another one would take the memory that `needs` has found free."""
    if device == "cpu":
        yield
        return
    with (pathlib.Path(tempfile.gettempdir()) / f"torch_reduce-test-large-{os.getuid()}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        torch.cuda.empty_cache()


def needs(device, gib):
    """Skips the test where the device has less free memory than this."""
    if device == "cuda":
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info()[0]
    else:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 0.6
        with open("/proc/meminfo") as lines:
            free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), free)
    if free < gib * 1.1 * 2**30:
        pytest.skip(f"needs {gib} GiB of free memory on {device}")


def addends(x, target):
    """A vector's elements as the model adds them."""
    return model.addends(numpy_of(x.cpu()), str(x.dtype).removeprefix("torch."), target)[0]


def tiled(pattern, length):
    """The pattern, repeated to a vector of this length."""
    x = torch.empty(length, dtype=pattern.dtype, device=pattern.device)
    done = len(pattern)
    x[:done] = pattern
    while done < length:
        more = min(done, length - done)
        x[done : done + more] = x[:more]
        done += more
    return x


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8", "float64"])
def test_elements_of_an_expanded_row(name, device):
    """A row of 2051 elements, repeated 2^20 times by stride 0: the model's bits, with no memory at all."""
    row = data((2051,), name, seed=1, device=device)
    rows = HUGE // 2051 + 3
    target = {"bfloat16": "float32", "int8": "int64"}.get(name, name)
    total = SUM(row.expand(rows, 2051), dtype=dtype_of(target))
    wanted = model.periodic_sum(addends(row, target), rows * 2051)
    assert_same_bits(total, model.results([np.array(wanted)], target))


@pytest.mark.parametrize("name", ["float32", "int8"])
def test_elements_of_one_value(name, device):
    """One element, repeated 2^31 + 4097 times; and three columns of it."""
    x = data((3,), name, seed=2, device=device)
    target = model.natural_result(name)
    many, sums = x[:1].expand(HUGE + 4097), [np.array(model.periodic_sum(addends(x[:1], target), HUGE + 4097))]
    assert_same_bits(SUM(many), model.results(sums, target))
    if MEAN.takes(name):
        assert_same_bits(MEAN(many), model.results(model.quotients(sums, HUGE + 4097, target), target))
    rows = HUGE // 3 + 1000
    columns = SUM(x.expand(rows, 3), 0)
    wanted = [model.periodic_sum(addends(x[i : i + 1], target), rows) for i in range(3)]
    assert_same_bits(columns, model.results([np.array(wanted)], target))


def test_bytes_in_memory(device):
    """2^31 + 4096 elements of int8, contiguous, from an odd offset, and as two columns."""
    needs(device, 3)
    period = torch.arange(-125, 126, dtype=torch.int8, device=device)  # 251 values, summing to 0
    x = tiled(period, HUGE + 4097)
    for offset in (0, 1):
        n = HUGE + 4096
        tail = (n + offset) % 251
        exact = sum(range(-125, -125 + tail)) - (-125 if offset else 0)
        assert int(SUM(x[offset : offset + n])) == exact
    even, odd = SUM(x[: HUGE + 4096].view(-1, 2), 0).tolist()
    assert even + odd == int(SUM(x[: HUGE + 4096]))
    last = (HUGE + 4095) % 251 - 125  # the last element is odd's; both columns are half of whole periods and a rest
    rest = [i % 251 - 125 for i in range((HUGE + 4096) // 502 * 502, HUGE + 4096)]
    assert [even, odd] == [sum(rest[0::2]), sum(rest[1::2])] and rest[-1] == last


def zeros(length, dtype, device):
    """A vector of zeros. On the CPU its pages are one page of zeros, until something is written there."""
    if device == "cuda":
        return torch.zeros(length, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, length * dtype.itemsize), dtype=dtype)


@pytest.mark.parametrize("name", ["int8", "bfloat16"])
def test_an_index_above_2_32(name, device):
    """The first of two largest elements, where 32 bits do not count; and the last of as many as packed lanes take."""
    if device == "cpu" and name != "int8":
        pytest.skip("takes long on a CPU, whose code that counts is the same for all dtypes")
    if device == "cuda":
        needs(device, 5 if name == "int8" else 9)
    x = zeros((1 << 32) + 77, dtype_of(name), device)
    x[-9] = x[-2] = 1
    assert torch_reduce.argmax(x).item() == len(x) - 9
    if device == "cuda":
        assert torch_reduce.argmin(x).item() == 0
    whole = x[78:]  # 2^32 - 1 elements
    whole[-9] = 0
    whole[-1] = 2
    assert torch_reduce.argmax(whole).item() == len(whole) - 1


def test_very_many_rows_of_columns(device):
    """2^29 + 1 rows of 64 columns, which overlap: what their parts come to."""
    if device == "cpu":
        pytest.skip("takes a minute on a CPU")
    needs(device, 9)
    rows, part = (1 << 29) + 1, 1 << 26
    x = tiled(torch.arange(-125, 126, dtype=torch.int8, device=device), 16 * rows + 48)
    columns = x.as_strided((rows, 64), (16, 1))
    assert torch.equal(SUM(columns, 0), sum(SUM(columns[i : i + part], 0) for i in range(0, rows, part)))


def test_floats_in_memory(device):
    """2^31 + 4097 elements of float32: the model's bits."""
    if device == "cpu":
        pytest.skip("the CPU reads as many elements from an expanded row")
    needs(device, 10)
    row = data((2051,), "float32", seed=3, device=device)
    x = tiled(row, HUGE + 4097)
    wanted = model.periodic_sum(numpy_of(row.cpu())[:, 0], HUGE + 4097)
    assert_same_bits(SUM(x), model.results([np.array(wanted)], "float32"))


@pytest.mark.parametrize("name", ["int8", "bfloat16"])
def test_elements_far_apart(name, device):
    """Rows and elements that lie more than 2^31 elements from one another, and at such an offset."""
    needs(device, 5 if device == "cuda" and name == "int8" else 9 if device == "cuda" else 1)
    x = torch.empty(HUGE + (1 << 20), dtype=dtype_of(name), device=device)  # on the CPU, untouched pages cost nothing
    rows = data((2, 5000), name, seed=4, device=device)
    far = x.as_strided((2, 5000), (HUGE + 7, 1), 3)
    far.copy_(rows)
    for dim in (0, 1, None):
        wanted = SUM(rows, dim)
        assert_same_bits(SUM(far, dim), wanted)
        assert_same_bits(SUM(far.t(), None if dim is None else 1 - dim), wanted)
    assert_same_bits(SUM(x[HUGE + 10 : HUGE + 5010], 0), SUM(rows[1], 0))
    check(rows, 1)


@pytest.mark.parametrize(
    "shape,strides,dim", [((HUGE + 4096, 2), (1, 1), 1), ((2, HUGE + 4096), (1, 1), 0)], ids=["rows", "columns"]
)
def test_outputs(shape, strides, dim, device):
    """2^31 + 4096 outputs, each the sum of two neighbours, as int8."""
    if device == "cpu":
        pytest.skip("takes a minute on a CPU")
    needs(device, 12)
    x = tiled(torch.arange(-125, 126, dtype=torch.int8, device=device), HUGE + 4097)
    sums = SUM(x.as_strided(shape, strides), dim, dtype=torch.int8)
    assert sums.numel() == HUGE + 4096
    assert torch.equal(sums, x[:-1] + x[1:])


def test_nested_outputs_of_a_join(device):
    """2^31 outputs and more in nested dims, which only the join rounds to int8."""
    if device == "cpu":
        pytest.skip("takes minutes on a CPU")
    needs(device, 32)
    x = tiled(torch.arange(-125, 126, dtype=torch.int8, device=device), 65_600 * 2 * 32_771).view(65_600, 2, 32_771)
    sums = SUM(x.permute(2, 0, 1), -1, dtype=torch.int8)
    assert torch.equal(sums, (x[:, 0] + x[:, 1]).t())


def test_more_than_2_32_tiles(device):
    """2^31 - 2 rows, whose blocks take a part each."""
    if device == "cpu":
        pytest.skip("its rows are not cut for a CPU")
    needs(device, 46)
    row = data((1, 4200), "float64", seed=6)
    x = row.to(device).expand(HUGE - 2, 4200)
    view = (x.shape, x.stride(), [1], x.dtype, x.dtype)
    for k in range(99):
        plan = json.loads(torch.ops.gpureduce._plan(*view, f"candidate={k}"))
        if plan["tiles"] > 1 << 32:
            break
    sums = torch.ops.gpureduce._sum_tuned(x, 1, tuning=f"candidate={k}")
    assert float(sums.min()) == float(sums.max()) == float(SUM(row, 1))


def test_very_many_partial_sums(device):
    """2^19 partial sums of one output: more than one block joins."""
    if device == "cpu":
        pytest.skip("takes minutes on a CPU")
    needs(device, 10)
    x = data((1 << 20,), "int8", seed=7, device=device)
    total = SUM(x.expand(1 << 18, -1))
    assert int(total) == int(x.cpu().long().sum()) << 18


def test_outputs_into_out(device):
    """2^31 + 4096 outputs of one expanded row into an out of uint8."""
    if device == "cpu":
        pytest.skip("takes a minute on a CPU")
    needs(device, 6)
    out = torch.zeros(HUGE + 4096, dtype=torch.uint8, device=device)
    row = torch.tensor([[3, 4]], dtype=torch.int8, device=device)
    SUM(row.expand(HUGE + 4096, 2), 1, out=out)
    assert int(out.min()) == int(out.max()) == 7


def test_outputs_of_rows_in_vectors(device):
    """2^31 + 4096 outputs of one expanded row, which is read in vectors; the last vector is not full."""
    if device == "cpu":
        pytest.skip("takes minutes on a CPU")
    needs(device, 5)
    row = data((1, 301), "bfloat16", seed=5)
    sums = SUM(row.to(device).expand(HUGE + 4096, 301), 1)
    assert float(sums.min()) == float(sums.max()) == float(SUM(row, 1))
