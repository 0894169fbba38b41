"""Tilings of every architecture compile without spills or warnings.

python -m tests.soak.tilings [--size 2016] [--seed 1]

Half of them are samples with every pair of values of any two axes; the others are drawn at random.
"""

from __future__ import annotations

import random
from functools import lru_cache

from tests.soak.program import Program, Row, Step, main, total
from tests.support.spaces import space_of
from tests.support.tiling_builds import FEW_ROWS, compile_one, full_pair, pair
from tests.support.tiling_samples import GATED, GPU_OF_ARCH, pairs_of_values
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling

#: The pairs that steps take in turn: one with many rows, and the same one with few rows, for which different tilings
#: are offered.
SPACES = [(arch, *rows) for rows in ((pair(), pair(FEW_ROWS)), (GATED, full_pair(FEW_ROWS))) for arch in GPU_OF_ARCH]
STEP = 12
#: The size of the largest sample.
MOST_OF_A_SAMPLE = 84


@lru_cache(maxsize=len(SPACES))
def sample(arch: str, workload: Workload) -> list[Tiling]:
    """A sample with every pair of values."""
    return pairs_of_values(arch, workload)


def work(step: Step) -> list[Row]:
    """A row for each faulty build, and one with the number of builds."""
    number, half = step.first // STEP, STEP // 2
    arch, workload, few_rows = SPACES[number % len(SPACES)]
    begin = number // len(SPACES) * half
    offered = space_of(few_rows, CATALOGUE[GPU_OF_ARCH[arch]]).tilings
    drawn = random.Random(step.seed).sample(offered, half)
    chosen = [
        *((workload, one) for one in sample(arch, workload)[begin : begin + half]),
        *((few_rows, one) for one in drawn),
    ]
    rows: list[Row] = []
    for asked, tiling in chosen:
        built = compile_one(asked, tiling, arch)
        if why := built.get("error") or built["spill_bytes"] or built["warnings"]:
            where = {"pair": asked.describe(), "arch": arch, "tiling": str(tiling)}
            rows.append({"space": "bad", **where, "why": why})
    return [*rows, {"space": f"{arch}, {workload.describe()}", "compiled": len(chosen)}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no build is faulty."""
    bad = [row for row in rows if row["space"] == "bad"]
    spaces = total((row for row in rows if row["space"] != "bad"), "space")
    return [*spaces, *bad], [f"{row['arch']}, {row['pair']}: {row['tiling']}: {row['why']}" for row in bad]


SIZE = len(SPACES) * MOST_OF_A_SAMPLE * 2
PROGRAM = Program(name="tilings", unit="tilings", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
