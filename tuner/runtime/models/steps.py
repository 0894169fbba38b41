"""Decode steps of transformers that kernels compute, as attentions and layers recognise them.

transformers makes a mask once per step, for all layers. For a decode step that kernels compute, `Steps.mask` returns
the lengths of the sequences instead: int32, [sequences, 1, 1, 1], which transformers passes on like a mask. A step of
one new token per sequence, without padding, over a whole cache qualifies. All other masks are those of SDPA.

Source: transformers 5.24, `masking_utils.py`.
"""

from __future__ import annotations

from typing import Any

import torch

#: The attention of transformers that computes all other steps.
PLAIN = "sdpa"


class Steps:
    """The sizes for which a model has kernels: pairs of sequences and tokens of a static cache's rows."""

    def __init__(self, name: str, *, is_on_card: bool) -> None:
        #: The name of the model's attention implementation.
        self.name = name
        #: Sizes of attentions, and of layers. On a CPU, PyTorch's operators compute any size.
        self.attentions: set[tuple[int, int]] = set()
        self.layers: set[tuple[int, int]] = set()
        self._is_on_card = is_on_card

    def has(self, sizes: set[tuple[int, int]], sequences: int, length: int) -> bool:
        """Whether `sizes` are those of kernels for these sequences and tokens of a cache's rows."""
        return not self._is_on_card or (sequences, length) in sizes

    def mask(
        self,
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: Any = 0,
        kv_offset: int = 0,
        mask_function: Any = None,
        attention_mask: torch.Tensor | None = None,
        device: Any = "cpu",
        **others: Any,
    ) -> torch.Tensor | None:
        """Called by transformers: the lengths of a step that kernels compute, or the mask of SDPA."""
        from transformers.masking_utils import causal_mask_function, sdpa_mask

        # A window or a prefix has a mask function of its own.
        is_plain = mask_function in (None, causal_mask_function) and q_length == 1 and kv_offset == 0
        is_known = self.has(self.attentions | self.layers, batch_size, kv_length)
        if is_plain and is_known and _is_dense(attention_mask, q_offset):
            lengths = torch.as_tensor(q_offset, device=device).to(torch.int32) + 1
            return lengths.reshape(-1, 1, 1, 1).expand(batch_size, 1, 1, 1).contiguous()
        found: torch.Tensor | None = sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
            mask_function=mask_function or causal_mask_function, attention_mask=attention_mask, device=device, **others,
        )  # fmt: skip
        return found


def is_lengths(mask: torch.Tensor | None) -> bool:
    """Whether it holds lengths instead of a mask."""
    return mask is not None and mask.dtype is torch.int32


def as_mask(lengths: torch.Tensor, tokens: int) -> torch.Tensor:
    """The mask of SDPA for lengths: bool, [sequences, 1, 1, tokens]."""
    return torch.arange(tokens, device=lengths.device) < lengths


def _is_dense(mask: torch.Tensor | None, q_offset: Any) -> bool:
    """Whether no token of a context is padding. The host waits for the answer, which it cannot do while a graph is
    traced or captured: pass no mask there."""
    if mask is None:
        return True
    if torch.compiler.is_compiling() or (mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    later = torch.arange(mask.shape[1], device=mask.device) > torch.as_tensor(q_offset, device=mask.device)
    return bool((mask.bool() | later).all())
