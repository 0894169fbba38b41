"""Our operators over a cache laid out as by vLLM's GPU backends, compared with vLLM's attention, rotary embedding and
slots.

PyTorch's formulas of the operators replace the kernels, which cannot read this cache yet: this shows which elements a
kernel must read and write, but tests no kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm")
#: Warnings of PyTorch and vLLM, which are imported here.
pytestmark = pytest.mark.filterwarnings("ignore")

HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 8, 2, 64, 96
#: Tokens of each sequence, including its new one: within a block, after one, and at a block's last position.
LENGTHS = (5, 33, 48)
#: Block sizes of GPUs and of the CPU.
TOKENS, TOKENS_OF_CPU = 16, 32
BLOCKS = 16
#: bf16 has 8 bits.
BAND = 2**-7


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    from vllm.config import VllmConfig, set_current_vllm_config

    torch.manual_seed(1)
    with set_current_vllm_config(VllmConfig()):
        yield


@pytest.fixture(params=["NHD", "HND"])
def cache(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A layer's cache, created as by vLLM's model runner; NaN where nothing was written."""
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend
    from vllm.v1.attention.backends.utils import set_kv_cache_layout

    set_kv_cache_layout(request.param)
    shape = FlashAttentionBackend.get_kv_cache_shape(BLOCKS, TOKENS, KV_HEADS, HEAD_DIM)
    order = FlashAttentionBackend.get_kv_cache_stride_order()
    memory = torch.full([shape[dim] for dim in order], torch.nan, dtype=torch.bfloat16)
    yield memory.permute([order.index(dim) for dim in range(len(order))])
    set_kv_cache_layout(None)


def halves(cache: Any) -> tuple[Any, Any]:
    """Keys and values as our operators take them: [blocks, KV heads, tokens, head_dim]."""
    return cache[..., :HEAD_DIM], cache[..., HEAD_DIM:]


def table(tokens: int) -> Any:
    """Blocks of each sequence in random order, as in vLLM's table."""
    each = -(-max(LENGTHS) // tokens)
    return torch.randperm(BLOCKS, dtype=torch.int32)[: len(LENGTHS) * each].view(len(LENGTHS), each)


def slots(blocks: Any, starts: Any, positions: Any, tokens: int) -> Any:
    """The slots to which vLLM writes the tokens at `positions`."""
    found = torch.empty(positions.shape[0], dtype=torch.int64)
    torch.ops._C.compute_slot_mapping_kernel_impl(starts, positions, blocks, found, tokens)
    return found


def ends(counts: tuple[int, ...]) -> Any:
    return torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)


def put(cache: Any, keys: Any, values: Any, at: Any) -> None:
    """Writes rows of tokens to their slots."""
    cache[at // TOKENS, :, at % TOKENS] = torch.cat([keys, values], dim=-1)


def of_vllm(q: Any, keys: Any, values: Any, window: int, soft_cap: float) -> Any:
    """vLLM's attention on a CPU, over a cache in its own layout."""
    from vllm import _custom_ops as ops

    blocks, starts = table(TOKENS_OF_CPU), ends(LENGTHS)
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    at = slots(blocks, starts, places, TOKENS_OF_CPU)
    memory = torch.zeros(BLOCKS, KV_HEADS, 2 * TOKENS_OF_CPU, HEAD_DIM, dtype=torch.bfloat16)
    key_cache, value_cache = memory.chunk(2, dim=2)
    scales = {"k_scale": 1.0, "v_scale": 1.0, "kv_cache_dtype": "auto"}
    ops.cpu_attn_reshape_and_cache(keys, values, key_cache, value_cache, at, "vec", **scales)
    lengths, of_queries = torch.tensor(LENGTHS, dtype=torch.int32), ends((1,) * len(LENGTHS))
    planned = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(LENGTHS),
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        seq_lens=lengths,
        dtype=torch.bfloat16,
        query_start_loc=of_queries,
        causal=True,
        sliding_window_size=window or -1,
        isa="vec",
        enable_kv_split=False,
        dynamic_causal=None,
    )
    found = torch.empty_like(q)
    ops.cpu_attention_with_kv_cache(
        query=q,
        key_cache=key_cache,
        value_cache=value_cache,
        output=found,
        query_start_loc=of_queries,
        seq_lens=lengths,
        scale=HEAD_DIM**-0.5,
        causal=True,
        alibi_slopes=None,
        sliding_window=window or -1,
        block_table=blocks,
        softcap=soft_cap,
        scheduler_metadata=planned,
        s_aux=None,
        dynamic_causal=None,
        **scales,
    )
    return found


