"""Workload and tiling -> one self-contained CUDA source, joined from the files of `workers/kernels`."""

from __future__ import annotations

import functools
import hashlib
import re
from importlib.resources import files
from string import Template

from tuner import __version__
from tuner.core.schedule import Tile, Tiling, warp_grid
from tuner.core.workload import Activation, Dtype, GemmOp, Workload
from tuner.errors import IllegalSchedule

#: The device files in the order in which one includes the other.
DEVICE_FILES = (
    "config.cuh",
    "ptx.cuh",
    "launch_args.cuh",
    "dependent_launch.cuh",
    "trace.cuh",
    "sync.cuh",
    "scheduler.cuh",
    "copy.cuh",
    "mainloop_mma.cuh",
    "epilogue.cuh",
    "fixup.cuh",
    "chain.cuh",
    "gate.cuh",
)

#: Name of the kernel in every generated source.
KERNEL_NAME = "tuner_chain"

#: Name of the kernel that stands in front of the second of two launches on two streams.
GATE_NAME = "tuner_gate"

#: Bytes of the workspace before its signals; `kSignalsOffset` in launch_args.cuh.
SIGNALS_OFFSET_BYTES = 256

_ACTIVATIONS = {
    Activation.IDENTITY: "kIdentity",
    Activation.RELU: "kRelu",
    Activation.GELU: "kGelu",
    Activation.SILU: "kSilu",
}


@functools.cache
def device_text(name: str) -> str:
    """A file of `workers/kernels`."""
    return files("workers").joinpath("kernels", name).read_text(encoding="utf-8")


@functools.cache
def kernel_version() -> str:
    """12 hex digits that name the device files and templates: results of other sources are a weaker match."""
    text = "".join(device_text(name) for name in (*DEVICE_FILES, "config_block.in", "unit.cu.in"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def copy_bytes(op: GemmOp) -> int:
    """Widest copy, bytes, for which every row of A and W is aligned: 16, 8, 4, or 2."""
    return next(width for width in (16, 8, 4, 2) if op.k * 2 % width == 0)


def render(workload: Workload, tiling: Tiling, *, traced: bool = False) -> str:
    """The source of one tiling of `workload`, the same for every GPU, shape (up to alignment) and ordering.

    A `traced` kernel stamps its tasks (trace.cuh) and is never timed.

    Raises:
        IllegalSchedule: no warp grid fits a tile.
    """
    config = Template(device_text("config_block.in")).substitute(
        bf16="true" if workload.dtype is Dtype.BF16 else "false",
        num_stages=tiling.num_stages,
        num_warps=tiling.num_warps,
        num_ops=len(workload.ops),
        traced=str(traced).lower(),
        ops="\n".join(
            _op_config(op, tile, tiling.num_warps, tiling.num_parts(index))
            for index, (op, tile) in enumerate(zip(workload.ops, tiling.tiles, strict=True))
        ),
    )
    parts = [f"// ---- {name}\n{_inline(device_text(name))}" for name in DEVICE_FILES]
    parts[0] = _with_config(parts[0], config)
    return Template(device_text("unit.cu.in")).substitute(
        version=__version__,
        kernel_version=kernel_version(),
        workload=workload.describe(),
        tiling=tiling,
        files="\n".join(parts),
    )


def _op_config(op: GemmOp, tile: Tile, num_warps: int, num_parts: int) -> str:
    grid = warp_grid(tile, num_warps, op.rows_per_column)
    if grid is None:
        raise IllegalSchedule(f"no grid of {num_warps} warps fits the tile {tile} of {op.name}")
    options = (str(option).lower() for option in (op.bias, op.gated, op.residual, op.row_scale))
    fields = (tile.m, tile.n, tile.k, *grid, copy_bytes(op), _ACTIVATIONS[op.activation], *options, num_parts)
    return f"    {{{', '.join(map(str, fields))}}},  // {op.name}"


def _inline(text: str) -> str:
    return re.sub(r'^#(pragma once|include ".*")\n', "", text, flags=re.MULTILINE)


def _with_config(text: str, config: str) -> str:
    """Replaces the default configuration by the generated one."""
    before, default, after = re.split(r"^#ifndef TUNER_CONFIG\n(.*?)^#endif\n", text, flags=re.MULTILINE | re.DOTALL)
    assert "kOps" in default
    return before + config + after
