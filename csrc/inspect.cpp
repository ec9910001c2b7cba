// Private ops that show a plan without a GPU, for tests.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "backend.h"

namespace gpureduce {

namespace {

Plan plan_of(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input, at::ScalarType result,
             const std::string& tuning) {
  TORCH_CHECK(sizes.size() == strides.size(), "strides: there must be as many as sizes");
  const DimMask reduce = reduced_dims(dims, static_cast<int64_t>(sizes.size()));
  std::vector<InputDim> view(sizes.size());
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1, step = 1; d >= 0; --d) {
    view[d] = {sizes[d], strides[d], step, reduce[d]};
    if (!reduce[d]) step *= sizes[d];
  }
  Reduction r{};  // at address 0, which is aligned
  r.in = dtype_of(input, "an input of dtype");
  r.out = dtype_of(result, "a result of dtype");
  r.conversion = r.out == DType::Bool ? Conversion::nonzero : Conversion::value;
  r.accumulator = accumulator_of(r.in, r.out, r.conversion);
  r.problem = make_problem(view.data(), view.size());
  TORCH_CHECK(r.problem.outputs > 0 && r.problem.length > 0, "sizes: there is nothing to plan for no elements");
  return make_plan(r, {}, Tuning::parse(tuning));
}

std::string plan_json(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                      at::ScalarType result, const std::string& tuning) {
  return plan_of(sizes, strides, dims, input, result, tuning).json();
}

// A row a tile, by the code that numbers them in the kernels: first output, outputs, first leaf, leaves, first partial sum.
at::Tensor walk(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                at::ScalarType result, const std::string& tuning) {
  const Plan plan = plan_of(sizes, strides, dims, input, result, tuning);
  at::Tensor rows = at::empty({plan.tiling.tiles, 5}, at::kLong);
  int64_t* row = rows.data_ptr<int64_t>();
  for (int64_t i = 0; i < plan.tiling.tiles; ++i, row += 5) {
    const Tile t = plan.tiling.tile(i);
    row[0] = t.output;
    row[1] = t.outputs;
    row[2] = t.leaf;
    row[3] = t.leaves;
    row[4] = t.partial;
  }
  return rows;
}

std::string build_info() {
  std::string info = "{\"order\": " + std::to_string(kOrderVersion) + ", \"cuda\": ";
#ifdef GPUREDUCE_WITH_CUDA
  return info + "true}";
#else
  return info + "false}";
#endif
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  const std::string view = "(int[] sizes, int[] strides, int[] dims, ScalarType input, ScalarType result, str tuning=\"\")";
  m.def(("_plan" + view + " -> str").c_str(), &gpureduce::plan_json);
  m.def(("_walk" + view + " -> Tensor").c_str(), &gpureduce::walk);
  m.def("_build_info() -> str", &gpureduce::build_info);
}
