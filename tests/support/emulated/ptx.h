// Emulates the instructions that ptx.cuh wraps.
inline u32 shared_address(const void* pointer) {
  const auto* begin = emu::cta().memory.data();
  const auto* own = static_cast<const unsigned char*>(pointer);
  if (own < begin || own >= begin + emu::cta().memory.size()) { printf("not dynamic shared memory\n"); abort(); }
  return static_cast<u32>(own - begin);
}
template <CacheHint> inline u64 cache_policy() { return 0; }
template <int kBytes, CacheHint> inline void cp_async(u32 s, const void* g, int valid) { unsigned char* d = emu::at(s, kBytes); memset(d, 0, kBytes); if (valid) memcpy(d, g, valid); }
template <CacheHint> inline void cp_async_through_l1(u32 s, const void* g, int valid) { unsigned char* d = emu::at(s, 16); memset(d, 0, 16); if (valid) memcpy(d, g, valid); }
inline void cp_async_commit() {}
template <int> inline void cp_async_wait() {}
inline void ldmatrix(u32* r, u32 a, int count) {
  const int s = emu::meet(a), l = emu::lane();
  for (int i = 0; i < count; ++i) memcpy(r + i, emu::at((u32)emu::warp().values[s][8 * i + l / 4] + l % 4 * 4, 4), 4);
  emu::meet(0);
}
inline void ldmatrix_x4(u32 (&r)[4], u32 a) { ldmatrix(r, a, 4); }
inline void ldmatrix_x2(u32 (&r)[2], u32 a) { ldmatrix(r, a, 2); }
template <class Element> inline void emulated_multiply(float* d, const u32 (&a)[4], const u32 (&b)[2]) {
  u64 bb; memcpy(&bb, b, 8);
  const int s = emu::meet(bb, a, 4), l = emu::lane(); auto& w = emu::warp();
  for (int i = 0; i < 4; ++i) {
    const int row = l / 4 + i / 2 * 8, col = l % 4 * 2 + i % 2; float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const u32 aw = (u32)w.more[s][row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2]; const u16 ab = k % 2 ? aw >> 16 : aw;
      const u64 bv = w.values[s][col * 4 + k % 8 / 2]; const u32 bw = k / 8 ? bv >> 32 : bv; const u16 b2 = k % 2 ? bw >> 16 : bw;
      sum += Element::widen(ab) * Element::widen(b2);
    }
    d[i] = sum;
  }
  emu::meet(0);
}
inline float exp2_approx(float x) { return std::exp2(x); }
inline float sine_approx(float x) { return std::sin(x); }
inline float cosine_approx(float x) { return std::cos(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float max_or_nan(float x, float y) { return x != x || y != y ? NAN : x > y ? x : y; }
inline u32 load_acquire_gpu(const u32* a) { return *a; }
inline u32 load_relaxed_gpu(const u32* a) { emu::yield(); return *a; }
inline u64 load_relaxed_gpu(const u64* a) { emu::yield(); return *a; }
inline uint4 load_relaxed_gpu(const u16* a) { emu::yield(); if ((uintptr_t)a % 16) { printf("misaligned load\n"); abort(); } uint4 v; memcpy(&v, a, 16); return v; }
inline void store_relaxed_gpu(u16* a, u32 v) { memcpy(a, &v, 4); ++emu::progress; }
inline void store_relaxed_gpu(u16* a, const uint4& v) { if ((uintptr_t)a % 16) { printf("misaligned store\n"); abort(); } memcpy(a, &v, 16); ++emu::progress; }
inline void add_release_gpu(u32* a, u32 v) { *a += v; ++emu::progress; }
inline u64 fetch_add_relaxed_gpu(u64* a, u64 v) { u64 b = *a; *a += v; ++emu::progress; return b; }
inline u32 fetch_add_acq_rel_gpu(u32* a, u32 v) { u32 b = *a; *a += v; ++emu::progress; return b; }
inline u32 compare_and_swap_relaxed_gpu(u32* a, u32 e, u32 d) { u32 b = *a; if (b == e) *a = d; return b; }
inline void launch_dependents() {}
inline void wait_for_prerequisites() { emu::me().has_waited = true; }
inline void prefetch_l2(const void*) {}
template <int k> inline void barrier_sync(int b) { emu::bar(emu::cta().bars[b], k); }
template <int k> inline bool barrier_or(int b, bool f) { emu::bar(emu::cta().bars[b], k, f); return emu::cta().bars[b].any_out; }
inline void fence_sc_gpu() {}
inline long long read_clock() { return 0; }
inline long long read_globaltimer() { return 0; }
inline u32 read_smid() { return 0; }
template <CacheHint> inline u16 load_past_l1(const u16* a) { return *a; }
inline float load_past_l1(const float* a) { return *a; }
inline float4 load_past_l1(const float4* a) { if ((uintptr_t)a % 16) { printf("misaligned vector\n"); abort(); } return *a; }
inline void store_shared(u32 a, u16 v) { memcpy(emu::at(a, 2), &v, 2); }
inline void store_shared(u32 a, float v) { memcpy(emu::at(a, 4), &v, 4); }
inline void store_shared(u32 a, const uint4& v) { memcpy(emu::at(a, 16), &v, 16); }
inline u16 load_shared_element(u32 a) { u16 v; memcpy(&v, emu::at(a, 2), 2); return v; }
template <int k> inline u64 load_shared_bytes(u32 a) { if (a % k) { printf("misaligned load\n"); abort(); } u64 v = 0; memcpy(&v, emu::at(a, k), k); return v; }
inline float load_shared_float(u32 a) { float v; memcpy(&v, emu::at(a, 4), 4); return v; }
inline uint4 load_shared_vector(u32 a) { uint4 v; memcpy(&v, emu::at(a, 16), 16); return v; }
template <CacheHint, class T> inline void store_global(T* a, T v) { *a = v; }
inline u32 low_bytes(u32 low, u32 high) { return (low & 0xFF) | (low >> 16 & 0xFF) << 8 | (high & 0xFF) << 16 | (high >> 16 & 0xFF) << 24; }
template <CacheHint> inline void store_global(uint2* a, const uint2& v) { if ((uintptr_t)a % 8) { printf("misaligned store\n"); abort(); } *a = v; }
template <CacheHint> inline void store_global(u16* a, u16 v) { *a = v; }
template <CacheHint> inline void store_global(u32* a, u32 v) { *a = v; }
template <CacheHint> inline void store_global(uint4* a, const uint4& v) { if ((uintptr_t)a % 16) { printf("misaligned store\n"); abort(); } *a = v; }
