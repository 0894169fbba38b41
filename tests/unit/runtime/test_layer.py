"""A layer of an artifact or a pack in Python: what reaches the driver, in which order, and what is refused."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support import compiled
from tests.support.attention_packs import MadeAttention, make_attention, table
from tests.support.native.recorder import Recorder
from tests.support.packs import ladder, make
from tests.support.repository import ROOT
from tests.unit.runtime.prepared_layer import make_layer
from tests.unit.runtime.test_python import Interfaced, aligned
from tuner.packs.write import write_pack
from tuner.runtime import Attention, Layer, RuntimeFailure, load, load_artifact, load_attention, load_layer
from tuner.runtime.binding import native

STREAM = 0x4242
DTYPES = {"fp32": "float32", "int32": "int32"}


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are compared by their first bytes, because the parameters of two kernels have different sizes."""
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    recorder.cuda.fake_parameter_bytes(64)


def operands(layer: Layer) -> dict[str, Any]:
    """One tensor for each required operand, and for the outputs."""
    return {
        name: Interfaced(aligned(*tensor["shape"], dtype=DTYPES.get(tensor["dtype"], "uint16")))
        for name, tensor in layer.tensors.items()
        if tensor["role"] not in ("intermediate", "squares", "optional")
    }


def zip_at(path: Path, made: MadeAttention) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in made.kernel.files.items():
            archive.writestr(name, data)
    return path


def test_launches_follow_each_other_in_the_order_of_the_manifest(recorder: Recorder, tmp_path: Path) -> None:
    layer = load_layer(zip_at(tmp_path / "best.zip", make_layer()))
    given = operands(layer)
    recorder.clear()
    assert layer(given, stream=STREAM) is given["o_proj"]
    calls, manifest = recorder.calls("cuLaunchKernelEx"), layer.artifact.manifest
    grids = [manifest[one["list"]][one["index"]]["grid"][0] for one in manifest["launch_order"]]
    assert [call.values[1] for call in calls] == grids
    assert {call.stream for call in calls} == {STREAM}
    recorder.clear()
    layer(given, stream=STREAM)
    assert {call.name for call in recorder.calls()} == {"cuLaunchKernelEx"}, "parameters are kept"
    assert layer.refused() == ""
    assert not layer.aborted()


def test_a_pack_gives_the_layer_of_its_table(recorder: Recorder, tmp_path: Path) -> None:
    made, longer, path = make_layer(), make_layer(num_behind=3), tmp_path / "model.tunerpack"
    entries = [table(made, library=[(4, 9000)]), table(longer)]
    write_pack([ladder(make().kernel), table(make_attention()), *entries], path)
    pack = load(path)
    run, whole = ("qkv", "attention", "o_proj"), ("qkv", "attention", "o_proj", "gate_up", "down")
    assert set(pack.layers) == {run, whole}
    layer = pack.layer(*run, sequences=4, length=300)
    assert layer is not None
    assert layer.artifact.manifest == made.kernel.manifest
    given = operands(layer)
    recorder.clear()
    assert layer(given, stream=STREAM) is given["o_proj"]
    assert len(recorder.calls("cuLaunchKernelEx")) == 3
    assert pack.layer(*run, sequences=4, length=9000) is None, "the library"
    other = pack.layer(number=pack.layers.index(whole), sequences=4, length=300)
    assert other is not None
    assert other.output == "down"
    for asked, words in (
        ({}, r"2 layers of the pack fit the call: pass the names or the number of one of these: 0: "),
        ({"number": 7}, "0 layers of the pack fit the call"),
    ):
        with pytest.raises(RuntimeFailure, match=words):
            pack.layer(sequences=4, length=300, **asked)
    with pytest.raises(RuntimeFailure, match="0 layers of the pack fit qkv, o_proj: pass the names"):
        pack.layer("qkv", "o_proj", sequences=4, length=300)
    with pytest.raises(RuntimeFailure, match="no entry for 3 sequences of up to 300 tokens of fp16 256 -> qkv"):
        pack.layer(*run, sequences=3, length=300)
    pack.close()


def test_a_pack_of_one_layer_needs_no_name(tmp_path: Path) -> None:
    write_pack([table(make_layer(num_behind=0))], tmp_path / "model.tunerpack")
    layer = load(tmp_path / "model.tunerpack").layer(sequences=4, length=512)
    assert layer is not None
    assert layer.output == "attention"
    write_pack([ladder(make().kernel)], tmp_path / "none.tunerpack")
    with pytest.raises(RuntimeFailure, match=r"0 layers of the pack fit the call: .* of these: none"):
        load(tmp_path / "none.tunerpack").layer(sequences=4, length=512)


