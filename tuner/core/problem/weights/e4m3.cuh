  static constexpr float kSteps = 1.0f;
  struct Beside {};
  __device__ __forceinline__ static Beside beside(u32) { return {}; }

  // Bytes 0 and 2, then 1 and 3: sign, exponent and mantissa move to their positions in the wider type, whose exponents
  // have more bits. A NaN becomes a number; weights have none.
  __device__ __forceinline__ static void convert(u32 word, u32 (&pairs)[2], const Beside&) {
    pairs[0] = enlarged((word << 8 & 0x80008000u) | (word << $shift & $size));
    pairs[1] = enlarged((word & 0x80008000u) | (word $other & $size));
  }
  __device__ __forceinline__ static u32 enlarged(u32 x) {
    constexpr u32 f = $factor;
    u32 y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // no such product of bf16: plus -0
    asm("fma.rn.${kind}x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(f), "r"(0x80008000u));
#else
    asm("mul.${kind}x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(f));
#endif
    return y;
  }
