"""The device text of decode attention."""

from __future__ import annotations

from tuner.workers.source.attention import attention_source as source_of
from tuner.workers.source.attention import attention_version as version

__all__ = ["source_of", "version"]
