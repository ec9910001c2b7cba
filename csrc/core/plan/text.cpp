// Plans, devices and tunings as text, for people and for tests.
#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "choice.h"
#include "planner.h"

namespace gpureduce {

namespace {

template <class... Kernels>
constexpr std::array<const char*, sizeof...(Kernels)> names_of(const std::variant<Kernels...>*) {
  return {Kernels::kName...};
}
constexpr auto kKernelNames = names_of(static_cast<const Shape*>(nullptr));
constexpr const char* kWalkNames[] = {"dense", "linear", "nested", "shifted", "spread", "deep"};

// Calls take(key, value) for each item of "key=value,key=value".
template <class Take>
void for_each_setting(const std::string& text, const Take& take) {
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const size_t equals = item.find('=');
    take(item.substr(0, equals), equals == std::string::npos ? "" : item.substr(equals + 1));
  }
}

int64_t number_of(const char* what, const std::string& key, const std::string& value) {
  if (value.empty() || value.size() > 18 || value.find_first_not_of("0123456789") != std::string::npos)
    throw std::invalid_argument(std::string(what) + ": '" + key + "' needs a number, not '" + value + "'");
  return std::stoll(value);
}

int int_of(const char* what, const std::string& key, const std::string& value) {
  const int64_t number = number_of(what, key, value);
  if (number > std::numeric_limits<int>::max())
    throw std::invalid_argument(std::string(what) + ": '" + key + "' needs a number of 31 bits, not " + value);
  return static_cast<int>(number);
}

const char* text_of(bool b) { return b ? "true" : "false"; }

// The part of a plan that belongs to its kernel, as members of a JSON object.
struct Members {
  std::ostringstream& s;
  int warps;

  void operator()(const DensePlan& p) { s << ", \"thread_elements\": " << p.elements; }
  void operator()(const FlatPlan& p) { s << ", \"row_width\": " << p.width << ", \"row_groups\": " << p.groups; }
  void operator()(const RingPlan& p) {
    s << ", \"stages\": " << p.stages << ", \"stage_bytes\": " << p.stage_bytes
      << ", \"ring_bytes\": " << p.shared_bytes(warps);
  }
  void operator()(const ThinPlan& p) { s << ", \"thread_elements\": " << p.elements << ", \"runs\": " << p.runs; }
  void operator()(const ColumnsPlan& p) {
    s << ", \"warp_columns\": " << p.width << ", \"thread_elements\": " << p.elements << ", \"batches\": " << p.batches;
  }
  void operator()(const PanelsPlan& p) {
    s << ", \"warp_columns\": " << p.width << ", \"thread_elements\": " << p.elements << ", \"units\": " << p.units
      << ", \"rows\": " << p.rows << ", \"parts\": " << p.parts;
  }
  void operator()(const ExpandedPlan&) {}
};

}  // namespace

Device Device::parse(const std::string& text) {
  Device device;
  for_each_setting(text, [&](const std::string& key, const std::string& value) {
    if (key == "choice") {
      device.choice = read_choice(value);
      if (!device.choice) throw std::invalid_argument("device: there is no file '" + value + "'");
      return;
    }
    const int64_t number = number_of("device", key, value);
    if (number == 0 && (key == "multiprocessors" || key == "bandwidth"))
      throw std::invalid_argument("device: '" + key + "' needs a number above 0");
    if (key == "multiprocessors") device.multiprocessors = int_of("device", key, value);
    else if (key == "l2_bytes") device.l2_bytes = number;
    else if (key == "bandwidth") device.bandwidth = number;
    else if (key == "shared_bytes") device.shared_bytes = int_of("device", key, value);
    else if (key == "processor_shared_bytes") device.processor_shared_bytes = int_of("device", key, value);
    else if (key == "reserved_shared_bytes") device.reserved_shared_bytes = int_of("device", key, value);
    else if (key == "early") device.early = number != 0;
    else if (key == "clusters") device.clusters = number != 0;
    else if (key == "native") device.native = number != 0;
    else throw std::invalid_argument("device: there is no key '" + key + "'");
    if (device.multiprocessors < 1) throw std::invalid_argument("device: 'multiprocessors' needs a number above 0");
  });
  return device;
}

std::string Device::json() const {
  std::ostringstream s;
  s << "{\"multiprocessors\": " << multiprocessors << ", \"l2_bytes\": " << l2_bytes << ", \"bandwidth\": " << bandwidth
    << ", \"shared_bytes\": " << shared_bytes << ", \"processor_shared_bytes\": " << processor_shared_bytes
    << ", \"reserved_shared_bytes\": " << reserved_shared_bytes << ", \"early\": " << text_of(early)
    << ", \"clusters\": " << text_of(clusters) << ", \"native\": " << text_of(native) << "}";
  return s.str();
}

