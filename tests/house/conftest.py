"""Fixtures of these tests: the files of the repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.repository import ROOT


@pytest.fixture(scope="session")
def root() -> Path:
    """The root folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """Every file that is committed or could be; files that .gitignore excludes are not included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]
