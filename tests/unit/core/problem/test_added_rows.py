"""Packages add element types and activations; a broken package adds nothing, and the reason is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.toys import install, run
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.rows.raster import RasterRow
from tuner.errors import InvalidInput

_ASK = """
import json
from tuner.core.problem.activation import Activation
from tuner.core.legal.ordering_rules import raster_problem
from tuner.core.problem.dtype import ELEMENTS, Dtype
from tuner.core.schedule.one_line import _raster
from tuner.core.schedule.ordering import RasterKind
from tuner.core.space.ordering_values import RASTERS
def why(table, name):
    try:
        return str(table(name))
    except ValueError as error:
        return str(error)
names = ("absent", "nothing", "low", "high", "int32", "twin", "my type", "a" * 41, "good", "never")
asked = {name: why(Dtype, name) for name in names}
print(json.dumps([list(Dtype), list(ELEMENTS), list(Activation), asked, Activation.RELU.row.number]))
shape = frozenset({(40, 50)})
print(json.dumps([
    [str(one) for one in RASTERS if one.kind.row.is_added],
    *(raster_problem(_raster(name), shape, "up") for name in ("stuck", "spiral", "comb2", "comb64")),
    RasterKind.SNAKE.row.number,
    _raster("comb2").sentence,
]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("broken_rows", install("rows", tmp_path_factory.mktemp("site")))


def test_installed_rows_are_members_of_their_tables(site: Path) -> None:
    dtypes, elements, activations, _, _ = json.loads(run(_ASK, site).splitlines()[0])
    assert dtypes == [*Dtype, "good", "e5m2", "single"]
    assert elements == [*dtypes, "fp32", "int32", "uint8"]
    assert activations == [*Activation, "toy_relu2"]


def test_a_row_that_cannot_be_used_says_why_and_stops_nothing(site: Path) -> None:
    _, _, _, asked, relu = json.loads(run(_ASK, site).splitlines()[0])
    assert "cannot be imported: ModuleNotFoundError" in asked["absent"]
    assert "is a int, not a OperandRow" in asked["nothing"]
    assert "its number is 9; those of packages begin at 128" in asked["low"]
    assert "its number is 2147483648; the largest is 2147483647" in asked["high"], "the C API's are int32"
    assert "its name is not one of at most 40 lower-case letters" in asked["my type"], "lists separate names by blanks"
    assert "its name is not one of at most 40 lower-case letters" in asked["a" * 41]
    assert "a different row is also called int32" in asked["int32"]
    assert "its number 141 is already used by good" in asked["twin"]
    assert asked["good"] == "good"
    assert asked["never"] == "'never' is not a valid Dtype"
    assert relu == 1


def test_installed_rasters_are_offered_and_one_without_each_tile_is_refused(site: Path) -> None:
    offered, stuck, spiral, comb, wide, snake, sentence = json.loads(run(_ASK, site).splitlines()[1])
    assert offered == ["stuck", "spiral", "comb1", "comb2", "comb4"]
    assert stuck == "raster stuck of up: its package does not have each of 40 x 50 tiles once: use another raster"
    assert (spiral, comb) == (None, None)
    assert wide.endswith("is the same as the column raster: use column"), "one panel"
    assert snake == 4, "the name belongs to the program"
    assert sentence == "in panels of 2 tile columns, every second panel first"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"name": "my raster"}, "use lower-case letters only"),
        ({"order": None}, "pass a function that returns the tiles"),
        ({"widths": (2,)}, "write {width} in its sentence"),
        ({"sentence": "by {width}", "least_width": 2, "widths": (1, 2)}, "use at least 2"),
    ],
)
def test_a_raster_that_no_line_can_hold_is_refused(row: dict[str, Any], says: str) -> None:
    usual = {"name": "mine", "number": 200, "sentence": "somehow", "order": lambda *_: ()}
    with pytest.raises(InvalidInput) as caught:
        RasterRow(**{**usual, **row})
    assert says in str(caught.value)


