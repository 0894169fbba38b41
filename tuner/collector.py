"""Python's garbage collector in processes that live long."""

from __future__ import annotations

import gc

#: Objects created but not yet deleted before the collector checks them; number of checks of young objects before one of
#: older ones; and number of these before a check of all. A page makes some twenty thousand, which end without it. A
#: search of sixty trials creates a hundred thousand objects, which it keeps: the last check finds those of about twenty
#: finished searches.
_THRESHOLDS = (50_000, 10, 4)


def spare_collector() -> None:
    """Excludes existing objects from collection: modules, routes and models stay until the end. To look at them
    again and again stops every thread for a tenth of a second each time. And has it come seldom: by Python's own
    thresholds it takes a fifth of a page's time, and a twelfth of a search's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
