// Reductions whose fastest dim in memory is kept: a thread owns V neighbouring outputs, its columns.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// Blocks a multiprocessor that the compiler is to make room for. With no such word it aims for many more, and saves registers
// by waiting for each load before the next: columns (16384, 4096) float32 then took 73 us on an H200.
template <class Source, class Acc, int V, Walk walk>
constexpr int kColumnBlocks = sizeof(Lanes<typename Source::Element, Acc, V>) <= 32 && walk != Walk::shifted ? 3 : 2;

// One leaf of V columns at any address, up to kLoads elements: each vector is what two aligned ones hold of it. Its neighbour's
// lie in the same lines, so that memory is read once. It may read beyond these columns, but nothing outside of the input.
template <int V, class Source, class Acc>
__device__ __forceinline__ Lanes<typename Source::Element, Acc, V> shifted_leaf(const Args<Source, Acc>& a, int64_t column,
                                                                                int64_t columns, int64_t leaf) {
  using Element = typename Source::Element;
  const int64_t first = leaf_start(leaf), rest = a.length - first, step = kLanes * a.reduced.dims[0].in;
  const int elements = rest > kChunk - kLanes ? kDepth : static_cast<int>((rest + kLanes - 1) / kLanes);
  int64_t at = column + a.template element<Walk::linear>(first);
  Lanes<Element, Acc, V> lanes;
  lanes.clear();
  if (a.source.template within<V>(a.input, at, at + (elements - 1) * step)) {
    Vector<Element, V> x[kDepth], next[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int shift = a.source.template misalignment<V>(at + d * step);
      x[d] = a.source.template load_if<V>(d < elements, at + d * step - shift);
      next[d] = a.source.template load_if<V>(d < elements && shift, at + d * step - shift + V);
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const int shift = a.source.template misalignment<V>(at + d * step);
      x[d].bits = shift_bytes(x[d].bits, next[d].bits, shift * sizeof(Element));
      lanes.add(x[d]);
    }
  } else {
#pragma unroll 1
    for (int d = 0; d < elements; ++d, at += step) {
#pragma unroll
      for (int j = 0; j < V; ++j)
        if (j < columns) lanes.add(j, a.source.template load<1>(at + j)[0]);
    }
  }
  return lanes;
}

// kLeaves neighbouring leaves of V columns, up to kElements elements each, all in flight at once; joined in registers.
template <int V, int kElements, int kLeaves, Walk walk, class Source, class Acc>
__device__ __forceinline__ Lanes<typename Source::Element, Acc, V> column_leaves(const Args<Source, Acc>& a, int64_t column,
                                                                                 int64_t leaf) {
  using Element = typename Source::Element;
  const int64_t first = leaf_start(leaf), rest = a.length - first;
  const int left = rest < kChunk ? static_cast<int>(rest) : kChunk;
  Vector<Element, V> x[kLeaves][kElements];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
#pragma unroll
    for (int d = 0; d < kElements; ++d) {
      const int e = l + d * kLanes;
      x[l][d] = a.source.template load_if<V>(e < left, column + a.template element<walk>(first + e));
    }
  }
  Lanes<Element, Acc, V> lanes[kLeaves];
#pragma unroll
  for (int l = 0; l < kLeaves; ++l) {
    lanes[l].start(x[l][0]);
#pragma unroll
    for (int d = 1; d < kElements; ++d) lanes[l].add(x[l][d]);
  }
#pragma unroll
  for (int width = 1; width < kLeaves; width *= 2) {
#pragma unroll
    for (int l = 0; l < kLeaves; l += 2 * width) lanes[l].add(lanes[l + width]);
  }
  return lanes[0];
}

// A warp reads `warp_columns` threads side by side; what is left of it, and the block's other warps, take further leaves of the
// same columns. Their values are joined across the warp, then through shared memory.
//
// A thread takes `batches` batches (1 to kMaxBatches, a power of two) of kLoads / kElements leaves, one batch in flight after
// the other, and keeps the halves that wait for their neighbour, as a binary counter does.
template <int V, int kElements, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp, (kColumnBlocks<Source, Acc, V, walk>))
    columns(const __grid_constant__ Args<Source, Acc> a) {
  using Batch = Lanes<typename Source::Element, Acc, V>;
  constexpr int kLeaves = kLoads / kElements, kLevels = 3;
  static_assert(1 << kLevels == kMaxBatches);
  __shared__ Acc slots[kMaxColumnWarps][kWarp * V];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  const int width = a.warp_columns, column = lane % width * V, thread_leaves = kLeaves * a.batches;
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int64_t leaf = tile.leaf + (warp * (kWarp / width) + lane / width) * thread_leaves;
    Acc sums[V];
#pragma unroll
    for (int j = 0; j < V; ++j) sums[j] = padding<Acc>();
    if (column < tile.outputs && leaf < a.tiling.leaves) {
      const int64_t base = a.kept.at(tile.output + column).in;
      Batch batch, waiting[kLevels];
#pragma unroll 1
      for (int b = 0; b < a.batches; ++b) {
        if (leaf + b * kLeaves >= a.tiling.leaves) {
          batch.clear();
        } else {
          if constexpr (walk == Walk::shifted) batch = shifted_leaf<V>(a, base, tile.outputs - column, leaf + b);
          else batch = column_leaves<V, kElements, kLeaves, walk>(a, base, leaf + b * kLeaves);
        }
        bool carry = true;
#pragma unroll
        for (int level = 0; level < kLevels; ++level) {
          if (carry && (b >> level & 1)) {
            waiting[level].add(batch);
            batch = waiting[level];
          } else if (carry) {
            waiting[level] = batch;
            carry = false;
          }
        }
      }
#pragma unroll
      for (int j = 0; j < V; ++j) sums[j] = static_cast<Acc>(batch.sum[j]);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sums[j] = warp_join(sums[j], width, kWarp);
    if (lane < width) {
#pragma unroll
      for (int j = 0; j < V; ++j) slots[warp][column + j] = sums[j];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < tile.outputs; c += blockDim.x) {
      Acc v[kMaxColumnWarps];
#pragma unroll
      for (int w = 0; w < kMaxColumnWarps; ++w) v[w] = w < warps ? slots[w][c] : padding<Acc>();
#pragma unroll
      for (int step = 1; step < kMaxColumnWarps; step *= 2) {
#pragma unroll
        for (int w = 0; w < kMaxColumnWarps; w += 2 * step) v[w] = v[w] + v[w + step];
      }
      a.output.write(a.kept, tile.output + c, tile.partial + c * a.tiling.partial_output_stride, v[0]);
    }
    __syncthreads();  // the slots are free again
  }
}

// At most kLoads elements an output: a thread takes all of them, for V outputs.
template <int V, Walk walk, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp, (kColumnBlocks<Source, Acc, V, walk>))
    thin(const __grid_constant__ Args<Source, Acc> a) {
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int column = threadIdx.x * V;
    if (column >= tile.outputs) continue;
    const Offsets offsets = a.kept.at(tile.output + column);
    const auto lanes = column_leaves<V, 1, kLoads, walk>(a, offsets.in, 0);
    Acc v[V];
#pragma unroll
    for (int j = 0; j < V; ++j) v[j] = static_cast<Acc>(lanes.sum[j]);
    if (a.output.partials) {
#pragma unroll
      for (int j = 0; j < V; ++j) a.output.partials[tile.output + column + j] = v[j];
    } else {
      store_results(a.output.result, offsets.out, V > 1 ? a.kept.dims[a.kept.rank - 1].out : 0, a.output.dtype, v);
    }
  }
}

}  // namespace gpureduce::cuda
