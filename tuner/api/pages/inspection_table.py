"""The table of inspections: a column per finalist, a row per figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.trial.records import InspectionState
from tuner.core.units import figure
from tuner.wire.responses.inspections import InspectedFinalist, InspectionOnPage


@dataclass(frozen=True, kw_only=True)
class InspectionTable:
    """The inspections on the page."""

    finalists: Sequence[InspectedFinalist]
    #: (name, one text per finalist), counters first.
    rows: Sequence[tuple[str, Sequence[str]]]
    #: Sentences that say why an inspection has no result.
    reasons: Sequence[str]
    #: Whether more results will follow, so that the page has to be reloaded.
    is_pending: bool


def inspection_table(finalists: Sequence[InspectedFinalist]) -> InspectionTable | None:
    """The table of the finalists' inspections; None if nothing was inspected."""
    if not finalists:
        return None
    taken = [_of_finalist(finalist) for finalist in finalists]
    columns = [
        {one.tag: figure(one.value, one.unit) for inspection in own for one in inspection.figures} for own in taken
    ]
    names = dict.fromkeys(name for texts in columns for name in texts)
    return InspectionTable(
        finalists=finalists,
        rows=[(name, [texts.get(name, "–") for texts in columns]) for name in names],
        reasons=list(
            dict.fromkeys(
                f"{inspection.kind} of {finalist.plan_kind.heading}: {inspection.reason}"
                for finalist, own in zip(finalists, taken, strict=True)
                for inspection in own
                if inspection.reason
            )
        ),
        is_pending=any(
            inspection.state is InspectionState.PENDING and not inspection.reason for own in taken for inspection in own
        ),
    )


def _of_finalist(finalist: InspectedFinalist) -> list[InspectionOnPage]:
    return [inspection for inspection in (finalist.counters, finalist.trace) if inspection is not None]
