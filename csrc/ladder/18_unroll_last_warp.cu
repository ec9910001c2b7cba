// Rung 18, unroll_last_warp. Chapter 3: seven steps in shared memory.
//
// threads   As first_add_on_load; the last six steps by one warp.
// idea      No barriers where one warp works alone.
// removes   Six barriers a block.
// wrong     The other steps are still a loop.
// requires  At least 64 threads a block.
// source    Optimizing Parallel Reduction in CUDA (Mark Harris, NVIDIA), kernel 5, unroll last warp (reduce4)
// moves     barrier stalls down
// faster    than first_add_on_load
// command   python -m torch_reduce.ladder run --rungs first_add_on_load,unroll_last_warp --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void unroll_last_warp(const T* g_idata, T* g_odata, int64_t n) {
  T* sdata = dynamic_shared<T>();
  const unsigned tid = threadIdx.x;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x * 2 + tid;
  T sum = i < n ? g_idata[i] : T(0);
  if (i + blockDim.x < n) sum += g_idata[i + blockDim.x];
  sdata[tid] = sum;
  __syncthreads();
  for (unsigned s = blockDim.x / 2; s > 32; s /= 2) {
    if (tid < s) sdata[tid] += sdata[tid + s];
    __syncthreads();
  }
  if (tid < 32) add_last_warp(sdata, tid);
  if (tid == 0) g_odata[blockIdx.x] = sdata[0];
}

// Differs from the lesson: the slides leave the ends of other sizes open: elements after the last are zeros here; indices
// have 64 bits; the kernel runs again on the blocks' sums, as the lesson's slides say it should and leave to the reader. The
// slides' `volatile`, and their advice to leave out synchronisation within a warp, are not safe since Volta: see
// add_last_warp in rung.cuh.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t n, unsigned blocks) {
    unroll_last_warp<<<blocks, call.block, call.block * sizeof(*data), stream_of(call)>>>(data, partials, n);
  });
}

const Register rung("unroll_last_warp", in_passes({2}, run));

}  // namespace

}  // namespace gpureduce::ladder
