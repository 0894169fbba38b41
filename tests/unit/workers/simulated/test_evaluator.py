from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.support.builders import schedule, workload
from tests.support.lanes import one_in, soaked
from tests.support.presets import Run, decoder_block
from tests.support.spaces import space_of
from tuner.core.model.bounds import reference_us
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE, parse_target
from tuner.core.problem.objective import CacheState, LaunchStyle, Procedure, Regime
from tuner.core.problem.workload import Activation, Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.candidate import Candidate, fused
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.evaluator import Prepared, Problem, evaluate
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Failed, FailureKind, Measured, Rejected
from tuner.ops.gemm.costs import LIBRARY_ELEMENTWISE_US
from tuner.ops.gemm.pairs import ffn_pair, independent_pair
from tuner.workers.simulated.evaluator import INPUT_SQUARES_US, Faults, SimulatedEvaluator
from tuner.workers.simulated.library import library_us

TARGET = parse_target("simulated:h200")
HEALTHY = Faults(hang=0, crash=0, wrong_numbers=0)
WORKLOADS = [
    ffn_pair(m=16, d_in=4096, d_hidden=14336, d_out=4096),
    ffn_pair(m=1024, d_in=4096, d_hidden=14336, d_out=4096),
    independent_pair((512, 2048, 4096), (64, 128, 512)),
    ffn_pair(m=1, d_in=1, d_hidden=1, d_out=1),
    ffn_pair(
        m=16,
        d_in=4096,
        d_hidden=14336,
        d_out=4096,
        activation=Activation.SILU,
        **dict.fromkeys(("gated", "residual", "row_scale"), True),
    ),
]


def problem(asked: Workload | None = None, seed: int = 0) -> Problem:
    return Problem(workload=asked or workload(), objective=Objective(), seed=seed)


def candidates(asked: Workload, count: int) -> list[Candidate]:
    drawn = space_of(asked, TARGET.gpu).sample(random.Random(0), count)
    return [Candidate(plan_kind=PlanKind.FUSED, schedule=schedule) for schedule in drawn]


@pytest.mark.slow
@pytest.mark.parametrize("asked", one_in(3, WORKLOADS), ids=lambda asked: asked.describe())
def test_no_time_is_under_the_bound(asked: Workload) -> None:
    twin = SimulatedEvaluator(TARGET, faults=HEALTHY, noise=0.1)
    fused = candidates(asked, 8)
    tried = [*fused, *(replace(c, plan_kind=PlanKind.TWO_LAUNCHES) for c in plain(fused))]
    for candidate in [*tried, Candidate(plan_kind=PlanKind.LIBRARY)]:
        outcome = evaluate(twin, problem(asked), candidate)
        assert isinstance(outcome, Measured)
        assert min(*outcome.samples_us, outcome.library_us) >= reference_us(asked, TARGET.gpu)


def plain(fused: list[Candidate]) -> list[Candidate]:
    return [c for c in fused if c.schedule and c.schedule.ordering.interleave.rows == 0]


def test_the_same_seeds_give_the_same_outcome_and_others_another() -> None:
    candidate = candidates(workload(), 1)[0]

    def time_us(seed: int, problem_seed: int) -> float:
        outcome = evaluate(SimulatedEvaluator(TARGET, seed=seed, faults=HEALTHY), problem(seed=problem_seed), candidate)
        assert isinstance(outcome, Measured)
        return outcome.time_us

    assert time_us(1, 1) == time_us(1, 1)
    assert len({time_us(1, 1), time_us(2, 1), time_us(1, 2)}) == 3


