"""Names of owners and projects."""

from __future__ import annotations

#: Maximum length of a name, in characters.
MAX_CHARACTERS = 64


def is_name(text: str) -> bool:
    """Whether `text` is a valid name for an owner or a project: 1 to 64 printable characters, with no blank at
    either end."""
    return 0 < len(text) <= MAX_CHARACTERS and text.isprintable() and text == text.strip()
