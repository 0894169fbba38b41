"""Tables of attentions and layers from what finals said of them: the kernel where it gains enough, else the library."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.core.problem.workload import Workload

from .attention import AttentionEntry, AttentionRung, AttentionShape
from .ladder import DEFAULT_MIN_GAIN, Found
from .layer import LayerEntry, LayerShape


def attention_tables(
    results: Sequence[tuple[Workload, Found]], *, min_gain: float = DEFAULT_MIN_GAIN
) -> tuple[AttentionEntry, ...]:
    """One table for each shape; nothing is said of sequences and contexts that were not tuned.

    Raises:
        InvalidInput: a workload is not one attention with at most one plain product behind it.
    """
    rungs: dict[AttentionShape, list[AttentionRung]] = {}
    for workload, result in results:
        shape = AttentionShape.of_workload(workload.to_json())
        rungs.setdefault(shape, []).append(_rung(workload, result, min_gain))
    return tuple(AttentionEntry(shape=shape, rungs=_sorted(of_it)) for shape, of_it in rungs.items())


def layer_tables(
    results: Sequence[tuple[Workload, Found]], *, min_gain: float = DEFAULT_MIN_GAIN
) -> tuple[LayerEntry, ...]:
    """The same of layers.

    Raises:
        InvalidInput: a workload has no attention, or is one that `attention_tables` takes.
    """
    rungs: dict[LayerShape, list[AttentionRung]] = {}
    for workload, result in results:
        shape = LayerShape.of_workload(workload.to_json())
        rungs.setdefault(shape, []).append(_rung(workload, result, min_gain))
    return tuple(LayerEntry(shape=shape, rungs=_sorted(of_it)) for shape, of_it in rungs.items())


def _rung(workload: Workload, result: Found, min_gain: float) -> AttentionRung:
    sizes, is_kept = workload.launch_ops[0].shape, result.is_kept(min_gain)
    return AttentionRung(
        sequences=sizes.sequences,
        max_length=sizes.max_length,
        kernel=result.kernel if is_kept else None,
        library=result.library,
        speedup=result.speedup if is_kept else None,
        interval=result.interval if is_kept else None,
        provenance=result.provenance,
    )


def _sorted(rungs: Sequence[AttentionRung]) -> tuple[AttentionRung, ...]:
    return tuple(sorted(rungs, key=lambda one: (one.sequences, one.max_length)))