def test_wrong_tensors_are_refused_with_what_would_be_right(recorder: Recorder, tmp_path: Path) -> None:
    layer = load_layer(zip_at(tmp_path / "best.zip", make_layer()))
    given = operands(layer)
    recorder.clear()
    for others, says in (
        ({"qkv.w": None}, r"qkv\.w is missing: pass \[512, 256\] of fp16, the weight"),
        ({"x.squares": Interfaced(aligned(9, dtype="float32"))}, r"x\.squares is \[9\] of float32: pass \[4\]"),
        ({"attention.lengths": given["x"]}, r"attention\.lengths is \[4, 256\] of bits: pass \[4\] of int32"),
        ({"attention.pages": given["x"]}, r"there is no tensor attention\.pages: pass"),
        ({"o_proj": None}, "o_proj must be given with arrays of this library"),
    ):
        with pytest.raises(RuntimeFailure, match=says):
            layer({**given, **others}, stream=STREAM)
    with pytest.raises(RuntimeFailure, match="`stream` must be given with arrays of this library"):
        layer(given)
    with pytest.raises(RuntimeFailure, match="there is no tensor fp16: pass attention"):
        layer({})
    assert recorder.calls("cuLaunchKernelEx") == []


def test_a_thread_without_a_context_is_refused_with_how_to_make_one(recorder: Recorder, tmp_path: Path) -> None:
    path, pack = zip_at(tmp_path / "best.zip", make_layer()), tmp_path / "model.tunerpack"
    write_pack([table(make_layer())], pack)
    recorder.cuda.fake_context(None)
    try:
        for call in (lambda: load_layer(path), lambda: load(pack).layer(sequences=4, length=1)):
            with pytest.raises(RuntimeFailure, match="this thread has no CUDA context: create"):
                call()
    finally:
        recorder.cuda.fake_context(ctypes.c_void_p(0x1000))


def test_an_attentions_call_leads_to_what_takes_its_artifact(tmp_path: Path) -> None:
    path = zip_at(tmp_path / "best.zip", make_layer())
    with pytest.raises(RuntimeFailure, match="load it with load_layer, which takes tensors by name"):
        load_attention(path)
    with pytest.raises(RuntimeFailure, match="load it with load_layer"):
        Attention(load_artifact(path))
    (tmp_path / "ffn").mkdir()
    for name, data in make().kernel.files.items():
        (tmp_path / "ffn" / name).write_bytes(data)
    with pytest.raises(
        RuntimeFailure, match="the artifact is of up, down, but a call has operands only for an attention"
    ):
        load_attention(tmp_path / "ffn")
    assert load_layer(tmp_path / "ffn").output == "down", "a program has any ops"


def test_a_simulated_layer_is_refused_where_there_is_no_driver_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", "/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeFailure, match=r"no cubin \(it was simulated\): there is nothing to run"):
        load_layer(zip_at(tmp_path / "best.zip", make_layer(simulated=True)))


def test_a_simulated_pack_says_so_where_there_is_no_driver_either(tmp_path: Path) -> None:
    ffn = make(simulated=True).kernel
    write_pack([ladder(ffn), table(make_layer(simulated=True))], tmp_path / "a.tunerpack")
    program = """
import ctypes, sys
from tuner.runtime import load
from tuner.runtime.binding import native
pack = load(sys.argv[1])
for call in (
    lambda: pack.check(0),
    lambda: native.checked(pack.c, pack.c.tuner_layer_prepare(
        pack.handle, native.AttentionChoice(program=0), 256, 0, 1, ctypes.byref(ctypes.c_void_p()))),
    lambda: native.checked(pack.c, pack.c.tuner_ffn_prepare(
        pack.handle, native.Choice(kernel=0), 256, 0, 0, 1, ctypes.byref(ctypes.c_void_p()))),
):
    try:
        call()
    except native.RuntimeFailure as error:
        print(error)
"""
    env = {name: value for name, value in os.environ.items() if name != "TUNER_LIBCUDA"}
    env |= {"TUNER_RUNTIME_CACHE": str(compiled.runtime().parent), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(tmp_path / "a.tunerpack")]
    ran = subprocess.run(command, capture_output=True, text=True, env=env)
    assert ran.stdout.splitlines() == [
        "the pack is simulated: there is nothing to run",
        *["this kernel was simulated: there is nothing to run"] * 2,
    ], ran.stderr
