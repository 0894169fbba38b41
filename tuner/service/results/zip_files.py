"""Makes zips for downloads: the same files give the same bytes, and so the same digest."""

from __future__ import annotations

import io
import zipfile


def pack_zip(files: dict[str, bytes]) -> bytes:
    """A zip of `files`, sorted by name, without dates and owners."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name)  # dated 1980-01-01
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, files[name])
    return buffer.getvalue()
