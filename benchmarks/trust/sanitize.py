"""Runs every engine's kernels under compute-sanitizer, on small shapes; no report is allowed.

python -m benchmarks.trust.sanitize [--tools memcheck racecheck synccheck] [--each 3]

A first run without a tool builds the kernels and checks their results; then the same launches run under each tool. The
tools slow a kernel down by a factor of a hundred or more, so the bounded waits have a limit that no slow launch
reaches.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.core.problem.gpu import Gpu, gpu_from_live
from tuner.core.problem.workload import Activation, Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster, SplitTiles
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Epilogue, Tile, Tiling
from tuner.core.space.space import Space
from tuner.errors import BuildError, IllegalSchedule, PlanError
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import PreparedKernel, prepare
from tuner.workers.host.cards import usable_gpus

TOOLS = ("memcheck", "racecheck", "synccheck")
#: The toolkit's default path, if PATH has none.
USUAL_PLACE = Path("/usr/local/cuda/bin/compute-sanitizer")
#: The limit of a wait: about an hour.
SPIN_LIMIT_CYCLES = 8_000_000_000_000
#: Seconds for all launches under one tool.
LIMIT_S = 500.0
#: Ragged in every extent, so that edges are copied and stored partially; rows are 16-byte aligned for TMA.
WORKLOAD = ffn_pair(m=72, d_in=136, d_hidden=200, d_out=152, activation=Activation.RELU, bias=True)
#: Reserved SMs, which leave six CTAs on an H100 or H200, so that each has several tasks.
SIX_CTAS = {"reserved_sms": 126}
#: Values of the wgmma engine that a few random draws would miss, each alone: fields of a tiling, and of an ordering.
RARE: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"swap_ab": True}, {}),
    ({"cluster_k": 2}, {}),
    ({"epilogue": Epilogue.TMA}, {}),
    ({"startup_prefetch": 2}, {}),
    ({}, {"assignment": Assignment.FIRST_WAVE, **SIX_CTAS}),
    ({"split_k": (2, 2)}, {"split_tiles": SplitTiles.STREAM, **SIX_CTAS}),
)
#: Launches of one candidate: the second one starts with nonzero counters.
NUM_LAUNCHES = 2


def find_sanitizer() -> str:
    """The path of compute-sanitizer.

    Raises:
        SystemExit: compute-sanitizer is not installed; the message says how to install it.
    """
    found = shutil.which("compute-sanitizer") or (str(USUAL_PLACE) if USUAL_PLACE.exists() else None)
    if found is None:
        raise SystemExit(
            "compute-sanitizer was not found: it comes with the CUDA toolkit (package cuda-sanitizer); "
            f"install it, or put its folder on PATH (looked at PATH and {USUAL_PLACE})"
        )
    return found


def num_reports(output: str) -> int:
    """The number of reports, from a tool's last lines.

    Raises:
        ValueError: the tool printed no summary, so it did not finish.
    """
    counts = re.findall(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    if not counts:
        raise ValueError("the tool printed no summary")
    return sum(int(errors or hazards) for errors, hazards in counts)


def schedules(space: Space, engine: Engine, count: int, seed: int = 0) -> Iterator[Schedule]:
    """Evenly spaced tilings of an engine, each with an ordering drawn from all."""
    tilings = [tiling for tiling in space.tilings if tiling.engine is engine]
    rng = random.Random(seed)
    for i in range(min(count, len(tilings))):
        tiling = tilings[i * len(tilings) // count]
        orderings = space.orderings(tiling)
        if len(orderings):
            yield Schedule.of(tiling=tiling, ordering=orderings[orderings.draw(rng)])


def rare_schedules() -> Iterator[Schedule]:
    """A schedule for each of `RARE`; by default with queues that are known before the launch."""
    tile = Tile(m=64, n=64, k=64)
    plain = Tiling(engine=Engine.WGMMA, tiles=(tile, tile), num_stages=2, num_warps=4, input_stages=2)
    ordering = Ordering(rasters=(Raster(), Raster()), assignment=Assignment.STATIC)
    for tiled, ordered in RARE:
        yield Schedule.of(tiling=replace(plain, **tiled), ordering=replace(ordering, **ordered))


def candidates(space: Space, each: int) -> Iterator[Candidate]:
    """Fused candidates for every engine of the GPU, each of our other kinds once per engine, and `RARE`."""
    others = [kind for kind in PlanKind if kind.is_ours and kind.is_for(2) and kind is not PlanKind.FUSED]
    for engine in Engine:
        for i, schedule in enumerate(schedules(space, engine, each)):
            kinds = [PlanKind.FUSED, *others] if i == 0 else [PlanKind.FUSED]
            yield from (Candidate(plan_kind=kind, schedule=schedule) for kind in kinds)
    yield from (Candidate(plan_kind=PlanKind.FUSED, schedule=schedule) for schedule in rare_schedules())


def launch_all(cache: Path, each: int) -> None:
    """Builds and launches every candidate on the first card and compares its numbers with NumPy's.

    Raises:
        SystemExit: a launch was aborted, or its numbers are wrong.
    """
    from tuner.workers.gpu.child import live_facts

    gpu = gpu_from_live(live_facts(usable_gpus()[0].uuid))
    problem = Problem(WORKLOAD)
    builder = Builder(cache, num_processes=2)
    try:
        for candidate in candidates(Space(WORKLOAD, gpu), each):
            prepared = made_ready(gpu, candidate, builder)
            if prepared is not None:
                problem.launch(prepared)
                print(f"launched {candidate.plan_kind} {candidate.schedule}", flush=True)
    finally:
        builder.close()


def made_ready(gpu: Gpu, candidate: Candidate, builder: Builder) -> PreparedKernel | None:
    """A candidate with unlimited waits; None if the GPU, or the space, refuses it."""
    try:
        prepared = prepare(WORKLOAD, gpu, candidate, builder, {})
    except (IllegalSchedule, PlanError, BuildError) as error:
        print(f"skipped {candidate.plan_kind} {candidate.schedule}: {str(error).splitlines()[0]}", flush=True)
        return None
    if prepared.refusal:
        print(f"skipped {candidate.plan_kind} {candidate.schedule}: {prepared.refusal}", flush=True)
        return None
    return replace(prepared, work=replace(prepared.work, spin_limit_cycles=SPIN_LIMIT_CYCLES))


class Problem:
    """The workload on the card, created only with copies, so that a tool sees few kernels besides ours."""

    def __init__(self, workload: Workload) -> None:
        import cupy

        rng = np.random.default_rng(0)
        up, down = workload.tile_ops
        x, w1, w2 = (rng.standard_normal(shape) for shape in ((up.m, up.k), (up.n, up.k), (down.n, down.k)))
        biases = [rng.standard_normal(op.n) for op in workload.tile_ops]
        halves = [values.astype(np.float16) for values in (x, w1 * up.k**-0.5, w2 * down.k**-0.5, *biases)]
        self._x, *self._operands = (cupy.asarray(half) for half in halves)
        self._outputs = [cupy.asarray(np.full((op.m, op.n), np.nan, np.float16)) for op in workload.tile_ops]
        x, w1, w2, b1, b2 = (half.astype(np.float64) for half in halves)
        self._expected = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
        self._workload = workload

    def launch(self, prepared: PreparedKernel) -> None:
        """Launches a kernel several times and compares its results."""
        import cupy

        from tuner.workers.gpu.library.runners import runner_of
        from tuner.workers.gpu.session import Kernels
        from tuner.workers.source.launchable import LaunchRefused

        kernels = Kernels()
        try:
            runner = runner_of(prepared.work, kernels.load(prepared.work))
        except LaunchRefused as refusal:
            print(f"skipped: {refusal}", flush=True)
            return
        stream = cupy.cuda.Stream(non_blocking=True)
        for _ in range(NUM_LAUNCHES):
            runner.enqueue(self._buffers(), stream.ptr)
            stream.synchronize()
            if record := runner.abort_record():
                raise SystemExit(f"a wait expired: {record}")
            error = np.abs(self._outputs[1].get().astype(np.float64) - self._expected).max()
            if not error < 0.05:
                raise SystemExit(f"wrong numbers: off by {error} ({prepared.work.plan_kind})")
        del runner
        kernels.unload()

    def _buffers(self) -> tuple[Any, ...]:
        from tuner.workers.source.launch_args import OpBuffers

        sources = (self._x, self._outputs[0])
        return tuple(
            OpBuffers(
                a=int(sources[i].data.ptr),
                w=int(self._operands[i].data.ptr),
                bias=int(self._operands[2 + i].data.ptr),
                c=int(self._outputs[i].data.ptr),
                m=op.m,
                n=op.n,
                k=op.k,
            )
            for i, op in enumerate(self._workload.tile_ops)
        )


def run_under(tool: str | None, cache: Path, each: int) -> str:
    """The output of the launches under a tool, or without one.

    Raises:
        SystemExit: a launch failed, or the tool reports something.
    """
    launches = [
        sys.executable,
        "-m",
        "benchmarks.trust.sanitize",
        "--launch",
        "--cache",
        str(cache),
        "--each",
        str(each),
    ]
    prefix = []
    if tool is not None:
        prefix = [find_sanitizer(), "--tool", tool, "--target-processes", "application-only", "--error-exitcode", "9"]
        prefix += ["--report-api-errors", "no"] if tool == "memcheck" else []
    name = tool or "no tool"
    try:
        done = subprocess.run([*prefix, *launches], capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"under {name}: not finished after {LIMIT_S:g} s; use fewer tilings with --each") from error
    output = done.stdout + done.stderr
    if done.returncode != 0 or (tool is not None and num_reports(output) != 0):
        raise SystemExit(f"{output[-6000:]}\nunder {name}: exit code {done.returncode}")
    print(f"{name}: {output.count('launched ')} candidates, no report", flush=True)
    return output


def main() -> None:
    """Runs everything; the exit code is the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--each", type=int, default=3, help="tilings of each engine")
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.launch:
        launch_all(arguments.cache, arguments.each)
        return
    find_sanitizer()
    with tempfile.TemporaryDirectory() as cache:
        for tool in (None, *arguments.tools):
            run_under(tool, Path(cache), arguments.each)


if __name__ == "__main__":
    main()
