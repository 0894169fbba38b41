"""What pip calls this project."""

from __future__ import annotations

#: Its name for pip. `tuner`, as commands and imports have it, is another project's name there: of musical instruments.
DISTRIBUTION = "fused-schedule-tuner"


def install_command(extra: str) -> str:
    """The command that brings the libraries of one of our extras, e.g. ``server``."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
