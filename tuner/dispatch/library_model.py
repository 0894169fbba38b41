"""What the simulated twin says that a vendor library takes: a model's figure, never a card's."""

from __future__ import annotations

from tuner.workers.simulated.library import library_us

__all__ = ["library_us"]
