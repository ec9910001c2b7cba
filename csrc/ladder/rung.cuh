// What the rungs' kernels share: types, the passes, and the two pieces that many lessons end with.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "rung.h"

namespace gpureduce::ladder {

// --- types and ops ---------------------------------------------------------------------------------------------------------

template <class T>
struct Type {
  using type = T;
};

// f(Type<T>) for the type in which sums of a dtype are computed: unsigned integers wrap, as torch's do, where signed ones are
// undefined; `long long` because atomicAdd takes that.
template <class F>
int with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f32: f(Type<float>{}); break;
    case DType::f64: f(Type<double>{}); break;
    case DType::i32: f(Type<unsigned>{}); break;
    case DType::i64: f(Type<unsigned long long>{}); break;
  }
  return cudaGetLastError();
}

template <class T>
struct Sum {
  static constexpr T kIdentity = T(0);
  static __device__ T combine(T a, T b) { return a + b; }
};
template <class T>
struct Product {
  static constexpr T kIdentity = T(1);
  static __device__ T combine(T a, T b) { return a * b; }
};
template <class T>
struct Max {  // NaN if there is one, as torch.max
  static constexpr T kIdentity =
      std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  static __device__ T combine(T a, T b) { return a > b || a != a ? a : b; }
};
template <class T>
struct Min {
  static constexpr T kIdentity =
      std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  static __device__ T combine(T a, T b) { return a < b || a != a ? a : b; }
};

// f(functor<T>, const T* input, T* output) for the call's dtype and op.
template <class F>
int with_op(const Call& call, F f) {
  return with_type(call.dtype, [&](auto type) {
    using U = typename decltype(type)::type;
    using S = std::conditional_t<std::is_same_v<U, unsigned>, int,
                                 std::conditional_t<std::is_same_v<U, unsigned long long>, long long, U>>;
    auto apply = [&](auto functor, auto t) {
      using T = typename decltype(t)::type;
      f(functor, static_cast<const T*>(call.input), static_cast<T*>(call.output));
    };
    switch (call.op) {
      case Op::sum: return apply(Sum<U>{}, type);
      case Op::product: return apply(Product<U>{}, type);
      case Op::max: return apply(Max<S>{}, Type<S>{});
      case Op::min: return apply(Min<S>{}, Type<S>{});
    }
  });
}

// f(std::integral_constant<int, value>) for one of the allowed values: what a lesson makes a template parameter.
template <int... kAllowed, class F>
void with_constant(int value, F f) {
  (void)((value == kAllowed && (f(std::integral_constant<int, kAllowed>{}), true)) || ...);
}

// The same for the blocks that a template can be compiled for: kTemplateBlocks.
template <class F>
void with_block(int block, F f) {
  with_constant<1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024>(block, f);
}

// --- launching -------------------------------------------------------------------------------------------------------------

inline cudaStream_t stream_of(const Call& call) { return static_cast<cudaStream_t>(call.stream); }
inline unsigned blocks_of(const Call& call) { return static_cast<unsigned>(ceil_div(call.n, call.tile())); }

// launch(T* data, T* partials, n, blocks) leaves a result a block in `partials`. It runs on the input, then on its own results,
// until one is left: where the lesson adds the blocks' sums on the host. With `first_pass` it runs on the input alone.
template <class T, class Launch>
void run_passes_of(const Call& call, Launch launch) {
  T* data = static_cast<T*>(call.input);
  T* partials = static_cast<T*>(call.scratch);
  for (int64_t n = call.n;;) {
    const int64_t blocks = ceil_div(n, call.tile());
    launch(data, blocks == 1 ? static_cast<T*>(call.output) : partials, n, static_cast<unsigned>(blocks));
    if (blocks == 1 || call.first_pass) return;
    data = partials;
    partials += ceil_div(blocks, call.tile()) * call.tile();
    n = blocks;
  }
}

// The passes of a sum.
template <class Launch>
int run_passes(const Call& call, Launch launch) {
  return with_type(call.dtype, [&](auto type) { run_passes_of<typename decltype(type)::type>(call, launch); });
}

// The passes of any op: launch(functor<T>, const T* data, T* partials, n, blocks). The kernel must test `i < n`: nothing fills
// the partial results up to whole tiles.
template <class Launch>
int run_passes_with_op(const Call& call, Launch launch) {
  return with_op(call, [&](auto op, const auto*, auto* output) {
    using T = std::remove_pointer_t<decltype(output)>;
    run_passes_of<T>(call,
                     [&](const T* data, T* partials, int64_t n, unsigned blocks) { launch(op, data, partials, n, blocks); });
  });
}

// --- device code -----------------------------------------------------------------------------------------------------------

// Shared memory that is sized at launch, for any T.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char memory[];
  return reinterpret_cast<T*>(memory);
}

// The last six steps of a tree, by the 32 threads of one warp, without barriers for the block. In the lessons it is
//   volatile int* v = data;  v[tid] += v[tid + 32];  v[tid] += v[tid + 16];  …
// which needs a warp's threads to read together and then to write together. Since Volta they need not: __syncwarp makes them,
// and orders their accesses to memory, so that `volatile` is not needed. Blocks of 32 and fewer threads have fewer steps, as in
// the slides' `if (blockSize >= 32) …`. Every thread takes every step: a block of 32 or fewer reads up to half a block behind
// itself. It has to be memory that may be read; no sum that counts has what lies there.
template <unsigned kBlock = 64, class T>
__device__ void add_last_warp(T* data, unsigned tid) {
  constexpr unsigned kThreads = kBlock < 32 ? (1u << kBlock % 32) - 1 : 0xffffffff;
#pragma unroll
  for (unsigned stride = kBlock >= 64 ? 32 : kBlock / 2; stride > 0; stride /= 2) {
    const T sum = data[tid] + data[tid + stride];
    __syncwarp(kThreads);
    data[tid] = sum;
    __syncwarp(kThreads);
  }
}

// Combines with *where, as atomicAdd does for sums; other ops by compare-and-swap.
template <class Functor, class T>
__device__ void combine_atomically(Functor, T* where, T value) {
  if constexpr (std::is_same_v<Functor, Sum<T>>) {
    atomicAdd(where, value);
  } else {
    using Bits = std::conditional_t<sizeof(T) == 4, unsigned, unsigned long long>;
    auto bits = [](T t) { return *reinterpret_cast<Bits*>(&t); };
    auto value_of = [](Bits b) { return *reinterpret_cast<T*>(&b); };
    Bits* address = reinterpret_cast<Bits*>(where);
    Bits old = *address, seen;
    do {
      seen = old;
      const Bits wanted = bits(Functor::combine(value_of(seen), value));
      if (wanted == seen) return;
      old = atomicCAS(address, seen, wanted);
    } while (old != seen);
  }
}

// A block's result, in thread 0: each warp joins its values in registers, then the first warp joins one value a warp.
template <class Functor, class T>
__device__ T combine_by_shuffles(Functor, T value) {
  constexpr unsigned kWholeWarp = 0xffffffff;
  __shared__ T warps[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = Functor::combine(value, __shfl_down_sync(kWholeWarp, value, offset));
  if (lane == 0) warps[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = lane < blockDim.x / 32 ? warps[lane] : Functor::kIdentity;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value = Functor::combine(value, __shfl_down_sync(kWholeWarp, value, offset));
  }
  return value;
}

}  // namespace gpureduce::ladder
