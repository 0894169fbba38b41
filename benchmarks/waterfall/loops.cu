// One product W X^T without its epilogue, for comparing main loops: a CTA multiplies 64 GROUPS BLOCKS rows of weights,
// operand A, with HALVES x COLUMNS rows of X, operand B, and each group of four warps BLOCKS blocks of 64 rows. Of a
// tile's sums it stores one number per row: their sum, each multiplied by the factor of its column.
//
// WAY: how weights reach the tensor cores. 0: from shared memory. 1: from shared memory to registers, once for all
// halves, while the products of the previous step run. 2: from the L2 to registers; they are stored as fragments of the
// instruction: [64 rows][16 of k][thread][register]. COLUMNS, RING (bytes) and the specialisations of Wgmma and
// WgmmaOfRegisters come before this text.
//
// Predictions, made without a card: clocks of a step of 16 elements of k for 128 x 304 sums. The tensor cores need 304;
// the others are those of the shared memory, at 128 bytes per clock. From shared memory 128 x 152: 356, 256 x 152: 318,
// 128 x 2 x 152: 324; by registers: 304. Fragments: 304 if loads from the L2 do not occupy the shared memory, otherwise
// 356 for 128 x 152. Energy in the same order.
#include "ptx.cuh"
#include "ptx_hopper.cuh"

constexpr int kMathThreads = 128 * GROUPS, kWeightRows = 64 * GROUPS * BLOCKS;
constexpr int kWeightBytes = WAY == 2 ? 0 : kWeightRows * 128, kHalfBytes = COLUMNS * 128;
constexpr int kStageBytes = kWeightBytes + HALVES * kHalfBytes, kStages = RING / kStageBytes;
// Steps whose fragments are in registers, with those of the current one, and steps that are prefetched into the L2.
[[maybe_unused]] constexpr int kBuffers = WAY == 1 ? 2 : HALVES == 2 ? 2 : 4, kPrefetched = 16;

__device__ __forceinline__ u64 global_ns() {
  u64 now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}
__device__ __forceinline__ void load_fragment(u32 (&a)[4], const uint4* from) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "l"(from));
}
__device__ __forceinline__ void prefetch_bytes(const void* from, u32 count) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(count) : "memory");
}

