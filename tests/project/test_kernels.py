"""What compilers make of the pieces of kernels: nvcc, for which no GPU is needed, and g++ with its sanitizers."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A kernel that may start while the one before drains, and loads in every width, always and if wanted.
EARLY = """
#include "core/plan/plan.h"
#include "core/cuda/early.cuh"
#include "core/cuda/load/source.cuh"
using namespace gpureduce;
using namespace gpureduce::cuda;
template <int V> __device__ int loads(const int8_t* in, uint64_t policy, bool wanted) {
  const Typed<int8_t> source{in, policy};
  return source.load<V>(32 * threadIdx.x)[0] + source.load_if<V>(wanted, 32 * threadIdx.x + 16)[0];
}
__global__ void early(const int8_t* in, int* out, uint64_t policy, bool wanted) {
  wait_for_previous_kernel();
  allow_next_kernel();
  *out = loads<1>(in, policy, wanted) + loads<2>(in, policy, wanted) + loads<4>(in, policy, wanted) +
         loads<8>(in, policy, wanted) + loads<16>(in, policy, wanted);
}
"""


@pytest.mark.parametrize("architecture", ["sm_90", "sm_80"])
def test_loads_wait_for_the_kernel_before(architecture, nvcc, tmp_path):
    """A kernel loads nothing before the kernel in front of it, which may write the same memory, has ended."""
    source, made = tmp_path / "early.cu", tmp_path / "early.ptx"
    source.write_text(EARLY)
    command = [nvcc, "-std=c++17", "-ptx", f"-arch={architecture}", "-I", ROOT / "csrc", source, "-o", made]
    subprocess.run(command, check=True, capture_output=True, text=True)
    ptx = made.read_text()
    loads = [match.start() for match in re.finditer(r"ld\.global", ptx)]
    assert len(loads) == 10
    assert "ld.global.nc" not in ptx, "for memory that nobody writes while the kernel runs"
    if architecture == "sm_90":
        assert ptx.index("griddepcontrol.wait") < loads[0]


def test_assembly_of_loads_is_volatile():
    """Or else the compiler might move it before the wait."""
    text = (ROOT / "csrc" / "core" / "cuda" / "load" / "vectors.cuh").read_text()
    spelt = re.findall(r"asm( volatile)?\((?:[\s\\]*\"[^\"]*\")*[\s\\]*GPUREDUCE_LOAD", text)
    assert len(spelt) >= 6 and all(spelt), spelt


def test_cpu_kernels_with_sanitizers():
    """`make sanitize` can compile them: with its checks, g++ takes fewer expressions for constants."""
    compiler = shutil.which("g++") or pytest.skip("needs g++")
    checks = ["-fsanitize=address,undefined", "-fno-sanitize=vptr"]
    command = [compiler, "-std=c++17", "-fsyntax-only", *checks, ROOT / "csrc" / "core" / "cpu" / "kernels_default.cpp"]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""
