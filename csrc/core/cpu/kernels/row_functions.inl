// Functions that keep their input's shape (numeric/rows.h), some short rows at a time, or a chunk of a longer row. Neighbouring
// lanes are neighbours in memory, so the loops over elements are vectorised by the compiler.

template <class T>
T* take(char*& memory, int64_t n) {
  T* const taken = reinterpret_cast<T*>(memory);
  memory += ceil_div(n * int64_t{sizeof(T)}, 64) * 64;
  return taken;
}

template <class T, class A>
inline __attribute__((always_inline)) void round_each(T* __restrict to, const A* __restrict from, int64_t n, int64_t stride) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) to[i] = round_to<T>(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * stride] = round_to<T>(from[i]);
  }
}

// Rounds n numbers to elements of a floating dtype, `stride` bytes apart.
template <class A>
__attribute__((noinline)) void round_numbers(char* to, DType dtype, int64_t stride, const A* from, int64_t n) {
  switch (dtype) {
#define GPUREDUCE_ROUND(name, type, kind, own, wide, family)                            \
  case DType::name:                                                                     \
    if constexpr (Kind::kind == Kind::floating)                                         \
      round_each(reinterpret_cast<type*>(to), from, n, stride / int64_t{sizeof(type)}); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_ROUND)
#undef GPUREDUCE_ROUND
  }
}

// The same backwards, from elements of any real dtype.
template <class A>
__attribute__((noinline)) void read_numbers(A* to, const char* from, DType dtype, int64_t stride, int64_t n) {
  switch (dtype) {
#define GPUREDUCE_READ(name, type, kind, own, wide, family)                                            \
  case DType::name:                                                                                    \
    if constexpr (Kind::kind != Kind::complex)                                                         \
      convert<Map::value>(to, reinterpret_cast<const type*>(from), n, stride / int64_t{sizeof(type)}); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_READ)
#undef GPUREDUCE_READ
  }
}

// Numbers of an operand for some rows, `pitch` apart.
template <class A>
struct RowRun {
  A* data;
  int64_t pitch;
};

// The operands of some rows as numbers, up to a chunk of each row at a time: where they lie, or in a buffer. What there is not:
// g and bias are 0, weight is 1. Its functions are not inlined: every row function would have a copy of them.
template <class A>
class RowOperands {
 public:
  // Buffers for n elements are taken from `memory`.
  RowOperands(const RowsCall& call, int64_t n, char*& memory) : call_(call) {
    const RowDims& dims = call.across;
    for (int o = 0; o < kRowOperands; ++o) {
      const auto [data, dtype] = call.operands[o];
      in_place_[o] = data && dtype == (sizeof(A) == 4 ? DType::Float : DType::Double) &&
                     (dims.rank == 0 || (dims.rank == 1 && dims.dims[0].strides[o] == sizeof(A)));
      if (in_place_[o]) continue;
      buffers_[o] = take<A>(memory, n);
      for (int64_t i = 0; i < n && !data; ++i) buffers_[o][i] = o == kRowWeight ? 1 : 0;
    }
  }

  // Moves to `row` and those behind it, up to `most`; returns how many there are with one stride.
  __attribute__((noinline)) int64_t move_to(int64_t row, int64_t most) {
    const RowDims& dims = call_.along;
    const RowDim fast = dims.rank == 0 ? RowDim{1, {}} : dims.dims[dims.rank - 1];
    rows_ = min(most, fast.size - (dims.rank > 1 ? row % fast.size : row));
    for (int o = 0; o < kRowOperands; ++o) {
      if (!call_.operands[o].data) continue;
      row_[o] = call_.operands[o].data + dims.offset(static_cast<RowOperandName>(o), row);
      pitch_[o] = fast.strides[o];
    }
    return rows_;
  }

