#include "exact.h"

#include <cmath>
#include <new>

#include "../numeric/exact.h"
#include "exact_floats.h"
#include "kernels.h"
#include "scratch.h"
#include "threads.h"

// Elements are taken in blocks of a row, or of neighbouring columns. Each block becomes a few doubles, whose sum is the exact
// sum of its elements (kernels/exact.inl), and these are added to the outputs' fixed-point numbers. For example 20,000 float32
// elements of one output: 20 blocks, of usually one double each, and 20 additions to its number, which is rounded at the end.

namespace gpureduce::cpu {

namespace {

using exact::FixedPoint;

constexpr int64_t kBlock = 1024;                // most elements of a row's block
constexpr int64_t kRows = 128;                  // most elements of a column in a block
constexpr int64_t kWidthBytes = 1024;           // of the columns that are summed together
constexpr int64_t kLeastColumns = 8;            // fewer columns are summed one after the other
constexpr int64_t kShortRow = 64;               // shorter rows are summed as columns
constexpr int64_t kTask = 32768;                // fewest elements per task
constexpr int64_t kTasksOfEach = 4;             // tasks per thread, if there are enough elements
constexpr int64_t kAddends = int64_t{1} << 29;  // additions to a number before it must carry

template <class T>
const ExactKernels<T>& kernels() {
  if constexpr (std::is_same_v<T, float>) return instruction_set().exact_floats;
  else return instruction_set().exact_doubles;
}

// --- numbers --------------------------------------------------------------------------------------------------------------

// Adds a double that is a multiple of the range's lowest power of two.
template <class Range>
void add_double(FixedPoint<Range>& sum, double x) {
  if (x == 0) return;
  const exact::Addend a = exact::addend_of(x);
  const int shift = a.shift + exact::WideRange::kLowest - Range::kLowest;
  if (shift >= 0) sum.add(a.mantissa, shift);
  else sum.add(a.mantissa >> -shift, 0);
}

// Adds the doubles of one output's block, `step` apart.
template <class Range>
void add_doubles(FixedPoint<Range>& sum, const double* x, int64_t step, int count) {
  for (int i = 0; i < count; ++i) add_double(sum, x[i * step]);
  const double last = x[(count - 1) * step];
  sum.seen |= last == 0 && std::signbit(last) ? exact::kMinusZero : exact::kOther;
}

// Writes a result, or a state. Leaves the number in another form.
template <class Range>
void finish(FixedPoint<Range>& number, void* output, int64_t offset, DType out, bool state, uint64_t divisor) {
  if (state) {
    number.carry();
    return exact::write_state(static_cast<int64_t*>(output) + offset * exact::kStateSize<Range>, number);
  }
  const exact::Leading leading = exact::leading(number, divisor);
  switch (out) {
#define GPUREDUCE_STORE(name, type, kind, accumulator, wide, family)                         \
  case DType::name:                                                                          \
    if constexpr (Kind::kind == Kind::floating)                                              \
      static_cast<type*>(output)[offset] = exact::round_leading<type>(leading, number.seen); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_STORE)
#undef GPUREDUCE_STORE
  }
}

// --- elements -------------------------------------------------------------------------------------------------------------

// Half of each 64-bit integer, as a double: the low 32 bits, or the high ones times 2^32.
template <class In>
void convert_half(const CpuProblem&, const void* x, int64_t n, int64_t stride, double* to, bool high) {
  const In* from = static_cast<const In*>(x);
  for (int64_t i = 0; i < n; ++i) {
    const In v = from[i * stride];
    to[i] = high ? static_cast<double>(v >> 32) * 4294967296.0 : static_cast<double>(static_cast<uint32_t>(v));
  }
}

// Elements of one dtype, as T: a number each, or two numbers each for 64-bit integers.
template <class T>
class Elements {
 public:
  explicit Elements(const CpuProblem& p)
      : problem_(p),
        size_(info(p.in).size),
        halves_(info(p.in).kind == Kind::integer && size_ == 8),
        in_place_(p.in == (std::is_same_v<T, float> ? DType::Float : DType::Double) && p.map == Map::value && !p.negate) {}

  // True if elements that lie side by side are read where they are.
  bool in_place() const { return in_place_; }
  int numbers() const { return halves_ ? 2 : 1; }
  const T* at(int64_t offset) const { return reinterpret_cast<const T*>(address(offset)); }

