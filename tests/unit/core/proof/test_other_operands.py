"""Tile ops of another package with two sources, two outputs, or a tensor updated in place, in the proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import toys

PROGRAM = """
from dataclasses import replace
from tests.support import oracle
from tests.support.cases import ordering
from tests.support.emulated.chain import FEW_SMS
from tuner.core.legal.legality import estimated_resources
from tuner.core.plan.build import make_plan
from tuner.core.plan.graph.boxes import Box, whole
from tuner.core.plan.graph.lowering import lower, tensors_problem
from tuner.core.plan.graph.tile_graph import tile_graph
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import verify
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.errors import InvalidInput, PlanError

plain = {"m": 32, "activation": "identity", "bias": False}
up, side = (plain | {"name": name, "n": 32, "k": 32, "source": "x"} for name in ("up", "side"))
split = {"op": "split", "name": "halves", "m": 32, "n": 32, "source": "up", "gate": "side"}
down = plain | {"name": "down", "n": 32, "k": 32, "source": "halves.rest"}
mean = {"op": "running", "name": "mean", "m": 32, "n": 32, "source": "up"}

def workload(*ops):
    return Workload.from_json({"kind": "chain", "ops": ops, "dtype": "fp16"})

def graph(*ops):
    tiling = Tiling(tiles=(Tile(m=16, n=32, k=32),) * len(ops), num_stages=2, num_warps=4)
    return tile_graph(workload(*ops), tiling)

def judged(made, meant):
    plan = make_plan(made, ordering(len(made.op_indices)), FEW_SMS)
    try:
        verify(plan, meant, estimated_resources(meant.workload, meant.tiling), FEW_SMS)
        found = "proven"
    except PlanError as error:
        found = f"{type(error).__name__}: {error}"
    print(sorted(oracle.faults(plan.words.tolist(), meant)), found, sep="; ")

right = graph(up, side, split, down)
judged(right, right)
judged(graph(up, side, split | {"gate": "y"}, down), right)
judged(graph(up, side, split, down | {"source": "y"}), right)
judged(graph(up, mean, down | {"source": "mean"}), graph(up, mean, down | {"source": "mean"}))
for ops in ((split, mean | {"source": "halves.factors"}), (mean, split | {"source": "mean.state", "gate": "y"})):
    try:
        workload(*ops)
    except InvalidInput as error:
        print(error)
(halves,), (kept,) = (workload(op).tile_ops for op in (split, mean))
space, state = lower(halves, Tile(m=16, n=16, k=16)), lower(kept, Tile(m=16, n=16, k=16))
for op, wrong in (
    (halves, replace(space, writes=space.writes[:1])),
    (halves, replace(space, reads=space.reads[:1])),
    (halves, replace(space, writes=(*space.writes, Box(tensor="more", extents=(whole(1), whole(1)))))),
    (halves, replace(space, writes=(space.writes[0], replace(space.writes[1], extents=(whole(8), whole(16)))))),
    (kept, replace(state, writes=state.writes[:1])),
    (kept, replace(state, writes=(*state.writes, replace(state.writes[0], tensor="up")))),
):
    print(tensors_problem(op, wrong))
"""


# In CI, test_second_oracle.py compares proof and walk, and tests/unit/core/plan has tensors that are forgotten.
@pytest.mark.soak
def test_what_is_forgotten_of_a_second_source_or_output_is_refused_by_proof_and_by_a_walk_over_every_state(
    tmp_path: Path,
) -> None:
    printed = toys.run(PROGRAM, toys.install("operands", tmp_path)).splitlines()
    assert printed[0] == "[]; proven"
    forgotten = ((printed[1], "reads side[0:16, 0:32]"), (printed[2], "reads halves.rest[0:16, 0:32]"))
    assert all(line.startswith("['safety']; SafetyError: ") and box in line for line, box in forgotten), printed
    assert printed[3] == "[]; proven", "a tile waits for no other tile before it changes its own box"
    operands = (
        (printed[4], "halves.factors is already an operand of halves"),
        (printed[5], "mean.state is already an operand of mean"),
    )
    assert all(said in line for line, said in operands), printed
    assert printed[6:] == [
        "it writes halves.rest, but its lowering writes no box of that tensor",
        "it reads side, but its lowering reads no box of that tensor",
        "its lowering has a box of more, which is not one of its tensors",
        "halves.rest has 1024 elements, and its tiles write 512",
        "it writes mean.state, but its lowering writes no box of that tensor",
        "its lowering writes up, which is an input: make it an output, or a cache",
    ]
