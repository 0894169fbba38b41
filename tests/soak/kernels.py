"""Every kernel of the GPU tests compiles without a GPU, without spills or warnings.

python -m tests.soak.kernels [--seed 1]
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from tests.compile.test_wgmma import CASES as WGMMA_CASES
from tests.compile.test_wgmma import SUMS, each_shape_once, gated_of, most_registers
from tests.soak.program import Program, Row, Step, main
from tests.support.conformance.sources import CacheKernel, Kernel, distinct, kernels
from tests.support.conformance.table import CASES
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.errors import BuildError
from tuner.workers.builder.nvrtc import compile_source, parse_log
from tuner.workers.source.render import render

STEP = 5
#: At least the number of cases, so that a run includes each once.
SIZE = 330 * STEP


@dataclass(frozen=True, kw_only=True)
class Build:
    """One kernel to compile."""

    kernel: Kernel | CacheKernel
    traced: bool = False

    @property
    def id(self) -> str:
        """The kernel's id, and whether it has stamps."""
        return f"{self.kernel.id}{', traced' * self.traced}"

    @property
    def source(self) -> str:
        """The compiled source."""
        if isinstance(self.kernel, CacheKernel):
            return self.kernel.source
        return render(self.kernel.workload, self.kernel.tiling, traced=self.traced)

    def problem(self) -> str:
        """What is wrong with the build; empty if nothing is. Stamps take registers, so builds with stamps may spill."""
        try:
            resources = parse_log(compile_source(self.source, "sm_90a")[1])
        except BuildError as error:
            return str(error).splitlines()[0]
        if self.traced:
            is_too_much = resources.registers_per_thread > most_registers(self.kernel.tiling)
            return f"takes {resources.registers_per_thread} registers" if is_too_much else ""
        is_clean = resources.spill_bytes == 0 and not resources.warnings
        return "" if is_clean else f"spills {resources.spill_bytes} bytes {resources.warnings}"


def _named(workload: Workload, tiling: Tiling) -> Kernel:
    return Kernel(id=f"{workload.describe()}, {tiling}", workload=workload, tiling=tiling)


@cache
def builds() -> list[Build]:
    """All builds, ordered such that any part is a fair sample."""
    found = [Build(kernel=kernel) for kernel in distinct(kernels(CASES))]
    found += [Build(kernel=_named(*case), traced=traced) for case in WGMMA_CASES for traced in (False, True)]
    gated = [(workload, tiling) for workload in (gated_of(16), gated_of(192)) for tiling in each_shape_once(workload)]
    found += [Build(kernel=_named(*case)) for case in (*gated, *SUMS)]
    random.Random(0).shuffle(found)
    return found


def work(step: Step) -> list[Row]:
    """A row for each faulty build, and one with the number of builds."""
    some = builds()[step.first : step.first + step.count]
    bad = [{"kernel": build.id, "why": why} for build in some if (why := build.problem())]
    return [*bad, {"kernel": "all", "compiled": len(some)}]


def judge(rows: list[Row]) -> tuple[list[Row], list[str]]:
    """Checks that no build is faulty."""
    bad = [row for row in rows if row["kernel"] != "all"]
    compiled = sum(row["compiled"] for row in rows if row["kernel"] == "all")
    found = [{"kernel": "all", "compiled": compiled, "bad": len(bad)}, *bad]
    return found, [f"{row['kernel']}: {row['why']}" for row in bad]


PROGRAM = Program(name="kernels", unit="kernels", size=SIZE, step=STEP, work=work, judge=judge)

if __name__ == "__main__":
    main(PROGRAM)
