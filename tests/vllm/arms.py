"""Arms inside vLLM, each in its own process (`arm.py`), with the wheel as it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.repository import ROOT

#: Maximum CPU time of an arm's process; an eager one takes seconds, compiling half a minute. A wall-clock limit would
#: depend on the machine's load.
CPU_S = 600
#: Maximum difference between sums of twelve tokens' log-probabilities. GELU instead of SiLU changes them by 0.004.
LOGPROB_BAND = 0.001

Arm = tuple[dict[str, Any], str]


class Arms:
    """Runs arms by forking a process that has imported vLLM."""

    def __init__(self, wheel: Path) -> None:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(wheel), str(ROOT / "tests" / "vllm")]),
            "VLLM_CACHE_ROOT": str(wheel.parent / "cache"),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several ranks on one socket
        }
        #: Results of stock arms, by their arguments, which all tests share.
        self._stock: dict[tuple[str, ...], Arm] = {}
        self._log = (wheel.parent / "serve.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "vllm" / "arm.py"), "--serve"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def run(self, tmp_path: Path, *asked: str) -> Arm:
        """An arm's result, and all of its output. A stock arm runs once."""
        if "dummy" not in asked:
            return self._run(tmp_path, *asked)
        if asked not in self._stock:
            self._stock[asked] = self._run(tmp_path, *asked)
        return self._stock[asked]

    def _run(self, tmp_path: Path, *asked: str) -> Arm:
        pack, output = tmp_path / "model.tunerpack", tmp_path / "output"
        if not pack.exists():
            pack.write_bytes(b"a CPU opens no pack")
        request = {
            "arguments": asked,
            "folder": str(tmp_path),
            "output": str(output),
            "pack": str(pack),
            "cpu_s": CPU_S,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        while not (line := self._process.stdout.readline()).strip().lstrip("-").isdigit():
            assert line, f"the process that runs arms has ended: {Path(self._log.name).read_text()[-4000:]}"
        said = output.read_text()
        assert int(line) == 0, f"{' '.join(asked)} ended with {line.strip()}: {said[-4000:]}"
        found = next(one for one in said.splitlines() if one.startswith("ARM "))
        return json.loads(found.removeprefix("ARM ")), said

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        with self._process:  # closes both pipes and waits
            self._process.stdin.close()
        self._log.close()
