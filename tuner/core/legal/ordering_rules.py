"""Rules for an ordering, axis by axis; `tuner.core.legal.legality` has the complete definition.

Every rule returns None or a sentence. If a plan has several names, only the simplest is legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tuner.core.legal.wgmma import STARTUP_PREFETCHES
from tuner.core.plan.build import held_stages
from tuner.core.plan.graph.boxes import Ints
from tuner.core.plan.graph.edges import Edge
from tuner.core.plan.graph.needs import Streamed
from tuner.core.plan.graph.row_edges import row_edges
from tuner.core.plan.graph.tile_graph import TileGraph, part_steps
from tuner.core.plan.order.exact_rasters import MAX_SIDE
from tuner.core.plan.order.interleaves import joined, longest_first, merge_blocks, row_steps
from tuner.core.plan.order.queues import PARTITION_EIGHTHS, num_first_ctas, queue_of_tasks
from tuner.core.plan.order.rasters import plain_name
from tuner.core.plan.waiting.signals import column_groups, rows_per_signal
from tuner.core.problem.workload import Workload
from tuner.core.schedule.given_order import MAX_TILES
from tuner.core.schedule.ordering import (
    ASSIGNMENTS,
    ORDER_NAME,
    Assignment,
    Granularity,
    Interleave,
    InterleaveKind,
    Ordering,
    Raster,
    RasterKind,
    SplitTiles,
    WaitPosition,
)
from tuner.core.schedule.tiling import Tile
from tuner.errors import InvalidInput

#: Percentage of the stages that weights may fill ahead of a task's waits, the default first.
RUN_AHEADS = (100, 0, 25, 50)
#: Maximum bands, since each is planned separately; with millions of tile rows, bands must be wider.
MAX_BANDS = 1024


def raster_problem(raster: Raster, shapes: frozenset[tuple[int, int]], op_name: str) -> str | None:
    """Why the raster is invalid, or not the simplest name of its path, over blocks of these `shapes` (tile rows,
    tile columns)."""
    row = raster.kind.row
    if raster.width < row.least_width or (not row.has_width and raster.width != 1):
        should = f"at least {row.least_width}" if row.has_width else "1"
        return f"raster {raster.kind} of {op_name}: width {raster.width} must be {should}"
    rows, cols = max(rows for rows, _ in shapes), max(cols for _, cols in shapes)
    where = f"raster {raster} of {op_name} on blocks of {rows} x {cols} tiles"
    if raster.kind is RasterKind.EXACT and max(rows, cols) > MAX_SIDE:
        return f"{where}: exact paths are known only up to {MAX_SIDE} x {MAX_SIDE}: use hilbert"
    try:
        plain = plain_name(raster, shapes)
    except InvalidInput as error:  # from a package's curve
        return f"{error.field} of {op_name}: {error.problem}: {error.remedy}"
    return None if plain == raster else f"{where} is the same as the {plain} raster: use {plain}"


@lru_cache(maxsize=65536)
def interleave_problem(workload: Workload, tiles: tuple[Tile, ...], interleave: Interleave) -> str | None:
    """Why the merge is invalid, or not its simplest name, for these tiles."""
    kind, ops = interleave.kind, tuple(range(len(workload.tile_ops)))
    if kind is InterleaveKind.BANDS and not (interleave.tiles or interleave.name):
        return _bands_problem(workload, tuple(tile.m for tile in tiles), interleave) or _chunks_problem(
            workload, tiles, interleave.chunks
        )
    if kind is InterleaveKind.GIVEN:
        return _given_problem(workload, tiles, interleave)
    if interleave.name:
        return f"{kind} has a name, which only a given order may have: leave it out, or use {InterleaveKind.GIVEN}"
    if interleave.tiles:
        return (
            f"{kind} has a table of tiles, which only a given order may have: "
            f"leave it out, or use {InterleaveKind.GIVEN}"
        )
    if (interleave.rows, interleave.lag, interleave.chunks) != (0, 0, 1):
        return f"{kind} has no bands: rows and lag must be 0 and chunks 1"
    is_dependent = any(workload.producers_of(op) for op in ops)
    match kind:
        case InterleaveKind.HALF_ROWS:
            return _half_rows_problem(workload, tiles, is_dependent)
        case InterleaveKind.PROPORTIONAL:
            return _proportional_problem(workload, tiles, is_dependent)
        case InterleaveKind.LONGEST_FIRST if longest_first(workload, tiles, ops) == ops:
            return "the longest chains already start in the order of the ops: use producer_first"
    return None


def _given_problem(workload: Workload, tiles: tuple[Tile, ...], interleave: Interleave) -> str | None:
    """Why the table does not have each tile of each op exactly once. Whether tasks wait for later ones is checked by
    the proof.
    """
    if (interleave.rows, interleave.lag, interleave.chunks) != (0, 0, 1):
        return f"{interleave.kind} has no bands: rows and lag must be 0 and chunks 1"
    if interleave.name and not (isinstance(interleave.name, str) and ORDER_NAME.fullmatch(interleave.name)):
        return f"the name {interleave.name!r:.60} of a given order: use at most 40 letters, digits, '_', '.' and '-'"
    grids = [op.tile_grid(tile.m, tile.n) for op, tile in zip(workload.tile_ops, tiles, strict=True)]
    num_tiles = sum(rows * cols for rows, cols in grids)
    there = " and ".join(
        f"{op.name} {rows} x {cols}" for op, (rows, cols) in zip(workload.tile_ops, grids, strict=True)
    )
    if num_tiles > MAX_TILES:
        return f"a given order of {num_tiles} tiles ({there}): use larger tiles, so that there are at most {MAX_TILES}"
    seen = set[tuple[int, ...]]()
    for place, tile in enumerate(interleave.tiles):
        if not _is_of(tile, grids):
            return (
                f"tile {place} of the given order is {list(tile)}: use op, row and column of a tile: there are {there}"
            )
        if tile in seen:
            return f"tile {place} of the given order, {list(tile)}, occurs twice: list each tile once"
        seen.add(tile)
    every = ((op, row, col) for op, (rows, cols) in enumerate(grids) for row in range(rows) for col in range(cols))
    missing = next((tile for tile in every if tile not in seen), None)
    return missing and f"the given order has no tile {list(missing)}: list each of {num_tiles} once ({there})"


def _is_of(tile: tuple[int, ...], grids: list[tuple[int, int]]) -> bool:
    """Whether `tile` is within its op's grid; `grids` has one per op."""
    if len(tile) != len(("op", "row", "column")) or not all(type(number) is int for number in tile):
        return False
    op, row, col = tile
    return 0 <= op < len(grids) and 0 <= row < grids[op][0] and 0 <= col < grids[op][1]


