// From segments to launches.
#pragma once

#include <cuda/annotated_ptr>

#include <algorithm>

#include "columns.cuh"
#include "rows.cuh"
#include "segment.h"

namespace gpureduce::cuda {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class... Args>
cudaError_t start_segments(const SegmentsLaunch& launch, void (*kernel)(Args...), int64_t blocks, int threads,
                           const Args&... args) {
  if (blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  return start_kernel({launch.stream, launch.early}, {static_cast<uint32_t>(blocks)}, threads, 0, kernel, args...);
}

// Whether kernels are compiled for segments of a family's dtypes.
constexpr bool has_segments(Family f) { return f == Family::single || f == Family::half || f == Family::integer; }

// Whether the kernels compiled for a dtype read and write such segments.
inline bool are_typed(const Segments& s) {
  const Reduction& r = s.reduction;
  const bool plain = r.map == Map::value && !r.negate && !r.conjugate && r.accumulator == info(r.in).accumulator;
  return plain && has_segments(info(r.in).family) && is_direct(r.accumulator, r.out);
}

// Whether all elements of a row lie side by side, and the results do.
inline bool are_columns(const Segments& s) {
  const Problem& p = s.reduction.problem;
  return are_typed(s) && p.kept.size() == 1 && p.kept[0].stride == 1 && p.kept[0].out_stride == 1;
}

inline bool are_rows(const Segments& s) {
  const Problem& p = s.reduction.problem;
  return are_typed(s) && s.stride == 1 && fits_fast_nest(p.kept, p.outputs);
}

// How segments are cut, and what that needs of the workspace: a record for each tile, and then the partial sums.
struct SegmentCut {
  int64_t weight, tile, row_tiles, tiles, partials, record;
  bool joins;  // segments may have several items, or there are several tiles to look at

  int64_t record_bytes() const { return joins ? (tiles * record + kGranule - 1) / kGranule * kGranule : 0; }
};

constexpr int kBlocksOfEach = 8;  // multiprocessor, of columns: at most, and at least where tiles are no smaller for it

inline SegmentCut rows_cut(const Segments& s, int multiprocessors) {
  const int64_t rows = s.reduction.problem.outputs, in_row = s.length + s.count * kRowWeight, positions = rows * in_row;
  const int64_t warps = int64_t{multiprocessors} * kRowWarps;
  const int64_t rounds = std::max<int64_t>(1, ceil_div(positions, warps * kMostRowTile));
  const int64_t tile = std::max<int64_t>(kLeastRowTile, ceil_div(positions, warps * rounds));
  const int64_t row_tiles = std::max<int64_t>(1, ceil_div(in_row, tile)), partials = 2 * rows * (s.length / kChunk + 1);
  return {kRowWeight, tile, row_tiles, rows * row_tiles, partials, int64_t{sizeof(int64_t)}, row_tiles > 1};
}

inline SegmentTiles tiles_of(const SegmentsLaunch& launch, const SegmentCut& cut, int64_t rows) {
  const Segments& s = launch.segments;
  TileRecord* const records = cut.joins ? static_cast<TileRecord*>(launch.workspace) : nullptr;
  return {s.offsets, s.wide,        s.count,
          s.length,  rows,          s.length + s.count * cut.weight,
          cut.tile,  cut.tiles,     static_cast<int32_t>(cut.weight),
          records,   s.result_pitch};
}

template <class Acc>
Acc* partials_of(const SegmentsLaunch& launch, const SegmentCut& cut) {
  return reinterpret_cast<Acc*>(static_cast<char*>(launch.workspace) + cut.record_bytes());
}

template <class Acc>
SegmentOutput<Acc> output_of(const Segments& s) {
  return {s.reduction.output, s.reduction.out, s.reduction.finish};
}

inline uint64_t policy_of(const SegmentsLaunch& launch) {
  using ::cuda::access_property;
  const Reduction& r = launch.segments.reduction;
  const bool streams = r.problem.outputs * launch.segments.length * info(r.in).size > launch.l2_bytes / 4;
  return static_cast<uint64_t>(streams ? access_property(access_property::streaming{}) : access_property());
}

inline int64_t join_blocks(int64_t tiles) { return ceil_div(tiles, kJoinWarps * kJoinTiles); }

// The second kernels, which know accumulators alone and are compiled once for each (../segment.cu).
template <class Acc>
cudaError_t join_rows(const SegmentsLaunch& launch);
template <class Acc>
cudaError_t join_columns(const SegmentsLaunch& launch, int vector);

template <class Source, class Acc>
cudaError_t launch_segment_rows(const SegmentsLaunch& launch, const Source& source) {
  const Segments& s = launch.segments;
  const Problem& p = s.reduction.problem;
  const SegmentCut cut = rows_cut(s, launch.multiprocessors);
  const SegmentRowArgs<Source, Acc> args{source,
                                         s.stride,
                                         tiles_of(launch, cut, p.outputs),
                                         cut.row_tiles,
                                         kept_nest<Source::kRank>(p),
                                         output_of<Acc>(s),
                                         cut.joins ? static_cast<int64_t*>(launch.workspace) : nullptr,
                                         partials_of<Acc>(launch, cut)};
  const int64_t blocks = std::min(cut.tiles, int64_t{kRowWarps} * launch.multiprocessors);
  if (cudaError_t error = start_segments(launch, segment_rows<Source, Acc>, blocks, kWarp, args)) return error;
  if (!cut.joins) return cudaSuccess;
  return join_rows<Acc>(launch);
}

// Columns, by groups of so many threads of V columns each.
struct ColumnTiles {
  int width, groups;
  int64_t count;
};

inline ColumnTiles column_tiles(const Segments& s, int vector) {
  const int64_t threads = ceil_div(s.reduction.problem.outputs, vector);
  int width = kLeastWidth;
  while (width < kWarp && width < threads) width *= 2;
  return {width, kColumnThreads / width, ceil_div(threads, width)};
}

// A tile has a part for each group of threads, or less where there would be few blocks.
inline SegmentCut columns_cut(const Segments& s, const ColumnTiles& c, int multiprocessors) {
  const int64_t positions = s.length + s.count * kColumnWeight;
  const int64_t share = ceil_div(positions * c.count, int64_t{kBlocksOfEach} * multiprocessors);
  const int64_t tile = c.groups * std::clamp<int64_t>(share / c.groups, kColumnWeight, kPartRows);
  const int64_t tiles = ceil_div(positions, tile);
  const int64_t partials = 2 * (s.length / (kLeastGroups * kPartRows / 2) + 1) * s.reduction.problem.outputs;
  return {kColumnWeight, tile, tiles, tiles, partials, int64_t{sizeof(TileRecord)}, tiles > 1 || s.length > kChunk};
}

template <int V, class Acc, class Source>
cudaError_t launch_segment_columns(const SegmentsLaunch& launch, const Source& source) {
  const Segments& s = launch.segments;
  const ColumnTiles columns = column_tiles(s, V);
  const SegmentCut cut = columns_cut(s, columns, launch.multiprocessors);
  const int64_t outputs = s.reduction.problem.outputs;
  if (columns.count > kMaxGrid) return cudaErrorInvalidConfiguration;
  const SegmentColumnArgs<Source, Acc> args{source,
                                            s.stride,
                                            tiles_of(launch, cut, 1),
                                            outputs,
                                            static_cast<uint32_t>(columns.count),
                                            columns.width,
                                            __builtin_ctz(columns.groups),
                                            output_of<Acc>(s),
                                            partials_of<Acc>(launch, cut)};
  const int64_t most = std::max<int64_t>(1, int64_t{kBlocksOfEach} * launch.multiprocessors / columns.count);
  const int64_t blocks = std::min(cut.tiles, most) * columns.count;
  if (cudaError_t error = start_segments(launch, segment_columns<V, Source, Acc>, blocks, kColumnThreads, args)) return error;
  if (!cut.joins) return cudaSuccess;
  return join_columns<Acc>(launch, V);
}

// Columns of a thread, where all of its loads are aligned.
inline int vector_of(const Segments& s) {
  const Reduction& r = s.reduction;
  const int size = info(r.in).size, vector = segment_vector(size, size_of(r.accumulator));
  const bool is_aligned = reinterpret_cast<uintptr_t>(r.input) % (vector * size) == 0 && s.stride % vector == 0;
  return is_aligned && r.problem.outputs % vector == 0 ? vector : 1;
}

template <class In, class Acc>
cudaError_t segments_of(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const auto source = Typed<In>::of(s.reduction.input, policy_of(launch), masks_of(s.reduction));
  if (are_rows(s)) return launch_segment_rows<Typed<In>, Acc>(launch, source);
  if (vector_of(s) == 1) return launch_segment_columns<1, Acc>(launch, source);
  return launch_segment_columns<segment_vector(sizeof(In), sizeof(Acc)), Acc>(launch, source);
}

template <Family family>
cudaError_t segments_of_family(const SegmentsLaunch& launch) {
  switch (launch.segments.reduction.in) {
#define GPUREDUCE_SEGMENTS(name, type, kind, own, wide, kernels)                                                \
  case DType::name:                                                                                             \
    if constexpr (Family::kernels == family) return segments_of<Compiled<type>, Sum<Accumulator::own>>(launch); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_SEGMENTS)
#undef GPUREDUCE_SEGMENTS
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
