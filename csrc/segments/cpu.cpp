#include "cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "../core/cpu/load.h"
#include "../core/cpu/plus.h"
#include "../core/cpu/sum.h"
#include "../core/numeric/exponents.h"
#include "../pairs/cpu_exponents.h"
#include "cpu_tasks.h"

namespace gpureduce::cpu {

namespace {

constexpr int64_t kShortBytes = 4096;           // of a short segment's accumulators and elements, on the stack
constexpr int64_t kShortWork = 4096;            // segments with more elements, over all columns, run the vector kernels
std::atomic<int64_t> gathered_bytes = 1 << 24;  // of the rows that are gathered at a time, unless one segment has more

// Runs one segment, which is not empty, as a reduction of its own.
void run_alone(const Segments& s, int64_t number) {
  const int64_t begin = s.offset(number), length = s.offset(number + 1) - begin;
  Reduction r = s.reduction;
  r.input = static_cast<const char*>(r.input) + begin * s.stride * info(r.in).size;
  r.output = static_cast<char*>(r.output) + number * s.result_pitch * info(r.out).size;
  r.problem.length = length;
  r.problem.reduced = {};
  if (length > 1) r.problem.reduced.push_back({length, s.stride});
  if (r.addends == Addends::exponents) {
    r.largest = static_cast<const char*>(r.largest) + number * s.result_pitch * info(r.out).size;
    return run_exponents(r, /*beside_results=*/true);
  }
  if (!run(r)) throw std::logic_error("there is no kernel of a segment's elements");
}

template <class Out, class Acc>
void store_run(Out* out, int64_t stride, const Acc* sums, int64_t step, int64_t n) {
  if (stride == 1 && step == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = result<Out>(sums[i]);
  } else if (stride == 1 && step == 0) {
    std::fill_n(out, n, result<Out>(*sums));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i * stride] = result<Out>(sums[i * step]);
  }
}

// Finishes sums, `step` apart, and rounds them to any dtype. That is a lot of code, so it is compiled once per accumulator.
template <class Acc>
[[gnu::noinline]] void store_short(const Reduction& r, int64_t place, int64_t stride, const Acc* sums, int64_t step,
                                   int64_t columns, int64_t length) {
  if (r.finish != Finish::none) {
    for (int64_t c = 0; c < columns; ++c)
      store(r.output, place + c * stride, r.out, finished(sums[c * step], r.finish, length));
    return;
  }
  switch (r.out) {
#define GPUREDUCE_STORE(name, type, kind, accumulator, wide, family) \
  case DType::name: store_run(static_cast<type*>(r.output) + place, stride, sums, step, columns); break;
    GPUREDUCE_DTYPES(GPUREDUCE_STORE)
#undef GPUREDUCE_STORE
  }
}

// Writes the results of an empty segment.
void write_empty(const Segments& s, int64_t number) {
  const Reduction& r = s.reduction;
  const auto write = [&](auto none) {
    for_each_run(r.problem, [&](const KeptDim& run, int64_t, int64_t out) {
      store_short(r, number * s.result_pitch + out, run.out_stride, &none, 0, run.size, 0);
    });
  };
  if (r.finish == Finish::quotient) return write(Complex<double>{});  // both parts of a complex mean of real numbers are NaN
  with_accumulator(r.accumulator, [&](auto acc) {
    using Acc = decltype(acc);
    if constexpr (!kIsTwo<Acc>) write(of_none<Acc>(r.out));
  });
}

// The most addends of a short segment that are on the stack. Exponentials are there beside their elements.
constexpr int64_t short_room(int64_t size, bool exponents) { return kShortBytes / size / (exponents ? 2 : 1); }

// Joins the leaves x[length][columns] to the first one.
template <class Acc>
[[gnu::noinline]] void join_short(Acc* x, int64_t length, int64_t columns) {
  const auto join = [=](const auto width) {
    for (int64_t left = length; left > 1; left = (left + 1) / 2) {
      for (int64_t p = 0; p < left / 2; ++p) {
        Acc *const to = x + p * width, *const from = x + 2 * p * width;
        if constexpr (std::is_same_v<decltype(width), const int64_t>) {
          for (int64_t c = 0; c < width; ++c) to[c] = plus(from[c], from[width + c]);
        } else {  // the compiler does not know that `to` is never inside of `from`
          Acc sums[width.value];
          for (int64_t c = 0; c < width; ++c) sums[c] = plus(from[c], from[width + c]);
          std::copy_n(sums, width, to);
        }
      }
      if (left % 2) std::copy_n(x + (left - 1) * width, width, x + left / 2 * width);
    }
  };
  switch (columns) {  // few columns: no loop over them
    case 1: return join(std::integral_constant<int64_t, 1>());
    case 2: return join(std::integral_constant<int64_t, 2>());
    case 4: return join(std::integral_constant<int64_t, 4>());
    case 8: return join(std::integral_constant<int64_t, 8>());
    default: return join(columns);
  }
}

// Sums a short segment, of up to kLanes elements per output, so that every element is a leaf. Copies some columns at a time to
// `buffer`, and joins them there.
template <class In, class Acc, Map map>
void run_short(const Segments& s, int64_t number, int64_t begin, int64_t length) {
  const Reduction& r = s.reduction;
  const In* const input = static_cast<const In*>(r.input) + begin * s.stride;
  constexpr bool kExponents = map == Map::exponent;
  constexpr Map kRead = kExponents ? Map::value : map;
  constexpr int64_t kRoom = short_room(sizeof(Acc), kExponents);
  Acc buffer[kRoom], elements[kExponents ? kRoom : 1];
  Acc* const taken = kExponents ? elements : buffer;
  const int64_t most = kRoom / length;  // columns
  for_each_run(r.problem, [&](const KeptDim& run, int64_t in, int64_t out) {
    for (int64_t first = 0; first < run.size; first += most) {
      const int64_t columns = std::min(most, run.size - first);
      const In* x = input + in + first * run.stride;
      const auto take = [](Acc* to, const In* from, int64_t stride, int64_t n) {
        for (int64_t i = 0; i < n; ++i) to[i] = mapped<kRead, Acc>(from[i * stride]);
      };
      const bool block = run.stride == 1 && s.stride == columns;  // nothing lies between the elements
      const int64_t runs = columns == 1 || (block && !kExponents) ? 1 : length, n = columns * (length / runs);
      const int64_t stride = columns == 1 ? s.stride : run.stride;
      for (int64_t i = 0; i < runs; ++i) {
        if (stride == 1) take(taken + i * n, x + i * s.stride, 1, n);
        else take(taken + i * n, x + i * s.stride, stride, n);
      }
      const int64_t place = number * s.result_pitch + out + first * run.out_stride;
      if constexpr (kExponents) {
        const Acc* const largest = static_cast<const Acc*>(r.largest) + place;
        for (int64_t i = 0; i < runs; ++i)
          exponentials(elements + i * n, largest, columns == 1 ? 0 : run.out_stride, n, buffer + i * n);
      }
      join_short(buffer, length, columns);
      store_short(r, place, run.out_stride, buffer, 1, columns, length);
    }
  });
}

using Short = void (*)(const Segments&, int64_t number, int64_t begin, int64_t length);

template <class In, Accumulator own, Accumulator largest>
Short short_of(Map map, Accumulator to, bool exponents) {
  if constexpr (std::is_floating_point_v<Sum<own>>)
    if (exponents) return run_short<In, Sum<own>, Map::exponent>;
  if (map == Map::value && to == own) return run_short<In, Sum<own>, Map::value>;
  if constexpr (!IsComplex<In>::value) {
    if (map == Map::value && to == largest) return run_short<In, Sum<largest>, Map::value>;
    if (map == Map::negative && to == largest) return run_short<In, Sum<largest>, Map::negative>;
  }
  return nullptr;
}

// run_short for these elements, or null if they need another map, or a sign.
Short short_of(const Reduction& r) {
  if (r.negate || r.conjugate) return nullptr;
  const bool exponents = r.addends == Addends::exponents;
  switch (r.in) {
#define GPUREDUCE_SHORT(name, type, kind, own, wide, family) \
  case DType::name: return short_of<type, Accumulator::own, largest_of(info(DType::name))>(r.map, r.accumulator, exponents);
    GPUREDUCE_DTYPES(GPUREDUCE_SHORT)
#undef GPUREDUCE_SHORT
  }
  return nullptr;
}

// The rows of a run of entries, side by side, as a problem of segments of their own.
class Gathered {
 public:
  explicit Gathered(const Segments& s) : from_(s), size_(info(s.reduction.in).size), segments_(s) {
    Reduction& r = segments_.reduction;
    if (s.gather.weights) {  // products are made here
      const Accumulator to = r.accumulator;
      r.in = to == Accumulator::f32 ? DType::Float : to == Accumulator::f64 ? DType::Double : DType::Long;
      r.negate = false;
    }
    int64_t stride = 1;
    for (size_t d = r.problem.kept.size(); d-- > 0;) {
      KeptDim& dim = r.problem.kept.begin()[d];
      dim.stride = stride;
      stride *= dim.size;
    }
    segments_.gather = {};
    segments_.wide = true;
    segments_.stride = r.problem.outputs;
    bytes_ = r.problem.outputs * info(r.in).size;
  }

