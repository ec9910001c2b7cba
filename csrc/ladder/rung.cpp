#include "rung.h"

namespace gpureduce::ladder {

std::map<std::string, Rung>& registry() {
  static std::map<std::string, Rung> rungs;
  return rungs;
}

size_t bytes_of_passes(const Call& call) {
  const size_t size = call.dtype == DType::f32 || call.dtype == DType::i32 ? 4 : 8;
  int64_t elements = 0;
  for (int64_t n = ceil_div(call.n, call.tile()); n > 1; n = ceil_div(n, call.tile()))
    elements += ceil_div(n, call.tile()) * call.tile();
  return elements * size;
}

}  // namespace gpureduce::ladder
