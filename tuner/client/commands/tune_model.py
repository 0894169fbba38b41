"""`tuner-client tune-model`: from a model's config to a pack of its feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import click

from tuner.client.commands.configs import check_configs, networks_among
from tuner.client.commands.packs.making import make, order_of_jobs
from tuner.client.connection.addresses import address_of
from tuner.client.connection.http import Client
from tuner.client.delivery.meaning import check_jobs
from tuner.client.delivery.output import plain_console, print_table
from tuner.client.delivery.signatures import pinned
from tuner.client.errors import JobFailed, Simulated
from tuner.client.follow.batch import follow, ladder_shapes
from tuner.client.follow.interrupted import SAME_COMMAND, what_goes_on
from tuner.client.models.described import described
from tuner.client.models.kinds_in_models import kinds_with_context
from tuner.client.models.models import ffn_blocks, merged
from tuner.client.models.quantised import Block
from tuner.client.options.model_options import model_options, name_of, read_config, take_rows
from tuner.client.options.options import Finite
from tuner.client.options.pack_options import pack_options
from tuner.client.options.row_counts import with_between
from tuner.client.terminal.pack_tables import ladder_table
from tuner.core.units import counted
from tuner.errors import InvalidInput
from tuner.packs.shapes import Shape

Found = TypeVar("Found")
#: Maximum labels of a job that the service accepts.
_MOST_LABELS = 16


@click.command("tune-model")
@click.argument("configs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@model_options
@click.option("--residual", is_flag=True, help="The kernel adds the residual; only on one rank.")
@click.option(
    "--fp8-groups",
    is_flag=True,
    help="fp8 activations in groups of 128: those that the config has, and H of dynamic ones.",
)
@click.option("--context", type=click.IntRange(min=1), help="Also tunes the attentions, for up to this many tokens.")
@click.option("--with-qkv", is_flag=True, help="With --context: tune norm and qkv with each attention.")
@click.option("--blocks", is_flag=True, help="With --context: whole blocks from qkv on, or their runs at --tp.")
@click.option("--layers", is_flag=True, help="With --context: also whole layers, as vLLM runs them.")
@click.option("--page-tokens", type=click.IntRange(min=1), help="Tokens per page of the cache; contiguous by default.")
@click.option("--tokens-first", is_flag=True, help="With --page-tokens: a page's tokens come before its heads.")
@click.option(
    "--lengths", type=click.Choice(["full", "uniform"]), help="With --context: the context length at which it is timed."
)
@click.option(
    "--timed-length",
    type=click.IntRange(min=1),
    help="With --context: the longest context, in tokens, at which it is timed.",
)
@click.option("--target", help="e.g. h200 or simulated:h200; by default the server's own.")
@click.option("--l2", type=click.Choice(["cold", "warm"]), help="What the L2 holds when a sample starts.")
@click.option("--regime", type=click.Choice(["burst", "sustained"]), help="Default: depends on the rows.")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help="Budget of each job: trials. A third if it starts from results of its shape.",
)
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Budget of each job: seconds of search.")
@click.option("--project", help="Free text: what the jobs belong to.")
@click.option("--label", "labels", multiple=True, help="A label to find them by, in addition to the models' names.")
@click.option(
    "--between/--no-between",
    default=True,
    help="Also measures some numbers of rows between those of --m, for which there would otherwise be no measurement.",
)
@click.option("--anew", is_flag=True, help="Search again even if a job has finished already.")
@pack_options
@click.pass_obj
def tune_model(client: Client, /, configs: tuple[Path, ...], **options: Any) -> None:
    """Tunes the feed-forward blocks of a model, and with --context its attentions or whole blocks, and writes a pack.

    CONFIGS are config.json files of Hugging Face models, including quantised ones, or descriptions of networks by their
    layers, where --m is the number of images. A shape that several of them have is tuned once. All jobs form one batch,
    in which jobs of the same shape share results. After an interruption, the same command attaches to running jobs and
    uses finished ones.
    """
    if options["context"] is None and options["page_tokens"] is not None:
        raise click.UsageError("--page-tokens describes an attention's cache: add --context")
    if options["context"] is None and options["with_qkv"]:
        raise click.UsageError("--with-qkv applies to attentions: add --context")
    if options["blocks"] and (options["context"] is None or options["with_qkv"] or options["residual"]):
        raise click.UsageError(
            "--blocks covers all ops of a block: use it with --context, and without --with-qkv and --residual"
        )
    if options["layers"] and (options["context"] is None or options["with_qkv"] or options["blocks"]):
        raise click.UsageError(
            "--layers covers whole layers: use it with --context, and without --with-qkv and --blocks"
        )
    if options["lengths"] and options["context"] is None:
        raise click.UsageError("--lengths needs contexts: add --context")
    if options["timed_length"] and options["timed_length"] > (options["context"] or 0):
        raise click.UsageError("--timed-length needs contexts: add --context, which must be at least as long")
    if options["tokens_first"] and options["page_tokens"] is None:
        raise click.UsageError("--tokens-first applies to a paged cache: add --page-tokens")
    if options["context"] is not None and options["batch_invariant"]:
        raise click.UsageError("an attention cannot be batch-invariant: use --context or --batch-invariant, not both")
    networks = networks_among(configs, options)
    rows = take_rows(options)
    how = {name: options[name] for name in ("tp", "dtype", "residual", "fp8_groups")}
    models = [path for path in configs if path not in networks]
    check_configs(models, with_context=options["context"] is not None)
    blocks = {} if options["blocks"] else _blocks(models, **how)
    shapes = {block: layers for block, layers in blocks.items() if isinstance(block, Shape)}
    pairs = [] if options["context"] is None else _pairs(models, rows, options)
    pairs += _chains(networks, rows, options["dtype"])
    tuned = with_between(rows) if options["between"] and blocks else rows
    pairs += [block.pair(m) for block, m in product(blocks, tuned) if isinstance(block, Block)]
    if more := sorted(set(tuned) - set(rows)):
        click.echo(f"also measured at m = {', '.join(map(str, more))}, unless --no-between is given", err=True)
    for block, layers in blocks.items():
        click.echo(f"{block}: {counted(layers, 'layer')}, {counted(len(tuned), 'row count')}", err=True)
    budget = {name: options[name] for name in ("trials", "seconds") if options[name] is not None}
    body: dict[str, Any] = {"shapes": ladder_shapes(shapes, tuned), "budget": budget, "reuse": not options["anew"]}
    body |= {"pairs": pairs} if pairs else {}
    body["objective"] = {name: options[name] for name in ("l2", "regime") if options[name] is not None}
    body |= {name: options[name] for name in ("target", "project") if options[name] is not None}
    body["labels"] = _labels(options["labels"], configs)
    if options["target"] is None:
        _check_default(client)
    batch = client.submit_batch(body)
    click.echo(address_of(client.url, batch["links"]["page"]), err=True)
    again = SAME_COMMAND + (" without --anew" if options["anew"] else "")
    with what_goes_on(client, [batch["id"]], f"{again}: it reuses the finished jobs and writes the pack"):
        follow(client, batch, plain_console(stderr=True))
    jobs = [one["job"] for one in client.batch_jobs(batch["id"])]
    ffns = [{"kind": "ffn", "m": m, **vars(shape)} for shape, m in product(shapes, tuned)]
    check_jobs(jobs, [*ffns, *pairs], target=options["target"], l2=options["l2"], regime=options["regime"])
    done = [job for job in jobs if job["state"] == "succeeded"]
    lost = [job for job in jobs if job["state"] != "succeeded"]
    for job in lost:
        why = f": {job['reason']}" if job["reason"] else ""
        click.echo(
            f"tuner-client: {job['id']} ({job['workload']}) {job['state']}{why}; its rows use the library", err=True
        )
    if not done:
        raise JobFailed("no job has succeeded, so there is nothing to pack")
    order = order_of_jobs(done, options["min_gain"], options["batch_invariant"])
    pack = make(client, order, options["output"], options["lock"], pinned(options["key"]))
    print_table(ladder_table(pack))


def _check_default(client: Client) -> None:
    """Checks that a pack for the service's default target is of a real GPU.

    Raises:
        Simulated: the target is simulated, which nobody asked for.
    """
    if (targets := client.targets()) and targets[0]["simulated"]:
        named = f"--target {targets[0]['id']}"
        raise Simulated(
            f"the pack would be simulated, as the service's default target is; nothing was submitted without {named}"
        )


def _labels(given: Sequence[str], configs: Sequence[Path]) -> list[str]:
    """The given labels, then the models' names as far as they fit."""
    room = max(0, _MOST_LABELS - len(given))
    return list(dict.fromkeys([*given, *[name_of(path) for path in configs][:room]]))


