// Rows: neighbours in memory are neighbouring lanes of one output, or of two interleaved ones (a complex number). Lanes stay in
// registers from the first addition until as many leaves are joined as a vector holds.

constexpr int kHeld = GPUREDUCE_VECTOR_BYTES == 64 ? 16 : 8;  // vectors of lanes in registers at once
constexpr int kAheadBytes = 2048;                             // prefetch distance

// Sums the first n elements of a chunk of kWidth interleaved columns; n counts all columns. Writes the chunk's leaves, joined
// by kVector / kWidth, and returns their end.
template <int kWidth, class Lane, class In>
Lane* sum_run(Lane* __restrict out, const In* __restrict x, int64_t n) {
  constexpr int kSize = kVector<Lane>, kRow = kLanes * kWidth, kPart = kHeld * kSize;
  // The hardware prefetcher does not follow jumps from row to row of lanes, so this prefetches the data after the run.
  const In* next = x + n;
  const auto fetch = [&next]() __attribute__((always_inline)) {
    GPUREDUCE_UNROLL
    for (int i = 0; i < kPart; i += 64 / sizeof(In)) __builtin_prefetch(next + i);
    next += kPart;
  };
  for (int64_t lane = 0; lane < kRow; lane += kPart, x += kPart, n -= kPart) {
    if (n <= 0) {  // no element is left: pads the remaining joined leaves
      pad(out, (kRow - lane) * kWidth / kSize);
      return out + (kRow - lane) * kWidth / kSize;
    }
    Vector<Lane> v[kHeld];
    if (n >= kPart) {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] = load<Lane>(x + i * kSize);
    } else {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] = load_first<Lane>(x + i * kSize, n - i * kSize);
    }
    fetch();
    const In* row = x + kRow;
    int64_t left = n - kRow;
    for (; left >= kPart; left -= kRow, row += kRow) {
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) v[i] += load<Lane>(row + i * kSize);
      fetch();
    }
    if (left > 0) {
      fetch();
      GPUREDUCE_UNROLL
      for (int i = 0; i < kHeld; ++i) {
        if (left <= i * kSize) break;
        v[i] += load_first<Lane>(row + i * kSize, left - i * kSize);
      }
    }
    out = join_block<kHeld>(out, v, kWidth);
  }
  return out;
}

// The same for one or two columns; n counts one column.
template <class Lane, class In>
void sum_run(Lane* __restrict out, const In* __restrict x, int64_t n, int64_t width) {
  width == 1 ? sum_run<1>(out, x, n) : sum_run<2>(out, x, 2 * n);
}

// Contiguous whole chunks. If there are 32 registers, all of them hold lanes, so that reads are in order, or nearly, which the
// hardware prefetcher handles best.
template <int kWidth, class Lane, class In>
void sum_chunks(Lane* __restrict out, const In* __restrict x, int64_t chunks) {
  constexpr int kSize = kVector<Lane>, kRow = kLanes * kWidth, kAll = 32;
  for (int64_t c = 0; c < chunks; ++c, x += kDepth * kRow) {
    if constexpr (GPUREDUCE_VECTOR_BYTES < 64 || !std::is_same_v<Lane, In>) {
      out = sum_run<kWidth>(out, x, kDepth * kRow);
    } else {
      for (const In* lanes = x; lanes < x + kRow; lanes += kAll * kSize) {
        Vector<Lane> v[kAll];
        sum_leaves<1, kAll, Lane>(v, lanes, 0, kRow, kDepth);
        out = join_block<kAll>(out, v, kWidth);
      }
    }
  }
}

template <class Lane, class In>
void sum_chunks(Lane* __restrict out, const In* __restrict x, int64_t chunks, int64_t width) {
  width == 1 ? sum_chunks<1>(out, x, chunks) : sum_chunks<2>(out, x, chunks);
}

