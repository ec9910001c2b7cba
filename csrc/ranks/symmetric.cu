// Sums over ranks by kernels that write into the memory of other GPUs: what is exchanged is added as it arrives.
//
// Two ranks, Adding::all, 10,000 bytes: a tile has 4,096, so there are 3 tiles, and 3 blocks take one each. Block 1 of rank 0
// writes its bytes 4,096 to 8,191 into a slot in rank 1's memory, and then the number 1 into rank 1's word "block 1 has this
// many tiles of rank 0". It waits until its own word says that rank 1's tile has arrived here, adds the two tiles, rank 0's
// first, and writes the sum. A block with several tiles sends the next one before it waits.
//
// No message says that a slot may be written again. A block has four slots for each rank, and takes them in turn. Before it
// sends its tile k, it has waited for the others' tiles up to k - 2. Each other rank had read all tiles up to k - 4 when it
// sent its tile k - 2. So the slot of tile k - 4 is free. The numbers of tiles go on from call to call. Only Adding::shared
// gives sums, and they are counted apart: else a word that no other call writes would fall behind the tiles, and after 2^31
// of them seem to be ahead.
#include <algorithm>
#include <iterator>

#include "symmetric.cuh"

namespace gpureduce::cuda {

namespace {

using namespace symmetric;

struct Args {
  const char* in;
  char* out;
  int64_t bytes;  // of a piece, if scattered, and otherwise of all
  int64_t tiles;
  int64_t tile_step, rank_step;  // bytes between what a rank adds of one tile and of the next one; between ranks in one tile
  Adding adding;
  bool averages;
  int vectors;  // of a thread in a tile
  Peers peers;

  // The first byte of what `rank` adds of a tile, and how many follow.
  __device__ int64_t place(int64_t tile, int rank) const { return tile * tile_step + rank * rank_step; }
  __device__ int64_t left(int64_t tile, int rank) const {
    return bytes - (adding == Adding::scattered ? tile * tile_step : place(tile, rank));
  }
};

// kRanks: at most so many. Four blocks share a multiprocessor, so that another call finds room beside one that waits.
template <class T, class Acc, int kRanks>
__global__ void __launch_bounds__(kThreads, 4) add(const __grid_constant__ Args args) {
  const Peers& peers = args.peers;
  const int channel = static_cast<int>(blockIdx.x), me = peers.rank;
  const int first_byte = static_cast<int>(threadIdx.x) * kVectorBytes;
  constexpr int kVectors = most_vectors(kRanks), kSlotBytes = kVectors * kStep;

  const auto send = [&](int64_t tile, uint32_t number) {
#pragma unroll
    for (int k = 0; k < kRanks; ++k) {  // each rank begins with another one
      const int rank = me + k + 1 < peers.ranks ? me + k + 1 : me + k + 1 - peers.ranks;
      if (k + 1 >= peers.ranks) break;
      const char* from = args.in + args.place(tile, rank) + first_byte;
      const int64_t left = args.left(tile, rank) - first_byte;
      char* to = slot<kSlotBytes>(peers, rank, channel, number, me, false) + first_byte;
      Packet<T> vectors[kVectors];
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (v < args.vectors) vectors[v] = load<T>(from + v * kStep, left - v * kStep);
      }
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (v < args.vectors && left > v * kStep) *reinterpret_cast<uint4*>(to + v * kStep) = vectors[v].whole;
      }
    }
    publish_to_all(peers, &Memory::sent, channel, number + 1);
  };

  // `sums`: how many this block has given before.
  const auto join = [&](int64_t tile, uint32_t number, uint32_t sums) {
    await_all(peers, &Memory::sent, channel, number + 1);
    const int64_t left = args.left(tile, me) - first_byte;
    const char* own = args.in + args.place(tile, me) + first_byte;
    char* to = args.out + (args.adding == Adding::scattered ? tile * args.tile_step : args.place(tile, me)) + first_byte;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v >= args.vectors || left <= v * kStep) break;
      Packet<T> rows[kRanks];
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (r == me) rows[r] = load<T>(own + v * kStep, left - v * kStep);
        else if (r < peers.ranks)
          rows[r].whole = __ldcg(
              reinterpret_cast<const uint4*>(slot<kSlotBytes>(peers, me, channel, number, r, false) + first_byte + v * kStep));
        else rows[r].whole = uint4{};
      }
      const Packet<T> sum = joined<T, Acc, kRanks>(rows, peers.ranks, args.averages);
      store<T>(to + v * kStep, left - v * kStep, sum);
      if (args.adding != Adding::shared) continue;
