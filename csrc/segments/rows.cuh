// Segments whose elements lie one stride apart, each reduced to one number. A warp owns a tile, which is a run of positions
// (places.cuh). The elements of its segments are contiguous, so they stream through a ring in shared memory, which bulk
// copies fill far ahead, whatever the segments' lengths are. From there they are read at any alignment. A thread sums a tiny
// segment, and the warp sums the others, chunk by chunk. A second kernel joins the chunks of segments that several warps have.
//
// For example 100 rows of float32 with segments of 3, 100 and 5000 elements, in tiles of 256 positions. The segments have the
// positions 0, 7 and 111, and the last one's second chunk has position 4207. So the warp of a row's tile 0 takes elements
// 0-4198, which arrive in stages of 1024. Thread 1 joins the 3 elements of the first segment. The whole warp sums the 100
// elements of the second one: thread 0 loads numbers 0, 32, 64 and 96, and shuffles join all threads. Threads 1 and 2 write
// both results. In the first chunk of the third segment thread 0 adds lanes 0, 32, ..., 480. Shuffles join the 512 lanes, and
// thread 0 stores a partial sum. The warp of tile 16 does the same with the other 904 elements. In the second kernel the warp
// of tile 0 joins both partial sums and writes the result.
#pragma once

#include "../core/cuda/bulk.cuh"
#include "entries.cuh"

namespace gpureduce::cuda {

constexpr int kConvertedRowWarps = 16;  // warps per multiprocessor, if elements are converted
constexpr int kRingBytes = 8192, kStageBytes = 4096, kStages = kRingBytes / kStageBytes;
constexpr int kRowGroups = kLanes / kWarp;
constexpr int kShort = 4 * kWarp;  // most elements of a segment that a warp takes with its neighbours
constexpr int kTiny = kWarp;       // most elements of a segment that one thread takes
constexpr int kTinyBatch = 8;      // elements that this thread joins at once
constexpr int kSegmentsAhead = 256;

template <class Source, class Acc>
struct SegmentRowArgs {
  Source source;
  std::conditional_t<is_converted<Source>, AnyRows<Acc>, OwnRows> entries;
  SegmentTiles tiles;
  int64_t row_tiles;         // tiles per row: no tile has segments of two rows
  Nest<Source::kRank> kept;  // of rows
  SegmentOutput<Acc> output;
  Acc* partials;
};

// Streams elements `begin` to `end` of a row to a warp, in order. A place is an index into the stream.
template <class Source, class Acc>
class RowStream {
  using Element = std::remove_const_t<std::remove_pointer_t<decltype(Source::base)>>;
  static constexpr int kSize = sizeof(Element), kInGranule = kGranule / kSize, kInLine = kLine / kSize;

 public:
  static constexpr int kMost = kRingBytes / 2 / kSize;                // most elements that are in the ring together
  static constexpr int kStep = kLanes * (kSize < 4 ? 4 / kSize : 1);  // elements of a chunk that are taken together
  static_assert(kStep * kSize <= kRingBytes / 2);
  static constexpr bool kHolds = holds_numbers<Source>;  // addends are exponentials
  struct Shared {
    char ring[kRingBytes];
    uint64_t full[kStages];
  };

  __device__ __forceinline__ RowStream(Shared& shared, const SegmentRowArgs<Source, Acc>& a)
      : shared_(shared), source_(a.source) {
#if __CUDA_ARCH__ >= 900
    if (lane() == 0)
      for (int s = 0; s < kStages; ++s) ::cuda::ptx::mbarrier_init(shared.full + s, 1);
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
    __syncwarp();
#endif
  }

  // `row`: where the row begins. Returns the place of `begin`.
  __device__ __forceinline__ int start(int64_t row, int64_t length, int64_t begin, int64_t end) {
    // Stages begin at lines, in shared memory as in global memory.
    const int shift = misalignment<kInLine>(source_.base + row + begin), whole = shift / kInGranule * kInGranule;
    wait(INT32_MAX);
    begin_ = row + begin - shift;
    end_ = end > begin ? static_cast<int>(end - begin) + shift : 0;
    // Only granules whose elements are all of this row are copied; elements of the others are read one by one.
    low_ = shift - whole > begin ? whole + kInGranule : whole;
    const int past_end = misalignment<kInGranule>(source_.base + row + length);
    high_ = static_cast<int>(min(row + length - past_end - begin_, int64_t{(end_ + kInGranule - 1) / kInGranule * kInGranule}));
    before_ += filled_;
    stages_ = (end_ + kStage - 1) / kStage;
    filled_ = waited_ = 0;
    __syncwarp();
    if (end_ > 0) put(shift, min(low_, end_));
#pragma unroll 1
    while (filled_ < min(stages_, kStages)) fill();
    return shift;
  }

