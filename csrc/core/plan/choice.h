// Measured data of a GPU: decision trees that guess which of a problem's plans is the fastest. Pure C++.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../api.h"

namespace gpureduce {

struct Device;

// All trees' nodes stand in one list. A node stands before its left branch; its right branch begins `right` nodes after it. A
// plan goes left if its feature is not above the node's value. A leaf's value is added to the guess, which is the logarithm of
// the plan's time over the best plan's time. A choice may be based on a known one: then its trees correct the known choice's
// guess.
class Choice {
 public:
  // Parses text that torch_reduce/tuning/fit.py has written. Throws std::invalid_argument if it is no choice, or another
  // version's.
  GPUREDUCE_API explicit Choice(const std::string& text);

  GPUREDUCE_API float guess(const float* known) const;
  const std::string& gpu() const { return gpu_; }
  GPUREDUCE_API double distance(const Device& device) const;  // between the GPUs: 0 if they are alike

 private:
  struct Node {
    float value;
    uint16_t feature, right;
  };

  std::string gpu_;
  int64_t multiprocessors_ = 1, l2_bytes_ = 1, bandwidth_ = 1;
  const Choice* base_ = nullptr;
  std::vector<Node> nodes_;
  std::vector<int> ends_;  // the end of each tree

  void read_nodes(const std::string& line);
  void check() const;
};

// The library's own choice for a GPU of this name, or for the most similar GPU.
GPUREDUCE_API const Choice& known_choice(std::string_view gpu, const Device& device);

// The path of the user's own choice for a GPU of this name: in the folder that the environment variable TORCH_REDUCE_CACHE
// names, or in the user's cache folder.
GPUREDUCE_API std::string choice_path(const std::string& gpu);

// Reads a choice, which lives as long as the process. Null if there is no such file. Throws as the constructor does.
GPUREDUCE_API const Choice* read_choice(const std::string& path);

}  // namespace gpureduce
