"""PyTorch's time beside the finals: whatever is wrong with it, the finals stand."""

from __future__ import annotations

from collections.abc import Callable

from tuner.core.trial.stats import median, paired_ratios
from tuner.core.trial.torch_time import TorchTime
from tuner.errors import WorkerError

from ..protocol.messages import FinalsAnswer


def torch_time(time_together: Callable[[], FinalsAnswer]) -> TorchTime:
    """What `time_together`, rounds of the library alone beside PyTorch, says of PyTorch; no fault of it is raised."""
    try:
        answer = time_together()
    except WorkerError as error:  # a lost child too
        return TorchTime(reason=str(error))
    library_us = answer.times_us[0]
    if answer.torch_us is None or library_us is None:
        return TorchTime(reason=answer.torch_reason or answer.reasons[0] or "PyTorch was not timed")
    return TorchTime(
        time_us=median(answer.torch_us),
        library_speedup=median(paired_ratios(answer.torch_us, library_us)),
        num_rounds=len(answer.torch_us),
    )
