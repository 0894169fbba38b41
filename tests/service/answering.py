"""A service in a separate process, with the op kinds that this process finds.

python -m tests.service.answering FOLDER    answers each line of its input, `METHOD PATH [BODY]`, with one line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx

from tests.support.serving import listening, running_service
from tests.support.waiting import LIMIT_S


def main(folder: str) -> None:
    """Serves until its input ends."""
    with (
        running_service(Path(folder)) as service,
        listening(service) as url,
        httpx.Client(base_url=url, timeout=LIMIT_S) as client,
    ):
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
