#include "../joins.cuh"

namespace gpureduce::cuda {

template cudaError_t join_rows<float>(const SegmentsLaunch&);
template cudaError_t join_rows<double>(const SegmentsLaunch&);
template cudaError_t join_rows<Largest<float>>(const SegmentsLaunch&);
template cudaError_t join_columns<float>(const SegmentsLaunch&);
template cudaError_t join_columns<double>(const SegmentsLaunch&);
template cudaError_t join_columns<int64_t>(const SegmentsLaunch&);
template cudaError_t join_columns<Largest<float>>(const SegmentsLaunch&);

}  // namespace gpureduce::cuda
