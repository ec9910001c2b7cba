// Rung 30, warming_up. Chapter 5: divergence itself.
//
// threads   A thread an element: 100 in even warps, 200 in odd ones.
// idea      A kernel to run first, so that what a first launch costs is not mistaken for the next kernel's time.
// removes   Nothing.
// wrong     Here every rung runs once before it is timed, so that nothing needs it. It divides by warpSize, which is a
//           variable to most of the compiler: a reciprocal and two corrections in place of a shift.
// requires  Nothing; the input's values are not read.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, simpleDivergence,
//           warmingup
// command   python -m torch_reduce.ladder run --rungs warming_up --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void warming_up(T* c, int64_t n) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  T ia = 0, ib = 0;
  if (static_cast<unsigned>(tid) / warpSize % 2 == 0) ia = 100;
  else ib = 200;
  c[tid] = ia + ib;
}

// Differs from the lesson: it writes n elements, not what the grid happens to cover; indices have 64 bits, of which the
// division needs but 32, without a sign.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    warming_up<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n);
  });
}

const Register rung("warming_up", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
