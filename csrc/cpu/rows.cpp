// A row at a time: its elements are converted, added in the contract's order, applied and stored.
#include "rows.h"

#include <memory>

#include "exact_floats.h"
#include "threads.h"

namespace gpureduce::cpu {

namespace {

constexpr int64_t kTaskElements = 1 << 15;  // per task, if there are as many
constexpr int kLevels = 48;                 // of the tree above chunks
constexpr int kRoom = kLanes + kLevels;     // sums that a tree holds at a time
constexpr int64_t kSide = 64;               // neighbouring columns that a task of weights takes

// Calls `run(offset, stride, first, n)` for each run of elements with one stride: `first` is the index of its first element.
template <class F>
void for_each_run(const RowDims& dims, RowOperandName operand, F run) {
  if (dims.rank == 0) return run(int64_t{0}, int64_t{0}, int64_t{0}, int64_t{1});
  const RowDim& fast = dims.dims[dims.rank - 1];
  const int64_t n = dims.count();
  for (int64_t first = 0; first < n; first += fast.size)
    run(dims.offset(operand, first), fast.strides[operand], first, fast.size);
}

template <class A>
void load(const RowsCall& call, RowOperandName name, int64_t row_offset, A* to) {
  const RowOperand& from = call.operands[name];
  for_each_run(call.across, name, [&](int64_t offset, int64_t stride, int64_t first, int64_t n) {
    const char* const data = from.data + row_offset + offset;
    switch (from.dtype) {
#define GPUREDUCE_LOAD(dtype, type, kind, accumulator, wide, family)                                                   \
  case DType::dtype:                                                                                                   \
    if constexpr (Kind::kind != Kind::complex) {                                                                       \
      if (stride == sizeof(type))                                                                                      \
        for (int64_t i = 0; i < n; ++i) to[first + i] = static_cast<A>(value(reinterpret_cast<const type*>(data)[i])); \
      else                                                                                                             \
        for (int64_t i = 0; i < n; ++i)                                                                                \
          to[first + i] = static_cast<A>(value(*reinterpret_cast<const type*>(data + i * stride)));                    \
    }                                                                                                                  \
    break;
      GPUREDUCE_DTYPES(GPUREDUCE_LOAD)
#undef GPUREDUCE_LOAD
    }
  });
}

template <class A>
void store(const RowsCall& call, int64_t row_offset, const A* from) {
  const RowOperand& to = call.operands[kRowY];
  for_each_run(call.across, kRowY, [&](int64_t offset, int64_t stride, int64_t first, int64_t n) {
    char* const data = to.data + row_offset + offset;
    switch (to.dtype) {
#define GPUREDUCE_STORE(dtype, type, kind, accumulator, wide, family)                                                \
  case DType::dtype:                                                                                                 \
    if constexpr (Kind::kind == Kind::floating)                                                                      \
      for (int64_t i = 0; i < n; ++i) *reinterpret_cast<type*>(data + i * stride) = round_to<type>(from[first + i]); \
    break;
      GPUREDUCE_DTYPES(GPUREDUCE_STORE)
#undef GPUREDUCE_STORE
    }
  });
}

// The sum of addend(i) for i from 0 to below n, in the contract's order. `leaves`: room for kRoom sums.
template <class F, class Sum>
Sum ordered_sum(int64_t n, Sum* leaves, F addend) {
  Sum *const waiting = leaves + kLanes, total{};
  int64_t chunks = 0;
  for (int64_t chunk = 0; chunk < n; chunk += kChunk, ++chunks) {
    const int64_t here = std::min<int64_t>(kChunk, n - chunk);
    int64_t count = std::min<int64_t>(kLanes, here);
    for (int64_t l = 0; l < count; ++l) leaves[l] = addend(chunk + l);
    for (int64_t base = kLanes; base < here; base += kLanes) {
      const int64_t more = std::min<int64_t>(kLanes, here - base);
      for (int64_t l = 0; l < more; ++l) leaves[l] = leaves[l] + addend(chunk + base + l);
    }
    for (; count > 1; count = (count + 1) / 2) {
      for (int64_t i = 0; i < count / 2; ++i) leaves[i] = leaves[2 * i] + leaves[2 * i + 1];
      if (count % 2) leaves[count / 2] = leaves[count - 1];
    }
    Sum sum = leaves[0];
    int level = 0;
    for (; chunks >> level & 1; ++level) sum = waiting[level] + sum;
    waiting[level] = sum;
  }
  bool any = false;
  for (int level = 0; level < kLevels; ++level) {
    if (!(chunks >> level & 1)) continue;
    total = any ? waiting[level] + total : waiting[level];
    any = true;
  }
  return total;
}

template <class A>
A number_of(const void* numbers, int64_t row) {
  return numbers ? static_cast<const A*>(numbers)[row] : A(0);
}

// The operands of one row at a time, and room for its result. What there is not: g and bias are 0, weight is 1.
template <class A>
class Row {
 public:
  explicit Row(const RowsCall& call) : call_(call), n_(call.length), memory_(new A[5 * n_]) {
    std::fill_n(g_, n_, A(0));
    std::fill_n(w_, n_, A(1));
    std::fill_n(b_, n_, A(0));
    if (call.operands[kRowWeight].data) load(call, kRowWeight, 0, w_);
    if (call.operands[kRowBias].data) load(call, kRowBias, 0, b_);
  }

