"""The protocol test's kernel, tables and records on a GPU; launched by the code that launches candidates."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np

from tests.support.forged import tied
from tests.support.protocol.cases import CASES
from tests.support.protocol.faults import Mutant
from tests.support.protocol.kernel import (
    RUN,
    VIOLATION,
    Launches,
    Record,
    Tables,
    draws_per_launch,
    source,
    tables_for,
    tables_of,
)
from tuner.core.problem.gpu import Gpu
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Ordering
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.trial.limits import Limits
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.gpu.launching.launch import Kernel, PlanOnDevice
from tuner.workers.gpu.library.runners import ChainRunner, runner_of
from tuner.workers.protocol.messages import Work
from tuner.workers.source.launch_args import WORD_BYTES, OpBuffers, workspace_layout

#: SM clock cycles of the pauses: up to 5 microseconds, or 50 for one in 32.
SHORT_CYCLES, LONG_CYCLES = 8_000, 80_000
#: SM clock cycles of a slow unit: more than ten times the duration of everything else in a launch.
SLOW_CYCLES = 4_000_000

#: The offsets of the draw counters of two launches that share a workspace, or of two lists, in 32-bit words.
_DRAWN_AT = (0, 16)
#: NaN, in fp16.
_POISON = 0x7FFF


class Rig:
    """One tiling over several runs; the words of the runs are numbered consecutively."""

    def __init__(self, case: str, builder: Builder, gpu: Gpu, mutant: Mutant | None = None) -> None:
        """Builds the kernel, with a changed statement of the engine if a mutant is given."""
        self.workload, self.tiling = CASES[case]
        self.gpu = gpu
        text = source(self.workload, self.tiling)
        self._cubin = builder.build(mutant.applied(text) if mutant else text, gpu.arch).cubin
        cupy.cuda.Device().synchronize()  # creates the context if no earlier test did
        self._kernel: Kernel | None = None
        self._words = cupy.zeros(tables_of(self.workload, self.tiling).first_tile[-1], dtype=cupy.uint32)
        self._violation = cupy.zeros(VIOLATION.itemsize // 4, dtype=cupy.uint32)
        self._operands = [
            [cupy.zeros(size, dtype=cupy.uint16) for size in (op.m * op.k, op.n * op.k, op.m * op.n)]
            for op in self.workload.tile_ops
        ]
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._number = 0

    def fused(self, chosen: Schedule) -> tuple[VerifiedPlan, Tables]:
        """The plan of one launch, and what its units read."""
        (plan,) = plans_for(self.workload, self.gpu, Candidate(plan_kind=PlanKind.FUSED, schedule=chosen))
        return plan, self.tables(chosen.ordering, plan)

    def runner(
        self,
        *plans: VerifiedPlan,
        kind: PlanKind = PlanKind.FUSED,
        spin_limit_cycles: int = Limits.spin_limit_cycles,
    ) -> ChainRunner:
        """The plans, launched like a candidate of plan kind `kind`, with counters of zero."""
        work = Work(
            plan_kind=kind,
            launchables=((launchable := tied(plans, self._cubin)),),
            spin_limit_cycles=spin_limit_cycles,
        )
        self._kernel = self._kernel or Kernel(launchable)
        return runner_of(work, self._kernel)

    def tables(self, ordering: Ordering, *plans: VerifiedPlan) -> Tables:
        """What the units of the ordering's launches read."""
        return tables_for(self.workload, self.tiling, ordering, [plan.plan for plan in plans])

    def run(
        self,
        runner: ChainRunner,
        tables: Tables,
        num_runs: int,
        *,
        slow_unit: int = -1,
        slow_cycles: int = SLOW_CYCLES,
    ) -> Record:
        """Enqueues `num_runs` runs back to back; the first one starts with counters of zero."""
        first_unit = cupy.asarray(np.array(tables.first_unit, dtype=np.int32))
        reads_begin = cupy.asarray(np.cumsum([0, *map(len, tables.reads)]).astype(np.int32))
        reads, read_steps = (
            cupy.asarray(np.array([value for values in table for value in values], dtype=np.int32))
            for table in (tables.reads, tables.read_steps)
        )
        times_done = cupy.zeros(tables.first_unit[-1], dtype=cupy.uint32)
        read_ns = cupy.zeros((num_runs, reads.size), dtype=cupy.uint64)
        end_ns = cupy.zeros((num_runs, self._words.size), dtype=cupy.uint64)
        self._words.fill(self._number)
        self._violation.fill(0)
        each = np.arange(num_runs)
        table = np.zeros(num_runs, dtype=RUN)
        arrays = {"words": self._words, "first_unit": first_unit, "reads_begin": reads_begin, "reads": reads}
        arrays |= {"read_steps": read_steps, "times_done": times_done, "violation": self._violation}
        for name, array in arrays.items():
            table[name] = array.data.ptr
        table["read_ns"] = read_ns.data.ptr + read_ns.strides[0] * each
        table["end_ns"] = end_ns.data.ptr + end_ns.strides[0] * each
        table["number"], table["epoch"] = self._number + 1 + each, each
        table["slow_unit"], table["slow_cycles"] = slow_unit, slow_cycles
        table["short_cycles"], table["long_cycles"] = SHORT_CYCLES, LONG_CYCLES
        for name in ("first_tile", "num_columns"):
            table[name][:, : len(self.workload.tile_ops)] = getattr(tables, name)[: len(self.workload.tile_ops)]
        runs = cupy.asarray(table.view(np.uint8))
        cupy.cuda.Device().synchronize()  # earlier writes were on another stream
        for number in range(num_runs):
            runner.enqueue(self._ops(int(runs.data.ptr) + number * RUN.itemsize), self._stream.ptr)
        cupy.cuda.Device().synchronize()
        self._number += num_runs
        return Record(
            last_number=self._number,
            num_runs=num_runs,
            violation=self._violation.get().view(VIOLATION)[0],
            abort=runner.abort_record(),
            words=_signed(self._words),
            times_done=_signed(times_done),
            read_ns=_signed(read_ns),
            end_ns=_signed(end_ns),
            signals=tuple(plans[0].signals().tolist() for plans in _by_workspace(runner)),
            arrivals=tuple(_arrivals(plans[0]) for plans in _by_workspace(runner)),
            draws=tuple(
                int(plans[0]._workspace.words[at : at + 2].get().view(np.uint64)[0])
                for plans in _by_workspace(runner)
                for at in _DRAWN_AT[: sum(len(draws_per_launch(plan.plan.plan)) for plan in plans)]
            ),
        )

    def _ops(self, run_address: int) -> tuple[OpBuffers, ...]:
        """The operands; the first op's residual is the address of a `Run`."""
        return tuple(
            OpBuffers(
                a=int(a.data.ptr),
                w=int(w.data.ptr),
                bias=0,
                c=int(c.data.ptr),
                residual=0 if index else run_address,
                m=op.m,
                n=op.n,
                k=op.k,
            )
            for index, (op, (a, w, c)) in enumerate(zip(self.workload.tile_ops, self._operands, strict=True))
        )

    def is_poisoned(self) -> bool:
        """Whether every element of every output is NaN; they are zeroed afterwards."""
        outputs = [operands[-1] for operands in self._operands]
        poisoned = all(bool((output == _POISON).all()) for output in outputs)
        for output in outputs:
            output.fill(0)
        return poisoned


def clear_counters(runner: ChainRunner) -> None:
    """Resets a workspace as after an abort."""
    for first, *_ in _by_workspace(runner):
        first._workspace.words.fill(0)


def launches_of(runner: ChainRunner) -> Launches:
    """The plans of a runner's launches, by workspace."""
    return tuple(tuple(plan.plan.plan for plan in plans) for plans in _by_workspace(runner))


def _by_workspace(runner: ChainRunner) -> list[list[PlanOnDevice]]:
    shared: dict[int, list[PlanOnDevice]] = {}
    for plan in runner.plans:
        shared.setdefault(plan._workspace.address, []).append(plan)
    return list(shared.values())


def _arrivals(plan: PlanOnDevice) -> list[int]:
    """[slots] the number of parts that have arrived in each."""
    begin = workspace_layout(plan.plan)["arrivals"] // WORD_BYTES
    return _signed(plan._workspace.words[begin : begin + plan.plan.plan.num_split_tiles]).tolist()  # type: ignore[no-any-return]


def _signed(array: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return array.get().astype(np.int64)  # type: ignore[no-any-return]
