"""The ladder: every rung is right at every size, says what it is, and runs the kernel it names or raises."""

import dataclasses
import importlib
import io
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch.library import opcheck

import torch_reduce
from support import data, walked
from test_large import needs
from torch_reduce import ladder
from torch_reduce.ladder import _climb, _figures, _program
from torch_reduce.ladder import _lessons as lessons

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench")]
import ladder_report  # noqa: E402
import provenance  # noqa: E402
import report  # noqa: E402

bench = importlib.import_module("ladder")  # bench/ladder.py

ALL = ladder.rungs()
RUNGS = {rung.name: rung for rung in ALL}
ON_GPU = [rung for rung in ALL if rung.device == "cuda"]
SUMS = [rung for rung in ON_GPU if rung.finish != "written"]
DTYPES = ("float32", "float64", "int32", "int64")
RUN = torch.ops.gpureduce.ladder_run
needs_cuda_build = pytest.mark.skipif(not all(rung.built for rung in ALL), reason="needs a build with CUDA")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def ids(rung):
    return rung.name


def device_of(rung):
    """The device that a rung runs on; skips the test where there is none."""
    if not rung.built or (rung.device == "cuda" and not torch.cuda.is_available()):
        pytest.skip("needs an NVIDIA GPU")
    return rung.device


# --- the sums ---------------------------------------------------------------------------------------------------------


