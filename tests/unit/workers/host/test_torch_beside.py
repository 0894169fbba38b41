"""PyTorch's time is taken after the finals, and no fault of it reaches the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuner.core.trial.outcome import FailureKind
from tuner.core.trial.torch_time import TorchTime
from tuner.errors import Quarantined, WorkerError
from tuner.workers.host.gpu_process import ChildLost
from tuner.workers.host.torch_beside import torch_time
from tuner.workers.protocol.messages import FinalsAnswer

#: The library alone beside PyTorch, three rounds.
ANSWER = FinalsAnswer(times_us=((10.0, 20.0, 30.0),), reasons=("",), num_dropped=0, torch_us=(12.0, 25.0, 36.0))


def test_its_time_is_a_median_and_so_is_its_ratio_to_the_library_round_by_round() -> None:
    found = torch_time(lambda: ANSWER)
    assert (found.time_us, found.num_rounds, found.reason) == (25.0, 3, "")
    assert found.library_speedup == pytest.approx(1.2)
    assert found.speedup_of(1.5) == pytest.approx(1.8)
    assert found.speedup_of(None) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (replace(ANSWER, torch_us=None, torch_reason="WorkerError: PyTorch cannot be imported"), "cannot be imported"),
        (replace(ANSWER, times_us=(None,), reasons=("it aborted",)), "it aborted"),
        (replace(ANSWER, torch_us=None), "was not timed"),
    ],
)
def test_where_there_is_none_the_reason_stands_in_its_place(answer: FinalsAnswer, reason: str) -> None:
    found = torch_time(lambda: answer)
    assert (found.time_us, found.library_speedup, found.num_rounds) == (None, None, 0)
    assert reason in found.reason
    assert found.speedup_of(1.5) is None


@pytest.mark.parametrize(
    "error",
    [
        WorkerError("the card does not answer"),
        Quarantined("somebody else uses the card"),
        ChildLost(FailureKind.OUT_OF_MEMORY, "the GPU process died (signal 9)"),
    ],
)
def test_a_fault_of_pytorch_or_of_the_card_is_a_reason_and_never_an_error(error: WorkerError) -> None:
    def fails() -> FinalsAnswer:
        raise error

    assert torch_time(fails) == TorchTime(reason=str(error))