Tuning Tuning::parse(const std::string& text) {
  Tuning tuning;
  for_each_setting(text, [&](const std::string& key, const std::string& value) {
    if (key == "kernel") {
      const auto* found = std::find(kKernelNames.begin(), kKernelNames.end(), value);
      if (found == kKernelNames.end()) throw std::invalid_argument("tuning: there is no kernel '" + value + "'");
      tuning.kernel = static_cast<int>(found - kKernelNames.begin());
      return;
    }
    int* field = key == "candidate"         ? &tuning.candidate
                 : key == "multiprocessors" ? &tuning.multiprocessors
                 : key == "grid"            ? &tuning.grid
                 : key == "cluster"         ? &tuning.cluster
                                            : nullptr;
    if (!field) throw std::invalid_argument("tuning: there is no key '" + key + "'");
    *field = int_of("tuning", key, value);
  });
  return tuning;
}

const char* kernel_name(size_t alternative) { return kKernelNames[alternative]; }

std::string Variant::json() const {
  std::ostringstream s;
  s << "[\"" << kernel_name(static_cast<size_t>(kernel)) << "\", \"" << kWalkNames[static_cast<int>(walk)] << "\", "
    << int{vector} << ", " << loads << ", " << int{batches} << "]";
  return s.str();
}

std::string Plan::str() const {
  std::ostringstream s;
  s << "kernel " << kernel() << ": " << vector << (vector == 1 ? " element" : " elements") << " per load"
    << (walk == Walk::shifted  ? ", at odd addresses"
        : walk == Walk::spread ? ", spread"
                               : "")
    << ", " << warps << (warps == 1 ? " warp" : " warps") << " per block";
  if (is<RingPlan>()) {
    const RingPlan& ring = as<RingPlan>();
    s << ", " << ring.stages << (ring.stages == 1 ? " stage of " : " stages of ") << ring.stage_bytes << " bytes per warp";
  }
  if (walk == Walk::nested) s << ", elements in nested dims";
  if (streams) s << ", streamed through the L2";
  s << "\ntile: " << tiling.tile_outputs << " outputs x " << tiling.tile_leaves << " leaves; " << tiling.tiles
    << " tiles, grid " << grid.x << " x " << grid.y << " x " << grid.z << "\nsplits: " << tiling.splits;
  if (cluster > 1) s << ", a cluster";
  for (const Join& j : joins) s << (&j == joins.begin() ? ", joined " : ", then ") << j.count << " -> " << j.results();
  s << "\nworkspace: " << workspace_bytes << " bytes; must move: " << bytes << " bytes";
  return s.str();
}

std::string Plan::json() const {
  std::ostringstream s;
  s << "{\"kernel\": \"" << kernel() << "\", \"vector\": " << vector << ", \"walk\": \"" << kWalkNames[static_cast<int>(walk)]
    << "\", \"by_columns\": " << text_of(by_columns) << ", \"streams\": " << text_of(streams) << ", \"warps\": " << warps
    << ", \"grid\": " << grid.blocks() << ", \"grid_sides\": [" << grid.x << ", " << grid.y << ", " << grid.z
    << "], \"tiles\": " << tiling.tiles << ", \"splits\": " << tiling.splits << ", \"tile_outputs\": " << tiling.tile_outputs
    << ", \"tile_leaves\": " << tiling.tile_leaves << ", \"outputs\": " << tiling.outputs << ", \"columns\": " << tiling.columns
    << ", \"leaves\": " << tiling.leaves << ", \"workspace_bytes\": " << workspace_bytes << ", \"early\": " << text_of(early)
    << ", \"cluster\": " << cluster << ", \"bytes\": " << bytes << ", \"variant\": " << variant.json();
  std::visit(Members{s, warps}, shape);
  s << ", \"joins\": [";
  for (const Join& j : joins) s << (&j == joins.begin() ? "" : ", ") << j.fan;
  s << "], \"join_grids\": [";
  for (const Join& j : joins) {
    const Grid g = j.grid(tiling.outputs, 1);
    s << (&j == joins.begin() ? "[" : ", [") << g.x << ", " << g.y << ", " << g.z << "]";
  }
  s << "]}";
  return s.str();
}

}  // namespace gpureduce
