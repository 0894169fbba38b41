"""The last trials of a pair's budget: which kind repeats the best schedule of which other kind."""

from __future__ import annotations

from tuner.core.schedule.plan_kinds import PlanKind, in_turn

#: In the order of their turns, with the kind whose best schedules they try.
VARIATIONS = tuple((kind, kind.base) for kind in in_turn(2) if kind.base)
REPEATS = ((PlanKind.TWO_LAUNCHES, PlanKind.FUSED), *dict.fromkeys(VARIATIONS))
