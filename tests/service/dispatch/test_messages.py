"""Messages between server and workers arrive unchanged, for every op kind."""

from __future__ import annotations

import pytest

from tests.support.conformance.case import Case
from tests.support.conformance.table import CASES
from tuner.core.problem.gpu import parse_target
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.job import Objective
from tuner.dispatch.cluster import messages

SOME = [*CASES[::40], *[case for case in CASES if case.workload.launch_ops][::10]]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.id)
def test_a_candidate_of_any_kind_comes_as_it_was_sent(case: Case) -> None:
    problem = Problem(workload=case.workload, objective=Objective(), seed=3)
    call = messages.PrepareCall(target=parse_target("simulated:h200"), problem=problem, candidate=case.candidate)
    assert messages.decode_call(messages.encode(call)) == call


@pytest.mark.parametrize("broken", ['{"kind": "chain"}', '{"kind": "chain", "ops": 3, "dtype": "fp16"}', "7"])
def test_what_is_no_workload_is_told(broken: str) -> None:
    case = CASES[0]
    problem = Problem(workload=case.workload, objective=Objective())
    call = messages.PrepareCall(target=parse_target("simulated:h200"), problem=problem, candidate=case.candidate)
    text = messages.encode(call).decode()
    begin = text.index('"workload":') + len('"workload":')
    end = text.index(',"objective"')
    with pytest.raises(messages.NotUnderstood, match="this is not a call"):
        messages.decode_call(text[:begin] + broken + text[end:])
