"""Where the prover and the second oracle agree, and the kinds of plans for which they may disagree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.second_oracle.cases import CHAINS, GRAPHS, PAIRED, REASONS, SCATTERED, Case, Pool, Pools, random_case
from tests.support.second_oracle.judge import Verdict

#: Disagreements that must never occur.
DISAGREEMENTS = ("false_accept", "false_refusal", "wrong_reason")
#: Refusals listed in docs/proof.md, of plans that some or all engines would run correctly.
NAMED = ("order_of_a_queue", "place_of_a_wait", "engine_in_order", "order_of_parts")
COLUMNS = ("plans", "chains", "scattered", "tails", "accepted", *REASONS.values(), *DISAGREEMENTS, *NAMED)


class Judged(NamedTuple):
    """A plan, and both verdicts on it."""

    case: Case
    verdict: Verdict
    #: The prover's verdict: one of REASONS, or None if it accepts.
    refusal: str | None

    @property
    def kinds(self) -> list[str]:
        """Disagreements, and names of refusals."""
        verdict, refusal = self.verdict, self.refusal
        if refusal is None:
            return ["false_accept"] if verdict.faults else []
        if not verdict.faults:
            return ["order_of_parts" if refusal == "liveness" and verdict.is_out_of_turn else "false_refusal"]
        if refusal in ("words", "coverage", "capacity") and not {refusal, "pair"} & verdict.rules:
            return ["wrong_reason"]
        if verdict.rules == {"steps"} and not verdict.promised | verdict.ahead | verdict.in_order:
            return ["place_of_a_wait"]
        if verdict.rules:
            return []
        if not verdict.ahead:
            return ["order_of_a_queue"]
        return [] if verdict.in_order else ["engine_in_order"]


def judged_cases(
    seed: int, count: int, pools: Pools = (GRAPHS, CHAINS, SCATTERED), paired: Pool = PAIRED
) -> Iterator[Judged]:
    """`count` plans drawn by `random_case`, with both verdicts."""
    rng = random.Random(seed)
    for _ in range(count):
        yield judged_by_both(random_case(rng, pools, paired))


def judged_by_both(case: Case) -> Judged:
    """The plan with both verdicts."""
    error = case.refusal()
    return Judged(case, case.verdict(), REASONS[type(error)] if error else None)


def counts(judged: Iterator[Judged]) -> list[dict[str, str | int]]:
    """A row per mutation: plans by the prover's verdict, disagreements, and refusals by name."""
    by_mutation: dict[str, Counter[str]] = {}
    for one in judged:
        case = one.case
        groups = {"chains": case.is_chain, "scattered": case.kernel.scatters, "tails": case.splits_tails}
        found = ["plans", one.refusal or "accepted", *one.kinds, *(name for name, is_in in groups.items() if is_in)]
        by_mutation.setdefault(case.mutation, Counter()).update(found)
    return [
        {"mutation": mutation, **{column: counter[column] for column in COLUMNS}}
        for mutation, counter in sorted(by_mutation.items())
    ]
