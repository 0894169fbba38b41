"""`tuner-client` commands for jobs: submit, follow and list them, and print their results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

import tuner
from tuner.client.commands.fetch import ask_for_best, is_the_librarys, recipe_lines
from tuner.client.connection.addresses import is_batch
from tuner.client.connection.http import Client
from tuner.client.delivery.output import plain_console, print_json, print_table, table_width
from tuner.client.errors import ClientError, JobFailed, Refused, WeakerMatch
from tuner.client.follow.batch import best_of, follow, ladder_tables, status_lines
from tuner.client.follow.interrupted import what_goes_on
from tuner.client.follow.many import follow_many, standing_table
from tuner.client.follow.patience import patiently
from tuner.client.options.options import Finite, as_json, match_options
from tuner.client.options.pair_options import pair_options, take_question
from tuner.client.terminal import render
from tuner.client.terminal.study import study_table
from tuner.core.schedule.plan_kinds import PlanKind


@click.command("cmake-dir")
def cmake_dir() -> None:
    """Prints the folder to use as Tuner_DIR in CMake, for find_package(Tuner)."""
    click.echo(Path(tuner.__file__).parent / "runtime" / "c" / "cmake")


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=Finite(min=0, min_open=True), help="Maximum seconds to wait.")
@as_json
@click.pass_obj
def watch(client: Client, job_ids: tuple[str, ...], timeout_s: float | None, as_json: bool) -> None:
    """Follows a job or a batch until it ends, then prints its result. For several, shows a table until all have ended.

    Ctrl-C stops only the command: the jobs continue.
    """
    ids = tuple(dict.fromkeys(job_ids))
    if len(ids) == 1:
        watch_one(client, ids[0], timeout_s, as_json)
        return
    with what_goes_on(client, ids):
        found = follow_many(client, ids, plain_console(stderr=True), timeout_s)
    if as_json:
        for one in found:
            print_json(one)
    else:
        print_table(standing_table(found, shutil.get_terminal_size().columns))
    if lost := [f"{one['id']} {one['state']}" for one in found if one["state"] in ("failed", "cancelled")]:
        raise JobFailed("; ".join(lost))


def watch_one(client: Client, job_id: str, timeout_s: float | None, as_json: bool) -> None:
    """Follows a job or a batch until it ends, then prints its result."""
    with what_goes_on(client, [job_id]):
        _watch_one(client, job_id, timeout_s, as_json)


def _watch_one(client: Client, job_id: str, timeout_s: float | None, as_json: bool) -> None:
    if is_batch(job_id):
        follow(client, client.batch(job_id), plain_console(stderr=True), timeout_s)
        _print_batch_best(patiently(lambda: best_of(client, job_id)), as_json)
        return
    job = client.job(job_id)
    render.progress(job, client.events(job_id, timeout_s=timeout_s), plain_console(stderr=True))
    best = patiently(lambda: client.best(job_id))
    if as_json:
        print_json(best)
    else:
        width = table_width()
        print_table(
            study_table(client.study(job_id), width) if job.get("num_given") else render.results_table(best, width)
        )


@click.command()
@click.argument("job_id")
@as_json
@click.pass_obj
def status(client: Client, job_id: str, as_json: bool) -> None:
    """Prints the state of a job or a batch; for a job also the accuracy of its forecasts."""
    if is_batch(job_id):
        batch = client.batch(job_id)
        print_json(batch) if as_json else click.echo("\n".join(status_lines(batch)))
        return
    job = client.job(job_id)
    print_json(job) if as_json else click.echo("\n".join(render.status_lines(job)))


@click.command()
@click.option("--state", type=click.Choice(["queued", "searching", "finals", "succeeded", "failed", "cancelled"]))
@click.option("--owner")
@click.option("--project")
@click.option("--label")
@click.option("--target")
@click.option("--m", type=click.IntRange(min=1), help="Rows of the first product.")
@click.option("--n", type=click.IntRange(min=1), help="Columns of the first product.")
@click.option("--k", type=click.IntRange(min=1), help="Depth of the first product.")
@as_json
@click.pass_obj
def jobs(client: Client, /, as_json: bool, **filters: Any) -> None:
    """Lists jobs, newest first."""
    _list(client.jobs(**filters), as_json, partial(render.jobs_table, width=table_width()))


@click.command()
@as_json
@click.pass_obj
def batches(client: Client, as_json: bool) -> None:
    """Lists batches, newest first."""
    for batch in client.batches():
        print_json(batch) if as_json else click.echo(": ".join(status_lines(batch)))


@click.command()
@click.argument("job_id")
@click.option("--outcome", type=click.Choice(["measured", "rejected", "failed"]))
@click.option("--plan-kind", type=click.Choice([str(kind) for kind in PlanKind]))
@click.option("--reason", help="Only trials that failed for this reason, e.g. hang.")
@click.option("--sort", type=click.Choice(["number", "time", "speedup"]), default="number", show_default=True)
@as_json
@click.pass_obj
def trials(client: Client, /, job_id: str, as_json: bool, **filters: Any) -> None:
    """Lists a job's trials."""
    _list(client.trials(job_id, limit=500, **filters), as_json, partial(render.trials_table, width=table_width()))


