"""Launches that cannot proceed on a GPU: each aborts with a report, its results are NaN or correct, and the next
launch is correct."""

from __future__ import annotations

import pytest

from tests.support.conformance.case import Case, Claim, of_claim
from tests.support.conformance.launching import OnCard
from tests.support.conformance.table import CASES
from tests.support.forged import forged, passed_off, with_others
from tuner.core.trial.outcome import Failed, FailureKind, Measured

pytest.importorskip("cupy")

#: A twentieth of a second.
SPIN_LIMIT_CYCLES = 10**8


@pytest.mark.parametrize("case", of_claim(CASES, Claim.ABORT), ids=lambda case: case.id)
def test_a_wait_for_a_post_too_many_is_aborted_and_told_and_the_next_launch_is_right(
    on_card: OnCard, case: Case
) -> None:
    good = on_card.ready(case.workload, on_card.candidate(case))
    (plan,) = good.plans
    words = plan.words.copy()
    words[int(words[8]) :].reshape(-1, 8)[case.wait, 2] += 1
    bad = with_others(good.work, plans=(forged(plan, words),), spin_limit_cycles=SPIN_LIMIT_CYCLES)
    outcome = on_card.evaluate(case.workload, bad)
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.HANG, outcome
    assert "posts seen" in outcome.reason, outcome.reason
    again = on_card.evaluate(case.workload, good.work)
    assert isinstance(again, Measured), again


@pytest.mark.parametrize("case", of_claim(CASES, Claim.FOUND_OUT), ids=lambda case: case.id)
def test_a_kernel_that_forgets_an_option_is_found_out(on_card: OnCard, case: Case) -> None:
    assert case.built_for is not None
    work = on_card.ready(case.built_for, on_card.candidate(case)).work
    outcome = on_card.evaluate(case.workload, passed_off(work, case.workload))
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.WRONG_NUMBERS
