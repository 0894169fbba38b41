  // Codes are converted to q - 8 in units of the smallest subnormal number of e4m3.
  static constexpr float kSteps = 512.0f;
  struct Beside {};
  __device__ __forceinline__ static Beside beside(u32) { return {}; }

  __device__ __forceinline__ static void convert(u32 word, u32 (&quads)[2], const Beside&) {
    quads[0] = four(word);
    quads[1] = four(word >> 4 | word << 28);
  }
  // In each byte, the sign in the highest bit is added to the three lowest ones, which have the difference to 0 or -1.
  __device__ __forceinline__ static u32 four(u32 x) { return (x & 0x87878787u) + (x >> 7 & 0x01010101u); }
