"""A forecast with a time limit stops as soon as it exceeds the limit."""

from __future__ import annotations

import math
import random

from tests.support.spaces import space_of
from tuner.core.model.forecast import forecast_us
from tuner.core.problem.gpu import CATALOGUE
from tuner.core.schedule.candidate import fused
from tuner.ops.gemm.pairs import ffn_pair


def test_what_takes_longer_than_the_limit_takes_for_ever_and_all_else_as_long_as_without_one() -> None:
    workload, gpu = ffn_pair(m=64, d_in=512, d_hidden=1024, d_out=512), CATALOGUE["h200"]
    schedules = space_of(workload, gpu).sample(random.Random(1), 12)
    times_us = [forecast_us(workload, gpu, fused(schedule)) for schedule in schedules]
    limit_us = sorted(times_us)[5]
    limited_us = [forecast_us(workload, gpu, fused(schedule), limit_us) for schedule in schedules]
    kept = [(time_us, limited) for time_us, limited in zip(times_us, limited_us, strict=True) if limited < math.inf]
    assert all(time_us == limited for time_us, limited in kept)
    assert {time_us for time_us in times_us if time_us <= limit_us} <= {time_us for time_us, _ in kept}
    assert len(kept) < len(schedules), "none of them ended early"
