"""A cache with gaps between lines and pages, as servers lay it out: the launches' parameters, and refusals."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attention_packs import MadeAttention
from tests.support.native.recorder import Recorder
from tests.unit.runtime.prepared_layer import make_layer
from tests.unit.runtime.test_layer import operands, zip_at
from tests.unit.runtime.test_python import Interfaced, aligned
from tuner.ops.attention.schedule import AttentionEngine
from tuner.runtime import Layer, RuntimeFailure, load_layer
from tuner.runtime.binding import native
from tuner.runtime.tensors.arrays import NotAnArray, view

STREAM, COUNT, WIDTH = 0x4242, 7, 25
PAGES: dict[str, dict[str, Any]] = {
    "tokens first": {"page_tokens": 16, "heads_first": False},
    "heads first": {"page_tokens": 16},
}


@pytest.fixture(autouse=True)
def _on_the_recorder(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_LIBCUDA", str(recorder.path))
    monkeypatch.setattr(native, "library", lambda: recorder.runtime)


def packed(layer: Layer, width: int = WIDTH, line: int = 2, gap: int = 0) -> dict[str, Any]:
    """Operands whose keys and values are in one array, in lines of `line` heads' elements, with `gap` lines after each
    page."""
    _, *middle, head_dim = layer.shape("attention.keys")
    lines = int(np.prod(middle))
    memory = aligned(COUNT, lines + gap, line * head_dim, dtype="uint16")
    both = [memory[:, :lines, at : at + head_dim].reshape(COUNT, *middle, head_dim) for at in (0, head_dim)]
    assert all(np.shares_memory(one, memory) for one in both)
    sequences, _ = layer.shape("attention.pages")
    return operands(layer) | {
        "attention.keys": Interfaced(both[0]),
        "attention.values": Interfaced(both[1]),
        "attention.pages": Interfaced(aligned(sequences, width, dtype="int32")),
    }


def fields_of(recorder: Recorder, made: MadeAttention, layer: Layer, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of all launches' parameters by name: numbers, and the dimensions, strides and box of tensor maps."""
    manifest, found = made.kernel.manifest, []
    for place, one in enumerate(manifest["launch_order"]):
        parameter = (manifest if one["list"] == "launches" else manifest["attentions"][one["index"]])["parameter"]
        recorder.cuda.fake_parameter_bytes(parameter["size_bytes"])
        recorder.clear()
        layer.bind(given)._launches[place].enqueue(STREAM)
        (call,) = recorder.calls("cuLaunchKernelEx")
        fields = {}
        for field in parameter["fields"]:
            at, name = field["offset"], field["name"].removeprefix("attention.")
            if field["type"] == "int32":
                (fields[name],) = struct.unpack_from("<i", call.parameter, at)
            elif name in ("keys_map", "values_map"):
                fields[name] = (
                    struct.unpack_from("<3Q", call.parameter, at + 16),
                    struct.unpack_from("<2Q", call.parameter, at + 56),
                )
        found.append(fields)
    return found


