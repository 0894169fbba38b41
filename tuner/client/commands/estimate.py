"""`tuner-client estimate`: what kernels would gain for a model, before anything is tuned. It needs no service."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.progress import track
from rich.table import Table

from tuner.client.commands.configs import check_configs, networks_among
from tuner.client.delivery.output import plain_console, print_json, print_table
from tuner.client.errors import NoResult
from tuner.client.models.described import described
from tuner.client.models.kinds_in_models import KindInModels, kinds_with_context
from tuner.client.models.models import ffn_blocks, merged
from tuner.client.models.partly_known import what_remains
from tuner.client.models.quantised import Block
from tuner.client.options.model_options import model_options, read_config, take_rows
from tuner.client.options.options import as_json
from tuner.client.terminal import render
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.units import counted
from tuner.errors import InvalidInput
from tuner.packs.ladder import DEFAULT_MIN_GAIN
from tuner.packs.shapes import Shape
from tuner.versions import install_command

#: The simulator and the winners do not belong to the client: they run in a separate program.
_PROGRAM = "tuner.estimate"


@dataclass(frozen=True, kw_only=True)
class Gain:
    """The gain of an op at a number of rows or sequences, over all layers of a model."""

    #: The shape, in words.
    shape: str
    layers: int
    m: int
    #: As returned by `tuner.estimate`.
    basis: str
    words: str
    library_us: float | None
    ours_us: float | None

    @property
    def speedup(self) -> float | None:
        """The library's time divided by ours."""
        return None if self.library_us is None or self.ours_us is None else self.library_us / self.ours_us

    def saved_us(self, min_gain: float) -> float:
        """Microseconds that a step of the model saves; 0 if a pack would use the library, or nothing is known."""
        if self.library_us is None or self.ours_us is None or (self.speedup or 0.0) < min_gain:
            return 0.0
        return self.layers * (self.library_us - self.ours_us)

    def to_json(self, min_gain: float) -> dict[str, Any]:
        """The figures as JSON, for programs."""
        return {**vars(self), "speedup": self.speedup, "saved_us": self.saved_us(min_gain)}


