// A learner's kernel: how to launch it, once it is compiled.
#pragma once

#include <cstdint>
#include <functional>

namespace emulate {

struct Learner { std::function<void(unsigned blocks, unsigned threads, void* in, void* out, int64_t n)> launch; };
Learner& learner();

}  // namespace emulate
