"""Writes a pack: the same entries give the same bytes.

A pack is a zip without compression. `pack.bin` is its first file, and every file begins at a multiple of 64 bytes, by
padding in the zip's extra fields. So the C runtime finds the index at a fixed place, and hands a cubin to the driver as
it lies there; `unzip` reads all of it.
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

from .attention import AttentionEntry, AttentionRung, Table, check_attentions
from .contents import Answer, Entry, Kernel, Rung, check
from .index import Place, blob_path, first_tasks_name, index_bytes, version_of
from .layer import LayerEntry, check_layers
from .programs import parameter_name, program_of

INDEX, FOR_PEOPLE, SUMS, SIGNATURE = "pack.bin", "pack.json", "SHA256SUMS", "SHA256SUMS.sig"
ALIGNMENT = 64
#: An extra field of padding, as Android's zipalign writes it: its id, and the bytes of its head.
_PADDING_ID, _PADDING_HEAD = 0xD935, 4
_LOCAL_HEADER_BYTES = 30

#: Signs the bytes of `SHA256SUMS`.
Sign = Callable[[bytes], bytes]


def write_pack(
    entries: Sequence[Entry],
    path: Path,
    *,
    attentions: Sequence[AttentionEntry] = (),
    layers: Sequence[LayerEntry] = (),
    provenance: Mapping[str, Any] | None = None,
    sign: Sign | None = None,
) -> str:
    """Writes the pack of `entries`, `attentions` and `layers` to `path`, whole or not at all; its sha256, hexadecimal.

    `provenance` is for people: environment, jobs, versions. `sign` makes the signature of `SHA256SUMS`, which names
    every other file.

    Raises:
        InvalidInput: a ladder or a kernel is not what a pack holds; it says which.
    """
    data = pack_bytes(entries, attentions=attentions, layers=layers, provenance=provenance, sign=sign)
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
    attentions: Sequence[AttentionEntry] = (),
    layers: Sequence[LayerEntry] = (),
    provenance: Mapping[str, Any] | None = None,
    sign: Sign | None = None,
) -> bytes:
    """The pack of `entries`, `attentions` and `layers`, byte for byte; as `write_pack`."""
    ladders = tuple(sorted(entries, key=lambda entry: str(entry.shape)))
    tables = tuple(sorted(attentions, key=lambda entry: str(entry.shape)))
    of_layers = tuple(sorted(layers, key=lambda entry: (str(entry.shape), entry.shape.ops_json)))
    check(ladders)
    check_attentions(tables)
    check_layers(of_layers)
    given = [rung.kernel for entry in ladders for rung in entry.rungs]
    by_contexts: tuple[Table, ...] = (*tables, *of_layers)
    given += [rung.kernel for table in by_contexts for rung in table.rungs]
    found = {kernel.digest: kernel for kernel in given if kernel is not None}
    kernels = tuple(found[digest] for digest in sorted(found))
    files = {FOR_PEOPLE: _for_people(ladders, tables, of_layers, kernels, provenance or {})}
    for kernel in kernels:
        files |= {blob_path(kernel, name): data for name, data in sorted(files_in_pack(kernel).items())}
    index, offsets = indexed(ladders, tables, of_layers, kernels, files)
    files = {INDEX: index} | files
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {path}\n" for path, data in files.items()).encode()
    signature = {SIGNATURE: sign(sums)} if sign else {}
    return zipped({**files, SUMS: sums, **signature}, offsets)


def indexed(
    ladders: tuple[Entry, ...],
    tables: tuple[AttentionEntry, ...],
    of_layers: tuple[LayerEntry, ...],
    kernels: tuple[Kernel, ...],
    files: Mapping[str, bytes],
) -> tuple[bytes, dict[str, int]]:
    """The index of a pack of these entries, whose other files are `files` in their order; and where each lies."""
    nowhere = {path: Place(offset=0, num_bytes=len(data), digest=bytes(32)) for path, data in files.items()}
    size = len(index_bytes(ladders, kernels, nowhere, 0, tables, of_layers))
    offsets = _offsets([(INDEX, size), *((path, len(data)) for path, data in files.items())])
    places = {
        path: Place(offset=offsets[path], num_bytes=len(data), digest=hashlib.sha256(data).digest())
        for path, data in files.items()
    }
    return index_bytes(ladders, kernels, places, offsets[INDEX], tables, of_layers), offsets


def files_in_pack(kernel: Kernel) -> dict[str, bytes]:
    """The artifact's, and its launches' first tasks as bytes; of an attention's, its launches' parameters."""
    if kernel.has_attention:
        parts = program_of(kernel).parts
        return {**kernel.files, **{parameter_name(i): part.parameter for i, part in enumerate(parts)}}
    launches = kernel.manifest["launches"]
    first = {first_tasks_name(i): bytes.fromhex(launch["first_tasks"]) for i, launch in enumerate(launches)}
    return {**kernel.files, **{name: data for name, data in first.items() if data}}


def _for_people(
    entries: tuple[Entry, ...],
    attentions: tuple[AttentionEntry, ...],
    layers: tuple[LayerEntry, ...],
    kernels: tuple[Kernel, ...],
    provenance: Mapping[str, Any],
) -> bytes:
    document = {
        "format": version_of(attentions, layers),
        "tuner_version": __version__,
        "simulated": any(kernel.simulated for kernel in kernels),
        "provenance": provenance,
        "shapes": [_ladder(entry) for entry in entries],
        **({"attentions": [_table(vars(one.shape), one.rungs) for one in attentions]} if attentions else {}),
        **({"layers": [_table(one.shape.to_json(), one.rungs) for one in layers]} if layers else {}),
        "kernels": {kernel.digest: _about(kernel) for kernel in kernels},
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _ladder(entry: Entry) -> dict[str, Any]:
    ladder = {"shape": vars(entry.shape), "rungs": [_rung(rung) for rung in entry.rungs]}
    first = entry.rungs[0].kernel
    if entry.invariant_rows and first is not None:
        ladder["batch_invariant"] = {"rows": [1, entry.invariant_rows], "order_of_sums": first.order_of_sums}
    return ladder


def _table(shape: Mapping[str, Any], rungs: Sequence[AttentionRung]) -> dict[str, Any]:
    lines = [{"sequences": rung.sequences, "max_length": rung.max_length, **_answer(rung)} for rung in rungs]
    return {"shape": shape, "rungs": lines}


def _rung(rung: Rung) -> dict[str, Any]:
    return {"m": [rung.m_lo, rung.m_hi], **_answer(rung)}


def _answer(rung: Answer) -> dict[str, Any]:
    return {
        "kernel": rung.kernel.digest if rung.kernel else None,
        "library": dict(rung.library) if rung.kernel is None or rung.library else None,
        "speedup": rung.speedup,
        "interval": rung.interval,
        "provenance": dict(rung.provenance),
    }


def _about(kernel: Kernel) -> dict[str, Any]:
    manifest = kernel.manifest
    facts = manifest["kernel"] or manifest["attentions"][0]["kernel"]
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
    """The one zip of these files, in their order; `offsets` says where some of them must lie."""
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
            assert offsets.get(name, buffer.tell() - len(data)) == buffer.tell() - len(data), "a file lies elsewhere"
    return buffer.getvalue()
