// Wrappers of single instructions of sm_90a, without any logic: mbarriers, bulk tensor copies, wgmma, register budgets.
#pragma once
#include "element.cuh"

// The result of cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col: 128 opaque bytes, 64-byte aligned.
struct alignas(64) TensorMap {
  u64 opaque[16];
};

__device__ __forceinline__ void mbarrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine.
__device__ __forceinline__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// A predicated arrival, without a branch.
__device__ __forceinline__ void mbarrier_arrive_if(bool arrives, u32 barrier) {
  asm volatile(
      "{\n.reg .b64 state;\n.reg .pred arrives;\nsetp.ne.u32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier),
      "r"(static_cast<u32>(arrives))
      : "memory");
}

// One arrival, and `bytes` that copies will bring before the phase ends.
__device__ __forceinline__ void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Waits until the phase of this parity is over. CTA scope, since the cluster-scoped form would invalidate L1 at every
// step.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra READY;\nbra AGAIN;\nREADY:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies a box of a tensor to shared memory; elements outside arrive as zero. This one copies 64 columns, starting at
// `column`, of a map [rows, k].
__device__ __forceinline__ void copy_line(u32 shared, const TensorMap* map, int column, int row, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3}], "
      "[%4], %5;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}

// The same for a map [k / 64, rows, 64]: whole lines of 64 columns, starting at the `line`-th.
__device__ __forceinline__ void copy_lines(u32 shared, const TensorMap* map, int row, int line, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], "
      "[%5], %6;" ::"r"(shared),
      "l"(map), "r"(0), "r"(row), "r"(line), "r"(barrier), "l"(policy)
      : "memory");
}

// The same for a map [k / 64, n / 8, 2, 8, 64] of a gated op's weights. Starting at the `pair`-th group of 8, rows
// alternate: 8 rows of the gate, then the same 8 of the up projection.
__device__ __forceinline__ void copy_pairs(u32 shared, const TensorMap* map, int pair, int line, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %2, %2, %3, %4}], [%5], %6;" ::"r"(shared),
      "l"(map), "r"(0), "r"(pair), "r"(line), "r"(barrier), "l"(policy)
      : "memory");
}

// Copies the same boxes to the same offset in the shared memory of each CTA of the cluster whose bit is set, and counts
// their bytes at the barrier at the same offset there.
__device__ __forceinline__ void copy_line_to(u32 shared, const TensorMap* map, int column, int row, u32 barrier, u64 policy,
                                             u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(ctas), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_lines_to(u32 shared, const TensorMap* map, int row, int line, u32 barrier, u64 policy,
                                              u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(shared),
      "l"(map), "r"(0), "r"(row), "r"(line), "r"(barrier), "h"(ctas), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_pairs_to(u32 shared, const TensorMap* map, int pair, int line, u32 barrier, u64 policy,
                                              u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %2, %2, %3, %4}], [%5], %6, %7;" ::"r"(shared),
      "l"(map), "r"(0), "r"(pair), "r"(line), "r"(barrier), "h"(ctas), "l"(policy)
      : "memory");
}

// The start of a walk over pixels of images.
struct PixelStart {
  int x, y, image;
};

// Copies 64 channels, starting at `channel`, of a map [images, height, width, channels] in im2col mode, for as many
// pixels as the map defines, each at the given offset to the right of and below a pixel of the walk.
__device__ __forceinline__ void copy_pixels(u32 shared, const TensorMap* map, const PixelStart& start, int channel, int right,
                                            int down, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9;" ::"r"(shared),
      "l"(map), "r"(channel), "r"(start.x), "r"(start.y), "r"(start.image), "r"(barrier), "h"(static_cast<u16>(right)),
      "h"(static_cast<u16>(down)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void copy_pixels_to(u32 shared, const TensorMap* map, const PixelStart& start, int channel, int right,
                                               int down, u32 barrier, u64 policy, u16 ctas) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8}, %9, %10;" ::"r"(shared),
      "l"(map), "r"(channel), "r"(start.x), "r"(start.y), "r"(start.image), "r"(barrier), "h"(static_cast<u16>(right)),
      "h"(static_cast<u16>(down)), "h"(ctas), "l"(policy)
      : "memory");
}

