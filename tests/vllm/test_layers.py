"""Whole layers inside vLLM, on a CPU, with PyTorch in place of a pack's launches: the tokens equal vLLM's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.attention_packs import made_of
from tests.support.attentions import space_with
from tests.support.presets import decoder_layer
from tests.vllm.arms import Arms
from tuner.core.problem.dtype import Dtype
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.packs.contents import Entry, Rung
from tuner.packs.shapes import shape_of
from tuner.packs.write import write_pack
from tuner.search.guesses.seeds import first_guesses

pytest.importorskip("vllm")

#: Maximum difference between sums of twelve tokens' log-probabilities: vLLM's rotary embedding rounds sines to bf16,
#: and norms are folded into bf16 weights.
LOGPROB_BAND = 0.02
#: Maximum lead of a token that rounding may reverse, as the difference of two log-probabilities: two steps of these
#: logits in bf16.
MARGIN_BAND = 0.004
#: 8-bit weights with one scale per row, as in a config.
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
#: The first of the tokens comes from prefill; two layers.
NUM_TOKENS = 12
NUM_LAYERS = 2 * (NUM_TOKENS - 1)


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("llama", ("--layers", "--eager")),
        ("llama", ("--layers", "--norms", "--eager")),
        ("qwen2", ("--layers", "--eager")),
        ("mistral", ("--layers", "--eager")),
        ("phi3", ("--layers", "--eager")),
        ("llama", ("--layers",)),
        ("llama", ("--runs", "--eager")),
        ("qwen2", ("--runs", "--eager")),
    ],
)
def test_the_tokens_are_vllms_own(arms: Arms, tmp_path: Path, family: str, flags: tuple[str, ...]) -> None:
    own, _ = arms.run(tmp_path, family, "dummy", *[flag for flag in flags if flag == "--eager"])
    ours, output = arms.run(tmp_path, family, "tuner", *flags)
    assert "tuner: layers run the pack's kernels at 1, 3 sequences" in output
    assert ours["calls"]["layers"] == NUM_LAYERS
    assert ours["tokens"] == own["tokens"]
    assert ours["logprobs"] == pytest.approx(own["logprobs"], abs=LOGPROB_BAND)
    assert ours["logprobs"] != own["logprobs"], "vLLM's own layers ran"


def test_on_two_ranks_the_runs_between_all_reduces_give_vllms_own_tokens(arms: Arms, tmp_path: Path) -> None:
    ranks = ("--settings", '{"tensor_parallel_size": 2}')
    own, _ = arms.run(tmp_path, "llama", "dummy", "--eager", *ranks)
    ours, output = arms.run(tmp_path, "llama", "tuner", "--runs", "--eager", *ranks)
    assert output.count(f"captured: {NUM_LAYERS} by layers") == 2, "on each rank"
    equal = [compared(*one) for one in zip(ours["tokens"], own["tokens"], own["margins"], strict=True)]
    assert sum(equal) >= len(equal) * NUM_TOKENS * 2 // 3
    for count, one, other in zip(equal, ours["logprobs"], own["logprobs"], strict=True):
        assert count < NUM_TOKENS or one == pytest.approx(other, abs=LOGPROB_BAND)


def compared(ours: list[int], own: list[int], margins: list[float]) -> int:
    """How many tokens are equal before a step that rounding decides."""
    for place, (one, other, margin) in enumerate(zip(ours, own, margins, strict=True)):
        if one != other:
            assert margin <= MARGIN_BAND, f"token {place} is {one} instead of {other}, which leads by {margin}"
            return place
    return len(ours)


def test_a_token_that_leads_must_be_equal() -> None:
    assert compared([1, 2, 3], [1, 4, 5], [1.0, 0.001, 1.0]) == 1
    assert compared([1, 2, 3], [1, 2, 3], [1.0, 1.0, 1.0]) == 3
    with pytest.raises(AssertionError, match="token 1 is 2 instead of 4"):
        compared([1, 2, 3], [1, 4, 3], [1.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("family", "settings", "of_layers", "of_mlps"),
    [
        ("qwen3", {}, "Qwen3DecoderLayer: it normalizes queries and keys between qkv and the attention", "2 of 2 MLPs"),
        ("gemma2", {}, "Gemma2DecoderLayer: it normalizes a product's output", "2 of 2 MLPs"),
        ("gemma3", {}, "Gemma3DecoderLayer: it normalizes queries and keys, and a product's output", "2 of 2 MLPs"),
        ("llama", {"enable_lora": True, "max_lora_rank": 8}, "adapters (LoRA) change each product separately", ""),
        (
            "llama",
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            "speculative decoding: its steps have several tokens",
            "2 of 2 MLPs",
        ),
        ("llama", {"enable_prefix_caching": False}, "block_size is 128 here and 16 in the pack", "2 of 2 MLPs"),
        (
            "llama",
            {"config": {"quantization_config": INT8}},
            "its weights are quantised, by CompressedTensorsLinearMethod",
            "0 of 2 MLPs",
        ),
    ],
    ids=["qwen3", "gemma2", "gemma3", "lora", "drafts", "no-prefix-caching", "int8"],
)
def test_what_runs_no_layers_of_a_pack_is_said_and_vllm_serves(
    arms: Arms, tmp_path: Path, family: str, settings: dict[str, Any], of_layers: str, of_mlps: str
) -> None:
    """Uses a pack of another model's layers, which do not fit."""
    workload = decoder_layer("llama3-8b", dtype=Dtype.BF16, sequences=1, max_length=64, page_tokens=16)
    schedule = next(iter(first_guesses(space_with(workload), 0)))
    kernel = made_of(workload, Candidate(plan_kind=PlanKind.N_LAUNCHES_PDL, schedule=schedule)).kernel
    rung = Rung(m_lo=1, m_hi=1, max_length=64, kernel=kernel)
    write_pack([Entry(shape=shape_of(workload.to_json()), rungs=(rung,))], tmp_path / "model.tunerpack")
    of_vllm = {name: value for name, value in settings.items() if name != "config"}
    flags = ("--eager", "--settings", json.dumps(of_vllm), "--config", json.dumps(settings.get("config", {})))
    own, _ = arms.run(tmp_path, family, "dummy", *flags)
    ours, output = arms.run(tmp_path, family, "tuner", *flags)
    assert of_layers in output
    assert of_mlps in output
    assert "layers" not in ours["calls"]
    # vLLM's dummy loader leaves integers uninitialised.
    assert ours["tokens"] == own["tokens"] or "config" in settings


def test_weights_cannot_be_loaded_again(arms: Arms, tmp_path: Path) -> None:
    _, output = arms.run(tmp_path, "llama", "tuner", "--layers", "--eager", "--reload")
    assert "norms are folded into the weights of this model" in output
