// Wrappers of single instructions that only attention uses.
#pragma once
#include "ptx_hopper.cuh"

// Four 8 x 8 matrices of 16-bit elements, each transposed: lane l gets rows 2 (l % 4) and 2 (l % 4) + 1 of column l /
// 4.
__device__ __forceinline__ void ldmatrix_x4_transposed(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

// Transposes an 8 x 8 matrix in the warp's registers.
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

// Arrives at a barrier when all cp.async requests of this thread so far are complete; counts as one expected arrival.
__device__ __forceinline__ void cp_async_arrive(u32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Whether the phase with this parity is over; on sm_90 and newer the thread may be suspended meanwhile, for a time that
// the hardware limits.
__device__ __forceinline__ bool is_over(u32 barrier, u32 parity) {
  u32 done;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\nselp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
#endif
  return done != 0;
}

// Same as `is_over`, for data that CTAs of the cluster have sent.
__device__ __forceinline__ bool is_over_in_cluster(u32 barrier, u32 parity) {
  u32 done;
  asm volatile(
      "{\n.reg .pred done;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ u32 compare_and_swap_shared(u32 address, u32 expected, u32 desired) {
  u32 before;
  asm volatile("atom.shared.cas.b32 %0, [%1], %2, %3;" : "=r"(before) : "r"(address), "r"(expected), "r"(desired) : "memory");
  return before;
}

__device__ __forceinline__ void store_shared_word(u32 address, u32 word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

// Copies plain bytes to shared memory by the copy engine; both addresses and the size are multiples of 16.
__device__ __forceinline__ void copy_bytes(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// Fetches plain bytes only into the L2; the address and the size are multiples of 16.
__device__ __forceinline__ void prefetch_bytes(const void* global, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// Stores 8 bytes to another CTA's shared memory; `store_async` stores 16.
__device__ __forceinline__ void store_async_two(u32 address, float first, float second, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(address),
               "f"(first), "f"(second), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void store_shared_vector(u32 address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ u32 load_shared_word(u32 address) {
  u32 word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ float2 load_shared_two(u32 address) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(address) : "memory");
  return two;
}
