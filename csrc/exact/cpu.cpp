#include "cpu.h"

#include <atomic>
#include <new>
#include <optional>
#include <stdexcept>

#include "../core/cpu/exact_floats.h"
#include "../core/cpu/kernels.h"
#include "../core/cpu/scratch.h"
#include "../core/cpu/threads.h"
#include "../core/numeric/exact.h"

// Elements are taken in blocks of a row, or of neighbouring columns. Each block becomes a few doubles, whose sum is the exact
// sum of its elements (core/cpu/kernels/exact.inl), and these are added to the outputs' fixed-point numbers. For example 20,000
// float32 elements of one output: 20 blocks, of usually one double each, and 20 additions to its number, which is rounded at
// the end.

namespace gpureduce::cpu {

namespace {

using exact::FixedPoint;

constexpr int64_t kBlock = 1024;                // most elements of an output in a block
constexpr int64_t kBlockBytes = 65536;          // of a block of several outputs
constexpr int64_t kWidthBytes = 4096;           // of the columns that are summed together
constexpr int64_t kRows = 64;                   // rows that are summed together
constexpr int64_t kShortRow = 512;              // shorter rows are summed together
constexpr int64_t kTask = 32768;                // fewest elements per task
constexpr int64_t kTasksOfEach = 4;             // tasks per thread, if there are enough elements
constexpr int64_t kAddends = int64_t{1} << 29;  // most additions to a number before it must carry
constexpr int64_t kPartialBytes = 1 << 24;      // most memory for the numbers of outputs that several tasks take

std::atomic<int64_t> additions = kAddends;  // to a number before it carries

template <class T>
const ExactKernels<T>& kernels() {
  if constexpr (std::is_same_v<T, float>) return instruction_set().exact_floats;
  else return instruction_set().exact_doubles;
}

// --- numbers --------------------------------------------------------------------------------------------------------------

// Adds the doubles of one output's block, `step` apart. The last one alone tells if all elements are -0.
template <class Range>
void add_doubles(FixedPoint<Range>& sum, const double* x, int64_t step, int count) {
  for (int i = 0; i < count; ++i) {
    exact::Element element = exact::element_of(x[i * step]);
    if (i + 1 < count) element.seen = 0;
    exact::add(sum, element);
  }
}

// What a call makes of its sums, but for their places.
struct Form {
  void* output;
  DType out;
  bool states, root;
  uint64_t divisor;

