#include "sum.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels.h"

namespace gpureduce::cpu {

namespace {

constexpr int64_t kGrain = 32768;         // elements that are worth a thread, as in torch
constexpr int64_t kTasksPerThread = 8;    // so that none waits long for the last
constexpr int64_t kSplit = 65536;         // elements that are worth a partial sum
constexpr int64_t kSplitLeaves = 16;      // and leaves of columns (with whole columns a task: 1.3 times the time)
constexpr int64_t kLeastWidth = 64;       // columns that are worth a task
constexpr int64_t kLine = 16;             // columns that tasks do not cut
constexpr int64_t kWideDepth = 3;         // elements of a leaf that Plan::wide is worth (4: no gain, 8: 0.8 of the speed)
constexpr int64_t kOrderBytes = 1 << 20;  // from which on chunks are read strictly in order
constexpr int64_t kKeptBytes = 1 << 18;   // of scratch that a thread keeps

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a core's own cache.
int64_t cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (found > 0) return found;
#endif
  return 1 << 20;
}

int64_t floor_power(int64_t n) {
  int64_t p = 1;
  while (p <= n / 2) p *= 2;
  return p;
}

int64_t ceil_power(int64_t n) { return n <= 1 ? 1 : 2 * floor_power(n - 1); }

// IEEE arithmetic while it lives: subnormals are numbers and rounding is to nearest, whatever the thread was set to.
class ExactFloats {
 public:
#if defined(__x86_64__)
  ExactFloats() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ & ~(1u << 15 | 3u << 13 | 1u << 6)); }
  ~ExactFloats() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  ExactFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ & ~(uint64_t{1} << 24 | uint64_t{3} << 22 | uint64_t{1} << 19)) : "memory");
  }
  ~ExactFloats() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#else
  ExactFloats() = default;
#endif
  ExactFloats(const ExactFloats&) = delete;
};

// Memory for a thread's tasks, aligned to 64 bytes. It is not on the stack, which may be small; and a thread keeps it for its
// next call, as the heap gives that much back to the system each time, 0.2 us.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    thread_local std::unique_ptr<char[]> kept;
    std::unique_ptr<char[]>& memory = bytes > kKeptBytes ? own_ : kept;
    if (!memory) memory.reset(new char[std::max(bytes, kKeptBytes) + 64]);
    aligned_ = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64);
  }
  char* get() const { return aligned_; }

 private:
  std::unique_ptr<char[]> own_;
  char* aligned_;
};

struct InstructionSet {
  const char* name;
  int vector_bytes;
  Kernel (*kernel_for)(DType, Accumulator, Conversion);
};

