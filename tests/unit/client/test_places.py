"""The client's files: no change by another process is lost, and nothing is written to files that were not named."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tuner.client.connection.credentials import keep_token
from tuner.client.delivery.files import check_places, place_below
from tuner.client.delivery.lock import Cache, Lock, LockedPack, change_lock, read_lock, write_lock
from tuner.client.errors import NoResult, Refused

KEY = 64 * "a"


def note(path: Path, number: int) -> None:
    """Records a pack, as `pack --lock` does."""
    pack = LockedPack(path=f"{number:03}.tunerpack", sha256=64 * "b", size_bytes=number, order={})
    change_lock(path, lambda found: (found or Lock(key=KEY)).with_pack(pack))


def log_in(folder: Path, number: int) -> None:
    """Stores a token, as `login` does."""
    os.environ["XDG_CONFIG_HOME"] = str(folder)
    keep_token(f"http://host{number}", "token")


def at_once(work: object, where: Path, count: int) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(work, where, number) for number in range(count)]:  # type: ignore[arg-type]
            done.result(timeout=60)


def note_and_log_in(folder: Path, number: int) -> None:
    note(folder / "tuner.lock", number)
    log_in(folder / "config", number)


@pytest.mark.slow
def test_packs_that_are_locked_at_once_are_all_in_the_lock_and_tokens_of_logins_are_all_kept(tmp_path: Path) -> None:
    at_once(note_and_log_in, tmp_path, 24)
    assert [pack.size_bytes for pack in read_lock(tmp_path / "tuner.lock").packs] == list(range(24))
    assert sorted(os.listdir(tmp_path)) == ["config", "tuner.lock"], "nothing else is left in its folder"
    kept = json.loads((tmp_path / "config" / "tuner" / "credentials.json").read_text())
    assert kept == {f"http://host{number}": "token" for number in range(24)}


@pytest.mark.parametrize("name", ["../a", "/a", "a/../../b", "..", ".", "", "a\0b", "out/a", "loop/a", "file_out"])
def test_a_name_from_outside_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "into", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "out").symlink_to(outside)
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "file_out").symlink_to(outside / "file")
    with pytest.raises(Refused, match="lies outside of"):
        place_below(folder, name)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert place_below(tmp_path, "link/a").resolve() == tmp_path / "real" / "a"
    (tmp_path.parent / "to").symlink_to(tmp_path)
    assert place_below(tmp_path.parent / "to", "a").resolve() == tmp_path / "a", "the folder itself may be a link"


def test_places_that_cannot_all_be_written_are_refused_together(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "same").symlink_to(tmp_path / "new")
    for names, words in (
        (("a", "a/b"), "is also one of the files"),
        (("a/b", "a"), "is also one of the files"),
        (("file/a",), "Not a directory"),
        (("folder",), "Is a directory"),
        (("new", "same"), "two files would be written"),
    ):
        with pytest.raises((Refused, OSError), match=words):
            check_places([tmp_path / name for name in names])
    check_places([tmp_path / name for name in ("a/b", "a/c", "file", "folder/a")])


def test_a_lock_is_read_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "tuner.lock"
    lock = Lock(key=KEY, packs=(LockedPack(path="a", sha256=64 * "b", size_bytes=1, order={"l2": "cold"}),))
    write_lock(path, lock)
    content = path.read_bytes()
    for same in (
        content.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + content,
        content.rstrip(),
        json.dumps(json.loads(content)).encode(),
    ):
        path.write_bytes(same)
        assert read_lock(path) == lock
    path.write_bytes(content.replace(b'"cold"', b'"warm"'))
    with pytest.raises(Refused, match="has been modified since it was written"):
        read_lock(path)


def test_a_cache_that_nobody_named_and_nothing_can_use_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache = Cache()
    assert cache.get(64 * "a") is None
    cache.put(64 * "a", b"")
    assert "cannot be written" in capsys.readouterr().err
    with pytest.raises(NoResult, match="choose another folder with --cache"):
        Cache(tmp_path / "file").put(64 * "a", b"")
