#include "launch.h"

#include <cuda/annotated_ptr>

#include <algorithm>
#include <utility>

#include "../plan/gpu.h"

namespace gpureduce::cuda {

namespace {

// True if a cluster of kMaxCluster blocks can be resident, even if each block takes a whole multiprocessor. False on small MIG
// slices.
bool clusters_fit(const Device& device, const cudaFuncAttributes& code) {
  const int bytes = device.shared_bytes - static_cast<int>(code.sharedSizeBytes);
  if (cudaFuncSetAttribute(any_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) return false;
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kMaxCluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kMaxCluster);
  config.blockDim = dim3(1024);
  config.dynamicSmemBytes = bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  return cudaOccupancyMaxActiveClusters(&clusters, any_kernel(), &config) == cudaSuccess && clusters > 0;
}

}  // namespace

cudaError_t ask(Device& device) {
  int index = 0;
  if (cudaError_t error = cudaGetDevice(&index)) return error;
  int l2_bytes = 0, memory_khz = 0, memory_bits = 0;
  for (auto [fact, attribute] : {std::pair{&device.multiprocessors, cudaDevAttrMultiProcessorCount},
                                 {&l2_bytes, cudaDevAttrL2CacheSize},
                                 {&memory_khz, cudaDevAttrMemoryClockRate},
                                 {&memory_bits, cudaDevAttrGlobalMemoryBusWidth},
                                 {&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin},
                                 {&device.processor_shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor},
                                 {&device.reserved_shared_bytes, cudaDevAttrReservedSharedMemoryPerBlock}})
    if (cudaError_t error = cudaDeviceGetAttribute(fact, attribute, index)) return error;
  device.l2_bytes = l2_bytes;
  device.bandwidth = std::max<int64_t>(1, int64_t{1000} * memory_khz * 2 * memory_bits / 8);  // double data rate
  // On any GPU, the code that the driver has loaded may come from older PTX than the newest that was compiled.
  cudaFuncAttributes code;
  if (cudaError_t error = cudaFuncGetAttributes(&code, any_kernel())) return error;
  device.early = code.ptxVersion >= 90 && code.binaryVersion >= 90;
  device.clusters = device.early && clusters_fit(device, code);
  device.native = cudaFuncGetAttributes(&code, native_kernel()) == cudaSuccess;
  (void)cudaGetLastError();  // clears the errors of these queries
  return cudaSuccess;
}

namespace {

// True if a kernel should start while the previous one drains. A previous kernel of the same call lets it. Kernels of others do
// not: then an early launch still saves time in a stream, but in a graph the kernel starts later.
bool starts_early(Queue queue) {
  if (!queue.early || queue.follows) return queue.early;
  cudaStreamCaptureStatus status;
  if (cudaStreamIsCapturing(queue.stream, &status) == cudaSuccess) return status == cudaStreamCaptureStatusNone;
  cudaGetLastError();  // the launch will report the error
  return true;
}

}  // namespace

cudaLaunchConfig_t configure(Queue queue, const Grid& grid, dim3 threads, int shared_bytes, LaunchAttributes& attributes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.x, grid.y, grid.z);
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.stream;
  config.attrs = attributes;
  const auto add = [&](cudaLaunchAttributeID id) -> cudaLaunchAttributeValue& {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute = {};
    attribute.id = id;
    return attribute.val;
  };
  if (starts_early(queue)) add(cudaLaunchAttributeProgrammaticStreamSerialization).programmaticStreamSerializationAllowed = 1;
  if (grid.cluster > 1) {
    auto& cluster = add(cudaLaunchAttributeClusterDimension).clusterDim;
    cluster.x = grid.cluster;
    cluster.y = cluster.z = 1;
    // Otherwise a few multiprocessors get all clusters.
    add(cudaLaunchAttributeClusterSchedulingPolicyPreference).clusterSchedulingPolicyPreference =
        cudaClusterSchedulingPolicyLoadBalancing;
  }
  return config;
}

uint64_t l2_policy(bool streams) {
  using ::cuda::access_property;
  return static_cast<uint64_t>(streams ? access_property(access_property::streaming{}) : access_property());
}

namespace {

cudaError_t reduce(const Launch& launch) {
  const Reduction& r = launch.reduction;
  if (r.addends == Addends::products) return launch_products(launch);
  if (r.addends == Addends::deviations) return launch_deviations(launch);
  if (r.addends == Addends::exponents) return launch_exponents(launch);
  if (r.addends == Addends::indices) return launch_indices(launch);
  if (r.engine == Engine::converted)
    return is_convertible(r.map, r.accumulator, info(r.in)) ? launch_converted(launch) : kNoKernel;
  switch (unit_of(kernel_map(r), r.accumulator, r.in)) {
#define GPUREDUCE_UNIT(name) \
  case Unit::name: return launch_unit<Unit::name>(launch);
    GPUREDUCE_UNITS(GPUREDUCE_UNIT)
#undef GPUREDUCE_UNIT
    case Unit::none: break;
  }
  return kNoKernel;
}

}  // namespace

cudaError_t run(const Launch& launch) {
  if (cudaError_t error = reduce(launch)) return error;
  return join(launch);
}

}  // namespace gpureduce::cuda
