"""A pack records how weights are stored: a request for plain elements never gets a kernel for codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from tests.support.broken_packs import Broken, refusal_by_c
from tests.support.converted import TILINGS, pair
from tests.support.native.recorder import Recorder
from tests.support.packs import ladder, make
from tuner.client.cli import main
from tuner.core.problem.workload import Workload, WorkloadKind
from tuner.errors import InvalidInput
from tuner.ops.gemm.quantised import Scheme
from tuner.packs.read import read_pack
from tuner.packs.shapes import shape_of
from tuner.packs.write import pack_bytes

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "workers" / "builder" / "manifest.schema.json").read_text())
#: The position of the change in a record of weights.
OPERAND, FORMAT, BITS, K, GROUP, ZEROS = 0, 4, 16, 20, 24, 28


def without(workload: Workload) -> Workload:
    """The same workload with plain elements."""
    return replace(workload, ops=tuple(replace(op, weights=None) for op in workload.tile_ops))


@pytest.mark.parametrize("scheme", [Scheme.W8A16, Scheme.INT4])
def test_a_manifest_has_weights_as_they_are_stored(scheme: Scheme) -> None:
    name, workload = "int4" if scheme is Scheme.INT4 else "e4m3", pair(scheme)
    manifest = make(tiling=TILINGS[name][1], workload=workload).kernel.manifest
    tensors = {one["name"]: one for one in manifest["tensors"]}
    assert scheme.row.weights is not None
    for op in workload.tile_ops:
        found = tensors[f"{op.name}.w"]
        assert (found["dtype"], found["shape"]) == (
            "uint8",
            [op.weight_rows, scheme.row.weights.row.row_bytes(op.k)],
        )
        row, group = scheme.row.weights.row, 128 if scheme is Scheme.INT4 else 0
        said = {"format": row.name, "layout": row.layout, "bits": row.bits, "k": op.k, "group": group}
        assert found["stored"] == {**said, "factors": "bf16" if group else "", "has_zeros": False}
        jsonschema.validate(found, {**SCHEMA["$defs"]["tensor"], "$defs": SCHEMA["$defs"]})
    shape = shape_of(manifest["workload"])
    assert shape != shape_of(without(workload).to_json())
    assert str(shape) == f"bf16 512 -> up 1024 gated silu {row.name} -> down 512 {row.name}"


def test_an_ffn_of_a_pack_has_no_place_for_them() -> None:
    workload = replace(pair(Scheme.INT4), kind=WorkloadKind.FFN)
    with pytest.raises(InvalidInput, match="has weights, which an FFN in a pack cannot have there"):
        shape_of(workload.to_json())


@pytest.fixture(scope="module")
def packed() -> bytes:
    """Weights of 4 bits with zero points, in groups."""
    workload = pair(Scheme.INT4_ZP)
    return pack_bytes([ladder(make(tiling=TILINGS["int4, zero points"][1], workload=workload).kernel)])


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Recorder:
    return Recorder(tmp_path_factory.mktemp("runtime"))


def test_a_pack_is_shown_with_formats_and_layouts_of_weights(packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tunerpack"
    path.write_bytes(packed)
    asked = CliRunner().invoke(main, ["show", str(path)], env={"COLUMNS": "200"})
    said = "up.w, down.w: int4_g128_zp (4 bits, a bf16 factor for 128 of a row, zero points), layout turned_by_256"
    assert said in " ".join(asked.stdout.split())
    asked = CliRunner().invoke(main, ["show", "--json", str(path)])
    assert [json.loads(line)["weights"] for line in asked.stdout.splitlines()] == [[said], []]


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (OPERAND, 5, "its operand is out of order or out of range"),
        (OPERAND, 0, "its operand is not a matrix of bytes"),
        (FORMAT, 1 << 20, "a string lies outside the string table"),
        (BITS, 9, "a number is out of range"),
        (BITS, 8, "its codes do not fit into its operand"),
        (K, 1 << 20, "its codes do not fit into its operand"),
        (K, 500, "a number is out of range"),
        (GROUP, 0, "a number is out of range"),
        (ZEROS, 2, "a number is out of range"),
    ],
)
def test_an_index_that_says_something_else_of_weights_is_refused(
    recorder: Recorder, packed: bytes, tmp_path: Path, offset: int, value: int, says: str
) -> None:
    broken = Broken(packed)
    assert broken.count("weights") == 2
    broken.put("weights", 0, offset, value)
    path = tmp_path / "a.tunerpack"
    assert refusal_by_c(recorder, broken.bytes(), path) == f"weights 0 of the pack's index: {says} ({path})"
    with pytest.raises(InvalidInput, match=r"pack.bin that contradicts pack.json and the manifests|is not of a pack"):
        read_pack(broken.summed())
