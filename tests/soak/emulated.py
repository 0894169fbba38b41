"""Every case of chains that run on the CPU: the device code of every engine, against float64.

python -m tests.soak.emulated [--seed 1]
"""

from __future__ import annotations

from tests.compile.test_emulated import MOST, worst_row
from tests.soak.program import Program, Row, Step, main
from tests.support.emulated.cases import CASES

NAMES = tuple(CASES)


def work(step: Step) -> list[Row]:
    """The worst row of each case."""
    return [{"case": name, "worst_row": worst_row(CASES[name])} for name in NAMES[step.first : step.first + step.count]]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """None is beyond a few roundings, or NaN."""
    wrong = [
        f"{row['case']}: a row is off by {row['worst_row']:.1e}"
        for row in rows
        if not row["worst_row"] < MOST[CASES[row["case"]].workload.dtype]
    ]
    return rows, wrong


PROGRAM = Program(name="emulated", unit="chains", size=len(NAMES), step=1, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
