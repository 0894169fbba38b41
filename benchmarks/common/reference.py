"""The least that a problem takes on a card: by what was measured of that card's model, not by its data sheet."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.report import results_file
from tuner.core.problem.gpu import SIMULATED_PREFIX
from tuner.core.problem.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a card does at best."""

    read_bytes_per_s: float
    #: In one large product.
    flops_per_s: float


#: A per cent or two better was seen.
H200 = Rates(read_bytes_per_s=4.4e12, flops_per_s=790e12)


def rates_file(target_id: str) -> Path:
    """Where `benchmarks.common.rates` writes what it measured of a target, be it simulated."""
    return results_file(target_id.removeprefix(SIMULATED_PREFIX), "rates")


def rates_of(target_id: str) -> Rates | None:
    """Those of a target, and of a simulated one those of the card that it stands for; None where nobody measured it."""
    if target_id.removeprefix(SIMULATED_PREFIX) == "h200":
        return H200
    path = rates_file(target_id)
    if not path.exists():
        return None
    rows = {row["rate"]: row["value"] for row in json.loads(path.read_text())["rows"]}
    return Rates(read_bytes_per_s=rows["read_bytes_per_s"], flops_per_s=rows["flops_per_s"])


def reference_us(workload: Workload, rates: Rates) -> float:
    """What the weights' bytes take, or the products, the larger one."""
    return max(1e6 * workload.weight_bytes / rates.read_bytes_per_s, 1e6 * workload.num_flops / rates.flops_per_s)