_VERSIONS = """
import json
from dataclasses import replace
from tests.support.builders import BEST
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.ops.gemm.pairs import ffn_pair
from tuner.dispatch.sources import kernel_version_for
from tuner.workers.source.render import kernel_version
environment = replace(BEST.environment, kernel_version=kernel_version())
def version(dtype, activation):
    pair = ffn_pair(m=2, d_in=64, d_hidden=64, d_out=64, dtype=Dtype(dtype), activation=Activation(activation))
    return kernel_version_for(environment, pair)
print(json.dumps([kernel_version(), *(version(*one) for one in %s)]))
"""


@pytest.mark.slow
def test_a_package_changes_the_kernel_version_of_those_alone_who_name_its_rows(site: Path) -> None:
    (without, plain) = json.loads(run(_VERSIONS % [("fp16", "silu")]))
    assert without == plain
    asked = [("fp16", "silu"), ("fp16", "toy_relu2"), ("e5m2", "silu"), ("e5m2", "toy_relu2"), ("single", "silu")]
    version, *others = json.loads(run(_VERSIONS % asked, site))
    assert version == without == others[0]
    assert len(set(others)) == len(asked)


_NEEDED = """
import asyncio
import json
from dataclasses import replace
from tests.support.builders import BEST, schedule
from tests.support.members import member, prepare
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import Dtype
from tuner.core.problem.op_kinds import kind_versions, spelled
from tuner.core.schedule.candidate import fused
from tuner.core.schedule.ordering import Raster, RasterKind
from tuner.dispatch.cluster import messages
from tuner.dispatch.cluster.builds import BuildLine
from tuner.dispatch.cluster.lane import ClusterLane
from tuner.dispatch.cluster.members import lacking
from tuner.ops.gemm.pairs import ffn_pair
def workload(dtype="fp16", activation="relu"):
    return ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64, dtype=Dtype(dtype), activation=Activation(activation))
plain, spiral = schedule(), Raster(kind=RasterKind("spiral"))
ordered = plain.but(ordering=replace(plain.ordering, rasters=(plain.ordering.rasters[0], spiral)))
calls = [
    prepare(workload(), fused(plain)),
    prepare(workload("e5m2", "toy_relu2"), fused(plain)),
    prepare(workload(), fused(ordered)),
]
has = kind_versions()
others = {name: version for name, version in has.items() if ":" not in name}
older = has | {"dtype:e5m2": 1, "raster:spiral": 1}
print(json.dumps([[one.problem.workload.needs, sorted(one.candidate.needs)] for one in calls]))
print(json.dumps([[member(kinds).can_build_for(one, "") for one in calls] for kinds in (has, others, older)]))
print(spelled(lacking(calls[1], others)))
async def prepared(call, worker):
    loop = asyncio.get_running_loop()
    card = messages.CardInfo(uuid="GPU-1", target=call.target, environment=BEST.environment)
    lane = ClusterLane(loop, card)
    lane.attach(worker, card)
    found = BuildLine(loop, lambda: [worker, member(has)]).prepare(lane, call.problem, call.candidate)
    return (await asyncio.wait_for(asyncio.wrap_future(found), 20)).reason
print(asyncio.run(prepared(calls[2], member(others))))
"""


# In CI, tests/service/dispatch/test_kinds.py has workers without a kind.
@pytest.mark.soak
def test_a_worker_without_rows_of_a_package_is_not_given_what_needs_them(site: Path) -> None:
    needed, may, lacks, refused = run(_NEEDED, site).splitlines()
    assert json.loads(needed) == [[[], []], [["activation:toy_relu2", "dtype:e5m2"], []], [[], ["raster:spiral"]]]
    assert json.loads(may) == [[True, True, True], [True, False, False], [True, False, False]]
    assert lacks == "the activation toy_relu2 and the dtype e5m2"
    assert refused.startswith("the worker of GPU-1 lacks the raster spiral: install the package that provides it there")
