"""Repeated launches of one candidate on a GPU give the same bits, and so do candidates that differ only in data
movement."""

from __future__ import annotations

import pytest

from tests.support.conformance.case import Case, Claim, of_claim
from tests.support.conformance.launching import Bits, OnCard, same
from tests.support.conformance.table import CASES
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.ordering import SplitTiles
from tuner.workers.source.launch_args import workspace_layout

cupy = pytest.importorskip("cupy")


def is_number(workload: Workload, bits: Bits) -> bool:
    """Whether no element of any op is NaN."""
    infinity = 0x7C00 if workload.dtype is Dtype.FP16 else 0x7F80
    return not any(bool(((values & 0x7FFF) > infinity).any()) for values in bits.values())


def check_alike(workload: Workload, launches: list[Bits]) -> None:
    assert launches[0].keys() == {op.name for op in workload.ops}
    assert is_number(workload, launches[0])
    assert all(launch is launches[0] or same(launch, launches[0]) for launch in launches)


@pytest.mark.parametrize("case", of_claim(CASES, Claim.RELAUNCHES), ids=lambda case: case.id)
def test_every_launch_leaves_the_same_bits(on_card: OnCard, case: Case) -> None:
    check_alike(case.workload, on_card.launches(case.workload, on_card.candidate(case), case.num_launches))


@pytest.mark.parametrize("case", of_claim(CASES, Claim.SAME_BITS), ids=lambda case: case.id)
def test_what_brings_or_stores_the_bytes_changes_no_bit(on_card: OnCard, case: Case) -> None:
    assert case.others
    candidates = (on_card.candidate(case), *case.others)
    left = [on_card.launches(case.workload, one, case.num_launches) for one in candidates]
    check_alike(case.workload, [launch for launches in left for launch in launches])


@pytest.mark.parametrize("case", of_claim(CASES, Claim.ARRIVALS), ids=lambda case: case.id)
def test_each_part_of_a_tile_arrives_once_a_launch_and_the_tile_posts_once(on_card: OnCard, case: Case) -> None:
    from tuner.workers.gpu.launching.launch import PlanOnDevice
    from tuner.workers.gpu.library.runners import ChainRunner, launchable_of

    candidate = on_card.candidate(case)
    ready = on_card.ready(case.workload, candidate)
    (verified,) = ready.plans
    plan = PlanOnDevice(launchable_of(ready.work))
    launches = on_card.run(case.workload, ChainRunner(on_card.kernel(ready.work), (plan,)), case.num_launches)
    check_alike(case.workload, launches)
    words, size = verified.plan, verified.graph.tiling.cluster_size
    parts = sorted((task[8], task[7]) for task in words.tasks.tolist() if task[7] and not task[6])
    assert 0 < len(parts) == words.num_split_tiles
    assert candidate.schedule is not None
    if candidate.schedule.ordering.split_tiles is not SplitTiles.ALL:
        assert len(parts) < words.num_ctas
    begin = workspace_layout(verified)["arrivals"] // 4
    arrivals = cupy.asnumpy(plan._workspace.words[begin : begin + len(parts) * size]).tolist()
    assert arrivals == [case.num_launches * num_parts for _, num_parts in parts for _ in range(size)]
    if case.num_posts:
        assert plan.signals().tolist() == [case.num_launches * case.num_posts] * words.num_signals
