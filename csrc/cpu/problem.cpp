#include "problem.h"

namespace gpureduce::cpu {

namespace {

// Appends a dim that is faster than the others. It is merged with the last one if one stride walks both.
void append(Dims& dims, int64_t size, int64_t stride) {
  if (dims.rank > 0 && dims.fastest().stride == size * stride) dims.dims[dims.rank - 1] = {dims.fastest().size * size, stride};
  else dims.dims[dims.rank++] = {size, stride};
}

void fill_if_empty(Dims& dims) {
  if (dims.rank == 0) dims.dims[dims.rank++] = {1, 0};
}

// Sets the dims, where an element is `scale` real numbers and a result `result_scale`. Kept dims are merged separately for
// input and results.
void set_dims(CpuProblem& p, const Problem& problem, int64_t scale, int64_t result_scale) {
  for (const ReducedDim& d : problem.reduced) p.reduced.dims[p.reduced.rank++] = {d.size, d.stride * scale};
  const auto keep = [&](int64_t size, int64_t stride, int64_t result_stride) {
    append(p.rows, size, stride);
    append(p.results, size, result_stride);
  };
  for (const KeptDim& d : problem.kept) keep(d.size, d.stride * scale, d.out_stride * result_scale);
  if (result_scale == 2) keep(2, 1, 1);
  fill_if_empty(p.reduced);
  fill_if_empty(p.results);
}

// Makes the fastest kept dim the columns if it is faster in memory than the reduced dims. All other kept dims stay rows.
void set_columns(CpuProblem& p, int64_t outputs) {
  p.columns = p.column_stride = 1;
  if (p.rows.rank > 0) {
    const int64_t kept = p.rows.fastest().stride, reduced = p.reduced.fastest().stride;
    if (kept > 0 && (kept < reduced || reduced == 0)) {
      p.columns = p.rows.fastest().size;
      p.column_stride = kept;
      --p.rows.rank;
    }
  }
  p.row_count = outputs / p.columns;
  fill_if_empty(p.rows);
}

}  // namespace

CpuProblem make_cpu_problem(const Reduction& r) {
  CpuProblem p;
  p.input = r.input;
  p.in = r.in;
  p.out = r.out;
  p.accumulator = r.accumulator;
  p.map = r.map;
  p.length = r.problem.length;
  p.negate = r.negate;
  p.conjugate = false;

  int64_t scale = 1, result_scale = 1;
  if (info(r.in).kind == Kind::complex && r.map == Map::value) {
    scale = 2;
    p.in = component_of(r.in);
    if (r.accumulator == Accumulator::c64) p.accumulator = Accumulator::f32;
    if (r.accumulator == Accumulator::c128) p.accumulator = Accumulator::f64;
    if (info(r.out).kind == Kind::complex) {
      result_scale = 2;
      p.out = component_of(r.out);
      p.conjugate = r.conjugate;
    }
  }
  set_dims(p, r.problem, scale, result_scale);
  set_columns(p, r.problem.outputs * result_scale);
  return p;
}

}  // namespace gpureduce::cpu
