"""Exact sums of segments: each is the nearest number to its segment's sum, by Python's fractions, in any order."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import test_exact
import torch_reduce
from support import COMPLEX, DTYPES, FLOATING, INTEGER, assert_same_bits, data, dtype_of, python
from table import ends, rotated
from test_autocast import without_a_gpu
from test_autograd import leaf
from test_exact import FORMATS, kinds_of, patterns, rows_of, shuffled
from test_meta import opcheck
from test_segment import CALL, CHANGED, FEW, LENGTHS, MANY, allocated, mixed, random_layout

pytestmark = pytest.mark.filterwarnings("ignore:Casting complex values", "ignore:ComplexHalf support")

OPS = torch.ops.gpureduce
INT32 = torch.int32


def exact(x, offsets, dim=0, **named):
    return torch_reduce.segment_sum(x, offsets, dim, exact=True, **named)


def of_each(function, x, offsets, dim, dtype):
    """A function's results of the segments, side by side."""
    pairs = itertools.pairwise(offsets.tolist())
    return torch.stack([function(x.narrow(dim, b, e - b), dim, dtype=dtype) for b, e in pairs], dim)


def check(x, offsets, dim=0, dtype=None):
    """The bits of Python's fractions."""
    wanted = of_each(test_exact.expected, x, offsets, dim, dtype)
    return checked(wanted, x, offsets, dim, dtype)


def checked(wanted, x, offsets, dim, dtype):
    result = exact(x, offsets, dim, dtype=dtype)
    assert result.device == x.device and result.is_contiguous()
    told = f"for shape {tuple(x.shape)}, strides {x.stride()}, {x.dtype}, {offsets.tolist()[:40]}, {dim=}, {dtype=}"
    assert_same_bits(result.cpu(), wanted.cpu(), told)
    return result


def compare(x, offsets, dim=0, dtype=None):
    """The bits of the exact sum of each segment alone, which test_exact.py compares with fractions."""
    alone = of_each(lambda *a, **k: torch_reduce.sum(*a, exact=True, **k), x.cpu(), offsets.cpu(), dim, dtype)
    return checked(alone, x, offsets, dim, dtype)


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOATING)
def test_kinds_of_data(name, device):
    """Each kind of data, as a vector, as rows and as columns, with results of every floating dtype in turns."""
    for k, (_, x) in kinds_of(name, 700):
        x, size = x.to(device), len(x)
        places = sorted({0, min(1, size), size // 3, size // 3 + size // 50, size // 2, size - size // 9, size})
        offsets = torch.tensor([*places, size], device=device)
        for dtype in rotated(FORMATS, k + FLOATING.index(name)):
            check(x, offsets, dtype=dtype_of(dtype))
        check(torch.stack([x, shuffled(x, 1), shuffled(x)], 1), offsets)
        check(torch.stack([x, shuffled(x, 1)]), offsets, -1)
        check(x[:, None].expand(-1, 3), offsets.to(INT32))


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name, device):
    """Every dtype, as a vector, rows, columns and strided; integers without a modulus; integer results as without."""
    offsets = ends([3, 0, 70, 1, 500, 64, 2], first=2, device=device)
    for dtype in map(dtype_of, ["float64", "bfloat16", *(["complex64"] if name in COMPLEX else [])]):
        for make in (data, patterns) if name in FLOATING else (data,):
            check(make((650,), name).to(device), offsets, 0, dtype)
            check(make((2, 650), name).to(device), offsets, 1, dtype)
            check(make((650, 6), name).to(device)[:, 1:4], offsets, 0, dtype)
            check(make((650, 4, 3), name).to(device)[:, ::3], offsets, 0, dtype)
    if name in ("int64", "uint64"):
        info = torch.iinfo(dtype_of(name))
        for edge in (info.min, info.max):
            check(torch.full((650,), edge, dtype=dtype_of(name), device=device), offsets, dtype=torch.float64)
    x = data((650, 3), name, device=device)
    for dtype in (torch.int64, torch.bool, *([None] if name in INTEGER else [])):
        assert_same_bits(exact(x, offsets, dtype=dtype), torch_reduce.segment_sum(x, offsets, dtype=dtype))


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64", "int16", "complex64"])
def test_every_length(name, offset, device):
    """Lengths around the ends of tiles, at any alignment; int32 offsets have the same bits."""
    lengths = LENGTHS + LENGTHS[::-1]
    offsets = ends(lengths, device=device)
    x = data((sum(lengths) + offset,), name, device=device)[offset:]
    dtype = torch.float32 if name == "int16" else None
    result = compare(x, offsets, dtype=dtype)
    assert_same_bits(exact(x, offsets.to(INT32), dtype=dtype), result)
    compare(data((3 * sum(lengths),), name, device=device)[::3], offsets, dtype=dtype)


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 20, 33, 64, 130])
def test_columns_of_every_length(columns, device):
    """The same of few and of many columns, and of ones that have others beside them."""
    lengths = [length for length in LENGTHS if length * columns < 200_000]
    offsets = ends(lengths, first=1, device=device)
    for name in ("float32", "bfloat16", "float64"):
        compare(data((sum(lengths) + 4, columns), name, device=device), offsets)
        compare(data((sum(lengths) + 4, columns + 3), name, device=device)[:, 1 : columns + 1], offsets)
        compare(data((columns, sum(lengths) + 4), name, device=device), offsets, 1)


