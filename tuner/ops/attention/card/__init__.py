"""Decode attention, and products around it, on a card."""

from __future__ import annotations

import importlib.util
from typing import Any

from tuner.core.trial.evaluator import Problem
from tuner.ops.attention.card.data import AttentionData
from tuner.ops.attention.card.library import AttentionLibrary
from tuner.ops.attention.card.products import AttentionProducts
from tuner.workers.gpu.cublaslt import CublasLt
from tuner.workers.protocol.stopwatch import Stopwatch


def data_of(problem: Problem, l2_bytes: int, watch: Stopwatch) -> AttentionData:
    """Queries, caches, lengths and references.

    Raises:
        DoesNotFit: the card's free memory does not hold one copy.
    """
    return AttentionData(problem, l2_bytes, watch)


def library_of(lt: CublasLt, data: AttentionData, tools: Any) -> AttentionLibrary | AttentionProducts:
    """PyTorch's attention, and batched products where that is not installed or has no fused kernel."""
    if importlib.util.find_spec("torch") is None or data.attention.form.soft_cap is not None:
        return AttentionProducts(lt, data, tools)
    return AttentionLibrary(lt, data, tools)
