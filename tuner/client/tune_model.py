"""`tuner-client tune-model`: from a model's config to a pack of its feed-forward blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tuner.client.batch import follow, ladder_shapes
from tuner.client.errors import JobFailed
from tuner.client.http import Client
from tuner.client.models import ffn_shapes, merged
from tuner.client.options import pack_options
from tuner.client.output import print_table
from tuner.client.packs import ladder_table, make, order_of_jobs
from tuner.client.row_counts import row_counts
from tuner.client.signatures import pinned
from tuner.errors import InvalidInput
from tuner.packs.contents import Shape

#: The batch sizes that vLLM captures graphs for: 1, 2, 4, and the multiples of 8 up to 256.
VLLM_ROWS = (1, 2, 4, *range(8, 257, 8))


def read_rows(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """``vllm``, or numbers as `row_counts` reads them: each once, in order.

    Raises:
        click.BadParameter: it is neither.
    """
    if value == "vllm":
        return VLLM_ROWS
    found = row_counts(ctx, param, value)
    return found if isinstance(found, tuple) else (found or 1,)


@click.command("tune-model")
@click.argument("configs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--dtype", type=click.Choice(["fp16", "bf16"]), help="By default the config's.")
@click.option("--residual", is_flag=True, help="The kernel adds the residual; on one rank alone.")
@click.option("--m", "rows", metavar="vllm|LIST", callback=read_rows, default="vllm", show_default=True, help="Rows.")
@click.option("--target", help="e.g. h200 or simulated:h200; by default the server's own.")
@click.option("--l2", type=click.Choice(["cold", "warm"]), help="What the L2 holds when a sample starts.")
@click.option("--trials", type=click.IntRange(min=1), help="Budget of each job: recorded outcomes.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Budget of each job: seconds of search.")
@click.option("--anew", is_flag=True, help="Search again where a job has finished already.")
@pack_options
@click.pass_obj
def tune_model(client: Client, /, configs: tuple[Path, ...], rows: tuple[int, ...], **options: Any) -> None:
    """Tunes the feed-forward blocks of a model and writes a pack.

    CONFIGS are config.json files of Hugging Face models. Shapes that they share are tuned once. All jobs are one batch,
    in which the rows of a shape share what they find. Interrupted and run again, it attaches to the jobs that are
    running and takes what has finished.
    """
    shapes = _shapes(configs, tp=options["tp"], dtype=options["dtype"], residual=options["residual"])
    for shape, layers in shapes.items():
        click.echo(f"{shape}: {layers} layers, {len(rows)} row counts", err=True)
    budget = {name: options[name] for name in ("trials", "seconds") if options[name] is not None}
    body: dict[str, Any] = {"shapes": ladder_shapes(shapes, rows), "budget": budget, "reuse": not options["anew"]}
    body["objective"] = {} if options["l2"] is None else {"l2": options["l2"]}
    body |= {} if options["target"] is None else {"target": options["target"]}
    batch = client.submit_batch(body)
    click.echo(f"{client.url}{batch['links']['page']}", err=True)
    follow(client, batch, Console(stderr=True))
    jobs = [one["job"] for one in client.batch_jobs(batch["id"])]
    done = [job for job in jobs if job["state"] == "succeeded"]
    lost = [job for job in jobs if job["state"] != "succeeded"]
    for job in lost:
        why = f": {job['reason']}" if job["reason"] else ""
        click.echo(f"tuner-client: {job['id']} ({job['workload']}) {job['state']}{why}; the library is kept", err=True)
    if not done:
        raise JobFailed("no job has succeeded, so there is nothing to pack")
    order = order_of_jobs(done, options["min_gain"], options["batch_invariant"])
    pack = make(client, order, options["output"], options["lock"], pinned(options["key"]))
    print_table(ladder_table(pack))


def _shapes(configs: Sequence[Path], **how: Any) -> dict[Shape, int]:
    """Of all configs, each once.

    Raises:
        click.UsageError: a config is none, or of a model that has no shape here.
    """
    found = []
    for path in configs:
        try:
            found.append(ffn_shapes(json.loads(path.read_text()), **how))
        except InvalidInput as error:
            raise click.UsageError(f"{path}: {error}") from error
        except (ValueError, AttributeError) as error:
            raise click.UsageError(f"{path} is no config.json of a model: {error}") from error
    return merged(found)
