#include "../segment_launch.cuh"

namespace gpureduce::cuda {

namespace {

template <class T>
cudaError_t start(const ExactSegmentArgs<kFastRank>& args, Queue queue) {
  return start_warps(queue, exact_segments<T>, kSegmentThreads<T>, args.tiles.tiles * args.column_tiles, args);
}

}  // namespace

cudaError_t start_exact_segments(DType in, const ExactSegmentArgs<kFastRank>& args, Queue queue) {
  switch (in) {
    case DType::Float: return start<float>(args, queue);
    case DType::BFloat16: return start<BFloat16>(args, queue);
    case DType::Half: return start<Half>(args, queue);
    case DType::Double: return start<double>(args, queue);
    default: return kNoKernel;
  }
}

}  // namespace gpureduce::cuda
