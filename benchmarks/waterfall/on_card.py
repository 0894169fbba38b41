"""A pair on the visible card: graphs of the library, our kernel and patched kernels, with times, stamps and
counters."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from benchmarks.common.called import R
from benchmarks.common.program import in_time
from benchmarks.common.report import machine_of, results_file, write_report
from benchmarks.common.workbench import BUILD_CACHE, message_of, open_workbench
from benchmarks.waterfall.patches import Patch, PatchingBuilder
from benchmarks.waterfall.rows import WaterfallRow
from tuner.core.insight.traces.tracing import Stamped, spans_from_stamps
from tuner.core.problem.gpu import Gpu
from tuner.core.trial.reports.inspection import TaskSpan
from tuner.core.trial.stats import median
from tuner.errors import TunerError, WorkerError
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.places import places_here
from tuner.workers.builder.prepare import PreparedKernel, prepare

#: Rounds of a set of graphs.
NUM_ROUNDS = 15

#: The counters of a graph: its time, tensor-core work, and the sources of bytes.
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "sm__cycles_elapsed.avg.per_second",
    "sm__cycles_active.max",
    "sm__cycles_active.avg",
    "sm__pipe_tensor_cycles_active.max",
    "sm__pipe_tensor_cycles_active.avg",
    "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "sm__ops_path_tensor_op_hgmma_src_fp16.sum",
    "l1tex__m_xbar2l1tex_read_bytes_pipe_tma.sum",
    "lrc__lts2lrc_sectors_op_read.sum",
    "lrc__xbar2gpc_sectors_op_read.sum",
    "lrc__xbar2gpc_sectors_op_read_coalescing_achieved_type_hardware.sum",
    "lrc__request_sectors_op_read_coalescable.sum",
    "lrc__request_sectors_op_read_coalescing_achieved_type_hardware.sum",
    "lts__t_sectors_op_read.sum",
    "dram__bytes_read.sum",
)


@dataclass(frozen=True, kw_only=True)
class Build:
    """A kernel to be built: a row's kernel, changed by patches."""

    row: WaterfallRow
    patches: tuple[Patch, ...] = ()
    #: Whether the kernel is traced.
    traced: bool = False


class Builds:
    """Makes kernels, on all cores of this machine."""

    def __init__(self, gpu: Gpu, target_id: str, machine: dict[str, Any]) -> None:
        """Builds for one GPU; `machine` is the description in its reports."""
        self.gpu, self.target_id, self.machine = gpu, target_id, machine
        self._builder = Builder(BUILD_CACHE, num_processes=places_here())
        self._threads = ThreadPoolExecutor(places_here())  # compilers end with the thread that started them

    def make(self, asked: Build) -> PreparedKernel:
        """Builds one kernel.

        Raises:
            IllegalSchedule, PlanError, BuildError: the kernel cannot be built.
        """
        return self.make_all({"": asked})[""]

    def make_all(self, asked: Mapping[str, Build]) -> dict[str, PreparedKernel]:
        """Builds all kernels, by name.

        Raises:
            IllegalSchedule, PlanError, BuildError: a kernel cannot be built.
        """
        return dict(zip(asked, self._threads.map(self._make, asked.values()), strict=True))

    def _make(self, asked: Build) -> PreparedKernel:
        patching = cast(Builder, PatchingBuilder(self._builder, asked.patches))
        return prepare(asked.row.workload, self.gpu, asked.row.candidate, patching, {}, traced=asked.traced)

    def close(self) -> None:
        """Ends the compilers."""
        self._builder.close()
        self._threads.shutdown()


@contextmanager
def open_builds() -> Iterator[Builds]:
    """Builds for this machine's first card, which no other process uses."""
    with open_workbench("auto", BUILD_CACHE) as bench:
        card, environment = bench.evaluator.target, bench.evaluator.environment()
    with closing(Builds(card.gpu, card.id, machine_of(environment))) as builds:
        yield builds


