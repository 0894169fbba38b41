// Two launches side by side on two streams: the start gate before the second.
//
// The second launch waits for posts of the first, tile by tile. Nothing guarantees that the first launch's CTAs are
// placed before the second's, and if waiting CTAs filled the GPU, the CTAs that they wait for could not start. So one
// thread runs before the second launch until a counter shows that every CTA of the first has started: with static
// queues a CTA draws once, when it starts. From there on:
//
// Liveness. The CTAs of the first launch do not wait (this is proven of its plan), so each of them, once started, runs
// to its end and makes all of its posts. The second launch's CTAs wait only for these posts, so those that are resident
// also end, and make room for the others. Neither launch needs all of its CTAs resident at once. While the start gate
// waits, it occupies one warp of one SM; if that leaves no room for a CTA of the first launch there, that CTA starts
// when another one ends.
//
// CUDA does not guarantee that two streams, or two branches of a graph, make progress at the same time. The first
// launch is enqueued before the start gate, and the gate's wait is bounded like that for a signal. If the wait expires,
// it sets the abort flag; the second launch sees that and fills all outputs with NaN. sync.cuh explains why no store of
// the first launch comes later.
//
// Memory order. The start gate needs no fence, since it only counts. The second launch reads data of the first only
// after its own waits.
#pragma once
#include "launch_args.cuh"
#include "sync.cuh"

extern "C" __global__ void __launch_bounds__(1) tuner_start_gate(Workspace* workspace, int num_ctas,
                                                                 long long spin_limit_cycles) {
  const u64 launch = workspace->start_gates;  // launches on one workspace run in order, so there is one gate at a time
  workspace->start_gates = launch + 1;
  const u64 before = launch * num_ctas, target = before + num_ctas;
  const long long start = clock64();
  for (;;) {
    const u64 started = load_relaxed_gpu(&workspace->drawn);
    if (started >= target || load_relaxed_gpu(&workspace->abort.raised) != 0) return;
    if (clock64() - start > spin_limit_cycles) {
      raise_abort(workspace, -1, -1, static_cast<u32>(started - before), static_cast<u32>(num_ctas));
      return;
    }
  }
}
