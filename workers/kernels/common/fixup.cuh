// Split-K: the parts of a tile store their sums in the workspace, and the last one to arrive adds them up.
//
// Layout. A plan numbers the tiles that it splits; that number is the tile's slot. After the signals, on separate cache
// lines, there is a counter of arrivals for every slot, followed by the sums, slot by slot and part by part within a
// slot. All slots have the size that the largest op needs for the maximum number of parts. So a slot's address depends
// only on its number. Tiles with fewer parts leave the rest of their slot unused. In a cluster, a tile has one slot for
// each CTA. A part's fp32 sums are stored in vectors of four: vector v of thread t is at v * kThreads + t. The threads
// that add up a tile read the sums of the same threads of other CTAs. So only the engine needs to know which element of
// the tile a sum belongs to, and loads and stores are coalesced.
//
// Waits: none. A part stores its sums and counts itself in. If it is not the last, its task is done; the last one
// continues with the epilogue and the post of the tile. So no ticket and no queue depends on another part, and the post
// follows once all parts have run.
//
// Order of the sum: part 0, 1, 2, ..., all read from the slot, including the last part's own, so the result is bitwise
// the same whichever part is last.
//
// Memory order. Every thread stores its sums (generic proxy); a barrier orders them before thread 0's atom.acq_rel.gpu,
// whose release is cumulative over the barrier. The last arrival reads from the chain of all the others (a chain of
// atomic updates is a release sequence), and a second barrier orders the other threads' loads after it. Slots are read
// with L1 bypassed, since it could still contain a line of an earlier tile. A slot is written once per launch, and read
// before the launch ends.
//
// Epochs. A slot belongs to the same tile in every launch; each launch increments its counter by the number of parts,
// and it is never reset.
#pragma once
#include "launch_args.cuh"

constexpr int kFixupAlignment = 256;

// Number of fp32 sums of one part of a tile.
__device__ constexpr int part_size(const OpConfig& op) { return op.tile_m * op.weight_rows(); }

// Number of fp32 sums in a slot: enough for all parts of a tile of the op that needs most.
__device__ constexpr int slot_size() {
  int most = 0;
  for (int op = 0; op < kNumOps; ++op) {
    const int size = kOps[op].num_parts * part_size(kOps[op]);
    if (kOps[op].num_parts > 1 && size > most) most = size;
  }
  return most;
}

__device__ constexpr long long fixup_aligned(long long bytes) {
  return (bytes + kFixupAlignment - 1) / kFixupAlignment * kFixupAlignment;
}

// The counter of arrivals for a task's tile.
__device__ __forceinline__ u32* arrivals_of(const LaunchArgs& args, const Task& task) {
  char* first = reinterpret_cast<char*>(args.workspace) + fixup_aligned(kSignalsOffset + 4LL * args.plan.num_signals);
  return reinterpret_cast<u32*>(first) + task.slot;
}

// If a launch passes intermediates in band, there are mailboxes between the arrivals and the slots (mailbox.cuh): two
// halves for each op that has readers. Bytes of the mailboxes of ops 0 to `end` - 1.
__device__ __forceinline__ long long half_bytes(const OpArgs& op) { return fixup_aligned(2LL * kMailboxRows * op.n); }
__device__ __forceinline__ long long mailbox_bytes(const LaunchArgs& args, int end) {
  long long bytes = 0;
  if constexpr (kReaderWarps > 0) {
#pragma unroll
    for (int op = 0; op < kNumOps; ++op) {
      if (op < end && readers_of(op) != 0) bytes += 2 * half_bytes(args.ops[op]);
    }
    if (args.plan.in_band_ops == 0) bytes = 0;
  }
  return bytes;
}

// The addresses of the mailboxes, and of the slots, which follow them.
__device__ __forceinline__ char* mailboxes_of(const LaunchArgs& args) {
  return reinterpret_cast<char*>(args.workspace) + fixup_aligned(kSignalsOffset + 4LL * args.plan.num_signals) +
         fixup_aligned(4LL * args.plan.num_split_tiles * kClusterSize);
}
__device__ __forceinline__ char* slots_of(const LaunchArgs& args) {
  return mailboxes_of(args) + mailbox_bytes(args, kNumOps);
}

// The sums of a task's parts, part by part.
__device__ __forceinline__ float4* sums_of(const LaunchArgs& args, const Task& task) {
  return reinterpret_cast<float4*>(slots_of(args)) + slot_size() / 4 * static_cast<long long>(task.slot);
}

// Number of vectors that a thread has in flight at a time if its sums leave no registers for more: with more, the
// compiler would spill.
constexpr int kFewLoads = 8;

