// The backward pass of a norm in one kernel: the gradient of the input, and of weight and bias, which are sums over all rows.
//
// For example rms_norm of 16,384 rows of 4096 bfloat16. The rows are 4 chunks of 512 lanes; lane 5 of chunk 1 has the rows
// 4101, 4613, ..., 7685. A block has 4 groups of 128 threads, and takes 4 neighbouring lanes at a time: as unit 129 the lanes 4
// to 7 of chunk 1, so that its group 1 takes lane 5. Bulk copies bring the lane's rows of x and g into shared memory, one row
// ahead. Thread 3 has the elements 12 to 15, 524 to 527, and so on, 512 apart. It adds up its lanes of the row's sum, which the
// group joins, and writes its 32 elements of the input's gradient; and it adds each element's g * h to one of 32 sums, which
// stay in registers over the 8 rows. Then the block joins the 4 lanes of rows, and writes 4096 partial sums. Another kernel
// joins the partial sums of all 512 units.
#pragma once

#include "../core/cuda/bulk.cuh"
#include "norm_backward.h"
#include "rows.cuh"

namespace gpureduce::cuda {

struct NormBackwardArgs {
  const char *x, *g, *weight;
  const float *mean, *r;
  char* y;
  float* partials;                    // per unit: the weight's, then the bias's
  int64_t x_pitch, g_pitch, y_pitch;  // bytes from row to row
  int64_t rows, units;
  uint64_t policy;
  int length, threads, stages;
  bool float_weight;
};

__device__ __forceinline__ void group_sync(int group, int threads) {
  if (threads == kWarp) __syncwarp();
  else asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// V neighbouring elements per thread, D of them 512 apart.
template <RowFunction f, class T, int V, int D>
__global__ void __launch_bounds__(kNormThreads, norm_blocks(V* D))
    norm_backward_kernel(const __grid_constant__ NormBackwardArgs a) {
#if __CUDA_ARCH__ >= 900
  namespace ptx = ::cuda::ptx;
  using Sum = decltype(row_addend<f, float>({}, {}));
  constexpr bool kCentered = has_mean(f);
  constexpr int kUnits = kLanes / V, P = granule_values<T>(V), kPieces = V / P;
  extern __shared__ __align__(128) char memory[];
  __shared__ uint64_t full_bars[kMostNormGroups * kMostNormStages];
  __shared__ Sum slots[2][kNormThreads / kWarp];
  const int groups = blockDim.x / a.threads, group = threadIdx.x / a.threads, thread = threadIdx.x % a.threads;
  const int row_bytes = a.length * static_cast<int>(sizeof(T)), stage_bytes = 2 * row_bytes;
  char* const ring = memory + group * a.stages * stage_bytes;
  float* const weights = reinterpret_cast<float*>(memory + groups * a.stages * stage_bytes);
  float* const joined = weights + a.length;
  uint64_t* const full = full_bars + group * a.stages;
  wait_for_previous_kernel();
  allow_next_kernel();

  // The group's lane of a unit begins with this row; its others are 512 apart, in the same chunk.
  const auto first_row = [&](int64_t unit) {
    const int64_t lane = unit * groups + group;
    return lane / kLanes * kChunk + lane % kLanes;
  };
  const auto rows_of_lane = [&](int64_t first) {
    return first < a.rows ? static_cast<int>(min((a.rows - first + kLanes - 1) / kLanes, int64_t{kDepth})) : 0;
  };
  // Thread 0 brings the group's rows into the stages, in the order in which they are taken.
  int64_t coming_unit = blockIdx.x;
  int coming_rows = 0, coming_stage = 0;  // rows that are left of the unit before
  const char *coming_x = nullptr, *coming_g = nullptr;
  const auto bring = [&] {
    for (; coming_rows == 0 && coming_unit < a.units; coming_unit += gridDim.x) {
      const int64_t row = first_row(coming_unit);
      coming_rows = rows_of_lane(row);
      coming_x = a.x + row * a.x_pitch;
      coming_g = a.g + row * a.g_pitch;
    }
    if (coming_rows == 0) return;
    char* const to = ring + coming_stage * stage_bytes;
    expect_bytes(full + coming_stage, stage_bytes);
    bulk_copy(to, coming_x, row_bytes, full + coming_stage, a.policy);
    bulk_copy(to + row_bytes, coming_g, row_bytes, full + coming_stage, a.policy);
    coming_x += kLanes * a.x_pitch;
    coming_g += kLanes * a.g_pitch;
    --coming_rows;
    if (++coming_stage == a.stages) coming_stage = 0;
  };
  if (thread == 0) {
    for (int s = 0; s < a.stages; ++s) ptx::mbarrier_init(full + s, 1);
    ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    for (int s = 0; s < a.stages; ++s) bring();
  }
  for (int i = threadIdx.x; i < a.length; i += blockDim.x) {
    weights[i] = !a.weight        ? 1.0f
                 : a.float_weight ? reinterpret_cast<const float*>(a.weight)[i]
                                  : static_cast<float>(value(reinterpret_cast<const T*>(a.weight)[i]));
  }
  __syncthreads();

  const int first = thread / kUnits * kChunk + thread % kUnits * V;  // the thread's first element
  // Calls run(d, p, i) for each piece of up to 16 bytes of the thread, piece p of vector d, which begins with element i. There
  // may be no such element.
  const auto for_pieces = [&](auto run) {
#pragma unroll
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int p = 0; p < kPieces; ++p) run(d, p, first + d * kLanes + p * P);
    }
  };
  const auto exists = [&](int i) { return i < a.length; };
  using Piece = Vector<T, P>;
  float weight_sums[D][V], bias_sums[kCentered ? D : 1][V];
  // Thread k of a warp reads the numbers of the lane's row k, while the lane before is joined.
  float own_r = 0.0f, own_mean = 0.0f;
  const auto read_numbers = [&](int64_t unit) {
    const int64_t row = first_row(unit) + threadIdx.x % kWarp * kLanes;
    if (threadIdx.x % kWarp >= kDepth || row >= a.rows) return;
    own_r = a.r[row];
    if constexpr (kCentered) own_mean = a.mean[row];
  };
  read_numbers(blockIdx.x);
  int stage = 0, turn = 0;
  uint32_t parity = 0;
  for (int64_t unit = blockIdx.x; unit < a.units; unit += gridDim.x) {
    const int64_t first_of_lane = first_row(unit);
    const int rows = rows_of_lane(first_of_lane);
    char* row_y = a.y + first_of_lane * a.y_pitch;
#pragma unroll
    for (int d = 0; d < D; ++d) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        weight_sums[d][j] = -0.0f;
        if constexpr (kCentered) bias_sums[d][j] = -0.0f;
      }
    }
