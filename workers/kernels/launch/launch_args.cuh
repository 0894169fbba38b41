// The kernel's single parameter, and the tables that it points to. The host writes the same structs (the manifest of an
// artifact lists the offsets), so every field has a fixed size and natural alignment.
#pragma once
#include "config.cuh"
#include "element.cuh"
#include "pages.cuh"

constexpr int kStaticQueues = 0, kFirstWave = 3;

// The first 16 words of a plan, by value: a cold global read before the first task would delay every CTA.
struct PlanHeader {
  int magic, version, num_tasks, num_signals, num_ctas, assignment, queue_offset, task_offset, wait_offset, num_waits;
  int num_first_tasks;  // tasks of a dealt first wave; otherwise 0
  int zero;
  int held_stages;      // stages of weights that are not requested before a task's first waits are over
  int strided_parts;    // 1: each of P parts takes every P-th k-step, from its first one; 0: consecutive steps
  int num_split_tiles;  // slots for the sums of split tiles
  int in_band_ops;      // bit i: op i reads in band what another op of the launch writes (mailbox.cuh)
};
static_assert(sizeof(PlanHeader) == 64, "the plan's header is 16 words");

struct Task {
  short op;
  unsigned char part, num_parts;  // both 0 for a whole tile
  int tile_m, tile_n, wait_begin, wait_end, post;
  unsigned short first_step, num_steps;  // a part's k-steps among all those of its tile; unused for a whole tile
  int slot;                              // slot for the sums of its tile's parts; unused for a whole tile
};
constexpr int kTaskWords = 8;
static_assert(sizeof(Task) == 4 * kTaskWords, "a task is 8 words");

// The task whose words begin there.
__device__ __forceinline__ Task load_task(const int* words) {
  const int4* halves = reinterpret_cast<const int4*>(words);
  const int4 low = __ldg(halves), high = __ldg(halves + 1);
  Task task{};
  task.op = static_cast<short>(low.x);
  task.part = static_cast<unsigned char>(low.x >> 16);
  task.num_parts = static_cast<unsigned char>(low.x >> 24);
  task.tile_m = low.y, task.tile_n = low.z, task.wait_begin = low.w;
  task.wait_end = high.x, task.post = high.y;
  task.first_step = static_cast<unsigned short>(high.z);
  task.num_steps = static_cast<unsigned short>(high.z >> 16);
  task.slot = high.w;
  return task;
}

// Clusters. A CTA of a plan is then a cluster: all of its CTAs process the same tasks, each computes its own tile of a
// task, and each posts for it. So each post of the plan is kClusterSize posts on the device. Ranks run along n,
// then along m, then along k: CTAs whose ranks differ only along k have the same tile, and each takes every
// kClusterK-th k-step of it; cluster_sum.cuh adds their sums up.
__device__ __forceinline__ int cluster_number() { return static_cast<int>(blockIdx.x) / kClusterSize; }
__device__ __forceinline__ int rank_in_cluster() { return static_cast<int>(blockIdx.x) % kClusterSize; }
__device__ __forceinline__ int rank_along_k() { return rank_in_cluster() / (kClusterM * kClusterN); }

// A plan's task for the CTA of that rank: tile row, tile column and slot are in units of CTAs' tiles.
__device__ __forceinline__ Task task_of_rank(Task task, int rank) {
  task.tile_m = task.tile_m * kClusterM + rank / kClusterN % kClusterM;
  task.tile_n = task.tile_n * kClusterN + rank % kClusterN;
  task.slot = task.slot * kClusterSize + rank;
  return task;
}

struct alignas(16) Wait {
  int signal_begin, signal_end, threshold, posts_per_launch;
  int before_step;  // a k-step of the task, counted from its first one: the wait precedes the request for that step; if
                    // the CTA does not have this step of its tile, for those of its next one (own_step); or
                    // kEpilogueStep
  int zero[3];
};
static_assert(sizeof(Wait) == 32, "a wait is 8 words");

// The step of waits that must be over before the epilogue reads: after all other waits of the task, and larger than
// every k-step.
constexpr int kEpilogueStep = 1 << 26;

// Row-major, contiguous operands of one op: a [m, k], w [n, k], bias [n], c [m, n], residual [m, n], row_scale [m]. If
// the op is gated, w is [2n, k] and bias [2n], with the gate's half first. Null if the op has none. If its rows are
// normed, row_scale is a table of sums of squares [num_slots, stride] (norm.cuh).
struct OpArgs {
  const Element::Bits* a;
  const Element::Bits* w;
  const Element::Bits* bias;
  Element::Bits* c;
  const Element::Bits* residual;
  const float* row_scale;
  int m, n, k, num_slots;
#ifdef TUNER_PART_POINTERS
  const void* parts[TUNER_PART_POINTERS];  // operands of parts from packages, part by part
#endif
};
#ifndef TUNER_PART_POINTERS
static_assert(sizeof(OpArgs) == 64, "the host packs OpArgs into 64 bytes");
#endif

// The wait that expired, and what it waited for; written once per abort, by the first thread whose wait expires.
struct AbortRecord {
  u32 raised;
  int task, signal;
  u32 seen, expected;
  int cta;
};

// An invalid argument of a launch: a length, or a page (rotary.cuh). The first one is kept until the host clears it.
struct RefusedRecord {
  u32 kind;      // Refusal; 0 if there is none
  int sequence;  // the sequence that it belongs to
  int value;
  int end;  // the first value that is too large
};

