"""Indices and offsets that another thread changes while a function reads them: its numbers may be any, but it reads and
writes nothing outside of its tensors. The functions run in other processes, where an access outside ends the process or
is seen.

As a program: runs functions on a device, each again and again, beside a process that keeps writing to its index."""

import contextlib
import multiprocessing
import os
import random
import sys

import numpy as np
import pytest
import torch

import torch_reduce
from support import python

ROUNDS, FEW_ROUNDS = 300, 20  # few of what takes long
ENTRIES, SIZE, COLUMNS = 20000, 200, 3
MARGIN, MARK = 4096, 1234.5  # elements around a result, and what they are


def rows(device, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def random_index(choose):
    return np.array([choose.randrange(SIZE) for _ in range(ENTRIES)])


def random_offsets(choose):
    return np.array([0, *sorted(choose.randrange(ENTRIES + 1) for _ in range(SIZE - 1)), ENTRIES])


def wild(choose, size, name):
    """Numbers that lie outside by one, by a little and by far. A bincount has as many results as the largest says."""
    far = [2**20] if name.startswith("bincount") else [2**40, -(2**40), 2**62]
    return np.array([choose.choice([-1, -50, SIZE, ENTRIES + 1, ENTRIES + 900, *far]) for _ in range(size)])


# What makes calls of each function, from the device, the tensor that changes and an out= that may be None.
BY_INDEX = {}
BY_OFFSETS = {}


def entry(table, name):
    return lambda make: table.setdefault(name, make)


def of_rows(name, **named):
    function = getattr(torch_reduce, name)

    def make(device, index, out):
        source = rows(device, ENTRIES, COLUMNS)
        return lambda: function(source, index, SIZE, out=out, **named)

    return make


for name in ("index_sum", "index_mean", "index_amax", "index_amin"):
    BY_INDEX[name] = of_rows(name)


@entry(BY_INDEX, "index_sum of numbers")
def _(device, index, out):
    source = rows(device, ENTRIES)
    return lambda: torch_reduce.index_sum(source, index, SIZE)


@entry(BY_INDEX, "index_sum with weights")
def _(device, index, out):
    source, weight = rows(device, ENTRIES, COLUMNS), rows(device, ENTRIES)
    return lambda: torch_reduce.index_sum(source, index, SIZE, weight=weight, out=out)


@entry(BY_INDEX, "index_plan")
def _(device, index, out):
    return lambda: torch_reduce.index_plan(index, SIZE)


@entry(BY_INDEX, "gather_sum")
def _(device, index, out):
    table, weight = rows(device, SIZE, COLUMNS), rows(device, ENTRIES, COLUMNS)
    return lambda: [
        torch_reduce.gather_sum(table, index, index, SIZE, weight=weight[:, :width]) for width in (1, COLUMNS)
    ]


@entry(BY_INDEX, "gather_plan")
def _(device, index, out):
    table = rows(device, SIZE, COLUMNS)
    return lambda: torch_reduce.gather_sum(table, torch_reduce.gather_plan(index, index, SIZE, SIZE))


@entry(BY_INDEX, "index_add")
def _(device, index, out):
    source, start = rows(device, ENTRIES, COLUMNS), rows(device, SIZE, COLUMNS)
    return lambda: torch_reduce.index_add(start, 0, index, source)


@entry(BY_INDEX, "index_reduce")
def _(device, index, out):
    source, start = rows(device, ENTRIES, COLUMNS), rows(device, SIZE, COLUMNS)
    kinds = ("sum", "prod", "mean", "amax", "amin")
    return lambda: [
        torch_reduce.index_reduce(start, 0, index, source, kind, include_self=own)
        for kind in kinds
        for own in (True, False)
    ]


@entry(BY_INDEX, "scatter_add")
def _(device, index, out):
    source, start = rows(device, ENTRIES, COLUMNS), rows(device, SIZE, COLUMNS)
    return lambda: torch_reduce.scatter_add(start, 0, index[:, None].expand(-1, COLUMNS), source)


@entry(BY_INDEX, "scatter_reduce")
def _(device, index, out):
    source, start = rows(device, ENTRIES, COLUMNS), rows(device, SIZE, COLUMNS)
    whole, apart = index[:, None].expand(-1, COLUMNS), torch.stack([index] * COLUMNS, 1)
    return lambda: [
        torch_reduce.scatter_reduce(start, 0, each, source, kind) for each in (whole, apart) for kind in ("sum", "amax")
    ]


@entry(BY_INDEX, "index_put")
def _(device, index, out):
    source, start = rows(device, ENTRIES, COLUMNS), rows(device, SIZE, COLUMNS)

    def call():
        with torch_reduce.replace("index_put", device):
            torch.index_put(start, (index,), source, accumulate=True)

    return call


@entry(BY_INDEX, "embedding")
def _(device, index, out):
    table = rows(device, SIZE, COLUMNS)
    return lambda: torch_reduce.embedding(index, table)


@entry(BY_INDEX, "embedding_bag")
def _(device, index, out):
    table, offsets = rows(device, SIZE, COLUMNS), torch.arange(0, ENTRIES + 1, 10, device=device)
    return lambda: torch_reduce.embedding_bag(index, table, offsets)


@entry(BY_INDEX, "embedding_bag with weights")
def _(device, index, out):
    table, offsets = rows(device, SIZE, COLUMNS), torch.arange(0, ENTRIES + 1, 10, device=device)
    weights = rows(device, ENTRIES)
    return lambda: torch_reduce.embedding_bag(index, table, offsets, per_sample_weights=weights)


@entry(BY_INDEX, "embedding_bag, max")
def _(device, index, out):
    table, offsets = rows(device, SIZE, COLUMNS).requires_grad_(), torch.arange(0, ENTRIES + 1, 10, device=device)
    return lambda: torch_reduce.embedding_bag(index, table, offsets, mode="max").sum().backward()


@entry(BY_INDEX, "bincount")
def _(device, index, out):
    return lambda: torch_reduce.bincount(index)


@entry(BY_INDEX, "bincount with weights")
def _(device, index, out):
    weights = rows(device, ENTRIES)
    return lambda: torch_reduce.bincount(index, weights)


@entry(BY_INDEX, "log_prob")
def _(device, index, out):
    logits = rows(device, ENTRIES, SIZE).requires_grad_()
    return lambda: torch_reduce.log_prob(logits, index).sum().backward()


@entry(BY_INDEX, "cross_entropy")
def _(device, index, out):
    logits, weight = rows(device, ENTRIES, SIZE).requires_grad_(), rows(device, SIZE).abs()
    return lambda: torch_reduce.cross_entropy(logits, index, weight=weight).backward()


@entry(BY_INDEX, "nll_loss")
def _(device, index, out):
    logits = rows(device, ENTRIES, SIZE).requires_grad_()

    def call():
        with torch_reduce.replace():
            torch.nn.functional.nll_loss(logits, index).backward()

    return call


def of_segments(name, columns, **named):
    function = getattr(torch_reduce, name)

    def make(device, offsets, out):
        data = rows(device, ENTRIES, *columns)
        return lambda: function(data, offsets, out=out, **named)

    return make


for name in ("sum", "mean", "prod", "amax", "amin", "logsumexp"):
    BY_OFFSETS[f"segment_{name}"] = of_segments(f"segment_{name}", (COLUMNS,))
    BY_OFFSETS[f"segment_{name} of numbers"] = of_segments(f"segment_{name}", ())
BY_OFFSETS["segment_sum, exact"] = of_segments("segment_sum", (COLUMNS,), exact=True)
BY_OFFSETS["segment_sum of numbers, exact"] = of_segments("segment_sum", (), exact=True)


@entry(BY_OFFSETS, "segment_softmax")
def _(device, offsets, out):
    data = rows(device, ENTRIES, COLUMNS).requires_grad_()
    return lambda: torch_reduce.segment_softmax(data, offsets).sum().backward()


@entry(BY_OFFSETS, "embedding_bag by offsets")
def _(device, offsets, out):
    table, index = rows(device, SIZE, COLUMNS), torch.arange(ENTRIES, device=device) % SIZE
    return lambda: torch_reduce.embedding_bag(index, table, offsets)


@entry(BY_OFFSETS, "embedding_bag by offsets, max")
def _(device, offsets, out):
    table, index = rows(device, SIZE, COLUMNS).requires_grad_(), torch.arange(ENTRIES, device=device) % SIZE
    return lambda: torch_reduce.embedding_bag(index, table, offsets, mode="max").sum().backward()


HAVE_OUT = {name for name in (*BY_INDEX, *BY_OFFSETS) if name.startswith(("index_", "segment_"))} - {
    "index_plan",
    "index_add",
    "index_reduce",
    "index_sum of numbers",
    "segment_softmax",
}


LOSSES = {"log_prob", "cross_entropy", "nll_loss"}


@pytest.mark.parametrize("names", [BY_INDEX, BY_OFFSETS], ids=["index", "offsets"])
def test_changed_meanwhile(device, names):
    # On a GPU an assertion may end the use of the GPU in this process.
    for some in [names] if device == "cpu" else [[name] for name in names]:
        python(__file__, device, *some)


# --- the program ------------------------------------------------------------------------------------------------------


def keep_writing(shared, name, parent):
    """Writes a valid index, and for a moment wild numbers into a part of it, until the parent process ends."""
    choose = random.Random(name)
    good, bad = (random_index if name in BY_INDEX else random_offsets)(choose), wild(choose, len(shared), name)
    while os.getppid() == parent:
        shared[:] = good
        for _ in range(choose.randrange(1000)):
            pass
        first = choose.randrange(len(shared))
        shared[first : first + choose.choice([1, 10, 1000])] = choose.choice(bad)


def on_cpu(name):
    count = ENTRIES if name in BY_INDEX else SIZE + 1
    index = torch.zeros(count, dtype=torch.int64).share_memory_()
    writer = multiprocessing.get_context("fork").Process(
        target=keep_writing, args=(index.numpy(), name, os.getpid()), daemon=True
    )
    around = torch.full((MARGIN + SIZE * COLUMNS + MARGIN,), MARK)
    shape = (SIZE,) if "numbers" in name else (SIZE, COLUMNS)
    out = around[MARGIN : MARGIN + torch.Size(shape).numel()].view(shape) if name in HAVE_OUT else None
    call = {**BY_INDEX, **BY_OFFSETS}[name]("cpu", index, out)
    writer.start()
    try:
        for _ in range(FEW_ROUNDS if name in LOSSES else ROUNDS):
            with contextlib.suppress(IndexError, RuntimeError):
                call()
    finally:
        writer.kill()
        writer.join()
    if out is not None:
        out.fill_(MARK)
    assert around.eq(MARK).all()


def on_gpu(name):
    """Two valid indices take turns: another one is an assertion, which ends the use of the GPU. So may a mixture be."""
    choose = random.Random(name)
    make = random_index if name in BY_INDEX else random_offsets
    valid = [torch.from_numpy(make(choose)).to("cuda") for _ in range(2)]
    index = valid[0].clone()
    call = {**BY_INDEX, **BY_OFFSETS}[name]("cuda", index, None)
    beside = torch.cuda.Stream()
    try:
        call()
        torch.cuda.synchronize()
        for i in range(ROUNDS):
            with torch.cuda.stream(beside):
                for k in range(8):
                    index.copy_(valid[(i + k) % 2])
            call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        assert "device-side assert" in str(error), error


if __name__ == "__main__":
    torch.set_num_threads(2)
    for argument in sys.argv[2:]:
        print(argument, flush=True)
        (on_cpu if sys.argv[1] == "cpu" else on_gpu)(argument)
