"""The contents of a pack, and the differences between two, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from tuner.client.terminal import render
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.contents import Rung
from tuner.packs.ladder import MAX_ROWS
from tuner.packs.read import Pack
from tuner.packs.shapes import AnyShape, Shape
from tuner.packs.stored import stored_in


@dataclass(frozen=True, kw_only=True)
class Line:
    """One entry of a pack: a range of rows of an FFN, or of sequences and contexts of an attention or a layer, or a
    number of images."""

    shape: str
    #: Text: rows, or sequences and the longest context, or images.
    rows: str
    answer: Rung
    #: Text: what runs, and for the library the reason.
    runs: str

    @property
    def time_us(self) -> float | None:
        """The kernel's time at the largest number of rows in the range, or the next larger measured one; None for the
        library.
        """
        return None if self.answer.kernel is None else _measured_us(self.answer)

    @property
    def library_us(self) -> float | None:
        """The library's time at the same number of rows."""
        measured, speedup = _measured_us(self.answer), self.answer.speedup
        return None if measured is None or speedup is None else measured * speedup

    def to_json(self) -> dict[str, Any]:
        """The line as JSON, for programs."""
        return {
            "shape": self.shape,
            "rows": self.rows,
            "runs": self.runs,
            "kernel": None if self.answer.kernel is None else self.answer.kernel.digest,
            "time_us": self.time_us,
            "library_us": self.library_us,
            "speedup": None if self.answer.kernel is None else self.answer.speedup,
            "interval": None if self.answer.kernel is None else self.answer.interval,
            "weights": [] if self.answer.kernel is None else list(stored_in(self.answer.kernel.manifest)),
        }


def _measured_us(answer: Rung) -> float | None:
    """The time that the speed-up refers to. It is a kernel's, even if the pack does not choose that kernel."""
    found = answer.provenance.get("time_us")
    return found if isinstance(found, int | float) else None


def lines_of(pack: Pack) -> list[Line]:
    """All entries of a pack, in its order."""
    min_gain = _min_gain(pack)
    return [
        Line(
            shape=words_of(entry.shape),
            rows=sizes_of(entry.shape, rung),
            answer=rung,
            runs=_runs_and_why(entry.shape, rung, min_gain),
        )
        for entry in pack.entries
        for rung in entry.rungs
    ]


def ladder_table(pack: Pack) -> Table:
    """What runs for each range of rows, and its gain."""
    named = ("shape", "rows", "runs", "time", "library's time", "speed-up", "95 % interval")
    table = Table(*named, title=f"pack{render.mark(is_simulated(pack))}")
    if is_invariant := any(entry.invariant_rows for entry in pack.entries):
        table.add_column("without the promise")
        table.caption = "batch-invariant: a row's bits do not depend on other rows, up to the largest m"
    if stored := stored_of(pack):
        table.caption = "\n".join(filter(None, (table.caption if isinstance(table.caption, str) else "", *stored)))
    for line in lines_of(pack):
        times = [render.microseconds(line.time_us), render.microseconds(line.library_us)]
        without = [render.ratio(line.answer.provenance.get("without_the_promise"))] if is_invariant else []
        table.add_row(line.shape, line.rows, line.runs, *times, *_speedup(line.answer), *without)
    return table


def stored_of(pack: Pack) -> tuple[str, ...]:
    """How the weights of its kernels are stored in fewer bits, as text."""
    kernels = (rung.kernel for entry in pack.entries for rung in entry.rungs if rung.kernel is not None)
    return tuple(dict.fromkeys(words for kernel in kernels for words in stored_in(kernel.manifest)))


def is_simulated(pack: Pack) -> bool:
    """Whether its figures are simulated."""
    return str(pack.document["provenance"].get("target", "")).startswith(SIMULATED_PREFIX)


def diff_table(path: str, before: Pack | None, after: Pack) -> Table:
    """For each range of sizes that changed: what runs and its gain, before and after."""
    named = {"before": before, "after": after}
    marked = [name + render.mark(side is not None and is_simulated(side)) for name, side in named.items()]
    table = Table("shape", "rows", *marked, title=f"{path}: what changed")
    ladders = [{one.shape: one for one in side.entries} if side else {} for side in (before, after)]
    for shape in dict.fromkeys([*ladders[0], *ladders[1]]):
        sides = [side.get(shape) for side in ladders]
        for sizes, at in _ranges(shape, [rung for side in sides if side for rung in side.rungs]):
            old, new = (side.at(*at) if side else None for side in sides)
            if _gain(old) != _gain(new):
                table.add_row(words_of(shape), sizes, _gain(old), _gain(new))
    return table


def _ranges(shape: AnyShape, rungs: Sequence[Rung]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The ranges of several ladders of a shape: as text, and their largest sizes."""
    named = {(rung.m_hi, rung.max_length): rung for rung in rungs if rung.max_length or _counted(shape)}
    for at, rung in named.items():
        yield sizes_of(shape, rung), at
    ends = sorted({rung.m_hi for rung in rungs if (rung.m_hi, rung.max_length) not in named})
    for first, last in zip([1, *(end + 1 for end in ends)], ends, strict=False):
        yield _range(first, last), (last, 0)


def _gain(rung: Rung | None) -> str:
    if rung is None or rung.kernel is None:
        return "–" if rung is None else runs_of(rung)
    return f"{runs_of(rung)} {render.ratio(rung.speedup)}"


def _speedup(rung: Rung) -> tuple[str, str]:
    """The gain and its interval; for the library neither, since they were measured for our kernel."""
    if rung.kernel is None:
        return "–", "–"
    interval = "–" if rung.interval is None else f"{rung.interval[0]:.3f}–{rung.interval[1]:.3f}"
    return render.ratio(rung.speedup), interval


def runs_of(rung: Rung) -> str:
    """The plan kind, or the library, as text."""
    return "library" if rung.kernel is None else render.words(str(rung.kernel.manifest["plan_kind"]))


def _min_gain(pack: Pack) -> float | None:
    found = pack.document["provenance"].get("min_gain")
    return found if isinstance(found, int | float) else None


def _runs_and_why(shape: AnyShape, rung: Rung, min_gain: float | None) -> str:
    """What runs, as text; for the library with the reason."""
    if rung.kernel is not None:
        return runs_of(rung)
    if (winner := rung.provenance.get("winner")) is None:
        why = "never measured"
    elif winner == "library":
        why = "ours is slower" if rung.provenance.get("timed_ours", True) else "ours was not timed"
    elif winner == PlanKind.TWO_STREAMS and not isinstance(shape, Shape):
        why = "ours is fastest on two streams, and a program runs on one"
    else:
        # Three digits: 1.016 would read 1.02, which is not below 1.02.
        gain = "" if rung.speedup is None else f" {rung.speedup:.3f}x"
        why = f"tuner's kernel gains{gain}, below --min-gain" + ("" if min_gain is None else f" {min_gain:g}")
    return f"library: {why}"


def words_of(shape: AnyShape) -> str:
    """A shape as text, with the sizes of its images, which `pack.bin` does not name."""
    return getattr(shape, "described", "") or str(shape)


def sizes_of(shape: AnyShape, rung: Rung) -> str:
    """Rows, or sequences and their longest context, or images, as text."""
    return _counted(shape) or (rung.sizes if rung.max_length else _range(rung.m_lo, rung.m_hi))


def _counted(shape: AnyShape) -> str:
    return getattr(shape, "counted", "")


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first} and more" if last == MAX_ROWS else f"{first}–{last}"
