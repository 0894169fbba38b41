"""Attention of an artifact in Python: what reaches the driver, and what is refused."""

from __future__ import annotations

import ctypes
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_packs import make_attention, table
from tests.support.attention_zips import zip_of
from tests.support.native.recorder import Recorder
from tests.unit.runtime.test_python import Interfaced, aligned
from tuner.packs.write import write_pack
from tuner.runtime import Attention, RuntimeFailure, load, load_attention
from tuner.runtime.binding import native

STREAM = 0x4242


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are compared by their first bytes, because the parameters of two kernels have different sizes."""
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    recorder.cuda.fake_parameter_bytes(64)


def operands(attention: Attention, *, num_pages: int | None = None) -> dict[str, Any]:
    """The operands of a call, by argument name."""
    name = attention.op["name"]
    tensors = {"q": attention.op["source"], "lengths": f"{name}.lengths", "out": attention.output}
    tensors |= {what: f"{name}.{what}" for what in ("keys", "values")}
    tensors |= {"pages": f"{name}.pages"} if attention.page_tokens else {}
    tensors |= {"w": f"{attention.output}.w"} if attention.product else {}
    shapes = {what: attention.shape(tensor) for what, tensor in tensors.items()}
    if num_pages is not None:
        shapes |= {what: (num_pages, *shapes[what][1:]) for what in ("keys", "values")}
    types = {"lengths": "int32", "pages": "int32"}
    return {what: Interfaced(aligned(*shape, dtype=types.get(what, "uint16"))) for what, shape in shapes.items()}


def parameters(attention: Attention) -> list[bytes]:
    """The parameters of the last packed launches."""
    return [launch._usual._parameter.raw for launch in list(attention._bound.values())[-1]._launches]


def test_launches_follow_each_other_on_the_callers_stream(recorder: Recorder, tmp_path: Path) -> None:
    attention = load_attention(zip_of(tmp_path, d_out=520).path)
    given = operands(attention)
    recorder.clear()
    assert attention(**given, stream=STREAM) is given["out"]
    first, second = recorder.calls("cuLaunchKernelEx")
    manifest = attention.artifact.manifest
    grids = [manifest["attentions"][0]["grid"][0], manifest["launches"][0]["grid"][0]]
    assert [call.values[1] for call in (first, second)] == grids
    assert [call.stream for call in (first, second)] == [STREAM, STREAM]
    assert {call.attribute for call in (first, second)} == {(6, 1)}
    recorder.clear()
    attention(**given, stream=STREAM)
    assert {call.name for call in recorder.calls()} == {"cuLaunchKernelEx"}, "parameters are kept"


def test_a_table_and_the_caches_reach_the_parameter(tmp_path: Path) -> None:
    attention = load_attention(zip_of(tmp_path, form={"page_tokens": 16, "heads_first": False}).path)
    given = operands(attention)
    attention(**given, stream=STREAM)
    (parameter,), (recipe,) = parameters(attention), attention.artifact.manifest["attentions"]
    fields = {field["name"]: field["offset"] for field in recipe["parameter"]["fields"]}
    wanted = {what: what for what in ("q", "out", "lengths", "pages")} | {"keys_map": "keys", "values_map": "values"}
    for field, what in wanted.items():
        assert struct.unpack_from("<Q", parameter, fields[field])[0] == given[what].values.ctypes.data


@pytest.mark.slow
def test_a_pack_gives_the_attention_of_its_table(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)
    made, path = make_attention(d_out=512), tmp_path / "model.tunerpack"
    write_pack([table(made, library=[(4, 9000)])], path)
    pack = load(path)
    sizes = {"heads": 8, "kv_heads": 2, "head_dim": 64, "dtype": "bfloat16", "d_out": 512}
    attention = pack.attention(sequences=4, length=600, **sizes)
    assert attention is not None
    assert attention.artifact.manifest == made.kernel.manifest
    given = operands(attention)
    recorder.clear()
    assert attention(**given, stream=STREAM) is given["out"]
    assert len(recorder.calls("cuLaunchKernelEx")) == 2
    assert pack.attention(sequences=4, length=9000, **sizes) is None, "the library"
    for changed, words in (
        ({"sequences": 3}, "no entry for 3 sequences"),
        ({"head_dim": 128}, "does not have this attention"),
    ):
        with pytest.raises(RuntimeFailure, match=words):
            pack.attention(**{"sequences": 4, "length": 600, **sizes, **changed})
    pack.close()


def test_a_cache_may_have_another_number_of_pages(tmp_path: Path) -> None:
    attention = load_attention(zip_of(tmp_path, form={"page_tokens": 16}).path)
    attention(**operands(attention, num_pages=1000), stream=STREAM)
    (parameter,), (recipe,) = parameters(attention), attention.artifact.manifest["attentions"]
    fields = {field["name"]: field["offset"] for field in recipe["parameter"]["fields"]}
    assert struct.unpack_from("<i", parameter, fields["num_pages"]) == (1000,)
    rows = [struct.unpack_from("<Q", parameter, 128 * place + 16 + 8)[0] for place in range(2)]
    assert rows == [1000 * recipe["pages"]["rows_per_page"]] * 2


def test_what_was_refused_is_told_until_it_is_forgotten(tmp_path: Path) -> None:
    attention = load_attention(zip_of(tmp_path).path)
    assert attention.refused() == ""
    driver, at = attention.artifact._driver, attention.artifact._of_caches[0]._own["refused"]
    words = struct.pack("<4i", 2, 3, -7, 701)
    driver.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), words, ctypes.c_size_t(16), None)
    assert attention.refused() == "sequence 3 has the page -7: use 0 to 700"
    attention.forget_refused()
    assert attention.refused() == ""


def test_wrong_operands_are_refused_with_what_would_be_right(tmp_path: Path) -> None:
    attention = load_attention(zip_of(tmp_path, form={"page_tokens": 16}).path)
    given = operands(attention)
    wrong = Interfaced(aligned(3, dtype="int32"))
    for others, says in (
        ({"lengths": wrong}, r"attention\.lengths is \[3\] of int32: pass \[4\] of int32"),
        ({"q": Interfaced(aligned(4, 512, dtype="float32"))}, r"q is \[4, 512\] of float32: pass .* of bf16"),
        ({"pages": None}, "attention.pages is missing: pass"),
        ({"w": wrong}, r"there is no tensor attention\.w"),
        (
            {"keys": Interfaced(aligned(9, 2, 16, 64, dtype="uint16"))},
            (r"have \[9, 176\] pages: use the same number for both"),
        ),
        (
            dict.fromkeys(("keys", "values"), Interfaced(aligned(0, 2, 16, 64, dtype="uint16"))),
            "have 0 pages: use 1 to",
        ),
        ({"out": wrong}, r"attention is \[3\]"),
    ):
        with pytest.raises(RuntimeFailure, match=says):
            attention(**{**given, **others}, stream=STREAM)
    with pytest.raises(RuntimeFailure, match="attention, `stream` must be given with arrays of this library"):
        attention(**{**given, "out": None})


def test_an_artifact_of_another_workload_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(zip_of(tmp_path, d_out=520).path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files["manifest.json"])

    def refused(says: str, without: str = "", **changes: Any) -> None:
        folder = tmp_path / f"without_{without}"
        folder.mkdir()
        ops = [{**op, **changes} if op["name"] == "o_proj" else op for op in manifest["workload"]["ops"]]
        ops = [op for op in ops if op["name"] != without]
        changed = {**manifest, "workload": {**manifest["workload"], "ops": ops}}
        for name, data in {**files, "manifest.json": json.dumps(changed).encode()}.items():
            (folder / name).write_bytes(data)
        with pytest.raises(RuntimeFailure, match=says):
            load_attention(folder)

    refused(
        "the artifact has bias, relu after its attention, but a call has operands only for",
        bias=True,
        activation="relu",
    )
    refused("the artifact is of o_proj, but a call", without="attention")
