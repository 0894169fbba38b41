"""Tunes Python's garbage collector for long-lived processes."""

from __future__ import annotations

import gc

#: For `gc.set_threshold`: created minus deleted objects until the youngest generation is checked, then the checks of a
#: generation until the next older one is checked. A page creates some twenty thousand objects, which are freed without
#: the collector. A search of sixty trials keeps a hundred thousand objects; a full check frees those of about twenty
#: finished searches.
_THRESHOLDS = (50_000, 10, 4)


def spare_collector() -> None:
    """Excludes existing objects from collection: modules, routes and models live until the end, and each check of them
    would stop every thread for a tenth of a second. Also makes collections rare: with Python's own thresholds they take
    a fifth of a page's time, and a twelfth of a search's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
