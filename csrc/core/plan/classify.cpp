#include <utility>

#include "../numeric/exponents.h"
#include "../numeric/indices.h"
#include "../numeric/variance.h"
#include "../numeric/weighted.h"
#include "../problem/geometry.h"
#include "../problem/nest.h"
#include "propose.h"
#include "units.h"

namespace gpureduce {

namespace {

// True if a kernel is compiled for the call's dtypes, and has PTX if the machine code does not fit the GPU.
bool has_kernel(const Reduction& r) {
  if (r.negate || r.conjugate) return false;
  switch (r.addends) {
    case Addends::values: break;
    case Addends::products:
      return r.native && !r.second_negate && !r.truth && weighted::is_compiled(r.in, r.second_dtype, r.accumulator);
    case Addends::deviations: return r.native && variance::is_compiled(r.in);
    case Addends::exponents: return r.native && exponents::is_compiled(r.in);
    case Addends::indices: return r.native && indices::is_compiled(r.in, r.problem.length);
  }
  if (!is_compiled(r.map, r.accumulator, r.in)) return false;
  return r.native || has_ptx(unit_of(kernel_map(r), r.accumulator, r.in));
}

Engine engine_of(const Reduction& r) {
  const Problem& p = r.problem;
  const bool plain = r.addends == Addends::values && is_plain_sum(r.map, r.accumulator, info(r.in));
  // Kernels compiled for a dtype find places with 32-bit divisions.
  const bool near = fits_fast_nest(p.kept, p.outputs) && fits_fast_nest(p.reduced, p.length);
  // Short rows are for the thin kernels.
  const bool rows_fit = fastest_dim_is_kept(p) || p.length <= (plain ? kLanes : kLoads) || counts_rows(p);
  if (!near || !rows_fit || !has_kernel(r)) return Engine::converted;
  return plain ? Engine::full : Engine::reduced;
}

// True if kernels of this map have code for the finish.
bool finishes(const Reduction& r) {
  switch (r.finish) {
    case Finish::all: return false;
    case Finish::square_root: return r.engine == Engine::reduced && r.map == Map::square;
    case Finish::cube_root: return r.engine == Engine::reduced && r.map == Map::cube;
    default: return true;
  }
}

ResultPath path_of(const Reduction& r) {
  const DTypeInfo& out = info(r.out);
  const bool native = is_native(r.accumulator, r.out);
  if (native && r.finish == Finish::none && out.size == size_of(r.accumulator)) return ResultPath::raw;
  if (native && finishes(r)) return ResultPath::native;
  const bool truth = r.map == Map::nonzero && r.out == DType::Bool;
  const bool extremum = r.accumulator == Accumulator::largest_i64 && r.out == r.in;
  return r.engine == Engine::reduced && (truth || extremum) ? ResultPath::own : ResultPath::joined;
}

// Products commute, so the larger input becomes the first one, unless kernels are compiled for the other order alone.
void order_inputs(Reduction& r) {
  const bool given = weighted::is_compiled(r.in, r.second_dtype, r.accumulator);
  const bool turned = weighted::is_compiled(r.second_dtype, r.in, r.accumulator);
  if (r.problem.second_larger ? given && !turned : given || !turned) return;
  std::swap(r.input, r.second);
  std::swap(r.in, r.second_dtype);
  std::swap(r.negate, r.second_negate);
  r.problem.swap_inputs();
}

}  // namespace

void classify(Reduction& r) {
  if (r.addends == Addends::products) order_inputs(r);
  r.engine = engine_of(r);
  r.path = path_of(r);
}

}  // namespace gpureduce
