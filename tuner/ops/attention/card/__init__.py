"""Decode attention on a card."""

from __future__ import annotations

import importlib.util
from typing import Any

from tuner.core.problem.workload import Workload
from tuner.ops.attention.card.data import AttentionData
from tuner.ops.attention.card.library import AttentionLibrary
from tuner.ops.attention.card.products import AttentionProducts
from tuner.ops.attention.op import AttentionOp
from tuner.workers.gpu.library.vendor import Vendor
from tuner.workers.gpu.tensors.op_data import Arrays


def data_of(workload: Workload, op: AttentionOp, seed: int) -> AttentionData:
    """Queries, caches, lengths and reference results."""
    return AttentionData(workload, op, seed)


def baseline_of(
    op: AttentionOp, data: AttentionData, slots: list[Arrays], vendor: Vendor, tools: Any
) -> AttentionLibrary | AttentionProducts:
    """PyTorch's attention, or batched products if PyTorch is not installed or has no fused kernel."""
    dtype = data.workload.dtype
    if importlib.util.find_spec("torch") is not None and op.form.soft_cap is None:
        return AttentionLibrary(op, dtype, slots[0])
    library = AttentionProducts(vendor, op, dtype, tools)
    for arrays in slots:
        library.make_ready(arrays)
    return library
