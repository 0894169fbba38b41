"""Patches a model of transformers with a pack in one call; PyTorch is imported on that call."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.runtime.programs.pack import Pack, load

if TYPE_CHECKING:
    from tuner.runtime.models.mlps import Patched


def patch(model: Any, pack: Pack | Path | str) -> Patched:
    """Puts a pack's kernels into the MLPs of a model of transformers, in place, for inference.

    Args:
        model: dense, with its weights on their final device: the card of the current context. For weights on a CPU,
            PyTorch's own products are used, which tests everything except the kernels.
        pack: an open pack, or its file, which is opened if a weight is on a card.

    Returns:
        How many MLPs use it, and why others do not; printed as a sentence.

    Raises:
        RuntimeFailure: the pack cannot be opened.
    """
    from tuner.runtime.models.mlps import patch_model

    return patch_model(model, cache(lambda: pack if isinstance(pack, Pack) else load(pack)))
