"""Artifacts: files named by the sha256 of their content."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tuner.errors import InvalidInput, NotFound, StoreUnavailable
from tuner.private import make_private_folder
from tuner.store.tables.batch_models import BatchKernelRow
from tuner.store.tables.models import ArtifactRow, BestRow, PackRow


class ArtifactFolder:
    """The files; each is either complete or missing."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """The path of the artifact with this digest.

        Raises:
            InvalidInput: `digest` is not 64 lower-case hex digits.
        """
        if not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise InvalidInput("digest", f"{digest[:80]!r} is not an artifact digest", "use 64 lower-case hex digits")
        return self.root / digest[:2] / digest

    def put(self, content: bytes) -> str:
        """Stores `content`; returns its digest.

        Raises:
            StoreUnavailable: the disk is full or cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        path = self.path(digest)
        try:
            make_private_folder(path.parent)
            _write_whole(path, content)
        except OSError as error:
            raise StoreUnavailable(
                f"{path} cannot be written: {error.strerror}; free some space, or fix its permissions"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The content of an artifact.

        Raises:
            InvalidInput: `digest` is not a digest.
            NotFound: no such artifact.
        """
        try:
            return self.path(digest).read_bytes()
        except FileNotFoundError:
            raise NotFound(
                f"there is no artifact {digest}; tuner gc removed it, or a restore left out the folder `artifacts`"
            ) from None


def _write_whole(path: Path, content: bytes) -> None:
    """Writes a file atomically, or leaves nothing behind."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def register(session: Session, digest: str, size_bytes: int, now: float) -> None:
    """Registers that the file exists, so that a result can refer to it."""
    session.merge(ArtifactRow(digest=digest, size_bytes=size_bytes, created_at=now))
    session.flush()


def is_named(session: Session, digest: str) -> bool:
    """Whether a result, a ladder or a pack refers to an artifact."""
    names = (
        select(func.count()).select_from(BestRow).where(BestRow.artifact_digest == digest),
        select(func.count()).select_from(PackRow).where(PackRow.digest == digest),
        select(func.count()).select_from(BatchKernelRow).where(BatchKernelRow.digest == digest),
    )
    return any(session.scalar(name) for name in names)
