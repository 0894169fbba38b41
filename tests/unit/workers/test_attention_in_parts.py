"""The library's attention where no fused kernel of PyTorch supports it; requires PyTorch, but no GPU."""

from __future__ import annotations

import pytest

from tuner.ops.attention.in_parts import attend_in_parts

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("most", [1, 2 * 4 * 2 * 40 * 16, 2**28])
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("new_tokens", [1, 3])
def test_in_parts_it_is_the_attention_of_repeated_heads(new_tokens: int, is_masked: bool, most: int) -> None:
    torch.manual_seed(1)
    sequences, kv_heads, group, tokens, head_dim = 5, 2, 3, 40, 16
    q = torch.randn(sequences, new_tokens, kv_heads * group, head_dim)
    keys, values = (torch.randn(sequences, kv_heads, tokens + 7, head_dim)[:, :, :tokens] for _ in range(2))
    lengths = torch.tensor([1, 7, 40, 0, 23])
    ends = lengths[:, None, None] - torch.arange(new_tokens)[None, :, None]
    mask = (torch.arange(tokens) < ends)[:, None] if is_masked else None
    found = attend_in_parts(torch, (q, keys, values), mask, 0.3, most)
    wide = [one.repeat_interleave(group, dim=1) for one in (keys, values)]
    scores = 0.3 * q.transpose(1, 2) @ wide[0].mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    wanted = (scores.softmax(dim=-1) @ wide[1]).transpose(1, 2)
    has_tokens = (
        torch.ones_like(wanted) if mask is None else mask.any(dim=-1).transpose(1, 2)[..., None] & wanted.isfinite()
    )
    assert torch.allclose(found * has_tokens, wanted.nan_to_num() * has_tokens, atol=1e-5)
