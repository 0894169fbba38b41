"""Pairs with weights stored in fewer bits, kernels that convert them, and faults that a check must find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.cases import wgmma
from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tile, Tiling, Warpgroups
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme


def mma(*tiles: tuple[int, int, int], num_warps: int = 4, **others: Any) -> Tiling:
    """A tiling of the mma engine with three stages."""
    return Tiling(tiles=tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles), num_stages=3, num_warps=num_warps, **others)


#: Kernels by name: scheme and tiling.
TILINGS: dict[str, tuple[Scheme, Tiling]] = {
    "e4m3": (Scheme.W8A16, wgmma((8, 64, 256), (8, 64, 128), swap_ab=True)),
    "e4m3, low blocks": (Scheme.W8A16, wgmma((16, 24, 128), (16, 48, 128), swap_ab=True)),
    "e4m3, two blocks": (Scheme.W8A16, wgmma((24, 48, 256), (24, 96, 256), swap_ab=True)),
    "e4m3, two warpgroups": (Scheme.W8A16, wgmma((8, 64, 128), (8, 128, 128), swap_ab=True, num_warps=8)),
    "blocks": (Scheme.W8A16_BLOCK, wgmma((8, 64, 256), (16, 64, 256), swap_ab=True)),
    "blocks, many rows": (Scheme.W8A16_BLOCK, wgmma((24, 64, 256), (40, 64, 256), swap_ab=True)),
    "blocks, two warpgroups": (Scheme.W8A16_BLOCK, wgmma((16, 64, 256), (16, 128, 256), swap_ab=True, num_warps=8)),
    "blocks, shared k": (Scheme.W8A16_BLOCK, wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, cluster_k=2)),
    "int4": (Scheme.INT4, wgmma((8, 64, 256), (8, 64, 256), swap_ab=True)),
    "int4, deep": (Scheme.INT4, wgmma((16, 24, 512), (16, 48, 256), swap_ab=True)),
    "int4, many rows": (Scheme.INT4, wgmma((64, 32, 256), (64, 64, 256), swap_ab=True)),
    "int4, one set of sums": (Scheme.INT4, wgmma((48, 64, 256), (48, 64, 256), swap_ab=True)),
    "int4, parts": (Scheme.INT4, wgmma((8, 32, 256), (8, 64, 256), swap_ab=True, split_k=(1, 2))),
    "int4, shared k": (Scheme.INT4, wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, cluster_k=2)),
    "int4, shared weights": (Scheme.INT4, wgmma((32, 32, 256), (32, 64, 256), swap_ab=True, cluster_m=2)),
    "int4, shared inputs": (Scheme.INT4, wgmma((32, 128, 256), (32, 128, 256), swap_ab=True, cluster_n=2)),
    "int4, zero points": (Scheme.INT4_ZP, wgmma((8, 64, 256), (8, 64, 512), swap_ab=True)),
    "int4, zero points, many rows": (Scheme.INT4_ZP, wgmma((48, 64, 256), (48, 64, 256), swap_ab=True)),
    "int4, two warpgroups": (Scheme.INT4, wgmma((16, 64, 256), (16, 128, 256), swap_ab=True, num_warps=8)),
    "int4, three warpgroups": (Scheme.INT4, wgmma((8, 96, 256), (8, 192, 256), swap_ab=True, num_warps=12)),
    "int4, groups of 32": ("int4_g32", wgmma((8, 64, 256), (16, 64, 512), swap_ab=True)),
    "int4, groups of 32, many rows": ("int4_g32", wgmma((40, 64, 256), (40, 64, 512), swap_ab=True)),
    "int4, zero points of 32, many rows": ("int4_g32_zp", wgmma((24, 64, 256), (24, 64, 512), swap_ab=True)),
    "mxfp4": (Scheme.MXFP4, wgmma((8, 64, 256), (16, 64, 512), swap_ab=True)),
    "mxfp4, many rows": (Scheme.MXFP4, wgmma((40, 64, 256), (40, 64, 256), swap_ab=True)),
    "mxfp4, three warpgroups": (Scheme.MXFP4, wgmma((16, 96, 256), (16, 192, 256), swap_ab=True, num_warps=12)),
    "mxfp4, shared k": (Scheme.MXFP4, wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, cluster_k=2)),
    "w4a8": (Scheme.W4A8, wgmma((8, 64, 256), (8, 64, 512), swap_ab=True)),
    "w4a8, many rows": (Scheme.W4A8, wgmma((40, 64, 256), (64, 64, 256), swap_ab=True)),
    "w4a8, one set of sums": (Scheme.W4A8, wgmma((48, 64, 256), (48, 64, 256), swap_ab=True)),
    "w4a8, two warpgroups": (Scheme.W4A8, wgmma((16, 64, 256), (16, 128, 256), swap_ab=True, num_warps=8)),
    "w4a8, parts": (Scheme.W4A8, wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, split_k=(1, 2))),
    "w4a8, shared k": (Scheme.W4A8, wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, cluster_k=2)),
    "w4a8, groups of 64": ("int4_g64_a8", wgmma((8, 64, 256), (24, 64, 512), swap_ab=True)),
    "w4a8, ping-pong": (
        Scheme.W4A8,
        wgmma((8, 32, 256), (8, 64, 256), swap_ab=True, num_warps=8, warpgroups=Warpgroups.PING_PONG),
    ),
    "int4, ping-pong": (
        Scheme.INT4,
        wgmma((8, 32, 256), (8, 64, 256), swap_ab=True, num_warps=8, warpgroups=Warpgroups.PING_PONG),
    ),
    "int4, mma": (Scheme.INT4, mma((16, 32, 256), (16, 64, 256))),
    "int4, mma, many rows": (Scheme.INT4, mma((32, 64, 256), (64, 64, 256), num_warps=8)),
    "int4, mma, zero points in parts": (Scheme.INT4_ZP, mma((16, 32, 256), (32, 64, 512), split_k=(1, 2))),
    "int4, mma, groups of 32": ("int4_g32", mma((16, 64, 256), (16, 64, 256))),
    "e4m3, mma": (Scheme.W8A16, mma((16, 32, 128), (16, 64, 256))),
    "blocks, mma": (Scheme.W8A16_BLOCK, mma((32, 32, 256), (16, 64, 256))),
    "mxfp4, mma": (Scheme.MXFP4, mma((16, 32, 256), (16, 64, 512))),
}
#: Faults by name: the tiling, and the change in the device text.
FAULTS = {
    "a wrong group's factor": ("int4", "number * kLists * kRows", "(number ^ 1) * kLists * kRows"),
    "factors of gate and up swapped": ("int4", "row / 8 % 2 * kConfig.tile_n", "(1 - row / 8 % 2) * kConfig.tile_n"),
    "codes exchanged": ("int4", "pairs[word + i % 2][pair + i / 2]", "pairs[word + i % 2][pair + 1 - i / 2]"),
    "a word that is not rotated": ("int4", "word >> 8 | word << 24", "word"),
    "half a step forgotten": ("int4", "small = 0xbe00be00u", "small = 0"),
    "a zero point forgotten": ("int4", "raised = 0xc208c208u", "raised = 0xc200c200u"),
    "a wrong zero point": ("int4, zero points", "[block][word % 2]", "[block][1 - word % 2]"),
    "a group left out": ("int4", "(k + 16) % kGroup == 0)", "(k + 16) % kGroup == 0 && k > 128)"),
    "a group left out, by wgmma": ("int4, many rows", "begins && group > 0)", "begins && group > 1)"),
    "factors of the next stage, by wgmma": (
        "int4, many rows",
        "bundles[(group - 1) / kGroups % kSets]",
        "bundles[group / kGroups % kSets]",
    ),
    "a group of 32 in place of another": (
        "int4, groups of 32",
        "kFactorBytes * group &",
        "kFactorBytes * (group ^ 1) &",
    ),
    "another group's power of two": ("mxfp4", "kFactorBytes * group &", "kFactorBytes * (group ^ 1) &"),
    "a power of two of another row": ("mxfp4", "[block][word % 2]", "[block][1 - word % 2]"),
    "a sign left out": ("mxfp4", "word << 2 & 0x80C080C0u", "word << 2 & 0x00C000C0u"),
    "half an exponent": ("mxfp4, many rows", "word >> 6 & 0x01000100u", "0u"),
    "another group's factor of 8 bits": ("blocks", "kFactorBytes * group &", "kFactorBytes * (group ^ 1) &"),
    "half a factor of 32 bits": ("blocks", "__uint_as_float(bits)", "__uint_as_float(bits << 16)"),
    "rows exchanged": ("e4m3", "pairs[word + i % 2]", "pairs[word + 1 - i % 2]"),
    "rows of inputs exchanged": (
        "int4",
        "inputs[slice + i / 2][eight][i % 2]",
        "inputs[slice + 1 - i / 2][eight][i % 2]",
    ),
    "another group's factor, by mma": ("int4, mma", "place + group * kBytes", "place + (group ^ 1) * kBytes"),
    "factors of gate and up swapped, by mma": (
        "int4, mma",
        "row / kTileN * op.n + column",
        "(1 - row / kTileN) * op.n + column",
    ),
    "a column's factor in place of its neighbour's, by mma": (
        "int4, mma",
        "frags.factors[j][e % 2]",
        "frags.factors[j][1 - e % 2]",
    ),
    "a group left out, by mma": ("int4, mma", "(kScalesSums && ends)", "(kScalesSums && ends && unit > 3)"),
    "slices exchanged, by mma": ("int4, mma", "(own, frags.a[slice][i]", "(own, frags.a[1 - slice][i]"),
    "another row's power of two, by mma": ("mxfp4, mma", "(column0 + lane / 4)", "(column0 + lane / 4 ^ 1)"),
    "a word of another unit, by mma": (
        "e4m3, mma",
        "lane.w_swizzled ^ (unit * 16)",
        "lane.w_swizzled ^ (unit / 2 * 32)",
    ),
    "another group's factor of w4a8": ("w4a8", "kFactorBytes * group &", "kFactorBytes * (group ^ 1) &"),
    "codes of w4a8 exchanged": ("w4a8", "word >> 4 | word << 28", "word >> 12 | word << 20"),
    "a sign of w4a8 without its 1": ("w4a8", "0x01010101u", "0x00010101u"),
    "two words of w4a8 exchanged": ("w4a8", "slice / (kSlices / 2) * 2", "(1 - slice / (kSlices / 2)) * 2"),
    "a promotion of w4a8 left out": ("w4a8, many rows", "begins && group > 0)", "begins && group > 1)"),
    "rows' factors of w4a8 left out": ("w4a8", "if constexpr (scales_rows(kOp)) sum *= scale;", ""),
    "a channel's factor": ("e4m3", "factors[channel]", "factors[channel ^ 1]"),
}


def pair(scheme: Scheme | str, m: int = 5, d: int = 512, hidden: int = 1024) -> Workload:
    """A pair with whole stages of codes, in a scheme or in a format without one."""
    known = Scheme(scheme) if scheme in set(Scheme) else Scheme.W4A8 if scheme.endswith("_a8") else Scheme.INT4
    workload = QuantisedFfn(m=m, d_in=d, d_hidden=hidden, d_out=d, scheme=known).to_workload()
    if known == scheme:
        return workload
    return replace(workload, ops=tuple(replace(op, weights=WeightFormat(scheme)) for op in workload.tile_ops))
