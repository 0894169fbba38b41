// Two launches at once on one workspace, found by counting CTAs: only in guarded builds.
//
// One word counts the CTAs that have started, over all launches, and those that are at work. A CTA that starts adds to
// both and sees what was there before. Launches that follow each other start gridDim.x CTAs each, so the count says the
// CTA's place in its launch. Only the CTAs before it there may be at work. If more are, an earlier launch has not
// ended. A programmatic launch counts its CTAs after griddepcontrol.wait.
//
// What is reported. Such a CTA raises the abort flag as a wait does that has expired, and the record's task is kNotAlone.
// The results of both launches are then not to be trusted, though they need not be NaN. The first CTA of a launch finds
// every CTA that is still at work; so a CTA of a later place need not.
//
// Cost. One atomic add, whose result the posting thread knows before its first tile. One add at the end, which no one
// waits for. A load there would be in the way of every launch after.
#pragma once
#include "host_record.cuh"
#include "sync.cuh"

constexpr int kNotAlone = -2;
constexpr int kStartedShift = 16;  // below: CTAs at work, of which no card holds this many
constexpr u64 kOneStarted = u64{1} << kStartedShift, kOneAtWork = 1;

// Nobody waits for it: an atomic whose result is dropped still comes back.
__device__ __forceinline__ void add_relaxed_gpu(u64* address, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ u64* counted_ctas(const LaunchArgs& args) {
  return &guard_of(args.workspace)->ctas[args.is_second != 0];
}

// One thread of each CTA, after the wait for the launch before.
__device__ inline void count_start(const LaunchArgs& args) {
  const u64 before = fetch_add_relaxed_gpu(counted_ctas(args), kOneStarted + kOneAtWork);
  const u32 at_work = static_cast<u32>(before & (kOneStarted - 1));
  const u32 place = static_cast<u32>((before >> kStartedShift) % gridDim.x);
  if (at_work > place) raise_abort(args.workspace, kNotAlone, -1, at_work + 1, place + 1);
}

// The same thread, when the CTA has posted its last tile.
__device__ __forceinline__ void count_end(const LaunchArgs& args) {
  add_relaxed_gpu(counted_ctas(args), ~u64{0});  // one at work less; somebody is, so it borrows nothing
}
