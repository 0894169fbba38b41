"""The kernel of `norm`, in Triton, which vLLM installs on machines with a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit  # type: ignore[untyped-decorator]
def add_norm_kernel(  # type: ignore[no-untyped-def]
    rows, before, after, normed, weight, row_step, before_step, eps,
    columns: tl.constexpr, block: tl.constexpr, is_dependent: tl.constexpr,
):  # fmt: skip
    """One program per row: computes after = rows + before, and normed, its norm."""
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, block)
    inside = at < columns
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if is_dependent:
        # A launch that begins early waits for the end of this kernel before it reads rows, as this one does for earlier
        # ones.
        gdc_launch_dependents()
        gdc_wait()
    both = tl.load(rows + row * row_step + at, mask=inside, other=0.0).to(tl.float32)
    both += tl.load(before + row * before_step + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(after + row * columns + at, both.to(after.dtype.element_ty), mask=inside)
    factor = tl.rsqrt(tl.sum(both * both, axis=0) / columns + eps)
    # Rounded once, as in the norm that vLLM compiles: a second rounding moves logits farther from fp32.
    tl.store(normed + row * columns + at, (both * factor * weights).to(normed.dtype.element_ty), mask=inside)


def launch(
    rows: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    normed: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> None:
    """Launches the kernel on the current stream, for [rows, columns] whose columns are contiguous."""
    (count, columns), is_card = rows.shape, rows.is_cuda
    how = {"num_warps": min(16, max(4, triton.next_power_of_2(columns) // 512)), "launch_pdl": True} if is_card else {}
    add_norm_kernel[(count,)](
        rows, before, after, normed, weight, rows.stride(0), before.stride(0), eps,
        columns=columns, block=triton.next_power_of_2(columns), is_dependent=is_card, **how,
    )  # fmt: skip
