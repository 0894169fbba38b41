"""What PyTorch takes for a job's workload: a figure beside the finals, never a finalist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TorchTime:
    """PyTorch's own calls in rounds that they share with the library, once the finals are over."""

    #: Microseconds, the median of the rounds; None where there is none.
    time_us: float | None = None
    #: PyTorch's time over the library's, the median of the rounds; None as above.
    library_speedup: float | None = None
    #: Rounds that count.
    num_rounds: int = 0
    #: Why there is no time; empty otherwise.
    reason: str = ""

    def speedup_of(self, over_library: float | None) -> float | None:
        """PyTorch's time over that of a finalist, of which the gain over the library is known."""
        if self.library_speedup is None or over_library is None:
            return None
        return self.library_speedup * over_library
