"""The order in which a kernel and its plan add the products of an output element.

A row's bits do not depend on the number of rows or its position if every tile row of an op sums its products in the
same order. Kernels with the same order compute the same bits for a row, so a ladder of such kernels is batch-invariant.

An order consists of the engine, which of its operands are the weights, how it stores, and for each op, the k-steps of
each sum and which sums are added. It does not include tile sizes. Every engine adds a sum's products
in slices of its instruction's depth, from the first column of k on, and zeros after k change no sum.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.core.proof.verify import VerifiedPlan
from tuner.core.schedule.tiling import Epilogue, Tiling

#: The sums of a tile: the first k-step, the stride and the number of steps of each.
_Sums = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class OrderOfSums:
    """An order, and whether it is the same for each row."""

    #: Equal texts mean equal bits of a row.
    text: str
    #: Whether a row's bits depend only on its own values.
    is_of_rows: bool


def order_of_sums(plans: Sequence[VerifiedPlan]) -> OrderOfSums:
    """The order of a kernel's launches."""
    tiling = plans[0].graph.tiling
    texts, is_of_rows = [_engine(tiling)], not _is_shared_among_rows(tiling)
    for plan in plans:
        for op, by_column in sorted(_sums_of_tiles(plan).items()):
            is_of_rows = is_of_rows and all(len(rows) == 1 for rows in by_column.values())
            one = plan.graph.workload.tile_ops[op]
            columns = [
                " or ".join(_words(sums, tiling, op, one.k) for sums in sorted(rows)) for rows in by_column.values()
            ]
            texts.append(f"{one.name}: {_joined(columns, tiling.tiles[op].n)}")
    return OrderOfSums(text="; ".join(texts), is_of_rows=is_of_rows)


def _engine(tiling: Tiling) -> str:
    swapped = " swap-ab" if tiling.swap_ab else ""
    stores = f" {tiling.epilogue}-epilogue" if tiling.epilogue is not Epilogue.DIRECT else ""
    return f"{tiling.engine}{swapped}{stores}"


def _is_shared_among_rows(tiling: Tiling) -> bool:
    """Whether CTAs that split K finish different rows of a tile, each starting with its own sum. With two sums there is
    only one order, since addition commutes."""
    return tiling.swap_ab and tiling.cluster_k > 2


def _sums_of_tiles(plan: VerifiedPlan) -> dict[int, dict[int, set[_Sums]]]:
    """By op and tile column, the ways in which the tiles of the column are added up."""
    tasks = plan.plan.tasks
    parts: dict[tuple[int, int, int], dict[int, tuple[int, int, int]]] = defaultdict(dict)
    for (op, row, column, part), steps in zip(
        tasks[:, [0, 1, 2, 6]].tolist(), plan.graph.steps_of(tasks).tolist(), strict=True
    ):
        parts[op, row, column][part] = tuple(steps)
    found: dict[int, dict[int, set[_Sums]]] = defaultdict(lambda: defaultdict(set))
    for (op, _, column), of_tile in sorted(parts.items()):
        found[op][column].add(tuple(steps for _, steps in sorted(of_tile.items())))
    return found


def _words(sums: _Sums, tiling: Tiling, op: int, depth: int) -> str:
    """How one tile is added up, in columns of k."""
    step = tiling.tiles[op].k
    texts = []
    for first, stride, count in sums:
        if stride == 1:
            texts.append(f"{first * step}-{min((first + count) * step, depth)}")
        else:
            texts.append(f"every {stride}. {step} from {first * step}")
    shared = f", each {step} by another one of {tiling.cluster_k} CTAs" if tiling.cluster_k > 1 else ""
    # The columns of a tile determine which of several CTAs finishes a column.
    shared += f" that share {tiling.tiles[op].n} columns" if tiling.cluster_k > 2 else ""
    return " + ".join(texts) + shared


def _joined(columns: list[str], width: int) -> str:
    if len(set(columns)) == 1:
        return columns[0]
    digest = hashlib.sha256("\n".join(columns).encode()).hexdigest()[:16]
    return f"column by column of {width}, {digest}"
