// Rung 32, math_kernel2. Chapter 5: divergence itself.
//
// threads   A thread an element: 100 in even warps, 200 in odd ones.
// idea      Whole warps take one side: the same work, cut along warps, so that no warp diverges.
// removes   Divergence within a warp, on paper: math_kernel1 has none.
// wrong     Nothing; but the bodies are too short to show what it is for: see long_by_warp.
// requires  Nothing.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, simpleDivergence,
//           mathKernel2
// faster    no: neither of the two has a branch, and both wait for the memory that they write.
// command   python -m torch_reduce.ladder run --rungs math_kernel1,math_kernel2 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void math_kernel2(T* c, int64_t n) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  T ia = 0, ib = 0;
  if (tid / 32 % 2 == 0) ia = 100;
  else ib = 200;
  c[tid] = ia + ib;
}

// Differs from the lesson: the book divides by `warpSize`, as warming_up does; here is the 32 that it stands for, so that the
// division, which is not what the lesson is about, is a shift; it writes n elements, not what the grid happens to cover;
// indices have 64 bits.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    math_kernel2<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n);
  });
}

const Register rung("math_kernel2", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
