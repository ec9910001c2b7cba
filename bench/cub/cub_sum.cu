// CUB's sums behind C functions: what the benchmark compares against. As a user of CUB would write them: the workspace is the
// caller's, allocated once and never inside a timed region; 32-bit counts; a pointer as input wherever CUB can then load
// vectors (so conversions stand in the operator, or in TransformReduce, not in an iterator).
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_segmented_reduce.cuh>

namespace {

constexpr int kUnknownType = -1, kTooLarge = -2;

// Both arguments convert to the accumulator first: bf16 and f16 are added in float, int8 and int32 in int64.
template <class Acc>
struct Add {
  __host__ __device__ Acc operator()(Acc a, Acc b) const { return a + b; }
};

struct alignas(8) Complex { float re, im; };
template <>
struct Add<Complex> {
  __host__ __device__ Complex operator()(Complex a, Complex b) const { return {a.re + b.re, a.im + b.im}; }
};

struct FromFloat8 {
  __device__ float operator()(uint8_t x) const { return __half2float(__half(__nv_cvt_fp8_to_halfraw(x, __NV_E4M3))); }
};

struct Work {
  void* temp;
  size_t& bytes;
  cudaStream_t stream;
};

template <class In, class Acc, class Out>
int full(const void* in, void* out, uint32_t n, Work w) {
  return cub::DeviceReduce::Reduce(w.temp, w.bytes, static_cast<const In*>(in), static_cast<Out*>(out), n, Add<Acc>{}, Acc{},
                                   w.stream);
}

template <class T>
int full_sum(const void* in, void* out, uint32_t n, Work w) {
  return cub::DeviceReduce::Sum(w.temp, w.bytes, static_cast<const T*>(in), static_cast<T*>(out), n, w.stream);
}

struct Begin {
  int64_t columns;
  __host__ __device__ int64_t operator()(int64_t row) const { return row * columns; }
};

// Whether this CUB has segments of one fixed size. Six arguments, because seven also match the overload with offsets.
template <class In, class Out, class = void>
struct FixedSize : std::false_type {};
template <class In, class Out>
struct FixedSize<
    In, Out,
    std::void_t<decltype(cub::DeviceSegmentedReduce::Sum(static_cast<void*>(nullptr), std::declval<size_t&>(),
                                                         std::declval<In>(), std::declval<Out>(), int64_t{}, int{}))>>
    : std::true_type {};
constexpr bool kFixedSize = FixedSize<const float*, float*>::value;

template <class In, class Acc, class Out, class Reduction = cub::DeviceSegmentedReduce>
int rows(const void* in, void* out, int64_t count, int columns, Work w) {
  auto x = static_cast<const In*>(in);
  auto y = static_cast<Out*>(out);
  if constexpr (kFixedSize) {
    return Reduction::Reduce(w.temp, w.bytes, x, y, count, columns, Add<Acc>{}, Acc{}, w.stream);
  } else {
    auto begin = thrust::make_transform_iterator(thrust::make_counting_iterator<int64_t>(0), Begin{columns});
    return Reduction::Reduce(w.temp, w.bytes, x, y, count, begin, begin + 1, Add<Acc>{}, Acc{}, w.stream);
  }
}

bool is(const char* a, const char* b) { return std::strcmp(a, b) == 0; }

}  // namespace

extern "C" {

int bench_cub_version() { return CUB_VERSION; }
int bench_cub_fixed_size() { return kFixedSize; }

// dtype is torch's name of the input's; the output has the dtype that torch.sum gives (float32 for float8). With temp ==
// nullptr only *temp_bytes is set. Returns a cudaError_t, or -1 for a dtype that is not there, -2 for 2^32 elements and more.
int bench_cub_full(const char* dtype, const void* in, void* out, int64_t n, void* temp, size_t* temp_bytes, void* stream) {
  Work w{temp, *temp_bytes, static_cast<cudaStream_t>(stream)};
  if (n >= int64_t{1} << 32) return kTooLarge;
  uint32_t count = static_cast<uint32_t>(n);
  if (is(dtype, "float32")) return full_sum<float>(in, out, count, w);
  if (is(dtype, "float64")) return full_sum<double>(in, out, count, w);
  if (is(dtype, "bfloat16")) return full<__nv_bfloat16, float, __nv_bfloat16>(in, out, count, w);
  if (is(dtype, "float16")) return full<__half, float, __half>(in, out, count, w);
  if (is(dtype, "int8")) return full<int8_t, int64_t, int64_t>(in, out, count, w);
  if (is(dtype, "bool") || is(dtype, "uint8")) return full<uint8_t, int64_t, int64_t>(in, out, count, w);
  if (is(dtype, "int32")) return full<int32_t, int64_t, int64_t>(in, out, count, w);
  if (is(dtype, "complex64")) return full<Complex, Complex, Complex>(in, out, count, w);
  if (is(dtype, "float8_e4m3fn")) {
    return cub::DeviceReduce::TransformReduce(w.temp, w.bytes, static_cast<const uint8_t*>(in), static_cast<float*>(out), count,
                                              Add<float>{}, FromFloat8{}, 0.0f, w.stream);
  }
  return kUnknownType;
}

// The same for the rows of a contiguous (count, columns) matrix.
int bench_cub_rows(const char* dtype, const void* in, void* out, int64_t count, int64_t columns, void* temp, size_t* temp_bytes,
                   void* stream) {
  Work w{temp, *temp_bytes, static_cast<cudaStream_t>(stream)};
  if (columns >= int64_t{1} << 31) return kTooLarge;
  if (is(dtype, "float32")) return rows<float, float, float>(in, out, count, static_cast<int>(columns), w);
  if (is(dtype, "bfloat16")) return rows<__nv_bfloat16, float, __nv_bfloat16>(in, out, count, static_cast<int>(columns), w);
  return kUnknownType;
}

}  // extern "C"
