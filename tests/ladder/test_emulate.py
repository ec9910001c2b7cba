"""The emulator: rungs on the CPU with a GPU's counters, the faults that it finds, steps, and a learner's own kernel."""

import array
import functools
import io
import json
import math
import os
import pathlib
import random
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
import types
import xml.etree.ElementTree

import pytest

from test_pages import collisions
from torch_reduce import ladder
from torch_reduce.ladder import _emulate, _program, _step, _translate, _try

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNGS = list(_emulate.rung_files())
RESULTS = sorted((ROOT / "bench" / "results").glob("*/ladder.json"))

try:
    _emulate.compiler()
except _emulate.CannotEmulate as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module")
def everything():
    """The program with all rungs."""
    return _emulate.build_rungs(RUNGS)


def kernel(folder, text, name="mine.cu", **choices):
    """A learner's file as a Kernel."""
    path = folder / name
    path.write_text(text)
    return _try.Kernel.of(path, **choices)


def line_of(text, part):
    """The number of the first line that holds `part`."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


# --- rungs ------------------------------------------------------------------------------------------------------------


def test_every_kernel_of_the_ladder_is_emulated():
    """All CUDA rungs but CUB's: the engine and torch.sum are no kernels of the ladder."""
    left = {rung.name for rung in ladder.rungs()} - set(RUNGS)
    assert left == {"host_recursive", "engine", "cub", "torch_sum"}


emulated = functools.cache(_emulate.emulate)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_counters_are_the_gpus(everything, path):
    """Every counter that a profiler has on a GPU, too: within half a percentage point, or half a conflict per warp."""
    climb = {step["name"]: step for step in json.loads(path.read_text())["climb"]["rungs"]}
    compared = 0
    for name in [name for name in RUNGS if name in climb]:  # rungs of today may be newer than the results
        theirs = climb[name]["counters"]
        mine = emulated(name, everything, block=climb[name]["block"]).counters
        for counter in ("global load efficiency", "global store efficiency", "branch efficiency", "bank conflicts"):
            if (name, counter) == ("fixed_point", "branch efficiency"):
                assert counter not in mine  # its atomics are loops on a GPU, which the source does not show
                continue
            assert (counter in mine) == (counter in theirs), (name, counter)
            if counter in mine:
                assert abs(mine[counter] - theirs[counter]) < 0.5, (name, counter, mine[counter], theirs[counter])
                compared += 1
    assert compared > 80


def test_compilers_that_check_jumps(monkeypatch):
    """A distribution's compiler may define _FORTIFY_SOURCE by itself, with which a jump between stacks is a fault."""
    command, _ = _emulate.compiler()
    monkeypatch.setenv("CXX", shlex.join([*command, "-D_FORTIFY_SOURCE=2"]))
    found = _emulate.emulate("neighbored", size=1000, block=64)
    assert found.right and not found.fault and found.counters


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_right_for_every_dtype_and_size(everything, dtype):
    """Sizes that fill no block, and blocks of 64 and 1024; no races, no access outside of an array."""
    for name in RUNGS:
        for size, block in ((1, 64), (1000, 64), (10_007, 1024))[dtype in ("float64", "int64") :]:
            found = _emulate.emulate(name, everything, size=size, block=block, dtype=dtype)
            assert found.right and not found.races and not found.wrong, (name, size, block, found)


@pytest.mark.parametrize("op", ["product", "max", "min"])
def test_right_for_every_op(everything, op):
    """The rungs that take other ops, in one pass and in several; zeros behind the elements would change each result."""
    names = [name for name in RUNGS if "with_op(" in ladder.source(name)]
    partials = {f"{name}_partials" for name in ("shared", "shared_unrolled", "warp_shuffle", "multi_element")}
    assert {"shared", *partials} < set(names)
    for name in names:
        for size, block, dtype in ((1, 64, "float64"), (1000, 64, "int64"), (10_007, 128, "int32"), (70_001, 64, None)):
            found = _emulate.emulate(name, everything, size=size, block=block, dtype=dtype, op=op)
            assert found.right and not found.races and not found.wrong, (name, size, block, found)
    assert "interleaved has no max" in _emulate.emulate("interleaved", everything, op="max").fault.text


@pytest.mark.parametrize("elements", [1, 2, 4, 8, 16, 32])
def test_elements_per_thread(everything, elements):
    """The rungs with a choice of a power of two, with sizes at the end of a tile."""
    for name in ("multi_element", "multi_element_partials", "fixed_point"):
        for size in (64 * elements - 1, 64 * elements + 1, 40_000):
            found = _emulate.emulate(name, everything, size=size, block=64, elements=elements)
            assert found.right and found.elements == elements and not found.wrong, (name, size, found)


def summed(program, folder, name, values, code="f", **choices):
    """A rung's sum of these numbers, of an element type of the struct module."""
    path = folder / "input"
    path.write_bytes(array.array(code, values).tobytes())
    dtype = {"f": "float32", "d": "float64", "i": "int32", "q": "int64"}[code]
    found = _emulate.emulate(name, program, size=len(values), dtype=dtype, input=path, **choices)
    assert not found.findings, found
    return found.found


def test_which_bits_a_sum_has(everything, tmp_path):
    """The lesson of chapter 6. Atomics: the bits depend on who comes first. A tree: on the order of the elements alone.
    Integers: on neither, nor on the block."""
    numbers = random.Random(0)
    values = [numbers.uniform(-1, 1) * 10 ** numbers.uniform(-6, 6) for _ in range(3000)]
    shuffles = [numbers.sample(values, len(values)) for _ in range(4)]

    def results(name, shuffled, **choices):
        orders = shuffles if shuffled else shuffles[:1]
        return {
            summed(everything, tmp_path, name, order, descending=descending, **choices)
            for order in orders
            for descending in (False, True)
        }

    assert len(results("atomic", False)) == 2
    assert len(results("shared_partials", False)) == 1 < len(results("shared_partials", True))
    choices = [dict(block=block, elements=elements) for block in (64, 1024) for elements in (1, 32)]
    exact = set().union(*(results("fixed_point", True, **choice) for choice in choices))
    rounded = array.array("f", [math.fsum(array.array("f", values))])[0]
    assert exact == {rounded}


@pytest.mark.parametrize(
    ("code", "values", "wanted"),
    [
        ("f", [1e8, 1, -1e8, 1], 2),
        ("f", [1, 2**-24], 1),  # a tie, to even
        ("f", [1, 2**-24, 2**-149], 1 + 2**-23),  # more than a tie, by the least float
        ("f", [-1, -(2**-24), -(2**-149)], -1 - 2**-23),
        ("f", [2**-149] * 3 + [-(2**-148)], 2**-149),
        ("f", [2.0**127, 2.0**127, -(2.0**127), -(2.0**126)], 2.0**126),  # a partial sum is beyond the largest float
        ("f", [2.0**127, 2.0**127], math.inf),
        ("f", [1, -math.inf], -math.inf),
        ("d", [1, 2**-53, 2**-1074], 1 + 2**-52),
        ("d", [2.0**1023, 2.0**1023, -(2.0**1023), 1], 2.0**1023),
        ("i", [2**31 - 1, 1], -(2**31)),  # integers wrap
        ("i", [-5, 3], -2),
        ("q", [2**63 - 1, 1], -(2.0**63)),
        ("q", [-(2**62), 2**40], -(2.0**62) + 2**40),
    ],
)
def test_exact_sums(everything, tmp_path, code, values, wanted):
    """fixed_point rounds once: ties, sums beyond the largest float on the way, the least floats, integers that wrap."""
    for order in (values, values[::-1]):
        assert summed(everything, tmp_path, "fixed_point", order, code, block=64) == wanted


