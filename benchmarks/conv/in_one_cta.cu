// Two convolutions of 64 filters in one CTA: each of its warpgroups, or both TOGETHER, compute a tile of the second one's
// output, and the first one's output for it, with a halo, in shared memory. No tile waits for another CTA.
//
// Filters are operand A, pixels operand B of wgmma. Operands are in shared memory by 8 channels: chunk * pitch + 16 *
// pixel, without swizzle, so that an element of a filter is only an offset of the descriptor. Defined before: H, W, C, F1,
// F2, K1, K2, TH, TW, GROUPS, TOGETHER.
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr int kPad1 = K1 / 2, kPad2 = K2 / 2;
constexpr int kMidH = TH + 2 * kPad2, kMidW = TW + 2 * kPad2;
constexpr int kPatchH = kMidH + 2 * kPad1, kPatchW = kMidW + 2 * kPad1;
// Columns of the products: pixels in rows of the patch, or of the intermediate image.
constexpr int kN1 = ((kMidH - 1) * kPatchW + kMidW + 7) / 8 * 8, kN2 = ((TH - 1) * kMidW + TW + 7) / 8 * 8;
constexpr int kChunks0 = C / 8, kChunks1 = F1 / 8, kSteps1 = K1 * K1 * C / 16, kSteps2 = K2 * K2 * F1 / 16;
__host__ __device__ constexpr int kMax(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int kOdd(int n) { return n | 1; }
// Space in pixels, odd so that copies of one pixel's channels are in different banks.
constexpr int kPatchRoom = kOdd(kMax(kN1 + 8 + (K1 - 1) * (kPatchW + 1), kPatchH * kPatchW));
constexpr int kSpare = kMax(kN2 + 8 + (K2 - 1) * (kMidW + 1), kMidH * kMidW);  // index of a pixel that nothing reads
constexpr int kMidRoom = kOdd(kSpare + 1);
constexpr int kPitchA1 = kOdd(F1) * 16, kPitchA2 = kOdd(F2) * 16, kPitch0 = kPatchRoom * 16, kPitch1 = kMidRoom * 16;
constexpr int kStagePitch = 64 * 2 + 16;
constexpr int kBytesA1 = kSteps1 * 2 * kPitchA1, kBytesA2 = kSteps2 * 2 * kPitchA2;
constexpr int kBytesPatch = kChunks0 * kPitch0, kBytesMid = kChunks1 * kPitch1, kBytesStage = (kN2 + 8) * kStagePitch;
constexpr int kBytesGroup = kBytesPatch + kBytesMid + kBytesStage;
constexpr int kSmem = kBytesA1 + kBytesA2 + (TOGETHER ? kBytesGroup + kBytesStage : GROUPS * kBytesGroup);
// Warpgroups per tile. They share the pixels of the first product, and the filters of the second if there are enough.
constexpr int kTeam = TOGETHER ? GROUPS : 1, kTeamFilters = F2 / 64 % kTeam == 0 ? kTeam : 1, kTeamPixels = kTeam / kTeamFilters;
constexpr int kShare1 = (kN1 / 8 + kTeam - 1) / kTeam * 8, kShare2 = (kN2 / 8 + kTeamPixels - 1) / kTeamPixels * 8;
static_assert(F1 == 64 && F2 % 64 == 0 && C % 16 == 0 && kSmem <= 227 * 1024);
extern "C" __constant__ int tuner_smem_bytes = kSmem;

__device__ __forceinline__ void copy16(u32 to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// A barrier of all warpgroups of a tile.
__device__ __forceinline__ void sync_team(int team) { asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(128 * (TOGETHER ? GROUPS : 1)) : "memory"); }

// Blocks of 8 rows x 16 bytes are contiguous; `pitch` is the distance to the next 8 channels, in bytes, and `units` the
// address in units of 16 bytes.
__device__ __forceinline__ u64 descriptor(u32 units, u32 pitch) {
#ifdef SWAPPED_OFFSETS
  return static_cast<u64>(pitch >> 4) << 32 | (static_cast<u32>(128 >> 4) << 16 | units);
#else
  return static_cast<u64>(128 >> 4) << 32 | (static_cast<u32>(pitch >> 4) << 16 | units);
#endif
}
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// multiply(d, a, b, adds): the sums d[kN / 2] of a thread.
template <int kN>
struct Wgmma;
//@products

template <int kN>
struct Sums {
  float of[kN / 2];
};

// All steps of a product: filters `a`, pixels `b` in rows of kWidth.
template <int kN, int kKernel, int kChunks, int kWidth>
__device__ __forceinline__ void multiply_all(float* sums, u32 a, u32 pitch_a, u32 b, u32 pitch_b) {
  const u32 a_units = a >> 4, b_units = b >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int place = 0; place < kKernel * kKernel; ++place) {
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const u32 at = place / kKernel * kWidth + place % kKernel;
      Wgmma<kN>::multiply(sums, descriptor(a_units + (place * kChunks + 2 * i) * (pitch_a >> 4), pitch_a),
                          descriptor(b_units + at + 2 * i * (pitch_b >> 4), pitch_b), place + i > 0);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ __forceinline__ u32 packed(float low, float high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// Two n8 columns' blocks of 16 filters, each pixel's 8 filters in 16 bytes: matrices [filters 0-7, 8-15] x [block 0, 1].
__device__ __forceinline__ void store_blocks(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_block(u32 address, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

__device__ __forceinline__ float relu(float x) { return x > 0 ? x : 0; }

struct Place {
  int y, x, image;
};
constexpr int kTilesX = (W + TW - 1) / TW, kTilesY = (H + TH - 1) / TH;
__device__ __forceinline__ Place place_of(int tile) {
  const int in_image = tile % (kTilesX * kTilesY);
  return {in_image / kTilesX * TH, in_image % kTilesX * TW, tile / (kTilesX * kTilesY)};
}

__device__ __forceinline__ void load_patch(u32 patch, const u16* images, const Place& at, int thread) {
#pragma unroll 4
  for (int i = thread; i < kChunks0 * kPatchH * kPatchW; i += 128 * kTeam) {
    const int chunk = i % kChunks0, pixel = i / kChunks0;
    const int y = at.y - kPad1 - kPad2 + pixel / kPatchW, x = at.x - kPad1 - kPad2 + pixel % kPatchW;
    const bool there = static_cast<u32>(y) < H && static_cast<u32>(x) < W;
    const long long row = there ? (static_cast<long long>(at.image) * H + y) * W + x : 0;
    copy16(patch + chunk * kPitch0 + 16 * pixel, images + row * C + 8 * chunk, there);
  }
}

template <int kFilters, int kK, int kPitch>
__device__ __forceinline__ void load_filters(u32 to, const u16* filters) {
#pragma unroll 8
  for (int i = threadIdx.x; i < kFilters * kK / 8; i += 128 * GROUPS) {
    const int filter = i / (kK / 8), chunk = i % (kK / 8);
    copy16(to + chunk * kPitch + 16 * filter, filters + static_cast<long long>(filter) * kK + 8 * chunk, true);
  }
}

extern "C" __global__ void __launch_bounds__(128 * GROUPS, 1)
    pair_in_one_cta(const u16* images, const u16* filters1, const u16* bias1, const u16* filters2, const u16* bias2, u16* out,
                    int num_tiles, int is_dependent) {
  extern __shared__ __align__(128) unsigned char memory[];
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int group = uniform(threadIdx.x / 128), warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int team = group / kTeam, member = group % kTeam, thread = threadIdx.x % (128 * kTeam);
  const u32 a1 = static_cast<u32>(__cvta_generic_to_shared(memory)), a2 = a1 + kBytesA1;
  const u32 patch = a2 + kBytesA2 + team * kBytesGroup, mid = patch + kBytesPatch;
  const u32 stage = mid + kBytesMid + (kTeamFilters > 1 ? member * kBytesStage : 0);
  const int from1 = member * kShare1, from2 = kTeamFilters > 1 ? 0 : member * kShare2;  // pixels
  load_filters<F1, K1 * K1 * C, kPitchA1>(a1, filters1);
  load_filters<F2, K2 * K2 * F1, kPitchA2>(a2, filters2);
  commit_copies();
  const int filter = 16 * warp + lane / 4;
  const auto widen = [](u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  };
  const float low1 = widen(bias1[filter]), high1 = widen(bias1[filter + 8]);
  float low2[F2 / 64 / kTeamFilters], high2[F2 / 64 / kTeamFilters];
#pragma unroll
  for (int i = 0; i < F2 / 64 / kTeamFilters; ++i) {
    const int at = 64 * (i * kTeamFilters + (kTeamFilters > 1 ? member : 0)) + filter;
    low2[i] = widen(bias2[at]), high2[i] = widen(bias2[at + 8]);
  }
  if (is_dependent) asm volatile("griddepcontrol.wait;" ::: "memory");

  constexpr int kTeams = GROUPS / kTeam;
  int tile = blockIdx.x + team * gridDim.x;
  if (tile < num_tiles) load_patch(patch, images, place_of(tile), thread);
  commit_copies();
  wait_copies();
  fence_proxy();
  __syncthreads();
  for (; tile < num_tiles; tile += kTeams * gridDim.x) {
    const Place at = place_of(tile);
    Sums<kShare1> first;
    multiply_all<kShare1, K1, kChunks0, kPatchW>(first.of, a1, kPitchA1, patch + 16 * from1, kPitch0);
    sync_team(team);  // all warps have read the patch
    const int next = tile + kTeams * gridDim.x;
    if (next < num_tiles) load_patch(patch, images, place_of(next), thread);
    commit_copies();

    const bool is_inside = K2 == 1 || (at.y >= kPad2 && at.x >= kPad2 && at.y + TH + kPad2 <= H && at.x + TW + kPad2 <= W);
#pragma unroll
    for (int j = 0; j < kShare1 / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& low = first.of[4 * j + e];
        float& high = first.of[4 * j + 2 + e];
        low = relu(low + low1), high = relu(high + high1);
        if (!is_inside) {
          const int q = from1 + 8 * j + 2 * (lane % 4) + e, y = at.y - kPad2 + q / kPatchW, x = at.x - kPad2 + q % kPatchW;
          if (static_cast<u32>(y) >= H || static_cast<u32>(x) >= W) low = high = 0;
        }
      }
    }
    // Lane l has the address of row l % 8 of matrix l / 8.
    const auto mid_of = [&](int column, int half) {
      const int q = from1 + column, y = q / kPatchW, x = q % kPatchW;
      const int to = y < kMidH && x < kMidW ? y * kMidW + x : kSpare;
      return mid + (2 * warp + half) * kPitch1 + 16 * to;
    };
#pragma unroll
    for (int j = 0; j + 1 < kShare1 / 8; j += 2) {
      const float* s = first.of + 4 * j;
      store_blocks(mid_of(8 * (j + lane / 16) + lane % 8, lane / 8 % 2), packed(s[0], s[1]), packed(s[2], s[3]),
                   packed(s[4], s[5]), packed(s[6], s[7]));
    }
    if constexpr (kShare1 / 8 % 2 == 1) {
      const float* s = first.of + 4 * (kShare1 / 8 - 1);
      store_block(mid_of(kShare1 - 8 + lane % 8, lane / 8 % 2), packed(s[0], s[1]), packed(s[2], s[3]));
    }
    fence_proxy();
    sync_team(team);

#pragma unroll
    for (int i = 0; i < F2 / 64 / kTeamFilters; ++i) {
      const int m = i * kTeamFilters + (kTeamFilters > 1 ? member : 0);
      Sums<kShare2> second;
      multiply_all<kShare2, K2, kChunks1, kMidW>(second.of, a2 + m * 1024, kPitchA2, mid + 16 * from2, kPitch1);
#pragma unroll
      for (int j = 0; j < kShare2 / 2; ++j) second.of[j] = relu(second.of[j] + (j % 4 < 2 ? low2[i] : high2[i]));
      const auto stage_of = [&](int q, int half) { return stage + (from2 + q) * kStagePitch + (2 * warp + half) * 16; };
#pragma unroll
      for (int j = 0; j + 1 < kShare2 / 8; j += 2) {
        const float* s = second.of + 4 * j;
        store_blocks(stage_of(8 * (j + lane / 16) + lane % 8, lane / 8 % 2), packed(s[0], s[1]), packed(s[2], s[3]),
                     packed(s[4], s[5]), packed(s[6], s[7]));
      }
      if constexpr (kShare2 / 8 % 2 == 1) {
        const float* s = second.of + 4 * (kShare2 / 8 - 1);
        store_block(stage_of(kShare2 - 8 + lane % 8, lane / 8 % 2), packed(s[0], s[1]), packed(s[2], s[3]));
      }
      sync_team(team);
      constexpr int kStorers = kTeamFilters > 1 ? 128 : 128 * kTeam;
#pragma unroll 4
      for (int at8 = threadIdx.x % kStorers; at8 < TH * TW * 8; at8 += kStorers) {
        const int pixel = at8 / 8, y = pixel / TW, x = pixel % TW;
        if ((H % TH == 0 || at.y + y < H) && (W % TW == 0 || at.x + x < W)) {
          uint4 eight;
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(eight.x), "=r"(eight.y), "=r"(eight.z), "=r"(eight.w)
                       : "r"(stage + (y * kMidW + x) * kStagePitch + 16 * (at8 % 8)));
          const long long row = (static_cast<long long>(at.image) * H + at.y + y) * W + at.x + x;
          *reinterpret_cast<uint4*>(out + row * F2 + 64 * m + 8 * (at8 % 8)) = eight;
        }
      }
      if (i + 1 < F2 / 64 / kTeamFilters) sync_team(team);
    }
    wait_copies();
    fence_proxy();
    sync_team(team);
  }
}
