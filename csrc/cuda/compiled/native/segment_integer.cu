#include "../../schedule/segment_launch.cuh"

namespace gpureduce::cuda {
template cudaError_t segments_of_family<Family::integer>(const SegmentsLaunch&);
}
