"""What is segments' alone: lengths of all kinds packed beside each other, and their offsets."""

import functools
import gc
import itertools
import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import model
import torch_reduce
from support import (
    COMPLEX,
    DTYPES,
    FLOATING,
    INTEGER,
    SUM,
    assert_same_bits,
    data,
    dtype_of,
    name_of,
    numpy_of,
    tensor_of,
    walked,
)
from table import SEGMENTS, ends, rotated
from test_autocast import without_a_gpu
from test_autograd import leaf
from test_gradients import elements, gradient, modelled
from test_meta import opcheck

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

OPS = torch.ops.gpureduce
FORMS = {str(op): (op.operator, getattr(torch_reduce, op.name), op.whole) for op in SEGMENTS}
BY_NAME = {str(op): op for op in SEGMENTS}
every_form = pytest.mark.parametrize("form", list(FORMS))
LINEAR = ["segment_sum", "segment_mean"]
every_function = pytest.mark.parametrize(
    "function", [*(form[1] for form in FORMS.values()), torch_reduce.segment_softmax], ids=lambda f: f.__name__
)
INT32 = torch.int32


def check(x, offsets, dim=0, dtype=None, form="segment_sum"):
    """The model's bits, which are returned as the operator gives them."""
    return BY_NAME[form].check((x, offsets), dim, dtype=dtype)


def expected(x, offsets, dim=0):
    return BY_NAME["segment_sum"].expected((x, offsets), dim)


# On both sides of what a thread, a few threads, a warp, a lane and a chunk take.
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 66, 127, 128, 129, 255, 256, 257, 300]
LENGTHS += [511, 512, 513, 700, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 3000, 4095, 4096, 4097, 4608, 4609, 8191]
LENGTHS += [8192, 8193, 12_289, 0, 0, 1, 20_481, 40_000, 1, 0]


def mixed(count, longest, seed):
    """Lengths of all magnitudes, some of them 0."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.uniform(0, np.log(longest + 1), count)).astype(int)
    return np.where(rng.random(count) < 0.1, 0, lengths)


# --- bits -------------------------------------------------------------------------------------------------------------


@every_form
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name, form, device):
    """Every dtype, as a vector, as rows, as columns and strided, with results of other dtypes too."""
    operation = FORMS[form][2]
    offsets = ends([3, 0, 700, 1, 5000, 64, 2], first=2, device=device)
    targets = (None, "float64", "float16", "int32", "bool") if name not in COMPLEX else (None, "complex128", "float32")
    for dtype in operation.targets(name, *targets):
        make = functools.partial(BY_NAME[form].elements, name=name, device=device)
        check(make((5800,)), offsets, 0, dtype, form)
        check(make((3, 5800)), offsets, -1, dtype, form)
        check(make((5800, 6)), offsets, 0, dtype, form)
        check(make((5800, 4, 3))[:, ::2], offsets, 0, dtype, form)


@walked("offset", [0, 1, 3])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int16", "complex64"])
def test_every_length(name, offset, device):
    """Every length around every boundary, at any alignment; int32 offsets have the same bits."""
    lengths = LENGTHS + LENGTHS[::-1]
    offsets = ends(lengths, device=device)
    x = data((sum(lengths) + offset,), name, device=device)[offset:]
    result = check(x, offsets)
    assert_same_bits(OPS.segment_sum(x, offsets.to(INT32)), result)
    check(data((3 * sum(lengths),), name, device=device)[::3], offsets)


@walked("columns", [1, 2, 3, 4, 8, 20, 33, 64, 130, 300])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int32"])
def test_columns_of_every_length(name, columns, device):
    """The same of rows of elements: few columns, whole and odd vectors, several tiles of columns."""
    lengths = [length for length in LENGTHS if length * columns < 600_000]
    offsets = ends(lengths, first=1, device=device)
    check(data((sum(lengths) + 4, columns), name, device=device), offsets)
    check(data((sum(lengths) + 4, columns + 3), name, device=device)[:, 1 : columns + 1], offsets)


@walked("columns", lambda name, **_: rotated([None, 1, 33, 3, 130, 4], FLOATING.index(name), 2))
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_exponentials_of_every_length(name, columns, device):
    """Exponentials are of differences from the largest element of the same segment and column, in rows and columns;
    numbers of columns take turns with dtypes."""
    lengths = [length for length in LENGTHS if length * (columns or 1) < 100_000]
    offsets = ends(lengths, first=1, device=device)
    size = sum(lengths) + 4
    make = functools.partial(logits, name=name, device=device)
    if columns is None:
        check(make((size,)), offsets, form="segment_logsumexp")
        check(make((2, size + 1))[:, 1:], offsets, -1, form="segment_logsumexp")
        check(make((3 * size,))[::3], offsets, form="segment_logsumexp")
    else:
        check(make((size, columns)), offsets, form="segment_logsumexp")
        check(make((size, columns + 3))[:, 1 : columns + 1], offsets, form="segment_logsumexp")
        check(make((columns, 2, size)).permute(2, 1, 0), offsets, form="segment_logsumexp")


def test_exponentials_of_many_tiny(cuda):
    """So many segments that threads of a GPU have several of one or two rows, or several of one column."""
    lengths = np.random.default_rng(7).integers(0, 4, 300_000)
    offsets = ends(lengths)
    for name, columns in itertools.product(("float32", "bfloat16"), (1, 2, 41, 64)):
        count = min(len(lengths), len(lengths) // columns + 20_000)
        size = -(-int(offsets[count]) // 8) * 8  # whole vectors of one column
        for shape, dim in (((size, columns), 0), ((3, size), 1), ((70, 4000), 1)):
            some = offsets[: count + 1] if size in shape else offsets[offsets < 3990]
            x = logits(shape, name)
            for function in (OPS.segment_logsumexp, OPS.segment_softmax):
                got = function(x.to(cuda), some.to(cuda), dim)
                assert_same_bits(got, function(x, some, dim), f"{name} {shape}")


def allocated(call, device):
    """Bytes that a call allocates; on a GPU the most at a time."""
    call()
    if device == "cuda":
        gc.collect()  # or what is freed during the call hides what it allocates
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in profiled.events())


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_exponentials_are_not_stored(name, device):
    """A logsumexp allocates nothing of the data's size."""
    offsets = ends([100] * 1000, device=device)
    for x in (logits((100_000,), name, device=device), logits((100_000, 8), name, device=device)):
        assert allocated(lambda x=x: OPS.segment_sum(x, offsets), device) > 0
        assert allocated(lambda x=x: OPS.segment_logsumexp(x, offsets), device) < x.nbytes / 2


