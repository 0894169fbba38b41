"""Tables of attentions from what finals said of them: the kernel where it gains enough, else the library."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.problem.workload import Workload

from .attention import AttentionEntry, AttentionRung, AttentionShape
from .ladder import DEFAULT_MIN_GAIN, Found


def attention_tables(
    results: Sequence[tuple[Workload, Found]], *, min_gain: float = DEFAULT_MIN_GAIN
) -> tuple[AttentionEntry, ...]:
    """One table for each shape; nothing is said of sequences and contexts that were not tuned.

    Raises:
        InvalidInput: a workload is not one attention with at most one plain product behind it.
    """
    rungs: dict[AttentionShape, list[AttentionRung]] = {}
    for workload, result in results:
        shape, sizes = AttentionShape.of_workload(workload.to_json()), workload.attentions[0].shape
        is_kept = result.is_kept(min_gain)
        rung = AttentionRung(
            sequences=sizes.sequences,
            max_length=sizes.max_length,
            kernel=result.kernel if is_kept else None,
            library=result.library,
            speedup=result.speedup if is_kept else None,
            interval=result.interval if is_kept else None,
            provenance=result.provenance,
        )
        rungs.setdefault(shape, []).append(rung)
    return tuple(
        AttentionEntry(shape=shape, rungs=tuple(sorted(of_it, key=lambda one: (one.sequences, one.max_length))))
        for shape, of_it in rungs.items()
    )