  // Elements `first` to first + n (exclusive) of the rows. A buffer that holds them already is not filled again, so n is the
  // same for the same `first`.
  __attribute__((noinline)) RowRun<A> load(RowOperandName o, int64_t first, int64_t n) {
    if (!in_place_[o] && row_[o] && (held_[o] != row_[o] || first_[o] != first)) fill(o, first, n);
    return at(o, first, n);
  }

  // Where the results are written, before they are stored.
  RowRun<A> result(int64_t first, int64_t n) const { return at(kRowY, first, n); }
  __attribute__((noinline)) void store(int64_t first, int64_t n) const {
    if (in_place_[kRowY]) return;
    for_each_run(kRowY, first, n, [&](char* to, int64_t stride, const A* from, int64_t run) {
      round_numbers(to, call_.operands[kRowY].dtype, stride, from, run);
    });
  }

 private:
  RowRun<A> at(RowOperandName o, int64_t first, int64_t n) const {
    if (in_place_[o]) return {reinterpret_cast<A*>(row_[o]) + first, pitch_[o] / int64_t{sizeof(A)}};
    return {buffers_[o], pitch_[o] == 0 ? 0 : n};
  }
  void fill(RowOperandName o, int64_t first, int64_t n) {
    held_[o] = row_[o];
    first_[o] = first;
    for_each_run(o, first, n, [&](const char* from, int64_t stride, A* to, int64_t run) {
      read_numbers(to, from, call_.operands[o].dtype, stride, run);
    });
  }
  // Calls take(elements, stride, numbers, n) for runs of elements with one stride.
  template <class Take>
  void for_each_run(RowOperandName o, int64_t first, int64_t n, Take take) const {
    const RowDims& dims = call_.across;
    const RowDim fast = dims.rank == 0 ? RowDim{1, {}} : dims.dims[dims.rank - 1];
    const int64_t rows = pitch_[o] == 0 ? 1 : rows_;
    if (dims.rank == 1 && n == fast.size && pitch_[o] == n * fast.strides[o])  // all rows are one run
      return take(row_[o], fast.strides[o], buffers_[o], rows * n);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t done = 0, run; done < n; done += run) {
        run = min(n - done, fast.size - (first + done) % fast.size);
        take(row_[o] + r * pitch_[o] + dims.offset(o, first + done), fast.strides[o], buffers_[o] + r * n + done, run);
      }
    }
  }

  const RowsCall& call_;
  int64_t rows_ = 1;
  char* row_[kRowOperands] = {};  // the first row
  int64_t pitch_[kRowOperands] = {};
  A* buffers_[kRowOperands] = {};
  bool in_place_[kRowOperands];
  const char* held_[kRowOperands] = {};  // the row and the element that a buffer begins with
  int64_t first_[kRowOperands] = {};
};

// A row's sum is one or two numbers, which are added apart.
template <class Sum>
struct RowSum {
  static constexpr int kCount = 1;
  static Sum of(const Sum* sums) { return sums[0]; }
};
template <class A>
struct RowSum<TwoSums<A>> {
  static constexpr int kCount = 2;
  static TwoSums<A> of(const A* sums) { return {sums[0], sums[1]}; }
};

// Calls f(x, g, w, b, first, n) for the whole vectors of n elements, and for a copy of the rest with a whole vector's room, so
// that the compiler's loops take whole vectors only.
template <class A, class F>
inline __attribute__((always_inline)) void in_vectors(const A* x, const A* g, const A* w, const A* b, int64_t n, F f) {
  constexpr int kSize = kVector<A>;
  const int64_t whole = n / kSize * kSize;
  if (whole < n) {
    A rest[4][kSize];
    store(rest[0], load_first<A>(x + whole, n - whole));
    store(rest[1], load_first<A>(g + whole, n - whole));
    store(rest[2], load_first<A>(w + whole, n - whole));
    store(rest[3], load_first<A>(b + whole, n - whole));
    f(rest[0], rest[1], rest[2], rest[3], whole, kSize);
  }
  f(x, g, w, b, int64_t{0}, whole);
}

