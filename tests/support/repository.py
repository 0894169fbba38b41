"""The path of the repository, and copies of its parts."""

from __future__ import annotations

import shutil
from pathlib import Path

#: The folder with `tuner`, `workers`, `docs` and `tests`.
ROOT = Path(__file__).parents[2]


def copy_folder(folder: str, to: Path) -> None:
    """Copies a folder of the repository to the same place below `to`. Times of files and compiled modules are kept, so
    that Python compiles only what is changed there; compiling the program takes some seconds."""
    # Other processes write compiled modules, first under names that end with a number.
    half_written = shutil.ignore_patterns("*.pyc.*")
    shutil.copytree(ROOT / folder, to / folder, symlinks=True, ignore=half_written, dirs_exist_ok=True)


def copy_compiled(to: Path) -> None:
    """Copies the compiled modules of a copy whose files have the times of the repository's."""
    for folder in [path for path in to.rglob("*") if path.is_dir() and not path.is_symlink()]:
        compiled = (folder / "__pycache__").relative_to(to)
        if folder.name != "__pycache__" and (ROOT / compiled).is_dir():
            copy_folder(str(compiled), to)
