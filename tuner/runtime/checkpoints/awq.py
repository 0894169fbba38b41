"""AWQ's int4: qweight [k, rows / 8], scales [k / group, rows], qzeros [k / group, rows / 8]: eight rows per word.

Source: AutoAWQ's checkpoints, `quant_method` awq, in its usual layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.core.problem.weights import WeightFormat
from tuner.runtime.checkpoints.bits import Array, nibbles, words_of
from tuner.runtime.checkpoints.product import Product, Tensors

#: The row of each of the eight codes in a word, lowest bits first.
_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])


def read(tensors: Tensors, config: Mapping[str, Any], stored: WeightFormat) -> Product:
    """Reads a product.

    Raises:
        InvalidInput: the message names the tensor, and what is expected.
    """
    del config
    words = tensors.words("qweight")
    k, rows = words.shape[0], 8 * words.shape[1]
    groups = tensors.groups(k, stored)
    factors, dtype = tensors.factors("scales", (groups, rows))
    zeros = tensors.words("qzeros", (groups, rows // 8))
    return Product(
        stored=stored,
        codes=np.ascontiguousarray(_by_row(words).T),
        factors=np.ascontiguousarray(factors.T),
        dtype=dtype,
        zeros=np.ascontiguousarray(_by_row(zeros).T),
    )


def write(product: Product, config: Mapping[str, Any]) -> dict[str, Array]:
    """Inverse of `read`: bits by tensor."""
    del config
    assert product.factors is not None
    assert product.zeros is not None
    return {
        "qweight": _in_words(product.codes.T),
        "scales": np.ascontiguousarray(product.factors.T),
        "qzeros": _in_words(product.zeros.T),
    }


def _by_row(words: Array) -> Array:
    """[.., rows] from [.., rows / 8]."""
    held = nibbles(words).reshape(words.shape[0], -1, 8)
    found = np.empty_like(held)
    found[:, :, _ORDER] = held
    return found.reshape(words.shape[0], -1)


def _in_words(codes: Array) -> Array:
    eights = np.ascontiguousarray(codes).reshape(codes.shape[0], -1, 8)
    return words_of(np.ascontiguousarray(eights[:, :, _ORDER]).reshape(codes.shape))
