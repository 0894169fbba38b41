"""From a checkpoint's tensors to a launch of a pack's kernel: only the converter depends on the layout of codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.converted import TILINGS, pair
from tests.support.native.recorder import Recorder
from tests.support.packs import ladder, make
from tests.unit.runtime.test_python import Interfaced, aligned
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.write import write_pack
from tuner.runtime import WrongOperand, load
from tuner.runtime.binding import native

STREAM = 0x99


@pytest.fixture
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)


@pytest.mark.usefixtures("_on_the_recorder")
@pytest.mark.parametrize("name", ["e4m3", "int4, zero points"])
def test_a_pack_launches_a_kernel_of_codes(recorder: Recorder, tmp_path: Path, name: str) -> None:
    scheme, tiling = TILINGS[name]
    write_pack([ladder(make(PlanKind.FUSED_PDL, tiling, workload=pair(scheme)).kernel)], tmp_path / "a.tunerpack")
    chain = load(tmp_path / "a.tunerpack").chain("up", "down", rows=3)
    assert chain is not None
    assert chain.tensors["up.w"]["stored"]["format"] == str(scheme.row.weights)
    kinds = {"uint8": "uint8", "bf16": "uint16", "fp32": "float32"}
    given = {
        one["name"]: Interfaced(aligned(*one["shape"], dtype=kinds[one["dtype"]]))
        for one in chain.tensors.values()
        if one["role"] != "intermediate"
    }
    for what in ("x", "down"):
        given[what] = Interfaced(aligned(3, 512, dtype="uint16"))
    recorder.clear()
    recorder.cuda.fake_parameter_bytes(chain.artifact.manifest["parameter"]["size_bytes"])
    assert chain(given, stream=STREAM) is given["down"]
    [call] = recorder.calls("cuLaunchKernelEx")
    for what in ("x", "up.w", "down.w", "down"):
        address = given[what].__cuda_array_interface__["data"][0]
        assert np.frombuffer(address.to_bytes(8, "little"), np.uint8).tobytes() in call.parameter, what
    elements = Interfaced(aligned(2048, 512, dtype="uint16"))
    with pytest.raises(WrongOperand, match=r"up\.w is \[2048, 512\].*uint8"):
        chain({**given, "up.w": elements}, stream=STREAM)
