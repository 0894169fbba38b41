from __future__ import annotations

import re

from tuner.core.legal.warpgroups.workloads import MAX_CTAS
from tuner.workers.source.render import device_text


def test_the_host_and_the_device_agree_on_the_ctas_whose_first_tasks_travel_in_the_parameter() -> None:
    (in_device_code,) = re.findall(r"constexpr int kMaxCtas = (\d+);", device_text("shared_wgmma.cuh"))
    assert int(in_device_code) == MAX_CTAS
