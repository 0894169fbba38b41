"""The reference logits of `benchmarks.runtime.vllm_logits` equal those of transformers' own model in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
#: Warnings of PyTorch and transformers, which are imported here.
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "rms_norm_eps": 1e-5,
}
PROMPT, STEPS = 6, 5


def model_and_weights(family: str) -> tuple[Any, dict[str, Any]]:
    """transformers' model, and its weights by vLLM's names."""
    torch.manual_seed(1)
    config = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config}[family](**SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    found: dict[str, Any] = {}
    for name, weight in model.state_dict().items():
        weight.uniform_(0.8, 1.2) if "norm" in name else weight.uniform_(-0.3, 0.3)
        merged = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj"}
        merged |= {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj"}
        part = name.split(".")[-2]
        found.setdefault(name.replace(part, merged.get(part, part)), []).append(weight)
    return model, {name: torch.cat(parts) for name, parts in found.items()}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_they_are_transformers_own(family: str) -> None:
    from benchmarks.runtime.vllm_logits import reference

    model, weights = model_and_weights(family)
    tokens = torch.randint(128, (3, PROMPT + STEPS))
    with torch.inference_mode():
        found, wanted = reference(SIZES, weights, tokens, PROMPT), model(tokens).logits[:, PROMPT:]
    assert torch.allclose(found, wanted, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="rope_scaling"):
        reference(SIZES | {"rope_scaling": {"type": "yarn"}}, weights, tokens, PROMPT)


def test_an_arm_that_lies_farther_or_decides_otherwise_is_told(tmp_path: Path) -> None:
    from benchmarks.runtime.vllm_logits import compared, reference

    _, weights = model_and_weights("llama")
    prompts, forced = torch.randint(128, (2, PROMPT)), torch.randint(128, (2, STEPS))
    with torch.inference_mode():
        right = reference(SIZES, weights, torch.cat([prompts, forced], dim=1), PROMPT).transpose(0, 1)
    turned = right.clone()
    top = right.topk(2, dim=-1).indices
    turned[0, 0, top[0, 0]] = right[0, 0, top[0, 0].flip(0)]
    files = {}
    for arm, logits in {
        "stock": right + 1e-3,
        "noisy": right + 1e-2 * torch.randn_like(right),
        "turned": turned,
    }.items():
        files[arm] = str(tmp_path / arm)
        torch.save({"logits": logits, "prompts": prompts, "forced": forced}, files[arm])
    found = compared(SIZES, weights, files)["arms"]
    assert found["stock"]["rms"] == pytest.approx(1e-3, rel=0.01)
    assert found["noisy"]["rms"] > 5 * found["stock"]["rms"]
    assert found["stock"]["other_top"] == found["noisy"]["other_top"] == 0
    assert found["turned"]["other_top"] == 1
