// The results of exact_segment_sum, whose operator is defined in segments/torch.cpp: correctly rounded sums of segments.
#include "cpu_segment.h"

#include <ATen/ATen.h>

#ifdef GPUREDUCE_WITH_CUDA
#include "segment.h"
#endif

#include "../core/plan/exact.h"
#include "../core/plan/segments.h"
#include "../core/torch/explain.h"
#include "../core/torch/workspace.h"
#include "../segments/torch.h"

namespace gpureduce {

namespace {

void run(const Segments& segments, at::Device device) {
  if (Explanation* const e = explanation())
    return e->tell(
        device, "exact " + cuda::text_of(segments), "task",
        [&](const Device& gpu) { return cuda::plan_exact_segments(segments, gpu).str(segments); },
        [&] { cpu::run_exact_segments(segments); });
#ifdef GPUREDUCE_WITH_CUDA
  if (device.is_cuda()) {
    const Device& facts = cuda::facts(device);
    const cuda::ExactSegmentPlan plan = cuda::plan_exact_segments(segments, facts);
    return cuda::with_workspace(device, plan.workspace_bytes, [&](void* workspace, cudaStream_t stream) {
      return cuda::run_exact_segments(segments, plan, workspace, facts, stream);
    });
  }
#endif
  cpu::run_exact_segments(segments);
}

}  // namespace

void add_segments_exactly(const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out) {
  if (out.numel() == 0) return;
  if (data.numel() == 0) {
    out.zero_();
    return;
  }
  by_parts(data, out, [&](const at::Tensor& given, const at::Tensor& to) {
    const at::Tensor x = given.is_floating_point() ? given : given.resolve_neg();  // a negated integer wraps
    run(make_segments(Operation::sum, x, ends, dim, to), x.device());
  });
}

}  // namespace gpureduce
