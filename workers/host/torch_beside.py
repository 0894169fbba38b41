"""PyTorch beside the finals: whatever is wrong with it, the finals stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tuner.core.trial.evaluator import FinalsTimes
from tuner.core.trial.reports.torch_time import TorchCalls, TorchTime
from tuner.core.trial.stats import median, paired_ratios
from tuner.errors import WorkerError

from ..protocol.messages import FinalsAnswer

#: Rounds in one process, of which the vendor's library is the first and PyTorch the last.
Rounds = Callable[[], FinalsAnswer]


def beside_eager(times: FinalsTimes, time_together: Rounds) -> FinalsTimes:
    """The finals, and what `time_together`, rounds of the library alone beside PyTorch, says of PyTorch."""
    answer = _asked(time_together)
    return replace(times, torch=_torch_time(answer, TorchCalls.EAGER))


def beside_compiled(times: FinalsTimes, time_together: Rounds) -> FinalsTimes:
    """The finals, with torch.compile's time by `time_together`, rounds of all finalists beside it.

    Where it is ahead of the vendor's library, it is the library of the finals. They are those rounds then, which all
    finalists shared with it.
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
    """Its answer; or why there is none, for no fault of PyTorch is raised."""
    try:
        return time_together()
    except WorkerError as error:  # a lost child too
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
