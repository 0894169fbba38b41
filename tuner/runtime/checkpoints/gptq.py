"""GPTQ's int4: qweight [k / 8, rows], eight codes along k per word, scales [k / group, rows], qzeros [.., rows / 8].

Source: AutoGPTQ's and GPTQModel's checkpoints, `quant_method` gptq. A zero point is stored minus one, except with
`checkpoint_format` gptq_v2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.weights import WeightFormat
from tuner.core.problem.weights.int4 import ZERO
from tuner.errors import InvalidInput
from tuner.runtime.checkpoints.bits import Array, nibbles, words_of
from tuner.runtime.checkpoints.product import Product, Tensors


def read(tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat) -> Product:
    """Reads a product.

    Raises:
        InvalidInput: the message names the tensor, and what is expected.
    """
    codes = np.ascontiguousarray(nibbles(np.ascontiguousarray(tensors.words("qweight").T)))
    rows, k = codes.shape
    groups = tensors.groups(k, stored)
    factors, dtype = tensors.factors("scales", (groups, rows))
    zeros = tensors.words("qzeros", (groups, rows // 8))
    points = nibbles(zeros).astype(np.int64) + ZERO - _zero(config)
    if not stored.row.has_zeros and (points != ZERO).any():
        problem = f"has a zero point of {points[points != ZERO][0]}, but the config says sym, which means {ZERO}"
        raise InvalidInput(f"{tensors.name}.qzeros", problem, "use the config of this checkpoint (sym false)")
    if (points > 15).any():
        problem = "has a zero point of 16, which does not fit in 4 bits"
        raise InvalidInput(f"{tensors.name}.qzeros", problem, "quantise that group again")
    order = tensors.get("g_idx")
    if order is not None and (order[0] != np.arange(k) // stored.row.group).any():
        problem = "is in activation order (act order), but kernels read k in storage order"
        raise InvalidInput(f"{tensors.name}.g_idx", problem, "quantise with desc_act false")
    kept = np.ascontiguousarray(points.T).astype(np.uint8) if stored.row.has_zeros else None
    return Product(stored=stored, codes=codes, factors=np.ascontiguousarray(factors.T), dtype=dtype, zeros=kept)


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """Inverse of `read`: bits by tensor."""
    assert product.factors is not None
    rows, k = product.codes.shape
    points = np.full((k // product.stored.row.group, rows), ZERO) if product.zeros is None else product.zeros.T
    zeros = points.astype(np.int64) - ZERO + _zero(config)
    return {
        "qweight": np.ascontiguousarray(words_of(product.codes).T),
        "scales": np.ascontiguousarray(product.factors.T),
        "qzeros": words_of(zeros.astype(np.uint8)),
        "g_idx": (np.arange(k) // product.stored.row.group).astype(np.int32),
    }


def _zero(config: Mapping[str, Any]) -> int:
    """The stored zero point."""
    return ZERO if config.get("checkpoint_format") == "gptq_v2" else ZERO - 1
