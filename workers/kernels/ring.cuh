// Rings of stages between the copy engine and the tensor cores.
//
// Each slot has two mbarriers: `full` (one arrival by the thread that requests the copies, and their bytes) and `empty`
// (one arrival per consumer). Producer and consumers walk the slots in the same order for the whole launch, across tasks,
// so a producer may be stages of the next task ahead: a slot is only ever waited for by its number.
#pragma once
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
};

// kSlots stages of kBytes, and their barriers.
template <int kSlots, int kBytes>
struct Ring {
  static constexpr int kNumSlots = kSlots;
  static constexpr int kDataBytes = kSlots * kBytes;
  static constexpr int kBarrierBytes = kSlots * 16;
  using Place = RingPlace<kSlots>;

  u32 data, barriers;

  __device__ __forceinline__ u32 stage(const Place& place) const { return data + place.slot() * kBytes; }
  __device__ __forceinline__ u32 full(const Place& place) const { return barriers + place.slot() * 16; }
  __device__ __forceinline__ u32 empty(const Place& place) const { return barriers + place.slot() * 16 + 8; }

  __device__ void init(u32 consumers) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      mbarrier_init(barriers + slot * 16, 1);
      mbarrier_init(barriers + slot * 16 + 8, consumers);
    }
  }

  // The producer's: until the slot may be written. The first round finds every slot free.
  __device__ __forceinline__ void wait_free(const Place& place) const { mbarrier_wait(empty(place), place.parity() ^ 1); }
  // A consumer's: until the slot holds its stage.
  __device__ __forceinline__ void wait_filled(const Place& place) const { mbarrier_wait(full(place), place.parity()); }
  // The producer's: until all consumers have released the stage that it put there in this round.
  __device__ __forceinline__ void wait_released(const Place& place) const { mbarrier_wait(empty(place), place.parity()); }
  __device__ __forceinline__ void release(const Place& place) const { mbarrier_arrive(empty(place)); }
  // Of the slot before this one.
  __device__ __forceinline__ void release_before(const Place& place) const {
    mbarrier_arrive(barriers + (place.slot() == 0 ? kSlots - 1 : place.slot() - 1) * 16 + 8);
  }
};
