"""Packages add element types and activations; one that is broken adds nothing, and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.toys import install, run
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
asked = {name: why(Dtype, name) for name in ("absent", "nothing", "low", "int32", "twin", "good", "never")}
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
    assert dtypes == ["fp16", "bf16", "fp8_e4m3", "good", "e5m2", "single"]
    assert elements == [*dtypes, "fp32", "int32", "uint8"]
    assert activations == ["identity", "relu", "gelu", "silu", "relu2"]


def test_a_row_that_cannot_be_used_says_why_and_stops_nothing(site: Path) -> None:
    _, _, _, asked, relu = json.loads(run(_ASK, site).splitlines()[0])
    assert "cannot be imported: ModuleNotFoundError" in asked["absent"]
    assert "is a int, not a OperandRow" in asked["nothing"]
    assert "its number is 9; those of packages begin at 128" in asked["low"]
    assert "another row is also called int32" in asked["int32"]
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
    assert snake == 4, "the name is the program's"
    assert sentence == "in panels of 2 tile columns, every other one first"


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


def test_a_package_changes_the_kernel_version_of_those_alone_who_name_its_rows(site: Path) -> None:
    (without, plain) = json.loads(run(_VERSIONS % [("fp16", "silu")]))
    assert without == plain
    asked = [("fp16", "silu"), ("fp16", "relu2"), ("e5m2", "silu"), ("e5m2", "relu2"), ("single", "silu")]
    version, *others = json.loads(run(_VERSIONS % asked, site))
    assert version == without == others[0]
    assert len(set(others)) == len(asked)