  // Waits until all elements before a place have arrived. Nobody waits for a stage that is not filled, wherever offsets that
  // someone changes meanwhile say that a segment is.
  __device__ __forceinline__ void wait(int end) {
#pragma unroll 1
    for (; waited_ < filled_ && waited_ * kStage < end; ++waited_) {
#if __CUDA_ARCH__ >= 900
      const uint32_t stage = before_ + waited_;
      wait_for_bytes(shared_.full + stage % kStages, stage / kStages & 1);
#endif
    }
    __syncwarp();
  }
  // The element at a place, or padding if not `wanted`; as resolve() takes it.
  __device__ __forceinline__ Vector<Acc, 1> taken(bool wanted, int place) const {
    Vector<Acc, 1> x;
    x.set(0, wanted ? counted(*at(place)) : padding<Acc>());
    return x;
  }
  // The ring holds elements as they are in memory.
  __device__ __forceinline__ Acc counted(Element element) const {
    if constexpr (kHolds) {
      return addend<Acc>(Exponential<Element, Acc>{element, largest_});
    } else {
      if constexpr (Source::kMasks) {
        Vector<Element, 1> x;
        x.set(0, element);
        element = source_.counted(x)[0];
      }
      return addend<Acc>(element);
    }
  }
  // The largest element of the segment whose result is at an index.
  __device__ __forceinline__ Acc largest(bool wanted, int64_t index) const {
    if constexpr (kHolds) return source_.template holding<1>(wanted, 0, index).numbers[0];
    else return {};
  }
  // The elements taken from here on are of the segment with this largest one.
  __device__ __forceinline__ void hold(Acc largest) { largest_ = largest; }
  __device__ __forceinline__ void weigh(bool, int, Acc&) const {}
  __device__ __forceinline__ Element* at(int place) const {
    return reinterpret_cast<Element*>(shared_.ring + (before_ * kStageBytes + place * kSize) % kRingBytes);
  }
  // True if the kStep elements from a place on are contiguous in the ring.
  __device__ __forceinline__ bool is_straight(int place) const {
    return (before_ * kStageBytes + place * kSize) % kRingBytes <= kRingBytes - kStep * kSize;
  }
  // Elements before a place are no longer needed, and their stages are filled anew.
  __device__ __forceinline__ void release(int end) {
    __syncwarp();
#pragma unroll 1
    while (filled_ < stages_ && (filled_ - kStages + 1) * kStage <= end) fill();
  }

 private:
  static constexpr int kStage = kStageBytes / kSize;
  static __device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }
  // Reads elements one by one, fewer than a granule's.
  __device__ __forceinline__ void put(int begin, int end) const {
    const int i = begin + lane();
    if (i < end) *at(i) = load_vector<Element, 1>(source_.base + begin_ + i, source_.policy)[0];
  }
  __device__ __forceinline__ void fill() {
    const int begin = max(filled_ * kStage, low_), end = min((filled_ + 1) * kStage, high_);
#if __CUDA_ARCH__ >= 900
    if (lane() == 0) {
      uint64_t* const full = shared_.full + (before_ + filled_) % kStages;
      const uint32_t bytes = end > begin ? (end - begin) * kSize : 0;
      expect_bytes(full, bytes);
      if (bytes > 0) bulk_copy(at(begin), source_.base + begin_ + begin, bytes, full, source_.policy);
    }
#else
    for (int i = begin + lane() * kInGranule; i < end; i += kWarp * kInGranule)
      reinterpret_cast<Vector<Element, kInGranule>*>(at(i))->bits =
          load_vector<Element, kInGranule>(source_.base + begin_ + i, source_.policy).bits;
#endif
    if (++filled_ == stages_) put(max(high_, static_cast<int>(low_)), end_);
  }

