#include "problem.h"

#include <utility>

namespace gpureduce::cpu {

namespace {

// Appends a dim that is faster than the others. It is merged with the last one if one stride per input walks both.
void append(Dims& dims, const ReducedDim& dim) {
  if (dims.rank > 0 && dims.fastest().stride == dim.size * dim.stride && dims.fastest().second == dim.size * dim.second)
    dims.dims[dims.rank - 1] = {dims.fastest().size * dim.size, dim.stride, dim.second};
  else dims.dims[dims.rank++] = dim;
}

void fill_if_empty(Dims& dims) {
  if (dims.rank == 0) dims.dims[dims.rank++] = {1, 0, 0};
}

// Sets the dims, where an element is `scale` real numbers (with one input) and a result `result_scale`. Kept dims are merged
// separately for inputs and results.
void set_dims(CpuProblem& p, const Problem& problem, int64_t scale, int64_t result_scale) {
  for (const ReducedDim& d : problem.reduced) p.reduced.dims[p.reduced.rank++] = {d.size, d.stride * scale, d.second};
  const auto keep = [&](const ReducedDim& dim, int64_t result_stride) {
    append(p.rows, dim);
    append(p.results, {dim.size, result_stride, 0});
  };
  for (const KeptDim& d : problem.kept) keep({d.size, d.stride * scale, d.second}, d.out_stride * result_scale);
  if (result_scale == 2) keep({2, 1, 0}, 1);
  fill_if_empty(p.reduced);
  fill_if_empty(p.results);
}

// Makes the fastest kept dim the columns if it is faster in memory than the reduced dims. All other kept dims stay rows.
void set_columns(CpuProblem& p, int64_t outputs) {
  p.columns = p.column_stride = 1;
  p.column_second = 0;
  if (p.rows.rank > 0) {
    const int64_t kept = p.rows.fastest().stride, reduced = p.reduced.fastest().stride;
    if (kept > 0 && (kept < reduced || reduced == 0)) {
      p.columns = p.rows.fastest().size;
      p.column_stride = kept;
      p.column_second = p.rows.fastest().second;
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

void CpuProblem::swap_places() {
  for (Dims* dims : {&reduced, &rows})
    for (int i = 0; i < dims->rank; ++i) std::swap(dims->dims[i].stride, dims->dims[i].second);
  std::swap(column_stride, column_second);
}

}  // namespace gpureduce::cpu