// The best that the processor has and torch uses: ATEN_CPU_CAPABILITY=default|avx2|avx512 chooses for both.
const InstructionSet& instruction_set() {
  static const InstructionSet chosen = [] {
#if defined(__x86_64__)
    std::string capability = at::get_cpu_capability();
    if (capability == "AVX512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return InstructionSet{"avx512", 64, avx512::kernel_for};
    if (capability.rfind("AVX", 0) == 0 && __builtin_cpu_supports("avx2"))  // whose processors all have F16C
      return InstructionSet{"avx2", 32, avx2::kernel_for};
#endif
    return InstructionSet{"generic", 16, generic::kernel_for};
  }();
  return chosen;
}

DType component_of(DType t) {
  switch (t) {
    case DType::ComplexHalf: return DType::Half;
    case DType::ComplexFloat: return DType::Float;
    case DType::ComplexDouble: return DType::Double;
    default: return t;
  }
}

// A reduction, cut into tasks: tile of rows by tile of columns by split. A split is a power of two of leaves, or of elements
// where the order is free.
struct Work {
  explicit Work(const Reduction& r);

  int64_t tasks() const { return row_tiles * column_tiles * splits; }
  Task task(int64_t i) const;

  Plan plan;
  DType in, out;
  Accumulator accumulator;
  Conversion conversion;
  Dims results;  // where the outputs lie, row by row
  int64_t rows, columns, outputs;
  int64_t row_tiles, column_tiles, splits;
  int64_t positions, split_size;  // leaves, or elements where the order is free
  int threads;
  int64_t divisor;
};

Work::Work(const Reduction& r)
    : in(r.in),
      out(r.out),
      accumulator(r.accumulator),
      conversion(r.conversion),
      rows(1),
      columns(1),
      outputs(r.problem.outputs),
      divisor(r.divisor) {
  const Problem& p = r.problem;
  plan.input = r.input;
  plan.length = p.length;
  plan.negate = r.negate && conversion == Conversion::value;
  plan.conjugate = plan.wide = plan.abreast = false;

  // A complex number is two columns, or only its real part if the result is real.
  int64_t scale = 1, result_scale = 1;
  if (info(in).kind == Kind::complex && conversion == Conversion::value) {
    in = component_of(in);
    scale = 2;
    if (accumulator == Accumulator::c64) accumulator = Accumulator::f32;
    if (accumulator == Accumulator::c128) accumulator = Accumulator::f64;
    if (info(out).kind == Kind::complex) {
      out = component_of(out);
      result_scale = 2;
      plan.conjugate = r.conjugate;
    }
  }

  for (const ReducedDim& d : p.reduced) plan.reduced.dims[plan.reduced.rank++] = {d.size, d.stride * scale};
  if (p.reduced.empty()) plan.reduced.dims[plan.reduced.rank++] = {1, 0};

  // Dims that one stride can walk are one here: of the input, wherever results go, and of the results.
  const auto add = [](Dims& dims, int64_t size, int64_t stride) {
    if (dims.rank > 0 && dims.fastest().stride == size * stride)
      dims.dims[dims.rank - 1] = {dims.fastest().size * size, stride};
    else dims.dims[dims.rank++] = {size, stride};
  };
  const auto keep = [&](int64_t size, int64_t stride, int64_t result_stride) {
    add(plan.rows, size, stride);
    add(results, size, result_stride);
  };
  for (const KeptDim& d : p.kept) keep(d.size, d.stride * scale, d.out_stride * result_scale);
  if (result_scale == 2) {
    keep(2, 1, 1);
    outputs *= 2;
  }
  plan.column_stride = 1;
  if (plan.rows.rank > 0) {
    int64_t kept = plan.rows.fastest().stride, reduced = plan.reduced.fastest().stride;
    if (kept > 0 && (kept < reduced || reduced == 0)) {
      columns = plan.rows.fastest().size;
      plan.column_stride = kept;
      --plan.rows.rank;
    }
  }
  rows = outputs / columns;
  if (plan.rows.rank == 0) plan.rows.dims[plan.rows.rank++] = {1, 0};
  if (results.rank == 0) results.dims[results.rank++] = {1, 0};

  const double elements = static_cast<double>(plan.length) * static_cast<double>(outputs);
  threads = elements < 2 * kGrain || at::in_parallel_region() ? 1 : at::get_num_threads();
  threads = static_cast<int>(std::min<double>(threads, std::max(1.0, elements / kGrain)));
  const double bytes = elements * info(in).size;
  plan.streams = bytes > kOrderBytes;
  plan.shares_stream = bytes > threads * cache_bytes();
  const int64_t wanted = threads == 1 ? 1 : kTasksPerThread * threads;

  // Tiles: neighbouring columns first, since they share cache lines; then leaves; then rows, if they are that short.
  const bool exact = accumulator == Accumulator::i64;
  const bool gathered = plan.negate || plan.conjugate || plan.reduced.rank > 1 ||
                        (columns > 1 ? plan.column_stride : plan.reduced.fastest().stride) != 1;
  int64_t capacity = kTileBytes / size_of(accumulator);
  if (gathered && columns > 2) capacity /= 8;  // whose depth is gathered first
  const int64_t leaves = leaf_count(plan.length), depth = std::min<int64_t>(kDepth, ceil_div(plan.length, kLanes));
  positions = exact ? plan.length : leaves;
  const int64_t least = exact ? kChunk : columns > 2 ? kSplitLeaves : kLanes;  // positions of a split
  column_tiles = ceil_div(columns, capacity / 4);
  if (threads > 1) {  // work for all of them, and as much for each
    const int64_t others = rows * ceil_div(positions, least), most = columns / kLeastWidth;
    column_tiles = std::max(column_tiles, std::min(ceil_div(2 * threads, others), most));
    const int64_t even = ceil_div(column_tiles, threads) * threads;
    if (column_tiles > 1 && column_tiles * others < wanted && even <= most) column_tiles = even;
  }
  plan.tile_width = column_tiles == 1 ? columns : ceil_div(ceil_div(columns, kLine), column_tiles) * kLine;
  int64_t abreast = 1;
  if (exact) {
    bool block = plan.tile_width == plan.reduced.fastest().stride;
    plan.tile_leaves = columns == 1 ? kExactLanes : block ? std::max<int64_t>(1, 512 / plan.tile_width) : 1;
    plan.tile_rows = std::min(rows, std::max<int64_t>(1, kSplit / 16 / (plan.length * plan.tile_width)));
  } else {
    const int64_t vector = instruction_set().vector_bytes / size_of(accumulator);
    plan.wide =
        plan.tile_width >= vector && leaves >= 4 && ceil_power(leaves) * plan.tile_width >= capacity && depth <= kWideDepth;
    // Leaves to an accumulator of the tile, at least.
    int64_t joined = 1;
    if (plan.tile_width <= 2) joined = std::min<int64_t>(4, vector / plan.tile_width);
    else if (plan.wide && !gathered) joined = 4;
    // Rows in short pieces mostly have theirs side by side. (In the cache, (32, 16 of 64, 576) float32 in 10.8 us, and 16.2.)
    const int64_t shorter = instruction_set().vector_bytes < 64 || plan.shares_stream ? kLanes : 2 * kLanes;
    plan.abreast = plan.reduced.rank > 1 && plan.reduced.fastest().size < shorter && plan.tile_width <= 2;
    if (plan.abreast) {  // as many rows as share the work of finding their vectors
      const int64_t each = ceil_div(rows, threads);
      abreast = ceil_div(each, ceil_div(each, joined * capacity / (kLanes * plan.tile_width)));
    }
    plan.tile_leaves = std::min(floor_power(joined * capacity / (plan.tile_width * abreast)), ceil_power(leaves));
    int64_t fit = capacity / (plan.tile_leaves * plan.tile_width);
    if (plan.tile_leaves >= 64 && rows >= joined * fit * wanted) fit *= joined;
    plan.tile_rows = std::min(rows, std::max(abreast, plan.tile_leaves < leaves ? 1 : fit));
  }
  row_tiles = ceil_div(rows, plan.tile_rows);

  plan.buffer_bytes =
      std::max(kBufferBytes, std::min<int64_t>(plan.tile_leaves, kLanes) * plan.tile_width * depth * size_of(accumulator));

  if (plan.abreast) {
    const int64_t vectors = kChunk * plan.tile_width * size_of(accumulator) / instruction_set().vector_bytes;
    plan.buffer_bytes = std::max(plan.buffer_bytes, kBufferBytes + vectors * kPlaceBytes);
  }

  // Splits.
  splits = 1;
  split_size = positions;
  if (threads > 1 && plan.tile_rows == abreast && row_tiles * column_tiles < wanted) {
    const int64_t worth = kSplit / plan.tile_width / (exact ? 1 : kDepth);
    split_size = ceil_power(std::max({ceil_div(positions * row_tiles * column_tiles, wanted), plan.tile_leaves, least, worth}));
    splits = ceil_div(positions, split_size);
  }
  threads = static_cast<int>(std::min<int64_t>(threads, tasks()));
}

Task Work::task(int64_t i) const {
  Task t;
  int64_t split = i % splits;
  i /= splits;
  const auto column = [&](int64_t tile) { return std::min(columns, ceil_div(columns, kLine) * tile / column_tiles * kLine); };
  t.first_column = column(i % column_tiles);
  t.width = column(i % column_tiles + 1) - t.first_column;
  t.first_row = i / column_tiles * plan.tile_rows;
  t.rows = std::min(plan.tile_rows, rows - t.first_row);
  t.begin = split * split_size;
  t.end = std::min(t.begin + split_size, positions);
  return t;
}

template <class Out, class Value>
void store_run(Out* out, int64_t stride, const Value* sums, int64_t n) {
  if (stride == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = result<Out>(sums[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i * stride] = result<Out>(sums[i]);
  }
}

// Rounds and writes outputs first, first + 1, ...
template <class Value>
void round_and_store(const Work& work, void* output, int64_t first, const Value* sums, int64_t n) {
  Cursor at(work.results, first);
  while (n > 0) {
    int64_t run = std::min(n, at.left()), stride = work.results.fastest().stride, offset = at.offset();
    switch (work.out) {
#define GPUREDUCE_STORE(name, type, kind, accumulator, wide, family) \
  case DType::name: store_run(static_cast<type*>(output) + offset, stride, sums, run); break;
      GPUREDUCE_DTYPES(GPUREDUCE_STORE)
#undef GPUREDUCE_STORE
    }
    at.advance(run);
    sums += run;
    n -= run;
  }
}

// Divides, rounds and writes outputs first, first + 1, ...
template <class Acc>
void store_sums(const Work& work, void* output, int64_t first, const Acc* sums, int64_t n) {
  if (work.divisor != 1) {
    constexpr int64_t kBlock = 256;
    decltype(quotient(*sums, 1)) quotients[kBlock];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t count = std::min(kBlock, n - done);
      for (int64_t i = 0; i < count; ++i) quotients[i] = quotient(sums[done + i], work.divisor);
      round_and_store(work, output, first + done, quotients, count);
    }
    return;
  }
  round_and_store(work, output, first, sums, n);
}

int64_t plus(int64_t a, int64_t b) { return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b)); }
float plus(float a, float b) { return a + b; }
double plus(double a, double b) { return a + b; }

