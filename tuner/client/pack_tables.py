"""What a pack holds, and what differs between two, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from tuner.client import render
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.packs.contents import Answer, Entry, Rung, Shape
from tuner.packs.ladder import MAX_ROWS
from tuner.packs.read import Pack


@dataclass(frozen=True, kw_only=True)
class Line:
    """One answer of a pack: of a range of rows of an FFN, or of sequences and contexts of an attention or a layer."""

    shape: str
    #: In words: rows, or sequences and the longest context.
    rows: str
    answer: Answer
    #: In words: what runs, and of the library why.
    runs: str

    @property
    def time_us(self) -> float | None:
        """The kernel's time with the most rows of the range, which may be that with more rows; None of the library."""
        return None if self.answer.kernel is None else _measured_us(self.answer)

    @property
    def library_us(self) -> float | None:
        """What the library takes there."""
        measured, speedup = _measured_us(self.answer), self.answer.speedup
        return None if measured is None or speedup is None else measured * speedup

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "shape": self.shape,
            "rows": self.rows,
            "runs": self.runs,
            "kernel": None if self.answer.kernel is None else self.answer.kernel.digest,
            "time_us": self.time_us,
            "library_us": self.library_us,
            "speedup": None if self.answer.kernel is None else self.answer.speedup,
            "interval": None if self.answer.kernel is None else self.answer.interval,
        }


def _measured_us(answer: Answer) -> float | None:
    """The time whose ratio to the library's is its speed-up: of a kernel, also where it is not the pack's choice."""
    found = answer.provenance.get("time_us")
    return found if isinstance(found, int | float) else None


def lines_of(pack: Pack) -> list[Line]:
    """All of a pack's answers, in its order."""
    min_gain = _min_gain(pack)
    found = [(str(entry.shape), rows_of(rung), rung) for entry in pack.entries for rung in entry.rungs]
    return [
        Line(shape=shape, rows=rows, answer=answer, runs=_runs_and_why(answer, min_gain))
        for shape, rows, answer in [*found, *by_contexts(pack)]
    ]


def ladder_table(pack: Pack) -> Table:
    """What each range of rows runs, and what it gains."""
    named = ("shape", "rows", "runs", "time", "library's time", "speed-up", "95 % interval")
    table = Table(*named, title=f"pack{render.mark(is_simulated(pack))}")
    if is_invariant := any(entry.invariant_rows for entry in pack.entries):
        table.add_column("without the promise")
        table.caption = "batch-invariant: a row's bits depend on no other row, up to the largest m"
    for line in lines_of(pack):
        times = [render.microseconds(line.time_us), render.microseconds(line.library_us)]
        without = [render.ratio(line.answer.provenance.get("without_the_promise"))] if is_invariant else []
        table.add_row(line.shape, line.rows, line.runs, *times, *_speedup(line.answer), *without)
    return table


def is_simulated(pack: Pack) -> bool:
    """Whether no card measured it."""
    return str(pack.document["provenance"].get("target", "")).startswith(SIMULATED_PREFIX)


def diff_table(path: str, before: Pack | None, after: Pack) -> Table:
    """What each range of rows ran and runs, and what that gained and gains; only what differs."""
    table = Table("shape", "rows", "before", "after", title=f"{path}: what changed")
    for shape, first, last, old, new in _differences(before.entries if before else (), after.entries):
        table.add_row(str(shape), _range(first, last), _gain(old), _gain(new))
    sides = [{(shape, contexts): rung for shape, contexts, rung in by_contexts(one)} for one in (before, after) if one]
    sides = sides if before else [{}, *sides]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        gains = [_gain(side.get(key)) for side in sides]
        if gains[0] != gains[1]:
            table.add_row(*key, *gains)
    return table


def by_contexts(pack: Pack) -> Iterator[tuple[str, str, Answer]]:
    """The rungs of all attentions and layers, with their shape, and their sequences and longest context in words."""
    tables = [(str(entry.shape), entry.rungs) for entry in pack.attentions]
    tables += [(str(entry.shape), entry.rungs) for entry in pack.layers]
    for shape, rungs in tables:
        yield from ((shape, f"{rung.sequences} x {rung.max_length} tokens", rung) for rung in rungs)


def _differences(
    before: Sequence[Entry], after: Sequence[Entry]
) -> Iterator[tuple[Shape, int, int, Rung | None, Rung | None]]:
    ladders: tuple[Mapping[Shape, Entry], ...] = tuple({one.shape: one for one in side} for side in (before, after))
    for shape in dict.fromkeys([*ladders[0], *ladders[1]]):
        sides = [side.get(shape) for side in ladders]
        ends = sorted({rung.m_hi for side in sides if side for rung in side.rungs})
        for first, last in zip([1, *(end + 1 for end in ends)], ends, strict=False):
            old, new = (side.at(last) if side else None for side in sides)
            if _gain(old) != _gain(new):
                yield shape, first, last, old, new


def _gain(rung: Answer | None) -> str:
    if rung is None or rung.kernel is None:
        return "–" if rung is None else runs_of(rung)
    return f"{runs_of(rung)} {render.ratio(rung.speedup)}"


def _speedup(rung: Answer) -> tuple[str, str]:
    """What it gains, and the interval; beside the library there stands neither: what was measured is of our kernel."""
    if rung.kernel is None:
        return "–", "–"
    interval = "–" if rung.interval is None else f"{rung.interval[0]:.3f}–{rung.interval[1]:.3f}"
    return render.ratio(rung.speedup), interval


def runs_of(rung: Answer) -> str:
    """In words: the plan kind, or the library."""
    return "library" if rung.kernel is None else render.words(str(rung.kernel.manifest["plan_kind"]))


def _min_gain(pack: Pack) -> float | None:
    found = pack.document["provenance"].get("min_gain")
    return found if isinstance(found, int | float) else None


def _runs_and_why(rung: Answer, min_gain: float | None) -> str:
    """In words, and of the library why it runs."""
    if rung.kernel is not None:
        return runs_of(rung)
    if (winner := rung.provenance.get("winner")) is None:
        why = "never measured"
    elif winner == "library":
        why = "ours is slower"
    else:
        gain = "" if rung.speedup is None else f" {render.ratio(rung.speedup)}"
        why = f"ours gains{gain}, below --min-gain" + ("" if min_gain is None else f" {min_gain:g}")
    return f"library: {why}"


def rows_of(rung: Rung) -> str:
    """In words."""
    return _range(rung.m_lo, rung.m_hi)


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first} and more" if last == MAX_ROWS else f"{first}–{last}"
