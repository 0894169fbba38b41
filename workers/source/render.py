"""Workload and tiling -> one self-contained CUDA source, joined from the files of `workers/kernels`."""

from __future__ import annotations

import functools
import hashlib
import math
import re
from pathlib import Path
from string import Template

from tuner import __version__
from tuner.core.legal.mma import COPY_BYTES, warp_grid
from tuner.core.legal.own_tasks import own_task_bytes, products
from tuner.core.legal.wgmma import wgmma_columns
from tuner.core.problem.op_kinds import folder_of, op_kinds
from tuner.core.problem.tile_op import TileOp
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.cache_hints import hints_of
from tuner.core.schedule.tiling import READING_THREADS, CacheHint, Engine, Epilogue, PartSums, Tile, Tiling, Warpgroups
from tuner.errors import IllegalSchedule

from .own_tasks import gathers, own_tasks
from .parts import parts_config, parts_of_tiles, with_parts
from .rows import outputs_of, own_text, weights_of, with_rows
from .tensor_maps import has_whole_lines
from .variants import Variant, with_switches

#: The file that only kernels that write to pages have, also in their version.
_PAGES_FILE = "pages.cuh"
#: The files for kernels whose weights are stored in fewer bits, and the file of each engine that they precede.
_CONVERTED_WGMMA, _CONVERTED_MMA = ("converted_wgmma.cuh", "mailbox.cuh"), ("converted_mma.cuh", "epilogue.cuh")
_CONVERTED_FILES = {Engine.WGMMA: _CONVERTED_WGMMA, Engine.MMA: _CONVERTED_MMA}
#: The file for `wgmma` kernels with a product that gathers its rows.
_GATHERED_FILE = "gathered_wgmma.cuh"
_BASE_FILES = (
    "config.cuh",
    "ptx.cuh",
    "element.cuh",
    "stored.cuh",
    _PAGES_FILE,
    "launch_args.cuh",
    "dependent_launch.cuh",
    "trace.cuh",
    "sync.cuh",
)
#: Files that only variants have.
_GUARD_FILES = ("host_record.cuh", "launch_guard.cuh")
#: The files of epilogues' parts, in the order in which they are applied to an element.
_PART_FILES = ("row_scale.cuh", "bias.cuh", "gate.cuh", "residual.cuh")
_SHARED_FILES = ("logistic.cuh", "activation.cuh", "fixup.cuh", "norm.cuh", *_PART_FILES, "finish.cuh", "rotary.cuh")

#: The device files of each engine, in include order.
DEVICE_FILES = {
    Engine.MMA: (
        *_BASE_FILES,
        *_SHARED_FILES,
        "draws.cuh",
        "scheduler.cuh",
        "copy.cuh",
        "gather.cuh",
        "mainloop_mma.cuh",
        "rotary_pairs.cuh",
        "epilogue.cuh",
        "own_task.cuh",
        "own_task_cta.cuh",
        "chain.cuh",
        "start_gate.cuh",
    ),
    Engine.SIMT: (
        *_BASE_FILES,
        *_SHARED_FILES,
        "draws.cuh",
        "scheduler.cuh",
        "mainloop_simt.cuh",
        "epilogue_simt.cuh",
        "own_task.cuh",
        "own_task_cta.cuh",
        "chain.cuh",
        "start_gate.cuh",
    ),
    Engine.WGMMA: (
        *_BASE_FILES,
        *_SHARED_FILES,
        "config_wgmma.cuh",
        "cluster.cuh",
        "ptx_hopper.cuh",
        "ring.cuh",
        "draws.cuh",
        "feed.cuh",
        "wgmma.cuh",
        "mainloop_wgmma.cuh",
        "mailbox.cuh",
        "epilogue_wgmma.cuh",
        "epilogue_transposed.cuh",
        "epilogue_tma.cuh",
        "rotary_pairs.cuh",
        "rotary_wgmma.cuh",
        "cluster_sum.cuh",
        "scattered_sum.cuh",
        "shared_wgmma.cuh",
        "beside_wgmma.cuh",
        "post_wgmma.cuh",
        "startup_prefetch.cuh",
        "in_band_wgmma.cuh",
        "producers_wgmma.cuh",
        "own_task.cuh",
        "own_task_wgmma.cuh",
        "chain_wgmma.cuh",
        "start_gate.cuh",
    ),
}

#: The architectures for which a source of each engine compiles, as written in its first lines.
_ARCHITECTURES = {Engine.MMA: "sm_80 or later", Engine.SIMT: "sm_80 or later", Engine.WGMMA: "sm_90a"}

#: Name of the kernel in every generated source.
KERNEL_NAME = "tuner_chain"

