from __future__ import annotations

import io
import time
import zipfile

import pytest

from tuner.service.results.zip_files import pack_zip


def test_the_same_files_give_the_same_bytes_whenever_and_in_whatever_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack_zip({"b": b"2", "a": b"1"})
    monkeypatch.setattr(time, "time", lambda: 2e9)
    assert pack_zip({"a": b"1", "b": b"2"}) == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a": b"1", "b": b"2"}
        assert archive.namelist() == ["a", "b"]
