// Rows in pieces: no single stride walks a chunk. Long pieces are summed in place. With short pieces, all rows of a tile take a
// chunk at a time: pieces of neighbouring rows usually lie side by side, and rows share the work of finding them.

// Like sum_run, for whole **blocks** of kHeld vectors at any addresses. They are read in order if registers can hold all lanes.
template <int kWidth, class Lane, class In>
void sum_blocks(Lane* __restrict out, const In* const* blocks, int64_t count) {
  constexpr int kSize = kVector<Lane>, kBlocks = kLanes * kWidth / (kHeld * kSize);  // per row of lanes
  constexpr int kTogether = GPUREDUCE_VECTOR_BYTES == 64 && kBlocks == 2 ? 2 : 1;
  for (int64_t b = 0; b < kBlocks; b += kTogether) {
    Vector<Lane> v[kTogether * kHeld];
    GPUREDUCE_UNROLL
    for (int i = 0; i < kTogether * kHeld; ++i)
      v[i] = b + i / kHeld < count ? load<Lane>(blocks[b + i / kHeld] + i % kHeld * kSize) : padding<Lane>() - Vector<Lane>{};
    for (int64_t k = b + kBlocks; k < count; k += kBlocks) {
      GPUREDUCE_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        if (k + t == count) break;
        GPUREDUCE_UNROLL
        for (int i = 0; i < kHeld; ++i) v[t * kHeld + i] += load<Lane>(blocks[k + t] + i * kSize);
      }
    }
    out = join_block<kTogether * kHeld>(out, v, kWidth);
  }
}

// Sums n elements from `begin` on, in pieces of at least a block. Gathers only blocks that cross the end of a piece.
template <Map C, class Lane, class In>
void sum_long_pieces(const Source<C, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin, int64_t n) {
  using Loaded = typename Source<C, Lane, In>::Loaded;
  constexpr int64_t kBlock = kHeld * kVector<Lane>;
  const int64_t width = source.width, block = kBlock / width;
  const Loaded* blocks[2 * kChunk / kBlock];
  Loaded* to = reinterpret_cast<Loaded*>(buffer);
  int64_t count = 0;
  for (Cursor at(source.problem.reduced, begin); n > 0;) {
    const Loaded* x = source.at(row + at.offset());
    const int64_t run = min(n, at.left()), whole = run / block;
    for (int64_t k = 0; k < whole; ++k) blocks[count++] = x + k * kBlock;
    at.advance(whole * block);
    n -= whole * block;
    if (whole * block == run) continue;
    blocks[count++] = to;
    int64_t left = block;
    while (left > 0 && n > 0) {
      const int64_t size = min(min(n, at.left()), left);
      copy(to, source.at(row + at.offset()), size * width * sizeof(Loaded));
      at.advance(size);
      to += size * width;
      left -= size;
      n -= size;
    }
    for (left *= width; left > 0; --left) memcpy(to++, &kNoElement<Loaded>, sizeof(Loaded));
  }
  width == 1 ? sum_blocks<1>(out, blocks, count) : sum_blocks<2>(out, blocks, count);
}

// Sums a chunk of one or two columns that is partial or in pieces: n elements from `begin` on.
template <Map C, class Lane, class In>
void sum_part(const Source<C, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin, int64_t n) {
  const bool in_place = source.in_place && source.block;
  const Cursor at(source.problem.reduced, begin);
  if (in_place && n <= at.left()) {
    sum_run(out, source.at(row + at.offset()), n, source.width);
  } else if (in_place && source.problem.reduced.fastest().size * source.width >= kHeld * kVector<Lane>) {
    sum_long_pieces(source, out, buffer, row, begin, n);
  } else {
    source.gather(buffer, row, begin, n);
    sum_run(out, buffer, n, source.width);
  }
}

// The byte offsets, from a row's begin, of the vectors of a chunk in pieces, or of a part of one. A block has as many lanes as
// registers hold. Vectors that begin in one piece and end in the next, or are partial, are **split**: copied to a buffer first.
template <int kWidth, class Lane, class In>
class PieceVectors {
 public:
  static constexpr int kSize = kVector<Lane>;
  static constexpr int64_t kRow = kLanes * kWidth / kSize, kBlocks = kRow / kHeld;

  // In the caller's memory: the object has up to 128 KiB, too much for a small stack.
  static void* operator new(size_t, void* memory) { return memory; }

