"""Files are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.client.files import write_atomically


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "out"
    previous = os.umask(0o027)
    try:
        assert write_atomically(path, b"1")
    finally:
        os.umask(previous)
    assert path.stat().st_mode & 0o777 == 0o640
    path.chmod(0o600)
    assert write_atomically(path, b"2")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"2", 0o600)


def test_an_unchanged_file_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "out"
    write_atomically(path, b"1")
    inode = path.stat().st_ino
    assert not write_atomically(path, b"1")
    assert path.stat().st_ino == inode


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    write_atomically(path, b"old")

    def full_disk(_descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out"]
