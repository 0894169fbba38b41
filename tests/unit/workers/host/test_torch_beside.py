"""PyTorch is timed with the finals, or is their library if it is compiled; no fault of it affects the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tuner.core.trial.evaluator import FinalsTimes
from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.reports.torch_time import TorchCalls, TorchTime
from tuner.errors import Quarantined, WorkerError
from tuner.workers.host.gpu_process import ChildLost
from tuner.workers.host.torch_beside import beside_compiled, beside_eager
from tuner.workers.protocol.messages import FinalsAnswer, OtherTimes

Beside = Callable[[FinalsTimes, Callable[[], FinalsAnswer]], FinalsTimes]

#: Only the library with PyTorch, three rounds.
ANSWER = FinalsAnswer(
    times_us=((10.0, 20.0, 30.0),), reasons=("",), num_dropped=0, others=(OtherTimes(times_us=(12.0, 25.0, 36.0)),)
)
#: Library, ours, and one that failed, two rounds in each of two processes.
FINALS = FinalsTimes(
    times_us=((10.0, 10.0, 10.0, 10.0), (9.0, 9.0, 9.0, 9.0), None),
    reasons=("", "", "it aborted"),
    process_of_round=(0, 0, 1, 1),
    num_dropped=1,
    stage_s={"warm": 1.0},
)
#: The same three with torch.compile, three rounds in a separate process.
BESIDE = FinalsAnswer(
    times_us=((10.0, 20.0, 30.0), (9.5, 19.0, 28.0), (1.0, 1.0, 1.0)),
    reasons=("", "", ""),
    num_dropped=4,
    others=(OtherTimes(times_us=(9.0, 18.0, 27.0)),),
)


def test_its_time_is_a_median_and_so_is_its_ratio_to_the_library_round_by_round() -> None:
    found = beside_eager(FINALS, lambda: ANSWER)
    assert replace(found, torch=None) == FINALS
    torch = found.torch
    assert torch is not None
    assert (torch.time_us, torch.num_rounds, torch.reason, torch.calls) == (25.0, 3, "", TorchCalls.EAGER)
    assert torch.library_speedup == pytest.approx(1.2)
    assert torch.speedup_of(1.5) == pytest.approx(1.8)
    assert torch.speedup_of(None) is None


def test_eager_calls_are_never_the_library_of_the_finals() -> None:
    found = beside_eager(FINALS, lambda: replace(ANSWER, others=(OtherTimes(times_us=(9.0, 18.0, 27.0)),)))
    assert found.times_us == FINALS.times_us
    assert found.torch is not None
    assert not found.torch.is_library


def test_where_torch_compile_is_ahead_it_is_the_library_of_the_rounds_that_all_shared_with_it() -> None:
    found = beside_compiled(FINALS, lambda: BESIDE)
    assert found.times_us == ((9.0, 18.0, 27.0), (9.5, 19.0, 28.0), None)
    assert found.reasons == ("", "", "it aborted")
    assert (found.process_of_round, found.num_dropped, found.stage_s) == ((0, 0, 0), 4, FINALS.stage_s)
    assert found.torch == TorchTime(
        time_us=18.0, library_speedup=pytest.approx(0.9), num_rounds=3, calls=TorchCalls.COMPILED
    )
    assert found.torch.is_library
    assert found.torch.speedup_of(1.5) == 1.5


def test_where_the_vendors_library_is_ahead_of_torch_compile_the_finals_stand_as_they_were_held() -> None:
    found = beside_compiled(FINALS, lambda: replace(BESIDE, others=(OtherTimes(times_us=(11.0, 22.0, 33.0)),)))
    assert replace(found, torch=None) == FINALS
    assert found.torch is not None
    assert (found.torch.library_speedup, found.torch.is_library) == (pytest.approx(1.1), False)
    assert found.torch.speedup_of(1.5) == pytest.approx(1.65)


def test_one_that_fails_beside_torch_compile_has_its_reason() -> None:
    failing = replace(BESIDE, times_us=(BESIDE.times_us[0], None, None), reasons=("", "wrong numbers", "again"))
    found = beside_compiled(FINALS, lambda: failing)
    assert found.times_us == ((9.0, 18.0, 27.0), None, None)
    assert found.reasons == ("", "wrong numbers", "it aborted")


@pytest.mark.parametrize("beside", [beside_eager, beside_compiled])
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (replace(BESIDE, others=(OtherTimes(reason="WorkerError: PyTorch cannot be imported"),)), "cannot be imported"),
        (replace(BESIDE, times_us=(None, None, None), reasons=("it stopped", "", "")), "it stopped"),
        (replace(BESIDE, others=(OtherTimes(),)), "was not timed"),
    ],
)
def test_where_there_is_none_the_reason_stands_in_its_place(beside: Beside, answer: FinalsAnswer, reason: str) -> None:
    found = beside(FINALS, lambda: answer)
    assert replace(found, torch=None) == FINALS
    assert found.torch is not None
    assert (found.torch.time_us, found.torch.library_speedup, found.torch.num_rounds) == (None, None, 0)
    assert reason in found.torch.reason
    assert found.torch.speedup_of(1.5) is None
    assert not found.torch.is_library


@pytest.mark.parametrize(
    ("beside", "calls"), [(beside_eager, TorchCalls.EAGER), (beside_compiled, TorchCalls.COMPILED)]
)
@pytest.mark.parametrize(
    "error",
    [
        WorkerError("the card does not answer"),
        Quarantined("somebody else uses the card"),
        ChildLost(FailureKind.OUT_OF_MEMORY, "the GPU process died (signal 9)"),
    ],
)
def test_a_fault_of_pytorch_or_of_the_card_is_a_reason_and_never_an_error(
    beside: Beside, calls: TorchCalls, error: WorkerError
) -> None:
    def fails() -> FinalsAnswer:
        raise error

    assert beside(FINALS, fails) == replace(FINALS, torch=TorchTime(reason=str(error), calls=calls))
