"""An op of another package in an artifact and in a pack: the driver gets the right calls without that package."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support import toys
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.repository import ROOT
from tests.support.toy_artifacts import made
from tests.unit.runtime.test_artifact import tensors_of
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.packs.ladder import Found, make_entry
from tuner.packs.read import read_pack
from tuner.packs.write import write_pack
from tuner.runtime import Artifact, RuntimeFailure
from tuner.runtime.binding import native

#: Each artifact is made by a process with the package.
pytestmark = pytest.mark.slow

GATHER = {"op": "gather", "name": "embed", "m": 16, "n": 512, "table_rows": 4096}
UP = {"name": "up", "source": "embed", "m": 16, "n": 256, "k": 512, "activation": "identity", "bias": False}
STREAM = 0x99
SCHEMA = json.loads((ROOT / "workers" / "builder" / "manifest.schema.json").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.install("gather", tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def chain(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return made(site, tmp_path_factory.mktemp("chain"), [GATHER, UP], kind="two_launches")


@pytest.fixture(scope="module")
def alone(site: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return made(site, tmp_path_factory.mktemp("alone"), [GATHER], kind="two_launches")


@pytest.fixture
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))


def gather_args(x: int, table: int, rows: int, count: int, out: int) -> bytes:
    """`GatherArgs` of the toy's source."""
    return struct.pack("<5Qi4x", x, table, rows, count, out, 16)


# In CI, tests/unit/workers/builder/test_own_tensors.py has what is said of tensors and of launches.
@pytest.mark.soak
def test_a_manifest_names_all_that_a_launch_is_given(chain: dict[str, bytes], alone: dict[str, bytes]) -> None:
    for files in (chain, alone):
        manifest = json.loads(files["manifest.json"])
        jsonschema.Draft202012Validator(SCHEMA).validate(manifest)
        (recipe,) = manifest["own_launches"]
        assert (manifest["format"], recipe["kernel"]["name"], recipe["op"]) == (6, "gather", "embed")
        fields = {field["name"]: (field["offset"], field.get("tensor")) for field in recipe["parameter"]["fields"]}
        tensors = ["x", "embed.table", "embed.rows", "embed.count", "embed"]
        assert fields == {
            name: (8 * index, tensor)
            for index, (name, tensor) in enumerate(zip(["x", "table", "rows", "count", "out"], tensors, strict=True))
        } | {"m": (40, None)}
    manifest = json.loads(chain["manifest.json"])
    roles = {one["name"]: (one["role"], one["dtype"], one.get("range")) for one in manifest["tensors"]}
    assert roles["embed.count"] == ("input", "int32", [0, 16])
    assert roles["embed"] == ("intermediate", "bf16", None)
    assert roles["up.w"] == ("weight", "bf16", None)
    assert manifest["launch_order"] == [{"list": "own_launches", "index": 0}, {"list": "launches", "index": 0}]


@pytest.mark.usefixtures("_on_the_recorder")
def test_an_artifact_hands_the_kernel_its_struct(recorder: Recorder, chain: dict[str, bytes]) -> None:
    artifact = Artifact(chain)
    given = tensors_of(artifact)
    launches = artifact.bind(given)
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(48)
    launches._launches[0].enqueue(STREAM)
    [call] = recorder.calls("cuLaunchKernelEx")
    at = {name: one.address for name, one in given.items()}
    between = artifact._memory["embed"]
    assert call.parameter == gather_args(at["x"], at["embed.table"], at["embed.rows"], at["embed.count"], between)
    assert not artifact.aborted()
    artifact.reset()


