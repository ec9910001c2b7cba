// Measures where the host spends the time of a call. The op reports the end of each stage to a watch.
#pragma once

#include <array>
#include <chrono>

namespace gpureduce {

enum class Stage { result, problem, plan, launch };  // checks and the result's memory; making the problem; ...
constexpr int kStages = 4;

// The watch of a normal call: it does nothing and costs nothing.
struct Unwatched {
  void end(Stage) {}
};

// Adds up the microseconds of each stage, counted from the end of the stage before.
class Stopwatch {
 public:
  void begin() { last_ = Clock::now(); }
  void end(Stage stage) {
    const Clock::time_point now = Clock::now();
    spent_[static_cast<int>(stage)] += now - last_;
    last_ = now;
  }
  double spent(Stage stage) const { return spent_[static_cast<int>(stage)].count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_;
  std::array<std::chrono::duration<double, std::micro>, kStages> spent_{};
};

}  // namespace gpureduce