  Shared& shared_;
  const Source& source_;
  Acc largest_{};
  int64_t begin_ = 0;  // where place 0 is
  int end_ = 0, low_ = 0, high_ = 0;
  int stages_ = 0, filled_ = 0, waited_ = 0;
  uint32_t before_ = 0;  // stages of earlier streams, which have all arrived
};

// Elements of any dtype, read when they are needed. The accumulator is complex or an integer: real numbers are added in the
// real part of a complex one.
template <class Acc>
class RowStream<Converted<Acc>, Acc> {
  using Real = typename RealOf<Acc>::type;

 public:
  static constexpr int kMost = kWarp * kShort, kStep = 0;
  static constexpr bool kHolds = IsComplex<Acc>::value;  // addends may be exponentials
  struct Shared {};

  __device__ __forceinline__ RowStream(Shared&, const SegmentRowArgs<Converted<Acc>, Acc>& a)
      : source_(a.source), entries_(a.entries) {}
  __device__ __forceinline__ int start(int64_t row, int64_t length, int64_t begin, int64_t) {
    row_ = row;
    begin_ = begin;
    last_ = length - 1;
    return 0;
  }
  __device__ __forceinline__ void wait(int) const {}
  __device__ __forceinline__ void release(int) const {}
  __device__ __forceinline__ auto taken(bool wanted, int place) const {
    return source_.template load_if<1>(wanted, row_ + (wanted ? entries_.place(entry(place)) : 0));
  }
  __device__ __forceinline__ void weigh(bool wanted, int place, Acc& v) const {
    if (!wanted) return;
    if (entries_.weights) entries_.weigh(entry(place), v);
    if constexpr (kHolds)
      if (entries_.largest) v.re = exponentiated(v.re - largest_);
  }
  __device__ __forceinline__ Real largest(bool wanted, int64_t index) const {
    return kHolds && wanted && entries_.largest ? entries_.largest[index] : Real{};
  }
  __device__ __forceinline__ void hold(Real largest) { largest_ = largest; }

 private:
  // An entry of the row, whatever became of the offsets since the tile was found.
  __device__ __forceinline__ int64_t entry(int place) const { return min(max(begin_ + place, int64_t{0}), last_); }

  const Converted<Acc>& source_;
  const AnyRows<Acc>& entries_;
  Real largest_{};
  int64_t row_ = 0, begin_ = 0, last_ = 0;
};

template <class Stream>
using TakenFrom = decltype(std::declval<const Stream&>().taken(true, 0));

// A warp sums `length` elements from a place on, a chunk at most.
template <class Acc, class Stream>
__device__ __forceinline__ Acc chunk_sum(Stream& in, int first, int length) {
  const int lane = threadIdx.x % kWarp;
  constexpr int kGroups = kRowGroups;
  Acc v[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) v[g] = padding<Acc>();
  int done = 0;
#pragma unroll 1
  while (done < length) {
    const int begin = first + done;
    if constexpr (Stream::kStep > 0) {
      if (length - done >= Stream::kStep && in.is_straight(begin)) {
        in.wait(begin + Stream::kStep);
        const auto* const lane_elements = in.at(begin + lane);
#pragma unroll
        for (int i = 0; i < Stream::kStep; i += kWarp)
          v[i / kWarp % kGroups] = v[i / kWarp % kGroups] + in.counted(lane_elements[i]);
        done += Stream::kStep;
        in.release(first + done);
        continue;
      }
    }
    const int here = min(length - done, kLanes);
    in.wait(begin + here);
    TakenFrom<Stream> x[1][kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) x[0][g] = in.taken(g * kWarp + lane < here, begin + g * kWarp + lane);
    const auto& addends = resolve(x);
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      Acc addend = addends[0][g][0];
      in.weigh(g * kWarp + lane < here, begin + g * kWarp + lane, addend);
      v[g] = v[g] + addend;
    }
    done += here;
    in.release(first + done);
  }
  return warp_join_groups(v);
}

// The same for up to kShort elements, which have arrived.
template <class Acc, class Stream>
__device__ __forceinline__ Acc short_sum(const Stream& in, int first, int length) {
  const int lane = threadIdx.x % kWarp;
  TakenFrom<Stream> x[1][kShort / kWarp];
#pragma unroll
  for (int g = 0; g < kShort / kWarp; ++g) x[0][g] = in.taken(g * kWarp + lane < length, first + g * kWarp + lane);
  const auto& addends = resolve(x);
  Acc v[kShort / kWarp];
#pragma unroll
  for (int g = 0; g < kShort / kWarp; ++g) {
    v[g] = addends[0][g][0];
    in.weigh(g * kWarp + lane < length, first + g * kWarp + lane, v[g]);
  }
  return warp_join_groups(v);
}

