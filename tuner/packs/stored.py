"""A manifest's description of weights that are stored in fewer bits, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def stored_in(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each storage format, with its tensors; none if all weights are plain elements."""
    found: dict[str, list[str]] = {}
    for tensor in manifest["tensors"]:
        if stored := tensor.get("stored"):
            found.setdefault(_words(stored), []).append(tensor["name"])
    return tuple(f"{', '.join(names)}: {words}" for words, names in found.items())


def _words(stored: Mapping[str, Any]) -> str:
    """The storage of one tensor, as text."""
    factors = f"a {stored['factors']} factor for {stored['group']} of a row" if stored["group"] else ""
    zeros = "zero points" if stored["has_zeros"] else ""
    about = ", ".join(filter(None, (f"{stored['bits']} bits", factors, zeros)))
    return f"{stored['format']} ({about}), layout {stored['layout']}"
