// From a problem and a GPU to a plan.
#pragma once

#include "gpu.h"
#include "plan.h"

namespace gpureduce {

// What is forced on the planner, for tests and measurements. Parsed from "key=value,key=value".
struct Tuning {
  int kernel = -1;          // which alternative of Shape
  int candidate = -1;       // which of the plans that are proposed, of that kernel if one is named
  int multiprocessors = 0;  // instead of the device's
  int grid = 0;             // at most so many blocks, of kernels whose blocks take tile after tile
  int cluster = 0;          // clusters of up to so many blocks, even more than can be launched

  bool forces() const { return kernel >= 0 || candidate >= 0 || multiprocessors > 0 || grid > 0 || cluster > 0; }
  static Tuning parse(const std::string& text);  // throws std::invalid_argument

  Device on(Device device) const {
    if (multiprocessors) device.multiprocessors = multiprocessors;
    return device;
  }
};

// The plan of a reduction. Each thread remembers those of its last calls.
Plan make_plan(const Reduction& reduction, const Device& device, const Tuning& tuning = {});

// How many plans are proposed for a reduction.
int count_plans(const Reduction& reduction, const Device& device);

// From now on a plan that was timed is taken for a reduction, by every thread: the one of this index among those that are
// proposed, or for -1 whichever is chosen. Throws std::invalid_argument where there is no such plan.
void remember_plan(const Reduction& reduction, const Device& device, int candidate);

}  // namespace gpureduce
