// The sums of CTAs that split a tile's K: each finishes a share of the tile, with what the others send it.
//
// Layout. CTAs of a cluster that differ in their rank only along k have the same tile, each the sums of its own
// k-steps, and thread t of each holds the same elements. The tile's groups of 8 columns (of 8 rows with swapped
// operands: of what is operand B) are cut into kClusterK shares, one per rank.
// A thread sends its sums of another CTA's share to the same thread there, in vectors of four. Of what came from that
// CTA in an exchange, vector v of thread t is at v * kHolders + t, so stores and loads of a warp are whole lines. Then
// it adds what it has got to its own share, and the epilogue scales, rounds and stores only that share. So every CTA
// sends and gets (kClusterK - 1) / kClusterK of a tile's sums, and nothing travels through the L2.
//
// Exchanges. Room for all of that, 64 KB for a tile of 128 x 256 and two CTAs, would be taken from the rings for the
// whole launch, and used for moments. So the vectors of a share travel in exchanges, through a ring of two slots: while
// one exchange is added, the next is on its way. An op takes the fewest exchanges, from two on, with which its slots
// have no more than 24 KB, or as much as the tiling says. Of two, none waits until one before was read: 96 KB of sums of
// two CTAs meet in 1.2 us on an H200 then, and in 2.2 in four exchanges. A share that has no vector for an exchange gets its next one early, and does not
// add it: in every exchange each CTA sends to each.
//
// Order of the sum: the CTA's own, then rank by rank from the next one on, round the end. A share belongs to one CTA,
// so its sum has the same order, hence the same bits, in every launch.
//
// Barriers, of each slot a phase per exchange that takes it; exchanges are counted through all tasks, by every warp,
// whether it holds some of a task's tile or not. `full`: one arrival, with the bytes that the others send. `empty`: an
// arrival of each warp of the others, when it has read what this CTA has sent; it signals that it may send the
// next but one.
// A CTA sends exchange 0, then sends exchange r + 1 and adds exchange r alternately.
// Phases. Bytes of an exchange may come before the receiver has armed `full`: they are owed, as in ring.cuh. They
// cannot come a phase too early. The sender of exchange r has seen that all warps of the receiver have read exchange r - 2,
// hence that its `full` was over. Thread 0 has waited for that before it arms exchange r. No warp arrives at an `empty`
// a phase too early: it does so after its own `full`, also where it holds none of the tile. This phase ended by bytes
// that each other CTA sent, some in every exchange. Each sent them when the phase before of its own `empty` was over.
// No waiter by parity is two phases after. Every warp waits for each `full`. Every warp that sends waits for
// each `empty`, and those that hold nothing of a task's tile meet these at the task's end. With ping-pong the tasks of
// the two teams overlap, and they do not meet: it is refused.
// Liveness. All CTAs of a cluster walk the same tasks in the same order, and of a task the same exchanges. To send
// exchange r a CTA waits for the others' reading of exchange r - 2. To add exchange r it waits for their sending of it.
// Both come before the like of its own in that order, so of all that is not yet done what comes first never waits. The
// first sums of a task wait for the others' products of this task. A ring is never held meanwhile, as all stages of the
// task are released by then. The sharers of a ring have the same rank along k and are at most a ring apart. So of the
// first task whose sums are not done in some CTA, each CTA comes to its products by the argument of the rings, and then
// to the sums. No order among tasks is added that tickets or queues do not have. A CTA waits for a task's signals
// itself, and one that gives up sends NaN as every role of it continues: the sum carries that into all shares.
// Memory order. st.async belongs to the generic proxy, as do the loads that read what it has stored: no proxy fence is
// needed. Its bytes are completed at `full` with a release at cluster scope, which the wait for `full` acquires. What a
// reader has loaded it has added before it arrives at `empty`, and the next bytes are sent after the wait for that: no
// load can see them, as it has its value. So arrivals and waits at `empty` need no cluster scope, whose fence would
// wait for everything that the CTA has requested. No CTA ends before all have arrived at their last barrier
// (chain_wgmma.cuh): all that is sent to it has come then, as it has waited for each `full`.
#pragma once
#include "epilogue_transposed.cuh"

