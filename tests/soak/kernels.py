"""Every kernel of the tests on a card compiles without one, with nothing spilled and nothing warned about.

python -m tests.soak.kernels [--seed 1]
"""

from __future__ import annotations

import random
from functools import cache

from tests.soak.program import Program, Row, Step, main
from tests.support.conformance.sources import Kernel, kernels
from tests.support.conformance.table import CASES
from tuner.errors import BuildError
from tuner.workers.builder.nvrtc import compile_source, parse_log

#: As many as the table has, or more: a run takes each once.
NUM_KERNELS = 1104
STEP = 12


@cache
def shuffled(seed: int) -> list[Kernel]:
    """All, in an order that a part of a run draws well from."""
    found = kernels(CASES)
    random.Random(seed).shuffle(found)
    return found


def work(step: Step) -> list[Row]:
    """A row for each that is not as it should be, and one for how many are."""
    rows: list[Row] = []
    some = shuffled(0)[step.first : step.first + step.count]
    for kernel in some:
        try:
            resources = parse_log(compile_source(kernel.source, "sm_90a")[1])
        except BuildError as error:
            rows.append({"kernel": kernel.id, "why": str(error).splitlines()[0]})
            continue
        if resources.spill_bytes or resources.warnings:
            rows.append({"kernel": kernel.id, "why": f"spills {resources.spill_bytes} bytes {resources.warnings}"})
    return [*rows, {"kernel": "all", "compiled": len(some)}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """None is as it should not be."""
    bad = [row for row in rows if row["kernel"] != "all"]
    compiled = sum(row["compiled"] for row in rows if row["kernel"] == "all")
    return [{"kernel": "all", "compiled": compiled, "bad": len(bad)}, *bad], [
        f"{row['kernel']}: {row['why']}" for row in bad
    ]


PROGRAM = Program(name="kernels", unit="kernels", size=NUM_KERNELS, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