_T = TypeVar("_T")


def _each(
    name: str,
    change: Callable[[Client, str], str],
    words: str,
    members: Callable[[Client, str], Sequence[str]] = lambda _, some_id: [some_id],
) -> click.Command:
    """The command `name`, which applies `change` to each given job, or to its `members`, and prints each result. After
    a failure, it reports it and continues with the others."""

    @click.argument("ids", metavar="JOB...", nargs=-1, required=True)
    @click.pass_obj
    def changed(client: Client, ids: tuple[str, ...]) -> None:
        refused: list[ClientError] = []

        def attempted(attempt: Callable[[Client, str], _T], one: str) -> _T | None:
            try:
                return attempt(client, one)
            except ClientError as error:
                refused.append(error)
                return None

        for member in (member for one in dict.fromkeys(ids) for member in attempted(members, one) or ()):
            if (result := attempted(change, member)) is not None:
                click.echo(result)
        for other in refused[:-1]:
            click.echo(f"tuner-client: {other}", err=True)
        if refused:
            raise refused[-1]

    return click.command(name, help=words)(changed)


def _cancel(client: Client, some_id: str) -> str:
    if is_batch(some_id):
        return client.cancel_batch(some_id)["state"]
    job = client.cancel(some_id)
    if job["state"] != "cancelled":
        owners = ", ".join(job["owners"])
        click.echo(f"tuner-client: {some_id} is no longer yours; it continues for {owners}", err=True)
    return job["state"]


def _pause(client: Client, some_id: str) -> str:
    return _standing(client.change(some_id, "pause"))


def _resume(client: Client, some_id: str) -> str:
    return _standing(client.change(some_id, "resume"))


def _standing(one: Mapping[str, Any]) -> str:
    is_paused = one["is_paused"] if "is_paused" in one else one["num_paused"] > 0
    return "paused" if is_paused else str(one["state"])


def _retry(client: Client, job_id: str) -> str:
    return str(client.change(job_id, "retry")["id"])


def _to_retry(client: Client, some_id: str) -> list[str]:
    """A job, or the jobs of a batch that failed or were cancelled."""
    if not is_batch(some_id):
        return [some_id]
    jobs = [one["job"] for one in client.batch_jobs(some_id)]
    ids = [str(job["id"]) for job in jobs if job["state"] in ("failed", "cancelled")]
    if not ids:
        raise Refused(f"{some_id} has no job that failed or was cancelled")
    return ids


def _delete(client: Client, some_id: str) -> str:
    if is_batch(some_id):
        kept = client.delete_batch(some_id)
        return "\n".join([f"{some_id} deleted", *(f"{one} is kept, as others need it" for one in kept)])
    job = client.delete(some_id)
    return f"{some_id} deleted" if job is None else f"{some_id} is kept for {', '.join(job['owners'])}"


cancel = _each(
    "cancel", _cancel, "Cancels jobs and batches; trials are kept. A job that others share continues for them."
)
pause = _each("pause", _pause, "Pauses open jobs and batches; results from the card are recorded first.")
resume = _each("resume", _resume, "Resumes paused jobs and batches.")
retry = _each(
    "retry",
    _retry,
    "Submits jobs again that failed or were cancelled, of a batch too, and prints the new ids.",
    _to_retry,
)
delete = _each(
    "delete",
    _delete,
    "Deletes ended jobs and batches, with trials, results and kernels. Jobs that others need are kept for them.",
)


@pair_options
@click.command()
@click.argument("job_id", required=False)
@match_options
@as_json
@click.pass_obj
def best(client: Client, /, job_id: str | None, as_json: bool, **options: Any) -> None:
    """Prints the result of a job or a batch, or the best one for a pair."""
    if job_id is not None and is_batch(job_id):
        _print_batch_best(best_of(client, job_id), as_json)
        return
    found: Mapping[str, Any]
    if job_id is not None:
        found = {"match": "exact", "differences": [], "best": client.best(job_id)}
    else:
        found = ask_for_best(client, take_question(options))
    print_json(found["best"]) if as_json else print_table(render.results_table(found["best"], table_width()))
    if is_the_librarys(found["best"]):
        click.echo("\n".join(recipe_lines(found["best"])), err=True)
    if found["match"] != "exact":
        raise WeakerMatch(f"the match is {found['match']}: {'; '.join(found['differences'])}")


def _print_batch_best(best: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(best)
        return
    for table in ladder_tables(best):
        print_table(table)


def _list(items: Iterable[Mapping[str, Any]], as_json: bool, table: Any) -> None:
    if not as_json:
        print_table(table(items))
        return
    for item in items:
        print_json(item)