// The CTAs or parts that finish shares of an op's tile: CTAs that split its K, or the parts of it (scattered_sum.cuh).
template <int kOp>
__device__ constexpr int sharers() {
  return scatters_sums() ? kOps[kOp].num_parts : kClusterK;
}

// Groups of 8 up to the share of that rank: in fours, which the epilogue stores together, where each rank gets some
// and none more than one above its due.
__device__ constexpr int groups_before(int num_groups, int rank, int unit, int sharers) {
  return rank == sharers ? num_groups : (num_groups * rank / sharers + unit / 2) / unit * unit;
}
__device__ constexpr int largest_share(int num_groups, int unit, int sharers) {
  int most = 0;
  for (int rank = 0; rank < sharers; ++rank) {
    const int size = groups_before(num_groups, rank + 1, unit, sharers) - groups_before(num_groups, rank, unit, sharers);
    if (size == 0) return 2 * num_groups;  // not so
    most = size > most ? size : most;
  }
  return most;
}
__device__ constexpr int share_unit(int num_groups, int sharers) {
  return largest_share(num_groups, 4, sharers) <= (num_groups + sharers - 1) / sharers + 1 ? 4 : 1;
}

// Exchanges in which shares of up to this many vectors travel: the fewest that fit their slots. Bytes are those of a
// vector from all others.
#ifdef TUNER_SUM_BYTES
constexpr int kMostSumBytes = TUNER_SUM_BYTES;
#else
constexpr int kMostSumBytes = 24576;
#endif
constexpr int kSumSlots = 2;
__device__ constexpr int num_exchanges(int most_vectors, int vector_bytes) {
  int count = most_vectors < kSumSlots ? most_vectors : kSumSlots;
  while (count < most_vectors && kSumSlots * ((most_vectors + count - 1) / count) * vector_bytes > kMostSumBytes)
    ++count;
  return count;
}

// What the CTA of rank kRank along k, or the part of that number, finishes of a tile.
template <int kOp, int kRank>
struct Share {
  static constexpr int kGroups = (kSwapAb ? kOps[kOp].tile_m : kOps[kOp].tile_n) / 8;
  static constexpr int kUnit = share_unit(kGroups, sharers<kOp>());
  static constexpr int kFirst = groups_before(kGroups, kRank, kUnit, sharers<kOp>());
  static constexpr int kEnd = groups_before(kGroups, kRank + 1, kUnit, sharers<kOp>());
  static_assert(kFirst < kEnd, "each finishes a share");
};

// How the sums of an op's tile travel.
template <int kOp>
struct SumLayout {
  using Tile = WgmmaTile<kOp>;
  // Gate and up projection of each block, where they are apart.
  static constexpr int kHalves = kOps[kOp].gated && !kSwapAb ? 2 : 1, kPerGroup = Tile::kBlocks * kHalves;
  // Where the last block is lower than 64 rows, the last warps hold none; of several, they send what no one stores.
  static constexpr int kHolders = Tile::kBlocks == 1 ? 2 * Tile::kSharedRows : kTeamThreads;
  static constexpr int kVectorBytes = 16 * kHolders;
  static constexpr int kGroups = Share<kOp, 0>::kGroups, kUnit = Share<kOp, 0>::kUnit;

  // The share of that rank, in vectors.
  __device__ static constexpr int first_group(int rank) { return groups_before(kGroups, rank, kUnit, sharers<kOp>()); }
  __device__ static constexpr int num_vectors(int rank) { return (first_group(rank + 1) - first_group(rank)) * kPerGroup; }
  static constexpr int kMost = largest_share(kGroups, kUnit, sharers<kOp>()) * kPerGroup;
  static constexpr int kExchanges = num_exchanges(kMost, (kClusterK - 1) * kVectorBytes);
  static constexpr int kExchangeVectors = (kMost + kExchanges - 1) / kExchanges;
  static constexpr int kSourceBytes = kExchangeVectors * kVectorBytes;  // of each other CTA, in an exchange

