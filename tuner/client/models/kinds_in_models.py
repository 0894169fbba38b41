"""What kinds of ops read from a model's config besides its feed-forward blocks: the module ``models`` of a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol, cast

import click

from tuner.core.problem.op_kinds import op_kinds, part_of

Json = dict[str, Any]


class KindInModels(Protocol):
    """A kind of op in models. Its ops are in the form of `POST /jobs`."""

    #: Config fields that it reads: those that are required, and others without a default in the families.
    REQUIRED: Sequence[str]
    FIELDS: Sequence[str]
    #: Objects inside a config, at any depth, and the field names that it reads there.
    OBJECTS: Mapping[str, Sequence[str]]

    def counted_pairs(self, config: Mapping[str, Any], **how: Any) -> list[tuple[Json, int]]:
        """The pairs of a decode step, alone or with ops that are tuned with them, and how many layers have each.

        Raises:
            InvalidInput: the model has none that is supported.
        """

    def remaining_pairs(self, config: Mapping[str, Any], **how: Any) -> list[tuple[Json, int]]:
        """The same for a model that is refused as a whole.

        Raises:
            InvalidInput: its config does not describe them completely, or there is no kernel for them.
        """

    def what_to_take(self, *, with_qkv: bool, blocks: bool, layers: bool) -> Callable[..., list[Json]]:
        """The reader of a config, for the options of `tune-model`."""

    def words_of(self, pair: Mapping[str, Any]) -> str:
        """The reader's findings, as text."""

    def whether_known(self, config: Mapping[str, Any], why: str) -> str:
        """Whether a refused model has a supported op of this kind; `why` says what it is combined with."""


def kinds_with_context() -> tuple[KindInModels, ...]:
    """The modules of all kinds that find ops in models, for requests that need a context.

    Raises:
        click.UsageError: there is no such kind.
    """
    if not kinds_in_models():
        raise click.UsageError("--context: no installed kind of op has a context; install a package that provides one")
    return kinds_in_models()


@cache
def kinds_in_models() -> tuple[KindInModels, ...]:
    """The modules of all kinds that find their ops in models."""
    return tuple(cast(KindInModels, part) for kind in op_kinds() if (part := part_of(kind, "models")))
