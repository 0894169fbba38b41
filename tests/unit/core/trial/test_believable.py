"""Validation of workers' answers: each kind of answer, honest and with one value changed."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from tests.support.builders import measured, rejected, schedule, workload
from tuner.core.problem.gpu import CATALOGUE, parse_target
from tuner.core.schedule.candidate import fused
from tuner.core.trial.believable import believe
from tuner.core.trial.evaluator import ArtifactFiles, Environment, FinalsTimes, Prepared, Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Measured, Metric
from tuner.core.trial.reports.inspection import Counter, CounterReport, EnergyReport, Trace
from tuner.core.trial.samples import Round
from tuner.errors import Unbelievable
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

TARGET = parse_target("simulated:h200")
PROBLEM = Problem(workload=workload(), objective=Objective())
OURS = fused(schedule(3))
EVALUATOR = SimulatedEvaluator(TARGET, faults=Faults(hang=0, crash=0, wrong_numbers=0))

NONSENSE = (math.nan, math.inf, -math.inf, -5, 1e308, 10**400)


def a_trial() -> Measured:
    prepared = EVALUATOR.prepare(PROBLEM, OURS)
    assert isinstance(prepared, Prepared)
    outcome = EVALUATOR.measure(PROBLEM, prepared)
    assert isinstance(outcome, Measured)
    return outcome


def test_honest_answers_of_each_kind_are_believed() -> None:
    for gpu in CATALOGUE.values():
        believe(gpu)
    for answer in (
        rejected(),
        a_trial(),
        EVALUATOR.prepare(PROBLEM, OURS),
        EVALUATOR.environment(),
        EVALUATOR.finals(PROBLEM, (fused(schedule()), OURS), num_rounds=3),
        EVALUATOR.count(PROBLEM, OURS, None),
        EVALUATOR.energy(PROBLEM, OURS),
        EVALUATOR.trace(PROBLEM, OURS),
        EVALUATOR.artifact(PROBLEM, OURS, {}),
    ):
        believe(answer)


@pytest.mark.parametrize("number", [*NONSENSE, 0, 1e-300])
@pytest.mark.parametrize("field", ["time_us", "library_us", "speedup"])
def test_a_time_is_a_time(field: str, number: float) -> None:
    with pytest.raises(Unbelievable, match=f"{field} is .*it must be between"):
        believe(replace(measured(10.0), **{field: number}))  # type: ignore[arg-type]


def with_number(answer: Any, number: float) -> list[Any]:
    """The result with each of its own numbers changed in turn."""
    return [
        replace(answer, **{field.name: number})
        for field in fields(answer)
        if isinstance(value := getattr(answer, field.name), int | float) and not isinstance(value, bool)
    ]


@pytest.mark.parametrize("number", NONSENSE)
def test_no_number_of_any_answer_is_nonsense(number: float) -> None:
    trial, trace = a_trial(), EVALUATOR.trace(PROBLEM, OURS)
    lies = [
        *with_number(trial, number),
        *(replace(trial, rounds=(one,)) for one in with_number(trial.rounds[0], number)),
        *(replace(trial, metrics=(one,)) for one in with_number(trial.metrics[0], number) if number != -5),
        replace(trial, stage_s={"time": number}),
        *with_number(trace, number),
        *(replace(trace, spans=(one,)) for one in with_number(trace.spans[0], number)),
        *(replace(trace, shares=(one,)) for one in with_number(trace.shares[0], number)),
        *with_number(EVALUATOR.energy(PROBLEM, OURS), number),
        *with_number(EVALUATOR.prepare(PROBLEM, OURS), number),
        *with_number(CATALOGUE["h200"], number),
        replace(EVALUATOR.environment(), clocks_mhz={"sm": number}),
        FinalsTimes(times_us=((1.0,), (number,)), reasons=("", ""), process_of_round=(0,)),
    ]
    if number != -5:  # a counter may be negative
        counter = Counter(name="a", unit="", description="", value=number)
        lies.append(CounterReport(counters=(counter,), num_passes=1))
    for lie in lies:
        with pytest.raises(Unbelievable, match="it must be between"):
            believe(lie)


@pytest.mark.parametrize(
    "lie",
    [
        replace(measured(10.0), remark="a\x00b"),
        replace(measured(10.0), remark="half \ud800"),
        replace(measured(10.0), stage_s={"../x": 1.0}),
        replace(measured(10.0), metrics=(Metric(tag="a\nb", unit="", value=1.0),)),
        FinalsTimes(times_us=((1.0,),), reasons=(), process_of_round=(0,)),
        FinalsTimes(times_us=((),), reasons=("",), process_of_round=()),
        FinalsTimes(times_us=((1.0, 2.0),), reasons=("",), process_of_round=(0,)),
        replace(CATALOGUE["h200"], id="../../x"),
        replace(CATALOGUE["h200"], num_sms=0),
        Environment(gpu_name="x" * 1000, simulated=True),
        EnergyReport(run_mj=0.0),
        replace(measured(10.0), rounds=(Round(time_us=10.0),) * (2**20 + 1)),
    ],
    ids=lambda lie: type(lie).__name__,
)
def test_what_cannot_be_is_refused(lie: Any) -> None:
    with pytest.raises(Unbelievable):
        believe(lie)


def test_a_span_names_an_op_that_there_is() -> None:
    trace = EVALUATOR.trace(PROBLEM, OURS)
    assert isinstance(trace, Trace)
    with pytest.raises(Unbelievable, match="beyond the 2 that"):
        believe(replace(trace, spans=(replace(trace.spans[0], op=2),)))


@pytest.mark.parametrize("name", ["../../x", "/abs", "a/../b", "", "plan0.bin\n", "kernel.so", ".manifest.json"])
def test_the_files_of_an_artifact_have_their_own_names(name: str) -> None:
    made = EVALUATOR.artifact(PROBLEM, OURS, {})
    with pytest.raises(Unbelievable, match=r"not a file of an artifact|not the name of one"):
        believe(ArtifactFiles(files={**made.files, name: b"x"}, manifest=made.manifest))


@pytest.mark.parametrize("lie", ["missing", "more", "other bytes", "no manifest", "no JSON", "NaN"])
def test_the_files_of_an_artifact_are_those_that_its_manifest_lists(lie: str) -> None:
    made = EVALUATOR.artifact(PROBLEM, OURS, {})
    files = dict(made.files)
    match lie:
        case "missing":
            del files["kernel.cu"]
        case "more":
            files["guarded.cubin"] = b"x"
        case "other bytes":
            files["kernel.cu"] += b" "
        case "no manifest":
            del files["manifest.json"]
        case "no JSON":
            files["manifest.json"] = b"{"
        case "NaN":
            files["manifest.json"] = files["manifest.json"].replace(b"{", b'{"x": NaN,', 1)
    with pytest.raises(Unbelievable, match="manifest"):
        believe(ArtifactFiles(files=files, manifest=made.manifest))
