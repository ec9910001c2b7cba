#include "cpu.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "../core/cpu/exact_floats.h"
#include "../core/cpu/plan.h"
#include "../core/cpu/threads.h"

namespace gpureduce::cpu {

namespace {

// A range of numbers, cut into parts of equal length, one per thread.
struct Parts {
  int64_t range, count, length;

  Parts(int64_t range, int64_t most)
      : range(range),
        count(std::max<int64_t>(1, std::min<int64_t>(most, thread_count()))),
        length((range + count - 1) / count) {}

  // Calls f(part, begin, end) for each part.
  template <class F>
  void run(F f) const {
    parallel_for(0, count, count == 1 ? 2 : 1, [&](int64_t from, int64_t to) {
      const ExactFloats exact;
      for (int64_t part = from; part < to; ++part)
        f(part, std::min(part * length, range), std::min((part + 1) * length, range));
    });
  }
};

// Where in its part each thread found the first entry that is out of range, or -1.
int64_t first_of(const std::vector<int64_t>& outside) {
  for (int64_t i : outside)
    if (i >= 0) return i;
  return -1;
}

// A counting sort: each part of the entries counts for itself how many each output has, and then knows where they go. Keys are
// kept of the index, as the caller's may be another one when it is read again.
template <class Key, class Int, class Sorted, class At>
int64_t sort_entries(const IndexSort& sort, At at) {
  const Index& index = sort.index;
  const int64_t size = index.size;
  // Every part has a counter per output: no more parts than keep the memory in proportion to the entries and outputs.
  const Parts entries(index.count, std::min(index.count / kGrain, 1 + index.count / size));
  const std::unique_ptr<Int[]> counters(new Int[entries.count * size]);
  const std::unique_ptr<Key[]> keys(new Key[index.count]);

  std::vector<int64_t> outside(entries.count, -1);
  entries.run([&](int64_t part, int64_t begin, int64_t end) {
    Int* const counts = counters.get() + part * size;
    std::fill_n(counts, size, Int{0});
    for (int64_t i = begin; i < end; ++i) {
      const int64_t output = index.at(i);
      if (!index.has(output)) {
        outside[part] = i;
        return;
      }
      keys[i] = static_cast<Key>(output);
      ++counts[output];
    }
  });
  if (const int64_t i = first_of(outside); i >= 0) return i;

  // From counts to places.
  const Parts outputs(size, size * entries.count / kGrain);
  std::vector<int64_t> before(outputs.count + 1, 0);
  outputs.run([&](int64_t part, int64_t begin, int64_t end) {
    int64_t sum = 0;
    for (int64_t p = 0; p < entries.count; ++p)
      for (int64_t k = begin; k < end; ++k) sum += counters[p * size + k];
    before[part + 1] = sum;
  });
  for (int64_t part = 0; part < outputs.count; ++part) before[part + 1] += before[part];
  Int* const offsets = static_cast<Int*>(sort.offsets);
  outputs.run([&](int64_t part, int64_t begin, int64_t end) {
    Int place = static_cast<Int>(before[part]);
    for (int64_t k = begin; k < end; ++k) {
      offsets[k] = place;
      for (int64_t p = 0; p < entries.count; ++p) {
        const Int count = counters[p * size + k];
        counters[p * size + k] = place;
        place += count;
      }
    }
  });
  offsets[size] = static_cast<Int>(index.count);

  Sorted* const sorted = static_cast<Sorted*>(sort.sorted);
  entries.run([&](int64_t part, int64_t begin, int64_t end) {
    Int* const places = counters.get() + part * size;
    for (int64_t i = begin; i < end; ++i) sorted[places[keys[i]]++] = at(i);
  });
  return -1;
}

template <class Key, class Int>
int64_t sort_any(const IndexSort& sort) {
  if (!sort.values.values.data) return sort_entries<Key, Int, Int>(sort, [](int64_t i) { return static_cast<Int>(i); });
  return sort_entries<Key, Int, float>(sort, [&](int64_t i) { return sort.values.at(i); });
}

template <class Int>
int64_t sort_any(const IndexSort& sort) {
  return sort.index.size <= int64_t{1} << 32 ? sort_any<uint32_t, Int>(sort) : sort_any<int64_t, Int>(sort);
}

}  // namespace

int64_t sort_by_index(const IndexSort& sort) { return sort.wide ? sort_any<int64_t>(sort) : sort_any<int32_t>(sort); }

int64_t gather_by_order(const Index& order, const IndexValues& values, float* out) {
  const Parts entries(order.count, order.count / kGrain);
  std::vector<int64_t> outside(entries.count, -1);
  entries.run([&](int64_t part, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = order.at(i);
      if (!order.has(from)) {
        outside[part] = i;
        return;
      }
      out[i] = values.at(from);
    }
  });
  return first_of(outside);
}

}  // namespace gpureduce::cpu
