from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, cached_property

import pytest

from tests.support.lanes import one_in, soaked
from tests.support.repeats import REPEATS, VARIATIONS
from tests.support.spaces import space_of
from tuner.core.legal.legality import check_schedule
from tuner.core.problem.gpu import CATALOGUE, Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, InterleaveKind
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tiling
from tuner.core.space.space import Space
from tuner.core.trial.job import Trial
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Outcome, Stage
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search import Searcher
from tuner.search.guesses.seeds import NUM_DRAWN, NUM_SEEDS, policy_guesses, waiting_guesses
from tuner.search.meanwhile import Calls, Take
from tuner.search.model.pool import canonical
from tuner.search.searcher import NUM_SETTLING, REPEAT_EVERY

GPU = CATALOGUE["a40"]
H200 = CATALOGUE["h200"]
Judge = Callable[[Candidate], Outcome]


class FewTilings(Space):
    """A space that can be exhausted."""

    num_kept = 3

    @cached_property
    def tilings(self) -> tuple[Tiling, ...]:
        return super().tilings[: self.num_kept]


def space(m: int = 128, gpu: Gpu = GPU) -> Space:
    return space_of(ffn_pair(m=m, d_in=256, d_hidden=512, d_out=256), gpu)


def time_of(candidate: Candidate) -> Outcome:
    """A made-up time: large tiles and fused kinds are fast; some candidates always fail."""
    schedule = candidate.schedule
    if schedule is None:
        return Measured(time_us=50, library_us=50, speedup=1, spread=0, rounds=(), rel_error=0)
    if int(schedule.digest, 16) % 10 == 0:
        return hang(candidate)
    tiles = schedule.tiling.tiles
    is_apart = candidate.plan_kind.launched_plainly is PlanKind.TWO_LAUNCHES
    time_us = 100 / sum(tile.m + tile.n for tile in tiles) + is_apart
    return Measured(time_us=time_us, library_us=50, speedup=50 / time_us, spread=0, rounds=(), rel_error=0)


def hang(candidate: Candidate) -> Outcome:
    if candidate.schedule is None:
        return time_of(candidate)
    return Failed(stage=Stage.TIME, kind=FailureKind.HANG, reason="a wait never ended")


def trial_of(number: int, candidate: Candidate, judge: Judge) -> Trial:
    outcome = judge(candidate)
    return Trial(number=number, num_known=number, candidate=candidate, outcome=outcome, started_at=0, finished_at=0)


def search(searcher: Searcher, judge: Judge, first: int = 0) -> Iterator[Trial]:
    number = first
    while (candidate := searcher.ask()) is not None:
        trial = trial_of(number, candidate, judge)
        searcher.tell(trial)
        number += 1
        yield trial


def take(searcher: Searcher, judge: Judge, count: int) -> list[Trial]:
    return [trial for trial, _ in zip(search(searcher, judge), range(count), strict=False)]


def test_the_first_three_trials_try_each_plan_kind() -> None:
    kinds = [trial.candidate.plan_kind for trial in take(Searcher(space(), seed=0), time_of, 3)]
    assert kinds == [PlanKind.LIBRARY, PlanKind.FUSED, PlanKind.TWO_LAUNCHES]


@pytest.mark.slow
def test_every_candidate_is_legal_and_tried_once(whole: list[Trial]) -> None:
    here, candidates = space(gpu=H200), [trial.candidate for trial in whole]
    assert len(set(candidates)) == len(whole) == 60
    for candidate in candidates[1:]:
        assert candidate.schedule is not None
        check_schedule(here.workload, here.gpu, candidate.schedule)


@pytest.mark.soak
def test_most_candidates_are_fused() -> None:
    kinds = [trial.candidate.plan_kind for trial in take(Searcher(space(), seed=3), time_of, 120)]
    assert kinds.count(PlanKind.LIBRARY) == 1
    assert 12 <= kinds.count(PlanKind.TWO_LAUNCHES) <= 20
    assert kinds.count(PlanKind.FUSED) >= 0.75 * len(kinds)


@pytest.mark.slow
def test_each_kind_of_the_card_has_its_turn_and_variations_try_the_best_of_what_they_vary(whole: list[Trial]) -> None:
    assert {trial.candidate.plan_kind for trial in whole[:15]} == {kind for kind in PlanKind if kind.is_for(2)}
    for kind, base in VARIATIONS:
        for number, trial in enumerate(whole):
            if trial.candidate.plan_kind is not kind:
                continue
            before = [
                (one.outcome.time_us, one.candidate.schedule)
                for one in whole[:number]
                if one.candidate.plan_kind is base and isinstance(one.outcome, Measured)
            ]
            seen = {one.candidate.schedule for one in whole[:number] if one.candidate.plan_kind is kind}
            best = [canonical(kind, schedule) for _, schedule in sorted(before, key=lambda one: one[0]) if schedule]
            assert trial.candidate.schedule == next(schedule for schedule in best if schedule not in seen)


