// The parameter of an attention launch, and its tasks.
//
// Tasks. A task is a span of one sequence's context, read for a block of columns of one KV head by the CTAs of a
// cluster. A plan's queues contain all tasks of the longest context; the lengths that a launch reads determine which of
// them are not empty (context_attention.cuh). Alternatively, the lengths determine the tasks and their distribution to
// the clusters, and the plan's table is not read.
//
// The cache. A page has some tokens of all KV heads. A row of the tensor map is a token of a page, for one head or for
// all heads; in the latter case, a row has the lines of all heads in order. A contiguous cache has one page per
// sequence.
//
// The next launch. A projection of the results reads weights, which depend on no launch. While a launch ends, the
// memory is idle. So a CTA may prefetch the beginning of each row of these weights into the L2 after its last tile has
// arrived: earlier requests would delay its keys. Alternatively, it prefetches them early: before the previous launch
// has ended, while that launch multiplies and stores its last tiles.
#pragma once
#include "config_attention.cuh"
#include "ptx_attention.cuh"
#include "ptx_hopper.cuh"

constexpr int kMostQueues = 160;

struct AttentionTask {
  int sequence_head;  // sequence << 16 | KV head
  int block_span;     // block of columns << 24 | span

  __device__ __forceinline__ int sequence() const { return sequence_head >> 16; }
  __device__ __forceinline__ int head() const { return sequence_head & 0xFFFF; }
  __device__ __forceinline__ int block() const { return block_span >> 24; }
  __device__ __forceinline__ int span() const { return block_span & 0xFFFFFF; }
};

// Weights [num_rows, row_bytes] of the next launch, of which the first taken_bytes of each row are prefetched into the
// L2.
struct NextWeights {
  const unsigned char* rows;
  int num_rows, row_bytes, taken_bytes;
  int is_early;  // 1: before griddepcontrol.wait
};

// The location of a cache: a tensor map [lines of a row, rows of all pages, kLineDims], or the address of its first
// row.
struct CacheRows {
  const unsigned char* first;
};
template <bool kIsMapped>
struct CacheOf {
  using Type = TensorMap;
};
template <>
struct CacheOf<false> {
  using Type = CacheRows;
};

// Which wait has expired. The last two are not waits: a wrong number of arrivals, and inconsistent lengths.
enum Waited : int {
  kForTask, kForTaskSlot, kForStage, kForKeys, kForValues, kForSums, kForSumsRead, kForCluster, kForArrivals, kForLengths
};

// The wait that expired, and what it waited for; written once, by the first CTA, and kept until the host clears it. It
// has the layout of a product's record.
struct AttentionAbort {
  u32 raised;
  int task, waited;  // number of the CTA's task, and Waited
  u32 warp, parity;  // for a wrong number of arrivals: that number, and the one of a launch
  int cta;
};

struct AttentionArgs {
  CacheOf<kByCopyEngine>::Type k, v;
  const u16* q;                // [sequences * new tokens, query heads, kHeadDim]
  u16* out;                    // the same
  const int* lengths;          // length of each sequence, including its new tokens
  const AttentionTask* tasks;  // queue after queue
  const int* queues;           // the start of each cluster's queue, and the end of the last one
  float* partials;             // kPartialFloats for each slot and span, as in merge_attention.cuh
  u32* arrivals;               // [slots, CTAs of a cluster]
  long long* trace;            // in traced builds, for each CTA, (1 + kTracedTasks) rows of kTraceWords
  const int* pages;            // if the cache is paged: [sequences, max_pages] page numbers
  u32* refused;                // four words: the first invalid input of a launch; kept until it is cleared
  AttentionAbort* abort;       // likewise for a wait that has expired
  long long spin_limit_cycles;  // maximum cycles of the SM clock for one wait
  NextWeights next;            // all zeros if there are none
  int num_kv_heads, query_heads, new_tokens, num_blocks;  // query heads that share a KV head
  int max_length, span_tokens, num_spans;
  u32 arrivals_per_launch;  // per slot; a power of two, at least num_spans
  float scale_log2;         // factor of the scores, for exp2 instead of exp
  int is_speculative;       // 1: the first tiles of a CTA's first task are requested before its length is known
  int rows_per_page, rows_per_head, lines_per_head;  // where a page starts in the map, and a KV head in the page
  int page_shift, max_pages, num_pages;              // log2 of a page's tokens; pages of a sequence; pages of the cache
  int window;                  // tokens that a query sees, including itself
  float cap, tanh_scale_log2;  // soft cap of the scores: cap * tanh(score / cap), see products.cuh
  int num_assigned;            // sequences whose tasks are assigned by their lengths; 0: the plan's table has the tasks
  int num_queues;              // clusters that have tasks; those after them only prefetch weights
  int sequences;
  AttentionTask first[kMostQueues];

