"""A service in a process of its own, from which some kinds of ops are hidden.

python -m tests.service.kinds_hidden FOLDER KIND...    answers each line of its input, `METHOD PATH [BODY]`, by a line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tuner.core.problem import op_kinds


def hide(kinds: Sequence[str]) -> None:
    """The registry finds nothing of these kinds, as if their folders were broken."""
    declared = op_kinds._declared

    def without() -> Iterator[tuple[str, str, str]]:
        for name, module, attribute in declared():
            yield name, module.replace(name, f"{name}_hidden") if name in kinds else module, attribute

    op_kinds._declared = without


def main(folder: str, *kinds: str) -> None:
    """Serves until its input ends."""
    hide(kinds)
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
