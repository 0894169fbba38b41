"""A lock file means the same to every client, and any changed byte of it or of a cached pack is detected."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tuner.client.delivery.lock import Cache, Lock, LockedPack, _sum, read_lock, write_lock
from tuner.client.errors import Incompatible, NoResult, Refused

PACK = LockedPack(path="model.tunerpack", sha256="0" * 64, size_bytes=3, order={"shapes": [{"rows": [1]}]})
LOCK = Lock(key="a" * 64).with_pack(PACK)


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert write_lock(tmp_path / "tuner.lock", LOCK)
    assert read_lock(tmp_path / "tuner.lock") == LOCK
    assert not write_lock(tmp_path / "tuner.lock", read_lock(tmp_path / "tuner.lock"))


def test_a_pack_takes_the_place_of_the_one_at_its_path_and_the_order_is_that_of_paths() -> None:
    other = LockedPack(path="a.tunerpack", sha256="1" * 64, size_bytes=4, order={})
    assert LOCK.with_pack(other).with_pack(other).packs == (other, PACK)


def test_every_byte_of_a_lock_that_is_flipped_is_refused() -> None:
    content = LOCK.to_bytes()
    for place in range(len(content)):
        for bit in range(8):
            broken = bytearray(content)
            broken[place] ^= 1 << bit
            with pytest.raises(Refused):
                Lock.from_bytes(bytes(broken))


TWICE = LOCK.to_bytes().replace(b'"format"', b'"format": 0, "format"')


@pytest.mark.parametrize("content", [b"{}", b"[]", b"no JSON", b"5", b"null", b"[" * 10**5, TWICE])
def test_another_file_is_called_no_lock_file(content: bytes) -> None:
    with pytest.raises(Refused, match=r"^the file is not a lock file.*; restore it"):
        Lock.from_bytes(content)


def as_a_file(body: dict[str, Any]) -> bytes:
    """A lock with any content and a correct checksum."""
    return (json.dumps({**body, "sum": _sum(body)}, indent=2) + "\n").encode()


@pytest.mark.parametrize("value", [0.5, [], None, {}, "\ud800", [5], True, -1, 1e999])
@pytest.mark.parametrize("key", ["format", "key", "packs", "path", "sha256", "size_bytes", "order"])
def test_a_value_of_the_wrong_type_is_refused_by_file_and_key(tmp_path: Path, key: str, value: object) -> None:
    if (key, value) in [("key", None), ("packs", []), ("order", {})]:
        return
    body = json.loads(LOCK.to_bytes())
    del body["sum"]
    (body if key in body else body["packs"][0])[key] = value
    (tmp_path / "tuner.lock").write_bytes(as_a_file(body))
    where = key if key in body else f"packs.0.{key}"
    with pytest.raises(Refused, match=rf"tuner\.lock is not a lock file: {where} must be .+; restore it"):
        read_lock(tmp_path / "tuner.lock")


def test_a_key_that_is_missing_or_unknown_is_named() -> None:
    body = json.loads(LOCK.to_bytes())
    del body["packs"][0]["order"]
    with pytest.raises(Refused, match=r"packs\.0\.order is missing, which must be an object"):
        Lock.from_bytes(json.dumps(body).encode())
    with pytest.raises(Refused, match=r"'more' is not a known"):
        Lock.from_bytes(LOCK.to_bytes().replace(b"{", b'{"more": 1,', 1))


def test_a_lock_of_a_newer_client_says_so() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.client.delivery.lock.LOCK_FORMAT", 2)
        newer = LOCK.to_bytes()
    with pytest.raises(Incompatible, match="format 2"):
        Lock.from_bytes(newer)


def test_a_lock_that_is_not_there_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(NoResult, match="`pack --lock` creates one"):
        read_lock(tmp_path / "tuner.lock")


def test_a_cache_gives_what_its_name_says_or_refuses(tmp_path: Path) -> None:
    cache, content = Cache(tmp_path), bytes(range(64))
    sha256 = hashlib.sha256(content).hexdigest()
    assert cache.get(sha256) is None
    cache.put(sha256, content)
    assert cache.get(sha256) == content
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 1
        cache.path(sha256).write_bytes(broken)
        with pytest.raises(Refused, match="remove it and fetch again"):
            cache.get(sha256)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoResult, match=r"file/.* cannot be written: .*; choose another folder with --cache"):
        Cache(tmp_path / "file").put("0" * 64, b"")
