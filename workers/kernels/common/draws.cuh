// Lists that CTAs draw their tasks from: one atomic add per task, and none waits for another.
//
// Layout. A ticket plan is one list, the tasks in table order. Where the first wave is dealt, it is what comes behind that
// wave: list 1, which is drawn from the second counter, as the first one counts the CTAs that start. With stealing there
// are two lists: list 0 is the first num_first_tasks tasks of the table, list 1 the others. CTAs [0, num_first_ctas) begin
// with list 0, the others with list 1, and each turns to the other list, once, when its own is exhausted. Each list has a
// counter on a cache line of its own.
//
// Epochs. Counters only grow. A CTA draws from a list until it meets the list's end, and it draws from every list. So
// one launch draws exactly tasks + num_ctas times from each counter, whoever ran what. In front of a first wave the
// first counter gets one from each CTA instead. The counter divided by that is the number of the launch, the same for
// both lists. Of two launches that share a workspace each has one list and a counter of its own; they are launched
// equally often, so their epochs agree.
//
// Liveness of tickets: in scheduler.cuh and feed.cuh, since it hangs on how far ahead a CTA draws.
//
// Liveness with stealing. Three things are promised. Every CTA is resident (a cooperative launch, or the argument of
// dependent_launch.cuh). A CTA that begins with list 0 draws from list 1 only when list 0 is exhausted. And
//
//     no CTA holds a task of list 0 behind a task of list 1 that may still wait.
//
// So whoever turns from list 1 to list 0 has finished all that it held; it turns between two tasks. Turning from list 0 to
// list 1 may be done ahead of time: what is held of list 0 stands in front. All that a CTA holds is then in table order,
// and the table's order is proven to be a linear extension of the waits. Let t be the lowest unfinished task of the table.
// If a CTA holds it, nothing that may wait stands in front of it and all that it waits for is finished, so it finishes. If
// nobody has drawn it, nothing behind it in its list is drawn either. A t of list 0: a CTA that begins there has drawn
// from that list alone, so all that it drew is finished, and it draws t. A t of list 1: all of list 0 is finished, and all
// that is drawn of list 1, so every CTA is at leisure to draw t. Were a thief to draw ahead of a task in which it waits,
// it might hold the very producer that this task waits for.
#pragma once
#include "launch_args.cuh"

// What a CTA knows of its draws; of one thread, or in shared memory for one thread.
struct Draws {
  u64 launch;  // number of this launch
  int list;    // that the CTA draws from now

  static __device__ __forceinline__ bool has_two(const LaunchArgs& args) { return args.plan.assignment == kStealing; }

  // Of a first wave that was dealt, the rest is list 1.
  static __device__ __forceinline__ int own_list(const LaunchArgs& args) {
    if (args.plan.assignment == kFirstWave) return 1;
    return has_two(args) && cluster_number() >= args.plan.num_first_ctas ? 1 : 0;
  }

  static __device__ __forceinline__ u64* counter(const LaunchArgs& args, int list) {
    return args.is_second != 0 || list != 0 ? &args.workspace->drawn_second : &args.workspace->drawn;
  }

  __device__ __forceinline__ int begin(const LaunchArgs& args) const { return list == 0 ? 0 : args.plan.num_first_tasks; }

  __device__ __forceinline__ int size(const LaunchArgs& args) const {
    if (list != 0) return args.plan.num_tasks - args.plan.num_first_tasks;
    return has_two(args) ? args.plan.num_first_tasks : args.plan.num_tasks;
  }

  __device__ __forceinline__ u64 per_launch(const LaunchArgs& args) const { return size(args) + args.plan.num_ctas; }

  // The next number of the list's counter; its latency is hidden until somebody asks for the task that it means.
  __device__ __forceinline__ u64 draw(const LaunchArgs& args) const { return fetch_add_relaxed_gpu(counter(args, list), 1); }

  // The number of the launch in which that was drawn.
  __device__ __forceinline__ u64 launch_of(const LaunchArgs& args, u64 drawn) const { return drawn / per_launch(args); }

  // Index of the task that was drawn, or num_tasks where the list is exhausted.
  __device__ __forceinline__ int task_of(const LaunchArgs& args, u64 drawn) const {
    const int place = static_cast<int>(drawn - launch * per_launch(args));
    return place < size(args) ? begin(args) + place : args.plan.num_tasks;
  }

  // Whether there is a list that the CTA has not met the end of, now that it has met that of its list.
  __device__ __forceinline__ bool can_turn(const LaunchArgs& args) const {
    return has_two(args) && list == own_list(args);
  }

  // The first task of the other list for this CTA.
  __device__ __forceinline__ int turn(const LaunchArgs& args) {
    list ^= 1;
    return task_of(args, draw(args));
  }

  // The first task that the CTA draws, which also tells the number of the launch.
  __device__ __forceinline__ int start(const LaunchArgs& args) {
    list = own_list(args);
    const u64 drawn = draw(args);
    launch = launch_of(args, drawn);
    const int task = task_of(args, drawn);
    return task == args.plan.num_tasks && can_turn(args) ? turn(args) : task;
  }
};
