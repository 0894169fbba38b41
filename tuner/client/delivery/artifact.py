"""A downloaded artifact: all digests are checked before any of it is used."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from tuner import __version__
from tuner.client.errors import Incompatible, NoResult, Refused, Simulated
from tuner.core.json_names import each_once
from tuner.versions import DISTRIBUTION, MANIFEST_FORMAT

MANIFEST = "manifest.json"
#: The file of each format that is a single file.
FILES = {"manifest": MANIFEST, "cu": "kernel.cu", "cubin": "kernel.cubin"}

#: Maximum total size of a kernel's files.
_MAX_BYTES = 256 * 2**20
#: The compression methods that the server uses. Other methods fail in different ways.
_METHODS = (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A kernel from the server, checked."""

    #: sha256 of `content`, hex.
    digest: str
    #: The zip, byte for byte.
    content: bytes
    #: The launch recipe.
    manifest: dict[str, Any]
    #: Every file of the zip, including the manifest.
    files: dict[str, bytes]

    @property
    def simulated(self) -> bool:
        """Whether it was never run on a card."""
        return bool(self.manifest.get("simulated", False))

    def in_format(self, format: str) -> bytes:
        """The bytes in a format: zip, manifest, cu or cubin.

        Raises:
            Simulated: a cubin of a simulated result.
            NoResult: the artifact has no such file.
        """
        if format == "zip":
            return self.content
        name = FILES[format]
        if name not in self.files:
            if self.simulated:
                raise Simulated(f"the result is simulated: there is no {name}; tune on a server with a GPU")
            raise NoResult(f"the artifact has no {name}; it has {', '.join(self.files)}")
        return self.files[name]


def open_artifact(content: bytes, digest: str) -> Artifact:
    """Unpacks a zip and checks it against `digest`, and each file against the manifest.

    Raises:
        Refused: a digest differs, a file is missing, or a file is not in the manifest.
        Incompatible: a newer program wrote the manifest.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise Refused(f"the artifact is not the requested one: its sha256 is {found}, expected {digest}")
    try:
        files = _unpack(content)
        manifest = json.loads(files[MANIFEST], object_pairs_hook=each_once)
        _check_format(manifest.get("format", 1))
        listed = {name: (entry["sha256"], entry["size_bytes"]) for name, entry in manifest["files"].items()}
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted, or too new
        raise Refused(f"the artifact is not an intact zip file: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Refused("the artifact has no manifest with a list of its files; fetch it again") from error
    for name, (sha256, size_bytes) in listed.items():
        if name not in files:
            raise Refused(f"the artifact lacks {name}, which its manifest names")
        if (hashlib.sha256(files[name]).hexdigest(), len(files[name])) != (sha256, size_bytes):
            raise Refused(f"{name} does not match the manifest: its size or sha256 differs")
    if unnamed := sorted(files.keys() - listed.keys() - {MANIFEST}):
        raise Refused(f"the artifact holds {', '.join(unnamed)}, which its manifest does not name")
    return Artifact(digest=digest, content=content, manifest=manifest, files=files)


def _check_format(found: object) -> None:
    if type(found) is not int or found < 1:
        raise Refused(f"the manifest's format is {found!a}, which is not a format number")
    if found > MANIFEST_FORMAT:
        raise Incompatible(
            f"the manifest is of format {found}, but this client, {DISTRIBUTION} {__version__}, reads formats up to "
            f"{MANIFEST_FORMAT}; install a newer client"
        )


def _unpack(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(info.compress_type not in _METHODS for info in archive.infolist()):
            raise Refused("the artifact is compressed by a method other than deflate, which the server never does")
        if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
            raise Refused(f"the artifact unpacks to more than {_MAX_BYTES} bytes")
        return {info.filename: archive.read(info) for info in archive.infolist()}


def check_is(what: str, name: str, found: object, asked: object) -> None:
    """Checks that a fact in the response equals the requested one.

    Args:
        what: the subject, e.g. ``the kernel``.
        name: the name of the fact, e.g. ``target``.
        found: the value in the response.
        asked: the requested value.

    Raises:
        Refused: they differ.
    """
    if found != asked:
        got, wanted = (_shown(value) for value in (found, asked))
        raise Refused(f"{what} is not the requested one: its {name} is {got}, but {wanted} was requested")


def _shown(value: object) -> str:
    """A short form: the text may come from another service."""
    text = ascii(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