@every_form
@pytest.mark.parametrize("longest", [1, 4, 40, 1000, 100_000])
def test_mixed_lengths(longest, form, device):
    """Many segments of all magnitudes, as a vector and as columns."""
    lengths = mixed(3000 if longest <= 1000 else 60, longest, seed=longest)
    offsets = ends(lengths, device=device)
    make = BY_NAME[form].elements
    check(make((sum(lengths),), "float32", device=device), offsets, form=form)
    lengths = lengths[:400]
    check(make((sum(lengths), 12), "bfloat16", device=device), ends(lengths, device=device), form=form)


@pytest.mark.parametrize("columns", [None, 1, 8, 40])
def test_one_huge_beside_many_tiny(columns, device):
    """A segment of many chunks in the middle of short ones, in several tiles and joins."""
    huge = 3_000_001 if columns is None else 400_001
    lengths = [1, 2, 0] * 300 + [huge] + [3] * 500 + [9000, 1]
    shape = (sum(lengths),) if columns is None else (sum(lengths), columns)
    offsets = ends(lengths, device=device)
    x = data(shape, "float32", device=device)
    result = OPS.segment_sum(x, offsets)
    assert_same_bits(result[900], SUM.expected(x[offsets[900] : offsets[901]], 0))
    assert_same_bits(result[:900], expected(x, offsets[:901]))
    assert_same_bits(result[901:], expected(x, offsets[901:]))


def sums_of_up_to_four(x, offsets):
    """The sums of segments of up to four rows: (a + b) + (c + d), where -0.0 stands for what is not there."""
    wide = x.to(torch.float32 if x.is_floating_point() else torch.int64)
    begin, length = offsets[:-1], offsets.diff()
    beside = (-1, *[1] * (x.dim() - 1))
    a, b, c, d = (
        torch.where((k < length).view(beside), wide[(begin + k).clamp(max=len(x) - 1)], -wide.new_zeros(()))
        for k in range(4)
    )
    return torch.where((length == 0).view(beside), 0, (a + b) + (c + d)).to(x.dtype)


@walked("columns", [None, 5, 41, 64, 130])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64"])
def test_many_tiny(name, columns, device):
    """So many segments of few rows that threads have several: most of up to two rows, some of more."""
    rng = np.random.default_rng(7)
    for often in (0.0, 0.002, 0.2):
        count = (640_000 if device == "cuda" else 40_000) // (columns or 1) + 20_000
        lengths = np.where(rng.random(count) < often, rng.integers(3, 5, count), rng.integers(0, 3, count))
        x, offsets = data((sum(lengths), *[columns] * (columns is not None)), name, seed=3), ends(lengths)
        got = OPS.segment_sum(x.to(device), offsets.to(device), dtype=x.dtype)
        assert_same_bits(got, sums_of_up_to_four(x, offsets), f"{often} of the segments have more than two rows")


def test_tiles_of_several_pieces(cuda):
    """So many rows that a tile has several pieces, and several tiles one segment: each row is added once."""
    lengths = [1, 5000, 2_200_000, 0, 3, 90_000, 700, 4097, 4097, 1]
    offsets = ends(lengths, first=7, device=cuda)
    x = torch.randint(-1000, 1000, (sum(lengths) + 9, 33), dtype=torch.int16, device=cuda)
    before = torch.nn.functional.pad(x.cumsum(0, dtype=torch.int64), (0, 0, 1, 0))
    assert_same_bits(OPS.segment_sum(x, offsets), before[offsets[1:]] - before[offsets[:-1]])


def test_many_rows(device):
    """The same segments of many rows: of short and long rows, with gaps between them and not."""
    for rows, lengths in ((1, [5]), (700, [3, 0, 4]), (5, mixed(200, 3000, seed=3)), (33, [5000, 1, 9000])):
        offsets = ends(lengths, first=1, device=device)
        x = data((rows, sum(lengths) + 5), "float32", device=device)
        check(x, offsets, -1)
        check(x[:, : sum(lengths) + 2], offsets, 1)
        check(data((2, rows, sum(lengths) + 2), "bfloat16", device=device).transpose(0, 1), offsets, -1)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "complex64", "int8"])
def test_same_bits_as_alone(name, device):
    """A segment has the bits of torch_reduce.sum of its own elements; what is around it does not count."""
    lengths = mixed(200, 20_000, seed=1)
    offsets = ends(lengths, first=3, device=device)
    x = data((sum(lengths) + 9,), name, device=device)
    result, mean = OPS.segment_sum(x, offsets), name != "int8" and OPS.segment_mean(x, offsets)
    for i, (begin, end) in enumerate(itertools.pairwise(offsets.tolist())):
        assert_same_bits(result[i], OPS.sum(x[begin:end]))
        if name != "int8":
            assert_same_bits(mean[i], OPS.mean(x[begin:end]))
    if name != "int8":
        other = torch.full_like(x, float("nan"))
        other[offsets[50] : offsets[51]] = x[offsets[50] : offsets[51]]
        assert_same_bits(OPS.segment_sum(other, offsets)[50], result[50])