def test_exact_sums_without_a_value(everything, tmp_path):
    """NaN, and infinities of both signs, make fixed_point's sum NaN."""
    for values in ([1, math.nan], [math.inf, 1, -math.inf]):
        assert math.isnan(summed(everything, tmp_path, "fixed_point", values, block=64))


def test_an_input_that_is_too_short(everything, tmp_path):
    """A file of fewer elements than the size is named, and not read further."""
    (tmp_path / "input").write_bytes(b"1234")
    found = _emulate.emulate("fixed_point", everything, size=2, input=tmp_path / "input")
    assert found.fault and "input does not hold 2 elements" in found.fault.text


def test_threads_in_another_order(everything):
    """No sum depends on the order in which the threads of a block take turns."""
    for name in RUNGS:
        found = _emulate.emulate(name, everything, size=5000, descending=True)
        assert found.right and not found.races, name


@pytest.mark.parametrize(
    ("name", "choices", "counter", "value"),
    [
        ("neighbored", dict(dtype="float64"), "global load efficiency", None),
        ("interleaved_strided", dict(block=64), "bank conflicts", None),
        ("interleaved_strided", dict(dtype="float64"), "bank conflicts", None),
        ("neighbored", dict(block=64), "branch efficiency", None),
    ],
)
def test_other_choices_have_other_counters(everything, name, choices, counter, value):
    """The counters follow the block and the dtype; they are no constants of a rung."""
    usual = _emulate.emulate(name, everything).counters[counter]
    assert abs(_emulate.emulate(name, everything, **choices).counters[counter] - usual) > 0.5


def test_counters_by_hand(tmp_path):
    """Eight requests whose sectors and banks can be counted on paper."""
    text = """
        __global__ void mine(const float* in, float* out, int n) {
          __shared__ float s[64];
          int t = threadIdx.x;
          s[t] = in[t * 2 % n];      // 2 warps: 32 lanes, 8 bytes apart: 8 sectors, half of their bytes
          __syncthreads();
          if (t < 16) s[t * 2] = 0;  // one warp, 16 lanes, banks 0, 2, .. 30: no conflict
          __syncthreads();
          float x = s[t * 32 % 64];  // 2 warps: all lanes want bank 0, in 2 words: 1 conflict each
          __syncthreads();
          if (x >= 0) s[t] = x;
          __syncthreads();
          out[t] = s[t] * 0 + 1;
        }
    """
    mine = kernel(tmp_path, text)
    found = mine.run(mine.build(), size=64, block=64, elements=1)
    assert found.counters["global load efficiency"] == 50 and found.counters["bank conflicts"] == 1
    assert found.counters["barriers"] == 4 and found.counters["loads"] == 1


def test_emulate_is_public():
    """torch_reduce.ladder.emulate: a rung's counters; bad arguments name themselves."""
    found = ladder.emulate("interleaved", size=4096, block=64, dtype="int32")
    assert found.right and found.block == 64 and found.size == 4096 and found.counters["barriers"] == 6
    for arguments, said in (
        (dict(name="engine"), "rung: 'engine' cannot be emulated"),
        (dict(name="neighbored", size=0), "size"),
        (dict(name="neighbored", block=2048), "block"),
        (dict(name="neighbored", dtype="float16"), "dtype"),
    ):
        with pytest.raises(ValueError, match=said):
            ladder.emulate(**arguments)
    assert "__global__ void interleaved" in ladder.source("interleaved")
    with pytest.raises(ValueError, match="there is no 'x'"):
        ladder.source("x")


# --- faults -----------------------------------------------------------------------------------------------------------

TREE = """
__global__ void mine(const float* in, float* out, int n) {
  __shared__ float s[1024];
  int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  s[t] = i < n ? in[i] : 0;
  __syncthreads();
  for (unsigned k = blockDim.x / 2; k > 0; k /= 2) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  if (t == 0) out[blockIdx.x] = s[0];
}
"""


def test_a_right_kernel(tmp_path):
    """Nothing is found in a kernel that is right, and its form is found out."""
    verdict = _try.judge(kernel(tmp_path, TREE))
    assert verdict.right and verdict.elements == 1 and verdict.how == "a block"
    ranking = _try.nearest(verdict.sample)
    assert [name for _, name, _ in ranking[:2]] == ["sequential_addressing", "shared_partials"]
    assert ranking[0][0] == ranking[1][0] < ranking[2][0], "the first two do the same"


