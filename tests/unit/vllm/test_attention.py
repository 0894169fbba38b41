"""Whether a pack's attentions can read vLLM's cache: by shapes, strides, lengths and features of its attention."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.packs import make
from tuner.ops.attention.pack.shape import AttentionShape
from tuner.packs.contents import Rung
from tuner.vllm.attention import Served, dense, reasons_against

OURS = AttentionShape(
    dtype="bf16",
    heads=32,
    kv_heads=8,
    head_dim=128,
    new_tokens=1,
    page_tokens=16,
    heads_first=False,
    window=0,
    soft_cap=0.0,
    scale=128**-0.5,
    d_out=4096,
)


class FlashAttention:
    """The cache of this backend in vLLM 0.26, from `vllm/v1/attention/backends/flash_attn.py`."""

    order = (0, 2, 1, 3)

    @staticmethod
    def get_name() -> str:
        return "FLASH_ATTN"

    @staticmethod
    def get_kv_cache_shape(blocks: int, tokens: int, kv_heads: int, dim: int, cache_dtype_str: str) -> tuple[int, ...]:
        assert cache_dtype_str
        return blocks, kv_heads, tokens, 2 * dim

    @classmethod
    def get_kv_cache_stride_order(cls) -> tuple[int, ...]:
        return cls.order


class HeadsFirst(FlashAttention):
    order = (0, 1, 2, 3)


class OfTheCpu(FlashAttention):
    @staticmethod
    def get_name() -> str:
        return "CPU_ATTN"

    @classmethod
    def get_kv_cache_stride_order(cls) -> tuple[int, ...]:
        raise NotImplementedError


def served(max_length: int = 2048, backend: type = FlashAttention, **changes: Any) -> Served:
    """Llama-3-8B's attention, as vLLM serves it."""
    impl = SimpleNamespace(scale=128**-0.5, logits_soft_cap=changes.pop("soft_cap", None), alibi_slopes=None)
    for name in ("alibi_slopes", "scale"):
        setattr(impl, name, changes.pop(name, getattr(impl, name)))
    config = SimpleNamespace(
        model_config=SimpleNamespace(dtype=changes.pop("dtype", "torch.bfloat16"), max_model_len=max_length),
        cache_config=SimpleNamespace(block_size=changes.pop("block_size", 16)),
        parallel_config=SimpleNamespace(decode_context_parallel_size=changes.pop("ranks", 1)),
        num_speculative_tokens=changes.pop("drafts", 0),
    )
    attention = SimpleNamespace(
        **{
            "num_heads": 32,
            "num_kv_heads": 8,
            "head_size": 128,
            "sliding_window": None,
            "kv_cache_dtype": "auto",
            "attn_type": "decoder",
            "kv_sharing_target_layer_name": None,
            "has_sink": False,
            **changes,
        },
        attn_backend=backend,
        impl=impl,
    )
    return Served.of(attention, config)


def reaching(max_length: int) -> list[Rung]:
    """A table with a kernel up to a context of `max_length` tokens, and the library beyond."""
    kernel = make().kernel
    return [
        Rung(m_lo=16, m_hi=16, max_length=max_length, kernel=kernel, speedup=1.1),
        Rung(m_lo=16, m_hi=16, max_length=2 * max_length, kernel=None),
    ]


@pytest.mark.parametrize(("backend", "heads_first"), [(FlashAttention, False), (HeadsFirst, True)])
def test_the_steps_are_those_of_vllms_tensor(backend: type, heads_first: bool) -> None:
    torch = pytest.importorskip("torch")
    shape = backend.get_kv_cache_shape(3, 16, 8, 128, "auto")  # type: ignore[attr-defined]
    order = backend.get_kv_cache_stride_order()  # type: ignore[attr-defined]
    memory = torch.empty([shape[dim] for dim in order])
    cache = memory.permute([order.index(dim) for dim in range(4)])
    assert tuple(cache.shape) == shape
    found = served(backend=backend).steps
    assert (found.block, found.head, found.token) == cache[..., :128].stride()[:3]
    assert found == dense(8, 16, 256, heads_first=heads_first)
    assert served(backend=backend).shape.heads_first is heads_first