  // True if results are made of sums of one double without a fixed-point number: they are roots, or are divided exactly.
  bool takes_doubles() const { return !states && (divisor & (divisor - 1)) == 0; }
};

// Calls `f` with a pointer to a floating result.
template <class F>
void with_result(const Form& form, int64_t offset, F f) {
  switch (form.out) {
#define GPUREDUCE_RESULT(name, type, kind, accumulator, wide, family)                        \
  case DType::name:                                                                          \
    if constexpr (Kind::kind == Kind::floating) f(static_cast<type*>(form.output) + offset); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_RESULT)
#undef GPUREDUCE_RESULT
  }
}

void finish(const exact::Leading& leading, uint32_t seen, const Form& form, int64_t offset) {
  with_result(form, offset, [&](auto* to) { *to = exact::round_leading<std::decay_t<decltype(*to)>>(leading, seen); });
}

// Writes a sum that one double holds. Only a quotient that is a subnormal double is rounded here, and then smaller dtypes
// have 0.
void finish(double sum, const Form& form, int64_t offset) {
  if (form.root) {
    const exact::Element x = exact::element_of(sum);
    exact::Magnitude magnitude{x.magnitude, 0, x.exponent - 64, false, false};
    magnitude.normalize();
    return finish(exact::root(magnitude), x.seen, form, offset);
  }
  const double quotient = sum / static_cast<double>(form.divisor);
  with_result(form, offset, [&](auto* to) { *to = round_to<std::decay_t<decltype(*to)>>(quotient); });
}

// Writes a result, or a state. Leaves the number in another form.
template <class Range>
void finish(FixedPoint<Range>& number, const Form& form, int64_t offset) {
  if (form.states) {
    number.carry();
    return exact::write_state(static_cast<int64_t*>(form.output) + offset * exact::kStateSize<Range>, number);
  }
  const exact::Leading result = exact::leading(number, form.divisor, form.root);
  finish(result, number.seen, form, offset);
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

int64_t offset_of(const CpuProblem& p, int64_t row, int64_t column) {
  return Cursor(p.rows, row).offset() + column * p.column_stride;
}

// Elements of one dtype, as T: a number each, or two numbers each for 64-bit integers. They are read from a place on that moves
// through a task's elements.
template <class T>
class Elements {
 public:
  explicit Elements(const CpuProblem& p)
      : problem_(p),
        size_(info(p.in).size),
        halves_(info(p.in).kind == Kind::integer && size_ == 8),
        in_place_(p.in == (std::is_same_v<T, float> ? DType::Float : DType::Double) && p.map == Map::value && !p.negate) {}

  // Goes to an element of an output, and n elements on, at most left().
  void go(int64_t row, int64_t column, int64_t element) {
    first_ = offset_of(problem_, row, column);
    at_.emplace(problem_.reduced, element);
  }
  int64_t left() const { return at_->left(); }
  void advance(int64_t n) { at_->advance(n); }
  // From an element of an output to the next one, and to the next output's.
  int64_t pitch() const { return problem_.reduced.fastest().stride; }
  int64_t across() const { return problem_.column_stride; }
  // True if one stride of 1 walks all elements of a block, which is loaded by columns or by rows.
  bool is_flat(bool by_columns, int64_t n, int64_t width) const {
    return by_columns ? across() == 1 && pitch() == width : pitch() == 1 && across() == n;
  }

  // True if elements that lie side by side are read where they are.
  bool in_place() const { return in_place_; }
  // The kernel that reads a row where it is, if there is one.
  ExactRow row() const {
    const bool plain = problem_.map == Map::value && !problem_.negate;
    if (!plain) return nullptr;
    if (in_place_) return kernels<T>().row;
    if (problem_.in == DType::Half) return instruction_set().exact_row_of_halves;
    return problem_.in == DType::BFloat16 ? instruction_set().exact_row_of_bfloats : nullptr;
  }
  const void* here() const { return address(0); }

  // Writes the numbers of n elements, or of n outputs' elements, from element i of output j on; the second numbers `second`
  // behind the first.
  void load(int64_t i, int64_t j, bool by_columns, int64_t n, T* to, int64_t second) const {
    const void* const from = address(i * pitch() + j * across());
    const int64_t stride = by_columns ? across() : pitch();
    if (!halves_) return kernels<T>().convert(problem_, from, n, stride, to);
    if constexpr (std::is_same_v<T, double>) {
      const auto convert = problem_.in == DType::Long ? convert_half<int64_t> : convert_half<uint64_t>;
      convert(problem_, from, n, stride, to, false);
      convert(problem_, from, n, stride, to + second, true);
    }
  }
  static constexpr bool kMultiplies = false;
  int numbers() const { return halves_ ? 2 : 1; }

 private:
  const void* address(int64_t offset) const {
    return static_cast<const char*>(problem_.input) + (first_ + at_->offset() + offset) * size_;
  }

  const CpuProblem& problem_;
  int64_t size_;
  bool halves_, in_place_;
  int64_t first_ = 0;
  std::optional<Cursor> at_;
};

// The bits of a dtype's magnitudes.
int bits_of(DType dtype) {
  switch (dtype) {
#define GPUREDUCE_BITS(name, type, kind, accumulator, wide, family)                     \
  case DType::name:                                                                     \
    if constexpr (Kind::kind == Kind::floating) return exact::format_of<type>().digits; \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_BITS)
#undef GPUREDUCE_BITS
  }
  return 8 * info(dtype).size;
}

// Products of elements that doubles hold: a double each, or two. Until multiply() the two numbers are the factors.
class Products {
 public:
  explicit Products(const CpuProblem* inputs)
      : factors_{Elements<double>(inputs[0]), Elements<double>(inputs[1])},
        narrow_(bits_of(inputs[0].in) + bits_of(inputs[1].in) <= 53) {}
  static bool has(DType first, DType second) {
    constexpr int kLongest = 53;
    if (bits_of(first) > kLongest || bits_of(second) > kLongest) return false;
    return bits_of(first) + bits_of(second) <= kLongest || instruction_set().exact_products;
  }

