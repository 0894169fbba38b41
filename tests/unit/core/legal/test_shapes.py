"""What is found for a shape is found again for other rings, and for no other shape or workload."""

from __future__ import annotations

from tests.support.cases import wgmma
from tuner.core.legal.warpgroups.shapes import of_shape
from tuner.core.problem.workload import Workload
from tuner.core.schedule.tiling import Tiling
from tuner.ops.gemm.pairs import ffn_pair

PAIR, OTHER = (ffn_pair(m=m, d_in=256, d_hidden=512, d_out=256) for m in (16, 32))


def test_it_is_looked_for_once_whatever_the_rings_and_anew_for_another_shape_or_workload() -> None:
    asked = list[tuple[int, int, int]]()

    @of_shape
    def find(workload: Workload, tiling: Tiling) -> int:
        asked.append((workload.ops[0].m, tiling.tiles[0].n, tiling.num_stages))
        return len(asked)

    narrow, wide = wgmma((16, 64, 64)), wgmma((16, 128, 64))
    rings = [narrow.but(num_stages=stages, input_stages=4, window=window) for stages in (3, 6) for window in (0, 2)]
    assert [find(PAIR, one) for one in rings] == [1] * 4
    assert [find(PAIR, wide), find(PAIR, narrow), find(OTHER, narrow), find(OTHER, rings[0])] == [2, 3, 4, 4]
    assert find(OTHER, narrow.but(sum_kib=64)) == 5
    assert [(m, n) for m, n, _ in asked] == [(16, 64), (16, 128), (16, 64), (32, 64), (32, 64)]
    assert {stages for *_, stages in asked} == {2}, "no answer can depend on the actual rings"
