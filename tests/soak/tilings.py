"""Tilings drawn from the spaces of every architecture compile, with nothing spilled and nothing warned about.

python -m tests.soak.tilings [--size 2400] [--seed 1]

All tilings of one GPU, and what they take to compile, are `python -m benchmarks.cpu.compile_space`.
"""

from __future__ import annotations

import random

from benchmarks.cpu.compile_space import FEW_ROWS, NUM_ROWS, compile_one, full_pair, pair
from tests.soak.program import Program, Row, Step, main, total
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.space.space import Space

#: One GPU of the catalogue for each architecture, the newest engine's more often.
GPUS = ("h200", "a100", "h200", "rtx4090", "h200", "b200", "h200", "a40", "h200", "rtx5090")
PAIRS = (pair, full_pair)
ROWS = (FEW_ROWS, NUM_ROWS)
STEP = 24


def work(step: Step) -> list[Row]:
    """A row for each that is not as it should be, and one for the space."""
    number = step.first // STEP
    gpu = CATALOGUE[GPUS[number % len(GPUS)]]
    workload = PAIRS[number // 2 % 2](ROWS[number % 2])
    offered = Space(workload, gpu).tilings
    some = random.Random(step.seed).sample(offered, min(STEP, len(offered)))
    rows: list[Row] = []
    for tiling in some:
        built = compile_one(workload, tiling, gpu.arch)
        if why := built.get("error") or built["spill_bytes"] or built["warnings"]:
            rows.append(
                {"space": "bad", "pair": workload.describe(), "arch": gpu.arch, "tiling": str(tiling), "why": why}
            )
    return [*rows, {"space": f"{gpu.arch}, {workload.describe()}", "compiled": len(some)}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """None is as it should not be."""
    bad = [row for row in rows if row["space"] == "bad"]
    spaces = total((row for row in rows if row["space"] != "bad"), "space")
    return [*spaces, *bad], [f"{row['arch']}, {row['pair']}: {row['tiling']}: {row['why']}" for row in bad]


PROGRAM = Program(name="tilings", unit="tilings", size=100 * STEP, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