// Sums the addends of each lane of n elements, for some rows, `pitch` lanes per row. Lanes without an element are arbitrary.
// The lanes of a second sum lie behind a row's first ones.
template <RowFunction f, class A>
__attribute__((noinline)) void add_to_lanes(A* lanes, int64_t pitch, int64_t rows, int64_t n, RowRun<A> x, RowRun<A> g,
                                            RowRun<A> w, const RowNumbers<A>* numbers) {
  constexpr int kCount = RowSum<decltype(row_addend<f, A>({}, {}))>::kCount;
  for (int64_t r = 0; r < rows; ++r, lanes += kCount * pitch) {
    const RowNumbers<A> row = numbers[r];
    const auto add = [&](auto begins, const A* x, const A* g, const A* w, int64_t n) __attribute__((always_inline)) {
      const auto each = [=](auto x, auto g, auto w, auto, int64_t at, int64_t count) __attribute__((always_inline)) {
        A rest[kCount][kVector<A>];
        const bool copied = !begins && at + count > n;  // the lanes behind have sums already
        for (int k = 0; k < kCount && copied; ++k) memcpy(rest[k], lanes + k * pitch + at, sizeof(rest[k]));
        A *const one = copied ? rest[0] : lanes + at, *const other = copied ? rest[kCount - 1] : lanes + pitch + at;
        GPUREDUCE_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) {
          const auto addend = row_addend<f>(RowElement<A>{x[i], g[i], w[i], A(0)}, row);
          if constexpr (kCount == 1) {
            one[i] = begins ? addend : one[i] + addend;
          } else {
            const auto [a, b] = addend;
            one[i] = begins ? a : one[i] + a;
            other[i] = begins ? b : other[i] + b;
          }
        }
        for (int k = 0; k < kCount && copied; ++k) copy(lanes + k * pitch + at, rest[k], (n - at) * sizeof(A));
      };
      in_vectors(x, g, w, x, n, each);
    };
    const A *const from = x.data + r * x.pitch, *const grad = g.data + r * g.pitch, *const weight = w.data + r * w.pitch;
    add(std::true_type{}, from, grad, weight, min(n, kLanes));
    for (int64_t i = kLanes; i < n; i += kLanes) add(std::false_type{}, from + i, grad + i, weight + i, min(n - i, kLanes));
  }
}

// Joins the first n lanes of `count` sums, `pitch` apart. `scratch` has room for kChunk numbers.
template <class T>
void join_lanes_of(const T* lanes, int64_t count, int64_t pitch, int64_t n, T* scratch, T* sums) {
  T* const other = scratch + kChunk / 2;
  int64_t size = kVector<T>;
  while (size < n) size *= 2;
  sum_short_rows(scratch, other, lanes, count, pitch, n, size, 1, kVector<T>);
  memcpy(sums, join_tile<T>(scratch, other, count, size / kVector<T>, 1), count * sizeof(T));
}

// Writes what `applied` makes of each of n elements and its row's numbers, for some rows.
template <class A, class F>
__attribute__((noinline)) void apply_to_each(RowRun<A> y, int64_t rows, int64_t n, RowRun<A> x, RowRun<A> g, RowRun<A> w,
                                             RowRun<A> b, const RowNumbers<A>* numbers, F applied) {
  for (int64_t r = 0; r < rows; ++r) {
    const RowNumbers<A> row = numbers[r];
    A* const to = y.data + r * y.pitch;
    const auto apply = [=](auto x, auto g, auto w, auto b, int64_t at, int64_t count) __attribute__((always_inline)) {
      A rest[kVector<A>], *const all = at + count > n ? rest : to + at;
      GPUREDUCE_INDEPENDENT
      for (int64_t i = 0; i < count; ++i) all[i] = applied(RowElement<A>{x[i], g[i], w[i], b[i]}, row);
      if (all == rest) copy(to + at, rest, (n - at) * sizeof(A));
    };
    in_vectors<A>(x.data + r * x.pitch, g.data + r * g.pitch, w.data + r * w.pitch, b.data + r * b.pitch, n, apply);
  }
}

