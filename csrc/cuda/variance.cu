// Variances and means: the kernels of weighted sums, whose second input is the first element of each output.
#include "variance/variance.h"
#include "weighted/join.cuh"

namespace gpureduce::cuda {

namespace {

using variance::Moments;

// The first elements of outputs, which are of a dtype that the kernel is compiled for.
template <class In>
struct Firsts {
  const In* input;
  using Found = Vector<In, 1>;

  explicit Firsts(const weighted::Input& given) : input(static_cast<const In*>(given.data)) {}
  __device__ __forceinline__ Found read(int64_t offset) const {
    return load_vector<In, 1>(input + offset, static_cast<uint64_t>(::cuda::access_property()));
  }
  static __device__ __forceinline__ double number(Found found) { return value(found[0]); }
};

// The same of any dtype.
template <>
struct Firsts<void> {
  AnyInput input;
  using Found = double;

  explicit Firsts(const weighted::Input& given) : input(any_of(given)) {}
  __device__ __forceinline__ double read(int64_t offset) const {
    return fetch_all<double, 1, true>(input, [=](int) { return AnyPlace{offset, true}; }).of[0];
  }
  static __device__ __forceinline__ double number(double found) { return found; }
};

struct Results {
  void *variance, *mean;
  DType dtype;
  variance::Finishing finishing;

  // A call, as it is a lot of code; of values, as what a kernel's parameters say is slow to read through an address.
  static __device__ __noinline__ void write(Results to, int64_t index, Moments m, double first) {
    const auto found = to.finishing(m, first);
    to.store(to.variance, index, found.variance);
    to.store(to.mean, index, found.mean);
  }

 private:
  __device__ __forceinline__ void store(void* out, int64_t index, double v) const {
    switch (dtype) {
      case DType::Float: static_cast<float*>(out)[index] = result<float>(v); break;
      case DType::Half: static_cast<Half*>(out)[index] = result<Half>(v); break;
      case DType::BFloat16: static_cast<BFloat16*>(out)[index] = result<BFloat16>(v); break;
      default: static_cast<double*>(out)[index] = v;
    }
  }
};

// The results of moments; or partial sums, which the join takes up.
template <class In>
struct MomentsWriter {
  static constexpr bool kWantsFirst = true;
  Moments* partials;  // null: the value is the result
  Firsts<In> firsts;
  Results results;

  // first_at(offset): the output's first element.
  template <int kRank, class FirstAt>
  __device__ __forceinline__ void write(const Nest<kRank>& places, int64_t output, int64_t partial, Moments m,
                                        const FirstAt& first_at) const {
    if (partials) {
      partials[partial] = m;
    } else {
      const Offsets at = places.at(output);
      Results::write(results, at.out, m, firsts.number(first_at(at.in)));
    }
  }
};

// Elements of a dtype that the kernel is compiled for. An output's first element is held.
template <class In>
struct Deviations {
  using Acc = Moments;
  using Writer = MomentsWriter<In>;
  static constexpr int kRank = kFastRank, kLargest = sizeof(In);
  static constexpr bool kOnce = true;
  const In* input;
  uint64_t policy, first_policy;

  template <int V, Same same>
  using Loaded = Vector<In, V>;

  template <int kFirst>
  struct Held {
    Vector<In, kFirst> first;

    // What stands for elements that are not wanted: their difference of 0 changes no result, since that of the first element is
    // one too.
    template <int V>
    __device__ __forceinline__ Vector<In, V> missing() const {
      Vector<In, V> x;
#pragma unroll
      for (int j = 0; j < V; ++j) x.set(j, first[kFirst == 1 ? 0 : j]);
      return x;
    }

    template <int V>
    __device__ __forceinline__ void add(Acc& sum, const Vector<In, V>& x, int j, bool starts) const {
      const Acc m = variance::moments_of(value(x[j]), value(first[kFirst == 1 ? 0 : j]));
      sum = starts ? m : sum + m;
    }
  };

  template <int V, Same same>
  __device__ __forceinline__ auto hold(bool wanted, Offsets place) const {
    constexpr int kFirst = same == Same::none ? V : 1;
    return Held<kFirst>{load_vector_if<In, kFirst>(wanted, input + place.in, first_policy, padding_vector<In, kFirst>().bits)};
  }

  // A thread gets the first element of the vector that another one has.
  template <int V>
  __device__ __forceinline__ Held<1> hold_of(const Vector<In, V>& x, int lane) const {
    std::conditional_t<sizeof(In) <= 4, uint32_t, uint64_t> word = 0;
    memcpy(&word, &x, sizeof(x) < sizeof(word) ? sizeof(x) : sizeof(word));
    word = __shfl_sync(~0u, word, lane);
    Held<1> held;
    memcpy(&held.first, &word, sizeof(In));
    return held;
  }

