// Rings of stages between the copy engine and the tensor cores.
//
// Each slot has two mbarriers: `full` (one arrival by each thread that requests copies into it, and their bytes) and
// `empty` (one arrival per consumer). Producer and consumers walk the slots in the same order for the whole launch,
// across tasks. So a producer may be stages of the next task ahead. A slot is only ever waited for by its number. With
// ping-pong a team walks past the other team's stages without waiting for them. So when it waits for a stage of its
// own, all stages before must be filled, as they are once it is its turn (mainloop_wgmma.cuh). Else the barrier might
// be two phases after, where a parity means the wrong phase.
//
// In a cluster. A stage that several CTAs share arrives in slices, one requested by each of them (cluster.cuh). Every
// producer arms its own `full` with the bytes of the whole stage, then requests its slice for all sharers. The slice
// will overwrite what each sharer reads. So a slot's `empty` counts the consumers of all sharers. A consumer arrives at
// the `empty` of every sharer, one lane of its warp at each.
// Phases. A slice may arrive before the receiving CTA has armed that `full`: bytes are then owed, but the phase cannot
// end without the arrival that arms it. It cannot arrive a phase too early either: it was requested after the receiver's
// consumers had released the slot, hence after they had waited for the phase before.
// Liveness. All CTAs of a cluster walk the same stages in the same order. Take the first stage that some CTA has not
// consumed. All stages a ring's depth before it are consumed by everyone, so every producer can request its slice of
// it. So the CTAs of a cluster are never more than a ring apart, and wait for nothing of each other that comes later.
// Memory order. Only the async proxy reads and writes what passes between CTAs in a slot. wgmma has read it when its
// wait is over, in program order before the arrival. The bytes have landed when `full` says so. So arrivals and waits
// need no cluster scope, which would cost a consumer at every stage.
#pragma once
#include "cluster.cuh"
#include "ptx_hopper.cuh"

// One walker's place in a ring of kSlots, in one register: a slot, and in the high half its present phase's parity.
template <int kSlots>
struct RingPlace {
  u32 packed = 0;

  __device__ __forceinline__ int slot() const { return static_cast<int>(packed & 0xFFFF); }
  __device__ __forceinline__ u32 parity() const { return packed >> 16; }

  __device__ __forceinline__ void advance() {
    ++packed;
    if (slot() == kSlots) packed = (packed ^ 0x10000) & 0x10000;
  }

  // So many slots before, at most a round.
  __device__ __forceinline__ RingPlace back(int count) const {
    return {slot() >= count ? packed - count : (packed ^ 0x10000) + kSlots - count};
  }

  // As often at once.
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

  // `consumers` of each sharer; `producers` that each bring a share of a stage.
  __device__ void init(u32 consumers, u32 producers = 1) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(barriers + slot * 16, producers);
      mbarrier_init(barriers + slot * 16 + 8, consumers * kNumSharers);
    }
  }

  // The producer's: until the slot may be written. The first round finds every slot free.
  __device__ __forceinline__ void wait_free(const Place& place) const { mbarrier_wait(empty(place), place.parity() ^ 1); }
  // A consumer's: until the slot holds its stage.
  __device__ __forceinline__ void wait_filled(const Place& place) const { mbarrier_wait(full(place), place.parity()); }
  __device__ __forceinline__ void release(const Place& place) const { mbarrier_arrive(empty(place)); }

  // A consuming warp's, of the stage in the slot before this place, which it has read: by lane 0, or by as many lanes as
  // there are sharers one each.
  __device__ __forceinline__ void release_before(const Place& place, int lane) const {
    const u32 empty = barriers + (place.slot() == 0 ? kSlots - 1 : place.slot() - 1) * 16 + 8;
    if constexpr (kNumSharers == 1) {
      mbarrier_arrive_if(lane == 0, empty);
    } else if (lane < kNumSharers) {
      mbarrier_arrive_in_cluster(address_in_cta(empty, StageSharers::rank_of(lane)));
    }
  }
};
