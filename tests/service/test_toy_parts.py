"""A package's epilogue parts, from POST /jobs to a fetched kernel and a pack of it."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.toys import Toys, run

UP = {"name": "up", "source": "x", "n": 512, "k": 256, "gated": True, "activation": "silu"}
DOWN = {"name": "down", "source": "up", "n": 256, "k": 512, "residual": "x"}
CHAIN: dict[str, Any] = {
    "m": 16,
    "ops": [
        {**UP, "epilogue": [{"part": "column_scale"}]},
        {**DOWN, "epilogue": [{"part": "outer"}, {"part": "softcap", "cap": 30}]},
    ],
}

_COMPILE = """
import sys
from pathlib import Path
from tests.support.compiled import compile_source
from tuner.workers.builder.nvrtc import parse_log
from tuner.workers.source.tools import tools_source
for source in (Path(sys.argv[1]).read_text(), tools_source("sm_90a")):
    cubin, log = compile_source(source, "sm_90a")
    assert cubin[:4] == b"\\x7fELF"
    print(parse_log(log).spill_bytes, b"tuner_softcap_fp16" in cubin, b"tuner_column_scale_bf16" in cubin)
"""
_PACK = """
import sys
import zipfile
from pathlib import Path
from tests.support.packs import ladder
from tuner.packs.contents import Kernel
from tuner.packs.read import read_pack
from tuner.packs.write import write_pack
with zipfile.ZipFile(sys.argv[1]) as found:
    kernel = Kernel(files={name: found.read(name) for name in found.namelist()})
write_pack((ladder(kernel),), Path(sys.argv[2]))
pack = read_pack(Path(sys.argv[2]).read_bytes())
print([section for section in ("shapes", "chains") if pack.section(section)])
"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toys]:
    found = Toys("parts", folder=tmp_path_factory.mktemp("toys"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def job(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job that has ended."""
    chain = tmp_path_factory.mktemp("asked") / "chain.json"
    chain.write_text(json.dumps(CHAIN))
    toys.client("submit", "--chain", str(chain), "--trials", "16", "--watch", "--json")
    (found,) = [json.loads(line) for line in toys.client("jobs", "--json").splitlines()]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def fetched(toys: Toys, job: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fetched") / "best.zip"
    whatever = ("--even-if-slower", "--accept-unfused", "--elsewhere")
    toys.client("fetch", "best", "--job", job["id"], *whatever, "-o", str(path))
    return path


@pytest.mark.slow
def test_a_job_with_parts_of_a_package_is_searched_proven_and_ends(toys: Toys, job: dict[str, Any]) -> None:
    assert job["state"] == "succeeded"
    said = [part for op in job["pair"]["ops"] for part in op["epilogue"]]
    first, *others = said
    assert first == {"part": "column_scale", "cap": None}
    assert others == [{"part": "outer", "cap": None}, {"part": "softcap", "cap": 30.0}]
    trials = [json.loads(line) for line in toys.client("trials", job["id"], "--json").splitlines()]
    ours = [trial for trial in trials if trial["candidate"]["schedule"] and trial["outcome"]["kind"] == "measured"]
    assert len(ours) >= 6


def test_a_fetched_kernel_has_the_parts_text_and_their_tensors_and_compiles(
    toys: Toys, fetched: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(fetched) as found:
        manifest, source = json.loads(found.read("manifest.json")), found.read("kernel.cu").decode()
    assert "x = Softcap{30.0f}(x, " in source
    assert "x = ColumnScale{static_cast<const float*>(op.parts[0])}(x, " in source
    tensors = {one["name"]: one for one in manifest["tensors"]}
    assert (tensors["up.column_scale_factors"]["shape"], tensors["up.column_scale_factors"]["dtype"]) == (
        [1024],
        "fp32",
    )
    both = [tensors[f"down.outer_{name}"] for name in ("columns", "rows")]
    assert [(one["shape"], one["dtype"]) for one in both] == [([256], "fp32"), ([16, 1], "fp16")]
    assert "Outer{static_cast<const float*>(op.parts[0]), static_cast<const Element::Bits*>(op.parts[1])}(x" in source
    (pointer,) = [one for one in manifest["parameter"]["fields"] if one["name"] == "up.column_scale_factors"]
    assert (pointer["type"], pointer["tensor"]) == ("pointer", "up.column_scale_factors")
    kernel = tmp_path / "kernel.cu"
    kernel.write_text(source)
    assert toys.python(_COMPILE, str(kernel)).splitlines() == ["0 False False", "0 True True"]


def test_a_kernel_with_parts_of_a_package_goes_into_a_pack(toys: Toys, fetched: Path, tmp_path: Path) -> None:
    assert toys.python(_PACK, str(fetched), str(tmp_path / "model.tunerpack")).strip() == "['chains']"


@pytest.mark.parametrize(
    ("epilogue", "said"),
    [
        ([{"part": "softcat"}], "softcat"),
        ([{"part": "softcap"}], "ops.0.epilogue.0.cap|up.epilogue.0.cap"),
        ([{"part": "softcap", "cap": -1}], "up.epilogue.0: has a cap of -1.0"),
        ([{"part": "softcap", "cap": 1}, {"part": "softcap", "cap": 2}], "softcap occurs twice"),
        ([{"part": "softcap", "cap": "much"}], "use a number"),
    ],
)
def test_what_is_wrong_with_a_part_is_told(toys: Toys, epilogue: list[Any], said: str, tmp_path: Path) -> None:
    chain = tmp_path / "chain.json"
    chain.write_text(json.dumps({"m": 4, "ops": [{**UP, "epilogue": epilogue}]}))
    refused = toys.refused("submit", "--chain", str(chain))
    assert any(one in refused for one in said.split("|")), refused


@pytest.mark.slow
def test_a_server_whose_package_was_removed_keeps_the_job_and_says_what_it_lacks(
    toys: Toys, job: dict[str, Any]
) -> None:
    """This is the last test of this server."""
    toys.remove()
    (found,) = [json.loads(line) for line in toys.client("jobs", "--json").splitlines()]
    assert (found["id"], found["state"]) == (job["id"], "succeeded")
    assert found["pair"]["kind"] == "unknown"
    assert found["pair"]["unknown_kinds"] == ["epilogue:column_scale", "epilogue:outer"]
    assert found["pair"]["ops"][1]["epilogue"] == [{"part": "outer"}, {"part": "softcap", "cap": 30.0}]


def test_a_server_without_the_package_refuses_its_parts() -> None:
    program = """
from tuner.core.problem.epilogue.added import parts_from_json
from tuner.errors import InvalidInput
try:
    parts_from_json([{"part": "softcap", "cap": 30}])
except InvalidInput as error:
    print(error)
"""
    said = run(program).strip()
    assert "epilogue.0.part: is 'softcap', which no installed package provides" in said
    assert "install the package that provides it" in said
