"""Plans and cubins tied without proof or build, as a bug in the prover or builder might do."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np

from tuner.core.plan.table.words import Plan
from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan, proof_digest
from tuner.workers.builder.nvrtc import Built
from tuner.workers.protocol.messages import Work
from tuner.workers.source.launchable import Launchable, Ties, cubin_digest


def forged(verified: VerifiedPlan, words: np.ndarray[Any, np.dtype[np.int32]]) -> VerifiedPlan:
    """A plan that was not verified, with the digest that its proof would have."""
    return _changed(verified, plan=Plan.from_words(words))


def _changed(verified: VerifiedPlan, **fields: object) -> VerifiedPlan:
    copy: VerifiedPlan = pickle.loads(pickle.dumps(verified))
    for name, value in fields.items():
        object.__setattr__(copy, name, value)
    object.__setattr__(copy, "digest", proof_digest(copy))
    return copy


def tied(plans: tuple[VerifiedPlan, ...], cubin: bytes, smem_bytes: int = 0, build: str = "by hand") -> Launchable:
    """Ties any cubin to any plans."""
    ties = Ties(
        workload=plans[0].graph.workload.digest,
        proofs=tuple(plan.digest for plan in plans),
        build=build,
        cubin=cubin_digest(cubin),
    )
    return Launchable(plans=plans, cubin=cubin, smem_bytes=smem_bytes, ties=ties)


def with_others(work: Work, *, plans: tuple[VerifiedPlan, ...] = (), cubin: bytes = b"", **fields: Any) -> Work:
    """The same work with other plans or a different cubin, tied by hand."""
    assert work.shared
    old = work.shared
    new = tied(plans or old.plans, cubin or old.cubin, old.smem_bytes, old.ties.build)
    return replace(work, launchables=tuple(new if one is old else one for one in work.launchables), **fields)


def with_own(work: Work, built: Built) -> Work:
    """The same work with another build of its only launch op, tied by hand."""
    (old,) = work.own
    ties = replace(old.ties, build=built.key, cubin=cubin_digest(built.cubin))
    new = replace(old, cubin=built.cubin, ties=ties)
    return replace(work, launchables=tuple(new if one is old else one for one in work.launchables))


def passed_off(work: Work, workload: Workload) -> Work:
    """The same work, claiming to be of another workload with the same shapes."""
    plans = tuple(_changed(plan, graph=replace(plan.graph, workload=workload)) for plan in work.plans)
    return with_others(work, plans=plans)