template <class Acc>
void compute(const Work& work, void* output) {
  const Kernel kernel = instruction_set().kernel_for(work.in, work.accumulator, work.conversion);
  const int64_t sums_bytes = ceil_div(work.plan.tile_rows * work.plan.tile_width * sizeof(Acc), 64) * 64;
  const int64_t bytes = sums_bytes + scratch_bytes(work.plan, sizeof(Acc));
  std::unique_ptr<Acc[]> partials(work.splits > 1 ? new Acc[work.splits * work.outputs] : nullptr);

  const bool as_summed = is_direct(work.accumulator, work.out) && info(work.out).size == sizeof(Acc) && work.divisor == 1 &&
                         work.results.rank == 1 && work.results.fastest().stride == 1;

  const auto run_tasks = [&](int64_t begin, int64_t end) {
    ExactFloats exact;
    const Scratch memory(bytes);
    char* const scratch = memory.get();
    for (int64_t i = begin; i < end; ++i) {
      Task task = work.task(i);
      int64_t first = task.first_row * work.columns + task.first_column;
      if (partials) {
        kernel(work.plan, task, scratch + sums_bytes, partials.get() + i % work.splits * work.outputs + first);
      } else {
        const bool whole_rows = task.width == work.columns;
        // Straight to where they belong, if accumulators are the results and lie as the sums do.
        const bool direct = as_summed && (whole_rows || task.rows == 1);
        Acc* sums = direct ? static_cast<Acc*>(output) + first : reinterpret_cast<Acc*>(scratch);
        kernel(work.plan, task, scratch + sums_bytes, sums);
        if (direct) continue;
        if (whole_rows) {
          store_sums(work, output, first, sums, task.rows * task.width);
        } else {
          for (int64_t r = 0; r < task.rows; ++r)
            store_sums(work, output, first + r * work.columns, sums + r * task.width, task.width);
        }
      }
    }
  };
  if (work.threads == 1) run_tasks(0, work.tasks());
  else at::parallel_for(0, work.tasks(), ceil_div(work.tasks(), work.threads), run_tasks);
  if (!partials) return;

  at::parallel_for(0, work.outputs, kGrain / work.splits, [&](int64_t begin, int64_t end) {
    ExactFloats exact;
    for (int64_t n = work.splits; n > 1; n = ceil_div(n, 2)) {
      for (int64_t p = 0; p < n / 2; ++p) {
        Acc *to = &partials[p * work.outputs], *left = &partials[2 * p * work.outputs], *right = left + work.outputs;
        for (int64_t o = begin; o < end; ++o) to[o] = plus(left[o], right[o]);
      }
      if (n % 2)
        std::copy(&partials[(n - 1) * work.outputs] + begin, &partials[(n - 1) * work.outputs] + end,
                  &partials[n / 2 * work.outputs] + begin);
    }
    store_sums(work, output, begin, partials.get() + begin, end - begin);
  });
}

}  // namespace

