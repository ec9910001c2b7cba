// From a problem and a GPU to a plan.
#pragma once

#include "../api.h"
#include "gpu.h"
#include "plan.h"

namespace gpureduce {

// Settings that tests and measurements force on the planner. Parsed from "key=value,key=value".
struct Tuning {
  int kernel = -1;          // which alternative of Shape
  int candidate = -1;       // which proposed plan, of that kernel if one is named
  int multiprocessors = 0;  // instead of the device's
  int grid = 0;             // most blocks, in kernels whose blocks take tile after tile
  int cluster = 0;          // most blocks of a cluster, even more than can be launched

  bool forces() const { return kernel >= 0 || candidate >= 0 || multiprocessors > 0 || grid > 0 || cluster > 0; }
  GPUREDUCE_API static Tuning parse(const std::string& text);  // throws std::invalid_argument

  Device on(Device device) const {
    if (multiprocessors) device.multiprocessors = multiprocessors;
    return device;
  }
};

// The plan of a reduction. Each thread caches the plans of its last calls.
GPUREDUCE_API Plan make_plan(const Reduction& reduction, const Device& device, const Tuning& tuning = {});

// The number of plans that are proposed for a reduction.
GPUREDUCE_API int count_plans(const Reduction& reduction, const Device& device);

// From now on every thread takes a timed plan for a reduction: the proposed plan with the index `candidate`, or for -1 the
// chosen one again. Throws std::invalid_argument if there is no such plan.
GPUREDUCE_API void remember_plan(const Reduction& reduction, const Device& device, int candidate);

}  // namespace gpureduce
