"""Of a library's device code, only what the card can run is carried to it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks.runtime.vllm_kits import MACHINE_CODE, MAGIC, PTX, prune


def entry(kind: int, sm: int, body: bytes) -> bytes:
    """Device code for one architecture."""
    return struct.pack("<HHIQIIII", kind, 0, 32, len(body), 0, 0, 0, sm)[:32] + body


def container(*entries: bytes) -> bytes:
    """A container, as in a shared library."""
    body = b"".join(entries)
    return MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body


CODE = {
    (kind, sm): entry(kind, sm, bytes([sm]) * (sm + kind)) for kind in (PTX, MACHINE_CODE) for sm in (75, 80, 90, 100)
}


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        ([(MACHINE_CODE, 80), (MACHINE_CODE, 90), (PTX, 90)], (MACHINE_CODE, 90)),
        ([(PTX, 75), (PTX, 80), (PTX, 100), (MACHINE_CODE, 80)], (PTX, 80)),
        ([(MACHINE_CODE, 100), (PTX, 100)], (PTX, 100)),
    ],
    ids=["machine code", "the newest PTX that compiles", "nothing that runs"],
)
def test_of_a_container_the_part_for_the_card_is_kept(
    tmp_path: Path, there: list[tuple[int, int]], kept: tuple[int, int]
) -> None:
    library, other = tmp_path / "_C.so", container(CODE[MACHINE_CODE, 90])
    whole = container(*(CODE[one] for one in there))
    library.write_bytes(b"code" + MAGIC + b"no container" + whole + b"more" + other)
    prune(library)
    left = container(CODE[kept]).ljust(len(whole), b"\0")
    assert library.read_bytes() == b"code" + MAGIC + b"no container" + left + b"more" + other
