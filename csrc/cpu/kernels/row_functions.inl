// Functions that keep their input's shape (numeric/rows.h), a row at a time, and a chunk of it at a time. Neighbouring lanes
// are neighbours in memory, so the loops over elements are vectorised by the compiler.

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

// The operands of one row as numbers, up to a chunk at a time: where they lie, or in a buffer. What there is not: g and bias
// are 0, weight is 1.
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

  void move_to(int64_t row) {
    for (int o = 0; o < kRowOperands; ++o)
      if (call_.operands[o].data) row_[o] = call_.operands[o].data + call_.along.offset(static_cast<RowOperandName>(o), row);
  }

  // Elements `first` to first + n (exclusive). A buffer that holds them already is not filled again, so n is the same for the
  // same `first`.
  inline __attribute__((always_inline)) const A* load(RowOperandName o, int64_t first, int64_t n) {
    if (in_place_[o]) return reinterpret_cast<const A*>(row_[o]) + first;
    if (row_[o] && (held_[o] != row_[o] || first_[o] != first)) fill(o, first, n);
    return buffers_[o];
  }

  // Where the result's elements from `first` on are written, before they are stored.
  A* result(int64_t first) const { return in_place_[kRowY] ? reinterpret_cast<A*>(row_[kRowY]) + first : buffers_[kRowY]; }
  void store(int64_t first, int64_t n) const {
    if (in_place_[kRowY]) return;
    for_each_run(kRowY, first, n, [&](char* to, int64_t stride, const A* from, int64_t run) {
      round_numbers(to, call_.operands[kRowY].dtype, stride, from, run);
    });
  }

 private:
  __attribute__((noinline)) void fill(RowOperandName o, int64_t first, int64_t n) {
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
    for (int64_t done = 0, run; done < n; done += run) {
      run = min(n - done, fast.size - (first + done) % fast.size);
      take(row_[o] + dims.offset(o, first + done), fast.strides[o], buffers_[o] + done, run);
    }
  }

  const RowsCall& call_;
  char* row_[kRowOperands] = {};
  A* buffers_[kRowOperands] = {};
  bool in_place_[kRowOperands];
  const char* held_[kRowOperands] = {};  // the row and the element that a buffer begins with
  int64_t first_[kRowOperands] = {};
};

// A row's sum is one or two numbers, which are added apart.
template <class Sum>
struct RowSum {
  using Number = Sum;
  static constexpr int kCount = 1;
  static Sum of(const Number* sums) { return sums[0]; }
};
template <>
struct RowSum<Moments> {
  using Number = double;
  static constexpr int kCount = 2;
  static Moments of(const Number* sums) { return {sums[0], sums[1]}; }
};
template <class A>
struct RowSum<TwoSums<A>> {
  using Number = A;
  static constexpr int kCount = 2;
  static TwoSums<A> of(const Number* sums) { return {sums[0], sums[1]}; }
};

// Adds the addends of up to kLanes neighbouring elements to their lanes, or begins these. The lanes of a second sum lie behind
// the lanes of the first sum.
template <RowFunction f, bool kBegins, class A, class T>
__attribute__((noinline)) void add_to_lanes(T* __restrict lanes, const A* __restrict x, const A* __restrict g,
                                            const A* __restrict w, int64_t n, RowNumbers<A> row, A first) {
  for (int64_t i = 0; i < n; ++i) {
    const auto addend = row_addend<f>(RowElement<A>{x[i], g[i], w[i], A(0)}, row, first);
    if constexpr (RowSum<std::decay_t<decltype(addend)>>::kCount == 1) {
      lanes[i] = kBegins ? addend : lanes[i] + addend;
    } else {
      const auto [one, other] = addend;
      lanes[i] = kBegins ? one : lanes[i] + one;
      lanes[kLanes + i] = kBegins ? other : lanes[kLanes + i] + other;
    }
  }
}

// Joins the first n of kLanes lanes, for each of `count` sums. `scratch` has room for kChunk numbers.
template <class T>
void join_lanes_of(const T* lanes, int64_t count, int64_t n, T* scratch, T* sums) {
  T* const other = scratch + kChunk / 2;
  int64_t size = kVector<T>;
  while (size < n) size *= 2;
  sum_short_rows(scratch, other, lanes, count, kLanes, n, size, 1, kVector<T>);
  memcpy(sums, join_tile<T>(scratch, other, count, size / kVector<T>, 1), count * sizeof(T));
}

template <class A, class F>
__attribute__((noinline)) void apply_to_each(A* __restrict y, const A* __restrict x, const A* __restrict g,
                                             const A* __restrict w, const A* __restrict b, int64_t n, F applied) {
  for (int64_t i = 0; i < n; ++i) y[i] = applied(RowElement<A>{x[i], g[i], w[i], b[i]});
}

template <class A>
A number_of(const void* numbers, int64_t row) {
  return numbers ? static_cast<const A*>(numbers)[row] : A(0);
}

// The rows of a call.
template <class A>
class Rows {
 public:
  Rows(const RowsCall& call, char* memory)
      : call_(call),
        operands_(call, min(call.length, kChunk), memory),
        lanes_(take<double>(memory, 2 * kLanes)),
        joins_(take<double>(memory, kChunk)),
        stack_(take<double>(memory, 2 * kRowLevels)) {}

