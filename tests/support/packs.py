"""Packs with forged cubins; everything but the machine code is real."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from tests.support.cases import H200, wgmma
from tests.support.forged import tied
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation, Dtype, Workload, WorkloadKind
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.ordering import Assignment, Ordering, Raster
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine, Tile, Tiling
from tuner.core.trial.evaluator import Environment, Problem
from tuner.core.trial.job import Objective
from tuner.ops.gemm.op import GemmOp
from tuner.ops.gemm.pairs import ffn_pair
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.variants import VariantBuild
from tuner.workers.source.render import render
from tuner.workers.source.variants import variants_of

REAL = Environment(gpu_name="NVIDIA H200", simulated=False, driver="580.1", cuda="13.0")
SIMULATED = Environment(gpu_name="simulated NVIDIA H200", simulated=True)

#: An H200 whose driver reports 30 clusters of four; every H200 holds at least 24.
LIVE = replace(H200, live_clusters=((4, 30), (8, 15), (16, 7)))
#: A pair whose tiles fill either card with clusters of four.
WIDE, IN_FOURS = ffn_pair(m=160, d_in=64, d_hidden=4096, d_out=1024), wgmma((64, 64, 64), cluster_m=2, cluster_n=2)
#: A tiling for each engine, which fits the shapes below.
TILINGS = {
    Engine.MMA: Tiling(tiles=(Tile(m=16, n=32, k=32),) * 2, num_stages=3, num_warps=4),
    Engine.SIMT: Tiling(engine=Engine.SIMT, tiles=(Tile(m=4, n=8, k=256),) * 2, num_stages=3, num_warps=4),
    Engine.WGMMA: wgmma((16, 64, 64)),
}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A kernel for a pack, and what it was made from."""

    kernel: Kernel
    plans: tuple[VerifiedPlan, ...]
    candidate: Candidate
    workload: Workload


def ffn(m: int = 16, *, full: bool = False, d_in: int = 64, d_out: int = 128) -> Workload:
    """A small pair; `full`: with every option."""
    return ffn_pair(
        m=m,
        d_in=d_in,
        d_hidden=256,
        d_out=d_out,
        activation=Activation.SILU,
        bias=full,
        gated=full,
        residual=full,
        row_scale=full,
    )


def mlp(m: int = 16, *, norm: bool = True, d_hidden: int = 256) -> Workload:
    """A small run of a decoder layer: norm, gate_up and down, and the residual stream."""
    normed = {"norm": "residual"} if norm else {}
    up = GemmOp(
        name="gate_up", m=m, n=d_hidden, k=64, source="residual", gated=True, activation=Activation.SILU, **normed
    )
    down = GemmOp(name="down", m=m, n=64, k=d_hidden, source="gate_up", residual=True, residual_source="residual")
    return Workload(kind=WorkloadKind.CHAIN, ops=(up, down), dtype=Dtype.FP16)


#: A chain whose tiles also fill either card.
WIDE_MLP = mlp(160, d_hidden=2048)


def make(
    kind: PlanKind = PlanKind.FUSED,
    tiling: Tiling = TILINGS[Engine.WGMMA],
    *,
    workload: Workload | None = None,
    assignment: Assignment = Assignment.STATIC,
    simulated: bool = False,
    gpu: Gpu = H200,
) -> Made:
    """A kernel of a workload."""
    workload = workload or ffn()
    ordering = Ordering(rasters=(Raster(),) * len(workload.tile_ops), assignment=assignment)
    candidate = Candidate(plan_kind=kind, schedule=Schedule.of(tiling=tiling, ordering=ordering))
    plans = plans_for(workload, gpu, candidate)
    variants = tuple(
        VariantBuild(variant=variant, launchable=tied(plans, f"\x7fELF {variant}".encode()))
        for variant in variants_of(plans, programmatic=kind.is_programmatic)
    )
    made = assemble(
        Problem(workload=workload, objective=Objective()),
        candidate,
        plans,
        render(workload, tiling),
        None if simulated else tied(plans, b"\x7fELF measured"),
        SIMULATED if simulated else REAL,
        {"job_id": "job-1"},
        55,
        () if simulated else variants,
    )
    return Made(kernel=Kernel(files=made.files), plans=plans, candidate=candidate, workload=workload)


def make_for_both(kind: PlanKind, workload: Workload = WIDE) -> Made:
    """A kernel made on the GPU with 30 clusters, with a fallback for the others."""
    return make(kind, IN_FOURS, workload=workload, gpu=LIVE)


def without_source(kernel: Kernel) -> Kernel:
    """A smaller copy without sources, which are not needed to run it."""
    manifest = json.loads(kernel.files["manifest.json"])
    emptied = dict.fromkeys((name for name in kernel.files if name.endswith(".cu")), b"")
    manifest["files"] |= {name: {"sha256": hashlib.sha256(b"").hexdigest(), "size_bytes": 0} for name in emptied}
    return Kernel(files={**kernel.files, **emptied, "manifest.json": json.dumps(manifest).encode()})


def ladder(*kernels: Kernel) -> Entry:
    """The kernels of one shape by row count, with the library for larger ones."""
    rungs, end = [], 0
    for kernel in kernels:
        most = kernel.manifest["rows"]["max"]
        rungs.append(
            Rung(
                m_lo=max(end + 1, kernel.manifest["rows"]["min"]),
                m_hi=most,
                kernel=kernel,
                speedup=1.25,
                interval=(1.2, 1.3),
            )
        )
        end = most
    rungs.append(Rung(m_lo=end + 1, m_hi=4096, kernel=None, library={"algorithm": 7}))
    return Entry(shape=kernels[0].shape, rungs=tuple(rungs))