FAULTS = {  # a line of TREE, what stands there instead, the message, and its line
    "no barrier in the loop": ("    __syncthreads();", "", "no __syncthreads\\(\\)", "s[t] += s[t + k]"),
    "no barrier before it": ("  __syncthreads();\n  for", "  for", "no __syncthreads\\(\\)", "s[t] += s[t + k]"),
    "one element too far": ("i < n ?", "i <= n ?", r"thread 104 of block 7 reads in\[1000\], 1 element beh", "in[i]"),
    "half of it is read": ("s[t] = i < n", "if (t % 2) s[t] = i < n", "where nothing has been written", "s[t] += s"),
    "a block too far": (
        "out[blockIdx.x]", "out[blockIdx.x + 1]",
        r"^thread 0 of block 7 writes out\[8\], 1 element behind its end \(out has 8\)$", "blockIdx.x + 1",
    ),
    "several blocks too far": (
        "out[blockIdx.x]", "out[blockIdx.x * 3]",
        r"^thread 0 of block 3 writes out\[9\], 2 .* has 8\); the farthest is thread 0 of block 7, out\[21\], 14 el",
        "blockIdx.x * 3",
    ),
    "before the array": ("in[i] : 0", "in[i - 2] : 0", r"^thread 0 of block 0 reads in\[-2\], 2 elements bef", "i - 2"),
    "all threads store": ("if (t == 0) out", "out", "no __syncthreads\\(\\) between them", "out[blockIdx.x]"),
    "a barrier for some": (
        "if (t < k) s[t] += s[t + k];\n    __syncthreads();",
        "if (t < k) { s[t] += s[t + k]; __syncthreads(); }\n    else __syncthreads();",
        "others at the one of line", "else __syncthreads",
    ),
    "it never ends": ("k > 0; k /= 2", "k >= 0; k /= 2", "does it end", "k >= 0"),
    "a wild address": (
        "in[i] : 0", "in[(long long)i * -100000000007] : 0",
        r"^thread \d+ of block 0 touches memory that is not there: what would be in\[-\d{12,}\] or out\[",
        "(long long)i",
    ),
    "far behind the array": (
        "in[i] : 0", "in[i + 1000000] : 0", r"reads what would be in\[1000000\] or out\[\d+\]", "i + 1000000",
    ),
    "a stack that is too small": (
        "  s[t] =", "  volatile char much[100000]; much[0] = 1;\n  s[t] =", "more than 64 KiB of stack", ""
    ),
    "a local array that is not written": (
        "  s[t] =", "  float a[4];\n  for (int k = 0; k < 3 + n / 2000; ++k) a[k] = k;\n"
        "  float x = 0; for (int k = 0; k < 4; ++k) x += a[k];\n  s[t] = x * 0 +",
        r"^thread \d+ of block 0 reads a\[3\], a local variable that it has not written", "x += a[k]",
    ),
    "a barrier in a branch": (
        "if (t < k) s[t] += s[t + k];\n    __syncthreads();", "if (t < k) { s[t] += s[t + k]; __syncthreads(); }",
        "have left the kernel or skip it", "__syncthreads(); }",
    ),
    "threads that return": (
        "  __syncthreads();\n  for", "  if (i >= n) return;\n  __syncthreads();\n  for",
        "have left the kernel or skip it", "  __syncthreads();",
    ),
    "a mask with lanes that left": (
        "  if (t == 0)", "  if (i >= n) return;\n  s[0] += 0 * __shfl_down_sync(0xffffffff, s[0], 1);\n  if (t == 0)",
        "the mask names thread", "__shfl_down_sync",
    ),
    "a loop without a test": ("  if (t == 0)", "  for (;;) __syncwarp();\n  if (t == 0)", "does it end", "for (;;)"),
    "a loop that waits": ("  if (t == 0)", "  while (1) if (s[t] < -1) break;\n  if (t == 0)", "does it end", "while"),
    "too much shared memory": ("s[1024]", "s[20000]", "49152 are the most", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault, tmp_path):
    """Each fault of a kernel is named, at its line; most of them also give a wrong sum, and on a GPU mostly none."""
    before, after, said, where = FAULTS[fault]
    assert TREE.count(before) >= 1
    text = TREE.replace(before, after)
    mine = kernel(tmp_path, text)
    runs = [mine.run(program, size=1000, block=128, elements=1, descending=order)
            for program in [mine.build()] for order in (False, True)]  # fmt: skip
    findings = [each for run in runs for each in run.findings]
    matching = [finding for finding in findings if re.search(said, finding.text)]
    assert matching, findings
    assert {finding.file for finding in findings} <= {"mine.cu", ""}, findings  # and never "??"
    if where:
        assert line_of(text, where) in {finding.line for finding in matching}, matching
        assert {finding.file for finding in matching} == {"mine.cu"}, matching


WARP = """
__global__ void mine(const int* in, int* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
  int x = i < n ? in[i] : 0;
  SUM
  if (lane == 0) atomicAdd(out, x);
}
"""


@pytest.mark.parametrize(
    "lines",
    [
        "for (int k = 16; k > 0; k /= 2) x += __shfl_down_sync(0xffffffff, x, k);",
        "for (int k = 1; k < 32; k *= 2) x += __shfl_xor_sync(0xffffffff, x, k);",
        "for (int k = 1; k < 32; k *= 2) { int y = __shfl_up_sync(~0u, x, k); if (lane >= k) x += y; }\n"
        "x = __shfl_sync(~0u, x, 31);",
        "for (int k = 4; k > 0; k /= 2) x += __shfl_down_sync(~0u, x, k, 8);\n"
        "x = __shfl_sync(~0u, x, 0) + __shfl_sync(~0u, x, 8) + __shfl_sync(~0u, x, 16) + __shfl_sync(~0u, x, 24);",
        "x = __reduce_add_sync(0xffffffff, x);",
        "int sum = 0; for (int k = 0; k < 9; ++k) sum += __popc(__ballot_sync(0xffffffff, x >> k & 1)) << k; x = sum;",
        "if (__any_sync(~0u, x < 0) || !__all_sync(~0u, x >= 0)) x = 0;\n"
        "int most = __reduce_max_sync(~0u, x), least = __reduce_min_sync(~0u, x);\n"
        "x = most >= x && least <= x ? __reduce_add_sync(~0u, x) : 0;",
        "bool fine = __syncthreads_count(x > 0) >= 0 && __syncthreads_or(1) && !__syncthreads_and(0);\n"
        "x = fine ? __reduce_add_sync(~0u, x) : 0;",
    ],
    ids=["down", "xor", "up", "width", "reduce", "ballot", "votes", "block votes"],
)
def test_what_warps_can_do(lines, tmp_path):
    """A warp's sum by each of the ways in which its lanes hand each other values."""
    mine = kernel(tmp_path, WARP.replace("SUM", lines))
    program = mine.build()
    for size, block in ((4096, 64), (1000, 128)):
        for order in (False, True):
            found = mine.run(program, size=size, block=block, elements=1, descending=order)
            assert found.right and not found.races and not found.wrong, found


RIGHT = {  # unusual kernels that are right
    "compare-and-swap": TREE.replace(
        "if (t == 0) out[blockIdx.x] = s[0];",
        "if (t == 0) { int* p = (int*)out; int old = *p, seen;\n"
        "    do { seen = old; old = atomicCAS(p, seen, __float_as_int(__int_as_float(seen) + s[0])); }\n"
        "    while (seen != old); }",
    ),
    "rows of threads": TREE.replace("t = threadIdx.x,", "t = threadIdx.y * blockDim.x + threadIdx.x,").replace(
        "blockIdx.x * blockDim.x + t", "blockIdx.x * blockDim.x * blockDim.y + t").replace(
        "blockDim.x / 2", "blockDim.x * blockDim.y / 2"),
    "a warp a row": """
        __global__ void mine(const float* x, float* sums, int n) {
          __shared__ float rows[32];
          int i = (blockIdx.x * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
          float sum = i < n ? x[i] : 0;
          for (int k = 16; k > 0; k /= 2) sum += __shfl_down_sync(~0u, sum, k);
          if (threadIdx.x == 0) rows[threadIdx.y] = sum;
          __syncthreads();
          if (threadIdx.x == 0 && threadIdx.y == 0)
            for (int k = 0; k < blockDim.y; ++k) atomicAdd(sums, rows[k]);
        }""",
    "cooperative groups": "#include <cooperative_groups.h>\n#include <cooperative_groups/reduce.h>\n"
        "namespace cg = cooperative_groups;\n" + TREE.replace(
        "int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;",
        "cg::thread_block block = cg::this_thread_block();\n"
        "  int t = block.thread_rank(), i = block.group_index().x * block.size() + t;").replace(
        "__syncthreads();\n  for", "block.sync();\n  for").replace("k > 0", "k > 16").replace(
        "__syncthreads();\n  }", "cg::sync(block);\n  }\n"
        "  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);\n"
        "  float sum = warp.meta_group_rank() == 0 ? s[warp.thread_rank()] : 0;\n"
        "  sum = cg::reduce(cg::tiled_partition<16>(warp), sum, cg::plus<float>());\n"
        "  if (warp.all(sum < 0)) sum = 0;\n"
        "  sum += warp.shfl_down(sum, 16);\n"
        "  s[t] = sum; warp.sync();"),
    "a type, then the block": TREE.replace("__global__", "template <typename T, unsigned B>\n__global__").replace(
        "const float* in, float* out", "const T* in, T* out").replace("blockDim.x / 2", "B / 2"),
    "last block": "__device__ unsigned arrived;\n__device__ float partial[8192];\n" + TREE.replace(
        "if (t == 0) out[blockIdx.x] = s[0];",
        "if (t == 0) { partial[blockIdx.x] = s[0]; __threadfence();\n"
        "    if (atomicAdd(&arrived, 1u) == gridDim.x - 1)\n"
        "      for (unsigned b = 0; b < gridDim.x; ++b) out[0] += partial[b]; }"),
    "a type of its own": TREE.replace(
        "if (t == 0) out[blockIdx.x] = s[0];",
        "union { float number; int bits; } both;\n  struct { float a; int b[2]; } pair;\n  both.number = s[0];\n"
        "  pair.a = __int_as_float(both.bits); if (t == 0) out[blockIdx.x] = pair.a;"),
    "a mark before the first character": "\ufeff" + TREE.lstrip(),
    "lines of Windows": TREE.replace("\n", "\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("which", RIGHT)
def test_unusual_kernels_are_right(which, tmp_path):
    """Forms that programs have: nothing is found in them."""
    verdict = _try.judge(kernel(tmp_path, RIGHT[which]), blocks=(64, 256), odd=(1000,))
    assert verdict.right, (verdict.wrong, verdict.findings)


def test_vectors_are_one_load(tmp_path):
    """A float4 is one load of 16 bytes per thread, as on a GPU."""
    text = """
        __global__ void mine(const float* in, float* out, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          float4 v = i * 4 < n ? reinterpret_cast<const float4*>(in)[i] : make_float4(0, 0, 0, 0);
          atomicAdd(out, v.x + v.y + v.z + v.w);
        }
    """
    mine = kernel(tmp_path, text)
    found = mine.run(mine.build(), size=4096, block=64, elements=4)
    assert found.right and found.counters["loads"] == 1 and found.counters["global load efficiency"] == 100


def test_arrays_of_the_device_are_watched(tmp_path):
    """A race on a __device__ array is found, and named."""
    text = "__device__ float partial[4];\n" + TREE.replace("  if (t == 0)", "  partial[0] = t;\n  if (t == 0)")
    verdict = _try.judge(kernel(tmp_path, text), blocks=(64,), odd=())
    assert any("partial[0]" in finding.text and finding.line == 12 for finding in verdict.findings), verdict.findings


def test_a_header_beside_the_file(tmp_path):
    """A learner's own header is found, by a name with a space, too."""
    folder = tmp_path / "my kernels"
    folder.mkdir()
    (folder / "own.h").write_text("#define HALF(x) ((x) / 2)\n")
    text = '#include "own.h"\n' + TREE.replace("blockDim.x / 2", "HALF(blockDim.x)")
    mine = kernel(folder, text)
    assert mine.run(mine.build(), size=1000, block=64, elements=1).right


def test_blocks_and_sizes_that_a_rung_does_not_take(capsys):
    """A block that a rung does not take is no wrong kernel: it says which it takes. Huge sizes are refused at once."""
    assert _program.main(["run", "--emulate", "--rungs", "warp_shuffle", "--block", "16"]) == 1
    assert "it takes blocks of 64, 128, 256, 512, 1024" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        _program.main(["run", "--emulate", "--rungs", "interleaved", "--size", "2^40"])
    assert "at most" in capsys.readouterr().err
    found = _emulate.emulate("multi_element", elements=5)
    assert "does not take 5 elements per thread" in found.fault.text


def test_races_between_warps_come_first(tmp_path):
    """Where threads of one warp race and threads of two warps, too, the barrier that is named is the one that helps."""
    text = TREE.replace("    __syncthreads();", "")
    verdict = _try.judge(kernel(tmp_path, text), blocks=(256,), odd=())
    first, second = [each for each in verdict.findings if each.line == line_of(text, "s[t] += s[t + k]")]
    assert "no __syncthreads()" in first.text and "no __syncwarp()" in second.text and not verdict.in_step


def test_warps_in_step(tmp_path):
    """The lessons' last warp without barriers: a race since Volta, and right if a warp's threads run in step."""
    text = TREE.replace("k > 0", "k > 32").replace(
        "  if (t == 0)",
        "  if (t < 32) { volatile float* v = s; v[t] += v[t + 32]; v[t] += v[t + 16]; v[t] += v[t + 8];\n"
        "    v[t] += v[t + 4]; v[t] += v[t + 2]; v[t] += v[t + 1]; }\n  if (t == 0)",
    )
    verdict = _try.judge(kernel(tmp_path, text))
    assert not verdict.right and verdict.in_step == set(_try.BLOCKS)
    assert any("no __syncwarp()" in finding.text for finding in verdict.findings)
    assert any("Before Volta" in line for line in _try.report(verdict))


def test_half_of_a_block(tmp_path):
    """`blockDim.x > 128` for `>=`, as it is often printed: blocks of 128 lose half, and only those."""
    text = TREE.replace(
        "for (unsigned k = blockDim.x / 2; k > 0; k /= 2) {\n"
        "    if (t < k) s[t] += s[t + k];\n    __syncthreads();\n  }",
        "".join(f"if (blockDim.x {'>' if k == 64 else '>='} {2 * k} && t < {k}) s[t] += s[t + {k}];\n__syncthreads();\n"
                for k in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)),
    )  # fmt: skip
    verdict = _try.judge(kernel(tmp_path, text))
    assert set(verdict.wrong) == {128}
    assert "about half" in "\n".join(_try.report(verdict))


FORMS = {  # what a kernel may look like, and how it is called
    "template": ("template <class T>\n__global__ void mine(const T* in, T* out, int n)", "float", "float32"),
    "double": ("__global__ void mine(const double* in, double* out, size_t n)", "double", "float64"),
    "bounds": ("__global__ __launch_bounds__(1024) void mine(int* in, int* out, unsigned int n)", "int", "int32"),
    "restrict": ("__global__ void mine(const float* __restrict__ in, float* __restrict__ out, const int n)", "float",
                 "float32"),
    "block": ("template <unsigned kBlock, typename T>\n__global__ void mine(T* in, T* out, int n)", "float", "float32"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form, tmp_path):
    """Templates over the type or the block, other element types, qualifiers."""
    head, element, dtype = FORMS[form]
    text = TREE.replace("__global__ void mine(const float* in, float* out, int n)", head)
    text = text.replace("__shared__ float", f"__shared__ {'T' if 'T*' in head else element}")
    mine = kernel(tmp_path, text)
    assert (mine.element, mine.dtype) == (element, dtype)
    program = mine.build()
    assert all(mine.run(program, size=size, block=64, elements=1).right for size in (1, 1000, 4096))


def test_elements_per_thread_are_found_out(tmp_path):
    """Two elements per thread, one sum by an atomic; a kernel without n is tried on whole blocks alone."""
    text = TREE.replace("blockIdx.x * blockDim.x + t", "blockIdx.x * blockDim.x * 2 + t")
    text = text.replace("in[i] : 0;", "in[i] : 0;\n  if (i + blockDim.x < n) s[t] += in[i + blockDim.x];")
    mine = kernel(tmp_path, text.replace("out[blockIdx.x] = s[0]", "atomicAdd(out, s[0])"))
    program = mine.build()
    assert _try.elements_of(mine, program) == 2
    assert mine.run(program, size=4096, block=64, elements=2).how == "one"
    whole = kernel(tmp_path, TREE.replace(", int n", "").replace("i < n ? in[i] : 0", "in[i]"), "whole.cu")
    verdict = _try.judge(whole)
    assert verdict.right and verdict.sizes == [_try.WHOLE]


OPS = {  # a kernel of each op: what it starts from, how it joins, and the least wrong one
    "prod": ("1", "s[t] *= s[t + k]", "0"),
    "max": ("-INFINITY", "s[t] = fmaxf(s[t], s[t + k])", "0"),
    "min": ("INFINITY", "s[t] = fminf(s[t], s[t + k])", "0"),
    "count": ("0", "s[t] += s[t + k]", "1"),
}


@pytest.mark.parametrize("op", OPS)
def test_other_ops(op, tmp_path):
    """Products, the largest and the smallest element, how many are not 0, into an array of another type, too."""
    start, join, wrong = OPS[op]
    out = "int" if op == "count" else "double"
    text = TREE.replace("float* out", f"{out}* out").replace("s[t] += s[t + k]", join)
    if op == "count":
        text = text.replace("in[i] :", "in[i] != 0 :")
    right = text.replace(": 0;", f": {start};")
    mine = kernel(tmp_path, right, op=op)
    assert (mine.result, mine.to) == (out, {"int": "int32", "double": "float64"}[out])
    verdict = _try.judge(mine, elements=1, blocks=(64,), odd=(1, 1000))
    assert verdict.right, (verdict.wrong, verdict.findings)
    luck = kernel(tmp_path, text.replace(": 0;", f": {wrong};"), op=op)
    verdict = _try.judge(luck, elements=1, blocks=(64,), odd=(1, 1000))
    assert {size for size, _ in verdict.wrong[64]} == {1, 1000}, "whole blocks start from elements alone"
    if op in ("max", "min"):
        text = TREE.replace("out[blockIdx.x] = s[0]", f"atomic{op.title()}(out, s[0])")
        with pytest.raises(_emulate.CannotEmulate, match="of integers alone"):
            kernel(tmp_path, text).build()
        integers = text.replace("float", "int").replace("s[t] += s[t + k]", f"s[t] = {op}(s[t], s[t + k])")
        start = "-2147483647" if op == "max" else "2147483647"
        mine = kernel(tmp_path, integers.replace(": 0;", f": {start};"), op=op)
        assert mine.run(mine.build(), size=1000, block=64).right


def test_other_blocks(tmp_path, capsys):
    """The shape of a block is told; threads are called by both of their numbers, and the user's names are kept."""
    text = RIGHT["a warp a row"].replace("x[i] : 0", "x[i + 1] : 0")
    path = tmp_path / "mine.cu"
    path.write_text(text)
    assert _program.main(["try", str(path), "--block", "16x8"]) == 1
    said = capsys.readouterr().out
    assert "blocks of 16 x 8 : WRONG" in said
    assert re.search(r"thread \(15, 7\) of block 255 reads x\[32768\], 1 element behind its end \(x has 32768\)", said)


def test_sizes_are_named(tmp_path):
    """A kernel without n is tried on one size; the line says which."""
    text = TREE.replace(", int n", "").replace("i < n ? in[i] : 0", "in[i]")
    lines = _try.report(_try.judge(kernel(tmp_path, text), blocks=(64,)))
    assert "  blocks of   64: right for 32,768 elements" in lines
    lines = _try.report(_try.judge(kernel(tmp_path, TREE), elements=1, blocks=(64,), odd=(1, 1000)))
    assert "  blocks of   64: right for 32,768, 1 and 1,000 elements" in lines


def test_the_learners_names(tmp_path):
    """Messages call the arrays as the kernel does; the steps of a file are drawn as a rung's are."""
    text = TREE.replace("in[i]", "values[i]").replace("* in,", "* values,").replace("out", "partial_sums")
    mine = kernel(tmp_path, text.replace("i < n", "i <= n"))
    assert mine.arrays == ("values", "partial_sums")
    (finding,) = mine.run(mine.build(), size=1000, block=128).findings
    assert finding.text.startswith("thread 104 of block 7 reads values[1000], ")
    (tmp_path / "mine.cu").write_text(text)
    found = _step.traced(str(tmp_path / "mine.cu"), 8)
    lines = _step.listing(found, _step.steps_of(found))
    assert lines[0].startswith("load     t0: s0 = 0   t1: s1 = 1") and lines[-1].startswith("write    t0: out0 = s0")


@pytest.mark.parametrize("shuffle, needed", [
    ("__shfl_down_sync(~0u, value, 16)", 16),
    ("__shfl_up_sync(~0u, value, 16)", 16),
    ("__shfl_sync(~0u, value, 0)", 32),
], ids=["down", "up", "from"])  # fmt: skip
def test_all_threads_of_a_warp_run_its_shuffles(tmp_path, shuffle, needed):
    """Also those for which no lane is there: they get their own value back. The shuffle is one of each warp's."""
    mine = kernel(
        tmp_path,
        f"""
__global__ void mine(const float* in, float* out, int n) {{
  float value = in[threadIdx.x];
  value += {shuffle};
  atomicAdd(out, value);
}}
""",
    )
    found = mine.run(mine.build(), size=64, block=64, trace=True)
    (step,) = (step for step in _step.steps_of(found) if step.shuffling)
    assert step.shuffling == set(range(64)) and found.counters["shuffles"] == 1
    assert len(step.actions) == 2 * needed  # of two warps
    assert step.note(64).startswith("64 of 64 threads")


def test_local_variables_without_a_value(tmp_path):
    """A sum that nothing has been written to is no lucky zero: it is told where the result is wrong."""
    text = TREE.replace("  s[t] =", "  float x;\n  if (n < 0) x = 1;\n  x += i < n ? in[i] : 0;\n  s[t] = x; //")
    verdict = _try.judge(kernel(tmp_path, text), elements=1, blocks=(64,), odd=(1,))
    (finding,) = verdict.findings
    assert verdict.wrong and finding.line == line_of(text, "x += ")
    assert finding.text.startswith("thread 0 of block 0 reads x, a local variable that it has not written")
    # A lane hands over what no other lane uses.
    lanes = TREE.replace("  if (t == 0) out", "  float x;\n  if (t == 0) x = s[0];\n  x = __shfl_sync(~0u, x, 0);\n"
                                              "  if (t == 0) s[0] = x;\n  if (t == 0) out")  # fmt: skip
    verdict = _try.judge(kernel(tmp_path, lanes), elements=1, blocks=(64,), odd=(1,))
    assert verdict.right, verdict.findings


def test_a_dtype_that_a_kernel_does_not_take(tmp_path):
    """--dtype chooses a template's T, and nothing else."""
    with pytest.raises(ValueError, match="mine takes float, and not int32"):
        kernel(tmp_path, TREE, dtype="int32")
    template = "template <class T>\n" + TREE.replace("float*", "T*").replace("float s", "T s")
    mine = kernel(tmp_path, template, dtype="int64")
    assert mine.element == "long long" and mine.run(mine.build(), size=1000, block=64).right


BAD = {
    "no kernel": ("int x;", "there is no __global__"),
    "two kernels": (TREE + TREE.replace("mine", "other"), "choose one by --kernel"),
    "three pointers": ("__global__ void mine(float* a, float* b, float* c) {}", "a kernel to try is"),
    "no such element": ("__global__ void mine(char* a, char* b) {}", "elements of type char"),
}


@pytest.mark.parametrize("bad", BAD)
def test_kernels_that_cannot_be_tried(bad, tmp_path):
    """A sentence that says what a kernel looks like."""
    with pytest.raises(ValueError, match=BAD[bad][1]):
        kernel(tmp_path, BAD[bad][0])


def test_compilers_errors_name_the_learners_line(tmp_path):
    """What does not compile is shown with the file's own name and line."""
    text = TREE.replace("s[1024]", "s[blockDim.x]")
    with pytest.raises(_emulate.CannotEmulate, match=f"mine.cu:{line_of(text, '__shared__')}:"):
        kernel(tmp_path, text).build()
    with pytest.raises(_emulate.CannotEmulate, match="mine.cu:4:"):
        kernel(tmp_path, TREE.replace("threadIdx.x", "threadldx.x")).build()


@pytest.mark.parametrize("before, after, said", [
    ("+= s[t + k];", "+= s[t + k]", "a semicolon, a bracket or a brace"),
    ("? in[i] : 0;", "? in[i] : t", "a semicolon, a bracket or a brace"),
    ("k /= 2)", "k /= 2", "a semicolon, a bracket or a brace"),
    ("= threadIdx.x", "= threadIdx * blockDim", "the first one is threadIdx.x"),
], ids=["semicolon", "semicolon before a barrier", "bracket", "dimension"])  # fmt: skip
def test_what_newcomers_forget(tmp_path, before, after, said):
    """It is said of the learner's own line or of the one behind it, in plain words, without the emulator's names."""
    text = TREE.replace(before, after, 1)
    with pytest.raises(_emulate.CannotEmulate) as refused:
        kernel(tmp_path, text).build()
    line = line_of(text, after)
    shown = str(refused.value).replace(str(tmp_path), "")
    assert re.match(rf"/mine\.cu:(?:{line}|{line + 1}): ", shown) and said in shown and "emulate" not in shown, shown


def test_time_on_a_gpu_compiles(nvcc, tmp_path):
    """What would time a learner's kernel is CUDA that nvcc takes."""
    mine = kernel(tmp_path, TREE)
    for text in (_try.timing_source(mine, 1), _try.timing_source_of("multi_element", 16)):
        (tmp_path / "time.cu").write_text(text)
        subprocess.run([nvcc, "-std=c++17", "-c", "-o", tmp_path / "time.o", tmp_path / "time.cu"], check=True)


# --- the translation --------------------------------------------------------------------------------------------------


def test_translation_keeps_lines_and_everything_else():
    """Only launches, shared arrays, tests and unroll change; no line moves."""
    for path in [*_emulate.rung_files().values(), _emulate.sources() / "rung.cuh"]:
        text = path.read_text()
        made = _translate.translate(text, "x.cu").text
        assert made.count("\n") == text.count("\n") + 1 and made.startswith('#line 1 "x.cu"\n')
        for old, new in zip(text.splitlines(), made.splitlines()[1:], strict=True):
            if not re.search(r"\b(if|for|while|else)\b|__shared__|<<<|#pragma", old) and "::emulate::" not in new:
                assert new in (old, old + " });")


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("if (a < b) x = 1;", "if (EMULATE_TEST(7, 0, a < b)) { ::emulate::begin(7); x = 1; ::emulate::end(7); }"),
        ("for (int i = 0; i < n; ++i) x += i;",
         "for (int i = 0;EMULATE_TEST(7, 1,  i < n); ++i) { ::emulate::begin(7); x += i; ::emulate::end(7); }"),
        ("do { x++; } while (x < 3);", "do { x++; } while (EMULATE_TEST(7, 1, x < 3));"),
        ("if constexpr (a) x = 1;", "if constexpr (a) x = 1;"),
        ("if (int y = f()) x = y;", "if (int y = f()) x = y;"),
        ("for (auto y : all) x = y;", "for (auto y : all) x = y;"),
        ("x = 1;  // if (a) b;", "x = 1;  // if (a) b;"),
        ('printf("if (a) <<<");', 'printf("if (a) <<<");'),
        ("#pragma unroll\nfor (int i = 0; i < 4; ++i) x;", "#pragma GCC unroll 64\nfor (int i = 0; i < 4; ++i) x;"),
    ],
)  # fmt: skip
def test_translation_of_statements(text, made):
    """One statement of a kernel."""
    whole = "__global__ void k() {{\n{}\n}}\n"
    assert _translate.translate(whole.format(text), "x.cu", 7).text == '#line 1 "x.cu"\n' + whole.format(made)


def test_translation_of_a_launch_and_of_shared_arrays():
    """Template arguments, several declarators, dynamic shared memory with an alignment."""
    made = _translate.translate("void f() { k<T, 4><<<dim3(a, 1), b, c * sizeof(T)>>>(x, g(y)); }", "x.cu").text
    assert 'emulate::launch("k", {dim3(a, 1), b, c * sizeof(T)}, [&] { k<T, 4>(x, g(y)); });' in made
    made = _translate.translate("__shared__ volatile int a[32], b;", "x.cu", 5).text
    assert "Same<volatile int[32]>" in made and "emulate::shared(5," in made and "emulate::shared(6," in made
    made = _translate.translate("extern __shared__ __align__(16) unsigned char memory[];", "x.cu").text
    assert "unsigned char* memory = static_cast<unsigned char*>(::emulate::dynamic_shared(" in made


# --- steps ------------------------------------------------------------------------------------------------------------


def steps(name, **choices):
    """The lines of a rung's steps, without the notes at their ends."""
    found = _step.traced(name, **choices)
    return [re.split(r"   +(?=\d+ of )", line)[0].rstrip() for line in _step.listing(found, _step.steps_of(found))]


def test_who_adds_what():
    """The trees of chapter 1, from the kernels' own accesses."""
    assert steps("neighbored", block=8) == [
        "step 1   t0: 0+1   t2: 2+3   t4: 4+5   t6: 6+7",
        "step 2   t0: 0+2   t4: 4+6",
        "step 3   t0: 0+4",
        "write    t0: out0 = 0",
    ]
    assert steps("neighbored_less", block=8)[1] == "step 2   t0: 0+2   t1: 4+6"
    assert steps("interleaved", block=8)[0] == "step 1   t0: 0+4   t1: 1+5   t2: 2+6   t3: 3+7"
    assert steps("unrolling4", block=8)[0].startswith("step 1   t0: 0+8+16+24   t1: 1+9+17+25")
    assert steps("interleaved_modulo", block=8)[1] == "step 1   t0: s0+s1   t2: s2+s3   t4: s4+s5   t6: s6+s7"


def test_steps_of_warps():
    """A rung that needs a warp gets one; lanes whose sum goes nowhere are not shown."""
    found = _step.traced("warp_shuffle")
    assert found.block == 32 and found.right
    assert steps("warp_shuffle")[3] == "step 3   t0: t0+t4   t1: t1+t5   t2: t2+t6   t3: t3+t7"
    assert steps("unroll_last_warp")[5] == "step 5   t0: s0+s2   t1: s1+s3"
    assert steps("multi_element")[0].startswith("load     t0: 0+32+64+96")
    partials = steps("multi_element_partials")
    assert steps("multi_element")[:-1] == partials[:-1] and partials[-1] == "write    t0: out0 = s0"


def test_bank_conflicts_in_steps():
    """Step 6 of 64 threads, two apart at first: two words of a bank; at the end as many as threads."""
    found = _step.traced("interleaved_strided", block=512)
    assert [step.conflicts for step in _step.steps_of(found)] == [1, 2, 4, 8, 16, 16, 8, 4, 2, 1, 1]


def test_steps_of_a_wrong_kernel(tmp_path, capsys):
    """What it touches outside of its arrays is a question mark, also for the picture; what is wrong is said."""
    (tmp_path / "mine.cu").write_text(TREE.replace("in[i] : 0", "in[i + 6] : 0"))
    command = ["step", str(tmp_path / "mine.cu"), "--block", "8", "--svg", str(tmp_path / "x.svg")]
    assert _program.main(command) == 1 and (tmp_path / "x.svg").exists()
    printed = capsys.readouterr().out
    assert "s3 in shared memory, ? outside of its arrays\n" in printed and "t7: s7 = ?" in printed
    assert "thread 2 of block 0 reads in[8], 1 element behind its end (in has 8)" in printed


def test_steps_of_blocks_that_a_rung_does_not_take(capsys):
    """Its blocks are said, or that the kernel does nothing."""
    assert _program.main(["step", "grid_stride", "--block", "2048"]) == 1
    assert "grid_stride: it takes blocks of " in capsys.readouterr().out
    assert _program.main(["step", "neighbored", "--block", "2048"]) == 1
    assert "2048 threads per block; 1024 are the most" in capsys.readouterr().out


def test_a_rung_may_be_its_number(capsys):
    """As the chapters' tables number them."""
    for name in ("neighbored", "warp_shuffle"):
        number = str(next(rung.number for rung in ladder.rungs() if rung.name == name))
        said = []
        for called in (name, number):
            for action in ("list", "show"):
                assert _program.main([action, called]) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1] and name in said[0]


