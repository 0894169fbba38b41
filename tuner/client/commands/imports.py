"""`tuner-client import`: sends the winners in a file of results to a service, as a start for its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tuner.client.connection.http import Client
from tuner.client.exports.axes import axes_of
from tuner.client.exports.t4 import OWN
from tuner.core.problem.asked import workload_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.units import counted
from tuner.errors import InvalidInput
from tuner.schedule_files.json_file import read_json
from tuner.schedule_files.schema import faults, schedule_schema

#: The fastest winners of each plan kind, since a search starts from at most eight.
_EACH = 2


@click.command("import")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def import_(client: Client, path: Path) -> None:
    """Imports the winners in a file of results into the service, whose jobs may start from them.

    FILE was written by `tuner-client export --format t4`. Later jobs of similar shapes on the same target try its
    fastest schedules early, and measure them like all others. They are never the result of a job or of `best`.
    """
    body = body_of(path)
    made = client.import_winners(body)
    words = f"{counted(made['num_imported'], 'schedule')} of {body['source']} imported for {body['target']}"
    click.echo(f"tuner-client: {words}; {made['num_known']} had already been imported", err=True)


def body_of(path: Path) -> dict[str, Any]:
    """The body of `POST /imports` for a file.

    Raises:
        click.UsageError: the file has a different format, or comes from another program.
    """
    try:
        document = read_json(path, "pass a file written by tuner-client export --format t4")
        own, rows = document[OWN], document["results"]
        job = own["job"]
        winners = [
            _winner(row, f"results.{number}") for number, row in enumerate(rows) if row["invalidity"] == "correct"
        ]
        if winners:
            _check_job(job)
    except InvalidInput as error:
        where = "" if error.field == str(path) else f"{path}: "
        raise click.UsageError(f"{where}{error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise click.UsageError(
            f"{path} has no tuner schedules; pass a file written by tuner-client export --format t4. Parameter names "
            "of other programs have no meaning here"
        ) from error
    fastest = sorted((one for one in winners if one is not None), key=lambda one: float(one["time_us"]))
    chosen = [one for kind in PlanKind for one in [each for each in fastest if each["plan_kind"] == kind][:_EACH]]
    if not chosen:
        raise click.UsageError(f"{path} has no measured tuner schedule; there is nothing to start from")
    named = {name: job[name] for name in ("target", "pair", "objective")}
    return {**named, "source": job["id"], "winners": chosen}


def _check_job(job: Mapping[str, Any]) -> None:
    """Checks that the two descriptions of the workload in the file agree.

    Raises:
        InvalidInput: they differ.
    """
    of_pair = workload_of(job["pair"]).describe()
    if job["workload"] != of_pair:
        problem = f"is {job['workload']!a}, and {OWN}.job.pair is {of_pair!a}"
        raise InvalidInput(f"{OWN}.job.workload", problem, "change both, or neither")


def _winner(row: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """A row in the form that the service accepts; None for the library.

    A row contains its schedule twice: as T4's `configuration`, which other programs change, and as our own copy.

    Raises:
        InvalidInput: a key is not part of a schedule, or the two differ.
    """
    candidate = row[OWN]["candidate"]
    if candidate["schedule"] is None:
        return None
    for place, problem, remedy in faults(candidate["schedule"], schedule_schema()):
        raise InvalidInput(f"{where}.{OWN}.candidate.schedule.{place}", problem, remedy)
    own, said = axes_of(candidate), row["configuration"]
    for name in dict.fromkeys((*own, *said)):
        if own.get(name) != said.get(name):
            problem = f"is {said.get(name)!a}, and {OWN}.candidate of the row says {own.get(name)!a}"
            raise InvalidInput(f"{where}.configuration.{name}", problem, "change both, or neither")
    figures = {one["name"]: one["value"] for one in row["measurements"]}
    return {**candidate, "time_us": figures["time"] * 1e3, "speedup": figures["speedup"]}
