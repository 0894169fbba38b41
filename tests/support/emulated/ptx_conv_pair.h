// Emulates the wrappers of ptx_conv_pair.cuh, and wgmma on operands without swizzle.
inline u64 plain_descriptor(u32 units, u32 pitch) { return (u64)8 << 32 | ((u64)(pitch >> 4) << 16 | units); }
// Transposed 8 x 8 matrices: lane l holds elements 2 (l % 4) and 1 more of row l / 4, stored as columns.
inline void store_matrices(u32 address, const u32* words, int count) {
  const int s = emu::meet(address), l = emu::lane();
  for (int i = 0; i < count; ++i) for (int e = 0; e < 2; ++e) {
    const u16 value = e ? words[i] >> 16 : words[i];
    const u32 row = (u32)emu::warp().values[s][8 * i + l % 4 * 2 + e];
    if (row % 16) { printf("misaligned row\n"); abort(); }
    memcpy(emu::at(row + 2 * (l / 4), 2), &value, 2);
  }
  emu::meet(0);
}
inline void store_blocks(u32 address, u32 a, u32 b, u32 c, u32 d) { const u32 words[] = {a, b, c, d}; store_matrices(address, words, 4); }
inline void store_block(u32 address, u32 a, u32 b) { const u32 words[] = {a, b}; store_matrices(address, words, 2); }
// The inverse.
inline void load_matrices(u32* words, u32 address, int count) {
  const int s = emu::meet(address), l = emu::lane();
  for (int i = 0; i < count; ++i) {
    u16 two[2];
    for (int e = 0; e < 2; ++e) memcpy(two + e, emu::at((u32)emu::warp().values[s][8 * i + l % 4 * 2 + e] + 2 * (l / 4), 2), 2);
    words[i] = two[0] | (u32)two[1] << 16;
  }
  emu::meet(0);
}
inline void load_blocks(u32 (&words)[4], u32 address) { load_matrices(words, address, 4); }
inline void load_block(u32 (&words)[2], u32 address) { load_matrices(words, address, 2); }
template <int kThreads> inline void sync_team(int team) { emu::bar(emu::cta().bars[team + 1], kThreads); }
// Rows are 16 bytes apart within a block of 8; `high` bits of a descriptor have the distance of blocks, `low` of the next
// 8 elements of k.
inline float plain_element(u64 descriptor, int row, int k) {
  const u32 start = (u32)(descriptor & 0x3FFF) << 4, pitch = (u32)(descriptor >> 16 & 0x3FFF) << 4, block = (u32)(descriptor >> 32 & 0x3FFF) << 4;
  Element::Bits v; memcpy(&v, emu::at(start + row / 8 * block + row % 8 * 16 + k / 8 * pitch + k % 8 * 2, 2), 2); return Element::widen(v);
}
template <int n> struct Wgmma {
  static void multiply(float* d, u64 a, u64 b) {
    const int w = emu::me().thread / 32 % 4, l = emu::lane(); float av[2][16], bv[16];
    for (int h = 0; h < 2; ++h) for (int k = 0; k < 16; ++k) av[h][k] = plain_element(a, w * 16 + l / 4 + 8 * h, k);
    for (int j = 0; j < n / 8; ++j) for (int c = 0; c < 2; ++c) {
      for (int k = 0; k < 16; ++k) bv[k] = plain_element(b, j * 8 + l % 4 * 2 + c, k);
      for (int h = 0; h < 2; ++h) { float sum = 0; for (int k = 0; k < 16; ++k) sum += av[h][k] * bv[k]; d[4 * j + 2 * h + c] += sum; }
    }
  }
};