def test_special_numbers(device):
    """Sums of -0.0 keep their sign, empty ones are 0.0, and infinities and NaN stay in their segments."""
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([-0.0, -0.0, inf, 1, inf, -inf, nan, 2, -0.0], device=device)
    offsets = torch.tensor([0, 2, 2, 4, 6, 8, 9], device=device)
    for result in (OPS.segment_sum(x, offsets), OPS.segment_sum(x.view(9, 1).expand(9, 5).contiguous(), offsets)[:, 3]):
        assert_same_bits(result, torch.tensor([-0.0, 0.0, inf, nan, nan, -0.0], device=device))
        assert_same_bits(result, expected(x, offsets))
    assert_same_bits(OPS.segment_mean(x, offsets)[1], torch.tensor(nan, device=device))


@pytest.mark.parametrize("name", ["float32", "complex64", "bfloat16"])
def test_means_of_no_data(name, device):
    """NaN, both parts of complex ones, also where there is no element at all."""
    result = OPS.segment_mean(data((0, 2), name, device=device), ends([0, 0], device=device))
    assert (torch.view_as_real(result) if result.is_complex() else result).isnan().all() and result.shape == (2, 2)


def test_lazy_offsets(device):
    """Negated offsets are read as such."""
    check(data((3, 2000), "float32", 4, device), torch._neg_view(-ends([100, 0, 900, 5], device=device)), -1)


def random_layout(chosen, shape):
    """The strides, the offset and the elements of memory of a drawn view. Its dims lie in any order, with gaps, or are
    expanded."""

    def choose(a, b):
        return chosen.draw(st.integers(a, b))

    rank = len(shape)
    order, strides, span = chosen.draw(st.permutations(range(rank))), [0] * rank, choose(1, 2)
    for d in order:
        if choose(0, 7) == 0:
            continue  # expanded
        strides[d] = span
        span = span * max(1, shape[d]) + choose(0, 2)
    start = choose(0, 9)
    size = start + 1 + sum(max(0, n - 1) * s for n, s in zip(shape, strides, strict=True))
    return strides, start, size


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_views(device, chosen):
    """Any strides, offsets, dtypes and segments."""

    def choose(a, b):
        return chosen.draw(st.integers(a, b))

    rank, name = choose(1, 4), chosen.draw(st.sampled_from(DTYPES))
    shape = [choose(0, 5) for _ in range(rank)]
    dim = chosen.draw(st.sampled_from([0, rank - 1, -1, -rank]))
    lengths = [choose(0, [3, 40, 600, 9000][choose(0, 3)]) for _ in range(choose(0, 5))]
    first = choose(0, 3)
    shape[dim] = first + sum(lengths) + choose(0, 3)
    strides, start, size = random_layout(chosen, shape)
    x = data((size,), name, seed=choose(0, 3), device=device).as_strided(shape, strides, start)
    offsets = ends(lengths, first, dtype=INT32 if choose(0, 1) else torch.int64, device=device)
    form = chosen.draw(st.sampled_from(list(FORMS)))
    targets = (None, "float64", "float16", "int64") if name not in COMPLEX else (None, "complex128")
    if dtypes := FORMS[form][2].targets(name, *targets):
        check(x, offsets, dim, chosen.draw(st.sampled_from(dtypes)), form)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads, set_threads):
    """On the CPU any number of threads gives the same bits, also inside other work of torch's threads."""
    lengths = [*mixed(3000, 300, seed=2), 500_000, *mixed(30, 50_000, seed=5)]
    offsets = ends(lengths)
    inputs = [data((sum(lengths),), "float32"), data((sum(lengths), 3), "float32")]
    set_threads(1)
    wanted = [OPS.segment_sum(x, offsets) for x in inputs]
    set_threads(threads)
    for x, bits in zip(inputs, wanted, strict=True):
        assert_same_bits(OPS.segment_sum(x, offsets), bits)


def test_flush_denormal_changes_nothing():
    """torch.set_flush_denormal(True) does not reach the CPU's kernels."""
    x = (torch.arange(9000).double() * 1e-45).float()
    offsets = ends([2, 30, 0, 500, 8000])
    wanted = check(x, offsets)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        got = OPS.segment_sum(x, offsets)
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(got, wanted)
    assert wanted[0] != 0


# --- arguments --------------------------------------------------------------------------------------------------------


@every_form
def test_results_and_forms(form, device):
    """Shapes, dtypes, and the two ways to call it; no segments, no rows, no columns, no elements."""
    operator, function, whole = FORMS[form]
    x, offsets = data((3, 10), "bfloat16", device=device), torch.tensor([1, 4, 4, 10], device=device)
    assert_same_bits(function(x, offsets, dim=1), operator(x, offsets, -1))
    assert_same_bits(function(x[0], offsets), operator(x, offsets, 1)[0])
    if whole.has_dtype:
        assert function(x, offsets, 1, dtype=torch.float64).dtype == torch.float64
    assert_same_bits(operator(x, offsets.repeat_interleave(2)[::2], 1), operator(x, offsets, 1))
    assert operator(x, offsets[:1], 1).shape == (3, 0)
    assert operator(x[:0], offsets, 1).shape == (0, 3)
    assert operator(x.t()[:, :0], offsets, 0).shape == (3, 0)
    check(x[:, :0], torch.zeros(3, dtype=INT32, device=device), 1, form=form)
    check(torch.ones(1, device=device), torch.tensor([0, 0, 1, 1], device=device), form=form)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@every_form
