"""What the runtime refuses, what it prepares, and how it reports an abort."""

from __future__ import annotations

import ctypes
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.attention_packs import make_attention, table
from tests.support.native.recorder import DeviceMemory, Recorder
from tests.support.packs import TILINGS, ffn, ladder, make
from tests.unit.runtime.opened import ADDRESSES, Opened, c_shape
from tests.unit.runtime.prepared_layer import make_layer
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.ops.gemm.pairs import ffn_pair
from tuner.packs.shapes import Shape
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.runtime.binding.native import RuntimeFailure

BAD_ARGUMENT, BAD_PACK, CUDA_ERROR, MISMATCH, NO_VARIANT = -1, -2, -4, -5, -7


def loaded_cubins(recorder: Recorder) -> list[bytes]:
    return [call.data for call in recorder.calls("cuModuleLoadData")]


def test_the_guarded_build_is_prepared_unless_another_is_asked_for(recorder: Recorder, tmp_path: Path) -> None:
    early = make(PlanKind.FUSED_PDL)
    for flags, cubin in (
        (0, b"\x7fELF guarded"),
        (native.AS_MEASURED, b"\x7fELF measured"),
        (native.SAFE_WEIGHTS, b"\x7fELF safe"),
    ):
        recorder.clear()
        with Opened(recorder, early, tmp_path, flags=flags):
            (data,) = loaded_cubins(recorder)
            assert data.startswith(cubin)
    recorder.clear()
    late = make(PlanKind.FUSED_PDL, assignment=Assignment.TICKET)  # it reads no weights early, so guarded is safe
    with Opened(recorder, late, tmp_path, flags=native.SAFE_WEIGHTS):
        assert loaded_cubins(recorder)[0].startswith(b"\x7fELF guarded")


def test_a_simulated_kernel_is_not_prepared(recorder: Recorder, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="this kernel was simulated") as caught:
        Opened(recorder, make(simulated=True), tmp_path)
    assert caught.value.status == NO_VARIANT


