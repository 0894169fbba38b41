// One product of a pair, swapped: a CTA multiplies 128 rows of weights, operand A, with all rows of the input in one or two
// halves, operand B. Weights pass from shared memory to registers once for both halves. The units of work are lines of
// 64 elements of k; each group of CTAs takes an equal share of them. It begins with the end of one tile and ends with the
// beginning of another, so that most sums of others are there when a tile is finished.
//
// COLUMNS, HALVES, GROUPS of four warps, STAGES, CTAS, GATED, FROM_REGISTERS, LEFT_OUT (1: sums, 2: copies of the input, 4: of weights) and the specialisations of Wgmma come before this text.
#include "ptx_hopper.cuh"

#define DEFERS (HALVES == 1 && COLUMNS <= 208 && !FROM_REGISTERS && DEFER)

constexpr int kRows = COLUMNS * HALVES, kWeightRows = 64 * GROUPS, kWeightBytes = kWeightRows * 128, kHalfBytes = COLUMNS * 128;
constexpr int kStageBytes = (LEFT_OUT & 4 ? 0 : kWeightBytes) + (LEFT_OUT & 2 ? 0 : kRows * 128);
constexpr int kStageRoom = kWeightBytes + kRows * 128, kGroups = COLUMNS / 8, kSumGroups = HALVES * kGroups;
constexpr int kMathThreads = 128 * GROUPS, kMathWarps = 4 * GROUPS;
// Sums of others come through the ring: groups of 8 columns of all warps, as many as fit in a stage.
constexpr int kMostGroups = kStageRoom / (kMathThreads * 16), kPiece = kSumGroups < kMostGroups ? kSumGroups : kMostGroups, kPieces = (kSumGroups + kPiece - 1) / kPiece;
constexpr int kPieceBytes = kPiece * kMathThreads * 16, kPlaces = kPieces * kPiece * kMathThreads;

__device__ __forceinline__ int place_of(int group, int warp, int lane) {
  return ((group / kPiece * kMathWarps + warp) * kPiece + group % kPiece) * 32 + lane;
}

struct Segment {
  int tile, first, end;  // lines of k
  bool whole, head;
};

__device__ Segment segment_at(int unit, int end, int lines) {
  const int tile = unit / lines, first = unit - tile * lines, last = min(lines, first + end - unit);
  return {tile, first, last, first == 0 && last == lines, first == 0};
}

