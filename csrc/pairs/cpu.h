// Shared by weighted sums, variances and indices on the CPU: a maker turns pairs of elements into accumulators, which are added
// in the contract's order.
#pragma once

#include <algorithm>
#include <memory>

#include "../core/cpu/exact_floats.h"
#include "../core/cpu/kernels.h"
#include "../core/cpu/plus.h"
#include "../core/cpu/threads.h"
#include "../core/problem/nest.h"

namespace gpureduce::cpu {

constexpr int64_t kSide = 256;              // most neighbouring outputs that are summed together
constexpr int64_t kTaskElements = 1 << 15;  // fewest elements per task, if there are enough
constexpr int64_t kShortRow = 32;           // rows up to this long are summed as columns
constexpr int kLevels = 48;                 // of the tree above leaves or chunks
constexpr int kTasksOfEach = 4;             // tasks per thread

// Joins neighbours of `values`, level by level, until one is left.
template <class Acc>
Acc join(Acc* values, int64_t count) {
  for (; count > 1; count = (count + 1) / 2) {
    for (int64_t i = 0; i < count / 2; ++i) values[i] = plus(values[2 * i], values[2 * i + 1]);
    if (count % 2) values[count / 2] = values[count - 1];
  }
  return values[0];
}

// The sum of the first `count` elements of a chunk. `scratch` has room for a chunk.
template <class Acc>
Acc sum_chunk(Acc* values, int64_t count, Acc* scratch) {
  Acc sum;
  if constexpr (std::is_same_v<Acc, float>) {
    instruction_set().sum_floats(values, count, 1, scratch, &sum);
  } else if constexpr (std::is_same_v<Acc, double>) {
    instruction_set().sum_doubles(values, count, 1, scratch, &sum);
  } else if constexpr (std::is_same_v<Acc, Moments>) {
    instruction_set().sum_doubles(&values->sum, count, 2, &scratch->sum, &sum.sum);
  } else {
    sum = 0;  // integers, in any order
    for (int64_t i = 0; i < count; ++i) sum = plus(sum, values[i]);
  }
  return sum;
}

// Joins values that arrive one by one, like the bits of a binary counter. A value is `width` accumulators.
template <class Acc>
class Counter {
 public:
  Counter(Acc* memory, int64_t width) : memory_(memory), width_(width) {}

  void add(Acc* value) {
    int level = 0;
    for (; count_ >> level & 1; ++level) {
      const Acc* const left = memory_ + level * width_;
      for (int64_t i = 0; i < width_; ++i) value[i] = plus(left[i], value[i]);
    }
    std::copy(value, value + width_, memory_ + level * width_);
    ++count_;
  }

  // Joins all values. A value without a neighbour moves up a level unchanged.
  const Acc* finish() {
    Acc* all = nullptr;
    for (int level = 0; level < kLevels; ++level) {
      if (!(count_ >> level & 1)) continue;
      Acc* const left = memory_ + level * width_;
      if (all)
        for (int64_t i = 0; i < width_; ++i) left[i] = plus(left[i], all[i]);
      all = left;
    }
    return all;
  }

 private:
  Acc* memory_;
  int64_t width_;
  int64_t count_ = 0;
};

// Memory for one thread's tasks. Scratch is the maker's type.
template <class Scratch, class Acc>
struct Room {
  explicit Room(int64_t width)
      : values(new Acc[kChunk]), joins(new Acc[kChunk]), sums(new Acc[kSide]), levels(new Acc[kLevels * width]) {}
  Scratch scratch;
  std::unique_ptr<Acc[]> values, joins, sums, levels;
};

// An index in nested dims, slowest first, that moves along the last one.
class Walker {
 public:
  Walker(const DimList<ReducedDim>& dims, int64_t index) : dims_(dims) {
    for (int d = static_cast<int>(dims.size()) - 1; d >= 0; --d) {
      at_[d] = index % dims[d].size;
      index /= dims[d].size;
      place_ = place_ + stride_of<Both>(dims[d]) * at_[d];
    }
  }

  Both place() const { return place_; }
  int64_t left() const { return dims_.empty() ? 1 : dims_.back().size - at_[dims_.size() - 1]; }

  void advance(int64_t n) {  // at most left()
    for (int d = static_cast<int>(dims_.size()) - 1; d >= 0; --d) {
      at_[d] += n;
      place_ = place_ + stride_of<Both>(dims_[d]) * n;
      if (at_[d] < dims_[d].size || d == 0) return;
      at_[d] = 0;
      place_ = place_ + stride_of<Both>(dims_[d]) * -dims_[d].size;
      n = 1;
    }
  }

