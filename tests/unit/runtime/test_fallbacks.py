"""A kernel made on a GPU that holds many clusters runs on one that holds fewer, with the plans for each GPU of the
model; invalid fallback plans are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.broken_packs import Broken, refusal_by_c
from tests.support.native.recorder import Call, Recorder
from tests.support.packs import IN_FOURS, WIDE, WIDE_MLP, Made, ladder, make, make_for_both
from tests.unit.runtime.opened import Opened
from tests.unit.runtime.test_artifact import OnDevice
from tests.unit.runtime.test_chains import Prepared
from tests.unit.runtime.test_residency import checked
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import InvalidInput
from tuner.packs.contents import Kernel
from tuner.packs.read import read_pack
from tuner.packs.records import FALLBACK_VERSION
from tuner.packs.write import pack_bytes, write_pack
from tuner.runtime import Artifact, RuntimeFailure

MISMATCH = -5
#: Clusters of four that a card holds, and the CTAs of the grid that runs there.
CARDS = [(33, 120), (30, 120), (29, 96), (24, 96)]
KINDS = [PlanKind.FUSED, PlanKind.FUSED_PDL]
HEADER_IN_PARAMETER = slice(40, 104)


def header_of(made: Made, plan: str) -> bytes:
    return made.kernel.files[plan][:64]


def launched(recorder: Recorder) -> Call:
    [call] = recorder.calls("cuLaunchKernelEx")
    return call


def check_call(call: Call, made: Made, num_ctas: int) -> None:
    """Checks that a launch's grid is that of the GPU, and that its parameter has the header of the plan for that
    grid."""
    assert call.values[1] == num_ctas
    plan = "plan0.bin" if num_ctas == 120 else "fallback_plan0.bin"
    assert call.parameter[HEADER_IN_PARAMETER] == header_of(made, plan)


@pytest.mark.parametrize(("clusters", "num_ctas"), CARDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_ffn_runs_by_the_plan_that_the_card_holds(
    recorder: Recorder, tmp_path: Path, kind: PlanKind, clusters: int, num_ctas: int
) -> None:
    recorder.cuda.fake_occupancy(1, clusters)
    made = make_for_both(kind)
    with Opened(recorder, made, tmp_path) as one:
        recorder.clear_calls()
        one.launch(160)
        check_call(call := launched(recorder), made, num_ctas)
        words = int.from_bytes(call.parameter[:8], "little") - one.memory.address
        plan = made.kernel.files["plan0.bin" if num_ctas == 120 else "fallback_plan0.bin"]
        assert one.memory.read(words, len(plan)) == plan
        assert words + len(plan) <= one.choice.memory_bytes


def test_it_is_what_was_made_for_every_card(recorder: Recorder, tmp_path: Path) -> None:
    calls = []
    recorder.cuda.fake_occupancy(1, 24)
    for made in (make_for_both(PlanKind.FUSED_PDL), make(PlanKind.FUSED_PDL, IN_FOURS, workload=WIDE)):
        with Opened(recorder, made, tmp_path) as one:
            recorder.clear_calls()
            one.launch(7)
            calls.append(launched(recorder))
    both, every = calls
    assert both.values[1:] == every.values[1:]
    assert both.parameter[16:] == every.parameter[16:], "everything except the addresses of words and workspace"


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_that_holds_neither_is_refused_by_the_smaller_grid(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: PlanKind
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    recorder.cuda.fake_occupancy(1, 23)
    sentence = "needs its 96 CTAs resident at once in clusters of 4, and this device holds 92"
    with pytest.raises(RuntimeFailure, match=sentence):
        Opened(recorder, make_for_both(kind), tmp_path)
    loaded, unloaded = (recorder.calls(name) for name in ("cuModuleLoadData", "cuModuleUnload"))
    assert len(loaded) == len(unloaded) > 0
    with pytest.raises(RuntimeFailure, match=sentence):
        Prepared(recorder, make_for_both(kind, WIDE_MLP), tmp_path / "chain.tunerpack")
    with pytest.raises(RuntimeFailure, match=sentence):
        Artifact(make_for_both(kind).kernel.files)


@pytest.mark.parametrize("workload", [WIDE, WIDE_MLP], ids=["ffn", "chain"])
def test_a_pack_is_checked_with_its_fallbacks(recorder: Recorder, tmp_path: Path, workload: Any) -> None:
    path = tmp_path / "one.tunerpack"
    write_pack([ladder(make_for_both(PlanKind.FUSED, workload).kernel)], path)
    assert read_pack(path.read_bytes()).document["format"] == FALLBACK_VERSION
    for clusters, _ in CARDS:
        recorder.cuda.fake_occupancy(1, clusters)
        assert checked(recorder, path) == (0, "")
    recorder.cuda.fake_occupancy(1, 23)
    status, sentence = checked(recorder, path)
    assert (status, "and this device holds 92" in sentence) == (MISMATCH, True)


@pytest.mark.parametrize(("clusters", "num_ctas"), CARDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_chain_runs_by_the_plan_that_the_card_holds(
    recorder: Recorder, tmp_path: Path, kind: PlanKind, clusters: int, num_ctas: int
) -> None:
    recorder.cuda.fake_occupancy(1, clusters)
    made = make_for_both(kind, WIDE_MLP)
    with closing(Prepared(recorder, made, tmp_path / "chain.tunerpack")) as one:
        recorder.clear_calls()
        recorder.cuda.fake_parameter_bytes(made.kernel.manifest["parameter"]["size_bytes"])
        one.launch(160)
        check_call(launched(recorder), made, num_ctas)


@pytest.mark.parametrize(("clusters", "num_ctas"), CARDS)
@pytest.mark.parametrize("workload", [WIDE, WIDE_MLP], ids=["ffn", "chain"])
def test_an_artifact_runs_by_the_plan_that_the_card_holds(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, workload: Any, clusters: int, num_ctas: int
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    recorder.cuda.fake_occupancy(1, clusters)
    made = make_for_both(PlanKind.FUSED_PDL, workload)
    artifact = Artifact(made.kernel.files)
    given = {
        name: OnDevice(
            0x10000000 * (index + 1), tuple(tensor["shape"]), {"fp16": "<u2", "fp32": "<f4"}[tensor["dtype"]]
        )
        for index, (name, tensor) in enumerate(artifact.tensors.items())
        if tensor["role"] not in ("intermediate", "squares")
    }
    launches = artifact.bind(given)
    recorder.clear_calls()
    recorder.cuda.fake_parameter_bytes(made.kernel.manifest["parameter"]["size_bytes"])
    launches.enqueue(0x77)
    check_call(launched(recorder), made, num_ctas)
    assert not artifact.aborted()
    artifact.reset()


FLAGS_OF_KERNEL, NUMBER_OF_RUNG, DIGEST, ROWS_OF_KERNEL, FLAGS_OF_LAUNCH, N_OF_OP = 132, 12, 0, 100, 4, 0
FLAGS_OF_PROGRAM, FLAGS_OF_PART, THREADS_OF_PART, ROWS_OF_PROGRAM = 56, 20, 8, 76
VERSION_AT = 64 + 8


def put(table: str, index: int, offset: int, value: int) -> Callable[[Broken], None]:
    return lambda pack: pack.put(table, index, offset, value)


def flip(table: str, index: int, offset: int, bits: int) -> Callable[[Broken], None]:
    return lambda pack: pack.put(table, index, offset, pack.get(table, index, offset) ^ bits)


def larger_plan(pack: Broken) -> None:
    """Makes the first launch's plan needlessly large, but valid to the C reader."""
    pack.copy_blob("launches", 1, 32, 0)
    pack.put("launches", 1, 0, 120)


