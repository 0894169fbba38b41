"""A server that is killed at random moments of a search loses no trial, counts none twice, and ends what it began.

python -m tests.soak.kills [--size 600] [--seed 1]
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.service.service.killing import check_kills_at_random_moments
from tests.soak.program import Program, Row, Step, main

#: Kills of one job.
STEP = 6


def work(step: Step) -> list[Row]:
    """Runs one job."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_kills_at_random_moments(Path(folder) / "data", step.seed, step.count)
        except AssertionError as error:
            return [{"seed": step.seed, "kills": step.count, "wrong": str(error) or "a check failed"}]
    return [{"seed": step.seed, "kills": step.count, "wrong": ""}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no job lost anything."""
    bad = [row for row in rows if row["wrong"]]
    whole = {"jobs": len(rows), "kills": sum(row["kills"] for row in rows), "jobs_that_lost": len(bad)}
    return [whole, *bad], [f"seed {row['seed']}: {row['wrong']}" for row in bad]


PROGRAM = Program(name="kills", unit="kills", size=100 * STEP, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
