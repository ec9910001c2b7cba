// What CUDA C++ gives a kernel, on a CPU: this file stands in for CUDA's own cuda_runtime.h where kernels are emulated.
//
// A kernel's threads are fibers: one runs until it comes to a barrier, then the next one runs. With a block of 4 whose
// kernel has one barrier, the order is t0 to the barrier, t1, t2, t3, then t0 from the barrier to the end, t1, t2, t3.
// emulator.cpp is the other half: it runs the fibers and counts what they do.
#pragma once

#include <algorithm>
#include <cassert>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulate {

template <class T>
using Same = T;

// Launches as `kernel<<<grid, block, shared>>>(...)` does; `body` is the call of the kernel by one thread.
struct Launch {
  dim3 grid, block;
  size_t shared;
  Launch(dim3 grid, dim3 block, size_t shared = 0, const void* stream = nullptr) : grid(grid), block(block), shared(shared) {
    (void)stream;
  }
};
void launch_threads(const char* kernel, const Launch& how, const std::function<void()>& body);
template <class F>
void launch(const char* kernel, const Launch& how, const F& body) {
  launch_threads(kernel, how,
                 std::cref(body));  // not a copy: what a kernel's arguments are read from stays on the host's stack
}

// `__shared__ T name[8]`: the same memory for all threads of a block. `id` tells the declarations apart.
void* shared(int id, size_t size, size_t align, const char* name);
void* dynamic_shared(size_t element, const char* name);  // `extern __shared__ T name[]`

// A local variable or array without a value, to the end of its scope: who reads what was never written there is told.
class Local {
 public:
  template <class T>
  Local(T& variable, const char* name) {
    using Element = std::remove_all_extents_t<T>;
    if (std::is_trivially_default_constructible_v<Element> && sizeof(Element) >= 4)
      begin(&variable, sizeof variable, sizeof(Element), name);
  }
  ~Local() {
    if (begun) end();
  }

 private:
  void begin(void* where, size_t bytes, size_t element, const char* name);
  void end();
  bool begun = false;
};

// The test of an `if` or a loop, numbered in the source; and where the body that it decides on begins and ends.
bool test(int site, bool loop, bool outcome);
void begin(int site);
void end(int site);
bool turn(int site);  // of a loop whose test the compiler knows to hold: true
#define EMULATE_TEST(site, loop, ...)                                                                       \
  (__builtin_constant_p(__VA_ARGS__) ? static_cast<bool>(__VA_ARGS__) && (!(loop) || ::emulate::turn(site)) \
                                     : ::emulate::test(site, loop, static_cast<bool>(__VA_ARGS__)))

void block_barrier(int line);
void warp_barrier(unsigned mask, int line);
void fence();
void* device(size_t size, size_t element, const char* name);  // `__device__ T name[8];`: global memory
int vote(int line, int value);                                // of the block: how many threads gave a value that is not 0

void note_atomic(const void* where, size_t size, const void* place);
void note_shuffle(unsigned from, bool nothing);  // nothing: it got no other lane's value, or 0
void* slot(unsigned thread);                     // 16 bytes of each thread that shuffles pass values through
unsigned lane();
unsigned thread();   // its number in the block, x first
unsigned threads();  // of a block

// The value of lane `from`, or one's own where there is no such lane in the warp or it lies outside a part of `width` lanes.
template <class T>
T shuffle(unsigned mask, T value, int from, bool inside, int line) {
  static_assert(sizeof(T) <= 16);
  std::memcpy(slot(thread()), &value, sizeof value);
  warp_barrier(mask, line);
  T found = value;
  const unsigned other = thread() - lane() + static_cast<unsigned>(from);
  if (inside && other < threads()) {
    std::memcpy(&found, slot(other), sizeof found);
    note_shuffle(other, found == T());
  } else {
    note_shuffle(thread(), true);
  }
  warp_barrier(mask, line);
  return found;
}

template <class T, class F>
__attribute__((no_sanitize("thread"))) T change(T* where, const void* place, F f) {
  note_atomic(const_cast<const void*>(static_cast<const volatile void*>(where)), sizeof(T), place);
  const T old = *where;
  *where = f(old);
  return old;
}

}  // namespace emulate