  template <int V, Same same, bool kAlways, class Held>
  __device__ __forceinline__ Vector<In, V> load(bool wanted, Offsets at, const Held& held) const {
    if constexpr (kAlways) return load_vector<In, V>(input + at.in, policy);
    else if constexpr (std::is_same_v<Held, Unheld>)
      return load_vector_if<In, V>(wanted, input + at.in, policy, padding_vector<In, V>().bits);
    else return load_vector_if<In, V>(wanted, input + at.in, policy, held.template missing<V>().bits);
  }
};

// A difference of elements of any dtype that are known by their places.
struct AnyDeviation {
  AnyInput input;
  Offsets at;
  bool wanted;
};

template <int kCount, int kElements>
__device__ __forceinline__ auto ready(const AnyDeviation (&x)[kCount][kElements]) {
  const AnyInput& input = x[0][0].input;
  Ready<KnownProduct<Moments>, kCount, kElements> made;
  fetch_pairs<double>(x, input, input, made,
                      [](double own, double first) { return KnownProduct<Moments>{variance::moments_of(own, first)}; });
  return made;
}

// Elements of any dtype, converted at run time, in any number of dims.
struct AnyDeviations {
  using Acc = Moments;
  using Writer = MomentsWriter<void>;
  static constexpr int kRank = kMaxRank, kLargest = kGranule;
  static constexpr bool kOnce = false;
  AnyInput input;

  template <int V, Same same>
  using Loaded = AnyDeviation;

  template <int V, Same same, bool kAlways, class Held>
  __device__ __forceinline__ AnyDeviation load(bool wanted, Offsets at, const Held&) const {
    static_assert(V == 1);
    return {input, at, wanted};
  }
};

// As a sum of two inputs.
weighted::Reduction paired(const variance::Reduction& r) {
  return {r.problem, r.input, r.input, nullptr, r.out, Accumulator::f64, Accumulator::c128, false};
}

template <class In>
MomentsWriter<In> writer_of(const Variances& v, void* partials) {
  const variance::Reduction& r = v.reduction;
  return {static_cast<Moments*>(partials), Firsts<In>(r.input), {r.variance, r.mean, r.out, r.finishing}};
}

template <class In>
cudaError_t launch_typed(const WeightedLaunch& launch, const Variances& v, void* partials) {
  const Deviations<In> source{static_cast<const In*>(launch.reduction.self.data), weighted_policy(launch, true),
                              weighted_policy(launch, false)};
  const MomentsWriter<In> writer = writer_of<In>(v, partials);
  constexpr int kMost = kGranule / sizeof(In);
  if (launch.plan.vector == kMost) return launch_weighted<kMost>(launch, source, writer);
  if constexpr (kMost == 8)
    if (launch.plan.vector == 4) return launch_weighted<4>(launch, source, writer);
  return launch_weighted<1>(launch, source, writer);
}

cudaError_t reduce(const WeightedLaunch& launch, const Variances& v, void* partials) {
  const weighted::Input& input = launch.reduction.self;
  if (!launch.plan.typed) return launch_weighted<1>(launch, AnyDeviations{any_of(input)}, writer_of<void>(v, partials));
  switch (input.dtype) {
    case DType::Float: return launch_typed<float>(launch, v, partials);
    case DType::Half: return launch_typed<Half>(launch, v, partials);
    case DType::BFloat16: return launch_typed<BFloat16>(launch, v, partials);
    case DType::Double: return launch_typed<double>(launch, v, partials);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

Variances::Variances(const variance::Reduction& reduction, const Device& device, cudaStream_t stream)
    : reduction(reduction), device(device), stream(stream), pair(paired(reduction)), plan(plan_weighted(pair, device)) {}

int64_t workspace_of(const Variances& v) { return v.plan.partials(v.pair) * static_cast<int64_t>(sizeof(Moments)); }

cudaError_t run_variances(const Variances& v, void* workspace) {
  const WeightedLaunch launch{v.pair, v.plan, v.device, workspace, {v.stream, v.device.early}};
  if (cudaError_t error = reduce(launch, v, v.plan.joins ? workspace : nullptr)) return error;
  return v.plan.joins ? join_weighted<Moments>(launch, writer_of<void>(v, nullptr)) : cudaSuccess;
}

}  // namespace gpureduce::cuda
