  // The factor 1.0, counted in steps.
  static constexpr float kSteps = $steps;

  // The offsets of a raised and of a subnormal code, which make its zero point 0.
  struct Beside {
    u32 raised = $raised, small = $half;
  };
  // The zero point of a group, as a raised code.
  __device__ __forceinline__ static Beside beside(u32 bits) {
    const u32 point = bits * 0x10001u, centred = times(point, $less_step, $centre);
    return {times(point, $less_step, 0), times(centred, $one, $half)};
  }

  __device__ __forceinline__ static void convert(u32 word, u32 (&pairs)[4], const Beside& beside) {
    const u32 turned = word >> 8 | word << 24;
    pairs[0] = times(masked(word, 0x80708070u, 0x00080008u), $largest, beside.small);
    pairs[1] = times(masked(word, 0x000F000Fu, $base), $step, beside.raised);
    pairs[2] = times(masked(turned, 0x80708070u, 0x00080008u), $largest, beside.small);
    pairs[3] = times(masked(turned, 0x000F000Fu, $base), $step, beside.raised);
  }
  // One instruction if both constants are in registers.
  __device__ __forceinline__ static u32 masked(u32 word, u32 mask, u32 below) {
    u32 found;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(found) : "r"(word), "r"(mask), "r"(below));
    return found;
  }
  __device__ __forceinline__ static u32 times(u32 x, u32 f, u32 added) {
    u32 y;
    asm("fma.rn.${kind}x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(f), "r"(added));
    return y;
  }