def test_a_pack_hands_the_kernel_its_struct_by_c(recorder: Recorder, tmp_path: Path, chain: dict[str, bytes]) -> None:
    kernel = Kernel(files=chain)
    entry = make_entry(kernel.shape, [Found(m=16, kernel=kernel, speedup=1.5, interval=(1.4, 1.6), time_us=2.0)])
    assert [(rung.m_lo, rung.m_hi) for rung in entry.rungs] == [(16, 16)], "it serves these rows alone"
    write_pack([entry], tmp_path / "a.tunerpack")
    assert read_pack((tmp_path / "a.tunerpack").read_bytes()).entries[0].shape == kernel.shape
    c, pack, layer, choice = recorder.runtime, ctypes.c_void_p(), ctypes.c_void_p(), native.AttentionChoice()
    checked: Callable[[int], int] = lambda status: native.checked(c, status)  # noqa: E731
    checked(c.tuner_pack_open(str(tmp_path / "a.tunerpack").encode(), ctypes.byref(pack)))
    assert c.tuner_layer_find(pack, 0, 15, 0, ctypes.byref(choice)) == native.NONE
    checked(c.tuner_layer_find(pack, 0, 16, 0, ctypes.byref(choice)))
    memory = DeviceMemory(choice.memory_bytes)
    checked(c.tuner_layer_prepare(pack, choice, memory.address, 0x77, 4, ctypes.byref(layer)))
    names, tensor = [], native.LayerTensor()
    while c.tuner_layer_tensor_at(pack, ctypes.byref(choice), len(names), ctypes.byref(tensor)) == native.OK:
        names.append(tensor.name.decode())
    assert names == ["x", "embed.table", "embed.rows", "embed.count", "up.w", "up"]
    addresses = [0x10000 * (1 + index) for index in range(len(names))]
    given = native.LayerTensors(
        addresses=(ctypes.c_void_p * len(addresses))(*addresses), num_addresses=len(addresses), num_pages=0
    )
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(48)
    checked(c.tuner_layer_launch(layer, given, STREAM, 0))
    first, _ = recorder.calls("cuLaunchKernelEx")
    at = dict(zip(names, addresses, strict=True))
    between = int.from_bytes(first.parameter[32:40], "little")
    assert memory.address <= between < memory.address + choice.memory_bytes
    assert first.parameter == gather_args(at["x"], at["embed.table"], at["embed.rows"], at["embed.count"], between)
    c.tuner_layer_release(layer)
    c.tuner_pack_close(pack)


def changed(files: dict[str, bytes], change: Callable[[Any], None]) -> dict[str, bytes]:
    manifest = json.loads(files["manifest.json"])
    change(manifest["own_launches"][0])
    return {**files, "manifest.json": json.dumps(manifest).encode()}


WRONG: dict[str, tuple[Callable[[Any], None], str]] = {
    "too many CTAs": (lambda one: one.update(grid=[2**21, 1, 1]), r"own_launches\[0\].grid"),
    "a grid along y": (lambda one: one.update(grid=[4, 2, 1]), r"own_launches\[0\].grid"),
    "no threads": (lambda one: one.update(block=[0, 1, 1]), r"own_launches\[0\].block"),
    "a field behind the struct": (lambda one: one["parameter"]["fields"][0].update(offset=48), "offset"),
    "a tensor that is not there": (lambda one: one["parameter"]["fields"][0].update(tensor="y"), "tensor"),
    "a room without a workspace": (lambda one: one["parameter"]["fields"][0].update(room=0), "room"),
    "more zeros than room": (lambda one: one["workspace"].update(zero_bytes=8), "zero_bytes"),
    "both ways to launch": (
        lambda one: one.update(cooperative=True, programmatic_dependent_launch=True),
        "a launch cannot be both",
    ),
}


@pytest.mark.usefixtures("_on_the_recorder")
@pytest.mark.parametrize("what", WRONG)
def test_a_recipe_that_cannot_be_is_refused_with_its_field(alone: dict[str, bytes], what: str) -> None:
    change, says = WRONG[what]
    files = changed(alone, change)
    with pytest.raises(RuntimeFailure, match=says):
        Artifact(files)
    entry = Entry(shape=Kernel(files=files).shape, rungs=(Rung(m_lo=16, m_hi=16, kernel=Kernel(files=files)),))
    with pytest.raises(Exception, match=says):
        write_pack([entry], Path("/nowhere"))


@pytest.mark.usefixtures("_on_the_recorder")
def test_an_artifact_without_the_ops_launch_is_refused(alone: dict[str, bytes]) -> None:
    manifest = json.loads(alone["manifest.json"])
    del manifest["own_launches"]
    with pytest.raises(RuntimeFailure, match="has an op 'gather', but no launch of it"):
        Artifact({**alone, "manifest.json": json.dumps(manifest).encode()})


