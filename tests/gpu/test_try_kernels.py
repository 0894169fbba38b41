"""A fetched kernel on a GPU: correct results and a gain over the library; the example accepts a folder of files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.on_card import EXAMPLE, problem, schedule
from tuner.core.problem.gpu import Gpu
from tuner.core.problem.workload import Activation
from tuner.core.schedule.candidate import Candidate
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.core.trial.evaluator import Environment
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.artifact import assemble
from tuner.workers.builder.nvrtc import Builder
from tuner.workers.builder.prepare import prepare

pytest.importorskip("cupy")


@pytest.fixture
def kernels(gpu: Gpu, builder: Builder, tmp_path: Path) -> Path:
    """A folder with the files of two artifacts; the cubin of the second is invalid."""
    asked = problem(ffn_pair(m=16, d_in=512, d_hidden=1024, d_out=512, activation=Activation.RELU))
    candidate = Candidate(plan_kind=PlanKind.FUSED, schedule=schedule(((16, 64, 64), (16, 64, 64))))
    made = prepare(asked.workload, gpu, candidate, builder, {})
    here, spin = Environment(gpu_name=gpu.name, simulated=False), made.work.spin_limit_cycles
    files = assemble(asked, candidate, made.plans, made.source, made.work.shared, here, {}, spin).files
    for name, cubin in (("a", files["kernel.cubin"]), ("b", b"no cubin")):
        (tmp_path / "kernels" / name).mkdir(parents=True)
        for file, content in {**files, "kernel.cubin": cubin}.items():
            (tmp_path / "kernels" / name / file).write_bytes(content)
    return tmp_path / "kernels"


def test_kernels_are_checked_and_timed_beside_the_library_and_a_broken_one_says_why(kernels: Path) -> None:
    command = [sys.executable, "-m", "tuner.workers.host.try_kernels", str(kernels)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    good, broken = (json.loads(line) for line in done.stdout.splitlines())
    assert good["reason"] == ""
    assert 0.2 < good["speedup"] < 5
    assert good["library_us"] / good["time_us"] == pytest.approx(good["speedup"], rel=0.1)
    assert broken["reason"]


def test_the_example_runs_the_files_where_they_lie(kernels: Path) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), str(kernels / "a")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