#pragma unroll
      for (int r = 0; r < kRanks; ++r) {
        if (r < peers.ranks && r != me)
          *reinterpret_cast<uint4*>(slot<kSlotBytes>(peers, r, channel, number, me, true) + first_byte + v * kStep) = sum.whole;
      }
    }
    if (args.adding == Adding::shared) publish_to_all(peers, &Memory::given, channel, sums + 1);
  };

  const auto take = [&](int64_t tile, uint32_t number, uint32_t sums) {
    await_all(peers, &Memory::given, channel, sums + 1);
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (r >= peers.ranks || r == me) continue;
      const int64_t left = args.left(tile, r) - first_byte;
      char* to = args.out + args.place(tile, r) + first_byte;
      const char* from = slot<kSlotBytes>(peers, me, channel, number, r, true) + first_byte;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (v >= args.vectors || left <= v * kStep) break;
        store<T>(to + v * kStep, left - v * kStep, Packet<T>{__ldcg(reinterpret_cast<const uint4*>(from + v * kStep))});
      }
    }
  };

  uint32_t* const done = &memory_of(peers, me)->done[channel];
  uint32_t* const taken = &memory_of(peers, me)->taken[channel];
  const uint32_t first = *done, first_sum = *taken;
  const int64_t step = gridDim.x, count = (args.tiles - channel + step - 1) / step;
  for (int64_t k = 0; k < count + 2; ++k) {
    const auto number = static_cast<uint32_t>(first + k), sums = static_cast<uint32_t>(first_sum + k);
    if (k < count) send(channel + k * step, number);
    if (k >= 1 && k - 1 < count) join(channel + (k - 1) * step, number - 1, sums - 1);
    if (k >= 2 && args.adding == Adding::shared) take(channel + (k - 2) * step, number - 2, sums - 2);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  *done = static_cast<uint32_t>(first + count);
  if (args.adding == Adding::shared) *taken = static_cast<uint32_t>(first_sum + count);
}

__global__ void __launch_bounds__(kThreads)
    gather(const char* mine, char* out, int bytes, const __grid_constant__ Peers peers) {
  Memory* const own = memory_of(peers, peers.rank);
  const uint32_t number = own->done[kChannels], stage = number % kStages;
  const int thread = static_cast<int>(threadIdx.x);
  for (int rank = 0; rank < peers.ranks; ++rank) {
    for (int k = thread; k < bytes; k += kThreads) memory_of(peers, rank)->messages[stage][peers.rank][k] = mine[k];
  }
  publish_to_all(peers, &Memory::sent, kChannels, number + 1);
  await_all(peers, &Memory::sent, kChannels, number + 1);
  for (int rank = 0; rank < peers.ranks; ++rank) {
    for (int k = thread; k < bytes; k += kThreads) {
      out[rank * bytes + k] = static_cast<volatile char*>(own->messages[stage][rank])[k];
    }
  }
  if (thread == 0) own->done[kChannels] = number + 1;
}

template <class T, class Acc>
const void* kernel_for(int ranks) {
  const auto kernel = ranks <= 2 ? add<T, Acc, 2> : ranks <= 4 ? add<T, Acc, 4> : add<T, Acc, kMostPeers>;
  return reinterpret_cast<const void*>(kernel);
}
const void* kernel_of(DType t, int ranks) {
  switch (t) {
    case DType::Float: return kernel_for<float, float>(ranks);
    case DType::Half: return kernel_for<Half, float>(ranks);
    case DType::BFloat16: return kernel_for<BFloat16, float>(ranks);
    case DType::Double: return kernel_for<double, double>(ranks);
    case DType::Int: return kernel_for<int32_t, int64_t>(ranks);
    case DType::Long: return kernel_for<int64_t, int64_t>(ranks);
    default: return nullptr;
  }
}

}  // namespace

int64_t symmetric_bytes(int ranks) {
  return static_cast<int64_t>(sizeof(Memory)) + 2 * slots_of(ranks) * most_vectors(ranks) * kStep;
}

bool adds_ranks(DType t) { return kernel_of(t, 2) != nullptr; }

cudaError_t symmetric_blocks(int ranks, int& blocks) {
  int device = 0, processors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)) return error;
  blocks = kChannels;
  // A call of `blocks` blocks launches blocks / share of the kernel, or one.
  const auto limit = [&](const void* kernel, int threads, int share) {
    int resident = 0;
    if (!kernel) return cudaSuccess;
    const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, 0);
    blocks = std::min(blocks, std::max(1, processors * resident / 2 * share));
    return error;
  };
  for (int t = 0; t < static_cast<int>(std::size(kDTypes)); ++t) {
    const auto type = static_cast<DType>(t);
    if (const cudaError_t error = limit(kernel_of(type, ranks), kThreads, 1)) return error;
    if (const cudaError_t error = limit(norm_kernel_of(type, ranks), kLanes, 2)) return error;
  }
  return cudaSuccess;
}

cudaError_t add_ranks(Adding adding, DType t, bool averages, const void* in, void* out, int64_t count, const Peers& peers,
                      cudaStream_t stream) {
  const void* const kernel = kernel_of(t, peers.ranks);
  if (!kernel) return cudaErrorNotYetImplemented;
  if (count == 0) return cudaSuccess;
  const int64_t bytes = count * info(t).size, pieces = adding == Adding::shared ? peers.ranks : 1;
  int vectors = 1;  // more only if there are no more blocks
  while (vectors < most_vectors(peers.ranks) && bytes > pieces * peers.blocks * vectors * kStep) vectors *= 2;
  const int64_t tile = vectors * kStep, step = pieces * tile, tiles = (bytes + step - 1) / step;
  const int64_t rank_step = adding == Adding::all ? 0 : adding == Adding::shared ? tile : bytes;
  Args args{
      static_cast<const char*>(in), static_cast<char*>(out), bytes, tiles, step, rank_step, adding, averages, vectors, peers};
  void* arguments[] = {&args};
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles, peers.blocks));
  return cudaLaunchKernel(kernel, dim3(blocks), dim3(kThreads), arguments, 0, stream);
}

cudaError_t gather_ranks(const void* mine, void* out, int bytes, const Peers& peers, cudaStream_t stream) {
  gather<<<1, kThreads, 0, stream>>>(static_cast<const char*>(mine), static_cast<char*>(out), bytes, peers);
  return cudaGetLastError();
}

}  // namespace gpureduce::cuda
