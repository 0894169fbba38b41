"""An artifact's launches in Python: fresh memory without the null stream, residency, partially enqueued calls,
resets."""

from __future__ import annotations

import ctypes
import hashlib
import json
import struct

import numpy as np
import pytest

from tests.support.cases import wgmma
from tests.support.chains import block
from tests.support.native.recorder import Recorder
from tests.support.packs import make
from tests.unit.runtime.test_artifact import COOPERATIVE, PROGRAMMATIC, STREAM, attention_alone, chain, tensors_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.gemm.pairs import ffn_pair
from tuner.runtime import Artifact, Launches, RuntimeFailure
from tuner.runtime.binding.native import NEEDS_RESET

#: The position of the stream in a call.
STREAM_PLACES = {"cuMemsetD8Async": 3, "cuMemcpyHtoDAsync_v2": 2, "cuMemcpyDtoHAsync_v2": 2, "cuStreamSynchronize": 0}
NULL_STREAM_CALLS = {"cuMemsetD8_v2", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"}


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))


def bound(kind: PlanKind) -> tuple[Artifact, Launches]:
    made, _ = chain(kind, block(16))
    artifact = Artifact(made.files)
    return artifact, artifact.bind(tensors_of(artifact))


def grids(artifact: Artifact) -> list[int]:
    return [launch["grid"][0] for launch in artifact.manifest["launches"] if launch["needs_all_ctas"]]


def test_memory_is_zeroed_and_filled_on_a_stream_that_has_ended_before_a_launch(recorder: Recorder) -> None:
    for made in (chain(PlanKind.RUNS, block(16))[0], attention_alone()[0]):
        recorder.clear()
        artifact = Artifact(made.files)
        artifact.bind(tensors_of(artifact))
        artifact.aborted(), artifact.refused(), artifact.forget_refused(), artifact.reset()
        calls = recorder.calls()
        names = {call.name for call in calls}
        assert names >= STREAM_PLACES.keys()
        assert not names & NULL_STREAM_CALLS
        pending: set[int] = set()
        for call in calls:
            if call.name in STREAM_PLACES:
                stream = call.values[STREAM_PLACES[call.name]]
                assert stream != 0
                (pending.discard if call.name == "cuStreamSynchronize" else pending.add)(stream)
        assert not pending
        assert len(recorder.calls("cuStreamCreate")) == len(recorder.calls("cuStreamDestroy_v2"))
        assert {call.values[0] for call in recorder.calls("cuStreamCreate")} == {1}  # non-blocking


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_what_follows_launches_that_were_enqueued_in_part_is_refused_until_the_reset(
    recorder: Recorder, behind: int
) -> None:
    artifact, launches = bound(PlanKind.N_LAUNCHES_PDL)
    others = artifact.bind(tensors_of(artifact)).without_arrays()
    recorder.fail("cuLaunchKernelEx", 719, behind=behind)
    with pytest.raises(RuntimeFailure, match=rf"\(719\); {behind} of 4 launches were enqueued: reset the artifact"):
        launches.enqueue(STREAM)
    recorder.clear()
    for refused in (launches, others):
        with pytest.raises(RuntimeFailure, match="reset the artifact first") as caught:
            refused.enqueue(STREAM)
        assert caught.value.status == NEEDS_RESET
    assert recorder.calls() == []
    artifact.reset()
    others.enqueue(STREAM)
    assert len(recorder.calls("cuLaunchKernelEx")) == 4


def test_a_first_launch_that_fails_leaves_nothing_to_reset(recorder: Recorder) -> None:
    _, launches = bound(PlanKind.N_LAUNCHES)
    recorder.fail("cuLaunchKernelEx", 719)
    with pytest.raises(RuntimeFailure, match=r"\(719\)$"):
        launches.enqueue(STREAM)
    recorder.clear()
    launches.enqueue(STREAM)


def test_an_abort_is_over_after_the_reset_and_all_counters_are_as_new() -> None:
    artifact, _ = bound(PlanKind.RUNS)
    assert artifact._products is not None
    spaces = {one["workspace"]["index"]: one["workspace"] for one in artifact.manifest["launches"]}
    assert len(spaces) > 1
    for index, space in spaces.items():
        at = artifact._products._workspaces[index]
        ctypes.memset(at, 1, space["zero_bytes"])
        assert artifact.aborted()
    artifact.reset()
    assert not artifact.aborted()
    for index, space in spaces.items():
        at = artifact._products._workspaces[index]
        assert ctypes.string_at(at, space["zero_bytes"]) == bytes(space["zero_bytes"])


