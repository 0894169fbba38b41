"""Steps with more rows than the pack's last kernel are vLLM's own code, inside vLLM, which compiles as on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.vllm.arms import Arms

pytest.importorskip("vllm")
#: Fewer than the prompts' 18 rows, and more than the 3 of a decode step.
LAST = ("--last-row", "8")
#: Of 12 tokens, the prefill computes the first; each of the others takes a step of two MLPs.
DECODED = 2 * 11


def test_the_prefill_calls_nothing_of_ours_and_the_tokens_are_vllms(arms: Arms, tmp_path: Path) -> None:
    own, _ = arms.run(tmp_path, "llama", "dummy", *LAST)
    packed, output = arms.run(tmp_path, "llama", "tuner", "--norms", *LAST)
    assert "tuner: from 9 rows on, steps are vLLM's own code" in output
    assert "does not compile" not in output
    assert packed["calls"] == {"unbound": DECODED}
    assert packed["tokens"] == own["tokens"]
