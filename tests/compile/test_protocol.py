"""The protocol test without a GPU: its kernel compiles, its tables and its checks are correct, and planted faults are
detected.

A Python replica of the kernel runs the same plans in random interleavings.
"""

from __future__ import annotations

import random
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.box_cells import tiles_read
from tests.support.cases import graphs, small_gpu
from tests.support.lanes import each_value_once, soak_unless
from tests.support.protocol import kernel as protocol
from tests.support.protocol.cases import CASES, FAULTY, NUM_FEW, candidates, few_ctas, plain_schedules
from tests.support.protocol.faults import MUTANTS, Fault, plant
from tests.support.protocol.kernel import (
    KINDS,
    RUN,
    VIOLATION,
    Record,
    Tables,
    draws_per_launch,
    faults,
    source,
    tables_for,
    tables_of,
)
from tests.support.reports import report_of
from tuner.core.plan.graph.tile_graph import TileGraph
from tuner.core.plan.table.header import FIRST_WAVE, STATIC
from tuner.core.plan.table.words import Plan
from tuner.core.plan.two_streams import joined
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan, verify
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.errors import PlanError
from tuner.workers.source.render import inlined

GPU = small_gpu(32)
DEVICE_HALF = Path(protocol.__file__).with_suffix(".cu").read_text()


@pytest.mark.parametrize(("case", "arch"), each_value_once([*CASES], ["sm_80", "sm_90a"]))
def test_the_kernel_compiles_and_has_the_engines_own_files(case: str, arch: str) -> None:
    text = source(*CASES[case])
    resources = report_of(text, arch).resources
    assert (resources.spill_bytes, resources.warnings) == (0, ())
    for name in ("launch_args", "dependent_launch", "sync", "fixup", "draws", "scheduler", "start_gate"):
        assert inlined(f"{name}.cuh") in text
    assert "mma_m16n8k16<" not in text


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_another_kernel(name: str) -> None:
    text = source(*CASES[MUTANTS[name].case])
    assert report_of(MUTANTS[name].applied(text), "sm_90a").code != report_of(text, "sm_90a").code
    for chosen in few_ctas(MUTANTS[name].case, GPU, MUTANTS[name].split_tiles):
        (plan,) = plans_for(CASES[MUTANTS[name].case][0], GPU, Candidate(plan_kind=PlanKind.FUSED, schedule=chosen))
        assert plan.plan.num_ctas == NUM_FEW


@pytest.mark.parametrize(("struct", "dtype"), [("Violation", VIOLATION), ("Run", RUN)])
def test_host_and_device_lay_the_tables_out_alike(struct: str, dtype: np.dtype[np.void]) -> None:
    body = re.search(rf"struct {struct} \{{\n(.*?)^\}};", DEVICE_HALF, flags=re.MULTILINE | re.DOTALL)
    assert body is not None
    code = re.sub(r"//.*", "", body[1])
    assert tuple(re.findall(r"(\w+)(?:\[4\])?[,;]", code)) == dtype.names
    assert f"sizeof({struct}) == {dtype.itemsize}" in DEVICE_HALF


def test_every_kind_of_violation_has_its_words() -> None:
    numbers = re.findall(r"(k\w+) = (\d)", DEVICE_HALF.split("enum ViolationKind")[1].split("}")[0])
    assert [int(number) for _, number in numbers] == list(KINDS)


def reads_in_its_steps(graph: TileGraph) -> bool:
    """Whether no epilogue reads the output of an earlier op: the protocol's kernel has no epilogue."""
    return not any(op.residual_source or op.norm for op in graph.workload.tile_ops)


@settings(max_examples=20)
@given(graphs().filter(reads_in_its_steps), st.booleans(), st.randoms())
def test_the_tables_name_the_tiles_whose_regions_overlap(graph: TileGraph, strided: bool, rng: random.Random) -> None:
    workload, tiling = graph.workload, graph.tiling
    ops = tuple(range(len(workload.tile_ops)))
    whole = TileGraph(workload=workload, tiling=tiling, op_indices=ops, strided_parts=strided)
    tiles = [(op, r, c) for op, (rows, cols) in whole.grids.items() for r, c in product(range(rows), range(cols))]
    unsplit = frozenset(rng.sample(tiles, rng.randrange(len(tiles) + 1)))
    tables = tables_of(workload, tiling, strided=strided, whole=unsplit)
    units = 0
    for tile in tiles:
        parts = 1 if tile in unsplit else whole.num_parts(tile[0])
        assert tables.num_units(tables.tile(tile)) == parts
        for part in range(parts):
            first = tiles_read(whole, tile, part, parts)
            expected = [i for i, other in enumerate(tiles) if other in first]
            words = [*tile, 0, 0, -1, part, parts]
            assert list(tables.reads[tables.unit(words)]) == expected
            assert list(tables.read_steps[tables.unit(words)]) == [first[tiles[i]] for i in expected]
            assert tables.tile(words) == tiles.index(tile)
            units += 1
    assert units == len(tables.reads) == tables.first_unit[-1]


