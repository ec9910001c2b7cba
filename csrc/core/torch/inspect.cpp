// Private ops for tests: they show a plan without a GPU, and set what cuts the work.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#ifdef GPUREDUCE_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

#include "../../exact/cpu.h"
#include "../../segments/cpu.h"
#include "../plan/choice.h"
#include "../plan/choose.h"
#include "../problem/nest.h"
#include "backend.h"

namespace gpureduce {

namespace {

Reduction reduction_of(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                       at::ScalarType result, const Device& device = {}, int64_t address = 0) {
  TORCH_CHECK(sizes.size() == strides.size(), "strides: there must be as many as sizes");
  for (int64_t size : sizes) TORCH_CHECK(size >= 0, "sizes: expected none below 0, but got ", sizes);
  const DimMask reduce = reduced_dims(dims, static_cast<int64_t>(sizes.size()));
  std::vector<InputDim> view(sizes.size());
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1, step = 1; d >= 0; --d) {
    view[d] = {sizes[d], strides[d], step, reduce[d]};
    if (!reduce[d]) step *= sizes[d];
  }
  Reduction r{};
  r.input = reinterpret_cast<const void*>(address);
  r.in = dtype_of(input, "an input of dtype");
  r.out = dtype_of(result, "a result of dtype");
  r.map = r.out == DType::Bool ? Map::nonzero : Map::value;
  r.accumulator = accumulator_of(Operation::sum, r.in, r.out);
  r.problem = make_problem(view.data(), view.size());
  TORCH_CHECK(r.problem.outputs > 0 && r.problem.length > 0, "sizes: there is nothing to plan for no elements");
  r.native = device.native;
  classify(r);
  return r;
}

// The features (choose.h) of each plan that is proposed for a view at `address`, one row per plan. For bench/regret.py.
at::Tensor candidates(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                      at::ScalarType result, const std::string& tuning, const std::string& device, int64_t address) {
  const Tuning forced = Tuning::parse(tuning);
  const Device on = forced.on(Device::parse(device));
  const Reduction r = reduction_of(sizes, strides, dims, input, result, on, address);
  const std::vector<Plan> plans = propose_all(r, on, forced);
  std::vector<float> known;
  for (const Plan& plan : plans)
    for (float feature : features_of(plan, r, on)) known.push_back(feature);
  const auto count = static_cast<int64_t>(plans.size());
  at::Tensor rows = at::empty({count, count ? static_cast<int64_t>(known.size()) / count : 0}, at::kFloat);
  std::copy(known.begin(), known.end(), rows.data_ptr<float>());
  return rows;
}

std::string plan_json(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                      at::ScalarType result, const std::string& tuning, const std::string& device, int64_t address) {
  const Device on = Device::parse(device);
  return make_plan(reduction_of(sizes, strides, dims, input, result, on, address), on, Tuning::parse(tuning)).json();
}

// The kernels that are compiled for these sums: each one's name, walk, elements per load, loads and batches.
std::string variants(at::ScalarType input, at::ScalarType result) {
  const Reduction r = reduction_of({2, 2}, {2, 1}, {1}, input, result);
  std::string all;
  const Variants compiled = Request(r, {}, false).variants;
  for (int i = 0; i < compiled.size(); ++i) all += (i ? ", " : "[") + compiled[i].json();
  return all + "]";
}

// One row for each tile, of `tiles` or of all, from the code that numbers tiles in the kernels: first output, outputs, first
// leaf, leaves, first partial sum.
at::Tensor walk(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                at::ScalarType result, const std::string& tuning, const std::string& device, at::OptionalIntArrayRef tiles) {
  const Device on = Device::parse(device);
  const Plan plan = make_plan(reduction_of(sizes, strides, dims, input, result, on), on, Tuning::parse(tuning));
  const int64_t count = tiles ? static_cast<int64_t>(tiles->size()) : plan.tiling.tiles;
  at::Tensor rows = at::empty({count, 5}, at::kLong);
  int64_t* row = rows.data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i, row += 5) {
    const Tile t = plan.tiling.tile(static_cast<uint64_t>(tiles ? (*tiles)[i] : i));
    row[0] = t.output;
    row[1] = t.outputs;
    row[2] = t.leaf;
    row[3] = t.leaves;
    row[4] = t.partial;
  }
  return rows;
}

