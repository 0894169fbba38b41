"""Kernels of op kinds from test packages, compiled by NVRTC."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import toys
from tests.support.lanes import soaked

PROGRAM = """
from toy_gather.schedule import ROWS_PER_CTA, THREADS, GatherSchedule
from tuner.core.problem.op_kinds import part_of
from tuner.core.problem.workload import Dtype, Workload
from tests.support.reports import report_of
ops = [{"op": "gather", "name": "embed", "m": 16, "n": 512, "table_rows": 4096}]
(op,) = Workload.from_json({"kind": "chain", "ops": ops, "dtype": "bf16"}).ops
source, rules = part_of("gather", "source"), part_of("gather", "rules")
for schedule in (GatherSchedule(threads=THREADS[0]), GatherSchedule(rows_per_cta=ROWS_PER_CTA[-1])):
    found = report_of(source.source_of(op, schedule, Dtype.BF16), "ARCH").resources
    said = rules.resources_of(op, schedule)
    fits = found.registers_per_thread <= said.registers_per_thread
    print(found.static_smem_bytes, said.smem_bytes, fits, found.spill_bytes)
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", [*soaked("sm_80"), "sm_90a"])
def test_a_kernel_of_another_package_takes_what_its_rules_say(arch: str, tmp_path: Path) -> None:
    printed = toys.run(PROGRAM.replace("ARCH", arch), toys.install("gather", tmp_path))
    assert printed.splitlines() == ["4 4 True 0"] * 2
