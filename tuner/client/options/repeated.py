"""Refuses an option that takes one value but is given twice, in all commands of both programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import click

Given = Mapping[str, Sequence[Any]]


class GivenOnce(click.Command):
    """The root command of a program. It checks the whole command line, including subcommands, before anything runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line.

        Raises:
            click.UsageError: an option is repeated, with its values.
        """
        if not ctx.resilient_parsing:
            _check(self, click.Context(self, info_name=ctx.info_name), args)
        return super().parse_args(ctx, args)


def _check(command: click.Command, ctx: click.Context, args: Sequence[str], before: Given | None = None) -> None:
    """Checks a command and its subcommands; `before` has the options that were given before the subcommand."""
    options = command.get_params(ctx)
    parser = click.Command(None, params=[_collecting(one) for one in options], add_help_option=False).make_parser(ctx)
    try:
        given, rest, _ = parser.parse_args(list(args))
    except click.UsageError:
        return  # reported by the command itself
    both = {
        name: (*(before or {}).get(name, ()), *values) for name, values in given.items() if isinstance(values, list)
    }
    for option in options:
        if isinstance(option, click.Option) and not option.multiple and not option.count:
            _check_option(option, both.get(option.name or "", ()), ctx)
    if isinstance(command, click.Group) and rest and (inner := command.get_command(ctx, rest[0])):
        _check(inner, click.Context(inner, parent=ctx, info_name=rest[0]), rest[1:], both)


def _collecting(parameter: click.Parameter) -> click.Parameter:
    """A copy of a parameter that keeps all values of an option."""
    found = copy(parameter)
    if isinstance(found, click.Option) and not found.count:
        found.multiple = True
    return found


def _check_option(option: click.Option, values: Sequence[Any], ctx: click.Context) -> None:
    if len(values) < 2 or (option.is_flag and len(set(values)) == 1):
        return
    name = max(option.opts, key=len)
    if option.is_bool_flag:
        both = f"both {name} and {max(option.secondary_opts, key=len)} are given; give one of them"
    else:
        words = [" ".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in values]
        often = "twice" if len(values) == 2 else f"{len(values)} times"
        both = f"{name} is given {often}, with {', '.join(words[:-1])} and {words[-1]}; give it once"
    raise click.UsageError(both, ctx)
