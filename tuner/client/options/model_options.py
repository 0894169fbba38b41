"""Options that the commands about models share: a model's config, its name, and the numbers of rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tuner.client.options.options import DTYPES
from tuner.client.options.row_counts import row_counts
from tuner.client.options.vllm_rows import VLLM_VERSION, captured_rows
from tuner.core.problem.quantisation.said import FIELD
from tuner.errors import InvalidInput
from tuner.schedule_files.json_file import read_json

#: vLLM's flags that determine its numbers of rows.
_OF_VLLM = ("max_num_seqs", "speculative_tokens", "max_num_batched_tokens")
#: Where a config says how the weights are quantised.
_QUANTISED = (FIELD, "compression_config")
#: Files beside a config in which older checkpoints say how their weights are quantised, and the method of each.
_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}
#: Maximum characters of a label.
_LONGEST_LABEL = 64


def read_rows(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...] | None:
    """Numbers as in `row_counts`, ascending and without duplicates; None for ``vllm``.

    Raises:
        click.BadParameter: it is neither.
    """
    if value == "vllm":
        return None
    found = row_counts(ctx, param, value)
    return found if isinstance(found, tuple) else (found or 1,)


def take_rows(options: dict[str, Any]) -> tuple[int, ...]:
    """Removes the options for rows and returns the rows that they describe. Rows of vLLM are printed with its version.

    Raises:
        click.UsageError: vLLM's flags are combined with rows.
    """
    rows: tuple[int, ...] | None = options.pop("rows")
    given = {name: value for name in _OF_VLLM if (value := options.pop(name)) is not None}
    if rows is None:
        rows = captured_rows(**given)
        click.echo(f"the {len(rows)} numbers of rows that vLLM {VLLM_VERSION} captures, up to {rows[-1]}", err=True)
    elif given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        raise click.UsageError(f"{flags}: only allowed with --m vllm, which derives the rows from it")
    return rows


def model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that determine a model's shapes and rows."""
    more = click.IntRange(min=1)
    for option in (
        click.option("--max-num-batched-tokens", type=more, help="With --m vllm: as passed to vLLM."),
        click.option("--speculative-tokens", type=click.IntRange(min=0), help="With --m vllm: as passed to vLLM."),
        click.option("--max-num-seqs", type=more, help="With --m vllm: as passed to vLLM."),
        click.option(
            "--m", "rows", metavar="vllm|LIST", callback=read_rows, default="vllm", show_default=True, help="Rows."
        ),
        click.option("--dtype", type=click.Choice(DTYPES), help="Default: the config's."),
        click.option("--tp", type=more, default=1, show_default=True, help="Tensor-parallel ranks."),
    ):
        command = option(command)
    return command


def read_config(path: Path) -> dict[str, Any]:
    """A model's config.json.

    Raises:
        click.UsageError: it is not a config.
    """
    try:
        config = read_json(path, "pass the config.json of a model")
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(config, dict):
        raise click.UsageError(f"{path}: not a JSON object; pass the config.json of a model")
    if not any(config.get(name) for name in _QUANTISED):
        _check_beside(path)
    return config


def _check_beside(path: Path) -> None:
    """Refuses a config that is not quantised if another file in its folder says that the weights are."""
    for name, method in _BESIDE.items():
        if (path.parent / name).is_file():
            problem = f"has no {FIELD}, but {name} beside it has one"
            remedy = f"put the contents of that file into the config as {FIELD}, with quant_method {method}"
            raise click.UsageError(f"{path}: {problem}; {remedy}")


def name_of(path: Path) -> str:
    """A model's name: from its config, from the file's name, or from the folder of a `config.json`."""
    said = read_config(path).get("_name_or_path")
    of_file = path.resolve().parent.name if path.stem == "config" else path.stem
    name = said.rstrip("/").rpartition("/")[2] if isinstance(said, str) else ""
    printable = "".join(one for one in name or of_file if one.isprintable())
    return printable.strip()[:_LONGEST_LABEL].strip() or "model"
