"""Schedules that were given for a job, as files, trials or lines. Such a job tries nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tuner.client.documents.orders import names_of, ordered, read_order
from tuner.core.problem.asked import pair_of, workload_of
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate, in_fewest_launches
from tuner.core.schedule.one_line import is_line, read_line
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.errors import InvalidInput
from tuner.schedule_files.json_file import read_json
from tuner.schedule_files.reading import named_trial, read_schedule

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class GivenSchedules:
    """The schedules that a job was given, and their workload."""

    workload: Workload
    #: In the form of `POST /jobs`.
    candidates: list[dict[str, Any]]
    #: The GPU that each file and trial is for, by the name that was given.
    gpus: Mapping[str, str]

    @property
    def pair(self) -> dict[str, Any]:
        """The workload in the form of `POST /jobs`."""
        return pair_of(self.workload)

    def check(self, pair: Mapping[str, Any]) -> None:
        """Checks that the files are for the submitted pair.

        Raises:
            click.UsageError: they are for a different one.
        """
        try:
            asked = workload_of(pair)
        except (InvalidInput, KeyError, TypeError, ValueError, AttributeError):
            return  # the service reports the error
        if asked != self.workload:
            problem = f"the schedules are for {self.workload.describe()}, but the job is for {asked.describe()}"
            raise click.UsageError(f"{problem}: leave out the options of the pair, or pass schedules for it")

    def for_other_gpus(self, target: str) -> list[str]:
        """A sentence for each file or trial that is for another GPU than that of the job's target."""
        of_target = target.removeprefix(SIMULATED_PREFIX)
        return [
            f"{name} is for {gpu}, but the job runs on {target}, the service's default: "
            f"to choose, pass --target {gpu} or --target {target}"
            for name, gpu in self.gpus.items()
            if gpu != of_target
        ]


def given_schedules(
    given: Sequence[str],
    kinds: Sequence[str],
    pair: Json | None,
    orders: Sequence[str] = (),
    *,
    trial_of: Callable[[str, int], tuple[Json, Json, str]],
) -> GivenSchedules | None:
    """Schedules from files in the format of `tuner explain`, from trials, and from printed lines, each in every given
    plan kind. If none is given, the plan kind is that of the manifest or trial, otherwise the one with the fewest
    launches. None if there are no schedules.

    Args:
        given: names of files, JOB/TRIAL, and lines.
        kinds: plan kinds.
        pair: the job's pair, if known; lines are read for it.
        orders: custom orders to try each schedule in, too: JSON files with tables, and functions in files.
        trial_of: returns the pair of a job, the candidate of its trial with that number, and the job's target.

    Raises:
        click.UsageError: a file is invalid, the workloads differ, or a kind is not ours.
    """
    if (kinds or orders) and not given:
        raise click.UsageError(f"{'--order' if orders else '--plan-kind'} needs --schedule: pass a file too")
    known = [str(kind) for kind in PlanKind if kind.is_ours]
    if strange := [kind for kind in kinds if kind not in known]:
        raise click.UsageError(f"--plan-kind: {strange[0]!r} is unknown; there are {', '.join(known)}")
    found: dict[Candidate, None] = {}
    workloads: dict[Workload, str] = {}
    gpus: dict[str, str] = {}
    for name in given:
        try:
            workload, schedule, said, gpu = _read(name, pair, trial_of)
            own_orders = [
                ordered(one, read_order(one), workload, schedule, called=called)
                for one, called in zip(orders, names_of(orders), strict=True)
            ]
        except InvalidInput as error:
            raise click.UsageError(str(error)) from error
        workloads.setdefault(workload, name)
        gpus |= {name: gpu} if gpu else {}
        own = kinds or ([said] if said in known else [])
        for each in (schedule, *own_orders):
            candidates = [Candidate(plan_kind=PlanKind(kind), schedule=each) for kind in own]
            found |= dict.fromkeys(candidates or [in_fewest_launches(workload, each)])
    if len(workloads) > 1:
        (first, one), (second, other) = list(workloads.items())[:2]
        words = f"{one} is for {first.describe()}, but {other} is for {second.describe()}"
        raise click.UsageError(f"{words}: a job has one workload")
    if not found:
        return None
    return GivenSchedules(workload=next(iter(workloads)), candidates=[one.to_json() for one in found], gpus=gpus)


def _read(
    name: str, pair: Json | None, trial_of: Callable[[str, int], tuple[Json, Json, str]]
) -> tuple[Workload, Schedule, str | None, str | None]:
    """The workload and the schedule; the plan kind if it is a manifest or a trial, and the GPU unless it is a line."""
    if (named := named_trial(name)) is not None:
        of, candidate, target = trial_of(*named)
        if candidate["schedule"] is None:
            raise InvalidInput(
                "--schedule", f"{name} ran the library, which has no schedule", "choose a trial of a tuner kernel"
            )
        gpu = target.removeprefix(SIMULATED_PREFIX)
        return workload_of(of), Schedule.from_json(candidate["schedule"]), candidate["plan_kind"], gpu
    if not is_line(name):
        workload, gpu_of_file, schedule = read_schedule(Path(name))
        return workload, schedule, read_json(Path(name), "").get("plan_kind"), gpu_of_file.id
    schedule = read_line(name)
    if pair is None:
        raise InvalidInput(
            "--schedule", ("is a line, which does not include its workload"), "pass the options of a pair too"
        )
    return workload_of(pair), schedule, None, None