def test_workspaces_are_zeroed_and_told_where_the_hosts_record_is(recorder: Recorder, tmp_path: Path) -> None:
    for kind in (PlanKind.FUSED, PlanKind.TWO_LAUNCHES, PlanKind.TWO_STREAMS):
        recorder.clear()
        with Opened(recorder, make(kind, TILINGS[Engine.MMA]), tmp_path) as opened:
            (record,) = recorder.calls("cuMemHostAlloc")
            spaces = {one["workspace"]["index"]: one["workspace"] for one in opened.made.kernel.manifest["launches"]}
            offset = 0
            for index in sorted(spaces):
                data = opened.memory.read(offset, spaces[index]["zero_bytes"])
                assert data[192:200] == struct.pack("<Q", record.values[0])
                assert not any(data[:192] + data[200:])
                offset += -(-spaces[index]["bytes"] // 256) * 256


def test_an_abort_is_polled_without_the_driver_and_reset(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, make(PlanKind.FUSED_PDL), tmp_path) as opened:
        address = recorder.calls("cuMemHostAlloc")[0].values[0]
        recorder.clear()
        seen = native.AbortRecord()
        assert opened.c.tuner_abort_poll(opened.ffn, ctypes.byref(seen)) == native.OK
        ctypes.memmove(address, struct.pack("<IiiIIi", 1, 7, 3, 11, 12, 5), 24)
        assert opened.c.tuner_abort_poll(opened.ffn, ctypes.byref(seen)) == native.ABORTED
        assert [getattr(seen, name) for name, _ in seen._fields_] == [7, 3, 11, 12, 5]
        assert recorder.calls() == []
        ctypes.memset(opened.memory.address, 1, 64)
        opened.checked(opened.c.tuner_reset(opened.ffn, 0x99))
        assert opened.c.tuner_abort_poll(opened.ffn, ctypes.byref(seen)) == native.OK
        assert opened.memory.read(0, 192) == bytes(192)
        assert opened.memory.read(192, 8) == struct.pack("<Q", address)
        assert recorder.calls("cuStreamSynchronize")[-1].values[0] == 0x99
    with Opened(recorder, make(), tmp_path, flags=native.AS_MEASURED) as opened:
        assert opened.c.tuner_abort_poll(opened.ffn, ctypes.byref(seen)) == NO_VARIANT


@pytest.mark.parametrize(
    ("m", "changed", "sentence"),
    [
        (17, {}, "the kernel supports 1 to 16 rows, not 17"),
        (0, {}, "the kernel supports 1 to 16 rows, not 0"),
        *((16, {name: 0}, f"{name} is null, and the kernel needs it") for name in ADDRESSES),
        *((16, {name: at + 8}, f"{name} is not aligned to 16 bytes") for name, at in ADDRESSES.items()),
        *((16, {"y": at + 16}, f"y is written and overlaps {name}") for name, at in ADDRESSES.items() if name != "y"),
        (16, {"y": 2**64 - 256, "x": 2**64 - 128}, "y is written and overlaps x"),
        (16, {"y": 2**64 - 16, "w1": 2**64 - 16}, "y is written and overlaps w1"),
        (16, {"hidden": 2**64 - 16, "y": 2**64 - 16}, "y is written and overlaps hidden"),
        *(
            (16, {"hidden": at}, f"hidden is written and overlaps {name}")
            for name, at in ADDRESSES.items()
            if name not in ("hidden", "y")
        ),
    ],
)
def test_a_launch_of_wrong_tensors_is_refused_with_the_reason(
    recorder: Recorder, tmp_path: Path, m: int, changed: dict[str, int], sentence: str
) -> None:
    with Opened(recorder, make(workload=ffn(16, full=True)), tmp_path) as opened:
        recorder.clear()
        with pytest.raises(RuntimeFailure, match=sentence) as caught:
            opened.launch(m, **changed)
        assert caught.value.status == BAD_ARGUMENT
        assert recorder.calls() == []


def test_flags_of_a_launch_that_are_none_are_refused(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, make(), tmp_path) as opened:
        recorder.clear()
        for flags in (2, 3, 1 << 31):
            with pytest.raises(RuntimeFailure, match=f"flags are {flags:#x}: give 0 or TUNER_NO_PDL") as caught:
                opened.launch(16, flags=flags)
            assert caught.value.status == BAD_ARGUMENT
        assert recorder.calls() == []


@pytest.mark.parametrize(
    ("changed", "sizes", "sentence"),
    [
        ({}, (0, 1), "sequences and length are 0 and 1: give at least 1 sequence"),
        ({}, (-(2**31), 1), "sequences and length are -2147483648 and 1"),
        ({}, (4, -1), "sequences and length are 4 and -1"),
        ({}, (4, -(2**31)), "sequences and length are 4 and -2147483648"),
        ({"heads": 0}, (4, 1), "heads, kv_heads, head_dim and new_tokens are 0, 2, 64 and 1: each must be at least 1"),
        ({"kv_heads": -1}, (4, 1), "each must be at least 1"),
        ({"head_dim": -(2**31)}, (4, 1), "each must be at least 1"),
        ({"new_tokens": 0}, (4, 1), "each must be at least 1"),
        ({"page_tokens": -1}, (4, 1), "page_tokens, window and d_out are -1, 0 and 0: none may be negative"),
        ({"window": -5}, (4, 1), "page_tokens, window and d_out are 0, -5 and 0"),
        ({"d_out": -1}, (4, 1), "page_tokens, window and d_out are 0, 0 and -1"),
    ],
)
def test_an_attention_that_cannot_be_is_a_wrong_argument(
    recorder: Recorder, tmp_path: Path, changed: dict[str, int], sizes: tuple[int, int], sentence: str
) -> None:
    c, path = recorder.runtime, tmp_path / "one.tunerpack"
    write_pack([table(make_attention()), table(make_layer())], path)
    pack, shape, choice = ctypes.c_void_p(), native.AttentionShape(), native.AttentionChoice()
    native.checked(c, c.tuner_pack_open(str(path).encode(), ctypes.byref(pack)))
    native.checked(c, c.tuner_pack_attention(pack, 0, ctypes.byref(shape), None))
    for name, value in changed.items():
        setattr(shape, name, value)
    with pytest.raises(RuntimeFailure, match=sentence) as caught:
        native.checked(c, c.tuner_attention_find(pack, shape, *sizes, ctypes.byref(choice)))
    assert caught.value.status == BAD_ARGUMENT
    if not changed:
        with pytest.raises(RuntimeFailure, match=sentence):
            native.checked(c, c.tuner_layer_find(pack, 0, *sizes, ctypes.byref(choice)))
    c.tuner_pack_close(pack)


def test_what_is_no_file_is_said_to_be_none(recorder: Recorder, tmp_path: Path) -> None:
    c, pack = recorder.runtime, ctypes.c_void_p()
    with pytest.raises(RuntimeFailure, match=f"{tmp_path} cannot be read: Is a directory") as caught:
        native.checked(c, c.tuner_pack_open(str(tmp_path).encode(), ctypes.byref(pack)))
    assert caught.value.status == BAD_PACK


def test_a_residual_may_be_the_output(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, make(workload=ffn(16, full=True)), tmp_path) as opened:
        opened.launch(16, y=ADDRESSES["residual"])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"activation": 99}, "activation is 99: give TUNER_IDENTITY, TUNER_RELU, TUNER_GELU"),
        ({"activation": -1}, "activation is -1"),
        ({"dtype": 2}, "dtype is 2: give TUNER_FP16, TUNER_BF16 or TUNER_FP8_E4M3"),
        ({"dtype": -1}, "dtype is -1"),
        ({"flags": 16}, "flags are 0x10: use only TUNER_GATED"),
        ({"d_hidden": 0}, "d_in, d_hidden and d_out are 64, 0 and 128: each must be at least 1"),
    ],
)
def test_a_shape_that_cannot_be_is_a_wrong_argument_and_not_an_absent_shape(
    recorder: Recorder, tmp_path: Path, changed: dict[str, int], sentence: str
) -> None:
    with Opened(recorder, make(), tmp_path) as opened:
        shape = c_shape(ladder(opened.made.kernel).shape)
        for name, value in changed.items():
            setattr(shape, name, value)
        with pytest.raises(RuntimeFailure, match=sentence) as caught:
            opened.checked(opened.c.tuner_ffn_find(opened.pack, shape, 16, ctypes.byref(native.Choice())))
        assert caught.value.status == BAD_ARGUMENT


