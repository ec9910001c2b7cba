// The kernels, which carry out tasks: floating sums in the contract's order, integer sums in any order, and other joins.

// A task of floating sums. A tile is joined to one leaf per output, and then to other tiles.
template <class In, class Acc>
class OrderedTask {
 public:
  OrderedTask(const Plan& plan, const Task& task, void* scratch)
      : plan_(plan),
        p_(plan.problem),
        task_(task),
        source_(plan, task),
        leaves_(plan.tile.leaves),
        lanes_(min(leaves_, kLanes)),
        few_(plan.tile.width <= 2),
        together_(joined_at_once()),
        row_size_(leaves_ / together_ * task.width),
        buffer_(static_cast<Acc*>(scratch)),
        tile_(reinterpret_cast<Acc*>(static_cast<char*>(scratch) + plan.buffer_bytes)),
        other_(tile_ + kTileBytes / sizeof(Acc)),
        stack_(other_ + kTileBytes / sizeof(Acc)) {}

  void run(Acc* sums) {
    if constexpr (Source<Map::value, Acc, In>::kDirect) {
      if (p_.length <= kShort && p_.reduced.rank == 1 && source_.in_place && task_.width >= kVector<Acc>)
        return sum_short_columns(sums);
    }
    const int64_t size = task_.rows * task_.width;
    Counter<Acc> tiles(stack_, size);
    Acc* joined = tile_;
    for (int64_t leaf = task_.begin; leaf < task_.end; leaf += leaves_) {
      fill_tile(leaf);
      joined = join_tile<Acc>(tile_, other_, task_.rows, leaves_ / together_, task_.width);
      if (leaf + leaves_ < task_.end) tiles.add(joined);
    }
    tiles.finish(joined);
    memcpy(sums, joined, size * sizeof(Acc));
  }

 private:
  // Leaves that are joined into an accumulator before it is written: for one or two columns, as many as a vector holds, or
  // four.
  int64_t joined_at_once() const {
    const int64_t whole = kVector<Acc> / task_.width;
    if (few_ && leaves_ >= whole) return whole;
    return plan_.tile.wide || (few_ && leaves_ >= 4) ? 4 : 1;
  }

  void sum_short_columns(Acc* sums) {
    Cursor row(p_.rows, task_.first_row);
    for (int64_t r = 0; r < task_.rows; ++r, row.advance(1), sums += task_.width)
      sum_short(sums, tile_, source_.at(row.offset() + task_.begin * source_.pitch), min(task_.end, p_.length) - task_.begin,
                task_.width, source_.pitch);
  }

  // Writes the accumulators of all rows for the leaves from `leaf` on.
  void fill_tile(int64_t leaf) {
    const bool in_place = source_.in_place && source_.block && p_.reduced.rank == 1;
    if (p_.length <= lanes_ && !plan_.tile.wide) fill_with_short_rows(in_place);
    else if (in_place && few_ && p_.length <= kChunk) fill_with_chunks();
    else fill_with_leaves(leaf);
  }

  // Rows that fit in a tile, with one element per leaf.
  void fill_with_short_rows(bool in_place) {
    const int64_t size = lanes_ * task_.width, n = p_.length * task_.width;
    Cursor row(p_.rows, task_.first_row);
    for (int64_t r = 0, some; r < task_.rows; r += some) {
      Acc* out = tile_ + r * row_size_;
      if (in_place) {
        some = min(task_.rows - r, row.left());
        sum_short_rows(out, buffer_, source_.at(row.offset()), some, p_.rows.fastest().stride, n, size, task_.width, together_);
        row.advance(some);
      } else {
        some = min(task_.rows - r, ceil_div(16 * kVector<Acc>, size));
        source_.gather_rows(buffer_, row, some);
        sum_short_rows(out, buffer_ + some * n, buffer_, some, n, n, size, task_.width, together_);
      }
    }
  }

