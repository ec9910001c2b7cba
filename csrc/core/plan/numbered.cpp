#include "numbered.h"

#include "../problem/nest.h"

namespace gpureduce::cuda {

namespace {

std::string launch(const std::string& kernel, int64_t units, int64_t in_block) {
  return "kernel " + kernel + "\nblock: " + std::to_string(kNumberedThreads) + " threads; grid " +
         std::to_string(ceil_div(units, in_block));
}

// True if all operands begin at a granule.
bool are_aligned(const NumberedApply& call) {
  bool all = true;
  for (const void* p : {call.x, static_cast<const void*>(call.y), call.g, call.r})
    all = all && reinterpret_cast<uintptr_t>(p) % kGranule == 0;
  return all;
}

}  // namespace

int word_of(const CopiedRows& call) {
  const uint64_t all = reinterpret_cast<uintptr_t>(call.from) | reinterpret_cast<uintptr_t>(call.to) | call.row_bytes |
                       call.from_stride | call.to_stride | call.from_outer | call.to_outer;
  int word = kGranule;
  while (all % word) word /= 2;
  return word;
}

std::string CopiedRows::str() const {
  const int word = word_of(*this);
  const std::string what = "copy_rows: words of " + std::to_string(word) + " bytes, " + std::to_string(kNumberedAtOnce) +
                           " per thread, of " + std::to_string(outer * entries) + " rows of " + std::to_string(row_bytes) +
                           " bytes";
  return launch(what, outer * entries * (row_bytes / word), kNumberedUnits);
}

std::string explain_numbers(int64_t entries) {
  return launch("number_entries: " + std::to_string(kNumberedAtOnce) + " entries per thread", entries, kNumberedUnits);
}

bool takes(const NumberedApply& call) {
  const bool of_dtype = call.in == DType::Float || call.in == DType::Half || call.in == DType::BFloat16;
  return has_numbered(call.formula) && of_dtype && (call.out == call.in || call.out == DType::Float) &&
         call.outer * call.entries * call.inner <= kMostNumbered && call.outer * call.count * call.inner <= kMostNumbered;
}

bool takes_offsets(const NumberedApply& call) {
  return call.inner == 1 && call.entries * info(call.in).size % kGranule == 0 && are_aligned(call);
}

int elements_of_unit(const NumberedApply& call) {
  const int vector = kGranule / info(call.in).size;
  return takes_offsets(call) || (are_aligned(call) && call.inner % vector == 0) ? vector : 1;
}

std::string NumberedApply::str() const {
  const int each = elements_of_unit(*this), units = applied_units(each);
  return launch("numbered: " + std::to_string(units) + " times " + std::to_string(each) +
                    (each == 1 ? " element" : " elements") + " per thread" +
                    (takes_offsets(*this) ? ", whose segments it finds in the offsets" : ""),
                outer * entries * inner / each, int64_t{kNumberedThreads} * units);
}

}  // namespace gpureduce::cuda
