"""`tuner-client fetch best`: a result as a file that a pipeline can rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tuner.client.environment import Asker, detect, differences
from tuner.client.errors import NoResult, Refused, WeakerMatch
from tuner.client.http import Client
from tuner.client.options import pair_options, take_pair
from tuner.client.output import write_or_print

FORMATS = ("json", "manifest", "cu", "cubin", "zip")


@click.group()
def fetch() -> None:
    """Fetches what jobs found."""


@fetch.command("best")
@click.option("--job", "job_id", help="The result of this job; else give a pair.")
@pair_options
@click.option("--match", type=click.Choice(["exact", "nearest", "any"]), default="exact", show_default=True)
@click.option("--strict", is_flag=True, help="Write nothing where the match is weaker than exact.")
@click.option("--format", "format", type=click.Choice(FORMATS), default="zip", show_default=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="By default stdout.")
@click.option(
    "--elsewhere", is_flag=True, help="The kernel will not run on this machine: compare no GPU or driver of it."
)
@click.option("--gpu-name", help="The GPU it will run on, e.g. 'NVIDIA H200'.")
@click.option("--driver", help="The driver it will run with.")
@click.option("--cuda", help="The CUDA version it will run with.")
@click.option("--kernel-version", help="The kernel sources' version that is wanted.")
@click.pass_obj
def fetch_best(
    client: Client,
    /,
    job_id: str | None,
    match: str,
    strict: bool,
    format: str,
    output: Path | None,
    elsewhere: bool,
    **options: Any,
) -> None:
    """Writes the best result: of a job, or for a pair and a target.

    `json` is the result with all times; `zip` the whole artifact; `manifest`, `cu` and `cubin` are parts of it.
    """
    asked = {name: options.pop(name) for name in ("gpu_name", "driver", "cuda", "kernel_version")}
    here = {} if elsewhere else detect()
    asker = Asker(**(here | {name: value for name, value in asked.items() if value is not None}))
    found = _find(client, job_id, match, options, asker)
    if found["best"]["simulated"]:
        click.echo("tuner-client: the result is simulated: no card has run it", err=True)
    weaker = f"the match is {found['match']}: {'; '.join(found['differences'])}" if found["differences"] else ""
    if weaker and strict:
        raise WeakerMatch(f"{weaker}; nothing is written")
    write_or_print(_content(client, found, format), output)
    if weaker:
        raise WeakerMatch(weaker)


def _find(client: Client, job_id: str | None, match: str, options: dict[str, Any], asker: Asker) -> dict[str, Any]:
    """`match`, `differences` and `best`, the asker's environment taken into account."""
    if job_id is not None:
        found: dict[str, Any] = {"match": "exact", "differences": [], "best": client.best(job_id)}
    else:
        found = client.find_best(**take_pair(options), target=options["target"], match=match)
    unlike = differences(asker, found["best"]["environment"])
    kind = "nearest" if unlike and found["match"] == "exact" else found["match"]
    return {"match": kind, "differences": [*found["differences"], *unlike], "best": found["best"]}


def _content(client: Client, found: dict[str, Any], format: str) -> bytes:
    """The bytes of the format asked for."""
    best = found["best"]
    if format == "json":
        return (json.dumps(found, indent=2, sort_keys=True) + "\n").encode()
    if best["artifact"] is None:
        raise NoResult(f"{best['job_id']} has no kernel of ours: the verdict is {best['verdict']!r}")
    artifact = client.artifact(best["artifact"]["digest"])
    if artifact.simulated != best["simulated"]:
        raise Refused("result and artifact disagree on whether they are simulated")
    return artifact.in_format(format)