def test_out(form, device):
    """out= is written where it lies, resized, and may be anything but what is read."""
    operator, function, whole = FORMS[form]
    x = BY_NAME[form].elements((7000, 3), "float32", device=device)
    offsets = ends([5, 0, 6000, 900], device=device)
    wanted = operator(x, offsets)
    for out in (
        torch.empty(4, 3, device=device),
        torch.empty(3, 4, device=device).t(),
        torch.empty(8, 7, device=device)[::2, 1::3][:, :3],
        torch.empty(0, device=device),
    ):
        strides = out.stride() if out.shape == (4, 3) else (3, 1)
        assert function(x, offsets, out=out) is out
        assert out.stride() == strides
        assert_same_bits(out, wanted)
    own, late = x.clone(), ends([0, 0, 0, 6905], device=device)  # to the first elements results are written early
    wanted_late = operator(x, late)
    function(own, late, out=own[:4])
    assert_same_bits(own[:4], wanted_late)
    if function is torch_reduce.segment_sum:
        own = torch.tensor([0, 3, 5, 9], device=device)
        twos = torch.full((9,), 2, dtype=torch.int64, device=device)
        assert function(twos, own, out=own[1:]).tolist() == [6, 4, 8]
    lazy = torch._neg_view(torch.empty(4, 3, device=device))
    assert_same_bits(function(x, offsets, out=lazy).resolve_neg(), wanted)
    with pytest.warns(UserWarning, match="resized"):
        function(x, offsets, out=torch.empty(2, device=device))
    narrow = torch.empty(4, 3, dtype=torch.float16, device=device)
    if whole.has_dtype:
        assert_same_bits(function(x, offsets, out=narrow), operator(x, offsets, dtype=torch.float16))
        with pytest.raises(RuntimeError, match="dtype"):
            function(x, offsets, dtype=torch.float32, out=narrow)
    elif form == "segment_logsumexp":  # any floating one
        wanted = torch.ops.gpureduce._segment_logsumexp(x, offsets, dtype=torch.float16)
        assert_same_bits(function(x, offsets, out=narrow), wanted)
    else:
        with pytest.raises(RuntimeError, match="dtype"):
            function(x, offsets, out=narrow)
    with pytest.raises(RuntimeError, match="device"):
        function(x, offsets, out=torch.empty(4, 3, device="meta"))
    with pytest.raises(RuntimeError, match="single memory location|overlap"):
        function(x, offsets, out=torch.empty(1, 3, device=device).expand(4, 3))


@every_form
def test_errors(form, device):
    """Wrong arguments are refused at once, with torch's classes, and name the argument."""
    operator, function, _ = FORMS[form]
    x, offsets = torch.ones(4, 5, 6, device=device), torch.tensor([0, 4], device=device)
    for call in (operator, function):
        with pytest.raises(IndexError, match=r"\[-3, 2\]"):
            call(x, offsets, 3)
        with pytest.raises(RuntimeError, match="dim: expected the first or the last of 3 dims, but got 1"):
            call(x, offsets, 1)
        with pytest.raises(RuntimeError, match="data: expected a tensor of at least one dim"):
            call(x[0, 0, 0], offsets)
        with pytest.raises(RuntimeError, match="offsets: .* one dim, but got 2"):
            call(x, offsets[None])
        with pytest.raises(RuntimeError, match="offsets: expected one more"):
            call(x, offsets[:0])
        with pytest.raises(RuntimeError, match="offsets: .*int64 or int32, but got Float"):
            call(x, offsets.float())
        with pytest.raises(RuntimeError, match="offsets: .*meta"):
            call(x, offsets.to("meta"))
        with pytest.raises(NotImplementedError, match="(?i)float8_e4m3fnuz"):
            call(x.to(torch.float8_e4m3fnuz), offsets)
        if form == "segment_mean":
            with pytest.raises(RuntimeError, match="could not infer output dtype"):
                call(x.int(), offsets)


@every_function
def test_lists_and_lengths(function, device, recwarn):
    """A list is refused in one sentence; where offsets look like lengths, the error or a warning says so."""
    x, lengths = torch.ones(10), torch.tensor([7, 3])
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\): argument 'offsets' must be Tensor, not list: "):
        function(x.to(device), [0, 4, 10])
    with pytest.raises(TypeError, match="'data' must be Tensor, not float$"):
        function(1.0, lengths)
    hint = r"If these are lengths, the offsets are torch.nn.functional.pad\(lengths.cumsum\(0\), \(1, 0\)\)$"
    for wrong in (lengths, torch.tensor([4, 11])):
        with pytest.raises(RuntimeError, match=rf"(?s)^{function.__name__}\(\): offsets: expected each .*{hint}"):
            function(x, wrong)
    with pytest.raises(RuntimeError) as caught:
        function(x, torch.tensor([0, 11]))
    assert "lengths" not in str(caught.value)
    fine = [[0, 10], [0, 3, 7], [1, 4, 6], [0, 0], [3]]
    keeps = function is torch_reduce.segment_softmax
    for offsets in fine:
        assert function(x, torch.tensor(offsets)).shape == (10 if keeps else len(offsets) - 1,)
    assert not recwarn
    with pytest.warns(
        UserWarning, match=rf"^{function.__name__}\(\): .* sum is 10, the size of dim. If these are"
    ) as told:
        function(x, lengths.flip(0))
    assert len(told) == 1
    if not keeps:
        with pytest.warns(UserWarning, match="size of dim") as told:
            function(x, lengths.flip(0), out=torch.empty(0))
        assert len(told) == 1
    assert function(x, torch.nn.functional.pad(lengths.cumsum(0), (1, 0))).shape == (10 if keeps else 2,)


@every_function
def test_symbolic_trace(function):
    """torch.fx records the operator; its stand-ins for tensors are no DTensors."""
    traced = torch.fx.symbolic_trace(lambda x, offsets: function(x, offsets, -1))
    x, offsets = torch.arange(12.0).view(2, 6), torch.tensor([0, 2, 5])
    assert_same_bits(traced(x, offsets), function(x, offsets, -1))


@every_form
def test_bad_offsets_on_the_cpu(form):
    """On the CPU offsets are checked before anything is written, and the error names the entry."""
    operator = FORMS[form][0]
    x, out = torch.ones(5), torch.full((2,), 7.0)
    for bad, message in (
        ([0, 3, 2], "entry 2 is 2 after 3"),
        ([0, 3, 6], r"in \[0, 5\].*entry 2 is 6"),
        ([-1, 3, 5], "entry 0 is -1"),
    ):
        for dtype in (torch.int64, INT32):
            with pytest.raises(RuntimeError, match=message):
                operator(x, torch.tensor(bad, dtype=dtype), out=out)
        with pytest.raises(RuntimeError, match=message):
            operator(torch.ones(5, 0), torch.tensor(bad))
    assert out.tolist() == [7, 7]