@pytest.mark.parametrize("gap", [0, 32])
@pytest.mark.parametrize("name", PAGES)
def test_launches_are_told_how_lines_and_pages_lie(recorder: Recorder, tmp_path: Path, name: str, gap: int) -> None:
    made = make_layer(pages=PAGES[name], sizes={"max_length": 384})
    layer = load_layer(zip_at(tmp_path / "best.zip", made))
    _, *middle, head_dim = layer.shape("attention.keys")
    heads = 1 if name == "heads first" else made.attention.op.shape.kv_heads
    lines = int(np.prod(middle))
    front, attention, _ = fields_of(recorder, made, layer, packed(layer, gap=gap))
    assert {one: front[f"qkv.{one}"] for one in ("num_pages", "max_pages", "max_length", "line", "page_lines")} == {
        "num_pages": COUNT,
        "max_pages": WIDTH,
        "max_length": 384,
        "line": 2 * head_dim,
        "page_lines": lines + gap,
    }
    assert (attention["num_pages"], attention["max_pages"], attention["max_length"]) == (COUNT, WIDTH, 384)
    assert attention["rows_per_page"] == (lines + gap) // heads
    assert attention["lines_per_head"] == (0 if heads == 1 else 2 * head_dim // 64)
    of_map = (
        (64, COUNT * (lines + gap) // heads, (heads - 1) * 2 * head_dim // 64 + head_dim // 64),
        (4 * head_dim * heads, 128),
    )
    assert attention["keys_map"] == attention["values_map"] == of_map


def test_a_table_of_fewer_pages_makes_the_longest_context_shorter(recorder: Recorder, tmp_path: Path) -> None:
    made = make_layer(pages=PAGES["tokens first"], sizes={"max_length": 384})
    layer = load_layer(zip_at(tmp_path / "best.zip", made))
    front, attention, _ = fields_of(recorder, made, layer, packed(layer, width=5))
    assert front["qkv.max_length"] == attention["max_length"] == 80
    assert front["qkv.max_pages"] == attention["max_pages"] == 5


def test_dense_pages_are_told_as_they_were_tuned(recorder: Recorder, tmp_path: Path) -> None:
    made = make_layer(pages=PAGES["tokens first"], sizes={"max_length": 384})
    layer = load_layer(zip_at(tmp_path / "best.zip", made))
    for fields, parameter in zip(
        fields_of(recorder, made, layer, operands(layer)),
        (made.kernel.manifest["parameter"], made.kernel.manifest["attentions"][0]["parameter"]),
        strict=False,
    ):
        for field in parameter["fields"]:
            if "value" in field and field["type"] == "int32":
                assert fields[field["name"].removeprefix("attention.")] == field["value"], field


def test_what_kernels_cannot_read_is_refused(tmp_path: Path) -> None:
    pages = PAGES["tokens first"]
    layer = load_layer(zip_at(tmp_path / "best.zip", make_layer(pages=pages)))
    given = packed(layer)
    apart = packed(layer, gap=32) | {"attention.keys": given["attention.keys"]}
    with pytest.raises(RuntimeFailure, match=r"attention\.keys and attention\.values have different strides"):
        layer(apart, stream=STREAM)
    same = given | {"attention.values": given["attention.keys"]}
    with pytest.raises(RuntimeFailure, match=r"is written and overlaps attention\."):
        layer(same, stream=STREAM)
    keys = given["attention.keys"].values
    for odd in (keys[..., ::2], keys[:, ::2], keys.swapaxes(1, 2)):
        with pytest.raises(RuntimeFailure, match=r"attention.keys"):
            layer(given | {"attention.keys": Interfaced(odd)}, stream=STREAM)
    by_mma = load_layer(zip_at(tmp_path / "mma.zip", make_layer(pages=pages, by=AttentionEngine.MMA)))
    with pytest.raises(RuntimeFailure, match=r"its kernel reads lines without gaps: tune it with the engine `tma`"):
        by_mma(packed(by_mma), stream=STREAM)
    made = make_layer(pages=pages)
    layer = load_layer(zip_at(tmp_path / "best.zip", made))
    for name in ("line", "page_lines", "max_pages", "max_length"):
        del layer.artifact.manifest["parameter"]["pages"][f"{name}_field"]
    with pytest.raises(RuntimeFailure, match="this kernel is too old to support that: tune it again"):
        layer(packed(layer), stream=STREAM)
    given = operands(layer)
    layer(given, stream=STREAM)
    wide = Interfaced(aligned(*layer.shape("attention.pages")[:1], WIDTH + 1, dtype="int32"))
    with pytest.raises(RuntimeFailure, match="rows have another width than was tuned, but this kernel is too"):
        layer(given | {"attention.pages": wide}, stream=STREAM)


def test_lines_of_one_array_lie_in_the_gaps_of_another() -> None:
    memory = aligned(3, 4, 2, 128)
    keys, values = (view(Interfaced(memory[..., at : at + 64]), has_lines=True) for at in (0, 64))
    beside = view(Interfaced(memory[..., 32:96]), has_lines=True)
    assert not keys.overlaps(values)
    assert not values.overlaps(keys)
    assert keys.overlaps(beside)
    assert beside.overlaps(values)
    assert keys.end == values.address + memory.nbytes - 4 * 64
    with pytest.raises(NotAnArray, match="not contiguous"):
        view(Interfaced(memory[..., :64]))
