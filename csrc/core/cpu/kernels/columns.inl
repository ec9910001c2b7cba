// Columns: neighbours in memory belong to different outputs, so leaves are joined vector by vector, without shuffles. `pitch`
// is the distance between leaves, `step` the distance between elements of a leaf.

// The sum of kLeaves neighbouring leaves, up to eight, for kCount vectors of columns.
template <int kLeaves, int kCount, class Lane, class In>
inline __attribute__((always_inline)) void sum_leaves(Vector<Lane>* v, const In* x, int64_t pitch, int64_t step,
                                                      int64_t depth) {
  if constexpr (kLeaves == 1) {
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] = load<Lane>(x + i * kVector<Lane>);
    for (int64_t d = 1; d < depth; ++d) {
      x += step;
      GPUREDUCE_UNROLL
      for (int i = 0; i < kCount; ++i) v[i] += load<Lane>(x + i * kVector<Lane>);
    }
  } else {
    constexpr int kLeft = kLeaves > 4 ? 4 : kLeaves > 2 ? 2 : 1;  // the next smaller power of two
    Vector<Lane> right[kCount];
    sum_leaves<kLeft, kCount, Lane>(v, x, pitch, step, depth);
    sum_leaves<kLeaves - kLeft, kCount, Lane>(right, x + kLeft * pitch, pitch, step, depth);
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) v[i] += right[i];
  }
}

// The same for one column.
template <int kLeaves, class Lane, class In>
inline __attribute__((always_inline)) Lane sum_leaves_of_one(const In* x, int64_t pitch, int64_t step, int64_t depth) {
  if constexpr (kLeaves == 1) {
    Lane v = lane<Lane, Map::value>(*x);
    for (int64_t d = 1; d < depth; ++d) v += lane<Lane, Map::value>(x[d * step]);
    return v;
  } else {
    constexpr int kLeft = kLeaves > 4 ? 4 : kLeaves > 2 ? 2 : 1;
    const Lane left = sum_leaves_of_one<kLeft, Lane>(x, pitch, step, depth);
    return left + sum_leaves_of_one<kLeaves - kLeft, Lane>(x + kLeft * pitch, pitch, step, depth);
  }
}

// Sums columns from `first` on, of `width`, kCount vectors at a time; returns the first column that is left.
template <int kLeaves, int kCount, class Lane, class In>
inline __attribute__((always_inline)) int64_t join_some(Lane* __restrict out, const In* __restrict x, int64_t first,
                                                        int64_t width, int64_t pitch, int64_t step, int64_t depth) {
  constexpr int kSize = kVector<Lane>;
  for (; first + kCount * kSize <= width; first += kCount * kSize) {
    Vector<Lane> v[kCount];
    sum_leaves<kLeaves, kCount, Lane>(v, x + first, pitch, step, depth);
    GPUREDUCE_UNROLL
    for (int i = 0; i < kCount; ++i) store(out + first + i * kSize, v[i]);
  }
  return first;
}

// Sums all columns, kCounts vectors at a time; the last vector may overlap the one before. Returns how many columns are done: 0
// if they are fewer than a vector, otherwise all.
template <int kLeaves, int... kCounts, class Lane, class In>
inline __attribute__((always_inline)) int64_t join_all(Lane* __restrict out, const In* __restrict x, int64_t width,
                                                       int64_t pitch, int64_t step, int64_t depth) {
  int64_t done = 0;
  ((done = join_some<kLeaves, kCounts>(out, x, done, width, pitch, step, depth)), ...);
  const int64_t last = width - kVector<Lane>;
  return done < width && last >= 0 ? join_some<kLeaves, 1>(out, x, last, width, pitch, step, depth) : done;
}

// With one element per leaf: the most rows that are joined in registers, and in two rounds, eight sums of eight.
constexpr int kThin = 8;
constexpr int64_t kShort = kThin * kThin;

// Sums `length` rows, up to kThin, of `width` columns, at least a vector.
template <int kLength = kThin, class Lane, class In>
void sum_thin(Lane* __restrict out, const In* __restrict x, int64_t length, int64_t width, int64_t pitch) {
  if constexpr (kLength > 1)
    if (length < kLength) return sum_thin<kLength - 1>(out, x, length, width, pitch);
  join_all<kLength, 2, 1>(out, x, width, pitch, 0, 1);
}

