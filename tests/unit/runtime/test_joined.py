"""A kernel that computes two convolutions as one op, as an artifact and in a pack: its tensors are those of others."""

from __future__ import annotations

import ctypes
import json
import struct
from pathlib import Path

import jsonschema
import pytest

from tests.support.cases import H200
from tests.support.conv_pairs import ASKED
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.on_card import problem
from tests.support.packs import make
from tests.support.repository import ROOT
from tests.unit.runtime.test_artifact import tensors_of
from tuner.core.problem.asked import workload_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.space.joint import any_space_of
from tuner.core.trial.evaluator import Environment
from tuner.ops.conv.pair.schedule import ConvPairSchedule
from tuner.packs.contents import Kernel
from tuner.packs.ladder import Found, make_entry
from tuner.packs.programs import program_of
from tuner.packs.write import write_pack
from tuner.runtime import Artifact, RuntimeFailure
from tuner.runtime.binding import native
from tuner.search.joined import joined_guesses
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.builder.prepare import prepare
from tuner.workers.host.try_kernels import problem_of, work_of
from tuner.workers.source.launchable import LaunchRefused

STREAM = 0x99
PAIR = workload_of({**ASKED, "residual": True})
CANDIDATE = Candidate(plan_kind=PlanKind.JOINED, schedule=Schedule(ops=(ConvPairSchedule(rows=4, columns=14),)))
#: Operands of every kernel of the workload, in the manifest's order.
NAMES = ["x", "first.w", "first.bias", "second.w", "second.bias", "shortcut", "second"]


BOTTLENECK = workload_of({"kind": "network-convs", "network": "resnet50", "stage": 1, "run": "block", "images": 1})


