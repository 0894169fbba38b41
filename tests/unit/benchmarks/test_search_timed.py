"""What the search benchmark records of a job in addition to its result: the lead that decides the verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.common.jobs import Ended
from benchmarks.search.bench import Timed
from benchmarks.search.timed import Span
from tests.support.builders import BEST
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.records import FinalRow


def timed(times_us: dict[PlanKind, float | None]) -> Timed:
    """A job whose finals took four rounds, two in each process, with one finalist per kind."""
    rows = tuple(
        FinalRow(
            candidate=LIBRARY if kind is PlanKind.LIBRARY else Candidate(plan_kind=kind, schedule=None),
            trial_number=number,
            time_us=time_us,
            spread=0.0,
            speedup=1.0,
            speedup_ci95=None,
        )
        for number, (kind, time_us) in enumerate(times_us.items())
    )
    span = Span(
        what="finals",
        begin_s=0.0,
        end_s=1.0,
        times_us=tuple(us and tuple(us * drift for drift in (1.0, 1.1, 1.2, 1.3)) for us in times_us.values()),  # type: ignore[misc]
        process_of_round=(0, 0, 1, 1),
    )
    ended = Ended(job=None, trials=[], best=replace(BEST, finals=rows))  # type: ignore[arg-type]
    return Timed(ended=ended, spans=[Span(what="prepare", begin_s=0.0, end_s=1.0), span])


def test_the_lead_is_that_of_the_fastest_fused_over_the_fastest_other_kind_round_by_round() -> None:
    found = timed(
        {
            PlanKind.LIBRARY: 12.0,
            PlanKind.TWO_LAUNCHES: 11.0,
            PlanKind.TWO_STREAMS: None,
            PlanKind.FUSED: 10.5,
            PlanKind.FUSED_PDL: 10.0,
        }
    ).lead()
    assert found == {"speedup": pytest.approx(1.1), "ci95": [pytest.approx(1.1)] * 2}


def test_there_is_no_lead_where_nothing_fused_has_a_time() -> None:
    assert timed({PlanKind.LIBRARY: 12.0, PlanKind.FUSED: None}).lead() is None