  void go(int64_t row, int64_t column, int64_t element) {
    for (Elements<double>& each : factors_) each.go(row, column, element);
  }
  int64_t left() const { return factors_[0].left(); }
  void advance(int64_t n) {
    for (Elements<double>& each : factors_) each.advance(n);
  }
  int64_t pitch() const { return factors_[0].pitch(); }
  int64_t across() const { return factors_[0].across(); }
  bool is_flat(bool by_columns, int64_t n, int64_t width) const {
    return factors_[0].is_flat(by_columns, n, width) && factors_[1].is_flat(by_columns, n, width);
  }
  bool in_place() const { return false; }
  ExactRow row() const { return nullptr; }
  const void* here() const { return nullptr; }
  void load(int64_t i, int64_t j, bool by_columns, int64_t n, double* to, int64_t second) const {
    factors_[0].load(i, j, by_columns, n, to, 0);
    factors_[1].load(i, j, by_columns, n, to + second, 0);
  }
  static constexpr bool kMultiplies = true;
  int numbers() const { return 2; }

  // Replaces the factors of rows of n, which begin `pitch` apart, by one or two doubles per product, whose count it returns; or
  // returns 0 if two doubles are not enough.
  int multiply(double* x, double* y, int64_t pitch, int64_t rows, int64_t n) const {
    if (!narrow_) return instruction_set().exact_products(x, y, pitch, rows, n) ? 2 : 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < n; ++i) x[r * pitch + i] *= y[r * pitch + i];
    return 1;
  }

 private:
  Elements<double> factors_[2];
  const bool narrow_;
};

// --- tasks ----------------------------------------------------------------------------------------------------------------

// How outputs are summed: each by itself, or several together, as neighbouring columns or rows.
enum class Side { one, columns, rows };

// Adds the elements of a task to its outputs. Source: Elements or Products, which it makes from its problems.
template <class T, class Range, class Source>
class Adder {
 public:
  // Of up to `width` outputs.
  template <class Problems>
  Adder(const Problems& problems, Side side, int64_t width)
      : side_(side),
        elements_(problems),
        row_(elements_.row()),
        most_(side == Side::one ? kBlock : std::clamp<int64_t>(kBlockBytes / sizeof(T) / width, 16, kBlock)),
        capacity_(most_ * width),
        room_(kExactLevels * std::max(width, kExactWidth)),
        memory_((room_ + 2 * width) * sizeof(double) + width * sizeof(FixedPoint<Range>) +
                capacity_ * elements_.numbers() * sizeof(T)),
        doubles_(reinterpret_cast<double*>(memory_.get())),
        held_sums_(doubles_ + room_),
        numbers_(reinterpret_cast<FixedPoint<Range>*>(held_sums_ + 2 * width)),
        buffer_(reinterpret_cast<T*>(numbers_ + width)) {}

  // Adds the elements from `begin` to before `end` of `width` outputs: neighbouring columns of a row.
  void run(int64_t row, int64_t column, int64_t width, int64_t begin, int64_t end) {
    width_ = width;
    used_ = false;
    held_ = added_ = 0;
    elements_.go(row, column, begin);
    const int64_t pitch = elements_.pitch(), across = elements_.across();
    const bool columns = side_ == Side::columns;
    const bool in_place = columns ? elements_.in_place() && across == 1
                                  : pitch == 1 && (side_ == Side::one ? row_ != nullptr : elements_.in_place());
    int64_t filled = 0;  // elements of each output in the buffer
    for (int64_t left = end - begin, n; left > 0; left -= n, elements_.advance(n)) {
      n = std::min({left, elements_.left(), most_ - filled});
      const bool whole = filled == 0 && (n == most_ || n == left);  // a block
      if (in_place && whole) {
        if (side_ != Side::one) add(static_cast<const T*>(elements_.here()), columns ? pitch : across, n);
        else if (!add(row_(elements_.here(), n, doubles_), n)) add_row(n);
        continue;
      }
      int64_t step = columns ? width : most_;
      if (columns && elements_.is_flat(true, n, width)) {
        elements_.load(0, 0, true, n * width, buffer_ + filled * width, capacity_);
      } else if (columns) {
        for (int64_t i = 0; i < n; ++i) elements_.load(i, 0, true, width, buffer_ + (filled + i) * width, capacity_);
      } else if (whole && elements_.is_flat(false, n, width)) {
        elements_.load(0, 0, false, n * width, buffer_, capacity_);
        step = n;
      } else {
        for (int64_t i = 0; i < width; ++i) elements_.load(0, i, false, n, buffer_ + i * most_ + filled, capacity_);
      }
      filled += n;
      if (filled < most_ && n < left) continue;
      int numbers = elements_.numbers();
      if constexpr (Source::kMultiplies) numbers = multiply(step, filled);
      for (int i = 0; i < numbers; ++i) add(buffer_ + i * capacity_, step, filled);
      filled = 0;
    }
  }

