"""Patches a model of transformers with a pack in one call; PyTorch is imported on that call."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.runtime.programs.pack import Pack, load

if TYPE_CHECKING:
    from tuner.runtime.models.patched import Patched


def patch(
    model: Any, pack: Pack | Path | str, *, attentions: bool | None = None, layers: bool | None = None
) -> Patched:
    """Puts a pack's kernels into a model of transformers, in place, for inference: its MLPs, and in decode steps over a
    static cache its attentions with their projections, and whole layers.

    Weights of the norms before MLPs are folded into layers that are replaced, so load weights before. Continuous
    batching requires `model.set_attn_implementation("sdpa")` then, after which kernels only compute MLPs.

    Args:
        model: dense, with its weights on their final device: the card of the current context. For weights on a CPU,
            PyTorch's own products are used, which tests everything except the kernels.
        pack: an open pack, or its file, which is opened if a weight is on a card.
        attentions: whether attentions are replaced; by default if the pack has kernels for them.
        layers: whether layers that begin with their norm and qkv are replaced; by default if the pack has such kernels.

    Returns:
        How many modules use it, and why others do not; printed as a sentence.

    Raises:
        RuntimeFailure: the pack cannot be opened.
    """
    from tuner.runtime.models.patched import patch_model

    opened = cache(lambda: pack if isinstance(pack, Pack) else load(pack))
    return patch_model(model, opened, attentions=attentions, layers=layers)