def measure_rows(
    name: str,
    options: argparse.Namespace,
    rows_of: Callable[[Builds], Iterable[R]],
    measured: Callable[[R, Builds], dict[str, Any]],
) -> None:
    """Measures rows until the time limit; the results file is written after each. A refused row has the reason.
    `options`: `seconds` and `out`."""
    found = list[dict[str, Any]]()
    with open_builds() as builds:
        for row in in_time(rows_of(builds), options.seconds):
            try:
                found.append({"row": row.name} | measured(row, builds))
            except TunerError as error:
                found.append({"row": row.name, "reason": message_of(error)})
            write_report(options.out or results_file(builds.target_id, name), found, builds.machine)
            print(json.dumps(found[-1]), flush=True)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Samples of one graph, in the rounds of its set."""

    times_us: tuple[float, ...]
    clocks_mhz: tuple[int, ...]

    @property
    def us(self) -> float:
        """The median time of a run, microseconds."""
        return median(self.times_us)

    @property
    def clock_mhz(self) -> float:
        """The median clock."""
        return median([float(clock) for clock in self.clocks_mhz])


class PairOnCard:
    """A row's problem and its graphs."""

    def __init__(self, on_card: Any, kernels: Any) -> None:
        self.on_card = on_card
        self._kernels = kernels
        self.chain_length: int = on_card.data.chain_length
        #: The runner of each of our graphs.
        self._runners: dict[int, Any] = {}

    def graph(self, prepared: PreparedKernel, *, checked: bool = True) -> Any:
        """The graph of our kernel, after a check of its results.

        Raises:
            WrongNumbers, Aborted: the results are wrong.
        """
        from tuner.workers.gpu.session import load_runner
        from tuner.workers.gpu.tensors.check import check_numbers

        runner: Any = load_runner(self.on_card, prepared.work, self._kernels)
        if checked:
            run = partial(self.on_card.run_once, runner)
            check_numbers(self.on_card.data, self.on_card.comparer, run, prepared.work)
        graph = self.on_card.timer.capture(runner)
        self._runners[id(graph)] = runner
        return graph

    def captured(self, runner: Any) -> Any:
        """The graph of another runner."""
        return self.on_card.timer.capture(runner)

    def times(self, graphs: Mapping[str, Any], num_rounds: int = NUM_ROUNDS) -> dict[str, Timed]:
        """Times of all graphs in the same rounds.

        Raises:
            WorkerError: a wait of a run expired, so no time of that graph is valid.
        """
        tracks = self.on_card.timer.rounds(list(graphs.values()), lambda tracks, _: len(tracks[0]) >= num_rounds)
        self.on_card.timer.rest()
        for name, graph in graphs.items():
            if id(graph) in self._runners and (record := self._runners[id(graph)].abort_record()):
                raise WorkerError(f"{name}: {record}")
        return {
            name: Timed(
                times_us=tuple(sample.time_us for sample in track),
                clocks_mhz=tuple(sample.clock_mhz for sample in track),
            )
            for name, track in zip(graphs, tracks, strict=True)
        }

    def stamps(self, prepared: PreparedKernel) -> tuple[tuple[TaskSpan, ...], list[Any]]:
        """From the last run of a traced kernel's graph: spans of its tasks, and each launch's rows of CTAs."""
        from tuner.workers.gpu.session import load_runner

        runner: Any = load_runner(self.on_card, prepared.work, self._kernels, traced=True)
        graph = self.on_card.timer.capture(runner)
        for _ in range(2):
            self.on_card.timer.sample(graph)
        self.on_card.timer.rest()
        launches = [
            Stamped.of(number, proven.plan, plan.stamps())
            for number, (proven, plan) in enumerate(zip(prepared.plans, runner.plans, strict=True))
        ]
        return spans_from_stamps(launches), [stamped.ctas for stamped in launches]

    def counters(self, graph: Any) -> dict[str, float]:
        """Counters of a graph per run, by metric. Times that this process measures afterwards are wrong."""
        from tuner.workers.gpu.measuring.counters import count_around

        stream = self.on_card.timer.stream

        def flush() -> None:
            with stream:
                self.on_card.timer.enqueue_flush()

        report = count_around(lambda: graph.launch(stream), METRICS, before=flush)
        if report.reason:
            print("no counters:", report.reason, flush=True)
        rates = "per_second"
        return {one.name: one.value / (1 if one.name.endswith(rates) else self.chain_length) for one in report.counters}


@contextmanager
def pair_on_card(row: WaterfallRow, arch: str, picked: Any = None) -> Iterator[PairOnCard]:
    """The row's problem on the visible card, freed afterwards; `picked` are the library's algorithms, if known."""
    import cupy

    from tuner.workers.builder.nvrtc import compile_source
    from tuner.workers.gpu.library.vendor import open_vendor
    from tuner.workers.gpu.measuring.problem import ProblemOnCard
    from tuner.workers.gpu.session import Kernels
    from tuner.workers.source.tools import tools_source

    tools = cupy.cuda.function.Module()
    tools.load(compile_source(tools_source(arch), arch)[0])
    kernels = Kernels()
    yield PairOnCard(ProblemOnCard(row.problem, tools, open_vendor(), None, picked), kernels)
    kernels.unload()
