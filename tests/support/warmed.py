"""What most servers of tests would compute again, computed once on import: forks inherit it.

That is an empty database, what FastAPI imports for its first routes, and the first choices for the small pair, whose
space takes a second to list.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

from tests.support.kept_tilings import kept
from tests.support.migrated import copied
from tuner.api.app import create_app
from tuner.core.problem.gpu import parse_target
from tuner.dispatch import LocalDispatcher
from tuner.ops.gemm.pairs import ffn_pair
from tuner.search.order import SearchOrder
from tuner.service import Service
from tuner.store import Store

#: `tests.support.serving.SMALL_PAIR`.
PAIR = ffn_pair(m=16, d_in=256, d_hidden=512, d_out=256)

with copied(), tempfile.TemporaryDirectory() as _folder:
    _service = Service(Store.open(Path(_folder) / "data"), LocalDispatcher([]))
    create_app(_service)
    _service.close()
with kept():
    _search = SearchOrder(workload=PAIR, gpu=parse_target("simulated:h200").gpu, seed=0).begin()
    for _ in range(4):
        _search.ask()
del _service, _search
gc.collect()
gc.freeze()