# In CI, tests/unit/core/model/test_simulate.py says so of forecasts.
@pytest.mark.soak
def test_order_alone_changes_the_time() -> None:
    asked = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096)
    twin = SimulatedEvaluator(TARGET, tiling_error=0, schedule_error=0)
    space = space_of(asked, TARGET.gpu)
    tiling = next(t for t in space.tilings if t.tiles[0].m == 64 and t.tiles[0].n == 128 and t.num_stages == 4)
    orderings = space.orderings(tiling)
    times = {
        twin.true_us(
            problem(asked), Candidate(plan_kind=PlanKind.FUSED, schedule=Schedule.of(tiling=tiling, ordering=ordering))
        )
        for ordering in orderings[:: len(orderings) // 6]
    }
    assert len(times) > 3
    assert max(times) > 1.02 * min(times)


def test_it_differs_from_the_forecast_by_tiling_and_by_schedule_and_never_to_the_better() -> None:
    twin = SimulatedEvaluator(TARGET, schedule_error=0)
    fused = candidates(workload(), 40)
    slowdowns = {c.schedule.tiling: twin.slowdown(c) for c in fused if c.schedule}
    assert min(slowdowns.values()) >= 1
    assert max(slowdowns.values()) > 1.03
    same = [c for c in fused if c.schedule and c.schedule.tiling == fused[0].schedule.tiling]  # type: ignore[union-attr]
    assert len({twin.slowdown(c) for c in same}) == 1
    other = SimulatedEvaluator(TARGET, tiling_error=0)
    assert len({other.slowdown(c) for c in fused}) == len(fused)


def test_each_fault_has_its_share_and_its_reason() -> None:
    (candidate,), faults = candidates(workload(), 1), Faults(hang=0.1, crash=0.2, wrong_numbers=0.3)
    several = [SimulatedEvaluator(TARGET, seed=seed, faults=faults) for seed in range(400)]
    drawn = [fault for twin in several if (fault := twin._fault(candidate, {}))]
    shares = {
        FailureKind.HANG: (0.1, "simulated: a wait never ended"),
        FailureKind.CRASH: (0.2, "simulated: the child died"),
        FailureKind.WRONG_NUMBERS: (0.3, "simulated: an output element was wrong"),
    }
    for kind, (share, reason) in shares.items():
        of_kind = [fault for fault in drawn if fault.kind is kind]
        assert 0.6 * share < len(of_kind) / 400 < 1.4 * share
        assert {fault.reason for fault in of_kind} == {reason}


# In CI, the test above has the shares.
@pytest.mark.soak
def test_faults_occur_at_their_rate_each_with_its_reason_and_always_for_the_same_schedules() -> None:
    twin = SimulatedEvaluator(TARGET, seed=1, faults=Faults(hang=0.1, crash=0.1, wrong_numbers=0.1))
    fused = candidates(workload(), 120)
    outcomes = [evaluate(twin, problem(), candidate) for candidate in fused]
    kinds = [outcome.kind for outcome in outcomes if isinstance(outcome, Failed)]
    for kind in (FailureKind.HANG, FailureKind.CRASH, FailureKind.WRONG_NUMBERS):
        assert 6 <= kinds.count(kind) <= 20
    assert all(outcome.reason for outcome in outcomes if isinstance(outcome, Failed))
    assert [twin.has_fault(candidate) for candidate in fused] == [isinstance(o, Failed) for o in outcomes]


def test_an_illegal_schedule_is_rejected_with_the_sentence_of_the_statement_of_legality() -> None:
    illegal = schedule().but(tiling=replace(schedule().tiling, num_warps=3))
    outcome = evaluate(SimulatedEvaluator(TARGET), problem(), Candidate(plan_kind=PlanKind.FUSED, schedule=illegal))
    assert isinstance(outcome, Rejected)
    assert "3 warps: use 4 or 8" in outcome.reason


def test_the_library_is_its_own_baseline() -> None:
    outcome = evaluate(SimulatedEvaluator(TARGET), problem(), Candidate(plan_kind=PlanKind.LIBRARY))
    assert isinstance(outcome, Measured)
    assert (outcome.speedup, outcome.library_us) == (1.0, outcome.time_us)


@pytest.mark.parametrize("asked", WORKLOADS[:3], ids=lambda asked: asked.describe())
def test_the_library_is_slower_on_a_slower_gpu(asked: Workload) -> None:
    assert library_us(asked, CATALOGUE["h200"]) < library_us(asked, CATALOGUE["a40"])


def test_finals_are_interleaved_rounds_of_two_processes_and_a_fault_has_its_reason() -> None:
    twin = SimulatedEvaluator(TARGET, faults=Faults(hang=0, crash=0.5, wrong_numbers=0))
    chosen = (Candidate(plan_kind=PlanKind.LIBRARY), *candidates(workload(), 8))
    times = twin.finals(problem(), chosen, num_rounds=10)
    assert {len(row) for row in times.times_us if row} == {len(times.process_of_round)}
    assert set(times.process_of_round) == {0, 1}
    assert [row is None for row in times.times_us] == [bool(reason) for reason in times.reasons]
    assert any(times.reasons)
    assert times.times_us[0] is not None


def test_its_artifact_says_that_it_is_simulated_and_has_no_cubin() -> None:
    candidate = candidates(workload(), 1)[0]
    files = SimulatedEvaluator(TARGET).artifact(problem(), candidate, {"note": "kept"})
    assert set(files.files) == {"kernel.cu", "plan0.bin", "manifest.json"}
    assert (files.manifest["simulated"], files.manifest["note"]) == (True, "kept")
    assert files.manifest["environment"]["gpu_name"] == "simulated NVIDIA H200"
    with pytest.raises(ValueError, match="library"):
        SimulatedEvaluator(TARGET).artifact(problem(), Candidate(plan_kind=PlanKind.LIBRARY), {})


def test_latency_is_slept_in_every_trial() -> None:
    outcome = evaluate(SimulatedEvaluator(TARGET, latency_s=0.05), problem(), Candidate(plan_kind=PlanKind.LIBRARY))
    assert outcome.stage_s["time"] >= 0.05


def test_a_build_takes_its_time_once_a_tiling_though_several_want_it_at_a_time() -> None:
    space = space_of(problem().workload, TARGET.gpu)
    tilings = space.tilings[:2]
    ours = [Schedule.of(tiling=tiling, ordering=space.orderings(tiling)[i]) for tiling in tilings for i in (0, 1, 2)]
    twin = SimulatedEvaluator(TARGET, build_s=1.0)
    begin_s = time.perf_counter()
    with ThreadPoolExecutor(6) as threads:
        ready = list(threads.map(lambda schedule: twin.prepare(problem(), fused(schedule)), ours))
    assert sum(one.stage_s["build"] > 0.5 for one in ready) == 6, "they waited for each other"
    assert 1.0 <= time.perf_counter() - begin_s < 3.0
    again = twin.prepare(problem(), fused(ours[0]))
    assert again.stage_s["build"] < 0.5
    assert "build" not in twin.prepare(problem(), Candidate(plan_kind=PlanKind.LIBRARY)).stage_s


def test_what_another_evaluator_prepared_is_refused() -> None:
    with pytest.raises(TypeError, match="the simulated GPU measures models, not a Prepared"):
        SimulatedEvaluator(TARGET).measure(problem(), Prepared())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PlanKind.FUSED, PlanKind.TWO_LAUNCHES])
