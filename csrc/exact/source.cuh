// Where the kernels of exact sums take their elements: from one tensor, or from two whose products are doubles.
//
// For example products of float32 rows and bfloat16 weights. A place is an offset into each tensor. A thread loads two
// neighbours, 8 bytes of the rows and 4 bytes of the weights: 1.5 and 3, and 2 and -0.5. A float32 has 24 bits and a product of
// two has 48, so the doubles 3 and -1.5 are exact, and the kernels take them as if a tensor of doubles had been loaded.
//
// A source has
// - Type, its elements' type, and Place, the offsets of an element: int64_t or Both;
// - along(place, n): the place n elements on in a run of neighbours;
// - kHasHeads, true if whole vectors can be loaded of runs that begin anywhere, and head(place): the elements between the last
//   whole vector and a place;
// - load<V>(place), load_if<V>(wanted, place, nothing): what is loaded for V neighbours, Loaded<V>;
// - elements(loaded): these V elements.
// Kernels load all vectors of a tile before they look at the elements, so that all loads are in flight together.
#pragma once

#include "../core/problem/nest.h"
#include "tile.cuh"

namespace gpureduce::cuda {

// The words of a vector of elements that add nothing, not even a sign: -0, before a negation.
template <class T>
struct Nothing {
  uint32_t words[2];
  __device__ __forceinline__ explicit Nothing(bool negate)
      : words{negate || sizeof(T) == 8 ? 0 : Exponents<T>::kTop, negate ? 0 : Exponents<T>::kTop} {}
  template <int V>
  __device__ __forceinline__ typename Vector<T, V>::Bits bits() const {
    return filled<typename Vector<T, V>::Bits>(words);
  }
  // Not 0 if x has another element.
  template <int V>
  __device__ __forceinline__ uint32_t differs(const Vector<T, V>& x) const {
    if constexpr (V * sizeof(T) < 4) return x.bits ^ bits<V>();
    uint32_t other = 0;
#pragma unroll
    for (int w = 0; w < static_cast<int>(V * sizeof(T) / 4); ++w) other |= x.word(w) ^ words[sizeof(T) == 8 ? w % 2 : 0];
    return other;
  }
};

template <class T>
struct OneTensor {
  using Type = T;
  using Place = int64_t;
  template <int V>
  using Loaded = Vector<T, V>;

  const T* data;
  uint64_t policy;
  ExactSigns signs;

  static constexpr bool kHasHeads = true;
  static __device__ __forceinline__ Place along(Place place, int64_t n) { return place + n; }
  __device__ __forceinline__ int head(Place place) const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(data + place) % kGranule / sizeof(T));
  }
  template <int V>
  __device__ __forceinline__ Loaded<V> load(Place place) const {
    return load_vector<T, V>(data + place, policy);
  }
  template <int V>
  __device__ __forceinline__ Loaded<V> load_if(bool wanted, Place place, const Nothing<T>& nothing) const {
    return load_vector_if<T, V>(wanted, data + place, policy, nothing.template bits<V>());
  }
  template <int V>
  __device__ __forceinline__ Vector<T, V> elements(const Loaded<V>& x) const {
    return x;
  }
};

// The products of two tensors of float32, bfloat16 or float16. There is one kernel, which looks up the dtypes as it runs.
struct TwoTensors {
  using Type = double;
  using Place = Both;
  template <int V>
  struct Loaded {
    Either<V> of[2];
  };

  struct Factors {
    const void* data;
    uint64_t policy;
    DType dtype;

    __device__ __forceinline__ bool wide() const { return dtype == DType::Float; }
    template <int V>
    __device__ __forceinline__ Either<V> load_if(bool wanted, int64_t place, uint32_t otherwise) const {
      Either<V> fill;
      for (uint32_t& word : fill.wide) word = otherwise;
      fill.narrow = otherwise | otherwise >> 16;
      const char* const p = static_cast<const char*>(data) + place * (wide() ? 4 : 2);
      return load_either(wanted && wide(), wanted && !wide(), p, fill, policy);
    }
    template <int V>
    __device__ __forceinline__ float number(const Either<V>& x, int j) const {
      const auto bits = static_cast<uint16_t>(x.narrow >> 16 * j);
      const float narrow = dtype == DType::Half ? value(Half{bits}) : value(BFloat16{bits});
      return wide() ? bit_cast<float>(x.wide[j]) : narrow;
    }
  };
  Factors first, second;
  bool repeats;  // a run has one element of the second tensor
  bool squares;  // of the first tensor: the second is not loaded
  ExactSigns signs;

  static constexpr bool kHasHeads = false;
  __device__ __forceinline__ Place along(Place place, int64_t n) const { return place + Both{n, repeats ? 0 : n}; }
  static __device__ __forceinline__ int head(Place) { return 0; }
  template <int V>
  __device__ __forceinline__ Loaded<V> load(Place place) const {
    return load_if<V>(true, place, Nothing<double>(signs.negate));
  }
  // What is not wanted is -0 * 0, before a negation. A square is never -0, so a +0 more does not matter.
  template <int V>
  __device__ __forceinline__ Loaded<V> load_if(bool wanted, Place place, const Nothing<double>& nothing) const {
    return {first.load_if<V>(wanted, place.first, nothing.words[1]), second.load_if<V>(wanted && !squares, place.second, 0)};
  }
  template <int V>
  __device__ __forceinline__ Vector<double, V> elements(const Loaded<V>& x) const {
    Vector<double, V> products;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float a = first.number(x.of[0], j), b = second.number(x.of[1], j);
      products.set(j, static_cast<double>(a) * static_cast<double>(squares ? a : b));
    }
    return products;
  }
};

}  // namespace gpureduce::cuda
