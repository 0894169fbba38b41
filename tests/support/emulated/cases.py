"""Chains that run on the CPU: every way to store sums of squares, and every way to read factors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.support.cases import ordering, simt, wgmma
from tests.support.chains import block, run_of_block, side_by_side
from tuner.core.problem.ops.rotary import Rotary
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.ordering import Assignment, Granularity, Ordering, SplitTiles
from tuner.core.schedule.tiling import Epilogue, PartSums, Tile, Tiling, Warpgroups

#: Sizes so small that a case takes seconds.
SMALL = {"heads": 128, "width": 256, "hidden": 192, "qkv": 160}
STATIC, TILES = ordering(4, assignment=Assignment.STATIC), ordering(4, granularity=Granularity.TILE)


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """One chain, and how to run it."""

    workload: Workload
    tiling: Tiling
    ordering: Ordering | None = None
    is_fused: bool = False
    is_odd: bool = False


def _mma(*tiles: tuple[int, int, int], num_warps: int = 4, split_k: tuple[int, ...] = ()) -> Tiling:
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    return Tiling(tiles=whole, num_stages=3, num_warps=num_warps, split_k=split_k)


_LOW = ((16, 32, 64), (16, 24, 64), (16, 32, 64), (16, 48, 64))
_SHARED = wgmma(*((64, 64, 64), (64, 56, 64), (64, 64, 64), (64, 32, 64)), num_stages=3, cluster_k=2)
_SHARED_WEIGHTS = wgmma(
    *((128, 64, 64), (128, 48, 64), (128, 64, 64), (128, 32, 64)), cluster_m=2, split_k=(1, 1, 1, 2)
)
_IN_TURNS = wgmma(*((64, 128, 64), (64, 56, 64)) * 2, num_warps=8, warpgroups=Warpgroups.PING_PONG)
_PARTS = wgmma(*((16, 64, 64),) * 4, split_k=(2, 2, 3, 2))
#: Parts that each finish a share; the two ops before a norm have no such parts unless operands are swapped.
_SCATTERED = wgmma(*((16, 64, 64),) * 4, split_k=(1, 2, 1, 2), part_sums=PartSums.SCATTERED)
_SCATTERED_LOW = wgmma(
    *((64, 64, 64), (64, 48, 64), (64, 64, 64), (64, 72, 64)), split_k=(1, 3, 1, 4), part_sums=PartSums.SCATTERED
)
_SCATTERED_SWAPPED = wgmma(
    *((72, 48, 64), (72, 24, 64), (72, 48, 64), (72, 64, 64)),
    swap_ab=True,
    split_k=(2, 3, 2, 4),
    part_sums=PartSums.SCATTERED,
)
_DOTS = simt(*((4, 16, 256), (4, 8, 256)) * 2, num_warps=4)
_BF16 = block(30, **SMALL, dtype=Dtype.BF16)
#: Some heads per tile; one and three new tokens of each sequence.
_TURNED = Rotary(heads=4, kv_heads=2, head_dim=64, max_length=37)
_THREE_TOKENS = Rotary(heads=2, kv_heads=1, head_dim=128, max_length=300, new_tokens=3)
#: The same with pages, where the last page of a context is not full.
_PAGED = replace(_TURNED, page_tokens=16)
_TOKENS_FIRST = replace(_TURNED, page_tokens=32, heads_first=False)
_THREE_PAGED = replace(_THREE_TOKENS, page_tokens=64)

CASES = {
    "simt": Emulated(workload=block(3, **SMALL), tiling=_DOTS),
    "simt, fused": Emulated(workload=block(3, **SMALL), tiling=_DOTS, ordering=STATIC, is_fused=True),
    "mma, parts": Emulated(workload=block(40, **SMALL), tiling=_mma(*((16, 64, 64),) * 4, split_k=(1, 1, 3, 1))),
    "mma, parts, fused": Emulated(
        workload=block(40, **SMALL), tiling=_mma(*((16, 64, 64),) * 4, split_k=(1, 2, 3, 2)), is_fused=True
    ),
    "mma, odd": Emulated(
        workload=block(70, **SMALL, dtype=Dtype.BF16), tiling=_mma(*((32, 64, 64),) * 4, num_warps=8), is_odd=True
    ),
    "wgmma": Emulated(workload=block(13, **SMALL), tiling=wgmma(*_LOW)),
    "wgmma, odd": Emulated(workload=block(13, **SMALL), tiling=wgmma(*_LOW), is_odd=True),
    "parts": Emulated(workload=block(16, **SMALL), tiling=_PARTS),
    "parts, fused": Emulated(workload=block(16, **SMALL), tiling=_PARTS, ordering=STATIC, is_fused=True),
    "parts, tickets": Emulated(workload=block(16, **SMALL), tiling=_PARTS, ordering=TILES, is_fused=True),
    "scattered": Emulated(workload=block(16, **SMALL), tiling=_SCATTERED, ordering=STATIC),
    "scattered, fused": Emulated(workload=block(100, **SMALL), tiling=_SCATTERED_LOW, ordering=STATIC, is_fused=True),
    "scattered, swapped, tail, fused": Emulated(
        workload=block(70, **SMALL),
        tiling=replace(_SCATTERED_SWAPPED, split_k=(1, 2, 1, 2)),
        ordering=replace(STATIC, split_tiles=SplitTiles.TAIL),
        is_fused=True,
    ),
    "scattered, swapped": Emulated(workload=block(70, **SMALL), tiling=_SCATTERED_SWAPPED, ordering=STATIC),
    "shared k": Emulated(workload=_BF16, tiling=_SHARED),
    "shared k, fused": Emulated(workload=_BF16, tiling=_SHARED, ordering=STATIC, is_fused=True),
    "shared weights, fused": Emulated(
        workload=block(100, **SMALL), tiling=_SHARED_WEIGHTS, ordering=STATIC, is_fused=True
    ),
    "in turns": Emulated(workload=block(100, **SMALL), tiling=_IN_TURNS),
    "in turns, fused": Emulated(workload=block(100, **SMALL), tiling=_IN_TURNS, ordering=STATIC, is_fused=True),
    "swapped, parts": Emulated(
        workload=block(70, **SMALL),
        tiling=wgmma((72, 48, 64), (72, 24, 64), (72, 48, 64), (72, 64, 64), swap_ab=True, split_k=(2, 1, 2, 1)),
    ),
    "swapped, several blocks": Emulated(
        workload=block(30, **SMALL),
        tiling=wgmma(
            *((32, 144, 64), (32, 72, 64), (32, 144, 64), (32, 160, 64)), num_warps=8, input_stages=6, swap_ab=True
        ),
    ),
    "swapped, shared k": Emulated(
        workload=block(60, **SMALL),
        tiling=wgmma(
            *((64, 128, 64), (64, 56, 64), (64, 128, 64), (64, 128, 64)), num_warps=8, swap_ab=True, cluster_k=2
        ),
    ),
    "in band": Emulated(
        workload=block(5, **SMALL), tiling=replace(wgmma(*_LOW), in_band=True), ordering=STATIC, is_fused=True
    ),
    "in band, parts, tickets": Emulated(
        workload=block(8, **SMALL, dtype=Dtype.BF16),
        tiling=replace(_PARTS, in_band=True, ahead_window=1),
        ordering=ordering(4),
        is_fused=True,
    ),
    "in band, swapped, shared k": Emulated(
        workload=block(3, **SMALL),
        tiling=wgmma((16, 64, 64), (16, 24, 64), (16, 64, 64), (16, 32, 64), swap_ab=True, cluster_k=2, in_band=True),
        ordering=STATIC,
        is_fused=True,
    ),
    "in band, a launch each": Emulated(workload=block(5, **SMALL), tiling=replace(wgmma(*_LOW), in_band=True)),
    "copied": Emulated(
        workload=block(150, **SMALL),
        tiling=wgmma(
            *((128, 176, 64), (128, 88, 64), (128, 128, 64), (128, 40, 64)), num_warps=8, epilogue=Epilogue.TMA
        ),
    ),
    "clusters": Emulated(
        workload=block(150, **SMALL),
        tiling=wgmma(*((128, 64, 64), (128, 48, 64), (128, 64, 64), (128, 64, 64)), cluster_m=2),
    ),
    "clusters of columns": Emulated(
        workload=block(50, **SMALL),
        tiling=wgmma(*((64, 144, 64), (64, 112, 64), (64, 144, 64), (64, 64, 64)), cluster_n=2),
    ),
    "norm of an input": Emulated(
        workload=run_of_block(13, width=256, hidden=192), tiling=wgmma((16, 56, 64), (16, 64, 64)), is_odd=True
    ),
    "turned, simt": Emulated(workload=block(3, **SMALL, rotary=_TURNED), tiling=_DOTS),
    "turned, mma, parts, fused": Emulated(
        workload=block(40, **SMALL, rotary=_TURNED),
        tiling=_mma(*((16, 64, 64),) * 3, (16, 32, 64), split_k=(1, 2, 3, 2)),
        is_fused=True,
    ),
    "turned": Emulated(workload=block(13, **SMALL, rotary=_TURNED), tiling=wgmma(*_LOW)),
    "turned, three tokens": Emulated(
        workload=block(15, **SMALL, rotary=_THREE_TOKENS, dtype=Dtype.BF16),
        tiling=_PARTS,
        ordering=TILES,
        is_fused=True,
    ),
    "turned, shared k": Emulated(
        workload=block(30, **SMALL, rotary=_THREE_TOKENS, bias=False), tiling=_SHARED, ordering=STATIC, is_fused=True
    ),
    "turned, in turns": Emulated(workload=block(100, **SMALL, rotary=_TURNED), tiling=_IN_TURNS),
    "turned, swapped, shared k": Emulated(
        workload=block(60, **SMALL, rotary=_THREE_TOKENS, dtype=Dtype.BF16),
        tiling=wgmma(
            *((64, 128, 64), (64, 56, 64), (64, 128, 64), (64, 64, 64)), num_warps=8, swap_ab=True, cluster_k=2
        ),
    ),
    "turned, swapped, several blocks": Emulated(
        workload=block(30, **SMALL, rotary=_TURNED),
        tiling=wgmma(
            *((32, 144, 64), (32, 72, 64), (32, 144, 64), (32, 80, 64)), num_warps=8, input_stages=6, swap_ab=True
        ),
    ),
    "turned, in band": Emulated(
        workload=block(3, **SMALL, rotary=_TURNED),
        tiling=wgmma((16, 64, 64), (16, 24, 64), (16, 64, 64), (16, 24, 64), swap_ab=True, cluster_k=2, in_band=True),
        ordering=STATIC,
        is_fused=True,
    ),
    "fan-out": Emulated(workload=side_by_side(16, width=256, each=64), tiling=wgmma(*((16, 64, 64),) * 4)),
}
#: Some of the rotated cases, with paged caches.
CASES |= {
    f"pages{name.removeprefix('turned')}": replace(
        CASES[name], workload=block(rows, **SMALL, rotary=rotary, dtype=CASES[name].workload.dtype)
    )
    for name, rows, rotary in (
        ("turned, simt", 3, _PAGED),
        ("turned, mma, parts, fused", 40, _TOKENS_FIRST),
        ("turned", 13, _PAGED),
        ("turned, three tokens", 15, _THREE_PAGED),
        ("turned, swapped, shared k", 60, replace(_THREE_PAGED, heads_first=False)),
    )
}
