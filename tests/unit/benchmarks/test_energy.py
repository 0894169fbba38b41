"""The kernels that the benchmark of energy makes of others."""

from __future__ import annotations

import pytest

from benchmarks.trust.energy import slept
from tests.support.cases import H200
from tests.support.conformance.table import CASES
from tuner.workers.source.render import render


@pytest.mark.parametrize("engine", ["wgmma", "mma", "simt"])
def test_each_engine_has_one_loop_that_waits_for_a_signal(engine: str) -> None:
    fused = (case for case in CASES if case.workload.ops and not case.workload.attentions)
    case = next(one for one in fused if (found := one.on(H200).schedule) and str(found.tiling.engine) == engine)
    schedule = case.on(H200).schedule
    assert schedule is not None
    source = render(case.workload, schedule.tiling)
    changed = slept(source)
    assert changed.replace("    __nanosleep(100);\n", "", 1) == source != changed
    assert changed.index("load_relaxed_gpu(address)") < changed.index("__nanosleep(100)")


def test_another_loop_is_refused() -> None:
    with pytest.raises(ValueError, match="the loop of a wait has changed"):
        slept("for (;;) {}")
