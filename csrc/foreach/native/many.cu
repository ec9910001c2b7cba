#include <algorithm>

#include "../../core/cuda/launch.h"
#include "../many.cuh"

namespace gpureduce::cuda {

namespace {

constexpr int kTilesOfEach = 32;  // per multiprocessor: with more tiles than this, tiles are made larger

uint32_t tiles_of(int64_t length, int tile_chunks) {
  const int64_t elements = int64_t{tile_chunks} * kChunk;
  return static_cast<uint32_t>(std::max<int64_t>(1, (length + elements - 1) / elements));
}

int64_t tiles_of(const Many& many, int tile_chunks) {
  int64_t tiles = 0;
  for (int i = 0; i < many.count; ++i) tiles += tiles_of(many.arrays[i].length, tile_chunks);
  return tiles;
}

// Chunks per tile: tiles grow until there are at most kTilesOfEach per multiprocessor, or up to kMostTileChunks.
int tile_chunks_of(const Many& many) {
  int chunks = 1;
  while (chunks < kMostTileChunks && tiles_of(many, chunks) > int64_t{kTilesOfEach} * many.multiprocessors) chunks *= 2;
  return chunks;
}

template <class Element, class Acc, int kCapacity>
cudaError_t run_with_room(const Many& many, void* workspace) {
  ManyArgs<Acc, kCapacity> args;
  ManyTiles<Acc, kCapacity>& tiles = args.tiles;
  args.tile_chunks = tile_chunks_of(many);
  int64_t bytes = 0;
  uint32_t next = 0, most = 0;
  for (int i = 0; i < many.count; ++i) {
    args.data[i] = many.arrays[i].data;
    args.length[i] = many.arrays[i].length;
    tiles.first[i] = next;
    const uint32_t array_tiles = tiles_of(many.arrays[i].length, args.tile_chunks);
    next += array_tiles;
    most = std::max(most, array_tiles);
    bytes += many.arrays[i].length * static_cast<int64_t>(sizeof(Element));
  }
  tiles.first[many.count] = next;
  tiles.count = many.count;
  tiles.partials = most > 1 ? static_cast<Acc*>(workspace) : nullptr;
  tiles.results = many.results;
  tiles.out = many.out;
  args.policy = l2_policy(bytes > many.l2_bytes / 4);
  const auto first = many_arrays<Element, Acc, kCapacity>;
  if (cudaError_t error = start_kernel(many.queue, {next}, kManyWarps * kWarp, 0, first, args)) return error;
  if (most == 1) return cudaSuccess;
  int threads = kWarp;
  while (threads < 1024 && static_cast<uint32_t>(threads * kJoinRun) < most) threads *= 2;
  return start_kernel(many.queue.next(), {static_cast<uint32_t>(many.count)}, threads, 0, join_arrays<Acc, kCapacity>, tiles);
}

template <class Element, class Acc>
cudaError_t run_typed(const Many& many, void* workspace) {
  if (many.count <= kMostArrays / 16) return run_with_room<Element, Acc, kMostArrays / 16>(many, workspace);
  if (many.count <= kMostArrays / 4) return run_with_room<Element, Acc, kMostArrays / 4>(many, workspace);
  return run_with_room<Element, Acc, kMostArrays>(many, workspace);
}

}  // namespace

bool takes_many(DType in, DType out, Map map) {
  const Accumulator accumulator = info(in).accumulator;
  return map == Map::square && is_compiled(map, accumulator, in) && is_native(accumulator, out);
}

int64_t workspace_of(const Many& many) { return tiles_of(many, tile_chunks_of(many)) * size_of(info(many.in).accumulator); }

cudaError_t run_many(const Many& many, void* workspace) {
  switch (many.in) {
#define GPUREDUCE_MANY(name, type, kind, accumulator, wide, family)                                \
  case DType::name:                                                                                \
    if constexpr (Kind::kind == Kind::floating && sizeof(type) > 1)                                \
      return run_typed<Mapped<type, Map::square>, Sum<Accumulator::accumulator>>(many, workspace); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_MANY)
#undef GPUREDUCE_MANY
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
