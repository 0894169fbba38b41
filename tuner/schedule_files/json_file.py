"""A JSON file that is passed to a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tuner.core.json_names import Twice, each_once
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
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=each_once)
    except Twice as error:
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
