"""How often `verify` errs on plans of which any word was changed, against an oracle made from the documents alone.

python -m tests.soak.proof [--size 100000] [--seed 1]

The oracle walks every interleaving of the CTAs, of clusters too, in launches whose counters are about to reach 2^31 and
2^32. It has nothing in common with the one of `tests.soak.interleavings`.
"""

from __future__ import annotations

from tests.soak.program import Program, Row, Step, main, total
from tests.support.second_oracle.agreement import COLUMNS, DISAGREEMENTS, counts, judged_cases


def work(step: Step) -> list[Row]:
    """How the step's plans were judged, by mutation."""
    return list(counts(judged_cases(step.seed, step.count)))


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """The prover accepts nothing that breaks, and refuses nothing but what breaks, or what docs/proof.md names."""
    by_mutation = total(rows, "mutation")
    wrong = [
        f"{row[name]} times a {name.replace('_', ' ')} of a plan with the mutation {row['mutation']!r}"
        for row in by_mutation
        for name in DISAGREEMENTS
        if row[name]
    ]
    sums = {name: sum(row[name] for row in by_mutation) for name in COLUMNS}
    return [{"mutation": "all", **sums}, *by_mutation], wrong


PROGRAM = Program(name="proof", unit="plans", size=100_000, step=1000, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
