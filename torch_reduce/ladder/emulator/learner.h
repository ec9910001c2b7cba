// A learner's kernel: how to launch it, once it is compiled, and what it calls its arrays.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cuda_runtime.h"

namespace emulate {

struct Learner {
  std::function<void(unsigned blocks, dim3 threads, void* in, void* out, int64_t n)> launch;
  const char *in = "in", *out = "out";
  // Set by history.cpp: what makes numbers that know their history of the input, and what tells the history of the result.
  std::function<void(void* in, int64_t n, bool wide)> begin;
  std::function<std::string(const void* out, int64_t blocks, int64_t n, double* result)> end;
};
Learner& learner();

}  // namespace emulate
