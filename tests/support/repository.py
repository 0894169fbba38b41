"""The path of the repository."""

from __future__ import annotations

from pathlib import Path

#: The folder with `tuner`, `workers`, `docs` and `tests`.
ROOT = Path(__file__).parents[2]