  // n elements from `begin` on.
  PieceVectors(const Dims& dims, int64_t begin, int64_t n) {
    Cursor at(dims, begin);
    int64_t done = 0, last = at.offset();
    Split* split = nullptr;
    for (int64_t run; n > 0; n -= run, at.advance(run)) {
      run = min(n, at.left());
      const int64_t end = done + run * kWidth, base = at.offset() - done, before = done % kSize;
      apart_ = apart_ && at.offset() >= last;
      last = at.offset() + run * kWidth;
      if (before > 0) {
        split->second = base + done - before;
        split->all = static_cast<int8_t>(min(kSize, end - done + before));
      }
      for (; count_ < end / kSize; ++count_) place_[number(count_)] = (base + count_ * kSize) * int64_t{sizeof(In)};
      if (count_ * kSize < end) {
        Block& block = blocks_[count_ % kRow / kHeld];
        const int64_t first = base + count_ * kSize;
        const int8_t here = static_cast<int8_t>(end - count_ * kSize);
        split = &block.splits[block.count++];
        *split = {first, first, number(count_++), here, here};
      }
      done = end;
    }
  }

  // Writes the leaves of a block of a row, joined by kVector / kWidth. The buffer holds kDepth * kHeld vectors.
  void sum_block(Lane* __restrict out, const In* row, int64_t b, char* buffer) {
    copy_splits(buffer, row, blocks_[b]);
    const int64_t* place = place_ + b * kDepth * kHeld;
    const auto at = [&](int i) __attribute__((always_inline)) {
      return load<Lane>(reinterpret_cast<const In*>(reinterpret_cast<const char*>(row) + place[i]));
    };
    Vector<Lane> v[kHeld];
    int64_t left = count_ - b * kHeld;  // vectors left, from the block's first one in this row of lanes
    GPUREDUCE_UNROLL
    for (int i = 0; i < kHeld; ++i) v[i] = i < left ? at(i) : padding<Lane>() - Vector<Lane>{};
    for (left -= kRow; left >= kHeld; left -= kRow) {
      place += kHeld;
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] += at(i);
    }
    if (left > 0) {
      place += kHeld;
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (i == left) break;
        v[i] += at(i);
      }
    }
    join_block<kHeld>(out, v, kWidth);
  }

 private:
  struct Split {
    int64_t first, second;  // where element 0 would lie, counted from the first and from the second piece
    int32_t number;
    int8_t here, all;  // elements in the first piece, and in both
  };
  struct Block {
    int64_t count = 0;
    Split splits[kDepth * kHeld];
  };

  // The index of a vector in place_, which is sorted by blocks.
  static int32_t number(int64_t v) { return static_cast<int32_t>((v % kRow / kHeld * kDepth + v / kRow) * kHeld + v % kHeld); }

  void copy_splits(char* to, const In* row, const Block& block) {
    for (int64_t i = 0; i < block.count; ++i, to += sizeof(Narrow<Lane, In>)) {
      const Split& split = block.splits[i];
      const Narrow<Lane, In> v = load_split(row + split.first, row + split.second, split.here, split.all);
      memcpy(to, &v, sizeof(v));
      place_[split.number] = to - reinterpret_cast<const char*>(row);
    }
  }

  // Elements before `here` from x, then elements before `all` from y, then padding.
  Narrow<Lane, In> load_split(const In* x, const In* y, int64_t here, int64_t all) const {
#if GPUREDUCE_VECTOR_BYTES < 64
    if (apart_ && all == kSize) {  // whole vectors are readable at x and y, and unmasked loads are faster
      using Loaded = Bits<Lane, In>;
      const Loaded first = numbers<Loaded>(std::make_integer_sequence<int, kSize>{}) < static_cast<Bit<In>>(here);
      Loaded left, right;
      memcpy(&left, x, sizeof(left));
      memcpy(&right, y, sizeof(right));
      return reinterpret_cast<Narrow<Lane, In>>((left & first) | (right & ~first));
    }
#endif
    return load_over<Lane>(load_over<Lane>(none<Lane, In>(), x, 0, here), y, here, all);
  }

  int64_t count_ = 0;
  int64_t place_[kDepth * kRow];  // in bytes
  Block blocks_[kBlocks];
  bool apart_ = true;  // pieces lie one behind the other
};

