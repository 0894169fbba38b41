"""Code for searches, spaces and elements, shared by both kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from tuner.extend import AroundOp, Dtype, LaunchOpSearch, Schedule

#: Device functions of a 16-bit element type: to float, and back.
ELEMENT = """
typedef unsigned short u16;
__device__ __forceinline__ float widen(u16 bits) {
  WIDEN
}
__device__ __forceinline__ u16 narrow(float value) {
  u16 bits;
  asm("cvt.rn.KIND.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
"""
_WIDEN = {
    "f16": 'float value; asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits)); return value;',
    "bf16": "return __uint_as_float(static_cast<unsigned>(bits) << 16);",
}


def element(dtype: Dtype) -> str:
    """`ELEMENT` of a type."""
    kind = str(dtype.row.tensor_kind)
    return ELEMENT.replace("WIDEN", _WIDEN[kind]).replace("KIND", kind)


def offered(schedule: type, axes: dict[str, tuple[int, ...]], refuse: Any) -> tuple[Any, ...]:
    """All legal schedules."""
    found = (schedule(**dict(zip(axes, values, strict=True))) for values in product(*axes.values()))
    return tuple(one for one in found if refuse(one) is None)


def near(offered: Sequence[Any], one: Any) -> list[Any]:
    """The legal schedules that differ in one axis."""
    return [other for other in offered if sum(vars(other)[name] != value for name, value in vars(one).items()) == 1]


def _guesses(space: AroundOp, tiles: Iterator[Schedule]) -> Iterator[Schedule]:
    shared = next(tiles, None)
    return (space.joined(one, shared) for one in space.offered)


def _distance(ops: Sequence[Any], others: Sequence[Any]) -> float:
    if len(ops) != len(others):
        return math.inf
    return sum(abs(math.log2(one.m / other.m)) for one, other in zip(ops, others, strict=True))


def search_of(compiled: str) -> LaunchOpSearch:
    """A search that distinguishes compiled schedules by the axis `compiled`."""
    return LaunchOpSearch(
        guesses=_guesses,
        first=lambda space, tiles: next(iter(space.offered), None),
        adapt=lambda space, found, of: found if found in space.offered else None,
        distance=_distance,
        compiled_features=lambda schedule: [math.log2(getattr(schedule, compiled))],
        plan_features=lambda schedule, op, gpu: [],
    )
