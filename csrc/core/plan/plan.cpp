#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "choose.h"
#include "propose.h"

namespace gpureduce {

namespace {

struct Planner {
  bool (*takes)(const Request&);
  void (*propose)(Proposals&);
};

constexpr Planner kPlanners[] = {
#define GPUREDUCE_ROW(kernel) {kernel##_kernel::takes, kernel##_kernel::propose},
    GPUREDUCE_PLANNERS(GPUREDUCE_ROW)
#undef GPUREDUCE_ROW
};
static_assert(std::size(kPlanners) == std::variant_size_v<Shape>);

// True if a cache line holds neighbours in the fastest kept dim and neighbours in the fastest reduced dim.
bool reads_both_ways(const Reduction& r) {
  const auto near = [&](const auto& dims) {
    return !dims.empty() && dims.back().stride > 0 && dims.back().stride * info(r.in).size <= kLine;
  };
  return near(r.problem.kept) && near(r.problem.reduced);
}

}  // namespace

std::vector<Plan> propose_all(const Reduction& r, const Device& device, const Tuning& tuning) {
  std::vector<Plan> plans;
  const bool natural = fastest_dim_is_kept(r.problem);
  for (bool by_columns : {natural, !natural}) {
    if (by_columns != natural && !reads_both_ways(r)) break;
    const Request request(r, device, by_columns);
    Proposals proposals(request, tuning, plans);
    for (int k = 0; k < static_cast<int>(std::size(kPlanners)); ++k)
      if ((tuning.kernel < 0 || tuning.kernel == k) && kPlanners[k].takes(request)) kPlanners[k].propose(proposals);
  }
  // Drops plans with several passes of the join, if there are others: a third kernel costs more than smaller tiles gain.
  const auto passes = [](const Plan& plan) { return plan.joins.size() > 1; };
  if (!std::all_of(plans.begin(), plans.end(), passes))
    plans.erase(std::remove_if(plans.begin(), plans.end(), passes), plans.end());
  return plans;
}

namespace {

Plan chosen_plan(const Reduction& r, const Device& device, const Tuning& tuning) {
  const std::vector<Plan> plans = propose_all(r, device, tuning);
  if (plans.empty() && tuning.kernel >= 0)
    throw std::invalid_argument(std::string("tuning: the ") + kernel_name(tuning.kernel) + " kernel does not take this input");
  if (plans.empty()) throw std::invalid_argument("sum: the input has too many elements, or the result has: " + r.problem.str());
  if (tuning.candidate < 0) return plans[choose(plans, r, device)];
  if (tuning.candidate >= static_cast<int>(plans.size()))
    throw std::invalid_argument("tuning: there are only " + std::to_string(plans.size()) + " candidates");
  return plans[tuning.candidate];
}

// Everything that a plan depends on.
struct Key {
  Device device;
  uint64_t address = 0, second_address = 0;  // modulo a granule
  DType in{}, out{}, second{};
  Addends addends{};
  Engine engine{};
  ResultPath path{};
  Accumulator accumulator{};
  Map map{};
  Finish finish{};
  bool negate = false, conjugate = false;
  int64_t outputs = 0, length = 0;
  DimList<KeptDim> kept;
  DimList<ReducedDim> reduced;

  Key() = default;
  Key(const Reduction& r, const Device& device)
      : device(device),
        address(reinterpret_cast<uintptr_t>(r.input) % kGranule),
        second_address(reinterpret_cast<uintptr_t>(r.second) % kGranule),
        in(r.in),
        out(r.out),
        second(r.second_dtype),
        addends(r.addends),
        engine(r.engine),
        path(r.path),
        accumulator(r.accumulator),
        map(r.map),
        finish(r.finish),
        negate(r.negate),
        conjugate(r.conjugate),
        outputs(r.problem.outputs),
        length(r.problem.length),
        kept(r.problem.kept),
        reduced(r.problem.reduced) {}

  bool operator==(const Key& k) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.begin(), b.begin(), a.size() * sizeof(*a.begin())) == 0;
    };
    return device == k.device && address == k.address && second_address == k.second_address && in == k.in && out == k.out &&
           second == k.second && addends == k.addends && engine == k.engine && path == k.path && accumulator == k.accumulator &&
           map == k.map && finish == k.finish && negate == k.negate && conjugate == k.conjugate && outputs == k.outputs &&
           length == k.length && same(kept, k.kept) && same(reduced, k.reduced);
  }

  // A hash: calls of other shapes, dtypes or addresses rarely share a place.
  size_t place(size_t places) const {
    uint64_t hash = static_cast<uint64_t>(outputs) * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(length);
    hash = hash * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(in) * 64 + static_cast<uint64_t>(out);
    hash = hash * 0x9e3779b97f4a7c15 + address + (reduced.empty() ? 0 : static_cast<uint64_t>(reduced.back().stride) << 8);
    return (hash * 0x9e3779b97f4a7c15 >> 40) % places;
  }
};

// Plans that were timed for a call. Every thread takes them. There are few.
class TimedPlans {
 public:
  void set(const Key& key, const Plan* plan) {  // null: removes the call's plan
    const std::lock_guard lock(mutex_);
    plans_.erase(std::remove_if(plans_.begin(), plans_.end(), [&](const auto& known) { return known.first == key; }),
                 plans_.end());
    if (plan) plans_.emplace_back(key, *plan);
    ++changes_;
  }
  std::optional<Plan> find(const Key& key) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, plan] : plans_)
      if (known == key) return plan;
    return std::nullopt;
  }
  uint64_t changes() const { return changes_; }

 private:
  std::mutex mutex_;
  std::vector<std::pair<Key, Plan>> plans_;
  std::atomic<uint64_t> changes_{0};
};

TimedPlans& timed_plans() {
  static auto* const plans = new TimedPlans;
  return *plans;
}

struct Remembered {
  Key key;
  uint64_t changes;  // TimedPlans::changes() when the plan was made
  Plan plan;
};
constexpr size_t kRemembered = 256;  // calls per thread

}  // namespace

Plan make_plan(const Reduction& r, const Device& given, const Tuning& tuning) {
  if (!tuning.forces()) {
    thread_local std::vector<std::unique_ptr<Remembered>> remembered(kRemembered);
    const Key key(r, given);
    std::unique_ptr<Remembered>& entry = remembered[key.place(kRemembered)];
    if (!entry) entry = std::make_unique<Remembered>();
    const uint64_t changes = timed_plans().changes();
    if (!(entry->key == key) || entry->changes != changes) {
      const std::optional<Plan> timed = timed_plans().find(key);
      entry->plan = timed ? *timed : chosen_plan(r, given, tuning);
      entry->key = key;
      entry->changes = changes;
    }
    return entry->plan;
  }
  return chosen_plan(r, tuning.on(given), tuning);
}

int count_plans(const Reduction& r, const Device& device) { return static_cast<int>(propose_all(r, device, {}).size()); }

void remember_plan(const Reduction& r, const Device& device, int candidate) {
  Tuning forced;
  forced.candidate = candidate;
  const Plan plan = chosen_plan(r, device, forced);
  timed_plans().set(Key(r, device), candidate < 0 ? nullptr : &plan);
}

}  // namespace gpureduce
