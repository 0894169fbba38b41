// A kernel that runs plans without multiplying: it tests which reads are allowed, and when.
//
// The files before this one are those of the mma engine; this one replaces its main loop, epilogue and chain.
// Scheduler, waits, posts, arrivals of parts, and begin and end of a launch are those of the engine.
//
// What a task does. In each k-step, it performs the plan's waits, reads one word for each tile that is first read in
// this step (according to a table computed from the shapes, not from the waits), and expects the number of this run in
// each word. Then it pauses and, if the tile has parts, arrives like a part; the last part writes the run's number into
// the tile's word and posts. A task that reads too early finds the number of the previous run.
//
// Memory order. Words are read and written by plain accesses of different warps, so they are correct only because of
// the barriers, the release and the acquire of sync.cuh. They are adjacent in memory: a line that an earlier task of
// the SM has read is stale in its L1 until an acquire.
//
// Time. Pauses differ from task to task, warp to warp and run to run: before the wait, and between the reads and the
// post. There is none between the wait and the reads, or between the write and the post, where it would hide an error.

struct Violation {
  u32 count;  // for all threads; the rest is for the first
  int kind;
  int task;      // in the plan
  int unit;      // what it computes
  int tile;      // tile or unit whose word or sum is wrong
  u32 seen, expected;
  u32 zero;
};
enum ViolationKind : int {
  kStaleRead = 1,
  kWrongSum = 2,
  kOverwritten = 3,
  kWrongEpoch = 4,
  kOtherParts = 5,  // a tile is split that should be whole, or the reverse
  kUnread = 6,      // the task has fewer k-steps than its unit, so it skips this tile
};

// The input of one run, and the memory for its records. A unit is a whole tile or a part of a split one; units and
// tiles of all ops are numbered op by op, tile row by tile row, and part by part. The table of units defines which
// tiles are split.
struct Run {
  u32* words;              // [tiles]
  const int* first_unit;   // [tiles + 1] the first unit of each tile, which has one, or one for each of its parts
  const int* reads_begin;  // [units + 1]
  const int* reads;        // the tiles that unit u reads: reads[reads_begin[u]] and following
  const int* read_steps;   // and the k-step of the unit that first reads each of them
  u32* times_done;         // [units] counts over all runs
  u64* read_ns;            // [reads] when it was read
  u64* end_ns;             // [tiles] when its word was written
  Violation* violation;
  u32 number, epoch;  // of this run: its word, and the number of earlier launches of this plan
  int slow_unit;      // the unit that takes slow_cycles longer, or -1
  int short_cycles, long_cycles, slow_cycles;
  int first_tile[4], num_columns[4];  // by op
};
static_assert(sizeof(Violation) == 32 && sizeof(Run) == 128, "the host packs these structs");
static_assert(kNumOps <= 4, "tables by op have four entries");

