// Rung 17, first_add_on_load. Chapter 3: seven steps in shared memory.
//
// threads   Two elements a thread.
// idea      The first addition of the tree happens while loading.
// removes   Half of the blocks, and the threads that only load.
// wrong     Address arithmetic, loop and barriers cost more than the additions.
// requires  A power of two as block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 4, first add during global load
//           (reduce3)
// moves     DRAM read throughput up
// faster    than sequential_addressing
// command   python -m torch_reduce.ladder run --rungs sequential_addressing,first_add_on_load --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void first_add_on_load(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x * 2 + tid;
  T sum = i < n ? g_idata[i] : T(0);
  if (i + blockDim.x < n) sum += g_idata[i + blockDim.x];
  sdata[tid] = sum;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 0; s /= 2) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// Differs from the lesson: the slides leave the ends of other sizes open: here the second element is tested, and elements
// after the last are zeros; indices have 64 bits; the kernel runs again on the blocks' sums, as the lesson's slides say it
// should and leave to the reader.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    first_add_on_load<<<blocks, call.block, call.block * sizeof(*data), stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("first_add_on_load", in_passes({2}, run));

}  // namespace

}  // namespace gpureduce::ladder
