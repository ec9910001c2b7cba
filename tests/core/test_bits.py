"""Every operation has the model's bits: of every dtype, length, view and dtype=, whatever the numbers and the threads.

tests/core/test_order.py and tests/core/test_layouts.py have more of a sum.
"""

import itertools
import math
import random

import numpy as np
import pytest
import torch

import model
import pinned
from support import (
    DTYPES,
    INTEGER,
    SHAPES,
    SUM,
    Norm,
    assert_same_bits,
    data,
    dtype_of,
    name_of,
    numpy_of,
    random_view,
    tensor_of,
)
from table import CASES, INDICES, every_case, place, rotated, taken, tensors, walks

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")


@taken(*DTYPES)
def test_shapes(op, name, device):
    """Rows, columns, all, and mixed dims, as the result's dtype shows them, and as the accumulator's does.

    A sum has every shape with every dtype, and each other operation with a third of them.
    """
    even = tensor_of(pinned.elements(name, 4 * 9001), name, device)  # of one magnitude: every rounding shows
    shapes = SHAPES if op is SUM else rotated(SHAPES, place(op, name))
    views = [(op.elements(shape, name, 61, device), dim) for shape, dim in shapes]
    if str(op) not in ("prod", "logsumexp"):
        views += [(even.view(4, 9001), 1), (even.view(9001, 4), 0)]
    for (x, dim), dtype in itertools.product(views, {None, op.wide(name)}):
        op.check_view(x, dim, dtype=dtype)


@taken(*DTYPES, cases=[op for op in CASES if op.has_dtype])
def test_dtypes(op, name, device):
    """Every dtype with every dtype= : converted exactly to the accumulator, rounded once."""
    x = op.elements((5, 700), name, 62, device)
    for k, dtype in enumerate(op.targets(name, *DTYPES)):
        whole = op.around(x, 1)
        assert_same_bits(op.function(whole, 1, dtype=dtype), op(whole, 1, dtype=dtype))
        op.check_view(x, 1, False, dtype)
        others = [(x, None, False), (x.t(), 0, True), (x.t(), 0, False), (x[:, :0], 1, True)]
        for view, dim, keepdim in rotated(others, place(op, name) + k, 4):
            op.check_view(view, dim, keepdim, dtype)


def drawn(op, seeds):
    """For each seed a generator, and a dtype that the operation takes."""
    for seed in seeds:
        rng = random.Random(f"{op} {seed}")
        yield rng, rng.choice([name for name in DTYPES if op.takes(name)])


@every_case
def test_random_views(op, device):
    """Any strides, offsets and dims."""
    for rng, name in drawn(op, range(40)):
        x, dim, keepdim = random_view(rng.randint, name, device, budget=3000)
        dtype = rng.choice(op.targets(name, None, *DTYPES)) if op.has_dtype else None
        op.check_view(x, dim, keepdim, dtype)
        if x.dim():
            op.check_view(x, rng.choice([0, -1]), dtype=dtype)


LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129, 511, 512, 513, 1025, 4095, 4096, 4097]


