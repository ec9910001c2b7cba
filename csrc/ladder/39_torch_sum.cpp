// Rung 39, torch_sum. Chapter 6: where it leads.
//
// threads   PyTorch's Reduce.cuh: vectors of four elements a thread, warps by shuffles, blocks by shared memory, the grid by a
//           semaphore that lets the last block join the others' results.
// idea      One general kernel for every reduction over any strides.
// removes   The second launch.
// wrong     The order of additions depends on shapes and on the GPU.
// requires  Nothing.
// source    PyTorch: torch.sum
// faster    no: its general kernel runs more instructions a warp, and reads more slowly at this size.
// command   python -m torch_reduce.ladder run --rungs engine,torch_sum --profile
#include <ATen/ops/sum.h>

#include "tensors.h"

namespace gpureduce::ladder {

namespace {

int run(const Call& call) {
  at::Tensor out = output_of(call);
  at::sum_out(out, input_of(call), at::OptionalIntArrayRef(), false, out.scalar_type());
  return 0;
}

// Differs from the lesson: there is none. The result has the input's dtype, as everywhere on the ladder.

const Register rung("torch_sum", from_library(run));

}  // namespace

}  // namespace gpureduce::ladder