#pragma unroll 1
    for (int n = 0; n < rows; ++n, turn ^= 1, row_y += kLanes * a.y_pitch) {
      RowNumbers<float> row;
      row.r = shuffle(own_r, n);
      if constexpr (kCentered) row.mean = shuffle(own_mean, n);
      const T* const own_x = reinterpret_cast<const T*>(ring + stage * stage_bytes);
      const T* const own_g = reinterpret_cast<const T*>(ring + stage * stage_bytes + row_bytes);
      // The P elements from i on. Loads are not in branches, so that many are in flight.
      const auto elements = [&](int i, RowElement<float>(&e)[P]) {
        const int there = exists(i) ? i : 0;
        const Piece x{reinterpret_cast<const Piece*>(own_x + there)->bits},
            g{reinterpret_cast<const Piece*>(own_g + there)->bits};
#pragma unroll
        for (int j = 0; j < P; j += 4) {
          const float4 w = *reinterpret_cast<const float4*>(weights + there + j);
          e[j].w = w.x, e[j + 1].w = w.y, e[j + 2].w = w.z, e[j + 3].w = w.w;
        }
#pragma unroll
        for (int j = 0; j < P; ++j) {
          e[j].x = static_cast<float>(value(x[j]));
          e[j].g = static_cast<float>(value(g[j]));
        }
      };
      wait_for_bytes(full + stage, parity);
      Sum lanes[V];
#pragma unroll
      for (int j = 0; j < V; ++j) lanes[j] = no_addend<Sum>();
      for_pieces([&](int d, int p, int i) {
        RowElement<float> e[P];
        elements(i, e);
#pragma unroll
        for (int j = 0; j < P; ++j) {
          const int k = p * P + j;
          const Sum addend = row_addend<f>(e[j], row);
          lanes[k] = lanes[k] + (exists(i) ? addend : no_addend<Sum>());
          weight_sums[d][k] += weight_addend(e[j].x, e[j].g, row.mean, row.r);
          if constexpr (kCentered) bias_sums[d][k] += e[j].g;
        }
      });
      Sum sum = warp_join(join_neighbours(lanes));
      const int lane = threadIdx.x % kWarp, warps = a.threads / kWarp;
      if (warps > 1) {
        Sum(&own_slots)[kNormThreads / kWarp] = slots[turn];  // the others may still be read
        if (lane == 0) own_slots[threadIdx.x / kWarp] = sum;
        group_sync(group, a.threads);
        sum = lane < warps ? own_slots[group * warps + lane] : no_addend<Sum>();
        for (int step = 1; step < warps; step *= 2) sum = sum + shuffle_xor(sum, step);
        sum = shuffle(sum, 0);
      }
      finish_row<f>(row, sum, a.length, 0.0);
      for_pieces([&](int d, int p, int i) {
        RowElement<float> e[P];
        elements(i, e);
        float y[P];
#pragma unroll
        for (int j = 0; j < P; ++j) y[j] = row_applied<f>(e[j], row);
        T rounded[P];
        round_all(rounded, y);
        if (exists(i)) store_granules([&](int j) { return reinterpret_cast<T*>(row_y) + i + j; }, rounded);
      });
      group_sync(group, a.threads);  // all have read the stage
      if (thread == 0) bring();
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
    }

    if (unit + gridDim.x < a.units) read_numbers(unit + gridDim.x);
    // The groups' lanes of rows, neighbours first.
    const auto join_groups = [&](auto& sums, float* to) {
      for (int step = 1; step < groups; step *= 2) {
        float* const place = joined + group / (2 * step) * a.length;
        __syncthreads();
        if (group % (2 * step) == step)
          for_pieces([&](int d, int p, int i) {
            if (exists(i))
              store_granules([&](int j) { return place + i + j; }, reinterpret_cast<const float (&)[P]>(sums[d][p * P]));
          });
        __syncthreads();
        if (group % (2 * step) == 0)
          for_pieces([&](int d, int p, int i) {
            if (!exists(i)) return;
#pragma unroll
            for (int j = 0; j < P; ++j) sums[d][p * P + j] += place[i + j];
          });
      }
      if (group == 0)
        for_pieces([&](int d, int p, int i) {
          if (exists(i))
            store_granules([&](int j) { return to + i + j; }, reinterpret_cast<const float (&)[P]>(sums[d][p * P]));
        });
    };
    float* const partials = a.partials + unit * (kCentered ? 2 : 1) * a.length;
    join_groups(weight_sums, partials);
    if constexpr (kCentered) join_groups(bias_sums, partials + a.length);
  }