@pytest.mark.parametrize("line", [128, 256, 320])
def test_lines_may_have_gaps_as_where_keys_and_values_lie_side_by_side(line: int) -> None:
    assert reasons_against(served(), OURS, reaching(2048)) == []
    steps = dense(8, 16, line, heads_first=False)
    assert reasons_against(replace(served(), steps=steps), OURS, reaching(2048)) == []
    apart = replace(steps, block=steps.block + 8 * line)
    assert reasons_against(replace(served(), steps=apart), OURS, reaching(2048)) == []


@pytest.mark.parametrize("changes", [{"token": 1032}, {"head": 129, "token": 8 * 129}, {"head": 2048, "token": 128}])
def test_lines_at_odd_steps_are_named(changes: dict[str, int]) -> None:
    steps = replace(dense(8, 16, 128, heads_first=False), **changes)
    (found,) = reasons_against(replace(served(), steps=steps), OURS, reaching(2048))
    assert found.startswith(f"the cache has strides of {steps.head} elements between heads and {steps.token} between")


def test_one_kv_head_lies_tokens_first_where_vllm_says_so() -> None:
    """The strides from head to head and from token to token are equal."""
    ours = replace(OURS, kv_heads=1)
    assert reasons_against(served(num_kv_heads=1), ours, reaching(2048)) == []
    of_heads = replace(ours, heads_first=True)
    assert reasons_against(served(num_kv_heads=1, backend=HeadsFirst), of_heads, reaching(2048)) == []


def test_a_backend_whose_steps_have_no_table_is_named() -> None:
    class FlashInfer(FlashAttention):
        @staticmethod
        def get_name() -> str:
            return "FLASHINFER"

    assert reasons_against(served(backend=FlashInfer), OURS, reaching(2048)) == [
        "backend FLASHINFER has no block table; use --attention-backend FLASH_ATTN"
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "torch.float16"}, "dtype is fp16 here and bf16 in the pack"),
        ({"num_heads": 4}, "heads is 4 here and 32 in the pack"),
        ({"num_kv_heads": 1}, "KV heads is 1 here and 8 in the pack"),
        ({"head_size": 64}, "head_dim is 64 here and 128 in the pack"),
        ({"block_size": 32}, "block_size is 32 here and 16 in the pack"),
        ({"backend": HeadsFirst}, "VLLM_KV_CACHE_LAYOUT is HND here and NHD in the pack"),
        ({"sliding_window": 4096}, "sliding_window is 4096 here and 0 in the pack"),
        ({"soft_cap": 50.0}, "logits_soft_cap is 50.0 here and 0.0 in the pack"),
        ({"scale": 0.5}, "scale is 0.5 here and 0.08838834764831845 in the pack"),
        ({"drafts": 3}, "tokens of a sequence in a step is 4 here and 1 in the pack"),
        (
            {"max_length": 8192},
            "max_model_len is 8192, but the pack's kernels support at most 2048 tokens: a full graph cannot",
        ),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is fp8, but kernels read fp16 or bf16"),
        ({"backend": OfTheCpu}, "the cache layout of backend CPU_ATTN is not supported"),
        ({"has_sink": True}, "its heads have sinks"),
        ({"alibi_slopes": [1.0]}, "its scores have slopes (ALiBi)"),
        ({"attn_type": "encoder_only"}, "its type is encoder_only, but kernels only decode"),
        ({"kv_sharing_target_layer_name": "layers.3"}, "it reads the cache of layers.3"),
        ({"ranks": 2}, "decode_context_parallel_size is 2: a rank has a part of each context"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], words: str) -> None:
    found = reasons_against(served(**changes), OURS, reaching(2048))
    assert any(words in one for one in found), found


def test_vllms_own_enumeration_of_types_is_known() -> None:
    class AttentionType(str, Enum):  # noqa: UP042 - as vLLM has it
        DECODER = "decoder"

    assert reasons_against(served(attn_type=AttentionType.DECODER), OURS, reaching(2048)) == []


def test_kernels_that_reach_farther_serve_shorter_models() -> None:
    assert reasons_against(served(max_length=1000), OURS, reaching(2048)) == []


def test_a_contiguous_pack_and_one_without_kernels_are_named() -> None:
    contiguous = replace(OURS, page_tokens=0, heads_first=True)
    assert "block_size is 16 here and none, since its cache is contiguous, in the pack" in reasons_against(
        served(), contiguous, reaching(2048)
    )
    assert any("support at most 0 tokens" in one for one in reasons_against(served(), OURS, []))
