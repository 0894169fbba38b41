"""`tuner-client samples`: the results of each round of a trial."""

from __future__ import annotations

import click

from tuner.client.commands.inspect import trial_number
from tuner.client.connection.http import Client
from tuner.client.delivery.output import print_json


@click.command()
@click.argument("job_id")
@trial_number
@click.pass_obj
def samples(client: Client, job_id: str, number: int) -> None:
    """Prints the raw samples of a measured trial as JSON: times and SM clocks, round by round."""
    print_json(client.samples(job_id, number))
