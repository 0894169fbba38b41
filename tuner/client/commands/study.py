"""`tuner-client study`: a comparison of the schedules of a job."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.client.connection.http import Client
from tuner.client.delivery.output import document, print_json, print_table, table_width, write_or_print
from tuner.client.options.options import as_json
from tuner.client.terminal.study import study_csv, study_svg, study_table


@click.command()
@click.argument("job_id")
@click.option(
    "--cache",
    type=click.IntRange(2, 512),
    default=4,
    show_default=True,
    help="Number of panels in the cache, for counting traffic.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a plot as .svg, or the data as .csv or .json.",
)
@as_json
@click.pass_obj
def study(client: Client, job_id: str, cache: int, output: Path | None, as_json: bool) -> None:
    """Prints the schedules that a job was given side by side, as table and plot: their times in rounds that they all
    share, with 95 % intervals, the simulator's forecasts, and the counts of `tuner orders`.

    For other jobs it prints the finalists.
    """
    found = client.study(job_id, cache=cache)
    if output is not None:
        writers = {".svg": study_svg, ".csv": study_csv, ".json": document}
        if output.suffix not in writers:
            raise click.UsageError(f"--output {output}: use a name that ends with {', '.join(writers)}")
        write_or_print(writers[output.suffix](found), output)
    elif as_json:
        print_json(found)
    else:
        print_table(study_table(found, table_width()))
