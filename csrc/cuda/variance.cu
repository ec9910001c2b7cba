// Variances and means: the kernels of weighted sums, whose second input is the first element of each output.
#include "variance/variance.h"
#include "weighted/join.cuh"

namespace gpureduce::cuda {

namespace {

using variance::Moments;

// Calls f with an element of a floating dtype.
template <class F>
__device__ __forceinline__ auto with_float(DType dtype, F f) {
  switch (dtype) {
#define GPUREDUCE_CASE(name, type, kind, accumulator, wide, family) \
  case DType::name:                                                 \
    if constexpr (Kind::kind == Kind::floating) return f(type{});   \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_CASE)
#undef GPUREDUCE_CASE
  }
  return f(float{});
}

template <class In>
__device__ __forceinline__ auto loaded(const weighted::Input& input, int64_t offset) {
  const uint64_t policy = static_cast<uint64_t>(::cuda::access_property());
  return value(load_vector<In, 1>(static_cast<const In*>(input.data) + offset, policy)[0]);
}

// The results of moments, and the first elements that they need; or partial sums, which the join takes up.
struct MomentsWriter {
  Moments* partials;  // null: the value is the result
  weighted::Input input;
  void *variance, *mean;
  DType dtype;
  variance::Finishing finishing;

  template <int kRank>
  __device__ __forceinline__ void write(const Nest<kRank>& results, int64_t output, int64_t partial, Moments m) const {
    if (partials) partials[partial] = m;
    else finish(results.at(output), m);
  }

 private:
  __device__ __noinline__ void finish(Offsets at, Moments m) const {
    const auto found = finishing(m, first(at.in));
    store_float(variance, at.out, found.variance);
    store_float(mean, at.out, found.mean);
  }
  __device__ __forceinline__ double first(int64_t offset) const {
    const double x = with_float(input.dtype, [&](auto element) -> double { return loaded<decltype(element)>(input, offset); });
    return input.negate ? -x : x;
  }
  __device__ __forceinline__ void store_float(void* out, int64_t index, double v) const {
    switch (dtype) {
      case DType::Float: static_cast<float*>(out)[index] = result<float>(v); break;
      case DType::Half: static_cast<Half*>(out)[index] = result<Half>(v); break;
      case DType::BFloat16: static_cast<BFloat16*>(out)[index] = result<BFloat16>(v); break;
      default: static_cast<double*>(out)[index] = v;
    }
  }
};

template <class In>
using RealOf = std::conditional_t<std::is_same_v<In, double>, double, float>;

// Elements of a dtype that the kernel is compiled for. An output's first element is held.
template <class In>
struct Deviations {
  using Acc = Moments;
  using Writer = MomentsWriter;
  static constexpr int kRank = kFastRank, kLargest = sizeof(In);
  static constexpr bool kOnce = true;
  const In* input;
  uint64_t policy, first_policy;

  template <int V, Same same>
  using Loaded = Vector<In, V>;

  template <int kFirst>
  struct Held {
    Vector<In, kFirst> first;

    // What is not wanted is as if it were the first element: its difference of 0 changes no result, since that of the first
    // element is one too. A square of a float32 is exact in double precision, so that it can be added with one rounding.
    template <int V>
    __device__ __forceinline__ void add(Acc& sum, const Vector<In, V>& x, int j, bool wanted, bool starts) const {
      const float difference = value(x[j]) - value(first[kFirst == 1 ? 0 : j]);
      const double d = wanted ? difference : 0;
      sum = starts ? Acc{d, d * d} : Acc{sum.re + d, __fma_rn(d, d, sum.im)};
    }
  };

  template <int V, Same same>
  __device__ __forceinline__ auto hold(bool wanted, Offsets place) const {
    constexpr int kFirst = same == Same::none ? V : 1;
    return Held<kFirst>{load_vector_if<In, kFirst>(wanted, input + place.in, first_policy, padding_vector<In, kFirst>().bits)};
  }

  template <int V>
  __device__ __forceinline__ Held<1> hold_of(const Vector<In, V>& x, int lane) const {
    uint32_t word = 0;
    memcpy(&word, &x, sizeof(x) < sizeof(word) ? sizeof(x) : sizeof(word));
    word = __shfl_sync(~0u, word, lane);
    Held<1> held;
    memcpy(&held.first, &word, sizeof(In));
    return held;
  }

