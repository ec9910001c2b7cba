// The table of compiled kernels. Planners propose its variants, launches look up their kernel in it (cuda/launch.cuh), and the
// .cu files are compiled from it. Pure C++.
//
// For example bfloat16, with 8 elements per load of 16 bytes. The variant {dense, nested, 8, 1, 8} reads rows in two nested
// dims, 8 neighbours per load, with 8 elements of each leaf in flight. A row of 94 times 16 elements has leaves of 3 elements
// at most, so its planner asks for 4 loads or more, and serving() finds this variant: 5 of its 8 loads are predicated off.
#pragma once

#include <string>

#include "../api.h"
#include "../problem/engine.h"
#include "columns.h"
#include "flat.h"
#include "limits.h"
#include "panels.h"
#include "ring.h"
#include "thin.h"

namespace gpureduce {

// In the order of Shape's alternatives (plan.h).
enum class Kernel : uint8_t { dense, flat, ring, thin, columns, panels, expanded };

constexpr int kAnyBatches = 0;  // the kernel gets their number at run time

struct Variant {
  Kernel kernel;
  Walk walk;
  int8_t vector;   // elements per load
  int8_t batches;  // how many times a thread does its loads
  int16_t loads;   // elements of a leaf, or of a thin column, in flight; more than kLoads come in turn

  GPUREDUCE_API std::string json() const;  // for tests
};

// The next more general walk, which also finds all elements that this one finds. The most general one is deep.
constexpr Walk more_general(Walk walk) {
  switch (walk) {
    case Walk::dense: return Walk::linear;
    case Walk::linear: return Walk::nested;
    default: return Walk::deep;
  }
}
constexpr bool is_general(Walk walk) { return walk != Walk::shifted && walk != Walk::spread; }

class Variants {
 public:
  constexpr void add(Kernel kernel, Walk walk, int vector, int loads = 1, int batches = 1) {
    list_[size_++] = {kernel, walk, static_cast<int8_t>(vector), static_cast<int8_t>(batches), static_cast<int16_t>(loads)};
  }
  constexpr int size() const { return size_; }
  constexpr const Variant& operator[](int i) const { return list_[i]; }
  constexpr bool has(Kernel kernel) const {
    for (int i = 0; i < size_; ++i)
      if (list_[i].kernel == kernel) return true;
    return false;
  }

  // The index of the variant that serves: with this walk or the next more general one, and with `loads` loads or the fewest
  // more. -1 if there is none.
  constexpr int serving(Kernel kernel, Walk walk, int vector, int loads = 1, int batches = 1) const {
    for (;; walk = more_general(walk)) {
      int best = -1;
      for (int i = 0; i < size_; ++i) {
        const Variant& v = list_[i];
        const bool fits = v.kernel == kernel && v.walk == walk && v.vector == vector && v.loads >= loads &&
                          (v.batches == batches || v.batches == kAnyBatches);
        if (fits && (best < 0 || v.loads < list_[best].loads)) best = i;
      }
      if (best >= 0 || !is_general(walk) || walk == Walk::deep) return best;
    }
  }

 private:
  int size_ = 0;
  Variant list_[64] = {};
};

// The properties of elements that decide which variants are compiled.
struct ElementClass {
  Engine engine;
  int size;        // bytes of an element as kernels hold it
  bool one_input;  // a map makes the addend of one element; otherwise two operands do

  constexpr int widest() const { return engine != Engine::converted && size < kGranule ? kGranule / size : 1; }
};

// If a problem needs fewer loads than a kernel has, the others are predicated off. Further variants gain less than 0.1% on
// average over random sums.

constexpr void add_rows(Variants& all, const ElementClass& c, int vector) {
  const bool full = c.engine == Engine::full, converted = c.engine == Engine::converted;
  for (int loads : {2, 8}) {
    if (!converted) all.add(Kernel::dense, Walk::dense, vector, loads);
    if (converted || (full && vector == 1)) all.add(Kernel::dense, Walk::linear, vector, loads);
    if (full) all.add(Kernel::dense, Walk::nested, vector, loads);
    all.add(Kernel::dense, Walk::deep, vector, loads);
  }
  // Only maps read misaligned vectors shifted or spread; others read single elements.
  if (vector > 1 && shifts(c.size) && c.one_input) all.add(Kernel::dense, Walk::shifted, vector, 8);
  if (vector == 1 || full) all.add(Kernel::flat, Walk::nested, vector);
}

// Rows that are whole pieces of memory, for each size of a load.
constexpr void add_pieces(Variants& all, const ElementClass& c) {
  const bool full = c.engine == Engine::full;
  for (int bytes : {4, 8, 16})
    if (bytes > c.size || (bytes == c.size && (full || bytes == kGranule))) all.add(Kernel::flat, Walk::dense, bytes / c.size);
  if (full && rings_rows(c.size)) all.add(Kernel::ring, Walk::dense, 4 / c.size);
}

constexpr void add_columns(Variants& all, const ElementClass& c, int vector) {
  const bool full = c.engine == Engine::full, converted = c.engine == Engine::converted;
  const Walk shortest = full ? Walk::linear : Walk::nested;  // the walk of the shortest columns
  for (int loads : {2, 4, 8}) {
    if (full) all.add(Kernel::thin, Walk::linear, vector, loads);
    const int many = vector == 1 ? thin_runs(vector, loads, c.size) : 1;
    if (many > 1 && (full || (loads == 2 && !converted))) all.add(Kernel::thin, shortest, vector, loads, many);
  }
  all.add(Kernel::thin, Walk::nested, vector, 8);
  if (vector > 1 && !c.one_input) all.add(Kernel::thin, Walk::nested, vector, 2);  // a pair's loads cost more
  if (full ? wholes_columns(vector) : converted) {
    if (full) all.add(Kernel::thin, Walk::linear, vector, kLanes);
    all.add(Kernel::thin, Walk::nested, vector, kLanes);
  }
  for (int loads : {1, 8}) {
    if (full && vector == 1) {
      all.add(Kernel::columns, Walk::linear, vector, loads);
      all.add(Kernel::columns, Walk::linear, vector, loads, column_batches(vector));
    }
    all.add(Kernel::columns, Walk::nested, vector, loads, kAnyBatches);
  }
}

constexpr void add_panels(Variants& all, const ElementClass& c, int vector) {
  for (int loads : {1, 2, 4, 8}) {
    if (c.engine != Engine::full && (loads == 2 || loads == 4)) continue;
    all.add(Kernel::panels, Walk::linear, vector, loads);
    if (!c.one_input) continue;
    if (shifts(c.size) && loads >= shifted_column_elements(c.size)) all.add(Kernel::panels, Walk::shifted, vector, loads);
    if (spreads(c.size)) all.add(Kernel::panels, Walk::spread, vector, loads);
  }
}

constexpr Variants variants_of(const ElementClass& c) {
  Variants all;
  const int wide = c.widest();
  add_rows(all, c, 1);
  add_columns(all, c, 1);
  if (c.engine != Engine::converted) add_pieces(all, c);
  if (wide > 1) {
    add_rows(all, c, wide);
    add_columns(all, c, wide);
    add_panels(all, c, wide);
  }
  all.add(Kernel::expanded, Walk::deep, 1);
  return all;
}

}  // namespace gpureduce
