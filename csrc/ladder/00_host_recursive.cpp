// Rung 0, host_recursive. Chapter 1: in place, in global memory.
//
// threads   One thread of the CPU.
// idea      Add the second half of the array to the first, and do the same with that half, until one element is left: the tree
//           that the GPU's kernels walk in parallel.
// removes   Nothing: it is where the lesson begins, and what its results are checked against.
// wrong     One thread; the array is read and written again for each level, 2 n elements in all.
// requires  A copy of the input, which it destroys. A tensor on the CPU.
// source    Professional CUDA C Programming (Cheng, Grossman, McKercher; 2014), chapter 3, recursiveReduce
// command   python -m torch_reduce.ladder run --rungs host_recursive
#include "rung.h"

namespace gpureduce::ladder {

namespace {

template <class T>
T host_recursive(T* data, int64_t size) {
  if (size == 1) return data[0];
  const int64_t stride = size / 2, kept = size - stride;
  for (int64_t i = 0; i < stride; ++i) data[i] += data[kept + i];
  return host_recursive(data, kept);
}

// Differs from the lesson: `return recursiveReduce(data, size / 2)` loses the last element of an odd size; here the middle one
// stays for the next level. 64-bit sizes.

template <class T>
int run_typed(const Call& call) {
  *static_cast<T*>(call.output) = host_recursive(static_cast<T*>(call.input), call.n);
  return 0;
}

int run(const Call& call) {
  switch (call.dtype) {
    case DType::f32: return run_typed<float>(call);
    case DType::f64: return run_typed<double>(call);
    case DType::i32: return run_typed<uint32_t>(call);  // unsigned, which wraps as torch's integers do
    case DType::i64: return run_typed<uint64_t>(call);
  }
  return 1;
}

const Register rung("host_recursive", on_cpu(run));

}  // namespace

}  // namespace gpureduce::ladder
