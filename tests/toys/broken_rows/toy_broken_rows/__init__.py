"""Invalid rows, and rows that take a name or a number of the program."""

from __future__ import annotations

from dataclasses import replace

from tuner.extend import ActivationRow, OperandRow, RasterRow, within

NOTHING = 7
_ROW = OperandRow(
    name="low",
    bits=8,
    number=9,
    array_name="low",
    roundoff=0.1,
    smallest_step=0.1,
    max_rel_error=0.1,
    nan_bits=0,
    to_bits=lambda xp, values: values,
    from_bits=lambda xp, bits: bits,
    device="",
)
OTHERS = (
    _ROW,
    replace(_ROW, name="high", number=2**31),
    replace(_ROW, name="my type", number=142),
    replace(_ROW, name="a" * 41, number=143),
    replace(_ROW, name="int32", number=140),
    replace(_ROW, name="good", number=141),
    replace(_ROW, name="twin", number=141),
)
RELU = ActivationRow(
    name="relu",
    number=140,
    host=lambda xp, z: z,
    device="x",
    torch=lambda functional, z: z,
    spread=within(1),
)
#: One with a name of the program, and one that repeats the first tile.
RASTERS = (
    RasterRow(name="snake", number=140, sentence="again", order=lambda xp, rows, columns, width: xp.arange(rows)),
    RasterRow(name="stuck", number=141, sentence="on the spot", order=lambda xp, rows, columns, width: xp.zeros(rows)),
)