  // `share`: of the row's target, if the call has targets.
  void read(int64_t index, A share) {
    load(call_, kRowX, call_.along.offset(kRowX, index), x_);
    if (call_.operands[kRowG].data) load(call_, kRowG, call_.along.offset(kRowG, index), g_);
    if (!call_.target) return;
    std::fill_n(g_, n_, A(0));
    const int64_t target = call_.target[index];
    if (target >= 0 && target < n_) g_[target] = share;
  }
  const A* x() const { return x_; }
  RowElement<A> operator[](int64_t i) const { return {x_[i], g_[i], w_[i], b_[i]}; }

  // Stores what `applied` makes of each element.
  template <class F>
  void write(int64_t index, F applied) {
    for (int64_t i = 0; i < n_; ++i) y_[i] = applied((*this)[i]);
    store(call_, call_.along.offset(kRowY, index), y_);
  }

 private:
  const RowsCall& call_;
  const int64_t n_;
  const std::unique_ptr<A[]> memory_;
  A *const x_ = memory_.get(), *const g_ = x_ + n_, *const w_ = g_ + n_, *const b_ = w_ + n_, *const y_ = b_ + n_;
};

template <RowFunction f, class A>
void run_rows(const RowsCall& call, int64_t begin, int64_t end) {
  using Sum = decltype(row_addend<f, A>({}, {}, A(0)));
  const int64_t n = call.length;
  Row<A> elements(call);
  const A* const x = elements.x();
  const std::unique_ptr<Sum[]> leaves(new Sum[kRoom]);
  for (int64_t index = begin; index < end; ++index) {
    RowNumbers<A> row;
    if constexpr (reads_numbers(f)) {
      row.mean = number_of<A>(call.mean, index);
      row.r = number_of<A>(call.r, index);
    }
    if constexpr (f == RowFunction::log_prob_backward) row.share = number_of<A>(call.row_grad, index);
    elements.read(index, row.share);
    if constexpr (takes_largest(f)) {
      row.mean = x[0];
      for (int64_t i = 1; i < n; ++i) row.mean = larger(row.mean, x[i]);
    }
    if constexpr (has_sum(f)) {
      const auto addend = [&](int64_t i) { return row_addend<f>(elements[i], row, x[0]); };
      finish_row<f>(row, ordered_sum(n, leaves.get(), addend), x[0], n, call.eps);
    }
    if constexpr (writes_numbers(f)) {
      if (call.mean) static_cast<A*>(call.mean)[index] = row.mean;
      if (call.r) static_cast<A*>(call.r)[index] = row.r;
    }
    if constexpr (has_result(f)) elements.write(index, [row](const RowElement<A>& e) { return row_applied<f>(e, row); });
  }
}

template <RowFunction f, class A>
void run_step(const RowStepCall& step, int64_t begin, int64_t end) {
  const RowsCall& call = step.call;
  Row<A> elements(call);
  for (int64_t index = begin; index < end; ++index) {
    const RowNumbers<A> row{number_of<A>(call.mean, index), number_of<A>(call.r, index), number_of<A>(step.first_share, index),
                            number_of<A>(step.share, index)};
    elements.read(index, row.share);
    elements.write(index, [kind = step.step, row](const RowElement<A>& e) { return row_step<f>(kind, e, row); });
  }
}

// The sums over all rows of neighbouring columns: of TwoSums, for weight and bias.
template <class A>
void run_weights(const RowWeightsCall& weights, int64_t begin, int64_t end) {
  using Sum = TwoSums<A>;
  struct Columns {
    Sum of[kSide];
    Columns operator+(const Columns& right) const {
      Columns sums;
      for (int64_t i = 0; i < kSide; ++i) sums.of[i] = of[i] + right.of[i];
      return sums;
    }
  };
  const RowsCall& call = weights.call;
  const std::unique_ptr<Columns[]> leaves(new Columns[kRoom]);
  for (int64_t first = begin * kSide; first < std::min(call.length, end * kSide); first += kSide) {
    const int64_t width = std::min(kSide, call.length - first);
    const auto number = [&](RowOperandName name, int64_t row, int64_t i) {
      const char* const at = call.operands[name].data + call.along.offset(name, row) + call.across.offset(name, first + i);
      A x{};
      switch (call.operands[name].dtype) {
#define GPUREDUCE_NUMBER(dtype, type, kind, accumulator, wide, family)                                        \
  case DType::dtype:                                                                                          \
    if constexpr (Kind::kind != Kind::complex) x = static_cast<A>(value(*reinterpret_cast<const type*>(at))); \
    break;
        GPUREDUCE_DTYPES(GPUREDUCE_NUMBER)
#undef GPUREDUCE_NUMBER
      }
      return x;
    };
    const Columns sums = ordered_sum(call.rows, leaves.get(), [&](int64_t row) {
      const A mean = number_of<A>(call.mean, row), r = number_of<A>(call.r, row);
      Columns addends{};
      for (int64_t i = 0; i < width; ++i) {
        const A g = number(kRowG, row, i);
        addends.of[i] = {weight_addend(number(kRowX, row, i), g, mean, r), g};
      }
      return addends;
    });
    for (int64_t i = 0; i < width; ++i) {
      if (weights.weight.data) gpureduce::store(weights.weight.data, first + i, weights.weight.dtype, sums.of[i].first);
      if (weights.bias.data) gpureduce::store(weights.bias.data, first + i, weights.bias.dtype, sums.of[i].second);
    }
  }
}

// Calls `part(function, zero, begin, end)` for parts of the call's rows: its function as a constant, and a 0 of the type that
// it computes with.
template <class Call, class F>
void for_each_part(const Call& call, int64_t length, F part) {
  const int64_t grain = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, length));
  parallel_for(0, call.rows, grain, [&](int64_t begin, int64_t end) {
    const ExactFloats exact;
    with_row_function(call.function, [&](auto f) {
      if (call.wide) part(f, 0.0, begin, end);
      else part(f, 0.0f, begin, end);
    });
  });
}

}  // namespace

void run(const RowsCall& call) {
  for_each_part(call, call.length,
                [&](auto f, auto zero, int64_t begin, int64_t end) { run_rows<f.value, decltype(zero)>(call, begin, end); });
}

void run(const RowStepCall& step) {
  for_each_part(step.call, step.call.length,
                [&](auto f, auto zero, int64_t begin, int64_t end) { run_step<f.value, decltype(zero)>(step, begin, end); });
}

void run(const RowFinishCall& call) {
  for_each_part(call, 1, [&](auto f, auto zero, int64_t begin, int64_t end) {
    using A = decltype(zero);
    for (int64_t i = begin; i < end; ++i)
      store_numbers<f.value>(row_numbers<f.value, A>(call.sum, call.other, i, call.length, call.eps), call.first, call.second,
                             i);
  });
}

void run(const RowWeightsCall& weights) {
  const int64_t blocks = (weights.call.length + kSide - 1) / kSide;
  const int64_t grain = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, kSide * weights.call.rows));
  parallel_for(0, blocks, grain, [&](int64_t begin, int64_t end) {
    const ExactFloats exact;
    if (weights.call.wide) run_weights<double>(weights, begin, end);
    else run_weights<float>(weights, begin, end);
  });
}

}  // namespace gpureduce::cpu