@pytest.mark.slow
def test_an_op_with_a_field_k_is_no_product(chain: dict[str, bytes]) -> None:
    manifest = json.loads(chain["manifest.json"])
    manifest["workload"]["ops"][0]["k"] = 8
    kernel = replace(Kernel(files=chain), files={**chain, "manifest.json": json.dumps(manifest).encode()})
    assert (kernel.shape.section, kernel.shape.has_fixed_rows) == ("chains", True)


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.install("strangers", tmp_path_factory.mktemp("strangers"))


# In CI, tests/unit/workers/builder/test_own_tensors.py has two launches.
@pytest.mark.soak
@pytest.mark.usefixtures("_on_the_recorder")
def test_an_op_of_two_launches_has_one_workspace_and_three_outputs(
    recorder: Recorder, tmp_path: Path, strangers: Path
) -> None:
    op = {"op": "absmax", "name": "it", "m": 4, "n": 64}
    artifact = Artifact(made(strangers, tmp_path, [op], dtype="fp16", kind="two_launches"))
    roles = {name: (one["role"], one["dtype"]) for name, one in artifact.tensors.items()}
    others = {"it.scale": ("output", "fp32"), "it.negated": ("output", "fp16")}
    assert roles == {"x": ("input", "fp16"), **others, "it": ("output", "fp16")}
    given = tensors_of(artifact)
    launches = artifact.bind(given)
    recorder.clear()
    for launch, size in zip(launches._launches, (24, 48), strict=True):
        recorder.cuda.fake_parameter_bytes(size)
        launch.enqueue(STREAM)
    parts, scale = recorder.calls("cuLaunchKernelEx")
    at = {name: one.address for name, one in given.items()}
    x, workspace, columns = struct.unpack("<2Qi4x", parts.parameter)
    assert (x, columns) == (at["x"], 64)
    assert workspace == artifact._own[0]._workspace
    outputs = (at["it.scale"], at["it.negated"], at["it"])
    assert scale.parameter == struct.pack("<i4x5Q", 1, at["x"], workspace, *outputs)


# In CI, tests/unit/workers/builder/test_own_tensors.py has two launches.
@pytest.mark.soak
@pytest.mark.usefixtures("_on_the_recorder")
def test_what_is_kept_may_be_written_and_what_the_plan_has_lies_on_the_device(
    recorder: Recorder, tmp_path: Path, strangers: Path
) -> None:
    files = made(strangers, tmp_path, [{"op": "tally", "name": "it", "m": 4, "k": 64}], kind="two_launches_pdl")
    artifact = Artifact(files)
    assert struct.unpack("<4i", files["op0_0_rows.bin"]) == (3, 2, 1, 0)
    assert artifact.tensors["it.state"]["written"] is True
    given = tensors_of(artifact)
    launches = artifact.bind(given)
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(48)
    launches._launches[0].enqueue(STREAM)
    [call] = recorder.calls("cuLaunchKernelEx")
    at = {name: one.address for name, one in given.items()}
    x, state, count, rows, out, half = struct.unpack("<5Qf4x", call.parameter)
    assert (x, state, count, out, half) == (at["x"], at["it.state"], at["it.count"], at["it"], 0.5)
    assert ctypes.string_at(rows, 16) == files["op0_0_rows.bin"], "the recorder's device is the host"
    assert call.attribute is not None, "it waits for the launch in front of it itself, so it may begin early"
    kernel = Kernel(files=files)
    assert (kernel.shape.section, kernel.shape.name) == ("chains", kernel.shape.name)
    write_pack([Entry(shape=kernel.shape, rungs=(Rung(m_lo=4, m_hi=4, kernel=kernel),))], tmp_path / "a.tunerpack")
    c, pack, choice = recorder.runtime, ctypes.c_void_p(), native.AttentionChoice()
    native.checked(c, c.tuner_pack_open(str(tmp_path / "a.tunerpack").encode(), ctypes.byref(pack)))
    assert c.tuner_layer_find(pack, 0, 4, 0, ctypes.byref(choice)) == native.OK
    c.tuner_pack_close(pack)