def test_a_plan_that_needs_all_ctas_is_refused_where_they_do_not_fit(recorder: Recorder, tmp_path: Path) -> None:
    many = ffn_pair(m=160, d_in=64, d_hidden=512, d_out=512)
    made = make(PlanKind.FUSED_PDL, TILINGS[Engine.MMA], workload=many)
    assert made.kernel.manifest["launches"][0]["needs_all_ctas"] is True
    grid = made.kernel.manifest["launches"][0]["grid"][0]
    recorder.cuda.fake_device(9, 0, grid - 1, 13000)
    with pytest.raises(
        RuntimeFailure, match=f"needs its {grid} CTAs resident at once, and this device holds {grid - 1}"
    ):
        Opened(recorder, made, tmp_path)
    assert len(recorder.calls("cuModuleUnload")) == 1


def test_a_failed_call_is_named_and_nothing_is_left_behind(recorder: Recorder, tmp_path: Path) -> None:
    recorder.fail("cuMemcpyHtoDAsync_v2", 700)
    with pytest.raises(RuntimeFailure, match=r"cuMemcpyHtoDAsync failed: CUDA_ERROR_OF_THE_RECORDER \(700\)"):
        Opened(recorder, make(PlanKind.TWO_STREAMS, TILINGS[Engine.MMA]), tmp_path)
    for made, undone in (
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuEventCreate", "cuEventDestroy_v2"),
    ):
        assert len(recorder.calls(made)) == len(recorder.calls(undone))
    recorder.clear()
    recorder.cuda.fake_context(None)
    with pytest.raises(RuntimeFailure, match="this thread has no CUDA context"):
        Opened(recorder, make(), tmp_path)


def test_a_kernel_is_loaded_once_for_each_context_and_unloaded_behind_its_last_user(
    recorder: Recorder, tmp_path: Path
) -> None:
    with Opened(recorder, make(PlanKind.FUSED_PDL), tmp_path) as opened:
        others = []
        for context in (0x1000, 0x2000, 0x2000):
            recorder.cuda.fake_context(ctypes.c_void_p(context))
            other, memory = ctypes.c_void_p(), opened.memory.address
            prepared = opened.c.tuner_ffn_prepare(opened.pack, opened.choice, memory, 0x77, 0, 1, ctypes.byref(other))
            opened.checked(prepared)
            others.append(other)
        assert len(recorder.calls("cuModuleLoadData")) == 2, "the first context's is shared, and the second's"
        for other, num_unloaded in zip(others, (0, 0, 1), strict=True):
            opened.c.tuner_ffn_release(other)
            assert len(recorder.calls("cuModuleUnload")) == num_unloaded
    assert len(recorder.calls("cuModuleUnload")) == 2


