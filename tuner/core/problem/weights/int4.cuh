  // Pair i has the codes from bit 4 i on of both halves; `zero` has what is taken from a raised one in both.
  __device__ __forceinline__ static void convert(u32 word, u32 (&pairs)[4], u32 zero = $zero) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32 raised;  // the code and the number below it: one instruction where both constants are in registers
      asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(raised) : "r"(word >> 4 * i), "r"(0x000F000Fu), "r"($base));
      asm("sub.${kind}x2 %0, %1, %2;" : "=r"(pairs[i]) : "r"(raised), "r"(zero));
    }
  }
