"""The simulated card's time for a vendor library, which comes from a model, never from a card."""

from __future__ import annotations

from tuner.workers.simulated.library import library_us

__all__ = ["library_us"]
