#define CCCL_DISABLE_NVTX  // a profiler's ranges would be half of the host's code
#include "index.h"

#include <cub/device/device_radix_sort.cuh>

#undef NDEBUG  // an index is checked in every build
#include <cassert>

#include "../core/plan/index.h"

namespace gpureduce::cuda {

namespace {

constexpr size_t kAligned = 256;  // each array of the workspace

size_t bytes_of_keys(const Index& index) { return (index.count * sizeof(uint32_t) + kAligned - 1) / kAligned * kAligned; }

// An entry's index, which is in range whatever is in memory.
__device__ __forceinline__ int64_t checked(const Index& index, int64_t i) {
  const int64_t output = index.at(i);
  assert(index.has(output) && "index: each must be in [0, size)");
  return min(max(output, int64_t{0}), index.size - 1);
}

// Calls f(k, i) for the thread's entries.
template <class F>
__device__ __forceinline__ void for_each(int64_t count, F f) {
  const int64_t first = int64_t{blockIdx.x} * (kIndexThreads * kIndexAtOnce) + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kIndexAtOnce; ++k) {
    const int64_t i = first + k * kIndexThreads;
    if (i < count) f(k, i);
  }
}

__global__ void prepare(Index index, IndexValues values, uint32_t* keys, uint32_t* payload) {
  uint32_t key[kIndexAtOnce], carried[kIndexAtOnce];
  for_each(index.count, [&](int k, int64_t i) {
    key[k] = static_cast<uint32_t>(checked(index, i));
    carried[k] = values.values.data ? bit_cast<uint32_t>(values.at(i)) : static_cast<uint32_t>(i);
  });
  for_each(index.count, [&](int k, int64_t i) {
    keys[i] = key[k];
    payload[i] = carried[k];
  });
}

// A warp finds the first key that is no less than `output`.
__device__ __forceinline__ uint32_t first_at(const uint32_t* keys, uint32_t count, int64_t output) {
  const uint32_t lane = threadIdx.x % kWarp;
  uint32_t found = 0, high = count;
  while (found < high) {
    const uint32_t step = (high - found + kWarp - 1) / kWarp, probe = found + lane * step + step - 1;
    found += __popc(__ballot_sync(~0u, probe < high && keys[probe] < output)) * step;
    high = min(high, found + step - 1);
  }
  return found;
}

// A block first finds the keys of all its outputs, so that the work is the same for full and for empty outputs.
__global__ void write_offsets(const uint32_t* keys, uint32_t count, int64_t size, int32_t* offsets) {
  __shared__ uint32_t ends[2];
  const int64_t first = blockIdx.x * kIndexOutputs;
  if (const unsigned warp = threadIdx.x / kWarp; warp < 2) {
    const uint32_t found = first_at(keys, count, first + warp * kIndexOutputs);
    if (threadIdx.x % kWarp == 0) ends[warp] = found;
  }
  __syncthreads();
  for (int64_t k = first + threadIdx.x; k < min(first + kIndexOutputs, size + 1); k += kIndexThreads) {
    uint32_t low = ends[0], high = ends[1];
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (keys[middle] < k) low = middle + 1;
      else high = middle;
    }
    offsets[k] = static_cast<int32_t>(low);
  }
}

__global__ void gather_values(Index order, IndexValues values, float* out) {
  int64_t at[kIndexAtOnce];
  float value[kIndexAtOnce];
  for_each(order.count, [&](int k, int64_t i) { at[k] = checked(order, i); });
  for_each(order.count, [&](int k, int64_t) { value[k] = values.at(at[k]); });
  for_each(order.count, [&](int k, int64_t i) { out[i] = value[k]; });
}

using Buffers = cub::DoubleBuffer<uint32_t>;

// `workspace` is null: only writes the bytes that it needs.
cudaError_t sort_pairs(void* workspace, size_t& bytes, Buffers& keys, Buffers& payload, const Index& index,
                       cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(workspace, bytes, keys, payload, static_cast<int>(index.count), 0,
                                         plan_index(index).bits, stream);
}

}  // namespace

cudaError_t workspace_of(const Index& index, size_t& bytes) {
  Buffers keys, payload;
  const cudaError_t error = sort_pairs(nullptr, bytes, keys, payload, index, nullptr);
  bytes += 2 * bytes_of_keys(index);
  return error;
}

cudaError_t sort_by_index(const IndexSort& sort, void* spare, void* workspace, size_t bytes, bool& in_spare,
                          cudaStream_t stream) {
  const Index& index = sort.index;
  const IndexPlan plan = plan_index(index);
  const auto array = [&](int i) { return static_cast<char*>(workspace) + i * bytes_of_keys(index); };
  Buffers keys(reinterpret_cast<uint32_t*>(array(0)), reinterpret_cast<uint32_t*>(array(1)));
  Buffers payload(static_cast<uint32_t*>(sort.sorted), static_cast<uint32_t*>(spare));
  prepare<<<plan.entries.x, kIndexThreads, 0, stream>>>(index, sort.values, keys.Current(), payload.Current());
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  size_t rest = bytes - 2 * bytes_of_keys(index);
  if (const cudaError_t error = sort_pairs(array(2), rest, keys, payload, index, stream); error != cudaSuccess) return error;
  in_spare = payload.Current() == spare;
  write_offsets<<<plan.offsets.x, kIndexThreads, 0, stream>>>(keys.Current(), static_cast<uint32_t>(index.count), index.size,
                                                              static_cast<int32_t*>(sort.offsets));
  return cudaGetLastError();
}

cudaError_t gather_by_order(const Index& order, const IndexValues& values, float* out, cudaStream_t stream) {
  if (order.count > 0) gather_values<<<plan_index(order).entries.x, kIndexThreads, 0, stream>>>(order, values, out);
  return cudaGetLastError();
}

}  // namespace gpureduce::cuda
