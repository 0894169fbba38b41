"""Packs whose index contradicts their plans although every digest is right, as an attacker or a faulty writer could
produce."""

from __future__ import annotations

import ctypes
import hashlib
import io
import struct
import zipfile
from pathlib import Path

from tests.support.native.recorder import Recorder
from tuner.packs.records import DIGEST_OFFSET, HEADER
from tuner.packs.write import ALIGNMENT, INDEX, SUMS, zipped

#: Tables of the index in order: the position of their count in the header, and the size of a record.
_TABLES = {
    "shapes": (36, 40),
    "rungs": (40, 40),
    "kernels": (44, 280),
    "launches": (48, 128),
    "ops": (52, 32),
    "maps": (56, 120),
    "attentions": (96, 56),
    "lines": (100, 32),
    "programs": (104, 96),
    "fills": (108, 64),
    "parts": (112, 152),
    "patches": (116, 16),
    "layers": (120, 72),
    "operands": (124, 40),
    "weights": (HEADER.size, 32),
}
#: A blob in a record: offset, bytes, sha256.
_BLOB = struct.Struct("<QQ32s")


class Broken:
    """A pack's bytes, for tests to change."""

    def __init__(self, data: bytes) -> None:
        self._data = bytearray(data)

    def _at(self, table: str, index: int, offset: int) -> int:
        at = ALIGNMENT + int(struct.unpack_from("<I", self._data, ALIGNMENT + 12)[0])
        for name, (_, size) in _TABLES.items():
            if name == table:
                return at + size * index + offset
            at += size * self.count(name)
        raise KeyError(table)

    def count(self, table: str) -> int:
        """The number of its records."""
        return int(struct.unpack_from("<I", self._data, ALIGNMENT + _TABLES[table][0])[0])

    def get(self, table: str, index: int, offset: int, kind: str = "I") -> int:
        """A number of a record."""
        return int(struct.unpack_from(f"<{kind}", self._data, self._at(table, index, offset))[0])

    def put(self, table: str, index: int, offset: int, value: int, kind: str = "I") -> None:
        """Replaces a number of a record."""
        struct.pack_into(f"<{kind}", self._data, self._at(table, index, offset), value)

    def put_in_blob(self, table: str, index: int, offset: int, place: int, value: int) -> None:
        """Replaces a word of a blob that a record names, and updates its sha256."""
        at = self._at(table, index, offset)
        begin, size, _ = _BLOB.unpack_from(self._data, at)
        struct.pack_into("<I", self._data, begin + place, value)
        _BLOB.pack_into(self._data, at, begin, size, hashlib.sha256(self._data[begin : begin + size]).digest())

    def copy_blob(self, table: str, index: int, offset: int, source: int) -> None:
        """Copies the blob of another record."""
        found = _BLOB.unpack_from(self._data, self._at(table, source, offset))
        _BLOB.pack_into(self._data, self._at(table, index, offset), *found)

    def shorten_blob(self, table: str, index: int, offset: int, num_bytes: int) -> None:
        """Shortens a blob."""
        at = self._at(table, index, offset)
        begin, size, _ = _BLOB.unpack_from(self._data, at)
        digest = hashlib.sha256(self._data[begin : begin + size - num_bytes]).digest()
        _BLOB.pack_into(self._data, at, begin, size - num_bytes, digest)

    def bytes(self) -> bytes:
        """The bytes, with the index's digest and the files' checksums updated."""
        begin, size = ALIGNMENT, struct.unpack_from("<Q", self._data, ALIGNMENT + 16)[0]
        index = self._data[begin : begin + size]
        index[DIGEST_OFFSET : DIGEST_OFFSET + 32] = bytes(32)
        digest = hashlib.sha256(index).digest()
        self._data[begin + DIGEST_OFFSET : begin + DIGEST_OFFSET + 32] = digest
        return bytes(self._data)

    def summed(self) -> bytes:
        """The bytes with updated checksums, which Python's reader verifies."""
        files = {}
        with zipfile.ZipFile(io.BytesIO(self.bytes())) as archive:
            for info in archive.infolist():
                begin = info.header_offset + 26
                name, extra = struct.unpack_from("<2H", self._data, begin)
                data = begin + 4 + name + extra
                files[info.filename] = bytes(self._data[data : data + info.file_size])
        files.pop(SUMS)
        sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items())
        assert next(iter(files)) == INDEX
        return zipped({**files, SUMS: sums.encode()}, {})


def refusal_by_c(recorder: Recorder, data: bytes, path: Path) -> str:
    """The C reader's error message; empty if it opens the pack."""
    path.write_bytes(data)
    pack = ctypes.c_void_p()
    if recorder.runtime.tuner_pack_open(str(path).encode(), ctypes.byref(pack)) == 0:
        recorder.runtime.tuner_pack_close(pack)
        return ""
    return str(recorder.runtime.tuner_error().decode())
