// The sums of CTAs that share a tile's k: each finishes a share of the tile, with what the others send it.
//
// Layout. CTAs of a cluster that differ in their rank along k alone have the same tile, each the sums of its own k-steps,
// and thread t of each holds the same elements. The tile's groups of 8 columns (of 8 rows with swapped operands: of
// what is operand B) are cut into kClusterK shares, one per rank.
// A thread sends its sums of another CTA's share to the same thread there, in vectors of four: vector v of thread t is at
// v * kHolders + t of what came from that CTA, so stores and loads of a warp are whole lines. Then it adds what it has
// got to its own share, and the epilogue scales, rounds and stores that share alone. So every CTA sends and gets
// (kClusterK - 1) / kClusterK of a tile's sums, and nothing travels through the L2.
//
// Order of the sum: the CTA's own, then rank by rank from the next one on, round the end. A share is one CTA's alone, so
// its sum has the same order, hence the same bits, in every launch.
//
// Barriers, a phase of each per task. `full`: one arrival, with the bytes that the others send. `free`: an arrival of each
// warp of the others, when it has read what this CTA has sent; it tells this CTA that it may send again.
// Phases. Tasks are counted by the slots of the feed, an even number of them, so a task's parity is its slot's. Bytes of a
// task may come before the receiver has armed `full`: they are owed, as in ring.cuh. They cannot come a phase too early,
// since who sends them has seen that all warps of the receiver have read those of the task before, hence that its `full`
// was over. No warp arrives at a `free` a phase too early: it does so behind its own `full`, also where it holds none of
// the tile, and this phase ended by bytes that each other CTA sent when the phase before of its own `free` was over. Nobody
// who waits by parity is two phases behind: every warp waits for each `full`; and for each `free` waits every warp that
// sends, while those that hold nothing of a task's tile meet these at the task's end. With ping-pong the tasks of the two
// teams overlap, and they do not meet: it is refused.
// Liveness. All CTAs of a cluster walk the same tasks in the same order. For a task's sums a CTA waits for the others'
// products of this task, and to send its own, for their reading of the task before, which comes first there as well; a
// ring is never held meanwhile, as all stages of the task are released by then. The sharers of a ring have the same rank
// along k and are at most a ring apart. So of the first task whose sums are not done in some CTA, each CTA comes to its
// products by the argument of the rings, and then to the sums; no order among tasks is added that tickets or queues do not
// have. A CTA waits for a task's signals itself, and one that gives up sends NaN as every role of it goes on: the sum
// carries that into all shares.
// Memory order. st.async belongs to the generic proxy, as do the loads that read what it has stored: no proxy fence is
// needed. Its bytes are completed at `full` with a release at cluster scope, which the wait for `full` acquires. What a
// reader has loaded it has added before it arrives at `free`, and the next bytes are sent behind the wait for that: no
// load can see them, as it has its value. So arrivals and waits at `free` need no cluster scope, whose fence would stand
// behind all that the CTA has requested. No CTA ends before all have arrived at their last barrier (chain_wgmma.cuh): all
// that is sent to it has come then, as it has waited for each `full`.
#pragma once
#include "epilogue_transposed.cuh"

// Groups of 8 up to the share of that rank: in fours, which the epilogue stores together, where each rank gets some
// and none more than one above its due.
__device__ constexpr int groups_before(int num_groups, int rank, int unit) {
  return rank == kClusterK ? num_groups : (num_groups * rank / kClusterK + unit / 2) / unit * unit;
}
__device__ constexpr int largest_share(int num_groups, int unit) {
  int most = 0;
  for (int rank = 0; rank < kClusterK; ++rank) {
    const int size = groups_before(num_groups, rank + 1, unit) - groups_before(num_groups, rank, unit);
    if (size == 0) return 2 * num_groups;  // not so
    most = size > most ? size : most;
  }
  return most;
}
__device__ constexpr int share_unit(int num_groups) {
  return largest_share(num_groups, 4) <= (num_groups + kClusterK - 1) / kClusterK + 1 ? 4 : 1;
}

