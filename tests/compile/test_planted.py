"""The faults that the GPU tests plant compile and take effect."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest

from tests.support.on_card import schedule
from tests.support.planted import HANG, KERNEL_FAULTS, PROCESS_FAULTS, KernelFault, planted_source, with_deed
from tests.support.reports import report_of
from tuner.core.schedule.plan_kinds import PlanKind
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.prepare import PreparedKernel
from tuner.workers.protocol.messages import Work
from tuner.workers.source.render import render

WORKLOAD = ffn_pair(m=64, d_in=256, d_hidden=512, d_out=256)
LIBRARY = Work(plan_kind=PlanKind.LIBRARY)


@pytest.mark.parametrize("fault", [*KERNEL_FAULTS, HANG], ids=lambda fault: fault.name)
def test_every_planted_kernel_compiles_and_is_another_one(fault: KernelFault) -> None:
    source = render(WORKLOAD, schedule(((16, 64, 64), (16, 64, 64))).tiling)
    planted = planted_source(fault, source)
    assert fault.statement in planted
    report = report_of(planted, "sm_90a")
    assert report.resources.warnings == ()
    assert report.code != report_of(source, "sm_90a").code


@pytest.mark.slow
def test_a_deed_is_done_by_whoever_reads_it() -> None:
    codes = {}
    for fault in PROCESS_FAULTS[:2]:
        message = pickle.dumps(with_deed(fault, PreparedKernel(work=LIBRARY)))
        program = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        codes[fault.name] = subprocess.run([sys.executable, "-c", program], input=message, env=env).returncode
    assert codes == {"silent exit": 3, "killed from outside": -9}
