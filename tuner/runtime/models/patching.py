"""A pack in a model of transformers by one call; PyTorch is imported when it is made."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.runtime.programs.pack import Pack, load

if TYPE_CHECKING:
    from tuner.runtime.models.mlps import Patched


def patch(model: Any, pack: Pack | Path | str) -> Patched:
    """Puts a pack's kernels into the MLPs of a model of transformers, in place; it is for inference.

    Args:
        model: dense, with its weights where they will stay: on the card of the current context. Weights on a CPU are
            computed by PyTorch's own products, which checks all but the kernels.
        pack: opened, or its file, which is opened where a weight is on a card.

    Returns:
        How many MLPs run it, and why others do not; as a string it is a sentence.

    Raises:
        RuntimeFailure: the pack cannot be opened.
    """
    from tuner.runtime.models.mlps import patch_model

    return patch_model(model, cache(lambda: pack if isinstance(pack, Pack) else load(pack)))
