"""How often `verify` errs on plans of convolutions: small plans and their mutants, compared with both oracles.

python -m tests.soak.convs [--size 30000] [--seed 1]
"""

from __future__ import annotations

from tests.soak import interleavings, proof
from tests.soak.program import Program, Row, Step, main
from tests.support.convs import SMALL
from tests.support.proof import counts as counts_of_first
from tests.support.proof import judged_plans
from tests.support.second_oracle.agreement import counts, judged_cases
from tuner.core.plan.graph.tile_graph import TileGraph, tile_graph

PAIRED = tuple(case for case in SMALL if len(case[0].tile_ops) == 2)


def small_graphs() -> tuple[TileGraph, ...]:
    """Tile graphs of every small plan. Built when asked for, so that importing this needs no folder of convolutions."""
    return tuple(tile_graph(*case) for case in SMALL)


def work(step: Step) -> list[Row]:
    """The verdicts on the step's plans, by mutation: each oracle judges half of them."""
    half = step.count // 2
    first = counts_of_first(judged for judged, *_ in judged_plans(step.seed, half, (small_graphs(),)))
    second = counts(judged_cases(step.seed, step.count - half, (SMALL,), PAIRED))
    return [{"oracle": oracle, **row} for oracle, rows in (("first", first), ("second", second)) for row in rows]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that `verify` and the oracles agree on every plan."""
    found, wrong = list[Row](), list[str]()
    for oracle, program in (("first", interleavings), ("second", proof)):
        judged, problems = program.judge([_without(row) for row in rows if row["oracle"] == oracle])
        found += [{"oracle": oracle, **row} for row in judged]
        wrong += problems
    return found, wrong


def _without(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "oracle"}


PROGRAM = Program(name="convs", unit="plans", size=30_000, step=100, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
