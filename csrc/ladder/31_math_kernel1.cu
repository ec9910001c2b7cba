// Rung 31, math_kernel1. Chapter 5: divergence itself.
//
// threads   A thread an element: 100 in even threads, 200 in odd ones.
// idea      Neighbouring threads take different branches.
// removes   Nothing.
// wrong     On paper every warp runs both branches. In fact the compiler leaves no branch: each thread selects one of
//           two values.
// requires  Nothing.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, simpleDivergence,
//           mathKernel1
// faster    than warming_up: it has no division by warpSize.
// command   python -m torch_reduce.ladder run --rungs warming_up,math_kernel1 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void math_kernel1(T* c, int64_t n) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  T ia = 0, ib = 0;
  if (tid % 2 == 0) ia = 100;
  else ib = 200;
  c[tid] = ia + ib;
}

// Differs from the lesson: it writes n elements, not what the grid happens to cover; indices have 64 bits.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    math_kernel1<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n);
  });
}

const Register rung("math_kernel1", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