def wrapped(total, dtype):
    """An integer as the dtype holds it."""
    bits = torch.iinfo(dtype).bits
    return (total + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


def assert_sum(rung, x, block=None, elements=None):
    """The rung's sum of x: integers exactly, floats within what its number of roundings allows, and x unchanged."""
    before = x.clone()
    got = ladder.run(rung.name, x, block, elements)
    assert got.shape == () and got.dtype == x.dtype and got.device == x.device
    assert torch.equal(x, before), "the input was changed"
    stored = x.cpu().numpy()
    if not x.is_floating_point():
        total = int(stored.astype(object).sum()) if len(stored) < 1 << 16 else int(stored.sum(dtype=np.int64))
        assert int(got) == wrapped(total, x.dtype)
        return
    if x.numel() == 0:
        assert float(got) == 0
        return
    exact, size = (math.fsum(values) if len(stored) < 1 << 20 else float(values.sum(dtype=np.longdouble))
                   for values in (stored, np.abs(stored)))  # fmt: skip
    bound = _climb.error_bound(_climb.roundings(rung, x.numel(), block, elements), x.dtype)
    assert abs(float(got) - exact) <= bound * size


def boundaries(rung, block, elements):
    """Sizes at which something begins or ends: nothing, a warp, a block, a tile, a second pass."""
    tile = block * elements
    sizes = {0, 1, 2, 31, 32, 33, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1}
    sizes |= {tile - 1, tile, tile + 1, 5003, 3 * tile + 7}
    return sorted(sizes)


def with_blocks(rungs):
    """(rung, block) for every block that a rung can be asked for; None where it chooses its blocks itself."""
    pairs = [(rung, block) for rung in rungs for block in sorted(rung.blocks) or (None,)]
    return pytest.mark.parametrize(("rung", "block"), pairs, ids=[f"{rung.name}-{block}" for rung, block in pairs])


@walked("dtype", DTYPES)
@with_blocks(SUMS)
def test_sum(rung, dtype, block):
    """Every rung sums every dtype at the sizes where blocks and tiles begin and end, for every block."""
    device = device_of(rung)
    chosen, block = block, block or 512
    for elements in rung.elements_per_thread or (None,):
        for n in boundaries(rung, block, elements or 1):
            assert_sum(rung, data((n,), dtype, seed=n, device=device), chosen, elements)


@walked("dtype", DTYPES)
@walked("n", [0, 1, 2, 3, 5, 31, 33, 1000, 5003, 65537])
def test_sum_on_the_host(dtype, n):
    """The recursive sum on the CPU, at odd sizes as well, where the lesson loses an element."""
    assert_sum(RUNGS["host_recursive"], data((n,), dtype, seed=n))


@walked("dtype", DTYPES)
@pytest.mark.parametrize("rung", SUMS, ids=ids)
def test_large_sum(rung, dtype):
    """2^24 + 1 and 3 million elements: several passes, and many blocks in flight."""
    device = device_of(rung)
    for n in (3_000_001, (1 << 24) + 1):
        generator = torch.Generator(device).manual_seed(n)
        x = torch.randint(-1000, 1000, (n,), device=device, generator=generator).to(getattr(torch, dtype))
        assert_sum(rung, x)


@walked("dtype", ["float32", "int32"])
@pytest.mark.parametrize("rung", SUMS, ids=ids)
def test_huge_sum(rung, dtype):
    """2^30 + 1 elements: indices have 64 bits. Compared on the GPU; each million has the same elements."""
    device = device_of(rung)
    needs(device, 18)
    n, period = (1 << 30) + 1, 1 << 20
    pattern = torch.randint(-1000, 1000, (period,), device=device, generator=torch.Generator(device).manual_seed(1))
    x = torch.empty(n, dtype=getattr(torch, dtype), device=device)
    x[:-1].view(-1, period).copy_(pattern)
    x[-1] = 12345
    total = (n // period) * int(pattern.sum()) + 12345
    got = ladder.run(rung.name, x)
    if dtype == "int32":
        assert int(got) == wrapped(total, x.dtype)
    else:
        size = (n // period) * int(pattern.abs().sum()) + 12345
        assert abs(float(got) - total) <= _climb.error_bound(_climb.roundings(rung, n), x.dtype) * size


@pytest.mark.parametrize("rung", [rung for rung in SUMS if rung.finish != "all_atomic"], ids=ids)
def test_more_elements_than_32_bits_count(rung):
    """The last of 2^32 + 7 elements count: no index is cut to 32 bits."""
    device = device_of(rung)
    needs(device, 40)
    x = torch.ones((1 << 32) + 7, dtype=torch.int32, device=device)
    x[-7:] = 1000
    assert int(ladder.run(rung.name, x)) == 7000  # the 2^32 ones wrap


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block", RUNGS["fixed_point"].blocks or (512,))
def test_exact_sum(block, dtype, cuda):
    """fixed_point has the bits of the library's exact sum, for elements in any order, infinities and NaN included."""
    generator = torch.Generator(cuda).manual_seed(0)
    for n in (1, 33, 5003, 300_007):
        x = torch.randn(n, device=cuda, dtype=getattr(torch, dtype), generator=generator)
        x *= 10 ** (60 * torch.rand(x.shape, device=cuda, generator=generator) - 30)
        for special in ((), (math.inf,), (math.inf, -math.inf), (math.nan,)):
            y = torch.cat([x, torch.tensor(special, device=cuda, dtype=x.dtype)])
            wanted = torch_reduce.sum(y, exact=True)
            for order in (y, y.flip(0), y[torch.randperm(len(y), device=cuda, generator=generator)]):
                got = ladder.run("fixed_point", order, block)
                torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
    zeros = torch.full((1000,), -0.0, device=cuda, dtype=x.dtype)
    assert torch.signbit(ladder.run("fixed_point", zeros, block))


# --- other ops --------------------------------------------------------------------------------------------------------

REFERENCE = {"product": torch.prod, "max": torch.max, "min": torch.min}


@walked("op", REFERENCE)
@walked("dtype", DTYPES)
@pytest.mark.parametrize("rung", [rung for rung in SUMS if len(rung.ops) > 1], ids=ids)
def test_other_ops(rung, dtype, op):
    """Product, max and min, where the rung has them: exactly. The products are of powers of two, or wrap."""
    device = device_of(rung)
    dtype = getattr(torch, dtype)
    for block in (128, 512, 1024):
        for elements in rung.elements_per_thread:
            for n in (1, 33, block * elements - 1, 3 * block * elements + 5):
                generator = torch.Generator(device).manual_seed(n)
                x = torch.randint(-(2**30), 2**30, (n,), device=device, generator=generator)
                if op == "product" and dtype.is_floating_point:
                    x = torch.where(x % 37 == 0, 1 - 4 * (x & 1), 1)  # many ones, some 1 - 4 = -3 and 1
                    x[torch.nonzero(x == -3).flatten()] = -1
                    x[0] = 8
                if op == "product" and not dtype.is_floating_point:
                    x = 2 * x + 1
                x = x.to(dtype)
                got = ladder.run(rung.name, x, block, elements, op)
                wanted = torch.prod(x, dtype=dtype) if op == "product" else REFERENCE[op](x)
                assert got.dtype == dtype and torch.equal(got, wanted)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("rung", [rung for rung in SUMS if len(rung.ops) > 1], ids=ids)
def test_nan_and_infinity(rung, op):
    """One NaN makes the max and the min NaN, as in torch; infinities are numbers like others."""
    device = device_of(rung)
    x = torch.randn(5003, device=device)
    x[17] = math.inf
    x[18] = -math.inf
    assert float(ladder.run(rung.name, x, op=op)) == (math.inf if op == "max" else -math.inf)
    for at in (0, 2500, 5002):
        y = x.clone()
        y[at] = math.nan
        assert math.isnan(float(ladder.run(rung.name, y, op=op)))


# --- chapter 5 --------------------------------------------------------------------------------------------------------


BY_THREAD = ("math_kernel1", "math_kernel3", "long_by_thread")


@pytest.mark.parametrize("dtype", DTYPES)
@with_blocks([rung for rung in ON_GPU if rung.finish == "written"])
def test_divergence(rung, dtype, block):
    """Chapter 5 writes 100 and 200 by thread or by warp: the array, checked against NumPy."""
    device = device_of(rung)
    for n in (0, 1, 31, 33, block + 1, 5003):
        x = torch.zeros(n, dtype=getattr(torch, dtype), device=device)
        tid = np.arange(n)
        odd = tid % 2 if rung.name in BY_THREAD else tid // 32 % 2
        got = ladder.run(rung.name, x, block)
        assert got.dtype == x.dtype and got.tolist() == np.where(odd, 200, 100).tolist()
    assert ladder.run(rung.name, torch.zeros(3, 5, device=device)).shape == (3, 5)


def test_divergence_costs(cuda):
    """The two long bodies are the same arithmetic; where every warp walks both, it takes nearly twice the time."""
    x = torch.empty(1 << 22, device=cuda)
    us = {name: _climb.measure(name, x, 5)["us"] for name in ("long_by_thread", "long_by_warp")}
    assert 1.5 < us["long_by_thread"] / us["long_by_warp"] < 2.5


def test_the_long_bodies_differ_in_their_condition_alone():
    """The kernels differ in divergence and in nothing else."""
    bodies = []
    for name, condition in (("long_by_thread", "tid % 2 == 0"), ("long_by_warp", "tid / 32 % 2 == 0")):
        text = (lessons.FOLDER / RUNGS[name].file).read_text()
        assert text.count(condition) == 1
        body = text[text.index("constexpr int kRounds") : text.index("// Differs from")].replace(condition, "side")
        bodies.append(re.sub(r" *//.*", "", body).replace(name, "kernel"))
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("name", ["shared", "shared_unrolled", "warp_shuffle", "multi_element"])
def test_partial_sums_differ_from_atomics_in_one_line(name):
    """Below its head, the kernel of a rung with partial sums is the one with atomics, but for the last line."""
    kernels = []
    for rung in (RUNGS[name], RUNGS[f"{name}_partials"]):
        text = (lessons.FOLDER / rung.file).read_text()
        kernel = text[text.index("template <") : text.index("// Differs from")].replace(f" {rung.name}(", " kernel(")
        kernels.append(kernel.strip().splitlines())
    atomic, partials = ([line for line in mine if line not in other] for mine, other in (kernels, kernels[::-1]))
    assert len(kernels[0]) == len(kernels[1]) and len(atomic) == len(partials) == 1
    assert "combine_atomically(op, out, " in atomic[0] and "out[blockIdx.x] = " in partials[0]
    assert RUNGS[f"{name}_partials"].blocks == RUNGS[name].blocks
    assert RUNGS[f"{name}_partials"].elements_per_thread == RUNGS[name].elements_per_thread
    assert RUNGS[f"{name}_partials"].ops == RUNGS[name].ops


# --- what is asked for, and what is refused ---------------------------------------------------------------------------


def any_rung(device):
    return "host_recursive" if device == "cpu" else "shared"


def test_any_shape(device):
    """x may have any shape, if it is contiguous."""
    x = torch.arange(24, device=device).view(2, 3, 4)
    assert int(ladder.run(any_rung(device), x)) == 276
    assert int(ladder.run(any_rung(device), x[1])) == 210  # it begins inside of an allocation
    assert int(ladder.run(any_rung(device), torch.tensor(7, device=device))) == 7


def test_errors(device):
    """Everything that cannot be asked for raises, and names the argument."""
    x, name = torch.ones(10, device=device), any_rung(device)
    with pytest.raises(ValueError, match=r"rung: there is no 'nonsense'"):
        ladder.run("nonsense", x)
    with pytest.raises(ValueError, match=r"rung: there is no"):
        ladder.run("ceiling_tiles", x)  # which is timed, but has no result
    with pytest.raises(ValueError, match=r"block: 100 is not possible"):
        ladder.run(name, x, block=100)
    with pytest.raises(ValueError, match=r"elements_per_thread: 3 is not possible"):
        ladder.run(name, x, elements_per_thread=3)
    with pytest.raises(ValueError, match=r"op: 'mean' is none of"):
        ladder.run(name, x, op="mean")
    with pytest.raises(NotImplementedError, match=r"x: the ladder's dtypes"):
        ladder.run(name, x.half())
    with pytest.raises(RuntimeError, match=r"x: the rungs take contiguous tensors"):
        ladder.run(name, x.expand(3, 10).t())


def test_an_op_that_the_lesson_lacks(device):
    """Chapter 1 has no product."""
    with pytest.raises(ValueError, match=r"op: 'host_recursive' has no product"):
        ladder.run("host_recursive", torch.ones(3), op="product")
    if device == "cuda":
        with pytest.raises(ValueError, match=r"op: 'neighbored' has no max"):
            ladder.run("neighbored", torch.ones(3, device=device), op="max")


@pytest.mark.parametrize("op", ["max", "min"])
def test_no_elements(cuda, op):
    """No elements have a sum and a product, but no max and no min."""
    x = torch.empty(0, device=cuda)
    assert float(ladder.run("shared", x)) == 0 and float(ladder.run("shared", x, op="product")) == 1
    with pytest.raises(RuntimeError, match=r"no elements"):
        ladder.run("shared", x, op=op)


@pytest.mark.parametrize("rung", ON_GPU, ids=ids)
def test_cpu_tensors(rung):
    """A rung for GPUs refuses tensors of the CPU, and one that is not built says what it needs."""
    with pytest.raises(RuntimeError, match="runs on a GPU"):
        ladder.run(rung.name, torch.ones(3))


def test_cuda_tensors(cuda):
    """The rung of the CPU refuses tensors of the GPU."""
    with pytest.raises(RuntimeError, match="runs on the CPU"):
        ladder.run("host_recursive", torch.ones(3, device=cuda))


@pytest.mark.parametrize("rung", ALL, ids=ids)
def test_opcheck(rung):
    """The op's schema, fake tensors and dispatch are right for every rung."""
    device = device_of(rung)
    opcheck(RUN.default, (torch.ones(100, device=device), rung.name), {})
    if rung.blocks:
        opcheck(RUN.default, (torch.arange(100, device=device), rung.name), {"block": 128})


@needs_cuda_build
def test_meta():
    """Shapes without a GPU: chapter 5 keeps x's, all others have none; errors are the same."""
    x = torch.empty(3, 5, device="meta")
    assert RUN(x, "neighbored").shape == () and RUN(x, "math_kernel1").shape == (3, 5)
    with pytest.raises(ValueError, match="block: 5"):
        RUN(x, "neighbored", block=5)


def test_streams(cuda):
    """A rung runs on the current stream."""
    x = torch.ones(1 << 20, device=cuda)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000)
        x.add_(1)
        got = ladder.run("smem", x)
    stream.synchronize()
    assert float(got) == 2 << 20


def test_times(device):
    """The timing op gives as many positive times as it is asked for."""
    times = torch.ops.gpureduce._ladder_time(torch.ones(1 << 16, device=device), any_rung(device), 5)
    assert times.dtype == torch.float64 and times.shape == (5,) and bool((times > 0).all())
    with pytest.raises(ValueError, match="repeats"):
        torch.ops.gpureduce._ladder_time(torch.ones(3, device=device), any_rung(device), 0)


def test_times_of_the_first_pass(device):
    """The lesson's kernel is timed by itself. A library's kernels are not, and the table says so."""
    x = torch.ones(1 << 20, device=device)
    times = torch.ops.gpureduce._ladder_time(x, any_rung(device), 3, first_pass=True)
    assert times.shape == (3,) and bool((times > 0).all())
    with pytest.raises(ValueError, match="first_pass: 'torch_sum' is a library's sum"):
        torch.ops.gpureduce._ladder_time(x, "torch_sum", 1, first_pass=True)


@pytest.mark.parametrize("rung", [rung for rung in SUMS if rung.finish == "again"], ids=ids)
def test_the_first_pass_is_less_than_the_sum(rung, cuda):
    """The passes that join the blocks' results are in the time of the sum alone."""
    x = torch.ones(1 << 20, device=cuda)
    kernel, whole = (_climb.measure(rung.name, x, 11, first_pass=first) for first in (True, False))
    assert kernel["us"] < whole["us"]


# --- the registry -----------------------------------------------------------------------------------------------------


def test_numbers():
    """The CPU's rung and at least 39 others, numbered in order, chapter after chapter, each by its own name."""
    assert [rung.number for rung in ALL] == list(range(len(ALL)))
    assert len(RUNGS) == len(ALL) >= 40
    assert [rung.chapter for rung in ALL] == sorted(rung.chapter for rung in ALL)
    for chapter in {rung.chapter for rung in ALL}:
        assert len({rung.title for rung in ALL if rung.chapter == chapter}) == 1


@pytest.mark.parametrize("rung", ALL, ids=ids)
def test_heads(rung):
    """A rung's head names its source, a command for itself, and only counters and rungs that there are."""
    assert f"--rungs {rung.before + ',' if rung.before else ''}{rung.name}" in rung.command
    assert rung.before == "" or rung.before in RUNGS
    assert re.search(r"Cheng|Harris|Luitjens|CUDA|CUB|PyTorch|This library", rung.source)
    if rung.moves:
        counter, way = rung.moves.rsplit(" ", 1)
        assert counter in _climb.COUNTERS and way in ("up", "down") and rung.before
    if rung.faster:
        assert re.match(rf"than {rung.before}\b|no: ", rung.faster)


@pytest.mark.parametrize("path", lessons.files(), ids=lambda p: p.stem)
def test_files(path):
    """A file holds the kernel that it is named after, says what differs from the lesson, and includes no engine."""
    text = path.read_text()
    name = path.stem[3:]
    assert re.search(rf'Register \w+\("{name}"', text)
    assert "// Differs from the lesson:" in text
    if path.suffix == ".cu" and name != "cub":
        assert re.search(rf"__global__ void (__launch_bounds__\(\d+\) )?{name}\(", text)
    assert not re.search(r'#include "\.\./(?!core/numeric/)', text)


KEPT = {  # of the lessons' code, what makes the rung that rung
    "math_kernel2": "if (tid / 32 % 2 == 0)",
    "warming_up": "/ warpSize % 2 == 0)",
    "grid_stride": "sdata[tid] += g_idata[i] + ",
    "unroll_template": "add_last_warp<kBlock>(",
    "complete_unroll_template": "add_last_warp<kBlock>(",
}


@pytest.mark.parametrize("name", KEPT)
def test_the_lessons_own_code(name):
    """What was once lost of a lesson is there."""
    assert KEPT[name] in (lessons.FOLDER / RUNGS[name].file).read_text()


@needs_cuda_build
def test_blocks():
    """Every block can be 64 to 1024, and those of the templates 1 to 32 as well, as in the lessons' switches."""
    powers = {1 << k for k in range(11)}
    for rung in ALL:
        template = rung.name in ("complete_unroll_template", "unroll_template", "grid_stride")
        assert set(rung.blocks) in (set(), powers if template else {b for b in powers if b >= 64})


def test_blocks_of_the_sweep():
    """bench/ladder.py measures all blocks that the rungs have in common."""
    rungs = [
        dataclasses.replace(ALL[1], blocks=blocks) for blocks in ((512, 64, 128), (512, 1, 128, 64), (64, 128, 512))
    ]
    assert bench.common_blocks(rungs) == [64, 128, 512]


def test_the_engine_knows_no_ladder():
    """Neither side includes the other."""
    for path in (ROOT / "csrc").rglob("*"):
        if path.is_file() and "ladder" not in path.parts:
            assert "ladder" not in path.read_text(), path


def test_what_the_library_holds_is_what_the_files_say():
    """The heads in the library are those of the files: it was built from them."""
    assert json.loads(torch.ops.gpureduce._ladder_lessons()) == lessons.lessons()


def test_results_depend_on_what_the_rungs_include():
    """The hash that results of the ladder are known by covers all that its sources include."""
    covered = {path.resolve() for path in provenance.csrc_files(part="ladder")}
    for path in covered:
        for name in re.findall(r'#include "([^"]+)"', path.read_text()):
            assert (path.parent / name).resolve() in covered, (path, name)


def test_a_new_rung_is_one_file(tmp_path):
    """A file beside the others is all that the list needs; a head that lacks a part is refused."""
    for path in lessons.files():
        shutil.copy(path, tmp_path)
    head = lessons.files()[3].read_text().replace("Rung 3, interleaved", "Rung 99, another")
    (tmp_path / "99_another.cu").write_text(head)
    assert lessons.lessons(tmp_path)[-1]["name"] == "another"
    assert '"another"' in lessons.source(tmp_path)
    (tmp_path / "99_another.cu").write_text(head.replace("// wrong ", "// twrong "))
    with pytest.raises(ValueError, match="lacks wrong"):
        lessons.lessons(tmp_path)
    (tmp_path / "99_another.cu").write_text("#include <x>\n")
    with pytest.raises(ValueError, match="must begin with"):
        lessons.lessons(tmp_path)


# --- the program ------------------------------------------------------------------------------------------------------


def program(*arguments, gpu=True):
    """python -m torch_reduce.ladder."""
    env = dict(os.environ, PYTHONPATH=str(ROOT)) | ({} if gpu else {"CUDA_VISIBLE_DEVICES": ""})
    command = [sys.executable, "-m", "torch_reduce.ladder", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=300)


def test_readme_counts_the_rungs():
    """README's numbers of rungs, of kernels from lessons, and of our own are the ladder's."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("\n## The ladder\n")[1].split())
    others = ("This library", "CUB,", "PyTorch")
    lessons = [rung for rung in ON_GPU if not rung.source.startswith(others)]
    assert f"in {len(ALL)} rungs: a recursion on the CPU; {len(lessons)} kernels of the classic lessons" in text
    own = [rung for rung in ON_GPU if rung.source.startswith("This library, with")]
    assert f"; {len(own)} of our own about divergence; " in text and len(lessons) + len(own) + 5 == len(ALL)


def test_list_without_a_gpu():
    """The list has every rung, chapter and source; no GPU is needed, and nothing is warned of."""
    result = program(gpu=False)
    assert result.returncode == 0 and result.stderr == ""
    for rung in ALL:
        words = " ".join(result.stdout.split())
        assert rung.name in words and rung.title in words and rung.source in words


def test_run_without_a_gpu():
    """Without a GPU the CUDA rungs are emulated, and it says so; the CPU's is timed; the others are not passed over."""
    result = program("run", "--rungs", "neighbored,cub", "--size", "2^12", gpu=False)
    assert result.returncode == 0 and "not emulated: cub" in result.stderr, result.stderr
    assert "There is no NVIDIA GPU here" in result.stdout and re.search(r"^neighbored .* right ", result.stdout, re.M)
    result = program("run", "--rungs", "host_recursive", "--size", "2^12", "--repeats", "1", gpu=False)
    assert result.returncode == 0 and re.search(r"host_recursive +\d", result.stdout), result.stderr
    result = program("run", "--rungs", "engine", gpu=False)
    assert result.returncode == 1 and "cannot run" in result.stderr


def test_climb(cuda, tmp_path):
    """The whole climb, on few elements: a row for every rung, and the results in a file."""
    path = tmp_path / "climb.json"
    result = program("run", "--size", "100003", "--repeats", "2", "--against-lesson", "--save", str(path))
    assert result.returncode == 0, result.stderr
    saved = json.loads(path.read_text())
    assert [step["name"] for step in saved["rungs"]] == [rung.name for rung in ALL]
    assert saved["gpu"] and saved["dtype"] == "int32" and saved["ceiling"]["gbps"] > 0
    for rung in ALL:
        assert re.search(rf"^ *{rung.number} {rung.name} ", result.stdout, re.M)
    assert "Where they disagree" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("x",),
        ("run", "--rungs", "nonsense"),
        ("run", "--dtype", "int8"),
        ("run", "--size", "x"),
        ("run", "--size", "0"),
        ("run", "--rungs", "host_recursive", "--size", "8", "--repeats", "0"),
    ],
    ids=" ".join,
)
def test_wrong_arguments(arguments, capsys):
    """Exit status 2 and a message, not a traceback."""
    with pytest.raises(SystemExit) as end:
        _program.main(list(arguments))
    assert end.value.code == 2 and "error: " in capsys.readouterr().err