  int64_t row_bytes() const { return bytes_; }

  // Sums the segments from `first` to before `last`.
  void run(int64_t first, int64_t last) {
    const int64_t begin = from_.offset(first), entries = from_.offset(last) - begin;
    offsets_.resize(last - first + 1);
    for (int64_t i = first; i <= last; ++i) offsets_[i - first] = from_.offset(i) - begin;
    const std::unique_ptr<char[]> rows(new char[std::max<int64_t>(1, entries * bytes_)]);
    const int64_t outputs = segments_.reduction.problem.outputs;
    parallel_for(0, entries, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, outputs)), [&](int64_t from, int64_t to) {
      const ExactFloats exact;
      copy_rows(begin + from, begin + to, rows.get() + from * bytes_);
    });
    segments_.offsets = offsets_.data();
    segments_.count = last - first;
    segments_.length = entries;
    segments_.reduction.input = rows.get();
    segments_.reduction.output =
        static_cast<char*>(from_.reduction.output) + first * from_.result_pitch * info(from_.reduction.out).size;
    cpu::run(segments_);
  }

 private:
  // Copies the rows of entries `from` to `to` (exclusive). Rows in one piece have copies of a constant size, if they are short.
  void copy_rows(int64_t from, int64_t to, char* rows) const {
    const DimList<KeptDim>& kept = from_.reduction.problem.kept;
    const bool whole = !from_.gather.weights && (kept.empty() || (kept.size() == 1 && kept.back().stride == 1));
    const auto copy_all = [&](auto bytes) {
      const char* const input = static_cast<const char*>(from_.reduction.input);
      for (int64_t i = from, pitch = from_.stride * size_; i < to; ++i, rows += bytes)
        memcpy(rows, input + from_.gather.row(i) * pitch, bytes);
    };
    if (!whole) {
      for (int64_t i = from; i < to; ++i, rows += bytes_) copy(i, rows);
      return;
    }
    switch (bytes_) {
      case 4: return copy_all(std::integral_constant<int64_t, 4>());
      case 8: return copy_all(std::integral_constant<int64_t, 8>());
      case 16: return copy_all(std::integral_constant<int64_t, 16>());
      case 32: return copy_all(std::integral_constant<int64_t, 32>());
      default: return copy_all(bytes_);
    }
  }

  void copy(int64_t entry, char* to) const {
    const int64_t row = from_.gather.row(entry), place = row * from_.stride;
    const Problem& p = from_.reduction.problem;
    if (from_.gather.weights) {
      const int64_t which = from_.gather.by_row ? row : entry;
      switch (from_.reduction.accumulator) {
        case Accumulator::f32: return weigh(place, which, reinterpret_cast<float*>(to));
        case Accumulator::f64: return weigh(place, which, reinterpret_cast<double*>(to));
        default: return weigh(place, which, reinterpret_cast<int64_t*>(to));
      }
    }
    for_each_run(p, [&](const KeptDim& run, int64_t in, int64_t) {
      const char* const at = static_cast<const char*>(from_.reduction.input) + (place + in) * size_;
      if (run.stride == 1) {
        std::copy_n(at, run.size * size_, to);
      } else {
        for (int64_t c = 0; c < run.size; ++c) std::copy_n(at + c * run.stride * size_, size_, to + c * size_);
      }
      to += run.size * size_;
    });
  }

  template <class Number>
  void weigh(int64_t place, int64_t which, Number* to) const {
    const Number weight = static_cast<const Number*>(from_.gather.weights)[which];
    const Reduction& r = from_.reduction;
    const Loader<Number> load = loader_of<Number>(r.in);
    for_each_run(r.problem, [&](const KeptDim& run, int64_t in, int64_t) {
      load(r.input, place + in, run.stride, run.size, r.negate, to);
      for (int64_t c = 0; c < run.size; ++c) to[c] = weighted::times(to[c], weight);
      to += run.size;
    });
  }

  const Segments& from_;
  int64_t size_, bytes_ = 0;
  Segments segments_;
  std::vector<int64_t> offsets_;
};

