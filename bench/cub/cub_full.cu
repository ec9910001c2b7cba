// CUB's DeviceReduce behind a C function.
#include <cub/device/device_reduce.cuh>

#include "cub_sum.cuh"

namespace {

struct FromBits {
  __device__ float operator()(uint8_t bits) const { return Float8{bits}; }
};

template <class In, class Acc, class Out>
int full(const void* in, void* out, uint32_t n, Work w) {
  auto y = static_cast<Out*>(out);
  if constexpr (std::is_same_v<In, Float8>) {  // bytes are what CUB loads as vectors
    return cub::DeviceReduce::TransformReduce(w.temp, w.bytes, static_cast<const uint8_t*>(in), y, n, Add<Acc>{},
                                              FromBits{}, Acc{}, w.stream);
  } else {
    return cub::DeviceReduce::Reduce(w.temp, w.bytes, static_cast<const In*>(in), y, n, Operator<In, Acc>{}, Acc{}, w.stream);
  }
}

}  // namespace

extern "C" {

int bench_cub_version() { return CUB_VERSION; }

// Sums n elements of dtype `from` to one of `to`. With temp == nullptr only *temp_bytes is set. Returns a cudaError_t, or -1 for
// dtypes that are not there, -2 for 2^32 elements and more.
int bench_cub_full(const char* from, const char* to, const void* in, void* out, int64_t n, void* temp, size_t* temp_bytes,
                   void* stream) {
  Work w{temp, *temp_bytes, static_cast<cudaStream_t>(stream)};
  if (n >= int64_t{1} << 32) return kTooLarge;
#define BENCH_CUB_TRY(from_name, to_name, In, Acc, Out) \
  if (is(from, from_name) && is(to, to_name)) return full<In, Acc, Out>(in, out, static_cast<uint32_t>(n), w);
  BENCH_CUB_SUMS(BENCH_CUB_TRY)
#undef BENCH_CUB_TRY
  return kUnknownType;
}

}  // extern "C"