#endif
}

template <RowFunction f, class T>
cudaError_t start_norm_backward(const NormPlan& plan, const RowsCall& call, float* partials, const Device& device,
                                cudaStream_t stream) {
  NormBackwardArgs a{};
  a.x = call.operands[kRowX].data;
  a.g = call.operands[kRowG].data;
  a.weight = call.operands[kRowWeight].data;
  a.float_weight = call.operands[kRowWeight].dtype == DType::Float;
  a.y = call.operands[kRowY].data;
  a.mean = static_cast<const float*>(call.mean);
  a.r = static_cast<const float*>(call.r);
  a.partials = partials;
  const auto pitch = [&](RowOperandName name) { return call.along.rank ? call.along.dims[0].strides[name] : 0; };
  a.x_pitch = pitch(kRowX);
  a.g_pitch = pitch(kRowG);
  a.y_pitch = pitch(kRowY);
  a.rows = call.rows;
  a.units = plan.units;
  a.length = static_cast<int>(call.length);
  a.threads = plan.threads;
  a.stages = plan.stages;
  a.policy = l2_policy(plan.streams);
  const auto start = [&](auto v, auto d) {
    constexpr int V = decltype(v)::value, D = decltype(d)::value;
    const auto kernel = norm_backward_kernel<f, T, V, D>;
    const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
    // The same for all calls, which share the kernel.
    if (cudaError_t error = cudaFuncSetAttribute(kernel, attribute, device.shared_bytes - kNormStaticBytes)) return error;
    const Grid grid{static_cast<uint32_t>(plan.blocks)};
    const dim3 threads(plan.groups * plan.threads);
    return start_kernel({stream, device.early}, grid, threads, plan.shared_bytes, kernel, a);
  };
  const auto is = [&](int vector, int depth) { return plan.vector == vector && plan.depth == depth; };
  if (is(4, 1)) return start(std::integral_constant<int, 4>(), std::integral_constant<int, 1>());
  if (is(8, 1)) return start(std::integral_constant<int, 8>(), std::integral_constant<int, 1>());
  if (is(8, 2)) return start(std::integral_constant<int, 8>(), std::integral_constant<int, 2>());
  if (is(8, 4)) return start(std::integral_constant<int, 8>(), std::integral_constant<int, 4>());
  if (is(4, 8)) return start(std::integral_constant<int, 4>(), std::integral_constant<int, 8>());
  return kNoKernel;
}

}  // namespace gpureduce::cuda
