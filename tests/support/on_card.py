"""Small problems and schedules for the GPU lane."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.forged import forged, with_others
from tests.support.repository import ROOT
from tuner.core.legal.legality import kind_problem
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, GemmOp, Workload, WorkloadKind, ffn_pair
from tuner.core.schedule.candidate import Candidate, PlanKind
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    Ordering,
    Raster,
    Schedule,
    SplitOrder,
    WaitPosition,
)
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.trial.evaluator import Environment, Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Failed, FailureKind, Measured
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare

if TYPE_CHECKING:
    from tuner.workers.gpu.session import Session

#: What runs an artifact without tuner.
EXAMPLE = ROOT / "examples" / "run_artifact.py"

#: Rows, columns and k that are no whole tiles and lines; and only such.
RAGGED = ffn_pair(m=200, d_in=520, d_hidden=1000, d_out=264, activation=Activation.RELU)
WHOLE = ffn_pair(m=256, d_in=512, d_hidden=1024, d_out=512, activation=Activation.RELU, dtype=Dtype.BF16)


def chain_of_three(m: int, dims: tuple[int, int, int, int]) -> Workload:
    """A gated op, a plain one that reads it, and one with a residual that reads that."""
    ops = (
        GemmOp(name="first", m=m, n=dims[1], k=dims[0], activation=Activation.SILU, gated=True),
        GemmOp(name="second", m=m, n=dims[2], k=dims[1], source="first"),
        GemmOp(name="third", m=m, n=dims[3], k=dims[2], source="second", residual=True),
    )
    return Workload(kind=WorkloadKind.CHAIN, ops=ops)


def problem(workload: Workload, seed: int = 1) -> Problem:
    return Problem(workload=workload, objective=Objective(), seed=seed)


def schedule(
    tiles: tuple[tuple[int, int, int], ...],
    *,
    stages: int = 3,
    warps: int = 4,
    rasters: tuple[Raster, ...] | None = None,
    interleave: Interleave | None = None,
    granularity: Granularity = Granularity.ROW,
    sync_width: int = 1,
    assignment: Assignment = Assignment.TICKET,
    partition: int = 0,
    ctas_per_sm: int = 1,
    split: tuple[int, ...] = (),
    wait_position: WaitPosition = WaitPosition.TASK,
    split_order: SplitOrder = SplitOrder.CONTIGUOUS,
) -> Schedule:
    whole = tuple(Tile(m=m, n=n, k=k) for m, n, k in tiles)
    return Schedule(
        tiling=Tiling(tiles=whole, num_stages=stages, num_warps=warps, split_k=split),
        ordering=Ordering(
            rasters=rasters or tuple(Raster() for _ in tiles),
            interleave=interleave or Interleave(),
            granularity=granularity,
            sync_width=sync_width,
            assignment=assignment,
            partition=partition,
            ctas_per_sm=ctas_per_sm,
            wait_position=wait_position,
            split_order=split_order,
        ),
    )


def fused(chosen: Schedule) -> Candidate:
    return Candidate(plan_kind=PlanKind.FUSED, schedule=chosen)


def run(session: Session, builder: Builder, gpu: Gpu, asked: Problem, candidate: Candidate) -> Measured:
    """Builds, checks and times one candidate, which must succeed."""
    prepared = prepare(asked.workload, gpu, candidate, builder, {})
    assert not prepared.refusal
    outcome = session.evaluate(asked, prepared.work).outcome
    assert isinstance(outcome, Measured), outcome
    return outcome


def run_kind(
    session: Session, builder: Builder, gpu: Gpu, workload: Workload, kind: PlanKind, schedules: Iterable[Schedule]
) -> None:
    """Runs the schedules launched in one way; two streams take queues alone."""
    if reason := kind_problem(workload, gpu, kind):
        pytest.skip(reason)
    for chosen in schedules:
        if kind is not PlanKind.TWO_STREAMS or chosen.ordering.assignment.is_static:
            run(session, builder, gpu, problem(workload), Candidate(plan_kind=kind, schedule=chosen))


def check_abort(
    session: Session, builder: Builder, gpu: Gpu, asked: Problem, chosen: Schedule, *, wait: int = 0
) -> None:
    """One wait of a fused plan asks for a post too many: that launch is aborted and says so, the next one is right."""
    good = prepare(asked.workload, gpu, fused(chosen), builder, {})
    (plan,) = good.plans
    words = plan.words.copy()
    words[int(words[8]) :].reshape(-1, 8)[wait, 2] += 1
    bad = with_others(good.work, plans=(forged(plan, words),), spin_limit_cycles=10**8)
    outcome = session.evaluate(asked, bad).outcome
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.HANG, outcome
    assert "posts seen" in outcome.reason, outcome.reason
    assert isinstance(session.evaluate(asked, good.work).outcome, Measured)


def check_artifact(
    builder: Builder, gpu: Gpu, asked: Problem, candidate: Candidate, folder: Path, *, changed: str = ""
) -> dict[str, Any]:
    """Runs a candidate from its zip alone, which must give the right numbers; its manifest. Where a byte of the file
    `changed` is another one, it must not run."""
    prepared = prepare(asked.workload, gpu, candidate, builder, {})
    here = Environment(gpu_name=gpu.name, simulated=False)
    made = assemble(asked, candidate, prepared.plans, prepared.source, prepared.work.launchable, here, {})
    archive_path = folder / "artifact.zip"
    with zipfile.ZipFile(archive_path, "w") as archive:
        for name, data in made.files.items():
            archive.writestr(name, data if name != changed else data[:-1] + bytes([data[-1] ^ 1]))
    ran = subprocess.run([sys.executable, str(EXAMPLE), str(archive_path)], capture_output=True, text=True)
    if changed:
        assert f"{changed} is not the file that the manifest names" in ran.stderr, ran.stdout + ran.stderr
    assert (ran.returncode != 0) == bool(changed), ran.stdout + ran.stderr
    return made.manifest


def bits_of_launches(
    session: Session, builder: Builder, gpu: Gpu, asked: Problem, candidate: Candidate, count: int = 1
) -> list[dict[int, Any]]:
    """The bits that each of so many launches of a candidate leaves, by op."""
    from tuner.workers.gpu.baselines import launchable_of, runner_of
    from tuner.workers.gpu.launch import Kernel

    work = prepare(asked.workload, gpu, candidate, builder, {}).work
    prepared = session._prepare(asked)
    runner = runner_of(work, Kernel(launchable_of(work)))
    launches = []
    for _ in range(count):
        assert prepared.run_once(runner, prepared.data.check_ops(0)) is None
        launches.append({op: output.bits.get() for op, output in prepared.data.outputs[0].items()})
    return launches


def check_relaunches(session: Session, builder: Builder, gpu: Gpu, asked: Problem, candidate: Candidate) -> None:
    """Launches one candidate of an fp16 pair 20 times: each leaves the same bits, and none of them is NaN."""
    seen = [launch[1] for launch in bits_of_launches(session, builder, gpu, asked, candidate, count=20)]
    assert all((bits == seen[0]).all() for bits in seen)
    assert not np.isnan(seen[0].view(np.float16)).any()
