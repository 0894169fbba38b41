"""PyTorch next to the finals. If it fails, the finals are still valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tuner.core.trial.evaluator import FinalsTimes
from tuner.core.trial.reports.torch_time import TorchCalls, TorchTime
from tuner.core.trial.stats import median, paired_ratios
from tuner.errors import WorkerError

from ..protocol.messages import FinalsAnswer

#: Rounds in one process, with the vendor's library first and PyTorch last.
Rounds = Callable[[], FinalsAnswer]


def beside_eager(times: FinalsTimes, time_together: Rounds) -> FinalsTimes:
    """The finals, with PyTorch's time from `time_together`: rounds of only the library and PyTorch."""
    answer = _asked(time_together)
    return replace(times, torch=_torch_time(answer, TorchCalls.EAGER))


def beside_compiled(times: FinalsTimes, time_together: Rounds) -> FinalsTimes:
    """The finals, with torch.compile's time from `time_together`: rounds with all finalists.

    If it is faster than the vendor's library, it becomes the library of the finals, which then consist of these rounds,
    shared by all finalists.
    """
    answer = _asked(time_together)
    torch = _torch_time(answer, TorchCalls.COMPILED)
    torch_us = None if isinstance(answer, str) else answer.others[0].times_us
    if isinstance(answer, str) or torch_us is None or not torch.is_library:
        return replace(times, torch=torch)
    reasons = tuple(before or now for before, now in zip(times.reasons, answer.reasons, strict=True))
    shared = (torch_us, *answer.times_us[1:])
    return replace(
        times,
        times_us=tuple(None if reason else times_us for times_us, reason in zip(shared, reasons, strict=True)),
        reasons=reasons,
        process_of_round=(0,) * len(torch_us),
        num_dropped=answer.num_dropped,
        torch=torch,
    )


def _asked(time_together: Rounds) -> FinalsAnswer | str:
    """PyTorch's answer, or the reason why there is none, since PyTorch's errors are not raised."""
    try:
        return time_together()
    except WorkerError as error:  # including a lost child
        return str(error)


def _torch_time(answer: FinalsAnswer | str, calls: TorchCalls) -> TorchTime:
    if isinstance(answer, str):
        return TorchTime(reason=answer, calls=calls)
    library_us, torch = answer.times_us[0], answer.others[0]
    if not torch.times_us or library_us is None:
        return TorchTime(reason=torch.reason or answer.reasons[0] or "PyTorch was not timed", calls=calls)
    return TorchTime(
        time_us=median(torch.times_us),
        library_speedup=median(paired_ratios(torch.times_us, library_us)),
        num_rounds=len(torch.times_us),
        calls=calls,
    )
