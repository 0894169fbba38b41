"""Timing on a GPU: clocks, repeatability, energy, and early termination of hopeless candidates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.support.on_card import fused, problem, run, schedule
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Problem
from tuner.core.trial.outcome import Measured
from tuner.core.trial.samples import whole
from tuner.core.trial.stats import median
from tuner.errors import WorkerError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare
from tuner.workers.host.cards import Card
from tuner.workers.source.tools import tools_source

pytest.importorskip("cupy")


from tuner.workers.gpu.measuring.card import CardView
from tuner.workers.gpu.measuring.timing import Timer
from tuner.workers.gpu.session import Session

#: An FFN at 64 rows with half the sizes of an 8-billion-parameter model; only its chain is cold.
WORKLOAD = ffn_pair(m=64, d_in=2048, d_hidden=7168, d_out=2048)
GOOD = schedule(((64, 64, 64), (64, 64, 64)), stages=4)
#: The same in tiles so small that each weight is read four times.
TINY = schedule(((16, 32, 32), (16, 32, 32)), stages=2)


@pytest.fixture(scope="module")
def watched(card: Card, builder: Builder, gpu: Gpu) -> Session:
    """Runs the child's measurement in this process, while watching the GPU."""
    view = CardView(card.uuid)
    session = Session(builder.build(tools_source(gpu.arch), gpu.arch).cubin, view)
    view.remember_own()
    return session


def asked_in(regime: Regime, l2: CacheState = CacheState.COLD) -> Problem:
    asked = problem(WORKLOAD)
    return replace(asked, objective=replace(asked.objective, regime=regime, l2=l2))


def ready(builder: Builder, gpu: Gpu, candidate: Candidate) -> PreparedKernel:
    prepared = prepare(WORKLOAD, gpu, candidate, builder, {})
    assert not prepared.refusal
    return prepared


@pytest.mark.parametrize("regime", list(Regime))
def test_every_sample_has_a_clock_that_the_card_can_run_at(
    watched: Session, builder: Builder, gpu: Gpu, regime: Regime
) -> None:
    measured = run(watched, builder, gpu, asked_in(regime), fused(GOOD))
    clocks = [mhz for one in measured.rounds for mhz in (one.clock_mhz, one.library_clock_mhz)]
    assert all(1000 <= mhz <= 2100 for mhz in clocks), clocks
    assert measured.procedure == Procedure(l2=CacheState.COLD, regime=regime, launch=LaunchStyle.PLAIN, chain_length=8)
    figures = {metric.tag: metric.value for metric in measured.metrics}
    assert figures["num_rounds"] == len(whole(measured.rounds))
    assert measured.remark == "", (measured.remark, clocks)


def test_a_reading_in_front_and_behind_covers_every_sm(watched: Session) -> None:
    prepared = watched._prepare(asked_in(Regime.BURST))
    timer = prepared.timer
    timer.sample(prepared.library_graph)
    readings = timer._readings.get()[:, : timer._num_sms]
    covered = (readings[:, :, 0] == timer._num_samples).all(axis=0)
    assert covered.sum() >= 0.9 * timer._num_sms


@dataclass(frozen=True)
class Late:
    """A graph that is launched after `wait` has elapsed."""

    graph: Any
    wait: Callable[[], object]

    def launch(self, stream: Any) -> None:
        self.wait()
        self.graph.launch(stream)


def test_what_the_host_takes_to_launch_a_graph_is_not_in_its_time(watched: Session) -> None:
    prepared = watched._prepare(asked_in(Regime.BURST))
    timer, graph = Timer(prepared.data, watched._tools), prepared.library_graph
    graphs = [graph, Late(graph, lambda: time.sleep(0.001))]
    at_once, late = timer.rounds(graphs, lambda tracks, _: len(tracks[0]) == 12)
    assert median([one.time_us for one in late]) == pytest.approx(median([one.time_us for one in at_once]), rel=0.02)


def test_a_host_that_is_always_late_is_told(watched: Session) -> None:
    prepared = watched._prepare(asked_in(Regime.BURST))
    timer = Timer(prepared.data, watched._tools)
    with pytest.raises(WorkerError, match="the host launched too late 9 times in a row"):
        timer.sample(Late(prepared.library_graph, timer.wait_for_sample))


@pytest.mark.parametrize("regime", list(Regime))
def test_the_same_candidate_twice_takes_the_same_time(
    watched: Session, builder: Builder, gpu: Gpu, regime: Regime
) -> None:
    first, again = (run(watched, builder, gpu, asked_in(regime), fused(GOOD)) for _ in range(2))
    assert again.speedup == pytest.approx(first.speedup, rel=0.03), (first, again)
    assert again.time_us == pytest.approx(first.time_us, rel=0.03)


def test_a_trial_in_burst_is_timed_within_half_a_second(watched: Session, builder: Builder, gpu: Gpu) -> None:
    run(watched, builder, gpu, asked_in(Regime.BURST), fused(GOOD))
    measured = run(watched, builder, gpu, asked_in(Regime.BURST), fused(GOOD))
    assert measured.stage_s["time"] < 0.5
    assert list(measured.stage_s) == ["prepare", "load", "check", "time", "check_after"]


