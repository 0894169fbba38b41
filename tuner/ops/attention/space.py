"""What is offered of decode attention."""

from __future__ import annotations

from tuner.core.space.attention import AttentionSpace as OpSpace

__all__ = ["OpSpace"]
