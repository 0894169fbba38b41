"""Parses server-sent events from the lines of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def parse_events(lines: Iterator[str]) -> Iterator[Json]:
    """Server-sent events from their lines: the `data` of each, plus its `kind`."""
    kind, data = "message", ""
    for line in lines:
        name, _, value = line.partition(":")
        if name == "event":
            kind = value.strip()
        elif name == "data":
            data += value.removeprefix(" ")
        elif not line and data:
            yield {**json.loads(data), "kind": kind}
            kind, data = "message", ""