def test_sizes():
    """Sizes may be written as powers."""
    assert [_program._number(text) for text in ("7", "2^24", "2**10")] == [7, 1 << 24, 1024]


def test_without_ncu(monkeypatch):
    """Without ncu there is a sentence that says where to get it."""
    monkeypatch.setattr(_climb, "find_ncu", lambda: None)
    with pytest.raises(_climb.NoCounters, match="Nsight Compute"):
        _climb.profile(["neighbored"])


def test_climbing_goes_on_without_counters(monkeypatch, capsys):
    """It says why there are none, and nothing else changes."""
    monkeypatch.setattr(_climb, "find_ncu", lambda: None)
    steps = [{"name": "neighbored", "us": 1.0}]
    _climb.add_counters(steps, None, "float32")
    assert "put it on the PATH" in capsys.readouterr().err and steps == [{"name": "neighbored", "us": 1.0}]


NCU = [
    ["ID", "Kernel Name", _climb.DURATION, _climb.WARPS, *(m for names, *_ in _climb.COUNTERS.values() for m in names)],
    ["", "", "ns", "warp", "inst/warp", "%", "%", "byte/second", "byte/second", "%", "%", "", "", "%"],
    ["0", "spin_kernel(long)", "100,000", "1", *"0000000000"],
    ["1", "first(int)", "2,000", "1,000", "40", "100", "12.5", "0", "3,000,000,000", "5", "0", "1,000", "500", "90"],
    ["2", "first(int)", "100", "1", *"1111111111"],
    ["3", "spin_kernel(long)", "100,000", "1", *"0000000000"],
    ["4", "second(int)", "500", "10", "7.5", *["n/a"] * 9],
]


