// The sums of CTAs that split a tile's K: each finishes a share of the tile, using the sums that the others send to it.
//
// Layout. CTAs of a cluster whose ranks differ only along k have the same tile; each holds the sums of its own k-steps,
// and thread t of each holds the same elements. The tile's groups of 8 columns (of 8 rows with swapped operands: in
// both cases of operand B) are divided into kClusterK shares, one per rank.
// A thread sends its sums of another CTA's share to the same thread there, in vectors of four. Among the data from one
// CTA in an exchange, vector v of thread t is at v * kHolders + t, so stores and loads of a warp are whole lines. It
// then adds the received sums to its own share, and the epilogue scales, rounds and stores only that share. So every
// CTA sends and receives (kClusterK - 1) / kClusterK of a tile's sums, without using the L2.
//
// Exchanges. Memory for all of these sums, 64 KB for a tile of 128 x 256 and two CTAs, would be taken from the rings
// for the whole launch, but used only briefly. So the vectors of a share are sent in several exchanges, through a ring
// of two slots: while one exchange is added, the next is in flight. An op uses the fewest exchanges, at least two, for
// which its slots need no more than 24 KB, or the limit of the tiling. With two exchanges, neither waits until an
// earlier one was read: 96 KB of sums of two CTAs then take 1.2 us on an H200, compared with 2.2 us in four exchanges.
// If a share has no vector left for an exchange, its next one is sent early and not added, so that in every exchange
// each CTA sends something to every other CTA.
//
// Order of the sum: the CTA's own, then rank by rank, starting at the next rank, cyclically. A share belongs to one
// CTA, so its sum has the same order, and therefore the same bits, in every launch.
//
// Barriers: a slot has one phase per exchange that uses it. Exchanges are numbered across all tasks, by every warp,
// whether it holds some of a task's tile or not. `full`: one arrival, with the bytes that the others send. `empty`: one
// arrival from each warp of the other CTAs, when it has read this CTA's data; after these, this CTA may send the next
// exchange but one. A CTA sends exchange 0, then sends exchange r + 1 and adds exchange r alternately.
// Phases. Bytes of an exchange may come before the receiver has armed `full`: the pending count then covers them, as in
// ring.cuh. They cannot come a phase too early. The sender of exchange r has seen that all warps of the receiver have
// read exchange r - 2, and therefore that its `full` was over. Thread 0 has waited for that before it arms exchange r.
// No warp arrives at an `empty` a phase too early: it does so after its own `full`, even if it holds none of the tile.
// That phase ended with bytes from each other CTA, some in every exchange, which each sent after the previous phase of
// its own `empty` was over. No wait by parity is two phases behind. Every warp waits for each `full`. Every warp that
// sends waits for
// each `empty`, and warps that hold nothing of a task's tile synchronise with these at the task's end. With ping-pong,
// the tasks of the two teams overlap and cannot synchronise, so that combination is illegal.
// Liveness. All CTAs of a cluster process the same tasks in the same order, and the same exchanges of a task. To send
// exchange r, a CTA waits until the others have read exchange r - 2. To add exchange r, it waits until they have sent
// it. Both precede its own corresponding steps in that order, so the first unfinished step never waits. The
// first sums of a task wait for the others' products of this task. No stage of a ring is held meanwhile, since all
// stages of the task have been released by then. The sharers of a ring have the same rank along k, and are at most one
// ring apart. So for the first task whose sums are unfinished in some CTA, each CTA reaches its products by the
// argument of the rings, and then its sums. No order among tasks is added to that of tickets or queues. A CTA waits for
// a task's signals itself; if a wait expires, it sends NaN, since all of its roles continue, and the sum propagates the
// NaN to all shares.
// Memory order. st.async belongs to the generic proxy, as do the loads that read what it has stored: no proxy fence is
// needed. Its bytes are completed at `full` with a release at cluster scope, which the wait for `full` acquires. A
// reader has added the loaded values before it arrives at `empty`, and the next bytes are sent after the wait for that:
// no load can see them, since it is already complete. So arrivals and waits at `empty` need no cluster scope, whose
// fence would wait for everything that the CTA has requested. No CTA ends before all have arrived at their last barrier
// (chain_wgmma.cuh): by then it has received everything, since it has waited for each `full`.
#pragma once
#include "epilogue_transposed.cuh"

// The CTAs or parts that finish shares of an op's tile: CTAs that split its K, or its parts (scattered_sum.cuh).
template <int kOp>
__device__ constexpr int sharers() {
  return scatters_sums() ? kOps[kOp].num_parts : kClusterK;
}

// Number of groups of 8 before the share of that rank. Shares consist of sets of four groups, which the epilogue stores
// together, if every rank then has some, and none has more than one group above an equal share.
__device__ constexpr int groups_before(int num_groups, int rank, int unit, int sharers) {
  return rank == sharers ? num_groups : (num_groups * rank / sharers + unit / 2) / unit * unit;
}
__device__ constexpr int largest_share(int num_groups, int unit, int sharers) {
  int most = 0;
  for (int rank = 0; rank < sharers; ++rank) {
    const int size = groups_before(num_groups, rank + 1, unit, sharers) - groups_before(num_groups, rank, unit, sharers);
    if (size == 0) return 2 * num_groups;  // some rank would have none
    most = size > most ? size : most;
  }
  return most;
}
__device__ constexpr int share_unit(int num_groups, int sharers) {
  return largest_share(num_groups, 4, sharers) <= (num_groups + sharers - 1) / sharers + 1 ? 4 : 1;
}

