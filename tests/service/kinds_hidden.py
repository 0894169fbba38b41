"""A service in a process of its own, from which some kinds of ops are hidden.

python -m tests.service.kinds_hidden FOLDER KIND...    answers each line of its input, `METHOD PATH [BODY]`, by a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

OWN = "tuner.ops"


class Hidden:
    """Finds nothing of these kinds: as if their folders were not there."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._names = tuple(f"{OWN}.{kind}" for kind in kinds)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing, or a refusal."""
        if name in self._names or name.startswith(tuple(f"{hidden}." for hidden in self._names)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def main(folder: str, *kinds: str) -> None:
    """Serves until its input ends."""
    sys.meta_path.insert(0, Hidden(kinds))
    import httpx

    from tests.support.serving import listening, running_service

    with running_service(Path(folder)) as service, listening(service) as url, httpx.Client(base_url=url) as client:
        print("ready", flush=True)
        for line in sys.stdin:
            method, path, *body = line.rstrip("\n").split(" ", 2)
            wants = {"accept": "text/html"} if path == "/" or path.startswith("/ui") else {}
            content = body[0].encode() if body else None
            headers = {"content-type": "application/json", **wants}
            answer = client.request(method, path, content=content, headers=headers)
            print(json.dumps([answer.status_code, answer.text]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