@pytest.mark.parametrize("longest", [1, 4, 40, 1000, 100_000])
@pytest.mark.parametrize("name", ["float32", "float16", "float64"])
def test_mixed_lengths(name, longest, device):
    """Many segments of all magnitudes, of numbers of all magnitudes too."""
    lengths = mixed(600 if longest <= 1000 else 20, longest, seed=longest)
    offsets = ends(lengths, device=device)
    compare(data((sum(lengths),), name, device=device), offsets)
    compare(patterns((sum(lengths),), name).to(device), offsets)
    lengths = lengths[:100]
    offsets = ends(lengths, device=device)
    compare(patterns((sum(lengths), 12), name).to(device), offsets)


@pytest.mark.parametrize("columns", [None, 1, 8, 40])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_one_huge_beside_many_tiny(name, columns, device):
    """A segment of many tiles in the middle of short ones; its large numbers cancel."""
    huge = 200_001 if columns is None else 20_001
    lengths = [1, 2, 0] * 60 + [huge] + [3] * 100 + [9000, 1]
    shape = (sum(lengths),) if columns is None else (sum(lengths), columns)
    offsets = ends(lengths, device=device)
    x = data(shape, name, device=device)
    begin, end = offsets[180:182].tolist()
    half = (end - begin) // 2
    x[begin : begin + half] = x[end - half : end].flip(0) * -1e20
    x[end - half : end] *= 1e20
    compare(x, offsets)
    compare(torch._neg_view(x), offsets)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
def test_no_order(name, device):
    """The elements of a segment may have any order, and other segments any elements."""
    rng, lengths = np.random.default_rng(3), [5, 700, 0, 9000, 2, 33]
    offsets = ends(lengths, device=device)
    x = patterns((sum(lengths), 3), name).to(device)
    wanted = compare(x, offsets)
    for _ in range(4):
        order = np.concatenate(
            [b + rng.permutation(n) for b, n in zip(np.cumsum([0, *lengths]), lengths, strict=False)]
        )
        assert_same_bits(exact(x[torch.from_numpy(order).to(device)], offsets), wanted)
    other = torch.full_like(x, math.nan)
    other[offsets[3] : offsets[4]] = x[offsets[3] : offsets[4]]
    assert_same_bits(exact(other, offsets)[3], wanted[3])
    assert not torch.equal(torch_reduce.segment_sum(x, offsets)[3], wanted[3])  # the data show the difference


def test_special_numbers(device):
    """Sums of -0.0 keep their sign, empty ones are 0.0, and infinities and NaN stay in their segments."""
    inf, nan = math.inf, math.nan
    x = torch.tensor([-0.0, -0.0, inf, 1, inf, -inf, nan, 2, -0.0, 3e38, 3e38, -3e38], device=device)
    offsets = torch.tensor([0, 2, 2, 4, 6, 8, 9, 12, 12], device=device)
    wanted = torch.tensor([-0.0, 0.0, inf, nan, nan, -0.0, torch.tensor(3e38), 0.0], device=device)
    for result in (exact(x, offsets), exact(x.view(12, 1).expand(12, 5).contiguous(), offsets)[:, 3]):
        assert_same_bits(result, wanted)
    zeros = torch.full((9000,), -0.0, device=device)
    assert_same_bits(exact(zeros, ends([8999, 1], device=device)), zeros[:2])
    zeros[8000] = 0
    assert_same_bits(exact(zeros, ends([8999, 1], device=device)), torch.tensor([0.0, -0.0], device=device))


