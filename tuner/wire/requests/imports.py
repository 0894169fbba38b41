"""Winners of an external search, from a client."""

from __future__ import annotations

from pydantic import Field

from tuner.core.problem.gpu import parse_target
from tuner.core.trial.job import Objective, default_regime
from tuner.core.trial.priors import Found
from tuner.wire.base.fields import Strict
from tuner.wire.base.view import View
from tuner.wire.requests.given import GivenSchedule, candidates_of
from tuner.wire.requests.jobs import TargetId
from tuner.wire.requests.pairs import AnswerPair, workload_of
from tuner.wire.requests.searches import ObjectiveRequest

#: Maximum number of winners from one search.
MAX_WINNERS = 64


class ImportedWinner(GivenSchedule):
    """One of the best candidates of the external search."""

    time_us: float = Field(gt=0, le=1e9)
    speedup: float = Field(gt=0, le=1e6, description="the library's time divided by its time, where it was measured")


class ImportRequest(Strict):
    """The body of `POST /imports`."""

    target: TargetId
    pair: AnswerPair
    objective: ObjectiveRequest = ObjectiveRequest()
    source: str = Field(min_length=1, max_length=64, description="its origin, e.g. a job's id")
    kernel_version: str = Field(
        default="", max_length=16, description=("version of the kernel sources where it was found; empty if unknown")
    )
    winners: list[ImportedWinner] = Field(min_length=1, max_length=MAX_WINNERS)

    def to_found(self) -> list[Found]:
        """The winners as stored, with what is known about them.

        Raises:
            InvalidInput: the target is unknown, the pair is malformed, or a schedule is not legal for the pair on the
                target.
        """
        workload = workload_of(self.pair)
        regime = self.objective.regime or default_regime(workload)
        objective = Objective(l2=self.objective.l2, regime=regime)
        candidates = candidates_of("winners", self.winners, workload, parse_target(self.target).id)
        return [
            Found(
                workload=workload,
                objective=objective,
                candidate=candidate,
                time_us=winner.time_us,
                speedup=winner.speedup,
                source=f"imported {self.source}",
                kernel_version=self.kernel_version,
            )
            for winner, candidate in zip(self.winners, candidates, strict=True)
        ]


class ImportView(View):
    """The result of an import."""

    num_imported: int = Field(description="winners that were new")
    num_known: int = Field(description="winners that had already been imported")
