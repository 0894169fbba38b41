"""examples/vllm_plugin.py inside vLLM itself, on a CPU: the tokens are vLLM's own, in each family, eager and compiled.

It runs where vLLM is installed: `make test-vllm`. The operator computes by PyTorch's products there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT

pytest.importorskip("vllm")

#: vLLM's start takes half a minute on two cores, and compiling another minute.
LIMIT_S = 600
#: How far the sums of twelve tokens' log-probabilities may differ. GELU in the place of SiLU moves them by 0.004.
LOGPROB_BAND = 0.001


def arm(tmp_path: Path, family: str, load_format: str, *flags: str, **more: str) -> tuple[dict[str, Any], str]:
    """What an arm of its own process printed, and all of its output."""
    plugin = tmp_path / "plugin" / "tuner_vllm_test-1.dist-info"
    plugin.mkdir(parents=True, exist_ok=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: tuner_vllm_test\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\ntuner = vllm_plugin:register\n")
    pack = tmp_path / "model.tunerpack"
    pack.write_bytes(b"a CPU opens no pack")
    folders = [str(ROOT), str(ROOT / "examples"), str(plugin.parent)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(folders),
        "TUNER_PACK": str(pack),
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "tests.vllm.arm", family, load_format, *flags]
    done = subprocess.run(command, env=environment | more, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ARM "))
    found: dict[str, Any] = json.loads(line.removeprefix("ARM "))
    return found, output


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"])
@pytest.mark.timeout(3 * LIMIT_S)
def test_the_tokens_are_vllms_own(tmp_path: Path, family: str) -> None:
    own, _ = arm(tmp_path, family, "dummy", "--eager")
    packed, output = arm(tmp_path, family, "tuner", "--eager")
    assert "tuner: 2 of 2 MLPs run the kernels of" in output
    assert packed["launches"]["without"] > 0
    assert packed["tokens"] == own["tokens"]
    assert packed["logprobs"] == pytest.approx(own["logprobs"], abs=LOGPROB_BAND)


@pytest.mark.timeout(4 * LIMIT_S)
def test_compiled_by_vllm_with_one_cache_for_both(tmp_path: Path) -> None:
    own, _ = arm(tmp_path, "llama", "dummy")
    packed, output = arm(tmp_path, "llama", "tuner")
    assert "tuner: 2 of 2 MLPs run the kernels of" in output
    assert packed["launches"]["without"] > 0, "stock code out of the compile cache"
    assert packed["tokens"] == own["tokens"]


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_family_that_it_does_not_know_stays_vllms_and_is_told(tmp_path: Path) -> None:
    packed, output = arm(tmp_path, "granite", "tuner", "--eager")
    assert "tuner: 0 of 2 MLPs run" in output
    assert "2 stay vLLM's own: GraniteMLP is none of" in output
    assert not packed["launches"]