  // Rows of one chunk, or of a part of one.
  void fill_with_chunks() {
    Cursor row(p_.rows, task_.first_row);
    Acc* out = tile_;
    for (int64_t r = 0; r < task_.rows; ++r, row.advance(1), out += row_size_) {
      if (p_.length == kChunk) sum_chunks(out, source_.at(row.offset()), 1, task_.width);
      else sum_run(out, source_.at(row.offset()), p_.length, task_.width);
    }
  }

  void fill_with_leaves(int64_t leaf) {
    const int64_t first = leaf_start(leaf);
    const Cursor at(p_.reduced, first);
    int64_t chunks = 0;  // whole chunks that are contiguous in each row
    if (source_.in_place && source_.block && few_ && p_.length >= kChunk)
      chunks = min(min(p_.length - first, at.left()) / kChunk, leaves_ / kLanes);
    const int64_t rows = source_.abreast ? task_.rows : 1;  // at once
    Cursor row(p_.rows, task_.first_row);
    for (int64_t r = 0; r < task_.rows; r += rows, row.advance(1)) {
      Acc* out = tile_ + r * row_size_;
      if (chunks > 0) sum_chunks(out, source_.at(row.offset() + at.offset()), chunks, task_.width);
      for (int64_t l = chunks * kLanes; l < leaves_; l += lanes_)
        fill_chunk(out + l / together_ * task_.width, row, rows, leaf_start(leaf + l));
    }
  }

  // Writes the leaves of the chunk from element `begin` on, or as many as the tile has, for `rows` rows.
  void fill_chunk(Acc* out, const Cursor& row, int64_t rows, int64_t begin) {
    const int64_t left = p_.length - begin, n = min(kChunk, left), depth = min(kDepth, ceil_div(left, kLanes));
    if (plan_.tile.wide) {
      sum_columns(source_, out, buffer_, row.offset(), begin, lanes_, p_.length);
    } else if (left <= 0) {
      for (int64_t r = 0; r < rows; ++r) pad(out + r * row_size_, lanes_ / together_ * task_.width);
    } else if (source_.abreast) {
      task_.width == 1 ? sum_pieces<1>(source_, out, row_size_, buffer_, row, rows, begin, n, plan_.shares_stream)
                       : sum_pieces<2>(source_, out, row_size_, buffer_, row, rows, begin, n, plan_.shares_stream);
    } else if (few_) {
      sum_part(source_, out, buffer_, row.offset(), begin, n);
    } else {
      sum_tile(source_, out, buffer_, row.offset(), begin, lanes_, kLanes, depth, p_.length);
    }
  }

  const Plan& plan_;
  const CpuProblem& p_;
  const Task& task_;
  const Source<Map::value, Acc, In> source_;
  const int64_t leaves_, lanes_;  // leaves per tile, and per chunk in it
  const bool few_;                // one or two columns
  const int64_t together_;        // leaves per accumulator of the tile
  const int64_t row_size_;        // accumulators per row
  Acc *const buffer_, *const tile_, *const other_, *const stack_;
};

template <class In, class Acc>
void sum_in_order(const Plan& plan, const Task& task, void* scratch, void* sums) {
  OrderedTask<In, Acc>(plan, task, scratch).run(static_cast<Acc*>(sums));
}

template <class As, class T>
inline uint64_t total(const T* x, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<uint64_t>(static_cast<As>(x[i]));
  return sum;
}

