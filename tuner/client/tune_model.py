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
from tuner.client.pack_tables import ladder_table
from tuner.client.packs import make, order_of_jobs
from tuner.client.row_counts import row_counts
from tuner.client.signatures import pinned
from tuner.client.vllm_rows import VLLM_VERSION, captured_rows
from tuner.core.problem.attention_op import ATTENTION
from tuner.errors import InvalidInput
from tuner.json_file import read_json
from tuner.packs.contents import Shape

Found = TypeVar("Found")
#: Of vLLM's flags, those that its rows follow.
_OF_VLLM = ("max_num_seqs", "speculative_tokens", "max_num_batched_tokens")
#: Characters of a label, and labels of a job, which the service takes.
_LONGEST_LABEL, _MOST_LABELS = 64, 16


def read_rows(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...] | None:
    """Numbers as `row_counts` reads them, each once, in order; None for ``vllm``.

    Raises:
        click.BadParameter: it is neither.
    """
    if value == "vllm":
        return None
    found = row_counts(ctx, param, value)
    return found if isinstance(found, tuple) else (found or 1,)


def take_rows(options: dict[str, Any]) -> tuple[int, ...]:
    """Removes the options of rows; the rows that they spell. Those of vLLM are said with its version.

    Raises:
        click.UsageError: vLLM's flags are given beside rows.
    """
    rows: tuple[int, ...] | None = options.pop("rows")
    given = {name: value for name in _OF_VLLM if (value := options.pop(name)) is not None}
    if rows is None:
        rows = captured_rows(**given)
        click.echo(f"the {len(rows)} numbers of rows that vLLM {VLLM_VERSION} captures, up to {rows[-1]}", err=True)
    elif given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise click.UsageError(f"{flags}: only with --m vllm, whose rows follow it")
    return rows


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a model's shapes and rows are made of."""
    more = click.IntRange(min=1)
    for option in (
        click.option("--max-num-batched-tokens", type=more, help="With --m vllm: as vLLM is started."),
        click.option("--speculative-tokens", type=click.IntRange(min=0), help="With --m vllm: as vLLM is started."),
        click.option("--max-num-seqs", type=more, help="With --m vllm: as vLLM is started."),
        click.option(
            "--m", "rows", metavar="vllm|LIST", callback=read_rows, default="vllm", show_default=True, help="Rows."
        ),
        click.option("--dtype", type=click.Choice(DTYPES), help="By default the config's."),
        click.option("--tp", type=more, default=1, show_default=True, help="Tensor-parallel ranks."),
    ):
        command = option(command)
    return command


@click.command("tune-model")
@click.argument("configs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@model_options
@click.option("--residual", is_flag=True, help="The kernel adds the residual; on one rank alone.")
@click.option("--context", type=click.IntRange(min=1), help="Tunes the attentions, too: of up to so many tokens.")
@click.option("--with-qkv", is_flag=True, help="With --context: norm and qkv in front of each attention, in one job.")
@click.option("--page-tokens", type=click.IntRange(min=1), help="Of a page of the cache; contiguous unless given.")
@click.option("--target", help="e.g. h200 or simulated:h200; by default the server's own.")
@click.option("--l2", type=click.Choice(["cold", "warm"]), help="What the L2 holds when a sample starts.")
@click.option("--trials", type=click.IntRange(min=1), help="Budget of each job: recorded outcomes.")
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Budget of each job: seconds of search.")
@click.option("--project", help="What the jobs belong to.")
@click.option("--label", "labels", multiple=True, help="A word to find them again by, beside the models' names.")
@click.option("--anew", is_flag=True, help="Search again where a job has finished already.")
@pack_options
@click.pass_obj
def tune_model(client: Client, /, configs: tuple[Path, ...], **options: Any) -> None:
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
    rows = take_rows(options)
    shapes = _shapes(configs, tp=options["tp"], dtype=options["dtype"], residual=options["residual"])
    attentions = [] if options["context"] is None else _attentions(configs, rows, options)
    for shape, layers in shapes.items():
        click.echo(f"{shape}: {layers} layers, {len(rows)} row counts", err=True)
    budget = {name: options[name] for name in ("trials", "seconds") if options[name] is not None}
    body: dict[str, Any] = {"shapes": ladder_shapes(shapes, rows), "budget": budget, "reuse": not options["anew"]}
    body |= {"pairs": attentions} if attentions else {}
    body["objective"] = {} if options["l2"] is None else {"l2": options["l2"]}
    body |= {name: options[name] for name in ("target", "project") if options[name] is not None}
    body["labels"] = _labels(options["labels"], configs)
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


def _labels(given: Sequence[str], configs: Sequence[Path]) -> list[str]:
    """Those that were given, and the models' names while there is room."""
    room = max(0, _MOST_LABELS - len(given))
    return list(dict.fromkeys([*given, *[name_of(path) for path in configs][:room]]))


def name_of(path: Path) -> str:
    """What a model is called: as its config says, or by the file, or by the folder of a `config.json`."""
    said = _read(path, lambda config: config.get("_name_or_path"))
    of_file = path.resolve().parent.name if path.stem == "config" else path.stem
    name = said.rstrip("/").rpartition("/")[2] if isinstance(said, str) else ""
    printable = "".join(one for one in name or of_file if one.isprintable())
    return printable.strip()[:_LONGEST_LABEL].strip() or "model"


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
