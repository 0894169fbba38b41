// Runs one launch: every fiber in turn, until all have ended or none makes progress.
Dim threadIdx, blockIdx, gridDim;
namespace emu {
std::vector<Fiber> fibers; std::vector<Cta> ctas; std::vector<Warp> warps; std::vector<Cluster> clusters; int current, threads, cluster_size; u64 progress, num_early;
std::vector<Copy> copies; u64 turn; int most_rounds; u32 drawn;
static void* main_sp; static const KernelArgs* kernel_args;
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
  tuner_chain(*kernel_args);
  fibers[current].done = true; --cta().live; ++progress;
  for (;;) yield();
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
  gridDim.x = num_ctas; kernel_args = reinterpret_cast<const KernelArgs*>(args); threads = num_threads; cluster_size = cluster;
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
