  static constexpr float kSteps = 1.0f;

  // A group's factor, and what codes are too small by, in both halves.
  struct Beside {
    u32 factor;
  };
  __device__ __forceinline__ static Beside beside(u32 bits) { return {(bits + $excess) * $unit}; }

  __device__ __forceinline__ static void convert(u32 word, u32 (&pairs)[4], const Beside& beside) {
    constexpr u32 kPlaces = 0x81C081C0u;  // sign, exponent and mantissa
    const u32 turned = word >> 3 | word << 29;
    const u32 left = (word << 6 & 0x00C000C0u) | (word >> 5 & 0x01000100u);
    pairs[0] = times(word & kPlaces, beside.factor);
    pairs[1] = times(turned & kPlaces, beside.factor);
    pairs[2] = times(word << 3 & kPlaces, beside.factor);
    pairs[3] = times(left | (word << 1 & 0x80008000u), beside.factor);
  }
  __device__ __forceinline__ static u32 times(u32 x, u32 f) {
    u32 y;
    asm("mul.${kind}x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(f));
    return y;
  }
