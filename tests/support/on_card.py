"""Small problems and schedules for the GPU tests."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.repository import ROOT
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Workload
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Granularity, Interleave, Ordering, Raster, SplitOrder, WaitPosition
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.core.trial.evaluator import Environment, Problem
from tuner.core.trial.job import Objective
from tuner.core.trial.outcome import Measured
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.builder.prepare import prepare

if TYPE_CHECKING:
    from tuner.workers.gpu.session import Session

#: Code that runs an artifact without tuner.
EXAMPLE = ROOT / "examples" / "run_artifact.py"
#: The same for an artifact with an attention.
ATTENTION_EXAMPLE = ROOT / "examples" / "run_attention.py"


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
    return Schedule.of(
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


def check_artifact(
    builder: Builder,
    gpu: Gpu,
    asked: Problem,
    candidate: Candidate,
    folder: Path,
    *,
    manifest_format: int = 2,
    changed: str = "",
    by_fallback: bool = False,
) -> dict[str, Any]:
    """Runs a candidate from its zip alone and checks the results and the manifest's form. If a byte of the file
    `changed` is modified, it must not run. `by_fallback`: uses the launches for GPUs that hold fewer clusters."""
    prepared = prepare(asked.workload, gpu, candidate, builder, {})
    here = Environment(gpu_name=gpu.name, simulated=False)
    made = assemble(
        asked,
        candidate,
        prepared.plans,
        prepared.source,
        prepared.work.shared,
        here,
        {},
        prepared.work.spin_limit_cycles,
        own=own_kernels(asked.workload, gpu, candidate, prepared.work.own),
    )
    files = made.files
    if manifest_format == 1:
        files = files | {"manifest.json": json.dumps(as_format_1(made.manifest)).encode()}
    if by_fallback:
        manifest = made.manifest | {"launches": made.manifest["fallback_launches"]}
        files = files | {"manifest.json": json.dumps(manifest).encode()}
    archive_path = folder / "artifact.zip"
    with zipfile.ZipFile(archive_path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data if name != changed else data[:-1] + bytes([data[-1] ^ 1]))
    example = ATTENTION_EXAMPLE if asked.workload.launch_ops else EXAMPLE
    ran = subprocess.run([sys.executable, str(example), str(archive_path)], capture_output=True, text=True)
    if changed:
        assert f"{changed} is not the file in the manifest" in ran.stderr, ran.stdout + ran.stderr
    assert (ran.returncode != 0) == bool(changed), ran.stdout + ran.stderr
    return made.manifest


def as_format_1(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest as versions before the renaming of the start gate wrote it."""
    old: dict[str, Any] = json.loads(json.dumps(manifest)) | {"format": 1}
    for launch in old["launches"]:
        launch["gate"] = launch.pop("start_gate")
    return old
