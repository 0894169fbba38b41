"""Other builds of a measured kernel, for programs that launch it themselves.

A device file has the additions of a variant between `#ifdef SWITCH` and `#endif`, and what it omits between `#ifndef
SWITCH` and `#endif`. The measured source has none of the additions and all of the rest, so that the source, its digest
and `kernel_version` are the same as without variants.
"""

from __future__ import annotations

import re
from enum import StrEnum

from tuner.core.plan.table.header import FIRST_WAVE, STATIC
from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.tiling import Engine


class Variant(StrEnum):
    """Which build of a kernel."""

    #: The build that is searched, checked and timed.
    MEASURED = "measured"
    #: Detects concurrent launches on one workspace, and also writes the record of an abort to the host's memory. It
    #: lets the next launch begin once the launches before it have ended.
    GUARDED = "guarded"
    #: Guarded, and it waits for the launches before it in the stream before it reads weights.
    SAFE = "safe"

    @property
    def switches(self) -> frozenset[str]:
        """The switches in device files that the variant defines."""
        return _SWITCHES[self]


_GUARDED, _WAITS_FIRST = "TUNER_GUARDED", "TUNER_WAITS_FIRST"
_SWITCHES = {
    Variant.MEASURED: frozenset[str](),
    Variant.GUARDED: frozenset({_GUARDED}),
    Variant.SAFE: frozenset({_GUARDED, _WAITS_FIRST}),
}
_BLOCK = re.compile(rf"^#if(n?)def ({_GUARDED}|{_WAITS_FIRST})\n(.*?)^#endif\n", re.MULTILINE | re.DOTALL)


def with_switches(text: str, variant: Variant) -> str:
    """A device file's text for a variant: the blocks of its switches, without their directives."""
    return _BLOCK.sub(lambda block: block[3] if (block[2] in variant.switches) != bool(block[1]) else "", text)


def reads_weights_before_wait(plan: VerifiedPlan, *, programmatic: bool) -> bool:
    """Whether a launch loads weights into shared memory before the launches before it have ended.

    A wgmma kernel does so if the plan assigns a CTA's first task. The other engines only prefetch weights into the L2,
    where writes become visible.
    """
    knows_first = plan.plan.assignment in (STATIC, FIRST_WAVE)
    return programmatic and plan.graph.tiling.engine is Engine.WGMMA and knows_first


def variants_of(plans: tuple[VerifiedPlan, ...], *, programmatic: bool) -> tuple[Variant, ...]:
    """The variants that an artifact of these plans has in addition to the measured kernel."""
    if any(reads_weights_before_wait(plan, programmatic=programmatic) for plan in plans):
        return Variant.GUARDED, Variant.SAFE
    return (Variant.GUARDED,)
