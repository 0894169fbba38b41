  static constexpr float kSteps = 1.0f;

  // A group's factor times the constant by which codes are too small, in both halves.
  struct Beside {
    u32 factor;
  };
  __device__ __forceinline__ static Beside beside(u32 bits) { return {(bits + $excess) * $unit}; }

  __device__ __forceinline__ static void convert(u32 word, u32 (&pairs)[4], const Beside& beside) {
    constexpr u32 kPlaces = 0x81C081C0u;  // sign, exponent and mantissa
    const u32 turned = word >> 4 | word << 28;
    pairs[0] = times(word & kPlaces, beside.factor);
    pairs[1] = times(turned & kPlaces, beside.factor);
    pairs[2] = times(word << 6 & kPlaces, beside.factor);
    pairs[3] = times((word << 2 & 0x80C080C0u) | (word >> 6 & 0x01000100u), beside.factor);
  }
  __device__ __forceinline__ static u32 times(u32 x, u32 f) {
    u32 y;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900  // no such product of bf16: plus -0
    asm("fma.rn.${kind}x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(f), "r"(0x80008000u));
#else
    asm("mul.${kind}x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(f));
#endif
    return y;
  }
