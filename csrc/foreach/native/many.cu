#include "../../core/cuda/launch.h"
#include "../many.cuh"

namespace gpureduce::cuda {

namespace {

template <class Element, class Acc, int kCapacity>
cudaError_t run_with_room(const Many& many, const ManyPlan& plan) {
  const Arrays& given = many.arrays;
  ManyArgs<Acc, kCapacity> args;
  ManyTiles<Acc, kCapacity>& tiles = args.tiles;
  args.tile_chunks = plan.tile_chunks;
  uint32_t next = 0;
  for (int i = 0; i < given.count; ++i) {
    args.data[i] = given.arrays[i].data;
    args.length[i] = given.arrays[i].length;
    tiles.first[i] = next;
    next += static_cast<uint32_t>(tiles_of(given.arrays[i], plan.tile_chunks));
  }
  tiles.first[given.count] = next;
  tiles.count = given.count;
  tiles.partials = plan.most > 1 ? static_cast<Acc*>(many.workspace) : nullptr;
  tiles.results = many.results;
  tiles.out = given.out;
  args.policy = l2_policy(plan.streams);
  const auto first = many_arrays<Element, Acc, kCapacity>;
  if (cudaError_t error = start_kernel(many.queue, {next}, kManyWarps * kWarp, 0, first, args)) return error;
  if (plan.most == 1) return cudaSuccess;
  const Grid grid{static_cast<uint32_t>(given.count)};
  return start_kernel(many.queue.next(), grid, plan.join_threads, 0, join_arrays<Acc, kCapacity>, tiles);
}

template <class Element, class Acc>
cudaError_t run_typed(const Many& many, const ManyPlan& plan) {
  switch (plan.room) {
    case kMostArrays / 16: return run_with_room<Element, Acc, kMostArrays / 16>(many, plan);
    case kMostArrays / 4: return run_with_room<Element, Acc, kMostArrays / 4>(many, plan);
    default: return run_with_room<Element, Acc, kMostArrays>(many, plan);
  }
}

}  // namespace

cudaError_t run_many(const Many& many, const ManyPlan& plan) {
  switch (many.arrays.in) {
#define GPUREDUCE_MANY(name, type, kind, accumulator, wide, family)                           \
  case DType::name:                                                                           \
    if constexpr (Kind::kind == Kind::floating && sizeof(type) > 1)                           \
      return run_typed<Mapped<type, Map::square>, Sum<Accumulator::accumulator>>(many, plan); \
    break;
    GPUREDUCE_DTYPES(GPUREDUCE_MANY)
#undef GPUREDUCE_MANY
  }
  return cudaErrorInvalidValue;
}

}  // namespace gpureduce::cuda
