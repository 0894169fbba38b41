"""Ops of a kind that the service has no more, as a type checker sees them: what documents.py has of the other kinds."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class UnknownOps(TypedDict):
    """Ops of which the service has a kind no more: it keeps them, and runs none."""

    kind: Literal["unknown"]
    unknown_kinds: list[str]
    ops: list[dict[str, Any]]
    dtype: str
