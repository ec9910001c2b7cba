#include "sum.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "exact_floats.h"
#include "kernels.h"
#include "plus.h"
#include "scratch.h"
#include "threads.h"

namespace gpureduce::cpu {

const InstructionSet& instruction_set() {
  static const InstructionSet chosen = [] {
#if defined(__x86_64__)
    const std::string most = capability();
    if (most == "AVX512" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
      return avx512::functions();
    if (most.rfind("AVX", 0) == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))  // and so F16C
      return avx2::functions();
#endif
    return generic::functions();
  }();
  return chosen;
}

namespace {

// The size of a core's L2 cache.
int64_t cache_bytes() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (found > 0) return found;
#endif
  return 1 << 20;
}

Plan plan_of(const Reduction& r) { return make_plan(r, {thread_count(), instruction_set().vector_bytes, cache_bytes()}); }

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
void round_and_store(const CpuProblem& p, void* output, int64_t first, const Value* sums, int64_t n) {
  Cursor at(p.results, first);
  while (n > 0) {
    int64_t run = std::min(n, at.left()), stride = p.results.fastest().stride, offset = at.offset();
    switch (p.out) {
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

// Finishes, rounds and writes outputs first, first + 1, ...
template <class Acc>
void store_sums(const CpuProblem& p, const Reduction& r, int64_t first, const Acc* sums, int64_t n) {
  if (r.finish == Finish::none) return round_and_store(p, r.output, first, sums, n);
  constexpr int64_t kBlock = 256;
  decltype(finished(*sums, r.finish, 1)) results[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t count = std::min(kBlock, n - done);
    for (int64_t i = 0; i < count; ++i) results[i] = finished(sums[done + i], r.finish, p.length);
    round_and_store(p, r.output, first + done, results, count);
  }
}

// Joins the splits' partial sums of outputs begin to end (exclusive), nearest neighbours first, into split 0's.
template <class Acc>
void join_splits(Acc* partials, int64_t splits, int64_t outputs, int64_t begin, int64_t end) {
  for (int64_t n = splits; n > 1; n = (n + 1) / 2) {
    for (int64_t p = 0; p < n / 2; ++p) {
      Acc *to = partials + p * outputs, *left = partials + 2 * p * outputs, *right = left + outputs;
      for (int64_t o = begin; o < end; ++o) to[o] = plus(left[o], right[o]);
    }
    const Acc* last = partials + (n - 1) * outputs;
    if (n % 2) std::copy(last + begin, last + end, partials + n / 2 * outputs + begin);
  }
}

// True if the kernels' sums are the results, in their layout, so that kernels write to the output.
template <class Acc>
bool is_as_summed(const CpuProblem& p, const Reduction& r) {
  return is_native(p.accumulator, p.out) && info(p.out).size == sizeof(Acc) && r.finish == Finish::none &&
         p.results.rank == 1 && p.results.fastest().stride == 1;
}

// Calls f(begin, end) for parts of `tasks`, on `threads` threads.
template <class F>
void share(int64_t tasks, int threads, const F& f) {
  if (threads == 1) f(0, tasks);
  else parallel_for(0, tasks, (tasks + threads - 1) / threads, f);
}

template <class Acc>
void compute(const Plan& plan, const Reduction& r, Kernel kernel) {
  const CpuProblem& p = plan.problem;
  std::unique_ptr<Acc[]> partials(plan.splits > 1 ? new Acc[plan.splits * p.outputs()] : nullptr);
  const bool as_summed = is_as_summed<Acc>(p, r);

  share(plan.tasks(), plan.threads, [&](int64_t begin, int64_t end) {
    ExactFloats exact;
    const Scratch memory(plan.sums_bytes + plan.scratch_bytes);
    char* const scratch = memory.get() + plan.sums_bytes;
    for (int64_t i = begin; i < end; ++i) {
      const Task task = plan.task(i);
      const int64_t first = task.first_row * p.columns + task.first_column;
      // A task's sums are one run of outputs, or one run per row.
      const bool one_run = task.width == p.columns || task.rows == 1;
      if (partials) {
        kernel(plan, task, scratch, partials.get() + i % plan.splits * p.outputs() + first);
      } else if (as_summed && one_run) {
        kernel(plan, task, scratch, static_cast<Acc*>(r.output) + first);
      } else {
        Acc* const sums = reinterpret_cast<Acc*>(memory.get());
        kernel(plan, task, scratch, sums);
        const int64_t runs = one_run ? 1 : task.rows, run = task.rows * task.width / runs;
        for (int64_t k = 0; k < runs; ++k) store_sums(p, r, first + k * p.columns, sums + k * run, run);
      }
    }
  });
  if (!partials) return;
  parallel_for(0, p.outputs(), kGrain / plan.splits, [&](int64_t begin, int64_t end) {
    ExactFloats exact;
    join_splits(partials.get(), plan.splits, p.outputs(), begin, end);
    store_sums(p, r, begin, partials.get() + begin, end - begin);
  });
}

}  // namespace

bool run(const Reduction& r) {
  const Plan plan = plan_of(r);
  const CpuProblem& p = plan.problem;
  const Kernel kernel = instruction_set().kernel_for(p.in, p.accumulator, p.map);
  if (!kernel) return false;
  with_accumulator(p.accumulator, [&](auto acc) {
    // Complex sums are summed as two real ones, and others of two numbers are not sums of values.
    using Acc = decltype(acc);
    if constexpr (!IsComplex<Acc>::value && !kIsTwo<Acc>) compute<Acc>(plan, r, kernel);
  });
  return true;
}

std::string explain(const Reduction& r) {
  const Plan plan = plan_of(r);
  const CpuProblem& p = plan.problem;
  const auto n = [](int64_t v) { return std::to_string(v); };
  const bool columns = p.columns > 1, strided = (columns ? p.column_stride : p.reduced.fastest().stride) != 1;
  double distinct = r.problem.outputs * static_cast<double>(r.problem.length);
  for (const KeptDim& d : r.problem.kept)
    if (d.stride == 0) distinct /= static_cast<double>(d.size);
  for (const ReducedDim& d : r.problem.reduced)
    if (d.stride == 0) distinct /= static_cast<double>(d.size);
  const double bytes = distinct * info(r.in).size + static_cast<double>(r.problem.outputs) * info(r.out).size;
  return "cpu " + std::string(columns ? "columns" : "rows") + (strided ? ", strided" : "") +
         (p.reduced.rank > 1 ? ", in pieces" : "") + ": " + info(r.in).name + " -> " + info(r.out).name + ", summed in " +
         name_of(r.accumulator) + ", " + instruction_set().name + "\n" + r.problem.str() + "\n" + "tile: " + n(plan.tile.rows) +
         " rows x " + n(plan.tile.leaves) + " leaves x " + n(plan.tile.width) + " columns; tasks: " + n(plan.row_tiles) +
         " x " + n(plan.column_tiles) + " tiles x " + n(plan.splits) + " splits on " + n(plan.threads) +
         (plan.threads == 1 ? " thread" : " threads") + "\n" + "bytes that must move: " + n(static_cast<int64_t>(bytes));
}

}  // namespace gpureduce::cpu