#: Name of the kernel that is launched before the second of two launches on two streams.
START_GATE_NAME = "tuner_start_gate"

#: Bytes of the workspace before its signals; `kSignalsOffset` in launch_args.cuh.
SIGNALS_OFFSET_BYTES = 256

#: Tensor core instructions; a source contains those that it needs.
_INSTRUCTIONS = ("wgmma.in", "wgmma8.in", "wgmma_of_registers.in")

_HINTS = {
    CacheHint.NORMAL: "kNoHint",
    CacheHint.EVICT_FIRST: "kEvictFirst",
    CacheHint.EVICT_LAST: "kEvictLast",
}


@functools.cache
def device_files() -> dict[str, Path]:
    """Every file of `workers/kernels` and of a kind's folder `device`, by its name. No two folders have a file of
    the same name, since includes have no folder."""
    rooms = (Path(__file__).parents[1] / "kernels", *(folder_of(kind) / "device" for kind in op_kinds()))
    found = sorted(path for room in rooms for path in room.rglob("*") if path.suffix in (".cuh", ".cu", ".in"))
    by_name = {path.name: path for path in found}
    assert len(by_name) == len(found), "two device files have one name"
    return by_name


@functools.cache
def device_text(name: str) -> str:
    """A device file."""
    return device_files()[name].read_text(encoding="utf-8")


@functools.cache
def kernel_version() -> str:
    """12 hex digits that identify the code of device files, templates and rows: results of others are a weaker
    match. Kernels that write to pages also have `pages_version`."""
    names = dict.fromkeys(name for files_of_engine in DEVICE_FILES.values() for name in files_of_engine)
    del names[_PAGES_FILE]
    beside = (
        *(name for name, _ in _CONVERTED_FILES.values()),
        _GATHERED_FILE,
        "config_block.in",
        "unit.cu.in",
        *_INSTRUCTIONS,
    )
    texts = (device_text(name) for name in (*names, *beside))
    text = "".join([*(with_switches(text, Variant.MEASURED) for text in texts), own_text()])
    return hashlib.sha256(without_comments(text).encode()).hexdigest()[:12]


@functools.cache
def pages_version() -> str:
    """The version of the additional code of kernels that write to the pages of a cache."""
    return hashlib.sha256(without_comments(device_text(_PAGES_FILE)).encode()).hexdigest()[:12]


def without_comments(text: str) -> str:
    """A device file as the compiler sees it: a changed comment does not invalidate results."""
    code = (line.partition("//")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in code if line)


def copy_bytes(op: TileOp, dtype: Dtype) -> int:
    """Widest copy, bytes, for which every row of A and W is aligned: 16, 8, ... down to an element."""
    return math.gcd(op.source_columns * dtype.size_bytes, op.k * dtype.size_bytes, COPY_BYTES)