CALL = """
import torch, torch_reduce
x, offsets = torch.ones(*{shape}, device="cuda"), {offsets}
try:
    torch_reduce.segment_sum(x, offsets)
    torch.cuda.synchronize()
except RuntimeError as error:
    assert "device-side assert" in str(error), error
    raise SystemExit(7)
"""
FEW = "torch.tensor({}, device='cuda')"
MANY = "torch.arange(200_001, device='cuda') * 10"
CHANGED = "(" + MANY + ").index_fill_(0, torch.tensor([{}], device='cuda'), {})"


@pytest.mark.parametrize(
    "shape, offsets, fails",
    [
        ((5,), FEW.format([0, 3, 5]), False),
        ((5,), FEW.format([0, 3, 2]), True),
        ((5, 8), FEW.format([0, 6]), True),
        ((5,), FEW.format([-1, 5]), True),
        ((0,), FEW.format([0, 0]), False),
        ((0,), FEW.format([0, 1]), True),
        ((2_000_000,), MANY, False),
        ((2_000_000,), CHANGED.format(100_003, 5), True),
        ((2_000_000,), CHANGED.format(3, 1_999_999), True),
        ((2_000_000,), CHANGED.format(200_000, 2_000_001), True),
        ((2_000_000, 3), MANY, False),
        ((2_000_000, 3), CHANGED.format(77_777, 1 << 40), True),
        ((2_000_000, 3), CHANGED.format(0, -1), True),
        ((2_000_000, 2), "(" + MANY + ").flip(0)", True),
    ],
    ids=str,
)
def test_bad_offsets_on_a_gpu(shape, offsets, fails, cuda):
    """On a GPU the kernel stops with an assertion, wherever the bad offset stands; and never without one."""
    path = ":".join(filter(None, sys.path))
    command = [sys.executable, "-c", CALL.format(shape=shape, offsets=offsets)]
    result = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)
    assert result.returncode == (7 if fails else 0), result.stderr.decode()[-2000:]


# --- without data -----------------------------------------------------------------------------------------------------


def test_compile(device):
    """Inductor has one graph for all sizes and numbers of segments, with eager's bits, and one of gradients."""
    torch._dynamo.reset()

    def function(x, offsets):
        y = x.clamp(0, 1) / 4096 + 1  # whose products are finite
        results = []
        for name in ("segment_sum", "segment_prod", "segment_logsumexp"):  # test_meta.py compiles all
            _, reduce, whole = FORMS[name]
            wide = dict(dtype=torch.float64) if whole.has_dtype else {}
            results += [reduce(y, offsets), reduce(y.t(), offsets, -1, **wide) * 2]
        return [*results, torch_reduce.segment_softmax(y, offsets), torch_reduce.segment_softmax(y.t(), offsets, 1)]

    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths, columns in (([3, 60], 5), ([5000, 2, 70], 7)):
            x, offsets = data((sum(lengths), columns), "float32", device=device), ends(lengths, device=device)
            ours, theirs = (f(x.requires_grad_(), offsets) for f in (compiled, function))
            for got, wanted in zip(ours, theirs, strict=True):
                assert_same_bits(got, wanted)
            grads = [torch.autograd.grad([y.sin().sum() for y in results], x)[0] for results in (ours, theirs)]
            torch.testing.assert_close(*grads)


@every_form
def test_export(form, device):
    """torch.export with dynamic sizes, run on others, gives the op's bits."""
    function = FORMS[form][1]

    class Module(torch.nn.Module):
        def forward(self, x, offsets):
            return function(x, offsets)

    tokens, ends_ = torch.export.Dim("tokens", min=2, max=100_000), torch.export.Dim("ends", min=3, max=1000)
    x, offsets = data((50, 3), "bfloat16", device=device), ends([20, 30], device=device)
    program = torch.export.export(Module(), (x, offsets), dynamic_shapes=({0: tokens}, {0: ends_}))
    x, offsets = data((9000, 3), "bfloat16", device=device), ends([0, 8000, 1, 999], device=device)
    assert_same_bits(program.module()(x, offsets), function(x, offsets))


def test_opcheck(device):
    """torch.library.opcheck of the transpose that gradients are, and of empty segments' meta tensors."""
    offsets = torch.tensor([1, 3, 4, 9], device=device)
    opcheck(OPS._segment_spread.default, (leaf((3, 4), "float32", device), offsets, 10, 0))
    x, y, dtype = leaf((9, 4), "float32", device), leaf((3, 4), "float32", device, seed=1), torch.float32
    opcheck(OPS._segment_prod_backward.default, (y, x, offsets, 0, dtype))
    opcheck(OPS.segment_softmax.default, (x, offsets), dict(dtype=torch.float64))
    opcheck(OPS._segment_softmax_backward.default, (leaf((9, 4), "float32", device, seed=2), x, offsets, 0, dtype))
    meta = torch.empty(3, dtype=INT32, device="meta")
    assert OPS.segment_sum(torch.empty(6, 0, device="meta"), meta).shape == (2, 0)
    with pytest.raises(RuntimeError, match="first or the last"):
        OPS.segment_sum(torch.empty(3, 4, 5, device="meta"), meta, 1)


# --- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in INTEGER])
@pytest.mark.parametrize("form", LINEAR)
def test_gradients(form, name, device):
    """Each element gets its segment's gradient, in its own dtype: exactly 0 outside, a quotient for means."""
    operator, _, operation = FORMS[form]
    x = data((9, 3), name, device=device).requires_grad_()
    offsets = torch.tensor([1, 3, 3, 7, 8], device=device)
    y = operator(x, offsets)
    given = (torch.arange(12.0, device=device).view(4, 3) - 5).to(y.dtype)
    given[1] = float("inf")  # of an empty segment
    (grad,) = torch.autograd.grad(y, x, given)
    lengths = torch.tensor([2.0, 0, 4, 1], device=device)
    share = given.to(torch.complex64 if y.is_complex() else torch.float64)
    if operation.divides:
        share = share / lengths[:, None]
    wanted = torch.zeros(9, 3, dtype=share.dtype, device=device)
    for i in (0, 2, 3):
        wanted[offsets[i] : offsets[i + 1]] = share[i]
    assert_same_bits(grad, wanted.to(y.dtype).to(x.dtype))


