"""Hardware counters of a GPU: exact where the value is known, clear errors where they are refused, and no effect on
trials."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cupy
import pytest

from benchmarks.waterfall.rows import ROWS, WaterfallRow
from tests.support.counting import apart, count_copy, count_works, num_mma_instructions
from tests.support.on_card import fused, problem, schedule
from tuner.core.insight.derived_counters import DERIVED, DRAM_READ_BYTES, DRAM_WRITE_BYTES
from tuner.core.insight.waterfall import in_words, waterfall_of_trial
from tuner.core.legal.legality import kind_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Workload, WorkloadKind
from tuner.core.schedule.candidate import LIBRARY, Candidate
from tuner.core.schedule.ordering import Assignment
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import evaluate
from tuner.core.trial.outcome import Measured
from tuner.core.trial.reports.inspection import CounterReport
from tuner.errors import InvalidInput
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare
from tuner.workers.cupti.metrics import BASE_SET
from tuner.workers.host.cards import Card
from tuner.workers.host.supervisor import GpuSupervisor
from tuner.workers.source.tools import tools_source

pytest.importorskip("cupy")

#: 134 MB of weights, more than any L2.
WORKLOAD = ffn_pair(m=256, d_in=4096, d_hidden=8192, d_out=4096, activation=Activation.RELU)
#: Ragged in every dimension, one op gated.
RAGGED = Workload(
    kind=WorkloadKind.FFN,
    ops=(
        GemmOp(name="up", m=200, n=1000, k=520, activation=Activation.SILU, gated=True),
        GemmOp(name="down", m=200, n=328, k=1000, source="up"),
    ),
)
CHOSEN = schedule(((128, 128, 64), (128, 128, 64)), stages=3, warps=8, assignment=Assignment.STATIC)
HIT_RATE, TENSOR = "lts__t_sector_hit_rate.pct", "sm__inst_executed_pipe_tensor.sum"
WGMMA = "sm__inst_executed_pipe_tensor_op_gmma.sum"


@pytest.fixture(scope="module")
def supervisor(card: Card, build_cache: Path) -> Iterator[GpuSupervisor]:
    supervisor = GpuSupervisor(card, build_cache)
    yield supervisor
    supervisor.close()


def values(report: CounterReport) -> dict[str, float]:
    assert not report.reason, report.reason
    return {counter.name: counter.value for counter in report.counters}


def test_a_copy_reads_what_it_must_and_misses_every_read() -> None:
    report = apart(count_copy, 2**28, (DRAM_READ_BYTES, DRAM_WRITE_BYTES, HIT_RATE))
    counted = values(report)
    assert counted[DRAM_READ_BYTES] == pytest.approx(2**28, rel=0.01)
    assert counted[DRAM_WRITE_BYTES] < 1.01 * 2**28  # the rest is still in the L2
    assert 40 < counted[HIT_RATE] < 60  # writes hit, reads do not
    assert report.num_passes >= 2
    assert report.absent == {}


def test_a_copy_larger_than_many_caches_also_writes_what_it_must() -> None:
    num_bytes = 2**33
    if cupy.cuda.runtime.memGetInfo()[0] < 2.5 * num_bytes:
        pytest.skip("the card has too little free memory for such a copy")
    counted = values(apart(count_copy, num_bytes, (DRAM_READ_BYTES, DRAM_WRITE_BYTES)))
    assert counted[DRAM_WRITE_BYTES] == pytest.approx(num_bytes, rel=0.01)
    assert counted[DRAM_READ_BYTES] == pytest.approx(num_bytes, rel=0.01)


@pytest.mark.parametrize(
    ("workload", "tiles"),
    [(WORKLOAD, ((128, 128, 64), (128, 128, 64))), (RAGGED, ((64, 64, 32), (64, 64, 64)))],
    ids=["even", "ragged"],
)
def test_every_kind_of_ours_issues_the_tensor_instructions_of_its_tiles(
    builder: Builder, gpu: Gpu, workload: Workload, tiles: tuple[tuple[int, int, int], ...]
) -> None:
    kinds = [kind for kind in PlanKind if kind.is_ours and not kind_problem(workload, gpu, kind)]
    chosen = schedule(tiles, stages=3, warps=4 if tiles[0][0] == 64 else 8, assignment=Assignment.STATIC)
    ready = [prepare(workload, gpu, Candidate(plan_kind=kind, schedule=chosen), builder, {}) for kind in kinds]
    tools = builder.build(tools_source(gpu.arch), gpu.arch).cubin
    answers = apart(count_works, tools, problem(workload), [one.work for one in ready], (TENSOR,))
    for kind, one, answer in zip(kinds, ready, answers, strict=True):
        assert isinstance(answer.report, CounterReport)
        expected = sum(num_mma_instructions(plan.graph) for plan in one.plans)
        assert values(answer.report)[TENSOR] == expected, kind


def test_a_candidate_is_counted_beside_its_trials_which_go_on(supervisor: GpuSupervisor) -> None:
    asked, candidate = problem(WORKLOAD), fused(CHOSEN)
    before = evaluate(supervisor, asked, candidate)
    assert isinstance(before, Measured), before
    pid = supervisor.child_pid
    report = supervisor.count(asked, candidate, None)
    counted = values(report)
    assert set(counted) >= {name for name in BASE_SET if name not in report.absent}
    assert set(report.absent) == set() or supervisor.target.gpu.compute_capability != (9, 0)
    assert 0.9 < counted[DERIVED[0]] < 3  # weights are read once, activations by several CTAs
    assert 0 < counted[HIT_RATE] < 100
    assert 0.5 < counted["gpu__time_duration.sum"] / 1e3 / before.time_us < 6
    assert {f"{name}_profiled" for name in DERIVED[1:]} <= set(counted)
    assert supervisor.child_pid != pid, "a process that has read counters would measure wrong times"
    after = evaluate(supervisor, asked, candidate)
    assert isinstance(after, Measured), after
    assert after.time_us == pytest.approx(before.time_us, rel=0.1)


def test_the_library_is_counted_too_and_on_hopper_uses_warpgroup_products(supervisor: GpuSupervisor) -> None:
    asked = problem(WORKLOAD)
    metrics = (DRAM_READ_BYTES, TENSOR, *((WGMMA,) if supervisor.target.gpu.compute_capability == (9, 0) else ()))
    counted = values(supervisor.count(asked, Candidate(plan_kind=PlanKind.LIBRARY), metrics))
    assert set(counted) == set(metrics)
    assert counted[DRAM_READ_BYTES] > 0.9 * WORKLOAD.compulsory_read_bytes
    assert 0 < counted.get(WGMMA, 1) <= counted[TENSOR]


@pytest.mark.parametrize("row", [ROWS[0], ROWS[3], ROWS[4]], ids=lambda row: row.name)
@pytest.mark.parametrize("is_ours", [True, False])
def test_the_bars_of_a_middle_pair_add_up_to_its_time(
    supervisor: GpuSupervisor, row: WaterfallRow, is_ours: bool
) -> None:
    if supervisor.target.gpu.compute_capability != (9, 0):
        pytest.skip("the schedules are for wgmma")
    candidate = row.candidate if is_ours else LIBRARY
    outcome = evaluate(supervisor, row.problem, candidate)
    assert isinstance(outcome, Measured), outcome
    results = (supervisor.count(row.problem, candidate, None), supervisor.trace(row.problem, candidate))
    bars = waterfall_of_trial(outcome, row.workload.num_flops, results)
    print(*in_words(bars, outcome.time_us), sep="\n")
    assert bars.holds(outcome.time_us), in_words(bars, outcome.time_us)
    assert set(bars.notes) == ({"launch"} if is_ours else {"launch", "epilogue"})
    assert 0.3 < bars.main_loop_us / outcome.time_us < 0.9


def test_what_cannot_be_counted_is_refused_or_has_a_reason_and_trials_go_on(supervisor: GpuSupervisor) -> None:
    asked = problem(WORKLOAD)
    with pytest.raises(InvalidInput, match=r"'dram__bytes_reed\.sum'; use e\.g\. dram__bytes_read\.sum"):
        supervisor.count(asked, fused(CHOSEN), ("dram__bytes_reed.sum",))
    illegal = fused(schedule(((128, 128, 64), (128, 128, 64)), warps=3))
    assert "warps" in supervisor.count(asked, illegal, None).reason
    assert isinstance(evaluate(supervisor, asked, fused(CHOSEN)), Measured)