@pytest.mark.slow
@pytest.mark.parametrize("case", soak_unless(lambda _, case: case == "tall readers", CASES))
def test_the_sample_has_every_kind_and_every_plan_of_it_is_proven(case: str) -> None:
    h200 = CATALOGUE["h200"]
    sample = candidates(case, h200)
    num_ops = len(CASES[case][0].tile_ops)
    kinds = {kind for kind in PlanKind if kind.is_ours and kind.is_for(num_ops) and not kind.is_in_runs}
    assert {candidate.plan_kind for candidate in sample} == kinds
    assert 100 < len(sample) < 400
    for candidate in sample[::30]:
        assert candidate.schedule is not None
        plans = [plan.plan for plan in plans_for(CASES[case][0], h200, candidate)]
        tables = tables_for(*CASES[case], candidate.schedule.ordering, plans)
        tasks = [task for plan in plans for task in plan.tasks.tolist()]
        assert sorted(map(tables.unit, tasks)) == list(range(tables.first_unit[-1]))
    ways = {(one.plan_kind, one.schedule.ordering.split_tiles) for one in sample if one.schedule is not None}
    drawn = set(SplitTiles) - {SplitTiles.TAILS}  # values that only first guesses and their neighbours have
    assert ways == set(product(kinds, drawn if CASES[case][1].split_k else (SplitTiles.ALL,)))


#: More than any task has.
ALL_STEPS = 10**6


