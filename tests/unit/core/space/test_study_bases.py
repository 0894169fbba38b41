"""What a study varies where nobody names a schedule is worth studying."""

from __future__ import annotations

from tuner.core.model.bounds import reference_us
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.space.sweeps import Sweep, base_of, swept
from tuner.ops.gemm.pairs import ffn_pair

GPU = CATALOGUE["h200"]


def test_a_studys_own_schedule_is_near_what_the_pair_can_reach() -> None:
    pair = ffn_pair(m=512, d_in=4096, d_hidden=14336, d_out=4096)
    base = base_of(Sweep.RASTERS, pair, GPU)
    assert forecast_us(pair, GPU, base) < 2 * reference_us(pair, GPU)
    assert len(swept(Sweep.RASTERS, pair, GPU, base)) > 8
