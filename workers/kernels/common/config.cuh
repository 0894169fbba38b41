// The configuration of a generated kernel: every constant that its tiling and workload determine. A generated source
// puts its own values first (and defines TUNER_CONFIG); this default lets each file compile alone.
#pragma once

#ifndef TUNER_ACTIVATIONS
#define TUNER_ACTIVATIONS
enum Activation : int { kIdentity = 0 };  // rows of the launch and of the kernel
#endif

// How soon the L2 may evict a line that is read or written.
enum CacheHint : int { kNoHint = 0, kEvictFirst = 1, kEvictLast = 2 };

// One op of the chain: C[m, n] = activation(s[m] A[m, k] W[n, k]^T + bias[n]) + R[m, n].
// If it is gated, W is [2n, k] and the bias [2n], with the gate's rows first. Then C = activation(gate) * up + R.
struct OpConfig {
  int tile_m, tile_n, tile_k;  // a CTA's tile of C; k is the depth of one pipeline stage
  int warps_m, warps_n;        // the CTA's warps as a grid over the tile
  int copy_bytes;              // global -> shared copy width: 16, 8, 4, or 2, as far as rows of k elements are aligned
  Activation activation;
  bool bias, gated, residual, row_scale;
  int num_parts;  // maximum number of parts into which the k-steps of a tile are split; 1: not split
  CacheHint input_hint, output_hint;  // for reads of A, and for stores of C

  // Rows of W that a tile multiplies.
  __device__ constexpr int weight_rows() const { return gated ? 2 * tile_n : tile_n; }
};

// The additional constants of a chain's op: norm.cuh.
struct ChainOp {
  bool norm;     // its rows are scaled by a factor from sums of squares
  bool squares;  // it writes sums of squares of its rows
  bool waits;    // its epilogue reads a tensor that an earlier op of the same launch may write, so it may have to wait
  bool early_residual;  // its residual is ready as soon as its first inputs

  __device__ constexpr bool is_any() const { return norm || squares || waits; }
};

#ifndef TUNER_CONFIG
#define TUNER_CONFIG
#define TUNER_CONFIG_DEFAULT
constexpr int kNumStages = 3;
constexpr int kNumWarps = 8;
constexpr int kNumOps = 2;
// CTAs that should fit on an SM; the number of registers is limited accordingly.
[[maybe_unused]] constexpr int kResidentCtas = 1;
[[maybe_unused]] constexpr CacheHint kWeightHint = kEvictFirst;
// CTAs of a cluster along m, n and k: together they compute one task's tile.
constexpr int kClusterM = 1, kClusterN = 1, kClusterK = 1;
#define TUNER_CLUSTER_DIMS      // the kernel's attribute; none here
constexpr bool kTrace = false;  // whether tasks are stamped, as in trace.cuh
constexpr OpConfig kOps[kNumOps] = {
    {64, 32, 64, 4, 2, 16, kIdentity, true, true, false, true, 1, kNoHint, kEvictLast},
    {16, 64, 64, 1, 8, 16, kIdentity, false, false, true, false, 2, kEvictLast, kNoHint},
};
#endif

// Bit i: the kind of op i defines its tasks (own_task.cuh). Such an op has no products.
#ifndef TUNER_OWN_TASKS
#define TUNER_OWN_TASKS 0
#endif
__device__ constexpr bool is_own_task(int op) { return (TUNER_OWN_TASKS >> op & 1) != 0; }

// Bit i: op i gathers its rows of A as its kind defines (gather.cuh, gathered_wgmma.cuh). A macro, so that the machine
// code of kernels without such an op does not change.
#ifndef TUNER_GATHERS
#define TUNER_GATHERS 0
#endif
__device__ constexpr bool gathers(int op) { return (TUNER_GATHERS >> op & 1) != 0; }

#ifndef TUNER_PARTS_OF_TILES
// Whether a part of the op's epilogue multiplies its tiles (`PartProduct`), whether one stores them (`PartStore`) or also
// gets their elements (`PartWatch`), and the fp32 numbers in shared memory for each row of a tile that the warps exchange
// for it.
__device__ constexpr bool part_multiplies(int) { return false; }
__device__ constexpr bool part_stores(int) { return false; }
__device__ constexpr bool part_watches(int) { return false; }
__device__ constexpr int part_exchanges(int) { return 0; }
#endif

#ifndef TUNER_CHAIN_OPS
constexpr ChainOp kChainOps[kNumOps] = {};
#endif

#ifndef TUNER_ROTARY
// The op whose epilogue rotates queries and keys, and writes keys and values to the cache: rotary.cuh; -1 if there is
// none.
[[maybe_unused]] constexpr int kRotaryOp = -1, kRotaryHeadDim = 128, kRotaryPageTokens = 0;
[[maybe_unused]] constexpr bool kRotaryHeadsFirst = true;
#endif

#ifndef TUNER_PARTS
// The number of an op's list of parts from packages (finish.cuh); 0 if it has none.
__device__ constexpr int parts_of(int) { return 0; }
#endif

#ifndef TUNER_SCATTERED_SUMS
// Whether each part of a tile adds up and stores a share of it: scattered_sum.cuh.
__device__ constexpr bool scatters_sums() { return false; }
#endif

// If parts store shares of their tiles: the number of posts on the device that one tile counts as, independent of the
// number of its parts. Each part makes an equal number of these posts.
__device__ constexpr int posts_of_tile() {
  int posts = 1;
  if (scatters_sums()) {
    for (const OpConfig& op : kOps) {
      const int before = posts;
      while (posts % op.num_parts != 0) posts += before;
    }
  }
  return posts;
}

#ifndef TUNER_IN_BAND
constexpr int kReaderWarps = 0;                         // ops that read inputs in band (mailbox.cuh)
constexpr int kMailboxRows = 0;                         // rows of the mailboxes: those for which the kernel was built
[[maybe_unused]] constexpr int kInputOf[kNumOps] = {};  // for each op: the op whose output it reads as A, or -1
#endif

// Bit i: op i reads as A what this op writes, in a kernel that reads in band.
__device__ constexpr int readers_of(int op) {
  int readers = 0;
  for (int reader = 0; reader < kNumOps; ++reader) readers |= (kReaderWarps > 0 && kInputOf[reader] == op) << reader;
  return readers;
}

// Whether `has` is true for any op of the kernel.
__device__ constexpr bool any_chain_op(bool (*has)(const ChainOp&)) {
  for (const ChainOp& op : kChainOps)
    if (has(op)) return true;
  return false;
}
__device__ constexpr bool is_normed(const ChainOp& op) { return op.norm; }
__device__ constexpr bool leaves_squares(const ChainOp& op) { return op.squares; }
// An op waits for its in-band inputs before its epilogue.
__device__ constexpr bool waits_for_epilogue(const ChainOp& op) {
  return op.norm || op.waits || (kReaderWarps > 0 && kInputOf[&op - kChainOps] >= 0);
}
constexpr bool kHasSquares = any_chain_op(is_normed) || any_chain_op(leaves_squares);
constexpr bool kHasLateWaits = any_chain_op(waits_for_epilogue);

// The maximum over the kernel's ops.
__device__ constexpr int most_of_ops(int (*need)(const OpConfig&)) {
  int most = 0;
  for (const OpConfig& op : kOps) most = need(op) > most ? need(op) : most;
  return most;
}

constexpr int kNumThreads = 32 * kNumWarps;
constexpr int kClusterSize = kClusterM * kClusterN * kClusterK;