__device__ __forceinline__ u32 load_plain(const u32* address) {
  u32 value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ __forceinline__ void store_plain(u32* address, u32 value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// A pseudo-random number. Source: Marsaglia, "Xorshift RNGs", 2003, after a multiplicative hash.
__device__ __forceinline__ u32 mixed(u32 a, u32 b) {
  u32 h = (a * 2654435761u) ^ (b * 40503u + 0x9E3779B9u);
  for (int round = 0; round < 3; ++round) h ^= h << 13, h ^= h >> 17, h ^= h << 5;
  return h;
}

enum Place : u32 { kBeforeWait = 0, kBeforePost = 1, kDraw = 2, kWriter = 3 };

__device__ __forceinline__ u32 draw_of(const Run& run, int unit, Place place) {
  return mixed(run.number * 4 + place, static_cast<u32>(unit));
}

// Each warp pauses for a different time, up to short_cycles; in one task of 32, all warps pause for long_cycles more.
__device__ inline void pause(const Run& run, int unit, Place place) {
  const u32 common = draw_of(run, unit, place);
  long long cycles = mixed(common, threadIdx.x / 32) % static_cast<u32>(run.short_cycles + 1);
  if (common % 32 == 0) cycles += run.long_cycles;
  if (place == kBeforePost && unit == run.slow_unit) cycles += run.slow_cycles;
  const long long start = read_clock();
  while (read_clock() - start < cycles) {
  }
}

__device__ inline void report(const Run& run, ViolationKind kind, int task, int unit, int tile, u32 seen, u32 expected) {
  Violation* first = run.violation;
  if (atomicAdd(&first->count, 1u) != 0) return;
  first->kind = kind;
  first->task = task;
  first->unit = unit;
  first->tile = tile;
  first->seen = seen;
  first->expected = expected;
}

// Stores sums that encode the run, the tile, the part and the position, and checks the result of adding them; false if
// another part of the tile will be the last. The sums of a whole tile must be returned unchanged.
template <int kOp>
__device__ bool meet_parts(const LaunchArgs& args, const Task& task, const Scheduler& scheduler, const Run& run, int unit,
                           int tile) {
  if constexpr (kOps[kOp].num_parts > 1) {
    constexpr int kCount = kOps[kOp].tile_m * kOps[kOp].weight_rows() / kNumThreads;
    const u32 first = (run.number * 31 + tile * 7) % 65536 + threadIdx.x;
    float sums[kCount];
    for (int i = 0; i < kCount; ++i) sums[i] = static_cast<float>(first + i + task.part);
    if (!add_parts<kOp, kNumThreads, kCount>(args, task, scheduler.epoch, threadIdx.x, sums)) return false;
    const u32 parts = task.num_parts > 0 ? task.num_parts : 1;
    for (int i = 0; i < kCount; ++i) {
      const u32 expected = parts * (first + i) + parts * (parts - 1) / 2;  // exact in fp32: below 2^24
      if (sums[i] != static_cast<float>(expected))
        report(run, kWrongSum, scheduler.next, unit, tile, static_cast<u32>(sums[i]), expected);
    }
  }
  return true;
}

// Like the function in chain.cuh, for a task of any op; returns false to all threads if the launch was aborted.
template <int kOp = 0>
__device__ bool run_task(const LaunchArgs& args, const Task& task, Scheduler& scheduler, const Run& run) {
  if constexpr (kOp < kNumOps) {
    if (task.op != kOp) return run_task<kOp + 1>(args, task, scheduler, run);
    const int place = task.tile_m * run.num_columns[kOp] + task.tile_n;
    const int tile = run.first_tile[kOp] + place;
    const int num_units = run.first_unit[tile + 1] - run.first_unit[tile];
    const int unit = run.first_unit[tile] + (task.part < num_units ? task.part : 0);
    if (threadIdx.x == 0 && num_units != (task.num_parts > 0 ? task.num_parts : 1))
      report(run, kOtherParts, scheduler.next, unit, tile, task.num_parts, num_units);

    pause(run, unit, kBeforeWait);
    const int num_steps = steps_of<kOp>(args.plan, args.ops[kOp], task).count;
    __shared__ PendingWaits pending;
    bool waits = true;
    for (int step = 0; step < num_steps; ++step) {
      if (waits && !wait_for(args, task, scheduler.next, scheduler.epoch, step, step == 0, pending)) return false;
      for (int i = run.reads_begin[unit] + static_cast<int>(threadIdx.x); i < run.reads_begin[unit + 1]; i += kNumThreads) {
        if (run.read_steps[i] != step) continue;
        const u32 seen = load_plain(run.words + run.reads[i]);
        run.read_ns[i] = read_globaltimer();
        if (seen != run.number) report(run, kStaleRead, scheduler.next, unit, run.reads[i], seen, run.number);
      }
      __syncthreads();  // a task without waits has no earlier barrier
      waits = pending.step <= step + 1;
      __syncthreads();  // thread 0 rewrites it after its wait
    }
    for (int i = run.reads_begin[unit] + static_cast<int>(threadIdx.x); i < run.reads_begin[unit + 1]; i += kNumThreads) {
      if (run.read_steps[i] >= num_steps)
        report(run, kUnread, scheduler.next, unit, run.reads[i], num_steps, run.read_steps[i] + 1);
    }
    if (threadIdx.x == 0) {
      atomicAdd(run.times_done + unit, 1u);
      if (scheduler.epoch != run.epoch) report(run, kWrongEpoch, scheduler.next, unit, tile, scheduler.epoch, run.epoch);
    }

    const bool early = draw_of(run, unit, kDraw) % 2 == 0;
    if (early) scheduler.draw_ahead();
    pause(run, unit, kBeforePost);
    if (!early) scheduler.draw_ahead();
    if (!meet_parts<kOp>(args, task, scheduler, run, unit, tile)) return true;

    if (threadIdx.x == draw_of(run, unit, kWriter) % kNumThreads) {
      const u32 before = load_plain(run.words + tile);
      if (before != run.number - 1) report(run, kOverwritten, scheduler.next, unit, tile, before, run.number - 1);
      run.end_ns[tile] = read_globaltimer();
      store_plain(run.words + tile, run.number);
    }
    __syncthreads();
    if (threadIdx.x == 0) post(args, task);
  }
  return true;
}

extern "C" __global__ void __launch_bounds__(kNumThreads, 1) tuner_chain(const __grid_constant__ LaunchArgs args) {
  __shared__ Scheduler::Shared shared;
  begin_launch(args);
  Scheduler scheduler(args, shared);
  // No op of this kernel has a residual.
  const Run& run = *reinterpret_cast<const Run*>(args.ops[0].residual);
  while (scheduler.has_task()) {
    const Task task = scheduler.task();
    if (!run_task(args, task, scheduler, run)) break;
    scheduler.advance();
  }
  poison_if_aborted(args);
}
