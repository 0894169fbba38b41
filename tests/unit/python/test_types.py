"""A type checker's report on a user's script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import ROOT

#: Every line with `type: ignore` is wrong, and a checker that saw no types would call the remark unused.
SCRIPT = """
import tuner
from tuner.client import Client
from tuner.client.documents.documents import Gemm

result = tuner.tune({"kind": "ffn", "m": 16, "d_in": 64, "d_hidden": 64, "d_out": 64, "gated": True}, target="h200")
verdict: str = result.verdict
times: list[float | None] = [row["time_us"] for row in result.best["finals"]]
for trial in result.trials:
    if trial["outcome"]["kind"] == "measured":
        fastest: float = trial["outcome"]["time_us"]
with tuner.connect() as client:
    jobs: list[str] = [job["state"] for job in client.jobs()]
    gemm: Gemm = {"m": 1, "n": 2, "k": 3}
    tuner.tune({"kind": "independent", "first": gemm, "second": gemm}, client=client)
    tuner.tune({"kind": "decoder-block", "model": "llama3-8b", "m": 16}, torch_compile=True, client=client)
    tuner.tune({"kind": "decoder-layer", "model": "llama3-8b", "sequences": 1, "max_length": 64}, client=client)
    tuner.tune({"kind": "chain", "m": 16, "ops": [{"name": "a", "source": "x", "n": 64, "k": 64}]}, client=client)

tuner.tune({"kind": "decoder-block", "model": "llama3-8b"})  # type: ignore[arg-type]
tuner.tune({"kind": "ffn", "m": 16})  # type: ignore[arg-type]
tuner.tune({"kind": "ffn", "m": "16", "d_in": 64, "d_hidden": 64, "d_out": 64})  # type: ignore[typeddict-item]
tuner.tune({"kind": "ffn", "m": 1, "d_in": 1, "d_hidden": 1, "d_out": 1}, l2="tepid")  # type: ignore[arg-type]
wrong: int = result.verdict  # type: ignore[assignment]
result.best["speed"]  # type: ignore[typeddict-item]
Client("http://127.0.0.1:8000").job("job-0")["stat"]  # type: ignore[typeddict-item]
tuner.tun  # type: ignore[attr-defined]
"""

#: What the types of the interface do not depend on is left out, as in a base install; it takes most of the time.
CONFIG = """
[mypy]
strict = true
follow_imports = silent

[mypy-IPython.*,alembic.*,cryptography.*,fastapi.*,numpy.*,opentelemetry.*,optuna.*,psycopg.*,pydantic.*,sqlalchemy.*,\
starlette.*,uvicorn.*,tuner.api.*,tuner.core.legal.*,tuner.core.model.*,tuner.core.proof.*,tuner.core.space.*,\
tuner.dispatch.*,tuner.ops.*,tuner.search.*,tuner.server.*,tuner.service.*,tuner.store.*,tuner.workers.*]
follow_imports = skip
follow_imports_for_stubs = true
"""


# In CI, make lint checks the program strictly.
@pytest.mark.soak
def test_a_users_script_is_checked_strictly_and_its_mistakes_are_seen(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    options = ["--config-file", str(config), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, str(script)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout


def test_the_package_says_that_it_has_types() -> None:
    assert (ROOT / "tuner/py.typed").is_file()
    assert (ROOT / "tuner/__init__.pyi").is_file()
