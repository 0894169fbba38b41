"""Whole layers inside vLLM, on a CPU, with PyTorch in the place of a pack's launches: the tokens are vLLM's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.test_tokens import LIMIT_S, arm, wheel

pytest.importorskip("vllm")

__all__ = ["wheel"]

#: How far the sums of twelve tokens' log-probabilities may differ: vLLM's rotary embedding rounds sines to bf16, and
#: norms are folded into weights of bf16.
LOGPROB_BAND = 0.02
#: Of twelve tokens the first is prefill's; two layers.
NUM_LAYERS = 2 * 11


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("llama", ("--layers", "--eager")),
        ("qwen2", ("--layers", "--eager")),
        ("mistral", ("--layers", "--eager")),
        ("phi3", ("--layers", "--eager")),
        ("llama", ("--layers",)),
        ("llama", ("--runs", "--eager")),
        ("qwen2", ("--runs", "--eager")),
    ],
)
@pytest.mark.timeout(3 * LIMIT_S)
def test_the_tokens_are_vllms_own(wheel: Path, tmp_path: Path, family: str, flags: tuple[str, ...]) -> None:
    own, _ = arm(wheel, tmp_path, family, "dummy", *[flag for flag in flags if flag == "--eager"])
    ours, output = arm(wheel, tmp_path, family, "tuner", *flags)
    assert "tuner: layers run the pack's kernels at 1, 3 sequences" in output
    assert ours["calls"]["layers"] == NUM_LAYERS
    assert ours["tokens"] == own["tokens"]
    assert ours["logprobs"] == pytest.approx(own["logprobs"], abs=LOGPROB_BAND)
    assert ours["logprobs"] != own["logprobs"], "vLLM's own layers ran"


@pytest.mark.timeout(2 * LIMIT_S)
def test_weights_cannot_be_loaded_again(wheel: Path, tmp_path: Path) -> None:
    _, output = arm(wheel, tmp_path, "llama", "tuner", "--layers", "--eager", "--reload")
    assert "norms are folded into the weights of this model" in output
