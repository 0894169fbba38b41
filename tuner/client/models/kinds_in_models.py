"""What kinds of ops read from a model's config besides its feed-forward blocks: the file ``models`` of a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, cast

import click

from tuner.core.problem.op_kinds import op_kinds, part_of

Json = dict[str, Any]


class KindInModels(Protocol):
    """A kind of op in models. Its ops are in the form of `POST /jobs`."""

    #: Fields of a config that it reads without which a config describes no model; and others, besides those for which
    #: families have defaults.
    REQUIRED: Sequence[str]
    FIELDS: Sequence[str]
    #: Objects inside a config, at any depth, and the names that it reads there.
    OBJECTS: Mapping[str, Sequence[str]]

    def counted_pairs(self, config: Mapping[str, Any], **how: Any) -> list[tuple[Json, int]]:
        """The pairs of a decode step, alone or with the ops that a job tunes together, and how many layers have each.

        Raises:
            InvalidInput: the model has none that is supported.
        """

    def remaining_pairs(self, config: Mapping[str, Any], **how: Any) -> list[tuple[Json, int]]:
        """The same of a model that is refused as a whole.

        Raises:
            InvalidInput: its config does not say enough of them, or no kernel here computes them.
        """

    def what_to_take(self, *, with_qkv: bool, blocks: bool, layers: bool) -> Callable[..., list[Json]]:
        """The reader of a config, for the options of `tune-model`."""

    def words_of(self, pair: Mapping[str, Any]) -> str:
        """The findings of such a reader, in words."""

    def whether_known(self, config: Mapping[str, Any], why: str) -> str:
        """Whether a refused model has one that is supported; `why` tells what it is combined with."""


def kinds_with_context() -> tuple[KindInModels, ...]:
    """The same, for requests that need a context.

    Raises:
        click.UsageError: there are none.
    """
    if not kinds_in_models():
        raise click.UsageError("--context: no known kind of op has a context: install a package that adds one")
    return kinds_in_models()


@cache
def kinds_in_models() -> tuple[KindInModels, ...]:
    """All modules that know such ops."""
    return tuple(cast(KindInModels, part) for kind in op_kinds() if (part := part_of(kind, "models")))
