"""A candidate as sentences that need no glossary."""

from __future__ import annotations

from itertools import pairwise

from tuner.core.insight.explain_launch_ops import words_of
from tuner.core.problem.workload import Workload
from tuner.core.schedule.axis import sentences_of
from tuner.core.schedule.candidate import Candidate, launched
from tuner.core.schedule.ordering import (
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    SplitOrder,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import CacheHint, Engine, Epilogue, Tiling, Warpgroups
from tuner.core.units import counted
from tuner.errors import IllegalSchedule

_ASSIGNMENTS = {
    Assignment.STATIC: "each CTA works through its own queue, filled before the launch",
    Assignment.SHARES: "each CTA works through a contiguous share of the order, assigned before the launch",
    Assignment.TICKET: "each CTA draws its next tile from one shared counter",
    Assignment.FIRST_WAVE: "each CTA starts with a tile assigned before the launch, and draws the others",
    Assignment.STEALING: "each CTA draws the next tile of its side, and of the other side once its own is empty",
}
_HINTS = {
    CacheHint.NORMAL: "in no particular order",
    CacheHint.EVICT_FIRST: "before other lines",
    CacheHint.EVICT_LAST: "after other lines",
}
_SIGNALS = {
    Granularity.ROW: "a tile waits until the whole row of producer tiles that it reads is stored",
    Granularity.TILE: "a tile waits only for the producer tiles that it reads",
    Granularity.CHUNK: "a producer row signals in chunks of {} neighbouring tiles",
    Granularity.STRIDED: "a producer row has {} signals, to which its tiles post in turn",
    Granularity.BATCH: "a tile waits for batches of {} producer rows",
    Granularity.BARRIER: "every tile waits until the whole producer is stored",
}
_SPLITS = {
    SplitTiles.ALL: "",
    SplitTiles.TAIL: ", only the tiles of the last wave in parts",
    SplitTiles.TAILS: ", only the tiles of each op's last wave in parts",
    SplitTiles.STREAM: ", the k-steps of the last wave's tiles in equal shares",
}


def candidate_words(candidate: Candidate, workload: Workload) -> list[str]:
    """Sentences that describe what `candidate` does with `workload`."""
    words = [candidate.plan_kind.row.sentence]
    if candidate.schedule is None:
        return words
    try:
        workload, candidate = launched(workload, candidate)
    except IllegalSchedule:  # this server does not have the kind of the one op
        return words
    assert candidate.schedule is not None
    for op, chosen in zip(workload.launch_ops, candidate.schedule.launch_ops, strict=True):
        of_kind = words_of(op)
        words += of_kind.schedule_words(op, chosen, workload) if of_kind else [f"{op.name}: {chosen}."]
        words += sentences_of(chosen)
    if candidate.schedule.tiling.tiles:
        words += _schedule_words(candidate.schedule, workload, candidate.plan_kind)
    return words


def _schedule_words(schedule: Schedule, workload: Workload, kind: PlanKind) -> list[str]:
    tiling, ordering = schedule.tiling, schedule.ordering
    names = [op.name for op in workload.tile_ops]
    tiles = ", ".join(
        f"{name} in tiles of {t.m} x {t.n}, k-steps of {t.k}" for name, t in zip(names, tiling.tiles, strict=True)
    )
    rasters = ", ".join(f"{name} {raster.sentence}" for name, raster in zip(names, ordering.rasters, strict=True))
    ctas = "1 CTA" if ordering.ctas_per_sm == 1 else f"{ordering.ctas_per_sm} CTAs"
    left = f", {ordering.reserved_sms} SMs left free" if ordering.reserved_sms else ""
    share = "begin with" if ordering.assignment is Assignment.STEALING else "run only"
    sides = f", of which {ordering.partition} eighths {share} {names[0]}" if ordering.partition else ""
    strided = ordering.split_order is SplitOrder.STRIDED
    steps = ", with the parts of a tile taking its k-steps in turn" if strided else ""
    sweep = ", with the first parts of all tiles before any second one" if ordering.part_major else ""
    sweep += _SPLITS[ordering.split_tiles]
    words = [
        f"Tiles: {tiles}.",
        f"Engine: {_engine(tiling)}.",
        f"Raster: {rasters}.",
        f"Work: {_ASSIGNMENTS[ordering.assignment]}; {ctas} per SM{left}{sides}{sweep}{steps}.",
    ]
    signals = _SIGNALS[ordering.granularity].format(ordering.sync_width)
    if ordering.wait_position is WaitPosition.SLICE:
        signals += ", with a wait before each k-step"
    if ordering.run_ahead != 100:
        signals += f", with {ordering.run_ahead} % of the stages taking weights ahead of it"
    if kind.is_fused:
        words.insert(-1, f"Merge: {_merge(ordering.interleave, len(names))}; {signals}.")
    if kind.is_in_runs:
        runs = "; ".join(
            " and ".join(names[begin:end]) for begin, end in pairwise((0, *ordering.run_starts, len(names)))
        )
        words.insert(1, f"Runs, one launch each: {runs}.")
        words.insert(-1, f"Merge within a run: {_merge(ordering.interleave, len(names))}; {signals}.")
    if kind.is_side_by_side:
        words.insert(-1, f"Signals: {signals}.")
    if evicted := _evicted(tiling):
        words.append(f"The L2 evicts {evicted} first.")
    return words + [one for chosen in (*schedule.tile_ops, tiling, ordering) for one in sentences_of(chosen)]


def _evicted(tiling: Tiling) -> str:
    """What the L2 should evict, and when."""
    asked = {"weights": tiling.weight_hint, "intermediate results": tiling.intermediate_hint}
    return " and ".join(f"{what} {_HINTS[hint]}" for what, hint in asked.items() if hint in _HINTS)


def _engine(tiling: Tiling) -> str:
    if tiling.engine is not Engine.WGMMA:
        capped = (
            (f", with registers limited so that {tiling.resident_ctas} CTAs fit on an SM")
            if tiling.resident_ctas > 1
            else ""
        )
        return f"{tiling.engine}, {tiling.num_stages} pipeline stages, {tiling.num_warps} warps{capped}"
    window = f", of which {tiling.window} may be in flight" if tiling.window else ""
    stages = f"{tiling.num_stages} stages of weights{window}, {tiling.input_stages} of inputs"
    if tiling.ahead_window:
        stages += (
            f", of which {tiling.ahead_window} for weights may be in flight while the ring fills for a waiting task"
        )
    if tiling.startup_prefetch:
        stages += f", {tiling.startup_prefetch} more stages of weights prefetched into the L2 at the start"
    cluster = f", clusters of {' x '.join(map(str, tiling.cluster))} CTAs" if tiling.cluster_size > 1 else ""
    if tiling.cluster_k > 1:
        cluster += f", of which {tiling.cluster_k} split the K of a tile"
    turns = ", with tasks alternating between two sets of four" if tiling.warpgroups is Warpgroups.PING_PONG else ""
    swapped = ", with the weights as operand A" if tiling.swap_ab else ""
    stores = ", tiles stored with TMA" if tiling.epilogue is Epilogue.TMA else ""
    readers = ", and 4 that read the intermediate as its elements arrive" if tiling.in_band else ""
    warps = f"{tiling.num_warps} warps that multiply{turns}, and 4 that copy{readers}"
    return f"{tiling.engine}{swapped}, {stages}, {warps}{cluster}{stores}"


def _merge(interleave: Interleave, num_ops: int) -> str:
    is_pair = num_ops <= 2
    match interleave.kind:
        case InterleaveKind.PRODUCER_FIRST:
            return "all of the first op, then all of the second" if is_pair else "op after op"
        case InterleaveKind.HALF_ROWS:
            op, of_whom = ("the first op", "") if is_pair else ("an op", " of each reader")
            return f"half a tile row of {op}, then half of the tiles that the previous row completed{of_whom}"
        case InterleaveKind.PROPORTIONAL:
            return f"tiles of {'both' if is_pair else 'all'} ops mixed in proportion to their numbers"
        case InterleaveKind.GIVEN:
            called = f", {interleave.name}" if interleave.name else ""
            return f"a given order of {counted(len(interleave.tiles), 'tile')}{called}"
        case InterleaveKind.LONGEST_FIRST:
            return "op by op, the one with the longest path to the end first"
        case InterleaveKind.BANDS:
            lag = f" {interleave.lag} bands later" if interleave.lag else ""
            chunks = f", in {interleave.chunks} column chunks, the later ones last" if interleave.chunks > 1 else ""
            rows = f"bands of {interleave.rows} tile rows of the first op"
            later = "the second" if is_pair else "the later ones"
            return f"{rows}, each followed{lag} by the parts of {later} that it completes{chunks}"
