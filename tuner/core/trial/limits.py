"""How long anything may last: all limits are defined here. `tuner.settings` lets a user change them.

Two limits end a hang. A wait in a kernel is aborted after `spin_limit_cycles`, with a record of what it waited for. A
process that does not respond is killed at its deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tuner.errors import InvalidInput

#: The approximate number of finalists of a search; a study has up to four times as many.
FINALISTS = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits, passed as one value from the settings to everything that measures; all above 0."""

    #: SM clock cycles that one wait of a kernel may last, about half a second; then the candidate has failed as a hang.
    spin_limit_cycles: int = 1_000_000_000
    #: Seconds from starting a process to its first answer: imports, context, probe. Also for a compiler's process.
    start_deadline_s: float = 60.0
    #: Seconds of one compile.
    build_deadline_s: float = 60.0
    #: Seconds for inputs, references and baseline of a new problem.
    prepare_deadline_s: float = 90.0
    #: Seconds for checking the numbers of one candidate and for its rounds.
    evaluate_deadline_s: float = 20.0
    #: Seconds for all finalists of a search in one of the two processes; the same again for each further `FINALISTS`.
    finals_deadline_s: float = 90.0
    #: Additional seconds for torch.compile, if it is among the finalists.
    torch_compile_deadline_s: float = 90.0
    #: Seconds for all passes of the profiler.
    count_deadline_s: float = 60.0

    def finals_s(self, num_works: int) -> float:
        """Seconds for `num_works` finalists in one process."""
        return self.finals_deadline_s * max(1.0, num_works / FINALISTS)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                remedy = f"the default is {field.default:g}"
                raise InvalidInput(field.name, f"must be a number above 0, got {value:g}", remedy)