@taken("float32", "bfloat16", "float64", "int8", "uint8", "int32", "uint64", "complex64", "complex128", "float8_e5m2")
def test_every_length(op, name, device):
    """Rows and columns of every length around a vector's, a lane's and a chunk's end, at any address.

    A sum has every length with every dtype, and each other operation with a third of them.
    """
    dtype = op.wide(name)
    for length in LENGTHS if op is SUM else rotated(LENGTHS, place(op, name)):
        x = op.elements((2, length + 1), name, 63, device)[:, 1:]
        op.check_view(x, 1, dtype=dtype)
        op.check_view(x.t().contiguous(), 0, dtype=dtype)
        room = op.elements((3, (length + 15) // 16 * 16), name, 63, device)
        op.check_view(room[:, :length], 1, dtype=dtype)  # at aligned addresses
        op.check_view(op.elements((2, length, 16), name, 63, device), 1, dtype=dtype)


@taken("float32", "float64", "float16", "int8", "int32", "int64", "uint8", "complex64", "complex128", "complex32")
def test_lazy_views(op, name, device):
    """Negated and conjugated views are read as such, in steps too; the parts of complex numbers as well.

    Each operation has every view over every dim with half of the dtypes.
    """
    x = op.elements((9, 1301), name, 64, device)
    views = [torch._neg_view(x), torch._neg_view(x)[:, ::3]]
    if x.is_complex():
        views += [x.conj(), torch._neg_view(x.conj()), torch._neg_view(x).t().conj(), x.conj()[:, ::3]]
        if name != "complex32":
            views += [x.imag, x.conj().imag, x.conj().real]
    for view, dim in rotated(itertools.product(views, (0, 1, None)), place(op, name), 2):
        own = name_of(view.dtype)
        for dtype in op.targets(own, None, "complex128" if view.is_complex() else "float64"):
            if view.shape[0] < 100 or dim != 1 or dtype is None:
                op.check_view(view, dim, dtype=dtype)


@walks("float32", "int32", "float64")
def test_expanded(op, name, device):
    """One element many times: of a product that is a power, in the order of the tree."""
    for length in (2, 9, 700, 4096, 4097, 30_000):
        x = op.elements((5, 1), name, 66, device)
        op.check_view(x.expand(5, length), 1)
        op.check_view(x.t().expand(length, 5), 0)
        op.check_view(op.elements((6, length // 5), name, 66, device)[None].expand(3, -1, -1), (0, 2))


@taken(*[name for name in DTYPES if name not in INTEGER])
def test_special_numbers(op, name, device):
    """NaN, infinities and zeros of both signs, wherever they stand: they touch no other result."""
    specials = [math.nan, 0.0, -0.0] + ([] if name == "float8_e4m3fn" else [math.inf, -math.inf])  # which has none
    cases = list(itertools.product(specials, (0, 1, 513, 4999)))
    x = data((4, 5000), model.PART.get(name, name), seed=68, device=device).double().repeat(len(cases) // 2, 1)
    for row, (special, at) in enumerate(cases):
        x[2 * row + 1, at] = special
        if row % 2:  # every fourth row stays as it is
            x[2 * row, at], x[2 * row, (at + 511) % 5000] = special, 0.0 if special == 0 else -special
    x = x.to(dtype_of(name))
    if name == "complex64":
        for row, (special, at) in enumerate(cases):
            x[2 * row + 1, at] = complex(1, special)
    op.check_view(x, 1)
    op.check_view(x.t().contiguous(), 0)
    for few in rotated(x.split(4), place(op, name)):  # few columns are summed in another way
        op.check_view(few.t().contiguous(), 0)
    zeros = torch.zeros(4, 700, dtype=torch.float64)
    zeros[0, 5], zeros[1], zeros[1, 5], zeros[3] = -0.0, -0.0, 0.0, -0.0
    zeros = zeros.to(dtype_of(name)).to(device)
    for x in (zeros, zeros if "float8" in name else torch._neg_view(zeros)):
        op.check_view(x, 1)
        op.check_view(x.t().contiguous(), 0)


@walks(*[name for name in DTYPES if name in INTEGER])
def test_ends_of_integers(op, name, device):
    """The largest and the smallest numbers of every integer type, alone and beside each other."""
    low, high = (0, 1) if name == "bool" else (np.iinfo(name).min, np.iinfo(name).max)
    rows = [[low, high], [high, high - (name != "bool")], [low, low + 1], [low, low]]
    x = tensor_of(np.array(rows, model.STORAGE[name][0]).repeat(300, 1)[..., None], name, device)
    op.check_view(x, 1)
    op.check_view(x.t().contiguous(), 0)


@pytest.mark.parametrize("op", [op for op in CASES if op.takes("bool")], ids=str)
def test_bytes_of_bools(op, device):
    """Any byte that is not zero is true."""
    x = torch.tensor([0, 1, 2, 128, 255] * 200, dtype=torch.uint8, device=device).view(torch.bool)
    clean = x.view(torch.uint8).ne(0)
    for of in (lambda x: x, lambda x: x[1:5], lambda x: x.view(200, 5)):
        ours, wanted = (op(op.around(of(each), 0), 0) for each in (x, clean))
        assert_same_bits(ours, wanted)
        op.check_view(of(clean), 0)


# --- pinned results ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", pinned.SHA)
def test_pinned_file_is_unchanged(file):
    """The pinned results never change."""
    assert pinned.hashed(file) == pinned.SHA[file]


@pytest.fixture(scope="module")
def pinned_cases():
    """Of each operation, those that are pinned."""
    found = {str(op): [] for op in CASES}
    for op, *case in pinned.cases():
        found[str(op)].append(case)
    return found


@pytest.mark.parametrize("op", [op for op in CASES if str(op) not in ("sum", "mean") and op not in INDICES], ids=str)
def test_pinned_results(op, pinned_cases, device):
    """The library and the model give the pinned bits; of every dtype there are some."""
    for x, call, wanted in pinned_cases[str(op)]:
        here = tuple(t.to(device) for t in x) if isinstance(x, tuple) else x.to(device)
        result = tensors(op(here, **call))
        names = [name_of(one.dtype) for one in result]
        assert [pinned.bits(numpy_of(one), name) for one, name in zip(result, names, strict=True)] == wanted, call
        modelled = tensors(op.expected(x, **call))
        assert [pinned.bits(one, name) for one, name in zip(modelled, names, strict=True)] == wanted, call
    seen = {name_of(tensors(x)[0].dtype) for x, *_ in pinned_cases[str(op)]}
    assert str(op).startswith(("weighted", "segment")) or seen == set(filter(op.takes, DTYPES))


# --- plans on a GPU ---------------------------------------------------------------------------------------------------


FORCED = [op for op in CASES if isinstance(op, Norm) or str(op) in ("mean", "logsumexp", "argmax", "argmin")]


@taken("float32", "bfloat16", "float64", "float8_e4m3fn", "complex64", "complex128", "int8", cases=FORCED)
def test_forced_plans(op, name, cuda):
    """Every kernel maps, adds and finishes: the bits of the CPU under forced plans, with and without joins."""
    views = [((300_007,), [0]), ((60, 5000), [1]), ((9000, 7), [1]), ((9001, 3), [1]), ((5000, 60), [0])]
    views += [((9000, 3), [0]), ((6, 9000), [0]), ((5, 700, 48), [1]), ((3000, 130), [1])]
    row = "_logsumexp" if str(op) == "logsumexp" else str(op)  # of csrc/core/operation.h
    forced = getattr(torch.ops.gpureduce, f"_{row}_tuned")
    dtype = op.wide(name)
    for shape, dims in views:
        x = data(shape, name, seed=77)
        wanted = op(x, dims, dtype=dtype)
        for tuning in ("", "grid=2", *(f"candidate={k}" for k in range(99))):
            try:
                got = forced(x.to(cuda), dims, tuning=tuning, **({"dtype": dtype} if op.has_dtype else {}))
            except ValueError as error:
                assert "there are only" in str(error)
                break
            assert_same_bits(got, wanted, f"{shape} under {tuning!r}")
    expanded = data((300,), name, seed=78)
    wanted = op(expanded.expand(5000, 300).contiguous(), [0], dtype=dtype)
    assert_same_bits(op(expanded.to(cuda).expand(5000, 300), [0], dtype=dtype), wanted)


@every_case
def test_cpu_and_cuda_agree_on_random_views(op, cuda):
    """CPU and GPU give the same bits for random views, larger than those that the model takes."""
    for rng, name in drawn(op, range(60)):
        budget, draws = rng.choice([2000, 100_000, 3_000_000]), rng.random()
        views = [random_view(random.Random(draws).randint, name, device, budget) for device in (cuda, "cpu")]
        if not op.has(views[0][0], *views[0][1:]):
            continue
        ours, wanted = (op(op.around(x, dim), dim, keepdim) for x, dim, keepdim in views)
        assert_same_bits(
            ours, wanted, f"draws {draws}: {views[1][0].shape}, {views[1][0].stride()}, {name}, {views[0][1]}"
        )
