// Rung 37, engine. Chapter 6: where it leads.
//
// threads   Whole 16-byte vectors, eight in flight a thread; a warp joins in registers, a block in shared memory, the grid in a
//           second, small kernel: docs/design.md.
// idea      The last rung's pieces, put together so that the order of additions is fixed and does not depend on the GPU.
// removes   The atomics: the same bits in every run, on every device.
// wrong     See docs/performance.md for where others are faster.
// requires  Nothing.
// source    This library: torch.ops.gpureduce.sum
// faster    no: not at 2^24 elements, where it has a second launch in place of multi_element's atomics, and a first
//           kernel that reads a little more slowly; docs/performance.md has other sizes.
// command   python -m torch_reduce.ladder run --rungs multi_element,engine --profile
#include <ATen/core/dispatch/Dispatcher.h>

#include "tensors.h"

namespace gpureduce::ladder {

namespace {

int run(const Call& call) {
  using Sum = at::Tensor&(const at::Tensor&, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>, at::Tensor&);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gpureduce::sum", "out").typed<Sum>();
  at::Tensor out = output_of(call);
  op.call(input_of(call), std::nullopt, false, out.scalar_type(), out);
  return 0;
}

// Differs from the lesson: there is none.

const Register rung("engine", from_library(run));

}  // namespace

}  // namespace gpureduce::ladder
