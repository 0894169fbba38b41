"""The ops of a chain: which op reads which, and where launches end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from tuner.wire.pages.pages import OpRow

_WIDTH, _GAP, _MARGIN, _LINE, _HEAD = 184.0, 46.0, 18.0, 16.0, 44.0
#: Space above the boxes for each op that an arc crosses, and below them for the names of launches.
_RISE, _FOOT = 20.0, 30.0
_MIDDLE = _HEAD / 2 + 4


@dataclass(frozen=True, kw_only=True)
class OpBox:
    """An op; SVG units, y downwards."""

    x: float
    name: str
    sizes: str
    #: Its further operations, one line each.
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Adjacent ops in one launch."""

    x: float
    width: float
    number: int


@dataclass(frozen=True, kw_only=True)
class Arrow:
    """An arrow from an op to one that reads its output."""

    path: str
    #: CSS class: the role in which the output is read.
    kind: str
    title: str


@dataclass(frozen=True, kw_only=True)
class ChainPicture:
    """Ops, from left to right."""

    width: float
    height: float
    #: Upper edge and height of the boxes.
    y: float
    box_height: float
    box_width: float
    boxes: tuple[OpBox, ...]
    arrows: tuple[Arrow, ...]
    #: Empty if there is no schedule.
    launches: tuple[Launch, ...]
    #: x of each border between two launches.
    borders: tuple[float, ...]
    sentence: str


def draw_chain(ops: Sequence[OpRow]) -> ChainPicture | None:
    """The picture; None for a pair."""
    if not ops:
        return None
    places = {op.name: place for place, op in enumerate(ops)}
    notes = [_notes(op) for op in ops]
    arcs = [_span(places, op, role) for op in ops for role in op.reads_ops]
    y = _MARGIN + _RISE * max((span for span in arcs if span > 1), default=1)
    height = _HEAD + _LINE * max(map(len, notes)) + 8
    launches = _launches(ops)
    return ChainPicture(
        width=2 * _MARGIN + len(ops) * (_WIDTH + _GAP) - _GAP,
        height=y + height + _FOOT + 8,
        y=y,
        box_height=height,
        box_width=_WIDTH,
        boxes=tuple(
            OpBox(x=_x(place), name=op.name, sizes=op.sizes, notes=notes[place]) for place, op in enumerate(ops)
        ),
        arrows=tuple(arrow for op in ops for arrow in _arrows(places, op, y)),
        launches=launches,
        borders=tuple(one.x - (_GAP - 16) / 2 for one in launches[1:]),
        sentence=_sentence(ops, launches),
    )


def _x(place: int) -> float:
    return _MARGIN + place * (_WIDTH + _GAP)


def _notes(op: OpRow) -> tuple[str, ...]:
    is_input = "source" not in op.reads_ops
    texts = (f"reads {op.reads}" if is_input else "", f"norm of {op.norm}" if op.norm else "", op.activation)
    return tuple(text for text in (*texts, f"plus {op.adds}" if op.adds else "") if text)


def _span(places: dict[str, int], op: OpRow, role: str) -> int:
    return places[op.name] - places[op.reads_ops[role]]


def _arrows(places: dict[str, int], op: OpRow, y: float) -> list[Arrow]:
    """A straight arrow from the previous op; an arc over the boxes for other ops and roles."""
    found, at = [], places[op.name]
    for role, source in op.reads_ops.items():
        begin, end, span = _x(places[source]) + _WIDTH, _x(at), _span(places, op, role)
        if role == "norm" and op.reads_ops.get("source") == source:
            continue  # the label mentions it, and the arrow is already drawn
        if role == "source" and span == 1:
            path = f"M{begin} {y + _MIDDLE}H{end - 3}"
        else:
            top = y - _RISE * span + 4
            begin, end = begin - _WIDTH / 3, end + _WIDTH / 3
            path = f"M{begin} {y}C{begin} {top} {end} {top} {end} {y - 3}"
        what = {"source": "input", "residual_source": "residual"}.get(role, role)
        found.append(Arrow(path=path, kind=what, title=f"{op.name} reads {source} as its {what}"))
    return found


def _launches(ops: Sequence[OpRow]) -> tuple[Launch, ...]:
    found = []
    for number, members in groupby(enumerate(ops), key=lambda one: one[1].launch):
        places = [place for place, _ in members]
        if number is None:
            return ()
        width = _x(places[-1]) + _WIDTH - _x(places[0])
        found.append(Launch(x=_x(places[0]) - 8, width=width + 16, number=number))
    return tuple(found)


def _sentence(ops: Sequence[OpRow], launches: Sequence[Launch]) -> str:
    names = ", ".join(op.name for op in ops)
    if not launches:
        return f"{len(ops)} ops, in this order: {names}."
    groups = [", ".join(op.name for op in ops if op.launch == one.number) for one in launches]
    if len(groups) == 1:
        return f"One launch computes all {len(ops)} ops: {names}."
    return f"{len(groups)} launches compute {len(ops)} ops: {'; '.join(groups)}."