def test_parse():
    """ncu's list is cut at the markers; of each run the longest kernel counts; what is not a number is left out."""
    first, second = _climb.parse("==PROF== Connected\n" + "\n".join(",".join(f'"{x}"' for x in line) for line in NCU))
    assert first["instructions per warp"] == 40 and first["DRAM read throughput"] == 3
    assert first["bank conflicts"] == 1.5 and first["barrier stalls"] == 5
    assert "branch efficiency" not in first, "there are no branches, of which 0% would be uniform"
    assert second == {"instructions per warp": 7.5}
    assert _climb.parse("==ERROR== no permission\n") == []


def test_sentences():
    """The sentence about a counter follows its numbers, not the intention of the rung."""
    rung = RUNGS["neighbored_less"]
    before = {"name": "neighbored", "us": 100.0, "counters": {"branch efficiency": 70.0, "barrier stalls": 10.0}}
    good = {"us": 50.0, "counters": {"branch efficiency": 98.0, "barrier stalls": 10.0}}
    bad = {"us": 100.0, "counters": {"branch efficiency": 70.0, "barrier stalls": 40.0}}
    text = _climb.sentence(rung, good, before)
    assert text == "Meant to raise branch efficiency, and does: 70.0% → 98.0%; 2.00× as fast as neighbored."
    text = _climb.sentence(rung, bad, before)
    assert "does not: 70.0% → 70.0%; besides, barrier stalls 10.0% → 40.0%; as fast as neighbored." in text
    assert _climb.sentence(RUNGS["neighbored"], before, None).startswith("Where it begins: barrier stalls")
    assert _climb.sentence(rung, {"us": 1.0}, before) == ""