@pytest.mark.filterwarnings("ignore:.*do not begin with 0")
@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_views(device, chosen):
    """Any strides, offsets, dtypes and segments."""

    def choose(a, b):
        return chosen.draw(st.integers(a, b))

    rank, name = choose(1, 4), chosen.draw(st.sampled_from(DTYPES))
    shape = [choose(1, 5) for _ in range(rank)]
    dim = chosen.draw(st.sampled_from([0, rank - 1]))
    lengths = [choose(0, [3, 40, 600, 9000][choose(0, 3)]) for _ in range(choose(1, 5))]
    first = choose(0, 3)
    shape[dim] = first + sum(lengths) + choose(0, 3)
    strides, start, size = random_layout(chosen, shape)
    make = patterns if name in FLOATING and choose(0, 1) else data
    x = make((size,), name, choose(0, 3)).to(device).as_strided(shape, strides, start)
    offsets = ends(lengths, first, dtype=INT32 if choose(0, 1) else torch.int64, device=device)
    targets = [None, torch.float64, torch.bfloat16, *([torch.complex128] if name in COMPLEX else [])]
    compare(x, offsets, dim, chosen.draw(st.sampled_from(targets)))


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers(name, device):
    """Parts are added separately; conjugated and negated views, and real results."""
    x, offsets = data((60, 7), name, device=device), ends([20, 0, 35], first=2, device=device)
    for view in (x, x.conj(), torch._neg_view(x), torch._neg_view(x.conj()), x[:, ::2].conj()):
        check(view, offsets)
    check(x.t().conj(), offsets, 1)
    check(x, offsets, dtype=torch.float64)
    check(x.real, offsets, dtype=torch.complex64)
    check(x.conj().imag, offsets)


# --- the CPU ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads, set_threads):
    """One bit pattern; the largest segment is more than a thread's share."""
    lengths = [*mixed(300, 300, seed=2), 300_000, *mixed(10, 30_000, seed=5)]
    offsets = ends(lengths)
    inputs = [data((sum(lengths),), "float32"), data((sum(lengths), 3), "float64")]
    set_threads(1)
    wanted = [exact(x, offsets) for x in inputs]
    set_threads(threads)
    for x, bits in zip(inputs, wanted, strict=True):
        assert_same_bits(exact(x, offsets), bits)


IN_A_PROCESS = """
import torch
from table import ends
from test_exact import rows_of
from test_exact_segment import check
torch.set_flush_denormal(True)
for kind in ("normal", "any bits", "subnormal", "cancelling"):
    check(rows_of("float32", 1100)[kind], ends([2, 30, 0, 500, 568]))
"""


def test_flush_denormal_changes_nothing():
    """Of a thread that flushes subnormals, too."""
    python("-c", IN_A_PROCESS)


# --- arguments --------------------------------------------------------------------------------------------------------


def test_results_and_forms(device):
    """Shapes, dtypes, and the ways to call it; no segments, no rows, no columns, no elements."""
    x, offsets = data((3, 10), "bfloat16", device=device), torch.tensor([1, 4, 4, 10], device=device)
    wanted = check(x, offsets, 1)
    for found in (OPS.exact_segment_sum(x, offsets, -1), exact(x.t(), offsets).t(), exact(x, offsets.int(), dim=1)):
        assert_same_bits(found, wanted)
    assert_same_bits(torch_reduce.segment_sum(x, offsets, 1, exact=False), torch_reduce.segment_sum(x, offsets, 1))
    assert_same_bits(exact(x, torch._neg_view(-offsets), 1), wanted)
    assert exact(x, offsets[:1], 1).shape == (3, 0)
    assert exact(x[:0], offsets, 1).shape == (0, 3)
    assert_same_bits(exact(x[:, :0], torch.zeros(3, dtype=INT32, device=device), 1), wanted.new_zeros(3, 2))
    assert exact(x.to("meta"), offsets.to("meta"), 1).shape == (3, 3)
    assert OPS.exact_segment_sum.__doc__ == torch_reduce.segment_sum.__doc__


