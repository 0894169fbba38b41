"""Packages add element types and activations; one that is broken adds nothing, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.toys import install, run

_ASK = """
import json
from tuner.core.problem.activation import Activation
from tuner.core.problem.dtype import ELEMENTS, Dtype
def why(table, name):
    try:
        return str(table(name))
    except ValueError as error:
        return str(error)
asked = {name: why(Dtype, name) for name in ("absent", "nothing", "low", "int32", "twin", "good", "never")}
print(json.dumps([list(Dtype), list(ELEMENTS), list(Activation), asked, Activation.RELU.row.number]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install("broken_rows", install("rows", tmp_path_factory.mktemp("site")))


def test_installed_rows_are_members_of_their_tables(site: Path) -> None:
    dtypes, elements, activations, _, _ = json.loads(run(_ASK, site))
    assert dtypes == ["fp16", "bf16", "fp8_e4m3", "good", "e5m2", "single"]
    assert elements == [*dtypes, "fp32", "int32", "uint8"]
    assert activations == ["identity", "relu", "gelu", "silu", "relu2"]


def test_a_row_that_cannot_be_used_says_why_and_stops_nothing(site: Path) -> None:
    _, _, _, asked, relu = json.loads(run(_ASK, site))
    assert "cannot be imported: ModuleNotFoundError" in asked["absent"]
    assert "is a int, not a OperandRow" in asked["nothing"]
    assert "its number is 9; those of packages begin at 128" in asked["low"]
    assert "another row is also called int32" in asked["int32"]
    assert "its number 141 is already used by good" in asked["twin"]
    assert asked["good"] == "good"
    assert asked["never"] == "'never' is not a valid Dtype"
    assert relu == 1


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
