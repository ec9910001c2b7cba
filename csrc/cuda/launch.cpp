#include "launch.h"

namespace gpureduce::cuda {

namespace {

cudaError_t reduce(const Launch& launch) {
  const Reduction& r = launch.reduction;
  if (!is_typed(r)) return reduce_any(launch);
  switch (r.in) {
#define GPUREDUCE_FAMILY(name, type, kind, accumulator, wide, family) \
  case DType::name: return reduce_family<Family::family>(launch);
    GPUREDUCE_DTYPES(GPUREDUCE_FAMILY)
#undef GPUREDUCE_FAMILY
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t run(const Launch& launch) {
  if (cudaError_t error = reduce(launch)) return error;
  return join(launch);
}

}  // namespace gpureduce::cuda
