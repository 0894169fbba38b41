// Wrappers of single instructions, without any logic.
#pragma once
#include "config.cuh"

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
  return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// An L2 cache policy: the operand of instructions with a hint.
template <CacheHint kHint>
__device__ __forceinline__ u64 cache_policy() {
  u64 policy;
  if constexpr (kHint == kEvictFirst) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else if constexpr (kHint == kEvictLast) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// Asynchronous copy of kBytes from global to shared memory, of which `valid_bytes` are read and the rest is zero.
// Copies of 16 bytes bypass L1 (.cg); copies of 8 and 4 bytes exist only through L1 (.ca).
template <int kBytes, CacheHint kHint>
__device__ __forceinline__ void cp_async(u32 shared, const void* global, int valid_bytes) {
  if constexpr (kBytes == 16 && kHint == kNoHint) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes));
  } else if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(shared), "l"(global),
                 "r"(valid_bytes), "l"(cache_policy<kHint>()));
  } else if constexpr (kHint != kNoHint) {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %3, %2, %4;" ::"r"(shared), "l"(global),
                 "r"(valid_bytes), "n"(kBytes), "l"(cache_policy<kHint>()));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes),
                 "n"(kBytes));
  }
}

// Copies 16 bytes through L1, for data that several warps of a CTA read.
template <CacheHint kHint>
__device__ __forceinline__ void cp_async_through_l1(u32 shared, const void* global, int valid_bytes) {
  if constexpr (kHint == kNoHint) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid_bytes));
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared), "l"(global),
                 "r"(valid_bytes), "l"(cache_policy<kHint>()));
  }
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

__device__ __forceinline__ void ldmatrix_x2(u32 (&r)[2], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared));
}

// These two flush results below 2^-126 to 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// For angles from -pi to pi, with an error of 2^-21.
__device__ __forceinline__ float sine_approx(float x) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float cosine_approx(float x) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// NaN if either is NaN; fmaxf would return the other value.
__device__ __forceinline__ float max_or_nan(float x, float y) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
  return larger;
}

__device__ __forceinline__ u32 load_acquire_gpu(const u32* address) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u32 load_relaxed_gpu(const u32* address) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ u64 load_relaxed_gpu(const u64* address) {
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_relaxed_gpu(const u16* eight) {
  uint4 value;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(eight)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_relaxed_gpu(u16* address, u32 two) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(two) : "memory");
}
__device__ __forceinline__ void store_relaxed_gpu(u16* address, const uint4& eight) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(eight.x), "r"(eight.y),
               "r"(eight.z), "r"(eight.w)
               : "memory");
}

__device__ __forceinline__ void add_release_gpu(u32* address, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ __forceinline__ u64 fetch_add_relaxed_gpu(u64* address, u64 value) {
  u64 before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(address), "l"(value) : "memory");
  return before;
}

__device__ __forceinline__ u32 fetch_add_acq_rel_gpu(u32* address, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(value) : "memory");
  return before;
}

__device__ __forceinline__ u32 compare_and_swap_relaxed_gpu(u32* address, u32 expected, u32 desired) {
  u32 before;
  asm volatile("atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(address), "r"(expected), "r"(desired)
               : "memory");
  return before;
}

// Programmatic dependent launch; both do nothing in a launch without that attribute, and before sm_90.

// Lets the next launch of the stream start once every CTA of this one has called it or has ended.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until the earlier launches have ended and their writes are visible.
__device__ __forceinline__ void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Requests the L2 line that holds `address`; reads nothing.
__device__ __forceinline__ void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// A barrier, with the given number, of kThreads threads of a CTA, a multiple of 32.
template <int kThreads>
__device__ __forceinline__ void barrier_sync(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// The same barrier; returns whether `flag` is true for any of the threads.
template <int kThreads>
__device__ __forceinline__ bool barrier_or(int barrier, bool flag) {
  u32 any;
  asm volatile(
      "{\n\t.reg .pred mine, any;\n\tsetp.ne.u32 mine, %1, 0;\n\tbar.red.or.pred any, %2, %3, mine;\n\t"
      "selp.u32 %0, 1, 0, any;\n\t}"
      : "=r"(any)
      : "r"(static_cast<u32>(flag)), "r"(barrier), "n"(kThreads)
      : "memory");
  return any != 0;
}

__device__ __forceinline__ void fence_sc_gpu() { asm volatile("fence.sc.gpu;" ::: "memory"); }

// The SM's cycle counter; like the global timer, it is not reordered with memory accesses.
__device__ __forceinline__ long long read_clock() {
  long long cycles;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles)::"memory");
  return cycles;
}