def test_out(device):
    """out= is written where it lies, resized, and may be anything but what is read. It decides the dtype."""
    x, offsets = data((7000, 3), "float32", device=device), ends([5, 0, 6000, 900], device=device)
    wanted = exact(x, offsets)
    for out in (torch.empty(4, 3, device=device), torch.empty(3, 4, device=device).t(), torch.empty(0, device=device)):
        assert exact(x, offsets, out=out) is out
        assert_same_bits(out, wanted)
    own, late = x.clone(), ends([0, 0, 0, 6905], device=device)  # to the first elements results are written early
    exact(own, late, out=own[:4])
    assert_same_bits(own[:4], exact(x, late))
    lazy = torch._neg_view(torch.empty(4, 3, device=device))
    assert_same_bits(exact(x, offsets, out=lazy).resolve_neg(), wanted)
    for dtype in (torch.float64, torch.float16, torch.int64):
        out = torch.empty(4, 3, dtype=dtype, device=device)
        assert_same_bits(exact(x, offsets, out=out), exact(x, offsets, dtype=dtype))
    with pytest.warns(UserWarning, match="resized"):
        exact(x, offsets, out=torch.empty(2, device=device))
    with pytest.raises(RuntimeError, match="out=.*don't support automatic differentiation"):
        exact(x.requires_grad_(), offsets, out=torch.empty(4, 3, device=device))


def test_errors(device):
    """Those of the ordinary function, word for word; and `exact` must be a bool."""
    x, offsets = torch.ones(4, 5, 6, device=device), torch.tensor([0, 4], device=device)
    for wrong in (1, None, "yes", torch.tensor(True)):
        with pytest.raises(TypeError, match=r"^segment_sum\(\): argument 'exact' must be bool"):
            torch_reduce.segment_sum(x, offsets, exact=wrong)
    for arguments, named in (
        ((x, offsets, 3), {}),
        ((x, offsets, 1), {}),
        ((x[0, 0, 0], offsets), {}),
        ((x, offsets[None]), {}),
        ((x, offsets[:0]), {}),
        ((x, offsets.float()), {}),
        ((x, offsets.to("meta")), {}),
        ((x.to(torch.float8_e4m3fnuz), offsets), {}),
        ((x, offsets), dict(dtype=torch.float8_e5m2fnuz)),
        ((x.to_sparse(), offsets), {}),
        ((x, [0, 4]), {}),
        ((1.0, offsets), {}),
        ((x, offsets), dict(out=torch.empty(1, 5, 6, device="meta"))),
        ((x, offsets), dict(out=torch.empty(1, 1, 1, device=device).expand(1, 5, 6))),
        ((x, offsets), dict(out=torch.empty(1, 5, 6, device=device), dtype=torch.float64)),
    ):
        found = []
        for flag in (False, True):
            with pytest.raises((RuntimeError, TypeError, IndexError)) as caught:
                torch_reduce.segment_sum(*arguments, **named, exact=flag)
            found.append((caught.type, str(caught.value).replace("exact_segment_sum", "segment_sum")))
        assert found[0] == found[1]


def test_bad_offsets_on_the_cpu():
    """Offsets are checked before anything is written, as by the ordinary function; lengths have their warning."""
    x, out = torch.ones(5), torch.full((2,), 7.0)
    for bad, message in (
        ([0, 3, 2], r"^segment_sum\(\): .*entry 2 is 2 after 3"),
        ([0, 3, 6], r"in \[0, 5\].*entry 2 is 6"),
        ([-1, 3, 5], "entry 0 is -1"),
    ):
        with pytest.raises(RuntimeError, match=message):
            exact(x, torch.tensor(bad), out=out)
        with pytest.raises(RuntimeError, match=message):
            exact(torch.ones(5, 0), torch.tensor(bad))
    assert out.tolist() == [7, 7]
    with pytest.warns(UserWarning, match=r"^segment_sum\(\): .* sum is 5, the size of dim"):
        exact(x, torch.tensor([2, 3]))