__device__ __forceinline__ u32 pair_of(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ u32 transposed(u32 word) {
  u32 out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(word));
  return out;
}
__device__ __forceinline__ void store_shared(u32 to, u32 word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ __forceinline__ float gated(float gate, float up) { return __fdividef(gate, 1 + __expf(-gate)) * up; }

extern "C" __global__ void __launch_bounds__(kMathThreads + 128, 1)
    product(const __grid_constant__ TensorMap weights, const __grid_constant__ TensorMap input, u16* out, float4* sums, u32* flags, u64* stamps,
            const int* starts, int lines, int m, int n, int begins_early) {
  extern __shared__ __align__(1024) unsigned char ring[];
  __shared__ u64 barriers[2 * STAGES];
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int rank = CTAS == 1 ? 0 : blockIdx.x % CTAS, group = blockIdx.x / CTAS;
  const auto start_of = [&](int g) { return __ldg(starts + g); };
  const int begin = start_of(group), end = start_of(group + 1);
  // Whether this group begins a tile that others end, and the last of them.
  const auto has_open_head = [&] { return end % lines != 0 && end / lines * lines >= begin; };
  const auto last_helper = [&] {
    const int tile_end = end / lines * lines + lines;
    int other = group + 1;
    while (start_of(other + 1) < tile_end) ++other;
    return other;
  };
  const u32 full = shared_address(barriers), empty = full + 8 * STAGES, base = shared_address(ring);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      mbarrier_init(full + 8 * i, 1);
      mbarrier_init(empty + 8 * i, GROUPS * CTAS);
    }
    fence_mbarrier_init();
  }
  const auto stamp = [&](int place) {
    if (threadIdx.x == 0) stamps[blockIdx.x * 16 + place] = clock64();
  };
  stamp(0);
  launch_dependents();
  if (CTAS > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  if (warp >= kMathWarps) {
    if constexpr (GROUPS > 1) lower_registers<40>();
    if (warp == kMathWarps && lane == 0) {
      const u64 once = cache_policy<kEvictFirst>(), often = cache_policy<kEvictLast>();
      const auto copy_weights = [&](int unit, int stage) {
        const int tile = unit / lines * CTAS + rank, line = unit % lines;
        mbarrier_arrive_expect(full + 8 * stage, kStageBytes);
        const u32 to = base + stage * kStageRoom;
        if (LEFT_OUT & 4) return;
        if (GATED) {
          copy_pairs(to, &weights, tile * 4 * GROUPS, line, full + 8 * stage, once);
        } else {
          copy_line(to, &weights, line * 64, tile * kWeightRows, full + 8 * stage, once);
        }
      };
      const auto copy_input = [&](int unit, int stage) {
        if (LEFT_OUT & 2) return;
        const u32 to = base + stage * kStageRoom + kWeightBytes, bar = full + 8 * stage;
        const int column = unit % lines * 64;
        if (CTAS > 1) {
          constexpr int kShare = kRows / CTAS;
          copy_line_to(to + rank * kShare * 128, &input, column, rank * kShare, bar, often, (1 << CTAS) - 1);
        } else {
          for (int half = 0; half < HALVES; ++half) copy_line(to + half * kHalfBytes, &input, column, half * COLUMNS, bar, often);
        }
      };
      const int early = min(STAGES, end - begin);
      if (begins_early) {
        for (int i = 0; i < early; ++i) copy_weights(begin + i, i);
        wait_for_prerequisites();
        for (int i = 0; i < early; ++i) copy_input(begin + i, i);
      } else {
        for (int i = 0; i < early; ++i) copy_weights(begin + i, i), copy_input(begin + i, i);
      }
      int stage = early % STAGES;
      u32 parity = early == STAGES ? 0 : 1;
      for (int unit = begin + early; unit < end; ++unit) {
        mbarrier_wait(empty + 8 * stage, parity);
        copy_weights(unit, stage);
        copy_input(unit, stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
      if (!(LEFT_OUT & 1) && has_open_head()) {
        for (int other = last_helper(); other > group; --other) {
          const int cta = other * CTAS + rank;
          while (load_acquire_gpu(flags + cta) != kMathWarps) {
          }
          flags[cta] = 0;
          fence_proxy_async_global();
          for (int piece = 0; piece < kPieces; ++piece) {
            mbarrier_wait(empty + 8 * stage, parity);
            mbarrier_arrive_expect(full + 8 * stage, kPieceBytes);
            copy_bytes(base + stage * kStageRoom, sums + static_cast<long long>(cta) * kPlaces + piece * kPiece * kMathThreads,
                       kPieceBytes, full + 8 * stage, once);
            if (++stage == STAGES) stage = 0, parity ^= 1;
          }
        }
      }
    }
  } else {
    if constexpr (GROUPS > 1) raise_registers<232>();
    wait_for_prerequisites();
    const int half_of_cta = warp / 4, in_group = warp % 4;
    const auto release = [&](int of) {
      if (threadIdx.x % 128 != 0) return;
      for (int c = 0; c < CTAS; ++c) {
        if (c == rank) {
          mbarrier_arrive(empty + 8 * of);
        } else {
          mbarrier_arrive_in_cluster(address_in_cta(empty + 8 * of, c));
        }
      }
    };
    bool owes = false;  // sums are stored, and nobody knows yet
    const auto tell = [&] {
      fence_proxy_async_global();
      __syncwarp();
      if (lane == 0) {
        __threadfence();
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flags + blockIdx.x) : "memory");
      }
      owes = false;
    };
    int stage = 0;
    u32 parity = 0;
#if DEFERS
    // Sums of the first segment stay in registers, and are stored bit by bit beside the products of the last one.
    float early[COLUMNS / 2], acc[1][COLUMNS / 2];
    const auto multiply = [&](float* sums, bool adds) {
      mbarrier_wait(full + 8 * stage, parity);
      const u32 at = base + stage * kStageRoom, rows = at + kWeightBytes;
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s)
        Wgmma<COLUMNS>::multiply(sums, operand_descriptor(operand_units(at + half_of_cta * 8192) + 2 * s),
                                 operand_descriptor(operand_units(rows) + 2 * s), adds || s > 0);
      wgmma_commit();
    };
    const auto pass = [&](bool is_first) {
      wgmma_wait<1>();
      if (!is_first) release(stage == 0 ? STAGES - 1 : stage - 1);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    };
    const auto drain = [&] {
      wgmma_wait<0>();
      release(stage == 0 ? STAGES - 1 : stage - 1);
    };
    float4* const slot = sums + static_cast<long long>(blockIdx.x) * kPlaces;
    const auto store = [&](int j) {
      __stcg(slot + place_of(j, warp, lane), make_float4(early[4 * j], early[4 * j + 1], early[4 * j + 2], early[4 * j + 3]));
    };
    constexpr int kPerLine = 5, kLines = (kGroups + kPerLine - 1) / kPerLine;
    Segment now = begin < end ? segment_at(begin, end, lines) : Segment{0, 0, 0, false, true};
    bool has_sums = false;
    if (!now.head) {
#pragma unroll 1
      for (int line = now.first; line < now.end; ++line) {
        multiply(early, line > now.first);
        if (line == now.first) stamp(1);
        pass(line == now.first);
      }
      drain();
      stamp(2);
      has_sums = !(LEFT_OUT & 1);
      const int next = begin + now.end - now.first;
      now = next < end ? segment_at(next, end, lines) : Segment{0, 0, 0, false, false};
      if (has_sums && now.end - now.first < kLines + 2) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) store(j);
        tell();
        has_sums = false;
      }
      stamp(3);
    }
    if (now.head && now.end > 0) {
      int line = now.first;
      if (has_sums) {
#pragma unroll
        for (int part = 0; part < kLines; ++part) {
          multiply(acc[0], part > 0);
#pragma unroll
          for (int j = part * kPerLine; j < (part + 1) * kPerLine && j < kGroups; ++j) store(j);
          pass(part == 0);
          ++line;
        }
        owes = true;
      }
      const int from = line + 1;
#pragma unroll 1
      for (; line < now.end; ++line) {
        multiply(acc[0], line > 0);
        if (line == 0) stamp(1);
        if (owes && line == from) tell();
        pass(line == 0);
      }
      drain();
      if (owes) tell();
      stamp(5);
      {
        for (int other = now.whole || LEFT_OUT & 1 ? group : last_helper(); other > group; --other) {
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
            mbarrier_wait(full + 8 * stage, parity);
            const u32 at = base + stage * kStageRoom + (warp * kPiece * 32 + lane) * 16;
#pragma unroll
            for (int g = piece * kPiece; g < (kSumGroups < piece * kPiece + kPiece ? kSumGroups : piece * kPiece + kPiece); ++g) {
              const float4 four = load_shared_four(at + (g - piece * kPiece) * 512);
              float* const f = acc[0] + 4 * g;
              f[0] += four.x, f[1] += four.y, f[2] += four.z, f[3] += four.w;
            }
            asm volatile("bar.sync %0, 128;" ::"r"(1 + half_of_cta) : "memory");
            release(stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
          }
        }
#else
    float acc[HALVES][COLUMNS / 2];
    for (int unit = begin; unit < end;) {
      const Segment now = segment_at(unit, end, lines);
      bool adds = false;
      if (now.head) stamp(4);
#pragma unroll 1
      for (int line = now.first; line < now.end; ++line) {
        mbarrier_wait(full + 8 * stage, parity);
        if (unit == begin && line == now.first) stamp(1);
        if (owes && line == now.first + 2) tell();
        const u32 at = base + stage * kStageRoom, rows = at + kWeightBytes;
#if FROM_REGISTERS
        u32 a[4][4];
        const int row = half_of_cta * 64 + in_group * 16 + lane % 16;
#pragma unroll
        for (int s = 0; s < 4; ++s) ldmatrix_x4(a[s], at + row * 128 + ((2 * s + lane / 16) ^ row % 8) * 16);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
          for (int h = 0; h < HALVES; ++h)
            WgmmaOfRegisters<COLUMNS>::multiply(acc[h], a[s], operand_descriptor(operand_units(rows + h * kHalfBytes) + 2 * s),
                                                adds || s > 0);
        }
        wgmma_commit();
        wgmma_wait<0>();
        release(stage);
#else
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) {
#pragma unroll
          for (int h = 0; h < HALVES; ++h)
            Wgmma<COLUMNS>::multiply(acc[h], operand_descriptor(operand_units(at + half_of_cta * 8192) + 2 * s),
                                     operand_descriptor(operand_units(rows + h * kHalfBytes) + 2 * s), adds || s > 0);
        }
        wgmma_commit();
        wgmma_wait<1>();
        if (line > now.first) release(stage == 0 ? STAGES - 1 : stage - 1);
#endif
        adds = true;
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
#if !FROM_REGISTERS
      wgmma_wait<0>();
      release(stage == 0 ? STAGES - 1 : stage - 1);
#endif
      if (owes) tell();
      stamp(now.head ? 5 : 2);
      if (!now.head && LEFT_OUT & 1) {
      } else if (!now.head) {
        float4* const slot = sums + static_cast<long long>(blockIdx.x) * kPlaces;
#pragma unroll
        for (int h = 0; h < HALVES; ++h)
#pragma unroll
          for (int j = 0; j < kGroups; ++j)
            __stcg(slot + place_of(h * kGroups + j, warp, lane),
                   make_float4(acc[h][4 * j], acc[h][4 * j + 1], acc[h][4 * j + 2], acc[h][4 * j + 3]));
        owes = true;
        if (unit + now.end - now.first == end) tell();
        stamp(3);
      } else {
        for (int other = now.whole || LEFT_OUT & 1 ? group : last_helper(); other > group; --other) {
#pragma unroll
          for (int piece = 0; piece < kPieces; ++piece) {
            mbarrier_wait(full + 8 * stage, parity);
            const u32 at = base + stage * kStageRoom + (warp * kPiece * 32 + lane) * 16;
#pragma unroll
            for (int g = piece * kPiece; g < (kSumGroups < piece * kPiece + kPiece ? kSumGroups : piece * kPiece + kPiece); ++g) {
              const float4 four = load_shared_four(at + (g - piece * kPiece) * 512);
              float* const f = acc[g / kGroups] + 4 * (g % kGroups);
              f[0] += four.x, f[1] += four.y, f[2] += four.z, f[3] += four.w;
            }
            asm volatile("bar.sync %0, 128;" ::"r"(1 + half_of_cta) : "memory");
            release(stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
          }
        }
#endif
        stamp(6);
        // The ring is free: this is the last work of the CTA.
        constexpr int kColumns = kWeightRows / (GATED ? 2 : 1), kPitch = kColumns * 2 + 16, kChunks = kColumns / 8;
        const int column = warp * 16 / (GATED ? 2 : 1) + 2 * (lane % 4);
        asm volatile("bar.sync 3, %0;" ::"n"(kMathThreads) : "memory");
#pragma unroll
        for (int h = 0; h < HALVES; ++h)
#pragma unroll
          for (int j = 0; j < kGroups; ++j) {
            const u32 to = base + (h * COLUMNS + 8 * j + lane / 4) * kPitch + column * 2;
            const float* f = acc[h] + 4 * j;
            if (GATED) {
              store_shared(to, transposed(pair_of(gated(f[0], f[2]), gated(f[1], f[3]))));
            } else {
              store_shared(to, transposed(pair_of(f[0], f[1])));
              store_shared(to + 16, transposed(pair_of(f[2], f[3])));
            }
          }
        asm volatile("bar.sync 3, %0;" ::"n"(kMathThreads) : "memory");
        u16* const to = out + (now.tile * CTAS + rank) * kColumns;
        for (int chunk = threadIdx.x; chunk < m * kChunks; chunk += kMathThreads) {
          const int row = chunk / kChunks, at = chunk % kChunks;
          const float4 eight = load_shared_four(base + row * kPitch + at * 16);
          *reinterpret_cast<float4*>(to + static_cast<long long>(row) * n + at * 8) = eight;
        }
        stamp(7);
      }
#if !DEFERS
      unit += now.end - now.first;
#endif
    }
  }
  if (CTAS > 1) {
    cluster_arrive();
    cluster_wait();
  }
}
