"""The energy of one run: the chain runs repeatedly without a pause, while the driver's counter is read."""

from __future__ import annotations

import math
import time
from typing import Any

from ...timing.energy import Energy, Reading, energy_of, is_enough
from .timing import Timer

#: Seconds between two readings: the card's counter changes in steps of tens of milliseconds.
_TURN_S = 0.005
#: Seconds of load before the first reading: the card settles at its power limit.
_SETTLE_S = 0.1
#: Seconds after which the measurement is abandoned because the counter does not change.
_PATIENCE_S = 3.0


def measure_energy(timer: Timer, graph: Any) -> Energy | str:
    """The energy of one run of the chain `graph`, or why there is none.

    Every run is under sustained load, whatever the regime of the times.
    """
    if timer.card is None or timer.card.energy_mj() is None:
        return "the driver does not report energy"
    if timer.data.needs_flush:
        return "the runs cannot be kept cold-cache: too few inputs to evict the weights from the L2"
    chain_length = timer.data.chain_length
    launches_a_turn = math.ceil(_TURN_S / (1e-6 * timer.sample_us(graph) * chain_length))
    readings: list[Reading] = []
    start = time.perf_counter()
    for num_launches in timer.keep_busy(graph, launches_a_turn):
        total_mj, now = timer.card.energy_mj(), time.perf_counter()
        if total_mj is None or now - start > _SETTLE_S + _PATIENCE_S:
            break
        if now - start > _SETTLE_S:
            readings.append(Reading(at_s=now, total_mj=total_mj, num_runs=num_launches * chain_length))
        if is_enough(readings):
            break
    timer.stream.synchronize()
    return energy_of(readings) or "the driver's energy counter did not change for long enough"
