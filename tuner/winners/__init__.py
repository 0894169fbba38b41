"""Built-in winners: results of searches on real cards, a file per GPU, and their reader."""

from tuner.winners.shipped import ShippedWinners

__all__ = ["ShippedWinners"]