#: For each: the change in the pack of an FFN, and the C reader's message.
WRONG: dict[str, tuple[Callable[[Broken], None], str]] = {
    "a fallback of its own": (
        flip("kernels", 1, FLAGS_OF_KERNEL, 8),
        "kernel 1 .*it is the fallback of another kernel",
    ),
    "another artifact": (flip("kernels", 1, DIGEST, 1), "kernel 1 .*it is the fallback of another kernel"),
    "another kind of launch": (flip("kernels", 1, FLAGS_OF_KERNEL, 2), "it is the fallback of another kernel"),
    "a launch that is another": (flip("launches", 1, FLAGS_OF_LAUNCH, 2), "launch 1 .*"),
    "another op": (put("ops", 3, 16, 1), "kernel 1 .*it is the fallback of another kernel"),
    "no first": (flip("kernels", 0, FLAGS_OF_KERNEL, 8), ""),
    "a rung that names it": (put("rungs", 0, NUMBER_OF_RUNG, 1), "rung 0 .* is the fallback of another kernel"),
    "no smaller plan": (larger_plan, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_fallback_of_an_ffn_is_refused(recorder: Recorder, tmp_path: Path, name: str) -> None:
    change, sentence = WRONG[name]
    check_refused(recorder, tmp_path, WIDE, change, sentence)


OF_PROGRAMS: dict[str, tuple[Callable[[Broken], None], str]] = {
    "a fallback of its own": (
        flip("programs", 1, FLAGS_OF_PROGRAM, 2),
        "program 1 .*it is the fallback of another kernel",
    ),
    "another artifact": (flip("programs", 1, DIGEST, 1), "program 1 .*it is the fallback of another kernel"),
    "another kind of launch": (
        flip("parts", 1, FLAGS_OF_PART, 2),
        "program 1 .* launches is larger or of another kind",
    ),
    "more threads": (
        put("parts", 1, THREADS_OF_PART, 1024),
        "program 1 .* launches is larger or of another kind",
    ),
    "no first": (flip("programs", 0, FLAGS_OF_PROGRAM, 2), ""),
    "a rung that names it": (put("lines", 0, NUMBER_OF_RUNG, 1), "is the fallback of another kernel"),
}


@pytest.mark.parametrize("name", OF_PROGRAMS)
def test_a_broken_fallback_of_a_chain_is_refused(recorder: Recorder, tmp_path: Path, name: str) -> None:
    change, sentence = OF_PROGRAMS[name]
    check_refused(recorder, tmp_path, WIDE_MLP, change, sentence)


def check_refused(
    recorder: Recorder, tmp_path: Path, workload: Any, change: Callable[[Broken], None], sentence: str
) -> None:
    """Checks the refusal by C, if a sentence is given, and by Python."""
    data, path = pack_bytes([ladder(make_for_both(PlanKind.FUSED_PDL, workload).kernel)]), tmp_path / "one.tunerpack"
    assert refusal_by_c(recorder, data, path) == ""
    broken = Broken(data)
    change(broken)
    found = refusal_by_c(recorder, broken.bytes(), path)
    assert re.search(sentence, found), found
    assert (found == "") == (sentence == "")
    with pytest.raises(InvalidInput, match=r"pack: |kernel: "):
        read_pack(broken.summed())


def test_a_pack_of_an_older_version_has_none(recorder: Recorder, tmp_path: Path) -> None:
    data, path = pack_bytes([ladder(make_for_both(PlanKind.FUSED).kernel)]), tmp_path / "one.tunerpack"
    older = Broken(data[:VERSION_AT] + b"\4" + data[VERSION_AT + 1 :]).bytes()
    assert "version 4 does not support" in refusal_by_c(recorder, older, path)


def change_fallback(**changes: Any) -> dict[str, bytes]:
    """The files of an artifact with a modified launch of its fallback."""
    files = dict(make_for_both(PlanKind.FUSED_PDL).kernel.files)
    manifest = json.loads(files["manifest.json"])
    manifest["fallback_launches"][0] |= changes
    return {**files, "manifest.json": json.dumps(manifest).encode()}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"grid": [100, 1, 1]}, r"fallback_launches\[0\].grid"),
        ({"plan": "plan0.bin", "grid": [120, 1, 1]}, ""),  # needless but valid
        ({"block": [32, 1, 1]}, r"fallback_launches\[0\].block: is \[32, 1, 1\]"),
        ({"ops": ["down"]}, r"fallback_launches\[0\].ops"),
        ({"cooperative": True}, r"fallback_launches\[0\].cooperative"),
        ({"needs_all_ctas": False}, r"fallback_launches\[0\].needs_all_ctas"),
        ({"more": 1}, r"fallback_launches\[0\].more: is 1"),
    ],
)
def test_a_fallback_that_is_none_is_refused_by_its_field(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], field: str
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    files = change_fallback(**changes)
    if not field:
        Artifact(files)
        return
    with pytest.raises(RuntimeFailure, match=field):
        Artifact(files)
    with pytest.raises(InvalidInput, match=field):
        pack_bytes([ladder(Kernel(files=files))])


def test_fewer_launches_than_it_stands_for_are_refused() -> None:
    files = dict(make_for_both(PlanKind.FUSED_PDL).kernel.files)
    manifest = json.loads(files["manifest.json"]) | {"fallback_launches": []}
    with pytest.raises(
        InvalidInput, match=("fallback_launches: is of 0, but according to its plan it must be of 1, one for each")
    ):
        pack_bytes([ladder(Kernel(files={**files, "manifest.json": json.dumps(manifest).encode()}))])
