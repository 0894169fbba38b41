"""The verdict of a job in one sentence, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import Best, FinalRow, Verdict
from tuner.core.trial.torch_time import TorchCalls

LIBRARY = "the library (cuBLASLt in a graph)"
#: The same of a workload with an attention; where PyTorch has no kernel for it, cuBLASLt is all there is.
WITH_ATTENTION = "the library (PyTorch's attention and cuBLASLt in a graph)"
#: Where the job asked for it, and it was ahead of cuBLASLt.
COMPILED = "the library (torch.compile in a graph)"


#: Where no fused launch came through.
NOTHING_FUSED = "nothing fused was timed"


def verdict_sentence(best: Best) -> str:
    """E.g. ``Fused pdl wins by 15 % over the library (cuBLASLt in a graph), 95 % interval 13 to 16 %; 1.38 times
    PyTorch's speed.``"""
    sentence = f"{_decided(best)}{_beside_torch(best)}."
    if best.torch is not None and best.torch.is_library:
        sentence = sentence.replace(LIBRARY, COMPILED).replace(
            "the library is the fastest", "torch.compile is the fastest"
        )
        return sentence.replace("Fused and library tie", "Fused and torch.compile tie").replace(
            "one, library,", "one, torch.compile,"
        )
    if not _has_attention(best):
        return sentence
    if best.library is None or "scaled_dot_product_attention" in best.library.attention:
        sentence = sentence.replace(LIBRARY, WITH_ATTENTION)
    return sentence.replace(NOTHING_FUSED, "the attention has a launch of its own")


def _decided(best: Best) -> str:
    """Who won, by how much."""
    rows = [row for row in best.finals if row.time_us is not None]
    fused, others = _fastest(rows, True), _fastest(rows, False)
    winner = best.finals[best.winner_row] if best.winner_row is not None else None
    if winner is None:
        return "Nothing was timed in the finals"
    if best.verdict is Verdict.FUSED_WINS:
        return f"{_named(winner)} wins by {_gain(winner)}{_ahead(winner, others)}"
    if best.verdict is Verdict.TIE:
        tied = f"Fused and {_lower(others)} tie within {100 * best.tie_band:.1f} %"
        return f"{tied}: the simpler one, {winner.candidate.plan_kind.heading}, {_over_library(winner)}"
    slower = f"the best fused launch takes {_times(fused, winner)} times as long" if fused else NOTHING_FUSED
    if not winner.candidate.plan_kind.is_ours:
        return f"Do not fuse: the library is the fastest, and {slower}"
    return f"Do not fuse: {winner.candidate.plan_kind.heading} {_over_library(winner)}, and {slower}"


def _has_attention(best: Best) -> bool:
    schedules = (row.candidate.schedule for row in best.finals)
    return any(schedule.attentions for schedule in schedules if schedule is not None)


def _beside_torch(best: Best) -> str:
    """The winner's speed over PyTorch's, where that is known and not said yet."""
    if best.torch is None or best.torch_speedup is None or best.torch.is_library:
        return ""
    who = "" if best.verdict is Verdict.FUSED_WINS else f"{best.winner.heading} has "
    whose = "torch.compile's" if best.torch.calls is TorchCalls.COMPILED else "PyTorch's"
    return f"; {who}{best.torch_speedup:.2f} times {whose} speed"


def _fastest(rows: Sequence[FinalRow], is_fused: bool) -> FinalRow | None:
    """The fastest launch of ours that is fused, or of whatever is not."""
    chosen = [row for row in rows if row.candidate.plan_kind.is_fused is is_fused]
    return min(chosen, key=lambda row: row.time_us or 0.0, default=None)


def _named(row: FinalRow) -> str:
    return row.candidate.plan_kind.heading.capitalize()


def _lower(row: FinalRow | None) -> str:
    return "the others" if row is None else row.candidate.plan_kind.heading


def _times(row: FinalRow, of: FinalRow) -> str:
    return f"{(row.time_us or 0.0) / (of.time_us or 1.0):.2f}"


def _gain(row: FinalRow) -> str:
    """``15 % over the library, 95 % interval 13 to 16 %``."""
    if row.speedup is None:
        return "an unknown margin"
    interval = ""
    if row.speedup_ci95:
        low, high = (100 * (bound - 1) for bound in row.speedup_ci95)
        interval = f", 95 % interval {low:.1f} to {high:.1f} %"
    return f"{100 * (row.speedup - 1):.1f} % over {LIBRARY}{interval}"


def _over_library(row: FinalRow) -> str:
    if row.candidate.plan_kind is PlanKind.LIBRARY:
        return "is what is recommended"
    if row.speedup is None or row.speedup < 1:
        return f"is not faster than {LIBRARY}"
    return f"is ahead by {_gain(row)}"


def _ahead(row: FinalRow, others: FinalRow | None) -> str:
    """What it gains over the fastest unfused kind, where that is not the library."""
    if others is None or not others.candidate.plan_kind.is_ours or not others.time_us or not row.time_us:
        return ""
    gain = 100 * (others.time_us / row.time_us - 1)
    return f"; {gain:.1f} % over {others.candidate.plan_kind.heading}"
