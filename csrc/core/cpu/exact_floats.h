// IEEE arithmetic on the CPU, whatever floating-point mode a thread has.
#pragma once

#include <cstdint>

namespace gpureduce::cpu {

// While it lives, this thread keeps subnormals and rounds to nearest.
class ExactFloats {
 public:
#if defined(__x86_64__)
  ExactFloats() : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(saved_ & ~(1u << 15 | 3u << 13 | 1u << 6)); }
  ~ExactFloats() { __builtin_ia32_ldmxcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  ExactFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ & ~(uint64_t{1} << 24 | uint64_t{3} << 22 | uint64_t{1} << 19)) : "memory");
  }
  ~ExactFloats() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }

 private:
  uint64_t saved_;
#else
  ExactFloats() = default;
#endif
  ExactFloats(const ExactFloats&) = delete;
};

}  // namespace gpureduce::cpu
