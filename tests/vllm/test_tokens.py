"""`tuner.vllm` inside vLLM itself, on a CPU: the tokens equal vLLM's own, in each family, eager and compiled.

It requires vLLM: `make test-vllm` runs it from the built wheel. There, the operator uses PyTorch's products.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.arms import LOGPROB_BAND, Arms

pytest.importorskip("vllm")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"])
def test_the_tokens_are_vllms_own(arms: Arms, tmp_path: Path, family: str) -> None:
    own, _ = arms.run(tmp_path, family, "dummy", "--eager")
    packed, output = arms.run(tmp_path, family, "tuner", "--eager")
    assert "tuner: 2 of 2 MLPs run the kernels of" in output
    assert packed["calls"]["unbound"] > 0
    assert packed["tokens"] == own["tokens"]
    assert packed["logprobs"] == pytest.approx(own["logprobs"], abs=LOGPROB_BAND)


def test_compiled_by_vllm_with_one_cache_for_both(arms: Arms, tmp_path: Path) -> None:
    own, _ = arms.run(tmp_path, "llama", "dummy")
    packed, output = arms.run(tmp_path, "llama", "tuner")
    assert "tuner: 2 of 2 MLPs run the kernels of" in output
    assert packed["calls"]["unbound"] > 0, "stock code out of the compile cache"
    assert packed["tokens"] == own["tokens"]


def test_with_norms_that_round_less(arms: Arms, tmp_path: Path) -> None:
    own, _ = arms.run(tmp_path, "llama", "dummy", "--eager")
    packed, output = arms.run(tmp_path, "llama", "tuner", "--eager", "--norms")
    assert "tuner: 4 norms overlap with the launches of an MLP" in output
    assert packed["tokens"] == own["tokens"]
    assert packed["logprobs"] == pytest.approx(own["logprobs"], abs=20 * LOGPROB_BAND)
    assert packed["logprobs"] != pytest.approx(own["logprobs"], abs=LOGPROB_BAND), "vLLM's own norms ran"


def test_on_two_ranks_each_runs_its_share_of_the_mlps(arms: Arms, tmp_path: Path) -> None:
    ranks = ("--settings", '{"tensor_parallel_size": 2}')
    own, _ = arms.run(tmp_path, "llama", "dummy", "--eager", *ranks)
    packed, output = arms.run(tmp_path, "llama", "tuner", "--eager", *ranks)
    assert output.count("tuner: 2 of 2 MLPs run the kernels of") == 2, "on each rank"
    assert output.count("by unbound") == 2
    assert packed["tokens"] == own["tokens"]
    assert packed["logprobs"] == pytest.approx(own["logprobs"], abs=LOGPROB_BAND)


def test_a_family_that_it_does_not_know_stays_vllms_and_is_told(arms: Arms, tmp_path: Path) -> None:
    packed, output = arms.run(tmp_path, "granite", "tuner", "--eager")
    assert "tuner: 0 of 2 MLPs run" in output
    assert "2 keep vLLM's implementation: GraniteMLP is not one of" in output
    assert not packed["calls"]