  // The sum of the readings of lengths, which is 0 between launches; it follows the words of the invalid input.
  __device__ __forceinline__ u64* readings() const { return reinterpret_cast<u64*>(refused + 4); }
  __device__ __forceinline__ int num_readers() const { return num_queues * kCluster * kReaderWarps; }
  __device__ __forceinline__ int num_columns() const { return query_heads * new_tokens; }
  __device__ __forceinline__ int slot(const AttentionTask& task) const {
    return (task.sequence() * num_kv_heads + task.head()) * num_blocks + task.block();
  }
};

__device__ __forceinline__ int cluster_number() { return static_cast<int>(blockIdx.x) / kCluster; }
__device__ __forceinline__ int cluster_rank() { return static_cast<int>(blockIdx.x) % kCluster; }

// Invalid input is ignored, and reported in four words: the kind, the sequence, the value, and the first value that is
// too large.
enum Refusal : u32 { kNothingRefused, kLengthRefused, kPageRefused };

__device__ inline void refuse(const AttentionArgs& args, Refusal kind, int sequence, int value, int end) {
  if (compare_and_swap_relaxed_gpu(args.refused, kNothingRefused, kind) != kNothingRefused) return;
  args.refused[1] = static_cast<u32>(sequence);
  args.refused[2] = static_cast<u32>(value);
  args.refused[3] = static_cast<u32>(end);
}

// Time stamps of a traced build: for each CTA, a row for itself and one for each of its first tasks. The
// caller selects the one thread that stamps an event. Cycle counters are private to an SM. The global timer is common,
// but advances in ticks: a CTA waits for an edge of it at its beginning and end, and stamps both (see trace.cuh). 0
// means that the event did not happen in the last launch.
enum AttentionEvent : int { kTaken, kFirstK, kLastTile, kMerged, kArrived, kCombined, kTask, kTraceWords };
enum CtaEvent : int { kBeganCycles, kBeganNs, kEndedCycles, kEndedNs, kOnSm };

__device__ __forceinline__ long long* traced_row(const AttentionArgs& args, int row) {
  return args.trace + kTraceWords * ((1 + kTracedTasks) * static_cast<long long>(blockIdx.x) + row);
}

__device__ __forceinline__ void stamp(const AttentionArgs& args, AttentionEvent event, int number, bool is_who) {
  if constexpr (kTracedTasks > 0) {
    if (is_who && number < kTracedTasks) traced_row(args, 1 + number)[event] = read_clock();
  }
}

__device__ __forceinline__ void stamp_task(const AttentionArgs& args, const AttentionTask& task, int number, bool is_who) {
  if constexpr (kTracedTasks > 0) {
    if (is_who && number < kTracedTasks)
      traced_row(args, 1 + number)[kTask] = static_cast<long long>(task.sequence_head) << 32 | task.block_span;
  }
}

// Stamps the cycle counter at an edge of the global timer, if one comes soon.
__device__ inline void stamp_edge(const AttentionArgs& args, CtaEvent cycles, CtaEvent ns, bool is_who) {
  if constexpr (kTracedTasks > 0) {
    if (!is_who) return;
    const long long first = read_globaltimer();
    long long now = first;
    for (int polls = 0; polls < 1000 && now == first; ++polls) now = read_globaltimer();
    traced_row(args, 0)[cycles] = read_clock();
    traced_row(args, 0)[ns] = now;
    traced_row(args, 0)[kOnSm] = read_smid();
  }
}

// Called by all threads, when no CTA of an earlier launch can stamp.
__device__ __forceinline__ void forget_stamps(const AttentionArgs& args) {
  if constexpr (kTracedTasks > 0) {
    for (int word = 0; threadIdx.x == 0 && word < kTracedTasks * kTraceWords; ++word) traced_row(args, 1)[word] = 0;
    __syncthreads();
  }
}
