"""Requirements on a data folder before a server starts: writable, intact, and with its database present."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.builders import spec
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.jobs import jobs

#: A user who owns nothing.
NOBODY = 65534


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder with jobs and an artifact."""
    store = Store.open(tmp_path)
    with store.write() as session:
        for m in range(1, 200):
            jobs.insert(session, spec(m), 1.0)
    store.artifacts.put(b"a kernel")
    store.close()
    return tmp_path


def refusal_of(folder: Path) -> str:
    """Why the folder is refused; checked twice, because the first check must not change it."""
    before = sorted(path.name for path in folder.iterdir())
    for _ in range(2):
        with pytest.raises(StoreError) as refusal:
            Store.open(folder)
    assert set(before) <= {path.name for path in folder.iterdir()}
    return str(refusal.value)


def remove_database(folder: Path) -> None:
    for path in folder.glob("tuner.db*"):
        path.unlink()


def test_a_database_that_is_gone_while_artifacts_are_there_is_refused(filled: Path) -> None:
    remove_database(filled)
    assert "is gone" in refusal_of(filled)
    assert "restore a backup" in refusal_of(filled)
    shutil.move(filled / "artifacts", filled / "elsewhere")
    Store.open(filled).close()


def test_an_empty_database_while_artifacts_are_there_is_refused(filled: Path) -> None:
    remove_database(filled)
    (filled / "tuner.db").touch()
    assert "has no tables" in refusal_of(filled)


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_database_is_refused(filled: Path, damage: str) -> None:
    database = filled / "tuner.db"
    size = database.stat().st_size
    with database.open("r+b") as file:
        if damage == "cut":
            file.truncate(size // 2)
        else:
            for page in range(size * 9 // 10 // 4096, size // 4096):  # nothing that a server reads when it starts
                file.seek(page * 4096)
                file.write(b"\xa5" * 4096)
    assert refusal_of(filled).startswith(f"{database} is damaged") or "cannot be used" in refusal_of(filled)


def test_a_folder_without_artifacts_may_be_new_or_empty(tmp_path: Path) -> None:
    (tmp_path / "tuner.db").touch()
    Store.open(tmp_path).close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can access; pytest's are closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("case", ["empty", "filled"])
def test_a_folder_that_cannot_be_written_is_told(public: Path, case: str) -> None:
    if case == "filled":
        Store.open(public).close()
    public.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(StoreError, match=f"{public} cannot be written: Permission denied; .* another --data"):
            Store.open(public)
    finally:
        if is_root:
            os.seteuid(0)
