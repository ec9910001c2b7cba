// What a plan depends on besides the problem: the GPU. Pure C++.
#pragma once

#include <cstdint>
#include <string>

namespace gpureduce {

class Choice;

// What the driver says of a GPU. By default an H200's.
struct Device {
  int multiprocessors = 132;
  int64_t l2_bytes = 60 << 20;
  int64_t bandwidth = 4'900'000'000'000;   // of the memory, in bytes a second
  int shared_bytes = 227 << 10;            // of shared memory, that a block may have
  int processor_shared_bytes = 228 << 10;  // and the blocks of a multiprocessor together,
  int reserved_shared_bytes = 1 << 10;     // with these of each block, which are the driver's
  bool early = true;                       // the code that runs is for 9.0 or later: kernels that start early, bulk copies
  bool clusters = true;                    // and kMaxCluster blocks of any kernel have room to run as a cluster
  bool native = true;              // it runs the library's machine code, so kernels without PTX too (cuda/compiled/native)
  const Choice* choice = nullptr;  // what plans are chosen by; null: what is known of the most similar GPU

  bool operator==(const Device& d) const {
    return multiprocessors == d.multiprocessors && l2_bytes == d.l2_bytes && bandwidth == d.bandwidth &&
           shared_bytes == d.shared_bytes && processor_shared_bytes == d.processor_shared_bytes &&
           reserved_shared_bytes == d.reserved_shared_bytes && early == d.early && clusters == d.clusters &&
           native == d.native && choice == d.choice;
  }

  // From "key=value,key=value", for tests; a flag is 0 or 1, and "choice" a file. Throws std::invalid_argument.
  static Device parse(const std::string& text);
  std::string json() const;  // for tests
};

}  // namespace gpureduce
