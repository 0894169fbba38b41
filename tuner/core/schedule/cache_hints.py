"""Cache hints: L2 hints by engine, and which of them are legal.

Source: PTX ISA, "Cache eviction priority hints".
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import CacheHint, Engine, Tiling


@dataclass(frozen=True, kw_only=True)
class Hints:
    """The hints that a kernel gives to the L2; never `default`."""

    #: Reads of the weights.
    weights: CacheHint
    #: Reads of A, per op.
    inputs: tuple[CacheHint, ...]
    #: Stores of C, per op.
    outputs: tuple[CacheHint, ...]


#: Each engine's own hints, for weights and for the inputs that it reads.
_OWN = {
    Engine.MMA: (CacheHint.NORMAL, CacheHint.NORMAL),
    Engine.WGMMA: (CacheHint.EVICT_FIRST, CacheHint.EVICT_LAST),
    Engine.SIMT: (CacheHint.EVICT_FIRST, CacheHint.NORMAL),
}
#: An intermediate is read soon after it was stored, often by many CTAs: evicting it first is never useful.
_OF_INTERMEDIATES = (CacheHint.DEFAULT, CacheHint.NORMAL, CacheHint.EVICT_LAST)


def hints_of(workload: Workload, tiling: Tiling) -> Hints:
    """The hints that the kernel of a legal tiling gives to the L2.

    A hint for intermediates applies to their stores and loads; reads of a chain's own inputs keep the engine's hint.
    """
    weights, inputs = _OWN[tiling.engine]
    asked = tiling.intermediate_hint
    ops = range(len(workload.tile_ops))
    is_read = [bool(workload.consumers_of(op)) for op in ops]
    reads = [workload.producer_of(op) is not None for op in ops]
    is_own = asked is CacheHint.DEFAULT
    return Hints(
        weights=weights if tiling.weight_hint is CacheHint.DEFAULT else tiling.weight_hint,
        inputs=tuple(inputs if is_own or not reads[op] else asked for op in ops),
        outputs=tuple(CacheHint.NORMAL if is_own or not is_read[op] else asked for op in ops),
    )


def without_hints(tiling: Tiling) -> Tiling:
    """The tiling as a search proposes it: without hints for `wgmma`, since they slow down whatever else is timed."""
    if tiling.engine is not Engine.WGMMA:
        return tiling
    return replace(tiling, weight_hint=CacheHint.DEFAULT, intermediate_hint=CacheHint.DEFAULT)


def hint_problem(workload: Workload, tiling: Tiling) -> str | None:
    """Why the hints are invalid, or the simpler name for the same hints."""
    engine, weights, intermediate = tiling.engine, tiling.weight_hint, tiling.intermediate_hint
    own_weights, own_inputs = _OWN[engine]
    if weights is own_weights:
        return f"weights are {weights} for {engine} anyway: use weight_hint default"
    if intermediate not in _OF_INTERMEDIATES:
        return f"intermediate_hint {intermediate}: use {', '.join(map(str, _OF_INTERMEDIATES))}"
    if intermediate is CacheHint.DEFAULT:
        return None
    if not any(workload.consumers_of(op) for op in range(len(workload.tile_ops))):
        return "no op reads another one's output: use intermediate_hint default"
    if intermediate is CacheHint.NORMAL and own_inputs is CacheHint.NORMAL:
        return f"intermediates are {intermediate} for {engine} anyway: use intermediate_hint default"
    return None
