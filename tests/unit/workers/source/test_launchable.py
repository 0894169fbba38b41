"""A launchable is one value: proven plans, the build of their kernel, and the workload."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import H200, ordering, tiling
from tests.support.forged import tied
from tuner.core.plan.table.words import Plan
from tuner.core.problem.workload import Activation, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan, proof_digest
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.source.launchable import Launchable, LaunchRefused

PAIR = ffn_pair(m=32, d_in=64, d_hidden=128, d_out=64)
TILING = tiling((16, 32), (16, 32), num_stages=3)
CUBIN = b"\x7fELF of these tiles"


def plans(
    workload: Workload = PAIR, tiles: Tiling = TILING, kind: PlanKind = PlanKind.TWO_LAUNCHES, **order: Any
) -> tuple[VerifiedPlan, ...]:
    schedule = Schedule.of(tiling=tiles, ordering=ordering(**order))
    return plans_for(workload, H200, Candidate(plan_kind=kind, schedule=schedule))


def good() -> Launchable:
    return tied(plans(), CUBIN)


def with_one(launchable: Launchable, index: int, plan: VerifiedPlan) -> Launchable:
    mine = list(launchable.plans)
    mine[index] = plan
    return replace(launchable, plans=tuple(mine))


def changed(proven: VerifiedPlan, **fields: object) -> VerifiedPlan:
    copy: VerifiedPlan = pickle.loads(pickle.dumps(proven))
    for name, value in fields.items():
        object.__setattr__(copy, name, value)
    return copy


def other_words(launchable: Launchable) -> Launchable:
    words = launchable.plans[1].words.copy()
    first = int(words[7])
    words[[first + 1, first + 2]] = 1, 1
    return with_one(launchable, 1, changed(launchable.plans[1], plan=Plan.from_words(words)))


WRONG: dict[str, tuple[Callable[[Launchable], Launchable], str]] = {
    "words that were changed after the proof": (other_words, "plan 1 was modified after it was proven"),
    "a workload that was changed after the proof": (
        lambda it: with_one(it, 0, changed(it.plans[0], graph=replace(it.plans[0].graph, workload=RELU))),
        "plan 0 was modified after it was proven",
    ),
    "resources that were changed after the proof": (
        lambda it: with_one(it, 0, changed(it.plans[0], resources=replace(it.plans[0].resources, num_threads=32))),
        "plan 0 was modified after it was proven",
    ),
    "the proven plan of another schedule": (
        lambda it: replace(it, plans=plans(assignment=Assignment.STATIC)),
        "plan 0 was proven, but for another launch",
    ),
    "the plans in another order": (
        lambda it: replace(it, plans=it.plans[::-1]),
        "plan 0 was proven, but for another launch",
    ),
    "a plan less": (lambda it: replace(it, plans=it.plans[:1]), "1 plans but 2 proofs"),
    "another cubin": (lambda it: replace(it, cubin=CUBIN + b"!"), "the cubin is not the one that was built"),
    "another workload's digest": (
        lambda it: replace(it, ties=replace(it.ties, workload=RELU.digest)),
        f"plan 0 is of workload {PAIR.digest}",
    ),
    "plans of two tilings": (
        lambda it: tied((it.plans[0], plans(tiles=tiling((32, 32), (16, 32), num_stages=3))[1]), CUBIN),
        "plan 1 is of the tiling mma 32x32x32",
    ),
}
RELU = ffn_pair(m=32, d_in=64, d_hidden=128, d_out=64, activation=Activation.RELU)


@pytest.mark.parametrize("copied", [False, True])
def test_what_was_tied_may_be_launched_on_this_side_and_on_the_other(copied: bool) -> None:
    launchable = good()
    if copied:
        launchable = pickle.loads(pickle.dumps(launchable))
    launchable.check()
    assert (launchable.workload, launchable.tiling, launchable.num_threads) == (PAIR, TILING, 128)


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("copied", [False, True])
def test_what_was_not_proven_and_built_together_is_refused(what: str, copied: bool) -> None:
    break_it, problem = WRONG[what]
    broken = break_it(good())
    if copied:
        broken = pickle.loads(pickle.dumps(broken))
    with pytest.raises(LaunchRefused, match=problem):
        broken.check()


def test_a_proof_has_a_digest_of_all_that_it_is_about() -> None:
    (plan,) = plans(kind=PlanKind.FUSED)
    others = [
        *plans(kind=PlanKind.FUSED, granularity=Granularity.TILE),
        *plans(RELU, kind=PlanKind.FUSED),
        *plans(tiles=replace(TILING, num_stages=4), kind=PlanKind.FUSED),
        changed(plan, gpu=replace(H200, num_sms=131)),
        changed(plan, is_paired=True),
    ]
    assert plan.digest == proof_digest(plan)
    assert len({proof_digest(one) for one in (plan, *others)}) == 1 + len(others)
