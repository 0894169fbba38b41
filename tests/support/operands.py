"""A decoder block whose products read 8-bit operands, and faults that a check must find."""

from __future__ import annotations

from typing import Any

from tests.support.cases import simt, wgmma
from tuner.core.problem.asked import workload_of
from tuner.core.problem.decoder import DecoderModel, block_products
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.workload import Workload
from tuner.ops.gemm.scaled_chain import scaled_products

#: Sizes as small as groups of weights allow.
_SIZES = DecoderModel(hidden=256, intermediate=512, num_heads=4, num_kv_heads=1, head_size=64, eps=1e-5)
SWAPPED = wgmma(*[(8, 64, 128)] * 4, swap_ab=True)
#: Kernels of a block with scales of groups: tiles of the normed products have one group of columns.
GROUPED = {
    "plain": wgmma((8, 128, 128), (8, 128, 128), (8, 128, 128), (8, 64, 128), swap_ab=True),
    "several fragments": wgmma(
        (24, 128, 256), (24, 128, 256), (24, 128, 128), (24, 64, 128), swap_ab=True, num_stages=2
    ),
    "two warpgroups": wgmma(*[(16, 128, 128)] * 4, swap_ab=True, num_warps=8),
    "parts": wgmma(*[(8, 128, 128)] * 4, swap_ab=True, split_k=(2, 1, 2, 1)),
    "shared k": wgmma(*[(16, 128, 128)] * 4, swap_ab=True, cluster_k=2, num_warps=8),
    "wide": wgmma((64, 128, 128), (64, 128, 128), (64, 128, 128), (64, 64, 128)),
    "wide, two warpgroups": wgmma((128, 128, 128), (128, 128, 128), (128, 128, 128), (128, 64, 128), num_warps=8),
}
#: Other forms of the block: with parts, with a shared k, without swapped operands, without tensor cores.
OTHERS = {
    "parts": wgmma((8, 64, 128), (8, 64, 128), (8, 64, 128), (8, 64, 128), swap_ab=True, split_k=(1, 1, 2, 1)),
    "shared k": wgmma(*[(16, 32, 128)] * 4, swap_ab=True, cluster_k=2),
    "wide": wgmma(*[(64, 32, 128)] * 4),
    "simt": simt(*[(4, 16, 512)] * 4, num_warps=4),
}
#: Faults of a block with scales of groups, by name: the kernel, and the change in the device text.
GROUP_FAULTS = {
    "another row's scale": ("plain", "8 + lane % 4 * 2 + r));", "8 + lane % 4 * 2 + 1 - r));"),
    "another group's scale stored": ("plain", "(op.n / kConfig.tile_n) + task.tile_n]", "(op.n / kConfig.tile_n)]"),
    "another group's scale read": ("plain", "inputs[places[i] + block]", "inputs[places[i] + (block ^ 1)]"),
    "the norm's weights left out": ("plain", "own[r] = out[r] * factor;", "own[r] = out[r];"),
    "a warp left out of a group": ("plain", "warp < kWarps;", "warp < kWarps - 1;"),
    "elements of another row": ("plain", "(values + row * op.n", "(values + row / 2 * op.n"),
    "a residual left out": ("plain", "{ return out + residual; }", "{ return out; }"),
    "the norm's weight of another column, wide": ("wide", "min(column + c, op.n - 1)", "min(column, op.n - 1)"),
    "two lanes left out of a group, wide": ("wide", "lanes < 4; lanes *= 2) largest", "lanes < 2; lanes *= 2) largest"),
    "an element not divided, wide": ("wide", "__fdividef(kept[j + w][1], scale)", "kept[j + w][1]"),
    "another group's scale read, wide": (
        "wide",
        "inputs[rows[i / 2][i % 2] + block]",
        "inputs[rows[i / 2][i % 2] + (block ^ 1)]",
    ),
}
#: Faults by name: the change in the device text.
FAULTS = {
    "columns of the operand swapped": ("x * factors[column]", "x * factors[column ^ 1]"),
    "a residual left out": ("{ return out + residual; }", "{ return out; }"),
    "squares of the operand's type": ("squares_of<Output<kOp>>(two)", "squares_of<Element>(two)"),
    "a row of the operand": ("(row) * columns + column] =", "(row / 2) * columns + column] ="),
}


def block(m: int = 5, dtype: str = "fp8_e4m3", weights: str = "") -> Workload:
    """o_proj, gate_up, down and qkv, whose normed tensors are read as operands."""
    stored = {"weights": weights} if weights and dtype == "fp8_e4m3" else {}
    products: list[dict[str, Any]] = scaled_products(
        [*block_products(_SIZES, 1, in_runs=False, stored=stored).values()], Dtype.BF16
    )
    if weights and not stored:
        products = [_converted(op, weights) for op in products]
    return workload_of({"kind": "chain", "m": m, "dtype": dtype, "ops": products})


def _converted(op: dict[str, Any], weights: str) -> dict[str, Any]:
    """The op with 16-bit elements and without scales: groups of weights have their own."""
    parts = [part for part in op["epilogue"] if part["part"] == "operand"]
    kept = {name: value for name, value in op.items() if name not in ("out_dtype", "row_scale")}
    return {**kept, "epilogue": parts, "weights": weights}
