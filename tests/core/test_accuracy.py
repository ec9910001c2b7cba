"""Accuracy: within the bound that the order gives, and no worse than torch.sum."""

import math
import random

import numpy as np
import pytest
import torch

from support import dtype_of, walked

LENGTHS = [10, 100, 1000, 4096, 5000, 65536, 1 << 20]
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53}


def exact_sum(x):
    """The exact sum of a vector, correctly rounded to float64."""
    return math.fsum(x.double().cpu().tolist())


def additions(length):
    """The most additions an element goes through: 7 in its lane, then one a level of the tree."""
    lanes = length // 4096 * 512 + min(512, length % 4096)
    return min(7, math.ceil(length / 512) - 1) + math.ceil(math.log2(max(1, lanes)))


@walked("name", ["float32", "float64"])
@walked("kind", ["normal", "uniform", "wide"])
def test_error_bound(name, kind, device):
    """The error stays under the number of additions an element goes through, times the unit roundoff, times sum |x|."""
    rng = np.random.default_rng(0)
    for length in LENGTHS:
        values = {
            "normal": rng.standard_normal(length),
            "uniform": rng.random(length),
            "wide": rng.standard_normal(length) * np.exp2(rng.uniform(-30, 30, length)),
        }[kind]
        x = torch.from_numpy(values).to(dtype_of(name)).to(device)
        error = abs(float(torch.ops.gpureduce.sum(x)) - exact_sum(x))
        bound = additions(length) * UNIT[name] * 1.001 * float(x.double().abs().sum())
        assert error <= bound, f"{length}: {error / bound} of the bound"


def random_shape(rng):
    """One long dim, near where tasks, tiles and vectors end, and short ones; up to 2^20 elements."""
    long = (1 << rng.randint(5, 17)) * rng.choice([1, 1, 3, 5, 15]) + rng.choice([-1, 0, 1, 1, 2, 2, 3])
    sizes = [min(1 << 18, long)]
    sizes.append(rng.randint(1, min(700, max(1, (1 << 20) // sizes[0]))))
    if rng.random() < 0.3:
        sizes.append(rng.randint(1, min(9, max(1, (1 << 20) // math.prod(sizes)))))
    rng.shuffle(sizes)
    return sizes


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "int32"])
def test_error_bound_of_random_shapes(name, device, set_threads):
    """The same for sums over any dims of inputs of up to 2^20 elements, with any number of threads."""
    rng, torch_rng = random.Random(4), torch.Generator().manual_seed(4)
    for _ in range(400 if name == "float32" else 100):
        sizes = random_shape(rng)
        dims = rng.sample(range(len(sizes)), rng.randint(1, len(sizes)))
        x = torch.randint(-(2**20), 2**20, sizes, generator=torch_rng).to(dtype_of(name))
        set_threads(rng.choice([1, 2, 5, 16]))
        got = torch.ops.gpureduce.sum(x.to(device), dims).cpu()
        if name == "int32":
            assert got.equal(x.sum(dims)), f"{sizes} over {dims}"
            continue
        x, got = (torch.view_as_real(t) if name == "complex64" else t for t in (x, got))
        error = (got.double() - x.double().sum(dims)).abs()
        unit = UNIT["float64" if name == "float64" else "float32"]
        bound = additions(math.prod(sizes[d] for d in dims)) * unit * 1.001 * x.double().abs().sum(dims)
        assert bool((error <= bound).all()), f"{sizes} over {dims}"


@pytest.mark.parametrize("name,digits", [("float16", 11), ("bfloat16", 8)])
def test_half_precision_results(name, digits, device):
    """The result in half precision is within half a unit in its last place, plus the float32 error before rounding."""
    for length in LENGTHS[:-2]:
        x = torch.from_numpy(np.random.default_rng(length).random((20, length))).to(dtype_of(name)).to(device)
        sums = torch.ops.gpureduce.sum(x, 1).double().cpu()
        for row, got in zip(x, sums.tolist(), strict=True):
            exact = exact_sum(row)
            assert abs(got - exact) <= exact * (2.0**-digits + additions(length) * 2.0**-24 * 1.001)


@pytest.mark.parametrize("length", [1000, 4096, 50257, 1 << 18])
def test_no_worse_than_torch(length, device):
    """Over many random sums, the root mean square error is no worse than torch.sum's, to within a factor of 2.

    Not of 1: the last additions weigh most, and where the length is no power of two the contract's tree may do one more
    of them near the sum's full size than torch happens to (rows of 50257 on a GPU: 1.65).
    """
    trials = 24
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.random((trials, length), np.float32) - np.float32(0.25))
    exact = np.array([math.fsum(row) for row in x.double().tolist()])

    def error(total):
        return float(np.sqrt(np.mean((total.double().cpu().numpy() - exact) ** 2)))

    for view, dim in ((x.to(device), 1), (x.t().contiguous().to(device), 0)):
        ours, theirs = error(torch.ops.gpureduce.sum(view, dim)), error(torch.sum(view, dim))
        assert ours <= 2 * theirs, f"{ours} is more than {theirs} over dim {dim}"


def test_one_rounding_is_better_than_two(device):
    """A float32 sum into bfloat16 rounds once: at least as near as torch.sum, which rounds every element first."""
    x = torch.from_numpy(np.random.default_rng(2).random((40, 3000), np.float32)).to(device)
    exact = torch.tensor([exact_sum(row) for row in x], dtype=torch.float64)
    nearest = exact.to(torch.bfloat16).double()
    ours = torch.ops.gpureduce.sum(x, 1, dtype=torch.bfloat16).double().cpu()
    theirs = torch.sum(x, 1, dtype=torch.bfloat16).double().cpu()
    assert torch.equal(ours, nearest)
    assert (ours - exact).abs().max() <= (theirs - exact).abs().max()
