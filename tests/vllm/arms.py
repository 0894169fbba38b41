"""Arms inside vLLM, each in its own process (`arm.py`), with the wheel as it is installed."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

#: Maximum CPU time of an arm's process; a start takes half a minute, compiling another one. A wall-clock limit would
#: depend on the machine's load.
CPU_S = 600
#: Time after which an arm that waits for input is abandoned.
WAIT_S = 7200
#: Maximum difference between sums of twelve tokens' log-probabilities. GELU instead of SiLU changes them by 0.004.
LOGPROB_BAND = 0.001

Arm = tuple[dict[str, Any], str]
#: Answers of stock arms, by family and flags, which all tests share.
_stock: dict[tuple[str, ...], Arm] = {}


def run_arm(wheel: Path, tmp_path: Path, family: str, load_format: str, *flags: str) -> Arm:
    """An arm's result, and all of its output. All arms share one compile cache, and a stock arm runs once."""
    if load_format != "dummy":
        return _run(wheel, tmp_path, family, load_format, *flags)
    if (asked := (family, *flags)) not in _stock:
        _stock[asked] = _run(wheel, tmp_path, family, load_format, *flags)
    return _stock[asked]


def _run(wheel: Path, tmp_path: Path, *asked: str) -> Arm:
    pack = tmp_path / "model.tunerpack"
    if not pack.exists():
        pack.write_bytes(b"a CPU opens no pack")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT / "tests" / "vllm")]),
        "TUNER_PACK": str(pack),
        "VLLM_CACHE_ROOT": str(wheel.parent / "cache"),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several ranks on one socket
    }
    command = [sys.executable, str(ROOT / "tests" / "vllm" / "arm.py"), *asked]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, preexec_fn=_limit_cpu
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"{' '.join(asked)} ended with {done.returncode}: {output[-4000:]}"
    line = next(line for line in done.stdout.splitlines() if line.startswith("ARM "))
    found: dict[str, Any] = json.loads(line.removeprefix("ARM "))
    return found, output


def _limit_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