// Sums one segment per thread, in batches of kTinyBatch elements. All threads take the batches that `most` elements need, and
// no segment is longer than these. Each thread XORs its indices with a number, so that segments of equal length cause no bank
// conflicts. The XOR only swaps left and right neighbours in the tree, so the sum keeps its bits.
template <class Acc, class Stream>
__device__ __forceinline__ Acc tiny_sum(const Stream& in, int first, int length, int most) {
  const int lane = threadIdx.x % kWarp, turn = length > 1 ? lane & ((2 << (31 - __clz(length - 1))) - 1) : 0;
  const auto batch = [&](int b) {
    TakenFrom<Stream> x[1][kTinyBatch];
#pragma unroll
    for (int j = 0; j < kTinyBatch; ++j) {
      const int e = (b * kTinyBatch + j) ^ turn;
      x[0][j] = in.taken(e < length, first + e);
    }
    const auto& addends = resolve(x);
    Acc v[kTinyBatch];
#pragma unroll
    for (int j = 0; j < kTinyBatch; ++j) {
      const int e = (b * kTinyBatch + j) ^ turn;
      v[j] = addends[0][j][0];
      in.weigh(e < length, first + e, v[j]);
    }
    return join_neighbours(v);
  };
  Acc left = padding<Acc>(), v = left;
#pragma unroll 1
  for (int b = 0; b * kTinyBatch < most; ++b) {
    const Acc x = batch(b);
    if (b < 2) left = left + x;
    else v = v + x;
  }
  return left + v;
}

