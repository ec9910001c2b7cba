// Reductions whose fastest dim in memory is kept and short, with its rows dense, one behind the other. The elements that a run
// of neighbouring leaves has at one depth, in all columns, are then one piece of memory, aligned if the run is: a block reads
// it as a flat array, whatever the width.
#pragma once

#include "../args.cuh"

namespace gpureduce::cuda {

// The elements of a run of leaves, all in one chunk: where the chunk begins, and in it the run's first and the end of all
// columns' elements.
struct Piece {
  int64_t chunk;
  int first, end;
};

// A block takes tiles: up to kMaxBatches runs of leaves of all columns, one after the other. A thread adds up the lanes of its
// vectors, which for many widths belong to several leaves, and hands them over in shared memory. While the block joins a run
// there, column by column, its loads for the next run are in flight.
template <int V, class Source, class Acc>
__global__ void __launch_bounds__(kMaxColumnWarps* kWarp,
                                  (narrow_wave(sizeof(Lanes<typename Source::Element, Acc, V>) / 4) / kMaxColumnWarps))
    narrow_columns(const __grid_constant__ Args<Source, Acc> a) {
  using Element = typename Source::Element;
  using Batch = Lanes<Element, Acc, V>;
  using LaneSum = typename Batch::LaneSum;
  extern __shared__ __align__(128) char memory[];
  const auto& columns = a.kept.dims[a.kept.rank - 1];
  const int thread = threadIdx.x, threads = blockDim.x, width = static_cast<int>(columns.size), depth = kLanes * width;
  const int run_leaves = a.tiling.tile_leaves / a.batches, vectors = run_leaves * width / V;
  const LaneSums<LaneSum> sums{reinterpret_cast<LaneSum*>(memory)};
  LaneSum* totals = reinterpret_cast<LaneSum*>(memory + whole_lines(run_leaves * width * sizeof(LaneSum)));
  wait_for_previous_kernel();
  allow_next_kernel();
  for (int64_t index = blockIdx.x; index < a.tiling.tiles; index += gridDim.x) {
    const Tile tile = a.tiling.tile(static_cast<uint32_t>(index));
    const int64_t base = a.kept.at(tile.output).in;
    const int runs = static_cast<int>((tile.leaves + run_leaves - 1) / run_leaves);
    const auto piece_of = [&](int run) -> Piece {
      if (run >= runs) return {0, 0, 0};
      const int64_t leaf = tile.leaf + run * run_leaves, chunk = leaf / kLanes * kChunk, left = a.length - chunk;
      return {base + chunk * width, static_cast<int>(leaf % kLanes) * width,
              static_cast<int>(left < kChunk ? left : kChunk) * width};
    };
    Vector<Element, V> x[kDepth];
    const auto load = [&](const Piece& piece, int v) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        const int e = piece.first + v * V + d * depth;
        x[d] = a.source.template load_if<V>(e + V <= piece.end, piece.chunk + e);
      }
    };
    Piece piece = piece_of(0);
    if (thread < vectors) load(piece, thread);
    for (int run = 0; run < runs; ++run) {
      const Piece next = piece_of(run + 1);
      for (int v = thread; v < vectors; v += threads) {
        Batch lanes;
        lanes.start(x);
        if (const int tail = piece.end % V) {  // the chunk's last vector is no whole one: one thread adds its elements
          const int e = piece.end - tail, above = e - piece.first - v * V;
          if (above >= 0 && above % depth == 0) {
#pragma unroll
            for (int j = 0; j < V - 1; ++j)
              if (j < tail) lanes.add(j, a.source.template load<1>(piece.chunk + e + j)[0]);
          }
        }
        if (v + threads < vectors) load(piece, v + threads);
        else load(next, thread);
        sums.put(v * V, lanes.sum);
      }
      __syncthreads();
      // Eight neighbours of a column a thread; consecutive threads take consecutive columns.
      for (int step = 1; step < run_leaves; step *= kJoinRun) {
        const int left = run_leaves / step, groups = left > kJoinRun ? left / kJoinRun : 1;
        for (int i = thread; i < groups * width; i += threads) {
          const int group = columns.divide(i), column = i - group * width, first = group * kJoinRun;
          LaneSum v[kJoinRun];
#pragma unroll
          for (int j = 0; j < kJoinRun; ++j)
            v[j] = first + j < left ? sums[(first + j) * step * width + column] : padding<LaneSum>();
          const LaneSum sum = join_neighbours(v);
          if (groups > 1) sums[first * step * width + column] = sum;
          else totals[run * width + column] = sum;
        }
        __syncthreads();
      }
      piece = next;
    }
    for (int column = thread; column < width; column += threads) {
      Acc v[kMaxBatches];
#pragma unroll
      for (int r = 0; r < kMaxBatches; ++r) v[r] = r < runs ? static_cast<Acc>(totals[r * width + column]) : padding<Acc>();
      a.output.write(a.kept, tile.output + column, tile.partial + column * a.tiling.partial_output_stride, join_neighbours(v));
    }
  }
}

}  // namespace gpureduce::cuda