@lru_cache(maxsize=65536)
def _bands_problem(workload: Workload, tile_ms: tuple[int, ...], interleave: Interleave) -> str | None:
    """What is wrong with the bands and the lag, whatever the tile columns."""
    rows, lag = interleave.rows, interleave.lag
    if rows < 1 or lag < 0 or interleave.chunks < 1:
        return f"{interleave.kind} of {rows} rows, lag {lag}, {interleave.chunks} chunks: use at least 1, 0 and 1"
    ops = tuple(range(len(workload.tile_ops)))
    num_rows, _ = workload.tile_ops[0].tile_grid(tile_ms[0], 1)
    this, first = f"{replace(interleave, chunks=1)} over {num_rows} tile rows", Interleave()
    if rows >= num_rows or len(ops) == 1:
        return f"{this} is the same order as {first}: use {first}"
    fewest_rows = -(-num_rows // MAX_BANDS)
    if rows < fewest_rows:
        return f"{this} makes more than {MAX_BANDS} bands: use at least {fewest_rows} rows"
    if lag > -(-num_rows // rows):
        return f"{this}: there are {-(-num_rows // rows)} bands, so the lag has no effect: use {first}"
    blocks = joined(row_steps(workload, tile_ms, ops, rows, lag))
    for band, behind in _plainer_bands(workload, tile_ms, interleave, blocks[0].end, range(fewest_rows, num_rows)):
        if joined(row_steps(workload, tile_ms, ops, band, behind)) == blocks:
            plain = first if band == num_rows else Interleave(kind=InterleaveKind.BANDS, rows=band, lag=behind)
            return f"{this} is the same order as {plain}: use {plain}"
    return None


def _plainer_bands(
    workload: Workload, tile_ms: tuple[int, ...], interleave: Interleave, first_run: int, bands: range
) -> Iterator[tuple[int, int]]:
    """Simpler (rows, lag) that may give the same order: those whose first consumer row comes after `first_run` rows."""
    rows, lag = interleave.rows, interleave.lag
    yield bands.stop, 0
    edges = row_edges(workload, tile_ms, tuple(range(len(workload.tile_ops))))
    needed = min((int(edge.last[0]) for edge in edges if edge.producer == 0), default=0)
    for band in bands:
        if (lag or band < rows) and (not needed or -(-needed // band) * band == first_run or not lag):
            yield band, 0
    for band in range(bands.start, rows) if lag else ():
        behind = first_run // band - -(-needed // band)
        if first_run % band == 0 and behind > 0:
            yield band, behind
    yield from ((rows, shorter) for shorter in range(1, lag))


def _chunks_problem(workload: Workload, tiles: tuple[Tile, ...], chunks: int) -> str | None:
    if chunks == 1:
        return None
    readers = [op for op in range(len(workload.tile_ops)) if workload.producer_of(op) is not None]
    read = {op for reader in range(len(workload.tile_ops)) for op in workload.producers_of(reader)}
    if not readers or read & set(readers):
        return "column chunks are for consumers whose output no other op reads: use chunks 1"
    num_cols = [-(-workload.tile_ops[op].n // tiles[op].n) for op in readers]
    widths = [-(-cols // chunks) for cols in num_cols]
    plain = next(fewer for fewer in range(1, chunks + 1) if [-(-cols // fewer) for cols in num_cols] == widths)
    if plain != chunks:
        return f"{chunks} chunks of {max(num_cols)} tile columns are as wide as {plain}: use chunks {plain}"
    return None


def _half_rows_problem(workload: Workload, tiles: tuple[Tile, ...], is_dependent: bool) -> str | None:
    ops = tuple(range(len(workload.tile_ops)))
    if not is_dependent:
        return "half_rows needs a consumer and its producer; these ops are independent: use proportional"
    num_cols = {op: -(-workload.tile_ops[op].n // tiles[op].n) for op in ops}
    steps = row_steps(workload, tuple(tile.m for tile in tiles), ops, 1, 1)
    if not any(sum(num_cols[rows.op] > 1 for rows in step) > 1 for step in steps):
        return "no half row of one op comes between halves of another: use bands of 1 row, lag 1, or producer_first"
    return None


def _proportional_problem(workload: Workload, tiles: tuple[Tile, ...], is_dependent: bool) -> str | None:
    if is_dependent or len(workload.tile_ops) == 1:
        return "proportional mixes independent ops; here one reads another, or there is only one: use bands"
    grids = [op.tile_grid(tile.m, tile.n) for op, tile in zip(workload.tile_ops, tiles, strict=True)]
    num_rows, num_cols = ([grid[axis] for grid in grids] for axis in (0, 1))
    if max(num_cols) == 1 and len(set(num_rows)) == 1:
        plain = "bands of 1 row" if num_rows[0] > 1 else "producer_first"
        return f"tiles that alternate one by one are the same order as {plain}: use {plain}"
    return None


def sync_problem(graph: TileGraph, interleave: Interleave, granularity: Granularity, width: int) -> str | None:
    """Why there are no such signals, why they equal those of another granularity, or why a tile would wait for later
    tiles.
    """
    has_width = granularity in (Granularity.CHUNK, Granularity.STRIDED, Granularity.BATCH)
    if width < 1 + has_width or (width > 1 and not has_width):
        return f"sync width {width} of {granularity} must be " + ("at least 2" if has_width else "1")
    if granularity is Granularity.ROW:
        return None
    if not graph.posting_ops:
        return "no tile waits for another one, so there are no signals: use row"
    rows, cols = (max(graph.grids[op][axis] for op in graph.posting_ops) for axis in (0, 1))
    plainer = {
        Granularity.TILE: ("row", cols == 1, "each producer tile row is one tile"),
        Granularity.CHUNK: ("row", width >= cols, f"each producer tile row of {cols} tiles is one chunk"),
        Granularity.STRIDED: ("row" if cols == 1 else "tile", width >= cols, (
            f"stride {width} separates all {cols} tiles"
        )),
        Granularity.BATCH: ("row" if rows == 1 else "barrier", width >= rows, f"all {rows} tile rows are one batch"),
        Granularity.BARRIER: ("row", rows == 1, "the producer is one tile row"),
    }  # fmt: skip
    plain, is_plainer, why = plainer[granularity]
    if is_plainer:
        return f"{why}, so a signal per {granularity} is the same as a signal per {plain}: use {plain}"
    return _premature(graph, interleave, granularity, width)


def _premature(graph: TileGraph, interleave: Interleave, granularity: Granularity, width: int) -> str | None:
    """The first block that would wait for producer rows that come after it."""
    if granularity not in (Granularity.BATCH, Granularity.BARRIER) or interleave.kind is InterleaveKind.GIVEN:
        return None  # a rule emits a consumer's row after all that it reads
    emitted = dict.fromkeys(graph.op_indices, 0)
    for block in merge_blocks(graph.workload, graph.tiling.tiles, graph.op_indices, interleave):
        for edge in row_edges(graph.workload, graph.tile_ms, graph.op_indices):
            if edge.consumer != block.op:
                continue
            num_rows = graph.grids[edge.producer][0]
            height = rows_per_signal(granularity, width, num_rows)
            last = min(num_rows, -(-int(edge.last[block.row_end - 1]) // height) * height)
            if last > emitted[edge.producer]:
                name = graph.workload.tile_ops[block.op].name
                return (
                    f"{interleave} computes {name} tile row {block.row_begin} after {emitted[edge.producer]} producer "
                    f"rows, but with a signal per {granularity} it would wait for {last}: use row, or producer_first"
                )
        if block.col_end == graph.grids[block.op][1]:
            emitted[block.op] = block.row_end
    return None


def position_problem(graph: TileGraph, granularity: Granularity, width: int, position: WaitPosition) -> str | None:
    """Why no task would wait anywhere but before its first load."""
    if position is WaitPosition.TASK:
        return None
    if not graph.posting_ops:
        return "no tile waits for another one: use wait position task"
    if graph.tiling.in_band:
        return "operands that are read in band are waited for before the epilogue: use wait position task"
    if any(_waits_within(graph, edge, granularity, width) for edge in graph.early_edges):
        return None
    return (
        f"each task's first k-step reads something from every signal per {granularity} that it waits for, so it waits "
        "for all of them at once: use wait position task, or a finer signal"
    )


def run_ahead_problem(graph: TileGraph, percent: int) -> str | None:
    """Why weights never run ahead of a task's waits this far, or which simpler number has the same effect."""
    if percent not in RUN_AHEADS:
        return f"run-ahead of {percent} percent: use {', '.join(map(str, sorted(RUN_AHEADS)))}"
    if percent == RUN_AHEADS[0]:
        return None
    if not graph.posting_ops:
        return f"no tile waits for another one, so weights cannot run ahead: use run-ahead {RUN_AHEADS[0]}"
    if graph.tiling.in_band:
        return f"operands that are read in band are not waited for before k-steps: use run-ahead {RUN_AHEADS[0]}"
    held = held_stages(graph.tiling, percent)
    plain = next(value for value in RUN_AHEADS if held_stages(graph.tiling, value) == held)
    if plain != percent:
        ring = graph.tiling.stages_ahead
        return (
            f"{percent} percent of {ring} stages are {ring - held}, the same as {plain} percent: use run-ahead {plain}"
        )
    return None


def startup_prefetch_problem(graph: TileGraph, ordering: Ordering) -> str | None:
    """Why no first task's weights can be prefetched into the L2 at the start, or which simpler number has the same
    effect.
    """
    tiling, asked = graph.tiling, graph.tiling.startup_prefetch
    if not asked:
        return None
    if ordering.assignment is Assignment.TICKET:
        drawn = f"startup prefetch of {asked} stages with {ordering.assignment}"
        return f"{drawn}: the first task of a CTA is known only for queues and first waves; use 0, or static"
    is_split = ordering.split_tiles is SplitTiles.ALL  # with a tail, whole tiles remain
    steps = (-(-len(graph.steps(op)) // (graph.num_parts(op) if is_split else 1)) for op in graph.op_indices)
    longest = -(-max(steps) // tiling.cluster_k)
    beyond = max(0, longest - tiling.num_stages)
    plain = next(value for value in STARTUP_PREFETCHES if min(value, beyond) == min(asked, beyond))
    if plain != asked:
        task = f"the longest task of a CTA has {longest} k-steps, {beyond} more than a ring of {tiling.num_stages}"
        return f"startup prefetch of {asked} stages: {task}: use {plain}"
    return None


def _waits_within(graph: TileGraph, edge: Edge, granularity: Granularity, width: int) -> bool:
    """Whether a later k-step of a reader is the first to read what some signal covers."""
    num_parts, num_steps = graph.num_parts(edge.consumer), len(graph.steps(edge.consumer))
    stream = edge.stream_along_columns
    return stream is not None and _reads_later(stream, num_steps, num_parts, graph.strided_parts, granularity, width)


@lru_cache(maxsize=4096)  # a space calls it for each of its tilings, most of which differ only in other numbers
def _reads_later(
    stream: Streamed, num_steps: int, num_parts: int, strided: bool, granularity: Granularity, width: int
) -> bool:
    """`_waits_within` for the parts of a tile that take its k-steps in this order."""
    num_cols = len(stream.lowest)
    groups = np.array(column_groups(granularity, width, num_cols), dtype=np.int64)
    parts = (part_steps(num_steps, part, num_parts, strided=strided) for part in range(num_parts))
    steps = tuple((part.start, part.step, len(part)) for part in parts)
    for first_reads in _first_reads(stream, steps):
        is_read_first = np.zeros(num_cols, dtype=np.bool_)
        is_read_first[groups[first_reads == 0]] = True
        if not is_read_first[groups[first_reads >= 0]].all():
            return True
    return False


@lru_cache(maxsize=256)
def _first_reads(stream: Streamed, steps: tuple[tuple[int, int, int], ...]) -> Ints:
    """`Streamed.first_reads` for the parts of a tile with these k-steps; cached for all signals that may cover them."""
    return stream.first_reads(np.array(steps, dtype=np.int64))


def assignment_problem(
    graph: TileGraph, interleave: Interleave, assignment: Assignment, partition: int, num_ctas: int
) -> str | None:
    """Why the tasks cannot be assigned in this way, or which simpler assignment gives the same queues."""
    if assignment not in ASSIGNMENTS:
        return f"{assignment} existed in older kernels only: use {', '.join(ASSIGNMENTS)}"
    if not 0 <= partition < PARTITION_EIGHTHS:
        return f"a partition of {partition} eighths: use 1 to {PARTITION_EIGHTHS - 1}, or 0 for none"
    is_alone = num_ctas == 1 or graph.num_tasks == num_ctas
    if assignment is Assignment.SHARES and is_alone:
        return f"{num_ctas} CTAs for {graph.num_tasks} tasks: shares would equal the queues of static: use static"
    if assignment is Assignment.FIRST_WAVE and graph.num_tasks == num_ctas:
        return f"{num_ctas} CTAs for {graph.num_tasks} tasks: nothing is left to draw after the first wave: use static"
    if not partition:
        return None
    if assignment is not Assignment.STATIC:
        return f"a partition needs queues that are filled by stride, not {assignment}: use static, or no partition"
    if interleave.kind is not InterleaveKind.PRODUCER_FIRST:
        return f"a partition runs its ops at the same time, so {interleave} has no effect: use producer_first"
    return _partition_problem(graph, partition, num_ctas, is_alone)


def _partition_problem(graph: TileGraph, partition: int, num_ctas: int, is_alone: bool) -> str | None:
    if len(graph.op_indices) == 1 or is_alone:
        return f"nothing to partition: {len(graph.op_indices)} ops, {graph.num_tasks} tasks, {num_ctas} CTAs: use 0"
    in_first = graph.num_tasks_of(graph.op_indices[0])
    num_tasks = (in_first, graph.num_tasks - in_first)
    first = num_first_ctas(num_ctas, partition)
    split = f"{partition} eighths of {num_ctas} CTAs are {first} for {num_tasks[0]} tasks, {num_ctas - first} for "
    split += f"{num_tasks[1]}"
    plain = next(part for part in range(1, partition + 1) if num_first_ctas(num_ctas, part) == first)
    if plain != partition:
        return f"{split}, the same as with {plain}: use {plain}"
    if first > num_tasks[0] or num_ctas - first > num_tasks[1]:
        return f"{split}: some CTAs would have no task"
    sizes = (first, num_ctas - first)
    if all(size == 1 or count <= size for size, count in zip(sizes, num_tasks, strict=True)):
        ops = np.repeat((0, 1), num_tasks)
        plain_queues, queues = (
            queue_of_tasks(ops, num_ctas, Ordering(rasters=(), assignment=assignment, partition=eighths))
            for assignment, eighths in ((Assignment.SHARES, 0), (Assignment.STATIC, partition))
        )
        if np.array_equal(plain_queues, queues):
            return f"{split}, the same as the queues of shares: use shares without a partition"
    return None