def test_against_lesson():
    """The printed table beside ours, and a reason where a step gains much less or more."""
    us = {name: seconds * 1e5 for name, seconds in _climb.BOOK.items()}
    us["unrolling8"] = us["unrolling4"] * 2
    lines = "\n".join(_climb.against_lesson([{"name": name, "us": value} for name, value in us.items()], 4000))
    assert "9.36×" in lines or "9.35×" in lines
    assert re.search(r"cpu reduce +29\.138 +– here, host_recursive", lines)
    assert re.search(r"warm-up +11\.745 +1\.1722 here, neighbored", lines)
    assert "- unrolling8 gains less: 1.29× then, 0.50× here. Why, --profile would tell." in lines
    assert "- unroll_warps8 gains more" in lines and "- interleaved" not in lines and "slides" not in lines
    assert "at least two" in _climb.against_lesson([], 4000)[0]


def test_against_lesson_compares_kernels():
    """The lesson timed one kernel: ours is beside it, and the sum in the last column."""
    steps = [
        {"name": "gmem", "us": 90.0, "kernel": {"us": 80.0}},
        {"name": "smem", "us": 70.0, "kernel": {"us": 40.0}},
    ]
    lines = _climb.against_lesson(steps, 4000)
    row = next(line for line in lines if line.startswith("smem"))
    assert row.split() == ["smem", "1.154", "1.84×", "1.84×", "0.0400", "2.00×", "2.00×", "0.0700"]