@pytest.mark.slow
@pytest.mark.parametrize(("num_trials", "begins"), [(20, True), *soaked((60, True), (60, False))])
def test_what_is_drawn_is_foreseen_only_where_somebody_draws_it_meanwhile(num_trials: int, begins: bool) -> None:
    def begin(calls: Calls) -> Take:
        return lambda name: calls[name]()

    searcher = Searcher(space(gpu=H200), seed=0, num_trials=num_trials, begin=begin if begins else None)
    foreseen = [candidate for _ in range(2 * NUM_SEEDS) if (candidate := searcher.foresee())]
    assert (len(foreseen) > NUM_SEEDS - NUM_DRAWN) == (num_trials == 60 and begins)
    assert len(foreseen) == len(set(foreseen)) >= NUM_SEEDS - NUM_DRAWN


def programmatically(factor: float) -> Judge:
    """A judge for which programmatic launches take `factor` times as long."""

    def judge(candidate: Candidate) -> Outcome:
        outcome = time_of(candidate)
        if not candidate.plan_kind.is_programmatic or not isinstance(outcome, Measured):
            return outcome
        return replace(outcome, time_us=factor * outcome.time_us, speedup=outcome.speedup / factor)

    return judge


@pytest.fixture(scope="module")
def behind_and_ahead() -> tuple[list[Trial], list[Trial]]:
    """Searches on cards where programmatic launches are much slower than others, and faster."""
    behind, ahead = (
        take(Searcher(space(gpu=H200), seed=1, num_trials=60), programmatically(factor), 60) for factor in (20.0, 0.9)
    )
    return behind, ahead


@pytest.mark.slow
def test_variations_that_are_ahead_have_more_turns_behind_the_first_guesses_and_both_sides_have(
    behind_and_ahead: tuple[list[Trial], list[Trial]],
) -> None:
    tried = zip(("behind", "ahead"), behind_and_ahead, strict=True)
    counts = {name: Counter(one.candidate.plan_kind for one in trials) for name, trials in tried}
    for kind in (PlanKind.FUSED_PDL, PlanKind.TWO_LAUNCHES_PDL):
        assert counts["ahead"][kind] >= counts["behind"][kind] + 2
    assert counts["ahead"][PlanKind.FUSED] >= NUM_SEEDS


def schedules_of(trials: list[Trial], kind: PlanKind) -> set[Schedule | None]:
    return {trial.candidate.schedule for trial in trials if trial.candidate.plan_kind is kind}


@pytest.mark.slow
def test_where_programmatic_launches_are_ahead_choices_are_launched_so_at_once(
    behind_and_ahead: tuple[list[Trial], list[Trial]],
) -> None:
    behind, ahead = behind_and_ahead
    for plain, kind in ((PlanKind.FUSED, PlanKind.FUSED_PDL), (PlanKind.TWO_LAUNCHES, PlanKind.TWO_LAUNCHES_PDL)):
        assert schedules_of(ahead, kind) - schedules_of(ahead, plain)
        assert schedules_of(behind, kind) <= schedules_of(behind, plain)
    again = Searcher(space(gpu=H200), seed=1, num_trials=60, history=ahead[:45])
    assert [again.ask()] == [ahead[45].candidate]


@pytest.mark.soak
def test_the_best_is_soon_tried_with_a_first_wave() -> None:
    """Such a schedule is slightly faster here, and nothing else about the order matters."""

    def judge(candidate: Candidate) -> Outcome:
        outcome = time_of(candidate)
        has_wave = candidate.schedule and candidate.schedule.ordering.assignment is Assignment.FIRST_WAVE
        if not has_wave or not isinstance(outcome, Measured):
            return outcome
        return replace(outcome, time_us=0.99 * outcome.time_us, speedup=outcome.speedup / 0.99)

    here = space(m=16, gpu=H200)
    trials = take(Searcher(here, seed=2, num_trials=40), judge, 40)
    best = best_of(trials, PlanKind.FUSED).schedule
    assert best
    waved = best.but(ordering=replace(best.ordering, assignment=Assignment.FIRST_WAVE))
    assert best == waved or not here.is_legal(waved)


def best_of(trials: list[Trial], kind: PlanKind) -> Candidate:
    """The fastest candidate of a kind."""
    measured = [
        (trial.outcome.time_us, trial.number, trial.candidate)
        for trial in trials
        if trial.candidate.plan_kind is kind and isinstance(trial.outcome, Measured)
    ]
    return min(measured, key=lambda one: one[:2])[2]


