"""Files are written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tuner.client.delivery.files import write_atomically


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


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    target, link, dangling = tmp_path / "there" / "file", tmp_path / "link", tmp_path / "dangling"
    target.parent.mkdir()
    target.write_bytes(b"old")
    link.symlink_to(target)
    dangling.symlink_to(Path("there") / "new")
    assert write_atomically(link, b"1")
    assert write_atomically(dangling, b"2")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert (target.read_bytes(), (target.parent / "new").read_bytes()) == (b"1", b"2")
    assert not write_atomically(link, b"1")


def test_a_pipe_takes_the_content_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert write_atomically(pipe, b"kernel")
        assert os.read(reader, 100) == b"kernel"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_device_takes_the_content_and_stays(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        device = Path(os.ttyname(slave))
        assert write_atomically(device, b"kernel")
        assert os.read(master, 100) == b"kernel"
        assert device.is_char_device()
    finally:
        os.close(master)
        os.close(slave)


def test_a_folder_is_no_place_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path, b"kernel")
