"""When a schedule of decode attention is legal."""

from __future__ import annotations

from tuner.core.legal.attention import attention_problem as refuse

__all__ = ["refuse"]
