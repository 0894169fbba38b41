"""What the replay of previews says: which candidates near the best a rule drops, and how sure that is."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.common.kept import kept_for
from benchmarks.common.rows import choose_rows
from benchmarks.common.setting import twin_of
from benchmarks.trust.previews import Seen, in_other_orders, of_orders, of_search, of_winners
from benchmarks.trust.replay import judge, main
from tests.support.builders import measured
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.trial.samples import DropReason, Round
from tuner.core.trial.stats import proportion_upper_bound
from tuner.workers.timing.clocks import Sample
from tuner.workers.timing.rounds import is_hopeless_by, is_previewed_enough, summary, to_previews
from tuner.workers.timing.stop_rules import PREVIEW

PROCEDURE = Procedure(l2=CacheState.COLD, regime=Regime.SUSTAINED, launch=LaunchStyle.PLAIN, chain_length=8)


def seen(previewed: float, ended: float) -> Seen:
    return Seen(previewed=(previewed,) * 5, rounds=(ended,) * 8, rounds_s=1.0)


@pytest.mark.parametrize(
    ("hits", "num", "bound"),
    [(0, 150, 0.0198), (0, 100, 0.0295), (1, 150, 0.0312), (3000, 6000, 0.5107), (5, 5, 1.0), (0, 0, 1.0)],
)
def test_an_upper_bound_of_a_share_is_that_of_clopper_and_pearson(hits: int, num: int, bound: float) -> None:
    assert proportion_upper_bound(hits, num) == pytest.approx(bound, abs=2e-4)


def test_more_hits_than_tries_are_an_error() -> None:
    with pytest.raises(ValueError, match="3 hits of 2"):
        proportion_upper_bound(3, 2)


def test_a_candidate_near_the_best_that_its_preview_belies_counts_as_dropped() -> None:
    searches = [[seen(1.0, 1.0), seen(0.5, 0.6), seen(0.5, 0.99), seen(1.0, 1.0)]]
    row = judge(searches, 0.85)
    assert (row["near"], row["near_dropped"], row["dropped"], row["candidates"]) == (3, 1, 2, 4)
    assert (row["saved_share"], row["holds"]) == (0.5, False)
    assert judge(searches, 0.4)["dropped"] == 0


def test_nothing_is_dropped_before_there_is_an_incumbent_and_what_is_dropped_becomes_none() -> None:
    assert judge([[seen(0.1, 1.0)]], 0.85)["dropped"] == 0
    belied = [seen(1.0, 1.0), seen(0.5, 2.0), seen(0.9, 1.0)]
    assert judge([belied], 0.85)["dropped"] == 1, "the third is compared with the first"


def test_the_bar_takes_150_candidates_near_the_best() -> None:
    assert judge([[seen(1.0, 1.0)] * 150], 0.85)["holds"]
    assert not judge([[seen(1.0, 1.0)] * 140], 0.85)["holds"]


def preview(speedup: float, count: int = 5, clock: float = 1.0) -> tuple[Round, ...]:
    """By times; the library's clock is 1000 MHz, and the candidate's that times `clock`."""
    own = Sample(time_us=10.0, clock_mhz=round(1000 * clock))
    return to_previews([own] * count, [Sample(time_us=10.0 * speedup, clock_mhz=1000)] * count)


def test_a_preview_drops_what_is_clearly_behind_the_incumbent_and_nothing_else() -> None:
    assert is_hopeless_by(preview(0.8), 1.0)
    assert not is_hopeless_by(preview(0.9), 1.0)
    assert not is_hopeless_by(preview(0.8), None)
    assert not is_hopeless_by(preview(0.8, 4), 1.0), "four samples are too few to be sure"
    assert not is_hopeless_by((*preview(0.8, 4), *preview(0.9, 1)), 1.0), "one of five says otherwise"


@pytest.mark.parametrize(
    ("rounds", "incumbent", "expected"),
    [
        (preview(0.9, 1), 1.0, True),
        (preview(0.8, 4), 1.0, False),
        ((*preview(0.8, 3), *preview(0.9, 1)), 1.0, True),
        (preview(0.8), 1.0, True),
        (preview(2.0, 4), None, False),
        (preview(2.0), None, True),
        ((), 1.0, False),
    ],
)
def test_a_preview_ends_where_a_sample_says_that_it_drops_nobody_and_is_whole_without_an_incumbent(
    rounds: tuple[Round, ...], incumbent: float | None, expected: bool
) -> None:
    assert is_previewed_enough(rounds, incumbent) is expected


def test_a_preview_that_ends_early_says_what_a_whole_one_would_say() -> None:
    draw = random.Random(0)
    for _ in range(2000):
        whole = tuple(one for _ in range(5) for one in preview(draw.uniform(0.7, 1.0), 1))
        enough = next(count for count in range(6) if is_previewed_enough(whole[:count], 1.0))
        assert is_hopeless_by(whole[:enough], 1.0) == is_hopeless_by(whole, 1.0)


def test_a_preview_is_judged_at_one_clock() -> None:
    assert is_hopeless_by(preview(0.9, clock=1.1), 1.0), "it was as fast by its clock alone"
    assert not is_hopeless_by(preview(0.8, clock=0.9), 1.0), "it was slow by its clock alone"
    found = summary(preview(0.9, clock=1.2), PROCEDURE, truncated=True, library_us=12.0)
    assert (found.speedup, found.time_us) == (pytest.approx(0.75), pytest.approx(16.0))


def test_without_a_clock_its_times_are_compared() -> None:
    unknown = to_previews([Sample(time_us=10.0)] * 5, [Sample(time_us=8.0, clock_mhz=1000)] * 5)
    assert is_hopeless_by(unknown, 1.0)
    assert not is_hopeless_by(unknown, 0.9)


def test_of_a_preview_alone_the_ratio_tells_and_its_time_is_that_of_earlier_rounds() -> None:
    found = summary(preview(0.8), PROCEDURE, truncated=True, library_us=12.0)
    assert (found.speedup, found.library_us, found.time_us) == (pytest.approx(0.8), 12.0, pytest.approx(15.0))
    assert "no round was taken" in found.remark
    assert {metric.tag: metric.value for metric in found.metrics}["num_rounds"] == 0


def test_previews_in_front_of_rounds_change_no_figure() -> None:
    rounds = tuple(Round(time_us=20.0, library_us=22.0) for _ in range(8))
    alone, behind = (
        summary(some, PROCEDURE, truncated=False, library_us=5.0) for some in (rounds, (*preview(0.5), *rounds))
    )
    assert (alone.time_us, alone.speedup, alone.metrics, alone.remark) == (
        behind.time_us,
        behind.speedup,
        behind.metrics,
        behind.remark,
    )
    assert [one.dropped for one in behind.rounds][:6] == [DropReason.PREVIEW] * 5 + [None]
    assert measured(1.0).rounds[0].dropped is None


def test_the_program_runs_on_the_simulated_gpu_and_goes_on_from_what_it_kept(tmp_path: Path) -> None:
    out, cache = tmp_path / "preview.json", tmp_path / "kept.json"
    arguments = ["--gpu", "simulated:h200", "--quick", "--out", str(out), "--cache", str(cache)]
    main(arguments)
    first, kept = json.loads(out.read_text())["rows"], cache.read_bytes()
    assert first[0]["check"] == "near_the_best_and_dropped"
    assert 0 < first[0]["near"] <= first[0]["candidates"] <= 5
    main(arguments)
    assert (json.loads(out.read_text())["rows"], cache.read_bytes()) == (first, kept)


def test_kept_winners_are_measured_row_by_row() -> None:
    row = choose_rows(names=["prefill-swiglu/llama3-8b/m512"])[0]
    twin = twin_of("simulated:h200")
    assert twin
    with closing(twin):
        ((name, found),) = of_winners(twin, [row])
    assert name == row.name
    assert len(found) >= 5
    assert {len(one.previewed) for one in found} == {PREVIEW.min_rounds}


def test_the_fastest_kept_winner_is_measured_in_other_orders_of_its_kernel() -> None:
    row = choose_rows(names=["prefill-swiglu/llama3-8b/m512"])[0]
    twin = twin_of("simulated:h200")
    assert twin
    best = kept_for(row.name, "h200")[0].candidate
    assert best.schedule
    first, *others = in_other_orders(row, twin.target.gpu, best, 5)
    assert first == best
    assert len({one.schedule for one in others} - {best.schedule}) == 5
    assert {(one.plan_kind, one.schedule and one.schedule.tiling) for one in others} == {
        (best.plan_kind, best.schedule.tiling)
    }
    _, *all_orders = in_other_orders(row, twin.target.gpu, best, 100)
    times_us = sorted(forecast_us(row.workload, twin.target.gpu, one) for one in all_orders)
    chosen_us = [forecast_us(row.workload, twin.target.gpu, one) for one in others]
    assert chosen_us == sorted(chosen_us)
    assert chosen_us[-1] <= times_us[3 * len(times_us) // 4], "the shorter half of what was drawn"
    with closing(twin):
        ((name, found),) = of_orders(twin, [row], 5)
    assert name == row.name
    assert len(found) == 6


def test_two_runs_share_the_rows_and_a_third_judges_what_both_measured(tmp_path: Path) -> None:
    rows = ["prefill-swiglu/llama3-8b/m512", "prefill-plain/gpt3-tp8/m512"]
    named = [word for row in rows for word in ("--row", row)]
    caches = [tmp_path / "0.json", tmp_path / "1.json"]
    for i, cache in enumerate(caches):
        run = ["--gpu", "simulated:h200", "--kept", "--share", f"{i}/2", "--cache", str(cache)]
        main([*run, *named, "--out", str(tmp_path / f"out{i}.json")])
        assert list(json.loads(cache.read_text())) == [f"kept {rows[i]}"]
    before, out = [cache.read_bytes() for cache in caches], tmp_path / "both.json"
    meta = ["--meta", str(tmp_path / "out0.json")]
    main([*meta, "--cache", str(caches[0]), "--cache", str(caches[1]), "--out", str(out)])
    assert [cache.read_bytes() for cache in caches] == before
    found = json.loads(out.read_text())["rows"][0]
    alone = [json.loads((tmp_path / f"out{i}.json").read_text())["rows"][0] for i in range(2)]
    assert found["candidates"] == sum(one["candidates"] for one in alone)


@pytest.mark.slow
def test_a_job_in_which_nothing_is_dropped_gives_the_previews_and_all_rounds_of_each_candidate() -> None:
    twin = twin_of("simulated:h200")
    assert twin is not None
    with closing(twin):
        found = of_search(twin, choose_rows(names=["middle/llama3-8b/m256"])[0], 0, 12)
    assert len(found) >= 8
    assert min(one.speedup for one in found) < PREVIEW.share * max(one.speedup for one in found), "one is hopeless"
    assert {len(one.previewed) for one in found} == {PREVIEW.min_rounds}
    least = min(len(one.rounds) for one in found)
    assert least >= 6, "a period of the clock at the power limit"
