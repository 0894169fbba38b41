"""Initial candidates of a search: the nearest shapes' best schedules, legal for the given shape."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.support.builders import tried
from tests.support.lanes import one_in, soaked
from tests.support.presets import decoder_block, decoder_layer
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_kind, check_schedule
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import LIBRARY
from tuner.core.schedule.ordering import ASSIGNMENTS, Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.job import CacheState, Objective, Regime, default_regime
from tuner.core.trial.priors import Found
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.search import Searcher
from tuner.search.guesses.adapting import adapt
from tuner.search.guesses.priors import (
    BUDGET_SHARE,
    NUM_OF_NEIGHBOUR,
    NUM_PRIORS,
    OPTION,
    Asked,
    choose_priors,
    distance,
)
from tuner.winners import ShippedWinners

H200 = CATALOGUE["h200"]
SHIPPED = ShippedWinners().of("h200")
BURST = Objective()
VERSION = "0123456789ab"


def llama(m: int, *, gated: bool = False, d_hidden: int = 14336, dtype: Dtype = Dtype.FP16) -> Workload:
    activation = Activation.SILU if gated else Activation.RELU
    return ffn_pair(m=m, d_in=4096, d_hidden=d_hidden, d_out=4096, activation=activation, gated=gated, dtype=dtype)


def asked(workload: Workload, num_trials: int = 60, gpu: Gpu = H200) -> Asked:
    objective = Objective(regime=default_regime(workload))
    return Asked(space=space_of(workload, gpu), objective=objective, kernel_version=VERSION, num_trials=num_trials)


def found_for(workload: Workload) -> list[Found]:
    return [one for one in SHIPPED if one.workload == workload]


ODD = [
    llama(7),
    llama(20, dtype=Dtype.BF16),
    llama(100),
    llama(333, gated=True),
    llama(48, gated=True, d_hidden=11008),
    llama(3000),
    ffn_pair(m=24, d_in=5120, d_hidden=13824, d_out=5120, activation=Activation.GELU, bias=True, residual=True),
    independent_pair((700, 1024, 4096), (700, 1216, 4096)),
]


@pytest.mark.slow
@pytest.mark.parametrize("workload", one_in(len(ODD), ODD), ids=Workload.describe)
def test_what_was_found_for_neighbours_is_legal_for_a_shape_that_nobody_tried(workload: Workload) -> None:
    priors = choose_priors(asked(workload), SHIPPED)
    assert len(priors) >= 3
    assert len({prior.candidate for prior in priors}) == len(priors)
    for prior in priors:
        kind, schedule = prior.candidate.plan_kind, prior.candidate.schedule
        assert schedule is not None
        check_schedule(workload, H200, schedule)
        check_kind(workload, H200, kind, schedule)
    assert plans_for(workload, H200, priors[0].candidate), "it is proven, too"


def test_a_chain_that_writes_to_a_cache_begins_with_tiles_of_as_many_rows_of_w_as_one_that_does_not() -> None:
    turned = decoder_layer("llama3-8b", sequences=16, max_length=512)
    turned = replace(turned, ops=turned.tile_ops)
    plain = decoder_block("llama3-8b", m=16)
    (first, *_) = [one for one in SHIPPED if one.source == "shipped chains/llama3-8b/m16"]
    assert 0 < distance(turned, BURST, first) <= distance(plain, BURST, first) + OPTION
    prior = adapt(space_of(turned, H200), first)
    assert prior is not None
    assert prior.schedule is not None
    assert first.candidate.schedule is not None
    *_, now = prior.schedule.tiling.tiles
    *_, before = first.candidate.schedule.tiling.tiles
    assert 2 * now.n == before.n
    assert prior.schedule.tiling.tiles[:3] == first.candidate.schedule.tiling.tiles[:3]


def test_a_gpu_that_is_smaller_gets_what_fits_it_or_nothing() -> None:
    small = CATALOGUE["a40"]
    for prior in choose_priors(asked(llama(16), gpu=small), SHIPPED):
        assert prior.candidate.schedule is not None
        assert not prior.candidate.plan_kind.is_programmatic
        check_schedule(llama(16), small, prior.candidate.schedule)


def test_the_same_shape_comes_first_with_the_best_of_each_kind_unchanged() -> None:
    priors = choose_priors(asked(llama(16)), SHIPPED)
    own = {one.candidate: one for one in found_for(llama(16))}
    kinds = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2)]
    assert {prior.candidate.plan_kind for prior in priors[: len(kinds)]} == set(kinds)
    for prior in priors[: len(kinds)]:
        same_kind = [one.speedup for one in own.values() if one.candidate.plan_kind is prior.candidate.plan_kind]
        assert own[prior.candidate].speedup == prior.found_speedup == max(same_kind)
        assert not prior.is_adapted
        assert (prior.source, prior.workload) == ("shipped decode-plain/llama3-8b/m16", llama(16).describe())
    assert [prior.candidate.plan_kind for prior in priors[:2]] == [PlanKind.FUSED, PlanKind.TWO_LAUNCHES]


def test_what_older_kernels_did_is_learned_from_as_kernels_do_it_now() -> None:
    one = next(one for one in found_for(llama(16)) if one.candidate.plan_kind is PlanKind.FUSED)
    assert one.candidate.schedule is not None
    ordering = replace(one.candidate.schedule.ordering, assignment=Assignment.STEALING, partition=4)
    old = replace(one.candidate, schedule=one.candidate.schedule.but(ordering=ordering))
    (prior,) = choose_priors(asked(llama(16)), [replace(one, candidate=old)])
    assert prior.is_adapted
    assert prior.candidate.schedule is not None
    assert prior.candidate.schedule.tiling == one.candidate.schedule.tiling
    assert prior.candidate.schedule.ordering.assignment in ASSIGNMENTS


def test_a_winner_with_two_rows_of_low_tiles_is_tried_with_neighbours_first() -> None:
    workload = ffn_pair(m=96, d_in=12288, d_hidden=6144, d_out=12288, activation=Activation.RELU)
    shipped = next(
        one.candidate
        for one in found_for(workload)
        if one.candidate.schedule is not None and one.candidate.schedule.tiling.neighbours == 2
    )
    assert shipped.schedule is not None
    apart = shipped.schedule.but(tiling=replace(shipped.schedule.tiling, neighbours=1))
    candidate = replace(shipped, plan_kind=PlanKind.FUSED_PDL, schedule=apart)
    found = [replace(found_for(workload)[0], candidate=candidate)]
    placed, as_it_was = choose_priors(asked(workload), found)
    assert (as_it_was.candidate, as_it_was.is_adapted, placed.is_adapted) == (found[0].candidate, False, True)
    assert placed.candidate.schedule is not None
    assert placed.candidate.schedule.tiling.neighbours == 2
    assert str(placed.candidate.schedule).replace(" neighbours2", "") == str(as_it_was.candidate.schedule)
    check_schedule(workload, H200, placed.candidate.schedule)


def test_a_budget_bounds_its_priors() -> None:
    sizes = {num: len(choose_priors(asked(llama(16), num_trials=num), SHIPPED)) for num in (1, 3, 8, 20, 400)}
    assert sizes == {1: 0, 3: 0, 8: 2, 20: 20 // BUDGET_SHARE, 400: NUM_PRIORS}


def test_the_nearest_shape_is_asked_first_and_neighbours_give_a_few_that_are_searched() -> None:
    priors = choose_priors(asked(llama(20)), SHIPPED)
    shapes = list(dict.fromkeys(prior.workload for prior in priors))
    assert shapes == [llama(m).describe() for m in (16, 32, 1)][: len(shapes)]
    for shape in shapes:
        assert 1 <= [prior.workload for prior in priors].count(shape) <= NUM_OF_NEIGHBOUR
    assert all(prior.candidate.plan_kind.is_searched for prior in priors)


def test_nothing_is_learned_of_another_kind_of_pair_or_from_far_away() -> None:
    assert math.isinf(distance(llama(16, gated=True), BURST, found_for(llama(16))[0]))
    assert math.isinf(distance(independent_pair((16, 64, 64), (16, 64, 64)), BURST, found_for(llama(16))[0]))
    assert choose_priors(asked(ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256)), SHIPPED) == ()
    assert choose_priors(asked(llama(16)), []) == ()


def test_twice_the_rows_is_one_away_and_each_option_a_little() -> None:
    one = found_for(llama(16))[0]
    assert distance(llama(16), BURST, one) == 0
    assert distance(llama(32), BURST, one) == 1
    near = [
        distance(llama(16, dtype=Dtype.BF16), BURST, one),
        distance(
            replace(llama(16), ops=(replace(llama(16).tile_ops[0], bias=True), llama(16).tile_ops[1])), BURST, one
        ),
        distance(llama(16), Objective(regime=Regime.SUSTAINED), one),
        distance(llama(16), Objective(l2=CacheState.WARM), one),
    ]
    assert all(0 < away < 1 for away in near)
    assert 0 < distance(llama(16, d_hidden=11008), BURST, one) < 1


def test_few_rows_are_alike_since_one_tile_has_them_all() -> None:
    one = found_for(llama(16))[0]
    assert distance(llama(1), BURST, one) == 1
    assert distance(llama(8), BURST, one) < distance(llama(32), BURST, one) / 2


def test_a_neighbour_gives_what_was_fastest_however_it_was_launched_as_the_kind_that_is_searched() -> None:
    of_kind = {one.candidate.plan_kind: one for one in found_for(llama(16))}
    fused, overlapping = of_kind[PlanKind.FUSED], replace(of_kind[PlanKind.FUSED_PDL], speedup=2.0)
    first, second = choose_priors(asked(llama(17)), [fused, overlapping])
    assert [one.candidate.plan_kind for one in (first, second)] == [PlanKind.FUSED] * 2
    assert (first.found_us, first.found_speedup) == (overlapping.time_us, 2.0)
    same = choose_priors(asked(llama(16)), [fused, overlapping])
    assert [one.candidate.plan_kind for one in same] == [PlanKind.FUSED, PlanKind.FUSED_PDL], "its own are as they were"


def test_winners_of_other_kernel_sources_stand_behind_those_of_these_and_are_used_all_the_same() -> None:
    [old, new] = [one for one in found_for(llama(16)) if one.candidate.plan_kind is PlanKind.FUSED][:2]
    new = replace(new, kernel_version=VERSION, speedup=old.speedup / 2)
    assert old.kernel_version != VERSION
    priors = choose_priors(asked(llama(16)), [old, new])
    assert [prior.candidate for prior in priors] == [new.candidate, old.candidate]
    assert [prior.kernel_version for prior in priors] == [VERSION, old.kernel_version]


# In CI, test_adapting.py adapts tiles to other rows.
@pytest.mark.soak
@pytest.mark.parametrize("m", [*soaked(8, 24, 48), 64])
def test_a_tile_that_covered_all_rows_covers_those_of_another_shape_in_as_many_pieces(m: int) -> None:
    for one in found_for(llama(16)):
        before = one.candidate.schedule
        candidate = adapt(space_of(llama(m), H200), one)
        assert before is not None
        assert candidate is not None
        assert candidate.schedule is not None
        pieces = -(-m // candidate.schedule.tiling.tiles[0].m)
        assert pieces <= max(-(-m // before.tiling.tiles[0].m), -(-16 // before.tiling.tiles[0].m))
        assert candidate.plan_kind is one.candidate.plan_kind


@pytest.mark.slow
def test_a_search_tries_the_library_and_then_its_priors_in_their_order_and_after_a_restart_the_others() -> None:
    question = asked(llama(16))
    priors = choose_priors(question, SHIPPED)
    candidates = [prior.candidate for prior in priors]
    searcher = Searcher(question.space, seed=0, priors=candidates, num_trials=60)
    assert [searcher.ask() for _ in range(1 + len(priors))][1:] == candidates
    half = [tried(number, prior.candidate, 60.0 + number) for number, prior in enumerate(priors[:4])]
    again = Searcher(question.space, seed=0, history=half, priors=candidates, num_trials=60)
    assert [again.ask() for _ in range(len(priors) - 4)] == candidates[4:]


@pytest.mark.parametrize("kind", [PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL])
def test_the_best_prior_of_a_variation_is_tried_as_what_it_varies(kind: PlanKind) -> None:
    question = asked(llama(16))
    assert kind.base is not None
    of_base = [one.candidate for one in found_for(llama(16)) if one.candidate.plan_kind is kind.base][:2]
    priors = [replace(one, plan_kind=kind) for one in of_base]
    times_us = zip((LIBRARY, *priors), (80.0, 60.0, 50.0), strict=True)
    history = [tried(number, one, time_us) for number, (one, time_us) in enumerate(times_us)]
    searcher = Searcher(question.space, seed=0, history=history, priors=priors, num_trials=60)
    found = searcher.ask()
    assert found is not None
    assert found == of_base[1]
    other = Searcher(question.space, seed=0, history=[*history, tried(3, found, 52.0)], priors=priors, num_trials=60)
    assert other.ask() not in of_base, "of several the best one alone"
