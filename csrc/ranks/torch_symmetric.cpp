// Private ops of torch_reduce.distributed: sums over ranks whose GPUs write into each other's memory.
#ifdef GPUREDUCE_WITH_CUDA
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "../core/torch/backend.h"
#include "symmetric.h"

namespace gpureduce {

namespace {

// The ranks' memory, after checks. `memory` has a tensor for each rank, which lies in its GPU.
cuda::Peers peers_of(const char* name, const at::Tensor& x, at::TensorList memory, int64_t rank, int64_t blocks,
                     int64_t patience) {
  const auto ranks = static_cast<int>(memory.size());
  TORCH_CHECK(ranks >= 2 && ranks <= cuda::kMostPeers, name, ": memory: expected 2 to ", cuda::kMostPeers, " ranks, but got ",
              ranks);
  TORCH_CHECK(rank >= 0 && rank < ranks, name, ": rank: expected 0 to ", ranks - 1, ", but got ", rank);
  TORCH_CHECK(blocks >= 1 && blocks <= cuda::kMostBlocks, name, ": blocks: expected 1 to ", cuda::kMostBlocks, ", but got ",
              blocks);
  TORCH_CHECK(patience >= 0, name, ": patience: expected nanoseconds, but got ", patience);
  cuda::Peers peers{{}, ranks, static_cast<int>(rank), static_cast<int>(blocks), patience};
  for (int r = 0; r < ranks; ++r) {
    const at::Tensor& each = memory[r];
    TORCH_CHECK(each.device() == x.device() && each.scalar_type() == at::kByte && each.is_contiguous() &&
                    each.numel() >= cuda::symmetric_bytes(ranks) &&
                    reinterpret_cast<uintptr_t>(each.const_data_ptr()) % 128 == 0,
                name, ": memory: expected ", cuda::symmetric_bytes(ranks), " bytes of each rank on ", x.device());
    peers.memory[r] = static_cast<char*>(each.data_ptr());
  }
  return peers;
}

void check_plain(const char* name, const char* argument, const at::Tensor& x) {
  TORCH_CHECK(x.is_cuda() && x.layout() == at::kStrided && x.is_contiguous() && !x.is_conj() && !x.is_neg(), name, ": ",
              argument, ": expected a contiguous tensor on an NVIDIA GPU");
}

void add_ranks(const at::Tensor& input, const at::Tensor& output, at::TensorList memory, int64_t rank,
               const std::string& adding, bool averages, int64_t blocks, int64_t patience) {
  const char* const name = "_add_ranks";
  check_plain(name, "input", input);
  check_plain(name, "output", output);
  const cuda::Peers peers = peers_of(name, input, memory, rank, blocks, patience);
  const bool scatters = adding == "scattered";
  TORCH_CHECK(scatters || adding == "all" || adding == "shared", name, ": adding: expected all, shared or scattered, but got ",
              adding);
  const DType t = dtype_of(input.scalar_type(), "a tensor of dtype", name);
  TORCH_CHECK(cuda::adds_ranks(t), name, ": input: there is no kernel for ", input.scalar_type());
  TORCH_CHECK(!averages || input.is_floating_point(), name, ": averages: expected a floating dtype");
  TORCH_CHECK(output.device() == input.device() && output.scalar_type() == input.scalar_type() &&
                  input.numel() == output.numel() * (scatters ? peers.ranks : 1),
              name, ": output: it does not fit the input");
  const c10::cuda::CUDAGuard guard(input.device());
  C10_CUDA_CHECK(cuda::add_ranks(scatters          ? cuda::Adding::scattered
                                 : adding == "all" ? cuda::Adding::all
                                                   : cuda::Adding::shared,
                                 t, averages, input.const_data_ptr(), output.mutable_data_ptr(), output.numel(), peers,
                                 c10::cuda::getCurrentCUDAStream()));
}

// The rms_norm of each row of a sum over ranks, and the sum with a residual: of no elements, if there is none.
std::tuple<at::Tensor, at::Tensor> add_ranks_norm(const at::Tensor& input, const OptionalTensor& given_residual,
                                                  const OptionalTensor& given_weight, double eps, at::TensorList memory,
                                                  int64_t rank, int64_t blocks, int64_t patience) {
  const char* const name = "_add_ranks_norm";
  const at::Tensor residual = tensor_of(given_residual), weight = tensor_of(given_weight);
  check_plain(name, "input", input);
  const cuda::Peers peers = peers_of(name, input, memory, rank, blocks, patience);
  const DType t = dtype_of(input.scalar_type(), "a tensor of dtype", name);
  TORCH_CHECK(input.dim() >= 1, name, ": input: expected at least one dim");
  const int64_t length = input.size(-1);
  TORCH_CHECK(cuda::adds_norms(t, length, peers.ranks), name, ": input: there is no kernel for rows of ", length, " of ",
              input.scalar_type());
  const auto check = [&](const char* argument, const at::Tensor& x, at::IntArrayRef sizes) {
    if (!x.defined()) return false;
    check_plain(name, argument, x);
    TORCH_CHECK(x.device() == input.device() && x.sizes() == sizes &&
                    (x.scalar_type() == input.scalar_type() || x.scalar_type() == at::kFloat),
                name, ": ", argument, ": it does not fit the input");
    return x.scalar_type() != input.scalar_type();
  };
  cuda::SummedNorm call{};
  call.wide_residual = check("residual", residual, input.sizes());
  call.wide_weight = check("weight", weight, input.sizes().slice(input.dim() - 1));
  const c10::cuda::CUDAGuard guard(input.device());
  const at::Tensor out = at::empty(input.sizes(), input.options());
  const at::Tensor sum = residual.defined() ? at::empty(residual.sizes(), residual.options()) : at::empty({0}, input.options());
  call.in = input.const_data_ptr();
  call.residual = residual.defined() ? residual.const_data_ptr() : nullptr;
  call.weight = weight.defined() ? weight.const_data_ptr() : nullptr;
  call.out = out.mutable_data_ptr();
  call.sum = sum.mutable_data_ptr();
  call.rows = input.numel() / length;
  call.length = static_cast<int>(length);
  call.eps = eps;
  C10_CUDA_CHECK(cuda::add_ranks_norm(t, call, peers, c10::cuda::getCurrentCUDAStream()));
  return {out, sum};
}

// The ranks' messages, one after the other.
at::Tensor gather_ranks(const at::Tensor& mine, at::TensorList memory, int64_t rank, int64_t patience) {
  const char* const name = "_gather_ranks";
  check_plain(name, "mine", mine);
  const cuda::Peers peers = peers_of(name, mine, memory, rank, 1, patience);
  TORCH_CHECK(mine.scalar_type() == at::kByte && mine.numel() <= cuda::kMostGathered, name, ": mine: expected at most ",
              cuda::kMostGathered, " bytes");
  at::Tensor all = at::empty({mine.numel() * peers.ranks}, mine.options());
  if (all.numel() == 0) return all;
  const c10::cuda::CUDAGuard guard(mine.device());
  C10_CUDA_CHECK(cuda::gather_ranks(mine.const_data_ptr(), all.mutable_data_ptr(), static_cast<int>(mine.numel()), peers,
                                    c10::cuda::getCurrentCUDAStream()));
  return all;
}

// The bytes that each of so many ranks lends the others, and the most blocks that run at once on the current GPU.
std::tuple<int64_t, int64_t> symmetric_needs(int64_t ranks) {
  TORCH_CHECK(ranks >= 2 && ranks <= cuda::kMostPeers, "_symmetric_needs: ranks: expected 2 to ", cuda::kMostPeers);
  int blocks = 0;
  C10_CUDA_CHECK(cuda::symmetric_blocks(static_cast<int>(ranks), blocks));
  return {cuda::symmetric_bytes(static_cast<int>(ranks)), blocks};
}

// True if one kernel takes the norms of a sum over ranks, of rows of `length` elements.
bool adds_norms(at::ScalarType dtype, int64_t length, int64_t ranks) {
  TORCH_CHECK(ranks >= 2 && ranks <= cuda::kMostPeers, "_adds_norms: ranks: expected 2 to ", cuda::kMostPeers);
  return cuda::adds_norms(dtype_of(dtype, "a tensor of dtype", "_adds_norms", true), length, static_cast<int>(ranks));
}

}  // namespace

}  // namespace gpureduce

TORCH_LIBRARY_FRAGMENT(gpureduce, m) {
  m.def("_adds_norms(ScalarType dtype, int length, int ranks) -> bool", &gpureduce::adds_norms);
  m.def("_symmetric_needs(int ranks) -> (int bytes, int blocks)", &gpureduce::symmetric_needs);
  m.def(
      "_add_ranks(Tensor input, Tensor(a!) output, Tensor(b!)[] memory, int rank, str adding, bool averages, int blocks, int "
      "patience) "
      "-> ()",
      torch::dispatch(c10::DispatchKey::CUDA, &gpureduce::add_ranks));
  m.def(
      "_add_ranks_norm(Tensor input, Tensor? residual, Tensor? weight, float eps, Tensor(a!)[] memory, int rank, int blocks, "
      "int patience) -> (Tensor, Tensor)",
      torch::dispatch(c10::DispatchKey::CUDA, &gpureduce::add_ranks_norm));
  m.def("_gather_ranks(Tensor mine, Tensor(a!)[] memory, int rank, int patience) -> Tensor",
        torch::dispatch(c10::DispatchKey::CUDA, &gpureduce::gather_ranks));
}
#endif