 private:
  const DimList<ReducedDim>& dims_;
  int64_t at_[kMaxRank];
  Both place_{0, 0};
};

// The sum of a row's elements from `begin` to `end` (exclusive), chunk by chunk.
template <class Acc, class Maker>
Acc sum_row(const Problem& p, const Maker& maker, Both row, int64_t begin, int64_t end,
            Room<typename Maker::Scratch, Acc>& room) {
  const Both step = p.reduced.empty() ? Both{0, 0} : stride_of<Both>(p.reduced.back());
  Acc* const values = room.values.get();
  Counter<Acc> counter(room.levels.get(), 1);
  Walker walker(p.reduced, begin);
  for (; begin < end; begin += kChunk) {
    const int64_t count = std::min<int64_t>(kChunk, end - begin);
    for (int64_t done = 0; done < count;) {
      const int64_t run = std::min(walker.left(), count - done);
      maker.make(row + walker.place(), step, run, room.scratch, values + done);
      walker.advance(run);
      done += run;
    }
    Acc sum = sum_chunk(values, count, room.joins.get());
    counter.add(&sum);
  }
  return *counter.finish();
}

// The sums of `width` neighbouring outputs over leaves `begin` to `end` (exclusive).
template <class Acc, class Maker>
const Acc* sum_columns(const Problem& p, const Nest<kMaxRank, Both>& elements, const Maker& maker, Both place, int64_t width,
                       int64_t begin, int64_t end, Room<typename Maker::Scratch, Acc>& room) {
  const Both across = stride_of<Both>(p.kept.back());
  Counter<Acc> counter(room.levels.get(), width);
  Acc *const values = room.values.get(), *const sums = room.sums.get();
  for (int64_t leaf = begin; leaf < end; ++leaf) {
    const int64_t start = leaf_start(leaf), stop = std::min(p.length, start / kChunk * kChunk + kChunk);
    for (int64_t i = start; i < stop; i += kLanes) {
      maker.make(place + elements.at(i).in, across, width, room.scratch, i == start ? sums : values);
      if (i == start) continue;
      for (int64_t c = 0; c < width; ++c) sums[c] = plus(sums[c], values[c]);
    }
    counter.add(sums);
  }
  return counter.finish();
}

// True of a maker that joins elements itself, in any order.
template <class Maker, class = void>
constexpr bool kFolds = false;
template <class Maker>
constexpr bool kFolds<Maker, std::void_t<decltype(&Maker::fold)>> = true;

// The units per task: a power of two, so that a task's sum is a node of the tree.
inline int64_t units_of_task(int64_t units, int64_t tasks) {
  int64_t each = 1;
  while (each * tasks < units) each *= 2;
  return each;
}

// Writes the accumulator of every output by write(place, accumulator), where place is a Spot<Both>.
template <class Acc, class Maker, class Write>
void compute(const Problem& p, const Maker& maker, const Write& write) {
  const auto kept = kept_nest<kMaxRank, Both>(p);
  const auto elements = reduced_nest<kMaxRank, Both>(p);
  const bool columns = !p.kept.empty() && (has_columns(p) || p.length <= kShortRow);

  // A task sums one aligned run of units (leaves or chunks) for a group of neighbouring outputs.
  const int64_t in_row = columns ? p.kept.back().size : 1, side = std::min(in_row, kSide);
  const int64_t row_groups = (in_row + side - 1) / side, groups = p.outputs / in_row * row_groups;
  const int64_t units = columns ? leaf_count(p.length) : (p.length + kChunk - 1) / kChunk;
  const int threads = thread_count();
  const int64_t wanted = threads == 1 ? 1 : (int64_t{threads} * kTasksOfEach + groups - 1) / groups;
  const int64_t each = groups >= int64_t{threads} * kTasksOfEach ? units_of_task(units, 1) : units_of_task(units, wanted);
  const int64_t splits = (units + each - 1) / each;
  const std::unique_ptr<Acc[]> partials(splits > 1 ? new Acc[splits * p.outputs] : nullptr);
  const int64_t task_elements = std::max<int64_t>(1, side * p.length / splits);

  parallel_for(0, groups * splits, std::max<int64_t>(1, kTaskElements / task_elements), [&](int64_t from, int64_t to) {
    const ExactFloats exact;
    Room<typename Maker::Scratch, Acc> room(columns ? side : 1);
    for (int64_t task = from; task < to; ++task) {
      const int64_t group = task / splits, split = task % splits, begin = split * each, end = std::min(units, begin + each);
      const int64_t column = group % row_groups * side, output = group / row_groups * in_row + column;
      const int64_t width = std::min(side, in_row - column);
      Acc sum;
      const Acc* sums = &sum;
      const Both place = kept.at(output).in;
      if constexpr (kFolds<Maker>) {
        const int64_t length = (p.length + units - 1) / units;  // of a unit
        maker.fold(p, place, width, begin * length, std::min(p.length, end * length), room.sums.get());
        sums = room.sums.get();
      } else if (columns) sums = sum_columns<Acc>(p, elements, maker, place, width, begin, end, room);
      else sum = sum_row<Acc>(p, maker, place, begin * kChunk, std::min(p.length, end * kChunk), room);
      for (int64_t i = 0; i < width; ++i) {
        if (partials) partials[(output + i) * splits + split] = sums[i];
        else write(kept.at(output + i), sums[i]);
      }
    }
  });
  if (!partials) return;
  parallel_for(0, p.outputs, std::max<int64_t>(1, kTaskElements / splits), [&](int64_t from, int64_t to) {
    const ExactFloats exact;
    for (int64_t output = from; output < to; ++output) write(kept.at(output), join(partials.get() + output * splits, splits));
  });
}

}  // namespace gpureduce::cpu
