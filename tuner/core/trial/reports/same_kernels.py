"""Versions of kernels with identical machine code: measurements with one version are valid for the others.

A version is a digest of device text, so it changes with each line that moves. A kind of op has a file `FILE` next to
its ``op.py`` with lists of versions; all versions of a list made the same code. `make golden` writes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cache

from tuner.core.problem.op_kinds import folder_of, op_kinds

FILE = "same_kernels.json"


def version_of_all(shared: str, own: Iterable[str]) -> str:
    """The version of a workload's kernels: that of the tile ops' kernel or, if launch ops have kernels of their `own`,
    a version of all kernels."""
    if not (versions := tuple(own)):
        return shared
    return hashlib.sha256(" ".join([shared, *versions]).encode()).hexdigest()[: len(shared)]


def alike(version: str) -> frozenset[str]:
    """The versions with the same kernels as this one, including itself."""
    return _sets().get(version, frozenset([version]))


@cache
def _sets() -> dict[str, frozenset[str]]:
    shared = [one for kind in op_kinds().values() if kind.is_unnamed for one in lists_of(kind.name)]
    found = [frozenset(one) for one in shared]
    for kind in op_kinds().values():
        own = [] if kind.is_unnamed else lists_of(kind.name)
        found += [frozenset(version_of_all(a, [b]) for a in tiles for b in one) for tiles in shared for one in own]
    return {version: one for one in found for version in one}


def lists_of(kind: str) -> list[list[str]]:
    """The contents of the kind's file; empty if there is none."""
    path = folder_of(kind) / FILE
    lists: list[list[str]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return lists


def with_version(lists: Sequence[Sequence[str]], before: str, now: str, *, is_same: bool) -> list[list[str]]:
    """The lists of a kind with its current version added; `is_same` says whether version `before` made the same
    code."""
    kept = [list(one) for one in lists]
    if any(now in one for one in kept):
        return kept
    if not is_same:
        return [*kept, [now]]
    for one in kept:
        if before in one:
            one.append(now)
            return kept
    return [*kept, [before, now]]
