"""Batch-invariant ladders: a row's bits depend neither on the number of rows nor on its position.

Up to the largest m there are only kernels, all of which sum in the same order (`tuner.core.proof.order_of_sums`). The
library does not guarantee that, so it is used only for more rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from tuner.core.trial.ladders.ladder import served_from
from tuner.errors import InvalidInput
from tuner.packs.contents import Entry, Rung
from tuner.packs.ladder import MAX_ROWS, Found
from tuner.packs.shapes import Shape


def make_invariant_entry(shape: Shape, results: Sequence[Found]) -> Entry:
    """The ladder of a shape with kernels of one order: the order with the largest measured gain over all m.

    If a kernel has a different order, the next larger one with this order serves its rows; its gain for these was not
    measured.

    Raises:
        InvalidInput: no kernel for the largest m has an order in which rows are independent.
    """
    largest = max(result.m for result in results)
    orders: dict[str, dict[int, Found]] = defaultdict(dict)
    for result in results:
        if result.kernel is not None and (order := result.kernel.order_of_sums):
            orders[order][result.m] = result
    whole = {order: of_it for order, of_it in orders.items() if largest in of_it}
    if not whole:
        most = max((m for of_it in orders.values() for m in of_it), default=0)
        remedy = f"request rows up to {most}" if most else "tune the shape again with this version"
        raise InvalidInput(
            "batch_invariant",
            (f"{shape}: no kernel for {largest} rows computes the same bits for a row at every position"),
            remedy,
        )
    order = min(whole, key=lambda order: (-_gain(whole[order]), len(whole[order]), order))
    rungs = _rungs(sorted(results, key=lambda result: result.m), whole[order])
    above = Rung(m_lo=largest + 1, m_hi=MAX_ROWS, kernel=None)
    return Entry(shape=shape, rungs=(*rungs, above), invariant_rows=largest)


def _gain(of_it: dict[int, Found]) -> float:
    """The gain of the kernels where they were measured; rows that another kernel serves have no gain."""
    return sum(math.log(found.speedup) for found in of_it.values() if found.speedup)


def _rungs(results: Sequence[Found], of_order: dict[int, Found]) -> list[Rung]:
    rungs: list[Rung] = []
    for result in results:
        begin = rungs[-1].m_hi + 1 if rungs else 1
        own = of_order.get(result.m)
        server = own or next(of_order[m] for m in sorted(of_order) if m > result.m)
        # This far below its own rows, a kernel's gain is unknown.
        near = served_from(result.m, begin - 1) if own else begin
        given_up = {"without_the_promise": result.best_speedup}
        if near > begin:
            rungs.append(Rung(m_lo=begin, m_hi=near - 1, kernel=server.kernel, provenance=server.provenance))
        rungs.append(
            Rung(
                m_lo=near,
                m_hi=result.m,
                kernel=server.kernel,
                library=result.library,
                speedup=own.speedup if own else None,
                interval=own.interval if own else None,
                provenance={**server.provenance, **given_up},
            )
        )
    return rungs