template <class A>
A number_of(const void* numbers, int64_t row) {
  return numbers ? static_cast<const A*>(numbers)[row] : A(0);
}

// Rows of a call: a block of short ones, or one.
template <class A>
class Rows {
 public:
  static constexpr int64_t kMost = 64;

  Rows(const RowsCall& call, char* memory)
      : call_(call),
        most_(call.length > kLanes ? 1 : max<int64_t>(1, min(kMost, kRowBlock / call.length))),
        pitch_(call.length > kLanes ? kLanes : ceil_div(call.length, kVector<float>) * kVector<float>),
        operands_(call, min(call.length * most_, kChunk), memory),
        lanes_(take<A>(memory, 2 * most_ * pitch_)),
        joins_(take<A>(memory, kChunk)),
        stack_(take<A>(memory, 2 * kRowLevels)) {}

  // Calls run(index of the block's first row, rows) for blocks of the rows from `begin` to `end` (exclusive).
  template <class Run>
  void for_each_block(int64_t begin, int64_t end, Run run) {
    for (; begin < end; begin += rows_) {
      rows_ = operands_.move_to(begin, min(most_, end - begin));
      run(begin, rows_);
    }
  }

  __attribute__((noinline)) void find_largest(RowNumbers<A>* numbers) {
    for_each_chunk([&](int64_t begin, int64_t n) {
      const RowRun<A> x = operands_.load(kRowX, begin, n);
      for (int64_t r = 0; r < rows_; ++r) {
        const auto found = join_any<Largest<A>>(x.data + r * x.pitch, n);
        numbers[r].mean = begin == 0 ? found.value : (Largest<A>{numbers[r].mean} + found).value;
      }
    });
  }

  // Sums the addends of each row, completes its numbers, and writes its loss. `index`: the first row's.
  template <RowFunction function>
  void sum(int64_t index, RowNumbers<A>* numbers) {
    constexpr RowFunction f = takes_largest(function) ? RowFunction::softmax : function;  // the others' addends are the same
    using Parts = RowSum<decltype(row_addend<f, A>({}, {}))>;
    constexpr int kCount = Parts::kCount;
    A sums[kCount * kMost];
    Counter<A> chunks(stack_, kCount);
    for_each_chunk([&](int64_t begin, int64_t n) {
      const RowRun<A> x = operands_.load(kRowX, begin, n);
      const RowRun<A> g = takes_grad(f) ? operands_.load(kRowG, begin, n) : x;
      const RowRun<A> w = takes_grad(f) ? operands_.load(kRowWeight, begin, n) : x;
      add_to_lanes<f>(lanes_, pitch_, rows_, n, x, g, w, numbers);
      join_lanes_of(lanes_, kCount * rows_, pitch_, min(n, kLanes), joins_, sums);
      if (begin + n < call_.length) chunks.add(sums);
    });
    chunks.finish(sums);
    const RowRun<A> x = has_result(function) ? RowRun<A>() : operands_.load(kRowX, 0, min(call_.length, kChunk));
    for (int64_t r = 0; r < rows_; ++r) {
      const auto total = Parts::of(sums + r * kCount);
      finish_row<function>(numbers[r], total, call_.length, call_.eps);
      const auto at = [&](int64_t i) {
        const int64_t begin = i / kChunk * kChunk;  // a row of several chunks is alone in its block
        if (begin == 0) return x.data[r * x.pitch + i];
        return operands_.load(kRowX, begin, min(call_.length - begin, kChunk)).data[i - begin];
      };
      if constexpr (!has_result(function)) write_loss<function>(call_.loss, index + r, numbers[r], total, at);
    }
  }