def test_profiler_against_lesson():
    """The nvprof counters that the lessons print stand beside ours, with the section that prints them."""
    steps = [{"name": "unrolling8", "us": 1.0}, {"name": "unroll_warps8", "us": 1.0}]
    text = "\n".join(_climb.against_lesson(steps, 4000))
    assert re.search(r"unrolling8 +barrier stalls +58\.37% +– +Reducing with Unrolled Warps", text)
    assert "What it is here, --profile would tell." in text
    steps[1]["counters"] = {"barrier stalls": 16.0, "global load efficiency": 99.4}
    text = "\n".join(_climb.against_lesson(steps, 4000))
    assert re.search(r"unroll_warps8 +barrier stalls +30\.6% +16\.0% ", text)
    assert re.search(r"unroll_warps8 +global load efficiency +98\.99% +99\.4% ", text)
    assert "What it is here" not in text


def test_printed_figures_are_of_rungs():
    """Every printed figure is of a rung and of a counter that there are."""
    names = {name for printed in _climb.LESSONS.values() for name in printed}
    names |= {rung for _, rung, _ in _climb.BOOK_BEFORE.values()}
    assert names | {name for _, _, values in _figures.PROFILED for name in values} <= set(RUNGS)
    assert {counter for counter, _, _ in _figures.PROFILED} <= set(_climb.COUNTERS)


# --- kernel and sum ---------------------------------------------------------------------------------------------------


def test_both_times_are_kept(monkeypatch):
    """A rung in passes is timed twice, one kernel once; a library's kernels have no time of their own."""
    monkeypatch.setattr(_climb, "check", lambda *_: None)
    monkeypatch.setattr(_climb, "make_input", lambda *_: torch.ones(1000))
    monkeypatch.setattr(_climb, "measure", lambda *_, first_pass=False: {"us": 4.0 if first_pass else 5.0})
    rungs = [
        dataclasses.replace(RUNGS[name], device="cuda", finish=finish, blocks=(512,), elements_per_thread=(1,))
        for name, finish in (("neighbored", "again"), ("shared", "atomic"), ("engine", "library"))
    ]
    passes, atomic, library = _climb.climb(rungs, None, torch.float32, 1)
    assert (passes["us"], passes["kernel"]["us"], passes["gbps"]) == (5, 4, 1)
    assert (atomic["us"], atomic["kernel"]["us"], atomic["gbps"]) == (5, 5, 0.8)
    assert library["us"] == 5 and "kernel" not in library and library["gbps"] == 0.8


