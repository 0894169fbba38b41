"""The launchable: proven plans, the build of their kernel and the workload, tied by a digest of each.

`tuner.workers.builder.tie` makes one; every loader or launcher calls `check`, which computes every digest again. So a
cubin never runs with a plan for which it was not built, or with words that differ from the proven ones.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tuner.core.problem.workload import Workload
from tuner.core.proof.verify import VerifiedPlan, proof_digest
from tuner.core.schedule.tiling import Tiling


class LaunchRefused(Exception):
    """The card does not have what the plan needs, or something differs from what was proven and built; the message has
    the reason."""


@dataclass(frozen=True, kw_only=True)
class Ties:
    """Hexadecimal digests of the objects that belong together."""

    #: Digest of the workload.
    workload: str
    #: Digest of each launch's proof.
    proofs: tuple[str, ...]
    #: The content address of the build: source, options, architecture and compiler.
    build: str
    #: sha256 of the cubin.
    cubin: str


@dataclass(frozen=True, kw_only=True)
class Launchable:
    """A proven and built candidate with a generated kernel; only a value until it is checked."""

    #: One per op for two_launches, one for fused.
    plans: tuple[VerifiedPlan, ...]
    cubin: bytes
    #: Dynamic shared memory of one CTA.
    smem_bytes: int
    #: The ties at the time of creation.
    ties: Ties

    @property
    def workload(self) -> Workload:
        """The workload whose tensors it reads and writes."""
        return self.plans[0].graph.workload

    @property
    def tiling(self) -> Tiling:
        """The tiling that the kernel is compiled for."""
        return self.plans[0].graph.tiling

    @property
    def num_threads(self) -> int:
        """Threads of one CTA."""
        return self.tiling.num_threads

    def check(self) -> None:
        """Checks that everything is unchanged since it was tied.

        Raises:
            LaunchRefused: something differs; the message has the difference.
        """
        if len(self.plans) != len(self.ties.proofs):
            raise LaunchRefused(f"{len(self.plans)} plans but {len(self.ties.proofs)} proofs: tie them again")
        for index, (plan, proof) in enumerate(zip(self.plans, self.ties.proofs, strict=True)):
            if proof_digest(plan) != plan.digest:
                raise LaunchRefused(f"plan {index} was modified after it was proven; verify it again")
            if plan.digest != proof:
                raise LaunchRefused(f"plan {index} was proven, but for another launch than this one: tie it again")
            if (workload := plan.graph.workload.digest) != self.ties.workload:
                raise LaunchRefused(f"plan {index} is of workload {workload}, this launch of {self.ties.workload}")
            if plan.graph.tiling != self.tiling:
                raise LaunchRefused(f"plan {index} is of the tiling {plan.graph.tiling}, the kernel of {self.tiling}")
        if cubin_digest(self.cubin) != self.ties.cubin:
            raise LaunchRefused("the cubin is not the one that was built for these plans: build it again")


def cubin_digest(cubin: bytes) -> str:
    """sha256, hex."""
    return hashlib.sha256(cubin).hexdigest()
