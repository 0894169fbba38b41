// One-instruction wrappers that attention alone uses.
#pragma once
#include "ptx.cuh"

// Four 8 x 8 matrices of 16-bit elements, each transposed: lane l gets rows 2 (l % 4) and the next of column l / 4.
__device__ __forceinline__ void ldmatrix_x4_transposed(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

// An 8 x 8 matrix that lies in the warp's registers, transposed there.
__device__ __forceinline__ u32 transpose_in_registers(u32 two) {
  u32 turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(two));
  return turned;
}

__device__ __forceinline__ int load_relaxed_gpu(const int* address) {
  int value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_past_l1(const float2* address) {
  float2 value;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(address) : "memory");
  return value;
}
