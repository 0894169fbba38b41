"""The winners that ship with the program for a row: those of a card's model, or those of another where it has none."""

from __future__ import annotations

from tuner.core.trial.priors import Found
from tuner.winners import ShippedWinners
from tuner.winners.shipped import FOLDER


def kept_for(row_name: str, gpu_id: str) -> list[Found]:
    """The fastest first; times of another model are not this one's."""
    winners = ShippedWinners()
    others = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != gpu_id)
    for model in (gpu_id, *others):
        if found := [one for one in winners.of(model) if one.source == f"shipped {row_name}"]:
            return sorted(found, key=lambda one: one.time_us)
    return []