  // Each output's sum as one double, if it is one; or, if `rounds`, the double nearest to it.
  const double* sums(bool rounds) {
    if (used_ || held_ == 0 || (held_levels_ > 1 && !rounds)) return nullptr;
    for (int64_t i = 0; held_levels_ > 1 && i < width_; ++i) {
      // One addition of two doubles is rounded once. It would lose the sign of a sum of -0 alone.
      const double first = held_sums_[i], second = held_sums_[width_ + i];
      held_sums_[i] = first == 0 ? second : first + second;
    }
    return held_sums_;
  }

  // Each output's sum.
  FixedPoint<Range>* numbers() {
    use();
    flush();
    return numbers_;
  }

 private:
  // Elements of a row that no double holds.
  void add_row(int64_t n) {
    elements_.load(0, 0, false, n, buffer_, capacity_);
    add(buffer_, n, n);
  }

  // Multiplies a block of n products of each output. If doubles do not hold them, adds them. Returns the doubles of a product.
  int multiply(int64_t step, int64_t n) {
    const bool columns = side_ == Side::columns, flat = columns || step == n;
    T *const x = buffer_, *const y = buffer_ + capacity_;
    const int numbers = elements_.multiply(x, y, step, flat ? 1 : width_, flat ? n * width_ : n);
    if (numbers > 0) return numbers;
    use();
    count(n);
    for (int64_t i = 0; i < width_; ++i) {
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = columns ? k * step + i : i * step + k;
        exact::add_product(numbers_[i], exact::element_of(x[at]), exact::element_of(y[at]));
      }
    }
    return 0;
  }

  // A block: n elements of each output, whose rows, in memory, begin `pitch` apart.
  void add(const T* x, int64_t pitch, int64_t n) {
    const ExactKernels<T>& kernel = kernels<T>();
    const bool columns = side_ == Side::columns;
    const ExactParts parts = side_ == Side::one ? kernel.row(x, n, doubles_)
                             : columns          ? kernel.columns(x, pitch, n, width_, buffer_, doubles_)
                                                : kernel.rows(x, pitch, width_, n, doubles_);
    if (add(parts, n)) return;
    use();
    count(n);
    for (int64_t i = 0; i < width_; ++i)
      for (int64_t k = 0; k < n; ++k) exact::add(numbers_[i], exact::element_of(columns ? x[k * pitch + i] : x[i * pitch + k]));
  }

  // Adds a block of n elements of each output, whose sums are in doubles_. One double per output is held. The next block's
  // double is added to it while no digit is lost. Two doubles per output are held if nothing else is: an output of one block
  // needs no fixed-point number. Returns false if there are no doubles.
  bool add(const ExactParts& parts, int64_t n) {
    if (parts.levels < 0) return false;
    const int top = std::max(parts.top, top_), unit = std::min(parts.unit, unit_);
    const bool both = held_ > 0 && held_levels_ == 1 && parts.levels == 1;
    if (both && top + 64 - __builtin_clzll(held_ + n - 1) - 53 <= unit) {
      for (int64_t i = 0; i < width_; ++i) held_sums_[i] += doubles_[i];
      held_ += n;
      top_ = top;
      unit_ = unit;
      return true;
    }
    if (parts.levels > 1 && (used_ || held_ > 0)) {  // no short output
      use();
      count(parts.levels);
      for (int64_t i = 0; i < width_; ++i) add_doubles(numbers_[i], doubles_ + i, width_, parts.levels);
      return true;
    }
    if (parts.levels > 2) {
      use();
      return add(parts, n);
    }
    flush();
    std::copy(doubles_, doubles_ + parts.levels * width_, held_sums_);
    held_levels_ = parts.levels;
    held_ = n;
    top_ = parts.top;
    unit_ = parts.unit;
    return true;
  }

  void use() {
    if (used_) return;
    for (int64_t i = 0; i < width_; ++i) (new (numbers_ + i) FixedPoint<Range>)->clear();
    used_ = true;
  }
  void flush() {
    if (held_ == 0) return;
    use();
    count(held_levels_);
    for (int64_t i = 0; i < width_; ++i) add_doubles(numbers_[i], held_sums_ + i, width_, held_levels_);
    held_ = 0;
  }
  void count(int64_t additions) {
    added_ += additions;
    if (added_ <= most_added_) return;
    for (int64_t i = 0; i < width_; ++i) numbers_[i].carry();
    added_ = additions;
  }

  const Side side_;
  Source elements_;
  const ExactRow row_;
  const int64_t most_;      // elements of each output in a block
  const int64_t capacity_;  // elements of the buffer
  const int64_t room_;      // doubles of a block
  const Scratch memory_;
  double *const doubles_, *const held_sums_;
  FixedPoint<Range>* const numbers_;
  T* const buffer_;
  int64_t width_ = 0;
  bool used_ = false;       // the numbers
  int64_t held_ = 0;        // elements of each output in held_sums_
  int held_levels_ = 1;     // doubles of each output there
  int top_ = 0, unit_ = 0;  // of these, as in ExactParts
  int64_t added_ = 0;       // to the numbers since they carried
  const int64_t most_added_ = additions;
};

