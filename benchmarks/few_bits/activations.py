"""The kernel between the two products of a library's pair: silu, product and quantisation at once, by Triton.

A row of its input has the gate's sums, then the up projection's.
"""

# ruff: noqa: N803
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from .quantised import BLOCK, FP8_MAX

#: Columns per program if it does not need the maximum of a row.
_COLUMNS = 1024
#: Groups of 128 columns per program.
_GROUPS = 8


@triton.jit
def _halves(sums, row, columns, n, mask):
    gate = tl.load(sums + row * 2 * n + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(sums + row * 2 * n + n + columns, mask=mask, other=0.0).to(tl.float32)
    return gate, up


@triton.jit
def _plain_kernel(sums, out, n, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < n
    gate, up = _halves(sums, row, columns, n, mask)
    tl.store(out + row * n + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _tensor_kernel(sums, out, scale, n, LIMIT: tl.constexpr, COLUMNS: tl.constexpr):
    row, columns = tl.program_id(0), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < n
    gate, up = _halves(sums, row, columns, n, mask)
    value = gate * tl.sigmoid(gate) * up / tl.load(scale)
    tl.store(out + row * n + columns, tl.clamp(value, -LIMIT, LIMIT).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _token_kernel(
    sums, row_scales, column_scales, out, scales, n, LIMIT: tl.constexpr, DEFERRED: tl.constexpr, COLUMNS: tl.constexpr
):
    row, columns = tl.program_id(0), tl.arange(0, COLUMNS)
    mask = columns < n
    gate, up = _halves(sums, row, columns, n, mask)
    if DEFERRED:
        of_row = tl.load(row_scales + row)
        gate *= of_row * tl.load(column_scales + columns, mask=mask, other=0.0)
        up *= of_row * tl.load(column_scales + n + columns, mask=mask, other=0.0)
    value = gate * tl.sigmoid(gate) * up
    scale = tl.maximum(tl.max(tl.abs(value)), 1e-10) / LIMIT
    tl.store(scales + row, scale)
    tl.store(out + row * n + columns, tl.clamp(value / scale, -LIMIT, LIMIT).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _group_kernel(sums, out, scales, n, room, LIMIT: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr):
    row, groups = tl.program_id(0), tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    columns = groups[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    mask = columns < n
    gate, up = _halves(sums, row, columns, n, mask)
    value = gate * tl.sigmoid(gate) * up
    scale = tl.maximum(tl.max(tl.abs(value), 1), 1e-10) / LIMIT
    tl.store(scales + groups * room + row, scale, mask=groups * WIDTH < n)
    tl.store(
        out + row * n + columns, tl.clamp(value / scale[:, None], -LIMIT, LIMIT).to(out.dtype.element_ty), mask=mask
    )


def plain(sums: torch.Tensor, out: torch.Tensor) -> None:
    """Computes `out` [m, n] = silu(gate) * up, in the type of `out`."""
    m, n = out.shape
    _plain_kernel[(m, triton.cdiv(n, _COLUMNS))](sums, out, n, COLUMNS=_COLUMNS)


def by_tensor(sums: torch.Tensor, out: torch.Tensor, scale: torch.Tensor) -> None:
    """Same as `plain`, divided by a static scale [1], in fp8."""
    m, n = out.shape
    _tensor_kernel[(m, triton.cdiv(n, _COLUMNS))](sums, out, scale, n, LIMIT=FP8_MAX, COLUMNS=_COLUMNS)


def by_token(sums: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, deferred: Any = None) -> None:
    """Same as `plain`, divided by a scale per row, which it writes to `scales` [m]. `deferred`: factors of rows [m] and
    columns [2 n] that the sums still have to be multiplied by."""
    m, n = out.shape
    row_scales, column_scales = deferred or (scales, scales)
    constants = {"LIMIT": FP8_MAX, "DEFERRED": deferred is not None, "COLUMNS": triton.next_power_of_2(n)}
    warps = 32 if n > 8192 else 16 if n > 4096 else 8
    _token_kernel[(m,)](sums, row_scales, column_scales, out, scales, n, **constants, num_warps=warps)


def by_group(sums: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    """Same as `plain`, divided by a scale per 128 columns of a row, which it writes to `scales` [n / 128, room]."""
    m, n = out.shape
    constants = {"LIMIT": FP8_MAX, "GROUPS": _GROUPS, "WIDTH": BLOCK}
    _group_kernel[(m, triton.cdiv(n, _GROUPS * BLOCK))](sums, out, scales, n, scales.shape[1], **constants)