def test_the_rest_takes_so_long(monkeypatch):
    """On a terminal the table says what runs now, and how long the rest takes about."""
    times = iter([0.0, 6.0, 9.0])
    monkeypatch.setattr(_climb, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    stream = io.StringIO()
    stream.isatty = lambda: True
    names = ["neighbored", "neighbored_less", "torch_sum"]
    table = _climb.Table([RUNGS[name] for name in names], 40, stream)
    for name in names[:2]:
        table.add({"name": name, "us": 20.0, "gbps": 40.0, "reads": True})
    told = [text.rstrip() for text in re.findall(r"\r(\d/3 [^\r]*)\r", stream.getvalue())]
    assert told == ["0/3 neighbored …", "1/3 neighbored_less … about 12 s left", "2/3 torch_sum … about 4 s left"]


def test_both_times_are_shown():
    """Step, GB/s and the share of the ceiling are of the kernel, the total is of the sum; a library has a sum alone."""
    steps = [
        {"name": "neighbored", "us": 100.0, "kernel": {"us": 90.0}, "gbps": 10.0, "reads": True},
        {"name": "neighbored_less", "us": 50.0, "kernel": {"us": 30.0}, "gbps": 30.0, "reads": True},
        {"name": "torch_sum", "us": 20.0, "gbps": 40.0, "reads": True},
    ]
    cells = [_climb.row_text(RUNGS[step["name"]], step, steps, 40).split()[2:8] for step in steps]
    assert cells[1] == ["30.00", "50.00", "30.0", "75.0%", "3.00×", "2.00×"]
    assert cells[2] == ["–", "20.00", "40.0", "100.0%", "–", "5.00×"]
    climb = {"rungs": steps, "ceiling": {"gbps": 40}}
    shown = dict(ladder_report.rows(climb, ["neighbored_less", "smem", "torch_sum"]))
    assert shown[RUNGS["neighbored_less"]] == ["30.00", "50.00", "30", "75.0%", "3.00×", "2.00×"]
    assert shown[RUNGS["torch_sum"]] == ["–", "20.00", "40", "100.0%", "–", "5.00×"]
    assert shown[RUNGS["smem"]] == ["not measured", "–", "–", "–", "–", "–"]


def test_totals_of_chapter_5():
    """Speedups count from the first rung of those that are compared: the long bodies do other work."""
    steps = [{"name": rung.name, "us": 1.0} for rung in ALL if rung.chapter == 5]
    first = {step["name"]: _climb.base(step, steps)["name"] for step in steps}
    assert first.pop("long_by_thread") == first.pop("long_by_warp") == "long_by_thread"
    assert set(first.values()) == {"warming_up"}


# --- results and documents --------------------------------------------------------------------------------------------

RESULTS = report.load_results(name="ladder.json")
measured = pytest.mark.parametrize("results", [r for _, r in RESULTS], ids=[slug for slug, _ in RESULTS])


def test_documents_are_what_the_results_give(capsys):
    """The pages of the course, README's section and the pictures."""
    ladder_report.main(["--check"])
    assert "docs/ladder/chapter1.md" in capsys.readouterr().out


def of_these_sources(results):
    """Skips a test of results from older sources, since their kernels and claims may differ."""
    if results["sources"]["ladder"] != provenance.csrc_hash(part="ladder"):
        pytest.skip("measured on older sources of the ladder")


@measured
def test_results_are_of_every_rung(results):
    """Every rung was measured, those of the GPU with counters; each counter is of some use."""
    of_these_sources(results)
    steps = {step["name"]: step for step in results["climb"]["rungs"]}
    assert list(steps) == list(RUNGS)
    for rung in ALL:
        assert steps[rung.name]["us"] > 0
        assert rung.device == "cpu" or {"instructions per warp", "occupancy"} <= set(steps[rung.name]["counters"])
    assert set(_climb.COUNTERS) == {name for step in steps.values() for name in step.get("counters", ())}


@measured
@pytest.mark.parametrize("rung", [rung for rung in ALL if rung.before], ids=ids)
def test_claims_of_speed(rung, results):
    """Each file says whether it is faster than the one it is compared with, and the results agree."""
    of_these_sources(results)
    steps = {step["name"]: step for step in results["climb"]["rungs"]}
    ratio = _climb.kernel_us(steps[rung.before]) / _climb.kernel_us(steps[rung.name])
    assert rung.faster
    assert ratio > 1.02 if rung.faster.startswith("than") else ratio < 1.05


@measured
def test_bar(results):
    """multi_element at its best N reads 2^28 floats at 85% of the ceiling at least, and at no more than all of it."""
    step, share = ladder_report.best_large(results)
    assert step["elements"] == 1 << 28 and results["large"]["ceiling"]["bytes"] == 1 << 30
    assert 0.85 <= share <= 1.01


@pytest.fixture
def repository(tmp_path):
    """A copy of what ladder_report.py reads."""
    paths = ["README.md", *ladder_report.pages(ROOT), *(f"bench/results/{slug}/ladder.json" for slug, _ in RESULTS)]
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    ladder_report.main(["--root", str(tmp_path)])
    return tmp_path


def complaint(repository):
    """The complaint of `ladder_report.py --check`, or None."""
    try:
        ladder_report.main(["--root", str(repository), "--check"])
    except SystemExit as end:
        return str(end)
    return None


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
def test_check_sees_a_changed_figure(repository):
    """A time that the results do not give is seen, in each page and in each picture."""
    assert complaint(repository) is None
    slug, results = ladder_report.shown_of(RESULTS)[0]
    step, share, files = results["climb"]["rungs"][1], f"{ladder_report.best_large(results)[1]:.1%}", []
    for path in (
        "README.md",
        "docs/ladder/chapter1.md",
        "docs/ladder/chapter4.md",
        f"docs/images/ladder-{slug}.svg",
        f"docs/images/ladder-chapter1-{slug}.svg",
    ):
        text = (file := repository / path).read_text()
        changed = text.replace(f"| {step['us']:.0f} |", "| 1 |").replace(f">{step['us']:.1f}<", ">1.0<")
        changed = changed.replace(share, "1.0%").replace(f">{step['kernel']['us']:.0f}<", ">1<")
        assert changed != text
        file.write_text(changed)
        files.append(path)
    found = complaint(repository)
    assert all(path in found for path in files)


def test_nothing_measured_yet(repository):
    """Without results the pages say so; a marker that is missing is missed."""
    shutil.rmtree(repository / "bench")
    ladder_report.main(["--root", str(repository)])
    text = "".join(ladder_report.pages(repository).values())
    assert text.count("\nnot measured yet\n") == len(ladder_report.PARTS) + len(ladder_report.TOGETHER)
    path = repository / "docs/ladder/blocks.md"
    page = path.read_text()
    path.write_text(page.replace("<!-- ladder:blocks -->", ""))
    with pytest.raises(ValueError, match="ladder:blocks"):
        ladder_report.main(["--root", str(repository)])
    path.write_text(page + "<!-- ladder:elements -->\n<!-- /ladder:elements -->\n")
    with pytest.raises(ValueError, match="elements, which nothing is made for, or another page"):
        ladder_report.main(["--root", str(repository)])


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
def test_chapters_are_short():
    """A chapter has at most 180 lines with the tables of one GPU."""
    made = ladder_report.documents(ROOT, RESULTS[:1])
    for number in range(1, 7):
        assert len(made[f"docs/ladder/chapter{number}.md"].splitlines()) <= 180
    assert len(made["docs/ladder/chapter0.md"].splitlines()) <= 180  # with a whole program


def test_pages_in_other_languages():
    """Short, linked, with the same pictures and commands, which the program takes; and figures of each chapter."""
    start = (ROOT / "docs/ladder.md").read_text(encoding="utf-8").splitlines()[1]
    found = set()
    for language in ladder_report.LANGUAGES:
        page = (ROOT / f"docs/ladder/{language}.md").read_text(encoding="utf-8")
        assert len(page.splitlines()) <= 140 and f"(ladder/{language}.md)" in start
        assert all(f"({other}.md)" in page.splitlines()[1] for other in {*ladder_report.LANGUAGES} - {language})
        code = re.search(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1]
        commands = [shlex.split(line, comments=True) for line in code.splitlines()]
        for command in commands[1:]:
            assert command[:2] == ["python3", "torch_reduce/ladder"] and _program.parser().parse_args(command[2:])
        links = re.findall(r"\]\(((?:chapter|\.\./images/)[^)]+)\)", page)
        found.add((str(commands), tuple(links)))
    assert len(found) == 1
    assert {RUNGS[name].chapter for name in ladder_report.FEW} == set(range(1, 7))


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
def test_another_gpu_adds_its_column():
    """Results of a second GPU are a column where lessons are judged; the chapters show one GPU, and stay short."""
    slug, results = "h200", dict(RESULTS)["h200"]
    made = ladder_report.documents(ROOT, [("h100", results | {"gpu": "NVIDIA H100"}), (slug, results)])
    assert "Not measured yet" not in made["docs/ladder/holds.md"]
    known = {step["name"] for step in results["climb"]["rungs"]}
    for rung in ALL:
        row = re.search(rf"^\| {rung.number} {rung.name} \|.*", made["docs/ladder/holds.md"], re.M)
        assert not row or ("not measured" in row[0]) == (rung.name not in known)
    for number in range(1, 7):
        page = made[f"docs/ladder/chapter{number}.md"]
        assert f"-{slug}.svg)" in page and "h100.svg" not in page
        assert f"docs/images/ladder-chapter{number}-h100.svg" not in made


@measured
def test_bytes_asked_for(results):
    """What a rung's loads ask for, as its source says, is what the counters counted: loads that went to L1 times their
    efficiency, beside the DRAM's reads, which are the input once."""
    of_these_sources(results)
    for step in results["climb"]["rungs"]:
        counters = step.get("counters", {})
        if "global load efficiency" in counters:
            used = counters["global load throughput"] * counters["global load efficiency"] / 100
            read, _ = ladder_report.asked(step)
            assert used / counters["DRAM read throughput"] == pytest.approx(read / step["elements"], rel=0.01)


WORKS = "Professional CUDA C Programming, Optimizing Parallel Reduction in CUDA, Faster Parallel Reductions on Kepler, "
WORKS += "CUDA C++ Programming Guide, CUB, PyTorch, this library"


def test_every_rung_has_a_source():
    """docs/ladder/sources.md names each rung once, under the work that the rung's file names first."""
    text, known = (ROOT / "docs/ladder/sources.md").read_text(encoding="utf-8"), []
    for numbers, source in re.findall(r"^- \*\*([^*]+)\*\*: (.*(?:\n  .*)*)", text, re.MULTILINE):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            known += [(number, source) for number in range(int(first), int(last or first) + 1)]

    def work(source):
        return min(
            (source.lower().find(name.lower()), name) for name in WORKS.split(", ") if name.lower() in source.lower()
        )[1]

    assert [(number, work(source)) for number, source in sorted(known)] == [(r.number, work(r.source)) for r in ALL]


def test_every_rung_has_a_kind_and_a_block():
    """Bytes and lessons' blocks are known of a rung of any library, with or without CUDA."""
    assert {ladder_report.kind(rung.name) for rung in ALL} == set(ladder_report.KINDS)
    assert ladder_report.kind("gmem") == "in_place" and ladder_report.kind("cub") == "from_library"
    found = {rung.name: ladder_report.lesson_block(rung)[0] for rung in ALL}
    assert [found[name] for name in ("neighbored", "smem", "grid_stride", "warp_shuffle", "engine")] == [
        *(512, 128, 128, 512),
        None,
    ]


def test_bytes_of_an_exact_sum():
    """fixed_point reads each element once, and a block of it adds ten int64s and an int32 to the grid's."""
    step = {"name": "fixed_point", "elements": 1 << 20, "block": 512, "elements_per_thread": 16}
    assert ladder_report.asked(step) == (1 << 20, 128 * (10 * 8 + 4) // 4)


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
def test_older_results_of_lessons_are_noted():
    """Below the table stands which GPU was measured on other sources, and when."""
    results = dict(RESULTS)["h200"]
    for known, older in (("0" * 64, True), (provenance.csrc_hash(part="ladder"), False)):
        lines = ladder_report.holds([("h200", results | {"sources": results["sources"] | {"ladder": known}})])
        note = f"{results['gpu']} was measured on {results['date']}; since then the ladder has changed."
        assert (note in lines) == older, lines[-6:]


@pytest.mark.skipif(not RESULTS, reason="there are no results yet")
def test_times_of_the_contracts_kernel():
    """Chapter 7 has them beside multi_element's, and says if the kernel is another one now."""
    steps = [{"name": "4_contract", "us": 20.5, "gbps": 3273.6}, {"name": "multi_element", "us": 19.75, "gbps": 3398.0}]
    results = dict(RESULTS)["h200"] | {"sources": {"ladder": provenance.csrc_hash(part="ladder"), "sums": None}}
    for file, older in ((ladder_report.contract_hash(), False), ("0" * 64, True)):
        text = "\n".join(ladder_report.contract("h200", results | {"contract": {"file": file, "rungs": steps}}))
        assert ("since then the kernel has changed" in text) == older
        assert "| `4_contract` | 20.50 | 3,274 |" in text and "| `multi_element` | 19.75 | 3,398 |" in text
    assert not ladder_report.contract("h200", {name: value for name, value in results.items() if name != "contract"})


def test_the_contracts_kernel_is_timed(cuda, nvcc, monkeypatch):
    """On a GPU, with nvcc: both kernels, and neither takes twice the other's time."""
    monkeypatch.setenv("PATH", f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}")
    ours, other = bench.contract_steps()
    assert (ours["name"], other["name"]) == ("4_contract", "multi_element")
    assert 0.5 < ours["us"] / other["us"] < 2


def test_does_the_lesson_hold():
    """A verdict follows the numbers of two rungs; a GPU without results has a column that says so."""
    before = {"name": "neighbored", "us": 100.0, "counters": {"branch efficiency": 70.0}}

    def said(us, value):
        step = {"name": "neighbored_less", "us": us, "counters": {"branch efficiency": value}}
        return ladder_report.verdict(
            RUNGS["neighbored_less"], {"lesson": {"rungs": []}, "climb": {"rungs": [before, step]}}
        )

    assert said(50.0, 98.0) == "yes: 70.0% → 98.0%; 2.00×"
    assert said(100.0, 98.0).startswith("**counter alone**") and said(50.0, 70.0).startswith("time alone")
    assert said(100.0, 70.0).startswith("**no**")
    text = "\n".join(ladder_report.holds([]))
    assert "Not measured yet: NVIDIA H100, NVIDIA H200." in text


# --- the roundings that the bounds are made of ------------------------------------------------------------------------


def test_roundings():
    """Counted by hand: two passes of a tree; a tree and a chain of atomics; a chain alone."""
    if not all(rung.built for rung in ALL):
        pytest.skip("needs a build with CUDA")
    assert _climb.roundings(RUNGS["neighbored"], 512) == 9
    assert _climb.roundings(RUNGS["neighbored"], 513) == 18
    assert _climb.roundings(RUNGS["unrolling8"], 512 * 8 * 3) == 2 * (7 + 9)
    assert _climb.roundings(RUNGS["shared"], 512 * 10) == 9 + 10
    assert _climb.roundings(RUNGS["atomic"], 1000) == 1000
    assert _climb.roundings(RUNGS["fixed_point"], 1000) == 1
    assert _climb.roundings(RUNGS["host_recursive"], 1025) == 11


def test_ladder_is_documented_and_typed():
    """Everything public has a docstring."""
    assert torch_reduce.ladder is ladder
    for name in ladder.__all__:
        assert getattr(ladder, name).__doc__
