// Rung 33, math_kernel3. Chapter 5: divergence itself.
//
// threads   As math_kernel1.
// idea      Two ifs on a predicate instead of if and else, so that the compiler predicates instructions and jumps
//           nowhere.
// removes   The branch; which there is not, even in math_kernel1.
// wrong     Nothing that a compiler of today does not do by itself.
// requires  Nothing.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, simpleDivergence,
//           mathKernel3
// faster    no: the compiler had made math_kernel1 just that.
// command   python -m torch_reduce.ladder run --rungs math_kernel1,math_kernel3 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void math_kernel3(T* c, int64_t n) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  T ia = 0, ib = 0;
  const bool ipred = tid % 2 == 0;
  if (ipred) ia = 100;
  if (!ipred) ib = 200;
  c[tid] = ia + ib;
}

// Differs from the lesson: it writes n elements, not what the grid happens to cover; indices have 64 bits.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    math_kernel3<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n);
  });
}

const Register rung("math_kernel3", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