@pytest.mark.parametrize("name", ["neighbored", "smem_unroll4", "warp_shuffle"])
def test_pictures_of_steps(name):
    """The picture is SVG: every thread of the block once a step, idle ones grey, and what is added joined by lines."""
    found = _step.traced(name)
    made = _step.steps_of(found)
    tree = xml.etree.ElementTree.fromstring(_step.svg(found, made))
    kind = "{http://www.w3.org/2000/svg}"
    threads = [box for box in tree.iter(f"{kind}rect") if box.get("rx")]
    assert len(threads) == found.block * len(made)
    idle = sum(box.get("class") == "idle" for box in threads)
    assert idle == len(threads) - sum(len({a.thread for a in step.actions if a.counts}) for step in made) > 0
    assert len(list(tree.iter(f"{kind}line"))) + len(list(tree.iter(f"{kind}path"))) >= found.block
    assert not collisions(_step.svg(found, made))


# --- the program ------------------------------------------------------------------------------------------------------


def alone(*arguments, **env):
    """`python torch_reduce/ladder ...` with Python's own library and no other, from another folder."""
    command = [sys.executable, "-S", str(ROOT / "torch_reduce" / "ladder"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd="/", env=os.environ | env, check=False, timeout=300
    )


def test_the_course_needs_no_torch(tmp_path):
    """The folder itself runs: the list, a rung, its source, its steps with a picture, a learner's file."""
    assert all(rung.name in (listed := alone("list")).stdout for rung in ladder.rungs()) and not listed.stderr
    ran = alone("run", "--emulate", "--rungs", "neighbored,interleaved", "--size", "2^12", "--against-lesson")
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"^neighbored +512 +right +25\.\d% +25\.\d%", ran.stdout, re.M), ran.stdout
    assert re.search(r"^neighbored +global load efficiency +16\.73% +2\d\.\d%", ran.stdout, re.M), ran.stdout
    left = alone("run", "--rungs", "engine")  # without torch there is nothing that could run it
    assert left.returncode == 1 and left.stderr == "not emulated: engine (no kernel of the ladder's own)\n"
    assert alone("show", "neighbored").stdout == ladder.source("neighbored")
    drawn = tmp_path / "x.svg"
    assert "t0: 0+1" in alone("step", "neighbored", "--svg", str(drawn)).stdout and drawn.exists()
    (tmp_path / "mine.cu").write_text(TREE)
    tried = alone("try", str(tmp_path / "mine.cu"))
    assert tried.returncode == 0 and tried.stdout.endswith("right\n"), tried
    assert "nearest rung: sequential_addressing" in tried.stdout
    (tmp_path / "mine.cu").write_text(TREE.replace("k > 0", "k > 1"))
    tried = alone("try", str(tmp_path / "mine.cu"))
    assert tried.returncode == 1 and tried.stdout.endswith("not right yet\n")


