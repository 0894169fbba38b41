"""How fast CTAs bring pages of a cache into shared memory, by each way that there is: boxes of a tensor map, plain bulk
copies, and `cp.async` of 16 bytes by 128 threads. Nothing is computed.

A page has some tokens of each of 8 heads of 128 elements, heads before tokens. A CTA reads one head of many pages in
random order, or a contiguous cache, with so many bytes under way as its ring has. With CTAs on a quarter of the SMs the
memory is not what holds them back.

Boxes are asked for by one thread, or by one of each of four warps; a barrier stands for one, or for four of them.

python -m benchmarks.attention.copies [--page-tokens 16] [--out benchmarks/results/h100/attention_copies.json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver

from benchmarks.common.report import write_report
from tuner.core.problem.workload import Dtype
from tuner.ops.attention.source import CacheMap
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.gpu.launching.launch import check, launch_config
from tuner.workers.gpu.launching.tensor_maps import encode
from tuner.workers.source.render import device_text, inlined

from .measure import machine_here
from .on_card import make_current
from .timing import captured, samples_us

#: Bytes of a token of a head, heads, and bytes that a CTA reads.
_TOKEN_BYTES, _HEADS, _CTA_BYTES = 256, 8, 4 << 20
_THREADS, _ROUNDS = 128, 9
#: As the kernel's `kWay` has them.
WAYS = (
    "boxes", "boxes, misses of 256 bytes", "boxes, four warps ask", "boxes, four a barrier",
    "boxes, four warps ask, four a barrier", "bulk copies", "cp.async",
)  # fmt: skip
_FOUR_ASK, _FOUR_A_BARRIER = "four warps ask", "four a barrier"
_KERNEL = """
struct CopyArgs {
  TensorMap map;         // [lines, tokens of all pages and heads, 64]
  const u16* cache;      // [places, kTokens, 128]
  const int* places;     // of each CTA kCopies: which tokens, in units of a copy
  u32* seen;             // a word of each CTA: of what it has read
};

constexpr int kBytes = 256 * kTokens;
constexpr int kRing = kStages * kTogether * kBytes;

