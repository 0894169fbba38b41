"""A layer of a pack in the C runtime passes the same to the driver, in the same order, as the worker's launchers."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_packs import made_of, make_attention, table
from tests.support.between_made import candidate_of
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.unit.runtime.prepared_layer import (
    LAYERS,
    STREAM,
    Prepared,
    make_layer,
    prepared,
    workers_attention,
    workers_products,
)
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.attention.schedule import AttentionEngine
from tuner.ops.gemm.op import GemmOp
from tuner.packs.records import VERSION_OF_SECTION
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.runtime.binding.native import RuntimeFailure

PROGRAMMATIC = 6
CASES: dict[str, dict[str, Any]] = {
    **LAYERS,
    "plainly": {"kind": PlanKind.N_LAUNCHES},
    "one launch behind": {"kind": PlanKind.RUNS, "run_starts": (1,), "num_behind": 3},
    "new tokens": {"sizes": {"new_tokens": 3}, "dtype": Dtype.BF16},
    "to pages": {"pages": {"page_tokens": 16, "heads_first": False}},
    "by mma": {"by": AttentionEngine.MMA},
    "by mma, to pages": {"by": AttentionEngine.MMA, "pages": {"page_tokens": 64}, "num_behind": 3},
}


@pytest.mark.parametrize("asked", CASES.values(), ids=CASES)
def test_parameters_are_the_workers_in_the_order_of_the_manifest(
    recorder: Recorder, tmp_path: Path, asked: dict[str, Any]
) -> None:
    made = make_layer(**asked)
    order = made.kernel.manifest["launch_order"]
    assert [one["list"] for one in order[:2]] == ["launches", "attentions"], "the front goes first"
    with prepared(recorder, made, tmp_path) as one:
        for flags in (0, native.NO_PDL):
            is_programmatic = made.candidate.plan_kind.is_programmatic and flags == 0
            wanted = [
                workers_attention(one) if listed["list"] == "attentions"
                else workers_products(one, part, is_programmatic=is_programmatic)
                for listed, part in zip(order, one.program.parts, strict=True)
            ]  # fmt: skip
            recorder.clear()
            recorder.cuda.fake_parameter_bytes(max(map(len, wanted)))
            one.launch(flags)
            calls = recorder.calls("cuLaunchKernelEx")
            for call, parameter in zip(calls, wanted, strict=True):
                assert call.parameter[: len(parameter)] == parameter
                assert call.stream == STREAM
            programmatic = [call.attribute == (PROGRAMMATIC, 1) for call in calls]
            assert programmatic == [is_programmatic] * len(calls)


@pytest.mark.slow
def test_a_layer_that_begins_with_its_attention_runs_it_first(recorder: Recorder, tmp_path: Path) -> None:
    """An attention, o_proj and a block after it: more than the operands of an attention call allow."""
    workload = make_attention(d_out=512, form={"page_tokens": 16}).workload
    o_proj = workload.tile_ops[0]
    layer = replace(workload, ops=(*workload.ops, GemmOp(name="up", m=o_proj.m, n=256, k=512, source="o_proj")))
    with prepared(recorder, made_of(layer, candidate_of(layer)), tmp_path) as one:
        wanted = [workers_attention(one)]
        wanted += [workers_products(one, part, is_programmatic=True) for part in one.program.parts[1:]]
        recorder.clear()
        recorder.cuda.fake_parameter_bytes(max(map(len, wanted)))
        one.launch()
        found = [call.parameter for call in recorder.calls("cuLaunchKernelEx")]
        assert [a[: len(b)] for a, b in zip(found, wanted, strict=True)] == wanted
        with pytest.raises(RuntimeFailure, match="num_pages must be 1 to 2147483647"):
            one.launch(num_pages=0)
        assert {name for name, tensor in one.tensors if tensor.has_pages} == {"attention.keys", "attention.values"}


@pytest.mark.parametrize("name", LAYERS)
def test_tensors_are_the_manifests_but_for_those_between_launches(
    recorder: Recorder, tmp_path: Path, name: str
) -> None:
    made = make_layer(**LAYERS[name])
    dtypes = ("fp16", "bf16", "fp32", "int32")
    with prepared(recorder, made, tmp_path) as one:
        found = [
            {"name": n, "role": t.role.decode(), "dtype": dtypes[t.dtype], "shape": list(t.dims[: t.rank])}
            for n, t in one.tensors
        ]
        wanted = [
            {key: tensor[key] for key in ("name", "role", "dtype", "shape")}
            for tensor in made.kernel.manifest["tensors"]
            if tensor["role"] not in ("intermediate", "squares")
        ]
        assert found == wanted


def test_one_kernel_of_several_launches_is_loaded_once(recorder: Recorder, tmp_path: Path) -> None:
    recorder.clear()
    with prepared(recorder, make_layer(num_behind=3), tmp_path):
        cubins = [call.data[:12] for call in recorder.calls("cuModuleLoadData")]
        assert sorted(cubins) == [b"\x7fELF attenti", b"\x7fELF product"]
    assert len(recorder.calls("cuModuleUnload")) == 2


def test_parameters_are_packed_once_for_a_set_of_tensors(recorder: Recorder, tmp_path: Path) -> None:
    with prepared(recorder, make_layer(), tmp_path) as one:
        recorder.clear()
        for _ in range(3):
            one.launch()
        once = len(recorder.calls("cuTensorMapEncodeTiled"))
        assert once > 2
        one.launch(**{"qkv.w": 0x990000})
        assert len(recorder.calls("cuTensorMapEncodeTiled")) == 2 * once


def test_a_pack_says_which_layers_it_has_and_what_serves_a_context(recorder: Recorder, tmp_path: Path) -> None:
    made = [make_layer(sequences=n, sizes={"max_length": t}) for n, t in ((1, 500), (1, 900), (4, 500))]
    other, alone = make_layer(num_behind=3), make_attention()
    path, c, pack = tmp_path / "several.tunerpack", recorder.runtime, ctypes.c_void_p()
    entries = [table(*made, library=[(4, 5000)]), table(other)]
    write_pack([table(alone), *entries], path)
    native.checked(c, c.tuner_pack_open(str(path).encode(), ctypes.byref(pack)))
    shape, count, choice = native.LayerShape(), ctypes.c_uint32(), native.AttentionChoice()
    ops = []
    for index in range(2):
        assert c.tuner_pack_layer(pack, index, ctypes.byref(shape), ctypes.byref(count)) == native.OK
        ops.append(shape.ops)
        assert (shape.d_in, shape.num_in_front, shape.attention.d_out) == (256, 1, 256)
        assert (shape.attention.heads, shape.attention.kv_heads, shape.attention.head_dim) == (4, 2, 64)
    assert (count.value, c.tuner_pack_layer(pack, 2, None, None)) == (2, native.NONE)
    index = ops.index(b"qkv attention o_proj")
    assert ops[1 - index] == b"qkv attention o_proj gate_up down"

    def found(sequences: int, length: int) -> tuple[int, int, str]:
        status = c.tuner_layer_find(pack, index, sequences, length, ctypes.byref(choice))
        return status, choice.max_length, bytes(choice.digest).hex()[:8]

    digests = [one.kernel.digest[:8] for one in made]
    assert found(1, 1) == found(1, 500) == (native.OK, 500, digests[0])
    assert found(1, 501) == (native.OK, 900, digests[1])
    assert found(4, 500) == (native.OK, 500, digests[2])
    assert found(4, 501)[:2] == (native.LIBRARY, 5000)
    assert [found(*asked)[0] for asked in ((1, 901), (2, 500))] == [native.NONE] * 2
    assert (
        b"no entry for 2 sequences of up to 500 tokens of fp16 256 -> qkv 512 norm rotary -> attention"
        in c.tuner_error()
    )
    assert c.tuner_layer_find(pack, 2, 1, 1, ctypes.byref(choice)) == native.NONE
    assert b"has 2 layers, numbered from 0: there is no layer 2" in c.tuner_error()
    handle = ctypes.c_void_p()
    assert found(1, 1)[0] == native.OK
    memory = DeviceMemory(choice.memory_bytes)
    wrong = c.tuner_attention_prepare(pack, choice, memory.address, 0, 4, ctypes.byref(handle))
    assert wrong < 0
    assert b"use tuner_layer_prepare" in c.tuner_error()
    c.tuner_pack_close(pack)


def test_what_was_refused_and_an_abort_in_front_or_behind_are_told_until_reset(
    recorder: Recorder, tmp_path: Path
) -> None:
    with prepared(recorder, make_layer(), tmp_path) as one:
        refusal = native.AttentionRefusal()

        def said() -> tuple[int, ...]:
            status = one.c.tuner_layer_refused(one.layer, STREAM, ctypes.byref(refusal))
            return (status, refusal.kind, refusal.sequence, refusal.value, refusal.end)

        assert said() == (native.OK, 0, 0, 0, 0)
        ctypes.memmove(one.memory.address + one.program.refused_offset, struct.pack("<4i", 1, 3, 900, 701), 16)
        assert said() == (native.ABORTED, 1, 3, 900, 701)
        one.checked(one.c.tuner_layer_reset(one.layer, STREAM))
        assert said() == (native.OK, 0, 0, 0, 0)
        assert [part.tells_refused for part in one.program.parts] == [True, False, False], "qkv writes to the cache"
        record = struct.pack("<4i", 2, 1, 99, 80)
        ctypes.memmove(one.memory.address + (one.program.parts[0].abort_offset or 0) + 32, record, 16)
        assert said() == (native.ABORTED, 2, 1, 99, 80)
        one.checked(one.c.tuner_layer_reset(one.layer, STREAM))
        assert said()[0] == native.OK
        aborts = [part.abort_offset for part in one.program.parts]
        for at in aborts:
            assert at is not None, "the attention has bounded waits, too"
            ctypes.memmove(one.memory.address + at, struct.pack("<i", 1), 4)
            assert said()[:2] == (native.ABORTED, -1)
            one.checked(one.c.tuner_layer_reset(one.layer, STREAM))
            assert said()[0] == native.OK


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"qkv.w": 0}, r"qkv\.w is null, and the kernel needs it"),
        ({"attention.keys": 0}, r"attention\.keys is null"),
        ({"qkv.frequencies": 0x10008}, r"qkv\.frequencies is not aligned to 16 bytes"),
        ({"count": 3}, "3 addresses for the layer's 9 tensors: give one per tensor, in order"),
        ({"num_pages": 5}, "the cache has no pages: num_pages must be 0"),
    ],
)
def test_a_launch_of_wrong_tensors_is_refused(
    recorder: Recorder, tmp_path: Path, changed: dict[str, int], sentence: str
) -> None:
    with prepared(recorder, make_layer(), tmp_path) as one:
        recorder.clear()
        with pytest.raises(RuntimeFailure, match=sentence):
            one.launch(**changed)
        assert recorder.calls("cuLaunchKernelEx") == []


def test_a_simulated_layer_is_refused(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="this kernel was simulated: there is nothing to run"):
        Prepared(recorder, make_layer(simulated=True), tmp_path / "simulated.tunerpack")


def test_a_pack_of_an_older_version_still_opens(recorder: Recorder, tmp_path: Path) -> None:
    path, pack = tmp_path / "attentions.tunerpack", ctypes.c_void_p()
    write_pack([table(make_attention())], path)
    assert struct.unpack_from("<I", path.read_bytes(), 64 + 8) == (VERSION_OF_SECTION["attentions"],)
    native.checked(recorder.runtime, recorder.runtime.tuner_pack_open(str(path).encode(), ctypes.byref(pack)))
    assert recorder.runtime.tuner_pack_layer(pack, 0, None, None) == native.NONE
    recorder.runtime.tuner_pack_close(pack)
