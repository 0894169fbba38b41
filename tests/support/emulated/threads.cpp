// Runs one launch: every fiber in turn, until all have ended or none makes progress. threads.h declares what kernels use.
extern "C" __attribute__((weak)) void run_kernel(const void* args);  // of launch.h, in a library with a kernel
template class std::vector<unsigned char>;
Dim threadIdx, blockIdx, gridDim;
namespace emu {
std::vector<Fiber> fibers; std::vector<Cta> ctas; std::vector<Warp> warps; std::vector<Cluster> clusters; int current, threads, cluster_size; u64 progress, num_early;
std::vector<Copy> copies; u64 turn; int most_rounds; u32 drawn;
static void* main_sp; static const void* kernel_args;
extern "C" void emu_switch(void** from, void* to);
asm(R"(
.text
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
void yield() { emu_switch(&fibers[current].sp, main_sp); }
static void body() {
  run_kernel(kernel_args);
  fibers[current].done = true; --cta().live; ++progress;
  for (;;) yield();
}
void later(std::function<void()> run) {
  if (most_rounds == 0) return run();
  drawn = drawn * 1664525u + 1013904223u;
  copies.push_back({turn + 1 + (drawn >> 8) % most_rounds, std::move(run)});
}
unsigned char* at(u32 address, size_t n) {
  Cta* c = &cta();
  if (address & 0x80000000u) c = &ctas[me().cta / cluster_size * cluster_size + (address >> 24 & 0x7F)], address &= 0xFFFFFF;
  if (address + n > c->memory.size()) { printf("shared memory out of range: %u + %zu of %zu (cta %d thread %d)\n", address, n, c->memory.size(), me().cta, me().thread); abort(); }
  return c->memory.data() + address;
}
MBarrier& mb(u32 address) {
  Cta* c = &cta();
  if (address & 0x80000000u) c = &ctas[me().cta / cluster_size * cluster_size + (address >> 24 & 0x7F)], address &= 0xFFFFFF;
  if (address % 8) { printf("mbarrier misaligned\n"); abort(); }
  return c->mbarriers[address];
}
MBarrier& mb_of(int cta, u32 address) { return ctas[cta].mbarriers[address]; }
unsigned char* static_bytes(int line, size_t n) {
  auto& bytes = cta().statics[line];
  if (bytes.empty()) bytes.resize(n + 64);
  return reinterpret_cast<unsigned char*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64);
}
int meet(u64 value, const u32* more, int num_more) {
  Warp& w = warp(); const int slot = w.generation % 2; const u64 generation = w.generation;
  w.values[slot][lane()] = value;
  for (int i = 0; i < num_more; ++i) w.more[slot][lane()][i] = more[i];
  if (++w.arrived == 32) { w.arrived = 0; ++w.generation; }  // no progress: a polling warp comes here at each poll
  while (w.generation == generation) yield();
  return slot;
}
void bar(Barrier& b, int count, bool flag) {
  const u64 generation = b.generation;
  b.any |= flag, b.all &= flag;
  if (++b.arrived == count) { b.arrived = 0; b.any_out = b.any, b.all_out = b.all; b.any = false, b.all = true; ++b.generation; ++progress; }
  while (b.generation == generation) yield();
}
void arrive(MBarrier& m, u32 n) {
  if (!m.is_init) { printf("arrival at a barrier that does not exist\n"); abort(); }
  m.pending -= n; ++progress;
  if ((int)m.pending < 0) { printf("too many arrivals\n"); abort(); }
  if (m.pending == 0 && m.tx == 0) { m.pending = m.count; ++m.phase; }
}
static void complete(MBarrier& m, long long bytes) { m.tx -= bytes; ++progress; if (m.pending == 0 && m.tx == 0) { m.pending = m.count; ++m.phase; } }
void put(u32 address, std::vector<unsigned char> bytes, u32 barrier) {
  const int to = address & 0x80000000u ? me().cta / cluster_size * cluster_size + (int)(address >> 24 & 0x7F) : me().cta;
  const u32 place = address & 0xFFFFFF, size = bytes.size();
  unsigned char* there = at(address, size);
  if (most_rounds > 0) memset(there, 0xFF, size);
  later([=] {
    if (ctas[to].live == 0) { printf("bytes for a CTA that has ended\n"); abort(); }
    memcpy(ctas[to].memory.data() + place, bytes.data(), size);
    complete(ctas[to].mbarriers[barrier & 0xFFFFFF], size);
  });
}
float e4m3(u8 bits) {
  const int size = bits & 0x7F; const float value = size == 0x7F ? NAN : size < 8 ? std::ldexp(size, -9) : std::ldexp(8 + size % 8, size / 8 - 10);
  return bits & 0x80 ? -value : value;
}
u16 to_e4m3(float f) {
  if (f != f) return 0x7F;
  const float size = std::fmin(std::fabs(f), 448.0f); const int exponent = size < 0x1p-6f ? -6 : std::ilogb(size);
  const int units = (int)std::nearbyint(std::ldexp(size, 3 - exponent));  // 8 to 16, or fewer for the smallest
  const int code = units < 8 ? units : (exponent + 6) * 8 + units;
  return code | (std::signbit(f) ? 0x80 : 0);
}
constexpr size_t kStack = 96 * 1024;
// Completes copies that are due; those requested last come first.
static void do_copies() {
  std::vector<Copy> left; std::vector<Copy> now; now.swap(copies);
  for (size_t i = now.size(); i-- > 0;) { if (now[i].due <= turn) now[i].run(); else left.push_back(now[i]); }
  copies.insert(copies.begin(), left.rbegin(), left.rend());
}
}
// The number of reads, in the last launch, of data that earlier launches may write, by threads that had not waited for
// these.
extern "C" u64 early_reads() { return emu::num_early; }
// From now on, copies complete 1 to `most` rounds of all fibers after their request, or immediately if `most` is 0.
extern "C" void delay_copies(int most, u32 seed) { emu::most_rounds = most; emu::drawn = seed; }
extern "C" int emulate(const void* args, int num_ctas, int num_threads, int cluster, int smem_bytes) {
  using namespace emu;
  gridDim.x = num_ctas; kernel_args = args; threads = num_threads; cluster_size = cluster;
  ctas.assign(num_ctas, Cta{}); warps.assign(num_ctas * num_threads / 32, Warp{}); clusters.assign(num_ctas / cluster, Cluster{});
  fibers.assign(num_ctas * num_threads, Fiber{});
  for (int c = 0; c < num_ctas; ++c) { ctas[c].number = c; ctas[c].memory.assign(smem_bytes, 0xEE); ctas[c].live = num_threads; }
  for (size_t i = 0; i < fibers.size(); ++i) {
    Fiber& f = fibers[i]; f.cta = i / num_threads; f.thread = i % num_threads; f.stack = (unsigned char*)malloc(kStack);
    auto** top = (void**)(((uintptr_t)f.stack + kStack) / 16 * 16); *--top = nullptr; *--top = (void*)body; for (int r = 0; r < 6; ++r) *--top = nullptr;
    f.sp = top;
  }
  size_t left = fibers.size(); u64 seen = ~0ull; int idle = 0; int result = 0;
  copies.clear(); turn = 0; num_early = 0;
  while (left > 0) {
    left = 0; ++turn; do_copies();
    for (size_t n = 0; n < fibers.size(); ++n) {
      Fiber& f = fibers[n]; if (f.done) continue; ++left;
      current = n; threadIdx.x = f.thread; blockIdx.x = f.cta; emu_switch(&main_sp, f.sp);
    }
    if (progress == seen && copies.empty()) { if (++idle > 2000) { result = static_cast<int>(left); break; } } else idle = 0;
    seen = progress;
  }
  for (Fiber& f : fibers) free(f.stack);
  return result;
}
