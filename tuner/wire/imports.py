"""Winners of a search elsewhere, as a client hands them in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field

from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.job import Objective, default_regime
from tuner.core.trial.priors import Found
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.wire.fields import Strict
from tuner.wire.pairs import AnswerPair, workload_of
from tuner.wire.requests import TargetId
from tuner.wire.searches import ObjectiveRequest
from tuner.wire.view import View

#: Winners of one search, at most.
MAX_WINNERS = 64
#: A count is below this.
_MOST = 2**31

KindName = Annotated[PlanKind, Field(strict=False, description="one of ours")]


class ImportedWinner(Strict):
    """One of the best candidates of the search."""

    plan_kind: KindName
    schedule: dict[str, Any] = Field(description="tiling and ordering, as a trial has them")
    time_us: float = Field(gt=0, le=1e9)
    speedup: float = Field(gt=0, le=1e6, description="the library's time there over it")


class ImportRequest(Strict):
    """The body of `POST /imports`."""

    target: TargetId
    pair: AnswerPair
    objective: ObjectiveRequest = ObjectiveRequest()
    source: str = Field(min_length=1, max_length=64, description="where it was found, e.g. a job's id")
    kernel_version: str = Field(default="", max_length=16, description="of the kernel sources there; empty if unknown")
    winners: list[ImportedWinner] = Field(min_length=1, max_length=MAX_WINNERS)

    def to_found(self) -> list[Found]:
        """What is known now.

        Raises:
            InvalidInput: the target is unknown, the pair is not well formed, or a schedule is not legal for both.
        """
        workload, target = workload_of(self.pair), parse_target(self.target)
        regime = self.objective.regime or default_regime(workload.num_rows)
        found = []
        for index, winner in enumerate(self.winners):
            schedule = _schedule(index, winner)
            try:
                check_schedule(workload, target.gpu, schedule)
                check_kind(workload, target.gpu, winner.plan_kind, schedule)
            except IllegalSchedule as error:
                raise _refusal(index, f"is not legal for this pair on {target.id}: {error}") from error
            except (TypeError, ValueError, ArithmeticError) as error:
                raise _refusal(index, f"is none: {error}") from error
            found.append(self._found(workload, Objective(l2=self.objective.l2, regime=regime), winner, schedule))
        return found

    def _found(self, workload: Workload, objective: Objective, winner: ImportedWinner, schedule: Schedule) -> Found:
        return Found(
            workload=workload,
            objective=objective,
            candidate=Candidate(plan_kind=winner.plan_kind, schedule=schedule),
            time_us=winner.time_us,
            speedup=winner.speedup,
            source=f"imported {self.source}",
            kernel_version=self.kernel_version,
        )


def _schedule(index: int, winner: ImportedWinner) -> Schedule:
    if not winner.plan_kind.is_ours:
        raise InvalidInput(f"winners.{index}.plan_kind", "is the library, which has no schedule", "leave it out")
    for number in _numbers(winner.schedule):
        if not isinstance(number, int) or abs(number) >= _MOST:
            raise _refusal(index, f"has the number {str(number)[:20]}, and counts are whole and below 2^31")
    try:
        return Schedule.from_json(winner.schedule)
    except IllegalSchedule as error:
        raise _refusal(index, f"is none: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refusal(index, f"is none: {error!r}") from error


def _numbers(value: Any) -> Iterator[int | float]:
    """All that a schedule holds; each is a count."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def _refusal(index: int, problem: str) -> InvalidInput:
    return InvalidInput(f"winners.{index}.schedule", problem, "give one as `GET /jobs/{id}/trials` has it")


class ImportView(View):
    """What became of an import."""

    num_imported: int = Field(description="winners that were not known before")
    num_known: int = Field(description="winners that had been imported already")
