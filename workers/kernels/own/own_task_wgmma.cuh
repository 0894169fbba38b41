// A task that its kind defines, in the warp-specialised kernel.
//
// It takes one stage of each ring, which stays empty: so all roles process it like any other task, without special
// phases. The weights' thread arrives at its stage in turn; the inputs' warp arrives at its own when the task's waits
// are over. So when both are full, all inputs of the task are ready. The math warpgroups of a team run it in the team's
// own shared memory, since the rings hold stages of the following tasks. They release both stages first.
// Memory order. The inputs' warp has acquired what it waited for; its arrival and the math warps' wait pass that on at
// CTA scope. They use plain loads, which need no proxy fence. Their output is posted like any tile (post_wgmma.cuh).
// Abort. If a wait has expired, the task's inputs may be missing: the team then fills all of the op's outputs with NaN,
// since only the kind knows where a tile is. Every element of an aborted launch is correct or NaN.
#pragma once
#include "own_task.cuh"
#include "shared_wgmma.cuh"

// The math warpgroups that share a task. Their barrier is the one after those of the warpgroups. CTAs that split K also
// use it, but such an op is never in a kernel of theirs.
struct MathTeam {
  enum : int { kCount = kTeamThreads };  // adds no symbol to a kernel
  __device__ static int thread() { return team_thread(); }
  __device__ static void sync() { barrier_sync<kTeamThreads>(kTeamBarriers + team_number()); }
};

// Also fills the further outputs of an op, if it has any.
template <int kOp, class Team>
__device__ __forceinline__ auto spoil_others(const OpArgs& op, Team team, int) -> decltype(OwnTask<kOp>::spoil(op, team)) {
  OwnTask<kOp>::spoil(op, team);
}
template <int kOp, class Team>
__device__ __forceinline__ void spoil_others(const OpArgs&, Team, long) {}

// Computes and stores one tile.
template <int kOp>
__device__ __forceinline__ void run_own_tile(const LaunchArgs& args, const FeedSlot& slot, const Shared& shared,
                                             StagePlaces& places) {
  static_assert(kClusterSize == 1 || !is_own_task(kOp), "tasks of other op kinds do not support clusters");
  const int lane = thread_number() % 32;
  const Stages stages{shared.inputs, shared.weights};
  if constexpr (kNumTeams > 1) mbarrier_wait(shared_address(&shared.flags->turn), team_number() ^ 1);
  stages.wait_filled(places);
  __syncwarp();  // no lane may still be waiting for a phase when lane 0 lets the next phases begin
  places.advance();
  stages.release_before(places, lane);
  if constexpr (kNumTeams > 1) {
    if (lane == 0) mbarrier_arrive(shared_address(&shared.flags->turn));
  }
  if (team_thread() == 0) trace_stamp(args, slot.index, kLoaded);
  const OpArgs& op = args.ops[kOp];
  if (shared.flags->aborted == 0) {
    OwnTask<kOp>::run(op, slot.task, shared.own + team_number() * kOwnTaskBytes, MathTeam());
  } else {
    for (int i = team_thread(); i < op.m * op.n; i += kTeamThreads) op.c[i] = Element::kNan;
    spoil_others<kOp>(op, MathTeam(), 0);
  }
  if (team_thread() == 0) trace_stamp(args, slot.index, kComputed);
  MathTeam::sync();
}