// Copies contiguous bytes; their number and both addresses are multiples of 16.
__device__ __forceinline__ void copy_bytes(u32 shared, const void* from, u32 count, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
          shared),
      "l"(from), "r"(count), "r"(barrier), "l"(policy)
      : "memory");
}

// Fetches the same boxes only into the L2.
__device__ __forceinline__ void prefetch_line(const TensorMap* map, int column, int row, u64 policy) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.L2::cache_hint [%0, {%1, %2}], %3;" ::"l"(map), "r"(column),
               "r"(row), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void prefetch_lines(const TensorMap* map, int row, int line, u64 policy) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.L2::cache_hint [%0, {%1, %2, %3}], %4;" ::"l"(map), "r"(0),
               "r"(row), "r"(line), "l"(policy)
               : "memory");
}

__device__ __forceinline__ void prefetch_pairs(const TensorMap* map, int pair, int line, u64 policy) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.L2::cache_hint [%0, {%1, %1, %1, %2, %3}], %4;" ::"l"(map),
               "r"(0), "r"(pair), "r"(line), "l"(policy)
               : "memory");
}

// Stores four 8 x 8 matrices of 16-bit elements to shared memory. Lane l has the address of row l % 8 of matrix l / 8.
// It holds columns 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each.
__device__ __forceinline__ void stmatrix_x4(u32 shared, const u32 (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// Stores a box of a map [rows, columns] from shared memory; elements outside the matrix are skipped. It joins the
// thread's open group.
template <CacheHint kHint>
__device__ __forceinline__ void store_box(const TensorMap* map, int column, int row, u32 shared) {
  if constexpr (kHint == kNoHint) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
                 "r"(row), "r"(shared)
                 : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::"l"(map),
        "r"(column), "r"(row), "r"(shared), "l"(cache_policy<kHint>())
        : "memory");
  }
}

// Closes the thread's open group of bulk stores, which may be empty.
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until all but kPending of the thread's groups have read shared memory.
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until all but kPending of the thread's groups are complete, and their writes are visible to it.
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// The counterpart of `address` in the shared memory of the CTA with that rank, for instructions on the cluster's shared
// memory.
__device__ __forceinline__ u32 address_in_cta(u32 address, int rank) {
  u32 there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

__device__ __forceinline__ void store_in_cluster(u32 address, u32 value) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Stores 16 bytes to another CTA's shared memory without waiting; on arrival they count as 16 bytes at the barrier
// there.
__device__ __forceinline__ void store_async(u32 address, const float* four, u32 barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
               "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ float4 load_shared_four(u32 address) {
  float4 four;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
               : "r"(address)
               : "memory");
  return four;
}

// CTA scope: orders this thread's earlier accesses no more strongly than the plain form does.
__device__ __forceinline__ void mbarrier_arrive_in_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Releases this thread's reads and writes to threads that wait with the next function.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(u32 barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_wait_acquire_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "AGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra READY;\nbra AGAIN;\nREADY:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Barrier of all threads of a cluster; each thread's earlier accesses are visible to all threads afterwards.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

__device__ __forceinline__ void fence_acq_rel_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }

// Orders earlier generic accesses to global memory before later accesses of the copy engine.
__device__ __forceinline__ void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// The same for accesses to the CTA's own shared memory.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Descriptors of a K-major operand in shared memory: rows of 128 bytes under the 128-byte swizzle, groups of 8 rows 1,024
// bytes apart, `address` a multiple of 1,024. The high word is the same for all; the low one counts in units of 16 bytes,
// so the next 16 elements of k are 2 further.
__device__ __forceinline__ u32 operand_units(u32 address) { return address >> 4 | 1u << 16; }
__device__ __forceinline__ u64 operand_descriptor(u32 units) {
  constexpr u32 kHigh = 64 | 1u << 30;
  return static_cast<u64>(kHigh) << 32 | units;
}

// Marks a number as equal in all lanes of a warp, for the compiler.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }

// The thread's number, read again at each call, since no register is left to keep it across the main loop.
__device__ __forceinline__ int thread_number() {
  int number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}

template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
