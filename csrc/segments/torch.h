// What the files of functions over segments share (torch.cpp, torch_softmax.cpp; exact/torch_segment.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <vector>

#include "../core/problem/segment.h"
#include "../core/torch/batch.h"
#include "../core/torch/plumbing.h"

namespace gpureduce {

// --- checks -----------------------------------------------------------------------------------------------------------------

// The dim of the segments, which must be the first or the last one.
int64_t segment_dim(const char* name, const char* argument, int64_t rank, int64_t dim);

// Raises an error unless these may be offsets of data on this device. Reads no offset.
void check_offsets(const char* name, const at::Tensor& offsets, c10::Device device);

// Raises an error that names the first offset that is less than the one before or outside of the entries. Returns true if the
// offsets look like lengths.
bool check_values(const Segments& s, const char* function);

// The offsets as kernels read them, after the checks of their values. On a GPU the kernels check them as they read; on the CPU
// they are a copy, as the caller's may change after the check. warns: of lengths.
at::Tensor checked_ends(const char* name, const at::Tensor& data, const at::Tensor& offsets, int64_t dim, bool warns);

// --- parts of kernels, below autograd, for checked offsets ------------------------------------------------------------------

// The tensor's sizes, but with `size` along `dim`.
template <class Int>
SizesOf<Int> with_size(const at::Tensor& tensor, int64_t dim, Int size) {
  SizesOf<Int> sizes(sizes_of<Int>(tensor).begin(), sizes_of<Int>(tensor).end());
  sizes[dim] = std::move(size);
  return sizes;
}

// A call as backends see it, of data that is not empty. `out` has its results.
Segments make_segments(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out);

// Runs the kernels of a device.
void run_segments(const Segments& segments, at::Device device);

// The results of segments, in a new tensor.
at::Tensor reduce_segments(Operation op, const at::Tensor& data, const at::Tensor& ends, int64_t dim, at::ScalarType dtype);

// Writes the correctly rounded sums of segments to a floating or complex `out` (exact/torch_segment.cpp).
void add_segments_exactly(const at::Tensor& data, const at::Tensor& ends, int64_t dim, const at::Tensor& out);

// Gives a tensor of one dim as many as `rank`; it lies along `dim`.
inline at::Tensor along(at::Tensor x, int64_t dim, int64_t rank) {
  for (int64_t i = 0; i < rank; ++i)
    if (i != dim) x = x.unsqueeze(i < dim ? 0 : -1);
  return x;
}

// To which segment each place along the dim belongs.
class SegmentPlaces {
 public:
  SegmentPlaces(const at::Tensor& offsets, int64_t size, int64_t dim, int64_t rank);

  // From (..., segments, ...) to (..., size, ...): each element gets the value of its segment, or 0 outside of all segments.
  at::Tensor select(const at::Tensor& values) const;

  // (..., size, ...) of bool, with sizes 1 beside it: true inside of segments.
  at::Tensor inside() const { return along(number_.ge(0), dim_, rank_); }

 private:
  int64_t dim_, rank_, size_, count_;
  at::Tensor number_;
};

// The largest element m of each segment, and the sum of e^(x - m), both of type `computed`.
struct SegmentExponentials { at::Tensor largest, sums; };
SegmentExponentials segment_exponentials(const at::Tensor& data, const at::Tensor& ends, int64_t dim, at::ScalarType computed);

// --- calls of operators, which have derivatives -----------------------------------------------------------------------------

at::Tensor call_segment_sum(const at::Tensor& data, const at::Tensor& offsets, int64_t dim, OptionalDtype dtype = {});
at::Tensor call_segment_spread(const at::Tensor& input, const at::Tensor& offsets, c10::SymInt size, int64_t dim);

// Divides each segment's value by the segment's length; gives 0 for an empty segment.
at::Tensor over_lengths(const at::Tensor& grad, const at::Tensor& offsets, int64_t dim, at::ScalarType dtype);

// As SegmentPlaces::inside().
at::Tensor inside_segments(const at::Tensor& offsets, c10::SymInt size, int64_t dim, int64_t rank);

// --- vmap -------------------------------------------------------------------------------------------------------------------

// A batch of calls of `f(inputs, offsets, dim)`. If the offsets are batched, there is one call per batch element. Otherwise
// there is one call: the batch becomes the last dim if segments lie along the first one, otherwise the first.
template <size_t n, class F>
at::Tensor batched_segments(const char* name, const std::array<at::Tensor, n>& given, const at::Tensor& offsets, int64_t dim,
                            F f) {
  const c10::impl::ExcludeDispatchKeyGuard below(Key::FuncTorchBatched);
  const int64_t level = current_level(name);
  const Unwrapped<1> ends({offsets}, level);
  const Unwrapped<n> all(given, level);
  auto [inputs, where, first] = all;
  if (ends.first)
    return call_per_element(std::string(name) + ": offsets", ends.size(), level,
                            [&](int64_t i) { return f(all.at(i), ends.at(i)[0], dim); });
  if (!first) return f(inputs, ends.inputs[0], dim);
  const int64_t batch = *where[*first], rank = inputs[*first].dim() - 1, d = segment_dim(name, "data", rank, dim);
  const bool in_front = d == rank - 1 && (d > 0 || batch == 0);
  const c10::SymInt size = all.size();
  for (size_t i = 0; i < n; ++i) {
    if (where[i]) {
      inputs[i] = inputs[i].movedim(*where[i], in_front ? 0 : -1);
    } else {
      inputs[i] = inputs[i].unsqueeze(in_front ? 0 : -1);
      std::vector<c10::SymInt> sizes = inputs[i].sym_sizes().vec();
      (in_front ? sizes.front() : sizes.back()) = size;
      inputs[i] = inputs[i].expand_symint(sizes);
    }
  }
  return with_batch(f(inputs, ends.inputs[0], in_front ? -1 : 0), in_front ? 0 : rank, level);
}

}  // namespace gpureduce
