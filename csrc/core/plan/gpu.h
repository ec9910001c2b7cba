// The GPU, on which a plan depends besides the problem. Pure C++.
#pragma once

#include <cstdint>
#include <string>

#include "../api.h"

namespace gpureduce {

class Choice;

// The driver's data about a GPU. The defaults are an H200's.
struct Device {
  int multiprocessors = 132;
  int64_t l2_bytes = 60 << 20;
  int64_t bandwidth = 4'900'000'000'000;   // of the memory, in bytes per second
  int shared_bytes = 227 << 10;            // the most shared memory of a block
  int processor_shared_bytes = 228 << 10;  // the shared memory of all blocks on a multiprocessor,
  int reserved_shared_bytes = 1 << 10;     // including these bytes per block, which the driver uses
  bool early = true;                       // the loaded code is for 9.0 or later: kernels that start early, bulk copies
  bool clusters = true;                    // kMaxCluster blocks of any kernel can be resident as a cluster
  bool native = true;              // it runs the library's machine code, so kernels without PTX too (cuda/compiled/native)
  const Choice* choice = nullptr;  // data that plans are chosen by; null: the most similar GPU's

  bool operator==(const Device& d) const {
    return multiprocessors == d.multiprocessors && l2_bytes == d.l2_bytes && bandwidth == d.bandwidth &&
           shared_bytes == d.shared_bytes && processor_shared_bytes == d.processor_shared_bytes &&
           reserved_shared_bytes == d.reserved_shared_bytes && early == d.early && clusters == d.clusters &&
           native == d.native && choice == d.choice;
  }

  // From "key=value,key=value", for tests; a flag is 0 or 1, and "choice" a file. Throws std::invalid_argument.
  GPUREDUCE_API static Device parse(const std::string& text);
  GPUREDUCE_API std::string json() const;  // for tests
};

}  // namespace gpureduce
