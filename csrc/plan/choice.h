// What was measured on a GPU: decision trees that guess which of a problem's plans is the fastest. Pure C++.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpureduce {

struct Device;

// Trees stand one after the other. A node stands before its left branch, and that before the right one, `right` nodes on. A
// plan goes left where the feature is not above the value. A leaf's value is what it adds to the guess: the logarithm of the
// plan's time over that of the best plan. A choice may stand on a known one: then its trees say what they add to that one's.
class Choice {
 public:
  // From text, as torch_reduce/_fit.py writes it. Throws std::invalid_argument where it is none, or another version's.
  explicit Choice(const std::string& text);

  float guess(const float* known) const;
  const std::string& gpu() const { return gpu_; }
  double distance(const Device& device) const;  // how little alike the GPUs are: 0 if they are the same

 private:
  struct Node {
    float value;
    uint16_t feature, right;
  };

  std::string gpu_;
  int64_t multiprocessors_ = 1, l2_bytes_ = 1, bandwidth_ = 1;
  const Choice* base_ = nullptr;
  std::vector<Node> nodes_;
  std::vector<int> ends_;  // of the trees

  void read_nodes(const std::string& line);
  void check() const;
};

// The choice that comes with the library for a GPU of this name, or else for the most similar one.
const Choice& known_choice(const std::string& gpu, const Device& device);

// The file of the user's own choice for a GPU of this name, in the folder that the environment variable TORCH_REDUCE_CACHE
// names, or else in the user's cache folder.
std::string choice_path(const std::string& gpu);

// The choice in a file, which lives as long as the process; or null if there is no such file. Throws as the constructor does.
const Choice* read_choice(const std::string& path);

}  // namespace gpureduce
