// Two launches at once on one workspace, found by counting CTAs: in guarded builds alone.
//
// A CTA that starts draws a number. Launches that follow each other draw gridDim.x numbers each, so the number tells the
// CTA's launch, and the last number of that launch. A CTA that ends looks at the counter once more. If somebody has drawn
// a number of a later launch, a CTA of that launch has started before this one has ended. That cannot be where launches
// follow each other: a programmatic one counts its CTAs behind griddepcontrol.wait.
//
// What is reported. Such a CTA raises the abort flag as a wait does that has expired, and the record's task is kNotAlone.
// The results of both launches are then not to be trusted, though they need not be NaN. Where a CTA with a later launch's
// number starts before all CTAs with earlier numbers have ended, the last one of these finds it.
//
// Cost. One atomic add that nobody waits for before the CTA ends, and one load then.
#pragma once
#include "host_record.cuh"
#include "sync.cuh"

constexpr int kNotAlone = -2;

// One thread of each CTA, behind the wait for the launch before.
__device__ __forceinline__ u64 count_start(const LaunchArgs& args) {
  return fetch_add_relaxed_gpu(&guard_of(args.workspace)->started[args.is_second != 0], 1);
}

// The same thread, when the CTA has posted its last tile.
__device__ inline void check_alone(const LaunchArgs& args, u64 number) {
  const u64 grid = gridDim.x, begin = number / grid * grid;
  const u64 started = load_relaxed_gpu(&guard_of(args.workspace)->started[args.is_second != 0]);
  if (started > begin + grid)
    raise_abort(args.workspace, kNotAlone, -1, static_cast<u32>(started - begin), static_cast<u32>(grid));
}