// sums[] = the thread's share of the parts, `stored` its first vector of part 0, added in the order of the parts, with
// one pass over the sums for each part.
template <int kThreads, int kCount>
__device__ __forceinline__ void add_in_passes(const float4* stored, int num_parts, float* sums) {
  constexpr int kVectors = kCount / 4;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
#pragma unroll 1
  for (int left = num_parts; left > 0; --left) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (v % kFewLoads == 0) __syncwarp();
      const float4 read = load_past_l1(stored + v * kThreads);
      sums[4 * v] += read.x, sums[4 * v + 1] += read.y, sums[4 * v + 2] += read.z, sums[4 * v + 3] += read.w;
    }
    stored += kVectors * kThreads;
  }
}

// The same for a known number of parts: some vectors of all parts are loaded together, in fewer round trips.
template <int kThreads, int kCount, int kParts, int kLoadsInFlight>
__device__ __forceinline__ void add_together(const float4* stored, float* sums) {
  constexpr int kVectors = kCount / 4;
  constexpr int kTogether = kLoadsInFlight > kParts ? kLoadsInFlight / kParts : 1;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
#pragma unroll
  for (int first = 0; first < kVectors; first += kTogether) {
    __syncwarp();  // the compiler gathers no more loads than these
    float4 read[kTogether][kParts];
#pragma unroll
    for (int v = 0; v < kTogether && first + v < kVectors; ++v) {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        read[v][part] = load_past_l1(stored + (part * kVectors + first + v) * kThreads);
    }
#pragma unroll
    for (int v = 0; v < kTogether && first + v < kVectors; ++v) {
      float* sum = sums + 4 * (first + v);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        sum[0] += read[v][part].x, sum[1] += read[v][part].y;
        sum[2] += read[v][part].z, sum[3] += read[v][part].w;
      }
    }
  }
}

// The same for 2 to kParts parts. If the sums leave registers for many loads, tiles with the maximum number of parts
// load all parts together. So do tiles with two parts, which most tiles have that are cut at the end of a CTA's share
// of k.
template <int kThreads, int kCount, int kParts, int kLoadsInFlight>
__device__ __forceinline__ void add_stored(const float4* stored, int num_parts, float* sums) {
  if constexpr (kLoadsInFlight <= kFewLoads) {
    add_in_passes<kThreads, kCount>(stored, num_parts, sums);
  } else if (num_parts == kParts) {
    add_together<kThreads, kCount, kParts, kLoadsInFlight>(stored, sums);
  } else if (kParts > 2 && num_parts == 2) {
    add_together<kThreads, kCount, 2, kLoadsInFlight>(stored, sums);
  } else {
    add_in_passes<kThreads, kCount>(stored, num_parts, sums);
  }
}

// Stores the sums of a part; if it is the last to arrive, adds up the tile's parts. In that case, and for a tile
// without parts, it returns true to all threads, with the tile in `sums`. It is called by threads 0 to kThreads - 1 of
// those that computed the tile, with kCount sums each (if the tile has fewer, the first threads hold them); they
// synchronise at the given barrier. kLoadsInFlight vectors of a thread are in flight at a time: more need fewer round
// trips, but more registers.
template <int kOp, int kThreads, int kCount, int kLoadsInFlight = kFewLoads>
__device__ __forceinline__ bool add_parts(const LaunchArgs& args, const Task& task, u32 epoch, int thread, float* sums,
                                          int barrier = 0) {
  static_assert(kCount % 4 == 0, "sums are stored in vectors of four");
  constexpr int kVectors = kCount / 4, kHolders = part_size(kOps[kOp]) / kCount;
  static_assert(kHolders * kCount == part_size(kOps[kOp]) && kHolders <= kThreads,
                "the threads together hold the whole tile");
  if (task.num_parts == 0) return true;
  const bool holds = kHolders == kThreads || thread < kHolders;
  float4* own = sums_of(args, task) + task.part * (kVectors * kHolders) + thread;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (holds)
      __stcg(own + v * kHolders, make_float4(sums[4 * v], sums[4 * v + 1], sums[4 * v + 2], sums[4 * v + 3]));
  }
  barrier_sync<kThreads>(barrier);
  bool is_last = false;
  if (thread == 0) {
    const u32 before = fetch_add_acq_rel_gpu(arrivals_of(args, task), 1);
    is_last = before + 1 == (epoch + 1) * static_cast<u32>(task.num_parts);
  }
  if (!barrier_or<kThreads>(barrier, is_last)) return false;
  const float4* stored = sums_of(args, task) + (holds ? thread : 0);
  add_stored<kHolders, kCount, kOps[kOp].num_parts, kLoadsInFlight>(stored, task.num_parts, sums);
  return true;
}