#if GPUREDUCE_VECTOR_BYTES == 64
// Adds n neighbouring elements to lanes first, first + 1, ..., in aligned vectors, which can be loaded again right after they
// are stored. Prefetches the elements that lie `ahead` of these.
template <class Lane, class In>
inline __attribute__((always_inline)) void add_run(Lane* __restrict lanes, int64_t first, const In* __restrict x, int64_t n,
                                                   int64_t ahead) {
  constexpr int kSize = kVector<Lane>;
  const auto add = [&](int64_t i, Vector<Lane> v) __attribute__((always_inline)) {
    store(lanes + i, load<Lane>(lanes + i) + v);
    __builtin_prefetch(x + i + ahead);
  };
  const int64_t before = first % kSize;  // lanes of the first vector without an element
  lanes += first - before;
  x -= before;
  n += before;
  int64_t i = 0;
  if (before > 0) {
    add(0, widened<Lane, In>(load_over<Lane>(none<Lane, In>(), x, before, min(n, kSize))));
    i = kSize;
  }
  for (; i + kSize <= n; i += kSize) add(i, load<Lane>(x + i));
  if (i < n) add(i, load_first<Lane>(x + i, n - i));
}

// Writes the lanes of `count` rows' chunks in pieces, or of parts of them. Reads in the order of memory, while the lanes stay
// in the L1 cache.
template <int kWidth, class Lane, class In>
void add_runs_abreast(Lane* lanes, const In* const* rows, int64_t count, const Dims& dims, int64_t begin, int64_t n) {
  constexpr int64_t kRow = kLanes * kWidth;
  const int64_t ahead = dims.dims[dims.rank - 2].stride;
  for (int64_t i = 0; i < count * kRow; ++i) lanes[i] = padding<Lane>();
  Cursor piece(dims, begin);
  for (int64_t done = 0, run; done < n; done += run, piece.advance(run)) {
    const int64_t lane = done % kLanes;
    run = min(min(n - done, piece.left()), kLanes - lane);
    for (int64_t r = 0; r < count; ++r) add_run(lanes + r * kRow, lane * kWidth, rows[r] + piece.offset(), run * kWidth, ahead);
  }
}

// The same, with leaves joined, and written `pitch` apart for each row. The buffer holds a tile of lanes.
template <int kWidth, Map C, class Lane, class In>
void sum_runs_abreast(const Source<C, Lane, In>& source, Lane* out, int64_t pitch, Lane* buffer, Cursor row, int64_t rows,
                      int64_t begin, int64_t n) {
  constexpr int64_t kRow = kLanes * kWidth, kRows = kTileBytes / (kRow * sizeof(Lane));
  const Lane* x[kRows];
  for (int64_t some; rows > 0; rows -= some) {
    some = min(rows, kRows);
    for (int64_t r = 0; r < some; ++r, row.advance(1)) x[r] = source.at(row.offset());
    add_runs_abreast<kWidth>(buffer, x, some, source.problem.reduced, begin, n);
    for (int64_t r = 0; r < some; ++r, out += pitch) sum_run<kWidth>(out, buffer + r * kRow, kRow);
  }
}
#endif

// Writes the joined leaves of rows' chunks in short pieces, or of parts of them, `pitch` apart for each row.
template <int kWidth, Map C, class Lane, class In>
void sum_pieces(const Source<C, Lane, In>& source, Lane* out, int64_t pitch, Lane* buffer, const Cursor& first, int64_t rows,
                int64_t begin, int64_t n, bool shares_stream) {
  using Loaded = typename Source<C, Lane, In>::Loaded;
  using Vectors = PieceVectors<kWidth, Lane, Loaded>;
  const Dims& dims = source.problem.reduced;
#if GPUREDUCE_VECTOR_BYTES == 64
  // Lines of memory with a split vector are read twice. When inputs stream, such a line has left the cache in between.
  if constexpr (std::is_same_v<Lane, Loaded>) {
    if (shares_stream && dims.fastest().size < kLanes && dims.fastest().size * kWidth % Vectors::kSize != 0)
      return sum_runs_abreast<kWidth>(source, out, pitch, buffer, first, rows, begin, n);
  }
#endif
  static_assert(sizeof(Vectors) <= kDepth * Vectors::kRow * kPlaceBytes &&
                kDepth * kHeld * GPUREDUCE_VECTOR_BYTES <= kBufferBytes);
  Vectors& vectors = *new (buffer + kBufferBytes / sizeof(Lane)) Vectors(dims, begin, n);
  for (int64_t b = 0; b < Vectors::kBlocks; ++b) {  // block by block, since neighbouring rows share pages
    Cursor row = first;
    for (int64_t r = 0; r < rows; ++r, row.advance(1))
      vectors.sum_block(out + r * pitch + b * kHeld * kWidth, source.at(row.offset()), b, reinterpret_cast<char*>(buffer));
  }
}
