// Rung 36, long_by_warp. Chapter 5: divergence itself.
//
// threads   A thread an element: the threads of even warps walk to 100 in many dependent steps, those of odd warps to
//           200.
// idea      long_by_thread's loops, cut along warps as in math_kernel2: as many threads on either side, the same
//           arithmetic in each.
// removes   Divergence: a warp walks one loop, with all of its threads.
// wrong     Nothing here; but not every problem lets whole warps take one side.
// requires  Nothing; the input's values are not read.
// source    This library, with the condition of mathKernel2 in simpleDivergence (Cheng, Grossman, McKercher; 2014)
// moves     instructions per warp down
// faster    than long_by_thread
// command   python -m torch_reduce.ladder run --rungs long_by_thread,long_by_warp --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

constexpr int kRounds = 512;  // as in long_by_thread

template <class T>
__global__ void long_by_warp(T* c, int64_t n, int rounds) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  float ia = 0, ib = 0;
  if (tid / 32 % 2 == 0) {
    for (int i = 0; i < rounds; ++i) ia = ia * 0.5f + 50;
  } else {
    for (int i = 0; i < rounds; ++i) ib = ib * 0.25f + 150;
  }
  c[tid] = static_cast<T>(ia + ib);
}

// Differs from the lesson: as long_by_thread.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    long_by_warp<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n, kRounds);
  });
}

const Register rung("long_by_warp", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
