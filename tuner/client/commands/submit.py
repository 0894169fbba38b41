"""`tuner-client submit`: a job, from options that describe the workload or from a file with the ops of a chain.

`submit KIND` has the options of one kind. Without a kind, the options of all kinds are accepted, and determine which
one is meant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tuner.client.options.options import Finite
from tuner.client.options.pair_options import (
    TARGET_HELP,
    chain_body,
    flat_options,
    options_of,
    pair_body,
    spelled_among,
    take_pair,
)
from tuner.core.problem.asked import CHAIN, asked_workloads

if TYPE_CHECKING:
    from tuner.client.connection.http import Client

#: Options that define what "fast" means, and the options with the same names as in a job's body.
_OBJECTIVE = ("l2", "regime", "energy_within_percent", "torch_compile")
_BUDGET = ("trials", "seconds", "patience")
_NAMED = ("target", "seed", "priors", "sweep", "reuse", "priority", "project", "labels", "deadline_s", "webhook")
_CHAIN_FILE = click.Path(dir_okay=False, path_type=Path)
_CHAIN_WORDS = "up to eight ops in a JSON file, as POST /jobs accepts them"


def _job_options(*, hidden: bool = False) -> list[click.Option]:
    """Options of a job of any kind."""

    def option(*names: str, **more: Any) -> click.Option:
        return click.Option(names, hidden=hidden, **more)

    seconds = Finite(min=0, min_open=True)
    return [
        option("--target", help=TARGET_HELP),
        option("--trials", type=click.IntRange(min=1), metavar="N", help="Budget: recorded outcomes."),
        option("--seconds", type=seconds, metavar="S", help="Budget: seconds of search."),
        option("--patience", type=click.IntRange(min=1), metavar="N", help="Budget: trials without progress."),
        option("--l2", type=click.Choice(["cold", "warm"]), help="Content of the L2 when a sample starts."),
        option(
            "--regime", type=click.Choice(["burst", "sustained"]), help="Default: sustained from 256 rows or images on."
        ),
        option(
            "--energy-within",
            "energy_within_percent",
            metavar="PERCENT",
            type=Finite(min=0, max=100, min_open=True),
            help="Least energy, at most PERCENT slower.",
        ),
        option("--torch-compile", is_flag=True, default=None, help="Also compare with torch.compile."),
        option("--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the search and the inputs."),
        option("--priors", type=click.Choice(["nearest", "none"]), help="Whether to start from earlier winners."),
        option(
            "--schedule",
            "schedules",
            multiple=True,
            metavar="ONE",
            help="Try only this FILE, LINE or JOB/TRIAL.",
        ),
        option("--sweep", metavar="WHAT", help="With --schedule: e.g. vary rasters or merges."),
        option(
            "--order", "orders", multiple=True, metavar="FILE", help="With --schedule: tiles.json, or file.py:NAME."
        ),
        option("--plan-kind", "plan_kinds", multiple=True, metavar="KIND", help="With --schedule: e.g. fused."),
        option("--reuse", is_flag=True, help="Use a finished job of the same problem."),
        option("--priority", type=click.IntRange(-10, 10), metavar="N", help="Values above 0 are for admins."),
        option("--project", help="Free text, e.g. a project."),
        option("--label", "labels", multiple=True, help="A label for finding it; may be repeated."),
        option("--deadline", "deadline_s", type=seconds, metavar="S", help="Seconds until it must end."),
        option("--webhook", metavar="URL", help="URL that is notified when it ends."),
        option("--idempotency-key", metavar="KEY", help="Repeating it returns the same job."),
        option("--watch", "watching", is_flag=True, help="Watch it until it ends."),
        option("--json", "as_json", is_flag=True, help="Print JSON, one document per line."),
    ]


class _Submit(click.Group):
    """A command for each kind, created on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Lists the chain last, since it has no kind."""
        return [*asked_workloads(), CHAIN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Finds a kind by its name, or by a unique ending of it: `layer` is `decoder-layer`."""
        if cmd_name == CHAIN:
            return _of_chain()
        near = [name for name in asked_workloads() if name.endswith(f"-{cmd_name}")]
        name = cmd_name if cmd_name in asked_workloads() else near[0] if len(near) == 1 else ""
        return _of_kind(name) if name else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The kinds and their descriptions."""
        rows = [(name, one.SUMMARY) for name, one in asked_workloads().items()]
        with formatter.section("Kinds (their options: submit KIND --help)"):
            formatter.write_dl([(name, _shortened(words)) for name, words in (*rows, (CHAIN, _CHAIN_WORDS))])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The help for the options of any job, after the kinds."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)


def _shortened(words: str) -> str:
    """Shortens a description to one line of 80 columns, next to the longest name."""
    room = 56
    return words if len(words) <= room else f"{words[: room - 1].rstrip()}…"


def _of_kind(name: str) -> click.Command:
    one = asked_workloads()[name]

    def run(**options: Any) -> None:
        _submit({"kind": name, "preset": None, **options})

    words = f"{cleandoc(one.__doc__ or one.SUMMARY)}\n\nThe options of any job: tuner-client submit --help."
    params = [*options_of(one), *_job_options(hidden=True)]
    return click.Command(name, callback=run, params=list(params), help=words, short_help=one.SUMMARY)


def _of_chain() -> click.Command:
    def run(path: Path, **options: Any) -> None:
        _submit({"chain": path, **options})

    words = f'{_CHAIN_WORDS.capitalize()}: {{"m": 16, "ops": [...]}}.\n\nThe options of any job: submit --help.'
    argument = click.Argument(["path"], type=_CHAIN_FILE, metavar="FILE")
    return click.Command(CHAIN, callback=run, params=[argument, *_job_options(hidden=True)], help=words)


def _submit(options: dict[str, Any]) -> None:
    """Submits a job with the options of a kind, and with those of the job, which precede the kind."""
    context = click.get_current_context()
    assert context.parent is not None
    in_front = context.parent.params
    typed = {
        name: value
        for name, value in in_front.items()
        if context.parent.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    if spelled := spelled_among(typed) or ("--chain" if typed.get("chain") else ""):
        raise click.UsageError(f"{spelled}: put the options of the pair after its kind, or leave out the kind")
    known = {option.name for option in _job_options()}
    merged = {name: in_front[name] for name in known if not options.get(name) and in_front.get(name)}
    _send(context.obj, options | merged)


@click.command(
    cls=_Submit,
    invoke_without_command=True,
    params=[
        *_job_options(),
        *flat_options(hidden=True),
        click.Option(["--chain"], type=_CHAIN_FILE, hidden=True, help="Instead of a pair: a JSON file with a chain."),
    ],
    subcommand_metavar="[KIND] [OPTIONS OF THE KIND]",
)
@click.pass_context
def submit(ctx: click.Context, /, **options: Any) -> None:
    """Submits a job, or a batch (`--m 1,2,4,8..256`), and prints its id."""
    if ctx.invoked_subcommand is None:
        _send(ctx.obj, options)


def _send(client: Client, options: dict[str, Any]) -> None:
    """Submits what the options describe, and prints the id or watches the job."""
    from tuner.client.commands.job_commands import watch_one
    from tuner.client.connection.addresses import address_of
    from tuner.client.documents.given import given_schedules

    rows = options.get("m")
    if isinstance(rows, tuple):
        options["m"] = rows[0]
    files, kinds = options["schedules"], options["plan_kinds"]
    if files and isinstance(rows, tuple):
        raise click.UsageError("--schedule is for one number of rows: pass --m once")
    pair = _pair(options, is_needed=not files)
    given = given_schedules(files, kinds, pair, options["orders"], trial_of=partial(_trial_of, client))
    pair = pair or (given.pair if given else {})
    body: dict[str, Any] = _given(options, _NAMED)
    body |= {"objective": _given(options, _OBJECTIVE), "budget": _given(options, _BUDGET)}
    if given:
        given.check(pair)
        body["schedules"] = given.candidates
    key = options["idempotency_key"]
    job: Mapping[str, Any]
    if isinstance(rows, tuple):
        job = client.submit_batch(_ladder(pair, rows) | body, idempotency_key=key)
    else:
        job = client.submit({"pair": pair, **body}, idempotency_key=key)
    click.echo(address_of(client.url, job["links"]["page"]), err=True)
    if given and options["target"] is None:
        for sentence in given.for_other_gpus(job["target"]):
            click.echo(f"tuner-client: {sentence}", err=True)
    if options["watching"]:
        watch_one(client, job["id"], None, options["as_json"])
    else:
        click.echo(json.dumps(job) if options["as_json"] else job["id"])


def _trial_of(client: Client, job_id: str, number: int) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """The pair of a job, the candidate of one of its trials, and the job's target."""
    job = client.job(job_id)
    return job["pair"], client.trial(job_id, number)["candidate"], job["target"]


def _pair(options: dict[str, Any], *, is_needed: bool) -> dict[str, Any] | None:
    """The workload, from the options or from a chain's file; None if it is optional and missing."""
    spelled, chain = spelled_among(options), options.get("chain")
    if chain is not None:
        if spelled:
            raise click.UsageError(f"{spelled}: not allowed with --chain, whose file contains these values")
        return chain_body(chain)
    return pair_body(take_pair(options)) if spelled or is_needed else None


def _ladder(pair: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """The request to `POST /batches`: an FFN's shape with its rows; another pair, once for each number of rows."""
    if pair["kind"] != "ffn":
        return {"pairs": [{**pair, "m": m} for m in rows]}
    return {"shapes": [{name: value for name, value in pair.items() if name != "kind"} | {"m": list(rows)}]}


def _given(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    found = {name: options[name] for name in names if options[name] not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
