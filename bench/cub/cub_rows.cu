// CUB's DeviceSegmentedReduce behind a C function: with segments of one fixed size where this CUB has them.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_segmented_reduce.cuh>

#include "cub_sum.cuh"

namespace {

struct Begin {
  int64_t columns;
  __host__ __device__ int64_t operator()(int64_t row) const { return row * columns; }
};

// Whether there are such segments. Six arguments, because seven also match the overload with offsets.
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
  Operator<In, Acc> add;
  if constexpr (kFixedSize) {
    return Reduction::Reduce(w.temp, w.bytes, x, y, count, columns, add, Acc{}, w.stream);
  } else {
    auto begin = thrust::make_transform_iterator(thrust::make_counting_iterator<int64_t>(0), Begin{columns});
    return Reduction::Reduce(w.temp, w.bytes, x, y, count, begin, begin + 1, add, Acc{}, w.stream);
  }
}

}  // namespace

extern "C" {

int bench_cub_fixed_size() { return kFixedSize; }

// Sums the rows of a contiguous (count, columns) matrix; otherwise as bench_cub_full.
int bench_cub_rows(const char* from, const char* to, const void* in, void* out, int64_t count, int64_t columns, void* temp,
                   size_t* temp_bytes, void* stream) {
  Work w{temp, *temp_bytes, static_cast<cudaStream_t>(stream)};
  if (columns >= int64_t{1} << 31) return kTooLarge;
#define BENCH_CUB_TRY(from_name, to_name, In, Acc, Out) \
  if (is(from, from_name) && is(to, to_name)) return rows<In, Acc, Out>(in, out, count, static_cast<int>(columns), w);
  BENCH_CUB_SUMS(BENCH_CUB_TRY)
#undef BENCH_CUB_TRY
  return kUnknownType;
}

}  // extern "C"
