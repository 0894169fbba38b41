"""What one trial tries: how the ops are launched, and by which schedule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tuner.core.problem.objective import LaunchStyle
from tuner.core.schedule.ordering import Schedule


class PlanKind(StrEnum):
    """How the ops are launched. "Do not fuse" is an answer, so every kind is measured in every job."""

    #: The vendor library's calls in a graph.
    LIBRARY = "library"
    #: Our kernel, one launch per op, in a graph.
    TWO_LAUNCHES = "two_launches"
    #: The same, by programmatic dependent launch: each begins while the one before it ends.
    TWO_LAUNCHES_PDL = "two_launches_pdl"
    #: Our kernel, one launch per op of a pair, side by side on two streams; tiles of the second wait for tiles of the
    #: first by signals that the launches share.
    TWO_STREAMS = "two_streams"
    #: One persistent launch for all ops.
    FUSED = "fused"
    #: The same, by programmatic dependent launch behind its neighbour.
    FUSED_PDL = "fused_pdl"

    @property
    def is_ours(self) -> bool:
        """Whether it runs a generated kernel, and so needs a schedule."""
        return self is not PlanKind.LIBRARY

    @property
    def is_fused(self) -> bool:
        """Whether one launch computes every op."""
        return self in (PlanKind.FUSED, PlanKind.FUSED_PDL)

    @property
    def is_programmatic(self) -> bool:
        """Whether its launches overlap with their neighbours, by programmatic dependent launch."""
        return self in (PlanKind.TWO_LAUNCHES_PDL, PlanKind.FUSED_PDL)

    @property
    def launch_style(self) -> LaunchStyle:
        """The same, by name."""
        return LaunchStyle.PDL if self.is_programmatic else LaunchStyle.PLAIN

    @property
    def launched_plainly(self) -> PlanKind:
        """The kind that differs only in that its launches do not overlap with their neighbours."""
        return PlanKind(self.removesuffix("_pdl"))


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """What one trial tries."""

    plan_kind: PlanKind
    #: None for the library alone.
    schedule: Schedule | None = None