@functools.lru_cache(maxsize=4)
def render(workload: Workload, tiling: Tiling, *, traced: bool = False, variant: Variant = Variant.MEASURED) -> str:
    """The source of one tiling of `workload`, the same for every GPU, shape (up to alignment) and ordering.

    A `traced` kernel stamps its tasks (trace.cuh) and is never timed.

    Raises:
        IllegalSchedule: no warp grid fits a tile.
    """
    hints = hints_of(workload, tiling)
    config = Template(device_text("config_block.in")).substitute(
        num_stages=tiling.num_stages,
        num_warps=tiling.num_threads // 32,
        num_ops=len(workload.tile_ops),
        resident_ctas=tiling.resident_ctas,
        weight_hint=_HINTS[hints.weights],
        cluster_m=tiling.cluster_m,
        cluster_n=tiling.cluster_n,
        cluster_k=tiling.cluster_k,
        cluster_dims=f" __cluster_dims__({tiling.placed_ctas}, 1, 1)" if tiling.placed_ctas > 1 else "",
        traced=str(traced).lower(),
        ops="\n".join(
            _op_config(
                op,
                tile,
                tiling,
                workload.dtype,
                (tiling.num_parts(index), _HINTS[hints.inputs[index]], _HINTS[hints.outputs[index]]),
            )
            for index, (op, tile) in enumerate(zip(workload.tile_ops, tiling.cta_tiles, strict=True))
        ),
    )
    names = files_of(tiling.engine, variant)
    activations = tuple(op.activation.row for op in workload.tile_ops)
    outputs, weights = outputs_of(workload), weights_of(workload)
    with_types = (
        with_parts(with_rows(inlined(name, variant), workload.dtype.row, activations, outputs, weights), workload)
        for name in names
    )
    texts = [f"// ---- {name}\n{text}" for name, text in zip(names, with_types, strict=True)]
    config += _chain_config(workload, tiling) + parts_config(workload, tiling)
    config += _in_band_config(workload, tiling) + _engine_config(workload, tiling)
    if tiling.part_sums is PartSums.SCATTERED:
        config += "#define TUNER_SCATTERED_SUMS\n__device__ constexpr bool scatters_sums() { return true; }\n"
    if weights:
        name, following = _CONVERTED_FILES[tiling.engine]
        texts.insert(names.index(following), f"// ---- {name}\n{inlined(name, variant)}")
    if tiling.engine is Engine.WGMMA and (of_tiles := parts_of_tiles(workload)):
        after = names.index("epilogue_transposed.cuh") + 1 + bool(weights)
        texts[after:after] = [f"// ---- {name}\n{inlined_text(text, variant)}" for name, text in of_tiles.items()]
    if own := own_tasks(workload, tiling):
        config += f"#define TUNER_OWN_TASKS {sum(1 << index for index in own)}\n"
        if tiling.engine is Engine.WGMMA:
            config += f"constexpr int kOwnTaskBytes = {own_task_bytes(workload, tiling)};\n"
        after = names.index("own_task.cuh") + 1
        texts[after:after] = own.values()
    if gathered := gathers(workload):
        config += f"#define TUNER_GATHERS {sum(1 << index for index in gathered)}\n"
        if tiling.engine is Engine.WGMMA:
            before = names.index("mailbox.cuh")
            texts[before:before] = [f"// ---- {_GATHERED_FILE}\n{inlined(_GATHERED_FILE, variant)}", *gathered.values()]
        else:
            after = names.index("gather.cuh") + 1
            texts[after:after] = gathered.values()
    texts[0] = _with_config(texts[0], config)
    if tiling.engine is Engine.WGMMA:
        widths = sorted(
            {
                wgmma_columns(op, tile, workload.dtype, swap_ab=tiling.swap_ab)
                for _, op, tile in products(workload, tiling)
            }
        )
        after = names.index("wgmma.cuh") + 1
        texts[after:after] = [wgmma_instruction(width, workload.dtype, converts=bool(weights)) for width in widths]
    return Template(device_text("unit.cu.in")).substitute(
        version=__version__,
        kernel_version=kernel_version(),
        workload=workload.describe(with_rows=False),  # so that a build serves any number of rows
        tiling=tiling,
        variant=f"\n// variant:  {variant}" if variant is not Variant.MEASURED else "",
        architectures=_ARCHITECTURES[tiling.engine],
        files="\n".join(texts),
    )


def _chain_config(workload: Workload, tiling: Tiling) -> str:
    """The additional constants of a chain's ops: a norm, squares for a norm, a residual from an earlier op, an early
    residual; empty if no op has one of the first three."""
    ops = [
        (
            bool(op.norm),
            workload.writes_squares(index),
            workload.residual_producer_of(index) is not None,
            op.residual and _has_early_residual(workload, tiling, index),
        )
        for index, op in enumerate(workload.tile_ops)
    ]
    if not any(any(op[:3]) for op in ops):
        return ""
    rows = ", ".join(f"{{{', '.join(str(has).lower() for has in op)}}}" for op in ops)
    return f"#define TUNER_CHAIN_OPS\nconstexpr ChainOp kChainOps[kNumOps] = {{{rows}}};\n"


def _has_early_residual(workload: Workload, tiling: Tiling, op_index: int) -> bool:
    """Whether an op's residual is an input, or comes earlier than what it reads as A: a tile of A exists only if its
    own inputs do (`cover.Waits.NEVER`). Nothing follows about the inputs of an intermediate that is read in band."""
    residual = workload.residual_producer_of(op_index)
    if residual is None:
        return True
    above = workload.producer_of(op_index)
    while above is not None and not tiling.in_band:
        above = workload.producer_of(above)
        if above == residual:
            return True
    return False


def _in_band_config(workload: Workload, tiling: Tiling) -> str:
    """Which ops read in band, and from which; empty if none does."""
    if not tiling.in_band:
        return ""
    producers = (workload.producer_of(index) for index in range(len(workload.tile_ops)))
    inputs = ", ".join(str(-1 if producer is None else producer) for producer in producers)
    return (
        f"#define TUNER_IN_BAND\nconstexpr int kReaderWarps = {READING_THREADS // 32};\n"
        f"constexpr int kMailboxRows = {max(op.m for op in workload.tile_ops)};\n"
        f"constexpr int kInputOf[kNumOps] = {{{inputs}}};\n"
    )


