"""Whether a stream's device, or its green context, can hold a kernel's CTAs, with and without clusters."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.support.attention_packs import table
from tests.support.cases import wgmma
from tests.support.native.recorder import Recorder
from tests.support.packs import TILINGS, Made, ladder, make
from tests.unit.runtime.opened import Opened
from tests.unit.runtime.prepared_layer import Prepared, make_layer
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.ops.gemm.pairs import ffn_pair
from tuner.packs.write import write_pack
from tuner.runtime.binding import native
from tuner.runtime.binding.native import RuntimeFailure

MISMATCH = -5
GREEN, ELSEWHERE = 0x6EE, 0x99
MANY = ffn_pair(m=160, d_in=64, d_hidden=512, d_out=512)


def many(kind: PlanKind = PlanKind.FUSED_PDL) -> Made:
    """A kernel all of whose CTAs must be resident."""
    return make(kind, TILINGS[Engine.MMA], workload=MANY)


def in_clusters(kind: PlanKind = PlanKind.FUSED_PDL) -> Made:
    return make(kind, wgmma((64, 64, 64), cluster_m=2), workload=MANY)


def grid_of(made: Made) -> int:
    return int(made.kernel.manifest["launches"][0]["grid"][0])


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_a_launch_on_a_stream_of_too_few_sms_is_refused_by_name(
    recorder: Recorder, tmp_path: Path, kind: PlanKind
) -> None:
    made = many(kind)
    sentence = f"needs its {grid_of(made)} CTAs resident at once, and the 16 SMs of this stream's context hold 16"
    with Opened(recorder, made, tmp_path) as one:
        recorder.cuda.fake_green(ctypes.c_void_p(GREEN), 16)
        for _ in range(2):  # a refusal is not forgotten
            with pytest.raises(RuntimeFailure, match=sentence) as caught:
                one.launch(16, stream=GREEN)
            assert caught.value.status == MISMATCH
        assert recorder.calls("cuLaunchKernelEx") == []
        one.launch(16, stream=ELSEWHERE)
        with pytest.raises(RuntimeFailure, match=sentence):
            one.launch(16, stream=GREEN)
        recorder.cuda.fake_green(ctypes.c_void_p(GREEN), grid_of(made))
        one.launch(16, stream=GREEN)


def test_a_kernel_is_not_prepared_on_a_stream_of_too_few_sms(recorder: Recorder, tmp_path: Path) -> None:
    recorder.cuda.fake_green(ctypes.c_void_p(0x77), 16)  # the context in which it is prepared
    with pytest.raises(RuntimeFailure, match="the 16 SMs of this stream's context hold 16"):
        Opened(recorder, many(), tmp_path)
    assert len(recorder.calls("cuModuleUnload")) == 1


def test_a_stream_is_asked_once_and_not_while_it_is_captured(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, many(), tmp_path) as one:
        recorder.cuda.fake_capture(1)
        recorder.cuda.fake_green(ctypes.c_void_p(GREEN), 16)
        recorder.clear_calls()
        one.launch(16, stream=GREEN)
        assert recorder.calls("cuStreamGetCtx") == []
        recorder.cuda.fake_capture(0)
        with pytest.raises(RuntimeFailure, match="the 16 SMs"):
            one.launch(16, stream=GREEN)
        recorder.clear_calls()
        for _ in range(5):
            one.launch(16, stream=ELSEWHERE)
        assert len(recorder.calls("cuStreamGetCtx")) == 1


def test_a_kernel_that_needs_no_residency_asks_no_stream(recorder: Recorder, tmp_path: Path) -> None:
    with Opened(recorder, make(PlanKind.TWO_LAUNCHES, TILINGS[Engine.MMA]), tmp_path) as one:
        recorder.clear()
        one.launch(16)
        assert {call.name for call in recorder.calls()} == {"cuLaunchKernelEx"}


@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.FUSED_PDL])
def test_clusters_are_what_the_driver_says_and_no_more_than_the_sms_hold(
    recorder: Recorder, tmp_path: Path, kind: PlanKind
) -> None:
    made = in_clusters(kind)
    clusters = grid_of(made) // 2
    recorder.cuda.fake_occupancy(1, clusters)
    with Opened(recorder, made, tmp_path) as one:
        recorder.cuda.fake_green(ctypes.c_void_p(GREEN), 2 * clusters - 1)  # whatever the driver reports for the device
        with pytest.raises(
            RuntimeFailure, match=f"in clusters of 2, and the {2 * clusters - 1} SMs .* hold {2 * clusters - 2}"
        ):
            one.launch(16, stream=GREEN)
    recorder.cuda.fake_occupancy(1, clusters - 1)
    with pytest.raises(
        RuntimeFailure, match=f"resident at once in clusters of 2, and this device holds {2 * clusters - 2}"
    ):
        Opened(recorder, made, tmp_path)


def test_of_a_kernel_in_clusters_that_waits_for_none_one_must_fit(recorder: Recorder, tmp_path: Path) -> None:
    made = in_clusters(PlanKind.TWO_LAUNCHES)
    assert not made.kernel.manifest["launches"][0]["needs_all_ctas"]
    recorder.cuda.fake_occupancy(1, 1)
    with Opened(recorder, made, tmp_path) as one:
        one.launch(16)
    recorder.cuda.fake_occupancy(1, 0)
    with pytest.raises(RuntimeFailure, match=r"has a grid of \d+ CTAs in clusters of 2, and this device holds 0"):
        Opened(recorder, made, tmp_path)


def test_an_older_driver_tells_of_the_device_alone(recorder: Recorder, tmp_path: Path) -> None:
    made = many()
    recorder.fail("cuCtxGetDevResource", 801)
    recorder.cuda.fake_green(ctypes.c_void_p(GREEN), 16)
    with Opened(recorder, made, tmp_path) as one:
        one.launch(16, stream=GREEN)
    recorder.cuda.fake_device(9, 0, grid_of(made) - 1, 13000)
    with pytest.raises(RuntimeFailure, match=f"and this device holds {grid_of(made) - 1}"):
        Opened(recorder, made, tmp_path)


def test_a_layers_launches_are_asked_of_its_stream(recorder: Recorder, tmp_path: Path) -> None:
    made = make_layer(PlanKind.RUNS, (1,), num_behind=3)
    needed = [one["grid"][0] for one in made.kernel.manifest["launches"] if one["needs_all_ctas"]]
    assert needed
    one = Prepared(recorder, made, tmp_path / "layer.tunerpack")
    try:
        recorder.cuda.fake_green(ctypes.c_void_p(ELSEWHERE), max(needed) - 1)
        with pytest.raises(RuntimeFailure, match="SMs of this stream's context"):
            one.launch()
        assert recorder.calls("cuLaunchKernelEx") == []
    finally:
        one.close()


def checked(recorder: Recorder, path: Path) -> tuple[int, str]:
    """The pack's verdict on device 0, and its message."""
    pack = ctypes.c_void_p()
    assert recorder.runtime.tuner_pack_open(str(path).encode(), ctypes.byref(pack)) == 0
    recorder.clear_calls()
    status = recorder.runtime.tuner_pack_check(pack, 0)
    sentence = recorder.runtime.tuner_error().decode() if status else ""
    recorder.runtime.tuner_pack_close(pack)
    assert len(recorder.calls("cuModuleLoadData")) == len(recorder.calls("cuModuleUnload"))
    return status, sentence


