// How segments are shared among threads on the CPU.
#pragma once

#include "../core/cpu/exact_floats.h"
#include "../core/cpu/plan.h"
#include "../core/cpu/threads.h"
#include "../core/problem/segment.h"

namespace gpureduce::cpu {

constexpr int64_t kSegmentGrain = 64;   // a segment's fixed cost, in elements
constexpr int64_t kTasksPerThread = 8;  // so that no thread waits long for the last

// Calls f(last kept dim, input offset, result offset) for each position in the other kept dims.
template <class F>
void for_each_run(const Problem& p, F f) {
  const KeptDim last = p.kept.empty() ? KeptDim{1, 0, 0} : p.kept.back();
  const int64_t runs = p.outputs / last.size;
  for (int64_t i = 0; i < runs; ++i) {
    int64_t in = 0, out = 0, rest = i;
    for (int d = static_cast<int>(p.kept.size()) - 2; d >= 0; --d) {
      const int64_t at = rest % p.kept[d].size;
      in += at * p.kept[d].stride;
      out += at * p.kept[d].out_stride;
      rest /= p.kept[d].size;
    }
    f(last, in, out);
  }
}

// Calls f(number, begin, length) for each segment. A task is a run of segments with as much work as other tasks have. All
// threads together take each segment that is larger than a task's share: then f is called outside of tasks.
template <class F>
void for_each_segment(const Segments& s, F f) {
  const int64_t outputs = s.reduction.problem.outputs, first = s.offset(0);
  const auto work_before = [&](int64_t i) {
    return static_cast<double>(s.offset(i) - first) * static_cast<double>(outputs) + static_cast<double>(i * kSegmentGrain);
  };
  const double all = work_before(s.count);
  const int threads = all < 2 * kGrain ? 1 : thread_count();
  const int64_t tasks = threads == 1 ? 1 : threads * kTasksPerThread;
  const auto is_large = [&](int64_t length) {
    const double work = static_cast<double>(length) * static_cast<double>(outputs);
    return tasks > 1 && work > all / static_cast<double>(tasks) && work > 2 * kGrain;
  };
  const auto task_begin = [&](int64_t task) {  // the first segment of a task
    int64_t low = 0, high = s.count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (work_before(middle) * static_cast<double>(tasks) < all * static_cast<double>(task)) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  parallel_for(0, tasks, tasks == 1 ? 2 : 1, [&](int64_t begin, int64_t end) {
    const ExactFloats exact;
    const int64_t last = end == tasks ? s.count : task_begin(end);
    for (int64_t i = begin == 0 ? 0 : task_begin(begin); i < last; ++i) {
      const int64_t from = s.offset(i), length = s.offset(i + 1) - from;
      if (!is_large(length)) f(i, from, length);
    }
  });
  if (tasks == 1) return;
  for (int64_t i = 0; i < s.count; ++i) {
    const int64_t from = s.offset(i), length = s.offset(i + 1) - from;
    if (is_large(length)) f(i, from, length);
  }
}

}  // namespace gpureduce::cpu
