"""Zips of attentions with forged cubins: all but the machine code is what a card's artifacts have."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.support.attentions import alone, attention
from tests.support.cases import H200
from tests.support.conformance.attention import one_tile
from tests.support.conformance.schedules import wide
from tests.support.forged import tied
from tests.support.on_card import problem
from tests.support.packs import REAL
from tuner.core.problem.workload import Workload
from tuner.core.proof.candidate_plans import plans_for
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.attention_artifact import AttentionKernel, attention_kernels
from tuner.workers.source.attention_launchable import AttentionLaunchable
from tuner.workers.source.launchable import Ties, cubin_digest
from tuner.workers.source.render import render


@dataclass(frozen=True, kw_only=True)
class MadeAttention:
    """A zip, and what it was made of."""

    path: Path
    workload: Workload
    kernel: AttentionKernel
    plans: tuple[VerifiedPlan, ...]


def zip_of(
    folder: Path, *, d_out: int | None = None, form: dict[str, Any] | None = None, **sizes: Any
) -> MadeAttention:
    """An attention, and behind it a product of `d_out` columns."""
    workload = attention(d_out=d_out, form=form, **sizes)
    first = alone(span_tokens=192, num_stages=4)
    schedule = first if d_out is None else replace(one_tile(wide(((16, 64, 64),))), attentions=first.attentions)
    candidate = Candidate(plan_kind=PlanKind.TWO_LAUNCHES_PDL, schedule=schedule)
    plans = plans_for(workload, H200, candidate)
    (kernel,) = attention_kernels(workload, H200, candidate)
    cubin = b"\x7fELF attention"
    ties = Ties(workload=workload.digest, proofs=(kernel.proof,), build="by hand", cubin=cubin_digest(cubin))
    launchable = AttentionLaunchable(
        workload=workload, index=0, schedule=kernel.schedule, plan=kernel.plan, cubin=cubin, ties=ties
    )
    kernel = replace(kernel, launchable=launchable)
    made = assemble(
        problem(workload), candidate, plans, render(workload, schedule.tiling) if plans else "",
        tied(plans, b"\x7fELF product") if plans else None, REAL, {}, 55, attentions=(kernel,),
    )  # fmt: skip
    path = folder / "best.zip"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in made.files.items():
            archive.writestr(name, data)
    path.write_bytes(buffer.getvalue())
    return MadeAttention(path=path, workload=workload, kernel=kernel, plans=plans)
