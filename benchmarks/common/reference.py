"""The minimum time of a problem on a card, from measured rates of the card's model, not from its data sheet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.report import results_file
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The maximum rates of a card."""

    read_bytes_per_s: float
    #: Of a large product.
    flops_per_s: float


#: A few measurements were up to 2 % higher.
H200 = Rates(read_bytes_per_s=4.4e12, flops_per_s=790e12)


def rates_file(target_id: str) -> Path:
    """The file of a target's rates; a simulated target has the file of its card."""
    return results_file(target_id.removeprefix(SIMULATED_PREFIX), "rates")


def rates_of(target_id: str) -> Rates | None:
    """The rates of a target, or of the card that it simulates; None if they were not measured."""
    if target_id.removeprefix(SIMULATED_PREFIX) == "h200":
        return H200
    path = rates_file(target_id)
    if not path.exists():
        return None
    rows = {row["rate"]: row["value"] for row in json.loads(path.read_text())["rows"]}
    return Rates(read_bytes_per_s=rows["read_bytes_per_s"], flops_per_s=rows["flops_per_s"])


def reference_us(workload: Workload, rates: Rates) -> float:
    """The time of the weights' bytes, or of the products, whichever is longer."""
    return max(1e6 * workload.weight_bytes / rates.read_bytes_per_s, 1e6 * workload.num_flops / rates.flops_per_s)