  // Stores what `applied` makes of each element and its row's numbers. `own`: g of the element `target`, if a row has one.
  template <class F>
  void write(const RowGradient<A>* gradients, const RowNumbers<A>* numbers, F applied) {
    for_each_chunk([&](int64_t begin, int64_t n) {
      const RowRun<A> x = operands_.load(kRowX, begin, n), g = operands_.load(kRowG, begin, n);
      const RowRun<A> w = operands_.load(kRowWeight, begin, n), b = operands_.load(kRowBias, begin, n);
      const RowRun<A> y = operands_.result(begin, n);
      apply_to_each(y, rows_, n, x, g, w, b, numbers, applied);
      for (int64_t r = 0; r < rows_ && call_.loss.targets.classes; ++r) {
        const int64_t i = gradients[r].target - begin;
        const auto at = [=](RowRun<A> o) { return o.data[r * o.pitch + i]; };
        if (i >= 0 && i < n)
          y.data[r * y.pitch + i] = applied(RowElement<A>{at(x), gradients[r].own, at(w), at(b)}, numbers[r]);
      }
      operands_.store(begin, n);
    });
  }

 private:
  static constexpr int64_t kRowBlock = 1024;  // elements of a block of short rows

  template <class F>
  void for_each_chunk(F f) {
    for (int64_t begin = 0; begin < call_.length; begin += kChunk) f(begin, min(kChunk, call_.length - begin));
  }

  const RowsCall& call_;
  const int64_t most_, pitch_;
  RowOperands<A> operands_;
  A *const lanes_, *const joins_, *const stack_;
  int64_t rows_ = 0;
};

template <RowFunction f, class A>
void run_rows(const RowsCall& call, int64_t begin, int64_t end, char* scratch) {
  Rows<A> rows(call, scratch);
  rows.for_each_block(begin, end, [&](int64_t index, int64_t count) {
    RowNumbers<A> numbers[Rows<A>::kMost];
    RowGradient<A> gradients[Rows<A>::kMost];
    for (int64_t r = 0; r < count; ++r) {
      if constexpr (reads_numbers(f)) numbers[r] = {number_of<A>(call.mean, index + r), number_of<A>(call.r, index + r)};
      if constexpr (f == RowFunction::log_prob_backward) {
        gradients[r] = row_gradient<A>(call.loss, index + r);
        numbers[r].share = gradients[r].share;
      }
    }
    if constexpr (takes_largest(f)) rows.find_largest(numbers);
    if constexpr (f == RowFunction::layer_norm) rows.template sum<RowFunction::center>(index, numbers);
    if constexpr (has_sum(f)) rows.template sum<f>(index, numbers);
    for (int64_t r = 0; r < count && writes_numbers(f); ++r) {
      if (call.mean) static_cast<A*>(call.mean)[index + r] = numbers[r].mean;
      if (call.r) static_cast<A*>(call.r)[index + r] = numbers[r].r;
    }
    if constexpr (has_result(f))
      rows.write(gradients, numbers, [](const RowElement<A>& e, const RowNumbers<A>& row) __attribute__((always_inline)) {
        return row_applied<f>(e, row);
      });
  });
}

template <RowFunction f, class A>
void run_step(const RowStepCall& step, int64_t begin, int64_t end, char* scratch) {
  const RowsCall& call = step.call;
  Rows<A> rows(call, scratch);
  rows.for_each_block(begin, end, [&](int64_t index, int64_t count) {
    RowNumbers<A> numbers[Rows<A>::kMost];
    RowGradient<A> gradients[Rows<A>::kMost];
    for (int64_t r = 0, i = index; r < count; ++r, ++i) {
      numbers[r] = {number_of<A>(call.mean, i), number_of<A>(call.r, i), number_of<A>(step.first_share, i),
                    number_of<A>(step.share, i)};
      gradients[r] = {call.loss.targets.of(i), numbers[r].share};
    }
    rows.write(gradients, numbers,
               [kind = step.step](const RowElement<A>& e, const RowNumbers<A>& row)
                   __attribute__((always_inline)) { return row_step<f>(kind, e, row); });
  });
}

