from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import spec
from tuner.core.problem.workload import Dtype, Workload, ffn_pair
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import JobState
from tuner.core.trial.records import Best, JobRecord, MatchKind, Verdict
from tuner.errors import NotFound
from tuner.service.matching import choose_match

HERE = Environment(gpu_name="NVIDIA H200", simulated=False, driver="580.1", cuda="13.0")


def result(job_id: str, m: int, target_id: str = "h200", here: Environment = HERE) -> tuple[JobRecord, Best]:
    job = JobRecord(
        id=job_id,
        spec=spec(m, target_id=target_id),
        state=JobState.SUCCEEDED,
        reason="",
        created_at=0,
        started_at=0,
        finished_at=0,
        num_measured=1,
        num_rejected=0,
        num_failed=0,
        best_us=1,
        library_us=1,
        search_s=1,
    )
    best = Best(
        job_id=job_id,
        verdict=Verdict.TIE,
        winner=PlanKind.LIBRARY,
        tie_band=0.01,
        procedure=None,
        finals=(),
        reference_us=1,
        artifact_digest=None,
        environment=here,
    )
    return job, best


def workload(m: int) -> Workload:
    return spec(m).workload


def find(
    results: list[tuple[JobRecord, Best]], m: int, least: MatchKind, target_id: str = "h200"
) -> tuple[str, MatchKind, str]:
    found = choose_match(results, workload(m), target_id, HERE, least)
    return found.job.id, found.match, "; ".join(found.differences)


def test_the_same_workload_target_and_environment_are_an_exact_match_and_the_newest_wins() -> None:
    assert find([result("new", 16), result("old", 16)], 16, MatchKind.EXACT) == ("new", MatchKind.EXACT, "")


def test_another_driver_is_a_weaker_match_and_says_so() -> None:
    other = [result("job", 16, here=replace(HERE, driver="570.9"))]
    job, match, difference = find(other, 16, MatchKind.NEAREST)
    assert (job, match, difference) == ("job", MatchKind.NEAREST, "measured with driver '570.9', here it is '580.1'")
    with pytest.raises(NotFound, match="ask with match=nearest"):
        find(other, 16, MatchKind.EXACT)


def test_the_nearest_shape_is_found_and_named() -> None:
    job, match, difference = find([result("far", 4096), result("near", 64), result("tiny", 1)], 32, MatchKind.NEAREST)
    assert (job, match) == ("near", MatchKind.NEAREST)
    assert difference == "for ffn fp16 M=64 256 -> 512 -> 256, not ffn fp16 M=32 256 -> 512 -> 256"


def test_another_target_is_found_with_any_alone() -> None:
    others = [result("job", 16, "h100")]
    job, match, difference = find(others, 16, MatchKind.ANY)
    assert (job, match, difference) == ("job", MatchKind.ANY, "measured on h100, not h200")
    with pytest.raises(NotFound):
        find(others, 16, MatchKind.NEAREST)


def test_the_own_target_comes_before_a_nearer_shape_on_another() -> None:
    assert find([result("theirs", 16, "h100"), result("ours", 64)], 16, MatchKind.ANY)[0] == "ours"


@pytest.mark.parametrize(("stored", "asked"), [("simulated:h200", "h200"), ("h200", "simulated:h200")])
def test_simulated_never_answers_for_real_nor_the_reverse(stored: str, asked: str) -> None:
    with pytest.raises(NotFound, match="submit a job"):
        find([result("job", 16, stored)], 16, MatchKind.ANY, asked)


def test_another_dtype_is_no_match_at_all() -> None:
    other = ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256, dtype=Dtype.BF16)
    with pytest.raises(NotFound):
        choose_match([result("job", 16)], other, "h200", HERE, MatchKind.ANY)


@pytest.mark.parametrize("option", ["gated", "residual", "row_scale"])
def test_another_epilogue_is_no_match_at_all(option: str) -> None:
    other = ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256, **{option: True})
    with pytest.raises(NotFound):
        choose_match([result("job", 16)], other, "h200", HERE, MatchKind.ANY)
