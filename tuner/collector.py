"""Python's garbage collector in processes that live long."""

from __future__ import annotations

import gc

#: Objects that are made, and not yet unmade, before the collector looks at them; how many of its looks at young objects
#: come before one at older ones; and how many of these before one at all. A page makes some twenty thousand, which end
#: without it. A search of sixty trials makes a hundred thousand, which it keeps: what is found by the last looks are
#: those of some twenty searches that are over.
_THRESHOLDS = (50_000, 10, 4)


def spare_collector() -> None:
    """Has the collector leave alone what is there now: modules, routes and models stay to the end. To look at them
    again and again stops every thread for a tenth of a second each time. And has it come seldom: by Python's own
    thresholds it takes a fifth of a page's time, and a twelfth of a search's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
