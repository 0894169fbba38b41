"""Schedules as a client gives them: what a job is to try, and what a search elsewhere has found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.wire.base.fields import Strict

#: Schedules of one job, at most.
MAX_SCHEDULES = 256
#: A count is below this.
_MOST = 2**31

KindName = Annotated[PlanKind, Field(strict=False, description="one of ours")]


class GivenSchedule(Strict):
    """Our candidate."""

    plan_kind: KindName
    schedule: dict[str, Any] = Field(description="tiling and ordering, in the form that a trial has")


def candidates_of(
    field: str, given: Sequence[GivenSchedule], workload: Workload, target_id: str
) -> tuple[Candidate, ...]:
    """The candidates of the list that `field` names.

    Raises:
        InvalidInput: the target is unknown, or one is none, or is not legal for the workload on it.
    """
    gpu = parse_target(target_id).gpu if given else None
    found = []
    for index, one in enumerate(given):
        candidate = Candidate(plan_kind=one.plan_kind, schedule=_schedule(f"{field}.{index}", one))
        assert gpu is not None
        assert candidate.schedule is not None
        try:
            check_schedule(workload, gpu, candidate.schedule)
            check_kind(workload, gpu, one.plan_kind, candidate.schedule)
        except IllegalSchedule as error:
            raise _refusal(f"{field}.{index}", f"is not legal for this pair on {target_id}: {error}") from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise _refusal(f"{field}.{index}", f"is none: {error}") from error
        found.append(candidate)
    return tuple(found)


def _schedule(field: str, one: GivenSchedule) -> Schedule:
    if not one.plan_kind.is_ours:
        raise InvalidInput(f"{field}.plan_kind", "is the library, which has no schedule", "leave it out")
    for number in _numbers(one.schedule):
        if not isinstance(number, int) or abs(number) >= _MOST:
            raise _refusal(field, f"has the number {str(number)[:20]}; counts must be whole and below 2^31")
    try:
        return Schedule.from_json(one.schedule)
    except IllegalSchedule as error:
        raise _refusal(field, f"is none: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _refusal(field, f"is none: {error!r}") from error


def _numbers(value: Any) -> Iterator[int | float]:
    """All that a schedule holds; each is a count."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def _refusal(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}.schedule", problem, "use the form of `GET /jobs/{id}/trials`")
