"""Reads a pack in Python. All digests are checked before any of it is used."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

from tuner.core.json_names import each_once
from tuner.errors import InvalidInput
from tuner.packs.contents import Entry, Kernel, Rung, check
from tuner.packs.index import blob_path, split_index
from tuner.packs.recipes.own_launches import own_checks
from tuner.packs.records import FIRST_VERSION, VERSION
from tuner.packs.shapes import shape_kinds
from tuner.packs.write import FOR_PEOPLE, INDEX, SIGNATURE, SUMS, files_in_pack, indexed, zipped

#: A file that every artifact has at this place, and no pack.
MANIFEST = "manifest.json"
#: Maximum total size of a pack's files.
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A pack, checked."""

    #: sha256 of the whole file, hexadecimal.
    digest: str
    #: Document of `pack.json`.
    document: dict[str, Any]
    #: The entries of its table, section by section.
    entries: tuple[Entry, ...]
    #: The signed bytes, and their signature, which is empty if there is none.
    sums: bytes
    signature: bytes

    def section(self, name: str) -> tuple[Entry, ...]:
        """The entries whose shapes belong to that section."""
        return tuple(entry for entry in self.entries if entry.shape.section == name)


def read_pack(data: bytes) -> Pack:
    """Parses a pack from its bytes.

    Raises:
        InvalidInput: it is not a pack, a digest differs, or a newer version wrote it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if MANIFEST in archive.namelist():
                problem = "is an artifact, as `tuner-client fetch best` writes, not a pack"
                raise InvalidInput("pack", problem, "make a pack of its job with `tuner-client pack`")
            if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
                raise _refused(f"unpacks to more than {MAX_BYTES} bytes")
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise _refused("contains a compressed file, but the files of a pack are not compressed")
            files = {info.filename: archive.read(info) for info in archive.infolist()}
        if zipped(files, {}) != data:
            raise _refused("has bytes between its files, unlike any pack")
        sums = files.pop(SUMS)
        lines = (line.partition("  ") for line in sums.decode().splitlines())
        listed = {name: digest for digest, _, name in lines}
        document = json.loads(files[FOR_PEOPLE], object_pairs_hook=each_once)
    except (zipfile.BadZipFile, EOFError, RuntimeError, KeyError, ValueError, NotImplementedError) as error:
        raise _refused("is not an intact pack") from error
    signature = files.pop(SIGNATURE, b"")
    if files.keys() != listed.keys():
        raise _refused(f"lists different files than it contains: {', '.join(sorted(files.keys() ^ listed.keys()))}")
    for name, content in files.items():
        if hashlib.sha256(content).hexdigest() != listed[name]:
            raise _refused(f"contains a {name} whose sha256 is not the one in {SUMS}")
    if not isinstance(document, dict):
        raise _refused(f"has no object in {FOR_PEOPLE}")
    if document.get("format") not in range(FIRST_VERSION, VERSION + 1):
        problem = f"is of format {document.get('format')}, not {FIRST_VERSION} to {VERSION}"
        raise InvalidInput("pack", problem, "install a version that reads it")
    try:
        kernels = _kernels(document, files)
        for kernel in kernels.values():
            own_checks(kernel.manifest)  # before parsing its shape, which belongs to another kind
        entries = _entries(document, kernels)
        check(entries)
        _check_index(entries, kernels, files)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _refused(f"has a {FOR_PEOPLE} without a pack's structure") from error
    return Pack(
        digest=hashlib.sha256(data).hexdigest(),
        document=document,
        entries=entries,
        sums=sums,
        signature=signature,
    )


def _check_index(entries: tuple[Entry, ...], kernels: dict[str, Kernel], files: dict[str, bytes]) -> None:
    """Checks that the index, which C reads, agrees with the manifests of the kernels."""
    of_index = {path: data for path, data in files.items() if path != INDEX}
    for kernel in kernels.values():
        for name, content in files_in_pack(kernel).items():
            if of_index[blob_path(kernel, name)] != content:
                raise _refused(f"has a {name} of {kernel.digest[:12]} that does not match its manifest")
    in_order = tuple(kernels[digest] for digest in sorted(kernels))
    records, texts = split_index(indexed(entries, in_order, of_index)[0])
    found, words = split_index(files[INDEX])
    if found != records or len(texts) != len(words) or not all(map(_is_same_text, words, texts)):
        raise _refused(f"has a {INDEX} that contradicts {FOR_PEOPLE} and the manifests")


def _is_same_text(one: bytes, other: bytes) -> bool:
    """The order of a dict inside a library's recipe may differ, since documents do not preserve it."""
    return one == other or (b"{" in one and sorted(one) == sorted(other))


def _kernels(document: dict[str, Any], files: dict[str, bytes]) -> dict[str, Kernel]:
    kernels = {}
    for digest in document["kernels"]:
        folder = f"kernels/{digest}/"
        of_it = {name.removeprefix(folder): data for name, data in files.items() if name.startswith(folder)}
        named = json.loads(of_it["manifest.json"], object_pairs_hook=each_once)["files"].keys() | {"manifest.json"}
        kernels[digest] = Kernel(files={name: data for name, data in of_it.items() if name in named})
    return kernels


def _entries(document: dict[str, Any], kernels: dict[str, Kernel]) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            shape=kind.from_json(one["shape"]),
            rungs=tuple(_rung(rung, kernels) for rung in one["rungs"]),
            invariant_rows=one["batch_invariant"]["rows"][1] if "batch_invariant" in one else 0,
        )
        for section, kind in shape_kinds().items()
        for one in document.get(section, ())
    )


def _rung(rung: dict[str, Any], kernels: dict[str, Kernel]) -> Rung:
    first, last = rung["m"] if "m" in rung else (rung["sequences"], rung["sequences"])
    return Rung(
        m_lo=first,
        m_hi=last,
        max_length=rung.get("max_length", 0),
        kernel=kernels[rung["kernel"]] if rung["kernel"] else None,
        library=rung["library"] or {},
        speedup=rung["speedup"],
        interval=tuple(rung["interval"]) if rung["interval"] else None,
        provenance=rung["provenance"],
    )


def _refused(problem: str) -> InvalidInput:
    return InvalidInput("pack", problem, "fetch or build the pack again")
