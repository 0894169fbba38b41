"""Parses the printed line of a schedule of tile ops: inverse of `str`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_type_hints

from tuner.core.schedule.axis import axes_of
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.errors import IllegalSchedule, InvalidInput

_REMEDY = "use the printed form, e.g. mma 16x64x64+16x64x64 s2 w4 | row+row producer_first row-sync ticket 1/SM"
_TILING = re.compile(r"(?P<engine>\w+) (?P<tiles>\d+x\d+x\d+(?:\+\d+x\d+x\d+)*)(?P<words>(?: \S+)*)")
_SPLIT = re.compile(r" split(\d+(?:\+\d+)*)")
_CLUSTER = re.compile(r" cluster(\d+)x(\d+)(?:x(\d+))?(?!\S)")
_ORDERING = re.compile(
    r"(?P<rasters>\S+) (?P<interleave>\S+)(?P<strided> strided-parts)?(?P<part_major> part-major)?"
    r"(?: split-(?P<split_tiles>\w+))? (?P<granularity>[a-z]+)(?P<sync_width>\d+)?-sync(?P<by_slice> by slice)?"
    r"(?: ahead(?P<run_ahead>\d+))? (?P<assignment>\w+)(?: (?P<partition>\d+)/8)? (?P<ctas_per_sm>\d+)/SM"
    r"(?: less (?P<reserved_sms>\d+) SMs)?(?: runs(?P<run_starts>\d+(?:\+\d+)*))?(?P<words>(?: \S+)*)"
)
#: Separates the two halves.
_BAR = " | "
_RASTER = re.compile(r"([a-z]+)(\d*)")
_BANDS = re.compile(r"bands(?P<rows>\d+)(?:-lag(?P<lag>\d+))?(?:-chunks(?P<chunks>\d+))?")


def is_line(text: str) -> bool:
    """Whether a text is meant as a schedule's line rather than as a name."""
    return _BAR in " ".join(text.split())


def read_line(text: str) -> Schedule:
    """The schedule whose `str` is that line, ignoring spaces.

    Raises:
        InvalidInput: the line is malformed; or it has words that belong to a kind of op: a line does not say to which
            op.
    """
    text = " ".join(text.split())
    halves = text.split(_BAR)
    if len(halves) != 2:
        problem = f"has {len(halves)} parts separated by bars, but a schedule of tile ops has two"
        raise InvalidInput("schedule", problem, f"{_REMEDY}; others as JSON")
    try:
        found = Schedule.of(tiling=_tiling(halves[0]), ordering=_ordering(halves[1]))
    except (ValueError, TypeError, IllegalSchedule) as error:
        raise InvalidInput("schedule", f"{text[:80]!r} is not a schedule: {error}", _REMEDY) from error
    if str(found) != text:
        raise InvalidInput("schedule", f"{text!r} would be printed as {str(found)!r}", "use the latter")
    return found


def _tiling(text: str) -> Tiling:
    match = _TILING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} does not begin with an engine and tiles such as 16x64x128")
    words = match["words"]
    split, cluster = _SPLIT.search(words), _CLUSTER.search(words)
    known: dict[str, Any] = {}
    if split:
        known["split_k"] = _numbers(split[1])
    if cluster:
        sizes = zip(("cluster_m", "cluster_n", "cluster_k"), cluster.groups(default="1"), strict=True)
        known |= {name: int(size) for name, size in sizes}
    left = _CLUSTER.sub("", _SPLIT.sub("", words))
    tiles = (map(int, tile.split("x")) for tile in match["tiles"].split("+"))
    made = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    return Tiling(engine=Engine(match["engine"]), tiles=made, **known, **dict(_named(Tiling, left)))


def _ordering(text: str) -> Ordering:
    match = _ORDERING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an order such as row+row producer_first row-sync static 1/SM")
    numbers = ("sync_width", "run_ahead", "partition", "ctas_per_sm", "reserved_sms")
    known: dict[str, Any] = {name: int(match[name]) for name in numbers if match[name]}
    return Ordering(
        rasters=tuple(map(_raster, match["rasters"].split("+"))),
        interleave=_interleave(match["interleave"]),
        granularity=Granularity(match["granularity"]),
        assignment=Assignment(match["assignment"]),
        wait_position=WaitPosition.SLICE if match["by_slice"] else WaitPosition.TASK,
        split_order=SplitOrder.STRIDED if match["strided"] else SplitOrder.CONTIGUOUS,
        split_tiles=SplitTiles(match["split_tiles"] or SplitTiles.ALL),
        part_major=bool(match["part_major"]),
        run_starts=_numbers(match["run_starts"]) if match["run_starts"] else (),
        **known,
        **dict(_named(Ordering, match["words"])),
    )


def _raster(text: str) -> Raster:
    match = _RASTER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a raster such as row or panel2")
    kind = RasterKind(match[1])
    if kind.row.has_width != bool(match[2]):
        raise ValueError(f"{text!r}: {kind} has {'a' if kind.row.has_width else 'no'} width")
    return Raster(kind=kind, width=int(match[2] or 1))


def _interleave(text: str) -> Interleave:
    if text.startswith(f"{InterleaveKind.GIVEN}-"):
        raise ValueError(f"{text!r} is a table of tiles, which does not fit in a line: use its JSON")
    if (match := _BANDS.fullmatch(text)) is None:
        return Interleave(kind=InterleaveKind(text))
    return Interleave(
        kind=InterleaveKind.BANDS,
        rows=int(match["rows"]),
        lag=int(match["lag"] or 0),
        chunks=int(match["chunks"] or 1),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")))


def _named(of: type, words: str) -> Iterator[tuple[str, Any]]:
    """The axes that a line sets with words of their own, and their values.

    Raises:
        ValueError: a word belongs to no axis.
    """
    hints = get_type_hints(of)
    named = {name: (one, hints[name]) for name, one in axes_of(of).items() if one.word}
    for word in words.split():
        for name, (one, hint) in named.items():
            before, has_value, after = one.word.partition("{}")
            if not has_value and word == one.word:
                yield name, next(value for value in _values(hint) if value != one.default)
                break
            if has_value and word.startswith(before) and word.endswith(after) and len(word) > len(before) + len(after):
                value = word[len(before) : len(word) - len(after)]
                if issubclass(hint, StrEnum) and value in list(hint):
                    yield name, hint(value)
                    break
                if hint is int and value.isdecimal():
                    yield name, int(value)
                    break
        else:
            raise ValueError(f"{word!r} is not a word of a schedule's line; give what only a kind has as JSON")


def _values(hint: Any) -> tuple[Any, ...]:
    return (False, True) if hint is bool else tuple(hint)