template <class Source, class Acc>
__global__ void __launch_bounds__(kWarp, is_converted<Source> ? kConvertedRowWarps : kRowWarps)
    segment_rows(const __grid_constant__ SegmentRowArgs<Source, Acc> a) {
  using Stream = RowStream<Source, Acc>;
  __shared__ __align__(kLine) typename Stream::Shared shared;
  const int lane = threadIdx.x % kWarp;
  const SegmentTiles& t = a.tiles;
  Stream in(shared, a);
  wait_for_previous_kernel();
  allow_next_kernel();

#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < t.tiles; tile += gridDim.x) {
    const int64_t row = a.row_tiles == t.tiles ? 0 : tile / a.row_tiles, in_row = tile - row * a.row_tiles;
    const int64_t tile_begin = in_row * t.tile, tile_end = tile_begin + t.tile;
    const Offsets kept = a.kept.at(row);
    const auto write = [&](int64_t number, int64_t length, Acc v) {
      Acc one[1] = {v};
      a.output.template write<is_converted<Source>>(kept.out + number * t.result_pitch, length, one);
    };

    // Finds the segments that begin in the tile. The end of a tile is found as the begin of the next one is, so none is left
    // out.
    int64_t found[2];
    t.first_at({tile_begin, tile_end}, found);
    const int64_t first = in_row == 0 ? 0 : found[0], end = in_row == a.row_tiles - 1 ? t.segments : found[1];
    assert(first <= end && "offsets: each must be no less than the one before");
    // Looks up three segments at once: the one before the first, the first, and the last.
    const int64_t looked = lane == 0 ? first - 1 : lane == 1 ? first : end - 1;
    const SegmentPlace found_places = t.place(looked);
    SegmentEnds next = t.ends(first - 1 + lane);
    const auto place_by = [&](int lane) {
      SegmentPlace s;
      s.begin = shuffle(found_places.begin, lane);
      s.length = shuffle(found_places.length, lane);
      s.position = shuffle(found_places.position, lane);
      return s;
    };
    const SegmentPlace before = place_by(0), last = place_by(2);
    const int64_t first_begin = shuffle(found_places.begin, 1);
    const int64_t chunk = first > 0 ? before.chunks_before(tile_begin) : 0;  // of the segment before the first
    const int64_t chunk_end = first > 0 ? before.chunks_before(tile_end) : 0;
    int64_t begin = before.begin + chunk * kChunk, stop = min(before.begin + chunk_end * kChunk, before.begin + before.length);
    if (first < end) {
      if (chunk == chunk_end) begin = first_begin;
      stop = min(last.begin + last.chunks_before(tile_end) * kChunk, last.begin + last.length);
    }
    if (first == end && chunk == chunk_end) continue;
    stop = min(stop, begin + t.tile + kChunk);  // even if offsets do not ascend
    const int origin = in.start(kept.in, t.length, begin, stop);
    const auto place_of = [&](int64_t element) { return origin + static_cast<int>(element - begin); };

    // Takes 32 segments at a time. Before the first one comes the rest of the segment that began in an earlier tile.
#pragma unroll 1
    for (int64_t base = first - 1; base < end; base += kWarp) {
      const auto [lane_begin, lane_end] = next;
      t.check({lane_begin, lane_end});
      const auto largest = in.largest(base + lane >= 0 && base + lane < end, kept.out + (base + lane) * t.result_pitch);
      const auto hold_largest_of = [&](int which) {
        if constexpr (Stream::kHolds) in.hold(shuffle(largest, which));
      };
      const bool is_rest = base < first;
      const int count = static_cast<int>(min(end - base, int64_t{kWarp}));
      const int length = static_cast<int>(min(lane_end - lane_begin, int64_t{kShort + 1})), from = place_of(lane_begin);
      const bool is_short = lane < count && length <= kShort && !(is_rest && lane == 0);
      next = t.ends(base + kWarp + lane);
      t.prefetch(base + kSegmentsAhead + lane);
      int at = base < 0 ? 1 : 0;
#pragma unroll 1
      while (at < count) {
        // Short segments that fit into the ring together.
        const int at_place = shuffle(from, at);
        const unsigned others = ~__ballot_sync(~0u, lane < at || (is_short && from + length - at_place <= Stream::kMost));
        const int upto = others ? __ffs(others) - 1 : kWarp;
        if (upto <= at) {
          // Chunks of one segment. If it has other chunks, the second kernel joins them all.
          const SegmentPlace segment = t.place(base + at, {shuffle(lane_begin, at), shuffle(lane_end, at)});
          const bool rest = is_rest && at == 0;
          const int64_t chunks = chunks_of(segment.length);
          const int64_t c_end = min(chunks, rest ? chunk_end : segment.chunks_before(tile_end));
          const bool complete = !rest && c_end == chunks;
          Acc lane_sum = padding<Acc>();
          hold_largest_of(at);
#pragma unroll 1
          for (int64_t c = rest ? chunk : 0; c < c_end; ++c) {
            const int here = static_cast<int>(min(segment.length - c * kChunk, int64_t{kChunk}));
            const Acc v = chunk_sum<Acc>(in, place_of(segment.begin + c * kChunk), here);
            if (complete && c == lane) lane_sum = v;
            if (!complete && lane == 0)
              a.partials[row * chunk_slots(t.length) + chunk_slot(segment.begin, c, segment.length)] = v;
          }
          if (complete) {
            lane_sum = warp_join(lane_sum);
            if (lane == 0) write(base + at, segment.length, lane_sum);
          }
          ++at;
          continue;
        }
        const bool active = lane >= at && lane < upto;
        const int end_place = shuffle(from + length, upto - 1);
        in.wait(end_place);
        const int tiny = active && length <= kTiny ? length : 0;
        Acc v = padding<Acc>();
        in.hold(largest);
        if (__any_sync(~0u, tiny > 0)) {
          const int most = __any_sync(~0u, tiny > 2 * kTinyBatch) ? kTiny : __any_sync(~0u, tiny > kTinyBatch) ? kTiny / 2 : 1;
          if (!is_converted<Source> && __all_sync(~0u, tiny <= 1)) {
            v = in.taken(tiny == 1, from)[0];
          } else {
            v = tiny_sum<Acc>(in, from, tiny, most);
          }
        }
#pragma unroll 1
        for (unsigned more = __ballot_sync(~0u, active && length > kTiny); more; more &= more - 1) {
          const int which = __ffs(more) - 1;
          hold_largest_of(which);
          const Acc x = short_sum<Acc>(in, shuffle(from, which), shuffle(length, which));
          if (lane == which) v = x;
        }
        if (active) write(base + lane, length, v);
        in.release(end_place);
        at = upto;
      }
    }
  }
  in.wait(INT32_MAX);  // a copy must not arrive after the block's end
}

