"""The built-in winners for a row: those of the same card model, or of another if there are none."""

from __future__ import annotations

from tuner.core.trial.priors import Found
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER


def kept_for(row_name: str, gpu_id: str) -> list[Found]:
    """Shipped winners of a row, the fastest first; times are of the model on which they were measured."""
    winners = ShippedWinners()
    others = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != gpu_id)
    for model in (gpu_id, *others):
        if found := [one for one in winners.of(model) if one.source == f"shipped {row_name}"]:
            return sorted(found, key=lambda one: one.time_us)
    return []
