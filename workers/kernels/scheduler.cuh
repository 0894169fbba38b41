// Which task comes next: the CTA's own queue, or the next ticket. Also tells the launch's epoch.
//
// Tickets are drawn one ahead, under the last steps of the present tile (earlier, a CTA would hoard: at the start it
// would hold two tickets before its neighbour has one). That keeps liveness: a CTA draws only after its wait is over and
// works its tickets off in the order drawn, every wait of a ticket is posted by lower tickets, so the lowest unfinished
// ticket is held by a CTA that has nothing lower left to do and waits for nothing unfinished.
//
// One launch draws exactly num_tasks + num_ctas tickets (each CTA stops at its first one beyond the end), and static
// queues add exactly num_ctas, so `drawn` divided by that number is the epoch. Of two launches that share a workspace
// each has a counter of its own; they are launched equally often, so their epochs agree.
#pragma once
#include "launch_args.cuh"

struct Scheduler {
  // In shared memory, written by thread 0.
  struct Shared {
    u64 first_ticket;  // of this launch
    u32 epoch;
    int next;
  };

  const LaunchArgs& args;
  Shared& shared;
  int next, end;  // static: what is left of the queue; ticket: the ticket held, and the number of tasks
  u32 epoch;
  u64 drawn_ahead = 0;  // thread 0 of ticket plans

  __device__ Scheduler(const LaunchArgs& launch_args, Shared& in_shared_memory)
      : args(launch_args), shared(in_shared_memory) {
    const bool is_static = args.plan.assignment == kStaticQueues;
    if (threadIdx.x == 0) {
      const u64 per_launch = is_static ? args.plan.num_ctas : args.plan.num_tasks + args.plan.num_ctas;
      const u64 drawn = fetch_add_relaxed_gpu(counter(), 1);
      const u64 launch = drawn / per_launch;
      shared.first_ticket = launch * per_launch;
      shared.epoch = static_cast<u32>(launch);
      shared.next = static_cast<int>(drawn - shared.first_ticket);
    }
    __syncthreads();
    epoch = shared.epoch;
    const int* queues = args.words + args.plan.queue_offset;
    next = is_static ? queues[blockIdx.x] : shared.next;
    end = is_static ? queues[blockIdx.x + 1] : args.plan.num_tasks;
  }

  __device__ u64* counter() const {
    return args.is_second != 0 ? &args.workspace->drawn_second : &args.workspace->drawn;
  }

  __device__ bool has_task() const { return next < end; }

  __device__ Task task() const {
    const int4* words = reinterpret_cast<const int4*>(args.words + args.plan.task_offset) + 2 * next;
    const int4 low = __ldg(words), high = __ldg(words + 1);
    return Task{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  }

  // Draws the ticket of the next round, once per tile; its latency hides behind the tile's last steps.
  __device__ void draw_ahead() {
    if (threadIdx.x == 0 && args.plan.assignment != kStaticQueues)
      drawn_ahead = fetch_add_relaxed_gpu(counter(), 1);
  }

  // Ends the round for the whole CTA: a barrier, after which shared memory may be reused.
  __device__ void advance() {
    if (args.plan.assignment == kStaticQueues) {
      ++next;
      __syncthreads();
      return;
    }
    if (threadIdx.x == 0) shared.next = static_cast<int>(drawn_ahead - shared.first_ticket);
    __syncthreads();
    next = shared.next;
  }
};
