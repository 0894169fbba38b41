"""`tuner-client counters` and `tuner-client trace`: an inspection of one trial."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.client.commands.export import trace_file
from tuner.client.connection.http import Client
from tuner.client.delivery.output import print_json, print_table, write_or_print
from tuner.client.follow.interrupted import inspection_goes_on
from tuner.client.options.options import Finite, as_json
from tuner.client.terminal import render

timeout = click.option("--timeout", "timeout_s", type=Finite(min=0, min_open=True), help="Maximum seconds to wait.")
trial_number = click.argument("number", metavar="TRIAL", type=click.IntRange(min=0))


@click.command()
@click.argument("job_id")
@trial_number
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="A hardware metric; may be repeated.")
@timeout
@as_json
@click.pass_obj
def counters(
    client: Client, job_id: str, number: int, metrics: tuple[str, ...], timeout_s: float | None, as_json: bool
) -> None:
    """Prints the hardware counters of a measured trial; by default the base set."""
    with inspection_goes_on("the counters", job_id, number):
        found = client.counters(job_id, number, metrics, timeout_s=timeout_s)
    print_json(found) if as_json else print_table(render.counters_table(found))


@click.command()
@click.argument("job_id")
@trial_number
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="By default stdout.")
@timeout
@click.pass_obj
def trace(client: Client, job_id: str, number: int, output: Path | None, timeout_s: float | None) -> None:
    """Writes the in-kernel trace of a measured trial of a generated kernel, for ui.perfetto.dev or chrome://tracing."""
    with inspection_goes_on("the trace", job_id, number):
        content = trace_file(client, job_id, number, timeout_s)
    write_or_print(content, output)
