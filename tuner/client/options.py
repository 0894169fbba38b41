"""Command-line options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click

from tuner.client.row_counts import row_counts
from tuner.core.problem.presets import MODELS, LayerRun, Run
from tuner.core.problem.workload import Activation, Dtype
from tuner.errors import InvalidInput
from tuner.json_file import read_json
from tuner.ops.attention.op import Lengths
from tuner.packs.ladder import DEFAULT_MIN_GAIN


class Finite(click.FloatRange):
    """A number in a range, and one that JSON has: neither infinite nor none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; `nan` and `inf` are refused."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is no finite number", param, ctx)
        return found


#: Element types.
DTYPES = [str(dtype) for dtype in Dtype]

F = TypeVar("F", bound=Callable[..., Any])

#: What an attention's cache and scores may be.
_FORM = ("page_tokens", "heads_first", "window", "soft_cap")
#: The presets, and what each takes beside `model`: what it needs, and what it may have.
PRESETS = {
    "decoder-block": ({"m"}, {"tp", "run"}),
    "decoder-attention": ({"sequences", "max_length"}, {"tp", "new_tokens", "lengths", "projection", *_FORM}),
    "decoder-layer": ({"sequences", "max_length"}, {"tp", "new_tokens", "lengths", "run", "rotary", *_FORM}),
}
_FFN_SIZES = ("m", "d_in", "d_hidden", "d_out")
_FFN_OPTIONS = ("activation", "bias", "gated", "residual", "row_scale")
#: Options of an attention by its sizes: what it needs, and what it may have.
_HEADS = ("heads", "kv_heads", "head_dim")
_ATTENTION = {"sequences", "max_length", *_HEADS}, {"new_tokens", "lengths", "scale", "d_out", *_FORM}
#: Options of presets alone.
_OF_PRESETS = ("model", "tp", "run", "projection", "rotary")
_OF_ATTENTIONS = ("sequences", "max_length", "new_tokens", "lengths", "scale", *_HEADS, *_FORM)
_PAIR = (*_FFN_SIZES, *_FFN_OPTIONS, "first", "second", "preset", *_OF_PRESETS, *_OF_ATTENTIONS, "dtype")
_SIZE = click.IntRange(min=1)
_RUNS = list(dict.fromkeys((*map(str, Run), *map(str, LayerRun))))