def test_gradients_of_other_results(device):
    """A result of another dtype, real or complex, gives a gradient of the input's; none of an integer's."""
    offsets = torch.tensor([0, 2, 4], device=device)
    for source, target in (("float64", "complex128"), ("complex128", "float64")):
        assert gradcheck(
            lambda x, target=target: OPS.segment_sum(x, offsets, dtype=dtype_of(target)), leaf((5,), source, device)
        )
    x, given = leaf((5,), "float32", device), torch.tensor([1 + 2j, 3 + 4j], device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as of an imaginary part that is discarded
        (grad,) = torch.autograd.grad(OPS.segment_sum(x, offsets, dtype=torch.complex64), x, given)
    assert grad.tolist() == [1, 1, 3, 3, 0]
    x = leaf((5,), "bfloat16", device)
    (grad,) = torch.autograd.grad(OPS.segment_sum(x, offsets, dtype=torch.float32).sum(), x)
    assert grad.dtype == torch.bfloat16 and grad.tolist() == [1, 1, 1, 1, 0]
    assert not OPS.segment_sum(x, offsets, dtype=torch.int64).requires_grad
    with pytest.raises(RuntimeError, match="out=.*don't support automatic differentiation"):
        OPS.segment_sum(x, offsets, out=torch.empty(2, dtype=torch.bfloat16, device=device))


def test_second_derivative_has_fixed_bits(device):
    """The gradient of the gradient is a sum of segments again."""
    offsets = ends([3000, 5, 6000], device=device)
    x = data((9005,), "float32", device=device).requires_grad_()
    given = torch.ones(3, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(OPS.segment_sum(x, offsets), x, given, create_graph=True)
    weights = data((9005,), "float32", seed=3, device=device)
    (twice,) = torch.autograd.grad(grad, given, weights)
    assert_same_bits(twice, expected(weights, offsets))


def given_of(count, name, device):
    """Incoming gradients, one of which is 0, and no two alike."""
    return (torch.arange(float(count), dtype=torch.float64) - 2).to(dtype_of(name)).to(device)


NONLINEAR = ["prod", "amax", "amin", "logsumexp"]


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("kind", NONLINEAR)
def test_bits_of_gradients(kind, name, device):
    """Each segment's gradient has the model's bits, in every layout, by create_graph too; 0 outside of all segments."""
    lengths = [1, 2, 7, 513, 4097]
    parts = [elements(kind, 5, length, name) for length in lengths]
    function = getattr(torch_reduce, f"segment_{kind}")
    for row in range(5):  # with zeros, ties, and rows of -inf
        segments = [part[row] for part in parts]
        count = len(segments)
        given = given_of(count + 1, name, "cpu")
        wanted = [
            model.encode(modelled(kind, numpy_of(part)[None], name, given[i : i + 1].double().numpy()), name)[
                0, :, None
            ]
            for i, part in enumerate(segments)
        ]
        edge = torch.tensor([math.nan, 0.0, math.inf]).to(dtype_of(name))
        nothing = numpy_of(torch.zeros(3, dtype=dtype_of(name)))
        x = torch.cat([edge, *segments, edge]).to(device)
        wanted = tensor_of(np.concatenate([nothing, *wanted, nothing]), name, device)
        offsets, given = ends([*lengths, 0], first=3, device=device), given.to(device)
        for graph in (False, True):
            assert_same_bits(gradient(lambda x, o=offsets: function(x, o), x, given, create_graph=graph), wanted)
        columns = torch.stack([x, x], 1)
        found = gradient(lambda x, o=offsets: function(x, o), columns, torch.stack([given, given], 1))
        assert_same_bits(found[:, 1], wanted)
        found = gradient(lambda x, o=offsets: function(x, o, -1), columns.t(), torch.stack([given, given]))
        assert_same_bits(found[0], wanted)


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_gradient_of_nan(kind, device):
    """Where a segment has NaN, its whole gradient is NaN, as torch's; others have none of it."""
    x = torch.tensor([1.0, math.nan, 2.0, 3.0, 3.0], device=device)
    offsets = torch.tensor([0, 2, 4, 5], device=device)
    found = gradient(lambda x: getattr(torch_reduce, f"segment_{kind}")(x, offsets), x)
    wanted = [math.nan, math.nan, *((0.0, 1.0) if kind == "amax" else (1.0, 0.0)), 1.0]
    assert_same_bits(found, torch.tensor(wanted, device=device))


@pytest.mark.parametrize("zeros", range(4))
def test_derivatives_of_products(zeros, device):
    """First to third order, in both modes and batched, with zeros; large numbers elsewhere touch nothing."""
    offsets = torch.tensor([1, 2, 6, 6, 8], device=device)
    x = torch.tensor([math.inf, 2, 3, -1, 0.5, 2, 4, 1.5, math.inf], dtype=torch.float64, device=device)
    x[2 : 2 + zeros] = 0

    def function(own):
        return OPS.segment_prod(torch.cat([x[:1], own, x[8:]]), offsets)

    given = x[1:8].clone().requires_grad_()
    assert gradcheck(function, given, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, given, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=True)

    def hessian(own):
        return torch.func.hessian(lambda y: function(y).sum())(own)

    assert gradcheck(hessian, given)
    rows = torch.stack([given.detach(), given.detach() + 1])
    alone = torch.stack([hessian(row) for row in rows])
    torch.testing.assert_close(torch.vmap(hessian)(rows), alone)
    theirs = torch.func.hessian(lambda y: y[:1].prod() + y[1:5].prod() + y[5:].prod())(given.detach())
    torch.testing.assert_close(hessian(given.detach()), theirs)


# --- softmax ----------------------------------------------------------------------------------------------------------


def softmaxes(x, offsets, target=None):
    """The model's result for a vector, as stored elements: of each segment on its own, 0 outside."""
    name = name_of(x.dtype)
    target = target or ("float32" if name.startswith("float8") else name)
    values = model.decode(numpy_of(x)[:, 0], name)
    values = values.astype(np.float64 if "float64" in (name, target) else np.float32)
    found = np.zeros_like(values)
    for begin, end in itertools.pairwise(offsets.tolist()):
        if begin < end:
            found[begin:end] = model.softmaxes(values[None, begin:end], False)[0]
    return model.encode(found, target)[:, None]


def logits(shape, name, seed=0, device="cpu"):
    """Numbers whose softmax shows something."""
    values = data(shape, "int16", seed=seed, device=device).double() / 2500
    return (values * 4 if "float" in name else values).to(dtype_of(name))


@pytest.mark.parametrize("name", [*FLOATING, "int32", "bool"])
def test_softmax(name, device):
    """The model's bits for each segment, as a vector, rows, columns and strided, with other dtypes; 0 outside."""
    lengths = [3, 0, 700, 1, 5000, 64, 2]
    offsets = ends(lengths, first=2, device=device)
    x = logits((5800,), name, device=device)
    if "float" in name:
        x[0], x[-1] = math.nan, math.nan
    for target in (None, "float64", "float16") if "float" in name else ("float32", "float64"):
        dtype = target and dtype_of(target)
        wanted = tensor_of(
            softmaxes(x, offsets, target), target or name_of(OPS.segment_softmax(x, offsets).dtype), device
        )
        assert_same_bits(torch_reduce.segment_softmax(x, offsets, dtype=dtype), wanted)
        assert_same_bits(OPS.segment_softmax(x, offsets.int(), -1, dtype=dtype), wanted)
        columns = torch.stack([x, 0 * x if name == "float32" else x, x], 1)
        assert_same_bits(OPS.segment_softmax(columns, offsets, dtype=dtype)[:, 2], wanted)
        assert_same_bits(OPS.segment_softmax(columns.t(), offsets, 1, dtype=dtype)[0], wanted)
        assert_same_bits(OPS.segment_softmax(columns.view(5800, 3)[:, ::2], offsets, dtype=dtype)[:, 1], wanted)


@pytest.mark.parametrize("longest", [4, 1000, 100_000])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_softmax_of_mixed_lengths(longest, name, device):
    """Many segments of all magnitudes."""
    lengths = mixed(3000 if longest <= 1000 else 60, longest, seed=longest)
    offsets = ends(lengths, first=1, device=device)
    x = logits((sum(lengths) + 3,), name, device=device)
    assert_same_bits(OPS.segment_softmax(x, offsets), softmaxes(x, offsets))


def test_softmax_of_special_numbers(device):
    """NaN where a segment has NaN or inf, or nothing but -inf; no segment touches another."""
    inf, nan = math.inf, math.nan
    x = torch.tensor([1.0, inf, 2.0, -inf, 5.0, -inf, -inf, nan, 0.0, -200.0, 0.0, nan], device=device)
    offsets = torch.tensor([0, 2, 5, 7, 9, 9, 11], device=device)
    wanted = softmaxes(x, offsets)
    assert_same_bits(OPS.segment_softmax(x, offsets), wanted)
    assert np.isnan(wanted[[0, 1, 5, 6, 7, 8], 0]).all() and wanted[3, 0] == 0 and wanted[4, 0] > 0.9
    for shape, dim in (((0,), 0), ((0, 3), 0), ((3, 0), 1), ((5, 0), 0)):
        nothing = torch.empty(shape, device=device)
        assert OPS.segment_softmax(nothing, torch.zeros(3, dtype=INT32, device=device), dim).shape == shape
    assert_same_bits(OPS.segment_softmax(x, offsets[:1]), torch.zeros_like(x))
    assert not OPS.segment_softmax(x, offsets[3:5])[:7].any() and not OPS.segment_softmax(x, offsets[3:5])[9:].any()


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float64"])
def test_bits_of_softmaxs_gradient(name, device):
    """The model's for each segment, by create_graph too; 0 outside of all segments, whatever comes in there."""
    lengths = [1, 2, 0, 700, 4097]
    offsets = ends(lengths, first=2, device=device)
    x, given = logits((sum(lengths) + 5,), name, device=device), data((sum(lengths) + 5,), name, seed=3, device=device)
    given[:2], given[-1] = math.nan, math.inf
    real = np.float64 if name == "float64" else np.float32
    y = model.decode(softmaxes(x, offsets), name)[:, 0].astype(real)
    g, wanted = model.decode(numpy_of(given)[:, 0], name).astype(real), np.zeros_like(y)
    for begin, end in itertools.pairwise(offsets.tolist()):
        if begin < end:
            wanted[begin:end] = model.softmaxes_backward(g[None, begin:end], y[None, begin:end], False)[0]
    wanted = tensor_of(model.encode(wanted, name)[:, None], name, device)
    for graph in (False, True):
        function = lambda x: OPS.segment_softmax(x, offsets)  # noqa: E731
        assert_same_bits(gradient(function, x, given, create_graph=graph), wanted)
    found = gradient(lambda x: OPS.segment_softmax(x, offsets, 1), torch.stack([x, x]), torch.stack([given, given]))
    assert_same_bits(found[1], wanted)


def test_derivatives_of_softmax(device):
    """First and second order, in both modes and batched; under torch.func and vmap, with offsets of its own, too."""
    offsets = torch.tensor([1, 3, 3, 6, 7], device=device)
    for shape, dim in (((8,), 0), ((8, 2), 0), ((2, 8), -1)):
        x = leaf(shape, device=device)
        function = lambda x, dim=dim: OPS.segment_softmax(x, offsets, dim)  # noqa: E731
        batched = dict(check_batched_grad=True)
        assert gradcheck(function, x, check_forward_ad=True, check_batched_forward_grad=True, **batched)
        assert gradgradcheck(function, x, check_fwd_over_rev=True, check_rev_over_rev=True, **batched)
    x = leaf((3, 8), device=device).detach()
    own = torch.stack([offsets, offsets.clamp(max=5), offsets - 1])

    def hessian(x, offsets):
        return torch.func.hessian(lambda x: (OPS.segment_softmax(x, offsets) ** 3).sum())(x)

    torch.testing.assert_close(
        torch.vmap(hessian)(x, own), torch.stack([hessian(*pair) for pair in zip(x, own, strict=True)])
    )


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "float8_e5m2"])
def test_vmap_of_softmax(name, device):
    """Any place of the batch, any dim, alone and with batched offsets: the bits of the calls one by one."""
    x = logits((4, 5, 6), name, device=device)
    for batch, dim in itertools.product((0, 1, 2), (0, 1)):
        call = functools.partial(OPS.segment_softmax, dim=dim)
        offsets = torch.tensor([0, 1, 1, x.select(batch, 0).shape[dim] - 1], device=device)
        own = torch.stack([offsets] * x.shape[batch])
        wanted = torch.stack([call(one, offsets) for one in x.unbind(batch)])
        assert_same_bits(torch.vmap(call, (batch, None))(x, offsets), wanted)
        assert_same_bits(torch.vmap(call, (batch, 0))(x, own), wanted)


