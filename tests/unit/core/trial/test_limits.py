from __future__ import annotations

import math
import re
from dataclasses import fields

import pytest

from tests.support.repository import ROOT
from tuner.core.problem.objective import FinalsProcedure
from tuner.core.trial.limits import Limits
from tuner.errors import InvalidInput


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_a_limit_is_a_number_above_0(name: str, value: float) -> None:
    with pytest.raises(InvalidInput, match=f"{name}: must be a number above 0, got .*; the default is"):
        Limits(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"num_rounds": 0}, {"min_tie_band": -0.01}, {"min_tie_band": 1.0}])
def test_finals_without_rounds_or_with_an_impossible_tie_band_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"reasonable value|one percent"):
        FinalsProcedure(**given)  # type: ignore[arg-type]


#: A number that bounds a wait, a process or the finals, as a default or as a constant. Time limits of requests and
#: responses belong to HTTP.
STATED = re.compile(
    r"\b(?!default_request|_answer)\w*(deadline|spin_limit|tie_band|final_rounds|finals_rounds)\w*\b"
    r"(: [^=\n]+)? = [\d.]",
    re.I,
)


def test_no_other_module_states_a_limit_or_how_finals_are_held() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("tuner", "workers")
        for path in (ROOT / folder).rglob("*.py")
        if STATED.search(path.read_text())
    }
    assert found == {"tuner/core/trial/limits.py", "tuner/core/problem/objective.py"}


def test_finals_of_a_study_have_time_for_each_of_its_schedules() -> None:
    limits = Limits(finals_deadline_s=30)
    assert [limits.finals_s(count) for count in (1, 16, 32, 64)] == [30, 30, 60, 120]
