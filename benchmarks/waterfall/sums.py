"""What it takes to add the parts of a tile up, several ways: benchmarks/results/<gpu>/sums.json.

python -m benchmarks.waterfall.sums [--out FILE]

Kernels that do nothing else: each CTA has the fp32 sums of a part of a tile of 152 x 128 in registers, as behind a main
loop, and round after round the parts of a tile become fp16 in global memory. `parts` CTAs share a tile. Less what
storing a whole tile takes, that is the cost of a split tile. The numbers are checked. About 10 seconds on an H200.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import cupy

from benchmarks.common.report import driver_version, write_report
from tuner.core.trial.stats import median

#: CTAs, rounds of a launch, launches of a sample, samples.
NUM_CTAS, NUM_ROUNDS, NUM_LAUNCHES, NUM_SAMPLES = 132, 50, 5, 9
#: Vectors of four sums of a thread, threads of a CTA, and buffers that follow each other.
VECTORS, THREADS, BUFFERS = 19, 256, 3
PARTS = (2, 3, 4)
WAYS = {
    "whole": "nobody shares a tile",
    "last": "each stores to a slot, and who comes last adds them up",
    "owner": "all but one store to a slot, and that one adds them up",
    "bulk": "the same, stored by the copy engine",
    "reduced": "the same, added up in the L2 by the copy engine, and read once",
}
_SOURCE = r"""
constexpr int kVectors = VECTORS, kThreads = THREADS, kBuffers = BUFFERS, kParts = PARTS, kRounds = ROUNDS;
constexpr int kWhole = 0, kLast = 1, kOwner = 2, kBulk = 3, kReduced = 4;
constexpr unsigned kBytes = kVectors * kThreads * 16;

struct alignas(8) Half4 { unsigned low, high; };

__device__ unsigned pair_of(float a, float b) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(b), "f"(a));
  return bits;
}
__device__ float4 sum(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ float4 value(int part, int vector, int round) {
  const float first = part + 0.25f * vector + 0.5f * (round % 4) + threadIdx.x % 32;
  return make_float4(first, first + 1, first + 2, first + 3);
}
__device__ void store(Half4* out, const float4 (&sums)[kVectors]) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    out[i * kThreads + threadIdx.x] = {pair_of(sums[i].x, sums[i].y), pair_of(sums[i].z, sums[i].w)};
}
__device__ unsigned acquire(const unsigned* at) {
  unsigned seen;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(at) : "memory");
  return seen;
}
__device__ void await(const unsigned* at, unsigned count) {
  if (threadIdx.x == 0) {
    for (int polls = 0; acquire(at) < count; ++polls)
      if (polls > (1 << 22)) __trap();
  }
  __syncthreads();
}
__device__ void post(unsigned* at) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(at, 1u);
  }
}

