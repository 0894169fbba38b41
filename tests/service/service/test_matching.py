"""Which stored result answers a question, in a real database."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.builders import BEST, spec
from tests.support.queries import plans_of, whole_tables
from tuner.core.problem.workload import Dtype, Workload, ffn_pair, independent_pair
from tuner.core.trial.evaluator import Environment
from tuner.core.trial.job import JobState
from tuner.core.trial.records import BestMatch, MatchKind
from tuner.dispatch import LocalDispatcher
from tuner.errors import NotFound
from tuner.service import Service
from tuner.store import Store, bests, jobs
from tuner.store.result_keys import form_digest

HERE = Environment(gpu_name="NVIDIA H200", simulated=False, driver="580.1", cuda="13.0")


@dataclass(frozen=True)
class Result:
    """What a job found."""

    m: int
    target_id: str = "h200"
    here: Environment = HERE
    workload: Workload | None = None


def keep(store: Store, results: Sequence[Result]) -> list[str]:
    """The results' jobs, the first one the oldest."""
    ids = []
    with store.write() as session:
        for one in results:
            asked = spec(one.m, target_id=one.target_id)
            job = jobs.insert(session, replace(asked, workload=one.workload or asked.workload), 1.0)
            for state in (JobState.SEARCHING, JobState.FINALS, JobState.SUCCEEDED):
                jobs.set_state(session, job.id, state, 2.0)
            bests.insert(session, replace(BEST, job_id=job.id, environment=one.here))
            ids.append(job.id)
    return ids


def workload(m: int) -> Workload:
    return spec(m).workload


def ask(
    store: Store, asked: Workload, least: MatchKind, target_id: str = "h200", here: Environment | None = HERE
) -> BestMatch:
    service = Service(store, LocalDispatcher([]))
    return service.find_best(asked, target_id, least, here)


def find(
    store: Store, results: Sequence[Result], m: int, least: MatchKind, target_id: str = "h200"
) -> tuple[int, MatchKind, str]:
    """The place of the result that fits best, how well it does, and what differs."""
    ids = keep(store, results)
    found = ask(store, workload(m), least, target_id)
    assert found.best.job_id == found.job.id
    return ids.index(found.job.id), found.match, "; ".join(found.differences)


def test_the_same_workload_target_and_environment_are_an_exact_match_and_the_newest_wins(store: Store) -> None:
    assert find(store, [Result(16), Result(16)], 16, MatchKind.EXACT) == (1, MatchKind.EXACT, "")


def test_an_older_result_of_this_environment_goes_before_a_newer_one_of_another(store: Store) -> None:
    results = [Result(16), Result(16, here=replace(HERE, driver="570.9"))]
    assert find(store, results, 16, MatchKind.EXACT)[0] == 0


def test_another_driver_is_a_weaker_match_and_says_so(store: Store) -> None:
    place, match, difference = find(store, [Result(16, here=replace(HERE, driver="570.9"))], 16, MatchKind.NEAREST)
    assert (place, match) == (0, MatchKind.NEAREST)
    assert difference == "measured with driver '570.9', here it is '580.1'"
    with pytest.raises(NotFound, match="ask with match=nearest"):
        ask(store, workload(16), MatchKind.EXACT)


def test_an_asker_who_tells_no_environment_takes_any(store: Store) -> None:
    keep(store, [Result(16, here=replace(HERE, driver="570.9"))])
    assert ask(store, workload(16), MatchKind.EXACT, here=None).match is MatchKind.EXACT


def test_the_nearest_shape_is_found_and_named(store: Store) -> None:
    place, match, difference = find(store, [Result(4096), Result(64), Result(1)], 32, MatchKind.NEAREST)
    assert (place, match) == (1, MatchKind.NEAREST)
    assert difference == "for ffn fp16 M=64 256 -> 512 -> 256, not ffn fp16 M=32 256 -> 512 -> 256"


def test_of_equally_near_shapes_the_newest_is_found(store: Store) -> None:
    assert find(store, [Result(16), Result(64), Result(16), Result(4096)], 32, MatchKind.NEAREST)[0] == 2


def test_another_target_is_found_with_any_alone(store: Store) -> None:
    place, match, difference = find(store, [Result(16, "h100")], 16, MatchKind.ANY)
    assert (place, match, difference) == (0, MatchKind.ANY, "measured on h100, not h200")
    with pytest.raises(NotFound):
        ask(store, workload(16), MatchKind.NEAREST)


def test_the_own_target_comes_before_a_nearer_shape_on_another(store: Store) -> None:
    assert find(store, [Result(16, "h100"), Result(64)], 16, MatchKind.ANY)[0] == 1


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
    with plans_of(store.engine) as steps:
        ask(store, asked, match, target_id)
    assert len(steps) >= 3
    assert whole_tables(steps) == []


def nearness(one: Workload, other: Workload) -> float:
    """Sum of the factors between their sizes, in powers of two."""
    sizes = [[size for op in workload.ops for size in (op.m, op.n, op.k)] for workload in (one, other)]
    return sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True))


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
        for _ in range(300)
    ]
    ids = keep(store, [replace(one, m=1) for one in results])
    for _ in range(100):
        asked = any_workload()
        like = [
            (one.target_id != "h200", one.workload != asked or one.here != HERE, nearness(one.workload, asked), -place)
            for place, one in enumerate(results)
            if not one.target_id.startswith("simulated:")
            and one.workload is not None
            and form_digest(one.workload) == form_digest(asked)
        ]
        best = min(like, key=lambda rank: (rank[0], rank[1] and not rank[0], round(rank[2], 6), rank[3]))
        assert ask(store, asked, MatchKind.ANY).job.id == ids[-best[3]]
