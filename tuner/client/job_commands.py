"""`tuner-client` on jobs: submits them, follows them, lists them, and prints what they found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

import tuner
from tuner.client import render
from tuner.client.addresses import address_of
from tuner.client.batch import best_of, follow, is_batch, ladder_tables, status_lines
from tuner.client.errors import JobFailed, WeakerMatch
from tuner.client.fetch import ask_for_best, is_the_librarys, recipe_lines
from tuner.client.follow.interrupted import what_goes_on
from tuner.client.follow.many import follow_many, standing_table
from tuner.client.http import Client
from tuner.client.options import Finite, chain_body, match_options, pair_body, pair_options, take_pair, take_question
from tuner.client.output import as_json, plain_console, print_json, print_table
from tuner.core.schedule.plan_kinds import PlanKind

#: Options of a job that say what "fast" means.
_OBJECTIVE = ("l2", "regime", "energy_within_percent", "torch_compile")


@click.command("cmake-dir")
def cmake_dir() -> None:
    """Prints the folder that CMake takes as Tuner_DIR, for find_package(Tuner)."""
    click.echo(Path(tuner.__file__).parent / "runtime" / "c" / "cmake")


@click.command()
@pair_options
@click.option("--l2", type=click.Choice(["cold", "warm"]), help="What the L2 holds when a sample starts.")
@click.option("--regime", type=click.Choice(["burst", "sustained"]), help="By default sustained from 256 rows on.")
@click.option(
    "--energy-within",
    "energy_within_percent",
    metavar="PERCENT",
    type=Finite(min=0, max=100, min_open=True),
    help="Take what needs the least energy, up to so much slower than the fastest.",
)
@click.option(
    "--torch-compile", is_flag=True, default=None, help="Judge against torch.compile, too, where PyTorch is installed."
)
@click.option("--trials", type=click.IntRange(min=1), help="Budget: recorded outcomes.")
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Budget: seconds of search.")
@click.option("--patience", type=click.IntRange(min=1), help="Budget: trials without progress.")
@click.option("--seed", type=click.IntRange(min=0))
@click.option(
    "--priors", type=click.Choice(["nearest", "none"]), help="Begin with earlier winners, or with none: a fair search."
)
@click.option("--reuse", is_flag=True, help="Take a finished job of the same problem, if there is one.")
@click.option(
    "--chain",
    type=click.Path(dir_okay=False, path_type=Path),
    help="In place of a pair: a JSON file with m and ops, as POST /jobs takes a chain.",
)
@click.option("--priority", type=click.IntRange(-10, 10), help="The higher goes first; above 0 only for admins.")
@click.option("--project", help="What it belongs to.")
@click.option("--label", "labels", multiple=True, help="A word by which it is found again; may be repeated.")
@click.option("--deadline", "deadline_s", type=Finite(min=0, min_open=True), help="Seconds to its end.")
@click.option("--webhook", help="An address that gets a message at its end, of a host that the server allows.")
@click.option("--idempotency-key", help="Sent again with the same request, it gives the same job.")
@click.option("--watch", "watching", is_flag=True, help="Then watch the job until it ends.")
@as_json
@click.pass_obj
def submit(
    client: Client, /, chain: Path | None, idempotency_key: str | None, watching: bool, as_json: bool, **options: Any
) -> None:
    """Submits a job and prints its id; with several numbers of rows (`--m 1,2,4,8..256`) a batch of jobs."""
    rows = options["m"]
    if isinstance(rows, tuple):
        options["m"] = rows[0]
    pair = pair_body(take_pair(options)) if chain is None else chain_body(chain, options)
    body: dict[str, Any] = {"reuse": options["reuse"]}
    named = ("target", "seed", "priors", "priority", "project", "deadline_s", "webhook")
    body |= _given({name: options[name] for name in named})
    body |= {"labels": list(options["labels"])} if options["labels"] else {}
    body["objective"] = _given({name: options[name] for name in _OBJECTIVE})
    body["budget"] = _given({name: options[name] for name in ("trials", "seconds", "patience")})
    job: Mapping[str, Any]
    if isinstance(rows, tuple):
        job = client.submit_batch(_ladder(pair, rows) | body, idempotency_key=idempotency_key)
    else:
        job = client.submit({"pair": pair, **body}, idempotency_key=idempotency_key)
    click.echo(address_of(client.url, job["links"]["page"]), err=True)
    if watching:
        _watch(client, job["id"], None, as_json)
    else:
        click.echo(json.dumps(job) if as_json else job["id"])


def _ladder(pair: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """What `POST /batches` is asked for: an FFN's shape with its rows, or another pair once for each."""
    if pair["kind"] != "ffn":
        return {"pairs": [{**pair, "m": m} for m in rows]}
    return {"shapes": [{name: value for name, value in pair.items() if name != "kind"} | {"m": list(rows)}]}


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=Finite(min=0, min_open=True), help="Seconds to wait at most.")
@as_json
@click.pass_obj
def watch(client: Client, job_ids: tuple[str, ...], timeout_s: float | None, as_json: bool) -> None:
    """Follows a job or a batch until it ends, then prints its result; of several a table, until all have ended.

    Ctrl-C ends the watching alone: the jobs go on.
    """
    ids = tuple(dict.fromkeys(job_ids))
    if len(ids) == 1:
        _watch(client, ids[0], timeout_s, as_json)
        return
    with what_goes_on(ids):
        found = follow_many(client, ids, plain_console(stderr=True), timeout_s)
    if as_json:
        for one in found:
            print_json(one)
    else:
        print_table(standing_table(found, shutil.get_terminal_size().columns))
    if lost := [f"{one['id']} {one['state']}" for one in found if one["state"] in ("failed", "cancelled")]:
        raise JobFailed("; ".join(lost))


