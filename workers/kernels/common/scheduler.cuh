// Which task comes next: the CTA's own queue, or what it draws from a list (draws.cuh). Also computes the launch's epoch.
//
// Tasks are drawn one ahead, under the last steps of the present tile. (If they were drawn earlier, a CTA of these
// engines would hoard: at the start it would hold two tickets before its neighbour has one.) mma draws when all waits of
// its task before k-steps are over; simt may draw before the last of them is. Liveness needs neither. A CTA works its tickets off in
// the order drawn, and every wait of a ticket is posted by lower tickets. So the lowest unfinished ticket is held by a
// CTA that has nothing lower left to do and waits for nothing unfinished.
//
// Static queues add exactly num_ctas to the first counter of draws in each launch. So do plans with a first wave: a CTA
// begins with the task of its own number, and draws the others from the second counter.
#pragma once
#include "draws.cuh"

struct Scheduler {
  // In shared memory, written by thread 0.
  struct Shared {
    Draws draws;
    u32 epoch;
    int next;
  };

  const LaunchArgs& args;
  Shared& shared;
  int next, end;  // static: what is left of the queue; else: the task held, and the number of tasks
  u32 epoch;
  u64 drawn_ahead = 0;  // thread 0 of plans that draw

  __device__ Scheduler(const LaunchArgs& launch_args, Shared& in_shared_memory)
      : args(launch_args), shared(in_shared_memory) {
    const bool is_static = args.plan.assignment == kStaticQueues;
    if (threadIdx.x == 0) {
      if (knows_first_task(args)) {
        const u64 launch = fetch_add_relaxed_gpu(start_counter(args), 1) / args.plan.num_ctas;
        shared.next = static_cast<int>(blockIdx.x);
        shared.epoch = static_cast<u32>(launch);
        shared.draws = {launch};
      } else {
        Draws draws;
        shared.next = draws.start(args);
        shared.epoch = static_cast<u32>(draws.launch);
        shared.draws = draws;
      }
    }
    __syncthreads();
    epoch = shared.epoch;
    const int* queues = args.words + args.plan.queue_offset;
    next = is_static ? queues[blockIdx.x] : shared.next;
    end = is_static ? queues[blockIdx.x + 1] : args.plan.num_tasks;
  }

  __device__ bool has_task() const { return next < end; }

  __device__ Task task() const {
    Task task = load_task(args.words + args.plan.task_offset + kTaskWords * next);
    task.op &= 0x7FFF;  // it is never below 0: a sign would take a register
    return task;
  }

  // Draws the task of the next round, once per tile; its latency hides after the tile's last steps.
  __device__ void draw_ahead() {
    if (threadIdx.x == 0 && args.plan.assignment != kStaticQueues) drawn_ahead = shared.draws.draw(args);
  }

  // Ends the round for the whole CTA: a barrier, after which shared memory may be reused. The tile is posted.
  __device__ void advance() {
    if (args.plan.assignment == kStaticQueues) {
      ++next;
      __syncthreads();
      return;
    }
    if (threadIdx.x == 0) shared.next = shared.draws.task_of(args, drawn_ahead);
    __syncthreads();
    next = shared.next;
  }
};
