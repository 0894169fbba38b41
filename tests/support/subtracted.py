"""A copy of the repository without the folder of one op kind."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.repository import ROOT, copy_compiled

#: What a server and most of its tests need.
SERVER = ("tuner", "workers", "migrations", "runtime", "tests", "pyproject.toml")
#: The author of the copy's own commit.
_AUTHOR = ("-c", "user.name=tuner", "-c", "user.email=tuner@localhost", "-c", "commit.gpgsign=false")


def without_kind(kind: str, to: Path, places: Sequence[str] = SERVER) -> Path:
    """Copies all tracked and untracked files in `places`, except ``tuner/ops/<kind>``; all tests are copied. Links of
    the documents into that folder become plain text."""
    # Tests that ask git for its history.
    subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, to], check=True)
    said = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *places],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, said.split("\0")):
        source, target = ROOT / name, to / name
        if name.startswith(f"tuner/ops/{kind}/") or not (source.is_file() or source.is_symlink()):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
        if target.suffix == ".md" and not target.is_symlink():
            target.write_text(unlinked(kind, source.read_text(encoding="utf-8")), encoding="utf-8")
    assert not (to / "tuner/ops" / kind).exists()
    for command in (["add", "--all"], [*_AUTHOR, "commit", "--quiet", "-m", f"Without {kind}"]):
        subprocess.run(["git", *command], cwd=to, check=True, capture_output=True)
    copy_compiled(to)
    return to


def unlinked(kind: str, page: str) -> str:
    """A page without links into the kind's folder, and without code words that are paths in it."""
    page = re.sub(rf"\]\([^)\s]*tuner/ops/{kind}(?:[/#][^)\s]*)?\)", "]", page)
    return re.sub(rf"`((?:tuner/ops/)?{kind}/[^`\n]*|tuner/ops/{kind})`", r"\1", page)