extern "C" __global__ void __launch_bounds__(128, 1) copy_pages(const __grid_constant__ CopyArgs args) {
  extern __shared__ __align__(1024) unsigned char shared[];
  const u32 ring = static_cast<u32>(__cvta_generic_to_shared(shared)), barriers = ring + kRing;
  int* rows = reinterpret_cast<int*>(shared + kRing + 8 * kStages);  // where each copy begins
  const int thread = static_cast<int>(threadIdx.x);
  const int* places = args.places + blockIdx.x * static_cast<long long>(kCopies);
  for (int i = thread; i < kCopies; i += 128) rows[i] = places[i] * kTokens;
  if (thread == 0) {
    for (int stage = 0; stage < kStages; ++stage) mbarrier_init(barriers + 8 * stage, 1);
    fence_mbarrier_init();
  }
  __syncthreads();
  if constexpr (!kAsync) {
    if (thread % 32 == 0 && thread / 32 < kAskers) {
      for (int i = thread / 32; i < kCopies / kTogether + kStages; i += kAskers) {
        const int stage = i % kStages;
        const u32 barrier = barriers + 8 * stage;
        if (i >= kStages) mbarrier_wait(barrier, (i / kStages & 1) ^ 1);
        if (i >= kCopies / kTogether) continue;
        mbarrier_arrive_expect(barrier, kTogether * kBytes);
        for (int copy = 0; copy < kTogether; ++copy) {
          const u32 there = ring + (stage * kTogether + copy) * kBytes;
          const int row = rows[i * kTogether + copy];
          if constexpr (kBoxed) {
            copy_lines(there, &args.map, row, 0, barrier, cache_policy<kEvictFirst>());
          } else {
            copy_bytes(there, args.cache + 128ll * row, kBytes, barrier);
          }
        }
      }
    }
  } else {
    for (int i = 0; i < kCopies; ++i) {
      const u32 stage = ring + i % kStages * kBytes;
      for (int chunk = thread; chunk < kBytes / 16; chunk += 128)
        cp_async<16, kEvictFirst>(stage + 16 * chunk, args.cache + 128ll * rows[i] + 8 * chunk, 16);
      cp_async_commit();
      cp_async_wait<kStages - 1>();
    }
    cp_async_wait<0>();
  }
  __syncthreads();
  const int last = (kCopies - 1) % (kStages * kTogether);
  if (thread == 0) args.seen[blockIdx.x] = *reinterpret_cast<u32*>(shared + last * kBytes);
}
"""


@dataclass(frozen=True, kw_only=True)
class Copying:
    """One kernel over one order of pages."""

    way: str
    #: Of a page.
    tokens: int
    #: Under way in a CTA, at most.
    ring_bytes: int
    is_random: bool
    #: CTAs, of each SM one at most.
    num_ctas: int

    @property
    def together(self) -> int:
        """Copies of a barrier."""
        return 4 if _FOUR_A_BARRIER in self.way else 1

    @property
    def askers(self) -> int:
        """Warps of which one thread asks; each has stages of its own."""
        return 4 if _FOUR_ASK in self.way else 1

    @property
    def stages(self) -> int:
        return self.ring_bytes // (self.tokens * _TOKEN_BYTES * self.together)

    @property
    def copies(self) -> int:
        """Of a CTA."""
        return _CTA_BYTES // (self.tokens * _TOKEN_BYTES)

    @property
    def smem_bytes(self) -> int:
        return self.ring_bytes + 8 * self.stages + 4 * self.copies

    @property
    def source(self) -> str:
        types, _, rest = device_text("config.cuh").partition("// One op of the chain")
        assert rest, "config.cuh has the hints in front of the ops"
        constants = {
            "kTokens": self.tokens, "kStages": self.stages, "kCopies": self.copies, "kTogether": self.together,
            "kAskers": self.askers, "kBoxed": int(self.way.startswith("boxes")), "kAsync": int(self.way == "cp.async"),
        }  # fmt: skip
        lines = [f"constexpr int {name} = {value};" for name, value in constants.items()]
        wrappers = [inlined(name) for name in ("ptx.cuh", "ptx_hopper.cuh", "ptx_attention.cuh")]
        return "\n".join([types.replace("#pragma once\n", ""), *lines, *wrappers, _KERNEL])

    @property
    def build(self) -> bytes:
        """The compiled kernel; may be called by several threads.

        Raises:
            RuntimeError: it spills registers.
        """
        cubin, log = compile_source(self.source, "sm_90a")
        if spilled := parse_log(log).spill_bytes:
            raise RuntimeError(f"{self} spills {spilled} bytes")
        return cubin


class OnCard:
    """A cache that no L2 holds, and launches over it."""

    def __init__(self, num_sms: int) -> None:
        self.num_sms = num_sms
        #: As much as CTAs on all SMs read.
        self.cache = torch.randint(0, 2**15, (num_sms * _CTA_BYTES // 2,), dtype=torch.int16, device="cuda")

    @cached_property
    def seen(self) -> torch.Tensor:
        return torch.zeros(self.num_sms, dtype=torch.int32, device="cuda")

    def captured(self, one: Copying, cubin: bytes) -> tuple[torch.cuda.CUDAGraph, Any]:
        """A graph of one launch, and what must live as long.

        Raises:
            RuntimeError: a CTA has not read what lies there.
        """
        function = check(driver.cuModuleGetFunction(check(driver.cuModuleLoadData(cubin)), b"copy_pages"))
        smem = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(driver.cuFuncSetAttribute(function, smem, one.smem_bytes))
        places = self._places(one)
        tokens = self.cache.numel() * 2 // _TOKEN_BYTES
        cache_map = CacheMap(dims=(64, tokens, 2), strides_bytes=(256, 128), box=(64, one.tokens, 2))
        promotion = 256 if "256" in one.way else 128
        args = encode(cache_map, Dtype.BF16, self.cache.data_ptr(), promotion)
        for tensor in (self.cache, places, self.seen):
            args += tensor.data_ptr().to_bytes(8, "little")
        args += bytes(-len(args) % 64)
        kept = ctypes.create_string_buffer(args, len(args))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(kept))

        def launch() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            config = launch_config(one.num_ctas, _THREADS, one.smem_bytes, stream)
            check(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))

        self.seen.fill_(-1)
        graph = captured([launch])
        graph.replay()
        torch.cuda.synchronize()
        self._check(one, places)
        return graph, (function, places, kept, pointers)

    def _places(self, one: Copying) -> torch.Tensor:
        """[CTAs, copies] in units of a copy. Of random pages, CTAs of 8 heads read the same ones."""
        ctas, copies = torch.arange(one.num_ctas)[:, None], torch.arange(one.copies)[None]
        if not one.is_random:
            return (ctas * one.copies + copies).int().cuda()
        num_pages = self.cache.numel() * 2 // (one.tokens * _TOKEN_BYTES * _HEADS)
        order = torch.randperm(num_pages)
        pages = order[(ctas // _HEADS * one.copies + copies) % num_pages]
        return (pages * _HEADS + ctas % _HEADS).int().cuda()

    def _check(self, one: Copying, places: torch.Tensor) -> None:
        first = places[:, -1].long() * (one.tokens * _TOKEN_BYTES // 4)
        if not torch.equal(self.seen[: one.num_ctas], self.cache.view(torch.int32)[first]):
            raise RuntimeError(f"{one} has not brought what lies there")


def tried(num_sms: int, page_tokens: Sequence[int] = (16, 32, 64)) -> list[Copying]:
    """Each way at each size of a page, in random order; and 64 tokens at a time of a contiguous cache."""
    found = []
    for way, tokens, ring, ctas in product(WAYS, page_tokens, (65_536, 131_072, 196_608), (num_sms, num_sms // 4)):
        orders = (True, False) if tokens == 64 else (True,)
        found += [Copying(way=way, tokens=tokens, ring_bytes=ring, is_random=order, num_ctas=ctas) for order in orders]
    return [one for one in found if one.stages and one.stages % one.askers == 0]


def main(arguments: Sequence[str] | None = None) -> None:
    """All of them in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page-tokens", type=int, choices=(16, 32, 64), help="of a page; all without it")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/h100/attention_copies.json"))
    options = parser.parse_args(arguments)
    make_current()
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count
    ways = tried(num_sms, [options.page_tokens]) if options.page_tokens else tried(num_sms)
    sources = list(dict.fromkeys(one.source for one in ways))
    by_source = {one.source: one for one in ways}
    with ThreadPoolExecutor(8) as pool:
        cubins = dict(zip(sources, pool.map(lambda source: by_source[source].build, sources), strict=True))
    card, graphs, kept = OnCard(num_sms), dict[str, torch.cuda.CUDAGraph](), []
    names = {str(number): one for number, one in enumerate(ways)}
    failed = {}
    for name, one in names.items():
        try:
            graphs[name], lives = card.captured(one, cubins[one.source])
            kept.append(lives)
        except Exception as error:  # the others may be right
            failed[str(one)] = repr(error)[:200]
            print(f"failed: {one}: {error!r}", flush=True)
    rows = []
    for name, us in samples_us(graphs, 1, _ROUNDS).items():
        one, fastest = names[name], sorted(us)[len(us) // 2]
        rows.append(
            {
                "way": one.way,
                "page_tokens": one.tokens,
                "ring_bytes": one.ring_bytes,
                "order": "random" if one.is_random else "contiguous",
                "ctas": one.num_ctas,
                "us": round(fastest, 2),
                "gb_per_s": round(one.num_ctas * _CTA_BYTES / fastest / 1e3, 1),
                "gb_per_s_of_cta": round(_CTA_BYTES / fastest / 1e3, 2),
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    write_report(options.out, rows, {**machine_here(), "complete": not failed, "failed": failed})


if __name__ == "__main__":
    main()
