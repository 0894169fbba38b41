"""What is known about the machine that will run the kernel, and how it differs from the measuring machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

_PROC = Path("/proc/driver/nvidia")


@dataclass(frozen=True, kw_only=True)
class Asker:
    """The caller's environment; unknown facts are None, and are not compared."""

    #: e.g. ``NVIDIA H200``.
    gpu_name: str | None = None
    driver: str | None = None
    cuda: str | None = None
    kernel_version: str | None = None


def detect(proc: Path = _PROC) -> dict[str, str]:
    """GPU name and driver version of this machine, if its kernel driver reports them."""
    found = {}
    cards = [_read(path) for path in sorted(proc.glob("gpus/*/information"))]
    if cards and (model := re.search(r"^Model:\s*(.+?)\s*$", cards[0], re.MULTILINE)):
        found["gpu_name"] = model[1]
    if version := re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", _read(proc / "version")):
        found["driver"] = version[1]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def differences(asker: Asker, environment: Mapping[str, Any]) -> list[str]:
    """The known facts of `asker` that differ from a result's `environment`, as text.

    A simulated result has no GPU, driver or CUDA to compare.
    """
    names = [field.name for field in fields(asker)]
    if environment["simulated"]:
        names = ["kernel_version"]
    return [
        f"measured with {name.replace('_', ' ')} {environment[name]!r}, but the request has {getattr(asker, name)!r}"
        for name in names
        if getattr(asker, name) is not None and getattr(asker, name) != environment[name]
    ]
