from __future__ import annotations

import random

import numpy as np
import pytest
from optuna.trial import TrialState, create_trial

from tests.support.cases import ordering, wgmma
from tests.support.lanes import one_in
from tests.support.spaces import space_of
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.schedule import Schedule
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.search.model.axes import distributions, from_params, ordering_features, tiling_features, to_params

WORKLOADS = [
    ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096),
    ffn_pair(m=1, d_in=1, d_hidden=1, d_out=1),
    independent_pair((512, 2048, 4096), (64, 128, 512)),
]


@pytest.mark.slow
@pytest.mark.parametrize("workload", one_in(3, WORKLOADS), ids=lambda workload: workload.describe())
def test_a_legal_schedule_survives_as_the_parameters_of_an_optuna_trial(workload: Workload) -> None:
    axes = distributions(next(iter(space_of(workload, CATALOGUE["h200"]))))
    for schedule in space_of(workload, CATALOGUE["h200"]).sample(random.Random(0), 100):
        # Refuses values out of range.
        trial = create_trial(params=to_params(schedule), distributions=axes, value=1.0, state=TrialState.COMPLETE)
        assert from_params(trial.params) == schedule


@pytest.mark.slow
def test_different_schedules_have_different_features() -> None:
    workload, gpu = WORKLOADS[0], CATALOGUE["h200"]
    sample = set(space_of(workload, gpu).sample(random.Random(0), 200))
    rows = {tuple(tiling_features(one.tiling, workload, gpu) + ordering_features(one.ordering)) for one in sample}
    assert len(rows) == len(sample)
    assert np.isfinite(np.array(list(rows))).all()


def test_what_is_offered_around_a_schedule_alone_survives_too_and_has_features_of_its_own() -> None:
    """Cache hints, and prefetches at the start."""
    workload, gpu = WORKLOADS[0], CATALOGUE["h200"]
    best = Schedule.of(tiling=wgmma((128, 128, 64), num_warps=8), ordering=ordering(assignment=Assignment.STATIC))
    near = space_of(workload, gpu).neighbours(best)
    assert {2, 4, 8} < {one.tiling.startup_prefetch for one in near}
    assert [from_params(to_params(one)) for one in near] == near
    rows = {tuple(tiling_features(one.tiling, workload, gpu) + ordering_features(one.ordering)) for one in near}
    assert len(rows) == len(near)