// Integer sums modulo 2^64, in any order: each lane of a tile takes many elements, and neighbouring lanes take neighbours.
template <class In, Map C>
void sum_exactly(const Plan& plan, const Task& task, void* scratch, void* sums) {
  using Lane = typename ExactLane<In, C>::type;
  using Signed = std::make_signed_t<Lane>;
  using Loaded = typename Source<C, Lane, In>::Loaded;
  Lane* buffer = static_cast<Lane*>(scratch);
  Lane* tile = reinterpret_cast<Lane*>(static_cast<char*>(scratch) + plan.buffer_bytes);
  const Source<C, Lane, In> source(plan, task);
  const int64_t width = task.width, lanes = min(plan.tile.leaves, task.end - task.begin);
  const int64_t most = plan.buffer_bytes / (lanes * width * int64_t{sizeof(Lane)});  // elements per lane that fit in the buffer
  Cursor row(plan.problem.rows, task.first_row);
  for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
    uint64_t* __restrict sum = static_cast<uint64_t*>(sums) + r * width;
    for (int64_t w = 0; w < width; ++w) sum[w] = 0;
    for (int64_t begin = task.begin, depth; begin < task.end; begin += lanes * depth) {
      const Cursor at(plan.problem.reduced, begin);
      const int64_t n = task.end - begin, left = min(at.left(), n);
      if (width == 1 && source.in_place && left == n && n <= kExactLanes) {  // too few for lanes
        sum[0] += total<Loaded>(source.at(row.offset() + at.offset()), n);
        break;
      }
      if (source.in_place && left >= lanes) depth = min(width == 1 ? kExactDepth : kDepth, left / lanes);
      else depth = min(min(kExactDepth, ceil_div(n, lanes)), most);
      sum_tile(source, tile, buffer, row.offset(), begin, lanes, lanes, depth, task.end);
      if (width == 1) {
        sum[0] += total<Signed>(tile, lanes);
      } else {
        for (int64_t l = 0; l < lanes; ++l) {
          for (int64_t w = 0; w < width; ++w) sum[w] += static_cast<uint64_t>(static_cast<Signed>(tile[l * width + w]));
        }
      }
    }
  }
}

// --- joins that are no additions -------------------------------------------------------------------------------------------

// all[i] = all[i] joined to x[i]
template <class Acc, class T>
inline __attribute__((always_inline)) void join_each(Acc* __restrict all, const T* __restrict x, int64_t n) {
  int64_t i = 0;
  if constexpr (sizeof(Acc) == sizeof(T)) {
    T* const numbers = reinterpret_cast<T*>(all);
    for (; i + kVector<T> <= n; i += kVector<T>) store(numbers + i, join_numbers(Acc{}, load<T>(numbers + i), load<T>(x + i)));
  }
  for (; i < n; ++i) all[i] = all[i] + addend<Acc>(x[i]);
}

// Joins a vector's numbers, in any order: each lane with the one kHalf apart, then kHalf / 2 apart, and so on.
template <int kHalf, class Acc, class T, int... I>
inline __attribute__((always_inline)) Vector<T> join_across(Vector<T> v, std::integer_sequence<int, I...> lanes) {
  if constexpr (kHalf == 0) return v;
  else return join_across<kHalf / 2, Acc, T>(join_numbers(Acc{}, v, select<T, (I ^ kHalf)...>(v, v)), lanes);
}

// Joins n numbers in any order, kMany vectors at a time.
template <class Acc, class T>
inline __attribute__((always_inline)) Acc join_any(const T* x, int64_t n) {
  constexpr int kSize = kVector<T>, kMany = 8;
  const auto none = number(padding<Acc>()) - Vector<T>{};
  Vector<T> v = none;
  int64_t i = 0;
  if (n >= 2 * kMany * kSize) {
    Vector<T> some[kMany];
    GPUREDUCE_UNROLL
    for (int k = 0; k < kMany; ++k) some[k] = load<T>(x + k * kSize);
    for (i = kMany * kSize; i + kMany * kSize <= n; i += kMany * kSize) {
      GPUREDUCE_UNROLL
      for (int k = 0; k < kMany; ++k) some[k] = join_numbers(Acc{}, some[k], load<T>(x + i + k * kSize));
    }
    v = some[0];
    GPUREDUCE_UNROLL
    for (int k = 1; k < kMany; ++k) v = join_numbers(Acc{}, v, some[k]);
  }
  for (; i + kSize <= n; i += kSize) v = join_numbers(Acc{}, v, load<T>(x + i));
  if (i < n) v = join_numbers(Acc{}, v, load_over<T>(none, x + i, 0, n - i));
  v = join_across<kSize / 2, Acc, T>(v, std::make_integer_sequence<int, kSize>{});
  return addend<Acc>(v[0]);
}

