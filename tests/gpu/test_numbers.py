"""Results of every engine, tile shape, edge, option, ordering and launch mode on a GPU against float64."""

from __future__ import annotations

import pytest

from tests.support.conformance.case import Case, Claim, of_claim
from tests.support.conformance.launching import OnCard
from tests.support.conformance.table import CASES

pytest.importorskip("cupy")


@pytest.mark.parametrize("case", of_claim(CASES, Claim.NUMBERS), ids=lambda case: case.id)
def test_every_number_is_right_and_nothing_else_is_written(on_card: OnCard, case: Case) -> None:
    measured = on_card.measured(case.workload, on_card.candidate(case))
    assert measured.time_us > 0
    if case.error_below:
        assert 0 < measured.rel_error < case.error_below
