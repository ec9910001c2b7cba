#include "../norm_backward.cuh"

namespace gpureduce::cuda {

cudaError_t launch_norm_backward(const NormPlan& plan, const RowsCall& call, float* partials, const Device& device,
                                 cudaStream_t stream) {
  const auto start = [&](auto element) {
    using T = decltype(element);
    constexpr RowFunction kRms = RowFunction::rms_norm_backward, kLayer = RowFunction::layer_norm_backward;
    return call.function == kRms ? start_norm_backward<kRms, T>(plan, call, partials, device, stream)
                                 : start_norm_backward<kLayer, T>(plan, call, partials, device, stream);
  };
  switch (call.operands[kRowX].dtype) {
    case DType::Float: return start(float{});
    case DType::Half: return start(Half{});
    case DType::BFloat16: return start(BFloat16{});
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
