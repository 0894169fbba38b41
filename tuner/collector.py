"""Python's garbage collector in long-lived processes."""

from __future__ import annotations

import gc

#: The collector's thresholds: how many objects are created and not yet deleted before it checks them; how many checks
#: of young objects precede one of older objects; and how many of the latter precede a check of all objects. A page
#: creates some twenty thousand objects, which are freed without the collector. A search of sixty trials keeps a hundred
#: thousand objects; a full check frees those of about twenty finished searches.
_THRESHOLDS = (50_000, 10, 4)


def spare_collector() -> None:
    """Excludes existing objects from collection: modules, routes and models live until the end, and each check of them
    would stop every thread for a tenth of a second. Also makes collections rare: with Python's own thresholds they take
    a fifth of a page's time, and a twelfth of a search's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
