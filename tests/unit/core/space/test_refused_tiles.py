"""Tiles that a kind of a package refuses are not proposed, and nothing else of the kind is called for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import toys
from tests.support.lanes import soaked

_RULE = """    if schedule.tile.m % 32:
        return f"{schedule.tile.m} rows: use a multiple of 32"
"""
_ASK = """
import json
import sys
from dataclasses import replace
from tuner.core.legal.legality import check_schedule, is_legal
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.space.joint import any_space_of
from tuner.errors import IllegalSchedule
plain = {"m": 160, "activation": "identity", "bias": False}
ops = [plain | {"name": "up", "source": "x", "n": 512, "k": 256}, json.loads(sys.argv[1]) | {"name": "own", "m": 160}]
workload = Workload.from_json({"kind": "chain", "ops": ops, "dtype": "fp16"})
space = any_space_of(workload, CATALOGUE["h200"])
one = next(iter(space))
small = replace(one, ops=(one.ops[0], replace(one.ops[1], tile=replace(one.ops[1].tile, m=16))))
try:
    check_schedule(workload, CATALOGUE["h200"], small)
except IllegalSchedule as error:
    print(str(error).partition(": ")[2])
proposed = [*space.tilings, *space.guesses, *(schedule.tiling for schedule in space.neighbours(one))]
print(len(space.tilings) > 50, {tiling.tiles[1].m % 32 for tiling in proposed})
"""


# In CI, tests/service/test_toys.py searches a pair with such a kind.
@pytest.mark.soak
@pytest.mark.parametrize(
    ("toy", "rules", "op"),
    [
        ("depthwise", "rules", {"op": "depthwise", "source": "up", "n": 512, "length": 160}),
        *soaked(("operands", "common", {"op": "running", "source": "up", "n": 512})),
    ],
    ids=["with axes of its own", "without axes of its own"],
)
def test_tiles_that_a_kind_refuses_are_not_proposed(
    toy: str, rules: str, op: dict[str, object], tmp_path: Path
) -> None:
    site = toys.install(toy, tmp_path)
    lowering = next(site.glob(f"toy_{toy}/**/{op['op']}/lowering.py"), site / f"toy_{toy}" / "lowering.py")
    for path, after, added in (
        (site / f"toy_{toy}" / f"{rules}.py", '"""', _RULE),
        (lowering, "in_band: bool) -> TileSpace:\n", "    assert tile.m % 32 == 0\n"),
    ):
        text = path.read_text()
        begin = text.index("def refuse(") if added is _RULE else 0
        at = text.index(after, begin) + len(after)
        at = text.index("\n", at) + 1 if added is _RULE else at
        path.write_text(text[:at] + added + text[at:])
    program = f"import sys\nsys.argv[1:] = [{json.dumps(json.dumps(op))}]\n{_ASK}"
    assert toys.run(program, site).splitlines() == ["16 rows: use a multiple of 32", "True {0}"]
