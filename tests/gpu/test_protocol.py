"""Plans run on a GPU only for their synchronisation protocol: no read is early, no signal is lost, and planted faults
are detected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.forged import forged
from tests.support.protocol.cases import CASES, FAULTY, candidates, few_ctas, plain_schedules
from tests.support.protocol.faults import MUTANTS, Fault, plant
from tests.support.protocol.kernel import KINDS, Tables, faults
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.schedule.ordering import SplitTiles
from tuner.core.trial.limits import Limits
from tuner.workers.builder.nvrtc import Builder

pytest.importorskip("cupy")

from tests.support.protocol.rig import SLOW_CYCLES, Rig, clear_counters, launches_of
from tuner.workers.gpu.library.runners import ChainRunner

#: Back-to-back launches of one plan.
NUM_RUNS = 30
#: Many times the longest wait of a correct plan without a slow tile.
SHORT_SPIN_CYCLES = SLOW_CYCLES
#: The faults of `FAULTY` whose launches are aborted.
ABORTED = [(case, split_tiles) for case, split_tiles in FAULTY if case in ("a pair", "parts")]


def check(rig: Rig, runner: ChainRunner, tables: Tables, num_runs: int, what: str) -> None:
    """Checks that the runs follow the protocol."""
    found = faults(rig.run(runner, tables, num_runs), tables, launches_of(runner))
    assert found == [], what


@pytest.mark.parametrize("case", CASES)
def test_every_ordering_and_every_kind_of_launch_keeps_the_protocol(builder: Builder, gpu: Gpu, case: str) -> None:
    rig = Rig(case, builder, gpu)
    for candidate in candidates(case, gpu):
        plans = plans_for(rig.workload, gpu, candidate)
        assert candidate.schedule is not None
        tables = rig.tables(candidate.schedule.ordering, *plans)
        check(rig, rig.runner(*plans, kind=candidate.plan_kind), tables, NUM_RUNS, str(candidate))


@pytest.mark.parametrize("fault", [Fault.TOO_LOW, Fault.REMOVED, Fault.LATE])
@pytest.mark.parametrize(("case", "split_tiles"), FAULTY)
def test_a_wait_that_is_too_short_too_late_or_missing_shows_as_a_stale_read(
    builder: Builder, gpu: Gpu, case: str, split_tiles: SplitTiles, fault: Fault
) -> None:
    rig = Rig(case, builder, gpu)
    for name, chosen in plain_schedules(case, split_tiles).items():
        if not fault.is_sure_to_show(chosen.ordering):
            continue
        good, tables = rig.fused(chosen)
        planted = plant(good.plan, tables, fault)
        runner = rig.runner(forged(good, planted.plan.words))
        record = rig.run(runner, tables, 2, slow_unit=planted.slow_unit)
        found = faults(record, tables, launches_of(runner))
        assert record.abort is None, (name, found)
        count, kind, task, unit, tile, seen, expected, _ = record.violation.item()
        assert count >= 1, (name, found)
        assert (kind, expected - seen) == (1, 1), (name, found)
        assert task in planted.tasks, (name, found)
        assert tile in tables.reads[unit], (name, found)
        # The slow tile delays other tiles of its CTA, so the tile that most tasks missed may be one of those.
        assert fault is Fault.REMOVED or "was there" in found[-1], (name, found)


@pytest.mark.parametrize(("case", "split_tiles"), ABORTED)
def test_a_wait_that_is_too_long_is_stopped_named_and_survived(
    builder: Builder, gpu: Gpu, case: str, split_tiles: SplitTiles
) -> None:
    rig = Rig(case, builder, gpu)
    for name, chosen in plain_schedules(case, split_tiles).items():
        good, tables = rig.fused(chosen)
        planted = plant(good.plan, tables, Fault.TOO_HIGH)
        runner = rig.runner(forged(good, planted.plan.words), spin_limit_cycles=SHORT_SPIN_CYCLES)
        rig.run(runner, tables, 1)
        abort = runner.plans[0].abort_record()
        assert abort is not None, name
        assert abort.task in planted.tasks, (name, abort)
        assert abort.signal in planted.signals, (name, abort)
        assert abort.expected == abort.seen + 1 == planted.num_posts + 1, (name, abort)
        assert rig.is_poisoned(), name
        check(rig, rig.runner(good), tables, 3, name)


@pytest.mark.parametrize(("case", "split_tiles"), ABORTED)
def test_a_launch_is_right_again_once_the_counters_of_an_aborted_one_are_zero(
    builder: Builder, gpu: Gpu, case: str, split_tiles: SplitTiles
) -> None:
    """Runs a correct plan, one tile of which takes longer than the wait limit."""
    rig = Rig(case, builder, gpu)
    for name, chosen in plain_schedules(case, split_tiles).items():
        good, tables = rig.fused(chosen)
        slow = plant(good.plan, tables, Fault.TOO_HIGH)
        runner = rig.runner(good, spin_limit_cycles=SHORT_SPIN_CYCLES)
        rig.run(runner, tables, 1, slow_unit=slow.slow_unit, slow_cycles=10 * SHORT_SPIN_CYCLES)
        abort = runner.plans[0].abort_record()
        assert abort is not None, name
        assert (abort.signal, abort.seen, abort.expected) == (slow.signal, slow.num_posts - 1, slow.num_posts), name
        assert rig.is_poisoned(), name
        clear_counters(runner)
        runner.plans[0].spin_limit_cycles = Limits.spin_limit_cycles
        check(rig, runner, tables, 3, name)


@pytest.mark.parametrize(("asked", "launched"), [(SplitTiles.TAIL, SplitTiles.ALL), (SplitTiles.ALL, SplitTiles.TAIL)])
def test_a_plan_that_splits_other_tiles_shows(
    builder: Builder, gpu: Gpu, asked: SplitTiles, launched: SplitTiles
) -> None:
    """Checks a correct plan of the same tiles against the unit table of another plan."""
    rig = Rig("parts", builder, gpu)
    for name, chosen in plain_schedules("parts", SplitTiles.TAIL).items():
        (_, tables), (good, _) = (
            rig.fused(chosen.but(ordering=replace(chosen.ordering, split_tiles=which))) for which in (asked, launched)
        )
        record = rig.run(rig.runner(good), tables, 1)
        assert record.abort is None, name
        assert KINDS[int(record.violation["kind"])] == "a tile with different parts", name


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_statement_of_the_engine_shows(builder: Builder, gpu: Gpu, name: str) -> None:
    mutant = MUTANTS[name]
    for change, expected in ((None, {0}), (mutant, {0, mutant.kind})):
        rig = Rig(mutant.case, builder, gpu, change)
        plans = [rig.fused(chosen) for chosen in few_ctas(mutant.case, gpu, mutant.split_tiles)]
        records = [rig.run(rig.runner(plan), tables, NUM_RUNS) for plan, tables in plans]
        assert {0, *(int(record.violation["kind"]) for record in records)} == expected
