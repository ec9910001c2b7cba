// Memory for a thread's tasks on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

namespace gpureduce::cpu {

constexpr int64_t kKeptBytes = 1 << 18;  // of scratch memory kept per thread

// Memory for a thread's tasks, aligned to 64 bytes. It is not on the stack, which may be small. A thread keeps it for its next
// call, since the heap would return so large a block to the system each time.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) {
    thread_local std::unique_ptr<char[]> kept;
    std::unique_ptr<char[]>& memory = bytes > kKeptBytes ? own_ : kept;
    if (!memory) memory.reset(new char[std::max(bytes, kKeptBytes) + 64]);
    aligned_ = memory.get() + (64 - reinterpret_cast<uintptr_t>(memory.get()) % 64);
  }
  char* get() const { return aligned_; }

 private:
  std::unique_ptr<char[]> own_;
  char* aligned_;
};

}  // namespace gpureduce::cpu