def as_kind(kind: PlanKind, candidate: Candidate) -> Candidate:
    assert candidate.schedule is not None
    return Candidate(plan_kind=kind, schedule=canonical(kind, candidate.schedule))


@pytest.mark.slow
def test_a_better_fused_schedule_is_soon_launched_twice_too(whole: list[Trial]) -> None:
    """Within two more trials, because another schedule may have its turn in between."""
    num_stays = 0
    for number in range(REPEAT_EVERY + 8, len(whole)):
        best = best_of(whole[:number], PlanKind.FUSED)
        if best == best_of(whole[: number - REPEAT_EVERY - 2], PlanKind.FUSED):
            num_stays += 1
            assert as_kind(PlanKind.TWO_LAUNCHES, best) in [trial.candidate for trial in whole[:number]]
    assert num_stays > 5


@cache
def of_a_budget(num_trials: int) -> list[Trial]:
    return take(Searcher(space(gpu=H200), seed=7, num_trials=num_trials), time_of, num_trials)


@pytest.mark.slow
@pytest.mark.parametrize("num_trials", [16, *soaked(18), 40])
def test_at_the_end_of_a_budget_every_kind_has_tried_what_is_best(num_trials: int) -> None:
    trials = of_a_budget(num_trials)
    tried = [trial.candidate for trial in trials]
    for kind, base in REPEATS:
        best = {best_of(trials[: -len(REPEATS)], base), best_of(trials, base)}  # a better one may come at the very end
        assert any(as_kind(kind, one) in tried for one in best), kind


@pytest.mark.slow
def test_near_the_end_of_a_budget_the_model_varies_the_order_of_what_is_built() -> None:
    trials = of_a_budget(40)
    first = 40 - len(REPEATS) - NUM_SETTLING
    late = [trial for trial in trials[first:] if trial.candidate.plan_kind is PlanKind.FUSED]
    assert late, "the case tests nothing"
    for trial in late:
        before = {one.candidate.schedule.tiling for one in trials[: trial.number] if one.candidate.schedule}
        assert trial.candidate.schedule
        assert trial.candidate.schedule.tiling in before


def test_a_tiny_budget_is_not_spent_on_the_last_trials() -> None:
    kinds = [trial.candidate.plan_kind for trial in take(Searcher(space(gpu=H200), seed=7, num_trials=6), time_of, 6)]
    assert kinds.count(PlanKind.FUSED) >= 2


@pytest.fixture(scope="module")
def whole() -> list[Trial]:
    """An uninterrupted search."""
    return take(Searcher(space(gpu=H200), seed=7), time_of, 60)


@pytest.mark.slow
@pytest.mark.parametrize("stop", one_in(6, [34, 1, 2, 9, 13, 40]))
def test_a_search_goes_on_after_a_restart_as_if_nothing_had_happened(stop: int, whole: list[Trial]) -> None:
    searcher = Searcher(space(gpu=H200), seed=7, history=whole[:stop])
    rest = [trial for trial, _ in zip(search(searcher, time_of, stop), range(60 - stop), strict=False)]
    assert whole[:stop] + rest == whole


def test_the_best_first_guess_is_tried_in_other_orders_and_these_are_few(whole: list[Trial]) -> None:
    here = space(gpu=H200)
    fused = [trial for trial in whole if trial.candidate.plan_kind is PlanKind.FUSED]
    best = best_of(fused[:NUM_SEEDS], PlanKind.FUSED).schedule
    assert best is not None
    orders = policy_guesses(here, best)
    assert 1 <= len(orders) == len(set(orders)) <= 3
    tried = [trial.candidate.schedule for trial in fused]
    assert [tried.count(order) for order in orders] == [1] * len(orders)
    new = [order for order in (*waiting_guesses(here, best), *orders) if order not in tried[:NUM_SEEDS]]
    assert new == tried[NUM_SEEDS : NUM_SEEDS + len(new)]


@pytest.mark.soak
def test_another_seed_is_another_search() -> None:
    one, other = ({t.candidate for t in take(Searcher(space(), seed=seed), time_of, 30)} for seed in (1, 2))
    assert len(one & other) < 15


@pytest.mark.slow
def test_a_small_space_is_tried_as_a_whole_and_then_the_search_ends() -> None:
    here = FewTilings(ffn_pair(m=16, d_in=64, d_hidden=64, d_out=64), GPU)
    fused = {Candidate(plan_kind=PlanKind.FUSED, schedule=schedule) for schedule in here}
    apart = {
        Candidate(plan_kind=PlanKind.TWO_LAUNCHES, schedule=canonical(PlanKind.TWO_LAUNCHES, schedule))
        for schedule in here
    }
    trials = list(search(Searcher(here, seed=0), time_of))
    beside = {
        Candidate(plan_kind=PlanKind.TWO_STREAMS, schedule=canonical(PlanKind.TWO_STREAMS, trial.candidate.schedule))
        for trial in trials
        if trial.candidate in fused and trial.candidate.schedule and isinstance(trial.outcome, Measured)
    }
    tried = [trial.candidate for trial in trials]
    assert len(tried) == len(set(tried))
    assert set(tried) == fused | apart | beside | {Candidate(plan_kind=PlanKind.LIBRARY)}


