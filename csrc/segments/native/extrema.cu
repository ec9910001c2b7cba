#include "../typed.cuh"

namespace gpureduce::cuda {

cudaError_t segment_extrema(const SegmentsLaunch& launch) {
  switch (launch.segments.reduction.in) {
    case DType::Float: return segments_of<Ordered<float>, Largest<float>>(launch);
    case DType::Half: return segments_of<Ordered<Half>, Largest<float>>(launch);
    case DType::BFloat16: return segments_of<Ordered<BFloat16>, Largest<float>>(launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace gpureduce::cuda