def check_gemm(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Takes `M,N,K` only.

    Raises:
        click.BadParameter: these are not three positive sizes.
    """
    sizes = ["1", "1", "1"] if value is None else value.split(",")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise click.BadParameter(f"{value!r} is not three positive sizes; give them as M,N,K")
    return value


def pair_options(command: F) -> F:
    """The options that spell a pair."""
    for option in reversed(
        [
            click.option(
                "--m",
                metavar="M",
                callback=row_counts,
                help="Rows of X and Y, or tokens of a step; submit takes several, such as 1,2,4,8..256.",
            ),
            click.option("--d-in", type=_SIZE, help="Columns of X."),
            click.option("--d-hidden", type=_SIZE, help="Columns of the intermediate."),
            click.option("--d-out", type=_SIZE, help="Columns of Y."),
            click.option("--activation", type=click.Choice([str(one) for one in Activation])),
            click.option("--bias/--no-bias", default=None, help="Whether both products add a bias vector."),
            click.option("--gated/--no-gated", default=None, help="Whether the intermediate is act(gate) * up."),
            click.option("--residual/--no-residual", default=None, help="Whether a residual is added to Y."),
            click.option("--row-scale/--no-row-scale", default=None, help="Whether rows are scaled, as RMSNorm does."),
            click.option("--first", metavar="M,N,K", callback=check_gemm, help="An independent pair's first GEMM."),
            click.option("--second", metavar="M,N,K", callback=check_gemm, help="An independent pair's second GEMM."),
            click.option(
                "--preset",
                type=click.Choice(list(PRESETS)),
                help="Ops of a model by their name; needs --model, and --m or --sequences with --max-length.",
            ),
            click.option("--model", type=click.Choice(list(MODELS)), help="Of a preset."),
            click.option("--tp", type=_SIZE, help="Of a preset: ranks that share the layer; 1."),
            click.option(
                "--run", type=click.Choice(_RUNS), help="Of decoder-block or decoder-layer: all of it, or a run."
            ),
            click.option(
                "--projection/--no-projection", default=None, help="Of decoder-attention: whether o_proj is behind it."
            ),
            click.option(
                "--rotary/--no-rotary",
                default=None,
                help="Of decoder-layer: whether qkv turns and writes to the cache.",
            ),
            click.option("--sequences", type=_SIZE, help="Of an attention: sequences of a launch."),
            click.option("--max-length", type=_SIZE, help="Of an attention: tokens of the longest context."),
            click.option("--new-tokens", type=_SIZE, help="Of an attention: new tokens of each sequence, 1 to 8; 1."),
            click.option(
                "--lengths", type=click.Choice([str(one) for one in Lengths]), help="At which an attention is timed."
            ),
            click.option("--page-tokens", type=_SIZE, help="Of a page of its cache; contiguous unless given."),
            click.option(
                "--heads-first/--tokens-first", default=None, help="Order in a page of its cache; heads first."
            ),
            click.option("--window", type=_SIZE, help="Tokens that a query sees; all unless given."),
            click.option("--soft-cap", type=Finite(), help="Of its scores; none unless given."),
            click.option("--heads", type=_SIZE, help="Query heads of an attention, a multiple of --kv-heads."),
            click.option("--kv-heads", type=_SIZE, help="Heads of its cache."),
            click.option("--head-dim", type=_SIZE, help="Elements of a head: 64 or 128."),
            click.option("--scale", type=Finite(), help="Of its scores; 1 / sqrt(head dim) unless given."),
            click.option(
                "--dtype",
                type=click.Choice(DTYPES),
                default=DTYPES[0],
                show_default=True,
            ),
            click.option("--target", help="e.g. h200 or simulated:h200; by default the server's own."),
        ]
    ):
        command = option(command)
    return command


def match_options(command: F) -> F:
    """The options that say what else than the pair must fit, and how well."""
    for option in reversed(
        [
            click.option("--l2", type=click.Choice(["cold", "warm"]), help="What the L2 held; by default cold."),
            click.option("--regime", type=click.Choice(["burst", "sustained"]), help="By default that of the rows."),
            click.option(
                "--match",
                type=click.Choice(["exact", "nearest", "any"]),
                default="exact",
                show_default=True,
                help="The weakest match that may answer.",
            ),
            click.option(
                "--max-distance",
                type=Finite(min=0),
                help="How far a weaker match's shape may be: factors between sizes, in powers of two, summed. "
                "By default 2: M twice as large, or half.",
            ),
        ]
    ):
        command = option(command)
    return command


lock_option = click.option(
    "--lock", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The lock file, e.g. tuner.lock."
)


def pack_options(command: F) -> F:
    """The options that say how a pack is made and where it goes."""
    for option in reversed(
        [
            click.option(
                "-o",
                "--output",
                type=click.Path(dir_okay=False, path_type=Path),
                required=True,
                help="e.g. model.tunerpack.",
            ),
            click.option(
                "--lock", type=click.Path(dir_okay=False, path_type=Path), help="Notes the pack in this lock."
            ),
            click.option(
                "--min-gain",
                type=Finite(min=0, max=100),
                default=DEFAULT_MIN_GAIN,
                show_default=True,
                help="Where our kernel gains less over the library, the library is kept.",
            ),
            click.option(
                "--batch-invariant",
                is_flag=True,
                help="A row's bits depend on no other row: kernels of one order of sums alone, whatever they gain.",
            ),
            click.option("--key", help="The public key that must have signed it, as `tuner key show` prints it."),
        ]
    ):
        command = option(command)
    return command


def take_question(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the pair's options and those of the match from `options`; the query parameters that spell them."""
    names = ("target", "l2", "regime", "match", "max_distance")
    return take_pair(options) | {name: value for name in names if (value := options.pop(name)) is not None}


def take_pair(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the pair's options from `options`; the query parameters that spell it.

    Raises:
        click.UsageError: options are missing, or belong to another kind of pair.
    """
    given = {name: value for name in _PAIR if (value := options.pop(name)) is not None}
    if isinstance(given.get("m"), tuple):
        raise click.UsageError("--m takes one number of rows here, or --batch names a batch")
    kind, what = "ffn", "a pair"
    needed, optional = {*_FFN_SIZES}, {*_FFN_OPTIONS}
    if "first" in given or "second" in given:
        kind, what, needed, optional = "independent", "a pair of --first and --second", {"first", "second"}, set()
    if given.keys() & {"preset", *_OF_PRESETS}:
        kind = given.get("preset", "decoder-attention" if "projection" in given else "decoder-block")
        what, (own, optional) = f"--preset {kind}", PRESETS[kind]
        needed = {"preset", "model", *own}
    elif given.keys() & {*_OF_ATTENTIONS}:
        kind, what, (needed, optional) = "attention", "an attention", _ATTENTION
    missing, stray = needed - given.keys(), given.keys() - needed - optional - {"dtype"}
    if kind == "ffn" and missing == needed:
        raise click.UsageError(f"give a pair by {_flags(needed)}, or by --first and --second, or a --preset")
    faults = [f"{what} needs {_flags(missing)} as well"] if missing else []
    faults += [f"{_flags(stray)}: not for {what}"] if stray else []
    if faults:
        raise click.UsageError("; ".join(faults))
    given.pop("preset", None)
    return {"kind": kind, **given}


def pair_body(query: dict[str, Any]) -> dict[str, Any]:
    """The pair as `POST /jobs` takes it."""

    def gemm(text: str) -> dict[str, int]:
        return dict(zip("mnk", (int(size) for size in text.split(",")), strict=True))

    return {name: gemm(value) if name in ("first", "second") else value for name, value in query.items()}


def chain_body(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """The chain of a file as `POST /jobs` takes it.

    Raises:
        click.UsageError: the file cannot be read, is no JSON object, or a pair is spelled too.
    """
    given = {name for name in _PAIR if options.pop(name) not in (None, DTYPES[0])}
    if given:
        raise click.UsageError(f"{_flags(given)}: not with --chain, whose file has it all")
    try:
        chain = read_json(path, 'give an object like {"m": 16, "ops": [...]}')
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(chain, dict) or chain.get("kind", "chain") != "chain":
        raise click.UsageError(f'{path} must hold an object like {{"m": 16, "ops": [...]}}')
    return {**chain, "kind": "chain"}


def _flags(names: Collection[str]) -> str:
    """As they are spelled, in the order of the command's help."""
    return ", ".join(_flag(name) for name in _PAIR if name in names)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
