"""Other programs next to candidates: PyTorch's calls, and a user's own programs. Their results are checked first, like
a candidate's.
"""

from __future__ import annotations

from typing import Any

from tuner.core.trial.reports.torch_time import TorchCalls

from ...protocol.messages import OwnProgram
from ..tensors.check import WrongNumbers, check_others
from ..tensors.integrity import Overwritten
from .problem import ProblemOnCard


def captured_other(prepared: ProblemOnCard, other: TorchCalls | OwnProgram) -> Any:
    """A program's chain over the same buffers, captured after its results were checked; or why there is none.

    Raises:
        Overwritten: it wrote to memory that it must not write.
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
    except Exception as error:  # the finals continue without it, whatever the error
        return f"{type(error).__name__}: {error}"
    if found := prepared.overwritten():
        raise Overwritten(f"it wrote outside its outputs: {found}")
    return chain
