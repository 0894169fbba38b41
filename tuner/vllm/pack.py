"""The pack in TUNER_PACK, for all models of a process."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path

import tuner.runtime
from tuner.errors import InvalidInput

from .log import log

#: Raised where a pack is damaged, or does not fit the GPU or the weights. vLLM then serves as usual.
UNFIT = (InvalidInput, tuner.runtime.RuntimeFailure)
#: The environment variable that names it; without it, nothing is replaced.
VARIABLE = "TUNER_PACK"


def pack_path() -> Path | None:
    """The path of the pack; None if the variable is not set.

    Raises:
        InvalidInput: there is no such file.
    """
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    if not (path := Path(given)).is_file():
        raise InvalidInput(
            VARIABLE, f"{given!r} is not a file", "use a pack, as written by `tuner-client tune-model -o`"
        )
    return path


@cache
def opened(path: Path) -> tuner.runtime.Pack:
    """The pack, loaded into the current context; each is opened once.

    Raises:
        RuntimeFailure: it is damaged, or for another architecture.
    """
    pack = tuner.runtime.load(path)
    if note := pack.check():
        log.warning("tuner: %s", note)
    return pack


def digest(path: Path) -> str:
    """Digest of its bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sentence(error: Exception) -> str:
    """A message that names the pack's variable."""
    return str(error) if isinstance(error, InvalidInput) else f"{VARIABLE}: {error}"