constexpr int kJoinedByWarp = kWarp * kJoinRun;  // most chunks of a segment that a warp joins; else its block does

// Joins the sums of a segment's chunks, by `threads` neighbouring threads, a power of two. Each warp gets the sum of its part.
template <class Acc>
__device__ __forceinline__ Acc join_chunks(const Acc* partials, const SegmentPlace& s, int thread, int threads) {
  const int64_t chunks = chunks_of(s.length);
  int64_t run = kJoinRun;  // chunks per thread
#pragma unroll 1
  while (run * threads < chunks) run *= 2;
  Acc waiting[kJoinLevels], v = padding<Acc>();
  const int64_t first = thread * run;
#pragma unroll 1
  for (int64_t i = 0; i < run / kJoinRun && (first < chunks || i == 0); ++i) {
    Acc x[kJoinRun];
#pragma unroll
    for (int j = 0; j < kJoinRun; ++j) {
      const int64_t chunk = first + i * kJoinRun + j;
      x[j] = chunk < chunks ? partials[chunk_slot(s.begin, chunk, s.length)] : padding<Acc>();
    }
    v = join_neighbours(x);
    carry(waiting, v, i);
  }
  return warp_join(v);
}

template <class Acc>
struct JoinRowArgs {
  SegmentTiles tiles;
  int64_t row_tiles;
  Nest<kMaxRank> kept;
  SegmentOutput<Acc> output;
  const Acc* partials;
};

// True for accumulators of converted elements, whose results may have any dtype.
template <class Acc>
constexpr bool has_any_dtype = !std::is_floating_point_v<Acc> && !std::is_same_v<Acc, Largest<float>>;

// Joins the chunks of segments that several warps have. There is a warp for each tile, which looks for the segment that begins
// in its tile and ends in another one.
template <class Acc>
__global__ void __launch_bounds__(kJoinWarps* kWarp) join_segment_rows(const __grid_constant__ JoinRowArgs<Acc> a) {
  __shared__ int64_t left[kJoinWarps];  // segments that are not joined yet, or -1
  __shared__ Acc sums[kJoinWarps];
  const SegmentTiles& t = a.tiles;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t first = int64_t{blockIdx.x} * kJoinWarps;
  const auto row_of = [&](int warp) { return a.row_tiles == t.tiles ? 0 : (first + warp) / a.row_tiles; };
  // This needs no sums, so it runs before the wait. The offsets are valid: the first kernel waited for them before it let this
  // one start.
  int64_t warp_segment = -1;
  if (first + warp < t.tiles) {
    const int64_t tile_begin = (first + warp - row_of(warp) * a.row_tiles) * t.tile, tile_end = tile_begin + t.tile;
    int64_t found[1];
    t.first_at({tile_end}, found);
    const SegmentPlace s = t.place(found[0] - 1);
    if (s.number >= 0 && s.position >= tile_begin && s.chunks_before(tile_end) < chunks_of(s.length)) warp_segment = s.number;
  }
  wait_for_previous_kernel();
  allow_next_kernel();
  // First each warp joins its own segment, then the block joins long ones together.
#pragma unroll 1
  for (int i = -1; i < kJoinWarps; ++i) {
    const bool by_block = i >= 0;
    const int which = by_block ? i : warp;
    const int64_t segment = by_block ? left[which] : warp_segment;
    if (segment >= 0) {
      const int64_t row = row_of(which);
      const SegmentPlace s = t.place(segment);
      if (by_block || chunks_of(s.length) <= kJoinedByWarp) {
        Acc v = join_chunks(a.partials + row * chunk_slots(t.length), s, by_block ? threadIdx.x : lane,
                            (by_block ? kJoinWarps : 1) * kWarp);
        if (by_block) {
          if (lane == 0) sums[warp] = v;
          __syncthreads();
          v = warp_join(lane < kJoinWarps ? sums[lane] : padding<Acc>());
          __syncthreads();
        }
        Acc one[1] = {v};
        if (lane == 0 && (!by_block || warp == 0))
          a.output.template write<has_any_dtype<Acc>>(a.kept.at(row).out + s.number * t.result_pitch, s.length, one);
        warp_segment = -1;
      }
    }
    if (by_block) continue;
    if (lane == 0) left[warp] = warp_segment;
    __syncthreads();
  }
}

}  // namespace gpureduce::cuda
