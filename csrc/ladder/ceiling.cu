// Not rungs: kernels that read everything and compute next to nothing, timed as a rung is. The fastest is the ceiling that the
// rungs' rates are held against. `elements` is how many 16-byte loads a thread has in flight.
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <int kLoads>
__global__ void ceiling(const uint4* in, int64_t n, unsigned* sink) {
  unsigned seen = 0;
  const int64_t tile = int64_t{blockDim.x} * kLoads;
  for (int64_t begin = blockIdx.x * tile; begin < n; begin += gridDim.x * tile) {
    uint4 v[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t i = begin + k * blockDim.x + threadIdx.x;
      v[k] = i < n ? __ldcs(in + i) : uint4{};
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) seen ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (seen == 0x9e3779b9u) *sink = seen;  // improbable, which the compiler cannot know
}

// Reads whole 16 bytes; the last bytes, and those before the first aligned address, are left out. Either as many blocks as can
// run at a time, or one for each tile.
template <bool kResident>
int run(const Call& call) {
  const int64_t size = call.dtype == DType::f32 || call.dtype == DType::i32 ? 4 : 8;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(call.input) + 15) / 16 * 16;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(call.input) + call.n * size) / 16 * 16;
  const int64_t n = end > begin ? (end - begin) / 16 : 0;
  int device = 0, processors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  with_constant<1, 2, 4, 8>(call.elements, [&](auto loads) {
    const int64_t resident = int64_t{processors} * (loads.value >= 8 ? 1024 : 2048) / call.block;
    const int64_t tiles = std::max<int64_t>(1, ceil_div(n, call.block * loads.value));
    ceiling<loads.value>
        <<<static_cast<unsigned>(kResident ? std::min(tiles, resident) : tiles), call.block, 0, stream_of(call)>>>(
            reinterpret_cast<const uint4*>(begin), n, static_cast<unsigned*>(call.output));
  });
  return cudaGetLastError();
}

const Register resident("ceiling_resident", Rung{run<true>, {256, 512}, {4, 1, 2, 8}, {Op::sum}, Finish::library});
const Register tiles("ceiling_tiles", Rung{run<false>, {256, 512}, {4, 1, 2, 8}, {Op::sum}, Finish::library});

}  // namespace

}  // namespace gpureduce::ladder