// Reads one element, or its negative.
using Read = exact::Element (*)(const void* data, int64_t offset, bool negate);
template <class T>
exact::Element read(const void* data, int64_t offset, bool negate) {
  return exact::element_of(static_cast<const T*>(data)[offset], negate);
}
template <class Result = Read>
Result reader_of(DType dtype) {
  switch (dtype) {
#define GPUREDUCE_READER(name, type, kind, accumulator, wide, family) \
  case DType::name:                                                   \
    if constexpr (Kind::kind != Kind::complex) return read<type>;     \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_READER)
#undef GPUREDUCE_READER
  }
  return nullptr;
}

// Adds the products of a task, one by one, of any dtypes.
template <class Range>
class ProductAdder {
 public:
  ProductAdder(const CpuProblem* inputs, int64_t width)
      : inputs_(inputs), read_{reader_of(inputs[0].in), reader_of(inputs[1].in)}, numbers_(new FixedPoint<Range>[width]) {}

  void run(int64_t row, int64_t column, int64_t width, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < width; ++i) numbers_[i].clear();
    const CpuProblem &x = inputs_[0], &y = inputs_[1];
    const int64_t first = offset_of(x, row, column), second = offset_of(y, row, column);
    Cursor at(x.reduced, begin), and_at(y.reduced, begin);
    const int64_t most = additions;
    for (int64_t k = begin, added = 0; k < end; ++k, at.advance(1), and_at.advance(1)) {
      for (int64_t i = 0; i < width; ++i) {
        exact::add_product(numbers_[i], read_[0](x.input, first + at.offset() + i * x.column_stride, x.negate),
                           read_[1](y.input, second + and_at.offset() + i * y.column_stride, y.negate));
      }
      if (++added < most) continue;
      for (int64_t i = 0; i < width; ++i) numbers_[i].carry();
      added = 0;
    }
  }
  const double* sums(bool) const { return nullptr; }
  FixedPoint<Range>* numbers() { return numbers_.get(); }

 private:
  const CpuProblem* const inputs_;
  const Read read_[2];
  const std::unique_ptr<FixedPoint<Range>[]> numbers_;
};

// Short rows are summed together: they become columns of the problem.
Side set_side(CpuProblem& p) {
  if (p.columns > 1) return Side::columns;
  Dims& rows = p.rows;
  if (p.length >= kShortRow || rows.fastest().size < 2) return Side::one;
  p.columns = rows.fastest().size;
  p.column_stride = rows.fastest().stride;
  p.column_second = rows.fastest().second;
  p.row_count /= p.columns;
  if (rows.rank == 1) rows.dims[0] = {1, 0, 0};
  else --rows.rank;
  return Side::rows;
}

CpuProblem problem_of(const ExactSum& sum) {
  Reduction r{};
  r.problem = sum.problem;
  r.input = sum.input;
  r.in = sum.in;
  r.out = sum.out;
  r.map = sum.nan_is_zero && info(sum.in).kind == Kind::floating ? Map::number : Map::value;
  r.negate = sum.negate;
  return make_cpu_problem(r);
}

