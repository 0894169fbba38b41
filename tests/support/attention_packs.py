"""Packs of attentions and layers with forged cubins; everything but the machine code is real."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.support.attentions import alone, attention, space_with
from tests.support.cases import H200
from tests.support.forged import tied
from tests.support.on_card import problem
from tests.support.packs import REAL, SIMULATED, without_source
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Engine
from tuner.ops.attention.artifact import CacheKernel
from tuner.ops.attention.schedule import AttentionEngine
from tuner.packs.contents import Entry, Kernel, Rung
from tuner.search.guesses.seeds import first_guesses
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.own_artifact import own_kernels
from tuner.workers.source.launchable import Ties, cubin_digest
from tuner.workers.source.own_launchable import OwnLaunchable
from tuner.workers.source.render import render


@dataclass(frozen=True, kw_only=True)
class MadeAttention:
    """An artifact of an attention or a layer for a pack, and what it was made from."""

    kernel: Kernel
    workload: Workload
    candidate: Candidate
    attention: CacheKernel
    #: Files of the products around the attention; empty if there are none.
    plans: tuple[VerifiedPlan, ...]


def make_attention(
    *,
    d_out: int | None = None,
    kind: PlanKind = PlanKind.TWO_LAUNCHES_PDL,
    next_percent: int = 0,
    engine: Engine = Engine.SIMT,
    form: dict[str, Any] | None = None,
    simulated: bool = False,
    schedule: Schedule | None = None,
    by: AttentionEngine = AttentionEngine.TMA,
    **sizes: Any,
) -> MadeAttention:
    """An attention's artifact, followed by a product of `d_out` columns; `sizes` and `form` are those of `attention`.
    Engine `by` computes the attention, and `engine` the product."""
    workload = attention(d_out=d_out, form=form, **sizes)
    schedule = schedule or schedule_of(workload, engine=engine, next_percent=next_percent, by=by)
    return made_of(workload, Candidate(plan_kind=kind, schedule=schedule), simulated=simulated)


def made_of(workload: Workload, candidate: Candidate, *, simulated: bool = False) -> MadeAttention:
    """The artifact of a workload with an attention, whatever products surround it."""
    assert candidate.schedule
    plans = plans_for(workload, H200, candidate)
    (one,) = own_kernels(workload, H200, candidate)
    if not simulated:
        one = replace(one, launchable=_forged(one))
    made = assemble(
        problem(workload),
        candidate,
        plans,
        render(workload, candidate.schedule.tiling) if plans else "",
        tied(plans, b"\x7fELF product") if plans and not simulated else None,
        SIMULATED if simulated else REAL,
        {"job_id": "job-1"},
        55,
        own=(one,),
    )
    return MadeAttention(
        kernel=Kernel(files=made.files), workload=workload, candidate=candidate, attention=one, plans=plans
    )


def table(*made: MadeAttention, library: Sequence[tuple[int, int]] = ()) -> Entry:
    """The artifacts of an attention or a layer by number of sequences and context, and where the library is used."""
    rungs = [Rung(m_lo=n, m_hi=n, max_length=t, kernel=None, library={"way": "cudnn"}) for n, t in library]
    for one in made:
        n, t = one.attention.op.shape.sequences, one.attention.op.shape.max_length
        rungs.append(Rung(m_lo=n, m_hi=n, max_length=t, kernel=one.kernel, speedup=1.5, interval=(1.4, 1.6)))
    in_order = sorted(rungs, key=lambda rung: (rung.m_lo, rung.max_length))
    return Entry(shape=made[0].kernel.shape, rungs=tuple(in_order))


def without_sources(entry: Entry) -> Entry:
    """A smaller copy without the sources."""
    rungs = (replace(rung, kernel=rung.kernel and without_source(rung.kernel)) for rung in entry.rungs)
    return replace(entry, rungs=tuple(rungs))


def schedule_of(
    workload: Workload, *, engine: Engine, next_percent: int = 0, by: AttentionEngine = AttentionEngine.TMA
) -> Schedule:
    """A schedule with the attention on engine `by` and the product after it, if any, on `engine`."""
    if not workload.tile_ops:
        return alone(span_tokens=192, engine=by)
    guesses = (one for one in first_guesses(space_with(workload), 0) if one.launch_ops[0].next_percent == 0)
    guess = next(one for one in guesses if one.tiling.engine is engine)
    cluster = guess.launch_ops[0].cluster if by is AttentionEngine.TMA else 1
    one = replace(guess.launch_ops[0], span_tokens=64 * cluster, tile_tokens=64, num_stages=4, cluster=cluster)
    return guess.but(launch_ops=(replace(one, math_warps=8, next_percent=next_percent, engine=by),))


def _forged(one: CacheKernel) -> OwnLaunchable:
    cubin = b"\x7fELF attention"
    ties = Ties(workload=one.workload.digest, proofs=(one.proof,), build="by hand", cubin=cubin_digest(cubin))
    return OwnLaunchable(
        workload=one.workload, index=one.index, schedule=one.schedule, plan=one.plan, cubin=cubin, ties=ties
    )