def test_softmax_arguments(device):
    """Wrong dtypes and dims are refused; a meta tensor's result is described as the real one's is."""
    x, offsets = torch.ones(4, 5, 6, device=device), torch.tensor([0, 4], device=device)
    for call in (torch_reduce.segment_softmax, OPS.segment_softmax):
        with pytest.raises(RuntimeError, match="dim: expected the first or the last of 3 dims, but got 1"):
            call(x, offsets, 1)
        with pytest.raises(NotImplementedError, match="dtype= must name a floating one"):
            call(x.int(), offsets)
        with pytest.raises(NotImplementedError, match="complex"):
            call(x.to(torch.complex64), offsets)
        with pytest.raises(RuntimeError, match="dtype: expected float16"):
            call(x, offsets, dtype=torch.int64)
        with pytest.raises(NotImplementedError, match="sparse"):
            call(x.to_sparse(), offsets)
    for view in (x, x.permute(2, 0, 1), x[:, ::2], x[:1].expand(4, 5, 6)):
        real = OPS.segment_softmax(view, offsets)
        meta = torch.empty_strided(view.shape, view.stride(), device="meta")
        described = OPS.segment_softmax(meta, offsets.to("meta"))
        assert (described.shape, described.stride(), described.dtype) == (real.shape, real.stride(), real.dtype)


