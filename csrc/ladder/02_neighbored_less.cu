// Rung 2, neighbored_less. Chapter 1: in place, in global memory.
//
// threads   The first half of the block adds the pairs of neighbours, then the first quarter the pairs of pairs, and
//           so on.
// idea      The same pairs, but consecutive threads do the work: thread t adds at 2 * stride * t.
// removes   Divergence: warps work as a whole or have nothing to do, until less than a warp is left. And the
//           remainder.
// wrong     The threads of a warp touch memory 2 * stride apart: ever fewer of the bytes that move are used.
// requires  As neighbored.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, reduceNeighboredLess
// moves     branch efficiency up
// faster    than neighbored
// command   python -m torch_reduce.ladder run --rungs neighbored,neighbored_less --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void neighbored_less(T* g_idata, T* g_odata) {
  const unsigned tid = threadIdx.x;
  T* idata = g_idata + int64_t{blockIdx.x} * blockDim.x;
  for (unsigned stride = 1; stride < blockDim.x; stride *= 2) {
    const unsigned index = 2 * stride * tid;  // where this thread adds
    if (index < blockDim.x) idata[index] += idata[index + stride];
    __syncthreads();
  }
  if (tid == 0) g_odata[blockIdx.x] = idata[0];
}

// Differs from the lesson: the scratch copy is filled up with zeros to whole blocks, so that no size loses its tail and no
// thread leaves before a barrier; indices have 64 bits; the kernel runs again on the blocks' sums, which the lesson adds on
// the host.

int run(const Call& call) {
  return run_passes(call, [&](auto* data, auto* partials, int64_t, unsigned blocks) {
    neighbored_less<<<blocks, call.block, 0, stream_of(call)>>>(data, partials);
  });
}

const Register rung("neighbored_less", in_place(1, run));

}  // namespace

}  // namespace gpureduce::ladder