// Number of exchanges for shares of up to `most_vectors` vectors: the fewest for which these fit their slots.
// `vector_bytes` is the size of a vector from all other CTAs.
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

// The part of a tile that is finished by the CTA of rank kRank along k, or by the part with that number.
template <int kOp, int kRank>
struct Share {
  static constexpr int kGroups = (kSwapAb ? kOps[kOp].tile_m : kOps[kOp].tile_n) / 8;
  static constexpr int kUnit = share_unit(kGroups, sharers<kOp>());
  static constexpr int kFirst = groups_before(kGroups, kRank, kUnit, sharers<kOp>());
  static constexpr int kEnd = groups_before(kGroups, kRank + 1, kUnit, sharers<kOp>());
  static_assert(kFirst < kEnd, "each CTA finishes a share of the tile");
};

// How the sums of an op's tile are exchanged.
template <int kOp>
struct SumLayout {
  using Tile = WgmmaTile<kOp>;
  // Gate and up projection of each block, if they are separate.
  static constexpr int kHalves = kOps[kOp].gated && !kSwapAb ? 2 : 1, kPerGroup = Tile::kBlocks * kHalves;
  // If the last block has fewer than 64 rows, the last warps hold none of it; with several blocks, they send sums that
  // are not stored.
  static constexpr int kHolders = Tile::kBlocks == 1 ? 2 * Tile::kSharedRows : kTeamThreads;
  static constexpr int kVectorBytes = 16 * kHolders;
  static constexpr int kGroups = Share<kOp, 0>::kGroups, kUnit = Share<kOp, 0>::kUnit;

  // The share of that rank, in vectors.
  __device__ static constexpr int first_group(int rank) { return groups_before(kGroups, rank, kUnit, sharers<kOp>()); }
  __device__ static constexpr int num_vectors(int rank) { return (first_group(rank + 1) - first_group(rank)) * kPerGroup; }
  static constexpr int kMost = largest_share(kGroups, kUnit, sharers<kOp>()) * kPerGroup;
  static constexpr int kExchanges = num_exchanges(kMost, (kClusterK - 1) * kVectorBytes);
  static constexpr int kExchangeVectors = (kMost + kExchanges - 1) / kExchanges;
  static constexpr int kSourceBytes = kExchangeVectors * kVectorBytes;  // bytes from each other CTA in one exchange

  // Vectors of the share of that rank that were added before an exchange, and that have been sent after it.
  __device__ static constexpr int before(int rank, int exchange) { return num_vectors(rank) * exchange / kExchanges; }
  __device__ static constexpr int sent_after(int rank, int exchange) {
    const int first = before(rank, exchange), end = before(rank, exchange + 1);
    return end > first ? end : first + 1;
  }
  // The position at which vector v of the share is accumulated.
  __device__ static constexpr int index(int rank, int v) {
    const int group = first_group(rank) + v / kPerGroup, block = v % kPerGroup;
    return block / kHalves * Tile::kBlockSums + block % kHalves * (kOps[kOp].tile_n / 2) + group * 4;
  }
};

// Bytes that the others send in an exchange, for the op that needs most.
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

// The rank in the cluster of the CTA with the same tile that has that rank along k.
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
                "each CTA receives sums in each exchange");
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
    for (int i = 0; i < kClusterK - 1; ++i) {  // to each of them in turn, so that none receives from all others at once
      const int to = (kRank + 1 + i) % kClusterK, first = Layout::before(to, kExchange);
      if (first + v < Layout::sent_after(to, kExchange))
        store_async(there[i] + v * Layout::kVectorBytes, acc + Layout::index(to, first + v), full[i]);
    }
  }
}

// Adds the data that the others have sent in an exchange for the share of rank kRank to this thread's own sums,
// starting with the next rank's.
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

// Completes the exchanges of a task, starting at kExchange, which has already been sent.
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

// Finishes groups kFirst to kEnd - 1 of a tile, and stores them to global memory.
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

// Loads a thread's words of the residual for its CTA's share of a tile; the CTA's rank along k is at least kRank.
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

// Called by a CTA whose rank along k is at least kRank.
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

// Sums a task's tile over all CTAs that split its K, and stores this CTA's share to global memory. Called by all
// threads of the team; `place` is the position of the next exchange.
template <int kOp>
__device__ __forceinline__ void sum_and_store(float (&acc)[kMaxWgmmaAccumulators], const SumRing& ring,
                                              SumRing::Place& place, const OpArgs& op, const Task& task,
                                              const RowNorm& norm, const EarlyResidual<kOp>& early) {
  static_assert(kNumTeams == 1, "two teams would wait for different phases of the barriers");
  static_assert(!kTmaEpilogue, "threads, not TMA, store a share");
  sum_and_store_share<kOp, 0>(acc, ring, place, op, task, norm, early);
}
