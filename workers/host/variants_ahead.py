"""Builds the variants of the kernel that will be fetched, while the finals are still running."""

from __future__ import annotations

import threading
from contextlib import suppress

from tuner.core.trial.stats import median
from tuner.errors import WorkerError

from ..builder.nvrtc import Builder
from ..builder.variants import build_variants
from ..protocol import messages


def build_variants_ahead(builder: Builder, works: tuple[messages.Work, ...], answer: messages.FinalsAnswer) -> None:
    """Starts building the variants of the kernel that was fastest in the warm process; does not wait. If another
    kernel wins, these builds stay in the cache."""
    timed = [
        (median(times_us), work)
        for work, times_us in zip(works, answer.times_us, strict=True)
        if times_us and work.shared
    ]
    if timed:
        _, fastest = min(timed, key=lambda item: item[0])
        threading.Thread(target=_build, args=(builder, fastest), name="variants ahead", daemon=True).start()


def _build(builder: Builder, work: messages.Work) -> None:
    with suppress(WorkerError):  # the builder was closed meanwhile
        build_variants(work.plans, builder, programmatic=work.plan_kind.is_programmatic)
