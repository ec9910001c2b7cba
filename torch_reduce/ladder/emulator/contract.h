// The contract's order of additions (docs/order.md), over any kind of value that `join` adds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../core/order.h"

namespace emulate {

// Nearest neighbours, level by level: 0 + 1, 2 + 3, ... A missing right neighbour leaves its partner as it is.
template <class V, class Join>
V nearest(std::vector<V> row, Join join) {
  while (row.size() > 1) {
    size_t kept = 0;
    for (size_t i = 0; i < row.size(); i += 2) row[kept++] = i + 1 < row.size() ? join(row[i], row[i + 1]) : row[i];
    row.resize(kept);
  }
  return row[0];
}

// The sum of element(0) to element(n - 1): each lane's elements from left to right, then the lanes' sums.
template <class Element, class Join>
auto in_order(int64_t n, Element element, Join join) {
  std::vector<decltype(element(int64_t{}))> row;
  for (int64_t leaf = 0; leaf < gpureduce::leaf_count(n); ++leaf) {
    const int64_t end = std::min(n, (leaf / gpureduce::kLanes + 1) * gpureduce::kChunk);
    int64_t i = gpureduce::leaf_start(leaf);
    auto sum = element(i);
    while ((i += gpureduce::kLanes) < end) sum = join(sum, element(i));
    row.push_back(sum);
  }
  return nearest(std::move(row), join);
}

}  // namespace emulate
