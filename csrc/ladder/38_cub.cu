// Rung 38, cub. Chapter 6: where it leads.
//
// threads   CUB's DeviceReduce: vectors of some elements a thread as tuned for the GPU, warps by shuffles, blocks by shared
//           memory, a second kernel of one block for the blocks' results.
// idea      A library whose policies are tuned for each architecture and type.
// removes   The need to write any of this.
// wrong     The order of additions is not documented, and may change with the GPU and with the release.
// requires  Workspace, whose size it tells.
// source    CUB, of the CUDA toolkit: cub::DeviceReduce::Sum
// faster    no: it works much alike, two launches included.
// command   python -m torch_reduce.ladder run --rungs engine,cub --profile
#include <cub/device/device_reduce.cuh>

#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
cudaError_t sum(const Call& call, void* workspace, size_t& bytes) {
  return cub::DeviceReduce::Sum(workspace, bytes, static_cast<const T*>(call.input), static_cast<T*>(call.output), call.n,
                                stream_of(call));
}

// Differs from the lesson: there is none. The workspace is there before it is timed.

size_t bytes_of_workspace(const Call& call) {
  size_t bytes = 0;
  with_type(call.dtype, [&](auto type) { sum<typename decltype(type)::type>(call, nullptr, bytes); });
  return bytes;
}

int run(const Call& call) {
  size_t bytes = bytes_of_workspace(call);
  return with_type(call.dtype, [&](auto type) { sum<typename decltype(type)::type>(call, call.scratch, bytes); });
}

Rung rung() {
  Rung cub = from_library(run);
  cub.scratch_bytes = bytes_of_workspace;
  return cub;
}

const Register registered("cub", rung());

}  // namespace

}  // namespace gpureduce::ladder