// The workspace of one stream and one plan: zeroed once when it is allocated and again after an abort, never between
// launches. Counters only grow; a launch derives its epoch from `drawn`. The abort flag, the draw counters and the
// signals are in separate cache lines. Two launches on two streams share a workspace: the second draws from
// `drawn_second`; so do all CTAs after a dealt first wave.
constexpr int kAbortOffset = 128, kRefusedOffset = 160, kSignalsOffset = 256;
struct Workspace {
  u64 drawn;  // over all launches, tickets drawn; CTAs started if the plan determines their first tasks
  char pad0[56];
  u64 drawn_second;
  u64 start_gates;  // gates opened, over all launches
  char pad2[48];
  AbortRecord abort;
  char pad1[kRefusedOffset - kAbortOffset - sizeof(AbortRecord)];
  RefusedRecord refused;
  char pad3[kSignalsOffset - kRefusedOffset - sizeof(RefusedRecord)];
  u32 signals[1];  // num_signals of them; followed by the data of split tiles, see fixup.cuh
};
static_assert(sizeof(Workspace) == kSignalsOffset + sizeof(u64),
              "the host computes the size of the workspace from this offset");

// An op's additional arguments in a kernel with norms: where it writes sums of squares, null if it writes none; and the
// number that its norm adds to a mean of squares.
struct ChainArgs {
  float* squares;
  float eps;
  int zero;
};
static_assert(sizeof(ChainArgs) == 16, "the host packs ChainArgs into 16 bytes");

template <bool kAreThere>
struct AllChainArgs {
  ChainArgs chain[kNumOps];
  __device__ __forceinline__ const ChainArgs& chain_of(int op) const { return chain[op]; }
};
template <>
struct AllChainArgs<false> {
  __device__ __forceinline__ ChainArgs chain_of(int) const { return {}; }
};

// The additional arguments of the epilogue of queries, keys and values: rotary.cuh.
struct RotaryArgs {
  Element::Bits* keys;       // [sequences, KV heads, max_length, kRotaryHeadDim], or pages as in rotary.cuh
  Element::Bits* values;     // the same
  const int* lengths;        // length of each sequence, including its new tokens
  const float* frequencies;  // [kRotaryHeadDim / 2], radians per token
  int heads, kv_heads, max_length, new_tokens;  // heads of queries
};
static_assert(sizeof(RotaryArgs) == 48, "the host packs RotaryArgs into 48 bytes");

template <bool kAreThere>
struct AllRotaryArgs {
  RotaryArgs rotary;
  __device__ __forceinline__ const RotaryArgs* rotary_args() const { return &rotary; }
};
template <>
struct AllRotaryArgs<false> {
  __device__ __forceinline__ const RotaryArgs* rotary_args() const { return nullptr; }
};

struct PlainArgs {
  const int* words;            // the plan
  Workspace* workspace;
  long long spin_limit_cycles;  // maximum cycles of the SM clock for one wait
  int is_dependent;             // 1: launched programmatically, so it may overlap with the launch before it
  int is_second;                // 1: the second of two launches that share the workspace
  void* trace;  // the table of trace.cuh; null unless the build is traced
  PlanHeader plan;
  OpArgs ops[kNumOps];
};

// The arguments of every engine; those of chains take no space in other kernels.
struct LaunchArgs : PlainArgs,
                    AllChainArgs<kHasSquares>,
                    AllRotaryArgs<(kRotaryOp >= 0)>,
                    AllPageArgs<kHasPages> {};
static_assert(sizeof(LaunchArgs) == sizeof(PlainArgs) + (kHasSquares ? kNumOps : 0) * sizeof(ChainArgs) +
                                        (kRotaryOp >= 0 ? sizeof(RotaryArgs) : 0) +
                                        (kHasPages ? sizeof(PageArgs) : 0),
              "the layout is the one that the host packs");

// Whether a CTA's first task is determined by the plan and not drawn: the first one of its queue or, with a dealt first
// wave, the task with the CTA's own number. Each CTA then adds one to the first counter, which gives the number of the
// launch.
__device__ __forceinline__ bool knows_first_task(const LaunchArgs& args) {
  return args.plan.assignment == kStaticQueues || args.plan.assignment == kFirstWave;
}

// The k-steps of a task, among all those of its tile: `count` steps from `first` on, `stride` apart.
struct Steps {
  int first, stride, count;

  __device__ __forceinline__ int operator[](int step) const { return first + step * stride; }
};

// The steps of a task of `op`, whose configuration is that of op kOp.
template <int kOp>
__device__ __forceinline__ Steps steps_of(const PlanHeader& plan, const OpArgs& op, const Task& task) {
  if constexpr (is_own_task(kOp)) return {0, 1, 1};
  const int all = (op.k + kOps[kOp].tile_k - 1) / (is_own_task(kOp) ? 1 : kOps[kOp].tile_k);
  if constexpr (kOps[kOp].num_parts > 1) {
    const bool is_part = task.num_parts > 0;
    const int stride = is_part && plan.strided_parts != 0 ? task.num_parts : 1;
    return {is_part ? task.first_step : 0, stride, is_part ? task.num_steps : all};  // a branch costs registers
  }
  if constexpr (kClusterK > 1) {
    const int rank = rank_along_k();
    return {rank, kClusterK, (all - rank + kClusterK - 1) / kClusterK};
  }
  return {0, 1, all};
}

// The index, among this CTA's k-steps, of the first one that is the tile's `step`-th or later.
__device__ __forceinline__ int own_step(int step) {
  if constexpr (kClusterK == 1) return step;
  if constexpr (kHasLateWaits) {
    if (step == kEpilogueStep) return step;
  }
  return (step - rank_along_k() + kClusterK - 1) / kClusterK;
}
