"""Networks that a JSON file describes by their layers. The file names a kind of op, whose module ``described`` reads
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from tuner.core.problem.op_kinds import op_kinds, part_of
from tuner.errors import InvalidInput

Json = dict[str, Any]


class Describes(Protocol):
    """The module ``described`` of a kind."""

    def chains_of(
        self, description: Mapping[str, Any], images: int, dtype: str | None = None
    ) -> list[tuple[str, Json]]:
        """The name of each block, and its ops for `images` images, in the form of `POST /jobs`.

        Raises:
            InvalidInput: names the path of the invalid value.
        """


def is_described(config: Mapping[str, Any]) -> bool:
    """Whether a config describes a network by its layers, rather than being the config of a model."""
    return "model_type" not in config and ("blocks" in config or "kind" in config)


def described(config: Mapping[str, Any], images: int, dtype: str | None) -> list[tuple[str, Json]]:
    """The blocks of a described network.

    Raises:
        InvalidInput: names the path of the invalid value.
    """
    known = [kind for kind in op_kinds() if part_of(kind, "described")]
    kind = config.get("kind")
    if kind not in known:
        problem = "is missing" if "kind" not in config else f"is {kind!r}"
        raise InvalidInput("kind", problem, f"give one of {', '.join(known)}")
    return cast(Describes, part_of(str(kind), "described")).chains_of(config, images, dtype)
