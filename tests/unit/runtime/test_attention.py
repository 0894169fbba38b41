"""Attention of an artifact in Python: what reaches the driver is what our own launches have, and what is refused."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attention_zips import MadeAttention, zip_of
from tests.support.native.recorder import Recorder
from tests.unit.runtime.test_python import Interfaced, aligned
from tuner.runtime import Attention, RuntimeFailure, load_attention
from tuner.runtime import attention as module
from tuner.runtime.artifact import product_parameter, read_artifact
from tuner.runtime.driver import PROGRAMMATIC, Driver
from tuner.workers.source.attention import AttentionBuffers, next_weights_of, pack_attention_args
from tuner.workers.source.launch_args import OpBuffers, extend_args, first_tasks, pack_args

FORMS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "pages": {"page_tokens": 16, "heads_first": False, "window": 300},
}
STREAM = 0x4242


@pytest.fixture
def driver(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The recorder; launches are compared by their first bytes, and parameters whole where they are made."""
    recorder.cuda.fake_parameter_bytes(64)
    found = Driver(str(recorder.path))
    monkeypatch.setattr(module, "driver", lambda: found)
    return found


def room(num_bytes: int) -> Interfaced:
    return Interfaced(np.zeros(num_bytes // 2 + 1, np.float16))


def arrays(bound: Attention, *, num_pages: int | None = None) -> dict[str, Any]:
    """Operands of a call, by the names of its arguments."""
    of, name = bound.of, bound.of.op["name"]
    shapes = {what: of.shapes[tensor] for what, tensor in (("q", of.op["source"]), ("lengths", f"{name}.lengths"))}
    for what in ("keys", "values"):
        cache = of.shapes[f"{name}.{what}"]
        shapes[what] = cache if num_pages is None else (num_pages, *cache[1:])
    if of.page_tokens:
        shapes["pages"] = of.shapes[f"{name}.pages"]
    shapes["out"] = of.shapes[of.product["name"] if of.product else name]
    types = {"lengths": "int32", "pages": "int32"}
    return {what: Interfaced(aligned(*shape, dtype=types.get(what, "uint16"))) for what, shape in shapes.items()}


def bind(made: MadeAttention) -> Attention:
    of = load_attention(made.path)
    if of.product is None:
        return of.bind(like=Interfaced(aligned(16)), memory=room)
    weight = Interfaced(aligned(*of.shapes["o_proj.w"], dtype="uint16"))
    return of.bind(weight, memory=room)


def maps_in(parameter: bytes) -> tuple[bytes, bytes]:
    return parameter[:128], parameter[128:256]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("d_out", [None, 520])
def test_a_parameter_is_that_of_our_own_launches(driver: Driver, tmp_path: Path, d_out: int | None, form: str) -> None:
    made = zip_of(tmp_path, d_out=d_out, form=FORMS[form])
    bound = bind(made)
    given = arrays(bound)
    bound(**given, stream=STREAM)
    ((attention, *others),) = bound._packed.values()
    at = {what: array.values.ctypes.data for what, array in given.items()}
    space, kept = bound.of.recipe["workspace"], struct.unpack_from("<10Q", attention.raw, 256)
    buffers = AttentionBuffers(
        k_map=maps_in(attention.raw)[0],
        v_map=maps_in(attention.raw)[1],
        q=at["q"],
        out=at["out"] if d_out is None else bound._attended,
        lengths=at["lengths"],
        tasks=kept[3],
        queues=kept[4],
        **{name: bound._workspace + space[name] for name in ("partials", "arrivals", "refused")},
        trace=0,
        pages=at.get("pages", 0),
    )
    weights = next_weights_of(made.workload, 0, made.kernel.schedule)
    wanted = pack_attention_args(made.kernel.plan, buffers, speculative=made.kernel.schedule.speculative,
                                 next_weights=weights)  # fmt: skip
    assert attention.raw == wanted
    assert [struct.unpack_from("<Q", one)[0] for one in maps_in(attention.raw)] == [at["keys"], at["values"]]
    assert len(others) == (d_out is not None)


def test_the_projections_parameter_is_that_of_our_own_launches(driver: Driver, tmp_path: Path) -> None:
    made = zip_of(tmp_path, d_out=520)
    own = {"words": 0x111100, "workspace": 0x222200}
    parameter = product_parameter(read_artifact(made.path), 0, own)
    op = made.workload.ops[0]
    addresses = {"attention": 0x1000, "o_proj.w": 0x2000, "o_proj": 0x3000}
    given = OpBuffers(a=0x1000, w=0x2000, bias=0, c=0x3000, m=op.m, n=op.n, k=op.k)
    args = pack_args(own["words"], own["workspace"], 55, made.plans[0], (given,), is_dependent=True, is_second=False)
    packed = parameter.packed(driver, addresses, {}).raw
    begin = min(offset for offset, _ in parameter.maps)
    maps = tuple(packed[offset : offset + 128] for offset, _ in sorted(parameter.maps, key=lambda one: one[0]))
    assert packed == extend_args(args, first_tasks(made.plans[0]), maps)
    assert begin % 64 == 0
    tensors = {recipe["tensor"]: offset for offset, recipe in parameter.maps}
    for tensor, offset in tensors.items():
        assert struct.unpack_from("<Q", packed, offset)[0] == addresses[tensor]


def test_launches_follow_each_other_on_the_callers_stream(driver: Driver, recorder: Recorder, tmp_path: Path) -> None:
    made = zip_of(tmp_path, d_out=520)
    bound = bind(made)
    given = arrays(bound)
    recorder.clear()
    assert bound(**given, stream=STREAM) is given["out"]
    first, second = recorder.calls("cuLaunchKernelEx")
    manifest = bound.of.artifact.manifest
    assert [call.values[1] for call in (first, second)] == [
        bound.of.recipe["grid"][0], manifest["launches"][0]["grid"][0]
    ]  # fmt: skip
    assert [call.stream for call in (first, second)] == [STREAM, STREAM]
    assert {call.attribute for call in (first, second)} == {(PROGRAMMATIC, 1)}
    recorder.clear()
    bound(**given, stream=STREAM)
    assert {call.name for call in recorder.calls()} == {"cuLaunchKernelEx"}, "parameters are kept"


def test_a_cache_may_have_another_number_of_pages(driver: Driver, tmp_path: Path) -> None:
    bound = bind(zip_of(tmp_path, form={"page_tokens": 16}))
    given = arrays(bound, num_pages=1000)
    bound(**given, stream=STREAM)
    ((attention,),) = bound._packed.values()
    offsets = {field["name"]: field["offset"] for field in bound.of.recipe["parameter"]["fields"]}
    assert struct.unpack_from("<i", attention.raw, offsets["num_pages"]) == (1000,)
    rows = [struct.unpack_from("<Q", one, 16 + 8)[0] for one in maps_in(attention.raw)]
    assert rows == [1000 * bound.of.recipe["pages"]["rows_per_page"]] * 2


def test_what_was_refused_is_told_until_it_is_reset(driver: Driver, tmp_path: Path) -> None:
    bound = bind(zip_of(tmp_path))
    assert bound.refused() == ""
    words = struct.pack("<4i", 1, 3, -7, 701)
    driver.copy_to(bound._workspace + bound.of.recipe["workspace"]["refused"], words, 0)
    assert bound.refused() == "sequence 3 has the length -7: use 0 to 700"
    bound.reset()
    assert bound.refused() == ""


def test_wrong_operands_are_refused_with_what_would_be_right(driver: Driver, tmp_path: Path) -> None:
    bound = bind(zip_of(tmp_path, form={"page_tokens": 16}))
    given = arrays(bound)
    wrong = Interfaced(aligned(3, dtype="int32"))
    for others, says in (
        ({"lengths": wrong}, r"lengths is \(3,\) of int32: give \(4,\) of int32"),
        (
            {"q": Interfaced(aligned(4, 512, dtype="float32"))},
            r"q is \(4, 512\) of float32: give \(4, 512\) of bfloat16",
        ),
        ({"pages": None}, "the artifact's cache has pages of 16 tokens"),
        ({"keys": Interfaced(aligned(9, 2, 16, 64, dtype="uint16"))}, "different numbers of pages"),
        ({"out": wrong}, r"out is \(3,\)"),
    ):
        with pytest.raises(RuntimeFailure, match=says):
            bound(**{**given, **others}, stream=STREAM)
    with pytest.raises(RuntimeFailure, match="has no projection: give its weight where there is one"):
        bound.of.bind(given["q"], memory=room)
    with pytest.raises(RuntimeFailure, match="give `like`: an array of the device"):
        bound.of.bind()


def test_a_card_that_holds_no_cluster_is_refused(driver: Driver, recorder: Recorder, tmp_path: Path) -> None:
    of = load_attention(zip_of(tmp_path).path)
    recorder.cuda.fake_occupancy(0, 0)
    with pytest.raises(RuntimeFailure, match="holds no cluster of 1 such CTAs"):
        of.bind(like=Interfaced(aligned(16)), memory=room)


def test_what_is_no_intact_artifact_is_refused(tmp_path: Path) -> None:
    made = zip_of(tmp_path)
    with zipfile.ZipFile(made.path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}

    def refused(says: str, **changes: bytes) -> None:
        folder = tmp_path / says[:8]
        folder.mkdir()
        for name, data in {**files, **changes}.items():
            (folder / name).write_bytes(data)
        with pytest.raises(RuntimeFailure, match=says):
            load_attention(folder)

    manifest = json.loads(files["manifest.json"])

    def with_manifest(**fields: Any) -> bytes:
        return json.dumps({**manifest, **fields}).encode()

    refused("tasks.bin is not the file", **{"attention0_tasks.bin": b""})
    refused("simulated: there is nothing", **{"manifest.json": with_manifest(simulated=True)})
    refused("of format 4, and formats up to 3", **{"manifest.json": with_manifest(format=4)})
    refused("is no artifact", **{"manifest.json": b"{"})
    refused("not of one attention", **{"manifest.json": with_manifest(attentions=[])})
    biased = [*manifest["workload"]["ops"], {"name": "o", "activation": "relu", "bias": True, "source": "attention"}]
    with_bias = with_manifest(workload={**manifest["workload"], "ops": biased})
    refused("o has bias, relu, for which", **{"manifest.json": with_bias})
