"""Schedules from a client: those for a job to try, and those from an external search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field

from tuner.core.legal.legality import check_candidate
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, in_fewest_launches
from tuner.core.schedule.one_line import read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import IllegalSchedule, InvalidInput
from tuner.wire.base.fields import Strict

#: Maximum number of schedules in a job.
MAX_SCHEDULES = 256
#: Upper limit of the counts in a schedule.
_MOST = 2**31

Line = Annotated[str, Field(max_length=1000)]
KindName = Annotated[PlanKind, Field(strict=False, description="one of ours")]


class GivenSchedule(Strict):
    """A schedule to try, and how to launch it."""

    plan_kind: KindName | None = Field(
        default=None, description="null: the plan kind with the fewest launches possible"
    )
    schedule: dict[str, Any] | Line = Field(
        description="tiling and ordering, as in a trial; or the schedule's line as printed"
    )


def candidates_of(
    field: str, given: Sequence[GivenSchedule], workload: Workload, target_id: str
) -> tuple[Candidate, ...]:
    """The candidates of a list of given schedules, whose field is called `field`.

    Raises:
        InvalidInput: the target is unknown, or a schedule is invalid, or not legal for the workload on it.
    """
    gpu = parse_target(target_id).gpu if given else None
    found = []
    for index, one in enumerate(given):
        schedule = _schedule(f"{field}.{index}", one)
        assert gpu is not None
        try:
            candidate = in_fewest_launches(workload, schedule)
            if one.plan_kind is not None:
                candidate = Candidate(plan_kind=one.plan_kind, schedule=schedule)
            check_candidate(workload, gpu, candidate)
        except IllegalSchedule as error:
            raise _refusal(f"{field}.{index}", f"is not legal for this pair on {target_id}: {error}") from error
        except (TypeError, ValueError, ArithmeticError) as error:
            raise _refusal(f"{field}.{index}", f"is not valid: {error}") from error
        found.append(candidate)
    return tuple(found)


def _schedule(field: str, one: GivenSchedule) -> Schedule:
    if one.plan_kind is not None and not one.plan_kind.is_ours:
        raise InvalidInput(f"{field}.plan_kind", "is the library, which has no schedule", "leave it out")
    asked = _line(field, one.schedule) if isinstance(one.schedule, str) else one.schedule
    for number in _numbers(asked):
        if not isinstance(number, int) or abs(number) >= _MOST:
            raise _refusal(field, f"has the number {str(number)[:20]}; counts must be whole and below 2^31")
    try:
        return Schedule.from_json(asked)
    except IllegalSchedule as error:
        raise _refusal(field, f"is not valid: {error}") from error
    except KeyError as error:
        raise _refusal(field, f"is not valid: it lacks {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise _refusal(field, "is not valid: a part of it has another form") from error


def _line(field: str, text: str) -> dict[str, Any]:
    try:
        return read_line(text).to_json()
    except InvalidInput as error:
        raise InvalidInput(f"{field}.schedule", error.problem, error.remedy) from error


def _numbers(value: Any) -> Iterator[int | float]:
    """All numbers in a schedule; each of them is a count."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)
    elif isinstance(value, int | float):
        yield value


def _refusal(field: str, problem: str) -> InvalidInput:
    return InvalidInput(f"{field}.schedule", problem, "pass one as in `GET /jobs/{id}/trials`, or its line")