def test_softmax_under_autocast():
    """CUDA's autocast makes the result float32, as of torch.softmax; no dtype= is changed, and no float64."""
    with without_a_gpu():
        offsets = torch.empty(4, dtype=torch.int64, device="cuda")
        for name, dtype, wanted in (
            ("float16", None, torch.float32),
            ("bfloat16", torch.bfloat16, torch.bfloat16),
            ("float64", None, torch.float64),
        ):
            x = torch.empty(3, 40, dtype=dtype_of(name), device="cuda")
            assert torch_reduce.segment_softmax(x, offsets, 1, dtype=dtype).dtype == wanted
            assert torch.softmax(x, 1, dtype=dtype).dtype == wanted


# --- vmap and autocast ------------------------------------------------------------------------------------------------


def test_vmap_over_offsets(device):
    """With offsets of its own each of a batch is a call."""
    offsets = torch.stack([ends(lengths, device=device) for lengths in ([3, 5], [0, 8], [600, 1])])
    x = data((3, 650), "float32", device=device)
    wanted = torch.stack([OPS.segment_sum(one, own) for one, own in zip(x, offsets, strict=True)])
    assert_same_bits(torch.vmap(OPS.segment_sum)(x, offsets), wanted)
    wanted = torch.stack([OPS.segment_sum(x[1], own) for own in offsets])
    assert_same_bits(torch.vmap(lambda own: OPS.segment_sum(x[1], own))(offsets), wanted)
    nested = torch.vmap(torch.vmap(OPS.segment_sum, (0, None)), (None, 0))(x, offsets)
    assert_same_bits(nested[2], torch.stack([OPS.segment_sum(one, offsets[2]) for one in x]))


# --- CUDA alone -------------------------------------------------------------------------------------------------------


def test_graphs(cuda):
    """A captured call serves other data and other offsets."""
    lengths = [[5, 0, 9000, 40_000, 3], [20_000, 3, 1, 0, 29_004], [0, 0, 49_008, 0, 0]]
    functions = [OPS.segment_sum, OPS.segment_prod, OPS.segment_amax, OPS.segment_logsumexp, OPS.segment_softmax]
    for shape, function in itertools.product(((49_008,), (49_008, 24)), functions):
        x, offsets = data(shape, "float32", device=cuda), ends(lengths[0], device=cuda)
        function(x, offsets)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = function(x, offsets)
        for seed, other in enumerate(lengths):
            x.copy_(data(shape, "float32", seed=seed))
            offsets.copy_(ends(other))
            graph.replay()
            assert_same_bits(result, function(x.cpu(), offsets.cpu()))


@every_function
def test_nothing_waits(function, cuda):
    """No call waits for the GPU, nor does its gradient."""
    x, offsets = data((90_000,), "float32", device=cuda), ends([40_000, 0, 50_000], device=cuda)
    x.requires_grad_()
    function(x, offsets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        function(x, offsets).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if function is torch_reduce.segment_mean:
        assert_same_bits(x.grad[:1], (torch.ones(1) / 40_000).to(cuda))
