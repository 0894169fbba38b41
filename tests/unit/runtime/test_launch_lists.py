"""A partially enqueued call is reported, and later calls are refused until the reset, so that no rows are stale."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from tests.support.native.recorder import Recorder
from tests.support.packs import TILINGS, ffn, make
from tests.unit.runtime.opened import Opened
from tests.unit.runtime.prepared_layer import Prepared, make_layer
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.tiling import Engine
from tuner.runtime.binding.native import RuntimeFailure

CUDA_ERROR, NEEDS_RESET = -4, -8
SIDE = 0x5EED0
#: Kinds with several launches, and which call of the driver fails, after how many successful ones.
PARTLY = [
    (PlanKind.TWO_LAUNCHES, 1),
    (PlanKind.TWO_LAUNCHES_PDL, 1),
    (PlanKind.TWO_STREAMS, 1),  # the start gate
    (PlanKind.TWO_STREAMS, 2),
]


def opened(recorder: Recorder, folder: Path, kind: PlanKind) -> Opened:
    return Opened(recorder, make(kind, TILINGS[Engine.MMA], workload=ffn(16)), folder)


@pytest.mark.parametrize(("kind", "behind"), PARTLY, ids=str)
def test_what_follows_launches_that_were_enqueued_in_part_is_refused_until_the_reset(
    recorder: Recorder, tmp_path: Path, kind: PlanKind, behind: int
) -> None:
    with opened(recorder, tmp_path, kind) as one:
        recorder.fail("cuLaunchKernelEx", 719, behind=behind)
        with pytest.raises(
            RuntimeFailure, match="1 of 2 launches were enqueued: reset it before the next call"
        ) as first:
            one.launch(16)
        assert first.value.status == CUDA_ERROR
        assert "(719)" in str(first.value)
        recorder.clear()
        for _ in range(2):
            with pytest.raises(RuntimeFailure, match="enqueued only some of its launches: reset") as then:
                one.launch(16)
            assert then.value.status == NEEDS_RESET
        assert recorder.calls() == []
        ctypes.memset(one.memory.address, 1, 128)
        one.checked(one.c.tuner_reset(one.ffn, 0x99))
        assert one.memory.read(0, 128) == bytes(128)
        one.launch(16)


def test_a_first_launch_that_fails_leaves_nothing_to_reset(recorder: Recorder, tmp_path: Path) -> None:
    for kind in (PlanKind.FUSED, PlanKind.TWO_LAUNCHES, PlanKind.TWO_STREAMS):
        with opened(recorder, tmp_path, kind) as one:
            recorder.fail("cuLaunchKernelEx", 719)
            with pytest.raises(RuntimeFailure, match=r"\(719\)$"):
                one.launch(16)
            recorder.clear()
            one.launch(16)


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_side_stream_joins_again_whatever_fails(recorder: Recorder, tmp_path: Path, behind: int) -> None:
    with opened(recorder, tmp_path, PlanKind.TWO_STREAMS) as one:
        recorder.clear()
        recorder.fail("cuLaunchKernelEx", 719, behind=behind)
        with pytest.raises(RuntimeFailure):
            one.launch(16)
        record, wait = recorder.calls()[-2:]
        assert (record.name, record.values[1]) == ("cuEventRecord", SIDE)
        assert (wait.name, wait.values[0], wait.values[1]) == ("cuStreamWaitEvent", 0x99, record.values[0])


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
def test_a_pair_that_cannot_join_needs_a_reset_and_one_that_cannot_fork_does_not(
    recorder: Recorder, tmp_path: Path, call: str
) -> None:
    with opened(recorder, tmp_path, PlanKind.TWO_STREAMS) as one:
        recorder.fail(call, 719)
        with pytest.raises(RuntimeFailure, match=r"\(719\)$"):
            one.launch(16)
        assert recorder.calls("cuLaunchKernelEx") == []
        recorder.clear()
        recorder.fail(call, 719, behind=1)
        with pytest.raises(RuntimeFailure, match=r"joining the side stream failed.*; 2 of 2 launches were enqueued"):
            one.launch(16)
        recorder.clear()
        with pytest.raises(RuntimeFailure, match="reset it first"):
            one.launch(16)


def test_a_reset_waits_for_the_side_stream_too(recorder: Recorder, tmp_path: Path) -> None:
    with opened(recorder, tmp_path, PlanKind.TWO_STREAMS) as one:
        recorder.clear()
        one.checked(one.c.tuner_reset(one.ffn, 0x99))
        names = [(call.name, call.values[0]) for call in recorder.calls()]
        assert names[0] == ("cuStreamSynchronize", SIDE)
        assert names[-1] == ("cuStreamSynchronize", 0x99)


@pytest.mark.parametrize("behind", [1, 2])
def test_a_layer_that_was_enqueued_in_part_is_refused_until_the_reset(
    recorder: Recorder, tmp_path: Path, behind: int
) -> None:
    one = Prepared(recorder, make_layer(), tmp_path / "layer.tunerpack")
    try:
        recorder.fail("cuLaunchKernelEx", 719, behind=behind)
        with pytest.raises(RuntimeFailure, match=f"{behind} of 3 launches were enqueued: reset it"):
            one.launch()
        recorder.clear()
        with pytest.raises(RuntimeFailure, match="reset it first") as then:
            one.launch()
        assert then.value.status == NEEDS_RESET
        assert recorder.calls() == []
        one.checked(one.c.tuner_layer_reset(one.layer, 0x99))
        one.launch()
    finally:
        one.close()


def test_nothing_is_done_on_the_null_stream_but_what_a_caller_asks_for_there(
    recorder: Recorder, tmp_path: Path
) -> None:
    """For all calls with a stream: none uses stream 0 unless 0 was given."""
    place = {"cuMemsetD8Async": 3, "cuMemcpyHtoDAsync_v2": 2, "cuMemcpyDtoHAsync_v2": 2, "cuStreamSynchronize": 0}
    place |= {"cuLaunchKernelEx": 4, "cuEventRecord": 1, "cuStreamWaitEvent": 0}
    recorder.clear()
    with opened(recorder, tmp_path, PlanKind.TWO_STREAMS) as one:
        one.launch(16)
        one.checked(one.c.tuner_reset(one.ffn, 0x99))
    layer = Prepared(recorder, make_layer(), tmp_path / "layer.tunerpack")
    layer.launch()
    layer.checked(layer.c.tuner_layer_refused(layer.layer, 0x99, None))
    layer.checked(layer.c.tuner_layer_reset(layer.layer, 0x99))
    layer.close()
    calls = recorder.calls()
    assert {call.name for call in calls} >= place.keys()
    assert not [call.name for call in calls if call.name in place and call.values[place[call.name]] == 0]
    assert not {call.name for call in calls} & {"cuMemsetD8_v2", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2"}