// Gathers rows for some segments at a time, so that a copy of all rows is never needed at once.
void run_gathered(const Segments& s) {
  Gathered gathered(s);
  for (int64_t first = 0; first < s.count;) {
    const int64_t rows = std::max<int64_t>(1, gathered_bytes / std::max<int64_t>(1, gathered.row_bytes()));
    int64_t last = first + 1;
    while (last < s.count && s.offset(last + 1) - s.offset(first) <= rows) ++last;
    gathered.run(first, last);
    first = last;
  }
}

}  // namespace

int64_t set_gathered_bytes(int64_t bytes) { return gathered_bytes.exchange(bytes); }

void run(const Segments& s) {
  if (s.gather.numbers) return run_gathered(s);
  const int64_t outputs = s.reduction.problem.outputs;
  const Short take_short = short_of(s.reduction);
  const int64_t room = short_room(size_of(s.reduction.accumulator), s.reduction.addends == Addends::exponents);
  const int64_t longest = std::min<int64_t>(kLanes, room);
  static_assert(kShortWork <= 2 * kGrain);  // one thread takes a short segment
  for_each_segment(s, [&](int64_t i, int64_t from, int64_t length) {
    if (length == 0) write_empty(s, i);
    else if (take_short && length <= longest && length * outputs <= kShortWork) take_short(s, i, from, length);
    else run_alone(s, i);
  });
}

}  // namespace gpureduce::cpu