class Replica:
    """kernel.cu in Python: runs one plan launch after launch, starting with fresh counters."""

    def __init__(self, plan: Plan, tables: Tables, rng: random.Random) -> None:
        self.plan, self.tables, self.rng = plan, tables, rng
        self.tasks, self.waits = plan.tasks.tolist(), plan.waits.tolist()
        self.signals = [0] * plan.num_signals
        self.arrivals: Counter[int] = Counter()
        self.words = [0] * tables.first_tile[-1]
        self.first_read = [0, *accumulate(map(len, tables.reads))]
        self.times_done = [0] * tables.first_unit[-1]
        self.violations: list[tuple[int, ...]] = []
        self.abort: str | None = None
        self.stamps: list[tuple[list[int], list[int]]] = []
        self.draws, self.now = [0] * len(draws_per_launch(plan)), 0

    def record(self, num_runs: int, slow_unit: int = -1) -> Record:
        for run in range(num_runs):
            self._launch(run, slow_unit)
        violation = np.zeros(1, VIOLATION)
        if self.violations:
            violation[0] = (len(self.violations), *self.violations[0], 0)
        read_ns, end_ns = (np.array(stamps) for stamps in zip(*self.stamps, strict=True))
        return Record(
            last_number=num_runs,
            num_runs=num_runs,
            violation=violation[0],
            abort=self.abort,
            words=np.array(self.words),
            times_done=np.array(self.times_done),
            read_ns=read_ns,
            end_ns=end_ns,
            signals=(self.signals,),
            arrivals=([self.arrivals[slot] for slot in range(self.plan.num_split_tiles)],),
            draws=tuple(self.draws),
        )

    def _launch(self, run: int, slow_unit: int) -> None:
        self.run, self.number = run, run + 1
        self.read, self.end = [0] * self.first_read[-1], [0] * len(self.words)
        self.stamps.append((self.read, self.end))
        plan = self.plan
        if plan.assignment == STATIC:
            bounds = plan.queues.tolist()
            queues = [iter(range(*pair)) for pair in pairwise(bounds)]
            self.draws[0] += len(queues)
        else:
            self.list = deque(range(plan.num_first_tasks, plan.num_tasks))
            begin = self._behind_its_own if plan.assignment == FIRST_WAVE else self._drawn
            queues = [begin(cta) for cta in range(plan.num_ctas)]
        #: The task that each CTA holds, and the k-steps that it has read.
        held = {cta: (next(queue, self.plan.num_tasks), 0) for cta, queue in enumerate(queues)}
        held = {cta: state for cta, state in held.items() if state[0] < self.plan.num_tasks}
        while held:
            cta = self._next(held, slow_unit)
            if cta is None:
                self._give_up(*held[min(held)])
                return
            task, step = held[cta]
            self.now += 10
            if step < ALL_STEPS:
                held[cta] = (task, self._read_on(task, step))
                continue
            self._finish(task)
            after = next(queues[cta], self.plan.num_tasks)
            held[cta] = (after, 0)
            if after >= self.plan.num_tasks:
                del held[cta]

    def _next(self, held: dict[int, tuple[int, int]], slow_unit: int) -> int | None:
        """Chooses a CTA that can proceed; the CTA with the slow unit only if no other can."""
        ctas, slow = list(held), None
        start = self.rng.randrange(len(ctas))
        for cta in (*ctas[start:], *ctas[:start]):
            task, step = held[cta]
            if step == ALL_STEPS and self._unit(task) == slow_unit:
                slow = cta
            elif step == ALL_STEPS or not self._missing(task, step):
                return cta
        return slow

    def _behind_its_own(self, cta: int) -> Iterator[int]:
        """Runs a CTA of the first wave: it registers, starts with its own task, and draws the rest."""
        self.draws[0] += 1
        yield cta
        yield from self._drawn(cta)

    def _drawn(self, _: int) -> Iterator[int]:
        """Runs the tasks that a CTA draws until the list is exhausted."""
        while True:
            self.draws[-1] += 1
            if not self.list:
                break
            yield self.list.popleft()

    def _unit(self, task: int) -> int:
        return self.tables.unit(self.tasks[task])

    def _missing(self, task: int, step: int) -> list[tuple[int, int, int]]:
        """The (signal, posts seen, posts expected) of each unfinished wait at or before k-step `step`."""
        found = []
        for begin, end, threshold, per_launch, before_step in self.waits[slice(*self.tasks[task][3:5])]:
            if before_step > step:
                break
            seen = [(signal, self.signals[signal] - self.run * per_launch) for signal in range(begin, end)]
            found += [(signal, posts, threshold) for signal, posts in seen if posts < threshold]
        return found

    def _give_up(self, task: int, step: int) -> None:
        self.abort = self.abort or "task {} waited for signal {}: {} posts seen, {} expected".format(
            task, *self._missing(task, step)[0]
        )

    def _read_on(self, task: int, step: int) -> int:
        """Continues reading at k-step `step`; returns the step before which the task waits next."""
        unit, waits = self._unit(task), self.waits[slice(*self.tasks[task][3:5])]
        tile, num_parts = self.tables.tile(self.tasks[task]), self.tasks[task][7]
        if step == 0 and self.tables.num_units(tile) != max(1, num_parts):
            self.violations.append((5, task, unit, tile, num_parts, self.tables.num_units(tile)))
        until = min((wait[4] for wait in waits if wait[4] > step), default=ALL_STEPS)
        self.times_done[unit] += until == ALL_STEPS
        reads = zip(self.tables.reads[unit], self.tables.read_steps[unit], strict=True)
        for place, (tile, first) in enumerate(reads, self.first_read[unit]):
            if not step <= first < until:
                continue
            self.read[place] = self.now
            if self.words[tile] != self.number:
                self.violations.append((1, task, unit, tile, self.words[tile], self.number))
        return until

    def _finish(self, task: int) -> None:
        tile, (post, _, num_parts, slot) = self.tables.tile(self.tasks[task]), self.tasks[task][5:9]
        if num_parts:
            self.arrivals[slot] += 1
            if self.arrivals[slot] < (self.run + 1) * num_parts:
                return
        if self.words[tile] != self.number - 1:
            self.violations.append((3, task, self._unit(task), tile, self.words[tile], self.number - 1))
        self.words[tile] = self.number
        self.end[tile] = self.now
        if post >= 0:
            self.signals[post] += 1


def one_plan(plans: tuple[VerifiedPlan, ...]) -> Plan:
    return plans[0].plan if len(plans) == 1 else joined(*(plan.plan for plan in plans))