@pytest.mark.parametrize("waits", ["compiler", "kernel"])
def test_ctrl_c(waits, tmp_path):
    """Ends in one line and exit status 130, at once, whether the compiler runs or the kernel; neither stays."""
    told = tmp_path / "told"
    slow = f'#!/bin/sh\n[ "$1" = --version ] || {{ echo $$ > {told}; exec sleep 1000; }}\n'
    (tmp_path / "slow").write_text(slow)
    (tmp_path / "slow").chmod(0o755)
    wait = f'FILE* f = fopen("{told}", "w"); fprintf(f, "%d\\n", getpid()); fclose(f); sleep(1000);'
    text = TREE.replace("  if (t == 0)", f"  {wait}\n  if (t == 0)")
    (tmp_path / "mine.cu").write_text("#include <unistd.h>\n" + text)
    env = os.environ | ({"CXX": str(tmp_path / "slow")} if waits == "compiler" else {})
    # Where the tests run in a shell's background, SIGINT is ignored, and so it would be in what they start.
    listens = "import os, sys, signal as s; s.signal(s.SIGINT, s.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-S", str(ROOT / "torch_reduce" / "ladder"), "try", str(tmp_path / "mine.cu")]
    command = [sys.executable, "-S", "-c", listens, *command]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(6000):
        if told.exists() and told.read_text().endswith("\n"):
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "stopped\n" and not out, (out, errors)
    for _ in range(6000):
        if not is_alive(int(told.read_text())):
            break
        time.sleep(0.01)
    assert not is_alive(int(told.read_text()))


