// Rung 25, multi_element. Chapter 4: the modern steps.
//
// threads   N elements a thread, a block apart; N = 1, 2, 4, 8, 16, 32.
// idea      N loads in flight a thread, and one tree for N times the elements.
// removes   All but one N-th of the blocks, their barriers and their atomics.
// wrong     Nothing that costs much: the memory is nearly busy. A float's sum still depends on the order in which
//           blocks arrive.
// requires  A kernel compiled for each N; an output that holds the identity.
// source    Items a thread, as in CUB's BlockLoad and BlockReduce; thread coarsening in Programming Massively
//           Parallel Processors (Hwu, Kirk, El Hajj), chapter 10
// moves     DRAM read throughput up
// faster    than warp_shuffle
// command   python -m torch_reduce.ladder run --rungs warp_shuffle,multi_element --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <int kElements, class Functor, class T>
__global__ void __launch_bounds__(1024) multi_element(Functor op, const T* x, T* out, int64_t n) {
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
  if (threadIdx.x == 0) combine_atomically(op, out, value);
}

// Differs from the lesson: all loads are written before the first addition, so that they are in flight together, where the
// book adds in a loop; the block joins by shuffles, where the book has a tree in shared memory; indices have 64 bits; product,
// max and min join the blocks by compare-and-swap, since not every type has such an atomic.

int run(const Call& call) {
  return with_op(call, [&](auto op, const auto* x, auto* out) {
    with_constant<1, 2, 4, 8, 16, 32>(call.elements, [&](auto elements) {
      multi_element<elements.value><<<blocks_of(call), call.block, 0, stream_of(call)>>>(op, x, out, call.n);
    });
  });
}

const Register rung("multi_element", with_atomics({16, 1, 2, 4, 8, 32}, run));

}  // namespace

}  // namespace gpureduce::ladder
