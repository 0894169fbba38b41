"""How long anything may last: each limit is said here, and nowhere else. `tuner.settings` lets a user change them.

A hang ends twice. A kernel that waits gives up after `spin_limit_cycles`, and leaves a record of what it waited for. A
process that answers nothing is killed at its deadline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tuner.errors import InvalidInput

#: The finalists of a search, about; a study has up to four times as many.
FINALISTS = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Handed as one value from the settings to whatever measures; all above 0."""

    #: SM clock cycles that one wait of a kernel may last, about half a second; then the candidate failed as a hang.
    spin_limit_cycles: int = 1_000_000_000
    #: Seconds from the word to start to a process's first answer: imports, context, probe. Of a compiler's too.
    start_deadline_s: float = 60.0
    #: Seconds of one compile.
    build_deadline_s: float = 60.0
    #: Seconds for inputs, references and baseline of a new problem.
    prepare_deadline_s: float = 90.0
    #: Seconds for one candidate: its numbers, its rounds.
    evaluate_deadline_s: float = 20.0
    #: Seconds for all finalists of a search in one of the two processes; as much again for each `FINALISTS` more.
    finals_deadline_s: float = 90.0
    #: Seconds on top of these for torch.compile, where it is among them.
    torch_compile_deadline_s: float = 90.0
    #: Seconds for all passes of the profiler.
    count_deadline_s: float = 60.0

    def finals_s(self, num_works: int) -> float:
        """For so many in one process, seconds."""
        return self.finals_deadline_s * max(1.0, num_works / FINALISTS)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                remedy = f"the default is {field.default:g}"
                raise InvalidInput(field.name, f"must be a number above 0, got {value:g}", remedy)