@pytest.mark.slow
@pytest.mark.parametrize("case", soak_unless(lambda _, case: case == "parts", CASES))
def test_every_ordering_keeps_the_protocol(case: str) -> None:
    rng = random.Random(0)
    of_one_protocol = [c for c in candidates(case, GPU) if c.plan_kind.is_fused or c.plan_kind is PlanKind.TWO_STREAMS]
    for candidate in rng.sample(of_one_protocol, 5):
        assert candidate.schedule is not None
        plans = plans_for(CASES[case][0], GPU, candidate)
        tables = tables_for(*CASES[case], candidate.schedule.ordering, [plan.plan for plan in plans])
        plan = one_plan(plans)
        assert faults(Replica(plan, tables, rng).record(2), tables, ((plan,),)) == []


#: The cases are divided in three; the second and third parts run only in `make soak`.
SHARES = [0, *(pytest.param(share, marks=pytest.mark.soak) for share in (1, 2))]


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(("fault", "faulty"), each_value_once([*Fault], FAULTY))
def test_a_planted_fault_shows_and_is_what_the_proof_refuses(
    fault: Fault, faulty: tuple[str, SplitTiles], share: int
) -> None:
    case, split_tiles = faulty
    workload, tiling = CASES[case]
    rng = random.Random(0)
    some = [*plain_schedules(case, split_tiles).values()][list(Fault).index(fault) % 3 :: 3]
    shown = [chosen for chosen in some if fault.is_sure_to_show(chosen.ordering)]
    assert shown
    for chosen in shown[share :: len(SHARES)]:
        (good,) = plans_for(workload, GPU, Candidate(plan_kind=PlanKind.FUSED, schedule=chosen))
        tables = tables_for(workload, tiling, chosen.ordering, [good.plan])
        planted = plant(good.plan, tables, fault)
        with pytest.raises(PlanError):
            verify(planted.plan, good.graph, good.resources, GPU)
        record = Replica(planted.plan, tables, rng).record(1, planted.slow_unit)
        found = faults(record, tables, ((planted.plan,),))
        if fault is Fault.TOO_HIGH:
            assert record.abort is not None
            assert found[0] == f"a wait expired: {record.abort}"
            assert int(record.abort.split()[1]) in planted.tasks
            continue
        assert found[0].split(": ")[0].endswith("the first is a stale read")
        count, kind, task, unit, tile, seen, expected, _ = record.violation.item()
        assert (kind, seen, expected) == (1, 0, 1)
        assert count >= 1
        assert task in planted.tasks
        assert tile in tables.reads[unit]
        late = planted.slow_tile if fault is Fault.TOO_LOW else r"\d+"
        assert re.search(f"before tile {late} was there", found[-1])


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("split_tiles", soak_unless(lambda _, one: one is not SplitTiles.ALL, SplitTiles))
def test_a_slow_tile_alone_is_no_fault_and_its_signal_lacks_its_post_alone(split_tiles: SplitTiles, share: int) -> None:
    rng = random.Random(0)
    for chosen in [*plain_schedules("parts", split_tiles).values()][3 * share :: 3 * len(SHARES)]:
        (good,) = plans_for(CASES["parts"][0], GPU, Candidate(plan_kind=PlanKind.FUSED, schedule=chosen))
        tables = tables_for(*CASES["parts"], chosen.ordering, [good.plan])
        planted = plant(good.plan, tables, Fault.TOO_HIGH)
        assert faults(Replica(good.plan, tables, rng).record(2, planted.slow_unit), tables, ((good.plan,),)) == []


def test_the_judge_names_whatever_is_wrong() -> None:
    (good,) = plans_for(
        CASES["a pair"][0],
        GPU,
        Candidate(plan_kind=PlanKind.FUSED, schedule=next(iter(plain_schedules("a pair").values()))),
    )
    tables = tables_of(*CASES["a pair"])
    right = Replica(good.plan, tables, random.Random(0)).record(3)
    reader = next(unit for unit, read in enumerate(tables.reads) if read)  # its reads come before all others

    def changed(name: str, at: object, value: int) -> Record:
        array = getattr(right, name).copy()
        array[at] = value
        return replace(right, **{name: array})

    wrong = {
        "unit 5 ran 2 times in 3 runs": changed("times_done", 5, 2),
        "tile 7 has the word 2, not 3": changed("words", 7, 2),
        "the signals of workspace 0": replace(right, signals=([0, *right.signals[0][1:]],)),
        "draws, not": replace(right, draws=(1,)),
        "a read or a tile recorded no stamp": changed("end_ns", (1, 4), 0),
        f"run 2: unit {reader} read": changed("read_ns", (2, 0), 1),
        "a wait expired: because": replace(right, abort="because"),
    }
    for words, record in wrong.items():
        (found,) = faults(record, tables, ((good.plan,),))
        assert words in found