  // Vectors of the share of that rank that are added before an exchange, and that have travelled when it is over.
  __device__ static constexpr int before(int rank, int exchange) { return num_vectors(rank) * exchange / kExchanges; }
  __device__ static constexpr int sent_after(int rank, int exchange) {
    const int first = before(rank, exchange), end = before(rank, exchange + 1);
    return end > first ? end : first + 1;
  }
  // Where vector v of it is summed.
  __device__ static constexpr int index(int rank, int v) {
    const int group = first_group(rank) + v / kPerGroup, block = v % kPerGroup;
    return block / kHalves * Tile::kBlockSums + block % kHalves * (kOps[kOp].tile_n / 2) + group * 4;
  }
};

// Bytes of what the others send in an exchange, of the op that needs most.
template <int kOp = 0>
__device__ constexpr int sum_slot_bytes() {
  if constexpr (kOp < kNumOps && kClusterK > 1) {
    const int own = (kClusterK - 1) * SumLayout<kOp>::kSourceBytes, others = sum_slot_bytes<kOp + 1>();
    return own > others ? own : others;
  }
  return 0;
}

using SumRing = Ring<kSumSlots, sum_slot_bytes()>;
constexpr int kSumBarrierBytes = kClusterK > 1 ? SumRing::kBarrierBytes : 0;

// Of the CTA with this one's tile that has that rank along k, in the cluster.
__device__ __forceinline__ int rank_of_partner(int rank) {
  constexpr int kGrid = kClusterM * kClusterN;
  return rank_in_cluster() % kGrid + rank * kGrid;
}

// An exchange of a thread's sums of all shares but its own, from the CTA of rank kRank to the others.
template <int kOp, int kRank, int kExchange>
__device__ __forceinline__ void send_exchange(const float (&acc)[kMaxWgmmaAccumulators], const SumRing& ring,
                                              const SumRing::Place& place) {
  using Layout = SumLayout<kOp>;
  constexpr int kGot = Layout::sent_after(kRank, kExchange) - Layout::before(kRank, kExchange);
  static_assert(kGot > 0 && Layout::sent_after(kRank, kExchange) <= Layout::num_vectors(kRank),
                "each CTA gets some in each exchange");
  if (team_thread() == 0)
    mbarrier_arrive_expect(ring.full(place), (kClusterK - 1) * kGot * Layout::kVectorBytes);
  if (team_thread() >= Layout::kHolders) return;
  ring.wait_free(place);
  u32 there[kClusterK - 1], full[kClusterK - 1];
#pragma unroll
  for (int i = 0; i < kClusterK - 1; ++i) {
    const int partner = rank_of_partner((kRank + 1 + i) % kClusterK), source = kClusterK - 2 - i;
    there[i] = address_in_cta(ring.stage(place) + source * Layout::kSourceBytes + team_thread() * 16, partner);
    full[i] = address_in_cta(ring.full(place), partner);
  }
#pragma unroll
  for (int v = 0; v < Layout::kExchangeVectors; ++v) {
#pragma unroll
    for (int i = 0; i < kClusterK - 1; ++i) {  // to all of them in turn, so that none gets all of the others' at once
      const int to = (kRank + 1 + i) % kClusterK, first = Layout::before(to, kExchange);
      if (first + v < Layout::sent_after(to, kExchange))
        store_async(there[i] + v * Layout::kVectorBytes, acc + Layout::index(to, first + v), full[i]);
    }
  }
}

// What the others have sent in an exchange of the share of rank kRank, to this thread's own sums: that of the next rank
// first.
template <int kOp, int kRank, int kExchange>
__device__ __forceinline__ void add_exchange(float (&acc)[kMaxWgmmaAccumulators], const SumRing& ring,
                                             const SumRing::Place& place) {
  using Layout = SumLayout<kOp>;
  constexpr int kBegin = Layout::before(kRank, kExchange), kEnd = Layout::before(kRank, kExchange + 1);
  mbarrier_wait_acquire_cluster(ring.full(place), place.parity());
  if (team_thread() < Layout::kHolders) {
    const u32 sent_to_thread = ring.stage(place) + team_thread() * 16;
#pragma unroll
    for (int v = kBegin; v < kEnd; ++v) {
      float* own = acc + Layout::index(kRank, v);
#pragma unroll
      for (int source = 0; source < kClusterK - 1; ++source) {
        const float4 sent =
            load_shared_four(sent_to_thread + source * Layout::kSourceBytes + (v - kBegin) * Layout::kVectorBytes);
        own[0] += sent.x, own[1] += sent.y, own[2] += sent.z, own[3] += sent.w;
      }
    }
  }
  __syncwarp();
  const int lane = thread_number() % 32;
  if (lane < kClusterK - 1)
    mbarrier_arrive_in_cluster(address_in_cta(ring.empty(place), rank_of_partner((kRank + 1 + lane) % kClusterK)));
}

