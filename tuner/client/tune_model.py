"""`tuner-client tune-model`: from a model's config to a pack of its feed-forward blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from tuner.client.batch import follow, shape_bodies, submit_all
from tuner.client.errors import JobFailed
from tuner.client.http import Client
from tuner.client.models import ffn_shapes, merged
from tuner.client.options import pack_options
from tuner.client.output import print_table
from tuner.client.packs import ladder_table, make, order_of_jobs, pinned
from tuner.errors import InvalidInput
from tuner.packs.contents import Shape

#: The batch sizes that vLLM captures graphs for: 1, 2, 4, and the multiples of 8 up to 256.
VLLM_ROWS = (1, 2, 4, *range(8, 257, 8))


def read_rows(_ctx: click.Context, _param: click.Parameter, value: str) -> tuple[int, ...]:
    """``vllm``, or numbers with commas between them: each once, in order.

    Raises:
        click.BadParameter: it is neither.
    """
    if value == "vllm":
        return VLLM_ROWS
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r} is no list of rows; give vllm, or positive numbers like 1,2,4,8")
    return tuple(sorted({int(part) for part in parts}))


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

    CONFIGS are config.json files of Hugging Face models. Shapes that they share are tuned once. Interrupted and run
    again, it attaches to the jobs that are running and takes what has finished.
    """
    shapes = _shapes(configs, tp=options["tp"], dtype=options["dtype"], residual=options["residual"])
    for shape, layers in shapes.items():
        click.echo(f"{shape}: {layers} layers, {len(rows)} row counts", err=True)
    budget = {name: options[name] for name in ("trials", "seconds") if options[name] is not None}
    bodies = shape_bodies(
        shapes, rows, budget=budget, target=options["target"], l2=options["l2"], reuse=not options["anew"]
    )
    jobs = follow(client, submit_all(client, bodies), Console(stderr=True))
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
