"""Broken packs are refused by the C reader, or harmless: no byte outside of a pack is read, under AddressSanitizer.

python -m tests.soak.packs [--seed 1]
"""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from tests.soak.program import Program, Row, Step, main
from tests.support.native.fuzzing import Fuzzer

STEP = 10_000
SIZE = 1_000_000


@cache
def fuzzer() -> Fuzzer:
    """The program, compiled once for each process."""
    return Fuzzer(Path(tempfile.mkdtemp(prefix="tuner-packs-")))


def work(step: Step) -> list[Row]:
    """One row: how many inputs, how many were opened, and the first fault."""
    found = fuzzer().run(step.seed, step.count)
    return [{"inputs": found.inputs, "opened": found.opened, "fault": found.fault}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that there was no fault, and that some packs were opened, so that code after the reader ran."""
    faults = [row["fault"] for row in rows if row["fault"]]
    inputs, opened = (sum(row[name] for row in rows) for name in ("inputs", "opened"))
    wrong = faults if opened > inputs / 10 else [*faults, f"only {opened} of {inputs} broken packs were opened"]
    return [{"inputs": inputs, "opened": opened, "faults": len(faults)}], wrong


PROGRAM = Program(name="packs", unit="broken packs", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