  template <int V, Same same, bool kAlways>
  __device__ __forceinline__ Vector<In, V> load(bool wanted, Offsets at) const {
    if constexpr (kAlways) return load_vector<In, V>(input + at.in, policy);
    else return load_vector_if<In, V>(wanted, input + at.in, policy, padding_vector<In, V>().bits);
  }
};

// Elements of any dtype, converted at run time, in any number of dims.
struct AnyDeviations {
  using Acc = Moments;
  using Writer = MomentsWriter;
  static constexpr int kRank = kMaxRank, kLargest = sizeof(Acc);
  static constexpr bool kOnce = false;
  weighted::Input input;

  template <int V, Same same>
  struct Loaded {
    Acc value;
    __device__ __forceinline__ Acc product(int) const { return value; }
  };

  template <int V, Same same, bool kAlways>
  __device__ __forceinline__ Loaded<V, same> load(bool wanted, Offsets at) const {
    static_assert(V == 1);
    return {wanted ? found(at) : padding<Acc>()};
  }

  __device__ __noinline__ Acc found(Offsets at) const {
    return with_float(input.dtype, [&](auto element) -> Acc {
      using In = decltype(element);
      using Real = RealOf<In>;
      const Real x = loaded<In>(input, at.in), first = loaded<In>(input, at.out);
      return input.negate ? variance::moments_of<Real>(-x, -first) : variance::moments_of<Real>(x, first);
    });
  }
};

// As a sum of two inputs.
weighted::Reduction paired(const variance::Reduction& r) {
  return {r.problem, r.input, r.input, nullptr, r.out, Accumulator::f64, Accumulator::c128, false};
}

WeightedPlan plan_of(const weighted::Reduction& r, int multiprocessors) {
  WeightedPlan plan = plan_weighted(r, multiprocessors);
  plan.joins = plan.splits > 1;
  return plan;
}

template <class In>
cudaError_t launch_typed(const WeightedLaunch& launch, const MomentsWriter& writer) {
  const Deviations<In> source{static_cast<const In*>(launch.reduction.self.data), weighted_policy(launch, true),
                              weighted_policy(launch, false)};
  constexpr int kMost = kGranule / sizeof(In);
  if (launch.plan.vector == kMost) return launch_weighted<kMost>(launch, source, writer);
  if constexpr (kMost == 8)
    if (launch.plan.vector == 4) return launch_weighted<4>(launch, source, writer);
  return launch_weighted<1>(launch, source, writer);
}

cudaError_t reduce(const WeightedLaunch& launch, const MomentsWriter& writer) {
  if (!launch.plan.typed) return launch_weighted<1>(launch, AnyDeviations{launch.reduction.self}, writer);
  switch (launch.reduction.self.dtype) {
    case DType::Float: return launch_typed<float>(launch, writer);
    case DType::Half: return launch_typed<Half>(launch, writer);
    case DType::BFloat16: return launch_typed<BFloat16>(launch, writer);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

int64_t workspace_of(const Variances& v) {
  const weighted::Reduction r = paired(v.reduction);
  return plan_of(r, v.multiprocessors).partials(r) * static_cast<int64_t>(sizeof(Moments));
}

cudaError_t run_variances(const Variances& v, void* workspace) {
  const weighted::Reduction r = paired(v.reduction);
  const WeightedPlan plan = plan_of(r, v.multiprocessors);
  const WeightedLaunch launch{r, plan, workspace, v.l2_bytes, v.early, v.stream};
  MomentsWriter writer{plan.joins ? static_cast<Moments*>(workspace) : nullptr,
                       v.reduction.input,
                       v.reduction.variance,
                       v.reduction.mean,
                       v.reduction.out,
                       v.reduction.finishing};
  if (cudaError_t error = reduce(launch, writer)) return error;
  if (!plan.joins) return cudaSuccess;
  writer.partials = nullptr;
  return join_weighted<Moments>(launch, writer);
}

}  // namespace gpureduce::cuda