  // Writes the numbers of n elements; the second ones `second` behind the first.
  void load(int64_t offset, int64_t stride, int64_t n, T* to, int64_t second) const {
    if (!halves_) return kernels<T>().convert(problem_, address(offset), n, stride, to);
    if constexpr (std::is_same_v<T, double>) {
      const auto convert = problem_.in == DType::Long ? convert_half<int64_t> : convert_half<uint64_t>;
      convert(problem_, address(offset), n, stride, to, false);
      convert(problem_, address(offset), n, stride, to + second, true);
    }
  }

 private:
  const char* address(int64_t offset) const { return static_cast<const char*>(problem_.input) + offset * size_; }

  const CpuProblem& problem_;
  int64_t size_;
  bool halves_, in_place_;
};

// --- tasks ----------------------------------------------------------------------------------------------------------------

// Adds the elements of a task to the numbers of its columns.
template <class T, class Range>
class Adder {
 public:
  // Of up to `width` columns.
  Adder(const CpuProblem& p, int64_t width)
      : problem_(p),
        elements_(p),
        capacity_(p.columns > 1 ? kRows * width : kBlock),
        memory_(bytes(elements_, capacity_, width)),
        buffer_(reinterpret_cast<T*>(memory_.get())),
        doubles_(reinterpret_cast<double*>(buffer_ + capacity_ * elements_.numbers())),
        numbers_(reinterpret_cast<FixedPoint<Range>*>(doubles_ + kExactLevels * width)) {}

  FixedPoint<Range>* numbers() { return numbers_; }

  // Elements begin to end (exclusive) of `width` columns, the first of which begins at `offset`.
  void run(int64_t offset, int64_t width, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < width; ++i) (new (numbers_ + i) FixedPoint<Range>)->clear();
    added_ = 0;
    const bool columns = problem_.columns > 1;
    const int64_t most = columns ? kRows : kBlock, pitch = problem_.reduced.fastest().stride;
    const bool in_place = elements_.in_place() && (columns ? problem_.column_stride : pitch) == 1;
    int64_t held = 0;  // elements of each column in the buffer
    Cursor at(problem_.reduced, begin);
    for (int64_t left = end - begin, n; left > 0; left -= n, at.advance(n)) {
      const int64_t place = offset + at.offset();
      n = std::min({left, at.left(), most - held});
      if (in_place && held == 0 && (n == most || n == left)) {
        add(elements_.at(place), pitch, n, width);
        continue;
      }
      if (columns) {
        for (int64_t i = 0; i < n; ++i)
          elements_.load(place + i * pitch, problem_.column_stride, width, buffer_ + (held + i) * width, capacity_);
      } else {
        elements_.load(place, pitch, n, buffer_ + held, capacity_);
      }
      held += n;
      if (held < most && n < left) continue;
      for (int i = 0; i < elements_.numbers(); ++i) add(buffer_ + i * capacity_, width, held, width);
      held = 0;
    }
  }

 private:
  static int64_t bytes(const Elements<T>& elements, int64_t capacity, int64_t width) {
    return capacity * elements.numbers() * sizeof(T) + width * (kExactLevels * sizeof(double) + sizeof(FixedPoint<Range>));
  }

  // A block: n elements of each column, `pitch` apart.
  void add(const T* x, int64_t pitch, int64_t n, int64_t width) {
    const bool columns = problem_.columns > 1;
    const int count = columns ? kernels<T>().columns(x, pitch, n, width, doubles_) : kernels<T>().row(x, n, doubles_);
    added_ += n;
    if (added_ > kAddends) {
      for (int64_t i = 0; i < width; ++i) numbers_[i].carry();
      added_ = n;
    }
    if (count > 0) {
      for (int64_t i = 0; i < width; ++i) add_doubles(numbers_[i], doubles_ + i, width, count);
    } else if (columns) {
      for (int64_t r = 0; r < n; ++r)
        for (int64_t i = 0; i < width; ++i) exact::add(numbers_[i], x[r * pitch + i]);
    } else {
      for (int64_t i = 0; i < n; ++i) exact::add(*numbers_, x[i]);
    }
  }

  const CpuProblem& problem_;
  const Elements<T> elements_;
  const int64_t capacity_;  // elements of the buffer
  const Scratch memory_;
  T* const buffer_;
  double* const doubles_;
  FixedPoint<Range>* const numbers_;
  int64_t added_ = 0;  // since the numbers carried
};