@pytest.mark.parametrize(("shares_first", "samples_and_loads"), [(False, 3.0), (True, 2.5)])
def test_a_round_under_sustained_load_takes_three_times_its_load(
    watched: Session, shares_first: bool, samples_and_loads: float
) -> None:
    """A round has two samples and one load; for the second graph, the preceding sample is the load. Every other round
    reuses a sample. Each lasts the whole number of launches nearest to 40 ms."""
    prepared = watched._prepare(asked_in(Regime.SUSTAINED))
    graphs, num_rounds, begin_s = [prepared.library_graph] * 2, 8, time.perf_counter()
    tracks = prepared.timer.rounds(graphs, lambda tracks, _: len(tracks[0]) == num_rounds, shares_first=shares_first)
    took_s = time.perf_counter() - begin_s
    assert [len(track) for track in tracks] == [num_rounds] * 2
    assert len(set(map(id, tracks[0]))) == (5 if shares_first else num_rounds)
    assert len(set(map(id, tracks[1]))) == num_rounds
    assert 0.038 * (samples_and_loads * num_rounds + 1) < took_s < 0.045 * (samples_and_loads * num_rounds + 1.5)


def test_the_card_is_kept_busy_until_the_next_candidate_comes_and_no_longer_than_is_worth_it(watched: Session) -> None:
    timer = watched._prepare(asked_in(Regime.SUSTAINED)).timer
    begin_s = time.perf_counter()
    watched.await_busily(lambda: time.perf_counter() - begin_s > 0.02)
    assert not timer.stream.done, "the last launch is still running"
    timer.rest()
    assert 0.02 < time.perf_counter() - begin_s < 0.04
    begin_s = time.perf_counter()
    watched.await_busily(lambda: False)
    timer.rest()
    assert 2.0 < time.perf_counter() - begin_s < 2.1


def test_in_burst_the_card_is_left_alone_between_candidates(watched: Session) -> None:
    timer, begin_s = watched._prepare(asked_in(Regime.BURST)).timer, time.perf_counter()
    watched.await_busily(lambda: False)
    assert timer.stream.done
    assert time.perf_counter() - begin_s < 0.01


def test_finals_behind_an_idle_card_settle_it_first_under_sustained_load_alone(
    watched: Session, builder: Builder, gpu: Gpu
) -> None:
    works = (ready(builder, gpu, Candidate(plan_kind=PlanKind.LIBRARY)).work,)
    settled, at_once = (watched.finals(asked_in(regime), works, 1) for regime in (Regime.SUSTAINED, Regime.BURST))
    assert 4.0 < settled.stage_s["time"] < 4.5
    assert at_once.stage_s["time"] < 0.5


def test_warm_is_not_slower_than_cold(watched: Session, builder: Builder, gpu: Gpu) -> None:
    small = problem(ffn_pair(m=64, d_in=512, d_hidden=2048, d_out=512))
    warm_asked = replace(small, objective=replace(small.objective, l2=CacheState.WARM))
    cold, warm = (run(watched, builder, gpu, asked, fused(GOOD)) for asked in (small, warm_asked))
    assert warm.time_us < 1.02 * cold.time_us
    assert (cold.procedure.l2, warm.procedure.l2) == (CacheState.COLD, CacheState.WARM)  # type: ignore[union-attr]


def test_what_is_certainly_worse_ends_early_and_keeps_its_time(watched: Session, builder: Builder, gpu: Gpu) -> None:
    asked = asked_in(Regime.BURST)
    good = run(watched, builder, gpu, asked, fused(GOOD))
    work = ready(builder, gpu, fused(TINY)).work
    whole = watched.evaluate(asked, work).outcome
    early = watched.evaluate(asked, work, good.speedup).outcome
    assert isinstance(whole, Measured)
    assert isinstance(early, Measured)
    assert whole.speedup < 0.7 * good.speedup, "the planted candidate is not slow"
    assert (whole.truncated, early.truncated) == (False, True)
    assert 5 <= len(early.rounds) < len(whole.rounds)
    assert early.time_us == pytest.approx(whole.time_us, rel=0.05)
    library = Candidate(plan_kind=PlanKind.LIBRARY)
    unhurt = watched.evaluate(asked, ready(builder, gpu, library).work, 100.0).outcome
    assert isinstance(unhurt, Measured)
    assert not unhurt.truncated


def test_the_energy_of_a_run_is_its_time_at_a_plausible_power(watched: Session, builder: Builder, gpu: Gpu) -> None:
    asked, work = asked_in(Regime.SUSTAINED), ready(builder, gpu, fused(GOOD)).work
    outcome, report = watched.evaluate(asked, work).outcome, watched.energy(asked, work).report
    assert isinstance(outcome, Measured)
    assert report.run_mj is not None, report.reason
    assert 100 < report.power_w < 800
    assert 1.0 <= report.window_s < 2.0
    # The energy comes from a separate run after the timed one. On one card it was 22.1 mJ, where power times the
    # earlier time gave 20.06, so a tenth is too narrow.
    assert report.run_mj == pytest.approx(1e-3 * report.power_w * outcome.time_us, rel=0.15)


def test_finalists_are_paired_round_by_round(watched: Session, builder: Builder, gpu: Gpu) -> None:
    works = tuple(ready(builder, gpu, c).work for c in (Candidate(plan_kind=PlanKind.LIBRARY), fused(GOOD)))
    answer = watched.finals(asked_in(Regime.BURST), works, 6)
    (length,) = {len(row) for row in answer.times_us if row}
    assert length == 6 or length + answer.num_dropped == 8
    assert set(answer.stage_s) == {"load", "check", "others", "time"}