// Short rows of n elements, `pitch` apart, padded to `size`; all three count all `width` columns. Writes their leaves, joined
// by kVector / width. kPer vectors hold a row, or a part of one.
template <int kPer, class Lane, class In>
void join_rows(Lane* __restrict out, const In* __restrict x, int64_t rows, int64_t pitch, int64_t n, int64_t size,
               int64_t width) {
  constexpr int kSize = kVector<Lane>, kRows = kHeld / kPer;
  for (int64_t r = 0; r < rows; r += kRows, x += kRows * pitch) {
    for (int64_t begin = 0; begin < size; begin += kHeld * kSize) {
      if (begin >= n) {  // no element is left: pads the remaining joined leaves
        pad(out, (size - begin) * width / kSize);
        out += (size - begin) * width / kSize;
        break;
      }
      const int64_t full = (n - begin) / kSize, rest = (n - begin) % kSize;  // full vectors, and elements of the next one
      Vector<Lane> v[kHeld];
      GPUREDUCE_UNROLL
      for (int j = 0; j < kRows; ++j) {
        const In* row = x + min(j, rows - 1 - r) * pitch + begin;  // beyond the last row, repeats it
        asm("" : "+r"(row));                                       // or the compiler keeps an address for each load
        const auto fill = [&](auto load_one) __attribute__((always_inline)) {
          GPUREDUCE_UNROLL
          for (int i = 0; i < kPer; ++i) {
            v[j * kPer + i] = load_one(i);
            __builtin_prefetch(row + i * kSize + kAheadBytes / sizeof(In));
          }
        };
        if (full >= kPer) {
          fill([&](int i) __attribute__((always_inline)) { return load<Lane>(row + i * kSize); });
        } else {
          fill([&](int i) __attribute__((always_inline)) {
            if (i < full) return load<Lane>(row + i * kSize);
            return i == full ? load_first<Lane>(row + i * kSize, rest) : padding<Lane>() - Vector<Lane>{};
          });
        }
      }
      out = join_block<kHeld>(out, v, width);
    }
  }
}

// Short rows of any size. `together` leaves are joined into each accumulator: kVector / width, four, or one.
template <class Lane, class In>
void sum_short_rows(Lane* __restrict out, Lane* __restrict buffer, const In* __restrict x, int64_t rows, int64_t pitch,
                    int64_t n, int64_t size, int64_t width, int64_t together) {
  constexpr int64_t kSize = kVector<Lane>;
  if (width <= 2 && together * width == kSize) {
    if (size == kSize) return join_rows<1>(out, x, rows, pitch, n, size, width);
    if (size == 2 * kSize) return join_rows<2>(out, x, rows, pitch, n, size, width);
    if (size == 4 * kSize) return join_rows<4>(out, x, rows, pitch, n, size, width);
    if (size == 8 * kSize) return join_rows<8>(out, x, rows, pitch, n, size, width);
    return join_rows<kHeld>(out, x, rows, pitch, n, size, width);
  }
  if (n == size && pitch == size) {
    if (together == 1) return sum_lanes(out, x, rows * size, 0, 1);
    return join_fours<Lane>(out, x, rows * size, width);
  }
  // Pads rows side by side. Each row overwrites what the one before has written beyond its end.
  Lane* const padded = together == 1 ? out : buffer;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < size; i += kSize) store(padded + r * size + i, load_first<Lane>(x + r * pitch + i, n - i));
  }
  if (together != 1) join_fours<Lane>(out, padded, rows * size, width);
}

// The sums of n elements of a chunk, for each of one or two interleaved columns. `scratch` has room for kChunk numbers.
template <class T>
void sum_chunk(const T* x, int64_t n, int64_t width, T* scratch, T* sums) {
  T* const other = scratch + kChunk / 2;
  int64_t size = kVector<T>;  // the number of leaves, if it is less than kLanes
  while (size < n) size *= 2;
  if (size < kLanes) sum_short_rows(scratch, other, x, 1, n * width, n * width, size * width, width, kVector<T> / width);
  else sum_run(scratch, x, n, width);
  const T* const joined = join_tile<T>(scratch, other, 1, min(size, kLanes) * width / kVector<T>, width);
  for (int64_t w = 0; w < width; ++w) sums[w] = joined[w];
}