// What the CTA of rank kRank along k finishes of a tile.
template <int kOp, int kRank>
struct Share {
  static constexpr int kGroups = (kSwapAb ? kOps[kOp].tile_m : kOps[kOp].tile_n) / 8, kUnit = share_unit(kGroups);
  static constexpr int kFirst = groups_before(kGroups, kRank, kUnit), kEnd = groups_before(kGroups, kRank + 1, kUnit);
  static_assert(kFirst < kEnd, "each CTA finishes a share");
};

// How the sums of an op's tile travel.
template <int kOp>
struct SumLayout {
  using Tile = WgmmaTile<kOp>;
  // Gate and up projection of each block, where they are apart.
  static constexpr int kHalves = kOps[kOp].gated && !kSwapAb ? 2 : 1, kPerGroup = Tile::kBlocks * kHalves;
  // Where the last block is lower than 64 rows, the last warps hold none; of several, they send what nobody stores.
  static constexpr int kHolders = Tile::kBlocks == 1 ? 2 * Tile::kSharedRows : kTeamThreads;
  static constexpr int kMost = largest_share(Share<kOp, 0>::kGroups, Share<kOp, 0>::kUnit);
  static constexpr int kVectorBytes = 16 * kHolders;
  static constexpr int kGroupBytes = kPerGroup * kVectorBytes;
  static constexpr int kSourceBytes = kMost * kGroupBytes;  // of each other CTA

  // Vector `part` of a group: where it travels, and where it is summed.
  __device__ static constexpr int offset(int group, int part) { return group * kGroupBytes + part * kVectorBytes; }
  __device__ static constexpr int index(int group, int part) {
    return part / kHalves * Tile::kBlockSums + part % kHalves * (kOps[kOp].tile_n / 2) + group * 4;
  }
};

// Bytes of what the others send, of the op that needs most.
template <int kOp = 0>
__device__ constexpr int cluster_sum_bytes() {
  if constexpr (kOp < kNumOps && kClusterK > 1) {
    const int own = (kClusterK - 1) * SumLayout<kOp>::kSourceBytes, others = cluster_sum_bytes<kOp + 1>();
    return own > others ? own : others;
  }
  return 0;
}

// Shared memory of a CTA: what the others send, and the two barriers.
struct ClusterSum {
  u32 data, full, free;

  __device__ void init() const {
    mbarrier_init(full, 1);
    mbarrier_init(free, kTeamWarps * (kClusterK - 1));
  }
};

// Of the CTA with this one's tile that has that rank along k, in the cluster.
__device__ __forceinline__ int rank_of_partner(int rank) {
  constexpr int kGrid = kClusterM * kClusterN;
  return rank_in_cluster() % kGrid + rank * kGrid;
}

// A thread's sums of all shares but its own, from the CTA of rank kRank to the others.
template <int kOp, int kRank>
__device__ __forceinline__ void send_sums(const float (&acc)[kMaxWgmmaAccumulators], const ClusterSum& sum) {
  using Layout = SumLayout<kOp>;
  using Own = Share<kOp, kRank>;
  u32 there[kClusterK - 1], full[kClusterK - 1];
#pragma unroll
  for (int i = 0; i < kClusterK - 1; ++i) {
    const int partner = rank_of_partner((kRank + 1 + i) % kClusterK), place = kClusterK - 2 - i;
    there[i] = address_in_cta(sum.data + place * Layout::kSourceBytes + team_thread() * 16, partner);
    full[i] = address_in_cta(sum.full, partner);
  }
#pragma unroll
  for (int group = 0; group < Layout::kMost; ++group) {
#pragma unroll
    for (int part = 0; part < Layout::kPerGroup; ++part) {
#pragma unroll
      for (int i = 0; i < kClusterK - 1; ++i) {  // to all of them in turn, so that none gets all of the others' at once
        const int to = (kRank + 1 + i) % kClusterK, first = groups_before(Own::kGroups, to, Own::kUnit);
        if (first + group < groups_before(Own::kGroups, to + 1, Own::kUnit))
          store_async(there[i] + Layout::offset(group, part), acc + Layout::index(first + group, part), full[i]);
      }
    }
  }
}

