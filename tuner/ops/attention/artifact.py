"""What an artifact has of decode attention: an entry of its manifest and the files that this names."""

from __future__ import annotations

from tuner.workers.builder.attention_artifact import AttentionKernel as OpKernel

__all__ = ["OpKernel"]
