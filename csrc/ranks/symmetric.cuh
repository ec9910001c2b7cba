// Kernels that write into the memory of other GPUs: how they signal, and where messages lie (symmetric.cu has an example).
#pragma once

#include "../core/numeric/finish.h"
#include "agreement.h"
#include "symmetric.h"

// As in expect_agreement.cu.
extern "C" __host__ __device__ void __assert_fail(const char* assertion, const char* file, unsigned int line,
                                                  const char* function) noexcept __attribute__((__noreturn__));

namespace gpureduce::cuda::symmetric {

constexpr int kThreads = 256, kVectorBytes = 16;
constexpr int kStep = kThreads * kVectorBytes;  // bytes between the vectors of a thread
constexpr int kChannels = kMostBlocks;          // of sums. One more channel gathers.
constexpr int kStages = 4;

// The most vectors of a thread in a tile: all ranks' slots together have about as many bytes for any number of ranks.
__host__ __device__ constexpr int most_vectors(int ranks) { return ranks <= 2 ? 4 : 2; }

// A rank's memory, in this order.
struct Memory {
  uint32_t done[kChannels + 1];                           // tiles that this rank's block has taken
  alignas(128) uint32_t sent[kChannels + 1][kMostPeers];  // tiles that have arrived, by the rank that has sent them
  alignas(128) uint32_t given[kChannels][kMostPeers];     // sums that have arrived, by the rank that has given them
  uint32_t taken[kChannels];                              // sums that this rank's block has taken of each other rank
  alignas(128) char messages[kStages][kMostPeers][kMostGathered];
};

// After it: kChannels x kStages x ranks slots for tiles, and as many for sums.
__host__ __device__ constexpr int64_t slots_of(int ranks) { return int64_t{kChannels} * kStages * ranks; }

__device__ __forceinline__ Memory* memory_of(const Peers& peers, int rank) {
  return reinterpret_cast<Memory*>(peers.memory[rank]);
}

// The slot in `rank`'s memory for the tile `number` of a channel from rank `from`; or for its sum.
template <int slot_bytes>
__device__ __forceinline__ char* slot(const Peers& peers, int rank, int channel, uint32_t number, int from, bool is_sum) {
  const int64_t place = (int64_t{channel} * kStages + number % kStages) * peers.ranks + from;
  return peers.memory[rank] + sizeof(Memory) + ((is_sum ? slots_of(peers.ranks) : 0) + place) * slot_bytes;
}

// All that a thread has seen or written before, also through a barrier of its block, is seen by who reads the word.
__device__ __forceinline__ void publish(uint32_t* word, uint32_t number) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(number) : "memory");
}
__device__ __forceinline__ uint32_t read(const uint32_t* word) {
  uint32_t number;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(number) : "l"(word) : "memory");
  return number;
}
__device__ __forceinline__ int64_t nanoseconds() {
  int64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__device__ __noinline__ static void give_up(const Peers& peers, int rank) {
  char text[200];
  Line line{text};
  line.add("torch_reduce.distributed: rank ", 100);
  line.add(peers.rank);
  line.add(" has waited ", 100);
  line.add(peers.patience / 1'000'000'000);
  line.add(" seconds for rank ", 100);
  line.add(rank);
  *line.to = '\0';
  __assert_fail(text, "csrc/ranks/symmetric.cu", __LINE__, "await");
}

// Waits for what a word counts; numbers wrap.
__device__ __forceinline__ void await(const uint32_t* word, uint32_t number, const Peers& peers, int rank) {
  const int64_t begin = nanoseconds();
  for (uint32_t tries = 1; static_cast<int32_t>(read(word) - number) < 0; ++tries) {
    if (tries % 1024 == 0 && nanoseconds() - begin > peers.patience) give_up(peers, rank);
  }
}

// A block of a channel. `words` are `sent` or `given`: each thread below the number of ranks speaks to one of them.
template <class Words>
__device__ __forceinline__ void publish_to_all(const Peers& peers, Words words, int channel, uint32_t number) {
  const int rank = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (rank < peers.ranks && rank != peers.rank) publish(&(memory_of(peers, rank)->*words)[channel][peers.rank], number);
}
template <class Words>
__device__ __forceinline__ void await_all(const Peers& peers, Words words, int channel, uint32_t number) {
  const int rank = static_cast<int>(threadIdx.x);
  if (rank < peers.ranks && rank != peers.rank)
    await(&(memory_of(peers, peers.rank)->*words)[channel][rank], number, peers, rank);
  __syncthreads();
}

// Loads and stores 16 bytes of elements at any address: the first `left` bytes of them, if these are fewer.
template <class T>
union Packet {
  uint4 whole;
  T at[kVectorBytes / sizeof(T)];
};
template <class T>
__device__ __forceinline__ Packet<T> load(const char* from, int64_t left) {
  Packet<T> vector{uint4{}};
  if (left >= kVectorBytes && reinterpret_cast<uintptr_t>(from) % kVectorBytes == 0) {
    vector.whole = *reinterpret_cast<const uint4*>(from);
  } else {
#pragma unroll
    for (int k = 0; k < kVectorBytes / static_cast<int>(sizeof(T)); ++k) {
      if (k * static_cast<int>(sizeof(T)) < left) vector.at[k] = reinterpret_cast<const T*>(from)[k];
    }
  }
  return vector;
}
template <class T>
__device__ __forceinline__ void store(char* to, int64_t left, const Packet<T>& vector) {
  if (left >= kVectorBytes && reinterpret_cast<uintptr_t>(to) % kVectorBytes == 0) {
    *reinterpret_cast<uint4*>(to) = vector.whole;
  } else {
#pragma unroll
    for (int k = 0; k < kVectorBytes / static_cast<int>(sizeof(T)); ++k) {
      if (k * static_cast<int>(sizeof(T)) < left) reinterpret_cast<T*>(to)[k] = vector.at[k];
    }
  }
}

// Ranks 5: (0 + 1) + (2 + 3) is joined to 4.
template <class T, class Acc, int kRanks>
__device__ __forceinline__ Packet<T> joined(const Packet<T> (&rows)[kRanks], int ranks, bool averages) {
  Packet<T> sum;
#pragma unroll
  for (int k = 0; k < kVectorBytes / static_cast<int>(sizeof(T)); ++k) {
    Acc values[kRanks];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) values[r] = addend<Acc>(rows[r].at[k]);
#pragma unroll
    for (int step = 1; step < kRanks; step *= 2) {
#pragma unroll
      for (int r = 0; r + step < kRanks; r += 2 * step) {
        if (r + step < ranks) values[r] = values[r] + values[r + step];
      }
    }
    if constexpr (std::is_floating_point_v<Acc>) {
      if (averages) values[0] = quotient(values[0], ranks);
    }
    sum.at[k] = result<T>(values[0]);
  }
  return sum;
}

// The kernel of a norm (symmetric_norm.cu); null if there is none. It has half as many blocks as a plain sum, for a block
// needs more shared memory.
const void* norm_kernel_of(DType t, int ranks);
inline int blocks_of_norm(int blocks) { return blocks > 1 ? blocks / 2 : 1; }

}  // namespace gpureduce::cuda::symmetric