void run(const Reduction& r) {
  Work work(r);
  switch (work.accumulator) {
    case Accumulator::f32: return compute<float>(work, r.output);
    case Accumulator::f64: return compute<double>(work, r.output);
    default: return compute<int64_t>(work, r.output);
  }
}

std::string explain(const Reduction& r) {
  Work work(r);
  const Plan& plan = work.plan;
  auto n = [](int64_t v) { return std::to_string(v); };
  const bool columns = work.columns > 1, strided = (columns ? plan.column_stride : plan.reduced.fastest().stride) != 1;
  const bool pieces = plan.reduced.rank > 1;
  double distinct = r.problem.outputs * static_cast<double>(r.problem.length);
  for (const KeptDim& d : r.problem.kept)
    if (d.stride == 0) distinct /= static_cast<double>(d.size);
  for (const ReducedDim& d : r.problem.reduced)
    if (d.stride == 0) distinct /= static_cast<double>(d.size);
  double bytes = distinct * info(r.in).size + static_cast<double>(r.problem.outputs) * info(r.out).size;
  return "cpu " + std::string(columns ? "columns" : "rows") + (strided ? ", strided" : "") + (pieces ? ", in pieces" : "") +
         ": " + info(r.in).name + " -> " + info(r.out).name + ", summed in " + name_of(r.accumulator) + ", " +
         instruction_set().name + "\n" + r.problem.str() + "\n" + "tile: " + n(plan.tile_rows) + " rows x " +
         n(plan.tile_leaves) + " leaves x " + n(plan.tile_width) + " columns; tasks: " + n(work.row_tiles) + " x " +
         n(work.column_tiles) + " tiles x " + n(work.splits) + " splits on " + n(work.threads) +
         (work.threads == 1 ? " thread" : " threads") + "\n" + "bytes that must move: " + n(static_cast<int64_t>(bytes));
}

}  // namespace gpureduce::cpu
