// A guarded build writes the record of an abort not only to the workspace, but also to mapped host memory.
//
// Layout. The data of guarded builds is in the workspace after the abort record, in a separate sector, and is zeroed
// with it. The host stores the record's address there, or null.
// Memory order. The record's fields are written before `raised`, with a system-scope fence between, so that a host that
// sees `raised` also sees the fields.
#pragma once
#include "launch_args.cuh"

struct Guard {
  AbortRecord* host_record;  // in mapped memory of the host; null if it was not requested
  u64 ctas[2];               // counters of launch_guard.cuh; separate ones for the second launch on a workspace
};
constexpr int kGuardOffset = 192;
static_assert(kGuardOffset >= kRefusedOffset + sizeof(RefusedRecord) && kGuardOffset + sizeof(Guard) <= kSignalsOffset,
              "the guard is between the refused record and the signals");

__device__ __forceinline__ Guard* guard_of(Workspace* workspace) {
  return reinterpret_cast<Guard*>(reinterpret_cast<char*>(workspace) + kGuardOffset);
}

// Called by the thread that set the flag, after it has written its record.
__device__ inline void tell_host(Workspace* workspace) {
  volatile AbortRecord* record = guard_of(workspace)->host_record;
  if (record == nullptr) return;
  record->task = workspace->abort.task;
  record->signal = workspace->abort.signal;
  record->seen = workspace->abort.seen;
  record->expected = workspace->abort.expected;
  record->cta = workspace->abort.cta;
  __threadfence_system();
  record->raised = 1;
}
