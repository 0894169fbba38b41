// Emulates the instructions that ptx_attention.cuh wraps.
struct float2 { float x, y; };
struct int2 { int x, y; };
static inline float fmaxf(float x, float y) { return std::fmax(x, y); }
inline void ldmatrix_x4_transposed(u32 (&r)[4], u32 a) {
  const int s = emu::meet(a), l = emu::lane();
  for (int i = 0; i < 4; ++i) {
    u16 two[2];
    for (int h = 0; h < 2; ++h) memcpy(two + h, emu::at((u32)emu::warp().values[s][8 * i + l % 4 * 2 + h] + l / 4 * 2, 2), 2);
    r[i] = two[0] | (u32)two[1] << 16;
  }
  emu::meet(0);
}
inline u32 transpose_in_registers(u32 two) {
  const int s = emu::meet(two), l = emu::lane();
  u32 turned = 0;
  for (int h = 0; h < 2; ++h) {
    const u32 word = (u32)emu::warp().values[s][(l % 4 * 2 + h) * 4 + l / 4 / 2];
    turned |= (u32)(u16)(l / 4 % 2 ? word >> 16 : word) << 16 * h;
  }
  emu::meet(0);
  return turned;
}
inline int load_relaxed_gpu(const int* a) { emu::needs_wait(); return *a; }
inline float2 load_past_l1(const float2* a) { if ((uintptr_t)a % 8) { printf("misaligned pair\n"); abort(); } return *a; }
#define __cluster_dims__(...)
inline void copy_bytes(u32 s, const void* g, u32 bytes, u32 b) {
  if (s % 16 || (uintptr_t)g % 16 || bytes % 16) { printf("misaligned bytes\n"); abort(); }
  emu::needs_wait();
  emu::put(s, bytes_of(g, bytes), b);
}
// Data that a thread requests by cp.async arrives some rounds later; the thread's arrival at a barrier comes after all
// of it.
inline std::map<int, u64> last_due;
struct Readable { u64 first, bytes; };
static std::vector<Readable> readable;  // the memory that cp.async may read; all memory if empty
static u64 num_outside;
extern "C" void only_read(const Readable* places, int count) { readable.assign(places, places + count); num_outside = 0; last_due.clear(); }
extern "C" u64 reads_outside() { return num_outside; }
template <int kBytes, CacheHint> inline void cp_async_later(u32 s, const void* g, int valid) {
  if (s % kBytes || (valid && (uintptr_t)g % kBytes)) { printf("misaligned copy\n"); abort(); }
  std::vector<unsigned char> bytes(kBytes);
  if (valid) {
    emu::needs_wait();
    bool is_inside = readable.empty();
    for (const Readable& one : readable) is_inside |= one.first <= (u64)g && (u64)g + valid <= one.first + one.bytes;
    num_outside += !is_inside;
    if (is_inside) memcpy(bytes.data(), g, valid);
  }
  if (emu::most_rounds > 0) memset(emu::at(s, kBytes), 0xFF, kBytes);
  const int cta = emu::me().cta;
  emu::at(s, kBytes);
  emu::later([=] { memcpy(emu::ctas[cta].memory.data() + s, bytes.data(), kBytes); });
  if (!emu::copies.empty()) last_due[emu::current] = max(last_due[emu::current], emu::copies.back().due);
}
inline void cp_async_arrive(u32 b) {
  const int cta = emu::me().cta;
  if (emu::most_rounds == 0) return emu::arrive(emu::mb(b));
  emu::copies.push_back({max(last_due[emu::current], emu::turn) + 1, [=] { emu::arrive(emu::mb_of(cta, b)); }});
}
#define cp_async cp_async_later
inline bool is_over(u32 b, u32 parity) {
  auto& m = emu::mb(b);
  if (!m.is_init) { printf("wait at no barrier\n"); abort(); }
  if ((m.phase & 1) == parity) emu::yield();
  return (m.phase & 1) != parity;
}
inline bool is_over_in_cluster(u32 b, u32 parity) { return is_over(b, parity); }
inline u32 compare_and_swap_shared(u32 a, u32 expected, u32 desired) {
  u32 before;
  memcpy(&before, emu::at(a, 4), 4);
  if (before == expected) memcpy(emu::at(a, 4), &desired, 4), ++emu::progress;
  return before;
}
inline void store_shared_word(u32 a, u32 v) { memcpy(emu::at(a, 4), &v, 4); ++emu::progress; }
// A cycle is a round of all fibers.
#define clock64() static_cast<long long>(emu::turn)
inline void copy_cache_lines(u32 s, const TensorMap* m, int row, int line, u32 b, u64 policy) {
  emu::needs_wait();
  copy_lines(s, m, row, line, b, policy);
}
#define copy_lines copy_cache_lines
// The prefetches into the L2 that launches have requested since the library was loaded, for `prefetched`: addresses,
// sizes, whether the thread had waited for the previous launches, and the number of copies in flight.
struct Asked { u64 address, bytes, has_waited, copies; };
static long long stamped = 0;  // a clock with which a test may replace the device's
static std::vector<Asked> asked_of_l2;
inline void prefetch_bytes(const void* g, u32 bytes) {
  if ((uintptr_t)g % 16 || bytes % 16) { printf("misaligned prefetch\n"); abort(); }
  asked_of_l2.push_back({(u64)(uintptr_t)g, bytes, (u64)emu::has_waited(), (u64)emu::copies.size()});
}
inline void prefetch_line_of_l2(const void* g) {
  asked_of_l2.push_back({(u64)(uintptr_t)g, 128, (u64)emu::has_waited(), (u64)emu::copies.size()});
}
#define prefetch_l2 prefetch_line_of_l2
extern "C" int prefetched(u64* words, int most) {
  for (int i = 0; i < (int)asked_of_l2.size() && i < most; ++i) memcpy(words + 4 * i, &asked_of_l2[i], sizeof(Asked));
  return (int)asked_of_l2.size();
}
inline void store_async_two(u32 a, float x, float y, u32 b) { float two[] = {x, y}; emu::put(a, bytes_of(two, 8), b); }
inline void store_shared_vector(u32 a, int x, int y, int z, int w) { int four[] = {x, y, z, w}; memcpy(emu::at(a, 16), four, 16); }
inline u32 load_shared_word(u32 a) { u32 v; memcpy(&v, emu::at(a, 4), 4); return v; }
inline float2 load_shared_two(u32 a) { float2 v; memcpy(&v, emu::at(a, 8), 8); return v; }
