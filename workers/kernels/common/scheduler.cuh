// The next task: from the CTA's own queue, or drawn from a list (draws.cuh). Also computes the launch's epoch.
//
// Tasks are drawn one ahead, during the last steps of the current tile. (If they were drawn earlier, at the start a CTA
// would hold two tickets before its neighbour has one.) mma draws when all waits before k-steps of its task have ended;
// simt may draw before the last of them. Liveness requires neither. A CTA processes its tickets in the order drawn, and
// every wait of a ticket is for posts of lower tickets. So the CTA that holds the lowest unfinished ticket has no lower
// one left, and waits for nothing unfinished.
//
// Static queues add exactly num_ctas to the first counter of draws in each launch. So do plans with a first wave: a CTA
// begins with the task that has its own number, and draws the others from the second counter.
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
  int next, end;  // with static queues the rest of the queue; otherwise the current task and the number of tasks
  u32 epoch;
  u64 drawn_ahead = 0;  // used by thread 0 if the plan draws

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
    task.op &= 0x7FFF;  // never negative: a sign would take a register
    return task;
  }

  // Draws the task of the next round, once per tile; the tile's last steps hide the latency.
  __device__ void draw_ahead() {
    if (threadIdx.x == 0 && args.plan.assignment != kStaticQueues) drawn_ahead = shared.draws.draw(args);
  }

  // Ends the round for the whole CTA with a barrier, after which shared memory may be reused. The tile has been posted.
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