// What the others have sent of the share of rank kRank, to this thread's own sums: that of the next rank first.
template <int kOp, int kRank>
__device__ __forceinline__ void add_sums(float (&acc)[kMaxWgmmaAccumulators], const ClusterSum& sum) {
  using Layout = SumLayout<kOp>;
  using Own = Share<kOp, kRank>;
  const u32 first = sum.data + team_thread() * 16;
#pragma unroll
  for (int group = Own::kFirst; group < Own::kEnd; ++group) {
#pragma unroll
    for (int part = 0; part < Layout::kPerGroup; ++part) {
      float* own = acc + Layout::index(group, part);
#pragma unroll
      for (int place = 0; place < kClusterK - 1; ++place) {
        const int offset = place * Layout::kSourceBytes + Layout::offset(group - Own::kFirst, part);
        const float4 sent = load_shared_four(first + offset);
        own[0] += sent.x, own[1] += sent.y, own[2] += sent.z, own[3] += sent.w;
      }
    }
  }
}

// The groups of a tile from kFirst up to kEnd, finished, to global memory.
template <int kOp, int kFirst, int kEnd>
__device__ __forceinline__ void store_groups(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op, const Task& task) {
  if constexpr (kSwapAb) {
    store_transposed_tile<kOp, kFirst, kEnd>(acc, op, task);
  } else {
    store_wgmma_tile<kOp, kFirst, kEnd>(acc, op, task);
  }
}

// Of the CTA whose rank along k is kRank, or of those behind it.
template <int kOp, int kRank>
__device__ __forceinline__ void sum_and_store_share(float (&acc)[kMaxWgmmaAccumulators], const ClusterSum& sum, u32 parity,
                                                    const OpArgs& op, const Task& task) {
  if constexpr (kRank < kClusterK - 1) {
    if (rank_along_k() != kRank) return sum_and_store_share<kOp, kRank + 1>(acc, sum, parity, op, task);
  }
  using Own = Share<kOp, kRank>;
  const bool holds = team_thread() < SumLayout<kOp>::kHolders;
  if (team_thread() == 0)
    mbarrier_arrive_expect(sum.full, (kClusterK - 1) * (Own::kEnd - Own::kFirst) * SumLayout<kOp>::kGroupBytes);
  if (holds) {
    mbarrier_wait(sum.free, parity ^ 1);
    send_sums<kOp, kRank>(acc, sum);
  }
  mbarrier_wait_acquire_cluster(sum.full, parity);
  if (holds) add_sums<kOp, kRank>(acc, sum);
  __syncwarp();
  const int lane = thread_number() % 32;
  if (lane < kClusterK - 1)
    mbarrier_arrive_in_cluster(address_in_cta(sum.free, rank_of_partner((kRank + 1 + lane) % kClusterK)));
  store_groups<kOp, Own::kFirst, Own::kEnd>(acc, op, task);
}

// A task's tile, summed over all CTAs that share its k, to global memory: this CTA's share of it. All threads of the team;
// `parity` tells one of its tasks from the next.
template <int kOp>
__device__ __forceinline__ void sum_and_store(float (&acc)[kMaxWgmmaAccumulators], const ClusterSum& sum, u32 parity,
                                              const OpArgs& op, const Task& task) {
  static_assert(kNumTeams == 1, "a team of two would be phases behind");
  static_assert(kFeedSlots % 2 == 0, "a task's parity is its slot's");
  static_assert(!kTmaEpilogue, "threads store a share");
  sum_and_store_share<kOp, 0>(acc, sum, parity, op, task);
}
