"""What kinds of ops know of a model's config beside its feed-forward blocks: the file ``models`` of a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, cast

import click

from tuner.core.problem.op_kinds import op_kinds, part_of

Json = dict[str, Any]


class KindInModels(Protocol):
    """Where models have one kind of op. Its ops come as `POST /jobs` takes them."""

    def counted_pairs(self, config: Mapping[str, Any], **how: Any) -> list[tuple[Json, int]]:
        """Those of a decode step, alone or with what a job tunes beside, and how many layers have each.

        Raises:
            InvalidInput: the model has none that is known here.
        """

    def remaining_pairs(self, config: Mapping[str, Any], **how: Any) -> list[tuple[Json, int]]:
        """The same of a model that is refused as a whole.

        Raises:
            InvalidInput: its config does not say enough of them, or no kernel here computes them.
        """

    def what_to_take(self, *, with_qkv: bool, blocks: bool, layers: bool) -> Callable[..., list[Json]]:
        """What reads a config, by the options of `tune-model`."""

    def words_of(self, pair: Mapping[str, Any]) -> str:
        """What such a reader has found, in words."""

    def whether_known(self, config: Mapping[str, Any], why: str) -> str:
        """Whether a model that is refused as a whole has one with a kernel here; `why` says what goes with it."""


def kinds_with_context() -> tuple[KindInModels, ...]:
    """The same, for who asks for what has a context.

    Raises:
        click.UsageError: there are none.
    """
    if not kinds_in_models():
        raise click.UsageError("--context: no kind of op that is known here has a context: install the package of one")
    return kinds_in_models()


@cache
def kinds_in_models() -> tuple[KindInModels, ...]:
    """All that know of such ops."""
    return tuple(cast(KindInModels, part) for kind in op_kinds() if (part := part_of(kind, "models")))
