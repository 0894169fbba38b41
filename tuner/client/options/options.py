"""Command-line options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tuner.core.problem.dtype import Dtype


class Number(click.types.FloatParamType):
    """A number that JSON can represent: neither infinite nor NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Returns the number; refuses `nan` and `inf`."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number", param, ctx)
        return found


class Finite(Number, click.FloatRange):
    """A finite number in a range."""


#: Element types.
DTYPES = [str(dtype) for dtype in Dtype]

F = TypeVar("F", bound=Callable[..., Any])


def match_options(command: F) -> F:
    """Options for what must match besides the pair, and how closely."""
    for option in reversed(
        [
            click.option("--l2", type=click.Choice(["cold", "warm"]), help="Content of the L2; default: cold."),
            click.option("--regime", type=click.Choice(["burst", "sustained"]), help="Default: depends on the rows."),
            click.option(
                "--match",
                type=click.Choice(["exact", "nearest", "any"]),
                default="exact",
                show_default=True,
                help="The weakest acceptable match.",
            ),
            click.option(
                "--max-distance",
                type=Finite(min=0),
                help=(
                    "How different the shape of a weaker match may be: log2 of the ratio of each size, "
                    "summed. Default 2: M twice as large, or half."
                ),
            ),
        ]
    ):
        command = option(command)
    return command


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one document per line.")