def read_mix(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[int, float] | None:
    """Numbers of rows with their share of the steps; the shares need not sum to 1.

    Raises:
        click.BadParameter: it is not a mix.
    """
    if value is None:
        return None
    found: dict[int, float] = {}
    for part in value.split(","):
        m, _, share = part.partition(":")
        try:
            rows, weight = int(m), float(share)
        except ValueError:
            rows, weight = 0, 0.0
        if rows < 1 or not 0 < weight < math.inf or rows in found:
            raise click.BadParameter(
                f"{value!r} is not a mix: write each number of rows once, with its share, like 1:0.2,32:0.8"
            )
        found[rows] = weight
    return found


@click.command()
@click.argument("configs", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@model_options
@click.option("--mix", callback=read_mix, help="Instead of --m: shares of steps by number of rows, e.g. 1:0.2,32:0.8.")
@click.option("--context", type=click.IntRange(min=1), help="Include the attentions, with this many tokens.")
@click.option("--page-tokens", type=click.IntRange(min=1), help="With --context: tokens per page of the cache.")
@click.option("--target", type=click.Choice(sorted(CATALOGUE)), default="h200", show_default=True, help="The card.")
@click.option(
    "--min-gain", type=click.FloatRange(min=0), default=DEFAULT_MIN_GAIN, show_default=True, help="Same as for packs."
)
@as_json
def estimate(configs: tuple[Path, ...], mix: dict[int, float] | None, as_json: bool, **options: Any) -> None:
    """Estimates how much a model would gain, before anything is tuned.

    CONFIGS are those of tune-model: of models, or of networks by their layers, where --m is the number of images.

    The figures come from measured cards, from similar shapes, or from the simulator: each line shows which.
    """
    if mix is not None:
        options["rows"] = tuple(sorted(mix))
    networks = networks_among(configs, options)
    models = [path for path in configs if path not in networks]
    rows, min_gain = take_rows(options), options["min_gain"]
    check_configs(models, with_context=options["context"] is not None)
    how = {name: options[name] for name in ("tp", "dtype", "context", "page_tokens")}
    asked = [*_asked(models, rows, **how), *_of_networks(networks, rows, options["dtype"])]
    if not asked:
        raise NoResult("no op of these models is supported by a kernel")
    gains = _gains(asked, options["target"])
    if as_json:
        for gain in gains:
            print_json(gain.to_json(min_gain))
        return
    print_table(_table(gains, min_gain, options["target"]))
    of_tokens = bool(models)
    for line in _sums(gains, mix or dict.fromkeys(rows, 1.0), min_gain, is_mix=mix is not None, of_tokens=of_tokens):
        click.echo(line)


def _blocks_of(path: Path, **how: Any) -> dict[Shape | Block, int]:
    """The blocks of a model, or of its supported part, which is then reported."""
    config = read_config(path)
    try:
        return ffn_blocks(config, **how)
    except InvalidInput as refused:
        try:
            shapes, words = what_remains(config, **how)
        except InvalidInput as error:
            raise click.UsageError(f"{path}: {error}") from error
        if not words:
            raise click.UsageError(f"{path}: {refused.field}: {refused.problem}; {refused.remedy}") from refused
        click.echo(f"{path}: {refused.field}: {refused.problem}; what is supported:", err=True)
        for line in words:
            click.echo(f"  {line}", err=True)
        return dict(shapes.items())


def _asked(
    configs: Sequence[Path], rows: Sequence[int], context: int | None, page_tokens: int | None, **how: Any
) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """The queries for the models: a description, layers, rows, and the form of `POST /jobs`."""
    for block, layers in merged([_blocks_of(path, **how) for path in configs]).items():
        yield from ((str(block), layers, m, _pair(block, m)) for m in rows)
    if context is None:
        return
    how |= {"max_length": context, "page_tokens": page_tokens}
    for path, kind in product(configs, kinds_with_context()):
        yield from _with_context(path, kind, rows, **how)


def _of_networks(
    paths: Sequence[Path], images: Sequence[int], dtype: str | None
) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """The queries for the blocks of described networks."""
    for path, count in product(paths, images):
        try:
            blocks = described(read_config(path), count, dtype)
        except InvalidInput as error:
            raise click.UsageError(f"{path}: {error}") from error
        yield from ((name, 1, count, chain) for name, chain in blocks)


def _pair(block: Shape | Block, m: int) -> dict[str, Any]:
    return block.pair(m) if isinstance(block, Block) else {"kind": "ffn", "m": m, **vars(block)}


def _with_context(
    path: Path, kind: KindInModels, rows: Sequence[int], **how: Any
) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
    """A model's ops of a kind that has a context; if the model is refused as a whole, those that are supported."""
    config = read_config(path)
    take = kind.counted_pairs
    try:
        take(config, sequences=1, **how)
    except InvalidInput as refused:
        try:
            kind.remaining_pairs(config, sequences=1, **how)
        except InvalidInput as error:
            click.echo(f"{path}: {error.field}: {error.problem}: ops with a context are not estimated", err=True)
            return
        click.echo(f"{path}: {refused.field}: {refused.problem}: contexts are estimated without windows", err=True)
        take = kind.remaining_pairs
    for m in rows:
        yield from ((kind.words_of(pair), layers, m, pair) for pair, layers in take(config, sequences=m, **how))


def _gains(asked: Sequence[tuple[str, int, int, dict[str, Any]]], target: str) -> list[Gain]:
    found = _run({"target": target, "pairs": [pair for *_, pair in asked]})
    return [
        Gain(shape=shape, layers=layers, m=m, **one) for (shape, layers, m, _), one in zip(asked, found, strict=True)
    ]


def _run(asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The output of the estimating program.

    Raises:
        NoResult: it cannot run here, with the reason.
    """
    command = [sys.executable, "-m", _PROGRAM]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as program,
    ):
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            with suppress(BrokenPipeError), program.stdin:
                json.dump(asked, program.stdin)
            found = list(_as_they_come(program.stdout, len(asked["pairs"])))
        except BaseException:
            program.kill()
            raise
        if program.wait() == 0:
            return found
        errors.seek(0)
        why = (errors.read().strip().splitlines() or [f"the estimating program ended with code {program.returncode}"])[
            -1
        ]
    if "ModuleNotFoundError" in why:
        why = f"{why}; run: {install_command('server')}"
    raise NoResult(f"no estimate is possible here: {why}")


def _as_they_come(lines: Iterable[str], total: int) -> Iterator[dict[str, Any]]:
    """The estimates, with a progress bar while waiting."""
    console = plain_console(stderr=True)
    for line in track(
        lines, "estimating", total=total, console=console, transient=True, disable=not console.is_terminal
    ):
        yield json.loads(line)


def _table(gains: Sequence[Gain], min_gain: float, target: str) -> Table:
    table = Table("shape", "layers", "rows", "library", "ours", "speed-up", "saved a step", "from")
    table.title = f"estimates for {target}: nothing was measured for this model"
    for gain in gains:
        saved = gain.saved_us(min_gain)
        table.add_row(
            gain.shape,
            str(gain.layers),
            str(gain.m),
            render.microseconds(gain.library_us),
            render.microseconds(gain.ours_us),
            render.ratio(gain.speedup),
            render.microseconds(saved) if saved else "–",
            f"{gain.basis}: {gain.words}",
        )
    return table


def _sums(
    gains: Sequence[Gain], mix: Mapping[int, float], min_gain: float, *, is_mix: bool, of_tokens: bool
) -> list[str]:
    """Savings per step, for each number of rows or for the mix, and how many figures were not measured on a card."""
    unit = "row" if of_tokens else "image"
    total = {m: sum(gain.saved_us(min_gain) for gain in gains if gain.m == m) for m in mix}
    if is_mix:
        saved = sum(share * total[m] for m, share in mix.items()) / sum(mix.values())
        and_so = ", and so does each token of a sequence" if of_tokens else ""
        lines = [f"a step of the mix saves {render.microseconds(saved)}{and_so}"]
    else:
        best = max(total, key=lambda m: total[m])
        per = "per step, and per token of each sequence" if of_tokens else "per step"
        most = f"the largest saving is at {counted(best, unit)}: {render.microseconds(total[best])} {per}"
        lines = [most if total[best] else "no step is expected to save time: a pack would use the library"]
    unsure = sum(1 for gain in gains if gain.basis != "measured")
    return (
        [*lines, f"from other shapes, or from the simulator: {unsure} of {counted(len(gains), 'figure')}"]
        if unsure
        else lines
    )
