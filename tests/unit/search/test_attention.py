"""A search for an attention: seeds, alternation of plan kinds, Optuna's view, and learning from other shapes."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import optuna
import pytest

from tests.support.attentions import attention, space_with
from tests.support.between import between
from tests.support.cases import H200
from tests.support.lanes import one_in, soaked
from tests.support.presets import decoder_attention, decoder_layer
from tuner.core.problem.gpu import Target
from tuner.core.problem.objective import CacheState, Regime
from tuner.core.problem.workload import Dtype, Workload
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.core.space.joint import any_space_of
from tuner.core.trial.evaluator import Problem, evaluate
from tuner.core.trial.job import Objective, Trial
from tuner.core.trial.outcome import Measured
from tuner.core.trial.priors import Found
from tuner.ops.attention.op import Lengths
from tuner.ops.attention.plans import plan_of as attention_plan
from tuner.search.guesses.priors import Asked, choose_priors, distance
from tuner.search.guesses.seeds import first_guesses
from tuner.search.guesses.sharing import shares_an_sm
from tuner.search.model.axes import distributions, from_params, to_params
from tuner.search.searcher import Searcher
from tuner.workers.simulated.evaluator import Faults, SimulatedEvaluator

ALONE, PAIR = attention(), attention(d_out=512)
PAGED = attention(d_out=512, form={"page_tokens": 16, "window": 300, "soft_cap": 20.0})
OBJECTIVE = Objective(l2=CacheState.COLD, regime=Regime.BURST)
ALL = pytest.mark.parametrize("workload", [ALONE, PAIR, PAGED], ids=["alone", "pair", "paged"])


def run(workload: Workload, num_trials: int) -> list[Trial]:
    """A search on the simulated GPU."""
    twin = SimulatedEvaluator(Target(gpu=H200, simulated=True), faults=Faults(hang=0, crash=0, wrong_numbers=0))
    problem, trials = Problem(workload=workload, objective=OBJECTIVE), list[Trial]()
    searcher = Searcher(space_with(workload), seed=3, num_trials=num_trials)
    for number in range(num_trials):
        candidate = searcher.ask()
        assert candidate is not None
        outcome = evaluate(twin, problem, candidate)
        trials.append(
            Trial(number=number, candidate=candidate, outcome=outcome, num_known=number, started_at=0, finished_at=1)
        )
        searcher.tell(trials[-1])
    return trials


@cache
def guesses_of(workload: Workload) -> tuple[Schedule, ...]:
    return tuple(first_guesses(space_with(workload), 0))


@ALL
def test_a_schedule_survives_its_parameters(workload: Workload) -> None:
    space = space_with(workload)
    axes = distributions(next(iter(space)))
    for schedule in space.sample(random.Random(0), 40):
        params = to_params(schedule)
        assert params.keys() == axes.keys()
        assert from_params(params) == schedule
        optuna.trial.create_trial(params=params, distributions=axes, value=1.0)  # refuses values out of range


@pytest.mark.slow
@ALL
def test_seeds_have_clusters_of_each_size_and_ask_for_weights(workload: Workload) -> None:
    seeds = guesses_of(workload)
    assert 5 <= len(seeds) <= 40
    assert len(set(seeds)) == len(seeds)
    assert {schedule.launch_ops[0].cluster for schedule in seeds} == {1, 2, 4, 8, 16}
    late = {one.launch_ops[0].next_percent for one in seeds if not one.launch_ops[0].next_early}
    assert late == ({0, 50, 100} if workload.tile_ops else {0})
    assert len({schedule.tiling for schedule in seeds}) >= (3 if workload.tile_ops else 1)


LARGE = decoder_attention("llama3-8b", sequences=16, max_length=2048, dtype=Dtype.BF16)
DRAWN = decoder_attention("llama3-8b", sequences=8, max_length=1024, dtype=Dtype.BF16, lengths=Lengths.UNIFORM)


# In CI, seeds ask early where many CTAs do.
@pytest.mark.soak
def test_where_an_sm_has_no_room_some_seeds_leave_it_and_ask_early() -> None:
    space = space_with(LARGE)
    beside = [one for one in guesses_of(LARGE) if shares_an_sm(space, one)]
    asked = [(one.launch_ops[0].next_percent, one.launch_ops[0].next_early) for one in beside]
    assert list(dict.fromkeys(asked)) == [(25, True), (0, False), (50, True)]
    of_kernels = {(one.launch_ops[0].cluster, one.launch_ops[0].span_tokens, one.tiling) for one in beside}
    assert asked[: len(of_kernels)] == [(25, True)] * len(of_kernels), "each kernel once before any again"
    assert all(0 < one.tiling.window < one.tiling.num_stages for one in beside), "keys come before most of the weights"
    assert not any(shares_an_sm(space_with(ALONE), one) for one in guesses_of(ALONE))


FEW = decoder_attention("llama3-70b", tp=8, sequences=1, max_length=512, dtype=Dtype.BF16)


@pytest.mark.slow
@pytest.mark.parametrize("workload", [LARGE, FEW], ids=["128 CTAs", "8 CTAs, and others that ask alone"])
def test_seeds_ask_early_where_many_ctas_do(workload: Workload) -> None:
    attentions = [one.launch_ops[0] for one in guesses_of(workload)]
    assert {one.next_percent for one in attentions if one.next_early} == {25, 50}


# In CI, seeds ask early where many CTAs do.
@pytest.mark.soak
def test_seeds_ask_late_where_many_ctas_do_and_try_a_spread_over_all_sms() -> None:
    space = space_with(decoder_attention("llama3-8b", sequences=1, max_length=2048, dtype=Dtype.BF16))
    late = [one.launch_ops[0] for one in first_guesses(space, 0) if one.launch_ops[0].next_percent]
    late = [one for one in late if not one.next_early]
    assert {one.next_percent for one in late} == {50, 100}
    ctas = {attention_plan(space.own[0].op, one, H200).num_ctas for one in late}
    few = [one.launch_ops[0] for one in guesses_of(FEW)]
    assert not any(one.next_percent for one in few if not one.next_early), "they would precede requests for keys"
    assert ctas == {64, 128}, "the best by forecast, and the one with a CTA on nearly every SM"


def test_a_single_row_has_the_guesses_that_were_fastest_on_cards() -> None:
    """Its product uses `wgmma` with swapped operands and a shallow ring of 64 tokens, not `simt`."""
    space = space_with(FEW)
    seeds = guesses_of(FEW)
    first = seeds[0]
    assert (first.tiling.engine, first.tiling.swap_ab) == (Engine.WGMMA, True)
    assert first.tiling.tiles[0].n == 32
    assert first.launch_ops[0].span_tokens == 512, "no CTA of a cluster is left without tokens"
    beside = [one for one in seeds if shares_an_sm(space, one)]
    assert {one.launch_ops[0].cluster for one in beside} == {8, 16}
    shallow = next(one for one in beside if one.launch_ops[0].cluster == 8 and one.tiling.tiles[0].n == 64)
    assert (shallow.launch_ops[0].tile_tokens, shallow.launch_ops[0].num_stages) == (64, 1)
    assert shallow.launch_ops[0].next_early
    assert (shallow.tiling.num_stages, shallow.tiling.window) == (9, 3)
    assert all(one.tiling.engine is Engine.WGMMA for one in beside)
    assert {one.tiling.engine for one in seeds} == {Engine.WGMMA, Engine.SIMT}


@pytest.mark.soak
def test_two_launches_that_share_sms_are_soon_tried_programmatically_whatever_they_take_plainly() -> None:
    space, trials = space_with(LARGE), run(LARGE, 20)
    tried = [trial.candidate for trial in trials if trial.candidate.plan_kind is PlanKind.TWO_LAUNCHES_PDL]
    beside = [one.schedule for one in tried if one.schedule and shares_an_sm(space, one.schedule)]
    assert [one.launch_ops[0].next_percent for one in beside][:2] == [25, 0]


@pytest.mark.parametrize(("lengths", "found"), [(Lengths.UNIFORM, {False, True}), (Lengths.FULL, {False})])
def test_an_attention_alone_is_tried_by_length_where_lengths_differ(lengths: Lengths, found: set[bool]) -> None:
    guesses = first_guesses(space_with(attention(max_length=300, lengths=lengths)), 0)
    assert {one.launch_ops[0].by_length for one in guesses} == found


# In CI, the test above has an attention alone.
@pytest.mark.soak
def test_where_lengths_differ_seeds_assign_by_length() -> None:
    by_length = {one.launch_ops[0].by_length for one in guesses_of(DRAWN)}
    assert by_length == {False, True}
    assert {one.launch_ops[0].by_length for one in guesses_of(LARGE)} == {False}


# In CI, tests/unit/core/space/test_attention_policies.py has a search that tries both.
@pytest.mark.soak
@pytest.mark.parametrize("workload", [*soaked(ALONE, PAIR), PAGED], ids=["alone", "pair", "paged"])
def test_both_kinds_are_tried_early_and_the_best_at_the_end(workload: Workload) -> None:
    trials = run(workload, 40)
    kinds = [trial.candidate.plan_kind for trial in trials]
    assert trials[0].candidate == LIBRARY
    assert set(kinds) == {PlanKind.LIBRARY, PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL}
    assert PlanKind.TWO_LAUNCHES_PDL in kinds[:8]
    assert kinds.count(PlanKind.TWO_LAUNCHES_PDL) >= 8
    assert all(isinstance(trial.outcome, Measured) for trial in trials)
    assert len({trial.candidate for trial in trials}) == len(trials)


@pytest.mark.soak
def test_searches_find_what_is_faster_than_their_first_guesses() -> None:
    """In most shapes: for some, the first guess is the best on the simulated GPU, whose errors are random."""
    sizes = ((4, 9000), (32, 3000))
    shapes = [*(attention(sequences=one, max_length=longest) for one, longest in sizes), PAIR]
    num_improved = 0
    for workload in shapes:
        times = [trial.outcome.time_us for trial in run(workload, 60)[1:] if isinstance(trial.outcome, Measured)]
        num_improved += min(times) < min(times[:6])
    assert num_improved >= 2


def found(workload: Workload) -> Found:
    schedule = next(iter(first_guesses(space_with(workload), 0)))
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=schedule)
    return Found(
        workload=workload, objective=OBJECTIVE, candidate=candidate, time_us=10.0, speedup=1.1, source="job-1",
        kernel_version="k",
    )  # fmt: skip


# In CI, a search around an attention tries every way to launch its products.
@pytest.mark.soak
def test_a_layer_begins_with_what_was_found_for_its_products_alone_and_tries_every_way_to_launch_them() -> None:
    layer = decoder_layer("llama3-8b", sequences=1, max_length=700, dtype=Dtype.BF16)
    space, products = space_with(layer), replace(layer, ops=layer.tile_ops)
    schedule = next(iter(first_guesses(any_space_of(products, H200), 0)))
    known = Found(
        workload=products,
        objective=OBJECTIVE,
        candidate=Candidate(plan_kind=PlanKind.FUSED, schedule=schedule),
        time_us=100.0,
        speedup=1.1,
        source="job-1",
        kernel_version="k",
    )
    asked = Asked(space=space, objective=OBJECTIVE, kernel_version="k", num_trials=60)
    (prior,) = choose_priors(asked, [known])
    assert prior.candidate.schedule is not None
    assert prior.candidate.schedule.but(launch_ops=()) == schedule
    assert len(prior.candidate.schedule.launch_ops) == 1
    assert distance(products, OBJECTIVE, replace(known, workload=layer)) == float("inf"), "not the other way round"
    kinds = {trial.candidate.plan_kind for trial in run(layer, 20)}
    launched = {PlanKind.FUSED, PlanKind.FUSED_PDL, PlanKind.RUNS, PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL}
    assert kinds == {PlanKind.LIBRARY, *launched}


@pytest.mark.slow
@pytest.mark.parametrize("num_behind", one_in(3, [0, 1, 3]))
def test_a_search_around_an_attention_tries_every_way_to_launch_its_products(num_behind: int) -> None:
    workload = between(num_behind=num_behind)
    trials = run(workload, 24)
    kinds = {trial.candidate.plan_kind for trial in trials}
    apart = {PlanKind.N_LAUNCHES, PlanKind.N_LAUNCHES_PDL}
    apart = apart if num_behind else {PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL}
    assert kinds == {PlanKind.LIBRARY, *apart, *([PlanKind.RUNS] if num_behind > 1 else [])}
    assert all(isinstance(trial.outcome, Measured) for trial in trials)
    in_runs = [trial.candidate.schedule for trial in trials if trial.candidate.plan_kind.is_in_runs]
    assert all(schedule and 1 in schedule.ordering.run_starts for schedule in in_runs)
    assert len({schedule.ordering.run_starts for schedule in in_runs if schedule}) > 1 or num_behind < 3


# In CI, what was found for an attention is made legal.
@pytest.mark.soak
def test_what_was_found_around_an_attention_is_made_legal_for_another_context() -> None:
    before, now = between(sizes={"max_length": 1024}), between()
    schedule = next(iter(first_guesses(space_with(before), 0)))
    known = replace(
        found(ALONE), workload=before, candidate=Candidate(plan_kind=PlanKind.N_LAUNCHES, schedule=schedule)
    )
    assert distance(now, OBJECTIVE, known) == 1
    assert distance(replace(now, ops=now.tile_ops), OBJECTIVE, known) == float("inf")
    products = replace(known, workload=replace(before, ops=before.tile_ops))
    assert distance(now, OBJECTIVE, products) == float("inf"), "its launches had other ops"
    asked = Asked(space=space_with(now), objective=OBJECTIVE, kernel_version="k", num_trials=60)
    (prior,) = choose_priors(asked, [known])
    assert prior.candidate.plan_kind is PlanKind.N_LAUNCHES
    assert prior.candidate.schedule is not None
    assert prior.candidate.schedule.tiling == schedule.tiling


def test_another_heads_kernel_or_a_lone_attention_teaches_nothing() -> None:
    def away(asked: Workload, before: Workload) -> float:
        known = Found(
            workload=before, objective=OBJECTIVE, candidate=LIBRARY, time_us=10.0, speedup=1.1, source="job-1",
            kernel_version="k",
        )  # fmt: skip
        return distance(asked, OBJECTIVE, known)

    assert away(ALONE, ALONE) == 0
    assert away(ALONE, attention(sequences=8)) == 1
    for other in (PAIR, attention(head_dim=128), attention(query_heads=12)):
        assert away(ALONE, other) == float("inf")
    layer, context = decoder_layer("llama3-8b", sequences=1, max_length=700, dtype=Dtype.BF16), between()
    assert away(layer, replace(layer, ops=layer.tile_ops)) < float("inf")
    assert away(replace(layer, ops=layer.tile_ops), layer) == float("inf"), "not the other way round"
    assert away(context, between(sizes={"max_length": 1024})) == 1
    products = replace(context, ops=context.tile_ops)
    for one, other in ((context, products), (products, context)):
        assert away(one, other) == float("inf"), "its launches had other ops"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "now"),
    [
        (attention(max_length=1400), attention(max_length=333)),
        (attention(d_out=512, max_length=1400), attention(d_out=512, max_length=333)),
        (attention(d_out=512), PAGED),
    ],
    ids=["alone", "pair", "pages, which nothing is known of early"],
)
def test_what_was_found_for_another_context_is_made_legal(before: Workload, now: Workload) -> None:
    asked = Asked(space=space_with(now), objective=OBJECTIVE, kernel_version="k", num_trials=60)
    (prior,) = choose_priors(asked, [found(before)])
    assert prior.candidate.schedule is not None
    assert space_with(now).is_legal(prior.candidate.schedule)
    assert prior.is_adapted
