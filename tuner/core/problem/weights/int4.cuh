  // Pair i has the codes from bit 4 i on of both halves.
  __device__ __forceinline__ static void convert(u32 word, u32 (&pairs)[4]) {
    constexpr u32 zero = $zero;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const u32 raised = (word >> 4 * i & 0x000F000Fu) | $base;
      asm("sub.${kind}x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(raised), "r"(zero));
    }
  }