def test_its_trace_holds_every_task_in_order_and_says_that_it_is_simulated(kind: PlanKind) -> None:
    twin = SimulatedEvaluator(TARGET, faults=HEALTHY)
    asked = ffn_pair(m=128, d_in=512, d_hidden=1024, d_out=512)
    candidate = replace(plain(candidates(asked, 20))[0], plan_kind=kind)
    trace = twin.trace(problem(asked), candidate)
    plans = plans_for(asked, TARGET.gpu, candidate)
    assert trace.simulated
    assert not trace.reason
    assert [(s.launch, s.task) for s in trace.spans] == [
        (launch, task) for launch, plan in enumerate(plans) for task in range(plan.plan.num_tasks)
    ]
    for s in trace.spans:
        assert 0 <= s.taken_ns <= s.ready_ns <= s.loaded_ns <= s.computed_ns <= s.stored_ns <= trace.makespan_ns
    assert [op.wait + op.load + op.compute + op.store for op in trace.shares] == [pytest.approx(1)] * 2
    true_us = twin.true_us(problem(asked), candidate)
    assert 0.6 * true_us < trace.makespan_ns / 1e3 < true_us
    if kind is PlanKind.TWO_LAUNCHES:
        last_up = max(s.stored_ns for s in trace.spans if s.launch == 0)
        assert last_up < min(s.taken_ns for s in trace.spans if s.launch == 1)


def test_a_trace_that_it_cannot_draw_has_a_reason() -> None:
    twin = SimulatedEvaluator(TARGET, faults=Faults(hang=1, crash=0, wrong_numbers=0))
    assert "never ended" in twin.trace(problem(), candidates(workload(), 1)[0]).reason
    assert "library" in twin.trace(problem(), Candidate(plan_kind=PlanKind.LIBRARY)).reason
    illegal = schedule().but(tiling=replace(schedule().tiling, num_warps=3))
    healthy = SimulatedEvaluator(TARGET, faults=HEALTHY)
    refused = healthy.trace(problem(), Candidate(plan_kind=PlanKind.FUSED, schedule=illegal))
    assert "3 warps" in refused.reason
    assert (refused.spans, refused.simulated) == ((), True)


