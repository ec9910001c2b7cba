// A sum over ranks, a residual added to it, and the rms_norm of each row, in one kernel: for the few rows of a step that
// decodes.
//
// Two ranks, a row of 4096 bfloat16 elements: 8192 bytes. A block of 512 threads, a vector of eight elements each, writes the
// row into rank 1's memory and waits for rank 1's row. It adds the two and the residual, rounds where all_reduce and rms_norm
// do, and keeps the sums in shared memory. Then each thread is a lane: thread 3 adds the squares of elements 3, 515, 1027, ...,
// 3587. The lanes are joined, nearest neighbours first, and each thread applies the row's number to its eight elements.
//
// A row may have two tiles, which are sent at once, and the next row is sent when this one has arrived. So a slot is free when
// its turn comes: before a row is sent, all of the last row's tiles are here, and their senders have read the row before.
#include <algorithm>

#include "../rows/rows.cuh"
#include "symmetric.cuh"

namespace gpureduce::cuda {

namespace {

using namespace symmetric;

constexpr int kMostTiles = 2;                    // of a row
constexpr int kRowStep = kLanes * kVectorBytes;  // a block has a thread for each lane

struct NormArgs {
  SummedNorm call;
  Peers peers;
};

// An operand of the elements' dtype, or of float32.
template <class T>
__device__ __forceinline__ float number_at(const void* data, bool wide, int64_t i) {
  return wide ? static_cast<const float*>(data)[i] : value(static_cast<const T*>(data)[i]);
}

template <class T, int kRanks>
__global__ void __launch_bounds__(kLanes) add_norm(const __grid_constant__ NormArgs args) {
  constexpr RowFunction f = RowFunction::rms_norm;
  constexpr int V = kVectorBytes / static_cast<int>(sizeof(T)), kVectors = most_vectors(kRanks), kSlotBytes = kVectors * kStep;
  __shared__ float sums[kMostNormed];
  __shared__ float slots[kMostRowWarps];
  const SummedNorm& call = args.call;
  const Peers& peers = args.peers;
  const int channel = static_cast<int>(blockIdx.x), me = peers.rank, thread = static_cast<int>(threadIdx.x);
  const int length = call.length, bytes = length * static_cast<int>(sizeof(T)), tiles = (bytes + kSlotBytes - 1) / kSlotBytes;
  uint32_t* const done = &memory_of(peers, me)->done[channel];
  uint32_t number = *done;
  // The place of a thread's vector in the slots of a row's tiles.
  const auto vector_of = [&](int rank, int from, int at) {
    return slot<kSlotBytes>(peers, rank, channel, number + at / kSlotBytes, from, false) + at % kSlotBytes;
  };

  for (int64_t row = channel; row < call.rows; row += gridDim.x, number += tiles) {
    const char* const in = static_cast<const char*>(call.in) + row * bytes;
    for (int at = thread * kVectorBytes; at < bytes; at += kRowStep) {
      const Packet<T> own = load<T>(in + at, bytes - at);
#pragma unroll
      for (int r = 0; r < kRanks; ++r)
        if (r < peers.ranks && r != me) *reinterpret_cast<uint4*>(vector_of(r, me, at)) = own.whole;
    }
    publish_to_all(peers, &Memory::sent, channel, number + tiles);
    await_all(peers, &Memory::sent, channel, number + tiles);

    for (int at = thread * kVectorBytes; at < bytes; at += kRowStep) {
      Packet<T> rows[kRanks];
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (r == me) rows[r] = load<T>(in + at, bytes - at);
        else rows[r].whole = r < peers.ranks ? __ldcg(reinterpret_cast<const uint4*>(vector_of(me, r, at))) : uint4{};
      }
      const Packet<T> sum = joined<T, float, kRanks>(rows, peers.ranks, false);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int i = at / static_cast<int>(sizeof(T)) + k;
        if (i >= length) break;
        float x = value(sum.at[k]);
        if (call.residual) {
          const int64_t place = row * length + i;
          x = x + number_at<T>(call.residual, call.wide_residual, place);
          if (call.wide_residual) static_cast<float*>(call.sum)[place] = x;
          else x = value(static_cast<T*>(call.sum)[place] = result<T>(x));
        }
        sums[i] = x;
      }
    }
    __syncthreads();

    RowNumbers<float> numbers;
    float waiting[kUnrolledLevels];
    int chunks = 0;
    for (int chunk = 0; chunk < length; chunk += kChunk, ++chunks) {
      float lane = no_addend<float>();
      const int end = min(length, chunk + kChunk);
      for (int i = chunk + thread; i < end; i += kLanes) {
        const float addend = row_addend<f>(RowElement<float>{sums[i], 0, 1, 0}, numbers);
        lane = i < chunk + kLanes ? addend : lane + addend;
      }
      __syncthreads();  // the chunk before has been read from the slots
      float sum = join_row(lane, no_addend<float>(), kLanes, slots, [](float p, float q) { return p + q; });
      carry(waiting, sum, chunks);
    }
    finish_row<f>(numbers, joined(waiting, chunks, no_addend<float>()), length, call.eps);

    char* const out = static_cast<char*>(call.out) + row * bytes;
    for (int at = thread * kVectorBytes; at < bytes; at += kRowStep) {
      Packet<T> applied{uint4{}};
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const int i = at / static_cast<int>(sizeof(T)) + k;
        if (i >= length) break;
        const float weight = call.weight ? number_at<T>(call.weight, call.wide_weight, i) : 1.0f;
        applied.at[k] = result<T>(row_applied<f>(RowElement<float>{sums[i], 0, weight, 0}, numbers));
      }
      store<T>(out + at, bytes - at, applied);
    }
  }
  __syncthreads();
  if (thread == 0) *done = number;
}

template <class T>
const void* kernel_for(int ranks) {
  const auto kernel = ranks <= 2 ? add_norm<T, 2> : ranks <= 4 ? add_norm<T, 4> : add_norm<T, kMostPeers>;
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace

const void* symmetric::norm_kernel_of(DType t, int ranks) {
  switch (t) {
    case DType::Float: return kernel_for<float>(ranks);
    case DType::Half: return kernel_for<Half>(ranks);
    case DType::BFloat16: return kernel_for<BFloat16>(ranks);
    default: return nullptr;
  }
}

bool adds_norms(DType t, int64_t length, int ranks) {
  return norm_kernel_of(t, ranks) && length >= 1 && length <= kMostNormed &&
         length * info(t).size <= int64_t{kMostTiles} * most_vectors(ranks) * kStep;
}

cudaError_t add_ranks_norm(DType t, const SummedNorm& call, const Peers& peers, cudaStream_t stream) {
  if (!adds_norms(t, call.length, peers.ranks)) return cudaErrorNotYetImplemented;
  if (call.rows == 0) return cudaSuccess;
  NormArgs args{call, peers};
  void* arguments[] = {&args};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(call.rows, blocks_of_norm(peers.blocks)));
  return cudaLaunchKernel(norm_kernel_of(t, peers.ranks), dim3(blocks), dim3(kLanes), arguments, 0, stream);
}

}  // namespace gpureduce::cuda
