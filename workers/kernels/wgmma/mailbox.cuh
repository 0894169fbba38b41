// Intermediates that are passed in band: readers poll the elements themselves, without a post.
//
// Layout. Before the slots of the workspace, each op whose output another one reads as A has a mailbox: two halves
// [rows, n] of 16-bit elements, each at a multiple of 256 bytes. It has as many rows as the kernel was built for, even
// if a launch has fewer. A launch writes and reads the half of its epoch's parity. The plan says which ops read in
// band: not those whose input another launch wrote. If no op does, there are no mailboxes.
//
// How a reader detects an element. Elements are stored with all bits inverted, at least two at a time. So 32 bits are
// zero only if their two elements have not arrived yet: rounding turns every NaN into 0x7FFF, so no element is 0xFFFF.
// A store of elements also stores zeros at the same offset of the other half, which the next launch writes. For rows
// that a launch does not have, it stores only these zeros, since the previous launch may have had them. The workspace
// begins with zeros, and is zeroed again after an abort.
//
// Waits. Each element is stored once in a launch, by the task whose tile it belongs to. A task that reads in band
// also has a wait for all these tiles, before its epilogue. So the proof of waits also covers polls. When a poll ends,
// the posts have been made or are about to be. A task posts only after it has received all of its in-band inputs.
//
// Memory order. Elements are stored and loaded relaxed at GPU scope, at least 32 bits at a time, and each value shows
// by itself whether it has arrived. Only checked elements are used, so no other ordering is needed. Zeros for the next
// launch are visible there, since each launch waits for the one before it to end.
#pragma once
#include "fixup.cuh"
#include "norm.cuh"

constexpr bool kInBand = kReaderWarps > 0;
[[maybe_unused]] constexpr int kElementsOfLoad = 8;

// Whether an op's inputs are read in band in this launch.
__device__ __forceinline__ bool is_in_band(const LaunchArgs& args, int op) {
  return kInBand && (args.plan.in_band_ops >> op & 1) != 0;
}

// The half of an op's mailbox that launches of that parity write.
__device__ __forceinline__ u16* mailbox_of(const LaunchArgs& args, int op, u32 parity) {
  return reinterpret_cast<u16*>(mailboxes_of(args) + mailbox_bytes(args, op) + parity * half_bytes(args.ops[op]));
}

// Zeros for the next launch in the tile's columns, for the rows that this launch does not have; written by the threads
// that store the tile.
template <int kOp>
__device__ __forceinline__ void clear_rows_beyond(const OpArgs& op, int tile_n, u16* next_mailbox) {
  constexpr int kAcross = kOps[kOp].tile_n / kElementsOfLoad;
  const int thread = static_cast<int>(threadIdx.x) % 32;  // every warp that stores part of the tile clears all of it
#pragma unroll 1
  for (int i = op.m * kAcross + thread; i < kMailboxRows * kAcross; i += 32) {
    const int column = tile_n * kOps[kOp].tile_n + i % kAcross * kElementsOfLoad;
    const long long place = static_cast<long long>(i / kAcross) * op.n + column;
    if (column < op.n) *reinterpret_cast<uint4*>(next_mailbox + place) = uint4{};
  }
}

// Both halves, for the store of a tile of the op; null if no op of this launch reads it in band.
template <int kOp>
__device__ __forceinline__ void open_mailbox(const LaunchArgs& args, const Task& task, u32 epoch, RowNorm& norm) {
  if constexpr (readers_of(kOp) != 0) {
    if ((args.plan.in_band_ops & readers_of(kOp)) == 0) return;
    norm.mailbox = mailbox_of(args, kOp, epoch & 1);
    norm.next_mailbox = mailbox_of(args, kOp, ~epoch & 1);
    clear_rows_beyond<kOp>(args.ops[kOp], task.tile_n, norm.next_mailbox);
  }
}

__device__ __forceinline__ u32 inverted(u32 two) { return ~two; }
__device__ __forceinline__ uint4 inverted(const uint4& eight) { return make_uint4(~eight.x, ~eight.y, ~eight.z, ~eight.w); }

// Whether all of the eight elements have arrived.
__device__ __forceinline__ bool are_there(const uint4& eight) {
  return eight.x != 0 && eight.y != 0 && eight.z != 0 && eight.w != 0;
}

// Converts elements that are passed in 16 bits each to 8 bits.
template <CacheHint kHint>
__device__ __forceinline__ void store_packed(u8* place, u32 two) {
  store_global<kHint>(reinterpret_cast<u16*>(place), static_cast<u16>(low_bytes(two, two)));
}
template <CacheHint kHint>
__device__ __forceinline__ void store_packed(u8* place, const uint4& eight) {
  const uint2 packed = make_uint2(low_bytes(eight.x, eight.y), low_bytes(eight.z, eight.w));
  store_global<kHint>(reinterpret_cast<uint2*>(place), packed);
}

// Stores two or eight finished elements, starting at element `first` of C, to C and to the readers' mailbox.
template <int kOp, class Elements>
__device__ __forceinline__ void store_finished(const OpArgs& op, const RowNorm& norm, long long first, const Elements& elements) {
  if constexpr (readers_of(kOp) != 0) {
    if (norm.mailbox != nullptr) {
      store_relaxed_gpu(norm.mailbox + first, inverted(elements));
      *reinterpret_cast<Elements*>(norm.next_mailbox + first) = Elements{};
    }
  }
  using Bits = typename Output<kOp>::Bits;
  Bits* const place = reinterpret_cast<Bits*>(op.c) + first;
  if constexpr (sizeof(Bits) == 1) {
    store_packed<kOps[kOp].output_hint>(place, elements);
  } else {
    store_global<kOps[kOp].output_hint>(reinterpret_cast<Elements*>(place), elements);
  }
}