@pytest.mark.parametrize(
    "shape, offsets, fails",
    [
        ((5,), FEW.format([0, 3, 5]), False),
        ((5,), FEW.format([0, 3, 2]), True),
        ((5, 8), FEW.format([0, 6]), True),
        ((5,), FEW.format([-1, 5]), True),
        ((0,), FEW.format([0, 1]), True),
        ((2_000_000,), MANY, False),
        ((2_000_000,), CHANGED.format(100_003, 5), True),
        ((2_000_000,), CHANGED.format(200_000, 2_000_001), True),
        ((2_000_000, 3), CHANGED.format(77_777, 1 << 40), True),
        ((2_000_000, 3), CHANGED.format(0, -1), True),
        ((2_000_000, 2), "(" + MANY + ").flip(0)", True),
    ],
    ids=str,
)
def test_bad_offsets_on_a_gpu(shape, offsets, fails, cuda):
    """The kernel stops with an assertion, wherever the bad offset stands; and never without one."""
    call = CALL.replace("(x, offsets)", "(x, offsets, exact=True)").format(shape=shape, offsets=offsets)
    path = ":".join(filter(None, sys.path))
    command = [sys.executable, "-c", call]
    result = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=False)
    assert result.returncode == (7 if fails else 0), result.stderr.decode()[-2000:]


# --- torch's side -----------------------------------------------------------------------------------------------------


