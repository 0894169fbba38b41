"""Writes a pack; equal entries give equal bytes.

A pack is a zip without compression. `pack.bin` is its first file, and every file begins at a multiple of 64 bytes, by
padding in the zip's extra fields. So the C runtime finds the index at a fixed position, and passes a cubin to the
driver without copying; `unzip` can read the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner import __version__
from tuner.packs.contents import Entry, Kernel, Rung, check
from tuner.packs.index import Place, blob_path, first_tasks_name, index_bytes, version_of
from tuner.packs.programs import parameter_name, program_of, programs_of
from tuner.packs.shapes import Shape, shape_kinds

INDEX, FOR_PEOPLE, SUMS, SIGNATURE = "pack.bin", "pack.json", "SHA256SUMS", "SHA256SUMS.sig"
ALIGNMENT = 64
#: A padding extra field, as written by Android's zipalign: its id and the size of its header.
_PADDING_ID, _PADDING_HEAD = 0xD935, 4
_LOCAL_HEADER_BYTES = 30

#: Signs the bytes of `SHA256SUMS`.
Sign = Callable[[bytes], bytes]


def write_pack(
    entries: Sequence[Entry],
    path: Path,
    *,
    provenance: Mapping[str, Any] | None = None,
    sign: Sign | None = None,
) -> str:
    """Writes the pack of `entries` to `path` atomically; returns its sha256, hexadecimal.

    `provenance` is information for people: environment, jobs, versions. `sign` makes the signature of `SHA256SUMS`,
    which lists all other files.

    Raises:
        InvalidInput: a ladder or a kernel cannot be put into a pack; with the reason.
    """
    data = pack_bytes(entries, provenance=provenance, sign=sign)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return hashlib.sha256(data).hexdigest()


def pack_bytes(
    entries: Sequence[Entry],
    *,
    provenance: Mapping[str, Any] | None = None,
    sign: Sign | None = None,
) -> bytes:
    """The pack of `entries`, byte for byte; same as for `write_pack`."""
    sections = list(shape_kinds())
    table = tuple(sorted(entries, key=lambda one: (sections.index(one.shape.section), str(one.shape), one.shape.name)))
    check(table)
    found = {rung.kernel.digest: rung.kernel for entry in table for rung in entry.rungs if rung.kernel is not None}
    kernels = tuple(found[digest] for digest in sorted(found))
    files = {FOR_PEOPLE: _for_people(table, kernels, provenance or {})}
    for kernel in kernels:
        files |= {blob_path(kernel, name): data for name, data in sorted(files_in_pack(kernel).items())}
    index, offsets = indexed(table, kernels, files)
    files = {INDEX: index} | files
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in files.items()).encode()
    signature = {SIGNATURE: sign(sums)} if sign else {}
    return zipped({**files, SUMS: sums, **signature}, offsets)


def indexed(
    entries: Sequence[Entry], kernels: Sequence[Kernel], files: Mapping[str, bytes]
) -> tuple[bytes, dict[str, int]]:
    """The index of a pack with these entries, whose other files are `files` in order, and the position of each file."""
    nowhere = {path: Place(offset=0, num_bytes=len(data), digest=bytes(32)) for path, data in files.items()}
    size = len(index_bytes(entries, kernels, nowhere, 0))
    offsets = _offsets([(INDEX, size), *((path, len(data)) for path, data in files.items())])
    places = {
        path: Place(offset=offsets[path], num_bytes=len(data), digest=hashlib.sha256(data).digest())
        for path, data in files.items()
    }
    return index_bytes(entries, kernels, places, offsets[INDEX]), offsets


def files_in_pack(kernel: Kernel) -> dict[str, bytes]:
    """The artifact's files, and as bytes the first tasks of an FFN's launches, or the parameters of others."""
    if not isinstance(kernel.shape, Shape):
        parts = [part for program in programs_of(kernel) for part in program.parts]
        return {**kernel.files, **{parameter_name(i): part.parameter for i, part in enumerate(parts)}}
    launches = [launch for of in kernel.launch_lists for launch in of]
    first = {first_tasks_name(i): bytes.fromhex(launch["first_tasks"]) for i, launch in enumerate(launches)}
    return {**kernel.files, **{name: data for name, data in first.items() if data}}


def _for_people(entries: Sequence[Entry], kernels: Sequence[Kernel], provenance: Mapping[str, Any]) -> bytes:
    sections: dict[str, list[Any]] = {Shape.section: []}
    for entry in entries:
        sections.setdefault(entry.shape.section, []).append(_ladder(entry))
    document = {
        "format": version_of(entries, kernels),
        "tuner_version": __version__,
        "simulated": any(kernel.simulated for kernel in kernels),
        "provenance": provenance,
        **sections,
        "kernels": {kernel.digest: _about(kernel) for kernel in kernels},
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _ladder(entry: Entry) -> dict[str, Any]:
    ladder = {"shape": entry.shape.to_json(), "rungs": [_rung(rung) for rung in entry.rungs]}
    first = entry.rungs[0].kernel if entry.rungs else None
    if entry.invariant_rows and first is not None:
        ladder["batch_invariant"] = {"rows": [1, entry.invariant_rows], "order_of_sums": first.order_of_sums}
    return ladder


def _rung(rung: Rung) -> dict[str, Any]:
    by_contexts = {"sequences": rung.m_hi, "max_length": rung.max_length}
    return {
        **(by_contexts if rung.max_length else {"m": [rung.m_lo, rung.m_hi]}),
        "kernel": rung.kernel.digest if rung.kernel else None,
        "library": dict(rung.library) if rung.kernel is None or rung.library else None,
        "speedup": rung.speedup,
        "interval": rung.interval,
        "provenance": dict(rung.provenance),
    }


def _about(kernel: Kernel) -> dict[str, Any]:
    manifest = kernel.manifest
    facts = manifest["kernel"] or program_of(kernel).parts[0].kernel
    return {
        "plan_kind": manifest["plan_kind"],
        "schedule": manifest["schedule_in_words"],
        "rows": manifest["rows"],
        "environment": manifest["environment"],
        "compiler": facts["compiler"],
        "variants": {one["name"]: one["reason"] or one["cubin"] for one in facts.get("variants", ())},
    }


def _padding(name: str, offset: int) -> int:
    """Bytes of the extra field of a file whose header begins at `offset`, so that its data is aligned."""
    missing = -(offset + _LOCAL_HEADER_BYTES + len(name)) % ALIGNMENT
    return missing if missing == 0 or missing >= _PADDING_HEAD else missing + ALIGNMENT


def _offsets(sizes: list[tuple[str, int]]) -> dict[str, int]:
    """Where the data of each file begins."""
    offsets, end = {}, 0
    for name, size in sizes:
        begin = end + _LOCAL_HEADER_BYTES + len(name) + _padding(name, end)
        offsets[name], end = begin, begin + size
    return offsets


def zipped(files: Mapping[str, bytes], offsets: Mapping[str, int]) -> bytes:
    """A zip of these files, in order; `offsets` has the required positions of some of them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name)  # dated 1980-01-01
            member.external_attr = 0o644 << 16
            padding = _padding(name, buffer.tell())
            if padding:
                head = _PADDING_ID.to_bytes(2, "little") + (padding - _PADDING_HEAD).to_bytes(2, "little")
                member.extra = head + bytes(padding - _PADDING_HEAD)
            archive.writestr(member, data)
            assert offsets.get(name, buffer.tell() - len(data)) == buffer.tell() - len(data), (
                "a file is in the wrong place"
            )
    return buffer.getvalue()