// Calls `run` with the call's function as a constant, and a 0 of the type that it computes with.
template <class F>
void with_function_of(const RowsCall& call, F run) {
  with_row_function(call.function, [&](auto f) {
    if (call.wide) run(f, 0.0);
    else run(f, 0.0f);
  });
}

void rows_kernel(const RowsCall& call, int64_t begin, int64_t end, void* scratch) {
  with_function_of(
      call, [&](auto f, auto zero) { run_rows<f.value, decltype(zero)>(call, begin, end, static_cast<char*>(scratch)); });
}
void row_step_kernel(const RowStepCall& step, int64_t begin, int64_t end, void* scratch) {
  with_function_of(
      step.call, [&](auto f, auto zero) { run_step<f.value, decltype(zero)>(step, begin, end, static_cast<char*>(scratch)); });
}

// Adds the addends of one row to the sums of n neighbouring columns. Null: not wanted.
template <class A>
__attribute__((noinline)) void add_to_columns(A* __restrict weight, A* __restrict bias, const A* __restrict x,
                                              const A* __restrict g, int64_t n, A mean, A r) {
  if (weight)
    for (int64_t i = 0; i < n; ++i) weight[i] += weight_addend(x[i], g[i], mean, r);
  if (bias)
    for (int64_t i = 0; i < n; ++i) bias[i] += g[i];
}

// The gradients of weight and bias, for columns from `begin` to `end` (exclusive): their sums over all rows.
template <class A>
void sum_weights(const RowWeightsCall& weights, int64_t begin, int64_t end, char* scratch) {
  const RowsCall& call = weights.call;
  const int64_t leaves = leaf_count(call.rows), levels = 64 - __builtin_clzll(leaves);
  // As many columns as fit: long runs of a row are read fastest.
  const int64_t most = min(kRowColumns, kRowBytes / int64_t{2 * sizeof(A)} / (levels + 4) / 64 * 64);
  RowOperands<A> operands(call, most, scratch);
  A *const sums = take<A>(scratch, 2 * most), *const stack = take<A>(scratch, 2 * most * levels);
  for (int64_t first = begin, n; first < end; first += n) {
    n = min(most, end - first);
    A *const weight = weights.weight.data ? sums : nullptr, *const bias = weights.bias.data ? sums + (weight ? n : 0) : nullptr;
    const int64_t size = ((weight != nullptr) + (bias != nullptr)) * n;
    Counter<A> joined(stack, size);
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      pad(sums, size);
      const int64_t start = leaf_start(leaf), stop = min(call.rows, start / kChunk * kChunk + kChunk);
      for (int64_t row = start; row < stop; row += kLanes) {
        operands.move_to(row, 1);
        const A *const x = operands.load(kRowX, first, n).data, *const g = operands.load(kRowG, first, n).data;
        add_to_columns(weight, bias, x, g, n, number_of<A>(call.mean, row), number_of<A>(call.r, row));
      }
      if (leaf + 1 < leaves) joined.add(sums);
    }
    joined.finish(sums);
    const auto store = [=](const RowOperand& to, const A* from) {
      const int64_t bytes = info(to.dtype).size;
      if (from) round_numbers(to.data + first * bytes, to.dtype, bytes, from, n);
    };
    store(weights.weight, weight);
    store(weights.bias, bias);
  }
}
void row_weights_kernel(const RowWeightsCall& weights, int64_t begin, int64_t end, void* scratch) {
  if (weights.call.wide) sum_weights<double>(weights, begin, end, static_cast<char*>(scratch));
  else sum_weights<float>(weights, begin, end, static_cast<char*>(scratch));
}
