"""Options that describe a workload, one for each field of a request, and their values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import click

from tuner.client.options.options import DTYPES, Finite, Number
from tuner.client.options.row_counts import row_counts
from tuner.core.problem.asked import (
    CHAIN,
    AskedWorkload,
    asked_workloads,
    document_of,
    is_listed,
    listed,
    names_in,
    parameter_names,
)
from tuner.core.problem.ops.codec import fields_of, hints_of
from tuner.errors import InvalidInput
from tuner.schedule_files.json_file import read_json

Json = Mapping[str, Any]
TARGET_HELP = "e.g. h200; default: the server's own."
#: Whether several numbers for this field make a batch.
_ROWS = "m"


def options_of(one: type[AskedWorkload]) -> list[click.Option]:
    """The options of one way to describe a workload: required ones, optional ones, then the element type."""
    own = {field.name: field for field in fields_of(one)}
    found = [
        _option(name, own[field], hints_of(one)[field], _sentence(own[field]), is_needed=own[field].default is MISSING)
        for field, name in parameter_names(one).items()
    ]
    return [*sorted(found, key=lambda option: not option.required), _dtype_option()]


def pair_options(command: click.Command) -> click.Command:
    """Adds the options for any workload to a command, before those for the match."""
    place = next(index for index, param in enumerate(command.params) if param.name == "l2")
    command.params[place:place] = [*flat_options(), click.Option(["--target"], help=TARGET_HELP)]
    return command


def flat_options(*, hidden: bool = False) -> list[click.Option]:
    """One option for each field name of any kind."""
    words: dict[str, dict[str, list[str]]] = {}
    first: dict[str, tuple[Field[Any], list[Any]]] = {}
    for kind, one in asked_workloads().items():
        called = parameter_names(one)
        for field in (field for field in fields_of(one) if field.name in called):
            name = called[field.name]
            words.setdefault(name, {}).setdefault(_said(field), []).append(kind)
            first.setdefault(name, (field, []))[1].append(hints_of(one)[field.name])
    kinds = tuple(asked_workloads())
    chosen = click.Option(
        ["--kind"], type=click.Choice(kinds), hidden=hidden, help="Kind of the pair that the options below describe."
    )
    by_model = tuple(kind for kind, one in asked_workloads().items() if "model" in parameter_names(one))
    preset = click.Option(
        ["--preset"], type=click.Choice(by_model), hidden=hidden, help="Same, for the ops of a model."
    )
    options = [chosen, preset]
    for name, (field, hints) in first.items():
        help = " ".join(_capital(f"{', '.join(of)}: {doc}.") for doc, of in words[name].items())
        options.append(_option(name, field, _common(hints), help, hidden=hidden))
    return [*options, _dtype_option(hidden=hidden)]


def _common(hints: list[Any]) -> Any:
    """The type of an option that several kinds share: their common type; a choice of all words if each has words;
    otherwise text, which each kind parses."""
    plain = list(dict.fromkeys(map(_plain, hints)))
    if len(plain) == 1:
        return plain[0]
    if all(isinstance(hint, type) and issubclass(hint, StrEnum) for hint in plain):
        return tuple(dict.fromkeys(str(word) for hint in plain for word in hint))
    return str


def _dtype_option(*, hidden: bool = False) -> click.Option:
    shown = f"Element type of every tensor; default {DTYPES[0]}."
    return click.Option(["--dtype"], type=click.Choice(DTYPES), hidden=hidden, help=shown)


def _option(
    name: str, field: Field[Any], hint: Any, help: str, *, is_needed: bool = False, **more: Any
) -> click.Option:
    about, kind = field.metadata, _plain(hint)
    flag = _flag(name)
    more |= {"help": help, "required": is_needed}
    if kind is bool:
        return click.Option([f"{flag}/--{about.get('off', f'no-{flag[2:]}')}", name], default=None, **more)
    if name == _ROWS and kind is int:
        return click.Option([flag], metavar="M", callback=row_counts, **more)
    if is_listed(kind):
        return click.Option([flag], metavar=",".join(names_in(kind)).upper(), **more)
    more |= {"metavar": "N"} if kind in (int, float) else {}
    return click.Option([flag], type=_click_type(kind, about), **more)


def _click_type(kind: Any, about: Json) -> Any:
    words = about.get("choices", ()) if kind is str else kind if isinstance(kind, tuple) else ()
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        words = tuple(kind)
    if words:
        return click.Choice([str(word) for word in words])
    least = about.get("ge")  # the service reports the maximum, if any
    if kind is float:
        return Number() if least is None else Finite(min=least)
    return None if kind is not int else click.INT if least is None else click.IntRange(min=least)


def _check_listed(name: str, hint: Any, value: Any) -> None:
    """Checks a value for a kind's list of numbers: all must be positive. Other values are not checked.

    Raises:
        click.BadParameter: a number is not positive.
    """
    kind = _plain(hint)
    if not is_listed(kind) or not isinstance(value, str):
        return
    try:
        found = listed(name, kind, value)
    except InvalidInput as error:
        raise click.BadParameter(f"{error.problem}; {error.remedy}", param_hint=f"'{_flag(name)}'") from error
    if not all(found.values() if isinstance(found, dict) else found):
        raise click.BadParameter(f"{value!r} has a size of 0; use positive sizes", param_hint=f"'{_flag(name)}'")


def _plain(hint: Any) -> Any:
    """The type without None."""
    return next((one for one in get_args(hint) if one is not NoneType), hint) if NoneType in get_args(hint) else hint


def _sentence(field: Field[Any]) -> str:
    default = field.default
    shown = "" if default in (MISSING, None, False, True) else f"; default {default}"
    return _capital(f"{_said(field)}{shown}.")


def _said(field: Field[Any]) -> str:
    """The field's description; an absent option is null."""
    return str(field.metadata.get("doc", field.name)).replace("; null for ", "; not allowed for ")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def take_question(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the options of the pair and of the match from `options`; returns the query parameters for them."""
    names = ("target", "l2", "regime", "match", "max_distance")
    return take_pair(options) | {name: value for name in names if (value := options.pop(name)) is not None}


def take_pair(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the pair's options from `options`; returns the query parameters for them.

    Raises:
        click.UsageError: options are missing, or belong to another kind of pair.
    """
    chosen = [options.pop(name, None) for name in ("kind", "preset")]
    given = {name: value for name in _names() if (value := options.pop(name, None)) is not None}
    if isinstance(given.get(_ROWS), tuple):
        raise click.UsageError("--m takes one number of rows here, unless --batch names a batch")
    kind = next(filter(None, chosen), None) or _kind_of(given.keys() - {"dtype"})
    one = asked_workloads()[kind]
    missing, stray = _needed(one) - given.keys(), given.keys() - parameter_names(one).values() - {"dtype"}
    faults = [f"{kind} also needs {_flags(missing)}"] if missing else []
    faults += [f"{_flags(stray)}: not allowed for {kind}"] if stray else []
    if faults:
        raise click.UsageError("; ".join(faults))
    for field, name in parameter_names(one).items():
        _check_listed(name, hints_of(one)[field], given.get(name))
    return {"kind": kind, **given}


def _kind_of(given: Collection[str]) -> str:
    """The kind of pair that the options describe.

    Raises:
        click.UsageError: the options fit no kind, or several.
    """
    kinds = asked_workloads()
    fits = [kind for kind, one in kinds.items() if _needed(one) <= {*given} <= {*parameter_names(one).values()}]
    if len(fits) > 1:
        raise click.UsageError(f"these options fit {' and '.join(fits)}: choose one with --kind")
    if fits:
        return fits[0]
    nearest = min(kinds, key=lambda kind: len({*given} - {*parameter_names(kinds[kind]).values()}))
    if not _needed(kinds[nearest]) & {*given}:
        first = _flags(_needed(next(iter(kinds.values()))))
        raise click.UsageError(f"describe a pair with {first}, or with the options of another kind: {', '.join(kinds)}")
    return nearest


def _needed(one: type[AskedWorkload]) -> set[str]:
    """The required parameters."""
    called = parameter_names(one)
    return {called[field.name] for field in fields_of(one) if field.default is MISSING}


def pair_body(query: Json) -> dict[str, Any]:
    """The pair in the form of `POST /jobs`."""
    return document_of(asked_workloads()[query["kind"]], query)


def chain_body(path: Path) -> dict[str, Any]:
    """The chain in a file in the form of `POST /jobs`.

    Raises:
        click.UsageError: the file cannot be read, or is not a JSON object.
    """
    try:
        chain = read_json(path, 'use an object like {"m": 16, "ops": [...]}')
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error
    if not isinstance(chain, dict) or chain.get("kind", CHAIN) != CHAIN:
        raise click.UsageError(f'{path} must contain an object like {{"m": 16, "ops": [...]}}')
    return {**chain, "kind": CHAIN}


def _names() -> Iterator[str]:
    """Names of all options that describe a workload, in the order of the help."""
    yield from dict.fromkeys(name for one in asked_workloads().values() for name in parameter_names(one).values())
    yield "dtype"


def spelled_among(options: Json) -> str:
    """The given options that describe a workload, as written on a command line."""
    return _flags({name for name in ("kind", "preset", *_names()) if options.get(name) is not None})


def _flags(names: Collection[str]) -> str:
    """Options as written on a command line, in the order of the help."""
    return ", ".join(_flag(name) for name in ("kind", "preset", *_names()) if name in names)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