extern "C" __global__ void __launch_bounds__(kMathThreads + 128, 1)
    loops(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap input, const uint4* fragments,
          const float* factors, float* out, u64* clocks, int lines, int row_tiles, int num_tiles, int weight_rows) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ u64 barriers[2 * kStages];
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const u32 full = shared_address(barriers), empty = full + 8 * kStages, base = shared_address(ring);
  const bool is_timed = blockIdx.x == 0 && threadIdx.x == 0;
  if (is_timed) clocks[0] = clock64(), clocks[1] = global_ns();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, 4 * GROUPS);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  int stage = 0;
  if (warp >= 4 * GROUPS) {
    lower_registers<40>();
    if (warp == 4 * GROUPS && lane == 0) {
      const u64 policy = cache_policy<kEvictFirst>(), kept = cache_policy<kEvictLast>();
      u32 parity = 1;
      for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
        const int weight_tile = tile / row_tiles, row_tile = tile % row_tiles;
        for (int line = 0; line < lines; ++line) {
          mbarrier_wait(empty + 8 * stage, parity);
          const u32 to = base + stage * kStageBytes, bar = full + 8 * stage;
          mbarrier_arrive_expect(bar, kStageBytes);
          if (WAY != 2) {
            copy_line(to, &weights, line * 64, weight_tile * kWeightRows, bar, policy);
          } else if (line + kPrefetched < lines) {
            for (int g = 0; g < GROUPS; ++g)
              prefetch_bytes(fragments + ((weight_tile * GROUPS + g) * lines + line + kPrefetched) * 512LL, 8192);
          }
          for (int h = 0; h < HALVES; ++h)
            copy_line(to + kWeightBytes + h * kHalfBytes, &input, line * 64, (row_tile * HALVES + h) * COLUMNS, bar, kept);
          if (++stage == kStages) stage = 0, parity ^= 1;
        }
      }
    }
    return;
  }
  raise_registers<GROUPS == 2 ? 232 : 152>();
  const int group = warp / 4;
  u32 parity = 0;
  const auto release = [&](int of) {
    if (lane == 0) mbarrier_arrive(empty + 8 * of);
  };
  const auto before = [&] { return stage == 0 ? kStages - 1 : stage - 1; };
  const auto pass = [&](bool is_first) {
    wgmma_commit();
    wgmma_wait<1>();
    if (!is_first) release(before());
    if (++stage == kStages) stage = 0, parity ^= 1;
  };
  float acc[BLOCKS * HALVES][COLUMNS / 2];
  for (int tile = blockIdx.x; tile < num_tiles; tile += gridDim.x) {
    const int weight_tile = tile / row_tiles, row_tile = tile % row_tiles;
#if WAY == 0
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {
      mbarrier_wait(full + 8 * stage, parity);
      const u32 at = operand_units(base + stage * kStageBytes), rows = at + kWeightBytes / 16;
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
          for (int h = 0; h < HALVES; ++h)
            Wgmma<COLUMNS>::multiply(acc[b * HALVES + h], operand_descriptor(at + (group * BLOCKS + b) * 512 + 2 * s),
                                     operand_descriptor(rows + h * kHalfBytes / 16 + 2 * s), line > 0 || s > 0);
      pass(line == 0);
    }
#else
    u32 a[kBuffers][4][4];
    const uint4* const own = fragments + (weight_tile * GROUPS + group) * lines * 512LL + threadIdx.x % 128;
    const auto load = [&](u32 (&to)[4][4], int line) {
#pragma unroll
      for (int s = 0; s < 4; ++s) load_fragment(to[s], own + (line * 4 + s) * 128);
    };
    const auto step = [&](u32 (&now)[4][4], int line) {
      mbarrier_wait(full + 8 * stage, parity);
      const u32 at = base + stage * kStageBytes, rows = operand_units(at + kWeightBytes);
      if (WAY == 1) {
        const int row = group * 64 + warp % 4 * 16 + lane % 16;
#pragma unroll
        for (int s = 0; s < 4; ++s) ldmatrix_x4(now[s], at + row * 128 + ((2 * s + lane / 16) ^ row % 8) * 16);
      }
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s)
#pragma unroll
        for (int h = 0; h < HALVES; ++h)
          WgmmaOfRegisters<COLUMNS>::multiply(acc[h], now[s], operand_descriptor(rows + h * kHalfBytes / 16 + 2 * s),
                                              line > 0 || s > 0);
      pass(line == 0);
    };
    if (WAY == 2) {
#pragma unroll
      for (int i = 0; i < kBuffers - 1; ++i) load(a[i], i);
    }
#pragma unroll 1
    for (int line = 0; line < lines; line += kBuffers) {
#pragma unroll
      for (int i = 0; i < kBuffers; ++i) {
        step(a[i], line + i);
        // The products of the previous step are complete, so its registers are free.
        if (WAY == 2 && line + i + kBuffers - 1 < lines) load(a[(i + kBuffers - 1) % kBuffers], line + i + kBuffers - 1);
      }
    }
#endif
    wgmma_wait<0>();
    release(before());
#pragma unroll
    for (int b = 0; b < BLOCKS; ++b)
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        const float* const of = factors + (row_tile * HALVES + h) * COLUMNS + 2 * (lane % 4);
        float low = 0, high = 0;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j) {
          const float* const four = acc[b * HALVES + h] + 4 * j;
          const float first = __ldg(of + 8 * j), second = __ldg(of + 8 * j + 1);
          low += four[0] * first + four[1] * second, high += four[2] * first + four[3] * second;
        }
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
          low += __shfl_xor_sync(0xFFFFFFFFu, low, distance);
          high += __shfl_xor_sync(0xFFFFFFFFu, high, distance);
        }
        const int row = weight_tile * kWeightRows + (group * BLOCKS + b) * 64 + warp % 4 * 16 + lane / 4;
        float* const to = out + static_cast<long long>(row_tile * HALVES + h) * weight_rows + row;
        if (lane % 4 == 0) to[0] = low, to[8] = high;
      }
  }
  if (is_timed) clocks[2] = clock64(), clocks[3] = global_ns();
}
