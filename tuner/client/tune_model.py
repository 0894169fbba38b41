"""`tuner-client tune-model`: from a model's config to a pack of its feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from tuner.client.addresses import address_of
from tuner.client.batch import follow, ladder_shapes
from tuner.client.errors import JobFailed
from tuner.client.http import Client
from tuner.client.model_attention import attention_pairs, qkv_attention_chains
from tuner.client.models import ffn_shapes, merged
from tuner.client.options import DTYPES, Finite, pack_options
from tuner.client.output import plain_console, print_table
from tuner.client.packs import ladder_table, make, order_of_jobs
from tuner.client.row_counts import row_counts
from tuner.client.signatures import pinned
from tuner.core.problem.attention_op import ATTENTION
from tuner.errors import InvalidInput
from tuner.json_file import read_json
from tuner.packs.shapes import Shape

Found = TypeVar("Found")
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
@click.option("--dtype", type=click.Choice(DTYPES), help="By default the config's.")
@click.option("--residual", is_flag=True, help="The kernel adds the residual; on one rank alone.")
@click.option("--m", "rows", metavar="vllm|LIST", callback=read_rows, default="vllm", show_default=True, help="Rows.")
@click.option("--context", type=click.IntRange(min=1), help="Tunes the attentions, too: of up to so many tokens.")
@click.option("--with-qkv", is_flag=True, help="With --context: norm and qkv in front of each attention, in one job.")
@click.option("--page-tokens", type=click.IntRange(min=1), help="Of a page of the cache; contiguous unless given.")
@click.option("--target", help="e.g. h200 or simulated:h200; by default the server's own.")
@click.option("--l2", type=click.Choice(["cold", "warm"]), help="What the L2 holds when a sample starts.")
@click.option("--trials", type=click.IntRange(min=1), help="Budget of each job: recorded outcomes.")
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Budget of each job: seconds of search.")
@click.option("--anew", is_flag=True, help="Search again where a job has finished already.")
@pack_options
@click.pass_obj
def tune_model(client: Client, /, configs: tuple[Path, ...], rows: tuple[int, ...], **options: Any) -> None:
    """Tunes the feed-forward blocks of a model, and with --context its attentions, and writes a pack.

    CONFIGS are config.json files of Hugging Face models. Shapes that they share are tuned once. All jobs are one batch,
    in which the rows of a shape share what they find. Interrupted and run again, it attaches to the jobs that are
    running and takes what has finished.
    """
    if options["context"] is None and options["page_tokens"] is not None:
        raise click.UsageError("--page-tokens is of an attention's cache: give --context, too")
    if options["context"] is None and options["with_qkv"]:
        raise click.UsageError("--with-qkv is of an attention's queries: give --context, too")
    if options["context"] is not None and options["batch_invariant"]:
        raise click.UsageError("an attention promises no batch invariance: give --context or --batch-invariant")
    shapes = _shapes(configs, tp=options["tp"], dtype=options["dtype"], residual=options["residual"])
    attentions = [] if options["context"] is None else _attentions(configs, rows, options)
    for shape, layers in shapes.items():
        click.echo(f"{shape}: {layers} layers, {len(rows)} row counts", err=True)
    budget = {name: options[name] for name in ("trials", "seconds") if options[name] is not None}
    body: dict[str, Any] = {"shapes": ladder_shapes(shapes, rows), "budget": budget, "reuse": not options["anew"]}
    body |= {"pairs": attentions} if attentions else {}
    body["objective"] = {} if options["l2"] is None else {"l2": options["l2"]}
    body |= {} if options["target"] is None else {"target": options["target"]}
    batch = client.submit_batch(body)
    click.echo(address_of(client.url, batch["links"]["page"]), err=True)
    follow(client, batch, plain_console(stderr=True))
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
    """Of all configs, each once."""
    return merged([_read(path, partial(ffn_shapes, **how)) for path in configs])


def _attentions(configs: Sequence[Path], rows: Sequence[int], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of all configs and numbers of sequences, each once."""
    how = {name: options[name] for name in ("tp", "dtype", "page_tokens")} | {"max_length": options["context"]}
    take = qkv_attention_chains if options["with_qkv"] else attention_pairs
    found = [pair for path in configs for m in rows for pair in _read(path, partial(take, sequences=m, **how))]
    for pair in (once := [pair for index, pair in enumerate(found) if pair not in found[:index]]):
        click.echo(_words(pair), err=True)
    return once


def _words(pair: Mapping[str, Any]) -> str:
    """Of an attention, or of one with what is in front."""
    if "ops" in pair:
        (attention,) = (op for op in pair["ops"] if op.get("op") == ATTENTION)
        return f"qkv, attention, o_proj: {_reach(attention)}"
    projected = "its projection" if pair["d_out"] else "no projection, since o_proj has a bias"
    return f"attention: {_reach(pair)}, {projected}"


def _reach(attention: Mapping[str, Any]) -> str:
    window = f", a window of {attention['window']}" if attention.get("window") else ""
    return f"{attention['sequences']} x {attention['max_length']} tokens{window}"


def _read(path: Path, take: Callable[[Any], Found]) -> Found:
    """What is taken of a config.

    Raises:
        click.UsageError: it is none, or of a model that has no shape here.
    """
    try:
        config = read_json(path, "give the config.json of a model")
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(config, dict):
        raise click.UsageError(f"{path}: is no JSON object; give the config.json of a model")
    try:
        return take(config)
    except InvalidInput as error:
        # An option of this command, or a field of the config.
        where = f"--tp, with {path}:" if error.field == "tp" else f"{path}: {error.field}:"
        raise click.UsageError(f"{where} {error.problem}; {error.remedy}") from error
