// Wrappers of the instructions that only pairs of convolutions use, without any logic.
#pragma once
#include "wgmma.cuh"

// An operand of wgmma without swizzle: blocks of 8 rows x 16 bytes are contiguous, the next 8 rows follow, and the next 16
// bytes of k are `pitch` bytes further. `units` is the address in units of 16 bytes.
__device__ __forceinline__ u64 plain_descriptor(u32 units, u32 pitch) {
  return static_cast<u64>(128 >> 4) << 32 | ((pitch >> 4) << 16 | units);
}

// Stores 8 x 8 matrices of 16-bit elements transposed: lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_blocks(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_block(u32 address, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

// The inverse: elements that the two above have stored, in the same registers.
__device__ __forceinline__ void load_blocks(u32 (&words)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_block(u32 (&words)[2], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address) : "memory");
}

// A barrier of all warpgroups of a tile.
template <int kThreads>
__device__ __forceinline__ void sync_team(int team) {
  asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kThreads) : "memory");
}