def test_an_attentions_counters_and_refusals_are_as_new_after_the_reset() -> None:
    artifact = Artifact(attention_alone()[0].files)
    (one,) = artifact._of_caches
    at, size = one._workspace, artifact.manifest["attentions"][0]["workspace"]["zero_bytes"]
    ctypes.memset(at, 1, size)
    artifact.reset()
    assert ctypes.string_at(at, size) == bytes(size)
    assert artifact.refused() == ""


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_a_plain_launch_is_cooperative_and_a_programmatic_one_is_not(recorder: Recorder, kind: PlanKind) -> None:
    artifact, launches = bound(kind)
    recorder.cuda.fake_parameter_bytes(artifact.manifest["parameter"]["size_bytes"])
    recorder.clear()
    launches.enqueue(STREAM)
    launches.enqueue(STREAM, no_pdl=True)
    launches.enqueue(STREAM)
    calls = recorder.calls("cuLaunchKernelEx")
    usual = PROGRAMMATIC if kind.is_programmatic else COOPERATIVE
    assert [call.attribute for call in calls] == [usual, COOPERATIVE, usual]
    dependent = [struct.unpack_from("<i", call.parameter, 24)[0] for call in calls]
    assert dependent == [int(kind.is_programmatic), 0, int(kind.is_programmatic)]
    assert calls[0].parameter[28:] == calls[1].parameter[28:]


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_a_stream_of_too_few_sms_is_refused_by_name_and_nothing_is_enqueued(recorder: Recorder, kind: PlanKind) -> None:
    artifact, launches = bound(kind)
    (grid,) = grids(artifact)
    recorder.clear()
    recorder.cuda.fake_green(ctypes.c_void_p(STREAM), 16)
    recorder.cuda.fake_capture(1)
    launches.enqueue(STREAM)  # the device of a graph is not known
    recorder.cuda.fake_capture(0)
    recorder.clear_calls()
    for _ in range(2):
        sentence = f"needs its {grid} CTAs resident at once, and the 16 SMs of this stream's context hold 16"
        with pytest.raises(RuntimeFailure, match=sentence):
            launches.enqueue(STREAM)
    assert recorder.calls("cuLaunchKernelEx") == []
    launches.enqueue(STREAM + 1)
    recorder.clear_calls()
    launches.enqueue(STREAM + 1)
    assert {call.name for call in recorder.calls()} == {"cuLaunchKernelEx", "cuStreamGetId", "cuStreamIsCapturing"}


def test_a_context_of_too_few_sms_or_clusters_is_refused_when_it_is_loaded(recorder: Recorder) -> None:
    made, _ = chain(PlanKind.FUSED, block(16))
    grid = made.manifest["launches"][0]["grid"][0]
    recorder.cuda.fake_green(None, 16)
    with pytest.raises(RuntimeFailure, match="the 16 SMs of this stream's context hold 16"):
        Artifact(made.files)
    recorder.clear()
    recorder.cuda.fake_device(9, 0, grid - 1, 13000)
    with pytest.raises(
        RuntimeFailure, match=f"needs its {grid} CTAs resident at once, and this device holds {grid - 1}"
    ):
        Artifact(made.files)


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES])
def test_clusters_that_the_driver_does_not_hold_are_refused(recorder: Recorder, kind: PlanKind) -> None:
    workload = ffn_pair(m=160, d_in=64, d_hidden=512, d_out=512)
    made = make(kind, wgmma((64, 64, 64), cluster_m=2), workload=workload).kernel
    launches = made.manifest["launches"]
    needed = max(one["grid"][0] // 2 if one["needs_all_ctas"] else 1 for one in launches)
    recorder.cuda.fake_occupancy(1, needed)
    Artifact(made.files)
    recorder.cuda.fake_occupancy(1, needed - 1)
    with pytest.raises(RuntimeFailure, match=f"in clusters of 2, and this device holds {2 * (needed - 1)}"):
        Artifact(made.files)


def test_an_artifact_whose_launches_are_not_its_plans_is_refused_by_its_field() -> None:
    made, _ = chain(PlanKind.FUSED, block(16))
    manifest = json.loads(made.files["manifest.json"])
    manifest["launches"][0]["needs_all_ctas"] = False
    with pytest.raises(RuntimeFailure, match=r"launches\[0\].needs_all_ctas: is False, but according to its plan"):
        Artifact({**made.files, "manifest.json": json.dumps(manifest).encode()})


@pytest.mark.parametrize(
    ("field", "word", "value"),
    [
        ("grid", 4, 3),
        ("workspace.bytes", 3, 1 << 20),
        ("plan", 2, 1),
        ("plan", 9, 1 << 20),
        ("needs_all_ctas", None, 0),
        ("plan", 4, -1),
    ],
)
def test_a_plan_of_an_older_version_is_held_against_what_all_versions_have(
    field: str, word: int | None, value: int
) -> None:
    made, _ = chain(PlanKind.FUSED, block(16))
    manifest = json.loads(made.files["manifest.json"])
    words = np.frombuffer(made.files["plan0.bin"], np.int32).copy()
    words[1] = 4
    if word is None:
        manifest["launches"][0]["needs_all_ctas"] = False
    else:
        words[word] = value
    manifest["files"]["plan0.bin"]["sha256"] = hashlib.sha256(words.tobytes()).hexdigest()
    files = {**made.files, "plan0.bin": words.tobytes(), "manifest.json": json.dumps(manifest).encode()}
    with pytest.raises(RuntimeFailure, match=rf"the artifact: launches\[0\].{field}: "):
        Artifact(files)


def test_a_plan_of_an_older_version_is_its_own_kernels_matter() -> None:
    made, _ = chain(PlanKind.FUSED, block(16))
    manifest = json.loads(made.files["manifest.json"])
    for version, is_read in ((4, True), (6, False), (0, False)):
        words = made.files["plan0.bin"][:4] + version.to_bytes(4, "little") + made.files["plan0.bin"][8:]
        manifest["files"]["plan0.bin"]["sha256"] = hashlib.sha256(words).hexdigest()
        files = {**made.files, "plan0.bin": words, "manifest.json": json.dumps(manifest).encode()}
        if is_read:
            Artifact(files)
        else:
            with pytest.raises(RuntimeFailure, match=r"launches\[0\].plan: not a plan"):
                Artifact(files)
