// The persistent warp-specialised kernel: runs any verified plan of a chain of ops on sm_90a.
#pragma once
#include "beside_wgmma.cuh"
#include "epilogue_tma.cuh"
#include "fixup.cuh"
#include "in_band_wgmma.cuh"
#include "own_task_wgmma.cuh"
#include "post_wgmma.cuh"
#include "producers_wgmma.cuh"
#include "scattered_sum.cuh"
#include "startup_prefetch.cuh"

// Barriers of the teams, after those of the warpgroups: one for the end of a task if CTAs split K, and one for adding
// up parts. squares_barrier() comes after these.
__device__ __forceinline__ int team_barrier() { return kTeamBarriers + team_number(); }

// What the epilogue of the task in that feed slot needs for norms and for in-band readers. Each of the CTAs that split
// a tile's K finishes some of its columns, or with swapped operands some of its rows.
template <int kOp>
__device__ __forceinline__ RowNorm row_norm(const LaunchArgs& args, const Task& task, const FeedRing::Place& feed,
                                            const Beside& beside, u32 epoch) {
  if constexpr (!kChainOps[kOp].is_any() && readers_of(kOp) == 0 && part_exchanges(kOp) == 0) return {};
  constexpr int kShares = kSwapAb ? 1 : kClusterK;
  RowNorm norm{beside.factors(feed), own_slot<kOp, kShares>(args, task, kShares > 1 ? rank_along_k() : 0),
               beside.scratch(team_number())};
  open_mailbox<kOp>(args, task, epoch, norm);
  return norm;
}

// A team's share of one task; false if another part of the tile will be the last. The task's words are read from the
// feed when they are needed, since registers are reserved for the sums.
template <int kOp = 0>
__device__ __forceinline__ bool compute_tile(const WgmmaArgs& args, const FeedSlot& slot, FeedRing::Place feed,
                                             const Shared& shared, float (&acc)[kMaxWgmmaAccumulators],
                                             StagePlaces& places, SumRing::Place& sum) {
  if constexpr (kOp < kNumOps) {
    if (slot.task.op != kOp) return compute_tile<kOp + 1>(args, slot, feed, shared, acc, places, sum);
    if constexpr (is_own_task(kOp)) {
      run_own_tile<kOp>(args.base, slot, shared, places);
    } else {
      using Tile = WgmmaTile<kOp>;
      if constexpr (kNumTeams > 1) mbarrier_wait(shared_address(&shared.flags->turn), team_number() ^ 1);
      const Stages stages{shared.inputs, shared.weights};
      if constexpr (kTrace) {
        stages.wait_filled(places);
        if (team_thread() == 0) trace_stamp(args.base, slot.index, kLoaded);
      }
      if constexpr (EarlyResidual<kOp>::kIsThere) stages.wait_filled(places);
      const EarlyResidual<kOp> early = early_residual<kOp>(args.base.ops[kOp], slot.task);
      const int num_steps =
          steps_of<kOp>(args.base.plan, args.base.ops[kOp], slot.task).count;
      const auto issued = [&] {
        if constexpr (kNumTeams > 1) {
          if (thread_number() % 32 == 0) mbarrier_arrive(shared_address(&shared.flags->turn));
        }
      };
      if constexpr (converts_weights()) {
        Converted<kOp>::multiply(acc, num_steps, stages, places, issued);
      } else if constexpr (part_multiplies(kOp)) {
        PartProduct<kOp>::multiply(acc, args.base, slot.task, stages, places, issued);
      } else if constexpr (Element::kPromotesSums && !kSwapAb && Tile::kNumSums > 96) {
        multiply_in_pieces<kOp>(acc, num_steps, stages, places, issued);
      } else if constexpr (Element::kPromotesSums) {
        Tile::multiply_promoted(acc, num_steps, stages, places, issued);
      } else {
        Tile::multiply(acc, num_steps, stages, places, issued);
      }
      if (team_thread() == 0) trace_stamp(args.base, slot.index, kComputed);
      if (shared.flags->aborted != 0) Tile::fill(acc, __int_as_float(0x7FFFFFFF));
      const auto ready = [&] {
        if constexpr (waits_for_epilogue(kChainOps[kOp])) {
          mbarrier_wait(shared.beside.ready(feed), feed.parity());
          if (shared.flags->aborted != 0) Tile::fill(acc, __int_as_float(0x7FFFFFFF));
        }
        RowNorm norm = row_norm<kOp>(args.base, slot.task, feed, shared.beside, shared.flags->epoch);
        if constexpr (kOp == kRotaryOp) norm.launch = &args.base;
        return norm;
      };
      if constexpr (scatters_sums() && kOps[kOp].num_parts > 1) {
        if (slot.task.num_parts > 0) {
          scatter_and_store<kOp>(acc, args.base, slot, shared.flags->epoch, team_barrier() + kNumTeams, ready);
          return true;
        }
      } else if constexpr (kOps[kOp].num_parts > 1) {
        constexpr int kThreads = Tile::kHolders;
        if (team_thread() >= kThreads) return true;
        if (!add_parts<kOp, kThreads, Tile::kNumSums, kNumMathGroups == 1 ? 32 : kFewLoads>(
                args.base, slot.task, shared.flags->epoch, team_thread(), acc, team_barrier() + kNumTeams)) return false;
      }
      const RowNorm norm = ready();
      if constexpr (kClusterK > 1) {
        sum_and_store<kOp>(acc, shared.sums, sum, args.base.ops[kOp], slot.task, norm, early);
      } else if constexpr (kOp == kRotaryOp) {
        store_turned_tile<kOp>(acc, args.base.ops[kOp], slot.task, norm);
      } else if constexpr (kSwapAb) {
        store_transposed_tile<kOp>(acc, args.base.ops[kOp], slot.task, norm, early);
      } else {
        store_or_copy_tile<kOp>(acc, args.base.ops[kOp], slot.task, args.output_map(map_of(kOp)), shared.staging, norm, early);
      }
    }
  }
  return true;
}