@pytest.mark.parametrize(
    ("device", "status", "sentence"),
    [
        ((9, 0, 132, 13000), 0, ""),
        ((9, 0, 132, 13020), 0, ""),
        ((9, 0, 114, 13000), native.OTHER_CARD, "measured on a card with 132 SMs, but this device has 114"),
        ((9, 0, 132, 12080), MISMATCH, "need a driver for CUDA 13, but this one is for CUDA 12"),
        ((10, 0, 148, 13000), MISMATCH, "are for sm_90a, but this device is sm_100"),
        ((8, 0, 108, 13000), MISMATCH, "are for sm_90a, but this device is sm_80"),
    ],
)
def test_a_pack_says_whether_its_kernels_run_on_a_device(
    recorder: Recorder, tmp_path: Path, device: tuple[int, int, int, int], status: int, sentence: str
) -> None:
    with Opened(recorder, make(), tmp_path) as opened:
        recorder.cuda.fake_device(*device)
        assert opened.c.tuner_pack_check(opened.pack, 0) == status
        assert sentence in opened.c.tuner_error().decode()


def test_every_row_has_one_answer(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "ladder.tunerpack"
    entry = ladder(make().kernel, make(workload=ffn(48)).kernel)
    write_pack([entry], path)
    pack, choice = ctypes.c_void_p(), native.Choice()
    c = recorder.runtime
    native.checked(c, c.tuner_pack_open(str(path).encode(), ctypes.byref(pack)))
    shape = c_shape(entry.shape)
    for m in (*range(1, 600), 4096):
        status = c.tuner_ffn_find(pack, shape, m, ctypes.byref(choice))
        rung = entry.at(m)
        assert rung is not None
        assert status == (native.LIBRARY if rung.kernel is None else native.OK)
        assert (choice.m_lo, choice.m_hi) == (rung.m_lo, rung.m_hi)
        if rung.kernel is not None:
            assert bytes(choice.digest).hex() == rung.kernel.digest
    assert c.tuner_ffn_find(pack, shape, 4097, ctypes.byref(choice)) == native.NONE
    other = c_shape(Shape(dtype="bf16", activation="silu", d_in=64, d_hidden=256, d_out=128))
    assert c.tuner_ffn_find(pack, other, 1, ctypes.byref(choice)) == native.NONE
    c.tuner_pack_close(pack)


def test_a_byte_that_differs_is_refused_wherever_the_runtime_reads(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "one.tunerpack"
    write_pack([ladder(make().kernel)], path)
    data = path.read_bytes()
    c, pack = recorder.runtime, ctypes.c_void_p()
    read = (
        64,
        64 + 16,
        64 + 100,
        64 + 128,
        64 + 400,
        data.index(b"\x7fELF measured") + 3,
        data.index(b"TUNR\x05") + 70,
    )
    for place in read:
        broken = bytearray(data)
        broken[place] ^= 4
        whole = (ctypes.c_char * len(broken)).from_buffer(broken)
        assert c.tuner_pack_open_bytes(ctypes.addressof(whole), len(broken), ctypes.byref(pack)) == BAD_PACK
    for size in (0, 63, 64, 150, 400, len(data) // 2):
        path.write_bytes(data[:size])
        assert c.tuner_pack_open(str(path).encode(), ctypes.byref(pack)) == BAD_PACK
        assert c.tuner_error()
    assert c.tuner_pack_open(b"/nowhere.tunerpack", ctypes.byref(pack)) == BAD_PACK


def test_threads_that_prepare_a_kernel_at_a_time_load_its_module_once(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, make(PlanKind.FUSED_PDL), tmp_path) as opened:
        c, layers = opened.c, [(ctypes.c_void_p(), DeviceMemory(opened.choice.memory_bytes)) for _ in range(2)]

        def prepare(one: tuple[ctypes.c_void_p, DeviceMemory]) -> int:
            ffn, memory = one
            given = (opened.pack, opened.choice, memory.address, 0x77, native.AS_MEASURED, 0, ctypes.byref(ffn))
            return int(c.tuner_ffn_prepare(*given))

        recorder.clear()
        recorder.cuda.fake_slow_loads(30)
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(prepare, layers)) == [native.OK] * 2
        recorder.cuda.fake_slow_loads(0)
        assert len(loaded_cubins(recorder)) == 1
        for ffn, _ in layers:
            c.tuner_ffn_release(ffn)
        assert len(recorder.calls("cuModuleUnload")) == 1


def test_an_error_is_told_to_the_thread_whose_call_failed(recorder: Recorder) -> None:
    def failed(index: int) -> bytes:
        assert recorder.runtime.tuner_layer_find(None, index, 1, 1, None) == BAD_ARGUMENT
        return bytes(recorder.runtime.tuner_error())

    with ThreadPoolExecutor(1) as threads:
        assert bytes(threads.submit(recorder.runtime.tuner_error).result()) == b"nothing has failed"
        assert failed(0) == b"pack and choice must not be null"
        assert bytes(threads.submit(recorder.runtime.tuner_error).result()) == b"nothing has failed"
