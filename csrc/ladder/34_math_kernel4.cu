// Rung 34, math_kernel4. Chapter 5: divergence itself.
//
// threads   As math_kernel2.
// idea      A shift and a mask instead of a division and a remainder.
// removes   The division; which there is not, even in math_kernel2: a compiler makes a shift of a division by 32.
// wrong     Nothing that a compiler of today does not do by itself.
// requires  Nothing.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, simpleDivergence,
//           mathKernel4
// faster    no: the compiler had made math_kernel2 just that.
// command   python -m torch_reduce.ladder run --rungs math_kernel2,math_kernel4 --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void math_kernel4(T* c, int64_t n) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  T ia = 0, ib = 0;
  const int64_t itid = tid >> 5;
  if ((itid & 0x01) == 0) ia = 100;
  else ib = 200;
  c[tid] = ia + ib;
}

// Differs from the lesson: the lesson's `itid & 0x01 == 0` compares first (`0x01 == 0`), which is always false, so that all
// threads took the else: here it is `(itid & 0x01) == 0`; it writes n elements, not what the grid happens to cover; indices
// have 64 bits.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    math_kernel4<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n);
  });
}

const Register rung("math_kernel4", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
