"""The plan kinds: one table has all properties of each kind, and nothing else lists them.

A new kind is a member and a row here. Code that needs more than the row (its plans, its launches, its forecast) uses
the row's properties, not its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tuner.core.problem.objective import LaunchStyle
from tuner.core.problem.workload import MAX_OPS
from tuner.core.units import ratio


class PlanKind(StrEnum):
    """How the ops are launched, the simplest kind first: a tie goes to the simpler one.

    "Do not fuse" is a possible answer, so every job measures every kind that the card supports.
    """

    #: The vendor library's calls in a graph.
    LIBRARY = "library"
    #: Our kernel, one launch per op, in a graph.
    TWO_LAUNCHES = "two_launches"
    #: The same, with programmatic dependent launch: each begins while the previous one ends.
    TWO_LAUNCHES_PDL = "two_launches_pdl"
    #: Our kernel, one launch per op of a chain of three or more, in a graph.
    N_LAUNCHES = "n_launches"
    #: The same, with programmatic dependent launch.
    N_LAUNCHES_PDL = "n_launches_pdl"
    #: Our kernel, one launch per run of neighbouring ops of a chain, with programmatic dependent launch.
    RUNS = "runs"
    #: Our kernel, one launch per op of a pair, side by side on two streams; tiles of the second wait for tiles of the
    #: first through signals that the launches share.
    TWO_STREAMS = "two_streams"
    #: One persistent launch for all ops.
    FUSED = "fused"
    #: The same, with programmatic dependent launch, overlapping the previous launch.
    FUSED_PDL = "fused_pdl"
    #: A kernel computes several ops, or all, as one op, with programmatic dependent launch; tile ops on one side of it
    #: share a launch. Its schedules are those of the workload with that op.
    JOINED = "joined"

    @property
    def row(self) -> KindRow:
        """Its properties."""
        return PLAN_KINDS[self]

    @property
    def heading(self) -> str:
        """Its name in texts, e.g. ``two launches pdl``."""
        return self.replace("_", " ")

    def at_speed(self, speedup: float | None) -> str:
        """What to run and its gain over the library, e.g. ``two launches, 1.81x``; for the library its name."""
        return self.heading if speedup is None or not self.is_ours else f"{self.heading}, {ratio(speedup)}"

    @property
    def is_ours(self) -> bool:
        """Whether it runs a generated kernel, and so needs a schedule."""
        return self.row.is_ours

    @property
    def is_fused(self) -> bool:
        """Whether one launch computes every op."""
        return self.row.is_fused

    @property
    def is_apart(self) -> bool:
        """Whether our kernel is launched once per op."""
        return self.is_ours and not self.is_fused and not self.is_in_runs

    @property
    def is_in_runs(self) -> bool:
        """Whether our kernel is launched once per run of neighbouring ops, as given by the ordering."""
        return self.row.is_in_runs

    def is_for(self, num_ops: int) -> bool:
        """Whether every workload of `num_ops` ops has it: some kinds are for chains of three or more, others for
        smaller ones. Whether ops can be joined depends on the ops."""
        return not self.is_joined and self.row.fewest_ops <= num_ops <= self.row.most_ops

    @property
    def is_side_by_side(self) -> bool:
        """Whether its launches run at the same time, on two streams, and share signals."""
        return self.row.is_side_by_side

    @property
    def is_joined(self) -> bool:
        """Whether its schedules are those of a workload in which one op computes several."""
        return self.row.is_joined

    @property
    def launch_style(self) -> LaunchStyle:
        """Whether its launches overlap with their neighbours."""
        return self.row.launch_style

    @property
    def is_programmatic(self) -> bool:
        """Whether its launches overlap with their neighbours, with programmatic dependent launch."""
        return self.launch_style is LaunchStyle.PDL

    @property
    def base(self) -> PlanKind | None:
        """The kind whose best schedules it launches differently; None for the library, and for kinds that are
        searched."""
        return self.row.base

    @property
    def num_finalists(self) -> int:
        """Maximum number of its trials in the finals."""
        return self.row.num_finalists

    @property
    def is_searched(self) -> bool:
        """Whether the search has a model of it and looks for schedules for it, if a workload has the kind."""
        return self.is_ours and self.base is None

    @property
    def launched_plainly(self) -> PlanKind:
        """The kind that differs only in that its launches do not overlap with their neighbours."""
        return self.base if self.is_programmatic and self.base else self


@dataclass(frozen=True, kw_only=True)
class KindRow:
    """Properties of a plan kind."""

    #: What it does, as a sentence.
    sentence: str
    #: Maximum number of its trials in the finals. The best trial of a search is often the luckiest rather than the
    #: fastest.
    num_finalists: int = 1
    #: Whether it runs a generated kernel.
    is_ours: bool = True
    #: Whether one launch computes every op.
    is_fused: bool = False
    #: Whether its launches run at the same time, on two streams, and share signals; only for a pair, with queues.
    is_side_by_side: bool = False
    #: Whether there is a launch for each run of neighbouring ops.
    is_in_runs: bool = False
    #: Whether it launches the workload of `joined_workload`.
    is_joined: bool = False
    #: Minimum number of ops of a workload that has it.
    fewest_ops: int = 1
    most_ops: int = MAX_OPS
    #: Whether its launches overlap with their neighbours.
    launch_style: LaunchStyle = LaunchStyle.PLAIN
    #: The kind whose best schedules it launches differently; None for the library, and for kinds that are searched.
    base: PlanKind | None = None
    #: Its positions in the cycle in which the search tries the kinds that have a base; empty for other kinds. Two kinds
    #: that never occur in the same workload may share a position.
    turns: tuple[int, ...] = ()


#: One row per kind, in the order of the members.
PLAN_KINDS: Mapping[PlanKind, KindRow] = {
    PlanKind.LIBRARY: KindRow(
        sentence="The vendor library's calls, one per op, in a CUDA graph.",
        is_ours=False,
    ),
    PlanKind.TWO_LAUNCHES: KindRow(
        sentence="Our kernel launched once per op, in a CUDA graph.",
        most_ops=2,
    ),
    PlanKind.TWO_LAUNCHES_PDL: KindRow(
        sentence="Our kernel launched once per op; each launch begins while the previous one ends.",
        launch_style=LaunchStyle.PDL,
        base=PlanKind.TWO_LAUNCHES,
        turns=(1,),
        most_ops=2,
    ),
    PlanKind.N_LAUNCHES: KindRow(
        sentence="Our kernel launched once per op of a chain, in a CUDA graph.",
        fewest_ops=3,
    ),
    PlanKind.N_LAUNCHES_PDL: KindRow(
        sentence="Our kernel launched once per op of a chain; each launch begins while the previous one ends.",
        launch_style=LaunchStyle.PDL,
        base=PlanKind.N_LAUNCHES,
        turns=(1,),
        fewest_ops=3,
    ),
    PlanKind.RUNS: KindRow(
        sentence="Our kernel launched once per run of neighbouring ops; each begins while the previous one ends.",
        num_finalists=2,
        launch_style=LaunchStyle.PDL,
        is_in_runs=True,
        fewest_ops=3,
    ),
    PlanKind.TWO_STREAMS: KindRow(
        sentence="Our kernel launched once per op on two streams, so that the launches run side by side.",
        is_side_by_side=True,
        base=PlanKind.FUSED,
        turns=(2,),
        fewest_ops=2,
        most_ops=2,
    ),
    PlanKind.FUSED: KindRow(
        sentence="One persistent launch computes every op.",
        num_finalists=3,
        is_fused=True,
    ),
    PlanKind.FUSED_PDL: KindRow(
        sentence="One persistent launch computes every op, and begins while the previous launch ends.",
        num_finalists=2,
        is_fused=True,
        launch_style=LaunchStyle.PDL,
        base=PlanKind.FUSED,
        turns=(0, 3),
    ),
    PlanKind.JOINED: KindRow(
        sentence="A kernel computes several ops as one op; each launch begins while the previous one ends.",
        num_finalists=3,
        is_fused=True,
        is_joined=True,
        launch_style=LaunchStyle.PDL,
    ),
}


def in_turn(num_ops: int) -> tuple[PlanKind, ...]:
    """The kinds with a base for `num_ops` ops, in the cycle in which the search takes them."""
    places = {turn: kind for kind, row in PLAN_KINDS.items() if kind.is_for(num_ops) for turn in row.turns}
    return tuple(places[turn] for turn in sorted(places))
