"""During the finals, only the variants of the kernel that is fastest so far are built."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.cases import H200
from tests.support.waiting import wait_until
from tuner.core.schedule.candidate import LIBRARY, Candidate, fused
from tuner.core.schedule.ordering import Ordering, Raster
from tuner.core.schedule.schedule import Schedule
from tuner.core.schedule.tiling import Tile, Tiling
from tuner.ops.gemm.pairs import ffn_pair
from tuner.workers.builder.nvrtc import Builder, build_key
from tuner.workers.builder.prepare import prepare
from tuner.workers.host.variants_ahead import build_variants_ahead
from tuner.workers.protocol.messages import FinalsAnswer, Work
from tuner.workers.source.render import render
from tuner.workers.source.variants import Variant

WORKLOAD = ffn_pair(m=48, d_in=64, d_hidden=128, d_out=128)


def candidate(columns: int) -> Candidate:
    tiling = Tiling(tiles=(Tile(m=16, n=columns, k=32),) * 2, num_stages=3, num_warps=4)
    return fused(Schedule.of(tiling=tiling, ordering=Ordering(rasters=(Raster(), Raster()))))


@pytest.mark.slow
def test_the_fastest_kernels_variants_are_built_ahead_and_no_others(tmp_path: Path) -> None:
    with closing(Builder(tmp_path, num_processes=2)) as builder:

        def path_of(one: Candidate, variant: Variant) -> Path:
            assert one.schedule
            source = render(WORKLOAD, one.schedule.tiling, variant=variant)
            return tmp_path / f"{build_key(source, H200.arch, builder.compiler_version)}.json"

        slow, fast, failed = candidate(32), candidate(64), candidate(128)
        works = (
            Work(plan_kind=LIBRARY.plan_kind),
            *(prepare(WORKLOAD, H200, one, builder, {}).work for one in (slow, fast, failed)),
        )
        answer = FinalsAnswer(
            times_us=((1.0,), (3.0, 3.0), (2.0, 9.0, 2.0), None), reasons=("", "", "", "hang"), num_dropped=0
        )
        build_variants_ahead(builder, works, answer)
        wait_until(path_of(fast, Variant.GUARDED).exists)
        assert not path_of(slow, Variant.GUARDED).exists()
        assert not path_of(failed, Variant.GUARDED).exists()


def test_where_no_kernel_of_ours_came_through_nothing_is_built(tmp_path: Path) -> None:
    with closing(Builder(tmp_path)) as builder:
        answer = FinalsAnswer(times_us=((1.0,),), reasons=("",), num_dropped=0)
        build_variants_ahead(builder, (Work(plan_kind=LIBRARY.plan_kind),), answer)
        assert list(tmp_path.iterdir()) == []
