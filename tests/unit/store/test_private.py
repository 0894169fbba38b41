"""The program's files are accessible only to their owner, and a folder may have any name."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.support.lanes import one_in
from tests.support.waiting import wait_until
from tuner.errors import StoreError
from tuner.packs.signing import signing_key
from tuner.private import private_files
from tuner.store import Store
from tuner.store.admin.backups import back_up, restore
from tuner.store.admin.opening import locked_engine
from tuner.store.engine.directory import DATABASE_FILE, mount_of
from tuner.store.engine.engines import make_engine
from tuner.store.results import artifacts


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """Sets a umask with which everybody may read new files."""
    before = os.umask(0o000)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """The paths that users other than the owner can access, from the folder on down."""
    return [str(path) for path in (folder, *folder.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_all_that_a_store_makes_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "above" / "data"
    store = Store.open(folder)
    with store.write() as session:
        artifacts.register(session, store.artifacts.put(b"content"), 7, 0.0)
    signing_key(folder)
    back_up(store.engine, folder / "backups" / "one.zip")
    names = {path.name for path in folder.rglob("*")}
    assert {DATABASE_FILE, f"{DATABASE_FILE}-wal", f"{DATABASE_FILE}-shm", "lock", "artifacts", "one.zip"} <= names
    assert open_to_others(folder.parent) == []
    store.close()


def test_what_an_earlier_version_left_open_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    Store.open(folder).close()
    for path in (folder, folder / DATABASE_FILE, folder / "lock"):
        path.chmod(0o755)
    Store.open(folder).close()
    assert open_to_others(folder) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_a_folder_of_somebody_else_stays_as_it_is_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    os.chown(tmp_path, 65534, 65534)
    with caplog.at_level(logging.WARNING, logger="tuner"):
        Store.open(tmp_path).close()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o777
    assert open_to_others(tmp_path) == [str(tmp_path)], "its files are ours"
    assert f"{tmp_path} belongs to another user, and others may read it" in caplog.text


def test_what_a_server_and_its_children_make_is_for_their_owner_alone(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "log").write_text("a line")
        if (child := os.fork()) == 0:
            (tmp_path / "build").write_text("a build")
            os._exit(0)
        wait_until(lambda: os.waitpid(child, os.WNOHANG) != (0, 0))
    assert open_to_others(tmp_path) in ([], [str(tmp_path)])
    (tmp_path / "after").touch()
    assert stat.S_IMODE((tmp_path / "after").stat().st_mode) == 0o666


NAMES = [
    "feature%2Flogin",
    "run?a",
    "a#b",
    "a b",
    'it\'s "so"',
    "ä-日本",
    "two\nlines",
    "a;b=c&d",
    "%",
    "file:x?mode=memory",
    ":memory:",
    "{x}",
    "user:pass@host",
    "back\\slash",
    "-data",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", one_in(len(NAMES), NAMES))
def test_a_folder_may_be_called_anything(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / name
    store = Store.open(folder)
    store.ping()
    back_up(store.engine, tmp_path / "backup.zip")
    with pytest.raises(StoreError, match="in use by another server"):
        Store.open(folder)
    store.close()
    assert (folder / DATABASE_FILE).stat().st_size > 0
    with locked_engine(tmp_path / f"{name}2", None, 1.0) as engine:
        restore(engine, tmp_path / "backup.zip")
    assert (tmp_path / f"{name}2" / DATABASE_FILE).stat().st_size > 0
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}2", "backup.zip"}
    monkeypatch.chdir(tmp_path)
    Store.open(Path(name)).close()
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}2", "backup.zip"}


def test_folders_whose_names_begin_alike_have_a_database_each(tmp_path: Path) -> None:
    engines = [make_engine(tmp_path / name, None, 1.0) for name in ("run?a", "run?b", "run#a", "run")]
    assert len({engine.url.database for engine in engines}) == 4


def test_a_mount_may_be_called_anything() -> None:
    mounts = "a\x85b /mnt/x\x0cy ext4 rw 0 0\n\nx /mnt/nfs\u2028 nfs rw 0 0\n"
    assert mount_of(Path("/mnt/x\x0cy/data"), mounts) == ("/mnt/x\x0cy", "ext4")
    assert mount_of(Path("/mnt/nfs\u2028/data"), mounts) == ("/mnt/nfs\u2028", "nfs")


def test_a_further_connection_of_a_process_takes_no_lock_of_the_database_from_it(tmp_path: Path) -> None:
    """Otherwise, another reader would believe that it is alone, and delete the log that this process still writes
    to."""
    store = Store.open(tmp_path / "data")
    try:
        with store.engine.connect() as first, store.engine.connect() as second:
            for connection in (first, second):
                connection.execute(text("select count(*) from jobs")).all()
        database = tmp_path / "data" / DATABASE_FILE
        log = Path(f"{database}-wal").stat().st_ino
        read = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('select * from jobs'); c.close()"
        subprocess.run([sys.executable, "-c", read, str(database)], check=True)
        assert Path(f"{database}-wal").stat().st_ino == log
    finally:
        store.close()
