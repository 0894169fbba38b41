"""The forecast against measured trials: its purpose is to rank schedules, so ranks are compared."""

from __future__ import annotations

import json
from collections import defaultdict
from statistics import median

import pytest

from tests.support.lanes import soaked
from tests.support.repository import ROOT
from tuner.core.model.simulate import simulate
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.stats import rank_correlation
from tuner.errors import IllegalSchedule

TRIALS = ROOT / "benchmarks" / "results" / "h200" / "first_trials.json"


def spearman_by_workload(step: int) -> dict[str, float]:
    """Rank correlation of forecast and measured times of every `step`-th fused schedule, by workload; only schedules
    that are still legal, because a rule that became stricter refuses some."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    rows = [row for row in json.loads(TRIALS.read_text())["rows"] if row["plan_kind"] == PlanKind.FUSED]
    for row in rows[step - 1 :: step]:
        workload = Workload.from_json(row["workload"])
        candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=Schedule.from_json(row["schedule"]))
        try:
            (plan,) = plans_for(workload, CATALOGUE["h200"], candidate)
        except IllegalSchedule:
            continue
        times[workload.describe()].append((simulate(plan).makespan_us, row["time_us"]))
    return {name: rank_correlation(*zip(*pairs, strict=True)) or 0.0 for name, pairs in times.items()}


@pytest.mark.slow
@pytest.mark.parametrize("step", [4, *soaked(1, 2)])
def test_the_forecast_ranks_measured_schedules_of_an_h200(step: int) -> None:
    found = spearman_by_workload(step)
    assert len(found) == 5
    assert median(found.values()) >= 0.8, found
    assert min(found.values()) >= 0.65, found
