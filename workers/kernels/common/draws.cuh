// The list that CTAs draw their tasks from: one atomic add per task, and none waits for another.
//
// Layout. A plan of tickets is one list, the tasks in table order. Where the first wave is dealt, the list is what comes
// after that wave. It is drawn from the second counter then, as the first one counts the CTAs that start.
//
// Epochs. Counters only grow. A CTA draws until it meets the list's end. So one launch draws exactly tasks + num_ctas
// times, whoever ran what. In front of a first wave the first counter gets one from each CTA besides. The counter divided
// by that is the number of the launch. Of two launches that share a workspace each has one list and a counter of its own;
// they are launched equally often, so their epochs agree.
//
// Liveness of tickets: in scheduler.cuh and feed.cuh, since it depends on how far ahead a CTA draws.
#pragma once
#include "launch_args.cuh"

// The counter that tells a launch's number where its CTAs know what they begin with: each counts itself in.
__device__ __forceinline__ u64* start_counter(const LaunchArgs& args) {
  return args.is_second != 0 ? &args.workspace->drawn_second : &args.workspace->drawn;
}

// A CTA's state of its draws; of one thread, or in shared memory for one thread.
struct Draws {
  u64 launch;  // number of this launch

  static __device__ __forceinline__ u64* counter(const LaunchArgs& args) {
    return args.plan.assignment == kFirstWave ? &args.workspace->drawn_second : start_counter(args);
  }

  // Tasks of the list: those after the first wave, of which tickets have none.
  static __device__ __forceinline__ int size(const LaunchArgs& args) {
    return args.plan.num_tasks - args.plan.num_first_tasks;
  }

  static __device__ __forceinline__ u64 per_launch(const LaunchArgs& args) { return size(args) + args.plan.num_ctas; }

  // The counter's next number; its latency is hidden until somebody asks for the task that it means.
  __device__ __forceinline__ u64 draw(const LaunchArgs& args) const { return fetch_add_relaxed_gpu(counter(args), 1); }

  // The number of the launch in which that was drawn.
  __device__ __forceinline__ u64 launch_of(const LaunchArgs& args, u64 drawn) const { return drawn / per_launch(args); }

  // Index of the task that was drawn, or num_tasks where the list is exhausted.
  __device__ __forceinline__ int task_of(const LaunchArgs& args, u64 drawn) const {
    const int place = static_cast<int>(drawn - launch * per_launch(args));
    return place < size(args) ? args.plan.num_first_tasks + place : args.plan.num_tasks;
  }

  // The first task that the CTA draws, which also tells the number of the launch.
  __device__ __forceinline__ int start(const LaunchArgs& args) {
    const u64 drawn = draw(args);
    launch = launch_of(args, drawn);
    return task_of(args, drawn);
  }
};