// Without :: in front, what follows a forgotten semicolon is no part of a name, and compilers say so.
#define __syncthreads() emulate::block_barrier(__LINE__)
#define __syncwarp(...) emulate::warp_barrier(::emulate::mask_of(__VA_ARGS__), __LINE__)
#define __threadfence() emulate::fence()
#define __threadfence_block() emulate::fence()
#define __threadfence_system() emulate::fence()
#define __syncthreads_count(value) emulate::vote(__LINE__, (value) != 0)
#define __syncthreads_or(value) (::emulate::vote(__LINE__, (value) != 0) != 0)
#define __syncthreads_and(value) (::emulate::vote(__LINE__, (value) == 0) == 0)
#define __shfl_down_sync(...) emulate::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emulate::shuffle_up(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulate::shuffle_xor(__LINE__, __VA_ARGS__)
#define __shfl_sync(...) emulate::shuffle_from(__LINE__, __VA_ARGS__)
#define __activemask() 0xffffffffu
#define __ballot_sync(...) emulate::ballot(__LINE__, __VA_ARGS__)
#define __any_sync(mask, value) (::emulate::ballot(__LINE__, mask, (value) != 0) != 0)
#define __all_sync(mask, value) (::emulate::ballot(__LINE__, mask, (value) == 0) == 0)
#define __reduce_add_sync(mask, value) emulate::gather(__LINE__, mask, value, [](auto a, auto b) { return a + b; })
#define __reduce_min_sync(mask, value) emulate::gather(__LINE__, mask, value, [](auto a, auto b) { return b < a ? b : a; })
#define __reduce_max_sync(mask, value) emulate::gather(__LINE__, mask, value, [](auto a, auto b) { return a < b ? b : a; })

namespace emulate {

inline unsigned mask_of(unsigned mask = 0xffffffff) { return mask; }

template <class T>
T shuffle_down(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  const int from = static_cast<int>(lane() + delta);
  return shuffle(mask, value, from, from < 32 && lane() % width + delta < static_cast<unsigned>(width), line);
}
template <class T>
T shuffle_up(int line, unsigned mask, T value, unsigned delta, int width = 32) {
  return shuffle(mask, value, static_cast<int>(lane()) - static_cast<int>(delta), lane() % width >= delta, line);
}
template <class T>
T shuffle_xor(int line, unsigned mask, T value, int lanes, int width = 32) {
  const int from = static_cast<int>(lane()) ^ lanes;
  return shuffle(mask, value, from, from / width <= static_cast<int>(lane()) / width, line);
}
template <class T>
T shuffle_from(int line, unsigned mask, T value, int from, int width = 32) {
  const int first = static_cast<int>(lane()) / width * width;
  return shuffle(mask, value, first + ((from % width) + width) % width, true, line);
}

// f of the values of all lanes in the mask, from the lowest lane up; each lane gets the result.
template <class T, class F>
T gather(int line, unsigned mask, T value, F f) {
  static_assert(sizeof(T) <= 16);
  std::memcpy(slot(thread()), &value, sizeof value);
  warp_barrier(mask, line);
  const unsigned first = thread() - lane();
  bool any = false;
  T found{};
  for (unsigned other = 0; other < 32 && first + other < threads(); ++other) {
    if (!(mask >> other & 1)) continue;
    T next;
    std::memcpy(&next, slot(first + other), sizeof next);
    found = any ? f(found, next) : next;
    any = true;
  }
  warp_barrier(mask, line);
  return found;
}
inline unsigned ballot(int line, unsigned mask, int value) {
  return gather(line, mask, value ? 1u << lane() : 0u, [](unsigned a, unsigned b) { return a | b; });
}

}  // namespace emulate

// Never inlined: the address to which one returns is then the kernel's line.
#define EMULATE_ATOMIC __attribute__((noinline, no_sanitize("thread")))
template <class T>
EMULATE_ATOMIC T atomicAdd(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
EMULATE_ATOMIC T atomicSub(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return static_cast<T>(old - value); });
}
template <class T>
EMULATE_ATOMIC T atomicExch(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T) { return value; });
}
template <class T, class = std::enable_if_t<std::is_integral_v<T>>>  // CUDA has none of floats
EMULATE_ATOMIC T atomicMax(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return old < value ? value : old; });
}
template <class T, class = std::enable_if_t<std::is_integral_v<T>>>  // CUDA has none of floats
EMULATE_ATOMIC T atomicMin(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return value < old ? value : old; });
}
template <class T>
EMULATE_ATOMIC T atomicAnd(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return old & value; });
}
template <class T>
EMULATE_ATOMIC T atomicOr(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return old | value; });
}
template <class T>
EMULATE_ATOMIC T atomicXor(T* where, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return old ^ value; });
}
template <class T>
EMULATE_ATOMIC T atomicCAS(T* where, std::common_type_t<T> expected, std::common_type_t<T> value) {
  return emulate::change(where, __builtin_return_address(0), [&](T old) { return old == expected ? value : old; });
}
EMULATE_ATOMIC inline unsigned atomicInc(unsigned* where, unsigned last) {
  return emulate::change(where, __builtin_return_address(0), [&](unsigned old) { return old >= last ? 0 : old + 1; });
}