// `counters` of a tile, buffer by buffer: parts that came, and rounds that are over; all are 0 before a launch. So are
// `slots`, where they are added to.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
sums(Half4* out, float4* slots, unsigned* counters, int way) {
  extern __shared__ float4 staged[];
  __shared__ unsigned came;
  const int parts = way == kWhole ? 1 : kParts, tile = blockIdx.x / parts, part = blockIdx.x % parts;
  if ((tile + 1) * parts > gridDim.x) return;
  const int owner = parts - 1, lanes = kVectors * kThreads;
  for (int round = 0; round < kRounds; ++round) {
    float4 mine[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) mine[i] = value(part, i, round);
    const int buffer = round % kBuffers, turn = round / kBuffers;
    unsigned* const arrived = counters + 64 * tile + buffer;
    unsigned* const over = arrived + 32;
    float4* const slot = slots + ((tile * kBuffers + buffer) * parts) * lanes;
    Half4* const to = out + tile * lanes;
    if (way == kWhole) {
      store(to, mine);
      continue;
    }
    if (way == kLast || part != owner) {
      await(over, turn);
      float4* const own = slot + (way == kReduced ? 0 : part * lanes);
      if (way == kLast || way == kOwner) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) __stcg(own + i * kThreads + threadIdx.x, mine[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) staged[i * kThreads + threadIdx.x] = mine[i];
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0) {
          const unsigned from = static_cast<unsigned>(__cvta_generic_to_shared(staged));
          if (way == kBulk)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(own),
                         "r"(from), "r"(kBytes) : "memory");
          else
            asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(own),
                         "r"(from), "r"(kBytes) : "memory");
          asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\nfence.proxy.async;" ::: "memory");
        }
      }
      if (way != kLast) {
        post(arrived);
        continue;
      }
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();
        came = atomicAdd(arrived, 1u);
        __threadfence();
      }
      __syncthreads();
      if (came != static_cast<unsigned>(parts * (turn + 1) - 1)) continue;
    } else {
      await(arrived, owner * (turn + 1));
    }
    if (way == kReduced) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        mine[i] = sum(__ldcg(slot + i * kThreads + threadIdx.x), mine[i]);
        __stcg(slot + i * kThreads + threadIdx.x, make_float4(0, 0, 0, 0));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        float4 all = part == 0 ? mine[i] : __ldcg(slot + i * kThreads + threadIdx.x);
        for (int other = 1; other < parts; ++other)
          all = sum(all, other == part ? mine[i] : __ldcg(slot + other * lanes + i * kThreads + threadIdx.x));
        mine[i] = all;
      }
    }
    post(over);
    store(to, mine);
  }
}
"""


def source_of(parts: int) -> str:
    """Of kernels whose tiles have so many parts."""
    numbers = {"VECTORS": VECTORS, "THREADS": THREADS, "BUFFERS": BUFFERS, "PARTS": parts, "ROUNDS": NUM_ROUNDS}
    return "".join(f"#define {name} {value}\n" for name, value in numbers.items()) + _SOURCE


class Sums:
    """The kernels of so many parts, with their memory."""

    def __init__(self, parts: int) -> None:
        module = cupy.RawModule(code=source_of(parts), options=("--std=c++17",), backend="nvrtc")
        self._kernel = module.get_function("sums")
        self._smem_bytes = VECTORS * THREADS * 16
        self._kernel.max_dynamic_shared_size_bytes = self._smem_bytes
        lanes = VECTORS * THREADS
        self._parts = parts
        self.out = cupy.zeros((NUM_CTAS, VECTORS, THREADS, 4), cupy.float16)
        self._slots = cupy.zeros(NUM_CTAS * BUFFERS * lanes * 4, cupy.float32)
        self._counters = cupy.zeros(64 * NUM_CTAS, cupy.uint32)

    def launch(self, way: str) -> None:
        """All rounds, once."""
        self._counters.fill(0)
        arguments = (self.out, self._slots, self._counters, cupy.int32(list(WAYS).index(way)))
        self._kernel((NUM_CTAS,), (THREADS,), arguments, shared_mem=self._smem_bytes)

    def is_right(self, way: str) -> bool:
        """Whether a launch leaves in each tile what its parts come to."""
        self.out.fill(float("nan"))
        self._slots.fill(0)
        self.launch(way)
        parts = 1 if way == "whole" else self._parts
        first = 0.25 * cupy.arange(VECTORS)[:, None, None] + 0.5 * ((NUM_ROUNDS - 1) % 4)
        first = first + (cupy.arange(THREADS) % 32)[None, :, None] + cupy.arange(4)[None, None, :]
        expected = (parts * first + sum(range(parts))).astype(cupy.float16)
        return bool((self.out[: NUM_CTAS // parts] == expected[None]).all())

    def round_us(self, way: str) -> float:
        """Of a round, all launches' counters' reset included, which is the same for all ways."""
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        taken = []
        for _ in range(NUM_SAMPLES):
            begin.record()
            for _ in range(NUM_LAUNCHES):
                self.launch(way)
            end.record()
            end.synchronize()
            taken.append(1e3 * cupy.cuda.get_elapsed_time(begin, end) / NUM_LAUNCHES / NUM_ROUNDS)
        return median(taken)


def main() -> None:
    """Measures all ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h200/sums.json"))
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    for parts in PARTS:
        sums = Sums(parts)
        for way, meaning in WAYS.items():
            row = {"parts": parts, "way": way, "meaning": meaning, "is_right": sums.is_right(way)}
            rows.append(row | {"round_us": round(sums.round_us(way), 3)})
            print(rows[-1], flush=True)
    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    write_report(options.out, rows, {"gpu": name, "driver": driver_version(), "cuda": ""})


if __name__ == "__main__":
    main()