def test_without_a_compiler():
    """A sentence that says what is missing, and exit status 2."""
    ran = alone("run", "--emulate", "--rungs", "neighbored", CXX="/nowhere/g++")
    assert ran.returncode == 2 and "does not run" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [("show", "x"), ("step", "x"), ("try", "/nowhere.cu"), ("step", "cub"), ("step", "smem", "--block", "7")],
    ids=" ".join,
)
def test_wrong_arguments(arguments, capsys):
    """Exit status 2 and a message, not a traceback."""
    with pytest.raises(SystemExit) as end:
        _program.main(list(arguments))
    assert end.value.code == 2 and "error: " in capsys.readouterr().err


def test_another_compiler(tmp_path, monkeypatch):
    """clang++ counts the same as g++, where it is there."""
    monkeypatch.setenv("CXX", "clang++")
    _emulate.compiler.cache_clear()
    try:
        _emulate.compiler()
        for name in ("neighbored", "interleaved_strided", "grid_stride"):
            found = _emulate.emulate(name)
            monkeypatch.delenv("CXX")
            _emulate.compiler.cache_clear()
            assert found.right and found.counters == pytest.approx(_emulate.emulate(name).counters, abs=0.5)
            monkeypatch.setenv("CXX", "clang++")
            _emulate.compiler.cache_clear()
    except _emulate.CannotEmulate as error:
        pytest.skip(f"needs a clang++ that compiles: {str(error)[:200]}")
    finally:
        monkeypatch.undo()
        _emulate.compiler.cache_clear()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress_of_compiling(stream, monkeypatch):
    """A line that says how much time is left, on a terminal alone."""
    times = iter([10.0, 13.0, 16.0])
    monkeypatch.setattr(_emulate, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    monkeypatch.setattr(sys, "stderr", stream())
    say = _emulate.Progress()
    say(1, 2)
    say(2, 2)
    lines = [line.rstrip(" ") for line in sys.stderr.getvalue().split("\r")]
    said = ["", "compiling 1 of 2, about 3 s left", f"{'compiling 2 of 2':<40}\n"]
    assert lines == (said if stream is Terminal else said[:1])


# --- what a program may do to the course ------------------------------------------------------------------------------


def cache_of(folder, monkeypatch):
    """The cache for a user whose own is `folder`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return _emulate.cache.__wrapped__()


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_cache_is_the_users_alone(tmp_path, monkeypatch):
    """What is kept there is run: nobody else may have written it, and a new folder is taken where one could have."""
    made = cache_of(tmp_path / "new", monkeypatch)
    assert made == tmp_path / "new" / "torch_reduce" / "course"
    assert mode(made) == mode(made.parent) == 0o700 and cache_of(tmp_path / "new", monkeypatch) == made
    made.chmod(0o755)
    assert cache_of(tmp_path / "new", monkeypatch) == made and mode(made) == 0o700
    for wrong in (made, made.parent):
        for bits in (0o770, 0o777, 0o722):
            wrong.chmod(bits)
            other = cache_of(tmp_path / "new", monkeypatch)
            assert other != made and mode(other) == 0o700, (wrong, bits)
            other.rmdir()
        wrong.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    other = cache_of(tmp_path / "new", monkeypatch)
    assert other != made
    other.rmdir()
    monkeypatch.undo()
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "torch_reduce").symlink_to(made.parent)
    other = cache_of(tmp_path / "link", monkeypatch)
    assert other.parent.parent != made.parent and other.name.startswith("torch_reduce-course-")
    other.rmdir()


def lines_of_shell(text, seconds=60):
    return _emulate.execute(["/bin/sh", "-c", text], seconds)


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("end", ["exit 3", "wait"])
def test_a_programs_children_end_with_it(end):
    """Also those that hold its output open: neither a program that ends nor one that is stopped leaves any."""
    done = lines_of_shell(f"sleep 1000 & echo $!; {end}", seconds=10)
    assert done.failed and (done.status == 3 if end == "exit 3" else done.stopped == "stopped after 10 seconds")
    child = int(done.output)
    for _ in range(6000):  # it was killed: it is gone as soon as the system comes to that
        if not is_alive(child):
            break
        time.sleep(0.01)
    assert not is_alive(child)


def test_ctrl_c_while_modules_load():
    """One line, too."""
    text = f"""
import runpy, sys
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name.endswith("._emulate"):
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
runpy.run_path({str(ROOT / "torch_reduce" / "ladder")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-S", "-c", text], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def test_ctrl_c_while_a_program_starts(monkeypatch):
    """It does not stay, though it runs before the program that starts it knows it."""
    pids = []

    class Slow(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            pids.append(self.pid)
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.2)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _emulate.execute(["sleep", "1000"], 60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(pids) == 1 and not is_alive(pids[0])


@pytest.mark.parametrize("to", ["1", "2"])
def test_what_a_program_writes_is_limited(to, monkeypatch):
    monkeypatch.setattr(_emulate, "MOST_SAID", 1 << 20)
    done = lines_of_shell(f"while :; do echo 0123456789012345678901234567890123456789; done >&{to}", seconds=300)
    assert done.stopped == "stopped, as it wrote more than 1 MiB"
    assert len(done.output) + len(done.errors) < 2 << 20


def test_what_is_no_text(tmp_path):
    done = lines_of_shell("printf '\\377'; printf '\\376' >&2")
    assert not done.failed and done.output == done.errors == "\ufffd"


RESULT = (
    '{"name": "learner", "size": 1, "elements": 1, "found": 1, "wanted": 1, "how": "one", "blocks": [], "requests": []}'
)


@pytest.mark.parametrize(
    "instead",
    [
        'std::printf("%s\\n", result), std::fflush(stdout), _exit(0)',
        "std::puts(result), std::exit(0)",
        "(void)!write(1, result, sizeof result - 1), std::exit(0)",
    ],
)
def test_what_a_kernel_prints_is_no_result(instead, tmp_path):
    """A kernel that prints what the emulator would say, in JSON, has not added anything by that."""
    mine = tmp_path / "mine.cu"
    mine.write_text(
        f"""#include <unistd.h>
#include <cstdio>
#include <cstdlib>
const char result[] = R"({RESULT})";
__global__ void mine(const float* in, float* out, int n) {{ {instead}; }}
"""
    )
    kernel = _try.Kernel.of(mine)
    found = kernel.run(kernel.build(), size=64, block=64)
    assert not found.right and "ended with status 0 and said nothing" in found.fault.text


def test_a_kernel_may_print(tmp_path):
    """Before main, during the run and after it: the sum is still found."""
    mine = tmp_path / "mine.cu"
    talk = """#include <cstdio>
struct Talk { Talk() { std::puts("{"); } ~Talk() { std::puts("[}"); } } talk;
"""
    mine.write_text(talk + TREE.replace("__syncthreads();", '__syncthreads(); if (!threadIdx.x) std::puts("{");', 1))
    kernel = _try.Kernel.of(mine)
    assert kernel.run(kernel.build(), size=1 << 15, block=64).right


def test_a_compiler_that_does_not_end(tmp_path, monkeypatch):
    """A sentence that says so."""
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\n[ "$1" = --version ] || exec sleep 1000\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    monkeypatch.setattr(_emulate, "COMPILE_SECONDS", 1)
    _emulate.compiler.cache_clear()
    try:
        with pytest.raises(_emulate.CannotEmulate, match="^the compiler does not end: stopped after 1 seconds$"):
            _emulate.build_rungs(["neighbored"])
    finally:
        monkeypatch.undo()
        _emulate.compiler.cache_clear()


def test_sums_of_integers_wrap():
    """As they do on a GPU: no compiler may take an overflow for impossible."""
    assert "-fwrapv" in _emulate.KERNEL_FLAGS and "-fwrapv" in _emulate.PROGRAM_FLAGS