def test_gradients(device):
    """As of the ordinary function, bit for bit, and of every order and mode; a tangent is added exactly."""
    offsets = torch.tensor([1, 3, 3, 7, 8], device=device)
    for shape, dim in (((9,), 0), ((9, 2), 0), ((2, 9), -1)):
        x = leaf(shape, device=device)
        one = lambda t, dim=dim: exact(t, offsets, dim)  # noqa: E731
        assert gradcheck(one, x, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
        assert gradgradcheck(lambda t, one=one: one(t) ** 3, x, check_fwd_over_rev=True, check_rev_over_rev=True)
    for name in ("float32", "bfloat16", "float16", "complex64"):
        x = data((9, 3), name, device=device).requires_grad_()
        given = data((4, 3), name, 5, device)
        found = [
            torch.autograd.grad(torch_reduce.segment_sum(x, offsets, exact=flag), x, given)[0] for flag in (True, False)
        ]
        assert_same_bits(*found)
        assert found[0][1:3].ne(0).all() and not found[0][0].any()
    assert exact(x, offsets).grad_fn.name() == "gpureduce_exact_segment_sum_backward"
    assert not exact(x, offsets, dtype=torch.int64).requires_grad
    tangent = rows_of("float32")["cancelling"].to(device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones_like(tangent), tangent)
        whole = torch.tensor([0, len(tangent)], device=device)
        found = forward_ad.unpack_dual(exact(dual, whole)).tangent
    assert_same_bits(found, torch_reduce.sum(tangent, exact=True)[None])


def test_vmap(device):
    """Any place of the batch, any dim, alone and with batched offsets: the bits of the calls one by one."""
    x = data((4, 5, 60), "float32", device=device)
    for batch, dim in itertools.product((0, 1, 2), (0, 1)):
        call = lambda t, o, dim=dim: exact(t, o, dim)  # noqa: E731
        offsets = torch.tensor([0, 1, 1, x.select(batch, 0).shape[dim] - 1], device=device)
        own = torch.stack([offsets] * x.shape[batch])
        wanted = torch.stack([call(one, offsets) for one in x.unbind(batch)])
        assert_same_bits(torch.vmap(call, (batch, None))(x, offsets), wanted)
        assert_same_bits(torch.vmap(call, (batch, 0))(x, own), wanted)


def test_autocast():
    """As of the ordinary function: float32 on CUDA."""
    with without_a_gpu():
        x, offsets = (
            torch.ones(3, 4, device="cuda", dtype=torch.float16),
            torch.empty(3, dtype=torch.int64, device="cuda"),
        )
        assert exact(x, offsets).dtype == torch.float32 == torch_reduce.segment_sum(x, offsets).dtype
        assert exact(x, offsets, dtype=torch.float16).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert exact(torch.ones(3, dtype=torch.float16), torch.tensor([0, 3])).dtype == torch.float16


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex64", "int8", "float8_e5m2"])
def test_opcheck(name, device):
    x, offsets = data((9, 4), name, device=device), torch.tensor([1, 3, 4, 9], device=device)
    if name in ("float32", "bfloat16", "complex64"):
        x.requires_grad_()
    for args in ((x, offsets), (x, offsets[:3], -1), (x, offsets.int(), 0)):
        opcheck(OPS.exact_segment_sum.default, args)
    x = x.detach()
    opcheck(OPS.exact_segment_sum.out, (x, offsets), {"out": OPS.exact_segment_sum(x, offsets)})


def test_compile(device):
    """One graph for all sizes, with the same bits, gradients and `out`."""
    torch._dynamo.reset()

    def call(x, offsets, out):
        exact(x, offsets, out=out)
        return exact(x * 2, offsets, dtype=torch.float64), exact(x.t(), offsets, -1)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for lengths, columns in (([3, 60, 7], 5), ([500, 2, 70], 7)):
            x, offsets = data((sum(lengths), columns), "float32", device=device), ends(lengths, device=device)
            outs = torch.zeros(2, 3, columns, device=device)
            found = [f(x, offsets, out) for f, out in zip((compiled, call), outs, strict=True)]
            for one, other in zip(*found, strict=True):
                assert_same_bits(one, other)
            assert_same_bits(outs[0], outs[1])
    x = data((80, 3), "float32", device=device).requires_grad_()
    offsets = ends([70, 10], device=device)
    torch.compile(exact, backend="aot_eager", fullgraph=True)(x, offsets).square().sum().backward()
    wanted = torch.repeat_interleave(2 * exact(x.detach(), offsets), torch.tensor([70, 10], device=device), 0)
    assert_same_bits(x.grad, wanted)


def test_graphs(cuda):
    """A captured call serves other data and other offsets, and nothing waits for the GPU."""
    lengths = [[5, 0, 9000, 40_000, 3], [20_000, 3, 1, 0, 29_004], [0, 0, 49_008, 0, 0]]
    for shape, name in itertools.product(((49_008,), (49_008, 24)), ("float32", "float64", "int32")):
        x, offsets = data(shape, name, device=cuda), ends(lengths[0], device=cuda)
        torch.cuda.set_sync_debug_mode("error")
        try:
            exact(x, offsets, dtype=torch.float32)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = exact(x, offsets, dtype=torch.float32)
        for seed, other in enumerate(lengths):
            x.copy_(data(shape, name, seed=seed))
            offsets.copy_(ends(other))
            graph.replay()
            assert_same_bits(result, exact(x.cpu(), offsets.cpu(), dtype=torch.float32))


@pytest.mark.parametrize("name", ["float32", "float64", "int8"])
def test_memory(name, cuda):
    """Beyond the result a call takes 16 MiB, or a quarter of the data's memory; of rows side by side far less."""
    offsets = ends([1, 1_000_000, 1], device=cuda)
    for shape, dim, most in (((1_000_002, 64), 0, 0.25), ((20, 1_000_002), 1, 0.1)):
        x = torch.ones(shape, dtype=dtype_of(name), device=cuda)
        result = exact(x, offsets, dim, dtype=torch.float32)
        room = max(most * x.nbytes, 1 << 24) + result.nbytes + (1 << 20)
        assert allocated(lambda x=x, dim=dim: exact(x, offsets, dim, dtype=torch.float32), "cuda") < room


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_large(name, cuda):
    """So many segments and rows that tiles have all their rows, against the CPU."""
    rng = np.random.default_rng(5)
    for shape, most in itertools.product(((3_000_000,), (300_000, 40), (9, 300_000)), (2, 30, 3000, 1_000_000)):
        lengths = rng.integers(0, most + 1, 2 * max(shape) // most)
        offsets = ends(lengths).clamp(max=max(shape))
        dim = 1 if shape[0] == 9 else 0
        x = data(shape, name, seed=most)
        assert_same_bits(exact(x.to(cuda), offsets.to(cuda), dim), exact(x, offsets, dim), f"{shape} {most}")
