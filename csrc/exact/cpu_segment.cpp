#include "cpu_segment.h"

#include <cstring>

#include "../segments/cpu_tasks.h"
#include "cpu.h"

namespace gpureduce::cpu {

namespace {

// Runs one segment, which is not empty, as an exact sum of its own.
void run_alone(const Segments& s, int64_t number, int64_t begin, int64_t length) {
  const Reduction& r = s.reduction;
  ExactSum sum{};
  sum.problem = r.problem;
  sum.problem.length = length;
  sum.problem.reduced = {};
  if (length > 1) sum.problem.reduced.push_back({length, s.stride, 0});
  sum.input = static_cast<const char*>(r.input) + begin * s.stride * info(r.in).size;
  sum.output = static_cast<char*>(r.output) + number * s.result_pitch * info(r.out).size;
  sum.in = r.in;
  sum.out = r.out;
  sum.negate = r.negate;
  sum.divisor = 1;
  run_exact(sum);
}

// Writes 0, whose bits are 0 in every floating dtype.
void write_empty(const Segments& s, int64_t number) {
  const Reduction& r = s.reduction;
  const int64_t size = info(r.out).size;
  char* const output = static_cast<char*>(r.output) + number * s.result_pitch * size;
  for_each_run(r.problem, [&](const KeptDim& run, int64_t, int64_t out) {
    for (int64_t i = 0; i < run.size; ++i) std::memset(output + (out + i * run.out_stride) * size, 0, size);
  });
}

}  // namespace

void run_exact_segments(const Segments& s) {
  for_each_segment(s, [&](int64_t number, int64_t begin, int64_t length) {
    if (length == 0) write_empty(s, number);
    else run_alone(s, number, begin, length);
  });
}

}  // namespace gpureduce::cpu