template <class Nest>
void find(const Nest& nest, at::IntArrayRef indices, int64_t* row) {
  for (int64_t index : indices) {
    const Offsets o = nest.at(index);
    *row++ = o.in;
    *row++ = o.out;
  }
}

// One row for each index, from the code that finds offsets in the kernels: the offsets into input and result. `what`: "kept",
// outputs; "joined", outputs as the join kernel finds them; "reduced", an output's elements, counted from its first.
at::Tensor places(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef dims, at::ScalarType input,
                  at::ScalarType result, const std::string& what, at::IntArrayRef indices) {
  const Reduction r = reduction_of(sizes, strides, dims, input, result);
  const Problem& p = r.problem;
  at::Tensor rows = at::empty({static_cast<int64_t>(indices.size()), 2}, at::kLong);
  int64_t* row = rows.data_ptr<int64_t>();
  const bool fast = what == "joined" ? fits_fast_nest(p.kept, p.outputs) : r.engine != Engine::converted;
  if (what == "reduced") {
    fast ? find(reduced_nest<kFastRank>(p), indices, row) : find(reduced_nest<kMaxRank>(p), indices, row);
  } else {
    fast ? find(kept_nest<kFastRank>(p), indices, row) : find(kept_nest<kMaxRank>(p), indices, row);
  }
  return rows;
}

// The GPU whose data are used for a GPU of this name: its own, or the most similar one's.
std::string known(const std::string& gpu, const std::string& device) { return known_choice(gpu, Device::parse(device)).gpu(); }

// The guesses from these data for plans, each a row of features.
at::Tensor guesses(const at::Tensor& features, const std::string& gpu) {
  TORCH_CHECK(
      features.is_cpu() && features.dim() == 2 && features.size(1) == feature_count() && features.scalar_type() == at::kFloat,
      "features: expected a float32 matrix of ", feature_count(), " columns on the CPU");
  const Choice& choice = known_choice(gpu, {});
  const at::Tensor rows = features.contiguous(), result = at::empty({features.size(0)}, at::kFloat);
  for (int64_t i = 0; i < rows.size(0); ++i)
    result.data_ptr<float>()[i] = choice.guess(rows.const_data_ptr<float>() + i * rows.size(1));
  return result;
}

#ifdef GPUREDUCE_WITH_CUDA
std::string device_json(int64_t index) {
  TORCH_CHECK(index >= 0 && index < c10::cuda::device_count(), "_device: there is no GPU of index ", index);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(index));
  const Device& facts = cuda::facts(device);
  std::string json = facts.json();
  json.pop_back();
  return json + ", \"name\": \"" + cuda::name_of(device) + "\", \"choice\": \"" + facts.choice->gpu() + "\"}";
}

std::string choice_file(int64_t index) {
  return choice_path(cuda::name_of(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index))));
}
#endif

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
  const std::string view = "(int[] sizes, int[] strides, int[] dims, ScalarType input, ScalarType result, ";
  const std::string plan = view + "str tuning=\"\", str device=\"\"";
  m.def(("_plan" + plan + ", int address=0) -> str").c_str(), &gpureduce::plan_json);
  m.def(("_candidates" + plan + ", int address=0) -> Tensor").c_str(), &gpureduce::candidates);
  m.def("_variants(ScalarType input, ScalarType result) -> str", &gpureduce::variants);
  m.def("_features() -> str", &gpureduce::feature_names);
  m.def("_known_choice(str gpu, str device) -> str", &gpureduce::known);
  m.def("_guesses(Tensor features, str gpu) -> Tensor", &gpureduce::guesses);
  m.def(("_walk" + plan + ", int[]? tiles=None) -> Tensor").c_str(), &gpureduce::walk);
  m.def(("_places" + view + "str what, int[] indices) -> Tensor").c_str(), &gpureduce::places);
#ifdef GPUREDUCE_WITH_CUDA
  m.def("_device(int index) -> str", &gpureduce::device_json);
  m.def("_choice_path(int index) -> str", &gpureduce::choice_file);
#endif
  m.def("_set_gathered_bytes(int bytes) -> int", &gpureduce::cpu::set_gathered_bytes);
  m.def("_set_exact_additions(int most) -> int", &gpureduce::cpu::set_exact_additions);
  m.def("_build_info() -> str", &gpureduce::build_info);
}
