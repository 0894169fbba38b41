// The task of an op whose kind defines its computation. The loop over tasks waits, posts and stamps; the kind computes.
//
// A kind defines OwnTask<kOp>::run(op, task, memory, team): all threads of the team compute and store the tile of
// `task`, which is at tile row task.tile_m and tile column task.tile_n. All of its inputs from other ops are ready.
// `memory` is shared memory of the size that the kind's rules state; nothing else uses it during the call, and its
// content is undefined at the start. Outputs of other ops must not be loaded through the read-only cache. A team object
// provides the thread's index, the number of threads, and their barrier. A team is the whole CTA, or for wgmma the
// warpgroups that multiply a task.
#pragma once
#include "launch_args.cuh"

// Bit i: op i gathers its rows, as in gather.cuh. A macro, so that the machine code of other kernels does not change.
#ifndef TUNER_GATHERS
#define TUNER_GATHERS 0
#endif

template <int kOp>
struct OwnTask;
