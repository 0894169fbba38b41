"""Operands of a pair in a scheme's format, on the card, and the result for the unquantised ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from .rows import Pair

#: The largest finite e4m3.
FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
#: Rows and columns of a block of weights, and elements of a group of activations: DeepSeek's values.
BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """fp8 values, with their fp32 factors."""

    values: torch.Tensor
    scales: torch.Tensor


def by_tensor(x: torch.Tensor) -> Scaled:
    """One factor, [1]."""
    return _scaled(x, x.abs().amax().float().reshape(1) / FP8_MAX)


def by_row(x: torch.Tensor) -> Scaled:
    """One factor per row, [rows]: per token, or per output channel of weights."""
    factors = x.abs().amax(1).float() / FP8_MAX
    return Scaled(values=_scaled(x, factors[:, None]).values, scales=factors)


def by_block(w: torch.Tensor) -> Scaled:
    """One factor per 128 x 128 weights, [rows / 128, columns / 128]."""
    n, k = w.shape
    factors = w.view(n // BLOCK, BLOCK, k // BLOCK, BLOCK).abs().amax((1, 3)).float() / FP8_MAX
    spread = factors.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return Scaled(values=_scaled(w, spread).values, scales=factors)


def by_group(x: torch.Tensor, room: int) -> Scaled:
    """One factor per 128 elements of a row, group by group: [columns / 128, room], room >= rows."""
    m, k = x.shape
    factors = x.view(m, k // BLOCK, BLOCK).abs().amax(2).float() / FP8_MAX
    laid = torch.ones(k // BLOCK, room, device=x.device)
    laid[:, :m] = factors.t()
    return Scaled(values=_scaled(x, factors.repeat_interleave(BLOCK, 1)).values, scales=laid)


def by_int4(w: torch.Tensor, group: int) -> Scaled:
    """4-bit codes q [n, k], and a factor s in w's type per group of a row, [n, k / group]: w is about (q - 8) s."""
    n, k = w.shape
    groups = w.view(n, k // group, group).float()
    factors = (groups.abs().amax(2) / 7).to(w.dtype)
    codes = (groups / factors.float()[:, :, None]).round().clamp(-8, 7) + 8
    return Scaled(values=codes.to(torch.uint8).view(n, k), scales=factors)


#: The values of e2m1's codes 0 to 7; bit 3 is the sign.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def by_mxfp4(w: torch.Tensor, group: int) -> Scaled:
    """e2m1 codes [n, k], and a power of two per `group` codes of a row, [n, k / group], e8m0."""
    n, k = w.shape
    groups = w.view(n, k // group, group).float()
    factors = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(2).clamp(min=2.0**-100) / _E2M1[-1])))
    sizes = groups.abs() / factors[:, :, None]
    middles = torch.tensor([sum(two) / 2 for two in pairwise(_E2M1)], device=w.device)
    codes = torch.bucketize(sizes, middles) + 8 * (groups < 0)
    return Scaled(values=codes.to(torch.uint8).view(n, k), scales=factors.to(torch.float8_e8m0fnu))


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Eight codes of a row per int32, [n, k / 8], the first in the lowest bits."""
    n, k = codes.shape
    pairs = codes.view(n, k // 2, 2)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).contiguous().view(torch.int32)


def _scaled(x: torch.Tensor, factors: torch.Tensor) -> Scaled:
    return Scaled(values=(x.float() / factors).clamp(-FP8_MAX, FP8_MAX).to(FP8), scales=factors)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """bf16 weights of a pair: gate and up projection [2 hidden, d], down projection [d, hidden]."""

    up: torch.Tensor
    down: torch.Tensor


def random_weights(pair: Pair, sets: int) -> list[Weights]:
    """`sets` sets of different values, with rows of about the same magnitude."""

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) / columns**0.5

    return [Weights(up=drawn(2 * pair.hidden, pair.d), down=drawn(pair.d, pair.hidden)) for _ in range(sets)]


def reference(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """The result for unquantised operands: fp32, [m, d]."""
    halves = (x.float() @ weights.up.float().t()).chunk(2, dim=1)
    return (torch.nn.functional.silu(halves[0]) * halves[1]) @ weights.down.float().t()


def hidden_scale(x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """A static factor of H, [1]: the maximum in one batch, as in calibration."""
    halves = (x.float() @ weights.up.float().t()).chunk(2, dim=1)
    return (torch.nn.functional.silu(halves[0]) * halves[1]).abs().amax().reshape(1) / FP8_MAX


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """||found - expected|| / ||expected||; NaN if there is a NaN."""
    return float((found.float() - expected).norm() / expected.norm())