def test_the_library_pays_a_launch_more_for_what_its_epilogue_cannot_do() -> None:
    sizes = {"m": 64, "d_in": 512, "d_hidden": 1024, "d_out": 512}
    plain, relu, silu, gated = (
        library_us(ffn_pair(**sizes, **options), TARGET.gpu)
        for options in (
            {},
            {"activation": Activation.RELU},
            {"activation": Activation.SILU},
            {"activation": Activation.SILU, "gated": True},
        )
    )
    assert plain == relu
    assert relu + LIBRARY_ELEMENTWISE_US < silu < gated


@pytest.mark.slow
@pytest.mark.parametrize(("run", "num_kernels"), [(Run.MLP, 1), *soaked((Run.BLOCK, 0))])
def test_an_input_that_is_normed_has_a_small_kernel_in_front_and_an_ops_output_has_its_squares(
    run: Run, num_kernels: int
) -> None:
    asked, twin = decoder_block("llama3-70b", m=16, tp=8, run=run, has_reduce=False), SimulatedEvaluator(TARGET)
    candidate = fused(space_of(asked, TARGET.gpu).sample(random.Random(0), 1)[0])
    of_forecast_us = forecast_us(asked, TARGET.gpu, candidate) * twin.slowdown(candidate)
    in_front_us = twin.true_us(problem(asked), candidate) - of_forecast_us
    assert in_front_us == pytest.approx(num_kernels * INPUT_SQUARES_US)


def test_every_kind_has_its_forecast_programmatic_launches_save_a_gap_and_two_streams_the_tail() -> None:
    asked = ffn_pair(m=512, d_in=1024, d_hidden=4096, d_out=1024)
    plain = Ordering(rasters=(Raster(), Raster()), assignment=Assignment.STATIC)
    chosen = Schedule.of(tiling=space_of(asked, TARGET.gpu).guesses[0], ordering=plain)
    us = {
        kind: forecast_us(asked, TARGET.gpu, Candidate(plan_kind=kind, schedule=chosen))
        for kind in PlanKind
        if kind.is_ours and kind.is_for(2)
    }
    assert us[PlanKind.FUSED] - us[PlanKind.FUSED_PDL] == pytest.approx(1.5)
    assert us[PlanKind.TWO_LAUNCHES] - us[PlanKind.TWO_LAUNCHES_PDL] == pytest.approx(3.0)
    assert us[PlanKind.TWO_LAUNCHES] - 10 < us[PlanKind.TWO_STREAMS] < us[PlanKind.TWO_LAUNCHES] - 0.5
    twin = SimulatedEvaluator(TARGET, faults=HEALTHY)
    for kind in us:
        outcome = evaluate(twin, problem(asked), Candidate(plan_kind=kind, schedule=chosen))
        assert isinstance(outcome, Measured)
    plain, pdl = (
        twin.slowdown(Candidate(plan_kind=kind, schedule=chosen)) for kind in (PlanKind.FUSED, PlanKind.FUSED_PDL)
    )
    assert plain == pdl


def test_what_is_far_worse_than_the_incumbent_is_truncated_and_all_else_is_not() -> None:
    twin, candidate = SimulatedEvaluator(TARGET, faults=HEALTHY), candidates(workload(), 1)[0]
    alone = evaluate(twin, problem(), candidate)
    assert isinstance(alone, Measured)
    beaten = evaluate(twin, problem(), candidate, 2 * alone.speedup)
    matched = evaluate(twin, problem(), candidate, alone.speedup)
    assert isinstance(beaten, Measured)
    assert replace(matched, stage_s={}) == replace(alone, stage_s={})
    assert (alone.truncated, beaten.truncated, len(beaten.rounds)) == (False, True, 5)
    assert beaten.time_us == pytest.approx(alone.time_us, rel=0.05)
    library = evaluate(twin, problem(), Candidate(plan_kind=PlanKind.LIBRARY), 100.0)
    assert isinstance(library, Measured)
    assert not library.truncated


def test_a_figure_names_its_procedure() -> None:
    objective = Objective(l2=CacheState.WARM, regime=Regime.SUSTAINED)
    asked = replace(problem(), objective=objective)
    outcome = evaluate(SimulatedEvaluator(TARGET), asked, Candidate(plan_kind=PlanKind.LIBRARY))
    assert isinstance(outcome, Measured)
    assert outcome.procedure == Procedure(
        l2=CacheState.WARM, regime=Regime.SUSTAINED, launch=LaunchStyle.PLAIN, chain_length=1
    )