@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (7, 0.0), (0, 5.0)])
def test_attention_over_vllms_packed_blocks_is_vllms_own(cache: Any, window: int, soft_cap: float) -> None:
    from tuner.runtime.torch_attention import by_torch

    count = sum(LENGTHS)
    keys, values = (torch.randn(count, KV_HEADS, HEAD_DIM).to(torch.bfloat16) for _ in range(2))
    q = torch.randn(len(LENGTHS), HEADS, HEAD_DIM).to(torch.bfloat16)
    blocks = table(TOKENS)
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    put(cache, keys, values, slots(blocks, ends(LENGTHS), places, TOKENS))
    lengths, rows = torch.tensor(LENGTHS, dtype=torch.int32), q.view(len(LENGTHS), -1)
    found = by_torch(rows, *halves(cache), lengths, blocks, None, True, HEAD_DIM**-0.5, window, soft_cap)
    wanted = of_vllm(q, keys, values, window, soft_cap).view_as(found)
    assert not bool(found.isnan().any())
    assert torch.allclose(found.float(), wanted.float(), atol=BAND, rtol=BAND)
    if window or soft_cap:
        plain = of_vllm(q, keys, values, 0, 0.0).view_as(found)
        assert not torch.allclose(found.float(), plain.float(), atol=BAND, rtol=BAND)


def test_from_qkv_on_a_step_writes_what_vllm_writes_where_its_slots_say(cache: Any) -> None:
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    from tuner.runtime.torch_layer import by_torch, halves_first

    rope = RotaryEmbedding(HEAD_DIM, HEAD_DIM, 256, 10000, True, torch.bfloat16)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    x = torch.randn(len(LENGTHS), HIDDEN).to(torch.bfloat16)
    w_qkv = (torch.randn(width, HIDDEN) / HIDDEN**0.5).to(torch.bfloat16)
    w_o = (torch.randn(HIDDEN, HEADS * HEAD_DIM) / 20).to(torch.bfloat16)
    blocks, before = table(TOKENS), tuple(length - 1 for length in LENGTHS)
    old_keys, old_values = (torch.randn(sum(before), KV_HEADS, HEAD_DIM).to(torch.bfloat16) for _ in range(2))
    places = torch.cat([torch.arange(length) for length in before])
    put(cache, old_keys, old_values, slots(blocks, ends(before), places, TOKENS))

    positions = torch.tensor(before)
    sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    q, k, v = torch.nn.functional.linear(x, w_qkv).split(sizes, dim=-1)
    q, k = rope.forward_native(positions, q.contiguous(), k.contiguous())
    theirs = cache.clone(memory_format=torch.preserve_format)
    at = slots(blocks, ends((1,) * len(LENGTHS)), positions, TOKENS)
    put(theirs, k.view(-1, KV_HEADS, HEAD_DIM), v.reshape(-1, KV_HEADS, HEAD_DIM), at)

    frequencies = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    options = (None, None, None, False, True, HEAD_DIM**-0.5, 0, 0.0, 0)
    found = by_torch(
        x, None, halves_first(w_qkv, HEAD_DIM), None, frequencies, *halves(cache), lengths, blocks, w_o, *options
    )
    assert torch.equal(cache.isnan(), theirs.isnan()), "other lines were written"
    assert torch.allclose(cache.nan_to_num().float(), theirs.nan_to_num().float(), atol=BAND, rtol=2 * BAND)

    keys, values = (
        torch.cat([part for s in range(len(LENGTHS)) for part in (rows[s], new[s : s + 1])])
        for rows, new in (
            (old_keys.split(before), k.view(-1, KV_HEADS, HEAD_DIM)),
            (old_values.split(before), v.reshape(-1, KV_HEADS, HEAD_DIM)),
        )
    )
    attended = of_vllm(q.view(-1, HEADS, HEAD_DIM).contiguous(), keys, values, 0, 0.0)
    wanted = torch.nn.functional.linear(attended.view(len(LENGTHS), -1), w_o)
    assert torch.allclose(found.float(), wanted.float(), atol=2 * BAND, rtol=2 * BAND)


def test_a_padded_request_of_a_full_graph_writes_nothing(cache: Any) -> None:
    """vLLM pads a graph's requests with a length of 0 and a slot of -1."""
    from tuner.runtime.torch_layer import by_torch, halves_first

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    w_qkv, w_o = torch.randn(width, HIDDEN).to(torch.bfloat16), torch.randn(HIDDEN, HEADS * HEAD_DIM).to(torch.bfloat16)
    lengths, blocks = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    x, frequencies = torch.randn(2, HIDDEN).to(torch.bfloat16), torch.ones(HEAD_DIM // 2)
    options = (None, None, None, False, True, HEAD_DIM**-0.5, 0, 0.0, 0)
    found = by_torch(
        x, None, halves_first(w_qkv, HEAD_DIM), None, frequencies, *halves(cache), lengths, blocks, w_o, *options
    )
    assert bool(cache.isnan().all())
    assert bool((found == 0).all())