// Calls take(row, elements) for each row of a task, with the elements from `begin` to `end` (exclusive). `most` elements fit in
// the buffer. Several whole rows are copied at a time; elements that need no conversion are not copied.
template <class T, class Source, class Take>
inline __attribute__((always_inline)) void copy_rows(const Source& source, const Task& task, T* buffer, int64_t most,
                                                     int64_t begin, int64_t end, Take take) {
  const int64_t n = end - begin;
  const bool whole = n > 0 && n == source.problem.length;
  const Cursor at(source.problem.reduced, begin);
  const bool as_is = source.template is_as<T>() && at.left() >= n;
  Cursor row(source.problem.rows, task.first_row);
  for (int64_t r = 0, some = 1; r < task.rows; r += some) {
    if (!as_is && whole) {
      some = min(task.rows - r, most / n);
      source.gather_rows(buffer, row, some);
      for (int64_t i = 0; i < some; ++i) take(r + i, buffer + i * n * task.width);
      continue;
    }
    if (as_is) {
      take(r, reinterpret_cast<const T*>(source.input + source.bytes(row.offset() + at.offset())));
    } else {
      source.gather(buffer, row.offset(), begin, n);
      take(r, buffer);
    }
    row.advance(1);
  }
}

// larger(): the maximum of `all` and n integers, whose bits `turn` are flipped first. keep_larger(): the same for n pairs.
template <class T>
inline T larger(T all, const T* x, int64_t n, T turn) {
  for (int64_t i = 0; i < n; ++i) all = max(all, static_cast<T>(x[i] ^ turn));
  return all;
}
template <class T>
inline void keep_larger(T* __restrict all, const T* __restrict x, int64_t n, T turn) {
  for (int64_t i = 0; i < n; ++i) all[i] = max(all[i], static_cast<T>(x[i] ^ turn));
}

// Visits a task's elements, in any order, as many as the buffer holds at a time. Calls join(row, x, n) for n elements of a row
// of one column, or join_each(output, x) for one element of each column of a row, whose first output is `output`.
template <class T, class Source, class Join, class JoinEach>
inline __attribute__((always_inline)) void join_parts(const Source& source, const Plan& plan, const Task& task, void* buffer,
                                                      Join join, JoinEach join_each) {
  const int64_t width = task.width, most = plan.buffer_bytes / (width * int64_t{sizeof(T)});
  for (int64_t begin = task.begin, n; begin < task.end; begin += n) {
    n = min(most, task.end - begin);
    const auto take = [=](int64_t r, const T* x) __attribute__((always_inline)) {
      if (width == 1) {
        join(r, x, n);
      } else {
        for (int64_t i = 0; i < n; ++i) join_each(r * width, x + i * width);
      }
    };
    copy_rows<T>(source, task, static_cast<T*>(buffer), most, begin, begin + n, take);
  }
}

// Joins of any kind, in any order.
template <class Acc, class T>
void join_in_any_order(const Plan& plan, const Task& task, void* scratch, void* sums) {
  const Source<Map::value, T, Unknown> source(plan, task);
  const int64_t width = task.width;
  Acc* const all = static_cast<Acc*>(sums);
  pad(all, task.rows * width);
  join_parts<T>(
      source, plan, task, scratch,
      [=](int64_t r, const T* x, int64_t n) __attribute__((always_inline)) { all[r] = all[r] + join_any<Acc>(x, n); },
      [=](int64_t i, const T* x) __attribute__((always_inline)) { join_each(all + i, x, width); });
}