def files_of(folder: Path, workload: Workload, candidate: Candidate) -> dict[str, bytes]:
    """The artifact of a candidate, built for an H200."""
    builder = Builder(folder)
    try:
        ready = prepare(workload, H200, candidate, builder, {})
    finally:
        builder.close()
    assert ready.work.plan_kind is PlanKind.JOINED
    own = own_kernels(workload, H200, candidate, ready.work.own)
    here = Environment(gpu_name="NVIDIA H200", simulated=False, cuda="13.0")
    given = (problem(workload), candidate, ready.plans, ready.source, ready.work.shared, here, {}, 55)
    return dict(assemble(*given, own=own).files)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The artifact of the pair."""
    return files_of(tmp_path_factory.mktemp("builds"), PAIR, CANDIDATE)


def pair_args(at: dict[str, int], num_tiles: int) -> bytes:
    """`ConvPairArgs`."""
    *others, added, out = (at[name] for name in NAMES)
    return struct.pack("<6Qi4xQ", *others, out, num_tiles, added)


# In CI, tests/service/api/test_chains.py ends with a kernel of two convolutions.
@pytest.mark.soak
def test_a_manifest_has_the_workload_that_was_asked_for_and_its_tensors(files: dict[str, bytes]) -> None:
    assert "kernel.cu" not in files
    manifest = json.loads(files["manifest.json"])
    schema = json.loads((ROOT / "workers/builder/manifest.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(manifest)
    assert (manifest["plan_kind"], manifest["workload_digest"]) == ("joined", PAIR.digest)
    assert manifest["workload"] == json.loads(json.dumps(PAIR.to_json()))
    assert manifest["joined"] == {"second": ["first", "second"]}
    schedule = next(iter(any_space_of(PAIR, H200)))
    other = make(PlanKind.FUSED, schedule.tiling, workload=PAIR).kernel.manifest
    assert manifest["tensors"] == [one for one in other["tensors"] if one["role"] != "intermediate"]
    assert manifest["rows"] == other["rows"]
    assert [one["name"] for one in manifest["tensors"]] == NAMES
    assert manifest["launches"] == []
    assert manifest["launch_order"] == [{"list": "own_launches", "index": 0}]
    (recipe,) = manifest["own_launches"]
    assert recipe["programmatic_dependent_launch"]


def test_an_artifact_hands_the_kernel_its_struct(
    recorder: Recorder, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    artifact = Artifact(files)
    given = tensors_of(artifact)
    assert list(given) == NAMES
    launches = artifact.bind(given)
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(64)
    launches._launches[0].enqueue(STREAM)
    [call] = recorder.calls("cuLaunchKernelEx")
    assert call.parameter == pair_args({name: one.address for name, one in given.items()}, 56)
    manifest = json.loads(files["manifest.json"])
    del manifest["joined"]
    with pytest.raises(RuntimeFailure, match="no launch of it"):
        Artifact({**files, "manifest.json": json.dumps(manifest).encode()})


def test_a_fetched_kernel_is_proven_again_or_refused(files: dict[str, bytes]) -> None:
    work = work_of(files, H200)
    (one,) = work.own
    one.check()
    manifest = json.loads(files["manifest.json"])
    assert (work.plan_kind, one.cubin) == (PlanKind.JOINED, files["op0.cubin"])
    assert problem_of(manifest).workload == PAIR
    manifest["own_launches"][0]["proof"] = "0" * 64
    with pytest.raises(LaunchRefused, match="not those that are proven"):
        work_of({**files, "manifest.json": json.dumps(manifest).encode()}, H200)


def test_a_pack_hands_the_kernel_its_struct_by_c(recorder: Recorder, tmp_path: Path, files: dict[str, bytes]) -> None:
    kernel, rows_of_it = Kernel(files=files), max(op.m for op in PAIR.ops)
    found = Found(m=rows_of_it, kernel=kernel, speedup=1.5, interval=(1.4, 1.6), time_us=2.0)
    write_pack([make_entry(kernel.shape, [found])], tmp_path / "a.tunerpack")
    assert [one.name for one in program_of(kernel).operands] == NAMES
    c, pack, layer, choice = recorder.runtime, ctypes.c_void_p(), ctypes.c_void_p(), native.AttentionChoice()
    native.checked(c, c.tuner_pack_open(str(tmp_path / "a.tunerpack").encode(), ctypes.byref(pack)))
    try:
        native.checked(c, c.tuner_layer_find(pack, 0, rows_of_it, 0, ctypes.byref(choice)))
        memory = DeviceMemory(choice.memory_bytes)
        native.checked(c, c.tuner_layer_prepare(pack, choice, memory.address, 0x77, 4, ctypes.byref(layer)))
        at = {name: 0x10000 * (1 + place) for place, name in enumerate(NAMES)}
        addresses = (ctypes.c_void_p * len(at))(*at.values())
        given = native.LayerTensors(addresses=addresses, num_addresses=len(at), num_pages=0)
        recorder.clear()
        recorder.cuda.fake_parameter_bytes(64)
        native.checked(c, c.tuner_layer_launch(layer, given, STREAM, 0))
        [call] = recorder.calls("cuLaunchKernelEx")
        assert call.parameter == pair_args(at, 56)
        c.tuner_layer_release(layer)
    finally:
        c.tuner_pack_close(pack)


def test_a_chain_hands_the_kernel_the_images_of_the_op_before_it(tmp_path: Path) -> None:
    joined = next(joined_guesses(any_space_of(BOTTLENECK, H200), 0))
    files = files_of(tmp_path, BOTTLENECK, joined)
    manifest = json.loads(files["manifest.json"])
    assert manifest["joined"] == {"conv3": ["conv2", "conv3"]}
    weights = [f"conv{number}.{what}" for number in (1, 2, 3) for what in ("w", "bias")]
    assert [one["name"] for one in manifest["tensors"] if one["role"] == "intermediate"] == ["conv1"]
    program = program_of(Kernel(files=files))
    names = [one.name for one in program.operands]
    assert names == ["x", *weights, "conv3"]
    first, second = (
        {one.offset: (names[one.tensor] if isinstance(one.tensor, int) else one.tensor) for one in part.patches}
        for part in program.parts
    )
    between = [one.addend for part in program.parts for one in part.patches if one.tensor == "memory"]
    assert between[-1] in between[:-1]  # the images between both launches
    assert {"x", "conv1.w", "conv1.bias"} <= {*first.values()}
    assert [*second.values()] == ["memory", *weights[2:], "conv3", "x"]
    assert [len(work_of(files, H200).launchables), len(work_of(files, H200).own)] == [2, 1]
