"""Pairs with weights that are stored in fewer bits, kernels that convert them, and faults that a check must find."""

from __future__ import annotations

from tests.support.cases import wgmma
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Warpgroups
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme

#: The scheme of each, and its tiling.
TILINGS = {
    "e4m3": (Scheme.W8A16, wgmma((8, 64, 256), (8, 64, 128), swap_ab=True)),
    "e4m3, low blocks": (Scheme.W8A16, wgmma((16, 24, 128), (16, 48, 128), swap_ab=True)),
    "e4m3, two blocks": (Scheme.W8A16, wgmma((24, 48, 256), (24, 96, 256), swap_ab=True)),
    "e4m3, two warpgroups": (Scheme.W8A16, wgmma((8, 64, 128), (8, 128, 128), swap_ab=True, num_warps=8)),
    "int4": (Scheme.INT4, wgmma((8, 64, 256), (8, 64, 256), swap_ab=True)),
    "int4, deep": (Scheme.INT4, wgmma((16, 24, 512), (16, 48, 256), swap_ab=True)),
    "int4, many rows": (Scheme.INT4, wgmma((64, 32, 256), (64, 64, 256), swap_ab=True)),
    "int4, one set of sums": (Scheme.INT4, wgmma((48, 64, 256), (48, 64, 256), swap_ab=True)),
    "int4, parts": (Scheme.INT4, wgmma((8, 32, 256), (8, 64, 256), swap_ab=True, split_k=(1, 2))),
    "int4, shared k": (Scheme.INT4, wgmma((16, 32, 256), (16, 64, 256), swap_ab=True, cluster_k=2)),
    "int4, shared weights": (Scheme.INT4, wgmma((32, 32, 256), (32, 64, 256), swap_ab=True, cluster_m=2)),
    "int4, zero points": (Scheme.INT4_ZP, wgmma((8, 64, 256), (8, 64, 512), swap_ab=True)),
    "int4, zero points, many rows": (Scheme.INT4_ZP, wgmma((48, 64, 256), (48, 64, 256), swap_ab=True)),
    "int4, ping-pong": (
        Scheme.INT4,
        wgmma((8, 32, 256), (8, 64, 256), swap_ab=True, num_warps=8, warpgroups=Warpgroups.PING_PONG),
    ),
}
#: The tiling, and what is changed in the device text.
FAULTS = {
    "a wrong group's factor": ("int4", "(group * kLists + number)", "((group ^ 1) * kLists + number)"),
    "factors of gate and up exchanged": ("int4", "row / 8 % 2 * kConfig.tile_n", "(1 - row / 8 % 2) * kConfig.tile_n"),
    "codes exchanged": ("int4", "word >> 4 * i", "word >> 4 * (i ^ 1)"),
    "a zero point forgotten": ("int4", "zero = 0x43084308u", "zero = 0x43004300u"),
    "a wrong zero point": ("int4, zero points", "zeros[block][word % 2]", "zeros[block][1 - word % 2]"),
    "a group left out": ("int4", "begins && group > 0) add", "begins && group > 1) add"),
    "rows exchanged": ("e4m3", "pairs[word + i % 2]", "pairs[word + 1 - i % 2]"),
    "a channel's factor": ("e4m3", "factors[channel]", "factors[channel ^ 1]"),
}


def pair(scheme: Scheme, m: int = 5, d: int = 512, hidden: int = 1024) -> Workload:
    """Whole stages of codes."""
    return QuantisedFfn(m=m, d_in=d, d_hidden=hidden, d_out=d, scheme=scheme).to_workload()
