#include "../typed.cuh"

namespace gpureduce::cuda {
template cudaError_t segments_of_family<Family::half>(const SegmentsLaunch&);
}
