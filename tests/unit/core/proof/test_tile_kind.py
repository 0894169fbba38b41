"""Plans with a tile op of another package: proven, and refused if a row of the halo is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import toys

PROGRAM = """
import random
from tests.support import oracle
from tests.support.cases import ordering
from tests.support.depthwise import chain, tiling
from tests.support.emulated.chain import FEW_SMS
from tuner.core.legal.legality import estimated_resources
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.proof.verify import verify
from tuner.core.schedule.ordering import Granularity
from tuner.core.schedule.tiling import Engine
from tuner.errors import PlanError

# One sequence of 48 rows in tiles of 16: a tile of the convolution reads a row of either neighbour, or none.
shape = {"m": 48, "length": 48, "n": 32}
chosen = tiling(Engine.MMA, (16, 32, 32), (16, 32, 32), (16, 32, 32))
wide, narrow = (tile_graph(chain(taps=taps, **shape), chosen) for taps in (3, 1))
plans = {}
for name, graph in (("whole", wide), ("forgotten", narrow)):
    plans[name] = make_plan(graph, ordering(3, granularity=Granularity.ROW), FEW_SMS)
    try:
        verify(plans[name], wide, estimated_resources(wide.workload, chosen), FEW_SMS)
        found = "proven"
    except PlanError as error:
        found = f"{type(error).__name__}: {error}"
    print(name, sorted(oracle.faults(plans[name].words.tolist(), wide)), found, sep="; ")
"""


@pytest.mark.slow
def test_a_plan_that_forgets_a_row_of_the_halo_is_refused_by_proof_and_by_a_walk_over_every_state(
    tmp_path: Path,
) -> None:
    whole, forgotten = toys.run(PROGRAM, toys.install("depthwise", tmp_path)).splitlines()
    assert whole == "whole; []; proven"
    name, faults, refusal = forgotten.split("; ", 2)
    assert (name, faults) == ("forgotten", "['safety']")
    assert refusal.startswith("SafetyError: ")
    assert "(conv tile 0,0) can load its k-step 0 before" in refusal
    assert "reads up[0:17, 0:32]" in refusal
