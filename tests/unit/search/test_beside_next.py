"""Rings of half an SM: where the next programmatic launch's CTAs have room beside those of the one that runs."""

from __future__ import annotations

import pytest

from tests.support.builders import measured
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_kind, dynamic_smem_bytes
from tuner.core.problem.gpu import CATALOGUE, SMEM_RESERVED_PER_CTA_BYTES
from tuner.core.problem.workload import WorkloadKind
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.ordering import Schedule
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.space.space import Space
from tuner.core.trial.job import Trial
from tuner.search import Searcher
from tuner.search.beside_next import beside_next
from tuner.winners import ShippedWinners

H200 = CATALOGUE["h200"]
HALF_BYTES = H200.smem_per_sm_bytes // 2 - SMEM_RESERVED_PER_CTA_BYTES


def trial(number: int, candidate: Candidate, time_us: float) -> Trial:
    return Trial(
        number=number,
        candidate=candidate,
        outcome=measured(time_us),
        num_known=number,
        started_at=0.0,
        finished_at=0.0,
    )


def winner_of(chain: str) -> tuple[Space, Schedule]:
    """The fastest fused schedule that is known for a chain."""
    known = [one for one in ShippedWinners().of("h200") if one.source == f"shipped chains/{chain}"]
    fused = [one for one in known if one.candidate.plan_kind is PlanKind.FUSED]
    best = max(fused, key=lambda one: one.speedup)
    assert best.candidate.schedule is not None
    return space_of(best.workload, H200), best.candidate.schedule


@pytest.mark.parametrize("chain", ["llama3-8b/m64", "llama3-70b-tp8-run/m64", "llama3-8b/m1"])
def test_two_ctas_of_these_fit_an_sm_and_rings_keep_their_shares(chain: str) -> None:
    space, best = winner_of(chain)
    assert dynamic_smem_bytes(space.workload, best.tiling) > HALF_BYTES
    halves = beside_next(space, [best])
    assert halves
    for half in halves:
        check_kind(space.workload, H200, PlanKind.FUSED_PDL, half)
        taken = dynamic_smem_bytes(space.workload, half.tiling)
        assert HALF_BYTES // 2 < taken <= HALF_BYTES
        assert half.ordering == best.ordering
        assert [(tile.m, tile.n) for tile in half.tiling.tiles] == [(tile.m, tile.n) for tile in best.tiling.tiles]
        assert (half.tiling.window, half.tiling.ahead_window) == (0, 0)
        before, after = (one.input_stages / one.num_stages for one in (best.tiling, half.tiling))
        assert before / 2 <= after <= 2 * before


def test_what_has_no_ring_to_share_or_is_no_chain_has_none() -> None:
    space, best = winner_of("llama3-8b/m64")
    small = beside_next(space, [best])[0]
    assert small in beside_next(space, [small]), "what fits already stays as it is"
    known = next(one for one in ShippedWinners().of("h200") if one.workload.kind is WorkloadKind.FFN)
    pair = space_of(known.workload, H200)
    assert known.candidate.schedule is not None
    assert beside_next(pair, [known.candidate.schedule]) == []


def test_a_search_tries_the_best_of_a_chain_so_as_a_programmatic_launch() -> None:
    space, best = winner_of("llama3-70b-tp8-run/m64")
    fused = Candidate(plan_kind=PlanKind.FUSED, schedule=best)
    history = [trial(0, LIBRARY, 60.0), trial(1, fused, 50.0)]
    searcher = Searcher(space, seed=0, history=history, num_trials=60)
    asked = [searcher.ask() for _ in range(24)]
    programmatic = [one.schedule for one in asked if one is not None and one.plan_kind.is_programmatic]
    assert any(half in programmatic for half in beside_next(space, [best]))
