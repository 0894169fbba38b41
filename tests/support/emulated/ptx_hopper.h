// Emulates the wrappers of ptx_hopper.cuh. A tensor map has the layout of `encoded` in source.py.
struct alignas(64) TensorMap { u64 opaque[16]; };  // address, rank, dims[5], strides[4], box[5]
inline void mbarrier_init(u32 b, u32 n) { auto& m = emu::mb(b); m = {}; m.count = m.pending = n; m.is_init = true; emu::at(b, 8); }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(u32 b) { emu::arrive(emu::mb(b)); }
inline void mbarrier_arrive_if(bool a, u32 b) { if (a) emu::arrive(emu::mb(b)); }
inline void mbarrier_arrive_expect(u32 b, u32 bytes) { auto& m = emu::mb(b); m.tx += bytes; emu::arrive(m); }
inline void mbarrier_wait(u32 b, u32 parity) { auto& m = emu::mb(b); if (!m.is_init) { printf("wait at no barrier\n"); abort(); } while ((m.phase & 1) == parity) emu::yield(); }
inline void prefetch_tensor_map(const TensorMap*) {}
inline u32 swizzled(u32 a) { return a ^ ((a >> 7 & 7) << 4); }
inline u32 address_in_cta(u32 a, int rank) { return 0x80000000u | (u32)rank << 24 | a; }
// Copies the box at these coordinates (innermost first) to the shared memory of the CTAs in the mask, with the 128-byte
// swizzle.
inline void copy_box(u32 shared, const TensorMap* map, const int* at, u32 barrier, int ctas) {
  const u64* o = map->opaque; const int rank = (int)o[1]; long long count = 1; for (int d = 0; d < rank; ++d) count *= o[11 + d];
  constexpr int kSize = sizeof(Element::Bits); std::vector<unsigned char> bytes(kSize * count);
  for (long long e = 0; e < count; ++e) {
    long long rest = e; u64 offset = 0; bool inside = true;
    for (int d = 0; d < rank; ++d) {
      const long long x = at[d] + rest % (long long)o[11 + d]; rest /= o[11 + d];
      inside &= x >= 0 && x < (long long)o[2 + d]; offset += d == 0 ? kSize * x : x * o[7 + d - 1];
    }
    const u32 place = swizzled(shared + kSize * e) - shared;
    if (place + kSize > bytes.size()) { printf("copy out of range\n"); abort(); }
    if (inside) memcpy(bytes.data() + place, (const char*)o[0] + offset, kSize);
  }
  if (ctas < 0) return emu::put(shared, bytes, barrier);
  for (int c = 0; c < 16; ++c) if (ctas >> c & 1) emu::put(address_in_cta(shared, c), bytes, barrier);
}
inline void copy_line(u32 s, const TensorMap* m, int column, int row, u32 b, u64) { int at[] = {column, row}; copy_box(s, m, at, b, -1); }
inline void copy_lines(u32 s, const TensorMap* m, int row, int line, u32 b, u64) { int at[] = {0, row, line}; copy_box(s, m, at, b, -1); }
inline void copy_pairs(u32 s, const TensorMap* m, int pair, int line, u32 b, u64) { int at[] = {0, 0, 0, pair, line}; copy_box(s, m, at, b, -1); }
inline void copy_line_to(u32 s, const TensorMap* m, int column, int row, u32 b, u64, u16 c) { int at[] = {column, row}; copy_box(s, m, at, b, c); }
inline void copy_lines_to(u32 s, const TensorMap* m, int row, int line, u32 b, u64, u16 c) { int at[] = {0, row, line}; copy_box(s, m, at, b, c); }
inline void copy_pairs_to(u32 s, const TensorMap* m, int pair, int line, u32 b, u64, u16 c) { int at[] = {0, 0, 0, pair, line}; copy_box(s, m, at, b, c); }
struct PixelStart { int x, y, image; };
// The pixels of a box within each image, one by one, with the map's corners and stride.
inline void copy_pixels_to(u32 shared, const TensorMap* map, const PixelStart& start, int channel, int right, int down, u32 barrier, u64, int ctas) {
  const long long* o = (const long long*)map->opaque; const long long channels = o[9], lower = o[11], upper = o[12], stride = o[13];
  std::vector<unsigned char> bytes(2 * channels * o[10]); long long x = start.x, y = start.y, image = start.image;
  for (long long pixel = 0; pixel < o[10]; ++pixel) {
    const long long column = x + right, row = y + down;
    for (long long c = 0; c < channels; ++c) {
      const bool inside = column >= 0 && column < o[3] && row >= 0 && row < o[4] && image < o[5] && channel + c < o[2];
      const u32 e = 2 * (pixel * channels + c), place = swizzled(shared + e) - shared;
      if (inside) memcpy(bytes.data() + place, (const char*)o[0] + 2 * (channel + c) + column * o[6] + row * o[7] + image * o[8], 2);
    }
    if ((x += stride) < o[3] + upper) continue;
    x = lower;
    if ((y += stride) < o[4] + upper) continue;
    y = lower, ++image;
  }
  if (ctas < 0) return emu::put(shared, bytes, barrier);
  for (int c = 0; c < 16; ++c) if (ctas >> c & 1) emu::put(address_in_cta(shared, c), bytes, barrier);
}
inline void copy_pixels(u32 s, const TensorMap* m, const PixelStart& at, int channel, int right, int down, u32 b, u64 p) { copy_pixels_to(s, m, at, channel, right, down, b, p, -1); }
inline void copy_bytes(u32 s, const void* from, u32 n, u32 b, u64) {
  if (s % 16 || (uintptr_t)from % 16 || n % 16) { printf("misaligned copy\n"); abort(); }
  emu::put(s, {(const unsigned char*)from, (const unsigned char*)from + n}, b);
}
inline void prefetch_line(const TensorMap*, int, int, u64) {}
inline void prefetch_lines(const TensorMap*, int, int, u64) {}
inline void prefetch_pairs(const TensorMap*, int, int, u64) {}
inline void stmatrix_x4(u32 shared, const u32 (&w)[4]) {
  const int s = emu::meet(shared), l = emu::lane();
  for (int i = 0; i < 4; ++i) memcpy(emu::at((u32)emu::warp().values[s][8 * i + l / 4] + l % 4 * 4, 4), w + i, 4);
  emu::meet(0);
}
template <CacheHint> inline void store_box(const TensorMap* map, int column, int row, u32 shared) {
  const u64* o = map->opaque; const int width = (int)o[11], rows = (int)o[12];
  for (int r = 0; r < rows; ++r) for (int c = 0; c < width; ++c) {
    if (row + r >= (long long)o[3] || column + c >= (long long)o[2]) continue;
    memcpy((char*)o[0] + (row + r) * o[7] + 2 * (column + c), emu::at(swizzled(shared + 2 * (r * width + c)), 2), 2);
  }
}
inline void bulk_commit() {}
template <int> inline void bulk_wait_read() {}
template <int> inline void bulk_wait() {}
inline void store_in_cluster(u32 a, u32 v) { memcpy(emu::at(a, 4), &v, 4); }
inline std::vector<unsigned char> bytes_of(const void* from, u32 n) { return {(const unsigned char*)from, (const unsigned char*)from + n}; }
inline void store_async(u32 a, const float* four, u32 b) { emu::put(a, bytes_of(four, 16), b); }
inline float4 load_shared_four(u32 a) { float4 v; memcpy(&v, emu::at(a, 16), 16); return v; }
inline void mbarrier_arrive_in_cluster(u32 b) { emu::arrive(emu::mb(b)); }
inline void mbarrier_arrive_release_cluster(u32 b) { emu::arrive(emu::mb(b)); }
inline void mbarrier_wait_acquire_cluster(u32 b, u32 p) { mbarrier_wait(b, p); }
inline void cluster_arrive() {
  emu::Cluster& all = emu::clusters[emu::me().cta / emu::cluster_size];
  emu::me().cluster_generation = all.generation; ++emu::progress;
  if (++all.arrived == emu::threads * emu::cluster_size) all.arrived = 0, ++all.generation;
}
inline void cluster_wait() {
  while (emu::clusters[emu::me().cta / emu::cluster_size].generation == emu::me().cluster_generation) emu::yield();
}
inline void fence_acq_rel_cluster() {}
inline void fence_proxy_async_global() {}
inline void fence_proxy_async_shared() {}
inline void wgmma_fence() { emu::meet(0); }
inline void wgmma_commit() { emu::meet(0); }
template <int> inline void wgmma_wait() { emu::meet(0); }
inline u32 operand_units(u32 a) { return a >> 4 | 1u << 16; }
inline u64 operand_descriptor(u32 units) { return units; }
inline int uniform(int v) { return __shfl_sync(0xFFFFFFFFu, v, 0); }
inline int thread_number() { return emu::me().thread; }
template <int> inline void raise_registers() {}
template <int> inline void lower_registers() {}
inline Element::Bits operand_element(u32 start, int row, int k) {
  constexpr int kSize = sizeof(Element::Bits); Element::Bits v; memcpy(&v, emu::at(swizzled(start + row * 128 + kSize * k), kSize), kSize); return v;
}
constexpr int kDepth = 32 / sizeof(Element::Bits);
// A sum of products and the previous value, as the tensor cores of sm_90 add 8-bit products: each term is truncated 13
// bits below the leading bit of the largest one. Other sums are fp32.
inline float sum_of(float before, const float* a, const float* b) {
  float sum = 0;
  for (int k = 0; k < kDepth; ++k) sum += a[k] * b[k];
  if (sizeof(Element::Bits) > 1 || std::isnan(before + sum)) return before + sum;
  float largest = std::fabs(before);
  for (int k = 0; k < kDepth; ++k) largest = std::fmax(largest, std::fabs(a[k] * b[k]));
  if (largest == 0) return 0;
  const double unit = std::ldexp(1.0, std::ilogb(largest) - 13); double cut = std::trunc(before / unit);
  for (int k = 0; k < kDepth; ++k) cut += std::trunc(a[k] * b[k] / unit);
  return static_cast<float>(cut * unit);
}
template <int n> inline void wgmma_cpu(float* d, u64 a, u64 b, bool adds) {
  const u32 a0 = (u32)(a & 0x3FFF) << 4, b0 = (u32)(b & 0x3FFF) << 4; const int w = emu::me().thread / 32 % 4, l = emu::lane();
  float av[2][kDepth], bv[kDepth];
  for (int h = 0; h < 2; ++h) for (int k = 0; k < kDepth; ++k) av[h][k] = Element::widen(operand_element(a0, w * 16 + l / 4 + 8 * h, k));
  for (int j = 0; j < n / 8; ++j) for (int c = 0; c < 2; ++c) {
    for (int k = 0; k < kDepth; ++k) bv[k] = Element::widen(operand_element(b0, j * 8 + l % 4 * 2 + c, k));
    for (int h = 0; h < 2; ++h) { float& own = d[4 * j + 2 * h + c]; own = sum_of(adds ? own : 0.0f, av[h], bv); }
  }
}
template <int n> inline void wgmma_of_registers_cpu(float* d, const u32 (&a)[4], u64 b, bool adds) {
  constexpr int kInWord = 4 / sizeof(Element::Bits), kHalf = 4 * kInWord;
  const u32 b0 = (u32)(b & 0x3FFF) << 4; const int l = emu::lane(), s = emu::meet(0, a, 4);
  float av[2][kDepth], bv[kDepth];
  for (int h = 0; h < 2; ++h) for (int k = 0; k < kDepth; ++k) {
    const u32 word = (u32)emu::warp().more[s][l / 4 * 4 + k % kHalf / kInWord][k / kHalf * 2 + h];
    av[h][k] = Element::widen(static_cast<Element::Bits>(word >> 8 * sizeof(Element::Bits) * (k % kInWord)));
  }
  for (int j = 0; j < n / 8; ++j) for (int c = 0; c < 2; ++c) {
    for (int k = 0; k < kDepth; ++k) bv[k] = Element::widen(operand_element(b0, j * 8 + l % 4 * 2 + c, k));
    for (int h = 0; h < 2; ++h) { float& own = d[4 * j + 2 * h + c]; own = sum_of(adds ? own : 0.0f, av[h], bv); }
  }
  emu::meet(0);
}
template <int kRows> struct WgmmaOfRegisters { static void multiply(float* d, const u32 (&a)[4], u64 b, bool adds) { wgmma_of_registers_cpu<kRows>(d, a, b, adds); } };
template <int kRows> struct Wgmma { static void multiply(float* d, u64 a, u64 b, bool adds = true) { wgmma_cpu<kRows>(d, a, b, adds); } };
