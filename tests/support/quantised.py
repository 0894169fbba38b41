"""Pairs of 8-bit operands in each scheme, kernels for them, and faults that a check must find."""

from __future__ import annotations

from tests.support.cases import simt, wgmma
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Warpgroups
from tuner.ops.gemm.quantised import QuantisedFfn, Scheme

TILINGS = {
    "simt": simt((4, 16, 512), (4, 16, 512), num_warps=4),
    "wide": wgmma((64, 32, 128), (64, 32, 256)),
    "wide, several lines": wgmma((64, 24, 256), (64, 40, 512), num_stages=3),
    "two warpgroups": wgmma((128, 48, 128), (128, 96, 128), num_warps=8),
    "swapped": wgmma((8, 64, 128), (8, 64, 256), swap_ab=True),
    "swapped, low blocks": wgmma((16, 24, 256), (16, 48, 128), swap_ab=True),
    "parts": wgmma((8, 32, 128), (8, 64, 128), swap_ab=True, split_k=(1, 2)),
    "shared k": wgmma((64, 32, 128), (64, 64, 128), cluster_k=2),
    "shared k, swapped": wgmma((16, 32, 128), (16, 64, 128), swap_ab=True, cluster_k=2),
    "ping-pong": wgmma((64, 32, 128), (64, 64, 128), num_warps=8, warpgroups=Warpgroups.PING_PONG),
}
#: Faults by name: the change in the device text.
FAULTS = {
    "two channels exchanged": ("factors[channel]", "factors[channel ^ 1]"),
    "a wrong factor of the output": ("__fdividef(x, *factor)", "x * *factor"),
    "factors of rows left out": ("if constexpr (scales_rows(kOp)) sum *= scale;", ""),
    "a line of k left out": ("slice < 4", "slice < 3"),
}
#: Kernels of operands with scales of blocks: a tile of the first product has one group of columns.
BLOCK_TILINGS = {
    "plain": wgmma((8, 128, 128), (8, 64, 256), swap_ab=True),
    "several lines": wgmma((24, 128, 256), (24, 48, 128), swap_ab=True, num_stages=2),
    "two warpgroups": wgmma((64, 128, 128), (64, 128, 128), swap_ab=True, num_warps=8),
    "parts": wgmma((8, 128, 128), (8, 128, 128), swap_ab=True, split_k=(2, 2), num_warps=8),
    "shared k": wgmma((16, 128, 128), (16, 128, 128), swap_ab=True, cluster_k=2, num_warps=8),
    "ping-pong": wgmma((8, 128, 128), (8, 48, 128), swap_ab=True, num_warps=8, warpgroups=Warpgroups.PING_PONG),
    "wide": wgmma((64, 128, 128), (64, 64, 256)),
    "wide, several lines": wgmma((64, 128, 256), (64, 32, 256), num_stages=2),
    "wide, two warpgroups": wgmma((128, 128, 128), (128, 256, 128), num_warps=8),
    "wide, parts": wgmma((64, 128, 128), (64, 128, 128), split_k=(2, 2)),
    "wide, ping-pong": wgmma((64, 128, 128), (64, 64, 128), num_warps=8, warpgroups=Warpgroups.PING_PONG),
    "wide, in a cluster": wgmma((256, 128, 128), (256, 128, 128), cluster_m=2, num_warps=8),
}
#: Kernels of pairs in which only the intermediate has scales of groups, and whether these are gated: without swapped
#: operands, sums of a gated product are promoted in pieces.
GROUP_TILINGS = {
    "plain": (True, BLOCK_TILINGS["plain"]),
    "several lines": (True, BLOCK_TILINGS["several lines"]),
    "two warpgroups": (True, BLOCK_TILINGS["two warpgroups"]),
    "parts": (True, BLOCK_TILINGS["parts"]),
    "shared k": (True, BLOCK_TILINGS["shared k"]),
    "wide": (False, BLOCK_TILINGS["wide"]),
    "wide, gated": (True, BLOCK_TILINGS["wide"]),
    "wide, gated, several lines": (True, BLOCK_TILINGS["wide, several lines"]),
    "wide, gated, parts": (True, BLOCK_TILINGS["wide, parts"]),
}
#: Faults in these, by name: the tiling, and the change in the device text.
GROUP_FAULTS = {
    "factors of rows left out": ("plain", "(sum, up, scale[r],", "(sum, up, 1.0f,"),
    "the factor of a row for its neighbour": (
        "plain",
        "RowScale<kOp>::of(op, row0 + r)",
        "RowScale<kOp>::of(op, row0)",
    ),
    "two channels exchanged": ("plain", "factors[channel]", "factors[channel ^ 1]"),
    "inputs' scale of another group": ("plain", "inputs[places[i] + block]", "inputs[places[i] + (block ^ 1)]"),
    "a scale of weights that is not there": ("plain", "+ block] : 1.0f;", "+ block] : 2.0f;"),
    "a piece's promotion left out": ("wide, gated", "if (number > 0) add(", "if (number > 1) add("),
    "a gate's sums for the up projection's": (
        "wide, gated, several lines",
        "(row / kConfig.tile_n * kStageLines + line)",
        "(line)",
    ),
    "inputs' scale of another group, wide": (
        "wide",
        "inputs[rows[i / 2][i % 2] + block]",
        "inputs[rows[i / 2][i % 2] + (block ^ 1)]",
    ),
}
#: Faults by name: the change in the device text.
BLOCK_FAULTS = {
    "a promotion left out": ("if (number >= kAhead) add(", "if (number > kAhead) add("),
    "inputs' scale of another group": ("inputs[places[i] + block]", "inputs[places[i] + (block ^ 1)]"),
    "weights' scale of another block": ("[half] + block]", "[half] + (block ^ 1)]"),
    "scales of gate and up exchanged": ("(is_up * op.n + column)", "(!is_up * op.n + column)"),
    "inputs' scale of another row": ("lane % 4 * 2 + i % 2;", "lane % 4 * 2 + 1 - i % 2;"),
    "another row's scale of the output": ("__fdividef(out[r], scales[r])", "__fdividef(out[r], scales[r ^ 1])"),
    "a warp left out of a group": ("warp < kWarps", "warp < kWarps - 1"),
    "another group's scale stored": ("(op.n / kConfig.tile_n) + task.tile_n]", "(op.n / kConfig.tile_n)]"),
}
#: The same with W as operand B, for the kernel `wide`.
WIDE_FAULTS = {
    "a product's promotion left out": ("if (number >= kAhead) add(", "if (number > kAhead) add("),
    "inputs' scale of another group, wide": (
        "inputs[rows[i / 2][i % 2] + block]",
        "inputs[rows[i / 2][i % 2] + (block ^ 1)]",
    ),
    "weights' scale of another block, wide": (
        "weights[columns[piece] + block]",
        "weights[columns[piece] + (block ^ 1)]",
    ),
    "scales of gate and up exchanged, wide": ("of_line.weights[piece]", "of_line.weights[kPieces - 1 - piece]"),
    "inputs' scale of another row, wide": ("i % 2 * 8, op.m - 1)", "(1 - i % 2) * 8, op.m - 1)"),
    "an element divided by another number": ("__fdividef(values[j + w][1], scale)", "values[j + w][1]"),
    "two lanes left out of a group": ("lanes < 4; lanes *= 2) largest", "lanes < 2; lanes *= 2) largest"),
    "another group's scale stored, wide": ("(op.n / kConfig.tile_n) + task.tile_n]", "(op.n / kConfig.tile_n)]"),
}
#: The fault: sums stay in the tensor cores until the end.
UNPROMOTED = (
    ("kNumSums <= 32 ? 1 : 0;", "0;"),
    ("float sums[kAhead + 1][kNumSums];", "float sums[kAhead + 1][kNumSums] = {};"),
    ("operand_descriptor(operands.b() + b_units), slice > 0);", "operand_descriptor(operands.b() + b_units), true);"),
    ("acc[i] += sums[line % (kAhead + 1)][i];", "acc[i] = sums[line % (kAhead + 1)][i];"),
)


def pair(scheme: Scheme, m: int = 5, d: int = 384, hidden: int = 208) -> Workload:
    """A pair in which the last tile, and the last row of the second op, are small."""
    return QuantisedFfn(m=m, d_in=d, d_hidden=hidden, d_out=d, scheme=scheme).to_workload()


def grouped(tiling: str, m: int = 13, d: int = 512, hidden: int = 256) -> Workload:
    """The pair for one of the kernels of which only the intermediate has scales of groups."""
    gated, scheme = GROUP_TILINGS[tiling][0], Scheme.TOKEN_GROUPS
    return QuantisedFfn(m=m, d_in=d, d_hidden=hidden, d_out=d, scheme=scheme, gated=gated).to_workload()
