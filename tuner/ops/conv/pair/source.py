"""The kernel of a pair of convolutions."""

from __future__ import annotations

import functools
import hashlib

from tuner.core.problem.dtype import Dtype
from tuner.ops.conv.pair.geometry import Region, geometry_of
from tuner.ops.conv.pair.op import ConvPairOp
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.workers.source.render import config_types, device_text, inlined, wgmma_instruction, without_comments
from tuner.workers.source.rows import in_place, with_rows

KERNEL = "tuner_conv_pair"
#: The device files, in include order.
FILES = (
    *("ptx.cuh", "element.cuh", "logistic.cuh", "ptx_hopper.cuh", "wgmma.cuh"),
    *("ptx_conv_pair.cuh", "conv_pair.cuh"),
)
#: The file after which the instructions come.
_BEFORE_INSTRUCTIONS = "wgmma.cuh"
#: Numbers of a region that the device code has.
_OF_REGION = (
    *("rows", "columns", "scale", "shift", "stride", "kernel", "share", "sharers"),
    *("phase_columns", "phase_places", "places"),
)

#: The last member of `ConvPairArgs`, and its use, if an image is added.
_ADDED = """\
  const Element::Bits* added;
};
__device__ __forceinline__ const Element::Bits* added_of(const ConvPairArgs& args) { return args.added; }
"""


def source_of(op: ConvPairOp, schedule: ConvPairSchedule, dtype: Dtype) -> str:
    """CUDA C++ of the kernel, with the numbers of the schedule's regions."""
    geometry = geometry_of(op, schedule)
    said = {
        "TUNER_CONV_PAIR_CONFIG": _config(op, schedule),
        "TUNER_PAIR_ACTIVATION": f"  x = {op.activation.row.device};\n",
    }
    if op.residual_source:
        said["TUNER_CONV_PAIR_ADDED"] = _ADDED
    texts = [f"// ---- config.cuh\n{config_types()}"]
    for name in FILES:
        texts.append(f"// ---- {name}\n{in_place(with_rows(inlined(name), dtype.row), said)}")
        if name == _BEFORE_INSTRUCTIONS:
            widths = sorted({geometry.patch.share, geometry.middle.share})
            texts += [wgmma_instruction(columns, dtype, converts=False) for columns in widths]
    return "\n".join(texts)


@functools.cache
def version() -> str:
    """12 hex digits that identify the code of the device files."""
    text = "".join(device_text(name) for name in FILES)
    return hashlib.sha256(without_comments(text).encode()).hexdigest()[:12]


def _config(op: ConvPairOp, schedule: ConvPairSchedule) -> str:
    geometry, first, second = geometry_of(op, schedule), op.first, op.second
    numbers = {
        "kImages": op.images,
        "kHeight": op.height,
        "kWidth": op.width,
        "kBetweenHeight": first.out_height,
        "kBetweenWidth": first.out_width,
        "kOutHeight": second.out_height,
        "kOutWidth": second.out_width,
        "kChannels": op.channels,
        "kBetween": op.between,
        "kFilters": op.filters,
        "kTileRows": schedule.rows,
        "kTileColumns": schedule.columns,
        "kTilesDown": geometry.tile_rows,
        "kTilesAcross": geometry.tile_columns,
        "kWarpgroups": schedule.warpgroups,
        "kTeam": schedule.team,
        "kSplitsFilters": int(geometry.splits_filters),
        "kHasBias": int(op.bias),
        "kHasAdded": int(bool(op.residual_source)),
        "kNumStages": geometry.num_stages,
        "kFilterBytes0": geometry.filter_bytes[0],
        "kFilterBytes1": geometry.filter_bytes[1],
        "kPatchBytes": geometry.patch_bytes,
        "kMiddleBytes": geometry.middle_bytes,
        "kStageBytes": geometry.stage_bytes,
    }
    regions = "".join(_region(number, one) for number, one in enumerate((geometry.patch, geometry.middle)))
    return f"template <int kPlace>\nstruct RegionOf;\n{regions}{_enum(numbers)}"


def _region(number: int, region: Region) -> str:
    values = {f"k{name.title().replace('_', '')}": getattr(region, name) for name in _OF_REGION}
    return f"template <>\nstruct RegionOf<{number}> {{\n  {_enum(values)}}};\n"


def _enum(values: dict[str, int]) -> str:
    return f"enum : int {{ {', '.join(f'{name} = {value}' for name, value in values.items())} }};\n"
