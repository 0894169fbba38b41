"""Other programs beside candidates: PyTorch's calls, and those of a user's own. Numbers first, as of a candidate."""

from __future__ import annotations

from typing import Any

from tuner.core.trial.reports.torch_time import TorchCalls

from ...protocol.messages import OwnProgram
from ..tensors.check import WrongNumbers, check_others
from ..tensors.integrity import Overwritten
from .problem import ProblemOnCard


def captured_other(prepared: ProblemOnCard, other: TorchCalls | OwnProgram) -> Any:
    """Its chain over the same buffers, captured, once what it computes is right; or why there is none.

    Raises:
        Overwritten: it wrote where it must not.
    """
    try:
        if isinstance(other, TorchCalls):
            from ..library.torch_baseline import torch_runner

            chain: Any = torch_runner(prepared.data, other)
        else:
            from ..library.own_program import captured

            chain = captured(other, prepared.data, prepared.timer.capture)
        check_others(prepared.data, prepared.comparer, chain.outputs_of)
    except WrongNumbers as error:
        chain = str(error)
    except Exception as error:  # whatever is wrong with it, the finals need none
        return f"{type(error).__name__}: {error}"
    if found := prepared.overwritten():
        raise Overwritten(f"it wrote outside its outputs: {found}")
    return chain