__device__ __forceinline__ void compute(const WgmmaArgs& args, const Shared& shared) {
  float acc[kMaxWgmmaAccumulators];
  FeedRing::Place feed;
  StagePlaces places;
  SumRing::Place sum;
  for (;; feed.advance()) {
    wait_fed(shared.feed, feed);
    const FeedSlot& slot = *feed_slot(shared.feed_memory, feed);
    if (slot.index < 0) return;
    if constexpr (kNumTeams > 1) {
      if (feed.slot() % kNumTeams != team_number()) {
        places.advance_by(num_stages_of(args, slot.task));
        __syncwarp();
        if (thread_number() % 32 == 0) release_fed(args.base, shared.feed, feed);
        continue;
      }
    }
    const bool is_stored = compute_tile(args, slot, feed, shared, acc, places, sum);
    if constexpr (kClusterK > 1) barrier_sync<kTeamThreads>(team_barrier());  // cluster_sum.cuh relies on it
    tell_stored(shared, feed, is_stored);
  }
}

// Called by all threads of a cluster, or of the CTA if there are no clusters.
__device__ __forceinline__ void cluster_sync() {
  if constexpr (kClusterSize == 1) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
}

extern "C" __global__ void TUNER_CLUSTER_DIMS __launch_bounds__(kNumThreads, 1)
    tuner_chain(const __grid_constant__ WgmmaArgs args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared(memory);
  // With one math warpgroup, the compiler only knows by this that a warp has one role, and keeps descriptors in uniform
  // registers; otherwise it would move four registers for each wgmma.
  int warp = static_cast<int>(threadIdx.x) / 32;
  if constexpr (kNumMathGroups == 1) warp = uniform(warp);
#ifndef TUNER_GUARDED
  launch_dependents();
#endif
  if (threadIdx.x == 0) {
    shared.flags->aborted = 0;
    shared.flags->num_ready = 0;
    mbarrier_init(shared_address(&shared.flags->ready), 1);
    if constexpr (kStartupPrefetch > 0) mbarrier_init(shared_address(&shared.flags->requested), 1);
    if constexpr (kInBand) mbarrier_init(shared_address(&shared.flags->knows_epoch), 1);
    if constexpr (kNumTeams > 1) mbarrier_init(shared_address(&shared.flags->turn), kTeamWarps);
    shared.weights.init(kTeamWarps, kAreJoint ? 2 + kReaderWarps : 1);
    if constexpr (!kAreJoint) shared.inputs.init(kTeamWarps, 1 + kReaderWarps);
    shared.feed.init(feed_readers(args.base));
    for (u64& stored : shared.flags->stored) mbarrier_init(shared_address(&stored), kTeamGroups);
    if constexpr (kClusterK > 1) shared.sums.init(kTeamWarps * (kClusterK - 1));
    if constexpr (kHasLateWaits) shared.beside.init();
    fence_mbarrier_init();
    trace_begin(args.base);
  }
  if (warp == kInputWarp && threadIdx.x % 32 < 2 * kNumMaps + WgmmaArgs::kCount) {
    const int map = static_cast<int>(threadIdx.x) % 32;
    prefetch_tensor_map(map < kNumMaps       ? &args.input_maps[map]
                        : map < 2 * kNumMaps ? &args.weight_maps[map - kNumMaps]
                                             : args.output_map(map - 2 * kNumMaps));
  }
  cluster_sync();  // no copies or arrivals before the barriers of all CTAs are initialised
  if (warp >= kWeightWarp) {
    if constexpr (kNumMathGroups > 1) lower_registers<kProducerRegisters>();
    if (warp == kWeightWarp) {
      if (threadIdx.x % 32 == 0) produce_weights(args, shared);
    } else if (warp == kInputWarp) {
      produce_inputs(args, shared);
    } else if (warp == kPostWarp) {
      if (threadIdx.x % 32 == 0) post_tiles(args.base, shared);
    } else if (kInBand && warp >= kFirstReaderWarp) {
      read_in_band(args, shared);
    } else {
      if constexpr (kStartupPrefetch > 0) {
        if (threadIdx.x == 32 * kPrefetchWarp) prefetch_at_startup(args, shared);
      }
      if constexpr (kHasLateWaits) {
        __syncwarp();
        prepare_epilogues(args.base, shared);
      }
    }
  } else {
    if constexpr (kNumMathGroups > 1) raise_registers<kMathRegisters>();
    compute(args, shared);
  }
  if constexpr (kTrace) {
    __syncthreads();
    if (threadIdx.x == 0) trace_end(args.base);
  }
  if constexpr (kClusterSize > 1) cluster_sync();  // no CTA ends while others still arrive at its barriers
}
