"""Which candidates reach the finals, how close the others must come, and the contents of a final's row."""

from __future__ import annotations

from dataclasses import replace

from tests.support.builders import failed, measured, trial
from tuner.core.problem.objective import CacheState, FinalsProcedure, LaunchStyle, Procedure, Regime
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import FinalsTimes
from tuner.core.trial.job import Trial
from tuner.service.finals.finals import MAX_SHARED, best_speedup, choose_finalists, given_ones, judge

LIBRARY = trial(0, measured(100.0), PlanKind.LIBRARY)


def test_a_truncated_trial_is_a_finalist_only_where_its_kind_has_no_other() -> None:
    history = [
        LIBRARY,
        trial(1, measured(60.0, truncated=True)),
        trial(2, measured(80.0)),
        trial(3, measured(90.0, truncated=True), PlanKind.TWO_LAUNCHES),
        trial(4, measured(95.0, truncated=True), PlanKind.TWO_LAUNCHES),
    ]
    assert [one.number for one in choose_finalists(history)] == [0, 3, 2]


def test_a_library_that_was_slow_beside_a_trial_does_not_keep_a_faster_one_from_the_finals() -> None:
    kind = PlanKind.TWO_LAUNCHES_PDL
    slow = trial(1, measured(30.0, library_us=41.0, speedup=41.0 / 30.0), kind)
    fast = trial(2, measured(27.7, library_us=37.0, speedup=37.0 / 27.7), kind)
    hardly_faster = trial(3, measured(29.5, library_us=39.0, speedup=39.0 / 29.5), kind)
    truncated = trial(4, measured(20.0, library_us=20.0, speedup=1.0, truncated=True), kind)
    assert [one.number for one in choose_finalists([LIBRARY, slow, hardly_faster, truncated])] == [0, 1]
    assert [one.number for one in choose_finalists([LIBRARY, slow, fast, hardly_faster, truncated])] == [0, 1, 2]
    slower_library = trial(5, measured(110.0, library_us=120.0, speedup=120.0 / 110.0), PlanKind.LIBRARY)
    assert [one.number for one in choose_finalists([LIBRARY, slower_library])] == [5], (
        "there is one finalist of the library"
    )


def test_under_sustained_load_a_shorter_time_may_be_that_of_a_higher_clock() -> None:
    sustained = Procedure(l2=CacheState.COLD, regime=Regime.SUSTAINED, launch=LaunchStyle.PLAIN, chain_length=8)

    def under_load(number: int, time_us: float, library_us: float) -> Trial:
        outcome = measured(time_us, library_us=library_us, speedup=library_us / time_us)
        return trial(number, replace(outcome, procedure=sustained), PlanKind.TWO_STREAMS)

    history = [LIBRARY, under_load(1, 741.8, 710.0), under_load(2, 716.5, 680.0)]
    assert [one.number for one in choose_finalists(history)] == [0, 1]


def test_the_incumbent_is_the_best_of_ours_whose_rounds_did_not_end_early() -> None:
    assert best_speedup([LIBRARY, trial(1, failed())]) is None
    assert best_speedup([LIBRARY, trial(1, measured(200.0)), trial(2, measured(50.0, truncated=True))]) == 0.5
    assert best_speedup([trial(3, measured(125.0))], 0.5) == 0.8
    assert best_speedup([trial(3, failed())], 0.5) == 0.5


def test_a_row_tells_the_energy_of_a_run_and_how_many_rounds_count() -> None:
    finalists = (LIBRARY, trial(1, measured(50.0)), trial(2, measured(60.0)))
    times = FinalsTimes(
        times_us=((100.0,) * 6, (50.0,) * 6, None),
        reasons=("", "", "it hung"),
        process_of_round=(0, 0, 0, 1, 1, 1),
        num_dropped=2,
    )
    judgement = judge(finalists, times, FinalsProcedure(), (70.0, 40.0, None))
    assert [row.energy_mj for row in judgement.rows] == [70.0, 40.0, None]
    assert [(row.num_rounds, row.num_dropped) for row in judgement.rows] == [(6, 2), (6, 2), (0, 2)]
    assert judgement.to_json()["energy_mj"] == 40.0
    without_energy = judge(finalists, times, FinalsProcedure())
    assert [row.energy_mj for row in without_energy.rows] == [None] * 3


def test_of_more_given_schedules_than_share_rounds_the_fastest_do() -> None:
    given = [trial(number, measured(200.0 - number)) for number in range(1, MAX_SHARED + 11)]
    chosen = given_ones([LIBRARY, *given], {one.candidate for one in given})
    assert [one.number for one in chosen] == list(range(11, MAX_SHARED + 11))