// Too few columns to be summed together become rows, and short rows become columns.
void set_columns(CpuProblem& p) {
  Dims& rows = p.rows;
  if (p.columns > 1 && p.columns < kLeastColumns) {
    if (rows.rank == 1 && rows.dims[0].size == 1) rows.rank = 0;
    rows.dims[rows.rank++] = {p.columns, p.column_stride, 0};
    p.row_count *= p.columns;
    p.columns = p.column_stride = 1;
  } else if (p.columns == 1 && p.length < kShortRow && rows.fastest().size >= kLeastColumns) {
    p.columns = rows.fastest().size;
    p.column_stride = rows.fastest().stride;
    p.row_count /= p.columns;
    if (rows.rank == 1) rows.dims[0] = {1, 0, 0};
    else --rows.rank;
  }
}

CpuProblem problem_of(const ExactSum& sum) {
  Reduction r{};
  r.problem = sum.problem;
  r.input = sum.input;
  r.in = sum.in;
  r.out = sum.out;
  r.map = sum.nan_is_zero && info(sum.in).kind == Kind::floating ? Map::number : Map::value;
  r.negate = sum.negate;
  CpuProblem p = make_cpu_problem(r);
  set_columns(p);
  return p;
}

template <class T, class Range>
void run(const ExactSum& sum) {
  const CpuProblem p = problem_of(sum);
  const int64_t most = kWidthBytes / sizeof(T), tiles = (p.columns + most - 1) / most;
  const int64_t width = (p.columns + tiles - 1) / tiles, groups = p.row_count * tiles;
  const int threads = thread_count();
  int64_t splits = 1;
  if (threads > 1 && groups < kTasksOfEach * threads) {
    const int64_t worth = std::max<int64_t>(1, p.length / std::max<int64_t>(1, kTask / width));
    splits = std::min((kTasksOfEach * threads + groups - 1) / groups, worth);
  }
  const int64_t split_size = ((p.length + splits - 1) / splits + kBlock - 1) / kBlock * kBlock;
  splits = (p.length + split_size - 1) / split_size;
  const std::unique_ptr<FixedPoint<Range>[]> partials(splits > 1 ? new FixedPoint<Range>[splits * p.outputs()] : nullptr);
  const auto write = [&](FixedPoint<Range>& number, int64_t offset) {
    finish(number, sum.output, offset, sum.out, sum.states, sum.divisor);
  };

  const int64_t each = std::max<int64_t>(1, std::min(split_size, p.length) * width);
  parallel_for(0, groups * splits, std::max<int64_t>(1, kTask / each), [&](int64_t from, int64_t to) {
    const ExactFloats exact;
    Adder<T, Range> adder(p, width);
    for (int64_t task = from; task < to; ++task) {
      const int64_t split = task % splits, group = task / splits, row = group / tiles, column = group % tiles * width;
      const int64_t some = std::min(width, p.columns - column), begin = split * split_size;
      const int64_t offset = Cursor(p.rows, row).offset() + column * p.column_stride, first = row * p.columns + column;
      adder.run(offset, some, begin, std::min(p.length, begin + split_size));
      Cursor place(p.results, first);
      for (int64_t i = 0; i < some; ++i, place.advance(1)) {
        FixedPoint<Range>& number = adder.numbers()[i];
        if (!partials) {
          write(number, place.offset());
        } else {
          number.carry();
          partials[(first + i) * splits + split] = number;
        }
      }
    }
  });
  if (!partials) return;
  parallel_for(0, p.outputs(), std::max<int64_t>(1, kTask / 32 / splits), [&](int64_t from, int64_t to) {
    Cursor place(p.results, from);
    for (int64_t output = from; output < to; ++output, place.advance(1)) {
      FixedPoint<Range>& number = partials[output * splits];
      for (int64_t i = 1; i < splits; ++i) number.add(partials[output * splits + i]);
      write(number, place.offset());
    }
  });
}

template <class Range>
void round_states(const ExactRounding& r) {
  parallel_for(0, r.count, kTask / 32, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      FixedPoint<Range> number;
      number.clear();
      exact::add_state(number, r.states + i * exact::kStateSize<Range>);
      finish(number, r.output, i, r.out, false, r.divisor);
    }
  });
}

}  // namespace

void run_exact(const ExactSum& sum) {
  if (sum.in == DType::Double) run<double, exact::WideRange>(sum);
  else if (info(sum.in).kind == Kind::integer) run<double, exact::NarrowRange>(sum);
  else run<float, exact::NarrowRange>(sum);
}

void round_exact(const ExactRounding& r) {
  if (r.wide) round_states<exact::WideRange>(r);
  else round_states<exact::NarrowRange>(r);
}

}  // namespace gpureduce::cpu
