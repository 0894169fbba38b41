"""How often `verify` errs on plans with randomly changed words, compared with an oracle written from the documents
alone.

python -m tests.soak.proof [--size 100000] [--seed 1]

The oracle walks every interleaving of the CTAs, with and without clusters, in launches whose counters are about to
reach 2^31 and 2^32. It shares nothing with the oracle of `tests.soak.interleavings`.
"""

from __future__ import annotations

from tests.soak.program import Program, Row, Step, main, total
from tests.support.second_oracle.agreement import COLUMNS, DISAGREEMENTS, counts, judged_cases


def work(step: Step) -> list[Row]:
    """The verdicts on the step's plans, by mutation."""
    return list(counts(judged_cases(step.seed, step.count)))


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that the prover accepts no plan that breaks, and refuses only plans that break or that docs/proof.md
    names."""
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
