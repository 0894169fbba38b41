// Rings of stages between the copy engine and the tensor cores.
//
// Each slot has two mbarriers: `full` (one arrival by each thread that requests copies into it, and their bytes) and
// `empty` (one arrival per consumer). Producer and consumers process the slots in the same order for the whole launch,
// across tasks. So a producer may already be in stages of the next task. With ping-pong, a team skips the other team's
// stages without waiting for them. So when it waits for one of its own stages, all earlier stages must have been
// filled, as they are when its turn comes (mainloop_wgmma.cuh). Otherwise the barrier might be two phases behind, and
// its parity would mean the wrong phase.
//
// In a cluster. A stage that several CTAs share arrives in slices, one requested by each of them (cluster.cuh). Every
// producer arms its own `full` with the bytes of the whole stage, then requests its slice for all sharers. The slice
// overwrites data that each sharer has read. So a slot's `empty` counts the consumers of all sharers. A consumer
// arrives at the `empty` of every sharer, one lane of its warp at each.
// Phases. A slice may arrive before the receiving CTA has armed that `full`: the pending byte count is then temporarily
// negative, but the phase cannot end without the arrival that arms it. It cannot arrive a phase too early either: it
// was requested after the receiver's consumers had released the slot, and therefore after they had waited for the
// previous phase. Liveness. All CTAs of a cluster process the same stages in the same order. Consider the first stage
// that some CTA has not consumed. All CTAs have consumed the stages that are at least a ring's depth before it, so
// every producer can request its slice of it. Therefore the CTAs of a cluster are never more than a ring apart, and
// never wait for later stages of each other. Memory order. Only the async proxy reads and writes the data in a slot.
// wgmma has read it when its wait is over, in program order before the arrival. The bytes have arrived when `full`
// completes. So arrivals and waits need no cluster scope, which would cost a consumer at every stage.
#pragma once
#include "cluster.cuh"
#include "ptx_hopper.cuh"

// A position in a ring of kSlots, in one register: a slot, and in the high half the parity of its current phase.
template <int kSlots>
struct RingPlace {
  u32 packed = 0;

  __device__ __forceinline__ int slot() const { return static_cast<int>(packed & 0xFFFF); }
  __device__ __forceinline__ u32 parity() const { return packed >> 16; }

  __device__ __forceinline__ void advance() {
    ++packed;
    if (slot() == kSlots) packed = (packed ^ 0x10000) & 0x10000;
  }

  // The position `steps` slots earlier, at most one round.
  __device__ __forceinline__ RingPlace back(int count) const {
    return {slot() >= count ? packed - count : (packed ^ 0x10000) + kSlots - count};
  }

  // Advances by several steps at once.
  __device__ __forceinline__ void advance_by(int count) {
    const u32 next = slot() + count;
    packed = ((packed ^ next / kSlots << 16) & 0x10000) | next % kSlots;
  }
};

// kSlots stages of kBytes, and their barriers.
template <int kSlots, int kBytes, class SharersOfStage = Sharers<1, 1>>
struct Ring {
  using StageSharers = SharersOfStage;
  static constexpr int kNumSlots = kSlots;
  static constexpr int kNumSharers = StageSharers::kCount;
  static constexpr int kDataBytes = kSlots * kBytes;
  static constexpr int kBarrierBytes = kSlots * 16;
  using Place = RingPlace<kSlots>;

  u32 data, barriers;

  __device__ __forceinline__ u32 stage(const Place& place) const { return data + place.slot() * kBytes; }
  __device__ __forceinline__ u32 full(const Place& place) const { return barriers + place.slot() * 16; }
  __device__ __forceinline__ u32 empty(const Place& place) const { return barriers + place.slot() * 16 + 8; }

  // `consumers`: number per sharer; `producers`: number of those that each load a share of a stage.
  __device__ void init(u32 consumers, u32 producers = 1) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(barriers + slot * 16, producers);
      mbarrier_init(barriers + slot * 16 + 8, consumers * kNumSharers);
    }
  }

  // Called by the producer: waits until the slot may be written. In the first round, every slot is free.
  __device__ __forceinline__ void wait_free(const Place& place) const { mbarrier_wait(empty(place), place.parity() ^ 1); }
  // Called by a consumer: waits until the slot holds its stage.
  __device__ __forceinline__ void wait_filled(const Place& place) const { mbarrier_wait(full(place), place.parity()); }
  __device__ __forceinline__ void release(const Place& place) const { mbarrier_arrive(empty(place)); }

  // Called by a consuming warp: releases the stage in the slot before this position, which it has read; lane 0 arrives,
  // or one lane for each sharer.
  __device__ __forceinline__ void release_before(const Place& place, int lane) const {
    const u32 empty = barriers + (place.slot() == 0 ? kSlots - 1 : place.slot() - 1) * 16 + 8;
    if constexpr (kNumSharers == 1) {
      mbarrier_arrive_if(lane == 0, empty);
    } else if (lane < kNumSharers) {
      mbarrier_arrive_in_cluster(address_in_cta(empty, StageSharers::rank_of(lane)));
    }
  }
};
