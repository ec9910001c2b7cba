// A learner's kernel: how to launch it, once it is compiled, and what it calls its arrays.
#pragma once

#include <cstdint>
#include <functional>

#include "cuda_runtime.h"

namespace emulate {

struct Learner {
  std::function<void(unsigned blocks, dim3 threads, void* in, void* out, int64_t n)> launch;
  const char *in = "in", *out = "out";
};
Learner& learner();

}  // namespace emulate