  void move_to(int64_t row) { operands_.move_to(row); }
  A first() { return at(0); }
  A at(int64_t i) {
    const int64_t begin = i / kChunk * kChunk;
    return operands_.load(kRowX, begin, min(call_.length - begin, kChunk))[i - begin];
  }

  A largest() {
    Largest<A> all = padding<Largest<A>>();
    for_each_chunk([&](int64_t begin, int64_t n) { all = all + join_any<Largest<A>>(operands_.load(kRowX, begin, n), n); });
    return all.value;
  }

  template <RowFunction function>
  auto sum(const RowNumbers<A>& row, A first) {
    constexpr RowFunction f = takes_largest(function) ? RowFunction::softmax : function;  // the others' addends are the same
    using Parts = RowSum<decltype(row_addend<f, A>({}, {}, A(0)))>;
    using T = typename Parts::Number;
    constexpr int kCount = Parts::kCount;
    T *const lanes = reinterpret_cast<T*>(lanes_), sums[kCount] = {};
    Counter<T> chunks(reinterpret_cast<T*>(stack_), kCount);
    for_each_chunk([&](int64_t begin, int64_t n) {
      const A* const x = operands_.load(kRowX, begin, n);
      const A* const g = takes_grad(f) ? operands_.load(kRowG, begin, n) : x;
      const A* const w = takes_grad(f) ? operands_.load(kRowWeight, begin, n) : x;
      const int64_t count = min(n, kLanes);
      add_to_lanes<f, true>(lanes, x, g, w, count, row, first);
      for (int64_t i = kLanes; i < n; i += kLanes)
        add_to_lanes<f, false>(lanes, x + i, g + i, w + i, min(kLanes, n - i), row, first);
      join_lanes_of(lanes, kCount, count, reinterpret_cast<T*>(joins_), sums);
      if (begin + n < call_.length) chunks.add(sums);
    });
    chunks.finish(sums);
    return Parts::of(sums);
  }

  // Stores what `applied` makes of each element. `own`: g of the element `target`, if there is one.
  template <class F>
  void write(int64_t target, A own, F applied) {
    for_each_chunk([&](int64_t begin, int64_t n) {
      const A *const x = operands_.load(kRowX, begin, n), *const g = operands_.load(kRowG, begin, n);
      const A *const w = operands_.load(kRowWeight, begin, n), *const b = operands_.load(kRowBias, begin, n);
      A* const y = operands_.result(begin);
      apply_to_each(y, x, g, w, b, n, applied);
      const int64_t i = target - begin;
      if (i >= 0 && i < n) y[i] = applied(RowElement<A>{x[i], own, w[i], b[i]});
      operands_.store(begin, n);
    });
  }

 private:
  template <class F>
  void for_each_chunk(F f) {
    for (int64_t begin = 0; begin < call_.length; begin += kChunk) f(begin, min(kChunk, call_.length - begin));
  }

  const RowsCall& call_;
  RowOperands<A> operands_;
  double *const lanes_, *const joins_, *const stack_;
};

template <RowFunction f, class A>
void run_rows(const RowsCall& call, int64_t begin, int64_t end, char* scratch) {
  Rows<A> rows(call, scratch);
  for (int64_t index = begin; index < end; ++index) {
    rows.move_to(index);
    RowNumbers<A> row;
    if constexpr (reads_numbers(f)) {
      row.mean = number_of<A>(call.mean, index);
      row.r = number_of<A>(call.r, index);
    }
    RowGradient<A> gradient;
    if constexpr (f == RowFunction::log_prob_backward) {
      gradient = row_gradient<A>(call.loss, index);
      row.share = gradient.share;
    }
    if constexpr (takes_largest(f)) row.mean = rows.largest();
    if constexpr (has_sum(f)) {
      const A first = rows.first();
      const auto sum = rows.template sum<f>(row, first);
      finish_row<f>(row, sum, first, call.length, call.eps);
      if constexpr (!has_result(f)) write_loss<f>(call.loss, index, row, sum, [&](int64_t i) { return rows.at(i); });
    }
    if constexpr (writes_numbers(f)) {
      if (call.mean) static_cast<A*>(call.mean)[index] = row.mean;
      if (call.r) static_cast<A*>(call.r)[index] = row.r;
    }
    if constexpr (has_result(f))
      rows.write(gradient.target, gradient.own,
                 [row](const RowElement<A>& e) __attribute__((always_inline)) { return row_applied<f>(e, row); });
  }
}

template <RowFunction f, class A>
void run_step(const RowStepCall& step, int64_t begin, int64_t end, char* scratch) {
  const RowsCall& call = step.call;
  Rows<A> rows(call, scratch);
  for (int64_t index = begin; index < end; ++index) {
    rows.move_to(index);
    const RowNumbers<A> row{number_of<A>(call.mean, index), number_of<A>(call.r, index), number_of<A>(step.first_share, index),
                            number_of<A>(step.share, index)};
    rows.write(call.loss.targets.of(index), row.share,
               [kind = step.step, row](const RowElement<A>& e)
                   __attribute__((always_inline)) { return row_step<f>(kind, e, row); });
  }
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
        operands.move_to(row);
        const A *const x = operands.load(kRowX, first, n), *const g = operands.load(kRowG, first, n);
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