// Cuts a problem into tasks of a part of the elements of at most `most` columns, and runs them. make_adder(width) makes what
// adds a task.
template <class Range, class MakeAdder>
void run(const ExactSum& sum, const CpuProblem& p, int64_t most, MakeAdder make_adder) {
  const int64_t tiles = (p.columns + most - 1) / most;
  const int64_t width = (p.columns + tiles - 1) / tiles, groups = p.row_count * tiles;
  const int threads = thread_count();
  int64_t splits = 1;
  if (threads > 1 && groups < kTasksOfEach * threads) {
    const int64_t worth = std::max<int64_t>(1, p.length / std::max<int64_t>(1, kTask / width));
    const int64_t room = kPartialBytes / (p.outputs() * static_cast<int64_t>(sizeof(FixedPoint<Range>)));
    splits = std::max<int64_t>(1, std::min({(kTasksOfEach * threads + groups - 1) / groups, worth, room}));
  }
  const int64_t split_size = ((p.length + splits - 1) / splits + kBlock - 1) / kBlock * kBlock;
  splits = (p.length + split_size - 1) / split_size;
  const std::unique_ptr<FixedPoint<Range>[]> partials(splits > 1 ? new FixedPoint<Range>[splits * p.outputs()] : nullptr);
  const Form form{sum.output, sum.out, sum.states, sum.root, sum.divisor};
  const bool rounds = sum.out == DType::Double && sum.divisor == 1 && !sum.root;  // two doubles are added as one result

  const int64_t each = std::max<int64_t>(1, std::min(split_size, p.length) * width);
  parallel_for(0, groups * splits, std::max<int64_t>(1, kTask / each), [&](int64_t from, int64_t to) {
    const ExactFloats exact;
    auto adder = make_adder(width);
    for (int64_t task = from; task < to; ++task) {
      const int64_t split = task % splits, group = task / splits, row = group / tiles, column = group % tiles * width;
      const int64_t some = std::min(width, p.columns - column), begin = split * split_size, first = row * p.columns + column;
      adder.run(row, column, some, begin, std::min(p.length, begin + split_size));
      Cursor place(p.results, first);
      const double* const sums = form.takes_doubles() && !partials ? adder.sums(rounds) : nullptr;
      FixedPoint<Range>* const numbers = sums ? nullptr : adder.numbers();
      for (int64_t i = 0; i < some; ++i, place.advance(1)) {
        if (partials) {
          numbers[i].carry();
          partials[(first + i) * splits + split] = numbers[i];
        } else if (sums) {
          finish(sums[i], form, place.offset());
        } else {
          finish(numbers[i], form, place.offset());
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
      finish(number, form, place.offset());
    }
  });
}

// The sums of elements, which are converted to T.
template <class T, class Range>
void run_elements(const ExactSum& sum) {
  CpuProblem p = problem_of(sum);
  const Side side = set_side(p);
  run<Range>(sum, p, side == Side::rows ? kRows : kWidthBytes / static_cast<int64_t>(sizeof(T)),
             [&](int64_t width) { return Adder<T, Range, Elements<T>>(p, side, width); });
}

// The products of two inputs. The first one's memory decides how tasks are cut.
template <class Range>
void run_products(const ExactSum& sum) {
  const std::unique_ptr<CpuProblem[]> inputs(new CpuProblem[2]);  // not on the stack, which may be small
  inputs[0] = problem_of(sum);
  const Side side = set_side(inputs[0]);
  inputs[1] = inputs[0];
  inputs[1].swap_places();
  inputs[1].input = sum.second;
  inputs[1].in = sum.second_dtype;
  inputs[1].negate = sum.second_negate;
  const int64_t most = side == Side::rows ? kRows : kWidthBytes / static_cast<int64_t>(sizeof(double));
  const CpuProblem* const both = inputs.get();
  if (Products::has(both[0].in, both[1].in))
    run<Range>(sum, both[0], most, [&](int64_t width) { return Adder<double, Range, Products>(both, side, width); });
  else run<Range>(sum, both[0], most, [&](int64_t width) { return ProductAdder<Range>(both, width); });
}

template <class Range>
void round_states(const ExactRounding& r) {
  const Form form{r.output, r.out, false, r.root, r.divisor};
  parallel_for(0, r.count, kTask / 32, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      FixedPoint<Range> number;
      number.clear();
      exact::add_state(number, r.states + i * exact::kStateSize<Range>);
      finish(number, form, i);
    }
  });
}

}  // namespace

void run_exact(const ExactSum& sum) {
  if (sum.addends != ExactAddends::elements) {
    with_range(sum.range(), [&](auto range) { run_products<decltype(range)>(sum.ordered()); });
  } else if (sum.in == DType::Double) {
    run_elements<double, exact::WideRange>(sum);
  } else if (info(sum.in).kind == Kind::integer) {
    run_elements<double, exact::NarrowRange>(sum);
  } else {
    run_elements<float, exact::NarrowRange>(sum);
  }
}

int64_t set_exact_additions(int64_t most) {
  if (most < 1 || most > kAddends) throw std::invalid_argument("additions: expected from 1 to 2^29");
  return additions.exchange(most);
}

void round_exact(const ExactRounding& r) {
  with_range(r.range, [&](auto range) { round_states<decltype(range)>(r); });
}

}  // namespace gpureduce::cpu
