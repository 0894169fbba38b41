"""PyTorch's time for a job's workload: eager calls as a figure next to the finals, torch.compile as a competitor in
them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: torch.compile's most thorough mode. Its own graphs would copy inputs, so we capture the graph.
COMPILE_MODE = "max-autotune-no-cudagraphs"


class TorchCalls(StrEnum):
    """How PyTorch is called."""

    #: Eager calls, as models are written: only reported, measured after the finals.
    EAGER = "eager"
    #: Calls compiled by torch.compile's most thorough mode: the library of the finals, if faster than the vendor's.
    COMPILED = "compiled"


@dataclass(frozen=True, kw_only=True)
class TorchTime:
    """PyTorch's calls in shared rounds with the vendor's library; if compiled, with all finalists."""

    #: Microseconds, the median of the rounds; None if there is no time.
    time_us: float | None = None
    #: PyTorch's time divided by that of the vendor's library, the median of the rounds; None if there is no time.
    library_speedup: float | None = None
    #: Rounds that count.
    num_rounds: int = 0
    #: Why there is no time; empty otherwise.
    reason: str = ""
    calls: TorchCalls = TorchCalls.EAGER

    @property
    def is_library(self) -> bool:
        """Whether it is the library of the finals: compiled, and faster than the vendor's."""
        is_ahead = self.library_speedup is not None and self.library_speedup < 1
        return is_ahead and self.calls is TorchCalls.COMPILED

    def speedup_of(self, over_library: float | None) -> float | None:
        """PyTorch's time divided by that of a finalist, from its gain over the library of the finals."""
        if self.library_speedup is None or over_library is None:
            return None
        return over_library if self.is_library else self.library_speedup * over_library
