"""Which stored result matches a query, in a real database."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.builders import BEST, schedule, spec
from tests.support.queries import plans_of, whole_tables
from tuner.core.problem.gpu import parse_target
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import CacheState, JobState, Objective, Regime
from tuner.core.trial.questions import Machine, Question
from tuner.core.trial.records import Best, BestMatch, FinalRow, MatchKind
from tuner.dispatch import LocalDispatcher
from tuner.errors import NotFound
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.service import Service
from tuner.store import Store
from tuner.store.jobs import jobs
from tuner.store.results import bests
from tuner.store.results.result_keys import form_digest
from tuner.workers.simulated.evaluator import SimulatedEvaluator

HERE = Environment(gpu_name="NVIDIA H200", simulated=False, driver="580.1", cuda="13.0")
MACHINE = Machine(gpu_name="NVIDIA H200", driver="580.1", cuda="13.0")
COLD, WARM = Objective(), Objective(l2=CacheState.WARM)


@dataclass(frozen=True)
class Result:
    """The result of a job."""

    m: int
    target_id: str = "h200"
    here: Environment = HERE
    workload: Workload | None = None
    #: The winner's minimum gain; None if the library won.
    gains: float | None = None
    objective: Objective = COLD
    trials: int = 60
    torch_compile: bool = False


def best_of(one: Result) -> Best:
    """A stored result like `one`: its fused launch gains at least `one.gains`, or the library won."""
    if one.gains is None:
        return replace(BEST, environment=one.here)
    row = FinalRow(
        candidate=Candidate(plan_kind=PlanKind.FUSED, schedule=schedule()),
        trial_number=3,
        time_us=50.0,
        spread=0.01,
        speedup=one.gains + 0.1,
        speedup_ci95=(one.gains, one.gains + 0.2),
    )
    return replace(BEST, winner=PlanKind.FUSED, finals=(row,), environment=one.here)


def keep(store: Store, results: Sequence[Result]) -> list[str]:
    """Stores the jobs of the results, oldest first."""
    ids = []
    with store.write() as session:
        for one in results:
            asked = spec(one.m, target_id=one.target_id, trials=one.trials)
            asked = replace(asked, workload=one.workload or asked.workload, objective=one.objective)
            asked = replace(asked, torch_compile=one.torch_compile)
            job = jobs.insert(session, asked, 1.0)
            for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
                jobs.set_state(session, job.id, state, 2.0)
            bests.insert(session, replace(best_of(one), job_id=job.id))
            ids.append(job.id)
    return ids


def workload(m: int) -> Workload:
    return spec(m).workload


def ask(store: Store, asked: Workload, least: MatchKind, target_id: str = "h200", **changes: Any) -> BestMatch:
    question = Question(workload=asked, target_id=target_id, objective=Objective(), machine=MACHINE, match=least)
    return Service(store, LocalDispatcher([])).find_best(replace(question, **changes))


def find(
    store: Store, results: Sequence[Result], m: int, least: MatchKind, target_id: str = "h200"
) -> tuple[int, MatchKind, str]:
    """The index of the best-matching result, the quality of the match, and the differences."""
    ids = keep(store, results)
    found = ask(store, workload(m), least, target_id)
    assert found.best.job_id == found.job.id
    return ids.index(found.job.id), found.match, "; ".join(found.differences)


def test_the_same_workload_target_and_environment_are_an_exact_match(store: Store) -> None:
    assert find(store, [Result(16)], 16, MatchKind.EXACT) == (0, MatchKind.EXACT, "")


def test_among_equals_the_best_finals_win_and_neither_a_newer_nor_a_smaller_job_displaces_them(store: Store) -> None:
    results = [Result(16, gains=1.05), Result(16, gains=1.1, trials=40), Result(16), Result(16, gains=1.02, trials=6)]
    assert find(store, results, 16, MatchKind.EXACT) == (1, MatchKind.EXACT, "")


def test_of_the_same_gain_the_larger_budget_wins_and_then_the_newest(store: Store) -> None:
    results = [Result(16, trials=60), Result(16, trials=60), Result(16, trials=6)]
    assert find(store, results, 16, MatchKind.EXACT)[0] == 1


def test_a_warm_result_is_no_exact_match_for_a_cold_question_and_the_reverse(store: Store) -> None:
    ids = keep(store, [Result(16), Result(16, gains=1.5, objective=WARM, trials=6)])
    assert ask(store, workload(16), MatchKind.EXACT).job.id == ids[0]
    assert ask(store, workload(16), MatchKind.EXACT, objective=WARM).job.id == ids[1]


def test_another_objective_is_a_weaker_match_that_says_so(store: Store) -> None:
    sustained = Objective(l2=CacheState.WARM, regime=Regime.SUSTAINED)
    place, match, difference = find(store, [Result(16, objective=sustained)], 16, MatchKind.NEAREST)
    assert (place, match) == (0, MatchKind.NEAREST)
    assert difference == "measured with a warm L2, not a cold one; measured in regime sustained, not burst"


def test_a_result_judged_against_torch_compile_answers_no_question_of_the_library_alone_exactly(store: Store) -> None:
    found = find(store, [Result(16, torch_compile=True)], 16, MatchKind.NEAREST)
    assert found == (0, MatchKind.NEAREST, "compared with torch.compile, too")


def test_of_equally_near_shapes_the_one_of_the_objective_and_of_the_machine_is_found(store: Store) -> None:
    other = replace(HERE, driver="570.9")
    results = [Result(16), Result(16, gains=1.2, objective=WARM), Result(16, gains=1.1, here=other)]
    assert find(store, results, 17, MatchKind.NEAREST)[0] == 0


def test_an_older_result_of_this_environment_goes_before_a_newer_one_of_another(store: Store) -> None:
    results = [Result(16), Result(16, here=replace(HERE, driver="570.9"))]
    assert find(store, results, 16, MatchKind.EXACT)[0] == 0


@pytest.mark.slow
def test_another_driver_is_a_weaker_match_and_says_so(store: Store) -> None:
    place, match, difference = find(store, [Result(16, here=replace(HERE, driver="570.9"))], 16, MatchKind.NEAREST)
    assert (place, match) == (0, MatchKind.NEAREST)
    assert difference == "measured with driver '570.9', but the request has '580.1'"
    with pytest.raises(NotFound, match="use match=nearest"):
        ask(store, workload(16), MatchKind.EXACT)


def test_an_asker_who_tells_no_environment_takes_any(store: Store) -> None:
    keep(store, [Result(16, here=replace(HERE, driver="570.9"))])
    assert ask(store, workload(16), MatchKind.EXACT, machine=Machine()).match is MatchKind.EXACT


def test_a_server_with_a_newer_driver_changes_no_answer(store: Store) -> None:
    keep(store, [Result(16, "simulated:h200", here=replace(HERE, simulated=True, kernel_version="of yesterday"))])
    question = Question(workload=workload(16), target_id="simulated:h200", objective=Objective())
    service = Service(store, LocalDispatcher([SimulatedEvaluator(parse_target("simulated:h200"))]))
    assert service.find_best(question).match is MatchKind.EXACT


def test_the_nearest_shape_is_found_and_named(store: Store) -> None:
    place, match, difference = find(store, [Result(4096), Result(64), Result(1)], 32, MatchKind.NEAREST)
    assert (place, match) == (1, MatchKind.NEAREST)
    assert difference == "for ffn fp16 M=64 256 -> 512 -> 256, not ffn fp16 M=32 256 -> 512 -> 256: distance 2"


@pytest.mark.parametrize("least", [MatchKind.NEAREST, MatchKind.ANY])
def test_a_shape_beyond_the_limit_is_refused_and_the_limit_can_be_set(store: Store, least: MatchKind) -> None:
    [job_id] = keep(store, [Result(65)])
    refusal = r"M=65 .*: distance 2.04, and the limit is 2 \(use max_distance=2.05 to get it, or submit a job\)"
    with pytest.raises(NotFound, match=refusal):
        ask(store, workload(32), least)
    found = ask(store, workload(32), least, max_distance=2.05)
    assert (found.job.id, round(found.distance, 3)) == (job_id, 2.045)
    with pytest.raises(NotFound, match=r"use match=nearest and max_distance=2.05"):
        ask(store, workload(32), MatchKind.EXACT)


def test_a_shape_on_another_target_answers_where_the_own_target_has_none_within_the_limit(store: Store) -> None:
    ids = keep(store, [Result(4096), Result(16, "h100")])
    assert ask(store, workload(16), MatchKind.ANY).job.id == ids[1]


def test_of_equally_near_shapes_the_newest_is_found(store: Store) -> None:
    assert find(store, [Result(16), Result(64), Result(16), Result(4096)], 32, MatchKind.NEAREST)[0] == 2


def test_another_target_is_found_with_any_alone(store: Store) -> None:
    place, match, difference = find(store, [Result(16, "h100")], 16, MatchKind.ANY)
    assert (place, match, difference) == (0, MatchKind.ANY, "measured on h100, not h200")
    with pytest.raises(NotFound):
        ask(store, workload(16), MatchKind.NEAREST)


def test_the_own_target_comes_before_a_nearer_shape_on_another(store: Store) -> None:
    assert find(store, [Result(16, "h100"), Result(32)], 16, MatchKind.ANY)[0] == 1


@pytest.mark.parametrize(("stored", "asked"), [("simulated:h200", "h200"), ("h200", "simulated:h200")])
def test_simulated_never_answers_for_real_nor_the_reverse(store: Store, stored: str, asked: str) -> None:
    with pytest.raises(NotFound, match="submit a job"):
        find(store, [Result(16, stored)], 16, MatchKind.ANY, asked)


@pytest.mark.parametrize("option", [{"dtype": Dtype.BF16}, {"gated": True}, {"residual": True}, {"row_scale": True}])
def test_another_dtype_or_epilogue_is_no_match_at_all(store: Store, option: dict[str, Any]) -> None:
    keep(store, [Result(16)])
    with pytest.raises(NotFound):
        ask(store, ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256, **option), MatchKind.ANY)


@pytest.mark.parametrize("match", MatchKind)
def test_a_question_looks_through_no_whole_table(store: Store, match: MatchKind) -> None:
    asked = {MatchKind.EXACT: workload(16), MatchKind.NEAREST: workload(17), MatchKind.ANY: workload(18)}[match]
    keep(store, [Result(16), Result(64, "h100")])
    target_id = "a100" if match is MatchKind.ANY else "h200"
    ask(store, asked, match, target_id)  # the shapes are only read once
    with plans_of(store.engine) as steps:
        ask(store, asked, match, target_id)
    assert len(steps) >= 3
    assert [step for step in whole_tables(steps) if "count(*)" not in step] == []


def nearness(one: Workload, other: Workload) -> float:
    """The sum of the ratios of their sizes, in powers of two."""
    sizes = [[size for op in workload.tile_ops for size in (op.m, op.n, op.k)] for workload in (one, other)]
    return sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True))


# In CI, the other tests of this file say which result is found.
@pytest.mark.soak
def test_among_many_the_result_is_the_one_that_looking_at_each_finds(store: Store) -> None:
    chance = random.Random(3)

    def any_workload() -> Workload:
        sizes = [chance.choice((1, 3, 16, 48, 64, 1000)) for _ in range(4)]
        if chance.random() < 0.2:
            return independent_pair((sizes[0], 64, 64), (sizes[1], 64, sizes[2]))
        return ffn_pair(m=sizes[0], d_in=sizes[1], d_hidden=sizes[2], d_out=sizes[3], bias=chance.random() < 0.3)

    drivers = [replace(HERE, driver=driver) for driver in ("580.1", "570.9")]
    results = [
        Result(0, chance.choice(("h200", "h100", "simulated:h200")), chance.choice(drivers), any_workload())
        for _ in range(90)
    ]
    ids = keep(store, [replace(one, m=1) for one in results])
    forms = [one.workload and form_digest(one.workload) for one in results]
    for _ in range(40):
        asked = any_workload()
        form = form_digest(asked)
        like = [
            (one.target_id != "h200", round(nearness(one.workload, asked), 6), -place, one)
            for place, one in enumerate(results)
            if not one.target_id.startswith("simulated:") and one.workload is not None and forms[place] == form
        ]
        *_, nearest = min(like)  # among equally near shapes, the newest
        same = [
            (one.here != HERE, -place)
            for place, one in enumerate(results)
            if (one.workload, one.target_id) == (nearest.workload, nearest.target_id)
        ]
        assert ask(store, asked, MatchKind.ANY, max_distance=100.0).job.id == ids[-min(same)[1]]
