"""Every case of chains that run on the CPU: the device code of every engine, against float64.

python -m tests.soak.emulated [--seed 1]
"""

from __future__ import annotations

from itertools import islice, product
from typing import Any

from tests.compile.test_emulated import MOST, worst_row
from tests.soak.program import Program, Row, Step, main
from tests.support.between import between
from tests.support.cases import H200
from tests.support.emulated.between import EmulatedBetween
from tests.support.emulated.cases import CASES
from tests.support.spaces import any_space_of
from tuner.core.problem.workload import Dtype
from tuner.core.schedule.candidate import Candidate, apart_kind
from tuner.search.guesses.seeds import first_guesses

#: Guesses for each workload, and consecutive runs of each.
NUM_GUESSES, NUM_RUNS = 3, 2
#: Products around an attention by name, all in fp16: their rotation, pages and sizes. They have the error bound of
#: emulated launches.
AROUND: dict[str, dict[str, Any]] = {
    f"around an attention, {'turned' if turned else 'queries alone'}, {behind} behind, {new} new, heads of {head}": {
        "rotary": turned,
        "num_behind": behind,
        "sizes": {"new_tokens": new, "head_dim": head, "max_length": 200},
    }
    for turned, behind, new, head in product((True, False), (0, 1), (1, 3), (64, 128))
} | {
    f"around an attention, pages of {tokens}{'' if heads_first else ', tokens first'}, {new} new": {
        "pages": {"page_tokens": tokens, "heads_first": heads_first},
        "sizes": {"new_tokens": new, "head_dim": 128, "max_length": 200},
    }
    for tokens, heads_first, new in product((16, 32, 64), (True, False), (1, 3))
}
NAMES = (*CASES, *AROUND)


def work(step: Step) -> list[Row]:
    """The worst row of each case, or the ops that are wrong."""
    return [judged(name) for name in NAMES[step.first : step.first + step.count]]


def judged(name: str) -> Row:
    """The result of one case."""
    if name in CASES:
        return {"case": name, "worst_row": worst_row(CASES[name])}
    workload = between(**AROUND[name], norm=False, dtype=Dtype.FP16)
    kind, wrong = apart_kind(len(workload.ops)), set[str]()
    for schedule in islice(first_guesses(any_space_of(workload, H200), 0), NUM_GUESSES):
        made = EmulatedBetween(workload, Candidate(plan_kind=kind, schedule=schedule), (200, 3, 0, 131))
        for seed in range(NUM_RUNS):
            made.draw(seed)
            made.poison()
            made.launch(made.order)
            wrong |= set(made.wrong())
    return {"case": name, "wrong": sorted(wrong)}


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no error is larger than a few roundings, or NaN."""
    wrong = [
        f"{row['case']}: a row is off by {row['worst_row']:.1e}"
        for row in rows
        if row["case"] in CASES and not row["worst_row"] < MOST[CASES[row["case"]].workload.dtype]
    ]
    wrong += [f"{row['case']}: {', '.join(row['wrong'])}" for row in rows if row.get("wrong")]
    return rows, wrong


PROGRAM = Program(name="emulated", unit="chains", size=len(NAMES), step=1, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
