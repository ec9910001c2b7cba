#include "many.h"

#include <sstream>

#include "units.h"

namespace gpureduce::cuda {

namespace {

constexpr int kTilesOfEach = 32;  // per multiprocessor: with more tiles than this, tiles are made larger

int64_t all_tiles(const Arrays& arrays, int tile_chunks) {
  int64_t tiles = 0;
  for (int i = 0; i < arrays.count; ++i) tiles += tiles_of(arrays.arrays[i], tile_chunks);
  return tiles;
}

}  // namespace

ManyPlan plan_many(const Arrays& arrays, const Device& device) {
  ManyPlan plan;
  // Tiles grow until there are at most kTilesOfEach per multiprocessor, or up to kMostTileChunks.
  const int64_t enough = int64_t{kTilesOfEach} * device.multiprocessors;
  while (plan.tile_chunks < kMostTileChunks && all_tiles(arrays, plan.tile_chunks) > enough) plan.tile_chunks *= 2;
  for (const int room : {kMostArrays / 4, kMostArrays / 16})
    if (arrays.count <= room) plan.room = room;
  for (int i = 0; i < arrays.count; ++i) {
    const int64_t own = tiles_of(arrays.arrays[i], plan.tile_chunks);
    plan.tiles += own;
    plan.most = std::max(plan.most, own);
    plan.bytes += arrays.arrays[i].length * info(arrays.in).size;
  }
  plan.streams = plan.bytes > device.l2_bytes / 4;
  while (plan.join_threads < 1024 && plan.join_threads * kJoinRun < plan.most) plan.join_threads *= 2;
  plan.workspace_bytes = plan.tiles * size_of(info(arrays.in).accumulator);
  return plan;
}

bool takes_many(DType in, DType out, Map map) {
  const Accumulator accumulator = info(in).accumulator;
  return map == Map::square && is_compiled(map, accumulator, in) && is_native(accumulator, out);
}

std::string ManyPlan::str(const Arrays& arrays) const {
  std::ostringstream s;
  s << "kernel many_arrays: " << tile_chunks << (tile_chunks == 1 ? " chunk" : " chunks") << " of 4096 elements per tile"
    << (streams ? ", streamed through the L2" : "") << "\nblock: " << kManyWarps * kWarp << " threads, a tile; grid " << tiles;
  if (most > 1)
    s << "\nkernel join_arrays: up to " << most << " tiles of an array\nblock: " << join_threads << " threads, an array; grid "
      << arrays.count;
  s << "\nworkspace: " << workspace_bytes << " bytes; must move: " << bytes << " bytes";
  return s.str();
}

}  // namespace gpureduce::cuda