def test_a_pack_says_of_a_sister_card_that_holds_fewer_clusters_that_it_does_not_run_there(
    recorder: Recorder, tmp_path: Path
) -> None:
    path, made = tmp_path / "one.tunerpack", in_clusters()
    write_pack([ladder(made.kernel)], path)
    clusters = grid_of(made) // 2
    recorder.cuda.fake_occupancy(1, clusters)
    assert checked(recorder, path) == (0, "")
    recorder.cuda.fake_device(9, 0, 114, 13000)  # a card with other clocks, which holds them
    status, sentence = checked(recorder, path)
    assert (status, "but this device has 114" in sentence) == (native.OTHER_CARD, True)
    recorder.cuda.fake_device(9, 0, 132, 13000)
    recorder.cuda.fake_occupancy(1, clusters - 1)  # as many SMs, but fewer clusters
    status, sentence = checked(recorder, path)
    assert status == MISMATCH
    assert f"in clusters of 2, and this device holds {2 * clusters - 2}" in sentence
    assert "(fused_pdl: " in sentence


def test_a_pack_of_a_layer_says_so_too(recorder: Recorder, tmp_path: Path) -> None:
    path, made = tmp_path / "layer.tunerpack", make_layer(PlanKind.RUNS, (1,), num_behind=3)
    write_pack([table(made)], path)
    needed = max(one["grid"][0] for one in made.kernel.manifest["launches"] if one["needs_all_ctas"])
    assert checked(recorder, path) == (0, "")
    recorder.cuda.fake_green(None, needed - 1)
    status, sentence = checked(recorder, path)
    assert status == MISMATCH
    assert f"the {needed - 1} SMs of this stream's context hold {needed - 1}: use the library (runs: " in sentence


def test_a_pack_is_checked_without_a_context_in_the_devices_own(recorder: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "one.tunerpack"
    write_pack([ladder(many().kernel)], path)
    recorder.cuda.fake_context(None)
    assert checked(recorder, path) == (0, "")
    names = [call.name for call in recorder.calls()]
    order = ["cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuModuleLoadData", "cuModuleUnload"]
    order += ["cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]
    assert [name for name in names if name in order] == order
    recorder.fail("cuModuleGetFunction", 500)
    status, sentence = checked(recorder, path)
    assert (status, "cuModuleGetFunction failed" in sentence) == (-4, True)
    assert len(recorder.calls("cuDevicePrimaryCtxRelease_v2")) == 1