template <class T>
T __ldg(const T* where) {
  return *where;
}
inline int __float_as_int(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline long long __double_as_longlong(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits ? __builtin_clz(static_cast<unsigned>(bits)) : 32; }
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
// A vector of 2 or 4 is one load or store, as on a GPU.
#define EMULATE_VECTOR(name, type, whole, ...)                            \
  struct alignas(sizeof(whole)) name {                                    \
    union {                                                               \
      struct { type __VA_ARGS__; };                                       \
      whole all;                                                          \
    };                                                                    \
    name() = default;                                                     \
    name(const name& other) : all(other.all) {}                           \
    name& operator=(const name& other) { return all = other.all, *this; } \
  };
namespace emulate {
using Bytes16 = unsigned char __attribute__((vector_size(16), may_alias));
using Bytes8 = uint64_t __attribute__((may_alias));
}  // namespace emulate
EMULATE_VECTOR(float2, float, emulate::Bytes8, x, y)
EMULATE_VECTOR(float4, float, emulate::Bytes16, x, y, z, w)
EMULATE_VECTOR(int2, int, emulate::Bytes8, x, y)
EMULATE_VECTOR(int4, int, emulate::Bytes16, x, y, z, w)
EMULATE_VECTOR(double2, double, emulate::Bytes16, x, y)
template <class V, class... T>
V emulate_vector(T... values) {
  V made;
  const decltype(made.x) list[] = {static_cast<decltype(made.x)>(values)...};
  std::memcpy(static_cast<void*>(&made), list, sizeof made);
  return made;
}
inline float2 make_float2(float x, float y) { return emulate_vector<float2>(x, y); }
inline float4 make_float4(float x, float y, float z, float w) { return emulate_vector<float4>(x, y, z, w); }
inline int2 make_int2(int x, int y) { return emulate_vector<int2>(x, y); }
inline int4 make_int4(int x, int y, int z, int w) { return emulate_vector<int4>(x, y, z, w); }
inline double2 make_double2(double x, double y) { return emulate_vector<double2>(x, y); }
inline long long clock64() { return 0; }

// The host's side. Around a kernel that is tried it has to compile and is not run; of a whole program, with EMULATE_WHOLE,
// host.cpp does what it asks for.
using cudaError_t = int;
using cudaStream_t = void*;
using cudaEvent_t = void*;
constexpr cudaError_t cudaSuccess = 0, cudaErrorInvalidValue = 1;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
struct cudaDeviceProp {
  char name[256];
  int multiProcessorCount, maxThreadsPerBlock, warpSize;
  size_t sharedMemPerBlock;
};
#ifdef EMULATE_WHOLE
namespace emulate {
template <class T>
constexpr size_t size_of = sizeof(T);
template <>
inline constexpr size_t size_of<void> = 4;
cudaError_t take(void** where, size_t bytes, size_t element, const char* name, int line);
cudaError_t give_back(void* where, int line);
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, int line);
cudaError_t set(void* where, int value, size_t bytes, int line);
cudaError_t last_error();
}  // namespace emulate
#define cudaMalloc(where, bytes)                                                                                           \
  emulate::take((void**)(where), bytes, ::emulate::size_of<std::remove_pointer_t<std::remove_pointer_t<decltype(where)>>>, \
                #where, __LINE__)
#define cudaFree(where) emulate::give_back(where, __LINE__)
#define cudaMemcpy(...) emulate::copy(__VA_ARGS__, __LINE__)
#define cudaMemset(...) emulate::set(__VA_ARGS__, __LINE__)
#define cudaGetLastError() emulate::last_error()
#define cudaPeekAtLastError() emulate::last_error()
inline const char* cudaGetErrorString(cudaError_t error) { return error ? "invalid argument" : "no error"; }
#else
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
template <class T>
cudaError_t cudaMalloc(T** where, size_t bytes) {
  *where = static_cast<T*>(std::malloc(bytes));
  return cudaSuccess;
}
inline cudaError_t cudaFree(void* where) { return std::free(where), cudaSuccess; }
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return std::memcpy(to, from, bytes), cudaSuccess;
}
inline cudaError_t cudaMemset(void* where, int value, size_t bytes) { return std::memset(where, value, bytes), cudaSuccess; }
#endif
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaDeviceReset() { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int) { return cudaSuccess; }
inline cudaError_t cudaEventCreate(cudaEvent_t*) { return cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = nullptr) { return cudaSuccess; }
inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) { return *ms = 0, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
