// Split-K: the parts of a tile meet in the workspace, and the last one to arrive adds them up.
//
// Layout. A plan numbers the tiles that it splits; that number is the tile's slot. Behind the signals, on cache lines
// of their own, there is a counter of arrivals for every slot, and after these the sums, slot by slot and part by part
// within one. All slots are as large as the largest op needs for the most parts of a tile. So a slot's place follows
// from its number alone. Tiles with fewer parts leave the rest of their slot unused. In a cluster a tile has one slot
// for each CTA. A part's fp32 sums are those of the threads that computed it, in vectors of four: vector v of thread t
// is at v * kThreads + t. The threads that add a tile up read what the same threads of other CTAs wrote. So only the
// engine knows which element of the tile a sum belongs to, and loads and stores are coalesced.
//
// Waits: none. A part stores its sums and counts itself in. One that is not the last has done its task;
// the last continues to the epilogue and to the post of the tile. So no ticket and no queue depends on another part, and
// once all parts have run the post is sure to come.
//
// Order of the sum: part 0, 1, 2, ... read from the slot, the last your own too: the same bits whoever is last.
//
// Memory order. Every thread stores its sums (generic proxy); a barrier orders them before thread 0's atom.acq_rel.gpu,
// whose release is cumulative over the barrier. The last arrival reads from the chain of all the others (a chain of
// atomic updates is a release sequence), and a second barrier orders the other threads' loads after it. Slots are read
// past L1, where an earlier tile's line could linger. A slot is written once in a launch, and read before it ends.
//
// Epochs. A slot is the same tile's in every launch; its counter grows by the tile's parts in each and is never reset.
#pragma once
#include "launch_args.cuh"

constexpr int kFixupAlignment = 256;

// fp32 sums of one part of a tile.
__device__ constexpr int part_size(const OpConfig& op) { return op.tile_m * op.weight_rows(); }

// fp32 sums of a slot: of all parts of a tile of the op that needs most.
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

// Arrivals of a task's tile.
__device__ __forceinline__ u32* arrivals_of(const LaunchArgs& args, const Task& task) {
  char* first = reinterpret_cast<char*>(args.workspace) + fixup_aligned(kSignalsOffset + 4LL * args.plan.num_signals);
  return reinterpret_cast<u32*>(first) + task.slot;
}

// What lies between the arrivals and the slots, where a launch hands over in band: mailboxes (mailbox.cuh), of each op that
// has readers two halves. Bytes of those of the ops below `end`.
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

// Where the mailboxes begin, and after them the slots.
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

// Vectors of a thread that are under way at a time where the sums leave no registers for more: the compiler would spill.
constexpr int kFewLoads = 8;

// sums[] = the thread's share of the parts, `stored` its first vector of part 0, added in the order of the parts: a part is
// a pass over the sums.
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

// The same of a known number of parts: some vectors of all of them come at once, in fewer round trips.
template <int kThreads, int kCount, int kParts, int kLoadsInFlight>
__device__ __forceinline__ void add_together(const float4* stored, float* sums) {
  constexpr int kVectors = kCount / 4;
  constexpr int kTogether = kLoadsInFlight > kParts ? kLoadsInFlight / kParts : 1;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = 0.0f;
#pragma unroll
  for (int first = 0; first < kVectors; first += kTogether) {
    __syncwarp();  // no more loads than these are gathered
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

// The same of two parts at least and kParts at most. Where the sums leave registers for many loads, tiles of the most parts
// have them all come together. So have those of two: most tiles that are cut where a CTA's share of k ends have two.
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

// Leaves the sums of a part, and adds the tile's parts up if it is the last to arrive. Then, and for a tile that is
// whole, it returns true to all threads alike, with the tile in `sums`. Threads 0 .. kThreads - 1 of those that
// computed it, which meet at that barrier, call it with their kCount sums each; where that is more than the tile has,
// the first ones hold it. kLoadsInFlight vectors of a thread are under way at a time: the more, the fewer round trips,
// as long as the compiler has registers.
template <int kOp, int kThreads, int kCount, int kLoadsInFlight = kFewLoads>
__device__ __forceinline__ bool add_parts(const LaunchArgs& args, const Task& task, u32 epoch, int thread, float* sums,
                                          int barrier = 0) {
  static_assert(kCount % 4 == 0, "sums travel in vectors of four");
  constexpr int kVectors = kCount / 4, kHolders = part_size(kOps[kOp]) / kCount;
  static_assert(kHolders * kCount == part_size(kOps[kOp]) && kHolders <= kThreads, "the threads hold the tile");
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
