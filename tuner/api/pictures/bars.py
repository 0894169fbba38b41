"""The finals as bars, with the data sheet's bound, in shares of the longest bar, as geometry for SVG."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.core.insight.study import varied
from tuner.core.trial.reports.torch_time import TorchCalls
from tuner.wire.responses.responses import BestView, FinalRowView


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The bar of a plan kind, of PyTorch, or of a user's own program."""

    name: str
    time_us: float
    #: Percent of the width: its end, and its 95 % interval (None for the library, which is the reference).
    width: float
    interval: tuple[float, float] | None
    is_winner: bool
    is_ours: bool
    speedup: float | None


@dataclass(frozen=True, kw_only=True)
class Bars:
    """All bars, and the vertical lines."""

    bars: tuple[Bar, ...]
    #: Positions of the bound and of the library, percent of the width.
    floor: float
    library: float | None


def finals_bars(best: BestView, *, is_study: bool = False) -> Bars | None:
    """The bars of finalists with a time; None if there are none. In a study, the labels say what is varied."""
    rows = [(index, row) for index, row in enumerate(best.finals) if row.time_us]
    finals = [row.candidate for row in best.finals]
    kinds = [one.plan_kind for one in finals]
    names = varied(kinds, [one.text for one in finals]) if is_study else [""] * len(finals)
    if not rows:
        return None
    torch_us = best.torch.time_us if best.torch and not best.torch.is_library else None
    others_us = [us for us in (torch_us, *(one.time_us for one in best.baselines)) if us]
    full_us = 1.04 * max([_longest_us(row) for _, row in rows] + others_us)
    library_us = next((row.time_us for _, row in rows if not row.candidate.plan_kind.is_ours), None)
    return Bars(
        bars=(
            *_torch_bar(best, full_us),
            *(_other_bar(one.name, one.time_us, one.speedup, full_us) for one in best.baselines if one.time_us),
            *(_bar(best, index, row, full_us, names[index]) for index, row in rows),
        ),
        floor=_share(best.reference_us, full_us),
        library=None if library_us is None else _share(library_us, full_us),
    )


def _torch_bar(best: BestView, full_us: float) -> tuple[Bar, ...]:
    """PyTorch's bar, if it was timed with the library."""
    if best.torch is None or not best.torch.time_us or best.torch.is_library:
        return ()
    over = best.torch.library_speedup
    name = "torch.compile" if best.torch.calls is TorchCalls.COMPILED else "PyTorch"
    return (_other_bar(name, best.torch.time_us, 1 / over if over else None, full_us),)


def _other_bar(name: str, time_us: float, speedup: float | None, full_us: float) -> Bar:
    """The bar of a program that is not a finalist."""
    width = _share(time_us, full_us)
    return Bar(name=name, time_us=time_us, width=width, interval=None, is_winner=False, is_ours=False, speedup=speedup)


def _share(time_us: float, full_us: float) -> float:
    return round(100 * time_us / full_us, 2)


def _longest_us(row: FinalRowView) -> float:
    interval = row.interval_us
    return max(row.time_us or 0.0, interval[1] if interval else 0.0)


def _bar(best: BestView, index: int, row: FinalRowView, full_us: float, name: str) -> Bar:
    interval, kind = row.interval_us, row.candidate.plan_kind
    is_compiled = best.torch is not None and best.torch.is_library and not kind.is_ours
    return Bar(
        name="torch.compile" if is_compiled else name or kind.heading,
        time_us=row.time_us or 0.0,
        width=_share(row.time_us or 0.0, full_us),
        interval=None if interval is None else (_share(interval[0], full_us), _share(interval[1], full_us)),
        is_winner=index == best.winner_row,
        is_ours=kind.is_ours,
        speedup=row.speedup,
    )