// All exchanges of a task from kExchange on, which is sent.
template <int kOp, int kRank, int kExchange>
__device__ __forceinline__ void add_exchanges(float (&acc)[kMaxWgmmaAccumulators], const SumRing& ring,
                                              SumRing::Place& place) {
  SumRing::Place next = place;
  next.advance();
  constexpr bool kIsLast = kExchange + 1 == SumLayout<kOp>::kExchanges;
  if constexpr (!kIsLast) send_exchange<kOp, kRank, kExchange + 1>(acc, ring, next);
  add_exchange<kOp, kRank, kExchange>(acc, ring, place);
  place = next;
  if constexpr (!kIsLast) add_exchanges<kOp, kRank, kExchange + 1>(acc, ring, place);
}

// The groups of a tile from kFirst up to kEnd, finished, to global memory.
template <int kOp, int kFirst, int kEnd>
__device__ __forceinline__ void store_groups(const float (&acc)[kMaxWgmmaAccumulators], const OpArgs& op, const Task& task,
                                             const RowNorm& norm, const EarlyResidual<kOp>& early) {
  if constexpr (kOp == kRotaryOp) {
    store_turned_tile<kOp, kFirst, kEnd>(acc, op, task, norm);
  } else if constexpr (kSwapAb) {
    store_transposed_tile<kOp, kFirst, kEnd>(acc, op, task, norm, early);
  } else {
    store_wgmma_tile<kOp, kFirst, kEnd>(acc, op, task, norm, early);
  }
}

// A thread's words of the residual of what its CTA finishes of a tile: of the one whose rank along k is kRank, or of those
// after it.
template <int kOp, int kRank = 0>
__device__ __forceinline__ EarlyResidual<kOp> early_residual(const OpArgs& op, const Task& task) {
  if constexpr (kRank < kClusterK - 1) {
    if (rank_along_k() != kRank) return early_residual<kOp, kRank + 1>(op, task);
  }
  EarlyResidual<kOp> early = {};
  if constexpr (EarlyResidual<kOp>::kIsThere) {
    using Own = Share<kOp, kRank>;
    if constexpr (kSwapAb) {
      load_early_transposed<kOp, Own::kFirst, Own::kEnd>(early, op, task);
    } else {
      load_early_residual<kOp, Own::kFirst, Own::kEnd>(early, op, task);
    }
  }
  return early;
}

// Of the CTA whose rank along k is kRank, or of those after it.
template <int kOp, int kRank>
__device__ __forceinline__ void sum_and_store_share(float (&acc)[kMaxWgmmaAccumulators], const SumRing& ring,
                                                    SumRing::Place& place, const OpArgs& op, const Task& task,
                                                    const RowNorm& norm, const EarlyResidual<kOp>& early) {
  if constexpr (kRank < kClusterK - 1) {
    if (rank_along_k() != kRank) return sum_and_store_share<kOp, kRank + 1>(acc, ring, place, op, task, norm, early);
  }
  using Own = Share<kOp, kRank>;
  send_exchange<kOp, kRank, 0>(acc, ring, place);
  add_exchanges<kOp, kRank, 0>(acc, ring, place);
  store_groups<kOp, Own::kFirst, Own::kEnd>(acc, op, task, norm, early);
}

// A task's tile, summed over all CTAs that split its K, to global memory: this CTA's share of it. All threads of the
// team; `place` is that of the next exchange.
template <int kOp>
__device__ __forceinline__ void sum_and_store(float (&acc)[kMaxWgmmaAccumulators], const SumRing& ring,
                                              SumRing::Place& place, const OpArgs& op, const Task& task,
                                              const RowNorm& norm, const EarlyResidual<kOp>& early) {
  static_assert(kNumTeams == 1, "a team of two would be phases behind");
  static_assert(!kTmaEpilogue, "threads store a share");
  sum_and_store_share<kOp, 0>(acc, ring, place, op, task, norm, early);
}
