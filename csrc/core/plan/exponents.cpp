#include "exponents.h"

#include "../operation.h"

namespace gpureduce {

namespace {

// A plain operation on elements of `in`, with results of `out`.
Reduction plain(const Problem& problem, Operation op, DType in, DType out, const void* input, void* output, bool native) {
  const Canonical c = canonical(op, in, out);
  Reduction made{};
  made.problem = problem;
  made.input = input;
  made.output = output;
  made.in = c.in;
  made.out = c.out;
  made.accumulator = c.accumulator;
  made.map = c.map;
  made.finish = c.finish;
  made.native = native;
  return made;
}

}  // namespace

Problem numbered(Problem p) {
  p.number_outputs(&KeptDim::out_stride);
  return p;
}

Reduction largest_elements(const Reduction& r, void* to) {
  const DType result = info(r.in).kind == Kind::integer ? r.in : exponents::dtype_of(r.in);
  Reduction made = plain(numbered(r.problem), Operation::_amax, r.in, result, r.input, to, r.native);
  made.negate = r.negate;
  classify(made);
  return made;
}

// A sum of one element each.
Reduction copied_numbers(const Reduction& r, const Problem& from_problem, const void* from, DType from_dtype, void* to) {
  Reduction made = plain(numbered(from_problem), Operation::sum, from_dtype, exponents::dtype_of(r.in), from, to, r.native);
  made.problem.reduced = {};
  made.problem.length = 1;
  classify(made);
  return made;
}

Reduction exponent_sums(const Reduction& r, const void* largest, void* to) {
  Reduction made = r;
  made.addends = Addends::exponents;
  made.map = Map::value;
  made.finish = Finish::none;
  made.out = exponents::dtype_of(r.in);
  made.largest = largest;
  made.output = to;
  classify(made);
  return made;
}

}  // namespace gpureduce
