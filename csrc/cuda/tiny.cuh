// Dense rows of a few elements.
#pragma once

#include "args.cuh"

namespace gpureduce::cuda {

// A thread takes V rows of kLength elements at a time: as many vectors, which lie one after the other. Its neighbours' lie in
// the same lines, which the first load brings into the cache for the others.
template <int V, int kLength, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp) tiny_rows(const __grid_constant__ Args<Source, Acc> a) {
  using Element = typename Source::Element;
  using LaneSum = Lane<Element, Acc>;
  constexpr int kPadded = kLength <= 2 ? 2 : kLength <= 4 ? 4 : 8, kRuns = tiny_runs(kLength);
  const int64_t stride = a.kept.dims[0].out;
  wait_for_previous_kernel();
  allow_next_kernel();
  TileLoop loop;
  do {
    const Tile tile = loop.tile(a.tiling);
    Vector<Element, V> x[kRuns][kLength];
    const auto first_row = [&](int run) { return static_cast<int>(run * blockDim.x + threadIdx.x) * V; };  // of the tile
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int64_t row = tile.output + first_row(run);
#pragma unroll
      for (int e = 0; e < kLength; ++e)
        x[run][e] = a.source.template load_if<V>(first_row(run) + V <= tile.outputs, row * kLength + e * V);
    }
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      const int64_t row = tile.output + first_row(run);
      LaneSum addends[kLength][V];
#pragma unroll
      for (int e = 0; e < kLength; ++e) unpack(x[run][e], addends[e]);
      Acc sums[V];
#pragma unroll
      for (int r = 0; r < V; ++r) {
        LaneSum v[kPadded];
#pragma unroll
        for (int e = 0; e < kPadded; ++e) {
          const int place = r * kLength + e;
          v[e] = e < kLength ? addends[place / V % kLength][place % V] : padding<LaneSum>();
        }
        sums[r] = static_cast<Acc>(join_neighbours(v));
      }
      if (first_row(run) + V <= tile.outputs) {
        a.output.write_neighbours(row * stride, stride, row, sums);
      } else {
        for (int64_t r = row; r < tile.output + tile.outputs; ++r) {  // the last rows, which are no whole vectors
          LaneSum v[kPadded];
#pragma unroll
          for (int e = 0; e < kPadded; ++e)
            v[e] = e < kLength ? addend<LaneSum>(a.source.template load<1>(r * kLength + e)[0]) : padding<LaneSum>();
          a.output.write_at(r * stride, r, static_cast<Acc>(join_neighbours(v)));
        }
      }
    }
  } while (loop.next(a.tiling));
}

}  // namespace gpureduce::cuda
