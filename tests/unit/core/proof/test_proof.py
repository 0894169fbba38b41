"""`verify` is exact: it accepts small plans that no interleaving breaks, and refuses the others for a true reason.

`python -m tests.soak.interleavings` does the same for 100,000 plans; its counts are in benchmarks/results/soak.
"""

from __future__ import annotations

import pytest

from tests.support.proof import REASONS, counts, judged_plans


@pytest.mark.slow
@pytest.mark.parametrize("num_plans", [300, pytest.param(2000, marks=pytest.mark.soak)])
def test_verify_agrees_with_the_oracle_on_random_plans_and_their_mutants(num_plans: int) -> None:
    *_, total = sorted(
        counts(judged for judged, *_ in judged_plans(seed=7, count=num_plans)), key=lambda row: int(row["plans"])
    )
    assert total["mutation"] == "all"
    assert (total["false_accept"], total["false_reject"], total["wrong_reason"]) == (0, 0, 0)
    assert min(int(total[reason]) for reason in ("accepted", *REASONS.values())) > num_plans // 40
    assert int(total["harmless"]) > num_plans // 20
    assert int(total["chains"]) > 0.3 * num_plans
