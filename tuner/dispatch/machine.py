"""The cards of the server's own machine with the driver's current readings."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.workers.host.card_readings import CardReading, read_cards

__all__ = ["CardReading", "machine_cards"]


def machine_cards() -> Sequence[CardReading]:
    """All cards that the driver lists; none without a driver."""
    return read_cards()
