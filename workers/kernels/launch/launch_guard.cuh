// Detects two simultaneous launches on one workspace by counting CTAs; only in guarded builds.
//
// One word counts the CTAs that have started, over all launches, and those that are active. A CTA that starts
// increments both and gets the previous values. Each launch starts gridDim.x CTAs, so the count gives the CTA's
// position in its launch. Only CTAs with earlier positions may be active. If more are, an earlier launch has not ended.
// A programmatic launch counts its CTAs after griddepcontrol.wait.
//
// What is reported. Such a CTA sets the abort flag like an expired wait, and the record's task is kNotAlone. The
// results of both launches are then unreliable, but not necessarily NaN. The first CTA of a launch detects every CTA
// that is still active, so it does not matter if later CTAs miss one.
//
// Cost. One atomic add, whose result the posting thread has received before its first tile. One add at the end, whose
// result is not used. A load there would delay every later launch.
#pragma once
#include "host_record.cuh"
#include "sync.cuh"

constexpr int kNotAlone = -2;
constexpr int kStartedShift = 16;  // low bits: active CTAs, fewer than this on any card
constexpr u64 kOneStarted = u64{1} << kStartedShift, kOneAtWork = 1;

// This form returns no result; an atomic whose result is ignored would still return it.
__device__ __forceinline__ void add_relaxed_gpu(u64* address, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ u64* counted_ctas(const LaunchArgs& args) {
  return &guard_of(args.workspace)->ctas[args.is_second != 0];
}

// Called by one thread of each CTA, after the wait for the previous launch.
__device__ inline void count_start(const LaunchArgs& args) {
  const u64 before = fetch_add_relaxed_gpu(counted_ctas(args), kOneStarted + kOneAtWork);
  const u32 at_work = static_cast<u32>(before & (kOneStarted - 1));
  const u32 place = static_cast<u32>((before >> kStartedShift) % gridDim.x);
  if (at_work > place) raise_abort(args.workspace, kNotAlone, -1, at_work + 1, place + 1);
}

// Called by the same thread, when the CTA has posted its last tile.
__device__ __forceinline__ void count_end(const LaunchArgs& args) {
  add_relaxed_gpu(counted_ctas(args), ~u64{0});  // one active CTA less; the count is above 0, so nothing is borrowed
}
