"""Winners of searches on real cards, which come with the program: a file per GPU, and what reads them."""

from tuner.winners.shipped import ShippedWinners

__all__ = ["ShippedWinners"]
