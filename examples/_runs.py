"""Runs from one start whose gradients are compared bit for bit: what the examples of sums by index share."""

import contextlib
import os
import statistics
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch: for deterministic matrix products

import torch
from _options import table

import torch_reduce

RUNS = 5


@contextlib.contextmanager
def deterministic():
    """Inside, torch sorts instead of adding by atomics."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def places(device):
    """{the way in which torch's functions add by index: the place where they do}."""
    return {
        "torch, atomics" if device.type == "cuda" else "torch, no atomics": contextlib.nullcontext,
        "torch, deterministic": deterministic,
        "torch_reduce.replace()": lambda: torch_reduce.replace(devices=device.type),
    }


def order_of(device):
    """A sentence on torch's own order of additions."""
    if device.type == "cuda":
        return "torch adds by index with atomics here, in another order in each run, unless it is told otherwise."
    return "On the CPU torch adds these by index in a fixed order: its gradients should agree. On a GPU they may not."


def flat(gradients):
    """All gradients in one row."""
    return torch.cat([gradient.flatten() for gradient in gradients])


def compare(ways, device, steps=1):
    """{way: (how many gradients have the same bits in all runs, of how many, ms a step)}.

    `ways` has a place and a run for each: `steps` steps from the same start -> all their gradients, in one row. The
    ways take turns. The first run of each warms up, and is not timed.
    """
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    first, agree, times = {}, {}, {name: [] for name in ways}
    for i in range(RUNS):
        for name, (place, run) in ways.items():
            with place():
                wait()
                begin = time.perf_counter()
                bits = run().view(torch.int32)
                wait()
                times[name].append((time.perf_counter() - begin) * 1e3 / steps)
            if i == 0:
                first[name], agree[name] = bits, torch.ones_like(bits, dtype=torch.bool)
            else:
                agree[name] &= bits == first[name]
    return {name: (int(agree[name].sum()), len(first[name]), statistics.median(times[name][1:])) for name in ways}


def report(found):
    """Prints what compare() found, and ends if gradients of ours differ."""
    table(
        ["way", "gradients of five runs that agree", "ms a step"],
        [(name, f"{same} of {count}", f"{ms:.2f}") for name, (same, count, ms) in found.items()],
    )
    if any(same < count for name, (same, count, _) in found.items() if name.startswith("torch_reduce")):
        sys.exit("a gradient that torch_reduce added differs between the runs: that must not be")
