// The task of an op whose kind has what a task does. The loop over tasks waits, posts and stamps; the kind computes.
//
// A kind gives OwnTask<kOp>::run(op, task, memory, team): all threads of the team compute and store the tile of `task`,
// which is at tile row task.tile_m and tile column task.tile_n. All that it reads of other ops is there. `memory` is
// shared, of as many bytes as the kind's rules say; nothing else uses it meanwhile, and what it held is gone. A load of
// what another op wrote must not go through the read-only cache. A team knows itself: which thread it is, how many there
// are, and their barrier. It is the whole CTA, or of wgmma the warpgroups that multiply a task.
#pragma once
#include "launch_args.cuh"

// Bit i: op i gathers its rows, as in gather.cuh. A macro, so that kernels without such an op stay the same.
#ifndef TUNER_GATHERS
#define TUNER_GATHERS 0
#endif

template <int kOp>
struct OwnTask;
