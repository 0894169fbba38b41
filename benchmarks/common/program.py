"""What all programs share: options of the command line, and a loop over rows until the time limit."""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: Options by name; a program uses some of them, with its own defaults and help texts.
OPTIONS: dict[str, dict[str, Any]] = {
    "gpu": {"default": "auto", "help": "auto: this machine's first usable GPU; or simulated:<id>"},
    "row": {"action": "append", "default": [], "help": "a row, or a prefix of its name; repeatable; default: all"},
    "trials": {"type": int, "default": 60, "help": "per job, or per row"},
    "rounds": {"type": int, "help": "for finals, in each of the two processes"},
    "loads": {"type": int, "default": 5, "help": "of each page"},
    "asks": {"type": int, "default": 200, "help": "requests of each kind"},
    "seconds": {"type": float, "default": math.inf, "help": "time limit: after it, nothing more is begun"},
    "data": {"type": Path, "help": "keeps the jobs; default: build/bench-jobs/<gpu>/<commit>"},
    "winners": {"type": Path, "help": "folder of <gpu>.json; default: tuner/winners"},
    "results": {"type": Path, "help": "the results to show"},
    "docs": {"type": Path, "default": Path("docs"), "help": "folder of the page"},
    "out": {"type": Path, "help": "the results file; default: in benchmarks/results/<gpu>"},
}


def parser_of(description: str | None, *names: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options called `names`, and with those in `defaults`, which have other defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in OPTIONS.items():
        if name in names or name in defaults:
            own = {"default": defaults[name]} if name in defaults else {}
            parser.add_argument(f"--{name}", **option | own)
    return parser


class Watch:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far, rounded to tenths."""
        return round(time.monotonic() - self._begin_s, 1)


def in_time(rows: Iterable[T], seconds: float) -> Iterator[T]:
    """Yields rows one by one until `seconds` have passed; before each, the previous row's memory is freed."""
    watch = Watch()
    for row in rows:
        gc.collect()
        if watch.seconds > seconds:
            print(f"{watch.seconds:g} s have passed; the remaining rows are left for another run", flush=True)
            return
        yield row
        print(f"[{watch.seconds:.0f} s]", flush=True)
