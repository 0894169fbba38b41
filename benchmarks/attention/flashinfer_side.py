"""FlashInfer's paged decode of a row, where it is installed: pages in random order, tensor cores, a plan made before.

Written for FlashInfer 0.5. Its cache has keys and values of a page one after another, tokens before heads.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from .rows import Row
from .timing import captured

NAME = "flashinfer"
#: Tokens of a page where ours has none: what its own benchmarks take.
_PAGE_TOKENS = 64
_WORKSPACE_BYTES = 256 << 20


class Operands(Protocol):
    """What a row is measured with."""

    row: Row
    #: [sequences, 1, heads, head_dim].
    q: torch.Tensor
    #: Keys and values that launches take in turns, [sequences, KV heads, max_length, head_dim].
    caches: list[tuple[torch.Tensor, ...]]
    out: torch.Tensor

    def in_turn(self, caches: Sequence[Any]) -> list[Any]:
        """Of each launch of a graph the cache, or what was made of it."""
        ...


def is_installed() -> bool:
    """Whether there is anything to time."""
    return importlib.util.find_spec("flashinfer") is not None


def captured_flashinfer(tensors: Operands) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Launches over the caches in turns, and what must live as long as the graph. The last one's result is in
    `tensors.out`."""
    import flashinfer

    row, op = tensors.row, tensors.row.op
    page_tokens = row.page_tokens or _PAGE_TOKENS
    needed = [-(-length // page_tokens) for length in row.lengths]
    order = torch.randperm(sum(needed), dtype=torch.int32, device="cuda")
    ends = torch.tensor([0, *torch.tensor(needed).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    last = [length - (pages - 1) * page_tokens for length, pages in zip(row.lengths, needed, strict=True)]
    last_tokens = torch.tensor(last, dtype=torch.int32, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"),
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=ends.clone(),
        paged_kv_indices_buffer=order.clone(),
        paged_kv_last_page_len_buffer=last_tokens.clone(),
    )
    heads = op.kv_heads * op.query_heads
    kinds = {"q_data_type": tensors.q.dtype, "kv_data_type": tensors.q.dtype}
    wrapper.plan(ends, order, last_tokens, heads, op.kv_heads, op.head_dim, page_tokens, **kinds)
    queries, out = tensors.q.view(-1, heads, op.head_dim), tensors.out.view(-1, heads, op.head_dim)
    pages = [_in_pages(cache, needed, order, page_tokens) for cache in tensors.caches]
    graph = captured([lambda one=one: wrapper.run(queries, one, out=out) for one in tensors.in_turn(pages)])  # type: ignore[misc]
    return graph, (wrapper, pages)


def _in_pages(cache: tuple[Any, ...], needed: list[int], order: torch.Tensor, page_tokens: int) -> torch.Tensor:
    """[pages, 2, page tokens, KV heads, head_dim]."""
    keys = cache[0]
    found = torch.empty(len(order), 2, page_tokens, keys.shape[1], keys.shape[3], dtype=keys.dtype, device="cuda")
    begin = 0
    for sequence, number in enumerate(needed):
        places = order[begin : begin + number].long()
        for which, whole in enumerate(cache):
            tokens = whole[sequence].transpose(0, 1)[: number * page_tokens]
            missing = number * page_tokens - tokens.shape[0]
            padded = torch.nn.functional.pad(tokens, (0, 0, 0, 0, 0, missing))
            found[places, which] = padded.view(number, page_tokens, *padded.shape[1:])
        begin += number
    return found
