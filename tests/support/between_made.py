"""Candidates and artifacts of workloads with an attention between products."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.support.attentions import alone
from tests.support.cases import H200, wgmma
from tests.support.forged import tied
from tests.support.on_card import problem
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile
from tuner.core.trial.evaluator import ArtifactFiles, Environment
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.source.render import render

HERE = Environment(gpu_name="H200", simulated=False, cuda="13.0")


def candidate_of(
    workload: Workload, kind: PlanKind = PlanKind.N_LAUNCHES_PDL, run_starts: tuple[int, ...] = ()
) -> Candidate:
    """Small tiles of warp-specialised kernels, and an attention split into spans."""
    num_ops = len(workload.tile_ops)
    ordering = Ordering(rasters=(Raster(),) * num_ops, assignment=Assignment.STATIC, run_starts=run_starts)
    early = workload.launch_ops[0].form.knows_tokens_early
    (attention,) = alone(span_tokens=192, speculative=early, cluster=1).launch_ops
    tiling = replace(wgmma((16, 32, 64)), tiles=(Tile(m=16, n=32, k=64),) * num_ops)
    return Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering, launch_ops=(attention,)))


def artifact_of(workload: Workload, candidate: Candidate) -> tuple[ArtifactFiles, tuple[VerifiedPlan, ...]]:
    """An artifact with dummy kernel modules instead of compiled ones, and its plans of products."""
    assert candidate.schedule
    plans, cubin = plans_for(workload, H200, candidate), b"\x7fELF any"
    kernels = own_kernels(workload, H200, candidate)
    source = render(workload, candidate.schedule.tiling)
    made = assemble(problem(workload), candidate, plans, source, tied(plans, cubin), HERE, {}, 55, own=kernels)
    manifest = json.loads(made.files["manifest.json"])
    manifest["attentions"][0]["kernel"]["cubin"] = manifest["kernel"]["cubin"]
    files = {**made.files, "manifest.json": json.dumps(manifest).encode()}
    return replace(made, files=files, manifest=manifest), plans
