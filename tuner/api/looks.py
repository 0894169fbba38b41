"""The table of closer looks: a column per finalist, a row per figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.trial.records import InspectionState
from tuner.core.units import figure
from tuner.wire.inspections import InspectedFinalist, LookView


@dataclass(frozen=True, kw_only=True)
class LookTable:
    """What the page shows of closer looks."""

    finalists: Sequence[InspectedFinalist]
    #: (name, one text per finalist), counters first.
    rows: Sequence[tuple[str, Sequence[str]]]
    #: Sentences: which looks came to nothing, and why.
    reasons: Sequence[str]
    #: Whether more is to come, so that the page should ask again.
    is_pending: bool


def look_table(finalists: Sequence[InspectedFinalist]) -> LookTable | None:
    """The table of the finalists' looks; None where nobody looked."""
    if not finalists:
        return None
    looks = [_looks(finalist) for finalist in finalists]
    told = [{one.tag: figure(one.value, one.unit) for look in own for one in look.figures} for own in looks]
    names = dict.fromkeys(name for texts in told for name in texts)
    return LookTable(
        finalists=finalists,
        rows=[(name, [texts.get(name, "–") for texts in told]) for name in names],
        reasons=list(
            dict.fromkeys(
                f"{look.kind} of {finalist.plan_kind.replace('_', ' ')}: {look.reason}"
                for finalist, own in zip(finalists, looks, strict=True)
                for look in own
                if look.reason
            )
        ),
        is_pending=any(look.state is InspectionState.PENDING and not look.reason for own in looks for look in own),
    )


def _looks(finalist: InspectedFinalist) -> list[LookView]:
    return [look for look in (finalist.counters, finalist.trace) if look is not None]
