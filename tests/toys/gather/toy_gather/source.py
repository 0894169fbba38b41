"""The device text of a gather."""

from __future__ import annotations

import hashlib
from string import Template

from toy_gather.op import GatherOp
from toy_gather.schedule import GatherSchedule
from tuner.extend import Dtype

KERNEL = "gather"
#: Two ones, by the element type's name in PTX.
ONES = {"f16": "0x3C003C00u", "bf16": "0x3F803F80u"}

#: Each thread processes a vector of eight elements at a time. The count is read once per CTA, after the kernel that
#: writes it.
_TEXT = Template("""\
// A row of the table is added to each of the first `count` rows of x; the others are zero.
typedef unsigned int u32;

// Of two elements each, rounded once; a card before sm_90 has no addition of two bf16.
__device__ __forceinline__ u32 add(u32 one, u32 other) {
  u32 sum;
  asm("fma.rn.${kind}x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(one), "r"($ones), "r"(other));
  return sum;
}

struct GatherArgs {
  const uint4* x;
  const uint4* table;
  const int* rows;
  const int* count;
  uint4* out;
  int m;
};

extern "C" __global__ void __launch_bounds__($threads) gather(const __grid_constant__ GatherArgs args) {
  __shared__ int live;
  if (threadIdx.x == 0) live = min(max(*args.count, 0), args.m);
  __syncthreads();
  for (int row = blockIdx.x * $rows_per_cta; row < min((blockIdx.x + 1) * $rows_per_cta, args.m); ++row) {
    const int from = row < live ? args.rows[row] : -1;
    for (int at = threadIdx.x; at < $vectors; at += $threads) {
      uint4 sum = make_uint4(0, 0, 0, 0);
      if (0 <= from && from < $table_rows) {
        const uint4 one = args.x[row * $vectors + at], other = args.table[(long long)from * $vectors + at];
        sum.x = add(one.x, other.x);
        sum.y = add(one.y, other.y);
        sum.z = add(one.z, other.z);
        sum.w = add(one.w, other.w);
      }
      args.out[row * $vectors + at] = sum;
    }
  }
}
""")


def source_of(op: GatherOp, schedule: GatherSchedule, dtype: Dtype) -> str:
    """CUDA C++ for one element type."""
    kind = str(dtype.row.tensor_kind)
    return _TEXT.substitute(
        kind=kind,
        ones=ONES[kind],
        threads=schedule.threads,
        rows_per_cta=schedule.rows_per_cta,
        vectors=op.n // 8,
        table_rows=op.table_rows,
    )


def version() -> str:
    """A digest of the text."""
    return hashlib.sha256(_TEXT.template.encode()).hexdigest()[:12]
