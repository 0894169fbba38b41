// Time stamps from inside the kernel: when each task was taken, ready, loaded, computed and stored, and by which CTA.
// Only builds with kTrace record them: in all others these functions are empty, and the machine code is the same as
// without them. A traced build is never timed.
//
// Layout. args.trace is a table of 48-byte rows, one per task of the plan and then one per CTA: TaskStamps, CtaStamps.
// Threads. Each function is called by one thread, which the caller selects. If warps have roles, different threads may
// stamp the events of one task. In a cluster, the first CTA stamps. A stamp is a read of the SM's cycle counter and one
// 8-byte store to global memory: some tens of cycles; a later release of the same thread also waits for that store.
// Clocks. Cycle counters are private to an SM; the global timer is common, but advances in ticks of up to a
// microsecond. At its begin and end, a CTA therefore waits for an edge of the timer and stamps both; the host fits a
// line through the pairs. Memory order. None: the host reads the table after the launch.
#pragma once
#include "launch_args.cuh"

enum TraceEvent : int { kTaken = 0, kReady = 1, kLoaded = 2, kComputed = 3, kStored = 4 };

struct TaskStamps {
  long long cycles[5];  // by TraceEvent
  long long cta;
};

struct CtaStamps {
  long long begin_cycles, begin_ns, end_cycles, end_ns;
  long long sm, zero;
};

static_assert(sizeof(TaskStamps) == 48 && sizeof(CtaStamps) == 48, "the host reads rows of six 64-bit words");

// Polls of the global timer for one edge: some tens of microseconds, so that a stopped timer causes no hang.
constexpr int kMaxTimerPolls = 1000;

__device__ __forceinline__ void trace_stamp(const LaunchArgs& args, int task_index, TraceEvent event) {
  if constexpr (kTrace) {
    if (rank_in_cluster() != 0) return;
    TaskStamps* row = static_cast<TaskStamps*>(args.trace) + task_index;
    row->cycles[event] = read_clock();
    if (event == kTaken) row->cta = cluster_number();
  }
}

// The cycle counter at the next edge of the global timer.
__device__ inline void trace_catch_edge(long long& cycles, long long& ns) {
  const long long first = read_globaltimer();
  long long now = first;
  for (int polls = 0; polls < kMaxTimerPolls && now == first; ++polls) now = read_globaltimer();
  cycles = read_clock();
  ns = now;
}

__device__ __forceinline__ CtaStamps* trace_cta_row(const LaunchArgs& args) {
  return static_cast<CtaStamps*>(args.trace) + args.plan.num_tasks + cluster_number();
}

// Called first by the CTA, before it takes a task.
__device__ __forceinline__ void trace_begin(const LaunchArgs& args) {
  if constexpr (kTrace) {
    if (rank_in_cluster() != 0) return;
    CtaStamps* row = trace_cta_row(args);
    trace_catch_edge(row->begin_cycles, row->begin_ns);
    row->sm = read_smid();
    row->zero = 0;
  }
}

// Called by the CTA after its last stamp.
__device__ __forceinline__ void trace_end(const LaunchArgs& args) {
  if constexpr (kTrace) {
    if (rank_in_cluster() != 0) return;
    CtaStamps* row = trace_cta_row(args);
    trace_catch_edge(row->end_cycles, row->end_ns);
  }
}
