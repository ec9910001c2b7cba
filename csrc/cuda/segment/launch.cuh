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
cudaError_t start_segments(Queue queue, void (*kernel)(Args...), int64_t blocks, int threads, const Args&... args) {
  if (blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  return start_kernel(queue, {static_cast<uint32_t>(blocks)}, threads, 0, kernel, args...);
}

// Whether kernels are compiled for segments of a family's dtypes.
constexpr bool has_segments(Family f) { return f == Family::single || f == Family::half || f == Family::integer; }

// Whether the kernels compiled for a dtype read and write such segments.
inline bool are_typed(const Segments& s) {
  const Reduction& r = s.reduction;
  const bool plain = r.map == Map::value && !r.negate && !r.conjugate && r.accumulator == info(r.in).accumulator;
  return plain && has_segments(info(r.in).family) && is_direct(r.accumulator, r.out);
}

// Elements of a single column, in all or in a segment, that rows' kernel would take longer for.
constexpr int64_t kFewInColumn = 1 << 18, kTinyInColumn = 8;

// Whether all elements of a row lie side by side, and the results do; or there is one column of few elements, in all or in a
// segment, or of elements far apart.
inline bool are_columns(const Segments& s) {
  const Problem& p = s.reduction.problem;
  if (!are_typed(s)) return false;
  if (p.outputs == 1) return s.stride != 1 || s.length <= kFewInColumn || s.length <= s.count * kTinyInColumn;
  return p.kept.size() == 1 && p.kept[0].stride == 1 && p.kept[0].out_stride == 1;
}

inline bool are_rows(const Segments& s) {
  const Problem& p = s.reduction.problem;
  return are_typed(s) && s.stride == 1 && fits_fast_nest(p.kept, p.outputs);
}

struct RowCut {
  int64_t tile, row_tiles, tiles;
  bool joins;  // segments may have chunks in several tiles

  int64_t partials(const Segments& s) const { return joins ? s.reduction.problem.outputs * chunk_slots(s.length) : 0; }
};

inline RowCut rows_cut(const Segments& s, int multiprocessors) {
  const int64_t rows = s.reduction.problem.outputs, in_row = s.length + s.count * kRowWeight, positions = rows * in_row;
  const int64_t warps = int64_t{multiprocessors} * kRowWarps;
  const int64_t rounds = std::max<int64_t>(1, ceil_div(positions, warps * kMostRowTile));
  const int64_t tile = std::max<int64_t>(kLeastRowTile, ceil_div(positions, warps * rounds));
  const int64_t row_tiles = std::max<int64_t>(1, ceil_div(in_row, tile));
  return {tile, row_tiles, rows * row_tiles, row_tiles > 1 && s.length > kChunk};
}

inline SegmentTiles tiles_of(const Segments& s, int64_t tile, int64_t tiles, int weight) {
  return {s.offsets, s.wide, s.count, s.length, tile, tiles, weight, s.result_pitch};
}

template <class Acc>
Acc* partials_of(const SegmentsLaunch& launch) {
  return static_cast<Acc*>(launch.workspace);
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

struct ColumnCut;
// The second kernels, which know accumulators alone and are compiled once for each (../segment.cu).
template <class Acc>
cudaError_t join_rows(const SegmentsLaunch& launch);
template <class Acc>
cudaError_t join_columns(const SegmentsLaunch& launch, const ColumnCut& cut);

template <class Source, class Acc>
cudaError_t launch_segment_rows(const SegmentsLaunch& launch, const Source& source) {
  const Segments& s = launch.segments;
  const Problem& p = s.reduction.problem;
  const RowCut cut = rows_cut(s, launch.multiprocessors);
  const SegmentRowArgs<Source, Acc> args{source,
                                         s.stride,
                                         tiles_of(s, cut.tile, cut.tiles, kRowWeight),
                                         cut.row_tiles,
                                         kept_nest<Source::kRank>(p),
                                         output_of<Acc>(s),
                                         partials_of<Acc>(launch)};
  const int64_t blocks = std::min(cut.tiles, int64_t{kRowWarps} * launch.multiprocessors);
  if (cudaError_t error = start_segments(launch.queue, segment_rows<Source, Acc>, blocks, kWarp, args)) return error;
  if (!cut.joins) return cudaSuccess;
  return join_rows<Acc>(launch);
}

// Threads and blocks of each multiprocessor that are to have work, and tiles that are enough.
constexpr int64_t kThreadsOfEach = 1024, kBlocksOfEach = 2, kTilesOfEach = 16;
// Rows of a segment, in the mean: from which on groups share it, and up to which a thread takes more than one.
constexpr int64_t kLeastShared = 8, kShortMean = 16;

// Columns of a thread: so many times neighbours of one load.
struct ThreadColumns { int vector, sides; };

inline ThreadColumns columns_of_thread(const Segments& s) {
  const Reduction& r = s.reduction;
  const int size = info(r.in).size, vector = segment_vector(size);
  const bool is_aligned = reinterpret_cast<uintptr_t>(r.input) % (vector * size) == 0 && s.stride % vector == 0;
  if (vector > 1 && is_aligned && r.problem.outputs % vector == 0) return {vector, 1};
  const int sides = segment_sides(size);
  return {1, s.length <= s.count * kShortMean && r.problem.outputs > kWarp / 2 * sides ? sides : 1};
}

// Who takes what of columns.
struct ColumnCut {
  int width_bits, part_bits, run, short_rows, piece_bits;
  int64_t column_tiles, tile, tiles, blocks;  // blocks: of short segments

  bool joins(const Segments& s) const { return s.length > 1 << piece_bits; }
  int64_t partials(const Segments& s) const {
    return joins(s) ? s.reduction.problem.outputs * piece_slots(s.length, piece_bits) : 0;
  }
};

inline ColumnCut columns_cut(const Segments& s, const ThreadColumns& of_thread, int multiprocessors) {
  ColumnCut cut{};
  const int64_t threads = ceil_div(s.reduction.problem.outputs, of_thread.vector * of_thread.sides),
                mean = s.length / std::max<int64_t>(1, s.count);
  while (cut.width_bits < 5 && 1 << cut.width_bits < threads) ++cut.width_bits;
  cut.column_tiles = ceil_div(threads, 1 << cut.width_bits);
  const int groups = kColumnThreads >> cut.width_bits;
  // Groups share segments where threads have too little to do without it.
  const auto more = [&](int parts) {
    return parts < groups && 2 * parts <= mean && s.count * threads * parts < int64_t{kThreadsOfEach} * multiprocessors;
  };
  while (mean >= kLeastShared && more(1 << cut.part_bits)) ++cut.part_bits;
  // A group has as many rows as leave all multiprocessors work.
  int part_rows = kPartRows;
  const auto few = [&] {
    return ceil_div(s.length, std::min(kChunk, part_rows * groups)) * cut.column_tiles < kBlocksOfEach * multiprocessors;
  };
  while (part_rows > kLeastPartRows && s.length > kPartRows * groups && few()) part_rows /= 2;
  cut.piece_bits = kChunkBits;
  while (1 << cut.piece_bits > part_rows * groups) --cut.piece_bits;
  cut.short_rows = std::min(1 << cut.piece_bits, kPartRows << cut.part_bits);
  const int64_t units = groups >> cut.part_bits, blocks = ceil_div(s.count, units) * cut.column_tiles;
  const int64_t spare = blocks * kColumnThreads / (int64_t{kThreadsOfEach} * multiprocessors);
  const int64_t run = std::min<int64_t>(spare, kShortMean / (mean + 1)) / kAtOnce * kAtOnce;
  cut.run = static_cast<int>(cut.part_bits > 0 ? 1 : std::max<int64_t>(run, 1));
  cut.blocks = ceil_div(s.count, units * cut.run);
  cut.tile = 1 << cut.piece_bits;
  if (s.length > cut.short_rows) {
    const int64_t enough = int64_t{kTilesOfEach} * multiprocessors;
    while (cut.tile < kMostTileRows && ceil_div(s.length, cut.tile) * cut.column_tiles > enough) cut.tile *= 2;
    cut.tiles = ceil_div(s.length, cut.tile);
  }
  return cut;
}

template <int V, int kSides, class Acc, class Source>
cudaError_t launch_segment_columns(const SegmentsLaunch& launch, const Source& source) {
  const Segments& s = launch.segments;
  const ColumnCut cut = columns_cut(s, {V, kSides}, launch.multiprocessors);
  const int64_t blocks = (cut.tiles + cut.blocks) * cut.column_tiles;
  if (cut.column_tiles > kMaxGrid || cut.tiles + cut.blocks > kMaxGrid) return cudaErrorInvalidConfiguration;
  const SegmentColumnArgs<Source, Acc> args{source,
                                            s.stride,
                                            tiles_of(s, cut.tile, cut.tiles, 0),
                                            s.reduction.problem.outputs,
                                            static_cast<uint32_t>(cut.column_tiles),
                                            cut.width_bits,
                                            cut.part_bits,
                                            cut.run,
                                            cut.short_rows,
                                            cut.piece_bits,
                                            output_of<Acc>(s),
                                            partials_of<Acc>(launch)};
  if (cudaError_t error = start_segments(launch.queue, segment_columns<V, kSides, Source, Acc>, blocks, kColumnThreads, args))
    return error;
  return cut.joins(s) ? join_columns<Acc>(launch, cut) : cudaSuccess;
}

template <class In, class Acc>
cudaError_t segments_of(const SegmentsLaunch& launch) {
  const Segments& s = launch.segments;
  const auto source = Typed<In>::of(s.reduction.input, policy_of(launch), masks_of(s.reduction));
  if (!are_columns(s)) return launch_segment_rows<Typed<In>, Acc>(launch, source);
  const ThreadColumns columns = columns_of_thread(s);
  if (columns.sides > 1) return launch_segment_columns<1, segment_sides(sizeof(In)), Acc>(launch, source);
  if (columns.vector > 1) return launch_segment_columns<segment_vector(sizeof(In)), 1, Acc>(launch, source);
  return launch_segment_columns<1, 1, Acc>(launch, source);
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
