"""A JSON file that is passed to a command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.errors import InvalidInput


def read_json(path: Path, remedy: str) -> Any:
    """The contents of a file.

    Args:
        path: of the file, which error messages include.
        remedy: for error messages, e.g. ``pass the config.json of a model``.

    Raises:
        InvalidInput: it cannot be read, or is not JSON, with the position; or a key occurs twice in an object,
            which readers interpret differently.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_each_once)
    except _Twice as error:
        raise InvalidInput(str(path), f"has {error.args[0]!r} twice in one object", remedy) from error
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}", remedy) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(str(path), "is not UTF-8 text", remedy) from error
    except json.JSONDecodeError as error:
        place = f"from line {error.lineno}, column {error.colno}" if error.doc.strip() else "but empty"
        raise InvalidInput(str(path), f"is not valid JSON {place}", remedy) from error
    except RecursionError as error:
        raise InvalidInput(str(path), "is nested too deeply", remedy) from error


class _Twice(Exception):
    """A key that occurs twice."""


def _each_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found
