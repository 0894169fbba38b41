"""`tuner-client export`: a job's trials as a file for another program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.client.delivery.output import say_if_simulated, write_or_print
from tuner.client.errors import NoResult

if TYPE_CHECKING:
    from tuner.client.connection.http import Client
    from tuner.client.documents.documents import Best, JobDetail, Trial


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option(
    "--format", "format", type=click.Choice(["csv", "optuna", "perfetto", "t1", "t4", "t4-metadata"]), required=True
)
@click.option("--trial", "number", type=click.IntRange(min=0), help="Only for perfetto; default: the winner's trial.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="By default stdout.")
@click.pass_obj
def export(client: Client, job_id: str, format: str, number: int | None, output: Path | None) -> None:
    """Writes a job's trials in a format that other programs read.

    `csv` is a table; `optuna` an SQLite file for optuna-dashboard; `t4` and `t4-metadata` are results, and `t1` the
    problem, in the formats of the autotuning community; `perfetto` is the trace of one trial, for ui.perfetto.dev.
    """
    if number is not None and format != "perfetto":
        raise click.UsageError("--trial needs --format perfetto: the other formats contain all trials")
    if format == "perfetto":
        content = trace_file(client, job_id, _winners_trial(client, job_id) if number is None else number)
    else:
        job = client.job(job_id)
        if job["simulated"]:
            click.echo("tuner-client: the trials are simulated: they never ran on a card", err=True)
        content = _WRITERS[format](client, job, list(client.trials(job_id, limit=500)))
    write_or_print(content, output)


def trace_file(client: Client, job_id: str, number: int, timeout_s: float | None = None) -> bytes:
    """The trace of a trial in Perfetto's format.

    Raises:
        NothingSeen: the trace could not be taken.
    """
    found = client.trace(job_id, number, format="perfetto", timeout_s=timeout_s)
    say_if_simulated(found["otherData"]["simulated"], "the trace")
    return (json.dumps(found, separators=(",", ":")) + "\n").encode()


def _winners_trial(client: Client, job_id: str) -> int:
    """The trial of the fastest generated kernel in the finals.

    Raises:
        NoResult: there is no such trial.
    """
    rows = [row for row in client.best(job_id)["finals"] if row["candidate"]["schedule"] and row["time_us"] is not None]
    if not rows:
        raise NoResult(f"no generated kernel was measured in the finals of {job_id}; choose a trial with --trial")
    return min(rows, key=lambda row: row["time_us"] or 0.0)["trial_number"]


def _result_of(client: Client, job: JobDetail) -> Best | None:
    return client.best(job["id"]) if job["state"] == "succeeded" else None


def _csv(_client: Client, job: JobDetail, trials: list[Trial]) -> bytes:
    from tuner.client.exports.table import csv_of

    return csv_of(job, trials)


def _optuna(_client: Client, job: JobDetail, trials: list[Trial]) -> bytes:
    from tuner.client.exports.study import study_of

    return study_of(job, trials)


def _t4(_client: Client, job: JobDetail, trials: list[Trial]) -> bytes:
    from tuner.client.exports.t4 import results_of

    return _document(results_of(job, trials))


def _t4_metadata(client: Client, job: JobDetail, _trials: list[Trial]) -> bytes:
    from tuner.client.exports.t4 import metadata_of

    return _document(metadata_of(job, _result_of(client, job)))


def _t1(client: Client, job: JobDetail, trials: list[Trial]) -> bytes:
    from tuner.client.exports.t1 import problem_of

    best = _result_of(client, job)
    if best is None or best["artifact"] is None:
        raise NoResult(f"{job['id']} has no kernel, which T1 needs; export its trials as t4")
    return _document(problem_of(job, trials, client.artifact(best["artifact"]["digest"]).manifest))


def _document(found: dict[str, Any]) -> bytes:
    return (json.dumps(found, indent=1) + "\n").encode()


#: The content of a format, for a job and its trials.
_WRITERS: dict[str, Callable[[Any, Any, list[Any]], bytes]] = {
    "csv": _csv,
    "optuna": _optuna,
    "t1": _t1,
    "t4": _t4,
    "t4-metadata": _t4_metadata,
}
