// Rung 21, atomic. Chapter 4: the modern steps.
//
// threads   One element a thread.
// idea      Let the hardware do it: every thread adds its element to the result, atomically.
// removes   Trees, barriers, shared memory and the second launch.
// wrong     All threads queue at one address; a float's sum depends on who comes when, and so its bits differ from
//           run to run.
// requires  An output that holds zero.
// source    CUDA C++ Programming Guide, atomic functions; the usual first attempt of tutorials
// command   python -m torch_reduce.ladder run --rungs atomic --profile
#include "rung.cuh"

namespace gpureduce::ladder {

namespace {

template <class T>
__global__ void atomic(const T* x, T* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(out, x[i]);
}

// Differs from the lesson: indices have 64 bits; int64 is added as `unsigned long long`, which is what atomicAdd knows, and
// which wraps alike.

int run(const Call& call) {
  return with_type(call.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    atomic<<<blocks_of(call), call.block, 0, stream_of(call)>>>(static_cast<const T*>(call.input), static_cast<T*>(call.output),
                                                                call.n);
  });
}

const Register rung("atomic", Rung{run, kBlocks, {1}, {Op::sum}, Finish::all_atomic});

}  // namespace

}  // namespace gpureduce::ladder