def _engine_config(workload: Workload, tiling: Tiling) -> str:
    """The constants of one engine, in addition to the common ones."""
    if tiling.engine is not Engine.WGMMA:
        return ""
    whole = ", ".join(str(has_whole_lines(op, workload.dtype)).lower() for op in workload.tile_ops)
    is_plain = axes_of(Tiling)["sum_kib"].is_plain(tiling.sum_kib)
    room = "" if is_plain else f"#define TUNER_SUM_BYTES {1024 * tiling.sum_kib}\n"
    return room + (
        f"constexpr int kNumInputStages = {tiling.input_stages};\n"
        f"constexpr int kWindow = {tiling.window};\n"
        f"constexpr int kAheadWindow = {tiling.ahead_window};\n"
        f"constexpr int kStartupPrefetch = {tiling.startup_prefetch};\n"
        f"constexpr bool kPingPong = {str(tiling.warpgroups is Warpgroups.PING_PONG).lower()};\n"
        f"constexpr bool kSwapAb = {str(tiling.swap_ab).lower()};\n"
        f"constexpr bool kTmaEpilogue = {str(tiling.epilogue is Epilogue.TMA).lower()};\n"
        f"constexpr bool kWholeLines[kNumOps] = {{{whole}}};\n"
    )


def _op_config(op: TileOp, tile: Tile, tiling: Tiling, dtype: Dtype, of_tiling: tuple[int | str, ...]) -> str:
    """An op's constants; `of_tiling` are those that do not depend on the tile: its parts and its hints."""
    grid = warp_grid(tile, tiling.num_warps, op.rows_per_column) if tiling.engine is Engine.MMA else (1, 1)
    if grid is None:
        raise IllegalSchedule(f"no grid of {tiling.num_warps} warps fits the tile {tile} of {op.name}")
    if tiling.engine is Engine.WGMMA and not op.IS_PRODUCT:
        tile = Tile(m=0, n=0, k=0)  # such an op is not multiplied, and has no ring
    options = (str(option).lower() for option in (op.bias, op.rows_per_column == 2, op.residual, op.row_scale))
    fields = (tile.m, tile.n, tile.k, *grid, copy_bytes(op, dtype), op.activation.row.enumerator, *options, *of_tiling)
    return f"    {{{', '.join(map(str, fields))}}},  // {op.name}"


def wgmma_instruction(columns: int, dtype: Dtype, *, converts: bool) -> str:
    """The specialisation of `Wgmma` for one width, or of `WgmmaOfRegisters` for weights that are converted in
    registers; the instruction names each accumulator."""
    count, product = columns // 2, dtype.row.tensor_product
    assert product is not None, dtype
    names = ", ".join(f"%{i}" for i in range(count))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    first = 4 if converts else 1  # a fragment's registers, or a descriptor
    places = ", ".join(f"%{count + i}" for i in range(first))
    figures = {"a": places, "b": f"%{count + first}", "adds": f"%{count + first + 1}", "operands": operands}
    # Instructions for 16 bits say in addition that operand B is K-major.
    figures |= {"order": ", 0" if dtype.row.has_pairs else "", "depth": str(32 // dtype.size_bytes)}
    text = device_text("wgmma_of_registers.in" if converts else product.instruction)
    return Template(text).substitute(figures, columns=columns, kind=product.kind, accumulators=names)


def files_of(engine: Engine, variant: Variant) -> tuple[str, ...]:
    """The device files of a source, in their order."""
    names = DEVICE_FILES[engine]
    if not variant.switches:
        return names
    before, after = names.index("sync.cuh"), names.index("sync.cuh") + 1
    record, guard = _GUARD_FILES
    return (*names[:before], record, "sync.cuh", guard, *names[after:])


def inlined(name: str, variant: Variant = Variant.MEASURED) -> str:
    """A device file as part of a source, without its includes."""
    return inlined_text(device_text(name), variant)


def inlined_text(text: str, variant: Variant = Variant.MEASURED) -> str:
    """The text of a device file as part of a source, without its includes."""
    text = with_switches(text, variant)
    return re.sub(r'^#(pragma once|include ".*")\n', "", text, flags=re.MULTILINE)


def config_types() -> str:
    """The definitions in config.cuh before those of the ops."""
    types, _, ops = device_text("config.cuh").partition("// One op of the chain")
    assert ops, "config.cuh has the types of hints in front of the ops"
    return types.replace("#pragma once\n", "")


def _with_config(text: str, config: str) -> str:
    """Replaces the default configuration by the generated one."""
    before, default, after = re.split(r"^#ifndef TUNER_CONFIG\n(.*?)^#endif\n", text, flags=re.MULTILINE | re.DOTALL)
    assert "kOps" in default
    return before + config + after
