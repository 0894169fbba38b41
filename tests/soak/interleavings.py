"""How often `verify` errs: random small plans and their mutants, compared with a walk over every interleaving.

python -m tests.soak.interleavings [--size 100000] [--seed 1]
"""

from __future__ import annotations

from tests.soak.program import Program, Row, Step, main, total
from tests.support.proof import counts, judged_plans

DISAGREEMENTS = ("false_accept", "false_reject", "wrong_reason")


def work(step: Step) -> list[Row]:
    """The verdicts on the step's plans, by mutation."""
    return list(counts(judged for judged, *_ in judged_plans(step.seed, step.count)))


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that `verify` and the walk agree on every plan."""
    by_mutation = total(rows, "mutation")
    wrong = [
        f"{row[name]} times a {name.replace('_', ' ')} of a plan with the mutation {row['mutation']}"
        for row in by_mutation
        for name in DISAGREEMENTS
        if row[name] and row["mutation"] != "all"
    ]
    return by_mutation, wrong


PROGRAM = Program(name="interleavings", unit="plans", size=100_000, step=1000, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
