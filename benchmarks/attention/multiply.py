"""How many cycles an SM takes to multiply a tile of keys and of values that lie in its shared memory: by `mma.sync`, as
the kernel does it, and by `wgmma`. Nothing is read from memory meanwhile.

By `wgmma` the four warps of a team multiply a tile of 64 tokens together, and meet twice a tile: for the columns'
maxima, and when the probabilities lie in shared memory. Its two products of neighbouring tiles run at once.

python -m benchmarks.attention.multiply [--out benchmarks/results/h100/attention_multiply.json]
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from benchmarks.common.report import write_report
from tuner.core.problem.workload import Dtype
from tuner.core.trial.stats import median
from tuner.ops.attention.schedule import AttentionTiling
from tuner.ops.attention.source import render_attention
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.gpu.launching.launch import check, launch_config

from .measure import bandwidth_here, gpu_here, machine_here
from .on_card import make_current

_COLUMNS, _TOKENS, _HEAD_DIM, _STAGES, _TILES, _LAUNCHES = 8, 64, 128, 4, 256, 9
#: Behind the ring: queries of each way, probabilities and maxima of two teams.
_SMEM_BYTES = 212_992
#: Relative error, at most: probabilities are rounded to bf16.
_MOST_ERROR = 0.02
_ROW_FLOATS = _HEAD_DIM + 2
_KERNELS = """
struct MultiplyArgs {
  const u16* q;       // [8, 128]
  const u16* k;       // [kStages, 64, 128]
  const u16* v;       // the same
  float* sums;        // of each warp and column: 128 sums, its maximum, its normaliser
  long long* cycles;  // of each CTA
  float scale_log2;
  int num_tiles;
};

constexpr u32 kQueriesHere = kRingBytes + 4096, kOfTeams = kQueriesHere + 2048, kOfTeam = 2048;

__device__ __forceinline__ void fill_shared(const MultiplyArgs& args, const Ring& ring, unsigned char* shared) {
  for (int i = threadIdx.x; i < kStages * 1024; i += blockDim.x) {
    const int token = i / 16, chunk = i % 16, stage = token / 64;
    const u32 place = stage * kStageBytes + chunk / 8 * 8192 + token % 64 * 128 + ((chunk % 8 ^ token % 8) << 4);
    *reinterpret_cast<uint4*>(shared + place) = reinterpret_cast<const uint4*>(args.k)[i];
    *reinterpret_cast<uint4*>(shared + place + kTileBytes) = reinterpret_cast<const uint4*>(args.v)[i];
  }
  for (int i = threadIdx.x; i < 128; i += blockDim.x) {
    const int column = i / 16, chunk = i % 16;
    const uint4 eight = reinterpret_cast<const uint4*>(args.q)[i];
    *reinterpret_cast<uint4*>(shared + kQueriesOffset + column * kQueryRowBytes + 16 * chunk) = eight;
    const u32 place = chunk / 8 * 1024 + column * 128 + ((chunk % 8 ^ column) << 4);
    *reinterpret_cast<uint4*>(shared + kQueriesHere + place) = eight;
  }
  fence_proxy_async_shared();
  __syncthreads();
}

__device__ __forceinline__ float of_column(float value) {
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 4);
  value += __shfl_xor_sync(0xFFFFFFFFu, value, 8);
  return value + __shfl_xor_sync(0xFFFFFFFFu, value, 16);
}

extern "C" __global__ void __launch_bounds__(kMathThreads, 1) multiply_mma(const MultiplyArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared_address(shared)};
  fill_shared(args, ring, shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % kSliceWarps;
  Queries queries;
  load_queries(ring, 0, 8, queries);
  Softmax softmax;
  clear(softmax);
  __syncthreads();
  const long long begin = read_clock();
#pragma unroll 1
  for (int tile = warp / kSliceWarps; tile < args.num_tiles; tile += kTeams) {
    const int stage = tile % kStages;
    float scores[1][4];
    multiply_keys(ring.k(stage), slice, queries, scores);
    update(args.scale_log2, softmax, scores);
    const u32 probabilities[1][2] = {{transpose_in_registers(Element::narrow_two(scores[0][0], scores[0][1])),
                                      transpose_in_registers(Element::narrow_two(scores[0][2], scores[0][3]))}};
    multiply_values<false>(ring.v(stage), slice, 0, kSliceTokens, probabilities, softmax);
  }
  __syncthreads();
  if (threadIdx.x == 0) args.cycles[blockIdx.x] = read_clock() - begin;
  if (blockIdx.x != 0) return;
  for (int half = 0; half < 2; ++half) {
    float* row = args.sums + (warp * 8 + lane % 4 * 2 + half) * 130;
    const float normaliser = of_column(softmax.normalisers[0][half]);
    if (lane / 4 == 0) row[128] = softmax.maxima[0][half], row[129] = normaliser;
    for (int step = 0; step < kDimSteps; ++step) {
      row[16 * step + lane / 4] = softmax.sums[0][step][half];
      row[16 * step + lane / 4 + 8] = softmax.sums[0][step][half + 2];
    }
  }
}

