"""`tuner-client fetch best`: writes a result to a file, for use in a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tuner.client.commands.packs.making import fetch_locked
from tuner.client.connection.http import Client
from tuner.client.delivery.environment import Asker, detect, differences
from tuner.client.delivery.lock import Cache
from tuner.client.delivery.meaning import Asked
from tuner.client.delivery.output import document, say_if_simulated, write_or_print
from tuner.client.delivery.signatures import pinned
from tuner.client.errors import LibraryWins, NoResult, Refused, Simulated, UnfusedWins, WeakerMatch
from tuner.client.follow.batch import best_of, check_kernels, write_kernels
from tuner.client.options.options import match_options
from tuner.client.options.pair_options import pair_options, take_question
from tuner.client.terminal import render
from tuner.core.schedule.levels import LaunchOpSchedule, schedule_class
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.reports.torch_time import COMPILE_MODE
from tuner.packs.stored import stored_in

FORMATS = ("json", "manifest", "cu", "cubin", "zip")
#: Options that may be combined with `--job`.
_ABOUT_THE_MATCH = ("l2", "regime", "match", "max_distance")


@click.group(invoke_without_command=True)
@click.option(
    "--lock", type=click.Path(dir_okay=False, path_type=Path), help="Fetches exactly the packs that this file locks."
)
@click.option(
    "--cache", type=click.Path(file_okay=False, path_type=Path), help="Folder in which packs are cached by digest."
)
@click.option("--offline", is_flag=True, help="Use only cached packs.")
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="By default here.")
@click.option("--key", help="The public key of the required signature; default: the lock's.")
@click.pass_context
def fetch(
    ctx: click.Context, lock: Path | None, cache: Path | None, offline: bool, into: Path, key: str | None
) -> None:
    """Fetches the results of jobs: `fetch best`, or with `fetch --lock` the packs of a lock file."""
    if ctx.invoked_subcommand is not None:
        return
    if lock is None:
        raise click.UsageError("pass --lock, or a command: best")
    fetch_locked(ctx.obj, lock, Cache(cache), into, offline=offline, key=pinned(key))


@pair_options
@fetch.command("best")
@click.option("--job", "job_id", help="The result of this job; otherwise specify a pair.")
@click.option(
    "--batch", "batch_id", help="For a batch: the table of kernels by rows, and these kernels; -o names a folder."
)
@match_options
@click.option(
    "--accept-nearest",
    is_flag=True,
    help="Accept a match that is weaker than exact, as weak as --match allows (default: nearest).",
)
@click.option(
    "--accept-unfused", is_flag=True, help="Accept tuner's kernel even if the result runs it as several launches."
)
@click.option("--even-if-slower", is_flag=True, help="Accept tuner's kernel whatever the result is, even the library.")
@click.option("--format", "format", type=click.Choice(FORMATS), default="zip", show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="By default stdout.")
@click.option("--elsewhere", is_flag=True, help="The kernel will run on another machine: do not compare GPU or driver.")
@click.option("--gpu-name", help="The GPU it will run on, e.g. 'NVIDIA H200'.")
@click.option("--driver", help="The driver it will run with.")
@click.option("--cuda", help="The CUDA version it will run with.")
@click.option("--kernel-version", help="The required version of the generated kernel sources.")
@click.option("--key", help="The public key of the required signature, as printed by `tuner key show`.")
@click.pass_obj
def fetch_best(
    client: Client,
    /,
    job_id: str | None,
    batch_id: str | None,
    accept_nearest: bool,
    accept_unfused: bool,
    even_if_slower: bool,
    format: str,
    output: Path | None,
    elsewhere: bool,
    key: str | None,
    **options: Any,
) -> None:
    """Writes the best result: of a job, or for a pair and a target.

    `json` is the result with all times; `zip` the whole artifact; `manifest`, `cu` and `cubin` are parts of it. Unless
    options accept it, nothing is written for a weaker match or for a result other than one fused launch. A simulated
    result is only written if --job or --target names it.
    """
    if batch_id is not None:
        _fetch_batch(client, batch_id, format, output, pinned(key))
        return
    if output is not None and output.is_dir():
        raise click.UsageError(f"{output} is a folder; pass a file name to -o")
    facts = {name: options.pop(name) for name in ("gpu_name", "driver", "cuda", "kernel_version")}
    if job_id is not None and (others := [name for name in options if name not in _ABOUT_THE_MATCH and is_given(name)]):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise click.UsageError(f"--job already identifies a result; leave out {flags}")
    here = {} if elsewhere else detect()
    asker = Asker(**(here | {name: value for name, value in facts.items() if value is not None}))
    if accept_nearest and not is_given("match"):
        options["match"] = "nearest"
    is_named = job_id is not None or options["target"] is not None
    asked = Asked(job_id=job_id, question=take_question(options) if job_id is None else {})
    found = find(client, asked, asker)
    best = found["best"]
    if best["simulated"] and not is_named:
        raise Simulated(
            f"the result is simulated, since the service's default target is {best['target']}; "
            f"nothing was written without --target {best['target']}"
        )
    say_if_simulated(best["simulated"])
    check_match(found, accept_nearest=accept_nearest)
    check_answer(best, accept_unfused=accept_unfused, even_if_slower=even_if_slower)
    write_or_print(_content(client, found, format, pinned(key), asked), output)


def is_given(name: str) -> bool:
    """Whether an option of this command was set on the command line, in the environment or in the configuration
    file."""
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _fetch_batch(client: Client, batch_id: str, format: str, output: Path | None, key: str | None) -> None:
    """Writes the results of a batch: as JSON, or with its kernels into a folder.

    Raises:
        click.UsageError: the format is for a single kernel, or no folder was given.
        LibraryWins: the library is the result everywhere.
    """
    best = best_of(client, batch_id)
    say_if_simulated(best["simulated"])
    if not best["is_complete"]:
        click.echo("tuner-client: some ladders have no result yet", err=True)
    if format == "json":
        check_kernels(client, best, key)
        write_or_print(document(best), output)
        return
    if format != "zip" or output is None:
        raise click.UsageError("for a batch, --format json writes the results, and -o FOLDER all of its kernels")
    if output.is_file():
        raise click.UsageError(f"{output} is a file; pass a folder name to -o")
    if not any(ladder["kernels"] for ladder in best["ladders"]):
        raise LibraryWins(f"the library is the result of {batch_id} for all rows; nothing was written")
    write_kernels(client, best, output, key)


def ask_for_best(client: Client, query: Mapping[str, Any], accepting: str = "--match {match}") -> dict[str, Any]:
    """The service's response to a query for the best result.

    Args:
        query: the parameters of `GET /best`.
        accepting: the options of this command that accept a match such as `nearest`.

    Raises:
        NoResult: no result matches; the message names options that would help.
    """
    try:
        return client.find_best(**query)
    except NoResult as error:
        said = re.sub(r"\bmatch=(\w+)", lambda found: accepting.format(match=found[1]), str(error))
        raise NoResult(said.replace("max_distance=", "--max-distance ")) from error


def find(client: Client, asked: Asked, asker: Asker) -> dict[str, Any]:
    """`match`, `differences` and `best`, compared with the machine that will run the kernel."""
    if asked.job_id is None:
        return ask_for_best(client, {**asked.question, **asdict(asker)}, "--match {match} --accept-nearest")
    best = client.best(asked.job_id)
    unlike = differences(asker, best["environment"])
    return {"match": "nearest" if unlike else "exact", "differences": unlike, "best": best}


def check_match(found: Mapping[str, Any], *, accept_nearest: bool) -> None:
    """Prints to stderr what differs from the request.

    Raises:
        WeakerMatch: it is not an exact match, and weaker ones were not accepted.
    """
    if found["match"] == "exact":
        return
    weaker = f"the match is {found['match']}: {'; '.join(found['differences'])}"
    if not accept_nearest:
        raise WeakerMatch(f"{weaker}; nothing was written without --accept-nearest")
    click.echo(f"tuner-client: {weaker}", err=True)


def check_answer(best: Mapping[str, Any], *, accept_unfused: bool, even_if_slower: bool) -> None:
    """Checks that the result is one fused launch; otherwise prints it to stderr.

    Raises:
        LibraryWins: the library is the result, and a slower kernel was not accepted.
        UnfusedWins: the result is our kernel in several launches, which was not accepted.
    """
    verdict = f"{best['job_id']} recommends {render.headline(best)}{render.mark(best['simulated'])}"
    if is_the_librarys(best):
        words = "\n".join([verdict, *recipe_lines(best)])
        if not even_if_slower:
            raise LibraryWins(f"{words}\nnothing was written without --even-if-slower")
    elif not PlanKind(best["winner"]).is_fused:
        words = f"{verdict}, which is tuner's kernel in several launches"
        if not (accept_unfused or even_if_slower or has_launch_op(best)):
            raise UnfusedWins(f"{words}; nothing was written without --accept-unfused")
    else:
        return
    click.echo(f"tuner-client: {words}", err=True)


def has_launch_op(best: Mapping[str, Any]) -> bool:
    """Whether an op of the winner has its own launch in every plan kind, so that a single launch is impossible. An op
    of an unknown kind is assumed to have a plan kind with one launch."""
    schedule = best["finals"][best["winner_row"]]["candidate"].get("schedule") or {}
    if "ops" in schedule:
        kinds = (schedule_class(op["op"]) for op in schedule["ops"] if "op" in op)
        return any(one is None or issubclass(one, LaunchOpSchedule) for one in kinds)
    return any(schedule[name] for name in schedule.keys() - {"tiling", "ordering"})


def is_the_librarys(best: Mapping[str, Any]) -> bool:
    """Whether the result is the library."""
    return bool(best["winner"] == "library")


def recipe_lines(best: Mapping[str, Any]) -> list[str]:
    """How to call the library, a line for each product, and one for the op between them."""
    recipe, torch = best["library"], best.get("torch") or {}  # older services do not report PyTorch
    if torch.get("is_library"):
        share = f"{torch['library_speedup']:.3f} of the vendor library's time"
        return [f"torch.compile with mode={COMPILE_MODE!r} in a CUDA graph, {share}"]
    if recipe is None:
        return ["the algorithm is unknown: the library was simulated, or measured by an older version"]
    others = [recipe["attention"]] if recipe.get("attention") else []  # older services do not name it
    if not recipe["calls"]:
        return others
    head = f"cuBLASLt {recipe['cublaslt_version']}" + (", the products concurrently" if recipe["beside"] else "")
    return [*others, head, *(_call_line(call) for call in recipe["calls"])]


def _call_line(call: Mapping[str, Any]) -> str:
    algorithm = ", ".join(f"{name} {value}" for name, value in call["algorithm"].items())
    after = f"; afterwards {call['afterwards']}" if call["afterwards"] else ""
    return (
        f"  {call['op']}: D[{call['rows']}, {call['columns']}] = A^T B, k {call['k']}, {call['data_type']}, "
        f"{call['epilogue']}, beta {call['beta']}; algorithm {algorithm}; workspace {call['workspace_bytes']} B{after}"
    )


def _content(client: Client, found: dict[str, Any], format: str, key: str | None, asked: Asked) -> bytes:
    """The bytes in the requested format."""
    best = found["best"]
    asked.check_result(best, is_exact=found["match"] == "exact")
    if format == "json" and key is None:
        return document(found)
    if best["artifact"] is None:
        raise NoResult(f"{best['job_id']} has no tuner kernel: its result is {render.headline(best)}")
    artifact = client.artifact(best["artifact"]["digest"], key)
    if artifact.simulated != best["simulated"]:
        raise Refused("result and artifact disagree on whether they are simulated")
    asked.check(artifact.manifest, best, is_exact=found["match"] == "exact")
    for words in stored_in(artifact.manifest):
        click.echo(f"tuner-client: the weights must first be laid out for it: {words}", err=True)
    return document(found) if format == "json" else artifact.in_format(format)
