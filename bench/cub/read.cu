// Kernels that only read: the ceiling for everything that must see each byte once. Where a sum may start while the kernel
// before it drains (compute capability 9.0), so may they.
#include <cstdint>

#include <cuda_runtime.h>
#include <cuda/ptx>

namespace {

constexpr int kThreads = 256;
constexpr int kPiece = 8192;  // bytes of one bulk copy
constexpr int kMaxStages = 16;

// Before the first load: the kernel before is done, and the next one of the stream may start while this one runs.
__device__ __forceinline__ void begin() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Grid-stride loop over tiles; kLoads loads of 16 bytes a thread in flight. The sink is written only when an improbable value
// comes out, which the compiler cannot know.
template <int kLoads>
__global__ void __launch_bounds__(kThreads) read_loads(const uint4* __restrict__ in, int64_t n, uint32_t* sink) {
  constexpr int kTile = kThreads * kLoads;
  uint32_t seen = 0;
  begin();
  for (int64_t tile = blockIdx.x * int64_t{kTile}; tile < n; tile += gridDim.x * int64_t{kTile}) {
    const uint4* p = in + tile + threadIdx.x;
    uint4 v[kLoads];
    if (tile + kTile <= n) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) v[i] = __ldcs(p + i * kThreads);
    } else {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        v[i] = tile + threadIdx.x + i * kThreads < n ? __ldcs(p + i * kThreads) : uint4{};
      }
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) seen ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
  }
  if (seen == 0x9e3779b9u) atomicXor(sink, seen);
}

// One thread a block keeps a ring of bulk copies into shared memory in flight; nobody looks at what arrives. `bytes` is a
// multiple of 16, and so is `in`.
__global__ void __launch_bounds__(32) read_bulk(const char* __restrict__ in, int64_t bytes, int stages) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char ring[];
  __shared__ uint64_t full[kMaxStages];
  namespace ptx = cuda::ptx;
  if (threadIdx.x != 0) return;
  for (int s = 0; s < stages; ++s) ptx::mbarrier_init(&full[s], 1);
  ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
  ptx::fence_proxy_async();
  begin();

  int64_t pieces = (bytes + kPiece - 1) / kPiece;
  auto issue = [&](int64_t piece, int stage) {
    int64_t left = bytes - piece * kPiece;
    uint32_t size = left < kPiece ? static_cast<uint32_t>(left) : kPiece;
    ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &full[stage], size);
    ptx::cp_async_bulk(ptx::space_cluster, ptx::space_global, ring + stage * kPiece, in + piece * kPiece, size, &full[stage]);
  };
  int64_t next = blockIdx.x;
  for (int s = 0; s < stages && next < pieces; ++s, next += gridDim.x) issue(next, s);
  int stage = 0;
  uint32_t parity = 0;
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    while (!ptx::mbarrier_try_wait_parity(&full[stage], parity)) {
    }
    if (next < pieces) {
      issue(next, stage);
      next += gridDim.x;
    }
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
#endif
}

int grid(int64_t tiles, int most) { return static_cast<int>(tiles < most ? (tiles > 0 ? tiles : 1) : most); }

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), int blocks, int threads, int shared_bytes, int early, void* stream,
           Arguments... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace

extern "C" {

// loads: 2 or 8 a thread in flight; blocks: the most that run at a time; early: it may start while the kernel before drains.
// The last bytes % 16 are left out.
int bench_read_loads(const void* in, int64_t bytes, int loads, int blocks, int early, void* sink, void* stream) {
  const auto p = static_cast<const uint4*>(in);
  const auto to = static_cast<uint32_t*>(sink);
  int64_t n = bytes / 16, tile = int64_t{kThreads} * loads;
  const int used = grid((n + tile - 1) / tile, blocks);
  if (loads == 2) return launch(read_loads<2>, used, kThreads, 0, early, stream, p, n, to);
  if (loads == 8) return launch(read_loads<8>, used, kThreads, 0, early, stream, p, n, to);
  return cudaErrorInvalidValue;
}

// Needs compute capability 9.0. stages: pieces of 8 KiB in flight a block.
int bench_read_bulk(const void* in, int64_t bytes, int stages, int blocks, int early, void* stream) {
  if (stages < 1 || stages > kMaxStages) return cudaErrorInvalidValue;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(read_bulk, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxStages * kPiece);
  if (allowed != cudaSuccess) return allowed;
  bytes = bytes / 16 * 16;
  const int used = grid((bytes + kPiece - 1) / kPiece, blocks);
  return launch(read_bulk, used, 32, stages * kPiece, early, stream, static_cast<const char*>(in), bytes, stages);
}

}  // extern "C"
