// Which task comes next: the CTA's own queue, or the next ticket. Also tells the launch's epoch.
//
// Tickets are drawn one ahead, while the present tile is computed. That keeps liveness: a CTA works its tickets off in
// the order drawn, every wait of a ticket is posted by lower tickets, so the lowest unfinished ticket is held by a CTA
// that has nothing lower left to do and waits for nothing unfinished.
//
// One launch draws exactly num_tasks + num_ctas tickets (each CTA stops at its first one beyond the end), and static
// queues add exactly num_ctas, so `drawn` divided by that number is the epoch.
#pragma once
#include "launch_args.cuh"

struct Scheduler {
  const LaunchArgs& args;
  int* shared_next;  // [2] in shared memory: task index, epoch
  int next = 0;      // static: next of the queue; ticket: thread 0's drawn ticket
  int end = 0;
  u32 epoch = 0;

  __device__ Scheduler(const LaunchArgs& launch_args, int* shared) : args(launch_args), shared_next(shared) {
    const bool is_static = args.plan.assignment == kStaticQueues;
    const u64 per_launch = is_static ? args.plan.num_ctas : args.plan.num_tasks + args.plan.num_ctas;
    if (threadIdx.x == 0) {
      const u64 drawn = fetch_add_relaxed_gpu(&args.workspace->drawn, 1);
      shared_next[0] = static_cast<int>(drawn % per_launch);
      shared_next[1] = static_cast<int>(drawn / per_launch);
    }
    __syncthreads();
    epoch = static_cast<u32>(shared_next[1]);
    if (is_static) {
      const int* queues = args.words + args.plan.queue_offset;
      next = queues[blockIdx.x];
      end = queues[blockIdx.x + 1];
    } else {
      next = shared_next[0];
      end = args.plan.num_tasks;
    }
  }

  __device__ bool has_task() const { return next < end; }

  __device__ Task task() const {
    const int4* words = reinterpret_cast<const int4*>(args.words + args.plan.task_offset) + 2 * next;
    const int4 low = __ldg(words), high = __ldg(words + 1);
    return Task{low.x, low.y, low.z, low.w, high.x, high.y, {0, 0}};
  }

  // Draws the ticket of the next round; its latency hides behind the tile. Thread 0 holds the result until `advance`.
  __device__ u64 draw_ahead() const {
    const bool draws = threadIdx.x == 0 && args.plan.assignment != kStaticQueues;
    return draws ? fetch_add_relaxed_gpu(&args.workspace->drawn, 1) : 0;
  }

  // Ends the round for the whole CTA: a barrier, after which shared memory may be reused.
  __device__ void advance(u64 drawn_ahead) {
    if (args.plan.assignment == kStaticQueues) {
      ++next;
      __syncthreads();
      return;
    }
    if (threadIdx.x == 0) {
      const u64 per_launch = args.plan.num_tasks + args.plan.num_ctas;
      shared_next[0] = static_cast<int>(drawn_ahead % per_launch);
    }
    __syncthreads();
    next = shared_next[0];
  }
};
