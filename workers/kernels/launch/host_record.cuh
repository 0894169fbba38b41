// Where a guarded build writes the record of an abort besides the workspace: in memory of the host that the device writes.
//
// Layout. The data of only a guarded build is in the workspace after the abort record, on a sector of its own, and
// is zeroed with it. The host puts the record's address there, or null.
// Memory order. The record's fields are written before `raised`, with a fence of the system's scope between, so that a
// host that sees `raised` sees them.
#pragma once
#include "launch_args.cuh"

struct Guard {
  AbortRecord* host_record;  // in mapped memory of the host; null if it was not requested
  u64 ctas[2];               // counts of launch_guard.cuh; of the second of two launches that share the workspace: its own
};
constexpr int kGuardOffset = 192;
static_assert(kGuardOffset >= kRefusedOffset + sizeof(RefusedRecord) && kGuardOffset + sizeof(Guard) <= kSignalsOffset,
              "it lies between what is refused and the signals");

__device__ __forceinline__ Guard* guard_of(Workspace* workspace) {
  return reinterpret_cast<Guard*>(reinterpret_cast<char*>(workspace) + kGuardOffset);
}

// The thread that raised the flag, once it has written its record.
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