// d[64, 8] = a b, or with kAdds d += a b. `kTurned`: a lies with its 64 rows as the fastest dimension.
template <int kTurned, int kAdds>
__device__ __forceinline__ void wgmma_8(float (&d)[4], u32 a, u32 b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, %7, 1, 1, %6, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(operand_descriptor(operand_units(a))), "l"(operand_descriptor(operand_units(b))),
                 "n"(kTurned), "n"(kAdds));
}

__device__ __forceinline__ void scores_of(u32 keys, u32 queries, float (&scores)[4]) {
  wgmma_fence();
  wgmma_8<0, 0>(scores, keys, queries);
#pragma unroll
  for (int step = 1; step < 8; ++step)
    wgmma_8<0, 1>(scores, keys + step / 4 * 8192 + step % 4 * 32, queries + step / 4 * 1024 + step % 4 * 32);
  wgmma_commit();
}

__device__ __forceinline__ void team_barrier(int team) {
  asm volatile("barrier.sync %0, 128;" ::"r"(team + 1) : "memory");
}

extern "C" __global__ void __launch_bounds__(kMathThreads, 1) multiply_wgmma(const MultiplyArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const Ring ring{shared_address(shared)};
  fill_shared(args, ring, shared);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, team = uniform(threadIdx.x / 128);
  const u32 queries = ring.base + kQueriesHere;
  unsigned char* own = shared + kOfTeams + kOfTeam * team;
  const u32 probabilities = ring.base + kOfTeams + kOfTeam * team;
  float2* maxima = reinterpret_cast<float2*>(own + 1024);  // [warp, pair of columns]
  float sums[2][4] = {}, most[2], normaliser[2] = {}, scores[4] = {};
  most[0] = most[1] = minus_infinity();
  __syncthreads();
  const long long begin = read_clock();
  scores_of(ring.k(team % kStages), queries, scores);
  wgmma_wait<0>();
#pragma unroll 1
  for (int tile = team; tile < args.num_tiles; tile += kTeams) {
    float2 here;
    here.x = fmaxf(scores[0], scores[2]), here.y = fmaxf(scores[1], scores[3]);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      here.x = fmaxf(here.x, __shfl_xor_sync(0xFFFFFFFFu, here.x, distance));
      here.y = fmaxf(here.y, __shfl_xor_sync(0xFFFFFFFFu, here.y, distance));
    }
    if (lane < 4) maxima[4 * warp + lane] = here;
    team_barrier(team);
#pragma unroll
    for (int other = 0; other < 4; ++other) {
      const float2 there = maxima[4 * other + lane % 4];
      here.x = fmaxf(here.x, there.x), here.y = fmaxf(here.y, there.y);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float now = fmaxf(most[half], (half ? here.y : here.x) * args.scale_log2);
      const float kept = exp2_approx(most[half] - now);
      most[half] = now;
      float sum = 0;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float probability = exp2_approx(scores[half + 2 * row] * args.scale_log2 - now);
        sum += probability;
        const int token = 16 * warp + lane / 4 + 8 * row, column = lane % 4 * 2 + half;
        *reinterpret_cast<u16*>(own + column * 128 + ((2 * token) ^ (column << 4))) =
            static_cast<u16>(Element::narrow_two(probability, 0.0f));
      }
      normaliser[half] = normaliser[half] * kept + sum;
#pragma unroll
      for (int block = 0; block < 2; ++block) sums[block][half] *= kept, sums[block][half + 2] *= kept;
    }
    fence_proxy_async_shared();
    team_barrier(team);
    wgmma_fence();
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int step = 0; step < 4; ++step)
        wgmma_8<1, 1>(sums[block], ring.v(tile % kStages) + block * 8192 + step * 2048, probabilities + step * 32);
    }
    wgmma_commit();
    scores_of(ring.k((tile + kTeams) % kStages), queries, scores);
    wgmma_wait<0>();
  }
  __syncthreads();
  if (threadIdx.x == 0) args.cycles[blockIdx.x] = read_clock() - begin;
  if (blockIdx.x != 0) return;
  for (int half = 0; half < 2; ++half) {
    float* row = args.sums + ((4 * team + warp) * 8 + lane % 4 * 2 + half) * 130;
    const float of_warp = of_column(normaliser[half]);
    if (lane / 4 == 0) row[128] = most[half], row[129] = of_warp;
    for (int block = 0; block < 2; ++block) {
      row[64 * block + 16 * warp + lane / 4] = sums[block][half];
      row[64 * block + 16 * warp + lane / 4 + 8] = sums[block][half + 2];
    }
  }
}
"""


def source_of(teams: int) -> str:
    """Both kernels with so many teams of four warps."""
    tiling = AttentionTiling(
        head_dim=_HEAD_DIM, columns=_COLUMNS, tile_tokens=_TOKENS, num_stages=_STAGES, math_warps=4 * teams
    )
    return render_attention(tiling, Dtype.BF16) + _KERNELS


def built(teams: int) -> bytes:
    """The compiled kernels.

    Raises:
        RuntimeError: one spills registers.
    """
    cubin, log = compile_source(source_of(teams), "sm_90a")
    if spilled := parse_log(log).spill_bytes:
        raise RuntimeError(f"{teams} teams spill {spilled} bytes")
    return cubin


def measured(way: str, teams: int, num_sms: int) -> dict[str, Any]:
    """Cycles of a tile, with a CTA on each SM.

    Raises:
        ValueError: what it has multiplied is wrong.
    """
    function = check(
        driver.cuModuleGetFunction(check(driver.cuModuleLoadData(built(teams))), f"multiply_{way}".encode())
    )
    smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    check(driver.cuFuncSetAttribute(function, smem, _SMEM_BYTES))
    kind: dict[str, Any] = {"dtype": torch.bfloat16, "device": "cuda"}
    q = torch.randn(_COLUMNS, _HEAD_DIM, **kind)
    k, v = (torch.randn(_STAGES, _TOKENS, _HEAD_DIM, **kind) for _ in range(2))
    sums = torch.zeros(4 * teams, _COLUMNS, _ROW_FLOATS, device="cuda")
    cycles = torch.zeros(num_sms, dtype=torch.int64, device="cuda")
    scale = _HEAD_DIM**-0.5
    args = b"".join(one.data_ptr().to_bytes(8, "little") for one in (q, k, v, sums, cycles))
    args += bytes(ctypes.c_float(scale * math.log2(math.e))) + _TILES.to_bytes(4, "little")
    kept = ctypes.create_string_buffer(args, len(args))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))
    found = []
    for _ in range(_LAUNCHES):
        config = launch_config(num_sms, 128 * teams, _SMEM_BYTES, torch.cuda.current_stream().cuda_stream)
        check(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))
        torch.cuda.synchronize()
        found.append(median(cycles.double().tolist()) / _TILES)
    tokens = (scale * q.double() @ k.double().flatten(0, 1).T).softmax(dim=1)
    expected = tokens @ v.double().flatten(0, 1)
    error = float((result_of(way, sums.double()) - expected).norm() / expected.norm())
    if not error < _MOST_ERROR:
        raise ValueError(f"{way}, {teams} teams: the relative error is {error}")
    return {"way": way, "teams": teams, "cycles_of_tile": round(median(found), 1), "rel_error": error}


def result_of(way: str, sums: torch.Tensor) -> torch.Tensor:
    """Of the warps' sums [warps, columns, head and two]. By `wgmma` a warp has some of a team's elements, all with the
    team's maximum, and the normaliser of its own tokens."""
    if way == "wgmma":
        whole = sums.view(-1, 4, _COLUMNS, _ROW_FLOATS).sum(dim=1)
        whole[..., _HEAD_DIM] /= 4
        sums = whole
    weights = (sums[..., _HEAD_DIM : _HEAD_DIM + 1] - sums[..., _HEAD_DIM : _HEAD_DIM + 1].amax(dim=0)).exp2()
    added = (weights * sums).sum(dim=0)
    return added[:, :_HEAD_DIM] / added[:, _HEAD_DIM + 1 :]


def main(arguments: Sequence[str] | None = None) -> None:
    """Both ways, one team and two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100/attention_multiply.json"))
    options = parser.parse_args(arguments)
    make_current()
    torch.manual_seed(0)
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    rows, failed = [], {}
    for way in ("mma", "wgmma"):
        for teams in (1, 2):
            try:
                rows.append(measured(way, teams, num_sms))
                print(rows[-1], flush=True)
            except Exception as error:  # the others may be right
                failed[f"{way}, {teams} teams"] = repr(error)[:300]
                print(f"failed: {way}, {teams}: {error!r}", flush=True)
    tile_bytes = 4 * _TOKENS * _HEAD_DIM
    arrives = tile_bytes * num_sms / bandwidth_here() * gpu_here().clock_mhz * 1e6
    figures = {"complete": not failed, "failed": failed, "cycles_until_a_tile_arrives": round(arrives, 1)}
    write_report(options.out, rows, {**machine_here(), **figures})


if __name__ == "__main__":
    main()