@pytest.mark.slow
def test_a_search_in_which_all_of_ours_fails_goes_on() -> None:
    assert len(take(Searcher(space(), seed=0), hang, 30)) == 30


@pytest.mark.soak
def test_failures_count_as_bad_so_that_the_search_leaves_their_neighbourhood() -> None:
    """All schedules with 8 warps fail but would be the fastest, so a search that ignored failures would stay there."""

    def fails_with_8_warps(candidate: Candidate) -> Outcome:
        bad = candidate.schedule is not None and candidate.schedule.tiling.num_warps == 8
        return hang(candidate) if bad else time_of(candidate)

    late = take(Searcher(space(), seed=0), fails_with_8_warps, 120)[60:]
    failed = sum(t.candidate.schedule is not None and t.candidate.schedule.tiling.num_warps == 8 for t in late)
    offered = sum(tiling.num_warps == 8 for tiling in space().tilings) / len(space().tilings)
    assert failed / len(late) < 0.75 * offered


@pytest.mark.slow
def test_separate_launches_neither_interleave_nor_wait_and_stay_legal() -> None:
    here = space(512)
    for schedule in here.sample(random.Random(0), 300):
        plain = canonical(PlanKind.TWO_LAUNCHES, schedule)
        assert plain.ordering.interleave.kind is InterleaveKind.PRODUCER_FIRST
        assert plain.ordering.granularity is Granularity.ROW
        check_schedule(here.workload, here.gpu, plain)
        assert canonical(PlanKind.FUSED, schedule) == schedule


@pytest.mark.slow
def test_two_streams_keep_the_signals_and_take_queues_and_stay_legal() -> None:
    here = space(512)
    for schedule in here.sample(random.Random(0), 100):
        beside = canonical(PlanKind.TWO_STREAMS, schedule)
        assert beside.ordering.granularity is schedule.ordering.granularity
        assert beside.ordering.assignment.is_static
        plans_for(here.workload, here.gpu, Candidate(plan_kind=PlanKind.TWO_STREAMS, schedule=beside))


@pytest.mark.slow
def test_candidates_on_their_way_are_not_given_again_whatever_order_they_are_reported_in() -> None:
    searcher = Searcher(space(gpu=H200), seed=0)
    draw, given, number = random.Random(0), list[Candidate](), 0
    on_their_way: list[Candidate] = []
    while number < 40:
        while len(on_their_way) < 8 and (candidate := searcher.ask()):
            on_their_way.append(candidate)
            given.append(candidate)
        candidate = on_their_way.pop(draw.randrange(len(on_their_way)))
        searcher.tell(trial_of(number, candidate, time_of))
        number += 1
    assert len(set(given)) == len(given)
    assert {candidate.plan_kind for candidate in given} == {kind for kind in PlanKind if kind.is_for(2)}


@pytest.mark.slow
def test_priors_are_tried_behind_the_library_and_once() -> None:
    here = space(gpu=H200)
    drawn = here.sample(random.Random(5), 3)
    priors = [Candidate(plan_kind=PlanKind.FUSED, schedule=schedule) for schedule in (*drawn, drawn[0])]
    priors.append(Candidate(plan_kind=PlanKind.FUSED_PDL, schedule=drawn[1]))
    trials = take(Searcher(here, seed=0, priors=priors), time_of, 40)
    assert [trial.candidate for trial in trials[1:5]] == [*priors[:3], priors[4]]
    assert len({trial.candidate for trial in trials}) == 40


# In CI, test_meanwhile.py takes calls done elsewhere in any order.
@pytest.mark.soak
def test_thinking_ahead_changes_no_choice_and_ends() -> None:
    plain, ahead = (Searcher(space(), seed=5, num_trials=60) for _ in range(2))
    chosen = [trial.candidate for trial in take(plain, time_of, 45)]
    num_pieces = 0
    for number, trial in enumerate(search(ahead, time_of)):
        assert trial.candidate == chosen[number]
        while ahead.think_ahead():
            num_pieces += 1
        if number == len(chosen) - 1:
            break
    assert 3 <= num_pieces < 60
    assert not Searcher(space(), seed=5, num_trials=12).think_ahead(), "a small budget may never come to it"
