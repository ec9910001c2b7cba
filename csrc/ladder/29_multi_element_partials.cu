// Rung 29, multi_element_partials. Chapter 4: the modern steps.
//
// threads   As multi_element; N = 1, 2, 4, 8, 16, 32.
// idea      Each block writes its result to a place of its own, as in shared_partials.
// removes   All atomics; with N elements per thread the second pass is short.
// wrong     Nothing that costs much but the second launch.
// requires  A kernel compiled for each N; memory for one result per block.
// source    Items per thread, as in CUB's BlockLoad and BlockReduce; the second launch as in warp_shuffle_partials
// faster    no: there were few atomics, and the memory was nearly busy
// command   python -m torch_reduce.ladder run --rungs multi_element,multi_element_partials --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <int kElements, class Functor, class T>
__global__ void __launch_bounds__(1024) multi_element_partials(Functor op, const T* x, T* out, int64_t n) {
  const int64_t tile = int64_t{blockIdx.x} * blockDim.x * kElements;  // where this block's elements begin
  T values[kElements];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int64_t i = tile + k * blockDim.x + threadIdx.x;
    values[k] = i < n ? x[i] : Functor::kIdentity;
  }
#pragma unroll
  for (int k = 1; k < kElements; ++k) values[0] = Functor::combine(values[0], values[k]);
  const T value = combine_by_shuffles(op, values[0]);
  if (threadIdx.x == 0) out[blockIdx.x] = value;
}

// Differs from the lesson: all loads are written before the first addition, so that they are in flight together; the block
// joins by shuffles; the kernel runs again until one result is left; indices have 64 bits; it takes product, max and min as
// well.

int run(const Call& call) {
  return run_passes_with_op(call, [&](auto op, const auto* x, auto* out, int64_t n, unsigned blocks) {
    with_constant<1, 2, 4, 8, 16, 32>(call.elements, [&](auto elements) {
      multi_element_partials<elements.value><<<blocks, call.block, 0, stream_of(call)>>>(op, x, out, n);
    });
  });
}

const Register rung("multi_element_partials", in_passes({16, 1, 2, 4, 8, 32}, run, kBlocks, kAllOps));

}  // namespace

}  // namespace gpureduce::ladder
