"""What a launch of decode attention runs: its tasks and queues."""

from __future__ import annotations

from tuner.core.proof.attention import attention_plan as plan_of

__all__ = ["plan_of"]
