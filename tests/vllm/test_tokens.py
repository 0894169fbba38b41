"""`tuner.vllm` inside vLLM itself, on a CPU: the tokens are vLLM's own, in each family, eager and compiled.

It runs where vLLM is installed: `make test-vllm`, from the wheel as it is built. The
operator computes by PyTorch's products there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import ROOT

pytest.importorskip("vllm")

#: vLLM's start takes half a minute on two cores, and compiling another minute.
LIMIT_S = 600
#: How far the sums of twelve tokens' log-probabilities may differ. GELU in the place of SiLU moves them by 0.004.
LOGPROB_BAND = 0.001


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's own files, with its entry points, as an installation has them; and `layers_by_torch` as a plugin."""
    built, folder = tmp_path_factory.mktemp("built"), tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(ROOT)]
    subprocess.run(command, check=True)
    (found,) = built.glob("*.whl")
    zipfile.ZipFile(found).extractall(folder)
    beside = folder / "by_torch-0.dist-info"
    beside.mkdir()
    (beside / "METADATA").write_text("Metadata-Version: 2.1\nName: by_torch\nVersion: 0\n")
    (beside / "entry_points.txt").write_text("[vllm.general_plugins]\nby_torch = layers_by_torch:register\n")
    return folder


def arm(wheel: Path, tmp_path: Path, family: str, load_format: str, *flags: str) -> tuple[dict[str, Any], str]:
    """What an arm of its own process printed, and all of its output."""
    pack = tmp_path / "model.tunerpack"
    if not pack.exists():
        pack.write_bytes(b"a CPU opens no pack")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT / "tests" / "vllm")]),
        "TUNER_PACK": str(pack),
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several ranks on one socket
    }
    command = [sys.executable, str(ROOT / "tests" / "vllm" / "arm.py"), family, load_format, *flags]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("ARM "))
    found: dict[str, Any] = json.loads(line.removeprefix("ARM "))
    return found, output


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"])
@pytest.mark.timeout(3 * LIMIT_S)
def test_the_tokens_are_vllms_own(wheel: Path, tmp_path: Path, family: str) -> None:
    own, _ = arm(wheel, tmp_path, family, "dummy", "--eager")
    packed, output = arm(wheel, tmp_path, family, "tuner", "--eager")
    assert "tuner: 2 of 2 MLPs run the kernels of" in output
    assert packed["calls"]["unbound"] > 0
    assert packed["tokens"] == own["tokens"]
    assert packed["logprobs"] == pytest.approx(own["logprobs"], abs=LOGPROB_BAND)


@pytest.mark.timeout(4 * LIMIT_S)
def test_compiled_by_vllm_with_one_cache_for_both(wheel: Path, tmp_path: Path) -> None:
    own, _ = arm(wheel, tmp_path, "llama", "dummy")
    packed, output = arm(wheel, tmp_path, "llama", "tuner")
    assert "tuner: 2 of 2 MLPs run the kernels of" in output
    assert packed["calls"]["unbound"] > 0, "stock code out of the compile cache"
    assert packed["tokens"] == own["tokens"]


@pytest.mark.timeout(2 * LIMIT_S)
def test_a_family_that_it_does_not_know_stays_vllms_and_is_told(wheel: Path, tmp_path: Path) -> None:
    packed, output = arm(wheel, tmp_path, "granite", "tuner", "--eager")
    assert "tuner: 0 of 2 MLPs run" in output
    assert "2 stay vLLM's own: GraniteMLP is not one of" in output
    assert not packed["calls"]
