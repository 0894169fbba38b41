// The list that CTAs draw their tasks from: one atomic add per task; drawing involves no waits.
//
// Layout. A plan of tickets is one list, the tasks in table order. If the first wave is dealt (assigned by CTA number),
// the list contains the tasks after that wave. They are drawn from the second counter, since the first one counts the
// CTAs that start.
//
// Epochs. Counters only grow. A CTA draws until the list is exhausted, so one launch draws exactly tasks + num_ctas
// times, however the tasks are distributed. With a dealt first wave, each CTA also adds one to the first counter. The
// counter divided by that is the number of the launch. Two launches that share a workspace have separate lists and
// counters. Both run equally often, so their epochs agree.
//
// The liveness of tickets is explained in scheduler.cuh and feed.cuh, since it depends on how far ahead a CTA draws.
#pragma once
#include "launch_args.cuh"

// The counter that gives a launch's number if its CTAs have assigned first tasks: each CTA adds one.
__device__ __forceinline__ u64* start_counter(const LaunchArgs& args) {
  return args.is_second != 0 ? &args.workspace->drawn_second : &args.workspace->drawn;
}

// A CTA's state for draws, held by one thread or in shared memory for one thread.
struct Draws {
  u64 launch;  // number of this launch

  static __device__ __forceinline__ u64* counter(const LaunchArgs& args) {
    return args.plan.assignment == kFirstWave ? &args.workspace->drawn_second : start_counter(args);
  }

  // Tasks in the list: those after the first wave, if there is one; tickets have none.
  static __device__ __forceinline__ int size(const LaunchArgs& args) {
    return args.plan.num_tasks - args.plan.num_first_tasks;
  }

  static __device__ __forceinline__ u64 per_launch(const LaunchArgs& args) { return size(args) + args.plan.num_ctas; }

  // Draws the counter's next number; the latency is hidden until the task is needed.
  __device__ __forceinline__ u64 draw(const LaunchArgs& args) const { return fetch_add_relaxed_gpu(counter(args), 1); }

  // The number of the launch in which `drawn` was drawn.
  __device__ __forceinline__ u64 launch_of(const LaunchArgs& args, u64 drawn) const { return drawn / per_launch(args); }

  // Index of the drawn task, or num_tasks if the list is exhausted.
  __device__ __forceinline__ int task_of(const LaunchArgs& args, u64 drawn) const {
    const int place = static_cast<int>(drawn - launch * per_launch(args));
    return place < size(args) ? args.plan.num_first_tasks + place : args.plan.num_tasks;
  }

  // The CTA's first draw, which also gives the number of the launch.
  __device__ __forceinline__ int start(const LaunchArgs& args) {
    const u64 drawn = draw(args);
    launch = launch_of(args, drawn);
    return task_of(args, drawn);
  }
};