// Sums up to kShort rows, eight at a time, in strips of columns whose sums of eight fit in a tile.
template <class Lane, class In>
void sum_short(Lane* __restrict out, Lane* __restrict eights, const In* __restrict x, int64_t length, int64_t width,
               int64_t pitch) {
  if (length <= kThin) return sum_thin(out, x, length, width, pitch);
  const int64_t count = ceil_div(length, kThin), most = kTileBytes / (count * sizeof(Lane));
  for (int64_t done = 0; done < width;) {
    const int64_t first = min(done, width - kVector<Lane>), strip = min(most, width - first);
    for (int64_t i = 0; i < count; ++i)
      sum_thin(eights + i * strip, x + first + i * kThin * pitch, min(kThin, length - i * kThin), strip, pitch);
    sum_thin(out + first, eights, count, strip, strip);
    done = first + strip;
  }
}

// Sums `leaves` leaves of `width` columns, and joins groups of four neighbours in registers: if a leaf has few elements,
// writing it and reading it again takes as long as summing it.
template <class Lane, class In>
__attribute__((noinline)) void join_columns(Lane* __restrict out, const In* __restrict x, int64_t leaves, int64_t width,
                                            int64_t pitch, int64_t step, int64_t depth) {
  for (int64_t l = 0; l < leaves; l += 4, x += 4 * pitch, out += width) {
    for (int64_t done = join_all<4, 8, 4, 1>(out, x, width, pitch, step, depth); done < width; ++done)
      out[done] = sum_leaves_of_one<4, Lane>(x + done, pitch, step, depth);
  }
}

// The sums of n neighbouring lanes, of any columns.
template <class Lane, class In>
__attribute__((noinline)) void sum_lanes(Lane* __restrict out, const In* __restrict x, int64_t n, int64_t step, int64_t depth) {
  for (int64_t done = join_all<1, 8, 1>(out, x, n, 0, step, depth); done < n; ++done)
    out[done] = sum_leaves_of_one<1, Lane>(x + done, 0, step, depth);
}

// Sums `lanes` lanes of each column: elements begin + i + d * step for i < lanes and d < depth, but none from `end` on.
template <Map C, class Lane, class In>
void sum_tile(const Source<C, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin, int64_t lanes,
              int64_t step, int64_t depth, int64_t end) {
  const int64_t width = source.width, span = (depth - 1) * step + lanes;
  if (source.in_place && span <= end - begin) {
    Cursor at(source.problem.reduced, begin);
    if (span <= at.left()) {
      const int64_t calls = source.block ? 1 : lanes, size = source.block ? lanes * width : width;
      for (int64_t i = 0; i < calls; ++i)
        sum_lanes(out + i * size, source.at(row + at.offset() + i * source.pitch), size, step * source.pitch, depth);
      return;
    }
  }
  source.gather_lanes(buffer, row, begin, lanes, step, depth, end);
  sum_lanes(out, buffer, lanes * width, lanes * width, depth);
}

// Sums the leaves of many columns that begin at elements begin, begin + 1, ..., joined in fours.
template <class Lane, class In>
void sum_columns(const Source<Map::value, Lane, In>& source, Lane* out, Lane* buffer, int64_t row, int64_t begin,
                 int64_t leaves, int64_t end) {
  const int64_t width = source.width, piece = source.problem.reduced.fastest().size;
  int64_t some = leaves;  // leaves of equal depth in one piece, or four
  for (int64_t done = 0; done < leaves; done += some, out += some / 4 * width) {
    if (done > 0) some = done & -done;
    const int64_t first = begin + done, depth = min(kDepth, ceil_div(end - first, kLanes));
    if (depth <= 0) {
      pad(out, some / 4 * width);
      continue;
    }
    const Cursor at(source.problem.reduced, first);
    const int64_t left = min(end - first, at.left());
    const auto span = [&] { return (depth - 1) * kLanes + some; };
    // Gathers only fours whose leaves differ in depth or that cross the end of a piece.
    while (source.in_place && span() > left && some > 4 && (span() > end - first || span() <= piece)) some /= 2;
    if (source.in_place && span() <= left) {
      join_columns(out, source.at(row + at.offset()), some, width, source.pitch, kLanes * source.pitch, depth);
    } else {
      source.gather_lanes(buffer, row, first, some, kLanes, depth, end);
      join_columns(out, buffer, some, width, width, some * width, depth);
    }
  }
}