// The maximum of integers, in their own width. Flipped bits turn maxima of unsigned integers, and minima, into maxima of signed
// integers. Any non-zero byte of a bool counts as 1.
template <class T>
void find_largest(const Plan& plan, const Task& task, void* scratch, void* sums) {
  const CpuProblem& p = plan.problem;
  const bool is_bool = p.in == DType::Bool, negative = p.map == Map::negative;
  const T turn = static_cast<T>((is_unsigned(p.in) ? lowest<T>() : 0) ^ (negative ? -1 : 0));
  const Source<Map::value, T, T> source(plan, task);
  const int64_t width = task.width, outputs = task.rows * width;
  T* const all = reinterpret_cast<T*>(static_cast<char*>(scratch) + plan.buffer_bytes);
  for (int64_t i = 0; i < outputs; ++i) all[i] = lowest<T>();
  join_parts<T>(
      source, plan, task, scratch,
      [=](int64_t r, const T* x, int64_t n) __attribute__((always_inline)) { all[r] = larger(all[r], x, n, turn); },
      [=](int64_t i, const T* x) __attribute__((always_inline)) { keep_larger(all + i, x, width, turn); });
  for (int64_t i = 0; i < outputs; ++i) {
    const int64_t found = is_bool ? (all[i] != turn) ^ (negative ? -1 : 0) : all[i];
    static_cast<Largest<int64_t>*>(sums)[i] = {found};
  }
}

// Joins of any kind in the contract's order, a tile of leaves at a time.
template <class Acc, class T>
void join_in_order(const Plan& plan, const Task& task, void* scratch, void* sums) {
  const int64_t width = task.width, leaves = plan.tile.leaves, lanes = min(leaves, kLanes), length = plan.problem.length;
  T* const buffer = static_cast<T*>(scratch);
  Acc* const tile = reinterpret_cast<Acc*>(static_cast<char*>(scratch) + plan.buffer_bytes);
  Acc* const other = tile + kTileBytes / sizeof(Acc);
  Acc* const stack = other + kTileBytes / sizeof(Acc);
  const Source<Map::value, T, Unknown> source(plan, task);
  Acc* const out = static_cast<Acc*>(sums);
  const auto begin_lanes = [=](Acc* some, const T* x, int64_t n) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n * width; ++i) some[i] = addend<Acc>(x[i]);
    pad(some + n * width, (lanes - n) * width);
  };
  const auto join = [=](int64_t rows) __attribute__((always_inline)) {
    using N = Number<Acc>;
    return reinterpret_cast<Acc*>(join_tile<Acc>(reinterpret_cast<N*>(tile), reinterpret_cast<N*>(other), rows, leaves, width));
  };
  if (length <= lanes) {  // one element per leaf; all rows are one tile
    const int64_t most = plan.buffer_bytes / (width * int64_t{sizeof(T)});
    copy_rows<T>(source, task, buffer, most, 0, length, [=](int64_t r, const T* x) __attribute__((always_inline)) {
      begin_lanes(tile + r * lanes * width, x, length);
    });
    memcpy(out, join(task.rows), task.rows * width * sizeof(Acc));
    return;
  }
  Cursor row(plan.problem.rows, task.first_row);
  for (int64_t r = 0; r < task.rows; ++r, row.advance(1)) {
    Acc* joined = tile;
    Counter<Acc> tiles(stack, width);
    for (int64_t leaf = task.begin; leaf < task.end; leaf += leaves) {
      for (int64_t l = 0; l < leaves; l += lanes) {
        Acc* const some = tile + l * width;
        const int64_t first = leaf_start(leaf + l), end = min(length, first / kChunk * kChunk + kChunk);
        for (int64_t begin = first; begin < end; begin += kLanes) {
          const int64_t n = min(lanes, end - begin);
          source.gather(buffer, row.offset(), begin, n);
          if (begin == first) begin_lanes(some, buffer, n);
          else join_each(some, buffer, n * width);
        }
        if (first >= end) pad(some, lanes * width);
      }
      joined = join(1);
      if (leaf + leaves < task.end) tiles.add(joined);
    }
    tiles.finish(joined);
    memcpy(out + r * width, joined, width * sizeof(Acc));
  }
}