def _blocks(configs: Sequence[Path], **how: Any) -> dict[Shape | Block, int]:
    """Shapes of all configs, without duplicates."""
    return merged([_read(path, partial(ffn_blocks, **how)) for path in configs])


def _pairs(configs: Sequence[Path], rows: Sequence[int], options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Pairs of all configs and numbers of sequences, without duplicates."""
    how = {name: options[name] for name in ("tp", "dtype", "page_tokens")} | {"max_length": options["context"]}
    how |= {"heads_first": not options["tokens_first"], "lengths": options["lengths"] or "full"}
    how |= {"timed_length": options["timed_length"]}
    once: list[dict[str, Any]] = []
    for kind in kinds_with_context():
        take = kind.what_to_take(**{name: options[name] for name in ("with_qkv", "blocks", "layers")})
        for path, m in product(configs, rows):
            for pair in _read(path, partial(take, sequences=m, **how)):
                if pair not in once:
                    once.append(pair)
                    click.echo(kind.words_of(pair), err=True)
    return once


def _chains(networks: Sequence[Path], images: Sequence[int], dtype: str | None) -> list[dict[str, Any]]:
    """Chains of all blocks of described networks, without duplicates."""
    once: list[dict[str, Any]] = []
    for path, count in product(networks, images):
        for name, chain in _read(path, partial(described, images=count, dtype=dtype)):
            if chain not in once:
                once.append(chain)
                click.echo(f"{name}: {counted(len(chain['ops']), 'layer')} of {counted(count, 'image')}", err=True)
    return once


def _read(path: Path, take: Callable[[Any], Found]) -> Found:
    """What `take` returns for a config.

    Raises:
        click.UsageError: it is not a config, or the model has no supported shape.
    """
    try:
        return take(read_config(path))
    except InvalidInput as error:
        # An option of this command, or a field of the config.
        where = f"--tp, with {path}:" if error.field == "tp" else f"{path}: {error.field}:"
        raise click.UsageError(f"{where} {error.problem}; {error.remedy}") from error
