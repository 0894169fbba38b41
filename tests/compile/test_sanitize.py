"""The sanitizer's driver without a GPU: what it would launch, how it parses the tools' output, and that it reports
missing tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.trust import sanitize
from benchmarks.trust.sanitize import RARE, WORKLOAD, candidates, find_sanitizer, num_reports, rare_schedules
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_schedule
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.plan_kinds import PlanKind

MEMCHECK = "launched fused\n========= ERROR SUMMARY: {} error{}\n"
RACECHECK = "========= RACECHECK SUMMARY: {} hazards displayed (1 error, 0 warnings)\n"


@pytest.mark.parametrize(
    ("output", "count"),
    [
        (MEMCHECK.format(0, "s"), 0),
        (MEMCHECK.format(1, ""), 1),
        (RACECHECK.format(0), 0),
        (RACECHECK.format(3), 3),
        (MEMCHECK.format(0, "s") + MEMCHECK.format(2, "s"), 2),
    ],
)
def test_the_tools_summaries_are_counted(output: str, count: int) -> None:
    assert num_reports(output) == count


def test_a_tool_that_did_not_come_to_its_end_is_no_clean_one() -> None:
    with pytest.raises(ValueError, match="no summary"):
        num_reports("launched fused")


def test_every_engine_of_the_space_and_every_kind_of_ours_is_launched() -> None:
    space = space_of(WORKLOAD, CATALOGUE["h200"])
    chosen = list(candidates(space, 3))
    assert {c.plan_kind for c in chosen} == {kind for kind in PlanKind if kind.is_ours and kind.is_for(2)}
    engines = {tiling.engine for tiling in space.tilings}
    fused = [c.schedule.tiling for c in chosen if c.schedule and c.plan_kind is PlanKind.FUSED]
    assert {tiling.engine for tiling in fused} == engines
    assert len(fused) == 3 * len(engines) + len(RARE)
    assert len(set(fused[: 3 * len(engines)])) == 3 * len(engines)


def test_what_a_few_draws_leave_out_is_legal_and_launched_too() -> None:
    gpu = CATALOGUE["h200"]
    launched = [c.schedule for c in candidates(space_of(WORKLOAD, gpu), 1) if c.plan_kind is PlanKind.FUSED]
    rare = list(rare_schedules())
    assert launched[-len(rare) :] == rare
    for one, (tiled, ordered) in zip(rare, RARE, strict=True):
        check_schedule(WORKLOAD, gpu, one)
        assert all(getattr(one.tiling, name) == value for name, value in tiled.items())
        assert all(getattr(one.ordering, name) == value for name, value in ordered.items())


def test_a_missing_sanitizer_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "USUAL_PLACE", Path("/nowhere/compute-sanitizer"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit, match="was not found: it comes with the CUDA toolkit"):
        find_sanitizer()
