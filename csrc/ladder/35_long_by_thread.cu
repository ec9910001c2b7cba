// Rung 35, long_by_thread. Chapter 5: divergence itself.
//
// threads   A thread an element: even threads walk to 100 in many dependent steps, odd ones to 200.
// idea      math_kernel1's condition around bodies too long to predicate: two loops, whose length is known only at run
//           time.
// removes   Nothing: it is the divergence that math_kernel1 was to show.
// wrong     Every warp has threads on both sides and walks both loops one after the other, half of its threads asleep
//           in each.
// requires  Nothing; the input's values are not read.
// source    This library, with the condition of mathKernel1 in simpleDivergence (Cheng, Grossman, McKercher; 2014)
// command   python -m torch_reduce.ladder run --rungs long_by_thread --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

constexpr int kRounds = 512;  // so many that the stores of the results take little of the time; 32 are enough to arrive

template <class T>
__global__ void long_by_thread(T* c, int64_t n, int rounds) {
  const int64_t tid = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (tid >= n) return;
  float ia = 0, ib = 0;
  if (tid % 2 == 0) {
    for (int i = 0; i < rounds; ++i) ia = ia * 0.5f + 50;
  } else {
    for (int i = 0; i < rounds; ++i) ib = ib * 0.25f + 150;
  }
  c[tid] = static_cast<T>(ia + ib);
}

// Differs from the lesson: the book assigns 100 and 200, which the compiler selects without a branch. Here each side repeats
// one multiplication and one addition, each on the result of the one before, until a float is exactly 100 or 200. Both sides
// take the same instructions with other constants; `rounds` is an argument, so that the compiler cannot foresee the result.
// The walk is in float for every dtype; it writes n elements, not what the grid happens to cover; indices have 64 bits.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    long_by_thread<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<T*>(call.output), call.n, kRounds);
  });
}

const Register rung("long_by_thread", writing(run));

}  // namespace

}  // namespace gpureduce::ladder