// The global timer in nanoseconds, the same on all SMs.
__device__ __forceinline__ long long read_globaltimer() {
  long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}

__device__ __forceinline__ u32 read_smid() {
  u32 sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}

__device__ __forceinline__ float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <CacheHint kHint>
__device__ __forceinline__ u16 load_past_l1(const u16* address) {
  u16 value;
  if constexpr (kHint == kNoHint) {
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(value) : "l"(address) : "memory");
  } else {
    asm volatile("ld.global.cg.L2::cache_hint.u16 %0, [%1], %2;"
                 : "=h"(value)
                 : "l"(address), "l"(cache_policy<kHint>())
                 : "memory");
  }
  return value;
}

__device__ __forceinline__ float load_past_l1(const float* address) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ float4 load_past_l1(const float4* address) {
  float4 value;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(u32 address, u16 value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ void store_shared(u32 address, const uint4& value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ u16 load_shared_element(u32 address) {
  u16 bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(address) : "memory");
  return bits;
}
// 2, 4 or 8 contiguous bytes, aligned to their number.
template <int kBytes>
__device__ __forceinline__ u64 load_shared_bytes(u32 address) {
  if constexpr (kBytes == 2) return load_shared_element(address);
  u64 bytes = 0;
  if constexpr (kBytes == 4) {
    u32 word;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
    bytes = word;
  } else {
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(bytes) : "r"(address) : "memory");
  }
  return bytes;
}
__device__ __forceinline__ float load_shared_float(u32 address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared_vector(u32 address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

template <CacheHint kHint>
__device__ __forceinline__ void store_global(u8* address, u8 value) {
  if constexpr (kHint == kNoHint) {
    *address = value;
  } else {
    asm volatile("st.global.L2::cache_hint.u8 [%0], %1, %2;" ::"l"(address), "h"(static_cast<u16>(value)),
                 "l"(cache_policy<kHint>())
                 : "memory");
  }
}

template <CacheHint kHint>
__device__ __forceinline__ void store_global(u16* address, u16 value) {
  if constexpr (kHint == kNoHint) {
    *address = value;
  } else {
    asm volatile("st.global.L2::cache_hint.u16 [%0], %1, %2;" ::"l"(address), "h"(value), "l"(cache_policy<kHint>())
                 : "memory");
  }
}

template <CacheHint kHint>
__device__ __forceinline__ void store_global(u32* address, u32 value) {
  if constexpr (kHint == kNoHint) {
    *address = value;
  } else {
    asm volatile("st.global.L2::cache_hint.u32 [%0], %1, %2;" ::"l"(address), "r"(value), "l"(cache_policy<kHint>())
                 : "memory");
  }
}

template <CacheHint kHint>
__device__ __forceinline__ void store_global(uint2* address, const uint2& value) {
  if constexpr (kHint == kNoHint) {
    *address = value;
  } else {
    asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1, %2}, %3;" ::"l"(address), "r"(value.x), "r"(value.y),
                 "l"(cache_policy<kHint>())
                 : "memory");
  }
}

// The lower byte of each half of two words.
__device__ __forceinline__ u32 low_bytes(u32 low, u32 high) { return __byte_perm(low, high, 0x6420); }

template <CacheHint kHint>
__device__ __forceinline__ void store_global(uint4* address, const uint4& value) {
  if constexpr (kHint == kNoHint) {
    *address = value;
  } else {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(address), "r"(value.x),
                 "r"(value.y), "r"(value.z), "r"(value.w), "l"(cache_policy<kHint>())
                 : "memory");
  }
}
