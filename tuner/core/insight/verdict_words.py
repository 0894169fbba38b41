"""The verdict of a job in one sentence: what to run and its gain, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Workload
from tuner.core.trial.records import Best, FinalRow, Verdict, kernel_row
from tuner.core.trial.reports.library_recipe import LibraryRecipe
from tuner.core.trial.reports.torch_time import TorchCalls


class LibraryWords(Protocol):
    """The file ``words`` of a kind of tile op; that of a launch op has more (`explain_launch_ops.Words`)."""

    def library_of(self, recipe: LibraryRecipe | None) -> str:
        """The library that its ops were timed against, e.g. ``cuBLASLt``."""


@dataclass(frozen=True, kw_only=True)
class _Library:
    """Names of the library."""

    #: The short name.
    short: str
    #: The full name, with how it is run.
    whole: str


#: Used if the job requested it, and it was faster than the vendor's library.
_COMPILED = _Library(short="torch.compile", whole="the library (torch.compile in a graph)")


def verdict_sentence(best: Best, workload: Workload) -> str:
    """What to run for `workload` and its gain, e.g. ``Fused pdl wins by 15 % over the library (cuBLASLt in a graph), 95
    % interval 13 to 16 %; 1.38 times PyTorch's speed.`` A simulated result is marked."""
    simulated = " (simulated)" if best.environment.simulated else ""
    return f"{_decided(best, workload)}{_beside_torch(best)}{simulated}."


def _decided(best: Best, workload: Workload) -> str:
    """The winner and its lead."""
    rows, library = [row for row in best.finals if row.time_us is not None], _library(best, workload)
    fused, others = _fastest(rows, True), _fastest(rows, False)
    winner = best.finals[best.winner_row] if best.winner_row is not None else None
    if winner is None:
        return "Nothing was timed in the finals"
    if best.verdict is Verdict.FUSED_WINS:
        return f"{_named(winner)} wins by {_gain(winner, library)}{_ahead(winner, others)}"
    if best.verdict is Verdict.TIE:
        tied = others if winner.candidate.plan_kind.is_fused else fused
        beside = f"{_lower(tied)} is within {100 * best.tie_band:.1f} % of it (a tie), and is less simple"
        return f"Run {_speed(winner, library)}; {beside}"
    if fused is not None:
        return f"Do not fuse: run {_speed(winner, library)}; the best fused launch takes {_times(fused, winner)}"
    if winner.candidate.plan_kind.is_ours:
        launched = workload.launch_ops
        why = f"the {launched[0].KIND} has its own launch" if launched else "nothing fused was timed"
        return f"Run {_speed(winner, library)}; {why}"
    ours = kernel_row(best.finals, best.winner, None)
    return f"Run {library.short}; " + (
        f"the best of tuner's own takes {_times(ours, winner)}" if ours else "tuner's own kernels were not timed"
    )


def _library(best: Best, workload: Workload) -> _Library:
    """What was timed as the library: each kind names its own."""
    if best.torch is not None and best.torch.is_library:
        return _COMPILED
    parts = (part_of(op.KIND, "words") for op in workload.ops)
    names = " and ".join(dict.fromkeys(part.library_of(best.library) for part in parts if part))
    return _Library(short="the library", whole=f"the library ({f'{names} ' if names else ''}in a graph)")


def _speed(row: FinalRow, library: _Library) -> str:
    """``two launches: 1.24 times the speed of the library, 95 % interval 1.23 to 1.25``."""
    if not row.candidate.plan_kind.is_ours:
        return library.short
    if row.speedup is None:
        return _lower(row)
    interval = ", 95 % interval {:.2f} to {:.2f}".format(*row.speedup_ci95) if row.speedup_ci95 else ""
    return f"{_lower(row)}, {row.speedup:.2f} times the speed of {library.whole}{interval}"


def _beside_torch(best: Best) -> str:
    """The winner's speed relative to PyTorch's, if that is known and not included yet."""
    if best.torch is None or best.torch_speedup is None or best.torch.is_library:
        return ""
    who = "" if best.verdict is Verdict.FUSED_WINS else f"{best.winner.heading} has "
    whose = "torch.compile's" if best.torch.calls is TorchCalls.COMPILED else "PyTorch's"
    return f"; {who}{best.torch_speedup:.2f} times {whose} speed"


def _fastest(rows: Sequence[FinalRow], is_fused: bool) -> FinalRow | None:
    """Our fastest row that is fused, or, with `is_fused` false, that is not."""
    chosen = [row for row in rows if row.candidate.plan_kind.is_fused is is_fused]
    return min(chosen, key=lambda row: row.time_us or 0.0, default=None)


def _named(row: FinalRow) -> str:
    return row.candidate.plan_kind.heading.capitalize()


def _lower(row: FinalRow | None) -> str:
    return "the others" if row is None else row.candidate.plan_kind.heading


def _times(row: FinalRow, of: FinalRow) -> str:
    return f"{(row.time_us or 0.0) / (of.time_us or 1.0):.2f} times as long"


def _gain(row: FinalRow, library: _Library) -> str:
    """``15 % over the library, 95 % interval 13 to 16 %``."""
    if row.speedup is None:
        return "an unknown margin"
    interval = ""
    if row.speedup_ci95:
        low, high = (100 * (bound - 1) for bound in row.speedup_ci95)
        interval = f", 95 % interval {low:.1f} to {high:.1f} %"
    return f"{100 * (row.speedup - 1):.1f} % over {library.whole}{interval}"


def _ahead(row: FinalRow, others: FinalRow | None) -> str:
    """The winner's gain over the fastest unfused kind, if that is not the library."""
    if others is None or not others.candidate.plan_kind.is_ours or not others.time_us or not row.time_us:
        return ""
    gain = 100 * (others.time_us / row.time_us - 1)
    return f"; {gain:.1f} % over {others.candidate.plan_kind.heading}"
