// wgmma of 64 rows by n columns, for the widths that a kernel needs: n a multiple of 8 from 8 to 256. A generated
// source contains a specialisation per width, since the instruction names every accumulator.
#pragma once
#include "ptx_hopper.cuh"

// multiply(d, a, b): d[n / 2] += a [64, 16] b [n, 16]^T, fp32 accumulators of the warpgroup, operands by descriptor.
template <int kRows>
struct Wgmma;

// The same with operand A in registers, as fragments of m64k16: multiply(d, a, b, adds).
template <int kRows>
struct WgmmaOfRegisters;