def _watch(client: Client, job_id: str, timeout_s: float | None, as_json: bool) -> None:
    with what_goes_on([job_id]):
        _watch_one(client, job_id, timeout_s, as_json)


def _watch_one(client: Client, job_id: str, timeout_s: float | None, as_json: bool) -> None:
    if is_batch(job_id):
        follow(client, client.batch(job_id), plain_console(stderr=True), timeout_s)
        _print_batch_best(client, job_id, as_json)
        return
    job = client.job(job_id)
    render.progress(job, client.events(job_id, timeout_s=timeout_s), plain_console(stderr=True))
    best = client.best(job_id)
    print_json(best) if as_json else print_table(render.results_table(best))


@click.command()
@click.argument("job_id")
@as_json
@click.pass_obj
def status(client: Client, job_id: str, as_json: bool) -> None:
    """Prints a job, or a batch, as it stands; a job with how well its trials were forecast."""
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
    """Lists jobs, the newest first."""
    _list(client.jobs(**filters), as_json, render.jobs_table)


@click.command()
@as_json
@click.pass_obj
def batches(client: Client, as_json: bool) -> None:
    """Lists batches, the newest first."""
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
    _list(client.trials(job_id, limit=500, **filters), as_json, render.trials_table)


@click.command()
@click.argument("job_id")
@click.pass_obj
def cancel(client: Client, job_id: str) -> None:
    """Ends a job, or a batch; trials remain. Where others share a job's run, it goes on for them."""
    if is_batch(job_id):
        click.echo(client.cancel_batch(job_id)["state"])
        return
    job = client.cancel(job_id)
    click.echo(job["state"])
    if job["state"] != "cancelled":
        click.echo(f"tuner-client: {job_id} is yours no longer, and goes on for {', '.join(job['owners'])}", err=True)


def _change(verb: str, words: str) -> click.Command:
    """The command that has a job do `verb`."""

    @click.argument("job_id")
    @click.pass_obj
    def change(client: Client, job_id: str) -> None:
        job = client.change(job_id, verb)
        click.echo(job["id"] if verb == "retry" else "paused" if job["is_paused"] else job["state"])

    return click.command(verb, help=words)(change)


pause = _change("pause", "Has an open job wait; what is at the card is recorded first.")
resume = _change("resume", "Has a paused job go on.")
retry = _change("retry", "Submits a job that failed or was cancelled again, and prints the new id.")


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.pass_obj
def delete(client: Client, job_ids: tuple[str, ...]) -> None:
    """Deletes jobs that have ended, with trials, results and kernels. What others share stays theirs."""
    for job_id in job_ids:
        job = client.delete(job_id)
        click.echo(f"{job_id} deleted" if job is None else f"{job_id} stays, for {', '.join(job['owners'])}")


@click.command()
@click.argument("job_id", required=False)
@pair_options
@match_options
@as_json
@click.pass_obj
def best(client: Client, /, job_id: str | None, as_json: bool, **options: Any) -> None:
    """Prints the result of a job or a batch, or the best one for a pair."""
    if job_id is not None and is_batch(job_id):
        _print_batch_best(client, job_id, as_json)
        return
    found: Mapping[str, Any]
    if job_id is not None:
        found = {"match": "exact", "differences": [], "best": client.best(job_id)}
    else:
        found = ask_for_best(client, take_question(options))
    print_json(found["best"]) if as_json else print_table(render.results_table(found["best"]))
    if is_the_librarys(found["best"]):
        click.echo("\n".join(recipe_lines(found["best"])), err=True)
    if found["match"] != "exact":
        raise WeakerMatch(f"the match is {found['match']}: {'; '.join(found['differences'])}")


def _print_batch_best(client: Client, batch_id: str, as_json: bool) -> None:
    best = best_of(client, batch_id)
    if as_json:
        print_json(best)
        return
    for table in ladder_tables(best):
        print_table(table)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _list(items: Iterable[Mapping[str, Any]], as_json: bool, table: Any) -> None:
    if not as_json:
        print_table(table(items))
        return
    for item in items:
        print_json(item)
